"""Injected faults of streams: stalls, bursts, ends, and frames of another shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from framefit.core.faults import Fault
from framefit.core.model import TensorInfo
from framefit.devices.device import Array
from framefit.execution.streams import Stream, fitted
from framefit.runtime.streams import Feed

_OF_FEEDS = ("stall", "burst", "end")


class FaultyFrameSource:
    """Brings the frames of a feed to windows: none while a stream stalls, several in a burst, none after its end.

    Args:
        feed: the streams in step: a fault in one of them affects all.
        faults: of these streams.
        after_ns: from the first release to that of the present window.
        over: called at their end, where that ends the run.
    """

    def __init__(
        self, feed: Feed, faults: Sequence[Fault], after_ns: Callable[[], int], over: Callable[[], None]
    ) -> None:
        self._feed, self._faults, self._after_ns, self._over = feed, list(faults), after_ns, over
        self._left = {id(fault): fault.times for fault in faults}

    def __len__(self) -> int:
        """Frames that a window would get."""
        return 0 if self._feed.over or self._due("stall") else 1

    def take(self) -> int:
        """Let frames come; how many."""
        if self._due("end"):
            self._feed.over = True
            if not self._feed.waits:
                self._over()
        if not len(self):
            return 0
        bursts = [fault for fault in self._due("burst") if self._left[id(fault)] != 0]
        for fault in bursts:
            left = self._left[id(fault)]
            self._left[id(fault)] = None if left is None else left - 1
        return max([1, *(int(fault.amount) for fault in bursts)])

    def _due(self, kind: str) -> list[Fault]:
        after_ns = self._after_ns()
        return [fault for fault in self._faults if fault.kind == kind and fault.due(after_ns)]


class FaultyStream:
    """A stream of which some frames have another shape.

    Args:
        stream: gives the frames.
        name: of it.
        faults: of this stream.
        after_ns: time since the first release; negative before it.
    """

    def __init__(self, stream: Stream, name: str, faults: Sequence[Fault], after_ns: Callable[[], int]) -> None:
        self._stream, self._name, self._after_ns = stream, name, after_ns
        self._left = [(fault, fault.times) for fault in faults]
        self._judged = -1
        self._bad: set[int] = set()

    @property
    def length(self) -> int | None:
        """The stream's."""
        return self._stream.length

    def has(self, frame: int) -> bool:
        """Whether the stream has it."""
        return self._stream.has(frame)

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """A frame, or what does not fit.

        Raises:
            InputError: that does not fit the input; one that takes all shapes gets it as it is.
            EndOfStream: there are not so many.
        """
        array = self._stream.read(frame, tensor)
        after_ns = self._after_ns()
        if frame > self._judged and after_ns >= 0:
            self._judged = frame
            if self._is_due(after_ns):
                self._bad.add(frame)
        if frame not in self._bad:
            return array
        return fitted(array.reshape(-1)[:-1], tensor, f"stream {self._name!r}, frame {frame}, injected")

    def _is_due(self, after_ns: int) -> bool:
        for number, (fault, left) in enumerate(self._left):
            if fault.due(after_ns) and left != 0:
                self._left[number] = fault, None if left is None else left - 1
                return True
        return False


def disturbed(streams: Mapping[str, Stream], faults: Sequence[Fault], after_ns: Callable[[], int]) -> dict[str, Stream]:
    """Streams with the faults of their frames.

    Args:
        streams: by name.
        faults: those of other kinds are left out.
        after_ns: time since the first release; negative before it.
    """
    found = dict(streams)
    for name in {fault.name for fault in faults if fault.kind == "shape"}.intersection(streams):
        mine = [fault for fault in faults if fault.kind == "shape" and fault.name == name]
        found[name] = FaultyStream(streams[name], name, mine, after_ns)
    return found


def disturb_feeds(
    feeds: Mapping[str, Feed], faults: Sequence[Fault], after_ns: Callable[[], int], over: Callable[[], None]
) -> None:
    """Inject faults into what brings frames.

    Args:
        feeds: stream -> what brings its frames.
        faults: those of other kinds are left out.
        after_ns: from the first release to that of the present window.
        over: ends the run.
    """
    for feed in {id(feed): feed for feed in feeds.values()}.values():
        mine = [fault for fault in faults if fault.kind in _OF_FEEDS and feeds.get(fault.name) is feed]
        if mine:
            feed.frame_source = FaultyFrameSource(feed, mine, after_ns, over)
