"""From a workload to a checked timetable, on one unit or on several.

:func:`plan_request` reads from top to bottom: load the models, rank them, lay out the beat, place and cut them, verify
that segments compute what whole models do, and have the timetable checked by somebody else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.model import Model
from framefit.core.settings import Notify
from framefit.core.timetable import Timetable
from framefit.core.verdict import SERVED, verdict_of
from framefit.core.workload import Workload
from framefit.devices.device import Device, is_simulated
from framefit.devices.host import flushed_denormals, pinned, realtime_priority_permitted
from framefit.execution.compiled import layers_of, open_timetable, verify
from framefit.execution.streams import sample_rate_note
from framefit.execution.unit_support import check_support, home_unit, usable_units
from framefit.execution.wiring import WiredModel, wire
from framefit.planning.beat import Beat
from framefit.planning.candidates import served_share
from framefit.planning.durations import PricedDevice
from framefit.planning.levels import Traits, levels, roles
from framefit.planning.placing import Placing
from framefit.planning.plan import Plan
from framefit.planning.sporadic import with_events
from framefit.planning.task import SegmentedModel, check_plan, demands_of, host_links, with_memory
from framefit.planning.timetable import build_timetable, steady_launches

__all__ = ["PlanRequest", "plan_request", "retimed"]


_LEAST_GUARD_NS = 50_000
_FLOOR_QUANTILE = 0.95  # of wake-ups; beyond it lie stalls of the host that no guard covers
_DISPATCH_NS = 100_000  # from waking up to the first launch, frame handed over


@dataclass(frozen=True)
class PlanRequest:
    """What is to be planned.

    Attributes:
        app: the workload's file, for messages, and its folder for functions.
        workload: with absolute paths.
        in_real_time: a described device is to run beside this host's clock: the host's late wake-ups count. Without
            meaning for the CPU, where they always do.
        priority_ratio: for conditions other than the present ones: times what is measured priority models take then.
        background_ratio: and background models.
        ratios: model -> times what else it would take: were it cheaper, for example.
        explained: plan what would help where it does not fit; what binds is named in any case.
        whether_fits: what does not fit anyway is not improved: no replicas where they cannot serve everything.
        kept: every layer stays on its unit in this plan, and every model in its role: a run may change from one to
            the other.
    """

    app: Path
    workload: Workload
    in_real_time: bool = False
    priority_ratio: float = 1.0
    background_ratio: float = 1.0
    ratios: Mapping[str, float] = field(default_factory=dict)
    explained: bool = True
    whether_fits: bool = False
    kept: Plan | None = None


def plan_request(request: PlanRequest, priced: PricedDevice, notify: Notify) -> Plan:
    """Plan a workload.

    Args:
        request: what is to be planned.
        priced: the device, with what launches cost there.
        notify: receives what is being done.

    Raises:
        InputError: a file, key or model that cannot be used; an operator that no unit supports.
        DeviceError: a model does not run here, or its segments do not give its outputs.
    """
    device = priced.device
    core = pinned(device.host_core) if _computes(device) else contextlib.nullcontext()
    with core, flushed_denormals(), _no_collection():
        return _Planner(request, priced, notify).plan()


def _computes(device: Device) -> bool:
    """Whether launches give outputs."""
    return not is_simulated(device) or device.computer is not None


def retimed(planned: Plan, workload: Workload, priced: PricedDevice, notify: Notify) -> Timetable:
    """A plan's own segments at other rates: nothing is compiled, and nothing measured.

    Args:
        planned: feasible.
        workload: with these rates.
        priced: the device, with what launches cost there.
        notify: receives what is being done.

    Returns:
        Feasible, or with the binding constraint named.
    """
    request = PlanRequest(planned.app, workload, in_real_time=planned.in_real_time)
    return _Planner(request, priced, notify).retimed(planned.timetable, planned.wired)


class _Planner:
    """Wires, ranks, has it placed, and checks one workload."""

    def __init__(self, request: PlanRequest, priced: PricedDevice, notify: Notify) -> None:
        self.request, self.priced, self.notify = request, priced, notify
        self.app, self.workload, self.kept = request.app, request.workload, request.kept
        self.device = priced.device
        self.units = usable_units(self.workload, self.device, self.app)
        self.warnings: list[str] = []

    def plan(self) -> Plan:
        """The plan, feasible or not."""
        request = self.request
        self.notify("loading models")
        wired = wire(self.workload, self.app)
        for model in wired:
            check_support(self.device.target, self.units, model)
            notes = *model.model.defaulted_dims, *model.model.cleaned
            self.warnings += [f"{model.entry.name}: {note}" for note in notes]
        rates_hz = self.workload.rates_hz
        sounds = (sample_rate_note(stream, rates_hz.get(stream.name, 0.0)) for stream in self.workload.streams)
        self.warnings += [note for note in sounds if note is not None]
        units = {unit: self.priced.units[unit] for unit in self.units}
        placing = Placing(
            self.device, units, self.workload, self.notify, self.kept, least=SERVED if request.whether_fits else 0.0
        )
        tasks = [SegmentedModel(model, home_unit(self.device.target, self.units, model)) for model in wired]
        tasks = [self._in_conditions(task) for task in self._ranked(*placing.whole(tasks))]
        beat = self._beat(wired, [task.name for task in tasks if task.priority])
        tasks, events, beat = self._with_events(placing, tasks, beat)
        tasks, timetable = self._placed(placing, tasks, beat)
        if not timetable.feasible:
            explain = placing.explained if request.explained else placing.with_binding
            timetable = explain(timetable, tasks, beat)
        timetable, tasks = with_events(timetable, beat), [*tasks, *events]
        by_name = {model.entry.name: model for model in wired}
        wired = [by_name[task.name] for task in tasks]
        if timetable.feasible:
            timetable = _with_layers(timetable, tasks, self.device)
            compared = placing.compiles and _computes(self.device)
            timetable = self._verified(timetable, wired) if compared else _not_compared(timetable)
        self.warnings += [*placing.notes, *_waiting(timetable, tasks), *placing.warnings]
        limits = {unit.name: round(unit.memory_mib * 2**20) for unit in self.device.target.units if unit.memory_mib}
        timetable = with_memory(timetable, tasks, self.device, limits, self.units[0])
        timetable = msgspec.structs.replace(
            timetable,
            units=tuple(unit for unit in self.units if unit in timetable.units),
            reasons=tuple(dict.fromkeys(self.warnings)),
        )
        if timetable.feasible:
            check_plan(timetable, tasks, beat, self.device, self.units, limits)
        timetable = _with_served(timetable, beat, self.workload.beat_hz)
        return Plan(
            app=self.app,
            workload=self.workload,
            timetable=timetable,
            in_real_time=request.in_real_time,
            device=self.device,
            durations=self.priced.durations,
            wired=tuple(wired),
            compiler=self.priced.compiler,
        )

    def _with_events(
        self, placing: Placing, tasks: Sequence[SegmentedModel], beat: Beat
    ) -> tuple[list[SegmentedModel], list[SegmentedModel], Beat]:
        """The other models, the sporadic ones as they are to run, and the beat with these."""
        others = [task for task in tasks if not task.sporadic]
        if len(others) == len(tasks):
            return others, [], beat
        self.notify("placing sporadic models")
        priority = [task for task in others if task.priority]
        events, models = placing.place_events(priority, [task for task in tasks if task.sporadic], beat)
        return others, events, dataclasses.replace(beat, events=models)

    def _verified(self, timetable: Timetable, wired: Sequence[WiredModel]) -> Timetable:
        """Whose segments were launched once, and gave what the whole models give."""
        self.notify("verifying the segments' outputs")
        return verify(timetable, open_timetable(timetable, wired, self.workload, self.app, self.priced.compiler))

    def _in_conditions(self, task: SegmentedModel) -> SegmentedModel:
        """A model whose launches take as long as the request says."""
        first = task.priority or task.sporadic
        ratio = self.request.priority_ratio if first else self.request.background_ratio
        return dataclasses.replace(task, ratio=ratio * self.request.ratios.get(task.name, 1.0))

    def retimed(self, planned: Timetable, wired: Sequence[WiredModel]) -> Timetable:
        """The segments of a plan, on the beat of this one's workload."""
        beat = self._beat(wired, [model.name for model in planned.models if model.role == "priority"])
        models = [model for model in planned.models if model.role != "sporadic"]
        events = tuple(model for model in planned.models if model.role == "sporadic")
        beat = dataclasses.replace(beat, events=events, yields=planned.yields)
        timetable = with_events(build_timetable(beat.guarded(models), models), beat)
        timetable = _with_served(timetable, beat, self.workload.beat_hz)
        return msgspec.structs.replace(timetable, memory_bytes=planned.memory_bytes, reasons=planned.reasons)

    def _placed(
        self, placing: Placing, tasks: list[SegmentedModel], beat: Beat
    ) -> tuple[list[SegmentedModel], Timetable]:
        """Reserved where that fits; else a model into whose run frames of other streams come is cut.

        It runs beside background models then: its deadline is held by the bound on its results' age.
        """
        tasks, timetable = placing.place(tasks, beat)
        durations = {model.name: sum(s.duration_ns for s in model.segments) for model in timetable.models}
        changed, relegated = list(tasks), list[SegmentedModel]()
        for task in sorted(tasks, key=lambda task: -durations[task.name]):
            if timetable.feasible or self.kept or beat.even or durations[task.name] <= beat.window_ns:
                break
            if not task.priority:
                continue
            relegated.append(task)
            changed = [dataclasses.replace(one, priority=False) if one.name == task.name else one for one in changed]
            ranked, other = placing.place(self._in_order(changed), beat)
            if other.feasible:
                self.warnings += [
                    f"{one.name} takes {durations[one.name] / 1e6:.3g} ms, and frames of other streams come meanwhile: "
                    f"it is cut and runs beside background models; a deadline of {held_ns / 1e6:.3g} ms holds by the "
                    "bound on its results' age"
                    for one in relegated
                    for held_ns in [beat.of(one.name).deadline_ns or 0]
                ]
                return ranked, other
        return tasks, timetable

    def _ranked(self, tasks: Sequence[SegmentedModel], durations: Sequence[int]) -> list[SegmentedModel]:
        """Levels and roles; priority models first, higher levels before lower ones."""
        ranked = []
        for task, duration in zip(tasks, durations, strict=True):
            traits = Traits(
                macs=task.wired.model.macs,
                parameters=task.wired.model.parameters,
                window_ratio=duration / self.workload.window_ns,
                read_by=tuple(other.name for other in tasks if task.name in other.wired.after),
            )
            level, reasons = levels(task.wired.entry, traits)
            ranked.append(dataclasses.replace(task, level=level, reasons=reasons))
        periodic = [task for task in ranked if not task.sporadic]
        priority = roles([task.level for task in periodic], self.workload.schedule)
        periodic = [dataclasses.replace(task, priority=role) for task, role in zip(periodic, priority, strict=True)]
        return self._in_order([*periodic, *(task for task in ranked if task.sporadic)])

    def _in_order(self, tasks: Sequence[SegmentedModel]) -> list[SegmentedModel]:
        """Priority models first, higher levels before lower ones."""
        several = len(self.workload.grid.offsets_ns) > 1
        return sorted(tasks, key=lambda task: _rank(task, several))

    def _beat(self, wired: Sequence[WiredModel], priority: Collection[str]) -> Beat:
        """Windows, guard and demands."""
        schedule = self.workload.schedule
        late = self.priced.durations.wake_ups()
        late_ns = int(np.quantile(late, _FLOOR_QUANTILE))
        sporadic = sum(model.entry.min_distance_ms is not None for model in wired)
        mixed = 0 < len(priority) + sporadic < len(wired)
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
            self.priced.durations.greatest_excess(),
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
            demands=demands_of(wired, priority, self.workload, self.app),
            excess_ratio=0.0 if preemptive else excess_ratio,
            lengths_ns=grid.lengths_ns if len(grid.offsets_ns) > 1 else (),
            links=host_links(self.device),
        )


def _rank(task: SegmentedModel, by_name: bool) -> tuple[bool, int, float, str]:
    """Priority models first, higher levels before lower ones, of priority models what is due earlier first.

    Models that are alike so far stay in the order of the file, which is that of service; where streams have different
    rates they are in the order of their names, so that the file's decides nothing.
    """
    due_ms = task.wired.entry.deadline_ms or task.wired.entry.min_distance_ms
    late = math.inf if due_ms is None or not (task.priority or task.sporadic) else due_ms
    return not task.priority, -task.level, late, task.name if by_name or task.sporadic else ""


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


def _with_served(timetable: Timetable, beat: Beat, windows_hz: float) -> Timetable:
    """With what each model asks for and gets, and the verdict; priority and sporadic models get all or are late."""
    models = []
    fewer = timetable.feasible and served_share(timetable, beat) < SERVED
    steady = steady_launches(beat, timetable) if fewer else {}
    for model in timetable.models:
        frames = beat.of(model.name).frames
        launches = beat.arriving(model, timetable.models)
        asked_hz = launches * frames * windows_hz
        if model.role == "background":
            shown = timetable.launches_of(model.name) / max(timetable.hyperperiod_windows, 1)
            launches = max(shown, min(steady.get(model.name, 0.0), launches))
        served_hz = launches * frames * windows_hz if timetable.feasible else 0.0
        models.append(msgspec.structs.replace(model, asked_hz=asked_hz, served_hz=served_hz))
    verdict = verdict_of(models, feasible=timetable.feasible)
    return msgspec.structs.replace(timetable, models=tuple(models), verdict=verdict)


def _with_layers(timetable: Timetable, tasks: Sequence[SegmentedModel], device: Device) -> Timetable:
    """With what each model's segments are made of, and which of its layers are not the runtime's."""
    models = tuple(
        msgspec.structs.replace(model, layers=layers_of(task.model), kernels=_by_kernels(task.model, device))
        for model, task in zip(timetable.models, tasks, strict=True)
    )
    return msgspec.structs.replace(timetable, models=models)


def _by_kernels(model: Model, device: Device) -> tuple[str, ...]:
    """Names of the layers that kernels execute."""
    nodes = device.kernels(model)
    return tuple(layer.name for layer in model.layers if nodes.issuperset(layer.nodes)) if nodes else ()


def _not_compared(timetable: Timetable) -> Timetable:
    """Nothing was launched: nobody knows whether the segments give what the whole models give."""
    models = tuple(
        msgspec.structs.replace(model, max_relative_difference=None) if len(model.segments) > 1 else model
        for model in timetable.models
    )
    return msgspec.structs.replace(timetable, models=models)


def _waiting(timetable: Timetable, tasks: Sequence[SegmentedModel]) -> list[str]:
    """Where a background model will make a stream wait that a priority model reads too."""
    count, texts = timetable.hyperperiod_windows, []
    for task in tasks:
        entry, streams = task.wired.entry, task.wired.in_step
        frames = {slot.frame for window in timetable.windows for slot in window.slots if slot.model == task.name}
        held = [other.name for other in tasks if other.priority and other.wired.in_step & streams]
        slow = len(frames) * entry.frames < count // entry.spacing
        if timetable.feasible and task.wired.when_full == "block" and not task.priority and held and slow:
            texts.append(
                f"{task.name} is planned for {len(frames) * entry.frames} frames in {count} windows and makes its "
                f"stream wait (when_full): {', '.join(held)} may have no frame in the others"
            )
    return texts
