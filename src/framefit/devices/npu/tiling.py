"""How often operands cross into the cache: the least traffic over tiles that fit.

A product sums over k for m x n results. Half the cache holds one tile, the other half is
filled meanwhile (double buffering). Three ways to go through the tiles are compared:

- first operand kept: tiles of many rows, one column at a time; the weights come once a tile;
- weights kept: tiles of many columns, one row at a time; the first operand comes once a tile;
- results kept: tiles of rows and columns, sums in pieces; both operands come more than once.

Overlapping rows of a convolution's input stay in the cache from one tile to the next.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["refetched_bytes"]

Floats = npt.NDArray[np.float64]

# Widths of tiles whose results are kept: 1, 2, 3, 4, 6, 8, 12, ...
_WIDTHS = tuple(sorted({*(1 << i for i in range(17)), *(3 << i for i in range(15))}))
_SUM_BYTES = 4  # of a sum that is not complete


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
    """Bytes that have to be fetched again, because not everything fits at once.

    All arrays have one entry a product.

    Args:
        room: bytes of a tile: half the cache.
        m: rows of the result.
        n: its columns.
        channels: into which a sum can be cut.
        row: bytes of the first operand for one row.
        column: bytes of the second operand for one column.
        halo: bytes of the first operand that stay in the cache beside the tile's own.
        result: bytes of one element of the result.
        row_outside: 1 where the first operand comes from memory, 0 where it is made in the layer.
        column_outside: as much for the second operand.

    Returns:
        Of the first operand and of the second one, beyond fetching each once.
    """
    first, second = np.zeros_like(m), np.zeros_like(m)
    fits = (row * m + column + halo + m * result <= room) | (row + column * n + halo + n * result <= room)
    index = np.flatnonzero(~fits & (row_outside + column_outside > 0))
    if not index.size:
        return first, second
    m, n, channels, row, column, halo = (values[index] for values in (m, n, channels, row, column, halo))
    a, b = row * m * row_outside[index], column * n * column_outside[index]
    # each candidate: tiles along the rows, along the columns; infinite where nothing fits
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
    # Not even one column of one channel fits: every product fetches its operands.
    none = ~np.isfinite(best[0] + best[1])
    first[index] = np.where(none, a * (n - 1), best[0])
    second[index] = np.where(none, b * (m - 1), best[1])
    return first, second


def _tiles(count: Floats, room: Floats, size: Floats) -> Floats:
    """Number of tiles where ``room`` holds so many of ``size``; infinite where it holds none."""
    held = np.minimum(np.floor(room / size), count)
    return np.where(held >= 1, np.ceil(count / np.maximum(held, 1)), np.inf)


def _again(size: Floats, tiles: Floats) -> Floats:
    """Bytes beyond the first time of an operand that comes once a tile."""
    return np.where(np.isinf(tiles), np.inf, size * (np.where(np.isinf(tiles), 1, tiles) - 1))


def _better(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """The pair with the smaller sum, element by element."""
    take = other[0] + other[1] < one[0] + one[1]
    return np.where(take, other[0], one[0]), np.where(take, other[1], one[1])
