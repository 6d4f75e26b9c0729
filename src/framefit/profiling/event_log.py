"""From a window of launches to the log of their operations, with intervals for what was inferred.

The operations of a trace that lost nothing: START paired with END, and the launch of each pair.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import fields, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import EventType, Trace, unwrapped_ns
from framefit.core.profile import How, OperationLog
from framefit.core.program import Launches, Program
from framefit.profiling.calibration import RUNS, Bands
from framefit.profiling.edge_inference import Found, Window
from framefit.profiling.sequence import Sequence

__all__ = ["empty_log", "enter", "executions", "filled_launches", "joined_logs", "lay_out", "log_of"]


Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_MEASURED, _BETWEEN, _OUTSIDE = int(How.MEASURED), int(How.BETWEEN), int(How.OUTSIDE)
_ARRAYS = [field.name for field in fields(OperationLog) if field.name != "kinds"]
_EMPTY_RUN = 64  # launches in a row without any packet that are still filled in


@njit(cache=True, nogil=True, error_model="numpy")
def lay_out(window: Any, launches: Any, rows: Any, first: Any, arrival: Any) -> None:
    """Enter received packets.

    Args:
        window: of these launches; ``seen`` and ``time`` are written.
        launches: int64, ascending.
        rows: int64, packets x (position in the stream, launch, operation, type, time).
        first: int64, where each program's operations begin.
        arrival: int64, operations x 2: positions in the stream, written where there is one.
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


def filled_launches(seen: Ints, first: int = -1) -> tuple[Ints, int]:
    """Launches that left packets, and those between them, in order.

    Args:
        seen: int64, launches of packets.
        first: where to begin; -1: with the least one seen.

    Returns:
        The launches, and how many are left out because they lie in a run that is too long to be
        filled in: a time stamp that jumped ahead would make up any number of them.
    """
    low, flags = _present(seen)
    there = low + np.flatnonzero(flags) if len(flags) else np.unique(seen)
    if first >= 0:
        there = np.unique(np.append(there, first)) if len(there) and there[0] - first <= _EMPTY_RUN else there
    gaps = np.diff(there) - 1
    wide = gaps > _EMPTY_RUN
    steps = np.where(wide, 1, gaps + 1)
    parts = np.repeat(there[:-1], steps) + (np.arange(int(steps.sum())) - np.repeat(np.cumsum(steps) - steps, steps))
    return np.append(parts, there[-1:]).astype(np.int64), int(gaps[wide].sum())


@njit(cache=True, nogil=True, error_model="numpy")
def _present(seen: Any) -> Any:
    """The least of some numbers, and which of it and those after it are there; nothing where they lie far apart."""
    low, high = seen[0], seen[0]
    for value in seen:
        low, high = min(low, value), max(high, value)
    if high - low > 4 * len(seen) + 1000:
        return low, np.zeros(0, np.bool_)
    flags = np.zeros(high - low + 1, np.bool_)
    for value in seen:
        flags[value - low] = True
    return low, flags


def log_of(
    window: Window,
    found: Found,
    bands: Bands | None,
    covered: Bools,
    arrival: Ints,
    launches: Ints,
    count: int,
    sequence: Sequence,
    recorded: Bools,
    confidence: float,
    origin_ns: int,
) -> tuple[OperationLog, int, int]:
    """The operations of the first ``count`` launches of a window.

    Args:
        window: with all times.
        found: of it.
        bands: of the errors; ``None``: normal ones.
        covered: bool, operations of the window that the trace tells of; empty: all.
        arrival: int64, operations x 2: positions of their packets, -1 for none.
        launches: int64, the window's.
        count: how many of them.
        sequence: of the program.
        recorded: bool, of its operations: whether they send packets.
        confidence: of the intervals.
        origin_ns: what times count from.

    Returns:
        The log, how many of its edges are inferred, and of how many of these the interval is not calibrated.
    """
    if bands is None:
        nothing = np.zeros((len(RUNS) + 1, 2, int(sequence.kind.max(initial=0)) + 1))
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        bands = Bands(nothing - z, nothing + z, nothing > 0)
    size = int(window.base[count])
    times, how, events = np.empty((3, 2, size), np.int64), np.empty((2, size), np.uint8), np.empty((2, size), np.int64)
    inference, program, operation = np.empty(size, np.int64), np.empty(size, np.int32), np.empty(size, np.int32)
    kind, core = np.empty(size, np.int32), np.empty(size, np.int16)
    size, lost, unsure = _write(
        window, found, RUNS, bands.low, bands.high, bands.sure, covered, arrival, launches, count, sequence.first,
        sequence.kind, sequence.core, recorded, origin_ns, inference, program, operation, kind, core, times[0],
        times[1], times[2], how, events,
    )  # fmt: skip
    (start, end), (start_low, end_low), (start_high, end_high) = times
    columns = (
        inference, program, operation, kind, core, start, end, *how, start_low, start_high, end_low, end_high, *events,
    )  # fmt: skip
    named: dict[str, Any] = {name: column[:size] for name, column in zip(_ARRAYS, columns, strict=True)}
    return OperationLog(**named, kinds=sequence.kinds), lost, unsure


@njit(cache=True, nogil=True, error_model="numpy")
def _write(
    window: Any, found: Any, runs: Any, below: Any, above: Any, calibrated: Any, covered: Any, arrival: Any,
    launches: Any, count: Any, first: Any, kinds: Any, cores: Any, recorded: Any, origin_ns: Any, inference: Any,
    program: Any, operation: Any, kind: Any, core: Any, times: Any, lows: Any, highs: Any, how: Any, events: Any,
) -> Any:  # fmt: skip
    """Write operations of which anything is known; how many, inferred edges, and such without a sure interval."""
    seen, time, base, programs, before, after = (
        window.seen, window.time, window.base, window.program, found.before, found.after,
    )  # fmt: skip
    hard_low, hard_high, run, deviation = found.low, found.high, found.run, found.deviation
    at, lost, unsure = 0, 0, 0
    for launch in range(count):
        for here in range(base[launch], base[launch + 1]):
            local = here - base[launch]
            op = first[programs[launch]] + local
            if not recorded[op] or (len(covered) > 0 and not covered[here]):
                continue
            if not ((before[here, 0] or after[here, 0]) and (before[here, 1] or after[here, 1])):
                continue
            one = kinds[op]
            inference[at], program[at], operation[at] = launches[launch], programs[launch], local
            kind[at], core[at] = one, cores[op]
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
                earliest = np.int64(round(value + below[class_, edge, one] * spread))
                latest = np.int64(round(value + above[class_, edge, one] * spread))
                lows[edge, at] = min(min(max(earliest, least), greatest), value) + origin_ns
                highs[edge, at] = max(min(max(latest, least), greatest), value) + origin_ns
                between = before[here, edge] and after[here, edge]
                how[edge, at] = _BETWEEN if between else _OUTSIDE
                lost += 1
                unsure += not (between and calibrated[class_, edge, one])
            at += 1
    return at, lost, unsure


@njit(cache=True, nogil=True, error_model="numpy")
def enter(
    rows: Any, at: Any, arrival: Any, packet: Any, launch: Any, event: Any, time: Any, operation: Any, type_: Any,
    least: Any,
) -> Any:  # fmt: skip
    """Write matches of launches from ``least`` on to ``rows``, see :func:`lay_out`, from ``at`` on; the next row."""
    for one in range(len(packet)):
        if launch[one] < least:
            continue
        rows[at, 0] = arrival[packet[one]]
        rows[at, 1] = launch[one]
        rows[at, 2] = operation[event[one]]
        rows[at, 3] = type_[event[one]]
        rows[at, 4] = np.int64(time[one])
        at += 1
    return at


def empty_log(kinds: tuple[str, ...]) -> OperationLog:
    """No operations."""
    types = {"program": "i4", "operation": "i4", "kind": "i4", "core": "i2", "start_how": "u1", "end_how": "u1"}
    return OperationLog(**{name: np.zeros(0, types.get(name, "i8")) for name in _ARRAYS}, kinds=kinds)


def joined_logs(logs: Many[OperationLog]) -> OperationLog:
    """One log after the other."""
    some = [log for log in logs if len(log)] or list(logs[:1])
    if len(some) == 1:
        return some[0]
    columns: dict[str, Any] = {name: np.concatenate([getattr(log, name) for log in some]) for name in _ARRAYS}
    return replace(some[0], **columns)


_Integers = npt.NDArray[np.integer]
_MOST_NUMBERS = 1 << 20  # of kinds or operations; keys of three such numbers fit 64 bits


def executions(trace: Trace, program: Program, launches: Launches) -> OperationLog:
    """Pair the events of a trace, by start, and find the launch of each pair.

    Unpaired events are left out. The i-th START of a core belongs to the i-th operation
    that the launches put there; this holds only when nothing was lost, so where any
    number, kind or operation disagrees, every inference, program and operation is -1.
    """
    time_ns = unwrapped_ns(trace.time_ns, trace.meta)
    in_time = np.all(time_ns[1:] >= time_ns[:-1])
    order = np.arange(len(trace)) if in_time else np.argsort(time_ns, kind="stable")
    key = _dense_key(trace)
    by_key = order[np.argsort(key[order], kind="stable")]
    kind_of_event, key = trace.type[by_key], key[by_key]
    pair = (kind_of_event[:-1] == EventType.START) & (kind_of_event[1:] == EventType.END) & (key[:-1] == key[1:])
    starts, ends = by_key[:-1][pair], by_key[1:][pair]
    by_start = np.argsort(time_ns[starts], kind="stable")
    starts, ends = starts[by_start], ends[by_start]
    start_ns, end_ns = time_ns[starts], time_ns[ends]
    measured = np.full(len(starts), How.MEASURED, np.uint8)
    launch, operation = (found[starts] for found in _identified(trace, order, program, launches))
    which = np.full(len(starts), -1, np.int32)
    which[launch >= 0] = launches.program[launch[launch >= 0]]
    return OperationLog(
        inference=launch,
        program=which,
        operation=operation.astype(np.int32),
        kind=trace.id[starts],
        core=trace.core[starts],
        start_ns=start_ns,
        end_ns=end_ns,
        start_how=measured,
        end_how=measured,
        start_low_ns=start_ns,
        start_high_ns=start_ns,
        end_low_ns=end_ns,
        end_high_ns=end_ns,
        start_event=starts,
        end_event=ends,
        kinds=trace.kinds,
    )


def _dense_key(trace: Trace) -> _Integers:
    """One small number for (core, id, operation); uint16 where it fits, which numpy sorts by radix."""
    parts = (trace.core, trace.id, trace.operation)
    key = np.zeros(len(trace), np.int64)
    count = 1
    for part in parts:
        numbers: _Integers = part
        if int(part.max(initial=0)) - int(part.min(initial=0)) > _MOST_NUMBERS:  # of a damaged trace: their ranks do
            numbers = np.unique(part, return_inverse=True)[1]
        low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
        key = key * (high - low + 1) + (numbers - np.int64(low))
        count *= high - low + 1
    return key.astype(np.uint16) if count <= 1 << 16 else key


def _identified(
    trace: Trace, order: npt.NDArray[np.int64], program: Program, launches: Launches
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Launch and operation of every START event; -1 elsewhere, and everywhere when something was lost."""
    launch, index = np.full(len(trace), -1), np.full(len(trace), -1)
    core_of_unit = {unit.name: unit.core for unit in program.units}
    id_of_kind = {kind: at for at, kind in enumerate(trace.kinds)}
    operations = [[op for group in segment.groups for op in group.operations] for segment in program.programs]
    counts = np.array([len(ops) for ops in operations], np.int64)
    flat = [op for ops in operations for op in ops]
    facts = np.array(
        [(core_of_unit.get(op.unit, -1), id_of_kind.get(op.kind, -1), op.index) for op in flat], np.int64
    ).reshape(-1, 3)
    starts = order[trace.type[order] == EventType.START]
    per_launch = counts[launches.program]
    if len(trace.loss_after) or trace.meta.lost_events or per_launch.sum() != len(starts):
        return launch, index
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
        launch[starts], index[starts] = ordinal[told], operation
    return launch, index
