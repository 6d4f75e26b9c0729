"""Which units run which layers of a workload's models, and in which segments: place, cut, price what came of it.

On one unit there is nothing to place. Where only measuring says what a cut costs, a few ways to cut are compiled,
measured and compared (:class:`~framefit.planning.cutting.CutTrials`).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec
import numpy as np

from framefit.core.settings import Notify, silent
from framefit.core.timetable import Fix, PlannedModel, Refusal, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.errors import InputError
from framefit.planning.beat import Beat, Demand
from framefit.planning.candidates import (
    GAIN,
    Arranged,
    UnitCandidate,
    UnitSearch,
    arrange_kept,
    arrange_on_units,
    first_fit,
    served_share,
)
from framefit.planning.cutting import Candidate, CutTrials, cut, cut_at, fixes, relearned
from framefit.planning.durations import Durations, are_comparable, launch_times, together
from framefit.planning.fixes import verified_fixes
from framefit.planning.partition import beside, candidate_pieces, planned_quantile_ns
from framefit.planning.placement import Placement, Problem, Room, Stage
from framefit.planning.placement_search import place, solve
from framefit.planning.plan import Plan
from framefit.planning.playback import at_medians, median_rates
from framefit.planning.prices import UnitPrices
from framefit.planning.priority_search import PrioritySearch, Schedule
from framefit.planning.replicas import with_replicas
from framefit.planning.reserved import reserve, segment_room
from framefit.planning.sporadic import waits
from framefit.planning.task import SegmentedModel, Stages, read_output_bytes
from framefit.planning.timetable import build_timetable, event_spans, planned_model, room_text

_MOST_ATTEMPTS = 4
_MOST_PIECES = 64  # of a model that is cut where there is one unit
_ENOUGH = 0.98  # of the demanded rates: finer pieces, or the solver, would gain little
_SOLVED = 1500  # pieces times units that the solver gets somewhere with in
_SOLVER_S = 3.0
_FIX_S, _FIXES_S = 0.5, 4.0  # for a schedule where something is changed, and for all changes together
_COPIED = 200  # pieces of all models, where replicas on one unit are looked for
_PLAYED = 384  # windows
_WRONG = 1.02  # times its estimate that a segment may take before pieces are priced anew


class Placing:
    """Places and cuts the models of a workload.

    Args:
        device: where they run.
        units: durations on each unit that they may use.
        workload: of the models.
        notify: receives what is being done.
        kept: a plan whose layers stay on their units, whatever else would serve more; none: models are placed.
        least: part of the demanded rates that replicas on one unit must be able to serve.
    """

    def __init__(
        self,
        device: Device,
        units: Mapping[str, Durations],
        workload: Workload,
        notify: Notify,
        kept: Plan | None,
        least: float = 0.0,
    ) -> None:
        target, window_ns, self._kept = device.target, workload.window_ns, dict[str, Stages]()
        # With one unit and equal windows nothing is to be placed.
        self._single = len(units) == 1 and len(workload.grid.offsets_ns) == 1
        if kept is not None and not self._single:
            window_ns = min(window_ns, kept.workload.window_ns)  # what was priced in pieces is so again
            self._kept = {
                model.name: tuple((stage[0].unit, stage[0].span[0]) for stage in model.stages)
                for model in kept.timetable.models
            }
        self._units, self._durations = units, next(iter(units.values()))
        self._mode, self._rate_hz, self._notify = workload.schedule.segmentation, workload.beat_hz, notify
        self._fixes_s = _FIXES_S  # that solvers may still take for changes that would help
        self._begun = 0.0  # when models began to be placed
        self._search_s = workload.schedule.search_s  # for a schedule of priority models, where none is found at once
        self._prices, self._apart = UnitPrices(target, units, window_ns), bool(target.links)
        limits = [target.unit(name).memory_mib for name in units]
        self._rooms = [
            Room(name, None if limit is None else int(limit * 2**20 / device.stored_ratio))
            for name, limit in zip(units, limits, strict=True)
        ]
        # Several timetables have one cut of each model in common.
        ladder = workload.schedule.ladder or workload.announced() or any(s.rates_hz for s in workload.streams)
        self._replicates, self._least = kept is None and not ladder, least
        self.notes: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """What the user should know of durations."""
        return list(dict.fromkeys(text for durations in self._units.values() for text in durations.warnings))

    @property
    def compiles(self) -> bool:
        """Whether models are compiled to price them; else nothing is run."""
        return self._durations.compiles

    def whole(self, tasks: Sequence[SegmentedModel]) -> tuple[list[SegmentedModel], list[int]]:
        """Planned quantile of each uncut model, at a first look, where it is fastest."""
        self._notify("pricing whole models")
        if not self._single:
            return self._prices.whole(tasks)
        tasks = list(tasks) if self.compiles else [self._durations.grouped(task) for task in tasks]
        times = launch_times(tasks, self._units, thorough=False)
        return tasks, [planned_quantile_ns(launches.whole_ns, launches.excess) for launches in times]

    def place(self, tasks: Sequence[SegmentedModel], beat: Beat) -> tuple[list[SegmentedModel], Timetable]:
        """The models in segments on units, with their timetable: feasible, or with what binds.

        One unit is not planned as the first of several. There, models are cut one by one where their measured
        durations ask for it, and where they are measured, a few ways to cut are compiled and compared before one is
        taken (docs/decisions/0010). On several units a search decides on stages and segments together, over far more
        placements than could be compiled; what segments really take corrects the prices for the next search.
        """
        self._begun = time.monotonic()
        if self._single:
            cut, timetable = self._cut(tasks, beat)
            return self._copied(tasks, timetable, beat) or (cut, timetable)
        placed, timetable = self._placed(tasks, beat)
        if any(task.replicas for task in placed) and not (timetable.feasible and self._fits(placed)):
            self._replicates, self.notes = False, []  # as priced, they need more time or memory than there is
            placed, timetable = self._placed(placed, beat)  # in the pieces that are priced by now
        return placed, timetable

    def _copied(
        self, tasks: Sequence[SegmentedModel], timetable: Timetable, beat: Beat
    ) -> tuple[list[SegmentedModel], Timetable] | None:
        """Replicas on the only unit, where they serve clearly more; ``None``: they do not, or take too long to find.

        While a segment of one replica does not fit into the rest of a window, one of another replica may.
        """
        pieces = sum(min(len(task.model.layers), _MOST_PIECES) for task in tasks)
        measured = are_comparable(self._durations)
        searched = self._replicates and _solver_installed() and not (measured or beat.events or beat.preemptive)
        if not searched or pieces > _COPIED or not timetable.feasible or served_share(timetable, beat) >= _ENOUGH:
            return None
        least = _least_rate(timetable.models, beat) * GAIN
        if max(least, self._least) > self._most_rate(timetable.models, beat):
            return None
        self._single = False
        copied = self._prices.refine(self._prices.whole(tasks)[0])
        search = UnitSearch(self._candidates(copied), beat, self._rooms, self._mode)
        arranged = with_replicas(search, [search.fitting(place, 1, parted=False)], self._notify, least)
        if arranged is not None:
            copied, other = self._settled(copied, arranged, beat)
            yields = dataclasses.replace(beat, yields=other.yields)
            if other.feasible and self._fits(copied) and _least_rate(other.models, yields) > least:
                return copied, other
        self._single = True
        return None

    def _most_rate(self, models: Sequence[PlannedModel], beat: Beat) -> float:
        """The fluid bound at medians on what :func:`_least_rate` says of models on the only unit."""
        priority = [at_medians(model) for model in models if model.role == "priority"]
        windows = reserve(dataclasses.replace(beat, excess_ratio=0.0), priority).free_windows(next(iter(self._units)))
        free_ns = sum(end - begin for window in windows for begin, end in window) / len(windows)
        background = [model for model in models if model.role == "background"]
        work_ns = sum(sum(s.median_ns for s in m.segments) * beat.arriving(m, models) for m in background)
        return min(1.0, free_ns / max(work_ns, 1.0))

    def place_events(
        self, priority: Sequence[SegmentedModel], events: Sequence[SegmentedModel], beat: Beat
    ) -> tuple[list[SegmentedModel], tuple[PlannedModel, ...]]:
        """Sporadic models beside priority models alone: each on one unit, cut only where it fits into no residual.

        Args:
            priority: models.
            events: sporadic models, in the order of service.
            beat: their demands say how far apart events are.

        Raises:
            InputError: no unit supports all of a sporadic model.
        """
        names = {task.name for task in events}
        demands = {name: Demand() if name in names else demand for name, demand in beat.demands.items()}
        alone = dataclasses.replace(beat, demands=demands, preemptive=False)
        replicates, self._replicates, notes = self._replicates, False, list(self.notes)
        placed, timetable = self.place([*priority, *events], alone)
        staged = {task.name: self._on_one(task) for task in placed if task.name in names and len(set(task.units)) > 1}
        if staged:
            placed, timetable = self.place([*priority, *(staged.get(task.name, task) for task in events)], alone)
        self._replicates, self.notes = replicates, notes
        models = tuple(
            msgspec.structs.replace(model, role="sporadic", min_distance_ns=beat.of(model.name).distance_ns)
            for model in timetable.models
            if model.name in names
        )
        return [task for task in placed if task.name in names], models

    def _on_one(self, task: SegmentedModel) -> SegmentedModel:
        """A sporadic model that may run on one unit only: the fastest that supports all of it."""
        allowed = self._prices.costs(task)
        whole = {
            unit: int(pieces.of([(0, len(pieces) - 1)])[1][0])
            for unit, pieces in allowed.pieces.items()
            if all(allowed.supported[unit])
        }
        if not whole:
            raise InputError(
                f"no unit supports all of sporadic model {task.name!r}, which runs on one",
                remedy="leave min_distance_ms out, or have its operators run on one unit",
            )
        entry = msgspec.structs.replace(task.wired.entry, units=(min(whole, key=lambda unit: whole[unit]),))
        return dataclasses.replace(task, wired=dataclasses.replace(task.wired, entry=entry), bounds=(), placed=())

    def _fits(self, tasks: Sequence[SegmentedModel]) -> bool:
        """Whether each unit has the memory for the models' tensors, those of all replicas."""
        needed = Counter[str]()
        for task in tasks:
            needed.update(task.memory_bytes(separate=self._apart))
        return all(room.memory_bytes is None or needed[room.name] <= room.memory_bytes for room in self._rooms)

    def with_binding(self, timetable: Timetable, tasks: Sequence[SegmentedModel], beat: Beat) -> Timetable:
        """Of an infeasible one: the layers that are too long, where that is what binds."""
        text = self._too_long(timetable, tasks, beat)
        return timetable if text is None else msgspec.structs.replace(timetable, binding_constraint=text)

    def explained(self, timetable: Timetable, tasks: Sequence[SegmentedModel], beat: Beat) -> Timetable:
        """What binds, whether that is proved, and changes that would help: each is planned."""
        searched_s = time.monotonic() - self._begun
        layer = self._too_long(timetable, tasks, beat)
        binding = layer or timetable.binding_constraint
        self._notify("looking for changes that would help")
        changes = (*self._freed(timetable, tasks, beat), *self._fixes(timetable, tasks, beat))
        refusal = timetable.proof or self._refusal(timetable, binding or "", beat, layer=layer is not None)
        if refusal.lateness_ns and refusal.bound_ns is None and timetable.proof is not None:  # by results' ages
            refusal = self._too_old(refusal, searched_s, timetable, tasks, beat)
            binding = refusal.reason
        return msgspec.structs.replace(timetable, binding_constraint=binding, fixes=changes, proof=refusal)

    @staticmethod
    def _too_long(timetable: Timetable, tasks: Sequence[SegmentedModel], beat: Beat) -> str | None:
        """The first model's layers that take longer in one piece than windows leave, as a sentence."""
        room = segment_room(beat, [model for model in timetable.models if model.role == "priority"])
        for task in tasks:
            if task.pieces is None:
                continue
            longest = int(task.pieces.quantile_ns.argmax())
            takes_ns = int(task.pieces.quantile_ns[longest])
            if room <= 0 or takes_ns <= room:
                continue
            first, last = task.runs[longest]
            known = task.layer_names or [layer.name for layer in task.model.layers]
            names = dict.fromkeys((known[first], known[last]))
            return (
                f"{'layer' if first == last else 'layers'} {' .. '.join(names)} of {task.name!r} "
                f"{'takes' if first == last else 'take'} {takes_ns / 1e6:.2f} ms in one piece; {room_text(beat)} "
                f"{room / 1e6:.2f} ms"
            )
        return None

    def _too_old(
        self,
        refusal: Refusal,
        searched_s: float,
        timetable: Timetable,
        tasks: Sequence[SegmentedModel],
        beat: Beat,
    ) -> Refusal:
        """With the least age that results can have in any plan.

        A frame's segments run one after the other, and on one unit, where all windows are alike, between what priority
        models reserve in each of them.
        """
        reserved_ns = 0
        for model in timetable.models if self._single else ():
            demand = beat.of(model.name)
            within = (demand.deadline_ns or beat.window_ns) <= beat.window_ns
            if model.role == "priority" and within and demand.every == 1 and not model.after:
                reserved_ns += model.duration_ns
        bound_ns, reason = 0, refusal.reason
        for task, model in zip(tasks, timetable.models, strict=True):
            deadline_ns = beat.of(model.name).deadline_ns
            if deadline_ns is None or model.role == "priority":
                continue
            work_ns = (task.uncut or model).duration_ns if self._single else self._least_ns(task)
            times = -(-work_ns // max(beat.window_ns - reserved_ns, 1)) - (beat.position != "start")
            age_ns = work_ns + times * reserved_ns
            if age_ns - deadline_ns > bound_ns:
                bound_ns = age_ns - deadline_ns
                reason = (
                    f"results of {model.name!r} are {age_ns / 1e6:.4g} ms old at least, {work_ns / 1e6:.4g} ms of "
                    f"which are its own; its deadline is {deadline_ns / 1e6:.4g} ms"
                )
        kind: Literal["proved", "not found"] = "proved" if bound_ns else "not found"
        return msgspec.structs.replace(
            refusal,
            kind=kind,
            reason=reason,
            searched_s=searched_s,
            lateness_ns=max(refusal.lateness_ns or 0, bound_ns),
            bound_ns=bound_ns,
        )

    def _least_ns(self, task: SegmentedModel) -> int:
        """Quantiles of a model's pieces, each where it is fastest, without what cutting costs."""
        costs = self._prices.costs(task)
        rows = []
        for unit, pieces in costs.pieces.items():
            inside = np.maximum(pieces.median_ns - beside(pieces.boundary_ns), 0)
            bare = inside * (pieces.quantile_ns / np.maximum(pieces.median_ns, 1))
            rows.append(np.where(costs.supported[unit], bare, np.inf))
        return int(task.ratio * np.min(rows, axis=0).sum())

    def _refusal(self, timetable: Timetable, binding: str, beat: Beat, *, layer: bool) -> Refusal:
        """Whether what binds is a proof, where no solver was asked.

        On one unit all priority models are released at once: no order has less lateness than that by deadlines, and at
        a window's start they leave the longest run for a layer, and for an event that nothing else holds up.
        """
        late_ns = max(-timetable.worst_slack_ns, 0) or None
        within_start = beat.position == "start" and (self._late_alone(timetable, beat) if beat.events else layer)
        proved = self._single and (late_ns is not None or within_start)
        return Refusal(
            kind="proved" if proved else "not found",
            reason=binding,
            searched_s=0.0,
            lateness_ns=late_ns,
            bound_ns=late_ns if proved else None,
        )

    def _late_alone(self, timetable: Timetable, beat: Beat) -> bool:
        """Whether events of the only sporadic model may be late although no background model runs."""
        priority = [model for model in timetable.models if model.role == "priority"]
        spans = event_spans(beat, reserve(beat, priority))
        return len(beat.events) == 1 and waits(beat, spans, [])[1] is not None

    def _cut(self, tasks: Sequence[SegmentedModel], beat: Beat) -> tuple[list[SegmentedModel], Timetable]:
        """Price and cut; price what came of it and cut anew, until it holds."""
        trials = CutTrials(self._durations, self._mode) if are_comparable(self._durations) else None
        tasks = list(tasks)
        for attempt in range(_MOST_ATTEMPTS):
            models = self._priced_models(tasks)
            settled = beat.guarded(models)
            timetable = build_timetable(settled, models)
            first = [model for model in models if model.role == "priority"]
            room = segment_room(settled, first)
            tasks = [
                task if task.bounds else dataclasses.replace(task, uncut=model)
                for task, model in zip(tasks, models, strict=True)
            ]
            if segment_room(beat, first) <= 0:  # shorter segments, and so a smaller guard, would not help
                break
            longest = {model.name: max(segment.duration_ns for segment in model.segments) for model in models}
            again = trials is not None and any(task.bounds and longest[task.name] > room for task in tasks)
            undecided = set()
            for number, (task, model) in enumerate(zip(tasks, models, strict=True)):
                whole = not task.bounds
                too_long = not beat.preemptive and (longest[task.name] > room or (again and not whole))
                # With a guard that follows from the segments, shorter ones may pay everywhere.
                freely = not attempt and beat.excess_ratio > 0
                decide = too_long or (whole and (task.wired.entry.always_split or freely))
                if not decide or task.priority:
                    continue
                undecided.add(task.name)
                if task.pieces is None:
                    tasks[number] = self._probed(task, model)
                elif not whole:
                    tasks[number] = relearned(task, model)
            if not undecided:
                break
            candidates = [
                Candidate(task.uncut or model, task.pieces, task.wired.entry.always_split)
                if task.name in undecided
                else Candidate(model)
                for task, model in zip(tasks, models, strict=True)
            ]
            if trials is None:
                runs = cut(candidates, beat, self._mode).runs
            else:
                open_tasks = [task for task in tasks if task.name in undecided]
                trials.correct(open_tasks, models)
                runs, corrected = trials.runs(candidates, open_tasks, beat)
                by_name = {task.name: task for task in corrected}
                tasks = [by_name.get(task.name, task) for task in tasks]
            before, tasks = tasks, [cut_at(task, runs.get(task.name)) for task in tasks]
            if all(task.bounds == earlier.bounds for task, earlier in zip(tasks, before, strict=True)):
                break
        if trials is not None:
            self.notes += trials.notes(timetable.models)
        return tasks, timetable

    def _placed(self, tasks: Sequence[SegmentedModel], beat: Beat) -> tuple[list[SegmentedModel], Timetable]:
        """Whole models first, in pieces where that serves more; then price what came of it, until it holds."""
        self._notify("placing models on units")
        tasks = list(tasks)
        begins = {task.name: {first for first, _ in task.runs} for task in tasks}
        if any(first not in begins[name] for name, stages in self._kept.items() for _, first in stages):
            tasks = self._prices.refine(tasks)
        arranged, search = self._arranged(tasks, beat, at_once=True), None
        if arranged.share < _ENOUGH:
            tasks = self._prices.refine(tasks)
            search = None if arranged.timetable.feasible else self._priority_search(tasks, beat)
            if search is None or not search.impossible:
                arranged = self._arranged(tasks, beat)
        schedule: Schedule | None = None
        if search is not None and not arranged.timetable.feasible:
            arranged, schedule = search.arranged(
                arranged, lambda one: self._arranged(tasks, dataclasses.replace(beat, layout=one.layout), one)
            )
            self._search_s -= search.spent_s
        if schedule is not None:
            beat = dataclasses.replace(beat, layout=schedule.layout)
        return self._settled(tasks, arranged, beat, schedule)

    def _settled(
        self, tasks: Sequence[SegmentedModel], arranged: Arranged, beat: Beat, schedule: Schedule | None = None
    ) -> tuple[list[SegmentedModel], Timetable]:
        """What was arranged, at what its segments really take; arranged again where that is more."""
        tasks = list(tasks)
        for _ in range(_MOST_ATTEMPTS):
            if not arranged.timetable.feasible:
                return tasks, arranged.timetable
            tasks = self._adopted(tasks, arranged)
            models = self._priced_models(
                tasks, {model.name: model.replica_turns or (model.turns,) for model in arranged.timetable.models}
            )
            settled = dataclasses.replace(beat.guarded(models), yields=arranged.timetable.yields)
            timetable = build_timetable(settled, models)
            wrong = self._prices.correct(tasks, arranged.timetable.models, models, _WRONG)
            if timetable.feasible or not wrong:
                break
            arranged = self._arranged(tasks, beat, schedule)
        return tasks, self._with_bound(timetable, arranged, beat)

    def _priority_search(self, tasks: Sequence[SegmentedModel], beat: Beat) -> PrioritySearch | None:
        """The exact answer, where none is found at once; ``None``: it is not to be asked for."""
        if self._search_s <= 0 or not _solver_installed():
            return None
        candidates = self._candidates(tasks)
        if self._kept:
            stages = {task.name: _in_pieces(self._kept[task.name], task) for task in tasks}
            units = {
                name: [stage.unit for stage in pieces for _ in range(stage.first, stage.last + 1)]
                for name, pieces in stages.items()
            }
            candidates = [candidate.restricted(units[candidate.model.name]) for candidate in candidates]
        return PrioritySearch(candidates, beat, tuple(self._units), self._search_s, self._notify, kept=bool(self._kept))

    def _fixes(self, timetable: Timetable, tasks: Sequence[SegmentedModel], beat: Beat) -> tuple[Fix, ...]:
        """Changes of beat, deadlines, guard and costs that make everything fit."""
        if self._single:
            uncut = [
                Candidate(task.uncut or model, task.pieces, task.wired.entry.always_split)
                for task, model in zip(tasks, timetable.models, strict=True)
            ]
            return fixes(uncut, beat, self._rate_hz, self._mode)
        candidates = self._candidates(tasks)

        def arranged(changed: Beat, costs: Mapping[str, float]) -> Timetable:
            scaled = [c.scaled(costs[c.model.name]) if c.model.name in costs else c for c in candidates]
            return self._changed(scaled, changed, timetable)

        return verified_fixes(arranged, beat, [task.name for task in tasks], self._rate_hz)

    def _changed(self, candidates: Sequence[UnitCandidate], beat: Beat, refused: Timetable) -> Timetable:
        """A changed workload's timetable, by a solver's schedule first; as refused where it proves that there is none.

        Where priority models were not what was in the way, no solver is asked.
        """
        limit_s = min(self._fixes_s, _FIX_S)
        if refused.proof is not None and limit_s > 0 and not self._kept and _solver_installed():
            search, timetable = PrioritySearch(candidates, beat, tuple(self._units), limit_s, silent), refused
            for schedule in search.schedules():
                placed = [schedule.placed(candidate) for candidate in candidates]
                timetable = first_fit(
                    placed, dataclasses.replace(beat, layout=schedule.layout), self._rooms, self._mode
                )
                if timetable.feasible:
                    break
            self._fixes_s -= search.spent_s
            if search.proved or timetable.feasible:
                return timetable
        return first_fit(candidates, beat, self._rooms, self._mode)

    def _freed(self, timetable: Timetable, tasks: Sequence[SegmentedModel], beat: Beat) -> list[Fix]:
        """Models that would fit if they might run on any unit."""
        changes = []
        for task in tasks:
            wired = task.wired
            if wired.entry.units is None or set(self._units) <= set(wired.entry.units):
                continue
            entry = msgspec.structs.replace(wired.entry, units=None)
            free = [
                dataclasses.replace(task, wired=dataclasses.replace(wired, entry=entry)) if each is task else each
                for each in tasks
            ]
            if self._changed(self._candidates(free), beat, timetable).feasible:
                units = ", ".join(self._units)
                changes.append(
                    Fix(change=f"no units for {task.name!r}", effect=f"it may run on {units}", verified=True)
                )
        return changes

    def _probed(self, task: SegmentedModel, model: PlannedModel) -> SegmentedModel:
        """A model that has to be cut, or may be, with the costs of its pieces and boundaries."""
        self._notify(f"pricing cuts of {task.name}")
        if self._durations.compiles:  # else it is in groups since its layers were looked up
            task = self._durations.grouped(task)
        task = dataclasses.replace(task, runs=tuple(candidate_pieces(task.model, _MOST_PIECES)))
        excess = model.duration_ns / max(model.segments[0].median_ns, 1)
        pieces = self._durations.pieces(task, model.duration_ns, excess)
        # Measured pieces are in parts of the whole, which was scaled already.
        return dataclasses.replace(task, pieces=pieces.scaled(task.ratio) if self._durations.exact else pieces)

    def _arranged(
        self, tasks: Sequence[SegmentedModel], beat: Beat, schedule: Schedule | None = None, *, at_once: bool = False
    ) -> Arranged:
        """The best way at present prices, priority models as scheduled; ``at_once``: what a quick search finds."""
        candidates = self._candidates(tasks)
        if schedule is not None:
            candidates = [schedule.placed(candidate) for candidate in candidates]
        if self._kept:
            kept = {task.name: _in_pieces(self._kept[task.name], task) for task in tasks}
            return arrange_kept(candidates, beat, self._rooms, self._mode, kept)
        size = len(self._rooms) * sum(len(candidate.names) for candidate in candidates)
        solver: Callable[[Problem], Placement] | None = None
        if size <= _SOLVED and _solver_installed() and not at_once:
            solver = partial(solve, time_limit_s=_SOLVER_S)
        replicated = None
        if self._replicates and _solver_installed() and not at_once:
            replicated = partial(with_replicas, notify=self._notify)
        return arrange_on_units(candidates, beat, self._rooms, self._mode, solver, replicated)

    def _candidates(self, tasks: Sequence[SegmentedModel]) -> list[UnitCandidate]:
        candidates = []
        for task in tasks:
            costs = self._prices.costs(task)
            names = task.layer_names or [layer.name for layer in task.model.layers]
            handed = [sum(t.bytes for t in task.model.cuts[last].tensors) for _, last in task.runs[:-1]]
            quantiles = [int(pieces.of([(0, len(pieces) - 1)])[1][0]) for pieces in costs.pieces.values()]
            model = PlannedModel(
                name=task.name,
                role="priority" if task.priority else "background",
                level=task.level,
                reasons=task.reasons,
                duration_ns=round(task.ratio * min(quantiles)),
                segments=(),
                after=task.wired.after,
            )
            candidates.append(
                UnitCandidate(
                    model,
                    {unit: pieces.scaled(task.ratio) for unit, pieces in costs.pieces.items()},
                    costs.supported,
                    [*handed, read_output_bytes(task, tasks)],
                    [(names[first], names[last]) for first, last in task.runs],
                    stateful=bool(task.wired.entry.state),
                )
            )
        return candidates

    @staticmethod
    def _adopted(tasks: Sequence[SegmentedModel], arranged: Arranged) -> list[SegmentedModel]:
        """The models as arranged."""
        adopted = []
        for task in tasks:
            runs = arranged.runs[task.name]
            bounds = tuple((task.runs[run.first][0], task.runs[run.last][1]) for run in runs)
            slots = arranged.timetable.model(task.name).slots
            adopted.append(task.put(bounds, [run.unit for run in runs], slots, [run.replica for run in runs]))
        return adopted

    def _priced_models(
        self, tasks: Sequence[SegmentedModel], turns: Mapping[str, Sequence[int]] | None = None
    ) -> list[PlannedModel]:
        """All models as they are to run; each has one turn in a round where ``turns`` (of replicas) does not say."""
        if self._single:
            times = launch_times(tasks, self._units)
        else:
            self._notify("pricing segments")
            parts = iter(self._prices.segments([part for task in tasks for part in task.parts]))
            times = [together([next(parts) for _ in task.parts]) for task in tasks]
        models = []
        for task, priced in zip(tasks, times, strict=True):
            reasons = list(task.reasons)
            if not (self._single and task.priority):
                whole_ms = task.ratio * planned_quantile_ns(priced.whole_ns, priced.excess) / 1e6
                reasons.append(f"{whole_ms:.2f} ms whole: {self._manner(task)}")
            models.append(
                planned_model(
                    task.name,
                    task.model,
                    task.segments,
                    task.units,
                    uncut_ns=None if task.uncut is None else task.uncut.whole_ns,
                    priority=task.priority,
                    level=task.level,
                    reasons=reasons,
                    samples_ns=[task.stretched(samples) for samples in priced.segments_ns],
                    whole_ns=task.stretched(priced.whole_ns),
                    excess=priced.excess,
                    layer_names=task.layer_names,
                    slots=task.slots,
                    after=task.wired.after,
                    read_output_bytes=read_output_bytes(task, tasks),
                    turns=(turns or {}).get(task.name, (1,)),
                    replicas=task.replicas,
                )
            )
        return models

    def _manner(self, task: SegmentedModel) -> str:
        """How a model runs, for people."""
        count, units = len(task.segments), ", ".join(dict.fromkeys(task.units))
        if task.replicas:
            ways = [", ".join(dict.fromkeys(part.units)) for part in task.parts]
            return f"{len(ways)} replicas, on {'; on '.join(ways)}: frames go to whichever is free"
        if count == 1:
            return "runs whole" + ("" if self._single else f" on {units}")
        return f"cut into {count} segments " + (f"({self._mode})" if self._single else f"on {units}")

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


def _least_rate(models: Sequence[PlannedModel], beat: Beat) -> float:
    """Part of its frames that the least-served background model gets at medians."""
    rates, _ = median_rates(beat, models, _PLAYED)
    return min(rates[model.name] / beat.arriving(model, models) for model in models if model.role == "background")


def _solver_installed() -> bool:
    """A board has what runs need, and may do without OR-Tools: what is found at once is planned there all the same."""
    return importlib.util.find_spec("ortools") is not None


def _in_pieces(stages: Stages, task: SegmentedModel) -> list[Stage]:
    """Stages that begin at some layers, in the pieces that begin there."""
    pieces = {first: number for number, (first, _) in enumerate(task.runs)}
    begins = [pieces[first] for _, first in stages]
    ends = [*begins[1:], len(task.runs)]
    return [Stage(unit, first, end - 1) for (unit, _), first, end in zip(stages, begins, ends, strict=True)]
