"""One file a kind of result: what it says, once for terminal and page.

To show another kind: its file here, with a ``Kind``, and a line in the list below.
"""

from __future__ import annotations

import importlib
from typing import Any

from framefit.report.description import Kind

__all__ = ["kind_of"]


_KINDS = {  # in the order of a page: class of the content, its file here, and its Kind there
    "FitContent": ("fit", "KIND"),
    "FitResult": ("fit", "KIND"),
    "RunContent": ("run", "KIND"),
    "Metrics": ("run", "KIND"),
    "PlanContent": ("plan", "KIND"),
    "Timetable": ("plan", "KIND"),
    "ProfileContent": ("profile", "KIND"),
    "Profile": ("profile", "KIND"),
    "LossStudy": ("losses", "KIND"),
    "Choice": ("choice", "KIND"),
    "LatencyTable": ("latency", "TABLE"),
    "TableComparison": ("latency", "COMPARISON"),
    "LatencyEstimate": ("latency", "ESTIMATE"),
    "MachineCorrection": ("latency", "CORRECTION"),
    "CycleReport": ("latency", "CYCLES"),
    "SparsityResult": ("sparsity", "KIND"),
    "TreeifyResult": ("trees", "KIND"),
    "RtlReport": ("trees", "CIRCUITS"),
    "CheckResult": ("check", "KIND"),
    "SoakResult": ("soak", "KIND"),
    "StoreLog": ("stored", "KIND"),
    "HostReport": ("machine", "DOCTOR"),
    "Target": ("machine", "TARGET"),
    "TargetList": ("machine", "TARGETS"),
}


def kind_of(content: object) -> tuple[int, Kind[Any]]:
    """The kind of a result, and its place on a page.

    Args:
        content: a record of ``core``, or what a file of this folder makes of several.
    """
    name = type(content).__name__
    module, kind = _KINDS[name]
    result: Kind[Any] = getattr(importlib.import_module(f"{__name__}.{module}"), kind)
    return list(_KINDS).index(name), result
