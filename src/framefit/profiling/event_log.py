"""Makes the log of operations from a window of launches, with intervals for inferred edges."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.profile import How, OperationLog
from framefit.profiling.edge_inference import RUNS, ErrorQuantiles, InferredEdges, Window
from framefit.profiling.sequence import Sequence
from framefit.stats import two_sided_z

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_MEASURED, _BETWEEN, _OUTSIDE = int(How.MEASURED), int(How.BETWEEN), int(How.OUTSIDE)
_ARRAYS = [field.name for field in fields(OperationLog) if field.name != "kinds"]
_EMPTY_RUN = 64  # launches in a row without any packet that are still filled in


@njit(cache=True, nogil=True, error_model="numpy")
def enter_packets(window: Any, launches: Any, rows: Any, first: Any, arrival: Any) -> None:
    """Enter received packets into a window.

    ``rows`` (int64, ordered by launch within each core) are packets x (position in the stream, launch, operation, type,
    time), ``launches`` (int64, ascending) those of the window, and ``first`` (int64) is where the operations of each
    program begin. Writes ``seen`` and ``time`` of the window, and to ``arrival`` (int64, operations x 2) the positions
    in the stream.
    """
    at = 0
    for row in range(len(rows)):
        launch = rows[row, 1]
        if launches[at] > launch:
            at = 0
        if launches[at] < launch:
            at = min(at + launch - launches[at], len(launches) - 1)
            while launches[at] > launch:  # some between are left out
                at -= 1
        place, edge = window.base[at] + rows[row, 2] - first[window.program[at]], rows[row, 3]
        window.seen[place, edge] = True
        window.time[place, edge] = rows[row, 4]
        arrival[place, edge] = rows[row, 0]
        if window.seen[place, 1 - edge] and window.time[place, 1] < window.time[place, 0]:
            window.seen[place, 1 - edge] = False  # of a way that was given up for this one
            arrival[place, 1 - edge] = -1


def fill_launch_gaps(seen: Ints, first: int = -1) -> tuple[Ints, int]:
    """Return launches that left packets and those between them, in order, from ``first`` on (-1: the least seen).

    Also returns how many launches are left out because they lie in a run that is too long to be filled: a time stamp
    that jumped ahead would add any number of them.
    """
    low, flags = _occurring(seen)
    there = low + np.flatnonzero(flags) if len(flags) else np.unique(seen)
    if first >= 0:
        there = np.unique(np.append(there, first)) if len(there) and there[0] - first <= _EMPTY_RUN else there
    gaps = np.diff(there) - 1
    wide = gaps > _EMPTY_RUN
    steps = np.where(wide, 1, gaps + 1)
    parts = np.repeat(there[:-1], steps) + (np.arange(int(steps.sum())) - np.repeat(np.cumsum(steps) - steps, steps))
    return np.append(parts, there[-1:]).astype(np.int64), int(gaps[wide].sum())


@njit(cache=True, nogil=True, error_model="numpy")
def _occurring(seen: Any) -> Any:
    """Return the least of some numbers, and flags of those that occur; no flags where they lie far apart."""
    low, high = seen[0], seen[0]
    for value in seen:
        low, high = min(low, value), max(high, value)
    if high - low > 4 * len(seen) + 1000:
        return low, np.zeros(0, np.bool_)
    flags = np.zeros(high - low + 1, np.bool_)
    for value in seen:
        flags[value - low] = True
    return low, flags


def make_log(
    window: Window,
    edges: InferredEdges,
    quantiles: ErrorQuantiles | None,
    covered: Bools,
    arrival: Ints,
    launches: Ints,
    count: int,
    sequence: Sequence,
    recorded: Bools,
    confidence: float,
    origin_ns: int,
) -> tuple[OperationLog, int, int]:
    """Make the log of the first ``count`` launches of a window with all times.

    ``quantiles`` of the errors may be ``None`` (normal errors). ``covered`` (bool) marks the operations that the trace
    covers, empty for all; ``arrival`` (int64, operations x 2) holds positions of packets or -1; ``recorded`` (bool)
    marks operations of the sequence that send packets; times count from ``origin_ns``. Returns the log, the number of
    its inferred edges, and the number of these whose interval is not calibrated.
    """
    if quantiles is None:
        nothing = np.zeros((len(RUNS) + 1, 2, int(sequence.kind.max(initial=0)) + 1))
        z = two_sided_z(confidence)
        quantiles = ErrorQuantiles(nothing - z, nothing + z, nothing > 0)
    size = int(window.base[count])
    times, how, events = np.empty((3, 2, size), np.int64), np.empty((2, size), np.uint8), np.empty((2, size), np.int64)
    inference, program, operation = np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size, np.int32)
    kind, core, unit = np.empty(size, np.int32), np.empty(size, np.int16), np.empty(size, np.int16)
    size, lost, unsure = _write_operations(
        window, edges, RUNS, quantiles.low, quantiles.high, quantiles.calibrated, covered, arrival, launches, count,
        sequence.first, sequence.kind, sequence.core, sequence.unit, recorded, origin_ns, inference, program, operation,
        kind, core, unit, times[0], times[1], times[2], how, events,
    )  # fmt: skip
    (start, end), (start_low, end_low), (start_high, end_high) = times
    columns = (
        inference, program, operation, kind, core, unit, start, end, *how, start_low, start_high, end_low, end_high,
        *events,
    )  # fmt: skip
    named: dict[str, Any] = {name: column[:size] for name, column in zip(_ARRAYS, columns, strict=True)}
    return OperationLog(**named, kinds=sequence.kinds), lost, unsure


@njit(cache=True, nogil=True, error_model="numpy")
def _write_operations(
    window: Any, edges: Any, runs: Any, below: Any, above: Any, calibrated: Any, covered: Any, arrival: Any,
    launches: Any, count: Any, first: Any, kinds: Any, cores: Any, units: Any, recorded: Any, origin_ns: Any,
    inference: Any, program: Any, operation: Any, kind: Any, core: Any, unit: Any, times: Any, lows: Any, highs: Any,
    how: Any, events: Any,
) -> Any:  # fmt: skip
    """Write operations of which anything is known; return numbers of them, inferred edges and uncalibrated ones."""
    seen, time, base, programs, before, after = (
        window.seen, window.time, window.base, window.program, edges.before, edges.after,
    )  # fmt: skip
    hard_low, hard_high, run, deviation = edges.low, edges.high, edges.run, edges.deviation
    at, lost, unsure = 0, 0, 0
    for launch in range(count):
        for here in range(base[launch], base[launch + 1]):
            local = here - base[launch]
            op = first[programs[launch]] + local
            if not recorded[op] or (len(covered) > 0 and not covered[here]):
                continue
            if not ((before[here, 0] or after[here, 0]) and (before[here, 1] or after[here, 1])):
                continue
            kind_id = kinds[op]
            inference[at], program[at], operation[at] = launches[launch], programs[launch], local
            kind[at], core[at], unit[at] = kind_id, cores[op], units[op]
            for edge in range(2):
                value = time[here, edge]
                events[edge, at], times[edge, at] = arrival[here, edge], value + origin_ns
                if seen[here, edge]:
                    lows[edge, at] = highs[edge, at] = value + origin_ns
                    how[edge, at] = _MEASURED
                    continue
                class_ = 0
                while class_ < len(runs) and runs[class_] < run[here, edge]:
                    class_ += 1
                spread, least, greatest = deviation[here, edge], hard_low[here, edge], hard_high[here, edge]
                earliest = np.int64(round(value + below[class_, edge, kind_id] * spread))
                latest = np.int64(round(value + above[class_, edge, kind_id] * spread))
                lows[edge, at] = min(min(max(earliest, least), greatest), value) + origin_ns
                highs[edge, at] = max(min(max(latest, least), greatest), value) + origin_ns
                between = before[here, edge] and after[here, edge]
                how[edge, at] = _BETWEEN if between else _OUTSIDE
                lost += 1
                unsure += not (between and calibrated[class_, edge, kind_id])
            at += 1
    return at, lost, unsure


@njit(cache=True, nogil=True, error_model="numpy")
def write_matches(
    rows: Any, at: Any, arrival: Any, packet: Any, launch: Any, event: Any, time: Any, operation: Any, type_: Any,
    least: Any,
) -> Any:  # fmt: skip
    """Write matches from launch ``least`` on to ``rows`` of :func:`enter_packets`, from ``at`` on; return the end."""
    for match in range(len(packet)):
        if launch[match] < least:
            continue
        rows[at, 0] = arrival[packet[match]]
        rows[at, 1] = launch[match]
        rows[at, 2] = operation[event[match]]
        rows[at, 3] = type_[event[match]]
        rows[at, 4] = np.int64(time[match])
        at += 1
    return at


def empty_log(kinds: tuple[str, ...]) -> OperationLog:
    """Make a log without operations."""
    types = {
        "program": "i4",
        "operation": "i4",
        "kind": "i4",
        "core": "i2",
        "unit": "i2",
        "start_how": "u1",
        "end_how": "u1",
    }
    return OperationLog(**{name: np.zeros(0, types.get(name, "i8")) for name in _ARRAYS}, kinds=kinds)


def concatenate_logs(logs: Many[OperationLog]) -> OperationLog:
    """Concatenate logs of one trace."""
    some = [log for log in logs if len(log)] or list(logs[:1])
    if len(some) == 1:
        return some[0]
    columns: dict[str, Any] = {name: np.concatenate([getattr(log, name) for log in some]) for name in _ARRAYS}
    return replace(some[0], **columns)
