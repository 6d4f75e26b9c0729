"""Workloads on described devices, on one unit and on several, from light to overloaded, in virtual time.

    python benchmarks/simulated_workloads.py [--windows 100000] [--only 05]

The claim: where the plan says that a workload fits, no priority frame is missed and no result is older than its
bound; where it does not fit, the plan says what binds, and changes that were verified by planning again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from stored import RESULTS, store

import framefit
from framefit.core.model.builtin import BUILTIN
from framefit.core.workload import ModelEntry, Workload
from framefit.errors import FramefitError
from framefit.planning.check import check_timetable

sys.path.insert(0, str(Path(__file__).parent))
from zoo import ARCHITECTURES

WORKLOADS = Path(__file__).parent / "workloads"


def deadline(model: ModelEntry, workload: Workload) -> list[tuple[str, int]]:
    """That is given, or where streams have different rates the priority model's own next release."""
    if model.deadline_ms:
        return [(model.name, round(model.deadline_ms * 1e6))]
    streams = [name for name in model.inputs.values() if name in workload.stream_names]
    if len(workload.grid.offsets_ns) == 1 or not streams or model.priority == "background":
        return []
    return [(model.name, workload.grid.period_ns(streams[0]))]


def row_of(app: Path, windows: int, folder: Path) -> dict[str, object]:
    """One workload's row."""
    begin = time.perf_counter()
    plan = framefit.plan(app)
    timetable = plan.timetable
    row: dict[str, object] = {
        "target": plan.workload.target,
        "window_ns": timetable.window_ns,
        "hyperperiod_windows": timetable.hyperperiod_windows,
        "segments": {model.name: len(model.segments) for model in timetable.models},
        "units": {m.name: list(dict.fromkeys(s.unit for s in m.segments)) for m in timetable.models},
        "gap_ratio": timetable.gap_ratio,
        "feasible": timetable.feasible,
        "plan_s": time.perf_counter() - begin,
    }
    if not timetable.feasible:
        fixes = [fix.change for fix in timetable.fixes if fix.verified]
        return row | {"binding_constraint": timetable.binding_constraint, "verified_fixes": fixes}
    begin = time.perf_counter()
    metrics = framefit.simulate(plan, windows=windows, output=folder / app.stem).metrics
    planned = {model.name: model for model in timetable.models}
    return row | {
        "windows": metrics.windows,
        "missed": sum(model.missed for model in metrics.models if planned[model.name].role == "priority"),
        "ages_windows": {
            model.name: [model.result_age_windows_max, planned[model.name].result_age_windows]
            for model in metrics.models
            if planned[model.name].role == "background"
        },
        "utilisation": metrics.residual_utilisation_ratio,
        "check": check_timetable(
            timetable,
            deadlines_ns={name: ns for m in plan.workload.models for name, ns in deadline(m, plan.workload)},
            every={m.name: m.every for m in plan.workload.models},
            releases=timetable.releases,
            lengths_ns=timetable.lengths_ns,
            stored_ratio=getattr(plan.device, "stored_ratio", 1.0),
        ),
        "simulate_s": time.perf_counter() - begin,
    }


def main() -> None:
    """Simulate all, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=100_000)
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    options = parser.parse_args()
    table: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in sorted(WORKLOADS.glob(f"{options.only}*.toml")):
            app = Path(shutil.copy(path, folder))
            for model in msgspec.toml.decode(path.read_bytes())["models"]:
                file = folder / model["path"]
                if not file.exists():
                    (BUILTIN[file.stem](0) if file.stem in BUILTIN else ARCHITECTURES[file.stem]()).save(file)
            try:
                row = row_of(app, options.windows, folder)
            except FramefitError as error:
                row = {"refused": error.what}
            table[path.stem] = row
            if "missed" in row:
                late = {k: v for k, v in row["ages_windows"].items() if v[0] is not None and v[0] > v[1]}
                print(
                    f"{path.stem:22} fits, missed {row['missed']}, use {row['utilisation']:.3f}, "
                    f"ages {row['ages_windows']}{' EXCEEDED ' + str(late) if late else ''}, "
                    f"check {row['check'] or 'nothing'}, {row['plan_s']:.1f} + {row['simulate_s']:.1f} s"
                )
            else:
                print(
                    f"{path.stem:22} {row.get('binding_constraint', row.get('refused'))}; {row.get('verified_fixes')}"
                )
    command = f"simulated_workloads.py --windows {options.windows}"
    if options.only:  # beside those that are stored already
        command += f" --only {options.only}"
        kept = msgspec.json.decode((RESULTS / "simulated_workloads.json").read_bytes())["workloads"]
        table = dict(sorted((kept | table).items()))
    store("simulated_workloads", {"workloads": table}, command)


if __name__ == "__main__":
    main()
