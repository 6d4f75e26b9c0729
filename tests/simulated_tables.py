"""Latency tables of simulated targets without noise, as a campaign on them would make."""

from __future__ import annotations

from collections.abc import Iterable

from framefit import Target, resolve_target
from framefit.core.latency_table import LatencyEntry, LatencyTable
from framefit.core.model import Model, configuration
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Device
from framefit.devices.npu.cycles import CycleModel
from framefit.devices.npu.device import NpuDevice

__all__ = ["table_on"]


def table_on(target: str | Target, models: Iterable[Model], *, device: Device | None = None) -> LatencyTable:
    """Each layer that takes time on a target, to 1 %.

    Args:
        target: its cycle model is the truth.
        models: whose layers are entries.
        device: says what it makes of them, and gives the fingerprint and the unit; default: the target itself.
    """
    described = target if isinstance(target, Target) else resolve_target(target)
    owner = device or NpuDevice(described, VirtualClock())
    unit = owner.target.units[0].name
    table = LatencyTable(target=described.name, fingerprint=owner.fingerprint())
    for model in models:
        grouped = owner.lowered(model) if owner.capabilities.lowers else model.grouped(owner.fusions(model))
        costs = CycleModel(described).layers(grouped)
        table = table.with_entries(
            tuple(
                LatencyEntry(
                    op=layer.op,
                    configuration=configuration(nodes),
                    unit=unit,
                    latency_ns=cost.latency_ns,
                    interval_ns=(round(0.99 * cost.latency_ns), round(1.01 * cost.latency_ns)),
                )
                for layer, nodes, cost in zip(grouped.layers, grouped.nodes, costs, strict=True)
                if cost.latency_ns
            )
        )
    return table
