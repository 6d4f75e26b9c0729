"""The run folder: where it may lie, what is in it, and how it comes there whole.

What a run is asked for: refused before the work of a plan where it cannot be done.

The profile of a run that has just ended, and the latency table that it updates.

What background models could have reached at most in a run: its residual as a fluid, and packed without a guard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.events import Trace
from framefit.core.files import check_folder, write_record, write_whole, write_whole_folder
from framefit.core.policy import Rotation
from framefit.core.profile import Profile
from framefit.core.program import Launches, Program, write_program
from framefit.core.run_record import FrameTable, Metrics, RunInfo
from framefit.core.settings import Notify, silent
from framefit.core.target import Target, Unit, Variation
from framefit.core.timetable import InstructionLists, PlannedModel, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.host import fingerprint
from framefit.devices.registry import virtual_device
from framefit.errors import FramefitError, InfeasibleError, InputError
from framefit.execution.wiring import check_sinks
from framefit.planning.bounds import Work, fair_rates, fluid_bounds_hz, packing_bounds_hz
from framefit.planning.plan import Plan
from framefit.planning.task import PlannedTask
from framefit.planning.timetable import instructions
from framefit.profiling.pairing import pair_events
from framefit.profiling.profile import ProfileInput, profile_trace
from framefit.report.csv_files import write_frames
from framefit.report.drawing import run_picture, run_rows
from framefit.report.perfetto import write_perfetto
from framefit.report.sections.run import RunContent
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.metrics import priority_ns
from framefit.runtime.timed import timed_group
from framefit.runtime.units import UnitGroup
from framefit.workflows.profile import check_update, table_for, write_update

__all__ = [
    "MOST_SECONDS",
    "RunResult",
    "accepted",
    "bounds_hz",
    "check_place",
    "check_table",
    "counted_windows",
    "folder_stem",
    "free_folder",
    "left_out",
    "needs_feasible",
    "run_content",
    "with_profile",
    "write_folder",
]


Releases = np.ndarray[tuple[int], np.dtype[np.int64]]
_MARK, _WHAT = "run.json", "a run folder"
_SHOWN_WINDOWS = 8  # on a terminal
_DRAWN_FROM = 32  # windows: what began in those shown may end later
_MOST_SHOWN = 100_000  # launches in trace.pftrace and run.svg: some 20 MB


@dataclass(frozen=True)
class RunResult:
    """What a run or a simulation gave.

    Attributes:
        folder: the run folder, complete.
        timetable: the plan that was run.
        metrics: figures.
        frames: the fate of every frame; see :class:`~framefit.core.run_record.FrameTable`.
        trace, program, launches, releases_ns: what happened, on the run's clock; the trace is the device's.
        seen, seen_program: the same as the host saw it, a launch an operation.
        interrupted: whether it was stopped before its end.
        in_force: from when on which timetable was in force.
        profile: what the device's trace says; ``None``: it could not be held against the program.
        warnings: what a reader of these should know, those of the plan first.
    """

    folder: Path
    timetable: Timetable
    metrics: Metrics
    frames: FrameTable
    trace: Trace
    program: Program
    seen: Trace
    seen_program: Program
    launches: Launches
    releases_ns: Releases
    interrupted: bool
    in_force: tuple[tuple[int, str], ...] = ()
    profile: Profile | None = None
    warnings: tuple[str, ...] = ()

    def part(self, first: int, last: int | None = None) -> tuple[Trace, Launches, Releases]:
        """What the host saw of windows ``first`` to ``last`` - 1 (default: to the end), for a picture."""
        seen, launches = self.seen, self.launches
        # Of several units one may already be in the next window when another one launches in the last.
        window = np.maximum.accumulate(launches.window)
        begin = int(np.searchsorted(window, first))
        end = len(launches) if last is None else int(np.searchsorted(window, last))
        told, events = slice(begin, end), slice(2 * begin, 2 * end)  # a START and an END each
        return (
            Trace(
                time_ns=seen.time_ns[events],
                id=seen.id[events],
                type=seen.type[events],
                core=seen.core[events],
                operation=seen.operation[events],
                kinds=seen.kinds,
            ),
            Launches(
                program=launches.program[told],
                window=launches.window[told],
                frame=launches.frame[told],
                submit_ns=launches.submit_ns[told],
            ),
            self.releases_ns[first:last],
        )


def run_content(result: RunResult) -> RunContent:
    """What a terminal shows of a run: its figures, and its first windows as the host saw them."""
    seen, launches, releases = result.part(0, _DRAWN_FROM)
    rows = run_rows(
        pair_events(seen, result.seen_program, launches),
        result.seen_program,
        launches,
        releases,
        [model.name for model in result.metrics.models if model.role == "priority"],
        reserved_ns=result.timetable.first_reserved_ns,
        overhang_ns=result.timetable.overhang_ns,
        windows=_SHOWN_WINDOWS,
    )
    return RunContent(result.metrics, profile=result.profile, rows=rows, notes=result.warnings)


def left_out(launches: Launches) -> list[str]:
    """Notes on what the pictures of a run will not show."""
    if len(launches) <= _MOST_SHOWN:
        return []
    return [f"trace.pftrace and run.svg show the last {_MOST_SHOWN} of {len(launches)} launches"]


def _first_shown(result: RunResult) -> int:
    """The first window that the pictures show: of a long run its last part, whole repetitions where they are short."""
    window = result.launches.window
    beyond = len(window) - _MOST_SHOWN
    if beyond <= 0:
        return 0
    pattern = len(result.timetable.windows)
    first = -(-int(window[beyond]) // pattern) * pattern
    skipped = int(np.searchsorted(window, first)) - beyond
    return first if skipped <= _MOST_SHOWN // 2 else int(window[beyond])


def _shown(in_force: Sequence[tuple[int, str]], releases: Releases) -> list[tuple[int, str]]:
    """The timetables of the windows that the pictures show."""
    begin = int(releases[0]) if len(releases) else 0
    last = [(begin, name) for at, name in in_force if at <= begin][-1:]
    return [*last, *(one for one in in_force if one[0] > begin)]


def folder_stem(app: Path) -> Path:
    """``runs/APP``, to be numbered: named after the file, or its folder where it is just called app.toml."""
    return Path("runs") / (app.stem if app.stem != "app" else app.resolve().parent.name)


def free_folder(app: Path) -> Path:
    """``runs/APP-N``, the first N that is free now; which one it gets is decided when it is written."""
    stem, number = folder_stem(app), 1
    while (folder := stem.with_name(f"{stem.name}-{number}")).exists():
        number += 1
    return folder


def check_place(folder: Path, *, force: bool) -> None:
    """Whether a run folder may be written there: nothing else of the user's is ever replaced.

    Raises:
        InputError: something is there, without ``force`` or not a run folder.
    """
    check_folder(folder, _MARK, _WHAT, force=force)


def write_folder(
    result: RunResult,
    planned: Plan,
    *,
    seed: int,
    force: bool,
    command: str,
    error: FramefitError | None,
    claimed: bool = False,
) -> None:
    """The run folder: made beside its place, then renamed; ``claimed``: its number was."""
    with write_whole_folder(result.folder, _MARK, _WHAT, force=force, claimed=claimed) as part:
        info = RunInfo(
            command=command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seed=seed,
            interrupted=result.interrupted,
            error=None if error is None else str(error),
            workload=msgspec.to_builtins(planned.workload),
            host=dict(fingerprint()),
            warnings=result.warnings,
            app=str(planned.app.resolve()),
        )
        write_record(part / _MARK, info)
        write_record(part / "timetable.json", result.timetable)
        for rung in () if planned.ladder is None else planned.ladder.rungs[1:]:
            write_record(part / f"timetable-{rung.name}.json", rung.timetable)
        lists = InstructionLists(
            hyperperiod_windows=result.timetable.hyperperiod_windows, units=instructions(result.timetable)
        )
        write_record(part / "instructions.json", lists)
        write_program(part, result.program, result.launches)
        result.trace.write(part / "trace.npz")
        write_record(part / "metrics.json", result.metrics)
        if result.profile is not None:
            write_record(part / "profile.json", result.profile)
        write_frames(part / "frames.csv", result.frames)
        priority = [model.name for model in result.timetable.models if model.role == "priority"]
        first = _first_shown(result)
        seen, launches, releases = result.part(first)
        executed = pair_events(seen, result.seen_program, launches)
        write_perfetto(
            part / "trace.pftrace",
            executed,
            result.seen_program,
            launches,
            releases,
            priority,
            in_force=_shown(result.in_force, releases),
        )
        turn = first % max(len(result.timetable.windows), 1)
        reserved, overhang = (
            {unit: ns[turn:] + ns[:turn] for unit, ns in rooms.items()}
            for rooms in (result.timetable.first_reserved_ns, result.timetable.overhang_ns)
        )
        rows = run_rows(
            executed, result.seen_program, launches, releases, priority, reserved_ns=reserved, overhang_ns=overhang
        )
        with write_whole(part / "run.svg") as file:
            file.write(run_picture(rows).encode())


_PACKED_WINDOWS = 1000  # of several units, played through


def bounds_hz(
    planned: Plan, run: UnitGroup, segment_ns: Sequence[int], whole_ns: Sequence[int]
) -> dict[str, tuple[float, float]]:
    """Background model -> fluid and packing bound, in frames a second.

    On one unit and equal windows as :mod:`framefit.planning.bounds` has them. Else each unit's residual is a fluid
    of its own, and the models are packed by the dispatchers themselves, on exact medians and without a guard.

    Args:
        planned: what was run.
        run: afterwards: what priority models took.
        segment_ns: medians of all segments, in the plan's order.
        whole_ns: of the uncut models.
    """
    timetable = planned.timetable
    if len(timetable.units) > 1 or len(planned.workload.grid.offsets_ns) > 1:
        return _of_units(planned, run, segment_ns)
    work, first = {}, 0
    for task, model, whole in zip(planned.tasks, timetable.models, whole_ns, strict=True):
        end = first + len(model.segments)
        if not task.priority:
            work[task.name] = _work(planned, task, whole, segment_ns[first:end])
        first = end
    reserved_ns = priority_ns(planned.launched, run)
    fluid = fluid_bounds_hz(timetable.window_ns, reserved_ns, list(work.values()))
    packing = fluid  # where nothing has to be packed
    if not timetable.preemptive:
        packing = packing_bounds_hz(timetable.window_ns, round(reserved_ns), list(work.values()))
    return dict(zip(work, zip(fluid, packing, strict=True), strict=True))


def _work(planned: Plan, task: PlannedTask, whole_ns: float, segments_ns: Sequence[int]) -> Work:
    entry, timetable = task.wired.entry, planned.timetable
    return Work(
        whole_ns,
        segments_ns,
        every=_releases(planned, task),
        frames=entry.frames,
        queue=task.wired.depth,
        share=timetable.launches_of(task.name),
    )


def _releases(planned: Plan, task: PlannedTask) -> int:
    """Frames of its stream between the frames of a model; of one that reads others, of theirs."""
    every = task.wired.entry.every
    for read in _read_by(planned, task):
        every *= _releases(planned, read) * read.wired.entry.frames
    return every


def _root(planned: Plan, task: PlannedTask) -> PlannedTask:
    """The model whose stream a model's frames come from in the end."""
    for read in _read_by(planned, task):
        return _root(planned, read)
    return task


def _read_by(planned: Plan, task: PlannedTask) -> list[PlannedTask]:
    return [one for one in planned.tasks if one.name in task.wired.after[:1]]


def _of_units(planned: Plan, run: UnitGroup, segment_ns: Sequence[int]) -> dict[str, tuple[float, float]]:
    timetable = planned.timetable
    exact = _exact(timetable, segment_ns)
    background = [
        (task, model) for task, model in zip(planned.tasks, exact.models, strict=True) if model.role == "background"
    ]
    if not background:
        return {}
    grid = planned.workload.grid
    left = [1e9 / grid.windows_hz - priority_ns(planned.launched, run, unit) for unit in timetable.units]
    work = [
        [sum(s.median_ns for s in model.segments if s.unit == unit) for unit in timetable.units]
        for _, model in background
    ]
    arriving = [
        len(grid.places(min(_root(planned, task).wired.in_step, default="")))
        / (len(grid.offsets_ns) * _releases(planned, task) * task.wired.entry.frames)
        for task, _ in background
    ]
    shares = [max(timetable.launches_of(task.name), 1) for task, _ in background]
    rates = fair_rates(
        np.asarray(left, np.float64),
        np.asarray(work, np.float64),
        np.asarray(arriving, np.float64),
        np.asarray(shares, np.float64),
    )
    fluid = {
        task.name: float(rate) * task.wired.entry.frames * grid.windows_hz
        for (task, _), rate in zip(background, rates, strict=True)
    }
    packed = fluid  # where nothing has to be packed
    if not timetable.preemptive:
        packed = {name: rate * grid.windows_hz for name, rate in _packed(planned, exact).items()}
    return {name: (fluid[name], packed[name]) for name in fluid}


def _exact(timetable: Timetable, segment_ns: Sequence[int]) -> Timetable:
    """With these medians for quantiles, and no guard."""
    models: list[PlannedModel] = []
    first = 0
    for model in timetable.models:
        medians = segment_ns[first : first + len(model.segments)]
        first += len(model.segments)
        segments = tuple(
            msgspec.structs.replace(segment, median_ns=int(median), duration_ns=int(median))
            for segment, median in zip(model.segments, medians, strict=True)
        )
        models.append(msgspec.structs.replace(model, segments=segments))
    return msgspec.structs.replace(timetable, models=tuple(models), guard_ns=0)


def _packed(planned: Plan, exact: Timetable) -> dict[str, float]:
    """Model -> frames a window when the dispatchers play it through."""
    units = tuple(Unit(name=unit, preemptive=False, core=core) for core, unit in enumerate(exact.units))
    links = tuple(link for link in exact.links if set(link.between) <= set(exact.units))
    target = Target(name="exact", kind="npu", units=units, links=links, variation=Variation())
    entries = {task.name: task for task in planned.tasks}
    group = timed_group(
        exact,
        virtual_device(target),
        planned.workload.grid,
        Rotation,
        queues={name: task.wired.depth for name, task in entries.items()},
        every={name: task.wired.entry.every for name, task in entries.items()},
        frames={name: task.wired.entry.frames for name, task in entries.items()},
        streams={name: task.wired.in_step for name, task in entries.items()},
    )
    group.run(_PACKED_WINDOWS)
    rows = group.frames.rows()
    done = rows[np.isin(rows[:, FrameLog.OUTCOME], (FrameOutcome.DONE, FrameOutcome.LATE)), FrameLog.MODEL]
    counts = np.bincount(done, minlength=len(exact.models))
    return {model.name: float(count) / _PACKED_WINDOWS for model, count in zip(exact.models, counts, strict=True)}


_DEFAULT_SECONDS = 10.0
MOST_SECONDS = 2.0**63 / 1e9  # 292 years


def counted_windows(windows: int | None, seconds: float | None, rate_hz: float) -> int:
    """How many windows are asked for; by default 10 seconds of them.

    Raises:
        InputError: none, told in two ways, or more than nanoseconds can count.
    """
    if windows is not None and seconds is not None:
        raise InputError("windows and seconds are both given", remedy="give one of them")
    asked = windows if windows is not None else seconds
    if asked is not None and not asked > 0:
        raise InputError(f"nothing to run: {asked}", remedy="ask for more than 0")
    if asked is not None and not asked < MOST_SECONDS * (1 if windows is None else rate_hz):
        raise InputError(
            f"{asked} {'seconds' if windows is None else 'windows'} are too many: times are nanoseconds in 64 bits",
            remedy=f"ask for less than {MOST_SECONDS:g} seconds",
        )
    return windows if windows is not None else max(round((seconds or _DEFAULT_SECONDS) * rate_hz), 1)


def accepted(
    app: str | Path | Plan,
    *,
    windows: int | None,
    seconds: float | None,
    output: str | Path | None,
    force: bool,
    seed: int,
    sinks: bool = True,
    workload: Workload | None = None,
) -> tuple[Path, Workload, Path]:
    """What a run is asked for, refused before the work of a plan where it cannot be done.

    Args:
        app: the file, or its plan.
        windows: how many; or
        seconds: of them.
        output: the run folder; ``None``: the first free one of the app's name.
        force: folder and sinks may exist.
        seed: of synthetic frames.
        sinks: whether they will be opened.
        workload: instead of the app's, where it was read already.

    Returns:
        The app's file, its workload, and where the run folder will lie.

    Raises:
        InputError: a length, seed or file that cannot be used; a folder or sink that exists.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", remedy="give 0 or a greater whole number")
    path = app.app if isinstance(app, Plan) else Path(app)
    folder = free_folder(path) if output is None else Path(output)
    check_place(folder, force=force)
    if workload is None:
        workload = app.workload if isinstance(app, Plan) else load_workload(path)
    counted_windows(windows, seconds, workload.beat_hz)
    if sinks:
        check_sinks(workload, path, force=force)  # they are only opened after warming up
    return path, workload, folder


def needs_feasible(planned: Plan) -> None:
    """Refuse a plan that does not fit.

    Raises:
        InfeasibleError: the binding constraint, with what would help.
    """
    timetable = planned.timetable
    if not timetable.feasible:
        changes = "; ".join(f"{fix.change} ({fix.effect})" for fix in timetable.fixes)
        raise InfeasibleError(
            f"the models do not fit: {timetable.binding_constraint}", where=planned.app, remedy=changes or None
        )


_MOST = 1 << 15  # packets: a run that has ended is not held up for more than seconds


def check_table(planned: Plan, update_table: str | Path | None) -> None:
    """Refuse a table that could not be written after the run.

    Raises:
        InputError: the file there is no table of the plan's device.
    """
    if update_table is not None:
        check_update(update_table, table_for(planned.workload, planned.device))


def with_profile(
    result: RunResult, planned: Plan, update_table: str | Path | None = None, notify: Notify = silent
) -> RunResult:
    """A run with the profile of its own trace; a trace that cannot be used costs no run.

    Args:
        result: of the run.
        planned: what was run.
        update_table: written with what the layers took.
        notify: receives what is being done.
    """
    trace, notes = _latest(result.trace, str(result.folder))
    source = ProfileInput(trace, result.program, result.launches, result.timetable, str(result.folder), notes)
    try:
        found = profile_trace(source, notify=notify)
        result = dataclasses.replace(result, profile=found.profile)
        if update_table is not None:
            write_update(update_table, found, table_for(planned.workload, planned.device))
    except FramefitError as error:
        what = "profiled" if result.profile is None else f"put into {update_table}"
        note = f"the trace was not {what}: {error.what}"
        result = dataclasses.replace(result, warnings=(*result.warnings, note))
    return result


def _latest(trace: Trace, folder: str) -> tuple[Trace, tuple[str, ...]]:
    """The end of a long trace, and a note that says so."""
    beyond = len(trace) - _MOST
    if beyond <= 0:
        return trace, ()
    meta = msgspec.structs.replace(trace.meta, overwritten_events=trace.meta.overwritten_events + beyond)
    latest = Trace(
        time_ns=trace.time_ns[beyond:],
        id=trace.id[beyond:],
        type=trace.type[beyond:],
        core=trace.core[beyond:],
        operation=trace.operation[beyond:],
        kinds=trace.kinds,
        loss_after=trace.loss_after[trace.loss_after > beyond] - beyond,
        meta=meta,
    )
    return latest, (f"of the latest {_MOST} of {len(trace)} events; framefit profile {folder} takes all of them",)
