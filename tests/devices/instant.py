"""A third kind of device, as a newcomer would write it: it computes nothing, and nearly no time passes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from framefit import DeviceError, Target
from framefit.core.events import Trace
from framefit.core.latency_table import Value
from framefit.core.model import Model, epilogue_groups
from framefit.core.program import Operation
from framefit.core.workload import MachineSettings
from framefit.devices.clock import Clock, RealClock
from framefit.devices.device import (
    Array,
    Backend,
    Binding,
    Capabilities,
    Completion,
    EventRecorder,
    Tensors,
    fitting,
    target_facts,
)

__all__ = ["BACKEND", "InstantDevice"]


@dataclass(frozen=True)
class _Bound:
    kind: int
    core: int
    tensors: Tensors

    def output(self, name: str) -> Array:
        return self.tensors[name]


@dataclass(frozen=True)
class _Handle:
    segment: Model
    label: str
    kind: int
    core: int
    unit: str

    @property
    def operations(self) -> tuple[Operation, ...]:
        return (Operation.opaque(self.label, self.segment.layers[-1].name, self.unit),)

    def bind(self, tensors: Tensors) -> _Bound:
        for tensor in (*self.segment.inputs, *self.segment.outputs):
            if tensor.name not in tensors:
                raise DeviceError(f"{self.label}: no array for {tensor.name!r}")
            fitting(tensors[tensor.name], tensor, self.label)
        return _Bound(self.kind, self.core, tensors)


class InstantDevice:
    """Units of a described target; launches end as soon as they begin, and their time is measured."""

    capabilities = Capabilities(shares_host_memory=True, collects_events=True)
    stored_ratio = 1.0
    host_core = 0

    def __init__(self, target: Target, trace_events: int = 1 << 16) -> None:
        self.target, self.clock, self._kinds = target, RealClock(), dict[str, int]()
        self._recorder = EventRecorder(trace_events)

    clock: Clock

    def fingerprint(self) -> dict[str, Value]:
        """Nothing but the target decides."""
        return target_facts(self)

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """As most accelerators."""
        return epilogue_groups(model)

    def kernels(self, model: Model) -> frozenset[str]:  # noqa: ARG002
        """None."""
        return frozenset()

    def lowered(self, model: Model) -> Model:
        """As it is."""
        return model

    def compile(self, segment: Model, unit: str, label: str) -> _Handle:
        """Nothing to compile."""
        if unit not in {one.name for one in self.target.units}:
            raise DeviceError(f"no unit {unit!r}")
        kind = self._kinds.setdefault(label, len(self._kinds))
        return _Handle(segment, label, kind, self.target.unit(unit).core, unit)

    def submit(self, binding: Binding) -> Completion:
        """Only look at the clock."""
        assert isinstance(binding, _Bound)
        started, finished = self.clock.now_ns(), self.clock.now_ns() + 1
        self.clock.sleep_until_ns(finished)
        self._recorder.add_launch(started, finished, binding.kind, binding.core)
        return Completion(started, finished)

    def terminate(self, unit: str) -> None:
        """Nothing hangs."""

    def arrival_ns(self, sender: str, receiver: str, size_bytes: int, written_ns: int) -> int:  # noqa: ARG002
        """At once."""
        return written_ns

    def events(self) -> Trace:
        """Packets since the last call."""
        return self._recorder.drain(tuple(self._kinds))


def _open(target: Target, settings: MachineSettings, where: Path | None, *, computes: bool) -> InstantDevice:
    return InstantDevice(target)


BACKEND = Backend(api=1, capabilities=InstantDevice.capabilities, open=_open)
