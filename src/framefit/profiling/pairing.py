"""Pairs each START with its END in a trace that lost nothing, and each pair with its launch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace, unwrapped_ns
from framefit.core.profile import How, OperationLog
from framefit.core.program import Launches, Program
from framefit.profiling.sequence import UnitTable

__all__ = ["pair_events"]

_Integers = npt.NDArray[np.integer]
_MOST_NUMBERS = 1 << 20  # of kinds or operations; keys of three such numbers fit 64 bits


def pair_events(trace: Trace, program: Program, launches: Launches) -> OperationLog:
    """Pair the events of a trace, sorted by start, and find the launch of each pair.

    Unpaired events are left out. The i-th START of a track belongs to the i-th operation
    that the launches put there; this holds only when nothing was lost, so where any
    number, kind or operation disagrees, every inference, program and operation is -1.

    Args:
        trace: packets in order of arrival.
        program: the program that was executed.
        launches: the launches of its segments, in order.

    Returns:
        The paired operations; all edges are measured.
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
    launch, operation, unit = (numbers[starts] for numbers in _identify_starts(trace, order, program, launches))
    which = np.full(len(starts), -1, np.int32)
    which[launch >= 0] = launches.program[launch[launch >= 0]]
    return OperationLog(
        inference=launch,
        program=which,
        operation=operation.astype(np.int32),
        kind=trace.id[starts],
        core=trace.core[starts],
        unit=unit.astype(np.int16),
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
    """Return one small number for (core, id, operation); uint16 where it fits, which numpy sorts by radix."""
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


def _identify_starts(
    trace: Trace, order: npt.NDArray[np.int64], program: Program, launches: Launches
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return launch, operation and unit of every START event; -1 elsewhere.

    If something was lost, launches and operations are -1 everywhere; units are those that the packets tell.
    """
    named = bool(np.all(trace.operation >= 0))
    table = UnitTable.of(program, trace.kinds, named=named)
    launch, index = np.full(len(trace), -1), np.full(len(trace), -1)
    unit = np.maximum(table.units_of(trace), -1)
    number = {unit.name: at for at, unit in enumerate(program.units)}
    id_of_kind = {kind: at for at, kind in enumerate(trace.kinds)}
    operations = [[op for group in segment.groups for op in group.operations] for segment in program.programs]
    counts = np.array([len(ops) for ops in operations], np.int64)
    flat = [op for ops in operations for op in ops]
    facts = np.array(
        [(number.get(op.unit, -1), id_of_kind.get(op.kind, -1), op.index) for op in flat], np.int64
    ).reshape(-1, 3)
    starts = order[trace.type[order] == EventType.START]
    per_launch = counts[launches.program]
    if len(trace.loss_after) or trace.meta.lost_events or per_launch.sum() != len(starts) or np.any(facts[:, 0] < 0):
        return launch, index, unit
    # the operations of all launches one after the other: the launch of each, and its row in ``facts``
    ordinal = np.repeat(np.arange(len(launches)), per_launch)
    first = np.repeat(np.cumsum(per_launch) - per_launch, per_launch)
    row = (np.cumsum(counts) - counts)[launches.program[ordinal]] + np.arange(len(ordinal)) - first
    by_track = np.argsort(table.track[facts[row, 0]].astype(np.int16), kind="stable")
    track = table.tracks_of(trace)[starts]
    starts, track = starts[np.argsort(track, kind="stable")], np.sort(track)
    ran_on, kind, operation = facts[row[by_track]].T
    stated = trace.operation[starts]
    agrees = (track == table.track[ran_on]) & (trace.id[starts] == kind) & ((stated < 0) | (stated == operation))
    if agrees.all():
        launch[starts], index[starts], unit[starts] = ordinal[by_track], operation, ran_on
    return launch, index, unit
