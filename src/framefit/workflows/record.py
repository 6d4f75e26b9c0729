"""The run folder: where it may lie, what is in it, and how it comes there whole.

What a run is asked for: refused before the work of a plan where it cannot be done.

The profile of a run that has just ended, and the latency table that it updates.

What background models could have reached at most in a run.
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
from framefit.core.profile import Profile
from framefit.core.program import Launches, Program, write_program
from framefit.core.run_record import FrameTable, Metrics, RunInfo
from framefit.core.settings import Notify, silent
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.host import fingerprint
from framefit.errors import FramefitError, InputError
from framefit.execution.compiled import OpenTimetable
from framefit.execution.wiring import check_sinks
from framefit.planning.bounds import Launched, fluid_bounds, packing_bounds
from framefit.planning.plan import Plan
from framefit.profiling.pairing import pair_events
from framefit.profiling.profile import ProfileInput, profile_trace
from framefit.report.csv_files import write_frames
from framefit.report.drawing import run_rows
from framefit.report.sections.run import RunContent
from framefit.runtime.loop import Dispatcher
from framefit.runtime.metrics import residual_use, run_seconds, served_frames
from framefit.runtime.session import MeasuredRun, counted_windows
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


def bounds_hz(
    opened: OpenTimetable, run: UnitGroup, segment_ns: Sequence[int], whole_ns: Sequence[int]
) -> dict[str, tuple[float, float]]:
    """Background model -> fluid and packing bound, in frames a second; see :mod:`framefit.planning.bounds`.

    A frame's work is the median of the uncut model on one unit, of its segments by unit on several; or what
    the run spent on a frame in the mean, where that is less. Where launches are interrupted nothing has to be packed.

    Args:
        opened: what was run.
        run: afterwards.
        segment_ns: medians of all segments, in the plan's order.
        whole_ns: of the uncut models.
    """
    timetable = opened.timetable
    frames = [model.wired.entry.frames for model in opened.models]
    return throughput_bounds_hz(timetable, run, frames, segment_ns, whole_ns)


def throughput_bounds_hz(
    timetable: Timetable,
    run: Dispatcher | UnitGroup,
    frames: Sequence[int],
    segment_ns: Sequence[int],
    whole_ns: Sequence[int],
) -> dict[str, tuple[float, float]]:
    """See :func:`bounds_hz`; ``frames`` are those that each model takes at once."""
    background = [number for number, model in enumerate(timetable.models) if model.role == "background"]
    if not background or not run.windows:
        return {}
    use = residual_use(timetable, run)
    served, arrived = (np.asarray(counts, np.float64)[background] for counts in served_frames(timetable, run))
    work = np.zeros((len(background), len(use)))
    for row, number in enumerate(background):
        model, first = timetable.models[number], timetable.first_programs[0][number]
        for column, (unit, used) in enumerate(use.items()):
            medians = zip(model.segments, segment_ns[first : first + len(model.segments)], strict=True)
            median = whole_ns[number] if len(use) == 1 else sum(ns for one, ns in medians if one.unit == unit)
            spent = float(used.taken_ns[used.models == number].sum())
            work[row, column] = min(median / frames[number], spent / served[row] if served[row] else np.inf)
    fluid = fluid_bounds([used.residual_ns for used in use.values()], work, served, arrived)
    packing = fluid
    if not timetable.preemptive:
        place = np.zeros(len(timetable.models), np.int64)
        place[background] = np.arange(len(background))
        units = [Launched(used.gaps_ns, place[used.models], used.taken_ns) for used in use.values()]
        packing = packing_bounds(units, served, fluid)
    seconds = run_seconds(run)
    return {
        timetable.models[number].name: (float(most) / seconds, float(packed) / seconds)
        for number, most, packed in zip(background, fluid, packing, strict=True)
    }


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
