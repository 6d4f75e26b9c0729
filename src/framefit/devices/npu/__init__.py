"""The simulated accelerator: units that cannot be preempted, in virtual or real time."""

from framefit.devices.npu.device import Jitter, NpuDevice

__all__ = ["Jitter", "NpuDevice"]
