"""The example that trains on an image folder: known sizes, a file that runs, going on where it stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from framefit.training.network import from_module


@pytest.mark.parametrize(("name", "macs", "parameters"), [("resnet20", 41e6, 0.271e6), ("mobilenetv2", 5.3e6, 0.142e6)])
def test_sizes(example: Callable[[str], ModuleType], name: str, macs: float, parameters: float) -> None:
    """Multiply-accumulates and parameters are those that the example tells."""
    model = from_module(example("train_cifar10").NETWORKS[name](), (3, 32, 32), name=name)
    assert model.macs == pytest.approx(macs, rel=0.02)
    assert model.parameters == pytest.approx(parameters, rel=0.02)


def test_it_trains_and_goes_on(
    example: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It writes a model of the given data; the same command again goes on at the end and writes the same file."""
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(30):
            pixels = random.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{index}.png")
    output = tmp_path / "net.onnx"
    command = ["train", "--data", str(tmp_path / "data"), "--network", "mobilenetv2", "--epochs", "1", "--rate", "0.01"]
    monkeypatch.setattr(sys, "argv", [*command, "-o", str(output)])
    example("train_cifar10").main()
    first = output.read_bytes()
    example("train_cifar10").main()
    assert output.read_bytes() == first
    assert "1.0 epochs" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(first, providers=["CPUExecutionProvider"])
    assert session.run(None, {"input": np.zeros((3, 3, 32, 32), np.float32)})[0].shape == (3, 10)
