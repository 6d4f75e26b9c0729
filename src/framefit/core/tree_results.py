"""Trees in place of layers: what was asked for, and what was found (``treeify.json``, ``result.json``).

What ``framefit rtl`` found: ``report.json`` of its folder.
"""

from __future__ import annotations

from typing import Literal

from framefit.core.files import Record
from framefit.core.trees import TreeKind

__all__ = [
    "Candidate",
    "ChosenGroup",
    "CircuitCost",
    "CoreKind",
    "Export",
    "GroupCircuit",
    "Original",
    "RtlReport",
    "TreeifiedModel",
    "TreeifyResult",
    "TreeifySettings",
]


WeightLevels = Literal["float", "8bit", "4bit", "ternary", "binary"]


class TreeifySettings(Record, kw_only=True):
    """``treeify.json``: how groups are looked for and replaced.

    Attributes:
        model: path of an ONNX file, or "module:function" that returns a ``torch.nn.Module``.
        data: an image folder, or an ``.npz``.
        train_epochs: of training, for a network that is not trained yet.
        train: what is trained then: "network": the network, before anything is replaced; "hybrid": all that it
            consists of with trees in it, end to end, instead of being fine-tuned.
        search: "sequence": every layer is tried as the first of a group; "random": one is drawn.
        objective: what decides among candidates of high accuracy.
        target: whose times count: a built-in target's or a ``target.toml``'s, as described; "cpu": this machine's.
        unit: of a described target; ``None``: the first that can run what is timed.
        max_drop: of validation accuracy that is allowed, 0 to 1.
        first: number of the first layer with weights that is replaced; ``None``: as ``search`` says.
        layers: that are replaced together; ``None``: 1, 1 + step, ...
        step: by which groups grow.
        groups: to replace at most.
        method: "gradient": vectors; "ada": votes; "auto": whichever of them is right more often.
        loss: that each tree descends; ``None``: squared for vectors, exponential (AdaBoost's own) for votes.
        trees: at most, of votes for each output; ``None``: 96, and 9.
        depth: "auto": min(6, 4 + layers); "layers": as many as layers; or the number itself.
        quantise: levels of what is quantised.
        scope: what is: the groups' inputs, also their outputs, or every layer's output.
        threshold: of normalised values; ``None``: the thresholds of least error.
        weights: levels of the remaining layers' weights; the first and the last layer keep theirs.
        quantise_data: whether the network's input is quantised, too.
        max_seconds: of the search: no further group is tried then, the best of those that were is taken. Fine-tuning
            comes on top.
        examples: that trees are fitted on, at most; ``None``: 4,000, and fewer where a group has many positions.
        finetune: what learns behind: all layers and trees, trees and the layers behind, or these layers alone.
        finetune_epochs: ``None``: 10, or 1,000 mini-batches where that is more.
        finetune_batches: at most; ``None``: as many as that takes.
        finetune_seconds: at most, of each group's fine-tuning.
        rate: learning rate of it.
        mean: of images, one a channel, of values 0 to 1; std: likewise.
        std: see ``mean``.
        seed: of all that is drawn.
    """

    schema_version: int = 1
    model: str = ""
    data: str = ""
    train_epochs: float = 0.0
    train: Literal["network", "hybrid"] = "network"
    search: Literal["sequence", "random"] = "sequence"
    objective: Literal["accuracy", "speed", "luts"] = "accuracy"
    target: str = "cpu"
    unit: str | None = None
    max_drop: float = 0.01
    first: int | None = None
    layers: int | None = None
    step: int = 1
    groups: int = 1
    method: Literal["gradient", "ada", "auto"] = "gradient"
    loss: Literal["squared", "log", "hinge"] | None = None
    trees: int | None = None
    depth: Literal["auto", "layers"] | int = "auto"
    quantise: Literal["ternary", "binary"] = "ternary"
    scope: Literal["input", "group", "all"] = "group"
    threshold: float | None = None
    weights: WeightLevels = "float"
    quantise_data: bool = False
    max_seconds: float | None = None
    examples: int | None = None
    finetune: Literal["all", "trees", "tail", "none"] = "all"
    finetune_epochs: float | None = None
    finetune_batches: int | None = None
    finetune_seconds: float | None = None
    rate: float = 0.05
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("layers", 1), ("step", 1), ("groups", 1), ("trees", 1), ("examples", 8), ("first", 0), ("seed", 0),
            ("train_epochs", 0), ("max_drop", 0), ("threshold", 0), ("finetune_epochs", 0), ("finetune_batches", 0),
            ("finetune_seconds", 0), ("max_seconds", 0), ("rate", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} is {value}, less than {least}")
        if not isinstance(self.depth, str) and not 1 <= self.depth <= 6:
            raise ValueError(f"depth is {self.depth}, not 1 .. 6, auto or layers")
        if self.scope == "input" and (self.method != "gradient" or self.loss in ("log", "hinge")):
            raise ValueError("outputs without levels have no votes, and no log or hinge loss: take scope group or all")
        if self.train == "hybrid" and (not self.train_epochs or None in (self.first, self.layers)):
            raise ValueError("nothing tells the best group of an untrained network: give first, layers, train_epochs")


class Original(Record, kw_only=True):
    """The network as it was given; trained first, where that was asked for.

    Attributes:
        top1: on the test data, 0 to 1.
        validation_top1: on the validation data.
        latency_ns: of a frame, by ONNX Runtime on one core or as the target says; ``None``: not known.
    """

    top1: float
    validation_top1: float
    latency_ns: int | None


class Candidate(Record, kw_only=True):
    """A group that was tried.

    Attributes:
        first_layer, last_layer: numbers of its layers with weights, from 0.
        bound_top1: on the validation data with the group's own output quantised, and the layers behind fitted to
            that: no trees are better but by chance.
        top1: on the validation data with trees, before any fine-tuning; ``None``: given up before they were
            fitted in full.
        latency_ns: of the group's trees, a frame; ``None``: not known.
        layers_latency_ns: of the layers that they replace.
        lut6: look-up tables of six inputs of a fixed-function circuit of the trees, as built, before synthesis
            makes fewer of them (``framefit rtl`` counts these).
        pareto: whether no other candidate with trees has both a better accuracy and less of latency or tables.
    """

    first_layer: int
    last_layer: int
    bound_top1: float
    top1: float | None
    latency_ns: int | None
    layers_latency_ns: int | None = None
    lut6: int | None
    pareto: bool = False


class ChosenGroup(Record, kw_only=True):
    """A group that was replaced.

    Attributes:
        first_layer, last_layer: numbers of its layers with weights, from 0.
        depth: tests of a tree.
        trees: how many.
        kind: of their leaves.
        accumulator_bits: that hold every sum of their leaves, the sign included.
        fit_seconds: of processor time that fitting took.
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
        file: in the folder.
        flavour: of what runtimes execute that know nothing of trees: "core": ONNX's own operators; "ml": the tree
            operator of ``ai.onnx.ml``.
        runtime_latency_ns: of a frame of this file, by ONNX Runtime alone on one core.
    """

    file: str
    flavour: Literal["core", "ml"]
    runtime_latency_ns: int


class TreeifiedModel(Record, kw_only=True):
    """The hybrid.

    Attributes:
        groups: that were replaced, in order.
        top1: on the test data.
        top1_before_finetune: likewise, with the trees as they were fitted.
        validation_top1: on the validation data, fine-tuned.
        latency_ns: of a frame, trees by their kernels or as the target says; ``None``: not known.
        lut6: see :class:`Candidate`.
        bytes: of the trees.
        finetune_seconds: that fine-tuning took; or training, end to end.
        exports: its files, whose trees were found equal to the last bit when they were written.
    """

    groups: tuple[ChosenGroup, ...]
    top1: float
    top1_before_finetune: float
    validation_top1: float
    latency_ns: int | None
    lut6: int | None
    bytes: int
    finetune_seconds: float
    exports: tuple[Export, ...] = ()


class TreeifyResult(Record, kw_only=True):
    """``framefit treeify --json``, ``result.json``.

    Attributes:
        chosen: ``None``: no group is worth replacing within the drop that was allowed.
        notes: what to know of the figures.
    """

    schema_version: int = 1
    model: str
    seed: int
    original: Original
    candidates: tuple[Candidate, ...]
    chosen: TreeifiedModel | None
    notes: tuple[str, ...] = ()


CoreKind = Literal["fixed", "programmable"]


class CircuitCost(Record, kw_only=True):
    """What one circuit takes, by synthesis without carry chains, multipliers or block memories of any vendor.

    Attributes:
        circuit: "trees", their "encoder" (not part of them), or what they replace: "int8" or "ternary".
        lut6, lut4: look-up tables of that many inputs; ``None``: not asked for.
        lut6_depth, lut4_depth: the most tables between registers, inputs and outputs; ``None``: not asked
            for, or only a part was synthesised.
        flip_flops: bits of registers.
        memory_bits: in memories, beside tables and registers.
        factor: the figures are those of the part that was synthesised times this.
        synthesised: that part, in words.
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


class GroupCircuit(Record, kw_only=True):
    """The circuit of one group's trees.

    Attributes:
        group: its name.
        kind: of its ensemble: "vote", "scalar" or "vector".
        features, outputs, trees: numbers of them; a feature is two comparator bits.
        positions: rows of one example: the circuit computes one row.
        latency_cycles: from a row's input to its output; ``None``: it depends on the row.
        rows, mismatches: that were simulated, and of these the ones that differ from the model.
        cycles, nodes: of the programmable core for all these rows, and inner nodes that they visited.
        cycles_per_node: one by the other.
        costs: of the trees, and of what stands beside them; empty where synthesis was left out.
        lut6_per_output: of the fixed-function trees, without the encoder.
        notes: what to know about these figures.
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
    notes: tuple[str, ...] = ()


class RtlReport(Record, kw_only=True):
    """The circuits of a model's trees.

    Attributes:
        model: that the trees stand in.
        core: which kind.
        yosys: its version.
        seed: of the rows, and of the weights of what stands beside the trees.
    """

    schema_version: int = 1
    model: str
    core: CoreKind
    yosys: str
    seed: int
    groups: tuple[GroupCircuit, ...]
