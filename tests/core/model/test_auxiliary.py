"""Auxiliary layers: their shapes, what they leave alone, and that none of them is folded away."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.model import AUXILIARY_KINDS, Auxiliary, GraphBuilder, Model, TensorInfo, with_auxiliary
from framefit.core.model.auxiliary import picture_shape
from networks import NETWORKS, random_inputs

auxiliaries = st.builds(
    Auxiliary, kind=st.sampled_from(AUXILIARY_KINDS), stride=st.integers(1, 4), channels=st.sampled_from([1, 16, 32])
)
shapes = st.lists(st.integers(1, 9), min_size=0, max_size=5).map(tuple)


def tensor(shape: tuple[int, ...], dtype: str = "float32") -> TensorInfo:
    """An input."""
    return TensorInfo(name="x", dtype=dtype, shape=shape)


def difference(expected: np.ndarray, given: np.ndarray) -> float:
    """Largest max|a - b| / max|a|; infinite where shapes differ."""
    if expected.shape != given.shape:
        return np.inf
    return float(np.abs(expected - given).max() / max(np.abs(expected).max(), 1e-30))


def outputs(model: Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What ONNX Runtime computes."""
    session = ort.InferenceSession(model.to_bytes(), providers=["CPUExecutionProvider"])
    return dict(zip([t.name for t in model.outputs], session.run(None, feeds), strict=True))


@given(shapes, auxiliaries, st.sampled_from(["float32", "int64", "float16", "bool"]))
def test_any_tensor_can_have_one(shape: tuple[int, ...], auxiliary: Auxiliary, dtype: str) -> None:
    """Of any rank and type; the output has the shape that is foretold, and is a float picture."""
    model = with_auxiliary(tensor(shape, dtype), [auxiliary])
    (output,) = model.outputs
    assert (output.shape, output.dtype) == (auxiliary.output_shape(shape), "float32")
    assert [(t.name, t.shape, t.dtype) for t in model.inputs] == [("x", shape, dtype)]


@given(shapes)
def test_a_picture_has_the_same_elements(shape: tuple[int, ...]) -> None:
    """Four dimensions, as many elements; what is a picture stays as it is."""
    assert math.prod(picture_shape(shape)) == math.prod(shape)
    assert len(shape) != 4 or picture_shape(shape) == shape


@pytest.mark.parametrize("kind", AUXILIARY_KINDS)
@pytest.mark.parametrize("name", ["residual", "two_ends", "lstm", "dense_block", "branching", "quantised"])
def test_the_layer_before_it_stays_what_it_is(name: str, kind: str) -> None:
    """Other outputs are returned unchanged, and the auxiliary layer reads the one that it replaces."""
    model = NETWORKS[name]()
    feeds = random_inputs(model, 0)
    expected = outputs(model, feeds)
    chosen = model.outputs[0].name
    behind = with_auxiliary(model, [Auxiliary(kind=kind)], tensor=chosen)
    found = outputs(behind, feeds)
    for other in model.outputs[1:]:
        assert difference(found[other.name], expected[other.name]) < 1e-6
    alone = with_auxiliary(TensorInfo(name="x", dtype="float32", shape=expected[chosen].shape), [Auxiliary(kind=kind)])
    (auxiliary,) = set(found) - {t.name for t in model.outputs}
    (expected_auxiliary,) = outputs(alone, {"x": expected[chosen]}).values()
    assert difference(found[auxiliary], expected_auxiliary) < 1e-5


def test_inner_tensors_of_a_segment_cross_the_link_when_it_stands_alone() -> None:
    """A segment shares them with its neighbours; a model of its own does not."""
    segment = NETWORKS["plain"]().segment(2, 2)
    assert segment.internal_tensors
    assert not with_auxiliary(segment, []).internal_tensors
    assert not with_auxiliary(segment, [Auxiliary(kind="avgpool")], tensor=segment.outputs[0].name).internal_tensors


@pytest.mark.parametrize("kind", AUXILIARY_KINDS)
def test_twins_survive_the_optimiser(kind: str, tmp_path) -> None:
    """ONNX Runtime, which joins equal nodes, computes both of them; two pools give the same."""
    model = with_auxiliary(tensor((1, 8, 12, 12)), [Auxiliary(kind=kind)], variants=(0, 1))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = ort.InferenceSession(model.to_bytes(), options, providers=["CPUExecutionProvider"])
    one, two = session.run(None, {"x": np.random.default_rng(0).standard_normal((1, 8, 12, 12)).astype(np.float32)})
    assert [layer.op for layer in Model.load(tmp_path / "optimised.onnx").layers] == [
        "AveragePool" if kind == "avgpool" else "Conv"
    ] * 2
    assert (difference(one, two) < 1e-6) == (kind == "avgpool")


def test_what_a_chain_makes_can_be_shown() -> None:
    """The same computation; the tensor between the links is one more output."""
    links = [Auxiliary(kind="conv1x1", stride=1, channels=4), Auxiliary(kind="conv1x1", stride=2)]
    plain = with_auxiliary(tensor((1, 3, 8, 8)), links, seed=5)
    shown = with_auxiliary(tensor((1, 3, 8, 8)), links, shown=True, seed=5)
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32)}
    assert [t.shape for t in shown.outputs] == [(1, 4, 8, 8), (1, 16, 4, 4)]
    assert len(plain.outputs) == 1
    (last,) = outputs(plain, feeds).values()
    assert difference(outputs(shown, feeds)[shown.outputs[1].name], last) < 1e-6


def test_names_of_the_base_are_not_taken_again() -> None:
    """A model whose own tensors and nodes are named as the builder would name new ones."""
    b = GraphBuilder("names")
    x = b.conv(b.conv(b.input("x", (1, 3, 8, 8)), 4), 4)
    b.output(b.op("AveragePool", x, kernel_shape=[2, 2]))
    model = with_auxiliary(b.build(), [Auxiliary(kind="conv3x3")], tensor="AveragePool_1")
    names = [node for layer in model.layers for node in layer.nodes]
    assert len(set(names)) == len(names) == 4
    assert names[:3] == ["Conv_1", "Conv_2", "AveragePool_1"]


def test_the_seed_makes_the_weights() -> None:
    """Equal seeds give equal bytes."""
    one, same, other = (
        with_auxiliary(tensor((1, 3, 8, 8)), [Auxiliary(kind="conv3x3")], seed=seed).digest for seed in (1, 1, 2)
    )
    assert one == same != other
