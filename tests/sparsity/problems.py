"""Small problems whose best assignments can be found by trying all."""

from __future__ import annotations

import itertools

import numpy as np

from framefit.sparsity.problem import Assignment, Problem, PrunableLayer

__all__ = ["best_by_force", "random_problem"]


def random_problem(seed: int, layers: int = 4, levels: int = 5, *, monotone: bool = True) -> Problem:
    """Random tables; errors rise with the level, cycles fall unless ``monotone`` is off.

    An assignment's accuracy is 1 less its error over the greatest one: the additive model is exact.
    """
    random = np.random.default_rng(seed)
    steps = random.uniform(0.05, 1, (layers, levels - 1))
    sparsity = np.concatenate([np.zeros((layers, 1)), np.cumsum(steps, 1) / steps.sum(1)[:, None] * 0.95], 1)
    errors = np.concatenate([np.zeros((layers, 1)), np.cumsum(random.exponential(1, (layers, levels - 1)), 1)], 1)
    dense = random.integers(200, 2000, (layers, 1))
    cycles = np.rint(dense * (1 - sparsity)).astype(np.int64)
    if not monotone:
        cycles[:, 1] = np.rint(dense[:, 0] * 1.2)  # skipping costs more than it saves
    worst = errors[:, -1].sum()
    index = np.arange(layers)

    def evaluate(assignment: Assignment) -> float:
        return float(1 - errors[index, assignment].sum() / worst)

    facts = [
        PrunableLayer(
            name=f"layer {place}",
            outputs=int(random.integers(4, 64)),
            inputs=int(random.integers(4, 64)),
            height=8,
            width=8,
            stride=1 + place % 2,
            kernel=3,
            parameters=int(random.integers(100, 9000)),
            macs=int(dense[place, 0]) * 256,
            extra=float(random.uniform(0, 3)),
        )
        for place in index
    ]
    return Problem(facts, sparsity, cycles, errors, fixed_cycles=100, evaluate=evaluate)


def best_by_force(problem: Problem, budget_cycles: int) -> float:
    """The least sum of errors within a budget, by trying all assignments."""
    layers, levels = problem.levels.shape
    found = (np.asarray(one) for one in itertools.product(range(levels), repeat=layers))
    return min(problem.error(one) for one in found if problem.total(one) <= budget_cycles)
