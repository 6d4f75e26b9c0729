"""Models as PyTorch networks and back: equal outputs, any batch, names kept, refusals that name the node."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from framefit.core.model import GraphBuilder, Model, listing
from framefit.core.model.builtin import BUILTIN
from framefit.devices.ort import predictor
from framefit.errors import InputError, UnsupportedError
from framefit.training.network import Network, load_state, observe, state, to_model, to_torch
from networks import NETWORKS, Runner, difference, random_inputs

TRAINABLE = (
    "plain",
    "residual",
    "inverted_residual",
    "unet",
    "dense_block",
    "attention",
    "two_ends",
    "dynamic",
    "inner_output",
    "passed_through",
    "towers",
    "split_channels",
)
RTOL = 5e-5  # of the largest output; measured: 8e-6 at most, of the 299 layers of "depth"

Arrays = dict[str, np.ndarray[Any, Any]]


def build(name: str) -> Model:
    """A network of the tests, or a built-in one."""
    return NETWORKS[name]() if name in NETWORKS else BUILTIN[name](0)


@functools.cache
def runner(name: str) -> Runner:
    """One runner a network, so that sessions are made once."""
    return Runner(build(name))


def computed(network: Network, feeds: Arrays) -> Arrays:
    """A network's outputs by name, in evaluation mode."""
    network.eval()
    with torch.inference_mode():
        made = network(*(torch.from_numpy(feeds[tensor.name]) for tensor in network.model.inputs))
    made = made if isinstance(made, tuple) else (made,)
    return {tensor.name: np.asarray(one) for tensor, one in zip(network.model.outputs, made, strict=True)}


@pytest.mark.parametrize("name", [*TRAINABLE, *BUILTIN])
def test_the_network_computes_what_the_runtime_computes(name: str) -> None:
    """On random inputs a network's outputs are those of ONNX Runtime on the file."""
    feeds = random_inputs(runner(name).model, 0)
    assert difference(runner(name).whole(feeds), computed(to_torch(runner(name).model), feeds)) <= RTOL


@pytest.mark.parametrize("name", TRAINABLE)
def test_the_model_comes_back(name: str) -> None:
    """Back as a model it has the same layers and outputs; with folded norms the same outputs."""
    network = to_torch(runner(name).model)
    back, small = to_model(network), to_model(network, fold=True)
    assert [layer.name for layer in back.layers] == [layer.name for layer in network.model.layers]
    feeds = random_inputs(network.model, 1)
    expected = runner(name).whole(feeds)
    assert difference(expected, Runner(back).whole(feeds)) <= RTOL
    assert difference(expected, Runner(small).whole(feeds)) <= RTOL


@pytest.mark.parametrize("name", sorted({*TRAINABLE} - {"two_ends", "passed_through"}))
def test_a_batch_is_its_examples(name: str) -> None:
    """Three examples at once give what each gives alone, whatever batch the file was written for."""
    network = to_torch(runner(name).model)
    feeds = [random_inputs(network.model, seed) for seed in range(3)]
    alone = [computed(network, one) for one in feeds]
    together = computed(network, {key: np.concatenate([one[key] for one in feeds]) for key in feeds[0]})
    expected = {key: np.concatenate([one[key] for one in alone]) for key in alone[0]}
    assert difference(expected, together) <= RTOL


def operator_zoo() -> Model:
    """Operators that no network above has, one behind the other."""
    b = GraphBuilder("zoo", 3)
    x = b.input("image", (1, 8, 12, 12))
    for kind in ("LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "Tanh", "Sigmoid", "Erf", "HardSwish"):
        x = b.op("Add", x, b.op(kind, x))
    x = b.op("Clip", x, b.constant(np.float32(-2)), b.constant(np.float32(3)))
    x = b.op("PRelu", x, b.constant(np.full((8, 1, 1), 0.2, np.float32)))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = b.op("Add", x, b.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1))
    x = b.op("Add", x, b.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    x = b.op("Conv", x, b.weight((8, 8, 2, 2), 32), kernel_shape=[2, 2], auto_pad="SAME_UPPER")
    x = b.op("ConvTranspose", x, b.weight((8, 4, 2, 2), 32), kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("DepthToSpace", b.op("SpaceToDepth", x, blocksize=2), blocksize=2)
    x = b.op("Pad", x, b.constant(np.asarray([0, 0, 1, 2, 0, 0, 3, 0], np.int64)), mode="reflect")
    x = b.op("Slice", x, *(b.constant(np.asarray([v], np.int64)) for v in (1, -1, 3, 2)))
    x = b.op("InstanceNormalization", x, b.weight((4,), 1), b.weight((4,), 1))
    x = b.op(
        "Squeeze", b.op("Unsqueeze", x, b.constant(np.asarray([2], np.int64))), b.constant(np.asarray([2], np.int64))
    )
    x = b.op("Gather", x, b.constant(np.asarray([2, 0, -1], np.int64)), axis=1)
    x = b.op("ReduceMax", x, axes=[3], keepdims=0)
    width = b.channels(x, -1)
    x = b.op("LayerNormalization", x, b.weight((width,), 1), b.weight((width,), 1))
    x = b.op("Where", b.op("Greater", x, b.constant(np.float32(0))), x, b.op("Neg", x))
    x = b.op("Max", b.op("Pow", x, b.constant(np.float32(1.5))), b.op("Sqrt", x))
    b.output(b.op("LogSoftmax", b.op("Flatten", x), axis=-1), "logits")
    return b.build()


def test_other_operators_follow_the_specification() -> None:
    """Activations, pooling, padding, slicing and norms give what ONNX Runtime gives."""
    model = operator_zoo()
    feeds = random_inputs(model, 0)
    network = to_torch(model)
    assert difference(Runner(model).whole(feeds), computed(network, feeds)) <= RTOL
    assert difference(Runner(model).whole(feeds), Runner(to_model(network)).whole(feeds)) <= RTOL


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("branching", "If"),
        ("looping", "Loop"),
        ("quantised", "QuantizeLinear"),
        ("selecting", "NonZero"),
    ],
)
def test_operators_that_are_not_trained_are_named(name: str, told: str) -> None:
    """A network with an operator that cannot be trained is refused with the operator and the node's name."""
    with pytest.raises(UnsupportedError) as error:
        to_torch(build(name))
    assert told in str(error.value.where)
    assert error.value.remedy


def recurrent(op: str, gates: int, way: str, **more: object) -> Model:
    """Signals over time, 1 x 4 x 12, through a recurrent operator with random weights, into one row of classes."""
    random, sides, size = np.random.default_rng(0), 2 if way == "bidirectional" else 1, 5

    def made(*shape: int) -> str:
        return b.constant(random.standard_normal(shape).astype(np.float32))

    b = GraphBuilder(op)
    x = b.op("Transpose", b.input("x", (1, 4, 12)), perm=[2, 0, 1])
    weights = [made(sides, gates * size, 4), made(sides, gates * size, size), made(sides, 2 * gates * size)]
    states = [b.constant(np.zeros((sides, 1, size), np.float32))] * (2 if op == "LSTM" else 1)
    seen, *_ = b.op(op, x, *weights, "", *states, outputs=2, hidden_size=size, direction=way, **more)
    row = b.op("Reshape", b.op("Transpose", seen, perm=[2, 0, 1, 3]), b.constant(np.asarray([1, -1], np.int64)))
    b.output(b.dense(row, 3), "classes")
    return b.build()


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "gates", "more"),
    [("LSTM", 4, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("RNN", 1, {})],
)
def test_recurrent_layers_are_trained(op: str, gates: int, more: dict[str, int], way: str) -> None:
    """They compute what ONNX Runtime does, of any batch, in the written file, too; all weights have gradients."""
    model = recurrent(op, gates, way, **more)
    network = to_torch(model)
    x = np.random.default_rng(1).standard_normal((3, 4, 12)).astype(np.float32)
    one = Runner(model)
    expected = np.concatenate([one.whole({"x": example[None]})["classes"] for example in x])
    answers = network(torch.from_numpy(x))
    np.testing.assert_allclose(answers.detach().numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(predictor(to_model(network))(x)[0], expected, atol=1e-5)
    answers.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in network.weights.values())


def test_recurrent_layers_in_other_forms_are_named() -> None:
    """Activations of their own are not computed as something else."""
    with pytest.raises(UnsupportedError, match="its activations are"):
        to_torch(recurrent("RNN", 1, "forward", activations=["Relu"]))


def test_a_form_that_is_not_trained_is_named() -> None:
    """An operator in a form that PyTorch does not have is refused with the node's name and the reason."""
    b = GraphBuilder("odd")
    x = b.input("image", (1, 2, 6, 6))
    b.output(b.op("AveragePool", x, kernel_shape=[2, 2], pads=[0, 0, 1, 1]), "y")
    with pytest.raises(UnsupportedError, match=r"AveragePool 'AveragePool_1'.*symmetric"):
        to_torch(b.build())


def test_a_batch_that_cannot_be_followed_is_refused() -> None:
    """Constants that sum over the examples are refused with the reshapes by name, not trained as something else."""
    b = GraphBuilder("summed")
    x = b.op("ReduceSum", b.input("rows", (1, 8)), b.constant(np.asarray([0], np.int64)), keepdims=1)
    b.output(b.dense(b.op("Reshape", x, b.constant(np.asarray([1, 8], np.int64))), 3), "logits")
    with pytest.raises(UnsupportedError, match="Reshape_1"):
        to_torch(b.build())


def test_weights_are_the_initializers() -> None:
    """Parameters are the graph's weights under their names; shapes and single numbers are none of them."""
    model = build("attention")
    network = to_torch(model)
    arrays = listing(model).arrays
    assert {name for name in network.weights if name.startswith("weight")} == set(network.weights)
    for name, parameter in network.weights.items():
        np.testing.assert_array_equal(parameter.detach().numpy(), arrays[name])
    assert {id(parameter) for parameter in network.parameters()} == {id(one) for one in network.weights.values()}


def test_a_shared_weight_is_one_parameter() -> None:
    """What two nodes read is trained once."""
    model = build("towers")
    network = to_torch(model)
    nodes = [node for node in listing(model).nodes if node.op == "Conv" and node.inputs[1] is not None]
    shared = [node for node in nodes if node.inputs[1] == nodes[0].inputs[1]]
    assert len(shared) == 6
    assert len({id(network.node(node.name).weight) for node in shared}) == 1


def test_trained_statistics_come_back() -> None:
    """Forward in training mode changes the running statistics, and the model that comes back has them."""
    network = to_torch(build("residual"))
    before = state(network)
    network.train()
    network(torch.full((2, 3, 16, 16), 3.0) + torch.arange(2.0).reshape(2, 1, 1, 1))
    after = state(network)
    changed = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    arrays = listing(to_model(network)).arrays
    assert len(changed) == 2 * len(network.norms) > 0
    assert changed.isdisjoint(network.weights)
    for name in changed:
        np.testing.assert_array_equal(arrays[name], after[name])


def test_momentum_is_one_minus_onnx() -> None:
    """ONNX's momentum of 0.9 keeps nine tenths of the old statistics."""
    norm = next(iter(to_torch(build("residual")).norms.values()))
    assert norm.momentum == pytest.approx(0.1)


def test_state_is_set_again() -> None:
    """What was saved comes back exactly; unknown names and other shapes are refused."""
    network, other = to_torch(build("plain")), to_torch(build("plain"))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    load_state(other, state(network))
    for name, array in state(other).items():
        np.testing.assert_array_equal(array, state(network)[name])
    with pytest.raises(InputError, match="no weight 'nothing'"):
        load_state(network, {"nothing": np.zeros(1)})
    name = next(iter(network.weights))
    with pytest.raises(InputError, match="weight"):
        load_state(network, {name: np.zeros(1)})


def test_logits_are_before_the_softmax() -> None:
    """A softmax at the end is left out of what training sees, and changes no order of the classes."""
    network = to_torch(build("plain")).eval()
    x = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        logits, classes = network.logits(x), network(x)
    torch.testing.assert_close(logits.softmax(1), classes)
    assert not torch.allclose(logits, classes)


def test_features_of_one_pixel_are_logits() -> None:
    """N x C x 1 x 1 counts as a row of classes; a picture does not, and is refused."""
    assert to_torch(build("residual")).eval().logits(torch.randn(2, 3, 16, 16)).shape == (2, 16)
    with pytest.raises(InputError, match="not a row of classes"):
        to_torch(build("unet")).logits(torch.randn(2, 1, 16, 16))


def test_nodes_are_watched() -> None:
    """Each named node's inputs and output are shown once a batch, in order; nothing stays behind."""
    network = to_torch(build("plain"))
    names = [node.name for node in listing(network.model).nodes if node.op in ("Conv", "Gemm")]
    x = np.random.default_rng(0).standard_normal((5, 3, 16, 16)).astype(np.float32)
    seen: list[tuple[str, tuple[int, ...]]] = []
    first = network.node(names[0])

    def watch(name: str, inputs: tuple[Any, ...], output: Any) -> None:
        seen.append((name, tuple(inputs[0].shape)))
        if name == names[0]:
            torch.testing.assert_close(output, first.forward(inputs[0]))

    observe(network, x, watch, names, batch=3)
    count = len(seen)
    assert [name for name, _ in seen] == names * 2
    assert [shape[0] for _, shape in seen] == [3] * len(names) + [2] * len(names)
    network(torch.from_numpy(x))
    assert len(seen) == count
    with pytest.raises(InputError, match="no node 'absent'"):
        observe(network, x, watch, ["absent"])


@pytest.mark.data
def test_the_resnet_is_equal_both_ways(shared_models: Path) -> None:
    """ResNet-20 from its file: equal to ONNX Runtime, in batches, back as a model, and with norms folded."""
    run = Runner(Model.load(shared_models / "resnet20-cifar10.onnx"))
    network = to_torch(run.model)
    feeds = random_inputs(run.model, 0)
    expected = run.whole(feeds)
    assert len(network.norms) == 21
    assert difference(expected, computed(network, feeds)) <= RTOL
    back = to_model(network)
    assert [layer.name for layer in back.layers] == [layer.name for layer in run.model.layers]
    for model in (back, to_model(network, fold=True)):
        assert difference(expected, Runner(model).whole(feeds)) <= RTOL
