"""What commands print: one ``show`` for every kind of record, at its best from 80 columns."""

from __future__ import annotations

import importlib
from typing import Any

from rich.console import Console, RenderableType

__all__ = ["show", "view"]


_VIEWS = {  # by the record's class: where its view is, and how it is called
    "CycleReport": ("cycle_table", "cycles_view"),
    "FitResult": ("fit_view", "fit_view"),
    "HostReport": ("doctor_table", "doctor_view"),
    "LatencyEstimate": ("latency_tables", "estimate_view"),
    "LatencyTable": ("latency_tables", "table_view"),
    "Metrics": ("run_view", "metrics_view"),
    "Profile": ("profile_tables", "profile_view"),
    "RtlReport": ("rtl_view", "rtl_view"),
    "SparsityResult": ("sparsity_view", "sparsity_view"),
    "TableComparison": ("latency_tables", "comparison_view"),
    "Target": ("target_tables", "target_view"),
    "TargetList": ("target_tables", "targets_view"),
    "Timetable": ("plan_tables", "plan_view"),
    "TreeifyResult": ("treeify_view", "treeify_view"),
}


def view(record: object, **options: Any) -> RenderableType:
    """How a record looks on a terminal; nothing is printed.

    Args:
        record: of ``core``: a timetable, metrics, a profile, a latency table, a search's result, ...
        options: what its kind knows beside the record, such as the folder of a fit.
    """
    module, name = _VIEWS[type(record).__name__]
    function = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    shown: RenderableType = function(record, **options)
    return shown


def show(record: object, console: Console, **options: Any) -> None:
    """Print a record; see :func:`view`."""
    console.print(view(record, **options), markup=False)
