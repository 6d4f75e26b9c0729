"""Models in pieces on this machine: kernels for trees and for layers with zeros, ONNX Runtime for the others."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.core.model import Model, TensorInfo, lowered_around
from framefit.core.program import Operation
from framefit.core.target import Target
from framefit.core.trees import Ensemble, ensembles_in, tree_layers
from framefit.core.workload import MachineSettings
from framefit.devices.device import Array, Backend, Handle, Tensors, allocate, fitting, random_inputs
from framefit.devices.host import pinned
from framefit.devices.kernels.network import Image, Network
from framefit.devices.kernels.selection import (
    Comparison,
    Region,
    compared,
    marked_regions,
    may_be_faster,
    regions_of,
    vectors_here,
)
from framefit.devices.launching import Launch
from framefit.devices.ort import OrtDevice, OrtHandle, settings_of
from framefit.devices.providers import found_providers
from framefit.errors import DeviceError, InputError

if TYPE_CHECKING:
    from framefit.devices.kernels.compiled import BoundNetwork

_Launch = tuple[int, int, Any]  # kind and core in the trace, the runtime's run options


class HostDevice(OrtDevice):
    """CPU cores as in :class:`~framefit.devices.ort.OrtDevice` that also run groups of trees, and skip zeros.

    A segment with such layers is launched as its pieces in turn: these by their kernels, other layers by the runtime,
    with buffers that are made with the binding. Kernels are loaded or compiled, and run once, when a segment is
    compiled. Layers with zeros are compared with the runtime first; what was measured is kept with the compiled code.
    """

    def fusions(self, model: Model) -> tuple[tuple[str, ...], ...]:
        """What kernels execute at once, and fusions of the layers between; trees are not fused."""
        groups: list[tuple[str, ...]] = []
        for piece in self._pieces(model):
            if piece.network is not None:
                groups += piece.network.groups()
            elif not piece.trees:
                groups += super().fusions(piece.model)
        return tuple(groups)

    def kernels(self, model: Model) -> frozenset[str]:
        """See :meth:`framefit.devices.device.Device.kernels`: nodes of the layers with zeros, or in int8."""
        return frozenset(name for network in self.networks(model) for step in network.steps for name in step.nodes)

    def lowered(self, model: Model) -> Model:
        """See :meth:`OrtDevice.lowered`; what kernels execute is unchanged layers of it."""
        pieces = [] if model.lowered else self._pieces(model)
        apart = [piece for piece in pieces if piece.trees or piece.network is not None]
        if not apart:
            return super().lowered(model)
        names = [name for piece in apart for layer in piece.model.layers for name in layer.nodes]
        groups = [group for piece in apart if piece.network is not None for group in piece.network.groups()]
        return lowered_around(model, names, super().lowered).grouped(groups)

    def compile(self, segment: Model, unit: str, label: str) -> Handle:
        """Make a session, or several with kernels between them."""
        pieces = self._pieces(segment)
        if not any(piece.trees or piece.network is not None for piece in pieces):
            return super().compile(segment, unit, label)
        place, kind = self.place(unit, label)
        ensembles = ensembles_in(segment)
        options = self._run_options[unit]
        flag = self._flags.setdefault(id(options), np.zeros(1, np.int32))
        steps: list[tuple[Model, _Step]] = []
        for piece in pieces:
            if piece.trees:
                steps.append((piece.model, _TreesStep(piece.model, ensembles[piece.model.layers[0].name], label)))
            elif piece.network is not None:
                steps.append((piece.model, _KernelsStep(piece.network, self._kernels, label, flag)))
            else:
                session = super().compile(piece.model, unit, label)
                assert isinstance(session, OrtHandle)
                steps.append((piece.model, session))
        operation = Operation.opaque(label, segment.layers[-1].name, unit)
        outputs = frozenset(tensor.name for tensor in segment.outputs)
        return _Chain(steps, outputs, operation, (kind, place.core, options))

    def terminate(self, unit: str) -> None:
        """Request the termination; it is looked at between two layers."""
        super().terminate(unit)
        flag = self._flags.get(id(self._run_options[unit]))
        if flag is not None:
            flag[0] = 1

    def failure(self, launch: Launch, error: Exception) -> DeviceError:
        """Make the error of a launch that raised; after a termination the next launch may run."""
        flag = self._flags.get(id(launch.options))  # type: ignore[attr-defined]  # of this backend's
        if flag is not None:
            flag[0] = 0
        return super().failure(launch, error)

    @functools.cached_property
    def _flags(self) -> dict[int, npt.NDArray[np.int32]]:
        """Numbers that end running kernels, by the identity of their unit's run options."""
        return {}

    @property
    def _kernels(self) -> Path:
        """Folder of compiled kernels, and of what they were measured to take."""
        return self._cache.parent / "kernels"

    def _pieces(self, model: Model) -> list[_Piece]:
        """Groups of trees, layers with zeros, and the layers between them, in order."""
        trees = _apart(model)
        regions = {region.first: region for region in self._regions(model, trees)}
        if not trees and not regions:
            return [_Piece(model)]
        ends = (region.last + 1 for region in regions.values())
        edges = sorted({0, len(model.layers), *trees, *(place + 1 for place in trees), *regions, *ends})
        pieces = []
        for first, end in itertools.pairwise(edges):
            network = regions[first].network if first in regions else None
            pieces.append(_Piece(model.segment(first, end - 1), first in trees, network))
        return pieces

    def networks(self, model: Model) -> list[Network]:
        """What kernels execute of a model."""
        return [piece.network for piece in self._pieces(model) if piece.network is not None]

    def _regions(self, model: Model, trees: Sequence[int]) -> list[Region]:
        if self._settings.kernels == "never" or (model.lowered and not model.unlowered):
            return []
        regions = marked_regions(model) if model.lowered else regions_of(model, trees)
        if not regions:
            return []
        vectors = vectors_here()
        if vectors is None:
            return []
        if model.lowered:
            return regions
        return [one for one in regions if may_be_faster(one.network, vectors) and self._faster(model, one)]

    def _faster(self, model: Model, region: Region) -> bool:
        """Whether kernels execute a region faster than the runtime, by a measurement that is kept."""
        piece = model.segment(region.first, region.last)
        kept = self._kernels / f"{self._key(piece)}.json"
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(kept.read_bytes(), type=Comparison).faster
        unit = self.target.units[0]
        tensors = random_inputs(piece.inputs, np.random.default_rng(0))
        tensors |= {tensor.name: allocate(tensor) for tensor in piece.outputs}
        step = _KernelsStep(region.network, self._kernels, piece.name, np.zeros(1, np.int32))
        session = OrtDevice.compile(self, piece, unit.name, piece.name)
        with pinned(unit.core):
            comparison = compared(step.bind(tensors).run, session.bind(tensors).run)  # type: ignore[attr-defined]
        with contextlib.suppress(OSError, InputError), write_whole(kept, force=True) as file:
            file.write(msgspec.json.encode(comparison))
        return comparison.faster


@dataclass(frozen=True)
class _Piece:
    """Adjacent layers that one mechanism executes.

    Attributes:
        model: the layers.
        trees: whether they are a group of trees.
        network: what kernels execute; ``None``: trees, or the runtime.
    """

    model: Model
    trees: bool = False
    network: Network | None = None


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


class _KernelsStep:
    """Layers with zeros."""

    def __init__(self, network: Network, cache: Path, label: str, flag: npt.NDArray[np.int32]) -> None:
        from framefit.devices.kernels.compiled import CompiledNetwork  # importing LLVM takes 0.1 s

        self._network, self._label, self._flag = network, label, flag
        self._compiled = CompiledNetwork(network, cache)

    def bind(self, tensors: Tensors) -> _KernelsBound:
        """Attach arrays; see :class:`framefit.devices.device.Handle`."""
        inputs, outputs = (
            [self._array(image, tensors) for image in images]
            for images in (self._network.inputs, self._network.outputs)
        )
        names = [image.name for image in self._network.outputs]
        return _KernelsBound(self._compiled.bind(inputs, outputs, self._flag), dict(zip(names, outputs, strict=True)))

    def _array(self, image: Image, tensors: Tensors) -> Array:
        tensor = TensorInfo(name=image.name, dtype=image.dtype, shape=image.shape)
        if tensor.name not in tensors:
            raise DeviceError(f"{self._label}: no array for {tensor.name!r}")
        return fitting(tensors[tensor.name], tensor, self._label)


class _KernelsBound:
    """A network with its arrays."""

    __slots__ = ("_outputs", "run")

    def __init__(self, network: BoundNetwork, outputs: Tensors) -> None:
        self._outputs = outputs

        def run() -> None:
            if network():
                raise RuntimeError("the launch was terminated")

        self.run = run

    def output(self, name: str) -> Array:
        """Return an output."""
        return self._outputs[name]


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
) -> HostDevice:
    """Open this machine; the target says what the settings leave open: the core, or units with providers."""
    return HostDevice(settings_of(target, settings, where))


BACKEND = Backend(api=1, capabilities=HostDevice.capabilities, open=_open, find=found_providers)
