"""What a device is: its units and what they can do (``target.toml``)."""

from __future__ import annotations

from typing import Literal

from framefit.core.files import Record

__all__ = ["Target", "Unit", "cpu_target"]


class Unit(Record, kw_only=True):
    """A processing unit: it runs one segment at a time.

    Attributes:
        name: unique within the target.
        preemptive: whether the operating system can interrupt a running segment.
        core: number of the CPU core, or of the unit's core in event packets.
        memory_bytes: memory for tensors; ``None``: the host's.
    """

    name: str
    preemptive: bool = True
    core: int = 0
    memory_bytes: int | None = None


class Target(Record, kw_only=True):
    """A described device.

    Attributes:
        name: what ``app.toml`` calls it.
        kind: "ort" (ONNX Runtime on this machine) or "npu" (a described accelerator).
        units: at least one.
    """

    schema_version: int = 1
    name: str
    kind: Literal["ort", "npu"]
    description: str = ""
    units: tuple[Unit, ...]

    def __post_init__(self) -> None:
        if not self.units:
            raise ValueError("a target needs at least one unit")
        if len({unit.name for unit in self.units}) < len(self.units):
            raise ValueError("unit names must differ")


def cpu_target(cores: tuple[int, ...]) -> Target:
    """The built-in target ``cpu``: one preemptive unit a pinned core."""
    return Target(
        name="cpu",
        kind="ort",
        description="ONNX Runtime on this machine, one pinned thread a core",
        units=tuple(Unit(name=f"cpu{core}", core=core) for core in cores),
    )
