"""A part of a model as one node: a function of the file that is not inlined.

Functions of other origin are inlined when a model is read. A part's function has core operators, so that any runtime
executes the file, and carries a note for devices with a better implementation.
"""

from __future__ import annotations

from collections.abc import Mapping

from framefit.core.model.graph import tensor_info
from framefit.core.model.lazy import ir, passes
from framefit.core.model.loading import PART_DOMAIN, PART_NOTE, canonical, dependent_reads, parsed
from framefit.core.model.model import Model
from framefit.errors import InputError


def group_nodes(model: Model, source: str, target: str) -> tuple[str, ...]:
    """Names of the nodes between two tensors, in order.

    Raises:
        InputError: a tensor does not exist, the second one depends on others than the first, or other nodes read
            tensors between them.
    """
    graph = parsed(model.to_bytes()).graph
    return tuple(str(node.name) for node in _between(graph, source, target, model.name))


def with_part(
    model: Model,
    source: str,
    target: str,
    part: Model,
    *,
    op: str,
    name: str,
    attributes: Mapping[str, int | str],
    note: str,
) -> Model:
    """Replace the nodes between two tensors by one node.

    Args:
        model: it is not changed.
        source: tensor that the node reads.
        target: tensor that it makes; it keeps its name.
        part: computation of the node: a graph with one input and one output of the same shapes.
        op: the node's operator.
        name: of the node; no other part of the model may have it.
        attributes: of the node: everything that determines its cost.
        note: text in :attr:`Model.notes`.

    Raises:
        InputError: see :func:`group_nodes`; or shapes differ.
    """
    outer = parsed(model.to_bytes())
    graph = outer.graph
    old = _between(graph, source, target, model.name)
    end = next(value for value in old[-1].outputs if value.name == target)
    start = next(value for value in old[0].inputs if value is not None and value.name == source)
    for inner, outer_value in ((part.inputs[0], start), (part.outputs[0], end)):
        there = tensor_info(outer_value)
        if (inner.dtype, inner.shape) != (there.dtype, there.shape):
            raise InputError(
                f"the part has {inner.dtype} {inner.shape} where the model has {there.dtype} {there.shape}",
                where=f"{model.name}: {there.name}",
                remedy="fit the part on this model's tensors",
            )
    function = _function(part, f"{PART_DOMAIN}{name}", op, attributes)
    function.metadata_props[PART_NOTE] = note
    outer.functions[function.identifier()] = function
    graph.opset_imports.update({key: value for key, value in function.opset_imports.items() if key})
    graph.opset_imports[function.domain] = 1
    node = ir.node(op, [start], dict(attributes), domain=function.domain, name=name)
    made = node.outputs[0]
    made.shape, made.type = end.shape, end.type
    graph.insert_after(old[-1], node)
    ir.convenience.replace_all_uses_with(end, made, replace_graph_outputs=True)
    end.name, made.name = f"{target}_before", target
    for gone in reversed(old):
        graph.remove(gone, safe=True)
    passes.RemoveUnusedNodesPass()(outer)
    canonical(outer, {}, {}, model.name)
    return Model(outer, name=model.name, defaulted_dims=model.defaulted_dims, internal_tensors=model.internal_tensors)


def _function(part: Model, domain: str, op: str, attributes: Mapping[str, int | str]) -> ir.Function:
    """Make a function of a graph: its constants become nodes, as functions have no initializers."""
    graph = parsed(part.to_bytes()).graph
    constants = []
    for value in list(graph.initializers.values()):
        assert value.const_value is not None
        constants.append(ir.node("Constant", [], {"value": value.const_value}, name=f"{value.name}_constant"))
        ir.convenience.replace_all_uses_with(value, constants[-1].outputs[0])
        constants[-1].outputs[0].name = value.name
    graph.initializers.clear()
    graph.insert_before(graph[0], constants)
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        value.shape = value.type = None  # they hold the present batch; those of the node count
    given = [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name in attributes]
    return ir.Function(domain, op, graph=graph, attributes=given)


def _between(graph: ir.Graph, source: str, target: str, where: str) -> list[ir.Node]:
    """Nodes between ``source`` and ``target``, without those of constants."""
    values = {value.name: value for value in [*graph.inputs, *(v for node in graph for v in node.outputs)]}
    for name in (source, target):
        if name not in values:
            raise InputError(f"no tensor {name!r}", where=where, remedy="name one that the model computes")
    start, end = values[source], values[target]
    reads = dependent_reads(graph)
    producers = {value: node for node in reads for value in node.outputs}
    between, waiting = set(), [end]
    while waiting:
        value = waiting.pop()
        node = producers.get(value)
        if value is start or (node is None and value.is_initializer()) or node in between:
            continue
        if node is None:
            if value.is_graph_input():
                raise InputError(
                    f"{target!r} also depends on {value.name!r}, not on {source!r} alone",
                    where=where,
                    remedy="choose a group with a single input tensor: whole residual blocks only",
                )
            continue
        between.add(node)
        waiting += reads[node]
    nodes = [node for node in reads if node in between]
    inside = {value for node in nodes for value in node.outputs} - {end}
    leak = next((v for v in inside if v.is_graph_output() or any(u not in between for u, _ in v.uses())), None)
    if leak is not None or not nodes:
        raise InputError(
            f"{leak.name!r} is read outside of the group"
            if leak
            else f"there are no nodes between {source!r} and {target!r}",
            where=where,
            remedy="choose a group with a single output tensor",
        )
    return nodes
