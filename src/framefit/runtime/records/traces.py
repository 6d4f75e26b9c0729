"""Traces of a run in one piece."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.runtime.records.aside import Aside

__all__ = ["Packets", "in_time_order", "joined"]

_MOST_PACKETS = 1 << 22  # that are kept, 23 bytes each
_MOST_IN_MEMORY = 1 << 12
_COLUMNS = ("time_ns", "id", "type", "core", "operation")


class Packets:
    """What a device's trace unit has recorded; of a long run the last part is kept, most of it in a file.

    Args:
        events: gives what came since it was last asked.
    """

    def __init__(self, events: Callable[[], Trace]) -> None:
        self._events = events
        self._aside, self._at = Aside(), 0
        self._parts: deque[_Part] = deque()
        self._latest: list[Trace] = []
        self._overwritten = 0

    def collect(self) -> None:
        """Take what there is."""
        self._latest.append(self._events())
        if sum(map(len, self._latest)) < _MOST_IN_MEMORY:
            return
        self._parts.append(self._laid_aside(joined(self._latest, 0)))
        self._latest = []
        while sum(part.packets for part in self._parts) > _MOST_PACKETS:
            self._overwritten += self._parts.popleft().packets

    def trace(self) -> Trace:
        """All that is kept, losses marked where they were noticed."""
        return joined([*map(self._read, self._parts), *self._latest], self._overwritten)

    def _laid_aside(self, trace: Trace) -> _Part:
        columns = [getattr(trace, name) for name in _COLUMNS]
        data = b"".join(column.tobytes() for column in columns)
        # What is kept fills half of that: where the file begins anew, its first part is not needed any more.
        at = self._at if self._at < 2 * _MOST_PACKETS * len(data) // max(len(trace), 1) else 0
        if not self._aside.put(data, at):
            return _Part(len(trace), trace)
        self._at = at + len(data)
        return _Part(len(trace), _with(trace, [column[:0].copy() for column in columns]), at)

    def _read(self, part: _Part) -> Trace:
        if part.at is None:
            return part.trace
        found, at = list[npt.NDArray[Any]](), part.at
        for name in _COLUMNS:
            kind = getattr(part.trace, name).dtype
            found.append(np.frombuffer(self._aside.read(part.packets * kind.itemsize, at), kind))
            at += found[-1].nbytes
        return _with(part.trace, found)


class _Part(NamedTuple):
    """Some packets; a trace without any where they were laid aside."""

    packets: int
    trace: Trace
    at: int | None = None


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
    counts = np.cumsum([0, *(len(trace) for trace in traces)])
    last = traces[-1]
    lost = [trace.meta.lost_events for trace in traces if trace.meta.lost_events is not None]
    overwritten += sum(trace.meta.overwritten_events for trace in traces)
    return Trace(
        time_ns=np.concatenate([trace.time_ns for trace in traces]),
        id=np.concatenate([trace.id for trace in traces]),
        type=np.concatenate([trace.type for trace in traces]),
        core=np.concatenate([trace.core for trace in traces]),
        operation=np.concatenate([trace.operation for trace in traces]),
        kinds=last.kinds,
        loss_after=np.concatenate([t.loss_after + c for t, c in zip(traces, counts[:-1], strict=True)]),
        meta=msgspec.structs.replace(
            last.meta, lost_events=sum(lost) if lost else None, overwritten_events=overwritten
        ),
    )


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
