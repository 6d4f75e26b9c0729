"""``frames.csv``."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from framefit import InputError
from framefit.core.run_record import FrameTable
from framefit.report.csv_files import read_frames, write_frames


@pytest.fixture
def frames() -> FrameTable:
    """Two frames; one has no result."""
    return FrameTable(
        models=("face",),
        streams=("vorne, links \u00f6",),
        fates=(("late", "finished after its deadline"), ("skipped", "every")),
        model=np.zeros(2, np.int64),
        frame=np.arange(2),
        fate=np.arange(2),
        released_ns=np.asarray([0, 50]),
        finished_ns=np.asarray([60, -1]),
    )


def test_a_line_a_frame(frames: FrameTable, tmp_path: Path) -> None:
    """Times are empty where there are none; names with commas are quoted, in UTF-8."""
    write_frames(tmp_path / "frames.csv", frames)
    with (tmp_path / "frames.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    assert lines == [
        ["stream", "frame", "model", "fate", "reason", "released_ns", "finished_ns"],
        ["vorne, links \u00f6", "0", "face", "late", "finished after its deadline", "0", "60"],
        ["vorne, links \u00f6", "1", "face", "skipped", "every", "50", ""],
    ]


def test_frames_come_back(frames: FrameTable, tmp_path: Path) -> None:
    """What was written is read as it was."""
    write_frames(tmp_path / "frames.csv", frames)
    assert read_frames(tmp_path / "frames.csv") == frames


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:0], "line 1"),
        (lambda text: text.replace("stream,", "river,"), "line 1"),
        (lambda text: text[:-5], "line 3"),
        (lambda text: text.replace("late", "lost"), "line 2: fate 'lost' is unknown"),
        (lambda text: text.replace(",60", ",1e99"), "line"),
        (lambda text: text.replace(",60", ",99999999999999999999"), "line"),
    ],
)
def test_damaged_frames_are_one_error(
    damage: Callable[[str], str], message: str, frames: FrameTable, tmp_path: Path
) -> None:
    """The message names the line and what is wrong there."""
    path = tmp_path / "frames.csv"
    write_frames(path, frames)
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_frames(path)


def test_frames_that_are_not_there(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(InputError, match="cannot be read"):
        read_frames(tmp_path / "no.csv")
