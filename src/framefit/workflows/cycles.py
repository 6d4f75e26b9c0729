"""``framefit cycles``: what each layer of a model costs on a described target, and what binds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framefit.core.files import write_record
from framefit.core.model import Model, epilogue_groups
from framefit.core.model.builtin import BUILTIN
from framefit.core.results import CycleReport, LayerCycles
from framefit.core.target import Target, resolve_target, target_file
from framefit.devices.npu.costs import CostSource, cost_source
from framefit.devices.npu.cycles import Ratios
from framefit.errors import InputError
from framefit.runtime.frames.functions import load_function

__all__ = ["cycles", "load_model", "pricing"]


def cycles(
    model: str | Path | Model,
    target: str | Path | Target,
    *,
    unit: str | None = None,
    fuse: bool = True,
    weight_sparsity: Ratios | None = None,
    activation_sparsity: Ratios = 0.0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    force: bool = False,
) -> CycleReport:
    """Price each layer of a model on a target, without running anything.

    Args:
        model: path of an ONNX file, name of a built-in model, or a model.
        target: name of a built-in target, path of a ``target.toml``, or a target.
        unit: name of the target's unit; default: the first that supports the whole model.
        fuse: whether convolutions and products take in what follows them element by element, as
            accelerators do; False: every node (or group of ``model``) is a layer.
        weight_sparsity: part of the weights that is zero, 0 to 1, for all layers or one each;
            default: what is in the model.
        activation_sparsity: part of each layer's input that is zero, likewise.
        shapes: graph input -> shape, for dynamic dimensions of a file.
        constants: graph input -> value that never changes.
        output: write the report there as JSON.
        force: overwrite it.

    Raises:
        InputError: a file, name or ratio that cannot be used; a layer that the target does not run.

    Example:
        >>> import framefit
        >>> report = framefit.cycles("depth", "vpu", weight_sparsity=0.5)
        >>> report.total_cycles < framefit.cycles("depth", "vpu").total_cycles
        True
    """
    if output is not None and Path(output).exists() and not force:
        raise InputError("already exists", where=output, remedy="choose another path, or overwrite it with --force")
    loaded = load_model(model, shapes, constants)
    if fuse:
        loaded = loaded.grouped(epilogue_groups(loaded))
    described = target if isinstance(target, Target) else resolve_target(target)
    source = pricing(target, loaded, unit)
    layers = source.layers(loaded, weight_sparsity=weight_sparsity, activation_sparsity=activation_sparsity)
    report = CycleReport(
        model=loaded.name,
        target=described.name,
        unit=source.unit.name,
        source=described.cost.source,
        clock_mhz=source.clock_mhz,
        total_cycles=sum(layer.cycles for layer in layers),
        total_ns=sum(layer.latency_ns for layer in layers),
        layers=layers,
        notes=(*loaded.assumed, *_notes(layers)),
    )
    if output is not None:
        write_record(output, report, force=force)
    return report


def load_model(
    model: str | Path | Model, shapes: Mapping[str, tuple[int, ...]] | None, constants: Mapping[str, Any] | None
) -> Model:
    """The model that a command names: an ONNX file, or a built-in one.

    Raises:
        InputError: neither, or shapes that do not fit or are not given.
    """
    if isinstance(model, Model):
        return model
    if str(model) in BUILTIN:
        if shapes or constants:
            raise InputError(f"built-in model {str(model)!r} has fixed shapes", remedy="leave the shapes out")
        return BUILTIN[str(model)](0)
    path = Path(model)
    if not path.suffix and not path.exists() and path.name == str(model):
        near = difflib.get_close_matches(path.name, BUILTIN, n=1)
        raise InputError(
            f"no built-in model {path.name!r}, and no such file" + (f"; did you mean {near[0]!r}?" if near else ""),
            remedy=f"choose from {', '.join(BUILTIN)}, or give the path of an ONNX file",
        )
    if path.is_dir():
        raise InputError("is a folder, not an ONNX file", where=path, remedy="give the path of a file in it")
    try:
        return Model.load(path, shapes=shapes, constants=constants)
    except InputError as error:
        # The reader's remedy is a key of app.toml; there is none here.
        unknown = re.match(r"input '(.+)' has (the dynamic dimension|no shape)", error.what)
        if unknown is None:
            raise
        remedy = f"give all its sizes, in the form --shape {unknown[1]}=1,576"
        raise InputError(error.what, where=error.where, remedy=remedy) from error


def pricing(target: str | Path | Target, model: Model, unit: str | None = None) -> CostSource:
    """What prices a model's layers on a target.

    Args:
        target: name of a built-in target, path of a ``target.toml``, or a target.
        model: whose layers the unit has to support.
        unit: name of the target's unit; default: the first that supports the whole model.

    Raises:
        InputError: a file or name that cannot be used.
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
        notes.append(f"priced by their bytes, for the model does not know them: {', '.join(by_bytes)}")
    unknown = [layer.name for layer in layers if layer.method == "unknown"]
    if unknown:
        notes.append(f"shapes or iterations depend on the data, so only a part is priced: {', '.join(unknown)}")
    return notes
