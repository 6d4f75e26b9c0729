"""The example on handwritten digits: both networks learn in seconds, and their files run anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import onnxruntime
import pytest

from framefit import Model


@pytest.mark.parametrize(("name", "images"), [("mlp", False), ("conv", True)])
def test_a_network_learns_the_digits(
    example: Callable[[str], ModuleType], tmp_path: Path, name: str, images: bool
) -> None:
    """After a few epochs nine of ten test digits are right, in ONNX Runtime with any batch too."""
    digits = example("digits")
    data = digits.write_data(tmp_path / "digits.npz", images=images)
    recipe = msgspec.structs.replace(digits.RECIPE, epochs=6)
    accuracy = digits.write_network(getattr(digits, name)(), data, tmp_path / "net.onnx", recipe)
    assert accuracy >= 0.9
    with np.load(data) as arrays:
        x, y = arrays["x_test"], arrays["y_test"]
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    logits = session.run(None, {session.get_inputs()[0].name: x})[0]
    assert (logits.argmax(axis=1) == y).mean() == pytest.approx(accuracy, abs=1 / len(y))
    assert Model.load(tmp_path / "net.onnx").layers
