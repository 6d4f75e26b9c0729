"""The one verdict on a workload, and what each model gets of what it asks for.

``plan``, ``run``, ``simulate``, ``fit`` and their pages say it in these words: it follows from nothing but whether all
deadlines hold, and from the frames a second that each model gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

__all__ = ["SERVED", "Served", "Verdict", "frames_text", "gets", "share_ratio", "verdict_of"]


Verdict = Literal["fits", "fits with fewer frames", "does not fit"]
SERVED = 0.98
"""Part of the frames that a model asks for which counts as all: a timetable of at most 64 windows begins with idle
units and ends with frames in flight, which costs up to 1/64 of what a run, that goes on, serves."""


class Served(Protocol):
    """What a model asks for and gets, in frames a second; 0 where it asks for none."""

    @property
    def name(self) -> str:
        """Of the model."""

    @property
    def asked_hz(self) -> float:
        """Frames a second that it asks for."""

    @property
    def served_hz(self) -> float:
        """Frames a second that it gets."""


def share_ratio(model: Served) -> float:
    """Part of the frames that a model asks for which it gets, 0 to 1."""
    return min(model.served_hz / model.asked_hz, 1.0) if model.asked_hz else 1.0


def verdict_of(models: Iterable[Served], *, feasible: bool) -> Verdict:
    """Whether everything fits.

    Args:
        models: of the workload.
        feasible: whether all deadlines hold.
    """
    if not feasible:
        return "does not fit"
    return "fits" if all(share_ratio(model) >= SERVED for model in models) else "fits with fewer frames"


def frames_text(model: Served) -> str:
    """What a model gets: "11.5 of 30 Hz"; a timetable's rounding is not told."""
    served_hz = model.asked_hz if share_ratio(model) >= SERVED else model.served_hz
    return f"{served_hz:.4g} of {model.asked_hz:.4g} Hz"


def gets(model: Served) -> str:
    """The same as a part of a sentence: "'tags' gets 11.5 of 30 Hz"."""
    return f"{model.name!r} gets {frames_text(model)}"
