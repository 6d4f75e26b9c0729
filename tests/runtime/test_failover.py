"""A unit that fails for good: its models go on on another one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice
from framefit.core.faults import Fault
from framefit.core.workload import WhenFull
from framefit.devices.clock import Clock, RealClock
from framefit.devices.faulty import FaultyDevice
from framefit.execution.execution import Execution
from framefit.runtime.log import FrameOutcome
from framefit.runtime.loop import LEAD_NS
from framefit.runtime.recovery import FailoverTarget
from framefit.runtime.streams import Feed
from framefit.runtime.units import UnitGroup
from unit_groups import MS, Entry, fates, made, network


def run(
    entries: Sequence[Entry],
    faults: Sequence[Fault],
    windows: int,
    *,
    units: int = 2,
    nowhere: Sequence[str] = (),
    clock: Clock | None = None,
    link_ns: int = 0,
) -> UnitGroup:
    """A run in which models may go on on any unit that works, but for some."""
    estimates = {label: ns for entry in entries for label, ns in zip(entry.labels(), entry.estimates_ns, strict=True)}
    fake = FakeDevice(lambda label, _: estimates[label], units=units, clock=clock, link_ns=link_ns, on_host=False)
    device = FaultyDevice(fake, faults)
    device.patience_ns = 15 * MS

    def find_target(model: int, working: Sequence[str]) -> FailoverTarget | None:
        entry = entries[model]
        if entry.name in nowhere:
            return None
        count = len(entry.estimates_ns)
        bounds = [(layer, layer) for layer in range(count)]
        execution = Execution(network(count), bounds, device, working[0], name=entry.name)
        first_program = sum(len(one.estimates_ns) for one in entries[:model])
        return FailoverTarget(working[0], execution, entry.estimates_ns, first_program)

    group, jobs = made(device, *entries, find_target=find_target)  # type: ignore[arg-type]  # a device like any other
    for entry in entries:
        for job in jobs[entry.name]:
            job.on_error = "skip" if entry.priority else "retry"
    device.arm(device.clock.now_ns() + LEAD_NS)
    group.run(windows)
    for number, entry in enumerate(entries):
        found = fates(group, number)
        assert sorted(found) == list(range(len(found)))
        done = sorted(frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE))
        assert [frame for frame, _ in entry.sink.taken] == done
        assert all(outputs["number"].tolist() == [frame] for frame, outputs in entry.sink.taken)
    return group


def gone(unit: int, begin_ns: int) -> list[Fault]:
    """Every launch on a unit fails from then on."""
    return [Fault(kind="raise", name=f"fake{unit}", begin_ns=begin_ns)]


def test_models_go_on_elsewhere() -> None:
    """After three frames each a background and a priority model have moved, and miss nothing more; nor do others."""
    entries = [
        Entry("face", [(0, [2 * MS])], priority=True),
        Entry("eyes", [(1, [2 * MS])], priority=True),
        Entry("a", [(0, [2 * MS])]),
        Entry("b", [(1, [MS, MS])]),
    ]
    group = run(entries, gone(1, 100 * MS), 60)
    assert fates(group, 0) == fates(group, 2) == dict.fromkeys(range(60), FrameOutcome.DONE)
    for model in (1, 3):
        found = fates(group, model)
        lost = [frame for frame, fate in found.items() if fate != FrameOutcome.DONE]
        assert lost == list(range(10, 10 + len(lost)))
        assert 3 <= len(lost) <= 4
    assert group.faults.degraded == set()
    assert {(one.model, one.unit, one.to) for one in group.migrations} == {(1, "fake1", "fake0"), (3, "fake1", "fake0")}
    assert {one.window for one in group.migrations} == {13}


def test_a_model_that_fails_where_it_went_to() -> None:
    """It rests there as it would have at home, and is done again when it can be."""
    entries = [Entry("a", [(0, [2 * MS])]), Entry("b", [(1, [2 * MS])])]
    faults = [*gone(1, 50 * MS), Fault(kind="raise", name="b", begin_ns=200 * MS, end_ns=240 * MS)]
    group = run(entries, faults, 60)
    found = fates(group, 1)
    assert [frame for frame, fate in found.items() if fate == FrameOutcome.FAILED] == [5, 6, 7, 20, 21, 22]
    assert [frame for frame, fate in found.items() if fate == FrameOutcome.DEGRADED] == list(range(23, 31))
    assert set(fates(group, 0).values()) == {FrameOutcome.DONE}
    assert group.faults.degraded == set()
    assert [one.to for one in group.migrations] == ["fake0"]


def test_a_result_that_arrives_after_the_end() -> None:
    """A model that has migrated is given its frame all the same, and each frame has one outcome."""
    entries = [Entry("a", [(0, [2 * MS])]), Entry("b", [(1, [2 * MS])], reads=["a"]), Entry("c", [(2, [2 * MS])])]
    group = run(entries, gone(1, 50 * MS), 60, units=3, link_ns=300 * MS)
    assert [(one.model, one.to) for one in group.migrations] == [(1, "fake0")]
    assert sum(outcome == FrameOutcome.RUN_ENDED for outcome in fates(group, 1).values()) > 20


def test_what_has_no_place_elsewhere_stays_degraded() -> None:
    """The others move all the same."""
    entries = [Entry("face", [(0, [2 * MS])], priority=True), Entry("a", [(1, [2 * MS])]), Entry("b", [(1, [2 * MS])])]
    group = run(entries, gone(1, 50 * MS), 60, nowhere=["b"])
    assert set(fates(group, 0).values()) == {FrameOutcome.DONE}
    assert sum(fate == FrameOutcome.DONE for fate in fates(group, 1).values()) >= 55
    assert sum(fate == FrameOutcome.DONE for fate in fates(group, 2).values()) == 5
    assert group.faults.degraded == {2}


def test_one_model_that_fails_is_no_unit_that_does() -> None:
    """While anything succeeds there, nothing moves."""
    entries = [Entry("a", [(0, [2 * MS])]), Entry("b", [(1, [2 * MS])]), Entry("c", [(1, [2 * MS])])]
    group = run(entries, [Fault(kind="raise", name="b")], 60)
    assert group.migrations == []
    assert group.faults.degraded == {1}
    assert set(fates(group, 2).values()) == {FrameOutcome.DONE}


def test_one_unit_after_the_other() -> None:
    """What has moved is not moved again; what is on the second one goes to the third."""
    entries = [Entry("a", [(0, [2 * MS])]), Entry("b", [(1, [2 * MS])]), Entry("c", [(2, [2 * MS])])]
    group = run(entries, [*gone(2, 50 * MS), *gone(1, 200 * MS)], 60, units=3)
    assert [(one.model, one.unit, one.to) for one in group.migrations] == [(2, "fake2", "fake0"), (1, "fake1", "fake0")]
    assert set(fates(group, 0).values()) == {FrameOutcome.DONE}
    assert all(fates(group, model)[59] == FrameOutcome.DONE for model in (1, 2))


def test_a_frame_that_waits_when_its_model_moves() -> None:
    """It goes along: the unit that has failed does not try to begin it."""
    entries = [Entry("face", [(1, [MS])], priority=True, every=4), Entry("a", [(0, [MS])]), Entry("b", [(1, [MS])])]
    group = run(entries, gone(1, 50 * MS), 60)  # b rests until window 16, in which face fails for the third time
    assert {(one.model, one.window, one.to) for one in group.migrations} == {(0, 17, "fake0"), (2, 17, "fake0")}
    assert [fates(group, 2)[frame] for frame in (15, 16)] == [FrameOutcome.DEGRADED, FrameOutcome.DONE]


@pytest.mark.parametrize("waits", [False, True])
def test_streams_of_models_that_move(waits: bool) -> None:
    """A stream that several units read keeps its frames together, and its end waits for the one that moved."""
    feed, length = Feed(waits=waits), 30 if waits else None
    kind: WhenFull = "block" if waits else "drop-oldest"
    entries = [
        Entry("a", [(0, [2 * MS])], feed=feed, when_full=kind, length=length),
        Entry("b", [(1, [3 * MS])], feed=feed, when_full=kind, length=length),
    ]
    group = run(entries, gone(1, 50 * MS), 200 if waits else 30)
    assert group.windows < 60
    assert sorted(fates(group, 0)) == sorted(fates(group, 1)) == list(range(30))
    assert fates(group, 1)[29] == FrameOutcome.DONE


@pytest.mark.timed
@pytest.mark.parametrize("stages", [[(1, [MS])], [(0, [MS]), (1, [MS])]])
def test_in_real_time(stages: list[tuple[int, list[int]]]) -> None:
    """Another thread looks for a place, and the run goes on meanwhile."""
    entries = [Entry("face", [(0, [MS])], priority=True), Entry("a", [(0, [MS])]), Entry("b", stages)]
    group = run(entries, gone(1, 100 * MS), 60, clock=RealClock())
    assert [(one.model, one.to) for one in group.migrations] == [(2, "fake0")]
    found = fates(group, 2)
    assert sorted(found) == list(range(60))
    assert sum(fate in (FrameOutcome.DONE, FrameOutcome.LATE) for frame, fate in found.items() if frame > 20) > 5


@settings(deadline=None, max_examples=25)
@given(
    begin=st.integers(0, 300 * MS),
    own=st.lists(st.integers(MS // 10, 4 * MS), min_size=1, max_size=3),
    there=st.lists(st.integers(MS // 10, 4 * MS), min_size=1, max_size=3),
    priority=st.booleans(),
    queue=st.integers(1, 3),
)
def test_nothing_is_lost_or_done_twice(
    begin: int, own: list[int], there: list[int], priority: bool, queue: int
) -> None:
    """Whenever the unit fails; and the priority model that was there goes on unharmed where all fits."""
    entries = [
        Entry("face", [(0, [MS])], priority=True, queue=1),
        Entry("eyes", [(1, own)], priority=priority, queue=queue),
        Entry("a", [(0, there)], queue=queue),
    ]
    group = run(entries, gone(1, begin), 60)
    for model in range(3):
        assert sorted(fates(group, model)) == list(range(60))
    assert len(group.migrations) == 1
    assert fates(group, 0) == dict.fromkeys(range(60), FrameOutcome.DONE) or sum(own) > 8 * MS


# Models in several stages, and those that read what has moved


@pytest.mark.parametrize("failing", [0, 1])
def test_a_model_in_stages_goes_on_in_one_piece(failing: int) -> None:
    """Whichever of its units fails: frames that were under way are done or given up first, then it goes on."""
    entries = [
        Entry("face", [(1 - failing, [MS])], priority=True),
        Entry("a", [(0, [2 * MS]), (1, [2 * MS, MS]), (0, [MS])], slots=3, queue=3),
    ]
    group = run(entries, gone(failing, 100 * MS), 60)
    (migrations,) = group.migrations
    assert (migrations.model, migrations.unit, migrations.to) == (1, f"fake{failing}", f"fake{1 - failing}")
    found = fates(group, 1)
    lost = [frame for frame, fate in found.items() if fate != FrameOutcome.DONE]
    assert 3 <= len(lost) <= 6
    assert max(lost) <= 20
    assert set(fates(group, 0).values()) == {FrameOutcome.DONE}
    assert group.faults.degraded == set()


def test_a_priority_model_in_stages_keeps_its_beat_elsewhere() -> None:
    """Frames that waited until those under way were given up are not in the way of later ones."""
    entries = [Entry("face", [(0, [MS]), (1, [2 * MS])], priority=True, queue=2), Entry("a", [(0, [2 * MS])])]
    group = run(entries, gone(1, 100 * MS), 60)
    assert [one.model for one in group.migrations] == [0]
    assert all(fate == FrameOutcome.DONE for frame, fate in fates(group, 0).items() if frame > 20)


def test_a_stream_that_waits_for_a_model_in_stages() -> None:
    """It goes on when the frames under way are gone, though no other frame comes before."""
    entries = [Entry("a", [(0, [2 * MS]), (1, [3 * MS])], feed=Feed(waits=True), when_full="block", length=30, queue=1)]
    group = run(entries, gone(1, 50 * MS), 300)
    assert len(group.migrations) == 1
    assert sorted(fates(group, 0)) == list(range(30))
    assert fates(group, 0)[29] == FrameOutcome.DONE


@pytest.mark.parametrize("stages", [[(1, [MS])], [(0, [MS]), (1, [MS])]])
def test_what_reads_a_model_that_has_moved(stages: list[tuple[int, list[int]]]) -> None:
    """It gets the frames of the new place, also where it moves itself."""
    entries = [
        Entry("a", stages, slots=2),
        Entry("b", [(0, [MS])], reads=["a"]),
        Entry("c", [(1, [MS])], reads=["b"]),
    ]
    group = run(entries, gone(1, 100 * MS), 60)
    assert {one.model for one in group.migrations} == {0, 2}
    for model in range(3):
        assert all(fate == FrameOutcome.DONE for frame, fate in fates(group, model).items() if 25 < frame < 58)


@settings(deadline=None, max_examples=25)
@given(
    begin=st.integers(0, 300 * MS),
    units=st.sampled_from([(0, 1), (1, 0), (0, 1, 0), (1, 0, 1), (0, 1, 2), (2, 1, 0)]),
    lasts=st.lists(st.integers(MS // 10, 3 * MS), min_size=3, max_size=3),
    slots=st.integers(1, 3),
    queue=st.integers(1, 3),
    priority=st.booleans(),
    read=st.booleans(),
    failing=st.integers(0, 2),
)
def test_no_frame_of_a_model_in_stages_is_lost_or_done_twice(
    begin: int,
    units: tuple[int, ...],
    lasts: list[int],
    slots: int,
    queue: int,
    priority: bool,
    read: bool,
    failing: int,
) -> None:
    """Whichever unit fails whenever; its results stay in order, and those of who reads it are theirs."""
    stages = [(unit, [last]) for unit, last in zip(units, lasts, strict=False)]
    entries = [
        Entry("a", stages, priority=priority, slots=1 if priority else slots, queue=queue),
        Entry("b", [(0, [MS])], queue=queue, reads=["a"] if read else []),
        Entry("c", [(2, [MS])], queue=queue),
    ]
    group = run(entries, gone(failing, begin), 60, units=3)
    for model in range(3):
        assert sorted(fates(group, model)) == list(range(60))
    assert fates(group, 2)[58] == FrameOutcome.DONE
    used = {0: {unit for unit, _ in stages}, 1: {0}, 2: {2}}
    assert {one.model for one in group.migrations} == {model for model, own in used.items() if failing in own}


def test_results_of_frames_that_were_under_way_when_their_model_moved() -> None:
    """What reads the model gets what the stage that finished them computed, not what the new place holds."""
    entries = [Entry("a", [(1, [MS]), (0, [4 * MS] * 3)], slots=4, queue=4), Entry("b", [(0, [MS])], reads=["a"])]
    group = run(entries, gone(1, 100 * MS), 60)
    (migration,) = group.migrations
    moved_ns = group.release(migration.window)
    rows = [row for row in group.frames.rows().tolist() if row[0] == 0]
    finished_later = [frame for _, frame, *_, begun, ended, _ in rows if 0 <= begun < moved_ns < ended]
    assert finished_later
    assert all(fates(group, 1)[frame] == FrameOutcome.DONE for frame in finished_later)
