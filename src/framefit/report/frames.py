"""The fate of every frame as a table for spreadsheets (``frames.csv``)."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from framefit.core.files import write_whole
from framefit.core.frames import FrameTable

__all__ = ["write_frames"]

_COLUMNS = ("stream", "frame", "model", "fate", "reason", "released_ns", "finished_ns")


def write_frames(path: str | Path, frames: FrameTable, *, force: bool = False) -> None:
    """Write one line a frame; times in nanoseconds after the first release, empty where there is none."""
    with write_whole(path, force=force) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(frames.rows())  # a row at a time: a long run has millions
        text.detach()
