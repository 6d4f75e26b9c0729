"""Launches that hung, and which frames of others that cost their time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.timetable import Timetable
from framefit.runtime.records.log import LaunchLog

__all__ = ["Hang", "hangs"]

_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hang:
    """A launch that hung.

    Attributes:
        model: its number.
        frame: that was given up.
        label: model and segment.
        window: in which it was launched.
        unit: that it held.
        begin_ns: since when at most.
        end_ns: when it was terminated.
        until_ns: when the last priority frame was done that had waited for it.
        blocks: whether others waited: nobody does where they may interrupt it.
    """

    model: int
    frame: int
    label: str
    window: int
    unit: str
    begin_ns: int
    end_ns: int
    until_ns: int
    blocks: bool

    def told(self, due_ns: int | None = None) -> str:
        """In words; ``due_ns``: the instant at which somebody else was due."""
        words = f"{self.label} in window {self.window} hung for {(self.end_ns - self.begin_ns) / 1e6:.2f} ms"
        if due_ns is None:
            return words
        if due_ns < self.end_ns:
            return f"{words}, and was terminated {(self.end_ns - due_ns) / 1e6:.2f} ms after the instant"
        return f"{words}; earlier priority frames that had waited for it came first"


def hangs(timetable: Timetable, launches: LaunchLog, hung: Collection[tuple[int, int]], gap_ns: int) -> list[Hang]:
    """Launches that hung, in the order of the log.

    Args:
        timetable: what was launched.
        launches: all of the run, those that failed too.
        hung: models' numbers and frames of which one was terminated.
        gap_ns: between two launches that follow one another, at most.
    """
    if not hung:
        return []
    rows = launches.rows()
    priority = np.asarray([model.role == "priority" for model in timetable.models], bool)
    owner = np.repeat(np.arange(len(timetable.models)), [len(model.segments) for model in timetable.models])
    labels = [f"{model.name}[{segment.index}]" for model in timetable.models for segment in model.segments]
    units = timetable.program_units
    ended = rows[rows[:, LaunchLog.FINISHED] >= 0]
    # A frame is given up with the launch that hangs: of those of it that failed, that is the last one.
    last = {(int(owner[row[LaunchLog.PROGRAM]]), row[LaunchLog.FRAME]): row for row in _failed(rows)}
    found = []
    for (model, frame), row in last.items():
        if (model, frame) not in hung:
            continue
        program, end_ns = row[LaunchLog.PROGRAM], row[LaunchLog.STARTED]  # of a launch that failed: when it did
        unit = str(units[program])
        later = ended[(units[ended[:, LaunchLog.PROGRAM]] == unit) & (ended[:, LaunchLog.STARTED] >= end_ns)]
        until_ns = end_ns
        for other in later[np.argsort(later[:, LaunchLog.STARTED], kind="stable")]:
            if other[LaunchLog.STARTED] - until_ns > gap_ns or not priority[owner[other[LaunchLog.PROGRAM]]]:
                break
            until_ns = int(other[LaunchLog.FINISHED])
        blocks = bool(priority[model]) or not timetable.preemptive
        ready_ns = min(row[LaunchLog.READY], end_ns)
        found.append(
            Hang(model, frame, labels[program], row[LaunchLog.WINDOW], unit, ready_ns, end_ns, until_ns, blocks)
        )
    return found


def _failed(rows: _Rows) -> list[list[int]]:
    """Launches that did not end, as lists."""
    found: list[list[int]] = rows[rows[:, LaunchLog.FINISHED] < 0].tolist()
    return found
