"""Where a run's frames come from: streams of the workload, and frames that a program hands over.

What was told to a device, and what the host saw of it, as programs and a trace.

Faults that a user has injected into a run, and what to say of those that came by themselves.

What a run gave: figures from its logs, and everything that its folder holds.

What ``run``, ``simulate`` and a ``Runner`` share: the jobs of a planned workload on their units, and its sinks.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import math
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from framefit.core.events import EventType, Trace
from framefit.core.faults import Fault, check_fault, read_fault
from framefit.core.files import claimed_folder
from framefit.core.model import TensorInfo
from framefit.core.policy import Rotation
from framefit.core.program import Group, Launches, Operation, Program, ProgramUnit, SegmentProgram
from framefit.core.run_record import FrameTable, Metrics
from framefit.core.settings import Notify
from framefit.core.timetable import PlannedModel, Segment
from framefit.core.workload import STRICTEST, Workload, streams_of
from framefit.devices.clock import RealClock
from framefit.devices.device import is_simulated
from framefit.devices.faulty import FaultyDevice
from framefit.devices.host import steal_time_reader
from framefit.devices.measure import Measurement
from framefit.errors import FramefitError, InputError
from framefit.execution.buffers import unit_bytes
from framefit.execution.execution import Execution, Launchable
from framefit.execution.measured import Launch
from framefit.execution.prepare import Preparation, one_frame
from framefit.execution.streams import Stream, open_stream
from framefit.planning.beat import in_order
from framefit.planning.plan import Plan
from framefit.planning.task import PlannedTask
from framefit.runtime.channel import FrameChannel
from framefit.runtime.injection import disturb_feeds, disturbed
from framefit.runtime.job import Job, ReadModel, connect_reader, stage_jobs
from framefit.runtime.log import FaultCause, FrameOutcomes, LaunchLog
from framefit.runtime.loop import LEAD_NS, steady
from framefit.runtime.metrics import frame_records, run_metrics, stream_metrics
from framefit.runtime.program import (
    NumberedSink,
    PushedStream,
    Reader,
    ResultPublisher,
    SubmissionQueue,
    with_submitted,
)
from framefit.runtime.reading import ResultStream
from framefit.runtime.recovery import FailoverTarget
from framefit.runtime.sinks import AggregatingSink, CheckedSink, Sink, open_sink
from framefit.runtime.streams import Feed
from framefit.runtime.timed import TimedExecution
from framefit.runtime.units import UnitGroup, assign_units
from framefit.runtime.watchdog import patience_ns, watched
from framefit.workflows.profile import planned_expectations
from framefit.workflows.record import (
    RunResult,
    bounds_hz,
    counted_windows,
    folder_stem,
    left_out,
    with_profile,
    write_folder,
)
from framefit.workflows.switching import Climb, deadline_ns

__all__ = [
    "Floor",
    "Outcome",
    "Session",
    "Sources",
    "asked_faults",
    "check_faults",
    "device_program",
    "failover_target",
    "fault_notes",
    "host_program",
    "host_trace",
    "saved",
]


class Sources:
    """Streams of one run, and what brings their frames.

    Args:
        planned: feasible.
        seed: of synthetic frames.
        frames: whether frames are read; else only time passes.
        submitted: streams whose frames the program hands over.

    Attributes:
        streams: by name.
        feeds: stream -> what brings its frames; those that stay in step have one.
    """

    def __init__(self, planned: Plan, *, seed: int, frames: bool, submitted: Collection[str]) -> None:
        self._plan = planned
        self._tasks = {task.name: task for task in planned.tasks}
        folder = planned.app.resolve().parent
        # A model that reads others, too, is as far behind as their results are old.
        models = [model for timetable in planned.timetables for model in timetable.models]
        ages = [model.result_age_windows or 0 for model in models if model.after]
        behind = max(task.wired.behind for task in planned.tasks) + max(ages, default=0)
        self.streams: dict[str, Stream] = {
            entry.name: PushedStream(entry.name, self._readers(entry.name), keep=behind)
            if entry.name in submitted
            else open_stream(entry, seed + index, folder=folder, keep=behind)
            for index, entry in enumerate(streams_of(planned.workload))
            if frames
        }
        self._steps = {
            task.wired.in_step: Feed(waits=task.wired.waits, streams=task.wired.in_step) for task in planned.tasks
        }
        for step, feed in self._steps.items():
            feed.frame_source = self._intake(step)
        self.feeds = {name: feed for step, feed in self._steps.items() for name in step}

    def feed(self, task: PlannedTask) -> Feed:
        """What brings a model's frames; of one that reads others: nothing does."""
        return self._steps[task.wired.in_step]

    def stream(self, task: PlannedTask) -> str:
        """The stream that a model's frames are counted by; "-": none."""
        return next(iter(self._root(task).wired.sources.values()), "-")

    def submissions(self, task: PlannedTask) -> SubmissionQueue | None:
        """Where a model's frames wait until windows take them; ``None``: its streams have sources of their own."""
        frame_source = self.feed(self._root(task)).frame_source
        return frame_source if isinstance(frame_source, SubmissionQueue) else None

    @property
    def submission_queues(self) -> list[SubmissionQueue]:
        """All that models read from."""
        intakes = {id(feed.frame_source): feed.frame_source for feed in self.feeds.values()}
        return [frame_source for frame_source in intakes.values() if isinstance(frame_source, SubmissionQueue)]

    def lengths(self) -> list[int]:
        """Of streams that end a run when they end, because nothing of them can be left; where they are known."""
        waiting = {name for name, feed in self.feeds.items() if feed.waits or feed.frame_source is not None}
        return [s.length for name, s in self.streams.items() if s.length is not None and name not in waiting]

    def received(self, windows: int) -> dict[str, tuple[int, int]]:
        """Stream -> frames that came in so many windows, and windows in which it waited."""
        received = {}
        for name in [entry.name for entry in streams_of(self._plan.workload)]:
            feed = self.feeds.get(name, Feed(delivered=windows))  # nobody reads it
            came = feed.frame_source.count if isinstance(feed.frame_source, SubmissionQueue) else feed.delivered
            length = self.streams[name].length if name in self.streams else None
            received[name] = came if length is None else min(came, length), feed.waited
        return received

    def _root(self, task: PlannedTask) -> PlannedTask:
        """The model at the beginning of those that it reads; itself where it reads streams."""
        while task.wired.after:
            task = self._tasks[task.wired.after[0]]
        return task

    def _readers(self, stream: str) -> list[Reader]:
        """What frames of a stream are asked for."""
        found: list[Reader] = []
        for wired in (task.wired for task in self._plan.tasks):
            for name, tensor in wired.frame_inputs.items():
                if wired.sources[name] == stream:
                    prepare: Preparation | None = wired.prepare.get(name) if tensor.shape is None else None
                    found.append((tensor, copy.deepcopy(prepare)))  # the loop uses the other one meanwhile
        return found

    def _intake(self, step: Collection[str]) -> SubmissionQueue | None:
        """For those streams of a step whose frames are handed over."""
        streams = [self.streams[name] for name in sorted(step) if name in self.streams]
        pushed = [stream for stream in streams if isinstance(stream, PushedStream)]
        if not pushed:
            return None
        entries = [entry for entry in streams_of(self._plan.workload) if entry.name in {one.name for one in pushed}]
        rules = {entry.when_full for entry in entries}
        return SubmissionQueue(
            pushed,
            min(entry.queue for entry in entries),
            next(rule for rule in STRICTEST if rule in rules),
            self._plan.device.clock.now_ns,
        )


def device_program(planned: Plan) -> Program:
    """What the device executes; where it cannot say how long, the timetable does."""
    programs = []
    for model, execution in _launched(planned):
        for segment, label, found in zip(model.segments, execution.labels, execution.operations, strict=True):
            operations = found
            if [one.kind for one in found] == [label] and not found[0].expected_ns:
                operations = (_whole(label, segment),)
            programs.append(_segment_program(label, model.name, segment.index, operations))
    return _complete(planned, programs)


def host_program(planned: Plan) -> Program:
    """What the host sees of it: one operation a segment."""
    programs = []
    for model, execution in _launched(planned):
        for segment, label in zip(model.segments, execution.labels, strict=True):
            programs.append(_segment_program(label, model.name, segment.index, (_whole(label, segment),)))
    return _complete(planned, programs)


def _launched(planned: Plan) -> list[tuple[PlannedModel, Execution]]:
    """Models in all their cuts, in the order of the programs."""
    return [pair for cuts in planned.cuts for pair in zip(cuts.models, cuts.executions, strict=True)]


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


def host_trace(program: Program, run: UnitGroup) -> Trace:
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


_OF_FRAMES = ("nan", "inf", "shape")


def asked_faults(texts: Sequence[str], workload: Workload) -> list[Fault]:
    """Faults in words; see :func:`~framefit.core.faults.read_fault`.

    Raises:
        InputError: one cannot be read.
    """
    return [read_fault(text, workload.grid.release_ns) for text in texts]


def check_faults(faults: Sequence[Fault], planned: Plan, *, frames: bool) -> None:
    """Refuse faults that could not occur in a run.

    Args:
        faults: to be injected.
        planned: what is run.
        frames: whether frames are read and outputs computed.

    Raises:
        InputError: nothing has a fault's name, or it needs frames, and there are none.
    """
    models = planned.timetable.models
    launched = {model.name for model in models} | set(planned.timetable.units)
    launched |= {label for task in planned.tasks for label in task.execution.labels}
    streams = [stream.name for stream in streams_of(planned.workload)]
    for fault in faults:
        check_fault(fault, launched, streams)
        if fault.kind in _OF_FRAMES and not frames:
            raise InputError(
                f"{fault.kind} is a fault of frames, and none are read",
                where=f"inject {fault.kind}:{fault.name}",
                remedy="compute outputs: --outputs, outputs=True",
            )


def failover_target(planned: Plan, model: int, execution: Launchable, working: Sequence[str]) -> FailoverTarget | None:
    """Where a model may go on whose unit has failed: the first unit that it may use, and that supports it.

    Compiles, so it takes its time. Segments are planned to take as much longer there as the device says.

    Args:
        planned: what is run.
        model: its number.
        execution: of the model as it ran, of its last stage.
        working: units to choose from.
    """
    task, segments = planned.tasks[model], planned.timetable.models[model].segments
    allowed, device = task.wired.entry.units, planned.device
    for unit in working:
        if allowed is not None and unit not in allowed:
            continue
        try:
            found = task.wired.execution(task.segments, device, unit)
        except FramefitError:  # it does not support the model
            continue
        expected = [(found.expected_ns(index), task.execution.expected_ns(index)) for index in range(len(segments))]
        ratios = [there / before if there and before else 1.0 for there, before in expected]
        estimates_ns = [math.ceil(s.duration_ns * ratio) for s, ratio in zip(segments, ratios, strict=True)]
        found.replace(execution if isinstance(execution, Execution) else task.execution)
        timed = execution.elsewhere(found.labels, found.bindings) if isinstance(execution, TimedExecution) else None
        first_program = sum(len(one.segments) for one in planned.timetable.models[:model])
        return FailoverTarget(unit, timed or found, estimates_ns, first_program)
    return None


def fault_notes(metrics: Metrics, run: UnitGroup) -> list[str]:
    """What went wrong in a run, for its warnings.

    Args:
        metrics: of the run.
        run: afterwards.
    """
    names = [model.name for model in metrics.models]
    notes = [
        f"unit {one.unit!r} failed: model {names[one.model]!r} went on on {one.to!r} from window {one.window} on; "
        "the trace's program still has it there"
        for one in run.migrations
    ]
    for model in metrics.models:
        if model.faults:
            counts = ", ".join(f"{count} x {cause}" for cause, count in model.faults.items())
            rests = "; it was degraded at the end" if model.degraded else ""
            notes.append(f"faults of model {model.name!r}: {counts}{rests}")
    if notes:
        first = next((text for text in run.faults.texts if text), None)
        notes += [] if first is None else [f"the first error: {first.splitlines()[0]}"]
    return notes


Floor = np.ndarray[tuple[int], np.dtype[np.int64]]


class Outcome:
    """Figures of one run, from the logs of its units.

    Args:
        planned: what is run.
        sources: where its frames come from.
        jobs: of each model's stages.
        climb: what changes its timetable.
    """

    def __init__(self, planned: Plan, sources: Sources, jobs: Sequence[Sequence[Job]], climb: Climb) -> None:
        self._plan, self._sources, self._jobs, self._climb = planned, sources, jobs, climb

    def metrics(self, run: UnitGroup, floor: Floor, medians_ns: Sequence[int]) -> Metrics:
        """Figures of a run that goes on; without bounds."""
        return self._metrics(run, self._frames(run, ended=False), floor, medians_ns, bounds=False)

    def result(
        self, run: UnitGroup, folder: Path, floor: Floor, medians_ns: Sequence[int], *, interrupted: bool
    ) -> RunResult:
        """Everything of a run that has ended.

        Args:
            run: afterwards.
            folder: where it will lie.
            floor: how late the idle machine woke up.
            medians_ns: of all segments, then of all uncut models, in the plan's order.
            interrupted: whether it was stopped before its end.
        """
        planned, timetable = self._plan, self._plan.timetable
        frames = self._frames(run, ended=True)
        metrics = self._metrics(run, frames, floor, medians_ns, bounds=True)
        releases = np.fromiter((run.release(window) for window in range(run.windows)), np.int64, run.windows)
        trace, launches = run.trace(), self._launches(run)
        seen_program = host_program(planned)
        return RunResult(
            folder=folder,
            timetable=timetable,
            metrics=metrics,
            frames=frames,
            trace=trace,
            program=planned_expectations(planned.workload, planned.device, device_program(planned)),
            seen=host_trace(seen_program, run),
            seen_program=seen_program,
            launches=launches,
            releases_ns=releases,
            interrupted=interrupted,
            in_force=tuple((run.release(one.window), one.rung.name) for one in run.stretches),
            warnings=(
                *timetable.reasons,
                *_notes(planned, launches, trace),
                *_switched(metrics),
                *fault_notes(metrics, run),
            ),
        )

    def _metrics(
        self, run: UnitGroup, frames: FrameTable, floor: Floor, medians_ns: Sequence[int], *, bounds: bool
    ) -> Metrics:
        planned, count = self._plan, len(self._plan.tasks)
        segment_ns, whole_ns = medians_ns[:-count], medians_ns[-count:]
        return run_metrics(
            planned.timetable,
            run,
            launched=planned.launched,
            rungs=self._climb.timetables,
            segment_ns=segment_ns,
            whole_ns=whole_ns,
            floor_ns=floor,
            bounds_hz=bounds_hz(planned, run, segment_ns, whole_ns) if bounds else {},
            peak_bytes=self._peak_bytes(),
            streams=stream_metrics(
                frames,
                {task.name: set(task.wired.sources.values()) for task in planned.tasks},
                self._sources.received(run.windows),
                {name: feed.missing for name, feed in self._sources.feeds.items()},
            ),
        )

    def _peak_bytes(self) -> dict[str, int]:
        """Unit -> memory of all tensors, with those that cross units as often as there were frames in flight."""
        device, timetable = self._plan.device, self._plan.timetable
        found = dict.fromkeys(timetable.units, 0)
        for task, model, jobs in zip(self._plan.tasks, timetable.models, self._jobs, strict=True):
            first = jobs[0]
            own = unit_bytes(
                task.model,
                task.segments,
                [segment.unit for segment in model.segments],
                task.wired.entry.state,
                slots=1 if first.pipeline is None else max(first.pipeline.most, 1),
                separate=bool(timetable.links),
            )
            supplies = {id(one): one for one in first.sources.values() if isinstance(one, ResultStream)}
            own[model.segments[0].unit] += sum(one.most * one.frame_bytes for one in supplies.values())
            for unit, size in own.items():
                found[unit] += size
        return {unit: math.ceil(size * device.stored_ratio) for unit, size in found.items()}

    def _frames(self, run: UnitGroup, *, ended: bool) -> FrameTable:
        """The fate of every frame."""
        tasks, sources = self._plan.tasks, self._sources
        counted_by = {task.name: sources.stream(task) for task in tasks}
        names = [task.name for task in tasks]
        frames = frame_records(run.frames, names, counted_by, run.start_ns, run.faults.not_finite())
        submission_queues = {task.name: box for task in tasks if (box := sources.submissions(task)) is not None}
        return with_submitted(frames, submission_queues, run.start_ns, ended=ended) if submission_queues else frames

    def _launches(self, run: UnitGroup) -> Launches:
        """All launches, frames by the numbers that they were submitted under."""
        launches, first = run.launches.launches(), 0
        tasks = {task.name: task for task in self._plan.tasks}
        for model in self._plan.launched.models:
            end = first + len(model.segments)
            if (submissions := self._sources.submissions(tasks[model.name])) is not None:
                mine = (launches.program >= first) & (launches.program < end)
                launches.frame[mine] = submissions.numbers[launches.frame[mine]]
            first = end
        return launches


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


def _switched(metrics: Metrics) -> list[str]:
    """Which timetables came into force."""
    return [f"from window {one.window} on timetable {one.rung!r} was in force: {one.why}" for one in metrics.switches]


def _notes(planned: Plan, launches: Launches, trace: Trace) -> list[str]:
    """What the files of a run do not hold, and what held it up."""
    notes = left_out(launches)
    if gone := trace.meta.overwritten_events:
        notes.append(f"trace.npz holds the last {len(trace)} events; {gone} before them are not kept")
    if is_simulated(planned.device) and (late := planned.device.late_results):
        notes.append(
            f"{late} of {len(launches)} launches took this host longer to compute than the described device: times are "
            "the host's there; framefit simulate has the device's"
        )
    return notes


logger = logging.getLogger(__name__)
_ROW_BYTES = 150  # of memory for a launch or a frame at the end of a run, as measured
_MUCH_BYTES = 4_000_000_000


class Session:
    """Streams, sinks and jobs of one run.

    Args:
        planned: feasible.
        seed: of synthetic frames.
        frames: whether frames are read and outputs given out; else only time passes.
        submitted: streams whose frames the program hands over.
        inject: what is to go wrong.

    Attributes:
        sources: where frames come from.
        jobs: of each model's stages, in the order of the plan's models.
        group: what runs them, on all units.
        sinks: where outputs go; see :meth:`open_sinks`.
    """

    def __init__(
        self,
        planned: Plan,
        *,
        seed: int,
        frames: bool = True,
        submitted: Collection[str] = (),
        inject: Sequence[Fault] = (),
    ) -> None:
        self.plan = planned
        timetable, device = planned.timetable, planned.device
        self._injected = FaultyDevice(device, inject) if inject else None
        self.sources = Sources(planned, seed=seed, frames=frames, submitted=submitted)
        if self._injected is not None:
            self.sources.streams = disturbed(self.sources.streams, inject, self._injected.after_ns)
            disturb_feeds(
                self.sources.feeds,
                inject,
                lambda: self.group.release(self.group.windows) - self.group.start_ns,
                lambda: self.group.end_early(),
            )
        self.sinks: list[Sink] = []
        self.jobs: list[list[Job]] = []
        first = 0
        for number, (task, model) in enumerate(zip(planned.tasks, timetable.models, strict=True)):
            self.jobs.append(self._jobs(number, first, task, model, frames=frames))
            first += len(model.segments)
        self._read_others(frames=frames)
        numbers = {model.name: number for number, model in enumerate(timetable.models)}
        on_host = isinstance(device.clock, RealClock)
        core_of = {unit.name: unit.core for unit in device.target.units}
        assignments = assign_units(
            timetable,
            self.jobs,
            Rotation,
            order=[numbers[model.name] for model in in_order(timetable.models)],
            stalls=lambda unit: (
                steal_time_reader(core_of[unit] if device.capabilities.runs_on_host else device.host_core)
                if on_host
                else None
            ),
        )
        self.group = UnitGroup(
            device,
            device.clock,
            assignments,
            planned.workload.grid,
            find_target=lambda model, working: failover_target(planned, model, self.jobs[model][-1].execution, working),
        )
        self.climb = Climb(planned, self._injected or device, self.group, self.jobs)
        self._outcome = Outcome(planned, self.sources, self.jobs, self.climb)

    def _jobs(self, number: int, first: int, task: PlannedTask, model: PlannedModel, *, frames: bool) -> list[Job]:
        """Of a model's stages; ``first`` is the number of its first program."""
        plan, entry, execution = self.plan, task.wired.entry, task.execution
        execution.through(self._injected or plan.device)
        execution.guard_state(entry.on_nan != "ignore")
        timed = None if frames else TimedExecution(self._injected or plan.device, execution.labels, execution.bindings)
        streams = self.sources.streams
        whole = Job(
            execution=timed or execution,
            first_program=first,
            priority=task.priority,
            estimates_ns=[segment.duration_ns for segment in model.segments],
            deadline_ns=deadline_ns(task, plan.workload.grid),
            sources={name: streams[source] for name, source in task.wired.sources.items() if frames},
            input=FrameChannel(task.wired.depth, task.wired.when_full, frames=entry.frames),
            feed=self.sources.feed(task),
            every=entry.every,
            model=number,
            on_error=entry.on_error or ("skip" if task.priority else "retry"),
        )
        if frames and whole.feed.frame_source is None and not task.wired.after:
            whole.read(0)  # a frame that does not fit is found now, not in the loop
        stages = execution.stages() if timed is None else timed.in_stages(model)
        return stage_jobs(whole, stages, execution.slots, [stage[-1].boundary_bytes for stage in model.stages])

    def _read_others(self, *, frames: bool) -> None:
        """Have models that read others get their frames of these."""
        tasks = {task.name: (task, jobs) for task, jobs in zip(self.plan.tasks, self.jobs, strict=True)}
        for task, jobs in tasks.values():
            given = [
                ReadModel(
                    tasks[name][1],
                    self._oldest(name),
                    _inputs(task, name) if frames else {},
                    self._step(tasks, name),
                )
                for name in task.wired.after
            ]
            if given:
                connect_reader(jobs[0], given)

    def _oldest(self, name: str) -> PlannedModel:
        """A model's part in that timetable in which its results may be oldest."""
        found = [timetable.model(name) for timetable in self.plan.timetables]
        return max(found, key=lambda model: model.result_age_windows or 1)

    def _step(self, tasks: dict[str, tuple[PlannedTask, list[Job]]], name: str) -> int:
        """Releases of its stream between a model's results."""
        entry, after = tasks[name][0].wired.entry, tasks[name][0].wired.after
        return entry.every * entry.frames * (self._step(tasks, after[0]) if after else 1)

    def windows(self, windows: int | None, seconds: float | None) -> int:
        """How many there will be, streams that end considered; says so where their logs will fill the memory."""
        timetable, count = self.plan.timetable, counted_windows(windows, seconds, self.plan.workload.beat_hz)
        if windows is None:
            count = max(self.climb.windows_in(count / self.plan.workload.beat_hz), 1)
        count = min([count, *self.sources.lengths()])
        launches = sum(len(w.priority) + len(w.slots) for w in timetable.windows) / max(len(timetable.windows), 1)
        needed = count * (launches + len(timetable.models)) * _ROW_BYTES
        if needed > _MUCH_BYTES:
            logger.warning(
                "note: what %d windows leave behind will take about %.0f GB of memory; ask for fewer, or stop early",
                count,
                needed / 1e9,
            )
        return count

    @property
    def submission_queues(self) -> list[SubmissionQueue]:
        """Where frames that a program hands over wait for windows."""
        return self.sources.submission_queues

    def publishers(self) -> dict[str, ResultPublisher]:
        """Model -> where its results can be had while the run goes on."""
        fates = FrameOutcomes(len(self.jobs))
        self.group.observe_outcomes(fates)
        found: dict[str, ResultPublisher] = {}
        for index, (task, jobs) in enumerate(zip(self.plan.tasks, self.jobs, strict=True)):
            wired = task.wired
            found[task.name] = ResultPublisher(
                index,
                task.name,
                jobs[-1],
                self.sources.submissions(task),
                fates,
                self.group.release,
                outputs=None if wired.postprocess is not None else [tensor.name for tensor in wired.model.outputs],
                aggregate=wired.entry.aggregate,
            )
        for task in self.plan.tasks:
            found[task.name].after = tuple(found[name] for name in task.wired.after)
        return found

    def open_sinks(self, *, force: bool) -> None:
        """Give every job its sinks; none is left behind where one cannot be opened."""
        folder, outputs = self.plan.app.resolve().parent, self.plan.workload.outputs
        paths = [folder / output.sink for output in outputs if output.sink.endswith((".npz", ".jsonl"))]
        new = [path for path in paths if not path.exists()]
        try:
            for task, jobs in zip(self.plan.tasks, self.jobs, strict=True):
                jobs[-1].sinks = [
                    (self._checked(task, self._sink(task, output.sink, folder, force=force)), output.tensors)
                    for output in outputs
                    if output.model == task.name
                ]
        except FramefitError:
            self.close()
            for path in new:
                path.unlink(missing_ok=True)
            raise

    def _sink(self, task: PlannedTask, name: str, folder: Path, *, force: bool) -> Sink:
        """One of a model's, opened."""
        sink = open_sink(name, force=force, folder=folder)
        if (submissions := self.sources.submissions(task)) is not None:
            sink = NumberedSink(sink, submissions)
        aggregate = task.wired.entry.aggregate
        self.sinks.append(AggregatingSink(sink, aggregate) if aggregate > 1 else sink)
        return self.sinks[-1]

    def _checked(self, task: PlannedTask, sink: Sink) -> Sink:
        """A sink that outputs which are not finite are noted at, and kept from where that is asked for."""
        on_nan, model, faults = task.wired.entry.on_nan, self.plan.tasks.index(task), self.group.faults
        if on_nan == "ignore":
            return sink

        def told(frame: int) -> None:
            faults.add(model, frame, -1, FaultCause.NOT_FINITE)
            if on_nan == "drop":
                faults.refuse(model, frame)

        return CheckedSink(sink, told, drops=on_nan == "drop")

    def measure(self) -> list[Measurement]:
        """All segments and uncut models in turn, as around every run."""
        segments = _launches(task.execution for task in self.plan.tasks)
        found = self.plan.costs.around([*segments, *_launches(task.whole for task in self.plan.tasks)])
        parts = iter(found[len(segments) :])
        return [
            *found[: len(segments)],
            *(_together([next(parts) for _ in task.whole.parts]) for task in self.plan.tasks),
        ]

    def planned(self) -> list[Measurement]:
        """What the plan says of the same launches."""
        segments = [segment.median_ns for model in self.plan.timetable.models for segment in model.segments]
        models = zip(self.plan.tasks, self.plan.timetable.models, strict=True)
        whole = [sum(s.median_ns for s in (task.uncut or model).segments) for task, model in models]
        return [Measurement(np.asarray([median_ns], np.int64)) for median_ns in (*segments, *whole)]

    def launch_all(self) -> None:
        """Run every model once: first launches are slow."""
        random = np.random.default_rng(0)
        for task in self.plan.tasks:
            task.execution.run(task.execution.example(random))

    def reset(self) -> None:
        """Zero all state."""
        for task in self.plan.tasks:
            task.execution.reset()

    def ready(self, seed: int) -> None:
        """Begin anew: zero state, a described device's variation from the seed, no packets of what was before."""
        if is_simulated(self.plan.device):
            self.plan.device.restart(seed)
        self.reset()
        self.plan.device.events()

    def play(
        self, windows: int, *, stop: Callable[[], bool], on_idle: Callable[[int], None] | None
    ) -> FramefitError | None:
        """Run windows; see :meth:`UnitGroup.run`. What ends them early is returned: what happened is kept."""
        timetable, device, injected = self.plan.timetable, self.plan.device, self._injected
        real = isinstance(device.clock, RealClock)
        patience = {
            unit: max(patience_ns(one, unit, real=real) for one in self.climb.timetables) for unit in timetable.units
        }

        def keep_beat(leave: Callable[[], bool]) -> None:
            with steady():
                self.group.run(windows, stop=lambda: leave() or stop(), on_idle=on_idle)

        if injected is not None:
            injected.patience_ns = max(patience.values())
            injected.arm(device.clock.now_ns() + LEAD_NS)
        try:
            watched(self.group, injected or device, patience, keep_beat)
        except FramefitError as error:  # of the device, a sink, a stream
            return error
        finally:
            if injected is not None:
                injected.disarm()
        return None

    def close(self) -> None:
        """Complete all sinks.

        Raises:
            FramefitError: of the first that failed; all others are complete.
        """
        failure: FramefitError | None = None
        for sink in self.sinks:
            try:
                sink.close()
            except FramefitError as error:  # the others are completed all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def metrics(self, floor: Floor) -> Metrics:
        """Figures while the run goes on, asked for by another thread; without bounds, which take long."""
        return self._outcome.metrics(self.group.so_far(), floor, [one.median_ns for one in self.planned()])

    def result(
        self, folder: Path, floor: Floor, around: Sequence[Sequence[Measurement]], *, interrupted: bool
    ) -> RunResult:
        """What the run gave, after its end.

        Args:
            folder: where it will lie.
            floor: how late the idle machine woke up.
            around: what was measured before and after.
            interrupted: whether it was stopped before its end.
        """
        medians = [int(np.median(np.concatenate([m.samples_ns for m in same]))) for same in zip(*around, strict=True)]
        return self._outcome.result(self.group, folder, floor, medians, interrupted=interrupted)


def _launches(executions: Iterable[Execution]) -> list[Launch]:
    return [(execution, index) for execution in executions for index in range(len(execution.parts))]


def _together(parts: Sequence[Measurement]) -> Measurement:
    """Of a model that no unit supports all of: its parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Measurement(np.asarray([sum(part.median_ns for part in parts)], np.int64))


def _inputs(task: PlannedTask, name: str) -> dict[str, tuple[str, TensorInfo]]:
    """Inputs that read a model -> which of its outputs, and what one frame of it is."""
    entry, tensors = task.wired.entry, {tensor.name: tensor for tensor in task.wired.model.inputs}
    return {
        graph_input: (output, one_frame(tensors[graph_input], entry.frames, entry.frames_axis, entry.name))
        for graph_input, (model, output) in task.wired.reads.items()
        if model == name
    }
