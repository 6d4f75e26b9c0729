"""Every workload of priority models that can fit is found to fit: refusals held against an exhaustive search.

The search here knows nothing of the planner. It goes through all orders in which pieces can begin and all units for
each of them; each piece begins as soon as it can in that order. For releases and deadlines no other schedule need be
looked at, for beginning earlier makes nothing late.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_units import alike, candidate
from unit_plans import checked

from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.core.target import Target, Unit, Variation
from framefit.core.timetable import Refusal, Timetable
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.device import NpuDevice
from framefit.planning.beat import Beat, Demand
from framefit.planning.candidates import Arranged, UnitCandidate, arrange_on_units
from framefit.planning.placement import Room
from framefit.planning.priority_search import PrioritySearch
from framefit.runtime.log import FrameLog, FrameOutcome
from timed_runs import timed_group

MS = 1_000_000
STEP = 10_000  # ns: works are so many of them, periods hundreds


@dataclasses.dataclass(frozen=True)
class Case:
    """Models with a stream each.

    Attributes:
        periods: of the streams, in ms; all release at 0.
        pieces: of each model, what they take on each unit, in hundredths of ms.
        background: the one piece of a background model, alike on all units; 0: there is none.
        deadlines: of the models, in ms; default: their periods.
        excess: how much longer than planned a launch may take; the guard keeps as much free for the background piece.
    """

    periods: tuple[int, ...]
    pieces: tuple[tuple[tuple[int, ...], ...], ...]
    background: int = 0
    deadlines: tuple[int, ...] = ()
    excess: float = 0.0

    def worst_ns(self, work: int) -> int:
        """How long a launch takes at most."""
        return math.ceil((1 + self.excess) * work * STEP)

    @property
    def due(self) -> tuple[int, ...]:
        """When each model's frames have to be done after their releases, in ms."""
        return self.deadlines or self.periods

    @property
    def units(self) -> int:
        """How many there are."""
        return len(self.pieces[0][0])

    @property
    def total(self) -> int:
        """Until all streams release at once again."""
        return math.lcm(*self.periods)

    @property
    def instants(self) -> list[int]:
        """At which any stream releases."""
        return sorted({n * period for period in self.periods for n in range(self.total // period)})


def exhaustive(case: Case) -> bool:
    """Whether any order on any units meets all deadlines and leaves room for the background piece in some window."""
    if not case.background:
        return any(_meets(case, on, None) for on in _assignments(case))
    edges = [*case.instants, case.total]
    spots = [(begin, end, unit) for begin, end in itertools.pairwise(edges) for unit in range(case.units)]
    return any(
        _meets(case, on, spot)
        for on in _assignments(case)
        for spot in spots
        if (spot[1] - spot[0]) * MS >= case.worst_ns(case.background)
    )


def _assignments(case: Case) -> Iterator[list[tuple[int, ...]]]:
    ways = [list(itertools.product(range(case.units), repeat=len(pieces))) for pieces in case.pieces]
    yield from map(list, itertools.product(*ways))


def _meets(case: Case, on: Sequence[Sequence[int]], spot: tuple[int, int, int] | None) -> bool:
    """Depth first over which chain's next piece begins next.

    A model's next frame begins after the one before, a nanosecond later where its tensors cross units.
    """
    chains = []  # release, due, steps, the chain before and what lies between
    for period, due, pieces, units in zip(case.periods, case.due, case.pieces, on, strict=True):
        apart = int(len(set(units)) > 1)
        steps = [(unit, case.worst_ns(piece[unit])) for unit, piece in zip(units, pieces, strict=True)]
        for n in range(case.total // period):
            chains.append((n * period * MS, (n * period + due) * MS, steps, len(chains) - 1 if n else None, apart))
    if spot is not None:
        chains.append((spot[0] * MS, spot[1] * MS, [(spot[2], case.worst_ns(case.background))], None, 0))
    seen: set[tuple[object, ...]] = set()

    def goes_on(done: tuple[int, ...], ready: tuple[int, ...], free: tuple[int, ...]) -> bool:
        if all(count == len(chain[2]) for count, chain in zip(done, chains, strict=True)):
            return True
        key = done, ready, free
        if key in seen:
            return False
        seen.add(key)
        for number, (_, due, steps, before, apart) in enumerate(chains):
            at = done[number]
            if at == len(steps) or (not at and before is not None and done[before] < len(steps)):
                continue
            unit, work = steps[at]
            begin = ready[number] if at or before is None else max(ready[number], ready[before] + apart)
            end = max(begin, free[unit]) + work
            if end + sum(ns for _, ns in steps[at + 1 :]) > due:
                return False  # it only gets later
            after = tuple(end if n == number else ns for n, ns in enumerate(ready))
            units = tuple(end if n == unit else ns for n, ns in enumerate(free))
            if goes_on(tuple(count + (n == number) for n, count in enumerate(done)), after, units):
                return True
        return False

    return goes_on((0,) * len(chains), tuple(chain[0] for chain in chains), (0,) * case.units)


def arranged(case: Case, order: Sequence[int] | None = None, limit_s: float = 20.0) -> tuple[Arranged, Beat]:
    """As the planner has it, models in some order."""
    names = "abc"[: case.units]
    edges = [*case.instants, case.total]
    lengths = tuple((end - begin) * MS for begin, end in itertools.pairwise(edges))
    several = len(set(case.periods)) > 1
    demands = {
        f"p{number}": Demand(
            deadline_ns=due * MS,
            releases=tuple(place for place, at in enumerate(case.instants) if at % period == 0) if several else None,
        )
        for number, (period, due) in enumerate(zip(case.periods, case.due, strict=True))
    }
    beat = Beat(min(lengths), 0, demands=demands, lengths_ns=lengths if several else (), excess_ratio=case.excess)
    models = [
        candidate(
            f"p{number}",
            [{unit: count * STEP for unit, count in zip(names, piece, strict=True)} for piece in pieces],
            priority=True,
            units=names,
        )
        for number, pieces in enumerate(case.pieces)
    ]
    models = [models[number] for number in order or range(len(models))]
    models.sort(key=lambda one: beat.of(one.model.name).deadline_ns or 0)  # as the planner ranks them
    if case.background:
        models.append(alike("later", [case.background * STEP], units=names))
    return planned_by_search(models, beat, names, limit_s), beat


def planned_by_search(models: Sequence[UnitCandidate], beat: Beat, units: str, limit_s: float) -> Arranged:
    """At once, or by the solver."""
    rooms = [Room(unit) for unit in units]
    first = arrange_on_units(models, beat, rooms)
    if first.timetable.feasible:
        return first
    search = PrioritySearch(models, beat, list(units), limit_s, lambda _: None)
    found, _ = search.arranged(
        first,
        lambda schedule: arrange_on_units(
            [schedule.placed(one) for one in models], dataclasses.replace(beat, layout=schedule.layout), rooms
        ),
    )
    return found


@st.composite
def cases(draw: st.DrawFn, units: int) -> Case:
    """Two or three streams with six frames or fewer in a repetition, some models of two pieces."""
    periods = draw(
        st.sampled_from([(4, 12), (6, 12, 12), (4, 8, 8), (5, 10), (6, 9), (4, 6), (8, 8), (10, 10, 10), (6, 6, 12)])
    )
    period = st.just(periods)
    pieces = []
    for own in draw(period):
        count = draw(st.integers(1, 2))
        most = max(own * (3 if units > 1 else 2) // (2 * count * len(periods)) + 1, 1)
        whole = st.integers(1, most).map(lambda ms: 100 * ms)  # much ends where something else is released
        work = whole if units == 1 else st.one_of(whole, st.integers(10, 100 * most))
        pieces.append(tuple(tuple(draw(work) for _ in range(units)) for _ in range(count)))
    deadlines = tuple(draw(st.integers((period + 1) // 2, period)) for period in periods) if draw(st.booleans()) else ()
    return Case(
        periods, tuple(pieces), 100 * draw(st.integers(0, 2)), deadlines, draw(st.sampled_from([0.0, 0.0, 0.25]))
    )


def assert_decided_rightly(case: Case) -> None:
    """As the exhaustive search; what fits is sound, what does not has its proof."""
    found, beat = arranged(case)
    timetable = found.timetable
    assert timetable.feasible == exhaustive(case), timetable.binding_constraint
    if timetable.feasible:
        assert checked(beat, timetable) == []
        assert missed(timetable, case) == 0
    elif timetable.proof is not None:
        assert timetable.proof.kind == "proved"
        assert timetable.worst_slack_ns <= 0


def missed(timetable: Timetable, case: Case, windows: int = 60) -> int:
    """Priority frames that are not done in time when the timetable is played through by the runtime."""
    names = "abc"[: case.units]
    units = tuple(Unit(name=name, preemptive=False, core=core) for core, name in enumerate(names))
    target = Target(name="board", kind="npu", units=units, variation=Variation(sigma_ratio=0.0, most_ratio=0.0))
    edges = case.instants
    several = len(set(case.periods)) > 1
    streams = {
        f"s{number}": tuple(n for n, at in enumerate(edges) if at % period == 0)
        for number, period in enumerate(case.periods)
    }
    grid = Grid(1000 / case.total, tuple(at * MS for at in edges), streams) if several else Grid(1000 / case.periods[0])
    run = timed_group(
        timetable,
        NpuDevice(target, VirtualClock(), seed=1),
        grid,
        Rotation,
        deadlines_ns={f"p{number}": due * MS for number, due in enumerate(case.due)},
        streams={f"p{number}": frozenset({f"s{number}"}) for number in range(len(case.periods))} if several else None,
    )
    run.run(len(edges) * windows)
    rows = run.frames.rows()
    priority = [number for number, model in enumerate(timetable.models) if model.role == "priority"]
    own = rows[np.isin(rows[:, FrameLog.MODEL], priority)]
    assert len(own)
    return int(np.count_nonzero(own[:, FrameLog.OUTCOME] != FrameOutcome.DONE))


@settings(max_examples=45, deadline=None)
@given(cases(1))
def test_one_unit_refuses_only_what_no_order_makes_fit(case: Case) -> None:
    """Several rates on one unit, models cut where that helps: exhaustive search and planner agree."""
    assert_decided_rightly(case)


@settings(max_examples=25, deadline=None)
@given(cases(2))
def test_two_units_refuse_only_what_no_order_and_placement_makes_fit(case: Case) -> None:
    """Each piece on either unit, which differ in speed."""
    assert_decided_rightly(case)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_order_of_models_decides_nothing(data: st.DataObject) -> None:
    """Any permutation is as feasible, with the same slack."""
    case = data.draw(cases(data.draw(st.integers(1, 2))))
    order = data.draw(st.permutations(range(len(case.periods))))
    first, second = arranged(case)[0].timetable, arranged(case, order)[0].timetable
    assert first.feasible == second.feasible
    assert first.worst_slack_ns == second.worst_slack_ns


def searched(case: Case, limit_s: float = 20.0) -> Refusal:
    """Why a case does not fit."""
    timetable = arranged(case, limit_s=limit_s)[0].timetable
    assert not timetable.feasible
    assert timetable.proof is not None
    assert timetable.binding_constraint == timetable.proof.reason
    return timetable.proof


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case((4, 8), (((500,),), ((100,),))), "'p0' alone takes 5 ms, its deadline is 4 ms"),
        (Case((4, 8), (((300,),), ((300,),))), "utilisation of unit 'a' is 1.12, above 1"),
        (
            Case((8, 16), (((500,),), ((500,),)), deadlines=(8, 8)),
            "due by 8 ms takes 10 ms on unit 'a', which has 8 ms",
        ),
        (Case((4, 12), (((200,),), ((500,),))), "no order of the priority models on a meets all deadlines"),
        (Case((4, 8), (((200,),), ((200,),)), 300), "leaves 3 ms in one run, guard included, in any window"),
    ],
)
def test_a_refusal_carries_its_proof(case: Case, reason: str) -> None:
    """What binds is named: a model alone, utilisation, demand in an interval, all orders, or room for a layer."""
    assert not exhaustive(case)
    refusal = searched(case)
    assert refusal.kind == "proved"
    assert reason in refusal.reason


def test_what_was_not_found_says_so_with_the_best_lateness_and_its_bound() -> None:
    """Without time for the search there is no proof; a schedule with the least lateness is looked for all the same."""
    refusal = searched(Case((4, 12), (((200,),), ((500,),))), limit_s=0.0)
    assert refusal.kind == "not found"
    assert "nor a proof" in refusal.reason
    assert refusal.lateness_ns == refusal.bound_ns == MS


def test_a_model_longer_than_its_period_is_late_by_what_it_takes_more() -> None:
    """In its first repetition: what is carried over to the next ones has no end."""
    refusal = searched(Case((4, 4), (((200,), (300,)), ((100,),))))
    assert refusal.lateness_ns == refusal.bound_ns == 2 * MS


def test_a_model_is_cut_where_others_come_between_its_layers() -> None:
    """6 ms between frames of the other, of 2.5 ms in every 5: in one run it makes these late; it has two periods."""
    case = Case((5, 15), (((250,),), ((300,), (300,))))
    timetable = arranged(case)[0].timetable
    assert timetable.feasible
    (window, *_) = [one for one in timetable.windows if one.index == 0]
    assert len(timetable.model("p1").segments) == 2
    assert sum(period.model == "p1" for period in window.priority) == 2
    assert missed(timetable, case) == 0


def test_what_a_search_spends_is_counted_and_not_timed() -> None:
    """Its limit and what it says to have spent are of the solver's own work: the machine's load decides nothing."""
    case = Case((4, 12), (((200,),), ((500,),)))
    first, second = searched(case), searched(case)
    assert first == second
    assert 0 < first.searched_s < 1
