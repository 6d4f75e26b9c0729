"""Opens devices: a kind of device is one entry of :data:`framefit.core.target.BACKENDS`, which names its module."""

from __future__ import annotations

import importlib
from pathlib import Path

from framefit.core.target import BACKENDS, Target, resolve_target, target_file
from framefit.core.workload import MachineSettings
from framefit.devices.device import Backend, Capabilities, Device
from framefit.errors import InputError

__all__ = ["capabilities_of", "open_device", "open_runtime"]


def _backend(target: Target) -> Backend:
    backend: Backend = importlib.import_module(BACKENDS[target.kind]).BACKEND
    return backend


def capabilities_of(target: Target) -> Capabilities:
    """Capabilities of a target's devices, before one is opened."""
    return _backend(target).capabilities


def open_device(
    target: str | Path | Target,
    *,
    folder: Path | None = None,
    settings: MachineSettings | None = None,
    computes: bool = False,
) -> Device:
    """Open the device of a target; a simulated one is in virtual time.

    Args:
        target: a built-in name, the path of a ``target.toml``, or a target.
        folder: folder of relative paths; default: the current one.
        settings: how this machine executes, or computes the outputs of a described device; default: its defaults.
        computes: whether it will execute models; otherwise it only prices them, and a described device computes
            nothing.

    Raises:
        InputError: there is no such target, core or provider.
        UnsupportedError: a unit of a described device that executes is preemptive.
    """
    where = None
    if isinstance(target, Target):
        described, where = target, Path()
    else:
        described = resolve_target(target, folder)
        where = None if str(target) == "cpu" else target_file(target, folder)
    settings = settings or MachineSettings()
    for where_cores, cores in (("$.cores", settings.cores or ()), ("$.units", settings.unit_cores)):
        if len(set(cores)) < len(cores):
            raise InputError(
                f"cores = {list(cores)} names a core twice", where=where_cores, remedy="name each core once"
            )
    if settings.units and described.kind != "ort":
        raise InputError(
            f"[[units]] are those of this machine, but target {described.name!r} has its own",
            where="$.units",
            remedy="leave them out, or change the target's file",
        )
    return _backend(described).open(described, settings, where, computes=computes)


def open_runtime(*, cache: Path | None = None) -> Device:
    """Open ONNX Runtime alone on the default core: exported trees run as plain operators.

    Args:
        cache: folder of compiled models; default: the user's cache.
    """
    from framefit.devices.ort import OrtDevice

    return OrtDevice(cache=cache)
