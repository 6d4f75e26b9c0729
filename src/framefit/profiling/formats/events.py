"""Reads ``events.csv`` and ``events.json`` of a profile as a trace: the events that were measured are its packets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

import msgspec

from framefit.core.events import EventType
from framefit.errors import InputError
from framefit.profiling.formats.chrome import LabelTable
from framefit.profiling.formats.labels import Label, NamedTrace

_COLUMNS = ("operation", "name", "kind", "unit", "type", "time_ns", "source", "program")
_TYPES = {"START": EventType.START, "END": EventType.END}
_HEAD = 4096  # bytes by which such a file is recognised


class _ByColumn(msgspec.Struct):
    columns: dict[str, list[int | str]]


def is_event_table(raw: bytes) -> bool:
    """Whether the bytes begin as the events of a profile, by line or by column."""
    head = raw[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    line = head.split(b"\n", 1)[0].strip().decode("utf-8", "replace").split(",")
    by_column = head.startswith(b"{") and b'"columns"' in head and b'"traceEvents"' not in head
    return by_column or set(_COLUMNS) <= set(line)


def read_event_table(raw: bytes, where: str) -> tuple[NamedTrace, tuple[str, ...]]:
    """Make packets of the events that were measured.

    Raises :class:`~framefit.errors.InputError` if the table is damaged, or no event was measured.
    """
    table = LabelTable(where)
    count = 0
    try:
        for operation, name, kind, unit, type_, time_ns, source, program in _rows(raw):
            if type_ not in _TYPES or source not in ("measured", "inferred"):
                raise ValueError(f"{type_!r} {source!r} is not a START or END, measured or inferred")
            if source == "measured":
                label = Label(str(name), (str(kind),), int(operation), str(program))
                table.add(int(time_ns), label, _TYPES[str(type_)], table.events.core_of((None, str(unit))))
            else:
                table.inferred += 1
            count += 1
    except (ValueError, OverflowError, csv.Error, msgspec.MsgspecError) as error:
        raise InputError(
            f"event {count}: {error}", where=where, remedy="give events.csv as framefit profile wrote it"
        ) from error
    if not len(table.events):
        raise InputError(
            "has no event that was measured", where=where, remedy="give events.csv; lost.csv has inferred events only"
        )
    tracks = {thread: str(thread[1]) for thread in table.events.threads}
    return table.packets(by_time=True, tracks=tracks), tuple(table.warnings())


def _rows(raw: bytes) -> Iterator[tuple[int | str, ...]]:
    """Yield the cells of the columns that matter."""
    raw = raw.removeprefix(b"\xef\xbb\xbf").lstrip()
    if raw.startswith(b"{"):
        columns = msgspec.json.decode(raw, type=_ByColumn).columns
        if missing := [name for name in _COLUMNS if name not in columns]:
            raise ValueError(f"column {missing[0]!r} is missing")
        yield from zip(*(columns[name] for name in _COLUMNS), strict=True)
        return
    lines: Iterable[list[str]] = csv.reader(io.StringIO(raw.decode("utf-8", "replace"), newline=""))
    lines = iter(lines)
    header = next(iter(lines))
    at = [header.index(name) for name in _COLUMNS]
    for line in lines:
        if len(line) != len(header):
            raise ValueError(f"{len(line)} cells, not {len(header)}")
        yield tuple(line[place] for place in at)
