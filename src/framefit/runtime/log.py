"""What a run leaves behind: every launch and the fate of every frame."""

from __future__ import annotations

import threading
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
    SKIPPED = 4
    REFUSED = 5


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


class LaunchLog(_Table):
    """Launches in order of submission.

    Columns: the program's number, the window and newest frame; when it began and ended
    (-1: it failed); since when it could have begun, and whether the unit was busy until
    then (1); time on the processor, or -1 where the device does not run on the calling thread.
    """

    columns = ("program", "window", "frame", "started_ns", "finished_ns", "ready_ns", "followed", "cpu_ns")
    PROGRAM, WINDOW, FRAME, STARTED, FINISHED, READY, FOLLOWED, CPU = range(8)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()  # two threads begin launches where one interrupts the other

    def begin(self, program: int, window: int, frame: int, now_ns: int, ready_ns: int, followed: bool) -> int:
        """Append a launch that begins now; its place in the log."""
        with self._lock:
            place = len(self._cells)
            self._cells.extend((program, window, frame, now_ns, -1, ready_ns, followed, -1))
        return place

    def end(self, place: int, started_ns: int, finished_ns: int, cpu_ns: int) -> None:
        """Complete a launch."""
        cells = self._cells
        cells[place + self.STARTED] = started_ns
        cells[place + self.FINISHED] = finished_ns
        cells[place + self.CPU] = cpu_ns

    def reorder(self, order: npt.NDArray[np.intp]) -> None:
        """Put the launches into another order; numbers of rows."""
        self._cells = array("q", self.rows()[order].tobytes())

    def finished(self) -> npt.NDArray[np.int64]:
        """Rows of the launches that ended."""
        rows = self.rows()
        return rows[rows[:, self.FINISHED] >= 0]

    def launches(self) -> Launches:
        """In the form of the program's file."""
        rows = self.finished()
        return Launches(
            program=rows[:, self.PROGRAM].astype(np.int32),
            window=rows[:, self.WINDOW],
            frame=rows[:, self.FRAME],
            submit_ns=rows[:, self.STARTED],
        )


class FrameLog(_Table):
    """Frames in the order in which their fate was decided; times are -1 where there are none."""

    columns = ("model", "frame", "fate", "released_ns", "started_ns", "finished_ns")
    MODEL, FRAME, FATE, RELEASED, STARTED, FINISHED = range(6)

    def add(
        self, model: int, frame: int, fate: Fate, released_ns: int, started_ns: int = -1, finished_ns: int = -1
    ) -> None:
        """Append a frame."""
        self._cells.extend((model, frame, fate, released_ns, started_ns, finished_ns))
