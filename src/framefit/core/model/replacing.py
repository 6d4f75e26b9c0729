"""Another graph in place of a part of a model, and files in which such parts are functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
import onnx_ir.passes.common as passes
from google.protobuf.message import DecodeError

from framefit.core.model.model import Model
from framefit.core.model.reading import canonical, dependent_reads, parsed
from framefit.errors import InputError

__all__ = ["file_notes", "group_nodes", "replaced", "to_file"]

_DOMAIN = "framefit.groups"
_SEPARATOR = "/"


def group_nodes(model: Model, source: str, target: str) -> tuple[str, ...]:
    """Names of the nodes that make one tensor of another, in order.

    Raises:
        InputError: no such tensors, the second is not made of the first alone, or something else reads
            what lies between.
    """
    graph = parsed(model.to_bytes()).graph
    return tuple(str(node.name) for node in _between(graph, source, target, model.name))


def replaced(model: Model, source: str, target: str, part: Model, name: str) -> Model:
    """The model with another graph between two tensors.

    Args:
        model: stays as it is.
        source: tensor that the part reads.
        target: tensor that it makes; it keeps its name.
        part: a graph of one input and one output of the same shapes.
        name: in front of the names of the part's nodes and tensors.

    Raises:
        InputError: see :func:`group_nodes`; or shapes that differ.
    """
    outer, inner = parsed(model.to_bytes()), parsed(part.to_bytes())
    graph = outer.graph
    old = _between(graph, source, target, model.name)
    end = next(value for value in old[-1].outputs if value.name == target)
    start = next(value for value in old[0].inputs if value is not None and value.name == source)
    ends = (inner.graph.inputs[0], start), (inner.graph.outputs[0], end)
    for mine, theirs in ends:
        if mine.shape != theirs.shape:
            raise InputError(
                f"the part has {mine.shape} where the model has {theirs.shape}",
                where=f"{model.name}: {theirs.name}",
                remedy="fit the part on this model's tensors",
            )
    made = inner.graph.outputs[0]
    for value in [*inner.graph.initializers.values(), *(v for node in inner.graph for v in node.outputs)]:
        value.name = f"{name}{_SEPARATOR}{value.name}"
    constants = list(inner.graph.initializers.values())
    inner.graph.initializers.clear()
    ir.convenience.replace_all_uses_with(inner.graph.inputs[0], start)
    nodes = list(inner.graph)
    inner.graph.outputs.clear()
    inner.graph.remove(nodes)
    for node in nodes:
        node.name = f"{name}{_SEPARATOR}{node.name}"
    for value in constants:
        graph.register_initializer(value)
    graph.insert_after(old[-1], nodes)
    ir.convenience.replace_all_uses_with(end, made, replace_graph_outputs=True)
    end.name, made.name = f"{target}_before", target
    for node in reversed(old):
        graph.remove(node, safe=True)
    passes.RemoveUnusedNodesPass()(outer)
    outer.opset_imports.update({key: value for key, value in inner.opset_imports.items() if key})
    canonical(outer, {}, {}, model.name)
    return Model(outer, name=model.name, assumed=model.assumed, handed_on=model.handed_on)


def to_file(model: Model, groups: Mapping[str, tuple[str, str]], notes: Mapping[str, str]) -> bytes:
    """An ONNX file in which groups of nodes are functions: what reads it sees each as one node, or inlines it.

    Args:
        model: any.
        groups: name -> the tensors between which it lies.
        notes: the file's metadata.
    """
    outer = parsed(model.to_bytes())
    for name, (source, target) in groups.items():
        _outline(outer, name, source, target)
    outer.metadata_props.update(notes)
    return bytes(ir.to_proto(outer).SerializeToString(deterministic=True))


def file_notes(content: bytes, where: str | Path) -> dict[str, str]:
    """The metadata in an ONNX file's bytes.

    Raises:
        InputError: they are none.
    """
    try:
        return dict(parsed(content).metadata_props)
    except (DecodeError, ValueError, AttributeError) as error:
        raise InputError("not an ONNX file, or a truncated one", where=where, remedy="write the file again") from error


def _outline(outer: ir.Model, name: str, source: str, target: str) -> None:
    """Make a function of what lies between two tensors; its constants become nodes inside."""
    graph = outer.graph
    nodes = _between(graph, source, target, name)
    start = next(value for value in nodes[0].inputs if value is not None and value.name == source)
    end = next(value for value in nodes[-1].outputs if value.name == target)
    within = {value for node in nodes for value in node.outputs}
    fed = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value not in within)
    formal = ir.Value(name=source, shape=start.shape, type=start.type)
    constants = []
    for value in fed:
        if value is start:
            continue
        assert value.const_value is not None
        constants.append(ir.node("Constant", [], {"value": value.const_value}, name=f"{value.name}_constant"))
        constants[-1].outputs[0].name = f"{value.name}_value"
        for user, index in list(value.uses()):
            if user in nodes:
                user.replace_input_with(index, constants[-1].outputs[0])
        if not value.uses() and not value.is_graph_output():
            graph.initializers.pop(str(value.name))
    for user, index in list(start.uses()):
        if user in nodes:
            user.replace_input_with(index, formal)
    call = ir.node(name, [start], domain=_DOMAIN, name=name)
    call.outputs[0].shape, call.outputs[0].type = end.shape, end.type
    graph.insert_before(nodes[0], call)
    users = [(user, index) for user, index in end.uses() if user not in nodes]
    for user, index in users:
        user.replace_input_with(index, call.outputs[0])
    for place, value in enumerate(graph.outputs):
        if value is end:
            graph.outputs[place] = call.outputs[0]
    graph.remove(nodes)
    call.outputs[0].name, end.name = target, f"{target}_result"
    body = ir.Graph([formal], [end], nodes=[*constants, *nodes], opset_imports=dict(graph.opset_imports), name=name)
    function = ir.Function(_DOMAIN, name, graph=body, attributes=[])
    outer.functions[function.identifier()] = function
    graph.opset_imports[_DOMAIN] = 1


def _between(graph: ir.Graph, source: str, target: str, where: str) -> list[ir.Node]:
    """The nodes that make ``target`` of ``source``; constants' own are no part of them."""
    values = {value.name: value for value in [*graph.inputs, *(v for node in graph for v in node.outputs)]}
    for name in (source, target):
        if name not in values:
            raise InputError(f"no tensor {name!r}", where=where, remedy="name one that the model computes")
    start, end = values[source], values[target]
    reads = dependent_reads(graph)
    producers = {value: node for node in reads for value in node.outputs}
    wanted, waiting = set(), [end]
    while waiting:
        value = waiting.pop()
        node = producers.get(value)
        if value is start or (node is None and value.is_initializer()) or node in wanted:
            continue
        if node is None:
            if value.is_graph_input():
                raise InputError(
                    f"{target!r} is made of {value.name!r} too, not of {source!r} alone",
                    where=where,
                    remedy="choose a group that one tensor leads into: whole residual blocks only",
                )
            continue
        wanted.add(node)
        waiting += reads[node]
    nodes = [node for node in reads if node in wanted]
    inside = {value for node in nodes for value in node.outputs} - {end}
    leak = next((v for v in inside if v.is_graph_output() or any(u not in wanted for u, _ in v.uses())), None)
    if leak is not None or not nodes:
        raise InputError(
            f"{leak.name!r} is read outside of the group"
            if leak
            else f"nothing lies between {source!r} and {target!r}",
            where=where,
            remedy="choose a group that one tensor leads out of",
        )
    return nodes
