"""Where frames come from, and the queues in which they wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from framefit.core.workload import WhenFull
from framefit.runtime.log import FrameOutcome

__all__ = ["Arrival", "Feed", "FrameSource", "Gate", "Queue"]


class Arrival(NamedTuple):
    """A frame that has come: its number in the stream, and the window with whose release it came."""

    frame: int
    window: int


class FrameSource(Protocol):
    """Frames that wait until a window takes them."""

    def __len__(self) -> int:
        """How many wait."""

    def take(self) -> int:
        """Let the next one come, if there is one; how many come."""


class Gate(Protocol):
    """What decides for several units whether a window brings a frame."""

    def __call__(self, window: int) -> None:
        """Let the next frame come to all of them, if this has not been decided yet and it may."""

    def dry(self, unit: object) -> bool:
        """Told by a unit that nothing will be left for it to do; whether all of them have said so."""


@dataclass
class Feed:
    """Streams that stay in step: a window brings the next frame of all of them, or none.

    Streams that one model reads together are of one feed.

    Attributes:
        streams: their names, which tell the windows that may bring a frame; none: all may.
        waits: a window brings no frame while a model has no room for it.
        delivered: frames that came; the next one's number.
        waited: windows that brought none, though there was one.
        missing: windows that brought none, for there was none.
        over: the streams have ended.
        intake: where the next frame comes from; ``None``: there always is one.
        gate: lets the next frame come to several units, whichever asks first for a window; ``None``: one reads it.
    """

    waits: bool = False
    streams: frozenset[str] = frozenset()
    delivered: int = 0
    waited: int = 0
    missing: int = 0
    over: bool = False
    frame_source: FrameSource | None = None
    gate: Gate | None = None

    @property
    def empty(self) -> bool:
        """Whether there is no frame that could come."""
        return self.over or (self.frame_source is not None and not len(self.frame_source))


class Queue:
    """Frames that wait for one model.

    Args:
        depth: how many may wait.
        when_full: which frame goes when another arrives; "block": the feed asks for
            :attr:`full` first, and none goes.
    """

    def __init__(self, depth: int, when_full: WhenFull = "drop-oldest") -> None:
        self._frames: deque[Arrival] = deque()
        self.depth = depth
        self.when_full = when_full

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def refusal(self) -> FrameOutcome:
        """What becomes of a frame that it does not take."""
        return FrameOutcome.REFUSED

    @property
    def full(self) -> bool:
        """Whether a frame that arrives has to wait outside: never where one is dropped instead."""
        return self.when_full == "block" and len(self._frames) >= self.depth

    def put(self, frame: Arrival) -> Arrival | None:
        """Add a frame; the one that is dropped for it, or None."""
        dropped = None
        if len(self._frames) == self.depth:
            if self.when_full != "drop-oldest":
                return frame
            dropped = self._frames.popleft()
        self._frames.append(frame)
        return dropped

    def take(self) -> Arrival:
        """The one that waited longest."""
        return self._frames.popleft()

    def clear(self) -> Sequence[Arrival]:
        """All that wait, and none any more."""
        frames = list(self._frames)
        self._frames.clear()
        return frames
