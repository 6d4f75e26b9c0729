"""Frames that a program hands over: they wait until a window takes them."""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.frames import Fated, FrameTable
from framefit.core.model import TensorInfo
from framefit.core.workload import WhenFull
from framefit.devices.device import Array
from framefit.errors import FramefitError, InputError
from framefit.runtime.frames.streams import fitted
from framefit.runtime.outputs.sinks import Sink

__all__ = ["Inbox", "NumberedSink", "PushedStream", "Reader", "TimeUpError", "with_submitted"]

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
    found = bisect_left(numbers, number)
    return found if found < len(numbers) and numbers[found] == number else None


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
        self.inbox: Inbox | None = None

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
        """Whether there may be more: until it is closed and empty."""
        return self.inbox is None or not self.inbox.over

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


class Inbox:
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
        for stream in streams:
            stream.inbox = self
        self.depth = depth
        self.when_full = when_full
        self._now_ns = now_ns
        self._waiting: deque[_Submitted] = deque()
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
        return self.when_full == "block" and len(self._waiting) >= self.depth

    @property
    def over(self) -> bool:
        """Whether nothing will come any more."""
        return self._closed is not None and not self._waiting

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
            if len(self._waiting) >= self.depth:
                if self.when_full == "drop-newest":
                    self._dropped.add(number, self._now_ns())
                    return number
                try:
                    oldest = self._waiting.popleft()
                except IndexError:  # a window has just taken it
                    pass
                else:
                    self._dropped.add(oldest.number, oldest.submitted_ns)
            self._waiting.append(_Submitted(number, self._now_ns(), forms))
            return number

    def take(self) -> bool:
        """Let the next frame come, if one waits."""
        try:
            frame = self._waiting.popleft()
        except IndexError:
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
            while self._waiting:
                frame = self._waiting.popleft()
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
    def never_taken(self) -> list[tuple[str, Integers, Integers]]:
        """Frames that no window took: why, their numbers, and when they were submitted."""
        ledgers = ((self._reason, self._dropped), (_LEFT, self._left))
        return [(why, _copied(one.numbers), _copied(one.submitted_ns)) for why, one in ledgers if len(one.numbers)]

    def _wait_for_room(self, timeout_s: float | None) -> None:
        """Return when a frame may be handed over; the lock is held, but for waiting."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._closed is not None:
                raise self._closed()
            if not self.full:
                return
            rest = _POLL_S if until is None else min(_POLL_S, until - time.monotonic())
            if rest <= 0:
                raise TimeUpError(
                    f"{self.depth} frames wait already, and no window took one in {timeout_s:g} s",
                    where=f"stream {next(iter(self.streams))!r}",
                    remedy="submit less often, wait longer, or let frames be dropped (when_full)",
                )
            self._room.wait(rest)


@dataclass(frozen=True)
class NumberedSink:
    """Gives frames out by the numbers that they were submitted under.

    Attributes:
        sink: takes them.
        inbox: knows the numbers.
    """

    sink: Sink
    inbox: Inbox

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Pass on."""
        self.sink.put(self.inbox.number(frame), outputs)

    def close(self) -> None:
        """Pass on."""
        self.sink.close()


def with_submitted(table: FrameTable, inboxes: Mapping[str, Inbox], start_ns: int, *, ended: bool = True) -> FrameTable:
    """A run's frames under the numbers that they were submitted under, and those that no window took.

    Of these, the time of submission stands for the release that they never had.

    Args:
        table: of the frames that came, counted as they came.
        inboxes: model -> where its frames waited; models that read other streams are left as they are.
        start_ns: first release on the run's clock.
        ended: whether the run has: what a window took has its fate, or came too late beside a stream that ended.
    """
    frame = table.frame.copy()
    fates: list[Fated] = list(table.fates)
    added: list[tuple[Integers, ...]] = []
    for index, name in enumerate(table.models):
        inbox = inboxes.get(name)
        if inbox is None:
            continue
        mine = table.model == index
        came = inbox.numbers
        never = inbox.never_taken
        if ended and len(late := np.setdiff1d(np.arange(len(came)), frame[mine])):
            never.append((_ENDED, came[late], np.asarray([inbox.submitted_ns(one) for one in late])))
        frame[mine] = came[frame[mine]]
        for why, numbers, submitted_ns in never:
            fate: Fated = ("dropped", why)
            if fate not in fates:
                fates.append(fate)
            same = np.ones_like(numbers)
            added.append((index * same, numbers, fates.index(fate) * same, submitted_ns - start_ns, -same))
    columns = [(table.model, frame, table.fate, table.released_ns, table.finished_ns), *added]
    model, frame, fated, released, finished = map(np.concatenate, zip(*columns, strict=True))
    order = np.lexsort((model, frame, released))
    return replace(
        table,
        fates=tuple(fates),
        model=model[order],
        frame=frame[order],
        fate=fated[order],
        released_ns=released[order],
        finished_ns=finished[order],
    )
