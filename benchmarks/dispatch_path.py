"""What the dispatcher's own path costs on one CPU core: release to start, and from segment to segment.

    python benchmarks/dispatch_path.py [--windows 300] [--rounds 8]

A small priority model, and a background model that fills the residuals and the caches. Two arms take
turns in one process, forwards and backwards: ``cooperative`` (the background model in segments, one
thread, 50 windows a second) and ``preemptive`` (real-time priority, where permitted, 100 windows a second).
For each the differences to the idle control of the same run, with a 90 % interval over rounds.

Two trees can only be compared if they launch the same: the background model of the cooperative arm is
split into as few segments of equal duration as possible, which are two wherever it takes less than
some 38 ms, fitting or not. The table says how many segments and launches there were.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from stored import interval, store

import framefit
from framefit.core.model import GraphBuilder, Model
from framefit.devices.host import realtime_priority_permitted

# Keys of the app, of its schedule, and of its background model.
ARMS = {
    "cooperative": ("rate_hz = 50", 'preemption = "never"\nsegmentation = "equal"', "always_split = true"),
    "preemptive": ("rate_hz = 100", 'preemption = "auto"', ""),
}
FIGURES = ("start_p50", "start_p99", "floor_p50", "floor_p99", "above_floor_p99", "dispatch_p50", "dispatch_p99")


def network(convolutions: int, size: int) -> Model:
    """Takes as long as it is deep and wide."""
    b = GraphBuilder("network")
    x = b.input("x", (1, 8, size, size))
    for _ in range(convolutions):
        x = b.conv(x, 8, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    return b.build()


def main() -> None:
    """Run both arms, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=300, help="of each arm in each round")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    arms = [arm for arm in ARMS if arm == "cooperative" or realtime_priority_permitted()]
    rows: dict[str, list[list[int]]] = {arm: [] for arm in arms}
    missed, launches = dict.fromkeys(arms, 0), dict.fromkeys(arms, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        network(3, 64).save(folder / "small.onnx")
        network(24, 160).save(folder / "big.onnx")
        plans = {}
        for arm in arms:
            app = folder / f"{arm}.toml"
            rate, schedule, split = ARMS[arm]
            app.write_text(
                f"{rate}\n[schedule]\n{schedule}\n"
                '[[models]]\nname = "small"\npath = "small.onnx"\npriority = "every-window"\n'
                f'[[models]]\nname = "big"\npath = "big.onnx"\npriority = "background"\n{split}\n'
            )
            plans[arm] = framefit.plan(app)
        for turn in range(options.rounds):
            for arm in arms if turn % 2 == 0 else arms[::-1]:
                output = folder / f"{arm}-{turn}"
                result = framefit.run(plans[arm], windows=options.windows, output=output)
                metrics = result.metrics
                start, floor = metrics.models[0].release_to_start_ns, metrics.floor_release_to_start_ns
                dispatch = metrics.dispatch_ns
                above = start.p99 - floor.p99
                rows[arm].append([start.p50, start.p99, floor.p50, floor.p99, above, dispatch.p50, dispatch.p99])
                missed[arm] += metrics.models[0].missed
                launches[arm] += len(result.launches.program)
    table: dict[str, dict[str, object]] = {}
    print(f"{'':12} " + " ".join(f"{figure:>16}" for figure in FIGURES) + "  missed segments launches   [us]")
    for arm in arms:
        columns = np.asarray(rows[arm]).T
        counted = {
            "missed": missed[arm],
            "windows": options.windows * options.rounds,
            "segments": len(plans[arm].timetable.model("big").segments),
            "launches": launches[arm],
        }
        table[arm] = {
            f"{figure}_ns": {"median": float(np.median(column)), "interval": interval(column)}
            for figure, column in zip(FIGURES, columns, strict=True)
            if arm == "cooperative" or not figure.startswith("dispatch")  # no segment follows another one there
        } | counted
        cells = " ".join(f"{np.median(column) / 1e3:16.1f}" for column in columns)
        print(f"{arm:12} {cells} {missed[arm]:7} {counted['segments']:8} {launches[arm]:8}")
    command = f"dispatch_path.py --windows {options.windows} --rounds {options.rounds}"
    store("dispatch_path", {"arms": table}, command)


if __name__ == "__main__":
    main()
