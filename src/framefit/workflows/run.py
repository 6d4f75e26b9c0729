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
from framefit.core.results import Frame, Metrics, Percentiles, RunInfo, StreamMetrics
from framefit.core.timetable import Timetable
from framefit.core.workload import release_ns
from framefit.devices.host import fingerprint, flushed_denormals, pinned
from framefit.devices.measure import Measurement, measure, measure_floor
from framefit.errors import DeviceError, InfeasibleError, InputError
from framefit.report.frames import write_frames
from framefit.report.perfetto import write_perfetto
from framefit.report.picture import run_picture
from framefit.runtime.dispatcher import Dispatcher, Job, steady
from framefit.runtime.metrics import figures, frame_records, misses, model_metrics
from framefit.runtime.sinks import Sink, open_sink
from framefit.runtime.streams import Queue, Stream, open_stream
from framefit.runtime.wiring import streams_of
from framefit.scheduling.bounds import fluid_bound_hz, packing_bound_hz
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
    failure: DeviceError | None = None
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
        except DeviceError as error:
            failure = error
        interrupted = dispatcher.windows < count and failure is None
        if failure is None:
            notify("measuring once more")
            around.append(session.measure())
        planned.device.events()
    session.close()
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
        self.streams: dict[str, Stream] = {
            entry.name: open_stream(entry, seed + index) for index, entry in enumerate(entries)
        }
        by_name = {entry.name: entry for entry in entries}
        jobs, first = [], 0
        self.first_programs: list[int] = []
        self.sinks: list[Sink] = []
        for task, model in zip(planned.tasks, timetable.models, strict=True):
            sinks = []
            for output in workload.outputs:
                if output.model == task.name:
                    names = output.tensors or tuple(tensor.name for tensor in task.execution.model.outputs)
                    unknown = set(names) - {tensor.name for tensor in task.execution.model.outputs}
                    if unknown:
                        raise InputError(
                            f"model {task.name!r} has no output {min(unknown)!r}; outputs: "
                            f"{', '.join(tensor.name for tensor in task.execution.model.outputs)}",
                            where="$.outputs",
                            remedy="correct the name",
                        )
                    sinks.append((open_sink(output.sink, force=force), names))
            self.sinks += [sink for sink, _ in sinks]
            read = [by_name[source] for source in task.wired.sources.values()]
            default_ns = timetable.window_ns if task.priority else None
            deadline_ms = task.wired.entry.deadline_ms
            jobs.append(
                Job(
                    execution=task.execution,
                    first_program=first,
                    priority=task.priority,
                    estimates_ns=[segment.duration_ns for segment in model.segments],
                    deadline_ns=default_ns if deadline_ms is None else round(deadline_ms * 1e6),
                    sources={name: self.streams[source] for name, source in task.wired.sources.items()},
                    queue=Queue(
                        min((entry.queue for entry in read), default=1),
                        drop_oldest=all(entry.when_full == "drop-oldest" for entry in read),
                    ),
                    sinks=sinks,
                )
            )
            jobs[-1].read(0)  # a frame that does not fit is found now, not in the loop
            self.first_programs.append(first)
            first += len(model.segments)
        self.dispatcher = Dispatcher(planned.device, planned.device.clock, jobs, workload.beat_hz, timetable.guard_ns)

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
        for sink in self.sinks:
            sink.close()

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
        releases = np.asarray([run.start_ns + release_ns(k, rate_hz) for k in range(windows)], np.int64)
        medians = [int(np.median(np.concatenate([m.samples_ns for m in same]))) for same in zip(*around, strict=True)]
        segment_ns, whole_ns = medians[: -len(self.plan.tasks)], medians[-len(self.plan.tasks) :]
        rows = run.launches.rows()
        lasted = rows[:, 4] - rows[:, 3]
        priority_programs = [
            first + index
            for first, model in zip(self.first_programs, timetable.models, strict=True)
            for index in range(len(model.segments))
            if model.role == "priority"
        ]
        is_priority = np.isin(rows[:, 0], priority_programs)
        per_window = np.bincount(rows[is_priority, 1].astype(np.int64), lasted[is_priority], minlength=max(windows, 1))
        priority_ns = float(np.median(per_window))
        background = [
            (first, model, whole)
            for first, model, whole in zip(self.first_programs, timetable.models, whole_ns, strict=True)
            if model.role == "background"
        ]
        all_segments = [segment_ns[first + i] for first, model, _ in background for i in range(len(model.segments))]
        window_ns = timetable.window_ns
        bounds = None
        if background:
            bounds = (
                fluid_bound_hz(window_ns, priority_ns, sum(whole for _, _, whole in background)),
                packing_bound_hz(window_ns, round(priority_ns), all_segments),
            )
        models = []
        for index, (first, model, whole) in enumerate(
            zip(self.first_programs, timetable.models, whole_ns, strict=True)
        ):
            cut = sum(segment_ns[first : first + len(model.segments)])
            models.append(
                model_metrics(
                    index,
                    model,
                    run.frames,
                    windows=windows,
                    rate_hz=rate_hz,
                    bounds_hz=bounds if model.role == "background" else None,
                    overhead_ratio=cut / max(whole, 1) - 1 if len(model.segments) > 1 else 0.0,
                )
            )
        use = figures(timetable, run.launches, windows=windows, rate_hz=rate_hz)
        names = [task.name for task in self.plan.tasks]
        counted_by = {task.name: next(iter(task.wired.sources.values()), "-") for task in self.plan.tasks}
        floor_ns = Percentiles.of(floor)
        frames = frame_records(run.frames, names, counted_by, run.start_ns)
        dropped: dict[str, set[int]] = {name: set() for name in self.streams}
        for frame in frames:
            if frame.fate == "dropped" and frame.stream in dropped:
                dropped[frame.stream].add(frame.frame)
        metrics = Metrics(
            windows=windows,
            models=tuple(models),
            residual_utilisation_ratio=use.residual_utilisation_ratio,
            guard_loss_ratio=use.guard_loss_ratio,
            packing_loss_ratio=use.packing_loss_ratio,
            floor_release_to_start_ns=floor_ns,
            estimate_exceeded_ratio=use.estimate_exceeded_ratio,
            dispatch_ns=use.dispatch_ns,
            peak_memory_bytes=sum(task.execution.memory_bytes for task in self.plan.tasks),
            rung_switches=0,
            streams=tuple(
                StreamMetrics(name=name, received=windows, dropped=len(frames)) for name, frames in dropped.items()
            ),
            misses=tuple(misses(timetable, run.launches, run.frames, window_ns=window_ns, floor_p99_ns=floor_ns.p99)),
        )
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
