"""Shapes between measured ones: Gaussian-process regression of log latency within one family.

A family is an operator with all of its properties except sizes: kernel, stride, precision, fused
operators. Within it log latency follows log operations, log bytes moved and log bytes of
constants: a linear trend, whose slopes have a prior, plus a smooth departure from it (Rasmussen and
Williams, 2006, "Gaussian Processes for Machine Learning", sections 2.2, 2.7 and 5.4.2). The prior dominates for
few points; the interval grows with the distance to measured shapes. Nothing is estimated beyond a stated
factor around the family's measured shapes.

This module also chooses which shapes of a grid to measure next: those that reduce the uncertainty of all most.

The variance of a Gaussian process after measurements follows from its covariance alone. The next shape is the
one that reduces the variance most, summed over all shapes of the grid (Cohn, Ghahramani and Jordan, 1996,
"Active Learning with Statistical Models"), several in a row without measuring between them. After each batch the
families are fitted anew: a family whose left-out entries deviate more than its process predicts gets more shapes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyEntry, Value
from framefit.devices.npu.work import LayerWork
from framefit.latency.calibrate import entry_work, work_bytes, work_operations
from framefit.latency.subjects import Subject

Floats = npt.NDArray[np.float64]
REACH_RATIO = 1.5
"""Largest factor by which a shape's operations and bytes may lie outside those that were measured."""
_LEAST_SHAPES = 3  # in a family
_GAP_RATIO = 8.0  # largest ratio in operations or bytes to the nearest measured shape


# Prior slopes (mean, standard deviation) of log latency on log operations, bytes moved and bytes of constants: a layer
# bound by arithmetic has (1, 0, 0), one bound by memory (0, 1, 0) or (0, 0, 1), most lie between.
_SLOPES = np.asarray([0.5, 0.3, 0.1])
_SLOPE_DEVIATION = 0.3
_LEVEL_DEVIATION = 3.0  # of the family's speed: a factor of 20 in either direction
_LENGTH = 1.5  # of the departure from the trend: a factor of 4.5 in a size
_DESIGN_DEPARTURE = 1.0  # better than 0.1 and 0.4 for left-out shapes of three simulated targets
_DEPARTURES = (0.02, 0.05, 0.1, 0.2, 0.4)  # the one that predicts left-out entries best is used
_LEAST_NOISE = 0.01
_SIZES_IN_ATTRIBUTES = ("hidden_size", "groups", "shape", "sizes", "split")


class Interpolation:
    """Interpolates between the entries of one unit, family by family; entries without a latency are ignored.

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
                point = _features(work), math.log(entry.latency_ns), noise
                points.setdefault(_family_of(entry.op, entry.configuration, work), []).append(point)
        self._points = {key: measured for key, measured in points.items() if len(measured) >= _LEAST_SHAPES}
        self._fitted: dict[bytes, _Family] = {}

    def find(self, op: str, configuration: Mapping[str, Value]) -> tuple[float, float] | None:
        """Estimate the latency of a shape between measured ones.

        Returns:
            Logarithm of the latency in ns and its standard deviation; ``None`` where fewer than 3
                shapes of its family were measured, or the shape is too far from them.
        """
        work = entry_work(op, configuration)
        if work.method in ("unknown", "view"):
            return None
        key = _family_of(op, configuration, work)
        fitted = self.fitted(key)
        return None if fitted is None else fitted.at(_features(work))

    def fitted(self, key: bytes) -> _Family | None:
        """The process of one family; ``None`` where fewer than 3 of its shapes were measured."""
        if key not in self._points:
            return None
        if key not in self._fitted:
            shapes, logs, noise = zip(*self._points[key], strict=True)
            self._fitted[key] = _Family(np.asarray(shapes), np.asarray(logs), np.asarray(noise))
        return self._fitted[key]


class _Family:
    """Gaussian process of one family.

    Shapes are rows of :func:`_features`; ``logs`` are logarithms of latencies in ns, ``noise`` their deviations.
    """

    def __init__(self, shapes: Floats, logs: Floats, noise: Floats) -> None:
        self._features, self._centre = shapes, shapes.mean(axis=0)
        trend = (shapes - self._centre) @ _SLOPES
        self._level = float(np.median(logs - trend))
        rest = logs - trend - self._level
        squares = np.maximum(noise, _LEAST_NOISE) ** 2
        best = -math.inf
        for departure in _DEPARTURES:
            inverse = np.linalg.inv(self._covariance(shapes, shapes, departure) + np.diag(squares))
            weights = inverse @ rest
            variance = 1 / np.diag(inverse)  # of each entry, predicted from the others (section 5.4.2)
            errors = weights * variance
            likelihood = float(-0.5 * (np.log(variance) + errors**2 / variance).sum())
            if likelihood > best:
                best, self.departure, self._inverse, self._weights = likelihood, departure, inverse, weights
                self.excess = max(float(np.sqrt(np.mean(errors**2 / variance))), 1.0)

    def at(self, shape: Floats) -> tuple[float, float] | None:
        """Mean and standard deviation of the logarithm; ``None`` too far from measured shapes."""
        reach = math.log(REACH_RATIO)
        low, high = self._features.min(axis=0) - reach, self._features.max(axis=0) + reach
        if (shape < low).any() or (shape > high).any():
            return None
        if np.abs(self._features - shape).max(axis=1).min() > math.log(_GAP_RATIO):
            return None
        row = self._covariance(shape[None], self._features, self.departure)[0]
        prior = self._covariance(shape[None], shape[None], self.departure)[0, 0]
        mean = self._level + float((shape - self._centre) @ _SLOPES + row @ self._weights)
        variance = prior - float(row @ self._inverse @ row)
        return mean, self.excess * math.sqrt(max(variance, 0.0) + _LEAST_NOISE**2)

    def _covariance(self, left: Floats, right: Floats, departure: float) -> Floats:
        return _prior(left - self._centre, right - self._centre, departure)


def _design_covariance(shapes: Floats) -> Floats:
    """Covariance of the logarithms at shapes of a family before any measurement; shapes x shapes.

    The departure is greater than the one fitted later: a design that trusts the trend measures the extremes
    only, and never detects that the trend is wrong (Box and Draper, 1959, "A Basis for the Selection of a Response
    Surface Design").
    """
    away = shapes - shapes.mean(axis=0)
    return _prior(away, away, _DESIGN_DEPARTURE)


def _prior(left: Floats, right: Floats, departure: float) -> Floats:
    distance = ((left[:, None] - right[None]) ** 2).sum(axis=2)
    smooth = departure**2 * np.exp(-0.5 * distance / _LENGTH**2)
    return np.asarray(_LEVEL_DEVIATION**2 + _SLOPE_DEVIATION**2 * left @ right.T + smooth, np.float64)


def _features(work: LayerWork) -> Floats:
    """Features of a shape: logarithms of operations, bytes moved and bytes of constants."""
    return np.log([work_operations(work), *work_bytes(work)])


def _family_of(op: str, configuration: Mapping[str, Value], work: LayerWork) -> bytes:
    """Digest of all properties except sizes."""
    kept: dict[str, object] = {
        name: value
        for name, value in configuration.items()
        if name not in ("inputs", "weights", "outputs") and name.split(".")[-1] not in _SIZES_IN_ATTRIBUTES
    }
    groups = work.products[0] if work.products else None
    kept["kind"] = "" if groups is None or groups.groups == 1 else "depthwise" if groups.channels == 1 else "grouped"
    kept["tensors"] = len(work.reads), len(work.writes)
    return msgspec.json.encode([op, kept], order="sorted")


_MOST_SHAPES = 1000  # of a family that are compared; of more, every n-th in the order of their sizes


class ShapeChoice:
    """A grid whose shapes are measured in batches."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._strange: list[Subject] = []
        self._families: dict[bytes, list[tuple[Floats, Subject]]] = {}
        for subject in subjects:
            work = entry_work(subject.op, subject.configuration)
            if work.method in ("unknown", "view"):
                self._strange.append(subject)
            else:
                key = _family_of(subject.op, subject.configuration, work)
                self._families.setdefault(key, []).append((_features(work), subject))
        for key, members in self._families.items():
            if len(members) > _MOST_SHAPES:
                members.sort(key=lambda member: member[0].tolist())
                places = np.linspace(0, len(members) - 1, _MOST_SHAPES).round().astype(int)
                self._families[key] = [members[place] for place in places]
        self._taken: set[str] = set()

    def take(self, entries: Iterable[LatencyEntry], count: int) -> list[Subject]:
        """Choose the next shapes: those that reduce the uncertainty of the grid most, given the measurements so far.

        At most ``count``, the most informative first; layers of unknown size come before them.
        """
        chosen = [subject for subject in self._strange if subject.key not in self._taken][:count]
        known = Interpolation(entries)
        processes = [_Process(known, key, members, self._taken) for key, members in self._families.items()]
        while len(chosen) < count and processes:
            best = max(processes, key=lambda process: process.gain)
            if best.gain <= 0:
                break
            chosen.append(best.take())
        self._taken |= {subject.key for subject in chosen}
        return chosen


class _Process:
    """Uncertainty within one family while shapes are chosen."""

    def __init__(
        self, known: Interpolation, key: bytes, members: Sequence[tuple[Floats, Subject]], taken: Collection[str]
    ) -> None:
        shapes = np.asarray([shape for shape, _ in members])
        self._subjects = [subject for _, subject in members]
        done = np.asarray([subject.key in taken for subject in self._subjects])
        fitted = known.fitted(key)
        self._covariance = _design_covariance(shapes)
        for place in np.flatnonzero(done):
            self._learn(int(place))
        self._excess = 1.0 if fitted is None else fitted.excess
        self._open = ~done
        self._weigh()

    def take(self) -> Subject:
        """Return the most informative shape; it counts as measured from now on."""
        place = self._best
        self._open[place] = False
        self._learn(place)
        self._weigh()
        return self._subjects[place]

    def _learn(self, place: int) -> None:
        column = self._covariance[:, place]
        self._covariance = self._covariance - np.outer(column, column) / (column[place] + _LEAST_NOISE**2)

    def _weigh(self) -> None:
        """Compute how far each shape's measurement would reduce the variance of all."""
        gains = (self._covariance**2).sum(axis=0) / (np.maximum(np.diag(self._covariance), 0) + _LEAST_NOISE**2)
        gains[~self._open] = 0
        self._best = int(np.argmax(gains))
        self.gain = self._excess**2 * float(gains[self._best])
