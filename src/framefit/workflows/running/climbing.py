"""A plan's ladder in a run: rungs for its dispatcher, and when the rates change."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence

from framefit.core.grid import Grid
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.errors import InfeasibleError
from framefit.runtime.beat.dispatcher import Dispatcher, instants
from framefit.runtime.beat.drift import LEAST_RECENT, Drift
from framefit.runtime.beat.ladder import Ladder
from framefit.runtime.beat.rungs import Rung, Stretch
from framefit.runtime.beat.timed import TimedExecution
from framefit.runtime.models.job import Job, Launchable, Part
from framefit.workflows.plan import Notify, Plan, retimed
from framefit.workflows.planning.rungs import Cuts, PlannedLadder, PlannedRung
from framefit.workflows.planning.task import PlannedTask

__all__ = ["Climb", "deadline_ns"]

_RECENT_S = 0.5  # launches of so long are looked at: what disturbs a shared machine lasts tens of milliseconds


class Climb:
    """The ladder of one run.

    Args:
        planned: feasible, on one unit.
        device: that launches go to.
        run: of its unit, before it begins.
        jobs: of the plan's models, in its order.

    Attributes:
        timetables: that may be in force, by the numbers of the run's rungs.
    """

    def __init__(self, planned: Plan, device: Device, run: Dispatcher, jobs: Sequence[Job]) -> None:
        self._planned, self._device, self._run = planned, device, run
        self._timed = isinstance(jobs[0].execution, TimedExecution)
        self._ladder = planned.ladder or _only(planned)
        self._firsts = _first_programs(self._ladder.cuts)
        self._executions: dict[tuple[int, int], Launchable] = {(0, m): job.execution for m, job in enumerate(jobs)}
        self.timetables = [rung.timetable for rung in self._ladder.rungs]
        rungs = {rung.name: self._rung(number, rung) for number, rung in enumerate(self._ladder.rungs)}
        self._tracks = [[rungs[rung.name] for rung in track] for track in self._ladder.tracks()]
        drift = None
        if planned.workload.schedule.ladder:
            recent = max(LEAST_RECENT, round(_RECENT_S * planned.workload.beat_hz))
            drift = Drift(*self._quantiles(rungs.values()), recent)
        self._rungs = Ladder(run, self._tracks, drift)
        self._asked_hz: dict[str, float] = {}
        self._asking = threading.Lock()
        self._stretches = self._announced()
        for stretch in self._stretches[1:]:
            self._turn(stretch.rung.grid, stretch.window, stretch.why)

    def windows_in(self, seconds: float) -> int:
        """Windows that begin within a time, with the rates that were announced."""
        until_ns = seconds * 1e9
        last = max((one for one in self._stretches if one.begins_ns < until_ns), key=lambda one: one.window)
        return last.window + last.rung.grid.windows_in((until_ns - last.begins_ns) / 1e9)

    def set_rate(self, stream: str, rate_hz: float, notify: Notify) -> None:
        """Have a stream come at another rate, from the first window on in which that may be.

        Where no timetable was made ahead for the rates that all streams then have, one is made now, of the plan's
        own segments. Until it is there the run goes on as before.

        Args:
            stream: its name.
            rate_hz: frames a second.
            notify: receives what is being done.

        Raises:
            InputError: the rates hardly ever meet.
            InfeasibleError: the segments do not fit; the rates stay as they are.
        """
        with self._asking:
            begun = [one.window <= self._run.windows for one in self._stretches]
            told = [self._planned.workload, *(changed for _, changed in self._ladder.changes)][sum(begun) - 1]
            asked_hz = self._asked_hz | {stream: rate_hz}
            workload = told.at_rates(asked_hz)
            if all(track[0].grid != workload.grid for track in self._tracks):
                self._plan_for(workload, notify)
            self._asked_hz = asked_hz
            self._turn(workload.grid, 0, f"{stream} comes at {rate_hz:g} Hz")

    def _plan_for(self, workload: Workload, notify: Notify) -> None:
        """A timetable for rates that nobody knew of."""
        timetable = retimed(self._planned, workload, notify)
        if not timetable.feasible:
            raise InfeasibleError(
                f"the present segments do not fit at these rates: {timetable.binding_constraint}",
                where=self._planned.app,
                remedy="name the rate in the stream's rates_hz: then models are cut for it ahead of the run",
            )
        rung = PlannedRung(f"{workload.beat_hz:g}Hz", timetable, workload, (1.0, 1.0), self._ladder.rungs[0].cuts)
        self.timetables.append(timetable)
        track = [self._rung(len(self.timetables) - 1, rung)]
        self._rungs.add(track)
        self._tracks.append(track)

    def _turn(self, grid: Grid, window: int, why: str) -> None:
        """Ask for rungs with these windows."""
        number = next(number for number, track in enumerate(self._tracks) if track[0].grid == grid)
        self._rungs.turn(number, window, why)

    def _announced(self) -> list[Stretch]:
        """What will be in force as the streams have announced it, from a first release at 0 on."""
        stretches = [Stretch(0, 0, 0, self._tracks[0][0])]
        for after_s, workload in self._ladder.changes:
            track = next(track for track in self._tracks if track[0].grid == workload.grid)
            rates = ", ".join(f"{name} {rate:g} Hz" for name, rate in workload.rates_hz.items())
            window = _first_boundary(stretches[-1], track[0], round(after_s * 1e9))
            stretches.append(stretches[-1].followed_by(track[0], window, f"rates: {rates}"))
        return stretches

    def _rung(self, number: int, rung: PlannedRung) -> Rung:
        """For the run."""
        index = {self._planned.tasks[job.model or 0].name: place for place, job in enumerate(self._run.jobs)}
        grid = rung.workload.grid
        return Rung(
            grid,
            _shortest(instants(rung.timetable, index), len(grid.offsets_ns)),
            rung.timetable.guard_ns,
            [self._part(rung, job.model or 0) for job in self._run.jobs],
            covers=rung.covers,
            name=rung.name,
            number=number,
        )

    def _part(self, rung: PlannedRung, model: int) -> Part:
        """Of one model's job; launched by what was first compiled for the same cut."""
        ladder, task = self._ladder, self._planned.tasks[model]
        begins, finest = rung.cuts.begins[model], ladder.finest
        same = next(n for n, cuts in enumerate(ladder.cuts) if cuts.begins[model] == begins)
        slower = rung.covers[0] if task.priority else rung.covers[1]
        bridge = None
        if finest.begins[model] != begins:
            bridge = Part(
                self._execution(len(ladder.cuts) - 1, finest, model),
                self._firsts[-1][model],
                [math.ceil(segment.duration_ns * slower) for segment in finest.models[model].segments],
                deadline_ns(task, rung.workload.grid),
                finest.begins[model],
            )
        return Part(
            self._execution(same, ladder.cuts[same], model),
            self._firsts[same][model],
            [segment.duration_ns for segment in rung.cuts.models[model].segments],
            deadline_ns(task, rung.workload.grid),
            begins,
            bridge,
        )

    def _execution(self, number: int, cuts: Cuts, model: int) -> Launchable:
        """What launches a model in one of the cuts; with time only, where the run has no frames."""
        found = self._executions.get((number, model))
        if found is None:
            made = cuts.executions[model]
            made.through(self._device)
            made.guard_state(self._planned.tasks[model].wired.entry.on_nan != "ignore")
            found = TimedExecution(self._device, made.labels, made.bindings) if self._timed else made
            self._executions[number, model] = found
        return found

    def _quantiles(self, rungs: Iterable[Rung]) -> tuple[dict[int, int], dict[int, int]]:
        """Of each program, were nothing slower: of priority models, and of background models."""
        ladder = self._ladder
        found: tuple[dict[int, int], dict[int, int]] = {}, {}
        covers = [*(rung.covers for rung in ladder.rungs), (1.0, 1.0)]
        for cuts, firsts, (priority, background) in zip(ladder.cuts, self._firsts, covers, strict=True):
            for model, first in zip(cuts.models, firsts, strict=True):
                role = model.role == "background"
                ratio = background if role else priority
                for place, segment in enumerate(model.segments):
                    found[role][first + place] = round(segment.duration_ns / ratio)
        used = {
            part.first_program + place
            for rung in rungs
            for part in rung.parts
            for place in range(len(part.estimates_ns))
        }
        priority_ns = {program: ns for program, ns in found[0].items() if program in used}
        return priority_ns, found[1]


def _only(planned: Plan) -> PlannedLadder:
    """A plan's own timetable as a ladder."""
    (cuts,) = planned.cuts
    return PlannedLadder((PlannedRung("planned", planned.timetable, planned.workload, (1.0, 1.0), cuts),), cuts, ())


def deadline_ns(task: PlannedTask, grid: Grid) -> int | None:
    """After a frame's release: as given, else of a priority model the next release of its stream.

    Args:
        task: the model.
        grid: that has its stream.
    """
    if task.wired.entry.deadline_ms is not None:
        return round(task.wired.entry.deadline_ms * 1e6)
    return grid.period_ns(min(task.wired.in_step, default="")) if task.priority else None


def _first_programs(cuts: Sequence[Cuts]) -> list[list[int]]:
    """Number of each model's first program in each of the cuts."""
    first = 0
    found: list[list[int]] = []
    for one in cuts:
        found.append([])
        for model in one.models:
            found[-1].append(first)
            first += len(model.segments)
    return found


def _first_boundary(stretch: Stretch, rung: Rung, after_ns: int) -> int:
    """The first window that begins at a time or later, and with which a rung may follow."""
    count = len(stretch.rung.reserved)
    length_ns = stretch.release_ns(stretch.origin + count) - stretch.begins_ns
    window = stretch.origin + count * max((after_ns - stretch.begins_ns) // length_ns - 1, 0)
    while stretch.release_ns(window) < after_ns or not stretch.may_end(rung, window):
        window += 1
    return window


def _shortest(due: Sequence[Sequence[tuple[int, int]]], pattern: int) -> Sequence[Sequence[tuple[int, int]]]:
    """The part of a repeating pattern that it repeats, whole patterns of the grid."""
    for count in range(pattern, len(due), pattern):
        if len(due) % count == 0 and all(due[place] == due[place % count] for place in range(len(due))):
            return due[:count]
    return due
