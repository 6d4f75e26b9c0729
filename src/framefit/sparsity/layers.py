"""Layers of a network that can lose weights, as matrices; and channels that can be removed together.

Convolutions go along one axis (signals), two (images) or three (volumes). Channels are followed through residual sums,
depthwise convolutions and gates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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
            layers.append(layer)
    return tuple(layers), tuple(notes)


def neighbours(layer: WeightLayer, size: int) -> Ints:
    """K, int64: for each weight of a row the number of its block of ``size`` neighbouring input channels.

    Kernel positions are separate: hardware reads adjacent channels together.
    """
    channel, position = np.divmod(np.arange(layer.width), layer.area)
    blocks: Ints = position * math.ceil(layer.channels / size) + channel // size
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


_SAME = (
    *("Relu", "Clip", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Mish"),
    *("Softplus", "Swish", "Identity", "Dropout", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    *("Abs", "Neg", "Sqrt", "Exp", "Erf", "ReduceMean", "Squeeze"),
)
_JOIN = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "PRelu")
_FLAT = ("Flatten", "Reshape")


@dataclass
class ChannelGroup:
    """Channels of several tensors that can only be removed together.

    Attributes:
        name: of the first node that makes them.
        channels: number of them.
        makers: arrays with an axis of these channels: (initializer, axis).
        readers: layers that sum over them, and how many of their inputs each channel is: (name, times).
        targets: constants that hold their number as part of a shape: (initializer, axis, times).
        fixed: whether they must stay.
    """

    name: str
    channels: int
    makers: list[tuple[str, int]] = field(default_factory=list)
    readers: list[tuple[str, int]] = field(default_factory=list)
    targets: list[tuple[str, int, int]] = field(default_factory=list)
    fixed: bool = False


def find_groups(
    nodes: Sequence[Node], arrays: Mapping[str, Array], layers: Sequence[WeightLayer], outputs: Sequence[str]
) -> tuple[ChannelGroup, ...]:
    """The groups of channels that may be removed, in the order in which they are made."""
    trace = _Trace(arrays, {layer.name: layer for layer in layers})
    for node in nodes:
        trace.follow(node)
    for name in outputs:
        trace.fix(name)
    return tuple(group for group in trace.groups() if not group.fixed and group.channels > 1 and group.readers)


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
    by_name = {layer.name: layer for layer in layers}
    changed: dict[str, Array] = dict(weights)

    def take(name: str, axis: int, gone: Sequence[int]) -> None:
        changed[name] = np.delete(changed.get(name, arrays[name]), gone, axis=axis)

    for group, channels in removed:
        gone = sorted(channels)
        for name, axis in group.makers:
            take(name, axis, gone)
        for name, times in group.readers:
            layer = by_name[name]
            places = np.ravel(np.asarray(gone, np.int64)[:, None] * times + np.arange(times))
            take(layer.weight, 1 if layer.kind == "conv" or not layer.transposed else 0, places.tolist())
        for name, axis, times in group.targets:
            target = np.array(changed.get(name, arrays[name]))
            target[axis] = (group.channels - len(gone)) * times
            changed[name] = target
    return changed


class _Trace:
    """Follows the axis of channels through the graph."""

    def __init__(self, arrays: Mapping[str, Array], layers: Mapping[str, WeightLayer]) -> None:
        self._arrays, self._layers = arrays, layers
        self._slots: list[ChannelGroup] = []
        self._parent: list[int] = []
        self._of: dict[str, tuple[int, int]] = {}  # tensor -> slot, and number of inputs that each channel is there

    def groups(self) -> list[ChannelGroup]:
        """The groups after all unions, in order."""
        return [slot for index, slot in enumerate(self._slots) if self._find(index) == index]

    def fix(self, tensor: str) -> None:
        """Mark a tensor's channels as not removable."""
        if tensor in self._of:
            self._slots[self._find(self._of[tensor][0])].fixed = True

    def follow(self, node: Node) -> None:
        """Find where the channels of a node's outputs come from."""
        data = next((operand for operand in node.inputs if operand is not None and not operand.constant), None)
        layer = self._layers.get(node.name)
        if data is None:
            return
        if layer is not None:
            self._product(node, layer, data)
        elif node.op == "BatchNormalization" or (node.op in _SAME and self._keeps(node, data)):
            self._pass(node, data)
        elif node.op in _FLAT and self._flattens(node, data):
            self._flatten(node, data)
        elif node.op in _JOIN and self._joins(node):
            self._join(node, data)
        else:
            self._stop(node)

    def _product(self, node: Node, layer: WeightLayer, data: Operand) -> None:
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        known = self._of.get(data.name)
        if layer.groups > 1:
            if layer.channels == 1 and layer.rows == 1 and known is not None:  # depthwise: the input's channels go out
                slot = self._slots[self._find(known[0])]
                slot.makers += [(layer.weight, 0), *self._constants([bias], 0)]
                self._of[node.outputs[0].name] = known
            else:
                self._stop(node)
            return
        if known is not None:
            self._slots[self._find(known[0])].readers.append((layer.name, known[1]))
        axis = 1 if layer.kind == "linear" and layer.transposed else 0
        makers = [(layer.weight, axis), *self._constants([bias], -1)]
        if len(data.shape or ()) > 2 and layer.kind == "linear":  # a sequence: its last axis is not followed
            self._stop(node)
            return
        self._new(node, ChannelGroup(node.name, layer.facts.outputs, makers))

    def _pass(self, node: Node, data: Operand) -> None:
        known = self._of.get(data.name)
        if known is None:
            return
        if node.op == "BatchNormalization":
            self._slots[self._find(known[0])].makers += self._constants(node.inputs[1:], 0)
        self._of |= {output.name: known for output in node.outputs}

    def _flatten(self, node: Node, data: Operand) -> None:
        known = self._of.get(data.name)
        if known is None or data.shape is None:
            return
        inputs = known[1] * int(np.prod(data.shape[2:]))
        target = node.inputs[1] if node.op == "Reshape" and len(node.inputs) > 1 else None
        if target is not None and self._arrays.get(target.name, np.zeros(1))[-1] > 0:
            self._slots[self._find(known[0])].targets.append((target.name, -1, inputs))
        self._of[node.outputs[0].name] = (known[0], inputs)

    def _join(self, node: Node, data: Operand) -> None:
        rank = len(data.shape or ())
        for operand in node.inputs:
            if operand is None:
                continue
            if not operand.constant:
                first, second = self._of.get(data.name), self._of.get(operand.name)
                if first is None or second is None:
                    self._stop(node)
                    return
                self._unite(first[0], second[0])
            elif len(shape := operand.shape or ()) >= rank - 1 and shape[1 - rank] > 1:
                self._slots[self._find(self._of[data.name][0])].makers.append((operand.name, len(shape) + 1 - rank))
        self._of[node.outputs[0].name] = self._of[data.name]

    def _stop(self, node: Node) -> None:
        """Mark the channels of a node's inputs as not removable, and those of its outputs as unknown."""
        for operand in node.inputs:
            if operand is not None:
                self.fix(operand.name)

    def _new(self, node: Node, group: ChannelGroup) -> None:
        self._parent.append(len(self._slots))
        self._slots.append(group)
        self._of[node.outputs[0].name] = (len(self._slots) - 1, 1)

    def _keeps(self, node: Node, data: Operand) -> bool:
        """Whether the second axis remains the second axis."""
        before, after = data.shape, node.outputs[0].shape
        return before is not None and after is not None and len(before) > 1 < len(after) and before[1] == after[1]

    def _flattens(self, node: Node, data: Operand) -> bool:
        before, after = data.shape, node.outputs[0].shape
        if before is None or after is None or len(after) != 2 or len(before) < 2:
            return False
        return after[1] == int(np.prod(before[1:]))

    def _joins(self, node: Node) -> bool:
        """Whether all operands have the same channels, or a single number for all of them."""
        rank = max(len(operand.shape or ()) for operand in node.inputs if operand is not None)
        if not 2 <= rank <= 5 or node.outputs[0].shape is None:
            return False
        channels = node.outputs[0].shape[1]
        for operand in node.inputs:
            if operand is None:
                continue
            shape = operand.shape or ()
            if operand.constant:
                if operand.name not in self._arrays or (
                    len(shape) >= rank - 1 and shape[1 - rank] not in (1, channels)
                ):
                    return False
            elif len(shape) != rank or shape[1] != channels or operand.name not in self._of:
                return False
        return True

    def _constants(self, operands: Sequence[Operand | None], axis: int) -> list[tuple[str, int]]:
        return [(operand.name, axis) for operand in operands if operand is not None and operand.name in self._arrays]

    def _find(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = index = self._parent[self._parent[index]]
        return index

    def _unite(self, slot: int, another: int) -> None:
        first, second = sorted((self._find(slot), self._find(another)))
        if first == second:
            return
        into, gone = self._slots[first], self._slots[second]
        into.makers += gone.makers
        into.readers += gone.readers
        into.targets += gone.targets
        into.fixed |= gone.fixed or gone.channels != into.channels
        self._parent[second] = first
