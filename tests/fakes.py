"""A device, streams and sinks that behave exactly as told, on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from framefit import DeviceError
from framefit.core.events import EventType, Trace
from framefit.core.latency_table import Value
from framefit.core.model import Model, TensorInfo
from framefit.core.program import Operation
from framefit.core.target import Target, Unit
from framefit.devices.clock import Clock, VirtualClock
from framefit.devices.device import Array, Binding, Capabilities, Completion, EventRecorder, Tensors, target_facts

__all__ = ["FakeDevice", "ListSink", "NumberStream"]


@dataclass(frozen=True)
class FakeBinding:
    """A label and the arrays attached to it."""

    label: str
    tensors: Tensors
    core: int = 3

    def output(self, name: str) -> Array:
        """The attached array, as it is; an empty one where none is attached."""
        return self.tensors.get(name, np.zeros(0))


@dataclass(frozen=True)
class FakeHandle:
    """A segment that never computes."""

    segment: Model
    label: str
    unit: Unit

    @property
    def operations(self) -> tuple[Operation, ...]:
        """One."""
        return (Operation.opaque(self.label, self.segment.layers[-1].name, self.unit.name),)

    def bind(self, tensors: Tensors) -> FakeBinding:
        """Check the arrays and keep them."""
        needed = [*self.segment.inputs, *(tensor for tensor in self.segment.outputs if tensor.fixed)]
        for tensor in needed:
            array = tensors.get(tensor.name)
            if array is None:
                raise DeviceError(f"{self.label}: no array for {tensor.name!r}")
            if array.dtype.name != tensor.dtype or array.shape != tensor.shape or not array.flags.c_contiguous:
                raise DeviceError(f"{self.label}: the array for {tensor.name!r} does not fit")
        return FakeBinding(self.label, tensors, self.unit.core)


class FakeDevice:
    """Units that take exactly as long as they are told and leave all outputs as they are.

    Args:
        durations_ns: of a launch: one number, by label, or (label, launch number) -> ns.
        clock: advanced by each launch.
        fail_at: number of the launch that fails, counted from 0 over all labels.
        trace_events: capacity of the event buffer.
        groups: what ``fusions`` answers, as far as the model has such nodes.
        units: how many; "fake0" of core 3, "fake1" of core 4, ...
        link_ns: until what one unit has written can be read by another.
        on_host: its launches count as executed by the calling thread, on the cores of this machine.
    """

    stored_ratio = 1.0
    host_core = 0

    def __init__(
        self,
        durations_ns: int | Mapping[str, int] | Callable[[str, int], int] = 1_000_000,
        *,
        clock: Clock | None = None,
        fail_at: int | None = None,
        trace_events: int = 1 << 18,
        groups: tuple[tuple[str, ...], ...] = (),
        units: int = 1,
        link_ns: int = 0,
        on_host: bool = True,
    ) -> None:
        self.capabilities = Capabilities(runs_on_host=on_host, collects_events=on_host)
        self.clock: Clock = clock or VirtualClock()
        made = tuple(Unit(name=f"fake{number}", preemptive=False, core=3 + number) for number in range(units))
        self.target = Target(name="fake", kind="ort", units=made)
        self.handed: list[tuple[str, str, int, int]] = []
        self._link_ns = link_ns
        self.launches: list[tuple[str, int, int]] = []
        self._durations_ns = durations_ns
        self._fail_at = fail_at
        self._recorder = EventRecorder(trace_events)
        self._kinds: dict[str, int] = {}
        self._groups = groups

    def fingerprint(self) -> dict[str, Value]:
        """What every device tells."""
        return target_facts(self)

    def kernels(self, model: Model) -> frozenset[str]:  # noqa: ARG002
        """None."""
        return frozenset()

    def lowered(self, model: Model) -> Model:
        """Itself."""
        return model

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """The given groups."""
        nodes = {node for layer in model.layers for node in layer.nodes}
        return tuple(group for group in self._groups if nodes.issuperset(group))

    def compile(self, segment: Model, unit: str, label: str) -> FakeHandle:
        """A handle of that label."""
        if unit not in [one.name for one in self.target.units]:
            raise DeviceError(f"no unit {unit!r}; units: {', '.join(one.name for one in self.target.units)}")
        self._kinds.setdefault(label, len(self._kinds))
        return FakeHandle(segment, label, self.target.unit(unit))

    def submit(self, binding: Binding) -> Completion:
        """Let the launch's duration pass."""
        assert isinstance(binding, FakeBinding)
        label, number = binding.label, len(self.launches)
        if number == self._fail_at:
            raise DeviceError("told to fail", where=label)
        started = self.clock.now_ns()
        finished = started + self._duration_ns(label, number)
        self.clock.sleep_until_ns(finished)
        self.launches.append((label, started, finished))
        core = binding.core
        self._recorder.add(started, self._kinds[label], EventType.START, core, 0)
        self._recorder.add(finished, self._kinds[label], EventType.END, core, 0)
        return Completion(started, finished)

    def terminate(self, unit: str) -> None:
        """Nothing hangs."""

    def arrival_ns(self, sender: str, receiver: str, size_bytes: int, written_ns: int) -> int:
        """After the link's time."""
        self.handed.append((sender, receiver, size_bytes, written_ns))
        return written_ns + self._link_ns

    def events(self) -> Trace:
        """Packets since the last call."""
        return self._recorder.drain(tuple(self._kinds))

    def _duration_ns(self, label: str, number: int) -> int:
        durations = self._durations_ns
        if isinstance(durations, int):
            return durations
        return durations[label] if isinstance(durations, Mapping) else durations(label, number)


@dataclass(frozen=True)
class NumberStream:
    """Every frame is filled with its own number."""

    length: int | None = None

    def has(self, frame: int) -> bool:
        """Whether it is that long."""
        return self.length is None or frame < self.length

    @staticmethod
    def read(frame: int, tensor: TensorInfo) -> Array:
        """An array full of ``frame``."""
        assert tensor.shape is not None
        return np.full(tensor.shape, frame, tensor.dtype)


@dataclass
class ListSink:
    """Keeps everything in order."""

    taken: list[tuple[int, dict[str, Array]]] = field(default_factory=list)
    closed: bool = False

    def put(self, frame: int, outputs: dict[str, Array]) -> None:
        """Append."""
        assert not self.closed
        self.taken.append((frame, outputs))

    def close(self) -> None:
        """Take no more."""
        self.closed = True
