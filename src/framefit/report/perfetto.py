"""Operations as a Perfetto trace (``trace.pftrace``), to be opened at ui.perfetto.dev.

The file is a stream of ``TracePacket`` messages; field numbers are those of
``protos/perfetto/trace/perfetto_trace.proto`` (github.com/google/perfetto). Many messages are made at once:

A message is a list of parts: bytes, and numbers whose varints are padded to one width (a
varint may end in zero groups; Perfetto's own writer does so for lengths). So messages of one
form are equally long and are the rows of one matrix, which is filled column by column.
The encoding: protobuf.dev, Encoding, "Base 128 Varints" and "Message Structure".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.core.profile import HOW_WORDS, How, OperationLog
from framefit.core.program import Launches, Program
from framefit.report.operations import NamedOperations, UnitTrack, unit_tracks

__all__ = ["write_perfetto"]


# TracePacket and what it holds
_PACKET, _TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _INTERNED_DATA, _SEQUENCE_FLAGS, _TRACK_DESCRIPTOR = (
    1, 8, 10, 11, 12, 13, 60,
)  # fmt: skip
_STATE_CLEARED, _NEEDS_STATE = 1, 2


# TrackEvent
_CATEGORY_IIDS, _ANNOTATIONS, _TYPE, _NAME_IID, _TRACK_UUID = 3, 4, 9, 10, 11
_SLICE_BEGIN, _SLICE_END = 1, 2


# TrackDescriptor, ProcessDescriptor
_UUID, _TRACK_NAME, _PROCESS, _PARENT_UUID, _CHILD_ORDERING, _RANK = 1, 2, 3, 5, 11, 12
_PID, _PROCESS_NAME = 1, 6
_EXPLICIT_ORDER = 3


# InternedData, and DebugAnnotation
_CATEGORIES, _EVENT_NAMES, _ANNOTATION_NAMES, _ANNOTATION_STRINGS = 1, 2, 3, 29
_ANNOTATION_NAME_IID, _INT_VALUE, _STRING_IID = 1, 4, 17
_PROCESS_UUID = 1
_CHUNK = 1 << 13  # slices encoded at once: the matrix stays in the second cache
_STATES = ("measured", "inferred")
_MARGINS = ("start_earlier_ns", "start_later_ns", "end_earlier_ns", "end_later_ns")
_Times = npt.NDArray[np.int64]
_Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class PerRow:
    """A number for each row of the form's table."""

    values: tuple[int, ...]

    @property
    def width(self) -> int:
        """Bytes of the longest."""
        return max((len(_varint(value)) for value in self.values), default=1)


@dataclass(frozen=True)
class Given:
    """A number that each message brings along, in at most ``width`` bytes."""

    name: str
    width: int


Part = bytes | PerRow | Given


def width_of(values: _Integers) -> int:
    """Bytes for every varint: those of the longest, or a few more where that takes fewer steps."""
    if not len(values):
        return 1
    longest = 10 if values.min() < 0 else len(_varint(int(values.max())))
    return {3: 4, 5: 8, 6: 8, 7: 8}.get(longest, longest)


def integer(field: int, value: int | PerRow | Given) -> list[Part]:
    """A field of type int64, uint64, bool or enum."""
    tag = _varint(field << 3)
    return [tag + _varint(value)] if isinstance(value, int) else [tag, value]


def text(field: int, value: str) -> list[Part]:
    """A field of type string."""
    return message(field, [value.encode()])


def message(field: int, parts: Sequence[Part]) -> list[Part]:
    """A field that is a message."""
    length = sum(len(part) if isinstance(part, bytes) else part.width for part in parts)
    return [_varint(field << 3 | 2) + _varint(length), *parts]


def fixed(parts: Sequence[Part]) -> bytes:
    """A message in which everything is known."""
    return b"".join(part for part in parts if isinstance(part, bytes))


class Form:
    """Messages that differ in numbers only.

    Args:
        parts: of the message.
        rows: length of every :class:`PerRow`.
    """

    def __init__(self, parts: Sequence[Part], rows: int) -> None:
        length = sum(len(part) if isinstance(part, bytes) else part.width for part in parts)
        self._table = np.zeros((max(rows, 1), length), np.uint8)
        self._given: list[tuple[Given, int]] = []
        at = 0
        for part in parts:
            if isinstance(part, bytes):
                self._table[:, at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
                continue
            if isinstance(part, Given):
                self._given.append((part, at))
            elif rows:
                _fill(self._table, at, part.width, np.array([value % (1 << 64) for value in part.values], np.uint64))
            at += part.width

    def filled(self, row: npt.NDArray[np.int64], given: Mapping[str, _Integers | int]) -> memoryview:
        """The messages one after the other.

        Args:
            row: of the table, for each message.
            given: the numbers of every :class:`Given`, of the same length, or one for all.
        """
        rows = self._table.take(row, axis=0)
        for part, at in self._given:
            values = np.asarray(given[part.name], np.int64).view(np.uint64)
            _fill(rows, at, part.width, values)
        return rows.data


# Groups of 7 bits spread to bytes in steps: halves, quarters, eighths move apart.
_SPREAD = {
    8: (
        (0x0FFFFFFF, 0x00FFFFFFF0000000, 4),
        (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (0x007F007F007F007F, 0x3F803F803F803F80, 1),
    ),
    4: ((0x3FFF, 0x0FFFC000, 2), (0x007F007F, 0x3F803F80, 1)),
    2: ((0x7F, 0x3F80, 1),),
    1: (),
}
_MORE = 0x8080808080808080


def _fill(rows: npt.NDArray[np.uint8], at: int, width: int, values: npt.NDArray[np.uint64]) -> None:
    """Write ``values`` as varints of ``width`` bytes, 8, 4, 2 and 1 bytes at a time."""
    offset = 0
    for size in (8, 4, 2, 1):
        while width - offset >= size:
            form = np.dtype(f"<u{size}")
            groups = (values >> np.uint64(7 * offset) if offset else values).astype(form)
            if size == 1:  # the others' masks leave out what is not theirs
                groups &= form.type(0x7F)
            for low, high, shift in _SPREAD[size]:
                groups = (groups & form.type(low)) | ((groups & form.type(high)) << form.type(shift))
            more = _MORE & ((1 << 8 * size) - 1)
            if offset + size == width:
                more &= (1 << 8 * size - 8) - 1
            groups |= form.type(more)
            rows[:, at + offset : at + offset + size].view(form)[:, 0] = groups
            offset += size


def _varint(value: int) -> bytes:
    value %= 1 << 64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


class _Interned:
    """Texts by number, from 1, in one of the packet's tables."""

    def __init__(self, field: int) -> None:
        self.field = field
        self._iids: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self._iids.setdefault(name, len(self._iids) + 1)

    def parts(self) -> list[Part]:
        return [
            part for name, iid in self._iids.items() for part in message(self.field, [*integer(1, iid), *text(2, name)])
        ]


class _Names:
    """Everything that slices only name by number."""

    def __init__(self) -> None:
        self.categories = _Interned(_CATEGORIES)
        self.events = _Interned(_EVENT_NAMES)
        self.annotations = _Interned(_ANNOTATION_NAMES)
        self.strings = _Interned(_ANNOTATION_STRINGS)

    def number(self, name: str, value: PerRow | Given) -> list[Part]:
        return self._annotation(name, integer(_INT_VALUE, value))

    def string(self, name: str, iid: PerRow | Given) -> list[Part]:
        return self._annotation(name, integer(_STRING_IID, iid))

    def _annotation(self, name: str, value: list[Part]) -> list[Part]:
        return message(_ANNOTATIONS, [*integer(_ANNOTATION_NAME_IID, self.annotations[name]), *value])

    def packet(self) -> bytes:
        tables = (self.categories, self.events, self.annotations, self.strings)
        return fixed(
            _packet(message(_INTERNED_DATA, [part for table in tables for part in table.parts()]), _STATE_CLEARED)
        )


def write_perfetto(
    path: str | Path,
    log: OperationLog,
    program: Program,
    launches: Launches | None,
    releases_ns: npt.NDArray[np.int64] | None = None,
    priority_models: Collection[str] = (),
    *,
    in_force: Sequence[tuple[int, str]] = (),
    force: bool = False,
) -> None:
    """Write a track of windows, a track a unit with its operations, and one with what is known of them.

    Units that send their packets on one core are below a track of that core. Where several timetables were in force,
    a track says which.

    Slices say model, segment, layer, kind, operation, inference, window and frame where these
    are known, and how each edge is; where some are inferred, also by how much an edge may be earlier or
    later (90 % unless asked otherwise), and a track beside the unit's shows which operations are
    measured. Slices of one unit do not overlap, unless one is measured to have interrupted another:
    an operation ends at the latest where the next one starts.

    Args:
        path: usually ``trace.pftrace``.
        log: operations, for example of :func:`~framefit.profiling.pairing.pair_events`.
        program: names the units; its operations belong to models and segments.
        launches: windows and frames of the inferences; ``None``: not known.
        releases_ns: int64, one release a window, ascending, on the log's clock.
        priority_models: their slices have the category "priority", others "background"; empty: no category.
        in_force: from when on which timetable was in force, ascending, on the log's clock.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    releases_ns = np.asarray([] if releases_ns is None else releases_ns, np.int64)
    # The format has no times before 0: all are moved, and the trace's name says so.
    shift_ns = -min(0, int(log.start_ns.min(initial=0)), int(releases_ns.min(initial=0)))
    units = unit_tracks(log, program)
    inferred = log.inferred
    names = _Names()
    last_ns = int(max(log.end_ns.max(initial=0), releases_ns.max(initial=0) + program.period_ns)) + shift_ns
    tracks = [_Track("windows")] if len(releases_ns) else []
    slices: list[Iterator[memoryview]] = []
    if len(releases_ns):
        slices.append(_windows(names, releases_ns + shift_ns, program.period_ns))
    if len(in_force) > 1:
        tracks.append(_Track("timetable"))
        begins_ns = np.maximum(np.asarray([at for at, _ in in_force], np.int64) + shift_ns, 0)
        slices.append(_in_force(names, begins_ns, [name for _, name in in_force], last_ns, _PROCESS_UUID + len(tracks)))
    operations = _Operations(names, log, program, launches, priority_models, last_ns)
    core_track: dict[int, int] = {}
    for unit in units:
        if unit.shares_core and unit.core not in core_track:
            core_track[unit.core] = len(tracks)
            tracks.append(_Track(f"core {unit.core}"))
        parent = core_track.get(unit.core)
        start_ns, end_ns = _apart(log, unit, inferred)
        start_ns, end_ns = start_ns + shift_ns, end_ns + shift_ns
        tracks.append(_Track(unit.name, parent))
        slices.append(operations.slices(unit, start_ns, end_ns, _PROCESS_UUID + len(tracks)))
        if inferred.any():
            tracks.append(_Track(f"{unit.name}: known how", parent))
            slices.append(
                _states(names, inferred[unit.entries], start_ns, end_ns, last_ns, _PROCESS_UUID + len(tracks))
            )
    process = f"framefit, all times + {shift_ns} ns" if shift_ns else "framefit"
    with write_whole(path, force=force) as file:
        file.write(names.packet())
        file.write(_descriptors(process, tracks))
        for part in slices:
            file.writelines(part)


def _packet(parts: Sequence[Part], flags: int) -> list[Part]:
    return message(_PACKET, [*integer(_SEQUENCE_ID, 1), *integer(_SEQUENCE_FLAGS, flags), *parts])


def _slice(last_ns: int, event: Sequence[Part], track: int | Given) -> list[Part]:
    """Begin and end; the end stands before the next begin, so equal times nest rightly."""
    width = width_of(np.array([last_ns]))
    begin = [*integer(_TYPE, _SLICE_BEGIN), *integer(_TRACK_UUID, track), *event]
    end = [*integer(_TYPE, _SLICE_END), *integer(_TRACK_UUID, track)]
    return [
        *_packet([*integer(_TIMESTAMP, Given("start", width)), *message(_TRACK_EVENT, begin)], _NEEDS_STATE),
        *_packet([*integer(_TIMESTAMP, Given("end", width)), *message(_TRACK_EVENT, end)], _NEEDS_STATE),
    ]


def _chunks(count: int) -> list[slice]:
    return [slice(first, first + _CHUNK) for first in range(0, count, _CHUNK)]


def _windows(names: _Names, releases_ns: _Times, window_ns: int) -> Iterator[memoryview]:
    ends_ns = np.append(releases_ns[1:], releases_ns[-1:] + window_ns)
    index = np.arange(len(releases_ns))
    event = [
        *integer(_NAME_IID, names.events["window"]),
        *integer(_CATEGORY_IIDS, names.categories["window"]),
        *names.number("window", Given("window", width_of(index))),
    ]
    form = Form(_slice(int(ends_ns[-1]), event, _PROCESS_UUID + 1), 1)
    return (
        form.filled(
            np.zeros_like(index[part]), {"start": releases_ns[part], "end": ends_ns[part], "window": index[part]}
        )
        for part in _chunks(len(index))
    )


def _in_force(
    names: _Names, begins_ns: _Times, timetables: Sequence[str], last_ns: int, track: int
) -> Iterator[memoryview]:
    """Which timetable was in force when."""
    event = [
        *integer(_NAME_IID, PerRow(tuple(names.events[name] for name in timetables))),
        *integer(_CATEGORY_IIDS, names.categories["timetable"]),
    ]
    form = Form(_slice(last_ns, event, track), len(timetables))
    return iter(
        [form.filled(np.arange(len(timetables)), {"start": begins_ns, "end": np.append(begins_ns[1:], last_ns)})]
    )


def _states(
    names: _Names, inferred: npt.NDArray[np.bool_], start_ns: _Times, end_ns: _Times, last_ns: int, track: int
) -> Iterator[memoryview]:
    """Operations in a row that are known in the same way, as one slice."""
    if not len(inferred):
        return iter(())
    first = np.flatnonzero(np.diff(inferred, prepend=~inferred[:1]))
    last = np.append(first[1:], len(inferred)) - 1
    count = last - first + 1
    iids = tuple(names.events[state] for state in _STATES)
    event = [*integer(_NAME_IID, PerRow(iids)), *names.number("operations", Given("operations", width_of(count)))]
    form = Form(_slice(last_ns, event, track), len(iids))
    latest = np.maximum.accumulate(end_ns)  # where one operation interrupted another
    until = np.minimum(latest[last], np.append(start_ns[first[1:]], last_ns)[: len(last)])
    return (
        form.filled(
            inferred[first[part]].astype(np.int64),
            {"start": start_ns[first[part]], "end": until[part], "operations": count[part]},
        )
        for part in _chunks(len(first))
    )


@dataclass(frozen=True)
class _Slices:
    """Forms of an operation's slice: all of its edges measured, or not."""

    measured: Form
    inferred: Form


class _Operations:
    """Slices of operations, whose names are found once for each operation of the program."""

    def __init__(
        self,
        names: _Names,
        log: OperationLog,
        program: Program,
        launches: Launches | None,
        priority_models: Collection[str],
        last_ns: int,
    ) -> None:
        self._log = log
        self._named = NamedOperations.of(log, program)
        self._launches = launches
        self._inferred = log.inferred
        self._hows = np.array([names.strings[HOW_WORDS[how]] for how in How])
        operations = self._named.named
        known = bool((log.program >= 0).any())
        event = integer(_NAME_IID, PerRow(tuple(names.events[op.name] for op in operations)))
        if known and priority_models:
            role = ("background", "priority")
            iids = tuple(names.categories[role[op.model in priority_models]] for op in operations)
            event += integer(_CATEGORY_IIDS, PerRow(iids))
        texts = {"kind": [op.kind for op in operations]}
        if known:
            texts |= {"model": [op.model for op in operations], "layer": [op.layer for op in operations]}
        for name, values in texts.items():
            event += names.string(name, PerRow(tuple(names.strings[value or "unknown"] for value in values)))
        if known:
            event += names.number("segment", PerRow(tuple(op.segment for op in operations)))
            event += names.number("operation", PerRow(tuple(op.index for op in operations)))
            event += names.number("inference", Given("inference", width_of(log.inference)))
        self._has_launches = (
            launches is not None
            and known
            and 0 <= int(log.inference.min(initial=0)) <= int(log.inference.max(initial=0)) < len(launches)
        )
        if launches is not None and self._has_launches:
            event += names.number("window", Given("window", width_of(launches.window)))
            event += names.number("frame", Given("frame", width_of(launches.frame)))
        how = width_of(self._hows)
        measured = PerRow((int(self._hows[How.MEASURED]),) * len(operations))
        plain = [*names.string("start_how", measured), *names.string("end_how", measured)]
        event_and_how = [
            *event,
            *names.string("start_how", Given("start_how", how)),
            *names.string("end_how", Given("end_how", how)),
        ]
        margins = [width_of(np.array(bounds)) for bounds in self._greatest_margins()]
        intervals = [
            part
            for name, width in zip(_MARGINS, margins, strict=True)
            for part in names.number(name, Given(name, width))
        ]
        track = Given("track", 2)
        self._forms = _Slices(
            Form(_slice(last_ns, [*event, *plain], track), len(operations)),
            Form(_slice(last_ns, [*event_and_how, *intervals], track), len(operations)),
        )

    def _margins(self, at: npt.NDArray[np.int64] | slice) -> list[_Times]:
        log = self._log
        return [
            log.start_ns[at] - log.start_low_ns[at],
            log.start_high_ns[at] - log.start_ns[at],
            log.end_ns[at] - log.end_low_ns[at],
            log.end_high_ns[at] - log.end_ns[at],
        ]

    def _greatest_margins(self) -> list[tuple[int, int]]:
        """Least and greatest of each, a chunk at a time: what is small stays in the cache."""
        bounds = [
            [(int(margin.min()), int(margin.max())) for margin in self._margins(part)]
            for part in _chunks(len(self._log))
        ]
        greatest = [
            (min(low for low, _ in chunks), max(high for _, high in chunks)) for chunks in zip(*bounds, strict=True)
        ]
        return greatest or [(0, 0)] * len(_MARGINS)

    def slices(self, unit: UnitTrack, start_ns: _Times, end_ns: _Times, track: int) -> Iterator[memoryview]:
        log = self._log
        for part in _chunks(len(unit.entries)):
            at = unit.entries[part]
            inference = log.inference[at]
            values: dict[str, npt.NDArray[np.integer] | int] = {
                "start": start_ns[part],
                "end": end_ns[part],
                "track": track,
                "inference": inference,
            }
            if self._launches is not None and self._has_launches:
                values |= {"window": self._launches.window[inference], "frame": self._launches.frame[inference]}
            form = self._forms.measured
            inferred = np.flatnonzero(self._inferred[at])
            if len(inferred):
                form = self._forms.inferred
                values |= {"start_how": self._hows[log.start_how[at]], "end_how": self._hows[log.end_how[at]]}
                for name, margins in zip(_MARGINS, self._margins(at[inferred]), strict=True):
                    values[name] = margin = np.zeros(len(at), np.int64)
                    margin[inferred] = margins
            yield form.filled(self._named.row[at], values)


def _apart(log: OperationLog, unit: UnitTrack, inferred: npt.NDArray[np.bool_]) -> tuple[_Times, _Times]:
    """Start and end of a unit's operations such that none overlap, save measured ones inside one another."""
    at = unit.entries
    start_ns, end_ns = log.start_ns[at], log.end_ns[at]
    overlaps = start_ns[1:] < end_ns[:-1]
    if not overlaps.any():
        return start_ns, end_ns
    measured = ~inferred[at]
    inside = overlaps & (end_ns[1:] <= end_ns[:-1]) & measured[1:] & measured[:-1]
    if not inside.any():
        return start_ns, np.append(np.minimum(end_ns[:-1], start_ns[1:]), end_ns[-1:])
    end_ns = end_ns.copy()
    running: list[int] = []  # operations that the current one may be inside of, the innermost last
    for place, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while running and end_ns[running[-1]] <= start:
            running.pop()
        while running and not (measured[place] and measured[running[-1]] and end <= end_ns[running[-1]]):
            end_ns[running.pop()] = start
        running.append(place)
    return start_ns, end_ns


@dataclass(frozen=True)
class _Track:
    """A track, and the number of the one that it is below."""

    name: str
    parent: int | None = None


def _descriptors(process: str, tracks: Sequence[_Track]) -> bytes:
    """The process, and its tracks in order."""
    process_name = message(_PROCESS, [*integer(_PID, 1), *text(_PROCESS_NAME, process)])
    root = [*integer(_UUID, _PROCESS_UUID), *process_name, *integer(_CHILD_ORDERING, _EXPLICIT_ORDER)]
    packets = _packet(message(_TRACK_DESCRIPTOR, root), _NEEDS_STATE)
    above = {track.parent for track in tracks}
    for rank, described in enumerate(tracks):
        track = [*integer(_UUID, _PROCESS_UUID + 1 + rank), *text(_TRACK_NAME, described.name)]
        parent = _PROCESS_UUID if described.parent is None else _PROCESS_UUID + 1 + described.parent
        track += [*integer(_PARENT_UUID, parent), *integer(_RANK, rank)]
        if rank in above:
            track += integer(_CHILD_ORDERING, _EXPLICIT_ORDER)
        packets += _packet(message(_TRACK_DESCRIPTOR, track), _NEEDS_STATE)
    return fixed(packets)
