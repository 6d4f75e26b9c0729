"""Estimates the speed of the device from launch to launch, seen through durations of operations.

It is a random walk (the clock, the temperature), and each launch has a deviation of its own from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
_TURNS = 3  # in which the variance of launches and the step of the walk, which follow from each other, settle
_LEVEL_VAR = 2.7  # of a variance that follows from the median of as many squares, over its square
_FREEDOMS = 20  # degrees of freedom that noise of operations is known from
_STEPS = 10.0 ** np.arange(-5.0, 3.1, 0.25)  # that are tried, over the median of the variances


@njit(cache=True, nogil=True)
def _smooth_random_walk(ratio: Any, var: Any, step: Any, before: Any, before_var: Any) -> Any:
    count = len(ratio)
    mean, filtered = np.empty(count), np.empty(count)
    m, v = before, before_var
    for at in range(count):
        v += step
        gain = v / (v + var[at]) if np.isfinite(var[at]) else 0.0
        m, v = m + gain * (ratio[at] - m), v * (1 - gain)
        mean[at], filtered[at] = m, v
    smooth, spread = mean.copy(), filtered.copy()
    for at in range(count - 2, -1, -1):
        gain = filtered[at] / (filtered[at] + step)
        smooth[at] += gain * (smooth[at + 1] - mean[at])
        spread[at] += gain * gain * (spread[at + 1] - filtered[at] - step)
    return smooth, spread


def smooth_tempo(
    ratio: Floats, var: Floats, step: float, before: float = 1.0, before_var: float = 1e-2
) -> tuple[Floats, Floats]:
    """Smooth the speeds of launches as a random walk (Rauch, Tung and Striebel, 1965).

    ``ratio`` is what each launch says, ``var`` its variance (inf where it says nothing) and ``step`` the variance of
    the steps of the walk; ``before`` and ``before_var`` are the speed before the first launch and its variance.
    Returns the smoothed speeds and their variances, the last of which starts the next window.
    """
    smooth, spread = _smooth_random_walk(ratio, var, step, before, before_var)
    return smooth, spread


@njit(cache=True, nogil=True)
def _leave_one_out_errors(ratio: Any, var: Any, step: Any, before: Any, before_var: Any) -> Any:
    """Squared error with which the other launches predict what each says, and what part of that is its own noise."""
    smooth, spread = _smooth_random_walk(ratio, var, step, before, before_var)
    squared, part = np.empty(len(ratio)), np.empty(len(ratio))
    count = 0
    for at in range(len(ratio)):
        if np.isfinite(var[at]):
            left = max(1 - spread[at] / var[at], 1e-9)  # one minus its leverage on its own smoothed speed
            squared[count], part[count] = ((ratio[at] - smooth[at]) / left) ** 2, left
            count += 1
    return squared[:count], part[:count]


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
        squared, _ = _leave_one_out_errors(ratio, var, step, around, _VAGUE * usual)
        errors = squared / var[sure]
        most = (_FAR * MAD_TO_DEVIATION) ** 2 * float(np.median(errors))  # a stalled launch is no evidence of speed
        return float(np.minimum(errors, most).mean())

    return max(min(map(float, usual * _STEPS), key=mean_error), 1e-8)


def estimate_launch_var(ratio: Floats, var: Floats) -> float:
    """Estimate the variance of the deviation that each launch has of its own from the walk.

    It is what launches are further from what the others predict of them than their operations, which ``var`` follows
    from, are from each other; 0 where that may be chance. ``ratio`` and ``var`` are as in :func:`smooth_tempo`.
    """
    sure = np.isfinite(var)
    if (sure[1:] & sure[:-1]).sum() < _FEWEST:
        return 0.0
    around, launch_var = float(np.median(ratio[sure])), 0.0
    for _ in range(_TURNS):
        noise = var + launch_var
        usual = float(np.median(noise[sure]))
        squared, part = _leave_one_out_errors(ratio, noise, estimate_tempo_step(ratio, noise), around, _VAGUE * usual)
        level = MAD_TO_DEVIATION**2 * float(np.median(squared * part / noise[sure]))
        if not launch_var and level < 1 + _FAR * math.sqrt(_LEVEL_VAR / np.count_nonzero(sure)):
            return 0.0
        launch_var = max(level * usual - float(np.median(var[sure])), 0.0)
    return launch_var


@dataclass(frozen=True)
class TempoModel:
    """How speeds of launches vary.

    Attributes:
        step: variance of the change of the walk from launch to launch.
        launch_var: variance of each launch's own deviation.
        level: variance of what single operations say of a launch's speed, over that of their durations.
    """

    step: float = _UNSEEN
    launch_var: float = 0.0
    level: float = 1.0


def estimate_tempo_model(window: Window, precedence: Precedence, times: Times) -> TempoModel:
    """Estimate how the speeds of a window's launches vary.

    A launch's own deviation and the noise of its operations can be told apart where launches show several operations.
    """
    ratio, var, misfit, freedoms = tempo_ratios(window, precedence, times)
    sure = int(np.count_nonzero(np.isfinite(var)))
    if freedoms < max(_FREEDOMS, sure // 2):
        return TempoModel(estimate_tempo_step(ratio, var))
    level = (misfit + 1) / (freedoms + 1)
    launch_var = estimate_launch_var(ratio, level * var)
    return TempoModel(estimate_tempo_step(ratio, level * var + launch_var), launch_var, level)


def with_tempo(
    window: Window,
    precedence: Precedence,
    times: Times,
    model: TempoModel,
    before: tuple[float, float] | None = None,
) -> tuple[Window, Floats, Floats]:
    """Estimate the speed of each launch of a window.

    ``before`` is the walk before the first launch, and its variance; ``None``: not known. Returns the window with the
    speeds, and the walk at each launch with its variance.
    """
    ratio, var, _, _ = tempo_ratios(window, precedence, times)
    var = model.level * var
    if before is None:
        sure = np.isfinite(var)
        before = (float(np.median(ratio[sure])) if sure.any() else 1.0), 1.0
    noise = var + model.launch_var
    walk, walk_var = smooth_tempo(ratio, noise, model.step, *before)
    # Of what a launch says beyond the walk, this part is its own deviation, and the rest noise.
    own = np.where(np.isfinite(var), model.launch_var / noise, 0.0)
    tempo = walk + own * (ratio - walk)
    own_var = np.where(np.isfinite(var), own * np.where(np.isfinite(var), var, 0.0), model.launch_var)
    return window._replace(tempo=tempo, tempo_var=own_var + (1 - own) ** 2 * walk_var), walk, walk_var
