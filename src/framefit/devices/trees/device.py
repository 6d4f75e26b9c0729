"""Models with trees on this machine: kernels for the trees, ONNX Runtime for the other layers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from framefit.core.model import Model, lowered_around
from framefit.core.program import Operation
from framefit.core.target import Target, Unit
from framefit.core.trees import Ensemble, ensembles_in, tree_layers
from framefit.core.workload import MachineSettings, UnitEntry
from framefit.devices.device import Array, Backend, Handle, Tensors, allocate, fitting
from framefit.devices.ort import OrtDevice, OrtHandle, found_providers
from framefit.errors import DeviceError, InputError

_Launch = tuple[int, int, Any]  # kind and core in the trace, the runtime's run options


class TreesDevice(OrtDevice):
    """CPU cores as in :class:`~framefit.devices.ort.OrtDevice` that also run groups of trees.

    A segment with trees is launched as its pieces in turn: trees by their kernels, other layers by the runtime, with
    buffers that are made with the binding. Kernels are loaded or compiled, and run once, when a segment is compiled.
    """

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """Fusions of the layers between trees; trees are not fused."""
        groups: list[tuple[str, ...]] = []
        for piece, trees in _pieces(model):
            groups += () if trees else super().fusions(piece)
        return tuple(groups)

    def lowered(self, model: Model) -> Model:
        """See :meth:`OrtDevice.lowered`; groups of trees are unchanged layers of it."""
        trees = [model.layers[place].name for place in _apart(model)]
        if model.lowered or not trees:
            return super().lowered(model)
        return lowered_around(model, trees, super().lowered)

    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """Make a session, or several with kernels between them."""
        pieces = _pieces(segment)
        if not any(trees for _, trees in pieces):
            return super().compile(segment, unit, label)
        place, kind = self.place(unit, label)
        ensembles = ensembles_in(segment)
        steps: list[tuple[Model, _Step]] = []
        for piece, trees in pieces:
            if trees:
                steps.append((piece, _TreesStep(piece, ensembles[piece.layers[0].name], label)))
            else:
                session = super().compile(piece, unit, label)
                assert isinstance(session, OrtHandle)
                steps.append((piece, session))
        operation = Operation.opaque(label, segment.layers[-1].name, unit)
        outputs = frozenset(tensor.name for tensor in segment.outputs)
        return _Chain(steps, outputs, operation, (kind, place.core, self._run_options[unit]))


class _Bound(Protocol):
    """A step with its tensors attached."""

    run: Callable[[], None]

    def output(self, name: str) -> Array:
        """Return the output that it wrote."""


class _Step(Protocol):
    """A piece that can be bound; a session's handle is one, too."""

    def bind(self, tensors: Tensors) -> _Bound:
        """Attach arrays."""


class _TreesStep:
    """A group of trees."""

    def __init__(self, piece: Model, ensemble: Ensemble, label: str) -> None:
        from framefit.devices.trees.kernels import kernel_of  # importing numba takes half a second

        self._source, self._result, self._label = piece.inputs[0], piece.outputs[0], label
        x, y = allocate(self._source), allocate(self._result)
        self._kernel = kernel_of(ensemble, len(x))
        self._kernel(x, y)

    def bind(self, tensors: Tensors) -> _TreesBound:
        """Attach arrays; see :class:`framefit.devices.device.Handle`."""
        arrays = []
        for tensor in (self._source, self._result):
            if tensor.name not in tensors:
                raise DeviceError(f"{self._label}: no array for {tensor.name!r}")
            arrays.append(fitting(tensors[tensor.name], tensor, self._label))
        return _TreesBound(functools.partial(self._kernel, *arrays), arrays[1])


class _TreesBound:
    """A kernel with its arrays."""

    __slots__ = ("_y", "run")

    def __init__(self, run: Callable[[], None], y: Array) -> None:
        self.run, self._y = run, y

    def output(self, name: str) -> Array:  # noqa: ARG002 - there is only one
        """Return the output."""
        return self._y


class _Chain:
    """A segment in pieces."""

    def __init__(
        self, pieces: Sequence[tuple[Model, _Step]], outputs: frozenset[str], operation: Operation, launch: _Launch
    ) -> None:
        self.operations = (operation,)
        self._pieces, self._outputs, self._launch = pieces, outputs, launch

    def bind(self, tensors: Tensors) -> _ChainBinding:
        """Attach arrays; see :class:`framefit.devices.device.Handle`."""
        made = [tensor for piece, _ in self._pieces for tensor in piece.outputs if tensor.fixed]
        known = {**tensors, **{tensor.name: allocate(tensor) for tensor in made if tensor.name not in self._outputs}}
        bound: dict[str, _Bound] = {}
        runs = []
        for piece, step in self._pieces:
            step_binding = step.bind(known)
            bound |= {tensor.name: step_binding for tensor in piece.outputs}
            runs.append(step_binding.run)
        return _ChainBinding(runs, bound, self._launch)


class _ChainBinding:
    """Pieces with their tensors bound; :meth:`OrtDevice.submit` launches it like a session."""

    __slots__ = ("_bound", "core", "kind", "options", "run")

    def __init__(self, runs: Sequence[Callable[[], None]], bound: Mapping[str, _Bound], launch: _Launch) -> None:
        self.kind, self.core, self.options = launch
        self._bound = bound

        def run() -> None:
            for run_piece in runs:
                run_piece()

        self.run = runs[0] if len(runs) == 1 else run

    def output(self, name: str) -> Array:
        """Return an output of the latest launch."""
        return self._bound[name].output(name)


def _pieces(model: Model) -> list[tuple[Model, bool]]:
    """Groups of trees and the layers between them, in order."""
    trees = _apart(model)
    if not trees:
        return [(model, False)]
    edges = sorted({0, len(model.layers), *trees, *(place + 1 for place in trees)})
    return [(model.segment(first, end - 1), first in trees) for first, end in itertools.pairwise(edges)]


def _apart(model: Model) -> list[int]:
    """Indices of layers that are trees; where no cut is possible they belong to the other layers."""
    if not model.notes:
        return []
    legal = {0, len(model.layers), *(cut.position for cut in model.legal_cuts)}
    return [place for place in tree_layers(model) if {place, place + 1} <= legal]


def _open(
    target: Target,
    settings: MachineSettings,
    where: Path | None,
    *,
    computes: bool,  # noqa: ARG001 - it always does
) -> TreesDevice:
    """Open this machine; the target says what the settings leave open: the core, or units with providers."""
    named = any(unit.device or unit.options for unit in target.units)
    if named and not settings.units:
        settings = msgspec.structs.replace(settings, units=tuple(_entry(unit, target, where) for unit in target.units))
        settings = msgspec.structs.replace(settings, cores=None)
    elif not settings.cores and where is not None:
        settings = msgspec.structs.replace(settings, cores=(target.units[0].core,))
    return TreesDevice(settings)


def _entry(unit: Unit, target: Target, where: Path | None) -> UnitEntry:
    """A target's unit as one of this machine."""
    cores = () if where is None or not any(one.core for one in target.units) else (unit.core,)
    if unit.options and not unit.device:
        raise InputError(f"unit {unit.name!r} has options and no device: name its provider", where=where)
    return UnitEntry(name=unit.name, provider=unit.device or None, options=unit.options, cores=cores)


BACKEND = Backend(api=1, capabilities=TreesDevice.capabilities, open=_open, find=found_providers)
