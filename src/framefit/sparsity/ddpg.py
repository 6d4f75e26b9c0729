"""The off-policy actor-critic search (DDPG), and its Gymnasium environment. Needs the extra ``train``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from stable_baselines3 import DDPG
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from framefit.core.sparsity import RewardKind
from framefit.sparsity.local_search import STATE, Walk
from framefit.sparsity.problem import Assignment, Problem, reward
from framefit.training.extra import torch

State = npt.NDArray[np.float32]
LEAST_ACTION = 1e-3
"""The least action of the agent: something is removed from every layer. A Gymnasium box is closed, so 0 is legal."""


class SparsityEnvironment(gymnasium.Env[State, npt.NDArray[np.float32]]):  # type: ignore[misc]
    """An episode assigns a level to every layer of a network, one layer in each step.

    For the state and its normalisation see :data:`framefit.sparsity.local_search.STATE`. Action, float32, 1: the
    part of the layer's cycles to remove, 0 to 1; clamped as :class:`~framefit.sparsity.local_search.Walk`
    says. Reward: 0 until the last layer is assigned, then the network's, which needs forward passes only.

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
        """Return to the state before the first layer; nothing is random here."""
        super().reset(seed=seed, options=options)
        self._walk.restart()
        return self._state(), {}

    def step(self, action: npt.NDArray[np.float32]) -> tuple[State, float, bool, bool, dict[str, Any]]:
        """Assign a level to the next layer.

        Returns:
            State, reward, whether the episode is over, False, and details: ``action`` after the clamp, and at the
            end of the episode ``accuracy``, ``cycles`` and ``assignment``.
        """
        clamped = self._walk.step(float(np.ravel(action)[0]))
        if not self._walk.done:
            return self._state(), 0.0, False, False, {"action": clamped}
        assignment = self._walk.assignment
        accuracy, cycles = self._problem.evaluate(assignment), self._problem.total(assignment)
        facts = {"action": clamped, "accuracy": accuracy, "cycles": cycles, "assignment": assignment}
        return self._state(), reward(self._kind, accuracy, cycles), True, False, facts

    def _state(self) -> State:
        return self._walk.state.astype(np.float32)


class _Transition(NamedTuple):
    """A step of an episode: the state before it, the action after the clamp, the state behind it, whether it ended."""

    state: State
    action: float
    following: State
    done: bool


class _Agent(DDPG):  # type: ignore[misc]
    """Begins and learns as AMC: actions are in the middle at first, and the actor learns slower than its critic.

    Otherwise the actor ends at 0 or 1 for most layers before it has seen enough.
    """

    _RATES = (1e-4, 1e-3)  # of actor and critic
    _FIRST = 3e-3  # greatest weight of the actor's last layer

    def _setup_model(self) -> None:
        super()._setup_model()
        *_, last = (part for part in self.actor.mu if isinstance(part, torch.nn.Linear))
        for tensor in (last.weight, last.bias):
            torch.nn.init.uniform_(tensor, -self._FIRST, self._FIRST)
        self.actor_target.load_state_dict(self.actor.state_dict())

    def _update_learning_rate(self, optimizers: Any) -> None:
        for optimizer, rate in zip(optimizers, self._RATES, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate


class _Baselined(ReplayBuffer):  # type: ignore[misc]
    """Gives rewards less their moving mean over the batches that were drawn (AMC, equation 3)."""

    _PACE = 0.5  # of the mean, as AMC
    mean = 0.0

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Draw a batch of transitions."""
        drawn = super().sample(batch_size, env)
        self.mean += self._PACE * (float(drawn.rewards.mean()) - self.mean)
        return drawn._replace(rewards=drawn.rewards - self.mean)


class ActorCritic:
    """Visits the layers with an actor that a critic trains (Lillicrap et al., 2015, "Continuous control with
    deep reinforcement learning"; for pruning He et al., 2018, "AMC", section 3).

    An episode is one assignment; it steps through :class:`SparsityEnvironment`, and every one of its transitions gets
    the reward that comes at the end, less a baseline, without a discount, as AMC has it. Actions are random during the
    warm-up; afterwards they are the actor's with noise that decays from episode to episode. The search ends where
    critic and evaluation agree on the reward in several successive episodes.
    """

    _WARM_UP = 0.2  # part of the episodes; AMC: 100 of 400 and more
    _NOISE, _LAST_NOISE = 0.5, 0.02  # standard deviation of an action's noise at first (as AMC) and at the end
    _IN_A_ROW = 10  # successive episodes in which critic and evaluation agree before the search ends
    _BATCH = 64  # as AMC
    _STEPS = 2  # gradient steps for each step of an episode
    _WIDTH = 300  # of both hidden layers, as AMC

    def __init__(
        self,
        problem: Problem,
        budget_cycles: int,
        random: np.random.Generator,
        *,
        episodes: int,
        kind: RewardKind = "accuracy-log-cycles",
        warm: Sequence[Assignment] = (),
        agreement: float = 0.0,
    ) -> None:
        self.name = "ddpg-warm" if warm else "ddpg"
        self._problem, self._random, self._kind, self._agreement = problem, random, kind, agreement
        self._waiting = [assignment.copy() for assignment in warm]
        self._warm_up = 0 if warm else max(round(self._WARM_UP * episodes), 1)
        acting = max(episodes - max(self._warm_up, len(warm)), 1)
        self._noise, self._decay = self._NOISE, (self._LAST_NOISE / self._NOISE) ** (1 / acting)
        unknown = replace(problem, evaluate=lambda _: 0.0)  # what an episode is worth is told afterwards
        self._environment = SparsityEnvironment(unknown, budget_cycles, kind)
        self._agent = _Agent(
            "MlpPolicy",
            self._environment,
            buffer_size=max((episodes + len(warm)) * len(problem.layers), 1),
            batch_size=self._BATCH,
            gamma=1.0,
            replay_buffer_class=_Baselined,
            policy_kwargs={"net_arch": [self._WIDTH, self._WIDTH]},
            device="cpu",
            seed=int(random.integers(2**31)),
        )
        self._agent.set_logger(Logger(None, []))
        self._scale = abs(reward(kind, 0.5, problem.dense_cycles))
        self._episodes = self._agreed = 0
        self._steps: list[_Transition] = []
        self._asked = problem.dense
        self._predicted: float | None = None

    def ask(self) -> Sequence[Assignment]:
        """Return the next episode's assignment; none once critic and evaluation agree."""
        if self._agreed >= self._IN_A_ROW:
            return []
        self._predicted = None
        if self._waiting:
            self._follow(self._waiting.pop(0))
        elif self._episodes < self._warm_up:
            self._roll(lambda _: float(self._random.uniform(LEAST_ACTION, 1)))
        else:
            self._roll(self._noisy)
            self._noise *= self._decay
            self._predicted = self._value(self._steps[0])
        return [self._asked]

    def tell(self, accuracies: Sequence[float]) -> None:
        """Store the episode, and train actor and critic on all stored episodes."""
        received = reward(self._kind, accuracies[0], self._problem.total(self._asked)) / self._scale
        if self._predicted is not None:
            agrees = abs(self._predicted - received) <= self._agreement * abs(received)
            self._agreed = self._agreed + 1 if agrees else 0
        for state, action, following, done in self._steps:
            scaled = self._agent.policy.scale_action(np.asarray([[action]], np.float32))
            self._buffer.add(state[None], following[None], scaled, np.asarray([received]), np.asarray([done]), [{}])
        self._episodes += 1
        if self._episodes >= self._warm_up and not self._waiting:
            self._agent.train(self._STEPS * len(self._steps), self._BATCH)

    @property
    def _buffer(self) -> _Baselined:
        buffer = self._agent.replay_buffer
        assert isinstance(buffer, _Baselined)
        return buffer

    def _roll(self, act: Callable[[State], float]) -> None:
        """An episode, in which actions are what the clamp makes of them."""
        state, _ = self._environment.reset()
        self._steps, done = [], False
        while not done:
            following, _, done, _, facts = self._environment.step(np.asarray([act(state)]))
            self._steps.append(_Transition(state, facts["action"], following, done))
            state = following
            self._asked = facts.get("assignment", self._asked)

    def _follow(self, assignment: Assignment) -> None:
        """Replay the episode that gives this assignment."""
        cycles = self._problem.cycles
        saved = [1 - cycles[index, level] / max(cycles[index, 0], 1) for index, level in enumerate(assignment)]
        actions = iter(saved)
        self._roll(lambda _: float(next(actions)))

    def _noisy(self, state: State) -> float:
        action, _ = self._agent.predict(state, deterministic=True)
        return float(np.clip(float(action[0]) + self._random.normal(0, self._noise), LEAST_ACTION, 1))

    def _value(self, first: _Transition) -> float:
        """The critic's estimate of an episode's reward: it is that of all steps together, less the baseline of each."""
        scaled = self._agent.policy.scale_action(np.asarray([[first.action]], np.float32))
        with torch.no_grad():
            value = self._agent.critic(torch.as_tensor(first.state)[None], torch.as_tensor(scaled))
        return float(value[0]) / len(self._problem.layers) + self._buffer.mean
