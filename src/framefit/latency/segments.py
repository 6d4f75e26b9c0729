"""What segments take, from a table: for planning where nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.errors import InputError
from framefit.latency.estimate import Estimator
from framefit.latency.terms import correction_ns, terms_of, transfer_ns

__all__ = ["SegmentTimes", "segment_ns", "segment_times"]


@dataclass(frozen=True)
class SegmentTimes:
    """Runs of layers, each launched on its own.

    Attributes:
        duration_ns: of each, int64.
        boundary_ns: what cutting between run i and i + 1 costs, int64, one fewer: the two apart take so
            much more than as one launch.
    """

    duration_ns: npt.NDArray[np.int64]
    boundary_ns: npt.NDArray[np.int64]


def segment_ns(segment: Model, estimator: Estimator) -> int:
    """A launch of a segment: its layers, the correction of the boundaries inside, overhead and transfers.

    Args:
        segment: a model or a part of one, as :meth:`framefit.core.model.Model.segment` makes it, with the
            device's fused groups as layers. What it hands to other segments stays on the device.
        estimator: of the table and unit.

    Raises:
        InputError: a layer has no entry.
    """
    return estimator.estimate(segment).total_ns


def segment_times(model: Model, runs: Sequence[tuple[int, int]], estimator: Estimator) -> SegmentTimes:
    """Durations of a model's runs of layers, and what the cuts between them cost.

    Args:
        model: with the device's fused groups as layers.
        runs: first and last layer of each, one after the other from the first layer to the last.
        estimator: of the table and unit.

    Raises:
        InputError: the runs do not cover the model, an end is no legal cut, or a layer has no entry.
    """
    expected = 0
    for first, last in runs:
        if first != expected or last < first:
            raise InputError(
                f"runs of layers leave a gap: layer {expected} is not the first of a run", where=model.name
            )
        expected = last + 1
    if expected != len(model.layers):
        raise InputError(f"runs end at layer {expected - 1} of {len(model.layers)}", where=model.name)
    sums = np.concatenate([[0.0], np.cumsum(estimator.layers_ns(model))])

    def duration(first: int, last: int) -> float:
        part = model.segment(first, last)
        plain = sums[last + 1] - sums[first]
        added = correction_ns(plain, terms_of(part), estimator.table.correction)
        return float(max(plain + added + transfer_ns(part, estimator.table.overhead), 0.0))

    alone = [duration(first, last) for first, last in runs]
    joined = [duration(runs[i][0], runs[i + 1][1]) for i in range(len(runs) - 1)]
    boundary = [alone[i] + alone[i + 1] - joined[i] for i in range(len(joined))]
    return SegmentTimes(
        duration_ns=np.round(alone).astype(np.int64),
        boundary_ns=np.maximum(np.round(np.asarray(boundary, np.float64)), 0).astype(np.int64),
    )
