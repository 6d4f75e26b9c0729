"""What launches take, read from a latency table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyTable, check_fingerprint
from framefit.core.settings import Notify
from framefit.core.store import names_store, table_at
from framefit.core.workload import Workload
from framefit.devices.device import Device, is_modelled
from framefit.devices.measure import Measurement
from framefit.errors import InputError
from framefit.execution.compiled import Launch
from framefit.latency.estimate import Estimator, analytical_model, layer_groups, model_estimate
from framefit.latency.segments import SegmentPrices, launch_excess
from framefit.planning.durations import (
    Durations,
    PlannedLaunch,
    Samples,
)
from framefit.planning.partition import Pieces
from framefit.planning.task import SegmentedModel
from framefit.stats import Z90, normal_quantile


def in_table(
    workload: Workload, device: Device, durations: Mapping[str, Durations], notify: Notify
) -> dict[str, Durations]:
    """Durations from the workload's table where that is the device's, else those that are given, with a warning.

    Args:
        workload: with absolute paths, and a table.
        device: where everything runs.
        durations: that each unit has without a table.
        notify: receives what is being done.

    Raises:
        InputError: the table cannot be read.
    """
    path = workload.table
    assert path is not None
    table, remarks, unfit = None, list[str](), ""
    try:
        table, remarks = table_at(path, device.fingerprint())
    except InputError as error:
        if not names_store(path):
            raise
        unfit = f"{error.where}: {error.what}"
    for remark in remarks:
        notify(remark)
    units = {}
    for unit, without in durations.items():
        why = unfit if table is None else _unfit(table, device, unit, path)
        if table is None or why is not None:
            instead = "what the description says" if without.exact else "segments that are measured"
            without.warnings.append(f"{why}; planned from {instead} instead")
            units[unit] = without
        else:
            without.warnings += remarks[1:]  # entries that differ
            units[unit] = _of_unit(workload, unit, device, without, table, path, notify)
    return units


def _of_unit(
    workload: Workload, unit: str, device: Device, durations: Durations, table: LatencyTable, path: str, notify: Notify
) -> Durations:
    """Durations of one unit from a table that has it."""
    quantile = workload.schedule.quantile
    estimator = Estimator(
        table, unit, fallback=workload.table_fallback, analytical=analytical_model(device.target, unit)
    )

    def spread(duration_ns: int) -> float | None:
        if is_modelled(device):
            return device.quantile_ratio(quantile)
        return launch_excess(table, unit, quantile, duration_ns)

    correction = table.correction
    scatter = 0.0 if is_modelled(device) or correction is None else correction.error_ratio
    return TableDurations(
        estimator, device, durations, spread, quantile, notify, path, scatter=scatter, usual_ns=workload.window_ns // 2
    )


def _unfit(table: LatencyTable, device: Device, unit: str, where: str) -> str | None:
    """Why a table does not apply, for the user; ``None``: it does."""
    try:
        check_fingerprint(table, device.fingerprint(), where, "")
    except InputError as error:
        return f"{error.where}: {error.what}"
    if unit not in table.units:
        return f"{where}: the table has no entry of unit {unit!r}, only of {', '.join(table.units) or 'none'}"
    return None


@dataclass(frozen=True)
class _LookedUp:
    """A model's prices from the table.

    Attributes:
        prices: of its runs of layers.
        whole_ns: of the model.
        scale: that over the price of all its layers.
        layers_ns: of its layers, float64.
        error_ratio: how wrong all of it may be, at the quantile.
    """

    prices: SegmentPrices
    whole_ns: int
    scale: float
    layers_ns: npt.NDArray[np.float64]
    error_ratio: float

    def parts(self, first: int, last: int) -> float:
        """How many equal layers would vary together as little as these do."""
        layers_ns = self.layers_ns[first : last + 1]
        return float(layers_ns.sum() ** 2 / max((layers_ns**2).sum(), 1.0)) if layers_ns.any() else 1.0


class TableDurations:
    """From a latency table: nothing is compiled, and nothing is measured.

    A launch's duration is what :mod:`framefit.latency.segments` says: its layers' entries, the
    table's correction, and the overhead of a launch with the bytes that cross to the host. Its
    quantile has three margins above that, which are independent, so that their squares add up:

    - how launches vary: of a described device its variation, else the quantile over the median
      of the table's own launches that take about as long (:func:`framefit.latency.segments.launch_excess`);
    - how wrong the table may be about the model: its interval (see :mod:`framefit.latency.estimate`),
      widened from its 90 % to the quantile as a normal distribution's;
    - how wrong it may be about these layers beyond that. Errors of single layers cancel in a network and less so
      in a segment: what networks differ from their layers by (the correction's error) comes from as many layers as
      they have, and a segment's error is larger by the root of how many fewer it has. A model's own time is known,
      so a segment that is all of it has none.

    A model that was measured whole takes what it took in turn with others, and its layers share that.

    A boundary costs what two runs of layers take more apart than as one launch. A table of what a runtime
    makes of layers (:func:`framefit.latency.estimate.model_estimate`) gives the time of the whole model; its
    segments have their layers' share of that, and the copies between layouts that a cut adds.

    Args:
        estimator: of the table and unit.
        device: that the table was measured on; asked what it fuses, where the table does not say.
        durations: that the unit has without the table: beside a run, and of the host.
        spread: quantile over median of launches that take so many ns; ``None``: too few samples say it.
        quantile: that is planned with, 0.5 to 1.
        notify: receives what is being done.
        where: the table's file, for messages.
        scatter: standard deviation of networks from their corrected layers, relative.
        usual_ns: length of a segment, as far as that is not known.
    """

    exact, compiles = True, False

    def __init__(
        self,
        estimator: Estimator,
        device: Device,
        durations: Durations,
        spread: Callable[[int], float | None],
        quantile: float,
        notify: Notify,
        where: str,
        *,
        scatter: float = 0.0,
        usual_ns: int,
    ) -> None:
        self._scatter, self._usual_ns = scatter, usual_ns
        self.warnings = durations.warnings
        self.warnings.append(f"planned from {where}: nothing was measured, and outputs of segments were not compared")
        self._estimator, self._device, self._durations, self._notify = estimator, device, durations, notify
        self._known: dict[str, _LookedUp] = {}
        self._deviations = normal_quantile(quantile)
        self._spread = spread
        self._few_samples = (
            f"{where}: the table holds too few samples to say how launches vary: durations are planned as its "
            "medians and their error; measure it again"
        )

    def grouped(self, task: SegmentedModel) -> SegmentedModel:
        """With what the table has as one layer as one."""
        return task.grouped(layer_groups(task.model, self._estimator.table, self._device))

    def launched(self, launches: Sequence[PlannedLaunch], *, thorough: bool = True) -> list[Samples]:
        """Sums over layers, corrected, with a launch's overhead; at a first look layers are looked up."""
        if not thorough:
            self._notify("looking layers up in the table")
            self._known |= {task.name: self._looked_up(task) for task, _ in launches}
        samples = []
        for task, index in launches:
            known, duration_ns = self._known[task.name], self._known[task.name].whole_ns
            if index is not None and task.bounds:
                duration_ns = round(known.scale * known.prices.duration_ns(*task.bounds[index]))
            samples.append(np.asarray([duration_ns], np.int64))
        return samples

    def excesses(self, tasks: Sequence[SegmentedModel], samples: Sequence[Samples]) -> list[float]:  # noqa: ARG002
        """How launches vary, and how wrong figures may be: of each model's segments that for which it is most."""
        excesses = []
        for task in tasks:
            known, last = self._known[task.name], len(self._known[task.name].layers_ns) - 1
            excesses.append(max(self._excess(known, *bounds) for bounds in task.bounds or ((0, last),)))
        return excesses

    def pieces(self, task: SegmentedModel, duration_ns: int = 0, excess: float | None = None) -> Pieces:  # noqa: ARG002
        """Runs of layers apart and together; looked up, as much of the model as there is, where ``excess`` is open."""
        if excess is None:
            self._known[task.name] = self._looked_up(task)
        known = self._known[task.name]
        times = known.prices.times(task.runs)
        median = np.round(times.duration_ns * known.scale).astype(np.int64)
        part = min(self._usual_ns / max(known.whole_ns, 1), 1.0)
        alike = known.parts(0, len(known.layers_ns) - 1)
        quantile = np.ceil(median * self._beyond(known, part * known.whole_ns, max(part * alike, 1.0))).astype(np.int64)
        return Pieces(median, quantile, (times.boundary_ns * known.scale).astype(np.int64))

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """What the device's launches take without a table."""
        return self._durations.around(launches)

    def greatest_excess(self) -> float:
        """What is known of the device's launches."""
        return self._durations.greatest_excess()

    def wake_ups(self) -> tuple[int, ...]:
        """The host's."""
        return self._durations.wake_ups()

    def _looked_up(self, task: SegmentedModel) -> _LookedUp:
        try:
            estimate = model_estimate(self._estimator, task.model, self._device)
        except InputError as error:
            raise InputError(
                error.what,
                where=f"model {task.name!r}, {error.where}",
                remedy="measure the model into the table (framefit measure), or let it be estimated: "
                "table_fallback = true",
            ) from error
        for note in estimate.notes:
            if note not in task.model.defaulted_dims:
                text = note if note.startswith("the table") else f"{task.name}: {note}"
                self.warnings += [text] if text not in self.warnings else []
        whole_ns = estimate.measured_in_turn_ns or estimate.total_ns  # models of a workload run in turn
        error_ns = (estimate.interval_ns[1] - estimate.total_ns) * self._deviations / Z90
        if self._spread(whole_ns) is None and self._few_samples not in self.warnings:
            self.warnings.append(self._few_samples)
        prices = SegmentPrices(task.model, self._estimator, estimate.layers)
        scale = whole_ns / max(prices.duration_ns(0, len(estimate.layers) - 1), 1.0)
        layers_ns = np.asarray([layer.latency_ns for layer in estimate.layers], np.float64)
        return _LookedUp(prices, whole_ns, scale, layers_ns, error_ns / max(estimate.total_ns, 1))

    def _excess(self, known: _LookedUp, first: int, last: int) -> float:
        """Quantile over median of a launch of these layers."""
        return self._beyond(known, known.scale * known.prices.duration_ns(first, last), known.parts(first, last))

    def _beyond(self, known: _LookedUp, duration_ns: float, parts: float) -> float:
        """The same, of a launch that takes so long, and varies as so many equal layers."""
        whole = known.parts(0, len(known.layers_ns) - 1)
        own = self._scatter * math.sqrt(max(whole / parts - 1, 0.0)) * self._deviations
        return 1 + math.hypot((self._spread(round(duration_ns)) or 1.0) - 1, known.error_ratio, own)
