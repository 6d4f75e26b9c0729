"""What a described device says of a launch."""

from __future__ import annotations

from framefit.core.model import Model, epilogue_groups
from framefit.devices.npu import NpuDevice

__all__ = ["fixed_ns", "layers_ratio"]


def fixed_ns(device: NpuDevice, model: Model) -> int:
    """What a launch costs beside its layers, however cheap these get: the host's part and the transfers."""
    return sum(device.link_ns(model))


def layers_ratio(device: NpuDevice, model: Model, unit: str, ratio: float) -> float:
    """What part of their time its layers may take, so that a launch takes so many times as long as it does.

    Args:
        device: described.
        model: that is launched, on
        unit: of the device.
        ratio: of the launch's time, 0 to 1.

    Returns:
        0 or less: the layers cannot make up for it.
    """
    fixed = fixed_ns(device, model)
    layers = sum(device.layers_ns(model.grouped(epilogue_groups(model)), unit))
    return (ratio * (fixed + layers) - fixed) / max(layers, 1)
