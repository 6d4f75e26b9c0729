"""What a measure is: something that offers steps, each with what it costs and is predicted to gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from framefit.core.fits import FittedModel, MeasureName, ProposedStep, StepCost
from framefit.core.workload import Workload
from framefit.workflows.fitting.situation import Situation

__all__ = ["COSTS", "MEASURES", "Change", "Measure", "Offer", "ranked"]

COSTS: tuple[StepCost, ...] = ("none", "accuracy", "rate")
"""What steps cost, the cheapest first."""
MEASURES: tuple[MeasureName, ...] = ("cuts", "units", "int8", "sparsify", "trees", "rate")
"""In the order in which steps of one cost are taken: what leaves a network most as it is comes first."""


@dataclass(frozen=True)
class Change:
    """What a step made.

    Attributes:
        workload: with it, absolute paths.
        fitted: the model that it changed; ``None``: none.
        top1: of that model on validation data, (before, after).
        detail: as a sentence.
    """

    workload: Workload
    fitted: FittedModel | None = None
    top1: tuple[float, float] | None = None
    detail: str = ""


@dataclass(frozen=True)
class Offer:
    """A step that may be taken.

    Attributes:
        step: what it is.
        take: makes the change; its files go to the folder that it is handed.
    """

    step: ProposedStep
    take: Callable[[Path], Change]


class Measure(Protocol):
    """A kind of step."""

    def propose(self, situation: Situation) -> Sequence[Offer]:
        """Steps that may help, by cheap means: nothing is trained, and nothing is kept."""
        ...


def ranked(offers: Sequence[Offer]) -> list[Offer]:
    """The cheapest first: what lacks nothing; what costs nothing, then accuracy, then frames; what is enough alone.

    Of those alike, in the order of the measures, and then the one that is predicted to gain most.
    """

    def place(offer: Offer) -> tuple[bool, int, bool, int, float]:
        step = offer.step
        predicted = float("inf") if step.predicted_load_ratio is None else step.predicted_load_ratio
        return (
            step.needs is not None,
            COSTS.index(step.cost),
            not step.enough,
            MEASURES.index(step.measure),
            predicted,
        )

    return sorted(offers, key=place)
