"""A run made up in code: a face model of 6 ms in every window, and a segmenter of nine segments behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
import pytest

from framefit.core.events import EventType, Trace
from framefit.core.program import Group, Launches, Operation, Program, ProgramUnit, SegmentProgram

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
    def arguments(self) -> tuple[Trace, Program, Launches, np.ndarray, frozenset[str]]:
        """In the order of the functions' parameters."""
        return self.trace, self.program, self.launches, self.releases_ns, self.priority_models


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
