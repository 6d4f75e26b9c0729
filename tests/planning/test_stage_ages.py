"""The promise on several units: priority models in time, no result older than its bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_plans import checked, link, on_units, several_units
from units_simulation import UnitsSimulation

from framefit.core.timetable import PlannedModel
from framefit.planning.ages import Spans, longest_ns
from framefit.planning.beat import Beat, Demand
from framefit.planning.timetable import build_timetable


def drawn(random: np.random.Generator, in_full: float) -> Callable[[int], int]:
    """Durations of 0.3 to 1 times the planned quantile, some of them in full."""
    return lambda quantile: quantile if random.random() < in_full else max(int(quantile * random.uniform(0.3, 1)), 1)


def assert_kept(
    beat: Beat, models: list[PlannedModel], random: np.random.Generator, windows: int
) -> dict[str, tuple[int, int]]:
    """Play the plan through in several ways; the greatest age in windows that was seen, and its bound, by model."""
    beat = replace(beat, yields=bool(random.random() < 0.5) and not beat.preemptive)
    timetable = build_timetable(beat, models)
    if not timetable.feasible:
        return {}
    assert checked(beat, timetable) == []
    seen: dict[str, tuple[int, int]] = {}
    for in_full in (1.0, 0.5):
        for crossing in (False, True):
            run = UnitsSimulation(
                beat,
                timetable,
                drawn(random, in_full),
                lambda latest: latest if random.random() < 0.5 else int(latest * random.random()),
                crossing=crossing,
            )
            run.run(windows)
            assert run.late == []
            for name, job in run.jobs.items():
                bound = timetable.model(name).result_age_windows
                assert bound is not None
                age = math.ceil(job.oldest / beat.window_ns)
                assert age <= bound, (name, crossing, in_full)
                assert job.most_flying <= job.plan.slots
                seen[name] = max(seen.get(name, (0, bound)), (age, bound))
    return seen


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_the_promise_is_kept_on_several_units(seed: int) -> None:
    """Stages, slots, links, models that read others, uneven windows: the check passes and no bound is exceeded."""
    random = np.random.default_rng(seed)
    assert_kept(*several_units(random), random, 30)


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_the_longest_time_is_found_over_all_instants(seed: int) -> None:
    """Every nanosecond of arrival is tried: the greatest is what the few instants that matter give."""
    random = np.random.default_rng(seed)
    window = int(random.integers(6, 14))
    free = []
    for _ in range(int(random.integers(1, 3))):
        edges = sorted(random.choice(window + 1, 4, replace=False).tolist())
        free.append([(edges[0], edges[1]), (edges[2], edges[3])])
    room = min(max(end - begin for begin, end in spans) for spans in free)
    preemptive, yields = bool(random.random() < 0.3), bool(random.random() < 0.5)
    spans = Spans(window, free, preemptive=preemptive, yields=yields)
    work = random.integers(1, room + 1, int(random.integers(1, 5))).tolist()
    sums = np.cumsum([0, *work]).tolist()
    done = [(spans.done_ns(instant, sums), instant) for instant in range(window * len(free))]
    assert longest_ns(spans, work) == max(end - instant for end, instant in done if end is not None)


def staged(slots: int, **demand: object) -> tuple[Beat, list[PlannedModel]]:
    """Windows of 100; 40 on npu0, a link of 10, 30 on npu1."""
    apart = link("npu0", "npu1", 10)
    model = on_units("later", [("npu0", 40), ("npu1", 30)], slots=slots)
    return Beat(100, 0, demands={"later": Demand(**demand)}, links=(apart,)), [model]  # type: ignore[arg-type]


@pytest.mark.parametrize(("slots", "other", "bound_ns"), [(1, 0, 109), (2, 0, 109), (1, 50, 159), (2, 50, 159)])
def test_bounds_of_hand_cases(slots: int, other: int, bound_ns: int) -> None:
    """Windows of 200: 40, 10, and 30 that may just not fit any more, so 59; behind another model 50 later."""
    beat, models = staged(slots, refuses=True)
    if other:
        models.insert(0, on_units("other", [("npu0", other)]))
    for deadline, feasible in ((bound_ns, True), (bound_ns - 1, False)):
        demands = {"later": Demand(deadline_ns=deadline, refuses=True)}
        timetable = build_timetable(replace(beat, window_ns=200, demands=demands), models)
        assert timetable.feasible == feasible, timetable.binding_constraint


def test_what_crosses_a_slow_link_is_older() -> None:
    """The same model over a link of 110: 100 ns older, as there are slots for the frames that follow."""
    beat, models = staged(4, refuses=True)
    slow = link("npu0", "npu1", 110)
    near, far = (build_timetable(b, models) for b in (beat, replace(beat, links=(slow,))))
    assert near.model("later").result_age_windows == 2
    assert far.model("later").result_age_windows == 3


def test_a_model_that_reads_another_is_as_old_as_that_and_itself() -> None:
    """A priority model done at 30, a reader of 20 on another unit, 10 away: done at 60, or 39 after it came there."""
    models = [
        on_units("first", [("npu0", 30)], priority=True),
        on_units("reader", [("npu1", 20)], after=("first",)),
    ]
    links = (link("npu0", "npu1", 10),)
    timetable = build_timetable(Beat(100, 0, links=links), models)
    slots = [slot for window in timetable.windows for slot in window.slots if slot.model == "reader"]
    assert {slot.start_ns for slot in slots} == {40}
    assert timetable.model("reader").result_age_windows == 1
    for deadline, feasible in ((79, True), (78, False)):
        beat = Beat(100, 0, links=links, demands={"reader": Demand(deadline_ns=deadline)})
        assert build_timetable(beat, models).feasible == feasible


def test_the_simulation_notices_a_link_that_takes_longer_than_planned() -> None:
    """A bound for a link of 10 is exceeded over one of 400."""
    beat, models = staged(1)
    timetable = build_timetable(beat, models)
    slow = msgspec.structs.replace(timetable, links=(link("npu0", "npu1", 400),))
    run = UnitsSimulation(beat, slow, lambda quantile: quantile, lambda latest: latest, crossing=False)
    run.run(20)
    bound = timetable.model("later").result_age_windows
    assert bound is not None
    assert math.ceil(run.jobs["later"].oldest / 100) > bound


def test_models_wait_for_each_other_at_a_link() -> None:
    """A link of 1 a byte, 10 bytes of each of three models, two of them with two slots: 10, and 40 of the others."""
    models = [
        on_units(f"later{n}", [("npu0", 5), ("npu1", 5)], slots=slots, boundary_bytes=10)
        for n, slots in enumerate((1, 2, 2))
    ]
    beat = Beat(100, 0, links=(link("npu0", "npu1", 3, 1),))
    assert beat.longest_link_ns("npu1", "npu0", 10) == beat.link_ns("npu1", "npu0", 10) == 13
    assert beat.shared(models).longest_link_ns("npu0", "npu1", 10) == 53
    assert beat.shared(models).longest_link_ns("npu0", "npu2", 10) == 0
    assert build_timetable(beat, models).feasible
