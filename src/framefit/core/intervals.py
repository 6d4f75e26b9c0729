"""Intervals of ratios."""

from __future__ import annotations

import math

__all__ = ["wilson"]

_Z90 = 1.6448536269514722  # normal quantile of 0.95: 90 % lie between -z and z


def wilson(hits: int, count: int) -> tuple[float, float]:
    """90 % interval of a ratio (Wilson, "Probable Inference, the Law of Succession", JASA 22, 1927).

    Args:
        hits: of ``count``, which is at least 1.
        count: trials.
    """
    ratio, square = hits / count, _Z90**2 / count
    middle = (ratio + square / 2) / (1 + square)
    half = _Z90 * math.sqrt(ratio * (1 - ratio) / count + square / (4 * count)) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)
