"""A measuring campaign: layers behind auxiliary layers, timed in turn, made into a latency table.

Only start and end of launches are seen. For a layer with x bytes in, y bytes out, and z bytes out
of the auxiliary layer behind it (all sums over the tensors that cross):

    T(layer, auxiliary) = a x + b z + c + layer + auxiliary
    T(auxiliary alone)  = a y + b z' + c + auxiliary

so the literal difference is off by a (x - y) + b (z - z'), the transfers. By "auxiliary" the layer
is that difference, corrected for them; by "regression" the whole overhead comes from fits over all
runs of auxiliary layers alone (:mod:`framefit.latency.overhead`), whose noise is the smaller.

What is measured: the distinct layers of a model, or of a grid of layer shapes.

More samples for layers whose intervals are wide, until they are narrow or time is up.

Noise differs from layer to layer: a fixed number of samples is too many for those that take most
of a launch, and too few for those that take little of it. The bound is on the interval's width
relative to the latency (a sequential procedure of fixed relative width; Nadas, 1969, "An Extension of a
Theorem of Chow and Robbins on Sequential Confidence Intervals for the Mean").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import Record
from framefit.core.latency_table import LatencyEntry, LatencyTable, Overhead, Unmeasured, Value
from framefit.core.model import (
    AUXILIARY_KINDS,
    Auxiliary,
    AuxiliaryKind,
    GraphBuilder,
    Model,
    TensorInfo,
    configuration,
    with_auxiliary,
)
from framefit.devices.clock import Clock
from framefit.devices.device import Device
from framefit.devices.measure import Measurement
from framefit.errors import DeviceError, FramefitError, InputError
from framefit.latency.overhead import (
    RESOLUTION_NS,
    AuxiliaryTimes,
    Coefficients,
    Contrast,
    auxiliaries_for,
    fit_auxiliary_times,
    fit_overhead,
    interval,
    overhead_design,
)
from framefit.latency.rounds import RUNS, Rounds

__all__ = [
    "LEAST_REPEATS",
    "Campaign",
    "GridSpec",
    "LayerGrid",
    "Method",
    "Refinable",
    "Subject",
    "distinct_layers",
    "grid_models",
    "layer_key",
    "refine",
    "suited_kind",
    "wide",
]


Fusions = Callable[[Model], Sequence[Sequence[str]]]
_MOST_ELEMENTS = 1 << 28  # of a layer's weights: a gigabyte


@dataclass(frozen=True)
class Subject:
    """A layer as a model of its own.

    Attributes:
        op, configuration: its key in a latency table.
        layers: names of the layers that it stands for.
        model: stand-alone: its inputs come from the host, its outputs are returned.
    """

    op: str
    configuration: dict[str, Value]
    layers: tuple[str, ...]
    model: Model

    @property
    def key(self) -> str:
        """The same for equal configurations."""
        return layer_key(self.op, self.configuration)


class LayerGrid(Record, kw_only=True):
    """Layers of one operator: every combination of what is listed.

    Attributes:
        op: Conv, Gemm, MaxPool, AveragePool, or any operator that needs no parameters.
        shapes: of its input.
        channels: of a convolution's output; features of a Gemm's; 0: as many as it reads.
        kernel, stride: of Conv and pools, in both directions.
        groups: of a convolution; 0: depthwise.
        activation: operator behind it; "": none.
        inputs: number of inputs of that shape (2 for Add).
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    channels: tuple[int, ...] = (0,)
    kernel: tuple[int, ...] = (1,)
    stride: tuple[int, ...] = (1,)
    groups: tuple[int, ...] = (1,)
    activation: tuple[str, ...] = ("",)
    inputs: int = 1

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError("shapes must not be empty")
        for key, least in (("channels", 0), ("kernel", 1), ("stride", 1), ("groups", 0)):
            if not getattr(self, key) or min(getattr(self, key)) < least:
                raise ValueError(f"{key} must be numbers of at least {least}, is {list(getattr(self, key))}")
        if any(size < 1 for shape in self.shapes for size in shape):
            raise ValueError("sizes of a shape must be at least 1")
        if self.inputs < 1:
            raise ValueError(f"inputs must be at least 1, is {self.inputs}")


class GridSpec(Record, kw_only=True):
    """Layers to measure without a model (``framefit measure --grid``)."""

    schema_version: int = 1
    layers: tuple[LayerGrid, ...]


def distinct_layers(
    model: Model, fusions: Fusions | None, unit: str
) -> tuple[tuple[Subject, ...], tuple[Unmeasured, ...]]:
    """Each configuration of a model's layers once, and those that cannot stand alone.

    Args:
        model: its layers; groups count as one.
        fusions: a device's, which groups further nodes; ``None``: the model is grouped already.
        unit: that the layers are to run on.
    """
    if fusions is not None:
        model = model.grouped(fusions(model))
    places: dict[str, list[int]] = {}
    for index, (layer, nodes) in enumerate(zip(model.layers, model.nodes, strict=True)):
        places.setdefault(layer_key(layer.op, configuration(nodes)), []).append(index)
    subjects, failed = [], []
    for indices in places.values():
        op, found = model.layers[indices[0]].op, configuration(model.nodes[indices[0]])
        names = tuple(model.layers[index].name for index in indices)
        try:
            alone = with_auxiliary(model.segment(indices[0], indices[0]), [])
        except FramefitError as error:
            failed.append(Unmeasured(op=op, configuration=found, layers=names, unit=unit, reason=error.what))
            continue
        subjects.append(Subject(op, found, names, alone))
    return tuple(subjects), tuple(failed)


def grid_models(spec: GridSpec, seed: int = 0) -> Iterator[Model]:
    """A model of one layer, and its activation, for each point of the grids; weights from the seed.

    Raises:
        InputError: an operator that such a grid cannot describe, or a combination that fits no tensor.
    """
    for number, grid in enumerate(spec.layers):
        points = itertools.product(grid.shapes, grid.channels, grid.kernel, grid.stride, grid.groups, grid.activation)
        for shape, channels, kernel, stride, groups, activation in points:
            where = f"$.layers[{number}]"
            if max(kernel**2, 1) * max(channels, 1) * max(shape, default=1) > _MOST_ELEMENTS:
                raise InputError(
                    f"a {grid.op} of {list(shape)}, {channels} channels and kernel {kernel} is too large",
                    where=where,
                    remedy=f"keep kernel x kernel x channels x channels below {_MOST_ELEMENTS}",
                )
            builder = GraphBuilder(grid.op, seed)
            inputs = [builder.input(f"input_{index}", shape) for index in range(grid.inputs)]
            try:
                x = _layer(builder, grid.op, inputs, channels, kernel, stride, groups)
                x = builder.op(activation, x) if activation else x
                builder.output(x)
                model = builder.build()
                if not all(tensor.fixed and min(tensor.shape or (1,)) > 0 for tensor in model.outputs):
                    raise ValueError("its output has no shape")
            except (ValueError, RuntimeError, IndexError, ZeroDivisionError, AssertionError) as error:
                raise InputError(
                    f"no {grid.op} of {list(shape)}, {channels} channels, kernel {kernel}, stride {stride}, "
                    f"{groups} groups: {error}",
                    where=where,
                    remedy="correct the grid",
                ) from error
            yield model


def _layer(
    b: GraphBuilder, op: str, inputs: Sequence[str], channels: int, kernel: int, stride: int, groups: int
) -> str:
    x = inputs[0]
    if op == "Conv":
        width = b.channels(x)
        return b.conv(x, channels or width, kernel=kernel, stride=stride, groups=groups or width)
    if op == "Gemm":
        return b.dense(x, channels or b.channels(x, -1))
    if op in ("MaxPool", "AveragePool"):
        pads = [(kernel - 1) // 2] * 4
        return str(b.op(op, x, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads))
    return str(b.op(op, *inputs))


def layer_key(op: str, configuration: dict[str, Value]) -> str:
    """The same for equal configurations."""
    return msgspec.json.encode((op, configuration), order="sorted").decode()


LEAST_REPEATS = 100  # before intervals decide
_MOST_REPEATS = 4000  # all samples are kept, and drift adds what more of them would take off
_NARROW = 0.03  # half of a 90 % interval: a deviation of 1.8 %, 95 % of errors within 3.6 %
_NARROW_SUM = 0.01  # of a network's latency: half of the 90 % interval of the sum
_LEAST_NS = 1.0  # no clock here tells less
_LEAST_GROWTH = 0.25  # of the samples: less does not narrow an interval by more than a tenth
_WARM_UP = 3  # rounds, at least


class Refinable(Protocol):
    """A campaign with samples of every layer."""

    rounds: Rounds

    def behind(self, entries: Iterable[int]) -> Collection[int]:
        """Places in ``rounds`` of what entries of the table are made from."""


def refine(
    campaign: Refinable,
    told: Callable[[], LatencyTable],
    clock: Clock,
    until_ns: int,
    networks: Sequence[Mapping[str, int]] = (),
    *,
    stop: Callable[[], bool] | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> int:
    """Time layers again whose intervals are wide, with what their overhead is told from.

    Each turn doubles the samples of those that are left, 4000 at most.

    Args:
        campaign: with samples of every layer.
        told: the table from the samples so far.
        clock: the device's.
        until_ns: on this clock.
        networks: see :func:`wide`.
        stop: asked between launches; complete rounds stay.
        on_round: told rounds done and rounds in all of a turn.

    Returns:
        How many entries are wide at the end.
    """
    rounds, most = campaign.rounds, _MOST_REPEATS // RUNS
    while left := wide(told().entries, networks):
        places = campaign.behind(left)
        done = min(len(rounds.runs[place].samples_ns) for place in places)
        affordable = int((until_ns - clock.now_ns()) / rounds.round_ns(places)) - _WARM_UP
        more = min(done, most - done, affordable)
        if more < max(_LEAST_GROWTH * done, 1) or not rounds.measure(done + more, stop, on_round, places):
            break
    return len(left)


def wide(entries: Sequence[LatencyEntry], networks: Sequence[Mapping[str, int]] = ()) -> list[int]:
    """Indices of entries whose intervals are wide.

    An entry is narrow where half of its 90 % interval is 3 % of its latency, or so little that the
    sum of every network is known to 1 % where all of its layers are (they are independent).

    Args:
        entries: of a table.
        networks: for each one how often it has each layer (:attr:`Subject.key`); an entry of none of them
            is held to its own latency alone.
    """
    allowed: dict[str, float] = {}
    keys = [layer_key(entry.op, entry.configuration) for entry in entries]
    latency = dict(zip(keys, (entry.latency_ns for entry in entries), strict=True))
    for network in networks:
        known = {key: count for key, count in network.items() if key in latency}
        total = sum(count * latency[key] for key, count in known.items())
        for key, count in known.items():
            share = _NARROW_SUM * total / math.sqrt(len(known)) / count
            allowed[key] = min(allowed.get(key, share), share)
    return [
        index
        for index, (key, entry) in enumerate(zip(keys, entries, strict=True))
        if entry.interval_ns[1] - entry.interval_ns[0]
        > 2 * max(_NARROW * entry.latency_ns, allowed.get(key, 0.0), _LEAST_NS)
    ]


Method = Literal["regression", "auxiliary"]
Floats = npt.NDArray[np.float64]


# Standard deviations: 5 % risk on either side (Currie, 1968, "Limits for Qualitative Detection").
_DETECTION = 3.29
_NORMAL_90 = 1.645
_ILL_CONDITIONED = 30.0
Key = tuple[AuxiliaryKind, str, tuple[int, ...]]


@dataclass(frozen=True)
class _Total:
    """A subject's launch: with its auxiliary layer, or, without one, the layer alone."""

    subject: Subject
    run: int
    key: Key | None


class Campaign:
    """Measures layers on one unit of a device.

    Args:
        device: any; only start and end of its launches are used.
        unit: of its target.
        subjects: the layers.
        auxiliary: kind of auxiliary layer; "auto": one of the layer's own layout class.
        repeats: samples of every launch; ``None``: 100, to be refined (:mod:`framefit.latency.campaign`).
        seed: of weights, inputs and resampling.
        earlier: a table of an interrupted campaign; its samples are kept.
        failed: layers that are none of the subjects because they cannot stand alone.

    Raises:
        DeviceError: no layer can be measured.
    """

    def __init__(
        self,
        device: Device,
        unit: str,
        subjects: Iterable[Subject],
        *,
        auxiliary: AuxiliaryKind | Literal["auto"] = "auto",
        repeats: int | None = None,
        seed: int = 0,
        earlier: LatencyTable | None = None,
        failed: Iterable[Unmeasured] = (),
    ) -> None:
        self.failed = list(failed)
        """Layers that cannot be measured."""
        self._device = device
        self._unit = unit
        self._auxiliary = auxiliary
        self._repeats: int | str = "auto" if repeats is None else repeats
        self._count = max(math.ceil((LEAST_REPEATS if repeats is None else repeats) / RUNS), 1)
        self._seed = seed
        self.rounds = Rounds(device, unit, seed)
        """All launches; more may be added."""
        self._totals: list[_Total] = []
        self._alone: dict[Key, tuple[int, Auxiliary]] = {}
        self._contrasts: dict[AuxiliaryKind, list[Contrast]] = {}
        self._singles: dict[AuxiliaryKind, list[tuple[int, Auxiliary, tuple[int, ...]]]] = {}
        self._earlier = () if earlier is None else earlier.runs
        self.add(subjects)
        if not self._totals:
            reason = self.failed[0].reason if self.failed else "there is none"
            raise DeviceError(f"no layer can be measured: {reason}", where=self._device.target.name)

    def measure(
        self,
        *,
        stop: Callable[[], bool] | None = None,
        on_round: Callable[[int, int], None] | None = None,
    ) -> bool:
        """Time everything in turn; see :meth:`framefit.latency.rounds.Rounds.measure`.

        Returns:
            Whether every launch has its samples.
        """
        return self.rounds.measure(self._count, stop, on_round)

    def behind(self, entries: Iterable[int]) -> set[int]:
        """Places in ``rounds`` of what entries are made from, by their index in the table."""
        totals = [self._totals[index] for index in entries]
        kinds = {self._main_kind if total.key is None else total.key[0] for total in totals}
        return {
            *(total.run for total in totals),
            *(self._alone[total.key][0] for total in totals if total.key is not None),
            *(place for kind in kinds for contrast in self._contrasts[kind] for place in contrast.runs),
        }

    def table(self, method: Method = "regression") -> LatencyTable:
        """Latencies from the samples so far; entries of layers that were not reached are missing.

        Args:
            method: how the overhead is taken off; both use the same samples.
        """
        entries: list[LatencyEntry] = []
        unmeasured = list(self.failed)
        overheads: list[Overhead] = []
        warnings: list[str] = []
        measured = self.rounds.measured
        if measured:
            medians = self.rounds.medians()
            fits = {kind: fit_overhead(contrasts, medians) for kind, contrasts in self._contrasts.items()}
            times = {kind: self._auxiliary_times(kind, fit, medians) for kind, fit in fits.items()}
            overheads = [fit.record(kind, times[kind].lack_of_fit_ns) for kind, fit in fits.items()]
            places = {kind: {key: n for n, key in enumerate(self._keys(kind))} for kind in fits}
            for total in self._totals:
                kind = self._main_kind if total.key is None else total.key[0]
                place = None if total.key is None else places[kind][total.key]
                entries.append(self._entry(total, method, medians, fits[kind], times[kind], place))
            warnings = self._warnings(overheads)
        else:
            unmeasured += [
                self._not_measured(total.subject, "the campaign ended before its first round did")
                for total in self._totals
            ]
        main = next((one for one in overheads if one.auxiliary == self._main_kind), None)
        return LatencyTable(
            target=self._device.target.name,
            fingerprint=self._device.fingerprint(),
            overhead=main,
            entries=tuple(entries),
            overheads=tuple(overheads),
            unmeasured=tuple(unmeasured),
            warnings=tuple(warnings),
            settings={
                "repeats": self._count * RUNS if isinstance(self._repeats, int) else self._repeats,
                "seed": self._seed,
                "auxiliary": self._auxiliary,
                "overhead": method,
            },
            runs=self.rounds.records(),
        )

    # What is launched -----------------------------------------------------------------------

    def add(self, subjects: Iterable[Subject]) -> None:
        """More layers; :meth:`measure` times what has no samples yet."""
        subjects = tuple(subjects)
        outputs = {id(subject): _observed(subject.model) for subject in subjects}
        by_kind: dict[AuxiliaryKind, list[tuple[int, ...]]] = {kind: [] for kind in AUXILIARY_KINDS}
        for subject in subjects:
            if (tensor := outputs[id(subject)]) is not None and tensor.shape is not None:
                for kind in self._kinds(subject):
                    by_kind[kind].append(tensor.shape)
        choices = {kind: auxiliaries_for(shapes, kind) for kind, shapes in by_kind.items()}
        for subject in subjects:
            self._add_total(subject, outputs[id(subject)], choices)
        kinds = {total.key[0] for total in self._totals if total.key is not None}
        if self._totals and not kinds:
            kinds = {self._kinds(self._totals[0].subject)[0]}
        for kind in [kind for kind in AUXILIARY_KINDS if kind in kinds and kind not in self._contrasts]:
            self._add_overhead(kind)
        self.rounds.take_over(self._earlier)

    def _kinds(self, subject: Subject) -> list[AuxiliaryKind]:
        """The kind asked for, or the layer's own; then the others, for where it would be fused."""
        first = suited_kind(subject.op) if self._auxiliary == "auto" else self._auxiliary
        return [first, *(kind for kind in AUXILIARY_KINDS if kind != first)]

    def _add_total(
        self,
        subject: Subject,
        tensor: TensorInfo | None,
        choices: dict[AuxiliaryKind, dict[tuple[int, ...], Auxiliary]],
    ) -> None:
        """The first auxiliary layer that stays beside the layer; else the layer alone."""
        own = {node for layer in subject.model.layers for node in layer.nodes}
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
                    if any(own & set(group) and set(group) - own for group in self._device.fusions(model)):
                        reason = "the device fuses it with every auxiliary layer"
                        continue
                run = self.rounds.add("layer", model)
                if key is not None and key not in self._alone:
                    source = TensorInfo(name="x", dtype=key[1], shape=key[2])
                    alone = self.rounds.add("auxiliary", with_auxiliary(source, [link], seed=self._seed))
                    self._alone[key] = (alone, link)
            except FramefitError as error:
                reason = error.what
                continue
            self._totals.append(_Total(subject, run, key))
            return
        self.failed.append(self._not_measured(subject, reason))

    def _add_overhead(self, kind: AuxiliaryKind) -> None:
        sizes = [run.input_bytes for run in self.rounds.runs if run.role in ("layer", "auxiliary")]
        design = overhead_design(kind, sizes, self._seed)
        places = [self.rounds.add("overhead", model) for model in design.models]
        self._contrasts[kind] = [contrast.over(places) for contrast in design.contrasts]
        self._singles[kind] = [(places[run], link, shape) for run, link, shape in design.singles]

    def _not_measured(self, subject: Subject, reason: str) -> Unmeasured:
        return Unmeasured(
            op=subject.op, configuration=subject.configuration, layers=subject.layers, unit=self._unit, reason=reason
        )

    # Estimates ------------------------------------------------------------------------------

    @property
    def _main_kind(self) -> AuxiliaryKind:
        """What most layers were measured with."""
        kinds = list(self._contrasts)
        count = [sum(t.key is not None and t.key[0] == kind for t in self._totals) for kind in kinds]
        return kinds[int(np.argmax(count))]

    def _keys(self, kind: AuxiliaryKind) -> list[Key]:
        return [key for key in self._alone if key[0] == kind]

    def _auxiliary_times(self, kind: AuxiliaryKind, fit: Coefficients, medians: Floats) -> AuxiliaryTimes:
        """Of the layers that were run alone, in the order of ``_keys``."""
        keyed = [(*self._alone[key], key[2]) for key in self._keys(kind)]
        singles = [*keyed, *self._singles[kind]]
        runs = [self.rounds.runs[place] for place, _, _ in singles]
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

    def _entry(
        self,
        total: _Total,
        method: Method,
        medians: Floats,
        fit: Coefficients,
        times: AuxiliaryTimes,
        place: int | None,
    ) -> LatencyEntry:
        run, whole = self.rounds.runs[total.run], medians[:, total.run]
        literal, model_error = None, 0.0
        overhead = fit.of(run.input_bytes, run.output_bytes)
        if total.key is not None and place is not None:
            alone_at, _ = self._alone[total.key]
            alone = self.rounds.runs[alone_at]
            literal = whole[0] - medians[0, alone_at]
            if method == "auxiliary":
                overhead = overhead + medians[:, alone_at] - fit.of(alone.input_bytes, alone.output_bytes)
            else:
                overhead = overhead + times.values[:, place]
                model_error = float(times.deviation_ns[place])
        layer = whole - overhead
        low, high = interval(layer)
        spread = float(np.subtract(*np.quantile(layer[1:], (0.8413, 0.1587)))) / 2
        noise = math.hypot(spread, model_error, RESOLUTION_NS)
        widened = _NORMAL_90 * model_error
        floor = _DETECTION * noise
        steady = Measurement(run.samples_ns.ravel()).stable  # type: ignore[arg-type]  # ns, not whole ones
        return LatencyEntry(
            op=total.subject.op,
            configuration=total.subject.configuration,
            unit=self._unit,
            latency_ns=max(round(layer[0]), 0),
            interval_ns=(max(math.floor(low - widened), 0), max(math.ceil(high + widened), 0)),
            samples_ns=tuple(np.maximum(np.rint(run.samples_ns.ravel() - overhead[0]), 0).astype(np.int64).tolist()),
            source="measured" if steady else "measured, drifting",
            below_noise=bool(layer[0] < floor),
            noise_floor_ns=math.ceil(floor),
            auxiliary="none" if total.key is None else total.key[0],
            overhead_ns=round(overhead[0]),
            literal_ns=None if literal is None else round(literal),
        )

    def _warnings(self, overheads: Sequence[Overhead]) -> list[str]:
        found = self.rounds.warnings()
        found += [
            f"overhead by {one.auxiliary}: condition number {one.condition_number:.0f}: its coefficients cannot be "
            "told apart; measure layers of more different sizes"
            for one in overheads
            if one.condition_number > _ILL_CONDITIONED
        ]
        return found


def suited_kind(op: str) -> AuxiliaryKind:
    """An auxiliary layer of the layer's layout class.

    What reorders a tensor for convolutions does it before the first and after the last of them:
    behind a convolution, another one moves the reorder to its own end, where its run alone has it too.
    """
    return "conv1x1" if "Conv" in op else "avgpool"


def _observed(model: Model) -> TensorInfo | None:
    """The output that the auxiliary layer reads: the largest of fixed size, floats first."""
    fixed = [tensor for tensor in model.outputs if tensor.fixed and tensor.bytes]
    return max(fixed, key=lambda tensor: (tensor.dtype == "float32", tensor.bytes), default=None)
