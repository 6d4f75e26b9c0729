"""A real face detector in every frame beside a background model longer than a window, on one core.

    python benchmarks/runtime_one_core.py [--seconds 30] [--face face.onnx]

Claim: segments keep the priority model on time. The arms take turns within one run
(cut, alone, cut, alone, ...), so that drift of the machine's speed touches both:

- ``cut``: the planned segments in the residuals;
- ``alone``: the same workload without the background model, what the machine itself does.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import msgspec
import numpy as np

import framefit
from framefit.core.model.builtin import BUILTIN
from framefit.devices.host import fingerprint

ROUNDS = 3


def workload(folder: Path, face: Path, *, background: bool) -> Path:
    """An app.toml with the face model, and depth beside it where asked."""
    text = f'rate_hz = 30\n[[models]]\nname = "face"\npath = "{face}"\npriority = "every-window"\n'
    if background:
        text += '[[models]]\nname = "depth"\npath = "depth.onnx"\npriority = "background"\n'
    app = folder / ("cut.toml" if background else "alone.toml")
    app.write_text(text)
    return app


def main() -> None:
    """Run all arms, print a table, write the result."""
    shared = Path(os.environ.get("FRAMEFIT_SHARED", Path(__file__).parents[2] / "shared"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each arm, in all rounds together")
    parser.add_argument("--face", type=Path, default=shared / "models" / "face-slim-320.onnx")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        BUILTIN["depth"](0).save(folder / "depth.onnx")
        plans = {arm: framefit.plan(workload(folder, options.face, background=arm == "cut")) for arm in ("cut", "alone")}
        runs: dict[str, list[framefit.RunResult]] = {"cut": [], "alone": []}
        for turn in range(ROUNDS):
            for arm in ("cut", "alone") if turn % 2 == 0 else ("alone", "cut"):
                output = folder / f"{arm}-{turn}"
                runs[arm].append(framefit.run(plans[arm], seconds=options.seconds / ROUNDS, output=output))
    row: dict[str, object] = {"seconds": options.seconds, "rounds": ROUNDS}
    print(f"{'arm':8} {'frames':>7} {'missed':>7} {'start p99':>10} {'finish p50':>11} {'finish p99':>11} {'floor p99':>10}")
    for arm, results in runs.items():
        face = [result.metrics.models[0] for result in results]
        done = [frame for result in results for frame in result.frames if frame.model == "face" and frame.finished_ns]
        finish = np.asarray([frame.finished_ns - frame.released_ns for frame in done if frame.finished_ns])
        figures = {
            "releases": sum(model.releases for model in face),
            "missed": sum(model.missed for model in face),
            "start_p99_ns": int(np.median([model.release_to_start_ns.p99 for model in face])),
            "finish_p50_ns": int(np.quantile(finish, 0.5)),
            "finish_p99_ns": int(np.quantile(finish, 0.99)),
            "floor_p99_ns": int(np.median([r.metrics.floor_release_to_start_ns.p99 for r in results])),
        }
        row[arm] = figures
        print(
            f"{arm:8} {figures['releases']:7} {figures['missed']:7} {figures['start_p99_ns'] / 1e3:7.0f} us "
            f"{figures['finish_p50_ns'] / 1e6:8.2f} ms {figures['finish_p99_ns'] / 1e6:8.2f} ms "
            f"{figures['floor_p99_ns'] / 1e3:7.0f} us"
        )
    depth = [result.metrics.models[1] for result in runs["cut"]]
    timetable = plans["cut"].timetable
    background = {
        "whole_ms": round(sum(s.median_ns for s in timetable.models[1].segments) / 1e6, 2),
        "segments": len(timetable.models[1].segments),
        "throughput_hz": [model.throughput_hz for model in depth],
        "fluid_ratio": [model.throughput_hz / (model.fluid_bound_hz or 1) for model in depth],
        "packing_ratio": [model.throughput_hz / (model.packing_bound_hz or 1) for model in depth],
        "segmentation_overhead_ratio": [model.segmentation_overhead_ratio for model in depth],
        "estimate_exceeded_ratio": [result.metrics.estimate_exceeded_ratio for result in runs["cut"]],
        "dispatch_p50_ns": [result.metrics.dispatch_ns.p50 for result in runs["cut"]],
        "max_relative_difference": timetable.models[1].max_relative_difference,
        "causes": [miss.detail for result in runs["cut"] for miss in result.metrics.misses],
    }
    row["background"] = background
    for key, value in background.items():
        shown = ", ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in value) if isinstance(value, list) else value
        print(f"{key:28} {shown}")
    row["host"] = fingerprint()
    row["command"] = f"python benchmarks/runtime_one_core.py --seconds {options.seconds:g}"
    target = Path(__file__).parent / "results" / "runtime_one_core.json"
    target.write_bytes(msgspec.json.format(msgspec.json.encode(row), indent=1) + b"\n")


if __name__ == "__main__":
    main()
