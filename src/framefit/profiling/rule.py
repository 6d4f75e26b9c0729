"""Lost events put in by rule, at fixed offsets from the events around them.

The rules (specification of the profiler, "Compensation by rule"):

1. A lost START is put at the event that follows it, usually its END, less t1.
2. A lost END is put at the start of the overlap, where an operation on a unit that excludes this
   one starts before the event that follows; else at the event that follows, less t2.
3. Of two lost in a row (a START and an END), or more, each is put at the first event received after
   the gap, less t3 x index; the index counts back from that event.

"The event that follows" is the next one that the program expects on the same core, because only one
core's operations have an order among them. Rules never put an event before the one that was
received before it. Where a core sent nothing more, the trace's last event stands in for the one
that follows.

An interval of an inferred edge spans the events received before and after it: it is certain, if
the matching is, and wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.profile import How, OperationLog
from framefit.core.program import RuleOffsets
from framefit.profiling.matching import CoreRow, Matched, match_in_order
from framefit.profiling.rebuilt import Rebuilt
from framefit.profiling.sequence import Sequence

__all__ = ["place_lost", "rebuild"]

Ints = npt.NDArray[np.int64]


def rebuild(trace: Trace, sequence: Sequence, offsets: Mapping[str, RuleOffsets]) -> Rebuilt:
    """Match the packets in order, and put in what was lost, by rule.

    Args:
        trace: as it came.
        sequence: made with the trace's kinds.
        offsets: by kind of operation; a kind that is missing has 10 ns each.
    """
    return place_lost(trace, sequence, offsets, match_in_order(trace, sequence))


@dataclass(frozen=True)
class _Edges:
    """Expected packets of one core, START and END of each operation in turn, as far as the trace covers them.

    Attributes:
        place: of each operation in the core's row.
        event: position of the packet in the trace, -1: lost.
        time_ns, how, low_ns, high_ns: as in :class:`OperationLog`.
    """

    row: CoreRow
    place: Ints
    event: Ints
    time_ns: Ints
    how: npt.NDArray[np.uint8]
    low_ns: Ints
    high_ns: Ints


def place_lost(trace: Trace, sequence: Sequence, offsets: Mapping[str, RuleOffsets], matched: Matched) -> Rebuilt:
    """Put in what was lost of a trace whose packets have been matched.

    Args:
        trace: as it came.
        sequence: made with the trace's kinds.
        offsets: by kind of operation; a kind that is missing has 10 ns each.
        matched: where each packet belongs.
    """
    each = [offsets.get(kind, RuleOffsets()) for kind in sequence.kinds]
    t1, t2, t3 = (np.array([getattr(one, name) for one in each], np.int64) for name in ("t1", "t2", "t3"))
    covered = _covered(trace, sequence, matched)
    edges = [_of_core(trace, matched, row, places) for row, places in covered]
    for core in edges:
        kind = np.repeat(sequence.kind[core.row.operation_of(core.place)], 2)
        _single(core, t1[kind], t2[kind])
        _several(core, t3[kind])
    for core in edges:
        _end_overlaps(core, [other for other in edges if other is not core and _excludes(sequence, core, other)])
    silent = set(np.unique(sequence.core).tolist()) - {row.core for row, _ in covered}
    warnings = [
        f"core {core} sent nothing that the program expects of it: its operations are not in the log"
        for core in sorted(silent)
        if len(trace)
    ]
    return Rebuilt(
        log=_log(edges, sequence),
        fate=matched.fate,
        out_of_order=matched.out_of_order,
        calibrated=False,
        warnings=tuple(warnings),
    )


def _covered(trace: Trace, sequence: Sequence, matched: Matched) -> list[tuple[CoreRow, Ints]]:
    """Each core's operations from the first to the last that the trace has a packet of, in the program's order."""
    if not matched.rows:
        return []
    count = len(sequence.operations)
    seen = [np.unique(matched.place[(trace.core == row.core) & (matched.place >= 0)]) for row in matched.rows]
    order = [
        row.launch_of(at) * count + row.operation_of(at)
        for row, places in zip(matched.rows, seen, strict=True)
        for at in (places[[0, -1]],)
    ]
    first, last = min(int(one[0]) for one in order), max(int(one[1]) for one in order)
    covered = []
    for row in matched.rows:
        if row.launch is None:
            least, most = (at // count * len(row.operation) for at in (first, last))
            places = np.arange(least, most + len(row.operation))
        else:
            places = np.arange(
                np.searchsorted(row.launch, first // count), np.searchsorted(row.launch, last // count, "right")
            )
        key = row.launch_of(places) * count + row.operation_of(places)
        covered.append((row, places[(key >= first) & (key <= last)]))
    return covered


def _of_core(trace: Trace, matched: Matched, row: CoreRow, place: Ints) -> _Edges:
    """The edges of a core with what was measured of them, and the bounds of what was not."""
    size = 2 * len(place)
    mine = np.flatnonzero((trace.core == row.core) & (matched.place >= 0))
    at = 2 * (matched.place[mine] - place[0]) + trace.type[mine]
    event = np.full(size, -1, np.int64)
    event[at] = mine
    received = event >= 0
    time_ns = np.where(received, matched.time_ns[event], 0)
    before = np.maximum.accumulate(np.where(received, np.arange(size), -1))
    after = np.minimum.accumulate(np.where(received, np.arange(size), size)[::-1])[::-1]
    known = matched.time_ns[matched.place >= 0]
    low = np.where(before >= 0, time_ns[before], known.min())
    high = np.where(after < size, time_ns[np.minimum(after, size - 1)], known.max())
    return _Edges(row, place, event, time_ns, np.full(size, How.MEASURED, np.uint8), low, np.maximum(low, high))


def _gaps(core: _Edges) -> tuple[Ints, Ints]:
    """The first lost edge of each gap, and the first received one after it."""
    lost = np.concatenate([[False], core.event < 0, [False]]).astype(np.int8)
    steps = np.diff(lost)
    return np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)


def _single(core: _Edges, t1: Ints, t2: Ints) -> None:
    """Rules 1 and 2, without the overlap."""
    first, after = _gaps(core)
    one = first[after - first == 1]
    start = one % 2 == 0
    core.time_ns[one] = np.maximum(core.high_ns[one] - np.where(start, t1[one], t2[one]), core.low_ns[one])
    core.how[one] = np.where(start, How.T1, How.T2)


def _several(core: _Edges, t3: Ints) -> None:
    """Rule 3; where offsets differ from kind to kind, an edge is never later than the one after it."""
    first, after = _gaps(core)
    several = after - first > 1
    first, after = first[several], after[several]
    size = after - first
    lost = np.repeat(after, size) - _back(size)
    back = core.high_ns[lost] - t3[lost] * _back(size)
    core.time_ns[lost], core.how[lost] = back, How.T3
    disordered = np.unique(np.searchsorted(after, lost[:-1][(np.diff(back) < 0) & (np.diff(lost) == 1)], "right"))
    for gap in disordered.tolist():
        here = slice(first[gap], after[gap])
        core.time_ns[here] = np.minimum.accumulate(core.time_ns[here][::-1])[::-1]
    core.time_ns[lost] = np.maximum(core.time_ns[lost], core.low_ns[lost])


def _back(size: Ints) -> Ints:
    """Indices that count back to 1 at the end of each gap."""
    return np.repeat(np.cumsum(size), size) - np.arange(int(size.sum()))


def _excludes(sequence: Sequence, core: _Edges, other: _Edges) -> bool:
    here, there = np.searchsorted(sequence.cores, (core.row.core, other.row.core))
    return bool(sequence.exclusive[here, there])


def _end_overlaps(core: _Edges, others: list[_Edges]) -> None:
    """Rule 2: an operation of which only the END was lost ends where one that excludes it starts.

    STARTs that count as seen are those received, and those of which the END was received.
    """
    at = np.flatnonzero(core.how == How.T2)
    at = at[core.event[at - 1] >= 0]  # the END of an operation that was running when the trace began has no START
    started, until = core.time_ns[at - 1], core.high_ns[at]
    for other in others:
        starts = np.arange(0, len(other.event), 2)
        seen = (other.event[starts] >= 0) | (other.how[starts] == How.T1)
        times = np.sort(other.time_ns[starts[seen]])
        place = np.searchsorted(times, started, "right")
        begins = times[np.minimum(place, len(times) - 1)] if len(times) else until
        overlaps = (place < len(times)) & (begins < until)
        core.time_ns[at[overlaps]] = begins[overlaps]
        core.how[at[overlaps]] = How.OVERLAP
        until = np.where(overlaps, begins, until)


def _log(edges: list[_Edges], sequence: Sequence) -> OperationLog:
    """All cores' operations in the program's order."""

    def joined(parts: list[Ints]) -> Ints:
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)

    inference = joined([core.row.launch_of(core.place) for core in edges])
    position = joined([core.row.operation_of(core.place) for core in edges])
    program = np.searchsorted(sequence.first, position, "right") - 1
    order = np.lexsort((position, inference))

    def both(name: str) -> tuple[Ints, Ints]:
        values = joined([getattr(core, name) for core in edges])
        return values[0::2][order], values[1::2][order]

    (start, end), (start_how, end_how), (start_event, end_event) = both("time_ns"), both("how"), both("event")
    (start_low, end_low), (start_high, end_high) = both("low_ns"), both("high_ns")
    position, inference, program = position[order], inference[order], program[order]
    return OperationLog(
        inference=inference,
        program=program.astype(np.int32),
        operation=(position - sequence.first[program]).astype(np.int32),
        kind=sequence.kind[position],
        core=sequence.core[position],
        start_ns=start,
        end_ns=end,
        start_how=start_how.astype(np.uint8),
        end_how=end_how.astype(np.uint8),
        start_low_ns=start_low,
        start_high_ns=start_high,
        end_low_ns=end_low,
        end_high_ns=end_high,
        start_event=start_event,
        end_event=end_event,
        kinds=sequence.kinds,
    )
