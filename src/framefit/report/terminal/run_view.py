"""A run's figures as tables for a terminal; the caller prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from framefit.core.run_record import Metrics, Miss, ModelMetrics, Percentiles, UnitMetrics
from framefit.report.formats import format_bytes, format_difference, format_duration, format_hz, format_ratio
from framefit.report.terminal.tables import add_row, facts_grid, headed, name_text, plain_table, share_bar, spaced

__all__ = ["metrics_view"]


_MAX_MISSES = 5


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
