"""A timetable played through on given durations: the dispatcher's own code, no tensors."""

from __future__ import annotations

from collections.abc import Sequence

from framefit.core.model import TensorInfo
from framefit.core.target import Target
from framefit.core.timetable import PlannedModel, Timetable
from framefit.devices.clock import Clock
from framefit.devices.device import Array, Completion, Tensors
from framefit.devices.npu import Jitter, NpuDevice
from framefit.runtime.dispatcher import Dispatcher, Service, instants
from framefit.runtime.job import Job
from framefit.runtime.streams import Queue

__all__ = ["TimedExecution", "timed_device", "timed_dispatcher"]


class TimedExecution:
    """The launches of a planned model, as durations.

    Args:
        model: its segments name the unit.
        device: knows a duration for each ``MODEL.SEGMENT``.
    """

    frame_inputs: tuple[TensorInfo, ...] = ()

    def __init__(self, model: PlannedModel, device: NpuDevice) -> None:
        self.labels = tuple(_label(model, segment.index) for segment in model.segments)
        self._device = device
        self._bindings = [device.handle(_label(model, s.index), s.unit).bind({}) for s in model.segments]

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Nothing to take."""

    def launch(self, index: int) -> Completion:
        """Let the segment's time pass."""
        return self._device.submit(self._bindings[index])

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:  # noqa: ARG002 - the protocol's form
        """Nothing."""
        return {}

    def finish(self) -> None:
        """Nothing to hand on."""


def _label(model: PlannedModel, segment: int) -> str:
    return f"{model.name}.{segment}"


def timed_device(
    timetable: Timetable, target: Target, clock: Clock, *, jitter: Jitter | None = None, seed: int = 0
) -> NpuDevice:
    """A device on which each segment takes its median, varied by the jitter."""
    durations = {_label(model, s.index): s.median_ns for model in timetable.models for s in model.segments}
    return NpuDevice(target, durations, clock, jitter=jitter, seed=seed)


def timed_dispatcher(
    timetable: Timetable,
    device: NpuDevice,
    rate_hz: float,
    service: Service,
    *,
    queues: dict[str, int] | None = None,
    every: dict[str, int] | None = None,
    deadlines_ns: dict[str, int] | None = None,
) -> Dispatcher:
    """A dispatcher that runs a timetable's models on a timed device.

    Args:
        timetable: feasible or not: what it says is tried.
        device: see :func:`timed_device`.
        rate_hz: windows a second.
        service: policy among background models.
        queues: model -> frames that may wait; default: 1.
        every: model -> windows between its frames; default: 1.
        deadlines_ns: model -> deadline; default: the window for priority models.
    """
    jobs, first = [], 0
    for model in timetable.models:
        priority = model.role == "priority"
        jobs.append(
            Job(
                execution=TimedExecution(model, device),
                first_program=first,
                priority=priority,
                estimates_ns=[segment.duration_ns for segment in model.segments],
                deadline_ns=(deadlines_ns or {}).get(model.name, timetable.window_ns if priority else None),
                sources={},
                queue=Queue((queues or {}).get(model.name, 1)),
                every=(every or {}).get(model.name, 1),
            )
        )
        first += len(model.segments)
    numbers = {model.name: index for index, model in enumerate(timetable.models)}
    return Dispatcher(
        device,
        device.clock,
        jobs,
        rate_hz,
        timetable.guard_ns,
        service=service,
        reserved=instants(timetable, numbers),
    )
