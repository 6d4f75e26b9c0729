"""A run: did it fit and by how much, what happened, charts, and every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.explanation import ModelGraph, PlanExplanation
from framefit.core.faults import mark_of
from framefit.core.profile import Profile, RunWindows, WindowUse
from framefit.core.run_record import FrameTimes, Metrics, Miss, ModelMetrics, Percentiles, RunInfo, StreamMetrics
from framefit.core.soak import SoakResult
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload
from framefit.report.charts import Axis, Chart, Line, colour, decades, histogram, row_height_px, steps
from framefit.report.description import (
    NONE,
    Block,
    Cell,
    Description,
    Detail,
    Facts,
    Folded,
    Kind,
    Quantity,
    RunPicture,
    Section,
    Sentences,
    Shares,
    Timeline,
    Verdict,
    columns,
    count,
    duration,
    rate,
    ratio,
    ratio_quantity,
    served,
    size,
)
from framefit.report.drawing import looks_of
from framefit.report.formats import format_bytes, format_difference, format_duration, format_hz, format_ratio
from framefit.report.sections.plan import KIND as PLAN
from framefit.report.sections.plan import PlanContent
from framefit.report.sections.profile import KIND as PROFILE
from framefit.report.sections.profile import profile_charts, run_notes
from framefit.report.sections.soak import soak_charts, soak_section
from framefit.report.timeline import Happened

__all__ = ["RunContent"]


_MOST_MISSES = 1000  # listed
_MOST_MODELS = 4  # a chart each
_LEAST_US = 1.0  # shorter times are shown as this one: in virtual time most starts take none
_APART = 1.5  # values whose names do not lie on each other
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunContent:
    """A run: its figures, and whatever else of a run folder is known; what is ``None`` is not.

    Attributes:
        times: of each priority model, when its frames were begun and ready.
        use: of the residual, window by window.
        happened, profile: what the trace says.
        explanation: of the timetable, how it came about.
        graphs: layers of its models, for a page.
        rows: windows that a terminal draws.
        soak: minute by minute, where sensors were read.
        notes: what a reader should know beside the warnings in ``info``.
        files: name and path of what lies in the run folder.
    """

    metrics: Metrics
    info: RunInfo | None = None
    timetable: Timetable | None = None
    workload: Workload | None = None
    explanation: PlanExplanation | None = None
    graphs: Sequence[ModelGraph] = ()
    times: Mapping[str, FrameTimes] = field(default_factory=dict)
    use: WindowUse | None = None
    happened: Happened | None = None
    profile: Profile | None = None
    rows: RunWindows | None = None
    soak: SoakResult | None = None
    notes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def priority(self) -> list[ModelMetrics]:
        """Figures of the models that have deadlines: priority models, and sporadic ones."""
        return [model for model in self.metrics.models if model.role != "background"]

    @property
    def background(self) -> list[ModelMetrics]:
        """Figures of the background models."""
        return [model for model in self.metrics.models if model.role == "background"]

    def deadlines_ns(self) -> dict[str, int]:
        """Of the priority models, after release; those that are known."""
        return {} if self.explanation is None else self.explanation.deadlines_ns()

    def finish_ms(self, model: str) -> _Floats:
        """From release to result of each frame that was finished."""
        return self.times[model].finish_ns / 1e6 if model in self.times else np.zeros(0)

    def start_us(self, model: str) -> _Floats:
        """From release to the start of each frame that was launched."""
        return self.times[model].start_ns / 1e3 if model in self.times else np.zeros(0)


def _charts(named: Sequence[tuple[str, RunContent]]) -> list[Chart]:
    """The charts of one run, or of several overlaid; what their files do not say is left out."""
    profiles = [(name, run.profile) for name, run in named if run.profile is not None]
    return [
        *_finish_charts(named),
        *_start_charts(named),
        *_use_charts(named),
        *_rate_charts(named),
        *(chart for _, run in named if run.soak is not None for chart in soak_charts(run.soak)),
        *profile_charts(profiles)[:1],  # by layer; kinds are a table
    ]


def _finish_charts(named: Sequence[tuple[str, RunContent]]) -> Iterator[Chart]:
    """For each priority model, when its results were ready."""
    models = dict.fromkeys(model.name for _, run in named for model in run.priority)
    for model in list(models)[:_MOST_MODELS]:
        samples = [(name if len(named) > 1 else model, run.finish_ms(model)) for name, run in named]
        lines, least = histogram(samples)
        if not lines:
            continue
        lines = _in_looks(lines, named)
        deadlines = {run.deadlines_ns().get(model, 0) for _, run in named} - {0}
        sentences = [
            _percentiles_sentence(name if len(named) > 1 else "", priority_model.release_to_finish_ns)
            for name, run in named
            for priority_model in run.priority
            if priority_model.name == model
        ]
        marks = [Line(name="deadline", kind="upright", data=((ns / 1e6,),), colour=-1, dashed=True) for ns in deadlines]
        ends = [*(ns / 1e6 for ns in deadlines), *(float(ms.max()) for _, ms in samples if len(ms))]
        within = f"The deadline is {' or '.join(format_duration(ns) for ns in sorted(deadlines))}. " if marks else ""
        yield Chart(
            title=f"{model}: frames against their deadline",
            summary=f"From release to result. {within}{' '.join(sentences)}",
            x=Axis(name="release to result", unit="ms", low=0.0, high=1.04 * max(ends)),
            y=Axis(name="share of frames", unit="%", scale="log", low=least, high=100.0),
            lines=(*lines, *marks),
        )


def _start_charts(named: Sequence[tuple[str, RunContent]]) -> Iterator[Chart]:
    """When frames were begun, beside what an idle machine takes to wake up."""
    if len(named) == 1:
        run = named[0][1]
        samples = [(model.name, run.start_us(model.name)) for model in run.priority]
    else:
        samples = [
            (name, np.concatenate([np.zeros(0), *(run.start_us(model.name) for model in run.priority)]))
            for name, run in named
        ]
    samples = [(name, np.maximum(us, _LEAST_US)) for name, us in samples if len(us) and us.max() > _LEAST_US]
    lines, least = histogram(samples, log=True)
    if not lines:
        return
    lines = _in_looks(lines, named)
    floor = next((run.metrics.floor_release_to_start_ns for _, run in named if _has_floor(run)), None)
    marks = []
    floor_sentence = "In virtual time there are no late wake-ups, and so no floor."
    if floor is not None:
        named_ns = [("floor p50", floor.p50)] * (floor.max >= _APART * floor.p50) + [("floor max", floor.max)]
        marks = [Line(name=name, kind="upright", data=((ns / 1e3,),), colour=-1, dashed=True) for name, ns in named_ns]
        floor_sentence = f"The floor is the idle machine, in {floor.count} windows without work: {_three(floor)}."
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
        summary=f"From release to start. {' '.join(each)} {floor_sentence}",
        x=Axis(name="release to start", unit="us", scale="log", low=low, high=high),
        y=Axis(name="share of frames", unit="%", scale="log", low=least, high=100.0),
        lines=(*lines, *marks),
    )


def _in_looks(lines: tuple[Line, ...], named: Sequence[tuple[str, RunContent]]) -> tuple[Line, ...]:
    """Lines in the colours of the models that they are named after, where they are of one run."""
    if len(named) > 1:
        return lines
    run = named[0][1]
    looks = looks_of((model.name for model in run.metrics.models), [model.name for model in run.priority])
    return tuple(msgspec.structs.replace(line, fill=looks[line.name].fill) for line in lines)


def _has_floor(run: RunContent) -> bool:
    return run.metrics.floor_release_to_start_ns.max > 0


def _percentiles_sentence(name: str, of: Percentiles) -> str:
    return f"{name}: {_three(of)}." if name else f"{_three(of)}."


def _three(of: Percentiles) -> str:
    return f"p50 {format_duration(of.p50)}, p99 {format_duration(of.p99)}, max {format_duration(of.max)}"


def _use_charts(named: Sequence[tuple[str, RunContent]]) -> Iterator[Chart]:
    lines: list[Line] = []
    sentences = []
    widest = 1
    for place, (name, run) in enumerate(named):
        if run.use is None or not run.background or len(run.use.used_ratio) < 2:
            continue
        first, use = run.use.first, 100 * run.use.used_ratio
        middle, band, size = steps(use, first)
        widest = max(widest, size)
        label = name if len(named) > 1 else ""
        lines.append(Line(name=label or "residual used", kind="line", data=middle, colour=colour(place)))
        if size > 1:
            lines.append(Line(name=label, kind="band", data=band, colour=colour(place)))
        p1, p50 = np.quantile(use, (0.01, 0.5))
        covered = f" The trace covers windows {first} to {first + len(use) - 1} of {run.metrics.windows:,}."
        covered = covered if len(use) + 2 < run.metrics.windows else ""
        median = f"{label}: median" if label else "Median"
        sentences.append(f"{median} {p50:.1f} %, 99 of 100 windows above {p1:.1f} %.{covered}")
    if lines:
        folded = f" A point is the median of {widest} windows, the band goes from the least to the greatest." * (
            widest > 1
        )
        yield Chart(
            title="Residual in use, window by window",
            summary=f"What background models used of the time that priority models left. {' '.join(sentences)}{folded}",
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
    rates = [
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
        summary=f"Results a second: {'; '.join(rates)}. The bounds keep the proportions between the models.",
        x=Axis(name="results a second", unit="Hz", low=0.0),
        y=Axis(name="", scale="category", categories=models),
        lines=tuple(lines),
        height_px=row_height_px(2 * len(models)),
    )


def _bars(name: str, models: Sequence[str], values: dict[str, float], place: int) -> Line:
    data = tuple((float(at), values[model], None, None) for at, model in enumerate(models) if model in values)
    return Line(name=name, kind="bars", data=data, colour=colour(place))


def _describe(run: RunContent | Metrics, *, detail: Detail = "normal") -> Description:
    """A run: its answer, its figures beside the machine's floor and the bounds, and where the files lie."""
    run = RunContent(run) if isinstance(run, Metrics) else run
    return Description(_verdict(run), list(_quantities(run)), list(_blocks(run, detail)))


def _verdict(run: RunContent) -> Verdict:
    """Whether it fits, and by how much."""
    metrics, priority = run.metrics, run.priority
    missed, frames = sum(model.missed for model in priority), sum(model.releases for model in priority)
    ended = ""
    if run.info is not None:
        ended = " It was interrupted before its end." if run.info.interrupted else ""
        ended = f" It ended early: {run.info.error}" if run.info.error else ended
    if not priority:
        text = f"{metrics.windows:,} windows, no priority model.{ended}"
        return Verdict.of(metrics.judged, ":", text, metrics.models)
    upper = format_ratio(max(model.miss_ratio_upper for model in priority))
    if not missed:
        text = f"0 misses in {frames:,} priority frames (fewer than {upper} at 95 %).{_slack_sentence(run)}{ended}"
        return Verdict.of(metrics.judged, ":", text, metrics.models)
    noun = "miss" if missed == 1 else "misses"
    text = f"{missed:,} {noun} in {frames:,} priority frames; worst model {format_ratio(metrics.miss_ratio)}"
    text += f", fewer than {upper} at 95 %."
    text += (f" Causes: {_causes(metrics)}." if metrics.misses else "") + ended
    return Verdict.of(metrics.judged, ":", text, metrics.models)


def _causes(metrics: Metrics) -> str:
    causes = Counter((miss.cause, miss.injected) for miss in metrics.misses)
    return ", ".join(
        f"{number:,} x {cause}" + (f" {mark_of(injected)}" if injected else "")
        for (cause, injected), number in causes.most_common()
    )


def _slacks_ns(run: RunContent) -> dict[str, int]:
    """Of each priority model, how long before its deadline its latest result was ready."""
    deadlines = run.deadlines_ns()
    return {
        model.name: deadlines[model.name] - model.release_to_finish_ns.max
        for model in run.priority
        if model.name in deadlines and model.release_to_finish_ns.count
    }


def _slack_sentence(run: RunContent) -> str:
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
        remark = f"latest result of {worst}"
        yield Quantity("Worst slack", slacks[worst], format_duration(slacks[worst]), remark, "more", card=True)
    for model in run.priority:
        yield from _time_quantities(run, model)
    if run.background:
        remark = f"guard {format_ratio(metrics.guard_loss_ratio)}, packing {format_ratio(metrics.packing_loss_ratio)}"
        yield ratio_quantity("Residual used", metrics.residual_utilisation_ratio, "more", remark, card=True)
    for model in run.background:
        bound, reached = model.packing_bound_hz, model.throughput_hz
        remark = f"{format_ratio(reached / bound)} of its packing bound" if bound else "results a second"
        first = model is run.background[0]
        yield Quantity(f"{model.name}: throughput", reached, format_hz(reached), remark, "more", card=first)
        age = model.result_age_windows_max
        yield Quantity(f"{model.name}: greatest age, windows", age, str(age), "", "less")
    over = metrics.estimate_exceeded_ratio
    yield ratio_quantity("Launches over their estimate", over, "less")
    yield Quantity("Peak memory", metrics.peak_memory_bytes, format_bytes(metrics.peak_memory_bytes), "tensors", "less")


def _time_quantities(run: RunContent, model: ModelMetrics) -> Iterator[Quantity]:
    """Jitter and latency of a priority model, the jitter beside that of the idle machine."""
    floor = run.metrics.floor_release_to_start_ns
    for name, of in (("start", model.release_to_start_ns), ("finish", model.release_to_finish_ns)):
        remark = f"p50 {format_duration(of.p50)}, max {format_duration(of.max)}"
        if name == "start" and floor.max:  # in virtual time there are no late wake-ups
            remark += f"; idle machine: p99 {format_duration(floor.p99)}"
        for quantile, ns in (("p50", of.p50), ("p99", of.p99), ("max", of.max)):
            title, first = (
                f"{model.name}: release to {name}, {quantile}",
                model is run.priority[0] and quantile == "p99",
            )
            yield Quantity(title, ns, format_duration(ns), remark, "less", card=first)


def _blocks(run: RunContent, detail: Detail) -> Iterator[Block]:
    metrics = run.metrics
    if detail == "page" and run.happened is not None:
        yield Timeline(run.happened)
    if run.rows is not None:
        yield RunPicture(run.rows)
    if metrics.misses and detail != "page":
        yield _misses(metrics, detail)
    if metrics.injected and detail != "page":
        yield _injected(metrics)
    yield _frames(metrics)
    if detail == "brief":
        yield from _notes(run, detail)
        return
    yield _percentiles(metrics)
    if run.background:
        yield _throughput(run.background)
        parts = (
            ("used", metrics.residual_utilisation_ratio, "useful time of background models"),
            ("guard", metrics.guard_loss_ratio, "kept free before reserved instants"),
            ("packing", metrics.packing_loss_ratio, "too short for the segment that was due"),
        )
        yield Shares("Where the residuals went", parts)
    if run.soak is not None:
        yield soak_section(run.soak)
    if len(metrics.units) > 1:
        yield _units(metrics)
    if metrics.streams:
        yield _streams(metrics)
    if metrics.switches:
        rows = [(switch.rung, count(switch.window), switch.why) for switch in metrics.switches]
        yield Section("Timetables in force", columns(("timetable",), ("from window",), ("why",)), rows, plain=True)
    yield Facts(
        "Launches and memory",
        [
            ("launches over their estimate", format_ratio(metrics.estimate_exceeded_ratio)),
            ("peak memory of tensors", format_bytes(metrics.peak_memory_bytes)),
            ("switches of granularity", metrics.rung_switches or None),
            *(() if detail == "page" else map(_cutting, metrics.models)),
        ],
    )
    yield from _notes(run, detail)
    if metrics.misses and detail == "page":
        yield _misses(metrics, detail)
    if metrics.injected and detail == "page":
        yield _injected(metrics)
    if detail == "page":
        yield from _page_blocks(run)
    if run.files:
        yield Facts("Files", run.files)


def _notes(run: RunContent, detail: Detail) -> Iterator[Block]:
    """What a reader should know of the figures, and what the trace says of the plan's durations."""
    notes = [*(() if run.info is None else run.info.warnings), *run.notes]
    if run.profile is not None and detail != "page":
        notes += [f"profile: {note}" for note in run_notes(run.profile, run.metrics.windows)]
    if notes:
        yield Sentences("What to know of this run", notes)


def _page_blocks(run: RunContent) -> Iterator[Block]:
    if run.profile is not None:
        yield Folded("What the trace says: the profile", PROFILE.describe(run.profile, detail="page"))
    if run.timetable is not None:
        plan = PlanContent(run.timetable, run.workload, run.explanation, run.graphs)
        yield Folded("The plan that was run", PLAN.describe(plan, detail="page"))
    if (info := run.info) is not None:
        facts: list[tuple[str, object]] = [
            ("command", info.command),
            ("workload", info.app or "not known"),
            ("created", info.created),
            ("seed", info.seed),
            ("target", info.workload.get("target", "cpu")),
        ]
        yield Facts("Command and machine", [*facts, *info.host.items()], wide=True)


def _frames(metrics: Metrics) -> Section:
    faulty = any(model.faults or model.degraded for model in metrics.models)
    rows = []
    for model in metrics.models:
        late = model.role != "background" and model.missed
        cells: list[Cell | str] = [
            Cell(model.name, tone=model.role),
            model.role,
            count(model.releases),
            count(model.completed),
            count(model.missed, "bad" if late else ""),
            count(model.dropped),
            served(model),
            Cell(f"< {format_ratio(model.miss_ratio_upper)}", model.miss_ratio_upper),
            count(model.result_age_windows_max),
            ratio(model.segmentation_overhead_ratio),
            format_difference(model.max_relative_difference),
        ]
        rows.append([*cells, *([_faults(model)] if faulty else [])])
    figures = ("released", "completed", "missed", "dropped", "gets", "miss ratio", "age", "cutting", "difference")
    return Section(
        "Frames",
        columns(("model", "role"), figures, ("faults",) if faulty else (), page=("completed", "cutting", "difference")),
        rows,
        "Miss ratio: upper bound, 95 %. Age: greatest, in windows.",
    )


def _cutting(model: ModelMetrics) -> tuple[str, str]:
    """What cutting a model cost; nothing where it is not cut."""
    overhead, difference = model.segmentation_overhead_ratio, model.max_relative_difference
    text = f"overhead {format_ratio(overhead)}, difference of outputs {format_difference(difference)}"
    return f"cutting {model.name}", text if overhead or difference else ""


def _faults(model: ModelMetrics) -> str:
    faults = [f"{number} {name}" for name, number in model.faults.items()] + ["rests"] * model.degraded
    return ", ".join(faults) or "-"


def _each_cause_first(misses: Sequence[Miss]) -> list[Miss]:
    """Misses in another order: a terminal shows few, and those shall name every cause."""
    first = {(miss.model, miss.cause, miss.injected): number for number, miss in reversed(list(enumerate(misses)))}
    leading = set(first.values())
    return [miss for _, miss in sorted(enumerate(misses), key=lambda each: each[0] not in leading)]


def _injected(metrics: Metrics) -> Section:
    """Faults that were injected on purpose, and what they cost."""
    rows = [
        (fault.fault, count(fault.times), count(fault.first_window), count(fault.last_window), count(fault.missed))
        for fault in metrics.injected
    ]
    figures = ("times", "first window", "last window", "missed frames")
    return Section("Injected faults", columns(("fault",), figures), rows)


def _misses(metrics: Metrics, detail: Detail) -> Section:
    misses = metrics.misses if detail == "page" else _each_cause_first(metrics.misses)
    rows = [
        (Cell(miss.model, tone="priority"), miss.cause, count(miss.window), miss.detail)
        for miss in misses[:_MOST_MISSES]
    ]
    more = len(metrics.misses) - len(rows)
    note = f"{_causes(metrics)}." + (f" {more:,} more are in metrics.json." if more > 0 else "")
    return Section("Misses", columns(("model", "cause"), ("window",), ("detail",)), rows, note, most=5)


def _percentiles(metrics: Metrics) -> Section:
    rows: list[Sequence[Cell | str]] = []
    for model in metrics.models:
        rows.append((Cell(model.name, tone=model.role), "start", *_five(model.release_to_start_ns)))
        rows.append((Cell(model.name, tone=model.role), "finish", *_five(model.release_to_finish_ns)))
    if metrics.floor_release_to_start_ns.max:
        rows.append(("idle machine", "start", *_five(metrics.floor_release_to_start_ns)))
    if metrics.dispatch_ns.max:  # nothing in virtual time
        rows.append(("between launches", "dispatch", *_five(metrics.dispatch_ns)))
    return Section("From release", columns(("model", "to"), ("p50", "p90", "p99", "p99.9", "max", "count")), rows)


def _five(of: Percentiles) -> Sequence[Cell]:
    if not of.count:
        return [NONE] * 5 + [count(0)]
    return [*(duration(ns) for ns in (of.p50, of.p90, of.p99, of.p999, of.max)), count(of.count)]


def _throughput(models: Sequence[ModelMetrics]) -> Section:
    """What background models reached, beside its bounds."""
    rows = []
    for model in models:
        row = [Cell(model.name, tone=model.role), rate(model.throughput_hz)]
        for bound_hz in (model.fluid_bound_hz, model.packing_bound_hz):
            part = model.throughput_hz / bound_hz if bound_hz else 0.0
            row += [rate(bound_hz), Cell(f"{part:.3f}", part)] if bound_hz else [NONE, NONE]
        rows.append(row)
    figures = ("reached", "fluid bound", "ratio", "packing bound", "ratio")
    return Section("Background throughput", columns(("model",), figures), rows)


def _units(metrics: Metrics) -> Section:
    rows = [
        (
            unit.name,
            count(unit.launches),
            ratio(unit.residual_utilisation_ratio),
            ratio(unit.guard_loss_ratio),
            ratio(unit.packing_loss_ratio),
            ratio(unit.estimate_exceeded_ratio),
            size(unit.peak_memory_bytes),
            size(unit.planned_memory_bytes),
        )
        for unit in metrics.units
    ]
    figures = ("launches", "used", "guard", "packing", "over estimate", "memory", "planned")
    note = "Used, guard, packing: of the residual that the unit's priority models leave."
    return Section("Units", columns(("unit",), figures), rows, note)


def _streams(metrics: Metrics) -> Section:
    waited = any(stream.waited_windows for stream in metrics.streams)
    empty = any(stream.empty_windows for stream in metrics.streams)
    handed = any(stream.waited_ns is not None for stream in metrics.streams)
    rows: list[Sequence[Cell | str]] = [
        (
            stream.name,
            count(stream.received),
            count(stream.dropped),
            *([count(stream.waited_windows)] if waited else []),
            *([count(stream.empty_windows)] if empty else []),
            *(_waits(stream) if handed else []),
        )
        for stream in metrics.streams
    ]
    figures = ("received", "dropped", *(["windows waited"] if waited else []), *(["windows empty"] if empty else []))
    note = "Waited: from when a frame was handed over to the release of the window that took it." if handed else ""
    figures = (*figures, *(("waited p50", "waited p99") if handed else ()))
    return Section("Streams", columns(("stream",), figures), rows, note)


def _waits(stream: StreamMetrics) -> Sequence[Cell]:
    waited = stream.waited_ns
    return (NONE, NONE) if waited is None else (duration(waited.p50), duration(waited.p99))


KIND: Kind[RunContent] = Kind(noun="run", plural="runs", describe=_describe, charts=_charts, uses=("timeline", "plan"))
