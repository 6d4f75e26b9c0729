"""What goes from stage to stage and from model to model: who tells whom, and when it can be used there."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from framefit.devices.device import Device
from framefit.runtime.beat.dispatcher import Dispatcher
from framefit.runtime.beat.relay import Desk, Handed, StageJob
from framefit.runtime.frames.streams import Arrival
from framefit.runtime.models.job import Job

__all__ = ["connect"]


class _Place(NamedTuple):
    """A job where it runs."""

    unit: str
    dispatcher: Dispatcher
    number: int
    job: Job


def connect(device: Device, dispatchers: Mapping[str, Dispatcher], jobs: Mapping[str, Sequence[Job]]) -> None:
    """Have stages and models hand their frames on.

    Each stage hands a frame to the next one, the last one tells the first when a slot is free. A model hands
    its results to those that read it. What goes to another unit is copied there at once, while that does something
    else; it can be used when it has arrived.

    Args:
        device: knows what the way to another unit takes.
        dispatchers: by unit.
        jobs: of each unit, as its dispatcher numbers them.
    """
    places = [
        _Place(unit, dispatchers[unit], index, job) for unit, own in jobs.items() for index, job in enumerate(own)
    ]
    stages: defaultdict[int, list[_Place]] = defaultdict(list)
    for place in places:
        relay = place.job.relay if isinstance(place.job, StageJob) else place.job
        stages[id(relay)].append(place)
    models: dict[int, list[_Place]] = {}
    for found in stages.values():
        found.sort(key=lambda place: place.job.position if isinstance(place.job, StageJob) else 0)
        if found[0].job.model is not None:
            models[found[0].job.model] = found
        for one, other in itertools.pairwise(found):
            one.job.onward = _onward(device, one, other)
        if len(found) > 1:
            found[-1].job.freed = free = _freed(found[-1], found[0])
            _let_by(found, free)
    for place in places:
        if place.job.reading is not None:
            for source, model in enumerate(place.job.reading.models):
                models[model][0].job.readers.append(place.job)
                models[model][-1].job.told.append(_give(device, models[model][-1], place, source))


def _onward(device: Device, one: _Place, other: _Place) -> Callable[[int], None]:
    """A stage's frame for the next one."""
    job, desk, arrival_ns = one.job, other.dispatcher.desk, device.arrival_ns
    assert isinstance(job, StageJob)
    sender, receiver, size, index = one.unit, other.unit, job.onward_bytes, other.number

    def hand_over(written_ns: int) -> None:
        ready_ns = arrival_ns(sender, receiver, size, written_ns)  # a copy begins now, not when the stage starts
        job.passed += 1
        job.sent_ns = ready_ns
        desk.put(Handed(ready_ns, index, job.passed, job.in_flight, job.started_ns))

    return hand_over


def _freed(last: _Place, first: _Place) -> Callable[[int], None]:
    """The news that a slot is free again."""
    assert isinstance(last.job, StageJob)
    relay, desk, index = last.job.relay, first.dispatcher.desk, first.number

    def free(finished_ns: int) -> None:
        relay.complete()
        desk.put(Handed(finished_ns, index, relay.completed))

    return free


def _let_by(stages: Sequence[_Place], free: Callable[[int], None]) -> None:
    """A frame that was given up goes by the later stages, behind those before it, and then its slot is free."""

    def next_to(job: StageJob, desk: Desk, index: int) -> Callable[[int], None]:
        def let_by(now_ns: int) -> None:
            job.passed += 1
            job.sent_ns = max(job.sent_ns, now_ns)
            desk.put(Handed(job.sent_ns, index, job.passed, lost=True))

        return let_by

    for one, other in itertools.pairwise(stages):
        assert isinstance(one.job, StageJob)
        one.job.let_by = next_to(one.job, other.dispatcher.desk, other.number)
    last = stages[-1].job
    assert isinstance(last, StageJob)
    last.let_by = free


def _give(device: Device, giver: _Place, reader: _Place, source: int) -> Callable[[Sequence[Arrival], int, int], None]:
    """A model's result for another one."""
    reading = reader.job.reading
    assert reading is not None
    supply, given, desk = reading.supplies[source], reading.given, reader.dispatcher.desk
    sender, receiver, index = giver.unit, reader.unit, reader.number

    def give(arrivals: Sequence[Arrival], started_ns: int, finished_ns: int) -> None:  # noqa: ARG001 - a job's form
        newest = arrivals[-1]
        if not supply.keep(newest.frame):
            return  # nobody has read the last ones
        ready_ns = finished_ns
        if sender != receiver:
            ready_ns = device.arrival_ns(sender, receiver, supply.frame_bytes, finished_ns)
        given[source] += 1
        desk.put(Handed(ready_ns, index, given[source], (newest,), source=source))

    return give
