"""Ensembles on a CPU core: compiled, without the interpreter's lock, equal to the reference bit for bit.

Votes are counted in bits: a word holds one comparator bit of 64 rows (positions of a picture, or examples),
a leaf bit is chosen by selects between words, and the votes are added by half adders, so that 64 rows cost what
one would (Biham, "A Fast New DES Implementation in Software", FSE 1997, introduced such bit slicing). Whole-number
leaves are found for all rows at once and added row by row. Comparing and packing are part of every call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from framefit.core.trees import MAX_DEPTH, Ensemble
from framefit.trees.memory import Cells, Decoder, decoder_of, grid_of

__all__ = ["Kernel", "kernel_of"]

Array = npt.NDArray[Any]

_LEAVES = 1 << MAX_DEPTH
_FULL = np.uint64(2**64 - 1)
_GATHER = uint64(0x0102040810204080)  # times eight bytes of 0 or 1: those bits, side by side, in the top byte
_SHORT = 255  # trees whose int8 leaves a sum of 16 bits holds


class Kernel(Protocol):
    """An ensemble compiled for a number of examples at once."""

    def __call__(self, x: Array, y: Array) -> None:
        """Write the outputs ``y`` of inputs ``x``: batch x shape each, float32 and contiguous."""


def kernel_of(ensemble: Ensemble, batch: int = 1) -> Kernel:
    """The fastest kernel that evaluates an ensemble."""
    if ensemble.free_trees:
        return _Walks(ensemble, batch)
    return _Votes(ensemble, batch) if ensemble.kind == "vote" else _Rows(ensemble, batch)


class _Compiled(ABC):
    """What kernels share: a way in and out for examples side by side."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        self._dense = ensemble.patch is None
        self._grid, self._decoder = grid_of(ensemble, batch), decoder_of(ensemble)
        self._input = (1, -1, 1, batch) if self._dense else (batch, *ensemble.input_shape)
        self._output = (1 if self._dense else batch, ensemble.outputs, -1)
        self._turned = self._dense and batch > 1

    def __call__(self, x: Array, y: Array) -> None:
        if not self._turned:
            self._run(x.reshape(self._input), y.reshape(self._output))
            return
        made = np.empty((1, len(self._decoder.low), len(x)), np.float32)
        self._run(np.ascontiguousarray(x.reshape(len(x), -1).T).reshape(self._input), made)
        y.reshape(len(x), -1)[:] = made[0].T

    @abstractmethod
    def _run(self, x: Array, y: Array) -> None:
        """On pictures N x channels x height x width, to N x outputs x positions."""


class _Rows(_Compiled):
    """Oblivious trees with whole numbers in their leaves."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        super().__init__(ensemble, batch)
        self._each = 0 if ensemble.kind == "vector" else ensemble.trees_each
        depth = max(1, *(len(tree.inputs) for tree in ensemble.trees))
        self._places = np.full((len(ensemble.trees), depth), self._grid.nothing, np.int32)
        self._leaves = np.zeros((len(ensemble.trees), 1 << depth, ensemble.width), np.int8)
        for number, tree in enumerate(ensemble.trees):
            self._places[number, : len(tree.inputs)] = self._grid.places(tree.inputs, tree.bits)
            self._leaves[number, : tree.leaf_count] = np.asarray(tree.leaves, np.int8).reshape(-1, ensemble.width)
        self._sums = np.zeros(ensemble.outputs, np.int16 if ensemble.trees_each <= _SHORT else np.int32)

    def _run(self, x: Array, y: Array) -> None:
        cells = self._grid.cells
        _run_rows(x, y, cells, cells.span, self._places, self._leaves, self._each, self._sums, self._decoder)


class _Walks(_Compiled):
    """Trees of any shape."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        super().__init__(ensemble, batch)
        self._each = 0 if ensemble.kind == "vector" else ensemble.trees_each
        starts, nodes, leaves = [0], [], []
        for tree in ensemble.free_trees:
            for node in tree.nodes:
                first, second = self._grid.places((node.x, node.x), (0, 1)).tolist()
                nodes.append((first, second, node.a, node.l, (1 << node.h - node.l + 1) - 1, node.i0, node.i1))
            leaves.append(np.asarray(tree.leaves, np.int8).reshape(-1, ensemble.width))
            starts.append(len(nodes))
        self._starts = np.asarray(starts, np.int64)
        self._nodes = np.asarray(nodes, np.int64).reshape(-1, 7)
        self._leaves = np.concatenate(leaves)

    def _run(self, x: Array, y: Array) -> None:
        _run_walks(x, y, self._grid.cells, self._starts, self._nodes, self._leaves, self._each, self._decoder)


class _Votes(_Compiled):
    """Oblivious trees whose leaves are bits, rows as lanes."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        super().__init__(ensemble, batch)
        each = ensemble.trees_each
        tested = sorted({test for tree in ensemble.trees for test in zip(tree.inputs, tree.bits, strict=True)})
        number = {test: place for place, test in enumerate(tested)}
        # Trees of one turn lie side by side, one of each output. The word behind the last is what no test reads: 0.
        self._tests = np.full((each, MAX_DEPTH, ensemble.outputs), len(tested), np.int32)
        self._leaves = np.zeros((each, _LEAVES, ensemble.outputs), np.uint64)
        for place, tree in enumerate(ensemble.trees):
            output, turn = divmod(place, each)
            for level, test in enumerate(zip(tree.inputs, tree.bits, strict=True)):
                self._tests[turn, level, output] = number[test]
            table = np.resize(np.asarray(tree.leaves, bool), _LEAVES)
            self._leaves[turn, :, output] = np.where(table, _FULL, np.uint64(0))
        features, bits = [feature for feature, _ in tested], [bit for _, bit in tested]
        self._places = self._grid.places(features, bits)

    def _run(self, x: Array, y: Array) -> None:
        cells = self._grid.cells
        _run_votes(x, y, cells, cells.span, self._places, self._tests, self._leaves, self._decoder)


@njit(nogil=True, cache=True)
def _compare(picture: Array, cells: Cells, planes: Array) -> None:  # pragma: no cover - compiled
    """Comparator bits of a picture into the middle of padded planes."""
    top, left, phases = cells.frame[0], cells.frame[1], cells.frame[2]
    channels, height, width = picture.shape
    for channel in range(channels):
        low, high = cells.low[channel], cells.high[channel]
        for line in range(height):
            source = picture[channel, line]
            if phases == 1:
                first, second = planes[0, channel, line + top, 0], planes[1, channel, line + top, 0]
                for column in range(width):
                    first[column + left] = source[column] > low
                    second[column + left] = source[column] > high
            else:
                for column in range(width):
                    step, phase = divmod(column + left, phases)
                    planes[0, channel, line + top, phase, step] = source[column] > low
                    planes[1, channel, line + top, phase, step] = source[column] > high


@njit(nogil=True, cache=True)
def _decode(total: int, output: int, decoder: Decoder) -> Any:  # pragma: no cover - compiled
    """An output of its sum."""
    if decoder.levelled:
        level = int(total >= decoder.low[output]) + int(total >= decoder.high[output])
        return decoder.values[output, level]
    return np.float32(np.int32(total + decoder.low[output])) * decoder.values[output, 0]


@njit(nogil=True, cache=True)
def _decode_all(totals: Array, output: int, decoder: Decoder, y: Array) -> None:  # pragma: no cover - compiled
    """One output of many sums."""
    low, high = decoder.low[output], decoder.high[output]
    minus, zero, plus = decoder.values[output]
    if decoder.levelled:
        for row in range(len(y)):
            total = np.int32(totals[row])
            y[row] = plus if total >= high else (zero if total >= low else minus)
    else:
        for row in range(len(y)):
            y[row] = np.float32(np.int32(totals[row]) + low) * minus


@njit(nogil=True, cache=True)
def _run_rows(
    x: Array, y: Array, cells: Cells, span: int, places: Array, leaves: Array, each: int, kind: Array, decoder: Decoder
) -> None:  # pragma: no cover - compiled
    """Sum leaves; ``kind`` is of the sums' type."""
    _, _, _, lines, columns, pitch = cells.frame
    planes = cells.planes.copy()
    flat = planes.reshape(-1)
    trees, depth = places.shape
    width = leaves.shape[2]
    leaf = np.empty(span, np.uint8)
    total = np.empty((lines * columns, len(kind)), kind.dtype)
    for example in range(len(x)):
        _compare(x[example], cells, planes)
        total[:] = 0
        for tree in range(trees):
            if span == 1:  # one row: no loops around a single byte
                number = 0
                for level in range(depth):
                    number |= int(flat[places[tree, level]]) << level
                leaf[0] = number
            else:
                leaf[:] = 0
                for level in range(depth):
                    bits = flat[places[tree, level] : places[tree, level] + span]
                    for place in range(span):
                        leaf[place] |= bits[place] << np.uint8(level)
            for line in range(lines):
                for column in range(columns):
                    found, sums = leaves[tree, leaf[line * pitch + column]], total[line * columns + column]
                    if each:
                        sums[tree // each] += found[0]
                    else:
                        for output in range(width):
                            sums[output] += found[output]
        for output in range(y.shape[1]):
            _decode_all(total[:, output], output, decoder, y[example, output])


@njit(nogil=True, cache=True)
def _run_walks(
    x: Array, y: Array, cells: Cells, starts: Array, nodes: Array, leaves: Array, each: int, decoder: Decoder
) -> None:  # pragma: no cover - compiled
    """Follow nodes row by row."""
    _, _, _, lines, columns, pitch = cells.frame
    planes = cells.planes.copy()
    flat = planes.reshape(-1)
    width = leaves.shape[1]
    total = np.zeros(y.shape[1], np.int32)
    for example in range(len(x)):
        _compare(x[example], cells, planes)
        for line in range(lines):
            for column in range(columns):
                corner = line * pitch + column
                total[:] = 0
                for tree in range(len(starts) - 1):
                    first, inner = starts[tree], starts[tree + 1] - starts[tree]
                    place = 0
                    while place < inner:
                        node = nodes[first + place]
                        word = int(flat[node[0] + corner]) + int(flat[node[1] + corner])
                        place = node[6] if (word >> node[3]) & node[4] > node[2] else node[5]
                    row = leaves[first + tree + place - inner]  # a tree has one leaf more than inner nodes
                    if each:
                        total[tree // each] += row[0]
                    else:
                        for output in range(width):
                            total[output] += row[output]
                for output in range(len(total)):
                    y[example, output, line * columns + column] = _decode(total[output], output, decoder)


@njit(nogil=True, cache=True)
def _run_votes(
    x: Array, y: Array, cells: Cells, span: int, places: Array, tests: Array, leaves: Array, decoder: Decoder
) -> None:  # pragma: no cover - compiled
    """Count votes, 64 rows at once."""
    _, _, _, lines, columns, pitch = cells.frame
    planes = cells.planes
    # Two words more: spans are read by words, from any bit on.
    flat = np.zeros(-(-planes.size // 64) * 64 + 128, np.uint8)
    flat[: planes.size] = planes.reshape(-1)
    planes = flat[: planes.size].reshape(planes.shape)
    each, _, outputs = tests.shape
    bits = 1
    while 1 << bits <= each:
        bits += 1
    words = np.zeros(len(places) + 1, np.uint64)
    packed = np.empty(len(flat) // 64, np.uint64)
    counts = np.empty((bits, outputs), np.uint64)
    work = np.empty((2, _LEAVES // 2, outputs), np.uint64)
    total = np.empty((outputs, -(-span // 64) * 64), np.int32)
    for example in range(len(x)):
        _compare(x[example], cells, planes)
        _pack(flat.view(np.uint64), packed)
        for lane in range(-(-span // 64)):
            for place in range(len(places)):
                start = places[place] + 64 * lane
                chunk, shift = start >> 6, uint64(start & 63)
                # Shifted twice: by 64 at once would be by nothing.
                words[place] = packed[chunk] >> shift | packed[chunk + 1] << uint64(1) << (uint64(63) - shift)
            _count(words, tests, leaves, counts, work)
            for output in range(outputs):
                sums = total[output, 64 * lane : 64 * lane + 64]
                sums[:] = 0
                for bit in range(bits):
                    votes = counts[bit, output]
                    for row in range(64):
                        sums[row] += np.int32(votes >> uint64(row) & uint64(1)) << bit
        for output in range(outputs):
            for line in range(lines):
                made = y[example, output, line * columns : (line + 1) * columns]
                _decode_all(total[output, line * pitch : line * pitch + columns], output, decoder, made)


@njit(nogil=True, cache=True)
def _pack(eights: Array, packed: Array) -> None:  # pragma: no cover - compiled
    """Bytes of 0 or 1, eight of them a word, as bits."""
    for place in range(len(packed)):
        word = uint64(0)
        for part in range(8):
            word |= (eights[8 * place + part] * _GATHER >> uint64(56)) << uint64(8 * part)
        packed[place] = word


@njit(nogil=True, cache=True)
def _select(test: Array, no: Array, yes: Array, made: Array) -> None:  # pragma: no cover - compiled
    """Side by side: what ``yes`` holds where the test is 1, else what ``no`` holds."""
    for side in range(len(made)):
        made[side] = no[side] ^ (test[side] & (no[side] ^ yes[side]))


@njit(nogil=True, cache=True)
def _count(words: Array, tests: Array, leaves: Array, counts: Array, work: Array) -> None:  # pragma: no cover
    """Votes of all outputs for one word of rows, in ``counts``: bits x outputs."""
    counts[:] = 0
    outputs = counts.shape[1]
    test, carry = np.empty(outputs, np.uint64), np.empty(outputs, np.uint64)
    for turn in range(len(tests)):
        for level in range(MAX_DEPTH):
            numbers = tests[turn, level]
            for side in range(outputs):
                test[side] = words[numbers[side]]
            made = work[level & 1]
            for pair in range(_LEAVES >> level + 1):
                if level == 0:
                    _select(test, leaves[turn, 2 * pair], leaves[turn, 2 * pair + 1], made[pair])
                else:
                    before = work[1 - (level & 1)]
                    _select(test, before[2 * pair], before[2 * pair + 1], made[pair])
        carry[:] = work[(MAX_DEPTH - 1) & 1, 0]
        for bit in range(len(counts)):
            count = counts[bit]
            for side in range(outputs):
                both = count[side] & carry[side]
                count[side] ^= carry[side]
                carry[side] = both
