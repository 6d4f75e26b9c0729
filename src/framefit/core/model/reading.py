"""From an ONNX file as users have it to a graph that can be cut.

After :func:`canonical`: functions inlined but for parts (:mod:`framefit.core.model.parts`),
every node named, nodes in topological
order, no initializer listed as an input, all input dimensions fixed, shapes
inferred, shape computations on static shapes replaced by their values, and each
``If`` whose condition became constant replaced by the branch that it takes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from google.protobuf.message import DecodeError

from framefit.core.model.inference import SHAPE_ELEMENTS, infer, shape_of, type_of
from framefit.core.model.soundness import check_sound, may_exceed
from framefit.core.toml import toml_key
from framefit.errors import InputError, UnsupportedError

__all__ = [
    "PART_DOMAIN",
    "PART_NOTE",
    "canonical",
    "declared_inputs",
    "dependent_reads",
    "fold_constants",
    "node_inputs",
    "parsed",
    "read_graph",
]

logger = logging.getLogger(__name__)

PART_DOMAIN = "framefit.parts."
"""Functions of domains that begin so stay nodes; the part's name follows."""
PART_NOTE = "framefit.part"
"""Key of a part's note in its function's metadata."""

_DECLARED = "declared"  # in a graph's notes: value -> what its file declares of it


def read_graph(path: str | Path) -> ir.Model:
    """Read an ONNX file, external data included.

    Raises:
        InputError: missing, truncated or not an ONNX model.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("no such file", where=path, remedy="check the path")
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
        ir.external_data.load_to_model(model)
        check_sound(model, path)
    except InputError:
        raise
    except DecodeError as error:
        raise InputError("not an ONNX file, or a truncated one", where=path, remedy=remedy) from error
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:  # onnx_ir wraps some in RuntimeError
        raise InputError(f"not a usable ONNX file: {error}", where=path, remedy=remedy) from error
    return model


def _check_tensors(graph: onnx.GraphProto, path: Path) -> None:
    """Refuse sequences, maps and optional values at either end: nothing can be bound to them."""
    for what, infos in (("input", graph.input), ("output", graph.output)):
        for info in infos:
            kind = info.type.WhichOneof("value") or "tensor_type"
            if kind != "tensor_type":
                raise UnsupportedError(
                    f"{what} {info.name!r} is no tensor (ONNX calls it {kind.removesuffix('_type')})",
                    where=path,
                    remedy="cut it off (onnx.utils.extract_model); classifiers of skl2onnx: export with zipmap=False",
                )


def _taken_types(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Take out what a file declares of its values: of thousands of them onnx_ir makes types and shapes one by one.

    Initializers tell their own. Notes on values stay where they are, and so do functions' values.
    """
    if proto.functions:
        return {}
    taken = {info.name: info.type for info in proto.graph.value_info if not (info.metadata_props or info.doc_string)}
    others = [info for info in proto.graph.value_info if info.name not in taken]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(others)
    return taken


def _give_types(graph: ir.Graph, declared: Mapping[str, onnx.TypeProto]) -> None:
    """Give nodes' outputs their declared types at once, and their shapes when :func:`canonical` wants them."""
    kept = {}
    for node in graph:
        for value in node.outputs:
            proto = declared.get(str(value.name))
            if proto is not None and not value.is_graph_output():
                value.type = type_of(proto)
                kept[value] = proto
    graph.meta[_DECLARED] = kept


def declared_inputs(path: str | Path) -> dict[str, tuple[int | None, ...] | None]:
    """A file's inputs that are no initializers, with the sizes that it declares; the graph is not looked at.

    Returns:
        Input -> sizes, ``None`` for dynamic ones; ``None`` for an input without a shape.

    Raises:
        InputError: missing, truncated or not an ONNX model.
    """
    path = Path(path)
    try:
        graph = onnx.load_model(path, load_external_data=False).graph
    except (OSError, DecodeError):
        graph = onnx.GraphProto()
    if not graph.node or not graph.output:
        read_graph(path)  # which says why
    weights = {tensor.name for tensor in graph.initializer} | {one.values.name for one in graph.sparse_initializer}
    found: dict[str, tuple[int | None, ...] | None] = {}
    for value in graph.input:
        if value.name not in weights:
            shaped = value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
            sizes = (d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim)
            found[value.name] = tuple(sizes) if shaped else None
    return found


def parsed(content: bytes) -> ir.Model:
    """The graph in an ONNX file's bytes, as it is.

    Raises:
        DecodeError, ValueError: they hold none.
    """
    model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(content))
    return model


def node_inputs(node: ir.Node, graph: ir.Graph) -> list[ir.Value]:
    """Values of ``graph`` that a node reads, those read only inside its subgraphs included."""
    values = [value for value in node.inputs if value is not None]
    for subgraph in _bodies(node):
        for inner in ir.traversal.RecursiveGraphIterator(subgraph):
            values += [value for value in inner.inputs if value is not None and value.graph is graph]
        values += [value for value in subgraph.outputs if value.graph is graph]
    return list(dict.fromkeys(values))


def _bodies(node: ir.Node) -> list[ir.Graph]:
    """Graphs inside a node: branches of an ``If``, the body of a ``Loop`` or ``Scan``."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():  # of a dict, five times as fast as the mapping's own
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found += attribute.as_graphs()
    return found


def dependent_reads(graph: ir.Graph) -> dict[ir.Node, list[ir.Value]]:
    """Nodes that depend on an input of the graph, in order, with what they read; the others are constants."""
    known = set(graph.inputs)
    found: dict[ir.Node, list[ir.Value]] = {}
    for node in graph:
        values = node_inputs(node, graph)
        if not known.isdisjoint(values) or _is_random(node):
            found[node] = values
            known.update(node.outputs)
    return found


def canonical(
    model: ir.Model,
    shapes: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, Any],
    where: str | Path | None,
) -> list[str]:
    """Bring ``model`` into the form that the module describes, in place.

    Args:
        model: as read.
        shapes: graph input -> shape.
        constants: graph input -> value; the input goes.
        where: the file, for messages.

    Returns:
        What had to be assumed, as sentences for the user.

    Raises:
        InputError: an input, shape or constant does not fit the graph.
    """
    if model.functions:
        passes.InlinePass(lambda function: not function.domain.startswith(PART_DOMAIN))(model)
    graph = model.graph
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
    _fold_and_infer(model)
    for value, told in declared.items():
        if not _static(value):
            shape = shape_of(told) if isinstance(told, onnx.TypeProto) else told
            if shape is not None and all(isinstance(size, int) for size in shape):
                value.shape = shape  # an operator that inference does not know, but the exporter did
    _remove_unused(model)
    return assumed


def _remove_unused(model: ir.Model) -> None:
    """Drop what no output needs, and what only subgraphs of that read."""
    graph = model.graph
    needed, unused = set(graph.outputs), []
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs):
            unused.append(node)
        else:
            needed.update(node_inputs(node, graph))
    inner = (one for node in unused for sub in _bodies(node) for one in ir.traversal.RecursiveGraphIterator(sub))
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
    for name, given in constants.items():
        value = _input_named(model.graph, name, "constants", where)
        dtype = value.dtype
        if dtype is None:
            raise InputError(f"input {name!r} has no type", where=where, remedy="export the model again")
        try:
            array = np.asarray(given).astype(dtype.numpy())
        except (TypeError, ValueError) as error:
            raise InputError(
                f"constant {name!r} cannot be {given!r}: {error}", where=where, remedy=f"give {dtype.numpy()} numbers"
            ) from error
        if value.shape is not None:
            declared = list(value.shape)
            if array.ndim < len(declared) and array.size == 1:
                array = array.reshape((1,) * len(declared))
            if not _fits(declared, array.shape):
                raise InputError(
                    f"constant {name!r} is {_shown(declared)}, not {_shown(array.shape)}",
                    where=where,
                    remedy="give a value of that shape",
                )
        value.const_value = ir.tensor(array, name=name)
        value.shape = ir.Shape(array.shape)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)


def _fix_inputs(graph: ir.Graph, shapes: Mapping[str, tuple[int, ...]], where: str | Path | None) -> list[str]:
    """Give every input a static shape: from ``shapes``, by equal symbols, leading dimensions 1."""
    symbols: dict[str, int] = {}
    for name, given in shapes.items():
        value = _input_named(graph, name, "shapes", where)
        if any(size < 1 for size in given) and (value.shape is None or tuple(given) != tuple(value.shape)):
            raise InputError(
                f"input {name!r} cannot be {_shown(given)}", where=where, remedy="give sizes of at least 1"
            )
        if value.shape is None:
            value.shape = ir.Shape(given)
            continue
        declared = [size if isinstance(size, int) else str(size) for size in value.shape]
        if len(given) == len(declared) - 1 and _fits(declared, (1, *given)):
            given = (1, *given)  # a single frame: its leading dimension may be left out
        if not _fits(declared, given):
            raise InputError(
                f"input {name!r} takes {_shown(declared)}, not {_shown(given)}",
                where=where,
                remedy="give a shape (or a stream) that fits",
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
                assumed.append(f"input {value.name!r}: leading dimension {symbol or '?'} taken as 1")
            else:
                raise InputError(
                    f"input {value.name!r} has the dynamic dimension {symbol or '?'} (axis {axis})",
                    where=where,
                    remedy=_shape_remedy(value),
                )
        value.shape = ir.Shape(fixed)
    return assumed


def _shape_remedy(value: ir.Value) -> str:
    return f"fix it: shapes = {{ {toml_key(str(value.name))} = [...] }}, or the shape of its stream"


def _fits(declared: Sequence[Any], given: Sequence[int]) -> bool:
    """Whether static sizes agree with declared ones, of which some may be symbols."""
    return len(given) == len(declared) and all(
        not isinstance(size, int) or size == number for size, number in zip(declared, given, strict=True)
    )


def _shown(shape: Any) -> str:
    return " x ".join(str(size) for size in shape) or "a scalar"


def _static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)


def _is_random(node: ir.Node) -> bool:
    return node.op_type.startswith(("Random", "Multinomial", "Bernoulli"))


def _fold_and_infer(model: ir.Model) -> None:
    """Infer shapes and fold what computes them, each helping the other, until nothing changes."""
    graph = model.graph
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
        folded += sum(_take_branch(graph, node) for node in list(graph) if node.op_type == "If")
        if any(not _static(value) for node in graph for value in node.outputs):
            folded += sum(_evaluate(model, node) for node in _small_constants(graph))
        if not folded:
            return
        passes.NameFixPass()(model)  # branches may have used one name twice


def fold_constants(model: ir.Model) -> None:
    """Replace what is computed from constants by its value, of any size; QDQ pairs stay."""
    while sum(_evaluate(model, node, sys.maxsize) for node in _small_constants(model.graph, sys.maxsize)):
        pass


def _small_constants(graph: ir.Graph, most: int = SHAPE_ELEMENTS) -> Iterator[ir.Node]:
    """Nodes without subgraphs whose inputs are all small known constants, QDQ pairs left alone."""
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
    """Replace a constant node by its value; False where the reference implementation cannot."""
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
    """Put the branch of an ``If`` with a constant condition in its place."""
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
        if new.producer() not in inner:  # a value from outside: it keeps its name
            copy = ir.node("Identity", [new], name=f"{node.name}/{old.name}")
            graph.insert_before(node, [copy])
            inner.append(copy)
            new = copy.outputs[0]
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        new.name, old.name = old.name, None
    graph.remove(node, safe=True)
    return True


def _become_constant(graph: ir.Graph, node: ir.Node, arrays: list[np.ndarray[Any, Any]]) -> None:
    """Put initializers of the same names in the place of a node's outputs."""
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
