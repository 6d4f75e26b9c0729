"""What launches take on a unit: measured there, stated by a described device, or read from a latency table.

A planner asks a unit's :class:`Durations` and does not know which of these answers. What depends on it is whether the
figures are exact, so that they may be asked for again and again, and whether models are compiled for them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import Value
from framefit.core.model.lowering import owners
from framefit.core.settings import Notify
from framefit.devices.device import Completion, Device, ModelledDevice
from framefit.devices.host import at_realtime_priority, pinned
from framefit.devices.measure import Measurement, measure, measure_floor, mostly_drifting
from framefit.devices.store import MeasurementStore
from framefit.execution.compiled import Compiler, Launch, operators_of
from framefit.planning.partition import Pieces, paired, pooled_excess, priced_pieces
from framefit.planning.task import Bounds, SegmentedModel

__all__ = ["Durations", "MeasuredDurations", "ModelledDurations", "PricedDevice"]


Samples = npt.NDArray[np.int64]
PlannedLaunch = tuple[SegmentedModel, int | None]
"""A segment of a model as it is to run; ``None``: the uncut model."""

_NOISY = 2.0  # quantile over median
_PROBE_NS, _PROBE_ROUNDS = 2_000_000_000, 12  # to decide with
_FINAL_NS, _FINAL_ROUNDS = 4_000_000_000, 25  # to plan with
_AROUND_NS, _AROUND_LEAST, _AROUND_MOST = 1_000_000_000, 6, 40  # before and after a run
_SHARED = 0.1  # of the launches' time, that other programs had the core for
_FLOOR_WAKE_UPS, _FLOOR_PERIOD_NS = 100, 5_000_000
_DRIFTED = "the machine's speed drifted while it was measured: see framefit doctor, plan again with --no-cache"
_BUSY = f"other programs had the core for more than {_SHARED:.0%} of the time while it was measured: "
_OTHERS = _BUSY + "stop them; what was measured is not kept, the next plan measures again"
_BEFORE_OTHERS = _BUSY + "it was measured at real-time priority; background models get less while they run"


class Durations(Protocol):
    """What launches take on one unit, or on several that are alike.

    Attributes:
        exact: whether figures are known rather than measured: asked again, they are the same.
        compiles: whether models are compiled to price them; else nothing is run.
        warnings: what the user should know of the figures.
    """

    exact: bool
    compiles: bool
    warnings: list[str]

    def grouped(self, task: SegmentedModel) -> SegmentedModel:
        """A model in the layers that its pieces are priced in: what the device fuses is one of them."""

    def launched(self, launches: Sequence[PlannedLaunch], *, thorough: bool = True) -> list[Samples]:
        """Durations of launches on the unit.

        Args:
            launches: segments and uncut models.
            thorough: to plan with; else a first look at uncut models, to decide with.
        """

    def excesses(self, tasks: Sequence[SegmentedModel], samples: Sequence[Samples]) -> list[float]:
        """Planned quantile over median of each model's launches.

        Args:
            tasks: the models.
            samples: of all their launches, which tell it where it is measured.
        """

    def pieces(self, task: SegmentedModel, duration_ns: int = 0, excess: float | None = None) -> Pieces:
        """Costs of a grouped model's runs of layers, and of the boundaries between them.

        Args:
            task: not cut yet: a whole model, or where figures are exact any part that the unit supports.
            duration_ns: planned quantile of the whole model, where it was measured.
            excess: that over its median; ``None``: as it is known exactly.
        """

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """What compiled segments take beside a run."""

    def greatest_excess(self) -> float:
        """How much longer than its quantile a launch may be at most, relative to it; 0: nobody knows."""

    def wake_ups(self) -> tuple[int, ...]:
        """How late the idle host wakes up, in nanoseconds."""


class ComparableDurations(Durations, Protocol):
    """Where figures are measured, ways to cut are compiled and compared: prices of short pieces miss their cost."""

    def cuttings(
        self, tasks: Sequence[SegmentedModel], ways: Sequence[Sequence[Bounds]]
    ) -> tuple[list[list[list[int]]], list[int]]:
        """A short campaign over several ways to cut, back to back; the uncut models before, between and after them.

        Args:
            tasks: that are cut in some way.
            ways: for each way the bounds of each task's segments; empty: it stays whole.

        Returns:
            Medians: of each way's tasks' segments, and of each uncut model.
        """


def are_comparable(durations: Durations) -> TypeGuard[ComparableDurations]:
    """Whether ways to cut have to be compared; what is known exactly says what each costs."""
    return not durations.exact


@dataclass(frozen=True)
class PricedDevice:
    """A device with what launches take there.

    Attributes:
        device: where models run.
        compiler: of the device.
        units: durations on each unit that models may use; units that are alike share them.
    """

    device: Device
    compiler: Compiler
    units: Mapping[str, Durations]

    @property
    def durations(self) -> Durations:
        """Those on the first unit, which also say what a run of all units asks for."""
        return next(iter(self.units.values()))


@dataclass(frozen=True)
class LaunchTimes:
    """A model's launches.

    Attributes:
        segments_ns: durations of each segment; of the only one where it runs whole.
        whole_ns: of the uncut model.
        excess: quantile over median.
    """

    segments_ns: tuple[Samples, ...]
    whole_ns: Samples
    excess: float


def together(replicas: Sequence[LaunchTimes]) -> LaunchTimes:
    """Those of all replicas of a model, one after the other."""
    first, *further = replicas
    if not further:
        return first
    segments = tuple(samples for times in replicas for samples in times.segments_ns)
    return LaunchTimes(segments, first.whole_ns, max(times.excess for times in replicas))


def launch_times(
    tasks: Sequence[SegmentedModel], units: Mapping[str, Durations], *, thorough: bool = True
) -> list[LaunchTimes]:
    """What the models' launches take, and the uncut models: each on its unit.

    Args:
        tasks: as they are to run.
        units: durations on each.
        thorough: to plan with; else a first look at uncut models.
    """
    samples: dict[tuple[str, int | None], Samples] = {}
    for unit, durations in units.items():
        launches: list[PlannedLaunch] = [
            (task, index) for task in tasks for index, name in enumerate(task.units) if name == unit
        ]
        launches += [(task, None) for task in tasks if task.bounds and task.unit == unit]
        keys = [(task.name, index) for task, index in launches]
        if launches:
            samples |= dict(zip(keys, durations.launched(launches, thorough=thorough), strict=True))
    excesses = next(iter(units.values())).excesses(tasks, list(samples.values()))
    return [
        LaunchTimes(
            tuple(samples[task.name, index] for index in range(len(task.segments))),
            samples[task.name, None if task.bounds else 0],
            excess,
        )
        for task, excess in zip(tasks, excesses, strict=True)
    ]


class MeasuredDurations:
    """By running launches in turn, or from what an earlier plan measured.

    Args:
        compiler: of the machine's own device.
        unit: of the launches.
        measured_as: the unit whose measurements count: the same, or one that is exactly as fast.
        store: keeps what was measured.
        window_ns: length of a window; on the beat each round follows a sleep, as in a run.
        quantile: that is planned with, 0 to 1.
        notify: receives what is being done.
        realtime: in a run priority models go before other programs' threads, so that wake-ups are measured like
            that, and where others have the core, what is on the beat, too. It has to be permitted.
    """

    exact, compiles = False, True

    def __init__(
        self,
        compiler: Compiler,
        unit: str,
        measured_as: str,
        store: MeasurementStore,
        window_ns: int,
        quantile: float,
        notify: Notify,
        *,
        realtime: bool = False,
    ) -> None:
        self.warnings: list[str] = []
        self._compiler, self._device, self._store = compiler, compiler.device, store
        self._core, self._unit = self._device.target.unit(unit).core, measured_as
        self._window_ns, self._quantile, self._notify, self._realtime = window_ns, quantile, notify, realtime

    def grouped(self, task: SegmentedModel) -> SegmentedModel:
        """What the runtime makes of the model is cut, where it says: no boundary adds a copy between layouts then.

        Else the model itself, never inside what the runtime fuses.
        """
        operators = operators_of(self._device, task.model)
        if operators is None:
            return task.grouped(self._device.fusions(task.model))
        return task.lowered(operators, [task.model.layers[place].name for place in owners(task.model, operators)])

    def launched(self, launches: Sequence[PlannedLaunch], *, thorough: bool = True) -> list[Samples]:
        """A campaign over all of them in turn, as they will run; a short one for a first look."""
        self._notify(f"measuring {len(launches)} segments" if thorough else "compiling whole models")
        compiled = [_compiled(task, index, self._compiler) for task, index in launches]
        if not thorough:
            self._notify("pricing whole models")
        with pinned(self._core):
            samples = [m.samples_ns for m in (self.final if thorough else self.probe)(compiled)]
        excess = pooled_excess(samples, self._quantile) if thorough else 1.0
        if excess > _NOISY:
            self._warn(
                f"durations vary a lot here: the {self._quantile:g} quantile is {excess:.1f} x the median; stop other "
                "programs, see framefit doctor, and plan again with --no-cache"
            )
        return samples

    def excesses(self, tasks: Sequence[SegmentedModel], samples: Sequence[Samples]) -> list[float]:
        """From the samples of all launches together: alike for all models."""
        return [pooled_excess(samples, self._quantile)] * len(tasks)

    def pieces(self, task: SegmentedModel, duration_ns: int = 0, excess: float | None = None) -> Pieces:
        """All pieces, all adjacent pairs and the whole model, back to back."""
        assert excess is not None  # the whole model was measured
        key = {"model": task.model.digest, "runs": str(list(task.runs))}
        *cost, whole_ns = self.medians(key, lambda: self._ways_to_cut(task))
        pieces = priced_pieces(cost[: len(task.runs)], cost[len(task.runs) :], whole_ns, excess)
        return pieces.scaled(np.full(len(pieces), duration_ns / excess / max(whole_ns, 1)))

    def cuttings(
        self, tasks: Sequence[SegmentedModel], ways: Sequence[Sequence[Bounds]]
    ) -> tuple[list[list[list[int]]], list[int]]:
        """See :meth:`ComparableDurations.cuttings`."""
        self._notify(f"measuring {len(ways)} ways to cut")
        key = {"models": ",".join(task.model.digest for task in tasks), "ways": str(ways)}
        times = list(self.medians(key, lambda: self._on_trial(tasks, ways)))
        uncut, medians = [], []
        for number, way in enumerate(ways):
            if number in (0, len(ways) // 2):
                uncut.append([times.pop(0) for _ in tasks])
            medians.append([[times.pop(0) for _ in bounds] for bounds in way])
        uncut.append(times)
        return medians, np.mean(uncut, axis=0).astype(np.int64).tolist()

    def probe(self, launches: Sequence[Launch]) -> list[Measurement]:
        """A first look at compiled segments."""
        return self._measured(launches, _PROBE_NS, _PROBE_ROUNDS, on_beat=True)[0]

    def final(self, launches: Sequence[Launch]) -> list[Measurement]:
        """Compiled segments, to plan with."""
        return self._measured(launches, _FINAL_NS, _FINAL_ROUNDS, on_beat=True)[0]

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """Beside a run; never from the store."""
        return measure(
            _calls(launches),
            budget_ns=_AROUND_NS,
            least_rounds=_AROUND_LEAST,
            most_rounds=_AROUND_MOST,
            clock=self._device.clock,
            period_ns=self._window_ns,
        )

    def medians(self, key: Mapping[str, Value], launches: Callable[[], Sequence[Launch]]) -> tuple[int, ...]:
        """Medians of a campaign back to back, kept under a key of its own.

        Args:
            key: what was measured.
            launches: made only where they have to be measured.
        """
        configuration = dict(key)
        if self._store.drifted("pieces", configuration, self._unit):
            self._warn(_DRIFTED)
        medians_ns = self._store.find_numbers("pieces", configuration, self._unit)
        if medians_ns is None:
            measured, kept = self._measured(launches(), _PROBE_NS, _PROBE_ROUNDS, on_beat=False)
            medians_ns = tuple(measurement.median_ns for measurement in measured)
            if kept:
                self._store.add_numbers(
                    "pieces", configuration, self._unit, medians_ns, drifted=mostly_drifting(measured)
                )
        return medians_ns

    def greatest_excess(self) -> float:
        """Nobody knows: the host may stall."""
        return 0.0

    def wake_ups(self) -> tuple[int, ...]:
        """Measured once, then from the store; not kept where the host was too busy to wake up within a period."""
        key: dict[str, Value] = {"period_ns": _FLOOR_PERIOD_NS, "realtime": self._realtime}
        known = self._store.find_numbers("wake-up", key, self._unit)
        if known is not None:
            return known
        self._notify("measuring the machine's floor")
        with at_realtime_priority() if self._realtime else contextlib.nullcontext():
            late = tuple(measure_floor(self._device.clock, _FLOOR_PERIOD_NS, _FLOOR_WAKE_UPS).tolist())
        if max(late) < _FLOOR_PERIOD_NS:
            self._store.add_numbers("wake-up", key, self._unit, late)
        return late

    def _measured(
        self, launches: Sequence[Launch], budget_ns: int, least_rounds: int, *, on_beat: bool
    ) -> tuple[list[Measurement], bool]:
        """From the store where it has all of them, else measured in turn; and whether the store has them now."""
        beside = hashlib.sha256("".join(sorted(e.parts[i].digest for e, i in launches)).encode()).hexdigest()[:16]
        known = [self._store.find(e.parts[index], self._unit, beside, least_rounds) for e, index in launches]
        measured_now, kept = [measurement for measurement in known if measurement is not None], True
        if len(measured_now) < len(launches):
            random = np.random.default_rng(0)
            for execution in {id(execution): execution for execution, _ in launches}.values():
                execution.run(execution.example(random))  # real values between the segments
            take = functools.partial(
                measure,
                _calls(launches),
                budget_ns=budget_ns,
                least_rounds=least_rounds,
                clock=self._device.clock,
                period_ns=self._window_ns if on_beat else 0,
            )
            measured_now = take()
            if _disturbed(measured_now) and self._realtime and on_beat:
                self._warn(_BEFORE_OTHERS)
                measured_now = take(realtime=True)
            kept = not _disturbed(measured_now)
            if kept:
                measured = [
                    (e.parts[index], self._unit, m) for (e, index), m in zip(launches, measured_now, strict=True)
                ]
                self._store.add(beside, measured)
            else:
                self._warn(_OTHERS)
        if mostly_drifting(measured_now):
            self._warn(_DRIFTED)
        return measured_now, kept

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _on_trial(self, tasks: Sequence[SegmentedModel], ways: Sequence[Sequence[Bounds]]) -> list[Launch]:
        """All segments of all ways, and the uncut models before, between and after them."""
        whole: list[Launch] = [(task.whole(self._compiler), 0) for task in tasks]
        launches: list[Launch] = []
        for number, way in enumerate(ways):
            if number in (0, len(ways) // 2):
                launches += whole
            for task, bounds in zip(tasks, way, strict=True):
                cut = task.compiled(bounds, self._device) if bounds else task.whole(self._compiler)
                launches += [(cut, index) for index in range(len(bounds))]
        return launches + whole

    def _ways_to_cut(self, task: SegmentedModel) -> list[Launch]:
        """All pieces, all adjacent pairs, and the whole model."""
        single = task.compiled(task.runs, self._device)
        launches: list[Launch] = [(single, index) for index in range(len(task.runs))]
        # Pieces 0+1, 2+3, ... and 1+2, 3+4, ... joined: two more ways to cut the model.
        joined = [task.compiled(paired(task.runs, start), self._device) for start in (0, 1)]
        launches += [(joined[left % 2], (left + left % 2) // 2) for left in range(len(task.runs) - 1)]
        return [*launches, (task.whole(self._compiler), 0)]


class ModelledDurations:
    """What a described device states; quantiles follow from its variation.

    Args:
        device: described.
        unit: of it.
        compiler: of the device.
        quantile: that is planned with, 0 to 1.
        notify: receives what is being done.
        host_wakes: how late the host wakes up, where it has to: on a real clock.
    """

    exact, compiles = True, True

    def __init__(
        self,
        device: ModelledDevice,
        unit: str,
        compiler: Compiler,
        quantile: float,
        notify: Notify,
        host_wakes: tuple[int, ...] = (0,),
    ) -> None:
        self.warnings: list[str] = []
        self._device, self._unit, self._compiler, self._quantile = device, unit, compiler, quantile
        self._notify, self._host_wakes = notify, host_wakes
        self._excess = device.quantile_ratio(quantile)

    def grouped(self, task: SegmentedModel) -> SegmentedModel:
        """In what the device fuses."""
        return task.grouped(self._device.fusions(task.model))

    def launched(self, launches: Sequence[PlannedLaunch], *, thorough: bool = True) -> list[Samples]:
        """The nominal durations."""
        if not thorough:
            self._notify("compiling whole models")
        return [np.asarray([self._nominal_ns(task, index)], np.int64) for task, index in launches]

    def _nominal_ns(self, task: SegmentedModel, index: int | None) -> int:
        """Of a launch; one that cannot be on one unit is that of its first part."""
        if index is not None and task.bounds:
            return self._device.segment_ns(task.model, *task.bounds[index], self._unit)
        if task.unit:
            return self._device.segment_ns(task.wired.model, 0, len(task.wired.model.layers) - 1, self._unit)
        return task.whole(self._compiler).expected_ns(0)

    def excesses(self, tasks: Sequence[SegmentedModel], samples: Sequence[Samples]) -> list[float]:  # noqa: ARG002
        """The target's variation gives it: alike for all models."""
        return [self._excess] * len(tasks)

    def pieces(
        self,
        task: SegmentedModel,
        duration_ns: int = 0,  # noqa: ARG002 - known exactly
        excess: float | None = None,
    ) -> Pieces:
        """Layers' times, the host link at both ends, and a launch more at each boundary."""
        device = self._device
        layers = np.asarray(device.layers_ns(task.model, self._unit), np.int64)
        median = np.asarray([layers[first : last + 1].sum() for first, last in task.runs], np.int64) + device.launch_ns
        load, store = device.link_ns(task.model)
        median[0] += load - device.launch_ns
        median[-1] += store
        boundaries = np.full(len(task.runs) - 1, device.launch_ns, np.int64)
        quantile = np.ceil(median * (self._excess if excess is None else excess))
        return Pieces(median, quantile.astype(np.int64), boundaries)

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """The nominal durations."""
        return [Measurement(np.asarray([execution.expected_ns(index)], np.int64)) for execution, index in launches]

    def greatest_excess(self) -> float:
        """The target's variation gives it."""
        return self._device.greatest_ratio() / self._excess - 1

    def wake_ups(self) -> tuple[int, ...]:
        """The host's."""
        return self._host_wakes


def _compiled(task: SegmentedModel, index: int | None, compiler: Compiler) -> Launch:
    return (task.whole(compiler), 0) if index is None else (task.execution(compiler), index)


def _disturbed(measured: Sequence[Measurement]) -> bool:
    """Whether other programs had the core for a good part of the time."""
    return max(measurement.away_ratio for measurement in measured) > _SHARED


def _calls(launches: Sequence[Launch]) -> list[Callable[[], Completion]]:
    return [lambda e=execution, i=index: e.launch(i) for execution, index in launches]  # type: ignore[misc]
