"""Channels that can go together: through residual sums, depthwise convolutions and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Node, Operand
from framefit.sparsity.layers import WeightLayer

__all__ = ["ChannelGroup", "find_groups", "shrunk"]


Array = npt.NDArray[Any]
_SAME = (
    *("Relu", "Clip", "LeakyRelu", "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Mish"),
    *("Softplus", "Swish", "Identity", "Dropout", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    *("Abs", "Neg", "Sqrt", "Exp", "Erf", "ReduceMean", "Squeeze"),
)
_JOIN = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "PRelu")
_FLAT = ("Flatten", "Reshape")


@dataclass
class ChannelGroup:
    """Channels of tensors that must keep the same ones.

    Attributes:
        name: of the first node that makes them.
        channels: how many there are.
        makers: arrays whose axis counts them: (initializer, axis).
        readers: layers that sum over them, and how many of their inputs each channel is: (name, times).
        targets: shapes that name their number: (initializer, axis, times).
        fixed: whether they have to stay.
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
    """The groups of channels that may be removed, in the order in which they are made.

    Args:
        nodes: of the network, in order.
        arrays: its initializers.
        layers: that may lose weights.
        outputs: of the network: their channels stay.
    """
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
    """The arrays of the network without some channels.

    Args:
        arrays: the dense network's initializers.
        weights: those of them that were refitted, in the dense form.
        removed: groups, and the channels of each that go.
        layers: that read them.

    Returns:
        Every array that changes.
    """
    by_name = {layer.name: layer for layer in layers}
    found: dict[str, Array] = dict(weights)

    def take(name: str, axis: int, gone: Sequence[int]) -> None:
        found[name] = np.delete(found.get(name, arrays[name]), gone, axis=axis)

    for group, channels in removed:
        gone = sorted(channels)
        for name, axis in group.makers:
            take(name, axis, gone)
        for name, times in group.readers:
            layer = by_name[name]
            places = np.ravel(np.asarray(gone, np.int64)[:, None] * times + np.arange(times))
            take(layer.weight, 1 if layer.kind == "conv" or not layer.transposed else 0, places.tolist())
        for name, axis, times in group.targets:
            target = np.array(found.get(name, arrays[name]))
            target[axis] = (group.channels - len(gone)) * times
            found[name] = target
    return found


class _Trace:
    """Follows the axis of channels through the graph."""

    def __init__(self, arrays: Mapping[str, Array], layers: Mapping[str, WeightLayer]) -> None:
        self._arrays, self._layers = arrays, layers
        self._slots: list[ChannelGroup] = []
        self._parent: list[int] = []
        self._of: dict[str, tuple[int, int]] = {}  # tensor -> slot, and inputs that a channel is there

    def groups(self) -> list[ChannelGroup]:
        """Joined, in order."""
        return [slot for index, slot in enumerate(self._slots) if self._find(index) == index]

    def fix(self, tensor: str) -> None:
        """Its channels stay."""
        if tensor in self._of:
            self._slots[self._find(self._of[tensor][0])].fixed = True

    def follow(self, node: Node) -> None:
        """One node: where do the channels of its outputs come from."""
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
            if layer.channels == 1 and layer.rows == 1 and known is not None:  # depthwise: what comes in goes out
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
                first, other = self._of.get(data.name), self._of.get(operand.name)
                if first is None or other is None:
                    self._stop(node)
                    return
                self._unite(first[0], other[0])
            elif len(shape := operand.shape or ()) >= rank - 1 and shape[1 - rank] > 1:
                self._slots[self._find(self._of[data.name][0])].makers.append((operand.name, len(shape) + 1 - rank))
        self._of[node.outputs[0].name] = self._of[data.name]

    def _stop(self, node: Node) -> None:
        """The channels of its inputs stay, those of its outputs are not known."""
        for operand in node.inputs:
            if operand is not None:
                self.fix(operand.name)

    def _new(self, node: Node, group: ChannelGroup) -> None:
        self._parent.append(len(self._slots))
        self._slots.append(group)
        self._of[node.outputs[0].name] = (len(self._slots) - 1, 1)

    def _keeps(self, node: Node, data: Operand) -> bool:
        """Whether the second axis stays the second axis."""
        before, after = data.shape, node.outputs[0].shape
        return before is not None and after is not None and len(before) > 1 < len(after) and before[1] == after[1]

    def _flattens(self, node: Node, data: Operand) -> bool:
        before, after = data.shape, node.outputs[0].shape
        if before is None or after is None or len(after) != 2 or len(before) < 2:
            return False
        return after[1] == int(np.prod(before[1:]))

    def _joins(self, node: Node) -> bool:
        """Whether all operands have the same channels, or one number for all of them."""
        rank = max(len(operand.shape or ()) for operand in node.inputs if operand is not None)
        if rank not in (2, 4) or node.outputs[0].shape is None:
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
        return [(one.name, axis) for one in operands if one is not None and one.name in self._arrays]

    def _find(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = index = self._parent[self._parent[index]]
        return index

    def _unite(self, one: int, other: int) -> None:
        first, second = sorted((self._find(one), self._find(other)))
        if first == second:
            return
        into, gone = self._slots[first], self._slots[second]
        into.makers += gone.makers
        into.readers += gone.readers
        into.targets += gone.targets
        into.fixed |= gone.fixed or gone.channels != into.channels
        self._parent[second] = first
