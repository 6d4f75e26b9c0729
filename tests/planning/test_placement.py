"""Which unit runs which part of which model: the heuristic, the solver, and every way there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import best_share, share_of, some_problem, units_of

from framefit.core.target import Link
from framefit.planning.placement import Costs, Placeable, Problem, Room
from framefit.planning.placement_search import cheapest_paths, place, solve


def model(name: str, durations: list[list[int | None]], **further: object) -> Placeable:
    """A background model without bytes."""
    count = len(durations)
    settings_: dict[str, object] = {"role": "background", **further}
    return Placeable(
        name=name,
        duration_ns=durations,
        median_ns=durations,
        parameter_bytes=settings_.pop("parameter_bytes", [0] * count),  # type: ignore[arg-type]
        boundary_bytes=settings_.pop("boundary_bytes", [0] * (count + 1)),  # type: ignore[arg-type]
        **settings_,  # type: ignore[arg-type]
    )


def two_units(*models: Placeable, memory: int | None = None, link_ns: int = 0) -> Problem:
    """Windows of 100 on two units."""
    links = [Link(between=("a", "b"), latency_ns=link_ns)]
    return Problem(100, 0, [Room("a", memory), Room("b", memory)], list(models), links)


def test_a_model_is_spread_over_two_units() -> None:
    """Pieces of 60 and 60 in windows of 100: one on each unit serves every frame, both on one only 5 of 6."""
    placement = place(two_units(model("later", [[60, 60], [60, 60]])))
    assert placement.least_share == 1
    assert len(placement.stages["later"]) == 2
    assert placement.slots == {"later": 4}
    assert placement.changes == 1


def test_no_unit_is_changed_without_need() -> None:
    """Pieces of 30 and 30 fit on one unit."""
    placement = place(two_units(model("later", [[30, 30], [30, 30]])))
    assert placement.changes == 0
    assert placement.slots == {"later": 1}
    assert placement.launches == {"later": 1.0}
    assert placement.gap_ratio == 0


def test_each_piece_goes_where_it_is_fast() -> None:
    """10 and 90 on one unit, 90 and 10 on the other."""
    placement = place(two_units(model("later", [[10, 150], [150, 10]])))
    assert [stage.unit for stage in placement.stages["later"]] == ["a", "b"]


def test_a_priority_model_in_time_comes_first() -> None:
    """Beside a model of 60 that only runs on one unit, half of it goes to the other, if the link is fast."""
    urgent = model("first", [[30, 60], [30, 20]], role="priority", deadline_ns=60)
    other = model("later", [[60, None]])
    placement = place(two_units(urgent, other, link_ns=10))
    assert placement.feasible
    assert [stage.unit for stage in placement.stages["first"]] == ["a", "b"]
    assert not place(two_units(urgent, other, link_ns=11)).feasible


def test_memory_binds() -> None:
    """Two models of 60 bytes each do not fit on one unit of 100, though the other is slower."""
    models = [model(name, [[20, 40]], parameter_bytes=[60]) for name in ("one", "two")]
    for memory, units in ((120, 1), (100, 2)):
        placement = place(two_units(*models, memory=memory))
        assert placement.feasible
        assert len({stages[0].unit for stages in placement.stages.values()}) == units
        assert max(placement.memory_bytes.values()) <= memory


def test_tensors_that_cross_are_there_once_for_each_slot() -> None:
    """8 bytes cross: 4 times on either side, beside 8 that are held there."""
    placement = place(two_units(model("later", [[60, 60], [60, 60]], boundary_bytes=[0, 8, 0])))
    assert placement.memory_bytes == {"a": 8 + 4 * 8, "b": 8 + 4 * 8}


@pytest.mark.parametrize(
    ("problem", "named"),
    [
        (two_units(model("later", [[10, 10], [None, None]])), "no unit supports piece 1 of 'later'"),
        (two_units(model("first", [[60, 70]], role="priority", deadline_ns=50)), "miss their deadlines"),
        (two_units(model("later", [[120, 130]])), "a piece on unit"),
        (two_units(model("later", [[10, 10]], parameter_bytes=[50]), memory=40), "would need 50 bytes and has 40"),
        (
            two_units(model("later", [[1, None], [None, 1]] * 4)),
            "change more than 3 times",
        ),
    ],
)
def test_what_cannot_be_placed_is_named(problem: Problem, named: str) -> None:
    """The first thing that is violated, from both methods."""
    for placement in (place(problem), solve(problem, time_limit_s=5)):
        assert not placement.feasible
        assert named in (placement.reason or "")
        assert placement.least_share == 0


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_no_way_is_better_than_the_bound_and_the_solver_finds_the_best(seed: int) -> None:
    """Tiny problems, every assignment tried: bounds hold, shares are as said, the solver's is the greatest."""
    random = np.random.default_rng(seed)
    problem = some_problem(random, models=3, units=2, pieces=3)
    best = best_share(problem)
    quick, exact = place(problem), solve(problem, time_limit_s=20)
    for placement in (quick, exact):
        assert placement.bound >= best - 1e-9
        if placement.feasible:
            assert placement.least_share == pytest.approx(share_of(problem, units_of(problem, placement)))
    assert exact.least_share >= quick.least_share - 1e-9
    assert exact.feasible == (best > 0)
    assert exact.least_share == pytest.approx(best, rel=2e-3)
    assert quick.least_share >= 0.85 * best


@settings(max_examples=12)
@given(st.integers(0, 2**32 - 1))
def test_the_heuristic_s_placement_is_worth_what_it_says(seed: int) -> None:
    """Bigger problems: share, memory and rates agree with the assignment; units are full or demands are met."""
    random = np.random.default_rng(seed)
    problem = some_problem(random, models=4, units=3, pieces=8)
    placement = place(problem)
    assert placement == place(problem)
    if not placement.feasible:
        assert placement.reason
        return
    share = share_of(problem, units_of(problem, placement))
    assert placement.least_share == pytest.approx(share)
    assert placement.least_share <= placement.bound + 1e-12
    wanted = {entry.name: entry.rate for entry in problem.models if entry.role == "background"}
    for name, launches in placement.launches.items():
        assert share * wanted[name] * (1 - 1e-9) <= launches <= wanted[name] * (1 + 1e-9)


def test_the_cheapest_path_is_the_least_of_all() -> None:
    """Under random prices, against every assignment with as many stages as there may be."""
    random = np.random.default_rng(0)
    for _ in range(30):
        problem = some_problem(random, models=1, units=3, pieces=5)
        costs = Costs(problem)
        prices = random.random((3, 3)) + 0.1
        found, ways = cheapest_paths(costs, 0, prices)
        base = costs.base_ns(0)
        every = np.array(list(np.ndindex(*[3] * len(base))))
        few = np.count_nonzero(np.diff(every, axis=1), axis=1) < problem.slots
        for price, cost, way in zip(prices, found, ways, strict=True):
            total = (price[every] * base[np.arange(len(base)), every]).sum(axis=1)
            assert cost == pytest.approx(total[few].min())
            assert cost == pytest.approx((price[way] * base[np.arange(len(base)), way]).sum())


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: model("m", [[1]], boundary_bytes=[0]), "n \\+ 1 boundaries"),
        (lambda: model("m", [[1]], rate=0.0), "greater than 0"),
        (lambda: two_units(model("m", [[1]])), "one duration a unit"),
        (lambda: Problem(100, 0, [Room("a"), Room("a")], []), "differ"),
        (lambda: Problem(100, 0, [Room("a")], [], [Link(between=("a", "b"))]), "a link between a and b"),
    ],
)
def test_what_is_no_problem_is_refused(build: object, named: str) -> None:
    """Numbers that do not fit together."""
    with pytest.raises(ValueError, match=named):
        build()  # type: ignore[operator]
