"""What trees cost on a described accelerator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from targets import described, only

from framefit import InputError
from framefit.core.model import rebatched
from framefit.core.target import Memory, Unit
from framefit.core.trees import operations, tree_layers
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.npu.device import NpuDevice
from framefit.devices.npu.work import model_work
from framefit.devices.pieces import HostDevice
from framefit.testing import arrays_for
from trees_cases import hybrid


def test_trees_are_element_operations() -> None:
    """Comparisons, selections and additions, and the trees' own bytes; no products."""
    model, _, ensemble = hybrid()
    work = model_work(model)[only(tree_layers(model))]
    assert (work.method, work.products) == ("elements", ())
    assert (work.elements, work.constants) == (operations(ensemble), ensemble.bytes)
    assert (work.reads, work.writes) == (((512, "float32"),), ((512, "float32"),))


def test_a_batch_costs_its_examples() -> None:
    """Three examples at once are three times the operations; the trees are read once."""
    model, _, ensemble = hybrid()
    work = model_work(rebatched(model, 3))[only(tree_layers(model))]
    assert (work.elements, work.constants) == (3 * operations(ensemble), ensemble.bytes)


def test_without_multipliers() -> None:
    """Lanes that only compare, select and add run trees at their width, while products take a lane each."""
    model, network, ensemble = hybrid()
    target = described(macs_per_cycle={}, vector_lanes=32)
    costs = CycleModel(target).layers(model)
    trees = costs[only(tree_layers(model))]
    assert trees.cycles == -(-operations(ensemble) // 32)
    replaced = sum(layer.cycles for layer in CycleModel(target).layers(network)[3:6])
    assert replaced >= 2 * 8 * 8 * 9 * 64 // 32
    assert trees.cycles < replaced


def test_leaves_come_from_memory() -> None:
    """Where memory is slow, reading the trees is what binds."""
    model, _, ensemble = hybrid()
    slow = Memory(name="ddr", type="ddr", read_bus_bits=8, write_bus_bits=64, derating_ratio=1.0)
    trees = CycleModel(described(memory=(slow,), vector_lanes=1024)).layers(model)[only(tree_layers(model))]
    assert trees.bound == "ddr read"
    assert trees.bytes_read >= ensemble.bytes


def test_a_unit_for_trees_alone() -> None:
    """A unit that runs nothing but trees refuses a convolution by name."""
    model, *_ = hybrid()
    target = described(units=(Unit(name="trees", operators=("Trees",)),))
    place = only(tree_layers(model))
    assert only(CycleModel(target).layers(model.segment(place, place))).cycles > 0
    with pytest.raises(InputError, match=r"'trees' .*does not support Conv"):
        CycleModel(target).layers(model)


def test_computed_beside_the_model(tmp_path: Path) -> None:
    """A described device leaves the trees to kernels, and takes the time that its description says."""
    model, *_ = hybrid()
    host, target = HostDevice(cache=tmp_path), described(units=(Unit(name="npu"),))
    device = NpuDevice(target, VirtualClock(), layer_times(target), computer=host)
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    found = []
    for one, unit in ((device, "npu"), (host, host.target.units[0].name)):
        arrays = arrays_for(model) | {"image": image}
        done = one.submit(one.compile(model, unit, "net").bind(arrays))
        found.append((done, arrays["pooled"]))
    np.testing.assert_array_equal(found[0][1], found[1][1])
    layers = device.layers_ns(model.grouped(device.fusions(model)), "npu")
    assert found[0][0].duration_ns == sum(layers)
