"""Whether a plan that fits holds: simulated on a described device, run on this machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from framefit.core.fit_results import FitSettings
from framefit.core.run_record import Metrics, ModelMetrics
from framefit.fit.situation import Situation
from framefit.planning.plan import Notify, Plan
from framefit.workflows.run import run, simulate

__all__ = ["Proof", "proven"]


_IN_FLIGHT = 3  # frames of a background model that wait or are worked on when a run ends: no run drops these
_LEAST_MORE, _MOST_MORE = 1.03, 1.25  # times the margin before


@dataclass(frozen=True)
class Proof:
    """What a run of the plan showed.

    Attributes:
        how: it was done.
        share_ratio: of its frames that the worst-served model got in time, 0 to 1.
        holds: whether that is enough.
        detail: the worst-served model, as a sentence.
        more_ratio: times the present margin to plan with next, where it does not hold.
    """

    how: Literal["simulated", "run"]
    share_ratio: float
    holds: bool
    detail: str
    more_ratio: float


def proven(situation: Situation, settings: FitSettings, folder: Path, table: Path, notify: Notify) -> Proof:
    """Run a plan that fits, profile it, and write what layers took into a latency table.

    Sinks stay closed: nothing that the user has is written.

    Args:
        situation: its plan.
        settings: length, seed and what may be missed.
        folder: gets the run folder.
        table: is written, or updated.
        notify: receives what is being done.

    Raises:
        DeviceError: the device failed in mid-run.
    """
    planned = _without_sinks(situation.planned)
    play = simulate if situation.described else run
    result = play(
        planned,
        seconds=settings.verify_seconds,
        output=folder,
        force=True,
        seed=settings.seed,
        update_table=table,
        notify=notify,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    worst = min(result.metrics.models, key=_share)
    share = _share(worst)
    degraded = [model.name for model in result.metrics.models if model.degraded]
    detail = f"{_told(result.metrics)} in {result.metrics.windows} windows"
    return Proof(
        how="simulated" if situation.described else "run",
        share_ratio=share,
        holds=share >= 1 - settings.max_miss_ratio and not degraded,
        detail=detail + "".join(f"; {name!r} ended degraded" for name in degraded),
        more_ratio=min(max(1.01 / max(share, 0.01), _LEAST_MORE), _MOST_MORE),
    )


def _without_sinks(planned: Plan) -> Plan:
    return dataclasses.replace(planned, workload=msgspec.structs.replace(planned.workload, outputs=()))


def _share(model: ModelMetrics) -> float:
    """Part of a model's frames that were done in time, 0 to 1."""
    return 1 - _bad(model) / model.releases if model.releases else 1.0


def _bad(model: ModelMetrics) -> int:
    """Late and dropped frames; a priority model's missed ones are both."""
    return model.missed if model.role == "priority" else model.missed + max(model.dropped - _IN_FLIGHT, 0)


def _told(metrics: Metrics) -> str:
    bad = [f"{model.name!r} missed {_bad(model)} of {model.releases} frames" for model in metrics.models if _bad(model)]
    return ", ".join(bad) or "every frame of every model was done in time"
