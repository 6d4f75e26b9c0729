"""A plan explained on a terminal: pictures of its windows, then each model's way to its part in words."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.timetable import PlannedModel, Slot, Timetable, Window, within_windows
from framefit.core.workload import Workload
from framefit.planning.explain import FreeTime, ModelSchedule, free_times, loss_of, model_schedules
from framefit.report.drawing import OVERRUN_LOOK, Look, axis_line, block_of, looks_of
from framefit.report.formats import format_bytes, format_duration
from framefit.report.sections.plan import common_prefix, percentile_name, sentences, slack_sentence
from framefit.report.terminal.plan_tables import plan_facts, plan_headline, plan_help
from framefit.report.terminal.tables import add_row, bullets, headed, name_text, plain_table, share_bar, spaced

__all__ = ["explained_view"]


_MOST_ROWS = 12
_FIRST_ROWS, _LAST_ROWS = 8, 2  # of more windows than those
_MOST_SEGMENTS = 24  # listed, of each model
_LEAST_CELLS = 8
_Mark = tuple[str, str]  # character and style of a cell
_SHARE_MARKS = (("#", "green"), ("+", "magenta"), ("-", "yellow"), (".", "red"), ("_", "dim"))


def explained_view(timetable: Timetable, workload: Workload) -> RenderableType:
    """A plan with its pictures and the reasons for it, for somebody who sees one for the first time.

    Args:
        timetable: the plan.
        workload: that it was made for.

    Returns:
        A rich renderable, at its best from 80 columns; readable without colour and in ASCII.
    """
    blocks: list[RenderableType] = [
        Group(plan_headline(timetable), Text(slack_sentence(timetable, workload))),
        plan_facts(timetable),
        *plan_help(timetable),
    ]
    if timetable.windows:
        blocks += [_UnitPicture(timetable, unit) for unit in timetable.units]
    told = model_schedules(timetable, workload)
    blocks += [_story(account, timetable, workload) for account in told]
    shares = loss_of(timetable, told).shares
    if shares and timetable.feasible and any(model.role == "background" for model in timetable.models):
        parts = [(name, ratio, *mark) for (name, ratio, _), mark in zip(shares, _SHARE_MARKS, strict=True)]
        why = [(name, f"{text}.") for name, ratio, text in shares[1:] if ratio]
        blocks.append(headed("Where the residuals go", Group(share_bar(parts), *([bullets(why)] if why else []))))
    if timetable.reasons:
        blocks.append(headed("Notes", bullets((None, reason) for reason in timetable.reasons)))
    return spaced(blocks)


def _story(account: ModelSchedule, timetable: Timetable, workload: Workload) -> RenderableType:
    """A model's sentences, and its segments where it is cut."""
    model = account.model
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in sentences(account, timetable, workload):
        add_row(grid, f"  {label}", text)
    parts: list[RenderableType] = [Text.assemble(name_text(model.name, model.role), f"  {model.role}"), grid]
    if len(model.segments) > 1:
        parts.append(Padding(_segments(model, percentile_name(workload)), (0, 0, 0, 2)))
    return Group(*parts)


def _segments(model: PlannedModel, percentile: str) -> Table:
    more = len(model.segments) - _MOST_SEGMENTS
    caption = f"... {more} more; " * (more > 0) + "fill: layer that receives the tensors; out: layers that hand on"
    table = plain_table("", ["segment", "unit"], [percentile, "p50", "hands on"], caption=caption)
    table.title = None
    table.columns[0].justify = "right"
    table.add_column("layers")
    prefix = common_prefix(model)
    for segment in model.segments[:_MOST_SEGMENTS]:
        fill, last = segment.fill_layer.removeprefix(prefix), segment.last_layer.removeprefix(prefix)
        layers = " .. ".join(dict.fromkeys((fill, last)))
        if segment.output_layers not in ((), (segment.last_layer,)):
            layers += f"; out: {', '.join(layer.removeprefix(prefix) for layer in segment.output_layers)}"
        add_row(
            table,
            str(segment.index),
            segment.unit,
            format_duration(segment.duration_ns),
            format_duration(segment.median_ns),
            format_bytes(segment.boundary_bytes),
            name_text(layers),
        )
    return table


class _UnitPicture:
    """What one unit does in each window, in cells; each cell shows what is planned in its middle."""

    def __init__(self, timetable: Timetable, unit: str) -> None:
        self._timetable = timetable = within_windows(timetable)
        self._unit = unit
        priority = [model.name for model in timetable.models if model.role == "priority"]
        self._looks = looks_of((model.name for model in timetable.models), priority)
        self._cut = {model.name for model in timetable.models if len(model.segments) > 1}
        ends = [period.end_ns for window in timetable.windows for period in window.priority]
        self._span_ns = max(*(window.length_ns for window in timetable.windows), *ends, 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = console.color_system is not None and not console.no_color
        block = block_of(coloured=coloured, ascii_only=options.ascii_only)
        margin = max(len("window"), len(str(len(self._timetable.windows) - 1)))
        cells = max(options.max_width - margin - 4, _LEAST_CELLS)
        ascii_only = options.ascii_only
        yield self._legend(block, ascii_only=ascii_only)
        lines = [Text(), Text(f"{'':>{margin}} ") + self._parts(cells, ascii_only=ascii_only)]
        for window in self._shown():
            if window is None:
                lines.append(Text(f"{'...':>{margin}}  windows {self._left_out()} are left out", style="dim"))
                continue
            lines.append(Text(f"{window.index:>{margin}} ") + self._row(window, cells, block, ascii_only=ascii_only))
            lines.append(Text(f"{'':>{margin}}  ") + self._frames(window, cells))
        lines.append(Text(f"{'window':>{margin}} {axis_line(cells, self._span_ns / 1e6)}", style="dim"))
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        yield Group(*lines)

    def _shown(self) -> Iterator[Window | None]:
        windows = self._timetable.windows
        if len(windows) <= _MOST_ROWS:
            yield from windows
            return
        yield from windows[:_FIRST_ROWS]
        yield None
        yield from windows[-_LAST_ROWS:]

    def _left_out(self) -> str:
        return f"{_FIRST_ROWS} to {len(self._timetable.windows) - _LAST_ROWS - 1}"

    def _legend(self, block: Callable[[Look], str], *, ascii_only: bool) -> Text:
        legend = Text.assemble(("Unit ", "bold"), (self._unit, "bold"))
        named = {slot.model for window in self._timetable.windows for slot in window.slots if slot.unit == self._unit}
        for name, look in self._looks.items():
            if name in named:
                legend.append_text(Text.assemble("   ", (block(look) * 2, look.fill), f" {name}"))
        waking = "." if ascii_only else "·"
        marks = [(f"{waking}{waking}", "reserved for waking up late")] if self._timetable.priority_ns else []
        marks += [("//", "guard")] if self._timetable.guard_ns else []
        for mark, text in marks:
            legend.append(f"   {mark} {text}", style="dim")
        return legend.append("   numbers: segments", style="dim")

    def _cell(self, ns: int, cells: int) -> int:
        return round(ns * cells / self._span_ns)

    def _parts(self, cells: int, *, ascii_only: bool) -> Text:
        """What the first window is divided into, as brackets with names above the rows."""
        wall, rule = ("|", "-") if ascii_only else ("├", "─")
        window = self._timetable.windows[0]
        parts = [(p.start_ns, p.end_ns, "priority") for p in window.priority if p.unit == self._unit]
        joined: list[tuple[int, int, str]] = []
        for start, end, name in sorted([*parts, *((f.start_ns, f.end_ns, "residual") for f in self._free(window))]):
            if joined and joined[-1][2] == name:
                start = joined.pop()[0]
            joined.append((start, end, name))
        line = Text(style="dim")
        for start, end, name in joined:
            width = self._cell(end, cells) - self._cell(start, cells) - 1
            texts = (f" {name} {format_duration(end - start)} ", f" {name} ", "")
            text = next(text for text in texts if len(text) <= max(width, 0))
            line.append(wall + text.center(max(width, 0), rule))
        return line.append("|" if ascii_only else "┤")

    def _free(self, window: Window) -> list[FreeTime]:
        return free_times(self._timetable, window, self._unit)

    def _row(self, window: Window, cells: int, block: Callable[[Look], str], *, ascii_only: bool) -> Text:
        shown = self._kept(window, cells, ascii_only=ascii_only)
        for slot in window.slots:
            if slot.unit == self._unit:
                first = min(self._cell(slot.start_ns, cells), cells - 1)
                after = min(max(self._cell(slot.start_ns + slot.duration_ns, cells), first + 1), cells)
                shown[first:after] = self._bar(slot, after - first, block)
        width = max(self._cell(window.length_ns, cells), 1)
        wall = "|" if ascii_only else "│"
        drawn = Text(wall)
        for style, run in groupby(shown[:width], key=operator.itemgetter(1)):
            drawn.append("".join(mark for mark, _ in run), style=style)
        beyond = "".join("!" if mark != " " else " " for mark, _ in shown[width:]).rstrip()
        return drawn.append(wall).append(beyond, style=f"bold {OVERRUN_LOOK.fill}")

    def _kept(self, window: Window, cells: int, *, ascii_only: bool) -> list[_Mark]:
        """The window before anything is placed in it: guards and priority periods."""
        shown: list[_Mark] = [(" ", "")] * cells
        for free in self._free(window):
            if free.guard_ns:
                after = self._cell(free.end_ns, cells)
                first = min(self._cell(free.end_ns - free.guard_ns, cells), after - 1)
                shown[first:after] = [("/", "dim")] * (after - first)
        for period in window.priority:
            if period.unit == self._unit:
                first, after = self._cell(period.start_ns, cells), self._cell(period.end_ns, cells)
                waking = ("." if ascii_only else "·", self._looks[period.model].fill)
                shown[first:after] = [waking] * (after - first)
        return shown

    def _bar(self, slot: Slot, cells: int, block: Callable[[Look], str]) -> list[_Mark]:
        """A segment, with its number where there is room for it."""
        look = self._looks[slot.model]
        colour = look.alternate if slot.frame % 2 else look.fill
        label = str(slot.segment) if slot.model in self._cut else slot.model
        label = label if len(label) < cells else ""
        lettered = [(letter, f"bold {look.ink} on {colour}") for letter in label]
        return [*lettered, *[(block(look), colour)] * (cells - len(label))]

    def _frames(self, window: Window, cells: int) -> Text:
        """Below each run of segments the frame that they belong to, where there is room to say so."""
        line, reached = Text(style="dim"), 0
        slots = [slot for slot in sorted(window.slots, key=lambda slot: slot.start_ns) if slot.unit == self._unit]
        for (_, frame), run in groupby(slots, key=lambda slot: (slot.model, slot.frame)):
            own = list(run)
            first = self._cell(own[0].start_ns, cells)
            room = self._cell(own[-1].start_ns + own[-1].duration_ns, cells) - first
            text = next((text for text in (f"frame {frame}", f"f{frame}") if len(text) < max(room, 4)), "")
            if first < reached or not text:
                continue
            line.append(" " * (first - reached) + text)
            reached = first + len(text)
        return line
