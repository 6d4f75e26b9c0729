"""``framefit plan``: from an ``app.toml`` to a checked timetable, by measuring."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.files import write_record
from framefit.core.model import Model
from framefit.core.target import resolve_target, target_file
from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Device
from framefit.devices.host import flushed_denormals, pinned, realtime_priority_permitted
from framefit.devices.measure import Measurement
from framefit.devices.npu import NpuDevice
from framefit.devices.npu.costs import layer_times
from framefit.devices.store import MeasurementStore
from framefit.errors import DeviceError, FramefitError, InputError, UnsupportedError
from framefit.runtime.costs import Costs, Launch, MeasuredCosts, ModelledCosts
from framefit.runtime.execution import Execution, greatest_difference
from framefit.runtime.functions import load_function
from framefit.runtime.wiring import WiredModel, wire
from framefit.scheduling.check import check_timetable
from framefit.scheduling.levels import Traits, levels, roles
from framefit.scheduling.partition import MOST_OVERHEAD_RATIO, Pieces
from framefit.scheduling.pieces import candidate_pieces, paired, planned_quantile_ns, pooled_excess, priced_pieces
from framefit.scheduling.planned import planned_model
from framefit.scheduling.planner import Candidate, cut, fixes
from framefit.scheduling.timetable import Beat, Demand, build_timetable, segment_room

__all__ = ["Notify", "Plan", "PlannedTask", "plan", "silent"]

_MOST_PIECES = 64
_LEAST_GUARD_NS = 50_000
_FLOOR_QUANTILE = 0.95  # of wake-ups; beyond it lie stalls of the host that no guard covers
_DISPATCH_NS = 100_000  # from waking up to the first launch, frame handed over
_MOST_ATTEMPTS = 4  # at cutting anew where measured segments exceed the residual
_TOLERANCE = 1e-4
_NOISY = 2.0  # quantile over median

Notify = Callable[[str], None]


def silent(message: str) -> None:
    """Report no progress."""


@dataclass
class PlannedTask:
    """A model on its way from a file to launches.

    Attributes:
        wired: entry, model and sources.
        whole: the uncut model, compiled.
        execution: as it is to run; ``whole`` itself where it is not cut.
        priority: whether windows are reserved for it.
        level: 0 to 10, for these
        reasons.
        runs: first and last layer of each piece between candidate cuts, and
        pieces: what they cost; empty and None where the model fits whole.
        uncut: the whole model as measured.
    """

    wired: WiredModel
    whole: Execution
    execution: Execution
    priority: bool = False
    level: int = 0
    reasons: tuple[str, ...] = ()
    runs: list[tuple[int, int]] = field(default_factory=list)
    pieces: Pieces | None = None
    uncut: PlannedModel | None = None

    @property
    def name(self) -> str:
        """The model's name in the workload."""
        return self.wired.entry.name


@dataclass(frozen=True)
class Plan:
    """A workload with its timetable, compiled.

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

    Raises:
        InputError: a file, key or model that cannot be used; an operator that no unit supports.
        DeviceError: a model does not run here, or its segments do not give its outputs.

    Example:
        >>> framefit.plan("app.toml").timetable.feasible  # doctest: +SKIP
        True
    """
    workload = load_workload(app)
    if output is not None and Path(output).exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    if target is not None:
        workload = msgspec.structs.replace(workload, target=target)
    device, core = open_device(workload, Path(app).parent if target is None else Path())
    store = MeasurementStore(workload.providers, fresh=fresh)
    with pinned(core), flushed_denormals():
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
        self.costs: Costs = measured
        if isinstance(device, NpuDevice):
            self.costs = ModelledCosts(device, measured.wake_ups() if in_real_time else (0,))

    def plan(self) -> Plan:
        """The plan, feasible or not."""
        self.notify("loading models")
        wired = wire(self.workload, self.app)
        self._choose_unit(wired)
        self.notify("compiling whole models")
        tasks = []
        for model in wired:
            self.warnings += [f"{model.entry.name}: {note}" for note in model.model.assumed]
            whole = self._execution(model, [(0, len(model.model.layers) - 1)])
            tasks.append(PlannedTask(model, whole, whole))
        self.notify("pricing whole models")
        measured = self.costs.probe([(task.whole, 0) for task in tasks])
        excess = self._excess(measured)
        durations = [planned_quantile_ns(m.samples_ns, excess) for m in measured]
        tasks = self._ranked(tasks, durations)
        beat = self._beat(tasks)
        timetable = self._place(tasks, beat)
        timetable = self._verified(timetable, tasks) if timetable.feasible else self._explained(timetable, tasks, beat)
        self.warnings += _waiting(timetable, tasks)
        self.warnings += self.costs.warnings
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
        needed = math.ceil(sum(task.execution.memory_bytes for task in tasks) * stored)
        timetable = msgspec.structs.replace(timetable, memory_bytes={self.unit: needed})
        if limit is None or needed <= limit or not timetable.feasible:
            return timetable
        return msgspec.structs.replace(
            timetable,
            feasible=False,
            binding_constraint=f"the models' tensors take {needed / 2**20:.2f} MiB on unit {self.unit!r}, which has "
            f"{limit / 2**20:.2f} MiB",
        )

    def _excess(self, found: Sequence[Measurement]) -> float:
        """Quantile over median: as the device tells, or from all samples together."""
        return self.costs.excess(self.quantile) or pooled_excess([m.samples_ns for m in found], self.quantile)

    def _execution(self, wired: WiredModel, bounds: Sequence[tuple[int, int]]) -> Execution:
        return wired.execution(bounds, self.device, self.unit)

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

    def _probe(self, task: PlannedTask, duration_ns: int, excess: float) -> None:
        """Price the pieces and boundaries of a model that has to be cut, or may be."""
        self.notify(f"pricing cuts of {task.name}")
        model = task.wired.model.grouped(self.device.fusions(task.wired.model))
        task.wired = dataclasses.replace(task.wired, model=model)
        task.runs = candidate_pieces(model, _MOST_PIECES)
        if isinstance(self.device, NpuDevice):
            task.pieces = self._told_pieces(self.device, model, task.runs, excess)
            return
        assert isinstance(self.costs, MeasuredCosts)
        known = self.costs.medians({"model": model.digest, "runs": str(task.runs)}, lambda: self._ways_to_cut(task))
        *cost, whole_ns = known
        pieces = priced_pieces(cost[: len(task.runs)], cost[len(task.runs) :], whole_ns, excess)
        task.pieces = pieces.scaled(np.full(len(pieces), duration_ns / excess / max(whole_ns, 1)))

    def _told_pieces(self, device: NpuDevice, model: Model, runs: Sequence[tuple[int, int]], excess: float) -> Pieces:
        """Layers' times, the host link at both ends, and a launch more at each boundary."""
        layers = np.asarray(device.layers_ns(model, self.unit), np.int64)
        median = np.asarray([layers[first : last + 1].sum() for first, last in runs], np.int64) + device.launch_ns
        load, store = device.link_ns(model)
        median[0] += load - device.launch_ns
        median[-1] += store
        boundaries = np.full(len(runs) - 1, device.launch_ns, np.int64)
        return Pieces(median, np.ceil(median * excess).astype(np.int64), boundaries)

    def _ways_to_cut(self, task: PlannedTask) -> list[Launch]:
        """All pieces, all adjacent pairs, and the whole model."""
        single = self._execution(task.wired, task.runs)
        launches = [(single, index) for index in range(len(task.runs))]
        # Pieces 0+1, 2+3, ... and 1+2, 3+4, ... joined: two more ways to cut the model.
        joined = [self._execution(task.wired, paired(task.runs, start)) for start in (0, 1)]
        launches += [(joined[left % 2], (left + left % 2) // 2) for left in range(len(task.runs) - 1)]
        return [*launches, (task.whole, 0)]

    def _place(self, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """Price, cut and place; price what came of it and cut anew, until it holds."""
        for attempt in range(_MOST_ATTEMPTS):
            models = self._priced_models(tasks)
            settled = beat.guarded(models)
            timetable = build_timetable(settled, models)
            first = [model for model in models if model.role == "priority"]
            room = segment_room(settled, first)
            for task, model in zip(tasks, models, strict=True):
                task.uncut = model if task.execution is task.whole else task.uncut
            if segment_room(beat, first) <= 0:  # shorter segments, and so a smaller guard, would not help
                break
            candidates, undecided = [], []
            for task, model in zip(tasks, models, strict=True):
                whole = task.execution is task.whole
                too_long = not beat.preemptive and max(segment.duration_ns for segment in model.segments) > room
                # With a guard that follows from the segments, shorter ones may pay everywhere.
                freely = not attempt and beat.excess_ratio > 0
                # Boundaries may turn out dearer than they were priced.
                dear = len(model.segments) > 2 and model.segmentation_overhead_ratio > MOST_OVERHEAD_RATIO
                dear = dear and not self.costs.known and attempt < _MOST_ATTEMPTS - 1
                decide = too_long or dear or (whole and (task.wired.entry.always_split or freely))
                decide = decide and not task.priority
                if not decide:
                    candidates.append(Candidate(model))
                    continue
                if task.pieces is None:
                    self._probe(task, model.duration_ns, model.duration_ns / max(model.segments[0].median_ns, 1))
                elif not whole:
                    _correct(task, model)
                    if dear:
                        _dearer(task, model)
                candidates.append(Candidate(task.uncut or model, task.pieces, task.wired.entry.always_split))
                undecided.append(task)
            runs = cut(candidates, beat, self.mode).runs
            changed = False
            for task in undecided:
                chosen = runs.get(task.name)
                bounds = tuple((task.runs[first][0], task.runs[last][1]) for first, last in chosen or ())
                if len(bounds) > 1 and bounds != task.execution.bounds:
                    task.execution = self._execution(task.wired, bounds)
                    changed = True
            if not changed:
                break
        return timetable

    def _priced_models(self, tasks: Sequence[PlannedTask]) -> list[PlannedModel]:
        """All models as they are to run, measured in turn as they will run."""
        launches = [(task.execution, index) for task in tasks for index in range(len(task.execution.parts))]
        launches += [(task.whole, 0) for task in tasks if task.execution is not task.whole]
        if not self.costs.known:
            self.notify(f"measuring {len(launches)} segments")
        found = self.costs.final(launches)
        excess = self._excess(found)
        if excess > _NOISY:
            self.warnings.append(
                f"durations vary a lot here: the {self.quantile:g} quantile is {excess:.1f} x the median; stop other "
                "programs, see framefit doctor, and plan again with --fresh"
            )
        samples = {(id(e), index): m.samples_ns for (e, index), m in zip(launches, found, strict=True)}
        models = []
        for task in tasks:
            count = len(task.execution.parts)
            whole = samples[id(task.whole), 0]
            reasons = list(task.reasons)
            if not task.priority:
                reasons.append(
                    f"{planned_quantile_ns(whole, excess) / 1e6:.2f} ms whole: "
                    + ("runs whole" if count == 1 else f"cut into {count} segments ({self.mode})")
                )
            models.append(
                planned_model(
                    task.name,
                    task.execution.model,
                    task.execution.bounds,
                    self.unit,
                    priority=task.priority,
                    level=task.level,
                    reasons=reasons,
                    samples_ns=[samples[id(task.execution), index] for index in range(count)],
                    whole_ns=whole,
                    excess=excess,
                )
            )
        return models

    def _explained(self, timetable: Timetable, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """What binds, by layer where a layer does, and changes that would help."""
        room = segment_room(beat, [model for model in timetable.models if model.role == "priority"])
        binding = timetable.binding_constraint
        for task in tasks:
            if task.pieces is None or room <= 0 or int(task.pieces.quantile_ns.max()) <= room:
                continue
            longest = int(task.pieces.quantile_ns.argmax())
            first, last = task.runs[longest]
            names = dict.fromkeys((task.wired.model.layers[first].name, task.wired.model.layers[last].name))
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

    def _verified(self, timetable: Timetable, tasks: Sequence[PlannedTask]) -> Timetable:
        """The joined segments against the whole model, two frames in a row (state included)."""
        self.notify("verifying the segments' outputs")
        models = []
        for task, planned in zip(tasks, timetable.models, strict=True):
            cut, whole, difference = task.execution, task.whole, 0.0
            cut.reset()
            if cut is not whole:
                whole.reset()
                random = np.random.default_rng(0)
                for _ in range(2):
                    frame = cut.example(random)
                    difference = max(difference, greatest_difference(cut.run(frame), whole.run(frame)))
                cut.reset()
                whole.reset()
            if not difference <= _TOLERANCE:
                raise DeviceError(
                    f"the joined segments differ from the whole model by {difference:.2g} (relative)",
                    where=task.name,
                    remedy="report this model as a bug",
                )
            models.append(msgspec.structs.replace(planned, max_relative_difference=difference))
        return msgspec.structs.replace(timetable, models=tuple(models))


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


def _dearer(task: PlannedTask, model: PlannedModel) -> None:
    """Raise all boundaries by what those that were cut cost more than they were priced."""
    assert task.pieces is not None
    assert task.uncut is not None
    last = {run[1]: index for index, run in enumerate(task.runs)}
    cuts = [last[end] for _, end in task.execution.bounds[:-1]]
    cost = sum(segment.median_ns for segment in model.segments) - task.uncut.segments[0].median_ns
    task.pieces = task.pieces.dearer(max(cost - int(task.pieces.boundary_ns[cuts].sum()), 0) / len(cuts))


def _correct(task: PlannedTask, model: PlannedModel) -> None:
    """Scale the pieces' costs to what the segments made of them really took."""
    assert task.pieces is not None
    estimate = task.pieces.joined()[1]
    factor = np.ones(len(task.pieces))
    first_run = {run[0]: index for index, run in enumerate(task.runs)}
    last_run = {run[1]: index for index, run in enumerate(task.runs)}
    for (first, last), segment in zip(task.execution.bounds, model.segments, strict=True):
        left, right = first_run[first], last_run[last]
        factor[left : right + 1] = segment.duration_ns / max(estimate[left, right], 1)
    task.pieces = task.pieces.scaled(factor)
