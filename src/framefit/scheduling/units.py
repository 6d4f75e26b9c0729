"""A workload on several units: placed, cut, and played through; of several ways the one that serves most.

A placement (:mod:`placement`) takes residuals for fluids. So several placements, of whole models and of more and more
stages, are made into timetables (:mod:`unit_search`), and these are compared by the least share of the
demanded rates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from framefit.core.timetable import Timetable
from framefit.scheduling.beat import Beat
from framefit.scheduling.placement import Placement, Problem, Room
from framefit.scheduling.placement_search import place
from framefit.scheduling.planner import Mode
from framefit.scheduling.unit_candidates import UnitCandidate
from framefit.scheduling.unit_search import GAIN, SERVED, Arranged, UnitSearch

__all__ = ["arrange_on_units", "first_fit"]

_STAGES = (1, 2, 3, 4)  # of a model at most: placements of the benchmark gain little from a fifth
_ENOUGH = 0.9  # of what any placement may serve: a better one is looked for
_TUNED_WAYS = 2  # of those with different stages


def arrange_on_units(
    candidates: Sequence[UnitCandidate],
    beat: Beat,
    units: Sequence[Room],
    mode: Mode = "fill",
    solve: Callable[[Problem], Placement] | None = None,
) -> Arranged:
    """Place, cut and build at estimated costs.

    Args:
        candidates: all models; priority models first.
        beat: windows, least guard, demands, links.
        units: with their memory.
        mode: of segmentation.
        solve: places once more where the quick search's timetable leaves something to gain.

    Returns:
        The best that was found; infeasible where none was, with what binds.
    """
    search, limits = UnitSearch(candidates, beat, units, mode), _stage_limits(candidates, units)
    tried: list[Arranged] = []
    bound = 0.0
    for parted in (False, True):
        # Whole priority models leave residuals in one run: parting them has to be tried, but rarely pays.
        for limit in limits if not any(one.timetable.feasible for one in tried) else limits[-1:]:
            tried.append(search.fitting(place, limit, parted=parted))
            bound = max(bound, tried[-1].bound)
            if tried[-1].share >= SERVED:
                return dataclasses.replace(tried[-1], bound=1.0)
    best = _preferred([search.tuned(one) for one in sorted(tried, key=lambda one: one.rank)[-_TUNED_WAYS:]])
    if solve is not None and best.share < _ENOUGH * bound:
        found = search.tuned(search.fitting(solve, limits[-1], parted=True))
        bound = min(bound, found.bound) if found.bound else bound
        best = _preferred([best, found])
    return dataclasses.replace(best, bound=max(bound, best.share))


def _preferred(ways: Sequence[Arranged]) -> Arranged:
    """The one that serves most; results get older with stages, so more of them have to serve clearly more."""
    best, *others = sorted(ways, key=lambda one: one.placement.changes)
    for one in others:
        if not best.timetable.feasible or one.share > best.share * GAIN:
            best = one
    return best


def first_fit(candidates: Sequence[UnitCandidate], beat: Beat, units: Sequence[Room], mode: Mode = "fill") -> Timetable:
    """A timetable that is feasible, or the last that was tried; how much it serves does not count.

    Args:
        candidates: all models; priority models first.
        beat: windows, least guard, demands, links.
        units: with their memory.
        mode: of segmentation.
    """
    search = UnitSearch(candidates, beat, units, mode)
    fewest, *more = _stage_limits(candidates, units)
    for limit, parted in ((fewest, False), *((limit, True) for limit in more[-1:] or (fewest,))):
        timetable = search.fitting(place, limit, parted=parted).timetable
        if timetable.feasible:
            break
    return timetable


def _stage_limits(candidates: Sequence[UnitCandidate], units: Sequence[Room]) -> list[int]:
    """Stages of a model at most that are tried, in turn."""
    fewest = max((candidate.fewest_stages for candidate in candidates), default=1)
    longest = max((len(candidate.names) for candidate in candidates), default=1) if len(units) > 1 else 1
    return [limit for limit in _STAGES if fewest <= limit <= longest] or [fewest]
