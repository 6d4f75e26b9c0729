"""Several units on one beat: models in stages, hand-overs, slots."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice, ListSink, NumberStream
from framefit import DeviceError
from framefit.core.grid import Grid
from framefit.core.model import TensorInfo
from framefit.core.policy import Rotation
from framefit.core.workload import MachineSettings
from framefit.devices.clock import Clock, RealClock
from framefit.devices.device import random_inputs
from framefit.devices.host import realtime_priority_permitted
from framefit.devices.ort import OrtDevice
from framefit.execution.execution import Execution, greatest_difference
from framefit.runtime.channel import FrameChannel, Port, unit_mailboxes
from framefit.runtime.job import Job, stage_jobs
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.streams import Feed
from framefit.runtime.units import UnitAssignment, UnitGroup
from networks import NETWORKS
from unit_groups import MS, WINDOW_NS, Entry, assert_sound, fates, launched, made, planned


def test_stages_of_two_frames_run_side_by_side() -> None:
    """While the second unit handles frame 0 the first one handles frame 1, and no more than two are in flight."""
    device = FakeDevice({"big.0": 6 * MS, "big.1": 7 * MS}, units=2)
    entries = [Entry("big", [(0, [6 * MS]), (1, [7 * MS])], slots=2, queue=3)]
    group, jobs = made(device, *entries)
    group.run(4)
    assert launched(group, entries) == [
        ("big.0", 0, 0.0, 6.0),
        *(("big.0", 1, 10.0, 16.0), ("big.1", 0, 10.0, 17.0)),
        *(("big.0", 2, 20.0, 26.0), ("big.1", 1, 20.0, 27.0)),
        *(("big.0", 3, 30.0, 36.0), ("big.1", 2, 30.0, 37.0)),
    ]
    assert_sound(group, jobs, entries, 4, 0)


def test_with_one_slot_frames_do_not_overlap() -> None:
    """The first stage waits until the last one is done, and goes on at once then."""
    device = FakeDevice({"big.0": 4 * MS, "big.1": 4 * MS}, units=2)
    entries = [Entry("big", [(0, [4 * MS]), (1, [4 * MS])], slots=1, queue=9)]
    group, jobs = made(device, *entries)
    group.run(20)
    assert_sound(group, jobs, entries, 20, 0)
    pipeline = jobs["big"][0].pipeline
    assert pipeline is not None
    assert pipeline.most == 1
    assert Counter(fates(group, 0).values()) == {FrameOutcome.DONE: 20}


def test_two_slots_double_the_throughput_of_a_model() -> None:
    """Stages of 9 ms each on two units: a frame a window with two slots, one in two windows with one."""
    done = []
    for slots in (1, 2):
        device = FakeDevice({"big.0": 9 * MS, "big.1": 9 * MS}, units=2)
        entries = [Entry("big", [(0, [9 * MS]), (1, [9 * MS])], slots=slots)]
        group, jobs = made(device, *entries)
        group.run(100)
        assert_sound(group, jobs, entries, 100, 0)
        assert jobs["big"][0].pipeline.most == slots  # type: ignore[attr-defined]
        done.append(sum(fate == FrameOutcome.DONE for fate in fates(group, 0).values()))
    assert done == [50, 99]


def test_a_frame_is_copied_when_it_is_passed_on() -> None:
    """The link's time counts from the end of a stage, not from the begin of the next, however late that is."""
    device = FakeDevice({"face": 5 * MS, "big.0": 2 * MS, "big.1": 3 * MS}, units=2, link_ns=2 * MS)
    entries = [Entry("face", [(1, [5 * MS])], priority=True), Entry("big", [(0, [2 * MS]), (1, [3 * MS])])]
    group, _ = made(device, *entries, link_ns=2 * MS)
    group.run(2)
    assert [one for one in launched(group, entries) if one[0] != "face"] == [
        *(("big.0", 0, 0.0, 2.0), ("big.1", 0, 5.0, 8.0)),
        *(("big.0", 1, 10.0, 12.0), ("big.1", 1, 15.0, 18.0)),
    ]
    assert device.handed[0] == ("fake0", "fake1", 16, group.start_ns + 2 * MS)


def test_an_idle_unit_wakes_up_for_a_frame_that_is_passed_on() -> None:
    """Nothing was due there before its next release; the frame starts in the nanosecond in which it arrives."""
    device = FakeDevice({"big.0": 3 * MS + 17, "big.1": MS}, units=2, link_ns=1001)
    entries = [Entry("big", [(1, [4 * MS]), (0, [MS])])]  # the first stage's unit comes second
    group, _ = made(device, *entries)
    group.run(1)
    assert [(row[3] - group.start_ns) for row in group.launches.rows().tolist()] == [0, 3 * MS + 17 + 1001]


def test_a_stage_keeps_the_guard_of_its_own_unit() -> None:
    """Message over in mid-window it starts only if it fits before the unit's next instant."""
    device = FakeDevice({"face": 2 * MS, "big.0": 3 * MS, "big.1": 6 * MS}, units=2)
    entries = [Entry("face", [(1, [2 * MS])], priority=True), Entry("big", [(0, [3 * MS]), (1, [6 * MS + 1])])]
    group, jobs = made(device, *entries, guard_ns=MS)
    group.run(3)
    starts = [begin for label, _, begin, _ in launched(group, entries) if label == "big.1"]
    assert starts == [12.0, 22.0]
    assert_sound(group, jobs, entries, 3, 0)


def test_a_priority_model_in_stages_keeps_its_instants() -> None:
    """Each stage starts at its reserved instant, though it was ready before; background segments fill the rest."""
    device = FakeDevice({"face.0": MS, "face.1": MS, "a": 2 * MS, "b": 2 * MS}, units=2)
    entries = [
        Entry("face", [(0, [2 * MS]), (1, [2 * MS])], priority=True),
        Entry("a", [(0, [2 * MS])]),
        Entry("b", [(1, [2 * MS])]),
    ]
    group, jobs = made(device, *entries)
    group.run(50)
    assert_sound(group, jobs, entries, 50, 0)
    window = [("face.0", 0.0), ("b", 0.0), ("a", 1.0), ("face.1", 2.0)]
    assert [(label, begin) for label, _, begin, _ in launched(group, entries)][:8] == [
        (label, begin + 10 * k) for k in range(2) for label, begin in window
    ]
    assert fates(group, 0) == dict.fromkeys(range(50), FrameOutcome.DONE)


def test_a_late_priority_frame_starts_as_soon_as_it_is_passed_on() -> None:
    """Its unit starts nothing else in between, and the next frame is on time again."""
    took = iter([5 * MS])
    device = FakeDevice(lambda label, _: next(took, MS) if label == "face.0" else MS, units=2)
    entries = [Entry("face", [(0, [MS]), (1, [MS])], priority=True), Entry("b", [(1, [MS])], queue=4)]
    group, jobs = made(device, *entries)
    group.run(3)
    own = [(label, begin) for label, _, begin, _ in launched(group, entries) if label != "face.0"]
    assert own == [
        *(("b", 0.0), ("face.1", 5.0)),
        *(("b", 10.0), ("face.1", 11.0)),
        *(("b", 20.0), ("face.1", 21.0)),
    ]
    assert_sound(group, jobs, entries, 3, 0)


def test_a_priority_frame_that_was_dropped_is_not_waited_for() -> None:
    """After a stall of the first stage the second unit goes on with other work, and no frame stays behind."""
    took = iter([2 * MS, 45 * MS])
    device = FakeDevice(lambda label, _: next(took, 2 * MS) if label == "face.0" else 2 * MS, units=2)
    entries = [
        Entry("face", [(0, [2 * MS]), (1, [2 * MS])], priority=True, queue=1),
        Entry("b", [(1, [2 * MS])], queue=1),
    ]
    group, jobs = made(device, *entries)
    group.run(12)
    assert_sound(group, jobs, entries, 12, 0)
    found = fates(group, 0)
    assert {frame for frame, fate in found.items() if fate == FrameOutcome.QUEUE_FULL} == {2, 3, 4}
    assert all(found[frame] == FrameOutcome.DONE for frame in (0, *range(6, 12)))
    starts = {frame: begin for label, frame, begin, _ in launched(group, entries) if label == "face.1"}
    assert all(starts[frame] == 10 * frame + 2 for frame in range(7, 12))
    assert sum(fate == FrameOutcome.DONE for fate in fates(group, 1).values()) >= 7


def test_a_model_that_comes_back_to_a_unit() -> None:
    """Its two stages there are two jobs, which take turns."""
    device = FakeDevice(2 * MS, units=2)
    entries = [Entry("big", [(0, [2 * MS]), (1, [2 * MS]), (0, [2 * MS])], slots=3, queue=3)]
    group, jobs = made(device, *entries)
    group.run(40)
    assert_sound(group, jobs, entries, 40, 0)
    assert fates(group, 0) == dict.fromkeys(range(40), FrameOutcome.DONE)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, int, list[Entry]]:
    """Units, a link's time, and models in up to three stages, priority models first."""
    units, link_ns = draw(st.integers(2, 3)), draw(st.sampled_from([0, 1, MS // 3, 2 * MS]))
    entries = []
    for number in range(draw(st.integers(0, 2))):
        places = draw(st.lists(st.integers(0, units - 1), min_size=1, max_size=3))
        places = [unit for unit, _ in itertools.groupby(places)]
        stages = [(unit, draw(st.lists(st.integers(1, MS), min_size=1, max_size=2))) for unit in places]
        entries.append(Entry(f"face{number}", stages, priority=True, slots=draw(st.integers(1, 3)), queue=1))
    for number in range(draw(st.integers(1, 3))):
        places = draw(st.lists(st.integers(0, units - 1), min_size=1, max_size=4))
        places = [unit for unit, _ in itertools.groupby(places)]
        stages = [(unit, draw(st.lists(st.integers(MS // 20, 6 * MS), min_size=1, max_size=3))) for unit in places]
        entries.append(
            Entry(
                f"big{number}",
                stages,
                slots=draw(st.integers(1, 3)),
                queue=draw(st.integers(1, 3)),
                every=draw(st.integers(1, 3)),
                when_full=draw(st.sampled_from(["drop-oldest", "drop-newest"])),
            )
        )
    return units, link_ns, entries


def played(units: int, link_ns: int, entries: Sequence[Entry], most: float, seed: int, guard_ns: int = 0) -> UnitGroup:
    """A run of 40 windows whose launches take up to so many times their estimates; it is sound."""
    random = np.random.default_rng(seed)
    estimates = {label: ns for entry in entries for label, ns in zip(entry.labels(), entry.estimates_ns, strict=True)}
    device = FakeDevice(
        lambda label, _: max(int(estimates[label] * random.uniform(0.05, most)), 1), units=units, link_ns=link_ns
    )
    group, jobs = made(device, *entries, guard_ns=guard_ns, link_ns=link_ns)
    group.run(40)
    assert_sound(group, jobs, entries, 40, link_ns)
    return group


@settings(deadline=None, max_examples=25)
@given(workloads(), st.integers(0, 2**32 - 1), st.integers(0, MS))
def test_priority_is_never_late_while_estimates_hold(
    workload: tuple[int, int, list[Entry]], seed: int, guard_ns: int
) -> None:
    """Whatever else runs on whatever units: each stage starts at its instant, in every window; no frame is lost."""
    units, link_ns, entries = workload
    for entry in entries:
        entry.sink = ListSink()
    due = planned(entries, link_ns)
    if any(end + guard_ns > WINDOW_NS for _, end in due.values()):
        guard_ns = 0
    if any(end > WINDOW_NS for _, end in due.values()):
        return
    group = played(units, link_ns, entries, 1.0, seed, guard_ns)
    starts: dict[tuple[str, int], int] = {}
    for label, frame, begin, _ in launched(group, entries):
        starts[label, frame] = round(begin * MS)
    for number, entry in enumerate(entries):
        if not entry.priority:
            continue
        assert fates(group, number) == dict.fromkeys(range(40), FrameOutcome.DONE)
        segment = 0
        for position, (_, estimates) in enumerate(entry.stages):
            for frame in range(40):
                begin = starts[entry.labels()[segment], frame]
                assert begin == frame * WINDOW_NS + due[entry.name, position][0]
            segment += len(estimates)


@settings(deadline=None, max_examples=25)
@given(workloads(), st.integers(0, 2**32 - 1), st.floats(0.5, 6.0))
def test_nothing_is_lost_however_long_launches_take(
    workload: tuple[int, int, list[Entry]], seed: int, most: float
) -> None:
    """Each frame has one fate, outputs keep their order, nobody waits for ever; what can run goes on running."""
    units, link_ns, entries = workload
    for entry in entries:
        entry.sink = ListSink()
    group = played(units, link_ns, entries, most, seed)
    for number, entry in enumerate(entries):
        if entry.priority:
            done = [f for f, fate in fates(group, number).items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE)]
            assert done


def test_the_same_run_again() -> None:
    """Bit for bit, whatever else happened on the clock before."""
    entries = [
        Entry("face", [(0, [MS]), (1, [MS])], priority=True),
        Entry("a", [(1, [2 * MS]), (2, [3 * MS]), (0, [MS, MS])], slots=3),
        Entry("b", [(0, [3 * MS]), (2, [2 * MS])]),
    ]
    tables = []
    for _ in range(2):
        for entry in entries:
            entry.sink = ListSink()
        group = played(3, MS // 7, entries, 1.3, 5)
        tables.append((group.launches.rows(), group.frames.rows(), group.trace().time_ns))
    for one, other in zip(*tables, strict=True):
        assert np.array_equal(one, other)


def test_a_failing_unit_ends_the_run_of_all() -> None:
    """What happened is kept, every frame is accounted for, and the failure is raised."""
    device = FakeDevice({"big.0": 3 * MS, "big.1": 3 * MS, "other": 2 * MS}, units=2, fail_at=11)
    entries = [Entry("big", [(0, [3 * MS]), (1, [3 * MS])]), Entry("other", [(1, [2 * MS])])]
    group, _ = made(device, *entries)
    with pytest.raises(DeviceError, match="told to fail"):
        group.run(50)
    assert 3 <= group.windows <= 5
    assert len(group.launches.finished()) == len(device.launches)
    for number in (0, 1):
        assert set(fates(group, number)) >= set(range(group.windows - 1))
    assert [frame for frame, _ in entries[0].sink.taken] == [
        frame for frame, fate in sorted(fates(group, 0).items()) if fate == FrameOutcome.DONE
    ]


def test_stop_ends_all_units() -> None:
    """At the same time, with all frames accounted for."""
    device = FakeDevice({"big.0": 3 * MS, "big.1": 3 * MS}, units=2)
    entries = [Entry("big", [(0, [3 * MS]), (1, [3 * MS])])]
    group, _ = made(device, *entries)
    group.run(100, stop=lambda: device.clock.now_ns() >= 45 * MS)
    assert group.windows == 3
    assert sorted(fates(group, 0)) == [0, 1, 2]
    assert device.clock.now_ns() <= 60 * MS


def test_streams_without_waiting_bring_all_units_the_same_frames() -> None:
    """Models of one feed on two units each see every frame, numbered alike."""
    feed = Feed()
    device = FakeDevice(MS, units=2)
    entries = [Entry("a", [(0, [MS])], feed=feed), Entry("b", [(1, [MS])], feed=feed)]
    group, jobs = made(device, *entries)
    group.run(30)
    assert_sound(group, jobs, entries, 30, 0)
    assert fates(group, 0) == fates(group, 1) == dict.fromkeys(range(30), FrameOutcome.DONE)
    assert feed.delivered == 30


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.integers(MS // 20, 9 * MS), min_size=1, max_size=3), min_size=2, max_size=4),
    st.none() | st.integers(0, 25),
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 1.5),
    st.data(),
)
def test_a_stream_waits_for_models_on_all_units(
    models: list[list[int]], length: int | None, seed: int, most: float, data: st.DataObject
) -> None:
    """Whichever unit they are on, in stages or not: each frame of the stream reaches them all, and none is dropped."""
    feed, random = Feed(waits=True), np.random.default_rng(seed)
    entries = []
    for number, estimates in enumerate(models):
        units = [data.draw(st.integers(0, 1)) for _ in estimates]
        stages = [
            (unit, [estimates[index] for index in group])
            for unit, group in (
                (unit, list(group)) for unit, group in itertools.groupby(range(len(units)), units.__getitem__)
            )
        ]
        entries.append(Entry(f"m{number}", stages, queue=1, when_full="block", feed=feed, length=length))
    device = FakeDevice(
        lambda label, _: max(int(dict(estimate_of(entries))[label] * random.uniform(0.05, most)), 1), units=2
    )
    group, _ = made(device, *entries)
    group.run(60)
    delivered = feed.delivered
    assert delivered + feed.waited <= group.windows <= 60
    for number, entry in enumerate(entries):
        found = fates(group, number)
        assert sorted(found) == list(range(delivered))
        assert set(found.values()) <= {FrameOutcome.DONE, FrameOutcome.RUN_ENDED}
        done = sorted(frame for frame, fate in found.items() if fate == FrameOutcome.DONE)
        assert done == list(range(len(done)))
        assert [frame for frame, _ in entry.sink.taken] == done
        if group.ended:
            assert len(done) == delivered == length


def estimate_of(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Of each label."""
    return [pair for entry in entries for pair in zip(entry.labels(), entry.estimates_ns, strict=True)]


def test_the_end_of_a_stream_ends_all_units() -> None:
    """A feed that does not wait: frames that were there have a fate on each unit."""
    device = FakeDevice({"a": MS, "b.0": MS, "b.1": MS}, units=2)
    entries = [Entry("a", [(0, [MS])], length=5), Entry("b", [(1, [MS]), (0, [MS])])]

    class Ending(NumberStream):
        """Says at the end only that it is over."""

        def read(self, frame: int, tensor: object) -> np.ndarray:  # type: ignore[override]
            """A frame, while there are any."""
            from framefit.execution.streams import EndOfStream

            if frame >= 5:
                raise EndOfStream("ended")
            return NumberStream.read(frame, tensor)  # type: ignore[arg-type]

    group, jobs = made(device, *entries)
    jobs["a"][0].sources = {"x": Ending(5), "number": Ending(5)}
    group.run(100)
    assert group.ended
    assert group.windows == 6
    assert fates(group, 0) == dict.fromkeys(range(5), FrameOutcome.DONE)
    assert set(fates(group, 1)) >= set(range(5))


# In real time --------------------------------------------------------------------------------


class Side(FakeDevice):
    """Launches wait for their time beside one another, as units do: threads share nothing but the log."""

    def __init__(self, durations_ns: Mapping[str, int] | Callable[[str, int], int], clock: Clock) -> None:
        super().__init__(durations_ns, clock=clock, units=2)
        self.threads: defaultdict[str, set[str]] = defaultdict(set)
        self.left: Counter[str] = Counter()

    def submit(self, binding):  # type: ignore[no-untyped-def]
        """Note who runs it; fail as told."""
        self.threads[binding.label].add(threading.current_thread().name)
        self.left[binding.label] -= 1
        if not self.left[binding.label]:
            raise DeviceError("told to fail")
        return super().submit(binding)


@pytest.fixture
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes' cores do not exist."""
    import contextlib

    monkeypatch.setattr("framefit.runtime.units.pinned", lambda _core: contextlib.nullcontext())


@pytest.mark.timed
@pytest.mark.usefixtures("_one_core")
def test_threads_in_real_time() -> None:
    """Each unit has its own thread; order, slots, frames and outputs are what they are in virtual time."""
    device = Side({"face.0": MS, "face.1": MS, "big.0": 2 * MS, "big.1": 2 * MS}, RealClock())
    entries = [
        Entry("face", [(0, [MS]), (1, [MS])], priority=True),
        Entry("big", [(1, [2 * MS]), (0, [2 * MS])], slots=2),
    ]
    group, jobs = made(device, *entries)
    before = threading.active_count()
    group.run(60)
    assert threading.active_count() == before
    assert_sound(group, jobs, entries, 60, 0)
    assert device.threads["face.0"] == device.threads["big.1"] == {threading.current_thread().name}
    assert device.threads["face.1"] == device.threads["big.0"] == {"framefit-fake1"}


@pytest.mark.timed
@pytest.mark.skipif(not realtime_priority_permitted(), reason="SCHED_FIFO is not permitted here")
@pytest.mark.usefixtures("_one_core")
@pytest.mark.parametrize("preemptive", [["fake0"], ["fake1"], ["fake0", "fake1"]])
def test_units_that_interrupt_background_work(preemptive: list[str]) -> None:
    """They hand frames over as the others do, whichever of their threads is done with one."""
    device = Side({"face.0": MS, "face.1": MS, "big.0": 2 * MS, "big.1": 2 * MS}, RealClock())
    entries = [
        Entry("face", [(0, [MS]), (1, [MS])], priority=True, queue=60),
        Entry("big", [(1, [2 * MS]), (0, [2 * MS])], slots=2, queue=60),
    ]
    group, jobs = made(device, *entries, preemptive=preemptive)
    group.run(40)
    for number, entry in enumerate(entries):
        found = fates(group, number)
        assert sorted(found) == list(range(40))
        done = sorted(frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE))
        assert [frame for frame, _ in entry.sink.taken] == done == list(range(len(done)))
        assert all(outputs["number"].tolist() == [frame] for frame, outputs in entry.sink.taken)
        pipeline = jobs[entry.name][0].pipeline  # type: ignore[attr-defined]
        assert pipeline.most <= 2
    assert len(group.launches) == len(device.launches)
    assert len(group.trace()) == 2 * len(device.launches)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("framefit")]


@pytest.mark.timed
@pytest.mark.usefixtures("_one_core")
def test_a_failure_in_a_thread_is_raised() -> None:
    """By the thread that asked for the run, when all have ended."""
    device = Side(lambda *_: MS, RealClock())
    device.left["b"] = 5
    entries = [Entry("a", [(0, [MS])]), Entry("b", [(1, [MS])])]
    group, _ = made(device, *entries)
    begin = time.monotonic()
    with pytest.raises(DeviceError, match="told to fail"):
        group.run(100_000)
    assert time.monotonic() - begin < 60
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("framefit")]
    assert group.windows <= 50
    assert len(group.launches.finished()) == len(device.launches) >= 4


@pytest.mark.timed
@pytest.mark.usefixtures("_one_core")
def test_a_stream_that_waits_in_real_time() -> None:
    """Two threads let its frames come: each once."""
    feed = Feed(waits=True)
    device = Side({"a.0": MS, "a.1": MS, "b": 2 * MS}, RealClock())
    entries = [
        Entry("a", [(0, [MS]), (1, [MS])], queue=1, when_full="block", feed=feed, length=40),
        Entry("b", [(1, [2 * MS])], queue=1, when_full="block", feed=feed, length=40),
    ]
    group, _ = made(device, *entries, rate_hz=250.0)
    group.run(2000)
    for number, entry in enumerate(entries):
        assert fates(group, number) == dict.fromkeys(range(40), FrameOutcome.DONE)
        assert [frame for frame, _ in entry.sink.taken] == list(range(40))


def test_frames_are_logged_when_their_fate_is_known() -> None:
    """The joined log is in that order, and unfinished frames come last."""
    device = FakeDevice({"a": 3 * MS, "b": 30 * MS}, units=2)
    group, _ = made(device, Entry("a", [(0, [3 * MS])]), Entry("b", [(1, [0])], queue=9))
    group.run(10)
    rows = group.frames.rows()
    known = np.maximum(rows[:, FrameLog.RELEASED], rows[:, FrameLog.FINISHED])
    ended = rows[:, FrameLog.OUTCOME] == FrameOutcome.RUN_ENDED
    assert (np.diff(known[~ended]) >= 0).all()
    assert ended.any()
    assert not ended[: int((~ended).sum())].any()


@pytest.mark.timed
@pytest.mark.usefixtures("_one_core")
@pytest.mark.parametrize("name", ["residual", "lstm"])
def test_what_threads_compute_is_what_the_model_computes(name: str, tmp_path: Path) -> None:
    """By ONNX Runtime, in three stages on two units, several frames in flight, state handed on: no value differs."""
    model = NETWORKS[name]()
    state = {"hidden": "next_hidden", "cell": "next_cell"} if name == "lstm" else {}
    device = OrtDevice(MachineSettings(cores=(0, 1)), cache=tmp_path)
    ends = [cut.position for cut in model.legal_cuts[:2]]
    pieces = [(begin, end - 1) for begin, end in itertools.pairwise([0, *ends, len(model.layers)])]
    units = ["cpu0", "cpu1", "cpu0"][: len(pieces)]
    staged = Execution(model, pieces, device, units, state=state, slots=2)
    sink, stream = ListSink(), ArrayFrames(20)
    whole = Job(
        execution=staged,
        first_program=0,
        priority=False,
        estimates_ns=[MS] * len(pieces),
        deadline_ns=None,
        sources={tensor.name: stream for tensor in staged.inputs},
        input=FrameChannel(1, "block"),
        feed=Feed(waits=True),
        sinks=[(sink, None)],
        model=0,
    )
    assignments: dict[str, list[Job]] = {"cpu0": [], "cpu1": []}
    mailboxes = unit_mailboxes(device.clock, [unit for unit in assignments if unit in units])
    ports = [Port(unit, mailboxes[unit], units[:place].count(unit)) for place, unit in enumerate(units)]
    stages = stage_jobs(whole, staged.stages(), staged.slots, [0] * len(units), device, ports)
    for unit, job in zip(units, stages, strict=True):
        assignments[unit].append(job)
    group = UnitGroup(
        device,
        device.clock,
        {unit: UnitAssignment(jobs, Rotation(len(jobs))) for unit, jobs in assignments.items()},
        Grid(250),
        mailboxes=mailboxes,
    )
    group.run(5000)
    reference = Execution(
        model, [(0, len(model.layers) - 1)], OrtDevice(MachineSettings(cores=(0,)), cache=tmp_path), "cpu0", state=state
    )
    assert [frame for frame, _ in sink.taken] == list(range(20))
    for frame, outputs in sink.taken:
        given = {tensor.name: stream.read(frame, tensor) for tensor in reference.inputs}
        assert greatest_difference(outputs, reference.run(given)) <= 1e-4


class ArrayFrames(NumberStream):
    """Random frames, each from its own seed."""

    @staticmethod
    def read(frame: int, tensor: TensorInfo) -> np.ndarray:
        """An array of that number's seed."""
        return random_inputs([tensor], np.random.default_rng(frame))[tensor.name]
