"""What a cost needs to know of a layer's nodes: shapes, stored types, attributes, bodies, zeros in weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from framefit.core.files import Record
from framefit.core.latency_table import Value
from framefit.core.model.layers import WEIGHT_INPUT, TensorInfo, iterations

__all__ = ["Attribute", "Granularity", "Node", "Operand", "configuration", "describe", "weight_masks", "zeros_ratio"]

Attribute = int | float | str | tuple[int | float | str, ...]
Granularity = Literal["unstructured", "n:m", "channel", "none"]
Mask = npt.NDArray[np.bool_]
Tensors = Callable[[ir.Value], TensorInfo]


class Operand(TensorInfo, kw_only=True):
    """An input of a node.

    Attributes:
        constant: whether it is the same in every frame.
        stored_dtype: how it lies in memory: the type before a ``DequantizeLinear``.
    """

    constant: bool
    stored_dtype: str


class Node(Record, kw_only=True):
    """One operator of a layer, with what its cost depends on.

    Attributes:
        name: as in the canonical graph.
        op: operator.
        domain: of the operator; "" is ONNX's own.
        inputs: in order; ``None`` for an optional one that is left out.
        outputs: in order.
        attributes: numbers, strings and lists of them; no tensors, no graphs.
        bodies: nodes of each subgraph that depend on data: branches of an ``If``, the body of a ``Loop`` or ``Scan``.
        iterations: of the body, at most; ``None`` where they depend on the data.
    """

    name: str
    op: str
    domain: str = ""
    inputs: tuple[Operand | None, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    attributes: dict[str, Attribute] = {}
    bodies: tuple[tuple[Node, ...], ...] = ()
    iterations: int | None = 1


def describe(node: ir.Node, dependent: Collection[ir.Value], tensor: Tensors) -> Node:
    """The record of a graph's node.

    Args:
        node: of the canonical graph, or of a subgraph.
        dependent: values that change from frame to frame.
        tensor: the record of a value.
    """
    attributes: dict[str, Attribute] = {}
    bodies = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            bodies.append(_body(attribute.as_graph(), dependent, tensor))
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies += [_body(graph, dependent, tensor) for graph in attribute.as_graphs()]
        elif isinstance(attribute.value, int | float | str):
            attributes[attribute.name] = attribute.value
        elif attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
            attributes[attribute.name] = tuple(attribute.value)
    return Node(
        name=str(node.name),
        op=node.op_type,
        domain=node.domain,
        inputs=tuple(None if value is None else _operand(value, dependent, tensor) for value in node.inputs),
        outputs=tuple(tensor(value) for value in node.outputs),
        attributes=attributes,
        bodies=tuple(bodies),
        iterations=iterations(node),
    )


_COMMON_DOMAINS = ("", "ai.onnx", "com.microsoft")  # in which an operator's name tells what it is


def configuration(nodes: Iterable[Node]) -> dict[str, Value]:
    """What determines a layer's cost, as a latency table's key; no names.

    Shapes with their stored types of inputs, weights and outputs; kernel, stride, padding,
    dilation and groups of the main operator (the first with a weight, else the first) under
    these names, its other attributes under ONNX's; those of fused operators after "2.Relu."
    and so on.
    """
    nodes = tuple(nodes)
    main = next((node for node in nodes if _weight(node) is not None), nodes[0])
    made = {output.name for node in nodes for output in node.outputs}
    read = {operand.name: operand for node in nodes for operand in node.inputs if operand is not None}
    outside = [operand for operand in read.values() if operand.name not in made]
    weight = _weight(main)
    found: dict[str, Value] = {
        "inputs": [_shown(operand) for operand in outside if not operand.constant],
        "weights": [_shown(operand) for operand in outside if operand.constant],
        "outputs": [_shown(output) for output in nodes[-1].outputs],
        "precision": next((o.stored_dtype for o in main.inputs if o is not None), ""),
        "fused": [node.op for node in nodes if node is not main],
    }
    if main.domain not in _COMMON_DOMAINS:
        found["domain"] = main.domain
    attributes = dict(main.attributes)
    if weight is not None and "Conv" in main.op and weight.shape is not None:
        spatial = len(weight.shape) - 2
        found |= {
            "kernel": _listed(attributes.pop("kernel_shape", weight.shape[2:])),
            "stride": _listed(attributes.pop("strides", (1,) * spatial)),
            "padding": _listed(attributes.pop("pads", (0,) * 2 * spatial)),
            "dilation": _listed(attributes.pop("dilations", (1,) * spatial)),
            "groups": _listed(attributes.pop("group", 1)),
        }
    for onnx, ours in (("kernel_shape", "kernel"), ("strides", "stride"), ("pads", "padding"), ("group", "groups")):
        if onnx in attributes:
            found[ours] = _listed(attributes.pop(onnx))
    found |= {name: _listed(value) for name, value in attributes.items()}
    for index, node in enumerate(nodes, 1):
        if node is not main:
            found |= {f"{index}.{node.op}.{name}": _listed(value) for name, value in node.attributes.items()}
        for number, body in enumerate(node.bodies):
            if body:
                inner = configuration(body) | {"iterations": node.iterations}
                found |= {f"{index}.{node.op}.{number}.{name}": value for name, value in inner.items()}
    return found


def weight_masks(nodes: Iterable[ir.Node], dependent: Collection[ir.Value]) -> list[Mask]:
    """Where the constant weights of products are not zero, subgraphs not included.

    Returns:
        For each weight an array of which the first axis counts outputs and the last one inputs.
    """
    masks = []
    for node in nodes:
        index = WEIGHT_INPUT.get(node.op_type)
        if index is None or index >= len(node.inputs):
            continue
        places = (index, index + 1) if node.op_type in ("LSTM", "GRU", "RNN") else (index,)
        for place in places:
            value = node.inputs[place] if place < len(node.inputs) else None
            if value is None or value in dependent:
                continue
            zero = _zero_point(node)
            mask = _nonzero(value, zero)
            if mask is not None:
                masks.append(_outputs_first(mask, node))
    return masks


def zeros_ratio(masks: Iterable[Mask], granularity: Granularity = "unstructured", n: int = 1, m: int = 1) -> float:
    """Zeros of these weights that count for hardware of a granularity, over all elements.

    Args:
        masks: see :func:`weight_masks`.
        granularity: "unstructured": each zero; "channel": those of outputs without any weight;
            "n:m": 1 - n / m where no m neighbouring inputs hold more than n weights, else 0; "none": 0.
        n: of "n:m".
        m: of "n:m".
    """
    masks = [mask for mask in masks if mask.size]
    elements = sum(mask.size for mask in masks)
    if not elements or granularity == "none":
        return 0.0
    if granularity == "n:m":
        return 1 - n / m if all(_at_most(mask, n, m) for mask in masks) else 0.0
    if granularity == "channel":
        empty = sum(mask[0].size * int((~mask.reshape(len(mask), -1).any(axis=1)).sum()) for mask in masks)
        return float(empty / elements)
    return 1 - sum(int(np.count_nonzero(mask)) for mask in masks) / elements


def _at_most(mask: Mask, n: int, m: int) -> bool:
    short = -mask.shape[-1] % m
    padded = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, short)])
    return bool((padded.reshape(-1, m).sum(axis=1) <= n).all())


def _operand(value: ir.Value, dependent: Collection[ir.Value], tensor: Tensors) -> Operand:
    info = tensor(value)
    stored, source = info.dtype, value
    while (producer := source.producer()) is not None and producer.inputs and producer.inputs[0] is not None:
        quantised = producer.op_type == "DequantizeLinear"
        if not quantised and (source in dependent or producer.op_type not in ("Transpose", "Reshape", "Identity")):
            break
        source = producer.inputs[0]
        stored = tensor(source).dtype or stored
        if quantised:
            break
    return Operand(
        name=info.name, dtype=info.dtype, shape=info.shape, constant=value not in dependent, stored_dtype=stored
    )


def _body(graph: ir.Graph, dependent: Collection[ir.Value], tensor: Tensors) -> tuple[Node, ...]:
    known = set(dependent) | set(graph.inputs)
    nodes = []
    for node in graph:
        if not known.isdisjoint(_all_reads(node)):
            known.update(node.outputs)
            nodes.append(describe(node, known, tensor))
    return tuple(nodes)


def _all_reads(node: ir.Node) -> set[ir.Value]:
    reads = {value for value in node.inputs if value is not None}
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in ir.traversal.RecursiveGraphIterator(attribute.as_graph()):
                reads.update(value for value in inner.inputs if value is not None)
            reads.update(attribute.as_graph().outputs)
    return reads


def _weight(node: Node) -> Operand | None:
    index = WEIGHT_INPUT.get(node.op)
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def _shown(tensor: TensorInfo) -> str:
    shape = "?" if tensor.shape is None else "x".join(map(str, tensor.shape))
    return f"{shape} {tensor.stored_dtype if isinstance(tensor, Operand) else tensor.dtype}"


def _listed(value: Attribute) -> Value:
    return list(value) if isinstance(value, tuple) else value


_ZERO_POINTS = {"QLinearConv": 5, "ConvInteger": 3, "QLinearMatMul": 5, "MatMulInteger": 3, "QGemm": 5}


def _zero_point(node: ir.Node) -> npt.NDArray[Any]:
    """The number that stands for 0 in a node's integer weight."""
    index = _ZERO_POINTS.get(node.op_type)
    value = node.inputs[index] if index is not None and index < len(node.inputs) else None
    if value is None or value.const_value is None:
        return np.zeros(())
    zero = value.const_value.numpy()
    by_output = node.op_type in ("QLinearConv", "ConvInteger") and zero.size > 1
    return zero.reshape(-1, 1, 1, 1) if by_output else zero


def _nonzero(value: ir.Value, zero: npt.NDArray[Any]) -> Mask | None:
    """Where a constant is not ``zero``, through what brings it into form; ``None`` where that is not known."""
    if value.const_value is not None:
        array = value.const_value.numpy()
        try:
            return np.asarray(array != np.asarray(zero, array.dtype))
        except ValueError:  # a zero point that does not broadcast
            return None
    node = value.producer()
    source = node.inputs[0] if node is not None and node.inputs else None
    if node is None or source is None:
        return None
    if node.op_type in ("Identity", "Cast"):
        return _nonzero(source, zero)
    if node.op_type == "Transpose":
        mask = _nonzero(source, zero)
        order = node.attributes["perm"].as_ints() if "perm" in node.attributes else None
        return None if mask is None else mask.transpose(order)
    if node.op_type == "DequantizeLinear":
        point = node.inputs[2].const_value if len(node.inputs) > 2 and node.inputs[2] is not None else None
        at = np.zeros(()) if point is None else point.numpy()
        if at.ndim == 1 and source.shape is not None:
            axis = node.attributes.get_int("axis", 1) % len(source.shape)
            at = at.reshape([-1 if index == axis else 1 for index in range(len(source.shape))])
        return _nonzero(source, at)
    return None


def _outputs_first(mask: Mask, node: ir.Node) -> Mask:
    """Axes in an order of which the first counts outputs and the last one inputs."""
    op = node.op_type
    if mask.ndim < 2:
        return mask.reshape(1, -1)
    if op == "ConvTranspose":  # inputs, outputs / groups, kernel
        return np.moveaxis(mask, 0, -1)
    if "Conv" in op:
        return mask if op.startswith("Nhwc") else np.moveaxis(mask, 1, -1)
    if op in ("LSTM", "GRU", "RNN"):  # directions, gates * hidden, features
        return mask.reshape(math.prod(mask.shape[:2]), -1)
    if op in ("Gemm", "FusedGemm", "QGemm", "FusedMatMul") and node.attributes.get_int("transB", 0) == 1:
        return mask
    return np.moveaxis(mask, -1, 0) if mask.ndim == 2 else np.swapaxes(mask, -1, -2).reshape(-1, mask.shape[-2])
