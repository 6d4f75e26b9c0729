"""What was executed in each window of a run, as rows of bars."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.program import Launches, Program
from framefit.errors import InputError
from framefit.profiling.pairing import executions
from framefit.report.looks import OVERRUN_LOOK, UNKNOWN_LOOK, Look, looks_of

__all__ = ["Bar", "Row", "RunRows", "run_rows"]


@dataclass(frozen=True)
class Bar:
    """A part of an executed segment within one window; start and end are from that window's release.

    Attributes:
        lane: the unit's place in ``Program.units``.
        program: index into ``Program.programs``, -1 where it is unknown.
        frame: -1 where it is unknown.
        odd: whether an odd number of frames of this model was executed before.
        whole_ns: duration of the whole segment.
        overrun: the segment started in an earlier window.
        runs_over: it goes on in the next window.
    """

    lane: int
    program: int
    frame: int
    odd: bool
    start_ns: int
    end_ns: int
    whole_ns: int
    overrun: bool
    runs_over: bool


@dataclass(frozen=True)
class Row:
    """One window, with what was executed in it."""

    window: int
    length_ns: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class RunRows:
    """Some windows of a run.

    Attributes:
        program: names units, models and segments.
        rows: the windows, in order.
        windows: how many the run has.
        looks: of each model, in the order of the program, priority models first.
    """

    program: Program
    rows: tuple[Row, ...]
    windows: int
    looks: dict[str, Look]

    def label(self, bar: Bar) -> str:
        """What stands in a bar: the segment's number, or the model's name where it is not cut."""
        if bar.program < 0:
            return "?"
        segment = self.program.programs[bar.program]
        cut = sum(other.model == segment.model for other in self.program.programs) > 1
        return str(segment.segment) if cut else segment.model

    def look(self, bar: Bar) -> Look:
        """How a bar looks."""
        if bar.overrun:
            return OVERRUN_LOOK
        return UNKNOWN_LOOK if bar.program < 0 else self.looks[self.program.programs[bar.program].model]

    def legend(self, unknown: str, over: str) -> list[tuple[str, Look]]:
        """Names and looks of the models, and of what else appears.

        Args:
            unknown: name of bars of which events were lost.
            over: name of bars that are beyond their window's end.
        """
        bars = [bar for row in self.rows for bar in row.bars]
        entries = list(self.looks.items())
        if any(bar.program < 0 for bar in bars):
            entries.append((unknown, UNKNOWN_LOOK))
        if any(bar.overrun or bar.runs_over for bar in bars):
            entries.append((over, OVERRUN_LOOK))
        return entries

    @property
    def rate(self) -> str:
        """Of the windows."""
        return f"{1e9 / self.program.window_ns:.4g} Hz"

    @property
    def units(self) -> str:
        """Names of the units."""
        return ", ".join(unit.name for unit in self.program.units)


def run_rows(
    trace: Trace,
    program: Program,
    launches: Launches,
    releases_ns: npt.NDArray[np.int64],
    priority_models: Collection[str],
    *,
    reserved_ns: Mapping[str, Sequence[int]] | None = None,
    overhang_ns: Mapping[str, Sequence[int]] | None = None,
    first_window: int = 0,
    windows: int = 12,
) -> RunRows:
    """The asked windows with what was executed in each; a segment is cut at the ends of windows.

    Args:
        trace: events of the run.
        program: its units, models and segments.
        launches: in the order of submission.
        releases_ns: int64, one release a window, ascending, on the trace's clock.
        priority_models: their names.
        reserved_ns: unit -> for each window of a pattern that repeats, the time from its release to
            its first reserved instant there: until then other segments may run on into it. Default: none.
        overhang_ns: unit -> for each of these windows, how far into the next one its priority models may last.
        first_window: the first row.
        windows: rows at most.

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
    ends = np.append(releases[1:], releases[-1] + program.window_ns)
    last = min(first_window + windows, len(releases))
    bars: list[list[Bar]] = [[] for _ in range(len(releases))]
    span = (int(releases[first_window]), int(ends[min(last, len(ends) - 1)]))  # and what interrupts the last window's
    segments = sorted(_segments(trace, program, launches, span), key=lambda segment: segment[4])
    starts = [np.asarray([s[4] for s in segments if s[0] == lane]) for lane in range(len(program.units))]
    for lane, which, frame, odd, start, end in segments:
        # What another segment interrupted may go on in the next window: nobody waited for it.
        interrupted = np.searchsorted(starts[lane], end) > np.searchsorted(starts[lane], start, "right")
        begun = max(int(np.searchsorted(releases, start, "right")) - 1, 0)
        priority = which >= 0 and program.programs[which].model in priority_models
        rooms = rooms_ns[priority].get(program.units[lane].name) or (0,)
        room = rooms[(begun + (not priority)) % len(rooms)]
        in_time = bool(interrupted) or end <= int(ends[begun]) + room
        for window in range(begun, last):
            release, window_end = int(releases[window]), int(ends[window])
            if window > begun and end <= release:
                break
            from_ns, to_ns = max(start, release) - release, min(end, window_end) - release
            over = end > window_end and window + 1 < len(releases) and not in_time
            bars[window].append(
                Bar(lane, which, frame, odd, from_ns, to_ns, end - start, window > begun and not in_time, over)
            )
    return RunRows(
        program=program,
        rows=tuple(
            Row(window, int(ends[window] - releases[window]), tuple(bars[window]))
            for window in range(first_window, last)
        ),
        windows=len(releases),
        looks=looks_of((segment.model for segment in program.programs), priority_models),
    )


def _segments(
    trace: Trace, program: Program, launches: Launches, span: tuple[int, int]
) -> Iterator[tuple[int, int, int, bool, int, int]]:
    """Lane, program, frame, its parity, start and end of what was executed within ``span``.

    The operations of one launch on one unit become one bar. Where launches are unknown, an
    operation's kind still names its segment when only one segment has operations of that kind.
    """
    executed = executions(trace, program, launches)
    lanes = {unit.core: lane for lane, unit in enumerate(program.units)}
    of_kind: dict[str, set[int]] = {}
    for index, segment in enumerate(program.programs):
        for group in segment.groups:
            for operation in group.operations:
                of_kind.setdefault(operation.kind, set()).add(index)
    merged: dict[tuple[int, int], list[int]] = {}
    for at in np.flatnonzero((executed.end_ns > span[0]) & (executed.start_ns < span[1])):
        lane, launch = lanes.get(int(executed.core[at])), int(executed.inference[at])
        if lane is None:  # not a unit of the program
            continue
        start, end = int(executed.start_ns[at]), int(executed.end_ns[at])
        if launch < 0:
            found = of_kind.get(trace.kinds[executed.kind[at]], set())
            yield lane, next(iter(found)) if len(found) == 1 else -1, -1, False, start, end
        elif (lane, launch) in merged:
            whole = merged[lane, launch]
            whole[0], whole[1] = min(whole[0], start), max(whole[1], end)
        else:
            merged[lane, launch] = [start, end]
    model_of = np.asarray([segment.model for segment in program.programs])[launches.program]
    frames = {model: np.unique(launches.frame[model_of == model]) for model in np.unique(model_of)}
    for (lane, launch), (start, end) in merged.items():
        frame = int(launches.frame[launch])
        odd = bool(np.searchsorted(frames[model_of[launch]], frame) % 2)
        yield lane, int(launches.program[launch]), frame, odd, start, end
