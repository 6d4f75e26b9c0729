"""Which nodes are fused: read off the graph that a runtime made of a model, or by a rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from google.protobuf.message import DecodeError

from framefit.core.model.layers import Layer
from framefit.core.model.model import Model
from framefit.core.model.reading import parsed
from framefit.errors import DeviceError

__all__ = ["epilogue_groups", "fused_groups"]

_HEAVY = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MatMul", "MatMulInteger", "QLinearMatMul", "Gemm")
_SUM = "Add"  # of a residual: what follows it is applied to it
_EPILOGUE = (
    *("BatchNormalization", "Add", "Mul", "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish"),
    *("Tanh", "Elu", "Gelu", "Swish", "Mish", "Identity"),
)
_CONVERSION = ("QuantizeLinear", "DequantizeLinear")


def epilogue_groups(model: Model) -> tuple[tuple[str, ...], ...]:
    """Convolutions, products and sums, each with what follows it element by element.

    A rule for accelerators that cannot be asked: normalisation, bias, scale and activation
    are applied on the way out of the array. Every step of the chain is the only reader of
    the one before, and reads nothing else that depends on the inputs.

    Of a quantised model each operator, heavy or not, takes in the ``DequantizeLinear`` of
    which it is the only reader and the ``QuantizeLinear`` of its result: what crosses from
    layer to layer is int8, and no cut lies inside. Conversions at the model's ends belong to
    its first and last operators.

    Args:
        model: its layers; those that are groups already stay as they are.
    """
    layers = model.layers
    readers: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        for tensor in layer.inputs:
            readers.setdefault(tensor.name, []).append(index)
    results = {tensor.name for tensor in model.outputs}
    maker = {tensor.name: index for index, layer in enumerate(layers) for tensor in layer.outputs}

    def only_reader(index: int) -> int | None:
        outputs = layers[index].outputs
        found = readers.get(outputs[0].name, []) if len(outputs) == 1 and outputs[0].name not in results else []
        return found[0] if len(found) == 1 else None

    groups, taken = [], set[int]()
    for index, layer in enumerate(layers):
        if index in taken or len(layer.nodes) > 1:
            continue
        follows = (*_EPILOGUE, *_CONVERSION) if layer.op in (*_HEAVY, _SUM) else _CONVERSION
        chain = [index]
        while (reader := only_reader(chain[-1])) is not None:
            if layers[reader].op not in follows or len(layers[reader].inputs) != 1:
                break
            chain.append(reader)
        if len(chain) > 1 and layers[chain[-1]].op == "DequantizeLinear" and only_reader(chain[-1]) is not None:
            del chain[-1]  # it belongs to what reads it
        if layer.op not in _CONVERSION:
            _take_conversions_before(chain, layers, maker, only_reader, taken)
        if len(chain) > 1:
            taken.update(chain)
            groups.append(tuple(node for member in chain for node in layers[member].nodes))
    return tuple(groups)


def _take_conversions_before(
    chain: list[int],
    layers: Sequence[Layer],
    maker: Mapping[str, int],
    only_reader: Callable[[int], int | None],
    taken: Collection[int],
) -> None:
    """Put the conversions that only the first of ``chain`` reads, and theirs, in their places before it."""
    waiting = [chain[0]]
    while waiting:
        reader = waiting.pop()
        for tensor in layers[reader].inputs:
            source = maker.get(tensor.name)
            if source is None or source in taken or only_reader(source) != reader:
                continue
            if layers[source].op in _CONVERSION:
                chain.append(source)
                waiting.append(source)
    chain.sort()


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
        graph = parsed(optimised).graph
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
