"""Bounds on the throughput of background models: how much more of what a run did its residuals could have held.

Of several models one may always be served more at another's cost, so that only their sum is bounded: the work that
was done on a unit is at most the residual of that unit, and no model has more results than frames. A bound is
stated per model for the proportions in which the run served them: **all models are served more, in these proportions,
until a residual is used up**; a model whose frames are all served stays where it is, and so does one that uses a unit
without any residual left; the others go on. What a run did is one of the points on the way, so that it never exceeds
its bounds:

- The *fluid* bound takes residuals for fluids (:func:`fluid_bounds`). Served frames x and the work w of one on a unit
  satisfy sum(x w) <= residual wherever w is no more than was spent on a frame, and the residual no less than
  what priority models left. Then the filling, which begins at 0 and passes x when its level is 1, ends beyond it.
- The *packing* bound is of the run's own launches (:func:`packing_bounds`): in their order, for as long as they
  took, each as early as it fits, without a guard, and then the same launches over again. For a given order no way to
  place them has more of them done by any time (each is done no later than in any other way, by induction), the run's
  own way included, which had a guard, and waited for frames.

Both are bounds of that run, of its durations and its proportions, not of every policy.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Launched", "fluid_bounds", "packing_bounds"]

_ROUNDING = 1e-9  # of a sum of durations
_LAST = 1e-15  # proportion of a model that was not served: it gets something when the others stay where they are


@dataclass(frozen=True)
class Launched:
    """Background launches of one unit, and where there was room for them.

    Attributes:
        gaps_ns: stretches between what priority models took, in order.
        models: number of each launch's model, in the order in which they were launched.
        taken_ns: of each launch.
    """

    gaps_ns: Sequence[int]
    models: npt.NDArray[np.int64]
    taken_ns: npt.NDArray[np.int64]


def fluid_bounds(
    residual_ns: npt.ArrayLike,
    work_ns: npt.ArrayLike,
    served: npt.ArrayLike,
    arrived: npt.ArrayLike,
) -> npt.NDArray[np.float64]:
    """Frames of each model, had the residuals been fluids; in the proportions in which they were served.

    Models that were not served at all share what the others leave.

    Args:
        residual_ns: of each unit, over the whole run.
        work_ns: that one frame takes; models x units.
        served: frames of each model.
        arrived: the same, had all been served.
    """
    frames = np.asarray(served, np.float64)
    weights = np.where(frames > 0, frames, _LAST)
    rates = fair_rates(
        np.asarray(residual_ns, np.float64), np.asarray(work_ns, np.float64), np.asarray(arrived, np.float64), weights
    )
    same = np.isclose(rates, frames, rtol=_ROUNDING, atol=0)
    rates[same] = np.maximum(rates, frames)[same]
    return rates


def packing_bounds(units: Sequence[Launched], served: npt.ArrayLike, most: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Frames of each model, had the run's launches been packed as early as they fit.

    Args:
        units: what was launched on each.
        served: frames of each model.
        most: of each model, however packed: its fluid bound, which is also that of models that were not served.
    """
    frames, limits = np.asarray(served, np.float64), np.asarray(most, np.float64)
    wanted = np.divide(limits, frames, out=np.ones_like(frames), where=frames > 0)
    times = np.full(len(frames), np.inf)
    for unit in units:
        used = np.unique(unit.models)
        times[used] = np.minimum(times[used], packed_times(unit, wanted)[used])
    packed = np.where(np.isfinite(times), np.maximum(times, 1.0), wanted) * frames
    packed[frames == 0] = np.inf
    return np.minimum(packed, limits)


def packed_times(unit: Launched, wanted: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How many times what it did each model does when its launches are packed; at most as often as ``wanted``."""
    times = np.zeros(len(wanted))
    part = np.ones(len(wanted))  # of the next round
    gaps = iter(unit.gaps_ns)
    left = next(gaps, 0)
    models, taken = unit.models, unit.taken_ns
    number = np.zeros(len(models), np.int64)  # of each launch among its model's
    for model in np.unique(models):
        own = models == model
        number[own] = np.arange(own.sum())
    while True:
        # Of each model as many launches as it still wants, evenly spread over the run.
        share = part[models]
        chosen = np.floor((number + 1) * share + _ROUNDING) > np.floor(number * share + _ROUNDING)
        ends: list[int] = np.cumsum(taken[chosen], dtype=np.int64).tolist()
        if not ends or not ends[-1]:
            return times
        done = spent = 0
        while done < len(ends):
            more = bisect.bisect_right(ends, spent + left, done)
            if more > done:
                left -= ends[more - 1] - spent
                spent, done = ends[more - 1], more
            if done < len(ends):
                gap = next(gaps, None)
                if gap is None:
                    return times + part * (spent / ends[-1])
                left = gap
        times += part
        part = np.clip(wanted - times, 0, 1)
        wants = part[models] > 0
        models, taken, number = models[wants], taken[wants], number[wants]


def fair_rates(
    capacity_ns: float | npt.NDArray[np.float64],
    work_ns: npt.NDArray[np.float64],
    limits: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Launches a window of models that share several units: max-min fair.

    All rates grow in the proportion of their weights; whoever has what it wants, or uses a unit
    that is full, stays where it is (progressive filling: Bertsekas and Gallager, 1992, "Data
    Networks", section 6.5.2).

    Args:
        capacity_ns: of a window, by unit.
        work_ns: what one launch takes; models x units.
        limits: launches a window that are wanted.
        weights: of the models, above 0.
    """
    rates, growing = np.zeros(len(limits)), limits > 0
    left = np.maximum(np.broadcast_to(capacity_ns, work_ns.shape[1:]), 0.0).astype(np.float64)
    while growing.any():
        speed = (work_ns * weights[:, None])[growing].sum(axis=0)
        units = np.divide(left, speed, out=np.full_like(left, np.inf), where=speed > 0)
        models = np.where(growing, (limits - rates) / weights, np.inf)
        step = float(min(units.min(initial=np.inf), models.min()))
        rates[growing] += step * weights[growing]
        left = np.maximum(left - step * speed, 0.0)
        at_most = step * (1 + 1e-9)  # whatever was nearest stays: each step ends for somebody
        growing &= (models > at_most) & ~(work_ns[:, units <= at_most] > 0).any(axis=1)
    return np.minimum(rates, limits)
