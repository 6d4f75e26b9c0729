"""Accuracy of a network, and the statistics of its batch normalisations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record
from framefit.errors import InputError
from framefit.stats import wilson
from framefit.training.data import Examples
from framefit.training.extra import torch
from framefit.training.network import Network

__all__ = ["Accuracy", "divergence", "evaluate", "reestimate", "temperature"]


Array = npt.NDArray[Any]
Predict = Callable[[npt.NDArray[np.float32]], Array]


class Accuracy(Record, kw_only=True):
    """Accuracy of a network.

    Attributes:
        top1: part of the images whose class was the likeliest.
        top1_interval: 90 %, Wilson's.
        top5: part of the images whose class was among the five likeliest (or all, if there are fewer).
        top5_interval: 90 %, Wilson's.
        loss: mean cross-entropy, in nats.
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
            from inputs (float32, n x ...) to logits or probabilities (n x classes), of ONNX Runtime for example.
        examples: the data for the evaluation.
        batch: examples at once.

    Raises:
        InputError: there are no examples, or the outputs are not a row of classes for each example.
    """
    if not len(examples):
        raise InputError("no examples to evaluate on", where="data", remedy="give some examples")
    started = time.perf_counter()
    first = among = 0
    loss = 0.0
    for logits, labels in _predicted(network, examples, batch):
        rank = _ranks(logits, labels)
        first += int((rank == 0).sum())
        among += int((rank < 5).sum())
        loss += _cross_entropy(logits, labels)
    count = len(examples)
    return Accuracy(
        top1=first / count,
        top1_interval=wilson(first, count),
        top5=among / count,
        top5_interval=wilson(among, count),
        loss=loss / count,
        images=count,
        seconds=time.perf_counter() - started,
    )


def right(network: Any, examples: Examples, *, batch: int = 250) -> npt.NDArray[np.bool_]:
    """For each example whether its class is the likeliest; arguments and errors as for :func:`evaluate`."""
    return np.concatenate([_ranks(logits, labels) == 0 for logits, labels in _predicted(network, examples, batch)])


def temperature(logits: Any) -> float:
    """Standard deviation of logits over the classes, on average: divided by it, they tell classes apart at any scale.

    At a temperature of 1 a network that is certain of everything shows no difference, whatever is done to it.

    Args:
        logits: n x classes, float32, a tensor.
    """
    spread = float(logits.std(dim=1, correction=0).mean())
    return spread if spread > 0 else 1.0


def divergence(expected: Any, logits: Any, heat: float) -> float:
    """Mean Kullback-Leibler divergence of classes at a temperature, in nats.

    Hinton et al., 2015, "Distilling the Knowledge in a Neural Network", section 2.

    Args:
        expected: logits that are right, n x classes, float32, a tensor.
        logits: to be compared with them.
        heat: temperature of both.
    """
    soft, other = (torch.nn.functional.log_softmax(part.double() / heat, dim=1) for part in (expected, logits))
    return float(torch.nn.functional.kl_div(other, soft, reduction="batchmean", log_target=True))


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


def _predicted(network: Any, examples: Examples, batch: int) -> Iterator[tuple[Array, npt.NDArray[np.int64]]]:
    """Logits and labels of each batch, in evaluation mode."""
    predict = _forward(network) if isinstance(network, torch.nn.Module) else network
    training = getattr(network, "training", False)
    if training:
        network.eval()
    try:
        for x, labels in examples.batches(batch):
            yield _rows(predict(x), len(x), int(labels.max())), labels
    finally:
        if training:
            network.train()


def _ranks(logits: Array, labels: npt.NDArray[np.int64]) -> Array:
    """Rank of the right class, from 0; a tie with it counts as an error."""
    ranks: Array = (logits >= logits[np.arange(len(logits)), labels][:, None]).sum(axis=1) - 1
    return ranks


def _forward(network: Any) -> Predict:
    compute = network.logits if isinstance(network, Network) else network

    def predict(x: npt.NDArray[np.float32]) -> Array:
        with torch.inference_mode():
            logits: Array = compute(torch.from_numpy(x)).float().numpy()
        return logits

    return predict


def _rows(outputs: Array, count: int, label: int) -> Array:
    rows = np.array(outputs, np.float32)
    if rows.ndim > 2 and math.prod(rows.shape[2:]) == 1:
        rows = rows.reshape(rows.shape[:2])
    if rows.ndim != 2 or len(rows) != count or rows.shape[1] <= label:
        raise InputError(
            f"{count} examples with labels up to {label} gave outputs of shape {rows.shape}",
            where="network",
            remedy="give a classifier with an output for each class",
        )
    most = float(np.finfo(np.float32).max)
    rows[np.isnan(rows)] = -most  # a network that pruning has broken is wrong, not an error
    return np.clip(rows, -most, most)


def _cross_entropy(logits: Array, labels: npt.NDArray[np.int64]) -> float:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return float((np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]).sum())
