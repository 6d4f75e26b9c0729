"""What a launch costs beside the layer that is measured, and how launches of other layers tell it apart.

Only start and end of launches are seen, so layers are launched with others around them, and these are launched
without the layer as well. There are two models of the overhead: :class:`AffineOverhead`, where tensors are
transferred to a device, and :class:`ResidentOverhead`, where the host itself computes.

With start and end alone, chains of layers on one tensor cannot tell the overhead apart from the auxiliary layer's
own time: adding any function of a tensor's size to what reads it and taking it from what writes it changes no total.
Three kinds of graphs break that symmetry, and in a fixed combination of them the auxiliary layer's own time
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
"""Of what is measured: no run is known better."""
_LEVELS = 5
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
    are; strides alternate, so that output sizes do not follow input sizes. Sizes are those of the tensors that the
    campaign hands over, at least one.
    """
    sizes = np.minimum(np.fromiter(sizes_bytes, np.float64), _MOST_BYTES)
    levels = np.quantile(sizes, np.linspace(0, 1, _LEVELS))
    shapes = dict.fromkeys(map(_shape, levels))
    if len(shapes) < _LEVELS:  # many of one size
        shapes = dict.fromkeys(map(_shape, np.linspace(levels[0], levels[-1], _LEVELS)))
    models: list[Model] = []
    contrasts: list[Contrast] = []
    singles = []
    for level, shape in enumerate(shapes):
        wide = level % 2 == 1
        first = Auxiliary(kind=kind, stride=1 if wide else 2, channels=2 * _CHANNELS if wide else _CHANNELS)
        last = Auxiliary(kind=kind, stride=4, channels=_CHANNELS)
        between_shape = first.output_shape(shape)
        source = TensorInfo(name="x", dtype="float32", shape=shape)
        between = TensorInfo(name="x", dtype="float32", shape=between_shape)
        single, second, variant, both, chain, shown = range(len(models), len(models) + 6)
        models += [
            with_auxiliary(source, [first], seed=seed),
            with_auxiliary(between, [last], seed=seed),
            with_auxiliary(source, [first], variants=(1,), seed=seed),
            with_auxiliary(source, [first], variants=(0, 1), seed=seed),
            with_auxiliary(source, [first, last], seed=seed),
            with_auxiliary(source, [first, last], shown=True, seed=seed),
        ]
        into, through = _input_bytes(models[single]), _input_bytes(models[second])
        contrasts += [
            Contrast((single, variant, both), (1, 1, -1), (into, 0, 1)),
            Contrast((shown, chain), (1, -1), (0, through, 0)),
            Contrast((single, second, chain), (1, 1, -1), (through, through, 1)),
        ]
        singles += [(single, first, shape), (second, last, between_shape)]
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

    Rows are observations, columns coefficients.
    """
    columns = np.asarray(rows, np.float64)
    length = np.linalg.norm(columns, axis=0)
    return float(np.linalg.cond(columns / np.where(length > 0, length, 1.0)))


def _input_bytes(model: Model) -> int:
    """What a launch hands over to the device."""
    return sum(tensor.bytes for tensor in model.inputs)


def _shape(size_bytes: float) -> tuple[int, ...]:
    side = max(round(math.sqrt(size_bytes / 4 / _CHANNELS)), _LEAST_SIDE)
    return (1, _CHANNELS, side, side)


_TURNS = 10
_LEAST_SIZES = 3  # for a bend
_BENT = 3.0  # mean square over noise of five residuals: 1 % by chance


@dataclass(frozen=True)
class _Bend:
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
        shares = [np.interp(size_bytes, self.sizes_bytes, unit) for unit in np.eye(len(self.sizes_bytes))]
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
    input_bend: _Bend | None = None
    output_bend: _Bend | None = None

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


def fit_overhead(contrasts: Sequence[Contrast], medians: Floats) -> Coefficients:
    """Robust regression with coefficients that are not negative.

    Weighted by the contrasts' own noise, and against outliers by Huber's weights; where a
    coefficient would be negative it is 0, whichever choice of zeros fits best.

    Args:
        contrasts: over the columns of ``medians``.
        medians: replicates x runs, as :meth:`framefit.latency.rounds.Rounds.medians` gives them.
    """
    combine = np.zeros((len(contrasts), medians.shape[1]))
    for row, contrast in enumerate(contrasts):
        np.add.at(combine[row], list(contrast.runs), contrast.weights)  # equal models are one run
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
    condition = condition_number(rows * weights[:, None])
    return Coefficients(values, condition, _bend(into, left, noise), _bend(out, left, noise))


def _bend(sizes_bytes: Floats, left: Floats, noise: Floats) -> _Bend | None:
    """What a straight line leaves of contrasts of one direction, as far as noise does not explain it.

    Args:
        sizes_bytes: of the contrasts; 0: of another direction.
        left: replicates x contrasts.
        noise: standard deviation of each.
    """
    places = np.flatnonzero(sizes_bytes > 0)
    places = places[np.argsort(sizes_bytes[places])]
    squares = left[0, places] ** 2
    if len(places) < _LEAST_SIZES or np.mean(squares / noise[places] ** 2) < _BENT:
        return None
    unexplained = max(float(np.mean(squares - noise[places] ** 2)), 0.0)
    share = unexplained / (unexplained + noise[places] ** 2)
    return _Bend(sizes_bytes[places], left[:, places] * share)


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
"""A tensor that an auxiliary layer reads or a layer in front writes: kind of auxiliary layer, dtype, shape."""


@dataclass(frozen=True)
class SubjectLaunch:
    """A subject's launch, and the tensors at which other layers are launched with it.

    Attributes:
        subject: what is measured.
        place: of the run in the campaign's rounds.
        observed: the tensor that the auxiliary layer reads; ``None``: the layer is launched alone.
        leads: tensors that layers in front of it write.
    """

    subject: Subject
    place: int
    observed: Key | None
    leads: tuple[Key, ...] = ()


@dataclass(frozen=True)
class LaunchOverhead:
    """What one launch takes beside its layer.

    Attributes:
        values_ns: replicates.
        model_error_ns: standard deviation of what the model may be wrong by, beside the noise.
        literal_ns: the launch less the auxiliary layer's run alone, as it was measured.
    """

    values_ns: Floats
    model_error_ns: float = 0.0
    literal_ns: float | None = None


class FittedOverhead(Protocol):
    """An overhead model fitted to samples."""

    @property
    def overheads(self) -> tuple[Overhead, ...]:
        """Of every kind of auxiliary layer, as a table keeps them."""
        ...

    @property
    def main(self) -> Overhead:
        """The one that most layers were measured with."""
        ...

    def of(self, launch: SubjectLaunch) -> LaunchOverhead:
        """What a launch takes beside its layer."""
        ...


class OverheadModel(Protocol):
    """Which launches a campaign needs beside its layers' own, and what they say of the overhead.

    Attributes:
        launches: of all subjects that can be launched, in the order in which they were added.
    """

    launches: list[SubjectLaunch]

    def add(self, subjects: Sequence[Subject]) -> list[tuple[Subject, str]]:
        """Add launches to the rounds; returns the subjects that cannot be launched, with the reasons."""
        ...

    def places(self, launches: Iterable[SubjectLaunch]) -> set[int]:
        """Places in the rounds of the runs that these launches' overheads are estimated from."""
        ...

    def fit(self, medians: Floats, method: Method) -> FittedOverhead:
        """Fit the model to replicates x runs, in ns."""
        ...


def _largest_output(model: Model) -> TensorInfo | None:
    """The output that the auxiliary layer reads: the largest of fixed size, floats first."""
    fixed = [tensor for tensor in model.outputs if tensor.fixed and tensor.bytes]
    return max(fixed, key=lambda tensor: (tensor.dtype == "float32", tensor.bytes), default=None)


def suited_kind(op: str) -> AuxiliaryKind:
    """An auxiliary layer of the layer's layout class.

    What reorders a tensor for convolutions does it before the first and after the last of them:
    behind a convolution, another one moves the reorder to its own end, where its run alone has it too.
    """
    return "conv1x1" if "Conv" in op else "avgpool"


class AffineOverhead:
    """Tensors are transferred to the device and back: the overhead is affine in their bytes.

    For a layer with x bytes in, y bytes out, and z bytes out of the auxiliary layer behind it (all sums over the
    tensors that cross):

        T(layer, auxiliary) = a x + b z + c + layer + auxiliary
        T(auxiliary alone)  = a y + b z' + c + auxiliary

    so the literal difference is off by a (x - y) + b (z - z'), the transfers. By "auxiliary" the layer
    is that difference, corrected for them; by "regression" the whole overhead comes from fits over all
    runs of auxiliary layers alone, whose noise is the smaller.

    The device is asked whether it would fuse a layer with its auxiliary layer. The kind "auto" of auxiliary layer is
    that of the layer's own layout class.
    """

    def __init__(self, device: Device, rounds: Rounds, auxiliary: AuxiliaryKind | Literal["auto"], seed: int) -> None:
        self.launches: list[SubjectLaunch] = []
        self._device, self._rounds, self._auxiliary, self._seed = device, rounds, auxiliary, seed
        self._alone: dict[Key, tuple[int, Auxiliary]] = {}
        self._contrasts: dict[AuxiliaryKind, list[Contrast]] = {}
        self._singles: dict[AuxiliaryKind, list[tuple[int, Auxiliary, tuple[int, ...]]]] = {}

    def add(self, subjects: Sequence[Subject]) -> list[tuple[Subject, str]]:
        """Add launches of layers before auxiliary layers, of these alone, and of each kind's design."""
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
        """Runs of the auxiliary layers alone, and of their kinds' designs."""
        launches = list(launches)
        kinds = {self._main_kind if launch.observed is None else launch.observed[0] for launch in launches}
        return {
            *(self._alone[launch.observed][0] for launch in launches if launch.observed is not None),
            *(place for kind in kinds for contrast in self._contrasts[kind] for place in contrast.runs),
        }

    def fit(self, medians: Floats, method: Method) -> FittedAffineOverhead:
        """Regressions over each kind's design, then the auxiliary layers' own times."""
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
        """The kind asked for, or the layer's own; then the others, for where it would be fused."""
        first = suited_kind(subject.op) if self._auxiliary == "auto" else self._auxiliary
        return [first, *(kind for kind in AUXILIARY_KINDS if kind != first)]

    def _refusal(
        self,
        subject: Subject,
        tensor: TensorInfo | None,
        choices: dict[AuxiliaryKind, dict[tuple[int, ...], Auxiliary]],
    ) -> str | None:
        """Add a launch with the first auxiliary layer that stays beside the layer, else of the layer alone."""
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
        sizes = [run.input_bytes for run in self._rounds.runs if run.role in ("layer", "auxiliary")]
        design = overhead_design(kind, sizes, self._seed)
        places = [self._rounds.add("overhead", model) for model in design.models]
        self._contrasts[kind] = [contrast.over(places) for contrast in design.contrasts]
        self._singles[kind] = [(places[run], link, shape) for run, link, shape in design.singles]

    @property
    def _main_kind(self) -> AuxiliaryKind:
        """What most layers were measured with."""
        kinds = list(self._contrasts)
        observed = [launch.observed[0] for launch in self.launches if launch.observed is not None]
        return kinds[int(np.argmax([observed.count(kind) for kind in kinds]))]

    def _keys(self, kind: AuxiliaryKind) -> list[Key]:
        return [key for key in self._alone if key[0] == kind]

    def _auxiliary_times(self, kind: AuxiliaryKind, fit: Coefficients, medians: Floats) -> AuxiliaryTimes:
        """Of the layers that were run alone, in the order of ``_keys``."""
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
    """See :class:`FittedOverhead`.

    Attributes:
        rounds, medians, method: what the overhead was fitted to, and how.
        fits: coefficients by the kind of auxiliary layer; ``main_fit``: those of layers that are launched alone.
        alone: of each observed tensor the place of the auxiliary layer's run alone, the layer's own time (replicates)
            and what the model of it may be wrong by.
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
        """Transfers and the launch, and the auxiliary layer."""
        run = self.rounds.runs[launch.place]
        if launch.observed is None:
            return LaunchOverhead(self.main_fit.of(run.input_bytes, run.output_bytes))
        fit = self.fits[launch.observed[0]]
        overhead = fit.of(run.input_bytes, run.output_bytes)
        place, own_ns, deviation_ns = self.alone[launch.observed]
        literal_ns = float(self.medians[0, launch.place] - self.medians[0, place])
        if self.method == "regression":
            return LaunchOverhead(overhead + own_ns, deviation_ns, literal_ns)
        alone = self.rounds.runs[place]
        rest = self.medians[:, place] - fit.of(alone.input_bytes, alone.output_bytes)
        return LaunchOverhead(overhead + rest, literal_ns=literal_ns)


_STRIDE = 8  # with 16 channels the cheapest auxiliary layer: 3 to 10 us on a tensor of 256 KiB
_NEAR_BYTES = 192 << 10  # more than first-level caches hold, a small part of the second level
_SMALL_BYTES = 1 << 17  # tensors whose launches tell the constant: what they move costs little


class ResidentOverhead:
    """Host and device share their memory and their caches: nothing is transferred.

    What counts instead is the state in which a layer finds the machine: its input in the caches, because the layer
    before has just written it; tensors in the layout that the runtime has chosen; views that copy nothing. So the
    layers are those that the runtime made of the model (:meth:`framefit.devices.device.Device.lowered`), and in front
    of each stands one that writes its inputs, as behind it stands the auxiliary layer that reads its output:

        T(leads, layer, auxiliary) = c + leads(inputs) + layer + auxiliary(output)

    What is not the layer comes from launches without one, for every tensor that occurs:

        single = c + lead + auxiliary,  twin = c + lead + 2 auxiliary,  pair = c + 2 lead + 2 auxiliary

    so that c = 2 single - pair, lead = pair - twin, auxiliary = twin - single. By "regression" these times
    are smoothed over all tensors by their sizes, by "auxiliary" they are each tensor's own.

    Launched again and again, a layer would find everything in the nearest cache, so that one is filled
    with other data ahead of each launch. A second copy of the layer on the same inputs, whose
    difference would cancel more of the launch, finds code, branch predictors and inputs warmed by the
    first: it takes up to 17 % less than a layer behind another one, and is not used.

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
        """Add launches of layers between others, and for each tensor around them three without a layer."""
        refused = []
        for subject in subjects:
            try:
                self.launches.append(self._launch(subject))
            except FramefitError as error:
                refused.append((subject, error.what))
        return refused

    def places(self, launches: Iterable[SubjectLaunch]) -> set[int]:
        """Runs of the tensors around these layers."""
        around = {key for launch in launches for key in (*launch.leads, launch.observed) if key is not None}
        return {place for key in around for place in self._tensors[key]}

    def fit(self, medians: Floats, method: Method) -> FittedResidentOverhead:
        """The constant of a launch, and what each tensor's lead and auxiliary layer take."""
        single, twin, pair = (medians[:, [places[n] for places in self._tensors.values()]] for n in range(3))
        shapes = [TensorInfo(name="x", dtype=dtype, shape=shape) for _, dtype, shape in self._tensors]
        sizes = np.asarray([tensor.bytes for tensor in shapes], np.float64)
        near = sizes <= max(_SMALL_BYTES, float(np.quantile(sizes, 0.25)))
        launch = np.maximum(np.median((2 * single - pair)[:, near], axis=1), 0)
        lead, auxiliary, unexplained_ns = np.maximum(pair - twin, 0), np.maximum(twin - single, 0), 0.0
        if method == "regression":
            nothing, every = np.zeros_like(single), range(len(shapes))
            macs = [self._link.macs(shape) for _, _, shape in self._tensors]
            lead = fit_auxiliary_times(sizes[:, None], pair - twin, nothing, every).values
            times = fit_auxiliary_times(np.column_stack([sizes, macs]), twin - single, nothing, every)
            auxiliary, unexplained_ns = times.values, times.lack_of_fit_ns
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
        """Leave the first-level cache to other data, as the rest of a network does between two of its launches."""
        np.add.reduce(self._other_data)


@dataclass(frozen=True)
class FittedResidentOverhead:
    """See :class:`FittedOverhead`.

    Attributes:
        medians: what the overhead was fitted to.
        launch: the constant, a value each replicate.
        tensors: of each the place of its single run, and what its lead and its auxiliary layer take (replicates).
    """

    overheads: tuple[Overhead, ...]
    main: Overhead
    medians: Floats
    launch: Floats
    tensors: dict[Key, tuple[int, Floats, Floats]]

    def of(self, launch: SubjectLaunch) -> LaunchOverhead:
        """The constant, the auxiliary layer, and the leads."""
        assert launch.observed is not None
        place, _, auxiliary = self.tensors[launch.observed]
        overhead = self.launch + auxiliary
        for key in launch.leads:
            overhead = overhead + self.tensors[key][1]
        return LaunchOverhead(overhead, literal_ns=float(self.medians[0, launch.place] - self.medians[0, place]))
