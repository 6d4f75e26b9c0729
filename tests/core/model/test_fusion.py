"""Which nodes are fused where a device cannot be asked."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.model import GraphBuilder, Model, epilogue_groups
from networks import NETWORKS, Runner, difference, random_inputs


def fused(model: Model) -> list[str]:
    """Operators of the layers that result."""
    return [layer.op for layer in model.grouped(epilogue_groups(model)).layers]


def builder(channels: int = 4) -> tuple[GraphBuilder, str]:
    """A graph with a picture of so many channels as input."""
    b = GraphBuilder("net")
    return b, b.input("image", (1, channels, 8, 8))


def test_normalisation_and_activation_follow_their_convolution() -> None:
    """Convolution, batch normalisation and activation are one layer; the next convolution begins another."""
    b, x = builder()
    x = b.conv(x, 4, norm=True, activation="Relu")
    b.output(b.conv(x, 8, norm=True, activation="HardSwish"))
    model = b.build()
    assert fused(model) == ["Conv+BatchNormalization+Relu", "Conv+BatchNormalization+HardSwish"]
    nodes = [node for layer in model.layers for node in layer.nodes]
    assert epilogue_groups(model) == (tuple(nodes[:3]), tuple(nodes[3:]))


def test_bias_scale_and_clip_of_a_product() -> None:
    """What combines with constants is applied on the way out."""
    b = GraphBuilder("net")
    x = b.op("MatMul", b.input("x", (2, 6)), b.weight((6, 3), 6))
    x = b.op("Mul", b.op("Add", x, b.constant(np.ones(3, np.float32))), b.constant(np.float32(0.5)))
    x = b.op("Clip", x, b.constant(np.float32(0)), b.constant(np.float32(6)))
    b.output(b.op("Softmax", x))
    assert fused(b.build()) == ["MatMul+Add+Mul+Clip", "Softmax"]


def test_a_residual_sum_takes_its_activation() -> None:
    """The sum waits for both branches, so it belongs to neither; what follows it belongs to it."""
    b, x = builder()
    y = b.conv(b.conv(x, 4, norm=True, activation="Relu"), 4, norm=True)
    b.output(b.op("GlobalAveragePool", b.op("Relu", b.op("Add", y, x))))
    assert fused(b.build()) == [
        "Conv+BatchNormalization+Relu",
        "Conv+BatchNormalization",
        "Add+Relu",
        "GlobalAveragePool",
    ]


def test_a_tensor_with_two_readers_ends_a_layer() -> None:
    """Both branches need it as it is."""
    b, x = builder()
    x = b.conv(x, 4)
    b.output(b.op("Concat", b.op("Relu", x), b.op("Sigmoid", x), axis=1))
    assert fused(b.build()) == ["Conv", "Relu", "Sigmoid", "Concat"]


def test_a_product_with_another_tensor_ends_a_layer() -> None:
    """Scaling by what depends on the input is no epilogue, and does not begin one."""
    b, x = builder()
    y = b.conv(x, 4)
    b.output(b.op("Relu", b.op("Mul", y, x)))
    assert fused(b.build()) == ["Conv", "Mul", "Relu"]


def test_a_square_is_an_epilogue() -> None:
    """It reads one tensor, though twice."""
    b, x = builder()
    y = b.conv(x, 4)
    b.output(b.op("Mul", y, y))
    assert fused(b.build()) == ["Conv+Mul"]


def test_an_output_of_the_model_ends_a_layer() -> None:
    """What the model hands out is not swallowed, though only one layer reads it."""
    b, x = builder()
    x = b.conv(x, 4)
    b.output(x)
    b.output(b.op("Relu", x))
    model = b.build()
    assert fused(model) == ["Conv", "Relu"]
    grouped = model.grouped(epilogue_groups(model))
    assert [tensor.name for layer in grouped.layers for tensor in layer.outputs] == [t.name for t in model.outputs]


def test_a_named_output_goes_with_its_layer() -> None:
    """The copy that names an output is nobody else's to read."""
    b, x = builder()
    b.output(b.conv(x, 4, activation="Relu"), "feature")
    assert fused(b.build()) == ["Conv+Relu+Identity"]


def test_what_a_subgraph_reads_is_a_branch() -> None:
    """A tensor that a loop's or a branch's body reads from outside has another reader."""
    model = NETWORKS["branching"]()
    grouped = model.grouped(epilogue_groups(model))
    inside = {name for layer in grouped.layers for name in layer.nodes}
    assert inside == {name for layer in model.layers for name in layer.nodes}
    for layer in grouped.layers:
        assert layer.op.split("+")[1:].count("If") == 0


def test_groups_stay_as_they_are() -> None:
    """A layer that is a group already is neither extended nor taken apart."""
    b, x = builder()
    b.output(b.conv(b.conv(x, 4, norm=True, activation="Relu"), 4, activation="Relu"))
    model = b.build()
    conv, norm, *_ = (layer.nodes[0] for layer in model.layers)
    mine = model.grouped([(conv, norm)])
    assert epilogue_groups(mine) == (model.layers[3].nodes + model.layers[4].nodes,)
    done = model.grouped(epilogue_groups(model))
    assert epilogue_groups(done) == ()


# Quantised models ----------------------------------------------------------------------------

SCALE = np.float32(0.05), np.asarray(3, np.int8)


def quantise(b: GraphBuilder, x: str) -> str:
    """To int8."""
    return str(b.op("QuantizeLinear", x, *map(b.constant, SCALE)))


def dequantise(b: GraphBuilder, x: str) -> str:
    """Back to float."""
    return str(b.op("DequantizeLinear", x, *map(b.constant, SCALE)))


def quantised_conv(b: GraphBuilder, x: str, channels: int, activation: str | None = None) -> str:
    """A convolution of float with weights in int8, and its activation."""
    weight = np.random.default_rng(channels).integers(-127, 128, (channels, b.channels(x), 3, 3), dtype=np.int8)
    weights = b.op("DequantizeLinear", *map(b.constant, (weight, np.float32(0.002), np.asarray(0, np.int8))))
    x = b.op("Conv", x, weights, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return str(b.op(activation, x) if activation else x)


def quantised_residual() -> Model:
    """Every tensor passes through int8; a sum whose two branches come from one tensor; pool, view, product."""
    b, image = builder()
    x = quantise(b, quantised_conv(b, dequantise(b, quantise(b, image)), 4, "Relu"))
    y = quantise(b, quantised_conv(b, dequantise(b, x), 4))
    x = quantise(b, b.op("Relu", b.op("Add", dequantise(b, y), dequantise(b, x))))
    x = quantise(b, b.op("MaxPool", dequantise(b, x), kernel_shape=[2, 2], strides=[2, 2]))
    x = quantise(b, b.op("Flatten", dequantise(b, x)))
    b.output(dequantise(b, quantise(b, b.dense(dequantise(b, x), 5))))
    return b.build()


def test_each_operator_of_a_quantised_model_takes_its_conversions() -> None:
    """Those before it and the one of its result, at the model's ends too: int8 crosses, and no cut lies inside."""
    model = quantised_residual()
    into, out = "DequantizeLinear+", "+QuantizeLinear"
    assert fused(model) == [
        f"QuantizeLinear+{into}Conv+Relu{out}",
        f"{into}Conv{out}",
        f"{into}{into}Add+Relu{out}",
        f"{into}MaxPool{out}",
        f"{into}Flatten{out}",
        f"{into}Gemm{out}+DequantizeLinear",
    ]
    grouped = model.grouped(epilogue_groups(model))
    assert {tensor.dtype for cut in grouped.cuts for tensor in cut.tensors} == {"int8"}
    assert epilogue_groups(grouped) == ()


def test_a_conversion_that_several_read_belongs_to_its_maker() -> None:
    """Neither reader can have it for itself, so float crosses."""
    b, x = builder()
    x = dequantise(b, quantise(b, quantised_conv(b, x, 4)))
    b.output(b.op("Concat", b.op("Exp", x), b.op("Sqrt", x), axis=1))
    assert fused(b.build()) == ["Conv+QuantizeLinear+DequantizeLinear", "Exp", "Sqrt", "Concat"]


def test_a_tensor_of_which_only_one_reader_is_quantised() -> None:
    """The conversion goes with that reader; its maker ends with what both read."""
    b, x = builder()
    x = b.conv(x, 4)
    b.output(b.op("Exp", x))
    b.output(quantised_conv(b, dequantise(b, quantise(b, x)), 4))
    assert fused(b.build()) == ["Conv", "Exp", "QuantizeLinear+DequantizeLinear+Conv"]


def test_int8_at_the_ends_of_a_model() -> None:
    """Inputs and outputs that are int8 already, or that are handed out on the way, stay what they are."""
    b = GraphBuilder("net")
    x = quantise(b, quantised_conv(b, dequantise(b, b.input("image", (1, 4, 8, 8), np.int8)), 4))
    b.output(x)
    b.output(quantise(b, quantised_conv(b, dequantise(b, x), 4)))
    model = b.build()
    assert fused(model) == ["DequantizeLinear+Conv+QuantizeLinear"] * 2
    assert [tensor.dtype for tensor in model.grouped(epilogue_groups(model)).outputs] == ["int8", "int8"]


FUSED = NETWORKS | {"quantised_residual": quantised_residual}


@functools.cache
def runner(name: str) -> Runner:
    """One runner a network, so that sessions are made once."""
    return Runner(FUSED[name]())


@pytest.mark.parametrize("name", FUSED)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_groups_are_layers_and_cuts_between_them_keep_the_outputs(name: str, data: st.DataObject) -> None:
    """Each group is exactly one layer, its work is the model's, and any cuts give the whole model's outputs."""
    plain = runner(name)
    groups = epilogue_groups(plain.model)
    model = plain.model.grouped(groups)
    layers = {frozenset(layer.nodes) for layer in model.layers}
    assert {frozenset(group) for group in groups} <= layers
    assert len(model.layers) == len(plain.model.layers) - sum(len(group) - 1 for group in groups)
    assert (model.macs, model.parameters) == (plain.model.macs, plain.model.parameters)
    for group in groups:
        (layer,) = (layer for layer in model.layers if set(layer.nodes) == set(group))
        assert layer.nodes == group  # in the order in which they run
        assert len(layer.outputs) == 1
    legal = [cut.position for cut in model.legal_cuts]
    positions = data.draw(st.sets(st.sampled_from(legal))) if legal else set()
    feeds = random_inputs(model, 1)
    assert difference(plain.whole(feeds), Runner(model).cut(feeds, positions)) <= 1e-4


def test_most_networks_have_something_to_fuse() -> None:
    """The rule finds groups where there are convolutions with activations."""
    assert {
        name for name in ("plain", "residual", "inverted_residual", "unet") if epilogue_groups(NETWORKS[name]())
    } == {
        "plain",
        "residual",
        "inverted_residual",
        "unet",
    }
