"""Rules that need no search, and random search: what every solver has to beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from framefit.sparsity.local_search import Walk
from framefit.sparsity.problem import Assignment, Floats, Problem

__all__ = ["Once", "RandomSearch", "erk", "lamp", "uniform"]


_HALVINGS = 40  # of the scale that is searched for: more than a double's levels differ by


class Once:
    """A solver with a single proposal.

    Args:
        name: of the rule.
        propose: makes it, when it is asked for.
    """

    def __init__(self, name: str, propose: Callable[[], Assignment]) -> None:
        self.name = name
        self._propose: Callable[[], Assignment] | None = propose

    def ask(self) -> Assignment | None:
        """The proposal, once."""
        propose, self._propose = self._propose, None
        return None if propose is None else propose()

    def tell(self, accuracy: float) -> None:
        """Nothing to learn."""


class RandomSearch:
    """Random actions, each layer's its own, under the clamp; a strong baseline (Li and Talwalkar, 2019,
    "Random Search and Reproducibility for Neural Architecture Search").

    Actions are drawn around a random mean, so that the proposals do not all spend their cuts on the last layers.

    Args:
        problem: to be solved.
        budget_cycles: of the network.
        random: where proposals come from.
    """

    name = "random"

    def __init__(self, problem: Problem, budget_cycles: int, random: np.random.Generator) -> None:
        problem.check_budget(budget_cycles)
        self._problem, self._random = problem, random
        self._walk = Walk(problem, budget_cycles)
        able = problem.cycles[:, 0].sum()
        self._needed = 1 - (budget_cycles - problem.fixed_cycles) / max(int(able), 1)

    def ask(self) -> Assignment:
        """Another one."""
        self._walk.restart()
        actions = np.clip(self._needed + self._random.uniform(-0.3, 0.3, len(self._problem.layers)), 0.001, 1)
        for action in actions:
            self._walk.step(float(action))
        return self._walk.assignment

    def tell(self, accuracy: float) -> None:
        """Nothing to learn."""


def uniform(problem: Problem, budget_cycles: int) -> Assignment:
    """The same part of zeros in every layer, as few as meet the budget.

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

    Args:
        problem: to be solved.
        budget_cycles: of the network.
        weights: of each layer.

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
    """The least scale (0 to 1) whose sparsities, rounded up to levels, meet the budget."""
    problem.check_budget(budget_cycles)

    def levels(scale: float) -> Assignment:
        wanted = sparsities(scale)
        return np.asarray([problem.level_from(index, float(part)) for index, part in enumerate(wanted)], np.int64)

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if problem.total(levels(middle)) <= budget_cycles else (middle, high)
    found = levels(high)
    if problem.total(found) <= budget_cycles:
        return found
    return np.asarray([useful[-1] for useful in problem.envelopes], np.int64)  # a rule that spares some layers
