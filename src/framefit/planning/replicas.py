"""Which background models get further replicas: the same layers once more, on other units or in other stages.

With one replica each layer has one unit, and a unit whose time is left over can take layers from another one only at
the price of a fixed division. With several, each frame goes to the replica that is free first. So unit times add up,
where the layers are long, too: three layers of 25 ms in windows of 33 ms fit once into each window of each unit, which
two units in stages serve with every second window, and two replicas with two of three.

Ways for a replica are the whole model on one unit, and the cheapest ways in stages under random prices of the units'
time, without pieces that fit into no window. Sets of them are tried by descent, each made into a timetable: what
packing loses is not known before. Random numbers have a fixed seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from framefit.planning.candidates import GAIN, SERVED, Arranged, Terms, UnitCandidate, UnitSearch, problem_of
from framefit.planning.placement import Costs, Stage
from framefit.planning.placement_search import cheapest_paths
from framefit.planning.reserved import segment_room

_PRICES = 40  # under which ways are looked for
_STAGES = 4  # of a replica at most
_MOST = 5  # replicas of a model
_TRIALS, _PATIENCE = 160, 60  # sets that are tried, and without a better one among them
_BETTER = 1.001

Way = tuple[Stage, ...]
Ways = Mapping[str, Sequence[Way]]  # of each model, one for each of its replicas


def with_replicas(search: UnitSearch, arranged: Arranged) -> Arranged:
    """The arrangement with further replicas where these serve clearly more.

    Args:
        search: of the workload.
        arranged: the best of one replica each.
    """
    if not arranged.timetable.feasible or arranged.share >= SERVED:
        return arranged
    possible = {
        name: _possible(search, candidate, arranged)
        for name, candidate in search.candidates.items()
        if _may_have_several(search, candidate)
    }
    best = _Descent(search, arranged, {name: ways for name, ways in possible.items() if ways}).best()
    return best if best.share > arranged.share * GAIN else arranged


def _may_have_several(search: UnitSearch, candidate: UnitCandidate) -> bool:
    """Background models whose frames need nothing of the one before, come by themselves, and are nobody's input."""
    model, demand = candidate.model, search.beat.of(candidate.model.name)
    read = any(model.name in other.model.after for other in search.candidates.values())
    waits = demand.refuses or demand.waits
    return model.role == "background" and not (candidate.stateful or model.after or read or waits or candidate.pauses)


def _possible(search: UnitSearch, candidate: UnitCandidate, arranged: Arranged) -> list[Way]:
    """Ways for a replica beside the priority models as arranged."""
    timetable, name = arranged.timetable, candidate.model.name
    priority = [model for model in timetable.models if model.role == "priority"]
    beat = search.beat.shared(timetable.models)
    terms = Terms(_STAGES, parted=True)
    for unit in search.units:
        # The guard of a segment that fills the room alone has to fit beside it.
        room = segment_room(beat, priority, unit.name) / (1 + (0 if beat.preemptive else beat.excess_ratio))
        quantiles = candidate.pieces[unit.name].quantile_ns
        if not beat.preemptive:
            terms.bar([(name, piece, unit.name) for piece in np.flatnonzero(quantiles > room).tolist()])
    problem = problem_of(list(search.candidates.values()), search.beat, search.units, terms, set())
    number = [model.name for model in problem.models].index(name)
    costs = Costs(problem)
    able = np.isfinite(costs.duration_ns[number])
    prices = np.exp(np.random.default_rng(0).standard_normal((_PRICES, costs.count)))
    cost, paths = cheapest_paths(costs, number, prices)
    whole = np.flatnonzero(able.all(axis=0))[:, None].repeat(len(able), axis=1)
    ways = np.unique(np.concatenate([whole, paths[np.isfinite(cost)]]), axis=0)
    return [costs.stages(way) for way in ways]


class _Descent:
    """Sets of replicas, each one change from the best one so far.

    Args:
        search: makes timetables.
        arranged: to begin with.
        possible: ways for replicas of the models that may have several.
    """

    def __init__(self, search: UnitSearch, arranged: Arranged, possible: Ways) -> None:
        self._search, self._possible, self._best = search, possible, arranged
        self._ways: dict[str, list[Way]] = {name: [tuple(way)] for name, way in arranged.placement.stages.items()}
        self._random = np.random.default_rng(0)
        self._lengths = search.lengths()
        longest = max(
            (s.duration_ns for m in arranged.timetable.models if m.role == "background" for s in m.segments), default=0
        )
        self._longest = None if self._lengths == [None] else longest

    def best(self) -> Arranged:
        """The one that serves most."""
        for ways in self._first():
            for longest in dict.fromkeys((self._longest, *self._lengths[:1])):
                self._try(ways, longest)
        since = 0
        for _ in range(_TRIALS if self._possible else 0):
            if since >= _PATIENCE or self._best.share >= SERVED:
                break
            since = 0 if self._try(*self._changed()) else since + 1
        return self._best

    def _first(self) -> list[dict[str, list[Way]]]:
        """Models on all units that can run all of them: all models, and each by itself."""
        many: dict[str, list[Way]] = {}
        for name, ways in self._possible.items():
            whole: list[Way] = [way for way in ways if len(way) == 1]
            if len(whole) > 1:
                many[name] = whole
        return [{**self._ways, **many}, *({**self._ways, name: ways} for name, ways in many.items())]

    def _changed(self) -> tuple[dict[str, list[Way]], int | None]:
        """One replica more, less, in another way, or of the same; or shorter segments."""
        random, longest = self._random, self._longest
        name = str(random.choice(list(self._possible)))
        ways, possible = list(self._ways[name]), self._possible[name]
        another, kind = possible[int(random.integers(len(possible)))], random.random()
        if kind < 0.1:
            longest = self._lengths[int(random.integers(len(self._lengths)))]
        elif kind < 0.35 and len(ways) > 1:
            ways.pop(int(random.integers(len(ways))))
        elif kind < 0.6:
            ways[int(random.integers(len(ways)))] = another
        elif kind < 0.75:
            ways.append(ways[int(random.integers(len(ways)))])
        else:
            ways.append(another)
        return {**self._ways, name: ways[:_MOST]}, longest

    def _try(self, ways: Mapping[str, list[Way]], longest: int | None) -> bool:
        """Whether a set is the best so far."""
        stages = {
            name: tuple(dataclasses.replace(stage, replica=number) for number, way in enumerate(its) for stage in way)
            for name, its in ways.items()
        }
        placement = dataclasses.replace(self._best.placement, stages=stages)
        turns = dict.fromkeys(stages, 1)
        for model in self._best.timetable.models:
            turns[model.name] = model.turns
        found = self._search.built(placement, self._search.slots(placement, spare=2), turns, longest)
        if not found.timetable.feasible or found.share <= self._best.share * _BETTER:
            return False
        self._best, self._ways, self._longest = found, dict(ways), longest
        return True
