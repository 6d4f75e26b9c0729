"""What a run gave: figures from its logs, and everything that its folder holds."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from framefit.core.events import Trace
from framefit.core.files import claimed_folder
from framefit.core.frames import FrameTable
from framefit.core.program import Launches
from framefit.core.results import Metrics
from framefit.devices.npu import NpuDevice
from framefit.errors import FramefitError
from framefit.runtime.beat.crew import Crew
from framefit.runtime.beat.relay import StageJob
from framefit.runtime.figures.metrics import frame_records, run_metrics, stream_metrics
from framefit.runtime.frames.reading import Supply
from framefit.runtime.models.buffers import unit_bytes
from framefit.runtime.models.job import Job
from framefit.runtime.programs.pushed import with_submitted
from framefit.workflows.plan import Notify, Plan
from framefit.workflows.profiles.table import planned_expectations
from framefit.workflows.running.climbing import Climb
from framefit.workflows.running.faults import fault_notes
from framefit.workflows.running.folder import RunResult, folder_stem, left_out, write_folder
from framefit.workflows.running.own_profile import with_profile
from framefit.workflows.running.programs import device_program, host_program, host_trace
from framefit.workflows.running.sources import Sources
from framefit.workflows.running.yardsticks import bounds_hz

__all__ = ["Floor", "Outcome", "saved"]

Floor = np.ndarray[tuple[int], np.dtype[np.int64]]


class Outcome:
    """Figures of one run, from the logs of its crew.

    Args:
        planned: what is run.
        sources: where its frames come from.
        jobs: of each model's stages.
        climb: what changes its timetable.
    """

    def __init__(self, planned: Plan, sources: Sources, jobs: Sequence[Sequence[Job]], climb: Climb) -> None:
        self._plan, self._sources, self._jobs, self._climb = planned, sources, jobs, climb

    def metrics(self, run: Crew, floor: Floor, medians_ns: Sequence[int]) -> Metrics:
        """Figures of a run that goes on; without bounds."""
        return self._metrics(run, self._frames(run, ended=False), floor, medians_ns, bounds=False)

    def result(
        self, run: Crew, folder: Path, floor: Floor, medians_ns: Sequence[int], *, interrupted: bool
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
        self, run: Crew, frames: FrameTable, floor: Floor, medians_ns: Sequence[int], *, bounds: bool
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
                slots=max(first.relay.most, 1) if isinstance(first, StageJob) else 1,
                separate=bool(timetable.links),
            )
            supplies = {id(one): one for one in first.sources.values() if isinstance(one, Supply)}
            own[model.segments[0].unit] += sum(one.most * one.frame_bytes for one in supplies.values())
            for unit, size in own.items():
                found[unit] += size
        stored = device.stored_ratio if isinstance(device, NpuDevice) else 1.0
        return {unit: math.ceil(size * stored) for unit, size in found.items()}

    def _frames(self, run: Crew, *, ended: bool) -> FrameTable:
        """The fate of every frame."""
        tasks, sources = self._plan.tasks, self._sources
        counted_by = {task.name: sources.stream(task) for task in tasks}
        names = [task.name for task in tasks]
        frames = frame_records(run.frames, names, counted_by, run.start_ns, run.faults.not_finite())
        inboxes = {task.name: box for task in tasks if (box := sources.inbox(task)) is not None}
        return with_submitted(frames, inboxes, run.start_ns, ended=ended) if inboxes else frames

    def _launches(self, run: Crew) -> Launches:
        """All launches, frames by the numbers that they were submitted under."""
        launches, first = run.launches.launches(), 0
        tasks = {task.name: task for task in self._plan.tasks}
        for model in self._plan.launched.models:
            end = first + len(model.segments)
            if (inbox := self._sources.inbox(tasks[model.name])) is not None:
                mine = (launches.program >= first) & (launches.program < end)
                launches.frame[mine] = inbox.numbers[launches.frame[mine]]
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
    if isinstance(planned.device, NpuDevice) and (late := planned.device.late_results):
        notes.append(
            f"{late} of {len(launches)} launches took this host longer to compute than the described device: times are "
            "the host's there; framefit simulate has the device's"
        )
    return notes
