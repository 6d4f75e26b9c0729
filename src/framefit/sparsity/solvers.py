"""The solvers by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framefit.core.sparsity import RewardKind
from framefit.errors import InputError, MissingExtraError
from framefit.sparsity.allocation import allocate
from framefit.sparsity.baselines import Once, RandomSearch, erk, lamp, uniform
from framefit.sparsity.local_search import CoefficientSearch, SwapSearch
from framefit.sparsity.problem import Assignment, Floats, Problem
from framefit.sparsity.solver import Solver

__all__ = ["ONCE", "SEARCHES", "SOLVERS", "make_solver"]


ONCE = ("uniform", "erk", "lamp", "dp")
"""Solvers with one proposal."""
SEARCHES = ("random", "spdy", "swaps", "ddpg", "ddpg-warm", "auto")
"""Solvers that go on until their budget is spent."""
SOLVERS = (*ONCE, *SEARCHES)
_WARM = 8  # allocations that a warm start learns from


def make_solver(
    name: str,
    problem: Problem,
    budget_cycles: int,
    seed: int,
    *,
    evaluations: int,
    weights: Sequence[Floats] = (),
    kind: RewardKind = "accuracy-log-cycles",
    agreement: float = 0.0,
) -> Solver:
    """A solver of :data:`SOLVERS`.

    "auto" is exact allocation, then search for better coefficients, then swaps from the best.

    Args:
        name: of the solver.
        problem: to be solved.
        budget_cycles: of the network.
        seed: of all that it draws.
        evaluations: that it may expect to get.
        weights: of each layer; only "lamp" reads them.
        kind: of the reward that "ddpg" learns.
        agreement: of predicted and received reward at which "ddpg" ends; 0: never before its budget.

    Raises:
        InputError: no such solver.
        MissingExtraError: "ddpg" without the extra.
        InfeasibleError: no assignment meets the budget.
    """
    problem.check_budget(budget_cycles)
    random = np.random.default_rng(seed)
    match name:
        case "uniform":
            return Once(name, lambda: uniform(problem, budget_cycles))
        case "erk":
            return Once(name, lambda: erk(problem, budget_cycles))
        case "lamp":
            return Once(name, lambda: lamp(problem, budget_cycles, weights))
        case "dp":
            return Once(name, lambda: allocate(problem, budget_cycles))
        case "random":
            return RandomSearch(problem, budget_cycles, random)
        case "spdy":
            return CoefficientSearch(problem, budget_cycles, random)
        case "swaps":
            return SwapSearch(problem, budget_cycles, random)
        case "auto":
            return _Auto(problem, budget_cycles, random, evaluations)
        case "ddpg" | "ddpg-warm":
            warm = _allocations(problem, budget_cycles, random) if name == "ddpg-warm" else []
            try:
                from framefit.sparsity.ddpg import ActorCritic
            except ImportError as error:
                raise MissingExtraError("stable-baselines3", "train") from error
            return ActorCritic(
                problem, budget_cycles, random, episodes=evaluations, kind=kind, warm=warm, agreement=agreement
            )
    raise InputError(f"no solver {name!r}", remedy=f"choose from {', '.join(SOLVERS)}")


def _allocations(problem: Problem, budget_cycles: int, random: np.random.Generator) -> list[Assignment]:
    """The exact allocation, and those for randomly scaled errors."""
    scales = np.exp(random.normal(0, 0.5, (_WARM, len(problem.layers), 1)))
    scales[0] = 1
    return [allocate(problem, budget_cycles, problem.errors * scale) for scale in scales]


class _Auto:
    """Coefficients for half of the evaluations, then swaps from the best of them."""

    name = "auto"

    def __init__(self, problem: Problem, budget_cycles: int, random: np.random.Generator, evaluations: int) -> None:
        self._problem, self._budget, self._random = problem, budget_cycles, random
        self._first = max(evaluations // 2, 1)
        self._solver: Solver = CoefficientSearch(problem, budget_cycles, random)
        self._best, self._assignment = -1.0, problem.dense
        self._asked: Assignment | None = None
        self._count = 0

    def ask(self) -> Assignment | None:
        """Of the solver whose turn it is."""
        searching = isinstance(self._solver, CoefficientSearch)
        self._asked = None if searching and self._count >= self._first else self._solver.ask()
        if self._asked is None and searching and self._count:
            self._solver = SwapSearch(self._problem, self._budget, self._random, start=self._assignment)
            self._solver.ask()  # its parent, whose accuracy is known
            self._solver.tell(self._best)
            self._asked = self._solver.ask()
        return self._asked

    def tell(self, accuracy: float) -> None:
        """Passed on."""
        assert self._asked is not None
        self._count += 1
        if accuracy > self._best:
            self._best, self._assignment = accuracy, self._asked.copy()
        self._solver.tell(accuracy)
