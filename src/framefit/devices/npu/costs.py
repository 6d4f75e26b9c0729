"""Sources of a target's durations: the cycle model, a latency table, or a user's function.

``framefit cycles``: cycles of each layer of a model on a described target, and the bound of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

from framefit.core.files import check_new, read_record, write_record
from framefit.core.functions import load_function
from framefit.core.latency_table import LatencyTable
from framefit.core.model import Layer, Model, configuration, epilogue_groups
from framefit.core.model.builtin import load_model
from framefit.core.run_record import CycleReport, LayerCycles
from framefit.core.settings import verb
from framefit.core.sparsity import SparsityResult
from framefit.core.target import Target, Unit, resolve_target, target_file
from framefit.devices.npu.cycles import CycleModel, Ratios, check_support, unit_named
from framefit.devices.npu.work import Method, layer_work
from framefit.devices.settings import CyclesSettings
from framefit.errors import InputError

__all__ = ["CostSource", "cycles", "pricing"]


LayerFunction = Callable[[Layer, str, Target], Any]
"""A user's function: layer, name of the unit and target to nanoseconds."""


class CostSource(Protocol):
    """Prices the layers of a model on one unit.

    Attributes:
        clock_mhz: clock of the cycles.
    """

    unit: Unit
    clock_mhz: float

    def layers(
        self, model: Model, *, weight_sparsity: Ratios | None = None, activation_sparsity: Ratios = 0.0
    ) -> tuple[LayerCycles, ...]:
        """Price each layer."""
        ...


def cost_source(target: Target, unit: str | None = None, function: LayerFunction | None = None) -> CostSource:
    """Make the source that a target's ``[cost]`` names.

    Args:
        target: the device.
        unit: name of its unit; default: the first.
        function: the imported function that ``cost.function`` names.

    Raises:
        InputError: there is no such unit, or the source cannot be used.
    """
    if target.cost.source == "table":
        assert target.cost.table is not None
        table = read_record(target.cost.table, LatencyTable)
        return GivenDurations(target, unit, "table", _from_table(table, target.cost.table))
    if target.cost.source == "function":
        if function is None:
            raise InputError(f"cost.function = {target.cost.function!r} was not imported", where=target.name)
        return GivenDurations(target, unit, "function", _from_function(function, str(target.cost.function)))
    return CycleModel(target, unit)


def layer_times(target: Target, function: LayerFunction | None = None) -> Callable[[Model, str], list[int]]:
    """Make a function from a model and the name of a unit to nanoseconds of each layer.

    Args:
        target: the device.
        function: the imported function that ``cost.function`` names.
    """
    sources: dict[str, CostSource] = {}

    def times(model: Model, unit: str) -> list[int]:
        if unit not in sources:
            sources[unit] = cost_source(target, unit, function)
        return [layer.latency_ns for layer in sources[unit].layers(model)]

    return times


class GivenDurations:
    """Durations from a table or function, as cycles of the unit's clock (1 GHz without a processor)."""

    def __init__(
        self,
        target: Target,
        unit: str | None,
        source: Literal["table", "function"],
        layer_ns: Callable[[Model, int, str, Target], int],
    ) -> None:
        self.target = target
        self.unit = unit_named(target, unit)
        processor = target.processor
        self.clock_mhz = (1000.0 if processor is None else processor.clock_mhz) * self.unit.speed_ratio
        self._source = source
        self._layer_ns = layer_ns

    def layers(
        self, model: Model, *, weight_sparsity: Ratios | None = None, activation_sparsity: Ratios = 0.0
    ) -> tuple[LayerCycles, ...]:
        """Price each layer.

        Raises:
            InputError: the unit does not support a layer, a layer has no duration, or sparsity is given, which
                such a source does not model.
        """
        if weight_sparsity is not None or activation_sparsity != 0.0:
            raise InputError(
                f"costs of target {self.target.name!r} come from a {self._source}, which does not model sparsity",
                remedy="leave the sparsity out, or choose a target with the cycle model",
            )
        check_support(self.target, self.unit, model)
        zeros = model.weight_zeros()
        costs = []
        for index, (layer, nodes) in enumerate(zip(model.layers, model.nodes, strict=True)):
            method: Method = layer_work(layer, nodes).method
            free = method == "view"
            duration = 0 if free else self._layer_ns(model, index, self.unit.name, self.target)
            costs.append(
                LayerCycles(
                    name=layer.name,
                    op=layer.op,
                    macs=layer.macs,
                    cycles=math.ceil(round(duration * self.clock_mhz / 1e3, 6)),
                    bound="none" if free else self._source,
                    bytes_read=sum(tensor.bytes for tensor in layer.inputs) + layer.parameter_bytes,
                    bytes_written=sum(tensor.bytes for tensor in layer.outputs),
                    utilisation_ratio=0.0,
                    weight_sparsity_ratio=zeros[index],
                    activation_sparsity_ratio=0.0,
                    latency_ns=duration,
                    unit=self.unit.name,
                    precision="",
                    method=method,
                    terms={},
                    overhead_cycles=0.0,
                )
            )
        return tuple(costs)


def _from_table(table: LatencyTable, path: str) -> Callable[[Model, int, str, Target], int]:
    def layer_ns(model: Model, index: int, unit: str, target: Target) -> int:  # noqa: ARG001 - one form for both
        layer = model.layers[index]
        entry = table.find(layer.op, configuration(model.nodes[index]), unit)
        if entry is None:
            raise InputError(
                f"no entry for layer {layer.name} ({layer.op}) on unit {unit!r}",
                where=path,
                remedy="measure it into the table",
            )
        return entry.latency_ns

    return layer_ns


def _from_function(function: LayerFunction, spec: str) -> Callable[[Model, int, str, Target], int]:
    def layer_ns(model: Model, index: int, unit: str, target: Target) -> int:
        layer = model.layers[index]
        try:
            duration = float(function(layer, unit, target))
        except Exception as error:
            raise InputError(
                f"{spec} failed: {type(error).__name__}: {error}", where=f"layer {layer.name}", remedy="correct it"
            ) from error
        if not 0 <= duration < math.inf:
            raise InputError(
                f"{spec} gave {duration}", where=f"layer {layer.name}", remedy="give nanoseconds, 0 or more"
            )
        return math.ceil(duration)

    return layer_ns


@verb(CyclesSettings, "model", "target")
def cycles(settings: CyclesSettings) -> CycleReport:
    """Compute the cycles of each layer of a model on a target, without running anything.

    Args:
        settings: options.

    Raises:
        InputError: a file, name or ratio cannot be used, or the target does not support a layer.

    Example:
        >>> import framefit
        >>> report = framefit.cycles("depth", "vpu", weight_sparsity=0.5)
        >>> report.total_cycles < framefit.cycles("depth", "vpu").total_cycles
        True
    """
    output, target = settings.output, settings.target
    check_new(output, force=settings.force)
    loaded = load_model(settings.model, settings.shapes, settings.constants)
    if settings.fuse:
        loaded = loaded.grouped(epilogue_groups(loaded))
    described = target if isinstance(target, Target) else resolve_target(target)
    source = pricing(target, loaded, settings.unit)
    zeros: Ratios = settings.activation_sparsity
    if settings.activations is not None:
        if zeros != 0.0:
            raise InputError("activations and activation_sparsity exclude each other", remedy="give one of them")
        zeros = _zeros_of(loaded, settings.activations)
    layers = source.layers(loaded, weight_sparsity=settings.weight_sparsity, activation_sparsity=zeros)
    report = CycleReport(
        model=loaded.name,
        target=described.name,
        unit=source.unit.name,
        source=described.cost.source,
        clock_mhz=source.clock_mhz,
        total_cycles=sum(layer.cycles for layer in layers),
        total_ns=sum(layer.latency_ns for layer in layers),
        layers=layers,
        notes=(*loaded.defaulted_dims, *_notes(layers)),
    )
    if output is not None:
        write_record(output, report, force=settings.force)
    return report


def _zeros_of(model: Model, path: str) -> list[float]:
    """Zeros in each layer's input, from the result of a search for sparsity."""
    result = read_record(path, SparsityResult)
    if result.chosen is None:
        raise InputError("the search has no result yet", where=path, remedy="let it end: framefit sparsify --resume")
    zeros = {layer.name: layer.activation_sparsity_ratio for layer in result.configurations[result.chosen].layers}
    layer_of = {node: index for index, layer in enumerate(model.layers) for node in layer.nodes}
    if missing := [name for name in zeros if name not in layer_of]:
        raise InputError(
            f"layer {missing[0]!r} is not in model {model.name!r}", where=path, remedy="give the model of this search"
        )
    ratios = [0.0] * len(model.layers)
    for name, ratio in zeros.items():
        ratios[layer_of[name]] = ratio
    return ratios


def pricing(target: str | Path | Target, model: Model, unit: str | None = None) -> CostSource:
    """Choose the cost source for a model's layers on a target.

    Args:
        target: name of a built-in target, path of a ``target.toml``, or a target.
        model: the unit has to support its layers.
        unit: name of the target's unit; default: the first one that supports the whole model.

    Raises:
        InputError: a file or name cannot be used.
    """
    described = target if isinstance(target, Target) else resolve_target(target)
    folder = Path() if isinstance(target, Target) else target_file(target).parent
    return _source(described, unit or _able_unit(described, model), folder)


def _source(target: Target, unit: str | None, folder: Path) -> CostSource:
    function = None
    if target.cost.source == "function":
        function = load_function(str(target.cost.function), folder, f"target {target.name!r}, cost.function")
    return cost_source(target, unit, function)


def _able_unit(target: Target, model: Model) -> str | None:
    """The first unit that supports every layer; ``None``: none does."""
    ops = {op for layer in model.layers for op in layer.op.split("+")}
    return next((unit.name for unit in target.units if all(map(unit.supports, ops))), None)


def _notes(layers: tuple[LayerCycles, ...]) -> list[str]:
    notes = []
    by_bytes = sorted({layer.op for layer in layers if layer.method == "bytes"})
    if by_bytes:
        notes.append(f"priced by their bytes, since the model does not know these operators: {', '.join(by_bytes)}")
    unknown = [layer.name for layer in layers if layer.method == "unknown"]
    if unknown:
        notes.append(f"shapes or iterations depend on the data, so only a part is priced: {', '.join(unknown)}")
    return notes
