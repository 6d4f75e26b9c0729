"""Events of sporadic models, as the dispatcher itself serves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.core.target import Target, Unit, Variation
from framefit.core.timetable import PlannedModel, Segment, Timetable
from framefit.core.workload import StreamEntry
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.device import NpuDevice
from framefit.planning.beat import Beat, Demand
from framefit.planning.check import check_events
from framefit.planning.sporadic import with_events
from framefit.planning.timetable import build_timetable
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.loop import Dispatcher
from framefit.runtime.metrics import frame_records, model_metrics
from framefit.runtime.misses import misses
from framefit.runtime.streams import replayed_ns
from timed_runs import timed_dispatcher

US = 1000
CUT = 0.1  # a launch takes at most so much more than its median, which is what is planned


def model(name: str, durations_ns: Sequence[int], role: str = "background", distance_ns: int = 0) -> PlannedModel:
    """A model of segments on the board's unit."""
    segments = tuple(
        Segment(
            index=index,
            unit="npu0",
            fill_layer="a",
            first_layer="a",
            last_layer="b",
            output_layers=("b",),
            duration_ns=duration,
            median_ns=duration,
            boundary_bytes=0,
            tensors=(),
        )
        for index, duration in enumerate(durations_ns)
    )
    return PlannedModel(
        name=name,
        role=role,  # type: ignore[arg-type]
        level=0,
        reasons=(),
        duration_ns=sum(durations_ns),
        segments=segments,
        min_distance_ns=distance_ns,
    )


def planned(beat: Beat, models: Sequence[PlannedModel]) -> Timetable:
    """The plan with its sporadic models."""
    return with_events(build_timetable(beat.guarded(models), models), beat)


def dispatched(
    timetable: Timetable, events: dict[str, list[int]], *, sigma_ratio: float = 0.0, seed: int = 0
) -> Dispatcher:
    """On virtual time; launches vary by so much."""
    target = Target(
        name="board",
        kind="npu",
        units=(Unit(name="npu0", preemptive=False, core=1),),
        variation=Variation(sigma_ratio=sigma_ratio, most_ratio=CUT),
    )
    background = sum(model.role == "background" for model in timetable.models)
    return timed_dispatcher(
        timetable,
        NpuDevice(target, VirtualClock(), seed=seed),
        Grid(1e9 / timetable.window_ns),
        Rotation(background),
        events=events,
    )


def waits(run: Dispatcher, number: int) -> list[int]:
    """From each event of a model to its result."""
    rows = run.frames.rows()
    rows = rows[(rows[:, FrameLog.MODEL] == number) & (rows[:, FrameLog.FINISHED] >= 0)]
    return [int(ns) for ns in rows[:, FrameLog.FINISHED] - rows[:, FrameLog.RELEASED]]


BEAT = Beat(
    window_ns=1000 * US,
    guard_ns=0,
    demands={"event": Demand(distance_ns=1500 * US)},
    events=(model("event", [50 * US], "sporadic", 1500 * US),),
)
MODELS = [model("first", [100 * US], "priority"), model("big", [200 * US] * 4)]


def test_an_event_waits_for_one_segment_only() -> None:
    """It comes when a segment has just begun, and is done behind that one: not in the next window, not behind two."""
    timetable = planned(BEAT, MODELS)
    # The first segment of the background model begins at 100 us.
    run = dispatched(timetable, {"event": [100 * US + 1]})
    run.run(4)
    assert waits(run, 2) == [250 * US - 1]


def test_an_event_does_not_run_into_a_reserved_instant() -> None:
    """Where its segment does not fit any more it waits until the priority model is done; that is never late."""
    timetable = planned(BEAT, [MODELS[0]])
    run = dispatched(timetable, {"event": [951 * US]})
    run.run(4)
    assert waits(run, 1) == [(1000 - 951 + 100 + 50) * US]
    assert waits(run, 0) == [100 * US] * 4


def test_the_bound_is_reached_by_the_worst_arrival() -> None:
    """It comes a nanosecond after a segment began, behind which its own just does not fit: that is the bound."""
    timetable = planned(BEAT, [MODELS[0], model("big", [200 * US] * 3 + [50 * US + 1, 200 * US])])
    # The last segment begins at 750 us and 1 ns, and leaves one nanosecond less than the event's takes.
    run = dispatched(timetable, {"event": [750 * US + 2]})
    run.run(4)
    assert waits(run, 2) == [timetable.waits_ns["event"] - 1]
    assert timetable.waits_ns["event"] == (200 + 50 + 100 + 50) * US - 1


def test_events_that_come_too_soon_are_dropped() -> None:
    """One that comes sooner than the least distance after the one before that was taken; it is no miss."""
    timetable = planned(BEAT, MODELS)
    run = dispatched(timetable, {"event": [0, 1499 * US, 1500 * US, 1600 * US]})
    run.run(5)
    rows = run.frames.rows()
    outcomes = rows[rows[:, FrameLog.MODEL] == 2]
    assert dict(zip(outcomes[:, FrameLog.FRAME].tolist(), outcomes[:, FrameLog.OUTCOME].tolist(), strict=True)) == {
        0: FrameOutcome.DONE,
        1: FrameOutcome.TOO_SOON,
        2: FrameOutcome.DONE,
        3: FrameOutcome.TOO_SOON,
    }
    figures = model_metrics(
        2, timetable.models[2], run.frames, windows=5, rate_hz=1000, bounds_hz=None, overhead_ratio=0
    )
    assert (figures.releases, figures.completed, figures.dropped, figures.missed) == (4, 2, 2, 0)
    assert misses(timetable, run.launches, run.frames, floor_p99_ns=0) == []


def test_an_event_after_the_last_window_never_came() -> None:
    """The run's end takes no events that would have come later, and no miss of one that is unfinished."""
    timetable = planned(BEAT, MODELS)
    run = dispatched(timetable, {"event": [1999 * US, 9_000 * US]})
    run.run(2)
    rows = run.frames.rows()
    assert rows[rows[:, FrameLog.MODEL] == 2][:, FrameLog.OUTCOME].tolist() == [FrameOutcome.RUN_ENDED]
    assert misses(timetable, run.launches, run.frames, floor_p99_ns=0) == []


def test_the_more_urgent_event_goes_first() -> None:
    """Of two sporadic models with events, the first in the order of service is served first."""
    events = (model("soon", [40 * US], "sporadic", 2000 * US), model("later", [30 * US] * 2, "sporadic", 2000 * US))
    beat = replace(
        BEAT, events=events, demands={each.name: Demand(distance_ns=each.min_distance_ns) for each in events}
    )
    timetable = planned(beat, MODELS)
    run = dispatched(timetable, {"soon": [150 * US], "later": [140 * US]})
    run.run(3)
    # Behind the segment that began at 100 us: soon, then later.
    assert waits(run, 2) == [(300 + 40 - 150) * US]
    assert waits(run, 3) == [(300 + 40 + 60 - 140) * US]


def adversarial(timetable: Timetable, beat: Beat, random: np.random.Generator, windows: int) -> dict[str, list[int]]:
    """Events that come just after segments begin, or when theirs just do not fit any more; else at random."""
    slots = [
        window.index * beat.window_ns + slot.start_ns + int(random.integers(0, 2))
        for window in timetable.windows
        for slot in window.slots
    ]
    length = len(timetable.windows) * beat.window_ns
    events: dict[str, list[int]] = {}
    for each in beat.events:
        edges = [beat.window_ns - beat.guard_ns - segment.duration_ns + 1 for segment in each.segments]
        starts = [s.duration_ns for m in timetable.models if m.role == "background" for s in m.segments]
        edges += [edge - start for edge in edges for start in starts]
        at, found = int(random.integers(0, each.min_distance_ns)), list[int]()
        while at < windows * beat.window_ns:
            found.append(at)
            earliest = at + each.min_distance_ns
            repeat, window = earliest // length, earliest // beat.window_ns
            nearby = [repeat * length + slot for slot in slots] + [window * beat.window_ns + edge for edge in edges]
            later = [near for near in nearby if near >= earliest]
            choices = [earliest, *later[:4], *random.permutation(later).tolist()[:4]]
            at = int(random.choice(choices))
        events[each.name] = found
    return events


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_no_event_of_any_workload_waits_longer_than_its_bound(seed: int) -> None:
    """Random workloads, launches that vary up to what is planned for, events at the worst moments."""
    random = np.random.default_rng(seed)

    def between(low: int, high: int) -> int:
        return int(random.integers(low, max(high, low) + 1)) * US

    window = 1000
    models = [model("first", [between(50, 300)], "priority")] if random.random() < 0.8 else []
    models += [
        model(f"later{number}", [between(10, int(random.choice([50, 200, 400])))] * int(random.integers(1, 4)))
        for number in range(int(random.integers(0, 3)))
    ]
    events = tuple(
        model(f"event{number}", [between(5, 60)] * int(random.integers(1, 3)), "sporadic", between(600, 4000))
        for number in range(int(random.integers(1, 3)))
    )
    beat = Beat(
        window_ns=window * US,
        guard_ns=0,
        position=str(random.choice(["start", "start", "middle", "end"])),  # type: ignore[arg-type]
        demands={each.name: Demand(distance_ns=each.min_distance_ns) for each in events},
        excess_ratio=CUT,
        events=events,
    )
    timetable = planned(beat, models)
    if not timetable.feasible:
        return
    windows = 40
    for sigma in (0.0, 0.05):
        come = adversarial(timetable, beat, random, windows)
        run = dispatched(timetable, come, sigma_ratio=sigma, seed=seed)
        run.run(windows)
        names = [each.name for each in timetable.models]
        frames = frame_records(run.frames, names, {}, run.start_ns)
        assert check_events(timetable, frames) == []
        assert misses(timetable, run.launches, run.frames, floor_p99_ns=0) == []
        for each in events:
            assert len(waits(run, names.index(each.name))) >= len(come[each.name]) - 1


@pytest.mark.parametrize("seed", [0, 1])
def test_random_events_keep_their_distance(seed: int) -> None:
    """They are the same from the same seed, far enough apart, and twice the least distance apart in the mean."""
    entry = StreamEntry(name="trigger")
    times = list(replayed_ns(entry, 1000, seed, 4000))
    assert times == list(replayed_ns(entry, 1000, seed, 4000))
    gaps = np.diff(times)
    assert gaps.min() >= 1000
    assert 1900 < gaps.mean() < 2100


def test_events_come_when_the_workload_says() -> None:
    """Times are in milliseconds after the first release."""
    entry = msgspec.structs.replace(StreamEntry(name="trigger"), times_ms=(0.0, 2.5))
    assert list(replayed_ns(entry, 1000, 0, None)) == [0, 2_500_000]
