"""Zeros that are skipped: how much work they leave.

After Intel's public VPU cost model (https://github.com/intel/npu-nn-cost-model): little gain
where there are few input channels, a ceiling on deep layers, a loss where only some are
zero: skipping costs as much as the multiply-accumulates that it saves at the threshold
density, so below it a part d / threshold of the time is left. Lanes that work on a sum each
wait for the one with the most products left: of n lanes with K products each, of which a
part d is left at random, it has about K d + sqrt(2 K d (1 - d) ln n), for the greatest of n
normal variables is expected at most sqrt(2 ln n) deviations above their mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framefit.core.target import Sparsity

__all__ = ["counted_zeros", "density", "packs_weights", "remaining"]

Floats = npt.NDArray[np.float64]


def density(sparsity: Sparsity, weights: npt.ArrayLike, activations: npt.ArrayLike) -> Floats:
    """Part of the multiply-accumulates that is left when zeros are skipped, 0 to 1.

    Neither ceiling nor threshold nor imbalance are in it.

    Args:
        sparsity: which zeros are skipped.
        weights: part of the weights that is zero and counts.
        activations: part of the first operand that is zero.
    """
    of_weights = 1 - np.asarray(weights, np.float64)
    of_activations = 1 - np.asarray(activations, np.float64)
    left = {
        "none": np.ones(np.broadcast(of_weights, of_activations).shape),
        "weights": of_weights,
        "activations": of_activations,
        "saturating": np.minimum(of_weights, of_activations),
        "dual": of_weights * of_activations,
    }[sparsity.skips]
    return np.broadcast_to(left, np.broadcast(of_weights, of_activations).shape).astype(np.float64)


def counted_zeros(sparsity: Sparsity, weights: npt.ArrayLike) -> Floats:
    """Part of the weights whose zeros count, where all of them are laid out as the hardware likes.

    Args:
        sparsity: "n:m" hardware counts 1 - n / m from there on and nothing below, "none" nothing.
        weights: part that is zero.
    """
    zeros = np.asarray(weights, np.float64)
    if sparsity.granularity == "none":
        return np.zeros_like(zeros)
    if sparsity.granularity == "n:m":
        assert sparsity.n is not None
        assert sparsity.m is not None
        least = 1 - sparsity.n / sparsity.m
        return np.where(zeros >= least - 1e-9, least, 0.0)
    return zeros


def packs_weights(sparsity: Sparsity) -> bool:
    """Whether zero weights stay out of memory: where they count for the arithmetic, too."""
    return sparsity.weights_packed and sparsity.skips in ("weights", "saturating", "dual")


def remaining(
    sparsity: Sparsity, granule: int, weights: Floats, activations: Floats, *, channels: Floats, area: Floats
) -> tuple[Floats, Floats]:
    """Part of the multiply-accumulates that is left, 0 to 1.

    Args:
        sparsity: which zeros are skipped, threshold, lanes and ceiling.
        granule: input channels that are multiplied at once.
        weights: part of the weights that is zero and counts.
        activations: part of the first operand that is zero.
        channels: input channels of each sum.
        area: kernel positions of each sum.

    Returns:
        As zeros go, and as time goes.
    """
    raw = density(sparsity, weights, activations)
    threshold = sparsity.threshold_density_ratio
    raw = np.where(raw < threshold, raw, 1.0)  # else the layer is computed densely
    left: Floats = np.where(raw < threshold, raw / max(threshold, 1e-9), 1.0)
    if sparsity.lanes > 1:
        length = channels * area
        left = left + np.sqrt(2 * raw * (1 - raw) * np.log(sparsity.lanes) / length)
    if sparsity.cap_ratio is not None:
        left = np.maximum(left, 1 / sparsity.cap_ratio)
    if granule > 1:  # what is left of the input channels fills at least one granule
        left = np.maximum(left, 1 / np.ceil(channels / granule))
    return raw, np.asarray(np.minimum(left, 1.0))
