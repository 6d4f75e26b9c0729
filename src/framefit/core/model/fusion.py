"""Which nodes a runtime fuses, read off the graph that it made of a model."""

from __future__ import annotations

import onnx_ir as ir
from google.protobuf.message import DecodeError

from framefit.core.model.model import Model
from framefit.errors import DeviceError

__all__ = ["fused_groups"]


def fused_groups(model: Model, optimised: bytes) -> tuple[tuple[str, ...], ...]:
    """Groups of nodes between which no tensor is left after a runtime's optimisation.

    A tensor whose name survived is still computed; one that did not was fused away,
    so its producer and its readers belong together.

    Args:
        model: as given to the runtime.
        optimised: the ONNX file that the runtime saved after optimising it.

    Raises:
        DeviceError: the saved file is no ONNX model.
    """
    try:
        graph = ir.from_proto(_parse(optimised)).graph
    except (DecodeError, ValueError) as error:
        raise DeviceError(f"the runtime saved a graph that cannot be read: {error}", where=model.name) from error
    alive = {value.name for node in graph for value in node.outputs} | {value.name for value in graph.inputs}
    producer = {tensor.name: layer for layer in model.layers for tensor in layer.outputs}
    groups = []
    for layer in model.layers:
        gone = [
            producer[tensor.name] for tensor in layer.inputs if tensor.name in producer and tensor.name not in alive
        ]
        if gone:
            groups.append((*(node for source in gone for node in source.nodes), *layer.nodes))
    return tuple(groups)


def _parse(content: bytes):  # type: ignore[no-untyped-def]  # protobuf classes carry no types
    import onnx

    return onnx.ModelProto.FromString(content)
