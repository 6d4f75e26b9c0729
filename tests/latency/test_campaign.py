"""Campaigns against devices whose layers' true times are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from simulated import random_network

from boards import INPUT_NS, NOISE, OUTPUT_NS, UNIT, Wrapped, resnet20, true_latency, vpu
from fakes import FakeDevice
from framefit.core.latency_table import LatencyTable
from framefit.core.model import AUXILIARY_KINDS, AuxiliaryKind, GraphBuilder, Model
from framefit.core.target import Variation
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.device import NpuDevice
from framefit.errors import DeviceError
from framefit.latency.campaign import Campaign
from framefit.latency.overhead import Method, OverheadDesign, overhead_design, suited_kind
from framefit.latency.subjects import distinct_layers
from networks import NETWORKS

every_kind = pytest.mark.parametrize("kind", AUXILIARY_KINDS)


def campaign(model: Model, device: NpuDevice, kind: str = "auto", repeats: int = 100, **more) -> Campaign:
    """Of a model's distinct layers."""
    subjects, failed = distinct_layers(model, device.fusions, UNIT)
    return Campaign(device, UNIT, subjects, auxiliary=kind, repeats=repeats, failed=failed, **more)


def errors(table: LatencyTable, device: NpuDevice, model: Model, floors: float = 10) -> np.ndarray:
    """Relative errors of the layers that are at least so many times their noise floor."""
    truth = true_latency(device, model)
    chosen = [entry for entry in table.entries if entry.latency_ns >= floors * entry.noise_floor_ns > 0]
    return np.asarray([entry.latency_ns / truth(entry) - 1 for entry in chosen])


@pytest.fixture(scope="module")
def network() -> Model:
    """Built once."""
    return resnet20()


@pytest.fixture(scope="module", autouse=True)
def _auxiliary_networks_are_built_once() -> Iterator[None]:
    """Several campaigns launch the same ones: their weights follow from the seed."""
    built: dict[Any, OverheadDesign] = {}

    def design(kind: AuxiliaryKind, sizes_bytes: Iterable[int], seed: int = 0) -> OverheadDesign:
        sizes = tuple(sizes_bytes)
        if (kind, sizes, seed) not in built:
            built[kind, sizes, seed] = overhead_design(kind, sizes, seed)
        return built[kind, sizes, seed]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("framefit.latency.overhead.overhead_design", design)
        yield


@every_kind
def test_the_bar_on_the_simulated_accelerator(network: Model, kind: str) -> None:
    """1 % log-normal noise, 1 % stalls, transfers: median error at most 2 %, p95 at most 5 %, both ways."""
    pooled: dict[Method, list[np.ndarray]] = {"regression": [], "auxiliary": []}
    for seed in (1, 2):
        device = vpu(NOISE, seed=seed)
        measured = campaign(network, device, kind, repeats=4000)
        assert measured.measure()
        for method, parts in pooled.items():
            parts.append(np.abs(errors(measured.table(method), device, network)))
            assert len(parts[-1]) >= 5  # of 17; the others take some 2 us of a launch's 110
    for parts in pooled.values():
        assert np.median(np.concatenate(parts)) <= 0.02
        assert np.quantile(np.concatenate(parts), 0.95) <= 0.05


def _stairs(read: int, written: int) -> float:
    """Pages of 64 KiB are pinned one by one."""
    return 15_000 * math.ceil(read / 65_536) + 10_000 * math.ceil(written / 65_536)


def _roots(read: int, written: int) -> float:
    return 60 * math.sqrt(read) + 40 * math.sqrt(written)


@pytest.mark.parametrize(
    ("step_ns", "transfer_ns"),
    [(1_000, None), (100_000, None), (1, _stairs), (10_000, _roots)],
    ids=["1 us", "100 us", "pages", "roots, 10 us"],
)
def test_any_clock_and_any_overhead(step_ns: int, transfer_ns: Callable[[int, int], float]) -> None:
    """A driver that tells whole microseconds, or transfers that are no straight line: intervals hold the truth."""
    held, parts = [], []
    for seed in (2, 4):
        network = random_network(seed)
        device = vpu(NOISE, seed) if transfer_ns is None else vpu(NOISE, seed, link_gbps=(1e9, 1e9))
        wrapped = Wrapped(device, step_ns, transfer_ns or (lambda _read, _written: 0.0))
        measured = campaign(network, wrapped, repeats=1000)  # type: ignore[arg-type]  # a device by what it does
        assert measured.measure()
        assert measured.rounds.step_ns == (step_ns if step_ns > 1 else 0)
        table, truth = measured.table(), true_latency(device, network)
        held += [one.interval_ns[0] <= truth(one) <= one.interval_ns[1] for one in table.entries if truth(one)]
        parts.append(np.abs(errors(table, device, network)))
    assert np.mean(held) >= 0.85
    off = np.concatenate(parts)
    assert len(off) >= (10 if step_ns < 100_000 else 3)
    assert np.median(off) <= (0.02 if transfer_ns else 0.01)
    assert np.quantile(off, 0.95) <= 0.05


@pytest.mark.data
@pytest.mark.parametrize("kind", ["conv1x1"])
def test_the_bar_on_a_real_network(shared_models: Path, kind: str) -> None:
    """The same on a face detector, whose layers take 1 to 16 us."""
    model = Model.load(shared_models / "face-slim-320.onnx")
    pooled: dict[Method, list[np.ndarray]] = {"regression": [], "auxiliary": []}
    for seed in (1, 2):
        device = vpu(NOISE, seed=seed)
        measured = campaign(model, device, kind, repeats=4000)
        assert measured.measure()
        for method, parts in pooled.items():
            table = measured.table(method)
            parts.append(np.abs(errors(table, device, model)))
            assert len(parts[-1]) >= 10
            assert len(table.entries) == 61
            assert not table.unmeasured
    for parts in pooled.values():
        assert np.median(np.concatenate(parts)) <= 0.02
        assert np.quantile(np.concatenate(parts), 0.95) <= 0.05


@every_kind
def test_without_noise_it_is_exact(network: Model, kind: str) -> None:
    """Overhead and layers to the nanoseconds that rounding leaves, by both methods."""
    device = vpu()
    measured = campaign(network, device, kind, repeats=5)
    measured.measure()
    truth = true_latency(device, network)
    for method in ("regression", "auxiliary"):
        table = measured.table(method)
        assert table.overhead is not None
        assert table.overhead.input_ns_per_byte == pytest.approx(INPUT_NS, abs=2e-5)
        assert table.overhead.output_ns_per_byte == pytest.approx(OUTPUT_NS, abs=2e-5)
        assert table.overhead.intercept_ns == pytest.approx(100_000, abs=5)
        assert table.overhead.condition_number < 10
        assert [entry.latency_ns for entry in table.entries] == pytest.approx(
            [truth(entry) for entry in table.entries], abs=8
        )


def test_the_literal_difference_is_off_by_the_transfers(network: Model) -> None:
    """By a x (input bytes - bytes of what the auxiliary layer reads), as the original method's arithmetic says."""
    device = vpu()
    measured = campaign(network, device, "avgpool", repeats=5)
    measured.measure()
    entry = next(e for e in measured.table().entries if e.op == "Conv+BatchNormalization+Relu")  # 3 -> 16 channels
    into, through = 3 * 32 * 32 * 4, 16 * 32 * 32 * 4
    assert entry.literal_ns is not None
    assert entry.literal_ns - true_latency(device, network)(entry) == pytest.approx(INPUT_NS * (into - through), abs=8)


def test_intervals_hold(network: Model) -> None:
    """90 % intervals contain the truth in about that part of layers and seeds; below noise means so."""
    inside, below, wrong = [], 0, 0
    for seed in range(4):
        device = vpu(NOISE, seed)
        measured = campaign(network, device, repeats=200, seed=seed)
        measured.measure()
        truth = true_latency(device, network)
        for entry in measured.table("auxiliary").entries:
            low, high = entry.interval_ns
            inside.append(low <= truth(entry) <= high)
            below += entry.below_noise
            wrong += entry.below_noise and truth(entry) > 2 * entry.noise_floor_ns
            assert entry.below_noise == (entry.latency_ns < entry.noise_floor_ns)
    assert 0.8 <= np.mean(inside) <= 1
    assert below > 0
    assert wrong == 0


def test_drift_of_the_device_cancels(network: Model) -> None:
    """A speed that goes up and down by 8 %: the reference takes it out, and a warning names it."""
    slow = msgspec.structs.replace(NOISE, drift_ratio=0.08, drift_period_ms=900)
    device = vpu(slow, seed=3)
    measured = campaign(network, device, "conv1x1", repeats=1000)
    measured.measure()
    table = measured.table()
    assert any("speed changed by" in warning for warning in table.warnings)
    assert table.overhead is not None
    assert table.overhead.intercept_ns == pytest.approx(100_000, rel=0.01)
    found = np.abs(errors(table, device, network, floors=5))
    assert len(found) >= 5
    assert np.median(found) <= 0.05


def test_what_is_stopped_goes_on(network: Model) -> None:
    """Complete rounds stay; the same samples in all come out as of one campaign that was never stopped."""
    count = 0

    def stop() -> bool:
        nonlocal count
        count += 1
        return count > 900

    device = vpu(Variation(sigma_ratio=0.01))
    first = campaign(network, device, repeats=100)
    assert not first.measure(stop=stop)
    part = first.table()
    samples = {len(run.samples_ns) for run in part.runs if run.role != "reference"}
    assert len(samples) == 1
    assert 5 <= min(samples) < 100
    assert len(part.entries) == len(first.table().entries) > 0
    second = campaign(network, device, repeats=100, earlier=part)
    assert second.measure()
    whole = second.table()
    assert {len(run.samples_ns) for run in whole.runs if run.role != "reference"} == {100}
    for before, after in zip(part.runs, whole.runs, strict=True):
        assert after.samples_ns[: len(before.samples_ns)] == before.samples_ns
    third = campaign(network, device, repeats=100, earlier=whole)
    calls = device.clock.now_ns()
    assert third.measure()
    assert device.clock.now_ns() == calls  # nothing was left to launch


def test_a_campaign_that_is_stopped_at_once_says_what_is_missing(network: Model) -> None:
    """No entry, and every layer with the reason: never a silent zero."""
    measured = campaign(network, vpu())
    assert not measured.measure(stop=lambda: True)
    table = measured.table()
    assert not table.entries
    assert len(table.unmeasured) == 17
    assert {one.reason for one in table.unmeasured} == {"the campaign ended before its first round was complete"}


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_layer_has_an_entry_or_a_reason(name: str) -> None:
    """Any rank, whole numbers, several inputs and outputs, views, branches and loops; true times where measured."""
    device, model = vpu(), NETWORKS[name]()
    measured = campaign(model, device, repeats=5)
    measured.measure()
    table = measured.table()
    truth = true_latency(device, model)
    found, lost = distinct_layers(model, device.fusions, UNIT)
    assert len(table.entries) + len(table.unmeasured) == len(found) + len(lost)
    assert all("no cut after" in one.reason or "fixed size" in one.reason for one in table.unmeasured)
    for entry in table.entries:
        # The VPU stores a float in a byte and whole numbers as they are: the host does not know.
        if not any("int" in text for key in ("inputs", "outputs") for text in entry.configuration[key]):
            assert abs(entry.latency_ns - truth(entry)) <= 30


def test_a_device_that_fuses_the_auxiliary_layer_gets_the_layer_alone() -> None:
    """Then the entry says "none", and only the launch's overhead is taken off."""

    class Fusing(NpuDevice):
        """Takes any average pool or convolution into what comes before it."""

        def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
            if len(model.layers) > 1 and model.layers[0].op == "Relu":
                return (tuple(node for layer in model.layers for node in layer.nodes),)
            return super().fusions(model)

    plain = vpu()
    device = Fusing(plain.target, VirtualClock(), layer_times(plain.target))
    b = GraphBuilder("relu")
    b.output(b.op("Relu", b.input("x", (1, 16, 64, 64))))
    measured = campaign(b.build(), device, repeats=5)
    measured.measure()
    (entry,) = measured.table().entries
    assert (entry.auxiliary, entry.literal_ns) == ("none", None)
    assert entry.latency_ns == pytest.approx(true_latency(plain, b.build())(entry), abs=30)


def test_a_layer_that_does_not_run_there_is_named() -> None:
    """Its operator, its layers and the device's reason, beside the entries of the others."""
    target = vpu().target
    unit = msgspec.structs.replace(target.units[0], unsupported=("Softmax",))
    target = msgspec.structs.replace(target, units=(unit,))
    device = NpuDevice(target, VirtualClock(), layer_times(target))
    measured = campaign(NETWORKS["plain"](), device, repeats=5)
    measured.measure()
    table = measured.table()
    (lost,) = table.unmeasured
    assert lost.op.startswith("Softmax")
    assert "does not support Softmax" in lost.reason
    assert not any("Softmax" in entry.op for entry in table.entries)


def test_nothing_to_measure_is_an_error() -> None:
    """Not an empty table."""
    with pytest.raises(DeviceError, match="no layer can be measured"):
        Campaign(vpu(), UNIT, [])


def test_any_device_will_do() -> None:
    """One that always takes the same has no overhead but the launch, and layers below noise."""
    device = FakeDevice(1_000_000)
    subjects, _ = distinct_layers(NETWORKS["residual"](), device.fusions, "fake0")
    measured = Campaign(device, "fake0", subjects, repeats=5)
    assert measured.measure()
    table = measured.table()
    assert table.overhead is not None
    assert table.overhead.intercept_ns == pytest.approx(1_000_000, abs=2)
    assert {entry.latency_ns for entry in table.entries} <= {0, 1}
    assert all(entry.below_noise for entry in table.entries)


def test_the_same_seed_gives_the_same_table(network: Model) -> None:
    """Byte for byte."""
    tables = []
    for seed in (4, 4, 5):
        measured = campaign(network, vpu(NOISE, seed), repeats=10, seed=seed)
        measured.measure()
        tables.append(msgspec.json.encode(measured.table()))
    assert tables[0] == tables[1] != tables[2]


def test_layout_classes_have_their_own_auxiliary_layer() -> None:
    """A convolution behind convolutions, a pool behind the rest."""
    assert suited_kind("Conv+Relu") == "conv1x1"
    assert suited_kind("ConvTranspose") == "conv1x1"
    assert suited_kind("Gemm") == "avgpool"
