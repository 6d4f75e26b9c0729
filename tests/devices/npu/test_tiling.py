"""Tiles: traffic against every tile tried one by one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.devices.npu.cycles import refetched_bytes

SUM_BYTES = 4


def refetched(room, m, n, channels, *, area=1, bits=1.0, halo=0.0, outside=(1.0, 1.0)):
    """Bytes beyond the first time, of a product whose elements all have ``bits`` bytes."""
    arrays = [np.asarray([float(value)]) for value in (m, n, channels, channels * bits, channels * area * bits, halo)]
    ends = [np.asarray([value]) for value in outside]
    first, second = refetched_bytes(room, *arrays, bits, *ends)
    return float(first[0] + second[0])


def least(room, m, n, k):
    """The same by trying every tile, one byte an element; infinite where none fits."""
    best = math.inf
    for high, wide in itertools.product(range(1, m + 1), range(1, n + 1)):
        rows, columns = math.ceil(m / high), math.ceil(n / wide)
        if high * k + k * wide + high * wide <= room:  # sums at once: one operand stays while the other passes
            best = min(best, n * k * (rows - 1), m * k * (columns - 1))
        if high + wide + SUM_BYTES * high * wide <= room:  # sums in pieces, one channel at a time
            best = min(best, m * k * (columns - 1) + n * k * (rows - 1))
    return best


def test_what_fits_is_fetched_once() -> None:
    """Weights that stay, or pictures that stay: nothing comes twice."""
    assert refetched(10_000, 64, 64, 32) == 0
    assert refetched(32 * 64 + 32 + 64, 10_000, 64, 32) == 0  # all weights, one row, its results
    assert refetched(32 * 64 + 32 + 63, 10_000, 64, 32) > 0


def test_weights_come_once_a_tile_of_rows() -> None:
    """Room for half of the rows: the weights come twice."""
    room = 50 * 16 + 16 + 50
    assert refetched(room, 100, 200, 16) == 200 * 16


def test_rows_come_once_a_tile_of_columns() -> None:
    """Room for a third of the columns: the first operand comes three times."""
    room = 30 * 16 + 16 + 30
    assert refetched(room, 200, 90, 16) == 2 * 200 * 16


def test_long_sums_are_cut() -> None:
    """Where not even one column's weights fit, results stay and both operands pass by."""
    room, m, n, k = 500, 32, 32, 4096
    found = refetched(room, m, n, k)
    assert k > room
    assert found == least(room, m, n, k)


def test_an_operand_made_inside_the_layer_costs_nothing() -> None:
    """Only what comes from memory is fetched again."""
    assert refetched(500, 100, 100, 64, outside=(0.0, 1.0)) == 0
    assert refetched(500, 100, 100, 64, outside=(0.0, 0.0)) == 0


def test_no_room_at_all() -> None:
    """A cache for less than one product: every product fetches its operands."""
    assert refetched(2, 5, 7, 3) == 5 * 3 * (7 - 1) + 7 * 3 * (5 - 1)


def test_overlapping_rows_take_room() -> None:
    """A halo that stays in the cache leaves less for tiles."""
    assert refetched(600, 100, 60, 16, halo=200) > refetched(600, 100, 60, 16)


@given(st.integers(20, 400), st.integers(1, 24), st.integers(1, 24), st.integers(1, 24))
def test_against_every_tile(room, m, n, k) -> None:
    """Never less than the best of all tiles, and at most a fifth of all traffic above it."""
    found, best = refetched(room, m, n, k), least(room, m, n, k)
    once = m * k + n * k
    assert found >= best
    assert found + once <= 1.2 * (best + once)


@given(st.integers(20, 400), st.lists(st.integers(1, 40), min_size=3, max_size=3), st.integers(0, 2))
def test_more_of_anything_is_never_less(room, sizes, axis) -> None:
    """Rows, columns or channels added never save traffic; room added never costs any."""
    larger = list(sizes)
    larger[axis] += 3
    assert refetched(room, *larger) >= refetched(room, *sizes)
    assert refetched(room + 50, *sizes) <= refetched(room, *sizes)


@pytest.mark.parametrize("count", [1, 7])
def test_arrays_are_priced_one_by_one(count) -> None:
    """Each product alone gives what it gives among others."""
    random = np.random.default_rng(count)
    m, n, c = random.integers(1, 60, (3, count)).astype(float)
    zero, one = np.zeros(count), np.ones(count)
    first, second = refetched_bytes(300, m, n, c, c, c, zero, 1.0, one, one)
    alone = [refetched(300, *sizes) for sizes in zip(m, n, c, strict=True)]
    assert (first + second).tolist() == alone
