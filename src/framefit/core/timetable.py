"""The plan: what runs when (``timetable.json``).

Priority periods may continue beyond the end of their window; pictures of single windows need them divided.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import Record, Result
from framefit.core.latency_table import Value
from framefit.core.target import Link
from framefit.core.verdict import Verdict
from framefit.core.workload import Role, Workload

__all__ = [
    "Fix",
    "FreeTime",
    "Instruction",
    "InstructionLists",
    "ModelLayers",
    "PlanSource",
    "PlannedLadder",
    "PlannedModel",
    "PlannedRung",
    "PriorityPeriod",
    "Segment",
    "Slot",
    "Timetable",
    "Window",
    "free_times",
    "reserved_share",
    "window_starts",
    "within_windows",
]


class Segment(Record, kw_only=True):
    """A contiguous part of a model's layers, compiled on its own.

    Attributes:
        index: 0 is the first of its model; those of further replicas follow.
        fill_layer: the layer that receives the intermediate tensors.
        first_layer, last_layer: its ends in the model's order of layers.
        output_layers: layers whose outputs leave the segment.
        duration_ns: the planned quantile.
        median_ns: the measured median.
        boundary_bytes: bytes of the tensors that it passes on.
        tensors: names of the tensors that it passes on, including outputs of the model.
        span: numbers of its first and last layer, in the layers that ``PlannedModel.layers`` describes.
        replica: number of the replica; each has segments for all layers.
        guard_ns: kept free behind it before the next reserved instant; ``None``: the timetable's.
    """

    index: int
    unit: str
    fill_layer: str
    first_layer: str
    last_layer: str
    output_layers: tuple[str, ...]
    duration_ns: int
    median_ns: int
    boundary_bytes: int
    tensors: tuple[str, ...]
    span: tuple[int, int] = (0, 0)
    replica: int = 0
    guard_ns: int | None = None

    def needed_ns(self, guard_ns: int, slower: float = 1.0) -> int:
        """What it needs before the timetable's guard: its quantile, less what its own guard is shorter.

        Args:
            guard_ns: of the timetable.
            slower: times what it is planned for.
        """
        own_ns = guard_ns if self.guard_ns is None else min(math.ceil(self.guard_ns * slower), guard_ns)
        return math.ceil(self.duration_ns * slower) - (guard_ns - own_ns)


class ModelLayers(Record, kw_only=True):
    """The layers of a model of which its segments are made.

    Attributes:
        digest: SHA-256 of the loaded model, with its shapes and constants fixed; ``None`` until the plan is stored,
            since until then it has the models themselves.
        kind: the layers of the file; these in groups that the device fuses; or the operators that a runtime makes of
            the model.
        groups: names of the nodes of each group.
        operators_digest: SHA-256 of what the runtime makes of the model.
    """

    digest: str | None = None
    kind: Literal["file", "groups", "operators"] = "file"
    groups: tuple[tuple[str, ...], ...] = ()
    operators_digest: str | None = None


class PlannedModel(Record, kw_only=True):
    """A model's part in the plan.

    A model may have several replicas, each with segments of its own on units of its own. A frame goes to the first
    free replica; results leave in the order of the frames.

    Attributes:
        duration_ns: quantile of the whole model, including the cost of its boundaries; of the slowest replica.
        segments: of each replica in order, one replica after the other.
        result_age_windows: bound on the age of a finished result, in windows after its frame's release; ``None`` if
            there is none.
        queue_age_windows: part of that due to its queue: frames that wait although newer ones exist.
        max_relative_difference: of joined segments from the whole model; ``None``: not compared, since
            nothing was run.
        slots: largest number of each replica's frames in flight, and number of copies of tensors between units.
        after: models whose outputs it reads: it takes a frame when theirs of the same number is done.
        turns: number for each of its stages in a round of its unit.
        replica_turns: the same of each replica's stages, if they differ.
        layers: of which its segments are made; ``None``: not stated, so that the model cannot be run from the file.
        kernels: names of the layers that kernels of Framefit's own execute in place of the runtime's operators.
        whole_ns: median of the uncut model.
        min_distance_ns: of a sporadic model, between two of its events.
        asked_hz: frames a second that it asks for: its stream's rate, less the frames that ``every`` leaves out.
        served_hz: frames a second that it gets; 0 where the plan is infeasible.
    """

    name: str
    role: Role
    level: int
    reasons: tuple[str, ...]
    duration_ns: int
    segments: tuple[Segment, ...]
    result_age_windows: int | None = None
    queue_age_windows: int = 0
    segmentation_overhead_ratio: float = 0.0
    max_relative_difference: float | None = 0.0
    slots: int = 1
    after: tuple[str, ...] = ()
    turns: int = 1
    replica_turns: tuple[int, ...] = ()
    layers: ModelLayers | None = None
    kernels: tuple[str, ...] = ()
    whole_ns: int = 0
    min_distance_ns: int = 0
    asked_hz: float = 0.0
    served_hz: float = 0.0

    def __post_init__(self) -> None:
        if min(self.slots, self.turns, *self.replica_turns) < 1:
            turns = self.replica_turns or self.turns
            raise ValueError(f"slots and turns must be at least 1, are {self.slots} and {turns}")

    @property
    def stages(self) -> tuple[tuple[Segment, ...], ...]:
        """Runs of successive segments on one unit, in order; one replica after the other."""
        runs = itertools.groupby(self.segments, key=lambda segment: (segment.replica, segment.unit))
        return tuple(tuple(run) for _, run in runs)

    @property
    def stage_turns(self) -> tuple[int, ...]:
        """Turns of each of the stages in a round of its unit."""
        return tuple(self.turns_of(stage[0].replica) for stage in self.stages)

    def turns_of(self, replica: int) -> int:
        """The same of each stage of a replica."""
        return self.replica_turns[replica] if self.replica_turns else self.turns

    @property
    def replicas(self) -> tuple[PlannedModel, ...]:
        """The model with the segments of one replica each, which keep their numbers; itself if there is one."""
        if not self.segments or not self.segments[-1].replica:
            return (self,)
        ways = [tuple(way) for _, way in itertools.groupby(self.segments, key=lambda segment: segment.replica)]
        return tuple(
            msgspec.structs.replace(self, segments=way, duration_ns=sum(segment.duration_ns for segment in way))
            for way in ways
        )

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Numbers of the first and last layer of each segment."""
        return tuple(segment.span for segment in self.segments)


class PriorityPeriod(Record, kw_only=True):
    """A part of a window that is reserved, relative to its begin."""

    unit: str
    start_ns: int
    end_ns: int
    model: str


class Slot(Record, kw_only=True):
    """A planned launch; ``frame`` counts the model's frames from the first window on."""

    unit: str
    start_ns: int
    duration_ns: int
    model: str
    segment: int
    frame: int


class Window(Record, kw_only=True):
    """One window of the hyperperiod.

    Attributes:
        residual_ns: residual for the first, second, ... background model, on all units that it uses.
    """

    index: int
    length_ns: int
    priority: tuple[PriorityPeriod, ...]
    residual_ns: tuple[int, ...]
    slots: tuple[Slot, ...]


class Instruction(Record, kw_only=True):
    """One step of a unit's list; the unit executes the steps in order, without decisions.

    Attributes:
        kind: fetch tensors, execute a segment, or pass tensors on.
        window, start_ns: of the planned launch.
        frame: as in the launch's slot.
        copy: index of the copy of tensors between units that it uses, of the model's ``slots``.
        tensors: names of those that are moved; empty for "run", and for a model's own inputs.
        source, target: unit, or "host"; the same unit for "run".
    """

    unit: str
    kind: Literal["load", "run", "store"]
    window: int
    start_ns: int
    model: str
    segment: int
    frame: int
    copy: int
    tensors: tuple[str, ...] = ()
    source: str
    target: str


class InstructionLists(Record, kw_only=True):
    """Steps of each unit in one repetition of a timetable (``instructions.json``).

    Attributes:
        hyperperiod_windows: windows until the lists repeat.
        units: steps of each unit, in order.
    """

    schema_version: int = 1
    hyperperiod_windows: int
    units: dict[str, tuple[Instruction, ...]]


class Fix(Record, kw_only=True):
    """A change that would make the workload fit, and whether planning again confirmed it."""

    change: str
    effect: str
    verified: bool


class Refusal(Record, kw_only=True):
    """Why there is no schedule of the priority models, or none in which results are young enough.

    Attributes:
        kind: a proof that there is none, or a search that ended without one.
        reason: the binding constraint, as a sentence.
        searched_s: of the solver's work, as it counts it; where results are too old, time of the search.
        lateness_ns: greatest lateness in the best schedule, or excess of an age; ``None``: there is none.
        bound_ns: lower bound of it.
    """

    kind: Literal["proved", "not found"]
    reason: str
    searched_s: float
    lateness_ns: int | None = None
    bound_ns: int | None = None


class PlanSource(Record, kw_only=True):
    """Everything that a plan was made of, so that a run can start from its file.

    Attributes:
        app: path of the ``app.toml``; functions are searched in its folder.
        workload: with absolute paths.
        device: facts of the device on which durations were measured, or for which they are modelled.
        in_real_time: whether a described device's plan includes time for late wake-ups of the host.
    """

    app: str
    workload: Workload
    device: dict[str, Value]
    in_real_time: bool


class PlannedRung(Record, kw_only=True):
    """Another timetable to which a run may change.

    Attributes:
        name: for readers, labels and files.
        timetable: a feasible one; its models are in the order of the plan's.
        workload: with the rates of its streams.
        covers: factor on launches that it allows, for priority and for background models.
    """

    name: str
    timetable: Timetable
    workload: Workload
    covers: tuple[float, float]


class PlannedLadder(Record, kw_only=True):
    """All timetables to which a run may change, beside the plan's own.

    Attributes:
        rungs: those of the same rates in the order of what they cover.
        finest: every model with the cuts of all timetables: for frames in flight when the timetable changes.
    """

    rungs: tuple[PlannedRung, ...]
    finest: tuple[PlannedModel, ...]


class Timetable(Result, kw_only=True):
    """The plan: it repeats after ``hyperperiod_windows``.

    Attributes:
        feasible: whether all deadlines hold.
        verdict: whether, besides, every model gets all frames that it asks for; ``None``: of a version that did not
            tell.
        window_ns: length of the shortest window.
        priority_ns: the most that a window reserves on one unit.
        residual_ns: the least that a window leaves on one unit.
        preemptive: whether background slots may be parts of a launch that priority periods interrupt.
        yields: whether the background model in turn yields the rest of a span that others fill better.
        links: between units; units without one share their memory.
        lengths_ns: of the windows until they repeat, if streams have different rates.
        releases: model -> windows of these in which its stream releases a frame for it; a missing model: all windows.
        waits_ns: sporadic model -> bound on the time from an event to its result; empty if the plan is infeasible.
        bound: windows from one result of the background models to the next, of the one that has
            to wait longest, if the residual were one fluid (or as its frames arrive).
        gap_ratio: background work that a fluid residual would hold over that in the plan, minus 1.
        proof: why there is no schedule of the priority models, or how far the search for one got; ``None``: there is
            one, or none was searched for.
        ladder: further timetables to which a run may change; ``None``: none.
        source: everything else that a run needs; ``None``: not stored, so that it cannot be run from its file.
    """

    file_kind: ClassVar[str] = "a plan (timetable.json)"

    schema_version: int = 1
    verdict: Verdict | None = None
    feasible: bool
    worst_slack_ns: int
    hyperperiod_windows: int
    window_ns: int
    priority_ns: int
    residual_ns: int
    guard_ns: int
    preemptive: bool = False
    yields: bool = False
    units: tuple[str, ...]
    windows: tuple[Window, ...]
    models: tuple[PlannedModel, ...]
    memory_bytes: dict[str, int]
    bound: float | None = None
    gap_ratio: float | None = None
    links: tuple[Link, ...] = ()
    lengths_ns: tuple[int, ...] = ()
    releases: dict[str, tuple[int, ...]] = {}
    waits_ns: dict[str, int] = {}
    binding_constraint: str | None = None
    reasons: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    proof: Refusal | None = None
    ladder: PlannedLadder | None = None
    source: PlanSource | None = None

    def launches_of(self, model: str) -> int:
        """Number of launches of the whole model in one repetition."""
        return len({slot.frame for window in self.windows for slot in window.slots if slot.model == model})

    @property
    def first_reserved_ns(self) -> dict[str, tuple[int, ...]]:
        """On each unit, from each window's release to the first priority period; without one to the next release."""
        return {
            unit: tuple(
                min((period.start_ns for period in window.priority if period.unit == unit), default=0)
                for window in self.windows
            )
            for unit in self.units
        }

    @property
    def overhang_ns(self) -> dict[str, tuple[int, ...]]:
        """On each unit, how far its priority periods extend beyond each window, which another stream's release ends."""
        return {
            unit: tuple(
                max([0, *(p.end_ns - window.length_ns for p in window.priority if p.unit == unit)])
                for window in self.windows
            )
            for unit in self.units
        }

    @property
    def timetables(self) -> tuple[Timetable, ...]:
        """This timetable, and all planned ones to which a run may change."""
        return (self, *(rung.timetable for rung in (self.ladder.rungs if self.ladder else ())))

    @property
    def cuts(self) -> tuple[tuple[PlannedModel, ...], ...]:
        """All models in each cut that a run may use: those of all timetables, then the finest.

        Programs (segments that a run may launch) are numbered in this order.
        """
        ways = tuple(timetable.models for timetable in self.timetables)
        return ways if self.ladder is None else (*ways, self.ladder.finest)

    @property
    def first_programs(self) -> tuple[tuple[int, ...], ...]:
        """For each of the :attr:`cuts`, the number of each model's first program."""
        counts = [[len(model.segments) for model in models] for models in self.cuts]
        before = itertools.accumulate(itertools.chain([0], *counts))
        return tuple(tuple(itertools.islice(before, len(models))) for models in counts)

    @property
    def launched(self) -> Timetable:
        """This timetable with its models once for each of the :attr:`cuts`, in which launches are numbered."""
        if self.ladder is None:
            return self
        return msgspec.structs.replace(self, models=tuple(itertools.chain(*self.cuts)), ladder=None)

    @property
    def program_units(self) -> npt.NDArray[np.str_]:
        """The unit of each program: of all segments, one model after the other."""
        return np.asarray([segment.unit for model in self.models for segment in model.segments], np.str_)

    def model(self, name: str) -> PlannedModel:
        """Find a model by its name."""
        return next(model for model in self.models if model.name == name)


def within_windows(timetable: Timetable) -> Timetable:
    """Divide priority periods at the end of their window: the rest begins the next window.

    Args:
        timetable: unchanged if no period extends beyond its window. In windows of one length that is an overrun.
    """
    crossing = any(period.end_ns > window.length_ns for window in timetable.windows for period in window.priority)
    if not crossing or not timetable.lengths_ns:
        return timetable
    priority = {model.name for model in timetable.models if model.role == "priority"}
    periods: list[PriorityPeriod] = []
    slots: list[Slot] = []
    for _ in range(2):  # the rest of the last window's periods is in the first one
        windows = []
        for window in timetable.windows:
            periods += window.priority
            slots += window.slots
            here, periods = _parted_periods(periods, window.length_ns)
            now, slots = _parted_slots(slots, window.length_ns, priority)
            windows.append(msgspec.structs.replace(window, priority=tuple(here), slots=tuple(now)))
    return msgspec.structs.replace(timetable, windows=tuple(windows))


def reserved_share(timetable: Timetable) -> float:
    """Greatest part of a window that is reserved on one unit."""
    if not timetable.lengths_ns:
        return timetable.priority_ns / timetable.window_ns
    windows = within_windows(timetable).windows
    return max(_reserved(timetable, window) / window.length_ns for window in windows)


def _reserved(timetable: Timetable, window: Window) -> int:
    return max(
        (sum(p.end_ns - p.start_ns for p in window.priority if p.unit == unit) for unit in timetable.units), default=0
    )


def _parted_periods(
    periods: Sequence[PriorityPeriod], length_ns: int
) -> tuple[list[PriorityPeriod], list[PriorityPeriod]]:
    here = [
        msgspec.structs.replace(period, end_ns=min(period.end_ns, length_ns))
        for period in periods
        if period.start_ns < length_ns
    ]
    rest = [
        msgspec.structs.replace(period, start_ns=max(period.start_ns - length_ns, 0), end_ns=period.end_ns - length_ns)
        for period in periods
        if period.end_ns > length_ns
    ]
    return sorted(here, key=lambda period: period.start_ns), rest


def _parted_slots(slots: Sequence[Slot], length_ns: int, priority: set[str]) -> tuple[list[Slot], list[Slot]]:
    here, rest = [], []
    for slot in slots:
        end = slot.start_ns + slot.duration_ns
        if end <= length_ns or slot.model not in priority:
            here.append(slot)
            continue
        if slot.start_ns < length_ns:
            here.append(msgspec.structs.replace(slot, duration_ns=length_ns - slot.start_ns))
        begin = max(slot.start_ns, length_ns)
        rest.append(msgspec.structs.replace(slot, start_ns=begin - length_ns, duration_ns=end - begin))
    return sorted(here, key=lambda slot: slot.start_ns), rest


@dataclass(frozen=True)
class FreeTime:
    """A stretch of a window without priority periods on a unit; its last ``guard_ns`` stay free."""

    unit: str
    start_ns: int
    end_ns: int
    guard_ns: int

    @property
    def room_ns(self) -> int:
        """The longest segment that fits."""
        return self.end_ns - self.start_ns - self.guard_ns


def window_starts(timetable: Timetable) -> tuple[int, ...]:
    """Release of each window after that of the first, and the end of the last one."""
    return tuple(itertools.accumulate((window.length_ns for window in timetable.windows), initial=0))


def free_times(timetable: Timetable, window: Window, unit: str) -> list[FreeTime]:
    """Stretches of a window between its priority periods on a unit, in order.

    Args:
        timetable: gives the guard.
        window: one of its windows.
        unit: one of its units.
    """
    edges = [0]
    for period in sorted((p for p in window.priority if p.unit == unit), key=lambda period: period.start_ns):
        edges += [min(period.start_ns, window.length_ns), max(edges[-1], min(period.end_ns, window.length_ns))]
    edges.append(window.length_ns)
    return [
        FreeTime(unit, start, end, min(timetable.guard_ns, end - start))
        for start, end in zip(edges[::2], edges[1::2], strict=True)
        if end > start
    ]


def in_order(models: Sequence[PlannedModel]) -> list[PlannedModel]:
    """Sort models so that each follows those that it reads; otherwise the order is kept.

    Models that read each other keep their places.
    """
    names = {model.name for model in models}
    ordered: list[PlannedModel] = []
    left = list(models)
    while left:
        there = {model.name for model in ordered}
        following = next(
            (m for m in left if all(source in there or source not in names for source in m.after)), left[0]
        )
        ordered.append(following)
        left.remove(following)
    return ordered
