"""What a model's layers cost on a target, as tables for a terminal."""

from __future__ import annotations

from collections import defaultdict

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.run_record import CycleReport, LayerCycles
from framefit.report.formats import format_bytes, format_duration, format_ratio

__all__ = ["cycles_view"]


_MAX_LAYERS = 200


def cycles_view(report: CycleReport) -> RenderableType:
    """A model's cost: the total, what binds, and each layer.

    Args:
        report: what the workflow found.

    Returns:
        A rich renderable, at its best from 120 columns.
    """
    clock = f"{report.clock_mhz:g} MHz"
    headline = Text.assemble(
        (f"{report.total_cycles:,} cycles", "bold"),
        f"  {format_duration(report.total_ns)} at {clock}: {report.model} on {report.target}",
        f", unit {report.unit}" if report.unit != report.target else "",
    )
    blocks: list[RenderableType] = [headline, _layers(report), _binding(report)]
    blocks += [Text(f"note: {note}") for note in report.notes]
    return Group(blocks[0], *(Padding(block, (1, 0, 0, 0)) for block in blocks[1:]))


def _layers(report: CycleReport) -> Table:
    sparse = any(layer.weight_sparsity_ratio or layer.activation_sparsity_ratio for layer in report.layers)
    more = len(report.layers) - _MAX_LAYERS
    figures = ["MACs", "bytes", "cycles", "share", "used", *(["zeros"] if sparse else [])]
    table = _table("Layers", ["layer", "op"], figures)
    table.add_column("binds", no_wrap=True)
    notes = ["bytes: read and written", "used: multiply-accumulates over what the unit could do meanwhile"]
    notes += ["zeros: of weights, of inputs"] if sparse else []
    notes += [f"... {more} more"] if more > 0 else []
    table.caption = "; ".join(notes)
    for layer in report.layers[:_MAX_LAYERS]:
        cells = [
            _count(layer.macs),
            format_bytes(layer.bytes_read + layer.bytes_written),
            f"{layer.cycles:,}",
            _share(layer.cycles, report.total_cycles),
            f"{100 * layer.utilisation_ratio:.0f} %" if layer.macs else "-",
        ]
        if sparse:
            both = (layer.weight_sparsity_ratio, layer.activation_sparsity_ratio)
            cells.append(", ".join(f"{100 * ratio:.0f} %" for ratio in both))
        names = (Text(text, no_wrap=True, overflow="ellipsis") for text in (layer.name, layer.op))
        table.add_row(*names, *cells, _bound(layer), style="dim" if not layer.cycles else None)
    return table


def _binding(report: CycleReport) -> Table:
    """Cycles and layers by what binds."""
    cycles: defaultdict[str, int] = defaultdict(int)
    count: defaultdict[str, int] = defaultdict(int)
    for layer in report.layers:
        cycles[layer.bound] += layer.cycles
        count[layer.bound] += 1
    table = _table("What binds", ["binds"], ["layers", "cycles", "share"])
    for bound in sorted(cycles, key=lambda name: -cycles[name]):
        share = _share(cycles[bound], report.total_cycles)
        table.add_row(Text(bound), str(count[bound]), f"{cycles[bound]:,}", share)
    return table


def _table(title: str, left: list[str], right: list[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    table.title_style, table.header_style, table.caption_style = "bold", "dim", "dim"
    for name in left:
        table.add_column(name, overflow="ellipsis", no_wrap=name == "binds")  # where it is narrow, names give way
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _bound(layer: LayerCycles) -> str:
    return layer.bound + {"bytes": " (by bytes)", "unknown": " (in part)"}.get(layer.method, "")


def _share(part: int, whole: int) -> str:
    return format_ratio(part / whole) if whole else "-"


def _count(number: int) -> str:
    """A number with about three digits."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            value = number / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return str(number) if number else "-"
