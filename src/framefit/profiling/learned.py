"""What a profile teaches a latency table, and what a table makes a profile expect."""

from __future__ import annotations

import msgspec
import numpy as np

from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.core.profile import OperationLog
from framefit.core.program import Operation, Program
from framefit.profiling.expectation import operation_times, positions, wholly_measured
from framefit.profiling.sequence import Sequence

__all__ = ["expecting", "profiled_entries"]

_LEAST_SAMPLES = 8  # of an entry, to take the spread of a duration from
_MOST_SAMPLES = 512  # kept of each entry


def expecting(program: Program, table: LatencyTable) -> tuple[Program, int, int]:
    """The program with the durations that a table says.

    Operations that the table does not have (or that are no layers: transfers) keep theirs.

    Args:
        program: as told.
        table: of its device.

    Returns:
        The program, how many of its operations' expectations are the table's, and how many layers
        the table lacks.
    """
    found = lacking = 0

    def told(operation: Operation) -> Operation:
        nonlocal found, lacking
        if not operation.op:
            return operation
        entry = table.find(operation.op, operation.configuration, operation.unit)
        if entry is None:
            lacking += 1
            return operation
        found += 1
        samples = np.asarray(entry.samples_ns, np.float64)
        spread = operation.sigma_ratio
        if len(samples) >= _LEAST_SAMPLES and (middle := float(np.median(samples))) > 0:
            spread = 1.4826 * float(np.median(np.abs(samples - middle))) / middle
        return msgspec.structs.replace(operation, expected_ns=max(entry.latency_ns, 0), sigma_ratio=spread)

    programs = tuple(
        msgspec.structs.replace(
            one,
            groups=tuple(
                msgspec.structs.replace(group, operations=tuple(map(told, group.operations))) for group in one.groups
            ),
        )
        for one in program.programs
    )
    return msgspec.structs.replace(program, programs=programs), found, lacking


def profiled_entries(log: OperationLog, sequence: Sequence, confidence: float) -> tuple[LatencyEntry, ...]:
    """Entries for a latency table: medians of what layers took, executions of one configuration together.

    Measured executions count alone where there are enough of them; a layer that was never seen whole
    gives an entry from inferred ones, with their interval. ``samples_ns`` are measured executions,
    evenly chosen; layers that took no time at all have no entry.

    Args:
        log: what happened.
        sequence: its operations name operators and configuration.
        confidence: of the log's intervals; those of the entries are the same.
    """
    numbers: dict[tuple[str, str, bytes], int] = {}
    layers: list[Operation] = []
    group = np.full(len(sequence.operations), -1, np.int64)
    for position, one in enumerate(sequence.operations):
        if one.op:
            name = (one.op, one.unit, msgspec.json.encode(one.configuration, order="sorted"))
            if name not in numbers:
                layers.append(one)
            group[position] = numbers.setdefault(name, len(numbers))
    key = group[positions(log, sequence)]
    times = operation_times(log, key, len(layers), confidence)
    whole = np.flatnonzero(wholly_measured(log) & (key >= 0))
    whole = whole[np.argsort(key[whole], kind="stable")]
    ends = np.cumsum(times.measured)
    entries = []
    for number, one in enumerate(layers):
        if not times.count[number] or times.high_ns[number] <= 0:
            continue
        mine = whole[ends[number] - times.measured[number] : ends[number]]
        mine = mine[:: max(-(-len(mine) // _MOST_SAMPLES), 1)]
        entries.append(
            LatencyEntry(
                op=one.op,
                configuration=one.configuration,
                unit=one.unit,
                latency_ns=round(times.median_ns[number]),
                interval_ns=(round(times.low_ns[number]), round(times.high_ns[number])),
                samples_ns=tuple((log.end_ns[mine] - log.start_ns[mine]).tolist()),
                source="profiled",
            )
        )
    return tuple(entries)
