"""What a run did never exceeds its throughput bounds, whatever the models, the units and their durations."""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.core.target import Target, Unit, Variation
from framefit.core.timetable import PlannedModel, Segment, Slot, Timetable
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.device import NpuDevice
from framefit.planning.beat import Beat, Demand
from framefit.planning.playback import Playback
from framefit.planning.reserved import reserve
from framefit.planning.timetable import build_timetable
from framefit.runtime.log import FrameLog, FrameOutcome, LaunchLog
from framefit.runtime.metrics import model_metrics
from framefit.workflows.record import throughput_bounds_hz
from timed_runs import timed_group

US, MS = 1_000, 1_000_000
WINDOW_NS = 10 * MS
GRID = Grid(100)
WINDOWS = 60


def model(
    random: np.random.Generator, name: str, segments: list[tuple[str, int]], *, priority: bool = False, slots: int = 1
) -> PlannedModel:
    """Its segments by unit and median; planned for up to a tenth more."""
    made = tuple(
        Segment(
            index=index,
            unit=unit,
            fill_layer="a",
            first_layer="a",
            last_layer="b",
            output_layers=("b",),
            duration_ns=math.ceil(median_ns * (1 + random.uniform(0, 0.1))),
            median_ns=median_ns,
            boundary_bytes=0,
            tensors=(),
        )
        for index, (unit, median_ns) in enumerate(segments)
    )
    return PlannedModel(
        name=name,
        role="priority" if priority else "background",
        level=0,
        reasons=(),
        duration_ns=sum(segment.duration_ns for segment in made),
        segments=made,
        slots=slots,
    )


def workload(random: np.random.Generator, units: int, *, preemptive: bool) -> tuple[Beat, list[PlannedModel]]:
    """Up to two priority models, and up to four background models of unlike lengths, queues and rates."""
    names = [f"npu{number}" for number in range(units)]
    models, demands = [], {}
    for number in range(random.integers(0, 3)):
        unit = str(random.choice(names))
        models.append(model(random, f"first{number}", [(unit, int(random.integers(100, 2_500)) * US)], priority=True))
        demands[f"first{number}"] = Demand(every=int(random.integers(1, 3)))
    for number in range(random.integers(1, 5)):
        longest = int(random.choice([400, 1_500, 5_000]))
        route = [
            (str(random.choice(names)), int(random.integers(50, longest)) * US) for _ in range(random.integers(1, 6))
        ]
        models.append(model(random, f"later{number}", route, slots=int(random.integers(1, 4))))
        frames = int(random.choice([1, 1, 1, 3]))
        demands[f"later{number}"] = Demand(
            every=int(random.choice([1, 1, 2, 5])), frames=frames, queue=max(frames, int(random.integers(1, 4)))
        )
    guard = 0 if preemptive else int(random.integers(0, 600)) * US
    return Beat(WINDOW_NS, guard, preemptive=preemptive, demands=demands), models


def checked(
    random: np.random.Generator, beat: Beat, timetable: Timetable, run: Any
) -> list[tuple[float, float, float]]:
    """Reached rate and both bounds of each background model, at medians that are measured up to a fifth wrong."""
    frames = [beat.of(model.name).frames for model in timetable.models]
    segment_ns = [round(s.median_ns * random.uniform(0.8, 1.2)) for m in timetable.models for s in m.segments]
    whole_ns = [round(sum(s.median_ns for s in m.segments) * random.uniform(0.8, 1.2)) for m in timetable.models]
    bounds = throughput_bounds_hz(timetable, run, frames, segment_ns, whole_ns)
    figures = []
    for number, planned in enumerate(timetable.models):
        if planned.role == "background":
            own = model_metrics(
                number, planned, run.frames, windows=run.windows, rate_hz=100, bounds_hz=None, overhead_ratio=0.0
            )
            fluid, packing = bounds.pop(planned.name)
            assert own.throughput_hz <= packing <= fluid, planned.name
            assert fluid <= own.releases / run.windows * 100 * (1 + 1e-9)
            figures.append((own.throughput_hz, packing, fluid))
    assert not bounds
    return figures


VARIATIONS = st.builds(
    Variation,
    sigma_ratio=st.sampled_from([0.0, 0.02, 0.1]),
    most_ratio=st.just(0.1),
    drift_ratio=st.sampled_from([0.0, 0.0, 0.2]),
    drift_period_ms=st.just(300.0),
    stall_rate_hz=st.sampled_from([0.0, 0.0, 5.0]),
    stall_ns=st.just(4.0 * MS),
)


@settings(deadline=None, max_examples=45)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), VARIATIONS)
def test_no_run_of_the_dispatchers_exceeds_its_bounds(seed: int, units: int, variation: Variation) -> None:
    """On one unit and on several, with durations that vary, drift and stall; up to the rounding of a division."""
    random = np.random.default_rng(seed)
    beat, models = workload(random, units, preemptive=False)
    timetable = build_timetable(beat, models)
    if not timetable.feasible:
        return
    target = Target(
        name="board",
        kind="npu",
        units=tuple(Unit(name=name, preemptive=False, core=core) for core, name in enumerate(timetable.units)),
        variation=variation,
    )
    names = [model.name for model in models]
    run = timed_group(
        timetable,
        NpuDevice(target, VirtualClock(), seed=seed),
        GRID,
        Rotation,
        queues={name: beat.of(name).queue for name in names},
        every={name: beat.of(name).every for name in names},
        frames={name: beat.of(name).frames for name in names},
    )
    run.run(WINDOWS)
    checked(random, beat, timetable, run)


def interrupted(random: np.random.Generator, beat: Beat, timetable: Timetable) -> Any:
    """A run in which priority models interrupt background launches, which vary by half."""
    priority = [model for model in timetable.models if model.role == "priority"]
    reserved = reserve(beat, priority)
    periods = reserved.windows
    unit = timetable.units[0]
    free = reserved.free_windows(unit)
    background = [model for model in timetable.models if model.role == "background"]
    taken = {
        model.name: [[round(s.median_ns * random.uniform(0.7, 1.2)) for s in model.segments] for _ in range(7)]
        for model in background
    }
    play = Playback(beat, background, taken)
    first = dict(zip((model.name for model in timetable.models), timetable.first_programs[0], strict=True))
    number = {model.name: index for index, model in enumerate(timetable.models)}
    launches, frames = LaunchLog(), FrameLog()
    parts: dict[tuple[str, int, int], list[Slot]] = defaultdict(list)
    done: dict[str, int] = defaultdict(int)
    for window in range(WINDOWS):
        begin = window * WINDOW_NS
        for period in periods[window % len(periods)]:
            start, end = begin + period.start_ns, begin + period.end_ns
            launches.add(first[period.model], window, window, start, end, start, followed=False, cpu_ns=-1)
        placed: list[Slot] = []
        play.window(window, begin, {unit: free[window % len(free)]}, placed)
        for slot in placed:
            key = slot.model, slot.frame, slot.segment
            parts[key].append(msgspec.structs.replace(slot, start_ns=begin + slot.start_ns))
            spent = sum(part.duration_ns for part in parts[key])
            if spent == taken[slot.model][slot.frame % 7][slot.segment]:
                start, end = parts[key][0].start_ns, begin + slot.start_ns + slot.duration_ns
                launches.add(
                    first[slot.model] + slot.segment,
                    window,
                    slot.frame,
                    start,
                    end,
                    start,
                    followed=False,
                    cpu_ns=spent,
                )
    for played in play.models:
        name = played.plan.name
        done[name] = played.done * played.demand.frames
        for frame in range(WINDOWS // played.demand.every):
            outcome = FrameOutcome.DONE if frame < done[name] else FrameOutcome.QUEUE_FULL
            frames.add(number[name], frame, outcome, frame, 0, 0, frame)
    return SimpleNamespace(
        launches=launches,
        frames=frames,
        windows=WINDOWS,
        start_ns=0,
        release=lambda window: window * WINDOW_NS,
        stretches=[SimpleNamespace(rung=SimpleNamespace(grid=GRID))],
    )


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_no_run_with_interrupted_launches_exceeds_its_bounds(seed: int) -> None:
    """On a preemptive core there is nothing to pack: both bounds are one."""
    random = np.random.default_rng(seed)
    beat, models = workload(random, 1, preemptive=True)
    timetable = build_timetable(beat, models)
    if timetable.feasible:
        for _, packing, fluid in checked(random, beat, timetable, interrupted(random, beat, timetable)):
            assert packing == fluid


def reached(
    units: int, *segments: list[tuple[str, int]], guard_us: int = 0, windows: int = 600
) -> list[tuple[float, float]]:
    """Ratio to the packing and fluid bound of background models beside a priority model of 2 ms, exact durations."""
    random = np.random.default_rng(0)
    models = [model(random, "first", [("npu0", 2 * MS)], priority=True)]
    models += [model(random, f"later{number}", list(own)) for number, own in enumerate(segments)]
    models = [
        msgspec.structs.replace(
            m, segments=tuple(msgspec.structs.replace(s, duration_ns=s.median_ns) for s in m.segments)
        )
        for m in models
    ]
    beat = Beat(WINDOW_NS, guard_us * US)
    timetable = build_timetable(beat, models)
    assert timetable.feasible
    made = tuple(Unit(name=f"npu{core}", preemptive=False, core=core) for core in range(units))
    device = NpuDevice(Target(name="board", kind="npu", units=made, variation=Variation()), VirtualClock())
    run = timed_group(timetable, device, GRID, Rotation)
    run.run(windows)
    medians = [s.median_ns for m in timetable.models for s in m.segments]
    whole = [sum(s.median_ns for s in m.segments) for m in timetable.models]
    bounds = throughput_bounds_hz(timetable, run, [1] * len(models), medians, whole)
    rows = run.frames.rows()
    found = []
    for number, one in enumerate(timetable.models):
        if one.role == "background":
            done = (rows[:, FrameLog.MODEL] == number) & (rows[:, FrameLog.OUTCOME] == FrameOutcome.DONE)
            rate = done.sum() / windows * 100
            found.append((rate / bounds[one.name][1], rate / bounds[one.name][0]))
    return found


def test_segments_that_fill_the_residual_reach_both_bounds() -> None:
    """8 ms in segments of 4 and 8 ms."""
    assert reached(1, [("npu0", 4 * MS)] * 4) == [(pytest.approx(1, rel=0.01), pytest.approx(1, rel=0.01))]


def test_what_no_packing_holds_is_missing_in_the_packing_bound() -> None:
    """Segments of 5 ms in residuals of 8: 5 of 8 are used, and no more could be."""
    assert reached(1, [("npu0", 5 * MS)] * 4) == [(pytest.approx(1, rel=0.01), pytest.approx(5 / 8, rel=0.01))]


def test_the_guard_is_missing_in_the_run() -> None:
    """Of two segments of 4 ms in residuals of 8 ms one is left out for a guard of 1 ms."""
    assert reached(1, [("npu0", 4 * MS)] * 4, guard_us=1000) == [(pytest.approx(0.5, rel=0.02),) * 2]


def test_models_of_unlike_shares_are_held_against_their_common_bound() -> None:
    """A long and a short model on one unit, the short one served far more often: both use the same part of it."""
    (_, long), (_, short) = reached(1, [("npu0", 4 * MS)] * 9, [("npu0", 2 * MS), ("npu0", 1 * MS)])
    assert long == pytest.approx(short, rel=0.02)
    assert 0.8 < long < 1


def test_each_unit_bounds_the_models_that_use_it() -> None:
    """Alone on the second unit a model has all its frames; the other one is bound by the first unit."""
    (_, first), (_, second) = reached(2, [("npu0", 5 * MS)] * 4, [("npu1", 3 * MS)])
    assert first == pytest.approx(5 / 8, rel=0.01)
    assert second == 1
