"""What ``run`` and ``simulate`` share: jobs, streams and sinks of a planned workload, figures, and the run folder."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from framefit.core.events import Trace
from framefit.core.frames import FrameTable
from framefit.core.program import Launches
from framefit.core.results import Metrics
from framefit.core.workload import release_ns
from framefit.devices.clock import RealClock
from framefit.devices.host import host_stalls
from framefit.devices.measure import Measurement
from framefit.devices.npu import NpuDevice
from framefit.errors import FramefitError
from framefit.runtime.costs import Launch
from framefit.runtime.dispatcher import Dispatcher, instants, steady
from framefit.runtime.job import Job
from framefit.runtime.log import Fates, FrameLog, LaunchLog, ToldFrameLog
from framefit.runtime.metrics import frame_records, priority_ns, run_metrics, stream_metrics
from framefit.runtime.outlets import Tap
from framefit.runtime.preemptive import PreemptiveDispatcher
from framefit.runtime.prepare import Preparation
from framefit.runtime.pushed import Inbox, NumberedSink, PushedStream, Reader, with_submitted
from framefit.runtime.sinks import AggregatingSink, Sink, open_sink
from framefit.runtime.streams import Feed, Queue, Stream, open_stream
from framefit.runtime.timed import TimedExecution
from framefit.runtime.wiring import STRICTEST, streams_of
from framefit.scheduling.bounds import Work, fluid_bounds_hz, packing_bounds_hz
from framefit.scheduling.service import Rotation
from framefit.workflows.asked import counted_windows
from framefit.workflows.folder import RunResult, left_out, write_folder
from framefit.workflows.own_profile import with_profile
from framefit.workflows.plan import Notify, Plan
from framefit.workflows.profile_table import planned_expectations
from framefit.workflows.programs import device_program, host_program, host_trace
from framefit.workflows.task import PlannedTask

__all__ = ["Session", "saved"]

Floor = np.ndarray[tuple[int], np.dtype[np.int64]]

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
    """

    def __init__(self, planned: Plan, *, seed: int, frames: bool = True, submitted: Collection[str] = ()) -> None:
        self.plan = planned
        workload, timetable = planned.workload, planned.timetable
        folder = planned.app.resolve().parent
        behind = max(task.wired.behind for task in planned.tasks)
        self.streams: dict[str, Stream] = {
            entry.name: PushedStream(entry.name, self._readers(entry.name), keep=behind)
            if entry.name in submitted
            else open_stream(entry, seed + index, folder=folder, keep=behind)
            for index, entry in enumerate(streams_of(workload))
            if frames
        }
        steps = {task.wired.in_step: Feed(waits=task.wired.waits) for task in planned.tasks}
        for step, feed in steps.items():
            feed.intake = self._inbox(step)
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
            if frames and jobs[-1].feed.intake is None:
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
        waiting = {name for name, feed in self.feeds.items() if feed.waits or feed.intake is not None}
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

    def inbox(self, task: PlannedTask) -> Inbox | None:
        """Where a model's frames wait until windows take them; ``None``: its streams have sources of their own."""
        intake = self.feeds[next(iter(task.wired.in_step))].intake if task.wired.in_step else None
        return intake if isinstance(intake, Inbox) else None

    @property
    def inboxes(self) -> list[Inbox]:
        """All that models read from."""
        intakes = {id(feed.intake): feed.intake for feed in self.feeds.values()}
        return [intake for intake in intakes.values() if isinstance(intake, Inbox)]

    def tapped(self) -> dict[str, Tap]:
        """Model -> where its results can be had while the run goes on."""
        run = self.dispatcher
        fates = Fates(len(self._jobs))
        run.frames = ToldFrameLog(fates)
        found = {}
        for index, (task, job) in enumerate(zip(self.plan.tasks, self._jobs, strict=True)):
            wired = task.wired
            outputs = None if wired.postprocess is not None else [tensor.name for tensor in wired.model.outputs]
            found[task.name] = Tap(
                index,
                task.name,
                job,
                self.inbox(task),
                fates,
                run.release,
                outputs=outputs,
                aggregate=wired.entry.aggregate,
            )
        return found

    def _readers(self, stream: str) -> list[Reader]:
        """What frames of a stream are asked for."""
        found: list[Reader] = []
        for wired in (task.wired for task in self.plan.tasks):
            for name, tensor in wired.frame_inputs.items():
                if wired.sources[name] == stream:
                    prepare: Preparation | None = wired.prepare.get(name) if tensor.shape is None else None
                    found.append((tensor, copy.deepcopy(prepare)))  # the loop uses the other one meanwhile
        return found

    def _inbox(self, step: Collection[str]) -> Inbox | None:
        """For those streams of a step whose frames are handed over."""
        streams = [self.streams[name] for name in sorted(step) if name in self.streams]
        pushed = [stream for stream in streams if isinstance(stream, PushedStream)]
        if not pushed:
            return None
        entries = [entry for entry in streams_of(self.plan.workload) if entry.name in {one.name for one in pushed}]
        rules = {entry.when_full for entry in entries}
        return Inbox(
            pushed,
            min(entry.queue for entry in entries),
            next(rule for rule in STRICTEST if rule in rules),
            self.plan.device.clock.now_ns,
        )

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
                        if (inbox := self.inbox(task)) is not None:
                            sink = NumberedSink(sink, inbox)
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
        if isinstance(self.plan.device, NpuDevice):
            self.plan.device.restart(seed)
        self.reset()
        self.plan.device.events()

    def play(
        self, windows: int, *, stop: Callable[[], bool], on_idle: Callable[[int], None] | None
    ) -> FramefitError | None:
        """Run windows; see :meth:`Dispatcher.run`. What ends them early is returned: what happened is kept."""
        try:
            with steady():
                self.dispatcher.run(windows, stop=stop, on_idle=on_idle)
        except FramefitError as error:  # of the device, a sink, a stream
            return error
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
            came = feed.intake.count if isinstance(feed.intake, Inbox) else feed.delivered
            length = self.streams[name].length if name in self.streams else None
            received[name] = came if length is None else min(came, length), feed.waited
        return received

    def _frames(self, run: Dispatcher, *, ended: bool) -> FrameTable:
        """The fate of every frame."""
        counted_by = {task.name: next(iter(task.wired.sources.values()), "-") for task in self.plan.tasks}
        frames = frame_records(run.frames, [task.name for task in self.plan.tasks], counted_by, run.start_ns)
        inboxes = {task.name: box for task in self.plan.tasks if (box := self.inbox(task)) is not None}
        return with_submitted(frames, inboxes, run.start_ns, ended=ended) if inboxes else frames

    def _launches(self, run: Dispatcher) -> Launches:
        """All launches, frames by the numbers that they were submitted under."""
        launches = run.launches.launches()
        for task, first, model in zip(self.plan.tasks, self.first_programs, self.plan.timetable.models, strict=True):
            if (inbox := self.inbox(task)) is not None:
                mine = (launches.program >= first) & (launches.program < first + len(model.segments))
                launches.frame[mine] = inbox.numbers[launches.frame[mine]]
        return launches

    def _metrics(
        self,
        run: Dispatcher,
        frames: FrameTable,
        floor: Floor,
        medians_ns: Sequence[int],
        *,
        bounds: bool,
    ) -> Metrics:
        """Figures of a dispatcher's logs."""
        count = len(self.plan.tasks)
        segment_ns, whole_ns = medians_ns[:-count], medians_ns[-count:]
        return run_metrics(
            self.plan.timetable,
            run,
            rate_hz=self.plan.workload.beat_hz,
            segment_ns=segment_ns,
            whole_ns=whole_ns,
            floor_ns=floor,
            bounds_hz=self._bounds_hz(segment_ns, whole_ns) if bounds else {},
            memory_bytes=sum(self.plan.timetable.memory_bytes.values()),
            streams=stream_metrics(
                frames,
                {task.name: set(task.wired.sources.values()) for task in self.plan.tasks},
                self._received(run.windows),
            ),
        )

    def metrics(self, floor: Floor) -> Metrics:
        """Figures while the run goes on, asked for by another thread; without bounds, which take long."""
        run = copy.copy(self.dispatcher)
        run.launches, run.frames = LaunchLog.of(run.launches.snapshot()), FrameLog.of(run.frames.snapshot())
        run.stalled = dict(run.stalled)
        return self._metrics(
            run, self._frames(run, ended=False), floor, [one.median_ns for one in self.planned()], bounds=False
        )

    def result(
        self, folder: Path, floor: Floor, around: Sequence[Sequence[Measurement]], *, interrupted: bool
    ) -> RunResult:
        """Figures from the logs."""
        timetable, run = self.plan.timetable, self.dispatcher
        rate_hz, windows = self.plan.workload.beat_hz, run.windows
        medians = [int(np.median(np.concatenate([m.samples_ns for m in same]))) for same in zip(*around, strict=True)]
        frames = self._frames(run, ended=True)
        metrics = self._metrics(run, frames, floor, medians, bounds=True)
        releases = np.fromiter((run.start_ns + release_ns(k, rate_hz) for k in range(windows)), np.int64, windows)
        trace, launches = run.trace(), self._launches(run)
        told = planned_expectations(self.plan.workload, self.plan.device, device_program(self.plan))
        seen_program = host_program(self.plan)
        return RunResult(
            folder=folder,
            timetable=timetable,
            metrics=metrics,
            frames=frames,
            trace=trace,
            program=told,
            seen=host_trace(seen_program, run),
            seen_program=seen_program,
            launches=launches,
            releases_ns=releases,
            interrupted=interrupted,
            warnings=(*timetable.reasons, *_notes(self.plan, launches, trace)),
        )


def saved(
    result: RunResult,
    planned: Plan,
    *,
    seed: int,
    force: bool,
    failure: FramefitError | None,
    update_table: str | Path | None = None,
    notify: Notify,
) -> RunResult:
    """A run with the profile of its trace, its folder written.

    Raises:
        FramefitError: what ended the run.
    """
    notify("profiling the trace")
    result = with_profile(result, planned, update_table, notify)
    notify("writing the run folder")
    write_folder(result, planned, seed=seed, force=force, command=" ".join(sys.argv), error=failure)
    if failure is not None:
        raise failure
    return result


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
