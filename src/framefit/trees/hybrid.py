"""A network in which trees replace some groups of layers: its values, and its accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from framefit.core.model import Model, listing, with_weights
from framefit.core.trees import Ensemble
from framefit.devices.trees.kernels import kernel_of
from framefit.training.data import Examples
from framefit.training.network import Network, observe, to_torch
from framefit.trees.groups import Span
from framefit.trees.quantising import LevelMap, Quantiser

Array = npt.NDArray[Any]
_BATCH = 250  # examples at once, as in training.evaluate
_LEAST_PROBABILITY = 1e-9  # of a class: a certain error does not make a mean infinite


@dataclass(frozen=True)
class QuantisedLayers:
    """Quantisation of the layers that remain.

    Attributes:
        weights: levels of their weights; ``None``: they stay float.
        spare: initializers that keep their precision.
        quantisers: those of tensors.
    """

    weights: Literal["8bit", "4bit", "ternary", "binary"] | None = None
    spare: frozenset[str] = frozenset()
    quantisers: tuple[Quantiser, ...] = ()


class HybridModel:
    """A model in which groups are replaced one after the other.

    Attributes:
        model: with its present weights.
        levels: quantisation of the other layers.
        chosen: groups and their trees, in order.
        end: number of layers in the model.
    """

    def __init__(self, model: Model, levels: QuantisedLayers | None = None) -> None:
        self.model, self.levels = model, levels or QuantisedLayers()
        self.chosen: list[tuple[Span, Ensemble]] = []
        self._networks: dict[tuple[int, int], Network] = {}
        self.end = len(model.layers)

    def __getstate__(self) -> dict[str, Any]:
        """Without networks of PyTorch, which are made again."""
        return self.__dict__ | {"_networks": {}}

    def free(self, span: Span) -> bool:
        """Whether no layer of a group is replaced already."""
        return all(
            span.end.position <= replaced.start.position or replaced.end.position <= span.start.position
            for replaced, _ in self.chosen
        )

    def replace(self, span: Span, ensemble: Ensemble) -> None:
        """Insert trees for a group; they replace earlier trees of the same group."""
        self.chosen = [pair for pair in self.chosen if pair[0] != span]
        self.chosen.append((span, ensemble))
        self.chosen.sort(key=lambda pair: pair[0].start.position)

    def learnt(self, weights: Mapping[str, Array]) -> None:
        """Change the weights of layers."""
        self.model = with_weights(self.model, weights)
        self._networks.clear()

    def copy(self) -> HybridModel:
        """Return an independent copy."""
        copied = HybridModel(self.model, self.levels)
        copied.chosen, copied._networks = list(self.chosen), dict(self._networks)
        return copied

    def through(self, x: Array, first: int, last: int) -> Array:
        """Outputs of layers ``first`` to ``last`` - 1 for examples, with trees in place of groups."""
        return np.concatenate([self._one(x[at : at + _BATCH], first, last) for at in range(0, len(x), _BATCH)])

    def predict(self, x: npt.NDArray[np.float32]) -> Array:
        """Return logits of a batch."""
        return self.through(x, 0, self.end)

    def pair(self, span: Span, x: Array) -> tuple[Array, Array]:
        """Inputs of a group, computed with the trees before it, and the outputs of its layers."""
        read = self.through(x, 0, span.start.position)
        return read, self._layers(read, span.start.position, span.end.position)

    def right(self, examples: Examples) -> npt.NDArray[np.bool_]:
        """For each example whether its class is the likeliest."""
        return right_classes(self.predict(examples.inputs()), examples.labels)

    def predict_with(self, span: Span, group: Callable[[Array], Array], examples: Examples) -> Array:
        """Logits of examples with one more group replaced."""
        made = group(self.through(examples.inputs(), 0, span.start.position))
        return self.through(made, span.end.position, self.end)

    def part(self, first: int, last: int) -> Model:
        """Layers ``first`` to ``last`` - 1 with their present weights."""
        return self.model if (first, last) == (0, self.end) else self.model.segment(first, last - 1)

    def quantisers(self, first: int) -> Iterator[tuple[Quantiser, LevelMap]]:
        """Quantisers in layers from ``first`` on that no trees replace, and their levels."""
        if not self.levels.quantisers:
            return
        places = {output.name: at for at, nodes in enumerate(self.model.nodes) for n in nodes for output in n.outputs}
        arrays = listing(self.model).arrays
        for quantiser in self.levels.quantisers:
            at = places[quantiser.made]
            inside = any(span.start.position <= at < span.end.position for span, _ in self.chosen)
            if at >= first and not inside:
                yield quantiser, quantiser.levels(arrays)

    def _one(self, x: Array, first: int, last: int) -> Array:
        for span, ensemble in self.chosen:
            if first <= span.start.position and span.end.position <= last:
                x = run(ensemble, self._layers(x, first, span.start.position))
                first = span.end.position
        return self._layers(x, first, last)

    def _layers(self, x: Array, first: int, last: int) -> Array:
        if first == last:
            return x
        if (first, last) not in self._networks:
            self._networks[first, last] = to_torch(self.part(first, last))
        network = self._networks[first, last]
        output = network.model.outputs[0].name
        node = next(n.name for nodes in network.model.nodes for n in nodes if n.outputs[0].name == output)
        made: list[Array] = []
        observe(network, x, lambda _name, _inputs, tensor: made.append(tensor.numpy().copy()), [node])
        return np.concatenate(made)


def run(ensemble: Ensemble, x: Array) -> Array:
    """Outputs of trees for examples, by their kernel."""
    y = np.empty((len(x), *ensemble.output_shape), np.float32)
    kernel_of(ensemble, len(x))(np.ascontiguousarray(x, np.float32), y)
    return y


def distance(teacher: Array, logits: Array) -> float:
    """Mean Kullback-Leibler divergence of a network's classes from its teacher's, in nats.

    It tells networks apart that are right on the same examples (Hinton et al., 2015, "Distilling the Knowledge in a
    Neural Network", section 2).

    Args:
        teacher: examples x classes, as logits or probabilities.
        logits: likewise.
    """
    known, made = _log_classes(teacher), _log_classes(logits)
    return float((np.exp(known) * (known - made)).sum(axis=1).mean())


def _log_classes(outputs: Array) -> Array:
    rows = np.nan_to_num(outputs.reshape(len(outputs), -1).astype(np.float64))
    if (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-3):
        return np.log(np.maximum(rows, _LEAST_PROBABILITY))
    shifted = rows - rows.max(axis=1, keepdims=True)
    logs: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.maximum(logs, np.log(_LEAST_PROBABILITY))


def right_classes(logits: Array, labels: Array) -> npt.NDArray[np.bool_]:
    """For each row of logits whether its class is the likeliest."""
    right: npt.NDArray[np.bool_] = logits.reshape(len(logits), -1).argmax(axis=1) == labels
    return right
