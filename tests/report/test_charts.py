"""Charts as data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.report.charts import decades, histogram, percent_axis, steps

SAMPLES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=200).map(np.array)


@given(st.lists(SAMPLES, min_size=1, max_size=3), st.booleans())
def test_histograms_lose_no_sample(samples, log):
    """The shares of each series add up to 100 %, its boxes hold its ends, and equal bins serve all."""
    lines, least = histogram([(str(at), one) for at, one in enumerate(samples)], log=log)
    assert len(lines) == len(samples)
    for line, own in zip(lines, samples, strict=True):
        assert sum(share for *_, share in line.data) == pytest.approx(100)
        assert line.data[0][0] <= own.min() * (1 + 1e-9)
        assert line.data[-1][1] >= own.max() * (1 - 1e-9)
        assert min(share for *_, share in line.data) > least
    widths = [(np.log(right / left) if log else right - left) for line in lines for left, right, _ in line.data]
    assert widths == pytest.approx(np.full(len(widths), widths[0]), rel=1e-3)


def test_histograms_of_nothing():
    """Where there are no samples, there are no series; a series without samples is left out."""
    assert histogram([("a", np.zeros(0))])[0] == ()
    assert [line.name for line in histogram([("a", np.zeros(0)), ("b", np.ones(3))])[0]] == ["b"]


@given(st.lists(st.floats(0, 100), max_size=2000).map(np.array), st.integers(0, 50))
def test_long_rows_become_a_line_within_a_band(values, first):
    """However long a row is, few points tell its medians and all of its ends."""
    middle, band, size = steps(values, first)
    assert len(middle) == len(band) <= 400
    assert len(middle) == -(-len(values) // size)
    for place, ((x, median), (_, low, high)) in enumerate(zip(middle, band, strict=True)):
        own = values[place * size : (place + 1) * size]
        assert x == first + place * size
        assert (median, low, high) == pytest.approx((np.median(own), own.min(), own.max()))


@given(st.lists(st.floats(1e-6, 1e9), min_size=1))
def test_decades_hold_all(values):
    """Both ends are powers of ten, apart, and nothing lies beyond them."""
    low, high = decades(values)
    assert low <= min(values)
    assert high >= max(values)
    assert high / low >= 9.99


@given(st.lists(st.floats(0, 100), min_size=1))
def test_percent_axes_hold_all(values):
    """Ends lie around the values, within 0 and 100 where these do."""
    axis = percent_axis("top-1", values)
    assert 0 <= axis.low <= min(values)
    assert max(values) <= axis.high <= 100
    assert axis.high > axis.low
