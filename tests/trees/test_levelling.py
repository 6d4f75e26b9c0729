"""Quantisers in a model: where they stand, and that the graph computes what they say."""

from __future__ import annotations

import numpy as np
import pytest

from framefit.core.model import GraphBuilder, Model, listing
from framefit.trees.groups import boundaries
from framefit.trees.quantising import LevelMap, fit_level_map, inserted, places
from networks import Runner


def _network() -> Model:
    b = GraphBuilder("net", 1)
    x = b.conv(b.input("image", (1, 2, 6, 6)), 4, norm=True, activation="Relu")
    y = b.conv(b.conv(x, 4, norm=True, activation="Relu"), 4, norm=True)
    x = b.op("Relu", b.op("Add", y, x))
    b.output(b.dense(b.op("Flatten", x), 3), "classes")
    return b.build()


def test_places() -> None:
    """Behind normalisation and activation of each layer but the last, behind sums, and at the input on request."""
    model = _network()
    ops = {node.outputs[0].name: node.op for nodes in model.nodes for node in nodes}
    found = places(model, data=True, outputs=True)
    assert found[0] == "image"
    assert [ops[name] for name in found[1:]] == ["Relu", "Relu", "BatchNormalization", "Relu"]
    assert places(model, data=True, outputs=False) == ("image",)
    assert places(model, data=False, outputs=False) == ()


def test_the_graph_computes_levels() -> None:
    """Every reader sees the quantised tensor, bit for bit, also where the input itself is quantised."""
    model, random = _network(), np.random.default_rng(0)
    x = random.standard_normal((1, 2, 6, 6)).astype(np.float32)
    for tensor in places(model, data=True, outputs=True):
        rows = random.standard_normal((200, GraphBuilder("shape", base=model).channels(tensor)))
        levels = fit_level_map(rows.astype(np.float32))
        made, quantiser = inserted(model, tensor, levels)
        b = GraphBuilder("seen", base=made)
        b.output(tensor)
        b.output(quantiser.made)
        told = Runner(b.build()).whole({"image": x})
        np.testing.assert_array_equal(told[quantiser.made], levels(told[tensor]))
        stored = quantiser.levels(listing(made).arrays)
        np.testing.assert_array_equal(stored.values, levels.values)
        readers = [n for nodes in made.nodes for n in nodes if any(o and o.name == tensor for o in n.inputs)]
        assert {node.op for node in readers} == {"Greater"}
        model = made
    assert [place.weighted for place in boundaries(model)] == [0, 1, 3, 4]


@pytest.mark.parametrize("levels", [2, 3])
def test_levels_are_means(levels: int) -> None:
    """A level stands for the mean of what has it: no other values are more similar."""
    rows = np.random.default_rng(1).standard_normal((500, 3)).astype(np.float32)
    found = fit_level_map(rows, levels)
    made = found(rows)
    assert all(len(np.unique(column)) <= levels for column in made.T)
    for column in range(3):
        for value in np.unique(made[:, column]):
            here = made[:, column] == value
            assert rows[here, column].mean() == pytest.approx(value, abs=1e-5)


def test_features_of_any_shape() -> None:
    """Levels of features apply to what has as many elements."""
    levels = LevelMap(np.zeros(4, np.float32), np.zeros(4, np.float32), np.tile(np.float32([-1, 0, 1]), (4, 1)))
    x = np.random.default_rng(0).standard_normal((5, 2, 2)).astype(np.float32)
    np.testing.assert_array_equal(levels(x), np.where(x > 0, 1, -1))
