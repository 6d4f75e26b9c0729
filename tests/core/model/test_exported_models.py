"""Networks exported from PyTorch: cut anywhere, they compute what PyTorch computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framefit import Model
from networks import Runner, difference

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")


def cnn() -> tuple[Any, tuple[Any, ...]]:
    """Convolutions with batch norm, and a classifier behind a flatten that reads the batch."""
    nn = torch.nn
    net = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1), nn.BatchNorm2d(16), nn.Hardswish()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(64, 10)),
    )
    return net, (torch.randn(1, 3, 32, 32),)


def unet() -> tuple[Any, tuple[Any, ...]]:
    """Skip connections, transposed convolution and bilinear resize."""
    nn = torch.nn

    class UNet(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
            self.deep, self.up = nn.Conv2d(8, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.join, self.last = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(12, 1, 3, padding=1)

        def forward(self, x: Any) -> Any:
            functional = nn.functional
            wide = self.wide(x).relu()
            middle = self.middle(functional.max_pool2d(wide, 2)).relu()
            deep = self.deep(functional.max_pool2d(middle, 2)).relu()
            x = self.join(torch.cat([self.up(deep), middle], 1)).relu()
            x = functional.interpolate(x, size=wide.shape[2:], mode="bilinear", align_corners=False)
            return self.last(torch.cat([x, wide], 1)).sigmoid()

    return UNet(), (torch.randn(1, 1, 32, 32),)


def dense_block() -> tuple[Any, tuple[Any, ...]]:
    """Every layer reads all that came before it."""
    nn = torch.nn

    class DenseBlock(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(4 * (i + 1), 4, 3, padding=1) for i in range(4))

        def forward(self, x: Any) -> Any:
            made = [x]
            for layer in self.layers:
                made.append(layer(torch.cat(made, 1)).relu())  # reads what it appends to
            return torch.cat(made, 1)

    return DenseBlock(), (torch.randn(1, 4, 8, 8),)


def lstm() -> tuple[Any, tuple[Any, ...]]:
    """Two recurrent layers with their state as inputs and outputs."""
    nn = torch.nn

    class Speech(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.front, self.lstm, self.last = nn.Linear(10, 6), nn.LSTM(6, 8, num_layers=2), nn.Linear(8, 1)

        def forward(self, x: Any, hidden: Any, cell: Any) -> Any:
            y, (hidden, cell) = self.lstm(self.front(x).relu(), (hidden, cell))
            return self.last(y).sigmoid(), hidden, cell

    return Speech(), (torch.randn(4, 1, 10), torch.randn(2, 1, 8), torch.randn(2, 1, 8))


def attention() -> tuple[Any, tuple[Any, ...]]:
    """Patches, one transformer block, a classifier."""
    nn = torch.nn

    class Vit(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.norm = nn.Conv2d(3, 16, 4, stride=4), nn.LayerNorm(16)
            self.qkv, self.out, self.last = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            batch, tokens, width = x.shape
            query, key, value = self.qkv(self.norm(x)).reshape(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
            y = (query @ key.transpose(-2, -1) / 2).softmax(-1) @ value
            x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
            return self.last(x.mean(1))

    return Vit(), (torch.randn(1, 3, 16, 16),)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic batch"])
@pytest.mark.parametrize("build", [cnn, unet, dense_block, lstm, attention])
def test_each_legal_cut_keeps_the_outputs(build: Callable[[], Any], dynamic: bool, tmp_path: Path) -> None:
    """The file loads, has a static shape everywhere, and cut anywhere gives PyTorch's outputs."""
    torch.manual_seed(0)
    net, arguments = build()
    net.eval()
    with torch.no_grad():
        results = net(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    inputs = [f"input_{index}" for index in range(len(arguments))]
    outputs = [f"output_{index}" for index in range(len(results))]
    path = tmp_path / f"{build.__name__}.onnx"
    batch = {"lstm": 1}.get(build.__name__, 0)
    torch.onnx.export(
        net,
        arguments,
        str(path),
        dynamo=False,
        input_names=inputs,
        output_names=outputs,
        dynamic_axes={name: {batch: "batch"} for name in inputs} if dynamic else None,
    )
    shapes = {"input_0": tuple(arguments[0].shape)}
    model = Model.load(path, shapes=shapes)
    assert all(tensor.fixed for layer in model.layers for tensor in (*layer.inputs, *layer.outputs))
    assert len(model.legal_cuts) == len(model.layers) - 1
    parameters = sum(parameter.numel() for parameter in net.parameters())
    assert model.parameters >= 0.9 * parameters  # the exporter folds batch norm into convolutions
    feeds = {name: np.asarray(tensor) for name, tensor in zip(inputs, arguments, strict=True)}
    expected = {name: np.asarray(tensor) for name, tensor in zip(outputs, results, strict=True)}
    run = Runner(model)
    legal = [cut.position for cut in model.legal_cuts]
    for positions in [[], *([position] for position in legal), legal]:
        assert difference(expected, run.cut(feeds, positions)) <= 1e-4, positions
