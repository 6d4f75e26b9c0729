"""Boosting of oblivious trees on comparator bits, in two forms.

Gradient boosting (Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", Annals of
Statistics 29, 2001, algorithm 1) has a vector of all outputs in each leaf. AdaBoost (Freund and Schapire,
"A Decision-Theoretic Generalization of On-Line Learning", JCSS 55, 1997, figure 2) has trees whose leaf is one bit
of one output; every vote has the same weight, so that hardware counts bits.

An oblivious tree has one test at each level, the one that explains most over all leaves together.

Histograms over comparator bits replace sorting. With many outputs, gains are computed for a few random sums of
them, drawn anew for each tree (Iosipoi and Vakhrushev, "SketchBoost: Fast Gradient Boosted Decision Tree for
Multioutput Problems", NeurIPS 2022, section 3.3).

Losses compare a score with an ordered level -1, 0 or 1.

A level determines for each of two thresholds on which side the score belongs: hinge, logarithmic and
exponential losses apply to the two margins (Lin and Li, "Large-Margin Thresholded Ensembles for Ordinal
Regression: Theory and Practice", ALT 2006). The squared loss uses the level as a number.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.files import Record
from framefit.core.trees import MAX_DEPTH

Array = npt.NDArray[Any]
_SMOOTHING = np.float32(1)  # added to the rows (or weight) of a leaf: one more row with value 0
_LEAST_GAIN = 1e-6  # part of what is not explained yet


@dataclass(frozen=True)
class Candidates:
    """Comparator bits that differ among rows, without duplicates.

    Attributes:
        bits: rows x candidates, 0 or 1.
        feature, bit: origin of each.
    """

    bits: npt.NDArray[np.uint8]
    feature: npt.NDArray[np.int64]
    bit: npt.NDArray[np.int64]

    @classmethod
    def of(cls, words: npt.NDArray[np.uint8]) -> Candidates:
        """Collect candidates from rows x features of words; bits equal to an earlier one are left out."""
        bits = np.concatenate([words > 0, words > 1], axis=1).view(np.uint8)
        features = words.shape[1]
        varying = np.flatnonzero(bits.any(axis=0) & ~bits.all(axis=0))
        packed = np.packbits(bits[:, varying], axis=0)
        _, first = np.unique(packed, axis=1, return_index=True)
        kept = varying[np.sort(first)]
        return cls(np.ascontiguousarray(bits[:, kept]), kept % features, kept // features)

    def like(self, words: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the same bits for other rows."""
        return (words[:, self.feature] > self.bit).view(np.uint8)


def grow(
    bits: npt.NDArray[np.uint8], gradient: Array, weight: Array, depth: int, least_rows: int
) -> npt.NDArray[np.int64]:
    """Choose the tests of a tree.

    Args:
        bits: rows x candidates.
        gradient: rows x outputs, float32: the target of the leaves.
        weight: rows, float32: weight of each; of a Newton step the curvature.
        depth: largest number of tests.
        least_rows: rows that a test needs on both sides, over all leaves together.

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
    """Number of the leaf that each row reaches."""
    return bits[:, tests].astype(np.int64) @ (1 << np.arange(len(tests), dtype=np.int64))


@njit(nogil=True, cache=True)
def leaf_sums(leaf: Array, columns: Array, leaves: int) -> Array:  # pragma: no cover - compiled
    """Sum columns (rows x outputs) in each leaf: leaves x outputs."""
    sums = np.zeros((leaves, columns.shape[1]), np.float32)
    for row in range(len(leaf)):
        for output in range(columns.shape[1]):
            sums[leaf[row], output] += columns[row, output]
    return sums


def _gains(bits: Array, group: npt.NDArray[np.int64], columns: Array) -> tuple[Array, float]:
    """How much each candidate would explain, and how much the groups explain without one.

    Histograms are products of matrices, one group at a time; the last of ``columns`` is the rows' weight.
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


Loss = Literal["squared", "log", "hinge", "exponential"]


def descent(loss: Loss, target: Array, score: Array, reach: float, sharpness: float) -> Array:
    """Negative gradient of the loss, up to a factor.

    Args:
        loss: kind of loss.
        target: -1, 0 or 1; for the squared loss any number.
        score: the same shape, float32.
        reach: the thresholds are at ``-reach`` and ``reach``.
        sharpness: factor on margins.
    """
    if loss == "squared":
        return target - score
    total = np.zeros_like(score)
    for side, margin in _margins(target, score, reach, sharpness):
        if loss == "log":
            total += side / (1 + np.exp(np.minimum(margin, 60)))
        elif loss == "hinge":
            total += side * (margin < 1)
        else:
            total += side * np.exp(-np.clip(margin, -20, 20))
    return total


def mean_loss(loss: Loss, target: Array, score: Array, reach: float, sharpness: float) -> float:
    """Mean loss over all elements."""
    if loss == "squared":
        return float(np.mean((target - score) ** 2, dtype=np.float64))
    total = 0.0
    for _, margin in _margins(target, score, reach, sharpness):
        if loss == "log":
            total += float(np.mean(np.logaddexp(0, -margin), dtype=np.float64))
        elif loss == "hinge":
            total += float(np.mean(np.maximum(1 - margin, 0), dtype=np.float64))
        else:
            total += float(np.mean(np.exp(-np.clip(margin, -20, 20)), dtype=np.float64))
    return total


def _margins(target: Array, score: Array, reach: float, sharpness: float) -> list[tuple[Array, Array]]:
    """The right side of each threshold (-1 or 1), and the score's margin on it."""
    sides = [np.where(target > -0.5, 1, -1).astype(np.float32), np.where(target > 0.5, 1, -1).astype(np.float32)]
    return [
        (side, sharpness * side * (score - threshold))
        for side, threshold in zip(sides, (np.float32(-reach), np.float32(reach)), strict=True)
    ]


DepthRule = Literal["auto", "layers"] | int
_BASE_DEPTH = 4  # for two layers, trees then have 64 leaves, as many as a table of six inputs has entries
_LEVEL_REACH = 0.5  # thresholds half-way between the levels -1, 0, 1
_SHARPNESS = 4.0  # a score on its level is two units away from the nearest threshold
_VOTE_STEP = 0.4  # AdaBoost's exponent: half the log odds of a tree that errs on 31 %
_CURVATURE_SMOOTHING = 1.0  # rows with value 0 that are added to a leaf's mean


class Boosting(Record, kw_only=True):
    """Parameters of a fit.

    Attributes:
        method: "gradient": vector leaves; "ada": votes.
        trees: largest number; for "ada" of each output.
        depth: number of tests in a tree.
        loss: minimised by each tree; "exponential" is that of AdaBoost, and only "ada" has it.
        rate: factor on a tree's leaves, 0 to 1; votes have none.
        patience: trees without a better validation loss after which the fit ends; trees behind the best
            number are removed.
        rows: largest number on which one tree's tests are chosen, drawn anew for each tree.
        sketch: largest number of sums of outputs on which tests are chosen.
        least_rows: rows that a test needs on both sides.
    """

    method: Literal["gradient", "ada"] = "gradient"
    trees: int = 64
    depth: int = MAX_DEPTH
    loss: Loss = "squared"
    rate: float = 0.3
    patience: int = 12
    rows: int = 8192
    sketch: int = 8
    least_rows: int = 8

    def __post_init__(self) -> None:
        if self.trees < 1 or not 1 <= self.depth <= MAX_DEPTH:
            raise ValueError(
                f"{self.trees} trees of depth {self.depth}: trees must be at least 1, depth 1 to {MAX_DEPTH}"
            )
        if self.method == "gradient" and self.loss == "exponential":
            raise ValueError("the exponential loss needs method 'ada': steps along its gradient grow without bound")
        if not 0 < self.rate <= 1 or min(self.patience, self.rows, self.sketch, self.least_rows) < 1:
            raise ValueError("rate must be above 0 and at most 1; patience, rows, sketch and least_rows at least 1")


@dataclass
class Boosted:
    """Trees in the form in which they are trained.

    Attributes:
        tests: of each tree: candidates in order of levels.
        leaves: of each tree, float32: leaves x outputs; for votes leaves x 1, values 0 or 1.
        training, validation: mean loss after each tree (for votes: after each round).
    """

    tests: list[npt.NDArray[np.int64]]
    leaves: list[Array]
    training: list[float]
    validation: list[float]


def depth_of(layers: int, rule: DepthRule = "auto") -> int:
    """Depth of trees that replace a number of layers: min(6, base + layers), or the number itself."""
    if isinstance(rule, int):
        return min(MAX_DEPTH, rule)
    return min(MAX_DEPTH, layers if rule == "layers" else _BASE_DEPTH + layers)


def boost_vectors(
    bits: tuple[Array, Array], targets: tuple[Array, Array], settings: Boosting, random: np.random.Generator
) -> Boosted:
    """Gradient boosting with vector leaves.

    Args:
        bits: candidates for the training and for the validation rows, uint8.
        targets: rows x outputs for both, float32: levels -1, 0, 1, or any numbers with the squared loss.
        settings: parameters of the fit.
        random: draws rows and sums of outputs.
    """
    score, held = np.zeros_like(targets[0]), np.zeros_like(targets[1])
    made = Boosted([], [], [], [])
    best = (_mean(settings, targets[1], held), 0)
    for count in range(1, settings.trees + 1):
        step = descent(settings.loss, targets[0], score, _LEVEL_REACH, _SHARPNESS).astype(np.float32)
        tests = _grown(bits[0], step, settings, random)
        leaf, size = leaf_numbers(bits[0], tests), 1 << len(tests)
        rows = np.bincount(leaf, minlength=size).astype(np.float32)
        leaves = leaf_sums(leaf, step, size) * (settings.rate / (rows + _CURVATURE_SMOOTHING))[:, None]
        score += leaves[leaf]
        held += leaves[leaf_numbers(bits[1], tests)]
        made.tests.append(tests)
        made.leaves.append(leaves)
        made.training.append(_mean(settings, targets[0], score))
        made.validation.append(_mean(settings, targets[1], held))
        if made.validation[-1] < best[0]:
            best = (made.validation[-1], count)
        if count - best[1] >= settings.patience or not len(tests):
            break
    kept = max(best[1], 1)
    del made.tests[kept:], made.leaves[kept:]
    return made


def boost_votes(
    bits: tuple[Array, Array], targets: tuple[Array, Array], settings: Boosting, random: np.random.Generator
) -> Boosted:
    """AdaBoost with one bit in each leaf, output by output; every output gets ``settings.trees`` trees.

    Args: as for :func:`boost_vectors`; targets are levels.

    Returns:
        Trees output by output; losses by round, averaged over outputs.
    """
    outputs = targets[0].shape[1]
    reach = _VOTE_STEP * settings.trees / 3  # a third of the votes decides on a level, as on a uniform scale
    made = Boosted([], [], [], [])
    losses = np.zeros((2, settings.trees))
    for output in range(outputs):
        score, held = (np.zeros(len(side), np.float32) for side in bits)
        for turn in range(settings.trees):
            step = descent(settings.loss, targets[0][:, output], score, reach, 1.0).astype(np.float32)
            tests = _grown(bits[0], step[:, None], settings, random)
            leaf = leaf_numbers(bits[0], tests)
            votes = (leaf_sums(leaf, step[:, None], 1 << len(tests)) > 0).astype(np.float32)
            score += _VOTE_STEP * (2 * votes[leaf, 0] - 1)
            held += _VOTE_STEP * (2 * votes[leaf_numbers(bits[1], tests), 0] - 1)
            made.tests.append(tests)
            made.leaves.append(votes)
            for place, (side, scores) in enumerate(((targets[0], score), (targets[1], held))):
                losses[place, turn] += mean_loss(settings.loss, side[:, output], scores, reach, 1.0) / outputs
    made.training, made.validation = losses[0].tolist(), losses[1].tolist()
    return made


def _grown(bits: Array, step: Array, settings: Boosting, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Choose tests for a step, on some of the rows and on sums of outputs."""
    if len(bits) > settings.rows:
        drawn = np.sort(random.choice(len(bits), settings.rows, replace=False))
        bits, step = bits[drawn], step[drawn]
    if step.shape[1] > settings.sketch:
        directions = random.standard_normal((step.shape[1], settings.sketch)).astype(np.float32)
        step = step @ (directions / np.float32(np.sqrt(settings.sketch)))
    return grow(bits, step, np.ones(len(bits), np.float32), settings.depth, settings.least_rows)


def _mean(settings: Boosting, target: Array, score: Array) -> float:
    return mean_loss(settings.loss, target, score, _LEVEL_REACH, _SHARPNESS)
