"""The cycle model beside SCALE-Sim and ZigZag, on stored runs of theirs (``benchmarks/oracles``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from framefit import GraphBuilder, Model
from framefit.core.run_record import LayerCycles
from framefit.core.target import Target, load_target
from framefit.devices.npu.cycles import CycleModel

ORACLES = Path(__file__).parent / "oracles"
SCALESIM = msgspec.json.decode((ORACLES / "scalesim.json").read_bytes())
ZIGZAG = msgspec.json.decode((ORACLES / "zigzag.json").read_bytes())


def network(dims: dict[str, int]) -> Model:
    """One convolution of the stored sizes."""
    b = GraphBuilder("layer")
    x = b.input("x", (dims["n"], dims["c"], dims["h"], dims["w"]))
    pads = [dims["padding"]] * 4
    weights = b.weight((dims["k"], dims["c"] // dims["groups"], dims["kernel"], dims["kernel"]), 1)
    y = b.op("Conv", x, weights, group=dims["groups"], strides=[dims["stride"]] * 2, pads=pads)
    b.output(y)
    return b.build()


def priced(target: Target, stored: dict[str, Any]) -> LayerCycles:
    """What the model says of a stored layer."""
    (found,) = CycleModel(target).layers(network(stored["dims"]))
    assert found.macs == stored["macs"]
    return found


def scalesim(array: dict[str, Any]) -> Target:
    """The array that was simulated."""
    target = load_target(ORACLES / "scalesim.toml")
    processor = msgspec.structs.replace(target.processor, array_rows=array["rows"], array_columns=array["columns"])
    return msgspec.structs.replace(target, processor=processor)


def zigzag(architecture: dict[str, Any]) -> Target:
    """The accelerator that was evaluated."""
    target = load_target(ORACLES / "zigzag.toml")
    return msgspec.structs.replace(
        target, cache=msgspec.structs.replace(target.cache, size_kib=architecture["sram_kib"])
    )


@pytest.mark.parametrize("array", SCALESIM["arrays"], ids=lambda array: f"{array['rows']}x{array['columns']}")
def test_within_15_percent_of_scale_sim(array: dict[str, Any]) -> None:
    """All 20 layers are bound by the array there, and cost the same within 15 %."""
    target = scalesim(array)
    assert len(array["layers"]) == 20
    for layer in array["layers"]:
        assert layer["stall_cycles"] == 0
        found = priced(target, layer)
        assert found.bound == "compute"
        assert found.cycles == pytest.approx(layer["cycles"], rel=0.15), layer["name"]


@pytest.mark.parametrize("array", SCALESIM["arrays"], ids=lambda array: f"{array['rows']}x{array['columns']}")
def test_utilisation_is_scale_sim_s(array: dict[str, Any]) -> None:
    """High for deep dense convolutions; low for few channels, small maps and depthwise layers, as SCALE-Sim has it."""
    target = scalesim(array)
    found = {layer["name"]: (priced(target, layer).utilisation_ratio, layer) for layer in array["layers"]}
    for name, (ratio, layer) in found.items():
        assert ratio == pytest.approx(layer["utilisation_ratio"], abs=0.02), name
    assert found["conv_3x3_c128"][0] > 0.9
    assert found["conv_3x3_c8"][0] < 0.5
    assert found["conv_1x1_m7"][0] < 0.6
    assert found["depthwise_3x3_c192"][0] < 0.05


@pytest.mark.parametrize("architecture", ZIGZAG["architectures"], ids=lambda one: f"{one['sram_kib']} KiB")
@pytest.mark.parametrize("dense", [False, True], ids=["all layers", "dense layers"])
def test_half_the_error_of_macs_against_zigzag(architecture: dict[str, Any], dense: bool) -> None:
    """Mean absolute log error at most half of that of MACs x their best constant, also without depthwise layers."""
    layers = [layer for layer in architecture["layers"] if not dense or layer["dims"]["groups"] < 32]
    assert len(layers) >= 16
    target = zigzag(architecture)
    reference = np.log([layer["cycles"] for layer in layers])
    macs = np.log([layer["macs"] for layer in layers])
    of_macs = np.abs(macs - reference - np.median(macs - reference)).mean()
    own = np.abs(np.log([priced(target, layer).cycles for layer in layers]) - reference).mean()
    assert own <= 0.5 * of_macs
    bounds = {priced(target, layer).bound for layer in layers}
    assert len(bounds) > 1, "some are bound by the array, others by memory"
