"""Which nodes are fused: read off the graph that a runtime made of a model, or by a rule."""

from __future__ import annotations

import onnx_ir as ir
from google.protobuf.message import DecodeError

from framefit.core.model.model import Model
from framefit.errors import DeviceError

__all__ = ["epilogue_groups", "fused_groups"]

_HEAVY = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MatMul", "MatMulInteger", "QLinearMatMul", "Gemm")
_SUM = "Add"  # of a residual: what follows it is applied to it
_EPILOGUE = (
    *("BatchNormalization", "Add", "Mul", "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish"),
    *("Tanh", "Elu", "Gelu", "Swish", "Mish", "Identity"),
)


def epilogue_groups(model: Model) -> tuple[tuple[str, ...], ...]:
    """Convolutions, products and sums, each with what follows it element by element.

    A rule for accelerators that cannot be asked: normalisation, bias, scale and activation
    are applied on the way out of the array. Every step of the chain is the only reader of
    the one before, and reads nothing else that depends on the inputs.

    Args:
        model: its layers; those that are groups already stay as they are.
    """
    readers: dict[str, list[int]] = {}
    for index, layer in enumerate(model.layers):
        for tensor in layer.inputs:
            readers.setdefault(tensor.name, []).append(index)
    results = {tensor.name for tensor in model.outputs}
    groups, taken = [], set()
    for index, layer in enumerate(model.layers):
        if index in taken or layer.op not in (*_HEAVY, _SUM):
            continue
        chain = [index]
        while True:
            outputs = model.layers[chain[-1]].outputs
            if len(outputs) != 1 or outputs[0].name in results:
                break
            following = readers.get(outputs[0].name, [])
            if len(following) != 1:
                break
            reader = model.layers[following[0]]
            if reader.op not in _EPILOGUE or len(reader.inputs) != 1:
                break
            chain.append(following[0])
        if len(chain) > 1:
            taken.update(chain)
            groups.append(tuple(node for member in chain for node in model.layers[member].nodes))
    return tuple(groups)


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
