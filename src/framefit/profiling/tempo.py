"""The speed of each launch: a random walk, seen through what its operations took."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.profiling.between import Times, Window, tempo_ratios
from framefit.profiling.precedence import Precedence

__all__ = ["steadied", "tempo_step_of", "window_tempo"]

Floats = npt.NDArray[np.float64]

_MAD = 1.4826  # of the median absolute deviation to the standard deviation of a normal variable
_FAR = 3.0  # standard deviations: an error beyond it counts as one of it
_FEWEST = 4  # pairs of neighbours that tell something: of fewer no step is estimated
_UNSEEN = 1e-6  # step where none is estimated
_VAGUE = 1e4  # variance of the first launch's speed over that of what a launch says
_STEPS = 10.0 ** np.arange(-5.0, 3.1, 0.25)  # that are tried, over the median of the variances


@njit(cache=True, nogil=True)
def _walk(ratio: Any, var: Any, step: Any, before: Any, before_var: Any) -> Any:
    count = len(ratio)
    mean, spread = np.empty(count), np.empty(count)
    m, v = before, before_var
    for at in range(count):
        v += step
        gain = v / (v + var[at]) if np.isfinite(var[at]) else 0.0
        m, v = m + gain * (ratio[at] - m), v * (1 - gain)
        mean[at], spread[at] = m, v
    smooth = mean.copy()
    for at in range(count - 2, -1, -1):
        smooth[at] += spread[at] / (spread[at] + step) * (smooth[at + 1] - mean[at])
    return smooth, spread


def steadied(
    ratio: Floats, var: Floats, step: float, before: float = 1.0, before_var: float = 1e-2
) -> tuple[Floats, Floats]:
    """Speeds of launches, smoothed as a random walk (Rauch, Tung and Striebel, 1965).

    Args:
        ratio: what each launch says.
        var: variance of that; inf: nothing.
        step: variance of the walk's steps.
        before: the speed before the first launch.
        before_var: its variance.

    Returns:
        Smoothed speeds; and filtered variances, the last of which starts the next window.
    """
    smooth, spread = _walk(ratio, var, step, before, before_var)
    return smooth, spread


@njit(cache=True, nogil=True)
def _missed(ratio: Any, var: Any, step: Any, before: Any, before_var: Any) -> Any:
    """By how much each launch is missed by the speed that the others tell for it, squared, over its variance."""
    smooth, spread = _walk(ratio, var, step, before, before_var)
    missed = np.empty(len(ratio))
    count, told = 0, 0.0
    for at in range(len(ratio) - 1, -1, -1):
        if at == len(ratio) - 1:
            told = spread[at]
        else:
            gain = spread[at] / (spread[at] + step)
            told = spread[at] + gain * gain * (told - spread[at] - step)
        if np.isfinite(var[at]):
            left = max(1 - told / var[at], 1e-9)  # how little of its own it tells by itself
            missed[count] = ((ratio[at] - smooth[at]) / left) ** 2 / var[at]
            count += 1
    return missed[:count]


def tempo_step_of(ratio: Floats, var: Floats) -> float:
    """Variance of the speed's change from launch to launch, on the scale of the variances that are given.

    The step with which the other launches tell best what each one says (cross-validation by leaving one out, Stone,
    1974, "Cross-Validatory Choice and Assessment of Statistical Predictions"). So how much the variances claim does
    not matter, only how they compare: they may be too large (while operations were judged at one speed, theirs
    contain its change) or too small (launches of few operations, whose own variation passes for a speed). As the
    smoothing depends on nothing but the step over the variances, a step on their scale is the one that is needed.

    Args:
        ratio: what each launch says.
        var: variance of that, up to a common factor; inf: nothing.
    """
    sure = np.isfinite(var)
    if (sure[1:] & sure[:-1]).sum() < _FEWEST:
        return _UNSEEN
    around, usual = float(np.median(ratio[sure])), float(np.median(var[sure]))

    def worth(step: float) -> float:
        missed = _missed(ratio, var, step, around, _VAGUE * usual)
        most = (_FAR * _MAD) ** 2 * float(np.median(missed))  # a launch that stalled is no speed
        return float(np.minimum(missed, most).mean())

    return max(min(map(float, usual * _STEPS), key=worth), 1e-8)


def window_tempo(
    window: Window, precedence: Precedence, times: Times, step: float | None, before: float, before_var: float
) -> tuple[Floats, float, float]:
    """Speed of each launch of a window.

    Returns:
        Speeds; the step's variance (estimated where ``step`` is ``None``); the last speed's variance.
    """
    ratio, var = tempo_ratios(window, precedence, times)
    if step is None:
        step = tempo_step_of(ratio, var)
        sure = np.isfinite(var)
        before = float(np.median(ratio[sure])) if sure.any() else 1.0
    smooth, spread = steadied(ratio, var, step, before, before_var)
    return smooth, step, float(spread[-1]) if len(spread) else before_var
