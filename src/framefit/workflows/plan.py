"""``framefit plan``: from an ``app.toml`` to a checked timetable, by measuring."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.files import write_record
from framefit.core.timetable import Fix, PlannedModel, Timetable
from framefit.core.workload import Workload, load_workload
from framefit.devices.device import Device, random_inputs
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.measure import Measurement, measure, measure_floor
from framefit.devices.store import MeasurementStore
from framefit.errors import DeviceError, FramefitError, InputError, UnsupportedError
from framefit.runtime.execution import Execution, greatest_difference
from framefit.runtime.wiring import WiredModel, streams_of, wire
from framefit.scheduling.check import check_timetable
from framefit.scheduling.fixes import later_deadlines, slower_beat
from framefit.scheduling.partition import Pieces, partition
from framefit.scheduling.pieces import candidate_pieces, paired, planned_quantile_ns, pooled_excess, priced_pieces
from framefit.scheduling.planned import planned_model
from framefit.scheduling.timetable import Beat, build_timetable

__all__ = ["Notify", "Plan", "PlannedTask", "plan", "silent"]

_MOST_PIECES = 64
_LEAST_GUARD_NS = 50_000  # a dispatch costs about this much
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
        runs: first and last layer of each piece between candidate cuts, and
        pieces: what they cost; empty and None where the model fits whole.
    """

    wired: WiredModel
    whole: Execution
    execution: Execution
    runs: list[tuple[int, int]] = field(default_factory=list)
    pieces: Pieces | None = None

    @property
    def name(self) -> str:
        """The model's name in the workload."""
        return self.wired.entry.name

    @property
    def priority(self) -> bool:
        """Whether it runs in every window."""
        return self.wired.entry.priority == "every-window"


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
        beat = self._beat(wired)
        self.notify("measuring whole models")
        measured = self._measure([(task.whole, 0) for task in tasks], _PROBE_NS, _PROBE_ROUNDS)
        excess = pooled_excess([m.samples_ns for m in measured], self.quantile)
        durations = [planned_quantile_ns(m.samples_ns, excess) for m in measured]
        priority_ns = sum(duration for task, duration in zip(tasks, durations, strict=True) if task.priority)
        limit_ns = beat.window_ns - priority_ns - beat.guard_ns
        for task, duration, uncut in zip(tasks, durations, measured, strict=True):
            if not task.priority and duration > limit_ns:
                self._probe(task, uncut.median_ns, excess)
        timetable = self._place(tasks, beat, limit_ns)
        timetable = self._verified(timetable, tasks) if timetable.feasible else self._explained(timetable, tasks, beat)
        memory = {self.unit: sum(task.execution.memory_bytes for task in tasks)}
        timetable = msgspec.structs.replace(timetable, memory_bytes=memory, reasons=tuple(self.warnings))
        deadlines = dict(beat.deadlines_ns)
        violations = check_timetable(timetable, deadlines_ns=deadlines) if timetable.feasible else []
        if violations:
            raise FramefitError(f"the timetable fails its check: {violations[0]}", remedy="report this as a bug")
        return Plan(self.app, self.workload, self.device, timetable, tuple(tasks))

    def _execution(self, wired: WiredModel, bounds: Sequence[tuple[int, int]]) -> Execution:
        return Execution(wired.model, bounds, self.device, self.unit, state=wired.entry.state, name=wired.entry.name)

    def _beat(self, wired: Sequence[WiredModel]) -> Beat:
        guard_ms = self.workload.schedule.guard_ms
        if guard_ms is not None:
            guard_ns = round(guard_ms * 1e6)
        else:
            self.notify("measuring the machine's floor")
            late = measure_floor(self.device.clock, _FLOOR_PERIOD_NS, _FLOOR_WAKE_UPS)
            guard_ns = max(int(np.quantile(late, 0.99)), _LEAST_GUARD_NS)
        streams = {stream.name: stream for stream in streams_of(self.workload)}
        return Beat(
            window_ns=self.workload.window_ns,
            guard_ns=guard_ns,
            deadlines_ns={
                model.entry.name: round(model.entry.deadline_ms * 1e6)
                for model in wired
                if model.entry.deadline_ms is not None
            },
            queues={
                model.entry.name: min((streams[source].queue for source in model.sources.values()), default=1)
                for model in wired
            },
            refusing=frozenset(
                model.entry.name
                for model in wired
                if any(streams[source].when_full != "drop-oldest" for source in model.sources.values())
            ),
        )

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
            execution.run(random_inputs(execution.inputs, random))  # real values between the segments
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

    def _probe(self, task: PlannedTask, whole_ns: int, excess: float) -> None:
        """Price the pieces and boundaries of a model that has to be cut."""
        self.notify(f"pricing cuts of {task.name}")
        model = task.wired.model.grouped(self.device.fusions(task.wired.model))
        task.wired = WiredModel(task.wired.entry, model, task.wired.sources)
        task.runs = candidate_pieces(model, _MOST_PIECES)
        single = self._execution(task.wired, task.runs)
        launches = [(single, index) for index in range(len(task.runs))]
        # Pieces 0+1, 2+3, ... and 1+2, 3+4, ... joined: two more ways to cut the model.
        joined = [self._execution(task.wired, paired(task.runs, start)) for start in (0, 1)]
        launches += [(joined[left % 2], (left + left % 2) // 2) for left in range(len(task.runs) - 1)]
        cost = [m.median_ns for m in self._measure(launches, _PROBE_NS, _PROBE_ROUNDS, on_beat=False)]
        task.pieces = priced_pieces(cost[: len(task.runs)], cost[len(task.runs) :], whole_ns, excess)

    def _place(self, tasks: Sequence[PlannedTask], beat: Beat, limit_ns: int) -> Timetable:
        """Cut, measure what came of it, place; again where a segment turned out too long."""
        attempt = 0
        while True:
            for task in tasks:
                if task.pieces is None or limit_ns <= 0:
                    continue
                chosen = partition(task.pieces, limit_ns + beat.guard_ns, limit_ns)
                if chosen is not None:
                    bounds = [(task.runs[first][0], task.runs[last][1]) for first, last in chosen]
                    task.execution = self._execution(task.wired, bounds)
            models = self._measured_models(tasks, limit_ns)
            timetable = build_timetable(beat, models)
            attempt += 1
            if timetable.feasible or attempt == _MOST_ATTEMPTS:
                return timetable
            limit_ns = timetable.residual_ns - beat.guard_ns
            again = False
            for task, model in zip(tasks, models, strict=True):
                if task.execution is not task.whole:
                    _correct(task, model)
                elif not task.priority and task.pieces is None and model.duration_ns > limit_ns:
                    # It fitted whole by the first, shorter measurement.
                    median_ns = model.segments[0].median_ns
                    self._probe(task, median_ns, model.duration_ns / max(median_ns, 1))
                else:
                    continue
                again = True
            if not again:
                return timetable
            self.notify("cutting again")

    def _measured_models(self, tasks: Sequence[PlannedTask], limit_ns: int) -> list[PlannedModel]:
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
        return [
            planned_model(
                task.wired.entry,
                task.execution.model,
                task.execution.bounds,
                self.unit,
                samples_ns=[samples[id(task.execution), index] for index in range(len(task.execution.parts))],
                whole_ns=samples[id(task.whole), 0],
                excess=excess,
                limit_ns=limit_ns,
            )
            for task in tasks
        ]

    def _explained(self, timetable: Timetable, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """What binds, by layer where a layer does, and a beat or deadlines that would fit."""
        limit_ns = timetable.residual_ns - timetable.guard_ns
        binding = timetable.binding_constraint
        for task in tasks:
            if task.pieces is None or limit_ns <= 0 or int(task.pieces.quantile_ns.max()) <= limit_ns:
                continue
            longest = int(task.pieces.quantile_ns.argmax())
            layers = [
                layer.name for layer in task.wired.model.layers[task.runs[longest][0] : task.runs[longest][1] + 1]
            ]
            binding = (
                f"{'layer' if len(layers) == 1 else 'layers'} {' .. '.join(dict.fromkeys((layers[0], layers[-1])))} of "
                f"{task.name!r} take {task.pieces.quantile_ns[longest] / 1e6:.2f} ms in one piece; the residual less "
                f"guard is {limit_ns / 1e6:.2f} ms"
            )
            break
        pieces = [task.pieces for task in tasks if task.pieces is not None]
        later = later_deadlines(beat, timetable.models)
        slower = slower_beat(timetable.priority_ns, timetable.guard_ns, pieces, self.workload.beat_hz)
        if later is None:
            fixes: tuple[Fix, ...] = (slower,)
        elif later.verified:
            fixes = (later,)
        else:  # neither of them is enough alone
            fixes = (later, msgspec.structs.replace(slower, verified=False))
        return msgspec.structs.replace(timetable, binding_constraint=binding, fixes=fixes)

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
                    frame = random_inputs(cut.inputs, random)
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
