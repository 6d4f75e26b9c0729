"""Measurements as tables for a terminal, and what all such tables are made of; the caller prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from framefit.core.results import Metrics, Miss, ModelMetrics, Percentiles, UnitMetrics

__all__ = [
    "add_row",
    "bullets",
    "facts_grid",
    "format_bytes",
    "format_difference",
    "format_duration",
    "format_hz",
    "format_ratio",
    "headed",
    "metrics_view",
    "name_text",
    "plain_table",
    "share_bar",
    "spaced",
]

_MAX_MISSES = 5
_BAR_CELLS = 40


def format_duration(ns: float) -> str:
    """A duration with about three digits, in ms, or in us below 1 ms.

    Args:
        ns: nanoseconds.
    """
    us = abs(ns) / 1e3
    sign = "-" if ns < 0 else ""
    if ns == 0:
        return "0 ms"
    if us < 9.95:
        return f"{sign}{us:.1f} us"
    if us < 999.5:
        return f"{sign}{us:.0f} us"
    ms = us / 1e3
    digits = 2 if ms < 9.995 else 1 if ms < 999.95 else 0
    return f"{sign}{ms:.{digits}f} ms"


def format_ratio(ratio: float) -> str:
    """A ratio as a percentage; small ones keep a digit that is not 0.

    Args:
        ratio: 1 is 100 %.
    """
    percent = 100 * ratio
    if percent == 0:
        return "0 %"
    digits = 1 if abs(percent) >= 0.95 else 2 if abs(percent) >= 0.095 else 3
    return f"{percent:.{digits}f} %" if abs(percent) >= 0.001 else f"{percent:.0e} %"


def format_bytes(count: int) -> str:
    """A number of bytes with a binary unit.

    Args:
        count: bytes.
    """
    if count < 1024:
        return f"{count} B"
    size, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if size < 1023.5:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if size < 99.95 else f"{size:.0f} {unit}"


def metrics_view(metrics: Metrics) -> RenderableType:
    """A run: misses and their causes, jitter beside the machine's floor, throughput beside its bounds, losses.

    Args:
        metrics: what the run measured.

    Returns:
        A rich renderable, at its best from 80 columns.
    """
    blocks: list[RenderableType] = [_run_headline(metrics), _frames(metrics)]
    if metrics.misses:
        blocks.append(_misses(metrics.misses))
    blocks.append(_jitter(metrics))
    background = [model for model in metrics.models if model.role == "background"]
    if background:
        blocks += [_throughput(background), headed("Residual", _residual(metrics))]
    if len(metrics.units) > 1:
        blocks.append(_units(metrics.units))
    blocks.append(_run_facts(metrics))
    return spaced(blocks)


def spaced(blocks: Sequence[RenderableType]) -> Group:
    """One under the other, an empty line between."""
    return Group(blocks[0], *(Padding(block, (1, 0, 0, 0)) for block in blocks[1:]))


def headed(title: str, block: RenderableType) -> Group:
    """A block under its title."""
    return Group(Text(title, style="bold"), block)


def plain_table(title: str, left: Sequence[str], right: Sequence[str] = (), *, caption: str = "") -> Table:
    """A table without frame: text columns, then figures flush right. Where it is narrow, names give way."""
    table = Table(title=title, caption=caption or None, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    table.title_style, table.header_style, table.caption_style = "bold", "dim", "dim"
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name not in ("model", "detail", "layers"))
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def name_text(name: str, role: str = "") -> Text:
    """A name on one line, shortened where there is no room."""
    style = {"priority": "bold blue", "background": "yellow"}.get(role, "")
    return Text(name, style=style, no_wrap=True, overflow="ellipsis")


def add_row(table: Table, *cells: RenderableType, style: str = "") -> None:
    """Add a row whose strings are text, not markup: names may contain brackets."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), style=style or None)


def facts_grid(facts: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names, dim, and their values beside them."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        add_row(grid, name, value)
    return grid


def bullets(reasons: Iterable[tuple[str | None, str]]) -> RenderableType:
    """A list of sentences, some of them about something that has a name."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, reason in reasons:
        add_row(grid, " -", Text.assemble((f"{name}: ", "bold"), reason) if name else Text(reason))
    return grid


def format_hz(rate_hz: float) -> str:
    """A rate."""
    return f"{rate_hz:.2f} Hz" if rate_hz < 99.95 else f"{rate_hz:.1f} Hz"


def format_difference(ratio: float | None) -> str:
    """The greatest difference of joined segments from the whole model; ``None``: nobody compared."""
    return "not compared" if ratio is None else "0" if ratio == 0 else f"{ratio:.1e}"


def _run_headline(metrics: Metrics) -> Text:
    priority = [model for model in metrics.models if model.role == "priority"]
    missed, releases = sum(model.missed for model in priority), sum(model.releases for model in priority)
    if not priority:
        return Text.assemble((f"{metrics.windows} windows", "bold"), ", no priority model")
    if missed == 0:
        headline, style = f"NO MISS in {releases} priority frames", "bold green"
    else:
        noun = "MISS" if missed == 1 else "MISSES"
        headline, style = f"{missed} {noun} in {releases} priority frames", "bold red"
    rate = f"  worst model {format_ratio(metrics.miss_ratio)}" if missed else ""
    return Text.assemble((headline, style), f"{rate}  ({metrics.windows} windows)")


def _frames(metrics: Metrics) -> Table:
    right = ["released", "completed", "missed", "dropped", "miss ratio", "age"]
    caption = "miss ratio: upper bound, 95 %; age: greatest, in windows"
    table = plain_table("Frames", ["model", "role"], right, caption=caption)
    for model in metrics.models:
        add_row(
            table,
            name_text(model.name, model.role),
            model.role,
            str(model.releases),
            str(model.completed),
            Text(str(model.missed), style="bold red" if model.missed and model.role == "priority" else ""),
            str(model.dropped),
            f"< {format_ratio(model.miss_ratio_upper)}",
            str(model.result_age_windows_max),
        )
    return table


def _misses(misses: Sequence[Miss]) -> RenderableType:
    causes = ", ".join(f"{count} x {cause}" for cause, count in Counter(miss.cause for miss in misses).most_common())
    more = len(misses) - _MAX_MISSES
    table = plain_table(
        "Misses: " + causes, ["window", "model", "cause", "detail"], caption=f"... {more} more" * (more > 0)
    )
    table.columns[0].justify = "right"
    for miss in misses[:_MAX_MISSES]:
        add_row(table, str(miss.window), name_text(miss.model), miss.cause, miss.detail)
    return table


def _jitter(metrics: Metrics) -> Table:
    table = plain_table("From release", ["model", "to"], ["p50", "p90", "p99", "p99.9", "max", "count"])
    for model in metrics.models:
        name = name_text(model.name, model.role)
        add_row(table, name, "start", *_percentiles(model.release_to_start_ns))
        add_row(table, "", "finish", *_percentiles(model.release_to_finish_ns))
    floor = metrics.floor_release_to_start_ns
    if floor.max:  # nobody wakes up late in virtual time
        table.add_section()
        add_row(table, "idle machine", "start", *_percentiles(floor), style="dim")
    return table


def _percentiles(of: Percentiles) -> list[str]:
    if of.count == 0:
        return ["-"] * 5 + ["0"]
    return [*(format_duration(ns) for ns in (of.p50, of.p90, of.p99, of.p999, of.max)), str(of.count)]


def _throughput(models: Sequence[ModelMetrics]) -> Table:
    right = ["reached", "fluid bound", "ratio", "packing bound", "ratio"]
    table = plain_table("Background throughput", ["model"], right)
    for model in models:
        row = [format_hz(model.throughput_hz)]
        for bound_hz in (model.fluid_bound_hz, model.packing_bound_hz):
            row += ["-", "-"] if not bound_hz else [format_hz(bound_hz), f"{model.throughput_hz / bound_hz:.3f}"]
        add_row(table, name_text(model.name, model.role), *row)
    return table


def _residual(metrics: Metrics) -> RenderableType:
    return share_bar(
        (
            ("used", metrics.residual_utilisation_ratio, "#", "green"),
            ("guard", metrics.guard_loss_ratio, "-", "yellow"),
            ("packing", metrics.packing_loss_ratio, ".", "red"),
        )
    )


def _units(units: Sequence[UnitMetrics]) -> Table:
    right = ["launches", "used", "guard", "packing", "over estimate", "memory", "planned"]
    caption = "used, guard, packing: of the residual that the unit's priority models leave"
    table = plain_table("Units", ["unit"], right, caption=caption)
    for unit in units:
        add_row(
            table,
            unit.name,
            str(unit.launches),
            format_ratio(unit.residual_utilisation_ratio),
            format_ratio(unit.guard_loss_ratio),
            format_ratio(unit.packing_loss_ratio),
            format_ratio(unit.estimate_exceeded_ratio),
            format_bytes(unit.peak_memory_bytes),
            format_bytes(unit.planned_memory_bytes),
        )
    return table


def share_bar(shares: Sequence[tuple[str, float, str, str]]) -> RenderableType:
    """Where something went, as a bar whose parts differ without colour, and its legend.

    Args:
        shares: name, ratio, mark and style of each part.
    """
    bar, reached, cells = Text("["), 0.0, 0
    for _, ratio, mark, style in shares:
        reached = min(1.0, reached + max(0.0, ratio))
        until = round(reached * _BAR_CELLS)
        bar.append(mark * (until - cells), style=style)
        cells = until
    bar.append(" " * (_BAR_CELLS - cells) + "]")
    legend = Text("   ").join(
        Text.assemble((mark, style), f" {name} {format_ratio(ratio)}") for name, ratio, mark, style in shares
    )
    return Group(bar, legend)


def _run_facts(metrics: Metrics) -> RenderableType:
    dispatch = metrics.dispatch_ns
    facts: list[tuple[str, RenderableType]] = [
        ("segments over their estimate", format_ratio(metrics.estimate_exceeded_ratio)),
        *(
            [("dispatch", f"p50 {format_duration(dispatch.p50)}, p99 {format_duration(dispatch.p99)}")]
            if dispatch.max  # nothing in virtual time
            else []
        ),
        ("peak memory", format_bytes(metrics.peak_memory_bytes)),
    ]
    cut = [model for model in metrics.models if model.segmentation_overhead_ratio or model.max_relative_difference]
    facts += [
        (
            f"cutting {model.name}",
            f"overhead {format_ratio(model.segmentation_overhead_ratio)}, difference "
            + format_difference(model.max_relative_difference),
        )
        for model in cut
    ]
    if metrics.rung_switches:
        facts.append(("switches of granularity", str(metrics.rung_switches)))
    for stream in metrics.streams:
        waited = f", waited in {stream.waited_windows} windows" if stream.waited_windows else ""
        facts.append((f"stream {stream.name}", f"{stream.received} frames received, {stream.dropped} dropped{waited}"))
    return facts_grid(facts)
