"""Fusions found by measuring agree with what the device says of itself."""

from __future__ import annotations

import pytest

from boards import NOISE, UNIT, resnet20, vpu
from framefit import GraphBuilder, Model
from framefit.core.target import Variation
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.device import NpuDevice
from framefit.latency.fusion import known_groups, measured_fusions, recorded
from framefit.latency.measure import measure


def network() -> Model:
    """Convolutions with normalisation and activation, a pool, and a residual sum."""
    b = GraphBuilder("block")
    x = b.conv(b.input("x", (1, 16, 32, 32)), 32, norm=True, activation="Relu")
    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    y = b.conv(x, 32, norm=True)
    b.output(b.op("Relu", b.op("Add", y, x)))
    return b.build()


@pytest.mark.parametrize(("variation", "repeats"), [(Variation(), 5), (NOISE, 1000)])
def test_the_devices_own_groups_are_found(variation: Variation, repeats: int) -> None:
    """Chains link by link; what stays apart gains nothing."""
    device, model = vpu(variation, name="meteor-lake"), network()  # a layer of its own costs more than noise
    pairs = measured_fusions(device, UNIT, model, repeats=repeats)
    found = model.grouped(pair.nodes for pair in pairs if pair.fused)
    told = model.grouped(device.fusions(model))
    assert [layer.nodes for layer in found.layers] == [layer.nodes for layer in told.layers]
    apart = [pair for pair in pairs if not pair.fused]
    assert apart
    if not variation.sigma_ratio:
        assert all(abs(pair.gain_ns) < 20 for pair in apart)


def test_gains_below_the_noise_are_decided_together() -> None:
    """An activation saves 120 ns of a launch of 110 us: no pair shows that by itself, all of its kind do."""
    device, model = vpu(NOISE, seed=1), resnet20()
    pairs = measured_fusions(device, UNIT, model, repeats=1000)
    groups = known_groups(model, recorded(model, pairs))
    found, told = (sum(device.layers_ns(model.grouped(by), UNIT)) for by in (groups, device.fusions(model)))
    assert found == pytest.approx(told, rel=0.01)
    assert sum(device.layers_ns(model, UNIT)) > 1.1 * told


def test_the_whole_network_tells_when_fusions_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that add up to more than the network takes are warned of; with all fusions nothing is said."""
    board = vpu(NOISE, seed=1, name="meteor-lake")
    whole = measure(network(), target=board, fusions="measured", audit="none", repeats=1000)
    assert not any("add up to" in warning for warning in whole.warnings)
    monkeypatch.setattr("framefit.latency.measure.measured_fusions", lambda *_, **__: ())
    apart = measure(network(), target=vpu(NOISE, seed=1, name="meteor-lake"), fusions="measured", audit="none")
    assert any("block: its layers, with the fusions that were found, add up to" in one for one in apart.warnings)


def test_a_device_that_fuses_nothing_has_no_groups() -> None:
    """Each node stays a layer."""

    class Apart(NpuDevice):
        """Runs every node by itself."""

        def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:  # noqa: ARG002 - of whatever
            return ()

    board = vpu(NOISE)
    device = Apart(board.target, board.clock, layer_times(board.target))
    assert not [pair for pair in measured_fusions(device, UNIT, network(), repeats=500) if pair.fused]


def test_it_can_be_stopped() -> None:
    """Nothing is claimed of what was not measured."""
    assert measured_fusions(vpu(), UNIT, network(), stop=lambda: True) == ()


def test_a_table_groups_other_models_as_it_was_measured() -> None:
    """What was found is kept by configuration: chains come back link by link, also in a model under other names."""
    device, model = vpu(), network()
    fusions = recorded(model, measured_fusions(device, UNIT, model, repeats=5))
    assert any(one.apart for one in fusions)
    expected = [layer.nodes for layer in model.grouped(device.fusions(model)).layers]
    assert [layer.nodes for layer in model.grouped(known_groups(model, fusions)).layers] == expected
    assert known_groups(model, ()) == ()
    b = GraphBuilder("other")
    x = b.op("MaxPool", b.input("y", (1, 16, 32, 32)), kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    b.output(b.conv(x, 32, norm=True, activation="Relu"))
    other = b.build()
    assert [len(group.nodes) for group in other.grouped(known_groups(other, fusions)).layers] == [1, 3]


def test_what_is_known_is_not_tried_again() -> None:
    """Neither what runs as one nor what runs apart; what was never tried still is."""
    device, model = vpu(name="meteor-lake"), network()
    fusions = recorded(model, measured_fusions(device, UNIT, model, repeats=5))
    assert measured_fusions(device, UNIT, model, known=fusions, repeats=5) == ()
    forgotten = next(one for one in fusions if not one.apart and one.op.count("+") == 1)
    rest = [one for one in fusions if one != forgotten]
    again = measured_fusions(device, UNIT, model, known=rest, repeats=5)
    assert recorded(model, again) == (forgotten,)
