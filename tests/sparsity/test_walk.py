"""State, action and clamp of the walk over the layers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from problems import random_problem

from framefit.sparsity.local_search import STATE, Walk


@given(
    seed=st.integers(0, 500), part=st.floats(0.0, 1.0), actions=st.lists(st.floats(0.001, 1), min_size=6, max_size=6)
)
def test_the_clamp_meets_every_reachable_budget(seed: int, part: float, actions: list[float]) -> None:
    """Whatever the actions are, the assignment ends within the budget, and states within 0 to 1."""
    problem = random_problem(seed, layers=6, monotone=bool(seed % 2))
    budget = int(problem.least_cycles + part * (problem.dense_cycles - problem.least_cycles)) + 1
    walk = Walk(problem, budget)
    for action in actions:
        state = walk.state
        assert state.shape == (len(STATE),)
        assert ((state >= 0) & (state <= 1)).all()
        walk.step(action)
    assert walk.done
    assert problem.total(walk.assignment) <= budget


def test_state_is_the_published_one_with_its_normalisation() -> None:
    """Index, sizes, weights, cycles, what was reduced, what rests, the action before, the statistic."""
    problem = random_problem(7, layers=3)
    walk = Walk(problem, problem.dense_cycles)
    first = dict(zip(STATE, walk.state, strict=True))
    weights = np.asarray([layer.parameters for layer in problem.layers])
    assert first["t"] == first["reduced"] == first["previous"] == 0
    assert first["n"] == problem.layers[0].outputs / max(layer.outputs for layer in problem.layers)
    assert first["weight"] == weights[0] / weights.max()
    assert first["cycles"] == problem.cycles[0, 0] / problem.cycles[:, 0].max()
    assert first["rest"] == weights[1:].sum() / weights.sum()
    assert first["extra"] == problem.layers[0].extra / max(layer.extra for layer in problem.layers)
    walk.step(1.0)
    second = dict(zip(STATE, walk.state, strict=True))
    saved = problem.cycles[0, 0] - problem.cycles[0].min()
    assert second["t"] == 0.5
    assert second["previous"] == 1.0
    assert np.isclose(second["reduced"], saved / problem.dense_cycles)


def test_an_action_is_the_part_of_the_cycles_that_goes() -> None:
    """The least harmful level that saves at least so much."""
    problem = random_problem(9)
    walk = Walk(problem, problem.dense_cycles)
    walk.step(0.4)
    level = int(walk.assignment[0])
    assert problem.cycles[0, level] <= 0.6 * problem.cycles[0, 0]
    assert problem.cycles[0, level - 1] > 0.6 * problem.cycles[0, 0]
