"""Ensembles on a CPU core: compiled, without the interpreter's lock, equal to the reference bit for bit.

Votes are counted in bits: a word holds one comparator bit of 64 rows (positions of an image, or examples), a
leaf bit is selected between words, and votes are added by half adders, so that 64 rows cost as much as one (bit
slicing was introduced by Biham, "A Fast New DES Implementation in Software", FSE 1997). Whole-number leaves are
found for all rows at once and added row by row; for a single row only the tested values are compared. Comparing
and packing are part of every call.

This module also arranges an ensemble's geometry, its comparator bits and the decoding of sums, as flat arrays.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from framefit.core.trees import MAX_DEPTH, Ensemble, Patch, images_of, outputs_of
from framefit.devices.trees.loops import LANES, TOGETHER, WORDS, run_row, run_rows, run_votes, run_walks

__all__ = ["kernel_of"]


Array = npt.NDArray[Any]
_STEP = 64  # bytes that loops process at once: positions are padded to a multiple


class Decoder(NamedTuple):
    """Thresholds and values, or biases and scales.

    Attributes:
        levelled: whether it has thresholds and values.
        bounds: 2 x outputs, int32: low and high thresholds; without levels the biases, twice.
        values: 3 x outputs, float32: of each level; without levels the scales, three times.
    """

    levelled: bool
    bounds: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Grid:
    """Layout of an ensemble's comparator bits. Data without positions have one row, with an example in each column.

    Bits are bytes. Each comparator bit of each channel has a plane for each phase of the strides: the rows and columns
    that are a stride apart. Rows of positions have the same distance as rows of planes, so that the values of all
    positions at one place of their patch are a span of bytes. Where that extends beyond the image, a mask sets it to 0.

    Attributes:
        patch: the patch of the trees.
        limits: 2 x channels, float32: thresholds.
        masks: uint8, one span each: for each place of the patch where it is inside the image; then where it is
            in padding; and one of zeros.
        frame: int64: strides (down, across), rows and columns of positions, bytes from row to row, bytes of a plane,
            offset of the planes, offset of a span of ones, and bytes in all.
    """

    patch: Patch
    limits: npt.NDArray[np.float32]
    masks: npt.NDArray[np.uint8]
    frame: npt.NDArray[np.int64]

    def tests(self, features: Iterable[int], bits: Iterable[int]) -> npt.NDArray[np.int32]:
        """Offsets of the spans of features' bits, and their masks' numbers: tests x 2; feature -1: always 0."""
        area, channels = self.patch.area, self.limits.shape[1]
        spans = []
        for feature, bit in zip(features, bits, strict=True):
            channel, place = divmod(feature, area)
            if feature < 0:
                spans.append((int(self.frame[7]), 2 * area))
            elif channel == channels:
                spans.append((int(self.frame[7]), area + place))
            else:
                spans.append((self._begin(channel, bit, *divmod(place, self.patch.kernel[1])), place))
        return np.asarray(spans, np.int32).reshape(-1, 2)

    def _begin(self, channel: int, bit: int, y: int, x: int) -> int:
        down, across, _, _, pitch, plane, first, _, _ = self.frame.tolist()
        line, y_phase = divmod(y - self.patch.padding[0], down)
        column, x_phase = divmod(x - self.patch.padding[1], across)
        number = ((bit * self.limits.shape[1] + channel) * down + y_phase) * across + x_phase
        return int(first + number * plane + line * pitch + column)


def grid_of(ensemble: Ensemble, batch: int) -> Grid:
    """Arrange an ensemble's bits for a number of examples at once."""
    if ensemble.patch is None:
        patch, (channels, height, width) = Patch(kernel=(1, 1)), (math.prod(ensemble.input_shape), 1, batch)
    else:
        patch, (channels, height, width) = ensemble.patch, ensemble.image
    down, across = patch.stride
    lines, columns = patch.positions(height, width)
    pitch = max(columns, -(-width // across))
    plane = -(-height // down) * pitch
    span = -(-((lines - 1) * pitch + columns) // _STEP) * _STEP
    before = -(-patch.padding[0] // down) * pitch + -(-patch.padding[1] // across)
    behind = patch.kernel[0] // down * pitch + patch.kernel[1] // across + span
    ones = before + 2 * channels * down * across * plane + behind
    # Two words more: spans of packed bits are read by words, from any bit on.
    size = -(-(ones + span) // _STEP) * _STEP + 2 * _STEP
    return Grid(
        patch,
        np.asarray([ensemble.encoder.low, ensemble.encoder.high], np.float32),
        _masks(patch, (height, width), (lines, columns), pitch, span),
        np.asarray([down, across, lines, columns, pitch, plane, before, ones, size], np.int64),
    )


def _masks(
    patch: Patch, size: tuple[int, int], positions: tuple[int, int], pitch: int, span: int
) -> npt.NDArray[np.uint8]:
    """Masks of positions inside the image, of those outside, and zeros."""
    masks = np.zeros((2 * patch.area + 1, span), np.uint8)
    y, x = (np.arange(count) * step for count, step in zip(positions, patch.stride, strict=True))
    at = (np.arange(positions[0])[:, None] * pitch + np.arange(positions[1])).ravel()
    for place in range(patch.area):
        down, across = divmod(place, patch.kernel[1])
        line, column = y + down - patch.padding[0], x + across - patch.padding[1]
        inside = ((line >= 0) & (line < size[0]))[:, None] & (column >= 0) & (column < size[1])
        masks[place, at] = inside.ravel()
        masks[patch.area + place, at] = ~inside.ravel()
    return masks


def decoder_of(ensemble: Ensemble) -> Decoder:
    """Arrange the decoding of an ensemble's sums."""
    if ensemble.levels is not None:
        bounds = np.asarray([ensemble.levels.low, ensemble.levels.high], np.int32)
        return Decoder(levelled=True, bounds=bounds, values=np.asarray(ensemble.levels.values, np.float32).T.copy())
    assert ensemble.scaled is not None
    bias, scale = np.asarray(ensemble.scaled.bias, np.int32), np.asarray(ensemble.scaled.scale, np.float32)
    return Decoder(levelled=False, bounds=np.stack([bias] * 2), values=np.stack([scale] * 3))


_FULL = np.uint64(2**64 - 1)


class Kernel(Protocol):
    """An ensemble compiled for a number of examples at once."""

    def __call__(self, x: Array, y: Array) -> None:
        """Write the outputs ``y`` for inputs ``x``: batch x shape each, float32 and contiguous."""


def kernel_of(ensemble: Ensemble, batch: int = 1) -> Kernel:
    """Choose the fastest kernel for an ensemble; its first call in a process loads or compiles it.

    Args:
        ensemble: any ensemble.
        batch: number of examples in a call.
    """
    if ensemble.flat is not ensemble:
        return _Arranged(ensemble, batch)
    if ensemble.free_trees:
        return _Walks(ensemble, batch)
    if ensemble.patch is None and batch == 1:
        return _Row(ensemble)
    return _Votes(ensemble, batch) if ensemble.kind == "vote" else _Rows(ensemble, batch)


class _Arranged:
    """Trees on what is seen as images: it is arranged, and so are the outputs."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        assert ensemble.patch is not None
        flat = ensemble.flat
        self._ensemble, self._count = ensemble, batch * ensemble.patch.slices(ensemble.input_shape)
        self._kernel, self._shape = kernel_of(flat, self._count), (self._count, *flat.output_shape)

    def __call__(self, x: Array, y: Array) -> None:
        made = np.empty(self._shape, np.float32)
        self._kernel(np.ascontiguousarray(images_of(self._ensemble, x)), made)
        y[:] = outputs_of(self._ensemble, made)


class _Row:
    """Oblivious trees for one vector."""

    def __init__(self, ensemble: Ensemble) -> None:
        features, bits = _tests(ensemble)
        limits = np.asarray([ensemble.encoder.low, ensemble.encoder.high], np.float32)
        self._limits = np.where(features < 0, np.float32(np.inf), limits[bits, features])
        self._features, self._leaves = np.maximum(features, 0), _tables(ensemble, len(ensemble.trees))
        self._each, self._decoder = _each(ensemble), decoder_of(ensemble)

    def __call__(self, x: Array, y: Array) -> None:
        tables = self._features, self._limits, self._leaves, self._each
        run_row(x.reshape(-1), y.reshape(-1), *tables, *self._decoder)


class _Compiled(ABC):
    """Base of kernels for many rows: it arranges examples for inputs and outputs."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        dense = ensemble.patch is None
        grid, self._decoder = grid_of(ensemble, batch), decoder_of(ensemble)
        self._geometry = grid.limits, grid.masks, grid.frame
        self._grid = grid
        self._input = (1, -1, 1, batch) if dense else (batch, *ensemble.image)
        self._output = (1 if dense else batch, ensemble.outputs, -1)
        self._turned = dense and batch > 1

    def __call__(self, x: Array, y: Array) -> None:
        if not self._turned:
            self._run(x.reshape(self._input), y.reshape(self._output))
            return
        made = np.empty((1, self._output[1], len(x)), np.float32)
        self._run(np.ascontiguousarray(x.reshape(len(x), -1).T).reshape(self._input), made)
        y.reshape(len(x), -1)[:] = made[0].T

    @abstractmethod
    def _run(self, x: Array, y: Array) -> None:
        """Run on images N x channels x height x width, to N x outputs x positions."""


class _Rows(_Compiled):
    """Oblivious trees with whole numbers in their leaves."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        super().__init__(ensemble, batch)
        count = -(-len(ensemble.trees) // TOGETHER) * TOGETHER if ensemble.kind == "vector" else len(ensemble.trees)
        features, bits = np.full((count, MAX_DEPTH), -1, np.int32), np.zeros((count, MAX_DEPTH), np.int32)
        for side, values in zip((features, bits), _tests(ensemble), strict=True):
            side[: len(values), : values.shape[1]] = values
        self._tests = self._grid.tests(features.ravel().tolist(), bits.ravel().tolist()).reshape(count, MAX_DEPTH, 2)
        self._leaves, self._each = _tables(ensemble, count), _each(ensemble)
        self._sum = np.zeros(1, np.int16 if _short(self._leaves, ensemble) else np.int32)

    def _run(self, x: Array, y: Array) -> None:
        run_rows(x, y, *self._geometry, self._tests, self._leaves, self._each, self._sum, *self._decoder)


class _Walks(_Compiled):
    """Trees of any shape."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        super().__init__(ensemble, batch)
        self._each = _each(ensemble)
        starts, nodes, leaves = [0], [], []
        for tree in ensemble.free_trees:
            for node in tree.nodes:
                (first, mask), (second, _) = self._grid.tests((node.x, node.x), (0, 1)).tolist()
                nodes.append((first, second, mask, node.a, node.l, (1 << node.h - node.l + 1) - 1, node.i0, node.i1))
            leaves.append(np.asarray(tree.leaves, np.int8).reshape(-1, ensemble.width))
            starts.append(len(nodes))
        self._starts = np.asarray(starts, np.int64)
        self._nodes = np.asarray(nodes, np.int64).reshape(-1, 8)
        self._leaves = np.concatenate(leaves)

    def _run(self, x: Array, y: Array) -> None:
        run_walks(x, y, *self._geometry, self._starts, self._nodes, self._leaves, self._each, *self._decoder)


class _Votes(_Compiled):
    """Oblivious trees whose leaves are bits, with rows as lanes."""

    def __init__(self, ensemble: Ensemble, batch: int) -> None:
        super().__init__(ensemble, batch)
        each = ensemble.trees_each
        tested = sorted({test for tree in ensemble.trees for test in zip(tree.inputs, tree.bits, strict=True)})
        number = {test: place for place, test in enumerate(tested)}
        # Trees of one turn are adjacent, one for each output. The last word is 0, for tests that do not exist.
        width = -(-ensemble.outputs // WORDS) * WORDS
        self._chosen = np.full((each, MAX_DEPTH, width), len(tested), np.int32)
        self._leaves = np.zeros((each, 1 << MAX_DEPTH, width), np.uint64)
        for place, tree in enumerate(ensemble.trees):
            output, turn = divmod(place, each)
            for level, test in enumerate(zip(tree.inputs, tree.bits, strict=True)):
                self._chosen[turn, level, output] = number[test]
            table = np.resize(np.asarray(tree.leaves, bool), 1 << MAX_DEPTH)
            self._leaves[turn, :, output] = np.where(table, _FULL, np.uint64(0))
        self._tests = self._grid.tests([feature for feature, _ in tested], [bit for _, bit in tested])

    def _run(self, x: Array, y: Array) -> None:
        run_votes(x, y, *self._geometry, self._tests, self._chosen, self._leaves, *self._decoder)


def _each(ensemble: Ensemble) -> int:
    """Number of successive trees for each output; 0: every tree adds to all outputs."""
    return 0 if ensemble.kind == "vector" else ensemble.trees_each


def _tests(ensemble: Ensemble) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Features and comparator bits of oblivious trees: trees x levels; feature -1 where a tree has no such level."""
    depth = max(1, *(tree.depth for tree in ensemble.trees), 0)
    features = np.full((len(ensemble.trees), depth), -1, np.int32)
    bits = np.zeros((len(ensemble.trees), depth), np.int32)
    for number, tree in enumerate(ensemble.trees):
        features[number, : tree.depth] = tree.inputs
        bits[number, : tree.depth] = tree.bits
    return features, bits


def _tables(ensemble: Ensemble, count: int) -> npt.NDArray[np.int8]:
    """Leaves of oblivious trees, padded to ``count`` trees: trees x leaves of the deepest x values."""
    most = max(tree.leaf_count for tree in ensemble.trees)
    width = -(-ensemble.width // LANES) * LANES if ensemble.kind == "vector" else 1
    tables = np.zeros((count, most, width), np.int8)
    for number, tree in enumerate(ensemble.trees):
        tables[number, : tree.leaf_count, : ensemble.width] = np.asarray(tree.leaves, np.int8).reshape(
            -1, ensemble.width
        )
    return tables


def _short(tables: npt.NDArray[np.int8], ensemble: Ensemble) -> bool:
    """Whether 16 bits hold every sum of leaves, and every partial sum."""
    each = len(tables) if ensemble.kind == "vector" else ensemble.trees_each
    sides = np.minimum(tables.min(axis=1), 0), np.maximum(tables.max(axis=1), 0)
    least, most = (side.reshape(-1, each, tables.shape[2]).sum(axis=1, dtype=np.int64) for side in sides)
    limits = np.iinfo(np.int16)
    return bool(limits.min <= least.min() and most.max() <= limits.max)
