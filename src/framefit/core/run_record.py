"""Records of runs, costs and machines that ``report`` shows.

The outcomes of all frames of a run are columns, since a long run has millions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record, Result
from framefit.core.verdict import Verdict, verdict_of
from framefit.core.workload import Role

__all__ = [
    "BackendSummary",
    "CycleReport",
    "Finding",
    "FoundDevice",
    "FrameTable",
    "FrameTimes",
    "HostReport",
    "InjectedFault",
    "LatencyEstimate",
    "LayerCycles",
    "LayerLatency",
    "Metrics",
    "Miss",
    "MissCause",
    "ModelMetrics",
    "OutcomeText",
    "Percentiles",
    "ReportPage",
    "RunInfo",
    "StreamMetrics",
    "Switch",
    "TargetList",
    "UnitMetrics",
]


class Percentiles(Record, kw_only=True):
    """Percentiles of a sample of durations; all are 0 for an empty one."""

    p50: int
    p90: int
    p99: int
    p999: int
    max: int
    count: int

    @classmethod
    def of(cls, samples_ns: npt.ArrayLike) -> Percentiles:
        """Percentiles of a one-dimensional sample, in nanoseconds."""
        samples = np.asarray(samples_ns)
        if samples.size == 0:
            return cls(p50=0, p90=0, p99=0, p999=0, max=0, count=0)
        p50, p90, p99, p999 = np.quantile(samples, (0.5, 0.9, 0.99, 0.999))
        return cls(
            p50=round(p50), p90=round(p90), p99=round(p99), p999=round(p999), max=int(samples.max()), count=samples.size
        )


class ModelMetrics(Record, kw_only=True):
    """One model in one run.

    Attributes:
        releases: number of frames released during the run; none in windows in which its stream waited.
        completed: number of frames finished, including late ones.
        missed: for priority models frames late, dropped or unfinished; for sporadic models likewise, without events
            that came too soon after the one before or were unfinished at the end; for background models late ones.
        miss_ratio_upper: 95 % upper bound; 3/N if there were no misses.
        max_relative_difference: of joined segments from the whole model; ``None``: not compared.
        degraded: whether it rested at the end of the run, since it had failed repeatedly.
        faults: kinds of faults of its frames, with their numbers: "error" and "hang" of launches, "input" (a frame that
            could not be read, or did not match), "not finite" (NaN or infinity in outputs), "state" (likewise).
        asked_hz: frames a second that its stream had for it.
        served_hz: the same share of these as was done in time of those that were not in flight at the end; where that
            is not all of them, no more than ``throughput_hz``.
    """

    name: str
    role: Role
    releases: int
    completed: int
    missed: int
    dropped: int
    throughput_hz: float
    fluid_bound_hz: float | None
    packing_bound_hz: float | None
    release_to_start_ns: Percentiles
    release_to_finish_ns: Percentiles
    miss_ratio_upper: float
    result_age_windows_max: int
    segmentation_overhead_ratio: float
    max_relative_difference: float | None
    degraded: bool = False
    faults: dict[str, int] = {}
    asked_hz: float = 0.0
    served_hz: float = 0.0

    @property
    def miss_ratio(self) -> float:
        """Part of its frames that were late or, of a priority or sporadic model, not done at all."""
        return self.missed / self.releases if self.releases else 0.0


TOLERATED_RATIO = 0.01
"""Part of a model's frames that may be late, for measured times have tails; above it ``framefit run`` ends with exit
code 1 by default."""


def verdict_of_run(models: Sequence[ModelMetrics]) -> Verdict:
    """What a run's frames say: whether deadlines held, but for single frames, and whether each model got its frames."""
    held = all(model.miss_ratio <= TOLERATED_RATIO and not model.degraded for model in models)
    return verdict_of(models, feasible=held)


class StreamMetrics(Record, kw_only=True):
    """Frames of one stream: received, and dropped by any of its readers.

    Attributes:
        waited_windows: number of windows without a new frame, because a full queue made the stream wait.
        empty_windows: likewise, because no frame had come.
        waited_ns: from when a live source or a program handed a frame over to the release of the window that took it;
            ``None``: windows find the stream's frames ready.
    """

    name: str
    received: int
    dropped: int
    waited_windows: int = 0
    empty_windows: int = 0
    waited_ns: Percentiles | None = None


class UnitMetrics(Record, kw_only=True):
    """One unit in one run.

    Attributes:
        residual_utilisation_ratio: useful background time over residual offered there; the rest is divided into
            guard and packing.
        estimate_exceeded_ratio: part of the launches that took longer than their quantile.
        dispatch_ns: from one launch's end to the next one's start, where it followed at once.
        planned_memory_bytes: of all tensors, with as many copies between units as the plan allows.
        peak_memory_bytes: the same with as many copies as existed at once.
    """

    name: str
    launches: int
    residual_utilisation_ratio: float
    guard_loss_ratio: float
    packing_loss_ratio: float
    estimate_exceeded_ratio: float
    dispatch_ns: Percentiles
    planned_memory_bytes: int
    peak_memory_bytes: int


MissCause = Literal[
    "late wake-up",
    "overrun",
    "own duration",
    "backlog",
    "contention",
    "host stall",
    "stream",
    "run ended",
    "fault",
]


class Miss(Record, kw_only=True):
    """A priority frame that was not ready in time, and the cause.

    Attributes:
        window: the window in which the frame came.
        detail: description of the cause, with the launch or frame with which it began.
        injected: the injected fault with which it began, such as "slow:face*1.4"; "": none.
    """

    window: int
    model: str
    cause: MissCause
    detail: str
    injected: str = ""


class InjectedFault(Record, kw_only=True):
    """A fault that was injected (``--inject``).

    Attributes:
        fault: its label: kind, model, unit or stream, and amount.
        times: number of launches, frames or windows that it affected.
        first_window, last_window: first and last of these windows.
        missed: number of priority frames that were missed because of it.
    """

    fault: str
    times: int
    first_window: int
    last_window: int
    missed: int


class Switch(Record, kw_only=True):
    """A change of the timetable in force, from a window on, and the reason."""

    window: int
    rung: str
    why: str


class Metrics(Result, kw_only=True):
    """Measured figures of a run (``metrics.json``).

    Attributes:
        residual_utilisation_ratio: useful background time over residual offered; the rest is divided into guard and
            packing.
        floor_release_to_start_ns: wake-ups of windows without work, in the same run.
        estimate_exceeded_ratio: part of the segments that took longer than their quantile.
        dispatch_ns: from one launch's end to the next one's start, where it followed at once.
        peak_memory_bytes: of all units.
        rung_switches: number of changes of the timetable in force, see ``switches``.
        verdict: what the run shows; ``None``: of a version that did not tell.
    """

    schema_version: int = 1
    verdict: Verdict | None = None
    windows: int
    models: tuple[ModelMetrics, ...]
    residual_utilisation_ratio: float
    guard_loss_ratio: float
    packing_loss_ratio: float
    floor_release_to_start_ns: Percentiles
    estimate_exceeded_ratio: float
    dispatch_ns: Percentiles
    peak_memory_bytes: int
    rung_switches: int
    streams: tuple[StreamMetrics, ...]
    misses: tuple[Miss, ...]
    switches: tuple[Switch, ...] = ()
    injected: tuple[InjectedFault, ...] = ()
    units: tuple[UnitMetrics, ...] = ()

    @property
    def miss_ratio(self) -> float:
        """The worst priority or sporadic model's ratio of misses to releases."""
        return max((model.miss_ratio for model in self.models if model.role != "background"), default=0.0)

    @property
    def judged(self) -> Verdict:
        """The verdict, which follows from what each model missed and got."""
        if self.verdict is not None:
            return self.verdict
        return verdict_of_run(self.models)


class Frame(Record, kw_only=True):
    """Outcome of one frame at one model (a line of ``frames.csv``)."""

    stream: str
    frame: int
    model: str
    fate: Literal["done", "late", "dropped", "skipped"]
    reason: str
    released_ns: int
    finished_ns: int | None


class RunInfo(Record, kw_only=True):
    """Settings and facts of a run (``run.json``).

    Attributes:
        app: its file; "" if it is not known.
        interrupted: whether it was stopped before its end.
        error: error that ended it early; ``None``: there was none.
    """

    schema_version: int = 1
    command: str
    created: str
    seed: int
    interrupted: bool
    error: str | None = None
    workload: dict[str, object]
    host: dict[str, object]
    warnings: tuple[str, ...] = ()
    app: str = ""


class ReportPage(Record, kw_only=True):
    """Path of a report (``framefit report --json``)."""

    schema_version: int = 1
    page: str


class Finding(Record, kw_only=True):
    """One fact of a machine, and its consequence for real-time work.

    Attributes:
        topic: examined property.
        status: "poor" costs missed deadlines, "fair" costs jitter or throughput;
            "unknown" if the machine does not tell.
        value: result of the examination.
        why: why it matters.
        remedy: what to do, as a command if possible; ``None``: nothing is needed or possible.
    """

    topic: str
    status: Literal["good", "fair", "poor", "unknown"]
    value: str
    why: str
    remedy: str | None = None


class HostReport(Result, kw_only=True):
    """What a machine permits (``framefit doctor``), and the facts that determine its speed."""

    schema_version: int = 1
    findings: tuple[Finding, ...]
    fingerprint: dict[str, str | int | float | bool]


class TargetSummary(Record, kw_only=True):
    """One line of ``framefit targets``.

    Attributes:
        units: their names.
        checked: what its figures were compared with, and the result; "": nothing.
    """

    name: str
    kind: str
    units: tuple[str, ...]
    description: str
    checked: str = ""


class FoundDevice(Record, kw_only=True):
    """A device that a backend finds on this machine.

    Attributes:
        name: as targets name it behind the backend's: "CPU".
    """

    name: str
    description: str = ""


class BackendSummary(Record, kw_only=True):
    """A backend that executes models.

    Attributes:
        kind: as targets name it.
        package: the installed package that brings it.
        devices: that it finds here.
        problem: why it cannot be used, or some of its devices; "": nothing was found.
    """

    kind: str
    package: str
    version: str = ""
    devices: tuple[FoundDevice, ...] = ()
    problem: str = ""
    remedy: str | None = None


class TargetList(Result, kw_only=True):
    """The built-in targets (``framefit targets``), in their fixed order, and backends with the devices they find."""

    schema_version: int = 1
    targets: tuple[TargetSummary, ...]
    backends: tuple[BackendSummary, ...] = ()


class LayerCycles(Record, kw_only=True):
    """Cost of one layer on a unit.

    Attributes:
        name: of the layer.
        op: its operators.
        macs: multiply-accumulates, zeros included.
        cycles: of the unit's clock.
        bound: the longest term: "compute", a memory's name with "read" or "write", "on-chip", "overhead",
            "table" or "function" if these gave the duration; "none": there is no work.
        bytes_read, bytes_written: from and to all memories, including tiles that are loaded repeatedly.
        utilisation_ratio: multiply-accumulates that were not skipped, over those that the unit could do in that time.
        weight_sparsity_ratio, activation_sparsity_ratio: zeros among weights and first operand; 0
            for layers without products.
        latency_ns: the time of these cycles.
        unit: the unit of the layer.
        precision: of its products; "" if there are none.
        method: basis of the price: "products", "elements", "bytes" (an operator that the model does not
            know, by the bytes that it reads and writes), "view" (nothing moves), "unknown" (a shape or a
            number of iterations depends on the data, so only a part is priced).
        terms: cycles of each term.
        overhead_cycles: load, drain and fixed cycles, added to the longest term.
    """

    name: str
    op: str
    macs: int
    cycles: int
    bound: str
    bytes_read: int
    bytes_written: int
    utilisation_ratio: float
    weight_sparsity_ratio: float
    activation_sparsity_ratio: float
    latency_ns: int
    unit: str
    precision: str
    method: Literal["products", "elements", "bytes", "view", "unknown"]
    terms: dict[str, float]
    overhead_cycles: float


class CycleReport(Result, kw_only=True):
    """Cost of a model on a target, layer by layer (``framefit cycles --json``).

    Attributes:
        source: source of the costs: "cycles" (the model), "table" or "function".
        total_cycles: of all layers, one after the other.
        total_ns: the time of these cycles.
        clock_mhz: clock of the cycles.
        notes: remarks on the figures, as sentences.
    """

    schema_version: int = 1
    model: str
    target: str
    unit: str
    source: Literal["cycles", "table", "function"]
    clock_mhz: float
    total_cycles: int
    total_ns: int
    layers: tuple[LayerCycles, ...]
    notes: tuple[str, ...] = ()


class LayerLatency(Record, kw_only=True):
    """Latency of one layer of a network.

    Attributes:
        interval_ns: 90 % interval.
        source: of the table's entry ("measured", ...); "interpolated" or "modelled": by a fallback;
            "view": it has no entry, and moves nothing.
        evicted_ns: what it takes more in turn with other layers than alone; 0 where that is not known.
    """

    name: str
    op: str
    latency_ns: int
    interval_ns: tuple[int, int]
    source: str
    evicted_ns: int = 0


class LatencyEstimate(Result, kw_only=True):
    """A network's latency from a table (``framefit estimate --json``).

    Attributes:
        total_ns: of a launch of the whole network: measured where it was, else predicted.
        interval_ns: 90 % interval of the total.
        predicted_ns: plain sum, correction and overhead; what the network itself took is not used.
        predicted_interval_ns: 90 %.
        measured_ns: of a launch behind others of itself, with the caches as it left them; ``None``: only layers were
            measured.
        measured_in_turn_ns: of a launch behind those of other networks and layers, which have filled the caches.
        rest_ns: what the total has beside ``layers``, which are scaled where it was measured: then both together are
            the total, and this is the launch with its transfers.
        plain_sum_ns: of the layers, without correction and overhead.
        correction_ns: from the audit of other networks; 0 in a table without one.
        overhead_ns: of the host and of transfers, once; 0 in a table without an overhead model.
        coverage_ratio: part of the layers that have an entry of their own, of all layers that take time.
        estimated_ns: part of the plain sum that comes from fallbacks.
        notes: remarks on the figures, as sentences.
    """

    schema_version: int = 1
    model: str
    target: str
    unit: str
    total_ns: int
    interval_ns: tuple[int, int]
    predicted_ns: int = 0
    predicted_interval_ns: tuple[int, int] = (0, 0)
    measured_ns: int | None = None
    measured_in_turn_ns: int | None = None
    rest_ns: int = 0
    plain_sum_ns: int
    correction_ns: int
    overhead_ns: int
    coverage_ratio: float
    estimated_ns: int
    layers: tuple[LayerLatency, ...]
    notes: tuple[str, ...] = ()


OutcomeText = tuple[Literal["done", "late", "dropped", "skipped"], str]
"""An outcome and its reason."""
TOO_SOON: OutcomeText = ("dropped", "it came sooner than the least distance (min_distance_ms) after the one before")
"""Of an event of a sporadic model."""
_Integers = npt.NDArray[np.int64]
_Row = tuple[str, int, str, Literal["done", "late", "dropped", "skipped"], str, int, int | None]
_AT_ONCE = 1 << 14  # rows that become Python objects at once, 1 kB each


@dataclass(frozen=True, eq=False)
class FrameTable(Sequence[Frame]):
    """Frames in order of release; a record is only made when a frame is read.

    Attributes:
        models: names, by number.
        streams: for each model the stream by which its frames are counted.
        fates: outcomes, by number.
        model, fate: int64, numbers.
        frame: int64, counted by the stream.
        released_ns: int64, after the first release.
        finished_ns: int64, likewise, -1 if it was not finished.
    """

    models: tuple[str, ...]
    streams: tuple[str, ...]
    fates: tuple[OutcomeText, ...]
    model: _Integers
    frame: _Integers
    fate: _Integers
    released_ns: _Integers
    finished_ns: _Integers

    def __len__(self) -> int:
        return len(self.frame)

    @overload
    def __getitem__(self, index: int) -> Frame: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Frame, ...]: ...
    def __getitem__(self, index: int | slice) -> Frame | tuple[Frame, ...]:
        numbers = np.arange(len(self))[index]
        records = tuple(map(_record, self._rows(np.atleast_1d(numbers))))
        return records if isinstance(index, slice) else records[0]

    def __iter__(self) -> Iterator[Frame]:
        return map(_record, self.rows())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrameTable):
            return NotImplemented
        return all(np.array_equal(getattr(self, column.name), getattr(other, column.name)) for column in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> Iterator[_Row]:
        """Fields of all frames, in the order of :class:`~framefit.core.run_record.Frame`."""
        for first in range(0, len(self), _AT_ONCE):
            yield from self._rows(slice(first, first + _AT_ONCE))

    def _rows(self, which: slice | npt.NDArray[np.intp]) -> Iterator[_Row]:
        columns = (self.model, self.frame, self.fate, self.released_ns, self.finished_ns)
        for model, frame, fate, released, finished in zip(*(c[which].tolist() for c in columns), strict=True):
            text, reason = self.fates[fate]
            at = None if finished < 0 else finished
            yield self.streams[model], frame, self.models[model], text, reason, released, at


def _record(row: _Row) -> Frame:
    stream, frame, model, fate, reason, released_ns, finished_ns = row
    return Frame(
        stream=stream,
        frame=frame,
        model=model,
        fate=fate,
        reason=reason,
        released_ns=released_ns,
        finished_ns=finished_ns,
    )


@dataclass(frozen=True, eq=False)
class FrameTimes:
    """Begin and end of each frame of a model, int64 nanoseconds after its release.

    Attributes:
        start_ns: of frames that were launched; empty if launches are not known.
        finish_ns: of frames that were finished.
    """

    start_ns: _Integers
    finish_ns: _Integers
