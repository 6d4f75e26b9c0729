"""How far two results of the same model differ."""

from __future__ import annotations

import numpy as np

from framefit.devices.device import Tensors

__all__ = ["greatest_difference"]


def greatest_difference(joined: Tensors, whole: Tensors) -> float:
    """Greatest max|a - b| / max|b| over outputs; infinite where shapes, NaNs or infinities differ."""
    worst = 0.0
    for name, reference in whole.items():
        if reference.shape != joined[name].shape:
            return float("inf")
        a, b = joined[name].astype(np.float64), reference.astype(np.float64)
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
            return float("inf")
        if finite.any():
            scale = max(float(np.abs(b[finite]).max()), float(np.finfo(np.float32).tiny))
            worst = max(worst, float(np.abs(a[finite] - b[finite]).max()) / scale)
    return worst
