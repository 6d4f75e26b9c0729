"""Trees that learn: equal to the reference forward, and gradients that point where the loss falls."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import GraphBuilder, Model
from framefit.core.trees import Ensemble, Patch, TreeKind, evaluate
from framefit.errors import InputError, UnsupportedError
from trees_cases import random_ensemble, random_inputs

pytest.importorskip("torch", reason="the extra 'train' is not installed")

import torch

from framefit.training.data import Examples
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import load_state, state, to_model, to_torch
from framefit.training.tree_layer import TreeLayer, _Sums, chosen, rounded, step

Array = np.ndarray
PATCH = Patch(kernel=(3, 2), stride=(2, 1), padding=(1, 0, 1, 1), border=True)


def _case(seed: int, kind: TreeKind, *, picture: bool, levels: bool, binary: bool = False) -> tuple[Ensemble, Array]:
    random = np.random.default_rng(seed)
    ensemble = random_ensemble(
        random,
        kind=kind,
        levelled=levels,
        patch=PATCH if picture else None,
        input_shape=(3, 5, 4) if picture else (7,),
        outputs=4,
        trees=5,
        binary=binary,
    )
    return ensemble, random_inputs(random, ensemble, 6)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 999),
    kind=st.sampled_from(["vote", "scalar", "vector"]),
    picture=st.booleans(),
    levels=st.booleans(),
    binary=st.booleans(),
)
def test_forward_is_the_reference(seed: int, kind: TreeKind, picture: bool, levels: bool, binary: bool) -> None:
    """Before and after a step of training the module gives, bit for bit, what the ensemble that it holds gives."""
    ensemble, x = _case(seed, kind, picture=picture, levels=levels, binary=binary)
    layer = TreeLayer(ensemble, x)
    assert layer.ensemble() == ensemble
    np.testing.assert_array_equal(layer(torch.from_numpy(x)).detach().numpy(), evaluate(ensemble, x))
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.from_numpy(x)).square().mean().backward()
    optimiser.step()
    np.testing.assert_array_equal(layer(torch.from_numpy(x)).detach().numpy(), evaluate(layer.ensemble(), x))


def test_gradients_of_leaves_and_outputs_are_exact() -> None:
    """Where nothing is rounded, gradients are those of the sum of leaves that a row reaches."""
    ensemble, x = _case(3, "vector", picture=True, levels=False)
    layer = TreeLayer(ensemble, x)
    slope = torch.from_numpy(np.random.default_rng(0).standard_normal((6, *ensemble.output_shape)).astype(np.float32))
    (layer(torch.from_numpy(x)) * slope).sum().backward()
    told = slope.flatten(2).transpose(1, 2).reshape(-1, ensemble.outputs)
    scale = torch.tensor(ensemble.scaled.scale)  # type: ignore[union-attr]
    for tree in layer.effects.grad[:, 0] / layer._units:  # of each tree's mean, which every row tells of
        torch.testing.assert_close(tree, told.sum(dim=0) * scale, rtol=1e-4, atol=1e-4)
    sums = torch.from_numpy(evaluate(ensemble, x)).flatten(2).transpose(1, 2).reshape(-1, ensemble.outputs) / scale
    torch.testing.assert_close(layer.scale.grad, (sums * told).sum(dim=0), rtol=1e-3, atol=1e-1)


def test_a_test_learns_from_the_leaf_on_its_other_side() -> None:
    """A bit's gradient is the difference of the leaves between which it decides."""
    ensemble, x = _case(5, "vector", picture=False, levels=False)
    layer = TreeLayer(ensemble, x)
    tests = layer._tests(torch.from_numpy(x)).detach().requires_grad_()
    leaves = layer._leaves().detach()
    slope = torch.from_numpy(np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32))
    (_Sums.apply(tests, leaves, 0) * slope).sum().backward()
    for row, tree, level in np.ndindex(*tests.shape):
        one, zero = (tests.detach().clone() for _ in range(2))
        one[row, tree, level], zero[row, tree, level] = 1, 0
        difference = _Sums.apply(one, leaves, 0)[row] - _Sums.apply(zero, leaves, 0)[row]
        torch.testing.assert_close(tests.grad[row, tree, level], (difference * slope[row]).sum())


@pytest.mark.parametrize("kind", ["vote", "scalar", "vector"])
def test_trees_learn(kind: TreeKind) -> None:
    """Another function of the same tests is learnt: the loss falls by half or more."""
    ensemble, _ = _case(1, kind, picture=False, levels=True)
    x = np.random.default_rng(0).standard_normal((256, 7)).astype(np.float32)
    y = torch.from_numpy(np.tanh(x @ np.random.default_rng(1).standard_normal((7, 4)).astype(np.float32)))
    layer = TreeLayer(ensemble, x)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(80):
        loss = ((layer(torch.from_numpy(x)) - y) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert min(losses[-10:]) < 0.5 * losses[0]


def test_steps() -> None:
    """Comparisons pass gradients within their reach, rounding everywhere within its range."""
    x = torch.tensor([-3.0, -0.5, 0.0, 0.5, 3.0], requires_grad=True)
    found = step(x, 1.0)
    found.sum().backward()
    assert found.tolist() == [0, 0, 0, 1, 1]
    assert x.grad.tolist() == [0, 0.5, 0.5, 0.5, 0]
    x = torch.tensor([-200.0, 1.4, 2.6], requires_grad=True)
    found = rounded(x, 127.0)
    found.sum().backward()
    assert found.tolist() == [-127, 1, 3]
    assert x.grad.tolist() == [0, 1, 1]
    values = torch.tensor([[0.1, 0.2, 0.3]])
    levels = [
        chosen(torch.tensor([[low]]), torch.tensor([[high]]), values) for low, high in ((0.0, 0.0), (1, 0), (1, 1))
    ]
    assert [float(one) for one in levels] == values[0].tolist()


def _network() -> Model:
    b = GraphBuilder("net", 3)
    x = b.dense(b.input("x", (1, 6)), 7, activation="Relu")
    x = b.dense(b.dense(x, 9, activation="Relu"), 4, activation="Relu")
    b.output(b.dense(x, 3), "y")
    return b.build()


def test_trees_stand_in_a_network() -> None:
    """The layers before and behind learn with them, and come back as a model's weights."""
    model = _network()
    ensemble, _ = _case(2, "vector", picture=False, levels=True)
    ensemble = msgspec.structs.replace(ensemble, input="Relu_1", output="Relu_3")
    network = to_torch(model)
    random = np.random.default_rng(0)
    network.put("Relu_1", "Relu_3", "group", TreeLayer(ensemble, random.standard_normal((50, 7)).astype(np.float32)))
    x = random.standard_normal((256, 6)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    before = state(network)
    assert {"group/effects", "group/low", "group/values"} <= before.keys()
    assert len([name for name in before if name.startswith("weight")]) == 2
    tuned = fine_tune(
        network, Examples(x, labels), Recipe(epochs=20, batch=32, rate=0.02, pad=0, flip=False, bf16=False)
    )
    assert tuned.losses[-1] < 0.8 * tuned.losses[0]
    after = state(network)
    assert all((after[name] != before[name]).any() for name in ("weight_1", "group/effects", "group/low"))
    again = to_torch(model)
    again.put("Relu_1", "Relu_3", "group", TreeLayer(ensemble, x @ np.ones((6, 7), np.float32)))
    load_state(again, {name: array for name, array in after.items() if not name.startswith("group")})
    assert np.array_equal(state(to_torch(to_model(again)))["weight_1"], after["weight_1"])


def test_what_cannot_be_trained() -> None:
    """Trees of free-form, and modules between tensors that no group lies between."""
    free = random_ensemble(np.random.default_rng(0), free=True)
    with pytest.raises(UnsupportedError, match="free-form"):
        TreeLayer(free, np.zeros((4, 7), np.float32))
    with pytest.raises(InputError, match="no tensor"):
        to_torch(_network()).put("x", "nowhere", "part", torch.nn.Identity())
