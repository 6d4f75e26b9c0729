"""Estimates the speed of the device from launch to launch: a random walk, seen through durations of operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.profiling.edge_inference import Precedence, Times, Window, tempo_ratios
from framefit.stats import MAD_TO_DEVIATION

Floats = npt.NDArray[np.float64]
_FAR = 3.0  # standard deviations: an error beyond it counts as one of it
_FEWEST = 4  # pairs of neighbouring launches with durations, below which no step is estimated
_UNSEEN = 1e-6  # step where none is estimated
_VAGUE = 1e4  # variance of the first launch's speed over that of the speed by one launch
_STEPS = 10.0 ** np.arange(-5.0, 3.1, 0.25)  # that are tried, over the median of the variances


@njit(cache=True, nogil=True)
def _smooth_random_walk(ratio: Any, var: Any, step: Any, before: Any, before_var: Any) -> Any:
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


def smooth_tempo(
    ratio: Floats, var: Floats, step: float, before: float = 1.0, before_var: float = 1e-2
) -> tuple[Floats, Floats]:
    """Smooth the speeds of launches as a random walk (Rauch, Tung and Striebel, 1965).

    ``ratio`` is what each launch says, ``var`` its variance (inf where it says nothing) and ``step`` the variance of
    the steps of the walk; ``before`` and ``before_var`` are the speed before the first launch and its variance.
    Returns the smoothed speeds, and filtered variances, the last of which starts the next window.
    """
    smooth, spread = _smooth_random_walk(ratio, var, step, before, before_var)
    return smooth, spread


@njit(cache=True, nogil=True)
def _leave_one_out_errors(ratio: Any, var: Any, step: Any, before: Any, before_var: Any) -> Any:
    """Squared error, over its variance, with which the other launches predict each launch's speed."""
    smooth, spread = _smooth_random_walk(ratio, var, step, before, before_var)
    squared = np.empty(len(ratio))
    count, smooth_var = 0, 0.0
    for at in range(len(ratio) - 1, -1, -1):
        if at == len(ratio) - 1:
            smooth_var = spread[at]
        else:
            gain = spread[at] / (spread[at] + step)
            smooth_var = spread[at] + gain * gain * (smooth_var - spread[at] - step)
        if np.isfinite(var[at]):
            left = max(1 - smooth_var / var[at], 1e-9)  # one minus its leverage on its own smoothed speed
            squared[count] = ((ratio[at] - smooth[at]) / left) ** 2 / var[at]
            count += 1
    return squared[:count]


def estimate_tempo_step(ratio: Floats, var: Floats) -> float:
    """Estimate the variance of the change of speed from launch to launch, on the scale of the variances given.

    The step is chosen with which the other launches predict each launch best (cross-validation by leaving one out,
    Stone, 1974, "Cross-Validatory Choice and Assessment of Statistical Predictions"). So only the ratios of the
    variances matter and not their level. They may be too large (while operations were judged at one speed, theirs
    contain its change) or too small (launches of few operations, whose own variation passes for a speed). Smoothing
    depends on nothing but the step over the variances, so a step on their scale is what is needed. ``ratio`` and
    ``var`` are as in :func:`smooth_tempo`.
    """
    sure = np.isfinite(var)
    if (sure[1:] & sure[:-1]).sum() < _FEWEST:
        return _UNSEEN
    around, usual = float(np.median(ratio[sure])), float(np.median(var[sure]))

    def mean_error(step: float) -> float:
        errors = _leave_one_out_errors(ratio, var, step, around, _VAGUE * usual)
        most = (_FAR * MAD_TO_DEVIATION) ** 2 * float(np.median(errors))  # a stalled launch is no evidence of speed
        return float(np.minimum(errors, most).mean())

    return max(min(map(float, usual * _STEPS), key=mean_error), 1e-8)


def estimate_tempo(
    window: Window, precedence: Precedence, times: Times, step: float | None, before: float, before_var: float
) -> tuple[Floats, float, float]:
    """Estimate the speed of each launch of a window.

    Returns the speeds, the variance of the step (estimated where ``step`` is ``None``) and the variance of the last
    speed.
    """
    ratio, var = tempo_ratios(window, precedence, times)
    if step is None:
        step = estimate_tempo_step(ratio, var)
        sure = np.isfinite(var)
        before = float(np.median(ratio[sure])) if sure.any() else 1.0
    smooth, spread = smooth_tempo(ratio, var, step, before, before_var)
    return smooth, step, float(spread[-1]) if len(spread) else before_var
