"""Statistics of each layer on calibration data, for the database. Needs the extra ``train``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.sparsity.layers import WeightLayer
from framefit.sparsity.problem import Floats
from framefit.training.campaign import Ledger
from framefit.training.data import at_once
from framefit.training.extra import torch
from framefit.training.network import Network, observe
from framefit.training.tasks import Classes, Task

Tensor = Any  # torch.Tensor
functional = torch.nn.functional
_MOST_COLUMNS = 1024  # positions of an image that enter a Hessian: neighbours are much alike
_BACKWARD = 2  # forward passes that a backward pass counts as in the ledger
_BATCH = 64
_NUMBERS = 1 << 21  # of inputs at once: gradients need all that a network makes of them


@dataclass
class LayerStatistics:
    """Statistics of one layer.

    Attributes:
        hessian: G x K x K, float64: mean over images of the sum over positions of x x^T, x being the inputs of
            one sum.
        importance: G x n: half the mean square of the loss's gradient by that output; times the squared
            error of the output it estimates the :meth:`~framefit.training.tasks.Task.divergence` from the dense
            network's answers (the diagonal of the Fisher information; Theis et al.,
            2018, "Faster gaze prediction with dense networks and Fisher pruning").
        zeros_ratio: zeros in its input, 0 to 1.
    """

    hessian: Floats
    importance: Floats
    zeros_ratio: float = 0.0
    _elements: int = field(default=0, repr=False)

    def add(self, zeros: int, elements: int) -> None:
        """Count zeros in the layer's input."""
        total = self._elements + elements
        self.zeros_ratio = (self.zeros_ratio * self._elements + zeros) / max(total, 1)
        self._elements = total


def collect(
    network: Network,
    layers: Sequence[WeightLayer],
    inputs: npt.NDArray[np.float32],
    ledger: Ledger,
    seed: int,
    task: Task | None = None,
) -> dict[str, LayerStatistics]:
    """Compute Hessians, importances and activation sparsity of all layers from the dense network's inputs.

    Args:
        network: the dense network.
        layers: those that may lose weights.
        inputs: calibration data, N x ...
        ledger: counts the images; a backward pass counts as two forward passes.
        seed: for what is drawn for the importances.
        task: of the network; default: classes.

    Returns:
        Name of the layer -> its statistics.
    """
    statistics_of = {
        layer.name: LayerStatistics(
            np.zeros((layer.groups, layer.width, layer.width)), np.zeros((layer.groups, layer.rows))
        )
        for layer in layers
    }
    by_name = {layer.name: layer for layer in layers}

    def watch(name: str, read: tuple[Tensor, ...], output: Tensor) -> None:
        layer, statistics, data = by_name[name], statistics_of[name], read[0]
        statistics.add(int((data == 0).sum()), data.numel())
        for columns in _columns(layer, data, output):
            product = columns @ columns.transpose(1, 2)
            statistics.hessian += product.numpy() / len(inputs)

    observe(network, inputs, watch, list(by_name), batch=at_once(inputs.shape[1:], _BATCH, _NUMBERS))
    _importances(network, by_name, statistics_of, inputs, Classes() if task is None else task, seed)
    ledger.forwarded(len(inputs) * (2 + _BACKWARD))
    return statistics_of


def activation_zeros(
    network: Network, names: Sequence[str], inputs: npt.NDArray[np.float32], ledger: Ledger
) -> dict[str, float]:
    """Part of each node's input that is zero on these inputs.

    Args:
        network: any network.
        names: of its nodes.
        inputs: N x ...
        ledger: counts the images.
    """
    counts = {name: [0, 0] for name in names}

    def watch(name: str, read: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001 - observe's form
        counts[name][0] += int((read[0] == 0).sum())
        counts[name][1] += read[0].numel()

    observe(network, inputs, watch, list(names), batch=at_once(inputs.shape[1:], 2 * _BATCH, 2 * _NUMBERS))
    ledger.forwarded(len(inputs))
    return {name: zeros / max(elements, 1) for name, (zeros, elements) in counts.items()}


def _columns(layer: WeightLayer, data: Tensor, output: Tensor) -> list[Tensor]:
    """Inputs of the sums: G x K x positions in float64, in pieces."""
    if layer.kind == "linear":
        return [data.reshape(-1, layer.width).T.double()[None]]
    attributes = layer.node.attributes
    kernel = layer.node.inputs[1]
    assert kernel is not None
    assert kernel.shape is not None
    sizes = kernel.shape[2:]
    stride, dilation = (_numbers(attributes.get(name), len(sizes)) for name in ("strides", "dilations"))
    reach = [(size - 1) * apart + 1 for size, apart in zip(sizes, dilation, strict=True)]
    needed = [
        max((out - 1) * step + far - size, 0)
        for out, step, far, size in zip(output.shape[2:], stride, reach, data.shape[2:], strict=True)
    ]
    pads = attributes.get("pads")
    if isinstance(pads, tuple) and any(pads):
        before, after = pads[: len(sizes)], pads[len(sizes) :]
    else:  # none, or as the output's size says
        lower = attributes.get("auto_pad") == "SAME_LOWER"
        before = tuple((total + lower) // 2 for total in needed)
        after = tuple(total - first for total, first in zip(needed, before, strict=True))
    around = [int(pad) for pair in zip(before, after, strict=True) for pad in reversed(pair)]
    read = functional.pad(data, around[::-1])  # the last axis comes first there
    for axis, (far, step, apart) in enumerate(zip(reach, stride, dilation, strict=True), start=2):
        read = read.unfold(axis, far, step)[..., ::apart]
    # images x channels x positions x kernel -> images x groups x inputs of a sum x positions
    axes = len(sizes)
    read = read.permute(0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    unfolded = read.reshape(len(data), layer.groups, layer.width, -1)
    count = unfolded.shape[-1]
    if count > _MOST_COLUMNS:
        chosen = torch.linspace(0, count - 1, _MOST_COLUMNS).long()
        unfolded = unfolded[..., chosen] * (count / _MOST_COLUMNS) ** 0.5
    return [part.permute(1, 2, 0, 3).flatten(2).double() for part in unfolded.split(16)]


def _importances(
    network: Network,
    layers: dict[str, WeightLayer],
    statistics_of: dict[str, LayerStatistics],
    inputs: npt.NDArray[np.float32],
    task: Task,
    seed: int,
) -> None:
    """Mean squared gradients of what the task draws, by each output."""
    random = torch.Generator().manual_seed(seed)

    def note(name: str, output: Tensor) -> None:
        layer = layers[name]

        def add(gradient: Tensor) -> None:
            squares = gradient.detach().double() ** 2
            axis = 1 if layer.kind == "conv" else squares.ndim - 1
            others = [place for place in range(1, squares.ndim) if place != axis]
            by_output = (squares.mean(others) if others else squares).sum(0)
            statistics_of[name].importance += by_output.reshape(layer.groups, layer.rows).numpy() / (2 * len(inputs))

        if output.requires_grad:
            output.register_hook(add)

    handles = [
        network.node(name).register_forward_hook(lambda _, __, output, name=name: note(name, output)) for name in layers
    ]
    network.eval()
    heat, batch = None, at_once(inputs.shape[1:], _BATCH, _NUMBERS)
    try:
        for start in range(0, len(inputs), batch):
            answers = task.answers(network, torch.from_numpy(inputs[start : start + batch]))
            heat = heat or task.heat(answers.detach())
            task.drawn(answers, heat, random).backward()
    finally:
        for handle in handles:
            handle.remove()
        network.zero_grad(set_to_none=True)
    for statistics in statistics_of.values():
        floor = statistics.importance.mean() * 1e-3  # an output without a gradient still counts a little
        statistics.importance = np.maximum(statistics.importance, floor if floor > 0 else 1.0)


def _numbers(value: object, count: int) -> tuple[int, ...]:
    return tuple(int(number) for number in value) if isinstance(value, tuple) else (1,) * count
