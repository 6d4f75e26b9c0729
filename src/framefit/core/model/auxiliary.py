"""Auxiliary layers: they are appended to a layer so that the two can be timed as one launch.

The latency of a layer cannot be read off start and end of its launch alone. A cheap layer behind it, whose own
cost is measured separately, determines how many bytes are returned and in which layout, so that the overhead can be
separated from the layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from framefit.core.files import Record
from framefit.core.model.builder import GraphBuilder
from framefit.core.model.graph import TensorInfo
from framefit.core.model.model import Model

AuxiliaryKind = Literal["avgpool", "conv1x1", "conv3x3"]
AUXILIARY_KINDS: tuple[AuxiliaryKind, ...] = ("avgpool", "conv1x1", "conv3x3")
_MOST_CHANNELS = 64  # of an image made of a tensor of another rank


class Auxiliary(Record, kw_only=True):
    """One auxiliary layer.

    It reads every element of its tensor: a compiler may leave out what nobody reads, and move a strided 1x1
    convolution's stride into the layer before (OpenVINO's ``StridesOptimization`` does), which then takes a quarter of
    its time.

    Attributes:
        kind: average pool; Conv 1x1, whose kernel is as large as its stride; or Conv 3x3.
        stride: in both directions; 1 in a direction that is shorter. A pool of stride 1 averages over 3 x 3.
        channels: of a convolution's output.
    """

    kind: AuxiliaryKind
    stride: int = 2
    channels: int = 16

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Shape of its output for a tensor of this shape, of any rank."""
        batch, channels, *sizes = picture_shape(shape)
        padded = self.kind == "conv3x3" or (self.kind == "avgpool" and self.stride == 1)
        steps = zip(sizes, self.strides(sizes), strict=True)
        height, width = (-(-size // step) if padded else size // step for size, step in steps)
        return batch, channels if self.kind == "avgpool" else self.channels, height, width

    def strides(self, sizes: Sequence[int]) -> list[int]:
        """Its stride in each direction of an image."""
        return [self.stride if size >= self.stride else 1 for size in sizes]

    def macs(self, shape: tuple[int, ...]) -> int:
        """Multiply-accumulates for a tensor of this shape; for a pool, elements that it reads."""
        if self.kind == "avgpool":
            return math.prod(shape)
        _, channels, *sizes = picture_shape(shape)
        area = 9 if self.kind == "conv3x3" else math.prod(self.strides(sizes))
        return math.prod(self.output_shape(shape)) * channels * area


def picture_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """N x C x H x W with the elements of ``shape`` in the same order; four dimensions stay unchanged."""
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    elements = math.prod(shape)
    channels = _divisor(elements, _MOST_CHANNELS)
    height = _divisor(elements // channels, math.isqrt(elements // channels))
    return 1, channels, height, elements // channels // height


def with_auxiliary(
    source: Model | TensorInfo,
    links: Sequence[Auxiliary],
    *,
    tensor: str | None = None,
    variants: Sequence[int] = (0,),
    shown: bool = False,
    seed: int = 0,
) -> Model:
    """Append auxiliary layers to a model's output, or make them alone behind a graph input.

    Whole numbers, and floats other than float32, are cast first; a tensor that is not an image is reshaped first.
    Both also happen when the auxiliary layer runs alone.

    Args:
        source: the model, or the tensor that is the only graph input.
        links: successive auxiliary layers; none: the source itself.
        tensor: the model's output to which they are appended; the model's other outputs are returned
            with that of the last link.
        variants: of the last link, in parallel on the same tensor, all returned: (0, 1) is the layer and
            its twin. They differ in their weights, or in an attribute that does not affect a pool, so that
            no optimiser merges them.
        shown: whether the output of each link is returned, not only that of the last one.
        seed: for the weights.

    Returns:
        A model that runs alone: all of its inputs and outputs are transferred between host and device.
    """
    if isinstance(source, Model):
        builder = GraphBuilder(source.name, seed, base=source)
        outputs = [output.name for output in source.outputs if not links or output.name != tensor]
    else:
        assert source.shape is not None
        builder, outputs = GraphBuilder("auxiliary", seed), []
        tensor = builder.input(source.name, source.shape, np.dtype(source.dtype))
    returned: list[str] = []
    if links:
        assert tensor is not None
        x = _picture(builder, tensor)
        for link in links[:-1]:
            x = _appended(builder, x, link, 0)
            returned += [x] * shown
        returned += [_appended(builder, x, links[-1], variant) for variant in variants]
    for name in (*returned, *outputs):
        builder.output(name)
    return builder.build()


def led(model: Model) -> Model:
    """The same model with every input written by a leading layer, as a predecessor would write it.

    Where host and device share their memory nothing is transferred, and a layer has to find its input in the caches
    and its buffers in the memory that the runtime plans.
    """
    builder = GraphBuilder(model.name, base=model)
    for tensor in model.inputs:
        if tensor.shape:
            builder.lead(tensor.name)
    for tensor in model.outputs:
        builder.output(tensor.name)
    return builder.build()


def auxiliary_runs(source: TensorInfo, link: Auxiliary, seed: int = 0) -> tuple[Model, Model, Model]:
    """Auxiliary layers alone on a tensor that a leading layer writes, to be run as they are.

    Returns:
        One layer; two on the same tensor; two tensors with one layer each.
    """
    assert source.shape is not None
    made = []
    for tensors, readers in ((1, 1), (1, 2), (2, 1)):
        builder = GraphBuilder("auxiliary", seed, lowered=True)
        for place in range(tensors):
            x = builder.input(f"x{place}", source.shape, np.dtype(source.dtype))
            picture = _picture(builder, x)
            for variant in range(readers):
                builder.output(_appended(builder, picture, link, place + variant))
            builder.lead(x)
        made.append(builder.build())
    return made[0], made[1], made[2]


def _picture(builder: GraphBuilder, tensor: str) -> str:
    shape = builder.shape(tensor)
    if builder.dtype(tensor) != "float32":
        tensor = str(builder.op("Cast", tensor, to=1))
    if len(shape) != 4:
        target = builder.constant(np.asarray(picture_shape(shape), np.int64), builder.fresh("shape"))
        tensor = str(builder.op("Reshape", tensor, target))
    return tensor


def _appended(builder: GraphBuilder, x: str, link: Auxiliary, variant: int) -> str:
    features, *sizes = builder.shape(x)[1:]
    strides = link.strides(sizes)
    if link.kind == "avgpool":
        padded = link.stride == 1
        kernel = [3, 3] if padded else strides
        pads = [int(padded)] * 4
        return str(
            builder.op("AveragePool", x, kernel_shape=kernel, strides=strides, pads=pads, count_include_pad=1 - variant)
        )
    kernel = [3, 3] if link.kind == "conv3x3" else strides
    weight = builder.weight((link.channels, features, *kernel), features * math.prod(kernel))
    pads = [int(link.kind == "conv3x3")] * 4
    return str(builder.op("Conv", x, weight, kernel_shape=kernel, strides=strides, pads=pads))


def _divisor(number: int, most: int) -> int:
    """The greatest divisor of a number that is at most ``most``, and at least 1."""
    return next((size for size in range(min(most, number), 1, -1) if number % size == 0), 1)
