"""Whether models got slower, measured in turn (``framefit check --json``)."""

from __future__ import annotations

from typing import Literal

from framefit.core.files import Record, Result

__all__ = ["CheckResult", "CheckVerdict", "CheckedModel"]

CheckVerdict = Literal["not slower", "slower", "cannot tell"]


class CheckedModel(Record, kw_only=True):
    """A model beside an earlier version of itself.

    Attributes:
        here_ns, there_ns: median latencies of the whole model.
        ratio: here over there; median of the rounds.
        ratio_interval: 99 %, of the median.
        same: whether both are the same model, so that nothing was measured.
        rounds: in which both were launched in turn.
    """

    name: str
    verdict: CheckVerdict
    here_ns: int = 0
    there_ns: int = 0
    ratio: float = 1.0
    ratio_interval: tuple[float, float] = (1.0, 1.0)
    same: bool = False
    rounds: int = 0


class CheckResult(Result, kw_only=True):
    """A workload beside an earlier version.

    Attributes:
        app, against: their files.
        target: device.
        most: ratio above which a model counts as slower.
        floor_ns: difference below which none does.
        verdict: "slower" if one model is, else "cannot tell" if that holds for one.
        models: those that both have.
        only_here, only_there: names of the others.
    """

    schema_version: int = 1
    app: str
    against: str
    target: str
    most: float
    floor_ns: int
    verdict: CheckVerdict
    models: tuple[CheckedModel, ...]
    only_here: tuple[str, ...] = ()
    only_there: tuple[str, ...] = ()
