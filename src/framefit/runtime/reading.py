"""Models that read others: what one is done with becomes a frame of the next."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from framefit.core.model import TensorInfo
from framefit.core.spacing import own_frame
from framefit.core.timetable import PlannedModel
from framefit.devices.device import Array, Device, allocate
from framefit.execution.buffers import copies_of
from framefit.execution.execution import Launchable
from framefit.runtime.channel import Message, MessageKind, Port
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.sinks import Sink
from framefit.runtime.streams import Arrival

Results = Callable[[Sequence[str] | None], dict[str, Array]]  # names (None: all) -> outputs of a frame


class FinishedFrame(NamedTuple):
    """A frame that a model is done with, and that may leave.

    Attributes:
        arrivals: what was in flight.
        started_ns: begin of the model's first launch for it.
        finished_ns: end of its last one, or when it could leave, behind earlier frames.
        deadline_ns: after release; ``None``: none.
        execution: what launched the end of it, and holds its outputs while observers are called.
        results: copies the model's outputs for it; while observers are called.
        outputs: what sinks get, copied where the frame may have to wait for earlier ones.
    """

    arrivals: Sequence[Arrival]
    started_ns: int
    finished_ns: int
    deadline_ns: int | None
    execution: Launchable
    results: Results
    outputs: Sequence[tuple[Sink, dict[str, Array]]] = ()


class FrameObserver(Protocol):
    """Follows a model's frames; called by the thread that completes them, at once."""

    def frame_finished(self, frame: FinishedFrame, released_ns: int) -> None:
        """A frame is done; it came at ``released_ns``."""


class SourceModel(Protocol):
    """The first job of a model that another one reads."""

    @property
    def pending(self) -> bool:
        """Whether the model has a frame, or gets one that has come already."""

    def gives_none(self, failing: Collection[int]) -> bool:
        """Whether there will be no results of it while these models fail."""


class ResultStream:
    """Outputs of one model for another one that reads them: a stream of its inputs.

    They are copied when the model is done with a frame, for the next frame is written over them. There are
    as many copies as were made ahead: a frame that finds none is not given.

    Args:
        inputs: input of the reading model -> output that it reads, and what it is.
        copies: how many may be kept.

    Attributes:
        given: results that were copied so far.
        most: copies that were in use at once at most.
    """

    length = None

    def __init__(self, inputs: Mapping[str, tuple[str, TensorInfo]], copies: int) -> None:
        self.outputs = {name: read for name, (read, _) in inputs.items()}
        self.copies = copies
        self.frame_bytes = sum(tensor.bytes for _, tensor in inputs.values())
        self._free = deque({name: allocate(tensor) for name, (_, tensor) in inputs.items()} for _ in range(copies))
        self._kept: dict[int, dict[str, Array]] = {}
        self._ready: dict[int, dict[str, Array]] = {}
        self.given = self.most = 0

    def keep(self, frame: int, output: Callable[[str], Array]) -> bool:
        """Copy the outputs of a frame; whether there was room. The giving model's thread calls it.

        Args:
            frame: its number.
            output: gives an output of it by its name, to be copied at once.
        """
        try:
            arrays = self._free.popleft()
        except IndexError:
            return False
        for name, read in self.outputs.items():
            np.copyto(arrays[name], output(read))
        self._kept[frame] = arrays
        self.most = max(self.most, self.copies - len(self._free))
        self.given += 1
        return True

    def offer(self, frame: int, as_frame: int) -> None:
        """Let the reading model have a frame, by its own number for it."""
        self._ready[as_frame] = self._kept.pop(frame)

    def skip(self, frame: int) -> None:
        """A kept frame will not be read."""
        self._free.append(self._kept.pop(frame))

    def let_go(self, frame: int) -> None:
        """The reading model is done with what it was offered."""
        self._free.append(self._ready.pop(frame))

    def has(self, frame: int) -> bool:
        """Whether it was offered."""
        return frame in self._ready

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """What an input gets; valid until the frame is let go."""
        return self._ready[frame][tensor.name]


@dataclass
class ResultJoin:
    """How a model gets its frames of those that it reads: when all of them are done with the same release.

    Attributes:
        givers: first jobs of these models, in the order of its inputs.
        models: numbers of these models.
        streams: what each gives.
        every: results of theirs between its own frames.
        steps: from releases to results of theirs, one model after the other, where its frames are due by their numbers;
            none: results are counted, so that a model that drops every second one is read all the same.
        received: results that were dealt with.
    """

    givers: Sequence[SourceModel]
    models: Sequence[int]
    streams: Sequence[ResultStream]
    every: Fraction | int = 1
    steps: Sequence[Fraction] = ()
    received: int = field(default=0, init=False)
    _there: list[deque[Arrival]] = field(init=False)
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._there = [deque() for _ in self.givers]

    @property
    def owed(self) -> bool:
        """Whether a frame is on its way."""
        return self._given > self.received or any(giver.pending for giver in self.givers)

    def add(self, source: int, arrival: Arrival) -> Iterator[tuple[Arrival, bool]]:
        """A result has come; the frames that are complete with it, and whether the model takes them.

        Results of releases that another model has dropped are passed over.

        Args:
            source: number of the model among those that it reads.
            arrival: the newest frame in the result.
        """
        there = self._there
        there[source].append(arrival)
        while all(there):
            newest = max(waiting[0].window for waiting in there)
            behind = [number for number, waiting in enumerate(there) if waiting[0].window < newest]
            for number in behind:
                self.streams[number].skip(there[number].popleft().frame)
            if behind:
                continue
            heads = [waiting.popleft() for waiting in there]
            wanted = self._wanted(heads[0].frame)
            for stream, head in zip(self.streams, heads, strict=True):
                if wanted:
                    stream.offer(head.frame, heads[0].frame)
                else:
                    stream.skip(head.frame)
            yield heads[0], wanted
        self.received += 1

    @property
    def on_the_way(self) -> int:
        """Results that were handed over and are in no queue yet."""
        return self._given - self.received + sum(map(len, self._there))

    @property
    def _given(self) -> int:
        return sum(stream.given for stream in self.streams)

    def _wanted(self, frame: int) -> bool:
        number = self._count
        if self.steps:
            number = functools.reduce(
                lambda number, step: number * step.denominator // step.numerator, self.steps, frame
            )
        self._count += 1
        return own_frame(number, self.every) is not None


@dataclass(frozen=True)
class ReadModel:
    """A model that another one reads.

    Attributes:
        model: its part in the plan.
        inputs: input of the reading model -> output that it reads, and what a frame of it is; none where no tensors are
            computed.
        steps: from releases of its stream to its results, see :class:`ResultJoin`.
    """

    model: PlannedModel
    inputs: Mapping[str, tuple[str, TensorInfo]] = field(default_factory=dict)
    steps: Sequence[Fraction] = (Fraction(1),)


def result_streams(read: Sequence[ReadModel], slots: int, frames: int) -> list[ResultStream]:
    """Make the streams of a model that reads others, one for each of these.

    Args:
        read: the models that it reads, in the order of its inputs.
        slots: frames that may wait for it.
        frames: that it takes at once.
    """
    copies = copies_of(slots, frames, [entry.model for entry in read])
    return [ResultStream(entry.inputs, copies) for entry in read]


class ResultDelivery:
    """Sends each result of a model to one that reads it: an observer of its frames.

    Args:
        device: knows how long the way to another unit takes.
        unit: that the model's results are written on.
        reader: where messages for the reading job go.
        stream: keeps the results until they are read.
        source: number of the model among those that the other one reads.
    """

    def __init__(self, device: Device, unit: str, reader: Port, stream: ResultStream, source: int) -> None:
        self._device, self._unit, self._reader = device, unit, reader
        self._stream, self._source = stream, source

    def frame_finished(self, frame: FinishedFrame, released_ns: int) -> None:  # noqa: ARG002 - the protocol's form
        """Copy the outputs, and say when they can be read."""
        newest, stream = frame.arrivals[-1], self._stream
        if not stream.keep(newest.frame, frame.execution.output):
            return  # nobody has read the last ones
        unit, mailbox, number = self._reader
        ready_ns = frame.finished_ns
        if unit != self._unit:
            ready_ns = self._device.arrival_ns(self._unit, unit, stream.frame_bytes, ready_ns)
        mailbox.send(Message(ready_ns, number, stream.given, MessageKind.RESULT, (newest,), source=self._source))


_Rows = npt.NDArray[np.int64]


def with_unread(rows: _Rows, readers: Mapping[int, Sequence[int]], *, ended: bool) -> _Rows:
    """Fates of frames, with those that never came to a model because one that it reads did not give them.

    Args:
        rows: of the log of frames.
        readers: model -> those that it reads, each after those that it reads itself.
        ended: whether the run has: what a model has given and the other has not noted lies between them.
    """
    for reader, givers in readers.items():
        known = rows[rows[:, FrameLog.MODEL] == reader, FrameLog.FRAME]
        first = rows[rows[:, FrameLog.MODEL] == givers[0]]
        missing = ~np.isin(first[:, FrameLog.FRAME], known)
        added = first[missing]
        windows = added[:, FrameLog.WINDOW]
        outcomes = np.full(len(added), FrameOutcome.RUN_ENDED)
        for giver in givers:
            given = rows[rows[:, FrameLog.MODEL] == giver]
            dropped = given[np.isin(given[:, FrameLog.OUTCOME], _DROPPED), FrameLog.WINDOW]
            skipped = given[given[:, FrameLog.OUTCOME] == FrameOutcome.SKIPPED, FrameLog.WINDOW]
            outcomes[np.isin(windows, dropped)] = FrameOutcome.NOT_GIVEN
            outcomes[np.isin(windows, skipped)] = FrameOutcome.SKIPPED
        outcomes[_older(first)[missing]] = FrameOutcome.SKIPPED
        added[:, FrameLog.MODEL], added[:, FrameLog.OUTCOME] = reader, outcomes
        added[:, (FrameLog.STARTED, FrameLog.FINISHED)] = -1
        rows = np.concatenate([rows, added if ended else added[outcomes != FrameOutcome.RUN_ENDED]])
    return rows


_DROPPED = [
    outcome
    for outcome in FrameOutcome
    if outcome not in (FrameOutcome.DONE, FrameOutcome.LATE, FrameOutcome.SKIPPED, FrameOutcome.RUN_ENDED)
]


def _older(rows: _Rows) -> npt.NDArray[np.bool_]:
    """Frames that went into one result with a newer one: that is the one which was given."""
    finished, frame = rows[:, FrameLog.FINISHED], rows[:, FrameLog.FRAME]
    results, of = np.unique(finished, return_inverse=True)
    newest = np.full(len(results), -1, np.int64)
    np.maximum.at(newest, of, frame)
    older: npt.NDArray[np.bool_] = (finished >= 0) & (frame < newest[of])
    return older
