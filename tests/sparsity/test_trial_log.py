"""Evaluations of a search that are kept in its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framefit import InputError
from framefit.core.sparsity import Spent
from framefit.sparsity.problem import Assignment
from framefit.sparsity.search import TrialLog
from framefit.training.campaign import Ledger

ASSIGNMENTS = [np.asarray(levels) for levels in ((0, 1), (2, 1), (1, 1))]


class Search:
    """A book with a clock that only evaluations move: two seconds and a hundred images each."""

    def __init__(self, path: Path, key: str = "key") -> None:
        self.now_s, self.asked = 0.0, 0
        self.ledger = Ledger(clock=lambda: self.now_s)
        self.book = TrialLog(path, key, self.ledger)
        self._look = self.book.evaluated(lambda assignments: map(self._evaluate, assignments))

    def look(self, *assignments: Assignment) -> list[float]:
        """What these are worth."""
        return list(self._look(assignments))

    def _evaluate(self, assignment: Assignment) -> float:
        self.now_s += 2.0
        self.asked += 1
        self.ledger.forwarded(100, evaluations=1)
        return float(assignment.sum()) / 10

    def stands_after(self, assignment: Assignment) -> Spent:
        """What it has spent with this one."""
        self.look(assignment)
        return self.ledger.spent()


def test_what_is_looked_up_costs_what_it_cost(tmp_path: Path) -> None:
    """A search that goes on evaluates nothing again, and stands after each trial where it stood then."""
    first = Search(tmp_path / "trials.json")
    stood = [first.stands_after(assignment) for assignment in ASSIGNMENTS]
    first.book.write()
    again = Search(tmp_path / "trials.json")
    assert again.ledger.spent() == Spent(images_forwarded=0, seconds=0.0, evaluations=0)
    assert [again.stands_after(assignment) for assignment in ASSIGNMENTS] == stood
    assert again.look(*ASSIGNMENTS) == [0.1, 0.3, 0.2]
    assert again.asked == 0
    new = np.asarray((0, 2))
    assert again.look(ASSIGNMENTS[1], new, ASSIGNMENTS[0], new) == [0.3, 0.2, 0.1, 0.2]
    assert again.asked == 1


def test_another_search_adds_to_what_was_spent(tmp_path: Path) -> None:
    """What is new comes on top of all that is known, looked up or not."""
    first = Search(tmp_path / "trials.json")
    spent = [first.stands_after(assignment) for assignment in ASSIGNMENTS][-1]
    first.book.write()
    idle = Search(tmp_path / "trials.json")
    idle.book.write()
    assert idle.ledger.spent() == spent
    other = Search(tmp_path / "trials.json")
    assert other.stands_after(np.asarray((3, 3))) == Spent(
        images_forwarded=spent.images_forwarded + 100, seconds=spent.seconds + 2, evaluations=spent.evaluations + 1
    )


def test_trials_of_another_search_are_refused(tmp_path: Path) -> None:
    """Evaluations depend on model, data and pattern."""
    Search(tmp_path / "trials.json").book.write()
    with pytest.raises(InputError, match="another model"):
        Search(tmp_path / "trials.json", "another key")
