"""Fates of frames as columns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from framefit.core.run_record import Frame, FrameTable


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Whole numbers."""
    return np.asarray(values, np.int64)


TABLE = FrameTable(
    models=("face", "big"),
    streams=("camera", "sound"),
    fates=(("done", ""), ("dropped", "the queue was full")),
    model=column(0, 1, 0),
    frame=column(0, 0, 1),
    fate=column(0, 1, 0),
    released_ns=column(0, 0, 100),
    finished_ns=column(30, -1, 140),
)
SECOND = Frame(
    stream="sound",
    frame=0,
    model="big",
    fate="dropped",
    reason="the queue was full",
    released_ns=0,
    finished_ns=None,
)


def test_a_table_is_a_sequence_of_records() -> None:
    """Index, slice and iteration give the same records; what never finished has no time."""
    assert TABLE[1] == TABLE[-2] == SECOND
    assert TABLE[1:] == tuple(TABLE)[1:] == (SECOND, TABLE[2])
    assert [len(TABLE), TABLE.index(SECOND)] == [3, 1]
    assert (TABLE[2].stream, TABLE[2].frame, TABLE[2].finished_ns) == ("camera", 1, 140)
    with pytest.raises(IndexError):
        TABLE[3]


def test_all_rows_of_a_long_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made in parts, none is left out or doubled."""
    monkeypatch.setattr("framefit.core.run_record._AT_ONCE", 2)
    assert [(row[1], row[2]) for row in TABLE.rows()] == [(0, "face"), (0, "big"), (1, "face")]


def test_tables_are_equal_where_all_frames_are() -> None:
    """One other fate, or one other name, makes them differ."""
    assert dataclasses.replace(TABLE) == TABLE
    assert dataclasses.replace(TABLE, fate=column(0, 0, 0)) != TABLE
    assert dataclasses.replace(TABLE, models=("face", "bug")) != TABLE
