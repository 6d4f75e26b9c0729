"""Targets and networks that tests of the cycle model share."""

from __future__ import annotations

from typing import Any

import numpy as np

from framefit import GraphBuilder, Model
from framefit.core.target import Cache, Memory, Processor, Sparsity, Target, Unit

__all__ = ["ARRAY", "convolution", "described", "only", "through"]

ARRAY: dict[str, Any] = {"array_rows": 16, "array_columns": 16}


def described(
    *,
    sparsity: Sparsity | None = None,
    memory: tuple[Memory, ...] = (),
    cache: Cache | None = None,
    units: tuple[Unit, ...] = (),
    **processor: Any,
) -> Target:
    """A target of 100 MHz and 64 multiply-accumulates of any precision a cycle."""
    given = {"clock_mhz": 100.0, "macs_per_cycle": {"int8": 64, "fp32": 64}} | processor
    return Target(
        name="board",
        kind="npu",
        processor=Processor(**given),
        memory=memory,
        cache=cache,
        sparsity=sparsity or Sparsity(),
        units=units,
    )


def convolution(channels: int, features: int, size: int, *, kernel: int = 3, groups: int = 1, **more: Any) -> Model:
    """One convolution with "same" padding and without bias."""
    b = GraphBuilder("conv")
    x = b.input("x", (1, channels, size, size))
    b.output(b.conv(x, features, kernel=kernel, groups=groups, bias=False, **more))
    return b.build()


def through(op: str, shape: tuple[int, ...], *constants: Any, outputs: int = 1, **attributes: Any) -> Model:
    """One operator on one input."""
    b = GraphBuilder("one")
    names = [b.constant(np.asarray(constant)) if constant is not None else "" for constant in constants]
    made = b.op(op, b.input("x", shape), *names, outputs=outputs, **attributes)
    for name in [made] if outputs == 1 else made:
        b.output(name)
    return b.build()


def only(found: Any) -> Any:
    """The only one of a sequence."""
    (one,) = found
    return one
