"""``framefit plan``: from an ``app.toml`` to a checked timetable, by measuring."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.files import write_record
from framefit.core.latency_table import Value
from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.device import Device
from framefit.devices.host import flushed_denormals, pinned, realtime_priority_permitted
from framefit.devices.measure import Measurement, measure, measure_floor
from framefit.devices.store import MeasurementStore
from framefit.errors import DeviceError, FramefitError, InputError, UnsupportedError
from framefit.runtime.execution import Execution, greatest_difference
from framefit.runtime.wiring import WiredModel, streams_of, wire
from framefit.scheduling.check import check_timetable
from framefit.scheduling.levels import Traits, levels, roles
from framefit.scheduling.partition import Pieces, partition
from framefit.scheduling.pieces import candidate_pieces, paired, planned_quantile_ns, pooled_excess, priced_pieces
from framefit.scheduling.planned import planned_model
from framefit.scheduling.planner import Candidate, fixes, split_limit
from framefit.scheduling.timetable import Beat, Demand, build_timetable, segment_room

__all__ = ["Notify", "Plan", "PlannedTask", "plan", "silent"]

_MOST_PIECES = 64
_LEAST_GUARD_NS = 50_000
_FLOOR_QUANTILE = 0.95  # of wake-ups; beyond it lie stalls of the host that no guard covers
_DISPATCH_NS = 100_000  # from waking up to the first launch, frame handed over
_FLOOR_WAKE_UPS, _FLOOR_PERIOD_NS = 100, 5_000_000
_PROBE_NS, _PROBE_ROUNDS = 2_000_000_000, 12  # measuring pieces
_FINAL_NS, _FINAL_ROUNDS = 4_000_000_000, 25  # measuring the segments that were chosen
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
        timetable: the plan; see ``feasible``.
        tasks: in the order of ``timetable.models``.
    """

    app: Path
    workload: Workload
    device: Device
    timetable: Timetable
    tasks: tuple[PlannedTask, ...]


def plan(
    app: str | Path,
    *,
    output: str | Path | None = None,
    force: bool = False,
    fresh: bool = False,
    notify: Notify = silent,
) -> Plan:
    """Say whether and how a workload's models fit into every window.

    Args:
        app: an ``app.toml``.
        output: write the timetable there.
        force: overwrite it.
        fresh: measure anew, whatever earlier plans measured.
        notify: receives what is being done, for progress.

    Raises:
        InputError: a file, key or model that cannot be used.
        DeviceError: a model does not run here, or its segments do not give its outputs.

    Example:
        >>> framefit.plan("app.toml").timetable.feasible  # doctest: +SKIP
        True
    """
    from framefit.devices.ort import OrtDevice

    workload = load_workload(app)
    if workload.target != "cpu":
        raise UnsupportedError(f"$.target = {workload.target!r} is not supported yet", where=app, remedy='use "cpu"')
    if output is not None and Path(output).exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    device = OrtDevice(workload.cores[0] if workload.cores else None, providers=workload.providers)
    store = MeasurementStore(workload.providers, fresh=fresh)
    with pinned(device.core), flushed_denormals():
        result = _Planner(Path(app), workload, device, store, notify).plan()
    if output is not None:
        write_record(output, result.timetable, force=force)
    return result


class _Planner:
    """Measures, cuts, places and checks one workload."""

    def __init__(self, app: Path, workload: Workload, device: Device, store: MeasurementStore, notify: Notify) -> None:
        self.app = app
        self.workload = workload
        self.device = device
        self.unit = device.target.units[0].name
        self.quantile = workload.schedule.quantile
        self.mode = workload.schedule.segmentation
        self.store = store
        self.notify = notify
        self.warnings: list[str] = []

    def plan(self) -> Plan:
        """The plan, feasible or not."""
        self.notify("loading models")
        wired = wire(self.workload, self.app)
        self.notify("compiling whole models")
        tasks = []
        for model in wired:
            self.warnings += [f"{model.entry.name}: {note}" for note in model.model.assumed]
            whole = self._execution(model, [(0, len(model.model.layers) - 1)])
            tasks.append(PlannedTask(model, whole, whole))
        self.notify("measuring whole models")
        measured = self._measure([(task.whole, 0) for task in tasks], _PROBE_NS, _PROBE_ROUNDS)
        excess = pooled_excess([m.samples_ns for m in measured], self.quantile)
        durations = [planned_quantile_ns(m.samples_ns, excess) for m in measured]
        tasks = self._ranked(tasks, durations)
        beat = self._beat(tasks)
        timetable = self._place(tasks, beat)
        complete = self._verified if timetable.feasible else self._explained
        timetable = complete(timetable, tasks, beat)
        memory = {self.unit: sum(task.execution.memory_bytes for task in tasks)}
        timetable = msgspec.structs.replace(timetable, memory_bytes=memory, reasons=tuple(self.warnings))
        if timetable.feasible:
            violations = check_timetable(
                timetable,
                deadlines_ns={name: d.deadline_ns for name, d in beat.demands.items() if d.deadline_ns is not None},
                every={name: demand.every for name, demand in beat.demands.items()},
            )
            if violations:
                raise FramefitError(f"the timetable fails its check: {violations[0]}", remedy="report this as a bug")
        return Plan(self.app, self.workload, self.device, timetable, tuple(tasks))

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
        late = self._floor()
        mixed = len({task.priority for task in tasks}) == 2
        preemptive = mixed and schedule.preemption == "auto" and all(u.preemptive for u in self.device.target.units)
        if preemptive and not realtime_priority_permitted():
            preemptive = False
            self.warnings.append(
                "real-time priorities are not permitted here (see framefit doctor): background work yields by itself, "
                "in segments"
            )
        guard_ns = max(int(np.quantile(late, _FLOOR_QUANTILE)), _LEAST_GUARD_NS)
        if schedule.guard_ms is not None:
            guard_ns = round(schedule.guard_ms * 1e6)
        streams = {stream.name: stream for stream in streams_of(self.workload)}
        demands = {}
        for task in tasks:
            entry = task.wired.entry
            read = [streams[source] for source in task.wired.sources.values()]
            demands[task.name] = Demand(
                deadline_ns=None if entry.deadline_ms is None else round(entry.deadline_ms * 1e6),
                queue=max(min((stream.queue for stream in read), default=1), entry.frames),
                every=entry.every,
                frames=entry.frames,
                refuses=any(stream.when_full != "drop-oldest" for stream in read),
            )
        return Beat(
            window_ns=self.workload.window_ns,
            guard_ns=0 if preemptive else guard_ns,
            late_ns=int(np.quantile(late, _FLOOR_QUANTILE)) + _DISPATCH_NS,
            position=schedule.priority_position,
            preemptive=preemptive,
            demands=demands,
        )

    def _floor(self) -> tuple[int, ...]:
        """How late the idle machine wakes up, in nanoseconds."""
        known = self.store.find_numbers("wake-up", {"period_ns": _FLOOR_PERIOD_NS}, self.unit)
        if known is not None:
            return known
        self.notify("measuring the machine's floor")
        late = tuple(measure_floor(self.device.clock, _FLOOR_PERIOD_NS, _FLOOR_WAKE_UPS).tolist())
        self.store.add_numbers("wake-up", {"period_ns": _FLOOR_PERIOD_NS}, self.unit, late)
        return late

    def _measure(
        self, launches: Sequence[tuple[Execution, int]], budget_ns: int, least_rounds: int, *, on_beat: bool = True
    ) -> list[Measurement]:
        """Durations of segments: from the store where it has all of them, else measured in turn.

        On the beat, each round begins after a sleep as in a run; else back to back.
        """
        beside = hashlib.sha256("".join(sorted(e.parts[i].digest for e, i in launches)).encode()).hexdigest()[:16]
        known = [self.store.find(e.parts[index], self.unit, beside, least_rounds) for e, index in launches]
        found = [measurement for measurement in known if measurement is not None]
        if len(found) == len(launches):
            return found
        random = np.random.default_rng(0)
        for execution in {id(execution): execution for execution, _ in launches}.values():
            execution.run(execution.example(random))  # real values between the segments
        calls = [lambda e=execution, i=index: e.launch(i) for execution, index in launches]
        found = measure(
            calls,
            budget_ns=budget_ns,
            least_rounds=least_rounds,
            clock=self.device.clock,
            period_ns=self.workload.window_ns if on_beat else 0,
        )
        self.store.add(beside, [(e.parts[index], self.unit, m) for (e, index), m in zip(launches, found, strict=True)])
        if sum(not measurement.stable for measurement in found) > len(found) / 2:
            self.warnings.append("the machine's speed drifted while it was measured: see framefit doctor, plan again")
        return found

    def _probe(self, task: PlannedTask, duration_ns: int, excess: float) -> None:
        """Price the pieces and boundaries of a model that has to be cut."""
        self.notify(f"pricing cuts of {task.name}")
        model = task.wired.model.grouped(self.device.fusions(task.wired.model))
        task.wired = dataclasses.replace(task.wired, model=model)
        task.runs = candidate_pieces(model, _MOST_PIECES)
        key: dict[str, Value] = {"model": model.digest, "runs": str(task.runs)}
        known = self.store.find_numbers("pieces", key, self.unit)
        *cost, whole_ns = known if known is not None else self._price(task)
        if known is None:
            self.store.add_numbers("pieces", key, self.unit, [*cost, whole_ns])
        pieces = priced_pieces(cost[: len(task.runs)], cost[len(task.runs) :], whole_ns, excess)
        task.pieces = pieces.scaled(np.full(len(pieces), duration_ns / excess / max(whole_ns, 1)))

    def _price(self, task: PlannedTask) -> list[int]:
        """Medians of all pieces, of all adjacent pairs, and of the whole model, measured in turn."""
        single = self._execution(task.wired, task.runs)
        launches = [(single, index) for index in range(len(task.runs))]
        # Pieces 0+1, 2+3, ... and 1+2, 3+4, ... joined: two more ways to cut the model.
        joined = [self._execution(task.wired, paired(task.runs, start)) for start in (0, 1)]
        launches += [(joined[left % 2], (left + left % 2) // 2) for left in range(len(task.runs) - 1)]
        launches.append((task.whole, 0))
        return [m.median_ns for m in self._measure(launches, _PROBE_NS, _PROBE_ROUNDS, on_beat=False)]

    def _place(self, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """Measure, place; cut what is too long and measure what came of it, until it holds."""
        for _ in range(_MOST_ATTEMPTS):
            models = self._measured_models(tasks)
            timetable = build_timetable(beat, models)
            room = segment_room(beat, [model for model in models if model.role == "priority"])
            changed = False
            for task, model in zip(tasks, models, strict=True):
                task.uncut = model if task.execution is task.whole else task.uncut
                if task.priority or room <= 0:
                    continue
                too_long = not beat.preemptive and max(segment.duration_ns for segment in model.segments) > room
                cut = task.execution is not task.whole
                if not too_long and (cut or not task.wired.entry.always_split):
                    continue
                if task.pieces is None:
                    self._probe(task, model.duration_ns, model.duration_ns / max(model.segments[0].median_ns, 1))
                elif cut:
                    _correct(task, model)
                assert task.pieces is not None
                # Asked to be split, though it fits: into two at least.
                limit = split_limit(task.pieces, room, fits=not too_long)
                chosen = partition(task.pieces, room + beat.guard_ns, limit, self.mode)
                if chosen is not None:
                    bounds = [(task.runs[first][0], task.runs[last][1]) for first, last in chosen]
                    if len(bounds) > 1 and tuple(bounds) != task.execution.bounds:
                        task.execution = self._execution(task.wired, bounds)
                        changed = True
            if not changed:
                break
        return timetable

    def _measured_models(self, tasks: Sequence[PlannedTask]) -> list[PlannedModel]:
        """All models as they are to run, measured in turn as they will run."""
        launches = [(task.execution, index) for task in tasks for index in range(len(task.execution.parts))]
        launches += [(task.whole, 0) for task in tasks if task.execution is not task.whole]
        self.notify(f"measuring {len(launches)} segments")
        found = self._measure(launches, _FINAL_NS, _FINAL_ROUNDS)
        excess = pooled_excess([m.samples_ns for m in found], self.quantile)
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

    def _verified(self, timetable: Timetable, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:  # noqa: ARG002
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
