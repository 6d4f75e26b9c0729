"""The fate of every frame as a table for spreadsheets (``frames.csv``)."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Literal

import numpy as np

from framefit.core.files import write_whole
from framefit.core.run_record import Fated, FrameTable
from framefit.report.files.lines import read_lines

__all__ = ["read_frames", "write_frames"]


_COLUMNS = ("stream", "frame", "model", "fate", "reason", "released_ns", "finished_ns")


def write_frames(path: str | Path, frames: FrameTable, *, force: bool = False) -> None:
    """Write one line a frame; times in nanoseconds after the first release, empty where there is none."""
    with write_whole(path, force=force) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(frames.rows())  # a row at a time: a long run has millions
        text.detach()


def _fate(text: str) -> Literal["done", "late", "dropped", "skipped"]:
    match text:
        case "done" | "late" | "dropped" | "skipped":
            return text
    raise ValueError(f"fate {text!r} is none")


def read_frames(path: str | Path) -> FrameTable:
    """Read what :func:`write_frames` wrote.

    Raises:
        InputError: missing, unreadable, or another table.
    """
    models: dict[tuple[str, str], int] = {}
    fates: dict[Fated, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    with read_lines(path, _COLUMNS, "give frames.csv as a run wrote it") as lines:
        for stream, frame, model, fate, reason, released_ns, finished_ns in lines:
            which = models.setdefault((model, stream), len(models))
            what = fates.setdefault((_fate(fate), reason), len(fates))
            rows.append((which, int(frame), what, int(released_ns), int(finished_ns or -1)))
        columns = np.array(rows, np.int64).reshape(-1, 5).T
    return FrameTable(
        models=tuple(model for model, _ in models),
        streams=tuple(stream for _, stream in models),
        fates=tuple(fates),
        model=columns[0],
        frame=columns[1],
        fate=columns[2],
        released_ns=columns[3],
        finished_ns=columns[4],
    )
