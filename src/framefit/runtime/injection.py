"""Inject faults into streams: stalls, bursts, ends, and frames of another shape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from framefit.core.faults import Fault
from framefit.core.model import TensorInfo
from framefit.devices.device import Array
from framefit.execution.streams import Stream, fitted

Note = Callable[[Fault, int], None]
_OF_FEEDS = ("stall", "burst", "end")


class FaultyFrameSource:
    """Brings frames of streams in step to windows: none while one stalls, several in a burst, none after its end.

    Args:
        faults: of these streams; a fault in one of them affects all.
        after_ns: from the first release to that of the present window.
        note: called with a fault, and when the window was released, for each window that it changes.
        end_run: called when they end; ``None``: then their feed ends the run.

    Attributes:
        over: whether they have ended.
    """

    def __init__(
        self, faults: Sequence[Fault], after_ns: Callable[[], int], note: Note, end_run: Callable[[], None] | None
    ) -> None:
        self._faults, self._after_ns, self._note, self._end_run = list(faults), after_ns, note, end_run
        self.over = False
        self._left = {id(fault): fault.times for fault in faults}

    def __len__(self) -> int:
        """Return how many frames a window would get."""
        return 0 if self.over or self._due("stall") else 1

    def take(self) -> int:
        """Let frames come, and return how many."""
        if ends := self._due("end"):
            for fault in [] if self.over else ends:
                self._note(fault, self._after_ns())
            self.over = True
            if self._end_run is not None:
                self._end_run()
        if not len(self):
            for fault in [] if self.over else self._due("stall"):
                self._note(fault, self._after_ns())
            return 0
        bursts = [fault for fault in self._due("burst") if self._left[id(fault)] != 0]
        for fault in bursts:
            left = self._left[id(fault)]
            self._left[id(fault)] = None if left is None else left - 1
            self._note(fault, self._after_ns())
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
        note: called with a fault, and that time, for each frame that it changes.
    """

    def __init__(
        self, stream: Stream, name: str, faults: Sequence[Fault], after_ns: Callable[[], int], note: Note
    ) -> None:
        self._stream, self._name, self._after_ns, self._note = stream, name, after_ns, note
        self._left = [(fault, fault.times) for fault in faults]
        self._judged = -1
        self._bad: dict[int, Fault] = {}

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
            if (fault := self._due(after_ns)) is not None:
                self._bad[frame] = fault
                self._note(fault, after_ns)
        if frame not in self._bad:
            return array
        where = f"stream {self._name!r}, frame {frame} {self._bad[frame].mark}"
        return fitted(array.reshape(-1)[:-1], tensor, where)

    def _due(self, after_ns: int) -> Fault | None:
        for number, (fault, left) in enumerate(self._left):
            if fault.due(after_ns) and left != 0:
                self._left[number] = fault, None if left is None else left - 1
                return fault
        return None


@dataclass(frozen=True)
class StreamFaults:
    """Injects the faults of a run's streams.

    Attributes:
        faults: those of other kinds are left out.
        after_ns: time since the first release; negative before it.
        released_ns: from the first release to that of the present window.
        note: called with a fault, and the time since the first release, each time that it is injected.
        end_run: ends the run, as the end of a stream does that waits for nobody.
    """

    faults: Sequence[Fault]
    after_ns: Callable[[], int]
    released_ns: Callable[[], int]
    note: Note
    end_run: Callable[[], None]

    def in_streams(self, streams: Mapping[str, Stream]) -> dict[str, Stream]:
        """Return streams, by name, with the faults of their frames."""
        disturbed = dict(streams)
        for name in {fault.name for fault in self.faults if fault.kind == "shape"}.intersection(streams):
            mine = [fault for fault in self.faults if fault.kind == "shape" and fault.name == name]
            disturbed[name] = FaultyStream(streams[name], name, mine, self.after_ns, self.note)
        return disturbed

    def frame_source(self, streams: Collection[str], *, waits: bool) -> FaultyFrameSource | None:
        """Return what brings the frames of streams that stay in step; ``None``: they have no such faults."""
        mine = [fault for fault in self.faults if fault.kind in _OF_FEEDS and fault.name in streams]
        if not mine:
            return None
        return FaultyFrameSource(mine, self.released_ns, self.note, None if waits else self.end_run)
