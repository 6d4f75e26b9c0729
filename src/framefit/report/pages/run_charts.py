"""A run in charts: frames against their deadline, starts against the machine's floor, how residuals were used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.profile import Profile
from framefit.core.program import Launches, Program
from framefit.core.run_record import FrameTable, Metrics, ModelMetrics, Percentiles, RunInfo
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload
from framefit.report.explained import accounts, deadline_ns
from framefit.report.formats import format_duration, format_ratio
from framefit.report.pages.charts import Axis, Chart, Line, colour, decades, histogram, row_height_px, steps
from framefit.report.pages.timeline import Happened

__all__ = ["RunContent", "run_charts"]


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
        told = accounts(self.timetable, self.workload)
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
            _percentiles_told(name if len(named) > 1 else "", one.release_to_finish_ns)
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
        _percentiles_told(name if len(named) > 1 else model.name, model.release_to_start_ns)
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


def _percentiles_told(name: str, of: Percentiles) -> str:
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
