"""The ladder: timetables planned ahead, when a described unit slows down in mid-run, in virtual time.

    python benchmarks/ladder.py [--windows 3000] [--quiet-windows 20000]
    python benchmarks/ladder.py --part processor [--quiet-windows 6000]

The claims: where launches of the priority model take 40 % longer from the middle of a run on, the ladder costs at most
3 misses, and background models get at least 95 % of the frames that they get with the best cut for the new
condition that stays fixed (of plans for priority models that take 1, 1.2, ... 2 times as long). The same where the
whole unit slows down. Beside it the plan without a ladder. Where nothing slows down nothing changes.

Durations vary log-normally (sigma 2 %, cut at +10 %); a cut costs 10 us. The second command runs a small priority model
100 times a second beside a large one on one core of this machine, in segments, where nothing slows down but the noise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from stored import store

import framefit
from framefit.core.faults import read_fault
from framefit.core.model import GraphBuilder, Model
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.device import NpuDevice
from framefit.planning.plan import Plan
from framefit.planning.planner import PlanRequest
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.session import Session
from framefit.runtime.units import UnitGroup
from framefit.workflows.plan import again

RATIO = 1.4
RATIOS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
Layers = tuple[float, int, int]  # milliseconds, layers, seed
WORKLOADS: dict[str, tuple[float, Layers, dict[str, Layers], str]] = {
    "camera, one": (30, (6.5, 1, 0), {"depth": (50, 60, 1)}, ""),
    "camera, fewest": (30, (6.5, 1, 0), {"depth": (50, 60, 1)}, 'segmentation = "fewest"'),
    "camera, coarse": (30, (6.5, 1, 0), {"depth": (60, 12, 4)}, ""),
    "camera, three": (30, (6.5, 1, 0), {"depth": (50, 60, 1), "pose": (12, 20, 2), "seg": (90, 60, 3)}, ""),
    "audio, three": (100, (1.5, 1, 0), {"asr": (20, 60, 1), "scene": (5, 20, 2), "tags": (40, 60, 3)}, ""),
}
TARGET = """schema_version = 1
name = "unit"
kind = "npu"
[[units]]
name = "npu0"
[host]
inference_ns = 10_000
[cost]
source = "function"
function = "costs_of_layers:nanoseconds"
[variation]
sigma_ratio = 0.02
most_ratio = 0.10
"""
FUNCTION = """import json
from pathlib import Path

NS = json.loads((Path(__file__).parent / "layers.json").read_text())


def nanoseconds(layer, unit, target):
    return NS[f"{layer.outputs[0].shape[1]} {layer.outputs[0].name}"]
"""


def write(
    folder: Path, rate_hz: float, face: Layers, background: dict[str, Layers], schedule: str, *, ladder: bool
) -> Path:
    """The workload's files; of models that do nothing but take a given time."""
    durations_ns: dict[str, int] = {}
    text = f'rate_hz = {rate_hz}\ntarget = "target.toml"\n[schedule]\nladder = {str(ladder).lower()}\n{schedule}\n'
    for number, (name, (total_ms, layers, seed)) in enumerate({"face": face, **background}.items(), 1):
        share = np.random.default_rng(seed).dirichlet(np.full(layers, 4.0)) * total_ms * 1e6
        b = GraphBuilder(name)
        x = b.input("x", (1, number))
        for ns in share:
            x = b.op("Relu", x)
            durations_ns[f"{number} {x}"] = int(ns)
        b.output(x)
        b.build().save(folder / f"{name}.onnx", force=True)
        role = "every-window" if name == "face" else "background"
        text += f'[[models]]\nname = "{name}"\npath = "{name}.onnx"\npriority = "{role}"\n'
    (folder / "target.toml").write_text(TARGET)
    (folder / "layers.json").write_text(json.dumps(durations_ns))
    (folder / "costs_of_layers.py").write_text(FUNCTION)
    app = folder / f"app-{ladder}.toml"
    app.write_text(text)
    return app


def played(plan: Plan, windows: int, slow: str | None) -> UnitGroup:
    """The run, its unit or model slower from the middle on."""
    faults = [] if slow is None else [read_fault(f"slow:{slow}*{RATIO}@{windows // 2}w", plan.workload.grid.release_ns)]
    device = plan.device
    assert isinstance(device, NpuDevice)
    device.clock, device.computes = VirtualClock(), False
    device.restart(1)
    session = Session(plan.opened(), seed=1, frames=False, inject=faults)
    failure = session.play(windows, stop=lambda: False, on_idle=None)
    assert failure is None
    return session.group


def figures(plan: Plan, run: UnitGroup, models: dict[str, Layers]) -> dict[str, object]:
    """Misses, and useful background time from the middle on, in seconds of what it took before."""
    rows, middle = run.frames.rows(), run.release(run.windows // 2)
    done = np.isin(rows[:, FrameLog.OUTCOME], (FrameOutcome.DONE, FrameOutcome.LATE))
    after = done & (rows[:, FrameLog.FINISHED] >= middle)
    missed, useful = 0, 0.0
    for number, model in enumerate(plan.timetable.models):
        mine = rows[:, FrameLog.MODEL] == number
        if model.role == "priority":
            missed += int((mine & (rows[:, FrameLog.OUTCOME] != FrameOutcome.DONE)).sum())
        else:
            useful += float((mine & after).sum()) * models[model.name][0] / 1e3
    return {
        "missed": missed,
        "background_s": useful,
        "switches": [[one.window, one.rung.name, one.why] for one in run.stretches[1:]],
    }


def compared(
    rate_hz: float, face: Layers, background: dict[str, Layers], schedule: str, slow: str, windows: int
) -> dict[str, object]:
    """The ladder, no ladder, and the best cut that stays fixed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        apps = {
            arm: write(folder, rate_hz, face, background, schedule, ladder=arm == "ladder")
            for arm in ("ladder", "planned")
        }
        planned = framefit.plan(apps["planned"])
        climbing = framefit.plan(apps["ladder"])
        ladder = figures(climbing, played(climbing, windows, slow), background)
        plain = figures(planned, played(planned, windows, slow), background)
        fixed: dict[float, dict[str, object]] = {}
        for ratio in RATIOS:
            whole = ratio if slow != "face" else 1.0
            request = PlanRequest(planned.app, planned.workload, priority_ratio=ratio, background_ratio=whole)
            plan = again(planned, request)
            if plan.timetable.feasible:
                fixed[ratio] = figures(plan, played(plan, windows, slow), background)
    # A cut that misses frames is none to compare with.
    good = {ratio: row for ratio, row in fixed.items() if not row["missed"]} or fixed
    best = max(good, key=lambda ratio: float(str(good[ratio]["background_s"])))
    most = float(str(good[best]["background_s"]))
    return {
        "ladder": ladder,
        "planned": plain,
        "fixed": {str(ratio): row for ratio, row in fixed.items()},
        "best_fixed": best,
        "ladder_over_best": float(str(ladder["background_s"])) / most,
        "planned_over_best": float(str(plain["background_s"])) / most,
    }


def quiet(
    rate_hz: float, face: Layers, background: dict[str, Layers], schedule: str, windows: int
) -> dict[str, object]:
    """Nothing slows down."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = framefit.plan(write(folder, rate_hz, face, background, schedule, ladder=True))
        return figures(plan, played(plan, windows, None), background) | {"windows": windows}


def network(convolutions: int, size: int) -> Model:
    """Takes as long as it is deep and wide."""
    b = GraphBuilder("network")
    x = b.input("x", (1, 8, size, size))
    for _ in range(convolutions):
        x = b.conv(x, 8, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    return b.build()


def processor(windows: int) -> dict[str, object]:
    """A run on this machine's last core."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        network(3, 64).save(folder / "small.onnx")
        network(24, 160).save(folder / "big.onnx")
        app = folder / "app.toml"
        app.write_text(
            'rate_hz = 100\n[schedule]\npreemption = "never"\nladder = true\n'
            '[[models]]\nname = "small"\npath = "small.onnx"\npriority = "every-window"\n'
            '[[models]]\nname = "big"\npath = "big.onnx"\npriority = "background"\n'
        )
        planned = framefit.plan(app)
        metrics = framefit.run(planned, windows=windows, output=folder / "run").metrics
        assert planned.timetable.ladder is not None
        return {
            "windows": metrics.windows,
            "rungs": [
                [rung.name, [len(model.segments) for model in rung.timetable.models]]
                for rung in planned.timetable.ladder.rungs
            ],
            "missed": metrics.models[0].missed,
            "estimate_exceeded_ratio": metrics.estimate_exceeded_ratio,
            "switches": [[one.window, one.rung, one.why] for one in metrics.switches],
        }


def main() -> None:
    """Run all workloads, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=3000, help="of each run; it slows down in the middle")
    parser.add_argument("--quiet-windows", type=int, default=None, help="in which nothing slows down")
    parser.add_argument("--part", choices=("virtual", "processor"), default="virtual")
    options = parser.parse_args()
    if options.part == "processor":
        count = options.quiet_windows or 6000
        found = processor(count)
        print(found)
        store("ladder_processor", found, f"ladder.py --part processor --quiet-windows {count}")
        return
    options.quiet_windows = options.quiet_windows or 20_000
    table: dict[str, object] = {}
    print(f"{'':16} slower  missed: ladder  planned  background over best: ladder  planned")
    for name, workload in WORKLOADS.items():
        rows: dict[str, object] = {}
        for slow in ("face", "npu0"):
            found = rows[slow] = compared(*workload, slow, options.windows)
            ladder, plain = found["ladder"], found["planned"]
            assert isinstance(ladder, dict)
            assert isinstance(plain, dict)
            print(
                f"{name:16} {slow:6} {ladder['missed']:15} {plain['missed']:8} {found['ladder_over_best']:29.3f} "
                f"{found['planned_over_best']:8.3f}   best fixed {found['best_fixed']}, switches {ladder['switches']}"
            )
        found = rows["quiet"] = quiet(*workload, options.quiet_windows)
        print(f"{name:16} quiet  {found['missed']:15}   switches {found['switches']} in {found['windows']} windows")
        table[name] = rows
    command = f"ladder.py --windows {options.windows} --quiet-windows {options.quiet_windows}"
    store("ladder", {"ratio": RATIO, "workloads": table}, command)


if __name__ == "__main__":
    main()
