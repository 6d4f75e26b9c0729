"""What launches and cuts cost, for the planner: measured, told by a described device, or read from a latency table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyTable, check_fingerprint, read_table
from framefit.core.model import Model
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.devices.facts import device_facts
from framefit.devices.npu import NpuDevice
from framefit.devices.ort import OrtDevice
from framefit.errors import DeviceError, InputError
from framefit.latency.attribution import owners
from framefit.latency.estimate import Estimator
from framefit.latency.segments import SegmentPrices, launch_excess
from framefit.runtime.models.costs import Costs, Launch, MeasuredCosts, ModelledCosts
from framefit.scheduling.partition import Pieces
from framefit.scheduling.pieces import paired, pooled_excess, priced_pieces
from framefit.workflows.estimate import analytical_model, estimated, layer_groups
from framefit.workflows.planning.task import Bounds, PlannedTask

__all__ = ["MeasuredPricing", "ModelledPricing", "Priced", "Pricing", "TablePricing", "ToldPricing", "pricing_for"]

_NOISY = 2.0  # quantile over median
_Z95 = 1.6448536269514722  # the upper end of a 90 % interval

Samples = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Priced:
    """A model's launches.

    Attributes:
        segments_ns: durations of each segment; of the only one where it runs whole.
        whole_ns: of the uncut model.
        excess: quantile over median.
    """

    segments_ns: tuple[Samples, ...]
    whole_ns: Samples
    excess: float

    @classmethod
    def of(cls, task: PlannedTask, samples: Mapping[tuple[int, int], Samples], excess: float) -> Self:
        """A task's launches, of samples by execution (its ``id``) and number of the segment."""
        segments = tuple(samples[id(task.execution), index] for index in range(len(task.segments)))
        return cls(segments, samples[id(task.whole), 0], excess)


class Pricing(Protocol):
    """Where the planner's durations come from.

    Attributes:
        told: whether durations are told rather than measured: asked again, they are the same.
        compiles: whether models are compiled to price them; else nothing is run.
        warnings: for the user.
    """

    told: bool
    compiles: bool
    warnings: list[str]

    def whole(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """A first look at all models, uncut."""
        ...

    def segments(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """All models as they are to run, to plan with."""
        ...

    def group(self, task: PlannedTask) -> None:
        """Make what the device fuses the layers that a task's cuts count."""
        ...

    def pieces(self, task: PlannedTask, duration_ns: int, excess: float) -> Pieces:
        """Costs of a grouped task's runs of layers, and of the boundaries between them.

        Args:
            task: not cut yet.
            duration_ns: planned quantile of the whole model.
            excess: that over its median.
        """
        ...


class ToldPricing(Pricing, Protocol):
    """What is told rather than measured can be asked for without compiling anything."""

    def told_pieces(self, task: PlannedTask) -> Pieces:
        """Costs of a grouped task's runs of layers: of a whole model, or of a part of it that the unit supports."""
        ...


def pricing_for(workload: Workload, device: Device, unit: str, costs: Costs, notify: Callable[[str], None]) -> Pricing:
    """From the workload's table where it is the device's, else what the device says or takes.

    Args:
        workload: with absolute paths.
        device: where everything runs.
        unit: of it.
        costs: of launches there.
        notify: receives what is being done.

    Raises:
        InputError: the table cannot be read.
    """
    quantile = workload.schedule.quantile
    otherwise: Pricing
    if isinstance(device, NpuDevice):
        assert isinstance(costs, ModelledCosts)
        otherwise = ModelledPricing(device, unit, costs, quantile, notify)
    else:
        assert isinstance(costs, MeasuredCosts)
        otherwise = MeasuredPricing(device, costs, quantile, notify)
    if workload.table is None:
        return otherwise
    table = read_table(workload.table)
    unfit = _unfit(table, device, unit, workload.table)
    if unfit is not None:
        instead = "what the description says" if otherwise.told else "segments that are measured"
        otherwise.warnings.append(f"{unfit}; planned from {instead} instead")
        return otherwise
    analytical = analytical_model(device.target, unit)
    estimator = Estimator(table, unit, fallback=workload.table_fallback, analytical=analytical)
    return TablePricing(estimator, device, costs, quantile, notify, workload.table)


def _unfit(table: LatencyTable, device: Device, unit: str, where: str) -> str | None:
    """Why a table does not apply, for the user; ``None``: it does."""
    try:
        check_fingerprint(table, device_facts(device), where, "")
    except InputError as error:
        return f"{error.where}: {error.what}"
    if unit not in table.units:
        return f"{where}: the table has no entry of unit {unit!r}, only of {', '.join(table.units) or 'none'}"
    return None


class MeasuredPricing:
    """By running launches in turn.

    Args:
        device: the machine's own.
        costs: of its launches.
        quantile: that is planned with, 0 to 1.
        notify: receives what is being done.
    """

    told, compiles = False, True

    def __init__(self, device: Device, costs: MeasuredCosts, quantile: float, notify: Callable[[str], None]) -> None:
        self.warnings: list[str] = []
        self._device, self._costs, self._quantile, self._notify = device, costs, quantile, notify

    def whole(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """A short campaign."""
        self._notify("compiling whole models")
        launches: list[Launch] = [(task.whole, 0) for task in tasks]
        self._notify("pricing whole models")
        found = self._costs.probe(launches)
        excess = pooled_excess([m.samples_ns for m in found], self._quantile)
        return [Priced((m.samples_ns,), m.samples_ns, excess) for m in found]

    def segments(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """A long campaign over all segments and uncut models, in turn, as they will run."""
        launches: list[Launch] = [(task.execution, index) for task in tasks for index in range(len(task.segments))]
        launches += [(task.whole, 0) for task in tasks if task.bounds]
        self._notify(f"measuring {len(launches)} segments")
        found = self._costs.final(launches)
        excess = pooled_excess([m.samples_ns for m in found], self._quantile)
        if excess > _NOISY:
            self.warnings.append(
                f"durations vary a lot here: the {self._quantile:g} quantile is {excess:.1f} x the median; stop other "
                "programs, see framefit doctor, and plan again with --fresh"
            )
        samples = {(id(e), index): m.samples_ns for (e, index), m in zip(launches, found, strict=True)}
        return [Priced.of(task, samples, excess) for task in tasks]

    def group(self, task: PlannedTask) -> None:
        """What the runtime makes of the model is cut, where it tells: no boundary adds a copy between layouts then.

        Else the model itself, never inside what the runtime fuses.
        """
        lowered = _lowered(self._device, task.model)
        if lowered is None:
            task.group(self._device.fusions(task.model))
        else:
            task.lower(lowered, [task.model.layers[place].name for place in owners(task.model, lowered)])

    def pieces(self, task: PlannedTask, duration_ns: int, excess: float) -> Pieces:
        """All pieces, all adjacent pairs and the whole model, back to back."""
        key = {"model": task.model.digest, "runs": str(task.runs)}
        *cost, whole_ns = self._costs.medians(key, lambda: _ways_to_cut(task))
        pieces = priced_pieces(cost[: len(task.runs)], cost[len(task.runs) :], whole_ns, excess)
        return pieces.scaled(np.full(len(pieces), duration_ns / excess / max(whole_ns, 1)))

    def cuttings(
        self, tasks: Sequence[PlannedTask], ways: Sequence[Sequence[Bounds]]
    ) -> tuple[list[list[list[int]]], list[int]]:
        """A short campaign over several ways to cut, back to back; the uncut models before, between and after them.

        Args:
            tasks: that are cut in some way.
            ways: for each way the bounds of each task's segments; empty: it stays whole.

        Returns:
            Medians: of each way's tasks' segments, and of each uncut model.
        """
        self._notify(f"measuring {len(ways)} ways to cut")
        key = {"models": ",".join(task.model.digest for task in tasks), "ways": str(ways)}
        found = list(self._costs.medians(key, lambda: _on_trial(tasks, ways)))
        uncut, medians = [], []
        for number, way in enumerate(ways):
            if number in (0, len(ways) // 2):
                uncut.append([found.pop(0) for _ in tasks])
            medians.append([[found.pop(0) for _ in bounds] for bounds in way])
        uncut.append(found)
        return medians, np.mean(uncut, axis=0).astype(np.int64).tolist()


def _lowered(device: Device, model: Model) -> Model | None:
    """What the runtime makes of a model; ``None``: it does not tell, or that cannot be cut."""
    if not isinstance(device, OrtDevice):
        return None
    try:
        found = device.lowered(model)
    except DeviceError:
        return None
    fixed = all(tensor.fixed for layer in found.layers for tensor in layer.outputs)
    return found if fixed and len(found.layers) > 1 else None


def _on_trial(tasks: Sequence[PlannedTask], ways: Sequence[Sequence[Bounds]]) -> list[Launch]:
    """All segments of all ways, and the uncut models before, between and after them."""
    whole: list[Launch] = [(task.whole, 0) for task in tasks]
    launches: list[Launch] = []
    for number, way in enumerate(ways):
        if number in (0, len(ways) // 2):
            launches += whole
        for task, bounds in zip(tasks, way, strict=True):
            cut = task.compiled(bounds) if bounds else task.whole
            launches += [(cut, index) for index in range(len(bounds))]
    return launches + whole


def _ways_to_cut(task: PlannedTask) -> list[Launch]:
    """All pieces, all adjacent pairs, and the whole model."""
    single = task.compiled(task.runs)
    launches: list[Launch] = [(single, index) for index in range(len(task.runs))]
    # Pieces 0+1, 2+3, ... and 1+2, 3+4, ... joined: two more ways to cut the model.
    joined = [task.compiled(paired(task.runs, start)) for start in (0, 1)]
    launches += [(joined[left % 2], (left + left % 2) // 2) for left in range(len(task.runs) - 1)]
    return [*launches, (task.whole, 0)]


class ModelledPricing:
    """As a described device says; quantiles follow from its variation.

    Args:
        device: described.
        unit: of it.
        costs: of its launches.
        quantile: that is planned with, 0 to 1.
        notify: receives what is being done.
    """

    told, compiles = True, True

    def __init__(
        self, device: NpuDevice, unit: str, costs: ModelledCosts, quantile: float, notify: Callable[[str], None]
    ) -> None:
        self.warnings: list[str] = []
        self._device, self._unit, self._costs, self._notify = device, unit, costs, notify
        self._excess = costs.excess(quantile)

    def whole(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """What the launches of the uncut models take."""
        self._notify("compiling whole models")
        return self.segments(tasks)

    def segments(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """What the launches take."""
        priced = []
        for task in tasks:
            launches: list[Launch] = [(task.execution, index) for index in range(len(task.segments))]
            *parts, whole = self._costs.final([*launches, (task.whole, 0)])
            priced.append(Priced(tuple(part.samples_ns for part in parts), whole.samples_ns, self._excess))
        return priced

    def group(self, task: PlannedTask) -> None:
        """As the device says."""
        task.group(self._device.fusions(task.model))

    def pieces(self, task: PlannedTask, duration_ns: int, excess: float) -> Pieces:  # noqa: ARG002 - told exactly
        """Layers' times, the host link at both ends, and a launch more at each boundary."""
        device = self._device
        layers = np.asarray(device.layers_ns(task.model, self._unit), np.int64)
        median = np.asarray([layers[first : last + 1].sum() for first, last in task.runs], np.int64) + device.launch_ns
        load, store = device.link_ns(task.model)
        median[0] += load - device.launch_ns
        median[-1] += store
        boundaries = np.full(len(task.runs) - 1, device.launch_ns, np.int64)
        return Pieces(median, np.ceil(median * excess).astype(np.int64), boundaries)

    def told_pieces(self, task: PlannedTask) -> Pieces:
        """The same, with the device's variation."""
        return self.pieces(task, 0, self._excess)


@dataclass(frozen=True)
class _Told:
    """A model's prices from the table.

    Attributes:
        prices: of its runs of layers.
        whole_ns: of the model.
        scale: that over the price of all its layers.
        excess: quantile over median.
    """

    prices: SegmentPrices
    whole_ns: int
    scale: float
    excess: float


class TablePricing:
    """From a latency table: nothing is compiled, and nothing is measured.

    A launch's duration is what :mod:`framefit.latency.segments` says: its layers' entries, the
    table's correction, and the overhead of a launch with the bytes that cross to the host. Its
    quantile has two margins above that, which are independent, so that their squares add up:

    - how launches vary: of a described device its variation, else the quantile over the median
      of the table's own launches, all together (:func:`framefit.latency.segments.launch_excess`);
    - how wrong the table may be: the model's interval (see :mod:`framefit.latency.estimate`),
      widened from its 90 % to the quantile as a normal distribution's. A segment is taken to be
      wrong by its model's ratio.

    A boundary costs what two runs of layers take more apart than as one launch. A table of what a runtime
    makes of layers (:func:`framefit.workflows.estimate.estimated`) tells the whole model; its
    segments have their layers' share of that, and the copies between layouts that a cut adds.

    Args:
        estimator: of the table and unit.
        device: that the table was measured on; asked what it fuses, where the table does not say.
        costs: of its launches: what is known of their variation.
        quantile: that is planned with, 0.5 to 1.
        notify: receives what is being done.
        where: the table's file, for messages.
    """

    told, compiles = True, False

    def __init__(
        self,
        estimator: Estimator,
        device: Device,
        costs: Costs,
        quantile: float,
        notify: Callable[[str], None],
        where: str,
    ) -> None:
        self.warnings = [f"planned from {where}: nothing was measured, and outputs of segments were not compared"]
        self._estimator, self._device, self._notify = estimator, device, notify
        self._told: dict[str, _Told] = {}
        self._widened = NormalDist().inv_cdf(quantile) / _Z95
        spread = costs.excess(quantile)
        if spread is None:
            spread = launch_excess(estimator.table, estimator.unit, quantile)
        if spread is None:
            self.warnings.append(
                f"{where}: the table holds too few samples to say how launches vary: durations are planned as its "
                "medians and their error; measure it again"
            )
        self._spread = spread or 1.0

    def whole(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """Layers looked up once, with what the device fuses as one."""
        self._notify("looking layers up in the table")
        for task in tasks:
            task.group(layer_groups(task.model, self._estimator.table, self._device))
            self._told[task.name] = self._looked_up(task)
        return self.segments(tasks)

    def segments(self, tasks: Sequence[PlannedTask]) -> list[Priced]:
        """Sums over layers, corrected, with a launch's overhead."""
        priced = []
        for task in tasks:
            told = self._told[task.name]
            whole = np.asarray([told.whole_ns], np.int64)
            parts = [np.asarray([round(told.scale * told.prices.duration_ns(*run))], np.int64) for run in task.bounds]
            priced.append(Priced(tuple(parts) or (whole,), whole, told.excess))
        return priced

    def group(self, task: PlannedTask) -> None:
        """As the table has it; when its layers were looked up, that was done."""
        if task.name not in self._told:
            task.group(layer_groups(task.model, self._estimator.table, self._device))

    def pieces(self, task: PlannedTask, duration_ns: int, excess: float) -> Pieces:  # noqa: ARG002 - told exactly
        """Runs of layers apart and together."""
        times = self._told[task.name].prices.times(task.runs)
        scale = self._told[task.name].scale
        median = np.round(times.duration_ns * scale).astype(np.int64)
        return Pieces(median, np.ceil(median * excess).astype(np.int64), (times.boundary_ns * scale).astype(np.int64))

    def told_pieces(self, task: PlannedTask) -> Pieces:
        """Looked up, as much of the model as there is."""
        told = self._told[task.name] = self._looked_up(task)
        return self.pieces(task, told.whole_ns, told.excess)

    def _looked_up(self, task: PlannedTask) -> _Told:
        try:
            found = estimated(self._estimator, task.model, self._device)
        except InputError as error:
            raise InputError(
                error.what,
                where=f"model {task.name!r}, {error.where}",
                remedy="measure the model into the table (framefit measure), or let it be estimated: "
                "table_fallback = true",
            ) from error
        for note in found.notes:
            if note not in task.model.assumed:
                told = note if note.startswith("the table") else f"{task.name}: {note}"
                self.warnings += [told] if told not in self.warnings else []
        error_ns = (found.interval_ns[1] - found.total_ns) * self._widened
        excess = 1 + math.hypot(self._spread - 1, error_ns / max(found.total_ns, 1))
        prices = SegmentPrices(task.model, self._estimator, [layer.latency_ns for layer in found.layers])
        scale = found.total_ns / max(prices.duration_ns(0, len(found.layers) - 1), 1.0)
        return _Told(prices, found.total_ns, scale, excess)
