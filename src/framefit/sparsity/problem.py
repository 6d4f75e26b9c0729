"""The one problem that all solvers work on: which level of sparsity each layer gets."""

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
"""A level for each layer: int64, L."""


@dataclass(frozen=True)
class PrunableLayer:
    """What is known of a layer before anything is removed; a group of coupled channels is one, too.

    Attributes:
        name: as in the model.
        outputs, inputs: channels, or features.
        height, width: of what it reads; 1 for a fully connected layer.
        stride, kernel: 1 for a fully connected layer.
        parameters: its weights.
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
    """Layers, what they may become, what that costs, and what it does to the network.

    Attributes:
        layers: L of them, in the order of execution.
        levels: L x S, part of each layer's weights that is zero; ascending, the first is the layer as it is.
        cycles: L x S, of the layer at that level; need not fall with the level.
        errors: L x S, what the level is expected to add to the network's loss; the first is 0.
        fixed_cycles: of everything that no level changes.
        evaluate: the accuracy (0 to 1) of the network with an assignment; only forwards.

    Raises:
        ValueError: tables of other shapes, not finite, or whose first level has an error.
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
        """Nothing removed."""
        return np.zeros(len(self.layers), np.int64)

    @property
    def dense_cycles(self) -> int:
        """Of the whole network, nothing removed."""
        return self.total(self.dense)

    @cached_property
    def least_layer_cycles(self) -> Ints:
        """L, what each layer takes at least."""
        found: Ints = self.cycles.min(axis=1)
        return found

    @property
    def least_cycles(self) -> int:
        """Of the whole network at the strongest levels."""
        return int(self.least_layer_cycles.sum()) + self.fixed_cycles

    def total(self, assignment: Assignment) -> int:
        """Cycles of the whole network."""
        return int(self.cycles[np.arange(len(self.layers)), assignment].sum()) + self.fixed_cycles

    def error(self, assignment: Assignment) -> float:
        """Sum of the layers' errors."""
        return float(self.errors[np.arange(len(self.layers)), assignment].sum())

    def sparsities(self, assignment: Assignment) -> Floats:
        """L, part of each layer's weights that is zero."""
        found: Floats = self.levels[np.arange(len(self.layers)), assignment]
        return found

    def level_at_most(self, layer: int, cycles: float) -> int:
        """The useful level of the least error that takes at most so many cycles; the fastest where none does."""
        useful = self.envelopes[layer]
        fits = np.flatnonzero(self.cycles[layer, useful] <= cycles)
        return int(useful[fits[0]] if len(fits) else useful[-1])

    def level_from(self, layer: int, sparsity: float) -> int:
        """The first useful level with at least this part of zeros; the last where none has it."""
        useful = self.envelopes[layer]
        found = np.flatnonzero(self.levels[layer, useful] >= sparsity - 1e-9)
        return int(useful[found[0]] if len(found) else useful[-1])

    def check_budget(self, budget_cycles: int) -> None:
        """Refuse a budget that no assignment meets.

        Raises:
            InfeasibleError: it names what is reachable.
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
        """The same problem for a search that knows no hardware.

        Args:
            to: what its cycles are: multiply-accumulates that are left, or weights.
        """
        counts = [layer.macs if to == "macs" else layer.parameters for layer in self.layers]
        left = np.rint(np.asarray(counts, np.float64)[:, None] * (1 - self.levels))
        return replace(self, cycles=left.astype(np.int64), fixed_cycles=0)


def envelope(cycles: npt.ArrayLike, errors: npt.ArrayLike) -> Ints:
    """Levels that are worth having: no other has at most the cycles and at most the error.

    Cycles of a device need not fall with sparsity: skipping may cost more than it saves. Such levels
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
    """What an assignment is worth.

    Args:
        kind: "accuracy-log-cycles", as published: it grows with the cycles and is safe only where these
            are kept below a target; "error-log-cycles": minus the error times log(cycles), which falls
            with the cycles (both: He et al., 2018, "AMC: AutoML for Model Compression", section 3.3).
        accuracy: 0 to 1.
        cycles: of the network.
    """
    scale = float(np.log(max(cycles, 2)))
    return accuracy * scale if kind == "accuracy-log-cycles" else (accuracy - 1) * scale
