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

    def test_dozing_leaves_time_to_get_ready(self) -> None:
        """It ends before the time asked for by what is otherwise spun, unless the machine was stalled."""
        clock, left = RealClock(spin_ns=2_000_000), []
        for _ in range(10):
            until = clock.now_ns() + 5_000_000
            clock.doze_until_ns(until)
            left.append(until - clock.now_ns())
        assert max(left) <= 2_000_000
        assert sorted(left)[5] > 1_000_000
        before = clock.now_ns()
        clock.doze_until_ns(before + 1_000_000)  # too near: no time to sleep
        assert clock.now_ns() - before < 1_000_000

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
        clock.doze_until_ns(2 * century)
        assert clock.now_ns() == century
