"""Converts an ONNX file of a user to a graph that can be cut.

:func:`canonical` inlines functions except parts (:mod:`framefit.core.model.parts`), names every node, sorts nodes
topologically, removes initializers from the inputs, fixes all input dimensions, infers shapes, replaces shape
computations on static shapes by their values, and each ``If`` with a constant condition by its branch.

Types and shapes come from ONNX's inference, and from declarations in files.

Files are validated: claims of an ONNX file are compared with its contents before anything is made of it.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from framefit.core.arrays import shape_text, transposed
from framefit.core.files import toml_key
from framefit.core.formats import check_model_file
from framefit.core.model.lazy import ir, onnx, passes, protobuf
from framefit.errors import InputError, UnsupportedError

__all__ = ["declared_inputs", "external_files", "integer_scalars"]


logger = logging.getLogger(__name__)
SHAPE_ELEMENTS = 1024
"""Constants of at most this many elements compute shapes, larger ones are weights."""
IN_ONE_FILE = "framefit.in_one_file"
"""Of a graph's ``meta``: whether its file holds all of its weights."""
_FILES = 64  # whose inputs are remembered


def infer(model: ir.Model) -> None:
    """Set the types and shapes that ONNX's inference finds, in place.

    onnx_ir's own pass would turn sequences and optionals into tensors.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(_without_weights(model), data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError) as error:
        logger.warning("no shapes inferred: %s", error)
        return
    for graph, proto in zip(model.graphs(), _graphs(inferred.graph), strict=True):
        infos = {info.name: info for info in (*proto.value_info, *proto.output, *proto.input) if info.HasField("type")}
        for value in [*graph.inputs, *(value for node in graph for value in node.outputs)]:
            new = infos.get(str(value.name))
            if new is not None:
                value.type = type_of(new.type) or value.type
                shape = shape_of(new.type)
                value.shape = value.shape if shape is None else shape


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """Convert to ONNX with large initializers as inputs: inference reads shapes and axes, but no weights."""
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
    """Type of a value; ``None`` if it is not given. Dense tensors, the usual case, avoid onnx_ir's slower code."""
    kind = proto.tensor_type.elem_type if proto.HasField("tensor_type") and not proto.denotation else 0
    return ir.TensorType(ir.DataType(kind)) if kind else ir.serde.deserialize_type_proto_for_type(proto)


def shape_of(proto: onnx.TypeProto) -> ir.Shape | None:
    """Shape of a value; ``None`` if it is not given. Static shapes, the usual case, avoid onnx_ir's slower code."""
    if proto.HasField("tensor_type") and proto.tensor_type.HasField("shape"):
        sizes = []
        for dim in proto.tensor_type.shape.dim:
            if dim.denotation or not dim.HasField("dim_value"):
                break
            sizes.append(dim.dim_value)
        else:
            return ir.Shape(sizes, frozen=True)
    return ir.serde.deserialize_type_proto_for_shape(proto)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside it, each before its inner ones."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(inner)


_MOST_NODES = 1_000_000  # after inlining functions: some hundred times as many as in large networks
_MOST_IN_BYTE = 8  # elements: none has less than a bit
_REMEDY = "export the model again"
_GROWING = {
    "AffineGrid", "AveragePool", "BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "Conv",
    "ConvTranspose", "DFT", "Expand", "EyeLike", "HammingWindow", "HannWindow", "LpPool", "MaxPool", "MaxUnpool",
    "MelWeightMatrix", "OneHot", "Pad", "Range", "Resize", "RoiAlign", "STFT", "Tile", "Upsample",
}  # fmt: skip
"""Operators whose outputs may be larger than all of their inputs."""


def _validate(model: ir.Model, where: Path) -> None:
    """Refuse what cannot be computed: tensors without a producer or data, and endless functions.

    Raises:
        InputError: its message names the tensor, the attribute or the function.
        ValueError: the data of a tensor do not match its shape.
    """
    _check_versions(model, where)
    for graph in model.graphs():
        for value in graph.initializers.values():
            _check_tensor(value, where)
    _check_names(model, where)
    _check_attributes(model, where)
    if model.functions:
        _check_functions(model, where)


def _check_versions(model: ir.Model, where: Path) -> None:
    if (version := model.graph.opset_imports.get("", 1)) < 1:
        raise InputError(f"the file asks for opset {version}, which does not exist", where=where, remedy=_REMEDY)


def _check_attributes(model: ir.Model, where: Path) -> None:
    """Refuse attributes of another type than the operator's."""
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for nodes in parts:
        known: dict[tuple[str, str], Mapping[str, Any]] = {}
        for node in ir.traversal.RecursiveGraphIterator(nodes):
            key = node.domain, node.op_type
            if key not in known:
                known[key] = _attributes_of(node, nodes.opset_imports.get(node.domain, 1))
            for name, attribute in node.attributes.data.items():
                expected = known[key][name].type.value if name in known[key] else attribute.type.value
                if attribute.type == ir.AttributeType.UNDEFINED or attribute.type.value != expected:
                    message = f"attribute {name!r} of {node.op_type} {node.name!r} has the wrong type"
                    raise InputError(message, where=where, remedy=_REMEDY)


def _attributes_of(node: ir.Node, version: int) -> Mapping[str, Any]:
    """ONNX's description of an operator's attributes; empty for operators that are not its own."""
    try:
        attributes: Mapping[str, Any] = onnx.defs.get_schema(node.op_type, version, node.domain).attributes
    except onnx.defs.SchemaError:
        return {}
    return attributes


def _check_names(model: ir.Model, where: Path) -> None:
    """Refuse a graph with a tensor that is read, but not produced."""
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    reads = [(node, value) for node in nodes for value in node.inputs]
    outputs = [(None, value) for graph in model.graphs() for value in graph.outputs]
    for node, value in [*reads, *outputs]:
        if value is None:  # an optional input that is left out
            continue
        if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
            reader = "an output of a graph" if node is None else f"read by {node.op_type} {node.name!r}"
            raise InputError(f"no node produces the tensor {value.name!r}, {reader}", where=where, remedy=_REMEDY)


def _check_tensor(value: ir.Value, where: Path) -> None:
    tensor = value.const_value
    if tensor is None or any(not isinstance(size, int) or size < 0 for size in tensor.shape):
        raise InputError(f"the tensor {value.name!r} has data that do not match its shape", where=where, remedy=_REMEDY)
    if isinstance(tensor, ir.serde.TensorProtoTensor) and tensor.size > _MOST_IN_BYTE * where.stat().st_size:
        raise InputError(f"the tensor {value.name!r} is larger than the file", where=where, remedy=_REMEDY)
    tensor.numpy()  # raises if there are fewer or more data


def _check_functions(model: ir.Model, where: Path) -> None:
    """Refuse functions that call themselves, or that expand to too many nodes."""
    sizes: dict[ir.OperatorIdentifier, int] = {}

    def size(nodes: ir.Function | ir.Graph, callers: tuple[ir.OperatorIdentifier, ...]) -> int:
        total = 0
        for node in ir.traversal.RecursiveGraphIterator(nodes):
            called = node.op_identifier()
            if called in callers:
                raise InputError(f"the function {called[1]!r} calls itself", where=where, remedy=_REMEDY)
            if called in model.functions and called not in sizes:
                sizes[called] = size(model.functions[called], (*callers, called))
            total += sizes.get(called, 1)
        return total

    if (count := size(model.graph, ())) > _MOST_NODES:
        raise InputError(
            f"its functions expand to {count} nodes; at most {_MOST_NODES} are read",
            where=where,
            remedy="export the model without functions",
        )


def may_exceed(node: ir.Node, elements: int) -> bool:
    """Whether an output of a node may have more elements; if its size is not known, any output that can grow does."""
    for value in node.outputs:
        sizes = [size for size in value.shape or () if isinstance(size, int)]
        known = value.shape is not None and len(sizes) == len(value.shape)
        if math.prod(sizes) > elements if known else node.op_type in _GROWING:
            return True
    return False


PART_DOMAIN = "framefit.parts."
"""Prefix of domains whose functions stay nodes; the part's name follows."""
PART_NOTE = "framefit.part"
"""Key of a part's note in its function's metadata."""
_DECLARED = "declared"  # key in a graph's metadata: value -> declaration in the file


def external_files(path: str | Path) -> tuple[str, ...]:
    """Names of files beside an ONNX file that hold its weights; none where it cannot be read."""
    try:
        proto = onnx.load_model(path, load_external_data=False)
    except (OSError, protobuf.DecodeError):
        return ()
    tensors = [*proto.graph.initializer, *(a.t for n in proto.graph.node for a in n.attribute if a.HasField("t"))]
    pairs = (pair for tensor in tensors for pair in tensor.external_data if pair.key == "location")
    names = dict.fromkeys(pair.value for pair in pairs)
    return tuple(name for name in names if not Path(name).is_absolute() and ".." not in Path(name).parts)


def read_graph(path: str | Path) -> ir.Model:
    """Read an ONNX file, including external data.

    Raises:
        InputError: the file is missing, truncated or not an ONNX model.
    """
    path = Path(path)
    check_model_file(path)
    remedy = "export the model again, or copy the file completely"
    try:
        proto = onnx.load_model(path, load_external_data=False)
        _check_tensors(proto.graph, path)
        declared = _taken_types(proto)
        model = ir.from_proto(proto)
        ir.external_data.set_base_dir(model.graph, path.parent)
        _give_types(model.graph, declared)
        if not len(model.graph) or not model.graph.outputs:
            raise InputError("the ONNX file holds no graph (is it truncated?)", where=path, remedy=remedy)
        if not model.graph.opset_imports:
            raise InputError("the ONNX file names no opset (is it truncated?)", where=path, remedy=remedy)
        weights = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
        model.meta[IN_ONE_FILE] = not any(isinstance(tensor, ir.ExternalTensor) for tensor in weights)
        ir.external_data.load_to_model(model)
        _validate(model, path)
    except InputError:
        raise
    except protobuf.DecodeError as error:
        raise InputError("not an ONNX file, or a truncated one", where=path, remedy=remedy) from error
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:  # onnx_ir wraps some in RuntimeError
        raise InputError(f"not a usable ONNX file: {error}", where=path, remedy=remedy) from error
    return model


def _check_tensors(graph: onnx.GraphProto, path: Path) -> None:
    """Refuse sequences, maps and optional values as inputs and outputs: nothing can be bound to them."""
    for what, infos in (("input", graph.input), ("output", graph.output)):
        for info in infos:
            kind = info.type.WhichOneof("value") or "tensor_type"
            if kind != "tensor_type":
                raise UnsupportedError(
                    f"{what} {info.name!r} is not a tensor (ONNX calls it {kind.removesuffix('_type')})",
                    where=path,
                    remedy="cut it off (onnx.utils.extract_model); classifiers of skl2onnx: export with zipmap=False",
                )


def _taken_types(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Remove a file's declarations of its values: onnx_ir would make types and shapes of thousands one by one.

    Initializers have their own. Notes on values stay, and so do functions' values.
    """
    if proto.functions:
        return {}
    declared = {info.name: info.type for info in proto.graph.value_info if not (info.metadata_props or info.doc_string)}
    kept = [info for info in proto.graph.value_info if info.name not in declared]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)
    return declared


def _give_types(graph: ir.Graph, declared: Mapping[str, onnx.TypeProto]) -> None:
    """Give nodes' outputs their declared types at once, and their shapes when :func:`canonical` needs them."""
    kept = {}
    for node in graph:
        for value in node.outputs:
            proto = declared.get(str(value.name))
            if proto is not None and not value.is_graph_output():
                value.type = type_of(proto)
                kept[value] = proto
    graph.meta[_DECLARED] = kept


def declared_inputs(path: str | Path) -> dict[str, tuple[int | None, ...] | None]:
    """A file's inputs except initializers, with the sizes that it declares; the graph is not read.

    Returns:
        Input -> sizes, ``None`` for dynamic ones; ``None`` for an input without a shape.

    Raises:
        InputError: the file is missing, truncated or not an ONNX model.
    """
    return dict(_declared(Path(path), file_state(path)))


def file_state(path: str | Path) -> tuple[int, ...]:
    """What a file is known by: as long as it is the same, so is what the file holds; empty: there is none."""
    try:
        state = Path(path).stat()
    except OSError:
        return ()
    return state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size


@functools.lru_cache(_FILES)
def _declared(path: Path, _: tuple[int, ...]) -> dict[str, tuple[int | None, ...] | None]:
    try:
        graph = onnx.load_model(path, load_external_data=False).graph
    except (OSError, protobuf.DecodeError):
        graph = onnx.GraphProto()
    if not graph.node or not graph.output:
        read_graph(path)  # raises the error that says why
    weights = {tensor.name for tensor in graph.initializer} | {
        sparse.values.name for sparse in graph.sparse_initializer
    }
    shapes: dict[str, tuple[int | None, ...] | None] = {}
    for value in graph.input:
        if value.name not in weights:
            shaped = value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
            sizes = (d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim)
            shapes[value.name] = tuple(sizes) if shaped else None
    return shapes


def integer_scalars(path: str | Path) -> set[str]:
    """Inputs of :func:`declared_inputs` that are single whole numbers: options of a model rather than frames."""
    whole = {getattr(onnx.TensorProto, name) for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16")}
    types = {v.name: v.type.tensor_type for v in onnx.load_model(path, load_external_data=False).graph.input}
    return {n for n, sizes in declared_inputs(path).items() if sizes in ((), (1,)) and types[n].elem_type in whole}


def parsed(content: bytes) -> ir.Model:
    """Parse the graph in an ONNX file's bytes, without changes.

    Raises:
        DecodeError, ValueError: they hold no graph.
    """
    model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(content))
    return model


def node_inputs(node: ir.Node, graph: ir.Graph) -> list[ir.Value]:
    """Values of ``graph`` that a node reads, including those read only inside its subgraphs."""
    values = [value for value in node.inputs if value is not None]
    for subgraph in _bodies(node):
        for inner in ir.traversal.RecursiveGraphIterator(subgraph):
            values += [value for value in inner.inputs if value is not None and value.graph is graph]
        values += [value for value in subgraph.outputs if value.graph is graph]
    return list(dict.fromkeys(values))


def _bodies(node: ir.Node) -> list[ir.Graph]:
    """Graphs inside a node: branches of an ``If``, the body of a ``Loop`` or ``Scan``."""
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.data.values():  # of the dict, five times as fast as the mapping's own
        if attribute.type == ir.AttributeType.GRAPH:
            bodies.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies += attribute.as_graphs()
    return bodies


def dependent_reads(graph: ir.Graph) -> dict[ir.Node, list[ir.Value]]:
    """Nodes that depend on an input of the graph, in order, with the values that they read; others are constants."""
    known = set(graph.inputs)
    reads: dict[ir.Node, list[ir.Value]] = {}
    for node in graph:
        values = node_inputs(node, graph)
        if not known.isdisjoint(values) or _is_random(node):
            reads[node] = values
            known.update(node.outputs)
    return reads


class Changes(NamedTuple):
    """Changes of :func:`canonical` to a graph, as sentences for the user.

    Attributes:
        assumed: sizes that the file leaves open.
        cleaned: corrections that do not change the results, and seeds that were fixed.
        weight_inputs: number of initializers that were inputs, too.
    """

    assumed: list[str]
    cleaned: list[str]
    weight_inputs: int


def canonical(
    model: ir.Model,
    shapes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, Any],
    where: str | Path | None,
) -> Changes:
    """Bring ``model`` into the canonical form that the module describes, in place.

    Args:
        model: as read from a file.
        shapes: graph input -> shape.
        constants: graph input -> value; the input is removed.
        where: the file, for messages.

    Raises:
        InputError: an input, shape or constant does not fit the graph.
    """
    if model.functions:
        passes.InlinePass(lambda function: not function.domain.startswith(PART_DOMAIN))(model)
    graph = model.graph
    weights = sum(value.is_initializer() for value in graph.inputs)
    passes.RemoveInitializersFromInputsPass()(model)
    passes.NameFixPass()(model)
    try:
        graph.sort()
    except ValueError as error:
        raise InputError(f"the graph has a cycle: {error}", where=where, remedy="export the model again") from error
    _set_constants(model, constants, where)
    assumed = _fix_inputs(graph, shapes, where)
    declared: dict[ir.Value, ir.Shape | onnx.TypeProto | None] = {
        value: value.shape for node in graph for value in node.outputs
    }
    declared |= graph.meta.pop(_DECLARED, {})
    for value in declared:
        value.shape = None
    computed, branches = _fold_and_infer(model)
    for value, inferred in declared.items():
        if not _static(value):
            shape = shape_of(inferred) if isinstance(inferred, onnx.TypeProto) else inferred
            if shape is not None and all(isinstance(size, int) for size in shape):
                value.shape = shape  # inference does not know the operator, but the exporter did
    _remove_unused(model)
    return Changes(assumed, list(_cleaned(weights, computed, branches, _fix_seeds(graph))), weights)


def _cleaned(weights: int, computed: int, branches: int, seeds: int) -> Iterator[str]:
    """Sentences for numbers of ``weights``, computed nodes, branches and seeds."""
    if weights:
        were = _were(weights, "initializer")
        yield f"{were} moved out of the graph's inputs: a runtime fuses layers with constants only"
    if computed:
        yield f"{_were(computed, 'node')} replaced by values that never change, such as shapes"
    if branches:
        yield f"{_were(branches, 'If node')} replaced by the branch that is always taken"
    if seeds:
        yield f"{_were(seeds, 'random operator')} given a fixed seed, so that segments draw what the whole model draws"


def _were(number: int, noun: str) -> str:
    return f"{number} {noun} was" if number == 1 else f"{number} {noun}s were"


def _remove_unused(model: ir.Model) -> None:
    """Drop nodes that no output needs, and values that only their subgraphs read."""
    graph = model.graph
    needed, unused = set(graph.outputs), []
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs):
            unused.append(node)
        else:
            needed.update(node_inputs(node, graph))
    inner = (
        inner_node
        for node in unused
        for sub in _bodies(node)
        for inner_node in ir.traversal.RecursiveGraphIterator(sub)
    )
    for node in inner:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
    graph.remove(unused, safe=True)
    passes.RemoveUnusedNodesPass()(model)


def _input_named(graph: ir.Graph, name: str, key: str, where: str | Path | None) -> ir.Value:
    for value in graph.inputs:
        if value.name == name:
            return value
    names = ", ".join(str(value.name) for value in graph.inputs)
    raise InputError(f"{key} names no input {name!r}; inputs: {names}", where=where, remedy="correct the name")


def _set_constants(model: ir.Model, constants: Mapping[str, Any], where: str | Path | None) -> None:
    for name, number in constants.items():
        value = _input_named(model.graph, name, "constants", where)
        dtype = value.dtype
        if dtype is None:
            raise InputError(f"input {name!r} has no type", where=where, remedy="export the model again")
        try:
            array = np.asarray(number).astype(dtype.numpy())
        except (TypeError, ValueError) as error:
            raise InputError(
                f"constant {name!r} cannot be {number!r}: {error}", where=where, remedy=f"give {dtype.numpy()} numbers"
            ) from error
        if value.shape is not None:
            declared = list(value.shape)
            if array.ndim < len(declared) and array.size == 1:
                array = array.reshape((1,) * len(declared))
            if not _fits(declared, array.shape):
                raise InputError(
                    f"constant {name!r} is {shape_text(declared)}, not {shape_text(array.shape)}",
                    where=where,
                    remedy="give a value of that shape",
                )
        value.const_value = ir.tensor(array, name=name)
        value.shape = ir.Shape(array.shape)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)


def _fix_inputs(graph: ir.Graph, shapes: Mapping[str, tuple[int, ...]], where: str | Path | None) -> list[str]:
    """Give every input a static shape: from ``shapes``, by equal symbols, or leading dimensions 1."""
    symbols: dict[str, int] = {}
    for name, given in shapes.items():
        value = _input_named(graph, name, "shapes", where)
        if any(size < 1 for size in given) and (value.shape is None or tuple(given) != tuple(value.shape)):
            raise InputError(
                f"input {name!r} cannot be {shape_text(given)}", where=where, remedy="give sizes of at least 1"
            )
        if value.shape is None:
            value.shape = ir.Shape(given)
            continue
        declared = _sizes(value)
        if len(given) == len(declared) - 1 and _fits(declared, (1, *given)):
            given = (1, *given)  # the leading dimension of a single frame may be left out
        if not _fits(declared, given):
            raise InputError(
                f"input {name!r} takes {shape_text(declared)}, not {shape_text(given)}",
                where=where,
                remedy=transposed(given, declared) or "give a shape (or a stream) that fits",
            )
        for size, number in zip(value.shape, given, strict=True):
            symbol = size.value if isinstance(size, ir.SymbolicDim) else None
            if symbol is not None and symbols.setdefault(symbol, number) != number:
                raise InputError(
                    f"dimension {symbol!r} would be {symbols[symbol]} and {number}",
                    where=where,
                    remedy="give shapes that agree",
                )
        value.shape = ir.Shape(given)
    assumed = []
    for value in graph.inputs:
        if value.shape is None:
            raise InputError(f"input {value.name!r} has no shape", where=where, remedy=_shape_remedy(value))
        fixed: list[int] = []
        for axis, size in enumerate(value.shape):
            if isinstance(size, int) and size >= 0:
                fixed.append(size)
                continue
            symbol = size.value if isinstance(size, ir.SymbolicDim) else None
            if symbol is not None and symbol in symbols:
                fixed.append(symbols[symbol])
            elif axis == 0:
                fixed.append(1)
                if symbol is not None:
                    symbols[symbol] = 1
                assumed.append(f"input {value.name!r}: leading dimension {symbol or '?'} assumed to be 1")
            else:
                raise InputError(
                    f"input {value.name!r} has the dynamic dimension {symbol or '?'} (axis {axis})",
                    where=where,
                    remedy=_shape_remedy(value),
                )
        value.shape = ir.Shape(fixed)
    return assumed


def _sizes(value: ir.Value) -> list[int | str]:
    """Sizes of an input as in its file; "?": left open, without a name."""
    return [size if isinstance(size, int) else size.value or "?" for size in value.shape or ()]


def _shape_remedy(value: ir.Value) -> str:
    sizes = ", ".join(map(str, _sizes(value))) or "..."
    return f"fix it: shapes = {{ {toml_key(str(value.name))} = [{sizes}] }} with numbers, or the shape of its stream"


def _fits(declared: Sequence[Any], given: Sequence[int]) -> bool:
    """Whether static sizes agree with declared ones, some of which may be symbols."""
    return len(given) == len(declared) and all(
        not isinstance(size, int) or size == number for size, number in zip(declared, given, strict=True)
    )


def _static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def random_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Nodes that draw random numbers, including those inside others."""
    return [node for node in ir.traversal.RecursiveGraphIterator(graph) if _is_random(node)]


def _is_random(node: ir.Node) -> bool:
    if node.op_type == "Dropout" and node.domain == "" and len(node.inputs) > 2 and node.inputs[2] is not None:
        training = ir.convenience.get_const_tensor(node.inputs[2])
        return training is None or bool(training.numpy())
    return node.op_type.startswith(("Random", "Multinomial", "Bernoulli"))


def _fix_seeds(graph: ir.Graph) -> int:
    """Give ONNX's random operators without a seed one each, so that they draw the same in every session.

    Returns:
        Number of operators that got one.
    """
    seedless = [node for node in random_nodes(graph) if node.domain == "" and "seed" not in node.attributes]
    for seed, node in enumerate(seedless, 1):
        node.attributes.add(ir.AttrInt64("seed", seed) if node.op_type == "Dropout" else ir.AttrFloat32("seed", seed))
    return len(seedless)


def _fold_and_infer(model: ir.Model) -> tuple[int, int]:
    """Alternate between inferring shapes and folding shape computations until nothing changes.

    Returns:
        Number of nodes that became constants, and number of ``If`` nodes that were replaced by a branch.
    """
    graph = model.graph
    computed = branches = constants = 0
    while True:
        infer(model)
        folded = 0
        for node in list(graph):
            source = node.inputs[0] if node.inputs else None
            if node.domain == "" and node.op_type in ("Shape", "Size") and source is not None and _static(source):
                assert source.shape is not None
                sizes = np.asarray([size for size in source.shape if isinstance(size, int)], np.int64)
                if node.op_type == "Shape":
                    start = node.attributes.get_int("start", 0)
                    sizes = sizes[slice(start, node.attributes.get_int("end", len(sizes)))]
                    _become_constant(graph, node, [sizes])
                else:
                    _become_constant(graph, node, [np.asarray(sizes.prod(dtype=np.int64))])
                folded += 1
        branches_taken = sum(_take_branch(graph, node) for node in list(graph) if node.op_type == "If")
        if any(not _static(value) for node in graph for value in node.outputs):
            kinds = [node.op_type for node in _small_constants(graph) if _evaluate(model, node)]
            folded, constants = folded + len(kinds), constants + kinds.count("Constant")
        computed, branches = computed + folded, branches + branches_taken
        if not folded + branches_taken:
            return computed - constants, branches
        passes.NameFixPass()(model)  # branches may have used the same name


def fold_constants(model: ir.Model) -> None:
    """Replace everything that is computed from constants by its value, of any size; QDQ pairs stay."""
    while sum(_evaluate(model, node, sys.maxsize) for node in _small_constants(model.graph, sys.maxsize)):
        pass


def _small_constants(graph: ir.Graph, most: int = SHAPE_ELEMENTS) -> Iterator[ir.Node]:
    """Nodes without subgraphs whose inputs are all small known constants, except QDQ pairs."""
    for node in list(graph):
        if _is_random(node) or "Quantize" in node.op_type:
            continue
        if _bodies(node):
            continue
        tensors = [None if value is None else value.const_value for value in node.inputs]
        if all(
            value is None or (tensor is not None and tensor.size <= most)
            for value, tensor in zip(node.inputs, tensors, strict=True)
        ):
            yield node


def _evaluate(model: ir.Model, node: ir.Node, most: int = SHAPE_ELEMENTS) -> bool:
    """Replace a constant node by its value; False if the reference implementation cannot compute it."""
    from onnx.reference import ReferenceEvaluator

    if may_exceed(node, most):
        return False
    names = [value.name for value in node.inputs if value is not None]
    inputs = [onnx.helper.make_tensor_value_info(str(name), onnx.TensorProto.UNDEFINED, None) for name in names]
    outputs = [onnx.helper.make_tensor_value_info(str(v.name), onnx.TensorProto.UNDEFINED, None) for v in node.outputs]
    graph = onnx.helper.make_graph([ir.to_proto(node)], "constant", inputs, outputs)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.graph.opset_imports.items()]
    feeds = {str(v.name): v.const_value.numpy() for v in node.inputs if v is not None and v.const_value is not None}
    try:
        results = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets)).run(None, feeds)
    except Exception as error:  # noqa: BLE001 - the reference implementation raises whatever its numpy code raises
        logger.debug("constant %s not folded: %s", node.name, error)
        return False
    if any(np.size(result) > most for result in results):
        return False
    _become_constant(model.graph, node, [np.asarray(result) for result in results])
    return True


def _take_branch(graph: ir.Graph, node: ir.Node) -> bool:
    """Replace an ``If`` with a constant condition by its branch."""
    condition = node.inputs[0].const_value if node.inputs and node.inputs[0] is not None else None
    if condition is None or condition.size != 1:
        return False
    branch = node.attributes["then_branch" if condition.numpy().item() else "else_branch"].as_graph()
    for value in list(branch.initializers.values()):
        branch.initializers.pop(str(value.name))
        while value.name in graph.initializers:
            value.name = f"{value.name}_"
        graph.register_initializer(value)
    inner, results = list(branch), list(branch.outputs)
    branch.outputs.clear()
    branch.remove(inner)
    graph.insert_before(node, inner)
    for old, new in zip(node.outputs, results, strict=True):
        if new.producer() not in inner:  # a value from outside keeps its name
            copy = ir.node("Identity", [new], name=f"{node.name}/{old.name}")
            graph.insert_before(node, [copy])
            inner.append(copy)
            new = copy.outputs[0]
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        new.name, old.name = old.name, None
    graph.remove(node, safe=True)
    return True


def _become_constant(graph: ir.Graph, node: ir.Node, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Replace a node's outputs by initializers of the same names."""
    values = list(node.outputs)
    replacements = []
    for value, array in zip(values, arrays, strict=True):
        new = ir.Value(name=value.name, const_value=ir.tensor(array, name=value.name))
        new.shape, new.dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
        ir.convenience.replace_all_uses_with(value, new, replace_graph_outputs=True)
        replacements.append(new)
    graph.remove(node, safe=True)
    for new in replacements:
        graph.register_initializer(new)
