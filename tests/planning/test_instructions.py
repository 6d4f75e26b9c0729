"""What each unit is told to do."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_plans import link, on_units, several_units

from framefit.planning.beat import Beat
from framefit.planning.timetable import HOST, build_timetable, instructions


def test_tensors_move_from_unit_to_unit() -> None:
    """Two segments on npu0, one on npu1, which another model reads on npu0."""
    models = [
        on_units("later", [("npu0", 10), ("npu0", 10), ("npu1", 10)], slots=2),
        on_units("reader", [("npu0", 5)], after=("later",)),
    ]
    lists = instructions(build_timetable(Beat(100, 0), models))
    assert [(i.kind, i.model, i.segment, i.source, i.target, i.tensors) for i in lists["npu0"][:7]] == [
        ("load", "later", 0, HOST, "npu0", ()),
        ("run", "later", 0, "npu0", "npu0", ()),
        ("run", "later", 1, "npu0", "npu0", ()),
        ("store", "later", 1, "npu0", "npu1", ("later_1_out",)),
        ("load", "reader", 0, "npu1", "npu0", ("later_2_out",)),
        ("run", "reader", 0, "npu0", "npu0", ()),
        ("store", "reader", 0, "npu0", HOST, ("reader_0_out",)),
    ]
    assert [(i.kind, i.source, i.target) for i in lists["npu1"][:4]] == [
        ("load", "npu0", "npu1"),
        ("run", "npu1", "npu1"),
        ("store", "npu1", HOST),
        ("store", "npu1", "npu0"),
    ]


def test_frames_take_turns_at_the_copies() -> None:
    """Three slots: frames 0, 1, 2, 3 use copies 0, 1, 2, 0."""
    apart = link("npu0", "npu1", 150)
    model = on_units("later", [("npu0", 10), ("npu1", 10)], slots=3)
    lists = instructions(build_timetable(Beat(100, 0, links=(apart,)), [model]))
    copies = [step.copy for step in lists["npu0"] if step.kind == "run"]
    assert copies[:4] == [0, 1, 2, 0]


def test_a_launch_in_parts_is_one_instruction() -> None:
    """A segment of 100 that is interrupted runs once."""
    models = [on_units("first", [("cpu0", 30)], priority=True), on_units("later", [("cpu0", 100)])]
    timetable = build_timetable(Beat(100, 0, preemptive=True), models)
    (steps,) = instructions(timetable).values()
    frames = [step.frame for step in steps if (step.kind, step.model) == ("run", "later")]
    assert frames == sorted(set(frames))


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_whatever_is_fetched_from_another_unit_was_stored_before(seed: int) -> None:
    """Each launch is run once on its unit, and what it loads from a unit has been stored there by then."""
    timetable = build_timetable(*several_units(np.random.default_rng(seed)))
    if not timetable.feasible or timetable.preemptive:
        return
    lists = instructions(timetable)
    slots = {(s.unit, s.model, s.frame, s.segment) for w in timetable.windows for s in w.slots}
    runs = [(i.unit, i.model, i.frame, i.segment) for steps in lists.values() for i in steps if i.kind == "run"]
    assert len(runs) == len(slots)
    assert set(runs) == slots
    stored = {(i.model, i.frame, i.segment, i.target) for s in lists.values() for i in s if i.kind == "store"}
    for step in (i for s in lists.values() for i in s if i.kind == "load" and i.segment):
        assert (step.model, step.frame, step.segment - 1, step.unit) in stored
