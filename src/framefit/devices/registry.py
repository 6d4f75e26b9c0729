"""Which backend opens which kind of target: a new backend is a file of its own, and one line here."""

from __future__ import annotations

from pathlib import Path

from framefit.core.target import Target, resolve_target, target_file
from framefit.core.workload import MachineSettings
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Backend, Capabilities, Device, ModelledDevice
from framefit.devices.npu import device as npu
from framefit.devices.trees import device as trees
from framefit.errors import InputError

__all__ = ["capabilities_of", "open_device", "virtual_device"]


_BACKENDS: dict[str, Backend] = {
    "ort": trees.BACKEND,  # this machine, by ONNX Runtime and by kernels for trees
    "npu": npu.BACKEND,  # a described accelerator, simulated
}


def capabilities_of(target: Target) -> Capabilities:
    """What devices of a target can do, before one is opened."""
    return _BACKENDS[target.kind].capabilities


def open_device(
    target: str | Path | Target,
    *,
    folder: Path | None = None,
    settings: MachineSettings | None = None,
    computes: bool = False,
) -> Device:
    """The device of a target; a simulated one is in virtual time.

    Args:
        target: a built-in name, the path of a ``target.toml``, or a target.
        folder: where a path begins; default: the current one.
        settings: how this machine executes, or computes the outputs of a described device; default: its defaults.
        computes: it is to execute models; else it is only asked what they cost there, and a described device computes
            nothing.

    Raises:
        InputError: no such target, core or provider.
        UnsupportedError: a described unit that can be interrupted is to execute.
    """
    where = None
    if isinstance(target, Target):
        described, where = target, Path()
    else:
        described = resolve_target(target, folder)
        where = None if str(target) == "cpu" else target_file(target, folder)
    settings = settings or MachineSettings()
    cores = settings.cores
    if cores is not None and len(set(cores)) < len(cores):
        raise InputError(f"cores = {list(cores)} names a core twice", where="$.cores", remedy="name each core once")
    return _BACKENDS[described.kind].open(described, settings, where, computes=computes)


def virtual_device(target: Target) -> ModelledDevice:
    """A device in virtual time that knows no models: only launches of given durations (``timed``) run there."""
    return npu.NpuDevice(target, VirtualClock(), keep_events=1)
