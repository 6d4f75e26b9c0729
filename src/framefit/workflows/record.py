"""The run folder: where it may lie, what is in it, and how it comes there whole.

What a run is asked for: refused before the work of a plan where it cannot be done.

The profile of a run, made when it is asked for, and the latency table that it updates.

What background models could have reached at most in a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.files import read_record, write_record, write_whole
from framefit.core.host_view import HostView
from framefit.core.journal import Claim, Journal, claimed, journal_parts, released
from framefit.core.profile import Profile
from framefit.core.program import Launches, Program, write_program
from framefit.core.run_record import FrameTable, Metrics, RunInfo
from framefit.core.settings import Notify, silent
from framefit.core.soak import CONDITIONS
from framefit.core.timetable import PlannedRung, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.host import fingerprint
from framefit.errors import FramefitError, InputError, RecordingError
from framefit.execution.compiled import OpenTimetable
from framefit.execution.wiring import check_sinks
from framefit.planning.bounds import Launched, fluid_bounds, packing_bounds
from framefit.planning.check import check_events
from framefit.planning.plan import Plan
from framefit.profiling.profile import ProfileInput, profile_trace
from framefit.report.csv_files import write_frames
from framefit.runtime.loop import Dispatcher
from framefit.runtime.metrics import residual_use, run_seconds, served_frames
from framefit.runtime.recorded import JournalHeader, RecordedRun, read_header, read_part
from framefit.runtime.session import (
    MeasuredRun,
    counted_windows,
    device_program,
    fault_notes,
    recorded_frames,
    recorded_metrics,
    resumed_notes,
    switch_notes,
)
from framefit.runtime.sinks import write_outputs
from framefit.runtime.units import UnitGroup
from framefit.workflows.plan import write_timetables
from framefit.workflows.profile import check_update, planned_expectations, table_for, write_update

__all__ = ["RunResult"]


logger = logging.getLogger(__name__)
_MOST_SHOWN = 100_000  # launches in trace.pftrace and run.svg: some 20 MB
_MOST_WRONG = 5  # events that a warning names
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
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The folder, and the figures in a line."""
        return f"<RunResult in {self.folder}: {self.metrics!r}>"

    def _repr_html_(self) -> str:
        return self.metrics._repr_html_()

    @property
    def profile(self) -> Profile | None:
        """What the device's trace says, made at the first use; ``None``: it could not be held against the program."""
        return self._profiled[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings, and why there is no profile, if there is none."""
        return (*self.warnings, *self._profiled[1])

    @functools.cached_property
    def _profiled(self) -> tuple[Profile | None, tuple[str, ...]]:
        if self.trace is _EMPTY:
            return None, ()
        try:
            return profile_trace(_profile_input(self)).profile, ()
        except FramefitError as error:
            return None, (f"the trace was not profiled: {error.what}",)

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
    """``runs/APP-N``, the first N that is free now."""
    stem, number = folder_stem(app), 1
    while (folder := stem.with_name(f"{stem.name}-{number}")).exists():
        number += 1
    return folder


def claimed_run(app: Path, output: str | Path | None, *, force: bool, resumes: bool = False) -> Claim:
    """Claim a run folder; see :func:`framefit.core.journal.claimed`.

    Args:
        app: names the folder where ``output`` does not; of a run that is resumed, the folder.
        output: the folder.
        force: replace a run.
        resumes: go on with one that was cut off.
    """
    if resumes:
        return claimed(app, _MARK, _WHAT, numbers=False, force=force, resumes=True)
    place = folder_stem(app) if output is None else Path(output)
    return claimed(place, _MARK, _WHAT, numbers=output is None, force=force)


def next_part(claim: Claim, *, resumes: bool = False) -> Journal:
    """The journal of the part that a run is going to begin: behind those that are there, if it resumes them."""
    return Journal(claim.part(resumes=resumes))


def begin_record(
    claim: Claim,
    run: MeasuredRun,
    planned: Plan,
    *,
    verb: str,
    windows: int,
    outputs: bool,
    inject: Sequence[str] = (),
    resumes: bool = False,
) -> Path:
    """Write what the journal of a run says at its beginning; from here on the run folder is this run's.

    Args:
        claim: of the folder.
        run: that is about to begin.
        planned: what is run.
        verb: "run" or "simulate".
        windows: that are asked for, those of earlier parts among them.
        outputs: whether outputs are computed.
        inject: faults.
        resumes: the run goes on with one that was cut off.

    Returns:
        The folder of this part of the journal.

    Raises:
        InputError: the folder cannot be written.
    """
    part = claim.begin(resumes=resumes)
    opened = run.session.opened
    write_timetables(planned, part)
    write_record(part / "program.json", planned_expectations(opened.workload, opened.device, device_program(opened)))
    header = run.header(
        command=" ".join(sys.argv),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=msgspec.to_builtins(planned.workload),
        host=dict(fingerprint()),
        warnings=opened.timetable.reasons,
        app=str(planned.app.resolve()),
        verb=verb,
        windows=windows,
        outputs=outputs,
        inject=tuple(inject),
    )
    write_record(part / "header.json", header)  # last: without it there is no part
    return part


@dataclass(frozen=True)
class EarlierParts:
    """What the journal of a run that was cut off holds.

    Attributes:
        folders: of its parts.
        header: of the last part.
        timetable: that was run.
        run: logs of all parts.
        until: time of day until which they were written.
    """

    folders: tuple[Path, ...]
    header: JournalHeader
    timetable: Timetable
    run: RecordedRun
    until: str


def earlier_parts(folder: Path) -> EarlierParts:
    """Read the journal of a run that was cut off.

    Raises:
        InputError: it is damaged, or nothing was recorded.
    """
    run: RecordedRun | None = None
    folders = [part for part in journal_parts(folder) if (part / "header.json").is_file()]
    until, header, timetable = "", None, None
    for part in folders:
        header = read_header(part)
        timetable = msgspec.structs.replace(read_record(part / "timetable.json", Timetable), source=None)
        recorded, until = read_part(part, header)
        if recorded.windows:
            streams = [model.stream for model in header.models]
            run = recorded if run is None else run.followed_by(recorded, timetable, streams)
    if run is None or header is None or timetable is None:
        raise InputError(
            "the run was cut off before a window was recorded",
            where=folder,
            remedy="run it again with --force: there is nothing to be lost",
        )
    return EarlierParts(tuple(folders), header, timetable, run, until)


def recover(folder: Path, notify: Notify = silent) -> None:
    """Write the files of a run folder whose run was cut off, from its journal; the journal stays, to be resumed.

    Args:
        folder: any; where it has its files, or is no run folder, nothing happens.
        notify: receives what is being done.

    Raises:
        InputError: the run goes on, or its journal is damaged.
    """
    if not journal_parts(folder) or (folder / _MARK).is_file():
        return
    with released(claimed_run(folder, None, force=False, resumes=True)) as claim:
        notify(f"reading the journal of {folder}")
        parts = earlier_parts(claim.folder)
        header, run, timetable = parts.header, parts.run, parts.timetable
        program = read_record(parts.folders[-1] / "program.json", Program)
        frames = recorded_frames(run, header.models)
        launches = run.launched()
        metrics = recorded_metrics(
            timetable,
            timetable.timetables,
            run,
            frames,
            header.models,
            floor=np.asarray(header.floor_ns, np.int64),
            medians_ns=(header.segment_ns, header.whole_ns),
            bounds_hz=throughput_bounds_hz(
                timetable, run, [model.frames for model in header.models], header.segment_ns, header.whole_ns
            ),
            peak_bytes=timetable.memory_bytes,
        )
        cut_off = f"it was cut off at {parts.until}, after {run.windows} of {header.windows} windows"
        logger.warning("note: %s: %s", folder, cut_off)
        result = RunResult(
            folder=folder,
            timetable=timetable,
            metrics=metrics,
            frames=frames,
            trace=_EMPTY if run.trace is None else run.trace,
            program=program,
            view=HostView.of(program, timetable, launches, metrics),
            interrupted=True,
            warnings=(
                *header.warnings,
                *_left_out(launches),
                "the memory is the planned one: the run was cut off",
                *resumed_notes(run),
                *switch_notes(metrics),
                *fault_notes(metrics, run),
            ),
        )
        for sink in header.sinks:
            with contextlib.ExitStack() as stack:
                files = [part / sink.file for part in parts.folders]
                opened = [stack.enter_context(file.open("rb")) for file in files if file.is_file()]
                write_outputs(Path(sink.path), opened)
        info = RunInfo(
            command=header.command,
            created=header.created,
            seed=header.seed,
            interrupted=True,
            error=cut_off,
            workload=header.workload,
            host=header.host,
            warnings=result.warnings,
            app=header.app,
        )
        for name in ("timetable.json", "instructions.json", *(f"timetable-{r.name}.json" for r in _rungs(timetable))):
            with write_whole(folder / name, force=True) as file:
                file.write((parts.folders[-1] / name).read_bytes())
        write_folder(result, info)


def _rungs(timetable: Timetable) -> Sequence[PlannedRung]:
    return () if timetable.ladder is None else timetable.ladder.rungs


_EMPTY = Trace(
    time_ns=np.zeros(0, np.int64),
    id=np.zeros(0, np.int32),
    type=np.zeros(0, np.uint8),
    core=np.zeros(0, np.int16),
    operation=np.zeros(0, np.int64),
    kinds=(),
)


def write_folder(result: RunResult, info: RunInfo) -> None:
    """The files of a run folder beside its timetables, each whole; ``run.json`` last, which says that all are there."""
    folder = result.folder
    write_program(folder, result.program, result.launches, force=True)
    if result.trace is not _EMPTY:
        result.trace.write(folder / "trace.npz", force=True)
    write_record(folder / "metrics.json", result.metrics, force=True)
    write_frames(folder / "frames.csv", result.frames, force=True)
    conditions = [part / CONDITIONS for part in journal_parts(folder) if (part / CONDITIONS).is_file()]
    if conditions:
        with write_whole(folder / CONDITIONS, force=True) as file:
            for path in conditions:
                file.write(path.read_bytes())
    write_record(folder / _MARK, info, force=True)


def _left_out(launches: Launches) -> list[str]:
    """Notes on what the pictures of a run will not show."""
    if len(launches) <= _MOST_SHOWN:
        return []
    return [f"trace.pftrace and run.svg show the last {_MOST_SHOWN} of {len(launches)} launches"]


def first_shown(launches: Launches, pattern: int) -> int:
    """The first window that the pictures show: of a long run its last part, whole repetitions of the timetable's
    ``pattern`` windows where they are short.
    """
    window = launches.window
    beyond = len(window) - _MOST_SHOWN
    if beyond <= 0:
        return 0
    first = -(-int(window[beyond]) // pattern) * pattern
    skipped = int(np.searchsorted(window, first)) - beyond
    return first if skipped <= _MOST_SHOWN // 2 else int(window[beyond])


def result_of(run: MeasuredRun, folder: Path, *, interrupted: bool) -> RunResult:
    """What a run gave, after its end.

    Args:
        run: that has ended.
        folder: where it will lie.
        interrupted: whether it was stopped before its end.
    """
    session = run.session
    opened, (segment_ns, whole_ns) = session.opened, session.medians_ns(run.around or [session.planned()])
    recorded = session.recorded()
    if run.failure is not None:
        recorded = dataclasses.replace(recorded, ended=str(run.failure).splitlines()[0])
    bounds = bounds_hz(opened, recorded, segment_ns, whole_ns)
    record = session.record(recorded, run.floor, (segment_ns, whole_ns), bounds)
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
        warnings=(
            *opened.timetable.reasons,
            *_left_out(record.launches),
            *record.notes,
            *_broken_bounds(opened.timetable, record.frames),
        ),
    )


def _broken_bounds(timetable: Timetable, frames: FrameTable) -> list[str]:
    """What the check of events finds: where several timetables were in force, by the longest bound of all."""
    longest: dict[str, int] = {}
    for each in timetable.timetables:
        longest |= {name: max(ns, longest.get(name, 0)) for name, ns in each.waits_ns.items()}
    wrong = check_events(msgspec.structs.replace(timetable, waits_ns=longest), frames)
    more = [f"and {len(wrong) - _MOST_WRONG:,} more events"] if len(wrong) > _MOST_WRONG else []
    return wrong[:_MOST_WRONG] + more


def saved(
    result: RunResult,
    planned: Plan,
    claim: Claim,
    *,
    seed: int,
    failure: FramefitError | None,
    update_table: str | Path | None = None,
    notify: Notify,
) -> RunResult:
    """A run, its folder complete: pages, pictures and the profile are made from it by :mod:`framefit.workflows.report`.

    Args:
        result: of the run.
        planned: what was run.
        claim: of its folder.
        seed: that it was run with.
        failure: what ended the run; it is raised when all is written.
        update_table: see :func:`framefit.run`.
        notify: receives what is being done.

    Raises:
        FramefitError: what ended the run.
        RecordingError: the folder could not be completed; what was recorded is in its journal.
    """
    if failure is not None and not result.metrics.windows:  # nothing was recorded
        raise failure
    if update_table is not None:
        notify("profiling the trace")
        result = _with_updated_table(result, planned, update_table)
    notify("writing the run folder")
    info = RunInfo(
        command=" ".join(sys.argv),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        interrupted=result.interrupted,
        error=None if failure is None else str(failure),
        workload=msgspec.to_builtins(planned.workload),
        host=dict(fingerprint()),
        warnings=result.warnings,
        app=str(planned.app.resolve()),
    )
    try:
        write_timetables(planned, claim.folder, force=True)
        write_folder(dataclasses.replace(result, folder=claim.folder), info)
    except (InputError, OSError) as error:
        raise RecordingError(
            f"the run folder could not be completed: {error.what if isinstance(error, InputError) else error}",
            where=result.folder,
            remedy=f"make room; framefit report {result.folder} then makes it from the journal, which is complete"
            if not isinstance(failure, RecordingError)
            else f"make room; framefit report {result.folder} then shows what was recorded",
        ) from error
    claim.complete()
    if failure is not None:
        raise failure
    return result


def bounds_hz(
    opened: OpenTimetable, run: RecordedRun | UnitGroup, segment_ns: Sequence[int], whole_ns: Sequence[int]
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
    run: Dispatcher | UnitGroup | RecordedRun,
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
            median = whole_ns[number] if len(use) == 1 else sum(ns for segment, ns in medians if segment.unit == unit)
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


def _with_updated_table(result: RunResult, planned: Plan, update_table: str | Path) -> RunResult:
    """Write what the layers took into a table; a trace that cannot be used costs no run, and is noted."""
    try:
        write_update(update_table, profile_trace(_profile_input(result)), table_for(planned.workload, planned.device))
    except FramefitError as error:
        note = f"the trace was not put into {update_table}: {error.what}"
        return dataclasses.replace(result, warnings=(*result.warnings, note))
    return result


def _profile_input(result: RunResult) -> ProfileInput:
    trace, notes = _latest(result.trace, str(result.folder))
    return ProfileInput(trace, result.program, result.launches, result.timetable, str(result.folder), notes)


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
