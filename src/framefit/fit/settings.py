"""Options of ``framefit fit`` and ``framefit choose``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from framefit.core.fit_results import FitSettings, MaxDrop, ModelData
from framefit.core.settings import Settings, Workers, check_workers, option
from framefit.fit.steps import step_names

__all__ = ["ChooseSettings", "FitOptions"]


if TYPE_CHECKING:
    StepName = str
else:
    StepName = Literal[step_names()]  # one file a kind of step: no other list of them


class FitOptions(FitSettings, kw_only=True):
    """Options of ``framefit fit``: what is fitted, and where the result is kept."""

    exclude: Annotated[tuple[StepName, ...], option("Kind of step that must not be taken.")] = ()
    apply: Annotated[bool, option("Take the steps; otherwise they are only proposed.")] = False
    resume: Annotated[
        str | None, option("Continue the fit in this folder; its steps are applied.", metavar="DIR", names="path")
    ] = None
    output: Annotated[
        str | None,
        option(
            "Folder of the fit (default: APP-fit; without --apply nothing is written by default).",
            "-o",
            "--output",
            metavar="DIR",
            names="new path",
        ),
    ] = None
    force: Annotated[bool, option("Overwrite an existing folder of a fit.")] = False


class ChooseSettings(Settings, kw_only=True):
    """Options of ``framefit choose``."""

    app: Annotated[
        str,
        option("Workload (default: app.toml of this folder).", argument=True, metavar="APP.toml", names="workload"),
    ] = "app.toml"
    targets: Annotated[
        tuple[str, ...],
        option(
            "Targets to compare: built-in names, paths of a target.toml, or your boards (default: the workload's).",
            metavar="T,T,...",
            example="vpu,edge-8,pi5",
            names="target or board",
            joined=True,
        ),
    ] = ()
    rates: Annotated[
        tuple[float, ...],
        option(
            "Rates of the fastest stream; others keep their proportion (default: the workload's).",
            metavar="HZ,HZ,...",
            example="15,30,60",
            joined=True,
        ),
    ] = ()
    prices: Annotated[
        str | None, option("Prices of the targets: a line target = price each.", metavar="PRICES.toml", names="path")
    ] = None
    fit: Annotated[
        bool, option("Fit the workload where it does not fit, as framefit fit does, and show what it costs.")
    ] = False
    data: ModelData = {}
    max_drop: MaxDrop = 0.01
    max_seconds: Annotated[
        float, option("Begin no further step of a fit after this many seconds.", metavar="SECONDS", gt=0)
    ] = 1200.0
    workers: Workers = 2
    output: Annotated[
        str | None,
        option(
            "Folder for choice.json, a page and the fits; the same command goes on with it.",
            "-o",
            "--output",
            metavar="DIR",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_workers(self.workers)
        if self.data and not self.fit:
            raise ValueError("data is for a fit; give fit, too")
        if not self.max_seconds < math.inf:
            raise ValueError(f"max_seconds must be finite, is {self.max_seconds}")
