"""Which of several ways to cut, where only cutting and measuring tells what each costs.

What boundaries cost is priced between short pieces. In longer segments it is something
else: layouts that are kept over many layers, tensors that skip some, where memory lies. So
a few different cuttings are compiled and measured, and played through at what was
measured; what was learned about the boundaries leads to the next ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.scheduling.partition import MOST_OVERHEAD_RATIO, Pieces, beside
from framefit.scheduling.planner import (
    Candidate,
    Cutting,
    Mode,
    choose_segments,
    cut,
    estimated,
    limits,
    served_ratio,
)
from framefit.scheduling.timetable import Beat, segment_room

__all__ = ["Trial", "learned", "preferred", "tried", "ways_to_cut"]

Runs = Sequence[tuple[int, int]]
Floats = npt.NDArray[np.float64]

_ALIKE = 0.005  # of the time: less is not worth another cut
_BEYOND = 0.9  # of what is served counts where boundaries cost more than their budget
_SWEEPS = 20


@dataclass(frozen=True)
class Trial:
    """A cutting at what was measured.

    Attributes:
        cutting: with measured segments.
        fits: every segment fits into every window.
        overhead_ratio: what boundaries add to a model, at most.
        served_ratio: part of the time that is useful background work.
    """

    cutting: Cutting
    fits: bool
    overhead_ratio: float
    served_ratio: float

    @property
    def rank(self) -> tuple[bool, bool, float, int]:
        """The least is the best: what fits, serves most, in the fewest segments.

        Beyond the budget for boundaries, and up to twice that, it has to serve a tenth more: the budget is there so
        that much is served, and a campaign cannot tell 2 from 3 %.
        """
        counted = self.served_ratio * (_BEYOND if self.overhead_ratio > MOST_OVERHEAD_RATIO else 1)
        return (
            not self.fits,
            self.overhead_ratio > 2 * MOST_OVERHEAD_RATIO,
            -round(counted / _ALIKE) * _ALIKE,
            sum(len(model.segments) for model in self.cutting.models),
        )


def ways_to_cut(candidates: Sequence[Candidate], beat: Beat, mode: Mode, most: int) -> list[Cutting]:
    """Different cuttings: the best at estimated costs first, that of the fewest segments, and some between these two.

    Of those with the same numbers of segments the best one: prices are not so exact that
    several would be worth trying.

    Args:
        candidates: priority models first.
        beat: windows, least guard, demands.
        mode: of segmentation; but for "fill" there is one way only.
        most: how many.
    """
    if mode != "fill" or beat.preemptive:
        return [cut(candidates, beat, mode)]
    best: dict[tuple[int, ...], tuple[float, Cutting]] = {}
    ways: list[tuple[int, Mode]] = [(limit, way) for limit in limits(candidates, beat) for way in ("fill", "equal")]
    for limit, way in [(ways[0][0], "fewest"), *ways]:
        runs = choose_segments(candidates, beat.covering(limit), way, limit)
        if None in runs.values():
            break  # a piece is longer than this limit
        models = estimated(candidates, runs)
        found = Cutting(beat.guarded(models), runs, models)
        served = served_ratio(candidates, models, found.beat, varied=True)
        counts = tuple(len(model.segments) for model in models)
        if counts not in best or served > best[counts][0]:
            best[counts] = served, found
    if not best:
        return [cut(candidates, beat, mode)]
    ranked = sorted(best.items(), key=lambda item: (-round(item[1][0] / _ALIKE) * _ALIKE, sum(item[0])))
    order = [counts for counts, _ in ranked]
    fewest, chosen = min(best, key=sum), order[:1]
    for part in range(1, most - 1):  # boundaries may cost more than they are thought to: fewer of them
        wanted = sum(order[0]) * (sum(fewest) / sum(order[0])) ** (part / (most - 1))
        left = [counts for counts in order if counts not in (fewest, *chosen)]
        chosen += sorted(left, key=lambda counts: abs(math.log(sum(counts) / wanted)))[:1]
    return [best[counts][1] for counts in order if counts in (fewest, *chosen)]


def tried(
    candidates: Sequence[Candidate],
    beat: Beat,
    cutting: Cutting,
    segments_ns: Mapping[str, Sequence[int]],
    whole_ns: Mapping[str, float],
) -> Trial:
    """A cutting at what was measured; quantiles in the proportion of the candidates' own.

    Args:
        candidates: that were cut.
        beat: windows, least guard, demands.
        cutting: of them.
        segments_ns: model that is cut -> measured median of each segment.
        whole_ns: the same models -> of the uncut one, measured in turn with them.
    """
    models, overhead = [], 0.0
    for candidate, model in zip(candidates, cutting.models, strict=True):
        medians = segments_ns.get(model.name)
        if medians is None:
            models.append(model)
            continue
        uncut = candidate.model
        overhead = max(overhead, sum(medians) / max(whole_ns[model.name], 1) - 1)
        own = uncut.segments[0].median_ns / max(whole_ns[model.name], 1)  # the machine may be slower or faster now
        excess = uncut.duration_ns / max(uncut.segments[0].median_ns, 1)
        segments = tuple(
            msgspec.structs.replace(
                segment, median_ns=round(median * own), duration_ns=int(np.ceil(median * own * excess))
            )
            for segment, median in zip(model.segments, medians, strict=True)
        )
        models.append(
            msgspec.structs.replace(model, segments=segments, duration_ns=sum(s.duration_ns for s in segments))
        )
    settled = beat.guarded(models)
    room = segment_room(settled, [model for model in models if model.role == "priority"])
    longest = max((s.duration_ns for m in models if m.role == "background" for s in m.segments), default=0)
    fits = settled.preemptive or longest <= room
    return Trial(
        Cutting(settled, cutting.runs, models),
        fits,
        overhead,
        served_ratio(candidates, models, settled, varied=True) if fits else 0.0,
    )


def preferred(trials: Sequence[Trial]) -> Trial:
    """The one to be taken; the first of equals."""
    return min(trials, key=lambda trial: trial.rank)


def learned(pieces: Pieces, ways: Sequence[tuple[Runs, Sequence[int], float]], excess: float) -> Pieces:
    """Costs after some cuttings were measured.

    Each cutting's boundaries take equal parts of what it cost more or less than it was
    priced; the other boundaries change as those did on average. What a segment took moves
    cost between the pieces at its two sides.

    Args:
        pieces: as priced before.
        ways: of each cutting the runs of pieces, the medians of its segments, and that of the
            uncut model measured in turn with them.
        excess: quantile over median.
    """
    before = pieces.boundary_ns.astype(np.float64)
    inside = np.maximum(pieces.median_ns - beside(before), 0)
    total = float(inside.sum())
    boundary, cuts = before.copy(), np.zeros(len(before), bool)
    scaled = [(runs, np.asarray(medians) * (total / max(whole, 1))) for runs, medians, whole in ways if len(runs) > 1]
    for _ in range(_SWEEPS):
        for runs, medians in scaled:
            own = [last for _, last in runs[:-1]]
            cuts[own] = True
            boundary[own] = np.maximum(boundary[own] + (medians.sum() - total - boundary[own].sum()) / len(own), 0)
    if cuts.any():
        boundary[~cuts] = np.maximum(boundary[~cuts] + (boundary - before)[cuts].mean(), 0)
    median = _stretched(inside, boundary, scaled) + beside(boundary)
    return Pieces(
        median_ns=median.astype(np.int64),
        quantile_ns=np.ceil(median * excess).astype(np.int64),
        boundary_ns=boundary.astype(np.int64),
    )


def _stretched(inside: Floats, boundary: Floats, ways: Sequence[tuple[Runs, Floats]]) -> Floats:
    """Pieces' own costs so that as much lies before each cut as was measured, on average over the ways."""
    found: dict[int, list[float]] = {}
    for runs, medians in ways:
        ends = [last for _, last in runs[:-1]]
        own = medians - beside(boundary[ends])
        for end, before in zip(ends, np.cumsum(own)[:-1] * (inside.sum() / max(own.sum(), 1)), strict=True):
            found.setdefault(end, []).append(float(before))
    known = sorted(found)
    sums = np.maximum.accumulate([0.0, *(float(np.mean(found[end])) for end in known), float(inside.sum())])
    stretched = inside.copy()
    for first, last, cost in zip([-1, *known], [*known, len(inside) - 1], np.diff(sums), strict=True):
        part = slice(first + 1, last + 1)
        stretched[part] *= cost / max(inside[part].sum(), 1)
    return stretched
