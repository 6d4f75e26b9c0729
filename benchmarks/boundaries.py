"""What boundaries between segments cost on one CPU core: in the model itself, and in what the runtime makes of it.

    python benchmarks/boundaries.py [--budget-s 8] [--rounds 4]

Each model is cut into 6, 16 and 40 pieces, in two ways: between groups of its own nodes (``model``), and between the
runtime's operators, whose tensors keep the runtime's layouts (``lowered``, sessions that share one arena).
The pieces of both ways, the whole model, and the whole model compiled once more (``again``: what no boundary
explains) are measured in turn; the figure is the sum of medians over the whole model's, minus 1, with its range over
rounds.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from stored import store

from framefit.core.model import Model
from framefit.core.model.builtin import BUILTIN
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.measure import measure
from framefit.devices.ort import OrtDevice
from framefit.execution.execution import Execution, greatest_difference
from framefit.planning.partition import candidate_pieces

COUNTS = (6, 16, 40)


def main() -> None:
    """Measure all, print a table, write the result."""
    shared = Path(os.environ.get("FRAMEFIT_SHARED", Path(__file__).parents[2] / "shared"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget-s", type=float, default=8, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    models = {name: BUILTIN[name](0) for name in ("depth", "detector")}
    for name in ("face-slim-320", "resnet20-cifar10"):
        models[name] = Model.load(shared / "models" / f"{name}.onnx")
    device = OrtDevice()
    unit = device.target.units[0].name
    rows = []
    print(f"{'model':18} {'pieces':>6} {'way':8} {'overhead':>9} {'range':>18} {'difference':>10}")
    for name, model in models.items():
        whole = Execution(model, [(0, len(model.layers) - 1)], device, unit)
        ways = {"model": model.grouped(device.fusions(model)), "lowered": device.lowered(model)}
        frame = whole.example(np.random.default_rng(0))
        for count in COUNTS:
            cut = {way: Execution(one, candidate_pieces(one, count), device, unit) for way, one in ways.items()}
            cut["again"] = Execution(model, [(0, len(model.layers) - 1)], device, unit)
            differences = {way: greatest_difference(one.run(frame), whole.run(frame)) for way, one in cut.items()}
            launches = [(whole, 0), *((one, index) for one in cut.values() for index in range(len(one.parts)))]
            found: dict[str, list[float]] = {way: [] for way in cut}
            for _ in range(options.rounds):
                with pinned(device.host_core), flushed_denormals():
                    calls = [lambda e=e, i=i: e.launch(i) for e, i in launches]
                    measured = measure(calls, budget_ns=round(options.budget_s * 1e9), least_rounds=10)
                medians = dict.fromkeys(cut, 0)
                for (execution, _), one in zip(launches[1:], measured[1:], strict=True):
                    medians[next(way for way, e in cut.items() if e is execution)] += one.median_ns
                for way, total in medians.items():
                    found[way].append(total / measured[0].median_ns - 1)
            for way, ratios in found.items():
                row = {
                    "model": name,
                    "pieces": len(cut[way].parts),
                    "way": way,
                    "overhead_ratio": float(np.median(ratios)),
                    "range": [min(ratios), max(ratios)],
                    "max_relative_difference": differences[way],
                    "whole_ns": measured[0].median_ns,
                }
                rows.append(row)
                ends = f"{100 * min(ratios):.1f} to {100 * max(ratios):.1f} %"
                print(
                    f"{name:18} {row['pieces']:6} {way:8} {100 * np.median(ratios):7.1f} % {ends:>18} "
                    f"{differences[way]:10.1g}"
                )
    store("boundaries", {"rows": rows}, f"boundaries.py --budget-s {options.budget_s:g} --rounds {options.rounds}")


if __name__ == "__main__":
    main()
