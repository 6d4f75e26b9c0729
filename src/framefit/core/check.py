"""Whether models got slower, measured in turn (``framefit check --json``)."""

from __future__ import annotations

from typing import Literal

from framefit.core.files import Record, Result

__all__ = ["CheckDecision", "CheckResult", "CheckedModel"]

CheckDecision = Literal["pass", "fail", "cannot tell"]


class CheckedModel(Record, kw_only=True):
    """A model beside an earlier version of itself.

    Attributes:
        decision: "fail": it is slower.
        here_ns, there_ns: median latencies of the whole model.
        difference_ns: here less there.
        floor_ns: difference below which no model counts as slower.
        ratio: here over there; median of the rounds.
        interval: 99 %, of the median.
        same: whether both are the same model, so that nothing was measured.
        rounds: in which both were launched in turn.
    """

    name: str
    decision: CheckDecision
    here_ns: int = 0
    there_ns: int = 0
    difference_ns: int = 0
    floor_ns: int = 0
    ratio: float = 1.0
    interval: tuple[float, float] = (1.0, 1.0)
    same: bool = False
    rounds: int = 0


class CheckResult(Result, kw_only=True):
    """A workload beside an earlier version.

    Attributes:
        app, against: their files.
        target: device.
        most: ratio above which a model counts as slower.
        decision: "fail" if one model is slower, else "cannot tell" if that holds for one.
        models: those that both have.
        only_here, only_there: names of the others.
    """

    schema_version: int = 1
    app: str
    against: str
    target: str
    most: float
    decision: CheckDecision
    models: tuple[CheckedModel, ...]
    only_here: tuple[str, ...] = ()
    only_there: tuple[str, ...] = ()
