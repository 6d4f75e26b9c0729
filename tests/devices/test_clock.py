"""Real and virtual time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.devices.clock import RealClock, VirtualClock
from framefit.testing import ClockConformance


@pytest.mark.timed
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


@given(st.lists(st.lists(st.integers(-5, 50), max_size=20), min_size=1, max_size=5))
def test_parts_of_a_virtual_clock_wake_in_order(sleeps: list[list[int]]) -> None:
    """Each sleeps as if it were alone; what wakes earlier goes first, of the same time the part named first."""
    clock, woken = VirtualClock(), []

    def part(number: int) -> None:
        for sleep_ns in sleeps[number]:
            before = clock.now_ns()
            clock.sleep_until_ns(before + sleep_ns)
            assert clock.now_ns() == before + max(sleep_ns, 0)
            if sleep_ns > 0:
                woken.append((clock.now_ns(), number))

    clock.together([lambda number=number: part(number) for number in range(len(sleeps))])  # type: ignore[misc]
    assert woken == sorted(woken)
    assert len(woken) == sum(sleep_ns > 0 for own in sleeps for sleep_ns in own)
    assert clock.now_ns() == max(sum(max(sleep_ns, 0) for sleep_ns in own) for own in sleeps)
    clock.sleep_until_ns(10**6)
    assert clock.now_ns() == 10**6


def test_a_part_that_rests_is_roused() -> None:
    """At the time told, or at once where that has passed; one that sleeps goes on sleeping."""
    clock, seen = VirtualClock(), []

    def resting() -> None:
        for until in (100, 200, 300):
            clock.rest_until_ns(until)
            seen.append(clock.now_ns())
        clock.sleep_until_ns(1000)
        seen.append(clock.now_ns())

    def rousing() -> None:
        clock.sleep_until_ns(10)
        clock.rouse(0, 40)
        clock.sleep_until_ns(50)
        clock.rouse(0, 20)  # too late: now
        clock.sleep_until_ns(60)
        clock.rouse(0, 5000)  # later than it wakes up by itself
        clock.sleep_until_ns(400)
        clock.rouse(0, 400)

    clock.together([resting, rousing])
    assert seen == [40, 50, 300, 1000]


def test_a_part_that_fails_lets_the_others_end() -> None:
    """Its error is raised when they have, and the clock can be used again."""
    clock, ends = VirtualClock(), []

    def failing() -> None:
        clock.sleep_until_ns(5)
        raise ValueError("told to fail")

    def other() -> None:
        clock.sleep_until_ns(50)
        ends.append(clock.now_ns())

    with pytest.raises(ValueError, match="told to fail"):
        clock.together([failing, other])
    assert ends == [50]
    clock.together([other])
    assert ends == [50, 50]
