"""A run made up in code (a face model in every window, a segmenter of nine segments behind it), and a profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
import pytest

from framefit.core.events import EventType, Trace
from framefit.core.profile import EventCounts, How, OperationLog, Profile, Totals, Violation
from framefit.core.program import Group, Launches, Operation, Program, ProgramUnit, SegmentProgram
from framefit.profiling.pairing import pair_events
from framefit.report.timeline import LossRegion, TimelineWindows

WINDOW_NS = 33_333_333
FACE_NS = 6_000_000
ORIGIN_NS = 1_000_000_000
SEGMENTS_NS = [4_100_000, 7_900_000, 5_200_000, 6_400_000, 4_700_000, 8_000_000, 5_900_000, 7_100_000, 4_400_000]


def segment_program(model: str, segment: int, duration_ns: int) -> SegmentProgram:
    """A segment of one operation, whose kind is its own."""
    name = f"{model}.{segment}"
    operation = Operation(
        index=0, name=name, layer=name, kind=name, unit="cpu1", expected_ns=duration_ns, sigma_ratio=0.02
    )
    return SegmentProgram(name=name, model=model, segment=segment, groups=(Group(index=0, operations=(operation,)),))


PROGRAMS = (
    segment_program("face", 0, FACE_NS),
    *(segment_program("segmenter", index, ns) for index, ns in enumerate(SEGMENTS_NS)),
)


@dataclass(frozen=True)
class Run:
    """What the functions of ``report`` take."""

    trace: Trace
    program: Program
    launches: Launches
    releases_ns: np.ndarray
    priority_models: frozenset[str] = field(default=frozenset({"face"}))

    @property
    def executed(self) -> OperationLog:
        """What was executed."""
        return pair_events(self.trace, self.program, self.launches)

    @property
    def arguments(self) -> tuple[OperationLog, Program, Launches, np.ndarray, frozenset[str]]:
        """In the order of the functions' parameters."""
        return self.executed, self.program, self.launches, self.releases_ns, self.priority_models


def make_run(windows: int = 20, *, late_window: int | None = None) -> Run:
    """Run greedily: a segment starts where it ends 0.3 ms before the next release.

    Args:
        windows: how many.
        late_window: there the last segment takes 10 ms longer.
    """
    random = np.random.default_rng(0)
    releases = ORIGIN_NS + np.arange(windows, dtype=np.int64) * WINDOW_NS
    launches: list[tuple[int, int, int, int]] = []
    events: list[tuple[int, int, int]] = []
    background = cycle(range(len(SEGMENTS_NS)))
    segment, frame, now = next(background), 0, 0

    def execute(index: int, window: int, of_frame: int, duration_ns: int) -> None:
        nonlocal now
        start = now + 8_000
        now = start + int(duration_ns * random.normal(1.0, 0.01))
        launches.append((index, window, of_frame, start - 5_000))
        events.extend([(start, index, EventType.START), (now, index, EventType.END)])

    for window, release in enumerate(releases.tolist()):
        now = max(now, release + int(random.gamma(2.0, 30_000)))
        execute(0, window, window, FACE_NS)
        end = release + WINDOW_NS
        while now + SEGMENTS_NS[segment] + 300_000 < end:
            following = next(background)
            last = now + SEGMENTS_NS[segment] + SEGMENTS_NS[following] + 500_000 > end
            late = 10_000_000 if last and window == late_window else 0
            execute(segment + 1, window, frame, SEGMENTS_NS[segment] + late)
            frame += following < segment
            segment = following
    program, window_of, frame_of, submit = (np.array(column) for column in zip(*launches, strict=True))
    time, kind, type_ = (np.array(column) for column in zip(*events, strict=True))
    return Run(
        trace=Trace(
            time_ns=time.astype(np.int64),
            id=kind.astype(np.int32),
            type=type_.astype(np.uint8),
            core=np.full(len(time), 1, np.int16),
            operation=np.zeros(len(time), np.int64),
            kinds=tuple(segment.name for segment in PROGRAMS),
        ),
        program=Program(
            window_ns=WINDOW_NS,
            units=(ProgramUnit(name="cpu1", core=1),),
            programs=PROGRAMS,
            launches="launches.npz",
        ),
        launches=Launches(
            program=program.astype(np.int32),
            window=window_of.astype(np.int64),
            frame=frame_of.astype(np.int64),
            submit_ns=submit.astype(np.int64),
        ),
        releases_ns=releases,
    )


@pytest.fixture
def run() -> Run:
    """Twenty windows, nothing lost, nothing late."""
    return make_run()


@pytest.fixture
def late_run() -> Run:
    """As ``run``, but in window 5 the last segment runs over the window's end."""
    return make_run(late_window=5)


@dataclass(frozen=True)
class Profiled:
    """A profile of a made-up trace that lost events, as the writers of ``report`` take it."""

    log: OperationLog
    program: Program
    launches: Launches
    windows: TimelineWindows
    losses: tuple[LossRegion, ...]
    profile: Profile


def profiled_programs() -> tuple[SegmentProgram, ...]:
    """A face model on one unit, and a piece of another on two; names want quoting."""

    def operation(index: int, model: str, kind: str, unit: str, expected_ns: int) -> Operation:
        name = f"{kind}_{index}" if index else 'a "first", </script> one'
        return Operation(
            index=index,
            name=name,
            layer=f"{model}/{name}",
            kind=kind,
            unit=unit,
            expected_ns=expected_ns,
            sigma_ratio=0.1,
        )

    face = [operation(i, "face", ("conv", "pool")[i % 2], "npu0", 9_000 + 700 * i) for i in range(5)]
    depth = [operation(i, "depth", ("conv", "reformat", "pool")[i % 3], f"npu{i % 2}", 5_000) for i in range(8)]
    return (
        SegmentProgram(name="face.0", model="face", segment=0, groups=(Group(index=0, operations=tuple(face)),)),
        SegmentProgram(
            name="depth.3",
            model="depth",
            segment=3,
            groups=(Group(index=0, operations=tuple(depth[:4])), Group(index=1, operations=tuple(depth[4:]))),
        ),
    )


def make_profiled(inferences: int = 30, *, seed: int = 0, lost_ratio: float = 0.2) -> Profiled:
    """Both programs in turn, one inference of each a window of 200 us; edges are lost one by one."""
    random = np.random.default_rng(seed)
    programs = profiled_programs()
    units = (ProgramUnit(name="npu0", core=4), ProgramUnit(name="npu1", core=7))
    window_ns = 200_000
    kinds = ("conv", "pool", "reformat")
    rows: list[tuple[int, ...]] = []
    for inference in range(inferences):
        which = inference % 2
        free = dict.fromkeys(("npu0", "npu1"), ORIGIN_NS + inference // 2 * window_ns + 90_000 * which)
        for group in programs[which].groups:
            for op in group.operations:
                start = free[op.unit] + int(random.integers(0, 600))
                free[op.unit] = end = start + int(op.expected_ns * random.uniform(0.9, 1.2))
                core = 4 if op.unit == "npu0" else 7
                rows.append((inference, which, op.index, kinds.index(op.kind), core, start, end))
    inference, which, index, kind, core, start_ns, end_ns = np.array(rows, np.int64).reshape(-1, 7).T
    lost = random.random((2, len(rows))) < lost_ratio
    how = np.where(lost, random.integers(1, len(How), lost.shape), 0).astype(np.uint8)
    margin = np.where(lost, random.integers(0, 900, (2, *lost.shape)), 0)
    event = np.where(lost, -1, 2 * np.arange(len(rows)) + np.array([[0], [1]]))
    log = OperationLog(
        inference=inference,
        program=which.astype(np.int32),
        operation=index.astype(np.int32),
        kind=kind.astype(np.int32),
        core=core.astype(np.int16),
        unit=(core != 4).astype(np.int16),
        start_ns=start_ns,
        end_ns=end_ns,
        start_how=how[0],
        end_how=how[1],
        start_low_ns=start_ns - margin[0, 0],
        start_high_ns=start_ns + margin[1, 0],
        end_low_ns=end_ns - margin[0, 1],
        end_high_ns=end_ns + margin[1, 1],
        start_event=event[0],
        end_event=event[1],
        kinds=kinds,
    )
    ordinal = np.arange(inferences)
    launches = Launches(
        program=(ordinal % 2).astype(np.int32), window=ordinal // 2, frame=ordinal // 2 + 5, submit_ns=ordinal * 1000
    )
    releases = ORIGIN_NS - 2_000 + np.arange((inferences + 1) // 2) * window_ns
    count = int(lost.sum())
    totals = Totals(
        count=inferences,
        duration_ns=41_300 * inferences,
        interval_ns=(40_900 * inferences, 41_700 * inferences),
        inferred_ratio=0.06,
    )
    profile = Profile(
        method="align",
        events=EventCounts(
            received=2 * len(rows) - count, expected=2 * len(rows), lost=count, spurious=3, duplicated=0, out_of_order=1
        ),
        inferences=inferences,
        totals_by_kind={"conv": totals},
        utilisation_by_unit={"npu0": 0.42, "npu1": 0.11},
        totals_by_layer={"face/conv_12": totals},
        totals_by_group={"face.0/0": totals},
        violations=(
            Violation(
                operation="depth, segment 3, conv_3",
                expected_ns=5_000,
                actual_ns=8_000,
                interval_ns=(7_500, 8_200),
                count=7,
            ),
        ),
        diagnosis=("A buffer of 64 events would have kept them.",),
        calibrated=True,
        warnings=("The trace begins within an inference.",),
    )
    region = LossRegion(start_ns=ORIGIN_NS + 400_000, end_ns=ORIGIN_NS + 460_000, label="12 events lost: buffer full")
    return Profiled(
        log=log,
        program=Program(window_ns=window_ns, units=units, programs=programs, launches="launches.npz"),
        launches=launches,
        windows=TimelineWindows(releases_ns=releases, priority_ns=np.stack([releases, releases + 70_000], axis=1)),
        losses=(region,),
        profile=profile,
    )


@pytest.fixture(scope="session")
def profiled() -> Profiled:
    """Thirty inferences; a fifth of the edges is inferred."""
    return make_profiled()


@pytest.fixture(scope="session")
def repeated() -> Callable[[Profiled, int], Profiled]:
    """A function that has the same happen many times, one after the other."""

    def again(profiled: Profiled, times: int) -> Profiled:
        log = profiled.log
        span = int(log.end_ns.max() - log.start_ns.min()) + 1_000
        columns = {}
        for name in (one.name for one in dataclasses.fields(log) if one.name != "kinds"):
            array = getattr(log, name)
            move = span if name.endswith("_ns") else 30 if name == "inference" else 0
            columns[name] = (array + (np.arange(times) * move)[:, None]).reshape(-1).astype(array.dtype)
        return dataclasses.replace(profiled, log=dataclasses.replace(log, **columns))

    return again
