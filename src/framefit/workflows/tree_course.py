"""A network of which some groups of layers are trees: what flows through it, and how often it is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.trees import Ensemble, Patch
from framefit.core.trees import evaluate as run_trees
from framefit.devices.device import Completion, allocate, random_inputs
from framefit.devices.measure import measure
from framefit.devices.ort import OrtDevice
from framefit.errors import DeviceError
from framefit.trees.exporting import as_model
from framefit.trees.fitting import columns
from framefit.trees.groups import Boundary
from framefit.trees.kernels import kernel_of
from framefit.trees.quantising import quantised, restored

__all__ = ["Course", "Span", "checked_export", "latencies"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Span:
    """A group: the layers between two boundaries, and what one position of its output reads."""

    start: Boundary
    end: Boundary
    patch: Patch | None


class Course:
    """A model with groups replaced one after the other.

    Attributes:
        chosen: groups and their trees, in order.
        tuned: weights that were fine-tuned, by name.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.chosen: list[tuple[Span, Ensemble]] = []
        self.tuned: dict[str, Array] = {}
        self._networks: dict[tuple[int, int], Any] = {}
        self._end = len(model.layers)

    def free(self, span: Span) -> bool:
        """Whether none of a group's layers is replaced already."""
        return all(
            span.end.position <= other.start.position or other.end.position <= span.start.position
            for other, _ in self.chosen
        )

    def replace(self, span: Span, ensemble: Ensemble) -> None:
        """Put trees in."""
        self.chosen.append((span, ensemble))
        self.chosen.sort(key=lambda pair: pair[0].start.position)

    def through(self, x: Array, first: int, last: int) -> Array:
        """What layers ``first`` .. ``last`` - 1 make of a batch, trees for groups among them."""
        for span, ensemble in self.chosen:
            if first <= span.start.position and span.end.position <= last:
                x = run_trees(ensemble, self._layers(x, first, span.start.position))
                first = span.end.position
        return self._layers(x, first, last)

    def predict(self, x: npt.NDArray[np.float32]) -> Array:
        """Logits of a batch."""
        return self.through(x, 0, self._end)

    def pair(self, span: Span, x: Array) -> tuple[Array, Array]:
        """What a group reads, behind trees in front of it, and what its layers make of that."""
        read = self.through(x, 0, span.start.position)
        return read, self._layers(read, span.start.position, span.end.position)

    def reads(self, ensemble: Ensemble, x: Array) -> Array:
        """What trees that are in place read."""
        span = next(span for span, one in self.chosen if one is ensemble)
        return self.through(x, 0, span.start.position)

    def accuracy(self, span: Span, ensemble: Ensemble, examples: Any) -> float:
        """With trees in place of one more group."""
        return self._right(examples, span, lambda read: run_trees(ensemble, read))

    def bound(self, span: Span, examples: Any, levels: int, threshold: float | None) -> float:
        """With a group's output quantised but otherwise exact; without levels: as it is."""

        def exact(read: Array) -> Array:
            made = self._layers(read, span.start.position, span.end.position)
            if not levels:
                return made
            rows = columns(made, span.patch)
            told = restored(quantised(rows, 2 if levels == 2 else 3, threshold), rows).astype(np.float32)
            if span.patch is None:
                return told.reshape(made.shape)
            return np.moveaxis(told.reshape(len(made), *made.shape[2:], made.shape[1]), -1, 1)

        return self._right(examples, span, exact)

    def _right(self, examples: Any, span: Span, group: Callable[[Array], Array]) -> float:
        made = group(self.through(examples.inputs(), 0, span.start.position))
        logits = self.through(np.ascontiguousarray(made), span.end.position, self._end)
        return float((logits.reshape(len(logits), -1).argmax(axis=1) == examples.labels).mean())

    def tune(self, examples: Any, held: Any, epochs: float, seed: int) -> str:
        """Fine-tune the layers behind the last group, and keep that where it helps on held examples."""
        from framefit.training.data import Examples
        from framefit.training.fine_tune import fine_tune
        from framefit.training.network import state
        from framefit.training.recipe import Recipe

        start = self.chosen[-1][0].end.position
        read, seen = (self.through(part.inputs(), 0, start) for part in (examples, held))
        before = self._rate(seen, start, held.labels)
        kept = state(self._network(start, self._end))
        recipe = Recipe(epochs=epochs, batch=64, rate=0.01, pad=0, flip=False, bf16=False, seed=seed)
        fine_tune(self._network(start, self._end), Examples(read, examples.labels), recipe)
        after = self._rate(seen, start, held.labels)
        if after < before:
            from framefit.training.network import load_state

            load_state(self._network(start, self._end), kept)
            return f"fine-tuning was taken back: {before:.4f} of the validation data right before, {after:.4f} after"
        self.tuned = state(self._network(start, self._end))
        return f"fine-tuning: {before:.4f} of the validation data right before, {after:.4f} after"

    def _rate(self, read: Array, start: int, labels: Array) -> float:
        logits = self._layers(read, start, self._end)
        return float((logits.reshape(len(logits), -1).argmax(axis=1) == labels).mean())

    def _layers(self, x: Array, first: int, last: int) -> Array:
        if first == last:
            return x
        from framefit.training.network import observe

        network = self._network(first, last)
        output = network.model.outputs[0].name
        node = next(n.name for nodes in network.model.nodes for n in nodes if n.outputs[0].name == output)
        made: list[Array] = []
        observe(network, x, lambda _name, _inputs, found: made.append(found.numpy().copy()), [node])
        return np.concatenate(made)

    def _network(self, first: int, last: int) -> Any:
        from framefit.training.network import to_torch

        if (first, last) not in self._networks:
            self._networks[first, last] = to_torch(self.model.segment(first, last - 1))
        return self._networks[first, last]


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


def latencies(model: Model, chosen: list[tuple[Span, Ensemble]]) -> tuple[int, list[tuple[int, int]]]:
    """Medians on this core, in turn: the whole model, and of each group its layers and its trees."""
    device = OrtDevice()
    unit = device.target.units[0].name

    def launch(part: Model) -> Callable[[], Completion]:
        tensors = random_inputs(part.inputs, np.random.default_rng(0))
        tensors |= {tensor.name: allocate(tensor) for tensor in part.outputs}
        binding = device.compile(part, unit, part.name).bind(tensors)
        return lambda: device.submit(binding)

    def walk(ensemble: Ensemble) -> Callable[[], Completion]:
        kernel = kernel_of(ensemble)
        x = np.random.default_rng(0).standard_normal((1, *ensemble.input_shape)).astype(np.float32)
        y = np.empty((1, *ensemble.output_shape), np.float32)

        def run() -> Completion:
            started = device.clock.now_ns()
            kernel(x, y)
            return Completion(started, device.clock.now_ns())

        return run

    arms = [launch(model)]
    for span, ensemble in chosen:
        arms += [launch(model.segment(span.start.position, span.end.position - 1)), walk(ensemble)]
    found = [one.median_ns for one in measure(arms, clock=device.clock)]
    return found[0], list(zip(found[1::2], found[2::2], strict=True))
