"""Whole models against each other on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from framefit.core.model import Model
from framefit.devices.device import Completion, allocate, random_inputs
from framefit.devices.host import pinned
from framefit.devices.measure import measure
from framefit.devices.ort import OrtDevice

__all__ = ["medians_ns"]

_BUDGET_NS = 1_000_000_000


def medians_ns(models: Sequence[Model]) -> tuple[int, ...]:
    """Median latency of each model by ONNX Runtime on the default core, measured in turn, in nanoseconds.

    Raises:
        DeviceError: the runtime does not take a model.
    """
    device = OrtDevice()
    with pinned(device.core):
        found = measure([_launch(device, model) for model in models], budget_ns=_BUDGET_NS)
    return tuple(one.median_ns for one in found)


def _launch(device: OrtDevice, model: Model) -> Callable[[], Completion]:
    handle = device.compile(model, device.target.units[0].name, model.name)
    tensors = random_inputs(model.inputs, np.random.default_rng(0))
    bound = handle.bind(tensors | {tensor.name: allocate(tensor) for tensor in model.outputs})
    return lambda: device.submit(bound)
