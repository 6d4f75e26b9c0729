"""From layer to layer: the state that a controller sees, its action, and the clamp."""

from __future__ import annotations

import numpy as np

from framefit.sparsity.problem import Assignment, Floats, Problem

__all__ = ["STATE", "Walk"]

STATE = ("t", "n", "c", "h", "w", "stride", "k", "weight", "cycles", "reduced", "rest", "previous", "extra")
"""What a state holds, in order.

t index, n output and c input channels, h and w of the input, stride, k kernel, weight: parameters of the
layer, cycles of the dense layer, reduced: cycles saved in earlier layers, rest: weights that remain in later
layers, previous: the action before (a[t-1], 0 at first), extra: a statistic of the Hessian, or 0.

Normalisation: reduced is divided by the network's dense cycles, rest by all weights; an action is in 0 to 1
already; all others are divided by their greatest value over the layers. So every number is in 0 to 1.
"""


class Walk:
    """An assignment in the making: one action a layer.

    An action in (0, 1] is the part of the layer's cycles that is to go. It is inverted through the layer's
    Pareto envelope: the least harmful level that saves at least so much, the fastest one where none does.
    Clamp: where the budget could not be met any more even if every later layer were pruned to its
    fastest level, the layer is pruned as far as it takes (He et al., 2018, "AMC", algorithm 1).

    Args:
        problem: what is to be assigned.
        budget_cycles: of the whole network; must be reachable.
    """

    def __init__(self, problem: Problem, budget_cycles: int) -> None:
        self._problem = problem
        self._budget = budget_cycles
        dense = problem.cycles[:, 0]
        least = problem.least_layer_cycles
        self._later_least = np.append(np.cumsum(least[::-1])[::-1][1:], 0)
        weights = np.asarray([layer.parameters for layer in problem.layers], np.float64)
        self._rest = np.append(np.cumsum(weights[::-1])[::-1][1:], 0) / max(weights.sum(), 1)
        columns = [
            np.arange(len(problem.layers)),
            *(
                np.asarray([getattr(layer, name) for layer in problem.layers], np.float64)
                for name in ("outputs", "inputs", "height", "width", "stride", "kernel", "parameters")
            ),
            dense,
            np.asarray([layer.extra for layer in problem.layers]),
        ]
        self._columns = np.stack([column / max(column.max(initial=0.0), 1e-12) for column in columns], 1)
        self.restart()

    def restart(self) -> None:
        """Before the first layer again."""
        self._levels: list[int] = []
        self._spent = 0
        self._previous = 0.0

    @property
    def done(self) -> bool:
        """Whether every layer has its level."""
        return len(self._levels) == len(self._problem.layers)

    @property
    def assignment(self) -> Assignment:
        """What was assigned so far."""
        return np.asarray(self._levels, np.int64)

    @property
    def state(self) -> Floats:
        """Of the layer whose turn it is, as :data:`STATE` says; after the last layer still that layer's."""
        index = min(len(self._levels), len(self._problem.layers) - 1)
        before = int(self._problem.cycles[: len(self._levels), 0].sum())
        own = self._columns[index]
        reduced = max(before - self._spent, 0) / max(self._problem.dense_cycles, 1)
        return np.asarray([*own[:9], reduced, self._rest[index], self._previous, own[9]])

    def step(self, action: float) -> float:
        """Assign the next layer.

        Args:
            action: part of its cycles that is to go, in (0, 1].

        Returns:
            The action after the clamp: what the layer really was asked to save.
        """
        index = len(self._levels)
        dense = int(self._problem.cycles[index, 0])
        wanted = dense * (1 - min(max(action, 0.0), 1.0))
        left = self._budget - self._problem.fixed_cycles - self._spent - int(self._later_least[index])
        level = self._problem.level_at_most(index, min(wanted, left))
        self._levels.append(level)
        self._spent += int(self._problem.cycles[index, level])
        self._previous = float(min(action, 1.0)) if wanted <= left else float(1 - max(left, 0) / max(dense, 1))
        return self._previous
