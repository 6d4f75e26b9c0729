"""A model on several units: its stages, and the frames that go from one to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from framefit.runtime.job import Job, Launchable
from framefit.runtime.streams import Arrival, Queue

__all__ = ["Bell", "Desk", "Handed", "Relay", "StageJob", "stage_jobs"]


class Bell(Protocol):
    """Wakes a unit that waits."""

    def ring(self, time_ns: int) -> None:
        """Have it look at its desk at ``time_ns`` at the latest."""

    def wait_until_ns(self, time_ns: int, get_ready: Callable[[], None] | None) -> None:
        """Wait until then, or until somebody rings; just before the end ``get_ready``, if there is time for it."""


class Handed(NamedTuple):
    """What one unit hands another: a frame for one of its jobs, or the news that a slot is free."""

    ready_ns: int
    job: int  # its number there
    ordinal: int  # of the model's frames
    arrivals: Sequence[Arrival] = ()
    started_ns: int = -1  # the model's first launch for it


class Desk:
    """Where a unit finds what others have handed it."""

    def __init__(self) -> None:
        self.handed: deque[Handed] = deque()
        self.bell: Bell | None = None

    @property
    def parts(self) -> tuple[deque[Handed], Bell | None]:
        """What has been handed over, and the bell."""
        return self.handed, self.bell

    def put(self, handed: Handed) -> None:
        """Hand something over; any thread may."""
        self.handed.append(handed)
        if self.bell is not None:
            self.bell.ring(handed.ready_ns)


@dataclass
class Relay:
    """The frames of one model on their way through its stages, in order.

    Each count is written by one unit only.

    Attributes:
        slots: frames that may be in flight: so often exist the tensors between stages.
        started: frames that the first stage has taken.
        completed: frames that the last stage is done with.
        most: frames that were in flight at most.
    """

    slots: int
    started: int = 0
    completed: int = 0
    most: int = 0

    @property
    def in_flight(self) -> int:
        """Frames between the begin of the first stage and the end of the last."""
        return self.started - self.completed


@dataclass
class StageJob(Job):
    """A stage of a model: its segments on one unit, one frame at a time.

    The first stage takes frames that arrive, as long as a slot is free; a later one those that the
    stage before hands on. The last one completes them.

    Attributes:
        relay: what all stages of the model share.
        position: 0 is the first stage.
        handed_on: frames that the stage before is done with, and since when the model works on them.
        taken: how many of them this stage has taken.
        passed: frames that this stage has handed on.
        onward_bytes: what the next stage needs of each.
    """

    relay: Relay = field(kw_only=True)
    position: int = field(kw_only=True)
    handed_on: deque[tuple[list[Arrival], int]] = field(default_factory=deque, kw_only=True)
    taken: int = field(default=0, kw_only=True)
    passed: int = field(default=0, kw_only=True)
    onward_bytes: int = field(default=0, kw_only=True)

    @property
    def reads_streams(self) -> bool:
        """Whether it is the first stage."""
        return not self.position

    @property
    def ready(self) -> bool:
        """Whether something could be launched."""
        if self.in_flight:
            return True
        if self.position:
            return bool(self.handed_on)
        return len(self.queue) >= self.frames and self.relay.in_flight < self.relay.slots

    @property
    def owed(self) -> bool:
        """Whether a frame will be launched before another one arrives: it waits for a slot, or is on its way."""
        if self.position:
            return self.relay.started > self.taken
        return len(self.queue) >= self.frames

    @property
    def has_work(self) -> bool:
        """Whether there is anything left to do for a frame, here or, seen from the first stage, further on."""
        return self.ready or self.owed or (not self.position and self.relay.in_flight > 0)

    def take(self) -> None:
        """Put the frames that waited longest in flight."""
        if self.position:
            self.in_flight, self.started_ns = self.handed_on.popleft()
            self.taken += 1
            return
        super().take()
        self.relay.started += 1
        self.relay.most = max(self.relay.most, self.relay.in_flight)

    def clear(self) -> list[Arrival]:
        """Forget all frames; those in flight here and those that wait."""
        left = super().clear()
        while self.handed_on:
            left += self.handed_on.popleft()[0]
        return left


def stage_jobs(job: Job, stages: Sequence[Launchable], slots: int, onward_bytes: Sequence[int]) -> list[Job]:
    """A model's job, divided into those of its stages; the job itself where there is one stage.

    The first takes the streams, queue and feed, the last deadline, sinks and tap: give it sinks that are
    opened later.

    Args:
        job: of the whole model, with its number.
        stages: what each launches.
        slots: frames that may be in flight.
        onward_bytes: that each stage hands on.
    """
    if len(stages) == 1:
        return [job]
    relay, found = Relay(slots), []
    begin = 0
    for position, stage in enumerate(stages):
        end, last = begin + len(stage.labels), position == len(stages) - 1
        first = position == 0
        found.append(
            StageJob(
                execution=stage,
                first_program=job.first_program + begin,
                priority=job.priority,
                estimates_ns=job.estimates_ns[begin:end],
                deadline_ns=job.deadline_ns,
                sources=job.sources if first else {},
                queue=job.queue if first else Queue(job.frames),
                sinks=job.sinks if last else (),
                every=job.every,
                frames=job.frames,
                feed=job.feed,
                tap=job.tap if last else None,
                model=job.model,
                relay=relay,
                position=position,
                onward_bytes=onward_bytes[position],
            )
        )
        begin = end
    return list(found)
