"""A model that can be cut: layers in order, legal cuts, and the segment between two cuts."""

from __future__ import annotations

import graphlib
import hashlib
import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from framefit.core.files import Record, write_whole
from framefit.core.model.graph import Granularity, GraphIndex, Layer, Node, TensorInfo, weight_masks, zeros_ratio
from framefit.core.model.lazy import ir
from framefit.core.model.loading import IN_ONE_FILE, PART_NOTE, canonical, file_state, random_nodes, read_graph
from framefit.errors import InputError


class Cut(Record, kw_only=True):
    """A boundary between two segments.

    Attributes:
        position: number of layers before it; 1 .. number of layers - 1.
        tensors: tensors across it: made before, read after.
        obstacle: why no segment may end here; ``None`` for a legal cut.
    """

    position: int
    tensors: tuple[TensorInfo, ...]
    obstacle: str | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all tensors across it."""
        return sum(tensor.bytes for tensor in self.tensors)


def _encoded(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """An array, or what becomes one."""
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


_IN_USE: WeakValueDictionary[tuple[str, tuple[int, ...], bytes], Model] = WeakValueDictionary()  # as Model.load made it


class Model:
    """A network with static input shapes, as layers in topological order.

    Nodes that depend on no input (weights being transposed or dequantised, shapes) are not layers: each segment
    that needs them includes them.

    Make one with :meth:`load`; ``Model(...)`` itself takes a canonical graph.
    """

    stored = False
    """Whether it stands for segments that were stored before, and has no graph."""

    def __init__(
        self,
        graph: ir.Model,
        *,
        name: str,
        groups: Sequence[Sequence[str]] = (),
        defaulted_dims: Sequence[str] = (),
        cleaned: Sequence[str] = (),
        weight_inputs: int = 0,
        internal_tensors: Collection[str] = (),
        lowered: bool = False,
        unlowered: Collection[str] = (),
    ) -> None:
        self._ir = graph
        self._groups = tuple(tuple(group) for group in groups)
        self.name = name
        self.lowered = lowered
        """Whether a runtime has optimised its nodes, so that it is to run as it is."""
        self.unlowered = frozenset(unlowered)
        """Names of those of its nodes that something else than this runtime executes."""
        self.defaulted_dims = tuple(defaulted_dims)
        self.cleaned = tuple(cleaned)
        """Corrections when its file was read, as sentences: at most the seeds of random operators differ."""
        self.weight_inputs = weight_inputs
        """Number of weights that its file lists as inputs, too, so that a plain session cannot fold or fuse them."""
        self.internal_tensors = frozenset(internal_tensors)
        """Inputs and outputs that a segment shares with other segments only; the others are the whole model's."""
        self._zeros: dict[tuple[Granularity, int, int], tuple[float, ...]] = {}
        self._index = GraphIndex(graph.graph)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        constants: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Model:
        """Read an ONNX file, unless what this call would make is still in use: models are never changed.

        Args:
            path: the file; external data beside it are read, too.
            shapes: graph input -> shape, for dynamic dimensions; a leading 1 may be left out. Other inputs follow where
                they use the same symbols; leading dimensions default to 1 (listed in ``defaulted_dims``).
            constants: graph input -> value that never changes; the input is removed.
            name: default: the file's stem.

        Raises:
            InputError: the file is missing, truncated or invalid, or a shape does not match.

        Example:
            >>> Model.load("face.onnx").layers[0].op  # doctest: +SKIP
            'Conv'
        """
        key = (str(path), file_state(path), msgspec.msgpack.encode((shapes, constants, name), enc_hook=_encoded))
        if (in_use := _IN_USE.get(key)) is not None:
            return in_use
        graph = read_graph(path)
        try:
            changes = canonical(graph, shapes or {}, constants or {}, path)
        except (
            TypeError,
            ValueError,
            RuntimeError,
            KeyError,
            IndexError,
        ) as error:  # a damaged graph, deep inside onnx
            raise InputError(f"the graph is damaged: {error}", where=path, remedy="export the model again") from error
        model = cls(
            graph,
            name=name or Path(path).stem,
            defaulted_dims=changes.assumed,
            cleaned=changes.cleaned,
            weight_inputs=changes.weight_inputs,
        )
        if not model._index.reads:
            raise InputError(
                "its outputs depend on no input: nothing is left to run", where=path, remedy="export the model again"
            )
        if graph.meta[IN_ONE_FILE]:
            _IN_USE[key] = model
        return model

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Graph inputs, without initializers."""
        return tuple(self._index.tensor(value) for value in self._ir.graph.inputs)

    @cached_property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of an example: the only input's without the batch; of several inputs all their numbers, in one row."""
        if len(self.inputs) > 1:
            return (sum(math.prod(tensor.shape or ()) for tensor in self.inputs),)
        return tuple((self.inputs[0].shape or ())[1:]) if self.inputs else ()

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Input -> its numbers in the row of an example of several inputs, see ``example_shape``."""
        ends = itertools.accumulate((math.prod(tensor.shape or ()) for tensor in self.inputs), initial=0)
        pairs = itertools.pairwise(ends)
        return {tensor.name: slice(*pair) for tensor, pair in zip(self.inputs, pairs, strict=True)}

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Graph outputs."""
        return tuple(self._index.tensor(value) for value in self._ir.graph.outputs)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in topological order."""
        return tuple(self._index.layer(nodes) for nodes in self._members)

    @cached_property
    def nodes(self) -> tuple[tuple[Node, ...], ...]:
        """Nodes of each layer, in the order of ``layers``, which determine its cost."""
        return tuple(tuple(map(self._index.node, nodes)) for nodes in self._members)

    def weight_zeros(self, granularity: Granularity = "unstructured", n: int = 1, m: int = 1) -> tuple[float, ...]:
        """Part of each layer's weights that is zero, 0 to 1; weights are the constant operands of products.

        Args:
            granularity: of the zeros that count, see :func:`~framefit.core.model.graph.zeros_ratio`.
            n: of "n:m".
            m: of "n:m".
        """
        key = granularity, n, m
        if key not in self._zeros:
            masks = (weight_masks(nodes, self._index.dependent) for nodes in self._members)
            self._zeros[key] = tuple(zeros_ratio(mask, granularity, n, m) for mask in masks)
        return self._zeros[key]

    @property
    def parameters(self) -> int:
        """Number of weights, without duplicates."""
        return self._index.parameters

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one frame."""
        return sum(layer.macs for layer in self.layers)

    @cached_property
    def random(self) -> tuple[str, ...]:
        """Nodes that draw random numbers: operator and name of each."""
        return tuple(f"{node.op_type} {node.name!r}" for node in random_nodes(self._ir.graph))

    @cached_property
    def notes(self) -> dict[str, str]:
        """Notes of its parts (see :mod:`framefit.core.model.parts`): name of the node -> note."""
        functions = self._functions(self._ir.graph)
        return {
            name: function.metadata_props[PART_NOTE]
            for name, function in functions.items()
            if PART_NOTE in function.metadata_props
        }

    def grouped(self, groups: Iterable[Collection[str]]) -> Model:
        """The same model with groups of nodes as single layers.

        Args:
            groups: names of nodes that the device always fuses. Groups that share a node are joined; so are groups that
                would depend on each other.
        """
        model = Model(
            self._ir,
            name=self.name,
            groups=[*self._groups, *map(tuple, groups)],
            defaulted_dims=self.defaulted_dims,
            cleaned=self.cleaned,
            weight_inputs=self.weight_inputs,
            internal_tensors=self.internal_tensors,
            lowered=self.lowered,
            unlowered=self.unlowered,
        )
        model._index = self._index
        return model

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Every boundary between two layers, legal or not, in order."""
        produced: dict[ir.Value, int] = {}
        last_read: dict[ir.Value, int] = {}
        for index, nodes in enumerate(self._members):
            for node in nodes:
                for value in self._index.reads[node]:
                    if value in produced:
                        last_read[value] = index
                produced.update(dict.fromkeys(node.outputs, index))
        crossing: list[list[TensorInfo]] = [[] for _ in range(len(self._members) + 1)]
        for value, last in last_read.items():
            info = self._index.tensor(value)
            for position in range(produced[value] + 1, last + 1):
                crossing[position].append(info)
        return tuple(self._cut(position, crossing[position]) for position in range(1, len(self._members)))

    @property
    def legal_cuts(self) -> tuple[Cut, ...]:
        """Boundaries at which a segment may end."""
        return tuple(cut for cut in self.cuts if cut.obstacle is None)

    def segment(self, first: int, last: int) -> Model:
        """The sub-model of layers ``first`` to ``last`` (inclusive), with the original names.

        Its inputs are the tensors that it reads from outside, its outputs those that later layers read and the
        whole model's outputs.

        Raises:
            InputError: the layers do not exist, or an end is not a legal cut.
        """
        count = len(self._members)
        if not 0 <= first <= last < count:
            raise InputError(f"no layers {first} .. {last} in a model of {count}", where=self.name)
        for position in (first, last + 1):
            if 0 < position < count and (obstacle := self.cuts[position - 1].obstacle):
                raise InputError(f"no cut after layer {self.layers[position - 1].name!r}: {obstacle}", where=self.name)
        graph, node_reads = self._ir.graph, self._index.reads
        inside = {node for nodes in self._members[first : last + 1] for node in nodes}
        made = {value for node in inside for value in node.outputs}
        by_layers = {value for nodes in self._members for node in nodes for value in node.outputs}
        later = {
            value
            for nodes in self._members[last + 1 :]
            for node in nodes
            for value in node_reads[node]
            if value in made
        }
        outputs = [value for node in graph if node in inside for value in node.outputs if value in later]
        for value in graph.outputs:
            if (value in made or (last == count - 1 and value not in by_layers)) and value not in outputs:
                outputs.append(value)
        reads = {value for node in inside for value in node_reads[node]} | set(outputs)
        outside = (by_layers | set(graph.inputs)) - made
        inputs = [
            value for value in [*graph.inputs, *_in_order(by_layers, graph)] if value in reads and value in outside
        ]
        sub = ir.convenience.extract(graph, inputs, outputs)
        for key in sorted(sub.initializers):  # a set's order would change the digest from run to run
            sub.initializers[key] = sub.initializers.pop(key)
        groups = [[str(node.name) for node in nodes] for nodes in self._members[first : last + 1] if len(nodes) > 1]
        whole, functions = self._ir, self._functions(sub)
        for domain in {function.domain for function in whole.functions.values()} - {
            function.domain for function in functions.values()
        }:
            sub.opset_imports.pop(domain, None)
        part = ir.Model(
            sub,
            ir_version=whole.ir_version,
            producer_name=whole.producer_name,
            functions=list(functions.values()),
        )
        outer = {*graph.inputs, *graph.outputs}
        inner = {str(value.name) for value in (*inputs, *outputs) if value not in outer} | self.internal_tensors
        name = f"{self.name}[{first}:{last + 1}]"
        return Model(
            part,
            name=name,
            groups=groups,
            internal_tensors=inner,
            lowered=self.lowered,
            unlowered=self.unlowered,
        )

    def _functions(self, graph: ir.Graph) -> dict[str, ir.Function]:
        """Functions that nodes of a graph call, by the nodes' names."""
        known = self._ir.functions
        nodes = [node for node in graph if node.op_identifier() in known] if known else []
        return {str(node.name): known[node.op_identifier()] for node in nodes}

    @cached_property
    def _encoded(self) -> bytes:
        proto = ir.to_proto(self._ir)
        return bytes(proto.SerializeToString(deterministic=True))

    def to_bytes(self, *, weights_as_inputs: bool = False) -> bytes:
        """Convert to an ONNX file; on request to one whose weights are inputs, too, as some exporters write it."""
        if not weights_as_inputs:
            return self._encoded
        proto = ir.to_proto(self._ir)
        for tensor in proto.graph.initializer:
            value = proto.graph.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            for size in tensor.dims:
                value.type.tensor_type.shape.dim.add(dim_value=size)
        return bytes(proto.SerializeToString(deterministic=True))

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write an ONNX file, as a whole or not at all."""
        with write_whole(path, force=force) as file:
            file.write(self.to_bytes())

    @property
    def digest(self) -> str:
        """SHA-256 of the ONNX bytes: the same content gives the same digest, however its nodes are grouped."""
        if self._index.digest is None:
            self._index.digest = hashlib.sha256(self.to_bytes()).hexdigest()
        return self._index.digest

    def __repr__(self) -> str:
        return f"<Model {self.name}: {len(self.layers)} layers, {self.macs / 1e6:.1f} M MACs>"

    @cached_property
    def _members(self) -> list[list[ir.Node]]:
        """Nodes of each layer; groups are contracted, and the result is acyclic and sorted."""
        nodes, edges = list(self._index.reads), self._index.edges
        if not self._groups:
            return [[node] for node in nodes]
        leader = list(range(len(nodes)))

        def find(index: int) -> int:
            while leader[index] != index:
                leader[index] = index = leader[leader[index]]
            return index

        def join(indices: Sequence[int]) -> None:
            for index in indices[1:]:
                leader[find(index)] = find(indices[0])

        by_name = {str(node.name): index for index, node in enumerate(nodes)}
        for group in self._groups:
            join([by_name[name] for name in group if name in by_name])
        while True:
            before: dict[int, set[int]] = {find(index): set() for index in range(len(nodes))}
            for source, sink in edges:
                if find(source) != find(sink):
                    before[find(sink)].add(find(source))
            try:
                graphlib.TopologicalSorter(before).prepare()
            except graphlib.CycleError as error:
                join(error.args[1])
            else:
                break
        members: dict[int, list[int]] = {}
        for index in range(len(nodes)):
            members.setdefault(find(index), []).append(index)
        order = []
        after: dict[int, list[int]] = {key: [] for key in members}
        waiting = {key: len(sources) for key, sources in before.items()}
        for key, sources in before.items():
            for source in sources:
                after[source].append(key)
        ready = [(members[key][-1], key) for key, count in waiting.items() if not count]
        heapq.heapify(ready)
        while ready:
            _, key = heapq.heappop(ready)
            order.append([nodes[index] for index in members[key]])
            for sink in after[key]:
                waiting[sink] -= 1
                if not waiting[sink]:
                    heapq.heappush(ready, (members[sink][-1], sink))
        return order

    @staticmethod
    def _cut(position: int, tensors: list[TensorInfo]) -> Cut:
        obstacle = None
        for tensor in tensors:
            if not tensor.dtype:
                obstacle = f"{tensor.name!r} does not hold numbers"
            elif tensor.shape is None:
                obstacle = f"the shape of {tensor.name!r} depends on the data"
        return Cut(position=position, tensors=tuple(tensors), obstacle=obstacle)


def _in_order(values: set[ir.Value], graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs if value in values]
