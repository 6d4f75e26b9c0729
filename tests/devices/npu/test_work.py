"""Layers as work: products, element operations and bytes, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from targets import convolution, only, through

from framefit import GraphBuilder, Model
from framefit.devices.npu.work import LayerWork, Product, dtype_bits, model_work
from networks import NETWORKS


def work_of(model: Model) -> LayerWork:
    """Of a network of one layer."""
    return only(model_work(model))


def sizes(product: Product) -> tuple[int, ...]:
    """Rows, columns, channels, kernel positions, groups and steps."""
    return product.m, product.n, product.channels, product.area, product.groups, product.steps


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_products_hold_all_multiply_accumulates(name: str) -> None:
    """What the model counts is what the products add up to, layer by layer."""
    model = NETWORKS[name]()
    for layer, work in zip(model.layers, model_work(model), strict=True):
        assert sum(product.macs for product in work.products) == layer.macs, layer.name


def test_dense_convolution() -> None:
    """A row for each position, a column for each output channel; two rows of the picture overlap."""
    work = work_of(convolution(8, 16, 10))
    product = only(work.products)
    assert sizes(product) == (100, 16, 8, 9, 1, 1)
    assert (product.inputs, product.halo) == (8 * 100, 2 * 10 * 8)
    assert (product.weights, product.constant) == (16 * 8 * 9, True)
    assert (work.reads, work.writes) == (((800, "float32"),), ((1600, "float32"),))
    assert (work.elements, work.constants, work.method) == (0, 0, "products")


def test_grouped_and_depthwise_convolution() -> None:
    """Groups are products of their own; a depthwise one has one channel in each."""
    assert sizes(only(work_of(convolution(8, 16, 10, groups=4)).products)) == (100, 4, 2, 9, 4, 1)
    assert sizes(only(work_of(convolution(8, 8, 10, groups=8)).products)) == (100, 1, 1, 9, 8, 1)


def test_dilated_convolution_overlaps_more() -> None:
    """Dilation 2 spreads three rows over five: four of them overlap, the products stay the same."""
    product = only(work_of(convolution(8, 16, 10, dilation=2)).products)
    assert sizes(product) == (100, 16, 8, 9, 1, 1)
    assert product.halo == 4 * 10 * 8


def test_strided_convolution() -> None:
    """A quarter of the positions."""
    assert sizes(only(work_of(convolution(8, 16, 10, stride=2)).products)) == (25, 16, 8, 9, 1, 1)


def test_transposed_convolution() -> None:
    """A row for each position of the input, a column for each output channel and kernel position."""
    weight = np.ones((6, 2, 3, 3), np.float32)
    work = work_of(through("ConvTranspose", (1, 6, 5, 7), weight, strides=[2, 2], group=2))
    assert sizes(only(work.products)) == (35, 18, 3, 1, 2, 1)


def test_matrix_products() -> None:
    """Whichever way the matrices lie, and with batches of either operand."""
    weight = np.ones((10, 7), np.float32)
    assert sizes(only(work_of(through("Gemm", (2, 10), weight)).products)) == (2, 7, 10, 1, 1, 1)
    assert sizes(only(work_of(through("Gemm", (10, 2), weight, transA=1)).products)) == (2, 7, 10, 1, 1, 1)
    assert sizes(only(work_of(through("MatMul", (3, 5, 10), weight)).products)) == (15, 7, 10, 1, 1, 1)
    many = np.ones((3, 10, 7), np.float32)
    assert sizes(only(work_of(through("MatMul", (3, 5, 10), many)).products)) == (5, 7, 10, 1, 3, 1)


def test_product_of_two_tensors() -> None:
    """Attention's scores: a product a head, the second operand is no weight."""
    b = GraphBuilder("scores")
    b.output(b.op("MatMul", b.input("q", (1, 4, 9, 5)), b.input("k", (1, 4, 5, 9))))
    product = only(work_of(b.build()).products)
    assert sizes(product) == (9, 9, 5, 1, 4, 1)
    assert not product.constant


def test_attention_in_one_operator() -> None:
    """Projection, scores and sums; between the products nothing goes to memory."""
    b = GraphBuilder("attention")
    bias = b.constant(np.zeros(24, np.float32))
    b.output(
        b.op("Attention", b.input("x", (1, 5, 8)), b.weight((8, 24), 8), bias, domain="com.microsoft", num_heads=2)
    )
    b._graph.opset_imports["com.microsoft"] = 1
    work = work_of(b.build())
    project, scores, sums = work.products
    assert sizes(project) == (5, 24, 8, 1, 1, 1)
    assert sizes(scores) == (5, 5, 4, 1, 2, 1)
    assert sizes(sums) == (5, 4, 5, 1, 2, 1)
    assert (scores.weight_outside, sums.input_outside) == (False, False)
    assert scores.tail == 3 * 2 * 5 * 5


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_steps(op: str, gates: int) -> None:
    """Five steps one after the other, two directions side by side; the gates end each step."""
    weights = np.ones((2, gates * 8, 6), np.float32), np.ones((2, gates * 8, 8), np.float32)
    product = only(
        work_of(through(op, (5, 2, 6), *weights, outputs=2, hidden_size=8, direction="bidirectional")).products
    )
    assert sizes(product) == (2, gates * 8, 14, 1, 2, 5)
    assert product.tail == 2 * 2 * gates * 8


def test_einsum() -> None:
    """Letters of both that stay are groups, those that go are summed over."""
    b = GraphBuilder("einsum")
    b.output(b.op("Einsum", b.input("a", (2, 3, 4)), b.input("b", (2, 4, 5)), equation="bij,bjk->bik"))
    assert sizes(only(work_of(b.build()).products)) == (3, 5, 4, 1, 2, 1)


@pytest.mark.parametrize(
    ("model", "elements"),
    [
        (lambda: through("Relu", (1, 4, 6, 6)), 144),
        (lambda: through("MaxPool", (1, 4, 6, 6), kernel_shape=[2, 2], strides=[2, 2]), 36 * 4),
        (lambda: through("GlobalAveragePool", (1, 4, 6, 6)), 144),
        (lambda: through("ReduceMean", (1, 4, 6, 6), axes=[2, 3]), 144),
        (lambda: through("Softmax", (1, 10), axis=1), 30),
        (lambda: through("Resize", (1, 4, 3, 3), None, np.asarray([1, 1, 2, 2], np.float32), mode="nearest"), 144),
        (lambda: through("Resize", (1, 4, 3, 3), None, np.asarray([1, 1, 2, 2], np.float32), mode="linear"), 4 * 144),
        (lambda: through("Transpose", (1, 4, 6), perm=[0, 2, 1]), 24),
        (lambda: through("Pad", (1, 4, 6), np.asarray([0, 0, 1, 0, 0, 1])), 32),
    ],
)
def test_element_operations(model, elements: int) -> None:
    """One an element of the output, or what pooling, normalising and resizing read for it."""
    work = work_of(model())
    assert (work.elements, work.method, work.products) == (elements, "elements", ())


@pytest.mark.parametrize(
    "model",
    [
        lambda: through("Conv", (0, 8, 6, 6), np.ones((4, 8, 3, 3), np.float32)),
        lambda: through("MatMul", (0, 8), np.ones((8, 4), np.float32)),
        lambda: through("Relu", (0,)),
    ],
)
def test_empty_results_are_no_work(model) -> None:
    """A batch of none: nothing is computed, read or written."""
    work = work_of(model())
    assert (work.method, work.products, work.elements) == ("view", (), 0)
    assert (work.reads, work.writes, work.constants) == ((), (), 0)


def test_sums_over_nothing_are_zeros() -> None:
    """A product of 4 x 0 and 0 x 8 has no multiply-accumulates; its 32 zeros are written."""
    work = work_of(through("MatMul", (4, 0), np.ones((0, 8), np.float32)))
    assert (work.products, work.elements, work.method) == ((), 32, "elements")


def test_views_move_nothing() -> None:
    """Another shape for the same bytes."""
    work = work_of(through("Flatten", (1, 4, 6)))
    assert (work.method, work.reads, work.writes, work.elements) == ("view", (), (), 0)


def test_gathering_reads_what_it_puts_out() -> None:
    """Three rows of a thousand: twelve numbers and their indices, not the whole table."""
    b = GraphBuilder("embedding")
    b.output(b.op("Gather", b.constant(np.ones((1000, 4), np.float32)), b.input("index", (3,), np.int64), axis=0))
    work = work_of(b.build())
    assert work.constants == 3 * 4 * 4
    assert work.reads == ((3, "int64"),)


def test_an_unknown_operator_is_priced_by_its_bytes() -> None:
    """And says so; a known one does not."""
    assert work_of(through("NonZero", (4, 4))).method == "unknown"
    work = work_of(through("LRN", (1, 4, 6, 6), size=3))
    assert (work.method, work.elements) == ("bytes", 2 * 144)


def test_a_loop_repeats_its_body() -> None:
    """Three steps of a product that wait for each other; the weights are the same."""
    b = GraphBuilder("loop")
    x, weight = b.input("x", (1, 4)), b.weight((4, 4), 4)
    number = ir.Value(name="number", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    going = ir.Value(name="going", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    carried = ir.Value(name="carried", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 4]))
    still = ir.node("Identity", [going])
    product = ir.node("MatMul", [carried, b._values[weight]])
    body = ir.Graph(
        [number, going, carried], [still.outputs[0], product.outputs[0]], nodes=[still, product], name="body"
    )
    times, true = b.constant(np.asarray(3, np.int64)), b.constant(np.asarray([True]).squeeze())
    b.output(b.op("Loop", times, true, x, body=body))
    assert sizes(only(work_of(b.build()).products)) == (1, 4, 4, 1, 1, 3)


def test_an_if_is_its_dearer_branch() -> None:
    """A product against a sum: the product."""
    b = GraphBuilder("if")
    x, choose, weight = b.input("x", (1, 4)), b.input("choose", (), np.bool_), b.weight((4, 4), 4)
    nodes = ir.node("Add", [b._values[x], b._values[x]]), ir.node("MatMul", [b._values[x], b._values[weight]])
    cheap, dear = (ir.Graph([], node.outputs, nodes=[node], name=node.op_type) for node in nodes)
    b.output(b.op("If", choose, then_branch=cheap, else_branch=dear))
    work = work_of(b.build())
    assert (sizes(only(work.products)), work.elements) == ((1, 4, 4, 1, 1, 1), 0)


def test_fused_layers_keep_their_middle_to_themselves() -> None:
    """Convolution, norm and activation: one tensor in, one out, and one pass over the results."""
    b = GraphBuilder("fused")
    b.output(b.conv(b.input("x", (1, 4, 6, 6)), 8, norm=True, activation="Relu"))
    model = b.build()
    work = work_of(model.grouped([[layer.name for layer in model.layers]]))
    assert work.reads == ((144, "float32"),)
    assert work.writes == ((288, "float32"),)
    assert work.elements == 288
    assert work.constants == 4 * 8 * 4  # of the norm, in bytes


def test_conversions_are_made_on_the_way() -> None:
    """Beside an operator they add no elements, and the product's operand still comes from outside, as int8."""
    b = GraphBuilder("quantised")
    pair = b.constant(np.float32(0.1)), b.constant(np.asarray(0, np.int8))
    x = b.op("DequantizeLinear", b.input("x", (1, 8, 9, 9), np.int8), *pair)
    weight = b.op("DequantizeLinear", b.constant(np.ones((4, 8, 3, 3), np.int8)), *pair)
    b.output(b.op("QuantizeLinear", b.op("Conv", x, weight, kernel_shape=[3, 3], strides=[3, 3]), *pair))
    model = b.build()
    work = work_of(model.grouped([[layer.name for layer in model.layers]]))
    assert (work.reads, work.writes, work.elements) == (((648, "int8"),), ((36, "int8"),), 0)
    product = only(work.products)
    assert (product.input_dtype, product.weight_dtype, product.input_outside) == ("int8", "int8", True)


@pytest.mark.parametrize(("quantised", "method"), [(True, "view"), (False, "elements")])
def test_a_view_between_conversions(quantised: bool, method: str) -> None:
    """From int8 to int8 nothing is done; to float every element is."""
    b = GraphBuilder("view")
    pair = b.constant(np.float32(0.1)), b.constant(np.asarray(0, np.int8))
    x = b.op("Flatten", b.op("DequantizeLinear", b.input("x", (1, 4, 6), np.int8), *pair))
    b.output(b.op("QuantizeLinear", x, *pair) if quantised else x)
    model = b.build()
    assert work_of(model.grouped([[layer.name for layer in model.layers]])).method == method


def test_integer_forms_are_products_of_bytes() -> None:
    """QLinearConv's weight is its fourth input; both operands are int8."""
    b = GraphBuilder("qlinear")
    x = b.input("x", (1, 8, 6, 6), np.uint8)
    weight = b.constant(np.ones((4, 8, 3, 3), np.int8))
    scale, zero, level = (b.constant(value) for value in (np.float32(0.1), np.uint8(0), np.int8(0)))
    b.output(b.op("QLinearConv", x, scale, zero, weight, scale, level, scale, zero, kernel_shape=[3, 3]))
    product = only(work_of(b.build()).products)
    assert sizes(product) == (16, 4, 8, 9, 1, 1)
    assert (product.input_dtype, product.weight_dtype) == ("uint8", "int8")


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 32), ("int4", 4), ("bfloat16", 16), ("bool", 8)])
def test_bits_of_a_type(dtype: str, bits: int) -> None:
    """As its name says; a truth value takes a byte."""
    assert dtype_bits(dtype) == bits


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("face-slim-320", {}),
        ("vad-16k", {"shapes": {"input": (1, 512)}, "constants": {"sr": 16000}}),
        ("resnet20-cifar10", {}),
    ],
)
def test_real_models_are_known_work(shared_models: Path, name: str, arguments) -> None:
    """Every operator is known, every shape too, and the products hold all multiply-accumulates."""
    model = Model.load(shared_models / f"{name}.onnx", **arguments)
    works = model_work(model)
    assert {work.method for work in works} <= {"products", "elements", "view"}
    assert sum(product.macs for work in works for product in work.products) == model.macs
