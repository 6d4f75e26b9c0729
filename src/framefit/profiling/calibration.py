"""Calibrates intervals by hiding received packets as others were lost, and counting errors of the inferred times.

The method is split-conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World",
2005, section 4.1), for each class of edges by itself. The loss pattern of this trace, in order of time over all
cores, is shifted and laid over what was received, so that bursts stay bursts. Edges that it hits are inferred as
lost edges are, and the error over its standard deviation is a sample of the class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.profiling.edge_inference import Precedence, Times, Window, infer_edges
from framefit.stats import Z90, two_sided_z

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
RUNS = np.array([1, 2, 4, 8, 16, 32])
"""Edges lost in a row on a core: the upper ends of the classes."""
_SAMPLES = 20_000  # hidden edges to have: at 90 % a quantile of 400 samples is off by 1.5 % one time in three
_MOST_TURNS = 24
_FINE = 400  # samples that a class of its own needs by kind,
_COARSE = 100  # by run and type,
_LEAST = 40  # of all: below, intervals are not calibrated


@dataclass(frozen=True)
class ErrorQuantiles:
    """Quantiles of errors over their standard deviations, for each class of edges.

    Attributes:
        low, high: float64, runs x types x kinds.
        calibrated: bool, whether there were enough samples.
    """

    low: Floats
    high: Floats
    calibrated: npt.NDArray[np.bool_]


def calibrate_intervals(
    window: Window,
    precedence: Precedence,
    times: Times,
    kind: Ints,
    recorded: npt.NDArray[np.bool_],
    kinds: int,
    confidence: float,
    random: np.random.Generator,
) -> ErrorQuantiles:
    """Measure the errors of inferred times on hidden edges.

    ``window`` has what was received, and times for the rest. ``kind`` (int64) is of each operation of the window,
    ``recorded`` (bool) whether it sends packets, and ``kinds`` the number of kinds. ``confidence`` is the part of the
    edges that an interval is to contain; ``random`` draws the shifts.
    """
    shape = (len(RUNS) + 1, 2, kinds)
    normal = two_sided_z(confidence) if 0 < confidence < 1 else Z90
    low, high = np.full(shape, -normal), np.full(shape, normal)
    sure = np.zeros(shape, np.bool_)
    places = np.flatnonzero(np.repeat(recorded, 2))
    order = places[np.argsort(window.time.ravel()[places], kind="stable")]
    lost = ~window.seen.ravel()[order]
    errors: list[Floats] = []
    classes: list[Ints] = []
    size = 0
    turns = _MOST_TURNS if lost.any() and not lost.all() else 0
    for _ in range(turns):
        hidden = np.zeros(window.seen.size, np.bool_)
        hidden[order] = np.roll(lost, int(random.integers(1, len(lost))))
        hidden &= window.seen.ravel()
        seen = window.seen.ravel() & ~hidden
        masked = window._replace(seen=seen.reshape(-1, 2), time=window.time.copy())
        deviation, _, _, run, known, followed = infer_edges(masked, precedence, times)
        use = np.flatnonzero(hidden & known.ravel() & followed.ravel())
        errors.append((window.time.ravel()[use] - masked.time.ravel()[use]) / deviation.ravel()[use])
        classes.append(np.ravel_multi_index((np.searchsorted(RUNS, run.ravel()[use]), use % 2, kind[use // 2]), shape))
        size += len(use)
        if size >= _SAMPLES:
            break
    if size < _LEAST:
        return ErrorQuantiles(low, high, sure)
    error, class_ = np.concatenate(errors), np.concatenate(classes)
    tail = (1 - confidence) / 2

    def set_quantiles(part: tuple[slice | int, ...], samples: Floats) -> None:
        reach = min((1 - tail) * (len(samples) + 1) / len(samples), 1.0)
        low[part], high[part] = np.quantile(samples, 1 - reach), np.quantile(samples, reach)
        sure[part] = part != (slice(None),)

    set_quantiles((slice(None),), error)  # the best guess for classes of which there is next to nothing
    at_run, at_type, at_kind = np.unravel_index(class_, shape)
    for run_class in range(shape[0]):
        for type_ in range(2):
            coarse = (at_run == run_class) & (at_type == type_)
            if coarse.sum() < _COARSE:
                continue
            set_quantiles((run_class, type_), error[coarse])
            for kind_id in range(kinds):
                fine = coarse & (at_kind == kind_id)
                if fine.sum() >= _FINE:
                    set_quantiles((run_class, type_, kind_id), error[fine])
    return ErrorQuantiles(low, high, sure)
