"""One suite for every solver: within the budget, the same with the same seed, and better than chance."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from problems import best_by_force, random_problem

from framefit import InfeasibleError, InputError
from framefit.sparsity.solver import Limits, Solution, search
from framefit.sparsity.solvers import ONCE, SOLVERS, make_solver
from framefit.training.campaign import Ledger

CHEAP = tuple(name for name in SOLVERS if not name.startswith("ddpg"))


def found_by(name: str, seed: int = 0, evaluations: int = 40) -> Solution:
    """What a solver finds on one problem."""
    problem = random_problem(11, layers=6, levels=6)
    random = np.random.default_rng(2)
    weights = [random.standard_normal(layer.parameters) for layer in problem.layers]
    solver = make_solver(name, problem, int(0.5 * problem.dense_cycles), seed, evaluations=evaluations, weights=weights)
    found = search(problem, solver, Limits(evaluations), Ledger())
    assert found is not None
    return found


@pytest.mark.parametrize("name", CHEAP)
def test_every_solver_stays_within_its_budget(name: str) -> None:
    """What it proposes meets the cycles."""
    problem = random_problem(11, layers=6, levels=6)
    assert problem.total(found_by(name).assignment) <= 0.5 * problem.dense_cycles


@pytest.mark.parametrize("name", CHEAP)
def test_the_same_seed_finds_the_same(name: str) -> None:
    """Twice the same assignment after as many evaluations."""
    first, second = found_by(name, 3), found_by(name, 3)
    assert (first.assignment == second.assignment).all()
    assert first.evaluations == second.evaluations == (1 if name in ONCE else first.evaluations)


@pytest.mark.parametrize("name", ["random", "spdy", "swaps", "auto"])
def test_proposals_of_a_step_do_not_depend_on_each_other(name: str) -> None:
    """Four may be evaluated at a time; a last step of which not all may be evaluated is cut short."""
    problem = random_problem(11, layers=6, levels=6)
    together: list[int] = []

    def evaluate(assignments: Sequence[np.ndarray]) -> Iterator[float]:
        together.append(len(assignments))
        return map(problem.evaluate, assignments)

    solver = make_solver(name, problem, int(0.5 * problem.dense_cycles), 0, evaluations=15)
    found = search(problem, solver, Limits(15), Ledger(), evaluate=evaluate)
    alone = found_by(name, evaluations=15)
    assert found is not None
    assert (found.assignment.tolist(), found.accuracy) == (alone.assignment.tolist(), alone.accuracy)
    assert sum(together) == alone.evaluations
    assert max(together) == 4


@pytest.mark.parametrize("name", ["dp", "spdy", "swaps", "auto"])
def test_solvers_that_know_the_errors_find_the_best_where_these_add_up(name: str) -> None:
    """With an additive accuracy they end at the optimum."""
    problem = random_problem(11, layers=4)
    budget = int(0.5 * problem.dense_cycles)
    solver = make_solver(name, problem, budget, 0, evaluations=30)
    found = search(problem, solver, Limits(30), Ledger())
    assert found is not None
    assert problem.error(found.assignment) <= best_by_force(problem, int(0.999 * budget)) + 1e-9


def test_local_search_mends_errors_that_mislead() -> None:
    """Where the table belies the network, swaps and coefficients do better than the allocation alone."""
    problem = random_problem(4, layers=8, levels=6)
    true = np.random.default_rng(1).permutation(problem.errors)  # the table is of other layers

    def evaluate(assignment: np.ndarray) -> float:
        return float(1 - true[np.arange(len(assignment)), assignment].sum() / true[:, -1].sum())

    misled = type(problem)(problem.layers, problem.levels, problem.cycles, problem.errors, 100, evaluate)
    budget = int(0.5 * problem.dense_cycles)
    results = {
        name: search(misled, make_solver(name, misled, budget, 0, evaluations=150), Limits(150), Ledger())
        for name in ("dp", "spdy", "swaps")
    }
    best = {name: found.accuracy for name, found in results.items() if found is not None}
    assert best["spdy"] > best["dp"] + 0.01
    assert best["swaps"] > best["dp"] + 0.01


def test_limits_refusals_and_the_curve() -> None:
    """The curve rises, ends at the limit, and what is above the budget costs no forward."""
    problem = random_problem(2)
    ledger = Ledger(clock=itertools.count().__next__)
    solver = make_solver("random", problem, int(0.6 * problem.dense_cycles), 0, evaluations=20)
    found = search(problem, solver, Limits(20), ledger)
    assert found is not None
    assert found.curve[-1].evaluations == found.evaluations == 20
    heights = [point.top1 * np.log(point.cycles) for point in found.curve]
    assert heights == sorted(heights)
    refused = search(
        problem,
        make_solver("random", problem, problem.dense_cycles, 0, evaluations=5),
        Limits(5),
        ledger,
        most_cycles=problem.least_cycles - 1,
    )
    assert refused is None


def test_a_search_that_is_interrupted_keeps_its_best() -> None:
    """Ctrl-C in an evaluation ends the search with what was found before."""
    problem = random_problem(2)
    calls = iter([0.5, 0.7])

    def evaluate(_: np.ndarray) -> float:
        value = next(calls, None)
        if value is None:
            raise KeyboardInterrupt
        return value

    stopped = type(problem)(problem.layers, problem.levels, problem.cycles, problem.errors, 0, evaluate)
    found = search(stopped, make_solver("random", stopped, problem.dense_cycles, 0, evaluations=9), Limits(9), Ledger())
    assert found is not None
    assert found.interrupted
    assert found.accuracy == 0.7
    assert found.evaluations == 2


def test_unknown_solver_and_unreachable_budget() -> None:
    """Both are told at once."""
    problem = random_problem(0)
    with pytest.raises(InputError, match="no solver 'best'"):
        make_solver("best", problem, problem.dense_cycles, 0, evaluations=1)
    with pytest.raises(InfeasibleError):
        make_solver("dp", problem, problem.least_cycles - 1, 0, evaluations=1)
