"""What an ONNX file claims, held against what is in it, before anything is made of it."""

from __future__ import annotations

import math
from pathlib import Path

import onnx_ir as ir

from framefit.errors import InputError

__all__ = ["check_sound", "may_exceed"]

_MOST_NODES = 1_000_000  # once functions are inlined: some hundred times what large networks have
_REMEDY = "export the model again"
_GROWING = {
    "AffineGrid", "AveragePool", "BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "Conv",
    "ConvTranspose", "DFT", "Expand", "EyeLike", "HammingWindow", "HannWindow", "LpPool", "MaxPool", "MaxUnpool",
    "MelWeightMatrix", "OneHot", "Pad", "Range", "Resize", "RoiAlign", "STFT", "Tile", "Upsample",
}  # fmt: skip
"""Operators whose outputs may be larger than all that they read."""


def check_sound(model: ir.Model, where: Path) -> None:
    """Refuse what cannot be computed: tensors that nothing makes, or that are not there, and functions without end.

    Raises:
        InputError: with the tensor or the function.
        ValueError: a tensor whose data are not of its shape.
    """
    _check_names(model.graph, where)
    for graph in model.graphs():
        for value in graph.initializers.values():
            _check_tensor(value, where)
    if model.functions:
        _check_functions(model, where)


def _check_names(graph: ir.Graph, where: Path) -> None:
    """Refuse a graph that reads what nothing makes."""
    nodes = ir.traversal.RecursiveGraphIterator(graph)
    reads = [(node, value) for node in nodes for value in node.inputs]
    for node, value in [*reads, *((None, value) for value in graph.outputs)]:
        if value is None:  # an optional input left out
            continue
        if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
            reader = "an output of the graph" if node is None else f"read by {node.op_type} {node.name!r}"
            raise InputError(f"nothing makes the tensor {value.name!r}, {reader}", where=where, remedy=_REMEDY)


def _check_tensor(value: ir.Value, where: Path) -> None:
    tensor = value.const_value
    if tensor is None or any(not isinstance(size, int) or size < 0 for size in tensor.shape):
        raise InputError(f"the tensor {value.name!r} has no data of its shape", where=where, remedy=_REMEDY)
    tensor.numpy()  # which raises where there are fewer or more of them


def _check_functions(model: ir.Model, where: Path) -> None:
    """Refuse functions that call themselves, or that make too many nodes of few."""
    sizes: dict[ir.OperatorIdentifier, int] = {}

    def size(nodes: ir.Function | ir.Graph, callers: tuple[ir.OperatorIdentifier, ...]) -> int:
        total = 0
        for node in ir.traversal.RecursiveGraphIterator(nodes):
            called = node.op_identifier()
            if called in callers:
                raise InputError(f"the function {called[1]!r} calls itself", where=where, remedy=_REMEDY)
            if called in model.functions and called not in sizes:
                sizes[called] = size(model.functions[called], (*callers, called))
            total += sizes.get(called, 1)
        return total

    if (count := size(model.graph, ())) > _MOST_NODES:
        raise InputError(
            f"its functions stand for {count} nodes; at most {_MOST_NODES} are read",
            where=where,
            remedy="export the model without functions",
        )


def may_exceed(node: ir.Node, elements: int) -> bool:
    """Whether an output of a node may have more elements; where its size is not known, whatever may grow does."""
    for value in node.outputs:
        sizes = [size for size in value.shape or () if isinstance(size, int)]
        known = value.shape is not None and len(sizes) == len(value.shape)
        if math.prod(sizes) > elements if known else node.op_type in _GROWING:
            return True
    return False
