"""Distinct layers of models, and grids of layer shapes."""

from __future__ import annotations

import pytest

from boards import UNIT, resnet20, vpu
from framefit import InputError
from framefit.core.files import from_data
from framefit.core.model import configuration
from framefit.latency.subjects import GridSpec, distinct_layers, grid_models
from networks import NETWORKS


def spec(**layer) -> GridSpec:
    """A grid of one entry, as a file gives it."""
    return from_data({"layers": [layer]}, GridSpec, "grid.toml")


def test_equal_configurations_are_measured_once() -> None:
    """A layer's name has no part in it; all layers are accounted for, fused as the device does."""
    device, model = vpu(), resnet20()
    subjects, failed = distinct_layers(model, device.fusions, UNIT)
    grouped = model.grouped(device.fusions(model))
    assert not failed
    assert sorted(name for subject in subjects for name in subject.layers) == sorted(one.name for one in grouped.layers)
    assert len(subjects) == 17 < len(grouped.layers)
    for subject in subjects:
        alone = subject.model.grouped(device.fusions(subject.model))
        assert [layer.op for layer in alone.layers] == [subject.op]
        assert configuration(alone.nodes[0]) == subject.configuration


def test_a_grouped_model_is_taken_as_it_is() -> None:
    """Without a device's fusions, its own groups are its layers."""
    model = NETWORKS["plain"]()
    single, _ = distinct_layers(model, None, UNIT)
    assert all("+" not in subject.op for subject in single)


def test_what_cannot_stand_alone_is_named() -> None:
    """A shape that depends on the data, with the tensor's name."""
    subjects, failed = distinct_layers(NETWORKS["selecting"](), None, UNIT)
    assert subjects
    assert any("depends on the data" in one.reason for one in failed)
    assert all(one.layers and one.unit == UNIT for one in failed)


def test_a_grid_is_every_combination() -> None:
    """Shapes x channels x kernels x strides x activations."""
    models = list(
        grid_models(
            spec(op="Conv", shapes=[[1, 8, 16, 16], [1, 16, 8, 8]], channels=[8, 0], kernel=[1, 3], stride=[1, 2])
        )
    )
    assert len(models) == 2 * 2 * 2 * 2
    assert {model.outputs[0].shape for model in models} == {
        (1, channels, side, side) for channels, side in ((8, 16), (8, 8), (8, 4), (16, 8), (16, 4))
    }


@pytest.mark.parametrize(
    ("layer", "op"),
    [
        ({"op": "Conv", "shapes": [[1, 8, 9, 9]], "groups": [0], "kernel": [3], "activation": ["Relu"]}, "Conv+Relu"),
        ({"op": "Gemm", "shapes": [[2, 12]], "channels": [5]}, "Gemm"),
        ({"op": "MaxPool", "shapes": [[1, 8, 9, 9]], "kernel": [3], "stride": [2]}, "MaxPool"),
        ({"op": "Add", "shapes": [[3, 4]], "inputs": 2}, "Add"),
        ({"op": "Softmax", "shapes": [[1, 7, 5]]}, "Softmax"),
    ],
)
def test_grids_of_other_operators(layer: dict, op: str) -> None:
    """With parameters where they need them."""
    (model,) = grid_models(spec(**layer))
    assert "+".join(one.op for one in model.layers) == op


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"op": "Conv", "shapes": []}, "shapes must not be empty"),
        ({"op": "Conv", "shapes": [[1, 8, 0, 8]]}, "at least 1"),
        ({"op": "Conv", "shapes": [[1, 8, 8, 8]], "kernels": [3]}, "did you mean 'kernel'"),
        ({"op": "Conv", "shapes": [[1, 8, 8, 8]], "stride": [0]}, "stride must be numbers of at least 1"),
        ({"op": "Add", "shapes": [[2]], "inputs": 0}, "inputs must be at least 1"),
    ],
)
def test_a_wrong_grid_is_refused(layer: dict, message: str) -> None:
    """With the key and what is wrong."""
    with pytest.raises(InputError, match=message):
        spec(**layer)


@pytest.mark.parametrize("layer", [{"op": "Conv", "shapes": [[1, 8]]}, {"op": "Nonsense", "shapes": [[1, 8]]}])
def test_what_no_operator_takes_is_refused(layer: dict) -> None:
    """With the point of the grid."""
    with pytest.raises(InputError, match=f"no {layer['op']} of"):
        list(grid_models(spec(**layer)))
