"""What groups and networks take, as layers and with trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from framefit.core.model import Model
from framefit.core.target import resolve_target
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Completion, allocate, random_inputs
from framefit.devices.measure import measure
from framefit.devices.npu import NpuDevice
from framefit.devices.npu.cycles import unit_named
from framefit.devices.ort import OrtDevice
from framefit.devices.trees.device import TreesDevice
from framefit.workflows.cycles import pricing

__all__ = ["Latencies", "latencies", "medians"]

Latencies = Callable[[Sequence[Model]], list[int]]
"""What models take a frame, ns."""


def latencies(target: str, unit: str | None) -> Latencies:
    """What tells a target's times: its description, or a measurement where it is this machine.

    Args:
        target: a built-in one, or the path of a ``target.toml``.
        unit: of a described one; ``None``: the first that can run what is timed.

    Raises:
        InputError: no such target or unit; models: one that the unit does not support.
    """
    described = resolve_target(target)
    if described.kind == "ort":
        return medians
    unit_named(described, unit)

    def times(model: Model, name: str) -> list[int]:
        return [layer.latency_ns for layer in pricing(target, model, name).layers(model)]

    device = NpuDevice(described, VirtualClock(), times)
    return lambda models: [
        device.compile(model, unit or pricing(target, model).unit.name, model.name).duration_ns for model in models
    ]


def medians(models: Sequence[Model], runtime: OrtDevice | None = None) -> list[int]:
    """What models take a frame on this core; ns, in turn.

    Args:
        models: to launch.
        runtime: that launches them; ``None``: kernels for trees and ONNX Runtime for all else.
    """
    device = TreesDevice() if runtime is None else runtime
    unit = device.target.units[0].name

    def launch(model: Model) -> Callable[[], Completion]:
        tensors = random_inputs(model.inputs, np.random.default_rng(0))
        tensors |= {tensor.name: allocate(tensor) for tensor in model.outputs}
        binding = device.compile(model, unit, model.name).bind(tensors)
        return lambda: device.submit(binding)

    return [one.median_ns for one in measure([launch(model) for model in models], clock=device.clock)]
