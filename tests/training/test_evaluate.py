"""Accuracy with its interval, and batch-norm statistics from a few hundred inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from framefit import GraphBuilder, InputError
from framefit.stats import wilson
from framefit.training.data import Dataset, Examples
from framefit.training.evaluate import evaluate, reestimate
from framefit.training.network import state, to_model, to_torch
from networks import NETWORKS, Runner


def rows(logits: list[list[float]], labels: list[int]) -> Examples:
    """Examples whose inputs are the answers."""
    return Examples(np.asarray(logits, np.float32), np.asarray(labels, np.int64))


def test_top1_and_top5_are_counted() -> None:
    """The right class first, fifth and sixth of seven: one in three, and two in three."""
    order = [7.0, 6, 5, 4, 3, 2, 1]
    found = evaluate(lambda x: x, rows([order] * 3, [0, 4, 5]))
    assert (found.top1, found.top5, found.images) == (pytest.approx(1 / 3), pytest.approx(2 / 3), 3)
    assert found.top1_interval == wilson(1, 3)
    assert found.top5_interval == wilson(2, 3)


def test_the_loss_is_the_cross_entropy() -> None:
    """Mean cross-entropy in nats, as PyTorch computes it."""
    random = np.random.default_rng(0)
    logits, labels = random.standard_normal((50, 4)).astype(np.float32), random.integers(0, 4, 50)
    found = evaluate(lambda x: x, Examples(logits, labels), batch=7)
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found.loss == pytest.approx(float(expected), rel=1e-5)


def test_the_same_answer_everywhere_is_no_success() -> None:
    """A class that is only as likely as others does not count as the likeliest, nor do numbers that are none."""
    assert evaluate(lambda x: 0 * x, rows([[1.0, 2, 3]] * 4, [0, 1, 2, 0])).top1 == 0
    assert evaluate(lambda x: np.nan * x, rows([[1.0, 2, 3]] * 4, [0, 1, 2, 0])).top1 == 0


def test_a_network_and_the_runtime_agree() -> None:
    """A network in training mode is judged in evaluation mode, as ONNX Runtime judges its file, and stays as it was."""
    model = NETWORKS["plain"]()
    network = to_torch(model).train()
    random = np.random.default_rng(1)
    examples = Examples(random.standard_normal((40, 3, 16, 16)).astype(np.float32), random.integers(0, 5, 40))
    before = state(network)
    run = Runner(to_model(network))
    here = evaluate(network, examples, batch=16)
    there = evaluate(lambda x: run.whole({"image": x})["classes"], examples, batch=1)
    assert (here.top1, here.top5) == (there.top1, there.top5)
    assert network.training
    for name, array in state(network).items():
        np.testing.assert_array_equal(array, before[name])


def test_any_module_is_judged(stripes: Dataset) -> None:
    """A plain PyTorch module is judged by its output."""
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    assert evaluate(module, stripes.validation).images == len(stripes.validation)


@pytest.mark.parametrize("outputs", [(2, 3), (4, 2), (4, 3, 2)])
def test_outputs_that_are_no_classes_are_refused(outputs: tuple[int, ...]) -> None:
    """Too few rows, too few classes or a picture are told with the shape."""
    with pytest.raises(InputError, match="outputs of shape"):
        evaluate(lambda x: np.zeros(outputs) * x.max(), rows([[0.0]] * 4, [0, 1, 2, 0]))


def test_no_examples_are_refused() -> None:
    """There is no accuracy of nothing."""
    with pytest.raises(InputError, match="no examples"):
        evaluate(lambda x: x, rows([], []))


def test_statistics_become_those_of_the_inputs() -> None:
    """After re-estimation running statistics are those of the inputs; weights, mode and momentum stay."""
    b = GraphBuilder("normed")
    b.output(b.batch_norm(b.input("x", (1, 3, 4, 4))), "y")
    network = to_torch(b.build())
    x = np.random.default_rng(0).normal(5, 2, (400, 3, 4, 4)).astype(np.float32)
    weights = {name: parameter.detach().clone() for name, parameter in network.weights.items()}
    reestimate(network, x, batch=100)
    (norm,) = network.norms.values()
    np.testing.assert_allclose(norm.running_mean, x.mean(axis=(0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(norm.running_var, x.var(axis=(0, 2, 3)), rtol=1e-2)
    assert norm.momentum == pytest.approx(0.1)
    assert network.training
    assert all(torch.equal(network.weights[name], old) for name, old in weights.items())


def test_statistics_of_one_input_are_refused() -> None:
    """One input has no variance; a network without batch norm needs none."""
    network = to_torch(NETWORKS["residual"]())
    with pytest.raises(InputError, match="1 inputs are too few for statistics"):
        reestimate(network, np.zeros((1, 3, 16, 16), np.float32))
    reestimate(to_torch(NETWORKS["dense_block"]()), np.zeros((0, 4, 8, 8), np.float32))
