"""Timetables from planned models."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import beats_and_models, planned

from framefit.core.timetable import PlannedModel
from framefit.scheduling.check import check_timetable
from framefit.scheduling.timetable import Beat, build_timetable

FIRST = planned("first", [30], priority=True)


@given(beats_and_models())
def test_a_feasible_timetable_passes_the_independent_check(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Where the plan says feasible the check finds nothing; else the binding constraint is named."""
    beat, models = case
    timetable = build_timetable(beat, models)
    assert timetable.feasible == (timetable.binding_constraint is None)
    if timetable.feasible:
        assert check_timetable(timetable, deadlines_ns=beat.deadlines_ns) == []
        assert timetable.worst_slack_ns >= 0


@given(beats_and_models())
def test_feasible_is_exactly_what_fits(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Feasible: every deadline holds, and each segment fits beside priority period and guard."""
    beat, models = case
    end, on_time = 0, True
    for model in models:
        if model.role == "priority":
            end += model.duration_ns
            on_time = on_time and end <= beat.deadlines_ns.get(model.name, beat.window_ns)
    room = beat.window_ns - beat.guard_ns - end
    longest = max((s.duration_ns for m in models if m.role == "background" for s in m.segments), default=0)
    assert build_timetable(beat, models).feasible == (on_time and room >= longest)


@given(beats_and_models())
def test_the_hyperperiod_begins_and_ends_with_whole_frames(case: tuple[Beat, list[PlannedModel]]) -> None:
    """Within one hyperperiod every background model begins at segment 0, serves frames 0, 1, ... and completes each."""
    beat, models = case
    timetable = build_timetable(beat, models)
    if not timetable.feasible:
        return
    counts = set()
    for model in models:
        if model.role == "background":
            slots = [slot for window in timetable.windows for slot in window.slots if slot.model == model.name]
            frames = len(slots) // len(model.segments)
            expected = [(frame, segment.index) for frame in range(frames) for segment in model.segments]
            assert [(slot.frame, slot.segment) for slot in slots] == expected
            counts.add(frames)
    assert len(counts) <= 1, "models that take turns are served equally often"


@given(beats_and_models())
def test_no_more_than_one_frame_a_window_is_started(case: tuple[Beat, list[PlannedModel]]) -> None:
    """A background model starts at most one frame in a window, for no more arrive."""
    timetable = build_timetable(*case)
    for window in timetable.windows:
        starts = [slot.model for slot in window.slots if slot.segment == 0]
        assert len(starts) == len(set(starts))


def simulated_age(beat: Beat, models: list[PlannedModel], windows: int, random: np.random.Generator) -> dict[str, int]:
    """Greatest age of a result in windows: greedy dispatch, durations up to their quantiles."""
    background = [model for model in models if model.role == "background"]
    queues: dict[str, deque[int]] = {model.name: deque() for model in background}
    oldest = dict.fromkeys(queues, 0)
    turn, segment, frame = 0, 0, -1
    for window in range(windows):
        for name, queue in queues.items():
            if len(queue) == beat.queues.get(name, 1):
                if name in beat.refusing:
                    continue
                queue.popleft()
            queue.append(window)
        now = sum(int(m.duration_ns * random.uniform(0.5, 1)) for m in models if m.role == "priority")
        while True:
            if segment == 0:
                ready = [(turn + i) % len(background) for i in range(len(background))]
                ready = [number for number in ready if queues[background[number].name]]
                if not ready:
                    break
                turn = ready[0]
            model = background[turn]
            quantile = model.segments[segment].duration_ns
            if now + quantile + beat.guard_ns > beat.window_ns:
                break
            if segment == 0:
                frame = queues[model.name].popleft()
            now += max(int(quantile * random.uniform(0.5, 1)), 1)
            segment += 1
            if segment == len(model.segments):
                oldest[model.name] = max(oldest[model.name], window + 1 - frame)
                segment, turn = 0, (turn + 1) % len(background)
    return oldest


@given(beats_and_models(), st.integers(0, 100))
def test_no_result_is_older_than_its_bound(case: tuple[Beat, list[PlannedModel]], seed: int) -> None:
    """A plain simulation of 60 windows never sees a result older than result_age_windows."""
    beat, models = case
    timetable = build_timetable(beat, models)
    if not timetable.feasible or not any(model.role == "background" for model in models):
        return
    for name, age in simulated_age(beat, models, 60, np.random.default_rng(seed)).items():
        bound = timetable.model(name).result_age_windows
        assert bound is not None
        assert age <= bound


def test_the_bound_on_a_result_s_age_is_reached() -> None:
    """Two segments that share no window, one frame waiting: the bound of 2 + 1 windows is not a loose one."""
    beat = Beat(100, 0, queues={"later": 1})
    timetable = build_timetable(beat, [FIRST, planned("later", [50, 50])])
    assert timetable.model("later").result_age_windows == 3
    assert timetable.model("first").result_age_windows == 1


def test_a_queue_that_refuses_new_frames_makes_results_older() -> None:
    """One segment a window, six a frame, two frames waiting: the second of them is ready in window 18."""
    beat = Beat(100, 0, queues={"later": 2}, refusing=frozenset({"later"}))
    timetable = build_timetable(beat, [FIRST, planned("later", [40] * 6)])
    assert timetable.model("later").result_age_windows == 18


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
        (Beat(100, 10, {"first": 20}), [FIRST], ["'first'", "deadline", "2e-05 ms"]),
        (Beat(100, 10), [FIRST, planned("later", [20, 61])], ["segment 1", "'later'", "later_1", "residual"]),
        (Beat(100, 0), [planned("a", [60], priority=True), planned("b", [60], priority=True)], ["'b'", "deadline"]),
    ],
    ids=["priority", "deadline", "segment", "second priority model"],
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
    assert build_timetable(Beat(100, 0, {"first": 30}), [FIRST]).feasible
    assert not build_timetable(Beat(100, 0, {"first": 29}), [FIRST]).feasible
