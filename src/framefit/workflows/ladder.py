"""Timetables planned ahead: for the rates that streams announce, and for launches that take longer."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import msgspec

from framefit.core.settings import Notify, silent
from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import is_simulated
from framefit.devices.host import flushed_denormals, pinned
from framefit.errors import InfeasibleError
from framefit.execution.execution import Execution
from framefit.planning.plan import Cuts, Plan, PlannedLadder, PlannedRung, rates_name
from framefit.planning.task import Bounds, PlannedTask, given_bytes
from framefit.workflows.plan import again

__all__ = ["COVERED", "with_ladder"]


COVERED = ((1.2, 1.0), (1.2, 1.2), (1.5, 1.0), (1.5, 1.5), (2.0, 1.0), (2.0, 2.0))
"""How much longer launches may take on each rung, of priority and of background models: in the order in which they
cost throughput. A processor that gets hot slows all launches down; another input may slow one model down. One
that takes twice as long is another workload."""


def with_ladder(planned: Plan, notify: Notify = silent) -> Plan:
    """A plan with all timetables that its workload asks for; itself where that is none.

    Args:
        planned: feasible.
        notify: receives what is being done.

    Raises:
        InfeasibleError: the models do not fit at rates that a stream will have, or the memory is too small.
    """
    workload, changes = planned.workload, planned.workload.announced()
    asked = changes or workload.schedule.ladder or any(stream.rates_hz for stream in workload.streams)
    if planned.ladder is not None or not asked:
        return planned
    fixed = _fixed(planned)
    plans = [(planned, (1.0, 1.0), workload)]
    possible = [workload.at_rates({stream.name: hz}) for stream in workload.streams for hz in stream.rates_hz]
    for rates in _different([workload, *(changed for _, changed in changes), *possible]):
        if rates.grid != workload.grid:
            notify(f"planning {_told(rates)}")
            plans.append((_for_rates(planned, fixed.at_rates(rates.rates_hz), notify), (1.0, 1.0), rates))
        if workload.schedule.ladder and not planned.timetable.preemptive:
            plans += [(one, covers, rates) for one, covers in _rungs(planned, fixed.at_rates(rates.rates_hz), notify)]
    notify(f"compiling {len(plans)} timetables")
    if is_simulated(planned.device):
        planned.device.computes = planned.device.computer is not None
    with pinned(planned.device.host_core), flushed_denormals():
        ladder = _compiled(planned, plans, changes)
        for cuts in ladder.cuts:
            for task, execution in zip(planned.tasks, cuts.executions, strict=True):
                task.difference(execution)
    return dataclasses.replace(planned, timetable=_with_memory(planned, ladder), ladder=ladder)


def _with_memory(planned: Plan, ladder: PlannedLadder) -> Timetable:
    """The plan's timetable with the memory of tensors that serve all cuts, and of what models give others.

    Raises:
        InfeasibleError: a unit has less.
    """
    device, needed = planned.device, dict.fromkeys(planned.timetable.units, 0.0)
    for task, execution in zip(planned.tasks, ladder.finest.executions, strict=True):
        for unit, count in execution.unit_bytes.items():
            needed[unit] += count
        needed[task.units[0]] += max(given_bytes(task, rung.timetable) for rung in ladder.rungs)
    found = {unit: math.ceil(count * device.stored_ratio) for unit, count in needed.items()}
    for unit, count in found.items():
        limit_mib = device.target.unit(unit).memory_mib
        if limit_mib is not None and count > limit_mib * 2**20:
            raise InfeasibleError(
                f"tensors that serve all timetables take {count / 2**20:.2f} MiB on unit {unit!r}, which has "
                f"{limit_mib:.2f} MiB",
                where=planned.app,
                remedy="leave ladder, changes or rates_hz out",
            )
    return msgspec.structs.replace(planned.timetable, memory_bytes=found)


def _for_rates(planned: Plan, workload: Workload, notify: Notify) -> Plan:
    """The plan at other rates.

    Raises:
        InfeasibleError: there is none.
    """
    several = len(planned.timetable.units) > 1
    # On one unit the layer that binds is named; what would help on several is for models that are placed anew.
    found = again(planned, workload=workload, explained=not several, keeps_units=True, notify=notify)
    if not found.timetable.feasible:
        placed = f" where they are placed for {_told(planned.workload)}" if several else ""
        raise InfeasibleError(
            f"the models do not fit at {_told(workload)}{placed}: {found.timetable.binding_constraint}",
            where=planned.app,
            remedy="change to a lower rate, or leave the change out",
        )
    return found


def _rungs(planned: Plan, workload: Workload, notify: Notify) -> list[tuple[Plan, tuple[float, float]]]:
    """Plans for launches that take longer, as far as there are any."""
    found = []
    for covers in COVERED:
        notify(f"planning a rung for priority models x {covers[0]:g}, background models x {covers[1]:g}")
        one = again(
            planned,
            workload=workload,
            priority_ratio=covers[0],
            background_ratio=covers[1],
            explained=False,
            keeps_units=True,
            notify=notify,
        )
        if one.timetable.feasible:
            found.append((one, covers))
    return found


def _fixed(planned: Plan) -> Workload:
    """The workload with the roles that its models have now, whatever they take at other rates."""
    priority = {task.name: task.priority for task in planned.tasks}
    models = tuple(
        msgspec.structs.replace(entry, priority="every-window" if priority[entry.name] else "background")
        for entry in planned.workload.models
    )
    schedule = msgspec.structs.replace(planned.workload.schedule, priority_threshold=None, num_priority=None)
    return msgspec.structs.replace(planned.workload, models=models, schedule=schedule)


def _different(workloads: Sequence[Workload]) -> list[Workload]:
    """Those of different grids."""
    found: list[Workload] = []
    for workload in workloads:
        if all(workload.grid != one.grid for one in found):
            found.append(workload)
    return found


def _told(workload: Workload) -> str:
    """Its rates in words."""
    return ", ".join(f"{name} {rate:g} Hz" for name, rate in workload.rates_hz.items()) or f"{workload.beat_hz:g} Hz"


def _compiled(
    planned: Plan,
    plans: Sequence[tuple[Plan, tuple[float, float], Workload]],
    changes: Sequence[tuple[float, Workload]],
) -> PlannedLadder:
    """All models in all cuts, each model over the same tensors."""
    tasks = [
        [next(task for task in one.tasks if task.name == own.name) for one, _, _ in plans] for own in planned.tasks
    ]
    names = [_name(covers, rates, planned.workload) for _, covers, rates in plans]
    compiled = [_all_cuts(own, ways, names) for own, ways in zip(planned.tasks, tasks, strict=True)]
    rungs = []
    for number, (one, covers, rates) in enumerate(plans):
        timetable = _in_order(one.timetable, planned.timetable)
        cuts = Cuts(
            timetable.models,
            tuple(model.executions[number] for model in compiled),
            tuple(tuple(first for first, _ in model.bounds[number]) for model in compiled),
        )
        rungs.append(PlannedRung(names[number], timetable, rates, covers, cuts))
    for own, model in zip(planned.tasks, compiled, strict=True):
        own.adopt(model.executions[0])
    finest = Cuts(
        tuple(
            _priced(
                model,
                one.bounds[-1],
                [
                    (rung.cuts.models[number], rung.covers[model.role == "background"], bounds)
                    for rung, bounds in zip(rungs, one.bounds, strict=False)
                ],
            )
            for number, (model, one) in enumerate(zip(planned.timetable.models, compiled, strict=True))
        ),
        tuple(model.executions[-1] for model in compiled),
        tuple(tuple(first for first, _ in model.bounds[-1]) for model in compiled),
    )
    return PlannedLadder(tuple(rungs), finest, changes)


@dataclasses.dataclass(frozen=True)
class _Compiled:
    """A model in all its cuts, the finest one last.

    Attributes:
        bounds: first and last layer of each cut's segments.
        executions: of each cut.
    """

    bounds: Sequence[Bounds]
    executions: Sequence[Execution]


def _all_cuts(own: PlannedTask, ways: Sequence[PlannedTask], names: Sequence[str]) -> _Compiled:
    """A model as it is cut in each plan.

    Args:
        own: the plan's.
        ways: the same model in all plans.
        names: of these.
    """
    cut = next((way for way in ways if way.bounds), own)  # in the layers that its bounds count
    last = len(cut.model.layers) - 1
    bounds: list[Bounds] = [way.bounds or ((0, last),) for way in ways]
    begins = sorted({first for one in bounds for first, _ in one})
    finest: Bounds = tuple(itertools.pairwise([*begins, last + 1]))
    finest = tuple((first, end - 1) for first, end in finest)
    place = {first: number for number, first in enumerate(begins)} | {last + 1: len(begins)}
    together = {(place[first], place[end + 1] - 1) for one in bounds for first, end in one}
    labels = [own.name, *(f"{own.name}@{name}" for name in names[1:])]
    label = labels[bounds.index(finest)] if finest in bounds else f"{own.name}@finest"
    wired = dataclasses.replace(cut.wired, entry=msgspec.structs.replace(own.wired.entry, name=label))
    joined = sorted(run for run in together if run[0] < run[1])
    units = [[unit for unit, begin in own.stages if begin <= first][-1] for first, _ in finest]
    slots = max(way.slots for way in ways)  # of all timetables: so often exists what crosses units
    whole = wired.execution(finest, own.device, units, slots, together=joined)
    executions = [whole.recut(one, label) for one, label in zip(bounds, labels, strict=True)]
    return _Compiled([*bounds, finest], [*executions, whole])


def _priced(model: PlannedModel, bounds: Bounds, ways: Sequence[tuple[PlannedModel, float, Bounds]]) -> PlannedModel:
    """A model in its finest segments: each takes no longer than any segment that holds it.

    Args:
        model: the plan's.
        bounds: first and last layer of each finest segment.
        ways: the model in each timetable, how much slower it is taken to be there, and its bounds.
    """
    found = []
    for index, (first, last) in enumerate(bounds):
        holding = [
            (segment.duration_ns / ratio, segment.median_ns / ratio, segment)
            for way, ratio, cut in ways
            for segment, (begin, end) in zip(way.segments, cut, strict=True)
            if begin <= first and last <= end
        ]
        duration_ns, median_ns, segment = min(holding, key=lambda one: one[0])
        found.append(
            msgspec.structs.replace(
                segment, index=index, duration_ns=math.ceil(duration_ns), median_ns=math.ceil(median_ns)
            )
        )
    return msgspec.structs.replace(
        model, segments=tuple(found), duration_ns=sum(segment.duration_ns for segment in found)
    )


def _in_order(timetable: Timetable, plan: Timetable) -> Timetable:
    """With its models in the order of the plan."""
    return msgspec.structs.replace(timetable, models=tuple(timetable.model(model.name) for model in plan.models))


def _name(covers: tuple[float, float], rates: Workload, plan: Workload) -> str:
    """A rung's, for labels and people."""
    parts = [] if rates.grid == plan.grid else [rates_name(rates)]
    parts += [f"{covers[0]:g}"] if covers[1] == 1 and covers[0] != 1 else []
    parts += [f"{covers[0]:g}x{covers[1]:g}"] if covers[1] != 1 else []
    return "-".join(parts) or "planned"
