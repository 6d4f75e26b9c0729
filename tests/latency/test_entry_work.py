"""Configurations read back as work."""

from __future__ import annotations

import pytest
from simulated import fused

from framefit import InputError, resolve_target
from framefit.core.model import Model, configuration
from framefit.core.model.builtin import BUILTIN
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.npu.work import LayerWork, layer_work
from framefit.latency.calibrate import entry_work, op_class, work_bytes, work_operations
from networks import NETWORKS

MODELS = [*NETWORKS.values(), *(lambda make=make: make(0) for make in BUILTIN.values())]


def works(model: Model) -> list[tuple[LayerWork, LayerWork]]:
    """Each layer's work from the model, and from nothing but its configuration."""
    return [
        (layer_work(layer, nodes), entry_work(layer.op, configuration(nodes)))
        for layer, nodes in zip(model.layers, model.nodes, strict=True)
    ]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("fuse", [False, True])
def test_a_configuration_costs_what_its_layer_costs(make: object, fuse: bool) -> None:
    """For layers alone and fused, on a target that takes float: cycles of the layer and of its configuration agree."""
    model = make()  # type: ignore[operator]
    model = fused(model) if fuse else model
    cycles = CycleModel(resolve_target("gpu"))
    for layer, (expected, found) in zip(model.layers, works(model), strict=True):
        if any(node in layer.op for node in ("If", "Loop")):
            continue  # bodies are not read back
        both = cycles.evaluate(cycles.table([expected, found]), 0.0).cycles
        assert both[0] == both[1], (layer.op, expected, found)


def test_shapes_that_depend_on_data_are_unknown() -> None:
    """A configuration without sizes says so, instead of pricing nothing."""
    work = entry_work("NonZero", {"inputs": ["1x4 float32"], "weights": [], "outputs": ["? int64"], "fused": []})
    assert work.method == "unknown"


@pytest.mark.parametrize(("op", "shape"), [("Conv", "1x..x8x8 float32"), ("Conv", "1 float32"), ("LSTM", "1 float32")])
def test_what_is_no_layer_is_refused(op: str, shape: str) -> None:
    """With its operator; a table that was changed by hand prices nothing wrongly."""
    configuration = {"inputs": [shape], "weights": [shape], "outputs": ["1x8x8x8 float32"], "fused": []}
    with pytest.raises(InputError, match="no layer has this configuration"):
        entry_work(op, configuration)


def test_classes_of_operators() -> None:
    """Convolutions differ by their kernel, other layers by their operator."""
    model = fused(NETWORKS["inverted_residual"]())
    found = {op_class(work) for work, _ in works(model)}
    assert {"Conv 3x3", "Conv 1x1", "Conv depthwise", "GlobalAveragePool"} <= found


def test_operations_and_bytes() -> None:
    """A 3 x 3 convolution of 2 to 4 channels on 8 x 8 float."""
    work = entry_work(
        "Conv+Relu",
        {
            "inputs": ["1x2x8x8 float32"],
            "weights": ["4x2x3x3 float32", "4 float32"],
            "outputs": ["1x4x8x8 float32"],
            "precision": "float32",
            "fused": ["Relu"],
            "kernel": [3, 3],
        },
    )
    assert work_operations(work) == 4 * 64 * 18
    assert work_bytes(work) == (4 * (128 + 256), 4 * (72 + 4))
