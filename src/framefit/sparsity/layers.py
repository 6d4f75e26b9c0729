"""Layers of a network that can lose weights, as matrices; and channels that can be removed together.

Convolutions go along one axis (signals), two (images) or three (volumes). Channels are followed through residual sums,
depthwise and grouped convolutions, gates, concatenations, splits and reshapes. Where a reshape divides them among the
heads of an attention, the channels of a head go together, in what makes queries, keys and values and in what reads the
result (Michel, Levy and Neubig, 2019, "Are sixteen heads really better than one?").
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.model import Node, Operand
from framefit.sparsity.problem import Ints, PrunableLayer

Array = npt.NDArray[Any]
_MATRIX_OPS = ("Conv", "Gemm", "MatMul")
_OTHERS = ("ConvTranspose", "LSTM", "GRU", "RNN", "Einsum", "ConvInteger", "QLinearConv", "QLinearMatMul", "QGemm")


@dataclass(frozen=True)
class WeightLayer:
    """A convolution, or a product with a constant, whose weight belongs to it alone.

    Attributes:
        name: the node's name.
        weight: name of its initializer.
        kind: kind of the node.
        groups: independent products of a grouped convolution.
        rows: outputs of each group.
        channels: inputs of each group; area: kernel positions.
        pixels: of the image that is flattened to be the inputs of a product; 1: there is none.
        transposed: whether the weight's axes are inputs x outputs.
        node: the node with its attributes.
        facts: what the search knows of the layer.
    """

    name: str
    weight: str
    kind: Literal["conv", "linear"]
    groups: int
    rows: int
    channels: int
    area: int
    transposed: bool
    node: Node
    facts: PrunableLayer
    pixels: int = 1

    @property
    def width(self) -> int:
        """Number of inputs of each sum."""
        return self.channels * self.area

    def matrix(self, weight: Array) -> Array:
        """Return the weight as G x n x K."""
        outputs_first = weight.T if self.transposed else weight
        return outputs_first.reshape(self.groups, self.rows, self.width)

    def weight_of(self, matrix: Array) -> npt.NDArray[np.float32]:
        """Return a matrix (rows of all groups x K, or G x n x K) in the shape of the weight."""
        flat = np.asarray(matrix, np.float32).reshape(self.groups * self.rows, self.width)
        if self.kind == "linear":
            return np.ascontiguousarray(flat.T if self.transposed else flat)
        operand = self.node.inputs[1]
        assert operand is not None
        assert operand.shape is not None
        return flat.reshape(operand.shape)


def find_layers(nodes: Sequence[Node], arrays: Mapping[str, Array]) -> tuple[tuple[WeightLayer, ...], tuple[str, ...]]:
    """List the layers that can lose weights, in order; and what stays dense, as sentences."""
    used = Counter(operand.name for node in nodes for operand in node.inputs if operand is not None)
    pixels = _flattened(nodes)
    layers, notes = [], []
    for node in nodes:
        if node.op in _OTHERS:
            notes.append(f"{node.name} stays dense: {node.op} is not pruned")
        operand = node.inputs[1] if node.op in _MATRIX_OPS and len(node.inputs) > 1 else None
        data = node.inputs[0] if node.inputs else None
        if operand is None or data is None or not operand.constant:
            continue
        if operand.name not in arrays or operand.stored_dtype != "float32":
            notes.append(f"{node.name} stays dense: its weight is not a float32 initializer")
        elif used[operand.name] > 1:
            notes.append(f"{node.name} stays dense: it shares its weight with another node")
        elif (layer := _layer(node, data, operand, arrays[operand.name])) is None:
            notes.append(f"{node.name} stays dense: {node.op} of this form is not pruned")
        else:
            layers.append(replace(layer, pixels=pixels.get(data.name, 1)) if layer.kind == "linear" else layer)
    return tuple(layers), tuple(notes)


def _flattened(nodes: Sequence[Node]) -> dict[str, int]:
    """Vectors that are flattened images, with the number of pixels."""
    pixels = {}
    for node in nodes:
        shape = node.inputs[0].shape if node.op in _FLAT and node.inputs[0] is not None else None
        output = node.outputs[0].shape
        if shape is not None and len(shape) > 2 and output is not None and output[1:] == (math.prod(shape[1:]),):
            pixels[node.outputs[0].name] = math.prod(shape[2:])
    return pixels


def neighbours(layer: WeightLayer, size: int, *, of_images: bool = False) -> Ints:
    """K, int64: for each weight of a row the number of its block of ``size`` neighbouring input channels.

    Kernel positions are separate: hardware reads adjacent channels together.

    Args:
        layer: the layer.
        size: of a block.
        of_images: whether what multiplies a flattened image reads the image as it lies, channels last.
    """
    area = layer.area * layer.pixels if of_images else layer.area
    channel, position = np.divmod(np.arange(layer.width), area)
    blocks: Ints = position * math.ceil(layer.width // area / size) + channel // size
    return blocks


def _layer(node: Node, data: Operand, operand: Operand, weight: Array) -> WeightLayer | None:
    output = node.outputs[0].shape
    if data.shape is None or output is None:
        return None
    if node.op == "Conv":
        return _convolution(node, data.shape, output, operand, weight) if 3 <= weight.ndim <= 5 else None
    if weight.ndim != 2 or _number(node, "transA") or _number(node, "alpha", 1.0) != 1.0:
        return None
    transposed = not _number(node, "transB")
    inputs, outputs = weight.shape if transposed else weight.shape[::-1]
    positions = math.prod(output) // max(outputs, 1) // max(output[0], 1)
    facts = PrunableLayer(
        name=node.name,
        outputs=outputs,
        inputs=inputs,
        height=1,
        width=1,
        stride=1,
        kernel=1,
        parameters=weight.size,
        macs=weight.size * positions,
    )
    return WeightLayer(node.name, operand.name, "linear", 1, outputs, inputs, 1, transposed, node, facts)


def _convolution(
    node: Node, data: tuple[int, ...], output: tuple[int, ...], operand: Operand, weight: Array
) -> WeightLayer:
    groups = int(_number(node, "group", 1))
    strides = node.attributes.get("strides", (1, 1))
    assert isinstance(strides, tuple)
    outputs, channels, *kernel = weight.shape
    *rows, width = data[2:]
    facts = PrunableLayer(
        name=node.name,
        outputs=outputs,
        inputs=channels * groups,
        height=math.prod(rows),
        width=width,
        stride=int(strides[0]),
        kernel=kernel[0],
        parameters=weight.size,
        macs=weight.size * math.prod(output[2:]),
    )
    area = math.prod(kernel)
    return WeightLayer(
        name=node.name,
        weight=operand.name,
        kind="conv",
        groups=groups,
        rows=outputs // groups,
        channels=channels,
        area=area,
        transposed=False,
        node=node,
        facts=facts,
    )


def _number(node: Node, name: str, default: float = 0.0) -> float:
    value = node.attributes.get(name, default)
    assert isinstance(value, int | float)
    return value


_ELEMENTWISE = (
    *("Relu", "Clip", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Mish"),
    *("Softplus", "Swish", "Identity", "Dropout", "Abs", "Neg", "Sqrt", "Exp", "Erf"),
)
_POOLING = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
_JOIN = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "PRelu")
_FLAT = ("Flatten", "Reshape")
_RESHAPES = (*_FLAT, "Squeeze", "Unsqueeze")
_REDUCE = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare")
_NORMALIZE = {"Softmax": -1, "LogSoftmax": -1, "LayerNormalization": -1}  # from this axis on, unless another is given
_CHOICES = {2: (0, 1), 3: (1, 0, 2)}  # which of the axes that a reshape makes of one may be that of heads
_FAR = 1 << 30  # the end of a slice that goes on to the end


class Place(NamedTuple):
    """Where the channels of a group are along an axis of an array.

    Attributes:
        name: of the initializer, or of the layer that reads it.
        axis: of the array.
        times: neighbouring entries of each channel.
        first: where those of the first channel begin.
    """

    name: str
    axis: int = 0
    times: int = 1
    first: int = 0

    def of(self, channels: Sequence[int]) -> Ints:
        """The entries of some channels, int64."""
        begins = self.first + np.asarray(channels, np.int64)[:, None] * self.times
        places: Ints = (begins + np.arange(self.times)).ravel()
        return places


@dataclass
class ChannelGroup:
    """Channels of several tensors that can only be removed together.

    Attributes:
        name: of the first node that makes them.
        channels: number of them.
        makers: initializers with an axis on which these channels are.
        readers: layers that sum over them; their axis is that of the weight.
        targets: constants that hold their number as part of a shape, at ``axis``.
        fixed: whether they must stay.
    """

    name: str
    channels: int
    makers: list[Place] = field(default_factory=list)
    readers: list[Place] = field(default_factory=list)
    targets: list[Place] = field(default_factory=list)
    fixed: bool = False


def find_groups(
    nodes: Sequence[Node], arrays: Mapping[str, Array], layers: Sequence[WeightLayer], outputs: Sequence[str]
) -> tuple[ChannelGroup, ...]:
    """The groups of channels that may be removed, in the order in which they are made."""
    users: dict[str, list[tuple[str, str]]] = {}
    for node in nodes:
        for operand in node.inputs:
            if operand is not None and node.inputs[0] is not None:
                users.setdefault(operand.name, []).append((node.op, node.inputs[0].name))
    by_name = {layer.name: layer for layer in layers}
    tried: dict[str, int] = {}
    while True:
        trace = _Trace(arrays, by_name, users, tried)
        for node in nodes:
            trace.follow(node)
        for name in outputs:
            trace.fix(name)
        others = trace.other_choices()
        if not others:
            return tuple(group for group in trace.groups() if not group.fixed and group.channels > 1 and group.readers)
        tried |= others


def shrunk(
    arrays: Mapping[str, Array],
    weights: Mapping[str, Array],
    removed: Sequence[tuple[ChannelGroup, Sequence[int]]],
    layers: Sequence[WeightLayer],
) -> dict[str, Array]:
    """Remove channels from the network's arrays.

    Returns:
        Every array that changes.
    """
    weight_of = {layer.name: layer.weight for layer in layers}
    changed: dict[str, Array] = dict(weights)
    gone: dict[tuple[str, int], list[Ints]] = {}  # of each axis of each array
    for group, channels in removed:
        for maker in group.makers:
            gone.setdefault((maker.name, maker.axis), []).append(maker.of(channels))
        for reader in group.readers:
            gone.setdefault((weight_of[reader.name], reader.axis), []).append(reader.of(channels))
        for name, axis, times, _ in group.targets:
            target = np.array(changed.get(name, arrays[name]))
            target[axis] -= len(channels) * times
            changed[name] = target
    for (name, axis), places in gone.items():
        changed[name] = np.delete(changed.get(name, arrays[name]), np.concatenate(places), axis=axis)
    return changed


class _Part(NamedTuple):
    """A group's channels within a tensor: the number of the group, and see :class:`Place`."""

    group: int
    times: int
    first: int


@dataclass(frozen=True)
class _Channels:
    """Along one axis of a tensor, the parts that are channels of groups, in order."""

    axis: int
    parts: tuple[_Part, ...]


def _axis_at(shape: Sequence[int], outer: int) -> int | None:
    """The first axis longer than 1 before which there are so many entries."""
    sizes = itertools.accumulate(shape, operator.mul, initial=1)
    return next(
        (axis for axis, (size, before) in enumerate(zip(shape, sizes, strict=False)) if before == outer and size > 1),
        None,
    )


class _Reshaped(NamedTuple):
    """What a reshape does to the axis of channels.

    Attributes:
        axis: of the result.
        times: neighbouring entries of the new axis for each of the old one.
        copies: times that the new axis goes over the old one; inside: entries of the old one for each of the new one.
    """

    axis: int
    times: int = 1
    copies: int = 1
    inside: int = 1


class _Trace:
    """Follows the axis of channels through the graph: the second one, of sequences of tokens the last one.

    Args:
        arrays: initializers.
        layers: by their names.
        users: of each tensor and constant the operators and first inputs of the nodes that read it.
        tried: how many choices were tried in vain for a reshape that makes several axes of the channels.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        layers: Mapping[str, WeightLayer],
        users: Mapping[str, Sequence[tuple[str, str]]],
        tried: Mapping[str, int],
    ) -> None:
        self._arrays, self._layers, self._users, self._tried = arrays, layers, users, tried
        self._groups: list[ChannelGroup] = []
        self._parent: list[int] = []
        self._of: dict[str, _Channels] = {}
        self._chosen: dict[str, tuple[int, int]] = {}  # reshape -> group, number of choices

    def groups(self) -> list[ChannelGroup]:
        """The groups after all unions, in order."""
        return [group for index, group in enumerate(self._groups) if self._find(index) == index]

    def other_choices(self) -> dict[str, int]:
        """Reshapes whose channels must stay, and for which there is another choice: how many were in vain."""
        return {
            name: self._tried.get(name, 0) + 1
            for name, (group, count) in self._chosen.items()
            if self._groups[self._find(group)].fixed and self._tried.get(name, 0) + 1 < count
        }

    def fix(self, tensor: str) -> None:
        """Mark a tensor's channels as not removable."""
        for part in self._parts(tensor):
            self._group(part).fixed = True

    def follow(self, node: Node) -> None:
        """Find where the channels of a node's outputs come from."""
        given = [operand for operand in node.inputs if operand is not None and not operand.constant]
        layer = self._layers.get(node.name)
        if not given:
            return
        data = given[0]
        if layer is not None:
            self._product(node, layer, data)
        elif self._keeps(node, data):
            self._pass(node, data)
        elif node.op in _RESHAPES and (reshaped := self._reshaped(node, data)) is not None:
            self._reshape(node, data, reshaped)
        elif (moved := self._moved(node, data)) is not None:
            self._of |= {output.name: _Channels(moved, self._parts(data.name)) for output in node.outputs}
        elif node.op == "MatMul" and len(given) == 2 and (axis := self._batch(node)) is not None:
            self._multiply(node, axis)
        elif node.op == "Expand" and (axis := self._expanded(node, data)) is not None:
            self._note_size(node, axis, self._parts(data.name))
            self._of[node.outputs[0].name] = _Channels(axis, self._parts(data.name))
        elif node.op in _JOIN and (whole := self._joined(node)) is not None:
            self._join(node, self._of[whole])
        elif node.op == "Concat" and self._concatenates(node):
            self._concatenate(node)
        elif node.op == "Split" and self._splits(node, data):
            self._split(node, data)
        elif node.op == "Slice" and (bounds := self._bounds(node, data)) is not None and self._cut(data, bounds):
            self._slice(node, data, bounds)
        else:
            self._stop(node)

    def _product(self, node: Node, layer: WeightLayer, data: Operand) -> None:
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        known = self._of.get(data.name)
        if layer.groups > 1:
            if known is not None and known.axis == 1 and self._whole(data.name, layer.channels):
                parts = tuple(
                    part._replace(
                        times=part.times // layer.channels * layer.rows, first=part.first // layer.channels * layer.rows
                    )
                    for part in self._parts(data.name)
                )
                made = _Channels(1, parts)
                self._make([layer.weight, *self._constants([bias])], made)
                self._of[node.outputs[0].name] = made
            else:
                self._stop(node)
            return
        rank = len(data.shape or ())
        sequence = layer.kind == "linear" and rank > 2
        inputs = 1 if layer.kind == "conv" or not layer.transposed else 0
        if known is not None and (known.axis == rank - 1 if layer.kind == "linear" else known.axis == 1):
            for part in known.parts:
                self._group(part).readers.append(Place(layer.name, inputs, part.times, part.first))
        else:
            self.fix(data.name)
        outputs = 1 if layer.kind == "linear" and layer.transposed else 0
        self._parent.append(len(self._groups))
        self._groups.append(ChannelGroup(node.name, layer.facts.outputs, [Place(layer.weight, outputs)]))
        made = _Channels(rank - 1 if sequence else 1, (_Part(len(self._groups) - 1, 1, 0),))
        self._make(self._constants([bias]), made, -1)
        self._of[node.outputs[0].name] = made

    def _pass(self, node: Node, data: Operand) -> None:
        known = self._of.get(data.name)
        if known is None:
            return
        if node.op == "BatchNormalization":
            self._make(self._constants(node.inputs[1:]), known)
        self._of |= {output.name: known for output in node.outputs}

    def _reshape(self, node: Node, data: Operand, reshaped: _Reshaped) -> None:
        if reshaped.copies * reshaped.inside > 1:
            parts: tuple[_Part, ...] = (_Part(self._parts(data.name)[0].group, 1, 0),)
        else:
            parts = tuple(
                _Part(part.group, part.times * reshaped.times, part.first * reshaped.times)
                for part in self._parts(data.name)
            )
        if node.op == "Reshape":
            self._note_size(node, reshaped.axis, parts)
        self._of[node.outputs[0].name] = _Channels(reshaped.axis, parts)

    def _note_size(self, node: Node, axis: int, parts: Sequence[_Part]) -> None:
        """Note that the sizes which a node reads count these channels along an axis; -1, 0 and 1 do not."""
        target = node.inputs[1]
        assert target is not None
        if self._arrays[target.name][axis] > 1:
            self._count(target.name, axis, parts)

    def _count(self, name: str, axis: int, parts: Sequence[_Part]) -> None:
        """Note that an entry of a constant counts all of these channels; of a group there may be several parts."""
        for group in dict.fromkeys(self._find(part.group) for part in parts):
            times = sum(part.times for part in parts if self._find(part.group) == group)
            target = Place(name, axis, times)
            if target not in self._groups[group].targets:  # two nodes of the same kind may read it
                self._groups[group].targets.append(target)

    def _multiply(self, node: Node, axis: int) -> None:
        """Products of matrices, of which there is one for each channel."""
        one, other = (self._of[operand.name] for operand in node.inputs if operand is not None)
        for part, its in zip(one.parts, other.parts, strict=True):
            self._unite(part.group, its.group)
        self._of[node.outputs[0].name] = _Channels(axis, one.parts)

    def _join(self, node: Node, whole: _Channels) -> None:
        rank = len(node.outputs[0].shape or ())
        for operand in node.inputs:
            if operand is None:
                continue
            sizes = operand.shape or ()
            axis = whole.axis - (rank - len(sizes))
            if axis < 0 or sizes[axis] == 1:
                continue
            if operand.constant:
                self._make([operand.name], whole, axis)
            else:
                for one, other in zip(whole.parts, self._of[operand.name].parts, strict=True):
                    self._unite(one.group, other.group)
        self._of[node.outputs[0].name] = whole

    def _concatenate(self, node: Node) -> None:
        parts, first = [], 0
        for operand in node.inputs:
            assert operand is not None
            assert operand.shape is not None
            parts += [part._replace(first=first + part.first) for part in self._parts(operand.name)]
            first += operand.shape[1]
        self._of[node.outputs[0].name] = _Channels(1, tuple(parts))

    def _split(self, node: Node, data: Operand) -> None:
        known, sizes = self._of[data.name], node.inputs[1]
        assert sizes is not None
        begin = 0
        for number, output in enumerate(node.outputs):
            assert output.shape is not None
            end = begin + output.shape[known.axis]
            inside = [part for part in self._parts(data.name) if begin <= part.first < end]
            self._count(sizes.name, number, inside)
            self._of[output.name] = _Channels(
                known.axis, tuple(part._replace(first=part.first - begin) for part in inside)
            )
            begin = end

    def _slice(self, node: Node, data: Operand, bounds: tuple[int, int]) -> None:
        known = self._of[data.name]
        for operand, bound in zip(node.inputs[1:3], bounds, strict=True):
            assert operand is not None
            if bound < _FAR:  # it moves by what goes before it
                self._count(operand.name, 0, [part for part in known.parts if part.first < bound])
        inside = [part for part in known.parts if bounds[0] <= part.first < bounds[1]]
        parts = tuple(part._replace(first=part.first - bounds[0]) for part in inside)
        self._of[node.outputs[0].name] = _Channels(known.axis, parts)

    def _divide(self, part: _Part, channels: int) -> None:
        """Make two groups of one: the first of these channels, and the others."""
        root = self._find(part.group)
        whole = self._groups[root]

        def behind(places: Sequence[Place]) -> list[Place]:
            return [place._replace(first=place.first + channels * place.times) for place in places]

        number = len(self._groups)
        self._parent.append(number)
        self._groups.append(
            ChannelGroup(
                f"{whole.name} from {channels}", whole.channels - channels, behind(whole.makers),
                behind(whole.readers), list(whole.targets), whole.fixed,
            )
        )  # fmt: skip
        whole.channels = channels
        for tensor, known in self._of.items():
            parts = []
            for each in known.parts:
                parts.append(each)
                if self._find(each.group) == root:
                    parts.append(_Part(number, each.times, each.first + channels * each.times))
            self._of[tensor] = _Channels(known.axis, tuple(parts))

    def _coarsen(self, group: int, copies: int, inside: int) -> None:
        """Make one channel of so many neighbouring ones of a group, in each of so many equal runs of them."""
        root = self._find(group)
        whole = self._groups[root]
        run = whole.channels // copies

        def coarse(places: Sequence[Place]) -> list[Place]:
            return [
                place._replace(times=place.times * inside, first=place.first + number * run * place.times)
                for place in places
                for number in range(copies)
            ]

        whole.channels = run // inside
        whole.makers, whole.readers = coarse(whole.makers), coarse(whole.readers)
        whole.targets = [place._replace(times=place.times * inside * copies) for place in whole.targets]
        for tensor, known in self._of.items():
            parts = [
                part._replace(times=part.times * inside, first=part.first + number * run * part.times)
                if self._find(part.group) == root
                else part
                for part in known.parts
                for number in range(copies if self._find(part.group) == root else 1)
            ]
            self._of[tensor] = _Channels(known.axis, tuple(parts))

    def _stop(self, node: Node) -> None:
        """Mark the channels of a node's inputs as not removable, and those of its outputs as unknown."""
        for operand in node.inputs:
            if operand is not None:
                self.fix(operand.name)

    def _make(self, names: Sequence[str], known: _Channels, axis: int = 0) -> None:
        """Note arrays with an entry, along an axis, for each of a tensor's channels; other nodes may need all of it."""
        for part in known.parts:
            self._group(part).makers += [Place(name, axis, part.times, part.first) for name in names]
            self._group(part).fixed |= any(len(self._users[name]) > 1 for name in names)

    def _keeps(self, node: Node, data: Operand) -> bool:
        """Whether a node does the same with every channel by itself, and leaves them where they are."""
        before, after, known = data.shape, node.outputs[0].shape, self._of.get(data.name)
        if before is None or after is None or known is None:
            return False
        if node.op in _ELEMENTWISE:
            return before == after
        if node.op == "BatchNormalization":
            return known.axis == 1
        return node.op in _POOLING and known.axis == 1 < len(after) and before[1] == after[1]

    def _reshaped(self, node: Node, data: Operand) -> _Reshaped | None:
        """Where the channels are after a reshape; ``None``: they cannot be followed.

        Channels that become several axes are made to channels of one of them; see :meth:`other_choices`.
        """
        before, after, known = data.shape, node.outputs[0].shape, self._of.get(data.name)
        if before is None or after is None or known is None or not known.parts:
            return None
        if node.op == "Reshape" and self._sizes(node, data) is None:
            return None
        size, axis = before[known.axis], _axis_at(after, math.prod(before[: known.axis]))
        if axis is None:
            return None
        if after[axis] >= size:
            behind = itertools.accumulate(before[known.axis :], operator.mul)
            return _Reshaped(axis, after[axis] // size) if after[axis] in behind else None
        made = list(itertools.accumulate(after[axis:], operator.mul))
        count = made.index(size) + 1 if size in made else 0
        if count not in _CHOICES:
            return None
        group = known.parts[0].group
        self._chosen[node.name] = (group, len(_CHOICES[count]))
        chosen = axis + _CHOICES[count][self._tried.get(node.name, 0)]
        copies, inside = math.prod(after[axis:chosen]), math.prod(after[chosen + 1 : axis + count])
        if len(known.parts) == 1 and self._divides(known.parts[0], size, inside):
            self._coarsen(group, copies, inside // known.parts[0].times)
        expected = [(self._find(group), inside, number * after[chosen] * inside) for number in range(copies)]
        if [(self._find(part.group), part.times, part.first) for part in self._parts(data.name)] != expected:
            return None
        return _Reshaped(chosen, copies=copies, inside=inside)

    def _whole(self, tensor: str, size: int) -> bool:
        """Whether a tensor's channels are whole runs of so many entries, which they may become here."""
        for number in range(len(self._parts(tensor))):
            part = self._parts(tensor)[number]
            entries = self._group(part).channels * part.times
            if part.first % size or entries % size or (part.times % size and size % part.times):
                return False
            if part.times % size:
                self._coarsen(part.group, 1, size // part.times)
        return True

    def _divides(self, part: _Part, size: int, inside: int) -> bool:
        """Whether a part is all of an axis of this size, in channels that are not yet as large as this."""
        return part.first == 0 and self._group(part).channels * part.times == size and inside % part.times == 0

    def _sizes(self, node: Node, data: Operand) -> Array | None:
        """The sizes that a reshape or an expansion reads; ``None``: they are not known, or other nodes read them."""
        target = node.inputs[1] if len(node.inputs) > 1 else None
        if target is None or target.name not in self._arrays or set(self._users[target.name]) != {(node.op, data.name)}:
            return None
        return self._arrays[target.name]

    def _expanded(self, node: Node, data: Operand) -> int | None:
        """The axis of channels in what is repeated along others; ``None``: they are repeated, or cannot be followed."""
        known, before, after = self._of.get(data.name), data.shape, node.outputs[0].shape
        sizes = self._sizes(node, data)
        if known is None or before is None or after is None or sizes is None or len(sizes) != len(after):
            return None
        axis = known.axis + len(after) - len(before)
        return axis if after[axis] == before[known.axis] else None

    def _reduced(self, node: Node, rank: int) -> list[int] | None:
        """The axes that a node makes one number of; ``None``: all, or they are not known."""
        axes: object = node.attributes.get("axes")
        if len(node.inputs) > 1:
            axes = self._numbers(node.inputs[1])
        return [int(axis) % rank for axis in axes] if isinstance(axes, tuple) and axes else None

    def _numbers(self, operand: Operand | None) -> tuple[int, ...] | None:
        """Values of a constant; ``None``: it is none."""
        if operand is None or operand.name not in self._arrays:
            return None
        return tuple(self._arrays[operand.name].ravel().tolist())

    def _moved(self, node: Node, data: Operand) -> int | None:
        """The axis of channels behind a node that leaves them as they are; ``None``: it does not."""
        known, after = self._of.get(data.name), node.outputs[0].shape
        if known is None or data.shape is None or after is None:
            return None
        rank = len(data.shape)
        if node.op == "Transpose":
            order = node.attributes.get("perm", tuple(reversed(range(rank))))
            return order.index(known.axis) if isinstance(order, tuple) else None
        if node.op in _NORMALIZE:
            first = int(_number(node, "axis", _NORMALIZE[node.op])) % rank
            return known.axis if known.axis < first else None
        if node.op in _REDUCE:
            axes = self._reduced(node, rank)
            if axes is None or known.axis in axes:
                return None
            return known.axis if _number(node, "keepdims", 1) else known.axis - sum(one < known.axis for one in axes)
        if node.op == "Slice":
            others = self._numbers(node.inputs[3]) if len(node.inputs) > 3 else None
            return None if others is None or known.axis in {axis % rank for axis in others} else known.axis
        axis = int(_number(node, "axis")) % rank
        if axis == known.axis:
            return None
        if node.op == "Split":
            return known.axis
        if node.op == "Gather" and node.inputs[1] is not None and node.inputs[1].constant:
            return known.axis + (len(after) - rank if axis < known.axis else 0)
        return None

    def _batch(self, node: Node) -> int | None:
        """The axis of channels in the result of a product of matrices; ``None``: there is not one for each channel."""
        one, other = (self._of.get(operand.name) for operand in node.inputs if operand is not None)
        ranks = [len(operand.shape or ()) for operand in node.inputs if operand is not None]
        shape = node.outputs[0].shape
        if one is None or other is None or shape is None or ranks[0] != ranks[1]:
            return None
        alike = one.axis == other.axis < len(shape) - 2 and self._cuts(one) == self._cuts(other)
        return one.axis if alike else None

    def _joined(self, node: Node) -> str | None:
        """One of the operands, where all have the same parts, the same channels, or one number for all of them."""
        shape = node.outputs[0].shape
        if shape is None:
            return None
        rank = len(shape)
        traced = [
            (operand.name, operand.shape or (), self._of[operand.name].axis)
            for operand in node.inputs
            if operand is not None and operand.name in self._of
        ]
        full = (one for one, sizes, axis in traced if len(sizes) == rank and sizes[axis] == shape[axis])
        whole = next(full, None)
        if whole is None:
            return None
        along = self._of[whole].axis
        for operand in node.inputs:
            if operand is None:
                continue
            sizes = operand.shape
            if sizes is None or (operand.constant and operand.name not in self._arrays):
                return None
            axis = along - (rank - len(sizes))
            if axis < 0 or sizes[axis] == 1 < shape[along]:
                if operand.name in self._of and self._of[operand.name].axis != axis:
                    return None
            elif sizes[axis] != shape[along] or not (operand.constant or self._alike(operand.name, whole)):
                return None
        return whole

    def _alike(self, tensor: str, other: str) -> bool:
        """Whether channels are in parts that can be removed together; finer ones become as coarse as they meet."""
        if tensor not in self._of or self._of[tensor].axis != self._of[other].axis:
            return False
        for number in range(min(len(self._parts(tensor)), len(self._parts(other)))):
            fine, coarse = sorted(
                (self._parts(tensor)[number], self._parts(other)[number]), key=lambda part: part.times
            )
            sizes = [self._group(part).channels * part.times for part in (fine, coarse)]
            if fine.times < coarse.times and sizes[0] == sizes[1] and not coarse.times % fine.times:
                self._coarsen(fine.group, 1, coarse.times // fine.times)
        return self._cuts(self._of[tensor]) == self._cuts(self._of[other])

    def _cuts(self, channels: _Channels) -> list[tuple[int, int, int]]:
        return [(part.times, part.first, self._group(part).channels) for part in channels.parts]

    def _concatenates(self, node: Node) -> bool:
        """Whether channels are put behind each other, of which some are known."""
        shapes = [None if operand is None else operand.shape for operand in node.inputs]
        rank = len(shapes[0] or ())
        axis = node.attributes.get("axis")
        if None in shapes or rank < 2 or not isinstance(axis, int) or axis % rank != 1:
            return False
        return all(self._of[one.name].axis == 1 for one in node.inputs if one is not None and one.name in self._of)

    def _splits(self, node: Node, data: Operand) -> bool:
        """Whether channels are divided into runs whose sizes can be changed; groups are divided with them."""
        known, sizes = self._of.get(data.name), node.inputs[1] if len(node.inputs) > 1 else None
        axis, shapes = node.attributes.get("axis", 0), [output.shape for output in node.outputs]
        if known is None or sizes is None or data.shape is None or None in shapes or not isinstance(axis, int):
            return False
        alone = sizes.name in self._arrays and set(self._users[sizes.name]) == {("Split", data.name)}
        if axis % len(data.shape) != known.axis or not alone:
            return False
        return self._cut(data, np.cumsum([0 if shape is None else shape[known.axis] for shape in shapes]).tolist())

    def _bounds(self, node: Node, data: Operand) -> tuple[int, int] | None:
        """Of a slice of channels whose bounds can be changed; ``None``: it is another."""
        known, constants = self._of.get(data.name), list[tuple[str, int]]()
        for operand in node.inputs[1:]:
            if operand is None or operand.name not in self._arrays or self._arrays[operand.name].size != 1:
                return None
            constants.append((operand.name, int(self._arrays[operand.name].ravel()[0])))
        if known is None or data.shape is None or not 3 <= len(constants) <= 4:
            return None
        (start, low), (end, high), (_, axis), *step = constants
        if axis % len(data.shape) != known.axis or not 0 <= low < high or any(value != 1 for _, value in step):
            return None
        moved = [name for name, bound in ((start, low), (end, high)) if 0 < bound < _FAR]
        alone = all(set(self._users[name]) == {("Slice", data.name)} for name in moved)
        return (low, high) if alone else None

    def _cut(self, data: Operand, places: Sequence[int]) -> bool:
        """Divide groups of a tensor where channels are cut apart; false where a cut goes through a channel."""
        for place in places:
            for part in self._parts(data.name):
                inside = place - part.first
                if 0 < inside < self._group(part).channels * part.times:
                    if inside % part.times:
                        return False
                    self._divide(part, inside // part.times)
        return True

    def _constants(self, operands: Sequence[Operand | None]) -> list[str]:
        return [operand.name for operand in operands if operand is not None and operand.name in self._arrays]

    def _parts(self, tensor: str) -> tuple[_Part, ...]:
        return self._of[tensor].parts if tensor in self._of else ()

    def _group(self, part: _Part) -> ChannelGroup:
        return self._groups[self._find(part.group)]

    def _find(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = index = self._parent[self._parent[index]]
        return index

    def _unite(self, one: int, another: int) -> None:
        first, second = sorted((self._find(one), self._find(another)))
        if first == second:
            return
        into, gone = self._groups[first], self._groups[second]
        into.makers += gone.makers
        into.readers += gone.readers
        into.targets += gone.targets
        into.fixed |= gone.fixed or gone.channels != into.channels
        self._parent[second] = first
