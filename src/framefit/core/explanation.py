"""Explanation of a plan: each model's schedule, its frames' paths through windows, and the use of residuals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from framefit.core.timetable import PlannedModel
from framefit.core.workload import ModelEntry

__all__ = ["FramePath", "GraphLayer", "Hop", "ModelGraph", "ModelSchedule", "PlanExplanation", "ResidualLoss"]


@dataclass(frozen=True)
class Hop:
    """The segments that one window executes for a frame, in order, on a unit."""

    window: int
    unit: str
    segments: tuple[int, ...]


@dataclass(frozen=True)
class FramePath:
    """A frame's path through the windows of the plan.

    Attributes:
        release_window: the window of its release: of the newest frame when its first segment starts.
        start_ns, result_ns: of the first and the last segment, after the release of the first window.
        age_ns: from its release to its result.
    """

    model: str
    frame: int
    release_window: int
    hops: tuple[Hop, ...]
    release_ns: int
    start_ns: int
    result_ns: int

    @property
    def age_ns(self) -> int:
        """Time from release to result."""
        return self.result_ns - self.release_ns


@dataclass(frozen=True)
class ModelSchedule:
    """Schedule of one model.

    Attributes:
        entry: its entry in the workload.
        before: background models that are placed before it; empty for priority models.
        residual_ns: least and greatest residual in a window for it; ``None`` for priority models.
        room_ns: the longest segment that fits into every window.
        period_ns: from one release of its frames to the next.
        deadline_ns: deadline of a result after its frame's release; it applies to priority models.
        paths: of its frames, in order.
    """

    model: PlannedModel
    entry: ModelEntry
    before: tuple[str, ...]
    residual_ns: tuple[int, int] | None
    room_ns: int
    period_ns: float
    deadline_ns: int
    paths: tuple[FramePath, ...]


@dataclass(frozen=True)
class ResidualLoss:
    """Use of the residuals of all windows and units, in nanoseconds.

    Attributes:
        work_ns: models, as if they were not cut.
        boundary_ns: cost of cutting them.
        guard_ns: kept free before reserved instants.
        packing_ns: too short for the next segment.
        waiting_ns: there is no frame to work on, its tensors are still on another unit, or the plan is about
            to repeat.
    """

    work_ns: int
    boundary_ns: int
    guard_ns: int
    packing_ns: int
    waiting_ns: int

    @property
    def shares(self) -> tuple[tuple[str, float, str], ...]:
        """Name, ratio and explanation of each use of the residuals, the work first."""
        parts = (
            ("work", self.work_ns, "background models"),
            ("boundaries", self.boundary_ns, "what cutting them costs"),
            ("guard", self.guard_ns, "kept free so that nothing runs into the next reserved instant"),
            ("packing", self.packing_ns, "too short for the segment that is due"),
            ("no work", self.waiting_ns, "there is no frame to work on, or the plan is about to repeat"),
        )
        whole = sum(part[1] for part in parts)
        return tuple((name, ns / whole, why) for name, ns, why in parts) if whole else ()


@dataclass(frozen=True)
class PlanExplanation:
    """Explanation of a whole plan.

    Attributes:
        schedules: one for each model, in the order of the timetable.
    """

    schedules: tuple[ModelSchedule, ...]
    loss: ResidualLoss

    def deadlines_ns(self) -> dict[str, int]:
        """Deadlines of the priority and sporadic models, after release."""
        return {s.model.name: s.deadline_ns for s in self.schedules if s.model.role != "background"}


@dataclass(frozen=True)
class GraphLayer:
    """A layer in the graph of a model.

    Attributes:
        reads: numbers of the layers whose outputs it reads.
        output: its first output's shape, as text.
        cost: see :class:`ModelGraph`.
        segment: number of the segment that it belongs to.
        kernel: whether a kernel of Framefit's own executes it, in place of the runtime's operators.
    """

    name: str
    op: str
    reads: tuple[int, ...]
    output: str
    cost: int
    segment: int
    kernel: bool = False


@dataclass(frozen=True)
class ModelGraph:
    """A model as its plan executes it: its layers in order, and where it is cut.

    Attributes:
        model: with its segments; of several replicas the first.
        layers: in the order in which they are numbered.
        costs: what layers' costs are: nominal nanoseconds on their unit, or multiply-accumulates where nobody says
            how long single layers take.
    """

    model: PlannedModel
    layers: tuple[GraphLayer, ...]
    costs: Literal["time", "macs"]
