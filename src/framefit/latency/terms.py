"""What a network takes beyond its layers, in numbers that a correction multiplies: boundaries, layouts, cold weights.

Layers that are measured alone find their weights in the cache, and convert their tensors into the layout of
their kernel and back. In a whole network weights may have been evicted since the last frame, and tensors keep
their layout from one layer of a kind to the next.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record
from framefit.core.latency_table import Correction, Overhead
from framefit.core.model import Layer, TensorInfo

CLASSES: dict[str, tuple[str, ...]] = {
    "convolution": ("Conv",),
    "product": ("MatMul", "Gemm", "Attention"),
    "recurrent": ("LSTM", "GRU", "RNN"),
    "movement": ("Reorder", "Transpose", "Concat", "Reshape", "Resize", "Slice", "Split", "queeze", "Flatten", "Pad"),
    "element": (),
}
"""Class of layers -> parts of their operators' names; the last class is that of all other layers."""
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
    """Terms of one network or segment.

    Attributes:
        boundaries: number between its layers.
        layout_bytes: of tensors between two convolutions or poolings.
        weight_bytes: of all parameters.
        working_bytes: parameters, and the largest layer's tensors.
    """

    boundaries: int
    layout_bytes: int
    weight_bytes: int
    working_bytes: int


def terms_of(model: Launched) -> Terms:
    """Compute the terms of a model whose fused groups are layers."""
    blocked = {
        tensor.name: tensor.bytes for layer in model.layers if keeps_layout(layer.op) for tensor in layer.outputs
    }
    weights = sum(layer.parameter_bytes for layer in model.layers)
    largest = max((_bytes((*layer.inputs, *layer.outputs)) for layer in model.layers), default=0)
    return Terms(
        boundaries=max(len(model.layers) - 1, 0),
        layout_bytes=sum(
            blocked.get(tensor.name, 0) for layer in model.layers if keeps_layout(layer.op) for tensor in layer.inputs
        ),
        weight_bytes=weights,
        working_bytes=weights + largest,
    )


def class_sums(layers: Iterable[Layer], latency_ns: Iterable[float]) -> dict[str, float]:
    """Sums of layers by class: how they use caches, and what they wait for."""
    sums = dict.fromkeys(CLASSES, 0.0)
    for layer, ns in zip(layers, latency_ns, strict=True):
        sums[_class_of(layer.op)] += ns
    return sums


@functools.cache
def _class_of(op: str) -> str:
    return next((name for name, parts in CLASSES.items() if any(part in op for part in parts)), "element")


def correction_ns(
    plain_ns: npt.ArrayLike, terms: Terms, correction: Correction | None, by_class: Mapping[str, float] | None = None
) -> float:
    """Correction of a plain sum of layers, in nanoseconds; it may be negative."""
    if correction is None:
        return 0.0
    cold_bytes = terms.weight_bytes * (terms.working_bytes > correction.cache_bytes)
    return float(
        (correction.scale - 1) * np.asarray(plain_ns, np.float64)
        + correction.launch_ns
        + correction.boundary_ns * terms.boundaries
        + correction.layout_ns_per_byte * terms.layout_bytes
        + correction.cold_ns_per_byte * cold_bytes
        + math.fsum(ratio * (by_class or {}).get(name, 0.0) for name, ratio in correction.class_ratios.items())
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
