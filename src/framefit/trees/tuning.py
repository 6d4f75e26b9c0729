"""Training: of an untrained network, of the layers behind a group, and of trees together with the other layers."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.model import Model, listing
from framefit.core.settings import Notify
from framefit.core.tree_results import TreeifySettings
from framefit.errors import DivergedError
from framefit.training.data import Examples
from framefit.training.fine_tune import (
    TRIES,
    Recipe,
    as_progress,
    augmented,
    fine_tune,
    fine_tune_or_keep,
    largest_crop,
    mixed,
    recipe_for,
)
from framefit.training.network import Network, observe, to_torch
from framefit.training.tree_layer import LevelLayer, TreeLayer, levelled_state, quantise_weights
from framefit.trees.groups import WEIGHTED, Span
from framefit.trees.hybrid import HybridModel, QuantisedLayers
from framefit.trees.quantising import LevelMap, fit_level_map, inserted, places

Array = npt.NDArray[Any]
_EPOCHS = 10.0
_REFIT = Recipe(epochs=1e6, steps=30, batch=64, rate=0.01, pad=0, flip=False, bf16=False)
_SPREAD = 256  # examples that show the spread of the trees' inputs
_EPOCH = 8000  # examples; if there are fewer, more are generated, and an epoch is so many of them
_GENERATED, _GENERATED_BYTES = 30_000, 1 << 28  # at most: a network learns more of examples that it sees seldom
_DISTILL = 0.9  # weight of the teacher's answers: high, since the labels of generated examples are its own
_TRAINING_RATE = 0.1  # with one cycle; the networks in docs/training.md were trained with 0.05 to 0.4


@dataclass(frozen=True)
class Tuning:
    """Result of a fine-tuning.

    Attributes:
        hybrid: the network afterwards, or as before if that is better.
        top1: on the validation data.
        seconds: wall clock.
        note: remark on the result.
    """

    hybrid: HybridModel
    top1: float
    seconds: float
    note: str


def trained(
    hybrid: HybridModel,
    examples: Examples,
    held: Examples,
    settings: TreeifySettings,
    checkpoint: Path,
    notify: Notify,
) -> Tuning:
    """Train an untrained network, with straight-through gradients for its trees and levels.

    Raises:
        DivergedError: training diverged even at lower rates.
    """
    network = _hybrid(hybrid, 0, examples.inputs(slice(0, _SPREAD)))
    recipe = recipe_for(
        examples, epochs=settings.train_epochs, least_epochs=_EPOCHS, rate=_TRAINING_RATE, seed=settings.seed
    )
    recipe = msgspec.structs.replace(recipe, bf16=examples.stored.ndim == 4)
    progress = as_progress("training", notify)
    done = fine_tune(network, examples, recipe, checkpoint=checkpoint, progress=progress, tries=TRIES)
    learnt = _learnt(hybrid, network)
    before, after = (float(each.right(held).mean()) for each in (hybrid, learnt))
    words = f"{before:.4f} of the images that decide right before, {after:.4f} after {done.epochs:.1f} epochs"
    return Tuning(learnt, after, done.seconds, f"trained in {done.seconds:.1f} s: {words}")


def refitted(hybrid: HybridModel, span: Span, made: Examples, seen: Array) -> Array:
    """Logits of other values for a group's output, after a few steps of training for the later layers."""
    network = _hybrid(hybrid, span.end.position, made.inputs())
    if network.weights:
        with contextlib.suppress(DivergedError):  # the layers keep their weights
            fine_tune(network, made, _REFIT, tries=TRIES)
    learnt = _learnt(hybrid, network)
    return learnt.through(seen, span.end.position, hybrid.end)


def tuned(
    hybrid: HybridModel,
    teacher: HybridModel,
    examples: Examples,
    held: Examples,
    settings: TreeifySettings,
    checkpoint: Path,
    notify: Notify,
) -> Tuning:
    """Fine-tune the requested parts, trees with straight-through gradients; kept if the validation data confirm it.

    Weights that are zero stay zero.
    """
    before = float(hybrid.right(held).mean())
    if settings.finetune == "none":
        return Tuning(hybrid, before, 0.0, "nothing was fine-tuned")
    spans = [span for span, _ in hybrid.chosen]
    first = 0
    if spans and settings.finetune != "all":
        first = spans[0].start.position if settings.finetune == "trees" else spans[-1].end.position
    answers = None if first and settings.finetune == "tail" else to_torch(teacher.part(first, teacher.end))
    epochs = 1.0  # of the examples, in one of the settings'
    if answers is not None and len(examples) < _EPOCH:
        examples = _taught(teacher, examples, settings.seed)
        epochs = _EPOCH / len(examples)
    if first:
        examples = Examples(hybrid.through(examples.inputs(), 0, first), examples.labels)
    network = _hybrid(hybrid, first, examples.inputs(slice(0, _SPREAD)))
    if not network.weights:
        return Tuning(hybrid, before, 0.0, "no layer behind the trees has weights: nothing was fine-tuned")
    recipe = recipe_for(
        examples,
        epochs=None if settings.finetune_epochs is None else settings.finetune_epochs * epochs,
        least_epochs=_EPOCHS * epochs,
        rate=settings.rate,
        seed=settings.seed,
        pictures=not first,
    )
    recipe = msgspec.structs.replace(
        recipe,
        steps=settings.finetune_batches,
        seconds=settings.finetune_seconds,
        distill_ratio=0.0 if answers is None else _DISTILL,
        bf16=not first and examples.stored.ndim == 4,
    )
    tuning = fine_tune_or_keep(
        *(network, examples, recipe, notify),
        checkpoint=checkpoint,
        masks=_kept(hybrid, network),
        teacher=answers,
    )
    done = tuning.done
    if done is None:
        return Tuning(hybrid, before, 0.0, tuning.note)
    learnt = _learnt(hybrid, network)
    after = float(learnt.right(held).mean())
    words = f"{before:.4f} of the images that decide right before, {after:.4f} after {done.steps} mini-batches"
    words += f"; {tuning.note}" if tuning.note else ""
    if after < before:
        return Tuning(hybrid, before, done.seconds, f"fine-tuning was undone: {words}")
    return Tuning(learnt, after, done.seconds, f"fine-tuning: {words}")


def _taught(teacher: HybridModel, examples: Examples, seed: int) -> Examples:
    """Generate examples labelled by the teacher: the network would memorise the few of the user."""
    most = _GENERATED_BYTES // (4 * math.prod(examples.stored.shape[1:]))  # float32
    x = enlarged(examples, max(_EPOCH, min(_GENERATED, most)), seed)
    answers = teacher.predict(x[len(examples) :])
    labels = answers.reshape(len(answers), -1).argmax(axis=1)
    return Examples(x, np.concatenate([examples.labels, labels]))


def _kept(hybrid: HybridModel, network: Network) -> dict[str, npt.NDArray[np.bool_]]:
    """Where weights may change: zeros of the original network stay, as there are targets that skip them."""
    if hybrid.levels.weights is not None:
        return {}  # zeros of such weights are levels
    arrays = listing(hybrid.model).arrays
    masks = {name: arrays[name] != 0 for name in network.weights if name in arrays and arrays[name].ndim > 1}
    return {name: kept for name, kept in masks.items() if not kept.all()}


def as_used(hybrid: HybridModel) -> HybridModel:
    """The hybrid with its layers' weights quantised as in use."""
    return _learnt(hybrid, _hybrid(hybrid, 0, np.empty(0, np.float32)))


def enlarged(examples: Examples, count: int, seed: int) -> npt.NDArray[np.float32]:
    """Inputs of ``count`` examples: these, and crops of them, or mixtures where they are not images.

    The layers to be replaced give the output for any input, so that no label is needed.
    """
    x, random = examples.inputs(), np.random.default_rng(seed)
    more = count - len(x)
    if more <= 0:
        return x
    if x.ndim != 4:
        return np.concatenate([x, mixed(x, more, random)])
    stored = examples.stored[random.integers(0, len(x), more)]
    cropped = augmented(stored, random, pad=largest_crop(stored.shape[1:]), flip=stored.shape[1] == 3)
    return np.concatenate([x, examples.normalised(cropped)])


def _hybrid(hybrid: HybridModel, first: int, x: Array) -> Network:
    """Layers from ``first`` to the last as a network, with their quantisers; ``x``: its input."""
    network, x = to_torch(hybrid.part(first, hybrid.end)), x[:_SPREAD]
    for span, ensemble in hybrid.chosen:
        if span.start.position >= first:
            read = hybrid.through(x, first, span.start.position)
            network.put(ensemble.input, ensemble.output, ensemble.name, TreeLayer(ensemble, read))
    for quantiser, levels in hybrid.quantisers(first):
        layer = LevelLayer(levels.low, levels.high, levels.values)
        network.put(quantiser.tensor, quantiser.made, quantiser.name, layer)
    if hybrid.levels.weights is not None:
        quantise_weights(network, hybrid.levels.weights, hybrid.levels.spare)
    return network


def _learnt(hybrid: HybridModel, network: Network) -> HybridModel:
    """The hybrid with the weights and trees of a network that was made of a part of it."""
    learnt = hybrid.copy()
    for span, ensemble in hybrid.chosen:
        if ensemble.name in network.parts:
            learnt.replace(span, network.parts[ensemble.name].ensemble())
    prefixes = tuple(f"{name}/" for name in network.parts)
    weights = {name: array for name, array in levelled_state(network).items() if not name.startswith(prefixes)}
    for quantiser in hybrid.levels.quantisers:
        if quantiser.name in network.parts:
            weights |= quantiser.arrays(LevelMap(*network.parts[quantiser.name].levels()))
    learnt.learnt(weights)
    return learnt


_EXAMPLES = 512  # for thresholds and values of levels


def quantises(settings: TreeifySettings) -> bool:
    """Whether the settings quantise anything but groups."""
    return settings.weights != "float" or settings.scope == "all" or settings.quantise_data


def quantise_network(
    original: HybridModel,
    examples: Examples,
    held: Examples,
    settings: TreeifySettings,
    checkpoint: Path,
    notify: Notify,
) -> Tuning:
    """The network with quantised tensors as requested, fine-tuned, as float weights are not adapted to them."""
    notify("quantising the network")
    model, quantisers = original.model, []
    x = examples.sample(_EXAMPLES, settings.seed).inputs()
    tensors = places(model, data=settings.quantise_data, outputs=settings.scope == "all")
    for tensor, levels in _levels(model, tensors, x, settings).items():
        model, quantiser = inserted(model, tensor, levels)
        quantisers.append(quantiser)
    weights = None if settings.weights == "float" else settings.weights
    hybrid = as_used(HybridModel(model, QuantisedLayers(weights, _ends(model), tuple(quantisers))))
    if settings.train == "hybrid":
        return Tuning(hybrid, float(hybrid.right(held).mean()), 0.0, "the quantised network is trained with the trees")
    return tuned(hybrid, original, examples, held, settings, checkpoint, notify)


def _levels(model: Model, tensors: tuple[str, ...], x: Array, settings: TreeifySettings) -> dict[str, LevelMap]:
    """Thresholds and values of tensors, from examples."""
    makers = {node.outputs[0].name: node.name for nodes in model.nodes for node in nodes}
    seen: dict[str, list[Array]] = {makers[tensor]: [] for tensor in tensors if tensor in makers}
    observe(to_torch(model), x, lambda name, _, made: seen[name].append(made.numpy()), list(seen))
    count = 3 if settings.quantise == "ternary" else 2
    maps = {}
    for tensor in tensors:
        made = np.concatenate(seen[makers[tensor]]) if tensor in makers else x
        rows = np.moveaxis(made, 1, -1).reshape(-1, made.shape[1])
        rows = rows[:: max(1, len(rows) // (_EXAMPLES * 16))]
        maps[tensor] = fit_level_map(rows, 3 if count == 3 else 2, settings.threshold)
    return maps


def _ends(model: Model) -> frozenset[str]:
    """Names of the weights of the first and of the last layer."""
    weighted = [node for nodes in model.nodes for node in nodes if node.op in WEIGHTED]
    names = [operand.name for node in (weighted[0], weighted[-1]) for operand in node.inputs[1:] if operand]
    return frozenset(names)
