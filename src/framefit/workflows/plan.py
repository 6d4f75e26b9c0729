"""``framefit plan``: from an ``app.toml`` to a checked timetable."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.files import write_record
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import Unit
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.device import Device, is_modelled, is_simulated
from framefit.devices.host import flushed_denormals, pinned, realtime_priority_permitted
from framefit.devices.registry import open_device
from framefit.devices.store import MeasurementStore
from framefit.errors import InputError
from framefit.execution.measured import Costs, MeasuredCosts, ModelledCosts
from framefit.execution.unit_support import check_support, home_unit, usable_units
from framefit.execution.wiring import wire
from framefit.planning.beat import Beat
from framefit.planning.durations import MeasuredPricing, MeasuredUnits, ToldPricing, ToldUnits
from framefit.planning.levels import Traits, levels, roles
from framefit.planning.plan import Plan
from framefit.planning.planner import OneUnit, OnUnits
from framefit.planning.task import PlannedTask, check_plan, compared, demands_of, host_links, with_memory
from framefit.planning.timetable import build_timetable
from framefit.workflows.settings import PlanSettings
from framefit.workflows.table_durations import pricing_for

__all__ = ["plan", "verified"]


_LEAST_GUARD_NS = 50_000
_FLOOR_QUANTILE = 0.95  # of wake-ups; beyond it lie stalls of the host that no guard covers
_DISPATCH_NS = 100_000  # from waking up to the first launch, frame handed over


@verb(PlanSettings, "app")
def plan(
    settings: PlanSettings,
    *,
    in_real_time: bool = False,
    notify: Notify = silent,
    workload: Workload | None = None,
    priority_ratio: float = 1.0,
    background_ratio: float = 1.0,
) -> Plan:
    """Say whether and how a workload's models fit into every window.

    Args:
        settings: what to plan.
        in_real_time: a described device is to run beside this host's clock: the host's late
            wake-ups count. Without meaning for the CPU, where they always do.
        notify: receives what is being done, for progress.
        workload: with absolute paths, instead of what the file says.
        priority_ratio: for conditions other than the present ones: times what is measured priority models take then.
        background_ratio: and background models.

    Raises:
        InputError: a file, key or model that cannot be used; an operator that no unit supports.
        DeviceError: a model does not run here, or its segments do not give its outputs.

    Example:
        >>> framefit.plan("app.toml").timetable.feasible  # doctest: +SKIP
        True
    """
    app, output, target = Path(settings.app), settings.output, settings.target
    workload = load_workload(app) if workload is None else workload
    if output is not None and Path(output).exists() and not settings.force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    if target is not None:
        workload = msgspec.structs.replace(workload, target=target)
    folder = app.parent if target is None else Path()
    device = open_device(workload.target, folder=folder, settings=workload.machine, computes=True)
    store = MeasurementStore(workload.machine, fresh=not settings.cache)
    with pinned(device.host_core), flushed_denormals(), _no_collection():
        planner = _Planner(app, workload, device, store, notify, in_real_time=in_real_time)
        result = planner.plan(priority_ratio, background_ratio)
    if output is not None:
        write_record(output, result.timetable, force=settings.force)
    return result


def again(
    planned: Plan,
    *,
    workload: Workload,
    priority_ratio: float = 1.0,
    background_ratio: float = 1.0,
    ratios: Mapping[str, float] | None = None,
    explained: bool = True,
    keeps_units: bool = False,
    notify: Notify,
) -> Plan:
    """Plan on the same device for other conditions; what was measured is not measured again.

    Args:
        planned: the plan for the present ones.
        workload: with absolute paths.
        priority_ratio: see :func:`plan`.
        background_ratio: likewise.
        ratios: model -> times what else it would take: were it cheaper, for example.
        explained: say what binds and what would help where it does not fit.
        keeps_units: every layer stays on its unit, and every model in its role: a run may change from one plan to
            the other.
        notify: receives what is being done.
    """
    store = MeasurementStore(workload.machine)
    with pinned(planned.device.host_core), flushed_denormals(), _no_collection():
        planner = _Planner(planned.app, workload, planned.device, store, notify, in_real_time=planned.in_real_time)
        planner.kept = planned if keeps_units else None
        return planner.plan(priority_ratio, background_ratio, ratios, explained=explained)


def retimed(planned: Plan, workload: Workload, notify: Notify) -> Timetable:
    """The plan's own segments at other rates: nothing is compiled, and nothing measured.

    Args:
        planned: feasible.
        workload: with these rates.
        notify: receives what is being done.

    Returns:
        Feasible, or with the binding constraint named.
    """
    store = MeasurementStore(workload.machine)
    planner = _Planner(planned.app, workload, planned.device, store, notify, in_real_time=planned.in_real_time)
    return planner.retimed(planned)


class _Planner:
    """Wires, ranks, has it placed, and checks one workload."""

    def __init__(
        self,
        app: Path,
        workload: Workload,
        device: Device,
        store: MeasurementStore,
        notify: Notify,
        *,
        in_real_time: bool,
    ) -> None:
        self.app = app
        self.workload = workload
        self.device = device
        self.notify = notify
        self.warnings: list[str] = []
        self.in_real_time = in_real_time
        self.kept: Plan | None = None
        """Whose units and roles models keep."""
        self.units = usable_units(workload, device, app)
        host = (is_simulated(device) and device.computer) or device
        realtime = workload.schedule.preemption == "auto" and realtime_priority_permitted()
        measured = {
            unit.name: MeasuredCosts(host, unit.name, store, workload.window_ns, notify, realtime=realtime)
            for unit in host.target.units
        }
        first = next(iter(measured.values()))
        self.costs: Costs = first
        self.unit_costs: Mapping[str, Costs] = measured
        if is_modelled(device):
            self.costs = ModelledCosts(device, first.wake_ups() if in_real_time else (0,))
            self.unit_costs = dict.fromkeys(self.units, self.costs)

    def plan(
        self,
        priority_ratio: float,
        background_ratio: float,
        ratios: Mapping[str, float] | None = None,
        *,
        explained: bool = True,
    ) -> Plan:
        """The plan, feasible or not."""
        self.notify("loading models")
        wired = wire(self.workload, self.app)
        for model in wired:
            check_support(self.device.target, self.units, model)
            self.warnings += [f"{model.entry.name}: {note}" for note in model.model.defaulted_dims]
        placing = self._placing()
        tasks = [PlannedTask(model, self.device, home_unit(self.device.target, self.units, model)) for model in wired]
        tasks = self._ranked(tasks, placing.whole(tasks))
        for task in tasks:
            task.ratio = priority_ratio if task.priority else background_ratio
            task.ratio *= (ratios or {}).get(task.name, 1.0)
        beat = self._beat(tasks)
        tasks, timetable = self._placed(placing, tasks, beat)
        if not timetable.feasible:
            timetable = placing.explained(timetable, tasks, beat) if explained else timetable
        elif placing.compiles:
            self.notify("verifying the segments' outputs")
            timetable = compared(timetable, tasks)
        else:
            timetable = _not_compared(timetable)
        self.warnings += [*placing.notes, *_waiting(timetable, tasks), *placing.warnings, *self.costs.warnings]
        limits = {unit.name: round(unit.memory_mib * 2**20) for unit in self.device.target.units if unit.memory_mib}
        timetable = with_memory(timetable, tasks, self.device, limits, self.units[0])
        timetable = msgspec.structs.replace(
            timetable,
            units=tuple(unit for unit in self.units if unit in timetable.units),
            reasons=tuple(dict.fromkeys(self.warnings)),
        )
        if timetable.feasible:
            check_plan(timetable, tasks, beat, self.device, self.units, limits)
        return Plan(self.app, self.workload, self.device, self.costs, timetable, tuple(tasks), self.in_real_time)

    def retimed(self, planned: Plan) -> Timetable:
        """The segments of a plan, on the beat of this one's workload."""
        self.costs = planned.costs
        models = planned.timetable.models
        timetable = build_timetable(self._beat(planned.tasks).guarded(models), models)
        return msgspec.structs.replace(
            timetable, memory_bytes=planned.timetable.memory_bytes, reasons=planned.timetable.reasons
        )

    def _placed(
        self, placing: OneUnit | OnUnits, tasks: list[PlannedTask], beat: Beat
    ) -> tuple[list[PlannedTask], Timetable]:
        """Reserved where that fits; else a model into whose run frames of other streams come is cut.

        It runs beside background models then: its deadline is held by the bound on its results' age.
        """
        timetable = placing.place(tasks, beat)
        durations = {model.name: sum(s.duration_ns for s in model.segments) for model in timetable.models}
        relegated: list[PlannedTask] = []
        for task in sorted(tasks, key=lambda task: -durations[task.name]):
            if timetable.feasible or self.kept or beat.even or durations[task.name] <= beat.window_ns:
                break
            if not task.priority:
                continue
            task.priority = False
            relegated.append(task)
            ranked = sorted(tasks, key=lambda task: (not task.priority, -task.level))
            found = placing.place(ranked, beat)
            if found.feasible:
                self.warnings += [
                    f"{one.name} takes {durations[one.name] / 1e6:.3g} ms, and frames of other streams come meanwhile: "
                    f"it is cut and runs beside background models; a deadline of {held_ns / 1e6:.3g} ms holds by the "
                    "bound on its results' age"
                    for one in relegated
                    for held_ns in [beat.of(one.name).deadline_ns or 0]
                ]
                return ranked, found
        for task in relegated:
            task.priority = True
        return tasks, timetable

    def _placing(self) -> OneUnit | OnUnits:
        """On one unit and equal windows cuts are measured and compared; else models are placed."""
        schedule, quantile = self.workload.schedule, self.workload.schedule.quantile
        told = self._alike()
        pricing = {
            unit: pricing_for(self.workload, self.device, unit, self.unit_costs[unit], self.notify)
            for unit in dict.fromkeys(told.values())
        }
        if len(self.units) == 1 and len(self.workload.grid.offsets_ns) == 1:
            (unit,) = self.units
            return OneUnit(pricing[unit], unit, schedule.segmentation, self.workload.beat_hz, self.notify)
        target, window_ns = self.device.target, self.workload.window_ns
        kept = None
        if self.kept is not None:
            window_ns = min(window_ns, self.kept.workload.window_ns)  # what was priced in pieces is so again
            kept = {task.name: task.stages for task in self.kept.tasks}
        first = pricing[self.units[0]]
        prices: MeasuredUnits | ToldUnits
        if isinstance(first, MeasuredPricing):
            prices = MeasuredUnits(target, self.units, window_ns, first, self.unit_costs, quantile)
        else:
            by_unit: dict[str, ToldPricing] = {unit: pricing[same] for unit, same in told.items()}  # type: ignore[misc]
            costs = self.costs if first.compiles else None
            prices = ToldUnits(target, self.units, window_ns, by_unit, costs, quantile)
        return OnUnits(
            prices, self.device.stored_ratio, schedule.segmentation, self.workload.beat_hz, self.notify, kept
        )

    def _alike(self) -> dict[str, str]:
        """For each unit the first one that takes as long for everything: the cycle model knows that of some."""
        target, found = self.device.target, dict[str, str]()
        seen: list[tuple[Unit, str]] = []
        for name in self.units:
            unit = target.unit(name)
            told = is_modelled(self.device) and target.cost.source == "cycles" and self.workload.table is None
            kind = msgspec.structs.replace(unit, name="any", core=0, memory_mib=None) if told else unit
            found[name] = next((first for other, first in seen if other == kind), name)
            seen.append((kind, name))
        return found

    def _ranked(self, tasks: Sequence[PlannedTask], durations: Sequence[int]) -> list[PlannedTask]:
        """Levels and roles; priority models first, higher levels before lower ones."""
        for task, duration in zip(tasks, durations, strict=True):
            traits = Traits(
                macs=task.wired.model.macs,
                parameters=task.wired.model.parameters,
                window_ratio=duration / self.workload.window_ns,
                read_by=tuple(other.name for other in tasks if task.name in other.wired.after),
            )
            task.level, task.reasons = levels(task.wired.entry, traits)
        for task, priority in zip(tasks, roles([task.level for task in tasks], self.workload.schedule), strict=True):
            task.priority = priority
        return sorted(tasks, key=lambda task: (not task.priority, -task.level))

    def _beat(self, tasks: Sequence[PlannedTask]) -> Beat:
        """Windows, guard and demands."""
        schedule = self.workload.schedule
        late = self.costs.wake_ups()
        late_ns = int(np.quantile(late, _FLOOR_QUANTILE))
        mixed = len({task.priority for task in tasks}) == 2
        preemptive = mixed and schedule.preemption == "auto" and all(u.preemptive for u in self.device.target.units)
        if preemptive and not realtime_priority_permitted():
            preemptive = False
            self.warnings.append(
                "real-time priorities are not permitted here (see framefit doctor): background work yields by itself, "
                "in segments"
            )
        awake = max(late) > 0  # else nobody waits: virtual time
        guard_ns, excess_ratio = (
            max(late_ns, _LEAST_GUARD_NS) if awake else 0,
            self.costs.greatest_excess(schedule.quantile),
        )
        if schedule.guard_ms is not None:
            guard_ns, excess_ratio = round(schedule.guard_ms * 1e6), 0.0
        grid = self.workload.grid
        return Beat(
            window_ns=self.workload.window_ns,
            guard_ns=0 if preemptive else guard_ns,
            late_ns=late_ns + _DISPATCH_NS if awake else 0,
            position=schedule.priority_position,
            preemptive=preemptive,
            demands=demands_of(tasks, self.workload, self.app),
            excess_ratio=0.0 if preemptive else excess_ratio,
            lengths_ns=grid.lengths_ns if len(grid.offsets_ns) > 1 else (),
            links=host_links(self.device),
        )


def verified(planned: Plan, notify: Notify = silent) -> Plan:
    """A plan whose segments were launched once, and gave what the whole models give; itself where they were.

    Args:
        planned: feasible, or it is left alone.
        notify: receives what is being done.

    Raises:
        DeviceError: a model does not run here, or its segments do not give its outputs.
    """
    if all(model.max_relative_difference is not None for model in planned.timetable.models):
        return planned
    notify("verifying the segments' outputs")
    if is_simulated(planned.device):
        planned.device.computes = True
    with pinned(planned.device.host_core), flushed_denormals():
        return dataclasses.replace(planned, timetable=compared(planned.timetable, planned.tasks))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Graphs are made, not dropped: looking through all of them for garbage took a third of the time.

    What is dropped meanwhile, sessions and samples above all, is in no cycle: it goes at once.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _not_compared(timetable: Timetable) -> Timetable:
    """Nothing was launched: nobody knows whether the segments give what the whole models give."""
    models = tuple(
        msgspec.structs.replace(model, max_relative_difference=None) if len(model.segments) > 1 else model
        for model in timetable.models
    )
    return msgspec.structs.replace(timetable, models=models)


def _waiting(timetable: Timetable, tasks: Sequence[PlannedTask]) -> list[str]:
    """Where a background model will make a stream wait that a priority model reads too."""
    count, found = timetable.hyperperiod_windows, []
    for task in tasks:
        entry, streams = task.wired.entry, task.wired.in_step
        frames = {slot.frame for window in timetable.windows for slot in window.slots if slot.model == task.name}
        held = [other.name for other in tasks if other.priority and other.wired.in_step & streams]
        slow = len(frames) * entry.frames < count // entry.every
        if timetable.feasible and task.wired.when_full == "block" and not task.priority and held and slow:
            found.append(
                f"{task.name} is planned for {len(frames) * entry.frames} frames in {count} windows and makes its "
                f"stream wait (when_full): {', '.join(held)} may have no frame in the others"
            )
    return found
