"""``framefit doctor``: what this machine permits, topic by topic, with a remedy for each weakness."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from framefit.core.files import cache_folder
from framefit.core.run_record import Finding, HostReport, Percentiles
from framefit.devices import host
from framefit.devices.clock import RealClock
from framefit.devices.host import fingerprint

__all__ = ["doctor"]


_CAP_IPC_LOCK = 14  # linux/capability.h: may lock memory without limit


class _Seen(NamedTuple):
    status: Literal["good", "fair", "poor", "unknown"]
    value: str
    remedy: str | None = None


class _Check(NamedTuple):
    topic: str
    why: str
    look: Callable[[Path], _Seen]


_CHECKS: list[_Check] = []


def _check(topic: str, why: str) -> Callable[[Callable[[Path], _Seen]], Callable[[Path], _Seen]]:
    """Add a function to the diagnosis; it may raise anything."""

    def add(look: Callable[[Path], _Seen]) -> Callable[[Path], _Seen]:
        _CHECKS.append(_Check(topic, why, look))
        return look

    return add


def diagnose(root: Path = host.ROOT) -> tuple[Finding, ...]:
    """Examine this machine, topic by topic; takes about half a second and never raises.

    Args:
        root: folder of ``/proc`` and ``/sys``.
    """
    return tuple(_finding(check, root) for check in _CHECKS)


def _finding(check: _Check, root: Path) -> Finding:
    try:
        seen = check.look(root)
    except OSError:
        seen = _Seen("unknown", "not reported by this system")
    except Exception as error:  # noqa: BLE001 - what cannot be found out is a finding too
        seen = _Seen("unknown", f"could not be determined: {error}")
    return Finding(topic=check.topic, why=check.why, status=seen.status, value=seen.value, remedy=seen.remedy)


@_check("cores", "a dedicated core keeps other programs out of the window")
def _look_at_cores(root: Path) -> _Seen:
    cores, isolated = host.available_cores(), host.isolated_cores(root)
    value = f"{len(cores)} available ({host.format_cores(cores)}), isolated: {host.format_cores(isolated)}"
    if isolated:
        return _Seen("good", value)
    if len(cores) == 1:
        return _Seen("poor", value, "give this process a second core: everything else runs on this one too")
    last = cores[-1]
    return _Seen("fair", value, f"kernel command line: isolcpus={last} nohz_full={last} rcu_nocbs={last}")


@_check("load", "other programs take the core when a frame is due")
def _look_at_load(root: Path) -> _Seen:
    fields = host.read_text(root, "proc/loadavg").split()
    load, programs = float(fields[0]), max(0, int(fields[3].split("/")[0]) - 1)
    ratio = load / len(host.available_cores())
    value = f"{load:.2f} over the last minute, others running now: {programs}"
    if ratio <= 0.25:
        return _Seen("good", value)
    return _Seen("fair" if ratio <= 0.75 else "poor", value, "stop other programs; see which: top -H -o %CPU")


@_check("SMT siblings", "two hardware threads of one core slow each other down, by how much depends on what both do")
def _look_at_smt(root: Path) -> _Seen:
    core = host.default_core()
    siblings = [
        c
        for c in host.parse_cores(host.read_text(root, f"{host.CPU_FOLDER}/cpu{core}/topology/thread_siblings_list"))
        if c != core
    ]
    if not siblings:
        return _Seen("good", f"core {core} has none")
    remedy = f"leave core {host.format_cores(siblings)} idle, or: echo off | sudo tee /{host.CPU_FOLDER}/smt/control"
    return _Seen("fair", f"core {core} shares its units with core {host.format_cores(siblings)}", remedy)


@_check("frequency governor", "a core that slows down between frames makes the next one late")
def _look_at_governor(root: Path) -> _Seen:
    folder = f"{host.CPU_FOLDER}/cpu{host.default_core()}/cpufreq"
    governor = host.read_text(root, f"{folder}/scaling_governor")
    if governor == "performance":
        return _Seen("good", governor)
    # With these two drivers "powersave" adapts; elsewhere it is the lowest frequency for good.
    adapts = governor != "powersave" or "pstate" in host.read_text_or(root, f"{folder}/scaling_driver")
    return _Seen("fair" if adapts else "poor", governor, "sudo cpupower frequency-set --governor performance")


@_check("turbo", "turbo depends on heat and on the other cores: durations measured now may not hold later")
def _look_at_turbo(root: Path) -> _Seen:
    intel = f"{host.CPU_FOLDER}/intel_pstate/no_turbo"
    if (root / intel).exists():
        turbo, remedy = host.read_text(root, intel) == "0", f"echo 1 | sudo tee /{intel}"
    else:
        boost = f"{host.CPU_FOLDER}/cpufreq/boost"
        turbo, remedy = host.read_text(root, boost) == "1", f"echo 0 | sudo tee /{boost}"
    return _Seen("fair", "on", f"for steady durations: {remedy}") if turbo else _Seen("good", "off")


@_check("virtualised", "a hypervisor may stop the whole machine for milliseconds, unseen from inside")
def _look_at_hypervisor(root: Path) -> _Seen:
    cpu = host.cpuinfo(root)
    if not cpu:
        return _Seen("unknown", "not reported by this system")
    if not host.virtualised(root, cpu):
        return _Seen("good", "no")
    return _Seen("fair", "yes", "promise deadlines from measurements on the machine that will run it")


@_check("steal time", "time that the hypervisor gave to another machine while this one wanted it")
def _look_at_steal(root: Path) -> _Seen:
    # proc(5): cpu user nice system idle iowait irq softirq steal ...
    times = [int(field) for field in host.read_text(root, "proc/stat").splitlines()[0].split()[1:9]]
    total = sum(times)
    wanted = total - times[3] - times[4]
    ratio = times[7] / wanted if wanted else 0.0
    value = f"{ratio:.2%} of busy time since boot"
    if ratio <= 0.002:
        return _Seen("good", value)
    return _Seen("fair" if ratio <= 0.02 else "poor", value, "use dedicated cores, or a machine of your own")


@_check("real-time priority", "with it, nothing else runs before a frame that is due")
def _look_at_realtime(root: Path) -> _Seen:
    if not hasattr(os, "sched_setscheduler"):
        return _Seen("unknown", "this system has no SCHED_FIFO")
    if host.realtime_priority_permitted():
        runtime_us = int(host.read_text_or(root, "proc/sys/kernel/sched_rt_runtime_us", "-1"))
        period_us = int(host.read_text_or(root, "proc/sys/kernel/sched_rt_period_us", "1000000"))
        return _Seen(
            "good", "permitted" + (f", for {runtime_us / period_us:.0%} of the time" if runtime_us >= 0 else "")
        )
    return _Seen(
        "fair",
        "not permitted",
        'echo "$USER - rtprio 50" | sudo tee /etc/security/limits.d/framefit.conf, then log in again; '
        "in a container: docker run --cap-add SYS_NICE --ulimit rtprio=50",
    )


@_check("memory locking", "memory that is not locked may be paged out and costs milliseconds when touched")
def _look_at_memory_lock(root: Path) -> _Seen:
    if sys.platform == "win32":
        return _Seen("unknown", "not reported by this system")
    import resource  # absent on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = dict(
        line.split(":", 1) for line in host.read_text_or(root, "proc/self/status").splitlines() if ":" in line
    )
    if soft == resource.RLIM_INFINITY or int(status.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1:
        return _Seen("good", "no limit")
    value = f"at most {soft / 2**20:.0f} MiB"
    remedy = 'echo "$USER - memlock unlimited" | sudo tee -a /etc/security/limits.d/framefit.conf, then log in again'
    return _Seen("good", value) if soft >= 2**30 else _Seen("fair", value, remedy)


@_check("kernel preemption", "how long the kernel itself may keep a due thread waiting")
def _look_at_preemption(root: Path) -> _Seen:
    version = host.read_text(root, "proc/version")
    remedy = "kernel command line: preempt=full (or boot a PREEMPT_RT kernel)"
    if host.read_text_or(root, "sys/kernel/realtime") == "1" or "PREEMPT_RT" in version:
        return _Seen("good", "PREEMPT_RT")
    if "PREEMPT_DYNAMIC" in version:
        # The file marks the mode with parentheses; only root may read it.
        modes = host.read_text_or(root, "sys/kernel/debug/sched/preempt")
        chosen = [word[8:] for word in host.read_text_or(root, "proc/cmdline").split() if word.startswith("preempt=")]
        mode = modes.partition("(")[2].partition(")")[0] or (chosen[-1] if chosen else "")
        if mode == "full":
            return _Seen("good", "full (PREEMPT_DYNAMIC)")
        if mode:
            return _Seen("fair", f"{mode} (PREEMPT_DYNAMIC)", remedy)
        return _Seen("unknown", "PREEMPT_DYNAMIC, mode not readable", "sudo cat /sys/kernel/debug/sched/preempt")
    if "PREEMPT" in version:
        return _Seen("good", "full")
    return _Seen("fair", "none or voluntary", "boot a low-latency or PREEMPT_RT kernel")


@_check("wake-up lateness", "a frame cannot start before its thread wakes; up to the clock's spin it is hidden")
def _look_at_wake_ups(root: Path) -> _Seen:
    late = Percentiles.of(host.wake_up_lateness_ns())
    slack = host.read_text_or(root, "proc/self/timerslack_ns")
    value = f"p50 {late.p50 / 1e3:.0f}, p99 {late.p99 / 1e3:.0f}, max {late.max / 1e3:.0f} us over {late.count} sleeps"
    value += f" (default timer slack {int(slack) / 1e3:.0f} us)" if slack else ""
    if late.p99 <= RealClock().spin_ns:
        return _Seen("good", value)
    status: Literal["fair", "poor"] = "fair" if late.p99 <= 1_000_000 else "poor"
    return _Seen(status, value, "stop other programs, isolate a core, or permit real-time priority")


@_check("clock", "deadlines are kept by this clock; a slow source costs microseconds a reading")
def _look_at_clock(root: Path) -> _Seen:
    readings = [time.perf_counter_ns() for _ in range(2_000)]
    step = min((b - a for a, b in itertools.pairwise(readings) if b > a), default=0)
    source = host.read_text_or(
        root, "sys/devices/system/clocksource/clocksource0/current_clocksource", "source unknown"
    )
    value = f"{source}, smallest step {step} ns"
    if step == 0 or step > 1_000:
        return _Seen("poor", value, "kernel command line: clocksource=tsc tsc=reliable (x86)")
    return _Seen("good", value)


@_check("CPU quota", "a container that has used its quota stands still until the next period")
def _look_at_quota(root: Path) -> _Seen:
    quota = _cpu_quota(root)
    if quota is None:
        return _Seen("good", "none")
    cores = len(host.available_cores())
    value = f"{quota:g} of {cores} cores"
    if quota >= cores:
        return _Seen("good", value)
    return _Seen(
        "poor", value, f"give whole cores instead: docker run --cpuset-cpus={host.default_core()}, without --cpus"
    )


def _cpu_quota(root: Path) -> float | None:
    """The tightest CPU quota of this process's control groups, in cores.

    Raises:
        OSError: the system has no control groups.
    """
    quotas: list[float] = []
    for line in host.read_text(root, "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers  # version 2 has no controllers here
        deepest = top / group.strip("/")
        for folder in (deepest, *deepest.parents):
            # A limit counts at every level; inside a container only the lower levels are seen.
            maximum = host.read_text_or(folder, "cpu.max").split()
            if not maximum:
                maximum = [
                    host.read_text_or(folder, "cpu.cfs_quota_us"),
                    host.read_text_or(folder, "cpu.cfs_period_us"),
                ]
            if maximum[0] not in ("", "max", "-1"):
                quotas.append(int(maximum[0]) / int(maximum[1]))
            if folder == top:
                break
    return min(quotas, default=None)


@_check("swap", "memory that was paged out costs milliseconds when touched")
def _look_at_swap(root: Path) -> _Seen:
    # proc(5): filename type size used priority, in KiB
    areas = [line.split() for line in host.read_text(root, "proc/swaps").splitlines()[1:]]
    used_kib = sum(int(area[3]) for area in areas)
    if not areas:
        return _Seen("good", "off")
    return _Seen("poor" if used_kib else "fair", f"on, {used_kib / 1024:.0f} MiB used", "sudo swapoff --all")


@_check("ONNX Runtime", "what executes the segments")
def _look_at_onnxruntime(root: Path) -> _Seen:  # noqa: ARG001 - one form for all
    try:
        import onnxruntime
    except ImportError as error:
        return _Seen("poor", f"cannot be imported: {error}", "pip install --force-reinstall onnxruntime")
    return _Seen("good", f"{onnxruntime.__version__}: {', '.join(onnxruntime.get_available_providers())}")


@_check("disk", "compiled segments and latency tables are stored in the cache folder")
def _look_at_disk(root: Path) -> _Seen:  # noqa: ARG001 - one form for all
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    value = f"{free / 2**30:.1f} GiB free for {folder}"
    if free >= 2**30:
        return _Seen("good", value)
    return _Seen("fair" if free >= 2**28 else "poor", value, "free some space, or set FRAMEFIT_CACHE to another folder")


def doctor() -> HostReport:
    """Examine this machine, topic by topic; takes about half a second and never raises.

    Returns:
        Findings with their remedies, and the facts that determine the speed of programs here.
    """
    return HostReport(findings=diagnose(), fingerprint=fingerprint())
