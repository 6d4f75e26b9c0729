"""What a network takes beyond its layers, in numbers that a correction multiplies: nodes, weights, classes of layers.

Layers that are measured alone find their weights in a core's own cache; in a whole network other layers have
evicted them since the last frame, although each of them would fit. How much that costs is measured: a layer's first
launch behind those of other layers, beside its repeated ones. A network evicts a part of it, the more the larger it
is. A runtime takes some time between two nodes. And classes of layers differ in how they use what the layers before
them left in the caches.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import msgspec
import numpy as np

from framefit.core.files import Record
from framefit.core.latency_table import Correction, Overhead
from framefit.core.model import Layer, Model, TensorInfo, configuration

CLASSES: dict[str, tuple[str, ...]] = {
    "convolution": ("Conv",),
    "product": ("MatMul", "Gemm", "Attention"),
    "recurrent": ("LSTM", "GRU", "RNN"),
    "movement": ("Reorder", "Transpose", "Concat", "Reshape", "Resize", "Slice", "Split", "queeze", "Flatten", "Pad"),
    "element": (),
}
"""Class of layers -> parts of their operators' names; the last class is that of all other layers."""
_STEEP = 4  # Hill's coefficient
_BLOCKED = ("Conv", "Pool")  # operators whose kernels keep channels in blocks


class Launched(Protocol):
    """A single launch: a model, a segment, or layers of one; fused groups are layers."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order."""
        ...

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Tensors from the host or another segment."""
        ...

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Tensors for the host or another segment."""
        ...

    @property
    def internal_tensors(self) -> Collection[str]:
        """Names of tensors that stay on the device."""
        ...


class Terms(Record, kw_only=True):
    """Terms of one network or segment: its number of layers, and bytes of all parameters."""

    nodes: int
    weight_bytes: int


def terms_of(model: Launched) -> Terms:
    """Compute the terms of a model whose fused groups are layers."""
    return Terms(nodes=len(model.layers), weight_bytes=sum(layer.parameter_bytes for layer in model.layers))


def layers_digest(model: Model) -> str:
    """Equal for models of the same layers in the same order, whatever their weights are."""
    layers = [(layer.op, configuration(nodes)) for layer, nodes in zip(model.layers, model.nodes, strict=True)]
    return hashlib.sha256(msgspec.json.encode(layers, order="sorted")).hexdigest()[:32]


def class_sums(layers: Iterable[Layer], latency_ns: Iterable[float]) -> dict[str, float]:
    """Sums of layers by class: how they use caches, and what they wait for."""
    sums = dict.fromkeys(CLASSES, 0.0)
    for layer, ns in zip(layers, latency_ns, strict=True):
        sums[_class_of(layer.op)] += ns
    return sums


@functools.cache
def _class_of(op: str) -> str:
    return next((name for name, parts in CLASSES.items() if any(part in op for part in parts)), "element")


def evicted_share(weight_bytes: float, evicting_bytes: float) -> float:
    """Which part of its layers' caches a network of so many bytes of weights evicts between two launches, 0 to 1.

    It grows steeply about one size: what is read in the same order again and again is either all found in a cache, or,
    as soon as it exceeds it, hardly any of it (Denning, 1968, "The Working Set Model for Program Behavior").
    """
    times = (weight_bytes / evicting_bytes) ** _STEEP if evicting_bytes else math.inf
    return times / (1 + times) if math.isfinite(times) else 1.0


def correction_ns(
    by_class: Mapping[str, float],
    evicted_ns: float,
    terms: Terms,
    correction: Correction | None,
    network_bytes: int | None = None,
) -> float:
    """Correction of a sum of layers, in nanoseconds; it may be negative.

    Args:
        by_class: the layers' latencies, added up by class.
        evicted_ns: what the layers take more in turn with others than alone, added up.
        terms: of these layers.
        correction: of the table.
        network_bytes: weights of the network that they are a part of; ``None``: they are the network.
    """
    if correction is None:
        return 0.0
    share = evicted_share(terms.weight_bytes if network_bytes is None else network_bytes, correction.evicting_bytes)
    return (
        correction.evicted_ratio * share * evicted_ns
        + correction.weight_ns_per_byte * terms.weight_bytes
        + correction.node_ns * terms.nodes
        + math.fsum((factor - 1) * by_class.get(name, 0.0) for name, factor in correction.class_factors.items())
    )


def transfer_ns(model: Launched, overhead: Overhead | None) -> float:
    """The host's part in one launch; tensors between segments are not transferred."""
    if overhead is None:
        return 0.0
    read, written = (
        _bytes(tuple(tensor for tensor in tensors if tensor.name not in model.internal_tensors))
        for tensors in (model.inputs, model.outputs)
    )
    affine = overhead.input_ns_per_byte * read + overhead.output_ns_per_byte * written + overhead.intercept_ns
    return affine + _departure_ns(overhead.input_bend, read) + _departure_ns(overhead.output_bend, written)


def _departure_ns(bend: tuple[tuple[float, float], ...], size_bytes: int) -> float:
    """Of a transfer from the straight line."""
    sizes, departures = np.asarray(bend, np.float64).reshape(-1, 2).T
    return float(np.interp(size_bytes, sizes, departures)) if bend else 0.0


def keeps_layout(op: str) -> bool:
    """Whether an operator's kernels keep channels in blocks, so that tensors between two such layers are not copied."""
    return any(name in op for name in _BLOCKED)


def _bytes(tensors: tuple[TensorInfo, ...]) -> int:
    return sum(tensor.bytes for tensor in tensors)
