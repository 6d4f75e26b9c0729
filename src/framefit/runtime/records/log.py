"""What a run leaves behind: every launch and the fate of every frame."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from enum import IntEnum
from typing import Self

import numpy as np
import numpy.typing as npt

from framefit.core.program import Launches
from framefit.runtime.records.aside import Aside

__all__ = ["Fate", "Fates", "FaultCause", "FaultLog", "FrameLog", "LaunchLog", "ToldFrameLog"]

_MOST_CELLS = 1 << 13  # of a log that stay in memory: writing so many takes some 30 us
_MOST_TEXTS = 256  # of faults; a model that fails in every window says much the same


class Fate(IntEnum):
    """What became of a frame, and why."""

    DONE = 0
    LATE = 1
    QUEUE_FULL = 2
    RUN_ENDED = 3
    SKIPPED = 4
    REFUSED = 5
    FAILED = 6
    HUNG = 7
    UNREADABLE = 8
    DEGRADED = 9
    NOT_FINITE = 10
    NOT_GIVEN = 11


class FaultCause(IntEnum):
    """What went wrong with a frame."""

    ERROR = 0
    HANG = 1
    INPUT = 2
    NOT_FINITE = 3
    STATE = 4


class _Table:
    """Rows of int64, appended cheaply, and laid aside in a file while they become many."""

    columns: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._aside = Aside()
        # Cells that were laid aside, and those that came after them: one name, so that threads see both or neither.
        self._settled: tuple[int, array[int]] = (0, array("q"))
        self._fresh: list[int] = []  # the fastest to append to just after a launch, when the caches are cold

    @classmethod
    def of(cls, rows: npt.NDArray[np.int64]) -> Self:
        """A log of these rows."""
        log = cls()
        log._replace(rows)
        return log

    def __len__(self) -> int:
        count, cells = self._settled
        return (count + len(cells) + len(self._fresh)) // len(self.columns)

    def settle(self) -> list[int]:
        """Move what was appended lately to where it takes little room; these rows, one after the other."""
        fresh, self._fresh = self._fresh, []  # set aside first: another thread may append
        count, cells = self._settled
        cells.fromlist(fresh)
        if len(cells) >= _MOST_CELLS and self._aside.put(cells.tobytes(), count * cells.itemsize):
            self._settled = count + len(cells), array("q")
        return fresh

    def clear(self) -> None:
        """Forget all rows."""
        self._settled, self._fresh = (0, array("q")), []

    def rows(self) -> npt.NDArray[np.int64]:
        """All rows, one a line, columns as named."""
        self.settle()
        return self.snapshot()

    def snapshot(self) -> npt.NDArray[np.int64]:
        """All rows, while another thread appends: what was appended last may be missing.

        Nothing is settled, and no memory shared, which would keep the other thread from growing it.
        """
        while True:
            settled = count, cells = self._settled
            copied = cells.tobytes()
            fresh = list(self._fresh)
            if self._settled is settled and len(cells) * cells.itemsize == len(copied):
                break  # else they were settled in between
        parts = self._aside.read(count * cells.itemsize), copied
        rows = np.concatenate([*(np.frombuffer(part, np.int64) for part in parts), np.asarray(fresh, np.int64)])
        return rows.reshape(-1, len(self.columns))

    def _replace(self, rows: npt.NDArray[np.int64]) -> None:
        self._settled = 0, array("q", rows.astype(np.int64).tobytes())


class LaunchLog(_Table):
    """Launches in the order of their ends.

    Columns: the program's number, the window and newest frame; when it began and ended
    (-1: it failed); since when it could have begun, and whether the unit was busy until
    then (1); time on the processor, or -1 where the device does not run on the calling thread.
    """

    columns = ("program", "window", "frame", "started_ns", "finished_ns", "ready_ns", "followed", "cpu_ns")
    PROGRAM, WINDOW, FRAME, STARTED, FINISHED, READY, FOLLOWED, CPU = range(8)

    def add(
        self,
        program: int,
        window: int,
        frame: int,
        started_ns: int,
        finished_ns: int,
        ready_ns: int,
        followed: bool,
        cpu_ns: int,
    ) -> None:
        """Append a launch, in one step: two threads do so where one interrupts the other."""
        self._fresh.extend((program, window, frame, started_ns, finished_ns, ready_ns, followed, cpu_ns))

    def reorder(self, order: npt.NDArray[np.intp]) -> None:
        """Put the launches into another order; numbers of rows."""
        self._replace(self.rows()[order])

    def finished(self) -> npt.NDArray[np.int64]:
        """Rows of the launches that ended."""
        rows = self.rows()
        ended = rows[:, self.FINISHED] >= 0
        return rows if ended.all() else rows[ended]  # no second copy of a long run

    def launches(self) -> Launches:
        """In the form of the program's file."""
        rows = self.finished()
        return Launches(
            program=rows[:, self.PROGRAM].astype(np.int32),
            window=rows[:, self.WINDOW].copy(),  # the other columns are not kept alive
            frame=rows[:, self.FRAME].copy(),
            submit_ns=rows[:, self.STARTED].copy(),
        )


class FrameLog(_Table):
    """Frames in the order in which their fate was decided; times are -1 where there are none.

    ``window`` is the one with whose release a frame came: its number, unless its stream had to wait.
    """

    columns = ("model", "frame", "fate", "released_ns", "started_ns", "finished_ns", "window")
    MODEL, FRAME, FATE, RELEASED, STARTED, FINISHED, WINDOW = range(7)

    def add(
        self,
        model: int,
        frame: int,
        fate: Fate,
        window: int,
        released_ns: int,
        started_ns: int = -1,
        finished_ns: int = -1,
    ) -> None:
        """Append a frame."""
        self._fresh.extend((model, frame, fate, released_ns, started_ns, finished_ns, window))

    def refuse(self, model: int, frames: Collection[int], fate: Fate) -> None:
        """Frames of a model that were thought done have another fate after all."""
        rows = self.rows()
        found = (rows[:, self.MODEL] == model) & np.isin(rows[:, self.FRAME], list(frames))
        rows[found & (rows[:, self.FATE] <= Fate.LATE), self.FATE] = fate
        self._replace(rows)

    def forget(self, model: int, first: int) -> None:
        """Strike the frames of a model from number ``first`` on: its stream did not have them."""
        rows = self.rows()
        beyond = (rows[:, self.MODEL] == model) & (rows[:, self.FRAME] >= first)
        self._replace(rows[~beyond])


class FaultLog(_Table):
    """What went wrong, in order: launches that failed, frames that could not be read, numbers that are none.

    Columns: the model's number, the newest frame, the window (-1: not known), :class:`FaultCause`, and which text.
    """

    columns = ("model", "frame", "window", "fault", "text")
    MODEL, FRAME, WINDOW, FAULT, TEXT = range(5)

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        """Of errors, each once."""
        self.degraded: set[int] = set()
        """Models that rest: they have failed again and again, and nothing of them has succeeded since."""
        self.refused: dict[int, list[int]] = {}
        """Frames of models whose outputs were not handed on."""

    def add(self, model: int, frame: int, window: int, fault: FaultCause, text: str = "") -> None:
        """Append a fault."""
        if text not in self.texts and len(self.texts) < _MOST_TEXTS:
            self.texts.append(text)
        self._fresh.extend((model, frame, window, fault, self.texts.index(text) if text in self.texts else -1))

    def refuse(self, model: int, frame: int) -> None:
        """The outputs of a frame are not handed on."""
        self.refused.setdefault(model, []).append(frame)

    def counts(self, model: int) -> dict[FaultCause, int]:
        """How often a model had each; those that it never had are missing."""
        rows = self.snapshot()
        faults, counts = np.unique(rows[rows[:, self.MODEL] == model, self.FAULT], return_counts=True)
        return {FaultCause(fault): int(count) for fault, count in zip(faults.tolist(), counts.tolist(), strict=True)}

    def not_finite(self) -> dict[int, list[int]]:
        """Model -> frames with outputs that are not finite."""
        rows, found = self.snapshot(), dict[int, list[int]]()
        for model, frame in rows[rows[:, self.FAULT] == FaultCause.NOT_FINITE][:, :2].tolist():
            found.setdefault(model, []).append(frame)
        return found

    def hung(self) -> set[tuple[int, int]]:
        """Models and frames of which a launch hung."""
        rows = self.snapshot()
        return {(model, frame) for model, frame in rows[rows[:, self.FAULT] == FaultCause.HANG][:, :2].tolist()}

    def told(self) -> dict[tuple[int, int], str]:
        """Model and frame -> the text of what went wrong last."""
        rows = self.snapshot().tolist()
        return {(row[self.MODEL], row[self.FRAME]): self.texts[row[self.TEXT]] for row in rows if row[self.TEXT] >= 0}


class Fates:
    """What became of each frame, as soon as it is decided; any thread may ask.

    Args:
        models: how many there are.
    """

    _NONE = 255

    def __init__(self, models: int) -> None:
        self._fates = [bytearray() for _ in range(models)]

    def decide(self, model: int, frame: int, fate: Fate) -> None:
        """Note it; its times are logged when there is time for it."""
        fates = self._fates[model]
        if frame >= len(fates):
            fates.extend(bytes((self._NONE,)) * (frame + 1 - len(fates)))
        fates[frame] = fate

    def of(self, model: int, frame: int) -> Fate | None:
        """What became of a frame; ``None``: that is not known yet."""
        fates = self._fates[model]
        found = fates[frame] if frame < len(fates) else self._NONE
        return None if found == self._NONE else Fate(found)


class ToldFrameLog(FrameLog):
    """A log that notes fates where they can be asked for while the run goes on.

    Args:
        fates: where; other logs may note theirs there, too.
    """

    def __init__(self, fates: Fates) -> None:
        super().__init__()
        self._told = fates

    def add(
        self,
        model: int,
        frame: int,
        fate: Fate,
        window: int,
        released_ns: int,
        started_ns: int = -1,
        finished_ns: int = -1,
    ) -> None:
        """See :meth:`FrameLog.add`."""
        super().add(model, frame, fate, window, released_ns, started_ns, finished_ns)
        self._told.decide(model, frame, fate)
