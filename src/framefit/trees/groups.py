"""Groups of layers that trees can replace: boundaries with a single tensor, and what a position reads between two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from framefit.core.model import Model, Node
from framefit.core.trees import Patch
from framefit.errors import InputError

__all__ = ["boundaries"]


WEIGHTED = {"Conv", "Gemm", "MatMul"}
"""Operators with weights, by which layers are counted."""
_ALIKE = {"Relu", "Add", "BatchNormalization", "Clip", "Identity", "Sigmoid", "HardSwish", "HardSigmoid", "LeakyRelu",
          "Mul", "Sub", "Tanh", "Elu", "PRelu", "Softplus", "Greater", "Where", "Gelu", "Erf", "Div", "Pow", "Sqrt",
          "Exp", "Neg", "Abs"}  # fmt: skip
_WINDOWS = {"Conv", "MaxPool", "AveragePool"}
_MOST_AXES = 3  # of a volume


@dataclass(frozen=True)
class Boundary:
    """A place where a single tensor connects all earlier layers with all later ones.

    Attributes:
        tensor: name of the tensor.
        shape: shape of one example.
        position: number of layers before it.
        weighted: number of layers with weights before it.
    """

    tensor: str
    shape: tuple[int, ...]
    position: int
    weighted: int


def boundaries(model: Model) -> tuple[Boundary, ...]:
    """Boundaries of a model with one input, in order: for each layer with weights where its values are final.

    That is behind normalisation and activation, but before nodes that change the tensor's shape.
    """
    if len(model.inputs) != 1 or not model.inputs[0].shape:
        return ()
    weighted = [any(node.op in WEIGHTED for node in nodes) for nodes in model.nodes]
    source = model.inputs[0].name
    places: dict[int, Boundary] = {0: Boundary(source, model.inputs[0].shape[1:], 0, 0)}
    readers = (
        place
        for place, nodes in enumerate(model.nodes)
        if any(operand is not None and operand.name == source for node in nodes for operand in node.inputs)
    )
    last_reader = max(readers, default=0)
    for cut in model.cuts:
        if cut.position <= last_reader:  # the input is no tensor of a cut, and connects what reads it, too
            continue
        tensor = cut.tensors[0] if len(cut.tensors) == 1 and cut.obstacle is None else None
        if tensor is None or not tensor.shape or len(tensor.shape) < 2 or tensor.dtype != "float32":
            continue
        count = sum(weighted[: cut.position])
        if count and (count not in places or places[count].shape == tensor.shape[1:]):
            places[count] = Boundary(tensor.name, tensor.shape[1:], cut.position, count)
    return tuple(places.values())


def follows(node: Node) -> bool:
    """Whether a node changes the elements of one tensor independently, as normalisations and activations do."""
    return node.op in _ALIKE and sum(operand is not None and not operand.constant for operand in node.inputs) == 1


def patch_between(model: Model, start: Boundary, end: Boundary) -> Patch | None:
    """What one position of the end reads of the start; ``None``: there are no positions, or each of them reads all.

    Positions are those of a signal (channels x length), an image or a volume, whose windows convolutions and poolings
    read; or tokens, whose channels are the last axis, and of which each is read on its own.
    """
    axes = len(start.shape) - 1
    if len(end.shape) != len(start.shape) or not axes:
        return None
    nodes = [node for layer in model.nodes[start.position : end.position] for node in layer]
    if axes <= _MOST_AXES and (windows := _windows(nodes, start, end)) is not None:
        return _patch(windows, start.shape[1:], end.shape[1:])
    if axes < _MOST_AXES and _on_their_own(nodes, start, end):
        return Patch(kernel=(1, 1), layout="tokens")
    return None


class _Window(NamedTuple):
    """What a position reads along one axis: so many before and behind it; and the step to the next position."""

    before: int
    behind: int
    step: int


def _patch(windows: Sequence[_Window], size: Sequence[int], positions: Sequence[int]) -> Patch | None:
    kernel = [window.before + window.behind + 1 for window in windows]
    if math.prod(kernel) >= math.prod(size) and math.prod(positions) == 1:
        return None
    behind = [  # less than 0 where the last ones are not read, so that nothing is padded
        max(0, (count - 1) * window.step + reach - length - window.before)
        for window, reach, length, count in zip(windows, kernel, size, positions, strict=True)
    ]
    sides = [(k, w.step, w.before, after) for k, w, after in zip(kernel, windows, behind, strict=True)]
    down, across = sides[-2] if len(sides) > 1 else (1, 1, 0, 0), sides[-1]
    return Patch(
        kernel=(down[0], across[0]),
        stride=(down[1], across[1]),
        padding=(down[2], across[2], down[3], across[3]),
        border=max(*down[2:], *across[2:]) > 0,
        layout="volume" if len(sides) == _MOST_AXES else "image",
        depth=sides[0] if len(sides) == _MOST_AXES else (1, 1, 0, 0),
    )


def _windows(nodes: Sequence[Node], start: Boundary, end: Boundary) -> tuple[_Window, ...] | None:
    """What a position of the end reads along each axis; ``None``: positions are mixed in another way."""
    axes = len(start.shape) - 1
    reach = {start.tensor: (_Window(0, 0, 1),) * axes}
    for node in nodes:
        known = [reach[operand.name] for operand in node.inputs if operand is not None and operand.name in reach]
        if not known:
            if any(operand is not None and not operand.constant for operand in node.inputs):
                return None
            continue
        if len({tuple(window.step for window in windows) for windows in known}) > 1:
            return None
        merged = tuple(
            _Window(*(max(side) for side in zip(*windows, strict=True))) for windows in zip(*known, strict=True)
        )
        if node.op in _WINDOWS:
            widened = _widened(node, merged)
            if widened is None:
                return None
            merged = widened
        elif node.op not in _ALIKE:
            return None
        reach[node.outputs[0].name] = merged
    return reach.get(end.tensor)


def _widened(node: Node, windows: tuple[_Window, ...]) -> tuple[_Window, ...] | None:
    """What is read in front of a convolution or pooling; ``None``: it says not how it pads."""
    axes = len(windows)
    kernel, stride, dilation = (_along(node, name, axes) for name in ("kernel_shape", "strides", "dilations"))
    pads = _along(node, "pads", 2 * axes, 0)
    if "kernel_shape" not in node.attributes or node.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    if None in (kernel, stride, dilation, pads):
        return None
    assert kernel is not None and stride is not None and dilation is not None and pads is not None  # noqa: PT018
    return tuple(
        _Window(
            window.before + pad * window.step,
            window.behind + (apart * (size - 1) - pad) * window.step,
            window.step * step,
        )
        for window, size, step, apart, pad in zip(windows, kernel, stride, dilation, pads[:axes], strict=True)
    )


def _along(node: Node, name: str, count: int, default: int = 1) -> tuple[int, ...] | None:
    """An attribute with a number for each axis; ``None``: it has others."""
    attribute = node.attributes.get(name, (default,) * count)
    values: Sequence[object] = attribute if isinstance(attribute, tuple) else ()
    if len(values) != count or not all(isinstance(value, int) for value in values):
        return None
    return tuple(int(str(value)) for value in values)


def _on_their_own(nodes: Sequence[Node], start: Boundary, end: Boundary) -> bool:
    """Whether each token of the end depends on the same token of the start alone."""
    reach = {start.tensor}
    for node in nodes:
        first, *others = node.inputs
        known = [operand for operand in node.inputs if operand is not None and operand.name in reach]
        rest = [operand for operand in node.inputs if operand is not None and operand.name not in reach]
        if any(not operand.constant for operand in rest):
            return False
        if not known:
            continue
        if node.op == "MatMul":
            weight = others[0]
            alone = first in known and weight is not None and weight.constant and len(weight.shape or ()) == 2
        elif node.op == "LayerNormalization":
            alone = first in known and node.attributes.get("axis", -1) in (-1, len(start.shape))
        else:
            alone = node.op in _ALIKE
        if not alone:
            return False
        reach.add(node.outputs[0].name)
    return end.tensor in reach


@dataclass(frozen=True)
class Span:
    """A group: the layers between two boundaries, and what one position of its output reads."""

    start: Boundary
    end: Boundary
    patch: Patch | None

    @property
    def first(self) -> int:
        """Number of its first layer with weights."""
        return self.start.weighted

    @property
    def last(self) -> int:
        """Number of its last layer with weights."""
        return self.end.weighted - 1

    @property
    def layers(self) -> int:
        """Number of layers with weights."""
        return self.end.weighted - self.start.weighted

    def __str__(self) -> str:
        return f"layers {self.first} to {self.last}" if self.layers > 1 else f"layer {self.first}"


def spans(
    model: Model,
    *,
    first: int | None = None,
    layers: int | None = None,
    step: int = 1,
    free: Callable[[Span], bool] = lambda _: True,
    drawn: np.random.Generator | None = None,
) -> list[Span]:
    """Candidates in the order of their first layer, then of their length.

    Raises:
        InputError: both ends are given, and the group has more than one tensor at its input or output.
    """
    places: dict[int, Boundary] = {boundary.weighted: boundary for boundary in boundaries(model)}
    if first is not None and layers is not None and not {first, first + layers} <= places.keys():
        ends = ", ".join(map(str, sorted(places)))
        raise InputError(
            f"layers {first} to {first + layers - 1} are not a group with a single tensor at its input and its output",
            where=model.name,
            remedy=f"begin and end a group before one of the layers {ends}: residual blocks cannot be divided",
        )
    groups = []
    for start in [first] if first is not None else sorted(places):
        for length in [layers] if layers is not None else range(1, max(places, default=0) + 1, step):
            if start in places and start + length in places:
                a, b = places[start], places[start + length]
                span = Span(a, b, patch_between(model, a, b))
                if free(span):
                    groups.append(span)
    if drawn is not None and first is None and groups:
        start = drawn.choice(sorted({span.first for span in groups}))
        groups = [span for span in groups if span.first == start]
    return groups
