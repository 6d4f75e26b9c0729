"""Built-in networks: real shapes and costs, random weights.

They let every command run without a model file. They are not trained: their results mean nothing, only their
costs are realistic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from framefit.core.formats import BUILTIN_MODELS, check_model
from framefit.core.model.builder import GraphBuilder
from framefit.core.model.model import Model
from framefit.errors import InputError

__all__ = ["BUILTIN", "load_model"]


def detector(seed: int = 0) -> Model:
    """Make a network with the shape of a face detector: depthwise-separable convolutions and heads at three scales.

    Laid out like single-shot detectors (Liu et al., 2016, "SSD: Single Shot MultiBox
    Detector") on a MobileNet (Howard et al., 2017). Random weights: its boxes mean nothing.

    Input "image": 1 x 3 x 240 x 320, float32. Outputs "scores", 1 x 4360 x 2 (each
    anchor's background and face add up to 1), and "boxes", 1 x 4360 x 4.

    Args:
        seed: for the weights.
    """
    b = GraphBuilder("detector", seed)
    x = b.input("image", (1, 3, 240, 320))
    x = b.conv(x, 32, kernel=3, stride=2, norm=True, activation="Relu")
    scores, boxes = [], []
    # (channels, stride) of the blocks before each head, anchors per position of the head.
    stages = (
        ([(64, 1), (72, 2), (72, 1), (136, 2), (136, 1), (136, 1), (136, 1)], 3),
        ([(224, 2), (224, 1), (224, 1)], 2),
        ([(384, 2), (384, 1)], 2),
    )
    for blocks, anchors in stages:
        for channels, stride in blocks:
            x = _separable(b, x, channels, stride)
        scores.append(_head(b, x, anchors, 2))
        boxes.append(_head(b, x, anchors, 4))
    b.output(b.op("Softmax", b.op("Concat", *scores, axis=1), axis=2), "scores")
    b.output(b.op("Concat", *boxes, axis=1), "boxes")
    return b.build()


def depth(seed: int = 0) -> Model:
    """Make a network with the shape of monocular depth estimation: a U-Net of inverted residual blocks.

    It has an encoder of inverted residuals (Sandler et al., 2018, "MobileNetV2") and a decoder that resizes and
    concatenates the encoder's tensors of that scale (Ronneberger et al., 2015, "U-Net"). Random weights: its depths
    mean nothing.

    Input "image": 1 x 3 x 256 x 320, float32. Output "depth": 1 x 1 x 256 x 320, in 0 .. 1.

    Args:
        seed: for the weights.
    """
    b = GraphBuilder("depth", seed)
    x = b.input("image", (1, 3, 256, 320))
    x = b.conv(x, 32, kernel=3, stride=2, norm=True, activation="Relu")
    skips = []
    for channels, blocks in ((48, 3), (80, 4), (128, 6), (240, 6)):
        skips.append(x)
        for block in range(blocks):
            x = _inverted_residual(b, x, channels, stride=2 if block == 0 else 1)
    for channels, skip in zip((224, 160, 96, 56), reversed(skips), strict=True):
        x = b.conv(b.op("Concat", b.upsample(x), skip, axis=1), channels, kernel=1, norm=True, activation="Relu")
        for _ in range(4):
            x = _separable(b, x, channels, 1)
    x = _separable(b, b.upsample(b.conv(x, 24, kernel=1, norm=True, activation="Relu")), 24, 1)
    b.output(b.op("Sigmoid", _linear(b, x, 1)), "depth")
    return b.build()


BUILTIN: dict[str, Callable[[int], Model]] = dict(zip(BUILTIN_MODELS, (detector, depth), strict=True))
"""Name -> function from a seed to the network."""


def _separable(b: GraphBuilder, x: str, channels: int, stride: int) -> str:
    x = b.conv(x, b.channels(x), stride=stride, groups=b.channels(x), norm=True, activation="Relu")
    return b.conv(x, channels, kernel=1, norm=True, activation="Relu")


def _head(b: GraphBuilder, x: str, anchors: int, numbers: int) -> str:
    """Add numbers for each anchor of one scale, 1 x (height * width * anchors) x numbers."""
    x = b.conv(x, b.channels(x), groups=b.channels(x), norm=True, activation="Relu")
    x = b.op("Transpose", _linear(b, x, anchors * numbers, gain=0.1), perm=[0, 2, 3, 1])
    return str(b.op("Reshape", x, b.constant(np.asarray([1, -1, numbers], np.int64))))


def _linear(b: GraphBuilder, x: str, channels: int, gain: float = 1.0) -> str:
    """Add a 1 x 1 convolution without an activation; ``gain``: of the variance."""
    features = b.channels(x)
    weight = b.weight((channels, features, 1, 1), round(2 * features / gain))
    return str(b.op("Conv", x, weight, b.constant(np.zeros(channels, np.float32)), kernel_shape=[1, 1]))


def _inverted_residual(b: GraphBuilder, x: str, channels: int, *, stride: int) -> str:
    wide = 4 * b.channels(x)
    y = b.conv(x, wide, kernel=1, norm=True, activation="Relu")
    y = b.conv(y, wide, stride=stride, groups=wide, norm=True, activation="Relu")
    y = b.batch_norm(_linear(b, y, channels, gain=0.5))  # about the gain at which sums neither grow nor vanish
    return str(b.op("Add", x, y)) if stride == 1 and b.channels(x) == channels else y


def load_model(
    model: str | Path | Model, shapes: Mapping[str, tuple[int, ...]] | None, constants: Mapping[str, Any] | None
) -> Model:
    """Load the model that a command names: an ONNX file, or a built-in one.

    Raises:
        InputError: it is neither, or shapes are missing or do not match.
    """
    if isinstance(model, Model):
        return model
    if str(model) in BUILTIN:
        if shapes or constants:
            raise InputError(f"built-in model {str(model)!r} has fixed shapes", remedy="leave the shapes out")
        return BUILTIN[str(model)](0)
    check_model(model)
    try:
        return Model.load(model, shapes=shapes, constants=constants)
    except InputError as error:
        # The reader's remedy is a key of app.toml, which does not exist here.
        unknown = re.match(r"input '(.+)' has (the dynamic dimension|no shape)", error.what)
        if unknown is None:
            raise
        remedy = f"give all its sizes, in the form --shape {unknown[1]}=1,576"
        raise InputError(error.what, where=error.where, remedy=remedy) from error
