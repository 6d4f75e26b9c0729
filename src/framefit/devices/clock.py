"""Real and virtual time behind one protocol."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from typing import Protocol

__all__ = ["Clock", "RealClock", "VirtualClock"]

_PR_SET_TIMERSLACK = 29  # linux/prctl.h


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
    wake-ups of a sleeping thread come some 50 to 100 us late, and as much is needed to
    get ready.

    Args:
        spin_ns: how long before to wake up.
    """

    def __init__(self, spin_ns: int = 200_000) -> None:
        self.spin_ns = spin_ns

    now_ns = staticmethod(time.perf_counter_ns)  # itself, not a function that calls it: it lies between two launches

    def doze_until_ns(self, time_ns: int) -> None:
        """Sleep, and leave out the spinning."""
        rest = time_ns - self.spin_ns - time.perf_counter_ns()
        if rest > 0:
            time.sleep(rest / 1e9)

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

    Args:
        start_ns: the first present.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """The present."""
        return self._now_ns

    def doze_until_ns(self, time_ns: int) -> None:
        """Return at once: nothing takes time, so there is nothing to get ready for."""

    def sleep_until_ns(self, time_ns: int) -> None:
        """Jump to ``time_ns``."""
        self._now_ns = max(self._now_ns, time_ns)
