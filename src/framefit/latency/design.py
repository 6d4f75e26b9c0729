"""Which auxiliary runs tell the overhead apart from the auxiliary layer's own time.

With start and end alone, chains of layers on one tensor cannot do it: adding any function of a
tensor's size to what reads it and taking it from what writes it changes no total. Three kinds of
graphs break that symmetry, and in a fixed combination of them the auxiliary layer's own time
cancels (s, m: bytes of a launch's input and of what the first layer makes of it):

- a twin of the layer on the same input reads it once more, but nothing more is sent in:
  T(layer) + T(twin) - T(layer and twin) = a s + c;
- an intermediate tensor that is returned as well costs its transfer and nothing else:
  T(chain, m returned) - T(chain) = b m;
- two launches instead of one hand a tensor out and in again:
  T(first) + T(second) - T(chain) = c + (a + b) m.

The overhead model a x input bytes + b x output bytes + c is the original method's; these
combinations, by which it is fitted free of the auxiliary layer, are Framefit's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.model import Auxiliary, AuxiliaryKind, Model, TensorInfo, with_auxiliary

__all__ = ["Contrast", "OverheadDesign", "auxiliaries_for", "condition_number", "input_bytes", "overhead_design"]

LEVELS = 5
_CHANNELS = 16
_LEAST_SIDE = 4
_MOST_BYTES = 4 << 20  # transfers of more are taken to go on in a straight line


@dataclass(frozen=True)
class Contrast:
    """A combination of runs in which the auxiliary layers' own time cancels.

    Attributes:
        runs: indices of runs, and
        weights: their factors.
        row: of the overhead's regression: input bytes, output bytes, launches.
    """

    runs: tuple[int, ...]
    weights: tuple[int, ...]
    row: tuple[int, int, int]

    def over(self, places: Sequence[int]) -> Contrast:
        """The same over runs that lie at these places."""
        return dataclasses.replace(self, runs=tuple(places[run] for run in self.runs))


@dataclass(frozen=True)
class OverheadDesign:
    """Auxiliary-only runs over a grid of input and output sizes.

    Attributes:
        models: what to run.
        contrasts: over these models.
        singles: models of one auxiliary layer: index, the layer, the shape that it reads.
    """

    models: tuple[Model, ...]
    contrasts: tuple[Contrast, ...]
    singles: tuple[tuple[int, Auxiliary, tuple[int, ...]], ...]


def overhead_design(kind: AuxiliaryKind, sizes_bytes: Iterable[int], seed: int = 0) -> OverheadDesign:
    """Runs of one kind of auxiliary layer, their sizes spread over those that occur.

    Input sizes are quantiles of those that occur, so that the overhead is known best where layers
    are; strides alternate, so that output sizes do not follow input sizes.

    Args:
        kind: of the auxiliary layers.
        sizes_bytes: of the tensors that the campaign hands over; at least one.
        seed: of the weights.
    """
    sizes = np.minimum(np.fromiter(sizes_bytes, np.float64), _MOST_BYTES)
    levels = np.quantile(sizes, np.linspace(0, 1, LEVELS))
    shapes = dict.fromkeys(map(_shape, levels))
    if len(shapes) < LEVELS:  # many of one size
        shapes = dict.fromkeys(map(_shape, np.linspace(levels[0], levels[-1], LEVELS)))
    models: list[Model] = []
    contrasts: list[Contrast] = []
    singles = []
    for level, shape in enumerate(shapes):
        wide = level % 2 == 1
        first = Auxiliary(kind=kind, stride=1 if wide else 2, channels=2 * _CHANNELS if wide else _CHANNELS)
        last = Auxiliary(kind=kind, stride=4, channels=_CHANNELS)
        middle = first.output_shape(shape)
        source = TensorInfo(name="x", dtype="float32", shape=shape)
        between = TensorInfo(name="x", dtype="float32", shape=middle)
        one, second, other, both, chain, shown = range(len(models), len(models) + 6)
        models += [
            with_auxiliary(source, [first], seed=seed),
            with_auxiliary(between, [last], seed=seed),
            with_auxiliary(source, [first], variants=(1,), seed=seed),
            with_auxiliary(source, [first], variants=(0, 1), seed=seed),
            with_auxiliary(source, [first, last], seed=seed),
            with_auxiliary(source, [first, last], shown=True, seed=seed),
        ]
        into, through = input_bytes(models[one]), input_bytes(models[second])
        contrasts += [
            Contrast((one, other, both), (1, 1, -1), (into, 0, 1)),
            Contrast((shown, chain), (1, -1), (0, through, 0)),
            Contrast((one, second, chain), (1, 1, -1), (through, through, 1)),
        ]
        singles += [(one, first, shape), (second, last, middle)]
    return OverheadDesign(tuple(models), tuple(contrasts), tuple(singles))


def auxiliaries_for(shapes: Sequence[tuple[int, ...]], kind: AuxiliaryKind) -> dict[tuple[int, ...], Auxiliary]:
    """An auxiliary layer for each shape: strides and channels alternate by size, for the same reason."""
    ordered = sorted(dict.fromkeys(shapes), key=lambda shape: (math.prod(shape), shape))
    return {
        shape: Auxiliary(
            kind=kind, stride=2 if place % 2 else 4, channels=_CHANNELS if place % 4 < 2 else 2 * _CHANNELS
        )
        for place, shape in enumerate(ordered)
    }


def condition_number(rows: npt.ArrayLike) -> float:
    """Of a design, its columns scaled to length 1 (Belsley, Kuh and Welsch, 1980, "Regression Diagnostics").

    Args:
        rows: observations x coefficients.
    """
    columns = np.asarray(rows, np.float64)
    length = np.linalg.norm(columns, axis=0)
    return float(np.linalg.cond(columns / np.where(length > 0, length, 1.0)))


def input_bytes(model: Model) -> int:
    """What a launch hands over to the device."""
    return sum(tensor.bytes for tensor in model.inputs)


def _shape(size_bytes: float) -> tuple[int, ...]:
    side = max(round(math.sqrt(size_bytes / 4 / _CHANNELS)), _LEAST_SIDE)
    return (1, _CHANNELS, side, side)
