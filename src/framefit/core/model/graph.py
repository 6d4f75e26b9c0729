"""Layers: their inputs and outputs, parameters and multiply-accumulates.

Facts of a layer's nodes that determine its cost: shapes, storage types, attributes, bodies, zeros in weights.

A graph's nodes and values as records, each made once, of which layers, cuts and costs are made.

A model and the same model with its nodes grouped share the graph, and thus these records.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record
from framefit.core.latency_table import Value
from framefit.core.model.lazy import ir
from framefit.core.model.loading import dependent_reads, node_inputs

__all__ = ["Attribute"]


class TensorInfo(Record, kw_only=True):
    """A tensor between layers.

    Attributes:
        name: as in the ONNX file.
        dtype: numpy's name ("float32"); "" where it does not hold numbers.
        shape: static sizes, or ``None`` where they depend on the data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def bytes(self) -> int:
        """Size in bytes; 0 if the shape is not known."""
        if self.shape is None or not self.dtype:
            return 0
        return math.prod(self.shape) * _item_bytes(self.dtype)

    @property
    def fixed(self) -> bool:
        """Whether a buffer for it can be made in advance."""
        return self.shape is not None and bool(self.dtype)


@functools.cache
def _item_bytes(dtype: str) -> int:
    return np.dtype(dtype).itemsize  # ml_dtypes, which onnx_ir needs, registers narrow types with numpy


@functools.cache
def _numpy_name(dtype: ir.DataType) -> str:
    """Numpy's name of a type of numbers; "" for other types."""
    return "" if dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED) else str(dtype.numpy().name)


class Layer(Record, kw_only=True):
    """One node of the model, or a group of nodes that the device always fuses.

    Attributes:
        name: name of its last node.
        op: operators in order, joined by "+".
        nodes: names of its nodes, in order.
        inputs: tensors from other layers or the model's inputs, without parameters.
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
    """Sizes of a value; ``None`` if one of them is not known, or there is no value."""
    if value is None or value.shape is None:
        return None
    sizes: list[int] = []
    for size in value.shape.dims:
        if not isinstance(size, int):
            return None
        sizes.append(size)
    return tuple(sizes)


# Operator -> position of its weight; com.microsoft's quantised and fused forms, too.
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
    """Multiply-accumulates of a node, including its subgraphs; 0 if shapes are not known.

    For an ``If`` the branch with the most of them counts, for a ``Loop`` or ``Scan`` its body times the number of
    iterations if that is constant, else once.
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
    """Largest number of iterations of a ``Loop`` or ``Scan``; ``None`` if it depends on the data.

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


Attribute = int | float | str | tuple[int | float | str, ...]
Granularity = Literal["unstructured", "n:m", "channel", "none"]
Mask = npt.NDArray[np.bool_]
Tensors = Callable[["ir.Value"], TensorInfo]


class Operand(TensorInfo, kw_only=True):
    """Input of a node.

    Attributes:
        constant: whether it is the same in every frame.
        stored_dtype: storage type: the type before a ``DequantizeLinear``.
    """

    constant: bool
    stored_dtype: str


class Node(Record, kw_only=True):
    """One operator of a layer, with everything that determines its cost.

    Attributes:
        name: as in the canonical graph.
        op: operator.
        domain: of the operator; "" for ONNX's own.
        inputs: in order; ``None`` for an optional input that is left out.
        outputs: in order.
        attributes: numbers, strings and lists of them; neither tensors nor graphs.
        bodies: nodes of each subgraph that depend on data: branches of an ``If``, the body of a ``Loop`` or ``Scan``.
        iterations: largest number for the body; ``None`` if it depends on the data.
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
    """Make the record of a graph's node.

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


_COMMON_DOMAINS = ("", "ai.onnx", "com.microsoft")  # in which an operator's name identifies it


def configuration(nodes: Iterable[Node]) -> dict[str, Value]:
    """Everything that determines a layer's cost, without names, as key of a latency table.

    Shapes with their storage types of inputs, weights and outputs; kernel, stride, padding, dilation and groups of the
    main operator (the first with a weight, else the first) under these names, its other attributes under ONNX's; those
    of fused operators after "2.Relu." and so on.
    """
    nodes = tuple(nodes)
    main = next((node for node in nodes if _weight(node) is not None), nodes[0])
    made = {output.name for node in nodes for output in node.outputs}
    read = {operand.name: operand for node in nodes for operand in node.inputs if operand is not None}
    outside = [operand for operand in read.values() if operand.name not in made]
    weight = _weight(main)
    facts: dict[str, Value] = {
        "inputs": [_shown(operand) for operand in outside if not operand.constant],
        "weights": [_shown(operand) for operand in outside if operand.constant],
        "outputs": [_shown(output) for output in nodes[-1].outputs],
        "precision": next((o.stored_dtype for o in main.inputs if o is not None), ""),
        "fused": [node.op for node in nodes if node is not main],
    }
    if main.domain not in _COMMON_DOMAINS:
        facts["domain"] = main.domain
    attributes = dict(main.attributes)
    if weight is not None and "Conv" in main.op and weight.shape is not None:
        spatial = len(weight.shape) - 2
        facts |= {
            "kernel": _listed(attributes.pop("kernel_shape", weight.shape[2:])),
            "stride": _listed(attributes.pop("strides", (1,) * spatial)),
            "padding": _listed(attributes.pop("pads", (0,) * 2 * spatial)),
            "dilation": _listed(attributes.pop("dilations", (1,) * spatial)),
            "groups": _listed(attributes.pop("group", 1)),
        }
    for onnx, ours in (("kernel_shape", "kernel"), ("strides", "stride"), ("pads", "padding"), ("group", "groups")):
        if onnx in attributes:
            facts[ours] = _listed(attributes.pop(onnx))
    facts |= {name: _listed(value) for name, value in attributes.items()}
    for index, node in enumerate(nodes, 1):
        if node is not main:
            facts |= {f"{index}.{node.op}.{name}": _listed(value) for name, value in node.attributes.items()}
        for number, body in enumerate(node.bodies):
            if body:
                inner = configuration(body) | {"iterations": node.iterations}
                facts |= {f"{index}.{node.op}.{number}.{name}": value for name, value in inner.items()}
    return facts


def weight_masks(nodes: Iterable[ir.Node], dependent: Collection[ir.Value]) -> list[Mask]:
    """Where the constant weights of products are not zero, without subgraphs.

    Returns:
        For each weight an array whose first axis counts outputs and whose last one inputs.
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
    """Part of the weights whose zeros count for hardware of a granularity.

    Args:
        masks: see :func:`weight_masks`.
        granularity: "unstructured": each zero; "channel": those of outputs without any weight;
            "n:m": 1 - n / m if no m neighbouring inputs hold more than n weights, else 0; "none": 0.
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
    """The number that represents 0 in a node's integer weight."""
    index = _ZERO_POINTS.get(node.op_type)
    value = node.inputs[index] if index is not None and index < len(node.inputs) else None
    if value is None or value.const_value is None:
        return np.zeros(())
    zero = value.const_value.numpy()
    by_output = node.op_type in ("QLinearConv", "ConvInteger") and zero.size > 1
    return zero.reshape(-1, 1, 1, 1) if by_output else zero


def _nonzero(value: ir.Value, zero: npt.NDArray[Any]) -> Mask | None:
    """Where a constant is not ``zero``, through nodes that reshape it; ``None`` if that is not known."""
    if value.const_value is not None:
        array = value.const_value.numpy()
        try:
            return np.asarray(array != np.asarray(zero, array.dtype))
        except ValueError:  # the zero point does not broadcast
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
    """Reorder axes so that the first counts outputs and the last one inputs."""
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


class GraphIndex:
    """Facts of a graph that does not change any more, each computed once.

    Args:
        graph: canonical.

    Attributes:
        digest: of the model, once it was asked for.
    """

    digest: str | None = None

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._tensors: dict[ir.Value, TensorInfo] = {}
        self._nodes: dict[ir.Node, Node] = {}
        self._layers: dict[tuple[ir.Node, ...], Layer] = {}
        self._macs: dict[ir.Node, int] = {}
        self._constants: dict[ir.Value, tuple[int, int]] = {}

    @cached_property
    def reads(self) -> dict[ir.Node, list[ir.Value]]:
        """Nodes that depend on an input of the graph, in order, with the values read; others are constants."""
        return dependent_reads(self._graph)

    @cached_property
    def dependent(self) -> set[ir.Value]:
        """Values that change from frame to frame."""
        return {*self._graph.inputs, *(value for node in self.reads for value in node.outputs)}

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """Positions, among the nodes of ``reads``, of a node that makes a value and one that reads it."""
        producer = {value: index for index, node in enumerate(self.reads) for value in node.outputs}
        return [
            (producer[value], index)
            for index, values in enumerate(self.reads.values())
            for value in values
            if value in producer
        ]

    @cached_property
    def parameters(self) -> int:
        """Number of weights, each counted once."""
        return sum(self._constant(value)[0] for value in self._graph.initializers.values())

    @cached_property
    def _readers(self) -> dict[ir.Value, list[ir.Node]]:
        readers: dict[ir.Value, list[ir.Node]] = {}
        for node, values in self.reads.items():
            for value in values:
                readers.setdefault(value, []).append(node)
        return readers

    def tensor(self, value: ir.Value) -> TensorInfo:
        """The record of a value, of the graph or of one inside it."""
        tensor = self._tensors.get(value)
        if tensor is None:
            tensor = self._tensors[value] = tensor_info(value)
        return tensor

    def node(self, node: ir.Node) -> Node:
        """The record of a node of the graph."""
        described = self._nodes.get(node)
        if described is None:
            described = self._nodes[node] = describe(node, self.dependent, self.tensor)
        return described

    def layer(self, nodes: Sequence[ir.Node]) -> Layer:
        """Make one layer of nodes of ``reads``, in order."""
        key = tuple(nodes)
        layer = self._layers.get(key)
        if layer is None:
            layer = self._layers[key] = self._layer(key)
        return layer

    def _layer(self, nodes: tuple[ir.Node, ...]) -> Layer:
        inside = set(nodes)
        made = dict.fromkeys(value for node in nodes for value in node.outputs)
        reads = dict.fromkeys(value for node in nodes for value in self.reads[node] if value not in made)
        constants = [
            self._constant(value) for value in self._initializers_behind(v for v in reads if v not in self.dependent)
        ]
        outputs = [
            value for value in made if value.is_graph_output() or not inside.issuperset(self._readers.get(value, ()))
        ]
        return Layer(
            name=str(nodes[-1].name),
            op="+".join([node.op_type for node in nodes]),
            nodes=tuple([str(node.name) for node in nodes]),
            inputs=tuple([self.tensor(value) for value in reads if value in self.dependent]),
            outputs=tuple([self.tensor(value) for value in outputs]),
            parameters=sum([elements for elements, _ in constants]),
            parameter_bytes=sum([size for _, size in constants]),
            macs=sum([self._node_macs(node) for node in nodes]),
        )

    def _node_macs(self, node: ir.Node) -> int:
        macs = self._macs.get(node)
        if macs is None:
            macs = self._macs[node] = node_macs(node)
        return macs

    def _constant(self, value: ir.Value) -> tuple[int, int]:
        """Number of elements and bytes of an initializer."""
        counts = self._constants.get(value)
        if counts is None:
            tensor = value.const_value
            counts = self._constants[value] = (0, 0) if tensor is None else (tensor.size, tensor.nbytes)
        return counts

    def _initializers_behind(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        """Initializers from which constant values are computed, without duplicates."""
        initializers: dict[ir.Value, None] = {}
        stack = list(values)
        while stack:
            value = stack.pop()
            producer = value.producer()
            if producer is not None:
                stack += [source for source in node_inputs(producer, self._graph) if source not in self.dependent]
            elif value.const_value is not None:
                initializers[value] = None
        return list(initializers)
