"""Several units: what a second one is worth, and whether plans over several keep what they promise.

    python benchmarks/units.py [--windows 100000] [--part virtual] [--only 1-equal]
    python benchmarks/units.py --part cpu [--seconds 20] [--rounds 4]

Claims, in virtual time: a second equal unit serves background models at least 1.8 times as often, beside a priority
model that never misses; workloads on several units (unlike each other, with links, with models that read others
and priority models in stages) miss no priority frame, and no result is older than its bound, wherever
the plan says that they fit.

Each row says how many windows were run. With ``--only`` (a workload, or "equal") the other rows stay as stored.

``--part cpu``: the same models on one core and on two of this machine, in turn. It is stored on its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
from stored import RESULTS, interval, store

import framefit
from framefit.core.model import GraphBuilder, Model
from framefit.core.model.builtin import BUILTIN
from framefit.core.run_record import Metrics
from framefit.errors import FramefitError
from framefit.planning.check import check_timetable
from framefit.planning.plan import Plan

sys.path.insert(0, str(Path(__file__).parent))
from zoo import ARCHITECTURES

WORKLOADS = Path(__file__).parent / "workloads" / "units"


def prepared(path: Path, folder: Path) -> Path:
    """A workload with its target and its models, in a folder."""
    app = Path(shutil.copy(path, folder))
    for target in WORKLOADS.glob("*.target.toml"):
        shutil.copy(target, folder)
    for model in msgspec.toml.decode(path.read_bytes())["models"]:
        file = folder / model["path"]
        if not file.exists():
            network(file.stem).save(file)
    return app


def network(name: str) -> Model:
    """By its name: built in, of the zoo, or one that reads another."""
    if name in BUILTIN:
        return BUILTIN[name](0)
    return READERS[name]() if name in READERS else ARCHITECTURES[name]()


def refine() -> Model:
    """Reads a depth map, and gives one of the same size."""
    b = GraphBuilder("refine", 1)
    x = b.input("depth", (1, 1, 256, 320))
    x = b.conv(x, 16, kernel=3, stride=2, activation="Relu")
    for _ in range(4):
        x = b.conv(x, 16, kernel=3, activation="Relu")
    b.output(b.conv(b.upsample(x), 1, kernel=3), "refined")
    return b.build()


def grade() -> Model:
    """Reads a map, and gives four numbers."""
    b = GraphBuilder("grade", 2)
    x = b.input("refined", (1, 1, 256, 320))
    for channels in (8, 16, 32):
        x = b.conv(x, channels, kernel=3, stride=2, activation="Relu")
    b.output(b.op("GlobalAveragePool", b.conv(x, 4, kernel=1)), "grades")
    return b.build()


READERS = {"refine": refine, "grade": grade}


def background_ns(plan: Plan, metrics: Metrics) -> float:
    """Background work that was done in a second: frames by what they take whole, on whatever units."""
    planned = {model.name: model for model in plan.timetable.models}
    return sum(
        model.throughput_hz * sum(segment.median_ns for segment in planned[model.name].segments)
        for model in metrics.models
        if model.role == "background"
    )


def row(plan: Plan, metrics: Metrics) -> dict[str, object]:
    """Figures of one run."""
    planned = {model.name: model for model in plan.timetable.models}
    return {
        "windows": metrics.windows,
        "units": {unit.name: unit.residual_utilisation_ratio for unit in metrics.units},
        "stages": {model.name: [stage[0].unit for stage in model.stages] for model in plan.timetable.models},
        "slots": {model.name: model.slots for model in plan.timetable.models},
        "missed": sum(model.missed for model in metrics.models if model.role == "priority"),
        "throughput_hz": {model.name: model.throughput_hz for model in metrics.models},
        "fluid_ratio": {
            model.name: model.throughput_hz / model.fluid_bound_hz for model in metrics.models if model.fluid_bound_hz
        },
        "packing_ratio": {
            model.name: model.throughput_hz / model.packing_bound_hz
            for model in metrics.models
            if model.packing_bound_hz
        },
        "ages_windows": {
            model.name: [model.result_age_windows_max, planned[model.name].result_age_windows]
            for model in metrics.models
        },
        "memory_bytes": {unit.name: [unit.peak_memory_bytes, unit.planned_memory_bytes] for unit in metrics.units},
        "background_ms_a_second": background_ns(plan, metrics) / 1e6,
    }


def too_old(found: dict[str, object]) -> dict[str, object]:
    """Models whose results were older than their bound."""
    ages = found["ages_windows"]
    assert isinstance(ages, dict)
    return {name: pair for name, pair in ages.items() if pair[1] is not None and pair[0] > pair[1]}


def doubled(windows: int, folder: Path) -> dict[str, object]:
    """The same models on one unit and on two equal ones."""
    found: dict[str, dict[str, object]] = {}
    for name in ("one-unit", "two-units"):
        plan = framefit.plan(prepared(WORKLOADS / f"{name}.toml", folder))
        metrics = framefit.simulate(plan, windows=windows, output=folder / f"run-{name}").metrics
        found[name] = row(plan, metrics)
    ratio = found["two-units"]["background_ms_a_second"] / found["one-unit"]["background_ms_a_second"]  # type: ignore[operator]
    print(f"a second equal unit: background work x {ratio:.3f}, misses {[one['missed'] for one in found.values()]}")
    for name, one in found.items():
        print(f"  {name}: {one['throughput_hz']}, use {one['units']}, stages {one['stages']}")
    return {"throughput_ratio": ratio, **found}


def one_workload(path: Path, windows: int, folder: Path) -> dict[str, object]:
    """A workload's row."""
    begin = time.perf_counter()
    plan = framefit.plan(prepared(path, folder))
    timetable = plan.timetable
    if not timetable.feasible:
        print(f"{path.stem:22} {timetable.binding_constraint}")
        return {"feasible": False, "binding_constraint": timetable.binding_constraint}
    seconds = time.perf_counter() - begin
    metrics = framefit.simulate(plan, windows=windows, output=folder / path.stem).metrics
    found = row(plan, metrics)
    check = check_timetable(
        timetable,
        deadlines_ns={m.name: round(m.deadline_ms * 1e6) for m in plan.workload.models if m.deadline_ms},
        every={m.name: m.every for m in plan.workload.models},
        stored_ratio=plan.device.stored_ratio,
    )
    print(
        f"{path.stem:22} missed {found['missed']}, ages {found['ages_windows']}"
        f"{' EXCEEDED ' + str(too_old(found)) if too_old(found) else ''}, use {found['units']}, "
        f"check {check or 'nothing'}, {time.perf_counter() - begin:.1f} s"
    )
    return {"feasible": True, "check": check, "plan_s": seconds, **found}


def virtual(windows: int, only: str) -> None:
    """All workloads in virtual time, or one of them."""
    stored = RESULTS / "units.json"
    table = msgspec.json.decode(stored.read_bytes())["workloads"] if only and stored.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if only in ("", "equal"):
            table["equal"] = doubled(windows, folder)
        for path in sorted(WORKLOADS.glob("[0-9]*.toml")):
            if only in ("", path.stem):
                table[path.stem] = one_workload(path, windows, folder)
    store("units", {"workloads": dict(sorted(table.items()))}, f"units.py --windows {windows}")


def cpu(seconds: float, rounds: int) -> None:
    """One core and two of this machine, in turn."""
    cores = sorted(os.sched_getaffinity(0))[-2:]
    if len(cores) < 2:
        raise FramefitError("two cores are needed", remedy="run it where there are two")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = prepared(WORKLOADS / "cpu.toml", folder)
        plans: dict[str, Plan] = {}
        for arm, own in (("one", cores[-1:]), ("two", cores)):
            text = app.read_text().replace("cores = []", f"cores = {own}")
            path = folder / f"{arm}.toml"
            path.write_text(text)
            plans[arm] = framefit.plan(path, cache=False)
        found: dict[str, list[dict[str, object]]] = {"one": [], "two": []}
        for number in range(rounds):
            for arm in ("one", "two") if number % 2 == 0 else ("two", "one"):
                metrics = framefit.run(plans[arm], seconds=seconds, output=folder / f"run-{arm}-{number}").metrics
                found[arm].append(
                    {
                        "throughput_hz": {model.name: model.throughput_hz for model in metrics.models},
                        "missed": sum(model.missed for model in metrics.models if model.role == "priority"),
                        "released": sum(model.releases for model in metrics.models if model.role == "priority"),
                        "background_ms_a_second": background_ns(plans["one"], metrics) / 1e6,
                        "finish_p99_ns": metrics.models[0].release_to_finish_ns.p99,
                    }
                )
                print(arm, found[arm][-1])
    ratios = [
        two["background_ms_a_second"] / one["background_ms_a_second"]  # type: ignore[operator]
        for one, two in zip(found["one"], found["two"], strict=True)
    ]
    print(f"background work on two cores over one: {np.mean(ratios):.3f}, 90 % {interval(ratios)}")
    store(
        "units_cpu",
        {"throughput_ratio": float(np.mean(ratios)), "interval": interval(ratios), "ratios": ratios, **found},
        f"units.py --part cpu --seconds {seconds:g} --rounds {rounds}",
    )


def main() -> None:
    """Run what is asked for, print it, and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=100_000)
    parser.add_argument("--part", choices=("virtual", "cpu"), default="virtual")
    parser.add_argument("--only", default="", help="one workload")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    if options.part == "virtual":
        virtual(options.windows, options.only)
    else:
        cpu(options.seconds, options.rounds)


if __name__ == "__main__":
    main()
