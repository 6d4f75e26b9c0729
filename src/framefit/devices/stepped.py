"""Virtual time that another thread lets pass, bit by bit."""

from __future__ import annotations

import threading

from framefit.devices.clock import VirtualClock

__all__ = ["SteppedClock"]

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
