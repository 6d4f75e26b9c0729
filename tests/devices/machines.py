"""Folders that look like a Linux machine's ``/proc`` and ``/sys``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["GOOD", "JETSON", "RK3588", "XEON", "system"]

XEON = """processor\t: 0
model name\t: Some CPU
cpu family\t: 6
model\t\t: 143
stepping\t: 8
flags\t\t: fpu sse4_2 avx2 avx512f amx_tile

processor\t: 1
model name\t: Another CPU
"""

GOOD = {
    "proc/cpuinfo": XEON,
    "proc/loadavg": "0.02 0.18 0.06 1/95 4072",
    "proc/stat": "cpu  5385 0 1072 298536 193 0 44 0 0 0\ncpu0 1157 0 355 151087 9 0 25 0 0 0",
    "proc/swaps": "Filename Type Size Used Priority",
    "proc/version": "Linux version 6.12 #1 SMP PREEMPT_RT",
    "proc/self/cgroup": "0::/app",
    "sys/fs/cgroup/app/cpu.max": "max 100000",
    "sys/devices/system/cpu/isolated": "1",
    "sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
}

_ARM = "processor: {}\nFeatures: fp asimd asimdhp asimddp\nCPU implementer: 0x41\nCPU part: {}\nCPU revision: 0\n"

RK3588 = {  # four slow cores, four fast ones
    "proc/cpuinfo": "\n".join(_ARM.format(core, "0xd05" if core < 4 else "0xd0b") for core in range(8)),
    "proc/device-tree/model": "Radxa ROCK 5B\0",
    **{f"sys/devices/system/cpu/cpu{core}/cpu_capacity": "414" if core < 4 else "1024" for core in range(8)},
    **{
        f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_max_freq": "1800000" if core < 4 else "2256000"
        for core in range(8)
    },
}

JETSON = {
    "proc/cpuinfo": "\n".join(_ARM.format(core, "0xd42") for core in range(6)),
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "var/lib/nvpmodel/status": "pmode:0002",
    **{f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_max_freq": "1510400" for core in range(6)},
}


def system(root: Path, files: dict[str, str]) -> Path:
    """A folder that looks like a Linux system."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root
