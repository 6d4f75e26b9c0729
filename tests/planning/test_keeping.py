"""Timetables of a placement that stays, on other beats and at other costs."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from test_units import TWO, alike, candidate
from unit_plans import checked

from framefit import Timetable
from framefit.planning.beat import Beat
from framefit.planning.candidates import UnitCandidate, arrange_kept, arrange_on_units
from framefit.planning.placement import Stage

Kept = dict[str, tuple[Stage, ...]]


def workload(durations: list[int]) -> list[UnitCandidate]:
    """A priority model and two background models, one of which is longer than a window."""
    return [
        alike("face", [20], priority=True),
        alike("big", durations),
        candidate("small", [{"a": 15, "b": 30}, {"a": 15, "b": 30}]),
    ]


def ways(timetable: Timetable) -> dict[str, list[tuple[str, str]]]:
    """Unit, and first layer, of each stage of each model."""
    return {model.name: [(stage[0].unit, stage[0].first_layer) for stage in model.stages] for model in timetable.models}


def test_cuts_follow_the_windows_and_units_stay() -> None:
    """In shorter windows the same stages are cut finer; what serves less is not moved elsewhere."""
    kept: Kept = {
        "face": (Stage("a", 0, 0),),
        "big": (Stage("a", 0, 3), Stage("b", 4, 7)),
        "small": (Stage("b", 0, 1),),
    }
    models = workload([20] * 8)
    long = arrange_kept(models, Beat(200, 1), TWO, "fewest", kept)
    short = arrange_kept(models, Beat(70, 1), TWO, "fewest", kept)
    for found in (long, short):
        assert found.timetable.feasible
        assert ways(found.timetable) == {
            "face": [("a", "face0")],
            "big": [("a", "big0"), ("b", "big4")],
            "small": [("b", "small0")],
        }
    assert len(short.timetable.model("big").segments) > len(long.timetable.model("big").segments)


def test_what_does_not_fit_there_is_named() -> None:
    """A piece that is longer than what is left on its unit, though another one has more room."""
    kept: Kept = {"face": (Stage("a", 0, 0),), "big": (Stage("a", 0, 0),)}
    found = arrange_kept(
        [alike("face", [20], priority=True), alike("big", [60])], Beat(70, 1), TWO, "fill", kept
    ).timetable
    assert not found.feasible
    assert "big" in (found.binding_constraint or "")


@settings(max_examples=25)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=6), st.integers(120, 400), st.sampled_from([0.8, 1.0, 1.5, 3]))
def test_a_placement_that_fits_longer_windows_is_sound_there(durations: list[int], window: int, ratio: float) -> None:
    """Whatever the search placed for one window is kept for others, and the independent check finds nothing."""
    models = workload(durations)
    beat = Beat(window, 1)
    free = arrange_on_units(models, beat, TWO)
    assert free.timetable.feasible
    other = dataclasses.replace(beat, window_ns=round(window * ratio))
    found = arrange_kept(models, other, TWO, "fill", free.placement.stages)
    assert found.timetable.feasible
    assert ways(found.timetable) == ways(free.timetable)
    assert checked(other, found.timetable) == []
    if ratio == 1.0:
        assert found.share >= 0.95 * free.share
