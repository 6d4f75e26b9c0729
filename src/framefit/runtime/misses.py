"""Explain why priority frames were not ready in time.

Launches that hung, and which frames of others that cost their time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.run_record import Miss, MissCause
from framefit.core.timetable import PlannedModel, PriorityPeriod, Timetable, Window
from framefit.runtime.log import FAULTY, FrameLog, FrameOutcome, LaunchLog, in_words

_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Hang:
    """Describes a launch that hung.

    Attributes:
        model: its number.
        frame: that was given up.
        label: model and segment.
        window: in which it was launched.
        unit: that it held.
        begin_ns: since when at most.
        end_ns: when it was terminated.
        until_ns: when the last priority frame was done that had waited for it.
        blocks: whether others waited: nobody does where they may interrupt it.
    """

    model: int
    frame: int
    label: str
    window: int
    unit: str
    begin_ns: int
    end_ns: int
    until_ns: int
    blocks: bool

    def text(self, due_ns: int | None = None) -> str:
        """Describe it in words; ``due_ns`` is the instant at which another model was due."""
        words = f"{self.label} in window {self.window} hung for {(self.end_ns - self.begin_ns) / 1e6:.2f} ms"
        if due_ns is None:
            return words
        if due_ns < self.end_ns:
            return f"{words}, and was terminated {(self.end_ns - due_ns) / 1e6:.2f} ms after the instant"
        return f"{words}; earlier priority frames that had waited for it came first"


def hangs(timetable: Timetable, launches: LaunchLog, hung: Collection[tuple[int, int]], gap_ns: int) -> list[Hang]:
    """Find the launches that hung, in the order of the log.

    Args:
        timetable: what was launched.
        launches: all of the run, those that failed too.
        hung: models' numbers and frames of which one was terminated.
        gap_ns: between two launches that follow one another, at most.
    """
    if not hung:
        return []
    rows = launches.rows()
    priority = np.asarray([model.role == "priority" for model in timetable.models], bool)
    owner = np.repeat(np.arange(len(timetable.models)), [len(model.segments) for model in timetable.models])
    labels = [f"{model.name}[{segment.index}]" for model in timetable.models for segment in model.segments]
    units = timetable.program_units
    ended = rows[rows[:, LaunchLog.FINISHED] >= 0]
    # A frame is given up with the launch that hangs: of those of it that failed, that is the last one.
    last = {(int(owner[row[LaunchLog.PROGRAM]]), row[LaunchLog.FRAME]): row for row in _failed(rows)}
    hangs = []
    for (model, frame), row in last.items():
        if (model, frame) not in hung:
            continue
        program, end_ns = row[LaunchLog.PROGRAM], row[LaunchLog.STARTED]  # of a launch that failed: when it did
        unit = str(units[program])
        later = ended[(units[ended[:, LaunchLog.PROGRAM]] == unit) & (ended[:, LaunchLog.STARTED] >= end_ns)]
        until_ns = end_ns
        for launch in later[np.argsort(later[:, LaunchLog.STARTED], kind="stable")]:
            if launch[LaunchLog.STARTED] - until_ns > gap_ns or not priority[owner[launch[LaunchLog.PROGRAM]]]:
                break
            until_ns = int(launch[LaunchLog.FINISHED])
        blocks = bool(priority[model]) or not timetable.preemptive
        ready_ns = min(row[LaunchLog.READY], end_ns)
        hangs.append(
            Hang(model, frame, labels[program], row[LaunchLog.WINDOW], unit, ready_ns, end_ns, until_ns, blocks)
        )
    return hangs


def _failed(rows: _Rows) -> list[list[int]]:
    """Return the launches that did not end, as lists."""
    failed: list[list[int]] = rows[rows[:, LaunchLog.FINISHED] < 0].tolist()
    return failed


@dataclass(frozen=True)
class _Stage:
    """Holds what one unit did for a late frame, and when that was planned."""

    unit: str
    due_ns: int
    started_ns: int
    finished_ns: int
    planned_ns: int

    @property
    def late_ns(self) -> int:
        return self.started_ns - self.due_ns

    @property
    def excess_ns(self) -> int:
        return self.finished_ns - self.started_ns - self.planned_ns


@dataclass(frozen=True)
class _Unit:
    """Holds what a unit launched: rows, when they started, and when all up to each had ended.

    In one piece each: else every search of them would copy them.
    """

    rows: _Rows
    starts: _Rows
    ends: _Rows

    @classmethod
    def of(cls, rows: _Rows) -> _Unit:
        starts = np.ascontiguousarray(rows[:, LaunchLog.STARTED])
        return cls(rows, starts, np.maximum.accumulate(rows[:, LaunchLog.FINISHED]))


def misses(
    timetable: Timetable,
    launches: LaunchLog,
    frames: FrameLog,
    *,
    floor_p99_ns: int,
    stalled: Mapping[int, int] | None = None,
    faults: Mapping[tuple[int, int], str] | None = None,
    hung: Collection[tuple[int, int]] = (),
    planned_in: Callable[[int], Window] | None = None,
) -> list[Miss]:
    """Explain every miss of a priority model by what cost it most.

    A late start is blamed on the background launch that ran over the instant (overrun),
    on earlier priority frames (backlog), or on nothing that ran (late wake-up). A long
    run is blamed on other threads where the processor was given to them (contention),
    else on the model's own duration. Of a model on several units the stage counts that lost most. Where the
    host kept the machine from running in that window, that is the cause: its clock went on. A launch of another
    frame that hung is named (fault) by those that waited for it, found no place meanwhile, or read its model.

    Args:
        timetable: what was planned.
        launches: all launches of the run.
        frames: all frames of the run.
        floor_p99_ns: how late the idle machine wakes up.
        stalled: window -> time that the host took, where it is known.
        faults: number of a model and its frame -> what went wrong.
        hung: numbers of models and their frames of which a launch hung.
        planned_in: what was planned for a window of the run; default: the timetable's windows, which repeat.
    """
    rows = frames.rows()
    roles = np.asarray([model.role == "background" for model in timetable.models], bool)
    in_time = np.isin(rows[:, FrameLog.OUTCOME], (FrameOutcome.DONE, FrameOutcome.SKIPPED))
    missed = rows[~in_time & ~roles[rows[:, FrameLog.MODEL]]].tolist()  # the only frames that are looked at one by one
    if not missed:
        return []
    windows = timetable.windows
    looking = _Looking(
        timetable, launches.finished(), floor_p99_ns, planned_in or (lambda window: windows[window % len(windows)])
    )
    looking.know(hangs(timetable, launches, hung, looking.least_late_ns), rows)
    # Frames that were consumed together count from the newest one's release.
    together = {(row[FrameLog.MODEL], row[FrameLog.FINISHED]): row[FrameLog.RELEASED] for row in missed}
    explained = []
    for model, frame, outcome, released, started, finished, window in missed:
        cause: MissCause
        if outcome == FrameOutcome.RUN_ENDED:
            cause, detail = "run ended", "unfinished at the end of the run"
        elif outcome in FAULTY:
            cause, detail = (
                "fault",
                (faults or {}).get((model, frame)) or in_words(FrameOutcome(outcome))[1].removeprefix("fault: "),
            )
        elif outcome == FrameOutcome.NOT_GIVEN:
            cause, detail = "stream", in_words(FrameOutcome.NOT_GIVEN)[1]
            if (hang := looking.not_given(model, window)) is not None:
                cause, detail = "fault", f"{detail}: {hang.text()}"
        elif outcome in (FrameOutcome.QUEUE_FULL, FrameOutcome.REFUSED):
            cause, detail = "backlog", "earlier frames took longer than their windows"
            if (hang := looking.no_place(model, released)) is not None:
                cause, detail = "fault", f"its queue was full: {hang.text()}"
        else:
            stage = looking.worst(model, frame, together[model, finished], window, started, finished)
            cause, detail = looking.why(stage)
            taken = (stalled or {}).get(window, 0)
            if 2 * taken > max(stage.late_ns, stage.excess_ns) > 0 and cause not in ("backlog", "fault"):
                cause, detail = "host stall", f"the host stopped this machine for {taken / 1e6:.0f} ms; {detail}"
        explained.append(Miss(window=window, model=timetable.models[model].name, cause=cause, detail=detail))
    return explained


class _Looking:
    """Searches all launches of a run for what delayed a late frame.

    Attributes:
        least_late_ns: later than that is no idle machine's wake-up.
    """

    def __init__(
        self, timetable: Timetable, launched: _Rows, floor_p99_ns: int, planned_in: Callable[[int], Window]
    ) -> None:
        self._models, self._preemptive = timetable.models, timetable.preemptive
        self._owner = np.repeat(np.arange(len(timetable.models)), [len(model.segments) for model in timetable.models])
        segments = [(model, segment) for model in timetable.models for segment in model.segments]
        self._labels = [f"{model.name}[{segment.index}]" for model, segment in segments]
        self._quantiles = [segment.duration_ns for _, segment in segments]
        self.least_late_ns = max(10 * floor_p99_ns, 200_000)
        self._planned_in = planned_in if timetable.windows else None
        self._window_ns = timetable.window_ns
        self._hangs: list[Hang] = []
        self._given_up: dict[tuple[int, int], Hang] = {}
        self._launched = launched
        blocking = launched
        if timetable.preemptive and len(launched):  # background launches are interrupted: nobody waits for them
            background = np.asarray([model.role == "background" for model in timetable.models], bool)
            blocking = launched[~background[self._owner[launched[:, LaunchLog.PROGRAM]]]]
        units = timetable.program_units
        of_launch = units[blocking[:, LaunchLog.PROGRAM]]
        self._units = {unit: _Unit.of(blocking[of_launch == unit]) for unit in set(units.tolist())}

    def know(self, hangs: Sequence[Hang], frames: _Rows) -> None:
        """Take launches that hung into account; ``frames`` are all of the run."""
        self._hangs = [hang for hang in hangs if hang.blocks]
        by_frame = {(hang.model, hang.frame): hang for hang in hangs}
        if by_frame:
            for row in frames[frames[:, FrameLog.OUTCOME] == FrameOutcome.HUNG].tolist():
                hang = by_frame.get((row[FrameLog.MODEL], row[FrameLog.FRAME]))
                if hang is not None:
                    self._given_up[row[FrameLog.MODEL], row[FrameLog.WINDOW]] = hang

    def no_place(self, model: int, released_ns: int) -> Hang | None:
        """Return what hung while a frame could not be taken."""
        units = {segment.unit for segment in self._models[model].segments}
        return next(
            (
                hang
                for hang in self._hangs
                if hang.unit in units and hang.begin_ns < released_ns + self._window_ns and released_ns < hang.until_ns
            ),
            None,
        )

    def not_given(self, model: int, window: int) -> Hang | None:
        """Return what hung, so that a model did not get what it reads."""
        for name in self._models[model].after:
            giver = next(number for number, planned in enumerate(self._models) if planned.name == name)
            hang = self._given_up.get((giver, window)) or self.not_given(giver, window)
            if hang is not None:
                return hang
        return None

    def worst(self, model: int, frame: int, released_ns: int, window: int, started: int, finished: int) -> _Stage:
        """Return the stage of a frame's model that lost most."""
        planned = self._models[model]
        begins = [0] if self._planned_in is None else _begins(self._planned_in(window).priority).get(planned.name, [0])
        whole = _Stage(planned.segments[0].unit, released_ns + begins[0], started, finished, planned.duration_ns)
        if len(planned.stages) == 1 or len(begins) < len(planned.stages):
            return whole
        if len(begins) == len(planned.segments):  # one a segment, where other models' launches come between them
            begins = [begins[stage[0].index] for stage in planned.stages]
        stages = self._stages(model, planned, frame, released_ns, begins)
        return max(stages, key=lambda stage: max(stage.late_ns, stage.excess_ns), default=whole)

    def _stages(
        self, model: int, planned: PlannedModel, frame: int, released_ns: int, begins: list[int]
    ) -> list[_Stage]:
        """Return the stages that were launched; one is due at its instant, or when the one before is done."""
        rows = self._launched
        program, written, stages = int(np.searchsorted(self._owner, model)), 0, []
        launches = rows[(rows[:, LaunchLog.FRAME] == frame) & (self._owner[rows[:, LaunchLog.PROGRAM]] == model)]
        for stage, begin in zip(planned.stages, begins, strict=False):
            end = program + len(stage)
            mine = launches[(launches[:, LaunchLog.PROGRAM] >= program) & (launches[:, LaunchLog.PROGRAM] < end)]
            if len(mine):
                due, finished = max(released_ns + begin, written), int(mine[:, LaunchLog.FINISHED].max())
                quantile = sum(segment.duration_ns for segment in stage)
                stages.append(_Stage(stage[0].unit, due, int(mine[:, LaunchLog.STARTED].min()), finished, quantile))
                written = finished
            program = end
        return stages

    def why(self, stage: _Stage) -> tuple[MissCause, str]:
        """Return what cost a stage most, and the details."""
        excess, late = stage.excess_ns, stage.late_ns
        if late > max(excess, 0) and (excess <= 0 or late > self.least_late_ns):
            return self._began_late(stage)
        unit, took = self._units[stage.unit], stage.finished_ns - stage.started_ns
        launches = unit.rows[
            np.searchsorted(unit.starts, stage.started_ns) : np.searchsorted(unit.ends, stage.finished_ns, "right")
        ]
        read = launches[launches[:, LaunchLog.CPU] >= 0]
        off = int((read[:, LaunchLog.FINISHED] - read[:, LaunchLog.STARTED] - read[:, LaunchLog.CPU]).sum())
        detail = f"took {took / 1e6:.2f} ms, planned {stage.planned_ns / 1e6:.2f} ms"
        if 2 * off > excess > 0:
            return "contention", f"{detail}; other threads had the core for {off / 1e6:.2f} ms"
        return "own duration", detail

    def _began_late(self, stage: _Stage) -> tuple[MissCause, str]:
        """Explain a late start by what was running then, and by what came before it."""
        for hang in self._hangs:
            held_ns = min(hang.until_ns, stage.started_ns) - max(stage.due_ns, hang.begin_ns)
            if hang.unit == stage.unit and 2 * held_ns > stage.late_ns:
                return "fault", hang.text(stage.due_ns)
        due, unit = stage.due_ns, self._units[stage.unit]
        rows, starts, ends = unit.rows, unit.starts, unit.ends
        before = rows[np.searchsorted(starts, due) : np.searchsorted(ends, stage.started_ns, "right")]
        waited = int((before[:, LaunchLog.FINISHED] - before[:, LaunchLog.STARTED]).sum())
        first = int(np.searchsorted(ends, due, "right"))
        running = rows[first] if first < len(rows) and starts[first] < due else None
        blocked = 0 if running is None else int(running[LaunchLog.FINISHED]) - due
        if 2 * (blocked + waited) <= stage.late_ns:
            idle = not (blocked or waited or self._preemptive)
            return "late wake-up", f"started {stage.late_ns / 1e6:.2f} ms late" + (
                ", nothing ran before" if idle else ""
            )
        background = running is not None and self._models[self._owner[running[LaunchLog.PROGRAM]]].role == "background"
        if running is None or not background or blocked < waited:
            return "backlog", f"it waited {stage.late_ns / 1e6:.2f} ms for an earlier priority frame"
        program = int(running[LaunchLog.PROGRAM])
        ran = int(running[LaunchLog.FINISHED] - running[LaunchLog.STARTED])
        off = ran - int(running[LaunchLog.CPU]) if running[LaunchLog.CPU] >= 0 else 0
        detail = (
            f"{self._labels[program]} took {ran / 1e6:.2f} ms, planned {self._quantiles[program] / 1e6:.2f} ms, "
            f"and ended {blocked / 1e6:.2f} ms after the instant"
        )
        return "contention" if 2 * off > ran - self._quantiles[program] > 0 else "overrun", detail


def _begins(periods: Sequence[PriorityPeriod]) -> dict[str, list[int]]:
    """Return by model when its stages are due in a window, in order."""
    begins: dict[str, list[int]] = {}
    for period in sorted(periods, key=lambda period: period.start_ns):
        begins.setdefault(period.model, []).append(period.start_ns)
    return begins
