"""Lowered models: a runtime's own operators, layouts and copies between layouts, as layers.

Also which nodes are fused: from the graph that a runtime made of a model, or by a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from framefit.core.model.graph import Layer
from framefit.core.model.lazy import ir, protobuf
from framefit.core.model.loading import canonical, node_inputs, parsed
from framefit.core.model.model import Model
from framefit.errors import DeviceError, FramefitError

__all__ = ["owners"]


Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def lowered(model: Model, optimised: bytes, ask: Callable[[bytes, Sequence[str]], Shapes]) -> Model:
    """Make a model of the graph that a runtime saved after optimisation, each of its operators a layer.

    The result does not depend on the order in which a runtime makes the same operators, or on its numbers.

    Args:
        model: as given to the runtime.
        optimised: the ONNX file that the runtime saved.
        ask: runs an ONNX file and returns type and shape of its outputs: ONNX's inference does not know a
            runtime's own operators.

    Raises:
        DeviceError: the saved file is not an ONNX model.
    """
    try:
        graph = parsed(optimised)
        canonical(graph, {}, {}, model.name)
        unknown = [v for node in graph.graph for v in node.outputs if v.name and (v.shape is None or v.dtype is None)]
        if unknown:
            outputs = list(graph.graph.outputs)
            graph.graph.outputs.extend(value for value in unknown if value not in outputs)
            types = ask(ir.to_proto(graph).SerializeToString(), [str(value.name) for value in unknown])
            graph.graph.outputs[:] = outputs  # by assignment: deleted ones would still count as outputs
            for value in unknown:
                if str(value.name) in types:
                    dtype, shape = types[str(value.name)]
                    value.shape = ir.Shape(shape)
                    value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
        _settle(graph, model)
    except (protobuf.DecodeError, ValueError, FramefitError) as error:
        raise DeviceError(f"the runtime saved a graph that cannot be read: {error}", where=model.name) from error
    return Model(
        graph,
        name=model.name,
        defaulted_dims=model.defaulted_dims,
        internal_tensors=model.internal_tensors,
        lowered=True,
    )


def _settle(optimised: ir.Model, model: Model) -> None:
    """Sort and number a runtime's operators by their inputs and outputs, in place.

    ONNX Runtime iterates over hash tables of addresses: its order, and the numbers in its names, differ between
    sessions.
    """
    graph = optimised.graph
    made = {str(value.name): value for node in graph for value in node.outputs}
    tensors = [tensor.name for layer in model.layers for tensor in layer.outputs]
    _sort(graph, [made[name] for name in tensors if name in made])
    inner = [body for body in optimised.graphs() if body is not graph]
    for body in inner:
        _sort(body, [])
    ends = {str(value.name) for body in (graph, *inner) for value in (*body.inputs, *body.outputs)}
    nodes = list(ir.traversal.RecursiveGraphIterator(graph))
    values = dict.fromkeys(value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None)
    _renumber_values([value for value in values if value.name], ends.union(tensors))
    known = {name for layer in model.layers for name in layer.nodes}
    others = [node for node in nodes if node.name not in known]
    for node, name in zip(others, _renumbered([str(node.name) for node in others], known), strict=True):
        node.name = name
    for domain in sorted(graph.opset_imports):
        graph.opset_imports[domain] = graph.opset_imports.pop(domain)


def _renumber_values(values: Sequence[ir.Value], kept: Collection[str]) -> None:
    """Name values by :func:`_renumbered`, except ``kept`` ones; initializers are sorted like the values."""
    others = [value for value in values if value.name not in kept]
    weights = [(value.graph, value) for value in others if value.is_initializer() and value.graph is not None]
    for graph, value in weights:  # the graph finds them by their names
        graph.initializers.pop(str(value.name))
    for value, name in zip(others, _renumbered([str(value.name) for value in others], kept), strict=True):
        value.name = name
    for graph, value in weights:
        graph.register_initializer(value)


def _sort(graph: ir.Graph, first: Sequence[ir.Value]) -> None:
    """Sort nodes in the order in which some values, and then the graph's outputs, need them."""
    order: dict[ir.Node, None] = {}

    def producers(values: Sequence[ir.Value]) -> list[ir.Node]:
        nodes = [node for value in values if (node := value.producer()) is not None and node.graph is graph]
        return [node for node in reversed(nodes) if node not in order]

    waiting = producers((*first, *graph.outputs))
    while waiting:
        missing = producers(node_inputs(waiting[-1], graph))
        if missing:
            waiting += missing
        else:
            order.setdefault(waiting.pop())
    nodes = list(dict.fromkeys((*order, *graph)))  # nodes that no output needs come last
    graph.remove(nodes)
    graph.extend(nodes)


_NUMBER = re.compile(r"_token_\d+$")  # a suffix by which ONNX Runtime makes names unique


def _renumbered(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Names with a runtime's numbers replaced by their places among equal names; ``taken`` ones are avoided."""
    used, counts, renumbered = set(taken), dict[str, int](), []
    for name in names:
        stem = _NUMBER.sub("", name)
        while (new := f"{stem}_token_{counts[stem]}" if stem in counts else stem) in used:
            counts[stem] = counts.get(stem, 0) + 1
        used.add(new)
        renumbered.append(new)
    return renumbered


def lowered_around(model: Model, parts: Collection[str], lower: Callable[[Model], Model]) -> Model:
    """Lower all but some nodes of a model, with these unchanged among the runtime's operators.

    The rest is lowered at once: names stay distinct, and tensors that bypass a node stay in the runtime's layout.

    Args:
        model: it is not changed.
        parts: names of nodes that something else executes.
        lower: the runtime's lowering of a model.

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
        inputs = [None if value is None else values.get(value.name) or _brought(value, graph) for value in node.inputs]
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
    return Model(
        outer,
        name=model.name,
        defaulted_dims=model.defaulted_dims,
        internal_tensors=model.internal_tensors,
        lowered=True,
        unlowered=parts,
    )


def _brought(weight: ir.Value, graph: ir.Graph) -> ir.Value:
    """Add an initializer of another graph, unless it is there."""
    name = f"{weight.name}_unlowered"  # the runtime may have stored it in another way under its name
    if name not in graph.initializers:
        graph.register_initializer(
            ir.Value(name=name, shape=weight.shape, type=weight.type, const_value=weight.const_value)
        )
    return graph.initializers[name]


def _without(model: Model, parts: Collection[str]) -> Model:
    """The model without some of its nodes: their inputs become outputs, their outputs inputs."""
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
        if node.domain:
            graph.opset_imports.pop(node.domain, None)
    canonical(outer, {}, {}, model.name)
    return Model(outer, name=model.name)


_HEAVY = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MatMul", "MatMulInteger", "QLinearMatMul", "Gemm")
_SUM = "Add"  # of a residual: the nodes that follow are applied to it
_EPILOGUE = (
    *("BatchNormalization", "Add", "Mul", "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish"),
    *("Tanh", "Elu", "Gelu", "Swish", "Mish", "Identity"),
)
_CONVERSION = ("QuantizeLinear", "DequantizeLinear")


def epilogue_groups(model: Model) -> tuple[tuple[str, ...], ...]:
    """Groups of convolutions, products and sums, each with the element-wise nodes that follow.

    A rule for accelerators that do not say what they fuse: normalisation, bias, scale and activation are applied at
    the output of the array. Every node of the chain is the only reader of the preceding one, and reads nothing else
    that depends on the inputs.

    In a quantised model each operator, heavy or not, includes the ``DequantizeLinear`` nodes of which it is the only
    reader and the ``QuantizeLinear`` of its result: tensors between layers are int8, and no cut lies inside.
    Conversions at the model's ends belong to its first and last operators.

    Args:
        model: its layers; existing groups stay unchanged.
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
        nodes = readers.get(outputs[0].name, []) if len(outputs) == 1 and outputs[0].name not in results else []
        return nodes[0] if len(nodes) == 1 else None

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
            del chain[-1]  # it belongs to its reader
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
    """Insert before ``chain`` the conversions that only its first node reads, and theirs."""
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
    """Groups of nodes between which no tensor remains after a runtime's optimisation.

    A tensor whose name remains is still computed; one that is gone was fused away, so its producer and its readers
    belong together.

    Args:
        model: as given to the runtime.
        optimised: the ONNX file that the runtime saved after optimising it.

    Raises:
        DeviceError: the saved file is not an ONNX model.
    """
    try:
        graph = parsed(optimised).graph
    except (protobuf.DecodeError, ValueError) as error:
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


_OWN_NAMES = re.compile(r"(_token_\d+|(_bn)?_nchwc|_new_reshape|/MatMul\w*Fusion.*)$")


def owners(model: Model, lowered: Model) -> list[int]:
    """The layer to which each of a runtime's operators belongs.

    Args:
        model: the user's, with groups as layers.
        lowered: the runtime's version of it.

    Returns:
        For each layer of ``lowered`` the index of one of ``model``.
    """
    owner = {tensor.name: index for index, layer in enumerate(model.layers) for tensor in layer.outputs}
    owner |= {name: index for index, layer in enumerate(model.layers) for name in layer.nodes}
    maker: dict[str, int] = {}
    owner_of: list[int | None] = []
    for layer in lowered.layers:
        known = _owner(layer, owner)
        if known is None:
            known = max((maker[tensor.name] for tensor in layer.inputs if tensor.name in maker), default=None)
        owner_of.append(known)
        if known is not None:
            maker |= {tensor.name: known for tensor in layer.outputs}
    places, following = [], 0
    for known in reversed(owner_of):  # operators without an owner belong to the next layer
        following = following if known is None else known
        places.append(following)
    return places[::-1]


def _owner(layer: Layer, owner: dict[str, int]) -> int | None:
    """The user's layer after which an operator is named, or whose result it makes."""
    for name in (*(tensor.name for tensor in layer.outputs), layer.name):
        while name not in owner and (shorter := _OWN_NAMES.sub("", name)) != name:
            name = shorter
        if name in owner:
            return owner[name]
    return None
