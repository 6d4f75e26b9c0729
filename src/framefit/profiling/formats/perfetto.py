"""Reads slices of a Perfetto trace as packets, such as those of the ``trace.pftrace`` of a profile or a run.

Field numbers are those of ``protos/perfetto/trace/perfetto_trace.proto`` (github.com/google/perfetto). Slices that
begin and end on a track (``TrackEvent``) are read, with their names, categories and debug annotations, written out or
by number; all other packets are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from framefit.core.events import EventType
from framefit.errors import InputError
from framefit.profiling.formats.chrome import LabelTable
from framefit.profiling.formats.labels import Label, NamedTrace

_Field = tuple[int, int | bytes]  # number and value
_MOST_NS = 1 << 61
_LOOKED_AT = 4  # packets by which such a trace is recognised

_PACKET, _TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _INTERNED_DATA, _TRACK_DESCRIPTOR = 1, 8, 10, 11, 12, 60
_PACKET_FIELDS = 1000  # numbers in use are far below
_CATEGORY_IIDS, _ANNOTATIONS, _TYPE, _NAME_IID, _TRACK_UUID, _CATEGORIES, _NAME = 3, 4, 9, 10, 11, 22, 23
_SLICE_BEGIN, _SLICE_END = 1, 2
_INTERNED_CATEGORIES, _INTERNED_NAMES, _INTERNED_ANNOTATIONS, _INTERNED_STRINGS = 1, 2, 3, 29
_TABLES = (_INTERNED_CATEGORIES, _INTERNED_NAMES, _INTERNED_ANNOTATIONS, _INTERNED_STRINGS)
_NUMBERS, _STRING, _STRING_IID = (3, 4), 6, 17  # values of an annotation


def is_perfetto(raw: bytes) -> bool:
    """Whether the bytes begin with packets of a Perfetto trace."""
    try:
        packets = list(islice(_fields(raw), _LOOKED_AT))
        inner = [number for _, packet in packets if isinstance(packet, bytes) for number, _ in _fields(packet)]
    except ValueError:
        return False
    known = {_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _INTERNED_DATA, _TRACK_DESCRIPTOR}
    return (
        bool(packets)
        and all(number == _PACKET and isinstance(packet, bytes) for number, packet in packets)
        and all(0 < number < _PACKET_FIELDS for number in inner)
        and not known.isdisjoint(inner)
    )


def read_perfetto(raw: bytes, where: str) -> tuple[NamedTrace, tuple[str, ...]]:
    """Make packets from slices: names are kinds, and tracks are cores, until a program says better.

    Raises :class:`~framefit.errors.InputError` if there is no slice, or too many tracks.
    """
    reader = _Reader(where)
    warnings = []
    try:
        for number, packet in _fields(raw):
            if number == _PACKET and isinstance(packet, bytes):
                reader.take(packet)
    except ValueError:
        warnings.append("the file is cut off or damaged; what came before was read")
    if not len(reader.table.events):
        raise InputError("has no slices", where=where, remedy="give a Perfetto trace with track events")
    if reader.odd:
        warnings.append(f"{reader.odd} events end no slice, or have an impossible time, and were left out")
    packets = reader.table.packets(by_time=True, tracks={(None, uuid): name for uuid, name in reader.tracks.items()})
    return packets, (*warnings, *reader.table.warnings())


class _Reader:
    """Slices of a trace, one packet after the other."""

    def __init__(self, where: str) -> None:
        self.table = LabelTable(where)
        self.tracks: dict[int, str] = {}
        self.odd = 0
        self._interned: dict[tuple[int, int, int], str] = {}  # by sequence, table and number
        self._open: dict[int, list[tuple[Label, object]]] = {}

    def take(self, packet: bytes) -> None:
        """Take one packet; ``ValueError`` if it is damaged."""
        values = dict(_fields(packet))
        sequence = values.get(_SEQUENCE_ID, 0)
        if not isinstance(sequence, int):  # of another form
            return
        if isinstance(data := values.get(_INTERNED_DATA), bytes):
            self._intern(sequence, data)
        if isinstance(data := values.get(_TRACK_DESCRIPTOR), bytes):
            track = dict(_fields(data))
            if isinstance(uuid := track.get(1), int):
                self.tracks[uuid] = _text(track.get(2, b""))
        if isinstance(data := values.get(_TRACK_EVENT), bytes):
            self._event(sequence, values.get(_TIMESTAMP), list(_fields(data)))

    def _intern(self, sequence: int, data: bytes) -> None:
        for table, entry in _fields(data):
            if table in _TABLES and isinstance(entry, bytes):
                fields = dict(_fields(entry))
                if isinstance(number := fields.get(1), int):
                    self._interned[sequence, table, number] = _text(fields.get(2, b""))

    def _event(self, sequence: int, time_ns: int | bytes | None, fields: list[_Field]) -> None:
        values = dict(fields)
        type_, track = values.get(_TYPE), values.get(_TRACK_UUID, 0)
        if type_ not in (_SLICE_BEGIN, _SLICE_END):
            return
        stack = self._open.setdefault(track, []) if isinstance(track, int) else []
        if not isinstance(time_ns, int) or time_ns > _MOST_NS or (type_ == _SLICE_END and not stack):
            self.odd += 1
            return
        assert isinstance(track, int)
        core = self.table.events.core_of((None, track))
        if type_ == _SLICE_END:
            label, how = stack.pop()
            self.table.add(time_ns, label, EventType.END, core, how)
            return
        name = self._word(sequence, _INTERNED_NAMES, values.get(_NAME_IID), values.get(_NAME))
        category = self._word(sequence, _INTERNED_CATEGORIES, values.get(_CATEGORY_IIDS), values.get(_CATEGORIES))
        arguments: dict[str, object] = {}
        for number, annotation in fields:
            if number == _ANNOTATIONS and isinstance(annotation, bytes):
                given = dict(_fields(annotation))
                key = self._word(sequence, _INTERNED_ANNOTATIONS, given.get(1), given.get(10))
                arguments[key] = self._value(sequence, given)
        label = Label.of(name, category, arguments)
        stack.append((label, arguments.get("end_how")))
        self.table.add(time_ns, label, EventType.START, core, arguments.get("start_how"))

    def _word(self, sequence: int, table: int, number: int | bytes | None, text: int | bytes | None) -> str:
        """Return a text that is written out, or stands in a table."""
        if isinstance(text, bytes):
            return _text(text)
        return self._interned.get((sequence, table, number), "") if isinstance(number, int) else ""

    def _value(self, sequence: int, fields: dict[int, int | bytes]) -> object:
        for field in _NUMBERS:
            if field in fields:
                return fields[field]
        return self._word(sequence, _INTERNED_STRINGS, fields.get(_STRING_IID), fields.get(_STRING))


def _text(value: int | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _fields(data: bytes) -> Iterator[_Field]:
    """Yield the fields of a message; ``ValueError`` where it is damaged. Fixed-width numbers are bytes."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if length > end - at:
            raise ValueError("cut off")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the position behind it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
