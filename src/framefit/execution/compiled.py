"""Models of a timetable, compiled for a device: as planned, as the ladder's timetables cut them, and whole."""

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


_TOLERANCE = 1e-4  # largest relative difference of joined segments from the whole model
_AGAIN = "plan again (framefit plan APP.toml -o PLAN)"
_Bounds = Sequence[tuple[int, int]]
Launch = tuple[Execution, int]  # a segment of a compiled model


def operators_of(device: Device, model: Model) -> Model | None:
    """The runtime's own graph of a model; ``None``: the runtime does not provide one that can be cut."""
    if not device.capabilities.lowers:
        return None
    try:
        lowered = device.lowered(model)
    except DeviceError:
        return None
    fixed = all(tensor.fixed for layer in lowered.layers for tensor in layer.outputs)
    return lowered if fixed and len(lowered.layers) > 1 else None


def layers_of(cut: Model) -> ModelLayers:
    """Record the layers of which a model's segments are made; the digest of its file is left empty.

    Args:
        cut: the model in groups, or the runtime's own graph of it.
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
    """Compiles models for a device, and keeps the latest result for each model.

    Args:
        device: the device that runs them.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._whole: dict[tuple[str, tuple[str, ...]], Execution] = {}
        self._cut: dict[str, tuple[object, Execution]] = {}
        self._ladder: dict[str, tuple[object, tuple[Execution, ...]]] = {}

    def whole(self, wired: WiredModel, unit: str) -> Execution:
        """Compile an uncut model for a unit that supports all of it.

        Raises:
            DeviceError: it cannot be compiled.
        """
        name = wired.entry.name
        if (name, (unit,)) not in self._whole:
            known = next((whole.model for (other, _), whole in self._whole.items() if other == name), wired.model)
            in_layers = dataclasses.replace(wired, model=known)
            all_layers = ((0, len(wired.model.layers) - 1),)
            self._whole[name, (unit,)] = in_layers.execution(all_layers, self.device, unit)
        return self._whole[name, (unit,)]

    def in_stages(self, wired: WiredModel, bounds: _Bounds, units: Sequence[str]) -> Execution:
        """Compile a model that no unit supports as a whole, with one segment for each of its stages.

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
        """Compile a model in segments.

        Args:
            wired: it has the layers that ``bounds`` count.
            bounds: first and last layer of each segment.
            units: unit of each segment.
            slots: largest number of frames in flight.
            replica: number of the replica, whose segments have labels of their own.

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
        """Compile a model in all cuts of a ladder's timetables, over the same tensors.

        Args:
            wired: it has the layers of which segments are made.
            ways: the cut of each timetable, and the finest cut last.
            names: of the timetables.

        Raises:
            DeviceError: a segment cannot be compiled.
        """
        *cut, finest = [way.spans for way in ways]
        slots = max(way.slots for way in ways)  # of all timetables, as they share the tensors between units
        key = tuple(cut), finest, slots
        model_name = wired.entry.name
        if model_name in self._ladder and self._ladder[model_name][0] == key:
            return self._ladder[model_name][1]
        labels = [model_name, *(f"{model_name}@{name}" for name in names[1:])]
        label = labels[cut.index(finest)] if finest in cut else f"{model_name}@finest"
        labelled = dataclasses.replace(wired, entry=msgspec.structs.replace(wired.entry, name=label))
        joined = joined_segments(finest, cut)
        units = [segment.unit for segment in ways[-1].segments]
        whole = labelled.execution(finest, self.device, units, slots, together=joined)
        executions = (*(whole.recut(bounds, name) for bounds, name in zip(cut, labels, strict=True)), whole)
        self._ladder[model_name] = key, executions
        return executions


@dataclass(frozen=True)
class CompiledModel:
    """A model of a timetable, compiled.

    Attributes:
        planned: its part in the timetable.
        wired: with the model in the layers of which segments are made.
        file: the same, with the model as in its file.
        cuts: executions of the model in each of :attr:`Timetable.cuts`; of the first replica.
        replicas: one execution for each replica; a single one where there are several timetables.
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
        return self.planned.role != "background"

    @property
    def execution(self) -> Execution:
        """The execution of the timetable's own cut."""
        return self.cuts[0]

    @property
    def whole(self) -> Execution:
        """The uncut model, compiled on first use; in as few parts as possible if no unit supports all of it.

        Raises:
            DeviceError: it cannot be compiled.
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
            FramefitError: the unit does not support one of them.
        """
        return self.wired.execution(self.planned.replicas[0].spans, self._compiler.device, unit)

    def difference(self) -> float:
        """Greatest relative difference of joined segments' outputs from the whole model's, in two successive frames.

        All cuts of a ladder and all replicas are compared; the result is the greatest of their differences.

        Raises:
            DeviceError: the model does not run here, or a difference is too great.
        """
        differences = [self._difference(execution) for execution in (*self.replicas, *reversed(self.cuts[1:]))]
        return max(differences[: len(self.replicas)])

    def _difference(self, cut: Execution) -> float:
        whole, difference, random_nodes = self.whole, 0.0, self.file.model.random
        cut.reset()
        if cut is not whole:
            if random_nodes:  # generators continue from launch to launch, so both start over
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
    """Measures durations of launches outside a run."""

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """Durations of segments, launched in turn."""

    def wake_ups(self) -> tuple[int, ...]:
        """Delays of the idle host's wake-ups, in nanoseconds."""


@dataclass(frozen=True)
class OpenTimetable:
    """A timetable whose models are bound to a device, ready for a run.

    Attributes:
        app: the workload's file; functions are searched in its folder.
        workload: with absolute paths.
        timetable: a feasible one.
        device: the device that runs its models.
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
        timetable: a feasible one.
        wired: its models, loaded, in any order.
        workload: the workload of the models.
        app: its file, for messages.
        compiler: of the device.

    Raises:
        InputError: a model, or the runtime's graph of it, differs from the one that the timetable was made for.
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
    """Convert a model to the layers of which its segments are made.

    Args:
        wired: the model as in its file.
        planned: its part in a timetable.
        device: its runtime may make other layers of the model.

    Raises:
        InputError: the model, or the runtime's graph of it, differs from the one that the timetable was made for.
    """
    layers, where = planned.layers, f"model {planned.name!r}, {wired.entry.path}"
    if layers is None:
        raise InputError("the timetable does not say of which layers its segments are made", where=where, remedy=_AGAIN)
    if layers.digest is not None and wired.model.digest != layers.digest:
        raise InputError("the model differs from the one that the plan was made for", where=where, remedy=_AGAIN)
    if wired.model.stored:
        return wired
    model = laid_out_as(wired.model, planned, device)
    if model is None or (layers.kind == "operators" and model.digest != layers.operators_digest):
        raise InputError("the runtime makes other operators of the model than for the plan", where=where, remedy=_AGAIN)
    return dataclasses.replace(wired, model=model)


def laid_out_as(model: Model, planned: PlannedModel, device: Device) -> Model | None:
    """A model in the kind of layers that a timetable cut one in, be it this one or an earlier version of it.

    Args:
        model: as in its file.
        planned: has layers.
        device: its runtime may make other layers of the model.

    Returns:
        ``None``: the runtime does not say what it makes of it.
    """
    layers = planned.layers
    assert layers is not None
    if layers.kind == "file":
        return model
    return model.grouped(layers.groups) if layers.kind == "groups" else operators_of(device, model)


def verify(timetable: Timetable, models: Sequence[CompiledModel]) -> Timetable:
    """Compare joined segments with the whole models in two successive frames, including state.

    Args:
        timetable: a feasible one.
        models: its models, compiled.

    Raises:
        DeviceError: a model does not run here, or its segments give other outputs.
    """
    planned = tuple(
        msgspec.structs.replace(model.planned, max_relative_difference=model.difference()) for model in models
    )
    return msgspec.structs.replace(timetable, models=planned)
