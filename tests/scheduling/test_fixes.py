"""Changes that make an infeasible workload fit."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plans import beats_and_models, planned

from framefit.core.timetable import PlannedModel
from framefit.scheduling.fixes import later_deadlines, slower_beat
from framefit.scheduling.partition import Pieces, partition
from framefit.scheduling.timetable import Beat, build_timetable


def uniform(durations_ns: list[int]) -> Pieces:
    """Pieces without spread or boundaries."""
    times = np.asarray(durations_ns, np.int64)
    return Pieces(times, times, np.zeros(len(times) - 1, np.int64))


@given(
    st.integers(0, 50_000_000),
    st.integers(0, 5_000_000),
    st.lists(st.lists(st.integers(1, 40_000_000), min_size=1, max_size=5), max_size=3),
    st.floats(1, 200),
)
def test_the_slower_beat_really_fits(
    priority_ns: int, guard_ns: int, durations: list[list[int]], rate_hz: float
) -> None:
    """At the rate that the fix names, cut models are placed beside priority period and guard; no rate above."""
    pieces = [uniform(model) for model in durations]
    if priority_ns + guard_ns + sum(map(len, durations)) == 0:
        return
    fix = slower_beat(priority_ns, guard_ns, pieces, rate_hz)
    assert fix.verified
    rate = float(fix.change.removeprefix("rate_hz = "))
    assert 0 < rate < rate_hz
    window_ns = round(1e9 / rate)
    models = [planned("first", [max(priority_ns, 1)], priority=True)]
    for index, model in enumerate(pieces):
        room = window_ns - priority_ns - guard_ns
        runs = partition(model, window_ns - priority_ns, room)
        assert runs is not None
        models.append(planned(f"later{index}", [int(model.joined()[1][run]) for run in runs]))
    assert build_timetable(Beat(window_ns - 1, guard_ns), models).feasible


def test_the_slower_beat_is_no_slower_than_needed() -> None:
    """10 ms reserved, 1 ms guard and a layer of 14 ms need 25 ms: 40 Hz less 1 %."""
    fix = slower_beat(10_000_000, 1_000_000, [uniform([14_000_000, 3_000_000])], 60)
    assert fix.change == "rate_hz = 39.6"
    assert fix.verified


def test_a_device_that_is_hopeless_is_not_given_a_rate() -> None:
    """A layer of half an hour fits no beat; the fix claims nothing verified."""
    fix = slower_beat(0, 0, [uniform([2_000_000_000_000])], 30)
    assert fix.change == "a faster device"
    assert not fix.verified


@given(beats_and_models())
def test_later_deadlines_are_verified_by_placing_again(case: tuple[Beat, list[PlannedModel]]) -> None:
    """A fix is given exactly where a given deadline is missed; verified means that the timetable then is feasible."""
    beat, models = case
    models = [  # milliseconds, so that deadlines of 0.01 ms make a difference
        planned(m.name, [s.duration_ns * 1_000_000 for s in m.segments], priority=m.role == "priority") for m in models
    ]
    given_ns = {name: deadline * 1_000_000 for name, deadline in beat.deadlines_ns.items()}
    beat = Beat(beat.window_ns * 1_000_000, beat.guard_ns * 1_000_000, given_ns)
    fix = later_deadlines(beat, models)
    end, late = 0, set()
    for model in models:
        if model.role == "priority":
            end += model.duration_ns
            if model.name in given_ns and end > given_ns[model.name]:
                late.add(model.name)
    if fix is None:
        assert not late
        return
    new = {
        name: round(float(after) * 1e6) for after, name in re.findall(r"deadline_ms = (\S+) for '(\w+)'", fix.change)
    }
    assert set(new) == late
    assert build_timetable(Beat(beat.window_ns, beat.guard_ns, {**given_ns, **new}), models).feasible == fix.verified


def test_the_later_deadline_is_when_the_model_ends() -> None:
    """A model that ends 12.345 ms after its release needs a deadline of 12.35 ms."""
    model = planned("first", [12_345_000], priority=True)
    fix = later_deadlines(Beat(20_000_000, 0, {"first": 5_000_000}), [model])
    assert fix is not None
    assert fix.change == "deadline_ms = 12.35 for 'first'"
    assert fix.verified
