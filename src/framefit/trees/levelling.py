"""Every layer's output in a few levels: where quantisers stand in a model, as operators of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import GraphBuilder, Model
from framefit.trees.groups import WEIGHTED, boundaries, follows
from framefit.trees.quantising import LevelMap

__all__ = ["Quantiser", "inserted", "places"]


@dataclass(frozen=True)
class Quantiser:
    """A tensor that is quantised.

    Attributes:
        tensor: as a layer makes it.
        made: with levels, which is what others read.
        rank: axes of both.
    """

    tensor: str
    made: str
    rank: int

    @property
    def name(self) -> str:
        """Of the quantiser: in front of the names of its initializers."""
        return f"{self.tensor}_levels"

    def arrays(self, levels: LevelMap) -> dict[str, npt.NDArray[np.float32]]:
        """Its initializers: thresholds and values, along the tensor's axis 1."""
        columns = {"low": levels.low, "high": levels.high}
        columns |= {name: levels.values[:, level] for level, name in enumerate(("minus", "zero", "plus"))}
        shape = (-1, *(1,) * (self.rank - 2))
        return {f"{self.name}/{name}": np.ascontiguousarray(side.reshape(shape)) for name, side in columns.items()}

    def levels(self, arrays: Mapping[str, npt.NDArray[Any]]) -> LevelMap:
        """What it does, of a model's initializers."""
        low, high, *values = (
            arrays[f"{self.name}/{name}"].reshape(-1) for name in ("low", "high", "minus", "zero", "plus")
        )
        return LevelMap(low, high, np.stack(values, axis=1))


def places(model: Model, *, data: bool, outputs: bool) -> tuple[str, ...]:
    """Tensors to quantise, in order.

    Args:
        model: a classifier with one input.
        data: its input.
        outputs: of each layer with weights but the last, behind normalisation and activation, and sums of such.
    """
    ends = {boundary.tensor for boundary in boundaries(model)}
    first = model.inputs[0].name
    found = [first] if data else []
    if not outputs:
        return tuple(found)
    nodes = [node for layer in model.nodes for node in layer]
    last = max((place for place, node in enumerate(nodes) if node.op in WEIGHTED), default=0)
    readers: dict[str, list[int]] = {}
    for place, node in enumerate(nodes):
        for operand in node.inputs:
            if operand is not None:
                readers.setdefault(operand.name, []).append(place)
    for node in nodes[:last]:
        end = node.outputs[0].name
        if node.op in WEIGHTED:
            while len(readers.get(end, ())) == 1 and follows(nodes[readers[end][0]]):
                end = nodes[readers[end][0]].outputs[0].name
            ends.add(end)
    made = [output.name for node in nodes[:last] for output in node.outputs]
    return tuple(found + [name for name in made if name in ends])


def inserted(model: Model, tensor: str, levels: LevelMap) -> tuple[Model, Quantiser]:
    """The model with a quantiser behind a tensor: comparisons and selections of ONNX's own operators."""
    b = GraphBuilder(model.name, base=model)
    rank = len(b.shape(tensor))
    arrays = Quantiser(tensor, "", rank).arrays(levels)
    low, high, minus, zero, plus = (b.constant(array, name) for name, array in arrays.items())
    inner = b.op("Where", b.op("Greater", tensor, low), zero, minus)
    made = str(b.op("Where", b.op("Greater", tensor, high), plus, inner))
    b.redirect(tensor, made)
    for output in model.outputs:
        b.output(output.name)
    return b.build(), Quantiser(tensor, made, rank)
