"""What this machine permits, and what would help."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.machines import GOOD, system
from framefit.core.run_record import Finding
from framefit.devices import host
from framefit.devices.diagnosis import diagnose


@pytest.fixture(autouse=True)
def two_quiet_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 0 and 1, and sleeps that take no time."""
    monkeypatch.setattr(host, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(host, "wake_up_lateness_ns", lambda: (40_000, 50_000))


def finding(root: Path, topic: str) -> Finding:
    """The diagnosis of one topic."""
    return next(finding for finding in diagnose(root) if finding.topic == topic)


class TestDiagnose:
    """What a machine permits."""

    def test_finds_a_good_machine_good(self, tmp_path: Path) -> None:
        """Each topic that the folder describes is good, and needs no remedy."""
        bad = [
            found
            for found in diagnose(system(tmp_path, GOOD))
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
        empty = diagnose(tmp_path / "empty")
        malformed = diagnose(system(tmp_path / "malformed", dict.fromkeys(GOOD, "(none) -")))
        assert [f.topic for f in empty] == [f.topic for f in malformed]
        assert {f.topic for f in empty if f.status == "unknown"} >= {"load", "swap", "steal time", "CPU quota"}
        assert {f.topic for f in malformed if f.status == "unknown"} >= {"load", "steal time", "CPU quota"}
