"""Losses of a score against an ordered level -1, 0 or 1.

A level says of each of two thresholds on which side the score belongs: hinge, logarithmic and exponential
losses are of the two margins (Lin and Li, "Large-Margin Thresholded Ensembles for Ordinal Regression: Theory
and Practice", ALT 2006). The squared loss takes the level as a number.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Loss", "descent", "mean_loss"]

Array = npt.NDArray[Any]
Loss = Literal["squared", "log", "hinge", "exponential"]


def descent(loss: Loss, target: Array, score: Array, reach: float, sharpness: float) -> Array:
    """The loss's negative gradient, up to a factor.

    Args:
        loss: which one.
        target: -1, 0 or 1; of the squared loss any number.
        score: of the same shape, float32.
        reach: the thresholds are at ``-reach`` and ``reach``.
        sharpness: by which margins are multiplied.
    """
    if loss == "squared":
        return target - score
    total = np.zeros_like(score)
    for side, margin in _margins(target, score, reach, sharpness):
        if loss == "log":
            total += side / (1 + np.exp(np.minimum(margin, 60)))
        elif loss == "hinge":
            total += side * (margin < 1)
        else:
            total += side * np.exp(-np.clip(margin, -20, 20))
    return total


def mean_loss(loss: Loss, target: Array, score: Array, reach: float, sharpness: float) -> float:
    """Mean over all elements."""
    if loss == "squared":
        return float(np.mean((target - score) ** 2, dtype=np.float64))
    total = 0.0
    for _, margin in _margins(target, score, reach, sharpness):
        if loss == "log":
            total += float(np.mean(np.logaddexp(0, -margin), dtype=np.float64))
        elif loss == "hinge":
            total += float(np.mean(np.maximum(1 - margin, 0), dtype=np.float64))
        else:
            total += float(np.mean(np.exp(-np.clip(margin, -20, 20)), dtype=np.float64))
    return total


def _margins(target: Array, score: Array, reach: float, sharpness: float) -> list[tuple[Array, Array]]:
    """The side of each threshold that is right (-1 or 1), and how far on it the score is."""
    sides = [np.where(target > -0.5, 1, -1).astype(np.float32), np.where(target > 0.5, 1, -1).astype(np.float32)]
    return [
        (side, sharpness * side * (score - threshold))
        for side, threshold in zip(sides, (np.float32(-reach), np.float32(reach)), strict=True)
    ]
