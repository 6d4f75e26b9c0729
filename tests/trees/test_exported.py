"""Files of hybrids: what they compute is checked before they are written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnxruntime
import pytest

from framefit import DeviceError
from framefit.core.trees import Forest
from framefit.trees import exporting as exported
from framefit.trees.exporting import Flavour, as_model, export, read_trees
from trees_cases import hybrid


@pytest.mark.parametrize("flavour", ["core", "ml"])
def test_a_file_is_identified(tmp_path: Path, flavour: Flavour) -> None:
    """Whatever flavour the hybrid has, its file has the one that was asked for, the trees, and a time."""
    model, _, ensemble = hybrid(flavour="ml" if flavour == "core" else "core")
    told = export(model, Forest(model="hybrid", ensembles=(ensemble,)), flavour, tmp_path)
    assert told.flavour == flavour
    assert told.runtime_latency_ns > 0
    carried = read_trees(tmp_path / told.file)
    assert carried is not None
    assert carried.ensembles == (ensemble,)
    assert (b"TreeEnsembleRegressor" in (tmp_path / told.file).read_bytes()) == (flavour == "ml")
    session = onnxruntime.InferenceSession(tmp_path / told.file)
    (made,) = session.run(None, {"image": np.zeros((1, 3, 8, 8), np.float32)})
    assert made.shape == (1, 8, 1, 1)


@pytest.mark.parametrize("side", ["low", "high"])
def test_a_wrong_file_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    """A threshold that is off by the last bit is found, and nothing is left behind."""
    model, _, ensemble = hybrid()
    encoder = ensemble.encoder
    moved = np.nextafter(np.asarray(getattr(encoder, side), np.float32), np.float32(np.inf)).tolist()
    other = msgspec.structs.replace(ensemble, encoder=msgspec.structs.replace(encoder, **{side: tuple(moved)}))
    monkeypatch.setattr(exported, "as_model", lambda _, batch, flavour: as_model(other, batch, flavour))
    with pytest.raises(DeviceError, match=r"exported graph \(core\) differs"):
        export(model, Forest(model="hybrid", ensembles=(ensemble,)), "core", tmp_path)
    assert list(tmp_path.iterdir()) == []
