"""Rows of arrays that stay on disk: data larger than memory are read where they are used."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["free_bytes"]

Array = npt.NDArray[Any]
Rows = slice | npt.NDArray[np.int64]
IN_MEMORY_BYTES = 1 << 30
"""Larger arrays stay on disk."""
_PIECE_BYTES = 1 << 26


@dataclass(frozen=True)
class MappedRows:
    """Rows of some arrays, in any order; indexing reads them.

    Attributes:
        arrays: of one type and one shape of their rows; those that are ``numpy.memmap`` are on disk.
        array_of: of each row, the number of its array; N, int64.
        row_of: the row there; N, int64.
    """

    arrays: tuple[Array, ...]
    array_of: npt.NDArray[np.int64]
    row_of: npt.NDArray[np.int64]

    @classmethod
    def of(cls, array: Array | MappedRows) -> MappedRows:
        """All rows of an array."""
        if isinstance(array, MappedRows):
            return array
        return cls((array,), np.zeros(len(array), np.int64), np.arange(len(array)))

    def __len__(self) -> int:
        return len(self.row_of)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of one array."""
        return (len(self), *self.arrays[0].shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.arrays[0].ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of all elements."""
        return self.arrays[0].dtype

    def __getitem__(self, rows: Rows) -> Array:
        """Read rows."""
        array_of, row_of = self.array_of[rows], self.row_of[rows]
        read: Array = np.empty((len(row_of), *self.shape[1:]), self.dtype)
        for number, array in enumerate(self.arrays):
            places = np.flatnonzero(array_of == number)
            read[places] = array[row_of[places]]
        return read

    def take(self, rows: Rows) -> MappedRows:
        """Some of the rows, without reading them."""
        return MappedRows(self.arrays, self.array_of[rows], self.row_of[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes of this machine: files are named, not copied."""
        return _opened, (tuple(map(_named, self.arrays)), self.array_of, self.row_of)


Stored = Array | MappedRows


def free_bytes() -> int:
    """Memory that the system can give; where it does not say, as much as there can be."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return sys.maxsize


def taken(stored: Stored, rows: Rows) -> Stored:
    """Some rows, which stay on disk if they are there."""
    return stored.take(rows) if isinstance(stored, MappedRows) else stored[rows]


def together(first: Stored, second: Stored) -> Stored:
    """The rows of both, one behind the other, which stay on disk as far as they are there."""
    if not (isinstance(first, MappedRows) or isinstance(second, MappedRows)):
        return np.concatenate([first, second])
    one, two = MappedRows.of(first), MappedRows.of(second)
    return MappedRows(
        (*one.arrays, *two.arrays),
        np.concatenate([one.array_of, two.array_of + len(one.arrays)]),
        np.concatenate([one.row_of, two.row_of]),
    )


def pieces(stored: Stored) -> Iterator[Array]:
    """All rows in order, in pieces that fit into memory; an array in memory is one."""
    if not isinstance(stored, MappedRows):
        yield stored
        return
    row_bytes = max(stored.dtype.itemsize * int(np.prod(stored.shape[1:], dtype=np.int64)), 1)
    step = max(_PIECE_BYTES // row_bytes, 1)
    for first in range(0, len(stored), step):
        yield stored[slice(first, first + step)]


def _named(array: Array) -> Any:
    if not isinstance(array, np.memmap):
        return array
    return str(array.filename), array.dtype, array.offset, array.shape


def _opened(arrays: Sequence[Any], array_of: Array, row_of: Array) -> MappedRows:
    def opened(named: Any) -> Array:
        if not isinstance(named, tuple):
            return named  # type: ignore[no-any-return]  # an array
        path, dtype, offset, shape = named
        return np.memmap(path, dtype, "r", offset, shape)

    return MappedRows(tuple(map(opened, arrays)), array_of, row_of)
