"""``framefit run``: the planned models, for real, on the beat."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.events import Trace
from framefit.core.files import write_record, write_whole
from framefit.core.program import (
    Group,
    Launches,
    Operation,
    Program,
    ProgramUnit,
    SegmentProgram,
    write_program,
)
from framefit.core.results import Frame, Metrics, RunInfo
from framefit.core.timetable import Timetable
from framefit.core.workload import release_ns
from framefit.devices.host import fingerprint, flushed_denormals, host_stalls, pinned
from framefit.devices.measure import Measurement, measure, measure_floor
from framefit.errors import FramefitError, InfeasibleError, InputError
from framefit.report.frames import write_frames
from framefit.report.perfetto import write_perfetto
from framefit.report.picture import run_picture
from framefit.runtime.dispatcher import Dispatcher, instants, steady
from framefit.runtime.job import Job
from framefit.runtime.metrics import frame_records, priority_ns, run_metrics, stream_metrics
from framefit.runtime.preemptive import PreemptiveDispatcher
from framefit.runtime.sinks import AggregatingSink, Sink, open_sink
from framefit.runtime.streams import Queue, Stream, open_stream
from framefit.runtime.wiring import streams_of
from framefit.scheduling.bounds import fluid_bound_hz, packing_bound_hz
from framefit.scheduling.service import Rotation
from framefit.workflows.plan import Notify, Plan, plan, silent

__all__ = ["RunResult", "run"]

_DEFAULT_SECONDS = 10.0
_LEAST_FLOOR, _MOST_FLOOR = 30, 150  # windows of the idle control
_AROUND_NS, _AROUND_LEAST, _AROUND_MOST = 1_000_000_000, 6, 40  # measuring before and after the run


@dataclass(frozen=True)
class RunResult:
    """What a run gave.

    Attributes:
        folder: the run folder, complete.
        timetable: the plan that was run.
        metrics: figures.
        frames: the fate of every frame.
        trace, program, launches, releases_ns: what happened, on the run's clock.
        interrupted: whether it was stopped before its end.
    """

    folder: Path
    timetable: Timetable
    metrics: Metrics
    frames: tuple[Frame, ...]
    trace: Trace
    program: Program
    launches: Launches
    releases_ns: np.ndarray[tuple[int], np.dtype[np.int64]]
    interrupted: bool


def run(
    app: str | Path | Plan,
    *,
    windows: int | None = None,
    seconds: float | None = None,
    output: str | Path | None = None,
    force: bool = False,
    fresh: bool = False,
    seed: int = 0,
    notify: Notify = silent,
    stop: Callable[[], bool] = lambda: False,
    on_idle: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Plan a workload, run it, and write the run folder.

    Args:
        app: an ``app.toml``, or a plan that was made of one.
        windows: how many; or ``seconds`` (default 10). Streams that end, end the run.
        seconds: length of the run.
        output: the run folder; default: ``runs/APP-N``, the first N that is free.
        force: overwrite folder and sinks.
        fresh: measure anew before planning.
        seed: of synthetic frames.
        notify: receives what is being done.
        stop: asked in every window; true ends the run, which is saved.
        on_idle: called with (windows begun, windows) where a window leaves time.

    Raises:
        InputError: see :func:`framefit.plan`; a folder or sink that exists.
        InfeasibleError: the plan does not fit.
        DeviceError: the device failed in mid-run; what happened until then is saved.

    Example:
        >>> framefit.run("app.toml", seconds=5).metrics.miss_ratio  # doctest: +SKIP
        0.0
    """
    if windows is not None and seconds is not None:
        raise InputError("windows and seconds are both given", remedy="give one of them")
    if (windows is not None and windows < 1) or (seconds is not None and not seconds > 0):
        raise InputError(f"nothing to run: {windows if windows is not None else seconds}", remedy="ask for more than 0")
    path = app.app if isinstance(app, Plan) else Path(app)
    folder = _free_folder(path) if output is None else Path(output)
    if folder.exists() and not force:
        raise InputError("already exists", where=folder, remedy="choose another folder, or overwrite it with --force")
    planned = app if isinstance(app, Plan) else plan(app, fresh=fresh, notify=notify)
    timetable = planned.timetable
    if not timetable.feasible:
        fixes = "; ".join(f"{fix.change} ({fix.effect})" for fix in timetable.fixes)
        raise InfeasibleError(
            f"the models do not fit: {timetable.binding_constraint}",
            where=path,
            remedy=fixes or None,
        )
    rate_hz = planned.workload.beat_hz
    count = windows if windows is not None else max(round((seconds or _DEFAULT_SECONDS) * rate_hz), 1)
    session = _Session(planned, seed=seed, force=force)
    count = min([count, *(stream.length for stream in session.streams.values() if stream.length is not None)])
    failure: FramefitError | None = None
    with pinned(planned.device.target.units[0].core), flushed_denormals():
        notify("warming up")
        around = [session.measure()]
        notify("idle control")
        idle_windows = int(np.clip(count // 10, _LEAST_FLOOR, _MOST_FLOOR))
        floor = measure_floor(planned.device.clock, timetable.window_ns, idle_windows)
        session.reset()
        planned.device.events()
        dispatcher = session.dispatcher
        notify(f"running {count} windows")
        try:
            with steady():
                dispatcher.run(
                    count, stop=stop, on_idle=None if on_idle is None else lambda begun: on_idle(begun, count)
                )
        except FramefitError as error:  # of the device, a sink, a stream: what happened is kept
            failure = error
        interrupted = dispatcher.windows < count and not dispatcher.ended and failure is None
        if failure is None:
            notify("measuring once more")
            around.append(session.measure())
        planned.device.events()
    try:
        session.close()
    except FramefitError as error:
        failure = failure or error
    notify("writing the run folder")
    result = session.result(folder, floor, around, interrupted=interrupted)
    _write(result, planned, seed=seed, force=force, command=" ".join(sys.argv))
    if failure is not None:
        raise failure
    return result


class _Session:
    """Streams, sinks and jobs of one run."""

    def __init__(self, planned: Plan, *, seed: int, force: bool) -> None:
        self.plan = planned
        workload, timetable = planned.workload, planned.timetable
        entries = streams_of(workload)
        folder = planned.app.resolve().parent
        self.streams: dict[str, Stream] = {
            entry.name: open_stream(entry, seed + index, folder=folder) for index, entry in enumerate(entries)
        }
        by_name = {entry.name: entry for entry in entries}
        jobs, first = [], 0
        self.first_programs: list[int] = []
        self.sinks: list[Sink] = []
        for task, model in zip(planned.tasks, timetable.models, strict=True):
            entry = task.wired.entry
            for output in workload.outputs:
                if output.model == task.name:
                    _check_names(output.tensors, task.execution.output_names, task.name)
            read = [by_name[source] for source in task.wired.sources.values()]
            default_ns = timetable.window_ns if task.priority else None
            jobs.append(
                Job(
                    execution=task.execution,
                    first_program=first,
                    priority=task.priority,
                    estimates_ns=[segment.duration_ns for segment in model.segments],
                    deadline_ns=default_ns if entry.deadline_ms is None else round(entry.deadline_ms * 1e6),
                    sources={name: self.streams[source] for name, source in task.wired.sources.items()},
                    queue=Queue(
                        max(min((stream.queue for stream in read), default=1), entry.frames),
                        drop_oldest=all(stream.when_full == "drop-oldest" for stream in read),
                    ),
                    every=entry.every,
                    frames=entry.frames,
                )
            )
            jobs[-1].read(0)  # a frame that does not fit is found now, not in the loop
            self.first_programs.append(first)
            first += len(model.segments)
        self._open_sinks(jobs, folder, force=force)  # last: nothing is left behind by what is refused
        numbers = {task.name: index for index, task in enumerate(planned.tasks)}
        dispatching = PreemptiveDispatcher if timetable.preemptive else Dispatcher
        self.dispatcher = dispatching(
            planned.device,
            planned.device.clock,
            jobs,
            workload.beat_hz,
            timetable.guard_ns,
            service=Rotation(sum(not job.priority for job in jobs)),
            reserved=instants(timetable, numbers),
            stalls=host_stalls(planned.device.target.units[0].core),
        )

    def _open_sinks(self, jobs: Sequence[Job], folder: Path, *, force: bool) -> None:
        outputs = self.plan.workload.outputs
        paths = [folder / output.sink for output in outputs if output.sink.endswith((".npz", ".jsonl"))]
        new = [path for path in paths if not path.exists()]
        try:
            for task, job in zip(self.plan.tasks, jobs, strict=True):
                aggregate, sinks = task.wired.entry.aggregate, []
                for output in outputs:
                    if output.model == task.name:
                        sink = open_sink(output.sink, force=force, folder=folder)
                        self.sinks.append(AggregatingSink(sink, aggregate) if aggregate > 1 else sink)
                        sinks.append((self.sinks[-1], output.tensors))
                job.sinks = sinks
        except FramefitError:
            self.close()
            for path in new:
                path.unlink(missing_ok=True)
            raise

    def measure(self) -> list[Measurement]:
        """All segments and uncut background models in turn, as around every run."""
        launches = [(t.execution, index) for t in self.plan.tasks for index in range(len(t.execution.parts))]
        launches += [(task.whole, 0) for task in self.plan.tasks]
        calls = [lambda e=execution, i=index: e.launch(i) for execution, index in launches]
        return measure(
            calls,
            budget_ns=_AROUND_NS,
            least_rounds=_AROUND_LEAST,
            most_rounds=_AROUND_MOST,
            clock=self.plan.device.clock,
            period_ns=self.plan.timetable.window_ns,
        )

    def reset(self) -> None:
        """Zero all state."""
        for task in self.plan.tasks:
            task.execution.reset()

    def close(self) -> None:
        """Complete all sinks."""
        failure: FramefitError | None = None
        for sink in self.sinks:
            try:
                sink.close()
            except FramefitError as error:  # the others are completed all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def _bounds_hz(self, segment_ns: Sequence[int], whole_ns: Sequence[int]) -> tuple[float, float] | None:
        """Fluid and packing bound of the background models, all served alike."""
        timetable = self.plan.timetable
        background = [
            (first, model, whole)
            for first, model, whole in zip(self.first_programs, timetable.models, whole_ns, strict=True)
            if model.role == "background"
        ]
        if not background:
            return None
        reserved_ns = priority_ns(timetable, self.dispatcher)
        every = max(task.wired.entry.every * task.wired.entry.frames for task in self.plan.tasks if not task.priority)
        fluid = fluid_bound_hz(timetable.window_ns, reserved_ns, sum(whole for _, _, whole in background), every)
        if timetable.preemptive:
            return fluid, fluid  # nothing has to be packed
        segments = [segment_ns[first + index] for first, model, _ in background for index in range(len(model.segments))]
        return fluid, packing_bound_hz(timetable.window_ns, round(reserved_ns), segments, every=every)

    def result(
        self,
        folder: Path,
        floor: np.ndarray[tuple[int], np.dtype[np.int64]],
        around: Sequence[Sequence[Measurement]],
        *,
        interrupted: bool,
    ) -> RunResult:
        """Figures from the logs."""
        timetable, run = self.plan.timetable, self.dispatcher
        rate_hz, windows = self.plan.workload.beat_hz, run.windows
        count = len(self.plan.tasks)
        medians = [int(np.median(np.concatenate([m.samples_ns for m in same]))) for same in zip(*around, strict=True)]
        segment_ns, whole_ns = medians[:-count], medians[-count:]
        names = [task.name for task in self.plan.tasks]
        counted_by = {task.name: next(iter(task.wired.sources.values()), "-") for task in self.plan.tasks}
        frames = frame_records(run.frames, names, counted_by, run.start_ns)
        metrics = run_metrics(
            timetable,
            run,
            rate_hz=rate_hz,
            segment_ns=segment_ns,
            whole_ns=whole_ns,
            floor_ns=floor,
            bounds_hz=self._bounds_hz(segment_ns, whole_ns),
            memory_bytes=sum(task.execution.memory_bytes for task in self.plan.tasks),
            streams=stream_metrics(frames, list(self.streams), windows),
        )
        releases = np.asarray([run.start_ns + release_ns(k, rate_hz) for k in range(windows)], np.int64)
        program = _program(self.plan)
        return RunResult(
            folder=folder,
            timetable=timetable,
            metrics=metrics,
            frames=tuple(frames),
            trace=run.trace(),
            program=program,
            launches=run.launches.launches(),
            releases_ns=releases,
            interrupted=interrupted,
        )


def _check_names(asked: Sequence[str] | None, known: Sequence[str] | None, model: str) -> None:
    """Whether a model has the outputs that are asked for; what postprocess gives is not known yet."""
    unknown = set(asked or ()) - set(known or asked or ())
    if unknown:
        raise InputError(
            f"model {model!r} has no output {min(unknown)!r}; outputs: {', '.join(known or ())}",
            where="$.outputs",
            remedy="correct the name",
        )


def _program(planned: Plan) -> Program:
    """On the CPU one operation of the program is one segment."""
    programs = []
    for task, model in zip(planned.tasks, planned.timetable.models, strict=True):
        for segment, label in zip(model.segments, task.execution.labels, strict=True):
            operation = Operation(
                index=0,
                name=label,
                layer=segment.last_layer,
                kind=label,
                unit=segment.unit,
                expected_ns=segment.median_ns,
                sigma_ratio=max(segment.duration_ns / max(segment.median_ns, 1) - 1, 0.0) / 2.33,
            )
            programs.append(
                SegmentProgram(
                    name=label,
                    model=task.name,
                    segment=segment.index,
                    groups=(Group(index=0, operations=(operation,)),),
                )
            )
    units = planned.device.target.units
    return Program(
        window_ns=planned.timetable.window_ns,
        units=tuple(ProgramUnit(name=unit.name, core=unit.core) for unit in units),
        programs=tuple(programs),
        launches="launches.npz",
    )


def _free_folder(app: Path) -> Path:
    """``runs/APP-N``: named after the file, or its folder where it is just called app.toml."""
    name = app.stem if app.stem != "app" else app.resolve().parent.name
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def _write(result: RunResult, planned: Plan, *, seed: int, force: bool, command: str) -> None:
    """The run folder: made beside its place, then renamed."""
    final = result.folder
    part = final.with_name(f".{final.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        info = RunInfo(
            command=command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seed=seed,
            interrupted=result.interrupted,
            workload=msgspec.to_builtins(planned.workload),
            host=dict(fingerprint()),
            warnings=planned.timetable.reasons,
        )
        write_record(part / "run.json", info)
        write_record(part / "timetable.json", result.timetable)
        write_program(part, result.program, result.launches)
        result.trace.write(part / "trace.npz")
        write_record(part / "metrics.json", result.metrics)
        write_frames(part / "frames.csv", result.frames)
        priority = [model.name for model in result.timetable.models if model.role == "priority"]
        write_perfetto(
            part / "trace.pftrace", result.trace, result.program, result.launches, result.releases_ns, priority
        )
        picture = run_picture(result.trace, result.program, result.launches, result.releases_ns, priority)
        with write_whole(part / "run.svg") as file:
            file.write(picture.encode())
        if final.exists() and force:
            old = final.with_name(f".{final.name}.old")
            shutil.rmtree(old, ignore_errors=True)
            final.replace(old)
            part.replace(final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            part.replace(final)
    except OSError as error:
        raise InputError(f"cannot be written: {error}", where=final, remedy="check folder and space") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
