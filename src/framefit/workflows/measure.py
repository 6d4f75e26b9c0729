"""``framefit measure``: what each layer costs on a device, as a latency table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from framefit.core.files import read_record, write_record
from framefit.core.latency_table import LatencyTable, Unmeasured, check_fingerprint, read_table
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
from framefit.errors import InputError
from framefit.latency.campaign import Campaign, Method
from framefit.latency.fusion import measured_fusions
from framefit.latency.subjects import GridSpec, Subject, distinct_layers, grid_models
from framefit.runtime.functions import load_function
from framefit.workflows.cycles import load_model

__all__ = ["measure", "open_target"]

Notify = Callable[[str], None]


def measure(
    model: str | Path | Model | Sequence[Model] | None = None,
    *,
    grid: str | Path | GridSpec | None = None,
    target: str | Path | Target | Device = "cpu",
    unit: str | None = None,
    auxiliary: AuxiliaryKind | Literal["auto"] = "auto",
    overhead: Method = "regression",
    fusions: Literal["device", "measured"] = "device",
    repeats: int = 100,
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
        target: "cpu", a built-in name, path of a ``target.toml``, a target, or an open device.
        unit: name of the target's unit; default: the first.
        auxiliary: layer that is appended; "auto": of each layer's own layout class.
        overhead: how the overhead is taken off, see :mod:`framefit.latency.campaign`.
        fusions: which nodes are one layer: as the device says, or found by measuring.
        repeats: samples of every launch.
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
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, is {repeats}", remedy="give a greater number")
    if resume and output is None:
        raise InputError("nothing to resume: no output is named", remedy="name the table with -o")
    exists = output is not None and Path(output).exists()
    if exists and not force and not resume:
        raise InputError(
            "already exists", where=output, remedy="choose another path, --resume it, or overwrite it with --force"
        )
    models = _models(model, shapes, constants)
    if grid is not None:
        spec = grid if isinstance(grid, GridSpec) else read_record(grid, GridSpec)
        models += grid_models(spec, seed)
    if not models:
        raise InputError("nothing to measure", remedy="name a model, or --grid SPEC.toml")
    say = notify or (lambda message: None)  # noqa: ARG005 - nobody listens
    device = open_target(target)
    chosen = unit_named(device.target, unit).name
    earlier = read_table(output) if resume and exists and output is not None else None
    if earlier is not None and output is not None:
        check_fingerprint(earlier, device_facts(device), output, "measure into another file")
    with contextlib.ExitStack() as stack:
        if isinstance(device, OrtDevice):
            stack.enter_context(pinned(device.core))
            stack.enter_context(flushed_denormals())
        begun = device.clock.now_ns()

        def ended() -> bool:
            late = max_seconds is not None and device.clock.now_ns() - begun >= max_seconds * 1e9
            return late or (stop is not None and stop())

        subjects: dict[str, Subject] = {}
        failed: dict[str, Unmeasured] = {}
        for one in models:
            say(f"finding the layers of {one.name}")
            grouped = one
            if fusions == "measured":
                pairs = measured_fusions(device, chosen, one, repeats=repeats, seed=seed, stop=ended)
                grouped = one.grouped(pair.nodes for pair in pairs if pair.fused)
            groups = device.fusions if fusions == "device" else None
            found, lost = distinct_layers(grouped, groups, chosen)
            for subject in found:
                subjects.setdefault(subject.key, subject)
            failed |= {str((layer.op, layer.configuration)): layer for layer in lost}
        say(f"compiling {len(subjects)} distinct layers")
        campaign = Campaign(
            device,
            chosen,
            subjects.values(),
            auxiliary=auxiliary,
            repeats=repeats,
            seed=seed,
            earlier=earlier,
            failed=failed.values(),
        )
        say(f"measuring {len(subjects)} layers")
        campaign.measure(stop=ended, on_round=on_round)
        table = campaign.table(overhead)
    if output is not None:
        write_record(output, table, force=force or resume)
    return table


def open_target(target: str | Path | Target | Device) -> Device:
    """The device of a target, alone on its own clock.

    Args:
        target: "cpu": ONNX Runtime on this machine; else a described device, in virtual time,
            that computes nothing.

    Raises:
        InputError: no such target, or its file cannot be used.
    """
    if not isinstance(target, str | Path | Target):
        return target
    described = target if isinstance(target, Target) else resolve_target(target)
    if described.kind == "ort":
        own = None if str(target) == "cpu" else described.units[0].core
        return OrtDevice(own)
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
