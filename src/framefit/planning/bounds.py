"""Yardsticks of background throughput: the residual as a fluid, and the segments packed without a guard.

Several models share the residual; each bound says what a model gets in the shares in which
the plan serves them. Served in others, one model may exceed its own, but not all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.policy import Rotation

__all__ = ["Work", "fair_rates", "fluid_bounds_hz", "packing_bounds_hz"]


@dataclass(frozen=True)
class Work:
    """What a background model asks for.

    Attributes:
        whole_ns: median duration of the whole model.
        segments_ns: those of its segments, in order; default: one, the whole.
        needed_ns: what each segment needs to be started; default: what it takes.
        varied_ns: the segments' durations for one frame after the other, in turn, where they vary.
        every: windows between its frames.
        frames: that one launch of the model consumes.
        queue: frames that may wait.
        share: launches of this model to those of the others, as planned.
    """

    whole_ns: float
    segments_ns: Sequence[int] = ()
    every: int = 1
    frames: int = 1
    queue: int = 1
    share: float = 1.0
    needed_ns: Sequence[int] = ()
    varied_ns: Sequence[Sequence[int]] = ()


def fluid_rates(residual_ns: float, models: Sequence[Work]) -> list[float]:
    """Launches of each whole model a window, if the residual were one fluid.

    In their shares; whoever has frames for less has that, and the others share what is left.

    Args:
        residual_ns: of a window.
        models: all background models.
    """
    arriving = [1 / (model.every * model.frames) for model in models]
    rates = [0.0] * len(models)
    left = max(residual_ns, 0.0)
    sharing = sorted(range(len(models)), key=lambda n: arriving[n] / max(models[n].share, 1e-12))
    while sharing:
        level = left / sum(models[n].share * models[n].whole_ns for n in sharing)
        first = sharing.pop(0)  # the one that runs out of frames first
        rates[first] = min(level * models[first].share, arriving[first])
        left -= rates[first] * models[first].whole_ns
    return rates


def fluid_bounds_hz(window_ns: float, priority_ns: float, models: Sequence[Work]) -> list[float]:
    """Frames of each model a second if the residual were one fluid: no guard, no boundaries.

    Args:
        window_ns: length of a window.
        priority_ns: median priority time in it.
        models: all background models.
    """
    rates = fluid_rates(window_ns - priority_ns, models)
    return [rate * model.frames * 1e9 / window_ns for rate, model in zip(rates, models, strict=True)]


def packing_bounds_hz(
    window_ns: int, priority_ns: int, models: Sequence[Work], *, guard_ns: int = 0, windows: int = 10_000
) -> list[float]:
    """Frames of each model a second, its segments dispatched greedily at exact durations.

    Models take turns as they do in a run; what finds a queue full is dropped.

    Args:
        window_ns: length of a window.
        priority_ns: median priority time at its beginning.
        models: all background models, in order of service.
        guard_ns: kept free at the end of a window; none for the bound.
        windows: how many to play through.
    """
    segments = [model.segments_ns or (round(model.whole_ns),) for model in models]
    taken = [model.varied_ns or (own,) for model, own in zip(models, segments, strict=True)]
    asked = [model.needed_ns or own for model, own in zip(models, segments, strict=True)]
    rotation = Rotation(len(models))
    waiting, turns, launches = [0] * len(models), [0] * len(models), [0] * len(models)
    needed: list[int | None] = [None] * len(models)
    for window in range(windows):
        for number, model in enumerate(models):
            if window % model.every == 0:
                busy = model.frames if turns[number] else 0  # in flight, still counted as waiting
                waiting[number] = min(waiting[number] + 1, max(model.queue, model.frames) + busy)
            if needed[number] is None and waiting[number] >= model.frames:
                needed[number] = asked[number][0]
        now = priority_ns
        while (chosen := rotation.choose(needed, window_ns - guard_ns - now)) is not None:
            now += taken[chosen][launches[chosen] % len(taken[chosen])][turns[chosen]]
            turns[chosen] += 1
            if turns[chosen] == len(segments[chosen]):
                turns[chosen] = 0
                launches[chosen] += 1
                waiting[chosen] -= models[chosen].frames
                rotation.finished(chosen)
            begins = turns[chosen] or waiting[chosen] >= models[chosen].frames
            needed[chosen] = asked[chosen][turns[chosen]] if begins else None
    return [count * model.frames / windows * 1e9 / window_ns for count, model in zip(launches, models, strict=True)]


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
