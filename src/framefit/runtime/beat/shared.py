"""What several threads use: streams, and the queues of models on several units that wait for one another."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from framefit.core.model import TensorInfo
from framefit.devices.device import Array
from framefit.runtime.frames.streams import Arrival, Queue, Stream
from framefit.runtime.models.job import Job

__all__ = ["SharedQueue", "SharedStream", "share_streams"]


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
        """Frame number ``frame``; see :class:`framefit.runtime.frames.streams.Stream`."""
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
