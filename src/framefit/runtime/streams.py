"""Bring frames of streams to windows, in step."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from framefit.core.model import TensorInfo
from framefit.devices.device import Array
from framefit.execution.streams import Stream


class Arrival(NamedTuple):
    """Names a frame that has come by its number in the stream, and the window with whose release it came."""

    frame: int
    window: int


class FrameSource(Protocol):
    """Holds frames that wait until a window takes them."""

    def __len__(self) -> int:
        """Return how many wait."""

    def take(self) -> int:
        """Let the next one come, if there is one, and return how many come."""

    @property
    def over(self) -> bool:
        """It tells whether none will come any more."""


@dataclass
class Feed:
    """Counts the frames of streams that stay in step: a window brings the next frame of all of them, or none.

    Streams that one model reads together are of one feed.

    Attributes:
        streams: their names, which tell the windows that may bring a frame; none: all may.
        waits: a window brings no frame while a model has no room for it.
        frame_source: where the next frame comes from; ``None``: there always is one.
        delivered: frames that came; the next one's number.
        waited: windows that brought none, though there was one.
        missing: windows that brought none, for there was none.
        ended: a stream has no frame of the next number.
    """

    waits: bool = False
    streams: frozenset[str] = frozenset()
    frame_source: FrameSource | None = None
    delivered: int = 0
    waited: int = 0
    missing: int = 0
    ended: bool = False

    @property
    def over(self) -> bool:
        """It tells whether no frame will come any more."""
        return self.ended or (self.frame_source is not None and self.frame_source.over)

    @property
    def empty(self) -> bool:
        """It tells whether there is no frame that could come now."""
        return self.over or (self.frame_source is not None and not len(self.frame_source))


class SharedStream:
    """Lets several threads read a stream, one at a time.

    Args:
        stream: that is read.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    @property
    def length(self) -> int | None:
        """It is the stream's."""
        return self._stream.length

    def has(self, frame: int) -> bool:
        """Return whether the stream has it."""
        with self._lock:
            return self._stream.has(frame)

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Return frame number ``frame``; see :class:`framefit.execution.streams.Stream`."""
        with self._lock:
            return self._stream.read(frame, tensor)
