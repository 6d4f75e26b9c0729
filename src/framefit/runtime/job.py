"""The jobs of a model: what a unit launches of it, for which frame, and how a frame goes through its stages.

A model on one unit is one :class:`Job`. Where several units run parts of it, each has a job for its stage, and the
jobs are made by a :class:`Pipeline`, through which frames go in order. Where a model has several replicas, each has
jobs of its own, made by :class:`Replicas`: frames go to whichever is free, and leave in order. What happens when a
frame of a job ends stands in ``Dispatcher._complete`` and ``Dispatcher.abort_frame`` in ``loop.py``; which messages
other stages get then, in the pipeline. Units and numbers of all jobs (their ports) are known before the first is made.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from framefit.core.model import TensorInfo
from framefit.core.timetable import PlannedModel
from framefit.core.workload import OnError
from framefit.devices.clock import Clock
from framefit.devices.device import Array, Device
from framefit.execution.execution import Launchable
from framefit.execution.streams import Stream
from framefit.runtime.channel import Dropped, FrameChannel, FrameLimit, Mailbox, Message, MessageKind, Port
from framefit.runtime.reading import FinishedFrame, FrameObserver, ReadModel, ResultJoin, Results, ResultStream
from framefit.runtime.sinks import Sink
from framefit.runtime.streams import Arrival, Events, Feed

_NEVER = 1 << 62  # a window


@dataclass(frozen=True)
class Part:
    """A job's part in a timetable.

    Attributes:
        execution: what it launches.
        first_program: number of its first segment's program.
        estimates_ns: what each segment needs before the guard; see ``Segment.needed_ns``.
        deadline_ns: after release; ``None``: none.
        begins: first layer of each segment.
        finest: cut wherever any timetable cuts it; ``None``: no other one cuts it elsewhere.
        slots: frames of the model that may be in flight, where it has several stages.
        quantiles_ns: planned quantile of each segment; none: it is what the segment needs.
        thinned: whether frames are skipped.
    """

    execution: Launchable
    first_program: int
    estimates_ns: Sequence[int]
    deadline_ns: int | None
    begins: Sequence[int] = ()
    finest: Part | None = None
    slots: int = 1
    quantiles_ns: Sequence[int] = ()


@dataclass(eq=False)
class Job:
    """What one unit runs of a model.

    Attributes:
        execution: what it launches.
        first_program: number of its first segment's program.
        priority: whether windows are reserved for it.
        estimates_ns: what each segment needs before the guard; see ``Segment.needed_ns``.
        deadline_ns: after release; ``None``: none.
        sources: graph input -> stream that feeds it.
        input: where its frames wait.
        feed: brings them; shared by models whose streams stay in step.
        sinks: where outputs go, and which (``None``: all).
        every: windows between its frames; the frames between are skipped.
        first: number of a frame that is not, modulo ``every``.
        model: its number in the log of frames; ``None``: that of the job.
        observers: follow the model's frames.
        join: brings its frames, instead of the feed, where it reads other models.
        pipeline: of the model's stages; ``None``: the job is the whole model.
        position: among the stages.
        begins: first layer of each segment; of no account where there is one timetable.
        on_error: what a launch that fails means: try it again once, abort the frame, or end the run.
        in_flight: frames that are being worked on.
        next_segment: that is to be launched for them.
        started_ns: begin of the model's first launch for them; -1: it has not begun.
        following: part that it takes up when the frame in flight is done; ``None``: it keeps this one.
        migrated: the job that takes its frames, on another unit, since its own one fails; ``None``: it does so itself.
        replicas: of the model, where it has several; the job is one replica's, or a stage of it.
        events: bring its frames at any time, instead of the feed, where the model is sporadic.
        quantiles_ns: planned quantile of each segment; none: it is what the segment needs.
    """

    execution: Launchable
    first_program: int
    priority: bool
    estimates_ns: Sequence[int]
    deadline_ns: int | None
    sources: Mapping[str, Stream]
    input: FrameChannel
    sinks: Sequence[tuple[Sink, Sequence[str] | None]] = ()
    every: Fraction | int = 1
    first: int = 0
    feed: Feed = field(default_factory=Feed)
    observers: Sequence[FrameObserver] = ()
    model: int | None = None
    join: ResultJoin | None = None
    pipeline: Pipeline | None = None
    position: int = 0
    begins: Sequence[int] = (0,)
    on_error: OnError = "stop"
    next_segment: int = 0
    in_flight: list[Arrival] = field(default_factory=list)
    started_ns: int = -1
    following: Part | None = None
    migrated: MigratedJob | None = None
    replicas: Replicas | None = None
    events: Events | None = None
    quantiles_ns: Sequence[int] = ()
    _inputs: tuple[TensorInfo, ...] = field(init=False)
    thinned: bool = field(init=False)
    _spacing: tuple[int, int] = field(init=False)  # ``every`` without the calls that a fraction's parts cost

    def __post_init__(self) -> None:
        self._inputs = self.execution.frame_inputs
        self.thinned = self.every > 1
        self._spacing = self.every.numerator, self.every.denominator

    # What it is asked while the loop decides ------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a frame is in flight."""
        return bool(self.in_flight)

    @property
    def ready(self) -> bool:
        """Whether something could be launched."""
        return bool(self.in_flight) or self.input.ready

    @property
    def next_ns(self) -> int | None:
        """What it would launch next needs; ``None``: nothing."""
        return self.estimates_ns[self.next_segment] if self.ready else None

    @property
    def then_ns(self) -> int | None:
        """What the segment after that needs, if that one does not end its frame."""
        return None if self.next_segment + 1 == len(self.estimates_ns) else self.estimates_ns[self.next_segment + 1]

    @property
    def owed(self) -> bool:
        """Whether a frame that has come is still on its way to this job, or waits for a slot."""
        return self.input.owed or (self.join is not None and self.join.owed)

    @property
    def pending(self) -> bool:
        """Whether anything is left to do for a frame, here or, seen from the first stage, further on."""
        if self.ready or self.owed:
            return True
        return self.pipeline is not None and not self.position and self.pipeline.in_flight > 0

    # Frames that come -----------------------------------------------------------------------------------------------

    @property
    def reads_streams(self) -> bool:
        """Whether frames come to it from a feed."""
        first = self.replicas is None or self is self.replicas.firsts[0]
        return self.join is None and self.events is None and not self.position and first

    @property
    def frames(self) -> int:
        """How many frames it consumes at once."""
        return self.input.frames

    @property
    def queue(self) -> FrameChannel:
        """Where the model's frames wait; of a first stage."""
        return self.input if self.migrated is None else self.migrated.input

    def skips(self, frame: int) -> bool:
        """Whether a frame is one of those between."""
        return not self._is_own(frame - self.first)

    def _is_own(self, number: int) -> bool:
        windows, frames = self._spacing
        return number * frames % windows < frames  # as own_frame says, without its calls

    def accepts(self, turn: int) -> bool:
        """Whether a frame that is not skipped may come now, as far as this model goes: there is room for it.

        A priority model has its instants at those turns of its stream that are its own: there only.
        """
        return not (self.queue.full or (self.priority and not self._is_own(turn)))

    @property
    def backlog(self) -> int:
        """Frames that came and are not done, in any stage; of the first one."""
        begun = len(self.in_flight) if self.pipeline is None else self.pipeline.in_flight * self.frames
        return len(self.input) + begun

    def offer(self, arrival: Arrival) -> Dropped | None:
        """A frame arrives; returns the one that is dropped for it, which may be the same."""
        if self.migrated is None and self.replicas is None:
            return self.input.offer(arrival)
        dropped = self.queue.offer(arrival)
        if self.migrated is not None:
            self.migrated.notify()
        elif self.replicas is not None:
            self.replicas.notify(arrival.window)
        return dropped

    def take(self) -> None:
        """Put the frames that waited longest in flight."""
        if self.replicas is None or self.position:
            self.in_flight, self.started_ns = self.input.take()
        else:
            self.in_flight, self.started_ns = self.replicas.take(self)

    def read(self, frame: int) -> dict[str, Array]:
        """A frame's tensors."""
        return {tensor.name: self.sources[tensor.name].read(frame, tensor) for tensor in self._inputs}

    def load(self) -> None:
        """Hand the frames in flight over to the execution.

        Raises:
            EndOfStream: there are not so many.
        """
        if not self._inputs:
            return
        if len(self.in_flight) == 1:
            self.execution.load(self.read(self.in_flight[0].frame))
        else:
            self.execution.load([self.read(arrival.frame) for arrival in self.in_flight])

    # Frames that end ------------------------------------------------------------------------------------------------

    def abort_frame(self, now_ns: int) -> list[Arrival]:
        """Let the frame in flight go, unfinished; returns what it consisted of."""
        arrivals = self.in_flight
        if self.position:
            assert self.pipeline is not None
            self.pipeline.skip_after(self, now_ns, 1)
        else:
            self.execution.abandon()
            if self.pipeline is not None:
                self.pipeline.take_back()
        self.in_flight, self.next_segment, self.started_ns = [], 0, -1
        if self.following is not None:
            self.take_up(self.following)
        return arrivals

    def clear(self) -> list[Arrival]:
        """Forget all frames; returns those in flight and those that wait."""
        arrivals = [*self.in_flight, *self.input.clear()]
        if self.migrated is not None and not self.position:
            arrivals += self.migrated.input.clear()
        self.in_flight, self.next_segment, self.started_ns = [], 0, -1
        return arrivals

    def gives_none(self, failing: Collection[int]) -> bool:
        """Whether the model has no results while these models fail: it is one of them, or reads one."""
        return self.model in failing or self.starves(failing)

    def starves(self, failing: Collection[int]) -> bool:
        """Whether no frames come to it while these models fail; those of a later stage are an earlier one's."""
        if self.position:
            return self.entry.gives_none(failing)
        return self.join is not None and any(giver.gives_none(failing) for giver in self.join.givers)

    def migrate(self, migrated: MigratedJob) -> None:
        """From here on a job on another unit takes the model's frames; of the first stage."""
        if self.pipeline is not None:
            self.pipeline.successor = migrated
        queue = self.queue
        self.migrated = self.outlet.migrated = migrated  # first: what arrives from here on is for the other unit
        self.input = FrameChannel(queue.slots, queue.when_full, frames=queue.frames)
        migrated.notify()

    @property
    def entry(self) -> Job:
        """The job at which the model's frames wait: of its first stage."""
        return self if self.pipeline is None else self.pipeline.stages[0]

    @property
    def replica(self) -> int:
        """Number of the replica that it is a stage of."""
        firsts = [] if self.replicas is None else self.replicas.firsts
        return next((number for number, first in enumerate(firsts) if first is self.entry), 0)

    @property
    def outlet(self) -> Job:
        """The job that gives the model's results: of its last stage."""
        return self if self.pipeline is None else self.pipeline.stages[-1]

    # Timetables that change -----------------------------------------------------------------------------------------

    @property
    def part(self) -> Part:
        """Its present part."""
        slots = 1 if self.pipeline is None else self.pipeline.slots
        return Part(
            self.execution,
            self.first_program,
            self.estimates_ns,
            self.deadline_ns,
            self.begins,
            slots=slots,
            quantiles_ns=self.quantiles_ns,
        )

    def take_up(self, part: Part) -> None:
        """Have another part from here on, between two launches.

        A frame in flight goes on where it is; where no segment begins there, in the finest segments to its end. The
        first stage begins no more frames than may be in flight under the new part.
        """
        if self.pipeline is not None and not self.position:
            self.pipeline.slots = part.slots
        self.deadline_ns, self.following = part.deadline_ns, None
        if self.migrated is not None:
            self.migrated.deadline_ns = part.deadline_ns
        if part.execution is self.execution:  # another thread may be at it
            self.estimates_ns, self.quantiles_ns, self.begins = part.estimates_ns, part.quantiles_ns, part.begins
            return
        if self.next_segment:
            layer = self.begins[self.next_segment]
            if layer not in part.begins and part.finest is not None:
                self.following, part = part, part.finest
            self.next_segment = list(part.begins).index(layer)
        part.execution.follow(self.execution)
        self.execution, self.first_program = part.execution, part.first_program
        self.estimates_ns, self.quantiles_ns, self.begins = part.estimates_ns, part.quantiles_ns, part.begins


@dataclass(eq=False)
class MigratedJob(Job):
    """A model's job on a unit to which it has migrated: its frames come to the unit that it ran on before.

    Attributes:
        mailbox: of the unit that it runs on.
        clock: the run's.
        ordinals: of messages about migrated jobs of the run, so that they come in order.
        number: of the job there; -1: it has not come yet.
    """

    mailbox: Mailbox = field(kw_only=True)
    clock: Clock = field(kw_only=True)
    ordinals: Iterator[int] = field(kw_only=True)
    number: int = field(default=-1, kw_only=True)

    @property
    def reads_streams(self) -> bool:
        """A migrated job is on no feed of its unit."""
        return False

    def notify(self) -> None:
        """Tell its unit that a frame has come, or that one may begin."""
        message = Message(self.clock.now_ns(), -1, next(self.ordinals), MessageKind.MIGRATED, migrated=self)
        self.mailbox.send(message)


class Pipeline:
    """The frames of one model on their way through its stages, in order.

    Each stage tells the next one of a frame that it is done with, and the last one tells the first that a slot is free.
    A frame that a stage aborts is skipped by the later ones: a message for it goes behind those of the frames before
    it, so that the order stays and its slot is free only when these are done. What goes to another unit is copied there
    at once, while that does something else; it can be used when it has arrived.

    Each count is written by one unit only.

    Args:
        job: of the whole model, with its number and the estimates of all segments.
        executions: what each stage launches.
        slots: frames that may be in flight: so often exist the tensors between stages.
        bytes_between: that each stage but the last hands on.
        device: knows how long the way to another unit takes.
        ports: where messages for each stage go.

    Attributes:
        stages: the job of each stage. The first takes the streams, input and feed, or what the model reads, the last
            one deadline, sinks, and observers.
        orders: of each stage but the first.
        started: frames that the first stage has begun.
        most: frames that were in flight at most.
        successor: begins when no frame is in flight any more, on another unit; ``None``: nothing has failed.
    """

    def __init__(
        self,
        job: Job,
        executions: Sequence[Launchable],
        slots: int,
        bytes_between: Sequence[int],
        device: Device,
        ports: Sequence[Port],
    ) -> None:
        self.slots = slots
        self.started = 0
        self.most = 0
        self.successor: MigratedJob | None = None
        self._device, self._ports, self._bytes_between = device, ports, bytes_between
        self._completed = 0
        self._sent = [0] * len(bytes_between)  # frames that each stage has handed on, or skipped
        self._sent_ns = [0] * len(bytes_between)  # when the last one of them is there
        self.orders = [StageOrder(self) for _ in executions[1:]]
        begins = itertools.accumulate((len(execution.labels) for execution in executions), initial=0)
        self.stages = [
            self._stage(job, position, execution, begin, position == len(executions) - 1)
            for position, (execution, begin) in enumerate(zip(executions, begins, strict=False))
        ]

    def _stage(self, job: Job, position: int, execution: Launchable, begin: int, last: bool) -> Job:
        """The job of a stage whose first segment has this number."""
        first = not position
        limit = None if first else self.orders[position - 1]
        return Job(
            execution=execution,
            first_program=job.first_program + begin,
            priority=job.priority,
            estimates_ns=job.estimates_ns[begin : begin + len(execution.labels)],
            quantiles_ns=job.quantiles_ns[begin : begin + len(execution.labels)],
            deadline_ns=job.deadline_ns,
            sources=job.sources if first else {},
            input=job.input.limited(_begin_limit(job, self))
            if first
            else FrameChannel(self.slots * job.frames, frames=job.frames, by_message=True, limit=limit),
            sinks=job.sinks if last else (),
            every=job.every,
            feed=job.feed,
            observers=job.observers if last else (),
            model=job.model,
            join=job.join if first else None,
            pipeline=self,
            position=position,
            on_error=job.on_error,
            replicas=job.replicas,
        )

    @property
    def in_flight(self) -> int:
        """Frames between the begin of the first stage and the end of the last."""
        return self.started - self._completed

    @property
    def allows_another(self) -> bool:
        """Whether a slot is free."""
        return self.started - self._completed < self.slots

    def owes(self, waiting: bool) -> bool:
        """A priority frame that waits for a slot keeps the unit from starting anything else."""
        return waiting

    def begin(self) -> int:
        """The first stage has taken a frame."""
        self.started += 1
        self.most = max(self.most, self.in_flight)
        return -1

    def hand_on(self, job: Job, finished_ns: int) -> None:
        """A stage is done with a frame, which the next one needs."""
        position = job.position
        here, there = self._ports[position], self._ports[position + 1]
        # A copy begins now, not when the stage starts.
        ready_ns = self._device.arrival_ns(here.unit, there.unit, self._bytes_between[position], finished_ns)
        self._sent[position] = ordinal = self._sent[position] + 1
        self._sent_ns[position] = ready_ns
        there.mailbox.send(Message(ready_ns, there.number, ordinal, MessageKind.STAGE, job.in_flight, job.started_ns))

    def stage_finished(self, job: Job, finished_ns: int) -> None:
        """A stage is done with a frame, and its result has been handed on."""
        if job.position == len(self.stages) - 1:
            self._free_slot(finished_ns)
        if job.position:
            self.skip_after(job, finished_ns, 0)

    def receive(self, job: Job, arrivals: Sequence[Arrival], started_ns: int) -> None:
        """The frame of a message comes to a later stage."""
        self.orders[job.position - 1].add(started_ns)
        job.input.hand_on(arrivals)

    def skip(self, job: Job, now_ns: int) -> None:
        """A frame that an earlier stage has aborted comes by a later one."""
        if self.orders[job.position - 1].skip(busy=job.busy):
            self._skip(job, now_ns)

    def skip_after(self, job: Job, now_ns: int, frames: int) -> None:
        """Frames of a later stage go on as aborted, and then those that came by behind them."""
        for _ in range(frames + self.orders[job.position - 1].take_behind()):
            self._skip(job, now_ns)

    def take_back(self) -> None:
        """The first stage has aborted a frame: the next one takes its place."""
        self.started -= 1
        self._notify()

    def _skip(self, job: Job, now_ns: int) -> None:
        position = job.position
        job.execution.skip()
        if position == len(self.stages) - 1:
            self._free_slot(now_ns)
            return
        there = self._ports[position + 1]
        self._sent[position] = ordinal = self._sent[position] + 1
        self._sent_ns[position] = ready_ns = max(self._sent_ns[position], now_ns)
        there.mailbox.send(Message(ready_ns, there.number, ordinal, MessageKind.SKIPPED))

    def _free_slot(self, now_ns: int) -> None:
        self._completed += 1
        self._notify()
        first = self._ports[0]
        first.mailbox.send(Message(now_ns, first.number, self._completed, MessageKind.SLOT_FREE))

    def _notify(self) -> None:
        if self.successor is not None:
            self.successor.notify()


class StageOrder:
    """The order of the frames of a later stage, of which those that an earlier stage has aborted take no time.

    An aborted frame keeps its place among the others, so that what was before it still ends before it.

    Args:
        pipeline: of the stage.
    """

    allows_another = True

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._came = 0  # frames that the stage has taken or skipped
        self._waiting: deque[list[int]] = deque()  # when the first launch began, and aborted frames right behind it
        self._behind = 0  # aborted frames right behind the one that was taken last

    def owes(self, waiting: bool) -> bool:  # noqa: ARG002 - the protocol's form
        """Whether a frame that the model has begun is still to come."""
        return self._pipeline.started > self._came

    def add(self, started_ns: int) -> None:
        """The stage before is done with a frame."""
        self._waiting.append([started_ns, 0])

    def begin(self) -> int:
        """The stage has taken the frame that waited longest."""
        started_ns, skipped = self._waiting.popleft()
        self._came += 1
        self._behind += skipped
        return started_ns

    def skip(self, *, busy: bool) -> bool:
        """An aborted frame comes by; whether it goes on at once.

        Args:
            busy: the frame taken last is in flight.
        """
        self._came += 1
        if self._waiting:
            self._waiting[-1][1] += 1
        elif busy:
            self._behind += 1
        else:
            return True
        return False

    def take_behind(self) -> int:
        """How many aborted frames follow the one that was taken last, and may go on now."""
        behind, self._behind = self._behind, 0
        return behind


class Drained:
    """Allows a migrated model to begin a frame when none is under way any more in the stages that it had before.

    Args:
        pipeline: of these stages.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    @property
    def allows_another(self) -> bool:
        """Whether nothing is under way there."""
        return not self._pipeline.in_flight

    def owes(self, waiting: bool) -> bool:  # noqa: ARG002 - the protocol's form
        """The unit's own models go on meanwhile."""
        return False

    def begin(self) -> int:
        """Its frames have no slots."""
        return -1


class ReplicaLimit:
    """Allows a replica to begin a frame unless its launches have just failed, or it has no free slot.

    Args:
        slots: of its stages; ``None``: it has one stage.
    """

    def __init__(self, slots: FrameLimit | None) -> None:
        self._slots = slots
        self.rests_until = -1
        """A window; -1: it does not rest."""

    @property
    def allows_another(self) -> bool:
        """Whether another frame may begin."""
        return self.rests_until < 0 and (self._slots is None or self._slots.allows_another)

    def owes(self, waiting: bool) -> bool:  # noqa: ARG002 - the protocol's form
        """No unit waits for a replica: another one may take the frame."""
        return False

    def begin(self) -> int:
        """A frame begins."""
        return -1 if self._slots is None else self._slots.begin()


class Replicas:
    """The replicas of a background model: whichever is free takes the next frame, and results leave in order.

    All frames of the model wait in one channel, from which the first stage of each replica takes them. What is done
    before an earlier frame is kept until that is done, too, or given up. A replica whose launches keep failing takes
    no frames for a while, or none any more; they go to the others.

    Args:
        job: of the whole model, with its number and the estimates of all segments.
        model: its part in the plan.
        executions: what the stages launch, one replica after the other.
        slots: frames of each replica that may be in flight.
        device: of the run.
        ports: where messages for each stage go, one replica after the other.

    Attributes:
        stages: the jobs of each replica; the first replica's first job gets the model's frames.
        firsts: the job of each replica's first stage.
        lock: held while frames begin, and while they leave.
        outputs: where outputs wait for their sinks: at the first replica's unit.
    """

    def __init__(
        self,
        job: Job,
        model: PlannedModel,
        executions: Sequence[Launchable],
        slots: int,
        device: Device,
        ports: Sequence[Port],
    ) -> None:
        self.lock = threading.Lock()
        self.outputs = ports[0].mailbox.outputs
        self.stages: list[list[Job]] = []
        self._ports: list[Port] = []  # of each replica's first job
        self._clock = device.clock
        self._ordinal = 0
        self._begun: deque[int] = deque()  # newest frame of each launch of the model that has not left, in order
        self._left_ns = -1  # when the last result left
        self._done: dict[int, FinishedFrame | None] = {}  # of these; None: it was given up
        job.input.share()
        begin = 0
        for replica in model.replicas:
            end, segment = begin + len(replica.stages), replica.segments[0].index
            whole = replace(
                job,
                execution=executions[begin],
                first_program=job.first_program + segment,
                estimates_ns=job.estimates_ns[segment : segment + len(replica.segments)],
                quantiles_ns=job.quantiles_ns[segment : segment + len(replica.segments)],
                replicas=self,
            )
            between = [stage[-1].boundary_bytes for stage in replica.stages]
            self.stages.append(stage_jobs(whole, executions[begin:end], slots, between, device, ports[begin:end]))
            self._ports.append(ports[begin])
            begin = end
        self.firsts = [jobs[0] for jobs in self.stages]
        limits = [first.input.limit for first in self.firsts]
        self._limits = [limit for limit in limits if isinstance(limit, ReplicaLimit)]

    def notify(self, window: int) -> None:
        """A frame has come: replicas on other units may take it; those that rested until this window, too."""
        for limit in self._limits:
            if 0 <= limit.rests_until <= window:
                limit.rests_until = -1
        self._ordinal += 1
        now_ns = self._clock.now_ns()
        for port in self._ports[1:]:
            port.mailbox.send(Message(now_ns, port.number, self._ordinal, MessageKind.WAITING))

    def take(self, job: Job) -> tuple[list[Arrival], int]:
        """The frames that waited longest, for a replica's first stage; none where another replica was faster."""
        with self.lock:
            arrivals, started_ns = job.input.take()
            if arrivals:
                self._begun.append(arrivals[-1].frame)
            return arrivals, started_ns

    def finished(self, job: Job, finished_ns: int) -> list[FinishedFrame]:
        """A replica's last stage is done with a frame; the frames that leave now. To be called with the lock held."""
        frame = job.in_flight[-1].frame
        outputs = [(sink, job.execution.results(names)) for sink, names in job.sinks]
        results: Results = job.execution.results
        if self._begun[0] != frame and job.observers:  # the replica goes on meanwhile
            results = _kept(results(None))
        self._done[frame] = FinishedFrame(
            job.in_flight, job.started_ns, finished_ns, job.deadline_ns, job.execution, results, outputs
        )
        return self._leaving(finished_ns)

    def gave_up(self, arrivals: Iterable[Arrival], now_ns: int) -> list[FinishedFrame]:
        """Frames that have begun will not be done; those that leave now. To be called with the lock held."""
        for arrival in arrivals:
            if arrival.frame in self._begun:
                self._done[arrival.frame] = None
        return self._leaving(now_ns)

    @property
    def pending(self) -> bool:
        """Whether a frame is waiting or in flight in any replica."""
        return any(first.pending for first in self.firsts)

    def others_work(self, job: Job) -> bool:
        """Whether there is another replica that takes frames now."""
        mine = self._limit(job)
        return any(limit is not mine and limit.rests_until < 0 for limit in self._limits)

    def rest(self, job: Job, window: int) -> None:
        """The replica of a job takes no frames before a window."""
        limit = self._limit(job)
        limit.rests_until = max(limit.rests_until, window)

    def close(self, job: Job) -> None:
        """The replica of a job takes no frames any more."""
        self.rest(job, _NEVER)

    def working_unit(self, units: Collection[str]) -> str | None:
        """The first of these units that has a replica which is not closed; ``None``: none has."""
        return next(
            (
                port.unit
                for port, limit in zip(self._ports, self._limits, strict=True)
                if port.unit in units and limit.rests_until < _NEVER
            ),
            None,
        )

    def _limit(self, job: Job) -> ReplicaLimit:
        return next(limit for first, limit in zip(self.firsts, self._limits, strict=True) if first is job.entry)

    def _leaving(self, now_ns: int) -> list[FinishedFrame]:
        leaving = []
        while self._begun and self._begun[0] in self._done:
            done = self._done.pop(self._begun.popleft())
            if done is not None:
                self._left_ns = max(done.finished_ns, now_ns, self._left_ns)
                leaving.append(done._replace(finished_ns=self._left_ns))
        return leaving


def _kept(tensors: dict[str, Array]) -> Results:
    return lambda names: tensors if names is None else {name: tensors[name] for name in names}


def model_jobs(
    job: Job,
    model: PlannedModel,
    executions: Sequence[Launchable],
    slots: int,
    device: Device,
    ports: Sequence[Port],
) -> list[Job]:
    """A model's job, divided into those of the stages of its replicas; the job itself where there is one of both.

    Args:
        job: of the whole model, with its number and the estimates of all segments.
        model: its part in the plan.
        executions: what the stages launch, one replica after the other.
        slots: frames of each replica that may be in flight.
        device: of the run.
        ports: where messages for each stage go, one replica after the other.
    """
    if len(model.replicas) > 1:
        replicas = Replicas(job, model, executions, slots, device, ports)
        return list(itertools.chain.from_iterable(replicas.stages))
    return stage_jobs(job, executions, slots, [stage[-1].boundary_bytes for stage in model.stages], device, ports)


def stage_jobs(
    job: Job,
    executions: Sequence[Launchable],
    slots: int,
    bytes_between: Sequence[int],
    device: Device,
    ports: Sequence[Port],
) -> list[Job]:
    """A model's job, or that of a replica, divided into those of its stages; see :class:`Pipeline`."""
    if len(executions) > 1:
        return Pipeline(job, executions, slots, bytes_between, device, ports).stages
    return [job if job.replicas is None else replace(job, input=job.input.limited(_begin_limit(job, None)))]


def _begin_limit(job: Job, slots: FrameLimit | None) -> FrameLimit | None:
    """What allows the first stage of a model, or of a replica, to begin a frame."""
    return slots if job.replicas is None else ReplicaLimit(slots)


def reading_job(job: Job, givers: Sequence[Job], read: Sequence[ReadModel], streams: Sequence[ResultStream]) -> Job:
    """A model's job, fed by others instead of a feed; of a stream it reads the frames of the same numbers.

    Args:
        job: of the whole model.
        givers: first jobs of the models that it reads, in the order of its inputs.
        read: these models.
        streams: what each of them gives.
    """
    numbers = [giver.model for giver in givers if giver.model is not None]
    steps = read[0].steps if job.priority else ()
    return replace(
        job,
        sources={**job.sources, **{name: stream for stream in streams for name in stream.outputs}},
        input=FrameChannel(job.input.slots, job.input.when_full, frames=job.frames, buffers=streams, by_message=True),
        every=1,
        join=ResultJoin(givers=givers, models=numbers, streams=streams, every=job.every, steps=steps),
    )


class Readers:
    """Which models read which: whether anything is left to do further on, and whether there is room.

    Args:
        jobs: of the run.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._of: defaultdict[int, list[Job]] = defaultdict(list)  # first job, by identity -> first jobs of readers
        for job in jobs:
            for giver in () if job.join is None else job.join.givers:
                self._of[id(giver)].append(job)

    def have_work(self, job: Job) -> bool:
        """Whether a frame is pending at a job, where it has migrated to, or at models that read it."""
        if job.pending or (job.replicas is not None and job.replicas.pending):
            return True
        elsewhere = self._of.get(id(job), []) if job.migrated is None else [*self._of.get(id(job), []), job.migrated]
        return any(self.have_work(other) for other in elsewhere)

    def have_room(self, job: Job, coming: int) -> bool:
        """Whether models that read a job have room for all that it will give; ``coming``: frames until then."""
        for reader in self._of.get(id(job), ()):
            assert reader.join is not None
            results = -(-coming // job.frames) + reader.join.on_the_way
            if len(reader.input) + results > reader.queue.slots:
                return False
            if not self.have_room(reader, results + reader.backlog):
                return False
        return True


def reading_models(jobs: Sequence[Job]) -> dict[int, Sequence[int]]:
    """Models that read others -> these; each after those that it reads."""
    unordered = {job.model: job.join.models for job in jobs if job.join is not None and job.model is not None}
    ordered: dict[int, Sequence[int]] = {}
    while unordered:
        model = next(model for model, reads in unordered.items() if unordered.keys().isdisjoint(reads))
        ordered[model] = unordered.pop(model)
    return ordered
