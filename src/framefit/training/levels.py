"""Networks of few levels that learn: weights and outputs are quantised forward, and float behind that."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framefit.training.extra import torch
from framefit.training.network import Network, Operation, state
from framefit.training.straight import chosen, step, through

__all__ = ["LevelLayer", "WeightLevels", "levelled_state", "quantise_weights"]

Array = npt.NDArray[Any]
parametrize = torch.nn.utils.parametrize
Tensor = Any  # torch.Tensor
WeightLevels = Literal["8bit", "4bit", "ternary", "binary"]

_OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1}  # of the weight; Gemm's follows transB
_THRESHOLD = 0.66  # of normalised values: between the ternary levels
_WHOLE = {"8bit": 127, "4bit": 7}  # the largest whole number


class LevelLayer(torch.nn.Module):  # type: ignore[misc]
    """A tensor's levels and the values that they stand for, channel by channel or feature by feature; they learn.

    Args:
        low: a value above it is not of the lowest level; float32, one a channel or feature.
        high: a value above it is of the highest.
        values: channels or features x 3.
    """

    def __init__(self, low: Array, high: Array, values: Array) -> None:
        super().__init__()
        self.low, self.high, self.values = (torch.nn.Parameter(torch.from_numpy(a.copy())) for a in (low, high, values))
        reach = (values.max(axis=1) - values.min(axis=1)) / 2  # as far from a threshold gradients pass
        self.register_buffer("reach", torch.from_numpy(np.where(reach > 0, reach, 1).astype(np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        """The levels' values: N x channels x ..., as it came."""
        rows = x.float().movedim(1, -1)
        low, high = self._thresholds()
        return chosen(step(rows - low, self.reach), step(rows - high, self.reach), self.values).movedim(-1, 1)

    def levels(self) -> tuple[Array, Array, Array]:
        """Thresholds and values as they are now."""
        return tuple(tensor.detach().numpy().copy() for tensor in (*self._thresholds(), self.values))

    def _thresholds(self) -> tuple[Tensor, Tensor]:
        return self.low, torch.maximum(self.high, self.low)


def quantise_weights(network: Network, levels: WeightLevels, spare: frozenset[str]) -> None:
    """Let weights of convolutions and products be quantised forward, in place; what learns are float ones behind.

    Ternary: +-0.66 of the output channel's spread, and the mean of what lies beyond (Li and Liu, 2016, "Ternary
    Weight Networks", section 2.2); binary: the sign times the mean size (Rastegari et al., 2016, "XNOR-Net", section
    3.1): the scales of the most similar tensor. 4 and 8 bits: whole numbers times a step, one for each channel.

    Args:
        network: of any model.
        levels: of the weights.
        spare: initializers that keep their precision.
    """
    for module in network.layers:
        if not isinstance(module, Operation) or module.node.op not in (*_OUTPUT_AXIS, "Gemm"):
            continue
        operand = module.node.inputs[1]
        weight = getattr(module, "weight", None)
        if operand is None or operand.name in spare or not isinstance(weight, torch.nn.Parameter) or weight.dim() < 2:
            continue
        axis = _OUTPUT_AXIS.get(module.node.op, 0 if module.node.attributes.get("transB", 0) else 1)
        parametrize.register_parametrization(module, "weight", _Quantised(levels, axis % weight.dim()))


def levelled_state(network: Network) -> dict[str, Array]:
    """Parameters and statistics as :func:`~framefit.training.network.state` tells them, weights as they are used."""
    found = state(network)
    names = {id(parameter): name for name, parameter in network.weights.items()}
    for module in network.layers:
        if parametrize.is_parametrized(module, "weight"):
            found[names[id(module.parametrizations.weight.original)]] = module.weight.detach().numpy().copy()
    return found


class _Quantised(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, levels: WeightLevels, axis: int) -> None:
        super().__init__()
        self._levels, self._axis = levels, axis

    def forward(self, weight: Tensor) -> Tensor:
        with torch.no_grad():
            rows = weight.detach().movedim(self._axis, 0)
            found = _levelled(rows.flatten(1), self._levels).reshape(rows.shape).movedim(0, self._axis)
        return through(weight, found)


def _levelled(rows: Tensor, levels: WeightLevels) -> Tensor:
    """Output channels x weights."""
    size = rows.abs()
    if levels in _WHOLE:
        unit = size.amax(dim=1, keepdim=True) / _WHOLE[levels]
        return torch.round(rows / torch.where(unit > 0, unit, 1)) * unit
    beyond = size > _THRESHOLD * rows.std(dim=1, keepdim=True, correction=0) if levels == "ternary" else size >= 0
    scale = (size * beyond).sum(dim=1, keepdim=True) / beyond.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(rows < 0, -scale, scale) * beyond
