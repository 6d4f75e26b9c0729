"""This machine: what decides how fast it runs, and what it permits.

Linux tells most; elsewhere the same functions answer "unknown" where nothing can be read.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from framefit.core.files import cache_folder
from framefit.core.results import Finding, Percentiles
from framefit.devices.clock import RealClock
from framefit.errors import InputError

__all__ = [
    "available_cores",
    "default_core",
    "diagnose",
    "fingerprint",
    "flushed_denormals",
    "host_stalls",
    "pinned",
    "realtime_priority_permitted",
    "wake_up_lateness_ns",
]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_ROOT = Path("/")
_CPU = "sys/devices/system/cpu"

# What the kernels of ONNX Runtime (MLAS) and numpy dispatch on.
_SIMD = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),  # x86
    *("neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),  # ARM  # codespell:ignore sme
)
_HYPERVISORS = ("qemu", "kvm", "vmware", "virtualbox", "xen", "firecracker", "virtual machine", "amazon ec2", "google")
_FLUSH_TO_ZERO, _DENORMALS_ARE_ZERO = 1 << 15, 1 << 6  # bits of MXCSR
_CAP_IPC_LOCK = 14  # linux/capability.h: may lock memory without limit

# Affinities that pinned() narrowed and will restore: those cores are still ours.
_set_aside: list[frozenset[int]] = []


def _text(root: Path, path: str) -> str:
    """A file's stripped text.

    Raises:
        OSError: it is not there, or may not be read.
    """
    return (root / path).read_text(errors="replace").strip("\0\n ")


def _text_or(root: Path, path: str, default: str = "") -> str:
    try:
        return _text(root, path)
    except OSError:
        return default


# Facts


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's block of ``/proc/cpuinfo``; reading them all takes long on a big machine."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError), (root / "proc/cpuinfo").open(errors="replace") as lines:
        for line in lines:
            key, colon, value = line.partition(":")
            if not colon and facts:
                break
            facts[key.strip()] = value.strip()
    return facts


def _cpu_model(root: Path, cpu: dict[str, str]) -> str:
    if "model name" in cpu and "cpu family" in cpu:  # x86; cloud machines hide the generation in the name
        numbers = " ".join(cpu.get(key, "?") for key in ("cpu family", "model", "stepping"))
        return f"{cpu['model name']} ({numbers})"
    board = _text_or(root, "proc/device-tree/model")
    part = " ".join(cpu[key] for key in ("CPU implementer", "CPU part", "CPU revision") if key in cpu)
    parts = [text for text in (cpu.get("model name", ""), cpu.get("isa", ""), board, part) if text]
    return ", ".join(parts) or platform.processor() or "unknown"


def _virtualised(root: Path, cpu: dict[str, str]) -> bool:
    """Whether a hypervisor runs below this kernel."""
    if "hypervisor" in cpu.get("flags", "").split():
        return True
    if (root / "sys/hypervisor/type").exists() or (root / "proc/device-tree/hypervisor").exists():
        return True
    dmi = " ".join(_text_or(root, f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")).lower()
    return any(name in dmi for name in _HYPERVISORS) and ".metal" not in dmi


@functools.cache
def _version(*distributions: str) -> str:
    """Version of the first distribution that is installed, without importing it."""
    from importlib import metadata  # 40 ms, and only needed here

    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


@functools.cache
def _facts(root: Path) -> tuple[tuple[str, str | int | float | bool], ...]:
    cpu = _cpuinfo(root)
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    return (
        ("cpu", _cpu_model(root, cpu)),
        ("cores", os.cpu_count() or 1),
        ("machine", platform.machine() or "unknown"),
        ("simd", " ".join(name for name in _SIMD if name in flags) or "unknown"),
        ("os", platform.system() or "unknown"),
        ("kernel", platform.release() or "unknown"),
        ("python", platform.python_version()),
        ("numpy", _version("numpy")),
        ("onnxruntime", _version("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")),
        ("virtualised", _virtualised(root, cpu)),
    )


def fingerprint(root: Path = _ROOT) -> dict[str, str | int | float | bool]:
    """What decides how fast things run here; the same for every process of this machine.

    Args:
        root: where ``/proc`` and ``/sys`` are.

    Returns:
        ``cpu`` (model; x86: family, model, stepping), ``cores`` (of the machine), ``machine``
        (architecture), ``simd`` (extensions, separated by spaces), ``os``, ``kernel``, ``python``,
        ``numpy``, ``onnxruntime``, ``virtualised``; "unknown" for what the system does not say.
    """
    return dict(_facts(root))


# Cores


def available_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending; those that :func:`pinned` set aside count."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0).union(*_set_aside)))
    return tuple(range(os.cpu_count() or 1))


def default_core() -> int:
    """The last available core: interrupts and other programs gather on the first ones."""
    return available_cores()[-1]


def _isolated_cores(root: Path = _ROOT) -> tuple[int, ...]:
    """Cores that the kernel's scheduler leaves alone; no process has them unless it asks."""
    return _cores_in(_text_or(root, f"{_CPU}/isolated"))


def _cores_in(listing: str) -> tuple[int, ...]:
    """Cores in the kernel's notation: "0-2,5" is 0, 1, 2, 5."""
    cores: list[int] = []
    for part in filter(None, listing.split(",")):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def _listing(cores: Iterable[int]) -> str:
    """Ascending cores in the same notation."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or "none"


@functools.cache
def _warn_of_no_affinity() -> None:
    """Once a process."""
    logger.warning("%s does not let a thread choose its core: durations vary more", platform.system())


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep the calling thread on one core, and restore its affinity at the end.

    Threads started meanwhile inherit the core. Does nothing, and warns once, where the
    platform has no affinity.

    Args:
        core: an available core, or one that the kernel isolates.

    Raises:
        InputError: this process may not run on ``core``.
    """
    if not hasattr(os, "sched_setaffinity"):
        _warn_of_no_affinity()
        yield
        return
    permitted = sorted({*available_cores(), *_isolated_cores()})
    before = frozenset(os.sched_getaffinity(0))
    refused = InputError(
        f"core {core} is not available",
        where="$.cores",
        remedy=f"choose from the available cores: {_listing(permitted)}",
    )
    if core not in permitted:
        raise refused
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:  # isolated, and not in this container's set
        raise refused from error
    _set_aside.append(before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        _set_aside.remove(before)


# What is permitted, tried for real


def host_stalls(core: int, root: Path = _ROOT) -> Callable[[], int] | None:
    """Reads how long a virtual machine's host kept a core from running, in ns since boot; None: not known.

    The kernel counts it ("steal") in ticks of 10 ms.
    """
    label, path = f"cpu{core} ".encode(), root / "proc/stat"
    try:
        path.open("rb", buffering=0).close()
        tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None

    def read() -> int:
        with path.open("rb", buffering=0) as file:
            text = file.read(1 << 16)
        begin = text.find(label)
        fields = text[begin : text.find(b"\n", begin)].split()
        return int(fields[8]) * tick_ns if begin >= 0 and len(fields) > 8 else 0

    return read


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Let the calling thread, and threads that it starts, take denormal numbers as zero (x86-64, glibc).

    Denormals cost up to 100 times as long. ONNX Runtime's own option sets this once a
    process, on whatever thread made the first session, and never takes it back.
    """
    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        yield
        return
    libm = ctypes.CDLL("libm.so.6")
    before = (ctypes.c_uint32 * 8)()  # fenv_t: 28 bytes of x87 state, then MXCSR
    libm.fegetenv(before)
    during = (ctypes.c_uint32 * 8)(*before)
    during[7] |= _FLUSH_TO_ZERO | _DENORMALS_ARE_ZERO
    libm.fesetenv(during)
    try:
        yield
    finally:
        libm.fesetenv(before)


def realtime_priority_permitted() -> bool:
    """Whether a thread may take real-time priority (``SCHED_FIFO``): one tries it, and ends."""
    if not hasattr(os, "sched_setscheduler"):
        return False

    def attempt() -> bool:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        except OSError:
            return False
        return True

    return _in_own_thread(attempt)


def wake_up_lateness_ns(core: int | None = None, sleeps: int = 100, period_ns: int = 2_000_000) -> tuple[int, ...]:
    """How late a sleeping thread wakes, with the sharpest timer that it may ask for.

    Args:
        core: where it sleeps; default: :func:`default_core`.
        sleeps: how many; the first one is not counted.
        period_ns: from one deadline to the next, on an absolute grid.

    Returns:
        Wake-up minus deadline of each sleep, in order.
    """

    def sleep_repeatedly() -> tuple[int, ...]:
        lateness = []
        with pinned(default_core() if core is None else core):
            RealClock.sharpen()
            start = time.perf_counter_ns()
            for index in range(1, sleeps + 2):
                deadline = start + index * period_ns
                time.sleep(max(0, deadline - time.perf_counter_ns()) / 1e9)
                lateness.append(time.perf_counter_ns() - deadline)
        return tuple(lateness[1:])

    return _in_own_thread(sleep_repeatedly)


def _in_own_thread(work: Callable[[], _T]) -> _T:
    """Run ``work`` where priority, affinity and timer slack end with the thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


# Diagnosis


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


def diagnose(root: Path = _ROOT) -> tuple[Finding, ...]:
    """What this machine permits, topic by topic; takes about half a second and never raises.

    Args:
        root: where ``/proc`` and ``/sys`` are.
    """
    return tuple(_finding(check, root) for check in _CHECKS)


def _finding(check: _Check, root: Path) -> Finding:
    try:
        seen = check.look(root)
    except OSError:
        seen = _Seen("unknown", "not reported by this system")
    except Exception as error:  # noqa: BLE001 - what cannot be found out is a finding too
        seen = _Seen("unknown", f"could not be found out: {error}")
    return Finding(topic=check.topic, why=check.why, status=seen.status, value=seen.value, remedy=seen.remedy)


@_check("cores", "a core of its own keeps other programs out of the window")
def _look_at_cores(root: Path) -> _Seen:
    cores, isolated = available_cores(), _isolated_cores(root)
    value = f"{len(cores)} available ({_listing(cores)}), isolated: {_listing(isolated)}"
    if isolated:
        return _Seen("good", value)
    if len(cores) == 1:
        return _Seen("poor", value, "give this process a second core: everything else runs on this one too")
    last = cores[-1]
    return _Seen("fair", value, f"kernel command line: isolcpus={last} nohz_full={last} rcu_nocbs={last}")


@_check("load", "other programs take the core when a frame is due")
def _look_at_load(root: Path) -> _Seen:
    fields = _text(root, "proc/loadavg").split()
    load, others = float(fields[0]), max(0, int(fields[3].split("/")[0]) - 1)
    ratio = load / len(available_cores())
    value = f"{load:.2f} over the last minute, others running now: {others}"
    if ratio <= 0.25:
        return _Seen("good", value)
    return _Seen("fair" if ratio <= 0.75 else "poor", value, "stop other programs; see which: top -H -o %CPU")


@_check("SMT siblings", "two hardware threads of one core slow each other down, by how much depends on what both do")
def _look_at_smt(root: Path) -> _Seen:
    core = default_core()
    siblings = [c for c in _cores_in(_text(root, f"{_CPU}/cpu{core}/topology/thread_siblings_list")) if c != core]
    if not siblings:
        return _Seen("good", f"core {core} has none")
    remedy = f"leave core {_listing(siblings)} idle, or: echo off | sudo tee /{_CPU}/smt/control"
    return _Seen("fair", f"core {core} shares its units with core {_listing(siblings)}", remedy)


@_check("frequency governor", "a core that slows down between frames makes the next one late")
def _look_at_governor(root: Path) -> _Seen:
    folder = f"{_CPU}/cpu{default_core()}/cpufreq"
    governor = _text(root, f"{folder}/scaling_governor")
    if governor == "performance":
        return _Seen("good", governor)
    # With these two drivers "powersave" adapts; elsewhere it is the lowest frequency for good.
    adapts = governor != "powersave" or "pstate" in _text_or(root, f"{folder}/scaling_driver")
    return _Seen("fair" if adapts else "poor", governor, "sudo cpupower frequency-set --governor performance")


@_check("turbo", "turbo depends on heat and on the other cores: durations measured now may not hold later")
def _look_at_turbo(root: Path) -> _Seen:
    intel = f"{_CPU}/intel_pstate/no_turbo"
    if (root / intel).exists():
        turbo, remedy = _text(root, intel) == "0", f"echo 1 | sudo tee /{intel}"
    else:
        boost = f"{_CPU}/cpufreq/boost"
        turbo, remedy = _text(root, boost) == "1", f"echo 0 | sudo tee /{boost}"
    return _Seen("fair", "on", f"for steady durations: {remedy}") if turbo else _Seen("good", "off")


@_check("virtualised", "a hypervisor may stop the whole machine for milliseconds, unseen from inside")
def _look_at_hypervisor(root: Path) -> _Seen:
    cpu = _cpuinfo(root)
    if not cpu:
        return _Seen("unknown", "not reported by this system")
    if not _virtualised(root, cpu):
        return _Seen("good", "no")
    return _Seen("fair", "yes", "promise deadlines from measurements on the machine that will run it")


@_check("steal time", "time that the hypervisor gave to another machine while this one wanted it")
def _look_at_steal(root: Path) -> _Seen:
    # proc(5): cpu user nice system idle iowait irq softirq steal ...
    times = [int(field) for field in _text(root, "proc/stat").splitlines()[0].split()[1:9]]
    total = sum(times)
    wanted = total - times[3] - times[4]
    ratio = times[7] / wanted if wanted else 0.0
    value = f"{ratio:.2%} of busy time since boot"
    if ratio <= 0.002:
        return _Seen("good", value)
    return _Seen("fair" if ratio <= 0.02 else "poor", value, "use dedicated cores, or a machine of your own")


@_check("real-time priority", "with it the kernel lets nothing else go before a frame that is due")
def _look_at_realtime(root: Path) -> _Seen:
    if not hasattr(os, "sched_setscheduler"):
        return _Seen("unknown", "this system has no SCHED_FIFO")
    if realtime_priority_permitted():
        runtime_us = int(_text_or(root, "proc/sys/kernel/sched_rt_runtime_us", "-1"))
        period_us = int(_text_or(root, "proc/sys/kernel/sched_rt_period_us", "1000000"))
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
    status = dict(line.split(":", 1) for line in _text_or(root, "proc/self/status").splitlines() if ":" in line)
    if soft == resource.RLIM_INFINITY or int(status.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1:
        return _Seen("good", "no limit")
    value = f"at most {soft / 2**20:.0f} MiB"
    remedy = 'echo "$USER - memlock unlimited" | sudo tee -a /etc/security/limits.d/framefit.conf, then log in again'
    return _Seen("good", value) if soft >= 2**30 else _Seen("fair", value, remedy)


@_check("kernel preemption", "how long the kernel itself may keep a due thread waiting")
def _look_at_preemption(root: Path) -> _Seen:
    version = _text(root, "proc/version")
    remedy = "kernel command line: preempt=full (or boot a PREEMPT_RT kernel)"
    if _text_or(root, "sys/kernel/realtime") == "1" or "PREEMPT_RT" in version:
        return _Seen("good", "PREEMPT_RT")
    if "PREEMPT_DYNAMIC" in version:
        # The file marks the mode with parentheses; only root may read it.
        modes = _text_or(root, "sys/kernel/debug/sched/preempt")
        chosen = [word[8:] for word in _text_or(root, "proc/cmdline").split() if word.startswith("preempt=")]
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
    late = Percentiles.of(wake_up_lateness_ns())
    slack = _text_or(root, "proc/self/timerslack_ns")
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
    source = _text_or(root, "sys/devices/system/clocksource/clocksource0/current_clocksource", "source unknown")
    value = f"{source}, smallest step {step} ns"
    if step == 0 or step > 1_000:
        return _Seen("poor", value, "kernel command line: clocksource=tsc tsc=reliable (x86)")
    return _Seen("good", value)


@_check("CPU quota", "a container that has used its quota stands still until the next period")
def _look_at_quota(root: Path) -> _Seen:
    quota = _cpu_quota(root)
    if quota is None:
        return _Seen("good", "none")
    cores = len(available_cores())
    value = f"{quota:g} of {cores} cores"
    if quota >= cores:
        return _Seen("good", value)
    return _Seen("poor", value, f"give whole cores instead: docker run --cpuset-cpus={default_core()}, without --cpus")


def _cpu_quota(root: Path) -> float | None:
    """The tightest CPU quota of this process's control groups, in cores.

    Raises:
        OSError: the system has no control groups.
    """
    quotas: list[float] = []
    for line in _text(root, "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers  # version 2 has no controllers here
        deepest = top / group.strip("/")
        for folder in (deepest, *deepest.parents):
            # A limit counts at every level; inside a container only the lower levels are seen.
            maximum = _text_or(folder, "cpu.max").split()
            if not maximum:
                maximum = [_text_or(folder, "cpu.cfs_quota_us"), _text_or(folder, "cpu.cfs_period_us")]
            if maximum[0] not in ("", "max", "-1"):
                quotas.append(int(maximum[0]) / int(maximum[1]))
            if folder == top:
                break
    return min(quotas, default=None)


@_check("swap", "memory that was paged out costs milliseconds when touched")
def _look_at_swap(root: Path) -> _Seen:
    # proc(5): filename type size used priority, in KiB
    areas = [line.split() for line in _text(root, "proc/swaps").splitlines()[1:]]
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


@_check("disk", "compiled segments and latency tables are kept in the cache folder")
def _look_at_disk(root: Path) -> _Seen:  # noqa: ARG001 - one form for all
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    value = f"{free / 2**30:.1f} GiB free for {folder}"
    if free >= 2**30:
        return _Seen("good", value)
    return _Seen("fair" if free >= 2**28 else "poor", value, "free some space, or set FRAMEFIT_CACHE to another folder")
