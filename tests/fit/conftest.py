"""A trained network with its data, once for all of these tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fit_workloads import write_network, write_pictures
from framefit.core.model import Model, listing, with_weights
from framefit.planning.placing import Placing


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``net.onnx`` and ``data.npz``."""
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    folder = tmp_path_factory.mktemp("trained")
    write_network(folder / "net.onnx", write_pictures(folder / "data.npz"))
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """A folder of one's own with both."""
    for name in ("net.onnx", "data.npz"):
        shutil.copyfile(trained / name, tmp_path / name)
    return tmp_path


@pytest.fixture(autouse=True)
def _no_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans on one unit without a search for replicas, which takes most of their time; tests of planning have it."""
    monkeypatch.setattr(Placing, "_copied", lambda *_: None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparsity without a search: of each layer the smallest weights go, as many as there are cycles to save."""

    def pruned(
        model: Model, *_: object, cycles: float, output: Path | None, resume: Path | None, **__: object
    ) -> SimpleNamespace:
        folder = output or resume
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: array for name, array in listing(model).arrays.items() if array.ndim == 4}
        zeroed = {
            name: np.where(np.abs(array) >= np.quantile(np.abs(array), 1 - cycles), array, 0)
            for name, array in weights.items()
        }
        with_weights(model, zeroed).save(folder / "model.onnx", force=True)
        for name in ("sparsify.json", "database.npz"):
            (folder / name).touch()
        return SimpleNamespace(result=SimpleNamespace(interrupted=False))

    monkeypatch.setattr("framefit.workflows.search.sparsify", pruned)
