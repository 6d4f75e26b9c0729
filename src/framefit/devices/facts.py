"""What decides whether a latency table applies to a device: its fingerprint."""

from __future__ import annotations

import hashlib

import msgspec

from framefit.core.latency_table import Value
from framefit.core.target import TraceUnit
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Device
from framefit.devices.host import fingerprint
from framefit.devices.npu import NpuDevice
from framefit.devices.ort import OrtDevice

__all__ = ["device_facts"]


def device_facts(device: Device) -> dict[str, Value]:
    """Facts that two tables must share to be comparable: device, clock, runtime and threads.

    Of a described device its description counts (its trace unit and what people read apart) and
    whether it runs in virtual time; of one on this machine the machine, its runtime, and how it
    is used: one thread, no spinning, denormals taken as zero.
    """
    target = device.target
    clock = "virtual" if isinstance(device.clock, VirtualClock) else "real"
    facts: dict[str, Value] = {"target": target.name, "kind": target.kind, "clock": clock}
    if isinstance(device, NpuDevice):
        bare = msgspec.structs.replace(target, description="", trace=TraceUnit())
        digest = hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()
        return facts | {"description": digest[:16]}
    if isinstance(device, OrtDevice):
        used: dict[str, Value] = {"threads": 1, "spinning": False, "denormals": "flushed"}
        facts |= fingerprint() | {"providers": ",".join(device.providers)} | used
    return facts
