"""What ``run``, ``simulate`` and a ``Runner`` share: the jobs of a planned workload on their units, and its sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from framefit.core.faults import Fault
from framefit.core.model import TensorInfo
from framefit.core.results import Metrics
from framefit.core.timetable import PlannedModel
from framefit.devices.clock import RealClock
from framefit.devices.faulty import FaultyDevice
from framefit.devices.host import host_stalls
from framefit.devices.measure import Measurement
from framefit.devices.npu import NpuDevice
from framefit.errors import FramefitError
from framefit.runtime.beat.crew import Crew
from framefit.runtime.beat.dispatcher import LEAD_NS, steady
from framefit.runtime.beat.duties import duties_of
from framefit.runtime.beat.injected import disturb_feeds, disturbed
from framefit.runtime.beat.reader import Given, read_others
from framefit.runtime.beat.relay import stage_jobs
from framefit.runtime.beat.timed import TimedExecution
from framefit.runtime.beat.watchdog import patience_ns, watched
from framefit.runtime.frames.stacking import one_frame
from framefit.runtime.frames.streams import Queue
from framefit.runtime.models.costs import Launch
from framefit.runtime.models.execution import Execution
from framefit.runtime.models.job import Job
from framefit.runtime.outputs.finite import CheckedSink
from framefit.runtime.outputs.sinks import AggregatingSink, Sink, open_sink
from framefit.runtime.programs.outlets import Tap
from framefit.runtime.programs.pushed import Inbox, NumberedSink
from framefit.runtime.records.log import Fates, FaultCause
from framefit.scheduling.beat import in_order
from framefit.scheduling.service import Rotation
from framefit.workflows.plan import Plan
from framefit.workflows.planning.task import PlannedTask
from framefit.workflows.running.asked import counted_windows
from framefit.workflows.running.climbing import Climb, deadline_ns
from framefit.workflows.running.faults import lodging
from framefit.workflows.running.folder import RunResult
from framefit.workflows.running.outcome import Floor, Outcome
from framefit.workflows.running.sources import Sources

__all__ = ["Session"]

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
        crew: what runs them, on all units.
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
                lambda: self.crew.release(self.crew.windows) - self.crew.start_ns,
                lambda: self.crew.end_early(),
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
        duties = duties_of(
            timetable,
            self.jobs,
            Rotation,
            order=[numbers[model.name] for model in in_order(timetable.models)],
            stalls=lambda unit: (
                host_stalls(core_of[unit] if device.target.kind == "ort" else planned.core) if on_host else None
            ),
        )
        self.crew = Crew(device, device.clock, duties, planned.workload.grid)
        self.crew.lodge(lambda model, working: lodging(planned, model, self.jobs[model][-1].execution, working))
        self.climb = Climb(planned, self._injected or device, self.crew, self.jobs)
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
            queue=Queue(task.wired.depth, task.wired.when_full),
            feed=self.sources.feed(task),
            every=entry.every,
            frames=entry.frames,
            model=number,
            on_error=entry.on_error or ("skip" if task.priority else "retry"),
        )
        if frames and whole.feed.intake is None and not task.wired.after:
            whole.read(0)  # a frame that does not fit is found now, not in the loop
        stages = execution.stages() if timed is None else timed.in_stages(model)
        return stage_jobs(whole, stages, execution.slots, [stage[-1].boundary_bytes for stage in model.stages])

    def _read_others(self, *, frames: bool) -> None:
        """Have models that read others get their frames of these."""
        tasks = {task.name: (task, jobs) for task, jobs in zip(self.plan.tasks, self.jobs, strict=True)}
        for task, jobs in tasks.values():
            given = [
                Given(
                    tasks[name][1],
                    self._oldest(name),
                    _inputs(task, name) if frames else {},
                    self._step(tasks, name),
                )
                for name in task.wired.after
            ]
            if given:
                read_others(jobs[0], given)

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
    def inboxes(self) -> list[Inbox]:
        """Where frames that a program hands over wait for windows."""
        return self.sources.inboxes

    def tapped(self) -> dict[str, Tap]:
        """Model -> where its results can be had while the run goes on."""
        fates = Fates(len(self.jobs))
        self.crew.tell(fates)
        found: dict[str, Tap] = {}
        for index, (task, jobs) in enumerate(zip(self.plan.tasks, self.jobs, strict=True)):
            wired = task.wired
            found[task.name] = Tap(
                index,
                task.name,
                jobs[-1],
                self.sources.inbox(task),
                fates,
                self.crew.release,
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
        if (inbox := self.sources.inbox(task)) is not None:
            sink = NumberedSink(sink, inbox)
        aggregate = task.wired.entry.aggregate
        self.sinks.append(AggregatingSink(sink, aggregate) if aggregate > 1 else sink)
        return self.sinks[-1]

    def _checked(self, task: PlannedTask, sink: Sink) -> Sink:
        """A sink that outputs which are not finite are noted at, and kept from where that is asked for."""
        on_nan, model, faults = task.wired.entry.on_nan, self.plan.tasks.index(task), self.crew.faults
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
        if isinstance(self.plan.device, NpuDevice):
            self.plan.device.restart(seed)
        self.reset()
        self.plan.device.events()

    def play(
        self, windows: int, *, stop: Callable[[], bool], on_idle: Callable[[int], None] | None
    ) -> FramefitError | None:
        """Run windows; see :meth:`Crew.run`. What ends them early is returned: what happened is kept."""
        timetable, device, injected = self.plan.timetable, self.plan.device, self._injected
        real = isinstance(device.clock, RealClock)
        patience = {
            unit: max(patience_ns(one, unit, real=real) for one in self.climb.timetables) for unit in timetable.units
        }

        def keep_beat(leave: Callable[[], bool]) -> None:
            with steady():
                self.crew.run(windows, stop=lambda: leave() or stop(), on_idle=on_idle)

        if injected is not None:
            injected.patience_ns = max(patience.values())
            injected.arm(device.clock.now_ns() + LEAD_NS)
        try:
            watched(self.crew, injected or device, patience, keep_beat)
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
        return self._outcome.metrics(self.crew.so_far(), floor, [one.median_ns for one in self.planned()])

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
        return self._outcome.result(self.crew, folder, floor, medians, interrupted=interrupted)


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
