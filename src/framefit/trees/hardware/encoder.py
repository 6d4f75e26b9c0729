"""The comparators in front of the trees: float32 values to comparator bits."""

from __future__ import annotations

import struct

from framefit.core.trees import Encoder
from framefit.trees.hardware.extra import Cat, Const, In, Module, Out, Value, wiring

__all__ = ["FloatEncoder"]

_INFINITY = 0x7F800000  # magnitudes above it are no numbers: above no threshold


class FloatEncoder(wiring.Component):  # type: ignore[misc]
    """Two comparisons with constants for each channel or feature; IEEE 754 single precision, no arithmetic.

    Ports:
        x: the values' bits, 32 each, the first lowest.
        y: comparator bits as :class:`~framefit.trees.hardware.fixed.FixedFunction` reads them.

    Args:
        encoder: the thresholds.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        count = len(encoder.low)
        super().__init__({"x": In(32 * count), "y": Out(2 * count)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        for number, pair in enumerate(zip(self._encoder.low, self._encoder.high, strict=True)):
            value = self.x.word_select(number, 32)
            module.d.comb += self.y.word_select(number, 2).eq(Cat(*(_above(value, threshold) for threshold in pair)))
        return module


def _above(value: Value, threshold: float) -> Value:
    """Whether a float32 value is above a constant: by sign, then by magnitude as a whole number."""
    negative, magnitude = value[31], value[:31]
    (bits,) = struct.unpack("<I", struct.pack("<f", threshold))
    size = Const(bits & 0x7FFFFFFF, 31)
    below_zero = bits >> 31 and bits & 0x7FFFFFFF  # -0 is not
    above = ~negative | (magnitude < size) if below_zero else ~negative & (magnitude > size)
    return above & (magnitude <= _INFINITY)
