"""What was told to a device, and what the host saw of it, as programs and a trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framefit.core.events import EventType, Trace
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram
from framefit.core.timetable import PlannedModel, Segment
from framefit.runtime.beat.crew import Crew
from framefit.runtime.models.execution import Execution
from framefit.runtime.records.log import LaunchLog
from framefit.workflows.plan import Plan

__all__ = ["device_program", "host_program", "host_trace"]


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


def host_trace(program: Program, run: Crew) -> Trace:
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
