"""Where to cut a model that is longer than the residual.

A residual ends while some segment would not fit any more; what is left of it is
lost. With durations that vary, the place in the model at which this happens is as
good as random: it falls into segment i, of median d_i, with probability d_i / R a
frame. What is left is less than the quantile q_i that it would need, half of that on
average. A frame thus loses about sum(d_i q_i) / (2 R), and pays for each boundary. Both
are sums over segments, so a dynamic programme over the candidate cuts finds the best set.

From timed layers to what cutting between them costs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model

__all__ = ["Pieces"]


MOST_OVERHEAD_RATIO = 0.02  # that boundaries may add to a model
_BOUNDARY_WEIGHTS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 1e6)


@dataclass(frozen=True)
class Pieces:
    """A model in its finest pieces, as measured one by one.

    Attributes:
        median_ns: int64, one a piece.
        quantile_ns: int64, the planned quantile of each.
        boundary_ns: what cutting between piece i and i + 1 costs, int64, one fewer.
            Each piece's time includes half of the boundaries beside it.
    """

    median_ns: npt.NDArray[np.int64]
    quantile_ns: npt.NDArray[np.int64]
    boundary_ns: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if not len(self.median_ns) == len(self.quantile_ns) == len(self.boundary_ns) + 1:
            raise ValueError("a model of n pieces has n - 1 boundaries")

    def __len__(self) -> int:
        return len(self.median_ns)

    def part(self, first: int, last: int) -> Pieces:
        """Pieces ``first`` to ``last``."""
        pieces, inner = slice(first, last + 1), slice(first, last)
        return Pieces(self.median_ns[pieces], self.quantile_ns[pieces], self.boundary_ns[inner])

    def scaled(self, factor: float | npt.NDArray[np.float64]) -> Pieces:
        """The same boundaries; what each piece takes beside its parts of them is multiplied."""
        halves = beside(self.boundary_ns)
        median = np.maximum(self.median_ns - halves, 0) * factor + halves
        return Pieces(
            median_ns=median.astype(np.int64),
            quantile_ns=np.ceil(median * (self.quantile_ns / np.maximum(self.median_ns, 1))).astype(np.int64),
            boundary_ns=self.boundary_ns,
        )

    def joined(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Median and quantile of every run of pieces i .. j, as two n x n matrices.

        Boundaries inside a run are not paid, nor their share of the excess. Excesses of the
        quantile over the median add up: what makes one piece of a launch slow mostly makes
        all of them slow.
        """
        sums = self._sums
        median, excess = (
            total[None, 1:] - total[:-1, None] - (inner[None, :] - inner[:, None]) for total, inner in sums
        )
        return np.maximum(median, 0), np.maximum(median, 0) + np.maximum(excess, 0)

    def of(self, runs: Sequence[tuple[int, int]]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """The same for some runs only: median and quantile of each."""
        first, last = np.asarray(runs, np.int64).reshape(-1, 2).T
        median, excess = (
            np.maximum(total[last + 1] - total[first] - (inner[last] - inner[first]), 0) for total, inner in self._sums
        )
        return median, median + excess

    @functools.cached_property
    def _sums(self) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        """Of medians and of excesses: all pieces' and all boundaries', cumulated."""
        excess = self.quantile_ns - self.median_ns
        ratio = excess / np.maximum(self.median_ns, 1)
        inner = self.boundary_ns * (ratio[:-1] + ratio[1:]) / 2  # a piece's time includes half of each boundary
        return [
            (np.concatenate([[0.0], np.cumsum(pieces, dtype=np.float64)]),
             np.concatenate([[0.0], np.cumsum(boundaries, dtype=np.float64)]))
            for pieces, boundaries in ((self.median_ns, self.boundary_ns), (excess, inner))
        ]  # fmt: skip


def beside(boundary_ns: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """What each piece's time includes of the boundaries beside it: half of each."""
    return np.convolve(boundary_ns, [0.5, 0.5]) if len(boundary_ns) else np.zeros(1)


def partition(
    pieces: Pieces, residual_ns: int, limit_ns: int, mode: Literal["fill", "fewest", "equal"] = "fill"
) -> list[tuple[int, int]] | None:
    """Which runs of pieces become segments.

    Args:
        pieces: of one model.
        residual_ns: time that a window leaves.
        limit_ns: greatest quantile of a segment, at most the residual minus the guard.
        mode: "fill" loses least (see the module's text) while its boundaries add at most
            2 % to the model, where that can be; "fewest" makes as few segments
            as possible, at the cheapest boundaries; "equal" makes that many of the most
            equal duration.

    Returns:
        First and last piece of each segment, in order; ``None`` where a single piece
        is longer than the limit.
    """
    count = len(pieces)
    if pieces.quantile_ns.max() > limit_ns:
        return None
    median, quantile = pieces.joined()
    fits = quantile <= limit_ns
    fits[np.tril_indices(count, -1)] = False
    boundary = np.concatenate([[0.0], pieces.boundary_ns])
    if mode == "fill":
        idle = np.where(fits, median * quantile / (2 * max(residual_ns, 1)), np.inf)
        return _within(idle, boundary, MOST_OVERHEAD_RATIO * median[0, -1])
    # One segment more must never pay: its weight exceeds all boundaries together.
    fewest = _cheapest(np.where(fits, 0.0, np.inf), boundary + boundary.sum() + 1)
    if mode == "fewest" or fewest is None:
        return fewest
    return _most_equal(np.where(fits, median, np.inf), len(fewest))


def _within(
    inside: npt.NDArray[np.float64], boundary: npt.NDArray[np.float64], most: float
) -> list[tuple[int, int]] | None:
    """The partition of least cost whose boundaries cost at most so much; where there is none, of least cost."""
    best = None
    for weight in _BOUNDARY_WEIGHTS:
        runs = _cheapest(inside, boundary * weight)
        best = best or runs
        if runs is None or sum(boundary[first] for first, _ in runs) <= most:
            return runs
    return best


def _cheapest(inside: npt.NDArray[np.float64], boundary: npt.NDArray[np.float64]) -> list[tuple[int, int]] | None:
    """The partition of least total cost: ``inside[i, j]`` a segment, ``boundary[i]`` a cut before piece i."""
    count = len(inside)
    best = np.full(count + 1, np.inf)
    best[0] = 0
    came_from = np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        cost = best[:end] + inside[:end, end - 1] + boundary[:end]
        came_from[end] = int(np.argmin(cost))
        best[end] = cost[came_from[end]]
    if not np.isfinite(best[count]):
        return None
    segments = []
    end = count
    while end:
        segments.append((int(came_from[end]), end - 1))
        end = int(came_from[end])
    return segments[::-1]


def _most_equal(median: npt.NDArray[np.float64], segments: int) -> list[tuple[int, int]]:
    """Exactly that many segments with the least sum of squares, so of the most equal duration."""
    count = len(median)
    best = np.full((segments + 1, count + 1), np.inf)
    best[0, 0] = 0
    came_from = np.zeros((segments + 1, count + 1), np.int64)
    squares = median**2
    for number in range(1, segments + 1):
        cost = best[number - 1, :-1, None] + squares  # first piece x last piece
        came_from[number, 1:] = cost.argmin(axis=0)
        best[number, 1:] = cost.min(axis=0)
    runs = []
    end = count
    for number in range(segments, 0, -1):
        begin = int(came_from[number, end])
        runs.append((begin, end - 1))
        end = begin
    return runs[::-1]


_MACS_PER_BYTE = 4  # one byte moved weighs as much as these: a core of 50 GMAC/s and 12 GB/s
_OWN_QUANTILE = 0.9
_EVEN_SHARE = 0.3


def candidate_pieces(model: Model, most: int) -> list[tuple[int, int]]:
    """Runs of layers between which the planner may cut: at most about ``most``, of like cost.

    Every legal cut is a candidate in a model of fewer layers; in a longer one the
    cheapest boundary (fewest crossing bytes) near each multiple of the mean is taken.
    """
    count = len(model.layers)
    legal = {cut.position: cut.bytes for cut in model.legal_cuts}
    if len(legal) + 1 <= most:
        chosen = sorted(legal)
    else:
        weight = np.cumsum(
            [
                layer.macs
                + _MACS_PER_BYTE * (layer.parameter_bytes + sum(t.bytes for t in (*layer.inputs, *layer.outputs)))
                for layer in model.layers
            ]
        )
        bins: dict[int, int] = {}
        for position in sorted(legal):
            share = int(weight[position - 1] * most / max(weight[-1], 1))
            if share not in bins or legal[position] < legal[bins[share]]:
                bins[share] = position
        chosen = sorted(bins.values())
    edges = [0, *chosen, count]
    return [(first, last - 1) for first, last in itertools.pairwise(edges)]


def pooled_excess(samples_ns: Sequence[npt.NDArray[np.int64]], quantile: float) -> float:
    """Quantile over median, from the samples of several launches together.

    A p99 needs hundreds of samples; those of all segments, each relative to its own
    median, are that many.

    Args:
        samples_ns: durations, one array a launch.
        quantile: 0 to 1.
    """
    relative = np.concatenate([samples / max(np.median(samples), 1) for samples in samples_ns])
    return float(max(np.quantile(relative, quantile), 1.0))


def planned_quantile_ns(samples_ns: npt.NDArray[np.int64], excess: float) -> int:
    """A launch's planned quantile: the pooled excess on its median, at least its own p90."""
    quantile = max(np.median(samples_ns) * excess, np.quantile(samples_ns, _OWN_QUANTILE))
    return math.ceil(round(float(quantile), 6))  # no nanosecond for 100 x 1.1 = 110.00000000000001


def priced_pieces(single_ns: Sequence[float], pair_ns: Sequence[float], whole_ns: float, excess: float) -> Pieces:
    """Costs of pieces and of the boundaries between them.

    All boundaries together cost what the pieces take more than the whole model: crossing
    bytes, reordered layouts and lost fusions, whatever their cause. A boundary's share of
    that is mostly what its two pieces take more apart than together; a part of it is
    spread evenly, for a boundary whose price was lost in the noise is not free.

    Args:
        single_ns: median of each piece run on its own.
        pair_ns: median of each two adjacent pieces run as one.
        whole_ns: median of the whole model, measured in turn with them.
        excess: quantile over median.
    """
    single = np.asarray(single_ns, np.float64)
    count = len(single) - 1
    apart = np.maximum(single[:-1] + single[1:] - np.asarray(pair_ns, np.float64), 0)
    even = np.full(count, 1 / max(count, 1))
    share = (1 - _EVEN_SHARE) * apart / apart.sum() + _EVEN_SHARE * even if apart.sum() > 0 else even
    boundary = max(single.sum() - whole_ns, 0.0) * share
    half = np.zeros(count + 1)
    half[:-1] += boundary / 2
    half[1:] += boundary / 2
    inside = np.maximum(single - half, 0)
    median = inside * (whole_ns / max(inside.sum(), 1.0)) + half
    return Pieces(
        median_ns=median.astype(np.int64),
        quantile_ns=np.ceil(median * excess).astype(np.int64),
        boundary_ns=boundary.astype(np.int64),
    )


def paired(runs: Sequence[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """Runs of layers joined two by two from number ``start`` on; what is left over stays single."""
    joined = list(runs[:start])
    joined += [(runs[left][0], runs[left + 1][1]) for left in range(start, len(runs) - 1, 2)]
    if (len(runs) - start) % 2:
        joined.append(runs[-1])
    return joined
