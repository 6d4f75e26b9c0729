"""Framefit fits several neural networks into every frame of a small device, and proves it.

    import framefit

    plan = framefit.plan("app.toml")
    print(plan.timetable.feasible, plan.timetable.worst_slack_ns)
    result = framefit.run(plan, seconds=10)
    print(result.metrics.miss_ratio, result.folder)

Names load when they are first used, so importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framefit.core.model import GraphBuilder, Model
    from framefit.core.target import Target, resolve_target
    from framefit.core.timetable import Timetable
    from framefit.core.workload import Workload, load_workload
    from framefit.errors import DeviceError, FramefitError, InfeasibleError, InputError
    from framefit.runtime.programs.outlets import Output, Request, Subscription
    from framefit.workflows.cycles import cycles
    from framefit.workflows.demo import demo
    from framefit.workflows.doctor import doctor
    from framefit.workflows.estimate import estimate
    from framefit.workflows.fit import fit
    from framefit.workflows.follow import follow
    from framefit.workflows.inject_loss import inject_loss
    from framefit.workflows.measure import measure
    from framefit.workflows.plan import Plan, plan
    from framefit.workflows.profile import profile
    from framefit.workflows.report import write_report
    from framefit.workflows.rtl import rtl
    from framefit.workflows.run import run
    from framefit.workflows.runner import Runner
    from framefit.workflows.running.folder import RunResult
    from framefit.workflows.simulate import simulate
    from framefit.workflows.sparsify import sparsify
    from framefit.workflows.table import compare_tables, merge_tables, table
    from framefit.workflows.targets import targets
    from framefit.workflows.treeify import treeify

_HOME = {
    "DeviceError": "framefit.errors",
    "FramefitError": "framefit.errors",
    "GraphBuilder": "framefit.core.model",
    "InfeasibleError": "framefit.errors",
    "InputError": "framefit.errors",
    "Model": "framefit.core.model",
    "Output": "framefit.runtime.programs.outlets",
    "Plan": "framefit.workflows.plan",
    "Request": "framefit.runtime.programs.outlets",
    "RunResult": "framefit.workflows.running.folder",
    "Runner": "framefit.workflows.runner",
    "Subscription": "framefit.runtime.programs.outlets",
    "Target": "framefit.core.target",
    "Timetable": "framefit.core.timetable",
    "Workload": "framefit.core.workload",
    "cycles": "framefit.workflows.cycles",
    "demo": "framefit.workflows.demo",
    "compare_tables": "framefit.workflows.table",
    "doctor": "framefit.workflows.doctor",
    "estimate": "framefit.workflows.estimate",
    "fit": "framefit.workflows.fit",
    "follow": "framefit.workflows.follow",
    "inject_loss": "framefit.workflows.inject_loss",
    "load_workload": "framefit.core.workload",
    "plan": "framefit.workflows.plan",
    "profile": "framefit.workflows.profile",
    "resolve_target": "framefit.core.target",
    "rtl": "framefit.workflows.rtl",
    "run": "framefit.workflows.run",
    "simulate": "framefit.workflows.simulate",
    "sparsify": "framefit.workflows.sparsify",
    "measure": "framefit.workflows.measure",
    "merge_tables": "framefit.workflows.table",
    "table": "framefit.workflows.table",
    "targets": "framefit.workflows.targets",
    "treeify": "framefit.workflows.treeify",
    "write_report": "framefit.workflows.report",
}

__all__ = [
    "DeviceError",
    "FramefitError",
    "GraphBuilder",
    "InfeasibleError",
    "InputError",
    "Model",
    "Output",
    "Plan",
    "Request",
    "RunResult",
    "Runner",
    "Subscription",
    "Target",
    "Timetable",
    "Workload",
    "compare_tables",
    "cycles",
    "demo",
    "doctor",
    "estimate",
    "fit",
    "follow",
    "inject_loss",
    "load_workload",
    "measure",
    "merge_tables",
    "plan",
    "profile",
    "resolve_target",
    "rtl",
    "run",
    "simulate",
    "sparsify",
    "table",
    "targets",
    "treeify",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'framefit' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
