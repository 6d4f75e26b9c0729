"""``treeify`` from a model and data to a folder with a hybrid."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from framefit.core.files import read_record
from framefit.core.model import GraphBuilder, Model
from framefit.core.treeified import TreeifyResult
from framefit.core.trees import read_forest
from framefit.errors import InfeasibleError, InputError
from framefit.trees.exporting import read_trees

pytest.importorskip("torch", reason="the extra 'train' is not installed")

from framefit.training.data import Dataset, load_data
from framefit.training.fine_tune import fine_tune
from framefit.training.network import to_model, to_torch
from framefit.training.recipe import Recipe
from framefit.workflows.tree_course import Course
from framefit.workflows.treeify import treeify


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy pictures, 2 x 6 x 6, of three classes: bright on the left, in the middle or on the right."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 600)
    x = random.standard_normal((600, 2, 6, 6)).astype(np.float32)
    for label in range(3):
        x[labels == label, :, :, 2 * label : 2 * label + 2] += 1
    path = tmp_path_factory.mktemp("treeify") / "data.npz"
    np.savez(path, x_train=x[100:], y_train=labels[100:], x_test=x[:100], y_test=labels[:100])
    return path


@pytest.fixture(scope="module")
def network(data: Path) -> Model:
    """A stem, a residual block and a classifier, trained."""
    b = GraphBuilder("net", 2)
    x = b.conv(b.input("image", (1, 2, 6, 6)), 8, norm=True, activation="Relu")
    x = b.op("Relu", b.op("Add", b.conv(b.conv(x, 8, norm=True, activation="Relu"), 8, norm=True), x))
    b.output(b.dense(b.op("Flatten", x), 3), "classes")
    made = to_torch(b.build())
    recipe = Recipe(epochs=4, batch=32, rate=0.05, pad=0, flip=False, bf16=False)
    fine_tune(made, load_data(data).train, recipe)
    return to_model(made)


def test_a_residual_block_becomes_trees(network: Model, data: Path, tmp_path: Path) -> None:
    """The block is replaced as a whole, its file computes what the result was judged by, and little is lost."""
    done = treeify(network, data, first=1, layers=2, trees=24, epochs=1, output=tmp_path / "out")
    result = done.result
    assert [(group.first_layer, group.last_layer, group.depth) for group in result.chosen.groups] == [(1, 2, 6)]
    assert result.chosen.top1 > result.original.top1 - 0.1
    assert read_record(tmp_path / "out" / "result.json", TreeifyResult) == result
    forest = read_forest(tmp_path / "out" / "trees.json")
    assert forest == done.forest == read_trees(tmp_path / "out" / "model.onnx")
    assert forest.ensembles[0].patch is not None
    split: Dataset = load_data(data)
    x = split.test.inputs()[:1]
    loaded = Course(Model.load(tmp_path / "out" / "model.onnx", name="loaded")).model
    assert [tensor.shape for tensor in loaded.outputs] == [(1, 3)]
    assert x.shape[1:] == loaded.inputs[0].shape[1:]


def test_groups_are_searched(network: Model, data: Path, tmp_path: Path) -> None:
    """Without --first every group is judged by its bound, half are drafted, and two may be replaced."""
    done = treeify(network, data, groups=2, trees=8, examples=200, output=tmp_path / "out")
    spans = {(one.first_layer, one.last_layer) for one in done.result.candidates}
    assert {(0, 0), (1, 2), (0, 2)} <= spans
    assert any(one.top1 is None for one in done.result.candidates)
    ends = [(group.first_layer, group.last_layer) for group in done.result.chosen.groups]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


def test_what_cannot_be_done(network: Model, data: Path, tmp_path: Path) -> None:
    """A group that begins inside a block, senseless numbers, a folder that is there."""
    with pytest.raises(InfeasibleError, match="no group"):
        treeify(network, data, first=2, layers=1, output=tmp_path / "out")
    with pytest.raises(InputError, match="step 0"):
        treeify(network, data, step=0, output=tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="already exists"):
        treeify(network, data, output=tmp_path / "there")
