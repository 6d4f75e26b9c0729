"""Where priority periods lie, and what they leave."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from plans import beats_and_models, planned

from framefit.core.timetable import PlannedModel
from framefit.scheduling.timetable import Beat, Demand, reserved_periods, segment_room

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
    (window,) = reserved_periods(beat, TWO)
    assert [(period.start_ns, period.end_ns) for period in window] == spans
    assert [period.model for period in window] == ["a", "b"]
    assert segment_room(beat, TWO) == room


def test_models_of_some_windows_only_repeat_after_their_common_multiple() -> None:
    """Every 2 and every 3: windows 0 to 5 hold both, none, a, b, a, none."""
    beat = Beat(100, 0, demands={"a": Demand(every=2), "b": Demand(every=3)})
    windows = reserved_periods(beat, TWO)
    assert [[period.model for period in window] for window in windows] == [["a", "b"], [], ["a"], ["b"], ["a"], []]


def test_no_priority_models_leave_the_whole_window() -> None:
    """One window without periods; only the guard and the wake-up are kept free."""
    assert reserved_periods(Beat(100, 6), []) == [[]]
    assert segment_room(Beat(100, 6, late_ns=4), []) == 90


def test_no_room_is_zero() -> None:
    """A priority period that fills the window leaves nothing, not less."""
    assert segment_room(Beat(40, 6), TWO) == 0


@settings(max_examples=200)
@given(beats_and_models())
def test_periods_follow_each_other_and_hold_their_models(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Due models in order, without gaps, each as long as planned and the first one longer by the lateness."""
    beat, models = case
    priority = [model for model in models if model.role == "priority"]
    windows = reserved_periods(beat, priority)
    assert len(windows) == math.lcm(*(beat.of(model.name).every for model in priority))
    for index, window in enumerate(windows):
        due = [model for model in priority if index % beat.of(model.name).every == 0]
        assert [period.model for period in window] == [model.name for model in due]
        for number, (period, model) in enumerate(zip(window, due, strict=True)):
            assert period.end_ns - period.start_ns == model.duration_ns + (0 if number else beat.late_ns)
            assert number == 0 or period.start_ns == window[number - 1].end_ns
