"""Exact allocation: the least sum of errors within a budget of cycles."""

from __future__ import annotations

import numpy as np

from framefit.sparsity.problem import Assignment, Floats, Problem

BINS = 8192
"""Parts of the budget. A layer's cycles are rounded up to whole parts, so 20 layers waste at most 0.25 % of it."""


def allocate(problem: Problem, budget_cycles: int, errors: Floats | None = None, *, bins: int = BINS) -> Assignment:
    """Choose a level for each layer by dynamic programming over discretised cycles.

    Cycles are rounded up to parts of the budget, so the result never exceeds it; the choice is
    exact for the rounded cycles (the multiple-choice knapsack; Frantar and Alistarh, 2022, "SPDY:
    Accurate Pruning with Speedup Guarantees", section 3.2).

    Args:
        problem: the tables of cycles and errors.
        budget_cycles: cycles that the whole network may take.
        errors: L x S, instead of the problem's errors.
        bins: number of parts of the budget.

    Raises:
        InfeasibleError: no assignment meets the budget.
    """
    problem.check_budget(budget_cycles)
    room = budget_cycles - problem.fixed_cycles
    costs = _binned(problem, room, bins, up=True)
    choices, best = _tables(costs, problem.errors if errors is None else errors, bins)
    if not np.isfinite(best[-1]):  # only the rounding prevents an allocation
        return cheapest(problem)
    left = bins
    assignment = np.zeros(len(costs), np.int64)
    for layer in range(len(costs) - 1, -1, -1):
        assignment[layer] = choices[layer][left]
        left -= int(costs[layer, assignment[layer]])
    return assignment


def bound(problem: Problem, budget_cycles: int) -> float:
    """Lower bound of the sum of errors within the budget: cycles are rounded down.

    Raises:
        InfeasibleError: no assignment meets the budget.
    """
    problem.check_budget(budget_cycles)
    room = budget_cycles - problem.fixed_cycles
    return float(_tables(_binned(problem, room, BINS, up=False), problem.errors, BINS)[1][-1])


def cheapest(problem: Problem) -> Assignment:
    """Return the assignment with each layer at its fastest useful level."""
    return np.asarray([useful[-1] for useful in problem.envelopes], np.int64)


def blind_budget(problem: Problem, budget_cycles: int, blind: Problem | None = None) -> int:
    """Find the budget of a search that ignores the hardware, so that it ends within a budget of cycles.

    Args:
        problem: the problem with the hardware's cycles.
        budget_cycles: cycles that the whole network may take.
        blind: the same problem without the hardware; default: over multiply-accumulates.

    Returns:
        The largest budget whose exact allocation stays within the cycles.

    Raises:
        InfeasibleError: no budget does.
    """
    problem.check_budget(budget_cycles)
    blind = blind or problem.blind()
    low, high = blind.least_cycles, blind.dense_cycles
    while high - low > max(blind.dense_cycles // 2000, 1):
        middle = (low + high) // 2
        fits = problem.total(allocate(blind, middle)) <= budget_cycles
        low, high = (middle, high) if fits else (low, middle)
    return low


def tightened(problem: Problem, assignment: Assignment, budget_cycles: int) -> Assignment:
    """Remove as little more as brings an assignment that exceeds its budget within it.

    In each step the layer goes on whose next useful level adds the least error for the cycles that it saves.

    Raises:
        InfeasibleError: no assignment meets the budget.
    """
    problem.check_budget(budget_cycles)
    levels = assignment.copy()
    while problem.total(levels) > budget_cycles:
        steps = []
        for layer, useful in enumerate(problem.envelopes):
            cycles, errors = problem.cycles[layer], problem.errors[layer]
            faster = [level for level in useful if cycles[level] < cycles[levels[layer]]]
            if faster:
                added = errors[faster[0]] - errors[levels[layer]]
                steps.append((added / (cycles[levels[layer]] - cycles[faster[0]]), layer, int(faster[0])))
        _, layer, level = min(steps)
        levels[layer] = level
    return levels


def _binned(problem: Problem, room: int, bins: int, *, up: bool) -> Floats:
    parts = problem.cycles * (bins / max(room, 1))
    rounded: Floats = np.ceil(parts - 1e-9) if up else np.floor(parts + 1e-9)
    return rounded


def _tables(costs: Floats, errors: Floats, bins: int) -> tuple[list[np.ndarray], Floats]:
    """Best level of each layer for each part of the budget, and the least error of all layers."""
    best: Floats = np.zeros(bins + 1)
    choices = []
    for layer_costs, layer_errors in zip(costs, errors, strict=True):
        new = np.full(bins + 1, np.inf)
        choice = np.zeros(bins + 1, np.int32)
        for level, (cost, error) in enumerate(zip(layer_costs.astype(np.int64), layer_errors, strict=True)):
            if cost > bins:
                continue
            errors_with = best[: bins + 1 - cost] + error
            better = errors_with < new[cost:]
            new[cost:][better] = errors_with[better]
            choice[cost:][better] = level
        best = new
        choices.append(choice)
    return choices, best
