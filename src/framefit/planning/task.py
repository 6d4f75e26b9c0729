"""The models of a workload as the planner sees them: roles, segments, demands on the beat, and memory on units."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.target import Link
from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.errors import FramefitError, InputError
from framefit.execution.buffers import copies_of, unit_bytes
from framefit.execution.compiled import Compiler
from framefit.execution.execution import Execution
from framefit.execution.unit_support import supporting_units
from framefit.execution.wiring import WiredModel
from framefit.planning.beat import Beat, Demand
from framefit.planning.check import check_timetable
from framefit.planning.partition import Pieces

__all__ = ["SegmentedModel"]


Bounds = tuple[tuple[int, int], ...]
Stages = tuple[tuple[str, int], ...]  # unit and first layer of each


@dataclass(frozen=True)
class SegmentedModel:
    """A model of the workload on its way through planning: its role, and the segments in which it is to run.

    Attributes:
        wired: entry, model and sources; the model's layers may be in groups.
        unit: where it runs uncut; empty: no unit supports all of it.
        bounds: first and last layer of each segment; none: it runs whole.
        placed: unit of each segment; default: all on ``unit``.
        slots: frames that may be in flight over several units.
        priority: whether windows are reserved for it.
        level: 0 to 10, for these
        reasons.
        runs: first and last layer of each piece between candidate cuts, and
        pieces: what they cost; empty and None where the model fits whole.
        uncut: the whole model as priced.
        ratio: times what it was priced at its launches are planned with: other conditions than the present ones.
        operators: what the runtime makes of the model, where that is cut.
        layer_names: the user's, of these operators.
        replicas: number of each segment's replica; empty: there is one.
        replica: number, of a part that is only one of several.
    """

    wired: WiredModel
    unit: str
    bounds: Bounds = ()
    priority: bool = False
    level: int = 0
    reasons: tuple[str, ...] = ()
    runs: Bounds = ()
    pieces: Pieces | None = None
    uncut: PlannedModel | None = None
    ratio: float = 1.0
    operators: Model | None = None
    layer_names: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    slots: int = 1
    replicas: tuple[int, ...] = ()
    replica: int = 0

    @property
    def name(self) -> str:
        """The model's name in the workload."""
        return self.wired.entry.name

    @property
    def sporadic(self) -> bool:
        """Whether its frames are events that come at any time."""
        return self.wired.entry.min_distance_ms is not None

    @property
    def model(self) -> Model:
        """In the layers that ``bounds`` count."""
        return self.operators or self.wired.model

    @property
    def segments(self) -> Bounds:
        """First and last layer of each segment, of the only one too."""
        return self.bounds or ((0, len(self.model.layers) - 1),)

    @property
    def segment_runs(self) -> list[tuple[int, int]]:
        """First and last piece of each segment."""
        first = {begin: number for number, (begin, _) in enumerate(self.runs)}
        last = {end: number for number, (_, end) in enumerate(self.runs)}
        return [(first[begin], last[end]) for begin, end in self.segments]

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each segment."""
        return self.placed or (self.unit,) * len(self.segments)

    @property
    def parts(self) -> tuple[SegmentedModel, ...]:
        """The model with the segments of one replica each; itself where there is one."""
        if not self.replicas:
            return (self,)
        parts = []
        for number in dict.fromkeys(self.replicas):
            its = [place for place, replica in enumerate(self.replicas) if replica == number]
            units = [self.placed[place] for place in its]
            part = self.put(tuple(self.bounds[place] for place in its), units, self.slots)
            parts.append(dataclasses.replace(part, replica=number))
        return tuple(parts)

    def whole(self, compiler: Compiler) -> Execution:
        """The uncut model; in as few parts as units need where none has all of it."""
        return compiler.whole(self.wired, self.unit) if self.unit else self._in_stages(compiler)

    def execution(self, compiler: Compiler) -> Execution:
        """As it is to run; the uncut model itself where it is not cut."""
        if not self.bounds:
            return self.whole(compiler)
        return compiler.cut(self._cut_wired, self.bounds, self.units, self.slots, self.replica)

    def compiled(self, bounds: Sequence[tuple[int, int]], device: Device) -> Execution:
        """The model in other segments on its unit, for whoever asks only."""
        return self._cut_wired.execution(bounds, device, self.unit)

    def memory_bytes(self, *, separate: bool) -> dict[str, int]:
        """Of its tensors by unit, as it is to run.

        Args:
            separate: units have memories of their own.
        """
        state, needed = self.wired.entry.state, Counter[str]()
        for part in self.parts:
            needed.update(unit_bytes(self.model, part.segments, part.units, state, slots=self.slots, separate=separate))
        return dict(needed)

    def put(self, bounds: Bounds, units: Sequence[str], slots: int, replicas: Sequence[int] = ()) -> SegmentedModel:
        """The model in these segments.

        Args:
            bounds: first and last layer of each.
            units: of each.
            slots: frames that may be in flight.
            replicas: number of each one's replica; default: there is one.
        """
        cut = len(bounds) > 1
        return dataclasses.replace(
            self,
            bounds=bounds if cut else (),
            placed=tuple(units) if cut else (),
            slots=slots,
            unit=units[0] if len(set(units)) == 1 else self.unit,
            replicas=tuple(replicas) if any(replicas) else (),
        )

    def stretched(self, samples_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Durations as they are planned with."""
        return samples_ns if self.ratio == 1 else np.round(samples_ns * self.ratio).astype(np.int64)

    def part(self, first: int, last: int, unit: str) -> SegmentedModel:
        """Some of its layers, as a model of a unit: for prices only.

        Args:
            first: layer.
            last: layer.
            unit: that supports them.
        """
        whole = (first, last) == (0, len(self.model.layers) - 1)
        model = self.model if whole else self.model.segment(first, last)
        runs = tuple((begin - first, end - first) for begin, end in self.runs if first <= begin and end <= last)
        wired = dataclasses.replace(self.wired, model=model)
        return SegmentedModel(wired, unit, runs=runs, layer_names=self.layer_names[first : last + 1])

    def grouped(self, groups: Iterable[Collection[str]]) -> SegmentedModel:
        """With groups of nodes as layers; the uncut model stays the same launch."""
        return dataclasses.replace(self, wired=dataclasses.replace(self.wired, model=self.wired.model.grouped(groups)))

    def lowered(self, operators: Model, layer_names: Sequence[str]) -> SegmentedModel:
        """With what the runtime makes of the model as its layers; the uncut model stays the same launch.

        Args:
            operators: the runtime's, as layers.
            layer_names: for each the user's layer that it belongs to.
        """
        return dataclasses.replace(self, operators=operators, layer_names=tuple(layer_names))

    @property
    def _cut_wired(self) -> WiredModel:
        return self.wired if self.operators is None else dataclasses.replace(self.wired, model=self.operators)

    def _in_stages(self, compiler: Compiler) -> Execution:
        first = self.parts[0]
        return compiler.in_stages(self._cut_wired, first.segments, first.units)


def read_output_bytes(task: SegmentedModel, tasks: Sequence[SegmentedModel]) -> int:
    """Bytes of a model's outputs that others read."""
    read = {output for other in tasks for model, output in other.wired.reads.values() if model == task.name}
    return sum(tensor.bytes for tensor in task.model.outputs if tensor.name in read)


def given_bytes(wired: WiredModel, timetable: Timetable) -> int:
    """Bytes of what models that it reads give a model, as often as that has to exist."""
    givers = [timetable.model(name) for name in wired.after]
    if not givers:
        return 0
    frames = wired.entry.frames
    one = sum(tensor.bytes // frames for tensor in wired.model.inputs if tensor.name in wired.reads)
    return copies_of(wired.depth, frames, givers) * one


def demands_of(
    models: Sequence[WiredModel], priority: Collection[str], workload: Workload, app: Path
) -> dict[str, Demand]:
    """What each model wants.

    Args:
        models: all of them.
        priority: names of those that windows are reserved for.
        workload: that they belong to.
        app: its file, for messages.

    Raises:
        InputError: a model reads streams of different rates.
    """
    by_name = {wired.entry.name: wired for wired in models}
    return {
        wired.entry.name: _demand(wired, by_name, workload, app, priority=wired.entry.name in priority)
        for wired in models
    }


def _demand(
    wired: WiredModel, models: Mapping[str, WiredModel], workload: Workload, app: Path, *, priority: bool
) -> Demand:
    entry, grid = wired.entry, workload.grid
    deadline_ns = None if entry.deadline_ms is None else round(entry.deadline_ms * 1e6)
    if entry.min_distance_ms is not None:
        return Demand(deadline_ns=deadline_ns, queue=wired.depth, distance_ns=round(entry.min_distance_ms * 1e6))
    releases = None
    root = wired
    while root.after:  # its frames are those of what it reads
        root = models[root.after[0]]
    places = {grid.places(stream): stream for stream in dict.fromkeys(root.sources.values())}
    if len(places) > 1:
        raise InputError(
            f"reads streams {', '.join(map(repr, places.values()))} of different rates",
            where=f"{app}: model {root.entry.name!r}",
            remedy="give them one rate, or feed one of them through a model of its own",
        )
    if places and len(grid.offsets_ns) > 1:
        ((released, stream),) = places.items()
        releases = released if root is wired else None
        if priority and deadline_ns is None:
            deadline_ns = grid.period_ns(stream)
    return Demand(
        deadline_ns=deadline_ns,
        queue=wired.depth,
        every=entry.spacing,
        frames=entry.frames,
        refuses=wired.when_full != "drop-oldest",
        waits=wired.waits,
        releases=releases,
    )


def host_links(device: Device) -> tuple[Link, ...]:
    """A device's links in bytes of the host: that is how boundaries are counted."""
    ratio = device.stored_ratio
    return tuple(
        link
        if link.bandwidth_gbps is None
        else msgspec.structs.replace(link, bandwidth_gbps=link.bandwidth_gbps / ratio)
        for link in device.target.links
    )


def with_memory(
    timetable: Timetable, tasks: Sequence[SegmentedModel], device: Device, limits: Mapping[str, int], unit: str
) -> Timetable:
    """With the memory of all tensors, as the device stores them; infeasible where a unit has less.

    Args:
        timetable: of the tasks.
        tasks: as they are to run.
        device: where.
        limits: unit -> bytes that it has.
        unit: what a plan that uses none is told of.
    """
    needed: dict[str, float] = dict.fromkeys(timetable.units or (unit,), 0.0)
    ratio, apart = device.stored_ratio, bool(device.target.links)
    for task in tasks:
        if not set(task.units) <= set(needed):
            continue  # of a plan that does not fit: it was placed nowhere
        for name, count in task.memory_bytes(separate=apart).items():
            needed[name] += count * ratio
        needed[task.units[0]] += given_bytes(task.wired, timetable) * ratio
    memory = {name: math.ceil(count) for name, count in needed.items()}
    timetable = msgspec.structs.replace(timetable, memory_bytes=memory)
    over = next((name for name, count in memory.items() if count > limits.get(name, count)), None)
    if over is None or not timetable.feasible:
        return timetable
    return msgspec.structs.replace(
        timetable,
        feasible=False,
        binding_constraint=f"the models' tensors take {memory[over] / 2**20:.2f} MiB on unit {over!r}, which has "
        f"{limits[over] / 2**20:.2f} MiB",
    )


def check_plan(
    timetable: Timetable,
    tasks: Sequence[SegmentedModel],
    beat: Beat,
    device: Device,
    units: Sequence[str],
    limits: Mapping[str, int],
) -> None:
    """Let somebody else look at a plan: the independent checker.

    Args:
        timetable: that says it is feasible.
        tasks: in the order of its models.
        beat: that it was made for.
        device: where it runs, on
        units: of it, where a model names none.
        limits: unit -> bytes that it has.

    Raises:
        FramefitError: something is wrong with it.
    """
    supported = {
        task.name: [
            set(supporting_units(device.target, task.wired.entry.units or units, task.model, *bounds))
            for bounds in task.segments
        ]
        for task in tasks
    }
    violations = check_timetable(
        timetable,
        deadlines_ns={name: d.deadline_ns for name, d in beat.demands.items() if d.deadline_ns is not None},
        every={name: Fraction(demand.every) for name, demand in beat.demands.items()},
        releases={name: d.releases for name, d in beat.demands.items() if d.releases is not None},
        lengths_ns=beat.lengths_ns,
        distances_ns={name: d.distance_ns for name, d in beat.demands.items() if d.distance_ns},
        supported=supported,
        memory_limit_bytes=limits,
        stored_ratio=device.stored_ratio,
    )
    if violations:
        raise FramefitError(f"the timetable fails its check: {violations[0]}", remedy="report this as a bug")
