"""One oblivious tree: at each level the one test that, asked in every leaf, explains most.

Histograms over comparator bits take the place of sorting. With many outputs, gains are taken of a few
random sums of them, drawn anew for each tree (Iosipoi and Vakhrushev, "SketchBoost: Fast Gradient Boosted
Decision Tree for Multioutput Problems", NeurIPS 2022, section 3.3).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["Candidates", "grow", "leaf_numbers", "leaf_sums"]

Array = npt.NDArray[Any]

_SMOOTHING = np.float32(1)  # added to the rows (or weight) of a leaf: one row more that says 0
_LEAST_GAIN = 1e-6  # part of what is left to explain


@dataclass(frozen=True)
class Candidates:
    """Comparator bits that differ among rows, each once.

    Attributes:
        bits: rows x candidates, 0 or 1.
        feature, bit: where each comes from.
    """

    bits: npt.NDArray[np.uint8]
    feature: npt.NDArray[np.int64]
    bit: npt.NDArray[np.int64]

    @classmethod
    def of(cls, words: npt.NDArray[np.uint8]) -> Candidates:
        """Of rows x features of words; bits equal to an earlier one are left out."""
        bits = np.concatenate([words > 0, words > 1], axis=1).view(np.uint8)
        features = words.shape[1]
        varying = np.flatnonzero(bits.any(axis=0) & ~bits.all(axis=0))
        packed = np.packbits(bits[:, varying], axis=0)
        _, first = np.unique(packed, axis=1, return_index=True)
        kept = varying[np.sort(first)]
        return cls(np.ascontiguousarray(bits[:, kept]), kept % features, kept // features)

    def like(self, words: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The same bits of other rows."""
        return (words[:, self.feature] > self.bit).view(np.uint8)


def grow(
    bits: npt.NDArray[np.uint8], gradient: Array, weight: Array, depth: int, least_rows: int
) -> npt.NDArray[np.int64]:
    """Choose the tests of a tree.

    Args:
        bits: rows x candidates.
        gradient: rows x outputs, float32: what the leaves are to explain.
        weight: rows, float32: what each counts; of a Newton step the curvature.
        depth: tests at most.
        least_rows: that a test has on both sides, over all leaves together.

    Returns:
        Candidates, in order of levels; fewer than ``depth`` where no more test helps.
    """
    columns = np.column_stack([gradient, weight]).astype(np.float32)
    ones = bits.sum(axis=0, dtype=np.int64)
    support = np.minimum(ones, len(bits) - ones)
    group = np.zeros(len(bits), np.int64)
    chosen: list[int] = []
    while len(chosen) < min(depth, bits.shape[1]):
        gain, before = _gains(bits, group, columns)
        gain[support < least_rows] = -np.inf
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        if not gain[best] - before > _LEAST_GAIN * max(before, 1e-12):
            break
        group |= bits[:, best].astype(np.int64) << len(chosen)
        chosen.append(best)
    return np.asarray(chosen, np.int64)


def leaf_numbers(bits: npt.NDArray[np.uint8], tests: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The leaf of each row."""
    return bits[:, tests].astype(np.int64) @ (1 << np.arange(len(tests), dtype=np.int64))


@njit(nogil=True, cache=True)
def leaf_sums(leaf: Array, columns: Array, leaves: int) -> Array:  # pragma: no cover - compiled
    """Sums of columns (rows x outputs) in each leaf: leaves x outputs."""
    sums = np.zeros((leaves, columns.shape[1]), np.float32)
    for row in range(len(leaf)):
        for output in range(columns.shape[1]):
            sums[leaf[row], output] += columns[row, output]
    return sums


def _gains(bits: Array, group: npt.NDArray[np.int64], columns: Array) -> tuple[Array, float]:
    """What each candidate would explain, and what the groups explain without one.

    Histograms are products of matrices, a group at a time; the last of ``columns`` is the rows' weight.
    """
    order = np.argsort(group, kind="stable")
    ranked = group[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1], True])
    bits, columns = bits[order].astype(np.float32), columns[order]
    spans = list(itertools.pairwise(starts.tolist()))
    inside = np.stack([columns[first:last].T @ bits[first:last] for first, last in spans])
    total = np.add.reduceat(columns, starts[:-1], axis=0)
    outside = total[:, :, None] - inside
    explained = sum((side[:, :-1] ** 2).sum(axis=1) / (side[:, -1] + _SMOOTHING) for side in (inside, outside))
    before = float(((total[:, :-1] ** 2).sum(axis=1) / (total[:, -1] + _SMOOTHING)).sum())
    return np.asarray(explained).sum(axis=0), before
