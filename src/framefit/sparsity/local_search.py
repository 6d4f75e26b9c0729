"""Searches that start from the exact allocation: with scaled errors, or with swaps; and walks from layer to layer.

A walk has the state that a controller sees, its action, and the clamp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framefit.sparsity.allocation import allocate
from framefit.sparsity.problem import Assignment, Floats, Problem


class CoefficientSearch:
    """Scales each layer's errors, allocates exactly, and keeps the scales that give a better accuracy.

    Errors of layers do not really add up; the scales compensate for that. The first proposal is the plain
    allocation; each of the later ones, four at a time, redraws a tenth of the best scales. After Frantar and
    Alistarh, 2022, "SPDY", section 3.3; the scales are around 1 here, since the errors are estimates of the
    loss already.
    """

    name = "spdy"
    _PART = 0.1  # of the scales that one step redraws (SPDY, section 3.3)
    _SPREAD = 1.0  # standard deviation of a scale's logarithm
    _TRIES = 50  # draws until one changes the allocation
    _TOGETHER = 4  # evaluated before the next scales are chosen

    def __init__(self, problem: Problem, budget_cycles: int, random: np.random.Generator) -> None:
        self._problem, self._budget, self._random = problem, budget_cycles, random
        self._scales: Floats = np.ones(len(problem.layers))
        self._asked: list[Floats] = []
        self._best = -np.inf
        self._seen: set[bytes] = set()

    def ask(self) -> Sequence[Assignment]:
        """Return allocations for other scales; none where no draw changes the allocation."""
        self._asked, proposals = [], list[Assignment]()
        for _ in range(self._TOGETHER if self._seen else 1):
            for _ in range(self._TRIES):
                scales = self._redrawn() if self._seen else self._scales
                assignment = allocate(self._problem, self._budget, self._problem.errors * scales[:, None])
                if assignment.tobytes() not in self._seen:
                    self._seen.add(assignment.tobytes())
                    self._asked.append(scales)
                    proposals.append(assignment)
                    break
        return proposals

    def tell(self, accuracies: Sequence[float]) -> None:
        """Keep the best scales if they are at least as good as those before."""
        best = int(np.argmax(accuracies))
        if accuracies[best] >= self._best:
            self._best, self._scales = accuracies[best], self._asked[best]

    def _redrawn(self) -> Floats:
        count = max(round(self._PART * len(self._scales)), 1)
        chosen = self._random.choice(len(self._scales), count, replace=False)
        scales = self._scales.copy()
        scales[chosen] = np.exp(self._random.normal(0, self._SPREAD, count))
        return scales


class SwapSearch:
    """(1 + lambda) search: children differ from their parent by swaps that keep the cycles within the budget.

    A child removes less from one layer, by one or two levels, and more from others; of several drawn children the
    one with the smallest sum of errors is evaluated. The parent is the best assignment so far.

    Args:
        problem: to be solved.
        budget_cycles: cycles that the network may take.
        random: source of random numbers.
        start: the first parent; default: the exact allocation.
    """

    name = "swaps"
    _CHILDREN = 4  # lambda: evaluated before the next parent is chosen
    _DRAWN = 4  # children drawn for each one that is evaluated
    _TRIES = 50  # draws until a child is new

    def __init__(
        self,
        problem: Problem,
        budget_cycles: int,
        random: np.random.Generator,
        *,
        start: Assignment | None = None,
    ) -> None:
        problem.check_budget(budget_cycles)
        self._problem, self._budget, self._random = problem, budget_cycles, random
        self._parent = allocate(problem, budget_cycles) if start is None else start.copy()
        self._asked: list[Assignment] = []
        self._best = -np.inf
        self._seen: set[bytes] = set()
        self._places = [{int(level): place for place, level in enumerate(useful)} for useful in problem.envelopes]

    def ask(self) -> Sequence[Assignment]:
        """Return the first parent, then children; none where no new child is left."""
        self._asked = [] if self._seen else [self._parent]
        for _ in range(self._CHILDREN if self._seen else 0):
            drawn: list[Assignment] = []
            for _ in range(self._TRIES):
                child = self._child()
                if child.tobytes() not in self._seen:
                    drawn.append(child)
                    if len(drawn) == self._DRAWN:
                        break
            if not drawn:
                break
            self._asked.append(min(drawn, key=self._problem.error))
            self._seen.add(self._asked[-1].tobytes())
        self._seen.add(self._parent.tobytes())
        return self._asked

    def tell(self, accuracies: Sequence[float]) -> None:
        """Choose the next parent."""
        best = int(np.argmax(accuracies))
        if accuracies[best] >= self._best:
            self._best, self._parent = accuracies[best], self._asked[best]

    def _child(self) -> Assignment:
        child, random = self._parent.copy(), self._random
        lighter = [index for index in range(len(child)) if self._place(child, index) > 0]
        if lighter:
            index = int(random.choice(lighter))
            self._move(child, index, -int(random.integers(1, 3)))
        else:
            index = -1
        others = [layer for layer in range(len(child)) if layer != index]
        while self._problem.total(child) > self._budget:
            payers = [layer for layer in others if self._place(child, layer) + 1 < len(self._problem.envelopes[layer])]
            if not payers:
                return self._parent
            self._move(child, int(random.choice(payers)), 1)
        for layer in random.permutation(others):  # undo removals that the budget does not need
            while self._place(child, layer) > 0:
                before = child[layer]
                self._move(child, int(layer), -1)
                if self._problem.total(child) > self._budget:
                    child[layer] = before
                    break
        return child

    def _place(self, assignment: Assignment, layer: int) -> int:
        return self._places[layer].get(int(assignment[layer]), 0)

    def _move(self, assignment: Assignment, layer: int, steps: int) -> None:
        useful = self._problem.envelopes[layer]
        place = min(max(self._place(assignment, layer) + steps, 0), len(useful) - 1)
        assignment[layer] = useful[place]


STATE = ("t", "n", "c", "h", "w", "stride", "k", "weight", "cycles", "reduced", "rest", "previous", "extra")
"""The elements of a state, in order.

t index, n output and c input channels, h and w of the input, stride, k kernel, weight: parameters of the
layer, cycles of the dense layer, reduced: cycles saved in earlier layers, rest: weights that remain in later
layers, previous: the preceding action (a[t-1], 0 at first), extra: a statistic of the Hessian, or 0.

Normalisation: reduced is divided by the network's dense cycles, rest by all weights; an action is in 0 to 1
already; all others are divided by their greatest value over the layers. So every number is in 0 to 1.
"""


class Walk:
    """An assignment that is built with one action for each layer.

    An action in (0, 1] is the part of the layer's cycles to remove. It is inverted through the layer's
    Pareto envelope: the least harmful level that saves at least that much, or the fastest one.
    Clamp: where the budget could not be met even if every later layer were pruned to its fastest level, the
    layer is pruned as far as the budget needs (He et al., 2018, "AMC", algorithm 1).
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
        """Return to the state before the first layer."""
        self._levels: list[int] = []
        self._spent = 0
        self._previous = 0.0

    @property
    def done(self) -> bool:
        """Whether every layer has its level."""
        return len(self._levels) == len(self._problem.layers)

    @property
    def assignment(self) -> Assignment:
        """The levels assigned so far."""
        return np.asarray(self._levels, np.int64)

    @property
    def state(self) -> Floats:
        """State of the next layer, as :data:`STATE` says; after the last layer that of the last one."""
        index = min(len(self._levels), len(self._problem.layers) - 1)
        before = int(self._problem.cycles[: len(self._levels), 0].sum())
        column = self._columns[index]
        reduced = max(before - self._spent, 0) / max(self._problem.dense_cycles, 1)
        return np.asarray([*column[:9], reduced, self._rest[index], self._previous, column[9]])

    def step(self, action: float) -> float:
        """Assign a level to the next layer.

        Returns:
            The action after the clamp: the part of its cycles that the layer had to save.
        """
        index = len(self._levels)
        dense = int(self._problem.cycles[index, 0])
        remaining = dense * (1 - min(max(action, 0.0), 1.0))
        left = self._budget - self._problem.fixed_cycles - self._spent - int(self._later_least[index])
        level = self._problem.level_at_most(index, min(remaining, left))
        self._levels.append(level)
        self._spent += int(self._problem.cycles[index, level])
        self._previous = float(min(action, 1.0)) if remaining <= left else float(1 - max(left, 0) / max(dense, 1))
        return self._previous
