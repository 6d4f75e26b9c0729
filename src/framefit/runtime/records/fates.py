"""Fates of frames in words."""

from __future__ import annotations

from framefit.core.frames import Fated
from framefit.runtime.records.log import Fate

__all__ = ["FATED", "FAULTY", "FLAGGED", "fated"]

FATED: dict[Fate, Fated] = {
    Fate.DONE: ("done", ""),
    Fate.LATE: ("late", "finished after its deadline"),
    Fate.QUEUE_FULL: ("dropped", "a newer frame took its place in the queue"),
    Fate.REFUSED: ("dropped", "the queue was full"),
    Fate.RUN_ENDED: ("dropped", "the run ended"),
    Fate.SKIPPED: ("skipped", "every"),
    Fate.FAILED: ("dropped", "fault: a launch failed"),
    Fate.HUNG: ("dropped", "fault: a launch hung"),
    Fate.UNREADABLE: ("dropped", "fault: it could not be read, or had another shape"),
    Fate.DEGRADED: ("dropped", "fault: the model rested after failures"),
    Fate.NOT_FINITE: ("dropped", "fault: outputs not finite"),
    Fate.NOT_GIVEN: ("dropped", "a model that it reads did not give it"),
}

FLAGGED: tuple[Fated, Fated] = (
    ("done", "outputs not finite"),
    ("late", "finished after its deadline; outputs not finite"),
)
FAULTY = (Fate.FAILED, Fate.HUNG, Fate.UNREADABLE, Fate.DEGRADED, Fate.NOT_FINITE)


def fated(fate: Fate) -> Fated:
    """A fate in words, and its reason."""
    return FATED[fate]
