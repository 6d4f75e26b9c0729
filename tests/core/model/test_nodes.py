"""What layers tell of their nodes: shapes, stored types, attributes, bodies, zeros, keys of latency tables."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
import pytest

from framefit.core.model import GraphBuilder, Model, Node, configuration
from framefit.core.model.graph import zeros_ratio
from networks import NETWORKS


def node_of(model: Model, op: str) -> Node:
    """The first node of an operator."""
    return next(node for nodes in model.nodes for node in nodes if node.op == op)


def convolution(weight: np.ndarray[Any, Any], *, name: str = "", groups: int = 1) -> Model:
    """A network of one convolution with this weight, 8 x 8 pictures."""
    b = GraphBuilder("conv")
    x = b.input(f"x{name}", (1, weight.shape[1] * groups, 8, 8))
    b.output(b.op("Conv", x, b.constant(weight, f"weight{name}"), kernel_shape=list(weight.shape[2:]), group=groups))
    return b.build()


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_nodes_belong_to_their_layers(name: str) -> None:
    """One record a node of each layer, in the same order, with the tensors that the layer shows."""
    model = NETWORKS[name]()
    assert len(model.nodes) == len(model.layers)
    for layer, nodes in zip(model.layers, model.nodes, strict=True):
        assert tuple(node.name for node in nodes) == layer.nodes
        assert "+".join(node.op for node in nodes) == layer.op
        if not any(node.bodies for node in nodes):
            read = {o.name for node in nodes for o in node.inputs if o is not None and not o.constant}
            assert read == {tensor.name for tensor in layer.inputs}


def test_a_convolution_tells_its_attributes() -> None:
    """Weight and bias are constant, the picture is not; strides, dilations and group are there."""
    b = GraphBuilder("conv")
    b.output(b.conv(b.input("x", (1, 8, 9, 9)), 4, stride=2, groups=2, dilation=2))
    (node,) = b.build().nodes[0]
    assert [operand is not None and operand.constant for operand in node.inputs] == [False, True, True]
    assert node.inputs[1] is not None
    assert node.inputs[1].shape == (4, 4, 3, 3)
    expected = {"strides": (2, 2), "dilations": (2, 2), "group": 2, "kernel_shape": (3, 3), "pads": (2, 2, 2, 2)}
    assert expected.items() <= node.attributes.items()


def test_left_out_inputs_stay_in_place() -> None:
    """An LSTM without bias and lengths has gaps there, and its states behind them."""
    node = node_of(NETWORKS["lstm"](), "LSTM")
    assert [operand is None for operand in node.inputs] == [False, False, False, True, True, False, False]


def test_quantised_tensors_are_stored_in_int8() -> None:
    """What a DequantizeLinear gives is float for the operator and int8 in memory, weight and picture alike."""
    node = node_of(NETWORKS["quantised"](), "Conv")
    picture, weight = node.inputs[:2]
    assert picture is not None
    assert weight is not None
    assert (picture.dtype, picture.stored_dtype, picture.constant) == ("float32", "int8", False)
    assert (weight.dtype, weight.stored_dtype, weight.constant) == ("float32", "int8", True)


def test_a_loop_has_a_body_and_its_iterations() -> None:
    """Three times a product and a sum; what depends on no data is no part of it."""
    node = node_of(NETWORKS["looping"](), "Loop")
    (body,) = node.bodies
    assert node.iterations == 3
    assert [inner.op for inner in body] == ["Identity", "Mul", "Add"]
    assert [operand is not None and operand.constant for operand in body[1].inputs] == [False, True]


@pytest.mark.parametrize("given", [True, False])
def test_iterations_that_depend_on_data_are_not_known(given: bool) -> None:
    """A count that comes as an input, or none at all."""
    b = GraphBuilder("loop")
    x = b.input("x", (4,))
    number, going, carried = (
        ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        for name, dtype, shape in (
            ("number", ir.DataType.INT64, []),
            ("going", ir.DataType.BOOL, []),
            ("carried", ir.DataType.FLOAT, [4]),
        )
    )
    still, grown = ir.node("Identity", [going]), ir.node("Exp", [carried])
    outputs = [still.outputs[0], grown.outputs[0]]
    body = ir.Graph([number, going, carried], outputs, nodes=[still, grown], name="body")
    times = b.input("times", (), np.int64) if given else ""
    b.output(b.op("Loop", times, b.constant(np.asarray([True]).squeeze()), x, body=body))
    model = b.build()
    assert model.nodes[0][0].iterations is None
    assert model.macs == 0


def test_both_branches_of_an_if_are_there() -> None:
    """One body a branch."""
    node = node_of(NETWORKS["branching"](), "If")
    assert sorted(inner.op for body in node.bodies for inner in body) == ["Add", "Sub"]


def test_a_configuration_holds_no_names() -> None:
    """The same convolution under other names has the same key; another stride has not."""
    weight = np.ones((4, 3, 3, 3), np.float32)
    one, other = convolution(weight), convolution(weight, name="_other")
    assert configuration(one.nodes[0]) == configuration(other.nodes[0])
    found = configuration(one.nodes[0])
    assert found["inputs"] == ["1x3x8x8 float32"]
    assert found["weights"] == ["4x3x3x3 float32"]
    assert found["outputs"] == ["1x4x6x6 float32"]
    assert (found["kernel"], found["stride"], found["padding"]) == ([3, 3], [1, 1], [0, 0, 0, 0])
    assert (found["dilation"], found["groups"], found["precision"]) == ([1, 1], 1, "float32")
    b = GraphBuilder("strided")
    x = b.input("x", (1, 3, 8, 8))
    b.output(b.op("Conv", x, b.constant(weight), kernel_shape=[3, 3], strides=[2, 2]))
    assert configuration(b.build().nodes[0])["stride"] == [2, 2]


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_configurations_are_plain_data(name: str) -> None:
    """Each is a table's key: it survives JSON and names no tensor of the graph."""
    model = NETWORKS[name]()
    names = {tensor.name for layer in model.layers for tensor in (*layer.inputs, *layer.outputs)}
    for nodes in model.nodes:
        found = configuration(nodes)
        assert msgspec.json.decode(msgspec.json.encode(found)) == found
        texts = {text for value in found.values() for text in (value if isinstance(value, list) else [value])}
        assert not names & texts


def test_fused_operators_are_part_of_the_key() -> None:
    """A convolution with its activation has another key than without, the attributes of both in it."""
    b = GraphBuilder("fused")
    x = b.conv(b.input("x", (1, 3, 8, 8)), 4)
    b.output(b.op("LeakyRelu", x, alpha=0.25))
    model = b.build()
    fused = model.grouped([[layer.name for layer in model.layers]])
    found = configuration(fused.nodes[0])
    assert found["fused"] == ["LeakyRelu"]
    assert found["2.LeakyRelu.alpha"] == 0.25
    assert found["kernel"] == [3, 3]


def test_zeros_of_a_pruned_convolution() -> None:
    """A quarter of the weights is zero, biases and layers without weights do not count."""
    weight = np.ones((4, 2, 3, 3), np.float32)
    weight.reshape(-1)[::4] = 0
    assert convolution(weight).weight_zeros() == (0.25,)
    b = GraphBuilder("mixed")
    x = b.conv(b.input("x", (1, 2, 8, 8)), 4, bias=True)  # the bias is all zeros
    b.output(b.op("Relu", x))
    assert b.build().weight_zeros() == (0.0, 0.0)


def test_zeros_in_whole_channels() -> None:
    """Only outputs without any weight count as channels, though more weights are zero."""
    weight = np.ones((4, 2, 3, 3), np.float32)
    weight[1] = 0
    weight[2, 0] = 0
    model = convolution(weight)
    assert model.weight_zeros() == (0.375,)
    assert model.weight_zeros("channel") == (0.25,)


@pytest.mark.parametrize("spoilt", [False, True])
def test_two_of_four_neighbours(spoilt: bool) -> None:
    """Half of the input channels of every output: 2:4, until one group of four holds three weights."""
    weight = np.zeros((4, 8, 3, 3), np.float32)
    weight[:, ::2] = 1
    weight[0, 1, 0, 0] = spoilt
    assert convolution(weight).weight_zeros("n:m", 2, 4) == (0.0 if spoilt else 0.5,)


@pytest.mark.parametrize("transposed", [0, 1])
def test_neighbours_in_a_matrix_lie_along_the_sum(transposed: int) -> None:
    """The layout of a Gemm's weight does not matter: inputs are what each sum runs over."""
    weight = np.ones((8, 3), np.float32)
    weight[::2] = 0
    b = GraphBuilder("gemm")
    matrix = b.constant(np.ascontiguousarray(weight.T) if transposed else weight)
    b.output(b.op("Gemm", b.input("x", (1, 8)), matrix, transB=transposed))
    model = b.build()
    assert model.weight_zeros("n:m", 2, 4) == (0.5,)
    assert model.weight_zeros("channel") == (0.0,)


def test_zero_of_a_quantised_weight_is_its_zero_point() -> None:
    """Elements equal to the zero point count, those equal to 0 do not."""
    weight = np.full((4, 2, 3, 3), 5, np.int8)
    weight[:2] = 7
    weight[3] = 0
    b = GraphBuilder("quantised")
    scale, zero = b.constant(np.full(4, 0.1, np.float32)), b.constant(np.full(4, 7, np.int8))
    x = b.input("x", (1, 2, 8, 8))
    b.output(b.op("Conv", x, b.op("DequantizeLinear", b.constant(weight), scale, zero, axis=0), kernel_shape=[3, 3]))
    assert b.build().weight_zeros() == (0.5,)


def test_recurrent_weights_count_both_matrices() -> None:
    """Half of the features' matrix and nothing of the recurrent one: their share of all elements."""
    b = GraphBuilder("lstm")
    w, r = np.ones((1, 32, 6), np.float32), np.ones((1, 32, 8), np.float32)
    w[:, ::2] = 0
    b.output(b.op("LSTM", b.input("x", (4, 1, 6)), b.constant(w), b.constant(r), hidden_size=8))
    assert b.build().weight_zeros()[0] == pytest.approx(0.5 * 6 / 14)


def test_no_weights_no_zeros() -> None:
    """Nothing counts as dense, and granularity "none" counts nothing."""
    assert zeros_ratio([]) == 0.0
    assert zeros_ratio([np.zeros((2, 2), bool)], "none") == 0.0


def test_attention_counts_what_its_operator_does() -> None:
    """com.microsoft's projects its input first: 5 tokens of 8 features, 3 x 8 outputs, then two products."""
    b = GraphBuilder("attention")
    x, w = b.input("x", (1, 5, 8)), b.weight((8, 24), 8)
    bias = b.constant(np.zeros(24, np.float32))
    b.output(b.op("Attention", x, w, bias, domain="com.microsoft", num_heads=2))
    b._graph.opset_imports["com.microsoft"] = 1
    layer = b.build().layers[0]
    assert layer.macs == 5 * 8 * 24 + 2 * 5 * 5 * 8


def test_an_outer_value_of_a_body_keeps_the_body_alive() -> None:
    """A branch that only hands on an outer tensor has no nodes, and its layer still reads the tensor."""
    b = GraphBuilder("handing")
    x, choose = b.input("x", (1, 4)), b.input("choose", (), np.bool_)
    y = b.op("Relu", x)
    branches = [
        ir.Graph([], node.outputs, nodes=[node], name=f"branch{index}")
        for index, node in enumerate((ir.node("Neg", [b._values[y]]), ir.node("Identity", [b._values[y]])))
    ]
    b.output(b.op("If", choose, then_branch=branches[0], else_branch=branches[1]))
    model = b.build()
    node = node_of(model, "If")
    assert [[inner.op for inner in body] for body in node.bodies] == [["Neg"], ["Identity"]]
