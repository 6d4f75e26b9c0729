"""Planning 10 models of 500 layers each, from a latency table, takes at most 2 s of processor time.

Ten residual networks are built in code; on the built-in VPU each is 500 layers (convolutions with
their activations, and sums). Two are priority models; the others are longer than the residual
and are cut. The table holds what the VPU's cycle model says. Timed are whole calls of
``framefit.plan`` in one process, ONNX files and table read anew each time, and of these the part that
reads the files (``wire``).

    python benchmarks/planning.py
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


def main() -> None:
    """Plan again and again, print a table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
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
            for _ in range(options.repeats):
                begun = time.process_time()
                timetable = framefit.plan(folder / "app.toml").timetable
                seconds.append(time.process_time() - begun)
    low, median, high = np.quantile(seconds, (0.05, 0.5, 0.95))
    segments = [len(one.segments) for one in timetable.models]
    print(f"{MODELS} models of {len(grouped.layers)} layers, segments {segments}, feasible: {timetable.feasible}")
    print(f"processor time {median:.2f} s ({low:.2f} .. {high:.2f}), of which reading {np.median(reading):.2f} s")
    seconds_of = dict(zip(("p05", "median", "p95"), map(float, (low, median, high)), strict=True))
    figures = {
        "models": MODELS,
        "layers": len(grouped.layers),
        "nodes": len(network(0).layers),
        "segments": segments,
        "feasible": timetable.feasible,
        "seconds": seconds_of | {"all": seconds},
        "reading_seconds": {"median": float(np.median(reading)), "all": reading},
    }
    store("planning", figures, " ".join(["planning.py", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
