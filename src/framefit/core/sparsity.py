"""Results of a search for sparsity: ``result.json``, ``trials.json`` and ``deploy.json`` of its folder."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from framefit.core.acceptance import Acceptance
from framefit.core.files import Record, Result
from framefit.core.settings import (
    ChannelMean,
    ChannelStd,
    InputConstants,
    InputShapes,
    InputStates,
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
    "Configuration",
    "Decision",
    "DenseModel",
    "Deployment",
    "LayerSparsity",
    "Pattern",
    "Registration",
    "RewardKind",
    "SearchPoint",
    "SparsifyOptions",
    "SparsifySettings",
    "SparsityResult",
    "Spent",
    "Threshold",
    "Trial",
    "Trials",
]


Pattern = Literal["unstructured", "n:m", "channel", "block"]
Decision = Literal["deploy", "retrain", "discard"]
RewardKind = Literal["accuracy-log-cycles", "error-log-cycles"]
SolverName = Literal["auto", "dp", "spdy", "swaps", "ddpg", "ddpg-warm", "random", "uniform", "erk", "lamp"]


class Spent(Record, kw_only=True):
    """Costs of a search.

    Attributes:
        images_forwarded: number of images through the network: calibration, the database, batch norm, evaluations.
        seconds: wall clock, including interrupted runs before.
        evaluations: number of evaluations of an assignment's accuracy.
    """

    images_forwarded: int
    seconds: float
    evaluations: int


class DenseModel(Record, kw_only=True):
    """The original model.

    Attributes:
        top1, top5: on the test data, 0 to 1.
        top1_interval: 90 % interval, Wilson's.
        cycles: on the target, with the activation sparsity of the calibration data.
        parameters: number of elements of all its weights and other constants.
        images: number of images in the test data.
    """

    top1: float
    top1_interval: tuple[float, float]
    top5: float
    cycles: int
    parameters: int
    images: int


class LayerSparsity(Record, kw_only=True):
    """One layer of a configuration.

    Attributes:
        sparsity_ratio: zeros (and removed weights) over the dense layer's elements.
        activation_sparsity_ratio: zeros in the layer's input, on calibration data.
        cycles: on the target.
        share_ratio: part of the network's cycles.
        cycles_ratio: over the dense layer's cycles.
    """

    name: str
    sparsity_ratio: float
    activation_sparsity_ratio: float
    cycles: int
    share_ratio: float
    cycles_ratio: float


class Configuration(Record, kw_only=True):
    """A sparse model: one row of the table of results.

    Attributes:
        solver: the solver that found it; "dense": none.
        hardware: whether the search knew the target's cycles; otherwise multiply-accumulates.
        validation_top1: in the search, on its subset of the validation data.
        top1_before_finetune: on the test data, after reconstruction and batch-norm re-estimation.
        top1, top5: on the test data; after fine-tuning if ``finetune_epochs`` > 0.
        top1_interval: 90 % interval, Wilson's.
        parameters: number of elements that remain in the file; zeros: those of them that are zero.
        sparsity_ratio: zeros and removed elements over the dense model's weights that may be pruned.
        cycles: with its own activation sparsity; cycles_ratio: over the dense model's.
        difference_top1: from the dense model, in percentage points; negative: worse.
    """

    solver: str
    hardware: bool
    validation_top1: float
    top1_before_finetune: float
    top1: float
    top1_interval: tuple[float, float]
    top5: float
    parameters: int
    zeros: int
    sparsity_ratio: float
    cycles: int
    cycles_ratio: float
    difference_top1: float
    finetune_epochs: float
    layers: tuple[LayerSparsity, ...]


class Threshold(Record, kw_only=True):
    """Thresholds for a model, and their reason.

    Attributes:
        round: of search and fine-tuning, from 0.
        top1: least; cycles_ratio: largest, relative to the dense model's.
        source: "given" by the user, "derived" from model and hardware, or "dynamic": changed after a round.
        reason: of this value.
    """

    round: int
    top1: float
    cycles_ratio: float
    source: Literal["given", "derived", "dynamic"]
    reason: str


class SearchPoint(Record, kw_only=True):
    """The best assignment of a solver at a point of its search.

    Attributes:
        solver: its name, whether it was blind, and the round, from 1, if thresholds moved.
        cycles: of that assignment.
    """

    solver: str
    evaluations: int
    images_forwarded: int
    seconds: float
    top1: float
    cycles: int


class SparsityResult(Result, kw_only=True):
    """``framefit sparsify --json``, ``result.json``.

    Attributes:
        pattern: of the zeros.
        int8: whether the model is written with 8-bit integers.
        target_cycles_ratio: requested part of the dense model's cycles.
        configurations: one for each solver that was tried, including arms that ignore the hardware.
        chosen: index into ``configurations``; ``None``: there is none.
        decision: of the gates; ``deployed``: whether it was registered.
        reasons: of the decision, as sentences.
        additive_bound, additive_error: least sum of layer errors of any assignment within the budget, and that
            of the allocation over the database: the gap of the discretisation.
        thresholds: in the order of their use; judged_by: index of the one with which the chosen model is
            compared.
        curve: best assignment of each solver during its search.
        ledger: total costs.
        acceptance: the chosen model beside the dense one on data that decided nothing before; ``None``: of a version
            that did not tell.
        interrupted: whether the search was stopped before its end.
        notes: remarks on the figures.
    """

    schema_version: int = 1
    model: str
    target: str
    unit: str
    pattern: Pattern
    int8: bool = False
    target_cycles_ratio: float
    seed: int
    dense: DenseModel
    dense_layers: tuple[LayerSparsity, ...]
    configurations: tuple[Configuration, ...]
    chosen: int | None
    decision: Decision
    deployed: bool
    reasons: tuple[str, ...]
    additive_bound: float
    additive_error: float
    thresholds: tuple[Threshold, ...]
    judged_by: int = -1
    curve: tuple[SearchPoint, ...]
    ledger: Spent
    acceptance: Acceptance | None = None
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.chosen is not None and not 0 <= self.chosen < len(self.configurations):
            raise ValueError(f"chosen is {self.chosen}, but there are {len(self.configurations)} configurations")
        if not -len(self.thresholds) <= self.judged_by < len(self.thresholds):
            raise ValueError(f"judged_by is {self.judged_by}, but there are {len(self.thresholds)} thresholds")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the configurations, rounds last: solver, whether blind, and which round."""
        first = len(self.configurations) - len(self.thresholds)
        return tuple(
            row.solver + ("" if row.hardware else ", blind") + (f", round {at - first}" if at > first else "")
            for at, row in enumerate(self.configurations)
        )

    @property
    def front(self) -> tuple[tuple[float, float], ...]:
        """(cycles ratio, top-1) of those that no other one beats, the dense model among them; by cycles, ascending."""
        points = [(1.0, self.dense.top1), *((row.cycles_ratio, row.top1) for row in self.configurations)]
        front: list[tuple[float, float]] = []
        for cycles_ratio, top1 in sorted(points, key=lambda point: (point[0], -point[1])):
            if not front or top1 > front[-1][1]:
                front.append((cycles_ratio, top1))
        return tuple(front)

    @property
    def threshold(self) -> Threshold:
        """The threshold for the chosen model."""
        return self.thresholds[self.judged_by]

    @property
    def satisfied(self) -> bool:
        """Whether the chosen model is deployed, or its figures (not their intervals) meet the thresholds."""
        if self.deployed or self.chosen is None:
            return self.deployed
        row = self.configurations[self.chosen]
        kept = self.acceptance is None or self.acceptance.kept
        return kept and row.top1 >= self.threshold.top1 and row.cycles_ratio <= self.target_cycles_ratio


class SparsifySettings(Settings, kw_only=True):
    """Settings of a search (``sparsify.json``): ``--resume`` continues with them.

    ``n`` and ``m`` are those of the pattern "n:m" if the target leaves them open; ``distill_ratio`` is the part of
    the fine-tuning's loss that compares with the dense model.
    """

    schema_version: int = 1
    model: Annotated[
        Any,
        option(
            "ONNX file, or module:function that returns a PyTorch module.",
            argument=True,
            metavar="MODEL",
            python="a model, or a module",
            names="module",
        ),
    ]
    data: LabelledData
    target: Annotated[str, option("Built-in target, or path of a target.toml.", metavar="TARGET", names="target")]
    unit: SupportingUnit = None
    shapes: InputShapes = {}
    constants: InputConstants = {}
    states: InputStates = {}
    cycles: Annotated[
        float | None,
        option(
            "Cycles of the sparse model at most, as a part of the dense model's; derived: from model and target.",
            metavar="RATIO",
            none="derived",
            gt=0,
            le=1,
        ),
    ] = 0.5
    accuracy_drop: Annotated[
        float | None,
        option(
            "Top-1 accuracy that may be lost, 0 to 1; derived: from the confidence interval of the dense model.",
            metavar="RATIO",
            none="derived",
            ge=0,
            lt=1,
        ),
    ] = 0.01
    dynamic: Annotated[
        bool,
        option(
            "Search in rounds, with fewer cycles after a round that met the threshold, and more where they are out of "
            "reach.",
            "--dynamic/--fixed",
        ),
    ] = False
    dynamic_accuracy: Annotated[
        bool,
        option(
            "Continue training in rounds at the same cycles, with a higher threshold on accuracy after each round "
            "that met it.",
            "--dynamic-accuracy/--fixed-accuracy",
        ),
    ] = False
    solver: Annotated[SolverName, option("Method that distributes sparsity over the layers.")] = "auto"
    pattern: Annotated[Pattern | None, option("Pattern of the zeros; auto: what the target rewards.", none="auto")] = (
        None
    )
    int8: Annotated[
        bool,
        option(
            "Write the sparse model in int8; it is fine-tuned with rounded weights and activations. For this machine, "
            "and for n:m zeros.",
            "--int8/--float32",
        ),
    ] = False
    n: int = 2
    m: int = 4
    reward: Annotated[
        RewardKind, option("What solvers maximise: accuracy or negative error, times the logarithm of the cycles.")
    ] = "accuracy-log-cycles"
    episodes: Annotated[int, option("Evaluations of the accuracy that each search may make.", ge=1)] = 100
    images: Annotated[int, option("Validation images in each evaluation.", ge=1)] = 2000
    agreement: Annotated[
        float,
        option(
            "Relative difference between predicted and received reward at which solver ddpg ends its search.",
            ge=0,
            lt=1,
        ),
    ] = 0.002
    finetune_epochs: Annotated[
        float | None,
        option(
            "Epochs of fine-tuning of the best model (default: 5, or more where these are fewer than 1,000 steps).",
            metavar="EPOCHS",
            ge=0,
        ),
    ] = None
    finetune_seconds: Annotated[
        float | None, option("Longest time of each fine-tuning, in seconds.", metavar="SECONDS", ge=0)
    ] = None
    rate: Annotated[float, option("Learning rate of fine-tuning.", ge=0)] = 0.02
    decay: Annotated[float, option("Weight decay of fine-tuning.", ge=0)] = 5e-4
    distill_ratio: float = 0.5
    mean: ChannelMean = None
    std: ChannelStd = None
    max_seconds: Annotated[
        float | None,
        option("Stop the search after this many seconds; fine-tuning comes on top.", metavar="SECONDS", ge=0),
    ] = None
    seed: Annotated[int, option("Random seed for data splits, search and training.", ge=0, lt=2**63)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("finetune_epochs", "finetune_seconds", "rate", "decay"):
            if not (getattr(self, name) or 0) < math.inf:
                raise ValueError(f"{name} must be finite, is {getattr(self, name)}")
        if not 0 < self.n < self.m:
            raise ValueError(f"n:m needs 0 < n < m, is {self.n}:{self.m}")


class SparsifyOptions(SparsifySettings, kw_only=True):
    """Options of ``framefit sparsify``: the search, its folder, and what follows it."""

    compare: Annotated[
        bool, option("Also run the rules without a search, and the same search without knowledge of the hardware.")
    ] = True
    deploy_to: Annotated[
        tuple[str, ...],
        option(
            "Target to compile the model for, if it passes its thresholds (default: the target of the search).",
            metavar="TARGET",
            names="target",
        ),
    ] = ()
    override: Annotated[
        Literal["deploy", "retrain"] | None,
        option("Deploy the model although it misses its thresholds, or fine-tune it once more."),
    ] = None
    workers: Workers = 1
    resume: ResumedSearch = None
    feedback: Annotated[
        Any,
        option(
            "New labelled data for the model of --resume; it is trained again if its accuracy there is too low.",
            metavar="PATH",
            python="an iterable of (x, y)",
            names="path",
        ),
    ] = None
    output: Annotated[
        str | None,
        option("Folder of the search (default: MODEL-sparse).", "-o", "--output", metavar="DIR", names="new path"),
    ] = None
    force: OverwriteSearch = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_workers(self.workers)


class Trial(Record, kw_only=True):
    """One evaluated assignment.

    Attributes:
        arm: solver and budget of the search.
        levels: index of each layer's level.
        top1: on the validation subset.
        images_forwarded, seconds: on the ledger afterwards.
    """

    arm: str
    levels: tuple[int, ...]
    top1: float
    images_forwarded: int
    seconds: float


class Trials(Record, kw_only=True):
    """All evaluations of a search (``trials.json``): a search with the same seed continues after them.

    Attributes:
        key: digest of everything that evaluations depend on: model, data, pattern, levels.
    """

    schema_version: int = 1
    key: str
    trials: tuple[Trial, ...] = ()


class Registration(Record, kw_only=True):
    """A target for which a model was compiled.

    Attributes:
        cycles: modelled; ``None``: the target is not described, so it was measured.
        latency_ns: modelled, or the measured median of a frame.
        dense_latency_ns: the same of the dense model.
        note: limits of the gain.
    """

    target: str
    unit: str
    cycles: int | None
    latency_ns: int
    dense_latency_ns: int
    note: str = ""


class Deployment(Record, kw_only=True):
    """``deploy.json``: a model that passed its gates, or the user's override, and the targets that run it.

    Attributes:
        digest: SHA-256 of ``model.onnx``.
        forced: whether the user overrode the gates.
    """

    schema_version: int = 1
    model: str
    digest: str
    top1: float
    top1_threshold: float
    cycles_ratio: float
    forced: bool
    targets: tuple[Registration, ...]
