"""ONNX files of trees compute what the reference computes, and give the trees back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import GraphBuilder, InputError, Model
from framefit.core.trees import Ensemble, Forest, FreeTree, Patch, Scaled, TreeNode, evaluate
from framefit.devices.device import allocate
from framefit.devices.ort import OrtDevice
from framefit.trees.exporting import Flavour, as_model, read_trees, with_trees
from trees_cases import random_ensemble, random_inputs

KINDS = st.sampled_from(["vote", "scalar", "vector"])
FLAVOURS = st.sampled_from(["core", "ml"])


def _run(model: Model, x: np.ndarray, cache: Path | None = None) -> np.ndarray:
    """What ONNX Runtime makes of a model, without its optimisations."""
    device = OrtDevice(cache=cache)
    lowered = Model(model._ir, name=model.name, lowered=True)
    handle = device.compile(lowered, device.target.units[0].name, "model")
    tensors = {model.inputs[0].name: x, model.outputs[0].name: allocate(model.outputs[0])}
    device.submit(handle.bind(tensors))
    return tensors[model.outputs[0].name]


def _assert_equal(ensemble: Ensemble, x: np.ndarray, flavour: Flavour) -> None:
    np.testing.assert_array_equal(_run(as_model(ensemble, len(x), flavour), x), evaluate(ensemble, x))


@settings(max_examples=20)
@given(seed=st.integers(0, 999), kind=KINDS, free=st.booleans(), levelled=st.booleans(), flavour=FLAVOURS)
def test_dense(seed: int, kind: str, free: bool, levelled: bool, flavour: Flavour) -> None:
    """Ensembles on vectors, run by ONNX Runtime."""
    random = np.random.default_rng(seed)
    shape = ((7,), (2, 3), (1, 2, 2))[seed % 3]
    ensemble = random_ensemble(random, kind=kind, free=free, levelled=levelled, input_shape=shape)
    _assert_equal(ensemble, random_inputs(random, ensemble, 3), flavour)


@settings(max_examples=24)
@given(
    seed=st.integers(0, 999),
    kind=KINDS,
    free=st.booleans(),
    flavour=FLAVOURS,
    patch=st.builds(
        Patch,
        kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
        padding=st.tuples(*[st.integers(0, 2)] * 4),
        border=st.booleans(),
    ),
)
def test_pictures(seed: int, kind: str, free: bool, flavour: Flavour, patch: Patch) -> None:
    """Ensembles on patches, borders included, run by ONNX Runtime."""
    random = np.random.default_rng(seed)
    ensemble = random_ensemble(random, kind=kind, free=free, patch=patch, input_shape=(2, 5, 4))
    _assert_equal(ensemble, random_inputs(random, ensemble, 2), flavour)


def _network() -> Model:
    b = GraphBuilder("network")
    x = b.input("x", (1, 7))
    for width in (7, 5, 3):
        x = b.dense(x, width, activation="Relu")
    b.output(b.dense(x, 2), "logits")
    return b.build()


def _forest(random: np.random.Generator, model: Model) -> Forest:
    ensemble = random_ensemble(random)
    fields = {name: getattr(ensemble, name) for name in ensemble.__struct_fields__}
    return Forest(model=model.name, ensembles=(Ensemble(**fields | {"input": "Relu_1", "output": "Relu_3"}),))


@pytest.mark.parametrize("flavour", ["core", "ml"])
def test_a_file_gives_its_trees_back(tmp_path: Path, flavour: Flavour) -> None:
    """A hybrid in one file: loaded it computes the same, and its trees are those that were put in."""
    random = np.random.default_rng(3)
    model = _network()
    forest = _forest(random, model)
    hybrid = with_trees(model, forest, flavour)
    path = tmp_path / "network.onnx"
    hybrid.save(path)
    assert read_trees(path) == forest
    x = random.normal(size=(1, 7)).astype(np.float32)
    found = _run(Model.load(path), x, tmp_path)
    np.testing.assert_array_equal(found, _run(hybrid, x))
    middle = _run(model.segment(0, 1), x)
    end = model.segment(6, len(model.layers) - 1)
    np.testing.assert_array_equal(found, _run(end, evaluate(forest.ensembles[0], middle)))


def test_words_compared_in_any_way() -> None:
    """Of a word's two bits a node may look at either or both; the tree operator has a comparison for each."""
    for low, high, a in ((0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 1, 0), (0, 1, 2), (0, 0, 1)):
        ensemble = random_ensemble(np.random.default_rng(1), kind="scalar", free=True, input_shape=(1,), depth=0)
        node = TreeNode(x=0, a=a, l=low, h=high, i0=1, i1=2)
        trees = tuple(FreeTree(nodes=(node,), leaves=(1 + number, 20)) for number in range(len(ensemble.free_trees)))
        fields = {name: getattr(ensemble, name) for name in ensemble.__struct_fields__} | {"free_trees": trees}
        made = Ensemble(**fields | {"levels": None, "scaled": Scaled(bias=(0,) * 3, scale=(1.0,) * 3)})
        x = np.asarray([[-9.0], [(made.encoder.low[0] + made.encoder.high[0]) / 2], [9.0]], np.float32)
        for flavour in ("core", "ml"):
            _assert_equal(made, x, flavour)


def test_a_file_without_trees(tmp_path: Path) -> None:
    """No trees are no error; what is no ONNX file is one."""
    path = tmp_path / "plain.onnx"
    _network().save(path)
    assert read_trees(path) is None
    path.write_bytes(b"\x93" * 50)
    with pytest.raises(InputError, match="not an ONNX file"):
        read_trees(path)
