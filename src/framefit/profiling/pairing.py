"""Pairs each START with its END in a trace that lost nothing, and with its launch, and sorts them into windows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace, unwrapped_ns
from framefit.core.profile import ExecutedPart, ExecutedWindow, How, OperationLog, RunWindows
from framefit.core.program import Launches, Program
from framefit.errors import InputError
from framefit.profiling.sequence import UnitTable

__all__ = ["pair_events", "run_windows"]

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


def run_windows(
    executed: OperationLog,
    program: Program,
    launches: Launches,
    releases_ns: npt.NDArray[np.int64],
    priority_models: Collection[str],
    *,
    reserved_ns: Mapping[str, Sequence[int]] | None = None,
    overhang_ns: Mapping[str, Sequence[int]] | None = None,
    first_window: int = 0,
    windows: int = 12,
) -> RunWindows:
    """Lay out the asked windows with what was executed in each; a segment is cut at the ends of windows.

    Args:
        executed: what was executed, on the clock of the releases.
        program: its units, models and segments.
        launches: in the order of submission.
        releases_ns: int64, one release a window, ascending, on the log's clock.
        priority_models: their names.
        reserved_ns: unit -> for each window of a pattern that repeats, the time from its release to
            its first reserved instant there: until then other segments may run on into it. Default: none.
        overhang_ns: unit -> for each of these windows, how far into the next one its priority models may last.
        first_window: the first of them.
        windows: how many at most.

    Raises:
        InputError: the run has no such window.
    """
    rooms_ns = (reserved_ns or {}, overhang_ns or {})
    releases = np.asarray(releases_ns, np.int64)
    if windows < 1 or not 0 <= first_window < len(releases):
        raise InputError(
            f"windows {first_window} to {first_window + windows - 1} of a run that has {len(releases)}",
            remedy=f"ask for windows from 0 to {len(releases) - 1}",
        )
    ends = np.append(releases[1:], releases[-1] + program.period_ns)
    last = min(first_window + windows, len(releases))
    parts: list[list[ExecutedPart]] = [[] for _ in range(len(releases))]
    span = (int(releases[first_window]), int(ends[min(last, len(ends) - 1)]))  # and what interrupts the last window's
    segments = sorted(_segments(executed, program, launches, span), key=lambda segment: segment[4])
    starts = [np.asarray([s[4] for s in segments if s[0] == unit]) for unit in range(len(program.units))]
    for unit, which, frame, odd, start, end in segments:
        # What another segment interrupted may go on in the next window: no model waited for it.
        interrupted = np.searchsorted(starts[unit], end) > np.searchsorted(starts[unit], start, "right")
        begun = max(int(np.searchsorted(releases, start, "right")) - 1, 0)
        priority = which >= 0 and program.programs[which].model in priority_models
        rooms = rooms_ns[priority].get(program.units[unit].name) or (0,)
        room = rooms[(begun + (not priority)) % len(rooms)]
        in_time = bool(interrupted) or end <= int(ends[begun]) + room
        for window in range(begun, last):
            release, window_end = int(releases[window]), int(ends[window])
            if window > begun and end <= release:
                break
            from_ns, to_ns = max(start, release) - release, min(end, window_end) - release
            over = end > window_end and window + 1 < len(releases) and not in_time
            parts[window].append(
                ExecutedPart(unit, which, frame, odd, from_ns, to_ns, end - start, window > begun and not in_time, over)
            )
    return RunWindows(
        program=program,
        rows=tuple(
            ExecutedWindow(window, int(ends[window] - releases[window]), tuple(parts[window]))
            for window in range(first_window, last)
        ),
        windows=len(releases),
        priority_models=frozenset(priority_models),
    )


def _segments(
    executed: OperationLog, program: Program, launches: Launches, span: tuple[int, int]
) -> Iterator[tuple[int, int, int, bool, int, int]]:
    """Unit, program, frame, its parity, start and end of what was executed within ``span``.

    The operations of one launch on one unit become one part. Where launches are unknown, an
    operation's kind still names its segment when only one segment has operations of that kind.
    """
    of_kind: dict[str, set[int]] = {}
    for index, segment in enumerate(program.programs):
        for group in segment.groups:
            for operation in group.operations:
                of_kind.setdefault(operation.kind, set()).add(index)
    merged: dict[tuple[int, int], list[int]] = {}
    for at in np.flatnonzero((executed.end_ns > span[0]) & (executed.start_ns < span[1])):
        unit, launch = int(executed.unit[at]), int(executed.inference[at])
        if unit < 0:  # not a unit of the program
            continue
        start, end = int(executed.start_ns[at]), int(executed.end_ns[at])
        if launch < 0:
            segments = of_kind.get(executed.kinds[executed.kind[at]], set())
            yield unit, next(iter(segments)) if len(segments) == 1 else -1, -1, False, start, end
        elif (unit, launch) in merged:
            whole = merged[unit, launch]
            whole[0], whole[1] = min(whole[0], start), max(whole[1], end)
        else:
            merged[unit, launch] = [start, end]
    model_of = np.asarray([segment.model for segment in program.programs])[launches.program]
    frames = {model: np.unique(launches.frame[model_of == model]) for model in np.unique(model_of)}
    for (unit, launch), (start, end) in merged.items():
        frame = int(launches.frame[launch])
        odd = bool(np.searchsorted(frames[model_of[launch]], frame) % 2)
        yield unit, int(launches.program[launch]), frame, odd, start, end
