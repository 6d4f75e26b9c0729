"""The fates of all frames of a run, as columns: a long run has millions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from framefit.core.results import Frame

__all__ = ["Fated", "FrameTable"]

Fated = tuple[Literal["done", "late", "dropped", "skipped"], str]
"""A fate and its reason."""

_Integers = npt.NDArray[np.int64]
_Row = tuple[str, int, str, Literal["done", "late", "dropped", "skipped"], str, int, int | None]

_AT_ONCE = 1 << 14  # rows that are made into Python objects, 1 kB each


@dataclass(frozen=True, eq=False)
class FrameTable(Sequence[Frame]):
    """Frames in order of release; a record is only made of the one that is looked at.

    Attributes:
        models: their names, by number.
        streams: of each model, the one that its frames are counted by.
        fates: by number.
        model, fate: int64, numbers.
        frame: int64, counted by the stream.
        released_ns: int64, after the first release.
        finished_ns: int64, likewise, -1 where there is none.
    """

    models: tuple[str, ...]
    streams: tuple[str, ...]
    fates: tuple[Fated, ...]
    model: _Integers
    frame: _Integers
    fate: _Integers
    released_ns: _Integers
    finished_ns: _Integers

    def __len__(self) -> int:
        return len(self.frame)

    @overload
    def __getitem__(self, index: int) -> Frame: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Frame, ...]: ...
    def __getitem__(self, index: int | slice) -> Frame | tuple[Frame, ...]:
        numbers = np.arange(len(self))[index]
        found = tuple(map(_record, self._rows(np.atleast_1d(numbers))))
        return found if isinstance(index, slice) else found[0]

    def __iter__(self) -> Iterator[Frame]:
        return map(_record, self.rows())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrameTable):
            return NotImplemented
        return all(np.array_equal(getattr(self, one.name), getattr(other, one.name)) for one in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> Iterator[_Row]:
        """The fields of all frames, in the order of :class:`~framefit.core.results.Frame`."""
        for first in range(0, len(self), _AT_ONCE):
            yield from self._rows(slice(first, first + _AT_ONCE))

    def _rows(self, which: slice | npt.NDArray[np.intp]) -> Iterator[_Row]:
        columns = (self.model, self.frame, self.fate, self.released_ns, self.finished_ns)
        for model, frame, fate, released, finished in zip(*(c[which].tolist() for c in columns), strict=True):
            text, reason = self.fates[fate]
            at = None if finished < 0 else finished
            yield self.streams[model], frame, self.models[model], text, reason, released, at


def _record(row: _Row) -> Frame:
    stream, frame, model, fate, reason, released_ns, finished_ns = row
    return Frame(
        stream=stream,
        frame=frame,
        model=model,
        fate=fate,
        reason=reason,
        released_ns=released_ns,
        finished_ns=finished_ns,
    )
