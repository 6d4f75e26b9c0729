"""A timetable played through on given durations: the dispatcher's own code, no tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from framefit.core.model import TensorInfo
from framefit.core.timetable import Timetable
from framefit.devices.device import Array, Binding, Completion, Device, Tensors
from framefit.devices.npu import NpuDevice
from framefit.runtime.dispatcher import Dispatcher, Service, instants
from framefit.runtime.job import Job
from framefit.runtime.streams import Queue

__all__ = ["TimedExecution", "timed_dispatcher"]


class TimedExecution:
    """Launches that take their time and nothing else: no frames, no outputs.

    Args:
        device: what the bindings are for.
        labels: of the segments.
        bindings: one a segment.
    """

    frame_inputs: tuple[TensorInfo, ...] = ()

    def __init__(self, device: Device, labels: Sequence[str], bindings: Sequence[Binding]) -> None:
        self.labels = tuple(labels)
        self._steps = tuple(functools.partial(device.submit, binding) for binding in bindings)

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Nothing to take."""

    def step(self, index: int) -> Callable[[], Completion]:
        """Lets the segment's time pass."""
        return self._steps[index]

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:  # noqa: ARG002 - the protocol's form
        """Nothing."""
        return {}

    def finish(self) -> None:
        """Nothing to hand on."""


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
    """A dispatcher that runs a timetable's models on a device of given durations: the medians, as it varies them.

    Args:
        timetable: feasible or not: what it says is tried.
        device: its units are those of the timetable.
        rate_hz: windows a second.
        service: policy among background models.
        queues: model -> frames that may wait; default: 1.
        every: model -> windows between its frames; default: 1.
        deadlines_ns: model -> deadline; default: the window for priority models.
    """
    jobs, first = [], 0
    for model in timetable.models:
        labels = [f"{model.name}.{segment.index}" for segment in model.segments]
        bindings = [
            device.timed(label, segment.unit, segment.median_ns).bind({})
            for label, segment in zip(labels, model.segments, strict=True)
        ]
        priority = model.role == "priority"
        jobs.append(
            Job(
                execution=TimedExecution(device, labels, bindings),
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
