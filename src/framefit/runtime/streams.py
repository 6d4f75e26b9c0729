"""Where frames come from, and the queues in which they wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from framefit.core.model import TensorInfo
from framefit.devices.device import Array
from framefit.execution.streams import Stream


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
