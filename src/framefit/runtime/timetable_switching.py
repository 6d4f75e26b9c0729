"""Which timetable a run has in force: the rungs of its ladder, and changes of its streams' rates."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from framefit.core.grid import Grid
from framefit.core.timetable import PlannedModel, PlannedRung, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.errors import InfeasibleError
from framefit.execution.compiled import CompiledModel, OpenTimetable
from framefit.execution.execution import Launchable, TimedExecution
from framefit.runtime.job import Job, Part
from framefit.runtime.loop import instants
from framefit.runtime.switching import LEAST_RECENT, Drift, Ladder, Rung, Share, Stretch, TimetableSwitcher

_RECENT_S = 0.5  # launches of so long are looked at: what disturbs a shared machine lasts tens of milliseconds
_Due = tuple[list[tuple[int, int]], ...]  # of each unit in a window: when after its release which job is


class TimetableSwitching:
    """Which timetable a run has in force: rungs of its ladder, and rates of its streams.

    Args:
        opened: feasible, its models compiled.
        device: that launches go to.
        unit_jobs: of each unit that has some, by number.
        jobs: of each model's stages, in the plan's order.

    Attributes:
        timetables: that may be in force, by the numbers of the run's rungs.
        switcher: for the run's units.
        observers: unit -> what observes its launches; none where durations change nothing.
    """

    def __init__(
        self,
        opened: OpenTimetable,
        device: Device,
        unit_jobs: Mapping[str, Sequence[Job]],
        jobs: Sequence[Sequence[Job]],
    ) -> None:
        self._opened, self._device, self._unit_jobs = opened, device, unit_jobs
        self._timed = isinstance(jobs[0][0].execution, TimedExecution)
        self._cuts, self._firsts = opened.timetable.cuts, opened.timetable.first_programs
        self._changes = opened.workload.announced()
        planned = PlannedRung(name="planned", timetable=opened.timetable, workload=opened.workload, covers=(1.0, 1.0))
        ladder = opened.timetable.ladder
        self._planned_rungs = (planned, *(ladder.rungs if ladder else ()))
        self._stages = {id(job): number for stages in jobs for number, job in enumerate(stages)}
        self._executions: dict[tuple[int, int], Sequence[Launchable]] = {
            (0, model): [job.execution for job in stages] for model, stages in enumerate(jobs)
        }
        self.timetables = list(opened.timetable.timetables)
        rungs = [self._rung(number, rung, number) for number, rung in enumerate(self._planned_rungs)]
        self._tracks: list[list[Rung]] = []
        for rung in rungs:  # those of the same rates together, the plan's own first
            track = next((track for track in self._tracks if track[0].grid == rung.grid), None)
            if track is None:
                self._tracks.append([rung])
            else:
                track.append(rung)
        drifts = self._drifts(rungs) if opened.workload.schedule.ladder else []
        self.switcher = TimetableSwitcher(rungs[0])
        self._rungs = Ladder(self.switcher, self._tracks, drifts)
        self.observers = dict(zip(unit_jobs, self._rungs.observers, strict=False))
        self._requested_hz: dict[str, float] = {}
        self._requesting = threading.Lock()
        self._stretches = self._announced()
        for stretch in self._stretches[1:]:
            self._turn(stretch.rung.grid, stretch.window, stretch.why)

    def windows_in(self, seconds: float) -> int:
        """Windows that begin within a time, with the rates that were announced."""
        until_ns = seconds * 1e9
        last = max(
            (stretch for stretch in self._stretches if stretch.begins_ns < until_ns), key=lambda stretch: stretch.window
        )
        return last.window + last.rung.grid.windows_in((until_ns - last.begins_ns) / 1e9)

    def set_rate(
        self, stream: str, rate_hz: float, retimed: Callable[[Workload], Timetable], windows: Callable[[], int]
    ) -> None:
        """Have a stream come at another rate, from the first window on in which that may be.

        Where no timetable was made ahead for the rates that all streams then have, one is made now, of the plan's
        own segments. Until it is there the run goes on as before.

        Args:
            stream: its name.
            rate_hz: frames a second.
            retimed: makes a timetable of the plan's own segments for a workload of other rates.
            windows: tells how many have begun on any unit.

        Raises:
            InputError: the rates hardly ever meet.
            InfeasibleError: the segments do not fit; the rates stay as they are.
        """
        with self._requesting:
            begun = [stretch.window <= windows() for stretch in self._stretches]
            announced = [self._opened.workload, *(changed for _, changed in self._changes)][sum(begun) - 1]
            requested_hz = self._requested_hz | {stream: rate_hz}
            workload = announced.at_rates(requested_hz)
            first = 0
            if all(track[0].grid != workload.grid for track in self._tracks):
                first = self._plan_for(workload, retimed(workload), windows)
            self._requested_hz = requested_hz
            self._turn(workload.grid, first, f"{stream} comes at {rate_hz:g} Hz")

    def _plan_for(self, workload: Workload, timetable: Timetable, windows: Callable[[], int]) -> int:
        """Take up a timetable for rates that nobody knew of; the first window in which it may be in force."""
        if not timetable.feasible:
            raise InfeasibleError(
                f"the present segments do not fit at these rates: {timetable.binding_constraint}",
                where=self._opened.app,
                remedy="name the rate in the stream's rates_hz: then models are cut for it ahead of the run",
            )
        rung = PlannedRung(name=workload.rates_name, timetable=timetable, workload=workload, covers=(1.0, 1.0))
        self.timetables.append(timetable)
        track = [self._rung(len(self.timetables) - 1, rung, 0)]
        self._tracks.append(track)
        return self._rungs.add(track, windows())

    def _turn(self, grid: Grid, window: int, why: str) -> None:
        """Ask for rungs with these windows."""
        number = next(number for number, track in enumerate(self._tracks) if track[0].grid == grid)
        self._rungs.turn(number, window, why)

    def _announced(self) -> list[Stretch]:
        """What will be in force as the streams have announced it, from a first release at 0 on."""
        stretches = [Stretch(0, 0, 0, self._tracks[0][0])]
        for after_s, workload in self._changes:
            track = next(track for track in self._tracks if track[0].grid == workload.grid)
            rates = ", ".join(f"{name} {rate:g} Hz" for name, rate in workload.rates_hz.items())
            window = _first_boundary(stretches[-1], track[0], round(after_s * 1e9))
            stretches.append(stretches[-1].followed_by(track[0], window, f"rates: {rates}"))
        return stretches

    def _rung(self, number: int, rung: PlannedRung, cut: int) -> Rung:
        """For the run; ``cut``: the way in which its models are cut."""
        grid, jobs = rung.workload.grid, self._unit_jobs
        due = [instants(rung.timetable, self._numbers(unit_jobs), unit) for unit, unit_jobs in jobs.items()]
        repeated = _shortest(list(zip(*due, strict=True)), len(grid.offsets_ns))
        models = self._cuts[cut]
        return Rung(
            grid,
            [
                Share(
                    reserved,
                    rung.timetable.guard_ns,
                    [self._part(rung, cut, job) for job in unit_jobs],
                    [models[job.model or 0].turns_of(job.replica) for job in unit_jobs if not job.priority],
                )
                for unit_jobs, reserved in zip(jobs.values(), zip(*repeated, strict=True), strict=True)
            ],
            covers=rung.covers,
            name=rung.name,
            number=number,
        )

    def _numbers(self, jobs: Sequence[Job]) -> dict[str, list[int]]:
        """Model -> numbers of the jobs of its stages on a unit, in order."""
        numbers: dict[str, list[int]] = {}
        for number, job in enumerate(jobs):
            numbers.setdefault(self._opened.models[job.model or 0].name, []).append(number)
        return numbers

    def _part(self, rung: PlannedRung, cut: int, job: Job) -> Part:
        """Of a job, which is one of its model's stages."""
        part, model = self._cut_part(rung, job, cut, cut), job.model or 0
        if self._cuts[-1][model].spans == self._cuts[cut][model].spans:
            return part
        slower = rung.covers[0] if self._opened.models[model].priority else rung.covers[1]
        return dataclasses.replace(part, finest=self._cut_part(rung, job, len(self._cuts) - 1, cut, slower))

    def _cut_part(self, rung: PlannedRung, job: Job, cut: int, planned: int, slower: float = 1.0) -> Part:
        """A job's part in a rung, cut in some way; launched by what was first compiled for the same cut.

        Args:
            rung: of the ladder.
            job: one of its model's stages.
            cut: how the model is cut.
            planned: how it is cut in the rung's own timetable.
            slower: times what segments are planned to take.
        """
        number, stage = job.model or 0, self._stages[id(job)]
        model = self._cuts[cut][number]
        first = next(cut for cut, models in enumerate(self._cuts) if models[number].spans == model.spans)
        begin, end = _segments(model)[stage]
        return Part(
            self._execution(first, number)[stage],
            self._firsts[first][number] + begin,
            [segment.needed_ns(rung.timetable.guard_ns, slower) for segment in model.segments[begin:end]],
            deadline_ns(self._opened.models[number], rung.workload.grid),
            [layer for layer, _ in model.spans[begin:end]],
            slots=self._cuts[planned][number].slots,
            quantiles_ns=[math.ceil(segment.duration_ns * slower) for segment in model.segments[begin:end]],
        )

    def _execution(self, number: int, model: int) -> Sequence[Launchable]:
        """What launches a model's stages in one of the cuts; with time only, where the run has no frames."""
        execution = self._executions.get((number, model))
        if execution is None:
            compiled = self._opened.models[model]
            cut = compiled.cuts[number]
            cut.through(self._device)
            cut.guard_state(compiled.wired.entry.on_nan != "ignore")
            timed = TimedExecution(self._device, cut.labels, cut.bindings)
            execution = timed.in_stages(self._cuts[number][model]) if self._timed else cut.stages()
            self._executions[number, model] = execution
        return execution

    def _drifts(self, rungs: Iterable[Rung]) -> list[Drift]:
        """Of each unit's launches."""
        recent = max(LEAST_RECENT, round(_RECENT_S * self._opened.workload.beat_hz))
        priority_ns, background_ns = self._quantiles(rungs)
        units = self._opened.timetable.launched.program_units
        return [
            Drift(
                {program: ns for program, ns in priority_ns.items() if units[program] == unit},
                {program: ns for program, ns in background_ns.items() if units[program] == unit},
                recent,
            )
            for unit in self._unit_jobs
        ]

    def _quantiles(self, rungs: Iterable[Rung]) -> tuple[dict[int, int], dict[int, int]]:
        """Of each program, were nothing slower: of priority models, and of background models."""
        quantiles: tuple[dict[int, int], dict[int, int]] = {}, {}
        covers = [*(rung.covers for rung in self._planned_rungs), (1.0, 1.0)][: len(self._cuts)]
        for models, firsts, (priority, background) in zip(self._cuts, self._firsts, covers, strict=True):
            for model, first in zip(models, firsts, strict=True):
                role = model.role == "background"
                ratio = background if role else priority
                for place, segment in enumerate(model.segments):
                    quantiles[role][first + place] = round(segment.duration_ns / ratio)
        used = {
            part.first_program + place
            for rung in rungs
            for share in rung.shares
            for part in share.parts
            for place in range(len(part.estimates_ns))
        }
        priority_ns = {program: ns for program, ns in quantiles[0].items() if program in used}
        return priority_ns, quantiles[1]


def deadline_ns(model: CompiledModel, grid: Grid) -> int | None:
    """After a frame's release: as given, else when the next event of a sporadic model may come, or of a priority model
    the next release of its stream.

    Args:
        model: as planned.
        grid: that has its stream.
    """
    entry = model.wired.entry
    if (within_ms := entry.deadline_ms or entry.min_distance_ms) is not None:
        return round(within_ms * 1e6)
    return grid.period_ns(min(model.wired.in_step, default="")) if model.priority else None


def _first_boundary(stretch: Stretch, rung: Rung, after_ns: int) -> int:
    """The first window that begins at a time or later, and with which a rung may follow."""
    count = stretch.rung.repeats
    length_ns = stretch.release_ns(stretch.origin + count) - stretch.begins_ns
    window = stretch.origin + count * max((after_ns - stretch.begins_ns) // length_ns - 1, 0)
    while stretch.release_ns(window) < after_ns or not stretch.may_end(rung, window):
        window += 1
    return window


def _segments(model: PlannedModel) -> list[tuple[int, int]]:
    """Of each of its stages, the first one and the one behind the last."""
    return list(itertools.pairwise([0, *itertools.accumulate(len(stage) for stage in model.stages)]))


def _shortest(due: Sequence[_Due], pattern: int) -> Sequence[_Due]:
    """The part of a repeating pattern that it repeats, whole patterns of the grid."""
    for count in range(pattern, len(due), pattern):
        if len(due) % count == 0 and all(due[place] == due[place % count] for place in range(len(due))):
            return due[:count]
    return due
