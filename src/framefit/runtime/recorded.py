"""What a run has left: its logs, from memory or from its journal, of one part or of several that follow one another.

A run that was cut off has a journal (:mod:`framefit.core.journal`). Each part of it says at its beginning what was run
(:class:`JournalHeader`), and twice a second how far it has come (:class:`JournalState`); the logs are rows of int64. A
run that goes on after that begins another part, whose windows, frames and times follow those of the parts before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.faults import Injection
from framefit.core.files import Record, read_record
from framefit.core.grid import Grid
from framefit.core.journal import read_lines, read_rows
from framefit.core.program import Launches
from framefit.core.timetable import Timetable
from framefit.runtime.log import (
    PACKETS,
    FaultCause,
    FaultLog,
    FrameLog,
    FrameOutcome,
    LaunchLog,
    PacketNote,
    StallLog,
    in_time_order,
    joined,
)
from framefit.runtime.reading import with_unread
from framefit.runtime.recovery import Migration
from framefit.runtime.switching import Rung, Share, Stretch, in_force
from framefit.runtime.units import UnitGroup, known_ns, ordered

__all__ = ["JournalHeader", "RecordedRun", "read_header", "read_part"]

Rows = npt.NDArray[np.int64]


class ModelNote(Record, kw_only=True):
    """What a journal says of a model.

    Attributes:
        name: of the model.
        stream: that its frames are counted by; "-": none.
        sources: streams that it reads.
        reads: numbers of the models that it reads.
        frames: that it takes at once.
        drops_not_finite: whether outputs that are not finite are kept from the sinks.
    """

    name: str
    stream: str
    sources: tuple[str, ...]
    reads: tuple[int, ...]
    frames: int = 1
    drops_not_finite: bool = False


class SinkNote(Record, kw_only=True):
    """A sink whose file is made from the journal.

    Attributes:
        path: of the file.
        file: of the journal.
    """

    path: str
    file: str


class JournalHeader(Record, kw_only=True):
    """What was run, as it stands at the beginning of a part of a journal.

    Attributes:
        command, created, seed, workload, host, warnings, app: as in ``run.json``.
        verb: "run" or "simulate".
        windows: that were asked for, those of earlier parts among them.
        outputs: whether outputs are computed.
        inject: faults.
        models: by number.
        sinks: whose files are made from the journal.
        segment_ns: medians of all segments, as measured before.
        whole_ns: of the uncut models.
        floor_ns: how late the idle machine woke up.
    """

    schema_version: int = 1
    command: str
    created: str
    seed: int
    workload: dict[str, object]
    host: dict[str, object]
    warnings: tuple[str, ...]
    app: str
    verb: str
    windows: int
    outputs: bool
    inject: tuple[str, ...]
    models: tuple[ModelNote, ...]
    sinks: tuple[SinkNote, ...]
    segment_ns: tuple[int, ...]
    whole_ns: tuple[int, ...]
    floor_ns: tuple[int, ...]


class StretchNote(Record, kw_only=True):
    """Windows in a row under one timetable; see :class:`~framefit.runtime.switching.Stretch`."""

    window: int
    origin: int
    begins_ns: int
    rate_hz: float
    offsets_ns: tuple[int, ...]
    releases: dict[str, tuple[int, ...]]
    name: str
    number: int
    why: str

    @classmethod
    def of(cls, stretch: Stretch) -> StretchNote:
        """As it is written."""
        rung = stretch.rung
        return cls(
            window=stretch.window,
            origin=stretch.origin,
            begins_ns=stretch.begins_ns,
            rate_hz=rung.grid.rate_hz,
            offsets_ns=rung.grid.offsets_ns,
            releases={name: tuple(places) for name, places in rung.grid.releases.items()},
            name=rung.name,
            number=rung.number,
            why=stretch.why,
        )

    def stretch(self) -> Stretch:
        """As it was read; what units do under it is not known."""
        grid = Grid(self.rate_hz, self.offsets_ns, self.releases)
        rung = Rung(grid, [Share([()], 0, ())], name=self.name, number=self.number)
        return Stretch(self.window, self.origin, self.begins_ns, rung, self.why)


class StreamCount(Record, kw_only=True):
    """Frames of a stream that came, and windows that brought none, though there was one or for there was none."""

    received: int = 0
    waited: int = 0
    missing: int = 0

    def __add__(self, more: StreamCount) -> StreamCount:
        return StreamCount(
            received=self.received + more.received,
            waited=self.waited + more.waited,
            missing=self.missing + more.missing,
        )


class MigrationNote(Record, kw_only=True):
    """A model that has migrated; see :class:`~framefit.runtime.recovery.Migration`."""

    model: int
    window: int
    unit: str
    to: str


class JournalState(Record, kw_only=True):
    """How far a run has come.

    Attributes:
        time: of day.
        windows: that have begun.
        stretches: what was in force from which window on.
        streams: what came of them.
        degraded: numbers of models that rest.
        texts: of errors that are new since the line before.
        migrations: so far.
        injections: of faults, that are new since the line before.
    """

    time: str
    windows: int
    stretches: tuple[StretchNote, ...]
    streams: dict[str, StreamCount]
    degraded: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    migrations: tuple[MigrationNote, ...] = ()
    injections: tuple[Injection, ...] = ()


@dataclass(frozen=True)
class RecordedRun:
    """Logs of a run that has ended, or of what it has done so far.

    Attributes:
        launches, frames, faults: the logs, of all units.
        windows: that have begun.
        stretches: what was in force from which window on.
        stalled: window -> how long the host kept a unit's core from running, in nanoseconds.
        migrations: models that have migrated.
        streams: what came of them.
        trace: the device's packets; ``None``: they are not known.
        parts: windows at which the parts of a run that was resumed begin, but the first.
        injections: faults that were injected.
        ended: why it ended before its last window, as a clause; "": it did not, or that is not known.
    """

    launches: LaunchLog
    frames: FrameLog
    faults: FaultLog
    windows: int
    stretches: Sequence[Stretch]
    stalled: Mapping[int, int]
    migrations: Sequence[Migration]
    streams: Mapping[str, StreamCount]
    trace: Trace | None = None
    parts: tuple[int, ...] = ()
    injections: tuple[Injection, ...] = ()
    ended: str = ""

    @classmethod
    def of(
        cls,
        group: UnitGroup,
        streams: Mapping[str, StreamCount],
        trace: Trace | None = None,
        injections: Sequence[Injection] = (),
    ) -> RecordedRun:
        """What a group of units has done.

        Args:
            group: after its run, or as it is so far.
            streams: what came of them.
            trace: the device's packets, if they are asked for.
            injections: faults that were injected.
        """
        return cls(
            launches=group.launches,
            frames=group.frames,
            faults=group.faults,
            windows=group.windows,
            stretches=group.stretches,
            stalled=group.stalled,
            migrations=group.migrations,
            streams=streams,
            trace=trace,
            injections=tuple(injections),
        )

    @property
    def start_ns(self) -> int:
        """The first release."""
        return self.stretches[0].begins_ns

    def stretch(self, window: int) -> Stretch:
        """What was in force in a window; where the run was resumed, timetables begin anew."""
        return in_force(self.stretches, window)

    def release(self, window: int) -> int:
        """When a window began."""
        return self.stretch(window).release_ns(window)

    def as_far_as_recorded(self) -> RecordedRun:
        """Without the windows after the last launch or frame that is known."""
        launched, came = self.launches.rows()[:, LaunchLog.WINDOW], self.frames.rows()[:, FrameLog.WINDOW]
        return dataclasses.replace(self, windows=1 + int(max(launched.max(initial=-1), came.max(initial=-1))))

    def followed_by(self, part: RecordedRun, timetable: Timetable, streams: Sequence[str]) -> RecordedRun:
        """With another part, whose windows, frames and times follow.

        Args:
            part: the other one.
            timetable: of both.
            streams: of each model, by number: the one that its frames are counted by.
        """
        windows, after_ns = self.windows, self.release(self.windows) - part.start_ns
        first = np.asarray([self.streams[name].received if name in self.streams else 0 for name in streams], np.int64)
        segments = [len(model.segments) for model in timetable.launched.models]
        owner = np.repeat(np.arange(len(segments)) % len(streams), segments)

        launches = part.launches.rows().copy()
        launches[:, LaunchLog.WINDOW] += windows
        launches[:, LaunchLog.FRAME] += first[owner[launches[:, LaunchLog.PROGRAM]]]
        launches[:, LaunchLog.READY] += after_ns
        _move(launches, (LaunchLog.STARTED, LaunchLog.FINISHED), after_ns)
        frames = part.frames.rows().copy()
        frames[:, FrameLog.WINDOW] += windows
        frames[:, FrameLog.FRAME] += first[frames[:, FrameLog.MODEL]]
        frames[:, FrameLog.RELEASED] += after_ns
        _move(frames, (FrameLog.STARTED, FrameLog.FINISHED), after_ns)
        stretches = [
            dataclasses.replace(
                stretch,
                window=stretch.window + windows,
                origin=stretch.origin + windows,
                begins_ns=stretch.begins_ns + after_ns,
            )
            for stretch in part.stretches
        ]
        migrations = [migration._replace(window=migration.window + windows) for migration in part.migrations]
        return RecordedRun(
            launches=LaunchLog.of(np.concatenate([self.launches.rows(), launches])),
            frames=FrameLog.of(np.concatenate([self.frames.rows(), frames])),
            faults=_joined_faults(self.faults, part.faults, windows, first),
            windows=windows + part.windows,
            stretches=[*self.stretches, *stretches],
            stalled={**self.stalled, **{window + windows: ns for window, ns in part.stalled.items()}},
            migrations=[*self.migrations, *migrations],
            streams={
                name: self.streams.get(name, StreamCount()) + part.streams.get(name, StreamCount())
                for name in {**self.streams, **part.streams}
            },
            trace=_joined_traces(self.trace, part.trace, after_ns),
            parts=(*self.parts, windows, *(windows + window for window in part.parts)),
            injections=(*self.injections, *(each._replace(at_ns=each.at_ns + after_ns) for each in part.injections)),
            ended=part.ended,
        )

    def launched(self) -> Launches:
        """All launches that ended, and when windows began."""
        releases_ns = np.fromiter((self.release(window) for window in range(self.windows)), np.int64, self.windows)
        return dataclasses.replace(self.launches.launches(), releases_ns=releases_ns)


def _move(rows: Rows, columns: Sequence[int], by_ns: int) -> None:
    """Move times, but those that there are none of."""
    for column in columns:
        rows[:, column] += np.where(rows[:, column] >= 0, by_ns, 0)


def _joined_faults(before: FaultLog, after: FaultLog, windows: int, first: Rows) -> FaultLog:
    rows = after.rows().copy()
    rows[:, FaultLog.WINDOW] += np.where(rows[:, FaultLog.WINDOW] >= 0, windows, 0)
    rows[:, FaultLog.FRAME] += first[rows[:, FaultLog.MODEL]]
    rows[:, FaultLog.TEXT] += np.where(rows[:, FaultLog.TEXT] >= 0, len(before.texts), 0)
    faults = FaultLog.of(np.concatenate([before.rows(), rows]))
    faults.texts = [*before.texts, *after.texts]
    faults.degraded = set(after.degraded)
    return faults


def _joined_traces(before: Trace | None, after: Trace | None, by_ns: int) -> Trace | None:
    """Of both parts, with the kinds of the first; ``None``: the times of one are not known on the other's clock."""
    if before is None or after is None or after.meta.wrap_bits is not None:
        return before if after is None else None
    numbers = {name: number for number, name in enumerate(before.kinds)}
    kinds = [*before.kinds, *(name for name in after.kinds if name not in numbers)]
    renumbered = np.asarray([kinds.index(name) for name in after.kinds] or [0], np.int32)
    step = after.meta.resolution_ns
    moved = dataclasses.replace(
        after, time_ns=after.time_ns + by_ns // step * step, id=renumbered[after.id], kinds=tuple(kinds)
    )
    return joined([before, moved], 0)


def read_part(folder: Path, header: JournalHeader) -> tuple[RecordedRun, str]:
    """What a part of a journal holds, and the time of day until which it was written.

    Args:
        folder: of the part.
        header: of it.

    Raises:
        InputError: it is damaged.
    """
    states = read_lines(folder / "state.jsonl", JournalState)
    readers = {number: model.reads for number, model in enumerate(header.models) if model.reads}
    launches = _tables(folder, "launches", LaunchLog)
    frames = _tables(folder, "frames", FrameLog)
    rows = with_unread(ordered(frames, [known_ns(table) for table in frames]), readers, ended=False)
    faults = FaultLog.of(_rows(folder / "faults.bin", FaultLog))
    faults.texts = [text for state in states for text in state.texts]
    faults.degraded = set(states[-1].degraded) if states else set()
    log = FrameLog.of(rows)
    bad = faults.rows()
    bad = bad[bad[:, FaultLog.FAULT] == FaultCause.NOT_FINITE]
    for number, model in enumerate(header.models):
        if model.drops_not_finite:
            mine = bad[bad[:, FaultLog.MODEL] == number]
            log.refuse(number, mine[:, FaultLog.FRAME].tolist(), FrameOutcome.NOT_FINITE)
    logged = LaunchLog.of(ordered(launches, [table[:, LaunchLog.STARTED] for table in launches]))
    stalled: dict[int, int] = {}
    for table in _tables(folder, "stalls", StallLog):
        for window, ns in table.tolist():
            stalled[window] = max(stalled.get(window, 0), ns)
    last = states[-1] if states else JournalState(time=header.created, windows=0, stretches=(), streams={})
    begun = [last.windows]  # where the recording ended before the run, one log may go further than another
    begun += [int(table[:, LaunchLog.WINDOW].max()) + 1 for table in launches if len(table)]
    begun += [int(table[:, FrameLog.WINDOW].max()) + 1 for table in frames if len(table)]
    run = RecordedRun(
        launches=logged,
        frames=log,
        faults=faults,
        windows=max(begun) if last.stretches else 0,
        stretches=[note.stretch() for note in last.stretches],
        stalled=stalled,
        migrations=[Migration(note.model, note.window, note.unit, note.to) for note in last.migrations],
        streams=last.streams,
        trace=_trace(folder),
        injections=tuple(injection for state in states for injection in state.injections),
    )
    return run, last.time


def read_header(folder: Path) -> JournalHeader:
    """What was run in a part of a journal.

    Raises:
        InputError: it is damaged.
    """
    return read_record(folder / "header.json", JournalHeader)


def _rows(path: Path, kind: type[LaunchLog | FrameLog | FaultLog | StallLog]) -> Rows:
    width = len(kind.columns)
    return np.frombuffer(read_rows(path, 8 * width), np.int64).reshape(-1, width)


def _tables(folder: Path, name: str, kind: type[LaunchLog | FrameLog | StallLog]) -> list[Rows]:
    """Of each unit."""
    paths = sorted(folder.glob(f"{name}-*.bin"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return [_rows(path, kind) for path in paths] or [np.zeros((0, len(kind.columns)), np.int64)]


def _trace(folder: Path) -> Trace | None:
    """The packets whose files are there."""
    notes = read_lines(folder / "trace.jsonl", PacketNote)
    traces: list[Trace] = []
    gone, units, files = 0, len(list(folder.glob("launches-*.bin"))), dict[int, npt.NDArray[np.void]]()
    for note in notes:
        if note.file not in files:
            data = read_rows(folder / f"events-{note.file}.bin", PACKETS.itemsize)
            files = {note.file: np.frombuffer(data, PACKETS)}
            at = 0
        rows = files[note.file][at : at + note.packets]
        at += note.packets
        gone += note.packets - len(rows)
        if len(rows):
            traces.append(note.trace(rows))
    if not traces:
        return None
    trace = joined(traces, gone)
    return in_time_order(trace) if units > 1 and trace.meta.wrap_bits is None else trace
