"""What no run of the same launches can exceed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.planning.bounds import Launched, fair_rates, fluid_bounds, packed_times, packing_bounds


def launched(gaps_ns: Sequence[int], *launches: tuple[int, int]) -> Launched:
    """Of (model, duration) in the order in which they were launched."""
    models, taken = (np.array(column, np.int64) for column in zip(*launches, strict=True))
    return Launched(gaps_ns, models, taken)


@pytest.mark.parametrize(
    ("priority_ns", "model_ns", "frames_a_window"),
    [(40, 60, 1.0), (40, 120, 0.5), (40, 10, 1.0), (0, 400, 0.25), (150, 10, 0.0)],
    ids=["just", "half", "one a window at most", "no priority", "no residual"],
)
def test_the_fluid_bound_is_residual_over_duration(priority_ns: int, model_ns: int, frames_a_window: float) -> None:
    """A hundred windows of 100 ns, however many of the frames were served."""
    for served in (0, frames_a_window * 50):
        bound = fluid_bounds([100 * max(100 - priority_ns, 0)], [[model_ns]], [served], [100])
        assert bound == pytest.approx([100 * frames_a_window])


def test_a_model_is_bounded_by_its_frames() -> None:
    """A short model gets every frame that arrives, however little of the residual that takes."""
    assert fluid_bounds([6000], [[10]], [33], [50]) == pytest.approx([50])
    assert packing_bounds([launched([60] * 100, *[(0, 10)] * 33)], [33], [50]) == pytest.approx([50])


def test_models_are_served_more_in_the_proportions_in_which_they_were() -> None:
    """Residual 6000: 40 and 60 ns at 3 to 1 use 2700 and come to twice that, or to the frames that there are."""
    assert fluid_bounds([5400], [[40], [60]], [45, 15], [100, 100]) == pytest.approx([90, 30])
    assert fluid_bounds([6000], [[40], [60]], [45, 15], [45, 100]) == pytest.approx([45, 70])
    assert fluid_bounds([6000], [[40], [60]], [45, 15], [60, 15]) == pytest.approx([60, 15])


def test_what_was_not_served_gets_what_others_leave() -> None:
    """All that the first leaves when its frames are done; nothing where it needs all there is."""
    assert fluid_bounds([6000], [[40], [60]], [10, 0], [30, 100]) == pytest.approx([30, 80])
    assert fluid_bounds([6000], [[40], [60]], [10, 0], [300, 100]) == pytest.approx([150, 0], abs=1e-6)
    assert packing_bounds([launched([60] * 100, *[(0, 40)] * 10)], [10, 0], [30, 80]) == pytest.approx([30, 80])


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.lists(st.integers(0, 200), min_size=3, max_size=3), st.integers(0, 50), st.integers(0, 50)),
        min_size=1,
        max_size=5,
    ),
)
def test_whatever_was_served_lies_within_its_fluid_bound(
    idle_ns: list[int], models: list[tuple[list[int], int, int]]
) -> None:
    """The residual is what was served and what was idle: nobody is bounded below what it did, or above its frames."""
    work = np.array([times[: len(idle_ns)] for times, _, _ in models], np.float64)
    served = np.array([done for _, done, _ in models], np.float64)
    arrived = served + [more for _, _, more in models]
    bound = fluid_bounds(served @ work + idle_ns, work, served, arrived)
    assert (bound >= served).all()
    assert (bound <= arrived).all()
    assert (bound @ work <= (served @ work + idle_ns) * (1 + 1e-6) + 1e-6).all()


@pytest.mark.parametrize(
    ("segments_ns", "frames_a_window"),
    [([60], 1.0), ([30, 30], 1.0), ([40, 40], 0.5), ([20] * 6, 0.5), ([50, 20, 50], 1 / 3), ([5], 1.0)],
)
def test_the_packing_bound_of_hand_cases(segments_ns: list[int], frames_a_window: float) -> None:
    """600 residuals of 60 ns; a tenth of the frames was served, in their order; one arrives a window."""
    served = round(60 * frames_a_window)
    one = launched([60] * 600, *[(0, ns) for ns in segments_ns] * served)
    assert packing_bounds([one], [served], [600]) == pytest.approx([600 * frames_a_window])


def test_launches_are_packed_in_their_order() -> None:
    """Residuals of 60: 40 and 30 in turn need one each, all of 30 before all of 40 one and a half for two."""
    turns = launched([60] * 60, *[(0, 40), (1, 30)] * 15)
    assert packing_bounds([turns], [15, 15], [60, 60]) == pytest.approx([30, 30])
    sorted_ = launched([60] * 60, *[(1, 30)] * 20, *[(0, 40)] * 20)
    assert packing_bounds([sorted_], [20, 20], [60, 60]) == pytest.approx([40, 40])


def test_a_model_that_has_all_its_frames_leaves_the_rest_to_the_others() -> None:
    """Residuals of 60: each of the first model's 20 frames is served once; the second gets what is left of 50."""
    unit = launched([60] * 20, *[(0, 30), (1, 30)] * 10)
    assert packing_bounds([unit], [10, 10], [10, 40]) == pytest.approx([10, 30])


def test_the_unit_with_the_least_room_bounds_a_model() -> None:
    """Half of the first unit was used, a fifth of the second: what is there on both has twice as many frames."""
    first, second = launched([10] * 20, *[(0, 10)] * 10), launched([10] * 20, *[(0, 2), (1, 2)] * 10)
    assert packing_bounds([first, second], [10, 10], [100, 100])[0] == pytest.approx(20)
    # The second model goes on when the first, which needs the first unit, cannot.
    assert packing_bounds([first, second], [10, 10], [20, 100])[1] == pytest.approx(80)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[tuple[int, list[tuple[int, int]]]], int]:
    """Gaps, each with idle time and launches of (model, duration)."""
    models = draw(st.integers(1, 3))
    launch = st.tuples(st.integers(0, models - 1), st.integers(1, 50))
    gap = st.tuples(st.integers(0, 60), st.lists(launch, max_size=4))
    return draw(st.lists(gap, min_size=1, max_size=30)), models


@given(runs(), st.lists(st.integers(0, 20), min_size=3, max_size=3))
def test_packing_never_does_less_than_what_was_done(
    run: tuple[list[tuple[int, list[tuple[int, int]]]], int], more: list[int]
) -> None:
    """Launches that lay in the gaps anyhow fit into them in the same order, each as early as it can be."""
    gaps, count = run
    launches = [launch for _, within in gaps for launch in within]
    if not launches:
        return
    unit = launched([idle + sum(ns for _, ns in within) for idle, within in gaps], *launches)
    wanted = 1 + np.array(more[:count], np.float64) / 4
    times = packed_times(unit, wanted)
    for model in set(unit.models.tolist()):
        assert times[model] >= 1
    work = np.bincount(unit.models, unit.taken_ns, minlength=count)
    # As many launches as were wanted are rounded to whole ones, each round anew.
    longest = count * 21 * int(unit.taken_ns.max())
    assert times @ work <= sum(unit.gaps_ns) + longest


@pytest.mark.timed
def test_the_bounds_of_a_long_run_cost_little() -> None:
    """10,000 windows of 12 launches: a fraction of a second."""
    random = np.random.default_rng(0)
    taken = random.integers(1_000_000, 3_000_000, 120_000)
    unit = Launched([30_000_000] * 10_000, random.integers(0, 4, 120_000), taken)
    begin = time.process_time()
    times = packed_times(unit, np.array([1.0, 1.2, 2, 9]))
    assert time.process_time() - begin < 0.2
    assert (times >= 1).all()


@given(
    st.floats(0, 500),
    st.lists(st.tuples(st.floats(1, 200), st.integers(1, 9), st.floats(0.1, 9)), min_size=1, max_size=5),
)
def test_the_fluid_is_used_up_or_nobody_needs_more(residual_ns: float, models: list[tuple[float, int, float]]) -> None:
    """No more than the residual is handed out; who gets less than its share has all that arrives."""
    work, every, share = (np.array(values, np.float64) for values in zip(*models, strict=True))
    rates = fair_rates(residual_ns, work[:, None], 1 / every, share)
    used = float(rates @ work)
    assert used <= residual_ns * (1 + 1e-9) + 1e-9
    satisfied = np.isclose(rates, 1 / every, rtol=1e-6, atol=0)
    assert satisfied.all() or used == pytest.approx(residual_ns)
    level = (rates / share).max()
    assert (satisfied | np.isclose(rates / share, level, rtol=1e-6, atol=0)).all()


@pytest.mark.parametrize(
    ("residual_ns", "work_ns", "every", "share", "rates"),
    [
        (60, [40, 80], [1, 1], [1, 1], [0.5, 0.5]),
        (60, [40, 60], [1, 1], [3, 1], [1, 1 / 3]),
        (60, [40, 80], [4, 1], [1, 1], [0.25, 50 / 80]),
        (60, [10, 20], [1, 1], [1, 1], [1, 1]),
        (0, [10, 20], [1, 1], [1, 1], [0, 0]),
    ],
)
def test_what_one_leaves_goes_to_the_others(
    residual_ns: float, work_ns: list[float], every: list[int], share: list[float], rates: list[float]
) -> None:
    """Residual 60: 40 and 80 ns share one rate of 1/2; one that is due every fourth window leaves 10 of its 20."""
    work, limits = np.array(work_ns, np.float64)[:, None], 1 / np.array(every, np.float64)
    assert fair_rates(residual_ns, work, limits, np.array(share, np.float64)) == pytest.approx(rates)


def test_nobody_shares_nothing() -> None:
    """Without models there are no rates."""
    assert not len(fair_rates(60, np.zeros((0, 1)), np.zeros(0), np.zeros(0)))


def test_whoever_uses_a_full_unit_stays_where_it_is() -> None:
    """60 and 60 on the first unit of 100, and 20 and 50 on the second: the third model has what is left there."""
    work = np.array([[60.0, 0], [60, 20], [0, 50]])
    rates = fair_rates(np.array([100.0, 100.0]), work, np.ones(3) * 3, np.ones(3))
    assert rates == pytest.approx([100 / 120, 100 / 120, (100 - 20 * 100 / 120) / 50])
