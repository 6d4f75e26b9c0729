"""Models that read others: which frames they get, when, and what becomes of those that they do not get."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice, ListSink
from framefit.core.model import TensorInfo
from framefit.devices.clock import RealClock
from framefit.devices.host import realtime_priority_permitted
from framefit.runtime.channel import FrameChannel
from framefit.runtime.job import Job
from framefit.runtime.log import FrameOutcome
from framefit.runtime.reading import ResultJoin, ResultStream, with_unread
from framefit.runtime.streams import Arrival, Feed
from framefit.runtime.units import UnitGroup
from unit_groups import MS, WINDOW_NS, Entry, assert_sound, fates, launched, made, planned

NUMBER = TensorInfo(name="number", dtype="int64", shape=(1,))


def supply(copies: int) -> ResultStream:
    """Of one tensor."""
    return ResultStream({"number": ("out", NUMBER)}, copies)


def seven(name: str) -> np.ndarray:
    """An output that is always the same."""
    return np.full(1, 7)


def test_copies_are_bounded_and_come_back() -> None:
    """A frame that finds no copy is not given; one that is passed over, dropped or read makes room for another."""
    one = supply(2)
    assert [one.keep(0, seven), one.keep(1, seven), one.keep(2, seven)] == [True, True, False]
    one.skip(0)
    assert one.keep(3, seven)
    one.offer(1, 5)
    assert one.has(5)
    assert one.read(5, NUMBER).tolist() == [7]
    one.let_go(5)
    assert not one.has(5)
    assert one.keep(4, seven)
    assert one.most == 2


def test_a_queue_lets_go_what_it_drops_and_what_was_read() -> None:
    """Frames in use stay until as many others are taken."""
    one = supply(6)
    queue = FrameChannel(2, buffers=[one])
    for frame in range(3):
        assert one.keep(frame, seven)
        one.offer(frame, frame)
        queue.offer(Arrival(frame, frame))
    assert [one.has(frame) for frame in range(3)] == [False, True, True]
    assert queue.take()[0] == [Arrival(1, 1)]
    assert one.has(1)
    assert queue.take()[0] == [Arrival(2, 2)]
    assert [one.has(1), one.has(2)] == [False, True]
    assert one.keep(3, seven)
    one.offer(3, 3)
    queue.offer(Arrival(3, 3))
    assert [frame.frame for frame in queue.clear()] == [3]
    assert not one.has(3)


class Idle:
    """A model without frames."""

    pending = False


def test_results_of_one_release_are_read_together() -> None:
    """Of a release that one model dropped the other one's result is passed over; numbers are the first one's."""
    both = [supply(4), supply(4)]
    join = ResultJoin([Idle(), Idle()], [0, 1], both)

    def add(source: int, frame: int, window: int) -> list[int]:
        assert both[source].keep(frame, seven)
        return [arrival.frame for arrival, wanted in join.add(source, Arrival(frame, window)) if wanted]

    assert add(0, 10, 1) == []
    assert add(0, 11, 2) == []
    assert add(1, 52, 2) == [11]
    assert both[1].has(11)
    assert add(1, 53, 4) == []
    assert add(0, 12, 3) == []
    assert add(0, 13, 4) == [13]


@pytest.mark.parametrize(("steps", "taken"), [((), [0, 6]), ((Fraction(2),), [0, 4, 8])])
def test_every_counts_results_or_releases(steps: tuple[Fraction, ...], taken: list[int]) -> None:
    """Every second result; where frames are due by their numbers, every second number, whatever was dropped."""
    one = supply(4)
    join = ResultJoin([Idle()], [0], [one], every=2, steps=steps)
    found = []
    for frame in (0, 4, 6, 8):
        assert one.keep(frame, seven)
        for arrival, wanted in join.add(0, Arrival(frame, frame)):
            if wanted:
                found.append(arrival.frame)
                one.let_go(arrival.frame)
    assert found == taken


def test_what_a_model_does_not_get_has_a_fate() -> None:
    """Dropped there: never given; skipped there: skipped; done there and never seen: the run ended."""
    rows = np.array(
        [
            [0, 0, FrameOutcome.DONE, 0, 1, 2, 0],
            [0, 1, FrameOutcome.QUEUE_FULL, 10, -1, -1, 1],
            [0, 2, FrameOutcome.SKIPPED, 20, -1, -1, 2],
            [0, 3, FrameOutcome.DONE, 30, 31, 45, 3],
            [0, 4, FrameOutcome.LATE, 40, 31, 45, 4],
            [1, 0, FrameOutcome.DONE, 0, 3, 4, 0],
        ]
    )
    found = with_unread(rows, {1: [0], 2: [1]}, ended=True)
    of = {(row[0], row[1]): FrameOutcome(row[2]) for row in found.tolist()}
    assert [of[1, frame] for frame in range(5)] == [
        *(
            FrameOutcome.DONE,
            FrameOutcome.NOT_GIVEN,
            FrameOutcome.SKIPPED,
            FrameOutcome.SKIPPED,
            FrameOutcome.RUN_ENDED,
        ),
    ]
    assert [of[2, frame] for frame in range(5)] == [
        *(
            FrameOutcome.RUN_ENDED,
            FrameOutcome.NOT_GIVEN,
            FrameOutcome.SKIPPED,
            FrameOutcome.SKIPPED,
            FrameOutcome.RUN_ENDED,
        ),
    ]
    assert (1, 4) not in {(row[0], row[1]) for row in with_unread(rows, {1: [0]}, ended=False).tolist()}


def test_a_reader_starts_when_the_other_is_done() -> None:
    """On the same unit at once, on another one when the link has carried the result."""
    device = FakeDevice({"a": MS, "near": MS, "far": MS}, units=2, link_ns=2 * MS)
    entries = [Entry("a", [(0, [MS])]), Entry("near", [(0, [MS])], reads=["a"]), Entry("far", [(1, [MS])], reads=["a"])]
    group, jobs = made(device, *entries, link_ns=2 * MS)
    group.run(2)
    assert launched(group, entries) == [
        *(("a", 0, 0.0, 1.0), ("near", 0, 1.0, 2.0), ("far", 0, 3.0, 4.0)),
        *(("a", 1, 10.0, 11.0), ("near", 1, 11.0, 12.0), ("far", 1, 13.0, 14.0)),
    ]
    assert device.handed[0] == ("fake0", "fake1", 24, group.start_ns + MS)
    assert_sound(group, jobs, entries, 2, 0)


def test_a_priority_reader_waits_for_a_late_result() -> None:
    """Nothing else starts on its unit meanwhile, and its next frame has an instant of its own."""
    took = iter([5 * MS])
    device = FakeDevice(lambda label, _: next(took, MS) if label == "a" else MS, units=2)
    entries = [
        Entry("a", [(0, [MS])], priority=True),
        Entry("id", [(1, [MS])], priority=True, reads=["a"]),
        Entry("b", [(1, [MS])], queue=4),
    ]
    group, jobs = made(device, *entries)
    group.run(3)
    assert [(label, begin) for label, _, begin, _ in launched(group, entries) if label != "a"] == [
        *(("b", 0.0), ("id", 5.0)),
        *(("b", 10.0), ("id", 11.0)),
        *(("b", 20.0), ("id", 21.0)),
    ]
    assert_sound(group, jobs, entries, 3, 0)


@st.composite
def chains(draw: st.DrawFn) -> tuple[int, int, list[Entry]]:
    """Units, a link's time, and models of which some read one or two others."""
    units, link_ns = draw(st.integers(1, 3)), draw(st.sampled_from([0, MS // 3, 2 * MS]))
    entries: list[Entry] = []
    for number in range(draw(st.integers(2, 5))):
        priority = number < 2
        names = [entry.name for entry in entries if entry.priority or not priority]
        reads = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if names else []
        places = draw(st.lists(st.integers(0, units - 1), min_size=1, max_size=3))
        places = [unit for unit, _ in itertools.groupby(places)]
        most = MS // 2 if priority else 4 * MS
        stages = [(unit, draw(st.lists(st.integers(MS // 20, most), min_size=1, max_size=2))) for unit in places]
        entries.append(
            Entry(
                f"model{number}",
                stages,
                priority=priority,
                slots=draw(st.integers(1, 3)),
                queue=1 if priority else draw(st.integers(1, 3)),
                every=1 if priority else draw(st.integers(1, 2)),
                when_full=draw(st.sampled_from(["drop-oldest", "drop-newest"])),
                reads=reads,
            )
        )
    return units, link_ns, entries


def assert_read(group: UnitGroup, jobs: dict[str, list[Job]], entries: Sequence[Entry], link_ns: int) -> None:
    """Nobody begins before what it reads is there; copies were enough, and all came back but those in use."""
    times = {(label, frame): (begin, end) for label, frame, begin, end in launched(group, entries)}
    by_name = {entry.name: entry for entry in entries}
    for entry in entries:
        if not entry.reads:
            continue
        found = jobs[entry.name][0].join
        assert found is not None
        assert all(one.most <= one.copies for one in found.streams)
        for frame, fate in fates(group, entries.index(entry)).items():
            if fate not in (FrameOutcome.DONE, FrameOutcome.LATE):
                continue
            for name in entry.reads:
                giver = by_name[name]
                crosses = giver.units[-1] != entry.units[0]
                end = times[giver.labels()[-1], frame][1]
                begin = times[entry.labels()[0], frame][0]
                assert begin * MS >= end * MS + (link_ns if crosses else 0) - 1e-3


@settings(deadline=None, max_examples=25)
@given(chains(), st.integers(0, 2**32 - 1), st.floats(0.5, 5.0))
def test_nothing_is_lost_or_mixed_up(workload: tuple[int, int, list[Entry]], seed: int, most: float) -> None:
    """Whatever takes however long: each frame has one fate, outputs are those of the frame and in order."""
    units, link_ns, entries = workload
    random = np.random.default_rng(seed)
    estimates = {label: ns for entry in entries for label, ns in zip(entry.labels(), entry.estimates_ns, strict=True)}
    device = FakeDevice(
        lambda label, _: max(int(estimates[label] * random.uniform(0.05, most)), 1), units=units, link_ns=link_ns
    )
    for entry in entries:
        entry.sink = ListSink()
    group, jobs = made(device, *entries, link_ns=link_ns)
    group.run(40)
    assert_sound(group, jobs, entries, 40, link_ns)
    assert_read(group, jobs, entries, link_ns)


@settings(deadline=None, max_examples=25)
@given(chains(), st.integers(0, 2**32 - 1))
def test_priority_readers_are_in_time_while_estimates_hold(workload: tuple[int, int, list[Entry]], seed: int) -> None:
    """Priority models that read others are done in every window, whatever runs beside them."""
    units, link_ns, entries = workload
    if any(end > WINDOW_NS for _, end in planned(entries, link_ns).values()):
        return
    random = np.random.default_rng(seed)
    estimates = {label: ns for entry in entries for label, ns in zip(entry.labels(), entry.estimates_ns, strict=True)}
    device = FakeDevice(
        lambda label, _: max(int(estimates[label] * random.uniform(0.05, 1)), 1), units=units, link_ns=link_ns
    )
    for entry in entries:
        entry.sink = ListSink()
    group, jobs = made(device, *entries, link_ns=link_ns)
    group.run(30)
    assert_sound(group, jobs, entries, 30, link_ns)
    for number, entry in enumerate(entries):
        if entry.priority:
            assert fates(group, number) == dict.fromkeys(range(30), FrameOutcome.DONE)


@pytest.mark.timed
@pytest.mark.skipif(not realtime_priority_permitted(), reason="SCHED_FIFO is not permitted here")
def test_a_reader_in_the_background_of_an_interrupted_unit() -> None:
    """The thread that keeps the beat is woken up by the one whose model is done: it does not wait for a window."""
    device = FakeDevice(MS, clock=RealClock(), units=1)
    entries = [Entry("big", [(0, [MS])], queue=1), Entry("reader", [(0, [MS])], queue=2, reads=["big"])]
    group, jobs = made(device, *entries, preemptive=["fake0"], rate_hz=10)
    group.run(4)
    assert_sound(group, jobs, entries, 4, 0)
    begun = {(label, frame): begin for label, frame, begin, _ in launched(group, entries)}
    waits = [begun["reader", frame] - begun["big", frame] for frame in range(4) if ("reader", frame) in begun]
    assert len(waits) >= 3
    assert min(waits) < 50  # half of a window


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 3),
    st.lists(st.lists(st.integers(MS, 30 * MS), min_size=1, max_size=2), min_size=2, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_a_stream_that_waits_waits_for_readers_too(units: int, models: list[list[int]], seed: int) -> None:
    """However slow one of a chain is: no frame is dropped anywhere, and all come in order."""
    random = np.random.default_rng(seed)
    feed = Feed(waits=True)
    entries = [
        Entry(
            f"model{number}",
            [(int(random.integers(units)), [1]) for _ in own],
            queue=int(random.integers(2, 4)),
            slots=int(random.integers(1, 3)),
            when_full="block",
            feed=feed if number == 0 else None,
            reads=[f"model{number - 1}"] if number else [],
        )
        for number, own in enumerate(models)
    ]
    for entry in entries:
        entry.stages = [
            (unit, [1] * len(list(run))) for unit, run in itertools.groupby(unit for unit, _ in entry.stages)
        ]
    takes = {
        label: ns
        for entry, own in zip(entries, models, strict=True)
        for label, ns in zip(entry.labels(), own, strict=True)
    }
    device = FakeDevice(lambda label, _: int(takes[label] * random.uniform(0.3, 1.5)) + 1, units=units)
    group, _ = made(device, *entries)
    group.run(60)
    for number in range(len(entries)):
        found = fates(group, number)
        assert sorted(found) == list(range(feed.delivered))
        assert set(found.values()) <= {FrameOutcome.DONE, FrameOutcome.RUN_ENDED}
    assert sum(fate == FrameOutcome.DONE for fate in fates(group, len(entries) - 1).values()) >= 1
