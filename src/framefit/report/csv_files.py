"""Tables as CSV: the outcome of every frame, every event of a profile, those that were lost, layers; and read back."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.core.profile import How, OperationLog, Profile
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram
from framefit.core.run_record import CycleReport, FrameTable, LayerCycles, OutcomeText
from framefit.errors import InputError
from framefit.report.operations import NamedOperations

__all__ = ["read_events", "read_frames", "write_cycles", "write_events", "write_frames", "write_layers", "write_lost"]


@contextlib.contextmanager
def _read_lines(path: str | Path, columns: tuple[str, ...], remedy: str) -> Iterator[Iterator[list[str]]]:
    """The lines of a CSV file behind its heading; a ``ValueError`` about one of them becomes an error that names it.

    Args:
        path: of the file.
        columns: its heading.
        remedy: what the user can do about a file that is damaged.

    Raises:
        InputError: missing, unreadable, another table, or what the lines' reader did not understand.
    """
    number = 1
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            if tuple(next(lines, ())) != columns:
                raise ValueError(f"is not {','.join(columns)}")
            try:
                yield lines
            finally:
                number = lines.line_num
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path, remedy="check the path") from error
    except (ValueError, OverflowError, csv.Error) as error:
        raise InputError(f"line {number}: {error}", where=path, remedy=remedy) from error


_FRAME_COLUMNS = ("stream", "frame", "model", "fate", "reason", "released_ns", "finished_ns")


def write_frames(path: str | Path, frames: FrameTable, *, force: bool = False) -> None:
    """Write one line a frame; times in nanoseconds after the first release, empty where there is none."""
    _write_rows(path, _FRAME_COLUMNS, frames.rows(), force=force)  # a row at a time: a long run has millions


def write_layers(path: str | Path, profile: Profile, *, force: bool = False) -> None:
    """Write what each layer took in a profile, the longest first: one line a layer, with its interval."""
    columns = ("layer", "count", "duration_ns", "low_ns", "high_ns", "inferred_ratio")
    totals = sorted(profile.totals_by_layer.items(), key=lambda item: -item[1].duration_ns)
    rows = ((name, each.count, each.duration_ns, *each.interval_ns, each.inferred_ratio) for name, each in totals)
    _write_rows(path, columns, rows, force=force)


def write_cycles(path: str | Path, report: CycleReport, *, force: bool = False) -> None:
    """Write what each layer costs on a described target: one line a layer, a column for each figure."""
    columns = tuple(name for name in LayerCycles.__struct_fields__ if name != "terms")
    rows = ([getattr(layer, name) for name in columns] for layer in report.layers)
    _write_rows(path, columns, rows, force=force)


def _write_rows(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[object]], *, force: bool) -> None:
    with write_whole(path, force=force) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        text.detach()


def _fate(text: str) -> Literal["done", "late", "dropped", "skipped"]:
    match text:
        case "done" | "late" | "dropped" | "skipped":
            return text
    raise ValueError(f"fate {text!r} is unknown: it must be done, late, dropped or skipped")


def read_frames(path: str | Path) -> FrameTable:
    """Read what :func:`write_frames` wrote.

    Raises:
        InputError: missing, unreadable, or another table.
    """
    models: dict[tuple[str, str], int] = {}
    fates: dict[OutcomeText, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    with _read_lines(path, _FRAME_COLUMNS, "give frames.csv as a run wrote it") as lines:
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


_CHUNK = 1 << 16  # operations turned into text at once
_RULES = {how: how.name.lower() for how in How}
_Row = tuple[str, int, str, str, str]  # program, operation, name, kind and unit
_EVENT_COLUMNS = (
    "inference",
    "operation",
    "name",
    "kind",
    "unit",
    "type",
    "time_ns",
    "source",
    "lo_ns",
    "hi_ns",
    "program",
)


def write_events(path: str | Path, log: OperationLog, program: Program) -> None:
    """Write the START and the END of every operation, in the program's order, launch by launch.

    A ``.json`` file holds the same by column: ``{"schema_version": 1, "count": N, "columns": {NAME: [...]}}``.

    Args:
        path: usually ``events.csv``; ``.json`` for JSON.
        log: operations.
        program: names operations, units and programs.

    Raises:
        InputError: the file exists, or it cannot be written.
    """
    edges = np.arange(2 * len(log))
    _write_events(path, _Events(log, program), edges, _EVENT_COLUMNS)


def write_lost(path: str | Path, log: OperationLog, program: Program) -> None:
    """Write the events that were lost: as :func:`write_events`, and ``rule``, by which each was inferred.

    Args:
        path: usually ``lost.csv``; ``.json`` for JSON.
        log: operations.
        program: names operations, units and programs.

    Raises:
        InputError: the file exists, or it cannot be written.
    """
    how = np.stack([log.start_how, log.end_how], axis=1).reshape(-1)
    lost = np.flatnonzero(how != How.MEASURED)
    _write_events(path, _Events(log, program), lost, (*_EVENT_COLUMNS, "rule"))


def read_events(path: str | Path) -> tuple[OperationLog, Program]:
    """Read an ``events.csv`` back, and the program as far as it is named there.

    By which rule an event was inferred stands in the ``lost.csv`` beside it; layers' names are not there.

    Args:
        path: as :func:`write_events` wrote it.

    Raises:
        InputError: missing, unreadable, or another table.
    """
    rows: dict[_Row, int] = {}
    numbers: list[tuple[int, ...]] = []
    with _read_lines(path, _EVENT_COLUMNS, "give events.csv as framefit profile wrote it") as lines:
        for inference, operation, name, kind, unit, type_, time_ns, source, low_ns, high_ns, program in lines:
            if type_ != ("END" if len(numbers) % 2 else "START"):
                raise ValueError(f"a {type_!r}: START and END have to take turns")
            row = rows.setdefault((program, int(operation), name, kind, unit), len(rows))
            how = How.MEASURED if source == "measured" else How.BETWEEN
            numbers.append((int(inference), row, int(time_ns), how, int(low_ns), int(high_ns)))
        if len(numbers) % 2:
            raise ValueError("the last operation has no END")
        events = np.array(numbers, np.int64).reshape(-1, 6)
    inferred, rules = np.flatnonzero(events[:, 3] != How.MEASURED), _rules(Path(path).with_name("lost.csv"))
    if len(rules) == len(inferred):  # the same events, in the same order
        events[inferred, 3] = rules
    return _as_log(events.reshape(-1, 2, 6), list(rows))


def _rules(path: Path) -> list[int]:
    """By which rule each lost event was inferred, where that is known."""
    if not path.is_file():
        return []
    known = {name: how for how, name in _RULES.items()}
    with _read_lines(path, (*_EVENT_COLUMNS, "rule"), "give lost.csv as framefit profile wrote it") as lines:
        return [known.get(row[-1], How.BETWEEN) for row in lines]


def _as_log(columns: npt.NDArray[np.int64], rows: Sequence[_Row]) -> tuple[OperationLog, Program]:
    """Events in pairs, and the operations that their rows name."""
    units = {unit: core for core, unit in enumerate(dict.fromkeys(row[4] for row in rows))}
    kinds = {kind: at for at, kind in enumerate(dict.fromkeys(row[3] for row in rows))}
    programs: dict[str, list[_Row]] = {}
    for row in rows:
        programs.setdefault(row[0], []).append(row)
    for named in programs.values():
        named.sort(key=lambda row: row[1])
    number = {name: at for at, name in enumerate(programs)}
    listed = {name: {row: at for at, row in enumerate(named)} for name, named in programs.items()}
    facts = np.array(
        [(number[row[0]], listed[row[0]][row], kinds[row[3]], units[row[4]]) for row in rows], np.int64
    ).reshape(-1, 4)
    start, end = columns[:, 0], columns[:, 1]
    which = facts[start[:, 1]]
    event = np.where(columns[:, :, 3] == How.MEASURED, np.arange(2 * len(columns)).reshape(-1, 2), -1)
    log = OperationLog(
        inference=start[:, 0],
        program=which[:, 0].astype(np.int32),
        operation=which[:, 1].astype(np.int32),
        kind=which[:, 2].astype(np.int32),
        core=which[:, 3].astype(np.int16),
        unit=which[:, 3].astype(np.int16),
        start_ns=start[:, 2],
        end_ns=end[:, 2],
        start_how=start[:, 3].astype(np.uint8),
        end_how=end[:, 3].astype(np.uint8),
        start_low_ns=start[:, 4],
        start_high_ns=start[:, 5],
        end_low_ns=end[:, 4],
        end_high_ns=end[:, 5],
        start_event=event[:, 0],
        end_event=event[:, 1],
        kinds=tuple(kinds),
    )
    return log, Program(
        units=tuple(ProgramUnit(name=unit, core=core) for unit, core in units.items()),
        programs=tuple(_as_program(name, named) for name, named in programs.items()),
    )


def _as_program(name: str, rows: Sequence[_Row]) -> SegmentProgram:
    operations = tuple(
        Operation(index=index, name=label, layer=label, kind=kind, unit=unit, expected_ns=0, sigma_ratio=0.0)
        for _, index, label, kind, unit in rows
    )
    return SegmentProgram(name=name, model=name, segment=0, groups=(Group(index=0, operations=operations),))


class _Events:
    """Columns of events; event 2 i is the START of operation i, 2 i + 1 its END."""

    def __init__(self, log: OperationLog, program: Program) -> None:
        self._log = log
        self.named = NamedOperations.of(log, program)
        self._texts = {
            name: np.array([getattr(operation, name) for operation in self.named.named], object)
            for name in ("name", "kind", "unit", "program")
        }
        # As csv writes the texts that are the same for every execution
        self.heads = [_quoted((op.index, op.name, op.kind, op.unit)) for op in self.named.named]
        self.tails = [_quoted(("", op.program))[1:] for op in self.named.named]

    def numbers(self, edges: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
        """Row of the operation, inference, whether an END, time, how, low and high."""
        log, at, end = self._log, edges // 2, edges % 2
        both: tuple[tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]], ...] = (
            (log.start_ns, log.end_ns),
            (log.start_how, log.end_how),
            (log.start_low_ns, log.end_low_ns),
            (log.start_high_ns, log.end_high_ns),
        )
        chosen = (np.where(end == 1, ends[at], starts[at]) for starts, ends in both)
        return self.named.row[at], log.inference[at], end, *chosen

    def column(self, name: str, edges: npt.NDArray[np.int64]) -> list[object]:
        row, inference, end, time_ns, how, low_ns, high_ns = self.numbers(edges)
        if name in self._texts:
            return list(self._texts[name][row])
        if name == "operation":
            return list(np.array([operation.index for operation in self.named.named], np.int64)[row].tolist())
        words: dict[str, npt.NDArray[np.object_]] = {
            "type": np.array(["START", "END"], object)[end],
            "source": np.array(["measured", "inferred"], object)[(how != How.MEASURED).astype(np.int64)],
            "rule": np.array(list(_RULES.values()), object)[how],
        }
        numbers = {"inference": inference, "time_ns": time_ns, "lo_ns": low_ns, "hi_ns": high_ns}
        return list(words[name]) if name in words else list(numbers[name].tolist())


def _write_events(path: str | Path, events: _Events, edges: npt.NDArray[np.int64], columns: tuple[str, ...]) -> None:
    with write_whole(path) as file:
        if Path(path).suffix == ".json":
            _write_json(file, events, edges, columns)
            return
        file.write((",".join(columns) + "\n").encode())
        for first in range(0, len(edges), 2 * _CHUNK):
            part = edges[first : first + 2 * _CHUNK]
            file.write("".join(_lines(events, part, with_rule="rule" in columns)).encode())


def _lines(events: _Events, edges: npt.NDArray[np.int64], *, with_rule: bool) -> Iterator[str]:
    heads, tails = events.heads, events.tails
    types = (",START,", ",END,")
    sources = [",measured," if how == How.MEASURED else ",inferred," for how in How]
    rules = [f",{rule}\n" if with_rule else "\n" for rule in _RULES.values()]
    for row, inference, end, time, how, low, high in zip(*(c.tolist() for c in events.numbers(edges)), strict=True):
        yield (f"{inference},{heads[row]}{types[end]}{time}{sources[how]}{low},{high},{tails[row]}{rules[how]}")


def _quoted(cells: tuple[str | int, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _write_json(file: IO[bytes], events: _Events, edges: npt.NDArray[np.int64], columns: tuple[str, ...]) -> None:
    """Column by column, each in parts: a long list of objects takes many times the file's size."""
    file.write(f'{{"schema_version":1,"count":{len(edges)},"columns":{{'.encode())
    for place, name in enumerate(columns):
        file.write(f'{"," if place else ""}\n"{name}":['.encode())
        for first in range(0, len(edges), 2 * _CHUNK):
            values = msgspec.json.encode(events.column(name, edges[first : first + 2 * _CHUNK]))
            file.write((b"," if first else b"") + values[1:-1])
        file.write(b"]")
    file.write(b"\n}}\n")


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table of a result's folder, in place of an older one."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> None:
    """Write a file of a result's folder, in place of an older one."""
    with write_whole(path, force=True) as file:
        file.write(text.encode(errors="backslashreplace"))  # names that are not UTF-8
