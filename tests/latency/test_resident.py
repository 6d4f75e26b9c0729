"""Layers behind one that writes their input and before the auxiliary layer, where memory is shared."""

from __future__ import annotations

import numpy as np
import pytest

from fakes import FakeDevice, FakeHandle
from framefit import DeviceError
from framefit.core.latency_table import LatencyTable
from framefit.core.model import Model, configuration
from framefit.core.model.lowering import owners
from framefit.devices.device import allocate
from framefit.devices.device import random_inputs as inputs_of
from framefit.devices.ort import OrtDevice
from framefit.latency.campaign import Campaign
from framefit.latency.estimate import Estimator, attributed
from framefit.latency.subjects import Subject, distinct_layers
from networks import NETWORKS


class Additive(FakeDevice):
    """A launch takes 3000 ns, and each layer what it moves and multiplies."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        super().__init__(lambda label, _: self.taken[label])

    def compile(self, segment: Model, unit: str, label: str) -> FakeHandle:
        """Its duration is what its layers take."""
        self.taken[label] = 3000 + sum(layer_ns(segment, index) for index in range(len(segment.layers)))
        return super().compile(segment, unit, label)


class Evicting(Additive):
    """The first launch behind another one reads its constants from farther away, and takes 5000 ns more."""

    def __init__(self) -> None:
        super().__init__()
        self.more: dict[str, int] = {}
        self.latest = ""
        self._durations_ns = self._behind

    def compile(self, segment: Model, unit: str, label: str) -> FakeHandle:
        """Its constants are what another launch evicts."""
        self.more[label] = 5000 + sum(layer.parameter_bytes for layer in segment.layers)
        return super().compile(segment, unit, label)

    def _behind(self, label: str, _: int) -> int:
        again, self.latest = label == self.latest, label
        return self.taken[label] + (0 if again else self.more[label])


def layer_ns(model: Model, index: int) -> int:
    """Of the additive device."""
    layer = model.layers[index]
    moved = sum(tensor.bytes for tensor in (*layer.inputs, *layer.outputs))
    return 7000 + moved // 8 + layer.parameter_bytes // 4


def campaign(model: Model) -> Campaign:
    """Of a network's distinct layers, each operator one."""
    return Campaign(Additive(), "fake0", subjects(model), resident=True, repeats=5)


def subjects(model: Model) -> tuple[Subject, ...]:
    """Distinct layers."""
    return distinct_layers(model, None, "fake0")[0]


@pytest.mark.parametrize("method", ["regression", "auxiliary"])
def test_where_latencies_add_up_every_layer_is_estimated_exactly(method: str) -> None:
    """With constants or without, with one input or two; what a launch costs beside them is the overhead."""
    model = NETWORKS["inverted_residual"]()
    measured = campaign(model)
    assert measured.measure()
    table = measured.table(method)  # type: ignore[arg-type]
    assert table.overhead is not None
    assert table.overhead.intercept_ns == pytest.approx(3000, abs=3)
    truth = {
        (layer.op, str(configuration(nodes))): layer_ns(model, index)
        for index, (layer, nodes) in enumerate(zip(model.layers, model.nodes, strict=True))
    }
    assert len(table.entries) == len(truth)
    for entry in table.entries:
        assert entry.latency_ns == pytest.approx(truth[entry.op, str(entry.configuration)], abs=70)
        assert not entry.below_noise
    estimate = Estimator(table, "fake0").estimate(model)
    whole = 3000 + sum(layer_ns(model, index) for index in range(len(model.layers)))
    assert estimate.total_ns == pytest.approx(whole, rel=0.005)


def test_what_evictions_cost_a_layer_is_not_what_they_cost_a_launch() -> None:
    """Of the first launch behind others, the layer's own constants only; repeated launches are as without it."""
    model = NETWORKS["inverted_residual"]()
    measured = Campaign(Evicting(), "fake0", subjects(model), resident=True, repeats=5)
    assert measured.measure()
    bytes_of = {
        (layer.op, str(configuration(nodes))): layer.parameter_bytes
        for layer, nodes in zip(model.layers, model.nodes, strict=True)
    }
    for entry, alone in zip(measured.table("auxiliary").entries, _table_of(model).entries, strict=True):
        assert entry.latency_ns == alone.latency_ns
        assert entry.in_turn_ns is not None
        evicted_ns = entry.in_turn_ns - entry.latency_ns
        assert evicted_ns == pytest.approx(bytes_of[entry.op, str(entry.configuration)], abs=70)


def _table_of(model: Model) -> LatencyTable:
    measured = campaign(model)
    assert measured.measure()
    return measured.table("auxiliary")


def test_a_campaign_that_is_stopped_at_once_says_what_is_missing() -> None:
    """No entry, and every layer with the reason."""
    model = NETWORKS["plain"]()
    measured = campaign(model)
    assert not measured.measure(stop=lambda: True)
    table = measured.table()
    assert not table.entries
    assert len(table.unmeasured) == len(subjects(model))


def test_nothing_to_measure_is_an_error() -> None:
    """Not an empty table."""
    with pytest.raises(DeviceError, match="no layer can be measured"):
        Campaign(Additive(), "fake0", [], resident=True)


@pytest.mark.parametrize("name", ["residual", "inverted_residual", "unet", "attention", "split_channels"])
def test_what_the_runtime_made_of_a_network_computes_the_same(name: str) -> None:
    """Compiled as it is; every tensor in it has a shape, and each of its layers can be measured."""
    model, device = NETWORKS[name](), OrtDevice()
    lowered = device.lowered(model)
    assert all(tensor.fixed for layer in lowered.layers for tensor in layer.outputs)
    assert device.lowered(lowered) is lowered
    assert distinct_layers(lowered, None, "cpu")[1] == ()
    for whole, made in zip(launched(device, model), launched(device, lowered), strict=True):
        np.testing.assert_allclose(whole, made, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["residual", "inverted_residual", "unet", "dense_block", "attention", "lstm"])
def test_the_runtimes_operators_are_attributed_to_the_users_layers(name: str) -> None:
    """Nothing is lost: the layers add up to the same."""
    model, device = NETWORKS[name](), OrtDevice()
    lowered = device.lowered(model)
    measured = campaign(lowered)
    measured.measure()
    found = Estimator(measured.table(), "fake0").estimate(lowered)
    told = attributed(model, owners(model, lowered), found)
    assert [layer.name for layer in told.layers] == [layer.name for layer in model.layers]
    assert sum(layer.latency_ns for layer in told.layers) == sum(layer.latency_ns for layer in found.layers)
    assert told.total_ns == found.total_ns


def launched(device: OrtDevice, model: Model) -> list[np.ndarray]:
    """Outputs for inputs that are the same at every call."""
    arrays = {tensor.name: allocate(tensor) for tensor in (*model.inputs, *model.outputs)}
    for name, values in inputs_of(model.inputs, np.random.default_rng(0)).items():
        arrays[name][...] = values
    device.submit(device.compile(model, device.target.units[0].name, model.name).bind(arrays))
    return [arrays[tensor.name] for tensor in model.outputs]
