"""Every event of a profile, and those that were lost, as tables (``events.csv``, ``lost.csv``) or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.core.profile import How, OperationLog
from framefit.core.program import Program
from framefit.report.operations import NamedOperations

__all__ = ["write_events", "write_lost"]

_CHUNK = 1 << 16  # operations turned into text at once
_RULES = {how: how.name.lower() for how in How}
_COLUMNS = ("inference", "operation", "name", "kind", "unit", "type", "time_ns", "source", "lo_ns", "hi_ns", "program")


def write_events(path: str | Path, log: OperationLog, program: Program, *, force: bool = False) -> None:
    """Write the START and the END of every operation, in the program's order, launch by launch.

    A ``.json`` file holds the same by column: ``{"schema_version": 1, "count": N, "columns": {NAME: [...]}}``.

    Args:
        path: usually ``events.csv``; ``.json`` for JSON.
        log: operations.
        program: names operations, units and programs.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    edges = np.arange(2 * len(log))
    _write(path, _Events(log, program), edges, _COLUMNS, force=force)


def write_lost(path: str | Path, log: OperationLog, program: Program, *, force: bool = False) -> None:
    """Write the events that were lost: as :func:`write_events`, and ``rule``, by which each was inferred.

    Args:
        path: usually ``lost.csv``; ``.json`` for JSON.
        log: operations.
        program: names operations, units and programs.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    how = np.stack([log.start_how, log.end_how], axis=1).reshape(-1)
    lost = np.flatnonzero(how != How.MEASURED)
    _write(path, _Events(log, program), lost, (*_COLUMNS, "rule"), force=force)


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


def _write(
    path: str | Path, events: _Events, edges: npt.NDArray[np.int64], columns: tuple[str, ...], *, force: bool
) -> None:
    with write_whole(path, force=force) as file:
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
