"""How kernels find comparator bits and decode sums: an ensemble's geometry as flat arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.trees import Ensemble, Patch

__all__ = ["Cells", "Decoder", "Grid", "decoder_of", "grid_of"]

Array = npt.NDArray[Any]


class Cells(NamedTuple):
    """Comparator bits as planes, one byte each: bit x channel x padded height x phase x padded width of a phase.

    A phase has every column that is a multiple of the horizontal stride behind its first, so that positions of a
    row lie side by side. The bits that all positions find at one place of their patch are then a span of bytes.

    Attributes:
        low, high: thresholds of each channel.
        frame: top, left, horizontal stride, rows and columns of positions, bytes from one row of positions to the
            next.
        planes: as they are before a picture is compared. Behind the picture's channels is one that is 1 in padding,
            where trees ask for it, and one that is 0.
    """

    low: npt.NDArray[np.float32]
    high: npt.NDArray[np.float32]
    frame: tuple[int, int, int, int, int, int]
    planes: npt.NDArray[np.uint8]

    @property
    def span(self) -> int:
        """Bytes from the first position to behind the last."""
        _, _, _, lines, columns, pitch = self.frame
        return (lines - 1) * pitch + columns


class Decoder(NamedTuple):
    """Thresholds and values, or biases and scales.

    Attributes:
        levelled: which of the two.
        low: of each output; without levels its bias.
        high: of each output; without levels not used.
        values: outputs x 3; without levels the scale in all of them.
    """

    levelled: bool
    low: npt.NDArray[np.int32]
    high: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Grid:
    """Where an ensemble's comparator bits lie. What is no picture is one of one row, with an example in each column.

    Attributes:
        cells: their memory.
        patch: that the trees see.
    """

    cells: Cells
    patch: Patch

    @property
    def nothing(self) -> int:
        """Where a span of zeros begins."""
        return self._place(self.cells.planes.shape[1] - 1, 0, 0, 0)

    def places(self, features: Iterable[int], bits: Iterable[int]) -> npt.NDArray[np.int32]:
        """Where the spans of bits of features begin."""
        found = []
        for feature, bit in zip(features, bits, strict=True):
            channel, place = divmod(feature, self.patch.area)
            found.append(self._place(channel, bit, *divmod(place, self.patch.kernel[1])))
        return np.asarray(found, np.int32)

    def _place(self, channel: int, bit: int, y: int, x: int) -> int:
        step, phase = divmod(x, self.patch.stride[1])
        return int(np.ravel_multi_index((bit, channel, y, phase, step), self.cells.planes.shape))


def grid_of(ensemble: Ensemble, batch: int) -> Grid:
    """Where an ensemble's bits lie, for that many examples at once."""
    if ensemble.patch is None:
        patch, (channels, height, width) = Patch(kernel=(1, 1)), (math.prod(ensemble.input_shape), 1, batch)
    else:
        patch, (channels, height, width) = ensemble.patch, ensemble.input_shape
    top, left, bottom, right = patch.padding
    phases = patch.stride[1]
    wide = -(-(width + left + right) // phases)
    planes = np.zeros((2, channels + patch.border + 1, height + top + bottom, phases, wide), np.uint8)
    if patch.border:
        columns = np.arange(wide) * phases + np.arange(phases)[:, None]
        outside = np.ones(planes.shape[2:], np.uint8)
        outside[top : top + height, (columns >= left) & (columns < left + width)] = 0
        planes[:, channels] = outside
    low, high = (np.asarray(side, np.float32) for side in (ensemble.encoder.low, ensemble.encoder.high))
    lines, across = patch.positions(height, width)
    frame = (top, left, phases, lines, across, patch.stride[0] * phases * wide)
    return Grid(Cells(low, high, frame, planes), patch)


def decoder_of(ensemble: Ensemble) -> Decoder:
    """How an ensemble's sums are decoded."""
    if ensemble.levels is not None:
        values = np.asarray(ensemble.levels.values, np.float32)
        low, high = (np.asarray(side, np.int32) for side in (ensemble.levels.low, ensemble.levels.high))
        return Decoder(levelled=True, low=low, high=high, values=values)
    assert ensemble.scaled is not None
    bias = np.asarray(ensemble.scaled.bias, np.int32)
    scale = np.asarray(ensemble.scaled.scale, np.float32)
    values = np.ascontiguousarray(np.repeat(scale[:, None], 3, axis=1))
    return Decoder(levelled=False, low=bias, high=bias, values=values)
