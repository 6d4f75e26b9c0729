"""Subjects of a campaign: the distinct layers of models, and the points of a grid of layer shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from framefit.core.files import Record
from framefit.core.latency_table import Unmeasured, Value
from framefit.core.model import GraphBuilder, Model, configuration, with_auxiliary
from framefit.errors import FramefitError, InputError

Fusions = Callable[[Model], Sequence[Sequence[str]]]
_MOST_ELEMENTS = 1 << 28  # of a layer's weights: a gigabyte


@dataclass(frozen=True)
class Subject:
    """A layer as a model of its own.

    Attributes:
        op, configuration: its key in a latency table.
        layers: names of the layers that it represents.
        model: it runs alone: its inputs come from the host, its outputs are returned.
    """

    op: str
    configuration: dict[str, Value]
    layers: tuple[str, ...]
    model: Model

    @property
    def key(self) -> str:
        """A key that is the same for equal configurations."""
        return layer_key(self.op, self.configuration)


class LayerGrid(Record, kw_only=True):
    """Layers of one operator: all combinations of the listed values.

    Attributes:
        op: Conv, Gemm, MaxPool, AveragePool, or any operator that needs no parameters.
        shapes: of its input.
        channels: of a convolution's output; features of a Gemm's; 0: as many as in its input.
        kernel, stride: of Conv and pools, in both directions.
        groups: of a convolution; 0: depthwise.
        activation: following operator; "": none.
        inputs: number of inputs of that shape (2 for Add).
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    channels: tuple[int, ...] = (0,)
    kernel: tuple[int, ...] = (1,)
    stride: tuple[int, ...] = (1,)
    groups: tuple[int, ...] = (1,)
    activation: tuple[str, ...] = ("",)
    inputs: int = 1

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError("shapes must not be empty")
        for key, least in (("channels", 0), ("kernel", 1), ("stride", 1), ("groups", 0)):
            if not getattr(self, key) or min(getattr(self, key)) < least:
                raise ValueError(f"{key} must be numbers of at least {least}, is {list(getattr(self, key))}")
        if any(size < 1 for shape in self.shapes for size in shape):
            raise ValueError("sizes of a shape must be at least 1")
        if self.inputs < 1:
            raise ValueError(f"inputs must be at least 1, is {self.inputs}")


class GridSpec(Record, kw_only=True):
    """Layers to measure without a model (``framefit measure --grid``)."""

    file_kind: ClassVar[str] = "a grid of layers (SPEC.toml)"

    schema_version: int = 1
    layers: tuple[LayerGrid, ...]


def distinct_layers(
    model: Model, fusions: Fusions | None, unit: str
) -> tuple[tuple[Subject, ...], tuple[Unmeasured, ...]]:
    """Return each configuration of a model's layers once, and the layers that cannot run alone.

    Groups count as one layer; ``fusions`` come from a device, ``None``: the model is grouped already.
    """
    if fusions is not None:
        model = model.grouped(fusions(model))
    places: dict[str, list[int]] = {}
    for index, (layer, nodes) in enumerate(zip(model.layers, model.nodes, strict=True)):
        places.setdefault(layer_key(layer.op, configuration(nodes)), []).append(index)
    subjects, failed = [], []
    for indices in places.values():
        op, described = model.layers[indices[0]].op, configuration(model.nodes[indices[0]])
        names = tuple(model.layers[index].name for index in indices)
        try:
            alone = with_auxiliary(model.segment(indices[0], indices[0]), [])
        except FramefitError as error:
            failed.append(Unmeasured(op=op, configuration=described, layers=names, unit=unit, reason=error.what))
            continue
        subjects.append(Subject(op, described, names, alone))
    return tuple(subjects), tuple(failed)


def grid_models(spec: GridSpec, seed: int = 0) -> Iterator[Model]:
    """Make a model of one layer, with its activation, for each point of the grids; weights are random.

    Raises:
        InputError: a grid cannot describe the operator, or a combination fits no tensor.
    """
    for number, grid in enumerate(spec.layers):
        points = itertools.product(grid.shapes, grid.channels, grid.kernel, grid.stride, grid.groups, grid.activation)
        for shape, channels, kernel, stride, groups, activation in points:
            where = f"$.layers[{number}]"
            if max(kernel**2, 1) * max(channels, 1) * max(shape, default=1) > _MOST_ELEMENTS:
                raise InputError(
                    f"a {grid.op} of {list(shape)}, {channels} channels and kernel {kernel} is too large",
                    where=where,
                    remedy=f"keep kernel x kernel x channels x channels below {_MOST_ELEMENTS}",
                )
            builder = GraphBuilder(grid.op, seed)
            inputs = [builder.input(f"input_{index}", shape) for index in range(grid.inputs)]
            try:
                x = _layer(builder, grid.op, inputs, channels, kernel, stride, groups)
                x = builder.op(activation, x) if activation else x
                builder.output(x)
                model = builder.build()
                if not all(tensor.fixed and min(tensor.shape or (1,)) > 0 for tensor in model.outputs):
                    raise ValueError("its output has no shape")
            except (ValueError, RuntimeError, IndexError, ZeroDivisionError, AssertionError) as error:
                raise InputError(
                    f"no {grid.op} of {list(shape)}, {channels} channels, kernel {kernel}, stride {stride}, "
                    f"{groups} groups: {error}",
                    where=where,
                    remedy="correct the grid",
                ) from error
            yield model


def _layer(
    b: GraphBuilder, op: str, inputs: Sequence[str], channels: int, kernel: int, stride: int, groups: int
) -> str:
    x = inputs[0]
    if op == "Conv":
        width = b.channels(x)
        return b.conv(x, channels or width, kernel=kernel, stride=stride, groups=groups or width)
    if op == "Gemm":
        return b.dense(x, channels or b.channels(x, -1))
    if op in ("MaxPool", "AveragePool"):
        pads = [(kernel - 1) // 2] * 4
        return str(b.op(op, x, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads))
    return str(b.op(op, *inputs))


def layer_key(op: str, configuration: dict[str, Value]) -> str:
    """A key that is the same for equal configurations."""
    return msgspec.json.encode((op, configuration), order="sorted").decode()
