"""What ``run`` and ``simulate`` share: jobs, streams and sinks of a planned workload, figures, and the run folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from framefit.core.events import EventType, Trace
from framefit.core.program import (
    Group,
    Launches,
    Operation,
    Program,
    ProgramUnit,
    SegmentProgram,
)
from framefit.core.timetable import Segment
from framefit.core.workload import Workload, load_workload, release_ns
from framefit.devices.clock import RealClock
from framefit.devices.host import host_stalls
from framefit.devices.measure import Measurement
from framefit.devices.npu import NpuDevice
from framefit.errors import FramefitError, InfeasibleError, InputError
from framefit.runtime.costs import Launch
from framefit.runtime.dispatcher import Dispatcher, instants
from framefit.runtime.job import Job
from framefit.runtime.log import LaunchLog
from framefit.runtime.metrics import frame_records, priority_ns, run_metrics, stream_metrics
from framefit.runtime.preemptive import PreemptiveDispatcher
from framefit.runtime.sinks import AggregatingSink, Sink, open_sink
from framefit.runtime.streams import Feed, Queue, Stream, open_stream
from framefit.runtime.timed import TimedExecution
from framefit.runtime.wiring import check_sinks, streams_of
from framefit.scheduling.bounds import Work, fluid_bounds_hz, packing_bounds_hz
from framefit.scheduling.service import Rotation
from framefit.workflows.folder import RunResult, check_place, free_folder, left_out
from framefit.workflows.plan import Plan
from framefit.workflows.profile_table import planned_expectations

__all__ = ["Session", "accepted", "counted_windows", "needs_feasible"]

logger = logging.getLogger(__name__)

_DEFAULT_SECONDS = 10.0
_MOST_SECONDS = 2.0**63 / 1e9  # 292 years
_ROW_BYTES = 150  # of memory for a launch or a frame at the end of a run, as measured
_MUCH_BYTES = 4_000_000_000


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
    if asked is not None and not asked < _MOST_SECONDS * (1 if windows is None else rate_hz):
        raise InputError(
            f"{asked} {'seconds' if windows is None else 'windows'} are too many: times are nanoseconds in 64 bits",
            remedy=f"ask for less than {_MOST_SECONDS:g} seconds",
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
) -> tuple[Path, Workload, Path]:
    """What a run is asked for, refused before the work of a plan where it cannot be done.

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


class Session:
    """Streams, sinks and jobs of one run.

    Args:
        planned: feasible.
        seed: of synthetic frames.
        frames: whether frames are read and outputs given out; else only time passes.
    """

    def __init__(self, planned: Plan, *, seed: int, frames: bool = True) -> None:
        self.plan = planned
        workload, timetable = planned.workload, planned.timetable
        folder = planned.app.resolve().parent
        behind = max(task.wired.behind for task in planned.tasks)
        self.streams: dict[str, Stream] = {
            entry.name: open_stream(entry, seed + index, folder=folder, keep=behind)
            for index, entry in enumerate(streams_of(workload))
            if frames
        }
        steps = {task.wired.in_step: Feed(waits=task.wired.waits) for task in planned.tasks}
        self.feeds = {name: feed for step, feed in steps.items() for name in step}
        jobs, first = [], 0
        self.first_programs: list[int] = []
        self.sinks: list[Sink] = []
        for task, model in zip(planned.tasks, timetable.models, strict=True):
            entry, execution = task.wired.entry, task.execution
            default_ns = timetable.window_ns if task.priority else None
            jobs.append(
                Job(
                    execution=execution
                    if frames
                    else TimedExecution(planned.device, execution.labels, execution.bindings),
                    first_program=first,
                    priority=task.priority,
                    estimates_ns=[segment.duration_ns for segment in model.segments],
                    deadline_ns=default_ns if entry.deadline_ms is None else round(entry.deadline_ms * 1e6),
                    sources={name: self.streams[source] for name, source in task.wired.sources.items() if frames},
                    queue=Queue(task.wired.depth, task.wired.when_full),
                    feed=steps[task.wired.in_step],
                    every=entry.every,
                    frames=entry.frames,
                )
            )
            if frames:
                jobs[-1].read(0)  # a frame that does not fit is found now, not in the loop
            self.first_programs.append(first)
            first += len(model.segments)
        self._jobs = jobs
        numbers = {task.name: index for index, task in enumerate(planned.tasks)}
        on_host = isinstance(planned.device.clock, RealClock)
        dispatching = PreemptiveDispatcher if timetable.preemptive else Dispatcher
        self.dispatcher = dispatching(
            planned.device,
            planned.device.clock,
            jobs,
            workload.beat_hz,
            timetable.guard_ns,
            service=Rotation(sum(not job.priority for job in jobs)),
            reserved=instants(timetable, numbers),
            stalls=host_stalls(planned.core) if on_host else None,
        )

    def lengths(self) -> list[int]:
        """Of streams that end a run when they end, because nothing of them can be left; where they are known."""
        waiting = {name for name, feed in self.feeds.items() if feed.waits}
        return [s.length for name, s in self.streams.items() if s.length is not None and name not in waiting]

    def windows(self, windows: int | None, seconds: float | None) -> int:
        """How many there will be, streams that end considered; says so where their logs will fill the memory."""
        timetable, count = self.plan.timetable, counted_windows(windows, seconds, self.plan.workload.beat_hz)
        count = min(count, *self.lengths()) if self.lengths() else count
        launches = sum(len(w.priority) + len(w.slots) for w in timetable.windows) / max(len(timetable.windows), 1)
        needed = count * (launches + len(timetable.models)) * _ROW_BYTES
        if needed > _MUCH_BYTES:
            logger.warning(
                "note: what %d windows leave behind will take about %.0f GB of memory; ask for fewer, or stop early",
                count,
                needed / 1e9,
            )
        return count

    def open_sinks(self, *, force: bool) -> None:
        """Give every job its sinks; none is left behind where one cannot be opened."""
        folder, outputs = self.plan.app.resolve().parent, self.plan.workload.outputs
        paths = [folder / output.sink for output in outputs if output.sink.endswith((".npz", ".jsonl"))]
        new = [path for path in paths if not path.exists()]
        try:
            for task, job in zip(self.plan.tasks, self._jobs, strict=True):
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
        """All segments and uncut models in turn, as around every run."""
        launches: list[Launch] = [
            (t.execution, index) for t in self.plan.tasks for index in range(len(t.execution.parts))
        ]
        return self.plan.costs.around([*launches, *((task.whole, 0) for task in self.plan.tasks)])

    def launch_all(self) -> None:
        """Run every model once: first launches are slow."""
        random = np.random.default_rng(0)
        for task in self.plan.tasks:
            task.execution.run(task.execution.example(random))

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

    def _bounds_hz(self, segment_ns: Sequence[int], whole_ns: Sequence[int]) -> dict[str, tuple[float, float]]:
        """Background model -> fluid and packing bound."""
        timetable = self.plan.timetable
        work = {
            task.name: Work(
                whole,
                segment_ns[first : first + len(model.segments)],
                every=task.wired.entry.every,
                frames=task.wired.entry.frames,
                queue=task.wired.depth,
                share=timetable.launches_of(task.name),
            )
            for task, first, model, whole in zip(
                self.plan.tasks, self.first_programs, timetable.models, whole_ns, strict=True
            )
            if not task.priority
        }
        reserved_ns = priority_ns(timetable, self.dispatcher)
        fluid = fluid_bounds_hz(timetable.window_ns, reserved_ns, list(work.values()))
        packing = fluid  # where nothing has to be packed
        if not timetable.preemptive:
            packing = packing_bounds_hz(timetable.window_ns, round(reserved_ns), list(work.values()))
        return dict(zip(work, zip(fluid, packing, strict=True), strict=True))

    def _received(self, windows: int) -> dict[str, tuple[int, int]]:
        """Stream -> frames that came, and windows in which it waited."""
        received = {}
        for name in [entry.name for entry in streams_of(self.plan.workload)]:
            feed = self.feeds.get(name, Feed(delivered=windows))  # nobody reads it
            length = self.streams[name].length if name in self.streams else None
            received[name] = feed.delivered if length is None else min(feed.delivered, length), feed.waited
        return received

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
            memory_bytes=sum(timetable.memory_bytes.values()),
            streams=stream_metrics(
                frames,
                {task.name: set(task.wired.sources.values()) for task in self.plan.tasks},
                self._received(windows),
            ),
        )
        releases = np.fromiter((run.start_ns + release_ns(k, rate_hz) for k in range(windows)), np.int64, windows)
        trace, launches = run.trace(), run.launches.launches()
        told = planned_expectations(self.plan.workload, self.plan.device, _program(self.plan))
        seen_program = _host_program(self.plan)
        return RunResult(
            folder=folder,
            timetable=timetable,
            metrics=metrics,
            frames=frames,
            trace=trace,
            program=told,
            seen=_host_trace(seen_program, run),
            seen_program=seen_program,
            launches=launches,
            releases_ns=releases,
            interrupted=interrupted,
            warnings=(*timetable.reasons, *_notes(self.plan, launches, trace)),
        )


def _program(planned: Plan) -> Program:
    """What the device executes; where it cannot say how long, the timetable does."""
    programs = []
    for task, model in zip(planned.tasks, planned.timetable.models, strict=True):
        for segment, label, found in zip(model.segments, task.execution.labels, task.execution.operations, strict=True):
            operations = found
            if [one.kind for one in found] == [label] and not found[0].expected_ns:
                operations = (_whole(label, segment),)
            programs.append(_segment_program(label, task.name, segment.index, operations))
    return _complete(planned, programs)


def _host_program(planned: Plan) -> Program:
    """What the host sees of it: one operation a segment."""
    programs = []
    for task, model in zip(planned.tasks, planned.timetable.models, strict=True):
        for segment, label in zip(model.segments, task.execution.labels, strict=True):
            programs.append(_segment_program(label, task.name, segment.index, (_whole(label, segment),)))
    return _complete(planned, programs)


def _whole(label: str, segment: Segment) -> Operation:
    spread = max(segment.duration_ns / max(segment.median_ns, 1) - 1, 0.0) / 2.33
    return Operation.opaque(label, segment.last_layer, segment.unit, segment.median_ns, spread)


def _segment_program(label: str, model: str, segment: int, operations: tuple[Operation, ...]) -> SegmentProgram:
    return SegmentProgram(name=label, model=model, segment=segment, groups=(Group(index=0, operations=operations),))


def _complete(planned: Plan, programs: Sequence[SegmentProgram]) -> Program:
    units = planned.device.target.units
    return Program(
        window_ns=planned.timetable.window_ns,
        units=tuple(ProgramUnit(name=unit.name, core=unit.core) for unit in units),
        programs=tuple(programs),
        launches="launches.npz",
    )


def _host_trace(program: Program, run: Dispatcher) -> Trace:
    """The launches as the host saw them, as a trace: nothing is lost, times are the host's."""
    rows = run.launches.finished()
    core_of = {unit.name: unit.core for unit in program.units}
    cores = np.asarray([core_of[one.groups[0].operations[0].unit] for one in program.programs])
    which = rows[:, LaunchLog.PROGRAM]
    times = rows[:, [LaunchLog.STARTED, LaunchLog.FINISHED]]
    return Trace(
        time_ns=times.reshape(-1),
        id=np.repeat(which, 2).astype(np.int32),
        type=np.tile([EventType.START, EventType.END], len(rows)).astype(np.uint8),
        core=np.repeat(cores[which] if len(which) else which, 2).astype(np.int16),
        operation=np.zeros(2 * len(rows), np.int64),
        kinds=tuple(one.name for one in program.programs),
    )


def _notes(planned: Plan, launches: Launches, trace: Trace) -> list[str]:
    """What the files of a run do not hold, and what held it up."""
    notes = left_out(launches)
    if gone := trace.meta.overwritten_events:
        notes.append(f"trace.npz holds the last {len(trace)} events; {gone} before them are not kept")
    if isinstance(planned.device, NpuDevice) and (late := planned.device.late_results):
        notes.append(
            f"{late} of {len(launches)} launches took this host longer to compute than the described device: times are "
            "the host's there; framefit simulate has the device's"
        )
    return notes
