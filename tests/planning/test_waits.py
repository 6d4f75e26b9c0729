"""The promise to events: none waits longer than its bound, and nobody else is later than theirs for it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from event_simulation import EventSimulation
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import one_round, planned
from test_ages import up_to

from framefit.core.timetable import PlannedModel
from framefit.planning.beat import Beat, Demand
from framefit.planning.reserved import reserve
from framefit.planning.sporadic import waits
from framefit.planning.timetable import build_timetable, event_spans


def sporadic(name: str, durations_ns: list[int], distance_ns: int) -> PlannedModel:
    """A sporadic model of these segments."""
    return msgspec.structs.replace(planned(name, durations_ns), role="sporadic", min_distance_ns=distance_ns)


def with_event(
    beat: Beat, durations_ns: list[int], distance_ns: int, deadline_ns: int | None = None, name: str = "event"
) -> Beat:
    """A beat with one sporadic model more."""
    demand = Demand(distance_ns=distance_ns, deadline_ns=deadline_ns)
    events = (*beat.events, sporadic(name, durations_ns, distance_ns))
    return replace(beat, events=events, demands={**beat.demands, name: demand})


def any_events(random: np.random.Generator) -> tuple[Beat, list[PlannedModel]]:
    """Any beat with one to three sporadic models."""
    beat, models = one_round(random)
    for number in range(int(random.integers(1, 4))):
        longest = max(int(beat.window_ns * random.choice([0.03, 0.1, 0.2])), 1)
        durations = [int(random.integers(1, longest + 1)) for _ in range(int(random.integers(1, 4)))]
        distance = int(beat.window_ns * random.choice([0.5, 1, 2, 5, 12]) * random.uniform(0.8, 1.2))
        deadline = int(distance * random.uniform(0.3, 1)) if random.random() < 0.4 else None
        beat = with_event(beat, durations, distance, deadline, f"event{number}")
    return beat, models


def assert_kept(beat: Beat, models: list[PlannedModel], random: np.random.Generator, windows: int) -> tuple[int, int]:
    """Play the plan through in several ways; how many bounds on waits were reached, of how many."""
    beat = beat.guarded(models)
    timetable = build_timetable(beat, models)
    if not timetable.feasible:
        return 0, 0
    most = 1 + beat.excess_ratio
    longest: dict[str, int] = dict.fromkeys(timetable.waits_ns, 0)
    for in_full, spite, dense in ((1.0, 0.3, 0.7), (1.0, 1.0, 0.0), (0.7, 0.2, 0.9), (0.0, 0.5, 0.5), (1.0, 0.02, 1.0)):

        def takes(quantile: int, in_full: float = in_full) -> int:
            full = random.random() < in_full
            return int(quantile * most) if full else max(int(quantile * random.uniform(0.3, most)), 1)

        for crossing in (False, True):
            run = EventSimulation(
                beat, timetable, takes, up_to(random), crossing=crossing, random=random, spite=spite, dense=dense,
                windows=windows,
            )  # fmt: skip
            run.run(windows)
            assert run.late == []
            for one in run.sporadic:
                bound = timetable.waits_ns[one.plan.name]
                assert max(one.waits, default=0) <= bound, (one.plan.name, crossing, in_full)
                assert bound <= (beat.of(one.plan.name).deadline_ns or one.distance)
                longest[one.plan.name] = max(longest[one.plan.name], *one.waits, 0)
            for model in run.models:
                aged = timetable.model(model.plan.name).result_age_windows
                assert aged is not None
                assert -(-model.oldest_ns // beat.window_ns) <= aged, (model.plan.name, crossing)
    return sum(longest[name] == ns for name, ns in timetable.waits_ns.items()), len(longest)


@settings(max_examples=45)
@given(st.integers(0, 2**32 - 1))
def test_no_event_waits_longer_than_its_bound(seed: int) -> None:
    """Any position, several models and events, exact or longer durations: bounds on waits and ages hold."""
    random = np.random.default_rng(seed)
    beat, models = any_events(random)
    if not beat.preemptive and random.random() < 0.4:
        beat = replace(beat, excess_ratio=float(random.choice([0.05, 0.2])))
    assert_kept(beat, models, random, 60)


@settings(max_examples=45)
@given(st.integers(0, 2**32 - 1))
def test_bounds_hold_in_windows_of_a_few_nanoseconds(seed: int) -> None:
    """Small numbers make ties and exact fits frequent, where an unsound bound fails first."""
    random = np.random.default_rng(seed)

    def between(low: int, high: int) -> int:
        return int(random.integers(low, high + 1))

    window = between(8, 24)
    models = [planned(f"first{n}", [between(1, max(window // 5, 1))], priority=True) for n in range(between(0, 2))]
    models += [
        planned(f"later{n}", [between(1, window // 2) for _ in range(between(1, 4))]) for n in range(between(0, 2))
    ]
    position = str(random.choice(["start", "middle", "end"]))
    beat = Beat(window, between(0, 1), between(0, 1), position, bool(random.random() < 0.2))  # type: ignore[arg-type]
    for number in range(between(1, 2)):
        durations = [between(1, max(window // 6, 1)) for _ in range(between(1, 3))]
        beat = with_event(beat, durations, between(window, 5 * window), name=f"event{number}")
    assert_kept(beat, models, random, 80)


def test_bounds_are_reached_where_no_segment_blocks() -> None:
    """An event that comes when the plan says that it waits longest does so, to the nanosecond: bounds are not loose."""
    count = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        beat, models = one_round(random)
        models = [model for model in models if model.role == "priority"]
        beat = with_event(replace(beat, late_ns=0), [int(beat.window_ns * 0.05)], 3 * beat.window_ns)
        timetable = build_timetable(beat, models)
        if not timetable.feasible:
            continue
        spans = event_spans(beat, reserve(beat, models))
        wait = waits(beat, spans, [])[0]["event"]
        run = EventSimulation(
            beat, timetable, lambda quantile: quantile, lambda latest: latest, crossing=False, random=random, spite=1,
            dense=0, windows=20,
        )  # fmt: skip
        run.sporadic[0].arrivals = [wait.window * beat.window_ns + wait.after_ns]
        run.run(20)
        assert run.sporadic[0].waits == [wait.ns] == [timetable.waits_ns["event"]]
        count += 1
    assert count >= 20


def test_bounds_are_near_where_segments_block() -> None:
    """Random events reach 0.8 of the bound on their wait in the mean, although few come at the very worst moment."""
    ratios = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        beat, models = one_round(random)
        beat = with_event(beat, [int(beat.window_ns * 0.05)], 3 * beat.window_ns).guarded(models)
        timetable = build_timetable(beat, models)
        if not timetable.feasible:
            continue
        longest = 0
        for spite in (0.02, 0.3, 1.0):
            run = EventSimulation(
                beat, timetable, lambda quantile: quantile, lambda latest: latest, crossing=True, random=random,
                spite=spite, dense=0.5, windows=300,
            )  # fmt: skip
            run.run(300)
            longest = max([longest, *run.sporadic[0].waits])
        ratios.append(longest / timetable.waits_ns["event"])
    assert len(ratios) >= 8
    assert np.mean(ratios) > 0.8
