"""What no dispatcher can exceed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.planning.bounds import Work, fair_rates, fluid_bounds_hz, fluid_rates, packing_bounds_hz

works = st.builds(
    lambda segments, every, frames: Work(sum(segments), segments, every, frames),
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 3),
)


@pytest.mark.parametrize(
    ("priority_ns", "model_ns", "frames_a_window"),
    [(40, 60, 1.0), (40, 120, 0.5), (40, 10, 1.0), (0, 400, 0.25), (150, 10, 0.0)],
    ids=["just", "half", "one a window at most", "no priority", "no residual"],
)
def test_the_fluid_bound_is_residual_over_duration(priority_ns: int, model_ns: int, frames_a_window: float) -> None:
    """Windows of 100 ns, ten million a second."""
    assert fluid_bounds_hz(100, priority_ns, [Work(model_ns)]) == [pytest.approx(frames_a_window * 1e7)]


@pytest.mark.parametrize(
    ("segments_ns", "frames_a_window"),
    [([60], 1.0), ([61], 0.0), ([30, 30], 1.0), ([40, 40], 0.5), ([20] * 6, 0.5), ([50, 20, 50], 1 / 3), ([5], 1.0)],
)
def test_the_packing_bound_of_hand_cases(segments_ns: list[int], frames_a_window: float) -> None:
    """Residuals of 60 ns, filled greedily in order; one frame arrives a window."""
    rates = packing_bounds_hz(100, 40, [Work(sum(segments_ns), segments_ns)], windows=600)
    assert rates == [pytest.approx(frames_a_window * 1e7)]


@given(st.integers(0, 50), works)
def test_no_packing_beats_the_fluid(priority_ns: int, work: Work) -> None:
    """Segments that cannot be divided are never served faster than a fluid of their sum."""
    (packing,) = packing_bounds_hz(100, priority_ns, [work], windows=240)
    (fluid,) = fluid_bounds_hz(100, priority_ns, [work])
    assert 0 < packing <= fluid * (1 + 1e-9)


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_model_is_bounded_by_its_frames(every: int, frames: int) -> None:
    """A short model gets every frame that arrives, however many it takes at once, in both bounds."""
    short = [Work(10, [10], every, frames)]
    assert fluid_bounds_hz(100, 40, short) == [pytest.approx(1e7 / every)]
    assert packing_bounds_hz(100, 40, short, windows=600) == [pytest.approx(1e7 / every)]


def test_bounds_count_frames_not_launches() -> None:
    """A launch of 120 ns for four frames in residuals of 60: a launch in two windows, two frames a window, one arrives.

    Twice as long, it is the residual that binds: four frames in four windows; thrice: four in six.
    """
    for whole_ns, frames_a_window in ((120, 1.0), (240, 1.0), (360, 2 / 3)):
        work = [Work(whole_ns, [60] * (whole_ns // 60), frames=4)]
        assert fluid_bounds_hz(100, 40, work) == [pytest.approx(frames_a_window * 1e7)]
        assert packing_bounds_hz(100, 40, work, windows=600) == [pytest.approx(frames_a_window * 1e7, rel=0.01)]


def due(whole_ns: float, every: int = 1, share: float = 1.0) -> Work:
    """A model by its duration, its period and its share."""
    return Work(whole_ns, every=every, share=share)


def test_models_are_served_in_their_shares_and_what_one_leaves_goes_to_the_others() -> None:
    """Residual 60: 40 and 80 ns share one rate of 1/2; one that is due every fourth window leaves 10 of its 20."""
    assert fluid_rates(60, [due(40), due(80)]) == [0.5, 0.5]
    assert fluid_rates(60, [due(40, share=3), due(60)]) == [1, pytest.approx(1 / 3)]
    assert fluid_rates(60, [due(40, every=4), due(80)]) == [0.25, 50 / 80]
    assert fluid_rates(60, [due(10), due(20)]) == [1, 1]
    assert fluid_rates(0, [due(10), due(20)]) == [0, 0]
    assert fluid_rates(60, []) == []


@given(
    st.floats(0, 500),
    st.lists(st.builds(due, st.floats(1, 200), st.integers(1, 9), st.floats(0.1, 9)), min_size=1, max_size=5),
)
def test_the_fluid_is_used_up_or_nobody_needs_more(residual: float, models: list[Work]) -> None:
    """No more than the residual is handed out; who gets less than its share has all that arrives."""
    rates = fluid_rates(residual, models)
    used = sum(rate * model.whole_ns for rate, model in zip(rates, models, strict=True))
    assert used <= residual * (1 + 1e-9) + 1e-9
    satisfied = [rate == pytest.approx(1 / model.every) for rate, model in zip(rates, models, strict=True)]
    assert all(satisfied) or used == pytest.approx(residual)
    level = max(rate / model.share for rate, model in zip(rates, models, strict=True))
    for rate, model, done in zip(rates, models, satisfied, strict=True):
        assert done or rate / model.share == pytest.approx(level)


def test_what_finds_a_queue_full_is_no_work_for_the_packing_bound() -> None:
    """With one frame that waits a model runs in its turn only; with more of them it fills the gaps, too."""
    models = [Work(10, [10]), Work(90, [45, 45])]
    third = pytest.approx(1e7 / 3)
    assert packing_bounds_hz(100, 50, models, windows=600) == [third, third]
    patient = [Work(10, [10], queue=9), models[1]]
    assert packing_bounds_hz(100, 50, patient, windows=600) == [pytest.approx(1e7, rel=0.02), third]


def test_the_packing_bound_serves_in_turn_too() -> None:
    """Residual 60, segments of 30: two models of two segments each get a frame in two windows."""
    work = [Work(60, [30, 30]), Work(60, [30, 30])]
    assert packing_bounds_hz(100, 40, work, windows=600) == [pytest.approx(5e6), pytest.approx(5e6)]
    rare = [Work(60, [30, 30], every=4), Work(60, [30, 30])]
    assert packing_bounds_hz(100, 40, rare, windows=600) == [pytest.approx(2.5e6), pytest.approx(7.5e6, rel=0.01)]


@given(
    st.floats(0, 500),
    st.lists(st.tuples(st.floats(1, 300), st.integers(1, 4), st.floats(0.1, 2)), min_size=1, max_size=4),
)
def test_on_one_unit_fair_rates_are_those_of_a_fluid(
    residual_ns: float, models: list[tuple[float, int, float]]
) -> None:
    """The same filling of one residual, in the models' shares."""
    fluid = fluid_rates(residual_ns, [Work(ns, every=every, share=share) for ns, every, share in models])
    work, every, share = (np.array(values, np.float64) for values in zip(*models, strict=True))
    assert fair_rates(residual_ns, work[:, None], 1 / every, share) == pytest.approx(fluid, rel=1e-6, abs=1e-9)


def test_whoever_uses_a_full_unit_stays_where_it_is() -> None:
    """60 and 60 on the first unit of 100, and 20 and 50 on the second: the third model has what is left there."""
    work = np.array([[60.0, 0], [60, 20], [0, 50]])
    rates = fair_rates(np.array([100.0, 100.0]), work, np.ones(3) * 3, np.ones(3))
    assert rates == pytest.approx([100 / 120, 100 / 120, (100 - 20 * 100 / 120) / 50])
