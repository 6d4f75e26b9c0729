"""Activations, arithmetic, products, normalisations and reductions."""

from __future__ import annotations

import functools
from typing import Any

from framefit.training.extra import torch
from framefit.training.operators.registry import Compute, Site, operator, plain

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
        raise site.refused("its scale is one a group (before opset 21)")
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
