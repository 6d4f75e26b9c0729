"""Timetables from planned models."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from plans import beats_and_models, planned

from framefit.core.timetable import PlannedModel
from framefit.planning.beat import Beat, Demand
from framefit.planning.check import check_timetable
from framefit.planning.reserved import segment_room
from framefit.planning.timetable import build_timetable

FIRST = planned("first", [30], priority=True)


def deadlines_of(beat: Beat) -> dict[str, int]:
    """Those that were given."""
    return {name: demand.deadline_ns for name, demand in beat.demands.items() if demand.deadline_ns is not None}


@settings(max_examples=100)
@given(beats_and_models())
def test_a_feasible_timetable_passes_the_independent_check(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Where the plan says feasible the check finds nothing; else the binding constraint is named."""
    beat, models = case
    timetable = build_timetable(beat, models)
    assert timetable.feasible == (timetable.binding_constraint is None)
    if not timetable.feasible:
        assert timetable.binding_constraint
        assert all(model.result_age_windows is None for model in timetable.models)
        return
    every = {model.name: beat.of(model.name).every for model in models if model.role == "priority"}
    assert check_timetable(timetable, deadlines_ns=deadlines_of(beat), every=every) == []
    assert timetable.worst_slack_ns >= 0


@settings(max_examples=100)
@given(beats_and_models())
def test_feasible_without_deadlines_is_exactly_what_fits(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Priority models and guard fit into a window, and beside them each segment that cannot be interrupted."""
    beat, models = case
    beat = Beat(beat.window_ns, beat.guard_ns, beat.late_ns, preemptive=beat.preemptive)
    first = [model.duration_ns for model in models if model.role == "priority"]
    reserved = sum(first) + (beat.late_ns if first else 0)
    room = beat.window_ns - beat.guard_ns - (reserved or beat.late_ns)
    background = [model for model in models if model.role == "background"]
    longest = max((segment.duration_ns for model in background for segment in model.segments), default=0)
    fits = reserved + beat.guard_ns <= beat.window_ns if first else True
    if background:
        fits = fits and room > 0 and (beat.preemptive or room >= longest)
    assert build_timetable(beat, models).feasible == fits


@settings(max_examples=100)
@given(beats_and_models())
def test_the_hyperperiod_begins_and_ends_with_whole_frames(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Within one hyperperiod every background model begins at segment 0, serves frames 0, 1, ... and completes each."""
    beat, models = case
    timetable = build_timetable(beat, models)
    if not timetable.feasible:
        return
    for model in models:
        if model.role == "background":
            slots = [slot for window in timetable.windows for slot in window.slots if slot.model == model.name]
            launches = list(dict.fromkeys((slot.frame, slot.segment) for slot in slots))
            frames = len(launches) // len(model.segments)
            assert frames
            assert launches == [(frame, segment.index) for frame in range(frames) for segment in model.segments]


@settings(max_examples=100)
@given(beats_and_models())
def test_no_more_frames_are_started_than_arrive(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Until each window, a background model took at most as many frames as had arrived by then."""
    beat, models = case
    for model in build_timetable(beat, models).models:
        demand, started = beat.of(model.name), set()
        for window in build_timetable(beat, models).windows:
            started |= {slot.frame for slot in window.slots if slot.model == model.name}
            if model.role == "background":
                assert len(started) * demand.frames <= window.index // demand.every + 1


def test_each_background_model_finds_what_the_one_before_left() -> None:
    """Window 100, priority 30, models of 20 and 15: residuals of 70 and 50."""
    timetable = build_timetable(Beat(100, 5), [FIRST, planned("second", [20]), planned("third", [15])])
    assert timetable.feasible
    assert timetable.windows[0].residual_ns == (70, 50)
    assert timetable.residual_ns == 70
    assert timetable.priority_ns == 30
    assert timetable.worst_slack_ns == 100 - 5 - 30 - 20 - 15


def test_what_one_window_cannot_hold_continues_in_the_next() -> None:
    """Segments of 40 and 40 beside a priority period of 30 take two windows a frame."""
    timetable = build_timetable(Beat(100, 5), [FIRST, planned("later", [40, 40])])
    assert timetable.hyperperiod_windows == 2
    assert [(s.model, s.segment, s.start_ns) for w in timetable.windows for s in w.slots] == [
        ("first", 0, 0),
        ("later", 0, 30),
        ("first", 0, 0),
        ("later", 1, 30),
    ]


def test_bound_and_gap_tell_how_far_the_plan_is_from_any_other() -> None:
    """80 ns of background in residuals of 70 need 8/7 windows a frame; the plan takes 2."""
    timetable = build_timetable(Beat(100, 5), [FIRST, planned("later", [40, 40])])
    assert timetable.bound == pytest.approx(80 / 70)
    assert timetable.gap_ratio == pytest.approx(2 / (80 / 70) - 1)


@pytest.mark.parametrize(
    ("beat", "models", "named"),
    [
        (Beat(100, 10), [planned("first", [95], priority=True)], ["priority period", "guard", "window"]),
        (Beat(100, 10, demands={"first": Demand(deadline_ns=20)}), [FIRST], ["'first'", "deadline", "2e-05 ms"]),
        (Beat(100, 10), [FIRST, planned("later", [20, 61])], ["segment 1", "'later'", "later_1", "residual"]),
        (Beat(100, 0), [planned("a", [60], priority=True), planned("b", [60], priority=True)], ["'b'", "deadline"]),
        (Beat(100, 10), [planned("first", [90], priority=True), planned("later", [1])], ["segment 0", "residual"]),
        (
            Beat(100, 10, preemptive=True),
            [planned("first", [90], priority=True), planned("later", [1])],
            ["no residual"],
        ),
        (
            Beat(100, 0, demands={"later": Demand(deadline_ns=110)}),
            [FIRST, planned("later", [45, 45])],
            ["'later'", "old"],
        ),
        (
            Beat(100, 0, preemptive=True),
            [planned("first", [99], priority=True), planned("later", [10_001])],
            ["windows"],
        ),
    ],
    ids=["priority", "deadline", "segment", "second", "no room", "no residual", "background deadline", "never"],
)
def test_what_does_not_fit_is_named(beat: Beat, models: list[PlannedModel], named: list[str]) -> None:
    """An infeasible timetable says which model, segment or period binds, with numbers."""
    timetable = build_timetable(beat, models)
    assert not timetable.feasible
    assert timetable.binding_constraint is not None
    for part in named:
        assert part in timetable.binding_constraint


def test_a_deadline_is_met_on_the_dot() -> None:
    """A model that ends 30 ns after its release holds a deadline of 30 and misses one of 29."""
    assert build_timetable(Beat(100, 0, demands={"first": Demand(deadline_ns=30)}), [FIRST]).feasible
    assert not build_timetable(Beat(100, 0, demands={"first": Demand(deadline_ns=29)}), [FIRST]).feasible


def test_a_background_deadline_within_a_window_can_be_met() -> None:
    """Reserved until 30, then 20: ready after 50 of 100, so a deadline of 50 holds and one of 49 does not."""
    for deadline, feasible in ((50, True), (49, False)):
        beat = Beat(100, 0, demands={"later": Demand(deadline_ns=deadline)})
        assert build_timetable(beat, [FIRST, planned("later", [20])]).feasible == feasible


def test_a_window_without_priority_models_wakes_up_late_too() -> None:
    """Every second window is free; a segment as long as a window less guard would not fit after a late wake-up."""
    beat = Beat(100, 5, late_ns=10, demands={"first": Demand(every=2)})
    assert segment_room(beat, [FIRST]) == 100 - 5 - 10 - 30
    alone = Beat(100, 5, late_ns=10)
    assert segment_room(alone, []) == 85
    assert not build_timetable(alone, [planned("later", [86])]).feasible
    assert build_timetable(alone, [planned("later", [85])]).feasible


def test_a_segment_that_is_interrupted_goes_on_in_the_next_window() -> None:
    """A segment of 100 beside a priority period of 30 of 100: 70 in one window, 30 in the next."""
    timetable = build_timetable(Beat(100, 0, preemptive=True), [FIRST, planned("later", [100])])
    slots = [(w.index, s.start_ns, s.duration_ns) for w in timetable.windows for s in w.slots if s.model == "later"]
    assert slots[:2] == [(0, 30, 70), (1, 30, 30)]


def test_a_model_of_several_frames_waits_for_them() -> None:
    """Two frames at once, one in every second window: the first launch is in window 2."""
    beat = Beat(100, 0, demands={"later": Demand(frames=2, every=2)})
    timetable = build_timetable(beat, [FIRST, planned("later", [10])])
    started = [w.index for w in timetable.windows for s in w.slots if s.model == "later"]
    assert started == list(range(2, timetable.hyperperiod_windows, 4))


def test_the_gap_counts_work_and_not_whole_rounds() -> None:
    """A repetition that ends in the middle of a round is no worse for that: the residual is full."""
    beat = Beat(100, 0)
    models = [FIRST, planned("a", [35]), planned("b", [70])]
    timetable = build_timetable(beat, models)
    slots = [slot for window in timetable.windows for slot in window.slots if slot.model != "first"]
    used = sum(slot.duration_ns for slot in slots)
    fluid = 70 * timetable.hyperperiod_windows
    assert timetable.gap_ratio == pytest.approx(fluid / used - 1)
    assert timetable.bound == pytest.approx(105 / 70)


def test_a_plan_that_serves_every_frame_has_no_gap() -> None:
    """A short model cannot be served more often than its frames arrive, by any plan."""
    beat = Beat(100, 0, demands={"rare": Demand(every=3)})
    timetable = build_timetable(beat, [FIRST, planned("short", [5]), planned("rare", [5])])
    assert timetable.hyperperiod_windows % 3 == 0
    assert timetable.gap_ratio == 0
    assert timetable.bound == pytest.approx(3)


@settings(max_examples=100)
@given(beats_and_models())
def test_a_timetable_can_be_repeated(case: tuple[Beat, list[PlannedModel]]) -> None:
    """However often it has been repeated, no more frames of a background model were started than had arrived."""
    beat, models = case
    timetable = build_timetable(beat, models)
    assert timetable.gap_ratio is None or timetable.gap_ratio >= 0
    for model in timetable.models:
        demand = beat.of(model.name)
        if not timetable.feasible or model.role == "priority":
            continue
        begun = [
            sum(slot.model == model.name and slot.segment == 0 for slot in window.slots) for window in timetable.windows
        ]
        if timetable.preemptive:  # several slots of one launch
            seen = [{slot.frame for slot in window.slots if slot.model == model.name} for window in timetable.windows]
            begun = [len(frames - set().union(*seen[:index])) for index, frames in enumerate(seen)]
        started = 0
        for window, count in enumerate(begun * 4):
            started += count
            assert started * demand.frames <= window // demand.every + 1
