"""The batch of a graph: its place in each tensor, and files in which it is dynamic.

A :class:`~framefit.core.model.model.Model` has static shapes. Training and evaluation run many examples at once, and
users' files have a dynamic batch: constant shapes must not fix it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.model.graph import static_shape
from framefit.core.model.lazy import ir
from framefit.core.model.loading import infer
from framefit.errors import UnsupportedError

__all__: list[str] = []


class _Place(NamedTuple):
    """Place of the batch in a tensor.

    Attributes:
        axis: the axis that holds it.
        outer: number of elements of the same axis within which it repeats: 1, or the size of what was merged before it.
    """

    axis: int
    outer: int = 1


def unbind_batch(graph: ir.Graph) -> dict[ir.Value, _Place]:
    """Rewrite the targets of ``Reshape`` and ``Expand`` so that they keep any batch, in place.

    The batch is the leading dimension of the inputs; it is traced through each node. A constant that is repeated
    for each example and joined to them, such as a class token, is kept once.

    Args:
        graph: canonical, shapes inferred, constants folded.

    Returns:
        Place of the batch in the values to which it was traced.
    """
    places = {value: _Place(0) for value in graph.inputs if static_shape(value)}
    batch = next((shape[0] for value in graph.inputs if (shape := static_shape(value))), 1)
    for node in graph:
        carrier = next((value for value in node.inputs if value in places), None)
        if carrier is None or not node.outputs:
            continue
        if node.op_type in _STATES:
            places |= _through_time(node, places)
            continue
        if node.op_type in ("Reshape", "Expand"):
            place = _unbind(graph, node, places[carrier], batch)
        else:
            place = _moved(node, carrier, places[carrier])
        if node.op_type == "Concat" and place == _Place(0):
            for index, value in enumerate(node.inputs):
                if value is not None and value.const_value is not None:
                    node.replace_input_with(index, _once(graph, value, batch))
        if place is not None:
            places |= dict.fromkeys(node.outputs, place)
    return places


_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}  # of recurrent operators; the first one's place among the inputs is 5


def _through_time(node: ir.Node, places: Mapping[ir.Value, _Place]) -> dict[ir.Value, _Place]:
    """Places of the batch in the outputs of a recurrent operator; initial states of zeros, its default, are dropped."""
    for index in range(5, min(5 + _STATES[node.op_type], len(node.inputs))):
        state = node.inputs[index]
        if state is not None and state.const_value is not None and not np.any(state.const_value.numpy()):
            node.replace_input_with(index, None)
    states = [state for state in node.inputs[5 : 5 + _STATES[node.op_type]] if state is not None]
    first = node.inputs[0]
    if first is None or any(places.get(value) != _Place(1) for value in (first, *states)):
        return {}
    return {value: _Place(1 if index else 2) for index, value in enumerate(node.outputs)}


def free_batch_of(model: ir.Model) -> None:
    """Make the leading dimension of all inputs and outputs the symbol "batch", in place.

    Raises:
        UnsupportedError: constants of a node fix the batch.
    """
    graph = model.graph
    repeat_constants(graph)
    kept = {value: value.shape for node in graph for value in node.outputs}
    for node in graph:
        for value in node.outputs:
            value.shape = None
    for value in graph.inputs:
        if value.shape:
            value.shape = ir.Shape([ir.SymbolicDim("batch"), *list(value.shape)[1:]])
    infer(model)
    for value in graph.outputs:
        if value.is_initializer() or value.is_graph_input() or not kept.get(value):
            continue
        shape = value.shape
        if shape is None or not len(shape) or isinstance(shape[0], int):
            producer = value.producer()
            raise UnsupportedError(
                f"the batch cannot be left open: the leading dimension of output {value.name!r} does not follow it",
                where=None if producer is None else f"{producer.op_type} {producer.name!r}",
                remedy="export it with its own batch",
            )


def repeat_constants(graph: ir.Graph) -> None:
    """Repeat constants that are joined to the examples as often as there are examples, at run time; in place."""
    places = unbind_batch(graph)
    for node in list(graph):
        if node.op_type == "Concat" and places.get(node.outputs[0]) == _Place(0):
            _repeat(graph, node, next(value for value in node.inputs if value in places))


def _unbind(graph: ir.Graph, node: ir.Node, place: _Place, batch: int) -> _Place | None:
    """Make one ``Reshape`` or ``Expand`` independent of the batch.

    Returns:
        Place of the batch in the output.
    """
    source, target = node.inputs[0], node.inputs[1]
    before, after = static_shape(source), static_shape(node.outputs[0])
    if before is None or after is None or target is None or target.const_value is None:
        return None
    sizes = list(after)
    if node.op_type == "Expand":
        moved = _Place(place.axis + len(after) - len(before), place.outer)
        sizes[moved.axis] = 1  # keeps the size of the input
    else:
        reshaped = _reshaped(before, after, place, batch, target.const_value.numpy().tolist())
        if reshaped is None:
            return None
        moved = reshaped
        sizes[moved.axis] = -1
    free = np.asarray(sizes, np.int64)
    if not np.array_equal(target.const_value.numpy(), free) or len(target.uses()) > 1:  # each may lose other channels
        node.replace_input_with(1, constant(graph, f"{node.outputs[0].name}_target", free))
    return moved


def constant(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """Make a new initializer, under this name or the next free one."""
    while name in graph.initializers:
        name += "_"
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
    graph.register_initializer(value)
    return value


def _once(graph: ir.Graph, value: ir.Value, batch: int) -> ir.Value:
    """A constant that is equal for all examples, reduced to one of them; another constant unchanged."""
    assert value.const_value is not None
    array = value.const_value.numpy()
    if batch == 1 or array.ndim == 0 or len(array) != batch or not (array == array[:1]).all():
        return value
    return constant(graph, f"{value.name}_once", array[:1])


def _repeat(graph: ir.Graph, node: ir.Node, carrier: ir.Value) -> None:
    for index, value in enumerate(node.inputs):
        shape = static_shape(value)
        if value is None or value.const_value is None or not shape or shape[0] != 1:
            continue
        stem = f"{node.name}_{index}"
        sizes = ir.node("Shape", [carrier], name=f"{stem}_sizes")
        count = ir.node("Gather", [sizes.outputs[0], constant(graph, f"{stem}_first", np.zeros(1, np.int64))])
        rest = constant(graph, f"{stem}_rest", np.asarray(shape[1:], np.int64))
        target = ir.node("Concat", [count.outputs[0], rest], {"axis": 0}, name=f"{stem}_target")
        spread = ir.node("Expand", [value, target.outputs[0]], name=f"{stem}_spread")
        made = [sizes, count, target, spread]
        for part, suffix in zip(made, ("sizes", "count", "target", "spread"), strict=True):
            part.name, part.outputs[0].name = f"{stem}_{suffix}", f"{stem}_{suffix}_output"
        graph.insert_before(node, made)
        node.replace_input_with(index, spread.outputs[0])


def _reshaped(
    before: Sequence[int], after: Sequence[int], place: _Place, batch: int, target: list[int]
) -> _Place | None:
    """Place of the batch after a reshape: elements keep their order, so as many are outside of it as before.

    A batch of 1 fits in several places: preferred is an axis of its own (the one that the target leaves open, or
    the previous one), then the axis that the target leaves open; otherwise a merged batch belongs to the axis before
    it if the sizes behind it stay the same, and to the axis behind it if they do not.
    """
    outside = math.prod(before[: place.axis]) * place.outer
    fitting = []
    for axis, size in enumerate(after):
        front = math.prod(after[:axis])
        outer = outside // front if front and outside % front == 0 else 0
        if outer and size % (outer * batch) == 0:
            fitting.append(_Place(axis, outer))
    opened = target.index(-1) if -1 in target else None
    whole_axes = [candidate for candidate in fitting if candidate.outer == 1 and after[candidate.axis] == batch]
    behind = tuple(before[place.axis + 1 :])
    ranked = (
        [candidate for candidate in whole_axes if candidate.axis == opened],
        [candidate for candidate in whole_axes if candidate.axis == place.axis],
        whole_axes,
        [candidate for candidate in fitting if candidate.axis == opened],
        [candidate for candidate in fitting if behind and tuple(after[candidate.axis + 1 :]) == behind],
        [candidate for candidate in fitting if candidate.outer == 1],
        fitting,
    )
    return next((candidates[0] for candidates in ranked if candidates), None)


def _moved(node: ir.Node, carrier: ir.Value, place: _Place) -> _Place | None:
    """Place of the batch in a node's outputs; ``None`` where it is lost."""
    before, after = static_shape(carrier), static_shape(node.outputs[0])
    if before is None or after is None:
        return None
    op, attributes, axis = node.op_type, node.attributes, place.axis
    moved: int | None = axis + len(after) - len(before)  # operands are broadcast aligned at the last axis
    if op == "Transpose":
        order = attributes["perm"].as_ints() if "perm" in attributes else range(len(before))[::-1]
        moved = list(order).index(axis)
    elif op == "Flatten":
        moved = 0 if axis == 0 and attributes.get_int("axis", 1) != 0 else None
    elif op == "Gather":
        at, indices = attributes.get_int("axis", 0) % len(before), static_shape(node.inputs[1]) or ()
        moved = axis if at > axis else axis + len(indices) - 1 if at < axis else None
    elif op in ("Squeeze", "Unsqueeze") or op.startswith("Reduce"):
        moved = _shifted(node, before, after, axis)
    return None if moved is None else _Place(moved, place.outer)


def _shifted(node: ir.Node, before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Place of the batch behind a node that adds or drops axes."""
    if len(after) == len(before):
        return axis
    added = len(after) > len(before)
    rank = max(len(before), len(after))
    if "axes" in node.attributes:
        axes = [int(place) % rank for place in node.attributes["axes"].as_ints()]
    elif len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].const_value is not None:
        axes = [int(place) % rank for place in node.inputs[1].const_value.numpy().ravel()]
    elif node.op_type == "Squeeze":
        axes = [place for place, size in enumerate(before) if size == 1]
    else:
        axes = list(range(rank))
    if added:
        return [place for place in range(rank) if place not in axes][axis]
    return None if axis in axes else axis - sum(place < axis for place in axes)
