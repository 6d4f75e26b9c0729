"""A model on several units: its stages, and the frames that go from one to the next.

A model that reads others, made ready: copies of what they give it, and a queue of them.

What several threads use: streams, and the queues of models on several units that wait for one another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from framefit.core.model import TensorInfo
from framefit.core.timetable import PlannedModel
from framefit.devices.device import Array
from framefit.execution.buffers import copies_of
from framefit.execution.execution import Launchable
from framefit.execution.streams import Stream
from framefit.runtime.job import Job, Part
from framefit.runtime.reading import ReadQueue, ResultJoin, ResultStream
from framefit.runtime.streams import Arrival, Queue

__all__ = [
    "Mailbox",
    "Message",
    "MigratedJob",
    "ReadModel",
    "Relay",
    "SharedQueue",
    "SharedStream",
    "StageJob",
    "WakeupEvent",
    "connect_reader",
    "share_streams",
    "stage_jobs",
]


class WakeupEvent(Protocol):
    """Wakes a unit that waits."""

    def set(self, time_ns: int) -> None:
        """Have it look at its mailbox at ``time_ns`` at the latest."""

    def wait_until_ns(self, time_ns: int, get_ready: Callable[[], None] | None) -> None:
        """Wait until then, or until somebody rings; just before the end ``get_ready``, if there is time for it."""


class Message(NamedTuple):
    """What one unit hands another: a frame for one of its jobs, or the news that a slot is free."""

    ready_ns: int
    job: int  # its number there
    ordinal: int  # of the model's frames
    arrivals: Sequence[Arrival] = ()
    started_ns: int = -1  # the model's first launch for it
    source: int = -1  # a result, of so manyeth model that the job reads
    lost: bool = False  # a frame that was given up: it comes by, and takes no time
    migrated: MigratedJob | None = None  # of another unit: a frame has come for it, or it comes itself


class Mailbox:
    """Where a unit finds what others have handed it."""

    def __init__(self) -> None:
        self.handed: deque[Message] = deque()
        self.wakeup: WakeupEvent | None = None

    @property
    def parts(self) -> tuple[deque[Message], WakeupEvent | None]:
        """What has been handed over, and the wake-up event."""
        return self.handed, self.wakeup

    def put(self, handed: Message) -> None:
        """Hand something over; any thread may."""
        self.handed.append(handed)
        if self.wakeup is not None:
            self.wakeup.set(handed.ready_ns)


@dataclass
class MigratedJob(Job):
    """A model's job on a unit to which it has moved: its frames come to the unit that it ran on before."""

    number: int = field(default=-1, kw_only=True)  # there; -1: it has not come yet
    behind: Relay | None = field(default=None, kw_only=True)  # whose frames, in the stages that it had, come first

    @property
    def ready(self) -> bool:
        """Whether something could be launched."""
        return super().ready and (self.behind is None or not self.behind.in_flight)

    @property
    def reads_streams(self) -> bool:
        """Not here."""
        return False

    @property
    def waiting(self) -> int:
        """Launches of the model that it can begin at once."""
        return len(self.queue) // self.frames


@dataclass
class Relay:
    """The frames of one model on their way through its stages, in order.

    Each count is written by one unit only.

    Attributes:
        slots: frames that may be in flight: so often exist the tensors between stages.
        started: frames that the first stage has taken.
        completed: frames that the last stage is done with.
        first: the first stage's job.
        last: the last one's.
        most: frames that were in flight at most.
        watch: told when fewer frames are in flight; ``None``: nobody waits for that.
    """

    slots: int
    started: int = 0
    completed: int = 0
    first: StageJob | None = None
    last: StageJob | None = None
    most: int = 0
    watch: Callable[[], None] | None = None

    @property
    def in_flight(self) -> int:
        """Frames between the begin of the first stage and the end of the last."""
        return self.started - self.completed

    def complete(self) -> None:
        """The last stage is done with a frame, or has let it by."""
        self.completed += 1
        if self.watch is not None:
            self.watch()

    def take_back(self) -> None:
        """The first stage has given a frame up: the next one takes its place."""
        self.started -= 1
        if self.watch is not None:
            self.watch()


@dataclass
class _Waiting:
    """A frame that waits for a stage.

    Attributes:
        started_ns: since when the model works on it.
        lost: frames right behind it that were given up.
    """

    arrivals: list[Arrival]
    started_ns: int
    lost: int = 0


@dataclass
class StageJob(Job):
    """A stage of a model: its segments on one unit, one frame at a time.

    The first stage takes frames that arrive, as long as a slot is free; a later one those that the
    stage before hands on. The last one completes them.

    Attributes:
        relay: what all stages of the model share.
        position: 0 is the first stage.
        handed_on: frames that the stage before is done with.
        taken: how many of them this stage has taken, or let by.
        passed: frames that this stage has handed on, or let by.
        sent_ns: when the last one of them is there.
        lost: frames right behind the one in flight that were given up.
        let_by: tells the next stage, or the first one, that a frame was given up; a stage alone has none.
        onward_bytes: what the next stage needs of each.
    """

    relay: Relay = field(kw_only=True)
    position: int = field(kw_only=True)
    handed_on: deque[_Waiting] = field(default_factory=deque, kw_only=True)
    taken: int = field(default=0, kw_only=True)
    passed: int = field(default=0, kw_only=True)
    sent_ns: int = field(default=0, kw_only=True)
    lost: int = field(default=0, kw_only=True)
    skip_downstream: Callable[[int], None] | None = field(default=None, kw_only=True)
    onward_bytes: int = field(default=0, kw_only=True)

    @property
    def part(self) -> Part:
        """Its present part."""
        return replace(super().part, slots=self.relay.slots)

    def take_up(self, part: Part) -> None:
        """See :meth:`Job.take_up`; the first stage has no more frames begun than may be in flight then."""
        if not self.position:
            self.relay.slots = part.slots
        super().take_up(part)

    @property
    def reads_streams(self) -> bool:
        """Whether it is the first stage of a model that reads streams."""
        return not self.position and self.join is None

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
        return len(self.queue) >= self.frames or super().owed

    @property
    def pending(self) -> bool:
        """Whether there is anything left to do for a frame, here or, seen from the first stage, further on."""
        return super().pending or (not self.position and self.relay.in_flight > 0)

    @property
    def backlog(self) -> int:
        """Frames that came and are not done, in any stage; of the first one."""
        return len(self.queue) + self.relay.in_flight * self.frames

    @property
    def waiting(self) -> int:
        """Frames that the stage before has handed on, or of the first stage what other models have."""
        return len(self.handed_on) if self.position else super().waiting

    def take(self) -> None:
        """Put the frames that waited longest in flight."""
        if self.position:
            waiting = self.handed_on.popleft()
            self.in_flight, self.started_ns = waiting.arrivals, waiting.started_ns
            self.taken += 1
            if waiting.lost:
                self._follow_with(waiting.lost)
            return
        super().take()
        self.relay.started += 1
        self.relay.most = max(self.relay.most, self.relay.in_flight)

    def starves(self, failing: Collection[int]) -> bool:
        """Whether no frames come to it: those of a later stage are an earlier one's."""
        return self.entry.gives_none(failing) if self.position else super().starves(failing)

    @property
    def entry(self) -> Job:
        """The first stage."""
        return self.relay.first or self

    @property
    def outlet(self) -> Job:
        """The last stage."""
        return self.relay.last or self

    def abort_frame(self, now_ns: int) -> list[Arrival]:
        """Let the frame in flight go. Where other stages have worked on it, the later ones let it by."""
        if not self.position:
            left = super().abort_frame(now_ns)
            self.relay.take_back()
            return left
        left, self.in_flight, self.next_segment, self.started_ns = self.in_flight, [], 0, -1
        lost, self.lost = self.lost, 0
        self._skip_downstream(1 + lost, now_ns)
        if self.following is not None:
            self.take_up(self.following)
        return left

    def hand(self, arrivals: Sequence[Arrival], started_ns: int) -> None:
        """The stage before is done with a frame."""
        self.handed_on.append(_Waiting(list(arrivals), started_ns))

    def lose(self, now_ns: int) -> None:
        """A frame comes that an earlier stage has given up: it goes on behind those that came before it."""
        self.taken += 1
        if self.handed_on:
            self.handed_on[-1].lost += 1
        elif self.in_flight:
            self._follow_with(1)
        else:
            self._skip_downstream(1, now_ns)

    def _follow_with(self, lost: int) -> None:
        """Let frames by when the one in flight is done."""
        self.lost += lost
        freed = self.freed
        if self.lost > lost:
            return  # that is arranged

        def told(finished_ns: int) -> None:
            self.freed = freed
            if freed is not None:
                freed(finished_ns)
            lost, self.lost = self.lost, 0
            self._skip_downstream(lost, finished_ns)

        self.freed = told

    def _skip_downstream(self, frames: int, now_ns: int) -> None:
        for _ in range(frames):
            self.execution.skip()
            if self.skip_downstream is not None:
                self.skip_downstream(now_ns)

    def clear(self) -> list[Arrival]:
        """Forget all frames; those in flight here and those that wait."""
        left = super().clear()
        while self.handed_on:
            left += self.handed_on.popleft().arrivals
        return left


def stage_jobs(job: Job, stages: Sequence[Launchable], slots: int, onward_bytes: Sequence[int]) -> list[Job]:
    """A model's job, divided into those of its stages; the job itself where there is one stage.

    The first takes the streams, queue and feed, or what it reads, the last deadline, sinks, and whom to tell:
    give it sinks that are opened later.

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
                told=job.told if last else [],
                model=job.model,
                join=job.join if first else None,
                relay=relay,
                position=position,
                onward_bytes=onward_bytes[position],
                on_error=job.on_error,
            )
        )
        begin = end
    relay.first, relay.last = found[0], found[-1]
    return list(found)


@dataclass(frozen=True)
class ReadModel:
    """What a model is given by another one.

    Attributes:
        jobs: of the giving model's stages.
        model: its part in the plan.
        inputs: input of the reading model -> output that it reads, and what a frame of it is; none where no tensors are
            computed.
        step: releases of its stream between its results.
    """

    jobs: Sequence[Job]
    model: PlannedModel
    inputs: Mapping[str, tuple[str, TensorInfo]] = field(default_factory=dict)
    step: int = 1

    def output(self, name: str) -> Array:
        """Of the frame that it is done with, on whatever unit."""
        last = self.jobs[-1]
        return (last.moved_to or last).execution.output(name)


def connect_reader(first: Job, given: Sequence[ReadModel]) -> None:
    """Have a model get its frames of others instead of a feed; of a stream it reads the frames of the same numbers.

    Args:
        first: its job, or that of its first stage, before it is given to a dispatcher.
        given: what it reads, in the order of its inputs.
    """
    copies = copies_of(first.queue.depth, first.frames, [one.model for one in given])
    supplies = [ResultStream(one.inputs, one.output, copies) for one in given]
    first.join = ResultJoin(
        givers=[one.jobs[0] for one in given],
        models=[_number(one.jobs[0]) for one in given],
        supplies=supplies,
        every=first.every,
        step=given[0].step if first.priority else 0,
    )
    first.queue, first.every = ReadQueue(first.queue.depth, first.queue.when_full, supplies, first.frames), 1
    read = {name: supply for one, supply in zip(given, supplies, strict=True) for name in one.inputs}
    first.sources = {**first.sources, **read}


def _number(job: Job) -> int:
    assert job.model is not None
    return job.model


class SharedStream:
    """A stream that several threads read, one at a time.

    Args:
        stream: that is read.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    @property
    def length(self) -> int | None:
        """The stream's."""
        return self._stream.length

    def has(self, frame: int) -> bool:
        """Whether the stream has it."""
        with self._lock:
            return self._stream.has(frame)

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Frame number ``frame``; see :class:`framefit.execution.streams.Stream`."""
        with self._lock:
            return self._stream.read(frame, tensor)


def share_streams(jobs: Iterable[Job]) -> None:
    """Have jobs read their streams one at a time."""
    shared: dict[int, Stream] = {}
    for job in jobs:
        job.sources = {
            name: stream if isinstance(stream, SharedStream) else shared.setdefault(id(stream), SharedStream(stream))
            for name, stream in job.sources.items()
        }


class SharedQueue(Queue):
    """A queue into which one thread puts frames while another takes them.

    Args:
        queue: that keeps them.
    """

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue.depth, queue.when_full)
        self._queue = queue
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether a frame that arrives has to wait outside."""
        return self._queue.full

    def put(self, frame: Arrival) -> Arrival | None:
        """Add a frame; the one that is dropped for it, or None."""
        with self._lock:
            return self._queue.put(frame)

    def take(self) -> Arrival:
        """The one that waited longest."""
        with self._lock:
            return self._queue.take()

    def clear(self) -> Sequence[Arrival]:
        """All that wait, and none any more."""
        with self._lock:
            return self._queue.clear()
