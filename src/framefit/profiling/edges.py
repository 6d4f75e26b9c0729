"""From a window of launches to the log of their operations, with intervals for what was inferred."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, fields, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.profile import How, OperationLog
from framefit.profiling.between import Times, Window, fill
from framefit.profiling.calibration import RUNS, Bands
from framefit.profiling.estimates import operations_of
from framefit.profiling.precedence import Precedence
from framefit.profiling.sequence import Sequence

__all__ = ["Edges", "empty_log", "filled", "filled_launches", "joined_logs", "lay_out", "log_of"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_MEASURED, _BETWEEN, _OUTSIDE = int(How.MEASURED), int(How.BETWEEN), int(How.OUTSIDE)
_EMPTY_RUN = 64  # launches in a row without any packet that are still filled in


@dataclass(frozen=True)
class Edges:
    """STARTs and ENDs of a window; arrays of operations x 2.

    Attributes:
        low, high: int64, interval of the time.
        how: uint8, :class:`~framefit.core.profile.How`.
        sure: bool, whether the interval is calibrated (or the time measured).
        known: bool, of operations: whether anything is known of their times.
        operation: int64, of operations: which of the sequence.
    """

    low: Ints
    high: Ints
    how: npt.NDArray[np.uint8]
    sure: Bools
    known: Bools
    operation: Ints


def filled(
    window: Window, precedence: Precedence, times: Times, bands: Bands | None, kind: Ints, confidence: float
) -> Edges:
    """Fill in the edges of ``window`` that were not received, in place, and say how far off they may be.

    Args:
        window: with what was received.
        precedence: of the program.
        times: of its operations.
        bands: of the errors; ``None``: normal ones.
        kind: int64, of each operation of the sequence.
        confidence: of the intervals.
    """
    deviation, least, greatest, run, before, after = fill(window, precedence, times)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    if bands is None:
        nothing = np.zeros((len(RUNS) + 1, 2, int(kind.max(initial=0)) + 1))
        bands = Bands(nothing - z, nothing + z, nothing > 0)
    operation = operations_of(window, precedence)
    how, sure = np.empty(window.seen.shape, np.uint8), np.empty(window.seen.shape, np.bool_)
    _bound(
        window.seen, window.time, deviation, least, greatest, run, before & after, kind[operation], RUNS, bands.low,
        bands.high, bands.sure, how, sure,
    )  # fmt: skip
    return Edges(least, greatest, how, sure, np.asarray((before | after).all(axis=1)), operation)


@njit(cache=True, nogil=True, error_model="numpy")
def _bound(
    seen: Any, time: Any, deviation: Any, low: Any, high: Any, run: Any, between: Any, kind: Any, runs: Any,
    below: Any, above: Any, calibrated: Any, how: Any, sure: Any,
) -> None:  # fmt: skip
    """Narrow ``low`` and ``high``, the hard bounds, to intervals; how each edge is known, and whether for sure."""
    for at in range(len(seen)):
        for edge in range(2):
            here = time[at, edge]
            if seen[at, edge]:
                low[at, edge] = high[at, edge] = here
                how[at, edge], sure[at, edge] = _MEASURED, True
                continue
            class_ = 0
            while class_ < len(runs) and runs[class_] < run[at, edge]:
                class_ += 1
            one, spread = kind[at], deviation[at, edge]
            earliest = np.int64(round(here + below[class_, edge, one] * spread))
            latest = np.int64(round(here + above[class_, edge, one] * spread))
            least, greatest = low[at, edge], high[at, edge]
            low[at, edge] = min(min(max(earliest, least), greatest), here)
            high[at, edge] = max(min(max(latest, least), greatest), here)
            how[at, edge] = _BETWEEN if between[at, edge] else _OUTSIDE
            sure[at, edge] = between[at, edge] and calibrated[class_, edge, one]


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


def filled_launches(seen: Ints, first: int = -1) -> tuple[Ints, int]:
    """Launches that left packets, and those between them, in order.

    Args:
        seen: int64, launches of packets.
        first: where to begin; -1: with the least one seen.

    Returns:
        The launches, and how many are left out because they lie in a run that is too long to be
        filled in: a time stamp that jumped ahead would make up any number of them.
    """
    low = int(seen.min())
    if int(seen.max()) - low <= 4 * len(seen) + 1000:
        flags = np.zeros(int(seen.max()) - low + 1, np.bool_)
        flags[seen - low] = True
        there = low + np.flatnonzero(flags)
    else:
        there = np.unique(seen)
    if first >= 0:
        there = np.unique(np.append(there, first)) if len(there) and there[0] - first <= _EMPTY_RUN else there
    gaps = np.diff(there) - 1
    wide = gaps > _EMPTY_RUN
    steps = np.where(wide, 1, gaps + 1)
    parts = np.repeat(there[:-1], steps) + (np.arange(int(steps.sum())) - np.repeat(np.cumsum(steps) - steps, steps))
    return np.append(parts, there[-1:]).astype(np.int64), int(gaps[wide].sum())


def log_of(
    window: Window,
    edges: Edges,
    inside: Bools,
    arrival: Ints,
    launches: Ints,
    count: int,
    sequence: Sequence,
    origin_ns: int,
) -> OperationLog:
    """The operations of the first ``count`` launches of a window.

    Args:
        window: with all times.
        edges: of it.
        inside: bool, operations to log.
        arrival: int64, operations x 2: positions of their packets, -1 for none.
        launches: int64, the window's.
        count: how many of them.
        sequence: of the program.
        origin_ns: what times count from.
    """
    size = int(window.base[count])
    keep: slice | Ints = slice(0, size) if bool(inside[:size].all()) else np.flatnonzero(inside[:size])
    sizes = np.diff(window.base[: count + 1])
    operation = edges.operation[:size]
    program = np.repeat(window.program[:count], sizes)
    local = operation - sequence.first[program]

    def times(values: Ints, type_: int) -> Ints:
        return np.asarray(values[:size, type_][keep] + origin_ns)

    return OperationLog(
        inference=np.repeat(launches[:count], sizes)[keep],
        program=program[keep].astype(np.int32),
        operation=local[keep].astype(np.int32),
        kind=sequence.kind[operation[keep]],
        core=sequence.core[operation[keep]],
        start_ns=times(window.time, 0),
        end_ns=times(window.time, 1),
        start_how=edges.how[:size, 0][keep],
        end_how=edges.how[:size, 1][keep],
        start_low_ns=times(edges.low, 0),
        start_high_ns=times(edges.high, 0),
        end_low_ns=times(edges.low, 1),
        end_high_ns=times(edges.high, 1),
        start_event=arrival[:size, 0][keep].copy(),
        end_event=arrival[:size, 1][keep].copy(),
        kinds=sequence.kinds,
    )


_ARRAYS = [field.name for field in fields(OperationLog) if field.name != "kinds"]


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
