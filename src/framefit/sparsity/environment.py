"""The assignment of sparsity as a Gymnasium environment. Needs the extra ``train``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from framefit.core.sparsity import RewardKind
from framefit.sparsity.problem import Problem, reward
from framefit.sparsity.walk import STATE, Walk

__all__ = ["LEAST_ACTION", "SparsityEnvironment"]

State = npt.NDArray[np.float32]
LEAST_ACTION = 1e-3
"""What 0 is taken for: actions are greater, but a Gymnasium box is closed."""


class SparsityEnvironment(gymnasium.Env[State, npt.NDArray[np.float32]]):  # type: ignore[misc]
    """An episode assigns all layers of a network, one a step.

    State, their order and normalisation: :data:`framefit.sparsity.walk.STATE`. Action, float32, 1: the
    part of the layer's cycles that is to go, in (0, 1]; clamped as :class:`~framefit.sparsity.walk.Walk`
    says. Reward: 0 until the last layer is assigned, then the network's, from forwards only.

    Args:
        problem: to be solved.
        budget_cycles: of the network.
        kind: of the reward.

    Raises:
        InfeasibleError: no assignment meets the budget.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, problem: Problem, budget_cycles: int, kind: RewardKind = "accuracy-log-cycles") -> None:
        problem.check_budget(budget_cycles)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (len(STATE),), np.float32)
        self.action_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        self._problem, self._kind = problem, kind
        self._walk = Walk(problem, budget_cycles)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        """Before the first layer again; there is nothing to draw."""
        super().reset(seed=seed, options=options)
        self._walk.restart()
        return self._state(), {}

    def step(self, action: npt.NDArray[np.float32]) -> tuple[State, float, bool, bool, dict[str, Any]]:
        """Assign the next layer.

        Returns:
            State, reward, whether the episode is over, False, and at its end ``accuracy``, ``cycles`` and
            ``assignment``; in each step ``action`` after the clamp.
        """
        taken = self._walk.step(max(float(np.ravel(action)[0]), LEAST_ACTION))
        if not self._walk.done:
            return self._state(), 0.0, False, False, {"action": taken}
        assignment = self._walk.assignment
        accuracy, cycles = self._problem.evaluate(assignment), self._problem.total(assignment)
        facts = {"action": taken, "accuracy": accuracy, "cycles": cycles, "assignment": assignment}
        return self._state(), reward(self._kind, accuracy, cycles), True, False, facts

    def _state(self) -> State:
        return self._walk.state.astype(np.float32)
