"""From a run's log to its figures."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from framefit.core.frames import Fated, FrameTable
from framefit.core.results import Metrics, Miss, ModelMetrics, Percentiles, StreamMetrics
from framefit.core.timetable import PlannedModel, Timetable
from framefit.runtime.crew import Crew
from framefit.runtime.dispatcher import Dispatcher
from framefit.runtime.log import Fate, FrameLog, LaunchLog

__all__ = [
    "RunFigures",
    "fated",
    "figures",
    "frame_records",
    "miss_ratio_upper",
    "misses",
    "model_metrics",
    "priority_ns",
    "run_metrics",
    "stream_metrics",
    "unit_figures",
]

_FATES: dict[Fate, Fated] = {
    Fate.DONE: ("done", ""),
    Fate.LATE: ("late", "finished after its deadline"),
    Fate.QUEUE_FULL: ("dropped", "a newer frame took its place in the queue"),
    Fate.REFUSED: ("dropped", "the queue was full"),
    Fate.RUN_ENDED: ("dropped", "the run ended"),
    Fate.SKIPPED: ("skipped", "every"),
}

Cause = Literal["late wake-up", "overrun", "own duration", "backlog", "contention", "host stall", "stream", "run ended"]


@dataclass(frozen=True)
class RunFigures:
    """How the residual was used, and how good the estimates were."""

    residual_utilisation_ratio: float
    guard_loss_ratio: float
    packing_loss_ratio: float
    estimate_exceeded_ratio: float
    dispatch_ns: Percentiles


def fated(fate: Fate) -> Fated:
    """A fate in words, and its reason."""
    return _FATES[fate]


def miss_ratio_upper(missed: int, releases: int) -> float:
    """95 % upper bound on the miss ratio: 3/N for none, else Wilson's (1927) one-sided bound."""
    if releases == 0:
        return 1.0
    if missed == 0:
        return min(3 / releases, 1.0)
    z, ratio = 1.645, missed / releases
    centre = ratio + z * z / (2 * releases)
    spread = z * math.sqrt(ratio * (1 - ratio) / releases + z * z / (4 * releases**2))
    return min((centre + spread) / (1 + z * z / releases), 1.0)


def model_metrics(
    index: int,
    planned: PlannedModel,
    frames: FrameLog,
    *,
    windows: int,
    rate_hz: float,
    bounds_hz: tuple[float, float] | None,
    overhead_ratio: float,
) -> ModelMetrics:
    """One model's figures.

    Args:
        index: the model's number in the log.
        planned: its part in the plan.
        frames: fates of all frames.
        windows: begun in the run.
        rate_hz: windows a second.
        bounds_hz: fluid and packing bound; background models only.
        overhead_ratio: of its segmentation, as measured around the run.
    """
    rows = frames.rows()
    rows = rows[(rows[:, FrameLog.MODEL] == index) & (rows[:, FrameLog.FATE] != Fate.SKIPPED)]
    finished = rows[np.isin(rows[:, FrameLog.FATE], (Fate.DONE, Fate.LATE))]
    late = int((rows[:, FrameLog.FATE] == Fate.LATE).sum())
    unfinished = len(rows) - len(finished)
    missed = late + unfinished if planned.role == "priority" else late
    seconds = windows / rate_hz
    # Of frames that are consumed together, the newest one's times are the result's.
    newest = np.ones(len(finished), bool)
    newest[:-1] = np.diff(finished[:, FrameLog.FINISHED]) != 0
    results = finished[newest]
    age = results[:, FrameLog.FINISHED] - results[:, FrameLog.RELEASED]
    fluid, packing = bounds_hz or (None, None)
    return ModelMetrics(
        name=planned.name,
        role=planned.role,
        releases=len(rows),
        completed=len(finished),
        missed=missed,
        dropped=unfinished,
        throughput_hz=len(finished) / seconds if seconds else 0.0,
        fluid_bound_hz=fluid,
        packing_bound_hz=packing,
        release_to_start_ns=Percentiles.of(results[:, FrameLog.STARTED] - results[:, FrameLog.RELEASED]),
        release_to_finish_ns=Percentiles.of(age),
        miss_ratio_upper=miss_ratio_upper(missed, len(rows)),
        # Releases are rounded to whole nanoseconds: a window may be one longer than 1 / rate.
        result_age_windows_max=int(np.ceil((age.max() - 1) * rate_hz / 1e9)) if len(age) else 0,
        segmentation_overhead_ratio=overhead_ratio,
        max_relative_difference=planned.max_relative_difference,
    )


def unit_figures(timetable: Timetable, launches: LaunchLog, *, windows: int, rate_hz: float) -> dict[str, RunFigures]:
    """Use of each unit's residual, and how good the estimates of its launches were; see :func:`figures`."""
    return {unit: figures(timetable, launches, windows=windows, rate_hz=rate_hz, unit=unit) for unit in timetable.units}


def figures(
    timetable: Timetable, launches: LaunchLog, *, windows: int, rate_hz: float, unit: str | None = None
) -> RunFigures:
    """Use of the residual over the whole run, of all units or of one.

    The residual offered is what the windows had left beside the priority models. Of what
    was not used, the guard lost its length in every window; the rest went to packing: no
    segment that was due would have fitted. Where launches are interrupted, their time on
    the processor counts.
    """
    rows = launches.finished()
    models = timetable.models
    program_unit = _program_units(timetable)
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
    guard = min(timetable.guard_ns * units * windows / offered, left) if offered > 0 else 0.0
    followed = rows[:, LaunchLog.FOLLOWED] == 1
    return RunFigures(
        residual_utilisation_ratio=utilisation,
        guard_loss_ratio=guard,
        packing_loss_ratio=left - guard,
        estimate_exceeded_ratio=float((duration > quantiles[program]).mean()),
        dispatch_ns=Percentiles.of((rows[:, LaunchLog.STARTED] - rows[:, LaunchLog.READY])[followed]),
    )


def _program_units(timetable: Timetable) -> npt.NDArray[np.str_]:
    """The unit of each program."""
    return np.asarray([segment.unit for model in timetable.models for segment in model.segments], np.str_)


def priority_ns(timetable: Timetable, run: Dispatcher | Crew) -> float:
    """Time of a window that went to priority models: medians of their launches, by how often they ran."""
    rows = run.launches.finished()
    lasted = rows[:, LaunchLog.FINISHED] - rows[:, LaunchLog.STARTED]
    total, program = 0.0, 0
    for model in timetable.models:
        for _ in model.segments:
            mine = lasted[rows[:, LaunchLog.PROGRAM] == program]
            if model.role == "priority" and len(mine):
                total += float(np.median(mine)) * len(mine)
            program += 1
    return total / max(run.windows, 1)


def run_metrics(
    timetable: Timetable,
    run: Dispatcher | Crew,
    *,
    rate_hz: float,
    segment_ns: Sequence[int],
    whole_ns: Sequence[int],
    floor_ns: npt.NDArray[np.int64],
    bounds_hz: Mapping[str, tuple[float, float]],
    memory_bytes: int,
    streams: Sequence[StreamMetrics],
) -> Metrics:
    """All figures of a run.

    Args:
        timetable: the plan.
        run: the dispatcher, or the crew, afterwards.
        rate_hz: windows a second.
        segment_ns: medians of all segments in the plan's order, measured around the run.
        whole_ns: medians of the uncut models, measured in turn with them.
        floor_ns: how late the idle machine woke up.
        bounds_hz: background model -> fluid and packing bound, in frames a second.
        memory_bytes: of all tensors.
        streams: their figures.
    """
    models, first = [], 0
    for index, (model, whole) in enumerate(zip(timetable.models, whole_ns, strict=True)):
        cut = sum(segment_ns[first : first + len(model.segments)])
        first += len(model.segments)
        models.append(
            model_metrics(
                index,
                model,
                run.frames,
                windows=run.windows,
                rate_hz=rate_hz,
                bounds_hz=bounds_hz.get(model.name),
                overhead_ratio=cut / max(whole, 1) - 1 if len(model.segments) > 1 else 0.0,
            )
        )
    use = figures(timetable, run.launches, windows=run.windows, rate_hz=rate_hz)
    floor = Percentiles.of(floor_ns)
    return Metrics(
        windows=run.windows,
        models=tuple(models),
        residual_utilisation_ratio=use.residual_utilisation_ratio,
        guard_loss_ratio=use.guard_loss_ratio,
        packing_loss_ratio=use.packing_loss_ratio,
        floor_release_to_start_ns=floor,
        estimate_exceeded_ratio=use.estimate_exceeded_ratio,
        dispatch_ns=use.dispatch_ns,
        peak_memory_bytes=memory_bytes,
        rung_switches=0,
        streams=tuple(streams),
        misses=tuple(misses(timetable, run.launches, run.frames, floor_p99_ns=floor.p99, stalled=run.stalled)),
    )


def stream_metrics(
    frames: FrameTable, readers: Mapping[str, Collection[str]], received: Mapping[str, tuple[int, int]]
) -> list[StreamMetrics]:
    """Figures of each stream.

    Args:
        frames: the fate of every frame.
        readers: model -> streams that it reads.
        received: stream -> frames that came, and windows in which it waited.
    """
    dropped = np.asarray([fate == "dropped" for fate, _ in frames.fates], bool)[frames.fate]
    model, frame = frames.model[dropped], frames.frame[dropped]
    found = []
    for name, (came, waited) in received.items():
        reads = np.asarray([name in readers[model] for model in frames.models], bool)
        count = len(np.unique(frame[reads[model]]))
        found.append(StreamMetrics(name=name, received=came, dropped=count, waited_windows=waited))
    return found


def frame_records(frames: FrameLog, models: Sequence[str], streams: Mapping[str, str], start_ns: int) -> FrameTable:
    """The fate of every frame, in order of release; times relative to the first release.

    Args:
        frames: the log.
        models: names by number.
        streams: model -> name of the stream that its frames are counted by; "-" for others.
        start_ns: first release on the run's clock.
    """
    rows = frames.rows()
    released, finished = rows[:, FrameLog.RELEASED], rows[:, FrameLog.FINISHED]
    order = np.lexsort((rows[:, FrameLog.MODEL], rows[:, FrameLog.FRAME], released))
    return FrameTable(
        models=tuple(models),
        streams=tuple(streams.get(model, "-") for model in models),
        fates=tuple(_FATES[fate] for fate in Fate),
        model=rows[order, FrameLog.MODEL],
        frame=rows[order, FrameLog.FRAME],
        fate=rows[order, FrameLog.FATE],
        released_ns=released[order] - start_ns,
        finished_ns=np.where(finished >= 0, finished - start_ns, -1)[order],
    )


_Rows = npt.NDArray[np.int64]


def _by_unit(timetable: Timetable, launches: _Rows) -> dict[str, tuple[_Rows, _Rows, _Rows]]:
    """What each unit launched: rows, when they started, and when all up to each had ended.

    In one piece each: else every search of them would copy them.
    """
    program_unit, found = _program_units(timetable), {}
    for unit in set(program_unit.tolist()):
        own = launches[program_unit[launches[:, LaunchLog.PROGRAM]] == unit]
        starts = np.ascontiguousarray(own[:, LaunchLog.STARTED])
        found[unit] = own, starts, np.maximum.accumulate(own[:, LaunchLog.FINISHED])
    return found


def misses(
    timetable: Timetable,
    launches: LaunchLog,
    frames: FrameLog,
    *,
    floor_p99_ns: int,
    stalled: Mapping[int, int] | None = None,
) -> list[Miss]:
    """Every miss of a priority model, explained by what cost it most.

    A late start is blamed on the background launch that ran over the instant (overrun),
    on earlier priority frames (backlog), or on nothing that ran (late wake-up). A long
    run is blamed on other threads where the processor was given to them (contention),
    else on the model's own duration. Where the host kept the machine from running in that
    window, that is the cause: its clock went on.

    Args:
        timetable: what was planned.
        launches: all launches of the run.
        frames: all frames of the run.
        floor_p99_ns: how late the idle machine wakes up.
        stalled: window -> time that the host took, where it is known.
    """
    rows, launched = frames.rows(), launches.finished()
    owner = np.repeat(np.arange(len(timetable.models)), [len(model.segments) for model in timetable.models])
    labels = [f"{model.name}[{segment.index}]" for model in timetable.models for segment in model.segments]
    quantiles = [segment.duration_ns for model in timetable.models for segment in model.segments]
    # Of several stages the first one's begin.
    periods = [{period.model: period.start_ns for period in reversed(w.priority)} for w in timetable.windows]
    roles = np.asarray([model.role == "background" for model in timetable.models], bool)
    blocking = launched
    if timetable.preemptive and len(launched):  # background launches are interrupted: nobody waits for them
        blocking = launched[~roles[owner[launched[:, LaunchLog.PROGRAM]]]]
    in_time = np.isin(rows[:, FrameLog.FATE], (Fate.DONE, Fate.SKIPPED))
    missed = rows[~in_time & ~roles[rows[:, FrameLog.MODEL]]].tolist()  # the only frames that are looked at one by one
    if not missed:
        return []
    # Frames that were consumed together count from the newest one's release.
    together = {(row[FrameLog.MODEL], row[FrameLog.FINISHED]): row[FrameLog.RELEASED] for row in missed}
    by_unit = _by_unit(timetable, blocking)
    found = []
    for model, _, fate, _, started, finished, window in missed:
        planned = timetable.models[model]
        cause: Cause
        if fate == Fate.RUN_ENDED:
            cause, detail = "run ended", "unfinished at the end of the run"
        elif fate in (Fate.QUEUE_FULL, Fate.REFUSED):
            cause, detail = "backlog", "earlier frames took longer than their windows"
        else:
            blocking, starts, ends = by_unit[planned.segments[0].unit]
            begins = periods[window % len(periods)].get(planned.name, 0) if periods else 0
            due = together[model, finished] + begins
            lateness, took = started - due, finished - started
            before = blocking[np.searchsorted(starts, due) : np.searchsorted(ends, started, "right")]
            waited = int((before[:, LaunchLog.FINISHED] - before[:, LaunchLog.STARTED]).sum())
            excess = took - planned.duration_ns
            first = int(np.searchsorted(ends, due, "right"))
            running = blocking[first] if first < len(blocking) and starts[first] < due else None
            own = blocking[np.searchsorted(starts, started) : np.searchsorted(ends, finished, "right")]
            if lateness > max(excess, 0) and (excess <= 0 or lateness > max(10 * floor_p99_ns, 200_000)):
                blocked = 0 if running is None else int(running[LaunchLog.FINISHED]) - due
                background = (
                    running is not None and timetable.models[owner[running[LaunchLog.PROGRAM]]].role == "background"
                )
                if 2 * (blocked + waited) <= lateness:
                    idle = not (blocked or waited or timetable.preemptive)
                    cause = "late wake-up"
                    detail = f"started {lateness / 1e6:.2f} ms late" + (", nothing ran before" if idle else "")
                elif running is not None and background and blocked >= waited:
                    program = int(running[LaunchLog.PROGRAM])
                    ran = int(running[LaunchLog.FINISHED] - running[LaunchLog.STARTED])
                    off = ran - int(running[LaunchLog.CPU]) if running[LaunchLog.CPU] >= 0 else 0
                    cause = "contention" if 2 * off > ran - quantiles[program] > 0 else "overrun"
                    detail = (
                        f"{labels[program]} took {ran / 1e6:.2f} ms, planned {quantiles[program] / 1e6:.2f} ms, "
                        f"and ended {(int(running[LaunchLog.FINISHED]) - due) / 1e6:.2f} ms after the instant"
                    )
                else:
                    cause, detail = "backlog", f"it waited {lateness / 1e6:.2f} ms for an earlier priority frame"
            else:
                read = own[own[:, LaunchLog.CPU] >= 0]
                off = int((read[:, LaunchLog.FINISHED] - read[:, LaunchLog.STARTED] - read[:, LaunchLog.CPU]).sum())
                cause = "contention" if 2 * off > excess > 0 else "own duration"
                detail = f"took {took / 1e6:.2f} ms, planned {planned.duration_ns / 1e6:.2f} ms"
                if cause == "contention":
                    detail += f"; other threads had the core for {off / 1e6:.2f} ms"
            taken = (stalled or {}).get(window, 0)
            if 2 * taken > max(lateness, excess) > 0 and cause != "backlog":
                cause, detail = "host stall", f"the host stopped this machine for {taken / 1e6:.0f} ms; {detail}"
        found.append(Miss(window=window, model=planned.name, cause=cause, detail=detail))
    return found
