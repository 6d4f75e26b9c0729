"""A workload on the units where its models are placed already: on another beat, or where launches take longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from framefit.scheduling.beat import Beat
from framefit.scheduling.placement import Costs, Placement, Problem, Room, Stage
from framefit.scheduling.planner import Mode
from framefit.scheduling.unit_candidates import UnitCandidate
from framefit.scheduling.unit_search import Arranged, UnitSearch

__all__ = ["arrange_kept"]


def arrange_kept(
    candidates: Sequence[UnitCandidate],
    beat: Beat,
    units: Sequence[Room],
    mode: Mode,
    kept: Mapping[str, Sequence[Stage]],
) -> Arranged:
    """Cut the stages that there are, choose turns and frames in flight, and build.

    Args:
        candidates: all models; priority models first.
        beat: windows, least guard, demands, links.
        units: with their memory.
        mode: of segmentation.
        kept: pieces of each model on each unit, in order.

    Returns:
        The best timetable of this placement; infeasible where there is none, with what binds.
    """
    numbers = {unit.name: number for number, unit in enumerate(units)}
    of_pieces = {
        name: np.array([[numbers[stage.unit] for stage in own for _ in range(stage.first, stage.last + 1)]])
        for name, own in kept.items()
    }

    def placed(problem: Problem) -> Placement:
        costs = Costs(problem)
        paths = [costs.paths(number, of_pieces[model.name]) for number, model in enumerate(problem.models)]
        return costs.placement(paths, 0.0, "heuristic")

    search = UnitSearch(candidates, beat, units, mode)
    return search.tuned(search.fitting(placed, max(map(len, kept.values())), parted=True))
