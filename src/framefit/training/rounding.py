"""Rounding in training: a network computes as its version in int8 will, and gradients pass through.

Weights and tensors take the values that eight bits leave of them, by the scales of the quantised model; outside their
range there is no gradient (Jacob et al., 2018, "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model, Node, listing
from framefit.training.extra import torch
from framefit.training.network import Network, Operation

__all__ = ["round_as"]

Tensor = Any  # torch.Tensor
_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}  # biases have 32 bits: their rounding does not matter


def round_as(network: Network, quantised: Model) -> Network:
    """Let a network round what its operators read as a model in int8 does; in place.

    Args:
        network: of the model in floating point, without normalisations that fold into weights.
        quantised: the same model in int8: its nodes have the same names, and read what ``DequantizeLinear`` makes.
    """
    written = listing(quantised)
    makers = {node.outputs[0].name: node for node in written.nodes if node.op == "DequantizeLinear"}
    nodes = {node.name: node for node in written.nodes}
    for module in network.layers:
        node = nodes.get(module.node.name) if isinstance(module, Operation) else None
        if node is not None:
            readers = [None if one is None else makers.get(one.name) for one in node.inputs]
            module.precede(tuple(None if maker is None else _rounding(maker, written.arrays) for maker in readers))
    return network


@dataclass(frozen=True)
class _Rounding:
    """The values that eight bits have: ``scale * (q - zero)`` for whole q from ``low`` to ``high``.

    Scales and zeros are those of each place along an axis, or one of each.
    """

    scale: Tensor
    zero: Tensor
    axis: int
    low: int
    high: int

    def __call__(self, x: Tensor) -> Tensor:
        """Round, in float32."""
        x = x.float()
        if len(self.scale) == 1:
            return torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero, self.low, self.high)
        return torch.fake_quantize_per_channel_affine(x, self.scale, self.zero, self.axis, self.low, self.high)


def _rounding(maker: Node, arrays: Mapping[str, npt.NDArray[Any]]) -> _Rounding | None:
    """What a ``DequantizeLinear`` makes of any tensor that is quantised for it; ``None``: as good as the tensor."""
    source, *known = maker.inputs
    assert source is not None
    scale, *zeros = (arrays[operand.name] for operand in known if operand is not None)
    limits = _RANGES.get(source.dtype)
    if limits is None:
        return None
    zero = np.zeros(scale.size, np.int32) if not zeros else np.asarray(zeros[0], np.int32).reshape(-1)
    axis = int(maker.attributes.get("axis", 1)) % max(len(source.shape or ()), 1)  # type: ignore[arg-type]  # a number
    return _Rounding(torch.from_numpy(scale.reshape(-1).copy()), torch.from_numpy(zero), axis, *limits)
