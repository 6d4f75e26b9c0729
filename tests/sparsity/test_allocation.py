"""Exact allocation, its bound, and the envelope."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import best_by_force, random_problem

from framefit import InfeasibleError
from framefit.sparsity.allocation import allocate, blind_budget, bound, tightened
from framefit.sparsity.problem import Problem, envelope, reward


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), part=st.floats(0.3, 1.0), monotone=st.booleans())
def test_allocation_is_optimal_up_to_rounding(seed: int, part: float, monotone: bool) -> None:
    """It stays within the budget, and no assignment within a budget one part in a thousand smaller is better."""
    problem = random_problem(seed, monotone=monotone)
    budget = int(problem.least_cycles + part * (problem.dense_cycles - problem.least_cycles))
    found = allocate(problem, budget)
    assert problem.total(found) <= budget
    smaller = max(int(budget * 0.999) - 1, problem.least_cycles)
    assert problem.error(found) <= best_by_force(problem, smaller) + 1e-9
    assert bound(problem, budget) <= best_by_force(problem, budget) + 1e-9


def test_what_is_out_of_reach_is_refused_with_what_is_reachable() -> None:
    """The error names the least cycles."""
    problem = random_problem(1)
    with pytest.raises(InfeasibleError, match=f"{problem.least_cycles:,}"):
        allocate(problem, problem.least_cycles - 1)
    assert problem.total(allocate(problem, problem.least_cycles)) == problem.least_cycles


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=12))
def test_envelope_holds_exactly_what_no_other_level_beats(pairs: list[tuple[int, int]]) -> None:
    """Cycles fall strictly, errors do not fall, and every level left out is beaten by one that stays."""
    cycles = np.asarray([cycle for cycle, _ in pairs])
    errors = np.asarray([0, *(error for _, error in pairs[1:])])
    kept = envelope(cycles, errors)
    assert (np.diff(cycles[kept]) < 0).all()
    assert (np.diff(errors[kept]) >= 0).all()
    for level in range(len(pairs)):
        assert any(cycles[one] <= cycles[level] and errors[one] <= errors[level] for one in kept)


def test_a_layer_stays_dense_below_its_break_even() -> None:
    """A level that costs more than the dense layer is never used."""
    problem = random_problem(3, monotone=False)
    assert all(1 not in useful for useful in problem.envelopes)
    assert problem.level_at_most(0, problem.cycles[0, 0]) == 0


def test_blind_allocation_ends_within_the_hardware_budget() -> None:
    """The multiply-accumulates that a blind search is given lead to no more than the cycles."""
    problem = random_problem(5, layers=8)
    budget = int(0.6 * problem.dense_cycles)
    for blind in (problem.blind(), problem.blind("weights")):
        assert problem.total(allocate(blind, blind_budget(problem, budget, blind))) <= budget


@given(seed=st.integers(0, 1000))
def test_tightening_meets_the_budget_and_takes_away_only(seed: int) -> None:
    """No layer becomes slower."""
    problem = random_problem(seed)
    before = allocate(problem, int(0.8 * problem.dense_cycles))
    budget = int(0.5 * problem.dense_cycles)
    after = tightened(problem, before, max(budget, problem.least_cycles))
    index = np.arange(len(problem.layers))
    assert problem.total(after) <= max(budget, problem.least_cycles)
    assert (problem.cycles[index, after] <= problem.cycles[index, before]).all()


def test_rewards_are_as_published() -> None:
    """Accuracy times log(cycles) grows with the cycles, minus error times log(cycles) falls."""
    assert reward("accuracy-log-cycles", 0.5, 100) == pytest.approx(0.5 * np.log(100))
    assert reward("error-log-cycles", 0.9, 1000) == pytest.approx(-0.1 * np.log(1000))
    assert reward("error-log-cycles", 0.9, 1000) < reward("error-log-cycles", 0.9, 100)


def test_tables_that_do_not_fit_are_refused() -> None:
    """A table of another shape is an error."""
    problem = random_problem(0)
    with pytest.raises(ValueError, match="tables of"):
        Problem(problem.layers, problem.levels, problem.cycles[:, 1:], problem.errors, 0, problem.evaluate)
