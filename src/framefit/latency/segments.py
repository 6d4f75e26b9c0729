"""Durations of segments from a latency table, for planning without measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyTable
from framefit.core.model import Layer, Model, TensorInfo
from framefit.core.run_record import LayerLatency
from framefit.errors import InputError
from framefit.latency.calibrate import entry_work, work_bytes
from framefit.latency.estimate import Estimator
from framefit.latency.terms import class_sums, correction_ns, keeps_layout, terms_of, transfer_ns

__all__ = ["SegmentPrices", "launch_excess"]


_LEAST_SAMPLES = 100  # of all launches together, for a p99
_ALIKE = np.log(4)  # between the logarithms of durations
_LEAST_COPY_BYTES = 4 << 10  # read and written; a smaller copy takes the time of a node, not of its bytes
_COPY_NS_PER_BYTE = 0.2  # where only such copies were measured: read and written at 10 GB/s each
_COPIES = ("ReorderInput", "ReorderOutput")  # ONNX Runtime's copies into and out of blocks of channels


@dataclass(frozen=True)
class SegmentTimes:
    """Durations of runs of layers, each launched on its own.

    Attributes:
        duration_ns: of each, int64.
        boundary_ns: cost of cutting between run i and i + 1, int64, one fewer: by so much the two separate
            launches exceed one launch.
    """

    duration_ns: npt.NDArray[np.int64]
    boundary_ns: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Run:
    """Layers that are launched together: all that pricing a segment needs, without its graph."""

    layers: tuple[Layer, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    internal_tensors: frozenset[str] = frozenset()


class SegmentPrices:
    """Prices runs of one model's layers, which are looked up once.

    A table of what a runtime makes of layers has entries of its copies between layouts. They show the cost of a
    cut between two layers that keep their tensors in blocks: a copy out of that layout, and one back.

    Args:
        model: it has the device's fused groups as layers.
        estimator: of the table and unit.
        layers: latencies of the layers, if they were looked up before.

    Raises:
        InputError: a layer has no entry.
    """

    def __init__(self, model: Model, estimator: Estimator, layers: Sequence[LayerLatency] | None = None) -> None:
        self._model, self._table = model, estimator.table
        if layers is None:
            latency_ns, evicted_ns = estimator.layers_ns(model), estimator.evicted_ns(model)
        else:
            latency_ns = [float(layer.latency_ns) for layer in layers]
            evicted_ns = [float(layer.evicted_ns) for layer in layers]
        self._sums, self._evicted = (
            np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))]) for values in (latency_ns, evicted_ns)
        )
        self._weight_bytes = terms_of(model).weight_bytes
        self._read: dict[str, list[int]] = {}
        self._made: dict[str, int] = {}
        for index, layer in enumerate(model.layers):
            self._made.update((tensor.name, index) for tensor in layer.outputs)
            for tensor in layer.inputs:
                self._read.setdefault(tensor.name, []).append(index)
        self._copied = [_copy_price(self._table, estimator.unit, op) for op in _COPIES]
        self._blocked = _blocked(model) if any(map(any, self._copied)) else {}

    def duration_ns(self, first: int, last: int) -> float:
        """Duration of a launch of layers ``first`` to ``last``: the layers, the correction, overhead and transfers.

        Tensors that the segment passes to other segments stay on the device.
        """
        run, plain = self._run(first, last), float(self._sums[last + 1] - self._sums[first])
        transfer = transfer_ns(run, self._table.overhead) + self._copies_ns(first, last)
        by_class = class_sums(run.layers, np.diff(self._sums[first : last + 2]).tolist())
        evicted = float(self._evicted[last + 1] - self._evicted[first])
        added = correction_ns(by_class, evicted, terms_of(run), self._table.correction, self._weight_bytes)
        return max(plain + added + transfer, 0.0)

    def times(self, runs: Sequence[tuple[int, int]]) -> SegmentTimes:
        """Durations of runs of layers, and the costs of the cuts between them.

        Args:
            runs: first and last layer of each, consecutive from the first layer to the last.

        Raises:
            InputError: the runs do not cover the model, or the end of one is not a legal cut.
        """
        self._check(runs)
        alone = np.asarray([self.duration_ns(first, last) for first, last in runs], np.float64)
        joined = [self.duration_ns(runs[i][0], runs[i + 1][1]) for i in range(len(runs) - 1)]
        boundary = alone[:-1] + alone[1:] - np.asarray(joined, np.float64)
        return SegmentTimes(
            duration_ns=np.round(alone).astype(np.int64),
            boundary_ns=np.maximum(np.round(boundary), 0).astype(np.int64),
        )

    def _check(self, runs: Sequence[tuple[int, int]]) -> None:
        model = self._model
        obstacles = {cut.position: cut.obstacle for cut in model.cuts}
        expected = 0
        for first, last in runs:
            if first != expected or last < first:
                raise InputError(
                    f"runs of layers leave a gap: layer {expected} is not the first of a run", where=model.name
                )
            if obstacle := obstacles.get(first):
                raise InputError(f"no cut after layer {model.layers[first - 1].name!r}: {obstacle}", where=model.name)
            expected = last + 1
        if expected != len(model.layers):
            raise InputError(f"runs end at layer {expected - 1} of {len(model.layers)}", where=model.name)

    def _copies_ns(self, first: int, last: int) -> float:
        """Cost of copying tensors that enter and leave this run in blocks; the uncut model does not copy them."""
        (into_ns, into), (out_ns, out) = self._copied
        total = 0.0
        for name, (size, readers) in self._blocked.items():
            inside = [first <= index <= last for index in readers]
            if first <= self._made[name] <= last:
                total += (out_ns + out * size) * (not all(inside))
            else:
                total += (into_ns + into * size) * any(inside)
        return total

    def _run(self, first: int, last: int) -> _Run:
        """A run with those of the model's own inputs and outputs that it reads and makes."""
        model, outer = self._model, (first, last) == (0, len(self._model.layers) - 1)
        return _Run(
            layers=model.layers[first : last + 1],
            inputs=tuple(
                tensor
                for tensor in model.inputs
                if tensor.name not in model.internal_tensors
                and (outer or any(first <= index <= last for index in self._read.get(tensor.name, ())))
            ),
            outputs=tuple(
                tensor
                for tensor in model.outputs
                if tensor.name not in model.internal_tensors
                and first <= self._made.get(tensor.name, len(model.layers) - 1) <= last
            ),
        )


def _blocked(model: Model) -> dict[str, tuple[int, list[int]]]:
    """Tensors between layers that keep channels in blocks -> bytes, and the layers of this kind that read them."""
    made = {tensor.name: tensor.bytes for layer in model.layers if keeps_layout(layer.op) for tensor in layer.outputs}
    blocked: dict[str, tuple[int, list[int]]] = {}
    for index, layer in enumerate(model.layers):
        for tensor in layer.inputs:
            if tensor.name in made and keeps_layout(layer.op):
                blocked.setdefault(tensor.name, (made[tensor.name], []))[1].append(index)
    return blocked


def _copy_price(table: LatencyTable, unit: str, op: str) -> tuple[float, float]:
    """Price of a copy in ns, and in ns per byte of its tensor, from the entries of this operator; 0 without any.

    Copies of few bytes take as long as any node, so large ones give the price per byte, where there are some.
    """
    entries = [
        (entry.latency_ns, work_bytes(entry_work(entry.op, entry.configuration))[0])
        for entry in table.entries
        if entry.op == op and entry.unit == unit
    ]
    large = [(ns, moved) for ns, moved in entries if moved >= _LEAST_COPY_BYTES]
    if large:
        return 0.0, 2 * sum(ns for ns, _ in large) / sum(moved for _, moved in large)  # read once, written once
    return (float(np.mean([ns for ns, _ in entries])), _COPY_NS_PER_BYTE) if entries else (0.0, 0.0)


def launch_excess(table: LatencyTable, unit: str, quantile: float, duration_ns: float) -> float | None:
    """Variation of launches on the table's device: quantile over median of launches that take about as long.

    Launches vary, not layers: an entry's samples are its launches less a constant overhead, which is added
    again. Each launch counts relative to its run's median; a p99 needs hundreds of samples, so that all runs of similar
    length count together. What disturbs a launch (an interrupt, another program's turn on the core) takes a time of its
    own, and so a larger part of a short launch than of a long one: networks that were launched whole say more of
    segments of milliseconds than their layers do. Drift of the machine's speed is not included: a campaign removes it
    from its samples.

    Args:
        table: with entries of the unit.
        unit: the unit of the launches.
        quantile: 0 to 1.
        duration_ns: of the launches that are asked for. Where too few of the table's launches are within a factor
            of 4 of it, the nearest ones count.

    Returns:
        At least 1; ``None``: fewer than 100 samples.
    """
    launches = [
        np.asarray(entry.samples_ns, np.float64) + entry.overhead_ns
        for entry in table.entries
        if entry.unit == unit and len(entry.samples_ns) > 1
    ]
    launches += [
        np.asarray(run.samples_ns, np.float64)
        for run in table.runs
        if run.unit == unit and run.role == "network" and len(run.samples_ns) > 1
    ]
    medians = np.maximum([float(np.median(samples)) for samples in launches], 1.0)
    apart = np.abs(np.log(medians / max(duration_ns, 1.0)))
    relative: list[npt.NDArray[np.float64]] = []
    for place in np.argsort(apart, kind="stable"):
        if apart[place] > _ALIKE and sum(map(len, relative)) >= _LEAST_SAMPLES:
            break
        relative.append(launches[place] / medians[place])
    if sum(map(len, relative)) < _LEAST_SAMPLES:
        return None
    return max(float(np.quantile(np.concatenate(relative), quantile)), 1.0)
