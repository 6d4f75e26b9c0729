"""Optimal brain surgery of a layer: weights are removed one by one, and the remaining ones compensate for each.

A layer puts out W x for inputs x. With H = sum of x x^T over calibration data, changing a row of W by d adds
d H d^T to the squared error of its output. Removing weight p costs w_p^2 / [H^-1]_pp when the others are changed
by -w_p / [H^-1]_pp times column p of H^-1 (Hassibi and Stork, 1992, "Second Order Derivatives for Network
Pruning: Optimal Brain Surgeon"; by rows: Frantar and Alistarh, 2022, "Optimal Brain Compression", section 4).
Wide layers go block by block with one order for all rows (Frantar and Alistarh, 2023, "SparseGPT", section 3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.sparsity.problem import Floats, Ints

DAMPING = 0.01
"""Added to the Hessian's diagonal, as a part of its mean (SparseGPT, appendix A)."""
WIDE = 1024
"""Sums over more inputs are pruned block by block: the time of the exact method grows with their cube."""
_BLOCK = 128  # columns (SparseGPT, section 3.3)


@dataclass(frozen=True)
class Reconstruction:
    """A layer at several levels.

    Attributes:
        levels: S, part of the weights that is zero, including earlier zeros.
        weights: float32, S x rows x K; at a level that removes nothing they are the layer's own.
        errors: S, squared error of the output, rows weighted by their importance.
        masked: S, the same with these zeros but without the compensation.
    """

    levels: Floats
    weights: npt.NDArray[np.float32]
    errors: Floats
    masked: Floats


def damped(hessian: Floats) -> Floats:
    """The Hessian with :data:`DAMPING`, so that it can be inverted whatever the inputs were; G x K x K."""
    diagonal = np.diagonal(hessian, axis1=1, axis2=2).mean(axis=1)
    add = DAMPING * np.where(diagonal > 0, diagonal, 1.0)
    matrix: Floats = hessian + add[:, None, None] * np.eye(hessian.shape[1])
    return matrix


def output_error(change: npt.ArrayLike, hessian: Floats, importance: Floats) -> float:
    """Squared error of a layer's output when its weights change.

    Args:
        change: G x n x K.
        hessian: G x K x K.
        importance: G x n, of each row.
    """
    delta = np.asarray(change, np.float64)
    return float((np.einsum("gnk,gnk->gn", delta @ hessian, delta) * importance).sum())


def reconstruct(
    weights: npt.ArrayLike,
    hessian: Floats,
    levels: npt.ArrayLike,
    importance: npt.ArrayLike | None = None,
    *,
    blocks: Ints | None = None,
    keep: int = 0,
    together: int = 1,
    shared: Ints | None = None,
) -> Reconstruction:
    """Remove more and more weights of a layer, and refit the others.

    The order of each row's removals is computed once; how many each row loses at a level is decided by the
    least next increase of the error. Rows and inputs that share their zeros lose their weights at once.

    Args:
        weights: G x n x K: groups, rows of each, inputs of each sum.
        hessian: G x K x K, of the inputs.
        levels: S, ascending, part of the weights that shall be zero.
        importance: G x n, weight of each row's error; default: 1.
        blocks: K, int64: number of the block of neighbours of each input, for N:M; default: any weight may be removed.
        keep: with ``blocks``, how many weights of each row's block stay: N. Higher levels are limited by it.
        together: number of adjacent rows of a group that share their zeros; the last ones may be fewer.
        shared: K, int64: inputs of the same number share their zeros, too; not with ``blocks``. Default: none do.

    Returns:
        S levels; a level of 0 keeps the weights exactly.
    """
    dense = np.ascontiguousarray(weights, np.float64)
    groups, rows, width = dense.shape
    important = np.ones((groups, rows)) if importance is None else np.asarray(importance, np.float64)
    inverse: Floats = np.linalg.inv(damped(hessian)).astype(np.float64)
    columns, size = (np.arange(width), 1) if shared is None else _side_by_side(shared)
    placed, inverse = (dense, inverse) if shared is None else _placed(dense, inverse, columns)
    choices = len(columns) // size  # inputs, or numbers of ``shared``
    at = np.zeros(choices, np.int64) if blocks is None else blocks
    quota = np.maximum(np.bincount(at) - keep, 0)
    most = int(quota.sum())
    units = groups * -(-rows // together)  # of rows that share their zeros
    removals = np.minimum(np.rint(np.asarray(levels, np.float64) * units * choices), most * units)
    if width > WIDE:
        ratios = removals / (units * choices)
        rows_at_levels = _by_blocks(placed, inverse, ratios, important, at, quota, together, size)
    else:
        parts = _Parts(placed, inverse, important, together, size)
        losses = parts.traced(at, quota, most)
        rows_at_levels = parts.snapshots(at, quota, _shares(losses, removals.astype(np.int64)))
    shaped = rows_at_levels.reshape(len(removals), groups, rows, len(columns))
    if shared is not None:
        shaped = shaped[..., np.argsort(columns)[-width:]]  # without the missing ones
    none_removed = np.flatnonzero(removals == 0)
    shaped[none_removed] = dense
    masked = np.where(shaped == 0, dense, 0.0)
    return Reconstruction(
        levels=(shaped == 0).mean(axis=(1, 2, 3)),
        weights=shaped.reshape(len(removals), groups * rows, width).astype(np.float32),
        errors=np.asarray([output_error(dense - matrix, hessian, important) for matrix in shaped]),
        masked=np.asarray([output_error(matrix, hessian, important) for matrix in masked]),
    )


def _side_by_side(shared: Ints) -> tuple[Ints, int]:
    """Columns in an order in which those of the same number are adjacent, equally many of each, and how many.

    Where a number has fewer, -1 stands for the missing ones.
    """
    counts = np.bincount(shared)
    counts = counts[counts > 0]
    size = int(counts.max())
    ends = np.cumsum(counts)
    order = np.argsort(shared, kind="stable")
    columns = np.full((len(counts), size), -1, np.int64)
    for number, (end, count) in enumerate(zip(ends, counts, strict=True)):
        columns[number, :count] = order[end - count : end]
    return columns.ravel(), size


def _placed(dense: Floats, inverse: Floats, columns: Ints) -> tuple[Floats, Floats]:
    """Weights and inverse in an order of columns; a missing one has no weights and nothing to do with the others."""
    there = columns >= 0
    weights: Floats = np.where(there, dense[:, :, columns], 0.0)
    matrix: Floats = np.where(there & there[:, None], inverse[:, columns[:, None], columns], np.eye(len(columns)))
    return np.ascontiguousarray(weights), np.ascontiguousarray(matrix)


@dataclass(frozen=True)
class Reader:
    """A layer that reads channels of which some are to be removed.

    Attributes:
        weights: n x K, K = channels x area.
        hessian: K x K.
        area: number of adjacent inputs that make a channel.
        importance: n, weight of each row's error.
        first: where the weights of the first channel begin.
    """

    weights: Floats
    hessian: Floats
    area: int
    importance: Floats
    first: int = 0


@dataclass(frozen=True)
class ChannelTrace:
    """Channels in the order of removal, with the readers' weights at each level.

    Attributes:
        order: of removal.
        weights: of each reader, float32, S x n x K.
        errors: S, squared errors of all readers' outputs, rows weighted by their importance.
        masked: S, the same with these channels removed but without the compensation.
    """

    order: Ints
    weights: list[npt.NDArray[np.float32]]
    errors: Floats
    masked: Floats


def reconstruct_channels(readers: Sequence[Reader], channels: int, counts: Sequence[int]) -> ChannelTrace:
    """Remove the same input channels from several layers, and refit each layer after each removal.

    The next channel is the one whose removal adds least to the errors of all readers together.
    """
    states = [_Refit(reader) for reader in readers]
    left, order = list(range(channels)), list[int]()
    snapshots: list[list[npt.NDArray[np.float32]]] = [[] for _ in readers]
    errors, masked = [], []
    for count in counts:
        while len(order) < count:
            best = int(np.sum([state.scores(left) for state in states], axis=0).argmin())
            for state in states:
                state.remove(left[best])
            order.append(left.pop(best))
        for state, kept in zip(states, snapshots, strict=True):
            kept.append((state.current if count else state.reader.weights).astype(np.float32))
        errors.append(sum(state.error() for state in states) if count else 0.0)
        masked.append(sum(state.error_of(order) for state in states))
    weights = [np.stack(kept) for kept in snapshots]
    return ChannelTrace(np.asarray(order, np.int64), weights, np.asarray(errors), np.asarray(masked))


class _Refit:
    """The state of one reader while channels are removed."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.current: Floats = reader.weights.astype(np.float64)
        self._inverse = np.linalg.inv(damped(reader.hessian[None]))[0]

    def _places(self, channels: Sequence[int]) -> Ints:
        begins = self.reader.first + np.asarray(channels, np.int64)[:, None] * self.reader.area
        return begins + np.arange(self.reader.area)

    def scores(self, channels: Sequence[int]) -> Floats:
        """Increase of the error by each channel's removal."""
        places = self._places(channels)
        parts = self.current[:, places].transpose(1, 2, 0)  # channels x area x rows
        solved = np.linalg.solve(self._inverse[places[:, :, None], places[:, None, :]], parts)
        scores: Floats = np.einsum("car,car,r->c", parts, solved, self.reader.importance)
        return scores

    def remove(self, channel: int) -> None:
        """Remove a channel; the other weights compensate for it."""
        gone = self._places([channel])[0]
        solved = np.linalg.solve(self._inverse[np.ix_(gone, gone)], self._inverse[gone])
        self.current -= self.current[:, gone] @ solved
        self._inverse -= self._inverse[:, gone] @ solved
        self.current[:, gone] = 0
        self._inverse[gone] = self._inverse[:, gone] = 0

    def error(self) -> float:
        """Error of the present output."""
        return self._error(self.reader.weights - self.current)

    def error_of(self, channels: Sequence[int]) -> float:
        """Error of the output without these channels when nothing is refitted."""
        change = np.zeros_like(self.current)
        gone = self._places(channels).ravel()
        change[:, gone] = self.reader.weights[:, gone]
        return self._error(change)

    def _error(self, change: Floats) -> float:
        return output_error(change[None], self.reader.hessian[None], self.reader.importance[None])


def _shares(losses: Floats, wanted: Ints) -> Ints:
    """Number of weights that each row loses at each level: rows x S.

    The next weight is always taken from the row whose next removal adds least; after a large increase its smaller
    ones follow at once, so the greatest increase so far is what counts.
    """
    rows, steps = losses.shape
    order = np.argsort(np.maximum.accumulate(losses, axis=1), axis=None, kind="stable")
    owner = order // steps
    return np.stack([np.bincount(owner[:count], minlength=rows) for count in wanted], axis=1).astype(np.int64)


class _Parts:
    """Rows of a layer in parts that share their zeros; so do ``size`` adjacent columns."""

    def __init__(self, dense: Floats, inverse: Floats, importance: Floats, together: int, size: int) -> None:
        groups, rows, _ = dense.shape
        self._dense, self._inverse, self._importance, self._size = dense, inverse, importance, size
        self._parts = [
            (group, slice(first, min(first + together, rows)))
            for group in range(groups)
            for first in range(0, rows, together)
        ]

    def traced(self, blocks: Ints, quota: Ints, most: int) -> Floats:
        """Increase of the error by each removal of each part: parts x steps."""
        losses = np.zeros((len(self._parts), most))
        never = np.zeros(0, np.int64)

        def trace(number: int) -> None:
            weights, importance, inverse = self._part(number)
            nothing = np.zeros((0, *weights.shape))
            _trace_rows(weights, importance, inverse, self._size, blocks, quota, losses[number], never, nothing)

        _each(trace, len(self._parts))
        return losses

    def snapshots(self, blocks: Ints, quota: Ints, counts: Ints) -> Floats:
        """Each row after the given numbers of its part's removals: S x groups x rows x K."""
        snapshots = np.zeros((counts.shape[1], *self._dense.shape))

        def trace(number: int) -> None:
            weights, importance, inverse = self._part(number)
            losses, taken = np.zeros(int(counts[number].max())), np.zeros((counts.shape[1], *weights.shape))
            _trace_rows(weights, importance, inverse, self._size, blocks, quota, losses, counts[number], taken)
            group, rows = self._parts[number]
            snapshots[:, group, rows] = taken.transpose(0, 2, 1)

        _each(trace, len(self._parts))
        return snapshots

    def _part(self, number: int) -> tuple[Floats, Floats, Floats]:
        group, rows = self._parts[number]
        weights = np.ascontiguousarray(self._dense[group, rows].T)
        return weights, np.ascontiguousarray(self._importance[group, rows]), self._inverse[group]


def _each(work: Callable[[int], None], rows: int) -> None:
    """Run in as many threads as there are cores: the compiled loops release the interpreter's lock."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(work, range(rows)))


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
def _trace_rows(
    weights: Any,
    importance: Any,
    inverse: Any,
    size: Any,
    blocks: Any,
    quota: Any,
    losses: Any,
    counts: Any,
    snapshots: Any,
) -> None:
    """Remove inputs from rows that share their zeros, K x rows, ``size`` adjacent ones at once.

    As many times as ``losses`` has elements. ``snapshots`` receives the rows after each of ``counts`` removals.
    """
    width, rows = weights.shape
    row = weights.copy()
    left = inverse.copy()  # rows and columns of the weights that remain, in the order of ``place``
    place = np.arange(width)
    spare = quota.copy()
    column, factor = np.empty(width), np.empty(rows)
    pivots, part = np.empty((size, size)), np.empty((size, rows))
    done = 0
    while done < len(counts) and counts[done] == 0:
        snapshots[done] = weights
        done += 1
    for step in range(len(losses)):
        count = width // size - step
        best, least = -1, np.inf
        for i in range(count):
            squares = 0.0
            for r in range(rows):
                squares += importance[r] * row[i * size, r] * row[i * size, r]
            score = squares / left[i * size, i * size]
            for a in range(size if size > 1 else 0):
                for b in range(size):
                    pivots[a, b] = left[i * size + a, i * size + b]
                for r in range(rows):
                    part[a, r] = row[i * size + a, r]
            for a in range(size - 1):  # the others, as they are when those before them are removed
                for b in range(a + 1, size):
                    scale = pivots[b, a] / pivots[a, a]
                    for r in range(rows):
                        part[b, r] -= scale * part[a, r]
                    for c in range(a + 1, size):
                        pivots[b, c] -= scale * pivots[a, c]
                squares = 0.0
                for r in range(rows):
                    squares += importance[r] * part[a + 1, r] * part[a + 1, r]
                score += squares / pivots[a + 1, a + 1]
            if score < least and spare[blocks[place[i * size] // size]] > 0:
                best, least = i, score
        losses[step] = least
        spare[blocks[place[best * size] // size]] -= 1
        end = count * size
        for a in range(size):  # what is removed comes last
            one, two = best * size + a, (count - 1) * size + a
            for i in range(end):
                left[i, one], left[i, two] = left[i, two], left[i, one]
            for i in range(end):
                left[one, i], left[two, i] = left[two, i], left[one, i]
            for r in range(rows):
                row[one, r], row[two, r] = row[two, r], row[one, r]
            place[one], place[two] = place[two], place[one]
        for a in range(size):
            last = end - 1 - a
            pivot = left[last, last]
            for r in range(rows):
                factor[r] = row[last, r] / pivot
            for i in range(last):
                column[i] = left[last, i]
                for r in range(rows):
                    row[i, r] -= factor[r] * column[i]
            for i in range(last):
                scale = column[i] / pivot
                for j in range(last):
                    left[i, j] -= scale * column[j]
        while done < len(counts) and counts[done] == step + 1:
            snapshots[done] = 0
            for i in range(end - size):
                for r in range(rows):
                    snapshots[done, place[i], r] = row[i, r]
            done += 1


def _by_blocks(
    dense: Floats,
    inverse: Floats,
    levels: Floats,
    importance: Floats,
    blocks: Ints,
    quota: Ints,
    together: int,
    size: int,
) -> Floats:
    """Prune column by column, one block after the other, ``size`` adjacent columns alike: S x G x n x K."""
    pruned = np.zeros((len(levels), *dense.shape))
    width = dense.shape[2]
    # Neighbours need not lie in one block of columns.
    step = -(-_BLOCK // size) * size if len(quota) == 1 else width
    for group, matrix in enumerate(inverse):
        upper = np.linalg.cholesky(matrix).T  # the inverse is upper^T upper
        for index, level in enumerate(levels):
            current = dense[group].copy()
            for start in range(0, width, step):
                end = min(start + step, width)
                diagonal = upper[np.arange(start, end), np.arange(start, end)]
                scores = np.square(current[:, start:end] / diagonal) * importance[group][:, None]
                shared = np.add.reduceat(scores, np.arange(0, len(scores), together), axis=0)
                shared = shared.reshape(len(shared), -1, size).sum(axis=2)
                least = _least(shared, level, blocks[start // size : end // size], quota)
                gone = np.repeat(np.repeat(least, together, axis=0)[: len(scores)], size, axis=1)
                errors = np.zeros((len(current), end - start))
                for column in range(start, end):
                    inside = column - start
                    errors[:, inside] = np.where(gone[:, inside], current[:, column], 0) / upper[column, column]
                    current[:, column:end] -= np.outer(errors[:, inside], upper[column, column:end])
                current[:, start:end][gone] = 0
                current[:, end:] -= errors @ upper[start:end, end:]
            pruned[index, group] = current
    return pruned


def _least(scores: Floats, level: float, blocks: Ints, quota: Ints) -> npt.NDArray[np.bool_]:
    """Which weights of a block of columns are removed."""
    gone = np.zeros(scores.shape, bool)
    if len(quota) == 1:
        order = np.argsort(scores, axis=None, kind="stable")
        gone.ravel()[order[: round(level * scores.size)]] = True
    elif level > 0:
        for block, count in enumerate(quota):
            columns = np.flatnonzero(blocks == block)
            worst = np.argsort(scores[:, columns], axis=1, kind="stable")[:, :count]
            np.put_along_axis(gone, columns[worst], values=True, axis=1)
    return gone
