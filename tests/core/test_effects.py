"""The basis of effects: what it promises of any tree's leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.stats import leaves_of_effects


@given(tests=st.integers(0, 6), decay=st.floats(0.05, 1.0))
def test_any_leaves_are_effects(tests: int, decay: float) -> None:
    """Every table of leaves is told by its effects, and columns are orthogonal."""
    size = 1 << tests
    turn = leaves_of_effects(size, decay)
    leaves = np.random.default_rng(tests).standard_normal(size)
    np.testing.assert_allclose(turn @ np.linalg.solve(turn, leaves), leaves, atol=1e-9)
    inner = turn.T @ turn
    np.testing.assert_allclose(inner, np.diag(np.diag(inner)), atol=1e-9)


def test_weights_fall_with_the_tests_that_act_together() -> None:
    """The mean and single tests are weighted alike, each further test by the decay."""
    turn = leaves_of_effects(8, 0.5)
    assert turn[0].tolist() == [1, 1, 1, 0.5, 1, 0.5, 0.5, 0.25]
    single = leaves_of_effects(8, 1.0)[:, 2]
    assert single.tolist() == [-1 if leaf >> 1 & 1 else 1 for leaf in range(8)]
    assert np.ptp(leaves_of_effects(8)[:, 0]) == pytest.approx(0)
