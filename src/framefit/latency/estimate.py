"""A network's latency from a table: every layer looked up, its fallbacks named, the total with its interval.

The interval of the total adds up what may be wrong, as variances. What is wrong for several
layers alike is added up before it is squared:

- a configuration that occurs k times counts k times its own deviation;
- layers told by the same fallback are taken to be wrong alike: what it does not see in one of them
  (channels rounded up, tiles that come again) it mostly does not see in the others;
- the overhead is added once to the whole. Where it was fitted with an auxiliary layer, its constant
  cancels in the entries (it is in the runs with and without the layer) and its error counts once;
  else it was subtracted from every entry, and its error counts once for each layer but one;
- the correction's own error, from networks that were left out of its fit (Student's t).

Shapes between measured ones: Gaussian-process regression of log latency within one family.

A family is an operator with everything that is no size: kernel, stride, precision, fused
operators. Within it log latency follows log operations, log bytes moved and log bytes of
constants: a linear trend, whose slopes are drawn from a prior, plus a smooth departure from it
(Rasmussen and Williams, 2006, "Gaussian Processes for Machine Learning", sections 2.2, 2.7 and
5.4.2). Few points lean on the prior, many speak for themselves; the distance to measured shapes widens
the interval. Nothing is told beyond a stated factor around the family's measured shapes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyEntry, LatencyTable, Value
from framefit.core.model import Layer, Model, Node, configuration
from framefit.core.run_record import LatencyEstimate, LayerLatency
from framefit.devices.npu.work import LayerWork, layer_work
from framefit.errors import InputError
from framefit.latency.calibrate import Analytical, Calibration, entry_work, work_bytes, work_operations
from framefit.latency.terms import class_sums, correction_ns, student_quantile, terms_of, transfer_ns

__all__ = [
    "LEAST_NOISE",
    "REACH_RATIO",
    "Estimator",
    "Family",
    "Interpolation",
    "design_covariance",
    "family",
    "features",
]


Floats = npt.NDArray[np.float64]
REACH_RATIO = 1.5
"""Operations and bytes of a shape may lie outside those that were measured by this factor."""
_LEAST_SHAPES = 3  # of a family
_GAP_RATIO = 8.0  # the nearest measured shape may be so far away in operations or bytes


# Prior slopes (mean, deviation) of log latency on log operations, bytes moved and bytes of constants: a layer
# bound by arithmetic has (1, 0, 0), one bound by memory (0, 1, 0) or (0, 0, 1), most lie between.
_SLOPES = np.asarray([0.5, 0.3, 0.1])
_SLOPE_DEVIATION = 0.3
_LEVEL_DEVIATION = 3.0  # of the family's speed: a factor of 20 either way
_LENGTH = 1.5  # of the departure from the trend: a factor of 4.5 in a size
_DESIGN_DEPARTURE = 1.0  # left-out shapes of three simulated targets: better than 0.1 and 0.4
_DEPARTURES = (0.02, 0.05, 0.1, 0.2, 0.4)  # of which the one that predicts left-out entries best is taken
LEAST_NOISE = 0.01
_SIZES_IN_ATTRIBUTES = ("hidden_size", "groups", "shape", "sizes", "split")


class Interpolation:
    """Entries of one unit by families.

    Args:
        entries: of one unit; those without a latency above 0 are left out.

    Example:
        >>> between = Interpolation(table.entries)  # doctest: +SKIP
        >>> between.find("Conv", configuration)  # log latency and its deviation  # doctest: +SKIP
    """

    def __init__(self, entries: Iterable[LatencyEntry]) -> None:
        points: dict[bytes, list[tuple[Floats, float, float]]] = {}
        for entry in entries:
            work = entry_work(entry.op, entry.configuration)
            if entry.latency_ns > 0 and work.method not in ("unknown", "view"):
                noise = entry.deviation_ns / entry.latency_ns
                point = features(work), math.log(entry.latency_ns), noise
                points.setdefault(family(entry.op, entry.configuration, work), []).append(point)
        self._points = {key: found for key, found in points.items() if len(found) >= _LEAST_SHAPES}
        self._fitted: dict[bytes, Family] = {}

    def find(self, op: str, configuration: Mapping[str, Value]) -> tuple[float, float] | None:
        """Latency of a shape between measured ones.

        Returns:
            Logarithm of the latency in ns and its standard deviation; ``None`` where fewer than 3
            shapes of its family were measured, or it is beyond their reach.
        """
        work = entry_work(op, configuration)
        if work.method in ("unknown", "view"):
            return None
        key = family(op, configuration, work)
        fitted = self.fitted(key)
        return None if fitted is None else fitted.at(features(work))

    def fitted(self, key: bytes) -> Family | None:
        """The process of one family; ``None`` where fewer than 3 of its shapes were measured."""
        if key not in self._points:
            return None
        if key not in self._fitted:
            shapes, logs, noise = zip(*self._points[key], strict=True)
            self._fitted[key] = Family(np.asarray(shapes), np.asarray(logs), np.asarray(noise))
        return self._fitted[key]


class Family:
    """Gaussian process of one family.

    Args:
        shapes: measured ones, as rows of :func:`features`.
        logs: of their latencies in ns.
        noise: their deviations.
    """

    def __init__(self, shapes: Floats, logs: Floats, noise: Floats) -> None:
        self._features, self._centre = shapes, shapes.mean(axis=0)
        trend = (shapes - self._centre) @ _SLOPES
        self._level = float(np.median(logs - trend))
        rest = logs - trend - self._level
        squares = np.maximum(noise, LEAST_NOISE) ** 2
        best = -math.inf
        for departure in _DEPARTURES:
            inverse = np.linalg.inv(self._covariance(shapes, shapes, departure) + np.diag(squares))
            weights = inverse @ rest
            variance = 1 / np.diag(inverse)  # of each entry as the others predict it (section 5.4.2)
            errors = weights * variance
            likelihood = float(-0.5 * (np.log(variance) + errors**2 / variance).sum())
            if likelihood > best:
                best, self.departure, self._inverse, self._weights = likelihood, departure, inverse, weights
                self.excess = max(float(np.sqrt(np.mean(errors**2 / variance))), 1.0)

    def at(self, shape: Floats) -> tuple[float, float] | None:
        """Mean and deviation of the logarithm, or ``None`` beyond reach."""
        reach = math.log(REACH_RATIO)
        low, high = self._features.min(axis=0) - reach, self._features.max(axis=0) + reach
        if (shape < low).any() or (shape > high).any():
            return None
        if np.abs(self._features - shape).max(axis=1).min() > math.log(_GAP_RATIO):
            return None
        row = self._covariance(shape[None], self._features, self.departure)[0]
        own = self._covariance(shape[None], shape[None], self.departure)[0, 0]
        mean = self._level + float((shape - self._centre) @ _SLOPES + row @ self._weights)
        variance = own - float(row @ self._inverse @ row)
        return mean, self.excess * math.sqrt(max(variance, 0.0) + LEAST_NOISE**2)

    def _covariance(self, left: Floats, right: Floats, departure: float) -> Floats:
        return _prior(left - self._centre, right - self._centre, departure)


def design_covariance(shapes: Floats) -> Floats:
    """Covariance of the logarithms at shapes of a family before any was measured; shapes x shapes.

    With a greater departure than is fitted later: a design that trusts the trend measures the ends
    alone, and never sees where the trend is none (Box and Draper, 1959, "A Basis for the Selection of a
    Response Surface Design").
    """
    away = shapes - shapes.mean(axis=0)
    return _prior(away, away, _DESIGN_DEPARTURE)


def _prior(left: Floats, right: Floats, departure: float) -> Floats:
    distance = ((left[:, None] - right[None]) ** 2).sum(axis=2)
    smooth = departure**2 * np.exp(-0.5 * distance / _LENGTH**2)
    return np.asarray(_LEVEL_DEVIATION**2 + _SLOPE_DEVIATION**2 * left @ right.T + smooth, np.float64)


def features(work: LayerWork) -> Floats:
    """What a shape is to an interpolation: logarithms of operations, bytes moved and bytes of constants."""
    return np.log([work_operations(work), *work_bytes(work)])


def family(op: str, configuration: Mapping[str, Value], work: LayerWork) -> bytes:
    """Everything that is no size."""
    kept: dict[str, object] = {
        name: value
        for name, value in configuration.items()
        if name not in ("inputs", "weights", "outputs") and name.split(".")[-1] not in _SIZES_IN_ATTRIBUTES
    }
    groups = work.products[0] if work.products else None
    kept["kind"] = "" if groups is None or groups.groups == 1 else "depthwise" if groups.channels == 1 else "grouped"
    kept["tensors"] = len(work.reads), len(work.writes)
    return msgspec.json.encode([op, kept], order="sorted")


_Z90 = 1.6448536269514722


@dataclass(frozen=True)
class _Price:
    """A layer's latency, and what its error is shared with.

    Attributes:
        shared: layers of equal name here are wrong alike.
        covered: it is an entry of its own.
    """

    latency_ns: float
    deviation_ns: float
    interval_ns: tuple[int, int]
    source: str
    shared: str
    covered: bool


class Estimator:
    """Answers for one unit from one table; fallbacks are fitted when they are first needed.

    Args:
        table: with entries of the unit.
        unit: where the network is to run.
        fallback: whether a layer without an entry is told by interpolation, else by the analytical model;
            else it is an error.
        analytical: prices layers that the table cannot interpolate, after calibration; ``None``: nothing does.

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
        self._interpolation: Interpolation | None = None
        self._calibration: Calibration | None = None
        self._known: dict[tuple[str, bytes], _Price | None] = {}

    def estimate(self, model: Model, names: Sequence[str] | None = None) -> LatencyEstimate:
        """Latency of a launch of a whole model or segment.

        Args:
            model: with the device's fused groups as layers.
            names: of the layers, for messages; default: their own.

        Returns:
            Total with 90 % interval, plain sum, coverage, and each layer.

        Raises:
            InputError: a layer has no entry and no fallback tells its latency; it is named, with its
                operators and configuration.
        """
        prices = self._prices(model, names)
        plain = math.fsum(price.latency_ns for price in prices)
        table = self.table
        by_class = class_sums(model.layers, (price.latency_ns for price in prices))
        added = correction_ns(plain, terms_of(model), table.correction, by_class)
        overhead = transfer_ns(model, table.overhead)
        total = max(plain + added + overhead, 0.0)
        half = self._half_width(prices, total)
        timed = [price for price in prices if price.source != "view"]
        return LatencyEstimate(
            model=model.name,
            target=table.target,
            unit=self.unit,
            total_ns=round(total),
            interval_ns=(max(math.floor(total - half), 0), math.ceil(total + half)),
            plain_sum_ns=round(plain),
            correction_ns=round(added),
            overhead_ns=round(overhead),
            coverage_ratio=sum(price.covered for price in timed) / len(timed) if timed else 1.0,
            estimated_ns=round(math.fsum(price.latency_ns for price in timed if not price.covered)),
            layers=tuple(
                LayerLatency(
                    name=layer.name,
                    op=layer.op,
                    latency_ns=round(price.latency_ns),
                    interval_ns=price.interval_ns,
                    source=price.source,
                )
                for layer, price in zip(model.layers, prices, strict=True)
            ),
            notes=self._notes(model, prices),
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
        found = configuration(nodes)
        key = layer.op, msgspec.json.encode(found)
        if key not in self._known:
            self._known[key] = self._looked_up(layer, nodes, found)
        price = self._known[key]
        if price is None:
            raise self._missing(name, layer.op, found)
        return price

    def _looked_up(self, layer: Layer, nodes: tuple[Node, ...], key: dict[str, Value]) -> _Price | None:
        """The same for every layer of a configuration; ``None``: nothing tells it."""
        entry = self.table.find(layer.op, key, self.unit)
        if entry is not None:
            return _of_entry(entry)
        if layer_work(layer, nodes).method == "view":
            return _Price(0.0, 0.0, (0, 0), "view", "view", covered=True)
        return self._fallen_back(layer.op, key) if self._fallback else None

    def _fallen_back(self, op: str, key: dict[str, Value]) -> _Price | None:
        """Interpolation where there are measured shapes around, else the calibrated model."""
        if self._interpolation is None:
            self._interpolation = Interpolation(self._entries)
        between = self._interpolation.find(op, key)
        if between is not None:
            return _of_logarithm(*between, "interpolated")
        if self._analytical is None:
            return None
        work = entry_work(op, key)
        if work.method == "unknown":
            return None
        if self._calibration is None:
            self._calibration = Calibration(self._entries, self._analytical)
        return _of_logarithm(*self._calibration.find([work])[0], "modelled")

    def _missing(self, name: str, op: str, key: dict[str, Value]) -> InputError:
        shown = ", ".join(f"{name} {value}" for name, value in key.items() if value not in (None, "", []))
        fallback = "no fallback tells its latency: " if self._fallback else ""
        return InputError(
            f"{fallback}the table has no entry of {op} on unit {self.unit!r} with {shown}",
            where=f"layer {name}",
            remedy="measure the model into the table"
            + ("" if self._fallback else ", or let it be estimated with --fallback"),
        )

    def _half_width(self, prices: Sequence[_Price], total: float) -> float:
        """Of the total's 90 % interval."""
        shared: defaultdict[str, float] = defaultdict(float)
        for price in prices:
            shared[price.shared] += price.deviation_ns
        variance = math.fsum(deviation**2 for deviation in shared.values())
        overhead = self.table.overhead
        if overhead is not None and overhead.intercept_interval_ns is not None:
            low, high = overhead.intercept_interval_ns
            shares = 1 if overhead.auxiliary else max(sum(price.source != "view" for price in prices) - 1, 0)
            variance += ((high - low) / (2 * _Z90) * shares) ** 2
        correction = self.table.correction
        if correction is None:
            return _Z90 * math.sqrt(variance)
        audited = student_quantile(correction.networks - 1) * correction.error_ratio * total
        return math.hypot(_Z90 * correction.scale * math.sqrt(variance), audited)

    def _notes(self, model: Model, prices: Sequence[_Price]) -> tuple[str, ...]:
        notes = list(model.defaulted_dims)
        if self.table.correction is None:
            notes.append("the table was not audited: the interval knows the layers' errors, not what they do together")
        for source, told in (("interpolated", "between measured shapes"), ("modelled", "by the calibrated model")):
            count = sum(price.source == source for price in prices)
            if count:
                notes.append(f"{count} of {len(prices)} layers have no entry and are told {told}")
        return tuple(notes)


def _of_entry(entry: LatencyEntry) -> _Price:
    drifting = "drifting" if entry.source.endswith("drifting") else f"{entry.op} {sorted(entry.configuration.items())}"
    return _Price(
        entry.latency_ns, entry.deviation_ns, entry.interval_ns, entry.source, f"entry {drifting}", covered=True
    )


def _of_logarithm(log: float, deviation: float, source: str) -> _Price:
    """Of a latency whose logarithm is normally distributed; its median counts."""
    latency = math.exp(log)
    interval = math.floor(latency * math.exp(-_Z90 * deviation)), math.ceil(latency * math.exp(_Z90 * deviation))
    spread = (interval[1] - interval[0]) / (2 * _Z90)
    return _Price(latency, spread, interval, source, source, covered=False)
