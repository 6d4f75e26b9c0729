"""What layers take by kernels at any number of zeros: some numbers of them are measured, and time is linear in them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from framefit.core.files import cache_folder, write_whole
from framefit.core.model import Model
from framefit.devices.device import allocate, random_inputs
from framefit.devices.host import fingerprint, pinned
from framefit.devices.kernels.network import Network, Step, in_blocks
from framefit.devices.kernels.selection import in_turn, lanes_here
from framefit.devices.pieces import HostDevice
from framefit.errors import InputError

__all__ = ["kernel_times"]


_KEPT = (1.0, 0.6, 0.3)  # parts of the blocks that are measured
_VERSION = 1


class KernelTimes(msgspec.Struct, frozen=True):
    """Times of a network whose layers have zeros in blocks.

    Attributes:
        layers_ns: by the name of its node, what a layer's products take if none of its blocks is zero.
        rest_ns: what a launch takes besides.
    """

    layers_ns: dict[str, float]
    rest_ns: float


def kernel_times(thinned: Model, names: Collection[str], cache: Path | None = None) -> KernelTimes:
    """Measure a network's layers on the default core, or return what was measured here before.

    Args:
        thinned: the network with so many zeros in blocks that kernels execute it.
        names: nodes of the layers that may have zeros.
        cache: folder that keeps what was measured; default: the user's cache.
    """
    lanes = lanes_here()
    facts = (thinned.digest, sorted(names), lanes, sorted(fingerprint().items()), _VERSION)
    kept = (cache or cache_folder()) / "kernels" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(kept.read_bytes(), type=KernelTimes)
    device = HostDevice(cache=cache)
    layers_ns, products_ns = dict[str, float](), 0.0
    with pinned(device.host_core):
        for network in device.networks(thinned):
            for step in network.steps:
                name = next((node for node in step.nodes if node in names), None)
                if name is not None and step.kind == "conv":
                    layers_ns[name] = _products_ns(step, lanes, kept.parent)
                    products_ns += layers_ns[name] * step.kept_macs(lanes) / max(step.macs, 1)
        handle = device.compile(thinned, device.target.units[0].name, thinned.name)
        tensors = random_inputs(thinned.inputs, np.random.default_rng(0))
        bound = handle.bind(tensors | {tensor.name: allocate(tensor) for tensor in thinned.outputs})
        (whole_ns,) = in_turn([lambda: device.submit(bound)])
    times = KernelTimes(layers_ns=layers_ns, rest_ns=max(whole_ns - products_ns, 0.0))
    with contextlib.suppress(OSError, InputError), write_whole(kept, force=True) as file:
        file.write(msgspec.json.encode(times))
    return times


def _products_ns(step: Step, lanes: int, cache: Path) -> float:
    """What all products of a layer take: how its time grows with the blocks that are not zero."""
    assert step.weight is not None
    random = np.random.default_rng(0)
    blocks = in_blocks(step.weight, lanes).shape
    runs, parts = [], []
    for part in _KEPT:
        kept = random.random((blocks[0], 1, *blocks[2:])) < part
        weight = (random.standard_normal(blocks) * kept).reshape(-1, *blocks[2:])[: len(step.weight)]
        thinner = replace(step, weight=weight.astype(np.float32))
        runs.append(_run(thinner, cache))
        parts.append(thinner.kept_macs(lanes) / max(step.macs, 1))
    slope, _ = np.polyfit(parts, in_turn(runs), 1)
    return max(float(slope), 0.0)


def _run(step: Step, cache: Path) -> Callable[[], Any]:
    """A function that runs a single step."""
    from framefit.devices.kernels.compiled import CompiledNetwork  # importing LLVM takes 0.1 s

    inputs = (step.source,) if step.other is None else (step.source, step.other)
    network = Network((step,), inputs, (step.output,))
    arrays = [np.ones(image.shape, np.float32) for image in (*inputs, step.output)]
    return CompiledNetwork(network, cache).bind(arrays[:-1], arrays[-1:], np.zeros(1, np.int32))
