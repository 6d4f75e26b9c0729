"""Cycles of the 20 layers of ``layers.json`` on two weight-stationary systolic arrays, from SCALE-Sim.

Command, in the environment that README.md describes (about 10 minutes on one core)::

    python benchmarks/oracles/scalesim_run.py -o tests/devices/npu/oracles/scalesim.json

The buffers hold every layer and their bandwidth is far above what the array asks for, so that only the
array limits; the stall cycles are stored to show it. SCALE-Sim knows no groups: each group becomes a
layer of its own (as its own "DP" rows do for depthwise layers), and their cycles are added up. It knows
no padding either: the map is given as large as the outputs need.
"""

import argparse
import contextlib
import csv
import io
import json
import tempfile
from importlib.metadata import version
from pathlib import Path

from scalesim.scale_sim import scalesim

HERE = Path(__file__).parent
ARRAYS = ((32, 32), (16, 16))  # rows, columns
SRAM_KB = 8192  # each of the three buffers; the largest tensor here has 1.2 million words
WORDS_PER_CYCLE = 1_000_000

CONFIG = """[general]
run_name = oracle
[run_presets]
InterfaceBandwidth = USER
UseRamulatorTrace = False
[architecture_presets]
ArrayHeight = {rows}
ArrayWidth = {columns}
IfmapSramSzkB = {sram}
FilterSramSzkB = {sram}
OfmapSramSzkB = {sram}
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 20000000
Dataflow = ws
Bandwidth = {bandwidth}
ReadRequestBuffer = 64
WriteRequestBuffer = 64
[layout]
IfmapCustomLayout = False
FilterCustomLayout = False
IfmapSRAMBankBandwidth = {bandwidth}
IfmapSRAMBankNum = 1
IfmapSRAMBankPort = 2
FilterSRAMBankBandwidth = {bandwidth}
FilterSRAMBankNum = 1
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = False
"""


def simulate(layer: dict, rows: int, columns: int) -> dict:
    """One layer: cycles added over its groups, utilisation of the whole."""
    size, stride, groups = layer["kernel"], layer["stride"], layer["groups"]
    out_h, out_w = ((layer[side] + 2 * layer["padding"] - size) // stride + 1 for side in ("h", "w"))
    # SCALE-Sim rounds the number of outputs up: the map is cut to what they read.
    in_h, in_w = ((out - 1) * stride + size for out in (out_h, out_w))
    row = f"{in_h}, {in_w}, {size}, {size}, {layer['c'] // groups}, {layer['k'] // groups}, {stride},"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        topology, config, layout = work / "layers.csv", work / "scale.cfg", work / "layout.csv"
        header = "Layer, IFMAP height, IFMAP width, Filter height, Filter width, Channels, Filters, Strides,"
        topology.write_text("\n".join([header, *(f"group{g}, {row}" for g in range(groups))]) + "\n")
        config.write_text(CONFIG.format(rows=rows, columns=columns, sram=SRAM_KB, bandwidth=WORDS_PER_CYCLE))
        layout.write_text("no custom layout,\n")
        tool = scalesim(
            save_disk_space=True, verbose=False, config=str(config), topology=str(topology), layout=str(layout)
        )
        with contextlib.redirect_stdout(io.StringIO()):
            tool.run_scale(top_path=folder)
        with (work / "oracle" / "COMPUTE_REPORT.csv").open() as file:
            report = list(csv.DictReader(file, skipinitialspace=True))
    assert len(report) == groups
    cycles = sum(int(group["Total Cycles"]) for group in report)
    macs = layer["n"] * out_h * out_w * layer["k"] * (layer["c"] // groups) * size * size
    return {
        "macs": macs,
        "cycles": cycles,
        "cycles_with_prefetch": sum(int(group["Total Cycles (incl. prefetch)"]) for group in report),
        "stall_cycles": sum(int(group["Stall Cycles"]) for group in report),
        "utilisation_ratio": round(macs / (cycles * rows * columns), 6),
        "mapping_efficiency_ratio": round(float(report[0]["Mapping Efficiency %"]) / 100, 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    layers = json.loads((HERE / "layers.json").read_text())
    lines: list[str] = []
    arrays = []
    for rows, columns in ARRAYS:
        marks = []
        for layer in layers:
            dims = {key: value for key, value in layer.items() if key not in ("name", "what")}
            marks.append(f"@{len(lines)}")
            lines.append(json.dumps({"name": layer["name"], "dims": dims} | simulate(layer, rows, columns)))
            print(lines[-1], flush=True)
        arrays.append({"rows": rows, "columns": columns, "layers": marks})
    document = {
        "tool": "SCALE-Sim",
        "version": version("scalesim"),
        "command": "python benchmarks/oracles/scalesim_run.py -o tests/devices/npu/oracles/scalesim.json",
        "cycles": "column Total Cycles of COMPUTE_REPORT.csv: the number, from 0, of the cycle that writes the last "
        "output; stalls included, prefetch before the first cycle not; added up over groups",
        "architecture": {
            "dataflow": "weight-stationary",
            "sram_kb_each": SRAM_KB,
            "words_per_cycle": WORDS_PER_CYCLE,
            "word_bytes": 1,
        },
        "arrays": arrays,
    }
    text = json.dumps(document, indent=1)
    for number, line in enumerate(lines):  # one line a layer
        text = text.replace(f'"@{number}"', line, 1)
    output.write_text(text + "\n")


if __name__ == "__main__":
    main()
