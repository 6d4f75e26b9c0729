"""``framefit rtl``: writes a model's trees as Verilog, checks them against the model, and counts look-up tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.files import check_folder, is_file_name, write_record, write_whole_folder
from framefit.core.settings import Notify, silent, verb
from framefit.core.tree_results import CircuitCost, GroupCircuit, RtlReport
from framefit.core.trees import Ensemble, Forest, read_forest
from framefit.errors import DeviceError, InputError
from framefit.trees.settings import RtlSettings

__all__ = ["rtl"]


_MARK = "report.json"
_WHAT = "a folder of framefit rtl"
_CORE_NODES = 20_000  # simulated in about ten seconds


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
    from framefit.trees.hardware.synthesis import yosys_version

    notify("starting Yosys")
    version = yosys_version()
    with write_whole_folder(folder, _MARK, _WHAT, force=settings.force) as part:
        groups = []
        for ensemble in chosen:
            place = part if len(chosen) == 1 else part / ensemble.name
            place.mkdir(exist_ok=True)
            groups.append(_build(ensemble, place, settings, notify))
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
    chosen = tuple(e for e in forest.ensembles if group in (None, e.name))
    folders = {e.name for e in chosen if is_file_name(e.name) and e.name != _MARK}
    if len(chosen) > 1 and len(folders) < len(chosen):
        raise InputError(
            f"groups {', '.join(names)} are not possible names of folders", remedy="choose one of them with --group"
        )
    return chosen


def _build(ensemble: Ensemble, folder: Path, settings: RtlSettings, notify: Notify) -> GroupCircuit:
    """Write, simulate and count one group."""
    words = _rows(ensemble, settings)
    notify(f"simulating {ensemble.name}")
    build = _build_fixed if settings.core == "fixed" else _build_core
    circuit, price = build(ensemble, folder, words, settings)
    if circuit.mismatches:
        raise DeviceError(
            f"the circuit differs from the model on {circuit.mismatches} of {circuit.rows} rows",
            where=ensemble.name,
            remedy="this is a defect: report it with the trees",
        )
    if not settings.count:
        return circuit
    costs: list[CircuitCost] = []
    notes = list(circuit.notes)
    for what, find in _counted(ensemble, price, settings):
        notify(f"synthesising {ensemble.name}: {what}")
        try:
            costs += find()
        except DeviceError as error:
            notes.append(f"{what}: {error.what}")
    notes.append("the encoder is not part of the trees: it compares float32 values with the thresholds")
    if not settings.layers:
        notes.append("int8 and ternary: one layer from the group's input to its output, whatever it replaced")
    trees = next((cost for cost in costs if cost.circuit == "trees"), None)
    each = None if trees is None or trees.lut6 is None else trees.lut6 / ensemble.outputs
    return msgspec.structs.replace(
        circuit,
        costs=tuple(costs),
        lut6_per_output=each if settings.core == "fixed" else None,
        notes=tuple(notes),
    )


def _rows(ensemble: Ensemble, settings: RtlSettings) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    from framefit.trees.hardware.simulation import drawn_rows

    count = settings.rows
    if settings.core == "programmable":
        tests = sum(len(tree.inputs) for tree in ensemble.trees) + sum(len(tree.nodes) for tree in ensemble.free_trees)
        count = max(2, min(count, _CORE_NODES // max(tests, 1)))
    return drawn_rows(ensemble, count, np.random.default_rng(settings.seed))


_Price = Callable[[], Sequence[CircuitCost]]


def _build_fixed(
    ensemble: Ensemble, folder: Path, words: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], settings: RtlSettings
) -> tuple[GroupCircuit, _Price]:
    from framefit.trees.hardware.fixed import FixedFunction, pack_rows, results_of
    from framefit.trees.hardware.simulation import simulate_fixed, write_fixed_bench
    from framefit.trees.hardware.synthesis import cost_of_fixed, write_verilog

    circuit = FixedFunction(ensemble, pipelined=settings.pipelined)
    outputs = simulate_fixed(circuit, pack_rows(words))
    wanted = results_of(ensemble, words)
    write_verilog(circuit, folder / "top.v")
    write_fixed_bench(folder, circuit, words)
    notes = ["outputs are sums and their biases; the scale is not part of the circuit"] if ensemble.scaled else []
    report = _report(ensemble, len(words), sum(a != b for a, b in zip(outputs, wanted, strict=True)), notes)
    report = msgspec.structs.replace(report, latency_cycles=circuit.latency)
    return report, lambda: [
        cost_of_fixed(ensemble, tuple(dict.fromkeys(settings.luts)), settings.max_seconds, pipelined=settings.pipelined)
    ]


def _build_core(
    ensemble: Ensemble, folder: Path, words: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], settings: RtlSettings
) -> tuple[GroupCircuit, _Price]:
    from framefit.core.trees import accumulate
    from framefit.trees.hardware.programmable import ProgrammableCore, load_program, visited_nodes
    from framefit.trees.hardware.simulation import simulate_core, write_core_bench
    from framefit.trees.hardware.synthesis import cost_of_core, write_verilog

    program = load_program(ensemble)
    core = ProgrammableCore(program, registered=settings.pipelined)
    run = simulate_core(core, words)
    nodes = visited_nodes(program, words)
    write_verilog(core, folder / "top.v")
    write_core_bench(folder, core, ensemble, words, run.cycles)
    wrong = int(np.any(run.sums != accumulate(ensemble, words), axis=1).sum())
    notes = ["outputs are sums; their levels or scales are not part of the circuit"]
    if core.beats * len(words) > nodes:
        notes.append(f"a row enters in {core.beats} cycles, longer than its trees take: the input is the limit")
    report = _report(ensemble, len(words), wrong, notes)
    report = msgspec.structs.replace(report, cycles=run.cycles, nodes=nodes, cycles_per_node=run.cycles / nodes)
    return report, lambda: [cost_of_core(core, tuple(dict.fromkeys(settings.luts)), settings.max_seconds)]


def _report(ensemble: Ensemble, rows: int, mismatches: int, notes: list[str]) -> GroupCircuit:
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
        notes=tuple(notes),
    )


def _counted(ensemble: Ensemble, price: _Price, settings: RtlSettings) -> Iterator[tuple[str, _Price]]:
    """Synthesise the circuits one after the other."""
    from framefit.trees.hardware.synthesis import cost_of_encoder, costs_of_products

    patch = ensemble.patch
    inputs = ensemble.input_shape[0] * patch.area if patch else math.prod(ensemble.input_shape)
    products = settings.layers or ((inputs, ensemble.outputs),)
    yield "trees", price
    yield (
        "encoder",
        lambda: list(
            filter(None, [cost_of_encoder(ensemble, tuple(dict.fromkeys(settings.luts)), settings.max_seconds)])
        ),
    )
    yield (
        "int8 and ternary",
        lambda: costs_of_products(products, tuple(dict.fromkeys(settings.luts)), settings.max_seconds, settings.seed),
    )
