"""``framefit estimate``: a network's latency from a table, without running anything.

Every layer is looked up, fallbacks are named, and the total has a 90 % interval. The interval adds up the
variances of all errors. Errors that several layers share are added up before they are squared:

- a configuration that occurs k times counts with k times its own standard deviation;
- layers that are estimated by the same fallback are assumed to share its error: what it ignores in one of
  them (channels rounded up, repeated tiles) it mostly ignores in the others, too;
- the overhead is added once. Where it was fitted with an auxiliary layer, its constant cancels in the entries
  (it is in the runs with and without the layer) and its error counts once; otherwise it was subtracted from
  every entry, and its error counts once for each layer but one;
- the correction has its own error, from networks that were left out of its fit (Student's t).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import check_new, write_record
from framefit.core.latency_table import (
    LatencyEntry,
    LatencyTable,
    MeasuredNetwork,
    Value,
    check_fingerprint,
)
from framefit.core.model import Layer, Model, Node, configuration, epilogue_groups
from framefit.core.model.builtin import load_model
from framefit.core.model.lowering import owners
from framefit.core.run_record import LatencyEstimate, LayerLatency
from framefit.core.settings import verb
from framefit.core.store import names_store, table_at
from framefit.core.target import Cache, Memory, Processor, Target
from framefit.devices.device import Device
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.npu.work import LayerWork, layer_work
from framefit.devices.registry import open_device
from framefit.errors import InputError
from framefit.latency.calibrate import Analytical, Calibration, entry_work
from framefit.latency.fusion import known_groups
from framefit.latency.interpolation import Interpolation
from framefit.latency.settings import EstimateSettings
from framefit.latency.terms import class_sums, correction_ns, layers_digest, terms_of, transfer_ns
from framefit.stats import Z90, student_quantile

__all__ = ["Estimator", "analytical_model", "estimate", "layer_groups", "model_estimate"]


@dataclass(frozen=True)
class _Price:
    """Latency of a layer, with the source of its error.

    Attributes:
        shared: layers with the same name here share their error.
        covered: whether the table has an entry for it.
    """

    latency_ns: float
    deviation_ns: float
    interval_ns: tuple[int, int]
    source: str
    shared: str
    covered: bool
    in_turn_ns: float | None = None

    @property
    def evicted_ns(self) -> float:
        """What it takes more in turn with other layers, as far as that is known."""
        return 0.0 if self.in_turn_ns is None else self.in_turn_ns - self.latency_ns


class Estimator:
    """Estimates latencies on one unit from one table; fallbacks are fitted when they are first needed.

    Args:
        table: it has entries of the unit.
        unit: the unit on which the network is to run.
        fallback: whether a layer without an entry is estimated, by interpolation or else by the analytical model;
            otherwise such a layer is an error.
        analytical: prices layers that the table cannot interpolate, after calibration; ``None``: there is no model.

    Raises:
        InputError: the table has no entry of this unit.

    Example:
        >>> Estimator(table, "vpu0").estimate(model.grouped(device.fusions(model)))  # doctest: +SKIP
    """

    def __init__(
        self, table: LatencyTable, unit: str, *, fallback: bool = False, analytical: Analytical | None = None
    ) -> None:
        self.table, self.unit = table, unit
        self._entries = [entry for entry in table.entries if entry.unit == unit]
        if not self._entries:
            raise InputError(
                f"the table has no entry of unit {unit!r}",
                remedy=f"choose from {', '.join(table.units)}" if table.units else "measure a model into it",
            )
        self._fallback, self._analytical = fallback, analytical
        known = [(entry.latency_ns, entry.in_turn_ns) for entry in self._entries if entry.in_turn_ns is not None]
        alone_ns, in_turn_ns = (math.fsum(values) for values in zip(*known, strict=True)) if known else (0.0, 0.0)
        self._in_turn_ratio = in_turn_ns / alone_ns if alone_ns else 1.0  # of layers that were not measured
        self._interpolation: Interpolation | None = None
        self._calibration: Calibration | None = None
        self._known: dict[tuple[str, bytes], _Price | None] = {}
        audited = () if table.audit is None else table.audit.networks
        self._audited = {network.digest: network for network in audited if network.digest}
        self._measured = {network.digest: network for network in table.networks if network.unit == unit}

    def class_sums(self, model: Model) -> dict[str, float]:
        """Sums of a model's layers by class in ns, as the table has them: not scaled to what the whole model took.

        Raises:
            InputError: as :meth:`estimate` does.
        """
        return class_sums(model.layers, (price.latency_ns for price in self._prices(model, None)))

    def evicted_ns(self, model: Model) -> list[float]:
        """What each layer takes more in turn with others than alone, in ns.

        Raises:
            InputError: as :meth:`estimate` does.
        """
        return [price.evicted_ns for price in self._prices(model, None)]

    def estimate(self, model: Model, names: Sequence[str] | None = None) -> LatencyEstimate:
        """Estimate the latency of a launch of a whole model or segment.

        Args:
            model: it has the device's fused groups as layers.
            names: names of the layers for messages; default: their own.

        Returns:
            Total with its 90 % interval, plain sum, coverage, and each layer.

        Raises:
            InputError: a layer has no entry and no fallback can estimate it; the message names the layer with its
                operators and configuration.
        """
        prices = self._prices(model, names)
        plain = math.fsum(price.latency_ns for price in prices)
        table = self.table
        by_class = class_sums(model.layers, (price.latency_ns for price in prices))
        overhead = transfer_ns(model, table.overhead)
        digest = layers_digest(model) if self._audited or self._measured else ""
        audited, measured = self._audited.get(digest), self._measured.get(digest)
        if audited is None:
            evicted = math.fsum(price.evicted_ns for price in prices)
            added = correction_ns(by_class, evicted, terms_of(model), table.correction)
        else:  # a prediction does not know what the network itself took
            added = audited.left_out_ns - audited.plain_sum_ns - audited.overhead_ns
        total = max(plain + added + overhead, 0.0)
        half = self._half_width(prices, total, terms_of(model).weight_bytes)
        timed = [price for price in prices if price.source != "view"]
        predicted = round(total), (max(math.floor(total - half), 0), math.ceil(total + half))
        whole_ns, interval_ns = predicted if measured is None else (measured.alone_ns, measured.alone_interval_ns)
        scale = 1.0 if measured is None or plain <= 0 else max(whole_ns - overhead, 0.0) / plain
        layers = tuple(
            LayerLatency(
                name=layer.name,
                op=layer.op,
                latency_ns=round(scale * price.latency_ns),
                interval_ns=(math.floor(scale * price.interval_ns[0]), math.ceil(scale * price.interval_ns[1])),
                source=price.source,
                evicted_ns=round(price.evicted_ns),
            )
            for layer, price in zip(model.layers, prices, strict=True)
        )
        return LatencyEstimate(
            model=model.name,
            target=table.target,
            unit=self.unit,
            total_ns=whole_ns,
            interval_ns=interval_ns,
            predicted_ns=predicted[0],
            predicted_interval_ns=predicted[1],
            measured_ns=None if measured is None else measured.alone_ns,
            measured_in_turn_ns=None if measured is None else measured.in_turn_ns,
            rest_ns=whole_ns - sum(layer.latency_ns for layer in layers),
            plain_sum_ns=round(plain),
            correction_ns=round(added),
            overhead_ns=round(overhead),
            coverage_ratio=sum(price.covered for price in timed) / len(timed) if timed else 1.0,
            estimated_ns=round(math.fsum(price.latency_ns for price in timed if not price.covered)),
            layers=layers,
            notes=self._notes(model, prices, measured),
        )

    def layers_ns(self, model: Model) -> list[float]:
        """Latency of each layer, without correction and overhead.

        Raises:
            InputError: see :meth:`estimate`.
        """
        return [price.latency_ns for price in self._prices(model)]

    def _prices(self, model: Model, names: Sequence[str] | None = None) -> list[_Price]:
        names = [layer.name for layer in model.layers] if names is None else names
        return [self._price(model, index, name) for index, name in enumerate(names)]

    def _price(self, model: Model, index: int, name: str) -> _Price:
        layer, nodes = model.layers[index], model.nodes[index]
        described = configuration(nodes)
        key = layer.op, msgspec.json.encode(described)
        if key not in self._known:
            self._known[key] = self._looked_up(layer, nodes, described)
        price = self._known[key]
        if price is None:
            raise self._missing(name, layer.op, described)
        return price

    def _looked_up(self, layer: Layer, nodes: tuple[Node, ...], key: dict[str, Value]) -> _Price | None:
        """Price of a configuration; ``None``: it cannot be estimated."""
        entry = self.table.find(layer.op, key, self.unit)
        if entry is not None:
            return _of_entry(entry)
        if layer_work(layer, nodes).method == "view":
            return _Price(0.0, 0.0, (0, 0), "view", "view", covered=True)
        return self._fallen_back(layer.op, key) if self._fallback else None

    def _fallen_back(self, op: str, key: dict[str, Value]) -> _Price | None:
        """Price by interpolation between measured shapes, or else by the calibrated model."""
        if self._interpolation is None:
            self._interpolation = Interpolation(self._entries)
        between = self._interpolation.find(op, key)
        if between is not None:
            return self._of_logarithm(*between, "interpolated")
        if self._analytical is None:
            return None
        work = entry_work(op, key)
        if work.method == "unknown":
            return None
        if self._calibration is None:
            self._calibration = Calibration(self._entries, self._analytical)
        return self._of_logarithm(*self._calibration.find([work])[0], "modelled")

    def _of_logarithm(self, log: float, deviation: float, source: str) -> _Price:
        """Price of a latency whose logarithm is normally distributed; its median is used."""
        latency = math.exp(log)
        interval = math.floor(latency * math.exp(-Z90 * deviation)), math.ceil(latency * math.exp(Z90 * deviation))
        spread = (interval[1] - interval[0]) / (2 * Z90)
        in_turn_ns = self._in_turn_ratio * latency
        return _Price(latency, spread, interval, source, source, covered=False, in_turn_ns=in_turn_ns)

    def _missing(self, name: str, op: str, key: dict[str, Value]) -> InputError:
        shown = ", ".join(f"{name} {value}" for name, value in key.items() if value not in (None, "", []))
        fallback = "no fallback can estimate the layer: " if self._fallback else ""
        return InputError(
            f"{fallback}the table has no entry of {op} on unit {self.unit!r} with {shown}",
            where=f"layer {name}",
            remedy="measure the model into the table"
            + ("" if self._fallback else ", or let it be estimated with --fallback"),
        )

    def _half_width(self, prices: Sequence[_Price], total: float, weight_bytes: int) -> float:
        """Half of the total's 90 % interval."""
        shared: defaultdict[str, float] = defaultdict(float)
        for price in prices:
            shared[price.shared] += price.deviation_ns
        variance = math.fsum(deviation**2 for deviation in shared.values())
        overhead = self.table.overhead
        if overhead is not None and overhead.intercept_interval_ns is not None:
            low, high = overhead.intercept_interval_ns
            shares = 1 if overhead.auxiliary else max(sum(price.source != "view" for price in prices) - 1, 0)
            variance += ((high - low) / (2 * Z90) * shares) ** 2
        correction = self.table.correction
        if correction is None:
            return Z90 * math.sqrt(variance)
        audited = student_quantile(correction.networks - 1) * correction.error_ratio_of(weight_bytes) * total
        return math.hypot(Z90 * math.sqrt(variance), audited)

    def _notes(self, model: Model, prices: Sequence[_Price], measured: MeasuredNetwork | None) -> tuple[str, ...]:
        notes = list(model.defaulted_dims)
        if measured is not None:
            notes.append(
                "the total was measured: launches of the network alone, which find the caches as it left them; in turn "
                f"with others one takes {measured.in_turn_ns / 1e6:.3f} ms. Layers are scaled to it"
            )
        if self.table.correction is None:
            notes.append("the table was not audited: the interval holds the errors of layers, not those of their sum")
        for source, method in (("interpolated", "between measured shapes"), ("modelled", "by the calibrated model")):
            count = sum(price.source == source for price in prices)
            if count:
                notes.append(f"{count} of {len(prices)} layers have no entry and are estimated {method}")
        return tuple(notes)


def _of_entry(entry: LatencyEntry) -> _Price:
    drifting = "drifting" if entry.source.endswith("drifting") else f"{entry.op} {sorted(entry.configuration.items())}"
    return _Price(
        entry.latency_ns,
        entry.deviation_ns,
        entry.interval_ns,
        entry.source,
        f"entry {drifting}",
        covered=True,
        in_turn_ns=entry.in_turn_ns,
    )


# Assumed for a target without a described processor (a CPU) before calibration: only the balance of
# arithmetic, memory and overhead matters, since the table determines the speed.
_PLAIN_HOST = Target(
    name="host",
    kind="npu",
    processor=Processor(
        clock_mhz=3000, macs_per_cycle={"fp32": 16.0, "fp16": 16.0, "int8": 32.0}, vector_lanes=8, layer_cycles=3000
    ),
    memory=(Memory(read_bandwidth_gbps=12.0, write_bandwidth_gbps=12.0, read_bus_bits=512, write_bus_bits=512),),
    cache=Cache(size_kib=1024, word_bits=512),
)


@verb(EstimateSettings, "model", "table")
def estimate(settings: EstimateSettings) -> LatencyEstimate:
    """Estimate a network's latency on a device by adding up its layers from a latency table.

    Args:
        settings: options of the estimate.

    Returns:
        Total with its 90 % interval, plain sum, coverage, and each layer with its source.

    Raises:
        InputError: a file or name cannot be used; the table is of another device (the message names the differing
            facts); a layer has no entry (the message names it with its configuration).

    Example:
        >>> framefit.estimate("face.onnx", "board.table.json").total_ns  # doctest: +SKIP
        4210500
    """
    output, table = settings.output, settings.table
    check_new(output, force=settings.force)
    loaded = load_model(settings.model, settings.shapes, settings.constants)
    where = table.target if isinstance(table, LatencyTable) else table
    read, remarks = table, list[str]()
    if not isinstance(table, LatencyTable):
        facts = open_target(settings.target or "cpu").fingerprint() if names_store(table) else {}
        read, remarks = table_at(table, facts)
    device = _table_device(read, settings.target, where, checked=not settings.any_fingerprint)
    chosen = settings.unit or next(iter(read.units), "")
    analytical = analytical_model(None if device is None else device.target, chosen)
    estimator = Estimator(read, chosen, fallback=settings.fallback, analytical=analytical)
    total = model_estimate(estimator, loaded.grouped(layer_groups(loaded, read, device)), device)
    total = msgspec.structs.replace(total, notes=(*remarks, *total.notes))
    if output is not None:
        write_record(output, total, force=settings.force)
    return total


def model_estimate(estimator: Estimator, model: Model, device: Device | None) -> LatencyEstimate:
    """Estimate a model with a table of this device, attributed to the model's own layers.

    Args:
        estimator: of the table.
        model: it has groups as layers.
        device: of the table. For a device that lowers models, a table has the lowered layers, unless it has
            groups that were measured.

    Raises:
        InputError: a layer has no entry.
    """
    if device is None or not device.capabilities.lowers or estimator.table.fusions is not None:
        return estimator.estimate(model)
    lowered = device.lowered(model)
    places = owners(model, lowered)
    return attributed(model, places, estimator.estimate(lowered, [model.layers[place].name for place in places]))


def layer_groups(model: Model, table: LatencyTable, device: Device | None) -> Sequence[Collection[str]]:
    """Which nodes of a model form one layer of a table, as it was measured.

    Args:
        model: to be looked up.
        table: the latency table; measured groups take precedence over those of the device.
        device: of the table; ``None``: not known, then products are grouped with following element-wise nodes.
    """
    if table.fusions is not None:
        return known_groups(model, table.fusions)
    return epilogue_groups(model) if device is None else device.fusions(model)


def analytical_model(target: Target | None, unit: str) -> Analytical:
    """An analytical model of latencies in nanoseconds on a described target, or else on a plain processor.

    Args:
        target: the device; ``None``: not known.
        unit: of the target, if it has one of this name; else its first unit is used.
    """
    described = target if target is not None and target.processor is not None else _PLAIN_HOST
    known = unit if unit in {candidate.name for candidate in described.units} else None
    cycles = CycleModel(described, known)

    def price(works: Sequence[LayerWork]) -> npt.NDArray[np.int64]:
        return cycles.layer_ns(cycles.evaluate(cycles.table(works), 0.0).cycles)

    return price


def _table_device(
    table: LatencyTable, target: str | Path | Target | None, where: str | Path, *, checked: bool
) -> Device | None:
    """Open the device of a table to query it, not to run anything.

    ``None``: the table does not name a device that can be opened, so its fingerprint need not be checked.
    """
    try:
        device = open_target(target or table.target)
    except InputError as error:
        if target is not None:
            raise
        if checked:
            raise InputError(
                f"the table was measured on {table.target!r}, which is not a built-in target",
                where=where,
                remedy="name the device with --target FILE, or use the table unchecked with --any-fingerprint",
            ) from error
        return None
    if checked:
        check_fingerprint(
            table,
            device.fingerprint(),
            where,
            "measure a table on this device, or use this one all the same with --any-fingerprint",
        )
    return device


def attributed(model: Model, places: Sequence[int], lowered: LatencyEstimate) -> LatencyEstimate:
    """Attribute an estimate to the layers of a model, whatever the runtime made of them.

    A runtime names what it makes of a layer after the layer's result, and inserts copies between layouts:
    the time of a copy counts for the layer that made the tensor, or, at the beginning, for the one that
    reads it.

    ``places`` come from :func:`framefit.core.model.lowering.owners`. The total stays the same; a layer whose work the
    runtime merged into another one has latency 0.
    """
    parts: list[list[LayerLatency]] = [[] for _ in model.layers]
    for place, part in zip(places, lowered.layers, strict=True):
        parts[place].append(part)
    layers = tuple(_joined(layer, operators) for layer, operators in zip(model.layers, parts, strict=True))
    return msgspec.structs.replace(lowered, layers=layers)


def _joined(layer: Layer, parts: list[LayerLatency]) -> LayerLatency:
    """Sum of a layer's operators; their errors are independent."""
    total = sum(part.latency_ns for part in parts)
    low = math.sqrt(sum((part.latency_ns - part.interval_ns[0]) ** 2 for part in parts))
    high = math.sqrt(sum((part.interval_ns[1] - part.latency_ns) ** 2 for part in parts))
    sources = list(dict.fromkeys(part.source for part in parts))
    return LayerLatency(
        name=layer.name,
        op=layer.op,
        latency_ns=total,
        interval_ns=(max(round(total - low), 0), round(total + high)),
        source=", ".join(sources) if sources else "part of another layer",
        evicted_ns=sum(part.evicted_ns for part in parts),
    )


def open_target(target: str | Path | Target | Device) -> Device:
    """Open the device of a target on a clock of its own; a described one computes nothing. Or return the device."""
    return open_device(target) if isinstance(target, str | Path | Target) else target
