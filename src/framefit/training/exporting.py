"""Any PyTorch module as a model."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from framefit.core.model import Model, rebatched
from framefit.errors import InputError
from framefit.training.extra import torch
from framefit.training.network import alike, to_torch

__all__ = ["from_module"]

_OPSET = 17
_BATCH = 13  # of the trace: a number that no other size is likely to be


def from_module(module: Any, input_shape: Sequence[int], *, name: str = "network") -> Model:
    """The graph of a ``torch.nn.Module`` in evaluation mode, batch normalisations kept.

    By PyTorch's exporter for traced modules, which needs nothing but PyTorch and onnx. Parameters keep
    the names of the module's ``state_dict``, nodes are named after the modules that they come from.

    Args:
        module: one input, float32; its weights are copied, and it stays as it is.
        input_shape: of one example, without the batch.
        name: of the model.

    Raises:
        InputError: it cannot be exported, or the exported graph computes something else (of a module
            whose course depends on its data, for example).
        UnsupportedError: an operator that is not trained here.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"a {type(module).__name__} is no torch.nn.Module", where=name, remedy="return the module")
    training = module.training
    module.eval()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((_BATCH, *input_shape), np.float32))
    try:
        with torch.no_grad():
            expected, alone = module(x), module(x[:1])
            model = rebatched(_exported(module, x, name), 1)
    except Exception as error:  # whatever the user's module and the exporter raise
        told = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"the module cannot be exported for an input of {' x '.join(map(str, input_shape))}: {told}",
            where=name,
            remedy="check its input's shape; it takes one tensor and computes with tensors only",
        ) from error
    finally:
        module.train(training)
    network = to_torch(model).eval()
    with torch.no_grad():
        pairs = ((expected, network(x)), (alone, network(x[:1])))
    if not all(alike(_first(wanted), _first(found)) for wanted, found in pairs):
        raise InputError(
            "the exported graph computes something else than the module",
            where=name,
            remedy="let its course depend on no data, and on no batch size",
        )
    return model


def _first(outputs: Any) -> Any:
    return outputs if isinstance(outputs, torch.Tensor) else next(iter(outputs))


def _exported(module: Any, x: Any, name: str) -> Model:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _single_operators():
        warnings.simplefilter("ignore")  # about the exporter's age, and constants of a trace
        path = Path(folder) / "module.onnx"
        torch.onnx.export(
            module,
            (x,),
            str(path),
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,  # evaluation mode would fold batch normalisations
            do_constant_folding=False,  # weights keep their names
            opset_version=_OPSET,
            input_names=["input"],
            output_names=["output"],
        )
        return Model.load(path, name=name)


@contextlib.contextmanager
def _single_operators() -> Iterator[None]:
    """PyTorch's own transformer layers in single operators, not as one that ONNX does not have."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
