"""Trees that are trained: an ensemble as a part of a network, with gradients for its parameters and its input.

Forward it computes what :func:`framefit.core.trees.evaluate` does, bit for bit: leaves are whole numbers, inputs
are compared with thresholds. Backward the steps pass gradients straight through (Bengio et al., 2013, "Estimating or
Propagating Gradients Through Stochastic Neurons for Conditional Computation", section 3): rounding as if it were the
identity, comparisons within a reach of their threshold (Hubara et al., 2016, "Binarized Neural Networks", section
1.3). An oblivious tree is linear in each of its bits: a bit's gradient is the difference of the two leaves between
which it selects, for the present values of the other bits. The features that tests read do not change.

Networks of few levels are trained in the same way: weights and outputs are quantised in the forward pass only.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.trees import Encoder, Ensemble, Levels, ObliviousTree, Patch, Scaled, accumulate, encode, images_of
from framefit.errors import UnsupportedError
from framefit.stats import leaves_of_effects
from framefit.training.extra import torch
from framefit.training.network import Network, Operation, state

__all__ = ["LevelLayer", "TreeLayer", "levelled_state", "quantise_weights"]


Tensor = Any  # torch.Tensor


class _Step(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, reach: Tensor) -> Tensor:
        ctx.save_for_backward(x, reach)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        x, reach = ctx.saved_tensors
        return torch.where(x.abs() < reach, slope / (2 * reach), torch.zeros_like(slope)), None


class _Rounded(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, most: float) -> Tensor:
        ctx.save_for_backward(x.abs() < most + 0.5)
        return x.round().clamp(-most, most)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (inside,) = ctx.saved_tensors
        return slope * inside, None


class _Through(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        return value.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return slope, None


def through(x: Tensor, value: Tensor) -> Tensor:
    """Exactly ``value``; in the backward pass as if it were ``x``."""
    return _Through.apply(x, value)


def step(x: Tensor, reach: Tensor | float) -> Tensor:
    """1 where ``x`` is above 0, else 0; in the backward pass a ramp from ``-reach`` to ``reach``."""
    return _Step.apply(x, torch.as_tensor(reach, dtype=x.dtype))


def rounded(x: Tensor, most: float = float("inf")) -> Tensor:
    """The nearest whole number, at most ``most`` from 0; in the backward pass ``x`` within that range."""
    return _Rounded.apply(x, most)


def chosen(low: Tensor, high: Tensor, values: Tensor) -> Tensor:
    """Select the value of each column's level: exactly the first, second or third of its row.

    Args:
        low: rows x columns, 1 where the level is above the lowest, else 0.
        high: likewise, 1 where it is the highest.
        values: columns x 3.
    """
    minus, zero, plus = values.unbind(dim=1)
    return minus * (1 - low) + zero * (low - high) + plus * high


Array = npt.NDArray[Any]
_ELEMENTS = 1 << 22  # of the largest intermediate array, rows x leaves: 16 MiB
_VOTE = 0.3  # initial size of a vote's latent number; its gradient ends at 1 (Hubara et al., 2016)


class TreeLayer(torch.nn.Module):  # type: ignore[misc]
    """An ensemble of oblivious trees as a module: N x input shape to N x output shape, float32.

    Its parameters are scaled so that one step size suits all of them: leaves and thresholds of sums by the spread
    of the sums, thresholds of inputs by the spread of the inputs. For leaves their effects are trained
    (:mod:`framefit.stats`), to which every row contributes: a single leaf is reached by one row in 2^depth.

    Args:
        ensemble: the initial trees.
        x: their inputs, examples x input shape, which show the spread of inputs and sums.

    Raises:
        UnsupportedError: the trees are free-form.
    """

    def __init__(self, ensemble: Ensemble, x: Array) -> None:
        super().__init__()
        if ensemble.free_trees:
            raise UnsupportedError(
                "free-form trees cannot be trained", where=ensemble.name, remedy="fit oblivious trees"
            )
        self._ensemble = ensemble
        words = encode(ensemble, x)
        sums = accumulate(ensemble, words).std(axis=0)
        self._wire(ensemble)
        self._hold_inputs(ensemble, x)
        self._hold_leaves(ensemble, np.where(sums > 0, sums, 1).astype(np.float32))
        self._hold_outputs(ensemble)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the group's output."""
        with torch.autocast("cpu", enabled=False):  # bfloat16 cannot represent whole numbers beyond 256
            tests = self._tests(x.float())
            return self._decoded(_Sums.apply(tests, self._leaves(), self._each), x)

    def ensemble(self) -> Ensemble:
        """The ensemble with the present parameters."""
        old = self._ensemble
        with torch.no_grad():
            leaves = self._leaves().numpy().astype(int)
            low, high = (side.flatten().tolist() for side in self._thresholds())
            trees = tuple(
                ObliviousTree(
                    inputs=tree.inputs, bits=tree.bits, leaves=tuple(table[: tree.leaf_count].ravel().tolist())
                )
                for tree, table in zip(old.trees, leaves, strict=True)
            )
            made = msgspec.structs.replace(old, trees=trees, encoder=Encoder(low=tuple(low), high=tuple(high)))
            if old.levels is not None:
                sides = [tuple(side.int().tolist()) for side in self._edges()]
                values = tuple((row[0], row[1], row[2]) for row in self.values.tolist())
                return msgspec.structs.replace(made, levels=Levels(low=sides[0], high=sides[1], values=values))
            bias = tuple(self._biases().long().tolist())
            return msgspec.structs.replace(made, scaled=Scaled(bias=bias, scale=tuple(self.scale.tolist())))

    def _wire(self, ensemble: Ensemble) -> None:
        """Compute the index of each test's bit in the flat planes of an example, at each position."""
        self._patch = ensemble.patch or Patch(kernel=(1, 1))
        self._shape = ensemble.image
        channels, height, width = self._shape
        top, left, bottom, right = self._patch.padding
        tall, wide = height + top + bottom, width + left + right
        lines, columns = self._patch.positions(height, width)
        depth = max(1, *(len(tree.inputs) for tree in ensemble.trees))
        # Planes: bit 0 of all channels, bit 1, whether a position is padding, and zeros.
        outside, nothing = 2 * channels, 2 * channels + 1
        places = np.full((len(ensemble.trees), depth), nothing * tall * wide, np.int64)
        for number, tree in enumerate(ensemble.trees):
            for level, (feature, bit) in enumerate(zip(tree.inputs, tree.bits, strict=True)):
                channel, place = divmod(feature, self._patch.area)
                plane = outside if channel == channels else bit * channels + channel
                y, x = divmod(place, self._patch.kernel[1])
                places[number, level] = (plane * tall + y) * wide + x
        down, across = self._patch.stride
        corners = np.arange(lines)[:, None] * down * wide + np.arange(columns) * across
        spans = corners.ravel()[:, None, None] + places
        border = np.pad(np.zeros((height, width), np.float32), ((top, bottom), (left, right)), constant_values=1)
        self.register_buffer("_places", torch.from_numpy(spans.reshape(-1)), persistent=False)
        self.register_buffer("_border", torch.from_numpy(border.ravel().copy()), persistent=False)
        self._tested = (lines * columns, *places.shape)

    def _hold_inputs(self, ensemble: Ensemble, x: Array) -> None:
        images = images_of(ensemble, x)
        spread = np.where(np.isfinite(images), images, 0).std(axis=(0, 2, 3), dtype=np.float64)
        self.register_buffer("reach", _column(np.where(spread > 0, spread, 1), 2), persistent=False)
        low, high = (_column(side, 2) for side in (ensemble.encoder.low, ensemble.encoder.high))
        self._binary = bool((low == high).all())
        # Stored as distances from the initial values: parameters that were not trained are bit for bit the same.
        self.register_buffer("_low", low, persistent=False)
        self.register_buffer("_high", high, persistent=False)
        self.low = torch.nn.Parameter(torch.zeros_like(low).flatten())
        self.high = torch.nn.Parameter(torch.zeros_like(high).flatten(), requires_grad=not self._binary)

    def _hold_leaves(self, ensemble: Ensemble, spread: Array) -> None:
        size = 1 << self._tested[2]
        table = np.zeros((len(ensemble.trees), size, ensemble.width), np.float32)
        for number, tree in enumerate(ensemble.trees):
            leaves = np.asarray(tree.leaves, np.float32).reshape(-1, ensemble.width)
            table[number] = np.tile(leaves, (size // len(leaves), 1))
        self._each = 0 if ensemble.kind == "vector" else ensemble.trees_each
        self._votes = ensemble.kind == "vote"
        units = spread if ensemble.kind == "vector" else np.repeat(spread, self._each)[:, None, None]
        turn = leaves_of_effects(size)
        latent = np.where(table > 0, _VOTE, -_VOTE) if self._votes else table / units
        self.register_buffer("spread", torch.from_numpy(spread), persistent=False)
        self.register_buffer("_units", torch.from_numpy(np.asarray(units, np.float32)), persistent=False)
        self.register_buffer("_turn", torch.from_numpy(turn.astype(np.float32)), persistent=False)
        self.effects = torch.nn.Parameter(torch.from_numpy(np.linalg.solve(turn, latent).astype(np.float32)))

    def _hold_outputs(self, ensemble: Ensemble) -> None:
        if ensemble.levels is None:
            assert ensemble.scaled is not None
            self.register_buffer("_bias", torch.tensor(ensemble.scaled.bias, dtype=torch.float64), persistent=False)
            self.bias = torch.nn.Parameter(torch.zeros(ensemble.outputs))
            self.scale = torch.nn.Parameter(torch.tensor(ensemble.scaled.scale))
            return
        spread = self.spread.numpy()
        low, high = (np.asarray(side, np.float32) for side in (ensemble.levels.low, ensemble.levels.high))
        self._single = bool((low == high).all())
        self.least = torch.nn.Parameter(torch.from_numpy(low / spread))
        self.most = torch.nn.Parameter(torch.from_numpy(high / spread), requires_grad=not self._single)
        self.values = torch.nn.Parameter(torch.tensor(ensemble.levels.values))

    def _thresholds(self) -> tuple[Tensor, Tensor]:
        """Thresholds of the inputs, one for each channel; the low one is never above the high one."""
        low = self._low + self.low[:, None, None] * self.reach
        return low, low if self._binary else torch.maximum(self._high + self.high[:, None, None] * self.reach, low)

    def _edges(self) -> tuple[Tensor, Tensor]:
        """Thresholds of the sums, whole numbers."""
        low = rounded(self.least * self.spread)
        return low, low if self._single else torch.maximum(rounded(self.most * self.spread), low)

    def _biases(self) -> Tensor:
        """Biases, whole numbers in float64: sums are added exactly, and rounded once."""
        return self._bias + rounded(self.bias * self.spread).double()

    def _leaves(self) -> Tensor:
        """Leaves as whole numbers, trees x leaves x width."""
        latent = self._turn @ self.effects
        return step(latent, 1.0) if self._votes else rounded(latent * self._units, 127.0)

    def _tests(self, x: Tensor) -> Tensor:
        """Results of all tests: rows x trees x levels, 0 or 1."""
        x = self._images(x)
        planes = torch.cat([step(x - threshold, self.reach) for threshold in self._thresholds()], dim=1)
        top, left, bottom, right = self._patch.padding
        planes = torch.nn.functional.pad(planes, (left, right, top, bottom)).flatten(1)
        border = self._border.expand(len(x), -1)
        flat = torch.cat([planes, border, torch.zeros_like(border)], dim=1)
        return flat.index_select(1, self._places).reshape(-1, *self._tested[1:])

    def _images(self, x: Tensor) -> Tensor:
        """The images as which an input is seen, see :func:`framefit.core.trees.images_of`."""
        if self._patch.layout == "tokens":
            x = x.movedim(-1, 1)
        elif self._patch.layout == "volume":
            kernel, stride, before, behind = self._patch.depth
            padded = torch.nn.functional.pad(x, (0, 0, 0, 0, before, behind), value=-math.inf)
            x = padded.unfold(2, kernel, stride).permute(0, 2, 1, 5, 3, 4)
        return x.reshape(-1, *self._shape)

    def _decoded(self, sums: Tensor, x: Tensor) -> Tensor:
        if self._ensemble.levels is None:
            rows = (sums.double() + self._biases()).float() * self.scale
        else:
            low, high = self._edges()
            # A whole number is at least another one if it exceeds that one less a half.
            above = [step(sums - side + 0.5, self.spread) for side in (low, high)]
            rows = chosen(above[0], above[1], self.values)
        if self._ensemble.patch is not None and self._patch.layout != "tokens":
            rows = rows.reshape(len(x), -1, self._ensemble.outputs).transpose(1, 2)
        return rows.reshape(len(x), *self._ensemble.output_shape)


class _Sums(torch.autograd.Function):  # type: ignore[misc]
    """Sums of the leaves that tests select: rows x outputs."""

    @staticmethod
    def forward(ctx: Any, tests: Tensor, leaves: Tensor, each: int) -> Tensor:
        """``tests`` rows x trees x levels; ``leaves`` trees x leaves x width; ``each``: trees of an output, 0: all."""
        trees, size, width = leaves.shape
        leaf = (tests @ (1 << torch.arange(tests.shape[2])).to(tests.dtype)).long()
        ctx.save_for_backward(tests, leaves, leaf)
        ctx.each = each
        rows = leaf + torch.arange(trees) * size
        if not each:
            return torch.nn.functional.embedding_bag(rows, leaves.reshape(-1, width), mode="sum")
        return leaves.reshape(-1)[rows].reshape(len(rows), -1, each).sum(dim=2)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Gradients of leaves from the rows that reach them, and of a test from the leaf on its other side."""
        tests, leaves, leaf = ctx.saved_tensors
        wants_tests, wants_leaves = ctx.needs_input_grad[:2]
        of_tests = torch.empty_like(tests) if wants_tests else None
        of_leaves = torch.zeros_like(leaves) if wants_leaves else None
        trees, size, _ = leaves.shape
        others = 1 << torch.arange(tests.shape[2])
        count = max(1, _ELEMENTS // (len(leaf) * size))
        slopes = slope.repeat_interleave(ctx.each, dim=1) if ctx.each else slope
        for first in range(0, trees, count):
            part = slice(first, first + count)
            here = leaf[:, part, None]
            if of_leaves is not None:
                _scatter(of_leaves[part], leaf[:, part], slopes[:, part] if ctx.each else slopes, shared=not ctx.each)
            if of_tests is not None:
                if ctx.each:
                    table, begins = leaves[part].flatten(), torch.arange(leaves[part].shape[0])[:, None] * size
                    gain = slopes[:, part, None] * (table[here + begins] - table[(here ^ others) + begins])
                else:
                    worth = (slopes @ leaves[part].flatten(0, 1).t()).reshape(len(here), -1, size)
                    gain = worth.gather(2, here) - worth.gather(2, here ^ others)
                of_tests[:, part] = (2 * tests[:, part] - 1) * gain
        return of_tests, of_leaves, None


def _scatter(total: Tensor, leaf: Tensor, slope: Tensor, *, shared: bool) -> None:
    """Add each row's gradient to the leaves that it reached, in place."""
    trees, size, width = total.shape
    rows = (leaf + torch.arange(trees) * size).reshape(-1)
    slopes = slope[:, None, :].expand(-1, trees, -1) if shared else slope[:, :, None]
    total.view(-1, width).index_add_(0, rows, slopes.reshape(-1, width))


def _column(values: Any, behind: int) -> Tensor:
    """One number for each channel, followed by axes of size 1."""
    return torch.from_numpy(np.asarray(values, np.float32).reshape(-1, *(1,) * behind).copy())


parametrize = torch.nn.utils.parametrize
WeightLevels = Literal["8bit", "4bit", "ternary", "binary"]
_OUTPUT_AXIS = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1}  # of the weight; for Gemm it depends on transB
_THRESHOLD = 0.66  # for normalised values: between the ternary levels
_WHOLE = {"8bit": 127, "4bit": 7}  # the largest whole number


class LevelLayer(torch.nn.Module):  # type: ignore[misc]
    """A tensor's levels and their values, for each channel or feature; they are trained.

    Args:
        low: a value above it does not have the lowest level; float32, one for each channel or feature.
        high: a value above it has the highest level.
        values: channels or features x 3.
    """

    def __init__(self, low: Array, high: Array, values: Array) -> None:
        super().__init__()
        self.low, self.high, self.values = (torch.nn.Parameter(torch.from_numpy(a.copy())) for a in (low, high, values))
        reach = (values.max(axis=1) - values.min(axis=1)) / 2  # distance from a threshold within which gradients pass
        self.register_buffer("reach", torch.from_numpy(np.where(reach > 0, reach, 1).astype(np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        """Replace N x channels x ... by the levels' values, in the same shape."""
        rows = x.float().movedim(1, -1)
        low, high = self._thresholds()
        return chosen(step(rows - low, self.reach), step(rows - high, self.reach), self.values).movedim(-1, 1)

    def levels(self) -> tuple[Array, Array, Array]:
        """Present thresholds and values."""
        return tuple(tensor.detach().numpy().copy() for tensor in (*self._thresholds(), self.values))

    def _thresholds(self) -> tuple[Tensor, Tensor]:
        return self.low, torch.maximum(self.high, self.low)


def quantise_weights(network: Network, levels: WeightLevels, spare: frozenset[str]) -> None:
    """Quantise weights of convolutions and products in the forward pass, in place; float weights are trained.

    Ternary: +-0.66 of the output channel's spread, and the mean of what lies beyond (Li and Liu, 2016, "Ternary
    Weight Networks", section 2.2); binary: the sign times the mean size (Rastegari et al., 2016, "XNOR-Net", section
    3.1): the scales of the most similar tensor. 4 and 8 bits: whole numbers times a step, one for each channel.

    Args:
        network: any network.
        levels: of the weights.
        spare: names of initializers that keep their precision.
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
    """Parameters and statistics as in :func:`~framefit.training.network.state`, with weights as they are used."""
    arrays = state(network)
    names = {id(parameter): name for name, parameter in network.weights.items()}
    for module in network.layers:
        if parametrize.is_parametrized(module, "weight"):
            arrays[names[id(module.parametrizations.weight.original)]] = module.weight.detach().numpy().copy()
    return arrays


class _Quantised(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, levels: WeightLevels, axis: int) -> None:
        super().__init__()
        self._levels, self._axis = levels, axis

    def forward(self, weight: Tensor) -> Tensor:
        with torch.no_grad():
            rows = weight.detach().movedim(self._axis, 0)
            quantised = _levelled(rows.flatten(1), self._levels).reshape(rows.shape).movedim(0, self._axis)
        return through(weight, quantised)


def _levelled(rows: Tensor, levels: WeightLevels) -> Tensor:
    """Quantised weights, output channels x weights."""
    size = rows.abs()
    if levels in _WHOLE:
        unit = size.amax(dim=1, keepdim=True) / _WHOLE[levels]
        return torch.round(rows / torch.where(unit > 0, unit, 1)) * unit
    beyond = size > _THRESHOLD * rows.std(dim=1, keepdim=True, correction=0) if levels == "ternary" else size >= 0
    scale = (size * beyond).sum(dim=1, keepdim=True) / beyond.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(rows < 0, -scale, scale) * beyond
