"""Many Protocol Buffers messages at once.

A message is a list of parts: bytes, and numbers whose varints are padded to one width (a
varint may end in zero groups; Perfetto's own writer does so for lengths). So messages of one
form are equally long and are the rows of one matrix, which is filled column by column.
The encoding: protobuf.dev, Encoding, "Base 128 Varints" and "Message Structure".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class PerRow:
    """A number for each row of the form's table."""

    values: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of the longest."""
        return max((len(_varint(value)) for value in self.values), default=1)


@dataclass(frozen=True)
class Given:
    """A number that each message brings along, in at most ``width`` bytes."""

    name: str
    width: int


Part = bytes | PerRow | Given


def width_of(values: _Integers) -> int:
    """Bytes for every varint: those of the longest, or a few more where that takes fewer steps."""
    if not len(values):
        return 1
    longest = 10 if values.min() < 0 else len(_varint(int(values.max())))
    return {3: 4, 5: 8, 6: 8, 7: 8}.get(longest, longest)


def integer(field: int, value: int | PerRow | Given) -> list[Part]:
    """A field of type int64, uint64, bool or enum."""
    tag = _varint(field << 3)
    return [tag + _varint(value)] if isinstance(value, int) else [tag, value]


def text(field: int, value: str) -> list[Part]:
    """A field of type string."""
    return message(field, [value.encode()])


def message(field: int, parts: Sequence[Part]) -> list[Part]:
    """A field that is a message."""
    length = sum(len(part) if isinstance(part, bytes) else part.width for part in parts)
    return [_varint(field << 3 | 2) + _varint(length), *parts]


def fixed(parts: Sequence[Part]) -> bytes:
    """A message in which everything is known."""
    return b"".join(part for part in parts if isinstance(part, bytes))


class Form:
    """Messages that differ in numbers only.

    Args:
        parts: of the message.
        rows: length of every :class:`PerRow`.
    """

    def __init__(self, parts: Sequence[Part], rows: int) -> None:
        length = sum(len(part) if isinstance(part, bytes) else part.width for part in parts)
        self._table = np.zeros((max(rows, 1), length), np.uint8)
        self._given: list[tuple[Given, int]] = []
        at = 0
        for part in parts:
            if isinstance(part, bytes):
                self._table[:, at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
                continue
            if isinstance(part, Given):
                self._given.append((part, at))
            elif rows:
                _fill(self._table, at, part.width, np.array([value % (1 << 64) for value in part.values], np.uint64))
            at += part.width

    def filled(self, row: npt.NDArray[np.int64], given: Mapping[str, _Integers | int]) -> memoryview:
        """The messages one after the other.

        Args:
            row: of the table, for each message.
            given: the numbers of every :class:`Given`, of the same length, or one for all.
        """
        rows = self._table.take(row, axis=0)
        for part, at in self._given:
            values = np.asarray(given[part.name], np.int64).view(np.uint64)
            _fill(rows, at, part.width, values)
        return rows.data


# Groups of 7 bits spread to bytes in steps: halves, quarters, eighths move apart.
_SPREAD = {
    8: (
        (0x0FFFFFFF, 0x00FFFFFFF0000000, 4),
        (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (0x007F007F007F007F, 0x3F803F803F803F80, 1),
    ),
    4: ((0x3FFF, 0x0FFFC000, 2), (0x007F007F, 0x3F803F80, 1)),
    2: ((0x7F, 0x3F80, 1),),
    1: (),
}
_MORE = 0x8080808080808080


def _fill(rows: npt.NDArray[np.uint8], at: int, width: int, values: npt.NDArray[np.uint64]) -> None:
    """Write ``values`` as varints of ``width`` bytes, 8, 4, 2 and 1 bytes at a time."""
    done = 0
    for size in (8, 4, 2, 1):
        while width - done >= size:
            form = np.dtype(f"<u{size}")
            groups = (values >> np.uint64(7 * done) if done else values).astype(form)
            if size == 1:  # the others' masks leave out what is not theirs
                groups &= form.type(0x7F)
            for low, high, shift in _SPREAD[size]:
                groups = (groups & form.type(low)) | ((groups & form.type(high)) << form.type(shift))
            more = _MORE & ((1 << 8 * size) - 1)
            if done + size == width:
                more &= (1 << 8 * size - 8) - 1
            groups |= form.type(more)
            rows[:, at + done : at + done + size].view(form)[:, 0] = groups
            done += size


def _varint(value: int) -> bytes:
    value %= 1 << 64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
