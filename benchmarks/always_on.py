"""A circuit that listens to a motor all the time: from vibration to a bitstream, with what is lost on the way.

    python benchmarks/always_on.py [--folder always-on] [--windows 1000]

The network of examples/vibration.py is trained, its first two convolutions become votes (nine an output), the whole
hybrid is fine-tuned, and the circuit behind the sensor is placed and routed on an iCE40 UP5K. The Verilog then reads
real test windows, sample by sample, in Verilator: each byte that it gives is compared with the reference. What remains
of the network reads levels.

Goals: at most 3,500 logic cells, at least 12 MHz after routing, every window equal to the last bit, at most one point
of test accuracy lost. Power is not measured.

Needs the extras ``train`` and ``ice40``, or native tools of the same names on PATH, and Verilator.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from stored import store

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from vibration import STEP, write_data, write_network

from framefit.core.files import read_record
from framefit.core.tree_results import TreeifyResult
from framefit.core.trees import read_forest
from framefit.trees.hardware.simulation import write_stream_bench
from framefit.trees.hardware.streaming import Streaming
from framefit.trees.hardware.synthesis import write_verilog
from framefit.trees.rtl import rtl
from framefit.workflows.search import treeify

SETTINGS = {"first": 0, "layers": 2, "method": "ada", "threshold": 1.2, "objective": "luts"}


def simulated(folder: Path, circuit: Streaming, windows: np.ndarray) -> dict[str, object]:
    """What Verilator says of the circuit on real windows."""
    write_stream_bench(folder, circuit, [windows])
    build = ["verilator", "--binary", "-Wno-fatal", "-O3", "--top-module", "testbench", "testbench.v", "top.v"]
    subprocess.run([*build, "-o", "bench"], cwd=folder, check=True, capture_output=True)
    begun = time.perf_counter()
    done = subprocess.run(["./obj_dir/bench"], cwd=folder, check=True, capture_output=True, text=True)
    said = next(line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL")))
    version = subprocess.run(["verilator", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    return {
        "windows": len(windows),
        "samples": int(windows.size),
        "result": said,
        "seconds": time.perf_counter() - begun,
        "simulator": version,
    }


def main() -> None:
    """Build, place, simulate, and store what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("always-on"))
    parser.add_argument("--windows", type=int, default=1000)
    options = parser.parse_args()
    folder: Path = options.folder
    data, network, hybrid = folder / "vibration.npz", folder / "vibration.onnx", folder / "hybrid"
    if not network.exists():
        write_network(write_data(data), network)
    if (hybrid / "result.json").exists():
        treeified = read_record(hybrid / "result.json", TreeifyResult)
    else:
        treeified = treeify(network, data, **SETTINGS, export="c", output=hybrid).result
    chosen = treeified.chosen
    if chosen is None:
        sys.exit("nothing was replaced: " + "; ".join(treeified.notes))
    given = {"core": "stream", "place": "up5k", "sample_step": STEP, "force": True, "max_seconds": 900.0}
    (group,) = rtl(hybrid, output=folder / "circuit", **given).report.groups
    with np.load(data) as arrays:
        windows = np.rint(arrays["x_test"][: options.windows] / STEP).astype(np.int8)
    (ensemble,) = read_forest(hybrid / "trees.json").ensembles
    circuit = Streaming(ensemble, step=STEP)
    write_verilog(circuit, folder / "circuit" / "top.v")  # the same file again: a circuit that is made is used
    store(
        "always_on",
        {
            "network": {"original_top1": treeified.original.top1, "hybrid_top1": chosen.top1},
            "points_lost": 100 * (treeified.original.top1 - chosen.top1),
            "final": chosen.final,
            "notes": treeified.notes,
            "circuit": group,
            "simulated": simulated(folder / "circuit", circuit, windows),
        },
        "always_on.py",
    )


if __name__ == "__main__":
    main()
