"""Planning on one unit: price, cut, place; price what came of it and cut anew, until it holds.

Where only measuring says what a cut costs, a few ways to cut are compiled, measured, and compared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import msgspec

from framefit.core.settings import Notify
from framefit.core.timetable import PlannedModel, Timetable
from framefit.planning.beat import Beat
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
from framefit.planning.durations import Durations, MeasuredDurations
from framefit.planning.partition import MOST_OVERHEAD_RATIO, candidate_pieces, planned_quantile_ns
from framefit.planning.reserved import segment_room
from framefit.planning.task import Bounds, SegmentedModel, read_output_bytes
from framefit.planning.timetable import build_timetable, planned_model

_MOST_ATTEMPTS = 4
_ROUNDS = 2  # the second one with what the first one taught
_TRIED = 4  # cuttings in each
Runs = list[tuple[int, int]]


class CutsOnTrial:
    """What was found out about the ways to cut a workload's models.

    Args:
        pricing: measures.
        mode: of segmentation.
    """

    def __init__(self, pricing: MeasuredDurations, mode: Mode) -> None:
        self._pricing, self._mode = pricing, mode
        self._known: dict[str, tuple[Cutting, dict[str, list[int]], dict[str, int]]] = {}
        self._trials: list[Trial] = []

    def runs(
        self, candidates: Sequence[Candidate], tasks: Sequence[SegmentedModel], beat: Beat
    ) -> tuple[Mapping[str, Runs | None], list[SegmentedModel]]:
        """Runs of pieces for each model that is cut: of the ways that were measured the best.

        Args:
            candidates: all models, priority models first.
            tasks: those of them that may be cut.
            beat: windows, least guard, demands.

        Returns:
            The runs, and the models with their pieces' costs corrected.
        """
        tasks = list(tasks)
        ways = ways_to_cut(candidates, beat, self._mode, _TRIED)
        if len(ways) == 1 and not self._known:
            return ways[0].runs, tasks  # nothing to choose from
        for turn in range(_ROUNDS):
            new = [way for way in ways if way.fits and way.runs and str(way.runs) not in self._known]
            if not new:
                break
            self._measure(new, tasks)
            candidates = [self._taught(candidate, tasks) for candidate in candidates]
            pieces = {candidate.model.name: candidate.pieces for candidate in candidates}
            tasks = [dataclasses.replace(task, pieces=pieces[task.name]) for task in tasks]
            if turn + 1 < _ROUNDS:
                ways = ways_to_cut(candidates, beat, self._mode, _TRIED)
        if not self._known:
            return ways[0].runs, tasks
        self._trials = [tried(candidates, beat, *known) for known in self._known.values()]
        return preferred(self._trials).cutting.runs, tasks

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

    def correct(self, tasks: Sequence[SegmentedModel], models: Sequence[PlannedModel]) -> None:
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

    def _measure(self, ways: Sequence[Cutting], tasks: Sequence[SegmentedModel]) -> None:
        """Medians of all segments and of the uncut models."""
        cut = [task for task in tasks if any(way.runs.get(task.name) for way in ways)]
        bounds = [[_bounds(task, way.runs.get(task.name)) for task in cut] for way in ways]
        medians, whole = self._pricing.cuttings(cut, bounds)
        whole_ns = {task.name: ns for task, ns in zip(cut, whole, strict=True)}
        for way, found in zip(ways, medians, strict=True):
            segments_ns = {task.name: ns for task, ns in zip(cut, found, strict=True) if way.runs.get(task.name)}
            self._known[str(way.runs)] = way, segments_ns, whole_ns

    def _taught(self, candidate: Candidate, tasks: Sequence[SegmentedModel]) -> Candidate:
        """With what all measured ways tell of its pieces."""
        task = next((task for task in tasks if task.name == candidate.model.name), None)
        if task is None or task.pieces is None:
            return candidate
        ways = [
            (way.runs[task.name] or [], segments_ns[task.name], float(whole_ns[task.name]))
            for way, segments_ns, whole_ns in self._known.values()
            if task.name in segments_ns
        ]
        return Candidate(
            candidate.model, learned(task.pieces, ways, excess_of(candidate.model)), candidate.always_split
        )


def excess_of(model: PlannedModel) -> float:
    """Greatest quantile over median of a model's segments."""
    return max(segment.duration_ns / max(segment.median_ns, 1) for segment in model.segments)


def relearned(task: SegmentedModel, model: PlannedModel) -> SegmentedModel:
    """A model with its costs corrected by what its segments took.

    Args:
        task: cut, its pieces priced.
        model: it, as measured.
    """
    assert task.pieces is not None
    assert task.uncut is not None
    excess, medians = excess_of(model), [segment.median_ns for segment in model.segments]
    planned_ns = math.ceil(task.uncut.segments[0].median_ns * excess)
    whole = msgspec.structs.replace(task.uncut.segments[0], duration_ns=planned_ns)
    return dataclasses.replace(
        task,
        pieces=learned(task.pieces, [(runs_of(task), medians, _whole_ns(model))], excess),
        uncut=msgspec.structs.replace(task.uncut, segments=(whole,), duration_ns=planned_ns),
    )


def _whole_ns(model: PlannedModel) -> int:
    """Median of the uncut model, measured in turn with its segments."""
    return round(sum(segment.median_ns for segment in model.segments) / (1 + model.segmentation_overhead_ratio))


def runs_of(task: SegmentedModel) -> Runs:
    """Its segments as runs of its pieces."""
    first = {run[0]: index for index, run in enumerate(task.runs)}
    last = {run[1]: index for index, run in enumerate(task.runs)}
    return [(first[begin], last[end]) for begin, end in task.bounds]


def _bounds(task: SegmentedModel, runs: Runs | None) -> Bounds:
    return tuple((task.runs[first][0], task.runs[last][1]) for first, last in runs or ())


def _cut_at(task: SegmentedModel, runs: Runs | None) -> SegmentedModel:
    """A model cut into runs of its pieces; as it is where that is none, or one."""
    bounds = _bounds(task, runs)
    return dataclasses.replace(task, bounds=bounds) if len(bounds) > 1 else task


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
        pricing: Durations,
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

    def whole(self, tasks: Sequence[SegmentedModel]) -> tuple[list[SegmentedModel], list[int]]:
        """Planned quantile of each uncut model, at a first look."""
        tasks = self.pricing.prepared(tasks)
        return tasks, [planned_quantile_ns(one.whole_ns, one.excess) for one in self.pricing.whole(tasks)]

    def place(self, tasks: Sequence[SegmentedModel], beat: Beat) -> tuple[list[SegmentedModel], Timetable]:
        """Price, cut and place; price what came of it and cut anew, until it holds."""
        trials = CutsOnTrial(self.pricing, self.mode) if isinstance(self.pricing, MeasuredDurations) else None
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
                runs = cut(candidates, beat, self.mode).runs
            else:
                open_tasks = [task for task in tasks if task.name in undecided]
                trials.correct(open_tasks, models)
                runs, corrected = trials.runs(candidates, open_tasks, beat)
                by_name = {task.name: task for task in corrected}
                tasks = [by_name.get(task.name, task) for task in tasks]
            before, tasks = tasks, [_cut_at(task, runs.get(task.name)) for task in tasks]
            if all(task.bounds == one.bounds for task, one in zip(tasks, before, strict=True)):
                break
        if trials is not None:
            self.notes += trials.notes(timetable.models)
        return tasks, timetable

    def explained(self, timetable: Timetable, tasks: Sequence[SegmentedModel], beat: Beat) -> Timetable:
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

    def _probed(self, task: SegmentedModel, model: PlannedModel) -> SegmentedModel:
        """A model that has to be cut, or may be, with the costs of its pieces and boundaries."""
        self.notify(f"pricing cuts of {task.name}")
        task = self.pricing.group(task)
        task = dataclasses.replace(task, runs=tuple(candidate_pieces(task.model, _MOST_PIECES)))
        excess = model.duration_ns / max(model.segments[0].median_ns, 1)
        pieces = self.pricing.pieces(task, model.duration_ns, excess)
        # Measured pieces are in parts of the whole, which was scaled already.
        return dataclasses.replace(task, pieces=pieces.scaled(task.ratio) if self.pricing.exact else pieces)

    def _priced_models(self, tasks: Sequence[SegmentedModel]) -> list[PlannedModel]:
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
                    uncut_ns=None if task.uncut is None else task.uncut.whole_ns,
                    priority=task.priority,
                    level=task.level,
                    reasons=reasons,
                    samples_ns=[task.stretched(samples) for samples in priced.segments_ns],
                    whole_ns=task.stretched(priced.whole_ns),
                    excess=priced.excess,
                    layer_names=task.layer_names,
                    after=task.wired.after,
                    read_output_bytes=read_output_bytes(task, tasks),
                )
            )
        return models
