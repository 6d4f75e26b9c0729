"""Operators that only move elements."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from framefit.training.extra import torch
from framefit.training.operators.registry import Compute, Site, operator

Tensor = Any  # torch.Tensor
functional = torch.nn.functional


@operator("Reshape")
def _reshape(site: Site) -> Compute:
    target = site.given(1, "shape")
    if target is None:
        raise site.refused("it has no target shape")
    literal = bool(site.number("allowzero", 0))

    def compute(x: Tensor, *_: Tensor) -> Tensor:
        sizes = [x.shape[axis] if size == 0 and not literal else size for axis, size in enumerate(target)]
        return x.reshape(sizes)

    return compute


@operator("Flatten")
def _flatten(site: Site) -> Compute:
    axis = int(site.number("axis", 1))
    if axis == 1:
        return lambda x: x.flatten(1)

    def compute(x: Tensor) -> Tensor:
        place = axis % (x.dim() + 1) if axis < 0 else axis
        return x.reshape(math.prod(x.shape[:place]), -1)

    return compute


@operator("Transpose")
def _transpose(site: Site) -> Compute:
    order = site.ints("perm", ())
    return lambda x: x.permute(order or tuple(range(x.dim()))[::-1])


@operator("Squeeze", "Unsqueeze")
def _squeeze(site: Site) -> Compute:
    axes = site.given(1, "axes")
    if site.node.op == "Squeeze":
        if axes is None:
            raise site.refused("it names no axes")
        return lambda x, *_: x.squeeze(tuple(axes))
    rank = len(site.node.outputs[0].shape or ())
    places = sorted(axis % rank for axis in axes or ())
    return lambda x, *_: functools.reduce(lambda y, axis: y.unsqueeze(axis), places, x)


@operator("Concat")
def _concat(site: Site) -> Compute:
    axis = int(site.number("axis", 0))

    def compute(*parts: Tensor) -> Tensor:
        place = axis % parts[0].dim()
        if place and len({part.shape[0] for part in parts}) > 1:  # a constant, such as a class token, of batch 1
            batch = max(part.shape[0] for part in parts)
            parts = tuple(part.expand(batch, *part.shape[1:]) for part in parts)
        return torch.cat(parts, place)

    return compute


@operator("Split")
def _split(site: Site) -> Compute:
    axis = int(site.number("axis", 0))
    sizes = site.given(1, "split")
    if sizes is None:
        shapes = [output.shape for output in site.node.outputs]
        if any(shape is None for shape in shapes):
            raise site.refused("the shapes of its outputs depend on the data")
        sizes = [shape[axis] for shape in shapes if shape is not None]
    return lambda x, *_: torch.split(x, sizes, dim=axis)


@operator("Slice")
def _slice(site: Site) -> Compute:
    starts, ends = site.given(1, "starts"), site.given(2, "ends")
    axes, steps = site.given(3, "axes"), site.given(4, "steps")
    if starts is None or ends is None:
        raise site.refused("it names no bounds")
    places = list(range(len(starts))) if axes is None else axes
    if steps is not None and any(step < 1 for step in steps):
        raise site.refused(f"its steps are {steps}")
    strides = steps or [1] * len(starts)

    def compute(x: Tensor, *_: Tensor) -> Tensor:
        index = [slice(None)] * x.dim()
        for axis, start, end, step in zip(places, starts, ends, strides, strict=True):
            index[axis % x.dim()] = slice(start, end, step)
        return x[tuple(index)]

    return compute


@operator("Gather")
def _gather(site: Site) -> Compute:
    axis = int(site.number("axis", 0))
    if 1 not in site.fixed:  # a table of embeddings
        if axis:
            raise site.refused("it picks what the data say along an axis that is not the first")
        return lambda table, rows: table[rows.long()]
    chosen = site.fixed[1]
    if chosen.ndim == 0:
        return lambda x, _: x.select(axis, int(chosen))
    rows = torch.from_numpy(np.ascontiguousarray(chosen.astype(np.int64)))

    def compute(x: Tensor, _: Tensor) -> Tensor:
        place = axis % x.dim()
        flat = torch.where(rows < 0, rows + x.shape[place], rows).flatten()
        return x.index_select(place, flat).reshape(*x.shape[:place], *rows.shape, *x.shape[place + 1 :])

    return compute


@operator("Expand")
def _expand(site: Site) -> Compute:
    target = site.given(1, "shape")
    if target is None:
        raise site.refused("it has no target shape")
    return lambda x, *_: x.expand(torch.broadcast_shapes(tuple(x.shape), tuple(target)))


@operator("Pad")
def _pad(site: Site) -> Compute:
    pads = site.given(1, "pads")
    if pads is None or site.given(3, "axes") is not None:
        raise site.refused("it pads chosen axes only")
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    kind = mode[site.text("mode", "constant")]
    value = float(np.ravel(site.fixed[2])[0]) if 2 in site.fixed and site.fixed[2].size else site.number("value", 0.0)
    half = len(pads) // 2
    order = [size for axis in reversed(range(half)) for size in (pads[axis], pads[half + axis])]
    while len(order) > 2 and kind != "constant" and not any(order[-2:]):
        del order[-2:]  # PyTorch reflects and repeats along the last axes only
    if kind == "constant":
        return lambda x, *_: functional.pad(x, order, value=value)
    return lambda x, *_: functional.pad(x, order, mode=kind)
