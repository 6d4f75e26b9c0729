"""What background models could have reached at most in a run: its residual as a fluid, and packed without a guard."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from framefit.core.target import Target, Unit, Variation
from framefit.core.timetable import PlannedModel, Timetable
from framefit.devices.clock import VirtualClock
from framefit.devices.npu import NpuDevice
from framefit.runtime.beat.crew import Crew
from framefit.runtime.beat.timed import timed_crew
from framefit.runtime.figures.metrics import priority_ns
from framefit.runtime.records.log import Fate, FrameLog
from framefit.scheduling.bounds import Work, fair_rates, fluid_bounds_hz, packing_bounds_hz
from framefit.scheduling.service import Rotation
from framefit.workflows.plan import Plan
from framefit.workflows.planning.task import PlannedTask

__all__ = ["bounds_hz"]

_PACKED_WINDOWS = 1000  # of several units, played through


def bounds_hz(
    planned: Plan, run: Crew, segment_ns: Sequence[int], whole_ns: Sequence[int]
) -> dict[str, tuple[float, float]]:
    """Background model -> fluid and packing bound, in frames a second.

    On one unit and equal windows as :mod:`framefit.scheduling.bounds` has them. Else each unit's residual is a fluid
    of its own, and the models are packed by the dispatchers themselves, on exact medians and without a guard.

    Args:
        planned: what was run.
        run: afterwards: what priority models took.
        segment_ns: medians of all segments, in the plan's order.
        whole_ns: of the uncut models.
    """
    timetable = planned.timetable
    if len(timetable.units) > 1 or len(planned.workload.grid.offsets_ns) > 1:
        return _of_units(planned, run, segment_ns)
    work, first = {}, 0
    for task, model, whole in zip(planned.tasks, timetable.models, whole_ns, strict=True):
        end = first + len(model.segments)
        if not task.priority:
            work[task.name] = _work(planned, task, whole, segment_ns[first:end])
        first = end
    reserved_ns = priority_ns(planned.launched, run)
    fluid = fluid_bounds_hz(timetable.window_ns, reserved_ns, list(work.values()))
    packing = fluid  # where nothing has to be packed
    if not timetable.preemptive:
        packing = packing_bounds_hz(timetable.window_ns, round(reserved_ns), list(work.values()))
    return dict(zip(work, zip(fluid, packing, strict=True), strict=True))


def _work(planned: Plan, task: PlannedTask, whole_ns: float, segments_ns: Sequence[int]) -> Work:
    entry, timetable = task.wired.entry, planned.timetable
    return Work(
        whole_ns,
        segments_ns,
        every=_releases(planned, task),
        frames=entry.frames,
        queue=task.wired.depth,
        share=timetable.launches_of(task.name),
    )


def _releases(planned: Plan, task: PlannedTask) -> int:
    """Frames of its stream between the frames of a model; of one that reads others, of theirs."""
    every = task.wired.entry.every
    for read in _read_by(planned, task):
        every *= _releases(planned, read) * read.wired.entry.frames
    return every


def _root(planned: Plan, task: PlannedTask) -> PlannedTask:
    """The model whose stream a model's frames come from in the end."""
    for read in _read_by(planned, task):
        return _root(planned, read)
    return task


def _read_by(planned: Plan, task: PlannedTask) -> list[PlannedTask]:
    return [one for one in planned.tasks if one.name in task.wired.after[:1]]


def _of_units(planned: Plan, run: Crew, segment_ns: Sequence[int]) -> dict[str, tuple[float, float]]:
    timetable = planned.timetable
    exact = _exact(timetable, segment_ns)
    background = [
        (task, model) for task, model in zip(planned.tasks, exact.models, strict=True) if model.role == "background"
    ]
    if not background:
        return {}
    grid = planned.workload.grid
    left = [1e9 / grid.windows_hz - priority_ns(planned.launched, run, unit) for unit in timetable.units]
    work = [
        [sum(s.median_ns for s in model.segments if s.unit == unit) for unit in timetable.units]
        for _, model in background
    ]
    arriving = [
        len(grid.places(min(_root(planned, task).wired.in_step, default="")))
        / (len(grid.offsets_ns) * _releases(planned, task) * task.wired.entry.frames)
        for task, _ in background
    ]
    shares = [max(timetable.launches_of(task.name), 1) for task, _ in background]
    rates = fair_rates(
        np.asarray(left, np.float64),
        np.asarray(work, np.float64),
        np.asarray(arriving, np.float64),
        np.asarray(shares, np.float64),
    )
    fluid = {
        task.name: float(rate) * task.wired.entry.frames * grid.windows_hz
        for (task, _), rate in zip(background, rates, strict=True)
    }
    packed = fluid  # where nothing has to be packed
    if not timetable.preemptive:
        packed = {name: rate * grid.windows_hz for name, rate in _packed(planned, exact).items()}
    return {name: (fluid[name], packed[name]) for name in fluid}


def _exact(timetable: Timetable, segment_ns: Sequence[int]) -> Timetable:
    """With these medians for quantiles, and no guard."""
    models: list[PlannedModel] = []
    first = 0
    for model in timetable.models:
        medians = segment_ns[first : first + len(model.segments)]
        first += len(model.segments)
        segments = tuple(
            msgspec.structs.replace(segment, median_ns=int(median), duration_ns=int(median))
            for segment, median in zip(model.segments, medians, strict=True)
        )
        models.append(msgspec.structs.replace(model, segments=segments))
    return msgspec.structs.replace(timetable, models=tuple(models), guard_ns=0)


def _packed(planned: Plan, exact: Timetable) -> dict[str, float]:
    """Model -> frames a window when the dispatchers play it through."""
    units = tuple(Unit(name=unit, preemptive=False, core=core) for core, unit in enumerate(exact.units))
    links = tuple(link for link in exact.links if set(link.between) <= set(exact.units))
    target = Target(name="exact", kind="npu", units=units, links=links, variation=Variation())
    entries = {task.name: task for task in planned.tasks}
    crew = timed_crew(
        exact,
        NpuDevice(target, VirtualClock(), keep_events=1),
        planned.workload.grid,
        Rotation,
        queues={name: task.wired.depth for name, task in entries.items()},
        every={name: task.wired.entry.every for name, task in entries.items()},
        frames={name: task.wired.entry.frames for name, task in entries.items()},
        streams={name: task.wired.in_step for name, task in entries.items()},
    )
    crew.run(_PACKED_WINDOWS)
    rows = crew.frames.rows()
    done = rows[np.isin(rows[:, FrameLog.FATE], (Fate.DONE, Fate.LATE)), FrameLog.MODEL]
    counts = np.bincount(done, minlength=len(exact.models))
    return {model.name: float(count) / _PACKED_WINDOWS for model, count in zip(exact.models, counts, strict=True)}
