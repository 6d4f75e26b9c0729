"""The fixed-function form: every tree has its own wires, tables and multiplexers; one row in each cycle.

Comparators before the trees convert float32 values to comparator bits; behind the trees votes are counted or summed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from framefit.core.trees import Encoder, Ensemble, FreeTree, ObliviousTree, accumulate, levels_of

_COUNTED = 6  # bits: their count is three functions of six inputs, hence three look-up tables


class Pipeline:
    """Registers between the steps of a circuit, or none.

    Attributes:
        latency: cycles from the circuit's input to the latest register.
    """

    def __init__(self, module: Module, *, on: bool) -> None:
        self._module = module
        self._on = on
        self.latency = 0

    def register(self, rows: Sequence[Sequence[Value]]) -> list[list[Value]]:
        """Return the values, one cycle later if there are registers."""
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
    """Select one of ``values`` with a table for each bit of the result.

    Returns:
        A value just wide enough for the largest one.
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
    """Number of bits set in each row: tables that count six bits, then an adder tree."""
    counted = []
    for row in rows:
        groups = [row[begin : begin + _COUNTED] for begin in range(0, len(row), _COUNTED)]
        counted.append([look_up([place.bit_count() for place in range(1 << len(g))], Cat(*g)) for g in groups])
    return sums(pipeline.register(counted), pipeline)


def sums(rows: Sequence[Sequence[Value]], pipeline: Pipeline) -> list[Value]:
    """Sum of each row by an adder tree, without overflow."""
    level = [list(row) for row in rows]
    while len(level[0]) > 1:
        added = []
        for row in level:
            pairs = [left + right for left, right in zip(row[::2], row[1::2], strict=False)]
            added.append(pairs + row[len(pairs) * 2 :])
        level = pipeline.register(added)
    return [value for (value,) in level]


_INFINITY = 0x7F800000  # larger magnitudes are NaN: above no threshold


class FloatEncoder(wiring.Component):  # type: ignore[misc]
    """Two comparisons with constants for each channel or feature; IEEE 754 single precision, no arithmetic.

    Ports:
        x: the values' bits, 32 each, the first lowest.
        y: comparator bits as :class:`~framefit.trees.hardware.fixed.FixedFunction` reads them.
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
    """Whether a float32 value exceeds a constant: by sign, then by magnitude as a whole number."""
    negative, magnitude = value[31], value[:31]
    (bits,) = struct.unpack("<I", struct.pack("<f", threshold))
    size = Const(bits & 0x7FFFFFFF, 31)
    below_zero = bits >> 31 and bits & 0x7FFFFFFF  # -0 is not below 0
    above = ~negative | (magnitude < size) if below_zero else ~negative & (magnitude > size)
    return above & (magnitude <= _INFINITY)


class FixedFunction(wiring.Component):  # type: ignore[misc]
    """A circuit that computes the outputs of an ensemble for one row of comparator bits.

    An oblivious tree's tests are wires, and each bit of its leaf is a table of them (of at most six inputs);
    a free-form tree has a comparator and a multiplexer for each node. Their results are added up; an output
    with levels is two comparisons of its sum, one with a scale is the sum and its bias.

    Ports:
        x: bit ``2 f`` is comparator bit 0 of feature f, ``2 f + 1`` bit 1.
        y: for each output, the first lowest: [sum >= low] and [sum >= high], which are comparator bits for the
            input of a following ensemble; or the sum and its bias, signed, as wide as :func:`output_bits_of` says.

    Attributes:
        latency: cycles from ``x`` to ``y``; 0: no registers.
    """

    def __init__(self, ensemble: Ensemble, *, pipelined: bool = False) -> None:
        self.ensemble = ensemble
        self._output_bits = output_bits_of(ensemble)
        super().__init__({"x": In(2 * ensemble.features), "y": Out(self._output_bits * ensemble.outputs)})
        self._module = module = Module()
        pipeline = Pipeline(module, on=pipelined)
        rows = pipeline.register(self._leaves())
        totals = count_ones(rows, pipeline) if ensemble.kind == "vote" else sums(rows, pipeline)
        (outputs,) = pipeline.register([self._decoded(totals)])
        module.d.comb += self.y.eq(Cat(*outputs))
        self.latency = pipeline.latency

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        return self._module

    def _leaves(self) -> list[list[Value]]:
        """Leaves that the trees of each output reach."""
        ensemble = self.ensemble
        leaves = [_leaf_values(tree, ensemble.width, self.x) for tree in ensemble.members]
        if ensemble.kind == "vector":
            return [list(row) for row in zip(*leaves, strict=True)]
        each = ensemble.trees_each
        return [[row[0] for row in leaves[o * each : (o + 1) * each]] for o in range(ensemble.outputs)]

    def _decoded(self, totals: Sequence[Value]) -> list[Value]:
        levels, scaled = self.ensemble.levels, self.ensemble.scaled
        if levels:
            pairs = zip(totals, levels.low, levels.high, strict=True)
            return [Cat(total >= low, total >= high) for total, low, high in pairs]
        assert scaled is not None
        biased = (total + Const(bias) for total, bias in zip(totals, scaled.bias, strict=True))
        return [_resized(total, self._output_bits) for total in biased]


def _resized(value: Value, bits: int) -> Value:
    """The value in two's complement with this many bits, which suffice."""
    return Cat(value, *[value[-1] if value.shape().signed else Const(0, 1)] * max(0, bits - len(value)))[:bits]


def _leaf_values(tree: ObliviousTree | FreeTree, width: int, x: Value) -> list[Value]:
    """Values of the leaf that a row reaches."""
    if isinstance(tree, ObliviousTree):
        index = Cat(*(x[2 * feature + bit] for feature, bit in zip(tree.inputs, tree.bits, strict=True)))
        return [look_up(tree.leaves[place::width], index) for place in range(width)]
    inner = len(tree.nodes)
    places: list[list[Value]] = [[] for _ in range(inner)]
    places += [[Const(value) for value in tree.leaves[i * width : (i + 1) * width]] for i in range(inner + 1)]
    for number in reversed(range(inner)):  # a node leads to later ones
        node = tree.nodes[number]
        low, high = x[2 * node.x], x[2 * node.x + 1]
        word = Cat(low & ~high, high)
        above = word[node.l : node.h + 1] > node.a
        pairs = zip(places[node.i1], places[node.i0], strict=True)
        places[number] = [Mux(above, one, zero) for one, zero in pairs]
    return places[0]


def output_bits_of(ensemble: Ensemble) -> int:
    """Bits of one output: two comparator bits, or enough for every sum and bias with its sign."""
    if ensemble.scaled is None:
        return 2
    most = (1 if ensemble.kind == "vote" else 128) * ensemble.trees_each
    ends = [side * most + bias for bias in ensemble.scaled.bias for side in (-1, 1)]
    bits: int = max(bits_for(end, require_sign_bit=True) for end in ends)
    return bits


def pack_rows(words: npt.NDArray[np.uint8]) -> list[int]:
    """Rows of words, rows x features, as values of port ``x``."""
    bits = np.stack([words > 0, words > 1], axis=2).reshape(len(words), -1)
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(bits, axis=1, bitorder="little")]


def results_of(ensemble: Ensemble, words: npt.NDArray[np.uint8]) -> list[int]:
    """Expected values of port ``y`` for rows of words, by the model in :mod:`framefit.core.trees`."""
    totals = accumulate(ensemble, words)
    values: npt.NDArray[Any]
    if ensemble.levels:
        values = np.array([0, 1, 3])[levels_of(ensemble, totals)]
    else:
        assert ensemble.scaled is not None
        values = totals.astype(np.int64) + np.asarray(ensemble.scaled.bias)
    bits = output_bits_of(ensemble)
    mask = (1 << bits) - 1
    return [sum((value & mask) << place * bits for place, value in enumerate(row)) for row in values.tolist()]
