"""The protocol of all solvers, and the loop that asks them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from framefit.core.sparsity import RewardKind, SearchPoint
from framefit.sparsity.problem import Assignment, Problem, reward
from framefit.training.campaign import Ledger

_MOST_REFUSED = 10  # proposals above the budget for each evaluation, after which the solver is given up


Evaluate = Callable[[Sequence[Assignment]], Iterator[float]]
"""Gives the accuracies of assignments, in their order."""


class Solver(Protocol):
    """Proposes assignments within its budget of cycles, and learns from their accuracy.

    Attributes:
        name: kind of solver.
    """

    @property
    def name(self) -> str:
        """The name by which users choose it."""
        ...

    def ask(self) -> Sequence[Assignment]:
        """Return assignments to evaluate, none of which depends on another's accuracy; none: there are no more."""
        ...

    def tell(self, accuracies: Sequence[float]) -> None:
        """Receive the accuracies (0 to 1) of all that was asked for last."""
        ...


@dataclass(frozen=True)
class Limits:
    """When a search ends.

    Attributes:
        evaluations: largest number of them.
        seconds: largest number on the ledger; ``None``: any.
    """

    evaluations: int
    seconds: float | None = None


@dataclass(frozen=True)
class Solution:
    """Result of a solver's search.

    Attributes:
        solver: its name.
        assignment: the one with the best reward.
        accuracy: of that assignment.
        evaluations: number in this search.
        curve: a point for each improvement, and one for the end.
        interrupted: whether the user stopped the search.
    """

    solver: str
    assignment: Assignment
    accuracy: float
    evaluations: int
    curve: tuple[SearchPoint, ...]
    interrupted: bool = False


def search(
    problem: Problem,
    solver: Solver,
    limits: Limits,
    ledger: Ledger,
    *,
    kind: RewardKind = "accuracy-log-cycles",
    cycles: Callable[[Assignment], int] | None = None,
    most_cycles: int | None = None,
    evaluate: Evaluate | None = None,
    progress: Callable[[Solution], None] | None = None,
) -> Solution | None:
    """Ask, evaluate and tell until the solver or the limits end the search; at least once if there is a proposal.

    Args:
        problem: evaluates assignments.
        solver: proposes assignments.
        limits: of this search.
        ledger: counts everything.
        kind: reward by which the best assignment is chosen.
        cycles: of an assignment, for the reward; default: the problem's own. A search without the hardware is
            still judged by the hardware's cycles.
        most_cycles: assignments above it count as worth nothing, without a forward pass.
        evaluate: gives the accuracies of several assignments, in their order; default: the problem's, one by one.
        progress: receives the best solution after each evaluation.

    Returns:
        The best solution; ``None`` where nothing was evaluated. Ctrl-C ends the search and keeps its best.
    """
    cycles = cycles or problem.total
    evaluate = evaluate or functools.partial(map, problem.evaluate)
    best: Assignment | None = None
    accuracy, worth, count, refused = 0.0, -np.inf, 0, 0
    curve: list[SearchPoint] = []

    def going_on() -> bool:
        in_time = limits.seconds is None or ledger.seconds < limits.seconds
        return count < limits.evaluations and (not count or in_time)

    def point() -> SearchPoint:
        assert best is not None
        return SearchPoint(
            solver=solver.name,
            evaluations=count,
            images_forwarded=ledger.images_forwarded,
            seconds=round(ledger.seconds, 3),
            top1=accuracy,
            cycles=cycles(best),
        )

    def solution(*, interrupted: bool = False) -> Solution | None:
        if best is None:
            return None
        ended = curve if curve and curve[-1].evaluations == count else [*curve, point()]
        return Solution(solver.name, best, accuracy, count, tuple(ended), interrupted)

    try:
        while going_on() and refused <= _MOST_REFUSED * limits.evaluations:
            proposals = solver.ask()
            if not proposals:
                break
            within = [most_cycles is None or cycles(assignment) <= most_cycles for assignment in proposals]
            allowed = [assignment for assignment, fits in zip(proposals, within, strict=True) if fits]
            values = evaluate(allowed[: limits.evaluations - count])
            accuracies = []
            for assignment, fits in zip(proposals, within, strict=True):
                if not fits:
                    refused += 1
                    accuracies.append(0.0)
                    continue
                if not going_on():
                    break
                accuracies.append(top1 := next(values))
                count += 1
                value = reward(kind, top1, cycles(assignment))
                if value > worth:
                    best, accuracy, worth = assignment.copy(), top1, value
                    curve.append(point())
                if progress is not None and (now := solution()) is not None:
                    progress(now)
            if len(accuracies) == len(proposals):
                solver.tell(accuracies)
    except KeyboardInterrupt:
        return solution(interrupted=True)
    return solution()
