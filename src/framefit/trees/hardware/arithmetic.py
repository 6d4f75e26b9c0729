"""Look-up tables, counts of votes and sums, as circuits; and registers between their steps."""

from __future__ import annotations

from collections.abc import Sequence

from framefit.trees.hardware.extra import Cat, Const, Module, Signal, Value, bits_for

__all__ = ["Pipeline", "count_ones", "look_up", "sums"]

_COUNTED = 6  # bits: the count of six is three functions of six inputs, three look-up tables


class Pipeline:
    """Registers between the steps of a circuit, or none.

    Args:
        module: that the registers belong to.
        on: whether there are any.

    Attributes:
        latency: cycles from the circuit's input to what was registered last.
    """

    def __init__(self, module: Module, *, on: bool) -> None:
        self._module = module
        self._on = on
        self.latency = 0

    def register(self, rows: Sequence[Sequence[Value]]) -> list[list[Value]]:
        """The same values, one cycle later where there are registers."""
        if not self._on:
            return [list(row) for row in rows]
        self.latency += 1
        held = []
        for number, row in enumerate(rows):
            places = [Signal(value.shape(), name=f"step{self.latency}_{number}_{i}") for i, value in enumerate(row)]
            self._module.d.sync += [place.eq(value) for place, value in zip(places, row, strict=True)]
            held.append(places)
        return held


def look_up(values: Sequence[int], index: Value) -> Value:
    """One of ``values``, a table for each bit of the result.

    Args:
        values: 2 ** bits of the index; signed where one is negative.
        index: which.

    Returns:
        A value no wider than the largest needs.
    """
    negative = min(values) < 0
    width = max(bits_for(value, require_sign_bit=negative) for value in values)
    if len(values) == 1:
        return Const(values[0])
    bits = [
        Const(sum((value >> place & 1) << row for row, value in enumerate(values)), len(values)).bit_select(index, 1)
        for place in range(width)
    ]
    together = Cat(*bits)
    return together.as_signed() if negative else together


def count_ones(rows: Sequence[Sequence[Value]], pipeline: Pipeline) -> list[Value]:
    """How many bits of each row are set: tables that count six, then an adder tree.

    Args:
        rows: bits; as many in each row.
        pipeline: what lies between the steps.
    """
    counted = []
    for row in rows:
        groups = [row[begin : begin + _COUNTED] for begin in range(0, len(row), _COUNTED)]
        counted.append([look_up([place.bit_count() for place in range(1 << len(g))], Cat(*g)) for g in groups])
    return sums(pipeline.register(counted), pipeline)


def sums(rows: Sequence[Sequence[Value]], pipeline: Pipeline) -> list[Value]:
    """The sum of each row by a tree of adders, no bit lost.

    Args:
        rows: numbers; as many in each row.
        pipeline: what lies between the steps.
    """
    level = [list(row) for row in rows]
    while len(level[0]) > 1:
        added = []
        for row in level:
            pairs = [left + right for left, right in zip(row[::2], row[1::2], strict=False)]
            added.append(pairs + row[len(pairs) * 2 :])
        level = pipeline.register(added)
    return [value for (value,) in level]
