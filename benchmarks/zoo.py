"""Networks from code for the latency benchmarks: eight kinds, and others to audit a table with.

Weights are random; only what computing them takes means anything. Networks of ``ARCHITECTURES``
are asked about; those of ``AUDITED`` differ from them in widths, resolutions, blocks or all of
these, and are what a table's correction may be fitted on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from framefit.core.model import GraphBuilder, Model

__all__ = ["ARCHITECTURES", "AUDITED", "mobilenet"]

Build = Callable[[], Model]


def _classified(b: GraphBuilder, x: str, classes: int) -> Model:
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    b.output(b.op("Softmax", b.dense(x, classes), axis=1), "classes")
    return b.build()


def plain(name: str, side: int, widths: Sequence[int], depth: int, classes: int = 10) -> Model:
    """Convolutions in a chain, pools between stages (Simonyan and Zisserman, 2014, VGG)."""
    b = GraphBuilder(name, 1)
    x = b.input("image", (1, 3, side, side))
    for width in widths:
        for _ in range(depth):
            x = b.conv(x, width, norm=True, activation="Relu")
        x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.dense(b.op("Flatten", x), 128, activation="Relu")
    b.output(b.dense(x, classes), "classes")
    return b.build()


def residual(name: str, side: int, widths: Sequence[int], blocks: int, *, bottleneck: bool = False) -> Model:
    """Sums over skip connections (He et al., 2015, "Deep Residual Learning for Image Recognition")."""
    b = GraphBuilder(name, 2)
    x = b.conv(b.input("image", (1, 3, side, side)), widths[0], stride=2 if side > 64 else 1, norm=True)
    x = b.op("Relu", x)
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = x
            if bottleneck:
                y = b.conv(y, width // 4, kernel=1, norm=True, activation="Relu")
                y = b.conv(y, width // 4, stride=stride, norm=True, activation="Relu")
                y = b.conv(y, width, kernel=1, norm=True)
            else:
                y = b.conv(y, width, stride=stride, norm=True, activation="Relu")
                y = b.conv(y, width, norm=True)
            if stride > 1 or b.channels(x) != width:
                x = b.conv(x, width, kernel=1, stride=stride, norm=True)
            x = b.op("Relu", b.op("Add", y, x))
    return _classified(b, x, 10)


def mobilenet(
    name: str,
    side: int,
    stages: Sequence[tuple[int, int, int]],
    *,
    expansion: int = 4,
    squeeze: str = "",
    last: int = 0,
) -> Model:
    """Inverted residuals (Sandler et al., 2018, "MobileNetV2"), with squeeze and excitation where asked.

    Args:
        name: of the model.
        side: of the picture.
        stages: channels, blocks, stride of the first.
        expansion: of a block's inner channels.
        squeeze: activation of the inner layers of blocks with squeeze and excitation (Hu et al.,
            2017, "Squeeze-and-Excitation Networks"); "": without.
        last: channels of a convolution before the classifier; 0: none.
    """
    b = GraphBuilder(name, 3)
    activation = squeeze or "Relu"
    x = b.conv(b.input("image", (1, 3, side, side)), stages[0][0], stride=2, norm=True, activation=activation)
    for channels, blocks, first in stages:
        for block in range(blocks):
            stride = 1 if block else first
            wide = b.channels(x) * expansion
            y = b.conv(x, wide, kernel=1, norm=True, activation=activation)
            y = b.conv(y, wide, stride=stride, groups=wide, norm=True, activation=activation)
            if squeeze:
                s = b.conv(b.op("GlobalAveragePool", y), wide // 4, kernel=1, activation="Relu")
                y = b.op("Mul", y, b.conv(s, wide, kernel=1, activation="HardSigmoid"))
            y = b.conv(y, channels, kernel=1, norm=True)
            x = b.op("Add", x, y) if stride == 1 and b.channels(x) == channels else y
    if last:
        x = b.conv(x, last, kernel=1, norm=True, activation=activation)
    return _classified(b, x, 100 if last < 1000 else 1000)


def dense_blocks(name: str, side: int, growth: int, blocks: Sequence[int]) -> Model:
    """Every layer of a block reads all before it (Huang et al., 2016, "Densely Connected ... Networks")."""
    b = GraphBuilder(name, 4)
    x = b.conv(b.input("image", (1, 3, side, side)), 2 * growth, stride=2 if side > 64 else 1, norm=True)
    for index, layers in enumerate(blocks):
        for _ in range(layers):
            y = b.op("Relu", b.batch_norm(x))
            y = b.conv(y, 4 * growth, kernel=1, norm=True, activation="Relu")
            x = b.op("Concat", x, b.conv(y, growth), axis=1)
        if index + 1 < len(blocks):
            x = b.conv(b.op("Relu", b.batch_norm(x)), b.channels(x) // 2, kernel=1)
            x = b.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return _classified(b, x, 10)


def vit(name: str, side: int, patch: int, width: int, heads: int, blocks: int, ratio: int = 4) -> Model:
    """Attention over patches (Dosovitskiy et al., 2020, "An Image is Worth 16x16 Words")."""
    b = GraphBuilder(name, 5)
    tokens = (side // patch) ** 2

    def shaped(x: str, *shape: int) -> str:
        return str(b.op("Reshape", x, b.constant(np.asarray(shape, np.int64))))

    def linear(x: str, features: int) -> str:
        x = b.op("MatMul", x, b.weight((b.channels(x, -1), features), b.channels(x, -1)))
        return str(b.op("Add", x, b.constant(np.zeros(features, np.float32))))

    def normalised(x: str) -> str:
        scale, shift = b.constant(np.ones(width, np.float32)), b.constant(np.zeros(width, np.float32))
        return str(b.op("LayerNormalization", x, scale, shift, axis=-1))

    def head(x: str, perm: Sequence[int]) -> str:
        return str(b.op("Transpose", shaped(linear(x, width), 1, tokens, heads, width // heads), perm=list(perm)))

    picture = b.input("image", (1, 3, side, side))
    weight = b.weight((width, 3, patch, patch), 3 * patch * patch)
    x = b.op("Conv", picture, weight, kernel_shape=[patch, patch], strides=[patch, patch])
    x = b.op("Transpose", shaped(x, 1, width, tokens), perm=[0, 2, 1])
    x = b.op("Add", x, b.weight((1, tokens, width), 50))
    for _ in range(blocks):
        y = normalised(x)
        query, key, value = head(y, (0, 2, 1, 3)), head(y, (0, 2, 3, 1)), head(y, (0, 2, 1, 3))
        scores = b.op("Mul", b.op("MatMul", query, key), b.constant(np.float32((width // heads) ** -0.5)))
        y = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        x = b.op("Add", x, linear(shaped(y, 1, tokens, width), width))
        y = linear(normalised(x), ratio * width)
        half = b.op("Mul", y, b.constant(np.float32(0.5)))  # Gelu as exporters write it
        y = b.op("Erf", b.op("Div", y, b.constant(np.float32(2**0.5))))
        y = b.op("Mul", half, b.op("Add", y, b.constant(np.float32(1))))
        x = b.op("Add", x, linear(y, width))
    x = b.op("ReduceMean", normalised(x), axes=[1], keepdims=0)
    b.output(b.dense(x, 10), "classes")
    return b.build()


def unet(name: str, side: int, widths: Sequence[int], convolutions: int = 2) -> Model:
    """Encoder and decoder with skip connections (Ronneberger et al., 2015, "U-Net")."""
    b = GraphBuilder(name, 6)
    x = b.input("image", (1, 3, side, side))
    skips = []
    for level, width in enumerate(widths):
        if level:
            skips.append(x)
            x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        for _ in range(convolutions):
            x = b.conv(x, width, norm=True, activation="Relu")
    for width, skip in zip(reversed(widths[:-1]), reversed(skips), strict=True):
        x = b.op("Concat", b.upsample(x), skip, axis=1)
        for _ in range(convolutions):
            x = b.conv(x, width, norm=True, activation="Relu")
    b.output(b.op("Sigmoid", b.conv(x, 1, kernel=1)), "mask")
    return b.build()


def lstm(name: str, steps: int, features: int, hidden: int, layers: int, *, front: int = 0) -> Model:
    """Recurrent layers over frames of sound, behind a convolution over time where ``front`` > 0."""
    b = GraphBuilder(name, 7)
    x = b.input("sound", (steps, 1, features))
    if front:
        x = b.op("Transpose", x, perm=[1, 2, 0])
        weight = b.weight((front, features, 3), 3 * features)
        x = b.op("Relu", b.op("Conv", x, weight, kernel_shape=[3], pads=[1, 1]))
        x = b.op("Transpose", x, perm=[2, 0, 1])
    for _ in range(layers):
        width = b.channels(x, 2)
        w, r = b.weight((1, 4 * hidden, width), width), b.weight((1, 4 * hidden, hidden), 4 * hidden)
        bias = b.constant(np.zeros((1, 8 * hidden), np.float32))
        y, _, _ = b.op("LSTM", x, w, r, bias, outputs=3, hidden_size=hidden)
        x = b.op("Squeeze", y, b.constant(np.asarray([1], np.int64)))
    x = b.op("MatMul", x, b.weight((hidden, 40), hidden))
    b.output(b.op("Softmax", x, axis=-1), "words")
    return b.build()


_SMALL = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 2, 2))
_MEDIUM = ((16, 2, 1), (24, 2, 2), (40, 3, 2), (80, 3, 2), (112, 2, 1))
_V2 = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
_ODD = ((24, 2, 1), (36, 2, 2), (72, 3, 2), (144, 2, 2))


def _named(builds: dict[str, functools.partial[Model]]) -> dict[str, Build]:
    return {name: functools.partial(build.func, name, *build.args, **build.keywords) for name, build in builds.items()}


_part = functools.partial

ARCHITECTURES: dict[str, Build] = _named(
    {
        "plain-s": _part(plain, 32, (16, 32, 64), 2),
        "plain-m": _part(plain, 64, (16, 32, 64, 128), 2),
        "plain-l": _part(plain, 96, (32, 64, 128, 128), 2),
        "residual-s": _part(residual, 32, (16, 32, 64), 2),
        "residual-m": _part(residual, 64, (32, 64, 128), 2),
        "residual-l": _part(residual, 128, (64, 128, 256), 3, bottleneck=True),
        "inverted-s": _part(mobilenet, 96, _SMALL),
        "inverted-m": _part(mobilenet, 128, _MEDIUM, expansion=6),
        "inverted-l": _part(mobilenet, 224, _V2, expansion=6, last=1280),
        "squeeze-s": _part(mobilenet, 96, _SMALL, squeeze="HardSwish"),
        "squeeze-m": _part(mobilenet, 128, _MEDIUM, squeeze="HardSwish"),
        "squeeze-l": _part(mobilenet, 192, _MEDIUM, expansion=6, squeeze="Relu", last=480),
        "dense-s": _part(dense_blocks, 32, 8, (3, 3, 3)),
        "dense-m": _part(dense_blocks, 64, 16, (4, 4)),
        "dense-l": _part(dense_blocks, 128, 16, (4, 6, 8)),
        "vit-s": _part(vit, 64, 8, 64, 2, 2),
        "vit-m": _part(vit, 96, 8, 128, 4, 3),
        "vit-l": _part(vit, 160, 16, 192, 3, 6),
        "unet-s": _part(unet, 64, (8, 16, 32)),
        "unet-m": _part(unet, 96, (16, 32, 64)),
        "unet-l": _part(unet, 128, (16, 32, 64, 128)),
        "lstm-s": _part(lstm, 50, 40, 64, 1),
        "lstm-m": _part(lstm, 80, 64, 128, 2),
        "lstm-l": _part(lstm, 100, 80, 192, 2, front=128),
    }
)
"""Name -> network that is asked about."""

AUDITED: dict[str, Build] = _named(
    {
        "plain-a": _part(plain, 48, (24, 48, 96), 1),
        "plain-b": _part(plain, 80, (32, 48, 64), 3),
        "residual-a": _part(residual, 48, (24, 48, 96), 1),
        "residual-b": _part(residual, 96, (48, 96, 192), 2),
        "residual-c": _part(residual, 112, (96, 192), 2, bottleneck=True),
        "inverted-a": _part(mobilenet, 80, _ODD),
        "inverted-b": _part(mobilenet, 160, _MEDIUM, expansion=3, last=640),
        "squeeze-a": _part(mobilenet, 112, _ODD, squeeze="HardSwish"),
        "squeeze-b": _part(mobilenet, 160, _SMALL, expansion=6, squeeze="Relu"),
        "dense-a": _part(dense_blocks, 48, 12, (3, 4)),
        "dense-b": _part(dense_blocks, 96, 16, (3, 5, 3)),
        "vit-a": _part(vit, 64, 8, 96, 3, 2),
        "vit-b": _part(vit, 128, 16, 160, 5, 4, 3),
        "unet-a": _part(unet, 80, (12, 24, 48)),
        "unet-b": _part(unet, 112, (24, 48, 72), 1),
        "lstm-a": _part(lstm, 60, 48, 96, 1),
        "lstm-b": _part(lstm, 90, 56, 160, 2, front=96),
    }
)
"""Name -> network that corrects a table."""
