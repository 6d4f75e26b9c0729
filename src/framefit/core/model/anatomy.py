"""What layers, cuts and costs are made from: a graph's nodes and values as records, each made once.

A model and the same model with its nodes grouped share the graph, and so all that is known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import onnx_ir as ir

from framefit.core.model.layers import Layer, TensorInfo, node_macs, tensor_info
from framefit.core.model.nodes import Node, describe
from framefit.core.model.reading import dependent_reads, node_inputs

__all__ = ["Anatomy"]


class Anatomy:
    """What is known of a graph that does not change any more.

    Args:
        graph: canonical.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._tensors: dict[ir.Value, TensorInfo] = {}
        self._nodes: dict[ir.Node, Node] = {}
        self._layers: dict[tuple[ir.Node, ...], Layer] = {}
        self._macs: dict[ir.Node, int] = {}
        self._constants: dict[ir.Value, tuple[int, int]] = {}

    @cached_property
    def reads(self) -> dict[ir.Node, list[ir.Value]]:
        """Nodes that depend on an input of the graph, in order, with what they read; the others are constants."""
        return dependent_reads(self._graph)

    @cached_property
    def dependent(self) -> set[ir.Value]:
        """Values that change from frame to frame."""
        return {*self._graph.inputs, *(value for node in self.reads for value in node.outputs)}

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """Positions, among the nodes of ``reads``, of one node that makes a value and one that reads it."""
        producer = {value: index for index, node in enumerate(self.reads) for value in node.outputs}
        return [
            (producer[value], index)
            for index, values in enumerate(self.reads.values())
            for value in values
            if value in producer
        ]

    @cached_property
    def parameters(self) -> int:
        """Number of weights, each counted once."""
        return sum(self._constant(value)[0] for value in self._graph.initializers.values())

    @cached_property
    def _readers(self) -> dict[ir.Value, list[ir.Node]]:
        found: dict[ir.Value, list[ir.Node]] = {}
        for node, values in self.reads.items():
            for value in values:
                found.setdefault(value, []).append(node)
        return found

    def tensor(self, value: ir.Value) -> TensorInfo:
        """The record of a value, of the graph or of one inside it."""
        found = self._tensors.get(value)
        if found is None:
            found = self._tensors[value] = tensor_info(value)
        return found

    def node(self, node: ir.Node) -> Node:
        """The record of a node of the graph."""
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = describe(node, self.dependent, self.tensor)
        return found

    def layer(self, nodes: Sequence[ir.Node]) -> Layer:
        """Nodes of ``reads``, in order, as one layer."""
        key = tuple(nodes)
        found = self._layers.get(key)
        if found is None:
            found = self._layers[key] = self._layer(key)
        return found

    def _layer(self, nodes: tuple[ir.Node, ...]) -> Layer:
        inside = set(nodes)
        made = dict.fromkeys(value for node in nodes for value in node.outputs)
        reads = dict.fromkeys(value for node in nodes for value in self.reads[node] if value not in made)
        constants = [
            self._constant(value) for value in self._initializers_behind(v for v in reads if v not in self.dependent)
        ]
        outputs = [
            value for value in made if value.is_graph_output() or not inside.issuperset(self._readers.get(value, ()))
        ]
        return Layer(
            name=str(nodes[-1].name),
            op="+".join([node.op_type for node in nodes]),
            nodes=tuple([str(node.name) for node in nodes]),
            inputs=tuple([self.tensor(value) for value in reads if value in self.dependent]),
            outputs=tuple([self.tensor(value) for value in outputs]),
            parameters=sum([elements for elements, _ in constants]),
            parameter_bytes=sum([size for _, size in constants]),
            macs=sum([self._node_macs(node) for node in nodes]),
        )

    def _node_macs(self, node: ir.Node) -> int:
        found = self._macs.get(node)
        if found is None:
            found = self._macs[node] = node_macs(node)
        return found

    def _constant(self, value: ir.Value) -> tuple[int, int]:
        """Elements and bytes of an initializer."""
        found = self._constants.get(value)
        if found is None:
            tensor = value.const_value
            found = self._constants[value] = (0, 0) if tensor is None else (tensor.size, tensor.nbytes)
        return found

    def _initializers_behind(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        """Initializers from which constant values are computed, each once."""
        found: dict[ir.Value, None] = {}
        stack = list(values)
        while stack:
            value = stack.pop()
            producer = value.producer()
            if producer is not None:
                stack += [source for source in node_inputs(producer, self._graph) if source not in self.dependent]
            elif value.const_value is not None:
                found[value] = None
        return list(found)
