"""Where priority periods lie, and what they leave."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from plans import beats_and_models, planned

from framefit.core.spacing import own_frame
from framefit.core.timetable import PlannedModel
from framefit.planning.beat import Beat, Demand
from framefit.planning.check import check_timetable
from framefit.planning.reserved import reserve, segment_room
from framefit.planning.timetable import build_timetable

TWO = [planned("a", [10, 10], priority=True), planned("b", [20], priority=True)]


@pytest.mark.parametrize(
    ("position", "spans", "room"),
    [
        ("start", [(0, 24), (24, 44)], 100 - 44 - 6),
        ("middle", [(28, 52), (52, 72)], 100 - 72 - 6),
        ("end", [(50, 74), (74, 94)], 50 - 6 - 4),
    ],
)
def test_periods_lie_where_they_are_asked_for(position: str, spans: list[tuple[int, int]], room: int) -> None:
    """20 and 20 and a wake-up up to 4 late, in windows of 100 with a guard of 6."""
    beat = Beat(100, 6, late_ns=4, position=position)  # type: ignore[arg-type]
    (window,) = reserve(beat, TWO).windows
    assert [(period.start_ns, period.end_ns) for period in window] == spans
    assert [period.model for period in window] == ["a", "b"]
    assert segment_room(beat, TWO) == room


@pytest.mark.parametrize(
    ("deadline_ns", "begin"),
    [(80, 31), (95, 46), (100, 50), (40, 13), (20, 0)],
    ids=["earlier", "that much", "that of the window", "that holds in another order", "that never holds"],
)
def test_periods_come_early_enough_for_deadlines(deadline_ns: int, begin: int) -> None:
    """At the end of windows of 100, 44 long and up to 10 % longer; a deadline on the last model draws them forward."""
    beat = Beat(100, 6, late_ns=4, position="end", excess_ratio=0.1, demands={"b": Demand(deadline_ns=deadline_ns)})
    (window,) = reserve(beat, TWO).windows
    assert window[0].start_ns == begin


def test_models_of_some_windows_only_repeat_after_their_common_multiple() -> None:
    """Every 2 and every 3: windows 0 to 5 hold both, none, a, b, a, none."""
    beat = Beat(100, 0, demands={"a": Demand(every=2), "b": Demand(every=3)})
    windows = reserve(beat, TWO).windows
    assert [[period.model for period in window] for window in windows] == [["a", "b"], [], ["a"], ["b"], ["a"], []]


def test_no_priority_models_leave_the_whole_window() -> None:
    """One window without periods; only the guard and the wake-up are kept free."""
    assert reserve(Beat(100, 6), []).windows == [[]]
    assert segment_room(Beat(100, 6, late_ns=4), []) == 90


def test_no_room_is_zero() -> None:
    """A priority period that fills the window leaves nothing, not less."""
    assert segment_room(Beat(40, 6), TWO) == 0


@settings(max_examples=100)
@given(beats_and_models())
def test_periods_follow_each_other_and_hold_their_models(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Due models in order, without gaps, each as long as planned and the first one longer by the lateness."""
    beat, models = case
    priority = [model for model in models if model.role == "priority"]
    windows = reserve(beat, priority).windows
    assert len(windows) == math.lcm(*(beat.of(model.name).every.numerator for model in priority))
    for index, window in enumerate(windows):
        due = [model for model in priority if own_frame(index, beat.of(model.name).every) is not None]
        assert [period.model for period in window] == [model.name for model in due]
        for number, (period, model) in enumerate(zip(window, due, strict=True)):
            assert period.end_ns - period.start_ns == model.duration_ns + (0 if number else beat.late_ns)
            assert number == 0 or period.start_ns == window[number - 1].end_ns


def uneven(first: int, second: int, *, position: str = "start", excess: float = 0.0) -> tuple[Beat, list[PlannedModel]]:
    """Windows of 100, 30 and 70: a model of each stream, due in the first and third, and in the second."""
    demands = {
        "slow": Demand(releases=(0, 1), deadline_ns=100),
        "fast": Demand(releases=(0, 2), deadline_ns=70),
    }
    beat = Beat(30, 0, demands=demands, lengths_ns=(100, 30, 70), position=position, excess_ratio=excess)  # type: ignore[arg-type]
    return beat, [planned("fast", [first], priority=True), planned("slow", [second], priority=True)]


def test_a_period_goes_on_beyond_the_end_of_its_window() -> None:
    """50 from the release of a window of 30: the next one begins 20 later, with 30 less free."""
    beat, models = uneven(10, 50)
    reserved = reserve(beat, models)
    assert [[(p.model, p.start_ns, p.end_ns) for p in window] for window in reserved.windows] == [
        [("fast", 0, 10), ("slow", 10, 60)],
        [("slow", 0, 50)],
        [("fast", 20, 30)],
    ]
    assert reserved.free_windows("cpu0") == [[(60, 100)], [], [(30, 70)]]
    assert reserved.taken_ns("cpu0") == [60, 30, 30]
    assert reserved.settled
    assert segment_room(beat, models) == 40


def test_what_may_take_longer_is_carried_over_too() -> None:
    """A tenth more of 50 is 5: free from 20 + 1 + 5 on, for the next one may be late as well."""
    beat, models = uneven(10, 50, excess=0.1)
    reserved = reserve(beat, models)
    assert reserved.done_ns == [[11, 66], [55], [36]]
    assert reserved.free_windows("cpu0") == [[(66, 100)], [], [(36, 70)]]


def test_what_the_last_window_carries_over_begins_the_first() -> None:
    """The pattern repeats; a load that grows from one repetition to the next is noticed."""
    beat, models = uneven(60, 20)
    reserved = reserve(beat, models)
    assert reserved.settled
    assert [p.start_ns for p in reserved.windows[0]] == [0, 60]
    full, models = uneven(90, 60)
    assert not reserve(full, models).settled
    timetable = build_timetable(full, models)
    assert not timetable.feasible
    assert timetable.binding_constraint


def test_a_feasible_uneven_timetable_is_checked_across_windows() -> None:
    """The checker accepts what goes on, and finds what would run into it."""
    beat, models = uneven(10, 50)
    later = planned("later", [30])
    timetable = build_timetable(beat, [*models, later])
    arguments = {
        "deadlines_ns": {"slow": 100, "fast": 70},
        "releases": {"slow": (0, 1), "fast": (0, 2)},
        "lengths_ns": (100, 30, 70),
    }
    assert timetable.feasible
    assert check_timetable(timetable, **arguments) == []  # type: ignore[arg-type]
    assert timetable.model("slow").result_age_windows == 2
    third = timetable.windows[2]
    early = msgspec.structs.replace(third.priority[0], start_ns=10, end_ns=20)
    slot = msgspec.structs.replace(next(s for s in third.slots if s.model == "fast"), start_ns=10)
    moved = msgspec.structs.replace(
        third, priority=(early,), slots=(slot, *(s for s in third.slots if s.model != "fast"))
    )
    windows = tuple(moved if window.index == 2 else window for window in timetable.windows)
    wrong = check_timetable(msgspec.structs.replace(timetable, windows=windows), **arguments)  # type: ignore[arg-type]
    assert any("slow goes on until" in one for one in wrong)
