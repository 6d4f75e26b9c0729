"""A device with injected faults, to test an application's behaviour before they occur."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from framefit.core.events import Trace
from framefit.core.faults import Fault, Injection
from framefit.core.latency_table import Value
from framefit.core.model import Model
from framefit.core.program import Operation
from framefit.core.target import Target
from framefit.devices.clock import Clock, VirtualClock
from framefit.devices.device import (
    Binding,
    Capabilities,
    Completion,
    Device,
    Handle,
    Tensors,
    is_modelled,
    is_simulated,
)
from framefit.errors import DeviceError, HangError, LostUnitError

__all__ = ["FaultyDevice"]


_PATIENCE_NS = 1_000_000_000
_TAGS = re.compile(r"(@.*|\.\d+)$")  # of rungs and segments, behind a model's name in a label


@dataclass(frozen=True)
class _Launch:
    """What a binding launches, to find its faults."""

    binding: Binding  # kept alive, since its id is the key
    label: str
    unit: str
    names: frozenset[str]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class _NamedHandle:
    """A handle whose bindings are registered with the faulty device."""

    device: FaultyDevice
    handle: Handle
    label: str
    unit: str
    outputs: tuple[str, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Those of the wrapped handle."""
        return self.handle.operations

    def bind(self, tensors: Tensors) -> Binding:
        """Attach arrays; see :class:`framefit.devices.device.Handle`."""
        binding = self.handle.bind(tensors)
        self.device.register(binding, self.label, self.unit, self.outputs)
        return binding


class FaultyDevice:
    """Wraps a device, and injects faults into its launches.

    Until it is armed every call goes to the wrapped device. In real time the watchdog terminates a launch that hangs
    (:meth:`terminate`); in virtual time there is no watchdog, so the launch ends after ``patience_ns`` as if it
    had been terminated.

    Args:
        device: executes the launches; on a simulated one a slow launch is slow in the trace, too.
        faults: faults of launches are injected here; those of streams are ignored.

    Attributes:
        injections: every fault that was injected, in order.
    """

    def __init__(self, device: Device, faults: Sequence[Fault] = ()) -> None:
        self._device = device
        self.injections: list[Injection] = []
        self._faults = [fault for fault in faults if not fault.of_stream]
        self._left = [fault.times for fault in self._faults]
        self._launches: dict[int, _Launch] = {}
        self._start_ns: int | None = None
        self._hung: dict[str, threading.Event] = {}
        self.patience_ns = _PATIENCE_NS
        """Time that a watchdog would wait for a launch, in virtual time."""

    @property
    def target(self) -> Target:
        """That of the wrapped device."""
        return self._device.target

    @property
    def clock(self) -> Clock:
        """That of the wrapped device."""
        return self._device.clock

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped device, without modelled durations: this device is for runs, not for plans."""
        return replace(self._device.capabilities, modelled=False, simulated=False)

    @property
    def stored_ratio(self) -> float:
        """That of the wrapped device."""
        return self._device.stored_ratio

    @property
    def host_core(self) -> int:
        """That of the wrapped device."""
        return self._device.host_core

    def fingerprint(self) -> dict[str, Value]:
        """That of the wrapped device."""
        return self._device.fingerprint()

    def arm(self, start_ns: int) -> None:
        """Inject faults from now on; their times count from ``start_ns``."""
        self._start_ns = start_ns
        self._left = [fault.times for fault in self._faults]

    def disarm(self) -> None:
        """Stop injecting faults."""
        self._start_ns = None

    def after_ns(self) -> int:
        """Time since :meth:`arm`, from which the times of faults count; -1: not armed."""
        return -1 if self._start_ns is None else self.clock.now_ns() - self._start_ns

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """That of the wrapped device."""
        return self._device.fusions(model)

    def kernels(self, model: Model) -> frozenset[str]:
        """Those of the wrapped device."""
        return self._device.kernels(model)

    def lowered(self, model: Model) -> Model:
        """That of the wrapped device."""
        return self._device.lowered(model)

    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """See :class:`framefit.devices.device.Device`."""
        outputs = tuple(tensor.name for tensor in segment.outputs)
        return _NamedHandle(self, self._device.compile(segment, unit, label), label, unit, outputs)

    def timed(self, label: str, unit: str, duration_ns: int) -> Handle:
        """See :meth:`framefit.devices.device.ModelledDevice.timed`.

        Raises:
            DeviceError: the wrapped device does not model durations.
        """
        if not is_modelled(self._device):
            raise DeviceError("launches of a given duration need a described device", where=self.target.name)
        return _NamedHandle(self, self._device.timed(label, unit, duration_ns), label, unit, ())

    def register(self, binding: Binding, label: str, unit: str, outputs: Collection[str]) -> None:
        """Register a binding of the wrapped device, so that its faults can be found.

        Args:
            binding: the binding that will be submitted.
            label: label of its segment: the model's name, or the name, ``.`` and more.
            unit: the unit of the launches.
            outputs: names of the tensors that it writes.
        """
        names = frozenset((label, unit, _TAGS.sub("", label)))
        self._launches[id(binding)] = _Launch(binding, label, unit, names, tuple(outputs))

    def submit(self, binding: Binding) -> Completion:
        """Run it with the faults that are due.

        Raises:
            DeviceError: the launch failed, by an injected fault or on its own.
            HangError: the launch was terminated.
            LostUnitError: the launch could not be terminated (virtual time; in real time this does not return).
        """
        launch = self._launches.get(id(binding))
        due = [] if launch is None else self._due(launch)
        if launch is None or not due:
            return self._device.submit(binding)
        for fault in due:
            if fault.kind == "raise":
                self._note(fault, launch, self.clock.now_ns())
                raise DeviceError(f"the launch failed {fault.mark}", where=launch.label)
        for fault in due:
            if fault.kind in ("hang", "stick"):
                return self._hang(launch, fault)
        done = self._slow(launch, math.prod(fault.amount for fault in due if fault.kind == "slow"))
        for fault in due:
            self._note(fault, launch, done.started_ns)
            if fault.kind in ("nan", "inf"):
                _fill(launch, np.nan if fault.kind == "nan" else np.inf)
        return done

    def arrival_ns(self, sender: str, receiver: str, size_bytes: int, written_ns: int) -> int:
        """That of the wrapped device."""
        return self._device.arrival_ns(sender, receiver, size_bytes, written_ns)

    def terminate(self, unit: str) -> None:
        """End the launch on a unit, also one that hangs by a fault."""
        hung = self._hung.pop(unit, None)
        if hung is None:
            self._device.terminate(unit)
        else:
            hung.set()

    def events(self) -> Trace:
        """That of the wrapped device."""
        return self._device.events()

    def _due(self, launch: _Launch) -> list[Fault]:
        """Faults to inject into a launch now; each of them counts as used."""
        after_ns = self.after_ns()
        due: list[Fault] = []
        if after_ns < 0:
            return due
        for number, fault in enumerate(self._faults):
            left = self._left[number]
            if fault.name in launch.names and fault.due(after_ns) and left != 0:
                due.append(fault)
                self._left[number] = None if left is None else left - 1
        return due

    def _note(self, fault: Fault, launch: _Launch, started_ns: int) -> None:
        self.injections.append(Injection(fault.label, launch.unit, started_ns))

    def _slow(self, launch: _Launch, ratio: float) -> Completion:
        """Run it so that it takes ``ratio`` times as long."""
        if is_simulated(self._device):
            self._device.slow(launch.unit, ratio)
            try:
                return self._device.submit(launch.binding)
            finally:
                self._device.slow(launch.unit, 1.0)
        done = self._device.submit(launch.binding)
        finished_ns = done.started_ns + round(done.duration_ns * ratio)
        self.clock.sleep_until_ns(finished_ns)
        return Completion(done.started_ns, max(finished_ns, done.finished_ns))

    def _hang(self, launch: _Launch, fault: Fault) -> Completion:
        """Hang until the fault's time has passed or the launch is terminated."""
        clock, lasts_ns = self.clock, round(fault.amount)
        started_ns = clock.now_ns()
        self._note(fault, launch, started_ns)
        if isinstance(clock, VirtualClock):
            if not 0 < lasts_ns <= self.patience_ns:
                self._end_hang(launch, fault, started_ns)
        else:
            freed = self._hung[launch.unit] = threading.Event()
            if fault.kind == "stick":
                threading.Event().wait()  # for ever
            if freed.wait(lasts_ns / 1e9 if lasts_ns else None):
                raise HangError(f"the launch was terminated {fault.mark}", where=launch.label)
            self._hung.pop(launch.unit, None)
        done = self._device.submit(launch.binding)
        clock.sleep_until_ns(started_ns + lasts_ns)
        return Completion(started_ns, max(started_ns + lasts_ns, done.finished_ns))

    def _end_hang(self, launch: _Launch, fault: Fault, started_ns: int) -> None:
        """End a hanging launch as a watchdog would, in virtual time."""
        self.clock.sleep_until_ns(started_ns + self.patience_ns)
        if fault.kind == "stick":
            self.clock.sleep_until_ns(started_ns + 2 * self.patience_ns)
            raise LostUnitError(
                f"unit {launch.unit!r} does not come back from a launch {fault.mark}", where=launch.label
            )
        raise HangError(f"the launch was terminated {fault.mark}", where=launch.label)


def _fill(launch: _Launch, value: float) -> None:
    """Overwrite all floating-point outputs of a launch."""
    for name in launch.outputs:
        array = launch.binding.output(name)
        if array.dtype.kind == "f":
            array.fill(value)
