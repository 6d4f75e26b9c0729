"""Workloads on several units: placed, cut, and played through."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import planned
from unit_plans import checked, link

from framefit.core.timetable import PlannedModel, Timetable
from framefit.planning.beat import Beat, Demand
from framefit.planning.candidates import UnitCandidate, arrange_on_units, first_fit, served_share
from framefit.planning.fixes import verified_fixes
from framefit.planning.partition import Pieces
from framefit.planning.placement import Room
from framefit.planning.placement_search import solve
from framefit.planning.timetable import build_timetable

TWO = [Room("a"), Room("b")]


def candidate(
    name: str,
    pieces: Sequence[Mapping[str, int]],
    *,
    priority: bool = False,
    after: tuple[str, ...] = (),
    boundary_ns: int = 0,
    read_output_bytes: int = 0,
    units: Sequence[str] = ("a", "b"),
    stateful: bool = False,
) -> UnitCandidate:
    """A model of pieces, each with its duration on the units that support it."""
    model = PlannedModel(
        name=name,
        role="priority" if priority else "background",
        level=0,
        reasons=(),
        duration_ns=0,
        segments=(),
        after=after,
    )
    count = len(pieces)
    boundary = np.full(count - 1, boundary_ns, np.int64)
    costs = {}
    for unit in units:
        own = np.asarray([piece.get(unit, 1) for piece in pieces], np.int64)
        costs[unit] = Pieces(own, own, boundary)
    supported = {unit: [unit in piece for piece in pieces] for unit in units}
    handed = [read_output_bytes] * (count - 1) + [0]
    return UnitCandidate(
        model, costs, supported, handed, [(f"{name}{n}", f"{name}{n}") for n in range(count)], stateful
    )


def alike(name: str, durations: Sequence[int], units: Sequence[str] = ("a", "b"), **further: object) -> UnitCandidate:
    """The same durations on all units."""
    pieces = [dict.fromkeys(units, duration) for duration in durations]
    return candidate(name, pieces, units=units, **further)  # type: ignore[arg-type]


def stages(timetable: Timetable, name: str) -> list[tuple[str, int]]:
    """Units that a model passes, and its segments there."""
    return [(stage[0].unit, len(stage)) for stage in timetable.model(name).stages]


def test_a_model_longer_than_a_window_is_spread_over_two_units() -> None:
    """90 and 90 in windows of 100: each unit has one half, and every frame is served."""
    arranged = arrange_on_units([alike("later", [90, 90])], Beat(100, 0), TWO)
    assert arranged.timetable.feasible
    assert stages(arranged.timetable, "later") == [("a", 1), ("b", 1)]
    assert arranged.share == pytest.approx(1, abs=0.05)
    assert arranged.bound == 1


def test_what_one_unit_serves_stays_on_it() -> None:
    """Nothing changes its unit where nothing is gained."""
    arranged = arrange_on_units([alike("later", [30, 30])], Beat(100, 0), TWO)
    assert stages(arranged.timetable, "later") == [("a", 1)]
    assert (arranged.share, arranged.timetable.model("later").slots) == (1, 1)


def test_each_piece_runs_where_it_is_supported() -> None:
    """The first piece on one unit only, the second on the other only; both of another model on either."""
    split = candidate("split", [{"a": 20}, {"b": 20}])
    arranged = arrange_on_units([split, alike("free", [20, 20])], Beat(100, 0), TWO)
    assert stages(arranged.timetable, "split") == [("a", 1), ("b", 1)]
    assert split.fewest_stages == 2
    assert arranged.share == 1


def test_a_model_that_changes_units_more_often_than_is_tried_is_placed_all_the_same() -> None:
    """Six pieces that two units support in turn: six stages."""
    pieces = [{"ab"[number % 2]: 5} for number in range(6)]
    arranged = arrange_on_units([candidate("zigzag", pieces)], Beat(100, 0), TWO)
    assert arranged.timetable.feasible
    assert len(stages(arranged.timetable, "zigzag")) == 6


def test_demands_are_served_in_proportion() -> None:
    """Overloaded: who wants a frame in every window is served twice as often as who wants every second."""
    models = [alike("often", [10] * 20), alike("seldom", [10] * 20)]
    beat = Beat(100, 0, demands={"often": Demand(queue=2), "seldom": Demand(queue=2, every=2)})
    arranged = arrange_on_units(models, beat, TWO)
    timetable = arranged.timetable
    launches = [timetable.launches_of(name) / timetable.hyperperiod_windows for name in ("often", "seldom")]
    assert launches[0] / launches[1] == pytest.approx(2, rel=0.25)
    assert arranged.share == min(launches[0], 2 * launches[1])
    assert arranged.share <= arranged.bound


def test_a_frame_that_needs_the_last_ones_state_is_alone() -> None:
    """Two stages, and one frame in them."""
    arranged = arrange_on_units([alike("recurrent", [60, 60], stateful=True)], Beat(100, 0), TWO)
    assert arranged.timetable.feasible
    assert arranged.timetable.model("recurrent").slots == 1


def test_priority_models_are_pipelined_within_their_window() -> None:
    """60 + 60 in windows of 100 is too much for any unit: the second half follows on the faster one."""
    first = candidate("first", [{"a": 60, "b": 200}, {"a": 60, "b": 30}], priority=True)
    beat = Beat(100, 0, links=(link("a", "b", 5),))
    timetable = arrange_on_units([first], beat, TWO).timetable
    assert timetable.feasible
    assert [(p.unit, p.start_ns, p.end_ns) for p in timetable.windows[0].priority] == [("a", 0, 60), ("b", 65, 95)]
    assert checked(beat, timetable) == []


def test_a_piece_that_fits_only_beside_no_period_goes_to_the_other_unit() -> None:
    """The priority model leaves 40 on its unit; a piece of 70 runs on the other, though that is slower."""
    first = candidate("first", [{"a": 60}], priority=True)
    big = candidate("big", [{"a": 50, "b": 70}])
    timetable = arrange_on_units([first, big], Beat(100, 0), TWO).timetable
    assert timetable.feasible
    assert stages(timetable, "big") == [("b", 1)]


def test_what_binds_is_named() -> None:
    """A piece that is longer than any window, and a workload without a way over the units."""
    long = arrange_on_units([alike("long", [130])], Beat(100, 0), TWO).timetable
    assert not long.feasible
    assert "piece" in (long.binding_constraint or "") or "'long'" in (long.binding_constraint or "")
    late = arrange_on_units([alike("late", [60], priority=True)], Beat(100, 0, demands={"late": Demand(50)}), TWO)
    assert "deadline" in (late.timetable.binding_constraint or "")


def test_memory_that_is_too_small_is_named() -> None:
    """What crosses does not fit on the second unit, and the first one alone cannot have both pieces."""
    split = candidate("split", [{"a": 20}, {"b": 20}], read_output_bytes=100)
    fits = arrange_on_units([split], Beat(100, 0), [Room("a"), Room("b", 1000)])
    assert fits.timetable.feasible
    full = arrange_on_units([split], Beat(100, 0), [Room("a"), Room("b", 100)])
    assert not full.timetable.feasible
    assert "unit 'b' would need" in (full.timetable.binding_constraint or "")


def test_a_solver_is_asked_where_much_is_left_to_gain() -> None:
    """It may only help, and its bound holds for what was found without it."""
    models = [alike(f"m{number}", [30 + 7 * number] * 4) for number in range(4)]
    quick = arrange_on_units(models, Beat(100, 0), TWO)
    exact = arrange_on_units(models, Beat(100, 0), TWO, solve=lambda problem: solve(problem, time_limit_s=1))
    assert exact.share >= quick.share
    assert exact.share <= exact.bound <= quick.bound + 1e-6


def test_fixes_are_verified_on_several_units() -> None:
    """Twice the time is there at half the rate, and half the cost would do."""
    models = [alike("first", [60], priority=True), alike("second", [60], priority=True), alike("third", [50])]
    beat = Beat(100, 0)

    def arranged(other: Beat, costs: Mapping[str, float]) -> Timetable:
        scaled = [c.scaled(costs[c.model.name]) if c.model.name in costs else c for c in models]
        return first_fit(scaled, other, TWO)

    assert not arranged(beat, {}).feasible
    found = verified_fixes(arranged, beat, ["first", "second", "third"], 1e7)
    assert found
    assert all(fix.verified for fix in found)
    rate = next(fix for fix in found if fix.change.startswith("rate_hz = "))
    window = int(1e9 / float(rate.change.removeprefix("rate_hz = ")))
    assert arranged(dataclasses.replace(beat, window_ns=window), {}).feasible
    cheaper = next(fix for fix in found if "'third' at" in fix.change)
    percent = int(cheaper.change.split()[-5])
    assert arranged(beat, {"third": percent / 100}).feasible
    assert not arranged(beat, {"third": percent / 100 + 0.1}).feasible


def test_a_rate_of_uneven_windows_is_given_as_a_factor() -> None:
    """All streams' rates change together there."""
    lengths = (100, 50)
    demands = {"first": Demand(deadline_ns=50)}
    model = planned("first", [60], priority=True)

    def arranged(other: Beat, costs: Mapping[str, float]) -> Timetable:
        later = {"first": Demand(deadline_ns=other.window_ns)}
        return build_timetable(dataclasses.replace(other, demands=later), [model])

    beat = Beat(50, 0, demands=demands, lengths_ns=lengths)
    (fix, *_) = verified_fixes(arranged, beat, ["first"], 1e7)
    assert fix.verified
    assert fix.change.startswith("the rates of all streams x 0.8")


def test_the_share_of_what_is_not_feasible_is_none() -> None:
    """And of a workload without background models all of it."""
    beat = Beat(100, 0)
    assert served_share(build_timetable(beat, [planned("a", [150], priority=True)]), beat) == 0
    assert served_share(build_timetable(beat, [planned("a", [50], priority=True)]), beat) == 1


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[UnitCandidate], Beat, list[Room]]:
    """Up to four models on two or three units; not all fit."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = ["a", "b", "c"][: int(random.integers(2, 4))]
    window = int(random.integers(100, 400))
    models: list[UnitCandidate] = []
    demands = {}
    for number in range(int(random.integers(1, 5))):
        priority = number < 1 and random.random() < 0.7
        count = int(random.integers(1, 5))
        longest = window // (6 if priority else 2)
        pieces = []
        for _ in range(count):
            able = [unit for unit in names if random.random() < 0.8] or [str(random.choice(names))]
            pieces.append({unit: int(random.integers(1, longest + 1)) for unit in able})
        readable = [one.model.name for one in models if one.model.role == "background" or priority]
        after = (str(random.choice(readable)),) if readable and random.random() < 0.2 else ()
        name = f"m{number}"
        demands[name] = Demand(queue=int(random.integers(1, 4)), every=int(random.integers(1, 3)))
        models.append(
            candidate(
                name,
                pieces,
                priority=priority,
                after=after,
                read_output_bytes=int(random.integers(0, 20)),
                units=names,
                stateful=bool(random.random() < 0.2),
            )
        )
    links = [link(one, other, int(random.integers(0, 10)), 0.5) for one, other in itertools.pairwise(names)]
    beat = Beat(
        window, int(random.integers(0, window // 20)), demands=demands, links=tuple(links),
        excess_ratio=float(random.choice([0, 0.05])), late_ns=int(random.integers(0, 4)),
    )  # fmt: skip
    return models, beat, [Room(name) for name in names]


@settings(max_examples=25)
@given(workloads())
def test_every_feasible_arrangement_passes_the_check(case: tuple[list[UnitCandidate], Beat, list[Room]]) -> None:
    """Supported units only, in order, in time; never more than the bound; else what binds is named."""
    models, beat, units = case
    arranged = arrange_on_units(models, beat, units)
    timetable = arranged.timetable
    if not timetable.feasible:
        assert timetable.binding_constraint
        return
    supported = {
        one.model.name: [
            {u for u in one.supported if all(one.supported[u][run.first : run.last + 1])}
            for run in arranged.runs[one.model.name]
        ]
        for one in models
    }
    assert checked(beat, timetable, supported) == []
    assert 0 < arranged.share <= arranged.bound + 1e-9
    for one in models:
        runs = arranged.runs[one.model.name]
        assert [piece for run in runs for piece in range(run.first, run.last + 1)] == list(range(len(one.names)))


def test_windows_of_a_pattern_are_slowed_down_together() -> None:
    """Also where all are equally long, but some streams release in every second one only."""
    beat = Beat(100, 1, demands={"big": Demand(releases=(1,))}, lengths_ns=(100, 100))
    models = [alike("face", [60], priority=True), alike("big", [90])]
    fixes = verified_fixes(lambda other, _: first_fit(models, other, TWO[:1]), beat, ["face", "big"], 1e9 / 100)
    assert any(fix.change.startswith("the rates of all streams x ") and fix.verified for fix in fixes)
