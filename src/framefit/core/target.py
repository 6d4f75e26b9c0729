"""Description of a device: its units, arithmetic, memories, link and trace (``target.toml``).

``docs/targets.md`` documents the file key by key. The built-in targets are such files, too, in ``targets/`` beside
this module; they are read on demand.

Built-in and user-defined targets (``framefit targets``).
"""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import msgspec

from framefit.core.files import Record, Result, read_bytes, read_record, write_whole
from framefit.errors import InputError

__all__ = [
    "PRECISIONS",
    "Cache",
    "Cost",
    "Link",
    "Memory",
    "Processor",
    "Sparsity",
    "Target",
    "TraceUnit",
    "Unit",
    "Variation",
    "absolute_target",
    "backend_entries",
    "backend_entry",
    "builtin_targets",
    "cpu_target",
    "describe_target",
    "load_target",
    "names_device",
    "names_file",
    "resolve_target",
    "target_file",
]


BACKENDS = {
    "ort": "framefit.devices.pieces:BACKEND",  # this machine: ONNX Runtime, and kernels for trees and zeros
    "npu": "framefit.devices.npu.device:BACKEND",  # a described accelerator, simulated
    "openvino": "framefit.devices.openvino:BACKEND",  # this machine: OpenVINO
}
"""Framefit's own backends, in the form of entry points: the kind that a target names, and what opens its devices."""
BACKEND_GROUP = "framefit.devices"
"""The group of entry points by which installed packages add backends."""
BUILTIN_TARGETS = ("vpu", "micro-npu", "vpu-two-queues", "meteor-lake", "edge-8", "gpu", "dsp", "cpu")
"""Names of the built-in targets. The order is a contract: the first name with ``vpu`` is the VPU with one queue."""
PRECISIONS = {"int4": 4, "int8": 8, "int16": 16, "fp16": 16, "bf16": 16, "fp32": 32}  # bits
_BITS = (1, 2, 4, 8, 16, 32)
_MOST = 1e15  # of any figure, so that sums of thousands of them fit into 64 bits
_PACKET = "<qihBx"  # of raw streams: time_ns, id, core, type, pad


def _positive(key: str, value: float | None) -> None:
    if value is not None and not 0 < value <= _MOST:
        raise ValueError(f"{key} must be greater than 0 and at most {_MOST:g}, is {value}")


def _not_negative(key: str, value: float) -> None:
    if not 0 <= value <= _MOST:
        raise ValueError(f"{key} must not be negative, and at most {_MOST:g}, is {value}")


def _ratio(key: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{key} must be 0 to 1, is {value}")


def _unique(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{what} must differ, {name!r} is there {count} times")


class Processor(Record, kw_only=True):
    """The arithmetic of each unit.

    Attributes:
        clock_mhz: of the data processing units; cycles are counted in it.
        fabric_clock_mhz: of on-chip memories and the interconnect; default: the same clock.
        processing_units: number of data processing units behind each unit's queue; they share a segment's layers.
        macs_per_cycle: precision -> multiply-accumulates of one data processing unit in a cycle.
        array_rows, array_columns: of a weight-stationary systolic array in each data
            processing unit; if given, its formula replaces ``macs_per_cycle``.
        channel_granule: input channels are rounded up to a multiple of it.
        vector_lanes: elements in a cycle, for everything without multiply-accumulates.
        activation_bits, weight_bits: storage of tensors and weights; default: as in
            the model.
        layer_cycles: fixed overhead of a layer.
    """

    clock_mhz: float
    fabric_clock_mhz: float | None = None
    processing_units: int = 1
    macs_per_cycle: dict[str, float] = {}
    array_rows: int | None = None
    array_columns: int | None = None
    channel_granule: int = 1
    vector_lanes: int = 16
    activation_bits: int | None = None
    weight_bits: int | None = None
    layer_cycles: int = 0

    def __post_init__(self) -> None:
        _positive("clock_mhz", self.clock_mhz)
        _positive("fabric_clock_mhz", self.fabric_clock_mhz)
        for key in ("processing_units", "channel_granule", "vector_lanes", "array_rows", "array_columns"):
            _positive(key, getattr(self, key))
        if (self.array_rows is None) != (self.array_columns is None):
            raise ValueError("array_rows and array_columns belong together: give both or neither")
        for precision, macs in self.macs_per_cycle.items():
            if precision not in PRECISIONS:
                raise ValueError(f"macs_per_cycle: no precision {precision!r}; known: {', '.join(PRECISIONS)}")
            _positive(f"macs_per_cycle.{precision}", macs)
        for key in ("activation_bits", "weight_bits"):
            bits = getattr(self, key)
            if bits is not None and bits not in _BITS:
                raise ValueError(f"{key} must be one of {', '.join(map(str, _BITS))}, is {bits}")
        if self.layer_cycles < 0:
            raise ValueError(f"layer_cycles must not be negative, is {self.layer_cycles}")


class Memory(Record, kw_only=True):
    """A memory that holds weights and tensors.

    Attributes:
        type: off-chip ("ddr"), or clocked with the fabric ("sram").
        size_mib: capacity; default: unlimited.
        read_bandwidth_gbps, write_bandwidth_gbps: gigabytes (10^9) a second; default: the capacity of the bus.
        read_bus_bits, write_bus_bits: width of one port.
        derating_ratio: part of the bandwidth that is reached in practice.
        ports: number that can be used at once.
        latency_ns: until the first byte.
    """

    name: str = "memory"
    type: Literal["ddr", "sram"] = "ddr"
    size_mib: float | None = None
    read_bandwidth_gbps: float | None = None
    write_bandwidth_gbps: float | None = None
    read_bus_bits: int = 64
    write_bus_bits: int = 64
    derating_ratio: float = 1.0
    ports: int = 1
    latency_ns: float = 0.0

    def __post_init__(self) -> None:
        for key in (
            "size_mib",
            "read_bandwidth_gbps",
            "write_bandwidth_gbps",
            "read_bus_bits",
            "write_bus_bits",
            "ports",
        ):
            _positive(key, getattr(self, key))
        _ratio("derating_ratio", self.derating_ratio)
        _positive("derating_ratio", self.derating_ratio)
        _not_negative("latency_ns", self.latency_ns)


class Cache(Record, kw_only=True):
    """Cache or scratchpad beside the arithmetic.

    Attributes:
        size_kib: of the whole; half of it holds a tile while the other half is filled.
        clock_mhz: default: the clock of the fabric.
        word_bits: of one access on one port.
        ports: number of accesses in a cycle.
    """

    size_kib: float
    clock_mhz: float | None = None
    word_bits: int = 128
    ports: int = 1

    def __post_init__(self) -> None:
        for key in ("size_kib", "clock_mhz", "word_bits", "ports"):
            _positive(key, getattr(self, key))


class Sparsity(Record, kw_only=True):
    """The zeros that the arithmetic skips.

    Attributes:
        skips: "none", "weights", "activations", "saturating" (the greater of both counts) or "dual" (both).
        granularity: pattern of the zero weights that count.
        n, m: of "n:m": at most n of m neighbours are not zero.
        cap_ratio: greatest speed-up.
        threshold_density_ratio: skipping is worthwhile below this density: a layer of density d takes
            d / threshold of its dense time, or is computed densely.
        lanes: number of lanes in step, of which the slowest counts; 1: no imbalance.
        weights_packed: whether zero weights are not transferred, at one bit of index for each element.
    """

    skips: Literal["none", "weights", "activations", "saturating", "dual"] = "none"
    granularity: Literal["unstructured", "n:m", "channel", "none"] = "unstructured"
    n: int | None = None
    m: int | None = None
    cap_ratio: float | None = None
    threshold_density_ratio: float = 1.0
    lanes: int = 1
    weights_packed: bool = True

    def __post_init__(self) -> None:
        if self.granularity == "n:m" and (self.n is None or self.m is None or not 0 < self.n <= self.m):
            raise ValueError(f'granularity "n:m" needs n and m, 0 < n <= m; n is {self.n}, m is {self.m}')
        if self.granularity != "n:m" and (self.n is not None or self.m is not None):
            raise ValueError(f'n and m belong to granularity "n:m", not to "{self.granularity}"')
        if self.cap_ratio is not None and not 1 <= self.cap_ratio < math.inf:
            raise ValueError(f"cap_ratio must be at least 1, is {self.cap_ratio}")
        _ratio("threshold_density_ratio", self.threshold_density_ratio)
        _positive("lanes", self.lanes)


class Unit(Record, kw_only=True):
    """A processing unit: it runs one segment at a time.

    Attributes:
        name: unique within the target.
        preemptive: whether the operating system can interrupt a running segment; default: on a CPU only.
        core: number of the CPU core, or of the unit's core in event packets; default: the unit's index.
        device: the backend's device that it is, in the backend's own words ("CPU", "CUDAExecutionProvider"); default:
            the backend's choice.
        options: of that device, by the backend's own names.
        memory_mib: for tensors of its segments; default: unlimited.
        operators: supported ones; default: all.
        unsupported: operators that it does not support.
        tuned: operator -> factor on the time of its arithmetic (a hand-written kernel: below 1), limited by
            the peak rate.
        speed_ratio: of its clock to the processor's.
    """

    name: str
    preemptive: bool | None = None
    core: int = 0
    device: str = ""
    options: dict[str, bool | int | float | str] = {}
    memory_mib: float | None = None
    operators: tuple[str, ...] | None = None
    unsupported: tuple[str, ...] = ()
    tuned: dict[str, float] = {}
    speed_ratio: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a unit's name must not be empty")
        _not_negative("core", self.core)
        _positive("memory_mib", self.memory_mib)
        _positive("speed_ratio", self.speed_ratio)
        for operator, factor in self.tuned.items():
            _positive(f"tuned.{operator}", factor)
        if self.operators is not None and not self.operators:
            raise ValueError(f"unit {self.name!r} supports no operator: name some, or leave operators out")

    def supports(self, op: str) -> bool:
        """Whether it supports this operator."""
        return (self.operators is None or op in self.operators) and op not in self.unsupported


class Host(Record, kw_only=True):
    """The link between host and device, and the host's part in an inference.

    Attributes:
        inference_ns: host processing for each launch.
        byte_ns: host processing for each byte in and out.
        input_bandwidth_gbps, output_bandwidth_gbps: gigabytes (10^9) a second; default: tensors are shared.
        latency_ns: fixed, in each direction.
    """

    inference_ns: float = 0.0
    byte_ns: float = 0.0
    input_bandwidth_gbps: float | None = None
    output_bandwidth_gbps: float | None = None
    latency_ns: float = 0.0

    def __post_init__(self) -> None:
        _positive("input_bandwidth_gbps", self.input_bandwidth_gbps)
        _positive("output_bandwidth_gbps", self.output_bandwidth_gbps)
        for key in ("inference_ns", "byte_ns", "latency_ns"):
            _not_negative(key, getattr(self, key))

    def transfer_ns(self, input_bytes: float, output_bytes: float) -> float:
        """Time beside the units' own for a launch with these bytes in and out."""
        time = self.inference_ns + self.byte_ns * (input_bytes + output_bytes)
        for size, bandwidth in ((input_bytes, self.input_bandwidth_gbps), (output_bytes, self.output_bandwidth_gbps)):
            if size:
                time += self.latency_ns + (size / bandwidth if bandwidth else 0.0)
        return time


class Link(Record, kw_only=True):
    """The path of tensors from one unit's memory to another's; units without a link share theirs.

    Attributes:
        between: names of the two units; tensors go in both directions, one at a time.
        latency_ns: fixed, for each transfer.
        bandwidth_gbps: gigabytes (10^9) a second; default: only the latency counts.
    """

    between: tuple[str, str]
    latency_ns: float = 0.0
    bandwidth_gbps: float | None = None

    def __post_init__(self) -> None:
        if self.between[0] == self.between[1]:
            raise ValueError(f"a link is between two units, not {self.between[0]!r} and itself")
        _not_negative("latency_ns", self.latency_ns)
        _positive("bandwidth_gbps", self.bandwidth_gbps)

    def occupied_ns(self, size_bytes: float) -> float:
        """Time for which a transfer occupies the link; the tensor arrives ``latency_ns`` later."""
        return size_bytes / self.bandwidth_gbps if self.bandwidth_gbps else 0.0


class TraceUnit(Record, kw_only=True):
    """The part that makes event packets.

    Attributes:
        events: kinds that can be selected; default: all that occur.
        selected: kinds that are recorded; default: all of them.
        combinations: name -> kinds that are selected together; ``selected`` may name one.
        buffer_events: number of packets that wait for the host.
        drain_rate_hz: packets a second that the host reads; default: all at once, between segments.
        resolution_ns: of time stamps.
        time_bits: of time stamps, which wrap around; default: they do not.
        loss_markers: whether the device reports that packets were dropped.
        operations: whether packets carry the operation's number.
        packet_format: a packet's fields in a raw stream, in the notation of Python's ``struct``.
    """

    events: tuple[str, ...] | None = None
    selected: tuple[str, ...] | None = None
    combinations: dict[str, tuple[str, ...]] = {}
    buffer_events: int = 1 << 18
    drain_rate_hz: float | None = None
    resolution_ns: int = 1
    time_bits: int | None = None
    loss_markers: bool = True
    operations: bool = False
    packet_format: str = _PACKET

    def __post_init__(self) -> None:
        for key in ("buffer_events", "drain_rate_hz", "resolution_ns"):
            _positive(key, getattr(self, key))
        if self.time_bits is not None and not 8 <= self.time_bits <= 63:
            raise ValueError(f"time_bits must be 8 to 63, is {self.time_bits}")
        if self.events is not None:
            selectable = (*self.events, *self.combinations)
            for name in self.selected or ():
                if name not in selectable:
                    raise ValueError(f"selected: no event {name!r}; there are {', '.join(selectable)}")
            for combination, kinds in self.combinations.items():
                for kind in kinds:
                    if kind not in self.events:
                        raise ValueError(
                            f"combinations.{combination}: no event {kind!r}; there are {', '.join(self.events)}"
                        )
        if self.packet_format != _PACKET:
            raise ValueError(f"packet_format {self.packet_format!r} is not supported yet: packets are {_PACKET!r}")

    @property
    def selected_kinds(self) -> tuple[str, ...] | None:
        """Kinds that are recorded, combinations resolved; ``None``: all."""
        if self.selected is None:
            return self.events
        kinds = [kind for name in self.selected for kind in self.combinations.get(name, (name,))]
        return tuple(dict.fromkeys(kinds))


class Cost(Record, kw_only=True):
    """Source of durations: the cycle model, a latency table, or a user's function.

    Attributes:
        table: path of a ``*.table.json``, relative to the target's file.
        function: "module:function", called with a layer, a unit's name and the target; returns nanoseconds.
    """

    source: Literal["cycles", "table", "function"] = "cycles"
    table: str | None = None
    function: str | None = None

    def __post_init__(self) -> None:
        for source in ("table", "function"):
            present = getattr(self, source) is not None
            if present != (self.source == source):
                raise ValueError(f'source = "{source}" and {source} = ... belong together: give both or neither')
        if self.function is not None and not all(self.function.partition(":")):
            raise ValueError(f'function must be "module:function", is "{self.function}"')


class Variation(Record, kw_only=True):
    """Variation of the simulated device around the model's time; random by the seed.

    Attributes:
        sigma_ratio: of log-normal jitter, median 1.
        most_ratio: the jitter's factor is at most 1 plus this.
        stall_rate_hz, stall_ns: rate of stalls in busy time (Poisson), and their length.
        drift_ratio, drift_period_ms: amplitude and period of a slow sine of the speed.
    """

    sigma_ratio: float = 0.0
    most_ratio: float = 0.1
    stall_rate_hz: float = 0.0
    stall_ns: float = 0.0
    drift_ratio: float = 0.0
    drift_period_ms: float = 1000.0

    def __post_init__(self) -> None:
        for key in ("sigma_ratio", "most_ratio", "stall_rate_hz", "stall_ns", "drift_ratio"):
            _not_negative(key, getattr(self, key))
        _positive("drift_period_ms", self.drift_period_ms)
        if self.sigma_ratio > 1:
            raise ValueError(f"sigma_ratio must be at most 1, is {self.sigma_ratio}")
        if self.drift_ratio >= 1:
            raise ValueError(f"drift_ratio must be below 1, is {self.drift_ratio}")


class Target(Result, kw_only=True):
    """A described device.

    Attributes:
        name: its name in ``app.toml``.
        kind: of device, the name of a backend: "ort" (ONNX Runtime on this machine), "openvino" (OpenVINO on this
            machine), "npu" (a described accelerator), or one that an installed package adds.
        checked: what its figures were compared with, and the result; "": nothing.
        units: default: one, named like the target.
        links: between units with separate memories; others share theirs.
    """

    file_kind: ClassVar[str] = "the description of a target (target.toml)"

    schema_version: int = 1
    name: str
    kind: str
    description: str = ""
    checked: str = ""
    processor: Processor | None = None
    memory: tuple[Memory, ...] = ()
    cache: Cache | None = None
    sparsity: Sparsity = Sparsity()
    units: tuple[Unit, ...] = ()
    links: tuple[Link, ...] = ()
    host: Host = Host()
    trace: TraceUnit = TraceUnit()
    cost: Cost = Cost()
    variation: Variation = Variation()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        units = self.units or (Unit(name=self.name),)
        _unique("unit names", (unit.name for unit in units))
        _unique("memory names", (memory.name for memory in self.memory))
        for link in self.links:
            for name in link.between:
                if name not in {unit.name for unit in units}:
                    known = ", ".join(unit.name for unit in units)
                    raise ValueError(f"links: no unit {name!r}; units: {known}")
        _unique("pairs of linked units", (" and ".join(sorted(link.between)) for link in self.links))
        if not any(unit.core for unit in units):
            units = tuple(msgspec.structs.replace(unit, core=index) for index, unit in enumerate(units))
        preemptive = self.kind == "ort"
        settled = (msgspec.structs.replace(u, preemptive=preemptive) if u.preemptive is None else u for u in units)
        msgspec.structs.force_setattr(self, "units", tuple(settled))

    def unit(self, name: str) -> Unit:
        """The unit of this name.

        Raises:
            KeyError: there is none.
        """
        for unit in self.units:
            if unit.name == name:
                return unit
        raise KeyError(name)

    def link(self, unit: str, receiver: str) -> Link | None:
        """The link between two units; ``None``: they share their memory."""
        return next((link for link in self.links if set(link.between) == {unit, receiver}), None)


class BackendEntry(NamedTuple):
    """A backend that can be loaded: the kind that targets name, "module:attribute", and the package that brings it."""

    kind: str
    value: str
    package: str = "framefit"
    version: str = ""


def backend_entries() -> tuple[BackendEntry, ...]:
    """Framefit's own backends, then those of installed packages; of entries with one name the first is used."""
    from importlib import metadata  # takes 40 ms, and is only needed for other packages

    entries = [BackendEntry(kind, value) for kind, value in BACKENDS.items()]
    for entry in metadata.entry_points(group=BACKEND_GROUP):
        package = (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "")
        entries.append(BackendEntry(entry.name, entry.value, *package))
    return tuple(entries)


def backend_entry(kind: str) -> BackendEntry:
    """The backend of this name.

    Raises:
        InputError: there is none.
    """
    if kind in BACKENDS:  # without a search through all installed packages
        return BackendEntry(kind, BACKENDS[kind])
    entries = {entry.kind: entry for entry in reversed(backend_entries())}
    if kind in entries:
        return entries[kind]
    near = difflib.get_close_matches(kind, entries, n=1)
    raise InputError(
        f"{kind!r} is not a kind of device" + (f"; did you mean {near[0]!r}?" if near else ""),
        remedy=f"choose from {', '.join(reversed(entries))}, or install the package that provides it",
    )


def load_target(path: str | Path) -> Target:
    """Read a ``target.toml``; the path of its latency table becomes absolute.

    Raises:
        InputError: the file is missing, malformed or inconsistent.
    """
    path = Path(path)
    target = read_record(path, Target)
    try:
        backend_entry(target.kind)
    except InputError as error:
        raise InputError(f"$.kind = {error.what}", where=path, remedy=error.remedy) from None
    if target.kind == "npu" and target.processor is None and target.cost.source == "cycles":
        raise InputError(
            "$.processor is missing: the cycle model needs its clock",
            where=path,
            remedy="add [processor] with clock_mhz, or a [cost] source",
        )
    if target.cost.table is not None:
        table = str(path.resolve().parent / target.cost.table)
        target = msgspec.structs.replace(target, cost=msgspec.structs.replace(target.cost, table=table))
    return target


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long for a file
        return False


def names_device(name: str) -> bool:
    """Whether a name is a backend's with its device, "openvino:CPU", and not a path."""
    kind, colon, device = name.partition(":")
    return bool(colon and kind and device) and Path(name).name == name and Path(name).suffix not in (".toml", ".json")


def names_file(name: str) -> bool:
    """Whether a target's name is a path: neither built in, nor a backend with its device."""
    return name not in BUILTIN_TARGETS and not names_device(name)


def target_file(name_or_path: str | Path, folder: Path | None = None) -> Path:
    """The file of a built-in target, or the path itself.

    Args:
        name_or_path: a name of ``BUILTIN_TARGETS``, or a path: a text that ends in ``.toml`` or ``.json``, names a
            folder, or exists.
        folder: folder of relative paths; default: the current one.

    Raises:
        InputError: it is neither a built-in name nor a path; a backend's device has no file.
    """
    name = str(name_or_path)
    if name in BUILTIN_TARGETS:
        return Path(__file__).with_name("targets") / f"{name}.toml"
    path = (folder or Path()) / name
    if names_device(name):
        raise InputError(f"target {name!r} is a backend's device, which has no file", remedy="write a target.toml")
    if path.suffix in (".toml", ".json") or path.name != name or _is_there(path):
        return path
    near = difflib.get_close_matches(name, BUILTIN_TARGETS, n=1)
    raise InputError(
        f"no built-in target {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        remedy=f"choose from {', '.join(BUILTIN_TARGETS)}, or give the path of a target.toml, or a backend with its "
        'device, as in "openvino:CPU"',
    )


def absolute_target(name: str, folder: Path) -> str:
    """Return the name of a built-in target or of a backend's device unchanged, or the absolute path of a target's file.

    Args:
        name: as in a workload or a command.
        folder: folder of relative paths.

    Raises:
        InputError: it is none of these.
    """
    return str(target_file(name, folder).resolve()) if names_file(name) else name


def resolve_target(name_or_path: str | Path, folder: Path | None = None) -> Target:
    """Read the target that ``app.toml`` or a command names.

    Args:
        name_or_path: built-in name, path of a ``target.toml``, or a backend with its device ("openvino:CPU").
        folder: folder of relative paths; default: the current one.

    Raises:
        InputError: there is no such target or backend, or its file cannot be used.
    """
    if name_or_path == "cpu":
        return cpu_target(_available_cores())
    if name_or_path in BUILTIN_TARGETS:
        return _builtin(str(name_or_path))
    if names_device(str(name_or_path)):
        kind, _, device = str(name_or_path).partition(":")
        try:
            backend_entry(kind)
        except InputError as error:
            raise InputError(f"target {name_or_path!r}: {error.what}", remedy=error.remedy) from None
        return Target(name=str(name_or_path), kind=kind, units=(Unit(name=device, device=device),))
    return load_target(target_file(name_or_path, folder))


def builtin_targets() -> tuple[Target, ...]:
    """All built-in targets, in the order of ``BUILTIN_TARGETS``."""
    return tuple(resolve_target(name) for name in BUILTIN_TARGETS)


def cpu_target(cores: tuple[int, ...], units: tuple[Unit, ...] = ()) -> Target:
    """The built-in target ``cpu``: one preemptive unit for each core, or the given units."""
    units = units or tuple(Unit(name=f"cpu{core}", core=core) for core in cores)
    return msgspec.structs.replace(_builtin("cpu"), units=units)


@functools.cache
def _builtin(name: str) -> Target:
    return load_target(target_file(name))


def _available_cores() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def describe_target(
    name_or_path: str | Path, *, output: str | Path | None = None, force: bool = False
) -> tuple[Target, str]:
    """Describe one target, with the sources of its figures.

    Args:
        name_or_path: built-in name, path of a ``target.toml``, or a backend with its device.
        output: path for a copy of the target's file, comments included, as a start for one's own.
        force: whether to overwrite it.

    Returns:
        The target with all defaults, and the comment at the beginning of its file.

    Raises:
        InputError: there is no such target, its file cannot be used, or ``output`` exists.
    """
    target = resolve_target(name_or_path)
    if output is None and names_device(str(name_or_path)):
        return target, ""
    text = read_bytes(target_file(name_or_path))
    if output is not None:
        with write_whole(output, force=force) as file:
            file.write(text)
    head = itertools.takewhile(lambda line: line.startswith("#"), text.decode().splitlines())
    return target, "\n".join(line.removeprefix("#").removeprefix(" ") for line in head)
