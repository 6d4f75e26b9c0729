"""``framefit.measure`` with an audit: which networks, what it makes of the table, and when it is left out."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import framefit
from framefit import InputError, Model, calibrate, measure
from framefit.core.latency_table import AuditedNetwork, LatencyTable, merged, read_table
from framefit.core.target import Variation, resolve_target
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Completion
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.device import NpuDevice
from framefit.latency import audit
from framefit.latency import measure as measuring
from framefit.latency.audit import stored_correction
from framefit.latency.subjects import GridSpec, LayerGrid
from networks import NETWORKS

UNIT = "vpu0"
NAMES = ("plain", "residual", "inverted_residual", "unet", "dense_block")
GRID = GridSpec(layers=(LayerGrid(op="Relu", shapes=tuple((1, 8, side, side) for side in range(8, 40, 2))),))


def board(*, overlapping: bool = False) -> NpuDevice:
    """A VPU without noise; overlapping: networks take 0.7 of the sum of their layers, which no layer shows."""
    target = msgspec.structs.replace(resolve_target("vpu"), variation=Variation())
    exact = layer_times(target)

    def times(model: Model, unit: str) -> list[int]:
        found = exact(model, unit)
        return [round(0.7 * ns) for ns in found] if overlapping and len(found) > 4 else list(found)

    return NpuDevice(target, VirtualClock(), times)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], tuple[Model, ...]]:
    """Small networks stand for the built-in ones."""

    def networks(seed: int = 0) -> tuple[Model, ...]:
        return tuple(NETWORKS[name]() for name in NAMES)

    monkeypatch.setattr(measuring, "audit_networks", networks)
    monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path / "cache"))
    return networks


def test_a_model_is_audited_by_default(few: object, tmp_path: Path) -> None:
    """The correction and the networks are in the table and its file, with entries of the model's layers alone."""
    path = tmp_path / "t.table.json"
    table = measure(NETWORKS["attention"](), target=board(), repeats=5, output=path)
    assert table.audit is not None
    assert table.correction == table.audit.correction
    assert [one.name for one in table.audit.networks] == [*NAMES, "attention"]
    assert read_table(path) == table
    without = measure(NETWORKS["attention"](), target=board(), audit="none", repeats=5)
    assert (without.audit, without.correction) == (None, None)
    assert len(without.entries) == len(table.entries)


def test_what_is_additive_is_not_corrected(few: object) -> None:
    """On a described device the sum is exact: plain sum and estimate agree."""
    table = measure(NETWORKS["attention"](), target=board(), repeats=5)
    assert table.audit is not None
    assert table.audit.terms == ()
    assert table.audit.plain_error_ratio < 0.01


def test_what_is_not_additive_is_corrected_for_other_networks(few: object) -> None:
    """A network that was not audited is told within 2 %; its plain sum would be 40 % off."""
    device = board(overlapping=True)
    model = NETWORKS["attention"]()
    table = measure(model, target=device, repeats=5)
    assert table.correction is not None
    assert table.correction.class_factors["convolution"] == pytest.approx(0.7, abs=0.05)
    found = framefit.estimate(model, table, any_fingerprint=True)
    assert found.total_ns == found.measured_ns
    truth = sum(device.layers_ns(model.grouped(device.fusions(model)), "vpu0"))
    assert found.predicted_ns - found.overhead_ns == pytest.approx(truth, rel=0.02)
    assert found.plain_sum_ns > 1.3 * truth


def test_a_measured_model_is_audited_but_its_estimate_stays_a_prediction(few: object) -> None:
    """Its whole time is kept, corrects other networks, and is left out of its own estimate."""
    own, device = NETWORKS["unet"](), board(overlapping=True)
    named = [own, *(NETWORKS[name]() for name in ("plain", "residual", "inverted_residual"))]
    table = measure(own, target=device, audit=named, repeats=5)
    assert table.audit is not None
    rows = {one.name: one for one in table.audit.networks}
    assert len(rows) == len(table.audit.networks) == 4
    assert framefit.estimate(own, table, any_fingerprint=True).total_ns == pytest.approx(
        rows["unet"].left_out_ns, abs=2
    )
    assert rows["unet"].left_out_ns != rows["unet"].corrected_ns


def test_no_time_for_an_audit_is_said(few: object) -> None:
    """The layers are measured all the same."""
    table = measure(NETWORKS["plain"](), target=board(), repeats=100, max_seconds=0.3)
    assert table.entries
    assert table.audit is None
    assert any(warning.startswith("not audited: with 5 whole networks") for warning in table.warnings)
    longer = measure(NETWORKS["plain"](), target=board(), repeats=20, max_seconds=60)
    assert longer.audit is not None


def test_networks_that_cannot_be_estimated_are_named() -> None:
    """With fewer than 3 left there is no correction, and the warning says which layer is missing."""
    table = measure(NETWORKS["plain"](), target=board(), audit="none", repeats=5)
    measured = [(NETWORKS[name]().grouped(()), 200_000.0) for name in ("unet", "lstm")]
    found = audit.with_audit(table, measured, "vpu0")
    assert found.correction is None
    (warning,) = found.warnings
    assert "unet: layer " in warning
    assert "lstm: layer " in warning


@pytest.mark.parametrize(
    ("audit", "message"),
    [
        (["detector"], "needs at least 3 networks, 1 are named"),
        (["none", "detector"], "audit has 'none' beside"),
        (["absent.onnx"], "absent.onnx"),
    ],
)
def test_an_audit_that_cannot_be_is_refused(audit: list[str], message: str) -> None:
    """Before anything is measured."""
    with pytest.raises(InputError, match=message):
        measure(NETWORKS["plain"](), target="vpu", audit=audit)


def test_of_a_grid_so_many_shapes_as_asked() -> None:
    """A grid alone is not audited; without a limit all of it is measured."""
    table = measure(grid=GRID, max_shapes=9, target=board(), repeats=5)
    assert (len(table.entries), table.audit) == (9, None)
    assert len(measure(grid=GRID, target=board(), repeats=5).entries) == 16
    assert len(measure(grid=GRID, max_shapes=100, target=board(), repeats=5).entries) == 16
    some = measure(grid=GRID, target=board(), repeats=100, max_seconds=0.8)
    assert 6 <= len(some.entries) < 16
    with pytest.raises(InputError, match="max_shapes chooses from a grid"):
        measure(NETWORKS["plain"](), target=board(), max_shapes=3)


def test_repeats_are_as_many_as_asked_or_as_needed() -> None:
    """A number is kept; without one layers that are known stop at 100, the others go on."""
    asked = measure(NETWORKS["plain"](), target="vpu", repeats=20, audit="none")
    assert {len(entry.samples_ns) for entry in asked.entries} == {20}
    assert asked.settings["repeats"] == 20
    found: LatencyTable = measure(NETWORKS["plain"](), target="vpu", audit="none", max_seconds=4)
    counts = {len(entry.samples_ns) for entry in found.entries}
    assert min(counts) >= 100
    assert max(counts) > 100
    assert found.settings["repeats"] == "auto"
    (wide,) = [warning for warning in found.warnings if "known neither to 2.5 %" in warning]
    layers = {layer.name for layer in NETWORKS["plain"]().grouped(board().fusions(NETWORKS["plain"]())).layers}
    named = wide.split("1 %: ")[1].split(": allow")[0].split(" and ")[0].split(", ")
    assert set(named) <= layers
    assert len(named) == len(set(named)) == min(int(wide.split()[0]), 5)


def test_the_built_in_networks_differ() -> None:
    """From 12 layers to more than 100; seven have 5 to 40 MB of weights, at most 1 MiB in each layer."""
    models = audit.audit_networks()
    device = board()
    grouped = [model.grouped(device.fusions(model)) for model in models]
    counts = [len(model.layers) for model in grouped]
    assert len({model.name for model in models}) == len(models) == 14
    assert min(counts) < 15
    assert max(counts) > 100
    large = [model for model in grouped if "large" in model.name]
    assert len(large) == 7
    for model in large:
        weights = [layer.parameter_bytes for layer in model.layers]
        assert 5e6 < sum(weights) < 40e6
        assert max(weights) < 1 << 20


class Machine:
    """A board that is a real one as far as anyone can tell: its clock jumps, but it is not a simulation.

    Attributes:
        speed: from the time in ns to how many times as long launches take.
        excess: how many times as long networks take, beside their layers alone.
        in_turn: how many times as long a network's launch takes behind one of another model.
    """

    def __init__(self) -> None:
        self._inner = board()
        self.speed: Callable[[int], float] = lambda now_ns: 1.0  # noqa: ARG005
        self.excess, self.in_turn = 1.0, 1.0
        self._latest: object = None
        self.capabilities = dataclasses.replace(self._inner.capabilities, simulated=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compile(self, segment: Model, unit: str, label: str) -> Any:
        """As the device does; networks are told from layers by their size."""
        inner, network = self._inner.compile(segment, unit, label), len(segment.nodes) > 8
        return SimpleNamespace(bind=lambda tensors: (inner.bind(tensors), network))

    def submit(self, binding: Any) -> Completion:
        """Launch, and wait for as long as it takes more."""
        inner, network = binding
        done = self._inner.submit(inner)
        beyond_ns = (self.excess - 1) * (done.duration_ns - self._inner.target.host.inference_ns) if network else 0.0
        factor = self.speed(done.started_ns) * (self.in_turn if network and inner is not self._latest else 1.0)
        self._latest = inner
        finished_ns = done.started_ns + round(factor * (done.duration_ns + beyond_ns))
        self._inner.clock.sleep_until_ns(finished_ns)
        return Completion(done.started_ns, finished_ns)


def test_a_calibration_is_stored_and_used(few: object) -> None:
    """A later table has no network measured beside its model, and the correction of the day before."""
    machine = Machine()
    machine.excess = 1.2
    correction = calibrate(target=machine, repeats=10)
    assert correction.refused == ()
    assert correction.audit is not None
    assert correction.audit.correction.class_factors["convolution"] == pytest.approx(1.2, rel=0.05)
    assert correction.date.endswith("+00:00")
    model = NETWORKS["attention"]()
    table = measure(model, target=machine, repeats=10)
    assert table.audit is not None
    assert [one.name for one in table.audit.networks] == [*NAMES, "attention"]
    assert {run.digest for run in table.runs if run.role == "network"} == {model.digest}
    assert not any("calibra" in warning for warning in table.warnings)
    assert stored_correction(machine, UNIT) == correction


def test_a_calibration_that_is_stopped_stores_nothing(few: object) -> None:
    """Not even by the networks that were measured by then."""
    machine, calls = Machine(), itertools.count()
    refused = calibrate(target=machine, repeats=50, stop=lambda: next(calls) > 1000).refused
    assert "ended before all networks were measured" in refused[0]
    assert stored_correction(machine, UNIT) is None


def test_a_measurement_stores_the_correction_that_it_lacks(few: object) -> None:
    """The networks are measured once; the model itself is not among those that are stored."""
    machine = Machine()
    first = measure(NETWORKS["attention"](), target=machine, repeats=10)
    second = measure(NETWORKS["lstm"](), target=machine, repeats=10)
    assert first.audit is not None
    assert [one.name for one in first.audit.networks] == [*NAMES, "attention"]
    assert sum(run.role == "network" for run in second.runs) == 1
    assert second.audit is not None
    assert [one.name for one in second.audit.networks] == [*NAMES, "lstm"]


def test_two_launches_show_that_a_device_has_changed(few: object) -> None:
    """Slower in all alike, the correction stays and a warning names it; networks alone, it is made anew."""
    machine = Machine()
    before = calibrate(target=machine, repeats=10)
    machine.speed = lambda now_ns: 1.5  # noqa: ARG005
    slower = measure(NETWORKS["attention"](), target=machine, repeats=10)
    assert sum(run.role == "network" for run in slower.runs) == 1
    assert any(f"1.50 times as long as during the calibration of {before.date}" in text for text in slower.warnings)
    machine.speed, machine.excess = lambda now_ns: 1.0, 1.5  # noqa: ARG005
    other = measure(NETWORKS["attention"](), target=machine, repeats=10)
    assert stored_correction(machine, UNIT).launches_ns != before.launches_ns
    assert any("the stored correction is not applied" in text for text in other.warnings)


def test_a_calibration_at_another_speed_is_refused(few: object) -> None:
    """Nothing is replaced; with force it is."""
    machine = Machine()
    first = calibrate(target=machine, repeats=10)
    machine.speed = lambda now_ns: 1.3  # noqa: ARG005
    refused = calibrate(target=machine, repeats=10)
    assert "the reference launch takes 1.30 times as long" in refused.refused[0]
    assert refused.earlier == first.date
    assert stored_correction(machine, UNIT) == first
    assert calibrate(target=machine, repeats=10, force=True).refused == ()


def test_slow_rounds_are_repeated_or_refused(few: object) -> None:
    """Eight of twenty rounds that something slows down are measured again; where it goes on, nothing is stored."""
    machine = Machine()
    begun_ns = machine.clock.now_ns()
    calibrate(target=machine, repeats=100)
    took_ns = machine.clock.now_ns() - begun_ns
    ends_ns = machine.clock.now_ns() + 0.5 * took_ns
    machine.speed = lambda now_ns: 1.6 if now_ns < ends_ns else 1.0
    repeated = calibrate(target=machine, repeats=100)
    assert any(re.match(r"\d+ of 20 rounds were slow and were measured again", text) for text in repeated.warnings)
    assert repeated.refused == ()
    slow_ns = machine.clock.now_ns() + 0.3 * took_ns
    machine.speed = lambda now_ns: 1.6 if now_ns > slow_ns else 1.0
    refused = calibrate(target=machine, repeats=100)
    assert any("rounds were slow, after 3 attempts, too" in text for text in refused.refused)
    assert stored_correction(machine, UNIT) == repeated


def test_a_correction_that_leaves_too_great_an_error_is_not_applied(few: object) -> None:
    """Networks that have nothing in common: the sum stands, and the table says why."""
    machine = Machine()
    random = np.random.default_rng(0)
    models = [network() for network in NETWORKS.values()]
    plain = measure(models[0], target=machine, audit="none", repeats=5)
    assert plain.correction is None
    rows = [
        AuditedNetwork(
            name=str(place), measured_ns=round(1e6 * random.uniform(0.4, 3)), plain_sum_ns=10**6, overhead_ns=0,
            class_ns={"convolution": 1e6}, nodes=10, digest=str(place),
        )
        for place in range(6)
    ]  # fmt: skip
    found = audit.with_audit(plain, [], UNIT, rows)
    assert (found.correction, found.audit) == (None, None)
    assert "not corrected: networks left out of the fit differ by" in found.warnings[-1]
    calibrated = [msgspec.structs.replace(row, measured_ns=1_200_000, digest=f"calibrated {row.name}") for row in rows]
    odd = [(models[0].grouped(machine.fusions(models[0])), 50e6)]
    kept = audit.with_audit(plain, odd, UNIT, calibrated)
    assert kept.audit is not None
    assert [row.digest for row in kept.audit.networks] == [row.digest for row in calibrated]
    assert "by the calibration alone corrected" in kept.warnings[-1]


def test_what_was_measured_whole_is_stated_beside_the_prediction(few: object) -> None:
    """Behind itself and in turn with others; its layers and the rest are all of it, and a merged table keeps it."""
    machine = Machine()
    machine.excess, machine.in_turn = 1.2, 1.1
    model = NETWORKS["attention"]()
    table = measure(model, target=machine, repeats=25)
    estimate = framefit.estimate(model, merged([table]), any_fingerprint=True)
    assert estimate.total_ns == estimate.measured_ns == table.networks[0].alone_ns
    assert estimate.measured_in_turn_ns == pytest.approx(1.1 * estimate.total_ns, rel=0.01)
    assert estimate.predicted_ns == pytest.approx(estimate.total_ns, rel=0.05)
    assert sum(layer.latency_ns for layer in estimate.layers) + estimate.rest_ns == estimate.total_ns
    assert estimate.rest_ns == pytest.approx(estimate.overhead_ns, abs=len(estimate.layers))
    assert any("caches as it left them" in note for note in estimate.notes)
    unmeasured = msgspec.structs.replace(table, networks=())
    other = framefit.estimate(model, unmeasured, any_fingerprint=True)
    assert (other.measured_ns, other.total_ns) == (None, other.predicted_ns)


@pytest.mark.usefixtures("few")
def test_a_calibration_without_time_says_how_long_it_takes() -> None:
    """It does not begin, and says so."""
    with pytest.raises(InputError, match=r"with 5 whole networks measuring would take about .* s, but 0 s"):
        calibrate(target=board(), repeats=10, max_seconds=0)
