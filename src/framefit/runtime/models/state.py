"""Recurrent state: outputs of one frame that are inputs of the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from framefit.core.model import Model
from framefit.devices.device import Tensors
from framefit.errors import InputError
from framefit.runtime.outputs.finite import finite

__all__ = ["Feedback", "check_state"]


class Feedback:
    """What of a model's state some of its segments give.

    Args:
        state: graph input -> output that is fed back to it.
        parts: the segments.
    """

    def __init__(self, state: Mapping[str, str], parts: Sequence[Model]) -> None:
        given = {tensor.name: tensor.dtype for part in parts for tensor in part.outputs}
        self._pairs = [(source, sink) for source, sink in state.items() if sink in given]
        self._floats = [sink for _, sink in self._pairs if np.dtype(given[sink]).kind == "f"]

    def settle(self, tensors: Tensors) -> bool:
        """Whether what a frame leaves is finite; else what it found takes its place."""
        for sink in self._floats:
            if not finite(tensors[sink]):
                self.keep(tensors)
                return False
        return True

    def keep(self, tensors: Tensors) -> None:
        """A frame leaves what it found."""
        for source, sink in self._pairs:
            np.copyto(tensors[sink], tensors[source])


def check_state(model: Model, state: Mapping[str, str], name: str) -> None:
    """Refuse state that cannot be fed back.

    Args:
        model: whose inputs and outputs they are.
        state: graph input -> output that is fed back to it.
        name: of the model, for messages.

    Raises:
        InputError: no such input or output, shapes differ, or an output feeds two inputs.
    """
    inputs = {tensor.name: tensor for tensor in model.inputs}
    outputs = {tensor.name: tensor for tensor in model.outputs}
    fed_back: dict[str, str] = {}
    for source, sink in state.items():
        where = f"model {name!r}, state.{source}"
        if (other := fed_back.setdefault(sink, source)) != source:
            raise InputError(f"output {sink!r} already feeds {other!r}", where=where, remedy="feed it back once")
        if source not in inputs:
            raise InputError(f"no input {source!r}; inputs: {', '.join(inputs)}", where=where, remedy="correct it")
        if sink not in outputs:
            raise InputError(f"no output {sink!r}; outputs: {', '.join(outputs)}", where=where, remedy="correct it")
        if outputs[sink].shape not in (None, inputs[source].shape) or outputs[sink].dtype != inputs[source].dtype:
            raise InputError(
                f"output {sink!r} is {outputs[sink].dtype} {outputs[sink].shape}, "
                f"the input {inputs[source].dtype} {inputs[source].shape}",
                where=where,
                remedy="feed back an output of the input's shape",
            )
