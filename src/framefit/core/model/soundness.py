"""What an ONNX file claims, held against what is in it, before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from framefit.errors import InputError

__all__ = ["check_sound", "may_exceed"]

_MOST_NODES = 1_000_000  # once functions are inlined: some hundred times what large networks have
_MOST_IN_BYTE = 8  # elements: none has less than a bit
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
        InputError: with the tensor, the attribute or the function.
        ValueError: a tensor whose data are not of its shape.
    """
    _check_versions(model, where)
    for graph in model.graphs():
        for value in graph.initializers.values():
            _check_tensor(value, where)
    _check_names(model, where)
    _check_attributes(model, where)
    if model.functions:
        _check_functions(model, where)


def _check_versions(model: ir.Model, where: Path) -> None:
    if (version := model.graph.opset_imports.get("", 1)) < 1:
        raise InputError(f"the file asks for opset {version}, which there is not", where=where, remedy=_REMEDY)


def _check_attributes(model: ir.Model, where: Path) -> None:
    """Refuse attributes of another type than their operator has."""
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for nodes in parts:
        known: dict[tuple[str, str], Mapping[str, Any]] = {}
        for node in ir.traversal.RecursiveGraphIterator(nodes):
            key = node.domain, node.op_type
            if key not in known:
                known[key] = _attributes_of(node, nodes.opset_imports.get(node.domain, 1))
            for name, attribute in node.attributes.data.items():
                expected = known[key][name].type.value if name in known[key] else attribute.type.value
                if attribute.type == ir.AttributeType.UNDEFINED or attribute.type.value != expected:
                    told = f"attribute {name!r} of {node.op_type} {node.name!r} has the wrong type"
                    raise InputError(told, where=where, remedy=_REMEDY)


def _attributes_of(node: ir.Node, version: int) -> Mapping[str, Any]:
    """What ONNX says of an operator's attributes; nothing of operators that are not its own."""
    try:
        found: Mapping[str, Any] = onnx.defs.get_schema(node.op_type, version, node.domain).attributes
    except onnx.defs.SchemaError:
        return {}
    return found


def _check_names(model: ir.Model, where: Path) -> None:
    """Refuse a graph that reads what nothing makes."""
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    reads = [(node, value) for node in nodes for value in node.inputs]
    outputs = [(None, value) for graph in model.graphs() for value in graph.outputs]
    for node, value in [*reads, *outputs]:
        if value is None:  # an optional input left out
            continue
        if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
            reader = "an output of a graph" if node is None else f"read by {node.op_type} {node.name!r}"
            raise InputError(f"nothing makes the tensor {value.name!r}, {reader}", where=where, remedy=_REMEDY)


def _check_tensor(value: ir.Value, where: Path) -> None:
    tensor = value.const_value
    if tensor is None or any(not isinstance(size, int) or size < 0 for size in tensor.shape):
        raise InputError(f"the tensor {value.name!r} has no data of its shape", where=where, remedy=_REMEDY)
    if isinstance(tensor, ir.serde.TensorProtoTensor) and tensor.size > _MOST_IN_BYTE * where.stat().st_size:
        raise InputError(f"the tensor {value.name!r} is larger than the file", where=where, remedy=_REMEDY)
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
