"""Intervals of ratios."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framefit.stats import wilson


@given(count=st.integers(1, 10_000), data=st.data())
def test_the_ratio_lies_inside(count: int, data: st.DataObject) -> None:
    """An interval holds its ratio, lies within 0 and 1, and mirrors that of the misses."""
    hits = data.draw(st.integers(0, count))
    low, high = wilson(hits, count)
    assert 0 <= low <= hits / count + 1e-12
    assert hits / count - 1e-12 <= high <= 1
    other = wilson(count - hits, count)
    assert np.allclose((1 - high, 1 - low), other)


def test_nine_in_ten_intervals_hold_the_truth() -> None:
    """Of many samples of 200 about 90 % of the intervals hold the ratio that they were drawn with."""
    hits = np.random.default_rng(0).binomial(200, 0.3, 2000)
    inside = [low <= 0.3 <= high for low, high in (wilson(int(count), 200) for count in hits)]
    assert 0.88 < np.mean(inside) < 0.93
