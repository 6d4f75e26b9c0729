"""Timetables of several units played through on given durations."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.events import Trace
from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.core.target import Link, Target, Unit, Variation
from framefit.core.timetable import PlannedModel, PriorityPeriod, Segment, Timetable, Window
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.device import NpuDevice
from framefit.runtime.log import FrameLog, FrameOutcome, LaunchLog
from framefit.runtime.metrics import figures, unit_figures
from framefit.runtime.misses import misses
from framefit.runtime.units import UnitGroup
from timed_runs import timed_dispatcher, timed_group

MS = 1_000_000
WINDOW_NS = 10 * MS
RATE_HZ = 100.0
GRID = Grid(RATE_HZ)
SIGMA, CUT = 0.02, 0.10
QUANTILE = math.exp(2.326 * SIGMA)
VARIED = Variation(sigma_ratio=SIGMA, most_ratio=CUT)
UNITS = (Unit(name="npu0", preemptive=False, core=1), Unit(name="npu1", preemptive=False, core=2))


def board(variation: Variation = VARIED, links: Sequence[Link] = ()) -> Target:
    """Two equal units."""
    return Target(name="board", kind="npu", units=UNITS, links=tuple(links), variation=variation)


def model(name: str, segments: Sequence[tuple[str, int]], *, priority: bool = False, slots: int = 1) -> PlannedModel:
    """Of segments on units, with their medians."""
    made = tuple(
        Segment(
            index=index,
            unit=unit,
            fill_layer="a",
            first_layer="a",
            last_layer="b",
            output_layers=("b",),
            duration_ns=math.ceil(median_ns * QUANTILE),
            median_ns=median_ns,
            boundary_bytes=1000,
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


def timetable(*models: PlannedModel, guard_ns: int = 0, link_ns: int = 0) -> Timetable:
    """One window: the priority models' stages one after the other, each when its unit and its frame are there."""
    free: defaultdict[str, int] = defaultdict(int)
    periods = []
    for one in models:
        ready = 0
        for run in one.stages if one.role == "priority" else ():
            start = max(ready, free[run[0].unit])
            end = start + math.ceil(sum(s.median_ns for s in run) * (1 + CUT))
            periods.append(PriorityPeriod(unit=run[0].unit, start_ns=start, end_ns=end, model=one.name))
            free[run[0].unit], ready = end, end + link_ns
    reserved = max(free.values(), default=0)
    return Timetable(
        feasible=True,
        worst_slack_ns=0,
        hyperperiod_windows=1,
        window_ns=WINDOW_NS,
        priority_ns=reserved,
        residual_ns=WINDOW_NS - reserved,
        guard_ns=guard_ns,
        units=tuple(dict.fromkeys(segment.unit for one in models for segment in one.segments)),
        windows=(
            Window(
                index=0,
                length_ns=WINDOW_NS,
                priority=tuple(sorted(periods, key=lambda period: period.start_ns)),
                residual_ns=(),
                slots=(),
            ),
        ),
        models=models,
        memory_bytes={},
    )


def same(one: Trace, other: Trace) -> bool:
    """Whether two traces hold the same packets."""
    columns = ("time_ns", "id", "type", "core", "operation", "loss_after")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns) and one.meta == other.meta


def guard_ns(*models: PlannedModel) -> int:
    """What the longest background segment may take beyond its quantile."""
    longest = max(s.median_ns for m in models if m.role == "background" for s in m.segments)
    return math.ceil(longest * (1 + CUT - QUANTILE)) + 1


medians = st.lists(st.integers(MS // 20, 4 * MS), min_size=1, max_size=4)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(MS // 20, 2 * MS), min_size=1, max_size=2),
    st.lists(medians, min_size=1, max_size=3),
    st.integers(0, MS),
    st.integers(0, 2**32 - 1),
    st.dictionaries(st.sampled_from(["big0", "big1", "big2"]), st.integers(1, 3)),
)
def test_a_group_of_one_unit_is_the_dispatcher(
    face: list[int], big: list[list[int]], guard: int, seed: int, every: dict[str, int]
) -> None:
    """Bit for bit: launches, fates and packets."""
    models = [
        model("face", [("npu0", ns) for ns in face], priority=True),
        *(model(f"big{number}", [("npu0", ns) for ns in own]) for number, own in enumerate(big)),
    ]
    plan = timetable(*models, guard_ns=guard)
    alone = timed_dispatcher(plan, NpuDevice(board(), VirtualClock(), seed=seed), GRID, Rotation(len(big)), every=every)
    group = timed_group(plan, NpuDevice(board(), VirtualClock(), seed=seed), GRID, Rotation, every=every)
    alone.run(40)
    group.run(40)
    assert len(group.dispatchers) == 1
    assert np.array_equal(alone.launches.rows(), group.launches.rows())
    assert np.array_equal(alone.frames.rows(), group.frames.rows())
    assert same(alone.trace(), group.trace())
    assert (alone.start_ns, alone.windows, alone.ended) == (group.start_ns, group.windows, group.ended)


def of_unit(table: np.ndarray, column: int, numbers: Sequence[int]) -> np.ndarray:
    """Rows whose column is one of these, which count from 0 then."""
    rows = table[np.isin(table[:, column], numbers)].copy()
    rows[:, column] -= numbers[0]
    return rows


@settings(deadline=None, max_examples=25)
@given(medians, medians, st.integers(0, 2**32 - 1))
def test_units_that_share_no_model_run_as_if_alone(one: list[int], other: list[int], seed: int) -> None:
    """Each launches bit for bit what its own dispatcher launches without the other."""
    models = [
        model("first", [("npu0", MS)], priority=True),
        model("big", [("npu0", ns) for ns in one]),
        model("second", [("npu1", 2 * MS)], priority=True),
        model("huge", [("npu1", ns) for ns in other]),
    ]
    group = timed_group(
        timetable(*models, guard_ns=MS // 2), NpuDevice(board(), VirtualClock(), seed=seed), GRID, Rotation
    )
    group.run(40)
    programs, first = [], 0
    for two, numbers in ((models[:2], (0, 1)), (models[2:], (2, 3))):
        device = NpuDevice(board(), VirtualClock(), seed=seed)
        alone = timed_dispatcher(timetable(*two, guard_ns=MS // 2), device, GRID, Rotation(1))
        alone.run(40)
        count = sum(len(own.segments) for own in two)
        programs = list(range(first, first + count))
        first += count
        assert np.array_equal(of_unit(group.launches.rows(), LaunchLog.PROGRAM, programs), alone.launches.rows())
        found = of_unit(group.frames.rows(), FrameLog.MODEL, numbers)
        order = [np.lexsort((rows[:, FrameLog.FRAME], rows[:, 0])) for rows in (found, alone.frames.rows())]
        assert np.array_equal(found[order[0]], alone.frames.rows()[order[1]])


def doubled(windows: int) -> tuple[float, float, int]:
    """Background frames on one unit and on two equal ones, and the priority misses on two."""
    halves = [3 * MS, 2 * MS, 3 * MS, 2 * MS]
    face = model("face", [("npu0", 2 * MS)], priority=True)
    one = model("big", [("npu0", ns) for ns in [*halves, *halves]])
    two = model("big", [(unit, ns) for unit in ("npu0", "npu1") for ns in halves], slots=3)
    voice = model("voice", [("npu1", 2 * MS)], priority=True)
    done = []
    for models in ((face, one), (face, voice, two)):
        plan = timetable(*models, guard_ns=guard_ns(*models))
        group = timed_group(plan, NpuDevice(board(), VirtualClock(), seed=1), GRID, Rotation, queues={"big": 3})
        group.run(windows)
        rows = group.frames.rows()
        last = rows[rows[:, FrameLog.MODEL] == len(models) - 1]
        done.append(float((last[:, FrameLog.OUTCOME] == FrameOutcome.DONE).sum()))
        first = rows[rows[:, FrameLog.MODEL] < len(models) - 1]
        missed = int((first[:, FrameLog.OUTCOME] != FrameOutcome.DONE).sum())
        assert np.bincount(rows[:, FrameLog.MODEL]).tolist() == [windows] * len(models)
    return done[0], done[1], missed


@pytest.mark.timed
@pytest.mark.parametrize("windows", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_two_units_double_the_throughput(windows: int) -> None:
    """A model in two stages of half its length each gets twice the frames done, and no priority frame is late."""
    begin = time.process_time()
    one, two, missed = doubled(windows)
    assert two >= 1.8 * one
    assert missed == 0
    assert time.process_time() - begin < windows / 1000


def staged(link: Link | None, seed: int = 0, windows: int = 300) -> tuple[UnitGroup, Timetable]:
    """A priority and a background model across both units."""
    models = [
        model("face", [("npu0", MS), ("npu1", MS)], priority=True),
        model("big", [("npu1", 2 * MS), ("npu1", 2 * MS), ("npu0", 3 * MS)], slots=2),
        model("other", [("npu0", 2 * MS)]),
    ]
    plan = timetable(*models, guard_ns=guard_ns(*models), link_ns=600_000 if link else 0)
    device = NpuDevice(board(links=[link] if link else []), VirtualClock(), seed=seed)
    group = timed_group(plan, device, GRID, Rotation, queues={"big": 2})
    group.run(windows)
    return group, plan


@pytest.mark.parametrize("link", [None, Link(between=("npu0", "npu1"), latency_ns=100_000, bandwidth_gbps=0.002)])
def test_stages_on_a_board(link: Link | None) -> None:
    """Frames take the link's time; packets of both units come in time order; the seed decides."""
    group, plan = staged(link)
    rows, frames = group.launches.rows(), group.frames.rows()
    assert (frames[frames[:, FrameLog.MODEL] == 0][:, FrameLog.OUTCOME] == FrameOutcome.DONE).all()
    by_frame = {(row[LaunchLog.PROGRAM], row[LaunchLog.FRAME]): row for row in rows.tolist()}
    waits = [
        by_frame[4, frame][LaunchLog.STARTED] - by_frame[3, frame][LaunchLog.FINISHED]
        for frame in range(300)
        if (4, frame) in by_frame
    ]
    assert len(waits) > 250
    assert min(waits) >= (600_000 if link else 0)
    trace = group.trace()
    assert (np.diff(trace.time_ns) >= 0).all()
    assert len(trace) == 2 * len(rows)
    assert set(trace.core.tolist()) == {1, 2}
    again, _ = staged(link)
    assert np.array_equal(again.launches.rows(), rows)
    assert np.array_equal(again.frames.rows(), frames)
    assert same(again.trace(), trace)
    assert not np.array_equal(staged(link, seed=1)[0].launches.rows()[:50], rows[:50])
    launches = group.launches.launches()
    assert (np.diff(launches.submit_ns) >= 0).all()
    assert misses(plan, group.launches, group.frames, floor_p99_ns=0) == []


def test_the_residual_of_each_unit() -> None:
    """What its windows leave beside its own priority stages, and what of that was used; together the mean."""
    group, plan = staged(None, windows=1000)
    each = unit_figures(plan, group.launches, windows=1000, rate_hz=RATE_HZ)
    rows = group.launches.finished()
    lasted = rows[:, LaunchLog.FINISHED] - rows[:, LaunchLog.STARTED]
    used = {}
    for unit, face, background in (("npu0", 0, (4, 5)), ("npu1", 1, (2, 3))):
        offered = 1000 * WINDOW_NS - lasted[rows[:, LaunchLog.PROGRAM] == face].sum()
        used[unit] = lasted[np.isin(rows[:, LaunchLog.PROGRAM], background)].sum() / offered
        assert each[unit].residual_utilisation_ratio == pytest.approx(used[unit])
        assert 0.3 < used[unit] < 0.9
        total = each[unit].residual_utilisation_ratio + each[unit].guard_loss_ratio + each[unit].packing_loss_ratio
        assert total == pytest.approx(1)
    both = figures(plan, group.launches, windows=1000, rate_hz=RATE_HZ)
    assert both.residual_utilisation_ratio == pytest.approx(np.mean(list(used.values())), abs=0.02)


def test_a_miss_is_not_blamed_on_another_unit() -> None:
    """What ran elsewhere kept nobody waiting: the model's own launch was too long."""
    models = [
        model("face", [("npu0", MS)], priority=True),
        model("big", [("npu1", 9 * MS)]),
    ]
    plan = timetable(*models)
    slow = Variation(stall_rate_hz=20, stall_ns=12 * MS)
    group = timed_group(plan, NpuDevice(board(slow), VirtualClock(), seed=3), GRID, Rotation)
    group.run(2000)
    found = misses(plan, group.launches, group.frames, floor_p99_ns=0)
    assert len(found) > 10
    assert {miss.cause for miss in found} <= {"own duration", "backlog"}


@pytest.mark.parametrize(("turns", "ratio"), [((1, 1), 1.0), ((3, 1), 3.0), ((2, 3), 2 / 3)])
def test_turns_share_a_unit(turns: tuple[int, int], ratio: float) -> None:
    """Two models that both have more frames than there is time for are served in the proportion of their turns."""
    models = [
        model("face", [("npu0", MS)], priority=True),
        *(
            msgspec.structs.replace(model(f"big{number}", [("npu0", 2 * MS)] * 4), turns=own)
            for number, own in enumerate(turns)
        ),
    ]
    plan = timetable(*models, guard_ns=guard_ns(*models))
    queues = {"big0": 4, "big1": 4}
    group = timed_group(plan, NpuDevice(board(), VirtualClock(), seed=1), GRID, Rotation, queues=queues)
    group.run(600)
    rows = group.frames.rows()
    done = [
        int(((rows[:, FrameLog.MODEL] == n) & (rows[:, FrameLog.OUTCOME] == FrameOutcome.DONE)).sum()) for n in (1, 2)
    ]
    assert sum(done) > 500
    assert done[0] / done[1] == pytest.approx(ratio, rel=0.02)
