"""Faults that a user has injected into a run, and what to say of those that came by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from framefit.core.faults import Fault, check_fault, read_fault
from framefit.core.results import Metrics
from framefit.core.workload import Workload
from framefit.errors import FramefitError, InputError
from framefit.runtime.beat.crew import Crew
from framefit.runtime.beat.moving import Lodging
from framefit.runtime.beat.timed import TimedExecution
from framefit.runtime.models.execution import Execution
from framefit.runtime.models.job import Launchable
from framefit.runtime.models.wiring import streams_of
from framefit.workflows.plan import Plan

__all__ = ["asked_faults", "check_faults", "fault_notes", "lodging"]

_OF_FRAMES = ("nan", "inf", "shape")


def asked_faults(texts: Sequence[str], workload: Workload) -> list[Fault]:
    """Faults in words; see :func:`~framefit.core.faults.read_fault`.

    Raises:
        InputError: one cannot be read.
    """
    return [read_fault(text, workload.grid.release_ns) for text in texts]


def check_faults(faults: Sequence[Fault], planned: Plan, *, frames: bool) -> None:
    """Refuse faults that could not befall a run.

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


def lodging(planned: Plan, model: int, execution: Launchable, working: Sequence[str]) -> Lodging | None:
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
        return Lodging(unit, timed or found, estimates_ns, first_program)
    return None


def fault_notes(metrics: Metrics, run: Crew) -> list[str]:
    """What went wrong in a run, for its warnings.

    Args:
        metrics: of the run.
        run: afterwards.
    """
    names = [model.name for model in metrics.models]
    notes = [
        f"unit {one.unit!r} failed: model {names[one.model]!r} went on on {one.to!r} from window {one.window} on; "
        "the trace's program still has it there"
        for one in run.moved
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
