"""The Gymnasium environment and the agent on it."""

from __future__ import annotations

import numpy as np
import pytest
from problems import random_problem

from framefit.sparsity.local_search import STATE
from framefit.sparsity.problem import reward
from framefit.sparsity.solver import Limits, Solution, search
from framefit.sparsity.solvers import make_solver
from framefit.training.campaign import Ledger

gymnasium = pytest.importorskip("gymnasium")


def test_an_episode_assigns_every_layer_and_ends_with_the_reward() -> None:
    """State and action are those of the boxes, the reward comes last, the budget holds; Gymnasium's checker agrees."""
    from gymnasium.utils.env_checker import check_env

    from framefit.sparsity.ddpg import SparsityEnvironment

    problem = random_problem(1, layers=5)
    budget = int(0.5 * problem.dense_cycles)
    environment = SparsityEnvironment(problem, budget)
    check_env(environment, skip_render_check=True)
    state, _ = environment.reset(seed=0)
    assert state.shape == (len(STATE),)
    rewards, ended, facts = [], False, {}
    while not ended:
        state, worth, ended, cut, facts = environment.step(np.asarray([0.3], np.float32))
        rewards.append(worth)
        assert environment.observation_space.contains(state)
        assert not cut
    assert len(rewards) == 5
    assert rewards[:-1] == [0.0] * 4
    assert rewards[-1] == pytest.approx(reward("accuracy-log-cycles", facts["accuracy"], facts["cycles"]))
    assert facts["cycles"] == problem.total(facts["assignment"]) <= budget


def searched(name: str, evaluations: int) -> Solution:
    """What the agent finds."""
    problem = random_problem(11, layers=5)
    budget = int(0.5 * problem.dense_cycles)
    solver = make_solver(name, problem, budget, 0, evaluations=evaluations)
    found = search(problem, solver, Limits(evaluations), Ledger(), most_cycles=budget)
    assert found is not None
    return found


def test_the_agent_learns_from_the_environment_s_transitions() -> None:
    """Each step is stored with the state behind it, the last one ends; rewards are less their mean."""
    pytest.importorskip("stable_baselines3")
    from framefit.sparsity.ddpg import ActorCritic

    problem = random_problem(11, layers=5)
    agent = ActorCritic(problem, int(0.5 * problem.dense_cycles), np.random.default_rng(0), episodes=10)
    for accuracy in (0.9, 0.5):
        agent.ask()
        agent.tell([accuracy])
    stored = agent._buffer
    assert stored.dones[:10, 0].tolist() == 2 * [0, 0, 0, 0, 1]
    for first in (0, 5):
        assert (stored.next_observations[first : first + 4] == stored.observations[first + 1 : first + 5]).all()
        assert len(set(stored.rewards[first : first + 5, 0])) == 1
    drawn = [stored.sample(64).rewards for _ in range(20)]
    assert abs(float(drawn[-1].mean())) < 0.5 * float(abs(stored.rewards[:10].mean()))


@pytest.mark.slow
def test_the_agent_learns_and_repeats_itself() -> None:
    """Its last episodes are better than its random warm-up, and the same seed gives the same search."""
    pytest.importorskip("stable_baselines3")
    problem = random_problem(11, layers=5)
    budget = int(0.5 * problem.dense_cycles)
    solver = make_solver("ddpg", problem, budget, 0, evaluations=40)
    seen = []
    while len(seen) < 40 and (asked := solver.ask()):
        assert problem.total(asked[0]) <= budget
        seen.append(problem.evaluate(asked[0]))
        solver.tell(seen[-1:])
    assert np.mean(seen[-15:]) > np.mean(seen[:8])
    assert (searched("ddpg", 8).assignment == searched("ddpg", 8).assignment).all()


@pytest.mark.slow
def test_the_search_ends_where_predicted_and_received_reward_agree() -> None:
    """A threshold that every prediction meets ends it ten episodes after the warm-up; none goes on to the budget."""
    pytest.importorskip("stable_baselines3")
    problem = random_problem(11, layers=5)
    budget = int(0.5 * problem.dense_cycles)
    ends = {}
    for agreement in (1e6, 0.0):
        solver = make_solver("ddpg", problem, budget, 0, evaluations=20, agreement=agreement)
        found = search(problem, solver, Limits(20), Ledger())
        assert found is not None
        ends[agreement] = found.evaluations
    assert ends == {1e6: 14, 0.0: 20}


def test_a_warm_start_begins_with_the_exact_allocation() -> None:
    """So it is never worse than that, however few its episodes."""
    pytest.importorskip("stable_baselines3")
    problem = random_problem(11, layers=5)
    exact = make_solver("dp", problem, int(0.5 * problem.dense_cycles), 0, evaluations=1).ask()[0]
    assert searched("ddpg-warm", 2).accuracy >= problem.evaluate(exact) - 1e-9
