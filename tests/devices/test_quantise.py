"""Eight bits by ONNX Runtime's tool: nearly the same values, cheaper nodes, and many examples at once."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from framefit import DeviceError, GraphBuilder, Model
from framefit.devices.ort import predictor, quantised, weight_nodes


def network(batch: int = 1) -> Model:
    """Two convolutions with normalisation and a classifier."""
    b = GraphBuilder("net", 3)
    x = b.input("image", (batch, 2, 8, 8))
    for channels in (8, 12):
        x = b.conv(x, channels, norm=True, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 4), "classes")
    return b.build()


EXAMPLES = np.random.default_rng(1).standard_normal((21, 2, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 4])
def test_values_stay_close_and_products_are_in_int8(batch: int) -> None:
    """Within some hundredths of the greatest value; normalisations are gone, names of the others stay."""
    model = network(batch)
    narrow = quantised(model, EXAMPLES)
    wide, small = predictor(model)(EXAMPLES)[0], predictor(narrow)(EXAMPLES)[0]
    assert small.shape == wide.shape == (21, 4)
    assert 0 < np.abs(wide - small).max() < 0.1 * np.abs(wide).max()
    assert weight_nodes(narrow) == weight_nodes(model)
    ops = [node.op for nodes in narrow.nodes for node in nodes]
    assert "BatchNormalization" not in ops
    stored = [node.inputs[1].stored_dtype for nodes in narrow.nodes for node in nodes if node.op == "Conv"]
    assert stored == ["int8", "int8"]
    assert [tensor.shape for tensor in narrow.inputs] == [tensor.shape for tensor in model.inputs]


def test_nodes_that_are_named_stay_in_floating_point() -> None:
    """The first and the last one, for example."""
    model = network()
    first, *_, last = weight_nodes(model)
    narrow = quantised(model, EXAMPLES, but={first, last})
    stored = {
        node.name: node.inputs[1].stored_dtype
        for nodes in narrow.nodes
        for node in nodes
        if node.name in weight_nodes(model)
    }
    assert [stored[name] for name in weight_nodes(model)] == ["float32", "int8", "float32"]


def test_the_tool_leaves_the_log_alone() -> None:
    """No handler appears at the root logger, as its warnings would make one."""
    before = list(logging.getLogger().handlers)
    quantised(network(), EXAMPLES[:2])
    assert logging.getLogger().handlers == before


def test_a_model_that_the_tool_cannot_use_is_one_clear_error() -> None:
    """Examples of another shape."""
    with pytest.raises(DeviceError, match="cannot quantise"):
        quantised(network(), np.zeros((3, 2, 5, 5), np.float32))


def test_examples_go_through_at_once_or_in_the_batches_that_a_model_takes() -> None:
    """A model whose constants fix the batch gives the same as one that takes any."""
    b = GraphBuilder("fixed", 5)
    x = b.input("x", (4, 6))
    b.output(b.op("Add", x, b.constant(np.arange(24, dtype=np.float32).reshape(4, 6))), "y")
    inputs = np.ones((10, 6), np.float32)
    found = predictor(b.build())(inputs)[0]
    expected = np.tile(np.arange(24, dtype=np.float32).reshape(4, 6), (3, 1))[:10] + 1
    np.testing.assert_array_equal(found, expected)
