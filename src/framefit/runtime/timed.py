"""A timetable played through on given durations: the dispatcher's own code, no tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from framefit.core.model import TensorInfo
from framefit.core.timetable import Timetable
from framefit.devices.device import Array, Binding, Completion, Device, Tensors
from framefit.devices.npu import NpuDevice
from framefit.runtime.crew import Crew, Duty
from framefit.runtime.dispatcher import Dispatcher, Service, instants
from framefit.runtime.job import Job
from framefit.runtime.relay import stage_jobs
from framefit.runtime.streams import Queue

__all__ = ["TimedExecution", "timed_crew", "timed_dispatcher"]


class TimedExecution:
    """Launches that take their time and nothing else: no frames, no outputs.

    Args:
        device: what the bindings are for.
        labels: of the segments.
        bindings: one a segment.
    """

    frame_inputs: tuple[TensorInfo, ...] = ()

    def __init__(self, device: Device, labels: Sequence[str], bindings: Sequence[Binding]) -> None:
        self.labels = tuple(labels)
        self._device = device
        self._bindings = tuple(bindings)
        self._steps = tuple(functools.partial(device.submit, binding) for binding in bindings)

    def part(self, first: int, end: int) -> TimedExecution:
        """Of the segments from ``first`` up to, and without, ``end``."""
        return TimedExecution(self._device, self.labels[first:end], self._bindings[first:end])

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Nothing to take."""

    def step(self, index: int) -> Callable[[], Completion]:
        """Lets the segment's time pass."""
        return self._steps[index]

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:  # noqa: ARG002 - the protocol's form
        """Nothing."""
        return {}

    def finish(self) -> None:
        """Nothing to hand on."""


def timed_dispatcher(
    timetable: Timetable,
    device: NpuDevice,
    rate_hz: float,
    service: Service,
    *,
    queues: dict[str, int] | None = None,
    every: dict[str, int] | None = None,
    deadlines_ns: dict[str, int] | None = None,
) -> Dispatcher:
    """A dispatcher that runs a timetable's models on a device of given durations: the medians, as it varies them.

    Args:
        timetable: of one unit, feasible or not: what it says is tried.
        device: its units are those of the timetable.
        rate_hz: windows a second.
        service: policy among background models.
        queues: model -> frames that may wait; default: 1.
        every: model -> windows between its frames; default: 1.
        deadlines_ns: model -> deadline; default: the window for priority models.
    """
    jobs = [job for job, _ in _jobs(timetable, device, queues or {}, every or {}, deadlines_ns or {})]
    numbers = {model.name: index for index, model in enumerate(timetable.models)}
    return Dispatcher(
        device,
        device.clock,
        jobs,
        rate_hz,
        timetable.guard_ns,
        service=service,
        reserved=instants(timetable, numbers),
    )


def timed_crew(
    timetable: Timetable,
    device: NpuDevice,
    rate_hz: float,
    service: Callable[[int], Service],
    *,
    queues: dict[str, int] | None = None,
    every: dict[str, int] | None = None,
    deadlines_ns: dict[str, int] | None = None,
) -> Crew:
    """The same on all units of a timetable; a model's segments that follow one another on a unit are a stage.

    Args:
        timetable: its models say how many of their frames may be in flight (``slots``).
        device: its links say when a unit can use what another has written.
        rate_hz: windows a second.
        service: makes the policy among so many background jobs of a unit.
        queues: model -> frames that may wait; default: 1.
        every: model -> windows between its frames; default: 1.
        deadlines_ns: model -> deadline; default: the window for priority models.
    """
    by_unit: dict[str, list[Job]] = {unit: [] for unit in timetable.units}
    numbers: dict[str, dict[str, list[int]]] = {unit: {} for unit in timetable.units}
    whole = _jobs(timetable, device, queues or {}, every or {}, deadlines_ns or {})
    for model, (job, execution) in zip(timetable.models, whole, strict=True):
        first = 0
        stages = []
        for run in model.stages:
            stages.append(execution.part(first, first + len(run)))
            first += len(run)
        sizes = [run[-1].boundary_bytes for run in model.stages]
        for run, stage in zip(model.stages, stage_jobs(job, stages, model.slots, sizes), strict=True):
            numbers[run[0].unit].setdefault(model.name, []).append(len(by_unit[run[0].unit]))
            by_unit[run[0].unit].append(stage)
    duties = {
        unit: Duty(
            jobs=jobs,
            service=service(sum(not job.priority for job in jobs)),
            reserved=instants(timetable, numbers[unit], unit),
            guard_ns=timetable.guard_ns,
        )
        for unit, jobs in by_unit.items()
    }
    return Crew(device, device.clock, duties, rate_hz)


def _jobs(
    timetable: Timetable,
    device: NpuDevice,
    queues: dict[str, int],
    every: dict[str, int],
    deadlines_ns: dict[str, int],
) -> list[tuple[Job, TimedExecution]]:
    """A job for each model, and what it launches."""
    jobs, first = [], 0
    for number, model in enumerate(timetable.models):
        labels = [f"{model.name}.{segment.index}" for segment in model.segments]
        bindings = [
            device.timed(label, segment.unit, segment.median_ns).bind({})
            for label, segment in zip(labels, model.segments, strict=True)
        ]
        priority = model.role == "priority"
        execution = TimedExecution(device, labels, bindings)
        job = Job(
            execution=execution,
            first_program=first,
            priority=priority,
            estimates_ns=[segment.duration_ns for segment in model.segments],
            deadline_ns=deadlines_ns.get(model.name, timetable.window_ns if priority else None),
            sources={},
            queue=Queue(queues.get(model.name, 1)),
            every=every.get(model.name, 1),
            model=number,
        )
        jobs.append((job, execution))
        first += len(model.segments)
    return jobs
