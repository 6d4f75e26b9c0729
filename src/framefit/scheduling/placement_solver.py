"""Place models on units with OR-Tools' CP-SAT: the problem of :mod:`placement`, with a bound.

One literal says whether a piece runs on a unit. The greatest relative load T (scaled to whole
numbers) is made least; that a unit's load is at most T times what its priority models leave is
linear but for the product of T with the literals of priority models, each of which is a variable of its
own between the bounds on T that the prices and the quick search have given.
The quick search's placement is the solver's hint, and is returned where the solver finds no better one.
Within the least share, the greatest sum of rates and the fewest changes are left to descent.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from framefit.errors import MissingExtraError
from framefit.scheduling.placement import Costs, Paths, Placement, Problem
from framefit.scheduling.placement_search import polish, search

__all__ = ["solve"]

_SCALE = 10_000  # of T: its rounding is a hundredth of a per cent
_PARTS = 100_000  # of a window, that loads are rounded down to: the bound stays one
_WORKERS = 2
_KICKS_S = 1.5  # of the quick search that gives the hint, a second of the limit: a fifth of the time
_ENOUGH = 1e-3  # gap at which looking on is not worth it


def solve(problem: Problem, *, time_limit_s: float = 10.0) -> Placement:
    """A placement that is the best, or has a bound on how much better another can be.

    Args:
        problem: models, units, links.
        time_limit_s: for all of it; the seed and the number of workers are fixed.

    Returns:
        A placement whose ``reason`` says what is violated where none was found without a violation.

    Raises:
        MissingExtraError: OR-Tools is not installed.
    """
    cp_model, begun = _solver(), time.monotonic()
    costs = Costs(problem)
    chosen, bound = search(costs, math.ceil(_KICKS_S * time_limit_s))
    best = costs.rank(chosen)
    if math.isinf(best[0]) or (best[0] == 0 and bound * best[1] <= 1 + _ENOUGH):
        return costs.placement(chosen, bound, "solver")
    model = _Formulation(cp_model, costs, chosen, bound)
    found, load_bound = model.solved(max(time_limit_s - (time.monotonic() - begun), 0.1))
    if found is not None:
        found = polish(costs, found)
        if costs.rank(found) < best:
            chosen = found
    return costs.placement(chosen, min(bound, 1 / load_bound if load_bound > 0 else 1.0), "solver")


def _solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingExtraError("ortools", "solve") from error
    return cp_model


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
        solver = self.cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = time_limit_s
        solver.parameters.num_workers = _WORKERS
        solver.parameters.random_seed = 0
        solver.parameters.relative_gap_limit = _ENOUGH
        status = solver.solve(self.model)
        if status == self.cp_model.INFEASIBLE:
            return None, math.inf
        load_bound = (solver.best_objective_bound - 1) / _SCALE  # T was rounded up
        if status not in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE):
            return None, load_bound
        found = []
        for index, rows in enumerate(self.on):
            units = [next(u for u, literal in row.items() if solver.boolean_value(literal)) for row in rows]
            found.append(self.costs.paths(index, np.array([units])))
        return found, load_bound

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
                        if duration > self.window:
                            model.add(row[unit] == 0)
                        elif reserved:
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
