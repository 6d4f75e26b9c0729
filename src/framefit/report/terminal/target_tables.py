"""Targets as tables (``framefit targets``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.files import Record
from framefit.core.run_record import TargetList
from framefit.core.target import Cost, Target, Unit

__all__ = ["target_view", "targets_view"]


_SHOWN_UNITS = 3  # names of more are shortened in the list


def targets_view(listed: TargetList) -> RenderableType:
    """The built-in targets, one a row.

    Reads well from 60 columns on.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("target", no_wrap=True, style="bold")
    table.add_column("kind", no_wrap=True)
    table.add_column("units", no_wrap=True)
    table.add_column("description", overflow="fold")
    for target in listed.targets:
        units = target.units
        shown = ", ".join(units) if len(units) <= _SHOWN_UNITS else f"{units[0]} .. {units[-1]}"
        table.add_row(*map(Text, (target.name, target.kind, shown, target.description)))
    more = "framefit targets NAME shows one; framefit targets NAME -o mine.toml copies its file to start from"
    return Group(table, Text(more, style="dim"))


def target_view(target: Target, notes: str) -> RenderableType:
    """Everything about a target: each key with its value, defaults marked, and the sources.

    Args:
        target: what is shown.
        notes: the comment that its file begins with.
    """
    blocks: list[RenderableType] = [
        Text.assemble((target.name, "bold"), f"  {target.kind}"),
        Text(target.description),
    ]
    modelled = target.processor is not None or target.cost != Cost()
    for field in msgspec.structs.fields(target):
        value = getattr(target, field.name)
        if not modelled and value == field.default:
            continue  # nothing is modelled, so there is nothing to say
        if field.name == "units":
            blocks.append(_headed("units", _units(target.units)))
        elif isinstance(value, Record):
            blocks.append(_headed(field.name, _keys(value)))
        elif isinstance(value, tuple):
            blocks += [_headed(f"{field.name} {index}", _keys(part)) for index, part in enumerate(value)]
        elif value is None:
            blocks.append(_headed(field.name, Text("  none", style="dim")))
    if notes:
        blocks.append(_headed("notes and sources", Text(notes)))
    return Group(*blocks)


def _headed(title: str, block: RenderableType) -> RenderableType:
    return Padding(Group(Text(title, style="bold"), block), (1, 0, 0, 0))


def _keys(record: Record) -> Table:
    """One row a key; what the file left out is marked."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_column(style="dim", no_wrap=True)
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        grid.add_row(f"  {field.name}", Text(_shown(value)), "default" if value == default else "")
    return grid


def _units(units: tuple[Unit, ...]) -> RenderableType:
    """One row a unit; below, what they run, once for all units that run the same."""
    columns = ("name", "core", "preemptive", "memory_mib", "speed_ratio")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(f"  {name}" if name == "name" else name, no_wrap=True)
    operators: dict[str, list[str]] = {}
    for unit in units:
        cells = [_shown(getattr(unit, name)) for name in columns]
        table.add_row(Text(f"  {cells[0]}"), *map(Text, cells[1:]))
        operators.setdefault(_operators(unit), []).append(unit.name)
    runs = (Text(f"  {', '.join(names)}: {text}") for text, names in operators.items())
    return Group(table, *runs)


def _operators(unit: Unit) -> str:
    text = "all operators" if unit.operators is None else _shown(unit.operators)
    if unit.unsupported:
        text += f" but {_shown(unit.unsupported)}"
    if unit.tuned:
        text += f"; tuned: {_shown(unit.tuned)}"
    return text


def _shown(value: object) -> str:
    """A value as it reads best: what is open, and empty lists, as a dash."""
    if value is None or value in ((), {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_shown(part)}" for key, part in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
