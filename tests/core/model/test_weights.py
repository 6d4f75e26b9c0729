"""Weights out of a model and back into it; batch normalisations folded; the batch left free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from framefit.core.model import GraphBuilder, Model, folded, free_batch, listing, rebatched, with_weights
from framefit.core.model.builtin import BUILTIN
from framefit.errors import InputError, UnsupportedError
from networks import NETWORKS, Runner, difference, random_inputs

Arrays = Mapping[str, np.ndarray[Any, Any]]

NORMED = ("plain", "residual", "inverted_residual")
BATCHED = (*NORMED, "unet", "dense_block", "attention", "dynamic", "towers", "split_channels")


def run(content: bytes, feeds: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs of an ONNX file, graph optimisations off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_its_own_weights_change_nothing(name: str) -> None:
    """A model with its own weights put back computes what it computed, and its layers keep their names."""
    model = NETWORKS[name]()
    again = with_weights(model, listing(model).arrays)
    assert [layer.name for layer in again.layers] == [layer.name for layer in model.layers]
    feeds = random_inputs(model, 0)
    assert difference(Runner(model).whole(feeds), Runner(again).whole(feeds)) <= 1e-6


def test_new_weights_are_used() -> None:
    """A replaced weight is what the model computes with; the model that it was made from stays as it is."""
    model = NETWORKS["plain"]()
    weight = next(name for name, array in listing(model).arrays.items() if array.ndim == 4)
    digest = model.digest
    zeroed = with_weights(model, {weight: np.zeros_like(listing(model).arrays[weight])})
    assert zeroed.weight_zeros()[0] == 1.0
    assert model.digest == digest
    assert not listing(zeroed).arrays[weight].any()


def test_an_unknown_weight_is_refused() -> None:
    """A name that no initializer has is an input error that offers the nearest one."""
    with pytest.raises(InputError, match="did you mean 'weight_1'"):
        with_weights(NETWORKS["plain"](), {"weigth_1": np.zeros(1)})


def test_removed_channels_change_shapes_and_groups() -> None:
    """With half of the channels gone from what makes and reads them, depthwise groups follow and shapes are new."""
    b = GraphBuilder("narrow")
    x = b.conv(b.input("image", (1, 3, 8, 8)), 8, norm=True, activation="Relu")
    x = b.conv(x, 8, groups=8, norm=True, activation="Relu")
    b.output(b.conv(x, 4, kernel=1), "features")
    model = b.build()
    arrays = listing(model).arrays
    halved = {
        name: array[:4] if len(array) == 8 else array[:, :4] if array.ndim == 4 and array.shape[1] == 8 else array
        for name, array in arrays.items()
    }
    narrow = with_weights(model, halved)
    assert narrow.layers[0].outputs[0].shape == (1, 4, 8, 8)
    assert next(node for nodes in narrow.nodes for node in nodes if node.name == "Conv_2").attributes["group"] == 4
    assert narrow.macs < 0.55 * model.macs
    assert Runner(narrow).whole(random_inputs(narrow, 0))["features"].shape == (1, 4, 8, 8)


def test_weights_that_do_not_fit_each_other_are_refused() -> None:
    """Channels removed from one weight only are an input error, not a broken model."""
    model = NETWORKS["plain"]()
    weight = next(name for name, array in listing(model).arrays.items() if array.ndim == 4)
    with pytest.raises(InputError):
        with_weights(model, {weight: listing(model).arrays[weight][:4]})


def test_equal_weights_that_an_exporter_wrote_once_are_two(tmp_path: Path) -> None:
    """An ``Identity`` of an initializer and a ``Constant`` node are arrays of their own, to be changed apart."""
    nodes = [
        helper.make_node("Identity", ["bias"], ["copy"]),
        helper.make_node("Constant", [], ["scale"], value=numpy_helper.from_array(np.full((4,), 2, np.float32), "two")),
        helper.make_node("Add", ["x", "bias"], ["y"]),
        helper.make_node("Add", ["y", "copy"], ["z"]),
        helper.make_node("Mul", ["z", "scale"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.ones(4, np.float32), "bias")],
    )
    path = tmp_path / "twice.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = Model.load(path)
    assert set(listing(model).arrays) == {"bias", "copy", "scale"}
    changed = with_weights(model, {"copy": np.full(4, 10, np.float32)})
    assert Runner(changed).whole({"x": np.zeros((1, 4), np.float32)})["out"].tolist() == [[22.0] * 4]


@pytest.mark.parametrize("name", NORMED)
def test_folded_norms_compute_the_same(name: str) -> None:
    """Batch normalisations go into the convolutions before them; the outputs stay, and so do the other names."""
    model = NETWORKS[name]()
    small = folded(model)
    assert not [layer for layer in small.layers if layer.op == "BatchNormalization"]
    names = [layer.name for layer in model.layers if layer.op != "BatchNormalization"]
    assert [layer.name for layer in small.layers] == names
    feeds = random_inputs(model, 1)
    assert difference(Runner(model).whole(feeds), Runner(small).whole(feeds)) <= 1e-5


def test_a_norm_whose_input_others_read_stays() -> None:
    """A convolution that something else reads too is not changed."""
    b = GraphBuilder("read_twice")
    x = b.conv(b.input("image", (1, 3, 8, 8)), 4)
    b.output(b.op("Add", b.batch_norm(x), x))
    model = b.build()
    assert [layer.op for layer in folded(model).layers] == ["Conv", "BatchNormalization", "Add"]


@pytest.mark.parametrize("name", BATCHED)
def test_a_free_batch_runs_many_at_once(name: str) -> None:
    """With its batch left free a network gives for three examples what it gives for each alone."""
    model = NETWORKS[name]()
    feeds = [random_inputs(model, seed) for seed in range(3)]
    together = {key: np.concatenate([one[key] for one in feeds]) for key in feeds[0]}
    alone = [Runner(model).whole(one) for one in feeds]
    expected = {key: np.concatenate([one[key] for one in alone]) for key in alone[0]}
    assert difference(expected, run(free_batch(model), together)) <= 1e-5


def test_the_detector_keeps_a_free_batch() -> None:
    """Reshapes whose constants say batch 1 let any batch through."""
    model = BUILTIN["detector"](0)
    feeds = {"image": np.concatenate([random_inputs(model, seed)["image"] for seed in range(2)])}
    assert run(free_batch(model), feeds)["scores"].shape == (2, 4360, 2)


def test_a_batch_that_constants_fix_is_refused() -> None:
    """Where an output does not follow the batch the error names the node that makes it."""
    b = GraphBuilder("fixed")
    x = b.op("ReduceMean", b.input("rows", (1, 4)), axes=[0], keepdims=0)
    b.output(b.op("Reshape", x, b.constant(np.asarray([1, 4], np.int64))))
    with pytest.raises(UnsupportedError, match="Reshape_1"):
        free_batch(b.build())


def merged(batch: int) -> Model:
    """Tokens with a class token in front; a product between reshapes that merge the batch behind the tokens."""
    b = GraphBuilder("merged", 4)
    x = b.input("tokens", (batch, 6, 8))
    token = b.constant(np.broadcast_to(np.arange(8, dtype=np.float32), (batch, 1, 8)))
    x = b.op("Transpose", b.op("Concat", token, x, axis=1), perm=[1, 0, 2])
    x = b.op("Reshape", x, b.constant(np.asarray([7 * batch, 8], np.int64)))
    x = b.op("Reshape", b.dense(x, 8), b.constant(np.asarray([7, batch, 2, 4], np.int64)))
    x = b.op("Transpose", x, perm=[1, 2, 0, 3])
    b.output(b.op("Reshape", x, b.constant(np.asarray([batch, 56], np.int64))), "features")
    return b.build()


@pytest.mark.parametrize("batch", [1, 2])
def test_a_merged_batch_is_followed(batch: int) -> None:
    """From a batch that no other size equals a network is made for another one, and computes the same."""
    wide = merged(13)
    feeds = random_inputs(wide, 0)
    expected = Runner(wide).whole(feeds)["features"][:batch]
    narrow = rebatched(wide, batch)
    assert [tensor.shape for tensor in (*narrow.inputs, *narrow.outputs)] == [(batch, 6, 8), (batch, 56)]
    found = run(narrow.to_bytes(), {"tokens": feeds["tokens"][:batch]})
    assert difference({"features": expected}, found) <= 1e-6


def test_a_constant_that_is_joined_follows_a_free_batch() -> None:
    """A class token is repeated for as many examples as come, also after the batch was changed."""
    wide = merged(13)
    feeds = random_inputs(wide, 0)
    expected = Runner(wide).whole(feeds)
    for model in (wide, rebatched(wide, 1)):
        assert difference(expected, run(free_batch(model), feeds)) <= 1e-6
