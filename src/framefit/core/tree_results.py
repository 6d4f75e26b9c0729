"""Settings and results of ``framefit treeify`` (``treeify.json``, ``result.json``).

Results of ``framefit rtl``: ``report.json`` of its folder.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from framefit.core.acceptance import Acceptance
from framefit.core.files import Record, Result
from framefit.core.settings import (
    ChannelMean,
    ChannelStd,
    LabelledData,
    OverwriteSearch,
    ResumedSearch,
    Settings,
    SupportingUnit,
    Workers,
    check_workers,
    option,
)

__all__ = [
    "Candidate",
    "ChosenGroup",
    "CircuitCost",
    "Export",
    "GroupCircuit",
    "Original",
    "RtlReport",
    "TreeifiedModel",
    "TreeifyOptions",
    "TreeifyResult",
    "TreeifySettings",
]


TreeKind = Literal["vote", "scalar", "vector"]
WeightLevels = Literal["float", "8bit", "4bit", "ternary", "binary"]


class TreeifySettings(Settings, kw_only=True):
    """Settings of a search for groups (``treeify.json``): ``--resume`` continues with them."""

    schema_version: int = 1
    model: Annotated[
        Any,
        option(
            "ONNX file of a classifier with one input, or module:function that returns a PyTorch module.",
            argument=True,
            metavar="MODEL",
            python="a model, or a module",
            names="module",
        ),
    ] = ""
    data: LabelledData = ""
    train_epochs: Annotated[
        float, option("Epochs of training, for a network that is not trained yet.", metavar="EPOCHS", ge=0)
    ] = 0.0
    train: Annotated[
        Literal["network", "hybrid"],
        option(
            "What is trained then: the network, before anything is replaced, or the hybrid with its trees, end to end, "
            "instead of being fine-tuned."
        ),
    ] = "network"
    search: Annotated[
        Literal["sequence", "random"],
        option("How the first layer of a group is chosen: every layer in turn, or one at random."),
    ] = "sequence"
    objective: Annotated[
        Literal["accuracy", "speed", "luts"],
        option(
            "Criterion that decides among accurate groups: accuracy, speed, or the number of look-up tables "
            "in hardware."
        ),
    ] = "accuracy"
    target: Annotated[
        str,
        option(
            "Target whose latencies count: a built-in name, or path of a target.toml; cpu: this machine.",
            metavar="TARGET",
            names="target",
        ),
    ] = "cpu"
    unit: SupportingUnit = None
    max_drop: Annotated[
        float,
        option("Accuracy that may be lost on data that nothing was trained on, 0 to 1.", metavar="RATIO", ge=0),
    ] = 0.01
    first: Annotated[
        int | None,
        option("Number of the first layer with weights to replace, from 0 (default: as --search says).", ge=0),
    ] = None
    layers: Annotated[
        int | None, option("Number of layers to replace together (default: try 1, 1 + step, ...).", ge=1)
    ] = None
    step: Annotated[int, option("Number of layers by which groups grow.", ge=1)] = 1
    groups: Annotated[int, option("Largest number of groups to replace.", ge=1)] = 1
    method: Annotated[
        Literal["gradient", "ada", "auto"],
        option("Trees with vectors as leaves (gradient), with votes (ada), or those that are right more often (auto)."),
    ] = "gradient"
    loss: Annotated[
        Literal["squared", "log", "hinge"] | None,
        option("Loss that each tree descends (default: squared for vectors, exponential for votes)."),
    ] = None
    trees: Annotated[
        int | None, option("Trees at most (default: 96); for votes, of each output (default: 9).", ge=1)
    ] = None
    depth: Annotated[
        Literal["auto", "layers"] | int,
        option(
            "Tests of each tree, 1 to 6; auto: min(6, 4 + layers); layers: as many as layers are replaced.",
            metavar="auto|layers|N",
            ge=1,
            le=6,
        ),
    ] = "auto"
    quantise: Annotated[Literal["ternary", "binary"], option("Levels of quantised values: three, or two.")] = "ternary"
    scope: Annotated[
        Literal["input", "group", "all"],
        option("Values to quantise: the inputs of groups, also their outputs, or the output of every layer."),
    ] = "group"
    threshold: Annotated[
        float | None,
        option("Threshold of quantisation for normalised values (default: the thresholds of least error).", ge=0),
    ] = None
    weights: Annotated[
        WeightLevels, option("Levels of the weights of layers that remain; the first and the last layer keep theirs.")
    ] = "float"
    quantise_data: Annotated[bool, option("Quantise the network's input, too.", "--quantise-data/--float-data")] = False
    max_seconds: Annotated[
        float | None,
        option(
            "Try no further group after this many seconds, and take the best so far; fine-tuning comes on top.",
            metavar="SECONDS",
            ge=0,
        ),
    ] = None
    examples: Annotated[
        int | None,
        option("Examples to fit trees on at most (default: 4000, fewer where a group has many positions).", ge=8),
    ] = None
    finetune: Annotated[
        Literal["all", "trees", "tail", "none"],
        option(
            "Parts to fine-tune: all layers and trees, the trees and the layers behind them, or these layers alone."
        ),
    ] = "all"
    finetune_epochs: Annotated[
        float | None,
        option(
            "Epochs of fine-tuning (default: 10, or 1,000 mini-batches where that is more).", metavar="EPOCHS", ge=0
        ),
    ] = None
    finetune_batches: Annotated[int | None, option("Largest number of mini-batches of fine-tuning.", ge=0)] = None
    finetune_seconds: Annotated[
        float | None, option("Longest time of fine-tuning for each group, in seconds.", metavar="SECONDS", ge=0)
    ] = None
    rate: Annotated[float, option("Learning rate of fine-tuning.", ge=0)] = 0.05
    mean: ChannelMean = None
    std: ChannelStd = None
    seed: Annotated[int, option("Random seed for data splits, search and training.", ge=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scope == "input" and self.method == "gradient" and self.loss in ("log", "hinge"):
            raise ValueError("outputs without levels have no log or hinge loss: take scope group or all")
        if self.train == "hybrid" and (not self.train_epochs or None in (self.first, self.layers)):
            raise ValueError("an untrained network cannot rank groups: give first, layers and train_epochs")


class TreeifyOptions(TreeifySettings, kw_only=True):
    """Options of ``framefit treeify``: the search, its folder, and its files."""

    export: Annotated[
        Literal["core", "ml", "c"],
        option(
            "Files to write: model.onnx (core); model-ml.onnx, too, whose trees are operators of ai.onnx.ml (ml); or "
            "trees.c, too, whole numbers only for processors without floating point (c); also for a search that had "
            "ended."
        ),
    ] = "core"
    workers: Workers = 1
    resume: ResumedSearch = None
    output: Annotated[
        str | None,
        option("Folder of the search (default: MODEL-trees).", "-o", "--output", metavar="DIR", names="new path"),
    ] = None
    force: OverwriteSearch = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_workers(self.workers)


class Original(Record, kw_only=True):
    """The original network, trained first if requested.

    Attributes:
        top1: on the test data, 0 to 1.
        validation_top1: on the images that decide.
        latency_ns: of a frame, by ONNX Runtime on one core or by the target's model; ``None``: not known.
    """

    top1: float
    validation_top1: float
    latency_ns: int | None


class Candidate(Record, kw_only=True):
    """A group that was tried.

    Attributes:
        first_layer, last_layer: numbers of its layers with weights, from 0.
        bound_top1: on the images that decide, with the group's own output quantised, and the later layers fitted to
            that: no trees are better except by chance.
        top1: on the images that decide, with trees, before any fine-tuning; ``None``: rejected before they were
            fitted in full.
        distance: mean Kullback-Leibler divergence of its classes from the original's there, in nats.
        latency_ns: of the group's trees, for one frame; ``None``: not known.
        layers_latency_ns: of the layers that they replace.
        bytes: memory of the trees; layers_bytes: of the layers' weights.
        lut6: look-up tables of six inputs of a fixed-function circuit of the trees, as built; synthesis
            needs fewer (``framefit rtl`` counts these).
        pareto: whether no other candidate has both a better accuracy and a lower latency or fewer tables.
    """

    first_layer: int
    last_layer: int
    bound_top1: float
    top1: float | None
    distance: float | None = None
    latency_ns: int | None
    layers_latency_ns: int | None = None
    bytes: int | None = None
    layers_bytes: int | None = None
    lut6: int | None
    pareto: bool = False


class ChosenGroup(Record, kw_only=True):
    """A group that was replaced.

    Attributes:
        first_layer, last_layer: numbers of its layers with weights, from 0.
        depth: number of tests of a tree.
        trees: number of trees.
        kind: kind of their leaves.
        accumulator_bits: enough for every sum of their leaves with its sign.
        fit_seconds: processor time of the fit.
    """

    first_layer: int
    last_layer: int
    depth: int
    trees: int
    kind: TreeKind
    accumulator_bits: int
    fit_seconds: float


class Export(Record, kw_only=True):
    """A file of the hybrid.

    Attributes:
        file: name in the folder.
        flavour: operators for runtimes without trees: "core": ONNX's own operators; "ml": the tree operator
            of ``ai.onnx.ml``.
        runtime_latency_ns: of a frame of this file, by ONNX Runtime alone on one core.
    """

    file: str
    flavour: Literal["core", "ml"]
    runtime_latency_ns: int


class TreeifiedModel(Record, kw_only=True):
    """The hybrid.

    Attributes:
        groups: replaced groups, in order.
        top1: on the test data.
        top1_before_finetune: likewise, with the trees as fitted.
        validation_top1: on the images that decide, after fine-tuning.
        latency_ns: of a frame, trees by their kernels or by the target's model; ``None``: not known.
        lut6: see :class:`Candidate`.
        bytes: memory of the trees.
        finetune_seconds: duration of fine-tuning, or of training end to end.
        acceptance: against the original on the images that decided; final: on those of the final test, which decided
            nothing before it; ``None``: of a version that did not tell.
        exports: its files, whose trees were found exactly equal when they were written.
    """

    groups: tuple[ChosenGroup, ...]
    top1: float
    top1_before_finetune: float
    validation_top1: float
    latency_ns: int | None
    lut6: int | None
    bytes: int
    finetune_seconds: float
    acceptance: Acceptance | None = None
    final: Acceptance | None = None
    exports: tuple[Export, ...] = ()


class TreeifyResult(Result, kw_only=True):
    """``framefit treeify --json``, ``result.json``.

    Attributes:
        chosen: ``None``: no group is worth replacing within the allowed drop.
        notes: remarks on the figures.
    """

    schema_version: int = 1
    model: str
    seed: int
    original: Original
    candidates: tuple[Candidate, ...]
    chosen: TreeifiedModel | None
    notes: tuple[str, ...] = ()


CoreKind = Literal["fixed", "programmable", "stream"]


class CircuitCost(Record, kw_only=True):
    """Size of one circuit, by synthesis without carry chains, multipliers or block memories of any vendor.

    Attributes:
        circuit: "trees", their "encoder" (counted separately), or what they replace: "int8" or "ternary".
        lut6, lut4: number of look-up tables of that many inputs; ``None``: not requested.
        lut6_depth, lut4_depth: the most tables between registers, inputs and outputs; ``None``: not requested,
            or only a part was synthesised.
        flip_flops: bits of registers.
        memory_bits: in memories, beside tables and registers.
        factor: the figures are those of the synthesised part times this factor.
        synthesised: description of that part.
    """

    circuit: str
    lut6: int | None
    lut4: int | None
    lut6_depth: int | None
    lut4_depth: int | None
    flip_flops: int
    memory_bits: int
    factor: float
    synthesised: str


class PlacedCircuit(Record, kw_only=True):
    """A circuit placed and routed on a device, with a bitstream for it.

    Attributes:
        device: of the iCE40 family, as ``--place`` names it.
        cells, of: logic cells (a table of four inputs, a carry and a flip-flop), and how many the device has.
        max_mhz: of the clock, after routing, by nextpnr's model of the device's delays at its slowest corner.
        nextpnr: version of nextpnr-ice40.
        bitstream: name of the file.
    """

    device: str
    cells: int
    of: int
    max_mhz: float
    nextpnr: str
    bitstream: str


class GroupCircuit(Record, kw_only=True):
    """The circuit of one group's trees.

    Attributes:
        group: name of the group.
        kind: of its ensemble: "vote", "scalar" or "vector".
        features, outputs, trees: numbers of them; a feature is two comparator bits.
        positions: number of rows in one example: the circuit computes one row.
        latency_cycles: from a row's input to its output; ``None``: it depends on the row.
        rows, mismatches: number of simulated rows, and of those that differ from the model.
        cycles, nodes: of the programmable core for all these rows, and number of inner nodes that they visited.
        cycles_per_node: their ratio.
        costs: of the trees, and of the circuits for comparison; empty without synthesis.
        lut6_per_output: of the fixed-function trees, without the encoder.
        placed: on a device; ``None``: not requested.
        notes: remarks on these figures.
    """

    group: str
    kind: str
    features: int
    outputs: int
    trees: int
    positions: int
    latency_cycles: int | None
    rows: int
    mismatches: int
    cycles: int | None = None
    nodes: int | None = None
    cycles_per_node: float | None = None
    costs: tuple[CircuitCost, ...] = ()
    lut6_per_output: float | None = None
    placed: PlacedCircuit | None = None
    notes: tuple[str, ...] = ()


class RtlReport(Result, kw_only=True):
    """The circuits of a model's trees.

    Attributes:
        model: name of the model with the trees.
        core: kind of circuit.
        yosys: version of Yosys; ``None``: it was not there, and circuits were written as RTLIL.
        seed: for the rows, and for the weights of the circuits for comparison.
    """

    schema_version: int = 1
    model: str
    core: CoreKind
    yosys: str | None
    seed: int
    groups: tuple[GroupCircuit, ...]
