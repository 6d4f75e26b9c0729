"""What a run leaves behind: every launch and the fate of every frame."""

from __future__ import annotations

from array import array
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from framefit.core.program import Launches

__all__ = ["Fate", "FrameLog", "LaunchLog"]


class Fate(IntEnum):
    """What became of a frame, and why."""

    DONE = 0
    LATE = 1
    QUEUE_FULL = 2
    RUN_ENDED = 3


class _Table:
    """Rows of int64, appended cheaply."""

    columns: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._cells = array("q")

    def __len__(self) -> int:
        return len(self._cells) // len(self.columns)

    def rows(self) -> npt.NDArray[np.int64]:
        """All rows, one a line, columns as named."""
        return np.frombuffer(self._cells, np.int64).reshape(-1, len(self.columns)).copy()

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """One column."""
        return self.rows()[:, self.columns.index(name)]


class LaunchLog(_Table):
    """Launches in order of submission; ``followed`` is 1 where the unit had just been busy."""

    columns = ("program", "window", "frame", "started_ns", "finished_ns", "followed", "ready_ns")

    def add(
        self, program: int, window: int, frame: int, started_ns: int, finished_ns: int, followed: int, ready_ns: int
    ) -> None:
        """Append a launch."""
        self._cells.extend((program, window, frame, started_ns, finished_ns, followed, ready_ns))

    def launches(self) -> Launches:
        """In the form of the program's file."""
        rows = self.rows()
        return Launches(program=rows[:, 0].astype(np.int32), window=rows[:, 1], frame=rows[:, 2], submit_ns=rows[:, 3])


class FrameLog(_Table):
    """Frames in the order in which their fate was decided; times are -1 where there are none."""

    columns = ("model", "frame", "fate", "released_ns", "started_ns", "finished_ns")

    def add(self, model: int, frame: int, fate: Fate, released_ns: int, started_ns: int, finished_ns: int) -> None:
        """Append a frame."""
        self._cells.extend((model, frame, fate, released_ns, started_ns, finished_ns))
