"""From a run's log to its figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.timetable import PlannedModel, Segment, Timetable
from framefit.runtime.log import Fate, FrameLog, LaunchLog
from framefit.runtime.metrics import figures, frame_records, miss_ratio_upper, misses, model_metrics

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


def frame_log(*rows: tuple[int, int, Fate, float | None, float | None]) -> FrameLog:
    """(model, frame, fate, start, end); times in ms after the first release."""
    log = FrameLog()
    for model, frame, fate, started, finished in rows:
        times = [-1 if at is None else START_NS + round(at * MS) for at in (started, finished)]
        log.add(model, frame, fate, START_NS + frame * WINDOW_NS, *times)
    return log


def launch_log(*rows: tuple[int, int, float, float]) -> LaunchLog:
    """(program, frame, start, end); a launch follows where the one before ended less than 0.1 ms earlier."""
    log, last = LaunchLog(), -1.0
    for program, frame, started, finished in rows:
        followed = int(0 <= started - last < 0.1)
        ready = START_NS + round((last if followed else started) * MS)
        start, end = START_NS + round(started * MS), START_NS + round(finished * MS)
        place = log.begin(program, int(started // 10), frame, start, ready, bool(followed))
        log.end(place, start, end, -1)
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
        (0, 0, Fate.DONE, 0.5, 2),
        (1, 0, Fate.DONE, 2, 25),
        (0, 1, Fate.LATE, 15, 21),
        (0, 2, Fate.QUEUE_FULL, None, None),
        (0, 3, Fate.RUN_ENDED, None, None),
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
    log = frame_log((0, 0, Fate.DONE, 0, 2), (1, 0, Fate.DONE, 2, 25), (1, 1, Fate.QUEUE_FULL, None, None))
    found = model_metrics(
        1, TIMETABLE.models[1], log, windows=2, rate_hz=100, bounds_hz=(90.0, 80.0), overhead_ratio=0.02
    )
    assert (found.role, found.releases, found.completed, found.missed, found.dropped) == ("background", 2, 1, 0, 1)
    assert (found.fluid_bound_hz, found.packing_bound_hz, found.segmentation_overhead_ratio) == (90, 80, 0.02)
    assert found.result_age_windows_max == 3
    assert found.miss_ratio_upper == 1.0


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
        (1, 0, Fate.DONE, 2, 8),
        (0, 0, Fate.DONE, 0, 2),
        (0, 2, Fate.RUN_ENDED, None, None),
        (0, 1, Fate.LATE, 10, 21),
        (1, 1, Fate.QUEUE_FULL, None, None),
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
    frames = frame_log((0, 0, Fate.DONE, 0, 2), (0, 1, Fate.LATE, 18.5, 20.5))
    assert causes(frames, launches) == [(1, "overrun")]
    (miss,) = misses(TIMETABLE, launches, frames, floor_p99_ns=50_000)
    assert miss.detail == "big[1] took 15.50 ms, planned 4.00 ms, and ended 8.50 ms after the instant"


def test_late_wake_up() -> None:
    """A late start with nothing running before is a late wake-up."""
    launches = launch_log((0, 0, 0, 2), (1, 0, 3, 6), (0, 1, 19, 21))
    assert causes(frame_log((0, 1, Fate.LATE, 19, 21)), launches) == [(1, "late wake-up")]


def test_own_duration() -> None:
    """A frame that started in time took too long itself."""
    launches = launch_log((0, 0, 0, 2), (1, 0, 3, 6), (0, 1, 10.04, 21))
    frames = frame_log((0, 1, Fate.LATE, 10.04, 21))
    assert causes(frames, launches) == [(1, "own duration")]
    (miss,) = misses(TIMETABLE, launches, frames, floor_p99_ns=50_000)
    assert miss.detail == "took 10.96 ms, planned 2.00 ms"


def test_backlog() -> None:
    """A frame that was dropped from the queue, or waited a window for earlier ones, was caught in a backlog."""
    launches = launch_log((0, 0, 0, 9), (0, 0, 10.5, 19.5), (0, 0, 20.5, 22.5))
    frames = frame_log((0, 1, Fate.LATE, 20.5, 22.5), (0, 3, Fate.QUEUE_FULL, None, None))
    assert causes(frames, launches) == [(1, "backlog"), (3, "backlog")]


def test_run_ended() -> None:
    """A frame that was unfinished when the run ended says so."""
    assert causes(frame_log((0, 1, Fate.RUN_ENDED, None, None)), launch_log()) == [(1, "run ended")]


def test_only_priority_models_miss() -> None:
    """Frames in time, and whatever becomes of background frames, are no misses."""
    frames = frame_log(
        (0, 0, Fate.DONE, 0, 2),
        (1, 0, Fate.LATE, 2, 50),
        (1, 1, Fate.QUEUE_FULL, None, None),
        (1, 2, Fate.RUN_ENDED, None, None),
    )
    assert causes(frames, launch_log((0, 0, 0, 2))) == []
