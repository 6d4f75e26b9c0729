"""What backends share whose launches this process starts, times and records."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Protocol

from framefit.core.events import Trace
from framefit.core.latency_table import Value
from framefit.core.model import Model
from framefit.core.target import Target, Unit
from framefit.devices.clock import Clock, RealClock
from framefit.devices.device import Array, Binding, Capabilities, Completion, EventRecorder, Handle, target_facts
from framefit.devices.host import fingerprint
from framefit.errors import DeviceError


class Launch(Protocol):
    """A binding that :meth:`LaunchingDevice.submit` can launch.

    Attributes:
        run: Executes it, and returns when it has ended.
        kind: number of its label in the trace, from :meth:`LaunchingDevice.place`.
        core: of its unit.
    """

    run: Callable[[], object]
    kind: int
    core: int

    def output(self, name: str) -> Array:
        """See :class:`framefit.devices.device.Binding`."""


class LaunchingDevice(abc.ABC):
    """Base of devices whose launches this process starts, times and records; tensors are arrays of this machine.

    A backend adds :meth:`compile`, whose handles bind :class:`Launch` objects, and what else its device can do.

    Args:
        target: units, each with the core that it runs on, or that feeds it.
        clock: clock of the completions; default: the real one.
        trace_events: capacity of the event buffer.
    """

    capabilities = Capabilities(shares_host_memory=True, collects_events=True)
    stored_ratio = 1.0

    def __init__(self, target: Target, *, clock: Clock | None = None, trace_events: int = 1 << 18) -> None:
        self.target, self.clock, self.host_core = target, clock or RealClock(), target.units[0].core
        self._recorder = EventRecorder(trace_events)
        self._kinds: dict[str, int] = {}

    clock: Clock

    @abc.abstractmethod
    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """See :class:`framefit.devices.device.Device`."""

    def fingerprint(self) -> dict[str, Value]:
        """The target and this machine."""
        return target_facts(self) | fingerprint()

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:  # noqa: ARG002 - a backend may know some
        """Nothing is known to be fused."""
        return ()

    def kernels(self, model: Model) -> frozenset[str]:  # noqa: ARG002 - a backend may have some
        """There are none."""
        return frozenset()

    def lowered(self, model: Model) -> Model:
        """The model as it is."""
        return model

    def place(self, unit: str, label: str) -> tuple[Unit, int]:
        """Find a unit by its name, and the number of a label among the trace's kinds.

        Raises:
            DeviceError: there is no such unit.
        """
        try:
            place = self.target.unit(unit)
        except KeyError:
            known = ", ".join(unit.name for unit in self.target.units)
            raise DeviceError(f"no unit {unit!r}; units: {known}") from None
        return place, self._kinds.setdefault(label, len(self._kinds))

    def label(self, kind: int) -> str:
        """The label of a number."""
        return next(label for label, number in self._kinds.items() if number == kind)

    def submit(self, binding: Binding) -> Completion:
        """Run it on the calling thread."""
        launch: Launch = binding  # type: ignore[assignment]  # not asserted: this lies between two launches
        now, record = self.clock.now_ns, self._recorder.add_launch
        started = now()
        try:
            launch.run()
        except Exception as error:  # runtimes' errors have no common class
            raise self.failure(launch, error) from error
        finished = now()
        record(started, finished, launch.kind, launch.core)
        return Completion(started, finished)

    def failure(self, launch: Launch, error: Exception) -> DeviceError:
        """Make the error of a launch that raised."""
        return DeviceError(f"the launch failed: {error}", where=self.label(launch.kind))

    def terminate(self, unit: str) -> None:  # noqa: ARG002 - a backend may be able to
        """A launch runs to its end."""
        return

    def arrival_ns(self, sender: str, receiver: str, size_bytes: int, written_ns: int) -> int:  # noqa: ARG002
        """``written_ns``: all units read this machine's memory."""
        return written_ns

    def events(self) -> Trace:
        """Packets since the latest call; one START and END for each launch, in order of their ends."""
        return self._recorder.drain(tuple(self._kinds))
