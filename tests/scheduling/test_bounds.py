"""What no dispatcher can exceed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.scheduling.bounds import fluid_bound_hz, packing_bound_hz


@pytest.mark.parametrize(
    ("priority_ns", "model_ns", "frames_a_window"),
    [(40, 60, 1.0), (40, 120, 0.5), (40, 10, 1.0), (0, 400, 0.25), (150, 10, 0.0)],
    ids=["just", "half", "one a window at most", "no priority", "no residual"],
)
def test_the_fluid_bound_is_residual_over_duration(priority_ns: int, model_ns: int, frames_a_window: float) -> None:
    """Windows of 100 ns, ten million a second."""
    assert fluid_bound_hz(100, priority_ns, model_ns) == pytest.approx(frames_a_window * 1e7)


@pytest.mark.parametrize(
    ("segments_ns", "frames_a_window"),
    [([60], 1.0), ([61], 0.0), ([30, 30], 1.0), ([40, 40], 0.5), ([20] * 6, 0.5), ([50, 20, 50], 1 / 3), ([5], 1.0)],
)
def test_the_packing_bound_of_hand_cases(segments_ns: list[int], frames_a_window: float) -> None:
    """Residuals of 60 ns, filled greedily in order; one frame starts a window."""
    rate = packing_bound_hz(100, 40, segments_ns, windows=600)
    assert rate == pytest.approx(frames_a_window * 1e7)


@given(st.integers(0, 50), st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_no_packing_beats_the_fluid(priority_ns: int, segments_ns: list[int]) -> None:
    """Segments that cannot be divided are never served faster than a fluid of their sum."""
    packing = packing_bound_hz(100, priority_ns, segments_ns, windows=200)
    assert 0 < packing <= fluid_bound_hz(100, priority_ns, sum(segments_ns)) * (1 + 1e-9)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_model_that_is_not_due_in_every_window_is_bounded_by_its_frames(every: int) -> None:
    """A short model is done once in so many windows, in both bounds; a long one as often as it fits."""
    assert fluid_bound_hz(100, 40, 10, every) == pytest.approx(1e7 / every)
    assert packing_bound_hz(100, 40, [10], windows=600, every=every) == pytest.approx(1e7 / every)
    assert packing_bound_hz(100, 40, [40] * 4, windows=600, every=every) == pytest.approx(1e7 / 4)
