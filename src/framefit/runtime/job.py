"""A model as the dispatcher sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from framefit.core.model import TensorInfo
from framefit.devices.device import Array, Completion, Tensors
from framefit.runtime.sinks import Sink
from framefit.runtime.streams import Arrival, Feed, Queue, Stream

__all__ = ["Job", "Launchable"]


class Launchable(Protocol):
    """What a job launches: :class:`framefit.runtime.execution.Execution`, or bare durations."""

    @property
    def frame_inputs(self) -> tuple[TensorInfo, ...]:
        """What one frame consists of."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Kinds of its segments in the trace."""

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Take a frame, or as many as the model consumes at once."""

    def step(self, index: int) -> Callable[[], Completion]:
        """What runs a segment of the frame in flight; made ready before the segment ahead of it runs."""

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Copies of the outputs of the frame in flight."""

    def finish(self) -> None:
        """The frame is done."""


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
        tap: told of every frame as soon as it is done: what was in flight, when it started and
            finished; ``None``: nobody is. The outputs are still those of that frame.
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
    tap: Callable[[Sequence[Arrival], int, int], None] | None = None
    model: int | None = None
    onward: Callable[[int], None] | None = None
    freed: Callable[[int], None] | None = None
    next_segment: int = 0
    in_flight: list[Arrival] = field(default_factory=list)
    started_ns: int = -1
    _inputs: tuple[TensorInfo, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._inputs = self.execution.frame_inputs

    @property
    def reads_streams(self) -> bool:
        """Whether frames come to it from a feed."""
        return True

    @property
    def owed(self) -> bool:
        """Whether a frame that has come is still on its way to this job."""
        return False

    @property
    def has_work(self) -> bool:
        """Whether a frame that has come is still to be done."""
        return self.ready

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

    def accepts(self, frame: int, window: int) -> bool:
        """Whether a frame may come in this window: it is skipped, or there is room for it.

        A priority model of ``every`` n has its instants in windows 0, n, 2n, ...: there only.
        """
        if frame % self.every:
            return True
        return not (self.queue.full or (self.priority and window % self.every))

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

    def clear(self) -> list[Arrival]:
        """Forget all frames; those in flight and those that wait."""
        left = [*self.in_flight, *self.queue.clear()]
        self.in_flight, self.next_segment, self.started_ns = [], 0, -1
        return left
