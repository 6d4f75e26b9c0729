"""Planning on one unit: price, cut, place; price what came of it and cut anew, until it holds.

Planning on several units, or on windows of differing length: price by unit, place, cut; price what came of it.

Cutting where only measuring tells what a cut costs: a few ways are compiled, measured, and compared.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from framefit.core.settings import Notify
from framefit.core.timetable import Fix, PlannedModel, Timetable
from framefit.planning.beat import Beat, segment_room
from framefit.planning.candidates import (
    Arranged,
    UnitCandidate,
    arrange_kept,
    arrange_on_units,
    first_fit,
    served_share,
)
from framefit.planning.cutting import (
    Candidate,
    Cutting,
    Mode,
    Trial,
    cut,
    fixes,
    learned,
    preferred,
    tried,
    ways_to_cut,
)
from framefit.planning.durations import MeasuredPricing, MeasuredUnits, Pricing, ToldUnits
from framefit.planning.fixes import verified_fixes
from framefit.planning.partition import MOST_OVERHEAD_RATIO, candidate_pieces, planned_quantile_ns
from framefit.planning.placement import Placement, Problem, Room, Stage
from framefit.planning.placement_search import solve
from framefit.planning.task import Bounds, PlannedTask, Stages, handed_bytes
from framefit.planning.timetable import build_timetable, planned_model

__all__ = ["CutsOnTrial", "OnUnits", "OneUnit", "excess_of", "relearn"]


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
    """

    def __init__(
        self,
        prices: MeasuredUnits | ToldUnits,
        stored_ratio: float,
        mode: Mode,
        rate_hz: float,
        notify: Notify,
        kept: Mapping[str, Stages] | None = None,
    ) -> None:
        self.prices, self.mode, self.rate_hz, self.notify = prices, mode, rate_hz, notify
        self._kept = kept or {}
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

    def whole(self, tasks: Sequence[PlannedTask]) -> list[int]:
        """Planned quantile of each uncut model where it is fastest."""
        self.notify("pricing whole models")
        return self.prices.whole(tasks)

    def place(self, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """Whole models first, in pieces where that serves more; then price what came of it, until it holds."""
        self.notify("placing models on units")
        begins = {task.name: {first for first, _ in task.runs} for task in tasks}
        if any(first not in begins[name] for name, stages in self._kept.items() for _, first in stages):
            self.prices.refine(tasks)
        arranged = self._arranged(tasks, beat)
        if arranged.share < _ENOUGH and self.prices.refine(tasks):
            arranged = self._arranged(tasks, beat)
        for _ in range(_MOST_ATTEMPTS):
            if not arranged.timetable.feasible:
                return arranged.timetable
            self._adopt(tasks, arranged)
            models = self._priced_models(tasks, arranged.timetable)
            timetable = build_timetable(beat.guarded(models), models)
            wrong = self.prices.correct(tasks, arranged.timetable.models, models, _WRONG)
            if timetable.feasible or not wrong:
                break
            arranged = self._arranged(tasks, beat)
        return self._with_bound(timetable, arranged, beat)

    def explained(self, timetable: Timetable, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
        """Changes that would help; what binds is named already."""
        self.notify("looking for changes that would help")
        candidates = self._candidates(tasks)

        def arranged(other: Beat, costs: Mapping[str, float]) -> Timetable:
            scaled = [c.scaled(costs[c.model.name]) if c.model.name in costs else c for c in candidates]
            return first_fit(scaled, other, self._rooms, self.mode)

        found = verified_fixes(arranged, beat, [task.name for task in tasks], self.rate_hz)
        return msgspec.structs.replace(timetable, fixes=(*found, *self._freed(tasks, beat)))

    def _freed(self, tasks: Sequence[PlannedTask], beat: Beat) -> list[Fix]:
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

    def _arranged(self, tasks: Sequence[PlannedTask], beat: Beat) -> Arranged:
        """The best way at present prices."""
        candidates = self._candidates(tasks)
        if self._kept:
            kept = {task.name: _in_pieces(self._kept[task.name], task) for task in tasks}
            return arrange_kept(candidates, beat, self._rooms, self.mode, kept)
        size = len(self._rooms) * sum(len(candidate.names) for candidate in candidates)
        solver: Callable[[Problem], Placement] | None = None
        if importlib.util.find_spec("ortools") is not None and size <= _SOLVED:
            solver = partial(solve, time_limit_s=_SOLVER_S)
        return arrange_on_units(candidates, beat, self._rooms, self.mode, solver)

    def _candidates(self, tasks: Sequence[PlannedTask]) -> list[UnitCandidate]:
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
                    [*handed, handed_bytes(task, tasks)],
                    [(names[first], names[last]) for first, last in task.runs],
                    stateful=bool(task.wired.entry.state),
                )
            )
        return found

    def _adopt(self, tasks: Sequence[PlannedTask], arranged: Arranged) -> None:
        """Run as arranged from here on."""
        for task in tasks:
            runs = arranged.runs[task.name]
            bounds = tuple((task.runs[run.first][0], task.runs[run.last][1]) for run in runs)
            task.put(bounds, [run.unit for run in runs], arranged.timetable.model(task.name).slots)

    def _priced_models(self, tasks: Sequence[PlannedTask], timetable: Timetable) -> list[PlannedModel]:
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
                    handed_bytes=handed_bytes(task, tasks),
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


def _in_pieces(stages: Stages, task: PlannedTask) -> list[Stage]:
    """Stages that begin at some layers, in the pieces that begin there."""
    pieces = {first: number for number, (first, _) in enumerate(task.runs)}
    begins = [pieces[first] for _, first in stages]
    ends = [*begins[1:], len(task.runs)]
    return [Stage(unit, first, end - 1) for (unit, _), first, end in zip(stages, begins, ends, strict=True)]


_ROUNDS = 2  # the second one with what the first one taught
_TRIED = 4  # cuttings in each
Runs = list[tuple[int, int]]


class CutsOnTrial:
    """What was found out about the ways to cut a workload's models.

    Args:
        pricing: measures.
        mode: of segmentation.
    """

    def __init__(self, pricing: MeasuredPricing, mode: Mode) -> None:
        self._pricing, self._mode = pricing, mode
        self._known: dict[str, tuple[Cutting, dict[str, list[int]], dict[str, int]]] = {}
        self._trials: list[Trial] = []

    def runs(
        self, candidates: Sequence[Candidate], tasks: Sequence[PlannedTask], beat: Beat
    ) -> Mapping[str, Runs | None]:
        """Runs of pieces for each model that is cut: of the ways that were measured the best.

        Args:
            candidates: all models, priority models first.
            tasks: those of them that may be cut; their pieces' costs are corrected.
            beat: windows, least guard, demands.
        """
        ways = ways_to_cut(candidates, beat, self._mode, _TRIED)
        if len(ways) == 1 and not self._known:
            return ways[0].runs  # nothing to choose from
        for turn in range(_ROUNDS):
            new = [way for way in ways if way.fits and way.runs and str(way.runs) not in self._known]
            if not new:
                break
            self._measure(new, tasks)
            candidates = [self._taught(candidate, tasks) for candidate in candidates]
            if turn + 1 < _ROUNDS:
                ways = ways_to_cut(candidates, beat, self._mode, _TRIED)
        if not self._known:
            return ways[0].runs
        self._trials = [tried(candidates, beat, *known) for known in self._known.values()]
        return preferred(self._trials).cutting.runs

    def notes(self, models: Sequence[PlannedModel]) -> list[str]:
        """Of models as they were measured at last: whether boundaries stay within their budget, and why not."""
        budget = f"{100 * MOST_OVERHEAD_RATIO:g} %"
        within = [trial for trial in self._trials if trial.fits and trial.overhead_ratio <= MOST_OVERHEAD_RATIO]
        best = preferred(self._trials) if self._trials else None
        if best in within:
            why = f"{100 * best.overhead_ratio:.1f} % where ways to cut were compared: the machine varies"
        elif within:
            why = f"what stays within {budget} serves a tenth less"
        else:
            why = f"of {len(self._trials)} cuttings that were measured none that fits stays within {budget}"
        return [
            f"boundaries add {100 * model.segmentation_overhead_ratio:.1f} % to {model.name!r}: {why}"
            for model in models
            if self._trials and model.segmentation_overhead_ratio > MOST_OVERHEAD_RATIO
        ]

    def correct(self, tasks: Sequence[PlannedTask], models: Sequence[PlannedModel]) -> None:
        """Take over what a longer campaign found about the way that was taken.

        Args:
            tasks: that may be cut.
            models: all, as measured.
        """
        runs = {task.name: runs_of(task) for task in tasks if task.bounds}
        for model in models:
            if model.name in runs and str(runs) in self._known:
                _, segments_ns, whole_ns = self._known[str(runs)]
                segments_ns[model.name] = [segment.median_ns for segment in model.segments]
                whole_ns[model.name] = _whole_ns(model)

    def _measure(self, ways: Sequence[Cutting], tasks: Sequence[PlannedTask]) -> None:
        """Medians of all segments and of the uncut models."""
        cut = [task for task in tasks if any(way.runs.get(task.name) for way in ways)]
        bounds = [[_bounds(task, way.runs.get(task.name)) for task in cut] for way in ways]
        medians, whole = self._pricing.cuttings(cut, bounds)
        whole_ns = {task.name: ns for task, ns in zip(cut, whole, strict=True)}
        for way, found in zip(ways, medians, strict=True):
            segments_ns = {task.name: ns for task, ns in zip(cut, found, strict=True) if way.runs.get(task.name)}
            self._known[str(way.runs)] = way, segments_ns, whole_ns

    def _taught(self, candidate: Candidate, tasks: Sequence[PlannedTask]) -> Candidate:
        """With what all measured ways tell of its pieces."""
        task = next((task for task in tasks if task.name == candidate.model.name), None)
        if task is None or task.pieces is None:
            return candidate
        ways = [
            (way.runs[task.name] or [], segments_ns[task.name], float(whole_ns[task.name]))
            for way, segments_ns, whole_ns in self._known.values()
            if task.name in segments_ns
        ]
        task.pieces = learned(task.pieces, ways, excess_of(candidate.model))
        return Candidate(candidate.model, task.pieces, candidate.always_split)


def excess_of(model: PlannedModel) -> float:
    """Greatest quantile over median of a model's segments."""
    return max(segment.duration_ns / max(segment.median_ns, 1) for segment in model.segments)


def relearn(task: PlannedTask, model: PlannedModel) -> None:
    """Correct a cut task's costs by what its segments took.

    Args:
        task: cut, its pieces priced.
        model: it, as measured.
    """
    assert task.pieces is not None
    assert task.uncut is not None
    excess, medians = excess_of(model), [segment.median_ns for segment in model.segments]
    task.pieces = learned(task.pieces, [(runs_of(task), medians, _whole_ns(model))], excess)
    planned_ns = math.ceil(task.uncut.segments[0].median_ns * excess)
    whole = msgspec.structs.replace(task.uncut.segments[0], duration_ns=planned_ns)
    task.uncut = msgspec.structs.replace(task.uncut, segments=(whole,), duration_ns=planned_ns)


def _whole_ns(model: PlannedModel) -> int:
    """Median of the uncut model, measured in turn with its segments."""
    return round(sum(segment.median_ns for segment in model.segments) / (1 + model.segmentation_overhead_ratio))


def runs_of(task: PlannedTask) -> Runs:
    """Its segments as runs of its pieces."""
    first = {run[0]: index for index, run in enumerate(task.runs)}
    last = {run[1]: index for index, run in enumerate(task.runs)}
    return [(first[begin], last[end]) for begin, end in task.bounds]


def _bounds(task: PlannedTask, runs: Runs | None) -> Bounds:
    return tuple((task.runs[first][0], task.runs[last][1]) for first, last in runs or ())


_MOST_PIECES = 64


class OneUnit:
    """Plans a workload that runs on one unit.

    Args:
        pricing: of launches there.
        unit: its name.
        mode: of segmentation.
        rate_hz: of the beat.
        notify: receives what is being done.
    """

    def __init__(
        self,
        pricing: Pricing,
        unit: str,
        mode: Mode,
        rate_hz: float,
        notify: Notify,
    ) -> None:
        self.pricing, self.unit, self.mode, self.rate_hz = pricing, unit, mode, rate_hz
        self.notify = notify
        self.notes: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """Of durations."""
        return self.pricing.warnings

    @property
    def compiles(self) -> bool:
        """Whether models are compiled to price them; else nothing is run."""
        return self.pricing.compiles

    def whole(self, tasks: Sequence[PlannedTask]) -> list[int]:
        """Planned quantile of each uncut model, at a first look."""
        return [planned_quantile_ns(one.whole_ns, one.excess) for one in self.pricing.whole(tasks)]

    def place(self, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
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
        if trials is not None:
            self.notes += trials.notes(timetable.models)
        return timetable

    def explained(self, timetable: Timetable, tasks: Sequence[PlannedTask], beat: Beat) -> Timetable:
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
                f"{'layer' if first == last else 'layers'} {' .. '.join(names)} of {task.name!r} "
                f"{'takes' if first == last else 'take'} "
                f"{task.pieces.quantile_ns[longest] / 1e6:.2f} ms in one piece; the residual less guard is "
                f"{room / 1e6:.2f} ms"
            )
            break
        candidates = [
            Candidate(task.uncut or model, task.pieces, task.wired.entry.always_split)
            for task, model in zip(tasks, timetable.models, strict=True)
        ]
        self.notify("looking for changes that would help")
        found = fixes(candidates, beat, self.rate_hz, self.mode)
        return msgspec.structs.replace(timetable, binding_constraint=binding, fixes=found)

    def _probe(self, task: PlannedTask, model: PlannedModel) -> None:
        """Price the pieces and boundaries of a model that has to be cut, or may be."""
        self.notify(f"pricing cuts of {task.name}")
        self.pricing.group(task)
        task.runs = candidate_pieces(task.model, _MOST_PIECES)
        excess = model.duration_ns / max(model.segments[0].median_ns, 1)
        pieces = self.pricing.pieces(task, model.duration_ns, excess)
        task.pieces = pieces.scaled(task.ratio) if self.pricing.told else pieces  # measured: in parts of the whole

    def _priced_models(self, tasks: Sequence[PlannedTask]) -> list[PlannedModel]:
        """All models as they are to run."""
        models = []
        for task, priced in zip(tasks, self.pricing.segments(tasks), strict=True):
            count = len(task.segments)
            reasons = list(task.reasons)
            if not task.priority:
                reasons.append(
                    f"{task.ratio * planned_quantile_ns(priced.whole_ns, priced.excess) / 1e6:.2f} ms whole: "
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
                    samples_ns=[task.stretched(samples) for samples in priced.segments_ns],
                    whole_ns=task.stretched(priced.whole_ns),
                    excess=priced.excess,
                    layer_names=task.layer_names,
                    after=task.wired.after,
                    handed_bytes=handed_bytes(task, tasks),
                )
            )
        return models
