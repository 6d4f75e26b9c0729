"""This machine: the facts that determine its speed, and what it permits.

Linux provides most of them; elsewhere the same functions return "unknown" where nothing can be read.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from framefit.devices.clock import RealClock
from framefit.errors import InputError

__all__ = [
    "at_realtime_priority",
    "available_cores",
    "cpuinfo",
    "fingerprint",
    "flushed_denormals",
    "format_cores",
    "isolated_cores",
    "on_other_cores",
    "pinned",
    "realtime_priority_permitted",
    "reserved_cores",
    "steal_time_reader",
    "thread_state",
]


logger = logging.getLogger(__name__)
_T = TypeVar("_T")
ROOT = Path("/")
CPU_FOLDER = "sys/devices/system/cpu"


# Extensions for which ONNX Runtime (MLAS) and numpy have kernels of their own.
_SIMD = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),  # x86
    *("neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme"),  # ARM  # codespell:ignore sme
)
_HYPERVISORS = ("qemu", "kvm", "vmware", "virtualbox", "xen", "firecracker", "virtual machine", "amazon ec2", "google")
_STAT_CELLS = 13  # of /proc/PID/stat behind the name, up to the system time (proc(5))
# Word of glibc's fenv_t with a thread's mode, and the bits that make denormals zero.
_FLUSHING = {
    "x86_64": (7, 1 << 15 | 1 << 6),  # MXCSR, behind 28 bytes of x87 state: results, operands
    "aarch64": (0, 1 << 24 | 1 << 19),  # FPCR: FZ, and FZ16 for half precision
}


# Affinities that pinned() has narrowed and will restore: those cores are still available.
_set_aside: list[frozenset[int]] = []


def read_text(root: Path, path: str) -> str:
    """Read a file's stripped text.

    Raises:
        OSError: the file does not exist, or must not be read.
    """
    return (root / path).read_text(errors="replace").strip("\0\n ")


def read_text_or(root: Path, path: str, default: str = "") -> str:
    """Read a file's stripped text, or return ``default`` where it cannot be read."""
    try:
        return read_text(root, path)
    except OSError:
        return default


# Facts


def cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's block of ``/proc/cpuinfo``; reading all blocks takes long on a big machine."""
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
    board = read_text_or(root, "proc/device-tree/model")
    parts = [text for text in (cpu.get("model name", ""), cpu.get("isa", ""), board, _core_parts(root)) if text]
    return ", ".join(parts) or platform.processor() or "unknown"


def _core_parts(root: Path) -> str:
    """Implementer, part and revision of each core on ARM, where a board may have several kinds of cores."""
    parts: dict[int, str] = {}
    core = 0
    for line in read_text_or(root, "proc/cpuinfo").splitlines():
        key, _, value = (text.strip() for text in line.partition(":"))
        if key == "processor":
            core = int(value)
        elif key in ("CPU implementer", "CPU part", "CPU revision"):
            parts[core] = f"{parts.get(core, '')} {value}".strip()
    return _by_core(parts)


def _clock_caps(root: Path) -> str:
    """The highest clock that each core may have, in kHz."""
    cores = range(os.cpu_count() or 1)
    caps = {core: read_text_or(root, f"{CPU_FOLDER}/cpu{core}/cpufreq/scaling_max_freq") for core in cores}
    return _by_core({core: text for core, text in caps.items() if text})


def _by_core(texts: Mapping[int, str]) -> str:
    """What is said of cores: "1800000", or where they differ "0-3: 1800000, 4-7: 2256000"."""
    cores: dict[str, list[int]] = {}
    for core, text in texts.items():
        cores.setdefault(text, []).append(core)
    if len(cores) < 2:
        return next(iter(cores), "")
    return ", ".join(f"{format_cores(numbers)}: {text}" for text, numbers in cores.items())


def _power_mode(root: Path) -> str:
    """The mode that limits the whole board's power: of a Jetson ("pmode:0002"), or of the firmware ("balanced")."""
    return read_text_or(root, "var/lib/nvpmodel/status") or read_text_or(root, "sys/firmware/acpi/platform_profile")


def virtualised(root: Path, cpu: dict[str, str]) -> bool:
    """Whether a hypervisor runs below this kernel."""
    if "hypervisor" in cpu.get("flags", "").split():
        return True
    if (root / "sys/hypervisor/type").exists() or (root / "proc/device-tree/hypervisor").exists():
        return True
    dmi = " ".join(read_text_or(root, f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")).lower()
    return any(name in dmi for name in _HYPERVISORS) and ".metal" not in dmi


@functools.cache
def _version(*distributions: str) -> str:
    """Version of the first distribution that is installed, without importing it."""
    from importlib import metadata  # takes 40 ms, and is only needed here

    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


def sums_of_products_saturate(root: Path = ROOT) -> bool:
    """Whether sums of two products of unsigned and signed bytes overflow in this processor's int8 kernels.

    So on x86 without VNNI: VPMADDUBSW adds pairs of products in 16 bits (Intel, "Intrinsics Guide"). Weights of 7 bits
    keep these sums exact.
    """
    flags = set(cpuinfo(root).get("flags", "").split())
    return "ssse3" in flags and not flags & {"avx_vnni", "avx512_vnni"}


@functools.cache
def _facts(root: Path) -> tuple[tuple[str, str | int | float | bool], ...]:
    cpu = cpuinfo(root)
    flags = set((cpu.get("flags") or cpu.get("Features") or "").split())
    limits = ("clock_cap_khz", _clock_caps(root)), ("power_mode", _power_mode(root))
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
        ("virtualised", virtualised(root, cpu)),
        *((name, fact) for name, fact in limits if fact),
    )


def fingerprint(root: Path = ROOT) -> dict[str, str | int | float | bool]:
    """Facts that determine the speed of programs; the same for every process of this machine.

    Args:
        root: folder of ``/proc`` and ``/sys``.

    Returns:
        ``cpu`` (model; x86: family, model, stepping; ARM: the board, and the part of each core), ``cores`` (of the
        machine), ``machine`` (architecture), ``simd`` (extensions, separated by spaces), ``os``, ``kernel``,
        ``python``, ``numpy``, ``onnxruntime``, ``virtualised``; "unknown" for what the system does not say. Where
        the system says them ``clock_cap_khz`` (of each core) and ``power_mode``.
    """
    return dict(_facts(root))


# Cores


def available_cores() -> tuple[int, ...]:
    """Cores that this process may run on, ascending, including those that :func:`pinned` excludes."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0).union(*_set_aside)))
    return tuple(range(os.cpu_count() or 1))


def default_core(root: Path = ROOT) -> int:
    """The last of the fastest available cores: interrupts and other programs mostly use the first ones.

    Where cores differ the kernel says how fast each is (``cpu_capacity``).
    """

    def capacity(core: int) -> int:
        text = read_text_or(root, f"{CPU_FOLDER}/cpu{core}/cpu_capacity")
        return int(text) if text.isdecimal() else 0

    return max(available_cores(), key=lambda core: (capacity(core), core))


def isolated_cores(root: Path = ROOT) -> tuple[int, ...]:
    """Cores that the kernel's scheduler does not use; a process runs there only if it asks for one."""
    return parse_cores(read_text_or(root, f"{CPU_FOLDER}/isolated"))


def parse_cores(listing: str) -> tuple[int, ...]:
    """Cores in the kernel's notation: "0-2,5" is 0, 1, 2, 5."""
    cores: list[int] = []
    for part in filter(None, listing.split(",")):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def format_cores(cores: Iterable[int]) -> str:
    """Write ascending cores in the same notation."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or "none"


@functools.cache
def _warn_of_no_affinity() -> None:
    """Warn once for each process."""
    logger.warning("%s does not let a thread choose its core: durations vary more", platform.system())


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep the calling thread on one core, and restore its affinity in the end.

    Threads started meanwhile inherit the core. Where the platform has no affinity, it does nothing but warn once.

    Args:
        core: an available core, or one that the kernel isolates.

    Raises:
        InputError: this process may not run on ``core``.
    """
    if not hasattr(os, "sched_setaffinity"):
        _warn_of_no_affinity()
        yield
        return
    permitted = sorted({*available_cores(), *isolated_cores()})
    before = frozenset(os.sched_getaffinity(0))
    refused = InputError(
        f"core {core} is not available",
        where="$.cores",
        remedy=f"choose from the available cores: {format_cores(permitted)}",
    )
    if core not in permitted:
        raise refused
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:  # the core is isolated, and not in this container's set
        raise refused from error
    _set_aside.append(before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        _set_aside.remove(before)


@contextlib.contextmanager
def on_other_cores() -> Iterator[None]:
    """Move the calling thread to the available cores that it is not pinned to, if there are any, for a while."""
    before = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else frozenset()
    with _moved_to(frozenset(available_cores()) - before):
        yield


def without_priority() -> None:
    """Give up a real-time priority that the calling thread has from the one that started it."""
    if hasattr(os, "SCHED_OTHER"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def keep_off(cores: Collection[int]) -> None:
    """Keep the calling thread off cores, if there are others, and without a real-time priority."""
    without_priority()
    others = set(available_cores()) - set(cores)
    if others and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, others)


@contextlib.contextmanager
def unpinned() -> Iterator[None]:
    """Let the calling thread use all available cores for a while; threads that are started meanwhile inherit them."""
    with _moved_to(frozenset(available_cores())):
        yield


@contextlib.contextmanager
def _moved_to(cores: frozenset[int]) -> Iterator[None]:
    """Move the calling thread to these cores, if there are any and it can be moved."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def reserved_cores(cores: Collection[int], but: int) -> Iterator[bool]:
    """Reserve cores for one thread: move other threads of this process to other cores, for a while (Linux).

    Args:
        cores: reserved for one thread, and for those that it starts from now on.
        but: native identifier of that thread.

    Yields:
        Whether no other thread of this process is left on them; a thread that may not run elsewhere stays.
    """
    moved: dict[int, frozenset[int]] = {}
    free = hasattr(os, "sched_setaffinity") and Path("/proc/self/task").is_dir()
    for thread in [int(entry.name) for entry in Path("/proc/self/task").iterdir()] if free else []:
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            before = frozenset(os.sched_getaffinity(thread))
            if thread == but or before.isdisjoint(cores):
                continue
            if before.issubset(cores):
                free = False
                continue
            os.sched_setaffinity(thread, before.difference(cores))
            moved[thread] = before
            _set_aside.append(before)
    try:
        yield free
    finally:
        for thread, before in moved.items():
            _set_aside.remove(before)
            with contextlib.suppress(ProcessLookupError):
                if os.sched_getaffinity(thread) == before.difference(cores):  # else the program has changed it
                    os.sched_setaffinity(thread, before)


# Permissions, tested by trying


def thread_state(thread: int) -> tuple[bool, int]:
    """Whether a thread of this process runs or is ready, and its processor time (Linux; elsewhere no, 0).

    Args:
        thread: identifier of the thread, which may have ended.

    Returns:
        Whether it only waits for a core, and nanoseconds, in ticks of 10 ms.
    """
    native = next(
        (thread_object.native_id for thread_object in threading.enumerate() if thread_object.ident == thread), None
    )
    cells = read_text_or(ROOT, f"proc/self/task/{native}/stat").rpartition(")")[2].split()  # names vary
    if len(cells) < _STAT_CELLS:
        return False, 0
    return cells[0] == "R", (int(cells[11]) + int(cells[12])) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def steal_time_reader(core: int) -> Callable[[], int] | None:
    """Make a function that reads for how long a virtual machine's host kept a core from running, in ns since boot.

    The kernel counts it ("steal") in ticks of 10 ms. ``None``: it is not known.
    """
    label, path = f"cpu{core} ".encode(), ROOT / "proc/stat"
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


_Environment = ctypes.Array[ctypes.c_uint32]


@functools.cache
def _libm() -> tuple[ctypes.CDLL, int, int] | None:
    """The library that sets a thread's floating-point environment, and the word and bits there that flush denormals.

    ``None``: this is not x86-64 or aarch64 with glibc.
    """
    if platform.machine() not in _FLUSHING or not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL("libm.so.6"), *_FLUSHING[platform.machine()]
    except OSError:  # another C library
        return None


def flushes_denormals() -> bool:
    """Whether :func:`flushed_denormals` has an effect on this machine."""
    return _libm() is not None


def _environment(libm: ctypes.CDLL) -> _Environment:
    """The calling thread's fenv_t, or what begins with it."""
    environment = (ctypes.c_uint32 * 8)()
    libm.fegetenv(environment)
    return environment


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Let the calling thread, and threads that it starts, treat denormal numbers as zero (x86-64, aarch64; glibc).

    Denormals take up to 100 times as long. ONNX Runtime's own option sets this once for each process, on the
    thread that makes the first session, and never resets it. If that option is off the runtime resets the mode
    in the same way: sessions are made within :func:`kept_denormals`.
    """
    known = _libm()
    if known is None:
        yield
        return
    libm, word, bits = known
    before, during = _environment(libm), _environment(libm)
    during[word] |= bits
    libm.fesetenv(during)
    try:
        yield
    finally:
        libm.fesetenv(before)


@contextlib.contextmanager
def kept_denormals() -> Iterator[None]:
    """Restore the calling thread's treatment of denormals at the end, whatever a library does meanwhile.

    The first session of ONNX Runtime in a process makes its thread compute with denormals.
    """
    known = _libm()
    if known is None:
        yield
        return
    libm, word, bits = known
    before = _environment(libm)[word] & bits
    try:
        yield
    finally:
        after = _environment(libm)
        if after[word] & bits != before:
            after[word] = after[word] & ~bits | before
            libm.fesetenv(after)


@contextlib.contextmanager
def at_realtime_priority() -> Iterator[None]:
    """Give the calling thread precedence over those of other programs (``SCHED_FIFO``); needs permission."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def realtime_priority_permitted() -> bool:
    """Whether a thread may have real-time priority (``SCHED_FIFO``), tested with a short thread."""
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


def wake_up_lateness_ns(sleeps: int = 100, period_ns: int = 2_000_000) -> tuple[int, ...]:
    """Measure how late a sleeping thread of :func:`default_core` wakes up, by its most precise timer.

    Args:
        sleeps: number of sleeps; the first one is not counted.
        period_ns: time between two deadlines, on an absolute grid.

    Returns:
        Wake-up minus deadline of each sleep, in order.
    """

    def sleep_repeatedly() -> tuple[int, ...]:
        lateness = []
        with pinned(default_core()):
            RealClock.sharpen()
            start = time.perf_counter_ns()
            for index in range(1, sleeps + 2):
                deadline = start + index * period_ns
                time.sleep(max(0, deadline - time.perf_counter_ns()) / 1e9)
                lateness.append(time.perf_counter_ns() - deadline)
        return tuple(lateness[1:])

    return _in_own_thread(sleep_repeatedly)


def _in_own_thread(work: Callable[[], _T]) -> _T:
    """Run ``work`` in a new thread, so that priority, affinity and timer slack end with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
