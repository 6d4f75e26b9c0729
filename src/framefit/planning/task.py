"""A model on its way from a file to launches: how it is cut, and compiled only where somebody launches it.

How models take part in the beat, and what their tensors need of units.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.model import Model
from framefit.core.target import Link
from framefit.core.timetable import PlannedModel, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.errors import DeviceError, FramefitError, InputError
from framefit.execution.buffers import copies_of, runs_of, unit_bytes
from framefit.execution.execution import Execution, greatest_difference
from framefit.execution.unit_support import supporting_units
from framefit.execution.wiring import WiredModel
from framefit.planning.beat import Beat, Demand
from framefit.planning.check import check_timetable
from framefit.planning.partition import Pieces

__all__ = [
    "Bounds",
    "PlannedTask",
    "Stages",
    "check_plan",
    "compared",
    "demands_of",
    "given_bytes",
    "handed_bytes",
    "host_links",
    "with_memory",
]


Bounds = tuple[tuple[int, int], ...]
Stages = tuple[tuple[str, int], ...]  # unit and first layer of each
_TOLERANCE = 1e-4


@dataclass
class PlannedTask:
    """A model of the workload, whole or in segments.

    Attributes:
        wired: entry, model and sources.
        device: where it runs, on
        unit: of it, uncut; empty: none supports all of it.
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
        layer_names: the user's, of the layers that ``bounds`` count, where those are the runtime's own.
    """

    wired: WiredModel
    device: Device
    unit: str
    bounds: Bounds = ()
    priority: bool = False
    level: int = 0
    reasons: tuple[str, ...] = ()
    runs: list[tuple[int, int]] = field(default_factory=list)
    pieces: Pieces | None = None
    uncut: PlannedModel | None = None
    ratio: float = 1.0
    layer_names: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    slots: int = 1
    _wholes: dict[tuple[str, ...], Execution] = field(default_factory=dict, init=False, repr=False)
    _cut: Execution | None = field(default=None, init=False, repr=False)

    @property
    def name(self) -> str:
        """The model's name in the workload."""
        return self.wired.entry.name

    @property
    def model(self) -> Model:
        """In the layers that ``bounds`` count."""
        return self.wired.model

    @property
    def segments(self) -> Bounds:
        """First and last layer of each segment, of the only one too."""
        return self.bounds or self._all

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each segment."""
        return self.placed or (self.unit,) * len(self.segments)

    @property
    def stages(self) -> Stages:
        """Unit and first layer of each run of segments that follow one another on one unit."""
        units, segments = self.units, self.segments
        return tuple((units[first], segments[first][0]) for first, _ in runs_of(units))

    @property
    def whole(self) -> Execution:
        """The uncut model, compiled when it is first asked for; in as few parts as units need where none has all of it.

        Raises:
            DeviceError: it cannot be.
        """
        if self.unit:
            return self.whole_on(self.unit)
        runs = runs_of(self.units)
        units = tuple(self.units[first] for first, _ in runs)
        if units not in self._wholes:
            bounds = [(self.segments[first][0], self.segments[last][1]) for first, last in runs]
            self._wholes[units] = self.wired.execution(bounds, self.device, units)
        return self._wholes[units]

    def whole_on(self, unit: str) -> Execution:
        """The uncut model on a unit that supports all of it.

        Raises:
            DeviceError: it cannot be compiled.
        """
        if (unit,) not in self._wholes:
            known = next(iter(self._wholes.values()), None)
            wired = self.wired if known is None else dataclasses.replace(self.wired, model=known.model)
            self._wholes[unit,] = wired.execution(((0, len(wired.model.layers) - 1),), self.device, unit)
        return self._wholes[unit,]

    @property
    def execution(self) -> Execution:
        """As it is to run, compiled when it is first asked for; ``whole`` itself where it is not cut.

        Raises:
            DeviceError: a segment cannot be.
        """
        if not self.bounds:
            return self.whole
        wanted = self.bounds, self.units, self.slots
        if self._cut is None or (self._cut.bounds, self._cut.units, self._cut.slots) != wanted:
            self._cut = self.wired.execution(self.bounds, self.device, self.units, self.slots)
        return self._cut

    def memory_bytes(self, *, separate: bool) -> dict[str, int]:
        """Of its tensors by unit, as it is to run.

        Args:
            separate: units have memories of their own.
        """
        state = self.wired.entry.state
        return unit_bytes(self.model, self.segments, self.units, state, slots=self.slots, separate=separate)

    def compiled(self, bounds: Sequence[tuple[int, int]]) -> Execution:
        """The model in these segments on its unit, for whoever asks only.

        Raises:
            DeviceError: a segment cannot be compiled.
        """
        return self.wired.execution(bounds, self.device, self.unit)

    def put(self, bounds: Bounds, units: Sequence[str], slots: int) -> None:
        """Run in these segments from here on.

        Args:
            bounds: first and last layer of each.
            units: of each.
            slots: frames that may be in flight.
        """
        cut = len(bounds) > 1
        self.bounds, self.placed, self.slots = bounds if cut else (), tuple(units) if cut else (), slots
        if len(set(units)) == 1:
            self.unit = units[0]

    def stretched(self, samples_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Durations as they are planned with."""
        return samples_ns if self.ratio == 1 else np.round(samples_ns * self.ratio).astype(np.int64)

    def part(self, first: int, last: int, unit: str) -> PlannedTask:
        """Some of its layers, as a model of a unit: for prices only.

        Args:
            first: layer.
            last: layer.
            unit: that supports them.
        """
        whole = (first, last) == (0, len(self.model.layers) - 1)
        model = self.model if whole else self.model.segment(first, last)
        runs = [(begin - first, end - first) for begin, end in self.runs if first <= begin and end <= last]
        wired = dataclasses.replace(self.wired, model=model)
        return PlannedTask(wired, self.device, unit, runs=runs, layer_names=self.layer_names[first : last + 1])

    def adopt(self, execution: Execution) -> None:
        """Be launched by this one from here on, which is cut the same way, and may have more frames in flight."""
        self.slots = execution.slots
        if self.bounds:
            self._cut = execution
        else:
            self._wholes[self.unit,] = execution

    def difference(self, cut: Execution) -> float:
        """Greatest relative difference of segments' joined outputs from the whole model's, in two frames in a row.

        Raises:
            DeviceError: it does not run here, or the difference is too great.
        """
        whole, difference = self.whole, 0.0
        cut.reset()
        if cut is not whole:
            whole.reset()
            random = np.random.default_rng(0)
            for _ in range(2):
                frame = cut.example(random)
                difference = max(difference, greatest_difference(cut.run(frame), whole.run(frame)))
            cut.reset()
            whole.reset()
        if not difference <= _TOLERANCE:
            raise DeviceError(
                f"the joined segments differ from the whole model by {difference:.2g} (relative)",
                where=self.name,
                remedy="report this model as a bug",
            )
        return difference

    def group(self, groups: Iterable[Collection[str]]) -> None:
        """Count groups of nodes as layers from here on; the uncut model stays the same launch."""
        self.wired = dataclasses.replace(self.wired, model=self.model.grouped(groups))

    def lower(self, model: Model, layer_names: Sequence[str]) -> None:
        """Cut what the runtime made of the model from here on; the uncut model stays the same launch.

        Args:
            model: the runtime's operators as layers.
            layer_names: for each the user's layer that it belongs to.
        """
        self.wired, self.layer_names = dataclasses.replace(self.wired, model=model), tuple(layer_names)

    @property
    def _all(self) -> Bounds:
        return ((0, len(self.model.layers) - 1),)


def handed_bytes(task: PlannedTask, tasks: Sequence[PlannedTask]) -> int:
    """Bytes of a model's outputs that others read."""
    read = {output for other in tasks for model, output in other.wired.reads.values() if model == task.name}
    return sum(tensor.bytes for tensor in task.model.outputs if tensor.name in read)


def given_bytes(task: PlannedTask, timetable: Timetable) -> int:
    """Bytes of what models that it reads give it, as often as that has to exist."""
    wired, givers = task.wired, [timetable.model(name) for name in task.wired.after]
    if not givers:
        return 0
    frames = wired.entry.frames
    one = sum(tensor.bytes // frames for tensor in wired.model.inputs if tensor.name in wired.reads)
    return copies_of(wired.depth, frames, givers) * one


def compared(timetable: Timetable, tasks: Sequence[PlannedTask]) -> Timetable:
    """The joined segments against the whole model, two frames in a row (state included).

    Args:
        timetable: of the tasks.
        tasks: in the order of its models; they are compiled.

    Raises:
        DeviceError: a model does not run here, or its segments do not give its outputs.
    """
    models = []
    for task, planned in zip(tasks, timetable.models, strict=True):
        difference = task.difference(task.execution)
        models.append(msgspec.structs.replace(planned, max_relative_difference=difference))
    return msgspec.structs.replace(timetable, models=tuple(models))


def demands_of(tasks: Sequence[PlannedTask], workload: Workload, app: Path) -> dict[str, Demand]:
    """What each model wants.

    Args:
        tasks: all models, their roles decided.
        workload: that they belong to.
        app: its file, for messages.

    Raises:
        InputError: a model reads streams of different rates.
    """
    by_name = {task.name: task for task in tasks}
    return {task.name: _demand(task, by_name, workload, app) for task in tasks}


def _demand(task: PlannedTask, tasks: Mapping[str, PlannedTask], workload: Workload, app: Path) -> Demand:
    entry, grid = task.wired.entry, workload.grid
    deadline_ns = None if entry.deadline_ms is None else round(entry.deadline_ms * 1e6)
    releases = None
    root = task
    while root.wired.after:  # its frames are those of what it reads
        root = tasks[root.wired.after[0]]
    places = {grid.places(stream): stream for stream in dict.fromkeys(root.wired.sources.values())}
    if len(places) > 1:
        raise InputError(
            f"reads streams {', '.join(map(repr, places.values()))} of different rates",
            where=f"{app}: model {root.name!r}",
            remedy="give them one rate, or feed one of them through a model of its own",
        )
    if places and len(grid.offsets_ns) > 1:
        ((own, stream),) = places.items()
        releases = own if root is task else None
        if task.priority and deadline_ns is None:
            deadline_ns = grid.period_ns(stream)
    return Demand(
        deadline_ns=deadline_ns,
        queue=task.wired.depth,
        every=entry.every,
        frames=entry.frames,
        refuses=task.wired.when_full != "drop-oldest",
        waits=task.wired.waits,
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
    timetable: Timetable, tasks: Sequence[PlannedTask], device: Device, limits: Mapping[str, int], unit: str
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
        needed[task.units[0]] += given_bytes(task, timetable) * ratio
    found = {name: math.ceil(count) for name, count in needed.items()}
    timetable = msgspec.structs.replace(timetable, memory_bytes=found)
    over = next((name for name, count in found.items() if count > limits.get(name, count)), None)
    if over is None or not timetable.feasible:
        return timetable
    return msgspec.structs.replace(
        timetable,
        feasible=False,
        binding_constraint=f"the models' tensors take {found[over] / 2**20:.2f} MiB on unit {over!r}, which has "
        f"{limits[over] / 2**20:.2f} MiB",
    )


def check_plan(
    timetable: Timetable,
    tasks: Sequence[PlannedTask],
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
        every={name: demand.every for name, demand in beat.demands.items()},
        releases={name: d.releases for name, d in beat.demands.items() if d.releases is not None},
        lengths_ns=beat.lengths_ns,
        supported=supported,
        memory_limit_bytes=limits,
        stored_ratio=device.stored_ratio,
    )
    if violations:
        raise FramefitError(f"the timetable fails its check: {violations[0]}", remedy="report this as a bug")
