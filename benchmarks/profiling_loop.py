"""A wrong latency table is put right by one run: plan, simulate, profile, plan again.

    python benchmarks/profiling_loop.py [--windows 1000] [--lossy]

A detector in every window beside a depth network that is longer than the window, on described
targets. The table that the first plan uses is what the target's layers take, wrong by 25 %: all
too slow, all too fast, or each layer one of both (seeded). The claim: the second plan is feasible,
and its launches take what it says. The second plan's table holds what a profile says of the
first plan's run; with --lossy also of its trace after it lost 10 % of its events in bursts of 20.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from stored import store

import framefit
from framefit.core.files import write_record
from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.core.model import configuration
from framefit.core.model.builtin import BUILTIN
from framefit.devices.npu.device import NpuDevice
from framefit.workflows.profile import table_for
from framefit.workflows.record import RunResult

WORKLOADS = {"edge-8": 30.0, "dsp": 30.0, "micro-npu": 30.0, "vpu": 150.0}  # target -> windows a second
ERRORS: dict[str, Callable[[np.random.Generator], float]] = {
    "25 % too slow": lambda _: 1.25,
    "25 % too fast": lambda _: 0.75,
    "either, by layer": lambda random: float(random.choice((0.75, 1.25))),
}
LOSSES = {"whole trace": 0.0, "10 % lost in bursts": 0.1}


def true_table(plan: framefit.Plan) -> LatencyTable:
    """What the device's layers take, by its description."""
    device = plan.device
    assert isinstance(device, NpuDevice)
    entries, unit = [], plan.timetable.models[0].segments[0].unit
    for wired in plan.wired:
        model = wired.model.grouped(device.fusions(wired.model))
        for layer, nodes, ns in zip(model.layers, model.nodes, device.layers_ns(model, unit), strict=True):
            key = configuration(nodes)
            entries.append(LatencyEntry(op=layer.op, configuration=key, unit=unit, latency_ns=ns, interval_ns=(ns, ns)))
    return table_for(plan.workload, device).with_entries(tuple(entries))


def wrong(table: LatencyTable, factor: Callable[[np.random.Generator], float]) -> LatencyTable:
    """The same, each entry times a factor."""
    random, entries = np.random.default_rng(0), []
    for entry in table.entries:
        ns = round(entry.latency_ns * factor(random))
        entries.append(msgspec.structs.replace(entry, latency_ns=ns, interval_ns=(ns, ns)))
    return msgspec.structs.replace(table, entries=tuple(entries))


def table_error(table: LatencyTable, true: LatencyTable) -> float:
    """Median relative error of its entries."""
    errors = []
    for entry in true.entries:
        found = table.find(entry.op, entry.configuration, entry.unit)
        if found is not None and entry.latency_ns:
            errors.append(abs(found.latency_ns / entry.latency_ns - 1))
    return float(np.median(errors))


def figures(result: RunResult, table: LatencyTable, true: LatencyTable) -> dict[str, float]:
    """What a plan was worth."""
    metrics = result.metrics
    return {
        "table_error_ratio": table_error(table, true),
        "wasted_residual_ratio": 1 - metrics.residual_utilisation_ratio,
        "exceeded_ratio": metrics.estimate_exceeded_ratio,
        "miss_ratio": metrics.miss_ratio,
        "priority_delay_p99_ns": metrics.models[0].release_to_start_ns.p99,
        "background_hz": metrics.models[1].throughput_hz,
    }


def stored(rows: list[dict[str, object]], options: argparse.Namespace) -> None:
    """Show the latest row, and write all so far."""
    print(rows[-1], flush=True)
    command = f"profiling_loop.py --windows {options.windows}" + " --lossy" * options.lossy
    store("profiling_loop", {"rows": rows, "windows": options.windows}, command)


def main() -> None:
    """Go round once in each case, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--lossy", action="store_true")
    options = parser.parse_args()
    losses = LOSSES if options.lossy else dict(list(LOSSES.items())[:1])
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in ("detector", "depth"):
            BUILTIN[model](0).save(folder / f"{model}.onnx")
        for target, rate_hz in WORKLOADS.items():
            app, board = folder / f"{target}.toml", folder / f"{target}.table.json"
            text = (
                f'target = "{target}"\nrate_hz = {rate_hz}\n'
                '[[models]]\nname = "detector"\npath = "detector.onnx"\npriority = "every-window"\n'
                '[[models]]\nname = "depth"\npath = "depth.onnx"\npriority = "background"\n'
            )
            app.write_text(text)
            true = true_table(framefit.plan(app))
            app.write_text(f'table = "{board.name}"\n{text}')
            for error, factor in ERRORS.items():
                table = wrong(true, factor)
                write_record(board, table, force=True)
                plan = framefit.plan(app)
                row = {"target": target, "error": error, "feasible": plan.timetable.feasible}
                if not plan.timetable.feasible:  # nothing runs, so nothing is learned
                    rows.append(row | {"binding": plan.timetable.binding_constraint})
                    stored(rows, options)
                    continue
                first = framefit.simulate(plan, windows=options.windows, output=folder / "first", force=True)
                row["first"] = figures(first, table, true)
                for loss, rate in losses.items():
                    write_record(board, table, force=True)
                    trace = first.trace
                    if rate:
                        trace = framefit.inject_loss(trace, rate=rate, burst=20, seed=0).trace
                    framefit.profile(trace, first.program, launches=first.launches, table=table, update_table=board)
                    replanned = framefit.plan(app)
                    again = {"feasible": replanned.timetable.feasible}
                    if replanned.timetable.feasible:
                        second = framefit.simulate(
                            replanned, windows=options.windows, output=folder / "second", force=True
                        )
                        again |= figures(second, framefit.table(board), true)
                    row[loss] = again
                rows.append(row)
                stored(rows, options)


if __name__ == "__main__":
    main()
