"""Latency tables of simulated targets: the cycle model's layer times, with noise; and random networks."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec
import numpy as np

from framefit import Target
from framefit.core.latency_table import LatencyEntry, LatencyTable, Overhead
from framefit.core.model import GraphBuilder, Model, configuration, epilogue_groups
from framefit.devices.measure import Measurement
from framefit.devices.npu.cycles import CycleModel
from framefit.latency.calibrate import Analytical

UNIT = "unit"
NOISE = 0.01


@functools.cache
def fused(model: Model) -> Model:
    """With the accelerators' fused groups as layers."""
    return model.grouped(epilogue_groups(model))


def true_layers_ns(model: Model, target: Target) -> list[int]:
    """What the layers take."""
    return [layer.latency_ns for layer in CycleModel(target).layers(fused(model))]


def analytical(target: Target) -> Analytical:
    """The cycle model of a target."""
    cycles = CycleModel(target)
    return lambda works: cycles.layer_ns(cycles.evaluate(cycles.table(works), 0.0).cycles)


def noisy_table(
    models: Iterable[Model], target: Target, random: np.random.Generator, *, shift_ns: float = 0.0, samples: int = 25
) -> LatencyTable:
    """Every layer that takes time, measured with log-normal noise.

    Args:
        models: whose layers are entries.
        target: its cycle model is the truth.
        random: draws the noise.
        shift_ns: error of the overhead that was subtracted: common to all entries.
        samples: of each entry.
    """
    entries = {}
    for model in map(fused, models):
        for layer, nodes, cost in zip(model.layers, model.nodes, CycleModel(target).layers(model), strict=True):
            if not cost.latency_ns:
                continue
            drawn = cost.latency_ns * np.exp(NOISE * random.standard_normal(samples)) + shift_ns
            measured = Measurement(np.sort(drawn).astype(np.int64))
            key = configuration(nodes)
            entries[layer.op, msgspec.json.encode(key)] = LatencyEntry(
                op=layer.op,
                configuration=key,
                unit=UNIT,
                latency_ns=measured.median_ns,
                interval_ns=measured.interval_ns,
            )
    return LatencyTable(target=target.name, fingerprint={"target": target.name}, entries=tuple(entries.values()))


def with_overhead(table: LatencyTable, intercept_ns: float, half_ns: float = 0.0) -> LatencyTable:
    """Beside it the overhead of a launch, 0.05 ns a byte and a constant with its 90 % interval."""
    overhead = Overhead(
        input_ns_per_byte=0.05,
        output_ns_per_byte=0.05,
        intercept_ns=intercept_ns,
        condition_number=5.0,
        intercept_interval_ns=(intercept_ns - half_ns, intercept_ns + half_ns),
    )
    return msgspec.structs.replace(table, overhead=overhead)


def without(table: LatencyTable, *places: int) -> LatencyTable:
    """Some entries are missing."""
    kept = tuple(entry for place, entry in enumerate(table.entries) if place not in places)
    return msgspec.structs.replace(table, entries=kept)


@functools.cache
def random_network(seed: int) -> Model:
    """Convolutions, residual and inverted residual blocks of random sizes, then a classifier."""
    random = np.random.default_rng(seed)
    b = GraphBuilder(f"random {seed}", seed)
    side = int(random.choice([64, 96, 128, 160]))
    x = b.conv(b.input("image", (1, 3, side, side)), int(random.integers(1, 5)) * 8, stride=2, activation="Relu")
    for _ in range(int(random.integers(4, 9))):
        x = _block(b, x, random, stride=int(random.choice([1, 1, 2])))
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 10), "scores")
    return b.build()


def _block(b: GraphBuilder, x: str, random: np.random.Generator, *, stride: int) -> str:
    channels = b.channels(x)
    kind = random.integers(0, 3)
    if kind == 0:
        return b.conv(x, int(random.integers(2, 10)) * 8, stride=stride, norm=True, activation="Relu")
    if kind == 1:
        return str(b.op("Add", x, b.conv(b.conv(x, channels, norm=True, activation="Relu"), channels, norm=True)))
    wide = channels * int(random.choice([2, 4]))
    y = b.conv(x, wide, kernel=1, norm=True, activation="Relu")
    y = b.conv(y, wide, stride=stride, groups=wide, norm=True, activation="Relu")
    return b.conv(y, int(random.integers(2, 10)) * 8, kernel=1, norm=True)
