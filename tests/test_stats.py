"""Quantiles, robust deviations, intervals of ratios, and the basis of effects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.stats import (
    Z90,
    huber_weights,
    leaves_of_effects,
    normal_quantile,
    paired_interval,
    robust_deviation,
    sorted_by_key,
    student_quantile,
    two_sided_z,
    wilson,
)


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


@pytest.mark.parametrize(("freedom", "quantile"), [(2, 2.920), (3, 2.353), (5, 2.015), (10, 1.812), (30, 1.697)])
def test_student(freedom: int, quantile: float) -> None:
    """The printed table, within 2 %."""
    assert student_quantile(freedom) == pytest.approx(quantile, rel=0.02)


def test_normal_quantiles_are_those_of_the_printed_table() -> None:
    """The 90 % interval's, and that of the quantile which plans take."""
    assert normal_quantile(0.95) == two_sided_z(0.9) == pytest.approx(Z90, abs=1e-12)
    assert normal_quantile(0.99) == pytest.approx(2.326348, abs=1e-6)


def test_a_robust_deviation_is_the_deviation_of_normal_values_and_bears_outliers() -> None:
    """A tenth of the values may be anything; around another middle it is greater."""
    values = np.random.default_rng(0).normal(10, 2, 10_000)
    assert robust_deviation(values) == pytest.approx(2, rel=0.03)
    assert robust_deviation(values, 14) > 4
    values[:1000] = 1e9
    assert robust_deviation(values) == pytest.approx(2, rel=0.2)


def test_weights_fall_with_errors_beyond_the_usual_ones() -> None:
    """1 for small errors, and beyond 1.345 deviations the less the greater the error; all are 1 where none is large."""
    weights = huber_weights([0.1, -0.1, 0.1, -0.2, 10.0, -20.0], 1e-6)
    assert weights[:4].tolist() == [1, 1, 1, 1]
    assert weights[4] == pytest.approx(2 * weights[5])
    assert 0 < weights[5] < 0.05
    assert huber_weights([0.0, 0.0, 0.5], 1.0).tolist() == [1, 1, 1]


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


@pytest.mark.parametrize("keys", [5, 70_000])
def test_values_are_sorted_within_their_keys(keys: int) -> None:
    """Few and many keys give what sorting by two columns gives."""
    random = np.random.default_rng(0)
    key, value = random.integers(0, keys, 4000), random.integers(0, 9, 4000).astype(float)
    assert np.array_equal(sorted_by_key(key, value, keys), value[np.lexsort((value, key))])


@pytest.mark.parametrize(("more", "less", "count"), [(0, 0, 540), (1, 0, 360), (30, 10, 500), (9, 0, 9), (0, 5, 40)])
def test_a_paired_interval_is_the_score_interval(more: int, less: int, count: int) -> None:
    """Its ends are where the score statistic of the likeliest table is the normal quantile; it mirrors."""
    differences = np.r_[np.ones(more), -np.ones(less), np.zeros(count - more - less)]
    low, high = paired_interval(differences)
    assert paired_interval(-differences) == (-high, -low)

    def score(difference: float) -> float:
        grid = np.linspace(max(-difference, 0), (1 - difference) / 2, 200_001)[1:-1]  # of losses' counterpart
        likelihood = more * np.log(grid + difference) + less * np.log(grid)
        likelihood += (count - more - less) * np.log1p(-2 * grid - difference)
        other = grid[likelihood.argmax()]
        variance = count * (2 * other + difference * (1 - difference))
        return float((more - less - count * difference) / np.sqrt(variance))

    if high < 1:
        assert score(high) == pytest.approx(-Z90, rel=0.01)


def test_paired_intervals_cover_the_mean_difference() -> None:
    """In nine of ten cases, of few pairs of which most agree, too."""
    random = np.random.default_rng(4)
    inside = 0
    for _ in range(500):
        draws = random.random(540)
        differences = np.where(draws < 0.02, 1, np.where(draws < 0.03, -1, 0))
        low, high = paired_interval(differences)
        inside += low <= 0.01 <= high
    assert 435 <= inside <= 470


def test_intervals_of_sequences_hold_what_those_of_examples_miss() -> None:
    """Of 200 sequences whose neighbours are alike, 90 % intervals hold the mean; those for examples far less often."""
    random = np.random.default_rng(0)
    inside = {True: 0, False: 0}
    for _ in range(200):
        noise = np.zeros(2000)
        for place in range(1, len(noise)):
            noise[place] = 0.9 * noise[place - 1] + 0.02 * random.standard_normal()
        for sequence in inside:
            low, high = paired_interval(np.clip(0.1 + noise, -1, 1), sequence=sequence)
            inside[sequence] += low <= 0.1 <= high
    assert inside[True] >= 170
    assert inside[False] < 140
