"""What every solver offers, and the loop that asks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from framefit.core.sparsity import RewardKind, SearchPoint
from framefit.sparsity.problem import Assignment, Problem, reward
from framefit.training.campaign import Ledger

_MOST_REFUSED = 10  # proposals above the budget for each evaluation: then the solver will not find below it


class Solver(Protocol):
    """Proposes assignments within its budget of cycles, and learns what they are worth.

    Attributes:
        name: of the kind.
    """

    @property
    def name(self) -> str:
        """As users choose it."""
        ...

    def ask(self) -> Assignment | None:
        """The next assignment to evaluate; ``None``: it has no more to propose."""
        ...

    def tell(self, accuracy: float) -> None:
        """The accuracy (0 to 1) of what it asked for last."""
        ...


@dataclass(frozen=True)
class Limits:
    """Where a search ends.

    Attributes:
        evaluations: at most.
        seconds: of the ledger, at most; ``None``: any.
    """

    evaluations: int
    seconds: float | None = None


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        solver: its name.
        assignment: of the best reward.
        accuracy: of that.
        evaluations: of this search.
        curve: each time the best changed, and the end.
        interrupted: whether the user stopped it.
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
    progress: Callable[[Found], None] | None = None,
) -> Found | None:
    """Ask, evaluate, tell, until the solver or the limits end it; at least once where it proposes anything.

    Args:
        problem: evaluates assignments.
        solver: proposes them.
        limits: of this search.
        ledger: of everything.
        kind: of the reward by which the best is chosen.
        cycles: of an assignment, for the reward; default: the problem's own. A search that knows no
            hardware is still judged by the hardware's cycles.
        most_cycles: what is above is told to be worth nothing, without a forward.
        progress: told of the best after each evaluation.

    Returns:
        The best; ``None`` where nothing was evaluated. Ctrl-C ends the search and keeps it.
    """
    cycles = cycles or problem.total
    best: Assignment | None = None
    accuracy, worth, count, refused = 0.0, -np.inf, 0, 0
    curve: list[SearchPoint] = []

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

    def found(*, interrupted: bool = False) -> Found | None:
        if best is None:
            return None
        ended = curve if curve and curve[-1].evaluations == count else [*curve, point()]
        return Found(solver.name, best, accuracy, count, tuple(ended), interrupted)

    try:
        while count < limits.evaluations and (not count or limits.seconds is None or ledger.seconds < limits.seconds):
            asked = solver.ask()
            if asked is None:
                break
            if most_cycles is not None and cycles(asked) > most_cycles:
                refused += 1
                solver.tell(0.0)
                if refused > _MOST_REFUSED * limits.evaluations:
                    break
                continue
            told = problem.evaluate(asked)
            solver.tell(told)
            count += 1
            value = reward(kind, told, cycles(asked))
            if value > worth:
                best, accuracy, worth = asked.copy(), told, value
                curve.append(point())
            if progress is not None and (now := found()) is not None:
                progress(now)
    except KeyboardInterrupt:
        return found(interrupted=True)
    return found()
