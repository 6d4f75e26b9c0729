"""Cycles of the 20 layers of ``layers.json`` on a small weight-stationary accelerator, from ZigZag.

Command, in the environment that README.md describes (about 3 minutes on one core)::

    python benchmarks/oracles/zigzag_run.py -o tests/devices/npu/oracles/zigzag.json

The accelerator: 16 x 16 multipliers, each holding one weight; input channels (and, where those are
few, the kernel's columns and rows) on its rows, output channels on its columns; one SRAM for all
tensors; one DRAM with one port for reading and one for writing. Tensors and weights have 8 bits,
partial sums 32. The mapping is fixed by ``mapping`` below. A second figure lets ZigZag search for
the loop order of least latency, in the same spatial mapping.
"""

import argparse
import json
import logging
import tempfile
from importlib.metadata import version
from math import ceil, prod
from pathlib import Path

import yaml
from zigzag.api import get_hardware_performance_zigzag
from zigzag.cost_model.cost_model import CostModelEvaluation
from zigzag.mapping.data_movement import DataDirection

HERE = Path(__file__).parent
ROWS, COLUMNS = 16, 16
WORD, SUM = 8, 32  # bits of weights and activations, of partial sums
# KiB of the SRAM, and of it for the partial sums of the rows that are computed at a time. In the
# first, nearly every layer fetches each operand once; in the second, some fetch again and again.
SRAMS = ((256, 64), (64, 16))
DRAM_BITS = 16  # a cycle, each way


def port(name: str, kind: str, bits: int, *allocation: str) -> dict:
    return {
        "name": name,
        "type": kind,
        "bandwidth_min": WORD,
        "bandwidth_max": bits,
        "allocation": list(allocation),
    }


def memory(size_bits: int, operands: list[str], served: list[str], ports: list[dict]) -> dict:
    """Energies and areas are not looked at."""
    return {
        "size": size_bits,
        "r_cost": 0.0,
        "w_cost": 0.0,
        "area": 0.0,
        "latency": 1,
        "operands": operands,
        "ports": ports,
        "served_dimensions": served,
    }


def accelerator(sram_kib: int) -> dict:
    """In ZigZag's form. I1: activations, I2: weights, O: outputs.

    fh, th: from and to the level above; fl, tl: from and to the level below.
    """
    return {
        "name": "weight_stationary",
        "memories": {
            # One weight in each multiplier, not double-buffered: the array waits while a row a cycle is loaded.
            "weight_register": memory(
                WORD,
                ["I2"],
                [],
                [port("r_port_1", "read", WORD, "I2, tl"), port("w_port_1", "write", WORD, "I2, fh")],
            ),
            # At the edges of the array, double-buffered: an input for each row, a sum for each column.
            "input_register": memory(
                2 * WORD,
                ["I1"],
                ["D1"],
                [port("r_port_1", "read", WORD, "I1, tl"), port("w_port_1", "write", WORD, "I1, fh")],
            ),
            "sum_register": memory(
                2 * SUM,
                ["O"],
                ["D2"],
                [
                    port("r_port_1", "read", SUM, "O, tl"),
                    port("r_port_2", "read", SUM, "O, th"),
                    port("w_port_1", "write", SUM, "O, fl"),
                    port("w_port_2", "write", SUM, "O, fh"),
                ],
            ),
            "sram": memory(
                sram_kib * 1024 * 8,
                ["I1", "I2", "O"],
                ["D1", "D2"],
                [
                    port("r_port_1", "read", ROWS * WORD, "I1, tl"),
                    port("r_port_2", "read", COLUMNS * WORD, "I2, tl"),
                    port("r_port_3", "read", COLUMNS * SUM, "O, tl", "O, th"),
                    port("w_port_1", "write", COLUMNS * SUM, "O, fl", "O, fh"),
                    port("w_port_2", "write", COLUMNS * WORD, "I1, fh", "I2, fh"),
                ],
            ),
            "dram": memory(
                1 << 33,
                ["I1", "I2", "O"],
                ["D1", "D2"],
                [
                    port("r_port_1", "read", DRAM_BITS, "I1, tl", "I2, tl", "O, tl", "O, th"),
                    port("w_port_1", "write", DRAM_BITS, "I1, fh", "I2, fh", "O, fl", "O, fh"),
                ],
            ),
        },
        "operational_array": {
            "unit_energy": 0.0,
            "unit_area": 0.0,
            "dimensions": ["D1", "D2"],
            "sizes": [COLUMNS, ROWS],
            "systolic_dimensions": ["D1", "D2"],
        },
    }


LINKS = {"O": "O", "W": "I2", "I": "I1"}


def loops(layer: dict) -> dict[str, int]:
    """Loop sizes in ZigZag's names; G: groups, K and C: of one group."""
    out_h, out_w = ((layer[s] + 2 * layer["padding"] - layer["kernel"]) // layer["stride"] + 1 for s in ("h", "w"))
    return {
        "B": layer["n"],
        "G": layer["groups"],
        "K": layer["k"] // layer["groups"],
        "C": layer["c"] // layer["groups"],
        "OY": out_h,
        "OX": out_w,
        "FY": layer["kernel"],
        "FX": layer["kernel"],
    }


def mapping(layer: dict, block_kib: int) -> dict:
    """Output channels on columns; input channels, then the kernel's columns and rows, on rows.

    The loops in time, innermost first: the output map (weights rest), the contraction (sums
    rest in the SRAM), output channels, groups.
    """
    size = loops(layer)
    on_columns = {"K": min(size["K"], COLUMNS)}
    on_rows: dict[str, int] = {}
    for dim in ("C", "FX", "FY"):
        factor = min(size[dim], ROWS // prod(on_rows.values()))
        if factor > 1:
            on_rows[dim] = factor
    unrolled = on_columns | on_rows
    left = {dim: ceil(extent / unrolled.get(dim, 1)) for dim, extent in size.items()}
    row_bits = size["OX"] * COLUMNS * SUM
    block = max(n for n in range(1, size["OY"] + 1) if size["OY"] % n == 0 and n * row_bits <= block_kib * 8192)
    order = [
        ["OX", left["OX"]],
        ["OY", block],
        *([dim, left[dim]] for dim in ("FX", "FY", "C", "K")),
        ["OY", left["OY"] // block],
        *([dim, left[dim]] for dim in ("G", "B")),
    ]
    return {
        "name": layer["name"],
        "spatial_mapping": {
            "D1": [f"{dim}, {factor}" for dim, factor in on_columns.items()],
            "D2": [f"{dim}, {factor}" for dim, factor in (on_rows or {"C": 1}).items()],
        },
        "temporal_ordering": [[dim, factor] for dim, factor in order if factor > 1],
        "memory_operand_links": LINKS,
    }


def node(number: int, layer: dict) -> dict:
    """The layer in ZigZag's form."""
    size = loops(layer)
    stride, padding = layer["stride"], layer["padding"]
    return {
        "id": number,
        "name": layer["name"],
        "operator_type": "Conv",
        "equation": "O[b][g][k][oy][ox]+=W[g][k][c][fy][fx]*I[b][g][c][iy][ix]",
        "dimension_relations": [f"ix={stride}*ox+1*fx", f"iy={stride}*oy+1*fy"],
        "loop_dims": list(size),
        "loop_sizes": list(size.values()),
        "operand_precision": {"W": WORD, "I": WORD, "O": SUM, "O_final": WORD},
        "operand_source": {"W": number, "I": number},
        "pr_loop_dims": ["IX", "IY"],
        "pr_loop_sizes": [layer["w"], layer["h"]],
        "padding": [[padding, padding], [padding, padding]],
    }


def evaluate(layer: dict, chosen: dict, sram_kib: int) -> CostModelEvaluation:
    """ZigZag's evaluation; where ``chosen`` has no loop order, of the best one that its search finds."""
    with tempfile.TemporaryDirectory() as folder:
        for name, document in (
            ("accelerator", accelerator(sram_kib)),
            ("mapping", [chosen, chosen | {"name": "default"}]),
            ("workload", [node(0, layer)]),
        ):
            (Path(folder) / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        _, _, evaluations = get_hardware_performance_zigzag(
            *(f"{folder}/{name}.yaml" for name in ("workload", "accelerator", "mapping")),
            dump_folder=folder,
            loma_show_progress_bar=False,
        )
    ((evaluation, _),) = evaluations[0][1]
    return evaluation


def figures(layer: dict, sram_kib: int, block_kib: int) -> dict:
    """What is stored of one layer."""
    chosen = mapping(layer, block_kib)
    spatial = {key: value for key, value in chosen.items() if key != "temporal_ordering"}
    fixed = evaluate(layer, chosen, sram_kib)
    searched = evaluate(layer, spatial, sram_kib)
    parts = {
        "compute_cycles": fixed.ideal_temporal_cycle,
        "stall_cycles": fixed.stall_slack_comb,
        "load_cycles": fixed.data_onloading_cycle,
        "drain_cycles": fixed.data_offloading_cycle + fixed.systolic_drain_cycle,
    }
    assert sum(parts.values()) == fixed.latency_total2
    dram = {operand.name: accesses[-1] for operand, accesses in fixed.memory_word_access.items()}
    read = sum(accesses.get(DataDirection.RD_OUT_TO_LOW) for accesses in dram.values())
    written = dram["O"].get(DataDirection.WR_IN_BY_LOW)
    return {
        "name": layer["name"],
        "dims": {key: value for key, value in layer.items() if key not in ("name", "what")},
        "macs": prod(loops(layer).values()),
        "cycles": round(fixed.latency_total2),
        **{name: round(value) for name, value in parts.items()},
        "dram_read_bytes": round(read * DRAM_BITS / 8),  # ZigZag counts words of the port
        "dram_written_bytes": round(written * DRAM_BITS / 8),
        "utilisation_ratio": round(fixed.mac_utilization2, 6),
        "array_utilisation_ratio": round(fixed.mac_spatial_utilization, 6),
        "cycles_searched": round(searched.latency_total2),
        "rows": ", ".join(chosen["spatial_mapping"]["D2"]),
        "columns": ", ".join(chosen["spatial_mapping"]["D1"]),
        "loops": " ".join(f"{dim}{factor}" for dim, factor in chosen["temporal_ordering"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    output = parser.parse_args().output
    logging.disable(logging.CRITICAL)  # ZigZag's own, several lines a layer
    layers = json.loads((HERE / "layers.json").read_text())
    lines: list[str] = []
    architectures = []
    for sram_kib, block_kib in SRAMS:
        marks = []
        for layer in layers:
            marks.append(f"@{len(lines)}")
            lines.append(json.dumps(figures(layer, sram_kib, block_kib)))
            print(lines[-1], flush=True)
        architectures.append({"sram_kib": sram_kib, "partial_sum_block_kib": block_kib, "layers": marks})
    document = {
        "tool": "ZigZag",
        "version": version("zigzag-dse"),
        "command": "python benchmarks/oracles/zigzag_run.py -o tests/devices/npu/oracles/zigzag.json",
        "cycles": "latency_total2 of the fixed mapping: compute cycles of the mapping, stalls of the busiest memory "
        "port, first loads that nothing hides, last outputs; cycles_searched: the same with the searched loop order",
        "architecture": {
            "rows": ROWS,
            "columns": COLUMNS,
            "weight_bits": WORD,
            "activation_bits": WORD,
            "partial_sum_bits": SUM,
            "sram_input_read_bits_per_cycle": ROWS * WORD,
            "sram_weight_read_bits_per_cycle": COLUMNS * WORD,
            "sram_sum_read_bits_per_cycle": COLUMNS * SUM,
            "sram_sum_write_bits_per_cycle": COLUMNS * SUM,
            "dram_read_bits_per_cycle": DRAM_BITS,
            "dram_write_bits_per_cycle": DRAM_BITS,
        },
        "architectures": architectures,
    }
    text = json.dumps(document, indent=1)
    for number, line in enumerate(lines):  # one line a layer
        text = text.replace(f'"@{number}"', line, 1)
    output.write_text(text + "\n")


if __name__ == "__main__":
    main()
