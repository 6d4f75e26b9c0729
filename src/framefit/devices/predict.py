"""Many examples through a network at once, to judge it by: what runs is what is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model, free_batch
from framefit.devices.host import kept_denormals
from framefit.errors import DeviceError, UnsupportedError

__all__ = ["predictor"]


def predictor(model: Model) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]:
    """A function from inputs to the first output, by ONNX Runtime on all cores; nobody times it.

    Args:
        model: of one input; where its constants fix the batch, examples go through in such batches.

    Raises:
        DeviceError: the runtime does not take the model.
    """
    import onnxruntime

    (tensor,) = model.inputs
    try:
        data, batch = free_batch(model), None
    except UnsupportedError:
        data, batch = model.to_bytes(), (tensor.shape or (1,))[0]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures are raised; the runtime need not print them too
    try:
        with kept_denormals():
            session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise DeviceError(f"ONNX Runtime cannot compile it: {error}", where=model.name) from error
    output = model.outputs[0].name

    def predict(x: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        count = len(x)
        if batch is None:
            found: npt.NDArray[Any] = session.run([output], {tensor.name: x})[0]
            return found
        padded = np.concatenate([x, np.repeat(x[-1:], -count % batch, axis=0)])
        parts = (padded[first : first + batch] for first in range(0, len(padded), batch))
        return np.concatenate([session.run([output], {tensor.name: part})[0] for part in parts])[:count]

    return predict
