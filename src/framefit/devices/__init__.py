"""Everything that executes segments: one protocol with capabilities, and a backend for each kind of device.

These names are what a backend of another package needs; :mod:`framefit.testing` holds it to the protocol. They load
when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framefit.core.program import Operation
    from framefit.core.run_record import FoundDevice
    from framefit.core.target import Unit
    from framefit.core.workload import MachineSettings
    from framefit.devices.device import (
        Array,
        Backend,
        Binding,
        Capabilities,
        Completion,
        Device,
        Handle,
        Tensors,
        allocate,
        fitting,
        random_inputs,
    )
    from framefit.devices.host import default_core
    from framefit.devices.launching import Launch, LaunchingDevice
    from framefit.devices.registry import open_device

_HOME = {
    "Array": "framefit.devices.device",
    "Backend": "framefit.devices.device",
    "Binding": "framefit.devices.device",
    "Capabilities": "framefit.devices.device",
    "Completion": "framefit.devices.device",
    "Device": "framefit.devices.device",
    "FoundDevice": "framefit.core.run_record",
    "Handle": "framefit.devices.device",
    "Launch": "framefit.devices.launching",
    "LaunchingDevice": "framefit.devices.launching",
    "MachineSettings": "framefit.core.workload",
    "Operation": "framefit.core.program",
    "Tensors": "framefit.devices.device",
    "Unit": "framefit.core.target",
    "allocate": "framefit.devices.device",
    "default_core": "framefit.devices.host",
    "fitting": "framefit.devices.device",
    "open_device": "framefit.devices.registry",
    "random_inputs": "framefit.devices.device",
}

__all__ = [
    "Array",
    "Backend",
    "Binding",
    "Capabilities",
    "Completion",
    "Device",
    "FoundDevice",
    "Handle",
    "Launch",
    "LaunchingDevice",
    "MachineSettings",
    "Operation",
    "Tensors",
    "Unit",
    "allocate",
    "default_core",
    "fitting",
    "open_device",
    "random_inputs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'framefit.devices' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
