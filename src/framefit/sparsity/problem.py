"""The problem that all solvers work on: which level of sparsity each layer gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from framefit.core.sparsity import RewardKind
from framefit.errors import InfeasibleError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Assignment = Ints
"""Level of each layer: int64, L."""


@dataclass(frozen=True)
class PrunableLayer:
    """What is known of a layer before anything is removed; a group of coupled channels is one, too.

    Attributes:
        name: as in the model.
        outputs, inputs: channels, or features.
        height, width: of its input; 1 for a fully connected layer, and for signals the height, which of volumes is all
            but the last axis.
        stride, kernel: along the first axis; 1 for a fully connected layer.
        parameters: number of its weights.
        macs: multiply-accumulates of one frame, zeros included.
        extra: a statistic of its Hessian, or 0.
    """

    name: str
    outputs: int
    inputs: int
    height: int
    width: int
    stride: int
    kernel: int
    parameters: int
    macs: int
    extra: float = 0.0


@dataclass(frozen=True)
class Problem:
    """Layers with their levels of sparsity, the cycles of each level, and its effect on the network.

    Attributes:
        layers: L of them, in the order of execution.
        levels: L x S, part of each layer's weights that is zero; ascending, the first is the layer as it is.
        cycles: L x S, of the layer at that level; they need not fall with the level.
        errors: L x S, estimated increase of the network's loss; the first is 0.
        fixed_cycles: of everything that no level changes.
        evaluate: the accuracy (0 to 1) of the network with an assignment, by forward passes only.

    Raises:
        ValueError: tables have other shapes, are not finite, or the first level has an error.
    """

    layers: Sequence[PrunableLayer]
    levels: Floats
    cycles: Ints
    errors: Floats
    fixed_cycles: int
    evaluate: Callable[[Assignment], float]

    def __post_init__(self) -> None:
        shape = self.levels.shape
        if len(shape) != 2 or shape[0] != len(self.layers) or {self.cycles.shape, self.errors.shape} != {shape}:
            shapes = f"{shape}, {self.cycles.shape} and {self.errors.shape}"
            raise ValueError(f"tables of {shapes} for {len(self.layers)} layers")
        if not np.isfinite(self.errors).all() or (self.cycles < 0).any():
            raise ValueError("errors must be finite, cycles not negative")
        if (self.errors[:, 0] != 0).any():
            raise ValueError("the first level must be the layer as it is, without an error")
        if (np.diff(self.levels, axis=1) < 0).any() or (self.levels > 1).any():
            raise ValueError("levels must ascend, and end at 1")

    @cached_property
    def envelopes(self) -> tuple[Ints, ...]:
        """Each layer's useful levels: see :func:`envelope`."""
        return tuple(envelope(cycles, errors) for cycles, errors in zip(self.cycles, self.errors, strict=True))

    @property
    def dense(self) -> Assignment:
        """The assignment that removes nothing."""
        return np.zeros(len(self.layers), np.int64)

    @property
    def dense_cycles(self) -> int:
        """Cycles of the whole network with nothing removed."""
        return self.total(self.dense)

    @cached_property
    def least_layer_cycles(self) -> Ints:
        """L, the fewest cycles of each layer."""
        least: Ints = self.cycles.min(axis=1)
        return least

    @property
    def least_cycles(self) -> int:
        """Cycles of the whole network with as much removed as possible."""
        return int(self.least_layer_cycles.sum()) + self.fixed_cycles

    def total(self, assignment: Assignment) -> int:
        """Cycles of the whole network with an assignment."""
        return int(self.cycles[np.arange(len(self.layers)), assignment].sum()) + self.fixed_cycles

    def error(self, assignment: Assignment) -> float:
        """Sum of the layers' errors with an assignment."""
        return float(self.errors[np.arange(len(self.layers)), assignment].sum())

    def sparsities(self, assignment: Assignment) -> Floats:
        """L, part of each layer's weights that is zero."""
        sparsities: Floats = self.levels[np.arange(len(self.layers)), assignment]
        return sparsities

    def level_at_most(self, layer: int, cycles: float) -> int:
        """The useful level of least error that takes at most ``cycles``; the fastest level where none does."""
        useful = self.envelopes[layer]
        fits = np.flatnonzero(self.cycles[layer, useful] <= cycles)
        return int(useful[fits[0]] if len(fits) else useful[-1])

    def level_from(self, layer: int, sparsity: float) -> int:
        """The first useful level with at least this part of zeros; the last level where none has it."""
        useful = self.envelopes[layer]
        enough = np.flatnonzero(self.levels[layer, useful] >= sparsity - 1e-9)
        return int(useful[enough[0]] if len(enough) else useful[-1])

    def check_budget(self, budget_cycles: int) -> None:
        """Refuse a budget that no assignment meets.

        Raises:
            InfeasibleError: its message names the cycles that can be reached.
        """
        if self.least_cycles > budget_cycles:
            dense, least = self.dense_cycles, self.least_cycles
            raise InfeasibleError(
                f"{budget_cycles:,} cycles ({budget_cycles / dense:.3f} of the dense {dense:,}) are out of reach: "
                f"with everything removed that may be, {least:,} ({least / dense:.3f}) are left",
                remedy=f"ask for at least {np.ceil(1000 * least / dense) / 1000:.3f} of the dense cycles, "
                "or choose another pattern or target",
            )

    def blind(self, to: Literal["macs", "weights"] = "macs") -> Problem:
        """The same problem for a search that ignores the hardware.

        Args:
            to: what replaces its cycles: multiply-accumulates that remain, or weights.
        """
        counts = [layer.macs if to == "macs" else layer.parameters for layer in self.layers]
        left = np.rint(np.asarray(counts, np.float64)[:, None] * (1 - self.levels))
        return replace(self, cycles=left.astype(np.int64), fixed_cycles=0)


def envelope(cycles: npt.ArrayLike, errors: npt.ArrayLike) -> Ints:
    """Select the Pareto-optimal levels: no other one has at most their cycles and at most their error.

    Cycles of a device need not fall with sparsity: skipping zeros may cost more than it saves. Such levels
    are left out, so that a layer stays dense below its break-even.

    Args:
        cycles: S.
        errors: S; the first is the dense layer's, 0.

    Returns:
        Indices of levels, from the dense one on: cycles fall strictly, errors do not fall.
    """
    spent, wrong = np.asarray(cycles), np.asarray(errors)
    kept: list[int] = []
    for level in np.lexsort((np.arange(len(spent)), spent, wrong)):
        if not kept or spent[level] < spent[kept[-1]]:
            kept.append(int(level))
    return np.asarray(kept, np.int64)


def reward(kind: RewardKind, accuracy: float, cycles: int) -> float:
    """Reward of an assignment.

    Args:
        kind: "accuracy-log-cycles", as published: it grows with the cycles and is safe only where these
            are kept below a target; "error-log-cycles": minus the error times log(cycles), which falls
            with the cycles (both: He et al., 2018, "AMC: AutoML for Model Compression", section 3.3).
        accuracy: 0 to 1.
        cycles: of the network.
    """
    scale = float(np.log(max(cycles, 2)))
    return accuracy * scale if kind == "accuracy-log-cycles" else (accuracy - 1) * scale
