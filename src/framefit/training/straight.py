"""Steps that gradients pass straight through."""

from __future__ import annotations

from typing import Any

from framefit.training.extra import torch

__all__ = ["chosen", "rounded", "step", "through"]

Tensor = Any  # torch.Tensor


class _Step(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, reach: Tensor) -> Tensor:
        ctx.save_for_backward(x, reach)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        x, reach = ctx.saved_tensors
        return torch.where(x.abs() < reach, slope / (2 * reach), torch.zeros_like(slope)), None


class _Rounded(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, most: float) -> Tensor:
        ctx.save_for_backward(x.abs() < most + 0.5)
        return x.round().clamp(-most, most)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (inside,) = ctx.saved_tensors
        return slope * inside, None


class _Through(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, found: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return found.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return slope, None


def through(x: Tensor, found: Tensor) -> Tensor:
    """Exactly ``found``; backward as if it were ``x``."""
    return _Through.apply(x, found)


def step(x: Tensor, reach: Tensor | float) -> Tensor:
    """1 where ``x`` is above 0, else 0; backward a ramp from ``-reach`` to ``reach``."""
    return _Step.apply(x, torch.as_tensor(reach, dtype=x.dtype))


def rounded(x: Tensor, most: float = float("inf")) -> Tensor:
    """The nearest whole number, at most ``most`` from 0; backward as if it were ``x``, within that range."""
    return _Rounded.apply(x, most)


def chosen(low: Tensor, high: Tensor, values: Tensor) -> Tensor:
    """The value of each column's level: exactly the first, second or third of its row.

    Args:
        low: rows x columns, 1 where the level is above the lowest, else 0.
        high: likewise, where it is the highest.
        values: columns x 3.
    """
    minus, zero, plus = values.unbind(dim=1)
    return minus * (1 - low) + zero * (low - high) + plus * high
