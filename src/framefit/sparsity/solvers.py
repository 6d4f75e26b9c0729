"""The solvers by name, rules that need no search, and random search as the baseline of every solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from framefit.core.sparsity import RewardKind
from framefit.errors import InputError, needs_extra
from framefit.sparsity.allocation import allocate
from framefit.sparsity.local_search import CoefficientSearch, SwapSearch, Walk
from framefit.sparsity.problem import Assignment, Floats, Problem
from framefit.sparsity.solver import Solver

_HALVINGS = 40  # of the interval of the scale: enough for the precision of a double


class Once:
    """A solver with a single proposal."""

    def __init__(self, name: str, propose: Callable[[], Assignment]) -> None:
        self.name = name
        self._propose: Callable[[], Assignment] | None = propose

    def ask(self) -> Sequence[Assignment]:
        """Return the proposal once."""
        propose, self._propose = self._propose, None
        return [] if propose is None else [propose()]

    def tell(self, accuracies: Sequence[float]) -> None:
        """Ignore the accuracy: there is nothing to learn."""


class RandomSearch:
    """Draws random actions for each layer under the clamp; a strong baseline (Li and Talwalkar, 2019,
    "Random Search and Reproducibility for Neural Architecture Search").

    Actions are drawn around a random mean, so that proposals do not spend all removals on the last layers.
    """

    name = "random"
    _TOGETHER = 4

    def __init__(self, problem: Problem, budget_cycles: int, random: np.random.Generator) -> None:
        problem.check_budget(budget_cycles)
        self._problem, self._random = problem, random
        self._walk = Walk(problem, budget_cycles)
        able = problem.cycles[:, 0].sum()
        self._needed = 1 - (budget_cycles - problem.fixed_cycles) / max(int(able), 1)

    def ask(self) -> Sequence[Assignment]:
        """Return other random assignments."""
        return [self._drawn() for _ in range(self._TOGETHER)]

    def tell(self, accuracies: Sequence[float]) -> None:
        """Ignore the accuracies: there is nothing to learn."""

    def _drawn(self) -> Assignment:
        self._walk.restart()
        actions = np.clip(self._needed + self._random.uniform(-0.3, 0.3, len(self._problem.layers)), 0.001, 1)
        for action in actions:
            self._walk.step(float(action))
        return self._walk.assignment


def uniform(problem: Problem, budget_cycles: int) -> Assignment:
    """The same part of zeros in every layer, as small as the budget allows.

    Raises:
        InfeasibleError: no assignment meets the budget.
    """
    return _scaled(problem, budget_cycles, lambda scale: np.full(len(problem.layers), scale))


def erk(problem: Problem, budget_cycles: int) -> Assignment:
    """Erdos-Renyi-Kernel: a layer keeps weights in proportion to the sum of its sizes over their product.

    Evci et al., 2020, "Rigging the Lottery: Making All Tickets Winners", section 3.

    Raises:
        InfeasibleError: no assignment meets the budget.
    """
    sizes = np.asarray([(layer.outputs, layer.inputs, layer.kernel, layer.kernel) for layer in problem.layers], float)
    density = sizes.sum(axis=1) / sizes.prod(axis=1)
    density /= density.min()
    return _scaled(problem, budget_cycles, lambda scale: 1 - np.minimum((1 - scale) / max(scale, 1e-12) * density, 1))


def lamp(problem: Problem, budget_cycles: int, weights: Sequence[Floats]) -> Assignment:
    """Layer-adaptive magnitudes: one threshold for all layers on the square of a weight over those not smaller.

    Lee et al., 2021, "Layer-adaptive Sparsity for the Magnitude-based Pruning", section 2.

    Raises:
        InfeasibleError: no assignment meets the budget.
    """
    scores = []
    for layer in weights:
        squares = np.sort(np.square(np.ravel(layer).astype(np.float64)))
        scores.append(squares / np.maximum(np.cumsum(squares[::-1])[::-1], 1e-300))
    ordered = np.sort(np.concatenate(scores))

    def below(scale: float) -> Floats:
        threshold = ordered[min(int(scale * len(ordered)), len(ordered) - 1)]
        return np.asarray([np.searchsorted(layer, threshold) / len(layer) for layer in scores])

    return _scaled(problem, budget_cycles, below)


def _scaled(problem: Problem, budget_cycles: int, sparsities: Callable[[float], Floats]) -> Assignment:
    """Levels of the least scale (0 to 1) whose sparsities, rounded up, meet the budget."""
    problem.check_budget(budget_cycles)

    def levels(scale: float) -> Assignment:
        wanted = sparsities(scale)
        return np.asarray([problem.level_from(index, float(part)) for index, part in enumerate(wanted)], np.int64)

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if problem.total(levels(middle)) <= budget_cycles else (middle, high)
    assignment = levels(high)
    if problem.total(assignment) <= budget_cycles:
        return assignment
    return np.asarray([useful[-1] for useful in problem.envelopes], np.int64)  # for a rule that spares some layers


ONCE = ("uniform", "erk", "lamp", "dp")
"""Solvers with a single proposal."""
SEARCHES = ("random", "spdy", "swaps", "ddpg", "ddpg-warm", "auto")
"""Solvers that search until their budget is spent."""
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
    """Make a solver of :data:`SOLVERS` by its name.

    "auto" is exact allocation, then a search for better coefficients, then swaps from the best assignment.

    Raises:
        InputError: no solver has this name.
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
            with needs_extra("stable-baselines3", "train"):
                from framefit.sparsity.ddpg import ActorCritic
            return ActorCritic(
                problem, budget_cycles, random, episodes=evaluations, kind=kind, warm=warm, agreement=agreement
            )
    raise InputError(f"no solver {name!r}", remedy=f"choose from {', '.join(SOLVERS)}")


def _allocations(problem: Problem, budget_cycles: int, random: np.random.Generator) -> list[Assignment]:
    """The exact allocation, and allocations for randomly scaled errors."""
    scales = np.exp(random.normal(0, 0.5, (_WARM, len(problem.layers), 1)))
    scales[0] = 1
    return [allocate(problem, budget_cycles, problem.errors * scale) for scale in scales]


class _Auto:
    """Coefficients for half of the evaluations, then swaps from the best assignment."""

    name = "auto"

    def __init__(self, problem: Problem, budget_cycles: int, random: np.random.Generator, evaluations: int) -> None:
        self._problem, self._budget, self._random = problem, budget_cycles, random
        self._first = max(evaluations // 2, 1)
        self._solver: Solver = CoefficientSearch(problem, budget_cycles, random)
        self._best, self._assignment = -1.0, problem.dense
        self._asked: Sequence[Assignment] = []
        self._count = 0

    def ask(self) -> Sequence[Assignment]:
        """Return proposals of the solver whose turn it is."""
        searching = isinstance(self._solver, CoefficientSearch)
        self._asked = [] if searching and self._count >= self._first else self._solver.ask()
        if not self._asked and searching and self._count:
            self._solver = SwapSearch(self._problem, self._budget, self._random, start=self._assignment)
            self._solver.ask()  # the parent, whose accuracy is known
            self._solver.tell([self._best])
            self._asked = self._solver.ask()
        return self._asked

    def tell(self, accuracies: Sequence[float]) -> None:
        """Pass the accuracies on to the solver."""
        self._count += len(self._asked)
        best = int(np.argmax(accuracies))
        if accuracies[best] > self._best:
            self._best, self._assignment = accuracies[best], self._asked[best].copy()
        self._solver.tell(accuracies)
