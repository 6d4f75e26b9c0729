"""Layers: figures worked out by hand, shapes, names and what crosses a cut."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from framefit.core.model import GraphBuilder, Layer, Model, TensorInfo
from networks import NETWORKS


def only_layer(b: GraphBuilder, output: str) -> Layer:
    """The layer of a network of one."""
    b.output(output)
    model = b.build()
    assert len(model.layers) == 1
    return model.layers[0]


def test_grouped_dilated_convolution() -> None:
    """16 x 10 x 12 outputs of 8 / 4 x 3 x 3 products each; dilation does not count."""
    b = GraphBuilder("conv")
    layer = only_layer(b, b.conv(b.input("x", (1, 8, 10, 12)), 16, groups=4, dilation=2))
    assert layer.outputs[0].shape == (1, 16, 10, 12)
    assert layer.macs == 16 * 10 * 12 * 2 * 9
    assert layer.parameters == 16 * 2 * 9 + 16
    assert layer.parameter_bytes == 4 * layer.parameters


def test_strided_convolution_counts_its_batch() -> None:
    """Stride 2 quarters the outputs; each frame of a batch counts."""
    b = GraphBuilder("conv")
    layer = only_layer(b, b.conv(b.input("x", (3, 4, 9, 9)), 6, stride=2))
    assert layer.macs == 3 * 6 * 5 * 5 * 4 * 9


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolution(groups: int) -> None:
    """Every input element is multiplied by every weight of its channel."""
    b = GraphBuilder("deconv")
    x = b.input("x", (1, 6, 5, 7))
    weight = b.weight((6, 4 // groups, 3, 3), 54)
    layer = only_layer(b, b.op("ConvTranspose", x, weight, strides=[2, 2], group=groups))
    assert layer.outputs[0].shape == (1, 4, 11, 15)
    assert layer.macs == 6 * 5 * 7 * (4 // groups) * 9
    assert layer.parameters == 6 * (4 // groups) * 9


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int) -> None:
    """2 x 7 outputs of 10 products each, whichever way the first matrix lies."""
    b = GraphBuilder("gemm")
    x = b.input("x", (10, 2) if transposed else (2, 10))
    layer = only_layer(b, b.op("Gemm", x, b.weight((10, 7), 10), transA=transposed))
    assert (layer.macs, layer.parameters) == (2 * 7 * 10, 70)


def test_batched_matmul_of_two_activations() -> None:
    """4 matrices of 9 x 9 outputs of 5 products each, and no parameters."""
    b = GraphBuilder("matmul")
    query, key = b.input("query", (1, 4, 9, 5)), b.input("key", (1, 4, 5, 9))
    layer = only_layer(b, b.op("MatMul", query, key))
    assert (layer.macs, layer.parameters) == (4 * 9 * 9 * 5, 0)
    assert [tensor.name for tensor in layer.inputs] == ["query", "key"]


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent(kind: str, gates: int, directions: int) -> None:
    """Each step multiplies 6 features and 8 hidden values by every gate, in each direction."""
    b = GraphBuilder("recurrent")
    x = b.input("x", (5, 2, 6))
    w, r = b.weight((directions, gates * 8, 6), 6), b.weight((directions, gates * 8, 8), 8)
    y = b.op(kind, x, w, r, hidden_size=8, direction="bidirectional" if directions == 2 else "forward")
    layer = only_layer(b, y)
    assert layer.outputs[0].shape == (5, directions, 2, 8)
    assert layer.macs == 5 * 2 * directions * gates * 8 * (6 + 8)
    assert layer.parameters == directions * gates * 8 * (6 + 8)


def test_einsum() -> None:
    """The product of all extents that the equation names."""
    b = GraphBuilder("einsum")
    left, right = b.input("left", (2, 3, 4)), b.input("right", (2, 4, 5))
    assert only_layer(b, b.op("Einsum", left, right, equation="bij,bjk->bik")).macs == 2 * 3 * 4 * 5


def test_loop_counts_its_body_once_an_iteration() -> None:
    """Three iterations of a 4 x 4 matrix product cost three of them."""
    b = GraphBuilder("loop")
    x, weight = b.input("x", (1, 4)), b.weight((4, 4), 4)
    number = ir.Value(name="number", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    going = ir.Value(name="going", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    carried = ir.Value(name="carried", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 4]))
    still = ir.node("Identity", [going])
    product = ir.node("MatMul", [carried, b._values[weight]])
    results = [still.outputs[0], product.outputs[0]]
    body = ir.Graph([number, going, carried], results, nodes=[still, product], name="body")
    times, true = b.constant(np.asarray(3, np.int64)), b.constant(np.asarray([True]).squeeze())
    layer = only_layer(b, b.op("Loop", times, true, x, body=body))
    assert layer.macs == 3 * 16
    assert layer.parameters == 16 + 2  # the matrix, the count and the condition


def test_if_counts_its_dearer_branch() -> None:
    """A branch with a 4 x 4 product against one with a sum costs the product."""
    b = GraphBuilder("if")
    x, choose, weight = b.input("x", (1, 4)), b.input("choose", (), np.bool_), b.weight((4, 4), 4)
    dear = ir.node("MatMul", [b._values[x], b._values[weight]])
    cheap = ir.node("Add", [b._values[x], b._values[x]])
    branches = [ir.Graph([], node.outputs, nodes=[node], name=node.op_type) for node in (dear, cheap)]
    layer = only_layer(b, b.op("If", choose, then_branch=branches[0], else_branch=branches[1]))
    assert layer.macs == 16
    assert [tensor.name for tensor in layer.inputs] == ["choose", "x"]


@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - {"looping", "selecting"}))
def test_every_shape_is_inferred(name: str) -> None:
    """Networks whose shapes do not depend on the data have static shapes throughout."""
    for layer in NETWORKS[name]().layers:
        for tensor in (*layer.inputs, *layer.outputs):
            assert tensor.fixed, tensor


def test_an_op_without_products_costs_no_macs_but_has_its_parameters() -> None:
    """Batch norm has four vectors of parameters and no multiply-accumulates."""
    b = GraphBuilder("norm")
    layer = only_layer(b, b.batch_norm(b.input("x", (1, 5, 4, 4))))
    assert (layer.macs, layer.parameters) == (0, 20)


def test_shared_weights_count_once_in_the_model() -> None:
    """Two towers of three convolutions share a weight; every layer shows it, the model counts it once."""
    model = NETWORKS["towers"]()
    convolutions = [layer for layer in model.layers if layer.op == "Conv"]
    assert [layer.parameters for layer in convolutions].count(36) == 6
    assert model.parameters == 36 + 3 * (36 + 2)


def test_quantised_weights_belong_to_the_layer_that_reads_them() -> None:
    """Dequantising a weight is no layer; the convolution counts the int8 elements behind it."""
    model = NETWORKS["quantised"]()
    first, second = (layer for layer in model.layers if layer.op == "Conv")
    assert first.parameters == 6 * 3 * 9 + 6 + 6
    assert first.parameter_bytes == 6 * 3 * 9 + 4 * 6 + 6
    assert second.macs == 4 * 8 * 8 * 6 * 9
    assert [layer.op for layer in model.layers].count("DequantizeLinear") == 3


def test_crossing_tensors_of_a_unet() -> None:
    """In the middle of a U-Net the bottom and both open skip connections cross, and their bytes add up."""
    model = NETWORKS["unet"]()
    names = [layer.op for layer in model.layers]
    bottom = names.index("Resize")
    cut = model.cuts[bottom - 1]
    assert cut.position == bottom
    assert cut.tensors == (
        TensorInfo(name="Relu_1", dtype="float32", shape=(1, 4, 16, 16)),
        TensorInfo(name="Relu_2", dtype="float32", shape=(1, 8, 8, 8)),
        TensorInfo(name="Relu_3", dtype="float32", shape=(1, 16, 4, 4)),
    )
    assert cut.bytes == 4 * (4 * 16 * 16 + 8 * 8 * 8 + 16 * 4 * 4)


def test_a_late_input_does_not_cross() -> None:
    """A graph input that is read late is fed to the late segment; it does not cross the cuts before."""
    model = NETWORKS["two_ends"]()
    assert all("bias" not in {tensor.name for tensor in cut.tensors} for cut in model.cuts)
    reader = [layer.op for layer in model.layers].index("Add")
    assert "bias" in {tensor.name for tensor in model.segment(reader, reader).inputs}
    assert "bias" not in {tensor.name for tensor in model.segment(0, reader - 1).inputs}


def test_an_outer_tensor_of_a_branch_crosses() -> None:
    """A tensor that only the inside of an ``If`` reads crosses every cut up to it."""
    model = NETWORKS["branching"]()
    position = [layer.op for layer in model.layers].index("If")
    crossing = {tensor.name for tensor in model.cuts[position - 1].tensors}
    assert {"Relu_1", "Relu_2"} <= crossing
    assert {"Relu_1", "Relu_2"} <= {tensor.name for tensor in model.layers[position].inputs}


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("float16", 2), ("float64", 8), ("int8", 1), ("int64", 8), ("bool", 1)]
)
def test_bytes_of_a_tensor(dtype: str, size: int) -> None:
    """Elements times the size of one."""
    assert TensorInfo(name="x", dtype=dtype, shape=(2, 3)).bytes == 6 * size
    assert TensorInfo(name="x", dtype=dtype, shape=None).bytes == 0


def test_groups_sum_their_members() -> None:
    """A grouped layer is called after its last node and sums what its members had."""
    model: Model = NETWORKS["plain"]()
    conv, norm, relu = model.layers[:3]
    group = model.grouped([(conv.name, norm.name, relu.name)]).layers[0]
    assert group.name == relu.name
    assert group.op == "Conv+BatchNormalization+Relu"
    assert group.nodes == (conv.name, norm.name, relu.name)
    assert (group.inputs, group.outputs) == (conv.inputs, relu.outputs)
    assert group.macs == conv.macs
    assert group.parameters == conv.parameters + norm.parameters


def test_a_group_around_a_layer_takes_it_in() -> None:
    """A group whose ends wait for a layer between them becomes one layer with it."""
    model = NETWORKS["plain"]()
    conv, norm, relu = model.layers[:3]
    grouped = model.grouped([(conv.name, relu.name)])
    assert set(grouped.layers[0].nodes) == {conv.name, norm.name, relu.name}


def test_a_layer_makes_no_output_of_what_only_its_own_branches_read() -> None:
    """An ``If`` and what it reads as one layer: the outer tensors of its branches stay inside."""
    model = NETWORKS["branching"]()
    inner = [name for layer in model.layers[1:-2] for name in layer.nodes]
    (_, group, conv, _) = model.grouped([inner]).layers
    assert "If" in group.op
    assert group.outputs == conv.inputs


def test_a_layer_that_no_group_changes_is_made_once() -> None:
    """A grouped model shares what is known of its graph: untouched layers are the same records."""
    model = NETWORKS["plain"]()
    grouped = model.grouped([model.layers[0].nodes + model.layers[1].nodes])
    assert all(one is other for one, other in zip(model.layers[2:], grouped.layers[1:], strict=True))
