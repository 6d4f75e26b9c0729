"""A run in a report: did it fit and by how much, what happened, and every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from framefit.core.run_record import ModelMetrics, Percentiles
from framefit.report.formats import format_bytes, format_difference, format_duration, format_hz, format_ratio
from framefit.report.pages.charts import Chart
from framefit.report.pages.facts import facts_panel
from framefit.report.pages.markup import (
    Markup,
    bullet_list,
    folded,
    joined,
    panel,
    panels,
    quantity,
    shares,
    table,
    verdict,
)
from framefit.report.pages.parts import Kind, Quantity, fraction_row
from framefit.report.pages.plan import plan_markup
from framefit.report.pages.profile import profile_charts, profile_panels, profile_verdict
from framefit.report.pages.run_charts import RunContent, run_charts
from framefit.report.pages.timeline import timeline

__all__ = ["RUNS"]


_TOLERATED = 0.01  # misses of a model: framefit run ends with exit code 1 above it
_MOST_MISSES = 1000  # listed
_NONE = "\u2013"


def _verdict(run: RunContent) -> Markup:
    """Whether it fits, and by how much."""
    metrics, priority = run.metrics, run.priority
    missed, frames = sum(model.missed for model in priority), sum(model.releases for model in priority)
    ended = " It was interrupted before its end." if run.info.interrupted else ""
    ended = f" It ended early: {run.info.error}" if run.info.error else ended
    if not priority:
        return verdict("plain", "No priority model:", f"{metrics.windows:,} windows, nothing had a deadline.{ended}")
    upper = format_ratio(max(model.miss_ratio_upper for model in priority))
    if not missed:
        text = f"0 misses in {frames:,} priority frames (fewer than {upper} at 95 %).{_slack_told(run)}{ended}"
        return verdict("fits", "Fits:", text)
    causes = ", ".join(
        f"{count} \u00d7 {cause}" for cause, count in Counter(m.cause for m in metrics.misses).most_common(3)
    )
    noun = "miss" if missed == 1 else "misses"
    text = f"{missed:,} {noun} in {frames:,} priority frames; worst model {format_ratio(metrics.miss_ratio)}"
    text += f", fewer than {upper} at 95 %." + (f" Causes: {causes}." if causes else "") + ended
    if metrics.miss_ratio > _TOLERATED:
        return verdict("fails", "Does not fit:", text)
    return verdict("plain", "Nearly fits:", text)


def _slacks_ns(run: RunContent) -> dict[str, int]:
    """Of each priority model, how long before its deadline its latest result was ready."""
    deadlines = run.deadlines_ns()
    return {
        model.name: deadlines[model.name] - model.release_to_finish_ns.max
        for model in run.priority
        if model.name in deadlines and model.release_to_finish_ns.count
    }


def _slack_told(run: RunContent) -> str:
    slacks = _slacks_ns(run)
    if not slacks:
        return ""
    least = min(slacks, key=lambda name: slacks[name])
    return f" The latest result was ready {format_duration(slacks[least])} before its deadline ({least})."


def _quantities(run: RunContent) -> Iterator[Quantity]:
    metrics, slacks = run.metrics, _slacks_ns(run)
    missed, frames = sum(m.missed for m in run.priority), sum(m.releases for m in run.priority)
    if run.priority:
        yield Quantity("Misses", missed, f"{missed:,}", f"of {frames:,} priority frames", "less", card=True)
        upper = max(m.miss_ratio_upper for m in run.priority)
        yield Quantity("Miss ratio, 95 % bound", upper, f"< {format_ratio(upper)}", "", "less")
    if slacks:
        worst = min(slacks, key=lambda name: slacks[name])
        yield Quantity(
            "Worst slack", slacks[worst], format_duration(slacks[worst]), f"latest result of {worst}", "more", card=True
        )
    for model in run.priority:
        for name, of in (("start", model.release_to_start_ns), ("finish", model.release_to_finish_ns)):
            for quantile, ns in (("p50", of.p50), ("p99", of.p99), ("max", of.max)):
                first = model is run.priority[0] and (name, quantile) in (("start", "p99"), ("finish", "p99"))
                yield Quantity(
                    f"{model.name}: release to {name}, {quantile}",
                    ns,
                    format_duration(ns),
                    f"p50 {format_duration(of.p50)}, max {format_duration(of.max)}",
                    "less",
                    card=first,
                )
    background = [model for model in metrics.models if model.role == "background"]
    if background:
        remark = f"guard {format_ratio(metrics.guard_loss_ratio)}, packing {format_ratio(metrics.packing_loss_ratio)}"
        yield fraction_row("Residual used", metrics.residual_utilisation_ratio, "more", remark, card=True)
    for model in background:
        bound = model.packing_bound_hz
        remark = f"{format_ratio(model.throughput_hz / bound)} of its packing bound" if bound else "results a second"
        yield Quantity(
            f"{model.name}: throughput",
            model.throughput_hz,
            format_hz(model.throughput_hz),
            remark,
            "more",
            card=model is background[0],
        )
        yield Quantity(
            f"{model.name}: greatest age, windows",
            model.result_age_windows_max,
            str(model.result_age_windows_max),
            "",
            "less",
        )
    yield fraction_row("Launches over their estimate", metrics.estimate_exceeded_ratio, "less")
    yield Quantity("Peak memory", metrics.peak_memory_bytes, format_bytes(metrics.peak_memory_bytes), "tensors", "less")


def _picture(run: RunContent, name: str) -> Markup:
    return Markup("") if run.happened is None else timeline(run.happened, f"{name}-timeline")


def _tables(run: RunContent, name: str) -> Markup:
    metrics = run.metrics
    parts = [panels([panel("Frames", _frames(run)), panel("From release", _percentiles(run))], one=True)]
    few = []
    if any(model.role == "background" for model in metrics.models):
        split = (
            ("used", metrics.residual_utilisation_ratio, "useful time of background models"),
            ("guard", metrics.guard_loss_ratio, "kept free before reserved instants"),
            ("packing", metrics.packing_loss_ratio, "too short for the segment that was due"),
        )
        few.append(panel("Where the residuals went", shares(split)))
    if len(metrics.units) > 1:
        few.append(panel("Units", _units(run)))
    if metrics.streams:
        few.append(panel("Streams", _streams(run)))
    if metrics.switches:
        rows = [(switch.rung, quantity(switch.window, str(switch.window)), switch.why) for switch in metrics.switches]
        few.append(
            panel(
                "Timetables in force",
                table("Switches", rows, left=("timetable",), right=("from window",), words=("why",)),
            )
        )
    notes = [*run.info.warnings, *run.notes]
    if notes:
        few.append(panel("What to know of this run", bullet_list(notes)))
    parts.append(panels(few))
    if metrics.misses:
        parts.append(panels([panel("Misses", _misses(run))], one=True))
    if run.profile is not None:
        told = joined([profile_verdict(run.profile), profile_panels(run.profile)])
        parts.append(Markup(f'<div class="whole">{folded("What the trace says: the profile", told)}</div>'))
    plan = plan_markup(run.timetable, run.workload, f"{name}-plan")
    parts.append(Markup(f'<div class="whole">{folded("The plan that was run", plan)}</div>'))
    parts.append(panels([facts_panel("Command and machine", _facts(run))], one=True))
    return joined(parts)


def _facts(run: RunContent) -> Iterator[tuple[str, object]]:
    info = run.info
    yield "command", info.command
    yield "workload", info.app or "not known"
    yield "created", info.created
    yield "seed", info.seed
    yield "target", info.workload.get("target", "cpu")
    yield from info.host.items()


def _frames(run: RunContent) -> Markup:
    rows = []
    faulty = any(model.faults or model.degraded for model in run.metrics.models)
    for model in run.metrics.models:
        late = model.role == "priority" and model.missed
        rows.append(
            (
                model.name,
                model.role,
                quantity(model.releases, f"{model.releases:,}"),
                quantity(model.completed, f"{model.completed:,}"),
                quantity(model.missed, f"{model.missed:,}", kind="bad" if late else ""),
                quantity(model.dropped, f"{model.dropped:,}"),
                quantity(model.miss_ratio_upper, f"< {format_ratio(model.miss_ratio_upper)}"),
                quantity(model.throughput_hz, format_hz(model.throughput_hz)),
                _bound(model.fluid_bound_hz, model.throughput_hz),
                _bound(model.packing_bound_hz, model.throughput_hz),
                quantity(model.result_age_windows_max, str(model.result_age_windows_max)),
                quantity(model.segmentation_overhead_ratio, format_ratio(model.segmentation_overhead_ratio)),
                format_difference(model.max_relative_difference),
                *([_faults(model)] if faulty else []),
            )
        )
    right = (
        "released",
        "completed",
        "missed",
        "dropped",
        "miss ratio, 95 %",
        "throughput",
        "fluid bound",
        "packing bound",
    )
    right += ("age, windows", "cutting", "difference", *(("faults",) if faulty else ()))
    return table("Frames of each model", rows, left=("model", "role"), right=right)


def _faults(model: ModelMetrics) -> str:
    told = [f"{count} {name}" for name, count in model.faults.items()] + ["rests"] * model.degraded
    return ", ".join(told) or _NONE


def _bound(bound_hz: float | None, reached_hz: float) -> Markup | str:
    if not bound_hz:
        return _NONE
    return quantity(bound_hz, format_hz(bound_hz), f"({reached_hz / bound_hz:.3f})")


def _percentiles(run: RunContent) -> Markup:
    rows = []
    for model in run.metrics.models:
        rows += [(model.name, "start", *_five(model.release_to_start_ns))]
        rows += [(model.name, "finish", *_five(model.release_to_finish_ns))]
    floor, dispatch = run.metrics.floor_release_to_start_ns, run.metrics.dispatch_ns
    if floor.max:
        rows += [("idle machine", "start", *_five(floor))]
    if dispatch.max:
        rows += [("one launch to the next", "dispatch", *_five(dispatch))]
    return table("Percentiles", rows, left=("model", "to"), right=("p50", "p90", "p99", "p99.9", "max", "count"))


def _five(of: Percentiles) -> Sequence[str]:
    if not of.count:
        return [_NONE] * 5 + ["0"]
    times = [quantity(ns, format_duration(ns)) for ns in (of.p50, of.p90, of.p99, of.p999, of.max)]
    return [*times, quantity(of.count, f"{of.count:,}")]


def _units(run: RunContent) -> Markup:
    rows = []
    for unit in run.metrics.units:
        ratios = (
            unit.residual_utilisation_ratio,
            unit.guard_loss_ratio,
            unit.packing_loss_ratio,
            unit.estimate_exceeded_ratio,
        )
        memory = (unit.peak_memory_bytes, unit.planned_memory_bytes)
        rows.append(
            (
                unit.name,
                quantity(unit.launches, f"{unit.launches:,}"),
                *(quantity(ratio, format_ratio(ratio)) for ratio in ratios),
                *(quantity(size, format_bytes(size)) for size in memory),
            )
        )
    right = ("launches", "used", "guard", "packing", "over estimate", "memory", "planned")
    return table("Units", rows, left=("unit",), right=right)


def _streams(run: RunContent) -> Markup:
    rows = []
    for stream in run.metrics.streams:
        counts = (stream.received, stream.dropped, stream.waited_windows, stream.empty_windows)
        rows.append((stream.name, *(quantity(count, f"{count:,}") for count in counts)))
    return table("Streams", rows, left=("stream",), right=("received", "dropped", "windows waited", "windows empty"))


def _misses(run: RunContent) -> Markup:
    misses = run.metrics.misses
    rows = [
        (miss.model, miss.cause, quantity(miss.window, str(miss.window)), miss.detail) for miss in misses[:_MOST_MISSES]
    ]
    listed = table("Misses", rows, left=("model", "cause"), right=("window",), words=("detail",))
    more = len(misses) - len(rows)
    return joined([listed, Markup(f'<p class="note">{more:,} more are in metrics.json.</p>')]) if more > 0 else listed


def _charts(named: Sequence[tuple[str, RunContent]]) -> list[Chart]:
    profiles = [(name, run.profile) for name, run in named if run.profile is not None]
    return [*run_charts(named), *profile_charts(profiles)[:1]]  # by layer; kinds are a table


RUNS = Kind(
    noun="run",
    plural="runs",
    verdict=_verdict,
    quantities=lambda run: list(_quantities(run)),
    charts=_charts,
    picture=_picture,
    tables=_tables,
    uses=("timeline", "plan"),
)
