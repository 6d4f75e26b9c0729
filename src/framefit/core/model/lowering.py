"""What a runtime makes of a model: its own operators, layouts and copies between layouts, as layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from google.protobuf.message import DecodeError

from framefit.core.model.model import Model
from framefit.core.model.reading import canonical, parsed
from framefit.errors import DeviceError, FramefitError

__all__ = ["lowered", "lowered_around"]

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def lowered(model: Model, optimised: bytes, ask: Callable[[bytes, Sequence[str]], Shapes]) -> Model:
    """The graph that a runtime saved after optimising a model, each of its operators a layer.

    Args:
        model: as given to the runtime.
        optimised: the ONNX file that the runtime saved.
        ask: runs an ONNX file and tells type and shape of tensors that it returns: ONNX's inference
            does not know a runtime's own operators.

    Raises:
        DeviceError: the saved file is no ONNX model.
    """
    try:
        graph = parsed(optimised)
        canonical(graph, {}, {}, model.name)
        unknown = [v for node in graph.graph for v in node.outputs if v.name and (v.shape is None or v.dtype is None)]
        if unknown:
            outputs = list(graph.graph.outputs)
            graph.graph.outputs.extend(value for value in unknown if value not in outputs)
            found = ask(ir.to_proto(graph).SerializeToString(), [str(value.name) for value in unknown])
            graph.graph.outputs[:] = outputs  # by assignment: deleted ones would still count as outputs
            for value in unknown:
                if str(value.name) in found:
                    dtype, shape = found[str(value.name)]
                    value.shape = ir.Shape(shape)
                    value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    except (DecodeError, ValueError, FramefitError) as error:
        raise DeviceError(f"the runtime saved a graph that cannot be read: {error}", where=model.name) from error
    return Model(graph, name=model.name, assumed=model.assumed, handed_on=model.handed_on, lowered=True)


def lowered_around(model: Model, parts: Collection[str], lower: Callable[[Model], Model]) -> Model:
    """What a runtime makes of all but some nodes, with these among its operators as they are.

    All of the rest is lowered at once: its names stay apart, and what bypasses a node stays in the runtime's layout.

    Args:
        model: stays as it is.
        parts: names of nodes that something else executes.
        lower: tells what the runtime makes of a model.

    Raises:
        DeviceError: see ``lower``.
    """
    rest = _without(model, parts)
    if rest.layers:
        rest = lower(rest)
    outer, whole = parsed(rest.to_bytes()), parsed(model.to_bytes())
    graph = outer.graph
    values = {value.name: value for value in (*graph.inputs, *(made for node in graph for made in node.outputs))}
    for node in [node for node in whole.graph if node.name in parts]:
        inputs = [values[value.name] if value is not None else None for value in node.inputs]
        made = [ir.Value(name=value.name, shape=value.shape, type=value.type) for value in node.outputs]
        graph.append(ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), outputs=made, name=node.name))
        for value in made:
            stood_in = values.get(value.name)
            if stood_in is not None:
                ir.convenience.replace_all_uses_with(stood_in, value)
                graph.inputs.remove(stood_in)
            values[value.name] = value
        graph.opset_imports[node.domain] = whole.graph.opset_imports[node.domain]
        if (called := node.op_identifier()) in whole.functions:
            outer.functions[called] = whole.functions[called]
    graph.outputs[:] = [values[value.name] for value in whole.graph.outputs]
    canonical(outer, {}, {}, model.name)
    return Model(outer, name=model.name, assumed=model.assumed, handed_on=model.handed_on, lowered=True)


def _without(model: Model, parts: Collection[str]) -> Model:
    """The model without some of its nodes: what they read is an output, what they make an input."""
    outer = parsed(model.to_bytes())
    graph = outer.graph
    gone = [node for node in graph if node.name in parts]
    made = [value for node in gone for value in node.outputs]
    read = dict.fromkeys(value for node in gone for value in node.inputs if value is not None)
    outputs = [value for value in graph.outputs if value not in made]
    graph.outputs[:] = outputs + [v for v in read if v.producer() not in (None, *gone) and v not in outputs]
    for value in made:
        if any(user not in gone for user, _ in value.uses()):
            graph.inputs.append(ir.Value(name=value.name, shape=value.shape, type=value.type))
            ir.convenience.replace_all_uses_with(value, graph.inputs[-1])
    graph.remove(gone)
    for node in gone:
        outer.functions.pop(node.op_identifier(), None)
        graph.opset_imports.pop(node.domain, None)
    canonical(outer, {}, {}, model.name)
    return Model(outer, name=model.name)
