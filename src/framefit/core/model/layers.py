"""Layers: what they read and write, their parameters and multiply-accumulates."""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx_ir as ir

from framefit.core.files import Record

__all__ = ["WEIGHT_INPUT", "Layer", "TensorInfo", "iterations", "node_macs", "static_shape", "tensor_info"]


class TensorInfo(Record, kw_only=True):
    """A tensor between layers.

    Attributes:
        name: as in the ONNX file.
        dtype: numpy's name ("float32"); "" where it is no tensor of numbers.
        shape: static sizes, or ``None`` where they depend on the data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def bytes(self) -> int:
        """Size in bytes; 0 where the shape is not known."""
        if self.shape is None or not self.dtype:
            return 0
        return math.prod(self.shape) * _item_bytes(self.dtype)

    @property
    def fixed(self) -> bool:
        """Whether a buffer for it can be made ahead of time."""
        return self.shape is not None and bool(self.dtype)


@functools.cache
def _item_bytes(dtype: str) -> int:
    return np.dtype(dtype).itemsize  # ml_dtypes, which onnx_ir brings along, tells numpy of the narrow ones


@functools.cache
def _numpy_name(dtype: ir.DataType) -> str:
    """Of numbers; "" of what is none."""
    return "" if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) else str(dtype.numpy().name)


class Layer(Record, kw_only=True):
    """One node of the model, or a group of nodes that the device always fuses.

    Attributes:
        name: name of its last node.
        op: operators in order, joined by "+".
        nodes: names of its nodes, in order.
        inputs: tensors from other layers or the model's inputs; no parameters.
        outputs: tensors that other layers or the model's outputs read.
        parameters: number of constant elements.
        macs: multiply-accumulates; 0 for operators that have none.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    parameters: int
    parameter_bytes: int
    macs: int


def tensor_info(value: ir.Value) -> TensorInfo:
    """The record of a graph value; sequences, optionals and strings have no dtype."""
    kind = value.type
    dtype = _numpy_name(kind.dtype) if isinstance(kind, ir.TensorType) else ""
    return TensorInfo(name=str(value.name), dtype=dtype, shape=static_shape(value))


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Sizes of a value; ``None`` where one of them is not known, or there is no value."""
    if value is None or value.shape is None:
        return None
    sizes: list[int] = []
    for size in value.shape.dims:
        if not isinstance(size, int):
            return None
        sizes.append(size)
    return tuple(sizes)


# Operator -> position of its weight; com.microsoft's quantised and fused forms beside the standard ones.
_CONVOLUTIONS = {"Conv": 1, "FusedConv": 1, "NhwcConv": 1, "ConvInteger": 1, "QLinearConv": 3, "NhwcFusedConv": 1}
_PRODUCTS = {
    "MatMul": 1,
    "FusedMatMul": 1,
    "MatMulInteger": 1,
    "DynamicQuantizeMatMul": 1,
    "MatMulIntegerToFloat": 1,
    "QLinearMatMul": 3,
    "Gemm": 1,
    "FusedGemm": 1,
    "QGemm": 3,
}
_RECURRENT_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

_ATTENTION = ("Attention", "MultiHeadAttention")

WEIGHT_INPUT = _CONVOLUTIONS | _PRODUCTS | dict.fromkeys((*_RECURRENT_GATES, "ConvTranspose"), 1)
"""Operator -> position of its weight among its inputs; a recurrent one's second matrix follows it."""


def node_macs(node: ir.Node) -> int:
    """Multiply-accumulates of a node, its subgraphs included; 0 where shapes are not known.

    An ``If`` counts the branch with the most of them, whichever is taken, a ``Loop`` or ``Scan``
    its body once an iteration where the number of iterations is constant, else once.
    """
    op = node.op_type
    inputs = [static_shape(value) for value in node.inputs]
    output = static_shape(node.outputs[0]) if node.outputs else None
    if op in _CONVOLUTIONS and output is not None and (weight := _at(inputs, _CONVOLUTIONS[op])):
        return math.prod(output) * math.prod(weight[1:])
    if op == "ConvTranspose" and (source := _at(inputs, 0)) and (weight := _at(inputs, 1)):
        return math.prod(source) * math.prod(weight[1:])
    if op in _PRODUCTS and output is not None and (first := _at(inputs, 0)):
        transposed = node.attributes.get_int("transA", 0)
        return math.prod(output) * first[0 if transposed else -1]
    if op == "Einsum" and all(inputs):
        return _einsum_macs(node, [sizes for sizes in inputs if sizes])
    if op in _RECURRENT_GATES and (source := _at(inputs, 0)) and (weight := _at(inputs, 1)):
        hidden = node.attributes.get_int("hidden_size", weight[1] // _RECURRENT_GATES[op])
        gates = weight[0] * _RECURRENT_GATES[op] * hidden  # weight: directions x gates * hidden x features
        return source[0] * source[1] * gates * (weight[2] + hidden)
    if op in _ATTENTION and (query := _at(inputs, 0)) and (key := _at(inputs, 1)):
        if op == "Attention" and node.domain == "com.microsoft":  # key: one weight for query, key and value
            width = key[1] // 3
            return math.prod(query) * key[1] + 2 * query[0] * query[1] ** 2 * width
        return math.prod(query) * key[-2] + math.prod(query[:-1]) * key[-2] * (_at(inputs, 2) or query)[-1]
    branches = [
        sum(node_macs(inner) for inner in subgraph)
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH
        for subgraph in [attribute.as_graph()]
    ]
    if not branches:
        return 0
    count = iterations(node)
    return max(branches) * (1 if count is None else count)


def _at(sizes: list[tuple[int, ...] | None], index: int) -> tuple[int, ...] | None:
    return sizes[index] if index < len(sizes) else None


def iterations(node: ir.Node) -> int | None:
    """How often a ``Loop`` or ``Scan`` runs its body at most; ``None`` where that depends on the data.

    Other nodes run once.
    """
    if node.op_type == "Loop":
        count = node.inputs[0].const_value if node.inputs and node.inputs[0] is not None else None
        return max(int(count.numpy().item()), 0) if count is not None and count.size == 1 else None
    if node.op_type == "Scan":
        scanned = node.attributes.get_int("num_scan_inputs", 0)
        sizes = static_shape(node.inputs[-1]) if scanned else None
        return sizes[0] if sizes else None
    return 1


def _einsum_macs(node: ir.Node, inputs: list[tuple[int, ...]]) -> int:
    terms = node.attributes.get_string("equation", "").split("->")[0].replace(" ", "").split(",")
    extent: dict[str, int] = {}
    for term, sizes in zip(terms, inputs, strict=False):
        letters = term.replace("...", "")
        extent |= dict(zip(reversed(letters), reversed(sizes), strict=False))
        for position, size in enumerate(sizes[: len(sizes) - len(letters)]):
            extent[f".{position}"] = max(size, extent.get(f".{position}", 1))
    return math.prod(extent.values())
