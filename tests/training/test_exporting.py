"""Modules of the user's own as models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from framefit import InputError
from framefit.core.model import free_batch
from framefit.training.network import from_module, state, to_model, to_torch
from networks import Runner, difference


def small() -> nn.Module:
    """Convolutions with batch norm, depthwise too, squeeze-and-excite and a classifier."""

    class Excited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.less, self.more = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pooled = x.mean((2, 3), keepdim=True)
            return x * torch.sigmoid(self.more(torch.relu(self.less(pooled))))

    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
        *(nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.BatchNorm2d(8), nn.Hardswish(), Excited()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8, 5)),
    )


class Transformer(nn.Module):
    """Patches with a class token, PyTorch's own encoder layer, a classifier on the token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))
        self.block = nn.TransformerEncoderLayer(16, 4, 32, activation="gelu", batch_first=True, norm_first=True)
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.last(self.block(x)[:, 0])


def warmed(module: nn.Module, *shape: int) -> nn.Module:
    """With running statistics that are not the initial ones."""
    torch.manual_seed(1)
    module.train()
    with torch.no_grad():
        for _ in range(3):
            module(2 * torch.randn(8, *shape) + 1)
    return module


@pytest.mark.parametrize("build", [small, Transformer])
def test_a_module_becomes_a_model(build: Any) -> None:
    """The network, and the file in ONNX Runtime, compute what the module computes; its mode stays."""
    torch.manual_seed(0)
    module = warmed(build(), 3, 16, 16)
    model = from_module(module, (3, 16, 16), name="mine")
    assert module.training
    x = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        expected = module.eval()(x)
        torch.testing.assert_close(to_torch(model).eval()(x), expected, rtol=1e-4, atol=1e-5)
        alone = module(x[:1]).numpy()
    assert difference({"output": alone}, Runner(model).whole({"input": x[:1].numpy()})) <= 1e-5


def test_parameters_keep_their_names() -> None:
    """Weights and statistics have the names of the module's state, so that they can be loaded back into it."""
    module = warmed(small(), 3, 16, 16)
    network = to_torch(from_module(module, (3, 16, 16)))
    kept = {name: array for name, array in module.state_dict().items() if "num_batches" not in name}
    assert set(state(network)) == set(kept)
    for name, array in state(network).items():
        np.testing.assert_array_equal(array, kept[name].numpy())
    assert len(network.norms) == 2


def test_equal_weights_are_trained_apart() -> None:
    """Two biases that are equal at first (exporters write them once) are two parameters."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    nn.init.zeros_(module[0].bias)
    nn.init.zeros_(module[2].bias)
    network = to_torch(from_module(module, (4,)))
    assert network.weights["0.bias"] is not network.weights["2.bias"]


def test_a_transformer_runs_any_batch() -> None:
    """A network with reshapes of its tokens is the same in batches and alone."""
    torch.manual_seed(0)
    network = to_torch(from_module(Transformer(), (3, 16, 16))).eval()
    x = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(network(x), torch.cat([network(one[None]) for one in x]), rtol=1e-4, atol=1e-5)


def test_the_file_has_a_free_batch() -> None:
    """Written with its batch left free, the module's model runs three examples at once in ONNX Runtime."""
    import onnxruntime

    module = warmed(small(), 3, 16, 16).eval()
    content = free_batch(to_model(to_torch(from_module(module, (3, 16, 16)))))
    x = torch.randn(3, 3, 16, 16)
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        np.testing.assert_allclose(session.run(None, {"input": x.numpy()})[0], module(x).numpy(), rtol=1e-4, atol=1e-5)


def test_control_flow_that_depends_on_the_batch_is_refused() -> None:
    """A module of which a trace computes other results is refused, not trained as other results."""

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if len(x) > 1 else x

    with pytest.raises(InputError, match="other results"):
        from_module(Odd(), (4,))


@pytest.mark.parametrize("shape", [(5,), (3, 2, 2)])
def test_a_module_that_fails_is_one_clear_error(shape: tuple[int, ...]) -> None:
    """A wrong input shape is an input error with the module's own message."""
    with pytest.raises(InputError, match="cannot be exported for an input of") as error:
        from_module(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), shape)
    assert error.value.remedy


def test_what_is_no_module_is_refused() -> None:
    """A function that returned no module is told so."""
    with pytest.raises(InputError, match=r"a dict is not a torch\.nn\.Module"):
        from_module({}, (4,))
