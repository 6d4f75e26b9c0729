"""From a run's log to its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.program import Launches, Program, SegmentProgram
from framefit.core.run_record import FrameTable, Percentiles
from framefit.core.timetable import PlannedModel, PriorityPeriod, Segment, Timetable, Window
from framefit.runtime.log import FrameLog, FrameOutcome, LaunchLog
from framefit.runtime.loop import Dispatcher
from framefit.runtime.metrics import (
    figures,
    frame_records,
    frame_times,
    miss_ratio_upper,
    model_metrics,
    priority_ns,
    stream_metrics,
)
from framefit.runtime.misses import misses

MS = 1_000_000
WINDOW_NS = 10 * MS
START_NS = 1_000 * MS


def planned(name: str, role: str, *durations_ms: float) -> PlannedModel:
    """A model of segments."""
    segments = tuple(
        Segment(
            index=index,
            unit="cpu1",
            fill_layer="a",
            first_layer="a",
            last_layer="b",
            output_layers=("b",),
            duration_ns=round(ms * MS),
            median_ns=round(ms * MS),
            boundary_bytes=0,
            tensors=(),
        )
        for index, ms in enumerate(durations_ms)
    )
    return PlannedModel(
        name=name,
        role=role,
        level=1,
        reasons=(),
        duration_ns=round(sum(durations_ms) * MS),
        segments=segments,
        max_relative_difference=1e-6,
    )


TIMETABLE = Timetable(
    feasible=True,
    worst_slack_ns=0,
    hyperperiod_windows=1,
    window_ns=WINDOW_NS,
    priority_ns=2 * MS,
    residual_ns=8 * MS,
    guard_ns=MS // 2,
    units=("cpu1",),
    windows=(),
    models=(planned("face", "priority", 2), planned("big", "background", 3, 4)),
    memory_bytes={},
)


def frame_log(*rows: tuple[int, int, FrameOutcome, float | None, float | None], lag: int = 0) -> FrameLog:
    """(model, frame, fate, start, end); times in ms after the first release; frames came ``lag`` windows late."""
    log = FrameLog()
    for model, frame, fate, started, finished in rows:
        times = [-1 if at is None else START_NS + round(at * MS) for at in (started, finished)]
        window = frame + lag
        log.add(model, frame, fate, window, START_NS + window * WINDOW_NS, *times)
    return log


def launch_log(*rows: tuple[int, int, float, float] | tuple[int, int, float, float, float]) -> LaunchLog:
    """(program, frame, start, end, time on the processor if known).

    A launch follows where the one before ended less than 0.1 ms earlier.
    """
    log, last = LaunchLog(), -1.0
    for program, frame, started, finished, *cpu in rows:
        followed = int(0 <= started - last < 0.1)
        ready = START_NS + round((last if followed else started) * MS)
        start, end = START_NS + round(started * MS), START_NS + round(finished * MS)
        spent = round(cpu[0] * MS) if cpu else -1
        log.add(program, int(started // 10), frame, start, end, ready, bool(followed), spent)
        last = finished
    return log


@pytest.mark.parametrize(
    ("missed", "releases", "upper"),
    [(0, 0, 1.0), (0, 1, 1.0), (0, 300, 0.01), (0, 100_000, 3e-5), (5, 100, 0.0993), (100, 100, 1.0)],
)
def test_upper_bound_of_the_miss_ratio(missed: int, releases: int, upper: float) -> None:
    """None seen: three over N; else Wilson's bound at 95 %."""
    assert miss_ratio_upper(missed, releases) == pytest.approx(upper, rel=0.01)


@given(st.integers(10, 10**6), st.data())
def test_upper_bound_lies_above_what_was_seen(releases: int, data: st.DataObject) -> None:
    """It is never below the ratio seen, never above 1, and more misses never lower it."""
    missed = data.draw(st.integers(1, releases))
    assert missed / releases - 1e-12 <= miss_ratio_upper(missed, releases) <= 1
    assert miss_ratio_upper(missed - 1, releases) <= miss_ratio_upper(missed, releases) + 1e-12


def test_figures_of_a_model() -> None:
    """Late, dropped and unfinished frames are misses of a priority model; times count from the release."""
    log = frame_log(
        (0, 0, FrameOutcome.DONE, 0.5, 2),
        (1, 0, FrameOutcome.DONE, 2, 25),
        (0, 1, FrameOutcome.LATE, 15, 21),
        (0, 2, FrameOutcome.QUEUE_FULL, None, None),
        (0, 3, FrameOutcome.RUN_ENDED, None, None),
    )
    found = model_metrics(0, TIMETABLE.models[0], log, windows=4, rate_hz=100, bounds_hz=None, overhead_ratio=0.0)
    assert (found.releases, found.completed, found.missed, found.dropped) == (4, 2, 3, 2)
    assert found.throughput_hz == pytest.approx(50)
    assert (found.fluid_bound_hz, found.packing_bound_hz) == (None, None)
    assert (found.release_to_start_ns.max, found.release_to_start_ns.count) == (5 * MS, 2)
    assert (found.release_to_finish_ns.p50, found.release_to_finish_ns.max) == (6_500_000, 11 * MS)
    assert found.result_age_windows_max == 2
    assert found.miss_ratio_upper == miss_ratio_upper(3, 4)
    assert found.max_relative_difference == 1e-6


def test_figures_of_a_background_model() -> None:
    """Dropped frames are no misses of a background model; its bounds are handed through."""
    log = frame_log(
        (0, 0, FrameOutcome.DONE, 0, 2), (1, 0, FrameOutcome.DONE, 2, 25), (1, 1, FrameOutcome.QUEUE_FULL, None, None)
    )
    found = model_metrics(
        1, TIMETABLE.models[1], log, windows=2, rate_hz=100, bounds_hz=(90.0, 80.0), overhead_ratio=0.02
    )
    assert (found.role, found.releases, found.completed, found.missed, found.dropped) == ("background", 2, 1, 0, 1)
    assert (found.fluid_bound_hz, found.packing_bound_hz, found.segmentation_overhead_ratio) == (90, 80, 0.02)
    assert found.result_age_windows_max == 3
    assert found.miss_ratio_upper == 1.0


@pytest.mark.parametrize(("dropped", "served_hz"), [(0, 100.0), (2, 30.0)])
def test_frames_in_flight_say_nothing_of_whether_a_background_model_gets_all(dropped: int, served_hz: float) -> None:
    """Where all others were done it gets all that is asked for; where some were dropped, what was done."""
    done = (FrameOutcome.DONE, *[FrameOutcome.QUEUE_FULL if dropped else FrameOutcome.DONE] * 2)
    outcomes = (*done, *done, *done, FrameOutcome.RUN_ENDED)
    rows = [
        (1, frame, outcome, 10.0 * frame, 10.0 * frame + 9 if outcome == FrameOutcome.DONE else None)
        for frame, outcome in enumerate(outcomes)
    ]
    found = model_metrics(
        1, TIMETABLE.models[1], frame_log(*rows), windows=10, rate_hz=100, bounds_hz=None, overhead_ratio=0.0
    )
    assert found.completed == 9 - 3 * dropped
    assert found.asked_hz == pytest.approx(100)
    assert found.served_hz == pytest.approx(served_hz)
    assert found.served_hz in (found.asked_hz, found.throughput_hz)


def test_figures_of_a_model_that_never_ran() -> None:
    """No frame at all gives zeros, and the bound that says nothing."""
    found = model_metrics(
        1, TIMETABLE.models[1], FrameLog(), windows=0, rate_hz=100, bounds_hz=None, overhead_ratio=0.0
    )
    assert (found.releases, found.throughput_hz, found.result_age_windows_max) == (0, 0.0, 0)
    assert found.miss_ratio_upper == 1.0


def test_use_of_the_residual() -> None:
    """Background time over what priority models left; the rest is guard and packing."""
    log = launch_log((0, 0, 0, 2), (1, 0, 2.01, 5), (0, 1, 10, 12), (2, 0, 12.02, 16.02), (0, 2, 20, 24))
    found = figures(TIMETABLE, log, windows=3, rate_hz=100)
    offered, used = 30 - 8, 2.99 + 4
    assert found.residual_utilisation_ratio == pytest.approx(used / offered)
    assert found.guard_loss_ratio == pytest.approx(1.5 / offered)
    assert found.packing_loss_ratio == pytest.approx(1 - (used + 1.5) / offered)
    assert found.estimate_exceeded_ratio == pytest.approx(1 / 5)
    assert (found.dispatch_ns.count, found.dispatch_ns.max) == (2, 20_000)


def test_use_of_nothing() -> None:
    """A run without launches used nothing, and lost nothing."""
    found = figures(TIMETABLE, LaunchLog(), windows=3, rate_hz=100)
    assert (found.residual_utilisation_ratio, found.guard_loss_ratio, found.packing_loss_ratio) == (0, 0, 0)
    assert found.dispatch_ns.count == 0


def test_records_of_frames() -> None:
    """Every frame in order of release, with fate, reason, and times after the first release."""
    log = frame_log(
        (1, 0, FrameOutcome.DONE, 2, 8),
        (0, 0, FrameOutcome.DONE, 0, 2),
        (0, 2, FrameOutcome.RUN_ENDED, None, None),
        (0, 1, FrameOutcome.LATE, 10, 21),
        (1, 1, FrameOutcome.QUEUE_FULL, None, None),
    )
    records = frame_records(log, ["face", "big"], {"face": "camera", "big": "sound"}, START_NS)
    assert [(record.model, record.stream, record.frame, record.fate) for record in records] == [
        ("face", "camera", 0, "done"),
        ("big", "sound", 0, "done"),
        ("face", "camera", 1, "late"),
        ("big", "sound", 1, "dropped"),
        ("face", "camera", 2, "dropped"),
    ]
    assert [record.released_ns for record in records] == [0, 0, 10 * MS, 10 * MS, 20 * MS]
    assert [record.finished_ns for record in records] == [2 * MS, 8 * MS, 21 * MS, None, None]
    assert [bool(record.reason) for record in records] == [False, False, True, True, True]
    assert records[4].reason == "the run ended"


def causes(frames: FrameLog, launches: LaunchLog) -> list[tuple[int, str]]:
    """Windows and causes of all misses; each has a detail."""
    found = misses(TIMETABLE, launches, frames, floor_p99_ns=50_000)
    assert all(miss.detail and miss.model == "face" for miss in found)
    return [(miss.window, miss.cause) for miss in found]


def test_overrun() -> None:
    """A segment that ran into the window is named with what it took, what was planned, and how far it came."""
    launches = launch_log((0, 0, 0, 2), (2, 0, 3, 18.5), (0, 1, 18.5, 20.5))
    frames = frame_log((0, 0, FrameOutcome.DONE, 0, 2), (0, 1, FrameOutcome.LATE, 18.5, 20.5))
    assert causes(frames, launches) == [(1, "overrun")]
    (miss,) = misses(TIMETABLE, launches, frames, floor_p99_ns=50_000)
    assert miss.detail == "big[1] took 15.50 ms, planned 4.00 ms, and ended 8.50 ms after the instant"


def test_late_wake_up() -> None:
    """A late start with nothing running before is a late wake-up."""
    launches = launch_log((0, 0, 0, 2), (1, 0, 3, 6), (0, 1, 19, 21))
    assert causes(frame_log((0, 1, FrameOutcome.LATE, 19, 21)), launches) == [(1, "late wake-up")]


def test_own_duration() -> None:
    """A frame that started in time took too long itself."""
    launches = launch_log((0, 0, 0, 2), (1, 0, 3, 6), (0, 1, 10.04, 21))
    frames = frame_log((0, 1, FrameOutcome.LATE, 10.04, 21))
    assert causes(frames, launches) == [(1, "own duration")]
    (miss,) = misses(TIMETABLE, launches, frames, floor_p99_ns=50_000)
    assert miss.detail == "took 10.96 ms, planned 2.00 ms"


def test_backlog() -> None:
    """A frame that was dropped from the queue, or waited a window for earlier ones, was caught in a backlog."""
    launches = launch_log((0, 0, 0, 9), (0, 0, 10.5, 19.5), (0, 0, 20.5, 22.5))
    frames = frame_log((0, 1, FrameOutcome.LATE, 20.5, 22.5), (0, 3, FrameOutcome.QUEUE_FULL, None, None))
    assert causes(frames, launches) == [(1, "backlog"), (3, "backlog")]


def test_run_ended() -> None:
    """A frame that was unfinished when the run ended says so."""
    assert causes(frame_log((0, 1, FrameOutcome.RUN_ENDED, None, None)), launch_log()) == [(1, "run ended")]


def test_only_priority_models_miss() -> None:
    """Frames in time, and whatever becomes of background frames, are no misses."""
    frames = frame_log(
        (0, 0, FrameOutcome.DONE, 0, 2),
        (1, 0, FrameOutcome.LATE, 2, 50),
        (1, 1, FrameOutcome.QUEUE_FULL, None, None),
        (1, 2, FrameOutcome.RUN_ENDED, None, None),
    )
    assert causes(frames, launch_log((0, 0, 0, 2))) == []


def explained(
    timetable: Timetable, frames: FrameLog, launches: LaunchLog, stalled: Mapping[int, int] | None = None
) -> list[tuple[int, str, str]]:
    """Window, model and cause of all misses."""
    found = misses(timetable, launches, frames, floor_p99_ns=50_000, stalled=stalled)
    return [(miss.window, miss.model, miss.cause) for miss in found]


def detail(frames: FrameLog, launches: LaunchLog, stalled: Mapping[int, int] | None = None) -> str:
    """What the only miss says."""
    (miss,) = misses(TIMETABLE, launches, frames, floor_p99_ns=50_000, stalled=stalled)
    return miss.detail


LATE_1 = (0, 1, FrameOutcome.LATE)  # frame 1 of the priority model


def test_contention_of_the_model_itself() -> None:
    """It started in time, and others had the core for most of what it took too long."""
    frames = frame_log((*LATE_1, 10.0, 21))
    launches = launch_log((0, 1, 10, 21, 3.0))
    assert causes(frames, launches) == [(1, "contention")]
    assert detail(frames, launches) == "took 11.00 ms, planned 2.00 ms; other threads had the core for 8.00 ms"
    assert causes(frames, launch_log((0, 1, 10, 21, 10.5))) == [(1, "own duration")]


def test_contention_of_the_segment_before() -> None:
    """A background segment that ran over the instant because others had the core is no bad estimate."""
    frames = frame_log((*LATE_1, 18.5, 20.5))
    assert causes(frames, launch_log((2, 0, 3, 18.5, 4.0), (0, 1, 18.5, 20.5, 2.0))) == [(1, "contention")]
    assert causes(frames, launch_log((2, 0, 3, 18.5, 15.0), (0, 1, 18.5, 20.5, 2.0))) == [(1, "overrun")]


def test_host_stall() -> None:
    """Where the host had the machine for most of the delay, that is the cause, whatever it looks like."""
    frames = frame_log((*LATE_1, 19, 21))
    launches = launch_log((0, 0, 0, 2), (1, 0, 3, 6), (0, 1, 19, 21))
    assert explained(TIMETABLE, frames, launches, {1: 10 * MS}) == [(1, "face", "host stall")]
    assert detail(frames, launches, {1: 10 * MS}).startswith("the host stopped this machine for 10 ms; started 9.00 ms")
    assert explained(TIMETABLE, frames, launches, {1: 4 * MS, 2: 50 * MS}) == [(1, "face", "late wake-up")]


def test_a_small_lateness_decides_where_nothing_else_is_wrong() -> None:
    """A model that took no longer than planned and started a little late missed by its late start."""
    tight = frame_log((*LATE_1, 10.15, 12.1))
    assert causes(tight, launch_log((0, 1, 10.15, 12.1))) == [(1, "late wake-up")]


def test_waiting_for_frames_that_started_late_themselves() -> None:
    """Time after the instant that earlier priority frames took is a backlog; the first one is explained by itself."""
    launches = launch_log((0, 0, 0, 2), (0, 1, 17, 24), (0, 2, 24, 31))
    frames = frame_log((*LATE_1, 17, 24), (0, 2, FrameOutcome.LATE, 24, 31))
    assert causes(frames, launches) == [(1, "late wake-up"), (2, "own duration")]
    frames = frame_log((*LATE_1, 17, 29), (0, 2, FrameOutcome.LATE, 29, 31))
    launches = launch_log((0, 1, 17, 29), (0, 2, 29, 31))
    assert causes(frames, launches) == [(1, "own duration"), (2, "backlog")]


def test_a_miss_is_identified_by_its_window() -> None:
    """Frame 1 of a stream that waited twice came in window 3: that is where its miss is looked for."""
    frames = frame_log((0, 0, FrameOutcome.DONE, 20, 22), (0, 1, FrameOutcome.LATE, 30, 42), lag=2)
    launches = launch_log((0, 0, 20, 22), (0, 1, 30, 42))
    assert causes(frames, launches) == [(3, "own duration")]
    assert frame_records(frames, ["face", "big"], {"face": "camera"}, START_NS)[1].released_ns == 3 * WINDOW_NS


def test_refused_frames_are_a_backlog() -> None:
    """A priority frame that found the queue full, whichever frame was dropped for it."""
    assert causes(frame_log((0, 3, FrameOutcome.REFUSED, None, None)), launch_log()) == [(3, "backlog")]


def test_skipped_frames_are_no_misses() -> None:
    """A frame that nobody wanted is not missed."""
    assert causes(frame_log((0, 3, FrameOutcome.SKIPPED, None, None)), launch_log()) == []


def elsewhere(*starts_ms: float | None) -> Timetable:
    """The priority model is due so long after the beginning of each window; in none where there is no time."""
    windows = tuple(
        Window(
            index=index,
            length_ns=WINDOW_NS,
            priority=()
            if start is None
            else (
                PriorityPeriod(unit="cpu1", start_ns=round(start * MS), end_ns=round((start + 2) * MS), model="face"),
            ),
            residual_ns=(8 * MS,),
            slots=(),
        )
        for index, start in enumerate(starts_ms)
    )
    return msgspec.structs.replace(TIMETABLE, windows=windows, hyperperiod_windows=len(windows))


def test_lateness_counts_from_the_reserved_instant() -> None:
    """A model that is due late in its window started in time there; each window has its own instants."""
    launches = launch_log((0, 0, 5, 11), (0, 1, 18, 21))
    frames = frame_log((0, 0, FrameOutcome.LATE, 5, 11), (*LATE_1, 18, 21))
    assert explained(elsewhere(5, 8), frames, launches) == [(0, "face", "own duration"), (1, "face", "own duration")]
    assert explained(elsewhere(0, 0), frames, launches) == [(0, "face", "late wake-up"), (1, "face", "late wake-up")]
    frames = frame_log((0, 2, FrameOutcome.LATE, 28, 31))  # the pattern repeats
    assert explained(elsewhere(8, None), frames, launch_log((0, 2, 28, 31))) == [(2, "face", "own duration")]


def test_an_overrun_of_an_instant_in_mid_window() -> None:
    """The segment that was running at the instant is named, though its window had begun long before."""
    launches = launch_log((1, 0, 12, 19), (0, 1, 19, 21))
    frames = frame_log((*LATE_1, 19, 21))
    (miss,) = misses(elsewhere(5, 5), launches, frames, floor_p99_ns=50_000)
    assert (miss.cause, miss.detail) == (
        "overrun",
        "big[0] took 7.00 ms, planned 3.00 ms, and ended 4.00 ms after the instant",
    )


def test_interrupted_background_work_is_never_to_blame() -> None:
    """Where background launches are interrupted, one that lasts over the instant delays nobody."""
    preemptive = msgspec.structs.replace(TIMETABLE, preemptive=True)
    launches = launch_log((2, 0, 3, 38, 20.0), (0, 1, 18.5, 20.5, 2.0))
    frames = frame_log((*LATE_1, 18.5, 20.5))
    assert explained(TIMETABLE, frames, launches) == [(1, "face", "overrun")]
    assert explained(preemptive, frames, launches) == [(1, "face", "late wake-up")]


def test_frames_consumed_together_have_one_cause() -> None:
    """The older ones had to wait for the newest: that is no lateness."""
    frames = frame_log((0, 0, FrameOutcome.LATE, 10.0, 21), (*LATE_1, 10.0, 21))
    launches = launch_log((0, 1, 10, 21))
    assert explained(TIMETABLE, frames, launches) == [(0, "face", "own duration"), (1, "face", "own duration")]


def test_figures_of_frames_consumed_together() -> None:
    """All of them are completed; times and age are those of the newest, whose result it is."""
    log = frame_log(
        (1, 0, FrameOutcome.DONE, 12, 18), (1, 1, FrameOutcome.DONE, 12, 18), (1, 2, FrameOutcome.DONE, 31, 33)
    )
    log.add(1, 3, FrameOutcome.DONE, 3, START_NS + 3 * WINDOW_NS, START_NS + 31 * MS, START_NS + 33 * MS)
    found = model_metrics(1, TIMETABLE.models[1], log, windows=4, rate_hz=100, bounds_hz=None, overhead_ratio=0.0)
    assert (found.completed, found.releases) == (4, 4)
    assert (found.release_to_finish_ns.count, found.release_to_finish_ns.max) == (2, 8 * MS)
    assert found.release_to_start_ns.max == 2 * MS
    assert found.result_age_windows_max == 1


def test_skipped_frames_count_nowhere() -> None:
    """Releases, misses and drops are of the frames that the model was to have."""
    log = frame_log(
        (0, 0, FrameOutcome.DONE, 0, 2),
        (0, 1, FrameOutcome.SKIPPED, None, None),
        (0, 2, FrameOutcome.REFUSED, None, None),
    )
    found = model_metrics(0, TIMETABLE.models[0], log, windows=3, rate_hz=100, bounds_hz=None, overhead_ratio=0.0)
    assert (found.releases, found.completed, found.dropped, found.missed) == (2, 1, 1, 1)


def test_interrupted_launches_count_by_their_time_on_the_processor() -> None:
    """Where background work is interrupted it has used what it computed, not what it lasted."""
    preemptive = msgspec.structs.replace(TIMETABLE, preemptive=True, guard_ns=0)
    log = launch_log((1, 0, 2, 9, 3.0), (0, 1, 10, 12, 2.0), (2, 0, 9, 24, 13.0), (0, 2, 20, 22, 2.0))
    found = figures(preemptive, log, windows=3, rate_hz=100)
    assert found.residual_utilisation_ratio == pytest.approx((3 + 13) / (30 - 4))
    assert (found.guard_loss_ratio, found.packing_loss_ratio) == (0, pytest.approx(1 - 16 / 26))
    assert found.estimate_exceeded_ratio == pytest.approx(1 / 4)  # 13 ms of 4 planned


class Ran:
    """What is left of a run."""

    def __init__(self, launches: LaunchLog, windows: int) -> None:
        self.launches = launches
        self.windows = windows


def priority(timetable: Timetable, launches: LaunchLog, windows: int) -> float:
    """Priority time of a window, in ms."""
    return priority_ns(timetable, cast("Dispatcher", Ran(launches, windows))) / MS


def test_priority_time_of_a_window() -> None:
    """The median of its launches, by how often they ran: background launches and one long one change nothing."""
    log = launch_log((0, 0, 0, 2), (1, 0, 2, 8), (0, 1, 10, 12.2), (0, 2, 20, 29), (0, 3, 30, 32))
    assert priority(TIMETABLE, log, 4) == pytest.approx(2.1)
    every_second = launch_log((0, 0, 0, 2), (0, 2, 20, 22), (0, 4, 40, 42))
    assert priority(TIMETABLE, every_second, 6) == pytest.approx(1)
    assert priority(TIMETABLE, LaunchLog(), 5) == 0


def test_streams_count_frames_that_any_reader_dropped() -> None:
    """A frame dropped by two models is one dropped frame; skipped ones are none."""
    log = frame_log(
        (0, 0, FrameOutcome.QUEUE_FULL, None, None),
        (1, 0, FrameOutcome.REFUSED, None, None),
        (1, 1, FrameOutcome.RUN_ENDED, None, None),
        (0, 2, FrameOutcome.SKIPPED, None, None),
        (0, 3, FrameOutcome.DONE, 30, 32),
    )
    records = frame_records(log, ["face", "big"], {"face": "camera", "big": "camera"}, START_NS)
    assert [(r.frame, r.model, r.fate, r.reason) for r in records] == [
        (0, "face", "dropped", "a newer frame took its place in the queue"),
        (0, "big", "dropped", "the queue was full"),
        (1, "big", "dropped", "the run ended"),
        (2, "face", "skipped", "every"),
        (3, "face", "done", ""),
    ]
    readers = {"face": {"camera"}, "big": {"camera", "depth"}}
    found = stream_metrics(records, readers, {"camera": (4, 2), "depth": (4, 2), "sound": (6, 0)})
    assert [(s.name, s.received, s.dropped, s.waited_windows) for s in found] == [
        ("camera", 4, 2, 2),
        ("depth", 4, 2, 2),
        ("sound", 6, 0, 0),
    ]


def test_when_frames_were_begun_and_ready() -> None:
    """Launches on a clock of their own, held against releases, give back how late each start was."""
    starts_ns = np.random.default_rng(0).integers(5_000, 90_000, 20)
    starts_ns[3] = 400_000
    released = 10 * MS * np.arange(20)
    never = model_metrics(
        0, TIMETABLE.models[0], FrameLog(), windows=0, rate_hz=100, bounds_hz=None, overhead_ratio=0.0
    )
    models = [msgspec.structs.replace(never, release_to_start_ns=Percentiles.of(starts_ns))]
    frames = FrameTable(
        models=("face", "big"),
        streams=("camera", "camera"),
        fates=(("done", ""), ("dropped", "too late")),
        model=np.r_[np.zeros(20, np.int64), 1],
        frame=np.r_[np.arange(20), 0],
        fate=np.r_[np.zeros(20, np.int64), 1],
        released_ns=np.r_[released, 0],
        finished_ns=np.r_[released + 7 * MS, -1],
    )
    programs = tuple(SegmentProgram(name=f"{name}.0", model=name, segment=0, groups=()) for name in ("face", "big"))
    program = Program(window_ns=10 * MS, units=(), programs=programs, launches="launches.npz")
    launches = Launches(
        program=np.r_[np.zeros(20, np.int32), 1],
        window=np.r_[np.arange(20), 19],
        frame=np.r_[np.arange(20), 0],
        submit_ns=np.r_[77_000 + released + starts_ns, 200 * MS],
    )
    times = frame_times(models, frames, program, launches)
    assert times.keys() == {"face"}
    assert times["face"].start_ns == pytest.approx(starts_ns, abs=10)
    assert times["face"].finish_ns.tolist() == [7 * MS] * 20
    assert len(frame_times(models, frames)["face"].start_ns) == 0
