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
        price: of the target, in the user's currency; ``None``: not stated.
        binding: the binding constraint, or why the target cannot run it.
        remedy: where it does not fit, the first change that makes it fit by planning again, and what that gives; of a
            fit, its steps.
        fitted: verdict after a fit; ``None``: there was none, or it was in vain.
        accuracy_lost: by the model that lost most in that fit's final test, 0 to 1.
        frames_lost_ratio: part of the frames that are asked for which models do not get after that fit.
        fit: its folder, relative to the choice's; ``None``: it was not kept.
    """

    target: str
    rate_hz: float
    verdict: Verdict | None = None
    worst_slack_ns: int = 0
    load_ratio: float = 0.0
    models: tuple[ChoiceModel, ...] = ()
    price: float | None = None
    binding: str | None = None
    remedy: str | None = None
    fitted: Verdict | None = None
    accuracy_lost: float | None = None
    frames_lost_ratio: float | None = None
    fit: str | None = None

    @property
    def fits(self) -> bool:
        """Whether every model gets all of its frames in time."""
        return self.verdict == "fits"


class Choice(Result, kw_only=True):
    """All targets and rates.

    Attributes:
        app: the workload's file.
        cells: targets in the order of the request, rates ascending.
        interrupted: whether cells are missing.
    """

    file_kind: ClassVar[str] = "a choice of targets (choice.json)"

    schema_version: int = 1
    app: str
    cells: tuple[ChoiceCell, ...]
    interrupted: bool = False

    @property
    def targets(self) -> list[str]:
        """Names, in order."""
        return list(dict.fromkeys(cell.target for cell in self.cells))

    def best(self, target: str) -> ChoiceCell | None:
        """The highest rate at which the workload fits on a target, or was made to fit; ``None``: there is none."""
        able = (cell for cell in self.cells if cell.target == target and (cell.fits or cell.fitted == "fits"))
        return max(able, key=lambda cell: cell.rate_hz, default=None)

    @property
    def front(self) -> list[str]:
        """Targets that no other one beats: none is as cheap and fits at a higher rate; of equal ones the first."""
        able = [cell for cell in map(self.best, self.targets) if cell is not None]
        front, highest = [], 0.0
        for cell in sorted(able, key=lambda cell: (cell.price or 0.0, -cell.rate_hz)):
            if cell.rate_hz > highest:
                front.append(cell.target)
                highest = cell.rate_hz
        return front
