"""The device that takes given times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from devices.conformance import DeviceConformance, arrays_for, small_network
from framefit.core.target import Target, Unit
from framefit.devices.clock import RealClock, VirtualClock
from framefit.devices.device import Device
from framefit.devices.npu import Jitter, NpuDevice
from framefit.errors import DeviceError

TARGET = Target(
    name="board",
    kind="npu",
    units=(Unit(name="npu0", preemptive=False, core=7), Unit(name="npu1", preemptive=False, core=9)),
)
LABELS = ("net", "net.0", "net.1", "a", "b", "first", "second")


class TestNpuDevice(DeviceConformance):
    """It keeps the protocol, on virtual time."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> Device:  # noqa: ARG002  # nothing to keep
        """Each label takes its place in the list, in microseconds."""
        durations = {label: 1000 * (place + 1) for place, label in enumerate(LABELS)}
        return NpuDevice(TARGET, durations, VirtualClock(50), trace_events=trace_events)

    def test_fusions_are_groups_of_nodes(self, device: Device) -> None:
        """Where only durations are known, nothing is fused."""
        assert device.fusions(small_network()) == ()


class TestNpuDeviceInRealTime(TestNpuDevice):
    """And on the machine's clock."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> Device:  # noqa: ARG002  # nothing to keep
        """Every label takes 0.2 ms."""
        return NpuDevice(TARGET, dict.fromkeys(LABELS, 200_000), RealClock(), trace_events=trace_events)

    def test_takes_at_least_the_time_told(self, device: Device) -> None:
        """A launch is never shorter than its duration."""
        model = small_network()
        binding = device.compile(model, "npu0", "net").bind(arrays_for(model))
        assert all(device.submit(binding).duration_ns >= 200_000 for _ in range(10))


def durations(jitter: Jitter, count: int, seed: int = 0, duration_ns: int = 10_000_000) -> np.ndarray:
    """What launches of one label take."""
    device = NpuDevice(TARGET, {"net": duration_ns}, VirtualClock(), jitter=jitter, seed=seed)
    binding = device.handle("net", "npu0").bind({})
    return np.asarray([device.submit(binding).duration_ns for _ in range(count)])


def test_without_jitter_every_launch_takes_its_duration() -> None:
    """Exactly, to the nanosecond."""
    assert set(durations(Jitter(), 100).tolist()) == {10_000_000}


def test_jitter_is_log_normal() -> None:
    """The logarithm has median 0 and the given sigma; its quantiles are the normal distribution's."""
    logs = np.log(durations(Jitter(sigma=0.02, most_ratio=0.5), 40_000) / 10e6) / 0.02
    assert np.median(logs) == pytest.approx(0, abs=0.03)
    assert logs.std() == pytest.approx(1, abs=0.02)
    for quantile, expected in ((0.0228, -2.0), (0.1587, -1.0), (0.8413, 1.0), (0.9772, 2.0), (0.99, 2.326)):
        assert np.quantile(logs, quantile) == pytest.approx(expected, abs=0.08)


def test_jitter_is_cut_above() -> None:
    """No launch exceeds the cut; what would have done so takes just that long, and short ones stay as they are."""
    free, cut = durations(Jitter(sigma=0.1, most_ratio=10), 5000), durations(Jitter(sigma=0.1, most_ratio=0.1), 5000)
    assert cut.max() == 11_000_000
    assert (cut == np.minimum(free, 11_000_000)).all()
    assert 0.1 < (cut == 11_000_000).mean() < 0.25  # normal: 17 % above 0.953 sigma


def test_the_seed_decides() -> None:
    """The same seed gives the same durations, another one others."""
    jitter = Jitter(sigma=0.02)
    assert (durations(jitter, 5000, seed=3) == durations(jitter, 5000, seed=3)).all()
    assert (durations(jitter, 5000, seed=3) != durations(jitter, 5000, seed=4)).mean() > 0.9


def test_units_have_their_own_core_in_the_trace() -> None:
    """Packets carry the core of the unit that ran the launch."""
    device = NpuDevice(TARGET, {"a": 5, "b": 7}, VirtualClock())
    for label, unit in (("a", "npu1"), ("b", "npu0"), ("a", "npu0")):
        device.submit(device.handle(label, unit).bind({}))
    trace = device.events()
    assert trace.core.tolist() == [9, 9, 7, 7, 7, 7]
    assert trace.time_ns.tolist() == [0, 5, 5, 12, 12, 17]


def test_an_unknown_label_is_refused() -> None:
    """A label without a duration is an error that names it, not a launch of no length."""
    device = NpuDevice(TARGET, {"a": 5}, VirtualClock())
    with pytest.raises(DeviceError, match="no duration is known for 'b'") as error:
        device.compile(small_network(), "npu0", "b")
    assert error.value.where == "board"
