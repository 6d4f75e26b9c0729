"""On which targets and at which rates a workload fits (``choice.json``)."""

from __future__ import annotations

from typing import ClassVar

from framefit.core.files import Record, Result
from framefit.core.verdict import Verdict

__all__ = ["Choice", "ChoiceCell", "ChoiceModel"]


class ChoiceModel(Record, kw_only=True):
    """What a model asks for and gets, in frames a second."""

    name: str
    asked_hz: float
    served_hz: float


class ChoiceCell(Record, kw_only=True):
    """A workload on one target at one rate.

    Attributes:
        target: as it was named.
        rate_hz: of the fastest stream; the others keep their proportion.
        verdict: of the plan; ``None``: the target cannot run it.
        worst_slack_ns: of the plan.
        load_ratio: time that all models require over the time of all units that they may use.
        models: in the workload's order.
        binding: the binding constraint, or why the target cannot run it.
        remedy: where it does not fit, the first change that makes it fit by planning again, and what that gives.
    """

    target: str
    rate_hz: float
    verdict: Verdict | None = None
    worst_slack_ns: int = 0
    load_ratio: float = 0.0
    models: tuple[ChoiceModel, ...] = ()
    binding: str | None = None
    remedy: str | None = None

    @property
    def fits(self) -> bool:
        """Whether every model gets all of its frames in time."""
        return self.verdict == "fits"


class Choice(Result, kw_only=True):
    """All targets and rates.

    Attributes:
        app: the workload's file.
        prices: of targets, in the user's currency.
        cells: targets in the order of the request, rates ascending.
        interrupted: whether cells are missing.
    """

    file_kind: ClassVar[str] = "a choice of targets (choice.json)"

    schema_version: int = 1
    app: str
    prices: dict[str, float] = {}
    cells: tuple[ChoiceCell, ...]
    interrupted: bool = False

    @property
    def targets(self) -> list[str]:
        """Names, in order."""
        return list(dict.fromkeys(cell.target for cell in self.cells))

    def best_hz(self, target: str) -> float | None:
        """The highest rate at which the workload fits on a target; ``None``: it fits at none."""
        return max((cell.rate_hz for cell in self.cells if cell.target == target and cell.fits), default=None)

    @property
    def front(self) -> list[str]:
        """Targets that no other one beats: none is as cheap and fits at a higher rate; of equal ones the first."""
        rates = [(name, self.prices.get(name, 0.0), self.best_hz(name)) for name in self.targets]
        able = [(name, price, best) for name, price, best in rates if best is not None]
        front, highest = [], 0.0
        for name, _, best in sorted(able, key=lambda one: (one[1], -one[2])):
            if best > highest:
                front.append(name)
                highest = best
        return front
