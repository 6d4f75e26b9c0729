"""Training: a network that is not trained yet, the layers behind a group, and trees with all that is around them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.model import Model, listing
from framefit.core.tree_results import TreeifySettings
from framefit.errors import DivergedError
from framefit.training.data import Examples
from framefit.training.fine_tune import TRIES, Progress, Recipe, augmented, fine_tune, mixed, rates
from framefit.training.network import Network, observe, to_torch
from framefit.training.tree_layer import LevelLayer, TreeLayer, levelled_state, quantise_weights
from framefit.trees.groups import WEIGHTED, Span
from framefit.trees.hybrid import HybridModel, Levelled, lost
from framefit.trees.quantising import LevelMap, fit_level_map, inserted, places

__all__ = ["Tuning", "as_used", "asked", "enlarged", "levelled", "refitted", "trained", "tuned"]


Array = npt.NDArray[Any]
_EPOCHS, _BATCHES = 10.0, 1000
_BATCH, _LEAST_BATCHES = 128, 20  # examples in a mini-batch; mini-batches in an epoch
_CROP = 8  # a picture is cropped by at most this part of its height (CIFAR-10: 4 of 32)
_REFIT = Recipe(epochs=1e6, steps=30, batch=64, rate=0.01, pad=0, flip=False, bf16=False)
_SPREAD = 256  # examples that tell the spread of what trees read
_ENOUGH = 8000  # examples; of fewer more are made
_DISTILL = 0.9  # weight of the teacher's answers: most, for labels of made examples are its own
_TRAINING_RATE = 0.1  # with one cycle; docs/training.md's networks learnt with 0.05 to 0.4


@dataclass(frozen=True)
class Tuning:
    """What a fine-tuning came to.

    Attributes:
        course: the network then, or as it was where that is better.
        top1: of the validation data.
        seconds: of wall clock.
        note: how it went, in words.
    """

    course: HybridModel
    top1: float
    seconds: float
    note: str


def trained(
    course: HybridModel,
    examples: Examples,
    held: Examples,
    settings: TreeifySettings,
    checkpoint: Path,
    say: Callable[[str], None],
) -> Tuning:
    """Train a network that was not trained yet, straight through whatever trees and levels are in it.

    Args:
        course: the network; stays as it is.
        examples: of the training data.
        held: of the validation data.
        settings: for how long.
        checkpoint: where the training is kept, so that it goes on.
        say: told how it goes.

    Raises:
        DivergedError: at lower rates, too.
    """
    network = _hybrid(course, 0, examples.inputs(slice(0, _SPREAD)))
    recipe = _recipe(examples, settings.train_epochs, _TRAINING_RATE, settings.seed, pictures=True)
    progress = _told(say, "training")
    done = fine_tune(network, examples, recipe, checkpoint=checkpoint, progress=progress, tries=TRIES)
    other = _learnt(course, network)
    before, after = (float(one.right(held).mean()) for one in (course, other))
    words = f"{before:.4f} of the validation data right before, {after:.4f} after {done.epochs:.1f} epochs"
    return Tuning(other, after, done.seconds, f"trained in {done.seconds:.1f} s: {words}")


def refitted(course: HybridModel, span: Span, made: Examples, seen: Examples) -> float:
    """Accuracy where a group gives what is told, once the layers behind it have had a few steps to get used to it.

    Args:
        course: the network; stays as it is.
        span: the group.
        made: what it gives on training data; seen: on validation data.
        seen: see ``made``.
    """
    network = _hybrid(course, span.end.position, made.stored)
    if network.weights:
        with contextlib.suppress(DivergedError):  # the layers stay as they are
            fine_tune(network, made, _REFIT, tries=TRIES)
    other = _learnt(course, network)
    logits = other.through(seen.stored, span.end.position, course.end)
    return float((logits.reshape(len(logits), -1).argmax(axis=1) == seen.labels).mean())


def tuned(
    course: HybridModel,
    teacher: HybridModel,
    examples: Examples,
    held: Examples,
    settings: TreeifySettings,
    checkpoint: Path,
    say: Callable[[str], None],
) -> Tuning:
    """Train what was asked for, trees with straight-through gradients; kept where the validation data say so.

    Weights that are zero stay zero.

    Args:
        course: the network with trees in it, or quantised otherwise; stays as it is.
        teacher: the network without that.
        examples: of the training data.
        held: of the validation data.
        settings: what learns, and for how long.
        checkpoint: where the training is kept, so that it goes on.
        say: told how it goes.
    """
    right = course.right(held)
    before = float(right.mean())
    if settings.finetune == "none":
        return Tuning(course, before, 0.0, "nothing was fine-tuned")
    spans = [span for span, _ in course.chosen]
    first = 0
    if spans and settings.finetune != "all":
        first = spans[0].start.position if settings.finetune == "trees" else spans[-1].end.position
    answers = None if first and settings.finetune == "tail" else to_torch(teacher.part(first, teacher.end))
    if answers is not None and len(examples) < _ENOUGH:
        examples = _taught(teacher, examples, settings.seed)
    if first:
        examples = Examples(course.through(examples.inputs(), 0, first), examples.labels)
    network = _hybrid(course, first, examples.inputs(slice(0, _SPREAD)))
    if not network.weights:
        return Tuning(course, before, 0.0, "no layer behind the trees has weights: nothing was fine-tuned")
    epochs = settings.finetune_epochs
    if epochs is None:
        epochs = max(_EPOCHS, _BATCHES * _batch(examples) / len(examples))
    recipe = _recipe(examples, epochs, settings.rate, settings.seed, pictures=not first)
    recipe = msgspec.structs.replace(
        recipe,
        steps=settings.finetune_batches,
        seconds=settings.finetune_seconds,
        distill_ratio=0.0 if answers is None else _DISTILL,
    )
    try:
        done = fine_tune(
            network,
            examples,
            recipe,
            masks=_kept(course, network),
            teacher=answers,
            checkpoint=checkpoint,
            progress=_told(say, "fine-tuning"),
            tries=TRIES,
        )
    except DivergedError as error:
        tried = ", ".join(f"{rate:g}" for rate in rates(recipe))
        return Tuning(course, before, 0.0, f"not fine-tuned: that diverged at rates of {tried} ({error.what})")
    other = _learnt(course, network)
    now = other.right(held)
    after = float(now.mean())
    words = f"{before:.4f} of the validation data right before, {after:.4f} after {done.steps} mini-batches"
    if done.rate < recipe.rate:
        words += f"; diverged at a rate of {recipe.rate:g}, done at {done.rate:g}"
    if lost(right, now) > 0:
        return Tuning(course, before, done.seconds, f"fine-tuning was taken back: {words}")
    return Tuning(other, after, done.seconds, f"fine-tuning: {words}")


def _taught(teacher: HybridModel, examples: Examples, seed: int) -> Examples:
    """More examples, labelled by the teacher: few of the user's own would be learnt by heart."""
    x = enlarged(examples, _ENOUGH, seed)
    answers = teacher.predict(x[len(examples) :])
    labels = answers.reshape(len(answers), -1).argmax(axis=1)
    return Examples(x, np.concatenate([examples.labels, labels]))


def _kept(course: HybridModel, network: Network) -> dict[str, npt.NDArray[np.bool_]]:
    """Where weights may learn: zeros that a network came with stay, for there is a target that skips them."""
    if course.levels.weights is not None:
        return {}  # their zeros are levels
    arrays = listing(course.model).arrays
    found = {name: arrays[name] != 0 for name in network.weights if name in arrays and arrays[name].ndim > 1}
    return {name: kept for name, kept in found.items() if not kept.all()}


def as_used(course: HybridModel) -> HybridModel:
    """The course with its layers' weights in the levels that they are used in."""
    return _learnt(course, _hybrid(course, 0, np.empty(0, np.float32)))


def enlarged(examples: Examples, count: int, seed: int) -> npt.NDArray[np.float32]:
    """Inputs of ``count`` examples: these, and crops of them, or mixtures where they are no pictures.

    The layers that trees stand for say what becomes of any input, so that no label is needed.
    """
    x, random = examples.inputs(), np.random.default_rng(seed)
    more = count - len(x)
    if more <= 0:
        return x
    if x.ndim != 4:
        return np.concatenate([x, mixed(x, more, random)])
    stored = examples.stored[random.integers(0, len(x), more)]
    cropped = augmented(stored, random, pad=stored.shape[2] // _CROP, flip=stored.shape[1] == 3)
    return np.concatenate([x, examples.normalised(cropped)])


def _hybrid(course: HybridModel, first: int, x: Array) -> Network:
    """Layers ``first`` to the last as a network, all that is quantised with it; ``x``: what it reads."""
    network, x = to_torch(course.part(first, course.end)), x[:_SPREAD]
    for span, ensemble in course.chosen:
        if span.start.position >= first:
            read = course.through(x, first, span.start.position)
            network.put(ensemble.input, ensemble.output, ensemble.name, TreeLayer(ensemble, read))
    for quantiser, levels in course.quantisers(first):
        layer = LevelLayer(levels.low, levels.high, levels.values)
        network.put(quantiser.tensor, quantiser.made, quantiser.name, layer)
    if course.levels.weights is not None:
        quantise_weights(network, course.levels.weights, course.levels.spare)
    return network


def _learnt(course: HybridModel, network: Network) -> HybridModel:
    """The course with the weights and trees of a network that was made of a part of it."""
    other = course.copy()
    for span, ensemble in course.chosen:
        if ensemble.name in network.parts:
            other.replace(span, network.parts[ensemble.name].ensemble())
    own = tuple(f"{name}/" for name in network.parts)
    weights = {name: array for name, array in levelled_state(network).items() if not name.startswith(own)}
    for quantiser in course.levels.quantisers:
        if quantiser.name in network.parts:
            weights |= quantiser.arrays(LevelMap(*network.parts[quantiser.name].levels()))
    other.learnt(weights)
    return other


def _recipe(examples: Examples, epochs: float, rate: float, seed: int, *, pictures: bool) -> Recipe:
    shape = examples.stored.shape[1:]
    image = pictures and len(shape) == 3
    return Recipe(
        epochs=epochs,
        batch=_batch(examples),
        rate=rate,
        pad=shape[1] // _CROP if image else 0,
        flip=image and shape[0] == 3,
        bf16=image,
        seed=seed,
    )


def _batch(examples: Examples) -> int:
    return max(min(_BATCH, len(examples) // _LEAST_BATCHES), 2)


def _told(say: Callable[[str], None], what: str) -> Callable[[Progress], None]:
    return lambda progress: say(
        f"{what}: {100 * progress.ratio:.0f} %, epoch {progress.epoch:.1f}, loss {progress.loss:.3f}"
    )


_EXAMPLES = 512  # that tell thresholds and values: of each 64 values a threshold and more


def asked(settings: TreeifySettings) -> bool:
    """Whether anything but groups is to be quantised."""
    return settings.weights != "float" or settings.scope == "all" or settings.quantise_data


def levelled(
    original: HybridModel,
    examples: Examples,
    held: Examples,
    settings: TreeifySettings,
    checkpoint: Path,
    say: Callable[[str], None],
) -> Tuning:
    """The network with everything quantised that was asked for, fine-tuned: float weights behind quantised ones.

    Args:
        original: the network, which teaches.
        examples: of the training data.
        held: of the validation data.
        settings: what is quantised; how it is fine-tuned.
        checkpoint: where the training is kept, so that it goes on.
        say: told how it goes.
    """
    say("quantising the network")
    model, quantisers = original.model, []
    x = examples.sample(_EXAMPLES, settings.seed).inputs()
    found = places(model, data=settings.quantise_data, outputs=settings.scope == "all")
    for tensor, levels in _levels(model, found, x, settings).items():
        model, quantiser = inserted(model, tensor, levels)
        quantisers.append(quantiser)
    weights = None if settings.weights == "float" else settings.weights
    course = as_used(HybridModel(model, Levelled(weights, _ends(model), tuple(quantisers))))
    if settings.train == "hybrid":
        return Tuning(course, float(course.right(held).mean()), 0.0, "it learns with the trees")
    return tuned(course, original, examples, held, settings, checkpoint, say)


def _levels(model: Model, tensors: tuple[str, ...], x: Array, settings: TreeifySettings) -> dict[str, LevelMap]:
    """Thresholds and values of tensors, by what examples make there."""
    makers = {node.outputs[0].name: node.name for nodes in model.nodes for node in nodes}
    seen: dict[str, list[Array]] = {makers[tensor]: [] for tensor in tensors if tensor in makers}
    observe(to_torch(model), x, lambda name, _, made: seen[name].append(made.numpy()), list(seen))
    count = 3 if settings.quantise == "ternary" else 2
    found = {}
    for tensor in tensors:
        made = np.concatenate(seen[makers[tensor]]) if tensor in makers else x
        rows = np.moveaxis(made, 1, -1).reshape(-1, made.shape[1])
        rows = rows[:: max(1, len(rows) // (_EXAMPLES * 16))]
        found[tensor] = fit_level_map(rows, 3 if count == 3 else 2, settings.threshold)
    return found


def _ends(model: Model) -> frozenset[str]:
    """Weights of the first and of the last layer."""
    weighted = [node for nodes in model.nodes for node in nodes if node.op in WEIGHTED]
    names = [operand.name for node in (weighted[0], weighted[-1]) for operand in node.inputs[1:] if operand]
    return frozenset(names)
