"""How a frame goes from one place to the next: channels that hold it, and messages between units.

A :class:`Channel` is a bounded queue with a rule for when it is full. Every frame that waits in a run waits in one: a
:class:`FrameChannel` holds what windows, other models, a failed unit or the stage before bring to a job; submissions
of a program and results for its subscribers wait in plain channels.

Units tell each other with a :class:`Message` in the receiver's :class:`Mailbox`. It says from when on it can be used,
for a link takes its time. Sending sets the receiver's wake-up event, so that a unit that sleeps looks at once.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

from framefit.core.workload import WhenFull
from framefit.devices.clock import Clock, RealClock, VirtualClock
from framefit.devices.device import Array
from framefit.runtime.log import FrameOutcome
from framefit.runtime.sinks import Sink
from framefit.runtime.streams import Arrival

T = TypeVar("T")


class Channel(Generic[T]):
    """A bounded queue from producers to one consumer.

    The consumer needs no lock, and never waits for a producer: a thread that is suspended while it offers an item
    delays nobody. Several producers take turns by a lock of their own.

    Args:
        slots: items that may wait.
        when_full: which item goes when another one is offered; "block": producers look at :attr:`full` first.
    """

    def __init__(self, slots: int, when_full: WhenFull = "drop-oldest") -> None:
        self._items: deque[T] = deque()
        self.slots = slots
        self.when_full = when_full

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        """Whether a producer has to wait; never where an item is dropped instead."""
        return self.when_full == "block" and len(self._items) >= self.slots

    def put(self, item: T) -> T | None:
        """Add an item; returns the one that is dropped for it, which may be the item itself."""
        dropped = None
        if len(self._items) >= self.slots:
            if self.when_full != "drop-oldest":
                return item
            dropped = self.pop()  # None: the consumer has just taken the last one
        self._items.append(item)
        return dropped

    def pop(self) -> T | None:
        """The item that waited longest; ``None``: none waits."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def head(self, behind: int = 0) -> T | None:
        """The item that waited longest, or so many behind it, which stays; ``None``: not so many wait."""
        try:
            return self._items[behind]
        except IndexError:
            return None


class Dropped(NamedTuple):
    """A frame that a channel did not keep, and what that means for it."""

    arrival: Arrival
    outcome: FrameOutcome


class FrameBuffers(Protocol):
    """Keeps the tensors of frames that wait, where these are results of another model."""

    def let_go(self, frame: int) -> None:
        """The frame is dropped, or its reader is done with it: its memory may be used again."""


class FrameLimit(Protocol):
    """Decides when a job may begin the frames that wait for it."""

    @property
    def allows_another(self) -> bool:
        """Whether another frame may begin."""

    def owes(self, waiting: bool) -> bool:
        """Whether a unit that is due to begin a frame, and cannot, has to wait for it; ``waiting``: one is there."""

    def begin(self) -> int:
        """A frame begins; returns when the model's first launch for it began (-1: this is the first one)."""


class FrameChannel(Channel[Arrival]):
    """Frames that wait for a job: windows, models that it reads, the stage before, or a unit that failed bring them.

    Args:
        slots: frames that may wait.
        when_full: which frame goes when another one arrives; "block": the feed looks at :attr:`full` first.
        frames: taken at once.
        buffers: let go of frames that are dropped or were read; what was taken stays until as much is taken again.
        by_message: frames come from other models or units at any time, not with windows.
        limit: has to allow a frame to begin.
        keeps: frames that are overdue wait on while there is room: their model has a state, and is to see them all.
    """

    def __init__(
        self,
        slots: int,
        when_full: WhenFull = "drop-oldest",
        *,
        frames: int = 1,
        buffers: Sequence[FrameBuffers] = (),
        by_message: bool = False,
        limit: FrameLimit | None = None,
        keeps: bool = False,
    ) -> None:
        super().__init__(slots, when_full)
        self.frames = frames
        self.limit = limit
        self._keeps = keeps
        self._buffers = tuple(buffers)
        self._in_use: deque[int] = deque()
        self._by_message = by_message
        self._refuses_until = -1  # a window; -1: it refuses none
        self._lock: threading.Lock | None = None  # only where it is shared: it would cost half of what an offer costs

    @property
    def ready(self) -> bool:
        """Whether enough frames wait, and the limit allows them to begin."""
        return len(self._items) >= self.frames and (self.limit is None or self.limit.allows_another)

    @property
    def owed(self) -> bool:
        """Whether the unit has to wait for a frame that cannot begin yet, or that is still on its way."""
        return self.limit is not None and self.limit.owes(len(self._items) >= self.frames)

    @property
    def waiting(self) -> int:
        """Launches that could begin, where frames come by messages."""
        return len(self._items) // self.frames if self._by_message else 0

    @property
    def refuses(self) -> bool:
        """Whether it refuses frames since :meth:`refuse_until`; it does so until one comes that it takes."""
        return self._refuses_until >= 0

    def offer(self, arrival: Arrival) -> Dropped | None:
        """A frame arrives; returns the one that is dropped for it, which may be the same."""
        if self._lock is not None:
            with self._lock:
                return self._offer(arrival)
        if len(self._items) < self.slots and self._refuses_until < 0:  # as nearly always: no call more
            self._items.append(arrival)
            return None
        return self._offer(arrival)

    def hand_on(self, arrivals: Sequence[Arrival]) -> None:
        """The stage before is done with frames; how many may come, its slots decide."""
        self._items.extend(arrivals)

    def take(self) -> tuple[list[Arrival], int]:
        """The frames that waited longest, which begin now, and when the model's first launch for them began.

        There may be none, though some waited before: another unit's job may have taken the model's frames over.
        """
        if self._lock is not None:
            with self._lock:
                return self._take()
        return self._take()

    def give_way(self, is_overdue: Callable[[Arrival], bool], launches: int) -> list[Arrival]:
        """Drop frames that are overdue while more wait than can be launched without making newer ones late.

        None where the stream waits for them instead ("block").

        Args:
            is_overdue: whether a launch is, by the newest of its frames.
            launches: how many can be.

        Returns:
            The frames that are dropped.
        """
        if self._lock is not None:
            with self._lock:
                return self._give_way(is_overdue, launches)
        return self._give_way(is_overdue, launches)

    def clear(self) -> list[Arrival]:
        """Empty it; returns what waited."""
        arrivals = []
        while (arrival := self.pop()) is not None:
            self._let_go(arrival.frame)
            arrivals.append(arrival)
        return arrivals

    def share(self) -> None:
        """One thread will offer frames while another one takes them."""
        self._lock = self._lock or threading.Lock()

    def limited(self, limit: FrameLimit | None) -> FrameChannel:
        """The same frames for a job that begins them as ``limit`` allows; of several jobs, the first one takes each."""
        channel = copy.copy(self)
        channel.limit = limit
        return channel

    def refuse_until(self, window: int) -> list[Arrival]:
        """Take no frames that come before a window; returns those that waited, which are dropped."""
        self._refuses_until = window
        return self.clear()

    def migrate(self, limit: FrameLimit | None) -> None:
        """From here on another unit's job takes the frames, which come there by messages, as ``limit`` allows."""
        self.share()
        self.limit, self._by_message, self._refuses_until = limit, True, -1

    def _offer(self, arrival: Arrival) -> Dropped | None:
        if self._refuses_until >= 0:
            if arrival.window < self._refuses_until:
                self._let_go(arrival.frame)
                return Dropped(arrival, FrameOutcome.DEGRADED)
            self._refuses_until = -1
        dropped = self.put(arrival)
        if dropped is None:
            return None
        self._let_go(dropped.frame)
        return Dropped(dropped, FrameOutcome.REFUSED if dropped is arrival else FrameOutcome.QUEUE_FULL)

    def _give_way(self, is_overdue: Callable[[Arrival], bool], launches: int) -> list[Arrival]:
        dropped: list[Arrival] = []
        if self.when_full == "block" or (self._keeps and len(self._items) < self.slots):
            return dropped
        while len(self._items) >= (launches + 1) * self.frames and is_overdue(self._items[self.frames - 1]):
            for _ in range(self.frames):
                dropped.append(self._items.popleft())
                self._let_go(dropped[-1].frame)
        return dropped

    def _take(self) -> tuple[list[Arrival], int]:
        if len(self._items) < self.frames:
            return [], -1
        pop = self._items.popleft
        taken = [pop()] if self.frames == 1 else [pop() for _ in range(self.frames)]
        if self._buffers:
            self._in_use.extend(arrival.frame for arrival in taken)
            while len(self._in_use) > self.frames:
                self._let_go(self._in_use.popleft())
        return taken, -1 if self.limit is None else self.limit.begin()

    def _let_go(self, frame: int) -> None:
        for buffers in self._buffers:
            buffers.let_go(frame)


class MessageKind(IntEnum):
    """What one unit tells another."""

    SLOT_FREE = 0
    """A model's last stage is done with a frame: its first one may begin another."""
    STAGE = 1
    """A frame for a later stage."""
    SKIPPED = 2
    """A frame that an earlier stage has aborted: it comes by, and takes no time."""
    RESULT = 3
    """A result of a model, for one that reads it."""
    WAITING = 4
    """A frame waits in the channel of a model of which this unit has a replica."""
    MIGRATED = 5
    """A frame for a job whose unit has failed; with the first one the job itself comes."""
    EVENT = 6
    """An event for a sporadic model, which comes now."""


class Message(NamedTuple):
    """What one unit tells another; of two that can be used at the same time the smaller one comes first."""

    ready_ns: int  # from when on it can be used there
    job: int  # its number there; -1: it comes along
    ordinal: int  # among the messages for the job of this kind
    kind: MessageKind
    arrivals: Sequence[Arrival] = ()
    started_ns: int = -1  # the model's first launch for it
    source: int = -1  # of a result: number of its model among those that the job reads
    migrated: object = None  # the job that comes along


class WakeupEvent(Protocol):
    """Wakes a unit that waits."""

    def set(self, time_ns: int) -> None:
        """Have it look at its mailbox at ``time_ns`` at the latest; any thread may."""

    def wait_until_ns(self, time_ns: int, warm_caches: Callable[[], None] | None) -> None:
        """Wait until then, or until the event is set; just before the end warm the caches, if there is time for it."""


class Mailbox:
    """Where a unit finds what others tell it.

    Args:
        wakeup: wakes the unit; ``None``: nobody else sends to it while it waits.

    Attributes:
        messages: that were not read yet.
        outputs: of frames that are done, which the unit hands to their sinks.
    """

    def __init__(self, wakeup: WakeupEvent | None = None) -> None:
        self.messages: deque[Message] = deque()
        self.outputs: deque[tuple[Sink, int, dict[str, Array]]] = deque()
        self.wakeup = wakeup

    def send(self, message: Message) -> None:
        """Any thread may."""
        self.messages.append(message)
        if self.wakeup is not None:
            self.wakeup.set(message.ready_ns)

    def close(self) -> None:
        """The unit does not wait any more; what still comes is read at its end."""
        self.wakeup = None


class Port(NamedTuple):
    """Where messages for a job go."""

    unit: str
    mailbox: Mailbox
    number: int  # of the job on its unit


WARMUP_NS = 60_000
"""Going through a launch to warm the caches takes 30 to 60 us while they are cold."""


class ThreadWakeup:
    """For a unit with a thread of its own.

    The event is a lock that is free once it is set. Nothing that Python offers is set with less work.

    Args:
        clock: the run's.
    """

    def __init__(self, clock: RealClock) -> None:
        self._clock = clock
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self, time_ns: int) -> None:  # noqa: ARG002 - the thread looks itself when something can be used
        """Wake the thread up, or keep it from going to sleep."""
        with contextlib.suppress(RuntimeError):  # it is set already
            self._unset.release()

    def wait_until_ns(self, time_ns: int, warm_caches: Callable[[], None] | None) -> None:
        """Sleep, warm the caches, and spin; return as soon as the event is set."""
        now, consume = self._clock.now_ns, self._unset.acquire
        rest = time_ns - self._clock.spin_ns - now()
        if rest > 0 and consume(timeout=rest / 1e9):
            return
        if warm_caches is not None and time_ns - now() >= WARMUP_NS:
            warm_caches()
        while now() < time_ns and not consume(blocking=False):
            time.sleep(0)  # other units' threads need Python's lock, too


class VirtualWakeup:
    """For a unit that is a part of a virtual clock.

    Args:
        clock: the run's.
        part: the unit's number on it.
    """

    def __init__(self, clock: VirtualClock, part: int) -> None:
        self._clock = clock
        self._part = part

    def set(self, time_ns: int) -> None:
        """Wake the unit up at ``time_ns``, if it waits."""
        self._clock.rouse(self._part, time_ns)

    def wait_until_ns(self, time_ns: int, warm_caches: Callable[[], None] | None) -> None:  # noqa: ARG002
        """Let the other units go on."""
        self._clock.rest_until_ns(time_ns)


def unit_mailboxes(clock: Clock, units: Sequence[str], *, woken: bool = False) -> dict[str, Mailbox]:
    """Make the mailboxes of a run's units.

    Args:
        clock: the run's.
        units: those that have jobs; in virtual time they take turns in this order.
        woken: whether a thread that is not the unit's own sends messages, though there is one unit only.
    """
    if len(units) < 2 and not woken:
        return {unit: Mailbox() for unit in units}
    if isinstance(clock, VirtualClock):
        return {unit: Mailbox(VirtualWakeup(clock, part)) for part, unit in enumerate(units)}
    assert isinstance(clock, RealClock)
    return {unit: Mailbox(ThreadWakeup(clock)) for unit in units}
