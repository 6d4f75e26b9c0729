"""A run: did it fit and by how much, what happened, charts, and every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.profile import Profile
from framefit.core.program import Launches, Program
from framefit.core.run_record import FrameTable, Metrics, ModelMetrics, Percentiles, RunInfo
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload
from framefit.planning.explain import deadline_ns, model_schedules
from framefit.report.charts import Axis, Chart, Line, colour, decades, histogram, row_height_px, steps
from framefit.report.description import Kind, Quantity, fraction_row
from framefit.report.formats import format_bytes, format_difference, format_duration, format_hz, format_ratio
from framefit.report.markup import (
    Markup,
    bullet_list,
    facts_panel,
    folded,
    joined,
    panel,
    panels,
    quantity,
    shares,
    table,
    verdict,
)
from framefit.report.sections.plan import plan_markup
from framefit.report.sections.profile import profile_charts, profile_panels, profile_verdict
from framefit.report.timeline import Happened, timeline

__all__ = ["RUNS", "RunContent", "run_charts"]


_MOST_MODELS = 4  # a chart each
_LEAST_US = 1.0  # what takes less is told as this: in virtual time most starts take nothing
_APART = 1.5  # values whose names do not lie on each other
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunContent:
    """What lies in a run folder.

    Attributes:
        workload: ``None``: an older Framefit wrote it, and this one does not read it any more.
        frames: the fate of every frame; ``None``: there is no such file.
        program, launches: what was executed; ``None``: likewise.
        happened, profile: what the trace says; ``None``: nothing that could be used.
        notes: on what could not be read.
    """

    info: RunInfo
    metrics: Metrics
    timetable: Timetable
    workload: Workload | None
    frames: FrameTable | None
    program: Program | None
    launches: Launches | None
    happened: Happened | None
    profile: Profile | None
    notes: tuple[str, ...] = ()

    @property
    def priority(self) -> list[ModelMetrics]:
        """Figures of the priority models."""
        return [model for model in self.metrics.models if model.role == "priority"]

    def deadlines_ns(self) -> dict[str, int]:
        """Of the priority models, after release; those that are known."""
        if self.workload is None:
            return {}
        told = model_schedules(self.timetable, self.workload)
        return {one.model.name: deadline_ns(one, self.timetable) for one in told if one.model.role == "priority"}

    def finish_ms(self, model: str) -> _Floats:
        """From release to result of each frame that was finished."""
        frames = self.frames
        if frames is None or model not in frames.models:
            return np.zeros(0)
        done = (frames.model == frames.models.index(model)) & (frames.finished_ns >= 0)
        return np.asarray((frames.finished_ns - frames.released_ns)[done] / 1e6)

    def start_us(self, model: ModelMetrics) -> _Floats:
        """From release to the start of each frame that was launched.

        Launches and releases count from different instants, a constant apart: that of the medians, which are known.
        """
        frames, launches, program = self.frames, self.launches, self.program
        if frames is None or launches is None or program is None or model.name not in frames.models:
            return np.zeros(0)
        first = [n for n, segment in enumerate(program.programs) if (segment.model, segment.segment) == (model.name, 0)]
        begun = np.isin(launches.program, first)
        own = frames.model == frames.models.index(model.name)
        number, released = frames.frame[own], frames.released_ns[own]
        order = np.argsort(number, kind="stable")
        number, released = number[order], released[order]
        at = np.minimum(np.searchsorted(number, launches.frame[begun]), max(len(number) - 1, 0))
        if not len(number) or not begun.any():
            return np.zeros(0)
        known = number[at] == launches.frame[begun]
        after: _Floats = (launches.submit_ns[begun] - released[at])[known].astype(np.float64)
        if not len(after):
            return after
        return np.asarray(np.maximum(after - np.median(after) + model.release_to_start_ns.p50, 0) / 1e3)

    def residual_use(self) -> tuple[int, _Floats]:
        """Of each window in the trace, which part of what priority models left was used by the others, in percent.

        Returns:
            The first of these windows, and the part in each.
        """
        happened = self.happened
        if happened is None or happened.windows is None or not len(happened.log):
            return 0, np.zeros(0)
        log, program, releases = happened.log, happened.program, happened.windows.releases_ns
        names = {model.name for model in self.priority}
        reserved = np.array([*(segment.model in names for segment in program.programs), False])[log.program]
        ends = np.append(releases, releases[-1] + program.window_ns)
        busy, first = np.zeros(len(releases)), np.zeros(len(releases))
        for core in [unit.core for unit in program.units]:
            here = log.core == core
            busy += np.diff(_busy_until(log.start_ns[here], log.end_ns[here], ends))
            here &= reserved
            first += np.diff(_busy_until(log.start_ns[here], log.end_ns[here], ends))
        left = np.diff(ends) * len(program.units) - first
        used = 100 * (busy - first) / np.maximum(left, 1)
        begun, over = np.searchsorted(ends, (log.start_ns.min(), log.end_ns.max()))
        return int(begun), used[begun : max(over - 1, begun)]  # a trace may begin late, and ends within a window


def _busy_until(
    start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64], at_ns: npt.NDArray[np.int64]
) -> _Floats:
    """How much of the time up to each instant lies within any of the intervals."""
    if not len(start_ns):
        return np.zeros(len(at_ns))
    order = np.argsort(start_ns, kind="stable")
    start, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    apart = np.append(True, start[1:] > reach[:-1])  # the first of those that touch each other
    begin, end = start[apart], reach[np.append(apart[1:], True)]
    before = np.append(0, np.cumsum(end - begin))
    place = np.searchsorted(begin, at_ns, "right")
    beyond = np.maximum(end[place - 1] - at_ns, 0)
    return np.where(place > 0, before[place] - beyond, 0).astype(np.float64)


def run_charts(named: Sequence[tuple[str, RunContent]]) -> list[Chart]:
    """The charts of one run, or of several overlaid; what their files do not tell is left out.

    Args:
        named: name and content of each; a single one's name is not shown.
    """
    return [*_finish_charts(named), *_start_charts(named), *_use_charts(named), *_rate_charts(named)]


def _finish_charts(named: Sequence[tuple[str, RunContent]]) -> Iterator[Chart]:
    """For each priority model, when its results were ready."""
    models = dict.fromkeys(model.name for _, run in named for model in run.priority)
    for model in list(models)[:_MOST_MODELS]:
        samples = [(name if len(named) > 1 else model, run.finish_ms(model)) for name, run in named]
        lines, least = histogram(samples)
        if not lines:
            continue
        deadlines = {run.deadlines_ns().get(model, 0) for _, run in named} - {0}
        told = [
            _percentiles_sentence(name if len(named) > 1 else "", one.release_to_finish_ns)
            for name, run in named
            for one in run.priority
            if one.name == model
        ]
        marks = [Line(name="deadline", kind="upright", data=((ns / 1e6,),), colour=-1, dashed=True) for ns in deadlines]
        ends = [*(ns / 1e6 for ns in deadlines), *(float(ms.max()) for _, ms in samples if len(ms))]
        within = f"The deadline is {' or '.join(format_duration(ns) for ns in sorted(deadlines))}. " if marks else ""
        yield Chart(
            title=f"{model}: frames against their deadline",
            summary=f"From release to result. {within}{' '.join(told)}",
            x=Axis(name="release to result", unit="ms", low=0.0, high=1.04 * max(ends)),
            y=Axis(name="share of frames", unit="%", scale="log", low=least, high=100.0),
            lines=(*lines, *marks),
        )


def _start_charts(named: Sequence[tuple[str, RunContent]]) -> Iterator[Chart]:
    """When frames were begun, beside what an idle machine takes to wake up."""
    if len(named) == 1:
        run = named[0][1]
        samples = [(model.name, run.start_us(model)) for model in run.priority]
    else:
        samples = [
            (name, np.concatenate([np.zeros(0), *(run.start_us(model) for model in run.priority)]))
            for name, run in named
        ]
    samples = [(name, np.maximum(us, _LEAST_US)) for name, us in samples if len(us) and us.max() > _LEAST_US]
    lines, least = histogram(samples, log=True)
    if not lines:
        return
    floor = next((run.metrics.floor_release_to_start_ns for _, run in named if _has_floor(run)), None)
    marks = []
    told = "In virtual time nobody wakes up late: there is no floor."
    if floor is not None:
        named_ns = [("floor p50", floor.p50)] * (floor.max >= _APART * floor.p50) + [("floor max", floor.max)]
        marks = [Line(name=name, kind="upright", data=((ns / 1e3,),), colour=-1, dashed=True) for name, ns in named_ns]
        told = f"The floor is the idle machine, in {floor.count} windows without work: {_three(floor)}."
    ends = [datum[0] or 0.0 for mark in marks for datum in mark.data]
    ends += [float(bound) for _, us in samples for bound in (us.min(), us.max())]
    low, high = decades([us for us in ends if us])
    each = (
        _percentiles_sentence(name if len(named) > 1 else model.name, model.release_to_start_ns)
        for name, run in named
        for model in run.priority
    )
    yield Chart(
        title="Jitter: when frames were begun",
        summary=f"From release to start. {' '.join(each)} {told}",
        x=Axis(name="release to start", unit="us", scale="log", low=low, high=high),
        y=Axis(name="share of frames", unit="%", scale="log", low=least, high=100.0),
        lines=(*lines, *marks),
    )


def _has_floor(run: RunContent) -> bool:
    return run.metrics.floor_release_to_start_ns.max > 0


def _percentiles_sentence(name: str, of: Percentiles) -> str:
    return f"{name}: {_three(of)}." if name else f"{_three(of)}."


def _three(of: Percentiles) -> str:
    return f"p50 {format_duration(of.p50)}, p99 {format_duration(of.p99)}, max {format_duration(of.max)}"


def _use_charts(named: Sequence[tuple[str, RunContent]]) -> Iterator[Chart]:
    lines: list[Line] = []
    told = []
    widest = 1
    for place, (name, run) in enumerate(named):
        first, use = run.residual_use()
        if len(use) < 2 or all(model.role == "priority" for model in run.metrics.models):
            continue
        middle, band, size = steps(use, first)
        widest = max(widest, size)
        label = name if len(named) > 1 else ""
        lines.append(Line(name=label or "residual used", kind="line", data=middle, colour=colour(place)))
        if size > 1:
            lines.append(Line(name=label, kind="band", data=band, colour=colour(place)))
        p1, p50 = np.quantile(use, (0.01, 0.5))
        covered = f" The trace covers windows {first} to {first + len(use) - 1} of {run.metrics.windows:,}."
        covered = covered if len(use) + 2 < run.metrics.windows else ""
        told.append(f"{f'{label}: m' if label else 'M'}edian {p50:.1f} %, 99 of 100 windows above {p1:.1f} %.{covered}")
    if lines:
        folded = f" A point is the median of {widest} windows, the band goes from the least to the greatest." * (
            widest > 1
        )
        yield Chart(
            title="Residual in use, window by window",
            summary=f"What background models used of the time that priority models left. {' '.join(told)}{folded}",
            x=Axis(name="window", whole=True),
            y=Axis(name="of the residual", unit="%", low=0.0, high=100.0),
            lines=tuple(lines),
        )


def _rate_charts(named: Sequence[tuple[str, RunContent]]) -> Iterator[Chart]:
    """Throughput of background models beside their bounds."""
    every = [(name, model) for name, run in named for model in run.metrics.models if model.role == "background"]
    models = tuple(dict.fromkeys(model.name for _, model in every))
    if not models:
        return
    lines = []
    for place, (name, run) in enumerate(named):
        reached = {model.name: model.throughput_hz for model in run.metrics.models}
        lines.append(_bars(name if len(named) > 1 else "reached", models, reached, place))
    told = [
        f"{f'{name}, ' if len(named) > 1 else ''}{model.name} {model.throughput_hz:.2f} Hz"
        + (
            f", {format_ratio(model.throughput_hz / model.fluid_bound_hz)} of its fluid bound"
            if model.fluid_bound_hz
            else ""
        )
        for name, model in every
    ]
    if len(named) == 1:
        packing = {model.name: model.packing_bound_hz for _, model in every if model.packing_bound_hz}
        fluid = {model.name: model.fluid_bound_hz for _, model in every if model.fluid_bound_hz}
        lines += [_bars("packing bound", models, packing, 1)] * bool(packing)
        lines += [_bars("fluid bound", models, fluid, 7)] * bool(fluid)
    yield Chart(
        title="Background throughput",
        summary=f"Results a second: {'; '.join(told)}. No plan can exceed the fluid bound.",
        x=Axis(name="results a second", unit="Hz", low=0.0),
        y=Axis(name="", scale="category", categories=models),
        lines=tuple(lines),
        height_px=row_height_px(2 * len(models)),
    )


def _bars(name: str, models: Sequence[str], values: dict[str, float], place: int) -> Line:
    data = tuple((float(at), values[model], None, None) for at, model in enumerate(models) if model in values)
    return Line(name=name, kind="bars", data=data, colour=colour(place))


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
