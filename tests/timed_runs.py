"""A timetable played through on given durations: the dispatcher's own code, no tensors.

Tests and benchmarks show with it what the dispatcher does with a plan (launches, faults, late releases) in virtual
time. It is no second playback of the service policy: plans are played by ``framefit.planning.playback``, which these
runs are compared with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from framefit import Timetable
from framefit.core.grid import Grid
from framefit.devices.device import ModelledDevice
from framefit.execution.execution import TimedExecution
from framefit.runtime.channel import FrameChannel, unit_mailboxes
from framefit.runtime.job import Job, model_jobs, reading_job
from framefit.runtime.loop import Dispatcher, Service, instants
from framefit.runtime.reading import FrameObserver, ReadModel, ResultDelivery, result_streams
from framefit.runtime.streams import Events, Feed
from framefit.runtime.units import MakeService, UnitGroup, assign_units, stage_ports

__all__ = ["timed_dispatcher", "timed_group"]


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
    events: dict[str, Iterable[int]] | None = None,
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
        events: sporadic model -> when its events come, after the first release.
    """
    whole = _jobs(timetable, device, queues or {}, every or {}, deadlines_ns or {}, frames or {}, events or {})
    jobs = [job for job, _ in whole]
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
    events: dict[str, Iterable[int]] | None = None,
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
        events: sporadic model -> when its events come, after the first release.
        streams: model -> those that bring its frames; default: every window does.
    """
    whole = _jobs(timetable, device, queues or {}, every or {}, deadlines_ns or {}, frames or {}, events or {})
    for model, (job, _) in zip(timetable.models, whole, strict=True):
        job.feed.streams = (streams or {}).get(model.name, frozenset())
    observers: dict[str, list[FrameObserver]] = {model.name: [] for model in timetable.models}
    used = {segment.unit for model in timetable.models for segment in model.segments}
    mailboxes = unit_mailboxes(device.clock, [unit for unit in timetable.units if unit in used])
    ports = dict(zip((model.name for model in timetable.models), stage_ports(timetable, mailboxes), strict=True))
    jobs: dict[str, list[Job]] = {}
    for model, (job, execution) in zip(timetable.models, whole, strict=True):
        read = [ReadModel(timetable.model(name)) for name in model.after]
        streams = result_streams(read, job.input.slots, job.frames)
        for source, (name, stream) in enumerate(zip(model.after, streams, strict=True)):
            delivery = ResultDelivery(device, ports[name][-1].unit, ports[model.name][0], stream, source)
            observers[name].append(delivery)
        observed = dataclasses.replace(job, observers=observers[model.name])
        if read:
            observed = reading_job(observed, [jobs[name][0] for name in model.after], read, streams)
        executions = execution.in_stages(model)
        jobs[model.name] = model_jobs(observed, model, executions, model.slots, device, ports[model.name])
    assignments = assign_units(timetable, list(jobs.values()), service)
    return UnitGroup(device, device.clock, assignments, grid, mailboxes=mailboxes)


def _jobs(
    timetable: Timetable,
    device: ModelledDevice,
    queues: dict[str, int],
    every: dict[str, int],
    deadlines_ns: dict[str, int],
    frames: dict[str, int],
    events: dict[str, Iterable[int]],
) -> list[tuple[Job, TimedExecution]]:
    """A job for each model, and what it launches."""
    jobs, first = [], 0
    for number, model in enumerate(timetable.models):
        labels = [f"{model.name}.{segment.index}" for segment in model.segments]
        bindings = [
            device.timed(label, segment.unit, segment.median_ns).bind({})
            for label, segment in zip(labels, model.segments, strict=True)
        ]
        priority = model.role != "background"
        usual = model.min_distance_ns or timetable.window_ns
        feed = Feed()
        execution = TimedExecution(device, labels, bindings)
        job = Job(
            execution=execution,
            first_program=first,
            priority=priority,
            estimates_ns=[segment.needed_ns(timetable.guard_ns) for segment in model.segments],
            deadline_ns=deadlines_ns.get(model.name, usual if priority else None),
            sources={},
            input=FrameChannel(queues.get(model.name, 1), frames=frames.get(model.name, 1)),
            every=every.get(model.name, 1),
            model=number,
            feed=feed,
            events=Events(feed, model.min_distance_ns, iter(events.get(model.name, ())))
            if model.role == "sporadic"
            else None,
        )
        jobs.append((job, execution))
        first += len(model.segments)
    return jobs
