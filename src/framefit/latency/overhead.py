"""The overhead of a launch, and the auxiliary layer's own time, from medians of runs.

Every function works on many replicates of the same measurement at once: row 0 holds the medians,
the others what they would have been with other samples (bootstrap; Efron and Tibshirani, 1993,
"An Introduction to the Bootstrap", chapter 6), so that each result carries its own interval.

Which auxiliary runs tell the overhead apart from the auxiliary layer's own time.

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
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import Overhead
from framefit.core.model import Auxiliary, AuxiliaryKind, Model, TensorInfo, with_auxiliary

__all__ = [
    "RESOLUTION_NS",
    "AuxiliaryTimes",
    "Coefficients",
    "Contrast",
    "OverheadDesign",
    "auxiliaries_for",
    "condition_number",
    "fit_auxiliary_times",
    "fit_overhead",
    "input_bytes",
    "interval",
    "middle",
    "overhead_design",
    "replicates",
]


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


Floats = npt.NDArray[np.float64]
REPLICATES = 200
_HUBER = 1.345  # 95 % as sharp as least squares where errors are normal (Huber, 1981, "Robust Statistics")
_TURNS = 10
_LEAST_SIZES = 3  # for a bend
_BENT = 3.0  # mean square over noise of five residuals: 1 % by chance
RESOLUTION_NS = 1.0
"""Of what is measured: no run is known better."""


@dataclass(frozen=True)
class Bend:
    """How far transfers of one direction depart from a straight line, between measured sizes.

    Caches make them: what fits is moved faster than what does not.

    Attributes:
        sizes_bytes: ascending.
        values: replicates x sizes, ns.
    """

    sizes_bytes: Floats
    values: Floats

    def of(self, size_bytes: float) -> Floats:
        """In ns at a size, one a replicate; beyond the measured ones as at the last of them."""
        shares = [np.interp(size_bytes, self.sizes_bytes, one) for one in np.eye(len(self.sizes_bytes))]
        return np.asarray(self.values @ np.asarray(shares))


@dataclass(frozen=True)
class Coefficients:
    """An overhead's coefficients, a row each replicate.

    Attributes:
        values: replicates x (ns per input byte, ns per output byte, ns per launch).
        condition_number: of the regression.
        input_bend, output_bend: where transfers are no straight line, beyond noise.
    """

    values: Floats
    condition_number: float
    input_bend: Bend | None = None
    output_bend: Bend | None = None

    def of(self, input_bytes: float, output_bytes: float) -> Floats:
        """Overhead in ns of a launch that hands over so much, one a replicate."""
        total: Floats = self.values @ np.asarray([input_bytes, output_bytes, 1.0])
        for bend, size in ((self.input_bend, input_bytes), (self.output_bend, output_bytes)):
            if bend is not None:
                total = total + bend.of(size)
        return total

    def record(self, auxiliary: str, lack_of_fit_ns: float) -> Overhead:
        """As a latency table keeps it."""
        into, out, launch = self.values[0].tolist()
        low, high = np.quantile(self.values[1:], (0.05, 0.95), axis=0).tolist()
        return Overhead(
            input_ns_per_byte=into,
            output_ns_per_byte=out,
            intercept_ns=launch,
            condition_number=self.condition_number,
            auxiliary=auxiliary,
            input_interval=(min(low[0], into), max(high[0], into)),
            output_interval=(min(low[1], out), max(high[1], out)),
            intercept_interval_ns=(min(low[2], launch), max(high[2], launch)),
            lack_of_fit_ns=lack_of_fit_ns,
        )


@dataclass(frozen=True)
class AuxiliaryTimes:
    """What auxiliary layers take themselves.

    Attributes:
        values: replicates x layers, in the order in which they were given.
        deviation_ns: of each layer: what the model may be wrong by beside the noise.
        lack_of_fit_ns: standard deviation of the affine model's residuals that noise does not explain.
    """

    values: Floats
    deviation_ns: Floats
    lack_of_fit_ns: float


def replicates(rounds_ns: Sequence[Floats], random: np.random.Generator, kept_ratio: float | None = None) -> Floats:
    """Medians of runs, and what they might have been.

    Args:
        rounds_ns: of each run, the medians of its rounds.
        random: draws rounds anew, with replacement.
        kept_ratio: the mean of this part of the rounds, the shortest, instead of the median of all.

    Returns:
        (1 + ``REPLICATES``) x runs: medians of medians.
    """
    table = np.empty((1 + REPLICATES, len(rounds_ns)))
    for column, values in enumerate(rounds_ns):
        drawn = random.integers(0, len(values), (REPLICATES, len(values)))
        table[0, column] = middle(values[None], kept_ratio)[0]
        table[1:, column] = middle(values[drawn], kept_ratio)
    return table


def middle(values: Floats, kept_ratio: float | None) -> Floats:
    """Of each row: the median, or the mean of the shortest; see :func:`replicates`."""
    if kept_ratio is None:
        return np.asarray(np.median(values, axis=1))
    kept = max(round(kept_ratio * values.shape[1]), 1)
    return np.asarray(np.sort(values, axis=1)[:, :kept].mean(axis=1))


def interval(values: Floats) -> tuple[float, float]:
    """90 % interval from replicates; row 0, the value itself, is inside."""
    low, high = np.quantile(values[1:], (0.05, 0.95))
    return float(min(low, values[0])), float(max(high, values[0]))


def fit_overhead(contrasts: Sequence[Contrast], medians: Floats) -> Coefficients:
    """Robust regression with coefficients that are not negative.

    Weighted by the contrasts' own noise, and against outliers by Huber's weights; where a
    coefficient would be negative it is 0, whichever choice of zeros fits best.

    Args:
        contrasts: over the columns of ``medians``.
        medians: replicates x runs, as :func:`replicates` gives them.
    """
    combine = np.zeros((len(contrasts), medians.shape[1]))
    for row, contrast in enumerate(contrasts):
        np.add.at(combine[row], list(contrast.runs), contrast.weights)  # equal models are one run
    observed = medians @ combine.T
    rows = np.asarray([contrast.row for contrast in contrasts], np.float64)
    noise = np.hypot(observed[1:].std(axis=0), RESOLUTION_NS)
    weights = 1 / noise
    for _ in range(_TURNS):
        residual = np.abs(observed[0] - rows @ _least_squares(rows, observed[0], weights)) / noise
        scale = max(1.4826 * float(np.median(residual)), 1.0)
        weights = np.sqrt(np.minimum(1, _HUBER * scale / np.maximum(residual, 1e-12))) / noise
    values = np.stack([_least_squares(rows, one, weights) for one in observed])
    left = observed - values @ rows.T
    into, out = rows[:, 0] * (rows[:, 1] == 0), rows[:, 1] * (rows[:, 0] == 0)
    condition = condition_number(rows * weights[:, None])
    return Coefficients(values, condition, _bend(into, left, noise), _bend(out, left, noise))


def _bend(sizes_bytes: Floats, left: Floats, noise: Floats) -> Bend | None:
    """What a straight line leaves of contrasts of one direction, as far as noise does not explain it.

    Args:
        sizes_bytes: of the contrasts; 0: of another direction.
        left: replicates x contrasts.
        noise: standard deviation of each.
    """
    own = np.flatnonzero(sizes_bytes > 0)
    own = own[np.argsort(sizes_bytes[own])]
    squares = left[0, own] ** 2
    if len(own) < _LEAST_SIZES or np.mean(squares / noise[own] ** 2) < _BENT:
        return None
    unexplained = max(float(np.mean(squares - noise[own] ** 2)), 0.0)
    share = unexplained / (unexplained + noise[own] ** 2)
    return Bend(sizes_bytes[own], left[:, own] * share)


def fit_auxiliary_times(
    features: Floats, singles_ns: Floats, overhead_ns: Floats, which: Sequence[int]
) -> AuxiliaryTimes:
    """The auxiliary layer's own time: what is left of its runs alone, smoothed.

    An affine model of all of them (bytes read, bytes written, multiply-accumulates), and of each
    one's departure from it the part that noise does not explain (shrinkage; Efron and Morris,
    1975, "Data Analysis Using Stein's Estimator and its Generalizations"): many runs help each
    other where the model holds, and each stands for itself where it does not.

    Args:
        features: runs x features.
        singles_ns: replicates x runs: of one auxiliary layer alone.
        overhead_ns: replicates x runs: of these launches.
        which: the runs that are asked for.
    """
    observed = singles_ns - overhead_ns
    noise = np.hypot(singles_ns[1:].std(axis=0), RESOLUTION_NS)
    scaled = np.column_stack([features, np.ones(len(features))])
    scaled /= np.maximum(np.abs(scaled).max(axis=0), 1e-12)
    weighted = scaled / noise[:, None]
    solve = np.linalg.pinv(weighted, rcond=1e-8)
    smooth = (observed / noise) @ solve.T @ scaled.T
    left = observed - smooth
    leverage = np.minimum(np.einsum("ij,ji->i", weighted, solve), 0.999)
    unexplained = np.mean(left[0] ** 2 / (1 - leverage) - noise**2)
    if len(features) <= scaled.shape[1]:  # nothing to judge the model by
        unexplained = np.inf
    variance = max(float(unexplained), 0.0)
    share = np.ones(len(noise)) if np.isinf(variance) else variance / (variance + noise**2)
    values = np.maximum(smooth + share * left, 0)
    known = 0.0 if np.isinf(variance) else variance
    deviation = np.sqrt(known * (1 - share))
    index = list(which)
    return AuxiliaryTimes(values[:, index], deviation[index], float(np.sqrt(known)))


def _least_squares(rows: Floats, observed: Floats, weights: Floats) -> Floats:
    """Coefficients of at least 0; few enough to try every choice of those that are 0."""
    target = observed * weights
    scaled = rows * weights[:, None]
    count, best, least = rows.shape[1], np.zeros(rows.shape[1]), float(target @ target)
    for size in range(count, 0, -1):
        for free in itertools.combinations(range(count), size):
            part = scaled[:, free]
            found = np.linalg.lstsq(part, target, rcond=None)[0]
            if (found < 0).any():
                continue
            left = target - part @ found
            if float(left @ left) < least:
                least, best = float(left @ left), np.zeros(count)
                best[list(free)] = found
        if best.any() and size == count:
            break
    return best
