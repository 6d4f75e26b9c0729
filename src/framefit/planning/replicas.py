"""Which background models get further replicas, beside which placement of the priority models.

With one replica each layer has one unit, and a unit whose time is left over can take layers from another one only at
the price of a fixed division. With several, each frame goes to the replica that is free first. So unit times add up,
where the layers are long, too: three layers of 25 ms in windows of 33 ms fit once into each window of each unit, which
two units in stages serve with every second window, and two replicas with two of three.

A way is what one replica may be: a unit for each piece. What shares of its frames each way should get is a linear
program: the least share of all models is as great as units' times allow. Ways come into it where they are cheap under
its own prices (column generation: Gilmore and Gomory, 1961, "A linear programming approach to the cutting-stock
problem"), and a solution has no more of them than there are models and units. It is solved beside each placement of the
priority models that is tried: where these stand decides which pieces fit where.

What packing loses is not known to it. So its best solutions are played at medians
(:func:`~framefit.planning.playback.median_rates`): with several lengths of segments, with each replica once or several
times (while one does not fit into the rest of a window, another one may), and again with what units held in the play
as what there is: layers move to units that were used less.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.policy import turns_in_proportion
from framefit.core.settings import Notify
from framefit.core.timetable import PlannedModel
from framefit.planning.beat import Span
from framefit.planning.candidates import GAIN, Arranged, Run, Stages, Terms, UnitSearch, problem_of, split_at
from framefit.planning.placement import Costs, Floats, Stage, Units
from framefit.planning.placement_search import cheapest_paths
from framefit.planning.playback import median_rates
from framefit.planning.reserved import reserve, segment_room

_STAGES = 4  # of a replica at most
_MOST = 8  # replicas of a model
_PLACED = 81  # placements of priority models
_COMPARED, _PLAYED = 4, 2  # of these, the best are played, and the best of these played in more ways
_PRICES = 16  # under which ways are looked for at first
_ROUNDS = 8  # of further ways
_WINDOWS, _LENGTHS = 96, 3  # that are played, and longest segments
_AGAIN, _LONGER = 4, 4  # of what serves most, so many are played so many times as long: rounds of many turns are long
_BUILT = 3  # timetables at most
_LOOKS = 2  # at what units hold at the program's costs, after one at what was used of them
_MORE = 1.02  # times that it may have at the next look
_SPARE = 1.1  # times what is wanted: a timetable at the planned quantile serves less than was played
_LEAST = 1e-6
_LEFT = 0.25  # of a piece, where a span ends
_NO_PRICE = 1e-12  # where a piece does not fit it is no way all the same

Way = tuple[Stage, ...]


@dataclass(frozen=True)
class _Share:
    """Part of the demanded rate with which a replica serves its model."""

    model: int
    units: Units  # of each piece
    share: float


@dataclass(frozen=True)
class _Beside:
    """Shares beside a placement of the priority models."""

    priority: Stages
    costs: Costs
    capacity_ns: Floats
    least: float
    shares: Sequence[_Share]


@dataclass(frozen=True)
class _Played:
    """Replicas of all models, and what they were served."""

    beside: _Beside
    stages: Stages
    turns: Mapping[str, tuple[int, ...]]
    longest_ns: int | None
    yields: bool
    least: float
    served: Mapping[str, float]  # of what is wanted, of each background model
    used_ns: Floats

    @property
    def count(self) -> int:
        """Of replicas; results get older with them, and where models yield."""
        return sum(len(turns) for turns in self.turns.values()) + self.yields


def with_replicas(
    search: UnitSearch, arranged: Sequence[Arranged], notify: Notify, least: float | None = None
) -> Arranged | None:
    """The workload with replicas where these serve clearly more.

    Args:
        search: of the workload.
        arranged: with one replica each.
        notify: receives what is being done.
        least: part of its frames that the least-served model has to get; default: clearly more than arranged.

    Returns:
        ``None``: nothing is gained, or none of them was feasible.
    """
    return _Replicating(search, sorted(arranged, key=lambda one: one.rank, reverse=True), notify).best(least)


class _Replicating:
    """Placements of priority models, shares beside them, and how these are served."""

    def __init__(self, search: UnitSearch, arranged: Sequence[Arranged], notify: Notify) -> None:
        self._search, self._arranged, self._notify = search, arranged, notify
        self._names = [unit.name for unit in search.units]
        problem = problem_of(
            list(search.candidates.values()), search.beat, search.units, Terms(_STAGES, parted=True), set()
        )
        self._costs = Costs(problem)
        self._models = [model.name for model in problem.models]
        self._several = {name for name, candidate in search.candidates.items() if search.may_have_several(candidate)}
        self._fixed = arranged[0].placement.stages  # of models that have one replica
        self._known: set[object] = set()  # what was played
        self._slots = {model.name: model.slots for model in arranged[0].timetable.models}
        # Where results must not be too old, models go on as they would by themselves.
        free = all(
            search.beat.of(c.model.name).deadline_ns is None
            for c in search.candidates.values()
            if c.model.role == "background"
        )
        self._may_yield = free and not search.beat.preemptive

    def best(self, least: float | None) -> Arranged | None:
        """The one that serves most, and so much at least."""
        first = self._arranged[0]
        if not first.timetable.feasible:
            return None
        shares = (self._beside(priority) for priority in self._placed())
        ranked = sorted((one for one in shares if one is not None), key=lambda one: -one.least)[:_COMPARED]
        self._notify("comparing replicas")
        played = self._played(ranked)
        if least is None:
            least = self._rate(first.timetable.models) * GAIN
        for one in played[:_BUILT]:
            if one.least < least:
                return None
            arranged = self._built(one)
            if arranged.timetable.feasible:
                return arranged
        return None

    # Placements of the priority models ------------------------------------------------------------------------------

    def _placed(self) -> Iterator[Stages]:
        """Those that were arranged, and each model whole on any unit."""
        priority = [c for c in self._search.candidates.values() if c.model.role == "priority"]
        placed = [
            {candidate.model.name: one.placement.stages[candidate.model.name] for candidate in priority}
            for one in self._arranged
        ]
        possible = [[unit for unit in self._names if all(one.supported[unit])] for one in priority]
        if self._search.beat.layout is None and math.prod(map(len, possible)) <= _PLACED:
            placed += [
                {
                    candidate.model.name: (Stage(unit, 0, len(candidate.names) - 1),)
                    for candidate, unit in zip(priority, units, strict=True)
                }
                for units in itertools.product(*possible)
            ]
        alike, known = self._alike(), set()
        for stages in placed:
            order: dict[str, int] = {}  # which of the units that are alike it is decides nothing
            key = tuple(
                (name, stage.first, alike[stage.unit], order.setdefault(stage.unit, len(order)))
                for name, own in stages.items()
                for stage in own
            )
            if key not in known:
                known.add(key)
                yield stages

    def _alike(self) -> dict[str, int]:
        """Of each unit the number of the first one which is like it; where some models stay where they are, none is."""
        if self._search.beat.links or any(self._models[model] not in self._several for model in self._costs.background):
            return {unit: number for number, unit in enumerate(self._names)}
        kinds = []
        for room in self._search.units:
            of = [(c.pieces[room.name], tuple(c.supported[room.name])) for c in self._search.candidates.values()]
            kinds.append((room.memory_bytes, [(p.median_ns.tolist(), p.quantile_ns.tolist(), able) for p, able in of]))
        return {unit: kinds.index(kind) for unit, kind in zip(self._names, kinds, strict=True)}

    # Shares ---------------------------------------------------------------------------------------------------------

    def _beside(self, priority: Stages) -> _Beside | None:
        """The best shares beside a placement of priority models; ``None``: it is late, or leaves too little."""
        search, beat = self._search, self._search.beat
        models = []
        for name, stages in priority.items():
            runs = split_at([Run(s.unit, s.first, s.last) for s in stages], search.candidates[name].pauses)
            models.append(search.candidates[name].planned(runs, self._slots[name]))
        shared = beat.guarded(models).shared(models)
        if reserve(shared, models).slack_ns < 0:
            return None
        laid_out = reserve(dataclasses.replace(shared, excess_ratio=0.0), models)
        capacity = []
        barred: dict[str, npt.NDArray[np.bool_]] = {}
        for number, unit in enumerate(self._names):
            room = segment_room(shared, models, unit)
            fitting = []
            for name in self._several if not beat.preemptive else ():
                pieces = search.candidates[name].pieces[unit]
                longer = pieces.quantile_ns > room
                barred.setdefault(name, np.zeros((len(longer), len(self._names)), bool))[:, number] = longer
                fitting.append(pieces.median_ns[~longer])
            capacity.append(_held_ns(laid_out.free_windows(unit), beat.excess_ratio, fitting))
        costs = self._costs.barring({self._models.index(name): where for name, where in barred.items()})
        return self._shared(_Beside(priority, costs, np.array(capacity), 0.0, ()), _PRICES, 1)

    def _shared(self, beside: _Beside, prices: int, rounds: int, most: float = 1.0) -> _Beside | None:
        """With the shares of a linear program; the least one is ``most``."""
        program = _Program(beside.costs, beside.capacity_ns, most)
        for model in beside.costs.background:
            name = self._models[model]
            if name in self._several:
                program.look(model, prices)
            else:
                units = [self._names.index(s.unit) for s in self._fixed[name] for _ in range(s.first, s.last + 1)]
                program.add(model, np.array([units]))
        several = [model for model in beside.costs.background if self._models[model] in self._several]
        least, shares = program.solved(several, rounds)
        return dataclasses.replace(beside, least=least, shares=shares) if least > _LEAST else None

    # What is served -------------------------------------------------------------------------------------------------

    def _played(self, ranked: Sequence[_Beside]) -> list[_Played]:
        """Those that serve most first; of what serves nearly the same the one of fewer replicas."""
        lengths = self._search.lengths()[:_LENGTHS]
        groups: list[list[_Played]] = []
        for each in ranked:
            beside = self._shared(each, _PRICES, _ROUNDS) or each
            groups.append([one for length in lengths for one in self._made(beside, length, 1)])
        groups = sorted((ways for ways in groups if ways), key=lambda ways: -max(one.least for one in ways))
        for ways in groups[:_PLAYED]:
            best = max(ways, key=lambda one: one.least)
            for copies in (2, 3):
                ways += self._made(best.beside, best.longest_ns, copies)
            if self._may_yield:
                for copies in (1, 2, 3):
                    ways += self._made(best.beside, best.longest_ns, copies, yields=True)
            for capacity_of in (self._used_ns, *[self._held_ns] * _LOOKS):
                best = max(ways, key=lambda one: one.least)
                if best.least >= 1:
                    break
                held = dataclasses.replace(best.beside, capacity_ns=capacity_of(best))
                again = self._shared(held, _PRICES, _ROUNDS, _SPARE)
                if again is None:
                    break
                for copies in (1, 2, 3):
                    ways += self._made(again, best.longest_ns, copies, yields=best.yields)
        played = _preferred(list(itertools.chain.from_iterable(groups)))[:_AGAIN]
        return _preferred([again for one in played for again in self._play(one, _WINDOWS * _LONGER)])

    @staticmethod
    def _used_ns(played: _Played) -> Floats:
        """What was used of each unit; of units that were not used what they would hold."""
        return np.where(played.used_ns > 0, played.used_ns * _MORE, played.beside.capacity_ns)

    def _held_ns(self, played: _Played) -> Floats:
        """What each unit held of a window, at the program's costs; units that were not used would lose as much."""
        costs, planned = played.beside.costs, dict.fromkeys(self._models, 0.0)
        for one in played.beside.shares:
            planned[self._models[one.model]] += one.share
        held = np.zeros(costs.count)
        for one in played.beside.shares:
            name, way = self._models[one.model], np.asarray(one.units)
            part = one.share * min(played.served[name] / planned[name], 1.0)
            held += np.bincount(way, part * costs.base_ns(one.model)[np.arange(len(way)), way], costs.count)
        used, capacity = played.used_ns > 0, played.beside.capacity_ns
        alike = min(float(held[used].sum() / capacity[used].sum()), 1.0) if used.any() else 1.0
        return np.where(used, held * _MORE, capacity * alike)

    def _made(self, beside: _Beside, longest_ns: int | None, copies: int, *, yields: bool = False) -> list[_Played]:
        """Shares as replicas, each so many times, played; none where they do not fit, or were played before."""
        ways: dict[str, list[Way]] = {}
        weights: dict[str, list[float]] = {}
        for one in sorted(beside.shares, key=lambda one: -one.share):
            name = self._models[one.model]
            many = copies if name in self._several else 1
            ways.setdefault(name, []).extend([beside.costs.stages(one.units)] * many)
            weights.setdefault(name, []).extend([one.share] * many)
        if copies > 1 and max(map(len, ways.values())) > _MOST:
            return []
        counts = iter(turns_in_proportion(list(itertools.chain.from_iterable(weights.values()))))
        turns = {name: tuple(next(counts) for _ in own[:_MOST]) for name, own in weights.items()}
        stages = {
            name: tuple(dataclasses.replace(s, replica=number) for number, way in enumerate(own[:_MOST]) for s in way)
            for name, own in ways.items()
        }
        nothing = np.zeros(len(self._names))
        made = _Played(beside, {**beside.priority, **stages}, turns, longest_ns, yields, 0.0, {}, nothing)
        return self._play(made, _WINDOWS)

    def _play(self, made: _Played, windows: int) -> list[_Played]:
        """So many windows; nothing where segments do not fit, or where the same was played before."""
        cut = self._search.cut(made.stages, self._search.slots(made.stages, spare=2), made.turns, made.longest_ns)
        if cut is None:
            return []
        key = (windows, made.yields, *((name, tuple(runs), made.turns.get(name)) for name, runs in cut[1].items()))
        if key in self._known:
            return []
        self._known.add(key)
        beat = dataclasses.replace(self._search.beat.guarded(cut[0]), yields=made.yields)
        rates, used = median_rates(beat, cut[0], windows)
        served = {name: rates[name] / self._search.wanted[name] for name in rates}
        used_ns = np.array([used.get(unit, 0.0) for unit in self._names])
        return [dataclasses.replace(made, least=min(served.values()), served=served, used_ns=used_ns)]

    def _rate(self, models: Sequence[PlannedModel]) -> float:
        """Of the demanded rates what the least-served model has at medians."""
        rates, _ = median_rates(self._search.beat.guarded(models), models, _WINDOWS * _LONGER)
        return min((rates[name] / self._search.wanted[name] for name in rates), default=1.0)

    def _built(self, played: _Played) -> Arranged:
        """Its timetable."""
        placement = dataclasses.replace(self._arranged[0].placement, stages=played.stages)
        slots = self._search.slots(played.stages, spare=2)
        return self._search.built(placement, slots, played.turns, played.longest_ns, yields=played.yields)


def _preferred(played: Sequence[_Played]) -> list[_Played]:
    """Those that serve most first; of what serves nearly as much as the first, that of fewer replicas."""
    near = max((one.least for one in played), default=0.0) / GAIN
    return sorted(played, key=lambda one: (one.least < near, one.count if one.least >= near else 0, -one.least))


def _held_ns(windows: Sequence[Sequence[Span]], excess_ratio: float, pieces: Sequence[npt.NDArray[np.int64]]) -> float:
    """What a window holds, of the mean: each of its spans loses the guard, and what no segment fits into.

    Where spans end as at random they do so in a piece in proportion to its length, half of which is left; of several
    replicas' pieces a shorter one often fits.
    """
    each = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    lost = 0.0
    if each.sum() > 0:
        lost = (excess_ratio + _LEFT) * float((each.astype(np.float64) ** 2).sum() / each.sum())
    spans = [max(end - begin - lost, 0.0) for window in windows for begin, end in window]
    return sum(spans) / max(len(windows), 1)


class _Program:
    """The linear program: shares of ways, as many as serve the least-served model most.

    Args:
        costs: of the workload; ``inf`` where a piece does not fit.
        capacity_ns: of each unit for background launches, in a window.
        most: least share that is looked for.
    """

    def __init__(self, costs: Costs, capacity_ns: Floats, most: float) -> None:
        from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]  # 0.1 s to load

        self._costs, self._capacity_ns = costs, np.maximum(capacity_ns, 1.0)
        self._solver = solver = pywraplp.Solver.CreateSolver("GLOP")
        endless = solver.infinity()
        self._least = solver.NumVar(0.0, most, "")
        self._units = [solver.Constraint(-endless, 1.0) for _ in range(costs.count)]
        self._served = {model: solver.Constraint(0.0, endless) for model in costs.background}
        for constraint in self._served.values():
            constraint.SetCoefficient(self._least, -1.0)
        solver.Objective().SetCoefficient(self._least, 1.0)
        solver.Objective().SetMaximization()
        self._ways: list[tuple[int, Units]] = []
        self._shares: list[object] = []
        self._known: set[tuple[int, bytes]] = set()

    def look(self, model: int, count: int) -> None:
        """Ways that are cheap under random prices, and under those of the units' own times."""
        prices = np.exp(np.random.default_rng(0).standard_normal((count, self._costs.count)))
        prices[0] = 1.0
        cost, ways = cheapest_paths(self._costs, model, prices / self._capacity_ns)
        self.add(model, ways[np.isfinite(cost)])

    def add(self, model: int, ways: Units) -> bool:
        """Whether any of them is new."""
        known = len(self._ways)
        for way in ways:
            key = model, way.tobytes()
            if key in self._known:
                continue
            self._known.add(key)
            self._ways.append((model, way))
            share = self._solver.NumVar(0.0, 1.0, "")
            self._shares.append(share)
            self._served[model].SetCoefficient(share, 1.0)
            load = np.bincount(way, self._costs.base_ns(model)[np.arange(len(way)), way], self._costs.count)
            for unit in np.flatnonzero(load).tolist():
                self._units[unit].SetCoefficient(share, float(load[unit] / self._capacity_ns[unit]))
        return len(self._ways) > known

    def solved(self, models: Sequence[int], rounds: int) -> tuple[float, list[_Share]]:
        """The least share and the shares of ways; further ways of these models are looked for in so many rounds."""
        for _ in range(rounds):
            if self._solver.Solve() != self._solver.OPTIMAL:
                return 0.0, []
            prices = np.array([max(unit.dual_value(), 0.0) for unit in self._units]) / self._capacity_ns
            prices = np.maximum(prices, max(prices.max() * _LEAST, _NO_PRICE))[None]
            looked = [self.add(model, cheapest_paths(self._costs, model, prices)[1]) for model in models]
            if not any(looked):
                break
        if self._solver.Solve() != self._solver.OPTIMAL:
            return 0.0, []
        shares = [
            _Share(model, way, share.solution_value())  # type: ignore[attr-defined]
            for (model, way), share in zip(self._ways, self._shares, strict=True)
        ]
        return float(self._least.solution_value()), [one for one in shares if one.share > _LEAST]
