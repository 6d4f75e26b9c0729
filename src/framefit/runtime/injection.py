"""Inject faults into streams: stalls, bursts, ends, and frames of another shape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from framefit.core.faults import Fault
from framefit.core.model import TensorInfo
from framefit.devices.device import Array
from framefit.execution.streams import Stream, fitted

_OF_FEEDS = ("stall", "burst", "end")


class FaultyFrameSource:
    """Brings frames of streams in step to windows: none while one stalls, several in a burst, none after its end.

    Args:
        faults: of these streams; a fault in one of them affects all.
        after_ns: from the first release to that of the present window.
        end_run: called when they end; ``None``: then their feed ends the run.

    Attributes:
        over: whether they have ended.
    """

    def __init__(
        self, faults: Sequence[Fault], after_ns: Callable[[], int], end_run: Callable[[], None] | None
    ) -> None:
        self._faults, self._after_ns, self._end_run = list(faults), after_ns, end_run
        self.over = False
        self._left = {id(fault): fault.times for fault in faults}

    def __len__(self) -> int:
        """Return how many frames a window would get."""
        return 0 if self.over or self._due("stall") else 1

    def take(self) -> int:
        """Let frames come, and return how many."""
        if self._due("end"):
            self.over = True
            if self._end_run is not None:
                self._end_run()
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
    """Gives some frames of a stream another shape.

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
        """It is the stream's."""
        return self._stream.length

    def has(self, frame: int) -> bool:
        """Return whether the stream has it."""
        return self._stream.has(frame)

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Return a frame, or an array that does not fit.

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


@dataclass(frozen=True)
class StreamFaults:
    """Injects the faults of a run's streams.

    Attributes:
        faults: those of other kinds are left out.
        after_ns: time since the first release; negative before it.
        released_ns: from the first release to that of the present window.
        end_run: ends the run, as the end of a stream does that waits for nobody.
    """

    faults: Sequence[Fault]
    after_ns: Callable[[], int]
    released_ns: Callable[[], int]
    end_run: Callable[[], None]

    def in_streams(self, streams: Mapping[str, Stream]) -> dict[str, Stream]:
        """Return streams, by name, with the faults of their frames."""
        disturbed = dict(streams)
        for name in {fault.name for fault in self.faults if fault.kind == "shape"}.intersection(streams):
            mine = [fault for fault in self.faults if fault.kind == "shape" and fault.name == name]
            disturbed[name] = FaultyStream(streams[name], name, mine, self.after_ns)
        return disturbed

    def frame_source(self, streams: Collection[str], *, waits: bool) -> FaultyFrameSource | None:
        """Return what brings the frames of streams that stay in step; ``None``: they have no such faults."""
        mine = [fault for fault in self.faults if fault.kind in _OF_FEEDS and fault.name in streams]
        return FaultyFrameSource(mine, self.released_ns, None if waits else self.end_run) if mine else None
