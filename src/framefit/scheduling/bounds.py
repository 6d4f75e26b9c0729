"""What no dispatcher can exceed: the fluid and the packing bound on background throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framefit.scheduling.service import Rotation

__all__ = ["Work", "fluid_bounds_hz", "fluid_rates", "packing_bounds_hz"]


@dataclass(frozen=True)
class Work:
    """What a background model asks for.

    Attributes:
        whole_ns: median duration of the whole model.
        segments_ns: those of its segments, in order; default: one, the whole.
        every: windows between its frames.
        frames: that one launch of the model consumes.
    """

    whole_ns: float
    segments_ns: Sequence[int] = ()
    every: int = 1
    frames: int = 1


def fluid_rates(residual_ns: float, whole_ns: Sequence[float], periods: Sequence[int]) -> list[float]:
    """Launches of each whole model a window, if the residual were one fluid, in the shares of :class:`Rotation`.

    Models take turns launch by launch, so all have the same rate; whoever has frames for
    less has that, and the others share what is left.

    Args:
        residual_ns: of a window.
        whole_ns: duration of each model.
        periods: windows in which the frames of one launch arrive.
    """
    rates = [0.0] * len(whole_ns)
    left, sharing = max(residual_ns, 0.0), sorted(range(len(whole_ns)), key=lambda n: -periods[n])
    while sharing:
        equal = left / sum(whole_ns[n] for n in sharing)
        least = sharing.pop(0)  # the one with the fewest frames of those left
        rates[least] = min(equal, 1 / periods[least])
        left -= rates[least] * whole_ns[least]
    return rates


def fluid_bounds_hz(window_ns: float, priority_ns: float, models: Sequence[Work]) -> list[float]:
    """Frames of each model a second if the residual were one fluid: no guard, no boundaries.

    Args:
        window_ns: length of a window.
        priority_ns: median priority time in it.
        models: all background models.
    """
    rates = fluid_rates(
        window_ns - priority_ns, [model.whole_ns for model in models], [model.every * model.frames for model in models]
    )
    return [rate * model.frames * 1e9 / window_ns for rate, model in zip(rates, models, strict=True)]


def packing_bounds_hz(
    window_ns: int, priority_ns: int, models: Sequence[Work], *, windows: int = 10_000
) -> list[float]:
    """Frames of each model a second, its segments dispatched greedily at exact durations without a guard.

    Models take turns as they do in a run; no frame is ever dropped.

    Args:
        window_ns: length of a window.
        priority_ns: median priority time at its beginning.
        models: all background models, in order of service.
        windows: how many to play through.
    """
    segments = [model.segments_ns or (round(model.whole_ns),) for model in models]
    rotation = Rotation(len(models))
    waiting, turns, launches = [0] * len(models), [0] * len(models), [0] * len(models)
    needed: list[int | None] = [None] * len(models)
    for window in range(windows):
        for number, model in enumerate(models):
            waiting[number] += window % model.every == 0
            if needed[number] is None and waiting[number] >= model.frames:
                needed[number] = segments[number][0]
        now = priority_ns
        while (chosen := rotation.choose(needed, window_ns - now)) is not None:
            now += segments[chosen][turns[chosen]]
            turns[chosen] += 1
            if turns[chosen] == len(segments[chosen]):
                turns[chosen] = 0
                launches[chosen] += 1
                waiting[chosen] -= models[chosen].frames
                rotation.finished(chosen)
            begins = turns[chosen] or waiting[chosen] >= models[chosen].frames
            needed[chosen] = segments[chosen][turns[chosen]] if begins else None
    return [count * model.frames / windows * 1e9 / window_ns for count, model in zip(launches, models, strict=True)]
