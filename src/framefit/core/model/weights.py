"""All nodes and constants of a model as data, and the same model with other weights.

Training, pruning and trees need every initializer as an array under its ONNX name, and a way back that keeps
the names of nodes and tensors.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model.batch import constant, free_batch_of, repeat_constants, unbind_batch
from framefit.core.model.graph import GraphIndex, Node, describe, static_shape
from framefit.core.model.lazy import ir, passes
from framefit.core.model.loading import canonical, fold_constants, parsed
from framefit.core.model.model import Model
from framefit.errors import InputError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Listing:
    """Nodes and initializers of a model.

    Attributes:
        nodes: in topological order, including those that compute constants without a known value.
        arrays: initializers by name. Exporters write equal ones once: a copy (``Identity``) is an array of its own,
            and so is a vector for each node that reads it.
        opset: version of ONNX's own operators.
    """

    nodes: tuple[Node, ...]
    arrays: dict[str, Array]
    opset: int


def listing(model: Model) -> Listing:
    """List a model's nodes and initializers; ``Reshape`` and ``Expand`` work with any batch."""
    graph = _opened(model).graph
    index = GraphIndex(graph)
    nodes = tuple(describe(node, index.dependent, index.tensor) for node in graph)
    return Listing(nodes, {name: _array(value) for name, value in graph.initializers.items()}, graph.opset_imports[""])


def with_weights(model: Model, arrays: Mapping[str, Array]) -> Model:
    """Replace some initializers of a graph.

    Args:
        model: it is not changed.
        arrays: initializer -> new values, cast to its type. The shape may differ, if channels are removed for
            example: groups of a convolution follow its weight, of which whole groups may be gone.

    Raises:
        InputError: there is no such initializer, or shapes do not match each other.
    """
    graph = _opened(model)
    known = graph.graph.initializers
    reshaped = False
    for name, array in arrays.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InputError(
                f"no initializer {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                where=model.name,
                remedy="name one that listing(model).arrays has",
            )
        if np.shape(array) != static_shape(known[name]):
            _follow(known[name], array)
            reshaped = True
        _set(known[name], array)
    return _rebuilt(graph, model, reshaped=reshaped)


def folded(model: Model) -> Model:
    """Fold batch normalisations into the convolution or ``Gemm`` before them, if nothing else reads its output.

    The other nodes keep their names; the output tensor of a folded node keeps its name, too.
    """
    graph = _opened(model)
    for node in list(graph.graph):
        source = node.inputs[0] if node.op_type == "BatchNormalization" and len(node.outputs) == 1 else None
        before = source.producer() if source is not None else None
        if source is None or before is None or source.is_graph_output() or len(source.uses()) != 1:
            continue
        if before.op_type in _OUTPUT_AXIS and _all_known(node.inputs[1:]) and _all_known(before.inputs[1:]):
            _fold_norm(graph.graph, before, node)
    passes.RemoveUnusedNodesPass()(graph)
    return _rebuilt(graph, model)


def free_batch(model: Model) -> bytes:
    """Convert to an ONNX file with a dynamic batch.

    Args:
        model: its inputs' leading dimension is the batch.

    Raises:
        UnsupportedError: constants of the graph fix the batch.
    """
    graph = _opened(model)
    free_batch_of(graph)
    return bytes(ir.to_proto(graph).SerializeToString(deterministic=True))


def rebatched(model: Model, batch: int) -> Model:
    """Make the same model for another batch.

    The batch dimension of a reshaped tensor is only unambiguous if no other size equals it: a file with a dynamic batch
    that is merged with other axes is best loaded with a batch such as 13, and then rebatched.

    Args:
        model: its inputs' leading dimension is the batch.
        batch: at least 1.
    """
    graph = _opened(model)
    if batch > 1:
        repeat_constants(graph.graph)
    for value in graph.graph.inputs:
        shape = static_shape(value)
        if shape:
            value.shape = ir.Shape((batch, *shape[1:]))
    return _rebuilt(graph, model, reshaped=True)


_OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0}  # of the weight; for Gemm with transB


def _opened(model: Model) -> ir.Model:
    """A copy of the graph that may be changed: constants are folded, reshapes keep any batch."""
    graph = parsed(model.to_bytes())
    fold_constants(graph)
    unbind_batch(graph.graph)
    _give_each_its_own(graph.graph)
    passes.RemoveUnusedNodesPass()(graph)
    return graph


def _give_each_its_own(graph: ir.Graph) -> None:
    """Copy vectors that several nodes read, biases of zeros for example, in place: each may be trained or shortened."""
    for value in list(graph.initializers.values()):
        shape, others = static_shape(value), list(value.uses())[1:]
        if others and shape is not None and len(shape) == 1 < shape[0] and _array(value).dtype.kind == "f":
            for node, index in others:
                if node.graph is graph:
                    node.replace_input_with(index, constant(graph, f"{value.name}_of_{node.name}", _array(value)))


def _rebuilt(graph: ir.Model, model: Model, *, reshaped: bool = False) -> Model:
    if reshaped:  # old shapes would remain for values whose new ones cannot be inferred
        for value in [value for node in graph.graph for value in node.outputs]:
            value.shape = None
    try:
        canonical(graph, {}, {}, model.name)
    except (ValueError, RuntimeError, KeyError, IndexError, TypeError) as error:
        raise InputError(f"these weights do not match each other: {error}", where=model.name) from error
    made = Model(graph, name=model.name, defaulted_dims=model.defaulted_dims, internal_tensors=model.internal_tensors)
    before = {node.name: node for nodes in model.nodes for node in nodes}
    for node in (node for nodes in made.nodes for node in nodes):
        unknown = any(output.shape is None for output in node.outputs)
        if not _fits(node) or (unknown and all(output.shape is not None for output in before[node.name].outputs)):
            raise InputError(
                "with these weights its inputs do not match each other",
                where=f"{model.name}: {node.op} {node.name!r}",
                remedy="remove a channel from every weight that makes or reads it",
            )
    return made


def _fits(node: Node) -> bool:
    """Whether channels agree where ONNX's shape inference does not check it."""
    shapes = [None if operand is None else operand.shape for operand in node.inputs]
    data, weight = (*shapes, None, None)[:2]
    if data is None or weight is None or node.op not in ("Conv", "ConvTranspose", "BatchNormalization"):
        return True
    groups = node.attributes.get("group", 1)
    assert isinstance(groups, int)
    if node.op == "ConvTranspose":
        return data[1] == weight[0]
    if node.op == "BatchNormalization":
        return all(shape is None or shape == data[1:2] for shape in shapes[1:])
    bias = (*shapes, None)[2]
    return data[1] == weight[1] * groups and weight[0] % groups == 0 and (bias is None or bias == weight[:1])


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    return np.array(value.const_value.numpy())


def _all_known(values: Any) -> bool:
    return all(value is None or value.const_value is not None for value in values)


def _set(value: ir.Value, array: Array) -> None:
    dtype = value.dtype.numpy() if value.dtype is not None else np.asarray(array).dtype
    cast = np.array(array, dtype, order="C")
    value.const_value, value.shape = ir.tensor(cast, name=value.name), ir.Shape(cast.shape)


def _follow(weight: ir.Value, array: Array) -> None:
    """Adapt the groups of convolutions to a weight with fewer outputs: whole groups are gone."""
    old = static_shape(weight)
    for node, index in weight.uses():
        groups = node.attributes.get_int("group", 1)
        if old and node.op_type == "Conv" and index == 1 and groups > 1 and not groups * len(array) % old[0]:
            node.attributes["group"] = ir.AttrInt64("group", groups * len(array) // old[0])


def _fold_norm(graph: ir.Graph, before: ir.Node, norm: ir.Node) -> None:
    """Fold y = scale (x - mean) / sqrt(variance + epsilon) + shift into the weight and bias that make x."""
    weight, old_bias = before.inputs[1], before.inputs[2] if len(before.inputs) > 2 else None
    assert weight is not None
    array, attributes = _array(weight), before.attributes
    scale, shift, mean, variance = (_array(value).astype(np.float64) for value in norm.inputs[1:] if value is not None)
    factor = scale / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
    axis = 1 - attributes.get_int("transB", 0) if before.op_type == "Gemm" else _OUTPUT_AXIS[before.op_type]
    scaled = any(attributes.get_float(name, 1.0) != 1 for name in ("alpha", "beta"))
    if scaled or array.shape[axis] != len(factor):  # the latter for a transposed convolution of several groups
        return
    bias = (
        np.zeros(len(factor))
        if old_bias is None
        else np.broadcast_to(_array(old_bias).astype(np.float64), factor.shape)
    )
    stretched = factor.reshape([-1 if place == axis else 1 for place in range(array.ndim)])
    before.resize_inputs(3)
    before.replace_input_with(1, constant(graph, f"{weight.name}_folded", (array * stretched).astype(array.dtype)))
    stem = f"{weight.name}_bias" if old_bias is None else f"{old_bias.name}_folded"
    before.replace_input_with(2, constant(graph, stem, ((bias - mean) * factor + shift).astype(array.dtype)))
    old, new = norm.outputs[0], before.outputs[0]
    name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(norm, safe=True)
    new.name = name
