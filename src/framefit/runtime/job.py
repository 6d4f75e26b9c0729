"""A model as the dispatcher sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from framefit.core.model import TensorInfo
from framefit.core.workload import OnError
from framefit.devices.device import Array
from framefit.execution.execution import Launchable
from framefit.execution.streams import Stream
from framefit.runtime.reading import ResultJoin
from framefit.runtime.sinks import Sink
from framefit.runtime.streams import Arrival, Feed, Queue

__all__ = ["Job", "Part"]


@dataclass(frozen=True)
class Part:
    """A job's part in a timetable.

    Attributes:
        execution: what it launches.
        first_program: number of its first segment's program.
        estimates_ns: planned quantile of each segment.
        deadline_ns: after release; ``None``: none.
        begins: first layer of each segment.
        finest: cut wherever any timetable cuts it; ``None``: no other one cuts it elsewhere.
        slots: frames of the model that may be in flight, where it has several stages.
    """

    execution: Launchable
    first_program: int
    estimates_ns: Sequence[int]
    deadline_ns: int | None
    begins: Sequence[int] = ()
    finest: Part | None = None
    slots: int = 1


@dataclass
class Job:
    """One model of a run.

    Attributes:
        execution: what it launches.
        first_program: number of its first segment's program.
        priority: whether windows are reserved for it.
        estimates_ns: planned quantile of each segment.
        deadline_ns: after release; ``None``: none.
        sources: graph input -> stream that feeds it.
        queue: frames that wait.
        feed: brings them; shared by models whose streams stay in step.
        sinks: where outputs go, and which (``None``: all).
        every: windows between its frames; the frames between are skipped.
        in_flight: frames that are being worked on.
        frames: frames that it consumes at once.
        model: its number in the log of frames; ``None``: that of the job.
        onward: hands the frame in flight on to another unit, told since when it can; ``None``: it is done.
        freed: told when a frame is done; ``None``: nobody waits for that.
        told: of every frame as soon as it is done: what was in flight, when it started and
            finished. The outputs are still those of that frame.
        reading: brings its frames, instead of the feed, where it reads other models.
        readers: first jobs of the models that read this one.
        begins: first layer of each segment; of no account where there is one timetable.
        following: part that it takes up when the frame in flight is done; ``None``: it keeps this one.
        on_error: what a launch that fails means: try it again once, give the frame up, or end the run.
        moved_to: the job that takes its frames, on another unit, since its own one fails; ``None``: it does so itself.
    """

    execution: Launchable
    first_program: int
    priority: bool
    estimates_ns: Sequence[int]
    deadline_ns: int | None
    sources: Mapping[str, Stream]
    queue: Queue
    sinks: Sequence[tuple[Sink, Sequence[str] | None]] = ()
    every: int = 1
    frames: int = 1
    feed: Feed = field(default_factory=Feed)
    told: list[Callable[[Sequence[Arrival], int, int], None]] = field(default_factory=list)
    model: int | None = None
    join: ResultJoin | None = None
    readers: list[Job] = field(default_factory=list)
    onward: Callable[[int], None] | None = None
    freed: Callable[[int], None] | None = None
    next_segment: int = 0
    in_flight: list[Arrival] = field(default_factory=list)
    started_ns: int = -1
    begins: Sequence[int] = (0,)
    following: Part | None = None
    on_error: OnError = "stop"
    moved_to: Job | None = None
    _inputs: tuple[TensorInfo, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._inputs = self.execution.frame_inputs

    @property
    def part(self) -> Part:
        """Its present part."""
        return Part(self.execution, self.first_program, self.estimates_ns, self.deadline_ns, self.begins)

    def take_up(self, part: Part) -> None:
        """Have another part from here on, between two launches.

        A frame in flight goes on where it is; where no segment begins there, in the finest segments to its end.
        """
        self.deadline_ns, self.following = part.deadline_ns, None
        if self.moved_to is not None:
            self.moved_to.deadline_ns = part.deadline_ns
        if part.execution is self.execution:  # another thread may be at it
            self.estimates_ns, self.begins = part.estimates_ns, part.begins
            return
        if self.next_segment:
            layer = self.begins[self.next_segment]
            if layer not in part.begins and part.finest is not None:
                self.following, part = part, part.finest
            self.next_segment = list(part.begins).index(layer)
        part.execution.follow(self.execution)
        self.execution, self.first_program = part.execution, part.first_program
        self.estimates_ns, self.begins = part.estimates_ns, part.begins

    @property
    def reads_streams(self) -> bool:
        """Whether frames come to it from a feed."""
        return self.join is None

    @property
    def owed(self) -> bool:
        """Whether a frame that has come is still on its way to this job."""
        return self.join is not None and self.join.owed

    @property
    def pending(self) -> bool:
        """Whether a frame that has come is still to be done."""
        return self.ready or self.owed

    @property
    def has_work(self) -> bool:
        """The same, of models that read it, and where it has moved to, too."""
        elsewhere = self.readers if self.moved_to is None else [*self.readers, self.moved_to]
        return self.pending or any(job.has_work for job in elsewhere)

    @property
    def waiting(self) -> int:
        """Frames that others have handed over: launches of the model that it can begin at once."""
        return 0 if self.join is None else len(self.queue) // self.frames

    @property
    def busy(self) -> bool:
        """Whether a frame is in flight."""
        return bool(self.in_flight)

    @property
    def ready(self) -> bool:
        """Whether something could be launched."""
        return bool(self.in_flight) or len(self.queue) >= self.frames

    @property
    def next_ns(self) -> int | None:
        """Planned quantile of what it would launch next; ``None``: nothing."""
        return self.estimates_ns[self.next_segment] if self.ready else None

    def accepts(self, frame: int, turn: int) -> bool:
        """Whether a frame may come now: it is skipped, or there is room for it.

        A priority model of ``every`` n has its instants at turns 0, n, 2n, ... of its stream: there only.
        """
        if frame % self.every:
            return True
        return not (self.queue.full or (self.priority and turn % self.every)) and self.room_behind(self.backlog + 1)

    @property
    def backlog(self) -> int:
        """Frames that came and are not done."""
        return len(self.queue) + len(self.in_flight)

    def room_behind(self, coming: int) -> bool:
        """Whether models that read this one have room for all that it will give; ``coming``: frames until then."""
        for reader in self.readers:
            assert reader.join is not None
            results = -(-coming // self.frames) + reader.join.on_the_way
            if len(reader.queue) + results > reader.queue.depth or not reader.room_behind(results + reader.backlog):
                return False
        return True

    def read(self, frame: int) -> dict[str, Array]:
        """A frame's tensors."""
        return {tensor.name: self.sources[tensor.name].read(frame, tensor) for tensor in self._inputs}

    def take(self) -> None:
        """Put the frames that waited longest in flight."""
        self.in_flight = [self.queue.take() for _ in range(self.frames)]

    def load(self) -> None:
        """Hand the frames in flight over.

        Raises:
            EndOfStream: there are not so many.
        """
        if not self._inputs:
            return
        read = [self.read(arrival.frame) for arrival in self.in_flight]
        self.execution.load(read[0] if self.frames == 1 else read)

    def gives_none(self, failing: Collection[int]) -> bool:
        """Whether the model has no results while these models fail: it is one of them, or reads one."""
        return self.model in failing or self.starves(failing)

    def starves(self, failing: Collection[int]) -> bool:
        """Whether no frames come to it while these models fail."""
        return self.join is not None and any(giver.gives_none(failing) for giver in self.join.givers)

    @property
    def entry(self) -> Job:
        """Where the model's frames wait."""
        return self

    @property
    def outlet(self) -> Job:
        """Where its results come from."""
        return self

    def abort_frame(self, now_ns: int) -> list[Arrival]:  # noqa: ARG002 - a stage tells the others
        """Let the frame in flight go, unfinished; what it consisted of."""
        left, self.in_flight, self.next_segment, self.started_ns = self.in_flight, [], 0, -1
        self.execution.abandon()
        if self.following is not None:
            self.take_up(self.following)
        return left

    def clear(self) -> list[Arrival]:
        """Forget all frames; those in flight and those that wait."""
        left = [*self.in_flight, *self.queue.clear()]
        self.in_flight, self.next_segment, self.started_ns = [], 0, -1
        return left
