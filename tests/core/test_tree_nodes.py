"""Trees as nodes of a model."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from framefit import InputError
from framefit.core.model import GraphBuilder, Model, rebatched
from framefit.core.trees import FreeTree, ObliviousTree, TreeNode, ensembles_in, operations, tree_layers
from trees_cases import hybrid, random_ensemble


def test_trees_are_one_layer(tmp_path: Path) -> None:
    """Made, saved and loaded again: the same layers, of which one is the trees and tells what it costs."""
    model, network, ensemble = hybrid()
    model.save(tmp_path / "hybrid.onnx")
    for one in (model, Model.load(tmp_path / "hybrid.onnx")):
        (place,) = tree_layers(one)
        layer, node = one.layers[place], one.nodes[place][0]
        assert (layer.op, layer.name, layer.macs) == ("Trees", ensemble.name, 0)
        assert [t.name for t in (*layer.inputs, *layer.outputs)] == [ensemble.input, ensemble.output]
        assert node.attributes == {
            "kind": "vector",
            "trees": 8,
            "bytes": ensemble.bytes,
            "operations": operations(ensemble),
        }
        assert ensembles_in(one) == {ensemble.name: ensemble}
    assert tree_layers(network) == ()
    assert ensembles_in(network) == {}


def test_segments_keep_their_own_trees() -> None:
    """A segment with the trees has them, the others have nothing of them."""
    model, _, ensemble = hybrid()
    (place,) = tree_layers(model)
    front, trees, back = model.segment(0, place - 1), model.segment(place, place), model.segment(place + 1, place + 2)
    assert ensembles_in(trees) == {ensemble.name: ensemble}
    assert front.notes == back.notes == {}
    assert len(front.to_bytes()) < len(trees.to_bytes())


def test_another_model_goes_on_from_one_with_trees() -> None:
    """What the graph builder copies has its trees, and so has the model for another batch."""
    model, _, ensemble = hybrid()
    b = GraphBuilder("longer", base=model)
    b.output(b.op("Neg", "pooled"), "negated")
    assert ensembles_in(b.build()) == {ensemble.name: ensemble}
    wider = rebatched(model, 3)
    assert wider.outputs[0].shape == (3, 8, 1, 1)
    assert ensembles_in(wider) == {ensemble.name: ensemble}


def test_operations() -> None:
    """Two comparisons an input; of a row a selection a test, an addition a leaf's number, three steps an output."""
    ensemble = random_ensemble(np.random.default_rng(0), kind="vector", outputs=5, trees=4)
    tests = sum(len(tree.inputs) for tree in ensemble.trees)
    assert operations(ensemble) == 2 * 7 + tests + 4 * 5 + 3 * 5
    model, _, convolved = hybrid("vote")
    tests = sum(len(tree.inputs) for tree in convolved.trees)
    assert operations(convolved) == 2 * 8 * 64 + 64 * (tests + len(convolved.trees) + 2 * 8)
    assert math.prod(model.outputs[0].shape or ()) == 8


def test_depth() -> None:
    """Tests on the longest way."""
    assert ObliviousTree(inputs=(3, 1), bits=(0, 1), leaves=(0,) * 4).depth == 2
    nodes = (
        TreeNode(x=0, a=0, l=0, h=0, i0=1, i1=4),
        TreeNode(x=1, a=0, l=0, h=0, i0=2, i1=5),
        TreeNode(x=2, a=0, l=0, h=0, i0=3, i1=6),
    )
    assert FreeTree(nodes=nodes, leaves=(0,) * 4).depth == 3
    assert FreeTree(nodes=(), leaves=(1,)).depth == 0


def test_damaged_trees(tmp_path: Path) -> None:
    """Trees in a file that are none are one error that names the group."""
    model, _, ensemble = hybrid()
    text = msgspec.json.encode(ensemble)
    broken = model.to_bytes().replace(text, b"{" * len(text))
    (tmp_path / "broken.onnx").write_bytes(broken)
    with pytest.raises(InputError, match=f"trees '{ensemble.name}': not valid JSON"):
        ensembles_in(Model.load(tmp_path / "broken.onnx"))
