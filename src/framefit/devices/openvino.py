"""OpenVINO on this machine: its processor, and by the same code its GPU and NPU.

On the processor a launch runs on the submitting thread: a request that is inferred synchronously with one thread starts
no other (seen with OpenVINO 2026.4). Such a request loses the errors of its operators, which only occur where shapes
depend on the data: segments with such tensors, and all on other devices, are started and waited for.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import cache_folder
from framefit.core.latency_table import Value
from framefit.core.model import Model
from framefit.core.program import Operation
from framefit.core.run_record import FoundDevice
from framefit.core.target import Target, Unit
from framefit.core.workload import MachineSettings
from framefit.devices.clock import Clock
from framefit.devices.device import Array, Backend, Capabilities, Handle, Tensors, allocate, fitting, random_inputs
from framefit.devices.host import available_cores, default_core, kept_denormals, unpinned
from framefit.devices.launching import Launch, LaunchingDevice
from framefit.errors import DeviceError, HangError, InputError, needs_extra

logger = logging.getLogger(__name__)
_CPU = "CPU"
# One thread, which is the caller's; float32 as the model says, where a processor would compute in bfloat16.
_ON_CPU = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
_ELSEWHERE = {"NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}


@functools.cache
def _core() -> Any:
    """OpenVINO's entry to all devices.

    Raises:
        MissingExtraError: OpenVINO is not installed.
    """
    with needs_extra("openvino", "openvino"):
        import openvino

    return openvino.Core()


def _version() -> str:
    """Its version: "2026.4.1"."""
    import openvino

    return str(openvino.__version__).partition("-")[0]


def found() -> tuple[FoundDevice, ...]:
    """Devices that OpenVINO finds on this machine.

    Raises:
        MissingExtraError: OpenVINO is not installed.
    """
    core = _core()
    return tuple(
        FoundDevice(name=name, description=f"{core.get_property(name, 'FULL_DEVICE_NAME')}, OpenVINO {_version()}")
        for name in core.available_devices
    )


class _Binding:
    """A request with its tensors attached."""

    __slots__ = ("_fixed", "_outputs", "_request", "core", "kind", "run")

    def __init__(self, handle: _Handle, request: Any, fixed: Tensors) -> None:
        self.kind, self.core = handle.kind, handle.unit.core
        self._request, self._fixed = request, fixed  # keep the arrays alive
        self._outputs = {tensor.name: place for place, tensor in enumerate(handle.outputs)}
        self.run: Callable[[], object]
        if handle.running is None:
            self.run = functools.partial(request.infer, None, True, True)  # noqa: FBT003 - inputs and outputs are shared
        else:
            self.run = functools.partial(_launched, request, handle.running, handle.unit.name)

    def output(self, name: str) -> Array:
        """Return an output of the latest launch."""
        if name in self._fixed:
            return self._fixed[name]
        array: Array = self._request.get_output_tensor(self._outputs[name]).data
        return array


def _launched(request: Any, running: dict[str, Any], unit: str) -> None:
    """Start a launch, and wait for its end."""
    running[unit] = request
    try:
        request.start_async()
        request.wait()
    finally:
        running.pop(unit, None)


class _Handle:
    """A compiled segment; ``running``: requests that run on units whose launches can be ended."""

    def __init__(
        self, compiled: Any, segment: Model, label: str, kind: int, unit: Unit, running: dict[str, Any] | None
    ) -> None:
        self.operations = (Operation.opaque(label, segment.layers[-1].name if segment.layers else label, unit.name),)
        self.kind, self.unit, self.running = kind, unit, running
        self._compiled, self._label = compiled, label
        self.inputs, self.outputs = segment.inputs, segment.outputs

    def bind(self, tensors: Tensors) -> _Binding:
        """Attach arrays; see :class:`framefit.devices.device.Handle`."""
        import openvino

        request = self._compiled.create_infer_request()
        fixed: dict[str, Array] = {}
        for tensors_of, attach, what in (
            (self.inputs, request.set_input_tensor, "input"),
            (self.outputs, request.set_output_tensor, "output"),
        ):
            for place, tensor in enumerate(tensors_of):
                if tensor.name in tensors:
                    array = fitting(tensors[tensor.name], tensor, self._label)
                    fixed[tensor.name] = array
                    try:
                        attach(place, openvino.Tensor(array, shared_memory=True))
                    except (RuntimeError, ValueError) as error:
                        raise DeviceError(
                            f"OpenVINO cannot use the array for {what} {tensor.name!r}: {_reason(error)}",
                            where=self._label,
                        ) from error
                elif what == "input" or tensor.fixed:
                    raise DeviceError(f"{self._label}: no array for {what} {tensor.name!r}")
        return _Binding(self, request, fixed)


class OpenVinoDevice(LaunchingDevice):
    """Units that OpenVINO runs segments on: cores of the processor, a GPU, an NPU.

    Units on the processor are the calling thread: pin it to the unit's core with
    :func:`framefit.devices.host.pinned`. They can be interrupted, and not ended.

    Args:
        target: its units' ``device`` is OpenVINO's name ("CPU", "NPU", "GPU.0"), ``options`` its properties.
        clock: clock of the completions.
        cache: folder of compiled segments; default: the user's cache.
        trace_events: capacity of the event buffer.
        waits: start launches and wait for them on the processor, too, so that they can be ended.

    Raises:
        InputError: OpenVINO finds no such device here, or it does not take an option.
        MissingExtraError: OpenVINO is not installed.
    """

    capabilities = Capabilities(
        runs_on_host=True, shares_host_memory=True, preemptive=True, collects_events=True, tells_layer_times=True
    )

    def __init__(
        self,
        target: Target,
        *,
        clock: Clock | None = None,
        cache: Path | None = None,
        trace_events: int = 1 << 18,
        waits: bool = False,
    ) -> None:
        available = _core().available_devices
        for place, unit in enumerate(target.units):
            _check(unit, f"$.units[{place}]", available)
        self._waiting = {unit.name for unit in target.units if waits or unit.device != _CPU}
        units = tuple(msgspec.structs.replace(unit, preemptive=unit.name not in self._waiting) for unit in target.units)
        super().__init__(msgspec.structs.replace(target, units=units), clock=clock, trace_events=trace_events)
        on_host, apart = not self._waiting, len(self._waiting) == len(units)
        self.capabilities = dataclasses.replace(
            self.capabilities, runs_on_host=on_host, preemptive=on_host, ends_launches=apart
        )
        self._running: dict[str, Any] = {}
        self._cache = (cache or cache_folder()) / "openvino"

    def fingerprint(self) -> dict[str, Value]:
        """The machine, OpenVINO, and how units are set."""
        units = (
            f"{unit.name}: {unit.device} {_core().get_property(unit.device, 'FULL_DEVICE_NAME')}"
            + "".join(f" {key}={value}" for key, value in sorted(self._properties(unit).items()) if key != "CACHE_DIR")
            for unit in self.target.units
        )
        return super().fingerprint() | {"openvino": _version(), "units": "; ".join(units)}

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """Groups of nodes that one operator of the compiled model executes."""
        members: dict[int, list[str]] = {}
        for layer, place in zip(model.layers, self._executed(model, self.target.units[0]).places, strict=True):
            members.setdefault(place, []).extend(layer.nodes)
        return tuple(tuple(nodes) for nodes in members.values() if len(nodes) > 1)

    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """Compile a segment for a unit."""
        place, kind = self.place(unit, label)
        compiled = self._compiled(segment, place, label)
        fixed = all(tensor.fixed for layer in segment.layers for tensor in layer.outputs)
        running = self._running if unit in self._waiting or not fixed else None
        return _Handle(compiled, segment, label, kind, place, running)

    def layer_times_ns(self, model: Model, unit: str, launches: int) -> npt.NDArray[np.int64]:
        """See :class:`framefit.devices.device.LayerTimesDevice`; OpenVINO counts whole microseconds.

        Copies between layouts that it inserts count for the layer that they are made for.
        """
        place, _ = self.place(unit, model.name)
        executed = self._executed(model, place)
        grouped = model.grouped(self.fusions(model))
        row_of = {node: row for row, layer in enumerate(grouped.layers) for node in layer.nodes}
        first = {executed.places[i]: row_of[layer.nodes[0]] for i, layer in reversed(list(enumerate(model.layers)))}
        handle = _Handle(executed.compiled, model, model.name, 0, place, None)
        arrays = random_inputs(model.inputs, np.random.default_rng(0))
        arrays |= {tensor.name: allocate(tensor) for tensor in model.outputs if tensor.fixed}
        binding, times = handle.bind(arrays), np.zeros((launches, len(grouped.layers)), np.int64)
        for launch in range(launches):
            binding.run()
            for name, took_ns in executed.profile(binding._request):  # noqa: SLF001 - made here
                row = first[executed.place_of[name]]
                times[launch, row] += took_ns
        return times

    def terminate(self, unit: str) -> None:
        """Cancel the launch that was started and is waited for; one on the processor runs to its end."""
        request = self._running.get(unit)
        if request is not None:
            request.cancel()

    def failure(self, launch: Launch, error: Exception) -> DeviceError:
        """Make the error of a launch that raised."""
        if "INFER_CANCELLED" in str(error) or "cancel" in str(error).lower():
            return HangError("the launch was terminated", where=self.label(launch.kind))
        return DeviceError(f"OpenVINO failed: {_reason(error)}", where=self.label(launch.kind))

    def _properties(self, unit: Unit) -> dict[str, Any]:
        properties = _ON_CPU if unit.device == _CPU else _ELSEWHERE
        return {**properties, "CACHE_DIR": str(self._cache), **unit.options}

    def _compiled(self, segment: Model, unit: Unit, label: str, **properties: Any) -> Any:
        """Compile a segment; OpenVINO keeps what it compiled in the cache's folder."""
        settled = self._properties(unit) | properties
        core = _core()
        try:
            with kept_denormals(), unpinned():  # its threads stay on the cores of the thread that starts them
                model = core.read_model(segment.to_bytes())
                try:
                    return core.compile_model(model, unit.device, settled)
                except RuntimeError:  # the cache cannot be written, or the model cannot be compiled
                    del settled["CACHE_DIR"]
                    return core.compile_model(model, unit.device, settled)
        except RuntimeError as error:
            raise DeviceError(
                f"OpenVINO cannot compile it for {unit.device}: {_reason(error)}",
                where=label,
                remedy="see the operators that OpenVINO supports, or export the model at another opset",
            ) from error

    def _executed(self, model: Model, unit: Unit) -> _Executed:
        return _Executed(self._compiled(model, unit, model.name, PERF_COUNT=True), model)


class _Operator(NamedTuple):
    """An operator of a compiled model."""

    name: str
    kind: str
    originals: tuple[str, ...]


_NOT_EXECUTED = ("Input", "Parameter", "Const", "Constant", "Output", "Result")


class _Executed:
    """What a compiled model executes, and for which layers.

    An operator names the nodes that it was made of (``originalLayersNames``), but not all of them: a convolution loses
    its name where it takes in a normalisation, and what is replaced by other operators does, too. Such a layer belongs
    to the operator of the first layer that reads it, or else that it reads.

    Attributes:
        compiled: the model.
        places: for each layer of the model the number of its operator.
        place_of: operators' numbers by their names; a copy that was inserted has that of the next operator.
    """

    def __init__(self, compiled: Any, model: Model) -> None:
        self.compiled = compiled
        operators = _operators(compiled.get_runtime_model())
        layer_of = {tensor.name: index for index, layer in enumerate(model.layers) for tensor in layer.outputs}
        layer_of |= {node: index for index, layer in enumerate(model.layers) for node in layer.nodes}
        places: list[int | None] = [None] * len(model.layers)
        known: list[bool] = []
        for number, operator in enumerate(operators):
            layers = {layer_of[name] for name in operator.originals if name in layer_of}
            known.append(bool(layers))
            for index in layers:
                if places[index] is None:
                    places[index] = number
        readers: dict[str, list[int]] = {}
        for index, layer in enumerate(model.layers):
            for tensor in layer.inputs:
                readers.setdefault(tensor.name, []).append(index)
        for index in reversed(range(len(places))):
            if places[index] is None:
                reading = [i for tensor in model.layers[index].outputs for i in readers.get(tensor.name, ())]
                places[index] = next((places[i] for i in sorted(reading) if places[i] is not None), None)
        made = {tensor.name: index for index, layer in enumerate(model.layers) for tensor in layer.outputs}
        for index, layer in enumerate(model.layers):
            if places[index] is None:
                read = [places[made[tensor.name]] for tensor in layer.inputs if tensor.name in made]
                places[index] = next((place for place in read if place is not None), -1)
        self.places = [-1 if place is None else place for place in places]
        self.place_of: dict[str, int] = {}
        used, following = set(self.places), max(self.places, default=-1)
        for number in reversed(range(len(operators))):
            following = number if number in used else following
            self.place_of[operators[number].name] = following

    def profile(self, request: Any) -> list[tuple[str, int]]:
        """Operators that the latest launch executed, with their durations in ns."""
        return [
            (info.node_name, round(info.real_time.total_seconds() * 1e9))
            for info in request.profiling_info
            if info.node_name in self.place_of and info.real_time
        ]


def _operators(runtime_model: Any) -> list[_Operator]:
    """Operators of a compiled model in the order of their execution."""
    ordered: list[tuple[int, _Operator]] = []
    for node in runtime_model.get_ordered_ops():
        info = {key: value.value for key, value in node.get_rt_info().items()}
        names = tuple(filter(None, str(info.get("originalLayersNames", "")).split(",")))
        operator = _Operator(node.get_friendly_name(), str(info.get("layerType", "")), names)
        ordered.append((int(info.get("execOrder", len(ordered))), operator))
    return [operator for _, operator in sorted(ordered) if operator.kind not in _NOT_EXECUTED]


def _check(unit: Unit, where: str, available: Sequence[str]) -> None:
    """Refuse a unit whose device is not here, or does not take an option.

    Raises:
        InputError: so it is.
    """
    base = unit.device.partition(".")[0]
    if unit.device not in available and base not in available:
        raise InputError(
            f"OpenVINO {_version()} finds no device {unit.device!r} here",
            where=where,
            remedy=f"choose from {', '.join(available)}, or install the device's driver",
        )
    supported: Mapping[str, str] = _core().get_property(unit.device, "SUPPORTED_PROPERTIES")
    for name in unit.options:
        if name not in supported:
            near = difflib.get_close_matches(name, supported, n=1)
            raise InputError(
                f"OpenVINO's {unit.device} has no property {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                where=where,
                remedy="correct it, or leave it out: OpenVINO's documentation lists the properties of each device",
            )


def _reason(error: Exception) -> str:
    """What OpenVINO says in a line, without the places in its own source files."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = [line for line in lines if not line.startswith(("Exception from", "Check '")) and "http" not in line]
    return " ".join(filter(None, text))[:300] or type(error).__name__


def _settled(target: Target, settings: MachineSettings, where: Path | None) -> Target:
    """A target whose units have a device and a core: the settings', the target's own, or the default one.

    Raises:
        InputError: settings of this machine are for ONNX Runtime only, or there are cores and several units.
    """
    if settings.providers != MachineSettings().providers or settings.device.custom_ops:
        raise InputError(
            "providers and custom_ops belong to ONNX Runtime, but the target is OpenVINO's",
            where="$.providers",
            remedy="leave them out; name devices of OpenVINO in the target",
        )
    placed = where is not None and any(unit.core for unit in target.units)
    units = [msgspec.structs.replace(unit, device=unit.device or _CPU) for unit in target.units]
    on_cpu = [unit for unit in units if unit.device == _CPU]
    if settings.cores and (len(units) > 1 or not on_cpu):
        raise InputError(
            f"cores are for a target of one unit on the processor, and {target.name!r} has others",
            where="$.cores",
            remedy="leave cores out, and give units a core in the target's file",
        )
    if len(units) == len(on_cpu) == 1 and (settings.cores or where is None):
        cores = settings.cores or (default_core(),)
        made = [msgspec.structs.replace(units[0], name=f"cpu{core}", core=core) for core in cores]
    elif placed:
        made = units
    else:
        cores = available_cores()[::-1]
        made = [msgspec.structs.replace(u, core=cores[min(place, len(cores) - 1)]) for place, u in enumerate(units)]
    return msgspec.structs.replace(target, units=tuple(made))


def _open(
    target: Target,
    settings: MachineSettings,
    where: Path | None,
    *,
    computes: bool,  # noqa: ARG001 - it always does
) -> OpenVinoDevice:
    """Open OpenVINO's devices of this machine."""
    return OpenVinoDevice(_settled(target, settings, where))


BACKEND = Backend(api=1, capabilities=OpenVinoDevice.capabilities, open=_open, find=found)
