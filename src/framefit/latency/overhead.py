"""The overhead of a launch beside the measured layer, estimated from launches of other layers.

Only start and end of launches are seen, so layers are launched together with other layers, and these also
without the measured one. There are two models of the overhead: :class:`AffineOverhead`, where tensors are
transferred to a device, and :class:`ResidentOverhead`, where the host itself computes.

From start and end alone, chains of layers on one tensor cannot separate the overhead from the auxiliary layer's
own time: adding a function of a tensor's size to the time of its reader and subtracting it from that of its
writer changes no total. Three kinds of graphs break that symmetry, and in fixed combinations of them the
auxiliary layer's own time cancels (s, m: bytes of a launch's input and of the first layer's output):
- a twin of the layer on the same input reads it once more, but it is transferred only once:
  T(layer) + T(twin) - T(layer and twin) = a s + c;
- an intermediate tensor that is also returned costs its transfer and nothing else:
  T(chain, m returned) - T(chain) = b m;
- two launches instead of one transfer a tensor out and in again:
  T(first) + T(second) - T(chain) = c + (a + b) m.

The overhead model a x input bytes + b x output bytes + c is the original method's; these combinations,
which make its fit independent of the auxiliary layer, are Framefit's own.

Drivers that pin pages, or copy through buffers, are not affine in bytes. So the first combination is launched at every
input size that occurs, with outputs so small that they cost the same: it gives the overhead of that size whatever the
law is. Departures from the straight line count as far as they exceed the noise (shrinkage), and the uncertainty
that remains widens the intervals.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import Overhead
from framefit.core.model import (
    AUXILIARY_KINDS,
    Auxiliary,
    AuxiliaryKind,
    Model,
    TensorInfo,
    auxiliary_runs,
    led,
    picture_shape,
    with_auxiliary,
)
from framefit.devices.device import Device
from framefit.errors import DeviceError, FramefitError
from framefit.latency.rounds import Rounds, interval
from framefit.latency.subjects import Subject
from framefit.stats import huber_weights

Floats = npt.NDArray[np.float64]
Method = Literal["regression", "auxiliary"]
RESOLUTION_NS = 1.0
"""Least uncertainty of a run's latency."""
_LEVELS = 5
_CHANNELS = 16
_LEAST_SIDE = 4
_MOST_BYTES = 16 << 20  # transfers of more bytes are assumed to be linear
_MOST_SIZES = 24  # input sizes that are launched themselves; others are interpolated
_SMALL = 64  # elements of a twin's output, about: returning them costs nearly the same for all


@dataclass(frozen=True)
class Contrast:
    """A combination of runs in which the auxiliary layers' own time cancels.

    Attributes:
        runs: indices of runs, with these
        weights: their factors.
        row: of the overhead's regression: input bytes, output bytes, launches.
    """

    runs: tuple[int, ...]
    weights: tuple[int, ...]
    row: tuple[int, int, int]

    def over(self, places: Sequence[int]) -> Contrast:
        """The same contrast for runs with these indices."""
        return dataclasses.replace(self, runs=tuple(places[run] for run in self.runs))


@dataclass(frozen=True)
class OverheadDesign:
    """Runs of auxiliary layers alone over a grid of input and output sizes.

    Attributes:
        models: models to run.
        contrasts: over these models.
        singles: models of one auxiliary layer: index, the layer, and the shape of its input.
    """

    models: tuple[Model, ...]
    contrasts: tuple[Contrast, ...]
    singles: tuple[tuple[int, Auxiliary, tuple[int, ...]], ...]


def overhead_design(kind: AuxiliaryKind, sizes_bytes: Iterable[int], seed: int = 0) -> OverheadDesign:
    """Choose runs of one kind of auxiliary layer, with sizes spread over those that occur.

    Twins are launched at all sizes that occur, at most 24; the other combinations at quantiles of these, so that the
    overhead is known best at the sizes of layers; their strides alternate, so that output sizes do not follow input
    sizes. ``sizes_bytes`` are those of the tensors that the campaign transfers, at least one.
    """
    sizes = np.minimum(np.fromiter(sizes_bytes, np.float64), _MOST_BYTES)
    models: list[Model] = []
    contrasts: list[Contrast] = []
    singles: list[tuple[int, Auxiliary, tuple[int, ...]]] = []
    occurring = np.unique(sizes)
    if len(occurring) > _MOST_SIZES:
        occurring = np.unique(np.quantile(occurring, np.linspace(0, 1, _MOST_SIZES), method="nearest"))
    for size in occurring:
        picture = picture_shape((math.ceil(size / 4),))
        source = TensorInfo(name="x", dtype="float32", shape=picture)
        link = _small(kind, picture)
        one, twin, both = range(len(models), len(models) + 3)
        models += [with_auxiliary(source, [link], variants=which, seed=seed) for which in ((0,), (1,), (0, 1))]
        contrasts.append(Contrast((one, twin, both), (1, 1, -1), (_input_bytes(models[one]), 0, 1)))
    levels = np.quantile(sizes, np.linspace(0, 1, _LEVELS))
    shapes = dict.fromkeys(map(_shape, levels))
    if len(shapes) < _LEVELS:  # many tensors have one size
        shapes = dict.fromkeys(map(_shape, np.linspace(levels[0], levels[-1], _LEVELS)))
    for level, shape in enumerate(shapes):
        wide = level % 2 == 1
        first = Auxiliary(kind=kind, stride=1 if wide else 2, channels=2 * _CHANNELS if wide else _CHANNELS)
        last = Auxiliary(kind=kind, stride=4, channels=_CHANNELS)
        between_shape = first.output_shape(shape)
        source = TensorInfo(name="x", dtype="float32", shape=shape)
        between = TensorInfo(name="x", dtype="float32", shape=between_shape)
        single, second, chain, shown = range(len(models), len(models) + 4)
        models += [
            with_auxiliary(source, [first], seed=seed),
            with_auxiliary(between, [last], seed=seed),
            with_auxiliary(source, [first, last], seed=seed),
            with_auxiliary(source, [first, last], shown=True, seed=seed),
        ]
        through = _input_bytes(models[second])
        contrasts += [
            Contrast((shown, chain), (1, -1), (0, through, 0)),
            Contrast((single, second, chain), (1, 1, -1), (through, through, 1)),
        ]
        singles += [(single, first, shape), (second, last, between_shape)]
    return OverheadDesign(tuple(models), tuple(contrasts), tuple(singles))


def _small(kind: AuxiliaryKind, shape: tuple[int, int, int, int]) -> Auxiliary:
    """An auxiliary layer whose output is small, and about equally so, whatever it reads."""
    channels = shape[1] if kind == "avgpool" else _CHANNELS
    side = max(math.isqrt(_SMALL // channels), 1)
    read = min(size for size in shape[2:] if size > 1) if max(shape[2:]) > 1 else 1
    return Auxiliary(kind=kind, stride=max(read // side, 1), channels=_CHANNELS)


def auxiliaries_for(shapes: Sequence[tuple[int, ...]], kind: AuxiliaryKind) -> dict[tuple[int, ...], Auxiliary]:
    """Choose an auxiliary layer for each shape: strides and channels alternate by size, as in the design."""
    ordered = sorted(dict.fromkeys(shapes), key=lambda shape: (math.prod(shape), shape))
    return {
        shape: Auxiliary(
            kind=kind, stride=2 if place % 2 else 4, channels=_CHANNELS if place % 4 < 2 else 2 * _CHANNELS
        )
        for place, shape in enumerate(ordered)
    }


def condition_number(rows: npt.ArrayLike) -> float:
    """Condition number of a design, its columns scaled to length 1.

    Rows are observations, columns coefficients (Belsley, Kuh and Welsch, 1980, "Regression Diagnostics").
    """
    columns = np.asarray(rows, np.float64)
    length = np.linalg.norm(columns, axis=0)
    return float(np.linalg.cond(columns / np.where(length > 0, length, 1.0)))


def _input_bytes(model: Model) -> int:
    """Bytes that a launch transfers to the device."""
    return sum(tensor.bytes for tensor in model.inputs)


def _shape(size_bytes: float) -> tuple[int, ...]:
    side = max(round(math.sqrt(size_bytes / 4 / _CHANNELS)), _LEAST_SIDE)
    return (1, _CHANNELS, side, side)


_TURNS = 10
_LEAST_SIZES = 3  # for a departure from a straight line
_SURE = 2.33  # standard deviations of a mean square: 1 % by chance


@dataclass(frozen=True)
class _Bend:
    """Departure of transfers in one direction from a straight line, at measured sizes and between them.

    Attributes:
        sizes_bytes: ascending.
        values: replicates x sizes, ns.
        deviations_ns: standard deviation of what the departures may still be wrong by, at each size.
    """

    sizes_bytes: Floats
    values: Floats
    deviations_ns: Floats

    def of(self, size_bytes: float) -> tuple[Floats, float]:
        """Departure in ns at a size for each replicate, and its model error; beyond the measured sizes the nearest."""
        shares = np.asarray([np.interp(size_bytes, self.sizes_bytes, unit) for unit in np.eye(len(self.sizes_bytes))])
        return np.asarray(self.values @ shares), float(self.deviations_ns @ shares)

    def record(self) -> tuple[tuple[float, float], ...]:
        """Sizes and departures, as a latency table stores them."""
        return tuple(zip(self.sizes_bytes.tolist(), self.values[0].tolist(), strict=True))


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of an overhead, one row for each replicate.

    Attributes:
        values: replicates x (ns per input byte, ns per output byte, ns per launch).
        condition_number: of the regression.
        input_bend, output_bend: departure of transfers from a straight line, beyond noise.
    """

    values: Floats
    condition_number: float
    input_bend: _Bend | None = None
    output_bend: _Bend | None = None

    def of(self, input_bytes: float, output_bytes: float) -> Floats:
        """Overhead in ns of a launch that transfers these bytes, for each replicate."""
        total: Floats = self.values @ np.asarray([input_bytes, output_bytes, 1.0])
        for bend, size in ((self.input_bend, input_bytes), (self.output_bend, output_bytes)):
            if bend is not None:
                total = total + bend.of(size)[0]
        return total

    def input_error_ns(self, input_bytes: float) -> float:
        """Standard deviation of what the overhead may be wrong by at this size of inputs, beside the noise."""
        return 0.0 if self.input_bend is None else self.input_bend.of(input_bytes)[1]

    def record(self, auxiliary: str, lack_of_fit_ns: float) -> Overhead:
        """Convert to the record of a latency table."""
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
            input_bend=() if self.input_bend is None else self.input_bend.record(),
            output_bend=() if self.output_bend is None else self.output_bend.record(),
        )


@dataclass(frozen=True)
class AuxiliaryTimes:
    """Own times of auxiliary layers.

    Attributes:
        values: replicates x layers, in the given order; negative where the overhead contains a part of them, which
            cancels where the same auxiliary layer follows a measured one.
        deviation_ns: of each layer: standard deviation of the model's error beside the noise.
        lack_of_fit_ns: standard deviation of the affine model's residuals that noise does not explain.
    """

    values: Floats
    deviation_ns: Floats
    lack_of_fit_ns: float


def fit_overhead(contrasts: Sequence[Contrast], medians: Floats) -> Coefficients:
    """Fit the overhead by robust regression with coefficients that are not negative.

    Contrasts are weighted by their own noise, and by Huber's weights against outliers; a coefficient that would
    be negative is 0, with the choice of zeros that fits best.

    Args:
        contrasts: over the columns of ``medians``.
        medians: replicates x runs, from :meth:`framefit.latency.rounds.Rounds.medians`.
    """
    combine = np.zeros((len(contrasts), medians.shape[1]))
    for row, contrast in enumerate(contrasts):
        np.add.at(combine[row], list(contrast.runs), contrast.weights)  # equal models share a run
    observed = medians @ combine.T
    rows = np.asarray([contrast.row for contrast in contrasts], np.float64)
    noise = np.hypot(observed[1:].std(axis=0), RESOLUTION_NS)
    weights = 1 / noise
    for _ in range(_TURNS):
        residual = (observed[0] - rows @ _least_squares(rows, observed[0], weights)) / noise
        weights = np.sqrt(huber_weights(residual, 1.0)) / noise
    values = np.stack([_least_squares(rows, replicate, weights) for replicate in observed])
    left = observed - values @ rows.T
    into, out = rows[:, 0] * (rows[:, 1] == 0), rows[:, 1] * (rows[:, 0] == 0)
    weighted = rows * weights[:, None]
    leverage = np.minimum(np.einsum("ij,ji->i", weighted, np.linalg.pinv(weighted)), 0.999)
    bends = (_bend(sizes, left, noise, leverage) for sizes in (into, out))
    return Coefficients(values, condition_number(weighted), *bends)


def _bend(sizes_bytes: Floats, left: Floats, noise: Floats, leverage: Floats) -> _Bend | None:
    """Residuals of contrasts in one direction around a straight line, as far as noise does not explain them.

    Args:
        sizes_bytes: of the contrasts; 0: in another direction.
        left: replicates x contrasts.
        noise: standard deviation of each.
        leverage: of each on its own fitted value, 0 to 1.
    """
    places = np.flatnonzero(sizes_bytes > 0)
    places = places[np.argsort(sizes_bytes[places])]
    if len(places) < _LEAST_SIZES:
        return None
    variances = noise[places] ** 2
    squares = left[0, places] ** 2 / (1 - leverage[places])
    unexplained = float(np.mean(squares - variances))
    if unexplained <= 0:
        return None
    sure = np.mean(squares / variances) > 1 + _SURE * math.sqrt(2 / len(places))
    share = sure * unexplained / (unexplained + variances)
    return _Bend(sizes_bytes[places], left[:, places] * share, np.sqrt(unexplained * (1 - share)))


def fit_auxiliary_times(
    features: Floats, singles_ns: Floats, overhead_ns: Floats, which: Sequence[int]
) -> AuxiliaryTimes:
    """Estimate the auxiliary layers' own times: their runs alone less the overhead, smoothed.

    An affine model of all runs (bytes read, bytes written, multiply-accumulates) is added to the part of each
    one's departure from it that noise does not explain (shrinkage; Efron and Morris, 1975, "Data Analysis Using
    Stein's Estimator and its Generalizations"): where the model holds, runs support each other, and where it does
    not, each run's own measurement counts.

    Args:
        features: runs x features.
        singles_ns: replicates x runs of one auxiliary layer alone.
        overhead_ns: replicates x runs, of these launches.
        which: indices of the requested runs.
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
    if len(features) <= scaled.shape[1]:  # too few runs to judge the model
        unexplained = np.inf
    variance = max(float(unexplained), 0.0)
    share = np.ones(len(noise)) if np.isinf(variance) else variance / (variance + noise**2)
    values = smooth + share * left
    known = 0.0 if np.isinf(variance) else variance
    deviation = np.sqrt(known * (1 - share))
    index = list(which)
    return AuxiliaryTimes(values[:, index], deviation[index], float(np.sqrt(known)))


def _least_squares(rows: Floats, observed: Floats, weights: Floats) -> Floats:
    """Coefficients of at least 0; every choice of zeros is tried, as there are few coefficients."""
    target = observed * weights
    scaled = rows * weights[:, None]
    count, best, least = rows.shape[1], np.zeros(rows.shape[1]), float(target @ target)
    for size in range(count, 0, -1):
        for free in itertools.combinations(range(count), size):
            part = scaled[:, free]
            solution = np.linalg.lstsq(part, target, rcond=None)[0]
            if (solution < 0).any():
                continue
            left = target - part @ solution
            if float(left @ left) < least:
                least, best = float(left @ left), np.zeros(count)
                best[list(free)] = solution
        if best.any() and size == count:
            break
    return best


Key = tuple[AuxiliaryKind, str, tuple[int, ...]]
"""A tensor that an auxiliary layer reads or a leading layer writes: kind of auxiliary layer, dtype, shape."""


@dataclass(frozen=True)
class SubjectLaunch:
    """A subject's launch, and the tensors at which other layers are launched with it.

    Attributes:
        subject: the measured layer.
        place: index of the run in the campaign's rounds.
        observed: the tensor that the auxiliary layer reads; ``None``: the layer is launched alone.
        leads: tensors that leading layers write.
    """

    subject: Subject
    place: int
    observed: Key | None
    leads: tuple[Key, ...] = ()


@dataclass(frozen=True)
class LaunchOverhead:
    """Overhead of one launch.

    Attributes:
        values_ns: for each replicate.
        model_error_ns: standard deviation of the model's error beside the noise.
        literal_ns: the launch less the measured run of the auxiliary layer alone.
    """

    values_ns: Floats
    model_error_ns: float = 0.0
    literal_ns: float | None = None


class FittedOverhead(Protocol):
    """An overhead model fitted to samples."""

    @property
    def overheads(self) -> tuple[Overhead, ...]:
        """Overheads of all kinds of auxiliary layers, as records of a table."""
        ...

    @property
    def main(self) -> Overhead:
        """Overhead of the kind with which most layers were measured."""
        ...

    def of(self, launch: SubjectLaunch) -> LaunchOverhead:
        """Overhead of a launch."""
        ...


class OverheadModel(Protocol):
    """Which launches a campaign needs beside the layers' own, and how they give the overhead.

    Attributes:
        launches: of all subjects that can be launched, in the order of addition.
    """

    launches: list[SubjectLaunch]

    def add(self, subjects: Sequence[Subject]) -> list[tuple[Subject, str]]:
        """Add launches to the rounds; return the subjects that cannot be launched, with the reasons."""
        ...

    def places(self, launches: Iterable[SubjectLaunch]) -> set[int]:
        """Indices in the rounds of the runs from which these launches' overheads are estimated."""
        ...

    def fit(self, medians: Floats, method: Method) -> FittedOverhead:
        """Fit the model to replicates x runs, in ns."""
        ...


def _largest_output(model: Model) -> TensorInfo | None:
    """The output that the auxiliary layer reads: the largest one of fixed size, floats first."""
    fixed = [tensor for tensor in model.outputs if tensor.fixed and tensor.bytes]
    return max(fixed, key=lambda tensor: (tensor.dtype == "float32", tensor.bytes), default=None)


def suited_kind(op: str) -> AuxiliaryKind:
    """An auxiliary layer of the layer's layout class.

    A runtime reorders a tensor before the first and after the last convolution: behind a convolution, another one
    moves the reorder to its own end, where its run alone has it, too.
    """
    return "conv1x1" if "Conv" in op else "avgpool"


class AffineOverhead:
    """Overhead of transfers to the device and back: it is affine in their bytes.

    For a layer with x bytes in, y bytes out, and z bytes out of the following auxiliary layer (sums over the
    tensors that are transferred):

        T(layer, auxiliary) = a x + b z + c + layer + auxiliary
        T(auxiliary alone)  = a y + b z' + c + auxiliary

    so the literal difference is wrong by a (x - y) + b (z - z'), the transfers. By "auxiliary" a layer's time is
    that difference, corrected for them; by "regression" the whole overhead comes from fits over all runs of
    auxiliary layers alone, which have less noise.

    The device tells whether it would fuse a layer with its auxiliary layer. The kind "auto" of auxiliary layer is
    that of the layer's own layout class.
    """

    def __init__(self, device: Device, rounds: Rounds, auxiliary: AuxiliaryKind | Literal["auto"], seed: int) -> None:
        self.launches: list[SubjectLaunch] = []
        self._device, self._rounds, self._auxiliary, self._seed = device, rounds, auxiliary, seed
        self._alone: dict[Key, tuple[int, Auxiliary]] = {}
        self._contrasts: dict[AuxiliaryKind, list[Contrast]] = {}
        self._singles: dict[AuxiliaryKind, list[tuple[int, Auxiliary, tuple[int, ...]]]] = {}

    def add(self, subjects: Sequence[Subject]) -> list[tuple[Subject, str]]:
        """Add launches of layers followed by auxiliary layers, of these alone, and of each kind's design."""
        outputs = [_largest_output(subject.model) for subject in subjects]
        by_kind: dict[AuxiliaryKind, list[tuple[int, ...]]] = {kind: [] for kind in AUXILIARY_KINDS}
        for subject, tensor in zip(subjects, outputs, strict=True):
            if tensor is not None and tensor.shape is not None:
                for kind in self._kinds(subject):
                    by_kind[kind].append(tensor.shape)
        choices = {kind: auxiliaries_for(shapes, kind) for kind, shapes in by_kind.items()}
        refused = []
        for subject, tensor in zip(subjects, outputs, strict=True):
            reason = self._refusal(subject, tensor, choices)
            if reason is not None:
                refused.append((subject, reason))
        kinds = {launch.observed[0] for launch in self.launches if launch.observed is not None}
        if self.launches and not kinds:
            kinds = {self._kinds(self.launches[0].subject)[0]}
        for kind in AUXILIARY_KINDS:
            if kind in kinds and kind not in self._contrasts:
                self._add_design(kind)
        return refused

    def places(self, launches: Iterable[SubjectLaunch]) -> set[int]:
        """Indices of the runs of auxiliary layers alone, and of their kinds' designs."""
        launches = list(launches)
        kinds = {self._main_kind if launch.observed is None else launch.observed[0] for launch in launches}
        return {
            *(self._alone[launch.observed][0] for launch in launches if launch.observed is not None),
            *(place for kind in kinds for contrast in self._contrasts[kind] for place in contrast.runs),
        }

    def fit(self, medians: Floats, method: Method) -> FittedAffineOverhead:
        """Fit regressions over each kind's design, then the auxiliary layers' own times."""
        fits = {kind: fit_overhead(contrasts, medians) for kind, contrasts in self._contrasts.items()}
        times = {kind: self._auxiliary_times(kind, fit, medians) for kind, fit in fits.items()}
        records = {kind: fit.record(kind, times[kind].lack_of_fit_ns) for kind, fit in fits.items()}
        alone = {}
        for kind in fits:
            for place, key in enumerate(self._keys(kind)):
                alone[key] = self._alone[key][0], times[kind].values[:, place], float(times[kind].deviation_ns[place])
        main = self._main_kind
        return FittedAffineOverhead(
            tuple(records.values()), records[main], self._rounds, medians, method, fits, fits[main], alone
        )

    def _kinds(self, subject: Subject) -> list[AuxiliaryKind]:
        """The requested kind, or the layer's own; then the others, in case the device would fuse it."""
        first = suited_kind(subject.op) if self._auxiliary == "auto" else self._auxiliary
        return [first, *(kind for kind in AUXILIARY_KINDS if kind != first)]

    def _refusal(
        self,
        subject: Subject,
        tensor: TensorInfo | None,
        choices: dict[AuxiliaryKind, dict[tuple[int, ...], Auxiliary]],
    ) -> str | None:
        """Add a launch with the first auxiliary layer that is not fused with the layer, else of the layer alone."""
        nodes = {node for layer in subject.model.layers for node in layer.nodes}
        reason = "it has no output of fixed size"
        options: list[AuxiliaryKind | None] = [None]
        if tensor is not None:
            options = [*self._kinds(subject), None]
        for kind in options:
            model, key = subject.model, None
            try:
                if kind is not None and tensor is not None and tensor.shape is not None:
                    key = (kind, tensor.dtype, tensor.shape)
                    link = self._alone[key][1] if key in self._alone else choices[kind][tensor.shape]
                    model = with_auxiliary(subject.model, [link], tensor=tensor.name, seed=self._seed)
                    if any(nodes & set(group) and set(group) - nodes for group in self._device.fusions(model)):
                        reason = "the device fuses it with every auxiliary layer"
                        continue
                place = self._rounds.add("layer", model)
                if key is not None and key not in self._alone:
                    source = TensorInfo(name="x", dtype=key[1], shape=key[2])
                    alone = self._rounds.add("auxiliary", with_auxiliary(source, [link], seed=self._seed))
                    self._alone[key] = (alone, link)
            except FramefitError as error:
                reason = error.what
                continue
            self.launches.append(SubjectLaunch(subject, place, key))
            return None
        return reason

    def _add_design(self, kind: AuxiliaryKind) -> None:
        runs = self._rounds.runs
        launched = [launch for launch in self.launches if launch.observed is None or launch.observed[0] == kind]
        places = [launch.place for launch in launched] + [self._alone[key][0] for key in self._keys(kind)]
        design = overhead_design(kind, (runs[place].input_bytes for place in places), self._seed)
        places = [self._rounds.add("overhead", model) for model in design.models]
        self._contrasts[kind] = [contrast.over(places) for contrast in design.contrasts]
        self._singles[kind] = [(places[run], link, shape) for run, link, shape in design.singles]

    @property
    def _main_kind(self) -> AuxiliaryKind:
        """The kind with which most layers were measured."""
        kinds = list(self._contrasts)
        observed = [launch.observed[0] for launch in self.launches if launch.observed is not None]
        return kinds[int(np.argmax([observed.count(kind) for kind in kinds]))]

    def _keys(self, kind: AuxiliaryKind) -> list[Key]:
        return [key for key in self._alone if key[0] == kind]

    def _auxiliary_times(self, kind: AuxiliaryKind, fit: Coefficients, medians: Floats) -> AuxiliaryTimes:
        """Times of the layers that were run alone, in the order of ``_keys``."""
        keyed = [(*self._alone[key], key[2]) for key in self._keys(kind)]
        singles = [*keyed, *self._singles[kind]]
        runs = [self._rounds.runs[place] for place, _, _ in singles]
        features = [
            (run.input_bytes, run.output_bytes, link.macs(shape))
            for run, (_, link, shape) in zip(runs, singles, strict=True)
        ]
        overhead = np.stack([fit.of(run.input_bytes, run.output_bytes) for run in runs], axis=1)
        return fit_auxiliary_times(
            np.asarray(features, np.float64),
            medians[:, [place for place, _, _ in singles]],
            overhead,
            range(len(keyed)),
        )


@dataclass(frozen=True)
class FittedAffineOverhead:
    """Affine overheads; see :class:`FittedOverhead`.

    Attributes:
        rounds, medians, method: samples and method of the fit.
        fits: coefficients by kind of auxiliary layer; ``main_fit``: those for layers that are launched alone.
        alone: for each observed tensor the index of the auxiliary layer's run alone, the layer's own time (replicates)
            and the standard deviation of its model's error.
    """

    overheads: tuple[Overhead, ...]
    main: Overhead
    rounds: Rounds
    medians: Floats
    method: Method
    fits: dict[AuxiliaryKind, Coefficients]
    main_fit: Coefficients
    alone: dict[Key, tuple[int, Floats, float]]

    def of(self, launch: SubjectLaunch) -> LaunchOverhead:
        """Overhead of transfers, the launch, and the auxiliary layer."""
        run = self.rounds.runs[launch.place]
        if launch.observed is None:
            fit = self.main_fit
            return LaunchOverhead(fit.of(run.input_bytes, run.output_bytes), fit.input_error_ns(run.input_bytes))
        fit = self.fits[launch.observed[0]]
        overhead = fit.of(run.input_bytes, run.output_bytes)
        place, own_ns, deviation_ns = self.alone[launch.observed]
        literal_ns = float(self.medians[0, launch.place] - self.medians[0, place])
        alone = self.rounds.runs[place]
        error_ns = math.hypot(*(fit.input_error_ns(one.input_bytes) for one in (run, alone)))
        if self.method == "regression":
            return LaunchOverhead(overhead + own_ns, math.hypot(deviation_ns, error_ns), literal_ns)
        rest = self.medians[:, place] - fit.of(alone.input_bytes, alone.output_bytes)
        return LaunchOverhead(overhead + rest, error_ns, literal_ns)


_STRIDE = 8  # with 16 channels the cheapest auxiliary layer: 3 to 10 us on a tensor of 256 KiB
_NEAR_BYTES = 192 << 10  # more than first-level caches hold, a small part of the second level
_SMALL_BYTES = 1 << 17  # tensors whose launches determine the constant: moving them costs little


class ResidentOverhead:
    """Overhead where host and device share their memory and their caches: nothing is transferred.

    The state of the machine counts instead: a layer finds its input in the caches, because the preceding layer
    has just written it, its tensors in the layout that the runtime has chosen, and views that copy nothing. So the
    layers are those that the runtime made of the model (:meth:`framefit.devices.device.Device.lowered`). Each
    follows layers that write its inputs (leads), and is followed by the auxiliary layer that reads its output:

        T(leads, layer, auxiliary) = c + leads(inputs) + layer + auxiliary(output)

    The other times come from launches without a measured layer, for every tensor that occurs:

        single = c + lead + auxiliary,  twin = c + lead + 2 auxiliary,  pair = c + 2 lead + 2 auxiliary

    so that c = 2 single - pair, lead = pair - twin, auxiliary = twin - single. By "regression" these times
    are smoothed over all tensors by their sizes; by "auxiliary" they are each tensor's own.

    In repeated launches a layer would find everything in the nearest cache, so other data fill that cache before
    each launch. A second copy of the layer on the same inputs, whose difference would cancel more of the launch,
    finds code, branch predictors and inputs warmed by the first: it takes up to 17 % less than a layer behind
    another one, and is not used.

    The kind "auto" of auxiliary layer is Conv 1x1, the cheapest.
    """

    def __init__(self, rounds: Rounds, auxiliary: AuxiliaryKind | Literal["auto"], seed: int) -> None:
        self.launches: list[SubjectLaunch] = []
        self._rounds, self._seed = rounds, seed
        kind: AuxiliaryKind = "conv1x1" if auxiliary == "auto" else auxiliary
        self._link = Auxiliary(kind=kind, stride=_STRIDE, channels=_CHANNELS)
        self._tensors: dict[Key, tuple[int, int, int]] = {}
        self._other_data = np.ones(_NEAR_BYTES // 8)

    def add(self, subjects: Sequence[Subject]) -> list[tuple[Subject, str]]:
        """Add launches of layers between others, and three launches without a layer for each tensor around them."""
        refused = []
        for subject in subjects:
            try:
                self.launches.append(self._launch(subject))
            except FramefitError as error:
                refused.append((subject, error.what))
        return refused

    def places(self, launches: Iterable[SubjectLaunch]) -> set[int]:
        """Indices of the runs of the tensors around these layers."""
        around = {key for launch in launches for key in (*launch.leads, launch.observed) if key is not None}
        return {place for key in around for place in self._tensors[key]}

    def fit(self, medians: Floats, method: Method) -> FittedResidentOverhead:
        """Fit the constant of a launch, and the times of each tensor's lead and auxiliary layer."""
        single, twin, pair = (medians[:, [places[n] for places in self._tensors.values()]] for n in range(3))
        shapes = [TensorInfo(name="x", dtype=dtype, shape=shape) for _, dtype, shape in self._tensors]
        sizes = np.asarray([tensor.bytes for tensor in shapes], np.float64)
        near = sizes <= max(_SMALL_BYTES, float(np.quantile(sizes, 0.25)))
        launch = np.maximum(np.median((2 * single - pair)[:, near], axis=1), 0)
        lead, auxiliary, unexplained_ns = np.maximum(pair - twin, 0), np.maximum(twin - single, 0), 0.0
        if method == "regression":
            nothing, every = np.zeros_like(single), range(len(shapes))
            macs = [self._link.macs(shape) for _, _, shape in self._tensors]
            lead = np.maximum(fit_auxiliary_times(sizes[:, None], pair - twin, nothing, every).values, 0)
            times = fit_auxiliary_times(np.column_stack([sizes, macs]), twin - single, nothing, every)
            auxiliary, unexplained_ns = np.maximum(times.values, 0), times.lack_of_fit_ns
        low, high = interval(launch)
        main = Overhead(
            input_ns_per_byte=0.0,
            output_ns_per_byte=0.0,
            intercept_ns=float(launch[0]),
            condition_number=1.0,
            auxiliary=self._link.kind,
            input_interval=(0.0, 0.0),
            output_interval=(0.0, 0.0),
            intercept_interval_ns=(low, high),
            lack_of_fit_ns=unexplained_ns,
        )
        tensors = {
            key: (places[0], lead[:, column], auxiliary[:, column])
            for column, (key, places) in enumerate(self._tensors.items())
        }
        return FittedResidentOverhead((main,), main, medians, launch, tensors)

    def _launch(self, subject: Subject) -> SubjectLaunch:
        model, tensor = subject.model, _largest_output(subject.model)
        if tensor is None:
            raise DeviceError("it has no output of fixed size")
        leads = tuple(self._tensor(source) for source in model.inputs if source.shape)
        observed = self._tensor(tensor)
        whole = led(with_auxiliary(model, [self._link], tensor=tensor.name, seed=self._seed))
        return SubjectLaunch(subject, self._rounds.add("layer", whole, self._evict), observed, leads)

    def _tensor(self, tensor: TensorInfo) -> Key:
        assert tensor.shape is not None
        key = self._link.kind, tensor.dtype, tensor.shape
        if key not in self._tensors:
            single, twin, pair = (
                self._rounds.add("auxiliary", model, self._evict)
                for model in auxiliary_runs(tensor, self._link, self._seed)
            )
            self._tensors[key] = single, twin, pair
        return key

    def _evict(self) -> None:
        """Fill the first-level cache with other data, as the rest of a network does between two launches."""
        np.add.reduce(self._other_data)


@dataclass(frozen=True)
class FittedResidentOverhead:
    """Overheads on a resident unit; see :class:`FittedOverhead`.

    Attributes:
        medians: samples of the fit.
        launch: the constant, for each replicate.
        tensors: of each the index of its single run, and the times of its lead and its auxiliary layer (replicates).
    """

    overheads: tuple[Overhead, ...]
    main: Overhead
    medians: Floats
    launch: Floats
    tensors: dict[Key, tuple[int, Floats, Floats]]

    def of(self, launch: SubjectLaunch) -> LaunchOverhead:
        """Overhead of the launch, the auxiliary layer, and the leads."""
        assert launch.observed is not None
        place, _, auxiliary = self.tensors[launch.observed]
        overhead = self.launch + auxiliary
        for key in launch.leads:
            overhead = overhead + self.tensors[key][1]
        return LaunchOverhead(overhead, literal_ns=float(self.medians[0, launch.place] - self.medians[0, place]))
