"""Timetables played through on given durations, by the dispatcher's own code."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from framefit.core.events import EventType
from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.core.target import Target, Unit, Variation
from framefit.core.timetable import PlannedModel, Segment, Timetable
from framefit.devices.clock import RealClock, VirtualClock
from framefit.devices.npu.device import NpuDevice
from framefit.planning.beat import Beat, Demand
from framefit.planning.bounds import fair_rates
from framefit.planning.partition import Pieces, partition
from framefit.planning.playback import served_launches
from framefit.planning.timetable import build_timetable
from framefit.runtime.log import FrameOutcome, LaunchLog
from framefit.runtime.loop import Dispatcher
from framefit.runtime.metrics import figures
from timed_runs import timed_dispatcher

MS = 1_000_000
TARGET = Target(name="board", kind="npu", units=(Unit(name="npu0", preemptive=False, core=1),))
SIGMA, CUT = 0.02, 0.10
P99 = math.exp(2.326 * SIGMA)


def planned(name: str, medians_ns: Sequence[int], quantile_ratio: float, *, priority: bool = False) -> PlannedModel:
    """A model of segments whose planned quantile is so many times their median."""
    segments = tuple(
        Segment(
            index=index,
            unit="npu0",
            fill_layer="a",
            first_layer="a",
            last_layer="b",
            output_layers=("b",),
            duration_ns=math.ceil(median * quantile_ratio),
            median_ns=median,
            boundary_bytes=0,
            tensors=(),
        )
        for index, median in enumerate(medians_ns)
    )
    return PlannedModel(
        name=name,
        role="priority" if priority else "background",
        level=10 if priority else 0,
        reasons=(),
        duration_ns=sum(segment.duration_ns for segment in segments),
        segments=segments,
    )


def varied(variation: Variation) -> Target:
    """A board whose launches vary so."""
    return msgspec.structs.replace(TARGET, variation=variation)


def dispatcher(timetable: Timetable, variation: Variation, beat: Beat, seed: int = 0) -> Dispatcher:
    """On virtual time, with what the models demand."""
    device = NpuDevice(varied(variation), VirtualClock(), seed=seed)
    names = [model.name for model in timetable.models]
    return timed_dispatcher(
        timetable,
        device,
        Grid(1e9 / timetable.window_ns),
        Rotation(sum(model.role == "background" for model in timetable.models), yields=timetable.yields),
        queues={name: max(beat.of(name).queue, beat.of(name).frames) for name in names},
        every={name: beat.of(name).every for name in names},
        frames={name: beat.of(name).frames for name in names},
    )


@st.composite
def workloads(
    draw: st.DrawFn, quantile_ratio: float, guards: st.SearchStrategy[int]
) -> tuple[Beat, list[PlannedModel]]:
    """One or two priority and up to three background models in windows of 10 ms; not all of them fit."""
    models, demands = [], {}
    for number in range(draw(st.integers(1, 2))):
        parts = draw(st.lists(st.integers(MS // 20, 2 * MS), min_size=1, max_size=2))
        models.append(planned(f"first{number}", parts, quantile_ratio, priority=True))
        demands[f"first{number}"] = Demand(every=draw(st.integers(1, 2)))
    for number in range(draw(st.integers(0, 3))):
        parts = draw(st.lists(st.integers(MS // 20, 3 * MS), min_size=1, max_size=5))
        models.append(planned(f"later{number}", parts, quantile_ratio))
        demands[f"later{number}"] = Demand(
            every=draw(st.integers(1, 3)), queue=draw(st.integers(1, 3)), frames=draw(st.integers(1, 2))
        )
    position = draw(st.sampled_from(["start", "middle", "end"]))
    guard_ns, yields = draw(guards), draw(st.booleans())
    return Beat(window_ns=10 * MS, guard_ns=guard_ns, position=position, demands=demands, yields=yields), models


def assert_complete(run: Dispatcher, timetable: Timetable, beat: Beat, windows: int) -> None:
    """Every release has one fate a model, results come in order, and launches never overlap."""
    rows = run.frames.rows()
    launches = run.launches.rows()
    assert run.windows == windows
    first = 0
    for number, model in enumerate(timetable.models):
        mine = rows[rows[:, 0] == number]
        assert sorted(mine[:, 1].tolist()) == list(range(windows))
        assert (mine[:, 3] == [run.release(frame) for frame in mine[:, 1]]).all()
        skipped = mine[mine[:, 2] == FrameOutcome.SKIPPED][:, 1]
        assert sorted(skipped.tolist()) == [k for k in range(windows) if k % beat.of(model.name).every]
        done = mine[np.isin(mine[:, 2], (FrameOutcome.DONE, FrameOutcome.LATE))]
        assert (np.diff(done[:, 1]) > 0).all()
        assert (np.diff(done[:, 5]) >= 0).all()
        count = len(model.segments)
        own = launches[(launches[:, 0] >= first) & (launches[:, 0] < first + count)]
        assert own[:, 0].tolist() == [first + index % count for index in range(len(own))]
        results = len(done) // beat.of(model.name).frames
        assert len(own) - count < results * count <= len(own)
        first += count
    trace = run.trace()
    assert trace.type.tolist() == [EventType.START, EventType.END] * len(launches)
    assert (np.diff(trace.time_ns) >= 0).all()
    assert trace.time_ns.tolist() == launches[:, (LaunchLog.STARTED, LaunchLog.FINISHED)].ravel().tolist()


def assert_never_late(run: Dispatcher, timetable: Timetable) -> None:
    """Every priority frame is done, and starts where it was planned or behind another priority model."""
    rows = run.frames.rows()
    pattern = timetable.windows
    for number, model in enumerate(timetable.models):
        if model.role != "priority":
            continue
        mine = rows[(rows[:, 0] == number) & (rows[:, 2] != FrameOutcome.SKIPPED)]
        assert (mine[:, 2] == FrameOutcome.DONE).all()
        for _, frame, _, released, started, finished, _ in mine.tolist():
            periods = pattern[frame % len(pattern)].priority
            assert started >= released + periods[0].start_ns
            assert finished <= released + timetable.window_ns
            if periods[0].model == model.name:
                assert started == released + periods[0].start_ns


@settings(deadline=None, max_examples=45)
@given(workloads(1.25, st.integers(0, MS)), st.integers(0, 2**32 - 1), st.sampled_from([0.05, 1.0]))
def test_feasible_means_never_late(workload: tuple[Beat, list[PlannedModel]], seed: int, sigma: float) -> None:
    """Durations up to their planned quantiles: no priority miss, no frame lost, no result older than promised."""
    beat, models = workload
    timetable = build_timetable(beat, models)
    assume(timetable.feasible)
    run = dispatcher(timetable, Variation(sigma_ratio=sigma, most_ratio=0.25), beat, seed)
    run.run(60)
    assert_complete(run, timetable, beat, 60)
    assert_never_late(run, timetable)
    rows = run.frames.rows()
    for number, model in enumerate(timetable.models):
        done = rows[(rows[:, 0] == number) & (rows[:, 2] == FrameOutcome.DONE)]
        newest = done[beat.of(model.name).frames - 1 :: beat.of(model.name).frames]
        assert model.result_age_windows is not None
        if len(newest):
            assert (newest[:, 5] - newest[:, 3]).max() <= model.result_age_windows * timetable.window_ns


@settings(deadline=None, max_examples=50)
@given(workloads(1.05, st.integers(0, MS)), st.integers(0, 2**32 - 1))
def test_the_guard_covers_what_exceeds_the_quantile(workload: tuple[Beat, list[PlannedModel]], seed: int) -> None:
    """Durations beyond the quantile, by the guard at most, and covered by the priority models' slack: never late."""
    beat, models = workload
    excess = {m.name: sum(math.ceil(0.2 * s.median_ns) for s in m.segments) for m in models if m.role == "priority"}
    longest = max((s.median_ns for m in models if m.role == "background" for s in m.segments), default=0)
    guard_ns = max(math.ceil(0.2 * longest) + 1, sum(excess.values()) + 1)
    beat = Beat(window_ns=beat.window_ns, guard_ns=guard_ns, position=beat.position, demands=beat.demands)
    timetable = build_timetable(beat, models)
    assume(timetable.feasible)
    for window in timetable.windows:
        assume(all(period.end_ns + sum(excess.values()) <= timetable.window_ns for period in window.priority))
    run = dispatcher(timetable, Variation(sigma_ratio=0.5, most_ratio=0.25), beat, seed)
    run.run(40)
    assert_complete(run, timetable, beat, 40)
    assert_never_late(run, timetable)


@settings(deadline=None, max_examples=25)
@given(workloads(1.0, st.integers(0, MS)), st.integers(0, 2**32 - 1))
def test_nothing_is_lost_where_the_plan_does_not_hold(workload: tuple[Beat, list[PlannedModel]], seed: int) -> None:
    """However late: each release has one fate, and results keep their order. Feasible or not, what is said is tried."""
    beat, models = workload
    timetable = build_timetable(beat, models)
    run = dispatcher(timetable, Variation(sigma_ratio=1.0, most_ratio=5.0), beat, seed)
    run.run(30)
    assert_complete(run, timetable, beat, 30)


BIG = {"depth": (40 * MS, 40), "pose": (24 * MS, 24), "caption": (11 * MS, 12)}  # median, layers
WINDOW_NS = 33_333_333


@functools.cache
def one_of_each(*, cut: bool) -> tuple[Beat, Timetable]:
    """A 6 ms priority model at 30 Hz, and three background models: cut to fit, or whole and started at will."""
    random = np.random.default_rng(5)
    face = planned("face", [6 * MS], P99, priority=True)
    if not cut:
        models = [face, *(planned(name, [median], 0.0) for name, (median, _) in BIG.items())]
        beat = Beat(window_ns=WINDOW_NS, guard_ns=0)
        timetable = build_timetable(beat, [face])
        return beat, msgspec.structs.replace(timetable, models=tuple(models))
    guard_ns = 0
    for _ in range(3):  # the guard covers the greatest excess of the longest segment, which it limits
        room = WINDOW_NS - face.duration_ns - guard_ns
        models = [face]
        for name, (median, layers) in BIG.items():
            share = random.dirichlet(np.full(layers, 8.0))
            pieces = Pieces(
                (median * share).astype(np.int64),
                np.ceil(median * share * P99).astype(np.int64),
                np.full(layers - 1, 20_000, np.int64),
            )
            runs = partition(pieces, room + guard_ns, room)
            assert runs is not None
            medians = pieces.of(runs)[0].astype(np.int64).tolist()
            models.append(planned(name, medians, P99))
        longest = max(segment.median_ns for model in models[1:] for segment in model.segments)
        guard_ns = math.ceil(longest * (1 + CUT - P99)) + 1
    beat = Beat(window_ns=WINDOW_NS, guard_ns=guard_ns)
    return beat, build_timetable(beat, models)


def exact_medians(models: Sequence[PlannedModel]) -> list[PlannedModel]:
    """The same models, planned for their medians."""
    return [
        msgspec.structs.replace(
            model,
            segments=tuple(msgspec.structs.replace(s, duration_ns=s.median_ns) for s in model.segments),
        )
        for model in models
    ]


@pytest.mark.parametrize("windows", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_cut_models_never_miss_where_whole_ones_do(windows: int) -> None:
    """Jitter of 2 %, cut at 10 %: no miss of the feasible plan; the same models dispatched whole miss."""
    variation = Variation(sigma_ratio=SIGMA, most_ratio=CUT)
    beat, timetable = one_of_each(cut=True)
    assert timetable.feasible
    run = dispatcher(timetable, variation, beat)
    run.run(windows)
    rows = run.frames.rows()
    assert (rows[rows[:, 0] == 0][:, 2] == FrameOutcome.DONE).all()
    assert np.bincount(rows[:, 0]).tolist() == [windows] * 4
    done = [int(((rows[:, 0] == number) & (rows[:, 2] == FrameOutcome.DONE)).sum()) for number in (1, 2, 3)]
    assert max(done) - min(done) <= 1  # served in turn
    whole = np.array([[median] for median, _ in BIG.values()], np.float64)
    fluid = fair_rates(WINDOW_NS - 6 * MS, whole, np.ones(3), np.ones(3))
    exact = exact_medians(timetable.models[1:])
    packed = served_launches(Beat(WINDOW_NS, 0), exact, (6 * MS, WINDOW_NS), 10_000, {})
    for count, packing, most in zip(done, packed, fluid.tolist(), strict=True):
        assert count / windows >= 0.98 * packing / 10_000
        assert count / windows >= 0.93 * most
    use = figures(timetable, run.launches, windows=windows, rate_hz=1e9 / WINDOW_NS)
    assert 0.005 <= use.estimate_exceeded_ratio <= 0.015
    beat, timetable = one_of_each(cut=False)
    run = dispatcher(timetable, variation, beat)
    run.run(windows)
    rows = run.frames.rows()
    missed = (rows[rows[:, 0] == 0][:, 2] != FrameOutcome.DONE).mean()
    assert missed > 0.1


def test_the_same_seed_gives_the_same_run() -> None:
    """Launches, fates and trace agree to the nanosecond; another seed gives another run."""
    beat, timetable = one_of_each(cut=True)
    runs = [dispatcher(timetable, Variation(sigma_ratio=SIGMA, most_ratio=CUT), beat, seed) for seed in (1, 1, 2)]
    for run in runs:
        run.run(600)
    one, same, other = runs
    assert np.array_equal(one.launches.rows(), same.launches.rows())
    assert np.array_equal(one.frames.rows(), same.frames.rows())
    for column in ("time_ns", "id", "type", "core", "operation"):
        assert np.array_equal(getattr(one.trace(), column), getattr(same.trace(), column))
    assert not np.array_equal(one.launches.rows()[:100], other.launches.rows()[:100])


def test_deadlines_can_be_given() -> None:
    """A deadline given for a model decides what is late; without one it is the window for priority models only."""
    _, timetable = one_of_each(cut=True)
    late = {}
    for name, deadlines in (("none", None), ("given", {"face": 6 * MS - 1, "depth": 1})):
        device = NpuDevice(TARGET, VirtualClock())
        run = timed_dispatcher(timetable, device, Grid(1e9 / WINDOW_NS), Rotation(3), deadlines_ns=deadlines)
        run.run(30)
        rows = run.frames.rows()
        late[name] = [int(((rows[:, 0] == number) & (rows[:, 2] == FrameOutcome.LATE)).sum()) for number in range(4)]
    assert late["none"] == [0, 0, 0, 0]
    assert late["given"][0] == 30
    assert late["given"][1] > 0
    assert late["given"][2:] == [0, 0]


def test_launches_carry_the_models_labels() -> None:
    """The trace names MODEL.SEGMENT, in the order of the plan."""
    beat, timetable = one_of_each(cut=True)
    run = dispatcher(timetable, Variation(), beat)
    run.run(20)
    labels = [f"{model.name}.{segment.index}" for model in timetable.models for segment in model.segments]
    trace = run.trace()
    assert list(trace.kinds) == labels
    started = trace.id[trace.type == EventType.START]
    assert started.tolist() == run.launches.launches().program.tolist()
    assert len(list(itertools.groupby(started))) > 20


@pytest.mark.timed
def test_in_real_time_the_same_code_keeps_the_beat() -> None:
    """On the machine's clock priority starts behind its release; no time on the processor is made up for a device."""
    beat = Beat(window_ns=5 * MS, guard_ns=MS)
    models = [planned("face", [MS], 1.0, priority=True), planned("big", [MS, MS], 1.0)]
    timetable = build_timetable(beat, models)
    device = NpuDevice(TARGET, RealClock())
    run = timed_dispatcher(timetable, device, Grid(200), Rotation(1))
    run.run(40)
    rows = run.launches.rows()
    assert (rows[:, LaunchLog.CPU] == -1).all()
    frames = run.frames.rows()
    face = frames[(frames[:, 0] == 0) & np.isin(frames[:, 2], (FrameOutcome.DONE, FrameOutcome.LATE))]
    assert (face[:, 4] >= face[:, 3]).all()
    assert np.median(face[:, 4] - face[:, 3]) < MS
    assert (rows[:, LaunchLog.FINISHED] - rows[:, LaunchLog.STARTED] >= MS).all()
    assert np.bincount(frames[:, 0]).tolist() == [run.windows] * 2 == [40, 40]
