"""Explain why priority frames were not ready in time.

Launches that hung or failed, and which frames of others that cost their time.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.faults import Injection, injected_in, mark_of
from framefit.core.run_record import Miss, MissCause
from framefit.core.timetable import PlannedModel, PriorityPeriod, Timetable, Window
from framefit.runtime.log import FAULTY, FrameLog, FrameOutcome, LaunchLog, in_words
from framefit.runtime.recovery import Migration

_Rows = npt.NDArray[np.int64]
NO_EVENT_MISSED = (FrameOutcome.TOO_SOON, FrameOutcome.RUN_ENDED)
"""What may become of an event of a sporadic model without being a miss."""


@dataclass(frozen=True)
class FailedLaunch:
    """Describes a launch that hung, or failed, and the time that it took from others.

    Attributes:
        model: its number.
        frame: that was given up, or tried again.
        label: model and segment.
        window: in which it was launched.
        unit: that it held.
        begin_ns: since when at most.
        end_ns: when it was terminated, or failed.
        until_ns: when the last priority frame was done that had waited for it.
        blocks: whether others waited: nobody does where they may interrupt it.
        hung: whether it was terminated; else it failed by itself.
        mark: names the injected fault; "": it failed for real.
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
    hung: bool
    mark: str

    def text(self, due_ns: int | None = None) -> str:
        """Describe it in words; ``due_ns`` is the instant at which another model was due."""
        how, end = ("hung for", "was terminated") if self.hung else ("failed after", "failed")
        words = f"{self.label} in window {self.window} {how} {(self.end_ns - self.begin_ns) / 1e6:.2f} ms{self.mark}"
        if due_ns is None:
            return words
        if due_ns < self.end_ns:
            return f"{words}, and {end} {(self.end_ns - due_ns) / 1e6:.2f} ms after the instant"
        return f"{words}; earlier priority frames that had waited for it came first"


def failed_launches(
    timetable: Timetable,
    launches: LaunchLog,
    hung: Collection[tuple[int, int]],
    faults: Mapping[tuple[int, int], str],
    gap_ns: int,
) -> list[FailedLaunch]:
    """Find the launches that hung, and those that took some time to fail, in the order of the log.

    Args:
        timetable: what was launched.
        launches: all of the run, those that failed too.
        hung: models' numbers and frames of which one was terminated.
        faults: number of a model and its frame -> what went wrong.
        gap_ns: between two launches that follow one another, at most; what fails sooner costs nobody anything.
    """
    rows = launches.rows()
    failed = rows[rows[:, LaunchLog.FINISHED] < 0].tolist()
    if not failed:
        return []
    priority = np.asarray([model.role != "background" for model in timetable.models], bool)
    owner, model_of = _owners(timetable)
    labels = [f"{model.name}[{segment.index}]" for model in timetable.models for segment in model.segments]
    units = timetable.program_units
    ended = rows[rows[:, LaunchLog.FINISHED] >= 0]
    ended = ended[np.argsort(ended[:, LaunchLog.STARTED], kind="stable")]
    by_unit = {unit: ended[units[ended[:, LaunchLog.PROGRAM]] == unit] for unit in set(units.tolist())}
    # Of the launches of a frame that failed, the last one is the one with which it was given up.
    last = {(int(model_of[row[LaunchLog.PROGRAM]]), row[LaunchLog.FRAME]): row for row in failed}
    failures = []
    for (model, frame), row in last.items():
        program, end_ns = row[LaunchLog.PROGRAM], row[LaunchLog.STARTED]  # of a launch that failed: when it did
        ready_ns, unit = min(row[LaunchLog.READY], end_ns), str(units[program])
        if (model, frame) not in hung and end_ns - ready_ns <= gap_ns:
            continue
        later, until_ns = by_unit[unit], end_ns
        for launch in later[np.searchsorted(later[:, LaunchLog.STARTED], end_ns) :]:
            if launch[LaunchLog.STARTED] - until_ns > gap_ns or not priority[owner[launch[LaunchLog.PROGRAM]]]:
                break
            until_ns = int(launch[LaunchLog.FINISHED])
        failures.append(
            FailedLaunch(
                model,
                frame,
                labels[program],
                row[LaunchLog.WINDOW],
                unit,
                ready_ns,
                end_ns,
                until_ns,
                blocks=bool(priority[model]) or not timetable.preemptive,
                hung=(model, frame) in hung,
                mark=_mark(injected_in(faults.get((model, frame), ""))),
            )
        )
    return failures


def _owners(timetable: Timetable) -> tuple[_Rows, _Rows]:
    """Return of each program the entry among the timetable's models, and the number of the model.

    They differ where models stand there once for each of their cuts.
    """
    owner = np.repeat(np.arange(len(timetable.models)), [len(model.segments) for model in timetable.models])
    names = [model.name for model in timetable.models]
    return owner, np.asarray([names.index(name) for name in names], np.int64)[owner]


def _mark(fault: str) -> str:
    """Return the end of a sentence that names an injected fault; "" of none."""
    return fault and f" {mark_of(fault)}"


@dataclass(frozen=True)
class _Stage:
    """Holds what one unit did for a late frame, and when that was planned.

    Attributes:
        programs: numbers of the first, and behind the last.
    """

    programs: tuple[int, int]
    unit: str
    released_ns: int
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


_NO_PLACE = {
    FrameOutcome.QUEUE_FULL: "its queue was full",
    FrameOutcome.REFUSED: "its queue was full",
    FrameOutcome.OVERDUE: "its deadline had passed while it waited",
}


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
    injections: Sequence[Injection] = (),
    migrations: Sequence[Migration] = (),
    ended: str = "",
) -> list[Miss]:
    """Explain every miss of a priority model by what cost it most.

    A late start is blamed on the background launch that ran over the instant (overrun),
    on earlier priority frames (backlog), or on nothing that ran (late wake-up). A long
    run is blamed on other threads where the processor was given to them (contention),
    else on the model's own duration. Of a model on several units the stage counts that lost most. Where the
    host kept the machine from running in that window, that is the cause: its clock went on. A launch of another
    frame that hung or failed is named (fault) by those that waited for it, found no place meanwhile, or read its
    model. What waits for earlier frames, or finds no place because of them, names what had made these late.

    Args:
        timetable: what was planned.
        launches: all launches of the run.
        frames: all frames of the run.
        floor_p99_ns: how late the idle machine wakes up.
        stalled: window -> time that the host took, where it is known.
        faults: number of a model and its frame -> what went wrong.
        hung: numbers of models and their frames of which a launch hung.
        planned_in: what was planned for a window of the run; default: the timetable's windows, which repeat.
        injections: faults that were injected, which are named where they made a frame late.
        migrations: models that went on on another unit, because theirs had failed.
        ended: what made the run fail; "": nothing did.
    """
    rows = frames.rows()
    roles = np.asarray([model.role == "background" for model in timetable.models], bool)
    in_time = np.isin(rows[:, FrameLog.OUTCOME], (FrameOutcome.DONE, FrameOutcome.SKIPPED))
    sporadic = np.asarray([model.role == "sporadic" for model in timetable.models], bool)[rows[:, FrameLog.MODEL]]
    in_time |= sporadic & np.isin(rows[:, FrameLog.OUTCOME], NO_EVENT_MISSED)
    missed = rows[~in_time & ~roles[rows[:, FrameLog.MODEL]]].tolist()  # the only frames that are looked at one by one
    if not missed:
        return []
    windows = timetable.windows
    looking = _Looking(
        timetable,
        launches.finished(),
        floor_p99_ns,
        planned_in or (lambda window: windows[window % len(windows)]),
        rows,
        faults or {},
        injections,
        migrations,
        ended,
    )
    looking.know(failed_launches(timetable, launches, hung, faults or {}, looking.least_late_ns))
    # Frames that were consumed together count from the newest one's release.
    together = {(row[FrameLog.MODEL], row[FrameLog.FINISHED]): row[FrameLog.RELEASED] for row in missed}
    explained: dict[int, Miss] = {}
    # Frames that found no place come last: those that had it are explained by then.
    for at in sorted(range(len(missed)), key=lambda at: missed[at][FrameLog.OUTCOME] in _NO_PLACE):
        row = missed[at]
        cause, detail = looking.explain(
            row, together[row[FrameLog.MODEL], row[FrameLog.FINISHED]], stalled_ns=(stalled or {}).get(row[-1], 0)
        )
        explained[at] = Miss(
            window=row[FrameLog.WINDOW],
            model=timetable.models[row[FrameLog.MODEL]].name,
            cause=cause,
            detail=detail,
            injected=injected_in(detail),
        )
    return [explained[at] for at in range(len(missed))]


class _Looking:
    """Searches all launches of a run for what delayed a late frame.

    Attributes:
        least_late_ns: later than that is no idle machine's wake-up.
    """

    def __init__(
        self,
        timetable: Timetable,
        launched: _Rows,
        floor_p99_ns: int,
        planned_in: Callable[[int], Window],
        frames: _Rows,
        faults: Mapping[tuple[int, int], str],
        injections: Sequence[Injection],
        migrations: Sequence[Migration],
        ended: str,
    ) -> None:
        self._models, self._preemptive = timetable.models, timetable.preemptive
        self._owner, self._model_of = _owners(timetable)
        segments = [(model, segment) for model in timetable.models for segment in model.segments]
        self._labels = [f"{model.name}[{segment.index}]" for model, segment in segments]
        self._quantiles = [segment.duration_ns for _, segment in segments]
        self.least_late_ns = max(10 * floor_p99_ns, 200_000)
        self._planned_in = planned_in if timetable.windows else None
        self._window_ns = timetable.window_ns
        self._failed: list[FailedLaunch] = []
        self._failed_frames: dict[tuple[int, int], FailedLaunch] = {}
        self._launched, self._frames, self._faults = launched, frames, faults
        blocking = launched
        if timetable.preemptive and len(launched):  # background launches are interrupted: nobody waits for them
            background = np.asarray([model.role == "background" for model in timetable.models], bool)
            blocking = launched[~background[self._owner[launched[:, LaunchLog.PROGRAM]]]]
        self._program_units = units = timetable.program_units
        of_launch = units[blocking[:, LaunchLog.PROGRAM]]
        self._units = {unit: _Unit.of(blocking[of_launch == unit]) for unit in set(units.tolist())}
        self._injected = {(injection.place, injection.at_ns): injection.fault for injection in injections}
        self._migrations = migrations
        sticks = [injection.fault for injection in injections if injection.fault.startswith("stick:")]
        self._ended = ended + _mark(sticks[-1]) if sticks and not injected_in(ended) else ended
        self._roots: dict[tuple[int, int], str] = {}
        self._late: dict[int, tuple[list[int], list[int]]] = {}
        self._frames_by_model: dict[int, _Rows] = {}
        self._faulty: dict[int, list[int]] = {}
        for model, frame in sorted(faults):
            self._faulty.setdefault(model, []).append(frame)

    def know(self, failed: Sequence[FailedLaunch]) -> None:
        """Take launches that hung or failed into account."""
        self._failed = [launch for launch in failed if launch.blocks]
        self._failed_frames = {(launch.model, launch.frame): launch for launch in failed}

    def explain(self, row: list[int], released_ns: int, *, stalled_ns: int) -> tuple[MissCause, str]:
        """Return why a frame was missed, and the details.

        Args:
            row: of the frame in the log.
            released_ns: what it counts from.
            stalled_ns: how long the host kept the machine from running in its window.
        """
        model, frame, outcome = row[FrameLog.MODEL], row[FrameLog.FRAME], FrameOutcome(row[FrameLog.OUTCOME])
        cause: MissCause
        if outcome == FrameOutcome.RUN_ENDED:
            cause, detail = "run ended", "unfinished at the end of the run"
            if root := self._roots.get((model, frame - 1)):
                detail += f", behind an earlier frame: {root}"
            if self._ended:
                cause, detail = "fault", f"unfinished when the run failed: {self._ended}"
        elif outcome in FAULTY:
            cause, detail = "fault", self._fault(model, frame, outcome)
        elif outcome == FrameOutcome.NOT_GIVEN:
            cause, detail = self._not_given(model, row[FrameLog.WINDOW])
        elif outcome in _NO_PLACE:
            return self._no_place(model, row[FrameLog.RELEASED], row[FrameLog.WINDOW], _NO_PLACE[outcome])
        else:
            cause, detail = self._late_frame(row, released_ns, stalled_ns)
        self._roots.setdefault((model, frame), f"{self._models[model].name} in window {row[FrameLog.WINDOW]}: {detail}")
        return cause, detail

    def _fault(self, model: int, frame: int, outcome: FrameOutcome) -> str:
        """Return what went wrong with a frame, or with those for which its model rests."""
        words = in_words(outcome)[1].removeprefix("fault: ")
        if outcome == FrameOutcome.DEGRADED:
            frames = self._faulty.get(model, [])
            at = bisect.bisect_left(frames, frame) - 1
            return f"{words}: {self._first_line(model, frames[at])}" if at >= 0 else words
        if text := self._first_line(model, frame):
            return text
        if not self._injected:
            return words
        rows = self._launched
        mine = (rows[:, LaunchLog.FRAME] == frame) & (self._model_of[rows[:, LaunchLog.PROGRAM]] == model)
        return words + self._mark_of(rows[mine])

    def _first_line(self, model: int, frame: int) -> str:
        """Return what went wrong with a frame, without the remedy; ""."""
        return self._faults.get((model, frame), "").partition("\n")[0]

    def _mark_of(self, launches: _Rows) -> str:
        """Return what names the fault that was injected into one of these launches; ""."""
        for launch in launches[:, [LaunchLog.PROGRAM, LaunchLog.STARTED]].tolist() if self._injected else ():
            fault = self._injected.get((str(self._program_units[launch[0]]), launch[1]), "")
            if fault:
                return _mark(fault)
        return ""

    def _not_given(self, model: int, window: int) -> tuple[MissCause, str]:
        """Return why a model did not get what it reads."""
        words = in_words(FrameOutcome.NOT_GIVEN)[1]
        for name in self._models[model].after:
            giver = next(number for number, planned in enumerate(self._models) if planned.name == name)
            for row in self._frames_where(giver, FrameLog.WINDOW, window):
                outcome, frame = FrameOutcome(row[FrameLog.OUTCOME]), row[FrameLog.FRAME]
                failed = self._failed_frames.get((giver, frame))
                if outcome == FrameOutcome.NOT_GIVEN:
                    return self._not_given(giver, window)
                if outcome in FAULTY:
                    text = self._fault(giver, frame, outcome) if failed is None else failed.text()
                    return "fault", f"{words}: {text}"
                if outcome not in (FrameOutcome.DONE, FrameOutcome.LATE, FrameOutcome.SKIPPED):
                    return "stream", f"{words}: of {name}, {in_words(outcome)[1]}"
        return "stream", words

    def _no_place(self, model: int, released_ns: int, window: int, words: str) -> tuple[MissCause, str]:
        """Return why a frame found no place in its queue, or lost it; ``words``: which of both."""
        units = {segment.unit for segment in self._models[model].segments}
        for failed in self._failed:
            meanwhile = failed.begin_ns < released_ns + self._window_ns and released_ns < failed.until_ns
            if failed.unit in units and meanwhile:
                return "fault", f"{words}: {failed.text()}"
        for migration in self._migrations:
            if migration.model == model and window <= migration.window:
                detail = f"unit {migration.unit!r} had failed, and its model went on on {migration.to!r}"
                return "fault", f"{words}: {detail} from window {migration.window} on"
        root = self._burst(model, released_ns) or self._in_the_way(model, released_ns)
        return "backlog", f"{words}: {root}" if root else "earlier frames took longer than their windows"

    def _frames_where(self, model: int, column: int, value: int) -> list[list[int]]:
        """Return a model's frames of one window, or of one release."""
        if model not in self._frames_by_model:
            mine = self._frames[self._frames[:, FrameLog.MODEL] == model]
            self._frames_by_model[model] = mine[np.argsort(mine[:, FrameLog.WINDOW], kind="stable")]
        rows = self._frames_by_model[model]  # in order of windows, and so of releases
        first, end = (int(np.searchsorted(rows[:, column], value, side)) for side in ("left", "right"))
        frames: list[list[int]] = rows[first:end].tolist()
        return frames

    def _burst(self, model: int, released_ns: int) -> str:
        """Return how many frames came at once, where it was more than one; ""."""
        mine = self._frames_where(model, FrameLog.RELEASED, released_ns)
        if len(mine) < 2:
            return ""
        faults = (fault for (_, at_ns), fault in self._injected.items() if at_ns == released_ns)
        fault = next((fault for fault in faults if fault.startswith("burst:")), "")
        return f"{len(mine)} frames came at once in window {mine[0][FrameLog.WINDOW]}{_mark(fault)}"

    def _in_the_way(self, model: int, released_ns: int) -> str:
        """Return what had made the frame late that was not done yet when another one of its model came; ""."""
        if model not in self._late:
            rows = self._frames
            late = rows[(rows[:, FrameLog.MODEL] == model) & (rows[:, FrameLog.OUTCOME] == FrameOutcome.LATE)]
            self._late[model] = late[:, FrameLog.FRAME].tolist(), late[:, FrameLog.FINISHED].tolist()
        numbers, ends = self._late[model]
        at = bisect.bisect_right(ends, released_ns)
        return self._roots.get((model, numbers[at]), "") if at < len(ends) else ""

    def _late_frame(self, row: list[int], released_ns: int, stalled_ns: int) -> tuple[MissCause, str]:
        """Return why a frame was done late."""
        model, frame, window = row[FrameLog.MODEL], row[FrameLog.FRAME], row[FrameLog.WINDOW]
        stage = self.worst(model, frame, released_ns, window, row[FrameLog.STARTED], row[FrameLog.FINISHED])
        given = self._given_late(model, stage, window)
        if given is not None:
            return given
        cause, detail = self.why(stage, (model, frame))
        if 2 * stalled_ns > max(stage.late_ns, stage.excess_ns) > 0 and cause not in ("backlog", "fault"):
            return "host stall", f"the host stopped this machine for {stalled_ns / 1e6:.0f} ms; {detail}"
        return cause, detail

    def _given_late(self, model: int, stage: _Stage, window: int) -> tuple[MissCause, str] | None:
        """Return why a model got what it reads late; ``None``: that is not what made it late."""
        for name in self._models[model].after:
            giver = next(number for number, planned in enumerate(self._models) if planned.name == name)
            for row in self._frames_where(giver, FrameLog.WINDOW, window):
                waited_ns = min(row[FrameLog.FINISHED], stage.started_ns) - stage.due_ns
                if 2 * waited_ns > max(stage.late_ns, stage.excess_ns):
                    cause, detail = self._late_frame(row, row[FrameLog.RELEASED], 0)
                    return cause, f"{name} gave what it reads {waited_ns / 1e6:.2f} ms late: {detail}"
        return None

    def worst(self, model: int, frame: int, released_ns: int, window: int, started: int, finished: int) -> _Stage:
        """Return the stage of a frame's model that lost most."""
        planned = self._models[model]
        begins = [0] if self._planned_in is None else _begins(self._planned_in(window).priority).get(planned.name, [0])
        first = int(np.searchsorted(self._owner, model))
        programs = first, first + len(planned.segments)
        due_ns = released_ns + begins[0]
        unit, quantile = planned.segments[0].unit, planned.duration_ns
        whole = _Stage(programs, unit, released_ns, due_ns, started, finished, quantile)
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
                started = int(mine[:, LaunchLog.STARTED].min())
                programs = program, end
                stages.append(_Stage(programs, stage[0].unit, released_ns, due, started, finished, quantile))
                written = finished
            program = end
        return stages

    def why(self, stage: _Stage, of: tuple[int, int]) -> tuple[MissCause, str]:
        """Return what cost a stage of a model and frame most, and the details."""
        excess, late = stage.excess_ns, stage.late_ns
        if late > max(excess, 0) and (excess <= 0 or late > self.least_late_ns):
            return self._began_late(stage, of)
        unit, took = self._units[stage.unit], stage.finished_ns - stage.started_ns
        launches = unit.rows[
            np.searchsorted(unit.starts, stage.started_ns) : np.searchsorted(unit.ends, stage.finished_ns, "right")
        ]
        read = launches[launches[:, LaunchLog.CPU] >= 0]
        off = int((read[:, LaunchLog.FINISHED] - read[:, LaunchLog.STARTED] - read[:, LaunchLog.CPU]).sum())
        detail = f"took {took / 1e6:.2f} ms, planned {stage.planned_ns / 1e6:.2f} ms{self._mark_of(launches)}"
        if 2 * off > excess > 0:
            return "contention", f"{detail}; other threads had the core for {off / 1e6:.2f} ms"
        return "own duration", detail

    def _began_late(self, stage: _Stage, of: tuple[int, int]) -> tuple[MissCause, str]:
        """Explain a late start by what was running then, and by what came before it."""
        for failed in self._failed:
            held_ns = min(failed.until_ns, stage.started_ns) - max(stage.due_ns, failed.begin_ns)
            if failed.unit == stage.unit and 2 * held_ns > stage.late_ns:
                return "fault", failed.text(stage.due_ns)
        due, unit = stage.due_ns, self._units[stage.unit]
        rows, starts, ends = unit.rows, unit.starts, unit.ends
        before = rows[np.searchsorted(starts, due) : np.searchsorted(ends, stage.started_ns, "right")]
        # A model that still has the frame before to do at the instant is one frame behind: it does one a window.
        first, end = stage.programs
        own = before[(before[:, LaunchLog.PROGRAM] >= first) & (before[:, LaunchLog.PROGRAM] < end)]
        own = own[(own[:, LaunchLog.STARTED] < stage.started_ns) & (own[:, LaunchLog.FRAME] != of[1])]
        if len(own):
            return self._behind(stage, of, own)
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
            return self._behind(stage, of, before if running is None else np.vstack([running[None], before]))
        program = int(running[LaunchLog.PROGRAM])
        ran = int(running[LaunchLog.FINISHED] - running[LaunchLog.STARTED])
        off = ran - int(running[LaunchLog.CPU]) if running[LaunchLog.CPU] >= 0 else 0
        detail = (
            f"{self._labels[program]} took {ran / 1e6:.2f} ms, planned {self._quantiles[program] / 1e6:.2f} ms"
            f"{self._mark_of(running[None])}, and ended {blocked / 1e6:.2f} ms after the instant"
        )
        return "contention" if 2 * off > ran - self._quantiles[program] > 0 else "overrun", detail

    def _behind(self, stage: _Stage, of: tuple[int, int], launches: _Rows) -> tuple[MissCause, str]:
        """Explain a frame that waited for earlier ones by what had made these late.

        Args:
            stage: of the frame.
            of: its model and number.
            launches: that it waited for.
        """
        lasted = launches[:, LaunchLog.FINISHED] - launches[:, LaunchLog.STARTED]
        blamed = launches[int(np.argmax(lasted))]
        program, frame = int(blamed[LaunchLog.PROGRAM]), int(blamed[LaunchLog.FRAME])
        model = int(self._model_of[program])
        root = self._roots.get((model, frame)) or (self._burst(of[0], stage.released_ns) if model == of[0] else "")
        if not root:
            took = f"took {int(lasted.max()) / 1e6:.2f} ms, planned {self._quantiles[program] / 1e6:.2f} ms"
            root = f"{self._labels[program]} in window {blamed[LaunchLog.WINDOW]} {took}{self._mark_of(blamed[None])}"
        self._roots[of] = root
        return "backlog", f"it waited {stage.late_ns / 1e6:.2f} ms for an earlier priority frame: {root}"


def _begins(periods: Sequence[PriorityPeriod]) -> dict[str, list[int]]:
    """Return by model when its stages are due in a window, in order."""
    begins: dict[str, list[int]] = {}
    for period in sorted(periods, key=lambda period: period.start_ns):
        begins.setdefault(period.model, []).append(period.start_ns)
    return begins
