"""A device that takes given times: what the dispatcher is tested and compared on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from framefit.core.events import EventType, Trace
from framefit.core.model import Model
from framefit.core.target import Target
from framefit.devices.clock import Clock
from framefit.devices.device import Array, Binding, Completion, Tensors
from framefit.devices.recorder import EventRecorder
from framefit.errors import DeviceError

__all__ = ["Jitter", "NpuDevice"]

_BATCH = 4096  # random factors drawn at once


@dataclass(frozen=True)
class Jitter:
    """How durations vary: log-normal with median 1, cut above.

    Attributes:
        sigma: of the logarithm.
        most_ratio: the factor is at most 1 plus this.
    """

    sigma: float = 0.0
    most_ratio: float = 0.1


class NpuBinding:
    """A launch of one label; tensors stay as they are."""

    __slots__ = ("_tensors", "core", "duration_ns", "kind")

    def __init__(self, kind: int, core: int, duration_ns: int, tensors: Tensors) -> None:
        self.kind = kind
        self.core = core
        self.duration_ns = duration_ns
        self._tensors = tensors

    def output(self, name: str) -> Array:
        """The array that was bound."""
        return self._tensors[name]


@dataclass(frozen=True)
class NpuHandle:
    """A label with its duration, and the segment that it was compiled from, if any."""

    label: str
    kind: int
    core: int
    duration_ns: int
    segment: Model | None = None

    def bind(self, tensors: Tensors) -> NpuBinding:
        """Check the arrays of the segment's inputs and outputs; without a segment any will do."""
        if self.segment is not None:
            for tensor in (*self.segment.inputs, *(output for output in self.segment.outputs if output.fixed)):
                array = tensors.get(tensor.name)
                if array is None:
                    raise DeviceError(f"{self.label}: no array for {tensor.name!r}")
                if array.dtype.name != tensor.dtype or array.shape != tensor.shape or not array.flags.c_contiguous:
                    raise DeviceError(
                        f"{self.label}: {tensor.name!r} is {tensor.dtype} {tensor.shape}, the array {array.dtype} "
                        f"{array.shape}" + ("" if array.flags.c_contiguous else ", not contiguous")
                    )
        return NpuBinding(self.kind, self.core, self.duration_ns, tensors)


class NpuDevice:
    """Non-preemptive units on any clock; a launch blocks its unit to the end.

    Args:
        target: its units.
        durations_ns: label -> time without jitter.
        clock: virtual, or real: then the calling thread waits the time out.
        jitter: of every launch.
        seed: of the jitter; the same seed gives the same run.
        trace_events: capacity of the event buffer.
    """

    def __init__(
        self,
        target: Target,
        durations_ns: Mapping[str, int],
        clock: Clock,
        *,
        jitter: Jitter | None = None,
        seed: int = 0,
        trace_events: int = 1 << 18,
    ) -> None:
        self.clock = clock
        self._target = target
        self._durations = dict(durations_ns)
        self._jitter = jitter or Jitter()
        self._random = np.random.default_rng(seed)
        self._factors: list[float] = []
        self._recorder = EventRecorder(trace_events)
        self._kinds: dict[str, int] = {}

    @property
    def target(self) -> Target:
        """Its units."""
        return self._target

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:  # noqa: ARG002 - the protocol's form
        """None."""
        return ()

    def compile(self, segment: Model, unit: str, label: str) -> NpuHandle:
        """Look up how long ``label`` takes."""
        return dataclasses.replace(self.handle(label, unit), segment=segment)

    def handle(self, label: str, unit: str) -> NpuHandle:
        """A launch without a model.

        Raises:
            DeviceError: no such unit, or no duration is known for the label.
        """
        core = next((u.core for u in self._target.units if u.name == unit), None)
        if core is None:
            raise DeviceError(f"no unit {unit!r}; units: {', '.join(u.name for u in self._target.units)}")
        if label not in self._durations:
            raise DeviceError(f"no duration is known for {label!r}", where=self._target.name)
        kind = self._kinds.setdefault(label, len(self._kinds))
        return NpuHandle(label, kind, core, self._durations[label])

    def submit(self, binding: Binding) -> Completion:
        """Wait until the launch has ended."""
        assert isinstance(binding, NpuBinding)
        clock, add = self.clock, self._recorder.add
        started = clock.now_ns()
        clock.sleep_until_ns(started + round(binding.duration_ns * self._factor()))
        finished = clock.now_ns()
        add(started, binding.kind, EventType.START, binding.core, 0)
        add(finished, binding.kind, EventType.END, binding.core, 0)
        return Completion(started, finished)

    def events(self) -> Trace:
        """Packets since the last call."""
        return self._recorder.drain(tuple(self._kinds))

    def _factor(self) -> float:
        if not self._jitter.sigma:
            return 1.0
        if not self._factors:
            drawn = np.exp(self._jitter.sigma * self._random.standard_normal(_BATCH))
            self._factors = np.minimum(drawn, 1 + self._jitter.most_ratio).tolist()
        return self._factors.pop()
