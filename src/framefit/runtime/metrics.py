"""Compute the figures of a run from its logs."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.program import Launches, Program
from framefit.core.run_record import (
    FrameTable,
    FrameTimes,
    InjectedFault,
    Metrics,
    Miss,
    ModelMetrics,
    Percentiles,
    StreamMetrics,
    Switch,
    UnitMetrics,
    verdict_of_run,
)
from framefit.core.timetable import PlannedModel, Timetable, Window
from framefit.core.verdict import SERVED
from framefit.runtime.log import FLAGGED, OUTCOME_WORDS, FaultCause, FrameLog, FrameOutcome, LaunchLog
from framefit.runtime.loop import Dispatcher
from framefit.runtime.misses import NO_EVENT_MISSED, misses
from framefit.runtime.recorded import RecordedRun
from framefit.runtime.units import UnitGroup
from framefit.stats import wilson

__all__ = ["frame_times", "residual_use", "run_seconds", "served_frames"]


_FAULTS = {
    FaultCause.ERROR: "error",
    FaultCause.HANG: "hang",
    FaultCause.INPUT: "input",
    FaultCause.NOT_FINITE: "not finite",
    FaultCause.STATE: "state",
}


@dataclass(frozen=True)
class RunFigures:
    """Says how the residual was used, and how good the estimates were."""

    residual_utilisation_ratio: float
    guard_loss_ratio: float
    packing_loss_ratio: float
    estimate_exceeded_ratio: float
    dispatch_ns: Percentiles


def miss_ratio_upper(missed: int, releases: int) -> float:
    """Return a 95 % upper bound on the miss ratio: 3/N where nothing was missed, else Wilson's one-sided bound."""
    if releases == 0:
        return 1.0
    if missed == 0:
        return min(3 / releases, 1.0)
    return wilson(missed, releases)[1]


def model_metrics(
    index: int,
    planned: PlannedModel,
    frames: FrameLog,
    *,
    windows: int,
    rate_hz: float,
    shortest_hz: float | None = None,
    bounds_hz: tuple[float, float] | None,
    overhead_ratio: float,
) -> ModelMetrics:
    """Compute one model's figures.

    Args:
        index: the model's number in the log.
        planned: its part in the plan.
        frames: fates of all frames.
        windows: begun in the run.
        rate_hz: windows a second.
        shortest_hz: the same, were all as long as the shortest: ages are counted in these; default: they are.
        bounds_hz: fluid and packing bound; background models only.
        overhead_ratio: of its segmentation, as measured around the run.
    """
    rows = frames.rows()
    rows = rows[(rows[:, FrameLog.MODEL] == index) & (rows[:, FrameLog.OUTCOME] != FrameOutcome.SKIPPED)]
    finished = rows[np.isin(rows[:, FrameLog.OUTCOME], (FrameOutcome.DONE, FrameOutcome.LATE))]
    late = int((rows[:, FrameLog.OUTCOME] == FrameOutcome.LATE).sum())
    unfinished = len(rows) - len(finished)
    missed = late
    if planned.role == "sporadic":
        missed += unfinished - int(np.isin(rows[:, FrameLog.OUTCOME], NO_EVENT_MISSED).sum())
    elif planned.role == "priority":
        missed += unfinished
    seconds = windows / rate_hz
    # Of frames that are consumed together, the newest one's times are the result's.
    newest = np.ones(len(finished), bool)
    newest[:-1] = np.diff(finished[:, FrameLog.FINISHED]) != 0
    results = finished[newest]
    age = results[:, FrameLog.FINISHED] - results[:, FrameLog.RELEASED]
    fluid, packing = bounds_hz or (None, None)
    decided, lost = len(rows), missed
    if planned.role == "background":  # frames that wait or are worked on when the run ends say nothing
        in_flight = int((rows[:, FrameLog.OUTCOME] == FrameOutcome.RUN_ENDED).sum())
        decided, lost = len(rows) - in_flight, missed + unfinished - in_flight
    asked_hz, throughput_hz = (count / seconds if seconds else 0.0 for count in (len(rows), len(finished)))
    served_hz = asked_hz * (decided - lost) / decided if decided else 0.0
    if served_hz < SERVED * asked_hz:  # then those in flight decide nothing, and one figure is enough
        served_hz = min(served_hz, throughput_hz)
    return ModelMetrics(
        name=planned.name,
        role=planned.role,
        releases=len(rows),
        completed=len(finished),
        missed=missed,
        dropped=unfinished,
        throughput_hz=throughput_hz,
        fluid_bound_hz=fluid,
        packing_bound_hz=packing,
        release_to_start_ns=Percentiles.of(results[:, FrameLog.STARTED] - results[:, FrameLog.RELEASED]),
        release_to_finish_ns=Percentiles.of(age),
        miss_ratio_upper=miss_ratio_upper(missed, len(rows)),
        # Releases are rounded to whole nanoseconds: a window may be one longer than 1 / rate.
        result_age_windows_max=int(np.ceil((age.max() - 1) * (shortest_hz or rate_hz) / 1e9)) if len(age) else 0,
        segmentation_overhead_ratio=overhead_ratio,
        max_relative_difference=planned.max_relative_difference,
        asked_hz=asked_hz,
        served_hz=served_hz,
    )


def unit_figures(timetable: Timetable, launches: LaunchLog, *, windows: int, rate_hz: float) -> dict[str, RunFigures]:
    """Compute how each unit's residual was used; see :func:`figures`."""
    return {unit: figures(timetable, launches, windows=windows, rate_hz=rate_hz, unit=unit) for unit in timetable.units}


def figures(
    timetable: Timetable, launches: LaunchLog, *, windows: int, rate_hz: float, unit: str | None = None
) -> RunFigures:
    """Compute how the residual was used over the whole run, on all units or on one.

    The residual offered is what the windows had left beside the priority models. Of what
    was not used, a guard (as of the launches in the mean) was lost in every window; the rest went to packing: no
    segment that was due would have fitted. Where launches are interrupted, their time on
    the processor counts.
    """
    rows = launches.finished()
    models = timetable.models
    program_unit = timetable.program_units
    if unit is not None:
        rows = rows[program_unit[rows[:, LaunchLog.PROGRAM]] == unit]
    if not len(rows) or not windows:
        return RunFigures(0, 0, 0, 0, Percentiles.of([]))
    program = rows[:, LaunchLog.PROGRAM]
    program_model = np.repeat(np.arange(len(models)), [len(model.segments) for model in models])
    quantiles = np.asarray([segment.duration_ns for model in models for segment in model.segments])
    background = np.asarray([model.role == "background" for model in models], bool)
    is_background = background[program_model[program]]
    duration = rows[:, LaunchLog.FINISHED] - rows[:, LaunchLog.STARTED]
    if timetable.preemptive:
        duration = np.where(is_background, rows[:, LaunchLog.CPU], duration)
    served = background[program_model] if unit is None else background[program_model] & (program_unit == unit)
    units = len(set(program_unit.tolist())) if unit is None else 1
    offered = units * windows * 1e9 / rate_hz - float(duration[~is_background].sum())
    used = float(duration[is_background].sum())
    utilisation = min(used / offered, 1.0) if offered > 0 else 0.0
    left = 1 - utilisation if served.any() else 0.0
    guards = np.asarray([timetable.guard_ns if s.guard_ns is None else s.guard_ns for m in models for s in m.segments])
    guard_ns = float(guards[program[is_background]].mean()) if is_background.any() else float(timetable.guard_ns)
    guard = min(guard_ns * units * windows / offered, left) if offered > 0 else 0.0
    followed = rows[:, LaunchLog.FOLLOWED] == 1
    return RunFigures(
        residual_utilisation_ratio=utilisation,
        guard_loss_ratio=guard,
        packing_loss_ratio=left - guard,
        estimate_exceeded_ratio=float((duration > quantiles[program]).mean()),
        dispatch_ns=Percentiles.of((rows[:, LaunchLog.STARTED] - rows[:, LaunchLog.READY])[followed]),
    )


@dataclass(frozen=True)
class ResidualUse:
    """What priority models left of one unit during a run, and what ran there.

    Attributes:
        residual_ns: over the whole run; priority launches count by their median where they were longer in the mean.
        gaps_ns: stretches of it, in order.
        models: number of the background model of each launch that ended, in the order in which they began.
        taken_ns: of each; where launches are interrupted, their time on the processor.
    """

    residual_ns: float
    gaps_ns: list[int]
    models: npt.NDArray[np.int64]
    taken_ns: npt.NDArray[np.int64]


def residual_use(timetable: Timetable, run: Dispatcher | UnitGroup | RecordedRun) -> dict[str, ResidualUse]:
    """Each unit's residual over the whole run, which ends when its last launch does, and what ran there.

    Args:
        timetable: the plan.
        run: afterwards.
    """
    launched = timetable.launched
    rows = run.launches.finished()
    rows = rows[np.argsort(rows[:, LaunchLog.STARTED], kind="stable")]
    end_ns = max(run.release(run.windows), int(rows[:, LaunchLog.FINISHED].max(initial=0)))
    numbers = {model.name: number for number, model in enumerate(timetable.models)}
    counts = [len(model.segments) for model in launched.models]
    model_of = np.repeat([numbers[model.name] for model in launched.models], counts)
    priority = np.repeat([model.role != "background" for model in launched.models], counts)
    program = rows[:, LaunchLog.PROGRAM]
    lasted = rows[:, LaunchLog.FINISHED] - rows[:, LaunchLog.STARTED]
    spent = rows[:, LaunchLog.CPU] if timetable.preemptive else lasted
    use = {}
    for unit in timetable.units:
        here = launched.program_units[program] == unit
        first, rest = here & priority[program], here & ~priority[program]
        begins = np.append(rows[first, LaunchLog.STARTED], end_ns)
        ends = np.maximum.accumulate(np.insert(rows[first, LaunchLog.FINISHED], 0, run.start_ns))
        gaps = begins - ends
        residual = end_ns - run.start_ns - run.windows * priority_ns(launched, run, unit)
        use[unit] = ResidualUse(
            max(residual, float(spent[rest].sum())), gaps[gaps > 0].tolist(), model_of[program[rest]], spent[rest]
        )
    return use


def served_frames(timetable: Timetable, run: Dispatcher | UnitGroup | RecordedRun) -> tuple[list[int], list[int]]:
    """Frames of each model that were done, and that there were.

    Args:
        timetable: the plan.
        run: afterwards.
    """
    rows = run.frames.rows()
    count = len(timetable.models)
    done = np.isin(rows[:, FrameLog.OUTCOME], (FrameOutcome.DONE, FrameOutcome.LATE))
    came = rows[:, FrameLog.OUTCOME] != FrameOutcome.SKIPPED
    served, arrived = (np.bincount(rows[which, FrameLog.MODEL], minlength=count) for which in (done, came))
    return served.tolist(), arrived.tolist()


def priority_ns(timetable: Timetable, run: Dispatcher | UnitGroup | RecordedRun, unit: str | None = None) -> float:
    """Return the time of a window that background models did not get: medians of launches, or means where less.

    Args:
        timetable: the plan.
        run: afterwards.
        unit: whose; default: of all together.
    """
    rows = run.launches.finished()
    lasted = rows[:, LaunchLog.FINISHED] - rows[:, LaunchLog.STARTED]
    total, program = 0.0, 0
    for model in timetable.models:
        for segment in model.segments:
            mine = lasted[rows[:, LaunchLog.PROGRAM] == program]
            if model.role != "background" and unit in (None, segment.unit) and len(mine):
                total += min(float(np.median(mine)) * len(mine), float(mine.sum()))
            program += 1
    return total / max(run.windows, 1)


def run_seconds(run: Dispatcher | UnitGroup | RecordedRun) -> float:
    """How long all windows of a run are."""
    return run.windows / _windows_hz(run)


def _windows_hz(run: Dispatcher | UnitGroup | RecordedRun) -> float:
    grids = [stretch.rung.grid for stretch in run.stretches]
    if any(grid != grids[0] for grid in grids):
        return run.windows * 1e9 / max(run.release(run.windows) - run.start_ns, 1)
    return grids[0].windows_hz


def run_metrics(
    timetable: Timetable,
    run: RecordedRun,
    *,
    launched: Timetable,
    rungs: Sequence[Timetable],
    segment_ns: Sequence[int],
    whole_ns: Sequence[int],
    floor_ns: npt.NDArray[np.int64],
    bounds_hz: Mapping[str, tuple[float, float]],
    peak_bytes: Mapping[str, int],
    streams: Sequence[StreamMetrics],
) -> Metrics:
    """Compute all figures of a run.

    Args:
        timetable: the plan.
        run: afterwards.
        launched: the plan with models once for each of their cuts: launches are numbered through them.
        rungs: timetables that were in force, by their numbers; the plan's own is the first.
        segment_ns: medians of all segments in the plan's order, measured around the run.
        whole_ns: medians of the uncut models, measured in turn with them.
        floor_ns: how late the idle machine woke up.
        bounds_hz: background model -> fluid and packing bound, in frames a second.
        peak_bytes: unit -> of all tensors, as often as they existed at once.
        streams: their figures.
    """
    # Where a run went on that had been cut off, no other timetable came into force.
    switches = [stretch for stretch in run.stretches[1:] if stretch.window not in run.parts]
    rate_hz = _windows_hz(run)
    shortest_hz = max(stretch.rung.grid.shortest_hz for stretch in run.stretches)
    models, first = [], 0
    for index, (model, whole) in enumerate(zip(timetable.models, whole_ns, strict=True)):
        cut = sum(segment_ns[first : first + len(model.replicas[0].segments)])
        first += len(model.segments)
        metrics = model_metrics(
            index,
            model,
            run.frames,
            windows=run.windows,
            rate_hz=rate_hz,
            shortest_hz=shortest_hz,
            bounds_hz=bounds_hz.get(model.name),
            overhead_ratio=cut / max(whole, 1) - 1 if len(model.segments) > 1 else 0.0,
        )
        faults = {_FAULTS[cause]: count for cause, count in run.faults.counts(index).items()}
        models.append(msgspec.structs.replace(metrics, degraded=index in run.faults.degraded, faults=faults))
    use = figures(launched, run.launches, windows=run.windows, rate_hz=rate_hz)
    floor = Percentiles.of(floor_ns)
    explained = misses(
        launched,
        run.launches,
        run.frames,
        floor_p99_ns=floor.p99,
        stalled=run.stalled,
        faults=run.faults.last_texts(),
        hung=run.faults.hung(),
        planned_in=lambda window: _planned_in(rungs, run, window),
        injections=run.injections,
        migrations=run.migrations,
        ended=run.ended,
    )
    return Metrics(
        verdict=verdict_of_run(models),
        windows=run.windows,
        models=tuple(models),
        residual_utilisation_ratio=use.residual_utilisation_ratio,
        guard_loss_ratio=use.guard_loss_ratio,
        packing_loss_ratio=use.packing_loss_ratio,
        floor_release_to_start_ns=floor,
        estimate_exceeded_ratio=use.estimate_exceeded_ratio,
        dispatch_ns=use.dispatch_ns,
        peak_memory_bytes=sum(peak_bytes.values()),
        rung_switches=len(switches),
        switches=tuple(Switch(window=stretch.window, rung=stretch.rung.name, why=stretch.why) for stretch in switches),
        streams=tuple(streams),
        misses=tuple(explained),
        injected=injected_faults(run, explained),
        units=_units(launched, run, peak_bytes, rate_hz),
    )


def injected_faults(run: RecordedRun, explained: Sequence[Miss]) -> tuple[InjectedFault, ...]:
    """Return what each fault that was injected did, in the order of their first times."""
    at_ns: dict[str, list[int]] = {}
    for injection in run.injections:
        at_ns.setdefault(injection.fault, []).append(injection.at_ns)
    missed = Counter(miss.injected for miss in explained)

    def window(ns: int) -> int:
        return max(bisect.bisect_right(range(run.windows), ns, key=run.release) - 1, 0)

    return tuple(
        InjectedFault(
            fault=fault,
            times=len(times),
            first_window=window(min(times)),
            last_window=window(max(times)),
            missed=missed[fault],
        )
        for fault, times in at_ns.items()
    )


def _planned_in(rungs: Sequence[Timetable], run: Dispatcher | UnitGroup | RecordedRun, window: int) -> Window:
    """Return what the timetable that was in force planned for a window."""
    stretch = run.stretch(window)
    number = stretch.rung.number if stretch.rung.number < len(rungs) else 0  # it was planned in mid-run, and is lost
    windows = rungs[number].windows
    return windows[(window - stretch.origin) % len(windows)]


def _units(
    timetable: Timetable, run: Dispatcher | UnitGroup | RecordedRun, peak_bytes: Mapping[str, int], rate_hz: float
) -> tuple[UnitMetrics, ...]:
    rows = run.launches.finished()
    launched = timetable.program_units[rows[:, LaunchLog.PROGRAM]]
    return tuple(
        UnitMetrics(
            name=unit,
            launches=int((launched == unit).sum()),
            residual_utilisation_ratio=use.residual_utilisation_ratio,
            guard_loss_ratio=use.guard_loss_ratio,
            packing_loss_ratio=use.packing_loss_ratio,
            estimate_exceeded_ratio=use.estimate_exceeded_ratio,
            dispatch_ns=use.dispatch_ns,
            planned_memory_bytes=timetable.memory_bytes.get(unit, 0),
            peak_memory_bytes=peak_bytes.get(unit, 0),
        )
        for unit, use in unit_figures(timetable, run.launches, windows=run.windows, rate_hz=rate_hz).items()
    )


def stream_metrics(
    frames: FrameTable,
    readers: Mapping[str, Collection[str]],
    received: Mapping[str, tuple[int, int]],
    empty: Mapping[str, int] | None = None,
) -> list[StreamMetrics]:
    """Compute the figures of each stream.

    Args:
        frames: the fate of every frame.
        readers: model -> streams that it reads.
        received: stream -> frames that came, and windows in which it waited.
        empty: stream -> windows in which none had come.
    """
    dropped = np.asarray([fate == "dropped" for fate, _ in frames.fates], bool)[frames.fate]
    model, frame = frames.model[dropped], frames.frame[dropped]
    streams = []
    for name, (came, waited) in received.items():
        reads = np.asarray([name in readers[model] for model in frames.models], bool)
        count = len(np.unique(frame[reads[model]]))
        streams.append(
            StreamMetrics(
                name=name,
                received=came,
                dropped=count,
                waited_windows=waited,
                empty_windows=(empty or {}).get(name, 0),
            )
        )
    return streams


def frame_records(
    frames: FrameLog,
    models: Sequence[str],
    streams: Mapping[str, str],
    start_ns: int,
    flagged: Mapping[int, Collection[int]] | None = None,
) -> FrameTable:
    """Return the outcome of every frame, in order of release; times are relative to the first release.

    Args:
        frames: the log.
        models: names by number.
        streams: model -> name of the stream that its frames are counted by; "-" for others.
        start_ns: first release on the run's clock.
        flagged: number of a model -> frames whose outputs are not finite.
    """
    rows = frames.rows()
    for model, bad in (flagged or {}).items():
        marked = (rows[:, FrameLog.MODEL] == model) & np.isin(rows[:, FrameLog.FRAME], list(bad))
        rows[marked & (rows[:, FrameLog.OUTCOME] <= FrameOutcome.LATE), FrameLog.OUTCOME] += len(FrameOutcome)
    released, finished = rows[:, FrameLog.RELEASED], rows[:, FrameLog.FINISHED]
    order = np.lexsort((rows[:, FrameLog.MODEL], rows[:, FrameLog.FRAME], released))
    return FrameTable(
        models=tuple(models),
        streams=tuple(streams.get(model, "-") for model in models),
        fates=(*(OUTCOME_WORDS[fate] for fate in FrameOutcome), *FLAGGED),
        model=rows[order, FrameLog.MODEL],
        frame=rows[order, FrameLog.FRAME],
        fate=rows[order, FrameLog.OUTCOME],
        released_ns=released[order] - start_ns,
        finished_ns=np.where(finished >= 0, finished - start_ns, -1)[order],
    )


def frame_times(
    models: Sequence[ModelMetrics],
    frames: FrameTable,
    program: Program | None = None,
    launches: Launches | None = None,
) -> dict[str, FrameTimes]:
    """Compute when the frames of priority and sporadic models were begun and ready, from a run's files.

    Launches and releases count from different instants, a constant apart: that of the median starts, which are known.

    Args:
        models: their figures of the run.
        frames: the outcomes of all frames.
        program: what was executed; ``None``: not known, nor are starts.
        launches: in the order of submission; ``None``: likewise.
    """
    times = {}
    for model in models:
        if model.role != "background" and model.name in frames.models:
            of_model = frames.model == frames.models.index(model.name)
            done = of_model & (frames.finished_ns >= 0)
            start_ns = np.zeros(0, np.int64)
            if program is not None and launches is not None:
                start_ns = _start_ns(model, frames, of_model, program, launches)
            times[model.name] = FrameTimes(start_ns, (frames.finished_ns - frames.released_ns)[done])
    return times


def _start_ns(
    model: ModelMetrics, frames: FrameTable, of_model: npt.NDArray[np.bool_], program: Program, launches: Launches
) -> npt.NDArray[np.int64]:
    first = [n for n, segment in enumerate(program.programs) if (segment.model, segment.segment) == (model.name, 0)]
    begun = np.isin(launches.program, first)
    number, released = frames.frame[of_model], frames.released_ns[of_model]
    if not len(number):
        return np.zeros(0, np.int64)
    order = np.argsort(number, kind="stable")
    number, released = number[order], released[order]
    at = np.minimum(np.searchsorted(number, launches.frame[begun]), len(number) - 1)
    known = number[at] == launches.frame[begun]
    after = np.asarray((launches.submit_ns[begun] - released[at])[known], np.int64)
    if not len(after):
        return after
    return np.maximum(np.rint(after - np.median(after)).astype(np.int64) + model.release_to_start_ns.p50, 0)
