"""The protocol of all devices that execute segments, and the capabilities that a device declares.

Code outside this room never asks for the class or kind of a device: it asks for its :class:`Capabilities`, and uses
:func:`is_modelled` and :func:`is_simulated` for methods that only some devices have.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace, TraceMeta
from framefit.core.latency_table import Value
from framefit.core.model import GraphBuilder, Model, TensorInfo
from framefit.core.program import Operation
from framefit.core.run_record import FoundDevice
from framefit.core.target import Target
from framefit.core.workload import MachineSettings
from framefit.devices.clock import Clock, VirtualClock
from framefit.errors import DeviceError

__all__ = [
    "ModelledDevice",
    "is_modelled",
    "is_simulated",
]


Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
_START, _END = int(EventType.START), int(EventType.END)
_ALIGNMENT = 64  # a cache line, and the widest vector register


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of a device; the conformance suite checks every device against them.

    Attributes:
        runs_on_host: The submitting thread executes a launch, on its unit's core of this machine. That thread can be
            pinned and given real-time priority, and its processor time is the launch's.
        shares_host_memory: Bound arrays are the tensors themselves; nothing is copied or stored in another format.
        preemptive: A launch can be interrupted by one of higher priority on the same unit.
        lowers: It tells what a launch of a model really executes (:meth:`Device.lowered`), for cuts and tables that are
            made.
        modelled: It states durations of launches (:class:`ModelledDevice`); otherwise they are measured.
        simulated: It runs on any clock, also a virtual one, and restarts with a seed (:class:`SimulatedDevice`).
        collects_events: This process records the events, of each unit in order, in a buffer that a run has to empty
            continuously. Otherwise a trace unit of the device orders them and decides which are kept.
        layer_events: Each layer has events of its own; otherwise each launch does.
        ends_launches: :meth:`Device.terminate` makes a running launch fail.
        tells_layer_times: It tells how long each layer took within a launch (:class:`LayerTimesDevice`).
    """

    runs_on_host: bool = False
    shares_host_memory: bool = False
    preemptive: bool = False
    lowers: bool = False
    modelled: bool = False
    simulated: bool = False
    collects_events: bool = False
    layer_events: bool = False
    ends_launches: bool = False
    tells_layer_times: bool = False


class Completion(msgspec.Struct, frozen=True, gc=False):
    """Begin and end of a launch, on the clock of its device.

    One is made for every launch, for which this class takes a third of a frozen dataclass's time (6 instead
    of 19 us, just after a launch has evicted the interpreter from the caches).
    """

    started_ns: int
    finished_ns: int

    @property
    def duration_ns(self) -> int:
        """Duration of the launch."""
        return self.finished_ns - self.started_ns


class Binding(Protocol):
    """A compiled segment with its tensors attached, which can be submitted."""

    def output(self, name: str) -> Array:
        """Return an output of the latest launch; one without a fixed shape is valid until the next launch."""


class Handle(Protocol):
    """A segment compiled for a unit."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Operations of a launch, in order, to which event packets refer.

        ``expected_ns`` is 0 where the device does not know.
        """

    def bind(self, tensors: Tensors) -> Binding:
        """Attach preallocated arrays to all inputs and to those outputs whose shape is fixed.

        Raises:
            DeviceError: an array is missing or does not fit.
        """


class Device(Protocol):
    """Units that run one segment at a time each.

    Several units may run at the same time: each is used by one thread (or part of a virtual clock) at a time,
    or by two of which one interrupts the other.
    """

    @property
    def target(self) -> Target:
        """Description: units with their capabilities and memory."""

    @property
    def clock(self) -> Clock:
        """The clock of its completions and packets."""

    @property
    def capabilities(self) -> Capabilities:
        """Its capabilities, which never change."""

    @property
    def stored_ratio(self) -> float:
        """Bytes of a float32 tensor on the device over those on the host."""

    @property
    def host_core(self) -> int:
        """The core of this machine that works for it: its first unit's, or the one that feeds it."""

    def fingerprint(self) -> dict[str, Value]:
        """Facts that two measurements must share to be comparable: device, clock, and what affects its speed."""

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """Groups of nodes that it would fuse; no cut may divide one."""

    def kernels(self, model: Model) -> frozenset[str]:
        """Names of the model's nodes that kernels of its own execute, in place of a runtime's operators."""

    def lowered(self, model: Model) -> Model:
        """The model that a launch really executes, each operator as a layer; the same model if it does not lower.

        Raises:
            DeviceError: the model cannot be compiled, or the device does not provide the lowered model.
        """

    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """Compile a segment for a unit; ``label`` is its kind in the trace.

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
        """Make the running launch on a unit fail soon; any thread may call this. If none runs, the next one may fail.

        A launch that the device cannot end continues.
        """

    def arrival_ns(self, sender: str, receiver: str, size_bytes: int, written_ns: int) -> int:
        """Time at which unit ``receiver`` can read what ``sender`` has written; the same time if they share a memory.

        Called once for each frame that a model passes on between its segments: a copy begins then.
        """

    def events(self) -> Trace:
        """Packets since the latest call, in order of arrival."""


class ModelledDevice(Device, Protocol):
    """A device that states durations of launches; real durations vary around these by known ratios."""

    @property
    def launch_ns(self) -> int:
        """Cost of each launch, whatever it executes, and so of each boundary between segments."""

    def link_ns(self, model: Model) -> tuple[int, int]:
        """Time for a model's inputs and outputs before and after a launch, including the cost of a launch."""

    def layers_ns(self, model: Model, unit: str) -> tuple[int, ...]:
        """Nominal times of a model's layers on a unit, without transfers; its fused groups are layers.

        Raises:
            DeviceError: there is no cost model.
            InputError: the unit does not support a layer.
        """

    def segment_ns(self, model: Model, first: int, last: int, unit: str) -> int:
        """Nominal time of a launch of some of a model's layers, with its transfers.

        Raises:
            DeviceError: there is no cost model.
            InputError: the unit does not support a layer.
        """

    def quantile_ratio(self, quantile: float) -> float:
        """A launch's quantile (0 to 1) over its nominal time."""

    def greatest_ratio(self) -> float:
        """A launch's greatest duration over its nominal time."""

    def timed(self, label: str, unit: str, duration_ns: int) -> Handle:
        """Make a launch of one operation that takes a given time and computes nothing.

        Raises:
            DeviceError: there is no such unit.
        """


class SimulatedDevice(Device, Protocol):
    """A simulated device: its clock can be replaced, and the same seed gives the same run.

    Attributes:
        clock: the clock on which launches take time; set it before :meth:`restart`.
        computes: whether launches compute their outputs; otherwise arrays stay as they are.
        late_results: number of launches since the restart whose outputs were computed later than the simulated time.
    """

    clock: Clock
    computes: bool
    late_results: int

    @property
    def computer(self) -> Device | None:
        """The device of this machine that computes the outputs, if there is one."""

    def restart(self, seed: int = 0) -> None:
        """Start over on the present clock: variation from the seed, no packets, every unit idle."""

    def slow(self, unit: str, ratio: float) -> None:
        """Multiply the durations of launches on a unit from now on; 1: as modelled."""


class LayerTimesDevice(Device, Protocol):
    """A device that tells how long each layer took within a launch of the whole model."""

    def layer_times_ns(self, model: Model, unit: str, launches: int) -> npt.NDArray[np.int64]:
        """Launch a model with random inputs, and return the layers' durations as the device counts them.

        Returns:
            int64, launches x layers of ``model.grouped(self.fusions(model))``; 0 for a layer that takes no time.

        Raises:
            DeviceError: the model cannot run on this unit.
        """


def tells_layer_times(device: Device) -> TypeGuard[LayerTimesDevice]:
    """Whether a device tells how long each layer took."""
    return device.capabilities.tells_layer_times


def is_modelled(device: Device) -> TypeGuard[ModelledDevice]:
    """Whether a device states durations of launches; otherwise they have to be measured."""
    return device.capabilities.modelled


def is_simulated(device: Device) -> TypeGuard[SimulatedDevice]:
    """Whether a device is simulated, so that it runs on any clock; otherwise its time is real."""
    return device.capabilities.simulated


class _Open(Protocol):
    """Opens a device of one backend."""

    def __call__(self, target: Target, settings: MachineSettings, where: Path | None, *, computes: bool) -> Device:
        """Open a device as :func:`framefit.devices.registry.open_device` does; ``where``: the target's file."""


def _relu() -> Model:
    builder = GraphBuilder("trial")
    builder.output(builder.op("Relu", builder.input("x", (1, 16))), "y")
    return builder.build()


BACKEND_API = 1
"""Version of this protocol; it changes when a backend has to."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A kind of device, as an entry point names it.

    Attributes:
        api: the ``BACKEND_API`` that it is written for, as a number.
        capabilities: of its devices, before one is opened.
        open: opens a device. Where the machine lacks what a unit names (its ``device``), or its driver, it raises
            :class:`framefit.errors.InputError`.
        find: lists the devices that are there.
        trial: makes a network of one layer that every device of it can run.
    """

    api: int
    capabilities: Capabilities
    open: _Open
    find: Callable[[], Sequence[FoundDevice]] = tuple
    trial: Callable[[], Model] = _relu


def target_facts(device: Device) -> dict[str, Value]:
    """First facts of every fingerprint: the target, and whether its time is real."""
    clock = "virtual" if isinstance(device.clock, VirtualClock) else "real"
    return {"target": device.target.name, "kind": device.target.kind, "clock": clock}


class EventRecorder:
    """Keeps the first ``capacity`` packets since it was emptied.

    Args:
        capacity: number of packets; each takes some 100 bytes.
    """

    def __init__(self, capacity: int = 1 << 18) -> None:
        self._cells: list[int] = []  # fastest to append to just after a launch, when the caches are cold
        self._full = 5 * capacity
        self._lost = 0
        self.capacity = capacity

    def add(self, time_ns: int, kind: int, type_: EventType, core: int, operation: int) -> None:
        """Append a packet, or count it as lost."""
        if len(self._cells) >= self._full:
            self._lost += 1
            return
        self._cells.extend((time_ns, kind, type_, core, operation))

    def add_launch(self, started_ns: int, finished_ns: int, kind: int, core: int) -> None:
        """Append START and END of a launch of one operation."""
        if len(self._cells) + 10 > self._full:
            self.add(started_ns, kind, EventType.START, core, 0)
            self.add(finished_ns, kind, EventType.END, core, 0)
            return
        self._cells.extend((started_ns, kind, _START, core, 0, finished_ns, kind, _END, core, 0))

    def drain(self, kinds: tuple[str, ...]) -> Trace:
        """Return the packets as a trace, and empty the buffer."""
        cells, self._cells = self._cells, []  # swapped first: another thread may append
        lost, self._lost = self._lost, 0
        packets = np.frombuffer(array("q", cells), np.int64).reshape(-1, 5)
        return Trace(
            time_ns=packets[:, 0],
            id=packets[:, 1].astype(np.int32),
            type=packets[:, 2].astype(np.uint8),
            core=packets[:, 3].astype(np.int16),
            operation=packets[:, 4],
            kinds=kinds,
            loss_after=np.asarray([len(packets)] if lost else [], np.int64),
            meta=TraceMeta(buffer_events=self.capacity, lost_events=lost),
        )


def allocate(tensor: TensorInfo) -> Array:
    """Make a zeroed buffer of fixed shape, aligned to 64 bytes."""
    assert tensor.shape is not None
    dtype = np.dtype(tensor.dtype)
    size = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(tensor.shape)


def random_inputs(tensors: Sequence[TensorInfo], random: np.random.Generator) -> dict[str, Array]:
    """Arrays for ``tensors``: standard normal floats, small whole numbers, booleans."""
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
    """Return the array if it can be bound as this tensor.

    Raises:
        DeviceError: its type or shape differs, or it is not contiguous.
    """
    if array.dtype.name != tensor.dtype or (tensor.shape is not None and array.shape != tensor.shape):
        raise DeviceError(
            f"{label}: {tensor.name!r} is {tensor.dtype} {tensor.shape}, but the array is {array.dtype} {array.shape}"
        )
    if not array.flags.c_contiguous:
        raise DeviceError(f"{label}: the array for {tensor.name!r} is not contiguous")
    return array
