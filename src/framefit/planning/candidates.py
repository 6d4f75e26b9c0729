"""Models with what they take on each unit, and the placement problem that they make.

A placed model in segments: each of its stages cut for the unit that it runs on.

Placements made into timetables, and made again with what these have shown.

In a timetable segments have to fit, priority periods lie where tensors arrive, frames wait for a turn on each unit
of their way, and as many of them are under way as there are copies of what they hand on. A
placement knows nothing of that. So a piece that is longer than what priority periods leave in one run is barred from
that unit, and priority models that wait longer for links have earlier deadlines. Where the demanded rates seem to be
served and are not, more is placed: loads get even. What turns lose to others is given back by more turns in a round.

A workload on several units: placed, cut, and played through; of several ways the one that serves most.

A placement (:mod:`placement`) takes residuals for fluids. So several placements, of whole models and of more and more
stages, are made into timetables (:mod:`unit_search`), and these are compared by the least share of the
demanded rates.

A workload on the units where its models are placed already: on another beat, or where launches take longer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec
import numpy as np

from framefit.core.policy import turns_in_proportion
from framefit.core.timetable import PlannedModel, Segment, Timetable, in_order
from framefit.planning.beat import Beat
from framefit.planning.cutting import Mode
from framefit.planning.partition import Pieces, beside, partition
from framefit.planning.placement import Costs, Placeable, Placement, Problem, Room, Stage
from framefit.planning.placement_search import place
from framefit.planning.reserved import in_turn, segment_room
from framefit.planning.timetable import build_timetable, longest_replica_ns


@dataclass(frozen=True)
class Run:
    """Pieces ``first`` to ``last`` as one segment of a replica, on a unit."""

    unit: str
    first: int
    last: int
    replica: int = 0


def split_at(runs: Sequence[Run], pauses: Sequence[int]) -> list[Run]:
    """Runs of pieces, parted before some of these."""
    parts = []
    for run in runs:
        edges = [run.first, *(piece for piece in pauses if run.first < piece <= run.last), run.last + 1]
        parts += [Run(run.unit, first, end - 1, run.replica) for first, end in itertools.pairwise(edges)]
    return parts


def cut_stages(
    pieces: Mapping[str, Pieces],
    stages: Sequence[Stage],
    room_ns: Mapping[str, int],
    guard_ns: int,
    mode: Literal["fill", "fewest", "equal"] = "fill",
    *,
    preemptive: bool = False,
) -> list[Run] | None:
    """The segments of a background model that was placed.

    A model that fits whole into one unit's residual runs whole, and so does a stage that fits, but where residuals are
    to be filled: the model is split all the same, and others share its units. What is longer is cut like a model of
    its own.

    Args:
        pieces: of the whole model, as measured on each unit.
        stages: where they were placed.
        room_ns: unit -> the longest planned duration that a segment may have there
            (:func:`~framefit.planning.reserved.segment_room`).
        guard_ns: that this room leaves free.
        mode: of segmentation.
        preemptive: units can be interrupted: no stage need be cut.

    Returns:
        One entry a segment, in order; ``None`` where a single piece is longer than the room.
    """
    runs: list[Run] = []
    for stage in stages:
        own = pieces[stage.unit].part(stage.first, stage.last)
        room = room_ns[stage.unit]
        _, quantile = own.of([(0, len(own) - 1)])
        splits = mode == "fill" and len(stages) > 1
        if preemptive or (quantile[0] <= room and not splits):
            runs.append(Run(stage.unit, stage.first, stage.last, stage.replica))
            continue
        cuts = partition(own, room + guard_ns, room, mode) if room > 0 else None
        if cuts is None:
            return None
        runs += [Run(stage.unit, stage.first + first, stage.first + last, stage.replica) for first, last in cuts]
    return runs


@dataclass(frozen=True)
class UnitCandidate:
    """A model with what its pieces take on each unit.

    Attributes:
        model: name, role, level, reasons, and what it reads; its segments do not count.
        pieces: by unit; where it does not support one, any number.
        supported: by unit and piece.
        boundary_bytes: of what each piece hands on.
        names: first and last layer of each piece.
        stateful: a frame needs what the one before gives at its end: one of them is in flight.
        pauses: of a priority model: pieces before which it waits for an instant of its own on the unit where it is.
    """

    model: PlannedModel
    pieces: Mapping[str, Pieces]
    supported: Mapping[str, Sequence[bool]]
    boundary_bytes: Sequence[int]
    names: Sequence[tuple[str, str]]
    stateful: bool = False
    pauses: tuple[int, ...] = ()

    def scaled(self, factor: float) -> UnitCandidate:
        """The same at other costs on all units."""
        pieces = {unit: own.scaled(factor) for unit, own in self.pieces.items()}
        return dataclasses.replace(self, pieces=pieces)

    def restricted(self, units: Sequence[str], pauses: Sequence[int] = ()) -> UnitCandidate:
        """The same where each piece may run on one unit only.

        Args:
            units: of each piece.
            pauses: see the class.
        """
        supported = {
            unit: [able and unit == here for able, here in zip(row, units, strict=True)]
            for unit, row in self.supported.items()
        }
        return dataclasses.replace(self, supported=supported, pauses=tuple(pauses))

    @property
    def fewest_stages(self) -> int:
        """On its way over units that support its pieces."""
        count, possible = 1, set(self.supported)
        for piece in range(len(self.names)):
            here = {unit for unit, able in self.supported.items() if able[piece]}
            count, possible = (count, possible & here) if possible & here else (count + 1, here)
        return count

    def supports(self, runs: Sequence[Run]) -> bool:
        """Whether units support what they are to run."""
        return all(all(self.supported[run.unit][run.first : run.last + 1]) for run in runs)

    def planned(self, runs: Sequence[Run], slots: int, turns: Sequence[int] = (1,)) -> PlannedModel:
        """The model in segments at estimated costs.

        Args:
            runs: its pieces as segments.
            slots: frames in flight.
            turns: of each replica, in a round of each of its units.
        """
        segments = []
        for index, run in enumerate(runs):
            median, quantile = self.pieces[run.unit].of([(run.first, run.last)])
            first, last = self.names[run.first][0], self.names[run.last][1]
            segments.append(
                Segment(
                    index=index,
                    unit=run.unit,
                    fill_layer=first,
                    first_layer=first,
                    last_layer=last,
                    output_layers=(last,),
                    duration_ns=math.ceil(quantile[0]),
                    median_ns=round(median[0]),
                    boundary_bytes=self.boundary_bytes[run.last],
                    tensors=(),
                    replica=run.replica,
                )
            )
        return PlannedModel(
            name=self.model.name,
            role=self.model.role,
            level=self.model.level,
            reasons=self.model.reasons,
            duration_ns=longest_replica_ns(segments),
            segments=tuple(segments),
            slots=slots,
            after=self.model.after,
            turns=turns[0],
            replica_turns=tuple(turns) if len(set(turns)) > 1 else (),
        )


@dataclass
class Terms:
    """On which a placement is asked for.

    Attributes:
        stages: of a model at most.
        parted: priority models may have several, where one unit supports all of one.
        barred: model -> pieces, and units on which each does not fit.
        earlier_ns: than their deadlines priority models have to be ready.
        crowd: times their rates background models are wanted.
    """

    stages: int
    parted: bool
    barred: dict[str, set[tuple[int, str]]] = field(default_factory=dict)
    earlier_ns: int = 0
    crowd: float = 1.0

    def bar(self, misplaced: Sequence[tuple[str, int, str]]) -> None:
        """Keep pieces of models off units from here on."""
        for name, piece, unit in misplaced:
            self.barred.setdefault(name, set()).add((piece, unit))

    def able(self, candidate: UnitCandidate, unit: str) -> list[bool]:
        """Which pieces may run on a unit."""
        barred = self.barred.get(candidate.model.name, ())
        return [able and (piece, unit) not in barred for piece, able in enumerate(candidate.supported[unit])]


def whole_priority(candidates: Sequence[UnitCandidate], units: Sequence[Room], terms: Terms) -> set[str]:
    """Priority models that are to be placed in one piece: some unit can run all of one.

    Args:
        candidates: all models.
        units: where they may run.
        terms: of the placement.
    """
    return {
        candidate.model.name
        for candidate in candidates
        if not terms.parted
        and candidate.model.role == "priority"
        and any(all(terms.able(candidate, unit.name)) for unit in units)
    }


def problem_of(
    candidates: Sequence[UnitCandidate], beat: Beat, units: Sequence[Room], terms: Terms, whole: Collection[str]
) -> Problem:
    """The workload for a placement; windows of differing length count as their mean.

    Args:
        candidates: all models.
        beat: windows, guard, demands, links.
        units: with their memory.
        terms: of the placement.
        whole: models that are one piece.
    """
    models = [candidate.model for candidate in candidates]
    wanted = {model.name: beat.arriving(model, models) for model in models}
    priority = in_order(in_turn(beat, [model for model in models if model.role == "priority"]))
    ordered = [*priority, *(model for model in models if model.role == "background")]
    by_name = {candidate.model.name: candidate for candidate in candidates}
    return Problem(
        window_ns=sum(beat.pattern_ns) // len(beat.pattern_ns),
        guard_ns=beat.guard_ns,
        units=units,
        models=[
            _placeable(by_name[model.name], beat, units, terms, wanted[model.name], whole=model.name in whole)
            for model in ordered
        ],
        links=beat.links,
        slots=terms.stages,
        late_ns=beat.late_ns,
        longest_ns=None if beat.even else max(beat.pattern_ns) - beat.guard_ns - beat.late_ns,
    )


def _placeable(
    candidate: UnitCandidate, beat: Beat, units: Sequence[Room], terms: Terms, wanted: float, *, whole: bool
) -> Placeable:
    """One model of the problem: what its pieces take within a stage."""
    columns = []
    for unit in units:
        own, able = candidate.pieces[unit.name], terms.able(candidate, unit.name)
        inside = np.maximum(own.median_ns - beside(own.boundary_ns), 0)  # inner boundaries are few, and cost little
        quantile = np.ceil(inside * (own.quantile_ns / np.maximum(own.median_ns, 1)))
        if whole:
            inside, quantile, able = inside.sum(keepdims=True), quantile.sum(keepdims=True), [all(able)]
        columns.append((inside, quantile, able))
    count, priority = len(columns[0][2]), candidate.model.role == "priority"
    within_ns = beat.window_ns - beat.guard_ns - beat.late_ns
    deadline_ns = beat.of(candidate.model.name).deadline_ns or within_ns
    if beat.even:
        deadline_ns = min(deadline_ns, within_ns)
    return Placeable(
        name=candidate.model.name,
        role="priority" if priority else "background",
        duration_ns=[[int(q[n]) if able[n] else None for _, q, able in columns] for n in range(count)],
        median_ns=[[int(m[n]) if able[n] else None for m, _, able in columns] for n in range(count)],
        parameter_bytes=[0] * count,
        boundary_bytes=[0, *candidate.boundary_bytes[-count:]],
        # Segments have to fit beside what is reserved in any window, so it counts in full where all are alike.
        rate=(1.0 if beat.even else wanted) if priority else wanted * terms.crowd,
        deadline_ns=None if not priority else max(deadline_ns - terms.earlier_ns, 1) if beat.layout is None else _ANY,
    )


def expanded(placement: Placement, candidates: Sequence[UnitCandidate], whole: Collection[str]) -> Placement:
    """In the models' own pieces again.

    Args:
        placement: of a problem in which some models
        candidates: of all
        whole: were one piece.
    """
    last = {candidate.model.name: len(candidate.names) - 1 for candidate in candidates}
    stages = {
        name: (Stage(way[0].unit, 0, last[name]),) if name in whole else way for name, way in placement.stages.items()
    }
    return dataclasses.replace(placement, stages=stages)


GAIN = 1.02
"""More stages or frames in flight have to serve so many times as much: results get older."""
SERVED = 0.999
"""Of the demanded rates: nothing is left to gain."""
_ANY = 10**12  # a deadline that holds: when priority models begin is laid out already
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
    def rank(self) -> tuple[bool, float, int]:
        """The greater the better; of those with results that are too old, the one where they are so by least."""
        refusal = self.timetable.proof
        late_ns = None if refusal is None else refusal.lateness_ns
        return self.timetable.feasible, self.share, -_ANY if late_ns is None else -late_ns


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


Stages = Mapping[str, tuple[Stage, ...]]  # of each model
Turns = Mapping[str, Sequence[int]]  # of each model's replicas


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

    def may_have_several(self, candidate: UnitCandidate) -> bool:
        """Whether a model's frames may go to several replicas: a background model that keeps no state.

        Its frames come by themselves, and nobody reads it.
        """
        model, demand = candidate.model, self.beat.of(candidate.model.name)
        read = any(model.name in other.model.after for other in self.candidates.values())
        waits = demand.refuses or demand.waits
        alone = not (model.after or read or waits)
        return model.role == "background" and alone and not (candidate.stateful or candidate.pauses)

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
            attempt = self._tried(placement)
            # Later placements have less leave: the first one's bound holds.
            attempt = attempt if best is None else dataclasses.replace(attempt, bound=best.bound)
            best = attempt if best is None or attempt.rank > best.rank else best
            if attempt.timetable.feasible:
                if attempt.share >= SERVED or placement.least_share < SERVED:
                    break
                terms.crowd *= _CROWD
            elif not placement.feasible:
                break
            else:
                misplaced = self._too_long(attempt) or self._in_the_way(attempt.timetable)
                late_ns = 0 if misplaced else self._late_ns(attempt.timetable)
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
        tried: set[tuple[tuple[int, ...], ...]] = set()
        for _ in range(_TUNED):
            turns = self._turns(weights)
            if tuple(turns.values()) not in tried:
                tried.add(tuple(turns.values()))
                attempt = self.built(placement, slots, turns, longest)
                best = max(best, attempt, key=lambda one: one.rank)
                shares = self._shares(attempt.timetable)
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
        lengths = self.lengths()
        best: Arranged | None = None
        longest = lengths[0]
        turns: Turns = self._turns(placement.launches)
        for spare in (0, _SPARE):
            slots = self.slots(placement.stages, spare)
            if best is None and not self.built(placement, slots, turns, longest).timetable.feasible:
                turns = {}  # results get older with turns
            for limit in lengths if best is None else [longest]:
                attempt = self.built(placement, slots, turns, limit)
                if best is None or attempt.share > best.share * GAIN:
                    best, longest = attempt, limit
            assert best is not None
            if (
                not best.timetable.feasible
                or best.share >= SERVED
                or all(len(s) == 1 for s in placement.stages.values())
            ):
                break
        assert best is not None
        return best

    def _turns(self, weights: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
        """In a round, in proportion to what is to be served."""
        turns = turns_in_proportion(list(weights.values()))
        return {name: (count,) for name, count in zip(weights, turns, strict=True)}

    def lengths(self) -> list[int | None]:
        """Greatest segments to be tried: where the guard follows from them, shorter ones too."""
        if not self.beat.excess_ratio or self.beat.preemptive:
            return [None]
        most = max(self.beat.pattern_ns) - self.beat.late_ns
        return [int(most / (1 + self.beat.excess_ratio) * _FINER**step) for step in range(_MOST_FINER)]

    def slots(self, placed: Stages, spare: int) -> dict[str, int]:
        """Frames in flight: at least one for each stage."""
        counts = {}
        for name, stages in placed.items():
            candidate = self.candidates[name]
            most = max(Counter(stage.replica for stage in stages).values())
            several = most > 1 and not candidate.stateful and candidate.model.role == "background"
            counts[name] = most + spare if several else 1
        return counts

    def cut(
        self, placed: Stages, slots: Mapping[str, int], turns: Turns, longest_ns: int | None
    ) -> tuple[list[PlannedModel], dict[str, Sequence[Run]]] | None:
        """The models in segments, and what these are made of; ``None`` where a unit does not support its part.

        Args:
            placed: stages of each model.
            slots: frames of each model in flight.
            turns: of each model's replicas in a round; default: one.
            longest_ns: quantile of a background segment.
        """
        stages = {
            name: split_at([Run(s.unit, s.first, s.last, s.replica) for s in placed[name]], one.pauses)
            for name, one in self.candidates.items()
        }
        if not all(one.supports(stages[name]) for name, one in self.candidates.items()):
            return None
        models = [one.planned(stages[name], slots[name]) for name, one in self.candidates.items()]
        shared = self.beat.guarded(models).shared(models)
        priority = [model for model in models if model.role == "priority"]
        rooms = {unit.name: segment_room(shared, priority, unit.name) for unit in self.units}
        if longest_ns is not None:
            rooms = {unit: min(room, longest_ns) for unit, room in rooms.items()}
        runs: dict[str, Sequence[Run]] = {}
        for name, candidate in self.candidates.items():
            own = stages[name]
            if candidate.model.role == "background":
                cuts = cut_stages(
                    candidate.pieces,
                    placed[name],
                    rooms,
                    shared.guard_ns,
                    self.mode,
                    preemptive=self.beat.preemptive,
                )
                # The piece that is too long gets named.
                own = cuts or [Run(s.unit, n, n, s.replica) for s in placed[name] for n in range(s.first, s.last + 1)]
            runs[name] = own
        return [
            one.planned(runs[name], slots[name], turns.get(name, (1,))) for name, one in self.candidates.items()
        ], runs

    def built(
        self,
        placement: Placement,
        slots: Mapping[str, int],
        turns: Turns,
        longest_ns: int | None,
        *,
        yields: bool = False,
    ) -> Arranged:
        """A placement's timetable; see :meth:`cut`, and for ``yields`` :class:`~framefit.core.policy.Rotation`."""
        cut = self.cut(placement.stages, slots, turns, longest_ns)
        if cut is None:
            return self._unplaced(placement)
        models, runs = cut
        key = (yields, *((tuple(runs[model.name]), model.slots, model.turns, model.replica_turns) for model in models))
        if key not in self._known:  # other lengths, and other placements, often come to the same
            beat = dataclasses.replace(self.beat.guarded(models), yields=yields)
            self._known[key] = build_timetable(beat, models)
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
        beat = self.beat.guarded(timetable.models).shared(timetable.models)
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
        over = [max((p.end_ns for p in w.priority), default=0) - w.length_ns for w in timetable.windows]
        return max(-timetable.worst_slack_ns, *over, 0)


def _refused(timetable: Timetable, reason: str | None) -> Timetable:
    """Not feasible, for a reason that its times do not show."""
    return msgspec.structs.replace(timetable, feasible=False, binding_constraint=reason)


_STAGES = (1, 2, 3, 4)  # of a model at most: placements of the benchmark gain little from a fifth
_ENOUGH = 0.9  # of what any placement may serve: a better one is looked for
_TUNED_WAYS = 2  # of those with different stages


def arrange_on_units(
    candidates: Sequence[UnitCandidate],
    beat: Beat,
    units: Sequence[Room],
    mode: Mode = "fill",
    solve: Callable[[Problem], Placement] | None = None,
    replicate: Callable[[UnitSearch, Sequence[Arranged]], Arranged | None] | None = None,
) -> Arranged:
    """Place, cut and build at estimated costs.

    Args:
        candidates: all models; priority models first.
        beat: windows, least guard, demands, links.
        units: with their memory.
        mode: of segmentation.
        solve: places once more where the quick search's timetable leaves something to gain.
        replicate: gives models further replicas where that serves more; else ``None``.

    Returns:
        The best that was found; infeasible where none was, with what binds.
    """
    search, limits = UnitSearch(candidates, beat, units, mode), _stage_limits(candidates, units)
    several = replicate is not None and any(map(search.may_have_several, candidates))
    tried: list[Arranged] = []
    bound = 0.0
    for parted in (False, True):
        # Whole priority models leave residuals in one run: parting them has to be tried, but rarely pays.
        # What lies between whole models and the most stages is mostly found together with the replicas.
        fits = any(one.timetable.feasible for one in tried)
        for limit in limits[-1:] if fits else limits[:1] if several and not parted else limits:
            tried.append(search.fitting(place, limit, parted=parted))
            bound = max(bound, tried[-1].bound)
            if tried[-1].share >= SERVED:
                return dataclasses.replace(tried[-1], bound=1.0)
    if several and replicate is not None:
        replicated = replicate(search, tried)
        if replicated is not None:
            return dataclasses.replace(replicated, bound=max(bound, replicated.share))
        tried += [search.fitting(place, limit, parted=False) for limit in limits[1:]]
    best = _preferred([search.tuned(one) for one in sorted(tried, key=lambda one: one.rank)[-_TUNED_WAYS:]])
    if solve is not None and not (several and best.timetable.feasible) and best.share < _ENOUGH * bound:
        solution = search.tuned(search.fitting(solve, limits[-1], parted=True))
        if solution.bound and not several:  # of placements with one replica each
            bound = min(bound, solution.bound)
        best = _preferred([best, solution])
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
    for placed, limit, parted in (
        (partial(place, anyhow=True), fewest, False),
        (place, fewest, False),
        (place, (more or [fewest])[-1], True),
    ):
        timetable = search.fitting(placed, limit, parted=parted).timetable
        if timetable.feasible:
            break
    return timetable


def _stage_limits(candidates: Sequence[UnitCandidate], units: Sequence[Room]) -> list[int]:
    """Stages of a model at most that are tried, in turn."""
    fewest = max((candidate.fewest_stages for candidate in candidates), default=1)
    longest = max((len(candidate.names) for candidate in candidates), default=1) if len(units) > 1 else 1
    return [limit for limit in _STAGES if fewest <= limit <= longest] or [fewest]


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
