"""A device on which things go wrong, as told."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeDevice
from framefit.core.events import EventType
from framefit.core.faults import Fault
from framefit.core.target import Target, Unit, Variation
from framefit.devices.clock import Clock, RealClock, VirtualClock
from framefit.devices.device import Binding, Device
from framefit.devices.faulty import FaultyDevice
from framefit.devices.npu.device import NpuDevice
from framefit.errors import DeviceError, HangError, LostUnitError
from framefit.testing import DeviceConformance, arrays_for, small_network

UNITS = (Unit(name="npu0", core=0), Unit(name="npu1", core=1))
NOMINAL_NS = 1000


def npu(clock: Clock | None = None, sigma_ratio: float = 0.0) -> NpuDevice:
    """Two units; launches of given duration only."""
    target = Target(name="board", kind="npu", units=UNITS, variation=Variation(sigma_ratio=sigma_ratio))
    return NpuDevice(target, clock or VirtualClock())


def launches(faults: Sequence[Fault], *, device: NpuDevice | None = None) -> tuple[FaultyDevice, dict[str, Binding]]:
    """An armed device, and bindings of two segments of one model and of another one on the other unit."""
    faulty = FaultyDevice(device or npu(), faults)
    labels = {"big.0": "npu0", "big.1": "npu0", "small": "npu1"}
    bound = {label: faulty.timed(label, unit, NOMINAL_NS).bind({}) for label, unit in labels.items()}
    faulty.arm(faulty.clock.now_ns())
    return faulty, bound


class TestFaultyDevice(DeviceConformance):
    """Without faults it keeps the protocol as the device does that it goes by."""

    computes = False

    def make(self, cache: Path, trace_events: int = 1 << 12) -> Device:  # noqa: ARG002  # nothing to keep
        """The tests' own device."""
        nodes = tuple(node for layer in small_network().layers[:3] for node in layer.nodes)
        return FaultyDevice(FakeDevice(trace_events=trace_events, groups=(nodes,), on_host=False))


@pytest.mark.parametrize(
    ("name", "befalls"),
    [
        ("big", {"big.0", "big.1"}),
        ("big.1", {"big.1"}),
        ("npu1", {"small"}),
        ("npu0", {"big.0", "big.1"}),
        ("small", {"small"}),
        ("bi", set()),
    ],
)
def test_what_a_fault_befalls(name: str, befalls: set[str]) -> None:
    """A model's name means all its segments, a label that one, a unit's name whatever runs there."""
    device, bound = launches([Fault(kind="raise", name=name)])
    for label, binding in bound.items():
        if label in befalls:
            with pytest.raises(DeviceError, match=re.escape(label)):
                device.submit(binding)
        else:
            device.submit(binding)


def test_when_a_fault_happens() -> None:
    """From its begin to its end, as often as it says, and not before the device is armed or after it is disarmed."""
    device, bound = launches([Fault(kind="raise", name="big", begin_ns=1500, end_ns=9500, times=2)])

    def attempt() -> bool:
        try:
            return device.submit(bound["big.0"]).duration_ns == NOMINAL_NS
        except DeviceError:
            device.clock.sleep_until_ns(device.clock.now_ns() + NOMINAL_NS)
            return False

    assert [attempt() for _ in range(6)] == [True, True, False, False, True, True]
    device.arm(device.clock.now_ns() - 1500)
    assert not attempt()
    device.disarm()
    assert attempt()
    device.arm(device.clock.now_ns() - 9500)
    assert attempt()


def test_slow_launches_are_slow_in_the_trace_too() -> None:
    """Duration and packets are longer by the ratio; a product where two faults say so; the other unit's stay."""
    faults = [Fault(kind="slow", name="big", amount=1.5), Fault(kind="slow", name="npu0", amount=2.0, begin_ns=1500)]
    device, bound = launches(faults)
    lasted = [device.submit(bound[label]).duration_ns for label in ("big.0", "big.1", "small")]
    assert lasted == [1500, 3000, 1000]
    trace = device.events()
    begun, ended = (trace.time_ns[trace.type == kind] for kind in (EventType.START, EventType.END))
    assert (ended - begun).tolist() == lasted


def test_slow_keeps_the_variation() -> None:
    """Each launch takes the ratio of what it would have taken."""
    plain, slowed = (
        launches(faults, device=npu(sigma_ratio=0.1)) for faults in ([], [Fault(kind="slow", name="big", amount=2.0)])
    )
    for _ in range(20):
        a, b = (device.submit(bound["big.0"]).duration_ns for device, bound in (plain, slowed))
        assert abs(b - 2 * a) <= 1


def test_slow_on_other_devices_is_waited_out() -> None:
    """A launch of a device that cannot be slowed ends later by the ratio."""
    model = small_network()
    device = FaultyDevice(FakeDevice(1000), [Fault(kind="slow", name="net", amount=1.25)])
    binding = device.compile(model, "fake0", "net").bind(arrays_for(model))
    device.arm(0)
    assert device.submit(binding).duration_ns == 1250
    assert device.clock.now_ns() == 1250
    with pytest.raises(DeviceError, match="described device"):
        device.timed("net", "fake0", 1)


@pytest.mark.parametrize(("kind", "value"), [("nan", np.nan), ("inf", np.inf)])
def test_numbers_that_are_none(kind: Any, value: float) -> None:
    """All floats that a launch gives are so, and its time is as ever."""
    model = small_network()
    device = FaultyDevice(FakeDevice(1000), [Fault(kind=kind, name="net", times=1)])
    arrays = arrays_for(model)
    binding = device.compile(model, "fake0", "net").bind(arrays)
    device.arm(0)
    assert device.submit(binding).duration_ns == 1000
    np.testing.assert_array_equal(arrays["pooled"], np.full_like(arrays["pooled"], value))
    arrays["pooled"].fill(0)
    device.submit(binding)
    assert not arrays["pooled"].any()


@pytest.mark.parametrize(
    ("kind", "amount", "takes", "raises"),
    [
        ("hang", 0, 5000, HangError),
        ("hang", 4000, 4000, None),
        ("hang", 6000, 5000, HangError),
        ("hang", 10, 1000, None),
        ("stick", 0, 10000, LostUnitError),
    ],
)
def test_hanging_in_virtual_time(kind: Any, amount: float, takes: int, raises: type[Exception] | None) -> None:
    """A launch ends by itself, or when a watchdog would have ended it; one that sticks is lost after twice that."""
    device, bound = launches([Fault(kind=kind, name="big", amount=amount, times=1)])
    device.patience_ns = 5000
    if raises is None:
        assert device.submit(bound["big.0"]).duration_ns == takes
    else:
        with pytest.raises(raises, match=r"big\.0"):
            device.submit(bound["big.0"])
    assert device.clock.now_ns() == takes
    assert device.submit(bound["big.0"]).started_ns == takes


@pytest.mark.timed
def test_hanging_in_real_time() -> None:
    """A launch hangs until its unit is terminated; terminating another unit is no help; then the unit works again."""
    device, bound = launches([Fault(kind="hang", name="big", times=1)], device=npu(RealClock()))
    raised: list[BaseException] = []

    def submit() -> None:
        try:
            device.submit(bound["big.0"])
        except HangError as error:
            raised.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    thread.join(0.02)
    device.terminate("npu1")
    thread.join(0.02)
    assert thread.is_alive()
    while thread.is_alive():  # it may not have begun to hang
        device.terminate("npu0")
        thread.join(0.01)
    assert [type(error) for error in raised] == [HangError]
    assert device.submit(bound["big.0"]).duration_ns == NOMINAL_NS
