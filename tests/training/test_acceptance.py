"""Which data nothing was trained on, and what a changed model loses there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framefit import InfeasibleError

pytest.importorskip("torch", reason="the extra 'train' is not installed")

from framefit.training.acceptance import compared, unseen_data
from framefit.training.data import Dataset, load_data


def _written(path: Path, *, validation: bool = False) -> Dataset:
    """Examples whose first value is the class; the second one tells the part: 0 training, 1 test, 2 validation."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, (name, count) in enumerate((("train", 300), ("test", 120), ("val", 50))[: 3 if validation else 2]):
        labels = random.integers(0, 3, count)
        arrays[f"x_{name}"] = np.stack([labels, np.full(count, part), random.random(count)], 1).astype(np.float32)
        arrays[f"y_{name}"] = labels
    np.savez(path, **arrays)
    return load_data(path)


def _network(*, unseen: float) -> object:
    """It is always right on training data, and wrong on a part of all others."""

    def logits(x: np.ndarray) -> np.ndarray:
        classes = x[:, 0].astype(int)
        wrong = (x[:, 1] > 0) & (x[:, 2] < unseen)
        return np.eye(3)[(classes + wrong) % 3]

    return logits


def test_validation_data_of_the_user_decide(tmp_path: Path) -> None:
    """They are taken as they are, nothing is set aside for them, and all test data are for the final test."""
    data = _written(tmp_path / "data.npz", validation=True)
    found = unseen_data(_network(unseen=0.1), data, seed=0)
    assert (found.choice_from, found.final_from) == ("validation", "test")
    assert (len(found.choice), len(found.final)) == (50, 120)
    assert set(found.choice.inputs()[:, 1]) == {2}
    assert len(data.train) + len(data.calibration) == 300


def test_a_part_of_the_test_data_decides_where_the_network_has_seen_the_others(tmp_path: Path) -> None:
    """The final test has the rest: what judges is never what chose."""
    data = _written(tmp_path / "data.npz")
    found = unseen_data(_network(unseen=0.1), data, seed=0)
    assert found.learnt
    assert (found.choice_from, found.final_from) == ("part of test", "part of test")
    assert (len(found.choice), len(found.final)) == (40, 80)
    used = {row.tobytes() for row in found.choice.inputs()} & {row.tobytes() for row in found.final.inputs()}
    assert not used
    assert set(found.choice.inputs()[:, 1]) == {1}


def test_a_network_that_was_trained_here_has_not_seen_the_validation_data(tmp_path: Path) -> None:
    """They decide, as good as it may be on them."""
    data = _written(tmp_path / "data.npz")
    found = unseen_data(_network(unseen=0.1), data, seed=0, trained_here=True)
    assert found.choice is data.validation
    assert not found.learnt


def test_nothing_is_verified_where_nothing_is_unseen() -> None:
    """All data were set aside here, and the network is as good on all of them: exit 1."""
    labels = np.random.default_rng(0).integers(0, 3, 200)
    data = load_data([(np.eye(3, dtype=np.float32)[labels], labels)])
    with pytest.raises(InfeasibleError, match="not verified") as raised:
        unseen_data(lambda x: x, data, seed=0)
    assert raised.value.exit_code == 1
    assert "x_val" in str(raised.value)


def test_too_few_test_images_verify_nothing(tmp_path: Path) -> None:
    """They would have to choose and to judge."""
    labels = np.arange(100) % 2
    x = np.eye(2, dtype=np.float32)[labels]
    np.savez(tmp_path / "data.npz", x_train=x, y_train=labels, x_test=x[:12], y_test=labels[:12])
    with pytest.raises(InfeasibleError, match="12 test examples are too few"):
        unseen_data(lambda x: x, load_data(tmp_path / "data.npz"), seed=0)


def test_the_promise_is_on_the_mean_and_comes_with_an_interval() -> None:
    """One image of twelve is more than is allowed, and tells nothing; so many of 500 do."""
    few = compared(np.ones(12), np.arange(12) > 0, 0.01, data="frames", measure="classes")
    assert not few.kept
    assert not few.refuted
    assert "on 12 frames" in few.text
    many = compared(np.ones(500), np.arange(500) >= 42, 0.01, data="test")
    assert many.refuted
    assert many.interval[0] < many.drop < many.interval[1]
    equal = compared(np.ones(500), np.ones(500), 0.0, data="test")
    assert equal.kept
    assert equal.interval[1] > 0
