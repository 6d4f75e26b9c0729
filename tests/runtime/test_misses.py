"""Why a priority frame was late: of models on several units."""

from __future__ import annotations

from typing import Any

from fakes import FakeDevice
from framefit import DeviceError
from framefit.core.faults import Fault
from framefit.core.timetable import PlannedModel, PriorityPeriod, Segment, Timetable, Window
from framefit.devices.faulty import FaultyDevice
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.loop import LEAD_NS
from framefit.runtime.misses import misses
from unit_groups import MS, WINDOW_NS, Entry, made


def planned(entry: Entry) -> PlannedModel:
    """An entry's part in the plan."""
    segments = tuple(
        Segment(
            index=index,
            unit=f"fake{unit}",
            fill_layer="a",
            first_layer="a",
            last_layer="a",
            output_layers=(),
            duration_ns=ns,
            median_ns=ns,
            boundary_bytes=16,
            tensors=(),
        )
        for index, (unit, ns) in enumerate(zip(entry.units, entry.estimates_ns, strict=True))
    )
    return PlannedModel(
        name=entry.name,
        role="priority" if entry.priority else "background",
        level=0,
        reasons=(),
        duration_ns=sum(entry.estimates_ns),
        segments=segments,
        after=tuple(entry.reads),
    )


def plan_of(*entries: Entry) -> Timetable:
    """Of one window; a face in two stages is due at once, 1 ms each."""
    periods = tuple(
        PriorityPeriod(unit=f"fake{unit}", start_ns=unit * MS, end_ns=(unit + 1) * MS, model="face") for unit in (0, 1)
    )
    return Timetable(
        feasible=True,
        worst_slack_ns=0,
        hyperperiod_windows=1,
        window_ns=WINDOW_NS,
        priority_ns=MS,
        residual_ns=WINDOW_NS - MS,
        guard_ns=0,
        units=("fake0", "fake1"),
        windows=(Window(index=0, length_ns=WINDOW_NS, priority=periods, residual_ns=(), slots=()),),
        models=tuple(planned(entry) for entry in entries),
        memory_bytes={},
    )


def explained(
    device: FakeDevice, *entries: Entry, windows: int = 3, hangs: str | None = None
) -> list[tuple[int, str, str]]:
    """Window, cause and detail of each miss in so many windows; a face in two stages of 1 ms each is due at once.

    The first launch after 12 ms of a model that ``hangs`` is terminated after 25 ms.
    """
    faults = [Fault(kind="hang", name=hangs, begin_ns=12 * MS, times=1)] if hangs else []
    faulty = FaultyDevice(device, faults)
    group, jobs = made(faulty, *entries)  # type: ignore[arg-type]
    for job in (job for stages in jobs.values() for job in stages):
        job.on_error = "skip"
    faulty.patience_ns = 25 * MS
    faulty.arm(LEAD_NS + faulty.clock.now_ns())
    group.run(windows)
    timetable = plan_of(*entries)
    hung = group.faults.hung()
    found = misses(timetable, group.launches, group.frames, floor_p99_ns=0, faults=group.faults.last_texts(), hung=hung)
    return [(miss.window, miss.cause, miss.detail) for miss in found]


FACE = Entry("face", [(0, [MS]), (1, [MS])], priority=True, slots=2)


def test_a_later_stage_waits_for_a_segment_that_ran_over() -> None:
    """The background segment on its own unit is named, not the time that the whole model took."""
    took = iter([12 * MS])
    device = FakeDevice(lambda label, _: next(took, MS) if label == "b" else MS, units=2)
    ((window, cause, detail),) = explained(device, FACE, Entry("b", [(1, [MS])]))
    assert (window, cause) == (0, "overrun")
    assert detail == "b[0] took 12.00 ms, planned 1.00 ms, and ended 11.00 ms after the instant"


def test_a_stage_that_takes_too_long_is_named() -> None:
    """The other stage, which waited for it, is not blamed."""
    took = iter([11 * MS])
    device = FakeDevice(lambda label, _: next(took, MS) if label == "face.0" else MS, units=2)
    found = explained(device, FACE, Entry("b", [(1, [MS])]))
    assert found[0] == (0, "own duration", "took 11.00 ms, planned 1.00 ms")


SMALL = Entry("face", [(0, [4 * MS])], priority=True, queue=1)


def lasts(label: str, _: int) -> int:
    """How long the launches of these tests take."""
    return 4 * MS if label == "face" else MS


def test_a_launch_that_hung_is_named_by_all_that_waited_for_it() -> None:
    """Frames that came late or lost their place in the queue; those before and long after are in time."""
    found = explained(FakeDevice(lasts), SMALL, Entry("b", [(0, [MS, MS])]), windows=9, hangs="b")
    assert len(found) >= 2
    assert {window for window, _, _ in found} <= {2, 3, 4}
    assert {cause for _, cause, _ in found} == {"fault"}
    for _, _, detail in found:
        assert "b[0] in window 1 hung for 25.00 ms" in detail or "b[1] in window 1 hung for 25.00 ms" in detail
    assert any(detail.startswith("its queue was full: ") for _, _, detail in found)
    assert any(detail.endswith("ms after the instant") for _, _, detail in found)


def test_what_waits_behind_those_that_waited_names_it_too() -> None:
    """Frames in a long queue are overdue, or late one after the other: the launch that hung is what made them wait."""
    quarter = MS // 4
    device = FakeDevice(lambda label, _: 9 * MS if label == "face" else quarter)
    long = Entry("face", [(0, [9 * MS])], priority=True, queue=9)
    found = explained(device, long, Entry("b", [(0, [quarter])]), windows=12, hangs="b")
    assert {cause for _, cause, _ in found} == {"fault"}
    assert any(detail.startswith("its deadline had passed while it waited: b") for _, _, detail in found)
    assert any("earlier priority frames that had waited for it" in detail for _, _, detail in found)


def test_one_that_hung_on_another_unit_is_not_named() -> None:
    """Nobody waits for it there."""
    entries = (SMALL, Entry("b", [(1, [MS])]))
    assert explained(FakeDevice(lasts, units=2), *entries, windows=9, hangs="b") == []


def test_a_frame_that_reads_what_hung_names_it() -> None:
    """A model that reads another one has no frame where that one's launch hung."""
    reader = Entry("late", [(1, [MS])], priority=True, reads=["face"])
    found = explained(FakeDevice(lasts, units=2), SMALL, reader, windows=9, hangs="face")
    of_reader = [detail for _, cause, detail in found if detail.startswith("a model that it reads did not give it")]
    assert any("face[0] in window 2 hung for 25.00 ms" in detail for detail in of_reader)


def test_a_model_that_got_what_it_reads_late_names_the_cause() -> None:
    """The model that it reads took too long; nothing is said of a late wake-up on its own unit."""
    took = iter([12 * MS])
    device = FakeDevice(lambda label, _: next(took, 4 * MS) if label == "face" else MS, units=2)
    reader = Entry("late", [(1, [MS])], priority=True, reads=["face"])
    found = [miss for miss in explained(device, SMALL, reader) if "gave" in miss[2]]
    assert found == [(0, "own duration", "face gave what it reads 12.00 ms late: took 12.00 ms, planned 4.00 ms")]


def test_a_launch_that_took_long_to_fail_is_named_by_what_waited_for_it() -> None:
    """A driver gives up after 15 ms: the priority frame that waited names the launch, not a late wake-up."""
    fails = iter([True])

    def took(label: str, _: int) -> int:
        if label == "b" and device.clock.now_ns() > LEAD_NS + 2 * MS and next(fails, False):
            device.clock.sleep_until_ns(device.clock.now_ns() + 15 * MS)
            raise DeviceError("the driver gave up")
        return lasts(label, 0)

    device = FakeDevice(took)
    found = explained(device, SMALL, Entry("b", [(0, [MS])]), windows=9)
    assert [cause for _, cause, _ in found] == ["fault"]
    assert "b[0] in window 0 failed after 15.00 ms, and failed 9.00 ms after the instant" in found[0][2]


def test_a_backlog_names_the_frame_that_it_began_with() -> None:
    """One frame takes three windows: those that wait for it name it, and so do those that find no place."""
    took = iter([35 * MS])
    found = sorted(explained(FakeDevice(lambda *_: next(took, 4 * MS)), SMALL, windows=8))
    assert found[0] == (0, "own duration", "took 35.00 ms, planned 4.00 ms")
    assert len(found) >= 3
    began = "face in window 0: took 35.00 ms, planned 4.00 ms"
    for _, cause, detail in found[1:]:
        assert cause == "backlog"
        assert began in detail
    assert {detail.partition(":")[0] for _, _, detail in found[1:]} >= {"its queue was full"}


def test_what_a_run_that_failed_leaves_unfinished_names_the_failure() -> None:
    """Without a failure it only says that the run has ended."""
    group, _ = made(FakeDevice(30 * MS), SMALL)
    group.run(1)
    arguments: dict[str, Any] = {"floor_p99_ns": 0}
    frames = FrameLog()
    frames.add(0, 0, FrameOutcome.RUN_ENDED, 0, 0)
    timetable = plan_of(SMALL)
    (miss,) = misses(timetable, group.launches, frames, **arguments)
    assert (miss.cause, miss.detail) == ("run ended", "unfinished at the end of the run")
    (miss,) = misses(timetable, group.launches, frames, ended="unit 'fake0' does not come back", **arguments)
    assert (miss.cause, miss.detail) == ("fault", "unfinished when the run failed: unit 'fake0' does not come back")
