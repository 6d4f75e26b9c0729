"""What launches take, read from a latency table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from framefit.core.latency_table import LatencyTable, check_fingerprint, read_table
from framefit.core.settings import Notify
from framefit.core.workload import Workload
from framefit.devices.device import Device, is_modelled
from framefit.errors import InputError
from framefit.execution.compiled import Compiler
from framefit.execution.measured import Costs, MeasuredCosts, ModelledCosts
from framefit.latency.estimate import Estimator, analytical_model, layer_groups, model_estimate
from framefit.latency.segments import SegmentPrices, launch_excess
from framefit.planning.durations import Durations, LaunchTimes, MeasuredDurations, ModelledDurations
from framefit.planning.partition import Pieces
from framefit.planning.task import SegmentedModel
from framefit.stats import Z90, normal_quantile


def durations_on(workload: Workload, compiler: Compiler, unit: str, costs: Costs, notify: Notify) -> Durations:
    """From the workload's table where it is the device's, else what the device says or takes.

    Args:
        workload: with absolute paths.
        compiler: of the device where everything runs.
        unit: of it.
        costs: of launches there.
        notify: receives what is being done.

    Raises:
        InputError: the table cannot be read.
    """
    quantile, device = workload.schedule.quantile, compiler.device
    otherwise: Durations
    if is_modelled(device):
        assert isinstance(costs, ModelledCosts)
        otherwise = ModelledDurations(device, unit, compiler, costs, quantile, notify)
    else:
        assert isinstance(costs, MeasuredCosts)
        otherwise = MeasuredDurations(compiler, costs, quantile, notify)
    if workload.table is None:
        return otherwise
    table = read_table(workload.table)
    unfit = _unfit(table, device, unit, workload.table)
    if unfit is not None:
        instead = "what the description says" if otherwise.exact else "segments that are measured"
        otherwise.warnings.append(f"{unfit}; planned from {instead} instead")
        return otherwise
    analytical = analytical_model(device.target, unit)
    estimator = Estimator(table, unit, fallback=workload.table_fallback, analytical=analytical)
    return TableDurations(estimator, device, costs, quantile, notify, workload.table)


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
        excess: quantile over median.
    """

    prices: SegmentPrices
    whole_ns: int
    scale: float
    excess: float


class TableDurations:
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
    makes of layers (:func:`framefit.latency.estimate.model_estimate`) tells the whole model; its
    segments have their layers' share of that, and the copies between layouts that a cut adds.

    Args:
        estimator: of the table and unit.
        device: that the table was measured on; asked what it fuses, where the table does not say.
        costs: of its launches: what is known of their variation.
        quantile: that is planned with, 0.5 to 1.
        notify: receives what is being done.
        where: the table's file, for messages.
    """

    exact, compiles = True, False

    def __init__(
        self,
        estimator: Estimator,
        device: Device,
        costs: Costs,
        quantile: float,
        notify: Notify,
        where: str,
    ) -> None:
        self.warnings = [f"planned from {where}: nothing was measured, and outputs of segments were not compared"]
        self._estimator, self._device, self._notify = estimator, device, notify
        self._known: dict[str, _LookedUp] = {}
        self._widened = normal_quantile(quantile) / Z90
        spread = costs.excess(quantile)
        if spread is None:
            spread = launch_excess(estimator.table, estimator.unit, quantile)
        if spread is None:
            self.warnings.append(
                f"{where}: the table holds too few samples to say how launches vary: durations are planned as its "
                "medians and their error; measure it again"
            )
        self._spread = spread or 1.0

    def prepared(self, tasks: Sequence[SegmentedModel]) -> list[SegmentedModel]:
        """With what the table has as one layer as one."""
        return [task.grouped(layer_groups(task.model, self._estimator.table, self._device)) for task in tasks]

    def whole(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """Layers looked up once."""
        self._notify("looking layers up in the table")
        for task in tasks:
            self._known[task.name] = self._looked_up(task)
        return self.segments(tasks)

    def segments(self, tasks: Sequence[SegmentedModel]) -> list[LaunchTimes]:
        """Sums over layers, corrected, with a launch's overhead."""
        priced = []
        for task in tasks:
            known = self._known[task.name]
            whole = np.asarray([known.whole_ns], np.int64)
            parts = [np.asarray([round(known.scale * known.prices.duration_ns(*run))], np.int64) for run in task.bounds]
            priced.append(LaunchTimes(tuple(parts) or (whole,), whole, known.excess))
        return priced

    def group(self, task: SegmentedModel) -> SegmentedModel:
        """As the table has it; when its layers were looked up, that was done."""
        if task.name in self._known:
            return task
        return task.grouped(layer_groups(task.model, self._estimator.table, self._device))

    def pieces(self, task: SegmentedModel, duration_ns: int, excess: float) -> Pieces:  # noqa: ARG002 - known exactly
        """Runs of layers apart and together."""
        times = self._known[task.name].prices.times(task.runs)
        scale = self._known[task.name].scale
        median = np.round(times.duration_ns * scale).astype(np.int64)
        return Pieces(median, np.ceil(median * excess).astype(np.int64), (times.boundary_ns * scale).astype(np.int64))

    def exact_pieces(self, task: SegmentedModel) -> Pieces:
        """Looked up, as much of the model as there is."""
        known = self._known[task.name] = self._looked_up(task)
        return self.pieces(task, known.whole_ns, known.excess)

    def _looked_up(self, task: SegmentedModel) -> _LookedUp:
        try:
            found = model_estimate(self._estimator, task.model, self._device)
        except InputError as error:
            raise InputError(
                error.what,
                where=f"model {task.name!r}, {error.where}",
                remedy="measure the model into the table (framefit measure), or let it be estimated: "
                "table_fallback = true",
            ) from error
        for note in found.notes:
            if note not in task.model.defaulted_dims:
                text = note if note.startswith("the table") else f"{task.name}: {note}"
                self.warnings += [text] if text not in self.warnings else []
        error_ns = (found.interval_ns[1] - found.total_ns) * self._widened
        excess = 1 + math.hypot(self._spread - 1, error_ns / max(found.total_ns, 1))
        prices = SegmentPrices(task.model, self._estimator, [layer.latency_ns for layer in found.layers])
        scale = found.total_ns / max(prices.duration_ns(0, len(found.layers) - 1), 1.0)
        return _LookedUp(prices, found.total_ns, scale, excess)
