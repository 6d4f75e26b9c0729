"""Simulated accelerators whose host link matters, and what their layers truly take."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from framefit.core.latency_table import LatencyEntry
from framefit.core.model import GraphBuilder, Model, configuration
from framefit.core.target import Variation, resolve_target
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.device import NpuDevice

__all__ = ["INPUT_NS", "NOISE", "OUTPUT_NS", "UNIT", "resnet20", "true_latency", "vpu"]

UNIT = "vpu0"
NOISE = Variation(sigma_ratio=0.01, stall_rate_hz=60, stall_ns=500_000)  # 1 % of launches of some 170 us stall
INPUT_NS, OUTPUT_NS = 0.1375, 0.2125  # of a float's byte, which the VPU stores in a quarter


def vpu(variation: Variation = Variation(), seed: int = 0, name: str = "vpu") -> NpuDevice:  # noqa: B008 - frozen
    """A built-in VPU behind a link of 2 and 1.25 GB/s; 100 us a launch."""
    target = resolve_target(name)
    host = msgspec.structs.replace(target.host, input_bandwidth_gbps=2.0, output_bandwidth_gbps=1.25)
    target = msgspec.structs.replace(target, host=host, variation=variation)
    return NpuDevice(target, VirtualClock(), layer_times(target), seed=seed)


def true_latency(device: NpuDevice, model: Model) -> Callable[[LatencyEntry], int]:
    """What an entry's layer takes in this model, as the device itself knows."""
    model = model.grouped(device.fusions(model))
    times = {
        _key(layer.op, configuration(nodes)): ns
        for layer, nodes, ns in zip(model.layers, model.nodes, device.layers_ns(model, UNIT), strict=True)
    }
    return lambda entry: times[_key(entry.op, entry.configuration)]


def resnet20() -> Model:
    """ResNet-20 on 32 x 32 pixels (He et al., 2016); random weights."""
    b = GraphBuilder("resnet20")
    x = b.conv(b.input("image", (1, 3, 32, 32)), 16, norm=True, activation="Relu")
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            y = b.conv(x, channels, stride=stride, norm=True, activation="Relu")
            y = b.conv(y, channels, norm=True)
            skip = x if stride == 1 else b.conv(x, channels, kernel=1, stride=stride, norm=True)
            x = b.op("Relu", b.op("Add", y, skip))
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 10))
    return b.build()


def _key(op: str, found: object) -> bytes:
    return msgspec.json.encode((op, found), order="sorted")
