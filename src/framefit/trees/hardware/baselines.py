"""What the trees replace, in hardware: neurons of multiply-accumulates, and of ternary weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framefit.trees.hardware.arithmetic import Pipeline, count_ones, sums
from framefit.trees.hardware.extra import Cat, Const, In, Module, Out, signed, wiring

__all__ = ["Int8Neuron", "TernaryNeuron", "drawn_int8", "drawn_ternary"]

_INT8 = 8
_SPREAD = 3.0  # standard deviations that int8 weights reach
_TERNARY_THRESHOLD = 0.66  # of normalised weights: half of them are 0


class Int8Neuron(wiring.Component):  # type: ignore[misc]
    """A sum of int8 inputs times constant int8 weights, fully parallel, combinational; not scaled back to int8.

    Ports:
        x: inputs, signed, 8 bits each, the first lowest.
        y: the sum.

    Args:
        weights: of each input.
    """

    def __init__(self, weights: npt.NDArray[np.int8]) -> None:
        self._weights: list[int] = weights.tolist()
        # The sum of |weight| * 128 needs this many bits, and one for its sign.
        self.sum_bits = (128 * sum(map(abs, self._weights))).bit_length() + 1
        super().__init__({"x": In(_INT8 * len(weights)), "y": Out(signed(self.sum_bits))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        inputs = (self.x.word_select(place, _INT8).as_signed() for place in range(len(self._weights)))
        products = [value * Const(weight) for value, weight in zip(inputs, self._weights, strict=True) if weight]
        (total,) = sums([products or [Const(0)]], Pipeline(module, on=False))
        module.d.comb += self.y.eq(total)
        return module


class TernaryNeuron(wiring.Component):  # type: ignore[misc]
    """A sum of ternary inputs times constant ternary weights, compared with two thresholds; combinational.

    An input is two comparator bits, and stands for their sum less one. So the sum of the products is
    a count of bits, those under weight -1 inverted, less the number of weights that are not 0.

    Ports:
        x: comparator bits as :class:`~framefit.trees.hardware.fixed.FixedFunction` reads them.
        y: [sum >= low], [sum >= high].

    Args:
        weights: -1, 0 or 1 of each input.
        low, high: thresholds of the sum.
    """

    def __init__(self, weights: npt.NDArray[np.int8], *, low: int, high: int) -> None:
        self._weights: list[int] = weights.tolist()
        self._thresholds = low, high
        super().__init__({"x": In(2 * len(weights)), "y": Out(2)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        bits = []
        for place, weight in enumerate(self._weights):
            pair = (self.x[2 * place], self.x[2 * place + 1])
            bits += list(pair) if weight > 0 else [~bit for bit in pair] if weight else []
        (count,) = count_ones([bits or [Const(0, 1)]], Pipeline(module, on=False))
        less = sum(map(abs, self._weights))
        module.d.comb += self.y.eq(Cat(*(count >= threshold + less for threshold in self._thresholds)))
        return module


def drawn_int8(inputs: int, random: np.random.Generator) -> npt.NDArray[np.int8]:
    """Normally distributed weights of one neuron, as int8."""
    return np.clip(np.rint(random.standard_normal(inputs) * 127 / _SPREAD), -127, 127).astype(np.int8)


def drawn_ternary(inputs: int, random: np.random.Generator) -> npt.NDArray[np.int8]:
    """Normally distributed weights of one neuron, as -1, 0 or 1."""
    normal = random.standard_normal(inputs)
    return ((normal > _TERNARY_THRESHOLD).astype(np.int8) - (normal < -_TERNARY_THRESHOLD)).astype(np.int8)
