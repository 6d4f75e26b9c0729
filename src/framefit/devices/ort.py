"""ONNX Runtime on this machine.

:class:`OrtDevice` executes segments: one session for each segment, one thread for each unit. :func:`predictor` runs
many examples at once, to evaluate a network with the runtime that will execute it. :func:`quantised` makes an int8
network with the runtime's own tool: static, with ``QuantizeLinear`` and ``DequantizeLinear`` in the graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import itertools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import cache_folder
from framefit.core.latency_table import Value
from framefit.core.model import GraphBuilder, Model, folded, free_batch, fused_groups, lowered
from framefit.core.program import Operation
from framefit.core.target import Target, Unit, cpu_target
from framefit.core.workload import MachineSettings, UnitEntry
from framefit.devices.clock import Clock
from framefit.devices.device import (
    Array,
    Capabilities,
    Handle,
    Tensors,
    fitting,
    random_inputs,
)
from framefit.devices.host import (
    available_cores,
    default_core,
    fingerprint,
    flushes_denormals,
    kept_denormals,
    sums_of_products_saturate,
)
from framefit.devices.launching import Launch, LaunchingDevice
from framefit.devices.providers import require_provider, started
from framefit.errors import DeviceError, HangError, InputError, MismatchError, UnsupportedError

__all__ = ["predictor", "quantised", "slowdown_by_weight_inputs", "weight_nodes"]


_SLOWDOWN_TURNS = 7


def slowdown_by_weight_inputs(model: Model) -> float:
    """How many times as long a plain session of one thread takes where the model's weights are inputs, too.

    Sessions with and without are launched in turn.

    Raises:
        DeviceError: the runtime cannot compile or run the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # failures are raised, so the runtime need not print them
    inputs = random_inputs(model.inputs, np.random.default_rng(0))
    took_ns = np.zeros((_SLOWDOWN_TURNS, 2))
    try:
        with kept_denormals():
            sessions = [
                started(model.to_bytes(weights_as_inputs=given), options, ["CPUExecutionProvider"])
                for given in (False, True)
            ]
        for turn, column in itertools.product(range(_SLOWDOWN_TURNS), range(2)):
            begun_ns = time.perf_counter_ns()
            sessions[column].run(None, inputs)
            took_ns[turn, column] = time.perf_counter_ns() - begun_ns
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise DeviceError(f"ONNX Runtime cannot run it: {_first_line(error)}", where=model.name) from error
    without, given = np.median(took_ns[1:], axis=0)
    return float(given / without)


def predictor(model: Model) -> Callable[[npt.NDArray[np.float32]], tuple[npt.NDArray[Any], ...]]:
    """Make a function from inputs to all outputs, by ONNX Runtime on all cores, not for timing.

    Args:
        model: where its constants fix the batch, examples run in such batches; where it has several inputs, one by
            one, each a row of all their numbers.

    Raises:
        DeviceError: the runtime cannot compile the model.
    """
    import onnxruntime

    tensor, *others = model.inputs
    data, batch = model.to_bytes(), (tensor.shape or (1,))[0]
    free = False
    if not others:
        with contextlib.suppress(UnsupportedError):
            data, free = free_batch(model), True
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures are raised, so the runtime need not print them
    try:
        with kept_denormals():
            session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise DeviceError(f"ONNX Runtime cannot compile it: {error}", where=model.name) from error

    def predict(x: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
        count = len(x)
        if tensor.shape is not None and x.shape[1:] != model.example_shape:
            raise MismatchError(
                f"examples of {x.shape[1:]}, but the model takes {model.example_shape}", where=model.name
            )
        if others:
            rows = [session.run(None, _taken_apart(model, row)) for row in x]
            return tuple(np.stack(each) for each in zip(*rows, strict=True))
        if free:
            return tuple(session.run(None, {tensor.name: x}))
        padded = np.concatenate([x, np.repeat(x[-1:], -count % batch, axis=0)])
        parts = (padded[first : first + batch] for first in range(0, len(padded), batch))
        made = [session.run(None, {tensor.name: part}) for part in parts]
        return tuple(np.concatenate(each)[:count] for each in zip(*made, strict=True))

    return predict


def _taken_apart(model: Model, row: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
    """The inputs of an example that is a row of all their numbers."""
    return {
        tensor.name: row[model.columns[tensor.name]].reshape(tensor.shape or ()).astype(tensor.dtype)
        for tensor in model.inputs
    }


_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def weight_nodes(model: Model) -> tuple[str, ...]:
    """Names of the nodes whose multiplications are cheaper with eight bits, in order."""
    return tuple(node.name for nodes in model.nodes for node in nodes if node.op in _WEIGHTED)


def quantised(model: Model, inputs: npt.NDArray[np.float32], *, but: Collection[str] = ()) -> Model:
    """Make the same network in int8, with weights by channel; normalisations are folded into them first.

    Ranges of activations are the least and greatest values for ``inputs``: unsigned activations and signed weights, as
    the runtime's kernels on x86 and ARM need them (ONNX Runtime, "Quantize ONNX Models", static quantization). Where
    this processor's int8 kernels would saturate, weights have 7 bits.

    Args:
        model: it has one input, in floating point.
        inputs: examples, n x ..., float32; as many at once as the model takes.
        but: names of nodes that are not quantised.

    Raises:
        DeviceError: the tool cannot use the model.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        original, prepared, made = (Path(folder) / f"{name}.onnx" for name in ("given", "prepared", "made"))
        folded(model).save(original)
        try:
            # Marks the file as prepared, or the tool warns by the root logger; the graph is optimised at run time.
            quant_pre_process(original, prepared, skip_optimization=True, skip_symbolic_shape=True)
            quantize_static(
                prepared,
                made,
                _Reader(model, inputs),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                reduce_range=sums_of_products_saturate(),
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=sorted(but),
            )
        except Exception as error:  # the tool's errors have no common class
            raise DeviceError(
                f"ONNX Runtime's tool cannot quantise it: {_first_line(error)}", where=model.name
            ) from error
        return Model.load(made, name=model.name)


class _Reader:
    """Gives examples to the tool: as many at once as the model takes."""

    def __init__(self, model: Model, inputs: npt.NDArray[np.float32]) -> None:
        (tensor,) = model.inputs
        batch = (tensor.shape or (1,))[0]
        whole = len(inputs) // batch * batch
        parts = inputs[:whole].reshape(-1, batch, *inputs.shape[1:])
        self._parts: Iterator[dict[str, Any]] = ({tensor.name: part} for part in parts)

    def get_next(self) -> dict[str, Any] | None:
        """The next examples, or ``None``: there are no more."""
        return next(self._parts, None)


logger = logging.getLogger(__name__)


class OrtBinding:
    """A session with its tensors bound."""

    __slots__ = ("_fixed", "_io", "_outputs", "core", "kind", "options", "run")

    def __init__(self, handle: OrtHandle, io: Any, fixed: Tensors) -> None:
        self.kind = handle.kind
        self.core = handle.core
        self._io = io  # keeps the bound memory's description alive
        self._fixed = fixed
        self._outputs = [tensor.name for tensor in handle.outputs]
        self.options = handle.options
        free = [name for name in self._outputs if name not in fixed]
        launch = _launch(handle.session, io, handle.options)

        def run() -> None:
            for name in free:  # otherwise the latest launch's array stays bound, and only its shape would fit
                io.bind_output(name, "cpu")
            launch()

        self.run: Callable[[], None] = run if free else launch

    def output(self, name: str) -> Array:
        """Return an output of the latest launch."""
        if name in self._fixed:
            return self._fixed[name]
        array: Array = self._io.get_outputs()[self._outputs.index(name)].numpy()
        return array


def _launch(session: Any, io: Any, options: Any) -> Callable[[], None]:
    """Make a function that runs a session so that it can be terminated.

    The runtime's own objects are called, without their Python wrappers: for run options these look for a key that only
    another provider has, 29 of 31 us of a small launch (ONNX Runtime 1.31). A runtime that hides them in another way
    runs by the wrapper and without options, and cannot be terminated.
    """
    bare, bound = getattr(session, "_sess", None), getattr(io, "_iobinding", None)
    if bare is None or bound is None:
        return functools.partial(session.run_with_iobinding, io)
    return functools.partial(bare.run_with_iobinding, bound, options)


class OrtHandle:
    """A session for one segment; launches of one unit share their run options."""

    def __init__(self, session: Any, segment: Model, label: str, kind: int, unit: Unit, options: Any) -> None:
        self.session = session
        self.options = options
        self.operations = (Operation.opaque(label, segment.layers[-1].name if segment.layers else label, unit.name),)
        self.label = label
        self.kind = kind
        self.core = unit.core
        self.inputs = segment.inputs
        self.outputs = segment.outputs

    def bind(self, tensors: Tensors) -> OrtBinding:
        """Attach arrays; see :class:`framefit.devices.device.Handle`."""
        io = self.session.io_binding()
        fixed = {}
        for tensor in self.inputs:
            if tensor.name not in tensors:
                raise DeviceError(f"{self.label}: no array for input {tensor.name!r}")
            array = fitting(tensors[tensor.name], tensor, self.label)
            io.bind_input(tensor.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
            fixed[tensor.name] = array
        for tensor in self.outputs:
            if tensor.name in tensors:
                array = fitting(tensors[tensor.name], tensor, self.label)
                io.bind_output(tensor.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
                fixed[tensor.name] = array
            elif tensor.fixed:
                raise DeviceError(f"{self.label}: no array for output {tensor.name!r}")
            else:
                io.bind_output(tensor.name, "cpu")
        return OrtBinding(self, io, fixed)


class OrtDevice(LaunchingDevice):
    """CPU cores (or another execution provider), each of which is a unit.

    The calling thread executes launches: pin it to the unit's core with :func:`framefit.devices.host.pinned`.
    Threads of different units may do so at the same time.

    Args:
        settings: settings of this machine: a unit for each core, execution providers; default: its defaults.
        clock: clock of the completions.
        cache: folder of compiled segments; default: the user's cache.
        trace_events: capacity of the event buffer.

    Raises:
        InputError: the installed ONNX Runtime has no such provider, a provider does not take an option that a unit
            gives it, or a library of custom operators cannot be loaded.
    """

    capabilities = Capabilities(
        runs_on_host=True,
        shares_host_memory=True,
        preemptive=True,
        lowers=True,
        collects_events=True,
        ends_launches=True,
    )

    def __init__(
        self,
        settings: MachineSettings | None = None,
        *,
        clock: Clock | None = None,
        cache: Path | None = None,
        trace_events: int = 1 << 18,
    ) -> None:
        import onnxruntime

        settings = settings or MachineSettings()
        requested = [("$.providers", provider) for provider in settings.providers]
        requested += [
            (f"$.units[{n}].provider", unit.provider) for n, unit in enumerate(settings.units) if unit.provider
        ]
        for where, provider in requested:
            require_provider(provider, where)
        _load_libraries(onnxruntime.SessionOptions(), settings.device.custom_ops)
        for place, unit in enumerate(settings.units):
            _check_options(unit, f"$.units[{place}]")
        self._units = {unit.name: unit for unit in _with_cores(settings.units)}
        cores = settings.cores or (default_core(),)
        self._settings = settings
        target = cpu_target(cores, tuple(_unit(entry) for entry in self._units.values()))
        super().__init__(target, clock=clock, trace_events=trace_events)
        if len({(unit.provider, *unit.given.items()) for unit in settings.units}) > 1:
            # Another provider cannot execute what one provider makes of a model.
            self.capabilities = dataclasses.replace(self.capabilities, lowers=False)
        self._cache = (cache or cache_folder()) / "segments"
        self._run_options = {unit.name: onnxruntime.RunOptions() for unit in self.target.units}

    def fingerprint(self) -> dict[str, Value]:
        """The machine, its runtime, and the settings: one thread, no spinning, how denormals are treated."""
        threads = max((unit.width for unit in self._units.values()), default=1)
        used: dict[str, Value] = {"threads": threads, "spinning": False}
        used["denormals"] = "flushed" if flushes_denormals() else "kept"
        return super().fingerprint() | self._settings.facts() | used

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """Groups of nodes from the graph that the runtime saves at the extended level.

        The last level, "all", only adds layouts of this processor.
        """
        import onnxruntime

        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        saved = self._optimised(model, level)
        return () if saved is None else fused_groups(model, saved)

    def lowered(self, model: Model) -> Model:
        """The model that a launch executes, including copies between layouts, each operator as a layer.

        Raises:
            DeviceError: the runtime cannot compile it, or does not save the result.
        """
        import onnxruntime

        if model.lowered:
            return model
        kept = self._cache / f"{self._key(model)}.lowered.onnx"
        if kept.is_file():
            with contextlib.suppress(DeviceError):  # a damaged file: make it again
                return lowered(model, kept.read_bytes(), functools.partial(self._tensors, model))
        saved = self._optimised(model, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
        if saved is None:
            raise DeviceError("the runtime saved no optimised graph", where=model.name)
        made = lowered(model, saved, functools.partial(self._tensors, model))
        with contextlib.suppress(InputError):  # where it cannot be kept, it is made again
            made.save(kept, force=True)
        return made

    def _optimised(self, model: Model, level: Any) -> bytes | None:
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "optimised.onnx"
            options = self._options()
            options.graph_optimization_level = level
            options.optimized_model_filepath = str(saved)
            self._session(model.to_bytes(), options, model.name)
            return saved.read_bytes() if saved.is_file() else None

    def _tensors(self, model: Model, saved: bytes, names: Sequence[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and shape of tensors inside an optimised graph, from one run."""
        session = self._session(saved, self._options(exact=True), model.name)
        feeds = random_inputs(model.inputs, np.random.default_rng(0))
        arrays = session.run(list(names), feeds)
        return {name: (array.dtype.name, array.shape) for name, array in zip(names, arrays, strict=True)}

    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """Make a session, from the cache if this segment was compiled before on such a machine."""
        place, kind = self.place(unit, label)
        cached = self._cache / f"{self._key(segment, unit)}.onnx"
        session = None
        if segment.lowered:
            options = self._options(unit, exact=True)
            _share_arena(options)
            session = self._session(segment.to_bytes(), options, label, unit)
        elif cached.is_file():
            try:
                session = self._session(str(cached), self._options(unit, exact=True), label, unit)
            except DeviceError:  # a damaged file: compile again
                cached.unlink(missing_ok=True)
        if session is None:
            session = self._compiled(segment, cached, label, unit)
        return OrtHandle(session, segment, label, kind, place, self._run_options[unit])

    def _compiled(self, segment: Model, cached: Path, label: str, unit: str) -> Any:
        """Make a new session, and store it in the cache; if that cannot be written, the session suffices."""
        temporary = cached.with_suffix(f".{os.getpid()}.part")
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            options = self._options(unit)
            options.optimized_model_filepath = str(temporary)
            session = self._session(segment.to_bytes(), options, label, unit)
            if temporary.is_file():
                temporary.replace(cached)
        except (OSError, DeviceError) as error:  # the runtime does not tell which of both it is
            logger.debug("%s is not stored in the cache: %s", label, error)
            return self._session(segment.to_bytes(), self._options(unit), label, unit)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return session

    def terminate(self, unit: str) -> None:
        """Request the termination; the runtime checks for it between two operators."""
        self._run_options[unit].terminate = True

    def failure(self, launch: Launch, error: Exception) -> DeviceError:
        """Make the error of a launch that raised; after a termination the next launch may run."""
        where, options = self.label(launch.kind), launch.options  # type: ignore[attr-defined]  # of this backend's
        if options.terminate:
            options.terminate = False
            return HangError("the launch was terminated", where=where)
        return DeviceError(f"ONNX Runtime failed: {error}", where=where)

    def _key(self, segment: Model, unit: str | None = None) -> str:
        entry = self._units.get(unit or "")
        beside = () if entry is None else (entry.fact,)
        known = (segment.digest, sorted(fingerprint().items()), sorted(self._settings.facts().items()), "v2", *beside)
        facts = repr(known)
        return hashlib.sha256(facts.encode()).hexdigest()

    def _session(self, source: bytes | str, options: Any, label: str, unit: str | None = None) -> Any:
        """Make a session for a unit, or without one for the first unit's provider."""
        entry = self._units.get(unit or self.target.units[0].name)
        providers: list[Any] = [name for name in self._settings.providers if entry is None or name != entry.provider]
        if entry is not None and entry.provider is not None:
            providers = [(entry.provider, entry.given), *providers]
        try:
            with kept_denormals():
                session = started(source, options, providers)
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise DeviceError(
                f"ONNX Runtime cannot compile it: {_first_line(error)}",
                where=label,
                remedy="check the model with onnx.checker, or export it at another opset",
            ) from error
        if entry is not None and entry.provider not in (None, *session.get_providers()):
            raise DeviceError(
                f"ONNX Runtime does not start {entry.provider} for unit {entry.name!r}, and would run without it",
                where=label,
                remedy="check its driver, device_id and options",
            )
        return session

    def _options(self, unit: str | None = None, *, exact: bool = False) -> Any:
        """Options of a session for a unit; ``exact``: it executes the graph as it is."""
        import onnxruntime

        level = onnxruntime.GraphOptimizationLevel
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = level.ORT_DISABLE_ALL if exact else level.ORT_ENABLE_ALL
        options.log_severity_level = 4  # failures are raised, so the runtime need not print them
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        entry = self._units.get(unit or "")
        if entry is not None and entry.width > 1:
            # Pool threads would inherit the core of the thread that makes the session.
            options.intra_op_num_threads = entry.width
            affinities = ";".join(str(core + 1) for core in entry.cores[1:])  # ONNX Runtime counts cores from 1
            options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
        _load_libraries(options, self._settings.device.custom_ops)
        return options


def settings_of(target: Target, settings: MachineSettings, where: Path | None) -> MachineSettings:
    """Settings with what a target says where they leave it open: the core, or units with providers.

    Args:
        target: of this machine.
        settings: the workload's.
        where: the target's file; ``None``: it has none.

    Raises:
        InputError: a unit has options and no provider.
    """
    named = any(unit.device or unit.options for unit in target.units)
    if named and not settings.units:
        settings = msgspec.structs.replace(settings, units=tuple(_entry(unit, target, where) for unit in target.units))
        settings = msgspec.structs.replace(settings, cores=None)
    elif not settings.cores and where is not None:
        settings = msgspec.structs.replace(settings, cores=(target.units[0].core,))
    return settings


def _entry(unit: Unit, target: Target, where: Path | None) -> UnitEntry:
    """A target's unit as one of this machine."""
    cores = () if where is None or not any(one.core for one in target.units) else (unit.core,)
    if unit.options and not unit.device:
        raise InputError(f"unit {unit.name!r} has options and no device: name its provider", where=where)
    return UnitEntry(name=unit.name, provider=unit.device or None, options=unit.options, cores=cores)


def _with_cores(units: Sequence[UnitEntry]) -> tuple[UnitEntry, ...]:
    """Give units that name no cores the last remaining ones.

    Raises:
        InputError: too few are left.
    """
    used = {core for unit in units for core in unit.cores}
    left = [core for core in available_cores() if core not in used]
    settled = []
    for place, unit in enumerate(units):
        count = 0 if unit.cores else unit.width
        if count > len(left):
            raise InputError(
                f"unit {unit.name!r} needs {count} cores, but {len(left)} are left",
                where=f"$.units[{place}]",
                remedy=f"name fewer units or threads: {len(available_cores())} cores are available",
            )
        mine = tuple(left[len(left) - count :])
        del left[len(left) - count :]
        settled.append(msgspec.structs.replace(unit, cores=unit.cores or mine))
    return tuple(settled)


_WITHOUT_OPTIONS = ("CPUExecutionProvider", "AzureExecutionProvider")  # they ignore all options


def _check_options(entry: UnitEntry, where: str) -> None:
    """Refuse an option that a unit's provider does not have, before anything is compiled.

    A provider refuses it when a session starts, or leaves it out of the session's options.

    Raises:
        InputError: there is such an option.
    """
    given, provider = entry.given, entry.provider
    if not given or provider is None:
        return
    if provider in _WITHOUT_OPTIONS:
        raise InputError(
            f"{provider} has no options, but {', '.join(given)} is given",
            where=where,
            remedy="leave options and device_id out, or name another provider",
        )
    try:
        known = _options_of(provider, given)
    except Exception as error:  # ONNX Runtime's errors have no common class
        wrong = [name for name in given if not _takes(provider, {name: given[name]})]
        if not wrong or not _takes(provider, {}):
            return  # the provider does not fail because of an option: compiling reports the reason
        raise InputError(
            f"{provider} does not take {wrong[0]} = {given[wrong[0]]!r}: {_first_line(error)}",
            where=where,
            remedy=f"correct the option, or leave it out; ONNX Runtime's documentation lists those of {provider}",
        ) from error
    for name in given:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InputError(
                f"{provider} has no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                where=where,
                remedy=f"choose from {', '.join(sorted(known))}",
            )


def _takes(provider: str, options: dict[str, str]) -> bool:
    """Whether a provider starts with these options."""
    try:
        _options_of(provider, options)
    except Exception:  # noqa: BLE001 - ONNX Runtime's errors have no common class
        return False
    return True


def _options_of(provider: str, options: dict[str, str]) -> dict[str, str]:
    """Options of a provider in a session with these; empty if it does not list them."""
    import onnxruntime

    builder = GraphBuilder("options", 0)
    builder.output(builder.op("Relu", builder.input("x", (1,))), "y")
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4  # failures are raised, so the runtime need not print them
    with kept_denormals():
        session = started(builder.build().to_bytes(), quiet, [(provider, options), "CPUExecutionProvider"])
    provider_options: dict[str, str] = session.get_provider_options().get(provider, {})
    return provider_options


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _unit(entry: UnitEntry) -> Unit:
    """The unit for planning: the operating system can only preempt a single thread on a core."""
    alone = entry.provider in (None, "CPUExecutionProvider") and entry.width == 1
    return Unit(name=entry.name, core=entry.cores[0], preemptive=None if alone else False)


def _load_libraries(options: Any, paths: Sequence[str]) -> None:
    """Register libraries of custom operators in session options.

    Raises:
        InputError: a file is not a library, or is for another machine or runtime.
    """
    for path in paths:
        try:
            options.register_custom_ops_library(path)
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise InputError(
                f"ONNX Runtime cannot load the custom operators of {path}: {_first_line(error)}",
                where="$.device.custom_ops",
                remedy="give a library for this machine that exports RegisterCustomOps, made for this ONNX Runtime",
            ) from error


@functools.cache
def _shared_arena() -> bool:
    """Make the arena that sessions of this process share; return whether it exists."""
    import onnxruntime

    kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    try:
        onnxruntime.create_and_register_allocator(
            onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use), onnxruntime.OrtArenaCfg(0, -1, -1, -1)
        )
    except Exception:  # noqa: BLE001 - ONNX Runtime's errors have no common class
        return False
    return True


def _share_arena(options: Any) -> None:
    """Let segments share an arena: memory that one has freed is in the caches for the next one, as within one session.

    With separate arenas, 40 segments of a network of 50 ms took 11 % more than the network, with a shared one 2 % (one
    core, ONNX Runtime 1.31). Blocks laid out in advance ("memory pattern") do not fit into a shared arena and would be
    requested from the system in each run, so they are switched off.
    """
    if _shared_arena():
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.enable_mem_pattern = False
