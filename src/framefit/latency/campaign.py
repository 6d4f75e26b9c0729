"""A measuring campaign: layers launched among others, timed in turn, made into a latency table.

The overhead of a launch is estimated by a model (:mod:`framefit.latency.overhead`).

Where no number of samples is given, layers with wide intervals get more samples, until the intervals are
narrow or the time is up. Noise differs between layers: a fixed number of samples is too many for layers that
take most of a launch, and too few for those that take little of it. The limit applies to the interval's width
relative to the latency (a sequential procedure of fixed relative width; Nadas, 1969, "An Extension of a Theorem of
Chow and Robbins on Sequential Confidence Intervals for the Mean").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyEntry, LatencyTable, Overhead, Unmeasured, Value
from framefit.core.model import AuxiliaryKind
from framefit.devices.device import Device
from framefit.errors import DeviceError
from framefit.latency.overhead import (
    RESOLUTION_NS,
    AffineOverhead,
    FittedOverhead,
    Method,
    OverheadModel,
    ResidentOverhead,
    SubjectLaunch,
)
from framefit.latency.rounds import RUNS, Rounds, interval
from framefit.latency.subjects import Subject, layer_key
from framefit.stats import Z90

Floats = npt.NDArray[np.float64]
LEAST_REPEATS = 100  # samples before intervals are judged
MOST_REPEATS = 4000  # where nobody says how long to measure
MOST_KEPT = 100_000  # samples of a launch: all of them are stored
NARROW = 0.025  # half of a 90 % interval: a standard deviation of 1.5 %, 95 % of errors within 3 %
_NARROW_SUM = 0.01  # of a network's latency: half of the 90 % interval of the sum
_LEAST_NS = 1.0  # resolution of the clocks
_LEAST_GROWTH = 0.25  # of the samples: fewer do not narrow an interval by more than a tenth
_WARM_UP = 3  # rounds at least
# Standard deviations: 5 % risk on either side (Currie, 1968, "Limits for Qualitative Detection").
_DETECTION = 3.29
_ILL_CONDITIONED = 30.0


class Campaign:
    """Measures layers on one unit of a device.

    Attributes:
        rounds: all launches; more can be added.

    Args:
        device: any device; only start and end of its launches are used.
        unit: of its target.
        subjects: the layers.
        resident: whether the unit is the host's own processor, and a runtime made the subjects of models.
        auxiliary: kind of auxiliary layer; "auto": one of the layer's own layout class, or the cheapest where
            the unit is resident.
        repeats: samples of every launch; ``None``: 100, then refined.
        seed: for weights, inputs and resampling.
        earlier: table of an interrupted campaign; its samples are kept.
        failed: layers that are not among the subjects because they cannot run alone.

    Raises:
        DeviceError: no layer can be measured.
    """

    def __init__(
        self,
        device: Device,
        unit: str,
        subjects: Iterable[Subject],
        *,
        resident: bool = False,
        auxiliary: AuxiliaryKind | Literal["auto"] = "auto",
        repeats: int | None = None,
        seed: int = 0,
        earlier: LatencyTable | None = None,
        failed: Iterable[Unmeasured] = (),
    ) -> None:
        self.rounds = Rounds(device, unit, seed, resident=resident)
        self._device, self._unit = device, unit
        self._count = max(math.ceil((LEAST_REPEATS if repeats is None else repeats) / RUNS), 1)
        self._settings: dict[str, Value] = {
            "repeats": "auto" if repeats is None else self._count * RUNS,
            "seed": seed,
            "auxiliary": auxiliary,
        }
        self._earlier = () if earlier is None else earlier.runs
        self._failed = list(failed)
        self._overhead: OverheadModel = (
            ResidentOverhead(self.rounds, auxiliary, seed)
            if resident
            else AffineOverhead(device, self.rounds, auxiliary, seed)
        )
        self.add(subjects)
        if not self._overhead.launches:
            reason = self._failed[0].reason if self._failed else "there are no layers"
            raise DeviceError(f"no layer can be measured: {reason}", where=device.target.name)

    def add(self, subjects: Iterable[Subject]) -> None:
        """Add layers; :meth:`measure` times those that have no samples yet."""
        refused = self._overhead.add(tuple(subjects))
        self._failed += [self._not_measured(subject, reason) for subject, reason in refused]
        self.rounds.take_over(self._earlier)

    def measure(
        self, *, stop: Callable[[], bool] | None = None, on_round: Callable[[int, int], None] | None = None
    ) -> bool:
        """Time all launches in turn; see :meth:`framefit.latency.rounds.Rounds.measure`.

        Returns:
            Whether every launch has its samples.
        """
        return self.rounds.measure(self._count, stop, on_round)

    def refine(
        self,
        until_ns: int,
        networks: Sequence[Mapping[str, int]] = (),
        method: Method = "regression",
        *,
        most_repeats: int = MOST_KEPT,
        stop: Callable[[], bool] | None = None,
        on_round: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """Measure layers with wide intervals again, with the launches that their overhead is estimated from.

        Each turn doubles the samples of the remaining layers, to at most ``most_repeats``; a turn only begins if it
        ends before ``until_ns`` on the device's clock. A layer's launch and those that its overhead is estimated from
        are repeated together. Returns names of the layers that are still wide (:func:`wide`), those with the widest
        intervals first.
        """
        most = most_repeats // RUNS
        while left := wide((entries := self.table(method).entries), networks):
            places = self._places(left)
            done = min(len(self.rounds.runs[place].samples_ns) for place in places)
            affordable = int((until_ns - self._device.clock.now_ns()) / self.rounds.round_ns(places)) - _WARM_UP
            more = min(done, most - done, affordable)
            if more < max(_LEAST_GROWTH * done, 1) or not self.rounds.repeat(more, places, stop, on_round):
                break
        left.sort(key=lambda index: entries[index].interval_ns[0] - entries[index].interval_ns[1])
        subjects = [self._overhead.launches[index].subject for index in left]
        return [subject.layers[0] if subject.layers else subject.op for subject in subjects]

    def table(self, method: Method = "regression") -> LatencyTable:
        """Make a table of the samples so far; it has no entries of layers without samples.

        Both methods of estimating the overhead use the same samples.
        """
        launches = self._overhead.launches
        entries: list[LatencyEntry] = []
        unmeasured, warnings = list(self._failed), self.rounds.warnings()
        main: Overhead | None = None
        overheads: tuple[Overhead, ...] = ()
        if self.rounds.measured:
            medians = self.rounds.medians()
            fitted = self._overhead.fit(medians, method)
            main, overheads = fitted.main, fitted.overheads
            entries = [self._entry(launch, medians[:, launch.place], fitted) for launch in launches]
            entries = self._with_in_turn(entries, method)
            warnings += _ill_conditioned(overheads)
        else:
            reason = "the campaign ended before its first round was complete"
            unmeasured += [self._not_measured(launch.subject, reason) for launch in launches]
        return LatencyTable(
            target=self._device.target.name,
            fingerprint=self._device.fingerprint(),
            overhead=main,
            entries=tuple(entries),
            overheads=overheads,
            unmeasured=tuple(unmeasured),
            warnings=tuple(warnings),
            settings={**self._settings, "overhead": method},
            runs=self.rounds.records(),
        )

    def _with_in_turn(self, entries: Sequence[LatencyEntry], method: Method) -> list[LatencyEntry]:
        """The entries with what first launches behind others take, less the overhead of first launches."""
        whole = self.rounds.in_turn()
        if whole is None:
            return list(entries)
        fitted, launches = self._overhead.fit(whole, method), self._overhead.launches
        in_turn = [float(whole[0, launch.place] - fitted.of(launch).values_ns[0]) for launch in launches]
        return [
            msgspec.structs.replace(entry, in_turn_ns=max(round(ns), entry.latency_ns))
            for entry, ns in zip(entries, in_turn, strict=True)
        ]

    def _places(self, entries: Iterable[int]) -> set[int]:
        """Indices in ``rounds`` of the runs that entries are made from, by the entries' indices in the table."""
        launches = [self._overhead.launches[index] for index in entries]
        return {*(launch.place for launch in launches), *self._overhead.places(launches)}

    def _not_measured(self, subject: Subject, reason: str) -> Unmeasured:
        return Unmeasured(
            op=subject.op, configuration=subject.configuration, layers=subject.layers, unit=self._unit, reason=reason
        )

    def _entry(self, launch: SubjectLaunch, whole: Floats, fitted: FittedOverhead) -> LatencyEntry:
        """Entry of a layer: its launch (replicates) less the overhead."""
        samples = self.rounds.runs[launch.place].samples_ns.ravel()
        overhead = fitted.of(launch)
        layer = whole - overhead.values_ns
        low, high = interval(layer)
        spread = float(np.subtract(*np.quantile(layer[1:], (0.8413, 0.1587)))) / 2
        widened = Z90 * overhead.model_error_ns
        floor = _DETECTION * math.hypot(spread, overhead.model_error_ns, RESOLUTION_NS)
        steady = self.rounds.steady(launch.place)
        return LatencyEntry(
            op=launch.subject.op,
            configuration=launch.subject.configuration,
            unit=self._unit,
            latency_ns=max(round(layer[0]), 0),
            interval_ns=(max(math.floor(low - widened), 0), max(math.ceil(high + widened), 0)),
            samples_ns=tuple(np.maximum(np.rint(samples - overhead.values_ns[0]), 0).astype(np.int64).tolist()),
            source="measured" if steady else "measured, drifting",
            below_noise=bool(layer[0] < floor),
            noise_floor_ns=math.ceil(floor),
            auxiliary="none" if launch.observed is None else launch.observed[0],
            overhead_ns=round(overhead.values_ns[0]),
            literal_ns=None if overhead.literal_ns is None else round(overhead.literal_ns),
        )


def _ill_conditioned(overheads: Sequence[Overhead]) -> list[str]:
    return [
        f"overhead by {overhead.auxiliary}: condition number {overhead.condition_number:.0f}: its coefficients cannot "
        "be separated; measure layers of more different sizes"
        for overhead in overheads
        if overhead.condition_number > _ILL_CONDITIONED
    ]


def wide(entries: Sequence[LatencyEntry], networks: Sequence[Mapping[str, int]] = ()) -> list[int]:
    """Indices of entries whose intervals are wide.

    An entry is narrow where half of its 90 % interval is 2.5 % of its latency, or so little that the sum of
    every network is known to 1 % if all of its layers are narrow (they are independent). Each network is given as the
    number of times that it has each layer (:attr:`Subject.key`); for an entry of none only its own latency counts.
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
        > 2 * max(NARROW * entry.latency_ns, allowed.get(key, 0.0), _LEAST_NS)
    ]
