"""Cutting where only measuring tells what a cut costs: a few ways are compiled, measured, and compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from framefit.core.timetable import PlannedModel
from framefit.scheduling.partition import MOST_OVERHEAD_RATIO
from framefit.scheduling.planner import Candidate, Cutting, Mode
from framefit.scheduling.timetable import Beat
from framefit.scheduling.trials import Trial, learned, preferred, tried, ways_to_cut
from framefit.workflows.planning.pricing import MeasuredPricing
from framefit.workflows.planning.task import Bounds, PlannedTask

__all__ = ["CutsOnTrial", "excess_of", "relearn"]

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
