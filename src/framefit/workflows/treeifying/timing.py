"""What groups take on this core, as layers and as trees; and that the file computes what was judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.trees import Ensemble
from framefit.core.trees import evaluate as run_trees
from framefit.devices.device import Completion, allocate, random_inputs
from framefit.devices.measure import measure
from framefit.devices.ort import OrtDevice
from framefit.devices.trees.device import TreesDevice
from framefit.errors import DeviceError
from framefit.trees.exporting import as_model

__all__ = ["checked_export", "medians"]

Array = npt.NDArray[Any]


def checked_export(ensemble: Ensemble, x: Array) -> None:
    """Hold an ensemble's graph to the reference.

    Args:
        ensemble: that is exported.
        x: what it reads, N x input shape.

    Raises:
        DeviceError: ONNX Runtime computes something else, which is a defect.
    """
    part = as_model(ensemble, len(x))
    with TemporaryDirectory() as folder:
        device = OrtDevice(cache=Path(folder))
        found = {part.inputs[0].name: np.ascontiguousarray(x), part.outputs[0].name: allocate(part.outputs[0])}
        device.submit(device.compile(part, device.target.units[0].name, ensemble.name).bind(found))
    if not np.array_equal(found[part.outputs[0].name], run_trees(ensemble, x)):
        raise DeviceError(
            "the exported graph differs from the trees", where=ensemble.name, remedy="this is a defect: report it"
        )


def medians(models: Sequence[Model]) -> list[int]:
    """What models take a frame on this core, their trees by kernels and all else by ONNX Runtime; ns, in turn."""
    device = TreesDevice()
    unit = device.target.units[0].name

    def launch(model: Model) -> Callable[[], Completion]:
        tensors = random_inputs(model.inputs, np.random.default_rng(0))
        tensors |= {tensor.name: allocate(tensor) for tensor in model.outputs}
        binding = device.compile(model, unit, model.name).bind(tensors)
        return lambda: device.submit(binding)

    return [one.median_ns for one in measure([launch(model) for model in models], clock=device.clock)]
