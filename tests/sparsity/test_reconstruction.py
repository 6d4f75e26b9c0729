"""Optimal brain surgery of small layers, against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.sparsity import reconstruction
from framefit.sparsity.reconstruction import Reader, damped, output_error, reconstruct, reconstruct_channels


def layer(seed: int, rows: int, width: int, groups: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Weights, and the Hessian of correlated inputs."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal((groups, rows, width))
    mixing = random.standard_normal((groups, width, width))
    inputs = mixing @ random.standard_normal((groups, width, 4 * width))
    return weights, inputs @ inputs.transpose(0, 2, 1)


def refitted(weights: np.ndarray, hessian: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Least squares on a mask, row by row."""
    found = np.zeros_like(weights)
    matrix = damped(hessian[None])[0]
    for row, (dense, mask) in enumerate(zip(weights, kept, strict=True)):
        found[row, mask] = np.linalg.solve(matrix[np.ix_(mask, mask)], matrix[mask] @ dense)
    return found


@given(seed=st.integers(0, 200))
def test_weights_are_the_least_squares_fit_of_their_mask(seed: int) -> None:
    """At every level, row by row; and no level is worse than masking alone."""
    weights, hessian = layer(seed, 3, 6)
    found = reconstruct(weights, hessian, [0, 0.3, 0.5, 0.8])
    for level, matrix in enumerate(found.weights):
        if level:
            assert np.allclose(matrix, refitted(weights[0], hessian[0], matrix != 0), atol=1e-4)
        assert found.errors[level] <= found.masked[level] * (1 + 1e-9) + 1e-9
    assert (np.diff(found.errors) >= -1e-6).all()


def test_a_level_of_zero_keeps_the_weights_to_the_bit() -> None:
    """No change where nothing is removed."""
    weights, hessian = layer(1, 4, 8)
    single = weights.astype(np.float32)
    found = reconstruct(single, hessian, [0, 0.5])
    assert (found.weights[0] == single[0]).all()
    assert found.errors[0] == 0
    assert found.levels[0] == 0


def test_greedy_removal_of_two_weights_is_near_the_best_pair() -> None:
    """In rows of five: never better than brute force, at most a third worse on average."""
    excess = []
    for seed in range(20):
        weights, hessian = layer(seed, 1, 5)
        found = reconstruct(weights, hessian, [0.4]).errors[0]
        masks = (np.isin(np.arange(5), pair, invert=True)[None] for pair in itertools.combinations(range(5), 2))
        fits = (refitted(weights[0], hessian[0], mask) for mask in masks)
        best = min(output_error(weights - fit[None], hessian, np.ones((1, 1))) for fit in fits)
        excess.append(found / best)
    assert min(excess) >= 1 - 0.02  # the fit is of the damped Hessian
    assert np.mean(excess) < 4 / 3


def test_important_rows_keep_more() -> None:
    """Errors of the first row count a hundred times."""
    weights, hessian = layer(2, 2, 12)
    matrix = reconstruct(weights, hessian, [0.5], np.asarray([[100.0, 1.0]])).weights[0]
    assert np.count_nonzero(matrix[0]) > np.count_nonzero(matrix[1])


def test_groups_have_their_own_hessians() -> None:
    """Each group of a convolution is the layer that it would be alone."""
    weights, hessian = layer(3, 2, 6, groups=2)
    both = reconstruct(weights, hessian, [0, 1 / 3])
    kept = both.weights[1].reshape(2, 2, 6)
    for group in range(2):
        assert np.allclose(kept[group], refitted(weights[group], hessian[group], kept[group] != 0), atol=1e-4)


@pytest.mark.parametrize("wide", [False, True])
def test_n_of_m_holds_in_every_block(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two of four neighbours have a weight; a short block keeps its two."""
    if wide:
        monkeypatch.setattr(reconstruction, "WIDE", 4)
    weights, hessian = layer(4, 3, 10)
    blocks = np.arange(10) // 4
    found = reconstruct(weights, hessian, [0, 1.0], blocks=blocks, keep=2)
    counts = np.asarray([[np.count_nonzero(row[blocks == block]) for block in range(3)] for row in found.weights[1]])
    assert (counts == 2).all()


@pytest.mark.parametrize("wide", [False, True])
def test_rows_share_their_zeros(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at once, the seventh alone; the others compensate as well as they can."""
    if wide:
        monkeypatch.setattr(reconstruction, "WIDE", 4)
    weights, hessian = layer(4, 7, 12)
    found = reconstruct(weights, hessian, [0, 0.25, 0.5, 0.75], together=3)
    for level, matrix in zip(found.levels, found.weights, strict=True):
        for first in (0, 3, 6):
            part = matrix[first : first + 3] != 0
            assert (part == part[0]).all()
        if level and not wide:
            assert np.allclose(matrix, refitted(weights[0], hessian[0], matrix != 0), atol=1e-4)
    assert found.levels.tolist() == pytest.approx([0, 0.25, 0.5, 0.75], abs=0.08)
    assert (found.errors[1:] < found.masked[1:]).all()


@pytest.mark.parametrize("wide", [False, True])
def test_rows_and_inputs_share_their_zeros(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows and four inputs of a kernel's position at once; of ten channels the last block has two."""
    if wide:
        monkeypatch.setattr(reconstruction, "WIDE", 4)
    weights, hessian = layer(6, 6, 20)
    channel, position = np.divmod(np.arange(20), 2)
    shared = 3 * position + channel // 4
    found = reconstruct(weights, hessian, [0, 0.25, 0.5, 0.75], together=3, shared=shared)
    for level, matrix in zip(found.levels, found.weights, strict=True):
        for first, block in itertools.product((0, 3), range(6)):
            part = matrix[first : first + 3, shared == block] != 0
            assert part.all() or not part.any()
        if level and not wide:
            assert np.allclose(matrix, refitted(weights[0], hessian[0], matrix != 0), atol=1e-4)
    assert (np.diff(found.levels) > 0).all()
    assert (found.errors[1:] < found.masked[1:]).all()


def test_the_pair_that_costs_least_goes_first() -> None:
    """Of three pairs of inputs the one whose removal and refit add least to the error, as tried one by one."""
    for seed in range(10):
        weights, hessian = layer(seed, 2, 6)
        shared = np.arange(6) // 2
        matrix = reconstruct(weights, hessian, [1 / 3], together=2, shared=shared).weights[0]
        fits = [refitted(weights[0], hessian[0], np.tile(shared != pair, (2, 1))) for pair in range(3)]
        damping = damped(hessian)
        best = np.argmin([output_error(weights - fit[None], damping, np.ones((1, 2))) for fit in fits])
        assert np.flatnonzero(matrix[0] == 0).tolist() == np.flatnonzero(shared == best).tolist()


def test_wide_layers_are_pruned_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better than masking by the same scores, worse than the exact trace, and exactly as sparse."""
    weights, hessian = layer(5, 8, 48)
    exact = reconstruct(weights, hessian, [0, 0.5])
    monkeypatch.setattr(reconstruction, "WIDE", 8)
    monkeypatch.setattr(reconstruction, "_BLOCK", 16)
    blocked = reconstruct(weights, hessian, [0, 0.5])
    assert blocked.levels[1] == pytest.approx(0.5)
    assert exact.errors[1] < blocked.errors[1] < blocked.masked[1]


def test_channels_go_from_all_readers_at_once() -> None:
    """The same channels from both, each the least-squares fit of what is left, errors as they are told."""
    first, one = layer(6, 3, 12)
    second, other = layer(7, 2, 4)
    readers = [Reader(first[0], one[0], 3, np.ones(3)), Reader(second[0], other[0], 1, np.ones(2))]
    found = reconstruct_channels(readers, readers[1].weights.shape[1], [0, 1, 3])
    assert (found.weights[0][0] == first[0].astype(np.float32)).all()
    assert len(set(found.order.tolist())) == 3
    left = np.isin(np.arange(4), found.order, invert=True)
    assert np.allclose(found.weights[1][2], refitted(second[0], other[0], np.tile(left, (2, 1))), atol=1e-4)
    assert np.allclose(found.weights[0][2], refitted(first[0], one[0], np.tile(np.repeat(left, 3), (3, 1))), atol=1e-4)
    change = first - found.weights[0][2]
    total = output_error(change, one, np.ones((1, 3))) + output_error(
        second - found.weights[1][2], other, np.ones((1, 2))
    )
    assert found.errors[2] == pytest.approx(total, rel=1e-3)
    assert (found.errors <= found.masked * (1 + 1e-9)).all()
