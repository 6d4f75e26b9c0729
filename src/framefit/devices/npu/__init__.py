"""The simulated accelerator: its cycle model, and units that cannot be preempted, in virtual or real time."""

from framefit.devices.npu.device import LayerTimes, NpuDevice, greatest_ratio, quantile_ratio

__all__ = ["LayerTimes", "NpuDevice", "greatest_ratio", "quantile_ratio"]
