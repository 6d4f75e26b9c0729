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
from framefit.devices.kernels.network import FOUR, Network, Step, in_blocks
from framefit.devices.kernels.selection import in_turn, lanes_here
from framefit.devices.pieces import HostDevice
from framefit.errors import InputError

__all__ = ["kernel_times"]


_KEPT = (1.0, 0.6, 0.3)  # parts of the blocks that are measured
_TURNS = 21
_VERSION = 2


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
        thinned: the network, in float32 or int8, with so many zeros in blocks that kernels execute it.
        names: nodes of the layers that may have zeros.
        cache: folder that keeps what was measured; default: the user's cache.
    """
    lanes = lanes_here()
    facts = (thinned.digest, sorted(names), lanes, sorted(fingerprint().items()), _VERSION)
    kept = (cache or cache_folder()) / "kernels" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()}.json"
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(kept.read_bytes(), type=KernelTimes)
    device = HostDevice(cache=cache)
    layers = {
        name: step
        for network in device.networks(thinned)
        for step in network.steps
        if step.kind == "conv" and (name := next((node for node in step.nodes if node in names), None)) is not None
    }
    handle = device.compile(thinned, device.target.units[0].name, thinned.name)
    tensors = random_inputs(thinned.inputs, np.random.default_rng(0))
    bound = handle.bind(tensors | {tensor.name: allocate(tensor) for tensor in thinned.outputs})
    thinner = [_with_parts(step, lanes, kept.parent) for step in layers.values()]
    with pinned(device.host_core):  # all of them in turn: the machine's speed changes
        whole_ns, *took = in_turn([lambda: device.submit(bound), *(run for _, runs in thinner for run in runs)], _TURNS)
    layers_ns, rest_ns = dict[str, float](), whole_ns
    for number, ((name, step), (parts, _)) in enumerate(zip(layers.items(), thinner, strict=True)):
        slope, _ = np.polyfit(parts, took[number * len(_KEPT) : (number + 1) * len(_KEPT)], 1)
        layers_ns[name] = max(float(slope), 0.0)
        rest_ns -= layers_ns[name] * step.kept_macs(lanes) / max(step.macs, 1)
    times = KernelTimes(layers_ns=layers_ns, rest_ns=max(rest_ns, 0.0))
    with contextlib.suppress(OSError, InputError), write_whole(kept, force=True) as file:
        file.write(msgspec.json.encode(times))
    return times


def _with_parts(step: Step, lanes: int, cache: Path) -> tuple[list[float], list[Callable[[], Any]]]:
    """A layer with some parts of its blocks: the parts of its products, and what runs it."""
    assert step.weight is not None
    random = np.random.default_rng(0)
    blocks, dtype = in_blocks(step.weight, lanes).shape, step.weight.dtype
    together = FOUR if dtype == np.int8 else 1
    runs, parts = [], []
    for part in _KEPT:
        kept = random.random((blocks[0], 1, -(-blocks[2] // together), *blocks[3:])) < part
        values = random.integers(1, 128, blocks) if dtype == np.int8 else random.standard_normal(blocks)
        weight = values * np.repeat(kept, together, axis=2)[:, :, : blocks[2]]
        thinner = replace(step, weight=weight.reshape(-1, *blocks[2:])[: len(step.weight)].astype(dtype))
        runs.append(_run(thinner, cache))
        parts.append(thinner.kept_macs(lanes) / max(step.macs, 1))
    return parts, runs


def _run(step: Step, cache: Path) -> Callable[[], Any]:
    """A function that runs a single step."""
    from framefit.devices.kernels.compiled import CompiledNetwork  # importing LLVM takes 0.1 s

    inputs = (step.source,) if step.other is None else (step.source, step.other)
    network = Network((step,), inputs, (step.output,))
    arrays = [np.ones(image.shape, image.dtype) for image in (*inputs, step.output)]
    return CompiledNetwork(network, cache).bind(arrays[:-1], arrays[-1:], np.zeros(1, np.int32))
