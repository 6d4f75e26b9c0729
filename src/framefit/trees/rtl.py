"""``framefit rtl``: writes a model's trees as Verilog, checks them against the model, and counts look-up tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import check_folder, is_file_name, write_record, write_whole_folder
from framefit.core.settings import Notify, silent, verb
from framefit.core.tree_results import CircuitCost, GroupCircuit, PlacedCircuit, RtlReport
from framefit.core.trees import Ensemble, Forest, accumulate, read_forest
from framefit.errors import DeviceError, InputError
from framefit.trees.settings import RtlSettings

__all__ = ["rtl"]


_MARK = "report.json"
_WHAT = "a folder of framefit rtl"
_CORE_NODES = 20_000  # simulated in about ten seconds
_STREAMED = 2_000  # samples, likewise

Words = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RtlResult:
    """The report, and the folder of the circuits."""

    report: RtlReport
    folder: Path


@verb(RtlSettings, "trees")
def rtl(settings: RtlSettings, *, notify: Notify = silent) -> RtlResult:
    """Write trees as Verilog with a test bench, simulate them against the model, and count their look-up tables.

    For the programmable core, the number of simulated rows is limited so that they take about ten seconds.

    Args:
        settings: options of the circuits.
        notify: receives messages on the progress.

    Raises:
        InputError: there are no trees, the group is unknown, or settings cannot be used.
        MissingExtraError: the extra ``hw`` is not installed.
        DeviceError: a circuit differs from the model, which is a defect; nothing is written.

    Example:
        >>> import framefit
        >>> framefit.rtl("digits.trees.json", output="hardware").report.groups[0].mismatches
        0
    """
    trees = settings.trees
    forest = _forest(trees)
    chosen = _chosen(forest, settings.group)
    folder = Path(settings.output) if settings.output is not None else Path(f"{_name(trees)}-rtl")
    check_folder(folder.resolve(), _MARK, _WHAT, force=settings.force)
    from framefit.trees.hardware.synthesis import has_yosys, yosys_version

    version = None
    if settings.count or settings.place is not None or has_yosys():
        notify("starting Yosys")
        version = yosys_version()
    with write_whole_folder(folder, _MARK, _WHAT, force=settings.force) as part:
        groups = []
        for ensemble in chosen:
            place = part if len(chosen) == 1 else part / ensemble.name
            place.mkdir(exist_ok=True)
            groups.append(_Builder(ensemble, place, settings, notify, verilog=version is not None).build())
        report = RtlReport(
            model=forest.model, core=settings.core, yosys=version, seed=settings.seed, groups=tuple(groups)
        )
        write_record(part / _MARK, report)
    return RtlResult(report, folder)


def _name(trees: str | Path | Forest) -> str:
    if isinstance(trees, Forest):
        return Path(trees.model).name
    return Path(trees).resolve().name.split(".")[0]


def _forest(trees: str | Path | Forest) -> Forest:
    """Read trees. Raises: InputError: there are none."""
    if isinstance(trees, Forest):
        forest, where = trees, None
    else:
        where = Path(trees)
        if where.is_dir():
            where /= "trees.json"
        forest = _of_network(where) if where.suffix == ".onnx" else read_forest(where)
    if not forest.ensembles:
        raise InputError("there are no trees", where=where, remedy="give what framefit treeify wrote")
    return forest


def _of_network(path: Path) -> Forest:
    """Read the trees of a network. Raises: InputError: the file is not a network, or has no trees."""
    from framefit.trees.exporting import read_trees

    forest = read_trees(path)
    if forest is None:
        raise InputError(
            "the network has no trees, and only trees become circuits",
            where=path,
            remedy="give a network that framefit treeify wrote, or its trees.json",
        )
    return forest


def _chosen(forest: Forest, group: str | None) -> tuple[Ensemble, ...]:
    names = [ensemble.name for ensemble in forest.ensembles]
    if group is not None and group not in names:
        raise InputError(f"no group {group!r}", remedy=f"choose from {', '.join(names)}")
    chosen = tuple(e.flat for e in forest.ensembles if group in (None, e.name))
    folders = {e.name for e in chosen if is_file_name(e.name) and e.name != _MARK}
    if len(chosen) > 1 and len(folders) < len(chosen):
        raise InputError(
            f"groups {', '.join(names)} are not possible names of folders", remedy="choose one of them with --group"
        )
    return chosen


_Price = Callable[[], Sequence[CircuitCost]]


@dataclass(frozen=True)
class _Builder:
    """Writes, simulates and counts the circuit of one group.

    Attributes:
        verilog: whether Yosys is there, which writes it; else circuits are written in its own language.
    """

    ensemble: Ensemble
    folder: Path
    settings: RtlSettings
    notify: Notify
    verilog: bool

    def build(self) -> GroupCircuit:
        """Build the circuit.

        Raises:
            DeviceError: it differs from the model, or could not be placed.
        """
        ensemble, settings = self.ensemble, self.settings
        self.notify(f"simulating {ensemble.name}")
        builds = {"fixed": self._fixed, "programmable": self._programmable, "stream": self._stream}
        circuit, report, price = builds[settings.core]()
        if report.mismatches:
            raise DeviceError(
                f"the circuit differs from the model on {report.mismatches} of {report.rows} rows",
                where=ensemble.name,
                remedy="this is a defect: report it with the trees",
            )
        if settings.place is not None:
            report = msgspec.structs.replace(report, placed=self._placed(circuit, settings.place))
        return self._counted(report, price) if settings.count else report

    def _fixed(self) -> tuple[Any, GroupCircuit, _Price]:
        from framefit.trees.hardware.fixed import FixedFunction, pack_rows, results_of
        from framefit.trees.hardware.simulation import simulate_fixed, write_fixed_bench
        from framefit.trees.hardware.synthesis import cost_of_fixed

        ensemble, words = self.ensemble, self._rows(self.settings.rows)
        circuit = FixedFunction(ensemble, pipelined=self.settings.pipelined)
        outputs = simulate_fixed(circuit, pack_rows(words))
        wrong = sum(a != b for a, b in zip(outputs, results_of(ensemble, words), strict=True))
        self._write(circuit)
        write_fixed_bench(self.folder, circuit, words)
        report = msgspec.structs.replace(
            self._report(len(words), wrong, self._scales()), latency_cycles=circuit.latency
        )
        return circuit, report, self._cost_of(cost_of_fixed)

    def _stream(self) -> tuple[Any, GroupCircuit, _Price]:
        from framefit.trees.hardware.simulation import write_stream_bench
        from framefit.trees.hardware.streaming import Streaming, check_streams, drawn_windows, simulate_stream
        from framefit.trees.hardware.synthesis import cost_of_fixed

        ensemble = self.ensemble
        check_streams(ensemble)
        circuit = Streaming(ensemble, step=self.settings.sample_step)
        drawn = drawn_windows(
            ensemble, min(_STREAMED, self.settings.rows * 16), np.random.default_rng(self.settings.seed)
        )
        wanted = [payload for windows in drawn for payload in circuit.bytes_of(windows)]
        outputs = simulate_stream(circuit, drawn)
        each = circuit.bytes_each
        wrong = sum(outputs[at : at + each] != wanted[at : at + each] for at in range(0, len(wanted), each))
        self._write(circuit)
        write_stream_bench(self.folder, circuit, drawn)
        notes = [*self._scales(), f"a step of a sample is worth {circuit.step:.9g}"]
        notes.append(f"a position leaves in {each} bytes, the delay line holds {circuit.geometry.held} samples")
        return circuit, self._report(len(wanted) // each, wrong, notes), self._cost_of(cost_of_fixed)

    def _programmable(self) -> tuple[Any, GroupCircuit, _Price]:
        from framefit.trees.hardware.programmable import ProgrammableCore, load_program, visited_nodes
        from framefit.trees.hardware.simulation import simulate_core, write_core_bench
        from framefit.trees.hardware.synthesis import cost_of_core

        ensemble = self.ensemble
        tests = sum(len(tree.inputs) for tree in ensemble.trees) + sum(len(tree.nodes) for tree in ensemble.free_trees)
        words = self._rows(max(2, min(self.settings.rows, _CORE_NODES // max(tests, 1))))
        program = load_program(ensemble)
        core = ProgrammableCore(program, registered=self.settings.pipelined)
        run = simulate_core(core, words)
        nodes = visited_nodes(program, words)
        self._write(core)
        write_core_bench(self.folder, core, ensemble, words, run.cycles)
        wrong = int(np.any(run.sums != accumulate(ensemble, words), axis=1).sum())
        notes = ["outputs are sums; their levels or scales are not part of the circuit"]
        if core.beats * len(words) > nodes:
            notes.append(f"a row enters in {core.beats} cycles, longer than its trees take: the input is the limit")
        report = msgspec.structs.replace(
            self._report(len(words), wrong, notes), cycles=run.cycles, nodes=nodes, cycles_per_node=run.cycles / nodes
        )
        return core, report, lambda: [cost_of_core(core, self._luts, self.settings.max_seconds)]

    @property
    def _luts(self) -> tuple[Literal[4, 6], ...]:
        return tuple(dict.fromkeys(self.settings.luts))

    def _rows(self, count: int) -> Words:
        from framefit.trees.hardware.simulation import drawn_rows

        return drawn_rows(self.ensemble, count, np.random.default_rng(self.settings.seed))

    def _write(self, circuit: Any) -> None:
        from framefit.trees.hardware.synthesis import write_rtlil, write_verilog

        if self.verilog:
            write_verilog(circuit, self.folder / "top.v")
        else:
            write_rtlil(circuit, self.folder / "top.il")

    def _cost_of(self, cost: Callable[..., CircuitCost]) -> _Price:
        settings = self.settings
        return lambda: [cost(self.ensemble, self._luts, settings.max_seconds, pipelined=settings.pipelined)]

    def _placed(self, circuit: Any, device: str) -> PlacedCircuit:
        from framefit.trees.hardware.synthesis import place_and_route

        self.notify(f"placing {self.ensemble.name} on {device}")
        pins = None if self.settings.pins is None else Path(self.settings.pins)
        limit_s = self.settings.max_seconds
        return place_and_route(circuit, device, self.folder / "top.bin", pins=pins, limit_s=limit_s)

    def _scales(self) -> list[str]:
        what = "outputs are sums and their biases; the scale is not part of the circuit"
        return [what] if self.ensemble.scaled else []

    def _report(self, rows: int, mismatches: int, notes: Sequence[str]) -> GroupCircuit:
        ensemble = self.ensemble
        rtlil = [] if self.verilog else ["no Yosys is installed: top.il is in its language, which read_rtlil reads"]
        return GroupCircuit(
            group=ensemble.name,
            kind=ensemble.kind,
            features=ensemble.features,
            outputs=ensemble.outputs,
            trees=len(ensemble.members),
            positions=ensemble.positions,
            latency_cycles=None,
            rows=rows,
            mismatches=mismatches,
            notes=(*notes, *rtlil),
        )

    def _counted(self, report: GroupCircuit, price: _Price) -> GroupCircuit:
        """Synthesise the circuits one after the other."""
        ensemble, settings = self.ensemble, self.settings
        costs: list[CircuitCost] = []
        notes = list(report.notes)
        for what, find in self._priced(price):
            self.notify(f"synthesising {ensemble.name}: {what}")
            try:
                costs += find()
            except DeviceError as error:
                notes.append(f"{what}: {error.what}")
        notes.append(
            "counted are the trees alone: neither the delay line nor the comparators of its samples"
            if settings.core == "stream"
            else "the encoder is not part of the trees: it compares float32 values with the thresholds"
        )
        if not settings.layers:
            notes.append("int8 and ternary: one layer from the group's input to its output, whatever it replaced")
        trees = next((cost for cost in costs if cost.circuit == "trees"), None)
        each = None if trees is None or trees.lut6 is None else trees.lut6 / ensemble.outputs
        return msgspec.structs.replace(
            report,
            costs=tuple(costs),
            lut6_per_output=None if settings.core == "programmable" else each,
            notes=tuple(notes),
        )

    def _encoder(self) -> list[CircuitCost]:
        from framefit.trees.hardware.synthesis import cost_of_encoder

        cost = cost_of_encoder(self.ensemble, self._luts, self.settings.max_seconds)
        return [] if cost is None else [cost]

    def _priced(self, price: _Price) -> Iterator[tuple[str, _Price]]:
        from framefit.trees.hardware.synthesis import costs_of_products

        ensemble, settings, patch = self.ensemble, self.settings, self.ensemble.patch
        inputs = ensemble.input_shape[0] * patch.area if patch else math.prod(ensemble.input_shape)
        products = settings.layers or ((inputs, ensemble.outputs),)
        yield "trees", price
        if settings.core != "stream":  # its samples are compared as int8
            yield "encoder", self._encoder
        yield (
            "int8 and ternary",
            lambda: costs_of_products(products, self._luts, settings.max_seconds, settings.seed),
        )
