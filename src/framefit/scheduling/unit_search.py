"""Placements made into timetables, and made again with what these have shown.

In a timetable segments have to fit, priority periods lie where tensors arrive, frames wait for a turn on each unit
of their way, and as many of them are under way as there are copies of what they hand on. A
placement knows nothing of that. So a piece that is longer than what priority periods leave in one run is barred from
that unit, and priority models that wait longer for links have earlier deadlines. Where the demanded rates seem to be
served and are not, more is placed: loads get even. What turns lose to others is given back by more turns in a round.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from framefit.core.timetable import Timetable
from framefit.scheduling.beat import Beat
from framefit.scheduling.placement import Placement, Problem, Room
from framefit.scheduling.planner import Mode
from framefit.scheduling.reserving import segment_room
from framefit.scheduling.service import turns_in_proportion
from framefit.scheduling.stages import Run, cut_stages
from framefit.scheduling.timetable import build_timetable
from framefit.scheduling.unit_candidates import Terms, UnitCandidate, expanded, problem_of, whole_priority

__all__ = ["GAIN", "SERVED", "Arranged", "UnitSearch", "served_share"]

GAIN = 1.02
"""More stages or frames in flight have to serve so many times as much: results get older."""
SERVED = 0.999
"""Of the demanded rates: nothing is left to gain."""
_AGAIN = 4  # times that one placement is made with what its timetable has shown
_EARLIER = 1.1  # times what a priority model was late, its deadline is earlier
_CROWD = 2.0  # times the demanded rates that are placed then
_SPARE = 2  # frames in flight more than stages: where some wait, others go on
_FINER, _MOST_FINER = 0.5, 5  # longest segments that are tried where the guard follows from them
_TUNED = 8  # times that turns are changed
_MORE_TURNS = 1.25


@dataclass(frozen=True)
class Arranged:
    """A workload on its units at estimated costs.

    Attributes:
        timetable: feasible, or with what binds.
        runs: segments of each model; none where it was not placed.
        placement: that it was made of.
        bound: no placement of as many stages serves a greater least share.
        share: of the demanded rates that the timetable serves the least-served model with.
    """

    timetable: Timetable
    runs: Mapping[str, Sequence[Run]]
    placement: Placement
    bound: float
    share: float

    @property
    def rank(self) -> tuple[bool, float]:
        """The greater the better."""
        return self.timetable.feasible, self.share


def served_share(timetable: Timetable, beat: Beat) -> float:
    """Part of the launches that its frames would make which the least-served background model has.

    Args:
        timetable: feasible, or the answer is 0.
        beat: that it was made for.
    """
    if not timetable.feasible:
        return 0.0
    count = timetable.hyperperiod_windows
    shares = [
        timetable.launches_of(model.name) / (count * beat.arriving(model, timetable.models))
        for model in timetable.models
        if model.role == "background"
    ]
    return min(shares, default=1.0)


class UnitSearch:
    """Placements of one workload, and what timetables they make.

    Args:
        candidates: all models; priority models first.
        beat: windows, least guard, demands, links.
        units: with their memory.
        mode: of segmentation.
    """

    def __init__(self, candidates: Sequence[UnitCandidate], beat: Beat, units: Sequence[Room], mode: Mode) -> None:
        self.beat, self.units, self.mode = beat, units, mode
        self.candidates = {candidate.model.name: candidate for candidate in candidates}
        models = [candidate.model for candidate in candidates]
        self.wanted = {model.name: beat.arriving(model, models) for model in models}
        self._known: dict[tuple[object, ...], Timetable] = {}

    def fitting(self, placed: Callable[[Problem], Placement], stages: int, *, parted: bool) -> Arranged:
        """The best timetable of placements with so many stages at most.

        Args:
            placed: makes a placement.
            stages: of a model.
            parted: priority models may have several stages, where one unit supports all of one.
        """
        terms, candidates = Terms(stages, parted), list(self.candidates.values())
        best: Arranged | None = None
        for _ in range(_AGAIN):
            whole = whole_priority(candidates, self.units, terms)
            problem = problem_of(candidates, self.beat, self.units, terms, whole)
            placement = expanded(placed(problem), candidates, whole)
            found = self._tried(placement)
            # Later placements have less leave: the first one's bound holds.
            found = found if best is None else dataclasses.replace(found, bound=best.bound)
            best = found if best is None or found.rank > best.rank else best
            if found.timetable.feasible:
                if found.share >= SERVED or placement.least_share < SERVED:
                    break
                terms.crowd *= _CROWD
            elif not placement.feasible:
                break
            else:
                misplaced = self._too_long(found) or self._in_the_way(found.timetable)
                late_ns = 0 if misplaced else self._late_ns(found.timetable)
                if not misplaced and late_ns <= 0:
                    break
                terms.bar(misplaced)
                terms.earlier_ns += math.ceil(_EARLIER * late_ns)
        assert best is not None
        return best

    def tuned(self, arranged: Arranged) -> Arranged:
        """With more turns for whoever has least of what it wants, while that helps."""
        if not arranged.timetable.feasible or arranged.share >= SERVED:
            return arranged
        placement, best = arranged.placement, arranged
        slots = {model.name: model.slots for model in arranged.timetable.models}
        longest = max((s.duration_ns for m in arranged.timetable.models for s in m.segments), default=None)
        weights = dict(placement.launches)
        tried: set[tuple[int, ...]] = set()
        for _ in range(_TUNED):
            turns = self._turns(weights)
            if tuple(turns.values()) not in tried:
                tried.add(tuple(turns.values()))
                found = self._built(placement, slots, turns, longest)
                best = max(best, found, key=lambda one: one.rank)
                shares = self._shares(found.timetable)
                least = min(shares, key=lambda name: shares[name], default=None)
            if least is None or best.share >= SERVED:
                break
            weights[least] *= _MORE_TURNS
        return best

    def _shares(self, timetable: Timetable) -> dict[str, float]:
        count = timetable.hyperperiod_windows
        return {
            model.name: timetable.launches_of(model.name) / (count * self.wanted[model.name])
            for model in timetable.models
            if model.role == "background" and timetable.feasible
        }

    def _tried(self, placement: Placement) -> Arranged:
        """The better of few and of more frames in flight, in turn and by share."""
        lengths = self._lengths()
        best: Arranged | None = None
        longest = lengths[0]
        turns = self._turns(placement.launches)
        for spare in (0, _SPARE):
            slots = self._slots(placement, spare)
            if best is None and not self._built(placement, slots, turns, longest).timetable.feasible:
                turns = {}  # results get older with turns
            for limit in lengths if best is None else [longest]:
                found = self._built(placement, slots, turns, limit)
                if best is None or found.share > best.share * GAIN:
                    best, longest = found, limit
            assert best is not None
            if (
                not best.timetable.feasible
                or best.share >= SERVED
                or all(len(s) == 1 for s in placement.stages.values())
            ):
                break
        assert best is not None
        return best

    def _turns(self, weights: Mapping[str, float]) -> dict[str, int]:
        """In a round, in proportion to what is to be served."""
        return dict(zip(weights, turns_in_proportion(list(weights.values())), strict=True))

    def _lengths(self) -> list[int | None]:
        """Greatest segments to be tried: where the guard follows from them, shorter ones too."""
        if not self.beat.excess_ratio or self.beat.preemptive:
            return [None]
        most = max(self.beat.pattern_ns) - self.beat.late_ns
        return [int(most / (1 + self.beat.excess_ratio) * _FINER**step) for step in range(_MOST_FINER)]

    def _slots(self, placement: Placement, spare: int) -> dict[str, int]:
        """Frames in flight: at least one for each stage."""
        found = {}
        for name, stages in placement.stages.items():
            candidate = self.candidates[name]
            several = len(stages) > 1 and not candidate.stateful and candidate.model.role == "background"
            found[name] = len(stages) + spare if several else 1
        return found

    def _built(
        self, placement: Placement, slots: Mapping[str, int], turns: Mapping[str, int], longest_ns: int | None
    ) -> Arranged:
        """A placement's timetable.

        Args:
            placement: stages.
            slots: frames of each model in flight.
            turns: of each model in a round; default: one.
            longest_ns: quantile of a background segment.
        """
        stages = {n: [Run(s.unit, s.first, s.last) for s in placement.stages[n]] for n in self.candidates}
        if not all(one.supports(stages[name]) for name, one in self.candidates.items()):
            return self._unplaced(placement)
        models = [one.planned(stages[name], slots[name], turns.get(name, 1)) for name, one in self.candidates.items()]
        covered = self.beat.shared(models).covering(longest_ns)
        priority = [model for model in models if model.role == "priority"]
        rooms = {unit.name: segment_room(covered, priority, unit.name) for unit in self.units}
        if longest_ns is not None:
            rooms = {unit: min(room, longest_ns) for unit, room in rooms.items()}
        runs: dict[str, Sequence[Run]] = {}
        for name, candidate in self.candidates.items():
            own = stages[name]
            if candidate.model.role == "background":
                found = cut_stages(
                    candidate.pieces,
                    placement.stages[name],
                    rooms,
                    covered.guard_ns,
                    self.mode,
                    preemptive=self.beat.preemptive,
                )
                # The piece that is too long gets named.
                own = found or [Run(s.unit, n, n) for s in placement.stages[name] for n in range(s.first, s.last + 1)]
            runs[name] = own
        models = [one.planned(runs[name], slots[name], turns.get(name, 1)) for name, one in self.candidates.items()]
        key = tuple((tuple(runs[model.name]), model.slots, model.turns) for model in models)
        if key not in self._known:  # other lengths, and other placements, often come to the same
            self._known[key] = build_timetable(self.beat.guarded(models), models)
        timetable = self._known[key]
        if timetable.feasible and not placement.feasible:
            timetable = _refused(timetable, placement.reason)
        return Arranged(timetable, runs, placement, placement.bound, served_share(timetable, self.beat))

    def _unplaced(self, placement: Placement) -> Arranged:
        """Nothing to build: some model finds no way over the units."""
        models = [candidate.model for candidate in self.candidates.values()]
        timetable = msgspec.structs.replace(build_timetable(self.beat, []), models=tuple(models))
        return Arranged(_refused(timetable, placement.reason), {}, placement, placement.bound, 0.0)

    def _too_long(self, arranged: Arranged) -> list[tuple[str, int, str]]:
        """Pieces that are segments of their own, and longer than any room on their unit."""
        timetable = arranged.timetable
        priority = [model for model in timetable.models if model.role == "priority"]
        beat = dataclasses.replace(self.beat, guard_ns=timetable.guard_ns).shared(timetable.models)
        rooms = {unit: segment_room(beat, priority, unit) for unit in timetable.units}
        return [
            (model.name, run.first, run.unit)
            for model in timetable.models
            if model.role == "background" and not beat.preemptive
            for run, segment in zip(arranged.runs[model.name], model.segments, strict=True)
            if run.first == run.last and segment.duration_ns > rooms[run.unit]
        ]

    def _in_the_way(self, timetable: Timetable) -> list[tuple[str, int, str]]:
        """Pieces of the longest priority model where frames of another stream come while it runs, and are late."""
        if self.beat.even:
            return []
        durations = {m.name: m.duration_ns for m in timetable.models if m.role == "priority"}
        for window in timetable.windows:
            for period in window.priority:
                limit = self.beat.of(period.model).deadline_ns or window.length_ns
                sharing = {p.model for w in timetable.windows for p in w.priority if p.unit == period.unit}
                if period.end_ns > limit and len(sharing) > 1:
                    longest = max(sharing, key=lambda name: durations[name])
                    return [(longest, piece, period.unit) for piece in range(len(self.candidates[longest].names))]
        return []

    @staticmethod
    def _late_ns(timetable: Timetable) -> int:
        """By how much priority models are late, or their periods longer than windows allow."""
        over = [
            max((p.end_ns for p in w.priority), default=0) + timetable.guard_ns - w.length_ns for w in timetable.windows
        ]
        return max(-timetable.worst_slack_ns, *over, 0)


def _refused(timetable: Timetable, reason: str | None) -> Timetable:
    """Not feasible, for a reason that its times do not show."""
    return msgspec.structs.replace(timetable, feasible=False, binding_constraint=reason)
