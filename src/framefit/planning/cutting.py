"""From costs to a timetable, without a device: cut what is too long, place, or say what binds.

Which of several ways to cut, where only cutting and measuring tells what each costs.

What boundaries cost is priced between short pieces. In longer segments it is something
else: layouts that are kept over many layers, tensors that skip some, where memory lies. So
a few different cuttings are compiled and measured, and played through at what was
measured; what was learned about the boundaries leads to the next ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.timetable import Fix, PlannedModel, Timetable
from framefit.planning.beat import Beat
from framefit.planning.durations import ComparableDurations
from framefit.planning.fixes import verified_fixes
from framefit.planning.partition import MOST_OVERHEAD_RATIO, Pieces, beside, partition
from framefit.planning.playback import at_medians, served_launches, varied_ns
from framefit.planning.reserved import reserve, segment_room
from framefit.planning.task import Bounds, SegmentedModel
from framefit.planning.timetable import build_timetable

Mode = Literal["fill", "fewest", "equal"]
_FINER, _MOST_FINER = 0.75, 11  # longest segments that are tried where the guard follows from them
_PLAYED = 200  # windows
_ALIKE = 0.005  # of the time: less is not worth another cut


@dataclass(frozen=True)
class Candidate:
    """A model with everything that planning needs to know of its cost.

    Attributes:
        model: as it would run uncut: one segment, its role and level.
        pieces: its finest pieces; ``None``: it cannot be cut, or need not be.
        always_split: cut it even where it would fit whole.
    """

    model: PlannedModel
    pieces: Pieces | None = None
    always_split: bool = False


def choose_segments(
    candidates: Sequence[Candidate], beat: Beat, mode: Mode = "fill", limit_ns: int | None = None
) -> dict[str, list[tuple[int, int]] | None]:
    """Runs of pieces for each background model that has to be cut, or is to be.

    Args:
        candidates: priority models first.
        beat: windows, guard, demands.
        mode: of segmentation.
        limit_ns: no segment's quantile is to be greater, though the room may be; default: the room.

    Returns:
        Model -> first and last piece of each segment; ``None`` where no cut makes it fit.
        Models that stay whole are not in it.
    """
    room = segment_room(beat, [c.model for c in candidates if c.model.role == "priority"])
    most = room if limit_ns is None else min(room, limit_ns)
    chosen: dict[str, list[tuple[int, int]] | None] = {}
    for candidate in candidates:
        model = candidate.model
        if model.role == "priority" or candidate.pieces is None:
            continue
        too_long = model.duration_ns > most and not beat.preemptive
        if too_long or candidate.always_split:
            limit = split_limit(candidate.pieces, most, fits=not too_long)
            chosen[model.name] = partition(candidate.pieces, room + beat.guard_ns, limit, mode) if room > 0 else None
    return chosen


def split_limit(pieces: Pieces, room_ns: int, *, fits: bool) -> int:
    """Greatest quantile of a segment: the room, or less than the whole model where that fits and is to be split."""
    return min(room_ns, int(pieces.joined()[1][0, -1]) - 1) if fits else room_ns


def arrange(candidates: Sequence[Candidate], beat: Beat, mode: Mode = "fill") -> Timetable:
    """Cut and place at the estimated costs.

    Where the guard follows from the longest segment (``beat.excess_ratio``), segments are
    made as short as pays: also of models that would fit whole.

    Args:
        candidates: priority models first.
        beat: windows, least guard, demands.
        mode: of segmentation.
    """
    cutting = cut(candidates, beat, mode)
    return build_timetable(cutting.beat, cutting.models)


@dataclass(frozen=True)
class Cutting:
    """Models in segments at their estimated costs.

    Attributes:
        beat: with the guard that they need.
        runs: model -> first and last piece of each segment, ``None`` where no cut makes it
            fit; models that stay whole are not in it.
        models: in the order of the candidates.
    """

    beat: Beat
    runs: Mapping[str, list[tuple[int, int]] | None]
    models: list[PlannedModel]

    @property
    def fits(self) -> bool:
        """Whether a cut was found wherever one is needed."""
        return None not in self.runs.values()


def cut(candidates: Sequence[Candidate], beat: Beat, mode: Mode = "fill") -> Cutting:
    """Cut what has to be cut, and what is better cut; see :func:`arrange`.

    Each greatest length of a segment is played through; of what serves the background
    models alike, the one with the fewest segments is taken.
    """
    ways = [(limit, mode) for limit in _limits(candidates, beat, mode)]
    if len(ways) > 1:
        ways.insert(0, (ways[0][0], "fewest"))
    best: tuple[bool, float, int, Cutting] | None = None
    played: list[Mapping[str, list[tuple[int, int]] | None]] = []
    for limit, way in ways:
        runs = choose_segments(candidates, beat, way, limit)
        if runs in played:
            continue
        played.append(runs)
        models = estimated(candidates, runs)
        cutting = Cutting(beat.guarded(models), runs, models)
        if len(ways) == 1:
            return cutting
        useful = served_ratio(candidates, models, cutting.beat) if cutting.fits else 0.0
        rank = not cutting.fits, -round(useful / _ALIKE) * _ALIKE, sum(len(model.segments) for model in models)
        if best is None or rank < best[:3]:
            best = *rank, cutting
    assert best is not None
    return best[3]


def _limits(candidates: Sequence[Candidate], beat: Beat, mode: Mode) -> Sequence[int | None]:
    """Greatest segments to be tried where the guard follows from them."""
    if not beat.excess_ratio:
        return [None]
    return limits(candidates, beat)[: None if mode == "fill" else 1]


def limits(candidates: Sequence[Candidate], beat: Beat) -> list[int]:
    """Greatest lengths of a segment, from the longest downwards; that one leaves room for its own guard."""
    room = segment_room(beat, [c.model for c in candidates if c.model.role == "priority"])
    return [int(room * _FINER**step) for step in range(_MOST_FINER)]


def estimated(
    candidates: Sequence[Candidate], chosen: Mapping[str, list[tuple[int, int]] | None]
) -> list[PlannedModel]:
    """The candidates in runs of their pieces, at estimated costs.

    Args:
        candidates: of which these
        chosen: are cut; ``None``: into all pieces, for no cut makes it fit.
    """
    models = []
    for candidate in candidates:
        if candidate.model.name not in chosen:
            models.append(candidate.model)
            continue
        runs = chosen[candidate.model.name]
        if runs is None and candidate.pieces is not None:
            runs = [(piece, piece) for piece in range(len(candidate.pieces))]  # the one that is too long gets named
        models.append(_cut(candidate, runs or []))
    return models


def served_ratio(candidates: Sequence[Candidate], models: Sequence[PlannedModel], beat: Beat) -> float:
    """Part of the time that is useful background work: the uncut models' medians, played through.

    Launches vary: nobody knows exactly what they take, so no window may be filled to the brim.

    Args:
        candidates: uncut.
        models: the same as they are cut.
        beat: with its guard.
    """
    reserved = reserve(beat, [at_medians(model) for model in models if model.role == "priority"]).windows
    taken = max(sum(period.end_ns - period.start_ns for period in periods) for periods in reserved)
    background = [(c, m) for c, m in zip(candidates, models, strict=True) if m.role == "background"]
    # Each has frames of its own, as many as of the stream, and turns like any other.
    demands = {m.name: dataclasses.replace(beat.of(m.name), releases=None) for _, m in background}
    launches = served_launches(
        Beat(
            window_ns=beat.window_ns,
            guard_ns=beat.guard_ns,
            demands=demands,
            excess_ratio=beat.excess_ratio,
        ),
        [msgspec.structs.replace(model, after=(), turns=1) for _, model in background],
        (taken, beat.window_ns - beat.guard_ns),
        _PLAYED,
        {model.name: varied_ns(model) for _, model in background},
    )
    whole = [sum(segment.median_ns for segment in c.model.segments) for c, _ in background]
    return sum(count * ns for count, ns in zip(launches, whole, strict=True)) / (_PLAYED * beat.window_ns)


def _cut(candidate: Candidate, runs: Sequence[tuple[int, int]]) -> PlannedModel:
    """The model in segments at their estimated costs; layers are numbered by piece."""
    assert candidate.pieces is not None
    median, quantile = candidate.pieces.of(runs)
    whole = candidate.model.segments[0]
    segments = tuple(
        msgspec.structs.replace(
            whole,
            index=index,
            duration_ns=round(quantile[index]),
            median_ns=round(median[index]),
            fill_layer=f"{whole.first_layer}#{first}",
            first_layer=f"{whole.first_layer}#{first}",
            last_layer=f"{whole.first_layer}#{last}",
        )
        for index, (first, last) in enumerate(runs)
    )
    total = sum(segment.duration_ns for segment in segments)
    overhead = sum(segment.median_ns for segment in segments) / max(whole.median_ns, 1) - 1
    return msgspec.structs.replace(
        candidate.model, segments=segments, duration_ns=total, segmentation_overhead_ratio=max(overhead, 0.0)
    )


def fixes(candidates: Sequence[Candidate], beat: Beat, rate_hz: float, mode: Mode = "fill") -> tuple[Fix, ...]:
    """Small changes that make a workload of one unit fit; see :func:`~framefit.planning.fixes.verified_fixes`.

    Args:
        candidates: at their measured costs.
        beat: that is infeasible.
        rate_hz: of the beat.
        mode: of segmentation.
    """

    def arranged(other: Beat, costs: Mapping[str, float]) -> Timetable:
        return arrange(
            [_scaled(c, costs[c.model.name]) if c.model.name in costs else c for c in candidates], other, mode
        )

    return verified_fixes(arranged, beat, [c.model.name for c in candidates], rate_hz)


def _scaled(candidate: Candidate, factor: float) -> Candidate:
    segments = tuple(
        msgspec.structs.replace(s, duration_ns=int(s.duration_ns * factor), median_ns=int(s.median_ns * factor))
        for s in candidate.model.segments
    )
    model = msgspec.structs.replace(
        candidate.model, segments=segments, duration_ns=sum(s.duration_ns for s in segments)
    )
    pieces = None if candidate.pieces is None else candidate.pieces.scaled(np.full(len(candidate.pieces), factor))
    return Candidate(model, pieces, candidate.always_split)


Runs = Sequence[tuple[int, int]]
Floats = npt.NDArray[np.float64]
_BEYOND = 0.9  # of what is served counts where boundaries cost more than their budget
_SWEEPS = 20
_ROUNDS = 2  # of trials; the second one with what the first one taught
_TRIED = 4  # cuttings in each


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
        runs = choose_segments(candidates, beat, way, limit)
        if None in runs.values():
            break  # a piece is longer than this limit
        models = estimated(candidates, runs)
        cutting = Cutting(beat.guarded(models), runs, models)
        served = served_ratio(candidates, models, cutting.beat)
        counts = tuple(len(model.segments) for model in models)
        if counts not in best or served > best[counts][0]:
            best[counts] = served, cutting
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
        served_ratio(candidates, models, settled) if fits else 0.0,
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
    factors: dict[int, list[float]] = {}
    for runs, medians in ways:
        ends = [last for _, last in runs[:-1]]
        own = medians - beside(boundary[ends])
        for end, before in zip(ends, np.cumsum(own)[:-1] * (inside.sum() / max(own.sum(), 1)), strict=True):
            factors.setdefault(end, []).append(float(before))
    known = sorted(factors)
    sums = np.maximum.accumulate([0.0, *(float(np.mean(factors[end])) for end in known), float(inside.sum())])
    stretched = inside.copy()
    for first, last, cost in zip([-1, *known], [*known, len(inside) - 1], np.diff(sums), strict=True):
        part = slice(first + 1, last + 1)
        stretched[part] *= cost / max(inside[part].sum(), 1)
    return stretched


class CutTrials:
    """Ways to cut a workload's models that were compiled and measured, and the one of them to be taken.

    Args:
        durations: measured.
        mode: of segmentation.
    """

    def __init__(self, durations: ComparableDurations, mode: Mode) -> None:
        self._durations, self._mode = durations, mode
        self._known: dict[str, tuple[Cutting, dict[str, list[int]], dict[str, int]]] = {}
        self._trials: list[Trial] = []

    def runs(
        self, candidates: Sequence[Candidate], tasks: Sequence[SegmentedModel], beat: Beat
    ) -> tuple[Mapping[str, list[tuple[int, int]] | None], list[SegmentedModel]]:
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
        """Take over what a longer campaign measured of the way that was taken.

        Args:
            tasks: that may be cut.
            models: all, as measured.
        """
        runs = {task.name: task.segment_runs for task in tasks if task.bounds}
        for model in models:
            if model.name in runs and str(runs) in self._known:
                _, segments_ns, whole_ns = self._known[str(runs)]
                segments_ns[model.name] = [segment.median_ns for segment in model.segments]
                whole_ns[model.name] = _whole_ns(model)

    def _measure(self, ways: Sequence[Cutting], tasks: Sequence[SegmentedModel]) -> None:
        """Medians of all segments and of the uncut models."""
        cut = [task for task in tasks if any(way.runs.get(task.name) for way in ways)]
        bounds = [[bounds_of(task, way.runs.get(task.name)) for task in cut] for way in ways]
        medians, whole = self._durations.cuttings(cut, bounds)
        whole_ns = {task.name: ns for task, ns in zip(cut, whole, strict=True)}
        for way, taken_ns in zip(ways, medians, strict=True):
            segments_ns = {task.name: ns for task, ns in zip(cut, taken_ns, strict=True) if way.runs.get(task.name)}
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
        pieces=learned(task.pieces, [(task.segment_runs, medians, _whole_ns(model))], excess),
        uncut=msgspec.structs.replace(task.uncut, segments=(whole,), duration_ns=planned_ns),
    )


def _whole_ns(model: PlannedModel) -> int:
    """Median of the uncut model, measured in turn with its segments."""
    return round(sum(segment.median_ns for segment in model.segments) / (1 + model.segmentation_overhead_ratio))


def bounds_of(task: SegmentedModel, runs: Runs | None) -> Bounds:
    """First and last layer of each segment that is made of runs of a model's pieces."""
    return tuple((task.runs[first][0], task.runs[last][1]) for first, last in runs or ())


def cut_at(task: SegmentedModel, runs: Runs | None) -> SegmentedModel:
    """A model cut into runs of its pieces; as it is where that is none, or one."""
    bounds = bounds_of(task, runs)
    return dataclasses.replace(task, bounds=bounds) if len(bounds) > 1 else task
