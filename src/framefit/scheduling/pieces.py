"""From timed layers to what cutting between them costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.scheduling.partition import Pieces

__all__ = ["candidate_pieces", "paired", "planned_quantile_ns", "pooled_excess", "priced_pieces"]

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
