"""Compares what happened with what was expected, and exchanges durations with latency tables.

Finds operations that take longer than expected and periods that are overrun, makes entries of a latency table from
a log, and makes a program expect the durations of a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.core.profile import How, OperationLog, Violation
from framefit.core.program import Launches, Operation, Program
from framefit.core.timetable import Timetable
from framefit.profiling.sequence import Sequence
from framefit.profiling.totals import medians
from framefit.stats import normal_quantile, robust_deviation, sorted_by_key, two_sided_z

__all__ = ["apply_table_to_program", "latency_entries", "window_releases"]


Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_ENOUGH = 8  # measured executions: from here on inferred ones are not needed (order statistics give a 90 % interval)
_LEAST_MEASURED = 3  # executions: what is inferred follows from expectations, and says nothing against them
_MATERIAL_RATIO = 0.02  # what a plan does not care about: cuts are chosen within 2 % of overhead
_PLANNED_Z = normal_quantile(0.99)  # the quantile 0.99 that plans take
_BLOCK = 64  # windows that share one estimate of the beat's phase: clocks drift against each other


@dataclass(frozen=True)
class _OperationTimes:
    """How long operations took; arrays of one entry for each key, usually an operation of the sequence.

    Attributes:
        count: int64, executions.
        measured: int64, executions with both edges measured.
        median_ns: float64; of the measured ones where there are enough, else of all.
        low_ns, high_ns: float64, interval of the median.
    """

    count: Ints
    measured: Ints
    median_ns: npt.NDArray[np.float64]
    low_ns: npt.NDArray[np.float64]
    high_ns: npt.NDArray[np.float64]


def operation_positions(log: OperationLog, sequence: Sequence) -> Ints:
    """Return the position in ``sequence.operations`` of each entry of the log."""
    return np.asarray(sequence.first[log.program] + log.operation, np.int64)


def _fully_measured(log: OperationLog) -> Flags:
    """Mark operations of which both edges are measured."""
    return np.asarray((log.start_how == How.MEASURED) & (log.end_how == How.MEASURED))


def operation_times(log: OperationLog, key: Ints, count: int, confidence: float) -> _OperationTimes:
    """Return medians of the executions of each key, with intervals.

    The interval's ends are order statistics (David and Nagaraja, "Order Statistics", section 7.1) of the least and
    greatest possible durations, so it is wider where edges are inferred. ``key`` (int64) groups the entries of the
    log, -1 leaves an entry out; ``confidence`` is that of the log's intervals and of those of the medians.
    """
    whole = _fully_measured(log)
    number = np.bincount(key[key >= 0], minlength=count).astype(np.int64)
    measured = np.bincount(key[whole & (key >= 0)], minlength=count).astype(np.int64)
    enough = np.append(measured >= _ENOUGH, True)  # the last one: of no key
    used = whole & (key >= 0) | ~enough[key]
    key = key[used]
    taken = (log.end_ns - log.start_ns)[used].astype(np.float64)
    least = np.maximum(log.end_low_ns - log.start_high_ns, 0)[used].astype(np.float64)
    most = np.maximum(log.end_high_ns - log.start_low_ns, 0)[used].astype(np.float64)
    median, samples = medians(key, taken, count)
    z = two_sided_z(confidence)
    reach = z * np.sqrt(samples) / 2
    low = np.maximum(np.floor(samples / 2 - reach).astype(np.int64) - 1, 0)
    high = np.minimum(np.ceil(samples / 2 + reach).astype(np.int64), np.maximum(samples - 1, 0))
    return _OperationTimes(
        number, measured, median, _value_of_rank(key, least, samples, low), _value_of_rank(key, most, samples, high)
    )


def _value_of_rank(key: Ints, value: npt.NDArray[np.float64], samples: Ints, rank: Ints) -> npt.NDArray[np.float64]:
    """Return the value of a rank (from 0) among those of each key; 0 where it has none."""
    ordered = np.append(sorted_by_key(key, value, len(samples)), 0.0)
    at = np.cumsum(samples) - samples + rank
    return np.where(samples > 0, ordered[np.minimum(at, len(value))], 0.0)


def find_slow_operations(
    log: OperationLog, sequence: Sequence, program: Program, confidence: float, resolution_ns: int = 1
) -> tuple[Violation, ...]:
    """Find operations whose median is, surely and by more than 2 %, above the expectation; the costliest first.

    An operation of which hardly an execution was wholly measured is never one of them.

    ``count`` of a violation is the number of executions beyond the quantile of the expectation that plans take (0.99).
    """
    key = operation_positions(log, sequence)
    times = operation_times(log, key, len(sequence.operations), confidence)
    allowed = sequence.expected_ns * (1 + _MATERIAL_RATIO) + resolution_ns
    late = np.flatnonzero((times.measured >= _LEAST_MEASURED) & (times.low_ns > allowed))
    limit = sequence.expected_ns * (1 + np.maximum(_PLANNED_Z * sequence.sigma_ratio, _MATERIAL_RATIO)) + resolution_ns
    beyond = np.bincount(key[log.end_low_ns - log.start_high_ns > limit[key]], minlength=len(sequence.operations))
    cost = (times.median_ns - sequence.expected_ns) * times.count
    return tuple(
        Violation(
            operation=_operation_name(program, sequence, int(at)),
            expected_ns=round(sequence.expected_ns[at]),
            actual_ns=round(times.median_ns[at]),
            interval_ns=(math.floor(times.low_ns[at]), math.ceil(times.high_ns[at])),
            count=int(beyond[at]),
        )
        for at in late[np.argsort(-cost[late], kind="stable")]
    )


def _operation_name(program: Program, sequence: Sequence, position: int) -> str:
    """Return segment (which names its model) and operation."""
    which = int(np.searchsorted(sequence.first, position, "right")) - 1
    segment, operation = program.programs[which].name, sequence.operations[position].name
    return segment if segment == operation else f"{segment}/{operation}"  # one of which only the whole is seen


def find_overrun_periods(
    log: OperationLog,
    program: Program,
    launches: Launches | None,
    timetable: Timetable | None,
    confidence: float,
    resolution_ns: int = 1,
) -> tuple[Violation, ...]:
    """Find cycles longer than the program's, and priority periods and windows that were surely overrun.

    A program without ``window_ns`` has no period. Without ``launches`` the period is the cycle of the program;
    without ``timetable`` only whole windows are checked.
    """
    if program.period_ns <= 0 or not len(log):
        return ()
    slack = resolution_ns + round(_MATERIAL_RATIO * program.period_ns)
    if launches is None:
        _, first = np.unique(log.inference, return_index=True)
        start, low, high = (np.minimum.reduceat(a, first) for a in (log.start_ns, log.start_low_ns, log.start_high_ns))
        taken = np.diff(start)
        late = low[1:] - high[:-1] > program.period_ns + slack
        return _overrun_violation("period of the cycle", program.period_ns, taken, late, confidence)
    window = launches.window[np.minimum(log.inference, len(launches) - 1)]
    order = np.argsort(window, kind="stable")
    first = np.unique(window[order], return_index=True)[1]
    if timetable is None or not timetable.windows:
        start = np.minimum.reduceat(log.start_ns[order], first)
        end, end_low = (np.maximum.reduceat(a[order], first) for a in (log.end_ns, log.end_low_ns))
        late = end_low - np.minimum.reduceat(log.start_high_ns[order], first) > program.period_ns + slack
        return _overrun_violation("window", program.period_ns, end - start, late, confidence)
    violations: list[Violation] = []
    _, release, reserved = window_releases(log, program, launches, timetable)
    for reserved_launches in reserved:
        opens = release[reserved_launches.at] + reserved_launches.opens_ns
        length = reserved_launches.closes_ns - reserved_launches.opens_ns
        late = reserved_launches.planned & (reserved_launches.end_low_ns - opens > length + resolution_ns)
        longest = int(length[late].max(initial=0))
        violations += _overrun_violation(
            f"priority period of {reserved_launches.model}", longest, reserved_launches.end_ns - opens, late, confidence
        )
    return tuple(violations)


@dataclass(frozen=True)
class PriorityLaunches:
    """Launches of a priority model, one for each window, as arrays of one length.

    Attributes:
        at: int64, position of the window among those that the trace shows.
        planned: bool, whether the timetable reserves time in the window.
        opens_ns, closes_ns: the reserved time from the window's release, where there is one.
        start_ns, end_ns, end_low_ns: int64, when the launch ran.
    """

    model: str
    at: Ints
    planned: Flags
    opens_ns: Ints
    closes_ns: Ints
    start_ns: Ints
    end_ns: Ints
    end_low_ns: Ints


def window_releases(
    log: OperationLog, program: Program, launches: Launches, timetable: Timetable
) -> tuple[Ints, Ints, list[PriorityLaunches]]:
    """Estimate when each window that the trace shows began, on the device's clock, and find its priority launches.

    The device's clock does not show when windows begin. They are taken to begin such that the earliest launch of 64
    windows was punctual.

    Args:
        log: operations of the run.
        program: names the models.
        launches: in the log's numbering of inferences; with their windows.
        timetable: with the priority periods.

    Returns:
        Numbers of the windows, int64, ascending; their releases, int64; and the launches of each priority model.
    """
    window = launches.window[np.minimum(log.inference, max(len(launches) - 1, 0))]
    shown = np.unique(window)
    length = np.array([planned.length_ns for planned in timetable.windows], np.int64)
    begins = np.concatenate([[0], np.cumsum(length)])
    turn, index = np.divmod(shown, len(length))
    release = turn * begins[-1] + begins[index]  # on the plan's clock
    model = np.array([segment.model for segment in program.programs])[log.program]
    periods = _periods(timetable)
    reserved = []
    for name in dict.fromkeys(name for _, name in periods):
        entries = np.flatnonzero(model == name)
        if not len(entries):
            continue
        entries = entries[np.argsort(window[entries], kind="stable")]
        windows, first = np.unique(window[entries], return_index=True)
        of_window = [periods.get((at, name)) for at in (windows % len(length)).tolist()]
        reserved.append(
            PriorityLaunches(
                name,
                np.searchsorted(shown, windows),
                np.array([period is not None for period in of_window], np.bool_),
                np.array([0 if period is None else period[0] for period in of_window], np.int64),
                np.array([0 if period is None else period[1] for period in of_window], np.int64),
                np.minimum.reduceat(log.start_ns[entries], first),
                np.maximum.reduceat(log.end_ns[entries], first),
                np.maximum.reduceat(log.end_low_ns[entries], first),
            )
        )
    begun = [
        (launched.at[launched.planned], (launched.start_ns - launched.opens_ns)[launched.planned])
        for launched in reserved
    ]
    return shown, release + _phases(shown, release, begun), reserved


def _periods(timetable: Timetable) -> dict[tuple[int, str], tuple[int, int]]:
    """Window in which periods of a model begin, and the model -> begin and end of all of these, from its release on."""
    periods: dict[tuple[int, str], tuple[int, int]] = {}
    lengths = [window.length_ns for window in timetable.windows]
    for at, window in enumerate(timetable.windows):
        for period in window.priority:
            place, start, end = at, period.start_ns, period.end_ns
            while start >= lengths[place] > 0:  # another stream's release comes before it
                start, end, place = start - lengths[place], end - lengths[place], (place + 1) % len(lengths)
            first, last = periods.get((place, period.model), (start, end))
            periods[place, period.model] = min(first, start), max(last, end)
    return periods


def _phases(shown: Ints, release: Ints, begun: list[tuple[Ints, Ints]]) -> Ints:
    """Return device clock minus plan's clock for each window: the least of its block, or of the nearest known block."""
    blocks = np.unique(shown // _BLOCK, return_inverse=True)[1]
    least = np.full(int(blocks.max(initial=0)) + 1, np.iinfo(np.int64).max)
    for at, instant in begun:
        np.minimum.at(least, blocks[at], instant - release[at])
    known = np.flatnonzero(least != np.iinfo(np.int64).max)
    if not len(known):
        return np.zeros(len(shown), np.int64)
    filled = known[np.minimum(np.searchsorted(known, np.arange(len(least))), len(known) - 1)]
    return least[filled][blocks]


def _overrun_violation(
    name: str, expected_ns: int, taken: Ints, late: Flags, confidence: float
) -> tuple[Violation, ...]:
    """Return a violation that sums up the overrun periods: how many, and their median."""
    if not late.any():
        return ()
    over = np.sort(taken[late])
    reach = two_sided_z(confidence) * math.sqrt(len(over)) / 2
    low = max(math.floor(len(over) / 2 - reach) - 1, 0)
    high = min(math.ceil(len(over) / 2 + reach), len(over) - 1)
    return (
        Violation(
            operation=name,
            expected_ns=expected_ns,
            actual_ns=int(np.median(over)),
            interval_ns=(int(over[low]), int(over[high])),
            count=int(late.sum()),
        ),
    )


_LEAST_SAMPLES = 8  # of an entry, to take the spread of a duration from
_MOST_SAMPLES = 512  # kept of each entry


def apply_table_to_program(program: Program, table: LatencyTable) -> tuple[Program, int, int]:
    """Replace the expected durations of a program by those of a latency table.

    Operations that are not in the table keep theirs, as do operations that are no layers (transfers).

    Args:
        program: as it was executed.
        table: latency table of its device.

    Returns:
        The program, the number of operations that the table covers, and the number of layers that it lacks.
    """
    covered = lacking = 0

    def from_table(operation: Operation) -> Operation:
        nonlocal covered, lacking
        if not operation.op:
            return operation
        entry = table.find(operation.op, operation.configuration, operation.unit)
        if entry is None:
            lacking += 1
            return operation
        covered += 1
        samples = np.asarray(entry.samples_ns, np.float64)
        spread = operation.sigma_ratio
        if len(samples) >= _LEAST_SAMPLES and (middle := float(np.median(samples))) > 0:
            spread = robust_deviation(samples) / middle
        return msgspec.structs.replace(operation, expected_ns=max(entry.latency_ns, 0), sigma_ratio=spread)

    programs = tuple(
        msgspec.structs.replace(
            segment,
            groups=tuple(
                msgspec.structs.replace(group, operations=tuple(map(from_table, group.operations)))
                for group in segment.groups
            ),
        )
        for segment in program.programs
    )
    return msgspec.structs.replace(program, programs=programs), covered, lacking


def latency_entries(log: OperationLog, sequence: Sequence, confidence: float) -> tuple[LatencyEntry, ...]:
    """Make entries of a latency table: median durations of layers, executions of one configuration together.

    Measured executions count alone where there are enough of them; a layer that was never fully measured has no
    entry, nor has one that took no time at all. ``samples_ns`` are measured executions, evenly chosen.

    Args:
        log: operations of the run.
        sequence: its operations name operators and configurations.
        confidence: of the log's intervals and of those of the entries.
    """
    numbers: dict[tuple[str, str, bytes], int] = {}
    layers: list[Operation] = []
    group = np.full(len(sequence.operations), -1, np.int64)
    for position, operation in enumerate(sequence.operations):
        if operation.op:
            name = (operation.op, operation.unit, msgspec.json.encode(operation.configuration, order="sorted"))
            if name not in numbers:
                layers.append(operation)
            group[position] = numbers.setdefault(name, len(numbers))
    key = group[operation_positions(log, sequence)]
    times = operation_times(log, key, len(layers), confidence)
    whole = np.flatnonzero(_fully_measured(log) & (key >= 0))
    whole = whole[np.argsort(key[whole], kind="stable")]
    ends = np.cumsum(times.measured)
    entries = []
    for number, operation in enumerate(layers):
        if not times.measured[number] or times.high_ns[number] <= 0:
            continue
        executions = whole[ends[number] - times.measured[number] : ends[number]]
        executions = executions[:: max(-(-len(executions) // _MOST_SAMPLES), 1)]
        entries.append(
            LatencyEntry(
                op=operation.op,
                configuration=operation.configuration,
                unit=operation.unit,
                latency_ns=round(times.median_ns[number]),
                interval_ns=(round(times.low_ns[number]), round(times.high_ns[number])),
                samples_ns=tuple((log.end_ns[executions] - log.start_ns[executions]).tolist()),
                source="profiled",
            )
        )
    return tuple(entries)
