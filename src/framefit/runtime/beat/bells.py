"""Waiting for an instant or for another unit, in real and in virtual time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from framefit.devices.clock import RealClock, VirtualClock

__all__ = ["REHEARSAL_NS", "ThreadBell", "VirtualBell"]

REHEARSAL_NS = 60_000
"""A rehearsal takes 30 to 60 us with cold caches."""


class ThreadBell:
    """For a unit with a thread of its own.

    A lock is the bell: it is free where somebody has rung. Nothing that Python offers is rung with less work.

    Args:
        clock: the run's.
    """

    def __init__(self, clock: RealClock) -> None:
        self._clock = clock
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self, time_ns: int) -> None:  # noqa: ARG002 - the thread looks itself when something can be used
        """Wake the thread up, or keep it from going to sleep."""
        with contextlib.suppress(RuntimeError):  # somebody else has rung
            self._silent.release()

    def wait_until_ns(self, time_ns: int, get_ready: Callable[[], None] | None) -> None:
        """Sleep, get ready, and spin; at the first ring return."""
        now, rung = self._clock.now_ns, self._silent.acquire
        rest = time_ns - self._clock.spin_ns - now()
        if rest > 0 and rung(timeout=rest / 1e9):
            return
        if get_ready is not None and time_ns - now() >= REHEARSAL_NS:
            get_ready()
        while now() < time_ns and not rung(blocking=False):
            time.sleep(0)  # other units' threads need Python's lock, too


class VirtualBell:
    """For a unit that is a part of a virtual clock.

    Args:
        clock: the run's.
        part: the unit's number on it.
    """

    def __init__(self, clock: VirtualClock, part: int) -> None:
        self._clock = clock
        self._part = part

    def ring(self, time_ns: int) -> None:
        """Wake the unit up at ``time_ns``, if it waits."""
        self._clock.rouse(self._part, time_ns)

    def wait_until_ns(self, time_ns: int, get_ready: Callable[[], None] | None) -> None:  # noqa: ARG002
        """Let the other units go on."""
        self._clock.rest_until_ns(time_ns)
