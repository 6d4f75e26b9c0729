"""Planning on several units, or on windows of differing length: price by unit, place, cut; price what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from framefit.core.settings import Notify
from framefit.core.timetable import Fix, PlannedModel, Timetable
from framefit.planning.beat import Beat
from framefit.planning.candidates import (
    Arranged,
    UnitCandidate,
    arrange_kept,
    arrange_on_units,
    first_fit,
    served_share,
)
from framefit.planning.cutting import Mode
from framefit.planning.durations import ExactUnitPieces, MeasuredUnitPieces
from framefit.planning.fixes import verified_fixes
from framefit.planning.partition import planned_quantile_ns
from framefit.planning.placement import Placement, Problem, Room, Stage
from framefit.planning.placement_search import solve
from framefit.planning.priority_search import PrioritySearch, Schedule
from framefit.planning.task import SegmentedModel, Stages, read_output_bytes
from framefit.planning.timetable import build_timetable, planned_model

_MOST_ATTEMPTS = 4
_ENOUGH = 0.98  # of the demanded rates: finer pieces, or the solver, would gain little
_SOLVED = 1500  # pieces times units that the solver gets somewhere with in
_SOLVER_S = 3.0
_WRONG = 1.02  # times its estimate that a segment may take before pieces are priced anew


class OnUnits:
    """Plans a workload that may run on several units.

    Args:
        prices: of launches on each of them.
        stored_ratio: bytes of a tensor there over those on the host.
        mode: of segmentation.
        rate_hz: windows a second, in the mean.
        notify: receives what is being done.
        kept: model -> stages that it has, whatever else would serve more; none: models are placed.
        search_s: for a schedule of the priority models, where none is found at once.
    """

    def __init__(
        self,
        prices: MeasuredUnitPieces | ExactUnitPieces,
        stored_ratio: float,
        mode: Mode,
        rate_hz: float,
        notify: Notify,
        kept: Mapping[str, Stages] | None = None,
        search_s: float = 0.0,
    ) -> None:
        self.prices, self.mode, self.rate_hz, self.notify = prices, mode, rate_hz, notify
        self._kept = kept or {}
        self._search_s = search_s
        self.notes: list[str] = []
        memory = [prices.target.unit(name).memory_mib for name in prices.units]
        self._rooms = [
            Room(name, None if limit is None else int(limit * 2**20 / stored_ratio))
            for name, limit in zip(prices.units, memory, strict=True)
        ]

    @property
    def warnings(self) -> list[str]:
        """Of durations."""
        return self.prices.warnings

    @property
    def compiles(self) -> bool:
        """Whether models are compiled to price them; else nothing is run."""
        return self.prices.compiles

    def whole(self, tasks: Sequence[SegmentedModel]) -> tuple[list[SegmentedModel], list[int]]:
        """Planned quantile of each uncut model where it is fastest."""
        self.notify("pricing whole models")
        return self.prices.whole(tasks)

    def place(self, tasks: Sequence[SegmentedModel], beat: Beat) -> tuple[list[SegmentedModel], Timetable]:
        """Whole models first, in pieces where that serves more; then price what came of it, until it holds."""
        self.notify("placing models on units")
        tasks = list(tasks)
        begins = {task.name: {first for first, _ in task.runs} for task in tasks}
        if any(first not in begins[name] for name, stages in self._kept.items() for _, first in stages):
            tasks = self.prices.refine(tasks)
        arranged = self._arranged(tasks, beat)
        if arranged.share < _ENOUGH:
            finer = self.prices.refine(tasks)
            if sum(len(task.runs) for task in finer) > sum(len(task.runs) for task in tasks):
                arranged = self._arranged(finer, beat)
            tasks = finer
        arranged, schedule = self._scheduled(tasks, beat, arranged)
        if schedule is not None:
            beat = dataclasses.replace(beat, layout=schedule.layout)
        for _ in range(_MOST_ATTEMPTS):
            if not arranged.timetable.feasible:
                return tasks, arranged.timetable
            tasks = self._adopted(tasks, arranged)
            models = self._priced_models(tasks, arranged.timetable)
            timetable = build_timetable(beat.guarded(models), models)
            wrong = self.prices.correct(tasks, arranged.timetable.models, models, _WRONG)
            if timetable.feasible or not wrong:
                break
            arranged = self._arranged(tasks, beat, schedule)
        return tasks, self._with_bound(timetable, arranged, beat)

    def _scheduled(
        self, tasks: Sequence[SegmentedModel], beat: Beat, arranged: Arranged
    ) -> tuple[Arranged, Schedule | None]:
        """With a schedule of the priority models that a solver finds where none was found at once, or its refusal."""
        if arranged.timetable.feasible or self._search_s <= 0:
            return arranged, None
        candidates = self._candidates(tasks)
        if self._kept:
            stages = {task.name: _in_pieces(self._kept[task.name], task) for task in tasks}
            units = {name: [s.unit for s in own for _ in range(s.first, s.last + 1)] for name, own in stages.items()}
            candidates = [one.restricted(units[one.model.name]) for one in candidates]
        search = PrioritySearch(candidates, beat, self.prices.units, self._search_s, self.notify, kept=bool(self._kept))
        better, schedule = search.arranged(
            arranged, lambda one: self._arranged(tasks, dataclasses.replace(beat, layout=one.layout), one)
        )
        self._search_s -= search.spent_s
        return better, schedule

    def explained(self, timetable: Timetable, tasks: Sequence[SegmentedModel], beat: Beat) -> Timetable:
        """Changes that would help; what binds is named already."""
        self.notify("looking for changes that would help")
        candidates = self._candidates(tasks)

        def arranged(other: Beat, costs: Mapping[str, float]) -> Timetable:
            scaled = [c.scaled(costs[c.model.name]) if c.model.name in costs else c for c in candidates]
            return first_fit(scaled, other, self._rooms, self.mode)

        found = verified_fixes(arranged, beat, [task.name for task in tasks], self.rate_hz)
        return msgspec.structs.replace(timetable, fixes=(*found, *self._freed(tasks, beat)))

    def _freed(self, tasks: Sequence[SegmentedModel], beat: Beat) -> list[Fix]:
        """Models that would fit if they might run on any unit."""
        found = []
        for task in tasks:
            wired = task.wired
            if wired.entry.units is None or set(self.prices.units) <= set(wired.entry.units):
                continue
            entry = msgspec.structs.replace(wired.entry, units=None)
            free = [
                dataclasses.replace(one, wired=dataclasses.replace(wired, entry=entry)) if one is task else one
                for one in tasks
            ]
            if first_fit(self._candidates(free), beat, self._rooms, self.mode).feasible:
                units = ", ".join(self.prices.units)
                found.append(Fix(change=f"no units for {task.name!r}", effect=f"it may run on {units}", verified=True))
        return found

    def _arranged(self, tasks: Sequence[SegmentedModel], beat: Beat, schedule: Schedule | None = None) -> Arranged:
        """The best way at present prices, priority models as scheduled."""
        candidates = self._candidates(tasks)
        if schedule is not None:
            candidates = [schedule.placed(candidate) for candidate in candidates]
        if self._kept:
            kept = {task.name: _in_pieces(self._kept[task.name], task) for task in tasks}
            return arrange_kept(candidates, beat, self._rooms, self.mode, kept)
        size = len(self._rooms) * sum(len(candidate.names) for candidate in candidates)
        solver: Callable[[Problem], Placement] | None = None
        if size <= _SOLVED:
            solver = partial(solve, time_limit_s=_SOLVER_S)
        return arrange_on_units(candidates, beat, self._rooms, self.mode, solver)

    def _candidates(self, tasks: Sequence[SegmentedModel]) -> list[UnitCandidate]:
        found = []
        for task in tasks:
            costs = self.prices.costs(task)
            names = task.layer_names or [layer.name for layer in task.model.layers]
            handed = [sum(t.bytes for t in task.model.cuts[last].tensors) for _, last in task.runs[:-1]]
            quantiles = [int(own.of([(0, len(own) - 1)])[1][0]) for own in costs.pieces.values()]
            model = PlannedModel(
                name=task.name,
                role="priority" if task.priority else "background",
                level=task.level,
                reasons=task.reasons,
                duration_ns=round(task.ratio * min(quantiles)),
                segments=(),
                after=task.wired.after,
            )
            found.append(
                UnitCandidate(
                    model,
                    {unit: own.scaled(task.ratio) for unit, own in costs.pieces.items()},
                    costs.supported,
                    [*handed, read_output_bytes(task, tasks)],
                    [(names[first], names[last]) for first, last in task.runs],
                    stateful=bool(task.wired.entry.state),
                )
            )
        return found

    @staticmethod
    def _adopted(tasks: Sequence[SegmentedModel], arranged: Arranged) -> list[SegmentedModel]:
        """The models as arranged."""
        adopted = []
        for task in tasks:
            runs = arranged.runs[task.name]
            bounds = tuple((task.runs[run.first][0], task.runs[run.last][1]) for run in runs)
            adopted.append(task.put(bounds, [run.unit for run in runs], arranged.timetable.model(task.name).slots))
        return adopted

    def _priced_models(self, tasks: Sequence[SegmentedModel], timetable: Timetable) -> list[PlannedModel]:
        """All models as they are to run."""
        self.notify("pricing segments")
        models = []
        for task, priced in zip(tasks, self.prices.segments(tasks), strict=True):
            whole_ms = task.ratio * planned_quantile_ns(priced.whole_ns, priced.excess) / 1e6
            units = ", ".join(dict.fromkeys(task.units))
            count = len(task.segments)
            how = f"runs whole on {units}" if count == 1 else f"cut into {count} segments on {units}"
            models.append(
                planned_model(
                    task.name,
                    task.model,
                    task.segments,
                    task.units,
                    priority=task.priority,
                    level=task.level,
                    reasons=[*task.reasons, f"{whole_ms:.2f} ms whole: {how}"],
                    samples_ns=[task.stretched(samples) for samples in priced.segments_ns],
                    whole_ns=task.stretched(priced.whole_ns),
                    excess=priced.excess,
                    layer_names=task.layer_names,
                    slots=task.slots,
                    after=task.wired.after,
                    read_output_bytes=read_output_bytes(task, tasks),
                    turns=timetable.model(task.name).turns,
                )
            )
        return models

    def _with_bound(self, timetable: Timetable, arranged: Arranged, beat: Beat) -> Timetable:
        """How much more than this one another placement may serve."""
        background = [model for model in timetable.models if model.role == "background"]
        if not background or not timetable.feasible or len(self._rooms) == 1 or self._kept:
            return timetable
        share = served_share(timetable, beat)
        bound = max(arranged.bound, share)
        slowest = min(beat.arriving(model, timetable.models) for model in background)
        self.notes.append(
            f"placed by {arranged.placement.method}: of the frames that come the least-served model is planned for "
            f"{100 * share:.3g} %, on no placement for more than {100 * bound:.3g} %"
        )
        return msgspec.structs.replace(timetable, bound=1 / (bound * slowest), gap_ratio=bound / max(share, 1e-9) - 1)


def _in_pieces(stages: Stages, task: SegmentedModel) -> list[Stage]:
    """Stages that begin at some layers, in the pieces that begin there."""
    pieces = {first: number for number, (first, _) in enumerate(task.runs)}
    begins = [pieces[first] for _, first in stages]
    ends = [*begins[1:], len(task.runs)]
    return [Stage(unit, first, end - 1) for (unit, _), first, end in zip(stages, begins, ends, strict=True)]
