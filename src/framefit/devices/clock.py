"""Real and virtual time behind one protocol.

Virtual time that another thread lets pass, bit by bit.
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
_READY_NS = 100_000  # after waking up: to get ready in
_EARLIEST_NS = 1_000_000  # of a window of 33 ms 3 % that nobody else has
_EARLIER_NS, _LATER_NS = 20_000, 50  # steps after a wake-up that came too late, and after one in time: 1 in 400


class Clock(Protocol):
    """Time in nanoseconds from an arbitrary zero; it never goes back."""

    def now_ns(self) -> int:
        """The present."""

    def doze_until_ns(self, time_ns: int) -> None:
        """Return somewhat before ``time_ns``, where the time until then can be used for getting ready."""

    def sleep_until_ns(self, time_ns: int) -> None:
        """Return at ``time_ns`` or as soon after it as possible; at once if it has passed."""


class RealClock:
    """The machine's monotonic clock.

    It dozes until shortly before the time asked for and spins for the rest:
    wake-ups of a sleeping thread come some 50 to 300 us late, as the host is loaded, and as much is needed to
    get ready. How long before follows what was seen, so that one in 400 comes too late for that.

    Args:
        spin_ns: how long before to wake up, at least.
    """

    def __init__(self, spin_ns: int = 200_000) -> None:
        self.spin_ns = self._least_ns = spin_ns

    now_ns = staticmethod(time.perf_counter_ns)  # itself, not a function that calls it: it lies between two launches

    def doze_until_ns(self, time_ns: int) -> None:
        """Sleep, and leave out the spinning."""
        rest = time_ns - self.spin_ns - time.perf_counter_ns()
        if rest > 0:
            time.sleep(rest / 1e9)
            if time.perf_counter_ns() + _READY_NS > time_ns:
                self.spin_ns = min(self.spin_ns + _EARLIER_NS, _EARLIEST_NS)
            else:
                self.spin_ns = max(self.spin_ns - _LATER_NS, self._least_ns)

    def sleep_until_ns(self, time_ns: int) -> None:
        """Doze, then spin."""
        self.doze_until_ns(time_ns)
        now = time.perf_counter_ns
        while now() < time_ns:
            pass

    @staticmethod
    def sharpen() -> None:
        """Ask the kernel not to delay this thread's timers (Linux; elsewhere nothing)."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class VirtualClock:
    """Time that jumps: sleeping costs nothing, and nothing else takes time.

    Several parts may live in it side by side (:meth:`together`): where one sleeps, whichever wakes
    first goes on, and of those that wake in the same nanosecond the one that was named first.

    Args:
        start_ns: the first present.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns
        self._wakes: list[int] = []  # when each part goes on; none while there is only one
        self._roused: list[bool] = []  # whether a part that rests may be woken
        self._part = 0  # the one that runs
        self._switch: Callable[[int], object] = _nobody

    def now_ns(self) -> int:
        """The present."""
        return self._now_ns

    def doze_until_ns(self, time_ns: int) -> None:
        """Return at once: nothing takes time, so there is nothing to get ready for."""

    def sleep_until_ns(self, time_ns: int) -> None:
        """Jump to ``time_ns``; parts that wake before go first."""
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
        """Have a part that rests go on at ``time_ns`` at the latest; of one that works nothing changes."""
        if self._roused[part] and self._wakes[part] > time_ns:
            self._wakes[part] = max(time_ns, self._now_ns)

    def together(self, parts: Sequence[Callable[[], None]]) -> None:
        """Run functions side by side, each of which sleeps on this clock; return when all have.

        Nothing runs at the same time: functions are switched where they sleep, as coroutines are,
        so that their code needs no locks and every run is the same.

        Raises:
            BaseException: what the first of them raised; the others have run to their ends.
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
                self._switch(self._part)  # comes back when a part has ended
        finally:
            self._wakes, self._roused, self._switch = [], [], _nobody
        if failures:
            raise failures[0]

    def _leave(self, time_ns: int) -> None:
        """Let the parts go on that wake before; return at ``time_ns``, or when roused."""
        wakes, part = self._wakes, self._part
        wakes[part] = time_ns
        earliest = min(wakes)
        first = wakes.index(earliest)
        self._now_ns = max(self._now_ns, earliest)
        if first == part:
            return
        self._part = first
        self._switch(first)

        # Whoever switched back has set the time and the part.


def _nobody(part: int) -> None:
    """There is nobody to switch to outside of :meth:`VirtualClock.together`."""
    raise RuntimeError(f"no part {part}")


_FOR_EVER = 1 << 62


class SteppedClock(VirtualClock):
    """Time that jumps as :class:`~framefit.devices.clock.VirtualClock`'s does, but no further than it is let.

    One thread lives on the clock: it is held where time would go beyond what was let pass.
    Another one lets time pass, and goes on when the first is held again. So only one of them
    runs at a time, and what happens is the same every time.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._until_ns = 0
        self._held = False
        self._left = False
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

    def wait_held(self) -> None:
        """Return when the thread that lives on the clock is held, or has left it."""
        with self._turn:
            self._turn.wait_for(lambda: self._held or self._left)

    def pass_until(self, time_ns: int) -> None:
        """Let time pass up to ``time_ns``; return when everything until then has happened."""
        with self._turn:
            self._until_ns = max(self._until_ns, time_ns)
            self._held = False
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._held or self._left)
            self._present_ns = max(self._present_ns, self._until_ns)

    def let_go(self) -> None:
        """Let time pass without end; returns at once."""
        with self._turn:
            self._until_ns = _FOR_EVER
            self._held = False
            self._turn.notify_all()

    def leave(self) -> None:
        """The thread that lived on the clock is gone: nobody waits for it any more."""
        with self._turn:
            self._left = True
            self._turn.notify_all()
