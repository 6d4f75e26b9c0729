"""The protocol that everything that executes segments speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.model import Model, TensorInfo
from framefit.core.program import Operation
from framefit.core.target import Target
from framefit.devices.clock import Clock
from framefit.errors import DeviceError

__all__ = ["Array", "Binding", "Completion", "Device", "Handle", "Tensors", "allocate", "fitting", "random_inputs"]


Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
_ALIGNMENT = 64  # a cache line, and the widest vector register


class Completion(msgspec.Struct, frozen=True, gc=False):
    """When a launch began and ended, on the clock of its device.

    Made with every launch: a third of what a frozen dataclass takes just after one (6 for 19 us,
    when the launch has evicted the interpreter from the caches).
    """

    started_ns: int
    finished_ns: int

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.finished_ns - self.started_ns


class Binding(Protocol):
    """A compiled segment with its tensors attached: what can be submitted."""

    def output(self, name: str) -> Array:
        """An output of the latest launch; one without a fixed shape lives until the next."""


class Handle(Protocol):
    """A segment compiled for a unit."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What a launch executes, in order: what its event packets tell of.

        ``expected_ns`` is 0 where the device does not know.
        """

    def bind(self, tensors: Tensors) -> Binding:
        """Attach preallocated arrays to all inputs and to those outputs whose shape is fixed.

        Raises:
            DeviceError: an array is missing or does not fit.
        """


class Device(Protocol):
    """Units that run one segment at a time each.

    Several units may run at the same time: each is used by one thread (or part of a virtual clock)
    at a time, or by one that interrupts another.
    """

    @property
    def target(self) -> Target:
        """Units, what they can do, and their memory."""

    @property
    def clock(self) -> Clock:
        """What its completions and packets are timed by."""

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """Groups of nodes that it would fuse; no cut belongs inside one."""

    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """Make a segment ready; ``label`` is its kind in the trace.

        Raises:
            DeviceError: the segment cannot run on this unit.
        """

    def submit(self, binding: Binding) -> Completion:
        """Run it; a device that has to wait for the end waits on its clock.

        Raises:
            DeviceError: the launch failed.
            HangError: it was terminated.
        """

    def terminate(self, unit: str) -> None:
        """Have the launch that runs on a unit fail soon; any thread may ask. Where none runs, the next one may fail.

        What a device cannot free stays as it is.
        """

    def arrival_ns(self, sender: str, receiver: str, size_bytes: int, written_ns: int) -> int:
        """When unit ``receiver`` can read what ``sender`` had written at a time; that time where they share a memory.

        Called once for each frame that a model hands on between its segments: a copy begins then.
        """

    def events(self) -> Trace:
        """Packets since the last call, in order of arrival."""


def allocate(tensor: TensorInfo) -> Array:
    """A zeroed buffer of fixed shape, aligned to 64 bytes."""
    assert tensor.shape is not None
    dtype = np.dtype(tensor.dtype)
    size = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(tensor.shape)


def random_inputs(tensors: Sequence[TensorInfo], random: np.random.Generator) -> dict[str, Array]:
    """Arrays that fit ``tensors``: standard normal floats, small whole numbers, booleans."""
    arrays: dict[str, Array] = {}
    for tensor in tensors:
        assert tensor.shape is not None
        dtype = np.dtype(tensor.dtype)
        if dtype.kind == "f":
            arrays[tensor.name] = random.standard_normal(tensor.shape).astype(dtype)
        else:
            arrays[tensor.name] = random.integers(0, 2, tensor.shape).astype(dtype)
    return arrays


def fitting(array: Array, tensor: TensorInfo, label: str) -> Array:
    """The array, if it can be bound as this tensor.

    Raises:
        DeviceError: another type or shape, or not contiguous.
    """
    if array.dtype.name != tensor.dtype or (tensor.shape is not None and array.shape != tensor.shape):
        raise DeviceError(
            f"{label}: {tensor.name!r} is {tensor.dtype} {tensor.shape}, the array {array.dtype} {array.shape}"
        )
    if not array.flags.c_contiguous:
        raise DeviceError(f"{label}: the array for {tensor.name!r} is not contiguous")
    return array
