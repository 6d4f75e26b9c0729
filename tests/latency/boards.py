"""Simulated accelerators whose host link matters, and what their layers truly take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from framefit.core.latency_table import LatencyEntry
from framefit.core.model import GraphBuilder, Model, configuration
from framefit.core.target import Variation, resolve_target
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Completion
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.device import NpuDevice

__all__ = ["INPUT_NS", "NOISE", "OUTPUT_NS", "UNIT", "Wrapped", "resnet20", "true_latency", "vpu"]

UNIT = "vpu0"
NOISE = Variation(sigma_ratio=0.01, stall_rate_hz=60, stall_ns=500_000)  # 1 % of launches of some 170 us stall
INPUT_NS, OUTPUT_NS = 0.1375, 0.2125  # of a float's byte, which the VPU stores in a quarter


def vpu(
    variation: Variation = Variation(),  # noqa: B008 - frozen
    seed: int = 0,
    name: str = "vpu",
    link_gbps: tuple[float, float] = (2.0, 1.25),
) -> NpuDevice:
    """A built-in VPU behind a link in and out; 100 us a launch."""
    target = resolve_target(name)
    into, out = link_gbps
    host = msgspec.structs.replace(target.host, input_bandwidth_gbps=into, output_bandwidth_gbps=out)
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


class Wrapped:
    """A device behind a driver: what its launches hand over costs more, and its clock tells whole steps.

    Args:
        inner: the device; its own link should cost nothing where ``transfer_ns`` is given.
        step_ns: of the clock that completions are told by.
        transfer_ns: from bytes in and bytes out of a launch to what they take beside the layers.
    """

    def __init__(
        self, inner: NpuDevice, step_ns: int = 1, transfer_ns: Callable[[int, int], float] = lambda _in, _out: 0.0
    ) -> None:
        self._inner, self._step_ns, self._transfer_ns = inner, step_ns, transfer_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compile(self, segment: Model, unit: str, label: str) -> Any:
        """As the device does; what crosses is noted."""
        read, written = (sum(tensor.bytes for tensor in crossing) for crossing in (segment.inputs, segment.outputs))
        return _Handle(self._inner.compile(segment, unit, label), (read, written))

    def submit(self, binding: Any) -> Completion:
        """Launch, transfer, and tell both ends in whole steps."""
        inner, crossing = binding
        done = self._inner.submit(inner)
        finished_ns = done.finished_ns + round(self._transfer_ns(*crossing))
        self._inner.clock.sleep_until_ns(finished_ns)
        step_ns = self._step_ns
        return Completion(done.started_ns // step_ns * step_ns, finished_ns // step_ns * step_ns)


class _Handle:
    def __init__(self, inner: Any, crossing: tuple[int, int]) -> None:
        self._inner, self._crossing = inner, crossing

    def bind(self, tensors: Any) -> Any:
        return self._inner.bind(tensors), self._crossing
