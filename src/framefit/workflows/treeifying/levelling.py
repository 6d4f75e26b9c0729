"""Before trees are looked for: the network with quantised weights, outputs or inputs, and trained to bear that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.treeified import TreeifySettings
from framefit.training.data import Examples
from framefit.training.network import observe, to_torch
from framefit.trees.groups import WEIGHTED
from framefit.trees.levelling import inserted, places
from framefit.trees.quantising import LevelMap, fit_level_map
from framefit.workflows.treeifying.course import Course, Levelled
from framefit.workflows.treeifying.tuning import Tuning, as_used, tuned

__all__ = ["asked", "levelled"]

Array = npt.NDArray[Any]
_EXAMPLES = 512  # that tell thresholds and values: of each 64 values a threshold and more


def asked(settings: TreeifySettings) -> bool:
    """Whether anything but groups is to be quantised."""
    return settings.weights != "float" or settings.scope == "all" or settings.quantise_data


def levelled(
    original: Course,
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
    course = as_used(Course(model, Levelled(weights, _ends(model), tuple(quantisers))))
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
