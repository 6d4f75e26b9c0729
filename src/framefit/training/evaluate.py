"""Accuracy of a network, and the statistics of its batch normalisations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record
from framefit.errors import InputError
from framefit.stats import paired_interval, wilson
from framefit.training.data import Examples, at_once
from framefit.training.extra import torch
from framefit.training.network import Network
from framefit.training.tasks import Task

__all__ = ["Accuracy", "evaluate", "reestimate"]


Array = npt.NDArray[Any]
_NUMBERS = 1 << 24  # of inputs at once: what a network keeps of them is several times as much


class Accuracy(Record, kw_only=True):
    """Accuracy of a network.

    Attributes:
        top1: part of the images whose class was the likeliest; where there are no classes, the mean score, see
            :class:`~framefit.training.tasks.Task`.
        top1_interval: 90 %, Wilson's.
        top5: part of the images whose class was among the five likeliest (or all, if there are fewer).
        top5_interval: 90 %, Wilson's.
        loss: mean loss of the task: of classes the cross-entropy, in nats.
        images: number of images.
        seconds: duration of the evaluation.
    """

    top1: float
    top1_interval: tuple[float, float]
    top5: float
    top5_interval: tuple[float, float]
    loss: float
    images: int
    seconds: float


def evaluate(network: Any, examples: Examples, *, batch: int = 250) -> Accuracy:
    """Evaluate a network with forward passes in evaluation mode and float32.

    Args:
        network: a :class:`~framefit.training.network.Network`, any other ``torch.nn.Module``, or a function
            from inputs (float32, n x ...) to outputs, of ONNX Runtime for example: to a tuple of all, or to the first
            one, where that has logits or probabilities (n x classes).
        examples: the data for the evaluation.
        batch: examples at once.

    Raises:
        InputError: there are no examples, or the outputs are not those of the task.
    """
    if not len(examples):
        raise InputError("no examples to evaluate on", where="data", remedy="give some examples")
    started = time.perf_counter()
    task, loss = examples.task, 0.0
    first: list[Array] = []
    among: list[Array] = []
    for answers, labels in _predicted(network, examples, batch):
        first.append(task.scores(answers, labels))
        among.append(task.among_five(answers, labels))
        loss += task.loss(answers, labels)
    count = len(examples)
    (top1, top1_interval), (top5, top5_interval) = (_mean(np.concatenate(each)) for each in (first, among))
    return Accuracy(
        top1=top1,
        top1_interval=top1_interval,
        top5=top5,
        top5_interval=top5_interval,
        loss=loss / count,
        images=count,
        seconds=time.perf_counter() - started,
    )


def scores(network: Any, examples: Examples, *, batch: int = 250) -> Array:
    """Score of each example, 0 to 1; of classes whether it is right. Arguments and errors as for :func:`evaluate`."""
    task = examples.task
    return np.concatenate([task.scores(answers, labels) for answers, labels in _predicted(network, examples, batch)])


def _mean(each: Array) -> tuple[float, tuple[float, float]]:
    """Mean score with its 90 % interval."""
    if each.dtype == bool:
        return float(each.mean()), wilson(int(each.sum()), len(each))
    low, high = paired_interval(1 - each)
    return float(each.mean()), (max(1 - high, 0.0), min(1 - low, 1.0))


def reestimate(network: Network, x: npt.NDArray[np.float32], *, batch: int = 128) -> None:
    """Set the running statistics of all batch normalisations to those of these inputs, in place.

    After weights were changed the old statistics are wrong; a few hundred examples correct them without gradients
    (Li et al., 2020, "EagleEye: Fast Sub-net Evaluation for Efficient Neural Network Pruning", adaptive batch
    normalisation).

    Args:
        network: a network with or without batch normalisation.
        x: inputs, N x ...; at least 2.
        batch: inputs at once; statistics are averaged over batches.
    """
    norms = list(network.norms.values())
    if not norms:
        return
    if len(x) < 2:
        raise InputError(f"{len(x)} inputs are too few for statistics", where="data", remedy="give a few hundred")
    training, momenta = network.training, [norm.momentum for norm in norms]
    network.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    batches = max(len(x) // batch, 1)
    try:
        with torch.no_grad():
            for part in np.array_split(x, batches):
                network(torch.from_numpy(np.ascontiguousarray(part)))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        network.train(training)


def _predicted(network: Any, examples: Examples, batch: int) -> Iterator[tuple[Array, Array]]:
    """Answers and labels of each batch, in evaluation mode."""
    module, training = isinstance(network, torch.nn.Module), getattr(network, "training", False)
    if training:
        network.eval()
    try:
        for x, labels in examples.batches(at_once(examples.stored.shape[1:], batch, _NUMBERS)):
            if module:
                yield _forward(network, examples.task, x), labels
            else:
                yield examples.task.read(network(x), len(x), labels), labels
    finally:
        if training:
            network.train()


def _forward(network: Any, task: Task, x: npt.NDArray[np.float32]) -> Array:
    with torch.inference_mode():
        answers: Array = task.answers(network, torch.from_numpy(x)).float().numpy()
    return answers
