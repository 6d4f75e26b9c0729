"""How kernels find comparator bits and decode sums: an ensemble's geometry as flat arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.trees import Ensemble, Patch

__all__ = ["Decoder", "Grid", "decoder_of", "grid_of"]

Array = npt.NDArray[Any]

_STEP = 64  # bytes that loops go at once: positions are filled up to a multiple


class Decoder(NamedTuple):
    """Thresholds and values, or biases and scales.

    Attributes:
        levelled: which of the two.
        bounds: 2 x outputs, int32: low and high thresholds; without levels the biases, twice.
        values: 3 x outputs, float32: of each level; without levels the scales, three times.
    """

    levelled: bool
    bounds: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Grid:
    """Where an ensemble's comparator bits lie. What is no picture is one of one row, with an example in each column.

    Bits are bytes. Each comparator bit of each channel has a plane for each phase of the strides: the rows and columns
    that are a stride apart. Rows of positions lie as far apart as rows of planes, so that what all positions find at
    one place of their patch is a span of bytes. Where that reaches beyond the picture, a mask makes it 0.

    Attributes:
        patch: that the trees see.
        limits: 2 x channels, float32: thresholds.
        masks: uint8, a span each: of each place of the patch where it is inside of the picture; likewise where it is
            in padding; and one that is 0.
        frame: int64: strides (down, across), rows and columns of positions, bytes from row to row, bytes of a plane,
            where the planes begin, where a span of ones begins, and bytes in all.
    """

    patch: Patch
    limits: npt.NDArray[np.float32]
    masks: npt.NDArray[np.uint8]
    frame: npt.NDArray[np.int64]

    def tests(self, features: Iterable[int], bits: Iterable[int]) -> npt.NDArray[np.int32]:
        """Where the spans of bits of features begin, and their masks' numbers: tests x 2; of feature -1: always 0."""
        area, channels = self.patch.area, self.limits.shape[1]
        found = []
        for feature, bit in zip(features, bits, strict=True):
            channel, place = divmod(feature, area)
            if feature < 0:
                found.append((int(self.frame[7]), 2 * area))
            elif channel == channels:
                found.append((int(self.frame[7]), area + place))
            else:
                found.append((self._begin(channel, bit, *divmod(place, self.patch.kernel[1])), place))
        return np.asarray(found, np.int32).reshape(-1, 2)

    def _begin(self, channel: int, bit: int, y: int, x: int) -> int:
        down, across, _, _, pitch, plane, first, _, _ = self.frame.tolist()
        line, y_phase = divmod(y - self.patch.padding[0], down)
        column, x_phase = divmod(x - self.patch.padding[1], across)
        number = ((bit * self.limits.shape[1] + channel) * down + y_phase) * across + x_phase
        return int(first + number * plane + line * pitch + column)


def grid_of(ensemble: Ensemble, batch: int) -> Grid:
    """Where an ensemble's bits lie, for that many examples at once."""
    if ensemble.patch is None:
        patch, (channels, height, width) = Patch(kernel=(1, 1)), (math.prod(ensemble.input_shape), 1, batch)
    else:
        patch, (channels, height, width) = ensemble.patch, ensemble.input_shape
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
    """Places inside, places outside, nothing: for each position."""
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
    """How an ensemble's sums are decoded."""
    if ensemble.levels is not None:
        bounds = np.asarray([ensemble.levels.low, ensemble.levels.high], np.int32)
        return Decoder(levelled=True, bounds=bounds, values=np.asarray(ensemble.levels.values, np.float32).T.copy())
    assert ensemble.scaled is not None
    bias, scale = np.asarray(ensemble.scaled.bias, np.int32), np.asarray(ensemble.scaled.scale, np.float32)
    return Decoder(levelled=False, bounds=np.stack([bias] * 2), values=np.stack([scale] * 3))
