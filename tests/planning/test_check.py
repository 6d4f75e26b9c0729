"""The independent check of timetables."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from plans import planned
from unit_plans import link, on_units

from framefit.core.timetable import PlannedModel, Slot, Timetable
from framefit.planning.beat import Beat, Demand
from framefit.planning.check import check_timetable
from framefit.planning.timetable import build_timetable

replace = msgspec.structs.replace


def good() -> Timetable:
    """Two windows of 100: a priority model of 20 + 10, then segments of 25, 20 and 50."""
    first, later = planned("first", [20, 10], priority=True), planned("later", [25, 20, 50])
    timetable = build_timetable(Beat(100, 5), [first, later])
    assert [len(window.slots) for window in timetable.windows] == [4, 3]
    return replace(timetable, memory_bytes={"cpu0": 1000})


def with_slots(timetable: Timetable, window: int, slots: tuple[Slot, ...]) -> Timetable:
    """Other slots in one window."""
    changed = replace(timetable.windows[window], slots=slots)
    windows = [changed if index == window else old for index, old in enumerate(timetable.windows)]
    return replace(timetable, windows=tuple(windows))


def with_slot(window: int, number: int, **changes: object) -> Callable[[Timetable], Timetable]:
    """One slot changed."""

    def change(timetable: Timetable) -> Timetable:
        slots = list(timetable.windows[window].slots)
        slots[number] = replace(slots[number], **changes)
        return with_slots(timetable, window, tuple(slots))

    return change


def without_slot(window: int, number: int) -> Callable[[Timetable], Timetable]:
    """One slot left out."""

    def change(timetable: Timetable) -> Timetable:
        slots = timetable.windows[window].slots
        return with_slots(timetable, window, slots[:number] + slots[number + 1 :])

    return change


def swapped(timetable: Timetable) -> Timetable:
    """The first window's two background segments in the wrong order."""
    slots = timetable.windows[0].slots
    later = replace(slots[2], start_ns=slots[2].start_ns + slots[3].duration_ns)
    return with_slots(timetable, 0, (*slots[:2], replace(slots[3], start_ns=slots[2].start_ns), later))


def priority_twice(timetable: Timetable) -> Timetable:
    """The priority model's first segment once more in the second window."""
    slots = timetable.windows[1].slots
    return with_slots(timetable, 1, (*slots, replace(slots[0], start_ns=80)))


def shorter_window(timetable: Timetable) -> Timetable:
    """A window below the timetable's shortest."""
    return replace(timetable, windows=(replace(timetable.windows[0], length_ns=90), timetable.windows[1]))


def without_background(timetable: Timetable) -> Timetable:
    """No slot of the background model."""
    for index, window in enumerate(timetable.windows):
        timetable = with_slots(timetable, index, tuple(s for s in window.slots if s.model == "first"))
    return timetable


def renumbered(timetable: Timetable) -> Timetable:
    """A model whose list of segments has a gap."""
    first, later = timetable.models
    segments = (later.segments[0], later.segments[1], replace(later.segments[2], index=3))
    return replace(timetable, models=(first, replace(later, segments=segments)))


def test_a_good_timetable_passes() -> None:
    """Nothing is found where nothing is wrong."""
    assert check_timetable(good(), deadlines_ns={"first": 30}, memory_limit_bytes={"cpu0": 1000}) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (with_slot(0, 3, start_ns=50), "window 0: later[0] and later[1] overlap on cpu0"),
        (swapped, "later frame 0: segments run as [1, 0, 2]"),
        (without_slot(0, 3), "later frame 0: segments run as [0, 2]"),
        (with_slot(1, 2, frame=1), "later frame 0: segments run as [0, 1]"),
        (with_slot(1, 2, start_ns=46), "window 1: later[2] ends within the guard"),
        (with_slot(1, 2, start_ns=70), "window 1: later[2] leaves the window"),
        (with_slot(0, 0, start_ns=-5), "window 0: first[0] leaves the window"),
        (with_slot(0, 2, start_ns=28), "window 0: later[0] inside the priority period of first"),
        (with_slot(0, 1, start_ns=95), "window 0: first[1] ends 5 ns after its deadline"),
        (with_slot(0, 1, start_ns=21), "window 0: first[1] outside its priority period"),
        (with_slot(0, 2, unit="npu0"), "window 0: later[0] on unit 'npu0', compiled for 'cpu0'"),
        (with_slot(0, 2, duration_ns=24), "window 0: later[0] is given 24 ns and takes 25"),
        (with_slot(0, 2, model="other"), "window 0: other[0] is no segment of the plan"),
        (with_slot(0, 3, segment=7), "window 0: later[7] is no segment of the plan"),
        (priority_twice, "window 1: priority model first runs 3 segments, due is True"),
        (without_slot(1, 1), "window 1: priority model first runs 1 segments, due is True"),
        (shorter_window, "window 0: shorter than the timetable's window"),
        (without_background, "later never runs"),
        (renumbered, "later: segment 3 follows 1"),
        (lambda t: replace(t, hyperperiod_windows=3), "2 windows, hyperperiod of 3"),
        (lambda t: replace(t, memory_bytes={"cpu0": 1001}), "cpu0: 1001 bytes planned, it has 1000"),
        (lambda t: replace(t, guard_ns=31), "window 1: later[2] ends within the guard"),
    ],
)
def test_a_planted_violation_is_found(change: Callable[[Timetable], Timetable], found: str) -> None:
    """Breaking one thing of a good timetable gives the sentence that names it."""
    wrong = check_timetable(change(good()), memory_limit_bytes={"cpu0": 1000})
    assert found in wrong


def test_a_deadline_below_the_window_is_checked() -> None:
    """The priority model ends at 30: a deadline of 29 is missed in both windows, one of 30 in none."""
    wrong = check_timetable(good(), deadlines_ns={"first": 29})
    assert wrong == [f"window {index}: first[1] ends 1 ns after its deadline" for index in (0, 1)]


def test_a_model_of_every_second_window_is_checked_in_those() -> None:
    """Planned in windows 0, 2, ...: fine with every = 2, wrong without; a launch out of its turn is found."""
    beat = Beat(100, 5, demands={"first": Demand(every=2)})
    timetable = build_timetable(beat, [planned("first", [20, 10], priority=True), planned("later", [65])])
    assert check_timetable(timetable, every={"first": 2}) == []
    assert "window 1: priority model first runs 0 segments, due is True" in check_timetable(timetable)
    assert "window 1: priority model first runs 2 segments, due is False" in check_timetable(good(), every={"first": 2})


def test_the_guard_before_a_priority_period_is_checked() -> None:
    """In the middle of the window: a segment that ends 5 before it is fine with a guard of 5, wrong with 6."""
    beat = Beat(100, 5, position="middle")
    timetable = build_timetable(beat, [planned("first", [20], priority=True), planned("later", [35])])
    assert check_timetable(timetable) == []
    wrong = check_timetable(replace(timetable, guard_ns=6))
    assert "window 0: later[0] ends within the guard before first" in wrong


def test_interrupted_segments_are_given_their_time_in_parts() -> None:
    """Parts of a launch may lie in two windows where the unit is preemptive; a part left out is found."""
    beat = Beat(100, 0, preemptive=True)
    timetable = build_timetable(beat, [planned("first", [30], priority=True), planned("later", [60, 60])])
    assert check_timetable(timetable) == []
    number = next(n for n, slot in enumerate(timetable.windows[1].slots) if slot.model == "later")
    wrong = check_timetable(without_slot(1, number)(timetable))
    assert any("later frame 0: is given" in sentence for sentence in wrong)
    assert any("takes" in sentence for sentence in check_timetable(replace(timetable, preemptive=False)))


@pytest.mark.parametrize(("deadline_ns", "fine"), [(101, True), (100, False), (50, False)])
def test_a_background_result_may_not_be_older_than_its_deadline(deadline_ns: int, fine: bool) -> None:
    """Ready in the second window after release, so later than 100: a deadline of 100 is missed for certain."""
    timetable = build_timetable(Beat(100, 0), [planned("first", [30], priority=True), planned("later", [50, 50])])
    assert timetable.model("later").result_age_windows == 2
    wrong = check_timetable(timetable, deadlines_ns={"later": deadline_ns})
    assert wrong == (
        [] if fine else [f"later: results may be ready 2 windows after release, its deadline is {deadline_ns}"]
    )


@pytest.mark.parametrize("changes", [{"priority_ns": 29}, {"residual_ns": 71}])
def test_priority_and_residual_agree_with_the_windows(changes: dict[str, int]) -> None:
    """The plan's figures are the worst window's."""
    assert "window 0: 30 ns reserved, the plan says" in " ".join(check_timetable(replace(good(), **changes)))


def two_units() -> Timetable:
    """Windows of 100: 20 on npu0, 10 away 15 on npu1, and 30 and 25 of a background model the same way, 8 bytes."""
    apart = link("npu0", "npu1", 10)
    first = on_units("first", [("npu0", 20), ("npu1", 15)], priority=True)
    later = on_units("later", [("npu0", 30), ("npu1", 25)], slots=1, boundary_bytes=8)
    timetable = build_timetable(Beat(100, 0, links=(apart,)), [first, later])
    slots = [(s.unit, s.model, s.start_ns) for s in timetable.windows[0].slots]
    assert slots == [("npu0", "first", 0), ("npu0", "later", 20), ("npu1", "first", 30), ("npu1", "later", 60)]
    return timetable


def two_in_flight(timetable: Timetable) -> Timetable:
    """Each frame's second segment in the window after its first."""
    windows = []
    for index in range(3):
        slots = timetable.windows[0].slots
        kept = [replace(s, frame=index - (s.model == "later" and s.unit == "npu1")) for s in slots]
        left = [s for s in kept if s.frame >= 0 and not (index == 2 and (s.model, s.unit) == ("later", "npu0"))]
        windows.append(replace(timetable.windows[0], index=index, slots=tuple(left)))
    return replace(timetable, windows=tuple(windows), hyperperiod_windows=3)


def test_a_good_timetable_of_two_units_passes() -> None:
    """Nothing is found, whatever the units support and have."""
    every_unit = {"later": [["npu0"], ["npu0", "npu1"]]}
    assert check_timetable(two_units(), supported=every_unit, memory_limit_bytes={"npu0": 8, "npu1": 8}) == []
    assert check_timetable(replace(two_in_flight(two_units()), models=(two_units().models[0], slots_of(2)))) == []


def slots_of(count: int) -> PlannedModel:
    """The background model with so many slots; what crosses is there as often."""
    return replace(two_units().model("later"), slots=count, segments=tuple(
        replace(segment, boundary_bytes=8 // count) for segment in two_units().model("later").segments
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (with_slot(0, 3, start_ns=59), "later frame 0: segment 1 begins 1 ns before its tensors are on npu1"),
        (with_slot(0, 2, start_ns=29), "first frame 0: segment 1 begins 1 ns before its tensors are on npu1"),
        (with_slot(0, 2, start_ns=29), "window 0: first[1] outside its priority period"),
        (two_in_flight, "later: 2 frames in flight at 120 ns, it has slots for 1"),
        (
            lambda t: replace(t, memory_bytes={"npu0": 8, "npu1": 7}),
            "npu1: 7 bytes planned, tensors that cross units take 8",
        ),
        (with_slot(0, 1, unit="npu1"), "window 0: later[0] on unit 'npu1', compiled for 'npu0'"),
        (lambda t: replace(t, priority_ns=19), "window 0: 20 ns reserved, the plan says 19"),
        (
            lambda t: replace(
                t,
                windows=(replace(t.windows[0], priority=(*t.windows[0].priority, replace(t.windows[0].priority[0]))),),
            ),
            "window 0: the priority periods of first and first overlap on npu0",
        ),
    ],
)
def test_a_violation_across_units_is_found(change: Callable[[Timetable], Timetable], found: str) -> None:
    """Breaking one thing of a good timetable of two units gives the sentence that names it."""
    assert found in check_timetable(change(two_units()))


def test_a_unit_that_does_not_support_a_segment_is_found() -> None:
    """The second segment is supported on the other unit only."""
    wrong = check_timetable(two_units(), supported={"later": [["npu0"], ["npu0"]]})
    assert wrong == ["later[1]: unit 'npu1' does not support it"]


def test_a_reader_that_begins_before_what_it_reads_is_found() -> None:
    """Moved before the end of the other model's frame; and a model that is not there."""
    models = [on_units("source", [("npu0", 30)]), on_units("reader", [("npu0", 20)], after=("source",))]
    timetable = build_timetable(Beat(100, 0), models)
    assert check_timetable(timetable) == []
    early = with_slots(
        timetable, 0, tuple(replace(s, start_ns=(s.start_ns + 50) % 80) for s in timetable.windows[0].slots)
    )
    assert "reader: frame 0 begins at 0 ns, before source has given it its input" in check_timetable(early)
    alone = replace(timetable.model("reader"), after=("nobody",))
    wrong = check_timetable(replace(timetable, models=(timetable.models[0], alone)))
    assert "reader: reads 'nobody', which is not planned" in wrong


def test_windows_of_differing_length_are_checked() -> None:
    """Windows of 100 and 60, the priority model due in the first of them only."""
    beat = Beat(60, 0, lengths_ns=(100, 60), demands={"first": Demand(releases=(0,))})
    timetable = build_timetable(beat, [planned("first", [30], priority=True), planned("later", [55])])
    releases = {"first": (0,)}
    assert check_timetable(timetable, lengths_ns=(100, 60), releases=releases) == []
    assert "window 1: priority model first runs 0 segments, due is True" in check_timetable(
        timetable, lengths_ns=(100, 60)
    )
    wrong = check_timetable(timetable, lengths_ns=(100, 70), releases=releases)
    assert "window 1: 60 ns, releases are 70 ns apart" in wrong
