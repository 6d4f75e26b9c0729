"""A device on which things go wrong, as told: what a user tries before the field does."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from framefit.core.events import Trace
from framefit.core.faults import Fault
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
_TAGS = re.compile(r"[.@]")  # of segments and rungs, behind a model's name in a label


@dataclass(frozen=True)
class _Known:
    """Whose a binding is."""

    binding: Binding  # kept: its id is its key
    label: str
    unit: str
    names: frozenset[str]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class _NamedHandle:
    """A handle that tells whose its bindings are."""

    device: FaultyDevice
    handle: Handle
    label: str
    unit: str
    outputs: tuple[str, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Of the handle."""
        return self.handle.operations

    def bind(self, tensors: Tensors) -> Binding:
        """Attach arrays; see :class:`framefit.devices.device.Handle`."""
        binding = self.handle.bind(tensors)
        self.device.know(binding, self.label, self.unit, self.outputs)
        return binding


class FaultyDevice:
    """Another device, with faults.

    Until it is armed it only passes on. A launch that hangs is terminated by whoever watches (:meth:`terminate`)
    where time is real; in virtual time nobody else runs meanwhile, so it ends after ``patience_ns`` as if it had been.

    Args:
        device: executes; on a simulated one what is slow is so in its trace, too.
        faults: those of launches befall it, others are not its own.
    """

    def __init__(self, device: Device, faults: Sequence[Fault] = ()) -> None:
        self._device = device
        self._faults = [fault for fault in faults if not fault.of_stream]
        self._left = [fault.times for fault in self._faults]
        self._known: dict[int, _Known] = {}
        self._start_ns: int | None = None
        self._hung: dict[str, threading.Event] = {}
        self.patience_ns = _PATIENCE_NS
        """What a watchdog waits for a launch, in virtual time."""

    @property
    def target(self) -> Target:
        """The device's."""
        return self._device.target

    @property
    def clock(self) -> Clock:
        """The device's."""
        return self._device.clock

    @property
    def capabilities(self) -> Capabilities:
        """The device's own, less what only that one can be asked for: it is wrapped to run, not to be planned for."""
        return replace(self._device.capabilities, modelled=False, simulated=False)

    @property
    def stored_ratio(self) -> float:
        """The device's."""
        return self._device.stored_ratio

    @property
    def host_core(self) -> int:
        """The device's."""
        return self._device.host_core

    def fingerprint(self) -> dict[str, Value]:
        """The device's."""
        return self._device.fingerprint()

    def arm(self, start_ns: int) -> None:
        """Faults may happen from here on; their times count from ``start_ns``."""
        self._start_ns = start_ns
        self._left = [fault.times for fault in self._faults]

    def disarm(self) -> None:
        """Only pass on."""
        self._start_ns = None

    def after_ns(self) -> int:
        """Time since the beginning that faults count from; -1: it is not armed."""
        return -1 if self._start_ns is None else self.clock.now_ns() - self._start_ns

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """The device's."""
        return self._device.fusions(model)

    def lowered(self, model: Model) -> Model:
        """The device's."""
        return self._device.lowered(model)

    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """See :class:`framefit.devices.device.Device`."""
        outputs = tuple(tensor.name for tensor in segment.outputs)
        return _NamedHandle(self, self._device.compile(segment, unit, label), label, unit, outputs)

    def timed(self, label: str, unit: str, duration_ns: int) -> Handle:
        """See :meth:`framefit.devices.device.ModelledDevice.timed`.

        Raises:
            DeviceError: the device takes the time that it takes.
        """
        if not is_modelled(self._device):
            raise DeviceError("launches of a given duration need a described device", where=self.target.name)
        return _NamedHandle(self, self._device.timed(label, unit, duration_ns), label, unit, ())

    def know(self, binding: Binding, label: str, unit: str, outputs: Collection[str]) -> None:
        """Be told whose a binding of the device is.

        Args:
            binding: will be submitted.
            label: of its segment; the model's name, or that, ``.`` and more.
            unit: where it runs.
            outputs: names of what it gives.
        """
        names = frozenset((label, unit, _TAGS.split(label)[0]))
        self._known[id(binding)] = _Known(binding, label, unit, names, tuple(outputs))

    def submit(self, binding: Binding) -> Completion:
        """Run it, if nothing is wrong.

        Raises:
            DeviceError: the launch failed, as told or of itself.
            HangError: it was terminated.
            LostUnitError: it could not be (virtual time; where time is real, this does not return).
        """
        known = self._known.get(id(binding))
        due = [] if known is None else self._due(known)
        if known is None or not due:
            return self._device.submit(binding)
        for fault in due:
            if fault.kind == "raise":
                raise DeviceError("the launch failed, as told to", where=known.label)
        for fault in due:
            if fault.kind in ("hang", "stick"):
                return self._hang(known, fault)
        done = self._slow(known, math.prod(fault.amount for fault in due if fault.kind == "slow"))
        for fault in due:
            if fault.kind in ("nan", "inf"):
                _fill(known, np.nan if fault.kind == "nan" else np.inf)
        return done

    def arrival_ns(self, sender: str, receiver: str, size_bytes: int, written_ns: int) -> int:
        """The device's."""
        return self._device.arrival_ns(sender, receiver, size_bytes, written_ns)

    def terminate(self, unit: str) -> None:
        """Free a unit; see :class:`framefit.devices.device.Device`."""
        hung = self._hung.pop(unit, None)
        if hung is None:
            self._device.terminate(unit)
        else:
            hung.set()

    def events(self) -> Trace:
        """The device's."""
        return self._device.events()

    def _due(self, known: _Known) -> list[Fault]:
        """Faults that befall a launch now."""
        after_ns = self.after_ns()
        due: list[Fault] = []
        if after_ns < 0:
            return due
        for number, fault in enumerate(self._faults):
            left = self._left[number]
            if fault.name in known.names and fault.due(after_ns) and left != 0:
                due.append(fault)
                self._left[number] = None if left is None else left - 1
        return due

    def _slow(self, known: _Known, ratio: float) -> Completion:
        """Run it, so many times as long as it takes."""
        if is_simulated(self._device):
            self._device.slow(known.unit, ratio)
            try:
                return self._device.submit(known.binding)
            finally:
                self._device.slow(known.unit, 1.0)
        done = self._device.submit(known.binding)
        finished_ns = done.started_ns + round(done.duration_ns * ratio)
        self.clock.sleep_until_ns(finished_ns)
        return Completion(done.started_ns, max(finished_ns, done.finished_ns))

    def _hang(self, known: _Known, fault: Fault) -> Completion:
        """Do not end, or only after the fault's time."""
        clock, lasts_ns = self.clock, round(fault.amount)
        started_ns = clock.now_ns()
        if isinstance(clock, VirtualClock):
            if not 0 < lasts_ns <= self.patience_ns:
                self._give_up(known, fault, started_ns)
        else:
            freed = self._hung[known.unit] = threading.Event()
            if fault.kind == "stick":
                threading.Event().wait()  # for ever
            if freed.wait(lasts_ns / 1e9 if lasts_ns else None):
                raise HangError("the launch was terminated", where=known.label)
            self._hung.pop(known.unit, None)
        done = self._device.submit(known.binding)
        clock.sleep_until_ns(started_ns + lasts_ns)
        return Completion(started_ns, max(started_ns + lasts_ns, done.finished_ns))

    def _give_up(self, known: _Known, fault: Fault, started_ns: int) -> None:
        """What comes of a watchdog, in virtual time."""
        self.clock.sleep_until_ns(started_ns + self.patience_ns)
        if fault.kind == "stick":
            self.clock.sleep_until_ns(started_ns + 2 * self.patience_ns)
            raise LostUnitError(f"unit {known.unit!r} does not come back from a launch", where=known.label)
        raise HangError("the launch was terminated", where=known.label)


def _fill(known: _Known, value: float) -> None:
    """All floats that a launch gave become this."""
    for name in known.outputs:
        array = known.binding.output(name)
        if array.dtype.kind == "f":
            array.fill(value)
