"""Convolutions, pooling and resizing."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from framefit.training.extra import torch
from framefit.training.operators.registry import Compute, Site, operator

Tensor = Any  # torch.Tensor
functional = torch.nn.functional


def _pads(
    site: Site, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Begins, then ends, of the spatial axes, ``auto_pad`` included."""
    automatic = site.text("auto_pad", "NOTSET")
    if automatic in ("NOTSET", "VALID"):
        return site.ints("pads", (0,) * 2 * len(kernel)) if automatic == "NOTSET" else [0] * 2 * len(kernel)
    begins, ends = [], []
    for size, width, step, spread in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / step) - 1) * step + (width - 1) * spread + 1 - size, 0)
        less, more = total // 2, total - total // 2
        begins.append(less if automatic == "SAME_UPPER" else more)
        ends.append(more if automatic == "SAME_UPPER" else less)
    return begins + ends


def _spatial(site: Site, rank: int) -> tuple[list[int], list[int]]:
    """Strides and dilations."""
    return site.ints("strides", (1,) * rank), site.ints("dilations", (1,) * rank)


def _sizes(site: Site) -> tuple[int, ...]:
    source = site.node.inputs[0]
    if source is None or source.shape is None:
        raise site.refused("the shape of its input depends on the data")
    return source.shape[2:]


def _innermost_first(pads: Sequence[int]) -> list[int]:
    """Pads in PyTorch's order: the last axis's begin and end, then those of the axis before."""
    half = len(pads) // 2
    return [size for axis in reversed(range(half)) for size in (pads[axis], pads[half + axis])]


@operator("Conv")
def _conv(site: Site) -> Compute:
    weight = site.node.inputs[1]
    if weight is None or weight.shape is None:
        raise site.refused("its weight has no shape")
    kernel = weight.shape[2:]
    rank = len(kernel)
    if not 1 <= rank <= 3:
        raise site.refused(f"it has {rank} spatial axes")
    strides, dilations = _spatial(site, rank)
    pads = _pads(site, _sizes(site), kernel, strides, dilations)
    even = pads[:rank] == pads[rank:]
    compute = functools.partial(
        (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1],
        stride=strides,
        padding=pads[:rank] if even else 0,
        dilation=dilations,
        groups=int(site.number("group", 1)),
    )
    if even:
        return compute
    order = _innermost_first(pads)
    return lambda x, w, b=None: compute(functional.pad(x, order), w, b)


@operator("ConvTranspose")
def _conv_transpose(site: Site) -> Compute:
    weight = site.node.inputs[1]
    rank = 0 if weight is None or weight.shape is None else len(weight.shape) - 2
    if not 1 <= rank <= 3 or not {"output_shape", "auto_pad"}.isdisjoint(site.node.attributes):
        raise site.refused(f"it has {rank} spatial axes, or its padding is not said by pads")
    strides, dilations = _spatial(site, rank)
    pads = site.ints("pads", (0,) * 2 * rank)
    extra = site.ints("output_padding", (0,) * rank)
    compute = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    groups = int(site.number("group", 1))
    if pads[:rank] != pads[rank:]:
        raise site.refused(f"its pads {pads} are not symmetric")
    return lambda x, w, b=None: compute(x, w, b, strides, pads[:rank], extra, groups, dilations)


@operator("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(site: Site) -> Compute:
    if site.node.op == "GlobalAveragePool":
        return lambda x: x.mean(dim=tuple(range(2, x.dim())), keepdim=True)
    return lambda x: x.amax(dim=tuple(range(2, x.dim())), keepdim=True)


def _pooling(site: Site) -> tuple[list[int], list[int], list[int], list[int]]:
    """Kernel, strides, dilations and pads."""
    kernel = site.ints("kernel_shape", ())
    if not 1 <= len(kernel) <= 3 or len(site.node.outputs) > 1:
        raise site.refused(f"it has {len(kernel)} spatial axes, {len(site.node.outputs)} outputs")
    strides, dilations = _spatial(site, len(kernel))
    return kernel, strides, dilations, _pads(site, _sizes(site), kernel, strides, dilations)


@operator("MaxPool")
def _max_pool(site: Site) -> Compute:
    kernel, strides, dilations, pads = _pooling(site)
    half = len(kernel)
    compute = functools.partial(
        (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[half - 1],
        kernel_size=kernel,
        stride=strides,
        dilation=dilations,
        ceil_mode=bool(site.number("ceil_mode", 0)),
    )
    if pads[:half] == pads[half:] and all(size <= width // 2 for size, width in zip(pads, kernel, strict=False)):
        return functools.partial(compute, padding=pads[:half])
    if site.number("ceil_mode", 0):
        raise site.refused(f"its pads {pads} are not symmetric, and it rounds up")
    order = _innermost_first(pads)
    return lambda x: compute(functional.pad(x, order, value=-math.inf))


@operator("AveragePool")
def _average_pool(site: Site) -> Compute:
    kernel, strides, dilations, pads = _pooling(site)
    half = len(kernel)
    counted, ceiled = bool(site.number("count_include_pad", 0)), bool(site.number("ceil_mode", 0))
    pool = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[half - 1]
    even = pads[:half] == pads[half:] and all(size <= width // 2 for size, width in zip(pads, kernel, strict=False))
    if any(step != 1 for step in dilations) or not (even or (counted and not ceiled)):
        raise site.refused(f"dilations {dilations} and pads {pads}: they are taken without dilation, and symmetric")
    if even:
        return functools.partial(
            pool, kernel_size=kernel, stride=strides, padding=pads[:half], ceil_mode=ceiled, count_include_pad=counted
        )
    order = _innermost_first(pads)
    return lambda x: pool(functional.pad(x, order), kernel, strides)


@operator("DepthToSpace", "SpaceToDepth")
def _depth_to_space(site: Site) -> Compute:
    size = int(site.number("blocksize", 1))
    if site.node.op == "DepthToSpace" and site.node.attributes.get("mode", "DCR") == "CRD":
        return lambda x: functional.pixel_shuffle(x, size)

    def spread(x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.reshape(batch, size, size, channels // size**2, height, width).permute(0, 3, 4, 1, 5, 2)
        return x.reshape(batch, channels // size**2, height * size, width * size)

    def gather(x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.reshape(batch, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
        return x.reshape(batch, channels * size**2, height // size, width // size)

    return spread if site.node.op == "DepthToSpace" else gather


@operator("Resize", "Upsample")
def _resize(site: Site) -> Compute:
    before, after = site.node.inputs[0], site.node.outputs[0]
    if before is None or before.shape is None or after.shape is None or before.shape[:2] != after.shape[:2]:
        raise site.refused("it resizes other axes than height and width")
    sizes = tuple(after.shape[2:])
    mode = site.text("mode", "nearest")
    place = site.text("coordinate_transformation_mode", "half_pixel" if site.opset >= 11 else "asymmetric")
    if mode == "nearest" and _repeats(site, place, before.shape[2:], sizes):
        return lambda x, *_: functional.interpolate(x, size=sizes, mode="nearest")
    smooth = mode in ("linear", "cubic") and len(sizes) == 2
    if smooth and place in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        kind = "bilinear" if mode == "linear" else "bicubic"
        aligned = place == "align_corners"
        return lambda x, *_: functional.interpolate(x, size=sizes, mode=kind, align_corners=aligned)
    raise site.refused(f"it resizes by {mode}, {place}")


def _repeats(site: Site, place: str, before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a nearest-neighbour resize takes element floor(index * before / after), as PyTorch's does."""
    rule = site.text("nearest_mode", "round_prefer_floor")
    if site.node.op == "Upsample" or (place == "asymmetric" and rule == "floor"):
        return True
    factors = [new / old for new, old in zip(after, before, strict=True)]
    whole = all(factor.is_integer() for factor in factors)
    if place in ("half_pixel", "pytorch_half_pixel") and rule.startswith("round"):
        return whole  # (i + 1/2) / factor - 1/2 is never half way between two elements
    return place == "asymmetric" and rule == "round_prefer_floor" and whole and max(factors) <= 2
