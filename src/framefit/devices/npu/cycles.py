"""The cycle model: cycles of a layer on a described accelerator, and the bound that limits it.

Each layer takes the longest of its terms (arithmetic, each memory's reads and writes, on-chip
traffic), plus load, drain and fixed overhead. The parts and their sources:

- products on a weight-stationary array of R x C: ceil(k/R) * ceil(n/C) * (2R + C + m - 2)
  cycles (Samajdar et al., 2020, "A Systematic Methodology for Characterizing Scalability of
  DNN Accelerators using SCALE-Sim", section 3);
- skipped zeros: see below;
- tiles: see below;
- work of a layer: :mod:`framefit.devices.npu.work`.

Cycles are those of the unit's clock: ``clock_mhz`` x ``speed_ratio``.

Tiles: the least traffic into the cache over all tiles that fit.

A product sums over k for m x n results. Half the cache holds one tile while the other half is filled (double
buffering). Three orders of the tiles are compared:

- first operand kept: tiles of many rows, one column at a time; the weights are loaded once for each tile;
- weights kept: tiles of many columns, one row at a time; the first operand is loaded once for each tile;
- results kept: tiles of rows and columns, sums in pieces; both operands are loaded more than once.

Overlapping rows of a convolution's input stay in the cache from one tile to the next.

Skipped zeros: the part of the work that remains.

After Intel's public VPU cost model (https://github.com/intel/npu-nn-cost-model): little gain for few input channels,
a ceiling for deep layers, and a loss if only few weights are zero: at the threshold density skipping costs as much as
the multiply-accumulates that it saves, so below it a part d / threshold of the time remains. Lanes that each compute
a sum wait for the one with the most remaining products: of n lanes with K products each, of which a random part d
remains, it has about K d + sqrt(2 K d (1 - d) ln n), since the greatest of n normal variables is expected at most
sqrt(2 ln n) deviations above their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.run_record import LayerCycles
from framefit.core.target import PRECISIONS, Memory, Sparsity, Target, Unit
from framefit.devices.npu.work import LayerWork, Product, Tensor, dtype_bits, model_work
from framefit.errors import InputError

__all__ = ["CycleModel", "unit_named"]


Floats = npt.NDArray[np.float64]


# Widths of tiles of kept results: 1, 2, 3, 4, 6, 8, 12, ...
_WIDTHS = tuple(sorted({*(1 << i for i in range(17)), *(3 << i for i in range(15))}))
_SUM_BYTES = 4  # of an incomplete sum


def refetched_bytes(
    room: float,
    m: Floats,
    n: Floats,
    channels: Floats,
    row: Floats,
    column: Floats,
    halo: Floats,
    result: float,
    row_outside: Floats,
    column_outside: Floats,
) -> tuple[Floats, Floats]:
    """Bytes that have to be loaded again, since not everything fits at once.

    All arrays have one entry for each product.

    Args:
        room: bytes of a tile: half the cache.
        m: rows of the result.
        n: its columns.
        channels: number of parts into which a sum can be divided.
        row: bytes of the first operand for one row.
        column: bytes of the second operand for one column.
        halo: bytes of the first operand that stay in the cache beside the tile's own.
        result: bytes of one element of the result.
        row_outside: 1 where the first operand comes from memory, 0 where the layer itself makes it.
        column_outside: the same for the second operand.

    Returns:
        Bytes of the first and of the second operand, beyond loading each once.
    """
    first, second = np.zeros_like(m), np.zeros_like(m)
    fits = (row * m + column + halo + m * result <= room) | (row + column * n + halo + n * result <= room)
    index = np.flatnonzero(~fits & (row_outside + column_outside > 0))
    if not index.size:
        return first, second
    m, n, channels, row, column, halo = (values[index] for values in (m, n, channels, row, column, halo))
    a, b = row * m * row_outside[index], column * n * column_outside[index]
    # Each candidate: tiles along the rows, along the columns; infinite where nothing fits.
    rows = _tiles(m, room - halo - column, row + result)
    columns = _tiles(n, room - halo - row, column + result)
    zero = np.zeros_like(a)
    best = _better((zero, _again(b, rows)), (_again(a, columns), zero))
    for width in _WIDTHS:
        wide = np.minimum(width, n)
        free = room - (halo + column * wide) / channels
        high = _tiles(m, free, row / channels + _SUM_BYTES * wide)
        best = _better(best, (_again(a, np.ceil(n / wide)), _again(b, high)))
        if width >= n.max():
            break
    # Not even one column of one channel fits: every product loads its operands.
    none = ~np.isfinite(best[0] + best[1])
    first[index] = np.where(none, a * (n - 1), best[0])
    second[index] = np.where(none, b * (m - 1), best[1])
    return first, second


def _tiles(count: Floats, room: Floats, size: Floats) -> Floats:
    """Number of tiles where ``room`` holds ``room / size`` of the ``count``; infinite where it holds none."""
    held = np.minimum(np.floor(room / size), count)
    return np.where(held >= 1, np.ceil(count / np.maximum(held, 1)), np.inf)


def _again(size: Floats, tiles: Floats) -> Floats:
    """Bytes beyond the first load of an operand that is loaded once for each tile."""
    return np.where(np.isinf(tiles), np.inf, size * (np.where(np.isinf(tiles), 1, tiles) - 1))


def _better(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The pair with the smaller sum, for each element."""
    take = second[0] + second[1] < first[0] + first[1]
    return np.where(take, second[0], first[0]), np.where(take, second[1], first[1])


def density(sparsity: Sparsity, weights: npt.ArrayLike, activations: npt.ArrayLike) -> Floats:
    """Part of the multiply-accumulates that remains when zeros are skipped, 0 to 1.

    Ceiling, threshold and imbalance are not included.

    Args:
        sparsity: which zeros are skipped.
        weights: part of the weights that is zero and counts.
        activations: part of the first operand that is zero.
    """
    of_weights = 1 - np.asarray(weights, np.float64)
    of_activations = 1 - np.asarray(activations, np.float64)
    left = {
        "none": np.ones(np.broadcast(of_weights, of_activations).shape),
        "weights": of_weights,
        "activations": of_activations,
        "saturating": np.minimum(of_weights, of_activations),
        "dual": of_weights * of_activations,
    }[sparsity.skips]
    return np.broadcast_to(left, np.broadcast(of_weights, of_activations).shape).astype(np.float64)


def counted_zeros(sparsity: Sparsity, weights: npt.ArrayLike) -> Floats:
    """Part of the weights whose zeros count, if all of them are arranged as the hardware requires.

    Args:
        sparsity: "n:m" hardware counts 1 - n / m from that part on and nothing below, "none" nothing.
        weights: part that is zero.
    """
    zeros = np.asarray(weights, np.float64)
    if sparsity.granularity == "none":
        return np.zeros_like(zeros)
    if sparsity.granularity == "n:m":
        assert sparsity.n is not None
        assert sparsity.m is not None
        least = 1 - sparsity.n / sparsity.m
        return np.where(zeros >= least - 1e-9, least, 0.0)
    return zeros


def packs_weights(sparsity: Sparsity) -> bool:
    """Whether zero weights are not stored in memory: where the arithmetic skips them, too."""
    return sparsity.weights_packed and sparsity.skips in ("weights", "saturating", "dual")


def remaining(
    sparsity: Sparsity, granule: int, weights: Floats, activations: Floats, *, channels: Floats, area: Floats
) -> tuple[Floats, Floats]:
    """Part of the multiply-accumulates that remains, 0 to 1.

    Args:
        sparsity: which zeros are skipped, threshold, lanes and ceiling.
        granule: number of input channels that are multiplied at once.
        weights: part of the weights that is zero and counts.
        activations: part of the first operand that is zero.
        channels: number of input channels of each sum.
        area: number of kernel positions of each sum.

    Returns:
        The part by number of zeros, and the part by time.
    """
    raw = density(sparsity, weights, activations)
    threshold = sparsity.threshold_density_ratio
    raw = np.where(raw < threshold, raw, 1.0)  # otherwise the layer is computed densely
    left: Floats = np.where(raw < threshold, raw / max(threshold, 1e-9), 1.0)
    if sparsity.lanes > 1:
        length = channels * area
        left = left + np.sqrt(2 * raw * (1 - raw) * np.log(sparsity.lanes) / length)
    if sparsity.cap_ratio is not None:
        left = np.maximum(left, 1 / sparsity.cap_ratio)
    if granule > 1:  # the remaining input channels fill at least one granule
        left = np.maximum(left, 1 / np.ceil(channels / granule))
    return raw, np.asarray(np.minimum(left, 1.0))


Ints = npt.NDArray[np.int64]
Ratios = float | Sequence[float]
_SIZES = (
    *("m", "n", "channels", "area", "groups", "steps", "tail"),
    *("constant", "input_outside", "weight_outside"),
)  # columns of a product, as they are
_INDEX_BITS = 1  # of a packed weight
_MOST_US = 3e14  # of a layer: ten years


@dataclass(frozen=True)
class WorkTable:
    """Layers as columns; made by :meth:`CycleModel.table`.

    Attributes:
        works: the layers.
        precisions: of each product.
        first: index of each layer's first product in ``product``, and the end.
        product: column -> one number for each product.
        layer: column -> one number for each layer.
    """

    works: tuple[LayerWork, ...]
    precisions: tuple[str, ...]
    first: Ints
    product: dict[str, Floats]
    layer: dict[str, Floats]


@dataclass(frozen=True)
class Estimate:
    """Costs of layers, one entry for each requested row.

    Attributes:
        cycles: total.
        terms: name ("compute", "ddr read", "on-chip", ...) -> cycles; the longest term counts.
        overhead: load, drain and fixed cycles.
        bound: index into ``names`` of the bound.
        names: of the terms, then "overhead" and "none".
        bytes_read, bytes_written: from and to memories.
        ideal: cycles of the multiply-accumulates that are not skipped, at the peak rate: the least for the
            arithmetic, however well its kernel is tuned.
    """

    cycles: Ints
    terms: dict[str, Floats]
    overhead: Floats
    bound: Ints
    names: tuple[str, ...]
    bytes_read: Floats
    bytes_written: Floats
    ideal: Floats


class CycleModel:
    """Prices layers on one unit of a target.

    Args:
        target: a target with a processor.
        unit: name of the unit; default: the first.

    Raises:
        InputError: the target has no processor, or not this unit.

    Example:
        >>> costs = CycleModel(target).layers(model, weight_sparsity=0.5)  # doctest: +SKIP
        >>> [(layer.name, layer.cycles, layer.bound) for layer in costs]  # doctest: +SKIP
    """

    def __init__(self, target: Target, unit: str | None = None) -> None:
        if target.processor is None:
            raise InputError(
                f"target {target.name!r} describes no processor, so there are no cycles to count",
                remedy='choose a target of kind "npu", or add [processor] with clock_mhz',
            )
        self.target = target
        self.unit = unit_named(target, unit)
        self.clock_mhz = target.processor.clock_mhz * self.unit.speed_ratio
        self._processor = target.processor
        self._fabric_mhz = self._processor.fabric_clock_mhz or self._processor.clock_mhz
        self._read = np.asarray([self._rate(memory, "read") for memory in target.memory])
        self._write = np.asarray([self._rate(memory, "write") for memory in target.memory])
        self._known: dict[tuple[LayerWork, float, float, float], LayerCycles] = {}

    def layer_ns(self, cycles: npt.ArrayLike) -> Ints:
        """Duration of cycles of the unit's clock, in nanoseconds, rounded up."""
        return np.ceil(np.round(np.asarray(cycles, np.float64) * 1e3 / self.clock_mhz, 3)).astype(np.int64)

    def layers(
        self, model: Model, *, weight_sparsity: Ratios | None = None, activation_sparsity: Ratios = 0.0
    ) -> tuple[LayerCycles, ...]:
        """Price each layer of a model; prices are stored and looked up.

        Args:
            model: its layers; nodes of a group are fused: tensors inside a group stay on the chip.
            weight_sparsity: part of the weights that is zero, for all layers or for each one, arranged as the
                target requires; default: the zeros of the model, as they are arranged there.
            activation_sparsity: part of each layer's input that is zero, for all layers or for each one.

        Raises:
            InputError: a ratio is outside 0 to 1, the unit does not support a layer, or a layer multiplies in a
                precision that the target does not have.
        """
        count, rule = len(model.layers), self.target.sparsity
        if weight_sparsity is None:
            weights = np.asarray(model.weight_zeros(), np.float64)
            counted = np.asarray(model.weight_zeros(rule.granularity, rule.n or 1, rule.m or 1), np.float64)
        else:
            weights = _ratios("weight_sparsity", weight_sparsity, count)
            counted = counted_zeros(rule, weights)
        activations = _ratios("activation_sparsity", activation_sparsity, count)
        check_support(self.target, self.unit, model)
        works = model_work(model)
        keys = list(zip(works, weights.tolist(), counted.tolist(), activations.tolist(), strict=True))
        new = [index for index, key in enumerate(keys) if key not in self._known]
        if new:
            table = self.table([works[index] for index in new], [model.layers[index].name for index in new])
            estimate = self.evaluate(table, weights[new], activations[new], counted_weights=counted[new])
            for row, index in enumerate(new):
                self._known[keys[index]] = self._result(table, estimate, row, weights[index], activations[index])
        return tuple(
            msgspec.structs.replace(self._known[key], name=layer.name, op=layer.op, macs=layer.macs)
            for layer, key in zip(model.layers, keys, strict=True)
        )

    def table(self, works: Sequence[LayerWork], names: Sequence[str] | None = None) -> WorkTable:
        """Layers as columns for :meth:`evaluate`.

        Args:
            works: the layers.
            names: of the layers, for messages.

        Raises:
            InputError: a layer multiplies in a precision that the target does not have.
        """
        products = [product for work in works for product in work.products]
        places = [index for index, work in enumerate(works) for _ in work.products]
        precisions = [
            self._precision(product, names[place] if names else works[place].op)
            for product, place in zip(products, places, strict=True)
        ]
        product: dict[str, list[float]] = {
            "inputs": [p.inputs * self._bits(p.input_dtype) / 8 for p in products],
            "halo": [p.halo * self._bits(p.input_dtype) / 8 for p in products],
            "weight_bits": [self._bits(p.weight_dtype, weight=p.constant) for p in products],
        }
        for name in _SIZES:
            product[name] = [getattr(p, name) for p in products]
        reads = [self._bytes(work.reads) for work in works]
        writes = [self._bytes(work.writes) for work in works]
        first = np.cumsum([0, *(len(work.products) for work in works)])
        ends = [self._ends(work, write) for work, write in zip(works, writes, strict=True)]
        layer = {
            "reads": reads,
            "writes": writes,
            "constants": [work.constants for work in works],
            "elements": [work.elements for work in works],
            "moves": [work.method != "view" for work in works],
            "factor": [self._factor(work) for work in works],
            "first": [end[0] for end in ends],
            "column": [end[1] for end in ends],
            "last": [end[2] for end in ends],
            "products": [len(work.products) for work in works],
        }
        table = WorkTable(
            works=tuple(works),
            precisions=tuple(precisions),
            first=first.astype(np.int64),
            product={name: np.asarray(column, np.float64) for name, column in product.items()},
            layer={name: np.asarray(column, np.float64) for name, column in layer.items()},
        )
        return self.adapted(table)

    def adapted(self, table: WorkTable) -> WorkTable:
        """A table of another target for this one, in a fraction of the time that a new one takes.

        The targets differ in nothing but speeds, widths and sizes: their precisions, the bits of tensors and weights,
        and their units' ``tuned`` are the same.
        """
        processor, layer = self._processor, table.layer
        lanes = processor.vector_lanes
        if processor.array_rows is not None and processor.array_columns is not None:
            peak = np.full(len(table.precisions), float(processor.array_rows * processor.array_columns))
        elif processor.macs_per_cycle:
            peak = np.asarray([processor.macs_per_cycle[precision] for precision in table.precisions], np.float64)
        else:
            peak = np.full(len(table.precisions), float(lanes))
        # Without products the first bytes are those of as many elements as there are lanes.
        load, drain = (
            np.where(
                layer["products"] > 0,
                np.minimum(layer[end], layer[moved]),
                layer[moved] * np.minimum(lanes / np.maximum(layer[end], 1), 1),
            )
            for end, moved in (("first", "reads"), ("last", "writes"))
        )
        return WorkTable(
            works=table.works,
            precisions=table.precisions,
            first=table.first,
            product=table.product | {"peak": peak * processor.processing_units},
            layer=layer | {"load": load, "drain": drain, "home": self._homes(layer["reads"] + layer["writes"])},
        )

    def evaluate(
        self,
        table: WorkTable,
        weight_sparsity: npt.ArrayLike,
        activation_sparsity: npt.ArrayLike = 0.0,
        *,
        which: npt.ArrayLike | None = None,
        counted_weights: npt.ArrayLike | None = None,
    ) -> Estimate:
        """Cycles of many layers at once.

        Args:
            table: the layers.
            weight_sparsity: part of the weights that is zero: one number for each row, or for all.
            activation_sparsity: part of the first operand that is zero, likewise.
            which: the layer of each row; default: each layer once.
            counted_weights: part of the weights whose zeros count; default: from :func:`counted_zeros`.
        """
        rows = np.arange(len(table.works)) if which is None else np.asarray(which, np.int64)
        counted = counted_zeros(self.target.sparsity, weight_sparsity) if counted_weights is None else counted_weights
        zeros = np.broadcast_to(np.asarray(counted, np.float64), rows.shape)
        activations = np.broadcast_to(np.asarray(activation_sparsity, np.float64), rows.shape)
        layer = {name: column[rows] for name, column in table.layer.items()}
        counts = table.first[rows + 1] - table.first[rows]
        owner = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        product = {name: column[table.first[rows][owner] + within] for name, column in table.product.items()}

        def total(column: Floats) -> Floats:
            return np.bincount(owner, column, len(rows)).astype(np.float64)

        weights = zeros[owner] * product["constant"]
        raw, left = remaining(
            self.target.sparsity,
            self._processor.channel_granule,
            weights,
            activations[owner],
            channels=product["channels"],
            area=product["area"],
        )
        macs = product["m"] * product["n"] * product["channels"] * product["area"] * product["groups"]
        lanes = self._processor.vector_lanes * self._processor.processing_units
        serial = product["steps"] * (self._product_cycles(product, left) + np.ceil(product["tail"] / lanes))
        ideal = np.round(total(macs * product["steps"] * raw / product["peak"]), 6)  # rounded like the cycles below
        peak = np.maximum(ideal, layer["elements"] / lanes)
        usual = np.maximum(total(serial), np.ceil(layer["elements"] / lanes))
        terms = {"compute": np.maximum(usual * layer["factor"], peak)}

        stored = product["weight_bits"]
        packed = np.minimum(stored, stored * (1 - weights) + _INDEX_BITS)
        bits = np.where((weights > 0) & packs_weights(self.target.sparsity), packed, stored)
        column = product["channels"] * product["area"] * bits / 8
        whole = column * product["n"] * product["groups"] * product["constant"]
        again_rows, again_columns = self._again(product, column, whole)
        constant = product["constant"] > 0
        fixed = total(whole + np.where(constant, again_columns, 0)) + layer["constants"]
        reads = layer["reads"] + total(again_rows + np.where(constant, 0, again_columns))
        reads, fixed = reads * layer["moves"], fixed * layer["moves"]
        home = layer["home"].astype(np.int64)
        terms |= self._memory_terms(home, reads, fixed, layer["writes"])
        if self.target.cache is not None:
            word = self.target.cache.word_bits / 8 * self.target.cache.ports
            speed = (self.target.cache.clock_mhz or self._fabric_mhz) / self.clock_mhz
            traffic = layer["reads"] + layer["writes"] + total(whole) + layer["constants"]
            terms["on-chip"] = traffic * layer["moves"] / (word * speed)
        overhead = (self._ends_cycles(home, layer) + self._processor.layer_cycles) * layer["moves"]
        stacked = np.stack(list(terms.values()))
        longest = stacked.max(axis=0)
        cycles = np.ceil(np.round(longest + overhead, 6))
        if not ((cycles >= 0) & (cycles < 2**62) & (cycles / self.clock_mhz < _MOST_US)).all():
            raise InputError(
                "a layer takes more cycles than can be counted, or more than ten years",
                where=self.target.name,
                remedy="check the figures of the target",
            )
        bound = np.where(overhead > longest, len(stacked), stacked.argmax(axis=0))
        return Estimate(
            cycles=cycles.astype(np.int64),
            terms=terms,
            overhead=overhead,
            bound=np.where(cycles == 0, len(stacked) + 1, bound),
            names=(*terms, "overhead", "none"),
            bytes_read=reads + fixed,
            bytes_written=layer["writes"],
            ideal=ideal,
        )

    def _product_cycles(self, product: dict[str, Floats], left: Floats) -> Floats:
        """Cycles of one step of each product."""
        processor = self._processor
        granule, units = processor.channel_granule, processor.processing_units
        m, n, groups = product["m"], product["n"], product["groups"]
        k = np.ceil(product["channels"] / granule) * granule * product["area"]
        if processor.array_rows is None or processor.array_columns is None:
            return np.asarray(np.ceil(np.round(groups * m * n * k * left / product["peak"], 6)))
        fill = 2 * processor.array_rows + processor.array_columns - 2
        deep, wide = np.ceil(k / processor.array_rows), np.ceil(n / processor.array_columns)
        shared_columns = np.ceil(groups * wide / units) * deep * (fill + m)
        shared_rows = groups * wide * deep * (fill + np.ceil(m / units))
        return np.asarray(np.ceil(np.round(np.minimum(shared_columns, shared_rows) * left, 6)))

    def _again(self, product: dict[str, Floats], column: Floats, whole: Floats) -> tuple[Floats, Floats]:
        """Bytes of both operands that are loaded again, in all groups and steps."""
        if self.target.cache is None:
            return np.zeros_like(column), np.zeros_like(column)
        room = self.target.cache.size_kib * 1024 / 2
        first, second = refetched_bytes(
            room,
            m=product["m"],
            n=product["n"],
            channels=product["channels"],
            row=product["inputs"] / product["m"],
            column=column,
            halo=product["halo"],
            result=(self._processor.activation_bits or 8) / 8,
            row_outside=product["input_outside"],
            column_outside=product["weight_outside"],
        )
        times = product["groups"] * product["steps"]
        steps = np.where(whole > room, whole * (product["steps"] - 1), 0.0)  # weights that do not fit in the cache
        return first * times, second * times + steps

    def _memory_terms(self, home: Ints, reads: Floats, fixed: Floats, writes: Floats) -> dict[str, Floats]:
        terms = {}
        for index, memory in enumerate(self.target.memory):
            latency = memory.latency_ns * self.clock_mhz / 1e3
            here = home == index
            read = np.where(here, reads, 0.0) + (fixed if index == self._weight_home else 0.0)
            write = np.where(here, writes, 0.0)
            terms[f"{memory.name} read"] = np.where(read > 0, latency + read / self._read[index], 0.0)
            terms[f"{memory.name} write"] = np.where(write > 0, latency + write / self._write[index], 0.0)
        return terms

    def _ends_cycles(self, home: Ints, layer: dict[str, Floats]) -> Floats:
        """Load of the first operands, drain of the last results; latencies are in the memories' terms."""
        if not self.target.memory:
            return np.zeros(len(home))
        column = layer["column"] / self._read[self._weight_home]
        ends: Floats = np.maximum(layer["load"] / self._read[home], column) + layer["drain"] / self._write[home]
        return ends

    def _ends(self, work: LayerWork, writes: float) -> tuple[float, float, float]:
        """Bytes before the arithmetic can begin (tensors, weights), and after its end; without products elements."""
        if not work.products:
            return sum(count for count, _ in work.reads), 0.0, sum(count for count, _ in work.writes)
        first, last = work.products[0], work.products[-1]
        row = (first.inputs / first.m + first.halo) * self._bits(first.input_dtype) / 8 if first.m else 0.0
        column = first.channels * first.area * self._bits(first.weight_dtype, weight=True) / 8 * first.constant
        return row, column, last.n * writes / max(last.m * last.n * last.groups, 1)

    def _rate(self, memory: Memory, direction: str) -> float:
        """Bytes for each cycle of the unit's clock."""
        clock = self._processor.clock_mhz if memory.type == "ddr" else self._fabric_mhz
        bandwidth = memory.read_bandwidth_gbps if direction == "read" else memory.write_bandwidth_gbps
        bits = memory.read_bus_bits if direction == "read" else memory.write_bus_bits
        rate = bits / 8 * memory.ports
        if bandwidth is not None:
            possible = bandwidth * 1e3 / clock
            rate = min(rate, np.floor(possible + 1e-9) if possible >= 1 else possible)
        return float(rate * memory.derating_ratio * clock / self.clock_mhz)

    def _homes(self, sizes: Floats) -> Floats:
        """Index of the memory of layers' tensors: the first on the chip that holds them, else that of weights."""
        homes = np.full(len(sizes), float(self._weight_home))
        for index, memory in reversed(list(enumerate(self.target.memory))):
            if memory.type == "sram":
                homes[sizes <= (math.inf if memory.size_mib is None else memory.size_mib * 2**20)] = index
        return homes

    @property
    def _weight_home(self) -> int:
        """Index of the memory of weights: the first off the chip, else the first."""
        types = [memory.type for memory in self.target.memory]
        return types.index("ddr") if "ddr" in types else 0

    def _bits(self, dtype: str, *, weight: bool = False) -> int:
        """Bits of an element as the target stores it; whole numbers of at least 32 bits, and bool, are unchanged."""
        stored = dtype_bits(dtype)
        given = self._processor.weight_bits if weight else self._processor.activation_bits
        count = dtype == "bool" or (dtype.startswith(("int", "uint")) and stored >= 32)
        return stored if given is None or count else given

    def _bytes(self, tensors: Sequence[Tensor]) -> float:
        return sum(count * self._bits(dtype) / 8 for count, dtype in tensors)

    def _precision(self, product: Product, name: str) -> str:
        """The narrowest arithmetic of the target for both operands."""
        processor = self._processor
        bits = (self._bits(product.input_dtype), self._bits(product.weight_dtype, weight=product.constant))
        width = min(max(bits), 32)
        is_float = "float" in product.input_dtype
        needed = ("fp" if is_float else "int") + str(width)
        if processor.array_rows is not None or not processor.macs_per_cycle:
            return needed
        only_float = is_float and processor.activation_bits is None
        fit = [
            precision
            for precision in processor.macs_per_cycle
            if PRECISIONS[precision] >= width and not (only_float and precision.startswith("int"))
        ]
        if not fit:
            raise InputError(
                f"{product.op} multiplies in {needed}, but target {self.target.name!r} has "
                + ", ".join(processor.macs_per_cycle),
                where=f"layer {name}",
                remedy="quantise the model, or give activation_bits and weight_bits in the target's [processor]",
            )
        return min(fit, key=lambda precision: (PRECISIONS[precision], precision.startswith("int") == is_float))

    def _factor(self, work: LayerWork) -> float:
        """Factor of a tuned kernel: for the whole layer, else for its main operator."""
        tuned = self.unit.tuned
        main = work.products[0].op if work.products else work.op.split("+")[0]
        return tuned.get(work.op, tuned.get(main, 1.0))

    def _result(
        self, table: WorkTable, estimate: Estimate, row: int, weights: float, activations: float
    ) -> LayerCycles:
        work, cycles = table.works[row], int(estimate.cycles[row])
        return LayerCycles(
            name="",
            op="",
            macs=0,
            cycles=cycles,
            bound=estimate.names[estimate.bound[row]],
            bytes_read=round(estimate.bytes_read[row]),
            bytes_written=round(estimate.bytes_written[row]),
            utilisation_ratio=float(estimate.ideal[row] / cycles) if cycles else 0.0,
            weight_sparsity_ratio=float(weights) if any(p.constant for p in work.products) else 0.0,
            activation_sparsity_ratio=float(activations) if work.products else 0.0,
            latency_ns=int(self.layer_ns(cycles)),
            unit=self.unit.name,
            precision=table.precisions[table.first[row]] if work.products else "",
            method=work.method,
            terms={name: float(np.ceil(term[row])) for name, term in estimate.terms.items()},
            overhead_cycles=float(np.ceil(estimate.overhead[row])),
        )


def unit_named(target: Target, name: str | None) -> Unit:
    """Find a target's unit; without a name its first.

    Raises:
        InputError: there is no unit of this name.
    """
    names = [unit.name for unit in target.units]
    if name is not None and name not in names:
        raise InputError(f"target {target.name!r} has no unit {name!r}", remedy=f"choose from {', '.join(names)}")
    return target.unit(name or names[0])


def check_support(target: Target, unit: Unit, model: Model) -> None:
    """Refuse a model with a layer that the unit does not support.

    Raises:
        InputError: its message names the layer, and a unit that supports it.
    """
    for layer in model.layers:
        for op in layer.op.split("+"):
            if not unit.supports(op):
                others = [candidate.name for candidate in target.units if candidate.supports(op)]
                raise InputError(
                    f"unit {unit.name!r} of target {target.name!r} does not support {op}",
                    where=f"layer {layer.name}",
                    remedy=f"choose unit {others[0]!r}" if others else "choose another target, or replace the layer",
                )


def _ratios(name: str, values: Ratios, count: int) -> Floats:
    ratios = np.asarray(values, np.float64)
    if ratios.ndim == 0:
        ratios = np.full(count, ratios)
    if ratios.shape != (count,):
        raise InputError(
            f"{name} has {ratios.size} numbers for {count} layers", remedy="give one, or one for each layer"
        )
    if not ((ratios >= 0) & (ratios <= 1)).all():
        raise InputError(f"{name} must be 0 to 1, is {values}", remedy="give the part that is zero")
    return ratios
