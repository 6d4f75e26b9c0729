"""One model, cut or whole, ready to be launched segment by segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from framefit.core.model import Model, TensorInfo
from framefit.devices.device import Array, Binding, Completion, Device, Tensors, allocate
from framefit.errors import InputError
from framefit.runtime.buffers import place

__all__ = ["Execution", "greatest_difference"]


class Execution:
    """Compiled segments, the memory between them, and the recurrent state.

    One frame is in flight at a time: :meth:`load` it, :meth:`launch` the segments in
    order, read the :meth:`output`, and :meth:`finish` it. State that a frame hands on
    is in place for the next one without a copy: two sets of bindings take turns.

    Args:
        model: canonical.
        segments: first and last layer of each, in order, without gaps.
        device: where it runs.
        unit: name of the unit.
        state: graph input -> output that is fed back to it; zeros at first.
        name: prefix of the labels in the trace; default: the model's.

    Raises:
        InputError: ``state`` names no input or output, or their shapes differ.
        DeviceError: a segment cannot be compiled.
    """

    def __init__(
        self,
        model: Model,
        segments: Sequence[tuple[int, int]],
        device: Device,
        unit: str,
        *,
        state: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or model.name
        self.model = model
        self.bounds = tuple(segments)
        self.state = dict(state or {})
        self._device = device
        self._check_state()
        whole = len(segments) == 1
        self.parts = tuple(model if whole else model.segment(first, last) for first, last in segments)
        self.labels = (self.name,) if whole else tuple(f"{self.name}.{index}" for index in range(len(segments)))
        handles = [device.compile(part, unit, label) for part, label in zip(self.parts, self.labels, strict=True)]
        self._tensors = self._allocate()
        self._bindings: list[list[Binding]] = [
            [handle.bind(tensors) for handle in handles] for tensors in self._tensors
        ]
        self._parity = 0
        self._producer = {tensor.name: index for index, part in enumerate(self.parts) for tensor in part.outputs}
        self._waiting: Tensors = {}

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What a frame consists of: graph inputs that are no state."""
        return tuple(tensor for tensor in self.model.inputs if tensor.name not in self.state)

    def load(self, frame: Tensors) -> None:
        """Take a frame; it is copied to its place as part of the first launch."""
        self._waiting = frame

    def launch(self, index: int) -> Completion:
        """Run segment ``index``; the time of the first includes handing the frame over."""
        binding = self._bindings[self._parity][index]
        if index or not self._waiting:
            return self._device.submit(binding)
        tensors, clock = self._tensors[self._parity], self._device.clock
        started = clock.now_ns()
        for name, array in self._waiting.items():
            np.copyto(tensors[name], array, casting="same_kind")
        return Completion(started, self._device.submit(binding).finished_ns)

    def output(self, name: str) -> Array:
        """An output of the frame in flight; valid until the next frame's launches."""
        return self._bindings[self._parity][self._producer[name]].output(name)

    def finish(self) -> None:
        """The frame is done: its state becomes the next one's."""
        if self.state:
            self._parity = 1 - self._parity

    def reset(self) -> None:
        """Zero the state."""
        for tensors in self._tensors:
            for name in self.state:
                tensors[name].fill(0)

    def run(self, frame: Tensors) -> dict[str, Array]:
        """All segments for one frame; copies of the model's outputs."""
        self.load(frame)
        for index in range(len(self.parts)):
            self.launch(index)
        outputs = {tensor.name: self.output(tensor.name).copy() for tensor in self.model.outputs}
        self.finish()
        return outputs

    def _check_state(self) -> None:
        inputs = {tensor.name: tensor for tensor in self.model.inputs}
        outputs = {tensor.name: tensor for tensor in self.model.outputs}
        fed_back: dict[str, str] = {}
        for source, sink in self.state.items():
            where = f"model {self.name!r}, state.{source}"
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

    def _allocate(self) -> list[dict[str, Array]]:
        """Tensors by name, once for each parity of the state."""
        last_read = {tensor.name: index for index, part in enumerate(self.parts) for tensor in part.inputs}
        keep = {tensor.name for tensor in self.model.outputs}
        crossing = [
            (tensor, index, last_read[tensor.name])
            for index, part in enumerate(self.parts)
            for tensor in part.outputs
            if tensor.name not in keep
        ]
        plan = place([t.bytes for t, _, _ in crossing], [(first, last) for _, first, last in crossing])
        block = allocate(TensorInfo(name="intermediates", dtype="uint8", shape=(plan.total_bytes,)))
        shared: dict[str, Array] = {}
        for (tensor, _, _), offset in zip(crossing, plan.offsets, strict=True):
            assert tensor.shape is not None
            view = block[offset : offset + tensor.bytes].view(np.dtype(tensor.dtype))
            shared[tensor.name] = view.reshape(tensor.shape)
        shared |= {tensor.name: allocate(tensor) for tensor in self.inputs}
        feedback = set(self.state.values())
        shared |= {t.name: allocate(t) for t in self.model.outputs if t.fixed and t.name not in feedback}
        shapes = {tensor.name: tensor for tensor in self.model.inputs}
        ends = [{source: allocate(shapes[source]) for source in self.state} for _ in range(2)]
        sets = []
        for parity in range(2 if self.state else 1):
            fed_back = {sink: ends[1 - parity][source] for source, sink in self.state.items()}
            sets.append(shared | ends[parity] | fed_back)
        self.memory_bytes = sum(
            {
                id(a): a.nbytes for t in sets for n, a in t.items() if n not in last_read or n in shapes or n in keep
            }.values()
        )
        self.memory_bytes += plan.total_bytes
        return sets


def greatest_difference(joined: Tensors, whole: Tensors) -> float:
    """Greatest max|a - b| / max|b| over outputs; infinite where shapes, NaNs or infinities differ."""
    worst = 0.0
    for name, reference in whole.items():
        if reference.shape != joined[name].shape:
            return float("inf")
        a, b = joined[name].astype(np.float64), reference.astype(np.float64)
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
            return float("inf")
        if finite.any():
            scale = max(float(np.abs(b[finite]).max()), float(np.finfo(np.float32).tiny))
            worst = max(worst, float(np.abs(a[finite] - b[finite]).max()) / scale)
    return worst
