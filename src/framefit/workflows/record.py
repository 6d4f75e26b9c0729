"""The run folder: where it may lie, what is in it, and how it comes there whole.

What a run is asked for: refused before the work of a plan where it cannot be done.

The profile of a run that has just ended, and the latency table that it updates.

What background models could have reached at most in a run: its residual as a fluid, and packed without a guard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.files import check_folder, claimed_folder, write_record, write_whole_folder
from framefit.core.host_view import HostView
from framefit.core.policy import Rotation
from framefit.core.profile import Profile
from framefit.core.program import Launches, Program, write_program
from framefit.core.run_record import FrameTable, Metrics, RunInfo
from framefit.core.settings import Notify, silent
from framefit.core.target import Target, Unit, Variation
from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.host import fingerprint
from framefit.devices.registry import virtual_device
from framefit.errors import FramefitError, InputError
from framefit.execution.compiled import CompiledModel, OpenTimetable
from framefit.execution.wiring import check_sinks
from framefit.planning.bounds import Work, fair_rates, fluid_bounds_hz, packing_bounds_hz
from framefit.planning.plan import Plan
from framefit.profiling.pairing import pair_events
from framefit.profiling.profile import ProfileInput, profile_trace
from framefit.report.csv_files import write_frames
from framefit.report.drawing import run_rows
from framefit.report.sections.run import RunContent
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.metrics import priority_ns
from framefit.runtime.session import MeasuredRun, counted_windows
from framefit.runtime.timed import timed_group
from framefit.runtime.units import UnitGroup
from framefit.workflows.plan import write_timetables
from framefit.workflows.profile import check_update, planned_expectations, table_for, write_update
from framefit.workflows.run_pictures import left_out, write_run_pictures

__all__ = ["RunResult", "run_content"]


_SHOWN_WINDOWS = 8  # on a terminal
_DRAWN_FROM = 32  # windows: what began in those shown may end later
_MARK, _WHAT = "run.json", "a run folder"


@dataclass(frozen=True)
class RunResult:
    """What a run or a simulation gave.

    Attributes:
        folder: the run folder, complete.
        timetable: the plan that was run.
        metrics: figures.
        frames: the fate of every frame; see :class:`~framefit.core.run_record.FrameTable`.
        trace, program: what happened on the device, as its trace has it.
        view: the same as the host saw it, a launch an operation.
        interrupted: whether it was stopped before its end.
        profile: what the device's trace says; ``None``: it could not be held against the program.
        warnings: what a reader of these should know, those of the plan first.
    """

    folder: Path
    timetable: Timetable
    metrics: Metrics
    frames: FrameTable
    trace: Trace
    program: Program
    view: HostView
    interrupted: bool
    profile: Profile | None = None
    warnings: tuple[str, ...] = ()

    @property
    def launches(self) -> Launches:
        """As they were submitted."""
        return self.view.launches

    @property
    def releases_ns(self) -> npt.NDArray[np.int64]:
        """When each window began, on the run's clock."""
        return self.view.releases_ns

    @property
    def seen(self) -> Trace:
        """A START and an END of each launch, as the host saw them."""
        return self.view.trace


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
        write_timetables(planned, part)
        write_program(part, result.program, result.launches)
        result.trace.write(part / "trace.npz")
        write_record(part / "metrics.json", result.metrics)
        if result.profile is not None:
            write_record(part / "profile.json", result.profile)
        write_frames(part / "frames.csv", result.frames)
        write_run_pictures(part)


def result_of(run: MeasuredRun, folder: Path, *, interrupted: bool) -> RunResult:
    """What a run gave, after its end.

    Args:
        run: that has ended.
        folder: where it will lie.
        interrupted: whether it was stopped before its end.
    """
    session = run.session
    opened, (segment_ns, whole_ns) = session.opened, session.medians_ns(run.around or [session.planned()])
    record = session.record(run.floor, (segment_ns, whole_ns), bounds_hz(opened, session.group, segment_ns, whole_ns))
    program = planned_expectations(opened.workload, opened.device, record.program)
    return RunResult(
        folder=folder,
        timetable=opened.timetable,
        metrics=record.metrics,
        frames=record.frames,
        trace=record.trace,
        program=program,
        view=HostView.of(program, opened.timetable, record.launches, record.metrics),
        interrupted=interrupted,
        warnings=(*opened.timetable.reasons, *left_out(record.launches), *record.notes),
    )


def saved(
    result: RunResult,
    planned: Plan,
    *,
    seed: int,
    force: bool,
    failure: FramefitError | None,
    update_table: str | Path | None = None,
    numbered: bool = False,
    notify: Notify,
) -> RunResult:
    """A run with the profile of its trace, its folder written.

    Args:
        result: without its profile.
        planned: what was run.
        seed: that it was run with.
        force: overwrite the folder.
        failure: what ended the run; it is raised when all is written.
        update_table: see :func:`framefit.run`.
        numbered: the folder gets the first number that is free now: another run may have taken that of the beginning.
        notify: receives what is being done.

    Raises:
        FramefitError: what ended the run.
    """
    with contextlib.ExitStack() as stack:
        if numbered:
            result = dataclasses.replace(result, folder=stack.enter_context(claimed_folder(folder_stem(planned.app))))
        notify("profiling the trace")
        result = with_profile(result, planned, update_table, notify)
        notify("writing the run folder")
        command = " ".join(sys.argv)
        write_folder(result, planned, seed=seed, force=force, command=command, error=failure, claimed=numbered)
    if failure is not None:
        raise failure
    return result


def run_content(result: RunResult) -> RunContent:
    """What a terminal shows of a run: its figures, and its first windows as the host saw them."""
    seen, launches, releases = result.view.part(0, _DRAWN_FROM)
    rows = run_rows(
        pair_events(seen, result.view.program, launches),
        result.view.program,
        launches,
        releases,
        [model.name for model in result.metrics.models if model.role == "priority"],
        reserved_ns=result.timetable.first_reserved_ns,
        overhang_ns=result.timetable.overhang_ns,
        windows=_SHOWN_WINDOWS,
    )
    return RunContent(result.metrics, profile=result.profile, rows=rows, notes=result.warnings)


_PACKED_WINDOWS = 1000  # of several units, played through


def bounds_hz(
    opened: OpenTimetable, run: UnitGroup, segment_ns: Sequence[int], whole_ns: Sequence[int]
) -> dict[str, tuple[float, float]]:
    """Background model -> fluid and packing bound, in frames a second.

    On one unit and equal windows as :mod:`framefit.planning.bounds` has them. Else each unit's residual is a fluid
    of its own, and the models are packed by the dispatchers themselves, on exact medians and without a guard.

    Args:
        opened: what was run.
        run: afterwards: what priority models took.
        segment_ns: medians of all segments, in the plan's order.
        whole_ns: of the uncut models.
    """
    timetable = opened.timetable
    if len(timetable.units) > 1 or len(opened.workload.grid.offsets_ns) > 1:
        return _of_units(opened, run, segment_ns)
    work = {}
    for model, first, whole in zip(opened.models, timetable.first_programs[0], whole_ns, strict=True):
        if not model.priority:
            work[model.name] = _work(opened, model, whole, segment_ns[first : first + len(model.planned.segments)])
    reserved_ns = priority_ns(timetable.launched, run)
    fluid = fluid_bounds_hz(timetable.window_ns, reserved_ns, list(work.values()))
    packing = fluid  # where nothing has to be packed
    if not timetable.preemptive:
        packing = packing_bounds_hz(timetable.window_ns, round(reserved_ns), list(work.values()))
    return dict(zip(work, zip(fluid, packing, strict=True), strict=True))


def _work(opened: OpenTimetable, model: CompiledModel, whole_ns: float, segments_ns: Sequence[int]) -> Work:
    entry = model.wired.entry
    return Work(
        whole_ns,
        segments_ns,
        every=_releases(opened, model),
        frames=entry.frames,
        queue=model.wired.depth,
        share=opened.timetable.launches_of(model.name),
    )


def _releases(opened: OpenTimetable, model: CompiledModel) -> int:
    """Frames of its stream between the frames of a model; of one that reads others, of theirs."""
    every = model.wired.entry.every
    for read in _read_by(opened, model):
        every *= _releases(opened, read) * read.wired.entry.frames
    return every


def _root(opened: OpenTimetable, model: CompiledModel) -> CompiledModel:
    """The model whose stream a model's frames come from in the end."""
    for read in _read_by(opened, model):
        return _root(opened, read)
    return model


def _read_by(opened: OpenTimetable, model: CompiledModel) -> list[CompiledModel]:
    return [one for one in opened.models if one.name in model.wired.after[:1]]


def _of_units(opened: OpenTimetable, run: UnitGroup, segment_ns: Sequence[int]) -> dict[str, tuple[float, float]]:
    timetable = opened.timetable
    exact = _exact(timetable, segment_ns)
    background = [
        (task, model) for task, model in zip(opened.models, exact.models, strict=True) if model.role == "background"
    ]
    if not background:
        return {}
    grid = opened.workload.grid
    left = [1e9 / grid.windows_hz - priority_ns(timetable.launched, run, unit) for unit in timetable.units]
    work = [
        [sum(s.median_ns for s in model.segments if s.unit == unit) for unit in timetable.units]
        for _, model in background
    ]
    arriving = [
        len(grid.places(min(_root(opened, task).wired.in_step, default="")))
        / (len(grid.offsets_ns) * _releases(opened, task) * task.wired.entry.frames)
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
        packed = {name: rate * grid.windows_hz for name, rate in _packed(opened, exact).items()}
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


def _packed(opened: OpenTimetable, exact: Timetable) -> dict[str, float]:
    """Model -> frames a window when the dispatchers play it through."""
    units = tuple(Unit(name=unit, preemptive=False, core=core) for core, unit in enumerate(exact.units))
    links = tuple(link for link in exact.links if set(link.between) <= set(exact.units))
    target = Target(name="exact", kind="npu", units=units, links=links, variation=Variation())
    wired = {model.name: model.wired for model in opened.models}
    group = timed_group(
        exact,
        virtual_device(target),
        opened.workload.grid,
        Rotation,
        queues={name: model.depth for name, model in wired.items()},
        every={name: model.entry.every for name, model in wired.items()},
        frames={name: model.entry.frames for name, model in wired.items()},
        streams={name: model.in_step for name, model in wired.items()},
    )
    group.run(_PACKED_WINDOWS)
    rows = group.frames.rows()
    done = rows[np.isin(rows[:, FrameLog.OUTCOME], (FrameOutcome.DONE, FrameOutcome.LATE)), FrameLog.MODEL]
    counts = np.bincount(done, minlength=len(exact.models))
    return {model.name: float(count) / _PACKED_WINDOWS for model, count in zip(exact.models, counts, strict=True)}


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
