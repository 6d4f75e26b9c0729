"""A run as a Perfetto trace (``trace.pftrace``), to be opened at ui.perfetto.dev.

The file is a stream of ``TracePacket`` messages; field numbers are those of
``protos/perfetto/trace/perfetto_trace.proto`` (github.com/google/perfetto).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace
from framefit.core.files import write_whole
from framefit.core.program import Launches, Program

__all__ = ["Executions", "executions", "write_perfetto"]

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

_PROCESS_UUID, _WINDOWS_UUID, _FIRST_UNIT_UUID = 1, 2, 3
_ANNOTATION_IIDS = {"window": 1, "model": 2, "segment": 3, "frame": 4}
_CATEGORY_NAMES = ("priority", "background", "window")
_CHUNK = 1 << 16  # slices encoded at once: the matrix stays within a few MiB

_Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Executions:
    """Executed operations, by start: events of one core, kind and operation, START paired with END.

    Attributes:
        core: int16.
        kind: int32, index into ``Trace.kinds``.
        start_ns: int64, on the trace's clock.
        end_ns: int64, on the trace's clock.
        launch: int64, ordinal of the launch; -1 where it is unknown because events were lost.
    """

    core: npt.NDArray[np.int16]
    kind: npt.NDArray[np.int32]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    launch: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start_ns)


def executions(trace: Trace, program: Program, launches: Launches) -> Executions:
    """Pair the events of a trace, and find the launch of each pair.

    Unpaired events are left out. The i-th START of a core belongs to the i-th operation
    that the launches put there; this holds only when nothing was lost, so where any
    number, kind or operation disagrees, every launch is -1.
    """
    time_ns = _unwrapped(trace)
    in_time = np.all(time_ns[1:] >= time_ns[:-1])
    order = np.arange(len(trace)) if in_time else np.argsort(time_ns, kind="stable")
    key = _dense_key(trace)
    by_key = order[np.argsort(key[order], kind="stable")]
    kind_of_event, key = trace.type[by_key], key[by_key]
    pair = (kind_of_event[:-1] == EventType.START) & (kind_of_event[1:] == EventType.END) & (key[:-1] == key[1:])
    starts, ends = by_key[:-1][pair], by_key[1:][pair]
    by_start = np.argsort(time_ns[starts], kind="stable")
    starts, ends = starts[by_start], ends[by_start]
    return Executions(
        core=trace.core[starts],
        kind=trace.id[starts],
        start_ns=time_ns[starts],
        end_ns=time_ns[ends],
        launch=_launch_of_starts(trace, order, program, launches)[starts],
    )


def write_perfetto(
    path: str | Path,
    trace: Trace,
    program: Program,
    launches: Launches,
    releases_ns: npt.NDArray[np.int64],
    priority_models: Collection[str],
    *,
    force: bool = False,
) -> None:
    """Write a run as a Perfetto trace: a track of windows, and a track a unit with its operations.

    Where the launches are known (see :func:`executions`), slices carry model, segment,
    frame and window, and the category "priority" or "background".

    Args:
        path: usually ``trace.pftrace``.
        trace: events of the run.
        program: names the units; its operations belong to models and segments.
        launches: in the order of submission.
        releases_ns: int64, one release a window, ascending, on the trace's clock.
        priority_models: their names.
        force: overwrite.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
        ValueError: a time before 0, which the format cannot say.
    """
    executed = executions(trace, program, launches)
    releases_ns = np.asarray(releases_ns, np.int64)
    if min(executed.start_ns.min(initial=0), releases_ns.min(initial=0)) < 0:
        raise ValueError("a Perfetto trace has no times before 0")
    cores = [unit.core for unit in program.units]
    cores += sorted(set(np.unique(executed.core).tolist()) - set(cores))
    names = {unit.core: unit.name for unit in program.units}
    tracks = ["windows", *(names.get(core, f"core {core}") for core in cores)]
    uuid_of_core = dict(zip(cores, range(_FIRST_UNIT_UUID, _FIRST_UNIT_UUID + len(cores)), strict=True))
    models = list(dict.fromkeys(segment.model for segment in program.programs))
    with write_whole(path, force=force) as file:
        file.write(_preamble(tracks, ["window", *trace.kinds], models))
        ends_ns = np.append(releases_ns[1:], releases_ns[-1:] + program.window_ns)
        for part in _chunks(len(releases_ns)):
            windows = np.arange(len(releases_ns))[part]
            event = [*_integer(_NAME_IID, 1), *_integer(_CATEGORY_IIDS, 3), *_annotation("window", windows)]
            file.write(_slices(releases_ns[part], ends_ns[part], _integer(_TRACK_UUID, _WINDOWS_UUID), event))
        for part in _chunks(len(executed)):
            track = _integer(_TRACK_UUID, _looked_up(uuid_of_core, executed.core[part]))
            event = _integer(_NAME_IID, executed.kind[part] + 2)
            launch = executed.launch[part]
            if launch.min() >= 0:
                which = launches.program[launch]
                model_iid = np.array([models.index(segment.model) + 1 for segment in program.programs])
                category = np.array([1 if segment.model in priority_models else 2 for segment in program.programs])
                index = np.array([segment.segment for segment in program.programs])
                event += _integer(_CATEGORY_IIDS, category[which])
                event += _annotation("model", model_iid[which], _STRING_IID)
                event += _annotation("segment", index[which])
                event += _annotation("frame", launches.frame[launch])
                event += _annotation("window", launches.window[launch])
            file.write(_slices(executed.start_ns[part], executed.end_ns[part], track, event))


def _unwrapped(trace: Trace) -> npt.NDArray[np.int64]:
    """Times without the wrap of the device's counter: each step is the shorter way round."""
    if trace.meta.wrap_bits is None or len(trace) == 0:
        return trace.time_ns
    period = trace.meta.resolution_ns << trace.meta.wrap_bits
    steps = np.diff(trace.time_ns, prepend=trace.time_ns[:1])
    steps = (steps + period // 2) % period - period // 2
    return np.asarray(trace.time_ns[0] + np.cumsum(steps), np.int64)


def _dense_key(trace: Trace) -> _Integers:
    """One small number for (core, id, operation); uint16 where it fits, which numpy sorts by radix."""
    parts = (trace.core, trace.id, trace.operation)
    key = np.zeros(len(trace), np.int64)
    count = 1
    for part in parts:
        low, high = int(part.min(initial=0)), int(part.max(initial=0))
        key = key * (high - low + 1) + (part - np.int64(low))
        count *= high - low + 1
    return key.astype(np.uint16) if count <= 1 << 16 else key


def _launch_of_starts(
    trace: Trace, order: npt.NDArray[np.int64], program: Program, launches: Launches
) -> npt.NDArray[np.int64]:
    """The launch of every START event, -1 elsewhere, and everywhere when something was lost."""
    launch = np.full(len(trace), -1)
    core_of_unit = {unit.name: unit.core for unit in program.units}
    id_of_kind = {kind: index for index, kind in enumerate(trace.kinds)}
    operations = [[op for group in segment.groups for op in group.operations] for segment in program.programs]
    counts = np.array([len(ops) for ops in operations], np.int64)
    flat = [op for ops in operations for op in ops]
    facts = np.array(
        [(core_of_unit.get(op.unit, -1), id_of_kind.get(op.kind, -1), op.index) for op in flat], np.int64
    ).reshape(-1, 3)
    starts = order[trace.type[order] == EventType.START]
    per_launch = counts[launches.program]
    if len(trace.loss_after) or trace.meta.lost_events or per_launch.sum() != len(starts):
        return launch
    # the operations of all launches one after the other: the launch of each, and its row in ``facts``
    ordinal = np.repeat(np.arange(len(launches)), per_launch)
    first = np.repeat(np.cumsum(per_launch) - per_launch, per_launch)
    row = (np.cumsum(counts) - counts)[launches.program[ordinal]] + np.arange(len(ordinal)) - first
    told = np.argsort(facts[row, 0].astype(np.int16), kind="stable")
    starts = starts[np.argsort(trace.core[starts], kind="stable")]
    core, kind, operation = facts[row[told]].T
    found = trace.operation[starts]
    agrees = (trace.core[starts] == core) & (trace.id[starts] == kind) & ((found < 0) | (found == operation))
    if agrees.all():
        launch[starts] = ordinal[told]
    return launch


# Protobuf, for one message or for many at once. A message is a list of parts: bytes that
# all have in common, and columns, whose varints are padded to the longest of the column
# (a varint may end in zero groups; Perfetto's own writer does so for lengths). So the
# messages of a list are equally long and are the rows of one matrix.


@dataclass(frozen=True)
class _Column:
    values: npt.NDArray[np.uint64]
    width: int


_Part = bytes | _Column


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _integer(field: int, value: int | _Integers) -> list[_Part]:
    tag = _varint(field << 3)
    if isinstance(value, int):
        return [tag + _varint(value)]
    values = value.astype(np.int64).view(np.uint64)
    return [tag, _Column(values, len(_varint(int(values.max(initial=0)))))]


def _text(field: int, value: str) -> list[_Part]:
    return _message(field, [value.encode()])


def _message(field: int, parts: Sequence[_Part]) -> list[_Part]:
    length = sum(part.width if isinstance(part, _Column) else len(part) for part in parts)
    return [_varint(field << 3 | 2) + _varint(length), *parts]


def _rows(parts: Sequence[_Part], count: int) -> npt.NDArray[np.uint8]:
    """The messages, uint8 (count, length)."""
    common = b"".join(bytes(part.width) if isinstance(part, _Column) else part for part in parts)
    rows = np.tile(np.frombuffer(common, np.uint8), (count, 1))
    at = 0
    for part in parts:
        if isinstance(part, bytes):
            at += len(part)
            continue
        for group in range(part.width):
            more = 0x80 if group < part.width - 1 else 0
            bits = (part.values >> np.uint64(7 * group)).astype(np.uint8) & np.uint8(0x7F)
            rows[:, at + group] = bits | np.uint8(more)
        at += part.width
    return rows


def _chunks(count: int) -> list[slice]:
    return [slice(first, first + _CHUNK) for first in range(0, count, _CHUNK)]


def _looked_up(table: dict[int, int], keys: npt.NDArray[np.int16]) -> npt.NDArray[np.int64]:
    values = np.zeros(1 << 16, np.int64)
    for key, value in table.items():
        values[key & 0xFFFF] = value
    return values[keys.astype(np.uint16)]


def _annotation(name: str, values: _Integers, field: int = _INT_VALUE) -> list[_Part]:
    return _message(_ANNOTATIONS, [*_integer(_ANNOTATION_NAME_IID, _ANNOTATION_IIDS[name]), *_integer(field, values)])


def _packet(parts: Sequence[_Part], flags: int) -> list[_Part]:
    return _message(_PACKET, [*_integer(_SEQUENCE_ID, 1), *_integer(_SEQUENCE_FLAGS, flags), *parts])


def _slices(
    start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64], track: Sequence[_Part], event: Sequence[_Part]
) -> memoryview:
    """Begin and end of every slice; an end stands before the next begin, so equal times nest rightly."""
    begin = [*_integer(_TYPE, _SLICE_BEGIN), *track, *event]
    end = [*_integer(_TYPE, _SLICE_END), *track]
    parts = [
        *_packet([*_integer(_TIMESTAMP, start_ns), *_message(_TRACK_EVENT, begin)], _NEEDS_STATE),
        *_packet([*_integer(_TIMESTAMP, end_ns), *_message(_TRACK_EVENT, end)], _NEEDS_STATE),
    ]
    return _rows(parts, len(start_ns)).data


def _preamble(tracks: Sequence[str], event_names: Sequence[str], models: Sequence[str]) -> bytes:
    """Interned names, the process, and its tracks in order."""
    interned: list[_Part] = []
    for field, names in (
        (_CATEGORIES, _CATEGORY_NAMES),
        (_EVENT_NAMES, event_names),
        (_ANNOTATION_NAMES, tuple(_ANNOTATION_IIDS)),
        (_ANNOTATION_STRINGS, models),
    ):
        for iid, name in enumerate(names, start=1):
            interned += _message(field, [*_integer(1, iid), *_text(2, name)])
    packets = _packet(_message(_INTERNED_DATA, interned), _STATE_CLEARED)
    process = _message(_PROCESS, [*_integer(_PID, 1), *_text(_PROCESS_NAME, "framefit")])
    root = [*_integer(_UUID, _PROCESS_UUID), *process, *_integer(_CHILD_ORDERING, _EXPLICIT_ORDER)]
    packets += _packet(_message(_TRACK_DESCRIPTOR, root), _NEEDS_STATE)
    for rank, name in enumerate(tracks):
        track = [*_integer(_UUID, _WINDOWS_UUID + rank), *_text(_TRACK_NAME, name)]
        track += [*_integer(_PARENT_UUID, _PROCESS_UUID), *_integer(_RANK, rank)]
        packets += _packet(_message(_TRACK_DESCRIPTOR, track), _NEEDS_STATE)
    return b"".join(part for part in packets if isinstance(part, bytes))
