"""Profile of a run: every executed operation, reconstructed from a trace that lost events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record, Result
from framefit.core.program import Program
from framefit.core.run_record import Percentiles

__all__ = [
    "HOW_WORDS",
    "Certificate",
    "EventCounts",
    "ExecutedPart",
    "ExecutedWindow",
    "How",
    "OperationLog",
    "Profile",
    "RunWindows",
    "Totals",
    "Violation",
    "WindowUse",
]


class How(IntEnum):
    """How the time of an edge (START or END) is known. All but ``MEASURED`` are inferred."""

    MEASURED = 0
    T1 = 1
    """Rule: a lost START, before the event that follows."""
    OVERLAP = 2
    """Rule: a lost END, where the next operation that may not overlap starts."""
    T2 = 3
    """Rule: a lost END, before the event that follows."""
    T3 = 4
    """Rule: several lost, counted back from the first event after the gap."""
    BETWEEN = 5
    """Alignment: between observed neighbours, in closed form."""
    OUTSIDE = 6
    """Alignment: before the first or after the last observed event, by expected durations."""


HOW_WORDS: dict[How, str] = {
    How.MEASURED: "measured",
    How.T1: "rule t1",
    How.OVERLAP: "rule overlap",
    How.T2: "rule t2",
    How.T3: "rule t3",
    How.BETWEEN: "between neighbours",
    How.OUTSIDE: "beyond the events",
}
"""How the time of an edge is known, as text for readers."""


@dataclass(frozen=True)
class OperationLog:
    """Operations in the order of the program: launch by launch.

    All arrays have one length. Times are nanoseconds on the device's clock, unwrapped.

    Attributes:
        inference: int64, number of the launch.
        program: int32, index into ``Program.programs``.
        operation: int32, index within that program, counted through all of its groups.
        kind: int32, index into ``kinds``.
        core: int16.
        unit: int16, index into ``Program.units``; -1 if it is not known.
        start_ns, end_ns: int64; ``start_ns <= end_ns``.
        start_how, end_how: uint8, :class:`How`.
        start_low_ns, start_high_ns, end_low_ns, end_high_ns: int64, 90 % interval of each edge by default; both
            equal to the time if it was measured.
        start_event, end_event: int64, index of the packet in the trace; -1 if it was lost.
        kinds: names.
    """

    inference: npt.NDArray[np.int64]
    program: npt.NDArray[np.int32]
    operation: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int32]
    core: npt.NDArray[np.int16]
    unit: npt.NDArray[np.int16]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    start_how: npt.NDArray[np.uint8]
    end_how: npt.NDArray[np.uint8]
    start_low_ns: npt.NDArray[np.int64]
    start_high_ns: npt.NDArray[np.int64]
    end_low_ns: npt.NDArray[np.int64]
    end_high_ns: npt.NDArray[np.int64]
    start_event: npt.NDArray[np.int64]
    end_event: npt.NDArray[np.int64]
    kinds: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def inferred(self) -> npt.NDArray[np.bool_]:
        """Operations with an edge that is not measured."""
        return np.asarray((self.start_how != How.MEASURED) | (self.end_how != How.MEASURED))


class EventCounts(Record, kw_only=True):
    """Number of a trace's packets, compared with the program's expectation."""

    received: int
    expected: int
    lost: int
    spurious: int
    duplicated: int
    out_of_order: int


class Totals(Record, kw_only=True):
    """Sums over several operations.

    Attributes:
        duration_ns: sum of their durations.
        interval_ns: 90 % interval of the sum, due to inferred edges.
        inferred_ratio: part of their edges that was inferred.
    """

    count: int
    duration_ns: int
    interval_ns: tuple[int, int]
    inferred_ratio: float


class Violation(Record, kw_only=True):
    """An operation, or a window's period, that took longer than expected.

    Attributes:
        operation: model, segment and operation, or the period.
        count: number of occurrences.
        actual_ns: median.
        interval_ns: 90 % interval of the median.
    """

    operation: str
    expected_ns: int
    actual_ns: int
    interval_ns: tuple[int, int]
    count: int


class Certificate(Record, kw_only=True):
    """Quality of the reconstruction of this trace: received events were masked like its losses, and reconstructed.

    Attributes:
        masked: number of masked events.
        matched: number of received events that belong to the program.
        burst: mean number of events masked together.
        as_struck: whether the mask has the pattern of the trace's own losses; else single events, as it has none.
        recognised_ratio: part of the remaining events that were matched in the same way as without the mask.
        edge_error_ns: error of the times of masked events.
        duration_error_ratio: absolute errors of the durations with masked events, over these durations.
        coverage_ratio: part of the masked events within their intervals; it should equal the profile's
            ``confidence``.
        coverage_interval: 90 % interval of that part.
    """

    masked: int
    matched: int
    burst: float
    as_struck: bool
    recognised_ratio: float
    edge_error_ns: Percentiles
    duration_error_ratio: float
    coverage_ratio: float
    coverage_interval: tuple[float, float]


class Profile(Result, kw_only=True):
    """Result of the analysis of a trace, with its uncertainty (``framefit profile --json``).

    Attributes:
        method: "align" or "rule".
        inferences: number of launches in the trace.
        utilisation_by_unit: busy time over the time of the trace.
        totals_by_layer: keys are ``MODEL/LAYER``; by group ``PROGRAM/INDEX``.
        violations: operations beyond the latency table's expectation, then periods that were not kept,
            the worst first.
        diagnosis: how events were lost and what would have preserved them, as sentences.
        calibrated: whether the intervals were checked on masked events of this trace.
        warnings: remarks on the figures, as sentences.
        confidence: of all intervals.
        covered_ns: from the first to the last edge.
        gaps_by_unit: idle time between two operations of a unit.
        certificate: quality of this trace's reconstruction, if requested.
    """

    schema_version: int = 1
    method: str
    events: EventCounts
    inferences: int
    totals_by_kind: dict[str, Totals]
    utilisation_by_unit: dict[str, float]
    totals_by_layer: dict[str, Totals]
    totals_by_group: dict[str, Totals]
    violations: tuple[Violation, ...]
    diagnosis: tuple[str, ...]
    calibrated: bool
    warnings: tuple[str, ...] = ()
    confidence: float = 0.9
    covered_ns: int = 0
    totals_by_unit: dict[str, Totals] = {}
    gaps_by_unit: dict[str, Percentiles] = {}
    certificate: Certificate | None = None


@dataclass(frozen=True, eq=False)
class WindowUse:
    """Part of the residual that background models used, for each window.

    Attributes:
        first: number of the first window in the trace.
        used_ratio: float64, of this window and the following ones.
    """

    first: int
    used_ratio: npt.NDArray[np.float64]


@dataclass(frozen=True)
class ExecutedPart:
    """A part of an executed segment within one window; start and end are from that window's release.

    Attributes:
        unit: place in ``Program.units``.
        program: index into ``Program.programs``, -1 where it is unknown.
        frame: -1 where it is unknown.
        odd: whether an odd number of frames of this model was executed before.
        whole_ns: duration of the whole segment.
        overrun: the segment started in an earlier window.
        runs_over: it goes on in the next window.
    """

    unit: int
    program: int
    frame: int
    odd: bool
    start_ns: int
    end_ns: int
    whole_ns: int
    overrun: bool
    runs_over: bool


@dataclass(frozen=True)
class ExecutedWindow:
    """One window, with what was executed in it."""

    window: int
    length_ns: int
    parts: tuple[ExecutedPart, ...]


@dataclass(frozen=True)
class RunWindows:
    """Some windows of a run, as pictures show them.

    Attributes:
        program: names units, models and segments.
        rows: the windows, in order.
        windows: how many the run has.
        priority_models: their names.
    """

    program: Program
    rows: tuple[ExecutedWindow, ...]
    windows: int
    priority_models: frozenset[str]
