"""Plans that were made from a latency table, held against the run that follows on this machine.

    python benchmarks/table_plan.py PRIORITY.onnx BACKGROUND.onnx [--windows 600] [--seconds 60] [--rounds 3]

Both models are measured into one table (``framefit measure``); the first runs in every window of a beat in which it
takes about a third, the second behind it in segments. Nothing is run to make the plan. Told are the median of each
model's launches beside the planned one (a background model's: the sum of its segments' medians), and the part of all
launches that took longer than their planned p99. Goals: 5 % and 1.5 %. As a baseline the same workload is planned from
whole launches on the device, as ``framefit plan`` does without a table, and run in turn with the other plan.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from stored import store

import framefit
from framefit.profiling.pairing import pair_events

ARMS = ("table", "measured")


def durations(plan: framefit.Plan, windows: int, output: Path) -> tuple[dict[str, float], float]:
    """Of each model the run's median over the planned one, and the part of launches over their p99."""
    result = framefit.run(plan, windows=windows, output=output)
    done = pair_events(result.trace, result.program, result.launches)
    launched = result.launches.program[done.inference]
    taken_ns = done.end_ns - done.start_ns
    ratios, over, first = {}, 0, 0
    for model in plan.timetable.models:
        segments = range(first, first + len(model.segments))
        first = segments.stop
        median_ns = sum(float(np.median(taken_ns[launched == index])) for index in segments)
        ratios[model.name] = median_ns / sum(segment.median_ns for segment in model.segments)
        over += sum(
            int((taken_ns[launched == index] > segment.duration_ns).sum())
            for index, segment in zip(segments, model.segments, strict=True)
        )
    return ratios, over / len(launched)


def main() -> None:
    """Measure, plan twice, run in turn, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("priority", type=Path)
    parser.add_argument("background", type=Path)
    parser.add_argument("--windows", type=int, default=600, help="of each run")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring the table")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each plan")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = [options.priority.resolve(), options.background.resolve()]
        table = framefit.measure(models, max_seconds=options.seconds, output=folder / "models.table.json")
        whole_ns = [framefit.estimate(model, table).total_ns for model in models]
        rate_hz = round(1e9 / (3 * whole_ns[0]), 2)
        plans = {}
        for arm in ARMS:
            app = folder / f"{arm}.toml"
            app.write_text(
                f"rate_hz = {rate_hz}\n"
                + ('table = "models.table.json"\n' if arm == "table" else "")
                + '[schedule]\npreemption = "never"\n'
                + f'[[models]]\nname = "priority"\npath = "{models[0]}"\npriority = "every-window"\n'
                + f'[[models]]\nname = "background"\npath = "{models[1]}"\npriority = "background"\n'
            )
            plans[arm] = framefit.plan(app)
        rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
        for turn in range(options.rounds):
            for arm in ARMS if turn % 2 == 0 else ARMS[::-1]:
                ratios, over = durations(plans[arm], options.windows, folder / f"{arm}-{turn}")
                rows[arm].append({**ratios, "over_p99": over})
        print(f"{rate_hz} Hz; whole models by the table: {', '.join(f'{ns / 1e6:.2f} ms' for ns in whole_ns)}")
        print(f"{'plan':10} {'segments':>8} {'priority':>9} {'background':>10} {'over p99':>9}   [run / plan]")
        figures: dict[str, object] = {"rate_hz": rate_hz, "whole_ns": whole_ns, "arms": rows}
        for arm in ARMS:
            middle = {key: float(np.median([row[key] for row in rows[arm]])) for key in rows[arm][0]}
            segments = len(plans[arm].timetable.model("background").segments)
            cells = f"{middle['priority']:9.3f} {middle['background']:10.3f} {middle['over_p99']:9.2%}"
            print(f"{arm:10} {segments:8} {cells}")
        figures["models"] = [model.stem for model in models]
    command = f"table_plan.py PRIORITY.onnx BACKGROUND.onnx --windows {options.windows} --rounds {options.rounds}"
    pair = "-".join(model.stem for model in models)
    store(f"table_plan_{pair}", figures, command)


if __name__ == "__main__":
    main()
