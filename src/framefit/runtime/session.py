"""One run of a timetable whose models are bound to a device: streams, sinks and jobs, played and accounted for."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from framefit.core.events import Trace
from framefit.core.faults import Fault, Injection, check_fault
from framefit.core.host_view import whole_operation
from framefit.core.journal import Journal
from framefit.core.model import TensorInfo
from framefit.core.policy import Rotation
from framefit.core.program import Group, Launches, Program, ProgramUnit, SegmentProgram
from framefit.core.run_record import FrameTable, Metrics, Percentiles
from framefit.core.settings import Notify
from framefit.core.timetable import PlannedModel, Timetable, in_order
from framefit.core.workload import DEFAULT_QUEUE, STRICTEST, OutputEntry, StreamEntry, streams_of
from framefit.devices.clock import RealClock
from framefit.devices.device import Array, is_modelled, is_simulated
from framefit.devices.faulty import FaultyDevice
from framefit.devices.host import flushed_denormals, on_other_cores, pinned, steal_time_reader
from framefit.devices.measure import Measurement, measure_floor
from framefit.errors import FramefitError, InputError, RecordingError, UnsupportedError
from framefit.execution.buffers import unit_bytes
from framefit.execution.compiled import CompiledModel, Launch, OpenTimetable
from framefit.execution.execution import Execution, Launchable, TimedExecution
from framefit.execution.live import LiveSource, live_frames, sample_rate
from framefit.execution.prepare import Preparation, one_frame
from framefit.execution.streams import FunctionStream, ResumedStream, Stream, open_stream
from framefit.execution.wiring import WiredModel
from framefit.runtime.channel import FrameChannel, Port, unit_mailboxes
from framefit.runtime.injection import StreamFaults
from framefit.runtime.job import Job, model_jobs, reading_job
from framefit.runtime.log import FaultCause, FrameOutcomes
from framefit.runtime.loop import LEAD_NS, steady
from framefit.runtime.metrics import frame_records, run_metrics, stream_metrics
from framefit.runtime.program import (
    EventQueue,
    NumberedSink,
    PushedStream,
    Reader,
    ResultPublisher,
    SubmissionQueue,
    TimeUpError,
    waits_ns,
    with_submitted,
)
from framefit.runtime.reading import FrameObserver, ReadModel, ResultDelivery, ResultStream, result_streams
from framefit.runtime.recorded import (
    JournalHeader,
    JournalState,
    MigrationNote,
    ModelNote,
    RecordedRun,
    SinkNote,
    StreamCount,
    StretchNote,
)
from framefit.runtime.recovery import FailoverTarget
from framefit.runtime.sinks import AggregatingSink, CheckedSink, DeferredSink, OffsetSink, Sink, SinkPlace, open_sink
from framefit.runtime.streams import Events, Feed, FrameSource, SharedStream, replayed_ns
from framefit.runtime.timetable_switching import TimetableSwitching, deadline_ns
from framefit.runtime.units import UnitGroup, assign_units, stage_ports
from framefit.runtime.watchdog import patience_ns, watched

__all__ = ["MOST_SECONDS", "MeasuredRun", "Session", "check_faults", "counted_windows"]


class Sources:
    """Streams of one run, and what brings their frames.

    Args:
        planned: feasible.
        seed: of synthetic frames.
        frames: whether frames are read; else only time passes.
        submitted: streams whose frames the program hands over.
        ports: of each model's stages: events are sent to the first one.
        shared: several threads read the streams, which are read by one at a time.
        faults: of streams, which are injected; ``None``: there are none.
        before: stream -> what came of it in the run's earlier parts.

    Attributes:
        streams: by name.
        feeds: stream -> what brings its frames; those that stay in step have one.
    """

    def __init__(
        self,
        opened: OpenTimetable,
        *,
        seed: int,
        frames: bool,
        submitted: Collection[str],
        ports: Sequence[Sequence[Port]],
        shared: bool,
        faults: StreamFaults | None = None,
        before: Mapping[str, StreamCount] = MappingProxyType({}),
    ) -> None:
        self._opened = opened
        self._models = {model.name: model.wired for model in opened.models}
        self._ports = ports
        folder = opened.app.resolve().parent
        # A model that reads others, too, is as far behind as their results are old.
        models = [model for timetable in opened.timetable.timetables for model in timetable.models]
        ages = [model.result_age_windows or 0 for model in models if model.after]
        behind = max(wired.behind for wired in self._models.values()) + max(ages, default=0)
        behind += max(len(model.planned.replicas) for model in opened.models) - 1  # the newer frame may be read first
        streams: dict[str, Stream] = {
            entry.name: PushedStream(entry.name, self._readers(entry.name), keep=behind)
            if entry.name in submitted
            else _resumed(open_stream(entry, seed + index, folder=folder, keep=behind), before.get(entry.name))
            for index, entry in enumerate(streams_of(opened.workload))
            if frames
        }
        self._seeds = {entry.name: seed + index for index, entry in enumerate(streams_of(opened.workload))}
        waiting = {wired.in_step: wired.waits for wired in self._models.values()}
        frame_sources: dict[frozenset[str], FrameSource | None] = {
            step: self._submission_queue([streams[name] for name in sorted(step) if name in streams])
            for step in waiting
        }
        events = opened.workload.event_streams
        if faults is not None:
            streams = faults.in_streams(streams)
            for step, waits in waiting.items():
                disturbed = None if step & events.keys() else faults.frame_source(step, waits=waits)
                frame_sources[step] = frame_sources[step] if disturbed is None else disturbed
        self.streams = {name: SharedStream(stream) for name, stream in streams.items()} if shared else streams
        self._steps = {step: Feed(waits, step, frame_sources[step]) for step, waits in waiting.items()}
        self.feeds = {name: feed for step, feed in self._steps.items() for name in step}

    def feed(self, wired: WiredModel) -> Feed:
        """What brings a model's frames; of one that reads others: nothing does."""
        return self._steps[wired.in_step]

    def events(self, wired: WiredModel) -> Events | None:
        """What brings the events of a sporadic model; ``None``: it is none."""
        distance_ms = wired.entry.min_distance_ms
        if distance_ms is None:
            return None
        distance_ns, feed = round(distance_ms * 1e6), self.feed(wired)
        if isinstance(feed.frame_source, SubmissionQueue):
            return Events(feed, distance_ns, submitted=feed.frame_source)
        entries = {entry.name: entry for entry in streams_of(self._opened.workload)}
        name = min(wired.in_step)
        lengths = [self.streams[name].length for name in wired.in_step if name in self.streams]
        length = min((length for length in lengths if length is not None), default=None)
        return Events(feed, distance_ns, replayed_ns(entries[name], distance_ns, self._seeds[name], length))

    def stream(self, wired: WiredModel) -> str:
        """The stream that a model's frames are counted by; "-": none."""
        return next(iter(self._root(wired).sources.values()), "-")

    def submissions(self, wired: WiredModel) -> SubmissionQueue | None:
        """Where a model's frames wait until windows take them; ``None``: its streams have sources of their own."""
        frame_source = self.feed(self._root(wired)).frame_source
        return frame_source if isinstance(frame_source, SubmissionQueue) else None

    @property
    def submission_queues(self) -> list[SubmissionQueue]:
        """All that models read from."""
        intakes = {id(feed.frame_source): feed.frame_source for feed in self.feeds.values()}
        return [frame_source for frame_source in intakes.values() if isinstance(frame_source, SubmissionQueue)]

    def lengths(self) -> list[int]:
        """Of streams that end a run when they end, because nothing of them can be left; where they are known."""
        waiting = {name for name, feed in self.feeds.items() if feed.waits or feed.frame_source is not None}
        waiting |= self._opened.workload.event_streams.keys()
        return [s.length for name, s in self.streams.items() if s.length is not None and name not in waiting]

    def counts(self, windows: int) -> dict[str, StreamCount]:
        """Stream -> what came of it in so many windows."""
        counts = {}
        for name in [entry.name for entry in streams_of(self._opened.workload)]:
            feed = self.feeds.get(name, Feed(delivered=windows))  # nobody reads it
            came = feed.frame_source.count if isinstance(feed.frame_source, SubmissionQueue) else feed.delivered
            length = self.streams[name].length if name in self.streams else None
            received = came if length is None else min(came, length)
            counts[name] = StreamCount(received=received, waited=feed.waited, missing=feed.missing)
        return counts

    def _root(self, wired: WiredModel) -> WiredModel:
        """The model at the beginning of those that it reads; itself where it reads streams."""
        while wired.after:
            wired = self._models[wired.after[0]]
        return wired

    def _readers(self, stream: str) -> list[Reader]:
        """What frames of a stream are asked for."""
        readers: list[Reader] = []
        for wired in self._models.values():
            for name, tensor in wired.frame_inputs.items():
                if wired.sources[name] == stream:
                    prepare: Preparation | None = wired.prepare.get(name) if tensor.shape is None else None
                    readers.append((tensor, copy.deepcopy(prepare)))  # the loop uses the other one meanwhile
        return readers

    def _submission_queue(self, streams: Sequence[Stream]) -> SubmissionQueue | None:
        """For those streams of a step whose frames are handed over."""
        pushed = [stream for stream in streams if isinstance(stream, PushedStream)]
        if not pushed:
            return None
        entries = [
            entry for entry in streams_of(self._opened.workload) if entry.name in {stream.name for stream in pushed}
        ]
        rules = {entry.when_full for entry in entries}
        depth = min(entry.queue or DEFAULT_QUEUE for entry in entries)
        rule = next(rule for rule in STRICTEST if rule in rules)
        now_ns = self._opened.device.clock.now_ns
        sporadic = self._opened.workload.event_streams.get(pushed[0].name)
        if sporadic is not None and sporadic.min_distance_ms is not None:
            port, *_ = self._ports[list(self._models).index(sporadic.name)]
            return EventQueue(pushed, depth, rule, now_ns, round(sporadic.min_distance_ms * 1e6), port)
        return SubmissionQueue(pushed, depth, rule, now_ns)


def _resumed(stream: Stream, before: StreamCount | None) -> Stream:
    """A stream behind what earlier parts of the run have had; a function begins anew."""
    if before is None or isinstance(stream, FunctionStream):
        return stream
    return ResumedStream(stream, before.received)


def device_program(opened: OpenTimetable) -> Program:
    """What the device executes; where it cannot say how long, the timetable does."""
    programs = []
    for number, models in enumerate(opened.timetable.cuts):
        for model, compiled in zip(models, opened.models, strict=True):
            executions = compiled.cuts[number : number + 1] if number else compiled.replicas
            labels = itertools.chain.from_iterable(execution.labels for execution in executions)
            operations_of = itertools.chain.from_iterable(execution.operations for execution in executions)
            for segment, label, known in zip(model.segments, labels, operations_of, strict=True):
                operations = known
                if [operation.kind for operation in known] == [label] and not known[0].expected_ns:
                    operations = (whole_operation(label, segment),)
                groups = (Group(index=0, operations=operations),)
                programs.append(SegmentProgram(name=label, model=model.name, segment=segment.index, groups=groups))
    return Program(
        window_ns=opened.timetable.window_ns,
        units=tuple(ProgramUnit(name=unit.name, core=unit.core) for unit in opened.device.target.units),
        programs=tuple(programs),
        launches="launches.npz",
    )


_OF_FRAMES = ("nan", "inf", "shape")
_OF_WINDOWS = ("stall", "burst", "end")


def check_faults(faults: Sequence[Fault], opened: OpenTimetable, *, frames: bool) -> None:
    """Refuse faults that could not occur in a run.

    Args:
        faults: to be injected.
        opened: what is run.
        frames: whether frames are read and outputs computed.

    Raises:
        InputError: nothing has a fault's name, or it needs frames, and there are none.
    """
    models = opened.timetable.models
    launched = {model.name for model in models} | set(opened.timetable.units)
    launched |= {label for model in opened.models for replica in model.replicas for label in replica.labels}
    streams = [stream.name for stream in streams_of(opened.workload)]
    for fault in faults:
        check_fault(fault, launched, streams)
        if fault.kind in _OF_WINDOWS and fault.name in opened.workload.event_streams:
            raise InputError(
                f"{fault.kind} is a fault of streams that have a rate, and {fault.name!r} brings events",
                where=f"inject {fault.kind}:{fault.name}",
                remedy="say when its events come: times_ms of the stream",
            )
        if fault.kind in _OF_FRAMES and not frames:
            raise InputError(
                f"{fault.kind} is a fault of frames, and none are read",
                where=f"inject {fault.kind}:{fault.name}",
                remedy="compute outputs: --outputs, outputs=True",
            )


def failover_target(
    opened: OpenTimetable, number: int, execution: Launchable, working: Sequence[str]
) -> FailoverTarget | None:
    """Where a model may go on whose unit has failed: the first unit that it may use, and that supports it.

    Compiles, so it takes its time. Segments are planned to take as much longer there as the device says.

    Args:
        opened: what is run.
        number: of the model.
        execution: of the model as it ran, of its last stage.
        working: units to choose from.
    """
    model = opened.models[number]
    segments, allowed = model.planned.replicas[0].segments, model.wired.entry.units
    for unit in working:
        if allowed is not None and unit not in allowed:
            continue
        try:
            there = model.elsewhere(unit)
        except FramefitError:  # it does not support the model
            continue
        expected = [(there.expected_ns(index), model.execution.expected_ns(index)) for index in range(len(segments))]
        ratios = [after / before if after and before else 1.0 for after, before in expected]
        estimates_ns = [math.ceil(s.duration_ns * ratio) for s, ratio in zip(segments, ratios, strict=True)]
        there.replace(execution if isinstance(execution, Execution) else model.execution)
        timed = execution.elsewhere(there.labels, there.bindings) if isinstance(execution, TimedExecution) else None
        return FailoverTarget(unit, timed or there, estimates_ns, opened.timetable.first_programs[0][number])
    return None


def fault_notes(metrics: Metrics, run: RecordedRun) -> list[str]:
    """What went wrong in a run, for its warnings.

    Args:
        metrics: of the run.
        run: afterwards.
    """
    names = [model.name for model in metrics.models]
    notes = [
        f"unit {migration.unit!r} failed: model {names[migration.model]!r} "
        f"went on on {migration.to!r} from window {migration.window} on; "
        "the trace's program still has it there"
        for migration in run.migrations
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


@dataclass(frozen=True)
class RunRecord:
    """What happened in a run.

    Attributes:
        metrics: figures.
        frames: the fate of every frame.
        trace, program: of the device.
        launches: with their ends, and the windows' releases.
        notes: what went wrong, and which timetables came into force.
    """

    metrics: Metrics
    frames: FrameTable
    trace: Trace
    program: Program
    launches: Launches
    notes: tuple[str, ...]


def resumed_notes(run: RecordedRun) -> list[str]:
    """Where a run goes on that was cut off."""
    return [f"the run was cut off before window {window}, and resumed there" for window in run.parts]


def switch_notes(metrics: Metrics) -> list[str]:
    """Which timetables came into force."""
    return [
        f"from window {switch.window} on timetable {switch.rung!r} was in force: {switch.why}"
        for switch in metrics.switches
    ]


def _device_notes(opened: OpenTimetable, launches: Launches, trace: Trace) -> list[str]:
    """What the trace does not hold, and what held the device up."""
    notes = []
    if gone := trace.meta.overwritten_events:
        notes.append(f"trace.npz holds the last {len(trace)} events; {gone} before them are not kept")
    if is_simulated(opened.device) and (late := opened.device.late_results):
        notes.append(
            f"{late} of {len(launches)} launches took this host longer to compute than the described device: times are "
            "the host's there; framefit simulate has the device's"
        )
    return notes


logger = logging.getLogger(__name__)
_ROW_BYTES = 150  # of memory for a launch or a frame at the end of a run, as measured
_MUCH_BYTES = 4_000_000_000


_DEFAULT_SECONDS = 10.0
MOST_SECONDS = 2.0**63 / 1e9  # 292 years


def counted_windows(windows: int | None, seconds: float | None, rate_hz: float) -> int:
    """How many windows are asked for; by default 10 seconds of them.

    Raises:
        InputError: none, both given, or more than nanoseconds can count.
    """
    if windows is not None and seconds is not None:
        raise InputError("windows and seconds are both given", remedy="give one of them")
    amount = windows if windows is not None else seconds
    if amount is not None and not amount > 0:
        raise InputError(f"nothing to run: {amount}", remedy="ask for more than 0")
    if amount is not None and not amount < MOST_SECONDS * (1 if windows is None else rate_hz):
        raise InputError(
            f"{amount} {'seconds' if windows is None else 'windows'} are too many: times are nanoseconds in 64 bits",
            remedy=f"ask for less than {MOST_SECONDS:g} seconds",
        )
    return windows if windows is not None else max(round((seconds or _DEFAULT_SECONDS) * rate_hz), 1)


class Session:
    """Streams, sinks and jobs of one run.

    Args:
        opened: feasible, its models compiled.
        seed: of synthetic frames.
        frames: whether frames are read and outputs given out; else only time passes.
        submitted: streams whose frames the program hands over.
        inject: what is to go wrong.
        published: whether a program reads results while the run goes on.
        journal: has the files of the run's logs and outputs; default: one without a folder.
        before: the run's earlier parts; ``None``: there are none.
        parts: folders of these in the journal.

    Attributes:
        sources: where frames come from.
        jobs: of each model's stages, in the order of the plan's models.
        group: what runs them, on all units.
        publishers: model -> where its results can be had while the run goes on; none where they are not published.
    """

    def __init__(
        self,
        opened: OpenTimetable,
        *,
        seed: int,
        frames: bool = True,
        submitted: Collection[str] = (),
        inject: Sequence[Fault] = (),
        published: bool = False,
        journal: Journal | None = None,
        before: RecordedRun | None = None,
        parts: Sequence[Path] = (),
    ) -> None:
        self.opened = opened
        self.journal = Journal() if journal is None else journal
        self._before, self._parts = before, tuple(parts)
        self._texts_noted = self._injections_noted = 0
        self._injections: list[Injection] = []
        timetable, device = opened.timetable, opened.device
        self._injected = FaultyDevice(device, inject) if inject else None
        stream_faults = None
        if self._injected is not None:
            self._injections = self._injected.injections
            stream_faults = StreamFaults(
                inject,
                self._injected.after_ns,
                lambda: self.group.release(self.group.windows) - self.group.start_ns,
                lambda fault, after_ns: self._injections.append(
                    Injection(fault.label, fault.name, self.group.start_ns + after_ns)
                ),
                lambda: self.group.end_early(),
            )
        numbers = {model.name: number for number, model in enumerate(timetable.models)}
        order = [numbers[model.name] for model in in_order(timetable.models)]
        on_host = isinstance(device.clock, RealClock)
        live = [entry for entry in streams_of(opened.workload) if entry.live and entry.name not in submitted]
        read = {stream for model in opened.models for stream in model.wired.sources.values()}
        live = [entry for entry in live if frames and on_host and entry.name in read]
        submitted = {*submitted, *(entry.name for entry in live)}
        two_threads = on_host and timetable.preemptive  # of each unit
        used = {segment.unit for model in timetable.models for segment in model.segments}
        units = [unit for unit in timetable.units if unit in used]
        events_submitted = any(name in opened.workload.event_streams for name in submitted)
        reads = any(model.wired.after for model in opened.models)
        mailboxes = unit_mailboxes(device.clock, units, woken=events_submitted or (reads and two_threads))
        ports = stage_ports(timetable, mailboxes, order)
        self.sources = Sources(
            opened,
            seed=seed,
            frames=frames,
            submitted=submitted,
            ports=ports,
            shared=two_threads or (on_host and len(units) > 1),
            faults=stream_faults,
            before={} if before is None else before.streams,
        )
        self._live_sources = [self._live_source(entry) for entry in live]
        self._sinks: list[DeferredSink] = []
        self.sink_notes: list[SinkNote] = []
        outcomes = FrameOutcomes(len(opened.models)) if published else None
        self.publishers: dict[str, ResultPublisher] = {}
        if outcomes is not None:
            for model in opened.models:
                self._publish(model, outcomes)
        self.jobs = self._all_jobs(ports, frames=frames)
        core_of = {unit.name: unit.core for unit in device.target.units}
        assignments = assign_units(
            timetable,
            self.jobs,
            functools.partial(Rotation, yields=timetable.yields),
            order=order,
            stalls=lambda unit: (
                steal_time_reader(core_of[unit] if device.capabilities.runs_on_host else device.host_core)
                if on_host
                else None
            ),
        )
        unit_jobs = {unit: assignment.jobs for unit, assignment in assignments.items() if assignment.jobs}
        self.switching = TimetableSwitching(opened, self._injected or device, unit_jobs, self.jobs)
        self.group = UnitGroup(
            device,
            device.clock,
            assignments,
            opened.workload.grid,
            mailboxes=mailboxes,
            switcher=self.switching.switcher,
            launch_observers=self.switching.observers,
            find_target=lambda model, working: failover_target(opened, model, self.jobs[model][-1].execution, working),
            outcomes=outcomes,
            journal=self.journal,
        )

    def _live_source(self, entry: StreamEntry) -> LiveSource:
        """What hands a live stream's frames over."""
        where = f"stream {entry.name!r}"
        queue = self.sources.feeds[entry.name].frame_source
        if not isinstance(queue, SubmissionQueue) or len(queue.streams) > 1:
            raise UnsupportedError(
                f"a model reads {entry.name!r} together with another stream",
                where=where,
                remedy="give it one stream; two cameras in step need a program with a Runner",
            )
        stream = queue.streams[entry.name]

        def give(frame: Array) -> None:
            with contextlib.suppress(TimeUpError):  # no room, and the rule is to wait: a live source does not
                queue.put({entry.name: stream.forms(frame, copy=False)}, timeout_s=0)

        frames = live_frames(entry, where, sample_hz=sample_rate(entry, self.opened.workload))
        return LiveSource(frames, where, give, but=self.beat_cores())

    def beat_cores(self) -> frozenset[int]:
        """Cores that threads beside the beat leave alone."""
        device = self.opened.device
        units = device.target.units if device.capabilities.runs_on_host else ()
        return frozenset({device.host_core, *(unit.core for unit in units)})

    def _all_jobs(self, ports: Sequence[Sequence[Port]], *, frames: bool) -> list[list[Job]]:
        """Of the stages of each model's replicas; a model is made after those that it reads.

        Args:
            ports: of the stages.
            frames: whether frames are read and outputs given out.
        """
        models = {model.name: number for number, model in enumerate(self.opened.models)}
        read: dict[int, list[ReadModel]] = {}
        streams: dict[int, list[ResultStream]] = {}
        observers: list[list[FrameObserver]] = [[] for _ in models]
        for number, wired in enumerate(model.wired for model in self.opened.models):
            if not wired.after:
                continue
            read[number] = [
                ReadModel(self._oldest(name), _inputs(wired, name) if frames else {}, self._steps(name))
                for name in wired.after
            ]
            streams[number] = result_streams(read[number], wired.depth, wired.entry.frames)
            for source, (name, stream) in enumerate(zip(wired.after, streams[number], strict=True)):
                unit = ports[models[name]][-1].unit
                delivery = ResultDelivery(self.opened.device, unit, ports[number][0], stream, source)
                observers[models[name]].append(delivery)
        jobs: dict[int, list[Job]] = {}

        def add(number: int) -> list[Job]:
            if number not in jobs:
                model = self.opened.models[number]
                givers = [add(models[name])[0] for name in model.wired.after]
                published = self.publishers.get(model.name)
                job, executions = self._whole_job(number, model, frames=frames)
                job = replace(job, observers=(*observers[number], *(() if published is None else (published,))))
                if givers:
                    job = reading_job(job, givers, read[number], streams[number])
                jobs[number] = model_jobs(
                    job, model.planned, executions, model.execution.slots, self.opened.device, ports[number]
                )
            return jobs[number]

        return [add(number) for number in range(len(models))]

    def _whole_job(self, number: int, model: CompiledModel, *, frames: bool) -> tuple[Job, list[Launchable]]:
        """The job of a whole model, fed by streams, and what the stages of its replicas launch."""
        opened, wired, planned = self.opened, model.wired, model.planned
        entry, streams, device = wired.entry, self.sources.streams, self._injected or self.opened.device
        stages: list[Launchable] = []
        for execution, replica in zip(model.replicas, planned.replicas, strict=True):
            execution.through(device)
            execution.guard_state(entry.on_nan != "ignore")
            timed = TimedExecution(device, execution.labels, execution.bindings)
            stages += execution.stages() if frames else timed.in_stages(replica)
        whole = Job(
            execution=model.execution if frames else stages[0],
            first_program=opened.timetable.first_programs[0][number],
            priority=model.priority,
            estimates_ns=[segment.needed_ns(opened.timetable.guard_ns) for segment in planned.segments],
            quantiles_ns=[segment.duration_ns for segment in planned.segments],
            deadline_ns=deadline_ns(model, opened.workload.grid),
            sources={name: streams[source] for name, source in wired.sources.items() if frames},
            input=FrameChannel(wired.depth, wired.when_full, frames=entry.frames, keeps=bool(entry.state)),
            sinks=self._outputs(number, wired) if frames else (),
            feed=self.sources.feed(wired),
            every=entry.spacing,
            model=number,
            on_error=entry.on_error or ("skip" if model.priority else "retry"),
            events=self.sources.events(wired),
        )
        if frames and whole.feed.frame_source is None and not wired.after:
            whole.read(0)  # a frame that does not fit is found now, not in the loop
        return whole, stages

    def _oldest(self, name: str) -> PlannedModel:
        """A model's part in that timetable in which its results may be oldest."""
        parts = [timetable.model(name) for timetable in self.opened.timetable.timetables]
        return max(parts, key=lambda model: model.result_age_windows or 1)

    def _steps(self, name: str) -> tuple[Fraction, ...]:
        """Releases of its stream between results of the first model that it reads, and so on up to its own."""
        wired = next(model.wired for model in self.opened.models if model.name == name)
        return (*(self._steps(wired.after[0]) if wired.after else ()), wired.entry.spacing * wired.entry.frames)

    def windows(self, windows: int | None, seconds: float | None) -> int:
        """How many there will be, streams that end considered; says so where their logs will fill the memory."""
        timetable, beat_hz = self.opened.timetable, self.opened.workload.beat_hz
        count = counted_windows(windows, seconds, beat_hz)
        if windows is None:
            count = max(self.switching.windows_in(count / beat_hz), 1)
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

    def _publish(self, model: CompiledModel, outcomes: FrameOutcomes) -> ResultPublisher:
        """Where a model's results can be had; those of the models that it reads come first."""
        wired = model.wired
        if model.name not in self.publishers:
            number = [entry.name for entry in self.opened.models].index(model.name)
            read = [entry for entry in self.opened.models if entry.name in wired.after]
            self.publishers[model.name] = ResultPublisher(
                number,
                model.name,
                self.sources.submissions(wired),
                outcomes,
                outputs=None if wired.postprocess is not None else [tensor.name for tensor in wired.model.outputs],
                aggregate=wired.entry.aggregate,
                after=[self._publish(entry, outcomes) for entry in read],
            )
        return self.publishers[model.name]

    def _outputs(self, number: int, wired: WiredModel) -> list[tuple[Sink, Sequence[str] | None]]:
        """Where a model's outputs go, once :meth:`open_sinks` was called, and which of them."""
        mine = [output for output in self.opened.workload.outputs if output.model == wired.entry.name]
        sinks = []
        for output in mine:
            file = f"sink-{len(self._sinks)}.bin"
            if output.is_file and not output.sink.endswith(".jsonl"):
                path = self.opened.app.resolve().parent / output.sink
                self.sink_notes.append(SinkNote(path=str(path), file=file))
            sinks.append(DeferredSink(functools.partial(self._sink, number, wired, output, file)))
            self._sinks.append(sinks[-1])
        return [(sink, output.tensors) for sink, output in zip(sinks, mine, strict=True)]

    def open_sinks(self, *, force: bool) -> None:
        """Open all sinks; none is left behind where one cannot be opened."""
        folder, outputs = self.opened.app.resolve().parent, self.opened.workload.outputs
        paths = [folder / output.sink for output in outputs if output.is_file]
        new = [path for path in paths if not path.exists()]
        try:
            for sink in self._sinks:
                sink.open(force=force)
        except FramefitError:
            self.close()
            for path in new:
                path.unlink(missing_ok=True)
            raise

    def _sink(self, number: int, wired: WiredModel, output: OutputEntry, file: str, *, force: bool) -> Sink:
        """A sink of a model, opened; outputs that are not finite are noted, and kept from it where that is asked."""
        real_time = isinstance(self.opened.device.clock, RealClock)
        place = SinkPlace(self.journal, file, self._parts, real_time=real_time, beat_cores=self.beat_cores())
        sink = open_sink(output, force=force, folder=self.opened.app.resolve().parent, place=place)
        if self._before is not None and (count := self._before.streams.get(self.sources.stream(wired))) is not None:
            sink = OffsetSink(sink, count.received)
        if (submissions := self.sources.submissions(wired)) is not None:
            sink = NumberedSink(sink, submissions)
        if wired.entry.aggregate > 1:
            sink = AggregatingSink(sink, wired.entry.aggregate)
        on_nan, faults = wired.entry.on_nan, self.group.faults
        if on_nan == "ignore":
            return sink

        def note_not_finite(frame: int) -> None:
            faults.add(number, frame, -1, FaultCause.NOT_FINITE)
            if on_nan == "drop":
                faults.refuse(number, frame)

        return CheckedSink(sink, note_not_finite, drops=on_nan == "drop")

    def measure(self) -> list[Measurement]:
        """All segments and uncut models in turn, as around every run."""
        models = self.opened.models
        segments = _launches(replica for model in models for replica in model.replicas)
        measured = self.opened.durations.around([*segments, *_launches(model.whole for model in models)])
        parts = iter(measured[len(segments) :])
        return [
            *measured[: len(segments)],
            *(_together([next(parts) for _ in model.whole.parts]) for model in models),
        ]

    def planned(self) -> list[Measurement]:
        """What the plan says of the same launches."""
        models = self.opened.timetable.models
        segments = [segment.median_ns for model in models for segment in model.segments]
        whole = [model.whole_ns for model in models]
        return [Measurement(np.asarray([median_ns], np.int64)) for median_ns in (*segments, *whole)]

    def launch_all(self) -> None:
        """Run every model once: first launches are slow."""
        random = np.random.default_rng(0)
        for replica in (replica for model in self.opened.models for replica in model.replicas):
            replica.run(replica.example(random))

    def reset(self) -> None:
        """Zero all state."""
        for replica in (replica for model in self.opened.models for replica in model.replicas):
            replica.reset()

    def ready(self, seed: int) -> None:
        """Begin anew: zero state, a described device's variation from the seed, no packets of what was before."""
        device = self.opened.device
        if is_simulated(device):
            device.restart(seed)
        self.reset()
        device.events()

    def play(
        self, windows: int, *, stop: Callable[[], bool], on_idle: Callable[[int], None] | None
    ) -> FramefitError | None:
        """Run windows; see :meth:`UnitGroup.run`. What ends them early is returned: what happened is kept."""
        timetable, device, injected = self.opened.timetable, self.opened.device, self._injected
        real = isinstance(device.clock, RealClock)
        patience = {
            unit: max(patience_ns(rung, unit, real=real) for rung in self.switching.timetables)
            for unit in timetable.units
        }

        def keep_beat() -> None:
            with steady() if real else contextlib.nullcontext():  # collecting takes longer than a short simulation
                if injected is not None:  # here, for collecting garbage may take as long as several windows
                    injected.arm(device.clock.now_ns() + LEAD_NS)
                self.group.run(windows, stop=stop, on_idle=on_idle)

        if injected is not None:
            injected.patience_ns = max(patience.values())
        for camera in self._live_sources:
            camera.start()
        try:
            watched(self.group, injected or device, patience, keep_beat)
        except FramefitError as error:  # of the device, a sink, a stream
            return error
        finally:
            for camera in self._live_sources:
                camera.stop()
            if injected is not None:
                injected.disarm()
        return None

    def close(self) -> None:
        """Complete all sinks.

        Raises:
            FramefitError: of the first that failed; all others are complete.
        """
        failure: FramefitError | None = None
        for sink in self._sinks:
            try:
                sink.close()
            except FramefitError as error:  # the others are completed all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def metrics(self, floor: Floor) -> Metrics:
        """Figures while the run goes on, asked for by another thread; without bounds, which take long."""
        group = self.group.so_far()
        run = RecordedRun.of(group, self.sources.counts(group.windows), injections=self._injections)
        return self._metrics(run, self._frames(run, ended=False), floor, self.medians_ns([self.planned()]), {})

    def medians_ns(self, around: Sequence[Sequence[Measurement]]) -> tuple[list[int], list[int]]:
        """Medians of all segments, and of all uncut models, in the plan's order.

        Args:
            around: what was measured, each time in the order of :meth:`measure`.
        """
        medians = [int(np.median(np.concatenate([m.samples_ns for m in same]))) for same in zip(*around, strict=True)]
        count = len(self.opened.models)
        return medians[:-count], medians[-count:]

    def model_notes(self) -> tuple[ModelNote, ...]:
        """What the journal says of the models."""
        numbers = {model.name: number for number, model in enumerate(self.opened.models)}
        return tuple(
            ModelNote(
                name=model.name,
                stream=self.sources.stream(model.wired),
                sources=tuple(dict.fromkeys(model.wired.sources.values())),
                reads=tuple(numbers[name] for name in model.wired.after),
                frames=model.wired.entry.frames,
                drops_not_finite=model.wired.entry.on_nan == "drop",
            )
            for model in self.opened.models
        )

    def state(self) -> JournalState:
        """How far the run has come; the journal's thread asks."""
        group = self.group
        windows = group.windows
        texts = tuple(group.faults.texts[self._texts_noted :])
        self._texts_noted += len(texts)
        injections = tuple(self._injections[self._injections_noted :])
        self._injections_noted += len(injections)
        return JournalState(
            time=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC",
            windows=windows,
            stretches=tuple(StretchNote.of(stretch) for stretch in list(group.stretches)) if windows else (),
            streams=self.sources.counts(windows),
            degraded=tuple(group.faults.degraded),
            texts=texts,
            migrations=tuple(
                MigrationNote(model=each.model, window=each.window, unit=each.unit, to=each.to)
                for each in list(group.migrations)
            ),
            injections=injections,
        )

    def recorded(self) -> RecordedRun:
        """Logs of all parts of the run, after the end of this one."""
        group = self.group
        run = RecordedRun.of(group, self.sources.counts(group.windows), group.trace(), self._injections)
        if self.journal.failure is not None:
            run = run.as_far_as_recorded()
        if self._before is None:
            return run
        streams = [note.stream for note in self.model_notes()]
        return self._before.followed_by(run, self.opened.timetable, streams)

    def record(
        self,
        run: RecordedRun,
        floor: Floor,
        medians_ns: tuple[Sequence[int], Sequence[int]],
        bounds_hz: Mapping[str, tuple[float, float]],
    ) -> RunRecord:
        """What happened, after the end.

        Args:
            run: logs of all its parts.
            floor: how late the idle machine woke up.
            medians_ns: of segments and of uncut models.
            bounds_hz: background model -> fluid and packing bound on its throughput.
        """
        frames = self._frames(run, ended=True)
        metrics = self._metrics(run, frames, floor, medians_ns, bounds_hz)
        launches, trace = self._launches(run), run.trace
        if trace is None:
            trace = self.group.trace()
        return RunRecord(
            metrics=metrics,
            frames=frames,
            trace=trace,
            program=device_program(self.opened),
            launches=launches,
            notes=(
                *_device_notes(self.opened, launches, trace),
                *resumed_notes(run),
                *switch_notes(metrics),
                *fault_notes(metrics, run),
            ),
        )

    def _metrics(
        self,
        run: RecordedRun,
        frames: FrameTable,
        floor: Floor,
        medians_ns: tuple[Sequence[int], Sequence[int]],
        bounds_hz: Mapping[str, tuple[float, float]],
    ) -> Metrics:
        metrics = recorded_metrics(
            self.opened.timetable,
            self.switching.timetables,
            run,
            frames,
            self.model_notes(),
            floor=floor,
            medians_ns=medians_ns,
            bounds_hz=bounds_hz,
            peak_bytes=self._peak_bytes(),
        )
        waits = {name: Percentiles.of(ns) for name, ns in waits_ns(frames, self._submissions, run.start_ns).items()}
        streams = tuple(msgspec.structs.replace(one, waited_ns=waits.get(one.name)) for one in metrics.streams)
        return msgspec.structs.replace(metrics, streams=streams)

    def _peak_bytes(self) -> dict[str, int]:
        """Unit -> memory of all tensors, with those that cross units as often as there were frames in flight."""
        device, timetable = self.opened.device, self.opened.timetable
        peak = dict.fromkeys(timetable.units, 0)
        for model, jobs in zip(self.opened.models, self.jobs, strict=True):
            firsts = [job for job in jobs if not job.position]
            for first, replica in zip(firsts, model.planned.replicas, strict=True):
                needed = unit_bytes(
                    model.wired.model,
                    replica.spans,
                    [segment.unit for segment in replica.segments],
                    model.wired.entry.state,
                    slots=1 if first.pipeline is None else max(first.pipeline.most, 1),
                    separate=bool(timetable.links),
                )
                supplies = {id(stream): stream for stream in first.sources.values() if isinstance(stream, ResultStream)}
                unit = replica.segments[0].unit
                needed[unit] += sum(stream.most * stream.frame_bytes for stream in supplies.values())
                for unit, size in needed.items():
                    peak[unit] += size
        return {unit: math.ceil(size * device.stored_ratio) for unit, size in peak.items()}

    def _frames(self, run: RecordedRun, *, ended: bool) -> FrameTable:
        """The outcome of every frame."""
        frames, submissions = recorded_frames(run, self.model_notes()), self._submissions
        return with_submitted(frames, submissions, run.start_ns, ended=ended) if submissions else frames

    @property
    def _submissions(self) -> dict[str, SubmissionQueue]:
        """Model -> where its frames wait that are handed over."""
        queues = ((model.name, self.sources.submissions(model.wired)) for model in self.opened.models)
        return {name: queue for name, queue in queues if queue is not None}

    def _launches(self, run: RecordedRun) -> Launches:
        """All launches and windows, frames by the numbers that they were submitted under."""
        launches = run.launched()
        timetable = self.opened.timetable
        for models, firsts in zip(timetable.cuts, timetable.first_programs, strict=True):
            for model, planned, first in zip(self.opened.models, models, firsts, strict=True):
                if (submissions := self.sources.submissions(model.wired)) is not None:
                    mine = (launches.program >= first) & (launches.program < first + len(planned.segments))
                    launches.frame[mine] = submissions.numbers[launches.frame[mine]]
        return launches


def recorded_frames(run: RecordedRun, models: Sequence[ModelNote]) -> FrameTable:
    """The outcome of every frame of a run.

    Args:
        run: its logs.
        models: by number.
    """
    names = [model.name for model in models]
    counted_by = {model.name: model.stream for model in models}
    return frame_records(run.frames, names, counted_by, run.start_ns, run.faults.not_finite())


def recorded_metrics(
    timetable: Timetable,
    rungs: Sequence[Timetable],
    run: RecordedRun,
    frames: FrameTable,
    models: Sequence[ModelNote],
    *,
    floor: Floor,
    medians_ns: tuple[Sequence[int], Sequence[int]],
    bounds_hz: Mapping[str, tuple[float, float]],
    peak_bytes: Mapping[str, int],
) -> Metrics:
    """All figures of a run; see :func:`~framefit.runtime.metrics.run_metrics`.

    Args:
        timetable: the plan.
        rungs: that were in force, by their numbers.
        run: its logs.
        frames: the outcome of every frame.
        models: by number.
        floor: how late the idle machine woke up.
        medians_ns: of segments and of uncut models.
        bounds_hz: background model -> fluid and packing bound on its throughput.
        peak_bytes: unit -> of all tensors.
    """
    segment_ns, whole_ns = medians_ns
    return run_metrics(
        timetable,
        run,
        launched=timetable.launched,
        rungs=rungs,
        segment_ns=segment_ns,
        whole_ns=whole_ns,
        floor_ns=floor,
        bounds_hz=dict(bounds_hz),
        peak_bytes=peak_bytes,
        streams=stream_metrics(
            frames,
            {model.name: set(model.sources) for model in models},
            {name: (count.received, count.waited) for name, count in run.streams.items()},
            {name: count.missing for name, count in run.streams.items()},
        ),
    )


_LEAST_FLOOR, _MOST_FLOOR = 30, 150  # windows of the idle control


class MeasuredRun:
    """A session from its warm-up to its last window, with what was measured around it.

    Args:
        session: to be run.
        seed: of a described device's variation.
        force: overwrite sinks.
        measures: measure launches before and after, and how late the idle machine wakes up, as far as time is real.
        notify: receives what is being done.

    Attributes:
        session: the same.
        floor: how late the idle machine woke up.
        around: what was measured before and after.
        failure: what ended it early; ``None``: nothing did.
    """

    def __init__(self, session: Session, *, seed: int, force: bool, measures: bool, notify: Notify) -> None:
        self.session = session
        self.floor: Floor = np.zeros(1, np.int64)
        self.around: list[list[Measurement]] = []
        self.failure: FramefitError | None = None
        self._seed, self._force, self._measures, self._notify = seed, force, measures, notify
        self._device = session.opened.device
        self._real = isinstance(self._device.clock, RealClock)

    @contextlib.contextmanager
    def processor(self) -> Iterator[None]:
        """Set the calling thread's processor up for warming up and playing."""
        with pinned(self._device.host_core) if self._real else contextlib.nullcontext(), flushed_denormals():
            yield

    def warm_up(self, windows: int) -> None:
        """Launch and measure everything where time is real, begin anew, and open the sinks.

        Args:
            windows: that will be asked for; the idle control takes a part of as many.

        Raises:
            FramefitError: a model does not run here, or a sink cannot be opened.
        """
        session, clock = self.session, self._device.clock
        if self._real:
            self._notify("warming up")
            if not self._measures or is_modelled(self._device):  # whose launches are not measured
                session.launch_all()
            if self._measures:
                self.around.append(session.measure())
                self._notify("idle control")
                count = int(np.clip(windows // 10, _LEAST_FLOOR, _MOST_FLOOR))
                self.floor = measure_floor(clock, session.opened.timetable.window_ns, count)
            else:
                self.floor = np.asarray(session.opened.durations.wake_ups(), np.int64)
        session.ready(self._seed)
        session.open_sinks(force=self._force)  # last: whatever fails before leaves none behind

    def header(self, **facts: Any) -> JournalHeader:
        """What the journal says at the beginning of the run; ``facts`` are those that the session does not know."""
        session = self.session
        segment_ns, whole_ns = session.medians_ns(self.around or [session.planned()])
        return JournalHeader(
            seed=self._seed,
            models=session.model_notes(),
            sinks=tuple(session.sink_notes),
            segment_ns=tuple(segment_ns),
            whole_ns=tuple(whole_ns),
            floor_ns=tuple(self.floor.tolist()),
            **facts,
        )

    def play(self, windows: int, *, stop: Callable[[], bool], on_idle: Callable[[int], None] | None = None) -> None:
        """Run windows, and measure once more; see :meth:`Session.play`."""
        session = self.session
        place = on_other_cores if self._real else contextlib.nullcontext
        session.journal.start(lambda: msgspec.json.encode(session.state()), place)
        try:
            self.failure = session.play(windows, stop=stop, on_idle=on_idle)
        finally:
            for dispatcher in session.group.dispatchers.values():
                dispatcher.hand_over_logs()
            session.journal.stop()
        if self._measures and not (self._real and self.failure):
            self._notify("measuring once more")
            self.around.append(self.session.measure())
        self._device.events()

    def close(self) -> None:
        """Complete the sinks; one that cannot be completed is a failure, too, and so is a record that ended early."""
        journal = self.session.journal
        if journal.failure is not None and self.failure is None:
            self.failure = RecordingError(
                f"the run could not be recorded to its end: {journal.failure.strerror}; it went on without",
                where=journal.folder,
                remedy="make room, and run again; what was recorded is kept",
            )
        try:
            self.session.close()
        except FramefitError as error:
            self.failure = self.failure or error


def _launches(executions: Iterable[Execution]) -> list[Launch]:
    return [(execution, index) for execution in executions for index in range(len(execution.parts))]


def _together(parts: Sequence[Measurement]) -> Measurement:
    """Of a model that no unit supports all of: its parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Measurement(np.asarray([sum(part.median_ns for part in parts)], np.int64))


def _inputs(wired: WiredModel, name: str) -> dict[str, tuple[str, TensorInfo]]:
    """Inputs that read a model -> which of its outputs, and what one frame of it is."""
    entry, tensors = wired.entry, {tensor.name: tensor for tensor in wired.model.inputs}
    return {
        graph_input: (output, one_frame(tensors[graph_input], entry.frames, entry.frames_axis, entry.name))
        for graph_input, (model, output) in wired.reads.items()
        if model == name
    }
