"""Two or three levels of a number: their thresholds, and the value of each level.

The thresholds +-0.66 on normalised values are the literal form. Those of least squared error make quantised
and original tensor most similar: with each level at the mean of its values, the squared cosine between the two is
one minus the error's part of the tensor's square (Lloyd, "Least squares quantization in PCM", IEEE Trans.
Information Theory 28, 1982, section VI).

In a model quantisers follow layers' outputs, as operators of its graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framefit.core.model import GraphBuilder, Model
from framefit.core.trees import Encoder, Levels, Scaled
from framefit.trees.groups import WEIGHTED, boundaries, follows

Array = npt.NDArray[Any]
LevelCount = Literal[2, 3]
_CANDIDATES = 64  # thresholds that are tried: every 1.6th percentile


@dataclass(frozen=True)
class LevelMap:
    """Levels of a tensor and their values, for each channel or feature: constant after the fit.

    Attributes:
        low: a value above it does not have the lowest level; float32, one for each column.
        high: a value above it has the highest level.
        values: columns x 3, float32.
    """

    low: npt.NDArray[np.float32]
    high: npt.NDArray[np.float32]
    values: npt.NDArray[np.float32]

    def __call__(self, x: Array) -> npt.NDArray[np.float32]:
        """Replace N x columns x ..., or N x features of any shape, by the values of the nearest levels."""
        shape = (-1, *(1,) * (x.ndim - 2)) if x.ndim > 1 and x.shape[1] == len(self.low) else x.shape[1:]
        low, high, minus, zero, plus = (side.reshape(shape) for side in (self.low, self.high, *self.values.T))
        mapped: npt.NDArray[np.float32] = np.where(x > high, plus, np.where(x > low, zero, minus))
        return mapped


def fit_level_map(columns: Array, levels: LevelCount = 3, threshold: float | None = None) -> LevelMap:
    """Fit levels of a tensor; each has the mean of its elements as value, so that both tensors are most similar.

    Args: as for :func:`fit_encoder`.
    """
    encoder = fit_encoder(columns, levels, threshold)
    low, high = np.asarray(encoder.low, np.float32), np.asarray(encoder.high, np.float32)
    levels_at = (columns > low).astype(np.int64) + (columns > high)
    return LevelMap(low, high, _means(levels_at, columns).T.astype(np.float32))


def fit_encoder(columns: Array, levels: LevelCount = 3, threshold: float | None = None) -> Encoder:
    """Fit comparators for the input of a group.

    Args:
        columns: examples x channels or features, float32.
        levels: 2 (binary) or 3 (ternary).
        threshold: for normalised values; ``None``: the thresholds of least squared error.
    """
    if threshold is None:
        low, high = _best_thresholds(columns, columns, levels)
    else:
        middle, spread = columns.mean(axis=0, dtype=np.float64), columns.std(axis=0, dtype=np.float64)
        reach = threshold * spread if levels == 3 else 0 * spread
        low, high = middle - reach, middle + reach
    low, high = low.astype(np.float32), high.astype(np.float32)
    return Encoder(low=tuple(low.tolist()), high=tuple(high.tolist()))


def fit_levels(sums: Array, y: Array, levels: LevelCount = 3) -> Levels:
    """Fit thresholds for sums of trees, and the value of each level.

    Args:
        sums: rows x outputs, whole numbers.
        y: rows x outputs: what the sums shall predict; the value of a level is its mean.
        levels: 2 or 3.
    """
    below, above = _best_thresholds(sums, y, levels)
    low, high = (np.floor(side).astype(np.int64) + 1 for side in (below, above))  # sum > t is sum >= floor(t) + 1
    levels_at = (sums >= low).astype(np.int64) + (sums >= high)
    means = _means(levels_at, y)
    return Levels(
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        values=tuple((row[0], row[1], row[2]) for row in means.T.astype(np.float32).tolist()),
    )


def fit_scale(sums: Array, rows: Array) -> Scaled:
    """Fit the line of least squared error from sums to outputs; its offset is whole, in units of the sum.

    Args:
        sums: rows x outputs, whole numbers.
        rows: rows x outputs, what the sums shall predict.
    """
    middle, spread = sums.mean(axis=0, dtype=np.float64), sums.std(axis=0, dtype=np.float64)
    mean = rows.mean(axis=0, dtype=np.float64)
    together = ((sums - middle) * (rows - mean)).mean(axis=0, dtype=np.float64)
    flat = (spread == 0) | (together <= 0)
    scale = np.where(flat, np.where(mean == 0, 1, np.abs(mean)), together / np.where(spread > 0, spread, 1) ** 2)
    scale = scale.astype(np.float32)
    bias = np.clip(np.rint(mean / scale - middle), -(2**30), 2**30).astype(np.int64)
    return Scaled(bias=tuple(bias.tolist()), scale=tuple(scale.tolist()))


def quantised(y: Array, levels: LevelCount = 3, threshold: float | None = None) -> npt.NDArray[np.int8]:
    """Quantise each column of examples x outputs to levels -1, 0, 1; binary: -1 and 1."""
    encoder = fit_encoder(y, levels, threshold)
    low, high = np.asarray(encoder.low, np.float32), np.asarray(encoder.high, np.float32)
    return (y > low).astype(np.int8) + (y > high).astype(np.int8) - np.int8(1)


def restored(levels: Array, original: Array) -> npt.NDArray[np.float64]:
    """Replace levels by the best value for each of a column: the mean of the elements with that level.

    Args:
        levels: rows x columns, -1, 0 or 1.
        original: rows x columns.
    """
    levels_at = levels.astype(np.int64) + 1
    values: npt.NDArray[np.float64] = np.take_along_axis(_means(levels_at, original), levels_at, axis=0)
    return values


def _means(levels_at: npt.NDArray[np.int64], y: Array) -> npt.NDArray[np.float64]:
    """Mean of each column where its level is 0, 1, 2: 3 x columns; for a level that never occurs, a neighbour's."""
    counts = np.stack([(levels_at == level).sum(axis=0) for level in range(3)])
    totals = np.stack([np.where(levels_at == level, y, 0).sum(axis=0, dtype=np.float64) for level in range(3)])
    means = totals / np.maximum(counts, 1)
    overall = y.mean(axis=0, dtype=np.float64)
    ends = np.where(counts[[0, 2]] > 0, means[[0, 2]], np.where(counts[1] > 0, means[1], overall))
    middle = np.where(counts[1] > 0, means[1], ends.mean(axis=0))
    return np.stack([ends[0], middle, ends[1]])


def _best_thresholds(x: Array, y: Array, levels: LevelCount) -> tuple[Array, Array]:
    """Thresholds of each column of ``x`` with the least squared error of ``y`` around its levels' means.

    All pairs of candidates are compared: x is divided at quantiles of its distinct values.
    """
    low, high = np.empty(x.shape[1]), np.empty(x.shape[1])
    for column in range(x.shape[1]):
        values = np.unique(x[:, column]).astype(np.float64)
        cuts = (values[:-1] + values[1:]) / 2 if len(values) > 1 else values
        if len(cuts) > _CANDIDATES:
            spread = np.quantile(x[:, column], np.linspace(0, 1, _CANDIDATES + 2)[1:-1])
            places = np.unique(np.clip(np.searchsorted(values, spread), 0, len(cuts) - 1))
            cuts = cuts[places]
        low[column], high[column] = _best_pair(x[:, column], y[:, column], cuts, levels)
    return low, high


def _best_pair(x: Array, y: Array, cuts: Array, levels: LevelCount) -> tuple[float, float]:
    """The two thresholds for which the means of ``y`` explain most of its square."""
    cell = np.searchsorted(cuts, x.astype(np.float64), side="left")  # cell k: cuts[k - 1] < x <= cuts[k]
    count = np.cumsum(np.bincount(cell, minlength=len(cuts) + 1)).astype(np.float64)
    total = np.cumsum(np.bincount(cell, weights=y, minlength=len(cuts) + 1))

    def explained(sums: Array, counts: Array) -> Array:
        squares: Array = np.divide(sums**2, counts, out=np.zeros_like(sums), where=counts > 0)
        return squares

    left = explained(total[:-1], count[:-1])
    right = explained(total[-1] - total[:-1], count[-1] - count[:-1])
    if levels == 2:
        best = int(np.argmax(left + right))
        return float(cuts[best]), float(cuts[best])
    middle = explained(total[None, :-1] - total[:-1, None], count[None, :-1] - count[:-1, None])
    gain = np.triu(left[:, None] + middle + right[None, :])
    first, second = np.unravel_index(int(np.argmax(gain)), gain.shape)
    return float(cuts[first]), float(cuts[second])


@dataclass(frozen=True)
class Quantiser:
    """A tensor that is quantised.

    Attributes:
        tensor: name of the layer's output.
        made: name of the quantised tensor, which others read.
        rank: number of axes of both.
    """

    tensor: str
    made: str
    rank: int

    @property
    def name(self) -> str:
        """Name of the quantiser: the prefix of its initializers' names."""
        return f"{self.tensor}_levels"

    def arrays(self, levels: LevelMap) -> dict[str, npt.NDArray[np.float32]]:
        """Initializers: thresholds and values, along the tensor's axis 1."""
        columns = {"low": levels.low, "high": levels.high}
        columns |= {name: levels.values[:, level] for level, name in enumerate(("minus", "zero", "plus"))}
        shape = (-1, *(1,) * (self.rank - 2))
        return {f"{self.name}/{name}": np.ascontiguousarray(side.reshape(shape)) for name, side in columns.items()}

    def levels(self, arrays: Mapping[str, npt.NDArray[Any]]) -> LevelMap:
        """Levels from a model's initializers."""
        low, high, *values = (
            arrays[f"{self.name}/{name}"].reshape(-1) for name in ("low", "high", "minus", "zero", "plus")
        )
        return LevelMap(low, high, np.stack(values, axis=1))


def places(model: Model, *, data: bool, outputs: bool) -> tuple[str, ...]:
    """Names of tensors to quantise, in order."""
    ends = {boundary.tensor for boundary in boundaries(model)}
    first = model.inputs[0].name
    tensors = [first] if data else []
    if not outputs:
        return tuple(tensors)
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
    return tuple(tensors + [name for name in made if name in ends])


def inserted(model: Model, tensor: str, levels: LevelMap) -> tuple[Model, Quantiser]:
    """The model with a quantiser behind a tensor: comparisons and selections with ONNX's own operators."""
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
