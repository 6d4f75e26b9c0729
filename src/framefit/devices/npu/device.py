"""A described accelerator that runs: units that cannot be preempted, in virtual or real time."""

from __future__ import annotations

import contextlib
import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from framefit.core.events import Trace
from framefit.core.functions import load_function
from framefit.core.latency_table import Value
from framefit.core.model import Model, TensorInfo, configuration, epilogue_groups
from framefit.core.program import Operation
from framefit.core.target import Target, TraceUnit, Unit, Variation
from framefit.core.workload import MachineSettings
from framefit.devices.clock import Clock, RealClock, VirtualClock
from framefit.devices.device import (
    Array,
    Backend,
    Binding,
    Capabilities,
    Completion,
    Device,
    Handle,
    Tensors,
    fitting,
    target_facts,
)
from framefit.devices.host import default_core
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.packets import TRANSFER, PacketBuffer, event_kind
from framefit.devices.pieces import HostDevice
from framefit.errors import DeviceError, UnsupportedError
from framefit.stats import normal_quantile

LayerTimes = Callable[[Model, str], Sequence[int]]  # a model with its fused groups, a unit -> ns of each layer
_BATCH = 4096  # random numbers drawn at once


class NpuBinding:
    """A launch with its arrays, and the binding that computes its outputs."""

    __slots__ = ("_tensors", "duration_ns", "inner", "pattern", "unit")

    def __init__(self, handle: NpuHandle, tensors: Tensors, inner: Binding | None) -> None:
        self.pattern = handle.pattern
        self.unit = handle.unit
        self.duration_ns = handle.duration_ns
        self.inner = inner
        self._tensors = tensors

    def output(self, name: str) -> Array:
        """Return the bound array, or the latest launch's result if its shape is not fixed."""
        if name in self._tensors:
            return self._tensors[name]
        if self.inner is None:
            raise DeviceError(f"output {name!r} has no fixed shape and is not computed")
        return self.inner.output(name)


@dataclass(frozen=True)
class NpuHandle:
    """A segment with its duration and operations.

    Attributes:
        pattern: number of the pattern of its packets.
        duration_ns: nominal duration: transfers and all layers.
        segment: ``None``: only the duration is known.
        inner: handle that computes its outputs.
    """

    label: str
    unit: str
    pattern: int
    duration_ns: int
    operations: tuple[Operation, ...]
    segment: Model | None = None
    inner: Handle | None = None

    def bind(self, tensors: Tensors) -> NpuBinding:
        """Attach arrays; see :class:`framefit.devices.device.Handle`."""
        if self.segment is not None:
            for tensor in (*self.segment.inputs, *(output for output in self.segment.outputs if output.fixed)):
                if tensor.name not in tensors:
                    raise DeviceError(f"{self.label}: no array for {tensor.name!r}")
                fitting(tensors[tensor.name], tensor, self.label)
        return NpuBinding(self, tensors, None if self.inner is None else self.inner.bind(tensors))


class NpuDevice:
    """Units without preemption on any clock; a launch occupies its unit to the end.

    Units run concurrently: in threads on a real clock, as parts of a virtual one if that supports several.

    A launch takes the transfers over the host link and the layers' times, varied by the target's
    :class:`~framefit.core.target.Variation`; each operation leaves START and END packets in the trace unit's buffer.
    The device does not wait for the host: on a real clock a launch ends when the model says, or when its outputs are
    computed if that is later: then the launch, and all of its operations alike, was slower.

    Args:
        target: units, host link, trace unit, variation.
        layer_times: times of a segment's layers on a unit; ``None``: only launches from :meth:`timed` can run.
        clock: virtual, or real: then the calling thread waits.
        computer: computes outputs while :attr:`computes` is set; ``None``: they are not computed.
        seed: for the variation; the same seed gives the same run, bit for bit.
    """

    capabilities = Capabilities(modelled=True, simulated=True, layer_events=True)

    def __init__(
        self,
        target: Target,
        clock: Clock,
        layer_times: LayerTimes | None = None,
        *,
        computer: Device | None = None,
        seed: int = 0,
    ) -> None:
        self.clock = clock
        self.computes = computer is not None
        """Whether launches compute their outputs; otherwise arrays stay as they are."""
        self.late_results = 0
        """Number of launches whose outputs were computed later than the model's time."""
        self._target = target
        self.computer = computer
        self._layer_times = layer_times
        self._packets = PacketBuffer(target.trace)
        self._free_at: dict[str, int] = {}  # units, and links by the names of their ends
        self._begun: dict[str, int] = {}  # launches in flight: the time from which their units are busy
        self._segments_ns: dict[tuple[object, ...], int] = {}
        self.restart(seed)

    def restart(self, seed: int = 0) -> None:
        """Start over on the present clock: variation from the seed, no packets, every unit idle."""
        real = isinstance(self.clock, RealClock)
        if real:
            self._packets.prepare()
        # Only one thread runs in virtual time.
        self._lock = threading.Lock() if real and len(self._target.units) > 1 else None
        # A unit's variation does not depend on the other units' launches.
        self._vary: dict[str, _Varying | _Slowed] = {
            unit.name: _Varying(self._target.variation, [seed, number] if number else seed, self.clock.now_ns())
            for number, unit in enumerate(self._target.units)
        }
        self._packets.clear()
        self._free_at.clear()
        self._begun.clear()
        self.late_results = 0

    @property
    def target(self) -> Target:
        """Its description."""
        return self._target

    @property
    def host_core(self) -> int:
        """The core that computes outputs."""
        return default_core() if self.computer is None else self.computer.host_core

    def fingerprint(self) -> dict[str, Value]:
        """The description (without its trace unit and texts for readers), and whether it runs in virtual time."""
        bare = msgspec.to_builtins(msgspec.structs.replace(self._target, description="", trace=TraceUnit()))
        del bare["checked"]
        digest = hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()
        return target_facts(self) | {"description": digest[:16]}

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """Products with the element-wise nodes that follow; see :func:`~framefit.core.model.epilogue_groups`."""
        return epilogue_groups(model)

    def kernels(self, model: Model) -> frozenset[str]:  # noqa: ARG002 - nothing else executes any
        """There are none."""
        return frozenset()

    def lowered(self, model: Model) -> Model:
        """The model itself: its layers are executed as they are."""
        return model

    def compile(self, segment: Model, unit: str, label: str) -> NpuHandle:
        """Price a segment, and compile it for the computer of outputs if there is one.

        Raises:
            DeviceError: there is no such unit, or no cost model.
            InputError: the unit does not support a layer.
        """
        place = self._unit(unit)
        if self._layer_times is None:
            raise DeviceError(f"there are no layer times for {label!r}", where=self._target.name)
        grouped = segment.grouped(self.fusions(segment))
        times = self._layer_times(grouped, unit)
        sigma = self._target.variation.sigma_ratio
        load, store = self.link_ns(segment)
        first, last = grouped.layers[0].name, grouped.layers[-1].name
        transfers = [
            Operation(
                index=0, name=f"{label}.{what}", layer=at, kind=TRANSFER, unit=unit, expected_ns=ns, sigma_ratio=sigma
            )
            for what, at, ns in (("load", first, load), ("store", last, store))
        ]
        layers = [
            Operation(
                index=0,
                name=layer.name,
                layer=layer.name,
                kind=event_kind(layer.op),
                unit=unit,
                expected_ns=int(ns),
                sigma_ratio=sigma,
                op=layer.op,
                configuration=configuration(nodes),
            )
            for layer, nodes, ns in zip(grouped.layers, grouped.nodes, times, strict=True)
        ]
        operations = [*transfers[:1], *layers, *transfers[1:]]
        operations = [part for part in operations if part.expected_ns or part.kind != TRANSFER]
        inner = None if self.computer is None else self.computer.compile(segment, self._computer_unit, label)
        return self._handle(label, place, operations, segment, inner)

    def layers_ns(self, model: Model, unit: str) -> tuple[int, ...]:
        """Nominal times of a model's layers on a unit, without transfers; its fused groups are layers.

        Raises:
            DeviceError: there is no cost model.
            InputError: the unit does not support a layer.
        """
        if self._layer_times is None:
            raise DeviceError(f"there are no layer times for {model.name!r}", where=self._target.name)
        return tuple(map(int, self._layer_times(model, unit)))

    def segment_ns(self, model: Model, first: int, last: int, unit: str) -> int:
        """Nominal time of a launch of some of a model's layers, with its transfers; each is priced once.

        Raises:
            DeviceError: there is no cost model.
            InputError: the unit does not support a layer.
        """
        layers = model.layers
        key = model.digest, model.lowered, layers[first].nodes, layers[last].nodes, unit
        if key not in self._segments_ns:
            part = model if last - first == len(layers) - 1 else model.segment(first, last)
            self._segments_ns[key] = sum(self.layers_ns(part.grouped(self.fusions(part)), unit)) + sum(
                self.link_ns(part)
            )
        return self._segments_ns[key]

    def quantile_ratio(self, quantile: float) -> float:
        """A launch's quantile over its nominal time; see :func:`quantile_ratio`."""
        return quantile_ratio(self._target.variation, quantile)

    def greatest_ratio(self) -> float:
        """A launch's greatest duration over its nominal time; see :func:`greatest_ratio`."""
        return greatest_ratio(self._target.variation)

    def timed(self, label: str, unit: str, duration_ns: int) -> NpuHandle:
        """Make a launch of one operation that takes a given time and computes nothing.

        Raises:
            DeviceError: there is no such unit.
        """
        operation = Operation.opaque(label, label, unit, duration_ns, self._target.variation.sigma_ratio)
        return self._handle(label, self._unit(unit), [operation], None, None)

    @property
    def stored_ratio(self) -> float:
        """Bytes of a float32 tensor on the device over those on the host."""
        bits = None if self._target.processor is None else self._target.processor.activation_bits
        return 1.0 if bits is None else bits / 32

    @property
    def launch_ns(self) -> int:
        """Cost of each launch for the host, without transfers, and so of each boundary between segments."""
        return round(self._target.host.inference_ns)

    def link_ns(self, model: Model) -> tuple[int, int]:
        """Time on the host link before and after a launch; tensors between segments stay on the device."""
        host = self._target.host
        into, out = (
            sum(self._stored_bytes(tensor) for tensor in tensors if tensor.name not in model.internal_tensors)
            for tensors in (model.inputs, model.outputs)
        )
        return round(host.transfer_ns(into, 0)), round(host.transfer_ns(0, out) - host.inference_ns)

    def _stored_bytes(self, tensor: TensorInfo) -> int:
        """Bytes as the device stores a tensor: floats have as many bits as its arithmetic."""
        bits = None if self._target.processor is None else self._target.processor.activation_bits
        if bits is None or not tensor.dtype.startswith(("float", "bfloat")):
            return tensor.bytes
        return tensor.bytes * bits // (8 * np.dtype(tensor.dtype).itemsize)

    def submit(self, binding: Binding) -> Completion:
        """Let the launch's time pass while its outputs are computed.

        Raises:
            DeviceError: computing the outputs failed.
        """
        assert isinstance(binding, NpuBinding)
        clock, unit, lock = self.clock, binding.unit, self._lock
        nominal = binding.duration_ns
        if lock is None:
            started = max(clock.now_ns(), self._free_at.get(unit, 0))
        else:
            with lock:
                started = self._begun[unit] = max(clock.now_ns(), self._free_at.get(unit, 0))
        factor, stalled_at, stall = self._vary[unit](started, nominal)
        finished = started + round(nominal * factor) + stall
        try:
            if self.computes and binding.inner is not None:
                assert self.computer is not None
                self.computer.submit(binding.inner)
                if (computed := clock.now_ns()) > finished:
                    finished = computed
                    factor = (finished - started - stall) / max(nominal, 1)
                    self.late_results += 1
        except BaseException:
            self._begun.pop(unit, None)  # nothing of it is recorded, and nothing waits for it
            raise
        if lock is None:
            self._packets.add(binding.pattern, started, factor, stalled_at, stall)
        else:
            with lock:
                self._packets.add(binding.pattern, started, factor, stalled_at, stall, min(self._begun.values()))
                del self._begun[unit]
        self._free_at[unit] = finished
        clock.sleep_until_ns(finished)
        return Completion(started, finished)

    def slow(self, unit: str, ratio: float) -> None:
        """Multiply the durations of launches on a unit from now on; 1: as described."""
        vary = self._vary[unit]
        vary = vary.vary if isinstance(vary, _Slowed) else vary
        self._vary[unit] = vary if ratio == 1 else _Slowed(vary, ratio)

    def terminate(self, unit: str) -> None:  # noqa: ARG002 - its launches end by themselves
        """Terminate the computation of outputs: nothing else can hang."""
        if self.computer is not None:
            self.computer.terminate(self._computer_unit)

    def arrival_ns(self, sender: str, receiver: str, size_bytes: int, written_ns: int) -> int:
        """Time at which another unit can read a tensor; a link between units carries one tensor at a time.

        Args:
            sender: name of the unit that wrote it.
            receiver: name of the unit that will read it.
            size_bytes: on the host.
            written_ns: time at which it was written.
        """
        link = self._target.link(sender, receiver)
        if link is None:
            return written_ns
        name = "|".join(sorted(link.between))
        begins = max(written_ns, self._free_at.get(name, 0))
        self._free_at[name] = left = begins + round(link.occupied_ns(size_bytes * self.stored_ratio))
        return left + round(link.latency_ns)

    def events(self) -> Trace:
        """Packets since the latest call, but for those of launches that are not over: these come with a later one."""
        if self.computer is not None:
            self.computer.events()
        with self._lock or contextlib.nullcontext():
            return self._packets.drain(min([self.clock.now_ns(), *self._begun.values()]))

    @property
    def _computer_unit(self) -> str:
        assert self.computer is not None
        return self.computer.target.units[0].name

    def _unit(self, name: str) -> Unit:
        for unit in self._target.units:
            if unit.name == name:
                return unit
        raise DeviceError(f"no unit {name!r}; units: {', '.join(unit.name for unit in self._target.units)}")

    def _handle(
        self, label: str, unit: Unit, operations: Sequence[Operation], segment: Model | None, inner: Handle | None
    ) -> NpuHandle:
        numbered = tuple(msgspec.structs.replace(part, index=index) for index, part in enumerate(operations))
        durations = [operation.expected_ns for operation in numbered]
        pattern = self._packets.pattern([operation.kind for operation in numbered], durations, unit.core)
        return NpuHandle(label, unit.name, pattern, sum(durations), numbered, segment, inner)


class _Varying:
    """Variation of launches around their nominal time, from one seed.

    Jitter is log-normal with median 1, limited above; drift is a slow sine of the speed; stalls are a Poisson
    process in busy time.

    Args:
        variation: of the target.
        seed: of all random numbers; it may be several numbers.
        origin_ns: time at which drift begins.
    """

    def __init__(self, variation: Variation, seed: int | Sequence[int], origin_ns: int) -> None:
        self._variation = variation
        self._origin_ns = origin_ns
        self._random = np.random.default_rng(seed)
        self._factors: list[float] = []
        self._busy = 0.0
        stalls = variation.stall_rate_hz > 0 and variation.stall_ns > 0
        self._next_stall = self._gap() if stalls else math.inf

    def _gap(self) -> float:
        return float(self._random.exponential(1e9 / self._variation.stall_rate_hz))

    def __call__(self, started_ns: int, nominal_ns: int) -> tuple[float, int, int]:
        """Factor of the duration, and a stall: nominal time of its beginning, and its length."""
        variation = self._variation
        factor = 1.0
        if variation.sigma_ratio:
            if not self._factors:
                drawn = np.exp(variation.sigma_ratio * self._random.standard_normal(_BATCH))
                self._factors = np.minimum(drawn, 1 + variation.most_ratio).tolist()
            factor = self._factors.pop()
        if variation.drift_ratio:
            turn = math.tau * (started_ns - self._origin_ns) / (variation.drift_period_ms * 1e6)
            factor *= 1 + variation.drift_ratio * math.sin(turn)
        before, self._busy = self._busy, self._busy + nominal_ns
        if self._busy <= self._next_stall:
            return factor, 0, 0
        at, count = int(self._next_stall - before), 0
        while self._busy > self._next_stall:
            count += 1
            self._next_stall += self._gap()
        return factor, at, count * round(variation.stall_ns)


@dataclass(frozen=True)
class _Slowed:
    """Launches that take ``ratio`` times as long; a wrapper, so that others need no multiplication."""

    vary: _Varying
    ratio: float

    def __call__(self, started_ns: int, nominal_ns: int) -> tuple[float, int, int]:
        """See :class:`_Varying`."""
        factor, stalled_at_ns, stall_ns = self.vary(started_ns, nominal_ns)
        return factor * self.ratio, stalled_at_ns, stall_ns


def quantile_ratio(variation: Variation, quantile: float) -> float:
    """A launch's quantile over its nominal time: jitter, and drift at its worst; stalls are not included."""
    jitter = math.exp(variation.sigma_ratio * normal_quantile(quantile)) if variation.sigma_ratio else 1.0
    return min(jitter, 1 + variation.most_ratio) * (1 + variation.drift_ratio)


def greatest_ratio(variation: Variation) -> float:
    """A launch's greatest duration over its nominal time, without stalls."""
    return (1 + variation.most_ratio if variation.sigma_ratio else 1.0) * (1 + variation.drift_ratio)


def _open(target: Target, settings: MachineSettings, where: Path | None, *, computes: bool) -> NpuDevice:
    """Open a described device in virtual time; this machine computes its outputs if requested.

    Raises:
        UnsupportedError: a unit of a device that executes is preemptive.
    """
    for index, unit in enumerate(target.units if computes else ()):
        if unit.preemptive:
            raise UnsupportedError(
                f"$.units[{index}].preemptive = true is not supported yet: a described unit runs a segment to its end",
                where=where,
                remedy="leave the key out",
            )
    computer = None
    if computes:
        # outputs are computed beside virtual time: kernels would only have to be compiled and compared
        computer = HostDevice(
            msgspec.structs.replace(settings, cores=settings.cores and settings.cores[:1], kernels="never")
        )
    function = None
    if target.cost.function is not None:
        assert where is not None
        function = load_function(target.cost.function, where.parent, f"{where}: $.cost.function")
    return NpuDevice(target, VirtualClock(), layer_times(target, function), computer=computer)


BACKEND = Backend(api=1, capabilities=NpuDevice.capabilities, open=_open)
