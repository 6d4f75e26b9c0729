"""``framefit rtl``: a model's trees as Verilog, checked against the model and counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.files import check_folder, is_file_name, write_record, write_whole_folder
from framefit.core.settings import Notify, silent
from framefit.core.tree_results import CircuitCost, CoreKind, GroupCircuit, RtlReport
from framefit.core.trees import Ensemble, Forest, read_forest
from framefit.errors import DeviceError, InputError

__all__ = ["RtlResult", "rtl"]


_MARK = "report.json"
_WHAT = "a folder of framefit rtl"
_CORE_NODES = 20_000  # that are simulated: some ten seconds


@dataclass(frozen=True)
class RtlResult:
    """The report, and where it and the circuits are."""

    report: RtlReport
    folder: Path


@dataclass(frozen=True)
class _Settings:
    core: CoreKind
    sizes: tuple[int, ...]
    pipelined: bool
    rows: int
    products: tuple[tuple[int, int], ...]
    count: bool
    limit_s: float
    seed: int


def rtl(
    trees: str | Path | Forest,
    *,
    core: CoreKind = "fixed",
    group: str | None = None,
    sizes: Sequence[int] = (6, 4),
    pipelined: bool = False,
    rows: int = 64,
    products: Sequence[tuple[int, int]] = (),
    count: bool = True,
    limit_s: float = 300.0,
    seed: int = 0,
    output: str | Path | None = None,
    force: bool = False,
    notify: Notify = silent,
) -> RtlResult:
    """Write trees as Verilog with a test bench, simulate them against the model, and count what they take.

    Args:
        trees: a ``*.trees.json``, a network that has them, a folder of ``framefit treeify``, or a forest.
        core: "fixed": each tree is a circuit of its own, a row a cycle; "programmable": one circuit walks
            the trees in its memories, a node a cycle.
        group: the one to build; default: all, each in a folder of its own where there are several.
        sizes: inputs of the look-up tables to count in: 6, 4 or both.
        pipelined: registers between the steps, and behind the memories of the programmable core.
        rows: to simulate; of the programmable core as many as its nodes allow in some ten seconds.
        products: inputs and outputs of the layers that the group replaces, to stand beside it; default: one
            layer from the group's input to its output. All groups have the same.
        count: whether to synthesise; without it the circuits are only written and simulated.
        limit_s: seconds for each circuit; what takes longer is noted and left out.
        seed: of the rows, and of the weights of what stands beside the trees.
        output: folder; default: the trees' name with ``-rtl``, here.
        force: overwrite it.
        notify: is told what is being done.

    Raises:
        InputError: no trees, an unknown group, or settings that cannot be used.
        MissingExtraError: the extra ``hw`` is not installed.
        DeviceError: a circuit differs from the model, which is a defect; nothing is written.

    Example:
        >>> import framefit
        >>> framefit.rtl("digits.trees.json", output="hardware").report.groups[0].mismatches
        0
    """
    if not sizes or any(size not in (4, 6) for size in sizes) or rows < 2 or not limit_s > 0:
        raise InputError(
            f"tables of {', '.join(map(str, sizes)) or 'no'} inputs, {rows} rows, {limit_s} s",
            remedy="take tables of 6 or 4 inputs, 2 rows or more and a time above 0",
        )
    if any(min(product) < 1 for product in products):
        raise InputError(f"layers {list(products)}", remedy="give inputs and outputs of each, such as 128x64")
    forest = _forest(trees)
    chosen = _chosen(forest, group)
    folder = Path(output) if output is not None else Path(f"{_name(trees)}-rtl")
    check_folder(folder.resolve(), _MARK, _WHAT, force=force)
    from framefit.trees.hardware.synthesis import yosys_version

    notify("starting Yosys")
    version = yosys_version()
    settings = _Settings(core, tuple(dict.fromkeys(sizes)), pipelined, rows, tuple(products), count, limit_s, seed)
    with write_whole_folder(folder, _MARK, _WHAT, force=force) as part:
        groups = []
        for ensemble in chosen:
            place = part if len(chosen) == 1 else part / ensemble.name
            place.mkdir(exist_ok=True)
            groups.append(_build(ensemble, place, settings, notify))
        report = RtlReport(model=forest.model, core=core, yosys=version, seed=seed, groups=tuple(groups))
        write_record(part / _MARK, report)
    return RtlResult(report, folder)


def _name(trees: str | Path | Forest) -> str:
    if isinstance(trees, Forest):
        return Path(trees.model).name
    return Path(trees).resolve().name.split(".")[0]


def _forest(trees: str | Path | Forest) -> Forest:
    """Raises: InputError: there are none."""
    if isinstance(trees, Forest):
        forest, where = trees, None
    else:
        where = Path(trees)
        if where.is_dir():
            where /= "trees.json"
        forest = _of_network(where) if where.suffix == ".onnx" else read_forest(where)
    if not forest.ensembles:
        raise InputError("has no trees", where=where, remedy="give what framefit treeify wrote")
    return forest


def _of_network(path: Path) -> Forest:
    """Raises: InputError: it is none, or has none."""
    from framefit.trees.exporting import read_trees

    forest = read_trees(path)
    if forest is None:
        raise InputError(
            "is a network without trees, and only trees become circuits",
            where=path,
            remedy="give one that framefit treeify wrote, or its trees.json",
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
            f"groups {', '.join(names)} cannot be names of folders", remedy="choose one of them with --group"
        )
    return chosen


def _build(ensemble: Ensemble, folder: Path, settings: _Settings, notify: Notify) -> GroupCircuit:
    """One group: written, simulated, counted."""
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
    if not settings.products:
        notes.append("int8 and ternary: one layer from the group's input to its output, whatever it replaced")
    trees = next((cost for cost in costs if cost.circuit == "trees"), None)
    each = None if trees is None or trees.lut6 is None else trees.lut6 / ensemble.outputs
    return msgspec.structs.replace(
        circuit,
        costs=tuple(costs),
        lut6_per_output=each if settings.core == "fixed" else None,
        notes=tuple(notes),
    )


def _rows(ensemble: Ensemble, settings: _Settings) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    from framefit.trees.hardware.simulation import drawn_rows

    count = settings.rows
    if settings.core == "programmable":
        tests = sum(len(tree.inputs) for tree in ensemble.trees) + sum(len(tree.nodes) for tree in ensemble.free_trees)
        count = max(2, min(count, _CORE_NODES // max(tests, 1)))
    return drawn_rows(ensemble, count, np.random.default_rng(settings.seed))


_Price = Callable[[], Sequence[CircuitCost]]


def _build_fixed(
    ensemble: Ensemble, folder: Path, words: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], settings: _Settings
) -> tuple[GroupCircuit, _Price]:
    from framefit.trees.hardware.fixed import FixedFunction, pack_rows, results_of
    from framefit.trees.hardware.simulation import simulate_fixed, write_fixed_bench
    from framefit.trees.hardware.synthesis import cost_of_fixed, write_verilog

    circuit = FixedFunction(ensemble, pipelined=settings.pipelined)
    found = simulate_fixed(circuit, pack_rows(words))
    wanted = results_of(ensemble, words)
    write_verilog(circuit, folder / "top.v")
    write_fixed_bench(folder, circuit, words)
    notes = ["outputs are sums and their biases; the scale is left to what follows"] if ensemble.scaled else []
    report = _report(ensemble, len(words), sum(a != b for a, b in zip(found, wanted, strict=True)), notes)
    report = msgspec.structs.replace(report, latency_cycles=circuit.latency)
    return report, lambda: [cost_of_fixed(ensemble, settings.sizes, settings.limit_s, pipelined=settings.pipelined)]


def _build_core(
    ensemble: Ensemble, folder: Path, words: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], settings: _Settings
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
    notes = ["outputs are sums; their levels or scales are left to what follows"]
    if core.beats * len(words) > nodes:
        notes.append(f"a row enters in {core.beats} cycles, and its trees have fewer nodes to visit: entering binds")
    report = _report(ensemble, len(words), wrong, notes)
    report = msgspec.structs.replace(report, cycles=run.cycles, nodes=nodes, cycles_per_node=run.cycles / nodes)
    return report, lambda: [cost_of_core(core, settings.sizes, settings.limit_s)]


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


def _counted(ensemble: Ensemble, price: _Price, settings: _Settings) -> Iterator[tuple[str, _Price]]:
    """What is synthesised, one after the other."""
    from framefit.trees.hardware.synthesis import cost_of_encoder, costs_of_products

    patch = ensemble.patch
    inputs = ensemble.input_shape[0] * patch.area if patch else math.prod(ensemble.input_shape)
    products = settings.products or ((inputs, ensemble.outputs),)
    yield "trees", price
    yield "encoder", lambda: list(filter(None, [cost_of_encoder(ensemble, settings.sizes, settings.limit_s)]))
    yield "int8 and ternary", lambda: costs_of_products(products, settings.sizes, settings.limit_s, settings.seed)
