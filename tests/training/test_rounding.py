"""Rounding in training, beside the same network in int8 in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from framefit.core.model import GraphBuilder, Model
from framefit.devices.ort import predictor, quantised
from framefit.training.network import state, to_torch
from framefit.training.rounding import round_as


def small_network(*, product: bool = False) -> Model:
    """Convolutions with a sum and a product; or two products."""
    b = GraphBuilder("net", 3)
    if product:
        x = b.op("Relu", b.dense(b.input("x", (1, 12)), 16))
        b.output(b.op("MatMul", x, b.weight((16, 4), 16)), "y")
        return b.build()
    x = b.conv(b.input("x", (1, 3, 8, 8)), 16, activation="Relu")
    x = b.op("Add", b.conv(x, 16), x)
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 5), "y")
    return b.build()


@pytest.mark.parametrize("product", [False, True])
def test_outputs_are_those_of_the_network_in_int8(product: bool) -> None:
    """Ten times as near to it as the network in floating point is."""
    model = small_network(product=product)
    x = np.random.default_rng(0).standard_normal((64, *model.example_shape), np.float32)
    narrow = quantised(model, x)
    (expected,) = predictor(narrow)(x)
    network, rounded = to_torch(model).eval(), round_as(to_torch(model), narrow).eval()
    with torch.inference_mode():
        before, now = (np.abs(each(torch.from_numpy(x)).numpy() - expected).mean() for each in (network, rounded))
    assert now < before / 10 or now < 1e-6
    assert before > 0


def test_weights_keep_their_names_and_get_gradients() -> None:
    """What is rounded is trained as it is; beyond the range of a tensor there is no gradient."""
    model = small_network(product=True)
    x = np.random.default_rng(0).standard_normal((64, 12), np.float32)
    network = round_as(to_torch(model), quantised(model, x))
    assert set(state(network)) == set(state(to_torch(model)))
    inside = torch.from_numpy(x[:4]).requires_grad_()
    network(inside).sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in network.weights.values())
    assert inside.grad.abs().sum() > 0
    outside = torch.full((4, 12), 100.0, requires_grad=True)
    network(outside).sum().backward()
    assert outside.grad.abs().sum() == 0
