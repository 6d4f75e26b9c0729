"""Types and shapes: what ONNX's inference finds, and what files declare."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import onnx
import onnx_ir as ir

__all__ = ["SHAPE_ELEMENTS", "infer", "shape_of", "type_of"]

logger = logging.getLogger(__name__)

SHAPE_ELEMENTS = 1024
"""Constants of at most so many compute shapes, larger ones are weights."""


def infer(model: ir.Model) -> None:
    """Set the types and shapes that ONNX's inference finds, in place.

    onnx_ir's own pass would turn sequences and optionals into tensors.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(_without_weights(model), data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError) as error:
        logger.warning("no shapes inferred: %s", error)
        return
    for graph, other in zip(model.graphs(), _graphs(inferred.graph), strict=True):
        found = {info.name: info for info in (*other.value_info, *other.output, *other.input) if info.HasField("type")}
        for value in [*graph.inputs, *(value for node in graph for value in node.outputs)]:
            new = found.get(str(value.name))
            if new is not None:
                value.type = type_of(new.type) or value.type
                shape = shape_of(new.type)
                value.shape = value.shape if shape is None else shape


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """As ONNX, large initializers as inputs: inference reads shapes and axes, no weights."""
    graph = model.graph
    kept: list[ir.Value] = []
    large: list[ir.Value] = []
    for value in graph.initializers.values():
        tensor = value.const_value
        (kept if tensor is None or tensor.size <= SHAPE_ELEMENTS else large).append(value)
    view = ir.GraphView([*graph.inputs, *large], graph.outputs, nodes=graph, initializers=kept, name=graph.name)
    proto = onnx.ModelProto(ir_version=model.ir_version)
    functions = model.functions.values()
    proto.functions.extend(ir.serde.serialize_function(function, create_value_info=False) for function in functions)
    for domain, version in graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    ir.serde.serialize_graph_into(proto.graph, view, model_ir_version=model.ir_version)  # type: ignore[arg-type]
    return proto


def type_of(proto: onnx.TypeProto) -> ir.TypeProtocol | None:
    """What a value is; ``None`` where that is not said. Dense tensors, which most are, without onnx_ir's detours."""
    kind = proto.tensor_type.elem_type if proto.HasField("tensor_type") and not proto.denotation else 0
    return ir.TensorType(ir.DataType(kind)) if kind else ir.serde.deserialize_type_proto_for_type(proto)


def shape_of(proto: onnx.TypeProto) -> ir.Shape | None:
    """Its shape; ``None`` where that is not said. Static ones, which most are, without onnx_ir's detours."""
    if proto.HasField("tensor_type") and proto.tensor_type.HasField("shape"):
        sizes = []
        for one in proto.tensor_type.shape.dim:
            if one.denotation or not one.HasField("dim_value"):
                break
            sizes.append(one.dim_value)
        else:
            return ir.Shape(sizes, frozen=True)
    return ir.serde.deserialize_type_proto_for_shape(proto)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside it, each before its own."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(inner)
