"""What failures come to: every kind at every moment, on one unit and on several, in virtual time."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice, ListSink
from framefit.core.faults import Fault, FaultKind
from framefit.devices.faulty import FaultyDevice
from framefit.errors import DeviceError, HangError, InputError, LostUnitError
from framefit.runtime.channel import FrameChannel
from framefit.runtime.job import Job
from framefit.runtime.log import FaultCause, FrameOutcome, LaunchLog
from framefit.runtime.loop import LEAD_NS
from framefit.runtime.streams import Arrival, Feed
from framefit.runtime.units import UnitGroup
from unit_groups import MS, WINDOW_NS, Entry, fates, made, planned

PATIENCE_NS = 15 * MS
FAULTY = (FrameOutcome.FAILED, FrameOutcome.HUNG, FrameOutcome.UNREADABLE, FrameOutcome.DEGRADED)


def faulty_run(
    entries: Sequence[Entry],
    faults: Sequence[Fault],
    windows: int,
    *,
    units: int = 1,
    link_ns: int = 0,
    took: Any = None,
    policy: str = "retry",
) -> tuple[UnitGroup, dict[str, list[Job]], FaultyDevice]:
    """A run of launches that take their estimates, or what ``took`` says; priority models skip a frame that fails."""
    estimates = {label: ns for entry in entries for label, ns in zip(entry.labels(), entry.estimates_ns, strict=True)}
    device = FaultyDevice(FakeDevice(took or (lambda label, _: estimates[label]), units=units, link_ns=link_ns), faults)
    device.patience_ns = PATIENCE_NS
    group, jobs = made(device, *entries, link_ns=link_ns)  # type: ignore[arg-type]  # a device like any other
    for entry in entries:
        for job in jobs[entry.name]:
            job.on_error = "skip" if entry.priority else policy
    device.arm(device.clock.now_ns() + LEAD_NS)
    group.run(windows)
    return group, jobs, device


def assert_accounted(group: UnitGroup, jobs: dict[str, list[Job]], entries: Sequence[Entry], windows: int) -> None:
    """Every frame has one fate, sinks have just what was done, segments are in order, and no slot is lost."""
    rows, first = group.launches.rows(), 0
    for number, entry in enumerate(entries):
        found = fates(group, number)
        assert sorted(found) == list(range(windows))
        done = sorted(frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE))
        assert [frame for frame, _ in entry.sink.taken] == done
        assert all(outputs["number"].tolist() == [frame] for frame, outputs in entry.sink.taken)
        count = len(entry.units)
        mine = rows[(rows[:, LaunchLog.PROGRAM] >= first) & (rows[:, LaunchLog.PROGRAM] < first + count)]
        ended: dict[int, list[int]] = defaultdict(list)
        for program, _, frame, _, finished, *_ in mine.tolist():
            if finished >= 0:
                ended[frame].append(program - first)
        for frame, segments in ended.items():
            assert segments == list(range(len(segments)))
            assert (len(segments) == count) == (frame in done)
        failed = Counter(mine[mine[:, LaunchLog.FINISHED] < 0, LaunchLog.FRAME].tolist())
        faults = group.faults.rows()
        assert failed == Counter(faults[faults[:, 0] == number, 1].tolist())
        assert {
            frame for frame, fate in found.items() if fate in (FrameOutcome.FAILED, FrameOutcome.HUNG)
        } <= failed.keys()
        assert all(times <= 1 + len(entry.stages) for times in failed.values())
        for job in jobs[entry.name]:
            assert len(job.input) == 0
            if job.pipeline is not None:
                assert job.pipeline.most <= entry.slots
        first += count


KINDS: tuple[FaultKind, ...] = ("raise", "hang", "slow")
MOMENTS = {
    "first launch": 0,
    "between segments": 5 * MS,
    "in a segment": 4 * MS + 1,
    "last segment": 8 * MS - 1,
    "in the priority period": 20 * MS + 1,
    "at a boundary": 100 * MS,
    "just before a boundary": 100 * MS - 1,
    "last window": 390 * MS,
    "at the end": 400 * MS - 1,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
@pytest.mark.parametrize("name", ["face", "big.1", "fake0"])
@pytest.mark.parametrize("times", [1, None])
def test_each_fault_at_each_moment(kind: FaultKind, moment: int, name: str, times: int | None) -> None:
    """No frame is lost, time is bounded, and priority goes on unless the fault is its own, or hogs its unit."""
    entries = [
        Entry("face", [(0, [2 * MS])], priority=True),
        Entry("big", [(0, [3 * MS, 3 * MS])]),
        Entry("small", [(0, [MS])]),
    ]
    fault = Fault(kind=kind, name=name, begin_ns=moment, times=times, amount=1.5 if kind == "slow" else 0)
    group, jobs, device = faulty_run(entries, [fault], 40)
    assert_accounted(group, jobs, entries, 40)
    assert device.clock.now_ns() <= group.release(40) + PATIENCE_NS
    face = fates(group, 0)
    if kind == "raise" and name not in ("face", "fake0"):
        assert face == dict.fromkeys(range(40), FrameOutcome.DONE)
    outcomes = Counter(fate for model in range(3) for fate in fates(group, model).values())
    if kind != "slow" and moment < 390 * MS:
        assert outcomes[FrameOutcome.FAILED] + outcomes[FrameOutcome.HUNG] + len(group.faults) > 0
    if times == 1 and kind == "raise" and name != "fake0":  # tried again, or one frame of the priority model's
        assert sum(outcomes[fate] for fate in FAULTY) == (name == "face" and moment < 390 * MS + 1)
        assert group.faults.degraded == set()


def test_a_background_launch_is_tried_again_where_it_failed() -> None:
    """The segments before it are not run again, and the frame is done."""
    entries = [Entry("big", [(0, [3 * MS, 3 * MS])])]
    group, jobs, _ = faulty_run(entries, [Fault(kind="raise", name="big.1", times=1)], 3)
    assert_accounted(group, jobs, entries, 3)
    rows = group.launches.rows()[:, [LaunchLog.PROGRAM, LaunchLog.FRAME, LaunchLog.FINISHED]]
    assert [(program, frame, end >= 0) for program, frame, end in rows.tolist()][:4] == [
        *((0, 0, True), (1, 0, False), (1, 0, True), (0, 1, True))
    ]
    assert set(fates(group, 0).values()) == {FrameOutcome.DONE}
    assert group.faults.counts(0) == {FaultCause.ERROR: 1}


@pytest.mark.parametrize(("policy", "launches"), [("retry", 2), ("skip", 1)])
def test_a_frame_that_fails_is_dropped(policy: str, launches: int) -> None:
    """After one more attempt, or none; the next one is done, and the model is not degraded."""
    entries = [Entry("big", [(0, [3 * MS])])]
    fault = Fault(kind="raise", name="big", begin_ns=20 * MS, end_ns=21 * MS)
    group, jobs, _ = faulty_run(entries, [fault], 6, policy=policy)
    assert_accounted(group, jobs, entries, 6)
    assert fates(group, 0) == dict.fromkeys(range(6), FrameOutcome.DONE) | {2: FrameOutcome.FAILED}
    assert group.faults.counts(0) == {FaultCause.ERROR: launches}
    assert group.faults.last_texts() == {(0, 2): "big: the launch failed (injected: raise:big)"}
    assert group.faults.degraded == set()


def test_a_model_that_goes_on_failing_rests_ever_longer() -> None:
    """Three frames in a row, then one after 8, 16, ... 512 windows; the others have its time, and it is degraded."""
    entries = [Entry("big", [(0, [3 * MS])]), Entry("small", [(0, [MS])])]
    group, jobs, _ = faulty_run(entries, [Fault(kind="raise", name="big")], 2200)
    assert_accounted(group, jobs, entries, 2200)
    found = fates(group, 0)
    failed = [frame for frame, fate in found.items() if fate == FrameOutcome.FAILED]
    assert set(found.values()) == {FrameOutcome.FAILED, FrameOutcome.DEGRADED}
    assert np.diff(failed).tolist() == [1, 1, 9, 17, 33, 65, 129, 257, 513, 513, 513]
    assert group.faults.degraded == {0}
    assert set(fates(group, 1).values()) == {FrameOutcome.DONE}


def test_a_model_that_recovers_is_as_it_was() -> None:
    """The first frame that is done after a rest ends it; later failures begin to count anew."""
    entries = [Entry("big", [(0, [3 * MS])])]
    again = Fault(kind="raise", name="big", begin_ns=400 * MS, end_ns=402 * MS)
    group, jobs, _ = faulty_run(entries, [Fault(kind="raise", name="big", end_ns=60 * MS), again], 60)
    assert_accounted(group, jobs, entries, 60)
    found = fates(group, 0)
    assert [frame for frame, fate in found.items() if fate == FrameOutcome.FAILED] == [0, 1, 2, 40]
    assert [frame for frame, fate in found.items() if fate == FrameOutcome.DEGRADED] == list(range(3, 11))
    assert group.faults.degraded == set()
    assert not jobs["big"][0].queue.refuses


def test_a_priority_model_is_tried_in_every_window() -> None:
    """Its time is reserved: each window that could succeed does, though the model counts as degraded meanwhile."""
    entries = [Entry("face", [(0, [2 * MS])], priority=True), Entry("big", [(0, [3 * MS])])]
    fault = Fault(kind="raise", name="face", begin_ns=100 * MS, end_ns=200 * MS)
    group, jobs, _ = faulty_run(entries, [fault], 30)
    assert_accounted(group, jobs, entries, 30)
    assert fates(group, 0) == {
        frame: FrameOutcome.FAILED if 10 <= frame < 20 else FrameOutcome.DONE for frame in range(30)
    }
    assert group.faults.degraded == set()
    group, _, _ = faulty_run(entries, [Fault(kind="raise", name="face", begin_ns=280 * MS)], 30)
    assert group.faults.degraded == set()
    group, _, _ = faulty_run(entries, [Fault(kind="raise", name="face", begin_ns=270 * MS)], 30)
    assert group.faults.degraded == {0}


def test_a_priority_model_that_hangs_rests() -> None:
    """Each attempt would take time from everybody: after three the others have their windows back."""
    entries = [Entry("face", [(0, [2 * MS])], priority=True, queue=1), Entry("eyes", [(0, [2 * MS])], priority=True)]
    group, jobs, _ = faulty_run(entries, [Fault(kind="hang", name="face")], 60)
    assert_accounted(group, jobs, entries, 60)
    counts = Counter(fates(group, 0).values())
    assert counts[FrameOutcome.HUNG] == 5
    assert counts[FrameOutcome.DEGRADED] > 45
    assert sum(fate == FrameOutcome.DONE for fate in fates(group, 1).values()) >= 45
    assert group.faults.degraded == {0}


@pytest.mark.parametrize("kind", ["raise", "hang"])
def test_the_run_stops_where_that_is_asked_for(kind: FaultKind) -> None:
    """The error is raised, and every frame is accounted for."""
    entries = [Entry("big", [(0, [3 * MS])])]
    with pytest.raises(HangError if kind == "hang" else DeviceError, match="big"):
        faulty_run(entries, [Fault(kind=kind, name="big", begin_ns=20 * MS)], 6, policy="stop")
    assert [frame for frame, _ in entries[0].sink.taken] == [0, 1]


def test_a_unit_that_does_not_come_back_ends_the_run() -> None:
    """Whatever the policy: nothing more could be run there."""
    entries = [Entry("big", [(0, [3 * MS])])]
    with pytest.raises(LostUnitError, match="fake0"):
        faulty_run(entries, [Fault(kind="stick", name="big", begin_ns=20 * MS)], 6)
    assert [frame for frame, _ in entries[0].sink.taken] == [0, 1]


def test_streams_that_wait_are_not_held_up_by_a_model_that_rests() -> None:
    """It gives its frames up as they come, the other reader gets all of them, and the run ends when those are done."""
    feed = Feed(waits=True)
    entries = [
        Entry("big", [(0, [3 * MS])], when_full="block", feed=feed, length=25, queue=1),
        Entry("small", [(0, [2 * MS])], when_full="block", feed=feed, length=25, queue=1),
    ]
    group, jobs, _ = faulty_run(entries, [Fault(kind="raise", name="big")], 100)
    assert_accounted(group, jobs, entries, 25)
    assert set(fates(group, 1).values()) == {FrameOutcome.DONE}
    assert group.windows < 40


@pytest.mark.parametrize("begin", range(0, 40 * MS, 7 * MS))
@pytest.mark.parametrize("name", ["small", "big", "big.1", "fake0"])
@pytest.mark.parametrize("kind", ["raise", "hang"])
def test_faults_while_the_last_frames_are_done(begin: int, name: str, kind: FaultKind) -> None:
    """A stream that waits has ended: the run ends all the same, with every frame accounted for."""
    feed = Feed(waits=True)
    entries = [
        Entry("big", [(0, [6 * MS, 6 * MS])], when_full="block", feed=feed, length=4, queue=3),
        Entry("small", [(0, [2 * MS])], when_full="block", feed=feed, length=4, queue=3),
    ]
    group, jobs, _ = faulty_run(entries, [Fault(kind=kind, name=name, begin_ns=20 * MS + begin)], 400)
    assert_accounted(group, jobs, entries, 4)
    assert group.windows < 40


# Several units -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_that_fails(slots: int, stage: int) -> None:
    """Its frame goes, its slot is free again, and the outputs of all others are their own."""
    entries = [Entry("big", [(0, [4 * MS]), (1, [4 * MS]), (2, [4 * MS])], slots=slots, queue=2)]
    faults = [Fault(kind="raise", name=f"big.{stage}", begin_ns=50 * MS, times=1)]
    group, jobs, _ = faulty_run(entries, faults, 40, units=3, policy="skip")
    assert_accounted(group, jobs, entries, 40)
    counts = Counter(fates(group, 0).values())
    assert counts[FrameOutcome.FAILED] == 1
    if slots > 1:
        assert counts[FrameOutcome.DONE] >= 36


def test_later_stages_of_priority_models_do_not_wait_for_what_was_given_up() -> None:
    """Their unit goes on with other work in the same window."""
    entries = [
        Entry("face", [(0, [2 * MS]), (1, [2 * MS])], priority=True),
        Entry("big", [(1, [3 * MS])]),
    ]
    group, jobs, _ = faulty_run(entries, [Fault(kind="raise", name="face.0", begin_ns=100 * MS, times=5)], 30, units=2)
    assert_accounted(group, jobs, entries, 30)
    assert fates(group, 0) == {
        frame: FrameOutcome.FAILED if 10 <= frame < 15 else FrameOutcome.DONE for frame in range(30)
    }
    assert set(fates(group, 1).values()) == {FrameOutcome.DONE}


def test_a_unit_that_fails_leaves_the_others_alone() -> None:
    """What runs elsewhere is done in every window."""
    entries = [
        Entry("face", [(0, [2 * MS])], priority=True),
        Entry("a", [(0, [3 * MS])]),
        Entry("b", [(1, [3 * MS])]),
    ]
    group, jobs, _ = faulty_run(entries, [Fault(kind="raise", name="fake1", begin_ns=50 * MS)], 40, units=2)
    assert_accounted(group, jobs, entries, 40)
    assert set(fates(group, 0).values()) == set(fates(group, 1).values()) == {FrameOutcome.DONE}
    assert group.faults.degraded == {2}


@st.composite
def disturbed_workloads(draw: st.DrawFn) -> tuple[int, int, list[Entry], list[Fault]]:
    """Units, a link's time, models in up to three stages, and faults of all kinds at all times."""
    units, link_ns = draw(st.integers(1, 3)), draw(st.sampled_from([0, 1, MS // 3]))
    entries = []
    for number in range(draw(st.integers(0, 2))):
        places = [
            unit for unit, _ in itertools.groupby(draw(st.lists(st.integers(0, units - 1), min_size=1, max_size=3)))
        ]
        stages = [(unit, draw(st.lists(st.integers(1, MS), min_size=1, max_size=2))) for unit in places]
        entries.append(Entry(f"face{number}", stages, priority=True, slots=draw(st.integers(1, 3)), queue=1))
    for number in range(draw(st.integers(1, 2))):
        places = [
            unit for unit, _ in itertools.groupby(draw(st.lists(st.integers(0, units - 1), min_size=1, max_size=3)))
        ]
        stages = [(unit, draw(st.lists(st.integers(MS // 20, 5 * MS), min_size=1, max_size=3))) for unit in places]
        entries.append(
            Entry(f"big{number}", stages, slots=draw(st.integers(1, 3)), queue=draw(st.integers(1, 3)), every=1)
        )
    names = [entry.name for entry in entries] + [label for entry in entries for label in entry.labels()]
    names += [f"fake{unit}" for unit in range(units)]
    moments = st.one_of(st.integers(0, 40 * WINDOW_NS), st.integers(0, 40).map(lambda window: window * WINDOW_NS))
    faults = []
    for _ in range(draw(st.integers(1, 4))):
        begin, kind = draw(moments), draw(st.sampled_from(["raise", "raise", "hang", "slow"]))
        faults.append(
            Fault(
                kind=kind,
                name=draw(st.sampled_from(names)),
                begin_ns=begin,
                end_ns=draw(st.one_of(st.none(), st.integers(begin + 1, begin + 20 * WINDOW_NS))),
                times=draw(st.one_of(st.none(), st.integers(1, 6))),
                amount=draw(st.floats(1.1, 4.0)) if kind == "slow" else draw(st.sampled_from([0, 0, 3 * MS, 40 * MS])),
            )
        )
    return units, link_ns, entries, faults


@settings(deadline=None, max_examples=25)
@given(disturbed_workloads(), st.sampled_from(["retry", "skip"]))
def test_whatever_goes_wrong(workload: tuple[int, int, list[Entry], list[Fault]], policy: str) -> None:
    """Every frame has one fate, outputs are their frames' own, time is bounded, and the same run comes again."""
    units, link_ns, entries, faults = workload
    logs = []
    for _ in range(2):
        for entry in entries:
            entry.sink = ListSink()
        group, jobs, device = faulty_run(entries, faults, 40, units=units, link_ns=link_ns, policy=policy)
        assert_accounted(group, jobs, entries, 40)
        assert device.clock.now_ns() <= group.release(40) + 256 * (PATIENCE_NS + 5 * MS)
        logs.append((group.launches.rows().tolist(), group.frames.rows().tolist(), group.faults.rows().tolist()))
    assert logs[0] == logs[1]


@settings(deadline=None, max_examples=25)
@given(disturbed_workloads(), st.sampled_from(["retry", "skip"]))
def test_priority_goes_on_whatever_fails_in_the_background(
    workload: tuple[int, int, list[Entry], list[Fault]], policy: str
) -> None:
    """Launches of background models that raise cost no priority frame: each is done in its window."""
    units, link_ns, entries, faults = workload
    if any(end > WINDOW_NS for _, end in planned(entries, link_ns).values()):
        return
    for entry in entries:
        entry.sink = ListSink()
    mine = [fault for fault in faults if fault.kind == "raise" and fault.name.startswith("big")]
    group, jobs, _ = faulty_run(entries, mine, 40, units=units, link_ns=link_ns, policy=policy)
    assert_accounted(group, jobs, entries, 40)
    for number, entry in enumerate(entries):
        if entry.priority:
            assert fates(group, number) == dict.fromkeys(range(40), FrameOutcome.DONE)


# Its parts ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(0, 30), st.integers(1, 3))
def test_a_channel_that_refuses(windows: list[int], until: int, depth: int) -> None:
    """It takes no frame until its window, whatever is waiting; then it does as before."""
    channel = FrameChannel(depth, "block")
    channel.offer(Arrival(-1, 0))
    assert channel.refuse_until(until) == [Arrival(-1, 0)]
    for number, window in enumerate(sorted(windows)):
        refused, room = channel.refuses, len(channel) < depth
        dropped = channel.offer(Arrival(number, window))
        if window < until:
            assert refused
            assert dropped == (Arrival(number, window), FrameOutcome.DEGRADED)
            assert not channel.full
            assert len(channel) == 0
        else:
            assert not channel.refuses
            assert dropped == (None if room else (Arrival(number, window), FrameOutcome.REFUSED))
        assert len(channel) <= depth


def test_a_frame_that_does_not_fit_is_dropped_and_the_run_goes_on() -> None:
    """It is not tried again; after three in a row the model is degraded, and does not rest: to look costs nothing."""
    bad = set(range(5, 9))

    class Stream:
        length = None

        @staticmethod
        def has(frame: int) -> bool:
            return frame >= 0

        def read(self, frame: int, tensor: Any) -> Any:
            if frame in bad:
                raise InputError(f"frame {frame} is too wide")
            return np.full(tensor.shape, frame, tensor.dtype)

    entries = [Entry("big", [(0, [3 * MS])])]
    device = FakeDevice(3 * MS)
    group, jobs = made(device, *entries)
    (job,) = jobs["big"]
    job.on_error, job.sources = "retry", dict.fromkeys(("x", "number"), Stream())
    seen: list[set[int]] = []
    group.run(20, on_idle=lambda _: seen.append(set(group.faults.degraded)))
    assert fates(group, 0) == {
        frame: FrameOutcome.UNREADABLE if frame in bad else FrameOutcome.DONE for frame in range(20)
    }
    assert group.faults.counts(0) == {FaultCause.INPUT: 4}
    assert {0} in seen
    assert group.faults.degraded == set()
