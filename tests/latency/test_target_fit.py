"""Descriptions of devices, fitted to tables."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from simulated import UNIT, fused, noisy_table, random_network, true_layers_ns, with_overhead

from framefit import InputError, Target, resolve_target
from framefit.core.files import write_record
from framefit.core.target import Memory, Processor, describe_target
from framefit.devices.npu.cycles import CycleModel
from framefit.latency.target_fit import fit_target

MEASURED = [random_network(seed) for seed in range(8)]
LEFT_OUT = [random_network(seed) for seed in range(8, 14)]


def hidden(memories: int) -> Target:
    """An accelerator that is none of the built-in ones."""
    target = resolve_target("dsp")
    processor = Processor(
        clock_mhz=620,
        macs_per_cycle=dict.fromkeys(("int8", "fp16", "fp32"), 180),
        channel_granule=8,
        vector_lanes=24,
        layer_cycles=900,
    )
    far = Memory(read_bandwidth_gbps=3.3, write_bandwidth_gbps=2.4, read_bus_bits=1024, write_bus_bits=1024)
    near = Memory(name="near", type="sram", size_mib=2, read_bandwidth_gbps=29, write_bandwidth_gbps=17,
                  read_bus_bits=1024, write_bus_bits=1024)  # fmt: skip
    return msgspec.structs.replace(target, processor=processor, memory=(far, near)[:memories])


@pytest.mark.parametrize("memories", [1, 2])
def test_layers_of_left_out_networks_take_as_long(memories: int, tmp_path: Path) -> None:
    """Of a device whose description nobody sees: 1 % in the median, and the file states its errors and intervals."""
    device = hidden(memories)
    table = with_overhead(noisy_table(MEASURED, device, np.random.default_rng(0)), 80_000)
    path = tmp_path / "board.toml"
    fitted = fit_target(table, path)
    assert resolve_target(path) == fitted
    assert len(fitted.memory) == memories
    known = {(entry.op, str(entry.configuration)) for entry in table.entries}
    fresh = noisy_table(LEFT_OUT, device, np.random.default_rng(1)).entries
    left_out = {str(entry.configuration) for entry in fresh if (entry.op, str(entry.configuration)) not in known}
    assert len(left_out) > 40
    off = []
    for model in map(fused, LEFT_OUT):
        layers = zip(CycleModel(fitted).layers(model), true_layers_ns(model, device), strict=True)
        off += [abs(layer.latency_ns / ns - 1) for layer, ns in layers if ns]
    assert np.median(off) < 0.01
    rate = re.search(r"bytes read in a ns: (\S+) \((\S+) to (\S+)\)", describe_target(path)[1])
    assert rate is not None
    value, low, high = map(float, rate.groups())
    assert low <= value <= high
    assert value == pytest.approx(5 * 0.62, rel=0.02)  # 3.3 GB/s are 5 whole bytes a cycle
    assert fitted.units[0].name == UNIT
    assert fitted.host.inference_ns == 80_000
    assert "layers that were left out of the fit: they differ by" in fitted.checked


def test_too_few_layers(tmp_path: Path) -> None:
    """A table of one small network does not describe a device."""
    table = noisy_table([random_network(3)], hidden(1), np.random.default_rng(0))
    write_record(tmp_path / "few.table.json", msgspec.structs.replace(table, entries=table.entries[:5]))
    with pytest.raises(InputError, match="5 layers of the table are known to 10 %, a fit needs 20"):
        fit_target(tmp_path / "few.table.json", tmp_path / "board.toml")
