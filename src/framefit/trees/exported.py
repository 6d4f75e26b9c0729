"""Hybrids as files for runtimes that know nothing of trees: checked, and timed as such a runtime executes them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.core.model import Model, free_batch
from framefit.core.tree_results import Export
from framefit.core.trees import Ensemble, Forest, evaluate
from framefit.devices.device import allocate
from framefit.devices.ort import OrtDevice
from framefit.errors import DeviceError
from framefit.trees.exporting import Flavour, as_model, with_trees
from framefit.trees.search import medians

__all__ = ["export"]


_FILES: dict[Flavour, str] = {"core": "model.onnx", "ml": "model-ml.onnx"}
_EXAMPLES, _POSITIONS = 64, 4096  # compared at most, but one example: the graph takes kilobytes for each position


def export(hybrid: Model, forest: Forest, flavour: Flavour, folder: Path, *, batch_open: bool = False) -> Export:
    """Write a hybrid in one flavour.

    Args:
        hybrid: with the trees of ``forest``, in any flavour.
        forest: see ``hybrid``.
        flavour: of what a runtime executes that knows nothing of trees.
        folder: gets the file.
        batch_open: it takes any number of examples at once.

    Raises:
        DeviceError: ONNX Runtime computes something else than the trees, which is a defect.
    """
    model = with_trees(hybrid, forest, flavour)
    with TemporaryDirectory() as cache:
        runtime = OrtDevice(cache=Path(cache))
        for ensemble in forest.ensembles:
            _check(runtime, ensemble, flavour)
        (taken_ns,) = medians([model], runtime)
    with write_whole(folder / _FILES[flavour], force=True) as file:
        file.write(free_batch(model) if batch_open else model.to_bytes())
    return Export(file=_FILES[flavour], flavour=flavour, runtime_latency_ns=taken_ns)


def _check(runtime: OrtDevice, ensemble: Ensemble, flavour: Flavour) -> None:
    """Hold an ensemble's graph to the reference."""
    x = _around_thresholds(ensemble)
    part = as_model(ensemble, len(x), flavour)
    found = {part.inputs[0].name: x, part.outputs[0].name: allocate(part.outputs[0])}
    runtime.submit(runtime.compile(part, runtime.target.units[0].name, ensemble.name).bind(found))
    if not np.array_equal(found[part.outputs[0].name], evaluate(ensemble, x)):
        raise DeviceError(
            f"the exported graph ({flavour}) differs from the trees",
            where=ensemble.name,
            remedy="this is a defect: report it",
        )


def _around_thresholds(ensemble: Ensemble) -> npt.NDArray[Any]:
    """Inputs each of which is one of its thresholds, or the next number above it: all that comparisons can tell."""
    sides = np.asarray([ensemble.encoder.low, ensemble.encoder.high], np.float32)
    values = np.concatenate([sides, np.nextafter(sides, np.float32(np.inf))])
    count = max(1, min(_EXAMPLES, _POSITIONS // ensemble.positions))
    shape = (count, *ensemble.input_shape)
    columns = sides.shape[1]
    drawn = np.random.default_rng(0).integers(0, len(values), shape).reshape(count, columns, -1)
    return values[drawn, np.arange(columns)[:, None]].reshape(shape)
