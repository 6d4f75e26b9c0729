"""The example that does not fit at first: by how much, and that it could."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import framefit
from framefit.core.model.builtin import detector


def test_the_reader_is_too_slow_by_as_much_as_it_says(example: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """Its network learns; on the target it takes 1.6 times what the others leave of a window, so it does not fit."""
    crowded = example("crowded")
    detector().save(tmp_path / "detector.onnx")
    crowded.light().save(tmp_path / "light.onnx")
    data = crowded.write_data(tmp_path / "digits.npz", size=8)
    recipe = msgspec.structs.replace(crowded.RECIPE, epochs=3)
    model = crowded.reader(size=8, channels=(8, 16))
    assert crowded.write_reader(model, data, tmp_path / "reader.onnx", recipe) > 0.3
    app = crowded.write_app(tmp_path, "vpu")
    result = framefit.fit(app, without=["trees"]).result
    assert not result.fits
    models = {one.name: one for one in result.before.models}
    left = 1e9 / models["reader"].asked_hz - models["detector"].duration_ns - models["light"].duration_ns
    assert models["reader"].duration_ns / left == pytest.approx(crowded.TOO_SLOW, rel=0.15)  # cut or not, with a guard
    assert any(one.measure == "sparsify" and one.model == "reader" for one in result.proposals)
