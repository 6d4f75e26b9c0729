"""Launches that do not end, where time is real."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from fakes import FakeDevice
from framefit.core.faults import Fault
from framefit.core.timetable import PlannedModel, Segment, Timetable, Window
from framefit.devices.clock import RealClock, VirtualClock
from framefit.devices.faulty import FaultyDevice
from framefit.devices.host import realtime_priority_permitted
from framefit.errors import DeviceError, LostUnitError
from framefit.runtime.log import FaultCause, FrameOutcome
from framefit.runtime.units import UnitGroup
from framefit.runtime.watchdog import patience_ns, watched
from unit_groups import MS, Entry, fates, made

pytestmark = pytest.mark.timed

PATIENCE = {"fake0": 60 * MS, "fake1": 60 * MS}


def made_group(
    faults: list[Fault], *, units: int = 1, preemptive: bool = False
) -> tuple[UnitGroup, FaultyDevice, list[Entry]]:
    """A priority model and a background model, on one unit or one each."""
    fake = FakeDevice({"face": MS, "big": 2 * MS}, clock=RealClock(), units=units, on_host=False)
    device = FaultyDevice(fake, faults)
    entries = [Entry("face", [(0, [MS])], priority=True, queue=3), Entry("big", [(units - 1, [2 * MS])])]
    group, jobs = made(device, *entries, preemptive=["fake0"] if preemptive else [])  # type: ignore[arg-type]
    jobs["face"][0].on_error, jobs["big"][0].on_error = "skip", "retry"
    return group, device, entries


def watch(group: UnitGroup, device: FaultyDevice, windows: int) -> None:
    """Run it, with faults counting from about the first release."""
    device.arm(device.clock.now_ns())
    watched(group, device, PATIENCE, lambda: group.run(windows))


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("name", ["face", "big"])
def test_what_hangs_is_terminated(name: str, units: int) -> None:
    """One frame is given up, and the run goes on to its end."""
    group, device, entries = made_group([Fault(kind="hang", name=name, begin_ns=60 * MS, times=1)], units=units)
    watch(group, device, 40)
    model = ["face", "big"].index(name)
    assert group.windows == 40
    assert group.faults.counts(model) == {FaultCause.HANG: 1}
    for number, entry in enumerate(entries):
        found = fates(group, number)
        assert sorted(found) == list(range(40))
        assert sum(fate == FrameOutcome.HUNG for fate in found.values()) == (number == model)
        done = [frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE)]
        assert [frame for frame, _ in entry.sink.taken] == sorted(done)
        assert max(done) > 20


@pytest.mark.parametrize("units", [1, 2])
def test_a_unit_that_cannot_be_freed_ends_the_run(units: int) -> None:
    """The caller gets its thread back with an error, and every frame is accounted for."""
    group, device, entries = made_group([Fault(kind="stick", name="big", begin_ns=60 * MS)], units=units)
    with pytest.raises(LostUnitError, match=f"fake{units - 1}"):
        watch(group, device, 1000)
    assert group.windows < 1000
    for number, entry in enumerate(entries):
        found = fates(group, number)
        assert sorted(found) == list(range(len(found)))
        assert Counter(found.values())[FrameOutcome.RUN_ENDED] >= (entry.name == "big")
        done = [frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE)]
        assert [frame for frame, _ in entry.sink.taken] == sorted(done)


@pytest.mark.skipif(not realtime_priority_permitted(), reason="needs permission for real-time priority")
def test_what_hangs_behind_priority_models_is_terminated() -> None:
    """The priority model interrupts what hangs: it loses no more frames than a shared machine's own delays cost."""
    group, device, _ = made_group([Fault(kind="hang", name="big", begin_ns=60 * MS, times=1)], preemptive=True)
    watch(group, device, 40)
    found = Counter(fates(group, 0).values())
    assert set(found) <= {FrameOutcome.DONE, FrameOutcome.LATE, FrameOutcome.OVERDUE}
    assert found[FrameOutcome.OVERDUE] <= 3  # what hangs lasts for 6 windows
    assert group.faults.counts(1) == {FaultCause.HANG: 1}
    assert sum(fate in (FrameOutcome.DONE, FrameOutcome.LATE) for fate in fates(group, 1).values()) > 10


def test_what_other_programs_keep_from_computing_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that could go on gets the time, a launch that has had it does not."""
    begun = time.monotonic()
    worked = lambda: 1000 * MS * (time.monotonic() - begun > 0.6)  # noqa: E731
    monkeypatch.setattr("framefit.runtime.watchdog.thread_state", lambda _: (True, worked()))
    group, device, _ = made_group([Fault(kind="hang", name="big", begin_ns=60 * MS, times=1)])
    watch(group, device, 40)
    assert time.monotonic() - begun > 0.6  # patience is 60 ms
    assert group.faults.counts(1) == {FaultCause.HANG: 1}


def test_what_is_slow_outside_of_launches_is_let_be() -> None:
    """A stream or sink of the user's that takes long is no launch that hangs."""
    group, device, entries = made_group([])
    put = entries[0].sink.put
    entries[0].sink.put = lambda frame, outputs: (time.sleep(0.3 * (frame == 3)), put(frame, outputs))  # type: ignore[method-assign, assignment]
    watch(group, device, 12)
    assert len(group.faults) == 0
    assert [frame for frame, _ in entries[0].sink.taken]


def test_errors_and_interrupts_come_through() -> None:
    """What the run raises is raised; where the watching thread is interrupted, the run ends first."""
    threads = threading.active_count()  # those of units that were lost are left to themselves
    group, device, _ = made_group([Fault(kind="raise", name="big", begin_ns=30 * MS)])
    for dispatcher in group.dispatchers.values():
        dispatcher._jobs[1].on_error = "stop"
    with pytest.raises(DeviceError, match="injected: raise:"):
        watch(group, device, 1000)
    group, device, _ = made_group([])
    begun = threading.Event()

    def play() -> None:
        begun.set()
        group.run(10_000)

    class Interrupted(RealClock):
        def now_ns(self) -> int:  # type: ignore[override]
            if begun.is_set() and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return time.perf_counter_ns()

    device._device.clock = Interrupted()  # type: ignore[misc]
    with pytest.raises(KeyboardInterrupt):
        watched(group, device, PATIENCE, play)
    assert group.windows < 10_000
    assert threading.active_count() == threads


def test_virtual_time_needs_no_thread() -> None:
    """The run is played by whoever asks."""
    played = []
    device = FakeDevice(clock=VirtualClock())
    group, _ = made(device, Entry("big", [(0, [MS])]))
    watched(group, device, PATIENCE, lambda: played.append(threading.current_thread()))
    assert played == [threading.current_thread()]


def timetable(*, preemptive: bool) -> Timetable:
    """Segments of 1, 3 and 9 ms on units a, a and b; half of each window of 10 ms is residual."""

    def segment(index: int, unit: str, duration_ns: int) -> Segment:
        return Segment(
            index=index,
            unit=unit,
            fill_layer="l",
            first_layer="l",
            last_layer="l",
            output_layers=("l",),
            duration_ns=duration_ns,
            median_ns=duration_ns,
            boundary_bytes=0,
            tensors=(),
        )

    segments = (segment(0, "a", MS), segment(1, "a", 3 * MS), segment(2, "b", 9 * MS))
    model = PlannedModel(
        name="big", role="background", level=0, reasons=(), duration_ns=13 * MS, segments=segments, result_age_windows=9
    )
    return Timetable(
        feasible=True,
        worst_slack_ns=0,
        hyperperiod_windows=1,
        window_ns=10 * MS,
        priority_ns=5 * MS,
        residual_ns=5 * MS,
        guard_ns=0,
        preemptive=preemptive,
        units=("a", "b"),
        windows=(Window(index=0, length_ns=10 * MS, priority=(), residual_ns=(5 * MS,), slots=()),),
        models=(model,),
        memory_bytes={},
    )


@pytest.mark.parametrize(
    ("unit", "preemptive", "real", "patience_ms"),
    [
        ("a", False, False, 20),
        ("b", False, False, 36),
        ("b", True, False, 72),
        ("b", False, True, 500),
        ("c", False, False, 20),
    ],
)
def test_patience_follows_the_plan(unit: str, preemptive: bool, real: bool, patience_ms: int) -> None:
    """Four times the longest segment, stretched where it is interrupted; two windows at least, or half a second."""
    assert patience_ns(timetable(preemptive=preemptive), unit, real=real) == patience_ms * MS
