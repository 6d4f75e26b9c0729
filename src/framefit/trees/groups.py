"""Groups of layers that trees can replace: boundaries with a single tensor, and what a position reads between two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from framefit.core.model import Model, Node
from framefit.core.trees import Patch, as_image
from framefit.errors import InputError

__all__ = ["boundaries"]


WEIGHTED = {"Conv", "Gemm", "MatMul"}
"""Operators with weights, by which layers are counted."""
_ALIKE = {"Relu", "Add", "BatchNormalization", "Clip", "Identity", "Sigmoid", "HardSwish", "HardSigmoid", "LeakyRelu",
          "Mul", "Sub", "Tanh", "Elu", "PRelu", "Softplus", "Greater", "Where"}  # fmt: skip
_WINDOWS = {"Conv", "MaxPool", "AveragePool"}


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
    places: dict[int, Boundary] = {0: Boundary(model.inputs[0].name, model.inputs[0].shape[1:], 0, 0)}
    for cut in model.cuts:
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

    A signal, channels x length, is an image of one row.
    """
    if len(start.shape) not in (2, 3) or len(end.shape) != len(start.shape):
        return None
    (_, *size), (_, *positions) = as_image(start.shape), as_image(end.shape)
    reach = {start.tensor: (0, 0, 1, 0, 0, 1)}  # up, down, vertical stride; left, right, horizontal stride
    for nodes in model.nodes[start.position : end.position]:
        for node in nodes:
            if not _follow(node, reach):
                return None
    if end.tensor not in reach:
        return None
    up, down, step, left, right, across = reach[end.tensor]
    kernel = (up + down + 1, left + right + 1)
    if math.prod(kernel) >= math.prod(size) and math.prod(positions) == 1:
        return None
    bottom = (positions[0] - 1) * step + kernel[0] - size[0] - up
    end_right = (positions[1] - 1) * across + kernel[1] - size[1] - left
    if bottom < 0 or end_right < 0:  # the last rows or columns are not read, so nothing is padded
        bottom, end_right = max(bottom, 0), max(end_right, 0)
    border = max(up, left, bottom, end_right) > 0
    return Patch(kernel=kernel, stride=(step, across), padding=(up, left, bottom, end_right), border=border)


def _follow(node: Node, reach: dict[str, tuple[int, int, int, int, int, int]]) -> bool:
    """Record what a node's output reads; return False for one that mixes positions in another way."""
    known = [reach[operand.name] for operand in node.inputs if operand is not None and operand.name in reach]
    if not known:
        return all(operand is None or operand.constant for operand in node.inputs)
    merged = tuple(max(sides) for sides in zip(*known, strict=True))
    if any((patch[2], patch[5]) != (merged[2], merged[5]) for patch in known):
        return False
    up, down, step, left, right, across = merged
    if node.op in _WINDOWS:
        kernel, stride, dilation = (_pair(node, name) for name in ("kernel_shape", "strides", "dilations"))
        pads = node.attributes.get("pads", (0, 0, 0, 0))
        if "kernel_shape" not in node.attributes or node.attributes.get("auto_pad", "NOTSET") != "NOTSET":
            return False
        if not isinstance(pads, tuple) or len(pads) not in (2, 4):
            return False
        top, before = (int(pads[0]), int(pads[1])) if len(pads) == 4 else (0, int(pads[0]))
        up, down = up + top * step, down + (dilation[0] * (kernel[0] - 1) - top) * step
        left, right = left + before * across, right + (dilation[1] * (kernel[1] - 1) - before) * across
        step, across = step * stride[0], across * stride[1]
    elif node.op not in _ALIKE:
        return False
    reach[node.outputs[0].name] = (up, down, step, left, right, across)
    return True


def _pair(node: Node, name: str) -> tuple[int, int]:
    """An attribute of rows and columns, 1 where it is missing; a signal has one row."""
    attribute = node.attributes.get(name)
    values: Sequence[object] = attribute if isinstance(attribute, tuple) else ()
    if len(values) not in (1, 2) or not all(isinstance(value, int) for value in values):
        return 1, 1
    return (int(str(values[0])) if len(values) == 2 else 1), int(str(values[-1]))


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
