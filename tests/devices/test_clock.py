"""Real and virtual time."""

from __future__ import annotations

import time

from devices.conformance import ClockConformance
from framefit.devices.clock import RealClock, VirtualClock


class TestRealClock(ClockConformance):
    """The machine's clock."""

    def make(self) -> RealClock:
        """As the runtime makes it."""
        return RealClock()

    def test_is_the_machines_clock(self) -> None:
        """It counts as Python's performance counter does."""
        before = time.perf_counter_ns()
        assert before <= RealClock().now_ns() <= time.perf_counter_ns()

    def test_sharpen_is_harmless(self) -> None:
        """Asking for sharp timers never fails, and the clock goes on."""
        before = RealClock.now_ns()
        RealClock.sharpen()
        assert RealClock.now_ns() >= before


class TestVirtualClock(ClockConformance):
    """Time that jumps."""

    def make(self) -> VirtualClock:
        """From zero."""
        return VirtualClock()

    def test_jumps_exactly(self) -> None:
        """A sleep ends at the very nanosecond, a century costs nothing, and the past changes nothing."""
        clock = VirtualClock(7)
        assert clock.now_ns() == 7
        century = 100 * 365 * 86_400 * 10**9
        clock.sleep_until_ns(century)
        assert clock.now_ns() == century
        clock.sleep_until_ns(5)
        assert clock.now_ns() == century
