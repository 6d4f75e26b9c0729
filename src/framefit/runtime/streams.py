"""How frames come: those of streams with windows, in step, and events of sporadic models at any time.

An event is a frame that waits for no window. It gets to its unit as a message that can be used from the moment at which
it comes: the unit looks at its mailbox between any two launches, and is woken where it sleeps. Events are replayed, as
the workload says or at random times, or a program submits them. One that comes sooner than the least distance after the
one before that was taken is dropped: bounds rest on that distance.
"""

from __future__ import annotations

import itertools
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from framefit.core.model import TensorInfo
from framefit.core.workload import StreamEntry
from framefit.devices.device import Array
from framefit.execution.streams import Stream

_LONG_AGO = -(1 << 62)


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


class SubmittedEvents(Protocol):
    """Events that a program submits."""

    def take(self) -> bool:
        """Let the next one come, if it is still there."""

    def submitted_ns(self, index: int) -> int:
        """When the one that came as the ``index``-th was submitted, on the run's clock."""


@dataclass
class Events:
    """Brings the events of one sporadic model.

    Attributes:
        feed: counts them.
        distance_ns: between two that are taken, at least.
        times_ns: when each comes after the first release, in order; of a run that replays them.
        submitted: where they come from else.
        came_ns: when each came, by number.
    """

    feed: Feed
    distance_ns: int
    times_ns: Iterator[int] = field(default_factory=lambda: iter(()))
    submitted: SubmittedEvents | None = None
    came_ns: array[int] = field(default_factory=lambda: array("q"))
    _taken_ns: int = _LONG_AGO

    def next_ns(self) -> int | None:
        """When the next one comes after the first release; ``None``: there is none, or nobody knows."""
        return next(self.times_ns, None)

    @property
    def possible_ns(self) -> int:
        """When the next one that is taken can come, at the earliest; past where that is at any time."""
        return self._taken_ns + self.distance_ns

    def come(self, time_ns: int) -> tuple[int, int, bool] | None:
        """An event comes: its number, when it came, and whether it is far enough from the one before.

        Args:
            time_ns: of one that is replayed, on the run's clock.

        Returns:
            ``None``: it is gone, for a newer one took its place.
        """
        number = len(self.came_ns)
        if self.submitted is not None:
            if not self.submitted.take():
                return None
            time_ns = self.submitted.submitted_ns(number)
        self.came_ns.append(time_ns)
        self.feed.delivered = number + 1
        fits = time_ns - self._taken_ns >= self.distance_ns
        if fits:
            self._taken_ns = time_ns
        return number, time_ns, fits


def replayed_ns(entry: StreamEntry, distance_ns: int, seed: int, length: int | None) -> Iterator[int]:
    """When the events of a stream come, after the first release.

    Args:
        entry: says when, or leaves it to chance: then they come ``distance_ns`` and a time of an exponential
            distribution with the same mean apart.
        distance_ns: least time between two.
        seed: of the random times.
        length: events that the stream has; ``None``: without end.
    """
    times = _random_ns(distance_ns, seed) if entry.times_ms is None else (round(ms * 1e6) for ms in entry.times_ms)
    return itertools.islice(times, length)


def _random_ns(distance_ns: int, seed: int) -> Iterator[int]:
    random = np.random.default_rng(seed)
    at = int(random.exponential(distance_ns))
    while True:
        yield at
        at += distance_ns + int(random.exponential(distance_ns))
