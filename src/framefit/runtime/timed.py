"""A timetable played through on given durations: the dispatcher's own code, no tensors.

Tests and benchmarks show with it what the dispatcher does with a plan (launches, faults, late releases) in virtual
time. It is no second playback of the service policy: plans are played by ``framefit.planning.playback``, which these
runs are compared with.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from framefit.core.grid import Grid
from framefit.core.model import TensorInfo
from framefit.core.timetable import PlannedModel, Timetable
from framefit.devices.device import Array, Binding, Device, ModelledDevice, Tensors
from framefit.execution.execution import Launchable
from framefit.runtime.channel import FrameChannel
from framefit.runtime.job import Job, ReadModel, connect_reader, model_jobs
from framefit.runtime.loop import Dispatcher, Service, instants
from framefit.runtime.units import MakeService, UnitGroup, assign_units


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
        self.steps = tuple(functools.partial(device.submit, binding) for binding in bindings)

    def part(self, first: int, end: int) -> TimedExecution:
        """Of the segments from ``first`` up to, and without, ``end``."""
        return TimedExecution(self._device, self.labels[first:end], self._bindings[first:end])

    def in_stages(self, model: PlannedModel) -> list[TimedExecution]:
        """What each unit has of it."""
        ends = list(itertools.accumulate(len(stage) for stage in model.stages))
        return [self.part(first, end) for first, end in itertools.pairwise([0, *ends])]

    def elsewhere(self, labels: Sequence[str], bindings: Sequence[Binding]) -> TimedExecution:
        """The same by way of the same device, for another unit's bindings."""
        return TimedExecution(self._device, labels, bindings)

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Nothing to take."""

    def output(self, name: str) -> Array:  # noqa: ARG002 - the protocol's form
        """Nothing."""
        return np.zeros(0)

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:  # noqa: ARG002 - the protocol's form
        """Nothing."""
        return {}

    def finish(self) -> bool:
        """Nothing to hand on."""
        return True

    def abandon(self) -> None:
        """Nothing to keep."""

    def skip(self) -> None:
        """Nor then."""

    def follow(self, cut: Launchable) -> None:
        """Nothing to take over."""


def timed_dispatcher(
    timetable: Timetable,
    device: ModelledDevice,
    grid: Grid,
    service: Service,
    *,
    queues: dict[str, int] | None = None,
    every: dict[str, int] | None = None,
    deadlines_ns: dict[str, int] | None = None,
    frames: dict[str, int] | None = None,
) -> Dispatcher:
    """A dispatcher that runs a timetable's models on a device of given durations: the medians, as it varies them.

    Args:
        timetable: of one unit, feasible or not: what it says is tried.
        device: its units are those of the timetable.
        grid: when windows begin, and what they bring.
        service: policy among background models.
        queues: model -> frames that may wait; default: 1.
        every: model -> windows between its frames; default: 1.
        deadlines_ns: model -> deadline; default: the window for priority models.
        frames: model -> frames that it takes at once; default: 1.
    """
    jobs = [job for job, _ in _jobs(timetable, device, queues or {}, every or {}, deadlines_ns or {}, frames or {})]
    numbers = {model.name: index for index, model in enumerate(timetable.models)}
    return Dispatcher(
        device,
        device.clock,
        jobs,
        grid,
        timetable.guard_ns,
        service=service,
        reserved=instants(timetable, numbers),
    )


def timed_group(
    timetable: Timetable,
    device: ModelledDevice,
    grid: Grid,
    service: MakeService,
    *,
    queues: dict[str, int] | None = None,
    every: dict[str, int] | None = None,
    deadlines_ns: dict[str, int] | None = None,
    frames: dict[str, int] | None = None,
    streams: dict[str, frozenset[str]] | None = None,
) -> UnitGroup:
    """The same on all units of a timetable; a model's segments that follow one another on a unit are a stage.

    Args:
        timetable: its models say how many of their frames may be in flight (``slots``).
        device: its links say when a unit can use what another has written.
        grid: when windows begin, and what they bring.
        service: makes the policy among so many background jobs of a unit, given their turns.
        queues: model -> frames that may wait; default: 1.
        every: model -> windows between its frames; default: 1.
        deadlines_ns: model -> deadline; default: the window for priority models.
        frames: model -> frames that it takes at once; default: 1.
        streams: model -> those that bring its frames; default: every window does.
    """
    whole = _jobs(timetable, device, queues or {}, every or {}, deadlines_ns or {}, frames or {})
    for model, (job, _) in zip(timetable.models, whole, strict=True):
        job.feed.streams = (streams or {}).get(model.name, frozenset())
    jobs = {
        model.name: model_jobs(job, model, execution.in_stages(model), model.slots)
        for model, (job, execution) in zip(timetable.models, whole, strict=True)
    }
    for model in timetable.models:
        if model.after:
            connect_reader(jobs[model.name][0], [ReadModel(jobs[name], timetable.model(name)) for name in model.after])
    return UnitGroup(device, device.clock, assign_units(timetable, list(jobs.values()), service), grid)


def _jobs(
    timetable: Timetable,
    device: ModelledDevice,
    queues: dict[str, int],
    every: dict[str, int],
    deadlines_ns: dict[str, int],
    frames: dict[str, int],
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
            input=FrameChannel(queues.get(model.name, 1), frames=frames.get(model.name, 1)),
            every=every.get(model.name, 1),
            model=number,
        )
        jobs.append((job, execution))
        first += len(model.segments)
    return jobs
