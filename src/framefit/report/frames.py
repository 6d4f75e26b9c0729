"""The fate of every frame as a table for spreadsheets (``frames.csv``)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from framefit.core.files import write_whole
from framefit.core.results import Frame

__all__ = ["write_frames"]

_COLUMNS = ("stream", "frame", "model", "fate", "reason", "released_ns", "finished_ns")


def write_frames(path: str | Path, frames: Iterable[Frame], *, force: bool = False) -> None:
    """Write one line a frame; times in nanoseconds after the first release, empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([getattr(frame, column) for column in _COLUMNS] for frame in frames)
    with write_whole(path, force=force) as file:
        file.write(text.getvalue().encode())
