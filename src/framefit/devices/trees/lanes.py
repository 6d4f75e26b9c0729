"""Vectors of the processor's in code that numba compiles.

LLVM makes vectors of a loop only where it is long enough to pay for proving that its arrays do not overlap: not for
the 64 numbers of a leaf. These functions say what is one vector; on a processor with shorter ones LLVM takes several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

__all__ = ["above", "both", "differing", "levelled", "load", "plus", "scaled", "store", "widened", "zeros"]

# Numbers of lanes are constants of the code that calls.
_operation: Callable[[Callable[..., Any]], Any] = intrinsic(prefer_literal=True)


class _Lanes(types.Type):
    """So many numbers of a type, in a register."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(f"Lanes({dtype}, {count})")


@register_model(_Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: _Lanes) -> None:
        vector = _vector(manager.lookup(kind.dtype).get_value_type(), kind.count)
        super().__init__(manager, kind, vector)  # type: ignore[no-untyped-call]


def _vector(element: Any, count: int) -> Any:
    return ir.VectorType(element, count)


def _pointer(context: Any, builder: Any, array: Any, value: Any, start: Any, count: int) -> Any:
    """To ``count`` elements of a contiguous array."""
    data = context.make_array(array)(context, builder, value).data
    vector = _vector(context.get_data_type(array.dtype), count)
    return builder.bitcast(builder.gep(data, [start]), vector.as_pointer())


def _spread(builder: Any, value: Any, count: int) -> Any:
    """One number in all lanes."""
    one = builder.insert_element(ir.Constant(_vector(value.type, count), ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, ir.Constant(_vector(ir.IntType(32), count), [0] * count))


@_operation
def zeros(typing: Any, array: Any, count: Any) -> Any:  # noqa: ARG001 - numba's form
    """Zeros of an array's type."""
    kind = _Lanes(array.dtype, count.literal_value)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return ir.Constant(context.get_value_type(kind), None)

    return kind(array, count), make


@_operation
def load(typing: Any, array: Any, start: Any, count: Any) -> Any:  # noqa: ARG001
    """``count`` elements of a contiguous array from ``start`` on."""
    kind = _Lanes(array.dtype, count.literal_value)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, _ = arguments
        return builder.load(_pointer(context, builder, signature.args[0], array, start, kind.count), align=1)

    return kind(array, types.intp, count), make


@_operation
def store(typing: Any, array: Any, start: Any, lanes: Any) -> Any:  # noqa: ARG001
    """Write lanes into a contiguous array of their type, from ``start`` on."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, value = arguments
        builder.store(value, _pointer(context, builder, signature.args[0], array, start, lanes.count), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), make


@_operation
def plus(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Sums of whole numbers, lane by lane."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.add(*arguments)

    return a(a, b), make


@_operation
def both(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Bits that are 1 in both."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.and_(*arguments)

    return a(a, b), make


@_operation
def differing(typing: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Bits that are 1 in one of them."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.xor(*arguments)

    return a(a, b), make


@_operation
def widened(typing: Any, lanes: Any, like: Any) -> Any:  # noqa: ARG001
    """Signed whole numbers as those of an array's type, which is no narrower."""
    kind = _Lanes(like.dtype, lanes.count)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        wanted = context.get_value_type(kind)
        return arguments[0] if wanted == arguments[0].type else builder.sext(arguments[0], wanted)

    return kind(lanes, like), make


@_operation
def above(typing: Any, array: Any, start: Any, limit: Any, count: Any) -> Any:  # noqa: ARG001
    """1 for each of ``count`` elements from ``start`` on that is greater than the limit, else 0; as bytes."""
    kind = _Lanes(types.uint8, count.literal_value)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, limit, _ = arguments
        read = builder.load(_pointer(context, builder, signature.args[0], array, start, kind.count), align=1)
        compared = builder.fcmp_ordered(">", read, _spread(builder, limit, kind.count))
        return builder.zext(compared, context.get_value_type(kind))

    return kind(array, types.intp, array.dtype, count), make


@_operation
def levelled(typing: Any, sums: Any, low: Any, high: Any, minus: Any, zero: Any, plus: Any) -> Any:  # noqa: ARG001
    """Where a sum reaches ``high``, ``plus``; else, where it reaches ``low``, ``zero``; else ``minus``."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        totals, *ends = arguments
        low, high, minus, zero, plus = (_spread(builder, one, sums.count) for one in ends)
        reached = builder.icmp_signed(">=", totals, low)
        made = builder.select(reached, zero, minus)
        return builder.select(builder.icmp_signed(">=", totals, high), plus, made)

    return _Lanes(minus, sums.count)(sums, sums.dtype, sums.dtype, minus, minus, minus), make


@_operation
def scaled(typing: Any, sums: Any, bias: Any, scale: Any) -> Any:  # noqa: ARG001
    """Sums and a bias, as floats, times a scale."""
    kind = _Lanes(scale, sums.count)

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        totals, *ends = arguments
        bias, scale = (_spread(builder, one, sums.count) for one in ends)
        return builder.fmul(builder.sitofp(builder.add(totals, bias), context.get_value_type(kind)), scale)

    return kind(sums, sums.dtype, scale), make
