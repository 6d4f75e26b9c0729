"""What this machine is and permits."""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from framefit.core.results import Finding
from framefit.devices import host
from framefit.errors import InputError

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")

XEON = """processor\t: 0
model name\t: Some CPU
cpu family\t: 6
model\t\t: 143
stepping\t: 8
flags\t\t: fpu sse4_2 avx2 avx512f amx_tile

processor\t: 1
model name\t: Another CPU
"""
CORTEX = "processor\t: 0\nFeatures\t: fp asimd asimddp sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"

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


@pytest.fixture(autouse=True)
def two_quiet_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 0 and 1, and sleeps that take no time."""
    monkeypatch.setattr(host, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(host, "wake_up_lateness_ns", lambda: (40_000, 50_000))


def system(root: Path, files: dict[str, str]) -> Path:
    """A folder that looks like a Linux system."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def finding(root: Path, topic: str) -> Finding:
    """The diagnosis of one topic."""
    return next(finding for finding in host.diagnose(root) if finding.topic == topic)


class TestFingerprint:
    """What decides the speed."""

    def test_names_what_decides_the_speed(self, tmp_path: Path) -> None:
        """The first processor's model, numbers and relevant extensions are read."""
        facts = host.fingerprint(system(tmp_path, {"proc/cpuinfo": XEON}))
        assert facts["cpu"] == "Some CPU (6 143 8)"
        assert facts["simd"] == "sse4_2 avx2 avx512f amx_tile"
        assert facts["virtualised"] is False
        assert "unknown" not in (facts["numpy"], facts["onnxruntime"])

    def test_reads_an_arm_board(self, tmp_path: Path) -> None:
        """An ARM core is named by its board and part numbers."""
        facts = host.fingerprint(system(tmp_path, {"proc/cpuinfo": CORTEX, "proc/device-tree/model": "Board 5\0"}))
        assert facts["cpu"] == "Board 5, 0x41 0xd40"
        assert facts["simd"] == "asimd asimddp sve"

    def test_says_unknown_where_nothing_can_be_read(self, tmp_path: Path) -> None:
        """Without /proc there is still a fingerprint with every key."""
        facts = host.fingerprint(tmp_path)
        assert facts["simd"] == "unknown"
        assert facts.keys() == host.fingerprint().keys()

    def test_cannot_be_changed_by_its_reader(self, tmp_path: Path) -> None:
        """Each caller gets a dictionary of its own."""
        host.fingerprint(tmp_path)["cpu"] = "mine"
        assert host.fingerprint(tmp_path)["cpu"] != "mine"

    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            ({"proc/cpuinfo": "flags : fpu hypervisor"}, True),
            ({"sys/class/dmi/id/sys_vendor": "QEMU"}, True),
            ({"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "c7i.metal-24xl"}, False),
            ({"sys/hypervisor/type": "xen"}, True),
        ],
    )
    def test_tells_virtual_machines(self, tmp_path: Path, files: dict[str, str], expected: bool) -> None:
        """A hypervisor shows in the processor's flags, the firmware's names or the kernel's folder."""
        assert host.fingerprint(system(tmp_path, files))["virtualised"] is expected


@needs_affinity
class TestPinned:
    """A thread kept on one core."""

    @pytest.fixture(autouse=True)
    def real_cores(self, monkeypatch: pytest.MonkeyPatch, two_quiet_cores: None) -> None:  # noqa: ARG002 - after it
        """The machine's own cores again."""
        monkeypatch.undo()

    def test_pins_and_restores(self) -> None:
        """Inside there is one core; afterwards the affinity is what it was."""
        before = os.sched_getaffinity(0)
        with host.pinned(host.default_core()):
            assert os.sched_getaffinity(0) == {host.default_core()}
        assert os.sched_getaffinity(0) == before

    def test_restores_after_an_error(self) -> None:
        """An exception inside leaves no thread pinned."""
        before = os.sched_getaffinity(0)
        with pytest.raises(RuntimeError), host.pinned(host.default_core()):
            raise RuntimeError
        assert os.sched_getaffinity(0) == before

    def test_leaves_other_cores_available(self) -> None:
        """Pinning narrows neither what is available, nor what a thread started inside may pin to."""
        cores, seen = host.available_cores(), []

        def other() -> None:
            with host.pinned(cores[0]):
                seen.append(os.sched_getaffinity(0))

        with host.pinned(cores[-1]):
            assert host.available_cores() == cores
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert seen == [{cores[0]}]

    def test_refuses_a_core_that_is_not_there(self) -> None:
        """The error names the core, the key and the cores to choose from."""
        with pytest.raises(InputError, match="core 9999") as caught, host.pinned(9999):
            pass
        assert caught.value.where == "$.cores"
        assert str(host.default_core()) in (caught.value.remedy or "")


def test_pinned_warns_once_without_affinity(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where the platform cannot pin, work goes on and the log says so once."""
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    host._warn_of_no_affinity.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with host.pinned(1):
                pass
    assert len(caplog.records) == 1


def test_all_cores_count_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the platform has no affinity, every core is available."""
    monkeypatch.undo()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert host.available_cores() == (0, 1, 2)
    assert host.default_core() == 2


class TestRealtimePriority:
    """Whether it is permitted."""

    def test_is_tried_and_given_back(self) -> None:
        """The caller's own scheduling policy stays as it was."""
        if not hasattr(os, "sched_getscheduler"):
            pytest.skip("this system has no scheduling policies")
        before = os.sched_getscheduler(0)
        host.realtime_priority_permitted()
        assert os.sched_getscheduler(0) == before

    def test_is_not_permitted_where_the_kernel_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A refusal is an answer, no error."""

        def refuse(*arguments: object) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
        assert host.realtime_priority_permitted() is False


def test_wake_up_lateness_has_one_value_a_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sleep ends before its deadline, and the first one is not counted."""
    monkeypatch.undo()
    lateness = host.wake_up_lateness_ns(sleeps=3, period_ns=500_000)
    assert len(lateness) == 3
    assert min(lateness) >= 0


class TestDiagnose:
    """What a machine permits."""

    def test_finds_a_good_machine_good(self, tmp_path: Path) -> None:
        """Each topic that the folder describes is good, and needs no remedy."""
        bad = [
            found
            for found in host.diagnose(system(tmp_path, GOOD))
            if found.topic not in ("real-time priority", "memory locking", "disk") and found.status != "good"
        ]
        assert bad == []

    @pytest.mark.parametrize(
        ("topic", "files", "status", "value"),
        [
            ("cores", {"sys/devices/system/cpu/isolated": ""}, "fair", "isolated: none"),
            ("load", {"proc/loadavg": "1.90 1 1 3/95 1"}, "poor", "others running now: 2"),
            (
                "SMT siblings",
                {"sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "0-1"},
                "fair",
                "core 1 shares its units with core 0",
            ),
            (
                "frequency governor",
                {"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave"},
                "poor",
                "powersave",
            ),
            (
                "frequency governor",
                {
                    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave",
                    "sys/devices/system/cpu/cpu1/cpufreq/scaling_driver": "intel_pstate",
                },
                "fair",
                "powersave",
            ),
            ("turbo", {"sys/devices/system/cpu/intel_pstate/no_turbo": "0"}, "fair", "on"),
            ("virtualised", {"proc/cpuinfo": "flags : hypervisor"}, "fair", "yes"),
            ("steal time", {"proc/stat": "cpu 90 0 0 1000 50 0 0 10 0 0"}, "poor", "10.00% of busy time"),
            ("kernel preemption", {"proc/version": "Linux #1 SMP"}, "fair", "none or voluntary"),
            (
                "kernel preemption",
                {"proc/version": "#1 SMP PREEMPT_DYNAMIC", "proc/cmdline": "ro preempt=full"},
                "good",
                "full",
            ),
            (
                "kernel preemption",
                {
                    "proc/version": "#1 SMP PREEMPT_DYNAMIC",
                    "sys/kernel/debug/sched/preempt": "none (voluntary) full lazy",
                },
                "fair",
                "voluntary",
            ),
            ("kernel preemption", {"proc/version": "#1 SMP PREEMPT_DYNAMIC"}, "unknown", "not readable"),
            ("CPU quota", {"sys/fs/cgroup/app/cpu.max": "150000 100000"}, "poor", "1.5 of 2 cores"),
            (
                "CPU quota",
                {
                    "proc/self/cgroup": "4:cpu,cpuacct:/a/b",
                    "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                    "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
                },
                "poor",
                "0.5 of 2 cores",
            ),
            ("swap", {"proc/swaps": "Filename Type\n/swap file 4096 0 -2"}, "fair", "0 MiB used"),
            ("swap", {"proc/swaps": "Filename Type\n/swap file 4096 2048 -2"}, "poor", "2 MiB used"),
        ],
    )
    def test_names_what_is_wrong(
        self, tmp_path: Path, topic: str, files: dict[str, str], status: str, value: str
    ) -> None:
        """One thing changed on a good machine shows under its topic, with a remedy unless it is good."""
        found = finding(system(tmp_path, GOOD | files), topic)
        assert found.status == status
        assert value in found.value
        assert (found.remedy is None) == (status == "good")

    @pytest.mark.parametrize(
        ("late_ns", "status"), [((50_000,) * 100, "good"), ((500_000,) * 100, "fair"), ((2_000_000,) * 100, "poor")]
    )
    def test_judges_wake_ups(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_ns: tuple[int, ...], status: str
    ) -> None:
        """Lateness that the clock's spin hides is good; a millisecond is not."""
        monkeypatch.setattr(host, "wake_up_lateness_ns", lambda: late_ns)
        assert finding(tmp_path, "wake-up lateness").status == status

    def test_never_raises(self, tmp_path: Path) -> None:
        """Missing and malformed files make unknowns, each with its topic."""
        empty = host.diagnose(tmp_path / "empty")
        malformed = host.diagnose(system(tmp_path / "malformed", dict.fromkeys(GOOD, "(none) -")))
        assert [f.topic for f in empty] == [f.topic for f in malformed]
        assert {f.topic for f in empty if f.status == "unknown"} >= {"load", "swap", "steal time", "CPU quota"}
        assert {f.topic for f in malformed if f.status == "unknown"} >= {"load", "steal time", "CPU quota"}


def test_denormals_are_zero_only_inside() -> None:
    """Denormal numbers are taken as zero inside the context, in threads started there too, and not after it."""
    tiny = np.full(64, 1e-40, np.float32)

    def total() -> float:
        return float((tiny * np.float32(1)).sum())

    before = total()
    seen: list[float] = []
    with host.flushed_denormals():
        inside = total()
        thread = threading.Thread(target=lambda: seen.append(total()))
        thread.start()
        thread.join()
    assert before > 0
    assert total() == before
    if platform.machine() == "x86_64" and sys.platform == "linux":
        assert inside == 0
        assert seen == [0.0]
