"""Models with trees, in pieces: kernels, and ONNX Runtime for what lies between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from framefit import GraphBuilder, Model
from framefit.core.trees import Ensemble, Forest, TreeKind, ensembles_in, evaluate, tree_layers
from framefit.devices.ort import OrtDevice
from framefit.devices.pieces import HostDevice
from framefit.testing import DeviceConformance, arrays_for, small_network
from framefit.trees.exporting import Flavour, with_trees
from trees_cases import hybrid, random_inputs, stand_in


@pytest.fixture
def device(tmp_path: Path) -> HostDevice:
    """With a cache of its own."""
    return HostDevice(cache=tmp_path)


def results(device: OrtDevice, model: Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A model's outputs for one frame."""
    arrays = arrays_for(model) | feeds
    binding = device.compile(model, device.target.units[0].name, "net").bind(arrays)
    device.submit(binding)
    return {tensor.name: binding.output(tensor.name) for tensor in model.outputs}


def two_groups(random: np.random.Generator) -> tuple[Model, list[Ensemble]]:
    """Trees first, and trees at the end: with nothing between that rounds."""
    b = GraphBuilder("two", 1)
    x = b.input("x", (2, 6))
    for width in (5, 4):
        x = b.op("Neg", b.dense(x, width, activation="Relu"))
    b.output(b.dense(x, 3), "y")
    model = b.build()
    tensors = {t.name: t for layer in model.layers for t in (*layer.inputs, *layer.outputs)}
    ends = (("x", "Relu_1", "vote"), ("Neg_2", "y", "scalar"))
    made = [stand_in(random, tensors[source], tensors[result], kind=kind) for source, result, kind in ends]
    made = [Ensemble(**{n: getattr(e, n) for n in e.__struct_fields__} | {"name": f"g{i}"}) for i, e in enumerate(made)]
    return with_trees(model, Forest(model="two", ensembles=tuple(made))), made


class TestHostDevice(DeviceConformance):
    """It keeps the protocol with trees in the middle of a segment."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> HostDevice:
        """On the default core."""
        return HostDevice(cache=cache, trace_events=trace_events)

    def network(self) -> Model:
        """A convolution, trees, and a pooling."""
        return hybrid()[0]


@pytest.mark.parametrize("kind", ["vote", "scalar", "vector"])
def test_pieces_compute_what_they_are(device: HostDevice, kind: TreeKind) -> None:
    """Two frames in a row: what the runtime makes of the layers around, and the reference of the trees."""
    model, network, ensemble = hybrid(kind)
    runtime = OrtDevice(cache=device._cache)
    random = np.random.default_rng(0)
    for _ in range(2):
        image = random.standard_normal((1, 3, 8, 8)).astype(np.float32)
        read = results(runtime, network.segment(0, 2), {"image": image})[ensemble.input]
        end = network.segment(len(network.layers) - 2, len(network.layers) - 1)
        expected = results(runtime, end, {ensemble.output: evaluate(ensemble, read)})
        np.testing.assert_array_equal(results(device, model, {"image": image})["pooled"], expected["pooled"])


@pytest.mark.parametrize("flavour", ["core", "ml"])
@pytest.mark.parametrize("free", [False, True])
def test_equals_the_exported_file(device: HostDevice, tmp_path: Path, flavour: Flavour, free: bool) -> None:
    """Bit for bit what ONNX Runtime makes of the file, which knows nothing of kernels."""
    b = GraphBuilder("signs", 1)
    b.output(b.op("Neg", b.dense(b.op("Relu", b.input("x", (3, 7))), 5)), "y")
    network, random = b.build(), np.random.default_rng(2)
    ends = network.layers[0].outputs[0], network.layers[1].outputs[0]
    ensemble = stand_in(random, *ends, kind="vector", trees=9, free=free)
    with_trees(network, Forest(model="signs", ensembles=(ensemble,)), flavour).save(tmp_path / "signs.onnx")
    x = random_inputs(random, ensemble, 3)
    (expected,) = onnxruntime.InferenceSession(tmp_path / "signs.onnx").run(None, {"x": x})
    found = results(device, Model.load(tmp_path / "signs.onnx"), {"x": x})["y"]
    assert found.tobytes() == expected.tobytes()
    assert len(np.unique(found)) > 3


def test_trees_at_both_ends(device: HostDevice) -> None:
    """A segment may begin and end with trees, and consist of nothing else."""
    random = np.random.default_rng(4)
    model, (first, last) = two_groups(random)
    x = random_inputs(random, first, 2)
    found = results(device, model, {"x": x})["y"]
    steps = [model.segment(place, place) for place in range(len(model.layers))]
    for step in steps:
        x = results(device, step, {step.inputs[0].name: x})[step.outputs[0].name].copy()
    np.testing.assert_array_equal(found, x)
    assert [step.layers[0].op for step in steps][:: len(steps) - 1] == ["Trees", "Trees"]
    assert last.output == "y"


def test_trees_are_fused_with_nothing(device: HostDevice) -> None:
    """What ONNX Runtime fuses in front of the trees and behind them is told; none of it reaches across."""
    model, *_ = hybrid()
    names = [layer.name for layer in model.layers]
    trees = next(index for index, layer in enumerate(model.layers) if layer.op == "Trees")
    groups = device.fusions(model)
    last = len(model.layers) - 1
    assert groups == device.fusions(model.segment(0, trees - 1)) + device.fusions(model.segment(trees + 1, last))
    sides = [{names.index(node) < trees for node in group} for group in groups]
    assert sorted(map(sorted, sides)) == [[False], [True], [True]]


def test_without_trees_it_is_the_runtime(device: HostDevice) -> None:
    """The same layers, the same lowered graph and the same kind of handle."""
    model, runtime = small_network(), OrtDevice(cache=device._cache)
    unit = device.target.units[0].name
    assert device.fusions(model) == runtime.fusions(model)
    assert device.lowered(model).digest == runtime.lowered(model).digest
    assert type(device.compile(model, unit, "net")) is type(runtime.compile(model, unit, "net"))


def bypassed() -> Model:
    """A tensor goes past the trees, from one convolution to another."""
    b = GraphBuilder("bypassed", 1)
    x = b.conv(b.input("image", (1, 3, 8, 8)), 8, activation="Relu")
    y = b.conv(b.conv(x, 8, activation="Relu"), 8)
    b.output(b.op("GlobalAveragePool", b.conv(b.op("Add", x, y), 8)), "pooled")
    network = b.build()
    tensors = {tensor.name: tensor for layer in network.layers for tensor in layer.outputs}
    ensemble = stand_in(np.random.default_rng(5), tensors[x], tensors[y], kind="vector", trees=8)
    return with_trees(network, Forest(model="bypassed", ensembles=(ensemble,)))


@pytest.mark.parametrize("name", ["between", "at both ends", "bypassed", "alone"])
def test_trees_are_layers_of_what_the_runtime_makes(device: HostDevice, name: str) -> None:
    """The runtime's operators with the trees among them, cut between any two, compute what the model does."""
    ends = two_groups(np.random.default_rng(4))[0]
    model = {"between": hybrid()[0], "at both ends": ends, "bypassed": bypassed(), "alone": ends.segment(0, 0)}[name]
    found = device.lowered(model)
    assert found.lowered
    assert device.lowered(found) is found
    assert (found.inputs, found.outputs) == (model.inputs, model.outputs)
    assert ensembles_in(found) == ensembles_in(model)
    assert len(tree_layers(found)) == len(tree_layers(model))
    random = np.random.default_rng(6)
    tensors = {t.name: random.standard_normal(t.shape).astype(np.float32) for t in model.inputs}
    expected = {name: made.copy() for name, made in results(device, model, tensors).items()}
    for place in range(len(found.layers)):
        step = found.segment(place, place)
        made = results(device, step, {tensor.name: tensors[tensor.name] for tensor in step.inputs})
        tensors |= {name: array.copy() for name, array in made.items()}
    for output, array in expected.items():
        np.testing.assert_array_equal(tensors[output], array)


def test_an_output_that_depends_on_the_data(device: HostDevice) -> None:
    """Behind trees an output without a fixed shape comes as it is, launch by launch."""
    b = GraphBuilder("some", 1)
    made = b.dense(b.input("x", (1, 6)), 4)
    b.output(b.op("NonZero", made), "where")
    network, random = b.build(), np.random.default_rng(1)
    ensemble = stand_in(random, network.inputs[0], network.layers[0].outputs[0], kind="vector", levelled=False)
    model = with_trees(network, Forest(model="some", ensembles=(ensemble,)))
    x = random_inputs(random, ensemble, 1)
    np.testing.assert_array_equal(results(device, model, {"x": x})["where"], np.nonzero(evaluate(ensemble, x)))
