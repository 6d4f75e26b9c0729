"""All leaves of vector trees at once, by ridge regression, and as int8.

Boosting sets one tree's leaves at a time; with the tests fixed the sum is linear in all of them, so that the best
are those of one least-squares problem. It is solved by conjugate gradients (Hestenes and Stiefel, "Methods of
Conjugate Gradients for Solving Linear Systems", J. Research NBS 49, 1952), each output for itself, all at once; the
matrix of ones and zeros is never written out.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.effects import EFFECT_DECAY, leaves_of_effects

__all__ = ["as_int8", "refit"]

Array = npt.NDArray[Any]

_STEPS = 30  # bounds the time; ended before by _CLOSE where the problem is well conditioned
_CLOSE = 1e-3  # of the right-hand side


def refit(
    leaf: npt.NDArray[np.int64], sizes: list[int], target: Array, ridge: float, decay: float = EFFECT_DECAY
) -> list[Array]:
    """Leaves with the least squared error plus ``ridge`` times the squares of their effects.

    Effects are those of :mod:`framefit.core.effects`.

    Args:
        leaf: rows x trees: the leaf of each row in each tree.
        sizes: leaves of each tree.
        target: rows x outputs, float32.
        ridge: above 0; in rows: a leaf that one row reaches is halved by 1, where nothing decays.
        decay: of effects of several tests, above 0, at most 1.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = (leaf + offsets[:-1]).astype(np.int32)
    turn = _Effects(sizes, decay)
    right = turn.effects(_gather_rows(places, np.ascontiguousarray(target, np.float32), int(offsets[-1])))
    found = np.zeros_like(right)
    residual, direction = right.copy(), right.copy()
    energy = (residual**2).sum(axis=0, dtype=np.float64)
    goal = _CLOSE**2 * energy
    for _ in range(_STEPS):
        if (energy <= goal).all():
            break
        sums = _sum_rows(places, turn.leaves(direction))
        image = turn.effects(_gather_rows(places, sums, len(found))) + np.float32(ridge) * direction
        curvature = (direction * image).sum(axis=0, dtype=np.float64)
        length = np.divide(energy, curvature, out=np.zeros_like(energy), where=curvature > 0)
        found += length.astype(np.float32) * direction
        residual -= length.astype(np.float32) * image
        before, energy = energy, (residual**2).sum(axis=0, dtype=np.float64)
        grown = np.divide(energy, before, out=np.zeros_like(energy), where=before > 0)
        direction = residual + grown.astype(np.float32) * direction
    return np.split(turn.leaves(found), offsets[1:-1])


class _Effects:
    """Between the leaves of all trees, one tree behind the other, and their weighted effects; columns are outputs."""

    def __init__(self, sizes: list[int], decay: float) -> None:
        self._spans = list(itertools.pairwise(np.concatenate([[0], np.cumsum(sizes)]).tolist()))
        self._turns = {n: (leaves_of_effects(n, decay) / np.sqrt(n)).astype(np.float32) for n in set(sizes)}

    def leaves(self, effects: Array) -> Array:
        """Leaves that effects come to."""
        return np.concatenate([self._turns[end - at] @ effects[at:end] for at, end in self._spans])

    def effects(self, leaves: Array) -> Array:
        """The transposed of :meth:`leaves`."""
        return np.concatenate([self._turns[end - at].T @ leaves[at:end] for at, end in self._spans])


def as_int8(leaves: list[Array]) -> list[npt.NDArray[np.int8]]:
    """Leaves as whole numbers -127 .. 127, in a unit of each output that all trees share."""
    most = np.max([np.abs(table).max(axis=0) for table in leaves], axis=0)
    unit = np.where(most > 0, most, 1) / 127
    return [np.rint(table / unit).astype(np.int8) for table in leaves]


@njit(nogil=True, cache=True)
def _sum_rows(places: Array, leaves: Array) -> Array:  # pragma: no cover - compiled
    """Sum of each row's leaves: rows x outputs."""
    sums = np.zeros((len(places), leaves.shape[1]), np.float32)
    for row in range(len(places)):
        for tree in range(places.shape[1]):
            place = places[row, tree]
            for output in range(leaves.shape[1]):
                sums[row, output] += leaves[place, output]
    return sums


@njit(nogil=True, cache=True)
def _gather_rows(places: Array, rows: Array, count: int) -> Array:  # pragma: no cover - compiled
    """Sum of the rows that reach each leaf: leaves x outputs."""
    sums = np.zeros((count, rows.shape[1]), np.float32)
    for row in range(len(places)):
        for tree in range(places.shape[1]):
            place = places[row, tree]
            for output in range(rows.shape[1]):
                sums[place, output] += rows[row, output]
    return sums
