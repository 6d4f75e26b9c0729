"""What really happened in a run: every operation that was executed, rebuilt from a trace that lost events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from framefit.core.files import Record
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
"""How the time of an edge is known, in a reader's words."""


@dataclass(frozen=True)
class OperationLog:
    """Operations in the order in which the program tells them: launch by launch.

    All arrays have one length. Times are nanoseconds on the device's clock, unwrapped.

    Attributes:
        inference: int64, ordinal of the launch.
        program: int32, index into ``Program.programs``.
        operation: int32, index within that program, through all of its groups.
        kind: int32, index into ``kinds``.
        core: int16.
        unit: int16, index into ``Program.units``; -1 where it is not known.
        start_ns, end_ns: int64; ``start_ns <= end_ns``.
        start_how, end_how: uint8, :class:`How`.
        start_low_ns, start_high_ns, end_low_ns, end_high_ns: int64, 90 % interval of each edge unless
            asked otherwise; both equal to the time where it was measured.
        start_event, end_event: int64, position of the packet in the trace; -1 where it was lost.
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
        """Operations of which an edge is not measured."""
        return np.asarray((self.start_how != How.MEASURED) | (self.end_how != How.MEASURED))


class EventCounts(Record, kw_only=True):
    """Packets of a trace against what the program expects."""

    received: int
    expected: int
    lost: int
    spurious: int
    duplicated: int
    out_of_order: int


class Totals(Record, kw_only=True):
    """Operations taken together.

    Attributes:
        duration_ns: their sum.
        interval_ns: 90 % of the sum, from what was inferred.
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
        count: how often.
        actual_ns: median.
        interval_ns: 90 % of the median.
    """

    operation: str
    expected_ns: int
    actual_ns: int
    interval_ns: tuple[int, int]
    count: int


class Certificate(Record, kw_only=True):
    """How well this very trace is repaired: received events were masked as loss struck, and put back.

    Attributes:
        masked: events that were masked, among
        matched: events that were received and belong to the program.
        burst: mean number of events masked together.
        as_struck: whether they were masked as this trace's own losses lie; else singly, since it has none.
        recognised_ratio: part of the events left that were recognised as what they are without the mask.
        edge_error_ns: how far the masked events were put from where they had been.
        duration_error_ratio: absolute errors of the durations that rest on masked events, over these durations.
        coverage_ratio: part of the masked events that lie in their intervals; the profile's ``confidence``
            is what it should be.
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


class Profile(Record, kw_only=True):
    """What a trace says, with its uncertainty (``framefit profile --json``).

    Attributes:
        method: "align" or "rule".
        inferences: launches that the trace covers.
        utilisation_by_unit: busy time over the time that the trace covers.
        totals_by_layer: keys are ``MODEL/LAYER``; by group ``PROGRAM/INDEX``.
        violations: operations beyond the latency table's expectation, then periods that were not kept,
            the worst first.
        diagnosis: how events were lost and what would have kept them, as sentences.
        calibrated: whether the intervals were checked on masked events of this very trace.
        warnings: what to know of the figures, as sentences.
        confidence: of all intervals.
        covered_ns: from the first to the last edge.
        gaps_by_unit: idle time between two operations of a unit.
        certificate: what the repair of this trace is worth, where that was asked for.
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
    """Which part of the residual background models used, window by window.

    Attributes:
        first: the first window that the trace covers.
        used_ratio: float64, of this window and those that follow it.
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
