"""What this machine is and permits."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from devices.machines import JETSON, RK3588, XEON, system
from framefit import InputError
from framefit.devices import host

pytestmark = pytest.mark.timed

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")

CORTEX = "processor\t: 0\nFeatures\t: fp asimd asimddp sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


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


def test_all_cores_count_without_affinity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the platform has no affinity, every core is available."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert host.available_cores() == (0, 1, 2)
    assert host.default_core(tmp_path) == 2


def test_the_parts_of_all_cores_are_facts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A board may have two kinds of cores, caps on their clocks, and modes of its power."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    facts = host.fingerprint(system(tmp_path / "rock", RK3588))
    assert facts["cpu"] == "Radxa ROCK 5B, 0-3: 0x41 0xd05 0, 4-7: 0x41 0xd0b 0"
    assert facts["clock_cap_khz"] == "0-3: 1800000, 4-7: 2256000"
    assert "power_mode" not in facts
    facts = host.fingerprint(system(tmp_path / "jetson", JETSON))
    assert facts["cpu"] == "NVIDIA Jetson Orin Nano Developer Kit, 0x41 0xd42 0"
    assert (facts["clock_cap_khz"], facts["power_mode"]) == ("1510400", "pmode:0002")


def test_the_last_of_the_fastest_cores_is_the_default_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of those that this process may use."""
    root = system(tmp_path, RK3588)
    monkeypatch.setattr(host, "available_cores", lambda: tuple(range(8)))
    assert host.default_core(root) == 7
    monkeypatch.setattr(host, "available_cores", lambda: (1, 2, 4))
    assert host.default_core(root) == 4
    monkeypatch.setattr(host, "available_cores", lambda: (1, 2))
    assert host.default_core(root) == 2


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


def test_wake_up_lateness_has_one_value_a_sleep() -> None:
    """No sleep ends before its deadline, and the first one is not counted."""
    lateness = host.wake_up_lateness_ns(sleeps=3, period_ns=500_000)
    assert len(lateness) == 3
    assert min(lateness) >= 0


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
    if host.flushes_denormals():
        assert inside == 0
        assert seen == [0.0]


class TestThreadState:
    """What a thread of this process is at."""

    def test_tells_work_from_waiting(self) -> None:
        """One that computes could run and spends time; one that waits does neither; one that ended is unknown."""
        stop, go = threading.Event(), threading.Event()

        def work() -> None:
            while not stop.is_set():
                pass

        threads = [threading.Thread(target=work), threading.Thread(target=go.wait)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        busy, idle = (thread.ident or 0 for thread in threads)
        while host.thread_state(busy)[1] < 50_000_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        (runs, worked_ns), (waits, rested_ns) = host.thread_state(busy), host.thread_state(idle)
        stop.set()
        go.set()
        for thread in threads:
            thread.join()
        assert worked_ns >= 50_000_000
        assert runs
        assert not waits
        assert rested_ns < 50_000_000
        assert host.thread_state(busy) == (False, 0)


@pytest.mark.parametrize(
    ("flags", "saturates"),
    [
        ("sse4_2 ssse3 avx2", True),
        ("ssse3 avx2 avx_vnni", False),
        ("ssse3 avx512f avx512_vnni", False),
        ("asimd", False),
    ],
)
def test_int8_kernels_that_saturate_are_known(tmp_path: Path, flags: str, *, saturates: bool) -> None:
    """On x86 without VNNI; ARM's kernels add in 32 bits."""
    key = "Features" if flags == "asimd" else "flags"
    assert host.sums_of_products_saturate(system(tmp_path, {"proc/cpuinfo": f"{key} : {flags}"})) == saturates
