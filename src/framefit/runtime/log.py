"""What a run leaves behind: every launch, the outcome of every frame, every fault, and the device's packets.

Logs lie in the files of a journal (:mod:`framefit.core.journal`): the memory of a long run does not grow with them, and
where the journal has a folder, they survive the process.
"""

from __future__ import annotations

import dataclasses
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace, TraceMeta
from framefit.core.files import Record
from framefit.core.journal import Journal, JournalFile
from framefit.core.program import Launches
from framefit.core.run_record import TOO_SOON, OutcomeText

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

_MOST_CELLS = 1 << 13  # of a log that stay in memory: writing so many takes some 30 us
_HAND_OVER_S = 0.3  # to a journal that survives the process, at least so often
_MOST_TEXTS = 256  # of faults; a model that fails in every window says much the same


class FrameOutcome(IntEnum):
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
    TOO_SOON = 12
    OVERDUE = 13


class FaultCause(IntEnum):
    """What went wrong with a frame."""

    ERROR = 0
    HANG = 1
    INPUT = 2
    NOT_FINITE = 3
    STATE = 4


class _Table:
    """Rows of int64, appended cheaply, and handed over to a file.

    Args:
        file: of the run's journal; default: one without a name.
    """

    columns: tuple[str, ...] = ()

    def __init__(self, file: JournalFile | None = None) -> None:
        self._file = Journal().file("") if file is None else file
        self._handed_s = 0.0
        # Cells that were handed over, and those that came after them: one name, so that threads see both or neither.
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
        cells = self._settled[1]
        cells.fromlist(fresh)
        if len(cells) >= _MOST_CELLS or (
            cells and self._file.named and time.monotonic() - self._handed_s > _HAND_OVER_S
        ):
            self.hand_over()
        return fresh

    def hand_over(self) -> None:
        """Have what was settled written."""
        count, cells = self._settled
        if cells:
            self._settled = count + len(cells), array("q")
            self._file.append(memoryview(cells))
        self._handed_s = time.monotonic()

    def clear(self) -> None:
        """Forget all rows."""
        self._settled, self._fresh = (0, array("q")), []
        self._file.clear()

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
        written = self._file.read()[: count * cells.itemsize]
        if self._file.failed:  # what came after the recording had ended is not kept
            whole = len(written) // (cells.itemsize * len(self.columns)) * (cells.itemsize * len(self.columns))
            return np.frombuffer(written[:whole], np.int64).reshape(-1, len(self.columns))
        rows = np.concatenate([np.frombuffer(written + copied, np.int64), np.asarray(fresh, np.int64)])
        return rows.reshape(-1, len(self.columns))

    def _replace(self, rows: npt.NDArray[np.int64]) -> None:
        self._file = Journal().file("")  # what the journal has stays as it is
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
            finished_ns=rows[:, self.FINISHED].copy(),
        )


class FrameOutcomes:
    """What became of each frame, as soon as it is decided; any thread may ask.

    Args:
        models: how many there are.
    """

    _NONE = 255

    def __init__(self, models: int) -> None:
        self._fates = [bytearray() for _ in range(models)]

    def decide(self, model: int, frame: int, outcome: FrameOutcome) -> None:
        """Note it; its times are logged when there is time for it."""
        outcomes = self._fates[model]
        if frame >= len(outcomes):
            outcomes.extend(bytes((self._NONE,)) * (frame + 1 - len(outcomes)))
        outcomes[frame] = outcome

    def of(self, model: int, frame: int) -> FrameOutcome | None:
        """What became of a frame; ``None``: that is not known yet."""
        outcomes = self._fates[model]
        outcome = outcomes[frame] if frame < len(outcomes) else self._NONE
        return None if outcome == self._NONE else FrameOutcome(outcome)


class FrameLog(_Table):
    """Frames in the order in which their fate was decided; times are -1 where there are none.

    ``window`` is the one with whose release a frame came: its number, unless its stream had to wait.

    Args:
        outcomes: where outcomes are noted, too, so that they can be asked for while the run goes on.
        file: of the run's journal; default: one without a name.
    """

    columns = ("model", "frame", "fate", "released_ns", "started_ns", "finished_ns", "window")
    MODEL, FRAME, OUTCOME, RELEASED, STARTED, FINISHED, WINDOW = range(7)

    def __init__(self, outcomes: FrameOutcomes | None = None, file: JournalFile | None = None) -> None:
        super().__init__(file)
        self._outcomes = outcomes

    def add(
        self,
        model: int,
        frame: int,
        outcome: FrameOutcome,
        window: int,
        released_ns: int,
        started_ns: int = -1,
        finished_ns: int = -1,
    ) -> None:
        """Append a frame."""
        self._fresh.extend((model, frame, outcome, released_ns, started_ns, finished_ns, window))
        if self._outcomes is not None:
            self._outcomes.decide(model, frame, outcome)

    def refuse(self, model: int, frames: Collection[int], outcome: FrameOutcome) -> None:
        """Frames of a model that were thought done have another fate after all."""
        rows = self.rows()
        refused = (rows[:, self.MODEL] == model) & np.isin(rows[:, self.FRAME], list(frames))
        rows[refused & (rows[:, self.OUTCOME] <= FrameOutcome.LATE), self.OUTCOME] = outcome
        self._replace(rows)

    def forget(self, model: int, first: int) -> None:
        """Strike the frames of a model from number ``first`` on: its stream did not have them."""
        rows = self.rows()
        beyond = (rows[:, self.MODEL] == model) & (rows[:, self.FRAME] >= first)
        self._replace(rows[~beyond])


class StallLog(_Table):
    """Windows in which the host kept a unit's core from running, and for how long."""

    columns = ("window", "stalled_ns")

    def add(self, window: int, stalled_ns: int) -> None:
        """Append a window; one that comes again counts with what it says last."""
        self._fresh.extend((window, stalled_ns))

    def by_window(self) -> dict[int, int]:
        """Window -> for how long, in nanoseconds."""
        return dict(self.snapshot().tolist())


class FaultLog(_Table):
    """What went wrong, in order: launches that failed, frames that could not be read, outputs with NaN or Inf.

    Columns: the model's number, the newest frame, the window (-1: not known), :class:`FaultCause`, and which text.
    """

    columns = ("model", "frame", "window", "fault", "text")
    MODEL, FRAME, WINDOW, FAULT, TEXT = range(5)

    def __init__(self, file: JournalFile | None = None) -> None:
        super().__init__(file)
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
        rows, frames = self.snapshot(), dict[int, list[int]]()
        for model, frame in rows[rows[:, self.FAULT] == FaultCause.NOT_FINITE][:, :2].tolist():
            frames.setdefault(model, []).append(frame)
        return frames

    def hung(self) -> set[tuple[int, int]]:
        """Models and frames of which a launch hung."""
        rows = self.snapshot()
        return {(model, frame) for model, frame in rows[rows[:, self.FAULT] == FaultCause.HANG][:, :2].tolist()}

    def last_texts(self) -> dict[tuple[int, int], str]:
        """Model and frame -> the text of what went wrong last."""
        rows = self.snapshot().tolist()
        return {(row[self.MODEL], row[self.FRAME]): self.texts[row[self.TEXT]] for row in rows if row[self.TEXT] >= 0}


_MOST_PACKETS = 1 << 22  # that are kept, 23 bytes each
_MOST_IN_MEMORY = 1 << 12
_COLUMNS = ("time_ns", "id", "type", "core", "operation")


class Packets:
    """What a device's trace unit has recorded; of a long run the last part is kept, most of it in files.

    Args:
        events: gives what came since it was last asked.
        journal: has the files; default: one without names.
    """

    def __init__(self, events: Callable[[], Trace], journal: Journal | None = None) -> None:
        self._events = events
        self._journal = Journal() if journal is None else journal
        self._notes = self._journal.file("trace.jsonl") if self._journal.named else None
        self._files: deque[_PacketFile] = deque()
        self._count = 0  # of files so far
        self._latest: list[Trace] = []
        self._handed_s = time.monotonic()
        self._overwritten = 0

    def collect(self) -> None:
        """Take what there is; where the device has given up packets, nothing before them is kept either."""
        trace = self._events()
        if trace.meta.overwritten_events:
            self._overwritten += sum(len(one) + one.meta.overwritten_events for one in self._latest)
            self._latest = []
            while self._files:
                self._discard_oldest()
        self._latest.append(trace)
        count = sum(map(len, self._latest))
        due = self._journal.named and time.monotonic() - self._handed_s > _HAND_OVER_S
        if count < _MOST_IN_MEMORY and not (count and due):
            return
        self._hand_over(joined(self._latest, 0))
        self._latest, self._handed_s = [], time.monotonic()
        while sum(file.packets for file in self._files) > _MOST_PACKETS:
            self._discard_oldest()

    def _discard_oldest(self) -> None:
        oldest = self._files.popleft()
        oldest.file.discard()
        self._overwritten += oldest.packets + oldest.overwritten

    def trace(self) -> Trace:
        """All that is kept, losses marked where they were noticed."""
        return joined([*(file.read() for file in self._files), *self._latest], self._overwritten)

    def _hand_over(self, trace: Trace) -> None:
        if not self._files or self._files[-1].packets > _MOST_PACKETS // _PACKET_FILES:
            self._files.append(_PacketFile(self._journal.file(f"events-{self._count}.bin")))
            self._count += 1
        self._files[-1].append(trace)
        if self._notes is not None:
            note = PacketNote(
                file=self._count - 1,
                packets=len(trace),
                loss_after=tuple(trace.loss_after.tolist()),
                kinds=trace.kinds,
                meta=trace.meta,
            )
            self._notes.append(lambda: msgspec.json.encode(note) + b"\n")


_PACKET_FILES = 16  # that the packets which are kept lie in, one of which goes at a time
PACKETS = np.dtype([("time_ns", "<i8"), ("id", "<i4"), ("type", "u1"), ("core", "<i2"), ("operation", "<i8")])
"""A packet as it lies in a journal's file, in 23 bytes."""


class PacketNote(Record, kw_only=True):
    """What a journal says of packets that follow those of the note before.

    Attributes:
        file: number of the file in which they lie.
        packets: how many.
        loss_after: positions among them after which the device reported a loss.
        kinds: that are known by then.
        meta: of the device's trace.
    """

    file: int
    packets: int
    loss_after: tuple[int, ...]
    kinds: tuple[str, ...]
    meta: TraceMeta

    def trace(self, rows: npt.NDArray[Any]) -> Trace:
        """With these packets; their losses as far as they reach."""
        return Trace(
            time_ns=rows["time_ns"].copy(),
            id=rows["id"].copy(),
            type=rows["type"].copy(),
            core=rows["core"].copy(),
            operation=rows["operation"].copy(),
            kinds=self.kinds,
            loss_after=np.asarray([at for at in self.loss_after if at <= len(rows)], np.int64),
            meta=self.meta,
        )


class _PacketFile:
    """A file of packets, and what else is known of the traces that they came in, as one trace without packets."""

    def __init__(self, file: JournalFile) -> None:
        self.file = file
        self.packets = 0
        self._known: Trace | None = None

    @property
    def overwritten(self) -> int:
        """Packets that the device had given up before some of these."""
        return self._known.meta.overwritten_events if self._known is not None else 0

    def append(self, trace: Trace) -> None:
        known = _with(trace, [getattr(trace, name)[:0].copy() for name in _COLUMNS])
        if self._known is not None:
            known = dataclasses.replace(known, **_losses([self._known, trace], [0, self.packets]))
        self._known = known
        self.packets += len(trace)
        self.file.append(lambda: _packed(trace))

    def read(self) -> Trace:
        """All packets of the file; at least one trace was appended."""
        assert self._known is not None
        data = self.file.read()
        rows = np.frombuffer(data[: len(data) // PACKETS.itemsize * PACKETS.itemsize], PACKETS)
        return _with(self._known, [rows[name].copy() for name in _COLUMNS])


def _packed(trace: Trace) -> bytes:
    rows = np.empty(len(trace), PACKETS)
    for name in _COLUMNS:
        rows[name] = getattr(trace, name)
    return rows.tobytes()


def _with(trace: Trace, columns: Sequence[npt.NDArray[Any]]) -> Trace:
    """The trace with other packets."""
    time_ns, kind, type_, core, operation = columns
    return dataclasses.replace(trace, time_ns=time_ns, id=kind, type=type_, core=core, operation=operation)


def joined(traces: Sequence[Trace], overwritten: int) -> Trace:
    """Traces one after the other, and what was given up before; the last one knows all kinds.

    Args:
        traces: at least one, as they were read from a device.
        overwritten: packets that were given up.
    """
    counts = np.cumsum([0, *(len(trace) for trace in traces)])[:-1].tolist()
    return Trace(
        time_ns=np.concatenate([trace.time_ns for trace in traces]),
        id=np.concatenate([trace.id for trace in traces]),
        type=np.concatenate([trace.type for trace in traces]),
        core=np.concatenate([trace.core for trace in traces]),
        operation=np.concatenate([trace.operation for trace in traces]),
        kinds=traces[-1].kinds,
        **_losses(traces, counts, overwritten),
    )


def _losses(traces: Sequence[Trace], begins: Sequence[int], overwritten: int = 0) -> dict[str, Any]:
    """Fields of what traces tell of losses, one after the other, which begin after so many packets."""
    lost = [trace.meta.lost_events for trace in traces if trace.meta.lost_events is not None]
    overwritten += sum(trace.meta.overwritten_events for trace in traces)
    return {
        "loss_after": np.concatenate([trace.loss_after + at for trace, at in zip(traces, begins, strict=True)]),
        "meta": msgspec.structs.replace(
            traces[-1].meta, lost_events=sum(lost) if lost else None, overwritten_events=overwritten
        ),
    }


def in_time_order(trace: Trace) -> Trace:
    """Packets of several units by their times, which must not wrap around.

    A loss stays behind as many packets as before: the device did not say which unit's were lost.
    """
    order = np.argsort(trace.time_ns, kind="stable")
    return Trace(
        time_ns=trace.time_ns[order],
        id=trace.id[order],
        type=trace.type[order],
        core=trace.core[order],
        operation=trace.operation[order],
        kinds=trace.kinds,
        loss_after=trace.loss_after,
        meta=trace.meta,
    )


OUTCOME_WORDS: dict[FrameOutcome, OutcomeText] = {
    FrameOutcome.DONE: ("done", ""),
    FrameOutcome.LATE: ("late", "finished after its deadline"),
    FrameOutcome.QUEUE_FULL: ("dropped", "a newer frame took its place in the queue"),
    FrameOutcome.REFUSED: ("dropped", "the queue was full"),
    FrameOutcome.RUN_ENDED: ("dropped", "the run ended"),
    FrameOutcome.SKIPPED: ("skipped", "every"),
    FrameOutcome.FAILED: ("dropped", "fault: a launch failed"),
    FrameOutcome.HUNG: ("dropped", "fault: a launch hung"),
    FrameOutcome.UNREADABLE: ("dropped", "fault: it could not be read, or had another shape"),
    FrameOutcome.DEGRADED: ("dropped", "fault: the model rested after failures"),
    FrameOutcome.NOT_FINITE: ("dropped", "fault: outputs not finite"),
    FrameOutcome.NOT_GIVEN: ("dropped", "a model that it reads did not give it"),
    FrameOutcome.TOO_SOON: TOO_SOON,
    FrameOutcome.OVERDUE: ("dropped", "its deadline had passed while it waited"),
}
FLAGGED: tuple[OutcomeText, OutcomeText] = (
    ("done", "outputs not finite"),
    ("late", "finished after its deadline; outputs not finite"),
)
FAULTY = (
    FrameOutcome.FAILED,
    FrameOutcome.HUNG,
    FrameOutcome.UNREADABLE,
    FrameOutcome.DEGRADED,
    FrameOutcome.NOT_FINITE,
)


def in_words(outcome: FrameOutcome) -> OutcomeText:
    """A fate in words, and its reason."""
    return OUTCOME_WORDS[outcome]
