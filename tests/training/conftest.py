"""Small data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from framefit.training.data import Dataset, load_data


@pytest.fixture(scope="session")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Images, 1 x 8 x 8, of three classes that a network learns at once: a bright left, right or middle."""
    return load_data(write_stripes(tmp_path_factory.mktemp("stripes") / "stripes.npz"))


def write_stripes(path: Path, count: int = 240) -> Path:
    """The images as an ``.npz``; a quarter of them for the test."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, count)
    x = random.standard_normal((count, 1, 8, 8)).astype(np.float32)
    for label, columns in enumerate((slice(0, 2), slice(6, 8), slice(3, 5))):
        x[labels == label, :, :, columns] += 2
    held = count // 4
    np.savez(path, x_train=x[held:], y_train=labels[held:], x_test=x[:held], y_test=labels[:held])
    return path
