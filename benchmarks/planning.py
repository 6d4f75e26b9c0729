"""Planning takes at most so much processor time: 10 models of 500 layers on one unit 2 s, 5 on three units 2 s, 9 on
two units 6 s.

``--part table``: from a latency table, on one unit. Ten residual networks are built in code; on the built-in VPU each
is 500 layers (convolutions with their activations, and sums). Two are priority models; the others are longer than the
residual and are cut. The table holds what the VPU's cycle model says. Timed are whole calls of ``framefit.plan`` in one
process, ONNX files and table read anew each time, and of these the part that reads the files (``wire``).

``--part units``: random workloads of two priority and three background models on three units, of three and six on two
units; chains of 1 to 25 layers with lengths of their own, units of different speeds. Priority models ask for 12 to
68 % of the units' time, each background model for 0.4 to 4 windows of a unit. Each is planned once; there is no bar
for a median, the longest counts.

    python benchmarks/planning.py [--part table|units] [--repeats 9] [--workloads 6] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
from feasibility import SPEEDS, Workload, written
from stored import store

import framefit
from framefit.core.files import write_record
from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.core.model import GraphBuilder, Model, configuration
from framefit.core.target import resolve_target
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.device import NpuDevice
from framefit.execution import wiring
from framefit.planning import planner as planning

LAYERS, MODELS, PRIORITY = 500, 10, 2
TARGET = "vpu"
RATE_HZ = 30
TRIPLES = (("plain", "other", "slow"), ("slow", "plain", "fast"))
PAIRS = (("plain", "other"), ("fast", "slow"), ("plain", "fast"))
CASES = (("5 models, 3 units", TRIPLES, 2, 3, 2.0), ("9 models, 2 units", PAIRS, 3, 6, 6.0))


def network(seed: int) -> Model:
    """Residual blocks of three layers each; activations and constants are no layers there."""
    b = GraphBuilder(f"net{seed}", seed)
    x = b.conv(b.input("image", (1, 3, 32, 32)), 16, activation="Relu")
    for _ in range((LAYERS - 2) // 3):
        y = b.conv(b.conv(x, 16, activation="Relu"), 16)
        x = b.op("Relu", b.op("Add", x, y))
    b.output(b.op("GlobalAveragePool", x))
    return b.build()


def table_of(model: Model, device: NpuDevice) -> LatencyTable:
    """Its layers, as the device's model says."""
    unit = device.target.units[0].name
    entries = {}
    for layer, nodes, ns in zip(model.layers, model.nodes, device.layers_ns(model, unit), strict=True):
        found = configuration(nodes)
        entries[layer.op, msgspec.json.encode(found)] = LatencyEntry(
            op=layer.op, configuration=found, unit=unit, latency_ns=ns, interval_ns=(ns, ns)
        )
    return LatencyTable(target=TARGET, fingerprint=device.fingerprint(), entries=tuple(entries.values()))


def from_table(repeats: int) -> dict[str, object]:
    """Plan again and again on one unit."""
    target = resolve_target(TARGET)
    device = NpuDevice(target, VirtualClock(), layer_times(target))
    reading: list[float] = []
    wire = wiring.wire

    def timed(*arguments: object) -> object:
        begun = time.process_time()
        result = wire(*arguments)  # type: ignore[arg-type]
        reading.append(time.process_time() - begun)
        return result

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = f'target = "{TARGET}"\ntable = "board.table.json"\nrate_hz = 100\n'
        for number in range(MODELS):
            model = network(number)
            model.save(folder / f"net{number}.onnx")
            role = "every-window" if number < PRIORITY else "background"
            text += f'[[models]]\nname = "net{number}"\npath = "net{number}.onnx"\npriority = "{role}"\n'
        grouped = model.grouped(device.fusions(model))
        write_record(folder / "board.table.json", table_of(grouped, device))
        (folder / "app.toml").write_text(text)
        seconds = []
        with patch.object(planning, "wire", timed):
            for _ in range(repeats):
                begun = time.process_time()
                timetable = framefit.plan(folder / "app.toml").timetable
                seconds.append(time.process_time() - begun)
    low, median, high = np.quantile(seconds, (0.05, 0.5, 0.95))
    segments = [len(one.segments) for one in timetable.models]
    print(f"{MODELS} models of {len(grouped.layers)} layers, segments {segments}, feasible: {timetable.feasible}")
    print(f"processor time {median:.2f} s ({low:.2f} .. {high:.2f}), of which reading {np.median(reading):.2f} s")
    seconds_of = dict(zip(("p05", "median", "p95"), map(float, (low, median, high)), strict=True))
    return {
        "models": MODELS,
        "layers": len(grouped.layers),
        "nodes": len(network(0).layers),
        "segments": segments,
        "feasible": timetable.feasible,
        "seconds": seconds_of | {"all": seconds},
        "reading_seconds": {"median": float(np.median(reading)), "all": reading},
    }


def split(total_ns: float, most: int, random: np.random.Generator) -> tuple[int, ...]:
    """Into 1 to ``most`` layers."""
    shares = random.dirichlet(np.full(random.integers(1, most + 1), random.choice([1.0, 3.0, 10.0])))
    return tuple(max(int(ns), 10_000) for ns in shares * total_ns)


def drawn(units: tuple[str, ...], priority: int, background: int, random: np.random.Generator) -> Workload:
    """A workload of one camera."""
    load = random.uniform(0.12, 0.68) * sum(SPEEDS[unit] for unit in units)
    shares = random.dirichlet(np.ones(priority)) * load
    firsts = tuple((0, split(share * 1e9 / RATE_HZ, 6, random)) for share in shares)
    others = tuple((0, split(random.uniform(0.4, 4) * 1e9 / RATE_HZ, 25, random)) for _ in range(background))
    return Workload(units, (RATE_HZ,), firsts, others)


def on_units(workloads: int, seed: int) -> dict[str, object]:
    """Plan random workloads on several units, each once."""
    rows: dict[str, object] = {}
    print(f"{'':20}{'p50 s':>8}{'p90 s':>8}{'max s':>8}{'bar s':>8}{'fit':>6}")
    for name, groups, priority, background, bar in CASES:
        seconds, fit = [], 0
        for number in range(seed, seed + workloads):
            random = np.random.default_rng([number, priority])
            workload = drawn(groups[random.integers(len(groups))], priority, background, random)
            with tempfile.TemporaryDirectory() as folder:
                app = written(workload, Path(folder), list(range(priority)))
                begun = time.process_time()
                timetable = framefit.plan(app).timetable
                seconds.append(time.process_time() - begun)
            fit += timetable.feasible
        median, high, longest = np.quantile(seconds, (0.5, 0.9, 1))
        print(f"{name:20}{median:8.2f}{high:8.2f}{longest:8.2f}{bar:8.1f}{fit:6}")
        rows[name] = {
            "models": priority + background,
            "workloads": workloads,
            "fit": fit,
            "seconds": {"median": median, "p90": high, "max": longest, "all": seconds},
            "bar_s": bar,
        }
    return {"first_seed": seed, "cases": rows}


def main() -> None:
    """Plan, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("table", "units"), default="table")
    parser.add_argument("--repeats", type=int, default=9, help="of the plan from a table")
    parser.add_argument("--workloads", type=int, default=6, help="on several units, of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    options = parser.parse_args()
    command = " ".join(["planning.py", *sys.argv[1:]])
    if options.part == "table":
        store("planning", from_table(options.repeats), command)
    else:
        store("planning_units", on_units(options.workloads, options.seed), command)


if __name__ == "__main__":
    main()
