"""Options of ``framefit fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from framefit.core.fit_results import FitSettings
from framefit.core.settings import option
from framefit.fit.steps import step_names

__all__ = ["FitOptions"]


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
