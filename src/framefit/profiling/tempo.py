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
_APART = 16  # launches: a distance over which a change of speed shows


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


def tempo_step_of(ratio: Floats, var: Floats) -> float:
    """Variance of the speed's change from launch to launch, beyond what its measurement adds.

    What measurement adds does not grow with the distance of two launches, what the speed does, does. Where
    the variances that are given claim far more change than there is over a distance, they are too small
    (launches of few operations, whose own variation passes for a speed), and the distance decides.
    """
    sure = np.isfinite(var)

    def spread(distance: int) -> float:
        change = (ratio[distance:] - ratio[:-distance])[sure[distance:] & sure[:-distance]]
        if len(change) < 4:
            return np.inf
        return (_MAD * float(np.median(np.abs(change - np.median(change))))) ** 2

    pairs = sure[1:] & sure[:-1]
    if pairs.sum() < 4:
        return 1e-6
    near, far = spread(1), spread(_APART)
    step = near - float(np.median((var[1:] + var[:-1])[pairs]))
    growth = (far - near) / (_APART - 1)
    return float(max(growth if growth < step / 4 else step, 1e-8))


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
