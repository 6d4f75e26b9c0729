"""Real and virtual time behind one protocol.

There is also a virtual time that another thread advances step by step.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["Clock", "RealClock", "SteppedClock", "VirtualClock"]


_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_NEVER = 1 << 62
_READY_NS = 100_000  # time to get ready after waking up
_EARLIEST_NS = 1_000_000  # 3 % of a window of 33 ms, which nobody else can use
_EARLIER_NS, _LATER_NS = 20_000, 50  # steps after a wake-up that was too late, and after one in time: 1 in 400


class Clock(Protocol):
    """Time in nanoseconds from an arbitrary zero; it never goes backwards."""

    def now_ns(self) -> int:
        """The present time."""

    def doze_until_ns(self, time_ns: int) -> None:
        """Return somewhat before ``time_ns``; the time until then can be used to get ready."""

    def sleep_until_ns(self, time_ns: int) -> None:
        """Return at ``time_ns`` or as soon as possible after it; at once if it has passed."""


class RealClock:
    """The machine's monotonic clock.

    It sleeps until shortly before the requested time and spins for the rest: sleeping threads wake up some 50 to 300 us
    late, depending on the host's load, and as much is needed to get ready. The margin adapts to observed delays, so
    that one wake-up in 400 is too late for that.

    Args:
        spin_ns: least margin before the requested time.
    """

    def __init__(self, spin_ns: int = 200_000) -> None:
        self.spin_ns = self._least_ns = spin_ns

    now_ns = staticmethod(time.perf_counter_ns)  # not wrapped in a function: it is called between two launches

    def doze_until_ns(self, time_ns: int) -> None:
        """Sleep without spinning."""
        rest = time_ns - self.spin_ns - time.perf_counter_ns()
        if rest > 0:
            time.sleep(rest / 1e9)
            if time.perf_counter_ns() + _READY_NS > time_ns:
                self.spin_ns = min(self.spin_ns + _EARLIER_NS, _EARLIEST_NS)
            else:
                self.spin_ns = max(self.spin_ns - _LATER_NS, self._least_ns)

    def sleep_until_ns(self, time_ns: int) -> None:
        """Sleep, then spin."""
        self.doze_until_ns(time_ns)
        now = time.perf_counter_ns
        while now() < time_ns:
            pass

    @staticmethod
    def sharpen() -> None:
        """Ask the kernel not to delay this thread's timers (Linux only)."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class VirtualClock:
    """Time that jumps: sleeping takes no real time, and only sleeping advances the clock.

    Several parts can use it concurrently (:meth:`together`): where one sleeps, the part that wakes first continues,
    and of those that wake in the same nanosecond the one that was listed first.

    Args:
        start_ns: the initial time.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._wakes: list[int] = []  # time at which each part continues; empty while there is only one
        self._roused: list[bool] = []  # whether each resting part can be woken
        self._part = 0  # the running part
        self._switch: Callable[[int], object] = _nobody

    def now_ns(self) -> int:
        """The present time."""
        return self._now_ns

    def doze_until_ns(self, time_ns: int) -> None:
        """Return at once: nothing takes time, so there is nothing to prepare."""

    def sleep_until_ns(self, time_ns: int) -> None:
        """Jump to ``time_ns``; parts that wake earlier run first."""
        if time_ns <= self._now_ns:
            return
        if self._wakes:
            self._leave(time_ns)
        else:
            self._now_ns = time_ns

    def rest_until_ns(self, time_ns: int) -> None:
        """Sleep, but return as soon as another part calls :meth:`rouse`; for parts of :meth:`together`."""
        part = self._part
        self._roused[part] = True
        self.sleep_until_ns(time_ns)
        self._roused[part] = False

    def rouse(self, part: int, time_ns: int) -> None:
        """Wake a resting part at ``time_ns`` at the latest; no effect on one that is not resting."""
        if self._roused[part] and self._wakes[part] > time_ns:
            self._wakes[part] = max(time_ns, self._now_ns)

    def together(self, parts: Sequence[Callable[[], None]]) -> None:
        """Run functions concurrently, each of which sleeps on this clock; return when all have ended.

        Only one of them runs at a time: functions are switched where they sleep, like coroutines, so that
        their code needs no locks and every run is the same.

        Raises:
            BaseException: what the first of them raised; the others have run to their end.
        """
        import greenlet

        failures: list[BaseException] = []
        everybody = greenlet.getcurrent()

        def begun(part: int, function: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    function()
                except BaseException as error:  # noqa: BLE001 - raised again below
                    failures.append(error)
                self._wakes[part] = _NEVER

            return run

        lives = [greenlet.greenlet(begun(part, function), everybody) for part, function in enumerate(parts)]
        self._wakes, self._roused = [self._now_ns] * len(lives), [False] * len(lives)
        self._switch = lambda part: lives[part].switch()
        try:
            while (earliest := min(self._wakes)) < _NEVER:
                self._part = self._wakes.index(earliest)
                self._now_ns = max(self._now_ns, earliest)
                self._switch(self._part)  # returns when a part has ended
        finally:
            self._wakes, self._roused, self._switch = [], [], _nobody
        if failures:
            raise failures[0]

    def _leave(self, time_ns: int) -> None:
        """Run the parts that wake earlier; return at ``time_ns``, or when roused."""
        wakes, part = self._wakes, self._part
        wakes[part] = time_ns
        earliest = min(wakes)
        first = wakes.index(earliest)
        self._now_ns = max(self._now_ns, earliest)
        if first == part:
            return
        self._part = first
        self._switch(first)

        # The part that switched back has set the time and the running part.


def _nobody(part: int) -> None:
    """Raise an error: there are no parts outside of :meth:`VirtualClock.together`."""
    raise RuntimeError(f"no part {part}")


_FOR_EVER = 1 << 62


class SteppedClock(VirtualClock):
    """Time that jumps like that of :class:`~framefit.devices.clock.VirtualClock`, up to a limit that is raised.

    One thread uses the clock: it is held where time would exceed the limit. Another thread raises the limit, and
    continues when the first one is held again. So only one of them runs at a time, and every run is the same.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._until_ns = 0
        self._held = False
        self._left = False
        self._resting = False
        self._present_ns = 0
        super().__init__()

    @property
    def _now_ns(self) -> int:
        return self._present_ns

    @_now_ns.setter
    def _now_ns(self, time_ns: int) -> None:
        if time_ns > self._until_ns:
            with self._turn:
                while time_ns > self._until_ns:
                    self._held = True
                    self._turn.notify_all()
                    self._turn.wait()
        self._present_ns = time_ns

    def rest_until_ns(self, time_ns: int) -> None:
        """Sleep, but return as soon as another part calls :meth:`rouse`, or the thread that lets time pass."""
        if self._wakes:
            super().rest_until_ns(time_ns)
            return
        with self._turn:
            self._resting = True
            while time_ns > self._until_ns and self._resting:
                self._held = True
                self._turn.notify_all()
                self._turn.wait()
            if self._resting:
                self._present_ns = max(self._present_ns, time_ns)
            self._resting = False

    def rouse(self, part: int, time_ns: int) -> None:
        """Have a part go on; where there is one only, at the present, and return when it is held again."""
        if self._wakes:
            super().rouse(part, time_ns)
            return
        with self._turn:
            if not self._resting:
                return
            self._resting = self._held = False
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._held or self._left)

    def wait_held(self) -> None:
        """Return when the thread that uses the clock is held, or has left it."""
        with self._turn:
            self._turn.wait_for(lambda: self._held or self._left)

    def pass_until(self, time_ns: int) -> None:
        """Raise the limit to ``time_ns``; return when everything until then has happened."""
        with self._turn:
            self._until_ns = max(self._until_ns, time_ns)
            self._held = False
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._held or self._left)
            self._present_ns = max(self._present_ns, self._until_ns)

    def let_go(self) -> None:
        """Remove the limit; returns at once."""
        with self._turn:
            self._until_ns = _FOR_EVER
            self._held = False
            self._turn.notify_all()

    def leave(self) -> None:
        """Record that the thread that used the clock is gone, so that nobody waits for it."""
        with self._turn:
            self._left = True
            self._turn.notify_all()
