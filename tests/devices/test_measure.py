"""Timing: warmed up, interleaved, all samples kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.devices.clock import VirtualClock
from framefit.devices.device import Completion
from framefit.devices.host import realtime_priority_permitted
from framefit.devices.measure import Measurement, measure, measure_floor, mostly_drifting

pytestmark = pytest.mark.timed

samples = st.lists(st.integers(1, 10**9), min_size=1, max_size=60)


def launches(durations: Callable[[int], Iterator[int]], number: int) -> tuple[list[Callable[[], Completion]], list]:
    """Launches that take what their iterators say, and the order in which they were called."""
    called: list[int] = []

    def launch(index: int, source: Iterator[int]) -> Callable[[], Completion]:
        def run() -> Completion:
            called.append(index)
            return Completion(0, next(source))

        return run

    return [launch(index, durations(index)) for index in range(number)], called


def constant(index: int) -> Iterator[int]:
    """Always the same, and different for each."""
    return iter(lambda: 1000 * (index + 1), None)


def test_launches_take_turns() -> None:
    """Each round runs every launch once, in order, warm-up included."""
    timed, called = launches(constant, 3)
    found = measure(timed, budget_ns=0, least_rounds=5)
    assert called == [0, 1, 2] * (len(called) // 3)
    assert [m.samples_ns.tolist() for m in found] == [[1000] * 5, [2000] * 5, [3000] * 5]


def test_rounds_follow_the_budget_within_their_limits() -> None:
    """The budget over a round's duration, at least and at most as often as asked."""
    for budget_ns, rounds in ((0, 4), (7_500, 7), (10**9, 9)):
        timed, _ = launches(lambda _: iter(lambda: 1000, None), 1)
        assert len(measure(timed, budget_ns=budget_ns, least_rounds=4, most_rounds=9)[0].samples_ns) == rounds


def test_turns_may_differ_in_length() -> None:
    """One number of runs for each launch."""
    timed, called = launches(constant, 2)
    found = measure(timed, budget_ns=0, least_rounds=3, runs=[1, 4])
    assert [m.samples_ns.tolist() for m in found] == [[1000] * 3, [2000] * 12]
    assert called[-5:] == [0, 1, 1, 1, 1]


def test_a_turn_can_be_several_runs() -> None:
    """One launch after the other, then the next one's; samples are rounds x runs in order."""
    timed, called = launches(lambda index: iter(range(1000 * index, 1000 * index + 900)), 2)
    told: list[tuple[int, int]] = []
    found = measure(timed, budget_ns=0, least_rounds=2, runs=3, on_round=lambda *round_: told.append(round_))
    assert called[-12:] == [0, 0, 0, 1, 1, 1] * 2
    assert [np.diff(m.samples_ns).tolist() for m in found] == [[1] * 5] * 2
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize(("asked", "rounds"), [(0, 0), (4, 0), (7, 0), (8, 1), (9, 1), (10, 2)])
def test_what_is_stopped_keeps_complete_rounds(asked: int, rounds: int) -> None:
    """Asked before each launch's turn; a round that did not end, and warm-up, leave no samples."""
    timed, _ = launches(constant, 2)
    left = iter(range(asked))
    found = measure(timed, budget_ns=0, least_rounds=5, runs=2, stop=lambda: next(left, None) is None)
    assert [m.samples_ns.tolist() for m in found] == [[1000] * 2 * rounds, [2000] * 2 * rounds]


def test_who_had_the_processor() -> None:
    """Durations that this thread did not work for went to others; work that took no time went to nobody."""
    idle, _ = launches(lambda _: iter(lambda: 10**9, None), 2)
    assert all(m.away_ratio > 0.9 for m in measure(idle, budget_ns=0, least_rounds=3))
    busy, _ = launches(lambda _: iter(lambda: 0, None), 2)
    assert all(m.away_ratio == 0 for m in measure(busy, budget_ns=0, least_rounds=3))


def test_warm_up_is_not_kept() -> None:
    """Slow first rounds, while memory grows, leave no samples."""
    timed, called = launches(lambda _: iter([9000, 8000, 7000, 6000, 1000, *[1000] * 50]), 1)
    (found,) = measure(timed, budget_ns=0, least_rounds=10)
    assert found.samples_ns.tolist() == [1000] * 10
    assert len(called) > 14


def test_warm_up_ends_though_nothing_settles() -> None:
    """A launch that gets slower for ever is measured all the same."""
    timed, called = launches(lambda _: (1000 * 2**k for k in count()), 1)
    (found,) = measure(timed, budget_ns=0, least_rounds=3)
    assert len(found.samples_ns) == 3
    assert len(called) <= 20


@given(samples, st.integers(0, 1000).map(lambda share: share / 1000))
def test_quantile_was_seen(values: list[int], quantile: float) -> None:
    """A quantile is one of the samples, and at least that share of them is no greater."""
    found = Measurement(np.asarray(values)).quantile_ns(quantile)
    assert found in values
    assert sum(value <= found for value in values) >= quantile * (len(values) - 1)


@given(samples)
def test_interval_holds_the_median(values: list[int]) -> None:
    """The median's interval contains the median and lies within the samples."""
    found = Measurement(np.asarray(values))
    low, high = found.interval_ns
    assert min(values) <= low <= found.median_ns + 1
    assert found.median_ns <= high <= max(values)


def test_interval_is_a_90_percent_interval() -> None:
    """Over many samples of known median, between 86 and 97 of 100 intervals contain it."""
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        low, high = Measurement(random.integers(0, 1_000_001, 51)).interval_ns
        hits += low <= 500_000 <= high
    assert 0.86 < hits / 2000 < 0.97


@pytest.mark.parametrize(
    ("values", "ratio", "stable"),
    [
        ([100] * 10, 0.0, True),
        ([100] * 5 + [109] * 5, 0.09, True),
        ([100] * 5 + [120] * 5, 0.2, False),
        ([120] * 5 + [102] * 5, -0.15, False),
        ([7], 0.0, True),
    ],
)
def test_drift(values: list[int], ratio: float, stable: bool) -> None:
    """The second half's median against the first's tells whether the machine's speed changed."""
    found = Measurement(np.asarray(values))
    assert found.drift_ratio == pytest.approx(ratio)
    assert found.stable is stable


class LateClock(VirtualClock):
    """Wakes up 10, 20, 30 ... ns late."""

    def __init__(self) -> None:
        super().__init__(1_000)
        self.sleeps: list[int] = []

    def sleep_until_ns(self, time_ns: int) -> None:
        """Oversleep."""
        self.sleeps.append(time_ns)
        super().sleep_until_ns(time_ns + 10 * len(self.sleeps))


def test_floor_is_lateness_on_an_absolute_grid() -> None:
    """A late wake-up does not shift the next one."""
    clock = LateClock()
    assert measure_floor(clock, 500, 4).tolist() == [10, 20, 30, 40]
    assert clock.sleeps == [1_500, 2_000, 2_500, 3_000]


def test_most_of_what_was_measured_has_to_drift() -> None:
    """One of two that changes is no drift of the machine."""
    steady, changing = Measurement(np.full(10, 5)), Measurement(np.repeat([5, 9], 5))
    assert not mostly_drifting([steady, changing])
    assert mostly_drifting([steady, changing, changing])
    assert not mostly_drifting([])


@pytest.mark.skipif(not realtime_priority_permitted(), reason="real-time priority is not permitted here")
def test_launches_go_before_other_programs_with_pauses_between() -> None:
    """Real-time priority during launches only; the pauses leave others more than a twentieth of the time."""
    policies, clock = [], VirtualClock()

    def launch() -> Completion:
        policies.append(os.sched_getscheduler(0))
        begun = clock.now_ns()
        clock.sleep_until_ns(begun + 80_000_000)
        return Completion(begun, clock.now_ns())

    measure([launch], least_rounds=4, budget_ns=0, clock=clock, realtime=True)
    assert policies[-4:] == [os.SCHED_FIFO] * 4
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert clock.now_ns() == len(policies) * 80_000_000 + 4 * 10_000_000
