"""The models of a timetable, compiled for a device: as planned, as the ladder's timetables cut them, and whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from framefit.core.model import Model
from framefit.core.timetable import ModelLayers, PlannedModel, Timetable
from framefit.core.workload import Workload
from framefit.devices.device import Device
from framefit.devices.measure import Measurement
from framefit.errors import DeviceError, InputError
from framefit.execution.buffers import runs_of
from framefit.execution.execution import Execution, greatest_difference
from framefit.execution.unit_support import home_unit, usable_units
from framefit.execution.wiring import WiredModel

__all__ = [
    "CompiledModel",
    "Compiler",
    "Launch",
    "OpenTimetable",
    "in_layers",
    "joined_segments",
    "layers_of",
    "open_timetable",
    "operators_of",
    "verify",
]


_TOLERANCE = 1e-4  # relative: of joined segments against the whole model
_AGAIN = "plan again (framefit plan APP.toml -o PLAN)"
_Bounds = Sequence[tuple[int, int]]
Launch = tuple[Execution, int]  # a segment of a compiled model


def operators_of(device: Device, model: Model) -> Model | None:
    """What the runtime makes of a model; ``None``: it does not say, or that cannot be cut."""
    if not device.capabilities.lowers:
        return None
    try:
        lowered = device.lowered(model)
    except DeviceError:
        return None
    fixed = all(tensor.fixed for layer in lowered.layers for tensor in layer.outputs)
    return lowered if fixed and len(lowered.layers) > 1 else None


def layers_of(cut: Model) -> ModelLayers:
    """The record of the layers that a model's segments are made of; the digest of its file is left open.

    Args:
        cut: the model in groups, or what the runtime makes of it.
    """
    if cut.lowered:
        return ModelLayers(kind="operators", operators_digest=cut.digest)
    groups = tuple(layer.nodes for layer in cut.layers if len(layer.nodes) > 1)
    return ModelLayers(kind="groups" if groups else "file", groups=groups)


def joined_segments(finest: _Bounds, cuts: Sequence[_Bounds]) -> list[tuple[int, int]]:
    """First and last of the finest segments that other cuts of a model join into one."""
    place = {first: number for number, (first, _) in enumerate(finest)} | {finest[-1][1] + 1: len(finest)}
    together = {(place[first], place[last + 1] - 1) for bounds in cuts for first, last in bounds}
    return sorted(run for run in together if run[0] < run[1])


class Compiler:
    """Compiles models for a device; what was compiled last of each model is kept.

    Args:
        device: where they run.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._whole: dict[tuple[str, tuple[str, ...]], Execution] = {}
        self._cut: dict[str, tuple[object, Execution]] = {}
        self._ladder: dict[str, tuple[object, tuple[Execution, ...]]] = {}

    def whole(self, wired: WiredModel, unit: str) -> Execution:
        """An uncut model on a unit that supports all of it.

        Raises:
            DeviceError: it cannot be compiled.
        """
        name = wired.entry.name
        if (name, (unit,)) not in self._whole:
            known = next((one.model for (other, _), one in self._whole.items() if other == name), wired.model)
            found = dataclasses.replace(wired, model=known)
            all_layers = ((0, len(wired.model.layers) - 1),)
            self._whole[name, (unit,)] = found.execution(all_layers, self.device, unit)
        return self._whole[name, (unit,)]

    def in_stages(self, wired: WiredModel, bounds: _Bounds, units: Sequence[str]) -> Execution:
        """A model that no unit supports all of, in one segment for each of its stages.

        Raises:
            DeviceError: a segment cannot be compiled.
        """
        runs = runs_of(units)
        key = wired.entry.name, tuple(units[first] for first, _ in runs)
        if key not in self._whole:
            stages = [(bounds[first][0], bounds[last][1]) for first, last in runs]
            self._whole[key] = wired.execution(stages, self.device, key[1])
        return self._whole[key]

    def cut(self, wired: WiredModel, bounds: _Bounds, units: Sequence[str], slots: int, replica: int = 0) -> Execution:
        """A model in segments.

        Args:
            wired: in the layers that ``bounds`` count.
            bounds: first and last layer of each segment.
            units: of each segment.
            slots: frames that may be in flight.
            replica: of the model, whose segments have labels of their own.

        Raises:
            DeviceError: a segment cannot be compiled.
        """
        key = tuple(bounds), tuple(units), slots, wired.model.lowered
        name = f"{wired.entry.name}@{replica}" if replica else wired.entry.name
        known = self._cut.get(name)
        if known is None or known[0] != key:
            labelled = dataclasses.replace(wired, entry=msgspec.structs.replace(wired.entry, name=name))
            known = self._cut[name] = key, labelled.execution(bounds, self.device, units, slots)
        return known[1]

    def cuts(self, wired: WiredModel, ways: Sequence[PlannedModel], names: Sequence[str]) -> tuple[Execution, ...]:
        """A model in all the ways in which a ladder's timetables cut it, over the same tensors.

        Args:
            wired: in the layers that the segments are made of.
            ways: as it is cut in each timetable, and the finest cut last.
            names: of the timetables.

        Raises:
            DeviceError: a segment cannot be compiled.
        """
        *cut, finest = [way.spans for way in ways]
        slots = max(way.slots for way in ways)  # of all timetables: so often exists what crosses units
        key = tuple(cut), finest, slots
        own = wired.entry.name
        if own in self._ladder and self._ladder[own][0] == key:
            return self._ladder[own][1]
        labels = [own, *(f"{own}@{name}" for name in names[1:])]
        label = labels[cut.index(finest)] if finest in cut else f"{own}@finest"
        labelled = dataclasses.replace(wired, entry=msgspec.structs.replace(wired.entry, name=label))
        joined = joined_segments(finest, cut)
        units = [segment.unit for segment in ways[-1].segments]
        whole = labelled.execution(finest, self.device, units, slots, together=joined)
        executions = (*(whole.recut(bounds, name) for bounds, name in zip(cut, labels, strict=True)), whole)
        self._ladder[own] = key, executions
        return executions


@dataclass(frozen=True)
class CompiledModel:
    """A model of a timetable.

    Attributes:
        planned: its part in the timetable.
        wired: with the model in the layers that segments are made of.
        file: the same with the model as its file has it.
        cuts: what launches it in each of the ways of :attr:`Timetable.cuts`; of several replicas the first.
        replicas: what launches each replica; one where there are several timetables.
        home: the first unit that supports all of it; empty: none does.
    """

    planned: PlannedModel
    wired: WiredModel
    file: WiredModel
    cuts: tuple[Execution, ...]
    replicas: tuple[Execution, ...]
    home: str
    _compiler: Compiler

    @property
    def name(self) -> str:
        """The model's name in the workload."""
        return self.planned.name

    @property
    def priority(self) -> bool:
        """Whether windows are reserved for it."""
        return self.planned.role == "priority"

    @property
    def execution(self) -> Execution:
        """As the timetable has it."""
        return self.cuts[0]

    @property
    def whole(self) -> Execution:
        """The uncut model, compiled when it is first asked for; in as few parts as units need where none has all of it.

        Raises:
            DeviceError: it cannot be.
        """
        if len(self.planned.segments) == 1:
            return self.execution
        if self.home:
            return self._compiler.whole(self.file, self.home)
        first = self.planned.replicas[0]
        return self._compiler.in_stages(self.wired, first.spans, [segment.unit for segment in first.segments])

    def elsewhere(self, unit: str) -> Execution:
        """The same segments, of the first replica, all on another unit.

        Raises:
            FramefitError: it does not support one of them.
        """
        return self.wired.execution(self.planned.replicas[0].spans, self._compiler.device, unit)

    def difference(self) -> float:
        """Greatest relative difference of joined segments' outputs from the whole model's, in two frames in a row.

        All ways in which a ladder cuts it are compared, and all replicas; the greatest difference of these is the
        result.

        Raises:
            DeviceError: it does not run here, or a difference is too great.
        """
        differences = [self._difference(execution) for execution in (*self.replicas, *reversed(self.cuts[1:]))]
        return max(differences[: len(self.replicas)])

    def _difference(self, cut: Execution) -> float:
        whole, difference, random_nodes = self.whole, 0.0, self.file.model.random
        cut.reset()
        if cut is not whole:
            if random_nodes:  # their generators go on from launch to launch: both begin anew
                compiler = Compiler(self._compiler.device)
                whole = dataclasses.replace(self, _compiler=compiler).whole
                cut = self.wired.execution(cut.bounds, compiler.device, cut.units, cut.slots)
            whole.reset()
            random = np.random.default_rng(0)
            for _ in range(2):
                frame = cut.example(random)
                difference = max(difference, greatest_difference(cut.run(frame), whole.run(frame)))
            cut.reset()
            whole.reset()
        if not difference <= _TOLERANCE:
            if random_nodes:
                raise DeviceError(
                    f"the joined segments draw other random numbers than the whole model: {', '.join(random_nodes)}",
                    where=self.name,
                    remedy="feed them from a stream instead, or export the model without them (for inference, not for "
                    "training)",
                )
            raise DeviceError(
                f"the joined segments differ from the whole model by {difference:.2g} (relative)",
                where=self.name,
                remedy="report this model as a bug",
            )
        return difference


class LaunchDurations(Protocol):
    """What launches take beside a run."""

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """Durations of segments, in turn."""

    def wake_ups(self) -> tuple[int, ...]:
        """How late the idle host wakes up, in nanoseconds."""


@dataclass(frozen=True)
class OpenTimetable:
    """A timetable whose models are bound to a device: what a run needs.

    Attributes:
        app: the workload's file; functions are looked for in its folder.
        workload: with absolute paths.
        timetable: feasible.
        device: where its models run.
        durations: of launches there.
        models: in the timetable's order.
    """

    app: Path
    workload: Workload
    timetable: Timetable
    device: Device
    durations: LaunchDurations
    models: tuple[CompiledModel, ...]


def open_timetable(
    timetable: Timetable, wired: Sequence[WiredModel], workload: Workload, app: Path, compiler: Compiler
) -> tuple[CompiledModel, ...]:
    """Bind a timetable's models to a device: compile their segments.

    Args:
        timetable: feasible.
        wired: its models, loaded, in any order.
        workload: that they belong to.
        app: its file, for messages.
        compiler: of the device.

    Raises:
        InputError: a model, or what the runtime makes of it, is another one than the timetable was made for.
        DeviceError: a segment cannot be compiled.
    """
    units = usable_units(workload, compiler.device, app)
    by_name = {model.entry.name: model for model in wired}
    names = ["planned", *(rung.name for rung in (timetable.ladder.rungs if timetable.ladder else ()))]
    models = []
    for number, planned in enumerate(timetable.models):
        file = by_name[planned.name]
        cut = in_layers(file, planned, compiler.device)
        ways = [models[number] for models in timetable.cuts]
        used = list(dict.fromkeys(segment.unit for segment in planned.segments))
        home = used[0] if len(used) == 1 else home_unit(compiler.device.target, units, file)
        if timetable.ladder is not None:
            executions = compiler.cuts(cut, ways, names)
        elif len(planned.segments) == 1:
            executions = (compiler.whole(cut, home),)
        else:
            executions = tuple(
                compiler.cut(cut, replica.spans, [s.unit for s in replica.segments], planned.slots, number)
                for number, replica in enumerate(planned.replicas)
            )
        replicas = executions[: len(planned.replicas)]
        cuts = executions if timetable.ladder is not None else executions[:1]
        models.append(CompiledModel(planned, cut, file, cuts, replicas, home, compiler))
    return tuple(models)


def in_layers(wired: WiredModel, planned: PlannedModel, device: Device) -> WiredModel:
    """A model in the layers that its segments are made of.

    Args:
        wired: as its file has it.
        planned: its part in a timetable.
        device: whose runtime may make other layers of it.

    Raises:
        InputError: it, or what the runtime makes of it, is another one than the timetable was made for.
    """
    layers, where = planned.layers, f"model {planned.name!r}, {wired.entry.path}"
    if layers is None:
        raise InputError("the timetable does not say of which layers its segments are made", where=where, remedy=_AGAIN)
    if layers.digest is not None and wired.model.digest != layers.digest:
        raise InputError("the model is another one than the plan was made for", where=where, remedy=_AGAIN)
    if layers.kind == "file":
        return wired
    if layers.kind == "groups":
        return dataclasses.replace(wired, model=wired.model.grouped(layers.groups))
    operators = operators_of(device, wired.model)
    if operators is None or operators.digest != layers.operators_digest:
        raise InputError(
            "the runtime makes other operators of the model than it did for the plan", where=where, remedy=_AGAIN
        )
    return dataclasses.replace(wired, model=operators)


def verify(timetable: Timetable, models: Sequence[CompiledModel]) -> Timetable:
    """Hold joined segments against the whole models, two frames in a row (state included).

    Args:
        timetable: feasible.
        models: its models, compiled.

    Raises:
        DeviceError: a model does not run here, or its segments do not give its outputs.
    """
    planned = tuple(
        msgspec.structs.replace(model.planned, max_relative_difference=model.difference()) for model in models
    )
    return msgspec.structs.replace(timetable, models=planned)
