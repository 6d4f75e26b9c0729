"""Place models on units quickly: prices for the units' time, the cheapest ways, then descent.

Give each unit's time a price. The cheapest way for each model alone is found exactly by
dynamic programming over pieces, units and stages. Two things follow (Fisher, 1981, "The
Lagrangian relaxation method for solving integer programming problems"):

- *A bound.* Where all loads are at most t times what priority models leave, then for any prices p
  the cheapest ways of the background models cost at most t times (p times the capacities less
  the priority models' cheapest ways). So t is at least the quotient; prices that
  make it greatest are looked for. Memory, deadlines and the length of pieces only
  make t greater.
- *Good ways.* Those that were the cheapest under some prices close to these are what a good
  placement is made of. One way for each model is chosen among them by descent: one model at a time,
  then two at a time, then with ways beside the chosen ones: a boundary moved, a stage moved, a part of one split off.

Everything is counted, nothing is timed, and random numbers have a fixed seed: the same problem gives the same
placement.

Place models on units with OR-Tools' CP-SAT: the problem of :mod:`placement`, with a bound.

One literal says whether a piece runs on a unit. The greatest relative load T (scaled to whole
numbers) is made least; that a unit's load is at most T times what its priority models leave is
linear but for the product of T with the literals of priority models, each of which is a variable of its
own between the bounds on T that the prices and the quick search have given.
The quick search's placement is the solver's hint, and is returned where the solver finds no better one.
Within the least share, the greatest sum of rates and the fewest changes are left to descent.

The solver's limit counts its own work and not the clock (:func:`limited`): how busy the machine is decides nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.planning.placement import Costs, Paths, Placement, Problem, Rank

Floats = npt.NDArray[np.float64]
Units = npt.NDArray[np.int64]
_ROUNDS, _FEW_ROUNDS, _BATCH = 24, 4, 24  # of prices
_STEPS = (0.05, 0.1, 0.2, 0.4)  # of prices towards the loads that they lead to
_DESCENTS = 12
_KICKS, _KICKED, _NEAR = 1, 3, 30  # times, models, and ways of each
_PAIRED = 64  # ways of each of two models that are tried together
_SHIFTS = (-4, -2, -1, 1, 2, 4)  # pieces by which a boundary is moved
_BESIDE = 1e6  # a violation weighs more than any load
_SPREAD = 1e-3  # of the mean square of relative loads: what is equally good but for one unit has room for more
_CHANGE = 1e-7  # a change of unit weighs less than any load
_ALIKE = 1e-9


def place(problem: Problem, *, anyhow: bool = False) -> Placement:
    """A good placement, with a bound on how good any can be; within about a second.

    Args:
        problem: models, units, links.
        anyhow: any placement without a violation is good enough.

    Returns:
        A placement whose ``reason`` says what is violated where none was found without a violation.
    """
    costs = Costs(problem)
    chosen, bound = search(costs, anyhow=anyhow)
    return costs.placement(chosen, bound, "heuristic")


def search(costs: Costs, kicks: int = _KICKS, *, anyhow: bool = False) -> tuple[list[Paths], float]:
    """One path for each model, and a bound on the least share of any placement.

    Args:
        costs: of the problem.
        kicks: how often some models are kicked out of place; about a tenth of a second each for 6 models
            of 30 pieces on 4 units.
        anyhow: any placement without a violation is good enough.
    """
    first = [costs.paths(m, np.zeros((1, len(rows)), np.int64)) for m, rows in enumerate(costs.duration_ns)]
    if costs.capacity_ns <= 0 or not all(_possible(costs, model) for model in range(len(costs.duration_ns))):
        return first, 0.0
    if costs.count == 1:
        left = costs.capacity_ns - sum(float(first[model].load_ns[0, 0]) for model in costs.priority)
        load = sum(float(first[model].load_ns[0, 0]) for model in costs.background)
        return first, min(1.0, max(left, 0.0) / load) if load > 0 else 1.0
    random = np.random.default_rng(0)
    pools, load_bound, start = _priced(costs, random, _FEW_ROUNDS if anyhow else _ROUNDS)
    chosen = [costs.paths(model, units[None]) for model, units in enumerate(start)]
    if not (anyhow and costs.rank(chosen)[0] == 0):
        chosen = _descended(costs, pools, chosen, 0 if anyhow else kicks, random)
    return chosen, min(1.0, 1 / load_bound) if load_bound > 0 else 1.0


def cheapest_paths(costs: Costs, model: int, prices: Floats, patience: Floats | None = None) -> tuple[Floats, Units]:
    """The cheapest way for one model under each of several prices.

    Args:
        costs: of the problem.
        model: number.
        prices: of a nanosecond on each unit; batch x units.
        patience: price of a nanosecond of a priority model's way, links included; batch.

    Returns:
        Cost of the cheapest way for each prices, and its units (batch x pieces).
    """
    base = costs.base_ns(model)
    pieces, units, batch, stages = len(base), costs.count, len(prices), costs.problem.slots
    weights = prices if patience is None else prices + patience[:, None]
    best = np.full((batch, stages, units), np.inf)
    best[:, 0] = weights * base[0]
    came = np.full((pieces, batch, stages, units), -1, np.int64)
    for piece in range(1, pieces):
        if stages > 1:
            if patience is None:
                source = best[:, :-1].argmin(axis=2, keepdims=True)
                moved = best[:, :-1].min(axis=2, keepdims=True)
            else:
                links = costs.transfers_ns(model)[piece]
                ways = best[:, :-1, :, None] + patience[:, None, None, None] * links
                source = ways.argmin(axis=2)
                moved = ways.min(axis=2)
            better = moved < best[:, 1:]
            came[piece, :, 1:] = np.where(better, source, -1)
            best[:, 1:] = np.where(better, moved, best[:, 1:])
        best = best + (weights * base[piece])[:, None]
    flat = best.reshape(batch, -1)
    last = flat.argmin(axis=1)  # of equals the one of the fewest stages
    stage, unit = np.divmod(last, units)
    assignment = np.zeros((batch, pieces), np.int64)
    rows = np.arange(batch)
    for piece in range(pieces - 1, -1, -1):
        assignment[:, piece] = unit
        source = came[piece, rows, stage, unit]
        unit, stage = np.where(source >= 0, source, unit), stage - (source >= 0)
    return flat[rows, last], assignment


def _possible(costs: Costs, model: int) -> bool:
    """Whether the model's pieces are supported, in as many stages as it may have."""
    return bool(np.isfinite(cheapest_paths(costs, model, np.ones((1, costs.count)))[0][0]))


def _priced(costs: Costs, random: np.random.Generator, rounds: int) -> tuple[list[Paths], float, list[Units]]:
    """Ways for each model under many prices, a bound on the relative load, and the ways at the best prices."""
    models = range(len(costs.duration_ns))
    center = np.full(costs.count, 1.0 / costs.count)
    bound, sigma = 0.0, 1.0
    candidates: list[list[Units]] = [[] for _ in models]
    start: list[Units] = [np.zeros(len(costs.duration_ns[m]), np.int64) for m in models]
    loads = np.zeros(costs.count)
    for round_ in range(rounds):
        towards = [center * np.exp(step * (loads / max(loads.mean(), 1e-9) - 1)) for step in _STEPS if round_]
        spread = np.exp(sigma * random.standard_normal((_BATCH - len(towards) - 1, costs.count)))
        prices = np.array([center, *towards, *(center * spread)])
        prices = np.maximum(prices / prices.sum(axis=1, keepdims=True), 1e-6)
        cost = np.zeros(len(prices))
        left = costs.capacity_ns * prices.sum(axis=1)
        ways = []
        for model in models:
            own, units = cheapest_paths(costs, model, prices)
            ways.append(units)
            candidates[model].append(units)
            if model in costs.background:
                cost += own
            else:
                left -= own
        ratio = np.where(left > 0, cost / np.where(left > 0, left, 1.0), np.inf)
        best = int(ratio.argmax())
        if round_ == 0 or ratio[best] > bound:
            bound = max(bound, float(ratio[best]))
            center, start = prices[best], [units[best] for units in ways]
        else:
            sigma *= 0.8
        relevant = [costs.paths(m, start[m][None]).load_ns[0] for m in models]
        loads = np.sum(relevant, axis=0) / costs.capacity_ns
    spread = center * np.exp(0.5 * random.standard_normal((_BATCH, costs.count)))
    patience = np.geomspace(1e-2, 1e3, _BATCH) / costs.count
    for model in costs.priority:
        candidates[model].append(cheapest_paths(costs, model, spread, patience)[1])
    pools = [costs.paths(m, np.unique(np.concatenate(candidates[m]), axis=0)) for m in models]
    for model in costs.priority:
        in_time = costs.late_ns({model: pools[model].units}, [model]) == 0
        if in_time.any():
            pools[model] = pools[model].only(np.flatnonzero(in_time))
    return pools, bound, start


def _descended(
    costs: Costs, pools: list[Paths], chosen: list[Paths], kicks: int, random: np.random.Generator
) -> list[Paths]:
    """From the cheapest ways at the best prices downhill, several times with some models kicked out of place."""
    chosen, best, near = _downhill(costs, pools, chosen)
    for _ in range(kicks):
        if best <= 1 + _SPREAD + _CHANGE * len(pools):
            break  # all is served
        kicked = list(chosen)
        for model in random.choice(len(pools), min(_KICKED, len(pools)), replace=False):
            ways = _ranked(costs, near, chosen, int(model), _NEAR)
            kicked[model] = ways.only(random.integers(len(ways), size=1))
        other, value, tried = _downhill(costs, _widened(costs, pools, chosen, random), kicked)
        if value < best:
            chosen, best, near = other, value, tried
    return _polished(costs, near, chosen, costs.rank(chosen))


def _widened(costs: Costs, pools: Sequence[Paths], chosen: Sequence[Paths], random: np.random.Generator) -> list[Paths]:
    """Besides, the cheapest ways under prices about those that the present loads suggest."""
    loads = np.sum([paths.load_ns[0] for paths in chosen], axis=0) / costs.capacity_ns
    spread = np.exp(random.uniform(0.1, 0.6) * random.standard_normal((_BATCH, costs.count)))
    prices = loads / loads.sum() * spread + 1e-6
    return [
        pool.joined(costs.paths(model, np.unique(cheapest_paths(costs, model, prices)[1], axis=0)))
        for model, pool in enumerate(pools)
    ]


def _downhill(costs: Costs, pools: list[Paths], chosen: list[Paths]) -> tuple[list[Paths], float, list[Paths]]:
    """To where no exchange of one or two ways is better; its value, and the ways last tried."""
    models, base = range(len(pools)), pools
    best = _worth(costs, chosen)
    for _ in range(_DESCENTS):
        before = best
        pools = [base[m].joined(_beside(costs, m, chosen[m])) for m in models]
        for _ in range(len(pools)):
            alone = best
            for model in models:
                candidate = _ranked(costs, pools, chosen, model, 1)
                chosen, best = _better(costs, chosen, best, {model: candidate})
            if best >= alone:
                break
        near = [_ranked(costs, pools, chosen, model, _PAIRED) for model in models]
        late: dict[int, Floats] = {}  # of a priority model's ways, the others as they are
        for first, second in itertools.combinations(models, 2):
            alone = best
            chosen, best = _better(costs, chosen, best, _two(costs, near, chosen, first, second, late))
            if best < alone:
                late.clear()
        if best >= before:
            break
    return chosen, best, pools


def _worth(costs: Costs, chosen: Sequence[Paths]) -> float:
    """The value of one path for each model."""
    violation, relative = costs.worth(*_others(costs, chosen, ()))
    late = float(_late(costs, chosen[0], chosen, 0)[0])
    return float(_value(violation + late, relative, np.sum([paths.changes for paths in chosen], axis=0))[0])


def _better(costs: Costs, chosen: list[Paths], best: float, other: dict[int, Paths]) -> tuple[list[Paths], float]:
    """With other ways for some models, if that is better."""
    changed = [other.get(model, paths) for model, paths in enumerate(chosen)]
    value = _worth(costs, changed)
    return (changed, value) if value < best - _ALIKE else (chosen, best)


def _less(one: Rank, other: Rank) -> bool:
    for left, right in zip(one, other, strict=True):
        if abs(left - right) > _ALIKE:
            return left < right
    return False


def _kept(costs: Costs, chosen: list[Paths], best: Rank, other: dict[int, Paths]) -> tuple[list[Paths], Rank]:
    """With other ways for some models, if that ranks before."""
    changed = [other.get(model, paths) for model, paths in enumerate(chosen)]
    rank = costs.rank(changed)
    return (changed, rank) if _less(rank, best) else (chosen, best)


def _others(costs: Costs, chosen: Sequence[Paths], without: Sequence[int]) -> tuple[Floats, Floats, Floats, Floats]:
    """What the other models ask for: reserved, load, longest piece, memory."""
    zero = np.zeros(costs.count)
    rest = [m for m in range(len(chosen)) if m not in without]
    return (
        sum((chosen[m].load_ns[0] for m in rest if m in costs.priority), zero),
        sum((chosen[m].load_ns[0] for m in rest if m in costs.background), zero),
        np.max([zero, *(chosen[m].longest_ns[0] for m in rest)], axis=0),
        sum((chosen[m].memory_bytes[0] for m in rest), zero),
    )


def _late(costs: Costs, pool: Paths, chosen: Sequence[Paths], model: int) -> Floats:
    """How late priority models are with each of a model's ways, relative to the window."""
    ways = {m: chosen[m].units for m in costs.priority}
    if model in ways:
        ways[model] = pool.units
    late = costs.late_ns(ways) if model in ways else costs.late_together_ns([w[0] for w in ways.values()])
    return np.broadcast_to(late, len(pool)) / costs.capacity_ns


def _value(violation: Floats, relative: Floats, changes: Floats | Units) -> Floats:
    greatest = relative.max(axis=-1)
    spread = np.where(greatest > 1, (relative * relative).mean(axis=-1), 0.0)
    value: Floats = violation * _BESIDE + np.maximum(greatest, 1.0) + _SPREAD * spread + _CHANGE * changes
    return value


def _beside_others(costs: Costs, pool: Paths, chosen: Sequence[Paths], model: int) -> tuple[Floats, Floats]:
    """Of each way for one model, the others as they are: what it violates, lateness included, and relative loads."""
    priority, load, longest, memory = _others(costs, chosen, [model])
    own = model in costs.priority
    violation, relative = costs.worth(
        priority + pool.load_ns * own,
        load + pool.load_ns * (not own),
        np.maximum(longest, pool.longest_ns),
        memory + pool.memory_bytes,
    )
    return violation + _late(costs, pool, chosen, model), relative


def _ranked(costs: Costs, pools: Sequence[Paths], chosen: Sequence[Paths], model: int, most: int) -> Paths:
    """The best ways for one model, the others as they are."""
    pool = pools[model]
    violation, relative = _beside_others(costs, pool, chosen, model)
    value = _value(violation, relative, pool.changes)
    return pool.only(value.argsort(kind="stable")[:most])


def _two(
    costs: Costs,
    pools: Sequence[Paths],
    chosen: Sequence[Paths],
    first: int,
    second: int,
    late: dict[int, Floats],
) -> dict[int, Paths]:
    """The best pair of ways for two models, the others as they are; two priority models do not part.

    How late a priority model's ways are is looked up in ``late``, and put there.
    """
    priority, load, longest, memory = _others(costs, chosen, [first, second])
    one, two = pools[first], pools[second]
    left, right = one.load_ns[:, None], two.load_ns[None]
    first_priority, second_priority = first in costs.priority, second in costs.priority
    violation, relative = costs.worth(
        priority + left * first_priority + right * second_priority,
        load + left * (not first_priority) + right * (not second_priority),
        np.maximum(np.maximum(one.longest_ns[:, None], two.longest_ns[None]), longest),
        memory + one.memory_bytes[:, None] + two.memory_bytes[None],
    )
    for model in {first, second} & set(costs.priority) if first_priority != second_priority else ():
        if model not in late:
            late[model] = _late(costs, pools[model], chosen, model)
        violation = violation + (late[model][:, None] if first_priority else late[model][None])
    value = _value(violation, relative, one.changes[:, None] + two.changes[None])
    i, j = np.unravel_index(int(value.argmin()), value.shape)
    return {first: one.only(np.array([i])), second: two.only(np.array([j]))}


def _beside(costs: Costs, model: int, path: Paths) -> Paths:
    """Ways beside one: a boundary moved, a stage on another unit, an end of a stage split off."""
    units = path.units[0]
    count, edges = len(units), [0, *(np.flatnonzero(np.diff(units)) + 1), len(units)]
    variants = [units]

    def with_run(first: int, last: int, unit: int) -> None:
        changed = units.copy()
        changed[first:last] = unit
        variants.append(changed)

    for edge in edges[1:-1]:
        for shift in _SHIFTS:
            if 0 < edge + shift < count:
                begin, end = sorted((edge, edge + shift))
                with_run(begin, end, int(units[edge - 1] if shift > 0 else units[edge]))
    for first, last in itertools.pairwise(edges):
        for unit in range(costs.count):
            if unit != units[first]:
                with_run(first, last, unit)
                for inner in range(first + 1, last):
                    with_run(first, inner, unit)
                    with_run(inner, last, unit)
    ways = np.unique(np.array(variants), axis=0)
    supported = np.isfinite(costs.duration_ns[model])[np.arange(count), ways].all(axis=1)
    few = np.count_nonzero(np.diff(ways, axis=1), axis=1) < costs.problem.slots
    return costs.paths(model, ways[supported & few])


def polish(costs: Costs, chosen: list[Paths]) -> list[Paths]:
    """The same or a better placement: ways beside its own, the least share no less."""
    pools = [_beside(costs, model, path) for model, path in enumerate(chosen)]
    return _polished(costs, pools, chosen, costs.rank(chosen))


def _polished(costs: Costs, pools: Sequence[Paths], chosen: list[Paths], best: Rank) -> list[Paths]:
    """Without less for the least: more for the others, and fewer changes."""
    for _ in range(len(pools)):
        before = best
        for model, pool in enumerate(pools):
            violation, relative = _beside_others(costs, pool, chosen, model)
            alike = (violation <= best[0] + _ALIKE) & (np.maximum(relative.max(axis=-1), 1.0) <= best[1] + _ALIKE)
            for number in np.flatnonzero(alike):
                chosen, best = _kept(costs, chosen, best, {model: pool.only(np.array([number]))})
        if not _less(best, before):
            break
    return chosen


_SCALE = 10_000  # of T: its rounding is a hundredth of a per cent
_PARTS = 100_000  # of a window, that loads are rounded down to: the bound stays one
_WORK_OF_A_SECOND = 0.05
"""Deterministic time of CP-SAT that takes about a second of processor time: 30 job shops of 4 to 20 pieces on three
units took 17 to 50 s for a whole one, 25 s in the median."""
_KICKS_S = 1.5  # of the quick search that gives the hint, a second of the limit: a fifth of the time
_ENOUGH = 1e-3  # gap at which looking on is not worth it


def limited(solver: Any, limit_s: float) -> Any:
    """A solver that gives the same answer on any number of cores, however busy they are.

    Args:
        solver: of CP-SAT.
        limit_s: about as many seconds of processor time; counted as the solver's own deterministic time.
    """
    solver.parameters.max_deterministic_time = limit_s * _WORK_OF_A_SECOND
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    return solver


def spent_s(solver: Any) -> float:
    """What a limited solver has used of its limit."""
    return float(solver.response_proto.deterministic_time) / _WORK_OF_A_SECOND


def solve(problem: Problem, *, time_limit_s: float = 10.0) -> Placement:
    """A placement that is the best, or has a bound on how much better another can be.

    Args:
        problem: models, units, links.
        time_limit_s: of the solver's work.

    Returns:
        A placement whose ``reason`` says what is violated where none was found without a violation.
    """
    from ortools.sat.python import cp_model  # it takes a third of a second to load

    costs = Costs(problem)
    chosen, bound = search(costs, math.ceil(_KICKS_S * time_limit_s))
    best = costs.rank(chosen)
    if math.isinf(best[0]) or (best[0] == 0 and bound * best[1] <= 1 + _ENOUGH):
        return costs.placement(chosen, bound, "solver")
    model = _Formulation(cp_model, costs, chosen, bound)
    solution, load_bound = model.solved(time_limit_s)
    if solution is not None:
        solution = polish(costs, solution)
        if costs.rank(solution) < best:
            chosen = solution
    return costs.placement(chosen, min(bound, 1 / load_bound if load_bound > 0 else 1.0), "solver")


class _Formulation:
    """The problem in the solver's terms.

    Args:
        cp_model: the solver's module.
        costs: of the problem.
        chosen: one path each, to begin with; it may violate something.
        bound: on the least share.
    """

    def __init__(self, cp_model: Any, costs: Costs, chosen: list[Paths], bound: float) -> None:
        self.cp_model, self.costs, self.model = cp_model, costs, cp_model.CpModel()
        self.units = range(costs.count)
        self.window = int(costs.capacity_ns)
        violation, relative, *_ = costs.rank(chosen)
        self.least = max(math.floor(_SCALE / bound) if bound > 0 else _SCALE, _SCALE)
        self.most = max(math.ceil(relative * _SCALE) + 1 if violation == 0 else 1000 * self.least, self.least)
        self.load = self.model.new_int_var(self.least, self.most, "load")
        self.on = [self._assigned(index, chosen[index]) for index in range(len(chosen))]
        self.starts = {index: self._timed(index) for index in costs.priority}
        self._in_time()
        self._loads()
        self._memory()
        self.model.minimize(self.load)

    def solved(self, time_limit_s: float) -> tuple[list[Paths] | None, float]:
        """The best paths found, and a bound on the relative load."""
        solver = limited(self.cp_model.CpSolver(), time_limit_s)
        solver.parameters.relative_gap_limit = _ENOUGH
        status = solver.solve(self.model)
        if status == self.cp_model.INFEASIBLE:
            return None, math.inf
        load_bound = (solver.best_objective_bound - 1) / _SCALE  # T was rounded up
        if status not in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE):
            return None, load_bound
        paths = []
        for index, rows in enumerate(self.on):
            units = [next(u for u, literal in row.items() if solver.boolean_value(literal)) for row in rows]
            paths.append(self.costs.paths(index, np.array([units])))
        return paths, load_bound

    def _assigned(self, index: int, hint: Paths) -> list[dict[int, Any]]:
        """Literals of each piece on each unit that supports it, and the changes between pieces."""
        supported = np.isfinite(self.costs.duration_ns[index])
        rows = []
        for piece, possible in enumerate(supported):
            row = {int(u): self.model.new_bool_var(f"on_{index}_{piece}_{u}") for u in np.flatnonzero(possible)}
            self.model.add_exactly_one(row.values())
            for unit, literal in row.items():
                self.model.add_hint(literal, int(hint.units[0, piece]) == unit)
            rows.append(row)
        return rows

    def _moves(self, index: int) -> list[tuple[dict[int, Any], dict[int, Any]]]:
        """For each inner boundary, literals of leaving and of entering a unit there; few enough in all."""
        moves: list[tuple[dict[int, Any], dict[int, Any]]] = []
        changes: list[Any] = []
        for piece, (before, after) in enumerate(zip(self.on[index], self.on[index][1:], strict=False)):
            leaving: dict[int, Any] = {}
            entering: dict[int, Any] = {}
            for moved, here, there in ((leaving, before, after), (entering, after, before)):
                for unit, literal in here.items():
                    moved[unit] = self.model.new_bool_var(f"move_{index}_{piece}_{unit}")
                    stays = [there[unit]] if unit in there else []
                    self.model.add_bool_or([~literal, moved[unit], *stays])
            changes += leaving.values()
            moves.append((leaving, entering))
        self.model.add(sum(changes) <= self.costs.problem.slots - 1)
        return moves

    def _timed(self, index: int) -> list[Any]:
        """Beginnings of a priority model's pieces, links kept."""
        costs, model = self.costs, self.model
        deadline = costs.problem.models[index].deadline_ns
        limit = self.window if deadline is None else deadline
        starts = [model.new_int_var(0, limit, f"start_{index}_{piece}") for piece in range(len(self.on[index]))]
        for piece, row in enumerate(self.on[index]):
            for unit, literal in row.items():
                end = starts[piece] + int(costs.duration_ns[index][piece, unit])
                if piece + 1 == len(starts):
                    model.add(end <= limit).only_enforce_if(literal)
                    continue
                for after, other in self.on[index][piece + 1].items():
                    link = int(costs.transfers_ns(index)[piece + 1, unit, after])
                    model.add(starts[piece + 1] >= end + link).only_enforce_if(literal, other)
        return starts

    def _in_time(self) -> None:
        """On each unit priority models run one after the other, in their order."""
        for position, first in enumerate(self.costs.priority):
            for second in self.costs.priority[position + 1 :]:
                for piece, row in enumerate(self.on[first]):
                    for other, other_row in enumerate(self.on[second]):
                        for unit, literal in row.items():
                            if unit in other_row:
                                end = self.starts[first][piece] + int(self.costs.duration_ns[first][piece, unit])
                                start = self.starts[second][other]
                                self.model.add(start >= end).only_enforce_if(literal, other_row[unit])

    def _loads(self) -> None:
        """Each unit's load, at most T times what priority models leave; and each piece fits there."""
        costs, model = self.costs, self.model
        products: dict[tuple[int, int, int], Any] = {}
        for index in costs.priority:
            for piece, row in enumerate(self.on[index]):
                for unit, literal in row.items():
                    product = model.new_int_var(0, self.most, f"product_{index}_{piece}_{unit}")
                    model.add(product == self.load).only_enforce_if(literal)
                    model.add(product == 0).only_enforce_if(~literal)
                    model.add(product >= self.least * literal)
                    products[index, piece, unit] = product
        part = self.window / _PARTS
        for unit in self.units:
            load = sum(
                math.floor(costs.base_ns(index)[piece, unit] / part * _SCALE) * row[unit]
                for index in costs.background
                for piece, row in enumerate(self.on[index])
                if unit in row
            )
            reserved = [
                (int(costs.base_ns(index)[piece, unit]), self.on[index][piece][unit], product)
                for (index, piece, other), product in products.items()
                if other == unit
            ]
            kept = sum(math.floor(ns / part) * product for ns, _, product in reserved)
            model.add(load + kept <= _PARTS * self.load)
            taken = sum(ns * literal for ns, literal, _ in reserved)
            model.add(taken <= self.window)
            for index in costs.background:
                for piece, row in enumerate(self.on[index]):
                    if unit in row:
                        duration = int(costs.duration_ns[index][piece, unit])
                        if duration > max(self.window, costs.problem.longest_ns or 0):
                            model.add(row[unit] == 0)
                        elif reserved and costs.problem.longest_ns is None:
                            model.add(taken + duration <= self.window).only_enforce_if(row[unit])

    def _memory(self) -> None:
        """Parameters, what is held between pieces, and what crosses."""
        costs, model = self.costs, self.model
        used: list[list[Any]] = [[] for _ in self.units]
        bounded = [int(unit) for unit in np.flatnonzero(np.isfinite(costs.memory_bytes))]
        for index, rows in enumerate(self.on):
            size, copies = costs.boundary_bytes[index], costs.copies(index)
            moves = self._moves(index)
            for unit in bounded:
                held = model.new_int_var(0, int((size[:-1] + size[1:]).max()), f"held_{index}_{unit}")
                used[unit].append(held)
                for piece, row in enumerate(rows):
                    if unit in row:
                        used[unit].append(int(costs.parameter_bytes[index][piece]) * row[unit])
                        model.add(held >= int(size[piece] + size[piece + 1]) * row[unit])
                for boundary, pair in enumerate(moves):
                    used[unit] += [int(size[boundary + 1]) * copies * side[unit] for side in pair if unit in side]
        for unit in bounded:
            model.add(sum(used[unit]) <= int(costs.memory_bytes[unit]))
