"""From an assignment to a model: fine-tuning, the final figures, the gates.

Compiling a model for its targets, and registering it there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model, listing
from framefit.core.run_record import LayerCycles
from framefit.core.sparsity import (
    Configuration,
    DenseModel,
    Deployment,
    LayerSparsity,
    Registration,
    SparsifySettings,
    SparsityResult,
)
from framefit.core.target import Target, resolve_target
from framefit.devices.measure import medians_ns
from framefit.devices.npu.costs import pricing
from framefit.errors import DivergedError
from framefit.sparsity.evaluation import quick
from framefit.sparsity.layers import WeightLayer
from framefit.sparsity.search import Arm
from framefit.sparsity.solver import Ledger
from framefit.sparsity.subject import Prices, Subject
from framefit.training.data import Examples
from framefit.training.evaluate import Accuracy, evaluate
from framefit.training.fine_tune import TRIES, Progress, Recipe, fine_tune, fingerprint, rates
from framefit.training.network import Network, load_state, state

__all__ = [
    "Tuning",
    "check_targets",
    "configuration",
    "dense_model",
    "deployment",
    "joined",
    "layer_table",
    "learnt_before",
    "measured",
    "recipe",
    "tuned",
    "weight_masks",
]


Array = npt.NDArray[Any]
_EPOCHS, _STEPS = 5.0, 1000
_BATCH, _LEAST_BATCHES = 128, 20  # examples in a mini-batch; mini-batches in an epoch
_MARK = 12  # digits of what a training is told by
_CROP = 8  # a picture is cropped by at most this part of its height (CIFAR: 4 of 32)


@dataclass(frozen=True)
class Tuning:
    """What a fine-tuning came to.

    Attributes:
        epochs: 0 where the weights from before stayed.
        reasons: what a result says of it, as sentences: that it diverged, and what was done then.
    """

    epochs: float
    reasons: tuple[str, ...] = ()


def recipe(settings: SparsifySettings, examples: Examples) -> Recipe:
    """How a sparse network is fine-tuned: crops by the picture's size, mirrored only where it has colours.

    Args:
        settings: epochs, rate, decay.
        examples: to train on; few of them are seen more often.
    """
    shape = examples.stored.shape[1:]
    image = len(shape) == 3
    batch = max(min(_BATCH, len(examples) // _LEAST_BATCHES), 2)
    enough = _STEPS * batch / max(len(examples), 1)
    return Recipe(
        epochs=max(_EPOCHS, enough) if settings.finetune_epochs is None else settings.finetune_epochs,
        batch=batch,
        rate=settings.rate,
        decay=settings.decay,
        distill_ratio=settings.distill_ratio,
        pad=shape[1] // _CROP if image else 0,
        flip=image and shape[0] == 3,
        seed=settings.seed,
    )


def joined(one: Examples, other: Examples) -> Examples:
    """Both; as stored where they are stored alike."""
    labels = np.concatenate([one.labels, other.labels])
    if one.scaling == other.scaling and one.stored.dtype == other.stored.dtype:
        return replace(one, stored=np.concatenate([one.stored, other.stored]), labels=labels)
    return Examples(np.concatenate([one.inputs(), other.inputs()]), labels)


def learnt_before(subject: Subject, validated: Accuracy, ledger: Ledger) -> bool:
    """Whether the dense network is no worse on the validation data than on its training data.

    Then it may have been trained on both, for the user's split is not ours: a fine-tuning on the training data
    alone would unlearn the others, and look worse than it is. (Where it merely has not learnt its training data by
    heart, a few epochs on both do not change that.)

    Args:
        subject: data and the dense network.
        validated: its accuracy on the validation data, :func:`~framefit.sparsity.evaluation.quick`.
        ledger: gets as many images.
    """
    count = len(subject.data.validation)
    with quick():
        found = evaluate(subject.network(), subject.data.train.sample(count, 0))
    ledger.forwarded(found.images)
    return validated.top1 >= found.top1_interval[0]


def tuned(
    subject: Subject,
    network: Network,
    settings: SparsifySettings,
    ledger: Ledger,
    folder: Path,
    say: Callable[[str], None],
    examples: Examples | None = None,
    validation: Examples | None = None,
) -> Tuning:
    """Fine-tune in place; what is zero stays zero. The weights from before stay where it did harm, or diverged.

    Args:
        subject: data and the dense network, which teaches.
        network: sparse.
        settings: epochs and rate.
        ledger: gets the images of the judgement on the validation data.
        folder: of the search. A training that was interrupted goes on from a file there, whose name says of what.
        say: told of progress.
        examples: to train on; default: the training data.
        validation: that decides whether the new weights are better; default: the subject's.

    Raises:
        KeyboardInterrupt: by the user; the checkpoint is written, the network may be anywhere between.
    """
    learnt = subject.data.train if examples is None else examples
    chosen = recipe(settings, learnt)
    if not chosen.epochs:
        return Tuning(0.0)
    before, validation = state(network), validation or subject.data.validation
    masks = weight_masks(subject.layers, before)
    mark = fingerprint(before, chosen, masks, len(learnt))
    with quick():
        known = evaluate(network, validation)

    def progress(now: Progress) -> None:
        say(f"fine-tuning: epoch {now.epoch:.1f} of {chosen.epochs:g}, loss {now.loss:.3f}")

    ledger.forwarded(len(validation))
    try:
        done = fine_tune(
            network,
            learnt,
            chosen,
            masks=masks,
            teacher=subject.network() if chosen.distill_ratio else None,
            progress=progress,
            checkpoint=folder / f"finetune-{mark[:_MARK]}.npz",
            tries=TRIES,
        )
    except DivergedError as error:
        tried = ", ".join(f"{rate:g}" for rate in rates(chosen))
        return Tuning(0.0, (f"not fine-tuned: that diverged at rates of {tried} ({error.what})",))
    repeated = f"fine-tuning diverged at a rate of {chosen.rate:g}, and was done at {done.rate:g}"
    reasons = (repeated,) if done.rate < chosen.rate else ()
    with quick():
        found = evaluate(network, validation)
    ledger.forwarded(len(validation))
    if found.top1 < known.top1_interval[0]:  # not by a little: the model may have been trained on these data
        load_state(network, before)
        return Tuning(0.0, reasons)
    return Tuning(done.epochs, reasons)


def weight_masks(layers: tuple[WeightLayer, ...], arrays: Mapping[str, Array]) -> dict[str, npt.NDArray[np.bool_]]:
    """Where the weights of pruned layers are kept."""
    return {layer.weight: arrays[layer.weight] != 0 for layer in layers if not arrays[layer.weight].all()}


def dense_model(subject: Subject) -> tuple[DenseModel, tuple[LayerSparsity, ...]]:
    """The figures of the model as it was given, on the test data."""
    found = evaluate(subject.network(), subject.data.test)
    costs = subject.prices.of(subject.model, subject.zeros)
    dense = DenseModel(
        top1=found.top1,
        top1_interval=found.top1_interval,
        top5=found.top5,
        cycles=sum(cost.cycles for cost in costs.values()),
        parameters=subject.model.parameters,
        images=found.images,
    )
    return dense, layer_table(subject, subject.model, subject.zeros, costs)


def configuration(
    subject: Subject,
    arm: Arm,
    model: Model,
    zeros: Mapping[str, float],
    before: float,
    found: Accuracy,
    epochs: float,
    dense: DenseModel,
) -> Configuration:
    """A row of the table of results; see :class:`~framefit.core.sparsity.Configuration`."""
    costs = subject.prices.of(model, zeros)
    table = layer_table(subject, model, zeros, costs)
    arrays = listing(model).arrays
    weights = [arrays[layer.weight] for layer in subject.layers]
    elements = sum(layer.facts.parameters for layer in subject.layers)
    left = sum(int(np.count_nonzero(weight)) for weight in weights)
    cycles = sum(cost.cycles for cost in costs.values())
    return Configuration(
        solver=arm.found.solver,
        hardware=arm.hardware,
        validation_top1=arm.found.accuracy,
        top1_before_finetune=before,
        top1=found.top1,
        top1_interval=found.top1_interval,
        top5=found.top5,
        parameters=model.parameters,
        zeros=sum(weight.size for weight in weights) - left,
        sparsity_ratio=1 - left / elements,
        cycles=cycles,
        cycles_ratio=cycles / max(dense.cycles, 1),
        difference_top1=100 * (found.top1 - dense.top1),
        finetune_epochs=epochs,
        layers=table,
    )


def layer_table(
    subject: Subject, model: Model, zeros: Mapping[str, float], costs: Mapping[str, LayerCycles]
) -> tuple[LayerSparsity, ...]:
    """Each layer with weights: what is zero in it and in what it reads, and what it costs."""
    arrays = listing(model).arrays
    dense = subject.prices.of(subject.model, subject.zeros)
    total = max(sum(cost.cycles for cost in costs.values()), 1)
    return tuple(
        LayerSparsity(
            name=layer.name,
            sparsity_ratio=1 - int(np.count_nonzero(arrays[layer.weight])) / layer.facts.parameters,
            activation_sparsity_ratio=zeros[layer.name],
            cycles=costs[layer.name].cycles,
            share_ratio=costs[layer.name].cycles / total,
            cycles_ratio=costs[layer.name].cycles / max(dense[layer.name].cycles, 1),
        )
        for layer in subject.layers
    )


def check_targets(model: Model, targets: Sequence[str]) -> None:
    """Refuse, before anything is searched for, what a model could not be deployed to in the end.

    Args:
        model: the dense one.
        targets: names, or paths of ``target.toml`` files; "cpu" is this machine.

    Raises:
        InputError: no such target, or one that does not run the model.
    """
    for name in targets:
        if resolve_target(name).kind != "ort":
            pricing(name, model).layers(model)


def deployment(
    subject: Subject, result: SparsityResult, path: Path, zeros: Mapping[str, float], targets: Sequence[str]
) -> Deployment:
    """Compile a model for each target, and say what a frame takes there beside the dense one.

    Args:
        subject: what it was made from.
        result: whose chosen model it is.
        path: of the model's file.
        zeros: weight layer -> part of what it reads that is zero.
        targets: names, or paths of ``target.toml`` files; "cpu" is this machine.

    Raises:
        InputError: no such target, or one that does not run the model.
    """
    assert result.chosen is not None
    row = result.configurations[result.chosen]
    model = Model.load(path)
    return Deployment(
        model=path.name,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        top1=row.top1,
        top1_threshold=result.threshold.top1,
        cycles_ratio=row.cycles_ratio,
        forced=result.decision != "deploy",
        targets=tuple(_registered(name, subject, result, model, zeros) for name in targets),
    )


def _registered(
    name: str, subject: Subject, result: SparsityResult, model: Model, zeros: Mapping[str, float]
) -> Registration:
    target = resolve_target(name)
    if target.kind == "ort":
        return _measured(target, subject.model, result, model)
    source = pricing(name, subject.model)
    prices = Prices(target, source, subject.model, subject.written, subject.layers)
    sparse, dense = (
        sum(cost.latency_ns for cost in prices.of(one, part).values())
        for one, part in ((model, zeros), (subject.model, subject.zeros))
    )
    gained = "" if sparse < dense else "; no gain: it computes these zeros, too"
    return Registration(
        target=target.name,
        unit=source.unit.name,
        cycles=prices.total(model, zeros),
        latency_ns=sparse,
        dense_latency_ns=dense,
        note=f"modelled cycles: nothing ran on this target{gained}",
    )


def _measured(target: Target, dense: Model, result: SparsityResult, model: Model) -> Registration:
    sparse, full = measured(model, dense)
    note = f"measured: {sparse / max(full, 1):.2f} of the dense model's latency"
    if result.pattern == "channel":
        assert result.chosen is not None
        modelled = result.configurations[result.chosen].cycles_ratio
        note += f", {modelled:.2f} of its cycles as modelled for {result.target}"
    else:
        note = f"no gain in ONNX Runtime: it multiplies zeros, too ({note})"
    return Registration(
        target=target.name, unit=target.units[0].name, cycles=None, latency_ns=sparse, dense_latency_ns=full, note=note
    )


def measured(model: Model, dense: Model) -> tuple[int, int]:
    """Median latencies of two models on this machine, measured in turn, in nanoseconds."""
    sparse_ns, dense_ns = medians_ns([model, dense])
    return sparse_ns, dense_ns
