"""``framefit plan``: from an ``app.toml`` to a checked timetable."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.files import write_record
from framefit.core.target import resolve_target, target_file
from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Device
from framefit.devices.host import flushed_denormals, pinned, realtime_priority_permitted
from framefit.devices.npu import NpuDevice
from framefit.devices.npu.costs import layer_times
from framefit.devices.store import MeasurementStore
from framefit.errors import FramefitError, InputError, UnsupportedError
from framefit.runtime.costs import Costs, MeasuredCosts, ModelledCosts
from framefit.runtime.functions import load_function
from framefit.runtime.wiring import WiredModel, wire
from framefit.scheduling.check import check_timetable
from framefit.scheduling.levels import Traits, levels, roles
from framefit.scheduling.pieces import candidate_pieces, planned_quantile_ns
from framefit.scheduling.planned import planned_model
from framefit.scheduling.planner import Candidate, cut, fixes
from framefit.scheduling.timetable import Beat, Demand, build_timetable, segment_room
from framefit.workflows.cutting import CutsOnTrial, relearn
from framefit.workflows.pricing import MeasuredPricing, Pricing, pricing_for
from framefit.workflows.task import PlannedTask, compared

__all__ = ["Notify", "Plan", "PlannedTask", "plan", "silent", "verified"]

_MOST_PIECES = 64
_LEAST_GUARD_NS = 50_000
_FLOOR_QUANTILE = 0.95  # of wake-ups; beyond it lie stalls of the host that no guard covers
_DISPATCH_NS = 100_000  # from waking up to the first launch, frame handed over
_MOST_ATTEMPTS = 4  # at cutting anew where measured segments exceed the residual

Notify = Callable[[str], None]


def silent(message: str) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Plan:
    """A workload with its timetable; models are compiled when they are first launched.

    Attributes:
        app: its file.
        workload: with absolute paths.
        device: where everything is compiled.
        core: of this host, that executes or drives the device.
        costs: what launches cost there.
        timetable: the plan; see ``feasible``.
        tasks: in the order of ``timetable.models``.
        in_real_time: whether a described device's plan leaves time for this host's late wake-ups.
    """

    app: Path
    workload: Workload
    device: Device
    core: int
    costs: Costs
    timetable: Timetable
    tasks: tuple[PlannedTask, ...]
    in_real_time: bool


def plan(
    app: str | Path,
    *,
    target: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    fresh: bool = False,
    in_real_time: bool = False,
    notify: Notify = silent,
    workload: Workload | None = None,
) -> Plan:
    """Say whether and how a workload's models fit into every window.

    Args:
        app: an ``app.toml``.
        target: instead of the workload's: a built-in name, or the path of a ``target.toml``.
        output: write the timetable there.
        force: overwrite it.
        fresh: measure anew, whatever earlier plans measured.
        in_real_time: a described device is to run beside this host's clock: the host's late
            wake-ups count. Without meaning for the CPU, where they always do.
        notify: receives what is being done, for progress.
        workload: with absolute paths, instead of what the file says.

    Raises:
        InputError: a file, key or model that cannot be used; an operator that no unit supports.
        DeviceError: a model does not run here, or its segments do not give its outputs.

    Example:
        >>> framefit.plan("app.toml").timetable.feasible  # doctest: +SKIP
        True
    """
    workload = load_workload(app) if workload is None else workload
    if output is not None and Path(output).exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    if target is not None:
        workload = msgspec.structs.replace(workload, target=target)
    device, core = open_device(workload, Path(app).parent if target is None else Path())
    store = MeasurementStore(workload.providers, fresh=fresh)
    with pinned(core), flushed_denormals(), _no_collection():
        result = _Planner(Path(app), workload, device, core, store, notify, in_real_time=in_real_time).plan()
    if output is not None:
        write_record(output, result.timetable, force=force)
    return result


def open_device(workload: Workload, folder: Path) -> tuple[Device, int]:
    """The workload's device, and the core of this host that works for it.

    Args:
        workload: names the target, and the providers that compute.
        folder: of the app: where the path of a ``target.toml`` begins.

    Raises:
        InputError: no such target, core or provider.
        UnsupportedError: a described unit that can be interrupted.
    """
    from framefit.devices.ort import OrtDevice

    target = resolve_target(workload.target, folder)
    own_core = target.units[0].core if target.kind == "ort" and workload.target != "cpu" else None
    host = OrtDevice(workload.cores[0] if workload.cores else own_core, providers=workload.providers)
    if target.kind == "ort":
        return host, host.core
    for index, unit in enumerate(target.units):
        if unit.preemptive:
            raise UnsupportedError(
                f"$.units[{index}].preemptive = true is not supported yet: a described unit runs a segment to its end",
                where=target_file(workload.target, folder),
                remedy="leave the key out",
            )
    function = None
    if target.cost.function is not None:
        where = target_file(workload.target, folder)
        function = load_function(target.cost.function, where.parent, f"{where}: $.cost.function")
    return NpuDevice(target, VirtualClock(), layer_times(target, function), computer=host), host.core


class _Planner:
    """Measures, cuts, places and checks one workload."""

    def __init__(
        self,
        app: Path,
        workload: Workload,
        device: Device,
        core: int,
        store: MeasurementStore,
        notify: Notify,
        *,
        in_real_time: bool,
    ) -> None:
        self.app = app
        self.workload = workload
        self.device = device
        self.core = core
        self.unit = device.target.units[0].name
        self.quantile = workload.schedule.quantile
        self.mode = workload.schedule.segmentation
        self.notify = notify
        self.warnings: list[str] = []
        host = device.computer or device if isinstance(device, NpuDevice) else device
        measured = MeasuredCosts(host, host.target.units[0].name, store, workload.window_ns, notify)
        self.in_real_time = in_real_time
        self.pricing: Pricing
        self.costs: Costs = measured
        if isinstance(device, NpuDevice):
            self.costs = ModelledCosts(device, measured.wake_ups() if in_real_time else (0,))

    def plan(self) -> Plan:
        """The plan, feasible or not."""
        self.notify("loading models")
        wired = wire(self.workload, self.app)
        self._choose_unit(wired)
        for model in wired:
            self.warnings += [f"{model.entry.name}: {note}" for note in model.model.assumed]
        self.pricing = pricing_for(self.workload, self.device, self.unit, self.costs, self.notify)
        tasks = [PlannedTask(model, self.device, self.unit) for model in wired]
        priced = self.pricing.whole(tasks)
        tasks = self._ranked(tasks, [planned_quantile_ns(one.whole_ns, one.excess) for one in priced])
        beat = self._beat(tasks)
        timetable = self._place(tasks, beat)
        if not timetable.feasible:
            timetable = self._explained(timetable, tasks, beat)
        elif self.pricing.compiles:
            self.notify("verifying the segments' outputs")
            timetable = compared(timetable, tasks)
        else:
            timetable = _not_compared(timetable)
        self.warnings += [*_waiting(timetable, tasks), *self.pricing.warnings, *self.costs.warnings]
        limits = {unit.name: round(unit.memory_mib * 2**20) for unit in self.device.target.units if unit.memory_mib}
        timetable = self._within_memory(timetable, tasks, limits.get(self.unit))
        timetable = msgspec.structs.replace(timetable, reasons=tuple(self.warnings))
        if timetable.feasible:
            violations = check_timetable(
                timetable,
                deadlines_ns={name: d.deadline_ns for name, d in beat.demands.items() if d.deadline_ns is not None},
                every={name: demand.every for name, demand in beat.demands.items()},
                memory_limit_bytes=limits,
            )
            if violations:
                raise FramefitError(f"the timetable fails its check: {violations[0]}", remedy="report this as a bug")
        return Plan(
            self.app, self.workload, self.device, self.core, self.costs, timetable, tuple(tasks), self.in_real_time
        )

    def _choose_unit(self, wired: Sequence[WiredModel]) -> None:
        """The first unit that supports every operator; the others stay idle."""
        units, lacking = self.device.target.units, None
        for unit in units:
            lacking = next(
                ((m, layer, op) for m in wired for layer in m.model.layers for op in layer.op.split("+")
                 if not unit.supports(op)),
                None,
            )  # fmt: skip
            if lacking is None:
                self.unit = unit.name
                break
        if lacking is not None:
            model, layer, op = lacking
            raise InputError(
                f"no unit of target {self.device.target.name!r} supports all operators: unit {unit.name!r} lacks {op}",
                where=f"model {model.entry.name!r}, layer {layer.name!r}",
                remedy="choose another target, or replace the layer",
            )
        if len(units) > 1:
            self.warnings.append(f"one unit is planned, {self.unit!r}; the other {len(units) - 1} stay idle")

    def _within_memory(self, timetable: Timetable, tasks: Sequence[PlannedTask], limit: int | None) -> Timetable:
        """With the memory of all tensors, as the device stores them; infeasible where the unit has less."""
        stored = self.device.stored_ratio if isinstance(self.device, NpuDevice) else 1.0
        needed = math.ceil(sum(task.memory_bytes for task in tasks) * stored)
        timetable = msgspec.structs.replace(timetable, memory_bytes={self.unit: needed})
        if limit is None or needed <= limit or not timetable.feasible:
            return timetable
        return msgspec.structs.replace(
            timetable,
            feasible=False,
            binding_constraint=f"the models' tensors take {needed / 2**20:.2f} MiB on unit {self.unit!r}, which has "
            f"{limit / 2**20:.2f} MiB",
        )

    def _ranked(self, tasks: Sequence[PlannedTask], durations: Sequence[int]) -> list[PlannedTask]:
        """Levels and roles; priority models first, higher levels before lower ones."""
        for task, duration in zip(tasks, durations, strict=True):
            traits = Traits(
                macs=task.wired.model.macs,
                parameters=task.wired.model.parameters,
                window_ratio=duration / self.workload.window_ns,
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
            self.costs.greatest_excess(self.quantile),
        )
        if schedule.guard_ms is not None:
            guard_ns, excess_ratio = round(schedule.guard_ms * 1e6), 0.0
        demands = {}
        for task in tasks:
            entry = task.wired.entry
            demands[task.name] = Demand(
                deadline_ns=None if entry.deadline_ms is None else round(entry.deadline_ms * 1e6),
                queue=task.wired.depth,
                every=entry.every,
                frames=entry.frames,
                refuses=task.wired.when_full != "drop-oldest",
                waits=task.wired.waits,
            )
        return Beat(
            window_ns=self.workload.window_ns,
            guard_ns=0 if preemptive else guard_ns,
            late_ns=late_ns + _DISPATCH_NS if awake else 0,
            position=schedule.priority_position,
            preemptive=preemptive,
            demands=demands,
            excess_ratio=0.0 if preemptive else excess_ratio,
        )

    def _probe(self, task: PlannedTask, model: PlannedModel) -> None:
        """Price the pieces and boundaries of a model that has to be cut, or may be."""
        self.notify(f"pricing cuts of {task.name}")
        self.pricing.group(task)
        task.runs = candidate_pieces(task.model, _MOST_PIECES)
        task.pieces = self.pricing.pieces(
            task, model.duration_ns, model.duration_ns / max(model.segments[0].median_ns, 1)
        )

    def _place(self, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """Price, cut and place; price what came of it and cut anew, until it holds."""
        trials = CutsOnTrial(self.pricing, self.mode) if isinstance(self.pricing, MeasuredPricing) else None
        for attempt in range(_MOST_ATTEMPTS):
            models = self._priced_models(tasks)
            settled = beat.guarded(models)
            timetable = build_timetable(settled, models)
            first = [model for model in models if model.role == "priority"]
            room = segment_room(settled, first)
            for task, model in zip(tasks, models, strict=True):
                task.uncut = task.uncut if task.bounds else model
            if segment_room(beat, first) <= 0:  # shorter segments, and so a smaller guard, would not help
                break
            candidates, undecided = [], []
            longest = {model.name: max(segment.duration_ns for segment in model.segments) for model in models}
            again = trials is not None and any(task.bounds and longest[task.name] > room for task in tasks)
            for task, model in zip(tasks, models, strict=True):
                whole = not task.bounds
                too_long = not beat.preemptive and (longest[task.name] > room or (again and not whole))
                # With a guard that follows from the segments, shorter ones may pay everywhere.
                freely = not attempt and beat.excess_ratio > 0
                decide = too_long or (whole and (task.wired.entry.always_split or freely))
                decide = decide and not task.priority
                if not decide:
                    candidates.append(Candidate(model))
                    continue
                if task.pieces is None:
                    self._probe(task, model)
                elif not whole:
                    relearn(task, model)
                candidates.append(Candidate(task.uncut or model, task.pieces, task.wired.entry.always_split))
                undecided.append(task)
            if not undecided:
                break
            if trials is not None:
                trials.correct(undecided, models)
                runs = trials.runs(candidates, undecided, beat)
            else:
                runs = cut(candidates, beat, self.mode).runs
            changed = False
            for task in undecided:
                chosen = runs.get(task.name)
                bounds = tuple((task.runs[first][0], task.runs[last][1]) for first, last in chosen or ())
                if len(bounds) > 1 and bounds != task.bounds:
                    task.bounds, changed = bounds, True
            if not changed:
                break
        if trials is not None and trials.note is not None:
            self.warnings.append(trials.note)
        return timetable

    def _priced_models(self, tasks: Sequence[PlannedTask]) -> list[PlannedModel]:
        """All models as they are to run."""
        models = []
        for task, priced in zip(tasks, self.pricing.segments(tasks), strict=True):
            count = len(task.segments)
            reasons = list(task.reasons)
            if not task.priority:
                reasons.append(
                    f"{planned_quantile_ns(priced.whole_ns, priced.excess) / 1e6:.2f} ms whole: "
                    + ("runs whole" if count == 1 else f"cut into {count} segments ({self.mode})")
                )
            models.append(
                planned_model(
                    task.name,
                    task.model,
                    task.segments,
                    self.unit,
                    priority=task.priority,
                    level=task.level,
                    reasons=reasons,
                    samples_ns=priced.segments_ns,
                    whole_ns=priced.whole_ns,
                    excess=priced.excess,
                    layer_names=task.layer_names,
                )
            )
        return models

    def _explained(self, timetable: Timetable, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """What binds, by layer where a layer does, and changes that would help."""
        priority = [model for model in timetable.models if model.role == "priority"]
        binding = timetable.binding_constraint
        for task in tasks:
            if task.pieces is None:
                continue
            longest = int(task.pieces.quantile_ns.argmax())
            room = segment_room(beat.covering(int(task.pieces.quantile_ns[longest])), priority)
            if segment_room(beat, priority) <= 0 or int(task.pieces.quantile_ns[longest]) <= room:
                continue
            first, last = task.runs[longest]
            known = task.layer_names or [layer.name for layer in task.model.layers]
            names = dict.fromkeys((known[first], known[last]))
            binding = (
                f"{'layer' if first == last else 'layers'} {' .. '.join(names)} of {task.name!r} take "
                f"{task.pieces.quantile_ns[longest] / 1e6:.2f} ms in one piece; the residual less guard is "
                f"{room / 1e6:.2f} ms"
            )
            break
        candidates = [
            Candidate(task.uncut or model, task.pieces, task.wired.entry.always_split)
            for task, model in zip(tasks, timetable.models, strict=True)
        ]
        self.notify("looking for changes that would help")
        return msgspec.structs.replace(
            timetable,
            binding_constraint=binding,
            fixes=fixes(candidates, beat, self.workload.beat_hz, self.mode),
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
    if isinstance(planned.device, NpuDevice):
        planned.device.computes = True
    with pinned(planned.core), flushed_denormals():
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
