"""The fixed-function form: every tree is wires, tables and multiplexers of its own; a row each cycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.trees import Ensemble, FreeTree, ObliviousTree, accumulate, levels_of
from framefit.trees.hardware.extra import Cat, Const, In, Module, Mux, Out, Value, bits_for, wiring
from framefit.trees.hardware.units import Pipeline, count_ones, look_up, sums

__all__ = ["FixedFunction", "output_bits_of", "pack_rows", "results_of"]


class FixedFunction(wiring.Component):  # type: ignore[misc]
    """A circuit that gives the outputs of an ensemble for one row of comparator bits.

    An oblivious tree's tests are wires, and each bit of its leaf a table of them (of six inputs at
    most); a free-form tree has a comparator and a multiplexer a node. What they give is added up; an
    output with levels is two comparators of its sum, one with a scale is the sum and its bias.

    Ports:
        x: bit ``2 f`` is comparator bit 0 of feature f, ``2 f + 1`` bit 1.
        y: of each output, the first lowest: [sum >= low] and [sum >= high], which are comparator bits of
            a following ensemble's input; or the sum and its bias, signed, as wide as :func:`output_bits_of` says.

    Args:
        ensemble: what is built.
        pipelined: registers behind the tables, behind each level of adders and before the output.

    Attributes:
        latency: cycles from ``x`` to ``y``; 0: no register.
    """

    def __init__(self, ensemble: Ensemble, *, pipelined: bool = False) -> None:
        self.ensemble = ensemble
        self._output_bits = output_bits_of(ensemble)
        super().__init__({"x": In(2 * ensemble.features), "y": Out(self._output_bits * ensemble.outputs)})
        self._module = module = Module()
        pipeline = Pipeline(module, on=pipelined)
        rows = pipeline.register(self._found())
        totals = count_ones(rows, pipeline) if ensemble.kind == "vote" else sums(rows, pipeline)
        (outputs,) = pipeline.register([self._decoded(totals)])
        module.d.comb += self.y.eq(Cat(*outputs))
        self.latency = pipeline.latency

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        return self._module

    def _found(self) -> list[list[Value]]:
        """What the trees of each output found."""
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
    """The value in two's complement of so many bits; it fits."""
    return Cat(value, *[value[-1] if value.shape().signed else Const(0, 1)] * max(0, bits - len(value)))[:bits]


def _leaf_values(tree: ObliviousTree | FreeTree, width: int, x: Value) -> list[Value]:
    """The leaf that a row leads to: its values."""
    if isinstance(tree, ObliviousTree):
        index = Cat(*(x[2 * feature + bit] for feature, bit in zip(tree.inputs, tree.bits, strict=True)))
        return [look_up(tree.leaves[place::width], index) for place in range(width)]
    inner = len(tree.nodes)
    places: list[list[Value]] = [[] for _ in range(inner)]
    places += [[Const(value) for value in tree.leaves[i * width : (i + 1) * width]] for i in range(inner + 1)]
    for number in reversed(range(inner)):  # a node leads behind itself
        node = tree.nodes[number]
        low, high = x[2 * node.x], x[2 * node.x + 1]
        word = Cat(low & ~high, high)
        above = word[node.l : node.h + 1] > node.a
        pairs = zip(places[node.i1], places[node.i0], strict=True)
        places[number] = [Mux(above, one, zero) for one, zero in pairs]
    return places[0]


def output_bits_of(ensemble: Ensemble) -> int:
    """Bits of one output: two comparator bits, or enough for every sum and bias, sign included."""
    if ensemble.scaled is None:
        return 2
    most = (1 if ensemble.kind == "vote" else 128) * ensemble.trees_each
    ends = [side * most + bias for bias in ensemble.scaled.bias for side in (-1, 1)]
    bits: int = max(bits_for(end, require_sign_bit=True) for end in ends)
    return bits


def pack_rows(words: npt.NDArray[np.uint8]) -> list[int]:
    """Rows of words, rows x features, as values of ``x``."""
    bits = np.stack([words > 0, words > 1], axis=2).reshape(len(words), -1)
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(bits, axis=1, bitorder="little")]


def results_of(ensemble: Ensemble, words: npt.NDArray[np.uint8]) -> list[int]:
    """What ``y`` has to be for rows of words, by the model in :mod:`framefit.core.trees`."""
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
