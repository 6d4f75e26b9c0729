"""Fits an ensemble to examples of a group's input and output.

All leaves of vector trees are fitted together by ridge regression, and rounded to int8.

Boosting fits one tree's leaves at a time; with fixed tests the sum is linear in all leaves, so that the best ones
solve a single least-squares problem. It is solved by conjugate gradients (Hestenes and Stiefel, "Methods of Conjugate
Gradients for Solving Linear Systems", J. Research NBS 49, 1952), for all outputs at once; the matrix of ones and zeros
is never formed.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.trees import Encoder, Ensemble, ObliviousTree, Patch, Scaled, TreeKind, accumulate, encode
from framefit.errors import InputError
from framefit.stats import EFFECT_DECAY, leaves_of_effects
from framefit.trees.boosting import Boosted, Boosting, Candidates, boost_vectors, boost_votes, leaf_numbers
from framefit.trees.quantising import fit_encoder, fit_levels, fit_scale, quantised

Array = npt.NDArray[Any]
_STEPS = 30  # limits the time; well-conditioned problems end earlier by _CLOSE
_CLOSE = 1e-3  # of the right-hand side


def refit(
    leaf: npt.NDArray[np.int64], sizes: list[int], target: Array, ridge: float, decay: float = EFFECT_DECAY
) -> list[Array]:
    """Fit leaves with the least squared error plus ``ridge`` times the squares of their effects.

    Effects are defined in :mod:`framefit.stats`.

    Args:
        leaf: rows x trees: the leaf of each row in each tree.
        sizes: number of leaves of each tree.
        target: rows x outputs, float32.
        ridge: above 0; in rows: 1 halves a leaf that a single row reaches, where nothing decays.
        decay: factor for effects of several tests, above 0, at most 1.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = (leaf + offsets[:-1]).astype(np.int32)
    turn = _Effects(sizes, decay)
    right = turn.effects(_gather_rows(places, np.ascontiguousarray(target, np.float32), int(offsets[-1])))
    solution = np.zeros_like(right)
    residual, direction = right.copy(), right.copy()
    energy = (residual**2).sum(axis=0, dtype=np.float64)
    goal = _CLOSE**2 * energy
    for _ in range(_STEPS):
        if (energy <= goal).all():
            break
        sums = _sum_rows(places, turn.leaves(direction))
        image = turn.effects(_gather_rows(places, sums, len(solution))) + np.float32(ridge) * direction
        curvature = (direction * image).sum(axis=0, dtype=np.float64)
        length = np.divide(energy, curvature, out=np.zeros_like(energy), where=curvature > 0)
        solution += length.astype(np.float32) * direction
        residual -= length.astype(np.float32) * image
        before, energy = energy, (residual**2).sum(axis=0, dtype=np.float64)
        grown = np.divide(energy, before, out=np.zeros_like(energy), where=before > 0)
        direction = residual + grown.astype(np.float32) * direction
    return np.split(turn.leaves(solution), offsets[1:-1])


class _Effects:
    """Converts between the leaves of all trees, one tree after the other, and their weighted effects."""

    def __init__(self, sizes: list[int], decay: float) -> None:
        self._spans = list(itertools.pairwise(np.concatenate([[0], np.cumsum(sizes)]).tolist()))
        self._turns = {n: (leaves_of_effects(n, decay) / np.sqrt(n)).astype(np.float32) for n in set(sizes)}

    def leaves(self, effects: Array) -> Array:
        """Leaves from effects (rows; columns are outputs)."""
        return np.concatenate([self._turns[end - at] @ effects[at:end] for at, end in self._spans])

    def effects(self, leaves: Array) -> Array:
        """The transpose of :meth:`leaves`."""
        return np.concatenate([self._turns[end - at].T @ leaves[at:end] for at, end in self._spans])


def as_int8(leaves: list[Array]) -> list[npt.NDArray[np.int8]]:
    """Leaves as whole numbers -127 to 127, in a unit of each output that all trees share."""
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


_RIDGES = (2.0, 8.0, 32.0, 128.0)  # rows with value 0 that are added to a leaf
_VALIDATION_RATIO = 0.15  # of the examples


@dataclass(frozen=True)
class Place:
    """The place of an ensemble in its model.

    Attributes:
        name: of the group of layers.
        input, output: names of tensors.
        patch: for convolutions: what one output position reads.
    """

    name: str
    input: str
    output: str
    patch: Patch | None = None


@dataclass(frozen=True)
class Fitted:
    """An ensemble, and the history of its fit.

    Attributes:
        training, validation: loss after each tree.
        kept: number of trees (of votes: for each output) after pruning.
    """

    ensemble: Ensemble
    training: tuple[float, ...]
    validation: tuple[float, ...]
    kept: int


def fit_ensemble(
    x: Array,
    y: Array,
    place: Place,
    settings: Boosting,
    *,
    seed: int = 0,
    output_levels: int = 3,
    input_levels: int = 3,
    threshold: float | None = None,
) -> Fitted:
    """Fit trees to a group's inputs and outputs; some of the examples are held out for validation.

    Args:
        x: examples x input shape, float32.
        y: examples x output shape, float32.
        place: of the ensemble in the model.
        settings: parameters of the boosting.
        seed: for the split, and for random choices of the boosting.
        output_levels: 2, 3, or 0: whole numbers times a scale, not quantised further; votes are then counted.
        input_levels: 2 or 3.
        threshold: for normalised values; ``None``: thresholds of least error.

    Raises:
        InputError: too few examples, or settings that exclude each other.
    """
    if len(x) != len(y) or len(x) < 8:
        raise InputError(f"{len(x)} inputs and {len(y)} outputs", where=place.name, remedy="give at least 8 examples")
    if input_levels not in (2, 3) or output_levels not in (0, 2, 3):
        raise InputError(
            f"{input_levels} input levels, {output_levels} output levels",
            where=place.name,
            remedy="choose 2 or 3 levels; outputs may have 0: no levels",
        )
    random = np.random.default_rng(seed)
    held = np.zeros(len(x), bool)
    held[random.permutation(len(x))[: max(1, round(_VALIDATION_RATIO * len(x)))]] = True
    x, y = x.astype(np.float32, copy=False), y.astype(np.float32, copy=False)
    encoder = fit_encoder(columns(x, place.patch), 3 if input_levels == 3 else 2, threshold)
    if place.patch is not None:  # each slice of a volume has the thresholds of its channel
        low, high = (np.repeat(side, place.patch.depth[0]).tolist() for side in (encoder.low, encoder.high))
        encoder = Encoder(low=tuple(low), high=tuple(high))
    empty = draft(place, encoder, x.shape[1:], y.shape[1:])
    words, rows = encode(empty, x), columns(y, place.patch)
    out = np.repeat(held, empty.positions)
    candidates = Candidates.of(words[~out])
    bits = candidates.bits, candidates.like(words[out])
    if output_levels or settings.method == "ada":  # a vote is for or against; their count is worth what it tells
        target = quantised(rows, 2 if output_levels == 2 else 3, threshold).astype(np.float32)
    else:
        middle, spread = rows.mean(axis=0), rows.std(axis=0)
        target = (rows - middle) / np.where(spread > 0, spread, 1)
    boost = boost_vectors if settings.method == "gradient" else boost_votes
    boosted = boost(bits, (target[~out], target[out]), settings, random)
    if settings.method == "gradient" and settings.loss == "squared":
        boosted.leaves = _refitted(boosted, candidates.like(words), target, out)
    grown = _grown(boosted, candidates, settings)
    kind: TreeKind = "vector" if settings.method == "gradient" else "vote"
    ensemble = decoded(msgspec.structs.replace(empty, kind=kind, trees=grown), words, rows, output_levels)
    return Fitted(ensemble, tuple(boosted.training), tuple(boosted.validation), ensemble.trees_each)


def _refitted(boosted: Boosted, bits: Array, target: Array, held: npt.NDArray[np.bool_]) -> list[Array]:
    """Leaves by the ridge of least error on held-out rows, then fitted to these rows, too: the tests are final."""
    leaf = np.stack([leaf_numbers(bits, tests) for tests in boosted.tests], axis=1)
    sizes = [len(table) for table in boosted.leaves]
    errors = []
    for ridge in _RIDGES:
        leaves = refit(leaf[~held], sizes, target[~held], ridge)
        predicted = sum(table[leaf[held, tree]] for tree, table in enumerate(leaves))
        errors.append(float(((target[held] - predicted) ** 2).mean()))
    return refit(leaf, sizes, target, _RIDGES[int(np.argmin(errors))])


def columns(x: Array, patch: Patch | None) -> Array:
    """Values by channel or by feature: rows x columns."""
    if patch is None:
        return x.reshape(len(x), -1)
    rows = x if patch.layout == "tokens" else np.moveaxis(x, 1, -1)
    return rows.reshape(-1, rows.shape[-1])


def draft(place: Place, encoder: Encoder, input_shape: tuple[int, ...], output_shape: tuple[int, ...]) -> Ensemble:
    """An ensemble without tests, which encodes its input."""
    outputs = place.patch.outputs(output_shape) if place.patch else math.prod(output_shape)
    return Ensemble(
        name=place.name,
        input=place.input,
        output=place.output,
        input_shape=tuple(input_shape),
        output_shape=tuple(output_shape),
        kind="vector",
        encoder=encoder,
        patch=place.patch,
        trees=(ObliviousTree(inputs=(), bits=(), leaves=(0,) * outputs),),
        scaled=Scaled(bias=(0,) * outputs, scale=(1.0,) * outputs),
    )


def decoded(ensemble: Ensemble, words: Array, rows: Array, levels: int) -> Ensemble:
    """Return the ensemble with thresholds, or scales, by which its sums become outputs.

    Args:
        ensemble: with any decoding of its sums.
        words: rows x features.
        rows: rows x outputs: the outputs of these rows.
        levels: 2, 3, or 0.
    """
    sums = accumulate(ensemble, words)
    if not levels:
        return msgspec.structs.replace(ensemble, levels=None, scaled=fit_scale(sums, rows))
    return msgspec.structs.replace(ensemble, levels=fit_levels(sums, rows, 3 if levels == 3 else 2), scaled=None)


def _grown(boosted: Boosted, candidates: Candidates, settings: Boosting) -> tuple[ObliviousTree, ...]:
    """Trees with whole numbers in their leaves."""
    votes = settings.method == "ada"
    tables = [table.astype(np.int8) for table in boosted.leaves] if votes else as_int8(boosted.leaves)
    return tuple(
        ObliviousTree(
            inputs=tuple(candidates.feature[tests].tolist()),
            bits=tuple(candidates.bit[tests].tolist()),
            leaves=tuple(table.ravel().tolist()),
        )
        for tests, table in zip(boosted.tests, tables, strict=True)
    )
