"""The changes that ``framefit fit`` may make, one file each: a new file here is a new kind of step."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framefit.fit.step import Step

__all__ = ["known_steps", "step_names"]


def step_names() -> tuple[str, ...]:
    """Names of all kinds of steps, which their files have; no kind is imported for that."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def known_steps() -> dict[str, type[Step]]:
    """All kinds of steps by name, the cheapest first."""
    from framefit.fit.step import COSTS, STEPS

    for name in step_names():
        importlib.import_module(f"{__name__}.{name}")
    return dict(sorted(STEPS.items(), key=lambda entered: (COSTS.index(entered[1].cost), entered[1].rank)))
