"""Networks without classes: how their outputs are read and scored, and what gradients say of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from framefit import InputError
from framefit.training.tasks import Classes, Outputs

RANDOM = np.random.default_rng(0)


def test_each_output_counts_alike_whatever_its_scale() -> None:
    """An error of half an output's variance, in one of two outputs, is a quarter; the score is 1 / (1 + 1/4)."""
    boxes, scores = 1000 * RANDOM.standard_normal((400, 50, 4)), 0.01 * RANDOM.standard_normal((400, 3))
    task = Outputs.like([boxes, scores])
    right = task.read((boxes, scores), 400, np.empty(0))
    off = scores + np.sqrt(0.5 * scores.var(axis=0).mean()) * RANDOM.choice([-1.0, 1.0], scores.shape)
    answers = task.read((boxes, off), 400, np.empty(0))
    assert task.loss(answers, right) / 400 == pytest.approx(0.25, rel=1e-3)
    np.testing.assert_allclose(task.scores(answers, right), 0.8, rtol=1e-3)
    assert task.loss(right, right) == 0


def test_what_never_changes_is_left_out() -> None:
    """Whole numbers and constant outputs tell nothing; where all are such, the message says so."""
    moving, still = RANDOM.standard_normal((20, 5)), np.full((20, 7), 3.0)
    numbers = RANDOM.integers(0, 9, (20, 2))
    task = Outputs.like([still, moving, numbers])
    assert [len(places) for places in task.places] == [0, 5, 0]
    right = task.read((still, moving, numbers), 20, np.empty(0))
    np.testing.assert_array_equal(task.read((still + 5, moving, numbers + 1), 20, np.empty(0)), right)
    with pytest.raises(InputError, match="the same for all examples"):
        Outputs.like([still, numbers])


def test_many_numbers_are_drawn_from() -> None:
    """A detector's outputs are sampled, and the sample tells their error."""
    outputs = [RANDOM.standard_normal((30, 20_000)), RANDOM.standard_normal((30, 60))]
    task = Outputs.like(outputs)
    assert [len(places) for places in task.places] == [2048, 60]
    right = task.read(tuple(outputs), 30, np.empty(0))
    off = (outputs[0] + RANDOM.standard_normal((30, 20_000)), outputs[1])
    assert task.loss(task.read(off, 30, np.empty(0)), right) / 30 == pytest.approx(0.5, rel=0.05)


def test_other_outputs_are_refused() -> None:
    """Another number of outputs, or of numbers in one, is named."""
    task = Outputs.like([RANDOM.standard_normal((8, 10))])
    with pytest.raises(InputError, match="1 outputs of 4 numbers"):
        task.read(np.zeros((2, 4)), 2, np.empty(0))
    with pytest.raises(InputError, match="2 outputs"):
        task.read((np.zeros((2, 10)), np.zeros((2, 1))), 2, np.empty(0))


def test_numbers_that_are_none_are_far_off() -> None:
    """A network that pruning has broken is wrong, not an error."""
    outputs = RANDOM.standard_normal((8, 10))
    task = Outputs.like([outputs])
    right = task.read(outputs, 8, np.empty(0))
    assert task.scores(task.read(np.full((8, 10), np.nan), 8, np.empty(0)), right).max() < 1e-6


def test_gradients_of_what_is_drawn_estimate_the_divergence() -> None:
    """Half their mean square is the divergence's curvature: of a linear network the squares of its columns."""
    columns = torch.from_numpy(RANDOM.standard_normal((12, 3)))
    task = Outputs.like([RANDOM.standard_normal((8, 12))])
    random = torch.Generator().manual_seed(0)
    squares = []
    for _ in range(4000):
        x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        task.drawn((columns @ x)[None], 1.0, random).backward()
        squares.append(x.grad**2 / 2)
    step = torch.eye(3, dtype=torch.float64)
    grown = [task.divergence(torch.zeros(1, 12), (columns @ each)[None], 1.0) for each in step]
    np.testing.assert_allclose(torch.stack(squares).mean(0), grown, rtol=0.1)


def test_a_module_may_have_a_part_called_logits() -> None:
    """Only our own networks have scores of classes under that name."""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = torch.nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answers: torch.Tensor = self.logits(x[:, :2])
            return answers

    assert Classes().answers(Module(), torch.zeros(5, 4)).shape == (5, 3)
