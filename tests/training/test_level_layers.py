"""Few levels of weights and outputs: what they are, and that networks learn with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import GraphBuilder, Model

pytest.importorskip("torch", reason="the extra 'train' is not installed")
import torch

from framefit.training.data import Examples
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import load_state, state, to_torch
from framefit.training.tree_layer import LevelLayer, levelled_state, quantise_weights

LEVELS = {"binary": 2, "ternary": 3, "4bit": 15, "8bit": 255}


def _network() -> Model:
    b = GraphBuilder("net", 1)
    x = b.conv(b.input("x", (1, 1, 6, 6)), 4, activation="Relu")
    x = b.conv(x, 6, norm=True, activation="Relu")
    b.output(b.dense(b.dense(b.op("Flatten", x), 8, activation="Relu"), 2), "y")
    return b.build()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), levels=st.sampled_from(sorted(LEVELS)))
def test_weights_have_so_many_levels(seed: int, levels: str) -> None:
    """Each output channel has its own scale and no more values than asked; quantised again they stay as they are."""
    network = to_torch(_network())
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for weight in network.weights.values():
            weight.copy_(torch.from_numpy(random.standard_normal(tuple(weight.shape)).astype(np.float32)))
    spare = frozenset({"weight_1", "weight_4"})
    quantise_weights(network, levels, spare)  # type: ignore[arg-type]
    before, found = state(network), levelled_state(network)
    for name in spare:
        np.testing.assert_array_equal(found[name], before[name])
    for name, axis in (("weight_2", 0), ("weight_3", 1)):
        rows = np.moveaxis(found[name], axis, 0).reshape(found[name].shape[axis], -1)
        assert all(len(np.unique(row)) <= LEVELS[levels] for row in rows)
        assert np.corrcoef(rows.ravel(), np.moveaxis(before[name], axis, 0).ravel())[0, 1] > 0.7
    again = to_torch(_network())
    with torch.no_grad():
        for name, weight in again.weights.items():
            weight.copy_(torch.from_numpy(found[name]))
    quantise_weights(again, levels, spare)  # type: ignore[arg-type]
    for name, array in levelled_state(again).items():
        np.testing.assert_allclose(array, found[name], rtol=1e-5, atol=1e-6)


def test_a_network_learns_with_few_levels() -> None:
    """With ternary weights the loss falls, and a float network with the weights that are told computes the same."""
    network = to_torch(_network())
    quantise_weights(network, "ternary", frozenset({"weight_1", "weight_4"}))
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 256)
    slopes = labels[:, None, None, None] * np.linspace(-1, 1, 6)
    x = (random.standard_normal((256, 1, 6, 6)) + slopes).astype(np.float32)
    recipe = Recipe(epochs=12, batch=32, rate=0.02, pad=0, flip=False, bf16=False)
    tuned = fine_tune(network, Examples(x, labels), recipe)
    assert tuned.losses[-1] < 0.7 * tuned.losses[0]
    other = to_torch(_network()).eval()
    load_state(other, levelled_state(network))
    with torch.no_grad():
        torch.testing.assert_close(other(torch.from_numpy(x)), network(torch.from_numpy(x)))


def test_levels_of_a_tensor() -> None:
    """Pictures by channel, vectors by feature: exactly the level's value; gradients reach thresholds and values."""
    low, high = np.asarray([-1.0, 0.5], np.float32), np.asarray([1.0, 0.5], np.float32)
    values = np.asarray([[-2, 0, 2], [0, 9, 1]], np.float32)
    layer = LevelLayer(low, high, values)
    x = torch.tensor([[-3.0, 0.5], [0.0, 0.6], [1.5, 0.4]], requires_grad=True)
    assert layer(x).tolist() == [[-2, 0], [0, 1], [2, 0]]
    pictures = layer(x[:, :, None, None].expand(-1, -1, 2, 3))
    assert pictures.shape == (3, 2, 2, 3)
    assert pictures[:, :, 1, 2].tolist() == [[-2, 0], [0, 1], [2, 0]]
    layer(x).sum().backward()
    assert x.grad[0].tolist()[0] == 0
    assert float(x.grad[1, 0]) > 0
    assert layer.values.grad.tolist() == [[1, 1, 1], [2, 0, 1]]
    assert all(np.array_equal(one, other) for one, other in zip(layer.levels(), (low, high, values), strict=True))
