"""Timetables planned ahead: for the rates that streams announce, and for launches that take longer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from framefit.core.settings import Notify, silent
from framefit.core.timetable import PlannedLadder, PlannedModel, PlannedRung, Timetable
from framefit.core.workload import Workload
from framefit.errors import InfeasibleError
from framefit.execution.buffers import unit_bytes
from framefit.execution.compiled import in_layers, joined_segments
from framefit.planning.plan import Plan
from framefit.planning.planner import PlanRequest
from framefit.planning.task import given_bytes

__all__ = ["with_ladder"]


COVERED = ((1.2, 1.0), (1.2, 1.2), (1.5, 1.0), (1.5, 1.5), (2.0, 1.0), (2.0, 2.0))
"""How much longer launches may take on each rung, of priority and of background models: in the order in which they
cost throughput. A processor that gets hot slows all launches down; another input may slow one model down. One
that takes twice as long is another workload."""


Replan = Callable[[PlanRequest], Plan]


def with_ladder(planned: Plan, replan: Replan, notify: Notify = silent) -> Plan:
    """A plan with all timetables that its workload asks for; itself where that is none.

    Args:
        planned: feasible.
        replan: plans on the same device for other conditions.
        notify: receives what is being done.

    Raises:
        InfeasibleError: the models do not fit at rates that a stream will have, or the memory is too small.
    """
    workload = planned.workload
    changes = workload.announced()
    request = changes or workload.schedule.ladder or any(stream.rates_hz for stream in workload.streams)
    if planned.timetable.ladder is not None or not request:
        return planned
    if any(len(model.replicas) > 1 for model in planned.timetable.models):
        # It was made when no further timetables were asked for, which have one cut of each model in common.
        planned = replan(PlanRequest(planned.app, workload, in_real_time=planned.in_real_time))
        if not planned.timetable.feasible:
            return planned
    fixed = _fixed(planned)
    plans = [_Way(planned.timetable, workload, (1.0, 1.0))]
    possible = [workload.at_rates({stream.name: hz}) for stream in workload.streams for hz in stream.rates_hz]
    for rates in _different([workload, *(changed for _, changed in changes), *possible]):
        if rates.grid != workload.grid:
            notify(f"planning {_rates_text(rates)}")
            slower = _for_rates(planned, fixed.at_rates(rates.rates_hz), replan)
            plans.append(_Way(slower.timetable, rates, (1.0, 1.0)))
        if workload.schedule.ladder and not planned.timetable.preemptive:
            rungs = _rungs(planned, fixed.at_rates(rates.rates_hz), replan, notify)
            plans += [_Way(one.timetable, rates, covers) for one, covers in rungs]
    return _with_memory(dataclasses.replace(planned, timetable=_with_rungs(planned, plans)))


@dataclass(frozen=True)
class _Way:
    """One of the timetables of a ladder, for a workload with some rates, and how much slower launches may be in it."""

    timetable: Timetable
    workload: Workload
    covers: tuple[float, float]


def _with_memory(planned: Plan) -> Plan:
    """The plan with the memory of tensors that serve all its timetables, and of what models give others.

    Raises:
        InfeasibleError: a unit has less.
    """
    device, timetable = planned.device, planned.timetable
    needed = dict.fromkeys(timetable.units, 0.0)
    separate = bool(device.target.links)
    for number, wired in enumerate(planned.wired):
        *ways, finest = [models[number] for models in timetable.cuts]
        cut = in_layers(wired, finest, device)
        own = unit_bytes(
            cut.model,
            finest.spans,
            [segment.unit for segment in finest.segments],
            wired.entry.state,
            slots=max(way.slots for way in ways),
            separate=separate,
            together=joined_segments(finest.spans, [way.spans for way in ways]),
        )
        for unit, count in own.items():
            needed[unit] += count
        needed[finest.segments[0].unit] += max(given_bytes(wired, one) for one in timetable.timetables)
    ratio = device.stored_ratio
    memory_bytes = {unit: math.ceil(count * ratio) for unit, count in needed.items()}
    for unit, count in memory_bytes.items():
        limit_mib = device.target.unit(unit).memory_mib
        if limit_mib is not None and count > limit_mib * 2**20:
            raise InfeasibleError(
                f"tensors that serve all timetables take {count / 2**20:.2f} MiB on unit {unit!r}, which has "
                f"{limit_mib:.2f} MiB",
                where=planned.app,
                remedy="leave ladder, changes or rates_hz out",
            )
    return dataclasses.replace(planned, timetable=msgspec.structs.replace(timetable, memory_bytes=memory_bytes))


def _for_rates(planned: Plan, workload: Workload, replan: Replan) -> Plan:
    """The plan at other rates.

    Raises:
        InfeasibleError: there is none.
    """
    several = len(planned.timetable.units) > 1
    # On one unit the layer that binds is named; what would help on several is for models that are placed anew.
    plan = replan(_request(planned, workload, explained=not several))
    if not plan.timetable.feasible:
        placed = f" where they are placed for {_rates_text(planned.workload)}" if several else ""
        raise InfeasibleError(
            f"the models do not fit at {_rates_text(workload)}{placed}: {plan.timetable.binding_constraint}",
            where=planned.app,
            remedy="change to a lower rate, or leave the change out",
        )
    return plan


def _rungs(planned: Plan, workload: Workload, replan: Replan, notify: Notify) -> list[tuple[Plan, tuple[float, float]]]:
    """Plans for launches that take longer, as far as there are any."""
    rungs = []
    for covers in COVERED:
        notify(f"planning a rung for priority models x {covers[0]:g}, background models x {covers[1]:g}")
        one = replan(_request(planned, workload, covers, explained=False))
        if one.timetable.feasible:
            rungs.append((one, covers))
    return rungs


def _request(
    planned: Plan, workload: Workload, covers: tuple[float, float] = (1.0, 1.0), *, explained: bool
) -> PlanRequest:
    """Another timetable for the same models on the same units."""
    return PlanRequest(
        planned.app,
        workload,
        in_real_time=planned.in_real_time,
        priority_ratio=covers[0],
        background_ratio=covers[1],
        explained=explained,
        kept=planned,
    )


def _fixed(planned: Plan) -> Workload:
    """The workload with the roles that its models have now, whatever they take at other rates."""
    roles = {model.name: model.role for model in planned.timetable.models}
    models = tuple(
        entry
        if roles[entry.name] == "sporadic"
        else msgspec.structs.replace(
            entry, priority="every-window" if roles[entry.name] == "priority" else "background"
        )
        for entry in planned.workload.models
    )
    schedule = msgspec.structs.replace(planned.workload.schedule, priority_threshold=None, num_priority=None)
    return msgspec.structs.replace(planned.workload, models=models, schedule=schedule)


def _different(workloads: Sequence[Workload]) -> list[Workload]:
    """Those of different grids."""
    variants: list[Workload] = []
    for workload in workloads:
        if all(workload.grid != one.grid for one in variants):
            variants.append(workload)
    return variants


def _rates_text(workload: Workload) -> str:
    """Its rates in words."""
    return ", ".join(f"{name} {rate:g} Hz" for name, rate in workload.rates_hz.items()) or f"{workload.beat_hz:g} Hz"


def _with_rungs(planned: Plan, ways: Sequence[_Way]) -> Timetable:
    """The plan's timetable with all others that a run may change to, each model in the same layers in all of them."""
    names = [_name(way.covers, way.workload, planned.workload) for way in ways]
    cut = [_in_same_layers([way.timetable.model(own.name) for way in ways]) for own in planned.timetable.models]
    timetables = [
        msgspec.structs.replace(way.timetable, models=tuple(models[number] for models in cut))
        for number, way in enumerate(ways)
    ]
    rungs = tuple(
        PlannedRung(name=name, timetable=timetable, workload=way.workload, covers=way.covers)
        for name, timetable, way in list(zip(names, timetables, ways, strict=True))[1:]
    )
    finest = tuple(
        _finest([(model, way.covers[model.role == "background"]) for model, way in zip(models, ways, strict=True)])
        for models in cut
    )
    return msgspec.structs.replace(timetables[0], ladder=PlannedLadder(rungs=rungs, finest=finest))


def _in_same_layers(ways: Sequence[PlannedModel]) -> list[PlannedModel]:
    """A model as it is in each timetable; where it is whole, in the layers that another timetable cuts."""
    cut = next((way for way in ways if len(way.segments) > 1), ways[0])
    last = cut.segments[-1].span[1]
    recut = []
    for way in ways:
        segments = way.segments
        if len(segments) == 1:
            segments = (msgspec.structs.replace(segments[0], span=(0, last)),)
        recut.append(msgspec.structs.replace(way, layers=cut.layers, segments=segments))
    return recut


def _finest(ways: Sequence[tuple[PlannedModel, float]]) -> PlannedModel:
    """A model cut wherever any timetable cuts it; each segment takes no longer than any that holds it.

    Args:
        ways: the model in each timetable, the plan's own first, and how much slower it is taken to be there.
    """
    own = ways[0][0]
    begins = sorted({first for way, _ in ways for first, _ in way.spans})
    ends = [*(begin - 1 for begin in begins[1:]), own.segments[-1].span[1]]
    segments = []
    for index, (first, last) in enumerate(zip(begins, ends, strict=True)):
        holding = [
            (segment.duration_ns / ratio, segment.median_ns / ratio, segment)
            for way, ratio in ways
            for segment in way.segments
            if segment.span[0] <= first and last <= segment.span[1]
        ]
        duration_ns, median_ns, segment = min(holding, key=lambda one: one[0])
        segments.append(
            msgspec.structs.replace(
                segment,
                index=index,
                span=(first, last),
                duration_ns=math.ceil(duration_ns),
                median_ns=math.ceil(median_ns),
            )
        )
    return msgspec.structs.replace(
        own,
        segments=tuple(segments),
        duration_ns=sum(segment.duration_ns for segment in segments),
    )


def _name(covers: tuple[float, float], rates: Workload, plan: Workload) -> str:
    """A rung's, for labels and people."""
    parts = [] if rates.grid == plan.grid else [rates.rates_name]
    parts += [f"{covers[0]:g}"] if covers[1] == 1 and covers[0] != 1 else []
    parts += [f"{covers[0]:g}x{covers[1]:g}"] if covers[1] != 1 else []
    return "-".join(parts) or "planned"
