"""Which layers of a network can lose weights, and their weights as matrices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framefit.core.model import Node, Operand
from framefit.sparsity.problem import Ints, PrunableLayer

__all__ = ["WeightLayer", "find_layers", "neighbours"]


Array = npt.NDArray[Any]
_MATRIX_OPS = ("Conv", "Gemm", "MatMul")
_OTHERS = ("ConvTranspose", "LSTM", "GRU", "RNN", "Einsum", "ConvInteger", "QLinearConv", "QLinearMatMul", "QGemm")


@dataclass(frozen=True)
class WeightLayer:
    """A convolution, or a product with a constant, whose weight belongs to it alone.

    Attributes:
        name: of its node.
        weight: its initializer.
        kind: of the node.
        groups: independent products: of a grouped convolution.
        rows: outputs of each group.
        channels: inputs of each group; area: kernel positions.
        transposed: whether the weight lies inputs x outputs.
        node: with its attributes.
        facts: for the search.
    """

    name: str
    weight: str
    kind: Literal["conv", "linear"]
    groups: int
    rows: int
    channels: int
    area: int
    transposed: bool
    node: Node
    facts: PrunableLayer

    @property
    def width(self) -> int:
        """Inputs of each sum."""
        return self.channels * self.area

    def matrix(self, weight: Array) -> Array:
        """The weight as G x n x K."""
        outputs_first = weight.T if self.transposed else weight
        return outputs_first.reshape(self.groups, self.rows, self.width)

    def weight_of(self, matrix: Array) -> npt.NDArray[np.float32]:
        """A matrix (rows of all groups x K, or G x n x K) in the form of the weight."""
        flat = np.asarray(matrix, np.float32).reshape(self.groups * self.rows, self.width)
        if self.kind == "linear":
            return np.ascontiguousarray(flat.T if self.transposed else flat)
        operand = self.node.inputs[1]
        assert operand is not None
        assert operand.shape is not None
        return flat.reshape(operand.shape)


def find_layers(nodes: Sequence[Node], arrays: Mapping[str, Array]) -> tuple[tuple[WeightLayer, ...], tuple[str, ...]]:
    """The layers that can lose weights, in order; and what stays dense, as sentences.

    Args:
        nodes: of the network, in order.
        arrays: its initializers.
    """
    used = Counter(operand.name for node in nodes for operand in node.inputs if operand is not None)
    found, notes = [], []
    for node in nodes:
        if node.op in _OTHERS:
            notes.append(f"{node.name} stays dense: {node.op} is not pruned")
        operand = node.inputs[1] if node.op in _MATRIX_OPS and len(node.inputs) > 1 else None
        data = node.inputs[0] if node.inputs else None
        if operand is None or data is None or not operand.constant:
            continue
        if operand.name not in arrays or operand.stored_dtype != "float32":
            notes.append(f"{node.name} stays dense: its weight is no float32 initializer")
        elif used[operand.name] > 1:
            notes.append(f"{node.name} stays dense: it shares its weight with another node")
        elif (layer := _layer(node, data, operand, arrays[operand.name])) is None:
            notes.append(f"{node.name} stays dense: {node.op} of this form is not pruned")
        else:
            found.append(layer)
    return tuple(found), tuple(notes)


def neighbours(layer: WeightLayer, size: int) -> Ints:
    """K, int64: of which ``size`` neighbouring input channels each weight of a row is one.

    Kernel positions are apart: hardware reads channels side by side.
    """
    channel, position = np.divmod(np.arange(layer.width), layer.area)
    found: Ints = position * math.ceil(layer.channels / size) + channel // size
    return found


def _layer(node: Node, data: Operand, operand: Operand, weight: Array) -> WeightLayer | None:
    output = node.outputs[0].shape
    if data.shape is None or output is None:
        return None
    if node.op == "Conv":
        return _convolution(node, data.shape, output, operand, weight) if weight.ndim == 4 else None
    if weight.ndim != 2 or _number(node, "transA") or _number(node, "alpha", 1.0) != 1.0:
        return None
    transposed = not _number(node, "transB")
    inputs, outputs = weight.shape if transposed else weight.shape[::-1]
    positions = math.prod(output) // max(outputs, 1) // max(output[0], 1)
    facts = PrunableLayer(
        name=node.name,
        outputs=outputs,
        inputs=inputs,
        height=1,
        width=1,
        stride=1,
        kernel=1,
        parameters=weight.size,
        macs=weight.size * positions,
    )
    return WeightLayer(node.name, operand.name, "linear", 1, outputs, inputs, 1, transposed, node, facts)


def _convolution(
    node: Node, data: tuple[int, ...], output: tuple[int, ...], operand: Operand, weight: Array
) -> WeightLayer:
    groups = int(_number(node, "group", 1))
    strides = node.attributes.get("strides", (1, 1))
    assert isinstance(strides, tuple)
    outputs, channels, *kernel = weight.shape
    facts = PrunableLayer(
        name=node.name,
        outputs=outputs,
        inputs=channels * groups,
        height=data[2],
        width=data[3],
        stride=int(strides[0]),
        kernel=kernel[0],
        parameters=weight.size,
        macs=weight.size * math.prod(output[2:]),
    )
    area = math.prod(kernel)
    return WeightLayer(
        name=node.name,
        weight=operand.name,
        kind="conv",
        groups=groups,
        rows=outputs // groups,
        channels=channels,
        area=area,
        transposed=False,
        node=node,
        facts=facts,
    )


def _number(node: Node, name: str, default: float = 0.0) -> float:
    value = node.attributes.get(name, default)
    assert isinstance(value, int | float)
    return value
