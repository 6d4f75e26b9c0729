"""``frames.csv``."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from framefit.core.frames import FrameTable
from framefit.report.frames import write_frames


def test_a_line_a_frame(tmp_path: Path) -> None:
    """Times are empty where there are none; names with commas are quoted, in UTF-8."""
    frames = FrameTable(
        models=("face",),
        streams=("vorne, links \u00f6",),
        fates=(("late", "finished after its deadline"), ("skipped", "every")),
        model=np.zeros(2, np.int64),
        frame=np.arange(2),
        fate=np.arange(2),
        released_ns=np.asarray([0, 50]),
        finished_ns=np.asarray([60, -1]),
    )
    write_frames(tmp_path / "frames.csv", frames)
    with (tmp_path / "frames.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    assert lines == [
        ["stream", "frame", "model", "fate", "reason", "released_ns", "finished_ns"],
        ["vorne, links \u00f6", "0", "face", "late", "finished after its deadline", "0", "60"],
        ["vorne, links \u00f6", "1", "face", "skipped", "every", "50", ""],
    ]
