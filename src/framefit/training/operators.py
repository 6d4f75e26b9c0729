"""ONNX's operators in PyTorch: each operator's computation on tensors, by its specification."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Node
from framefit.errors import UnsupportedError
from framefit.training.extra import torch

Compute = Callable[..., Any]
"""Computes from all inputs of a node in order, as tensors; ``None`` for one that is left out."""


@dataclass(frozen=True)
class Site:
    """A node with its constant inputs.

    Attributes:
        node: as in the graph.
        fixed: values of its constant inputs, by index.
        opset: of the graph. Older forms are supported, too: axes, sizes and limits as attributes.
    """

    node: Node
    fixed: Mapping[int, npt.NDArray[Any]]
    opset: int

    def ints(self, name: str, default: Sequence[int]) -> list[int]:
        """Return an attribute of whole numbers."""
        value = self.node.attributes.get(name, tuple(default))
        return [int(size) for size in value] if isinstance(value, tuple) else [int(value)]

    def number(self, name: str, default: float) -> float:
        """Return an attribute that is a number."""
        value = self.node.attributes.get(name, default)
        assert isinstance(value, int | float)
        return value

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a word."""
        return str(self.node.attributes.get(name, default))

    def given(self, place: int, name: str) -> list[int] | None:
        """Return whole numbers of a constant input or, in older files, of an attribute; ``None``: left out.

        Raises:
            UnsupportedError: they depend on the data.
        """
        if name in self.node.attributes:
            return self.ints(name, ())
        if place >= len(self.node.inputs) or self.node.inputs[place] is None:
            return None
        if place not in self.fixed:
            raise self.refused(f"its {name} depend on the data")
        return [int(size) for size in np.ravel(self.fixed[place])]

    def refused(self, why: str) -> UnsupportedError:
        """Make the error for a node that cannot be trained; it names the node."""
        return UnsupportedError(
            why,
            where=f"{self.node.op} {self.node.name!r}",
            remedy="leave it out of the part that is trained, or export it otherwise",
        )


Maker = Callable[[Site], Compute]
OPERATORS: dict[str, Maker] = {}
"""Operator -> the function that makes its computation."""


def operator(*names: str) -> Callable[[Maker], Maker]:
    """Register a function that makes the computation of these operators."""

    def enter(make: Maker) -> Maker:
        OPERATORS.update(dict.fromkeys(names, make))
        return make

    return enter


def plain(name: str, compute: Compute) -> None:
    """Register an operator without attributes."""
    OPERATORS[name] = lambda site: compute  # noqa: ARG005 - the same function everywhere


Tensor = Any  # torch.Tensor
functional = torch.nn.functional


def _exact_divide(a: Tensor, b: Tensor) -> Tensor:
    whole = not (a.is_floating_point() or b.is_floating_point())
    return torch.div(a, b, rounding_mode="trunc" if whole else None)


for _name, _compute in {
    "Abs": torch.abs,
    "Add": torch.add,
    "And": torch.logical_and,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Div": _exact_divide,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "HardSwish": functional.hardswish,
    "Identity": lambda x: x,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Max": lambda *x: functools.reduce(torch.maximum, x),
    "Mean": lambda *x: functools.reduce(torch.add, x) / len(x),
    "Min": lambda *x: functools.reduce(torch.minimum, x),
    "Mish": functional.mish,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Or": torch.logical_or,
    "PRelu": lambda x, slope: torch.where(x < 0, slope * x, x),
    "Pow": torch.pow,
    "Reciprocal": torch.reciprocal,
    "Relu": functional.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Sum": lambda *x: functools.reduce(torch.add, x),
    "Tanh": torch.tanh,
    "Where": torch.where,
}.items():
    plain(_name, _compute)


@operator("LeakyRelu", "Elu", "Selu", "HardSigmoid", "Gelu", "Celu", "ThresholdedRelu")
def _activation(site: Site) -> Compute:
    op = site.node.op
    if op == "LeakyRelu":
        return functools.partial(functional.leaky_relu, negative_slope=site.number("alpha", 0.01))
    if op == "Elu":
        return functools.partial(functional.elu, alpha=site.number("alpha", 1.0))
    if op == "Celu":
        return functools.partial(functional.celu, alpha=site.number("alpha", 1.0))
    if op == "Gelu":
        return functools.partial(functional.gelu, approximate=site.text("approximate", "none"))
    if op == "HardSigmoid":
        slope, shift = site.number("alpha", 0.2), site.number("beta", 0.5)
        return lambda x: torch.clamp(x * slope + shift, 0, 1)
    if op == "ThresholdedRelu":
        return functools.partial(functional.threshold, threshold=site.number("alpha", 1.0), value=0.0)
    slope, scale = site.number("alpha", 1.67326319217681884765625), site.number("gamma", 1.05070102214813232421875)
    return lambda x: scale * torch.where(x > 0, x, slope * torch.expm1(x))


@operator("Clip")
def _clip(site: Site) -> Compute:
    low, high = (site.node.attributes.get(name) for name in ("min", "max"))

    def compute(x: Tensor, least: Tensor | None = None, most: Tensor | None = None) -> Tensor:
        return torch.clamp(x, least if low is None else low, most if high is None else high)

    return compute if low is None and high is None else lambda x: torch.clamp(x, low, high)


@operator("Cast")
def _cast(site: Site) -> Compute:
    dtype = getattr(torch, {"": "float32"}.get(site.node.outputs[0].dtype, site.node.outputs[0].dtype), None)
    if dtype is None:
        raise site.refused(f"it casts to {site.node.outputs[0].dtype}")
    return lambda x: x.to(dtype)


@operator("Softmax", "LogSoftmax")
def _softmax(site: Site) -> Compute:
    compute = functional.softmax if site.node.op == "Softmax" else functional.log_softmax
    axis = int(site.number("axis", -1 if site.opset >= 13 else 1))
    if site.opset >= 13:
        return functools.partial(compute, dim=axis)
    return lambda x: compute(x.flatten(axis % x.dim()), dim=-1).reshape(x.shape)  # all later axes as one


@operator("Gemm")
def _gemm(site: Site) -> Compute:
    first, second = bool(site.number("transA", 0)), bool(site.number("transB", 0))
    alpha, beta = site.number("alpha", 1.0), site.number("beta", 1.0)

    def compute(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        product = torch.matmul(a.t() if first else a, b.t() if second else b)
        product = product if alpha == 1 else alpha * product
        return product if c is None else product + (c if beta == 1 else beta * c)

    return compute


@operator("LayerNormalization")
def _layer_norm(site: Site) -> Compute:
    axis, epsilon = int(site.number("axis", -1)), site.number("epsilon", 1e-5)

    def compute(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
        shape = x.shape[axis % x.dim() :]
        return functional.layer_norm(
            x, shape, scale.expand(shape), None if shift is None else shift.expand(shape), epsilon
        )

    return compute


@operator("InstanceNormalization")
def _instance_norm(site: Site) -> Compute:
    epsilon = site.number("epsilon", 1e-5)
    return lambda x, scale, shift: functional.instance_norm(x, weight=scale, bias=shift, eps=epsilon)


@operator("GroupNormalization")
def _group_norm(site: Site) -> Compute:
    groups, epsilon = int(site.number("num_groups", 1)), site.number("epsilon", 1e-5)
    if site.opset < 21:
        raise site.refused("it has one scale for each group (before opset 21)")
    return lambda x, scale, shift: functional.group_norm(x, groups, scale, shift, epsilon)


@operator("LpNormalization")
def _lp_norm(site: Site) -> Compute:
    axis, power = int(site.number("axis", -1)), int(site.number("p", 2))
    return lambda x: functional.normalize(x, p=float(power), dim=axis)


@operator("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")
def _reduce(site: Site) -> Compute:
    axes = site.given(1, "axes")
    keep = bool(site.number("keepdims", 1))
    if not axes and site.number("noop_with_empty_axes", 0):
        return lambda x, *_: x
    compute = {
        "ReduceMean": torch.mean,
        "ReduceSum": torch.sum,
        "ReduceMax": torch.amax,
        "ReduceMin": torch.amin,
        "ReduceL2": lambda x, dim, keepdim: torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim),
    }[site.node.op]
    return lambda x, *_: compute(
        x, dim=tuple(a % x.dim() for a in axes) if axes else tuple(range(x.dim())), keepdim=keep
    )


@operator("ArgMax")
def _argmax(site: Site) -> Compute:
    axis, keep = int(site.number("axis", 0)), bool(site.number("keepdims", 1))
    return lambda x: torch.argmax(x, dim=axis, keepdim=keep)


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
        if place and len({part.shape[0] for part in parts}) > 1:  # a constant, such as a class token, has batch 1
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
            raise site.refused("it gathers by its data along an axis that is not the first")
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
        raise site.refused("it pads selected axes only")
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    kind = mode[site.text("mode", "constant")]
    value = float(np.ravel(site.fixed[2])[0]) if 2 in site.fixed and site.fixed[2].size else site.number("value", 0.0)
    half = len(pads) // 2
    order = [size for axis in reversed(range(half)) for size in (pads[axis], pads[half + axis])]
    while len(order) > 2 and kind != "constant" and not any(order[-2:]):
        del order[-2:]  # PyTorch reflects and repeats only along the last axes
    if kind == "constant":
        return lambda x, *_: functional.pad(x, order, value=value)
    return lambda x, *_: functional.pad(x, order, mode=kind)


def _pads(
    site: Site, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Begins, then ends, of the spatial axes, including ``auto_pad``."""
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
    """Return strides and dilations."""
    return site.ints("strides", (1,) * rank), site.ints("dilations", (1,) * rank)


def _sizes(site: Site) -> tuple[int, ...]:
    source = site.node.inputs[0]
    if source is None or source.shape is None:
        raise site.refused("the shape of its input depends on the data")
    return source.shape[2:]


def _innermost_first(pads: Sequence[int]) -> list[int]:
    """Pads in PyTorch's order: begin and end of the last axis first."""
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
        raise site.refused(f"it has {rank} spatial axes, or its padding is not given by pads")
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
    """Return kernel, strides, dilations and pads."""
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
        raise site.refused(f"dilations {dilations} and pads {pads}: only symmetric pads without dilation are supported")
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
    """Whether a nearest-neighbour resize selects element floor(index * before / after), as PyTorch's does."""
    rule = site.text("nearest_mode", "round_prefer_floor")
    if site.node.op == "Upsample" or (place == "asymmetric" and rule == "floor"):
        return True
    factors = [new / old for new, old in zip(after, before, strict=True)]
    whole = all(factor.is_integer() for factor in factors)
    if place in ("half_pixel", "pytorch_half_pixel") and rule.startswith("round"):
        return whole  # (i + 1/2) / factor - 1/2 is never half way between two elements
    return place == "asymmetric" and rule == "round_prefer_floor" and whole and max(factors) <= 2


_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@operator("LSTM", "GRU", "RNN")
def _recurrent(site: Site) -> Compute:
    """Steps of time one after the other, so that gradients go through all of them."""
    op = site.node.op
    way = site.text("direction", "forward")
    directions = 2 if way == "bidirectional" else 1
    activations = site.node.attributes.get("activations", _ACTIVATIONS[op] * directions)
    inputs = (*site.node.inputs, *[None] * 8)
    refused = {
        "it has peepholes": op == "LSTM" and inputs[7] is not None,
        "its sequences have lengths of their own": inputs[4] is not None,
        f"its activations are {activations}": tuple(activations) != _ACTIVATIONS[op] * directions,  # type: ignore[arg-type]
        "its batch comes first": bool(site.number("layout", 0)),
        "it clips": "clip" in site.node.attributes,
        "its input and forget gates are one": bool(site.number("input_forget", 0)),
    }
    for why, so in refused.items():
        if so:
            raise site.refused(why)
    step = {"LSTM": _lstm_step, "GRU": _gru_step(after=bool(site.number("linear_before_reset", 0))), "RNN": _rnn_step}[
        op
    ]
    wanted = len(site.node.outputs)

    def compute(x: Tensor, weights: Tensor, recurrences: Tensor, *others: Tensor | None) -> Any:
        biases, _, *given = (*others, *[None] * 4)[:4]
        hidden = recurrences.shape[-1]
        outputs, ends = [], []
        for at in range(directions):
            backward = way == "reverse" or at == 1
            before = torch.zeros(2 * _GATES[op] * hidden) if biases is None else biases[at]
            first, second = before.chunk(2)
            states = [
                x.new_zeros(x.shape[1], hidden) if each is None else each[at].expand(x.shape[1], hidden)
                for each in given[: _STATES[op]]
            ]
            seen = []
            for now in reversed(x.unbind(0)) if backward else x.unbind(0):
                states = step(now @ weights[at].T + first, states, recurrences[at], second)
                seen.append(states[0])
            outputs.append(torch.stack(seen[::-1] if backward else seen))
            ends.append(states)
        made = [torch.stack(outputs, dim=1), *(torch.stack(each) for each in zip(*ends, strict=True))]
        return made[0] if wanted == 1 else tuple(made[:wanted])

    return compute


def _lstm_step(read: Tensor, states: Sequence[Tensor], recurrence: Tensor, bias: Tensor) -> list[Tensor]:
    """Gates in ONNX's order: input, output, forget, cell."""
    hidden, cell = states
    entry, leave, keep, new = (read + hidden @ recurrence.T + bias).chunk(4, dim=1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(entry) * torch.tanh(new)
    return [torch.sigmoid(leave) * torch.tanh(cell), cell]


def _gru_step(*, after: bool) -> Callable[..., list[Tensor]]:
    """Gates in ONNX's order: update, reset, hidden; ``after``: the reset gate comes after the product."""

    def step(read: Tensor, states: Sequence[Tensor], recurrence: Tensor, bias: Tensor) -> list[Tensor]:
        (hidden,) = states
        size = hidden.shape[1]
        gates = torch.sigmoid(read[:, : 2 * size] + hidden @ recurrence[: 2 * size].T + bias[: 2 * size])
        update, reset = gates.chunk(2, dim=1)
        own, shift = recurrence[2 * size :].T, bias[2 * size :]
        past = reset * (hidden @ own + shift) if after else (reset * hidden) @ own + shift
        new = torch.tanh(read[:, 2 * size :] + past)
        return [(1 - update) * new + update * hidden]

    return step


def _rnn_step(read: Tensor, states: Sequence[Tensor], recurrence: Tensor, bias: Tensor) -> list[Tensor]:
    return [torch.tanh(read + states[0] @ recurrence.T + bias)]
