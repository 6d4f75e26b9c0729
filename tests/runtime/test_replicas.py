"""Models of several replicas: whichever is free takes the next frame, and results leave in the order of the frames."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.grid import Grid
from framefit.core.policy import Rotation
from framefit.core.target import Link, Target, Unit, Variation
from framefit.core.timetable import PlannedModel, Segment, Timetable
from framefit.devices.clock import VirtualClock
from framefit.devices.npu.device import NpuDevice
from framefit.planning.beat import Beat, Demand
from framefit.planning.check import check_timetable
from framefit.planning.timetable import build_timetable
from framefit.runtime.log import FrameLog, LaunchLog
from framefit.runtime.units import UnitGroup
from timed_runs import timed_group

MS = 1_000_000
WINDOW_NS = 10 * MS
CUT = 0.10
UNITS = ("npu0", "npu1", "npu2")
QUEUE = 2


def board(link_ns: int = 0) -> Target:
    """Three units, with links where something takes its time."""
    pairs = [("npu0", "npu1"), ("npu0", "npu2"), ("npu1", "npu2")] if link_ns else []
    return Target(
        name="board",
        kind="npu",
        units=tuple(Unit(name=name, preemptive=False, core=core) for core, name in enumerate(UNITS)),
        links=tuple(Link(between=pair, latency_ns=link_ns, bandwidth_gbps=None) for pair in pairs),
        variation=Variation(sigma_ratio=0.04, most_ratio=CUT),
    )


def model(
    name: str, replicas: Sequence[Sequence[tuple[str, int]]], *, priority: bool = False, slots: int = 1
) -> PlannedModel:
    """Of segments on units with their medians; no launch takes longer than it is planned for."""
    segments: list[Segment] = []
    for number, replica in enumerate(replicas):
        for layer, (unit, median_ns) in enumerate(replica):
            segments.append(
                Segment(
                    index=len(segments),
                    unit=unit,
                    fill_layer="a",
                    first_layer="a",
                    last_layer="b",
                    output_layers=("b",),
                    duration_ns=math.ceil(median_ns * (1 + CUT)),
                    median_ns=median_ns,
                    boundary_bytes=1000,
                    tensors=(),
                    span=(layer, layer),
                    replica=number,
                )
            )
    return PlannedModel(
        name=name,
        role="priority" if priority else "background",
        level=0,
        reasons=(),
        duration_ns=max(sum(s.duration_ns for s in segments if s.replica == r) for r in range(len(replicas))),
        segments=tuple(segments),
        slots=slots,
    )


def planned(models: Sequence[PlannedModel], link_ns: int = 0) -> Timetable:
    """Their timetable, which its independent check finds nothing wrong with."""
    beat = Beat(
        WINDOW_NS,
        0,
        demands={one.name: Demand(queue=1 if one.role == "priority" else QUEUE) for one in models},
        links=board(link_ns).links,
    )
    timetable = build_timetable(beat, models)
    if timetable.feasible:
        assert check_timetable(timetable) == []
    return timetable


def played(timetable: Timetable, windows: int, seed: int = 1, link_ns: int = 0) -> UnitGroup:
    """A run of it."""
    queues = {one.name: QUEUE for one in timetable.models if one.role == "background"}
    group = timed_group(
        timetable, NpuDevice(board(link_ns), VirtualClock(), seed=seed), Grid(1e9 / WINDOW_NS), Rotation, queues=queues
    )
    group.run(windows)
    return group


def served(group: UnitGroup, number: int) -> np.ndarray:
    """Rows of a model's frames that were done, by frame."""
    rows = group.frames.rows()
    rows = rows[(rows[:, FrameLog.MODEL] == number) & (rows[:, FrameLog.FINISHED] >= 0)]
    return rows[np.argsort(rows[:, FrameLog.FRAME])]


def assert_sound(timetable: Timetable, group: UnitGroup) -> None:
    """Each frame has one outcome and one replica, results are in order, and none is older than its bound."""
    rows, launches = group.frames.rows(), group.launches.rows()
    for number, (one, first) in enumerate(zip(timetable.models, timetable.first_programs[0], strict=True)):
        frames = rows[rows[:, FrameLog.MODEL] == number, FrameLog.FRAME]
        assert sorted(frames) == list(range(group.windows))
        done = served(group, number)
        assert (np.diff(done[:, FrameLog.FINISHED]) >= 0).all()
        assert one.result_age_windows is not None
        ages = done[:, FrameLog.FINISHED] - done[:, FrameLog.RELEASED]
        assert ages.max(initial=0) <= one.result_age_windows * WINDOW_NS
        programs = launches[:, LaunchLog.PROGRAM] - first
        its = (programs >= 0) & (programs < len(one.segments))
        for frame in done[:, FrameLog.FRAME]:
            launched = programs[its & (launches[:, LaunchLog.FRAME] == frame)]
            replica = one.segments[launched[0]].replica
            assert sorted(launched) == [segment.index for segment in one.segments if segment.replica == replica]
    for unit in timetable.units:
        units = timetable.program_units[launches[:, LaunchLog.PROGRAM]]
        mine = launches[units == unit]
        mine = mine[np.argsort(mine[:, LaunchLog.STARTED])]
        assert (mine[1:, LaunchLog.STARTED] >= mine[:-1, LaunchLog.FINISHED]).all()


def test_two_units_serve_twice_as_many_frames() -> None:
    """Three layers of 7.5 ms beside a priority model of 0.6 ms: a window has room for one on each unit."""
    layers = [7.5, 7.5, 7.5]
    face = model("face", [[("npu0", 6 * MS // 10)]], priority=True)
    alone = planned([face, model("big", [[("npu0", int(ms * MS)) for ms in layers]])])
    both = planned([face, model("big", [[(unit, int(ms * MS)) for ms in layers] for unit in ("npu0", "npu1")])])
    for timetable, share in ((alone, 1 / 3), (both, 2 / 3)):
        assert timetable.feasible
        group = played(timetable, 300)
        assert_sound(timetable, group)
        assert len(served(group, 1)) == pytest.approx(300 * share, abs=3)
        assert timetable.launches_of("big") / timetable.hyperperiod_windows == pytest.approx(share, rel=0.05)


def test_a_result_waits_for_those_of_earlier_frames() -> None:
    """A fast replica is done first with the second frame; it leaves with the first one."""
    timetable = planned([model("big", [[("npu0", 7 * MS)] * 4, [("npu1", 2 * MS)] * 4])])
    group = played(timetable, 40)
    assert_sound(timetable, group)
    finished = served(group, 0)[:, FrameLog.FINISHED]
    assert finished[0] == finished[1]
    rows = group.launches.rows()
    ends = {frame: rows[rows[:, LaunchLog.FRAME] == frame, LaunchLog.FINISHED].max() for frame in (0, 1)}
    assert ends[1] < ends[0] == finished[0]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_replicas_keep_their_promise(seed: int) -> None:
    """On random units, in random stages: order, ages, one replica a frame."""
    random = np.random.default_rng(seed)
    link_ns = int(random.choice([0, MS // 2]))
    units = UNITS[: random.integers(1, 4)]
    models = [model("face", [[(str(random.choice(units)), int(random.integers(1, 20)) * MS // 10)]], priority=True)]
    for number in range(random.integers(1, 4)):
        medians = random.integers(1, 60, random.integers(1, 5)) * MS // 10
        replicas = [
            [(str(unit), int(ns)) for unit, ns in zip(random.choice(units, len(medians)), medians, strict=True)]
            for _ in range(random.integers(1, 4))
        ]
        models.append(model(f"big{number}", replicas, slots=int(random.integers(1, 5))))
    timetable = planned(models, link_ns)
    if timetable.feasible:
        assert_sound(timetable, played(timetable, 60, seed % 1000, link_ns))


def test_the_check_knows_where_replicas_cannot_be() -> None:
    """Reserved models have none; each has all layers."""
    timetable = planned([model("big", [[("npu0", MS)] * 2, [("npu1", MS)] * 2], slots=2)])
    big = timetable.models[0]
    for wrong, expected in (
        (msgspec.structs.replace(big, role="priority"), "a model that is reserved"),
        (msgspec.structs.replace(big, segments=big.segments[:-1]), "segments of replica 1 have layers"),
    ):
        found = check_timetable(msgspec.structs.replace(timetable, models=(wrong,)))
        assert any(expected in one for one in found)
