"""Residuals of several units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_plans import checked, link, on_units, several_units

from framefit import Timetable
from framefit.planning.beat import Beat, Demand
from framefit.planning.timetable import build_timetable

LINK = link("npu0", "npu1", 10)


def starts(timetable: Timetable, model: str, segment: int) -> list[tuple[int, int, int]]:
    """Window, begin and frame of a segment's launches."""
    return [
        (w.index, s.start_ns, s.frame)
        for w in timetable.windows
        for s in w.slots
        if (s.model, s.segment) == (model, segment)
    ]


@settings(max_examples=45)
@given(st.integers(0, 2**32 - 1))
def test_a_timetable_of_several_units_passes_the_independent_check(seed: int) -> None:
    """Stages, links, slots, readers, uneven windows: nothing is found, or the constraint that binds is named."""
    beat, models = several_units(np.random.default_rng(seed))
    timetable = build_timetable(beat, models)
    assert timetable.feasible == (timetable.binding_constraint is None)
    if timetable.feasible:
        assert checked(beat, timetable) == []
        assert timetable.worst_slack_ns >= 0


def test_two_units_hold_twice_as_much() -> None:
    """70 on each of two units, in windows of 100: a frame in each window, two of them in flight."""
    model = on_units("later", [("npu0", 70), ("npu1", 70)], slots=2)
    timetable = build_timetable(Beat(100, 0, links=(LINK,)), [model])
    assert starts(timetable, "later", 0)[:3] == [(0, 0, 0), (1, 0, 1), (2, 0, 2)]
    assert starts(timetable, "later", 1)[:3] == [(1, 0, 0), (2, 0, 1), (3, 0, 2)]
    assert timetable.bound == pytest.approx(1)


def test_one_slot_makes_frames_wait_for_each_other() -> None:
    """The same with one slot: the first segment of a frame starts when the last one of the frame before is done."""
    model = on_units("later", [("npu0", 70), ("npu1", 70)], slots=1)
    timetable = build_timetable(Beat(100, 0, links=(LINK,)), [model])
    assert timetable.hyperperiod_windows == 2
    assert starts(timetable, "later", 0) == [(0, 0, 0)]
    assert starts(timetable, "later", 1) == [(1, 0, 0)]


def test_a_stage_begins_when_its_tensors_are_there() -> None:
    """40 on npu0, a link of 10 and 1 a byte for 5 bytes: the second stage begins at 55."""
    apart = link("npu0", "npu1", 10, 1)
    model = on_units("later", [("npu0", 40), ("npu1", 20)], boundary_bytes=5)
    timetable = build_timetable(Beat(100, 0, links=(apart,)), [model])
    assert starts(timetable, "later", 1)[0] == (0, 55, 0)
    assert timetable.memory_bytes == {"npu0": 5, "npu1": 5}


def test_priority_periods_follow_each_other_over_units() -> None:
    """30 on npu0, 10 away 20 on npu1: reserved from 40 to 60 there; background work before and after."""
    models = [
        on_units("first", [("npu0", 30), ("npu1", 20)], priority=True),
        on_units("later", [("npu1", 35)]),
        on_units("other", [("npu1", 40)]),
    ]
    timetable = build_timetable(Beat(100, 0, links=(LINK,)), models)
    periods = [(p.unit, p.start_ns, p.end_ns) for p in timetable.windows[0].priority]
    assert periods == [("npu0", 0, 30), ("npu1", 40, 60)]
    assert [(s.model, s.start_ns) for s in timetable.windows[0].slots if s.unit == "npu1"] == [
        ("later", 0),
        ("first", 40),
        ("other", 60),
    ]
    assert timetable.priority_ns == 30
    assert timetable.residual_ns == 70


def test_a_priority_model_that_reads_another_comes_after_it() -> None:
    """Given in the wrong order, and on another unit: its period begins when the other's output is there."""
    models = [
        on_units("reader", [("npu1", 20)], priority=True, after=("first",)),
        on_units("first", [("npu0", 30)], priority=True),
    ]
    timetable = build_timetable(Beat(100, 0, links=(LINK,)), models)
    assert timetable.feasible
    periods = [(p.model, p.start_ns, p.end_ns) for p in timetable.windows[0].priority]
    assert periods == [("first", 0, 30), ("reader", 40, 60)]


def test_a_model_that_reads_another_gets_each_of_its_frames() -> None:
    """Every second frame of a model of every second window: a launch every fourth window, right after it."""
    beat = Beat(100, 0, demands={"source": Demand(every=2), "reader": Demand(every=2)})
    models = [on_units("reader", [("npu0", 10)], after=("source",)), on_units("source", [("npu0", 20)])]
    timetable = build_timetable(beat, models)
    assert starts(timetable, "source", 0)[:2] == [(0, 0, 0), (2, 0, 1)]
    assert timetable.hyperperiod_windows == 4
    assert starts(timetable, "reader", 0) == [(0, 20, 0)]


@pytest.mark.parametrize(
    ("after", "role", "named"),
    [
        (("nobody",), True, "not planned"),
        (("later",), True, "'later', which is none"),
        (("self",), False, "read each other"),
    ],
)
def test_what_cannot_be_read_is_named(after: tuple[str, ...], role: bool, named: str) -> None:
    """A missing model, a background model read by a priority model, and a model that reads itself."""
    models = [on_units("later", [("npu0", 10)]), on_units("self", [("npu0", 10)], priority=role, after=after)]
    timetable = build_timetable(Beat(100, 0), models)
    assert not timetable.feasible
    assert named in (timetable.binding_constraint or "")


def test_windows_differ_in_length_and_in_what_is_due() -> None:
    """Audio in windows of 100, 60, 40 and a camera in the first only: its model is reserved there alone."""
    demands = {"camera": Demand(releases=(0,)), "audio": Demand(releases=(0, 1)), "later": Demand(releases=(0,))}
    beat = Beat(40, 0, lengths_ns=(100, 60, 40), demands=demands)
    models = [
        on_units("audio", [("npu0", 10)], priority=True),
        on_units("camera", [("npu0", 30)], priority=True),
        on_units("later", [("npu0", 55)]),
    ]
    timetable = build_timetable(beat, models)
    assert timetable.feasible
    assert checked(beat, timetable) == []
    assert [w.length_ns for w in timetable.windows[:4]] == [100, 60, 40, 100][: len(timetable.windows)]
    assert [[p.model for p in w.priority] for w in timetable.windows[:3]] == [["audio", "camera"], ["audio"], []]
    assert timetable.window_ns == 40
    assert (timetable.priority_ns, timetable.residual_ns) == (40, 40)
    assert starts(timetable, "later", 0)[0] == (0, 40, 0)
