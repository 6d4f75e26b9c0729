"""``framefit measure``: what each layer costs on a device, as a latency table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from framefit.core.files import read_record, write_record
from framefit.core.latency_table import LatencyTable, check_fingerprint, read_table
from framefit.core.model import AuxiliaryKind, Model
from framefit.core.target import Target, resolve_target, target_file
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Device
from framefit.devices.facts import device_facts
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.npu import NpuDevice
from framefit.devices.npu.costs import layer_times
from framefit.devices.npu.cycles import unit_named
from framefit.devices.ort import OrtDevice
from framefit.devices.trees.device import TreesDevice
from framefit.errors import InputError
from framefit.latency.audit import LEAST_NETWORKS
from framefit.latency.audited import audit_networks
from framefit.latency.campaign import Method
from framefit.latency.subjects import GridSpec, grid_models
from framefit.runtime.frames.functions import load_function
from framefit.workflows.cycles import load_model
from framefit.workflows.measuring import Measuring, Settings

__all__ = ["measure", "open_target"]

Notify = Callable[[str], None]
Network = str | Path | Model


def measure(
    model: str | Path | Model | Sequence[Model] | None = None,
    *,
    grid: str | Path | GridSpec | None = None,
    max_shapes: int | None = None,
    target: str | Path | Target | Device = "cpu",
    unit: str | None = None,
    auxiliary: AuxiliaryKind | Literal["auto"] = "auto",
    overhead: Method = "regression",
    fusions: Literal["device", "measured"] = "device",
    audit: Network | Sequence[Network] | None = None,
    repeats: int | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    stop: Callable[[], bool] | None = None,
    notify: Notify | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> LatencyTable:
    """Measure the distinct layers of models, or of a grid, where only start and end are seen.

    Args:
        model: path of an ONNX file, name of a built-in model, a model, or several of them.
        grid: TOML file or record of layers to measure, with the model's or instead of them.
        max_shapes: of the grid at most so many, those that tell most about all of it; default: all, or
            with ``max_seconds`` as many as there is time for.
        target: "cpu", a built-in name, path of a ``target.toml``, a target, or an open device.
        unit: name of the target's unit; default: the first.
        auxiliary: layer that is appended; "auto": of each layer's own layout class.
        overhead: how the overhead is taken off, see :mod:`framefit.latency.campaign`.
        fusions: which nodes are one layer: as the device says, or found by measuring.
        audit: networks that are measured whole, to correct the sum of layers by: "auto" (built-in ones,
            never one that is measured here), "none", files or models; default: "auto" with a model, "none"
            with a grid alone. Where ``max_seconds`` leaves no time for it a warning of the table says so.
        repeats: samples of every launch; default: 100, and more for layers whose intervals are wide.
        max_seconds: end after so long on the device's clock, with what was measured.
        seed: of weights, inputs and resampling.
        shapes: graph input -> shape, for dynamic dimensions of a file.
        constants: graph input -> value that never changes.
        output: write the table there.
        force: overwrite it.
        resume: go on from the table at ``output``; an absent file is begun.
        stop: asked between launches: what was measured is kept.
        notify: receives what is being done.
        on_round: told rounds done and rounds in all.

    Raises:
        InputError: a file, name or key that cannot be used; a table of another device to resume.
        DeviceError: no layer can be measured.

    Example:
        >>> import framefit
        >>> table = framefit.measure("detector", target="vpu", repeats=20)
        >>> table.overhead.intercept_ns > 90_000
        True
    """
    earlier_file = _existing(output, force=force, resume=resume)
    for name, value in (("repeats", repeats), ("max_shapes", max_shapes)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, is {value}", remedy="give a greater number")
    models = _models(model, shapes, constants)
    points: list[Model] = []
    if grid is not None:
        points = list(grid_models(grid if isinstance(grid, GridSpec) else read_record(grid, GridSpec), seed))
    if not models and not points:
        raise InputError("nothing to measure", remedy="name a model, or --grid SPEC.toml")
    if max_shapes is not None and not points:
        raise InputError("max_shapes chooses from a grid, and there is none", remedy="name one with --grid SPEC.toml")
    networks, builtin = _networks(audit if audit is not None else "auto" if models else "none", seed)
    device = open_target(target)
    chosen = unit_named(device.target, unit).name
    earlier = None if earlier_file is None else read_table(earlier_file)
    if earlier is not None and earlier_file is not None:
        check_fingerprint(earlier, device_facts(device), earlier_file, "measure into another file")
    settings = Settings(
        auxiliary=auxiliary,
        overhead=overhead,
        fusions=fusions,
        repeats=repeats,
        max_seconds=max_seconds,
        seed=seed,
        stop=stop,
        on_round=on_round,
        **({} if notify is None else {"notify": notify}),
    )
    with contextlib.ExitStack() as stack:
        if isinstance(device, OrtDevice):
            stack.enter_context(pinned(device.core))
            stack.enter_context(flushed_denormals())
        measuring = Measuring(device, chosen, settings, earlier)
        for one in models:
            measuring.take(one)
        measuring.audit(networks, builtin)
        table = measuring.table(points, max_shapes)
    if output is not None:
        write_record(output, table, force=force or resume)
    return table


def _existing(output: str | Path | None, *, force: bool, resume: bool) -> Path | None:
    """The file to go on from; refuses to overwrite one, or to resume none."""
    if resume and output is None:
        raise InputError("nothing to resume: no output is named", remedy="name the table with -o")
    if output is None or not Path(output).exists():
        return None
    if not force and not resume:
        raise InputError(
            "already exists", where=output, remedy="choose another path, --resume it, or overwrite it with --force"
        )
    return Path(output) if resume else None


def _networks(audit: Network | Sequence[Network], seed: int) -> tuple[list[Model], list[Model]]:
    """What the user named, and the built-in networks where they are to be audited."""
    names = [audit] if isinstance(audit, str | Path | Model) else list(audit)
    if "none" in names:
        if len(names) > 1:
            raise InputError("'none' stands beside networks to audit", remedy="leave out one of them")
        return [], []
    builtin = list(audit_networks(seed)) if "auto" in names else []
    named = [one if isinstance(one, Model) else load_model(one, None, None) for one in names if one != "auto"]
    if len(named) + len(builtin) < LEAST_NETWORKS:
        raise InputError(
            f"an audit needs {LEAST_NETWORKS} networks at least, {len(named)} are named",
            remedy="name more, add the built-in ones (auto), or leave the audit out (none)",
        )
    return named, builtin


def open_target(target: str | Path | Target | Device) -> Device:
    """The device of a target, alone on its own clock.

    Args:
        target: "cpu": this machine, by ONNX Runtime and kernels for trees; else a described device, in virtual
            time, that computes nothing.

    Raises:
        InputError: no such target, or its file cannot be used.
    """
    if not isinstance(target, str | Path | Target):
        return target
    described = target if isinstance(target, Target) else resolve_target(target)
    if described.kind == "ort":
        own = None if str(target) == "cpu" else described.units[0].core
        return TreesDevice(own)
    function = None
    if described.cost.function is not None:
        where = Path() if isinstance(target, Target) else target_file(target)
        function = load_function(described.cost.function, where.parent, f"{where}: $.cost.function")
    return NpuDevice(described, VirtualClock(), layer_times(described, function))


def _models(
    model: str | Path | Model | Sequence[Model] | None,
    shapes: Mapping[str, tuple[int, ...]] | None,
    constants: Mapping[str, Any] | None,
) -> list[Model]:
    if model is None:
        return []
    if isinstance(model, Model):
        return [model]
    if not isinstance(model, str | Path):
        return list(model)
    return [load_model(model, shapes, constants)]
