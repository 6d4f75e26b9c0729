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
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framefit.core.latency_table import compare_tables, merge_tables, table
    from framefit.core.model import GraphBuilder, Model
    from framefit.core.target import Target, resolve_target
    from framefit.core.timetable import Timetable
    from framefit.core.workload import Workload, load_workload
    from framefit.devices.diagnosis import doctor
    from framefit.devices.npu.costs import cycles
    from framefit.devices.registry import targets
    from framefit.errors import DeviceError, FramefitError, InfeasibleError, InputError
    from framefit.fit.choose import choose
    from framefit.fit.loop import fit
    from framefit.latency.estimate import estimate
    from framefit.latency.measure import calibrate, measure
    from framefit.planning.plan import Plan
    from framefit.profiling.streaming import follow
    from framefit.runtime.program import Output, Request, Subscription
    from framefit.trees.rtl import rtl
    from framefit.workflows.bundle import bundle
    from framefit.workflows.check import check
    from framefit.workflows.demo import demo
    from framefit.workflows.init import init, schema
    from framefit.workflows.inject import inject_loss
    from framefit.workflows.plan import plan
    from framefit.workflows.profile import profile
    from framefit.workflows.record import RunResult
    from framefit.workflows.report import write_report
    from framefit.workflows.run import run, simulate, soak
    from framefit.workflows.runner import Runner
    from framefit.workflows.search import sparsify, treeify
    from framefit.workflows.store import log, pull, push

_HOME = {
    "DeviceError": "framefit.errors",
    "FramefitError": "framefit.errors",
    "GraphBuilder": "framefit.core.model",
    "InfeasibleError": "framefit.errors",
    "InputError": "framefit.errors",
    "Model": "framefit.core.model",
    "Output": "framefit.runtime.program",
    "Plan": "framefit.workflows.plan",
    "Request": "framefit.runtime.program",
    "RunResult": "framefit.workflows.record",
    "Runner": "framefit.workflows.runner",
    "Subscription": "framefit.runtime.program",
    "Target": "framefit.core.target",
    "Timetable": "framefit.core.timetable",
    "Workload": "framefit.core.workload",
    "calibrate": "framefit.latency.measure",
    "bundle": "framefit.workflows.bundle",
    "check": "framefit.workflows.check",
    "choose": "framefit.fit.choose",
    "cycles": "framefit.devices.npu.costs",
    "demo": "framefit.workflows.demo",
    "compare_tables": "framefit.core.latency_table",
    "doctor": "framefit.devices.diagnosis",
    "estimate": "framefit.latency.estimate",
    "fit": "framefit.fit.loop",
    "follow": "framefit.profiling.streaming",
    "init": "framefit.workflows.init",
    "inject_loss": "framefit.workflows.inject",
    "load_workload": "framefit.core.workload",
    "log": "framefit.workflows.store",
    "plan": "framefit.workflows.plan",
    "profile": "framefit.workflows.profile",
    "pull": "framefit.workflows.store",
    "push": "framefit.workflows.store",
    "resolve_target": "framefit.core.target",
    "rtl": "framefit.trees.rtl",
    "run": "framefit.workflows.run",
    "schema": "framefit.workflows.init",
    "simulate": "framefit.workflows.run",
    "soak": "framefit.workflows.run",
    "sparsify": "framefit.workflows.search",
    "measure": "framefit.latency.measure",
    "merge_tables": "framefit.core.latency_table",
    "table": "framefit.core.latency_table",
    "targets": "framefit.devices.registry",
    "treeify": "framefit.workflows.search",
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
    "bundle",
    "calibrate",
    "check",
    "choose",
    "compare_tables",
    "cycles",
    "demo",
    "doctor",
    "estimate",
    "fit",
    "follow",
    "init",
    "inject_loss",
    "load_workload",
    "log",
    "measure",
    "merge_tables",
    "plan",
    "profile",
    "pull",
    "push",
    "resolve_target",
    "rtl",
    "run",
    "schema",
    "simulate",
    "soak",
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


class _Package(ModuleType):
    """Keeps ``framefit.fit`` the function, though importing the room of that name would bind the room."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name == "fit" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
