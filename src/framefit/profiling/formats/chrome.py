"""Reads events of a Chrome trace from JSON that may be cut off: Chrome's own files and ONNX Runtime's profiles.

The format is that of "Trace Event Format" (Google, 2016): an array of events, which needs no end, or
an object with such an array under ``traceEvents``. Times are microseconds.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from framefit.core.events import EventType, Trace, TraceMeta
from framefit.errors import InputError
from framefit.profiling.formats.labels import Label, NamedTrace, is_inferred

_MOST_OBJECTS = 12_000_000
"""Objects in a file, a limit to the memory: ONNX Runtime writes 1,000,000 events with seven objects each at most."""
_MOST_US = float(1 << 51)  # 71 years; from here on nanoseconds overflow, and a double has no more half microseconds
_MOST_CORES = 1 << 15


class JsonEvent(msgspec.Struct, gc=False):
    """One event; the format describes the fields."""

    name: str | None = None
    cat: str | None = None
    ph: str | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: msgspec.Raw | None = None


class _Object(msgspec.Struct):
    traceEvents: list[JsonEvent]  # noqa: N815 - the format's name


def parse_events(raw: bytes, where: str) -> tuple[list[JsonEvent], tuple[str, ...]]:
    """Parse the events up to where the file is cut off.

    Returns events in the order of the file, and warnings. Raises :class:`~framefit.errors.InputError` for a file of
    another form or with too many objects.
    """
    if (count := raw.count(b"{")) > _MOST_OBJECTS:
        raise InputError(
            f"has {count} objects; at most {_MOST_OBJECTS} are read at once",
            where=where,
            remedy="record a shorter time",
        )
    raw = raw.removeprefix(b"\xef\xbb\xbf").strip()
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if raw.startswith(b"["):
            return msgspec.json.decode(raw, type=list[JsonEvent]), ()
        return msgspec.json.decode(raw, type=_Object).traceEvents, ()
    return _parse_damaged(raw, where)  # cut off, or with an event that is odd


def _parse_damaged(raw: bytes, where: str) -> tuple[list[JsonEvent], tuple[str, ...]]:
    """Parse a file that is not well-formed as far as possible."""
    text = raw.decode("utf-8", "replace")
    begin = 0
    if not text.startswith("["):
        match = re.search(r'"traceEvents"\s*:\s*\[', text)
        if not text.startswith("{") or match is None:
            raise InputError(
                "has neither an array of events nor an object with traceEvents",
                where=where,
                remedy="give a Chrome trace, or a profile that ONNX Runtime wrote",
            )
        begin = match.end() - 1
    events, odd = [], 0
    ended = False
    for data in _elements(text, begin + 1):
        if data is _END:
            ended = True
        elif (event := _make_event(data)) is not None:
            events.append(event)
        else:
            odd += 1
    warnings = []
    if not ended:
        warnings.append(f"the file is cut off or damaged after {len(events) + odd} events; the rest was lost")
    if odd:
        warnings.append(f"{odd} entries are not events and were left out")
    return events, tuple(warnings)


_END = object()
_SPACE = re.compile(r"[\s,]*")


def _elements(text: str, at: int) -> Iterator[Any]:
    """Yield the elements of an array, and :data:`_END` where it ends; stop where it is damaged."""
    decoder = json.JSONDecoder()
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if text.startswith("]", at):
            yield _END
            return
        try:
            data, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield data


def _make_event(data: Any) -> JsonEvent | None:
    """Make an event from an object; fields of wrong types count as absent."""
    if not isinstance(data, dict):
        return None

    def field(name: str, *types: type) -> Any:
        value = data.get(name)
        if isinstance(value, str):
            value = value.encode("utf-8", "replace").decode()  # half a character, which no file could hold
        return value if isinstance(value, types) and not isinstance(value, bool) else None

    arguments = data.get("args")
    return JsonEvent(
        name=field("name", str),
        cat=field("cat", str),
        ph=field("ph", str),
        ts=field("ts", int, float),
        dur=field("dur", int, float),
        pid=field("pid", int, str),
        tid=field("tid", int, str),
        args=msgspec.Raw(json.dumps(arguments).encode()) if isinstance(arguments, dict) else None,
    )


class EventTable:
    """Collects packets; :meth:`trace` puts them in order."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._rows: list[tuple[int, int, int, int, int]] = []  # time, kind, type, core, operation
        self._kinds: dict[str, int] = {}
        self._cores: dict[tuple[int | str | None, int | str | None], int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def core(self, event: JsonEvent) -> int:
        """Return the core number of an event's thread; threads are numbered as they appear."""
        return self.core_of((event.pid, event.tid))

    def core_of(self, thread: tuple[int | str | None, int | str | None]) -> int:
        """Return the core number of a thread, by process and thread."""
        core = self._cores.setdefault(thread, len(self._cores))
        if core >= _MOST_CORES:
            raise InputError(
                f"has more than {_MOST_CORES} threads", where=self._where, remedy="record the threads that matter"
            )
        return core

    @property
    def threads(self) -> list[tuple[int | str | None, int | str | None]]:
        """Threads that sent events, in the order of their core numbers."""
        return list(self._cores)

    def add(self, time_ns: int, kind: str, type_: EventType, core: int, operation: int = -1) -> None:
        """Add a packet."""
        self._rows.append((time_ns, self._kinds.setdefault(kind, len(self._kinds)), int(type_), core, operation))

    def trace(self, *, by_time: bool, meta: TraceMeta) -> Trace:
        """Make a trace in order of time, or in the order of :meth:`add`, which also decides between equal times."""
        rows = np.array(self._rows, np.int64).reshape(-1, 5)
        if by_time:
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return Trace(
            time_ns=rows[:, 0].copy(),
            id=rows[:, 1].astype(np.int32),
            type=rows[:, 2].astype(np.uint8),
            core=rows[:, 3].astype(np.int16),
            operation=rows[:, 4].copy(),
            kinds=tuple(self._kinds),
            meta=meta,
        )


def time_ns(event: JsonEvent) -> int | None:
    """Return the time of an event; ``None`` if it has none, or an impossible one."""
    return _nanoseconds(event.ts)


def duration_ns(event: JsonEvent) -> int | None:
    """Return the duration of an event; ``None`` if it has none, or an impossible one."""
    duration = _nanoseconds(event.dur)
    return None if duration is None or duration < 0 else duration


def _nanoseconds(microseconds: int | float | None) -> int | None:
    if microseconds is None or not -_MOST_US < microseconds < _MOST_US:  # also NaN
        return None
    return 1000 * microseconds if isinstance(microseconds, int) else round(1000 * microseconds)


class LabelTable:
    """Collects packets with what a file says of them in words."""

    def __init__(self, where: str) -> None:
        self.events = EventTable(where)
        self.inferred = 0
        self._labels: dict[Label, int] = {}

    def add(self, time_ns: int, label: Label, type_: EventType, core: int, how: object = None) -> None:
        """Add a packet; an edge that a written profile says was inferred is counted and left out."""
        if is_inferred(how):
            self.inferred += 1
            return
        number = self._labels.setdefault(label, len(self._labels))
        self.events.add(time_ns, label.name, type_, core, number)

    def packets(self, *, by_time: bool, tracks: Mapping[Any, str]) -> NamedTrace:
        """Return the packets; ``tracks`` are names of threads. See :meth:`EventTable.trace`."""
        trace = self.events.trace(by_time=by_time, meta=TraceMeta())
        named = tuple(tracks.get(thread, "") for thread in self.events.threads)
        unnumbered = replace(trace, operation=np.full(len(trace), -1, np.int64))
        return NamedTrace(unnumbered, trace.operation, tuple(self._labels), named)

    def warnings(self) -> list[str]:
        """Return a warning about edges that were left out."""
        if not self.inferred:
            return []
        return [f"{self.inferred} edges that the file says were inferred are not taken for received ones"]


def read_chrome_events(events: list[JsonEvent], where: str) -> tuple[NamedTrace, tuple[str, ...]]:
    """Make packets from B, E and X events: names are kinds, and threads are cores, until a program says better.

    Packets are in the order of the file if it has only B and E. X events are written when they end, so with them the
    order is that of time. Raises :class:`~framefit.errors.InputError` if there is no such event, or too many threads.
    """
    table = LabelTable(where)
    open_: dict[int, list[Label | None]] = {}
    odd = negative = nameless = whole = 0
    ordered = (
        sorted(range(len(events)), key=lambda at: _sort_key(events[at]))
        if _has_complete_events(events)
        else range(len(events))
    )
    for at in ordered:
        event = events[at]
        if event.ph not in ("B", "E", "X"):
            continue
        begin = time_ns(event)
        if begin is None:
            odd += 1
            continue
        core = table.events.core(event)
        arguments = _arguments(event)
        label = Label.of(event.name, event.cat, arguments) if event.name else None
        if event.ph == "X":
            length = duration_ns(event)
            if length is None or label is None:
                negative += length is None
                nameless += length is not None
                continue
            whole += 1
            table.add(begin, label, EventType.START, core, arguments.get("start"))
            table.add(begin + length, label, EventType.END, core, arguments.get("end"))
        elif event.ph == "B":
            open_.setdefault(core, []).append(label)
            if label is None:
                nameless += 1
                continue
            table.add(begin, label, EventType.START, core)
        else:
            label = _close(open_.setdefault(core, []), label)
            if label is None:
                nameless += 1
                continue
            table.add(begin, label, EventType.END, core)
    warnings = [
        f"{count} events {what} and were left out"
        for count, what in (
            (odd, "have no time, or an impossible one,"),
            (negative, "have no duration, or a negative one,"),
            (nameless, "have no name"),
        )
        if count
    ]
    if not len(table.events):
        raise InputError(
            f"none of {len(events)} events is a B, E or X with a name and a time",
            where=where,
            remedy="record durations: Chrome's phases B and E, or X",
        )
    names = {
        (event.pid, event.tid): str(_arguments(event).get("name", ""))
        for event in events
        if event.ph == "M" and event.name == "thread_name"
    }
    return table.packets(by_time=whole > 0, tracks=names), (*warnings, *table.warnings())


def _close(stack: list[Label | None], label: Label | None) -> Label | None:
    """Return what an E event ends, and take it from the events that are open."""
    if label is None:
        return stack.pop() if stack else None
    for at in range(len(stack) - 1, -1, -1):
        begun = stack[at]
        if begun is not None and begun.name == label.name:
            del stack[at:]
            return begun
    return label


def _arguments(event: JsonEvent) -> dict[str, object]:
    if event.args is None:
        return {}
    try:
        return msgspec.json.decode(event.args, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def _has_complete_events(events: list[JsonEvent]) -> bool:
    return any(event.ph == "X" for event in events)


def _sort_key(event: JsonEvent) -> tuple[float, bool, float]:
    """Order events by time; events of no length first, then those that contain others."""
    begin, length = time_ns(event), duration_ns(event)
    return (float(begin or 0), bool(length), -float(length or 0))
