"""Built-in models on described targets, in virtual time: the timetable beside whole-model dispatch.

    python benchmarks/simulated_targets.py [--windows 100000]

A detector in every window and a depth network that is longer than the window. ``timetable``
is ``framefit simulate``; ``whole`` the same dispatcher, which starts the uncut network
whenever the unit is free.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

import msgspec
from stored import store

import framefit
from framefit.core.model.builtin import BUILTIN
from framefit.planning.check import check_timetable

# target -> windows a second
WORKLOADS = {"vpu": 150.0, "meteor-lake": 800.0, "micro-npu": 30.0, "dsp": 30.0, "edge-8": 30.0}


def uncut(plan: framefit.Plan) -> framefit.Plan:
    """The same models whole; background ones start whenever the unit is free."""
    models = []
    for model in plan.timetable.models:
        first, last = model.segments[0], model.segments[-1]
        whole = msgspec.structs.replace(
            last,
            index=0,
            first_layer=first.first_layer,
            span=(first.span[0], last.span[1]),
            duration_ns=model.duration_ns if model.role == "priority" else 0,
            median_ns=model.whole_ns,
        )
        models.append(msgspec.structs.replace(model, segments=(whole,)))
    timetable = msgspec.structs.replace(plan.timetable, models=tuple(models), guard_ns=0)
    return dataclasses.replace(plan, timetable=timetable)


def main() -> None:
    """Simulate all, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=100_000)
    options = parser.parse_args()
    table = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in ("detector", "depth"):
            BUILTIN[model](0).save(folder / f"{model}.onnx")
        for target, rate_hz in WORKLOADS.items():
            app = folder / f"{target}.toml"
            app.write_text(
                f'target = "{target}"\nrate_hz = {rate_hz}\n'
                '[[models]]\nname = "detector"\npath = "detector.onnx"\npriority = "every-window"\n'
                '[[models]]\nname = "depth"\npath = "depth.onnx"\npriority = "background"\n'
            )
            plan = framefit.plan(app)
            whole = uncut(plan)
            begin = time.perf_counter()
            cut_run = framefit.simulate(plan, windows=options.windows, output=folder / f"{target}-cut")
            seconds = time.perf_counter() - begin
            whole_run = framefit.simulate(whole, windows=options.windows, output=folder / f"{target}-whole")
            detector, depth = cut_run.metrics.models
            row = {
                "rate_hz": rate_hz,
                "detector_ns": plan.timetable.models[0].segments[0].median_ns,
                "depth_ns": plan.opened().models[1].whole.expected_ns(0),
                "window_ns": plan.timetable.window_ns,
                "segments": len(plan.timetable.models[1].segments),
                "guard_ns": plan.timetable.guard_ns,
                "check": check_timetable(plan.timetable),
                "windows": cut_run.metrics.windows,
                "missed": detector.missed,
                "missed_whole": whole_run.metrics.models[0].missed,
                "age_windows": [depth.result_age_windows_max, plan.timetable.models[1].result_age_windows],
                "fluid_ratio": depth.throughput_hz / (depth.fluid_bound_hz or 1),
                "packing_ratio": depth.throughput_hz / (depth.packing_bound_hz or 1),
                "segmentation_overhead_ratio": plan.timetable.models[1].segmentation_overhead_ratio,
                "exceeded_ratio": cut_run.metrics.estimate_exceeded_ratio,
                "seconds": round(seconds, 1),
            }
            table[target] = row
            print(target, row)
    store("simulated_targets", {"targets": table}, f"simulated_targets.py --windows {options.windows}")


if __name__ == "__main__":
    main()
