"""Segments from tables."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from simulated import UNIT, fused, noisy_table, random_network, true_layers_ns, with_overhead

from framefit import GraphBuilder, InputError, Model, resolve_target
from framefit.core.latency_table import Correction, LatencyEntry, LatencyTable, MeasuredRun
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.device import NpuDevice
from framefit.latency.estimate import Estimator
from framefit.latency.segments import SegmentPrices, SegmentTimes, launch_excess

VPU = resolve_target("vpu")


@pytest.fixture(scope="module")
def model() -> Model:
    """A network, fused."""
    return fused(random_network(5))


@pytest.fixture(scope="module")
def table(model: Model) -> LatencyTable:
    """Its layers, 0.1 % exact."""
    return noisy_table([model], VPU, np.random.default_rng(0), samples=2000)


def runs_of(model: Model, *positions: int) -> list[tuple[int, int]]:
    """Runs of layers between cuts."""
    edges = [0, *positions, len(model.layers)]
    return [(edges[i], edges[i + 1] - 1) for i in range(len(edges) - 1)]


def segment_times(model: Model, runs: list[tuple[int, int]], estimator: Estimator) -> SegmentTimes:
    """Durations of a model's runs of layers, and of the cuts between them."""
    return SegmentPrices(model, estimator).times(runs)


def test_segments_take_their_layers_and_a_launch(model: Model, table: LatencyTable) -> None:
    """As the device itself prices them; a cut costs one more launch, tensors between segments stay."""
    device = NpuDevice(VPU, VirtualClock(), layer_times(VPU))
    bits = 8 / 32  # the device moves bytes where the model has floats
    host = VPU.host
    overhead = with_overhead(table, host.inference_ns)
    assert overhead.overhead is not None
    same = msgspec.structs.replace(
        overhead.overhead, input_ns_per_byte=bits * host.byte_ns, output_ns_per_byte=bits * host.byte_ns
    )
    estimator = Estimator(msgspec.structs.replace(table, overhead=same), UNIT)
    runs = runs_of(model, 3, 7)
    found = segment_times(model, runs, estimator)
    for (first, last), ns in zip(runs, found.duration_ns, strict=True):
        part = model.segment(first, last)
        assert ns == pytest.approx(device.compile(part, "vpu0", "part").duration_ns, rel=0.005)
        assert estimator.estimate(part).total_ns == pytest.approx(ns, abs=2)
    assert found.boundary_ns == pytest.approx([host.inference_ns] * 2, abs=3)
    whole = estimator.estimate(model).total_ns
    assert found.duration_ns.sum() - found.boundary_ns.sum() == pytest.approx(whole, abs=4)


def test_nodes_and_weights_of_a_segment_are_corrected(model: Model, table: LatencyTable) -> None:
    """Each segment by its own layers: together they take as much more as the whole, and a cut costs nothing."""
    correction = Correction(class_factors={"convolution": 1.1}, node_ns=200.0, weight_ns_per_byte=0.05, networks=5)
    corrected = msgspec.structs.replace(table, correction=correction)
    runs = runs_of(model, 4)
    found = segment_times(model, runs, Estimator(corrected, UNIT))
    layers = [
        (1.1 if "Conv" in layer.op else 1) * ns + 200 + 0.05 * layer.parameter_bytes
        for layer, ns in zip(model.layers, true_layers_ns(model, VPU), strict=True)
    ]
    assert found.duration_ns == pytest.approx([sum(layers[first : last + 1]) for first, last in runs], rel=0.005)
    assert found.boundary_ns == pytest.approx([0], abs=2)


def test_a_cut_between_blocked_layers_adds_copies_that_the_table_knows() -> None:
    """Out of blocks behind one convolution, back into them ahead of the next one; elsewhere nothing."""
    b = GraphBuilder("chain")
    x = b.conv(b.conv(b.input("x", (1, 16, 8, 8)), 16), 16)
    b.output(b.op("Transpose", x, perm=[0, 2, 3, 1]))
    chain = fused(b.build())
    last = len(chain.layers) - 1
    table = noisy_table([chain], VPU, np.random.default_rng(0), samples=20)
    tensor = "1x16x8x8 float32"
    known = {"inputs": [tensor], "outputs": [tensor]}
    copies = tuple(
        LatencyEntry(op=op, configuration=known, unit=UNIT, latency_ns=ns, interval_ns=(ns, ns))
        for op, ns in (("ReorderInput", 300), ("ReorderOutput", 500))
    )
    plain = SegmentPrices(chain, Estimator(table, UNIT))
    copied = SegmentPrices(chain, Estimator(msgspec.structs.replace(table, entries=(*table.entries, *copies)), UNIT))
    runs = ((0, 0), (1, last), (0, last), (0, 1), (last, last))
    added = [copied.duration_ns(*run) - plain.duration_ns(*run) for run in runs]
    assert last >= 2
    assert added == pytest.approx([500, 300, 0, 0, 0])


def test_one_segment_has_no_boundary(model: Model, table: LatencyTable) -> None:
    """The whole model in one run."""
    found = segment_times(model, runs_of(model), Estimator(table, UNIT))
    assert len(found.duration_ns) == 1
    assert len(found.boundary_ns) == 0


@pytest.mark.parametrize("runs", [[(0, 3)], [(0, 3), (5, 6)], [(1, 4)], []])
def test_runs_have_to_cover_the_model(model: Model, table: LatencyTable, runs: list[tuple[int, int]]) -> None:
    """Gaps and missing ends are refused."""
    with pytest.raises(InputError, match="runs"):
        segment_times(model, runs, Estimator(table, UNIT))


def test_long_launches_are_disturbed_by_a_smaller_part() -> None:
    """One of twenty launches, short or long, waits 4 ms for another program: 41 times as long, or 1.13 times."""
    random = np.random.default_rng(0)
    waits_ns = 4_000_000 * (random.random((2, 2000)) < 0.05)
    short, long = (tuple(map(int, ns + waits)) for ns, waits in zip((100_000, 30_000_000), waits_ns, strict=True))
    entry = LatencyEntry(
        op="Conv", configuration={}, unit=UNIT, latency_ns=100_000, interval_ns=(99_000, 101_000), samples_ns=short
    )
    run = MeasuredRun(role="network", digest="", unit=UNIT, input_bytes=4, output_bytes=4, runs=5, samples_ns=long)
    table = LatencyTable(target="cpu", fingerprint={}, entries=(entry,), runs=(run,))
    assert launch_excess(table, UNIT, 0.99, 150_000) == pytest.approx(41)
    assert launch_excess(table, UNIT, 0.99, 20_000_000) == pytest.approx(34 / 30)
    layers_alone = msgspec.structs.replace(table, runs=())
    assert launch_excess(layers_alone, UNIT, 0.99, 20_000_000) == pytest.approx(41)
    assert launch_excess(msgspec.structs.replace(table, entries=(), runs=()), UNIT, 0.99, 1) is None
