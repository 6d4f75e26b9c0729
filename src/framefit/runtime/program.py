"""A program beside the beat: the frames that it submits, and the results that it subscribes to or asks for.

Submitted frames wait in a :class:`SubmissionQueue` until windows take them. A :class:`ResultPublisher` observes a model
and copies its results to subscriptions and requests; neither makes the run's thread wait.
"""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from framefit.core.model import TensorInfo
from framefit.core.run_record import TOO_SOON, FrameTable, OutcomeText
from framefit.core.workload import WhenFull
from framefit.devices.device import Array
from framefit.errors import FramefitError, InputError
from framefit.execution.streams import fitted
from framefit.runtime.channel import Channel, Message, MessageKind, Port
from framefit.runtime.log import FrameOutcome, FrameOutcomes, in_words
from framefit.runtime.reading import FinishedFrame
from framefit.runtime.sinks import AggregatingSink, Sink
from framefit.runtime.streams import Arrival

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

__all__ = ["FrameFate", "Output", "PushedStream", "Request", "SubmissionQueue", "Subscription"]


Reader = tuple[TensorInfo, Callable[[Array], object] | None]  # what a frame is asked for as, and what prepares that
_POLL_S = 0.01  # a thread that waits for room looks itself, where no window leaves the time to wake it
_MARGIN = 8  # frames kept beyond those that may wait: a model takes them from its queue before it reads them
_OVERTAKEN = "a newer frame was submitted before a window took it"
_REFUSED = "others waited for a window when it was submitted"
_LEFT = "the run ended before a window took it"
_ENDED = "the run ended"
Integers = npt.NDArray[np.int64]
_Forms = Mapping[tuple[str, tuple[int, ...] | None], Array]  # a frame, by type and shape of the inputs that read it


class TimeUpError(FramefitError, TimeoutError):
    """What was waited for did not come in time: room for a frame (which has no number then), or a result."""


class _Submitted(NamedTuple):
    """A frame of each stream of a step."""

    number: int
    submitted_ns: int
    forms: Mapping[str, _Forms]


class _Ledger:
    """Numbers of frames, ascending, and when they were submitted."""

    def __init__(self) -> None:
        self.numbers, self.submitted_ns = array("q"), array("q")

    def add(self, number: int, submitted_ns: int) -> None:
        self.submitted_ns.append(submitted_ns)
        self.numbers.append(number)


def _place(numbers: array[int], number: int) -> int | None:
    """Where a number is among ascending ones, which another thread may add to."""
    place = bisect_left(numbers, number)
    return place if place < len(numbers) and numbers[place] == number else None


def _copied(numbers: array[int]) -> Integers:
    """As an array of its own: one that shares memory would keep the other from growing."""
    return np.frombuffer(numbers.tobytes(), np.int64)


class PushedStream:
    """A stream whose frames are handed over.

    Args:
        name: of the stream.
        readers: what it will be asked for; a frame that fits none is refused when it is handed over.
        keep: frames that a model may be behind.
    """

    length = None

    def __init__(self, name: str, readers: Sequence[Reader], *, keep: int) -> None:
        self.name = name
        self._where = f"stream {name!r}"
        self._readers = tuple(readers)
        self._keep = keep + _MARGIN
        self._accepted: set[tuple[str, tuple[int, ...]]] = set()  # of raw frames that something prepares
        self._forms: dict[int, _Forms] = {}

    def forms(self, frame: object, *, copy: bool) -> _Forms:
        """A frame as its readers take it.

        Args:
            frame: an array, or what NumPy makes one of.
            copy: whether the caller may change it afterwards.

        Raises:
            InputError: it is no array of numbers, or does not fit an input.
        """
        try:
            given: Array = np.asarray(frame)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"a frame is {type(frame).__name__}, no array: {error}", where=self._where, remedy="give numbers"
            ) from error
        if given.dtype.kind not in "biufcV":
            raise InputError(
                f"a frame is {type(frame).__name__} of {given.dtype}", where=self._where, remedy="give numbers"
            )
        forms = self._fitted(given)
        if copy and any(np.may_share_memory(form, given) for form in forms.values()):
            forms = self._fitted(given.copy())
        for tensor, prepare in self._readers:
            form = forms[tensor.dtype, tensor.shape]
            kind = (form.dtype.str, form.shape)
            if prepare is not None and kind not in self._accepted:
                prepare(form)  # else what cannot be prepared is only noticed in the loop
                self._accepted.add(kind)
        return forms

    def keep(self, index: int, forms: _Forms) -> None:
        """Frame ``index`` of those that came; the ones that nobody can ask for any more are let go."""
        self._forms[index] = forms
        self._forms.pop(index - self._keep, None)

    def has(self, frame: int) -> bool:  # noqa: ARG002 - the protocol's form
        """There may always be more: whether any will come, says what brings them."""
        return True

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Frame number ``frame`` of those that windows took."""
        forms = self._forms.get(frame)
        if forms is None:
            raise FramefitError(
                f"frame {frame} is gone: the last {self._keep} are kept",
                where=self._where,
                remedy="give the model a shorter queue",
            )
        return forms[tensor.dtype, tensor.shape]

    def _fitted(self, given: Array) -> dict[tuple[str, tuple[int, ...] | None], Array]:
        return {
            (tensor.dtype, tensor.shape): fitted(given, tensor, self._where, remedy=_SHAPE)
            for tensor, _ in self._readers
        }


_SHAPE = "give frames as the plan was made for; the stream's shape says what they are"


class SubmissionQueue:
    """Where frames of streams that stay in step wait, until windows take them: at most one a window.

    Any number of threads hand frames over, one takes them. Taking asks for no lock, so a thread
    that is put aside while it hands a frame over holds no window up.

    Args:
        streams: frames of all of them are handed over together.
        depth: how many may wait.
        when_full: which goes when another comes, or whether that waits.
        now_ns: the run's clock.
    """

    def __init__(
        self, streams: Sequence[PushedStream], depth: int, when_full: WhenFull, now_ns: Callable[[], int]
    ) -> None:
        self.streams = {stream.name: stream for stream in streams}
        self.depth = depth
        self.when_full = when_full
        self._now_ns = now_ns
        self._waiting: Channel[_Submitted] = Channel(depth, when_full)
        self._room = threading.Condition()
        self._closed: Callable[[], Exception] | None = None
        self.count = 0
        self._came = _Ledger()
        self._dropped = _Ledger()
        self._left = _Ledger()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether another frame has to wait outside."""
        return self._waiting.full

    @property
    def over(self) -> bool:
        """Whether nothing will come any more."""
        return self._closed is not None and not self._waiting

    @property
    def open_ns(self) -> int:
        """How long it is until a frame may come, for the sake of the one before."""
        return 0

    def put(
        self,
        forms: Mapping[str, _Forms],
        *,
        timeout_s: float | None = None,
        announce: Callable[[int], None] | None = None,
    ) -> int:
        """Hand a frame over.

        Args:
            forms: stream -> its frame as readers take it.
            timeout_s: how long to wait for room, where that is the rule; ``None``: for ever.
            announce: called with its number before a window can take it.

        Returns:
            Its number, from 0.

        Raises:
            TimeUpError: there was no room.
            Exception: what :meth:`close` was given.
        """
        with self._room:
            self._wait_for_room(timeout_s)
            number, self.count = self.count, self.count + 1
            if announce is not None:
                announce(number)
            self._add(_Submitted(number, self._now_ns(), forms))
            return number

    def _add(self, frame: _Submitted) -> None:
        dropped = self._waiting.put(frame)
        if dropped is not None:
            self._dropped.add(dropped.number, dropped.submitted_ns)

    def take(self) -> bool:
        """Let the next frame come, if one waits."""
        frame = self._waiting.pop()
        if frame is None:
            return False
        index = len(self._came.numbers)
        for name, forms in frame.forms.items():
            self.streams[name].keep(index, forms)
        self._came.add(frame.number, frame.submitted_ns)
        return True

    def wake(self) -> None:
        """Let threads that wait for room look again; not where that would mean to wait for one of them."""
        if self._room.acquire(blocking=False):
            self._room.notify_all()
            self._room.release()

    def close(self, why: Callable[[], Exception]) -> None:
        """Take no more; those that wait may still come.

        Args:
            why: makes the error that whoever hands a frame over from here on gets.
        """
        with self._room:
            self._closed = self._closed or why
            self._room.notify_all()

    def empty(self) -> None:
        """The run is over: frames that still wait will never come."""
        with self._room:
            while (frame := self._waiting.pop()) is not None:
                self._left.add(frame.number, frame.submitted_ns)

    def number(self, index: int) -> int:
        """Number of the frame that came as the ``index``-th."""
        return self._came.numbers[index]

    def submitted_ns(self, index: int) -> int:
        """When that was handed over, on the run's clock."""
        return self._came.submitted_ns[index]

    def index(self, number: int) -> int | None:
        """As which the frame of a number came; ``None``: it did not, or not yet."""
        return _place(self._came.numbers, number)

    def dropped(self, number: int) -> str | None:
        """Why a frame was never taken by a window; ``None``: it was, or still may be."""
        if _place(self._left.numbers, number) is not None:
            return _LEFT
        return self._reason if _place(self._dropped.numbers, number) is not None else None

    @property
    def _reason(self) -> str:
        return _REFUSED if self.when_full == "drop-newest" else _OVERTAKEN

    @property
    def numbers(self) -> Integers:
        """Numbers of all frames that came, int64; a copy, for the array grows."""
        return _copied(self._came.numbers)

    @property
    def times_ns(self) -> Integers:
        """When each of these was handed over, on the run's clock; a copy."""
        return _copied(self._came.submitted_ns)

    @property
    def never_taken(self) -> list[tuple[str, Integers, Integers]]:
        """Frames that no window took: why, their numbers, and when they were submitted."""
        ledgers = ((self._reason, self._dropped), (_LEFT, self._left))
        return [
            (why, _copied(ledger.numbers), _copied(ledger.submitted_ns))
            for why, ledger in ledgers
            if len(ledger.numbers)
        ]

    def _wait_for_room(self, timeout_s: float | None) -> None:
        """Return when a frame may be handed over; the lock is held, but for waiting."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._closed is not None:
                raise self._closed()
            if not self.full:
                return
            rest = _POLL_S if until is None else min(_POLL_S, until - time.monotonic())
            rest = min(rest, self.open_ns / 1e9 or rest)
            if rest <= 0:
                raise TimeUpError(
                    f"the next event may come in {self.open_ns / 1e9:.3g} s"
                    if self.open_ns
                    else f"{self.depth} frames wait already, and no window took one in {timeout_s:g} s",
                    where=f"stream {next(iter(self.streams))!r}",
                    remedy="submit less often, wait longer, or let frames be dropped (when_full)",
                )
            self._room.wait(rest)


class EventQueue(SubmissionQueue):
    """Where events of a sporadic model wait until their unit looks, which is woken at once.

    An event that comes sooner than the least distance after the last one that was taken is dropped. Where the stream's
    ``when_full`` is "block", whoever submits it waits until it may come instead.

    Args:
        streams: their events are submitted together.
        depth: how many may wait.
        when_full: see above; else which goes when another comes.
        now_ns: the run's clock.
        distance_ns: between two events, at least.
        port: of the job that serves them.
    """

    def __init__(
        self,
        streams: Sequence[PushedStream],
        depth: int,
        when_full: WhenFull,
        now_ns: Callable[[], int],
        distance_ns: int,
        port: Port,
    ) -> None:
        super().__init__(streams, depth, when_full, now_ns)
        self._distance_ns, self._port = distance_ns, port
        self._last_ns: int | None = None
        self._too_soon = _Ledger()

    @property
    def open_ns(self) -> int:
        """How long it is until the next event may come."""
        return 0 if self._last_ns is None else max(self._last_ns + self._distance_ns - self._now_ns(), 0)

    @property
    def full(self) -> bool:
        """Whether another event has to wait outside."""
        return super().full or (self.when_full == "block" and self.open_ns > 0)

    def dropped(self, number: int) -> str | None:
        """Why an event was never taken; ``None``: it was, or still may be."""
        if _place(self._too_soon.numbers, number) is not None:
            return TOO_SOON[1]
        return super().dropped(number)

    @property
    def never_taken(self) -> list[tuple[str, Integers, Integers]]:
        """Events that were not taken: why, their numbers, and when they were submitted."""
        soon = self._too_soon
        own = [(TOO_SOON[1], _copied(soon.numbers), _copied(soon.submitted_ns))] if len(soon.numbers) else []
        return [*super().never_taken, *own]

    def _add(self, frame: _Submitted) -> None:
        if self._last_ns is not None and frame.submitted_ns - self._last_ns < self._distance_ns:
            self._too_soon.add(frame.number, frame.submitted_ns)
            return
        self._last_ns = frame.submitted_ns
        super()._add(frame)
        self._port.mailbox.send(Message(frame.submitted_ns, self._port.number, frame.number, MessageKind.EVENT))


@dataclass(frozen=True)
class NumberedSink:
    """Gives frames out by the numbers that they were submitted under.

    Attributes:
        sink: takes them.
        inbox: knows the numbers.
    """

    sink: Sink
    submissions: SubmissionQueue

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Pass on."""
        self.sink.put(self.submissions.number(frame), outputs)

    def close(self) -> None:
        """Pass on."""
        self.sink.close()


def with_submitted(
    table: FrameTable, submission_queues: Mapping[str, SubmissionQueue], start_ns: int, *, ended: bool = True
) -> FrameTable:
    """A run's frames under the numbers that they were submitted under, and those that no window took.

    Of these, the time of submission stands for the release that they never had.

    Args:
        table: of the frames that came, counted as they came.
        submission_queues: model -> where its frames waited; models that read other streams are left as they are.
        start_ns: first release on the run's clock.
        ended: whether the run has: what a window took has its fate, or came too late beside a stream that ended.
    """
    frame = table.frame.copy()
    fates: list[OutcomeText] = list(table.fates)
    added: list[tuple[Integers, ...]] = []
    for index, name in enumerate(table.models):
        submissions = submission_queues.get(name)
        if submissions is None:
            continue
        mine = table.model == index
        came = submissions.numbers
        never = submissions.never_taken
        if ended and len(late := np.setdiff1d(np.arange(len(came)), frame[mine])):
            never.append(
                (_ENDED, came[late], np.asarray([submissions.submitted_ns(index_taken) for index_taken in late]))
            )
        frame[mine] = came[frame[mine]]
        for why, numbers, submitted_ns in never:
            fate: OutcomeText = ("dropped", why)
            if fate not in fates:
                fates.append(fate)
            same = np.ones_like(numbers)
            added.append((index * same, numbers, fates.index(fate) * same, submitted_ns - start_ns, -same))
    columns = [(table.model, frame, table.fate, table.released_ns, table.finished_ns), *added]
    model, frame, in_words, released, finished = map(np.concatenate, zip(*columns, strict=True))
    order = np.lexsort((model, frame, released))
    return replace(
        table,
        fates=tuple(fates),
        model=model[order],
        frame=frame[order],
        fate=in_words[order],
        released_ns=released[order],
        finished_ns=finished[order],
    )


def waits_ns(table: FrameTable, submission_queues: Mapping[str, SubmissionQueue], start_ns: int) -> dict[str, Integers]:
    """How long frames waited from when they were handed over to the release of the window that took them.

    Args:
        table: of :func:`with_submitted`.
        submission_queues: see there.
        start_ns: likewise.

    Returns:
        Stream -> int64, one for each frame that a window took; streams of events, which no window takes, are left out.
    """
    waits: dict[str, Integers] = {}
    for index, name in enumerate(table.models):
        submissions = submission_queues.get(name)
        if submissions is None or isinstance(submissions, EventQueue) or set(submissions.streams) <= set(waits):
            continue
        mine = table.model == index
        places = np.searchsorted(submissions.numbers, table.frame[mine])
        taken = np.isin(table.frame[mine], submissions.numbers)
        waited = table.released_ns[mine][taken] + start_ns - submissions.times_ns[places[taken]]
        waits |= dict.fromkeys(submissions.streams, waited)
    return waits


class FrameFate(NamedTuple):
    """What has become of a frame at one model, and why."""

    fate: Literal["waiting", "done", "late", "dropped", "skipped"]
    reason: str


@dataclass(frozen=True, eq=False)
class Output:
    """What a model gave for a frame.

    Attributes:
        model: its name.
        frame: number of the frame, as ``submit`` gave it; of several at once the newest's.
        frames: all that went into it, in order.
        tensors: outputs by name, or what ``postprocess`` made of them; the receiver's own.
        submitted_ns: when the frame was handed over; ``None``: its stream has a source of its own.
        released_ns: begin of the window that took it.
        started_ns, finished_ns: of the model's launches. Times are on the runner's clock: the
            machine's (``time.perf_counter_ns``), or virtual.
        fate: "late" where it was finished after its deadline.
    """

    model: str
    frame: int
    frames: tuple[int, ...]
    tensors: Mapping[str, Array]
    submitted_ns: int | None
    released_ns: int
    started_ns: int
    finished_ns: int
    fate: Literal["done", "late"]


class Waits(Protocol):
    """How a program's thread waits: asleep, or by letting virtual time pass."""

    def until_ns(self, timeout_s: float | None) -> int | None:
        """When a wait from now on is over, on the run's clock; ``None``: never."""

    def pause(self, until_ns: int | None) -> bool:
        """Let some time pass; false where none is left, or nothing more will come."""

    def over(self) -> bool:
        """Whether nothing more will come."""

    def check(self) -> None:
        """Raise what ended the run, if something did."""


class _Finished(NamedTuple):
    """A frame that is done, as the run's thread leaves it."""

    arrivals: Sequence[Arrival]
    released_ns: int
    started_ns: int
    finished_ns: int
    late: bool
    tensors: Mapping[str, Array]
    shared: bool  # others have the same arrays


class ResultPublisher:
    """Where a model's results leave the run: an observer of its frames, which takes no lock, and waits for nobody.

    Args:
        index: number of the model in the log.
        name: of the model.
        submissions: where its frames waited; ``None``: its streams have sources of their own.
        fates: where outcomes are noted at once.
        outputs: names that can be asked for; ``None``: whatever its postprocess gives.
        aggregate: frames whose outputs are given out together.
        after: of the models that this one reads: what they drop never comes to it.
    """

    def __init__(
        self,
        index: int,
        name: str,
        submissions: SubmissionQueue | None,
        fates: FrameOutcomes,
        *,
        outputs: Sequence[str] | None,
        aggregate: int,
        after: Sequence[ResultPublisher] = (),
    ) -> None:
        self.name = name
        self.submissions = submissions
        self.outputs = outputs
        self.aggregate = aggregate
        self._after = tuple(after)
        self.wanted: dict[int, tuple[Request, ...]] = {}
        self._index, self._fates = index, fates
        self._receivers: tuple[tuple[ResultQueue, ...], tuple[str, ...] | None] = ((), None)
        self._changing = threading.Lock()  # among those who subscribe

    def frame_finished(self, frame: FinishedFrame, released_ns: int) -> None:
        """A frame is done; hand its outputs to everybody who asked for them."""
        arrivals, finished_ns = frame.arrivals, frame.finished_ns
        late = frame.deadline_ns is not None and finished_ns - released_ns > frame.deadline_ns
        for arrival in arrivals:
            self._fates.decide(self._index, arrival.frame, FrameOutcome.LATE if late else FrameOutcome.DONE)
        (queues, names), requests = self._receivers, self._requests(arrivals) if self.wanted else ()
        if not queues and not requests:
            return
        shared = len(queues) + len(requests) > 1
        tensors = frame.results(None if requests else names)
        finished = _Finished(arrivals, released_ns, frame.started_ns, finished_ns, late, tensors, shared)
        for queue in queues:
            queue.put(finished)
        for request in requests:
            request.put(self, finished)

    def attach(self, queue: ResultQueue) -> None:
        """Fill a queue from the next frame on."""
        with self._changing:
            self._send_to((*self._receivers[0], queue))

    def detach(self, queue: ResultQueue) -> None:
        """Fill it no more."""
        with self._changing:
            self._send_to(tuple(receiver for receiver in self._receivers[0] if receiver is not queue))

    def fate(self, number: int) -> FrameFate:
        """What has become of the frame that was submitted under a number."""
        assert self.submissions is not None
        index = self.submissions.index(number)
        if index is None:
            why = self.submissions.dropped(number)
            return FrameFate("waiting", "") if why is None else FrameFate("dropped", why)
        fate = self._fates.of(self._index, index)
        if fate is not None:
            return FrameFate(*in_words(fate))
        given = {publisher.fate(number).fate for publisher in self._after}
        if "dropped" in given:
            return FrameFate(*in_words(FrameOutcome.NOT_GIVEN))
        return FrameFate(*in_words(FrameOutcome.SKIPPED)) if "skipped" in given else FrameFate("waiting", "")

    def check(self, tensors: Sequence[str] | None) -> None:
        """Refuse names of outputs that there are not.

        Raises:
            InputError: the first of them.
        """
        for name in tensors or ():
            if self.outputs is not None and name not in self.outputs:
                raise InputError(
                    f"model {self.name!r} has no output {name!r}; outputs: {', '.join(self.outputs)}",
                    remedy="correct the name",
                )

    def output(self, finished: _Finished, names: Sequence[str] | None) -> Output:
        """For a receiver, in its own thread.

        Raises:
            InputError: its postprocess gave no output of a name.
        """
        given = finished.tensors
        for name in names or ():
            if name not in given:
                raise InputError(
                    f"model {self.name!r} gave no output {name!r}; it gave: {', '.join(given)}",
                    remedy="correct the name, or the postprocess",
                )
        tensors = {name: given[name] for name in (given if names is None else names)}
        if finished.shared:
            tensors = {name: array.copy() for name, array in tensors.items()}
        newest = finished.arrivals[-1].frame
        numbers = tuple(
            arrival.frame if self.submissions is None else self.submissions.number(arrival.frame)
            for arrival in finished.arrivals
        )
        return Output(
            model=self.name,
            frame=numbers[-1],
            frames=numbers,
            tensors=tensors,
            submitted_ns=None if self.submissions is None else self.submissions.submitted_ns(newest),
            released_ns=finished.released_ns,
            started_ns=finished.started_ns,
            finished_ns=finished.finished_ns,
            fate="late" if finished.late else "done",
        )

    def _send_to(self, queues: tuple[ResultQueue, ...]) -> None:
        """From the next frame on, and copy no outputs but those that they ask for: in one step, for others read it."""
        named = [queue.names for queue in queues if queue.names is not None]
        everything = len(named) < len(queues) or self.outputs is None
        self._receivers = queues, None if everything else tuple(dict.fromkeys(itertools.chain(*named)))

    def _requests(self, arrivals: Sequence[Arrival]) -> tuple[Request, ...]:
        """Those for these frames; they are answered once."""
        assert self.submissions is not None
        requests: tuple[Request, ...] = ()
        for arrival in arrivals:
            requests += self.wanted.pop(self.submissions.number(arrival.frame), ())
        return requests


class ResultQueue:
    """Results of one model for one receiver. The run's thread fills it, and the oldest gives way.

    Args:
        publisher: of the model.
        names: of the outputs; ``None``: all.
        depth: results that wait at most.
    """

    def __init__(self, publisher: ResultPublisher, names: Sequence[str] | None, depth: int) -> None:
        self.publisher = publisher
        self.names = names
        self.dropped = 0
        self._results: Channel[tuple[int, _Finished]] = Channel(depth * publisher.aggregate)
        self._filled = self._emptied = 0
        self._parts: list[Output] = []
        self._stack = _Stack()
        self._stacks = AggregatingSink(self._stack, publisher.aggregate) if publisher.aggregate > 1 else None

    def __len__(self) -> int:
        return len(self._results)

    def put(self, finished: _Finished) -> None:
        """Add a frame."""
        self._results.put((self._filled, finished))
        self._filled += 1

    def next_ns(self) -> int | None:
        """When the frame that waited longest was finished; ``None``: none waits."""
        head = self._results.head()
        return None if head is None else head[1].finished_ns

    def take(self) -> Output | None:
        """The frame that waited longest, or a whole stack; ``None``: there is none."""
        while True:
            result = self._results.pop()
            if result is None:
                return None
            ordinal, finished = result
            self.dropped += ordinal - self._emptied
            self._emptied = ordinal + 1
            output = self.publisher.output(finished, self.names)
            if self._stacks is None:
                return output
            self._stacks.put(output.frame, dict(output.tensors))
            self._parts.append(output)
            if len(self._parts) == self.publisher.aggregate:
                return self._stacked()

    def rest(self) -> Output | None:
        """An incomplete stack, after the last frame."""
        if self._stacks is None or not self._parts:
            return None
        self._stacks.close()
        return self._stacked()

    def _stacked(self) -> Output:
        parts, self._parts = self._parts, []
        late = any(part.fate == "late" for part in parts)
        return replace(
            parts[-1],
            frames=tuple(number for part in parts for number in part.frames),
            tensors=self._stack.outputs,
            started_ns=parts[0].started_ns,
            fate="late" if late else "done",
        )


class _Stack:
    """Takes a stack, and keeps it."""

    def __init__(self) -> None:
        self.outputs: dict[str, Array] = {}

    def put(self, frame: int, outputs: dict[str, Array]) -> None:  # noqa: ARG002 - the protocol's form
        self.outputs = outputs

    def close(self) -> None:
        """Nothing is left to do."""


class Subscription:
    """Results for one receiver, in a bounded queue of its own; the oldest gives way, and is counted.

    Any thread may read it. It is a context manager that ends the subscription.

    Args:
        publishers: of the models.
        names: of the outputs; ``None``: all.
        depth: results of each model that wait at most.
        waits: how to wait.
    """

    def __init__(
        self, publishers: Sequence[ResultPublisher], names: Sequence[str] | None, depth: int, waits: Waits
    ) -> None:
        if depth < 1:
            raise InputError(f"queue = {depth} holds nothing", remedy="give 1 or more")
        for publisher in publishers:
            publisher.check(names)
        self._queues = [ResultQueue(publisher, names, depth) for publisher in publishers]
        self._waits = waits
        self._taking = threading.Lock()  # among receivers only
        self._closed = False
        for queue in self._queues:
            queue.publisher.attach(queue)

    @property
    def dropped(self) -> int:
        """Results that gave way because nobody took them in time, as far as later ones were read."""
        return sum(queue.dropped for queue in self._queues)

    def outputs(self) -> Iterator[Output]:
        """What is finished by now and was not read yet, each model's frames in order; never waits.

        Raises:
            FramefitError: what ended the run, after the last result.
        """
        for _ in range(max(sum(map(len, self._queues)), 1)):
            output = self._take()
            if output is None:
                self._waits.check()
                return
            yield output

    def wait(self, timeout: float | None = None) -> Output | None:
        """The next result.

        Args:
            timeout: seconds; ``None``: for as long as one may come.

        Returns:
            ``None`` after that time, or where the run or the subscription has ended.

        Raises:
            FramefitError: what ended the run, after the last result.
        """
        until_ns = self._waits.until_ns(timeout)
        while True:
            output = self._take()
            if output is not None:
                return output
            if self._closed or not self._waits.pause(until_ns):
                output = self._take()
                if output is None:
                    self._waits.check()
                return output

    def __iter__(self) -> Iterator[Output]:
        """Results as they come, until the run or the subscription ends."""
        while (output := self.wait()) is not None:
            yield output

    async def __aiter__(self) -> AsyncIterator[Output]:
        """The same in a program of asyncio, which goes on meanwhile; a wait that is cancelled loses no result."""
        import asyncio

        while True:
            output = self._take()
            if output is None:
                if not self._closed and await asyncio.to_thread(self._waits.pause, None):
                    continue
                output = self._take()
            if output is None:
                self._waits.check()
                return
            yield output

    def close(self) -> None:
        """End it; what waits can still be read."""
        self._closed = True
        for queue in self._queues:
            queue.publisher.detach(queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> Output | None:
        """Of the models' oldest results the one that was finished first."""
        with self._taking:
            while True:
                waiting = [
                    (at, number) for number, queue in enumerate(self._queues) if (at := queue.next_ns()) is not None
                ]
                if not waiting:
                    break
                output = self._queues[min(waiting)[1]].take()
                if output is not None:
                    return output
            if self._waits.over():
                for queue in self._queues:
                    output = None if len(queue) else queue.rest()
                    if output is not None:
                        return output
            return None


class Request:
    """A frame that was handed over together with the question what models make of it.

    Attributes:
        number: of the frame.

    Args:
        publishers: of the models that are asked.
        waits: how to wait.
    """

    def __init__(self, publishers: Sequence[ResultPublisher], waits: Waits) -> None:
        self.number = -1
        self._publishers = publishers
        self._waits = waits
        self._found: dict[str, Output] = {}
        self._queue: deque[tuple[ResultPublisher, _Finished]] = deque()

    def announce(self, number: int) -> None:
        """Its frame has a number; from here on it may be answered."""
        self.number = number
        for publisher in self._publishers:
            for wanted in tuple(publisher.wanted):  # requests whose frames were dropped are never answered
                if publisher.fate(wanted).fate in ("dropped", "skipped"):
                    publisher.wanted.pop(wanted, None)
            publisher.wanted[number] = (*publisher.wanted.get(number, ()), self)

    def put(self, publisher: ResultPublisher, finished: _Finished) -> None:
        """An answer; called by the run's thread."""
        self._queue.append((publisher, finished))

    @property
    def done(self) -> bool:
        """Whether :meth:`result` needs not wait."""
        return not self._open()

    def result(self, timeout: float | None = None) -> dict[str, Output]:
        """What the models made of the frame: model -> output.

        Args:
            timeout: seconds; ``None``: as long as it takes.

        Raises:
            TimeUpError: not all answered in time.
            FramefitError: a model dropped or skipped the frame, or what ended the run.
        """
        until_ns = self._waits.until_ns(timeout)
        while self._open():
            if not self._waits.pause(until_ns) and self._open():
                self._waits.check()
                raise TimeUpError(
                    f"frame {self.number} is not done in time", where=f"model {self._open()[0].name!r}",
                    remedy="wait longer",
                )  # fmt: skip
        for publisher in self._publishers:
            if publisher.name not in self._found:
                self._waits.check()
                fate = publisher.fate(self.number)
                again = "submit less often, or give the stream a deeper queue"
                raise FramefitError(
                    f"frame {self.number} was {fate.fate}: {fate.reason}",
                    where=f"model {publisher.name!r}",
                    remedy="submit the next one: the run goes on" if fate.reason.startswith("fault") else again,
                )
        return dict(self._found)

    def __await__(self) -> Generator[Any, Any, dict[str, Output]]:
        """As :meth:`result`, in a program of asyncio, which goes on meanwhile."""
        return self._answered().__await__()

    async def _answered(self) -> dict[str, Output]:
        import asyncio

        while self._open():
            if not await asyncio.to_thread(self._waits.pause, None):
                break
        return self.result(timeout=0)

    def _open(self) -> list[ResultPublisher]:
        """Models from which an answer may still come."""
        decided = {publisher.name for publisher in self._publishers if self._decided(publisher.fate(self.number))}
        while self._queue:
            publisher, finished = self._queue.popleft()
            self._found[publisher.name] = publisher.output(finished, None)
        return [
            publisher
            for publisher in self._publishers
            if publisher.name not in self._found and publisher.name not in decided
        ]

    def _decided(self, fate: FrameFate) -> bool:
        """Whether a frame will not be answered; why the run has ended is known only when all of it has."""
        ended = fate.reason.startswith("the run ended")
        return fate.fate in ("dropped", "skipped") and (not ended or self._waits.over())
