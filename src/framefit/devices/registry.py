"""Opens devices: backends are Framefit's own (:data:`framefit.core.target.BACKENDS`) and those of installed packages.

A package adds a backend by an entry point of the group ``framefit.devices``: its name is the kind that targets name,
its object a :class:`framefit.devices.device.Backend`. Both sorts are loaded, checked and opened in the same way.
"""

from __future__ import annotations

from pathlib import Path

from framefit.core.run_record import TargetList, TargetSummary
from framefit.core.target import (
    Target,
    backend_entries,
    backend_entry,
    builtin_targets,
    names_device,
    resolve_target,
    target_file,
)
from framefit.core.workload import MachineSettings
from framefit.devices.device import Capabilities, Device
from framefit.devices.trial import examined, load_backend, require_trial
from framefit.errors import InputError

__all__ = ["capabilities_of", "open_runtime", "targets"]


def capabilities_of(target: Target) -> Capabilities:
    """Capabilities of a target's devices, before one is opened: what they are on its backend's first device.

    Raises:
        InputError: the backend cannot be loaded.
    """
    return load_backend(backend_entry(target.kind)).capabilities


def open_device(
    target: str | Path | Target,
    *,
    folder: Path | None = None,
    settings: MachineSettings | None = None,
    computes: bool = False,
) -> Device:
    """Open the device of a target; a simulated one is in virtual time.

    A backend that executes models is tried in a process of its own the first time (:mod:`framefit.devices.trial`).

    Args:
        target: a built-in name, the path of a ``target.toml``, a backend with its device ("openvino:CPU"), or a target.
        folder: folder of relative paths; default: the current one.
        settings: how this machine executes, or computes the outputs of a described device; default: its defaults.
        computes: whether it will execute models; otherwise it only prices them, and a described device computes
            nothing.

    Raises:
        InputError: there is no such target, core or provider, or its backend cannot be used.
        UnsupportedError: a unit of a described device that executes is preemptive.
    """
    where = None
    if isinstance(target, Target):
        described, where = target, Path()
    else:
        described = resolve_target(target, folder)
        where = None if str(target) == "cpu" or names_device(str(target)) else target_file(target, folder)
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
    entry = backend_entry(described.kind)
    require_trial(entry, described, where)
    return load_backend(entry).open(described, settings, where, computes=computes)


def open_runtime(*, cache: Path | None = None) -> Device:
    """Open ONNX Runtime alone on the default core: exported trees run as plain operators.

    Args:
        cache: folder of compiled models; default: the user's cache.
    """
    from framefit.devices.ort import OrtDevice

    return OrtDevice(cache=cache)


def targets() -> TargetList:
    """The built-in targets, in their fixed order, and the installed backends with the devices that they find here.

    Each backend is tried in a process of its own, so that one that crashes or hangs is listed as such.
    """
    return TargetList(
        targets=tuple(
            TargetSummary(
                name=target.name,
                kind=target.kind,
                units=tuple(unit.name for unit in target.units),
                description=target.description,
                checked=target.checked,
            )
            for target in builtin_targets()
        ),
        backends=examined([entry for entry in backend_entries() if entry.kind != "npu"]),
    )
