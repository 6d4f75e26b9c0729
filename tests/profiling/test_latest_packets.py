"""Traces that hold only the latest packets of a run whose timetable repeats."""

from __future__ import annotations

import numpy as np
import pytest

from framefit.core.events import TraceMeta
from framefit.core.program import Launches
from framefit.profiling.profile import ProfileInput, profile_trace
from lossy_runs import program, segment, trace

PROGRAM = program(
    segment("head", ("conv", "npu0", 90_000), ("pool", "npu0", 30_000), ("conv", "npu0", 60_000)),
    segment("body.0", ("conv", "npu0", 200_000), ("pool", "npu0", 50_000), ("conv", "npu0", 120_000)),
    segment("body.1", ("pool", "npu0", 70_000), ("conv", "npu0", 240_000)),
)
TURN, WINDOW_NS = (0, 1, 2, 0, 1), 1_000_000
CLOCK_NS = 7_000_000_000


@pytest.mark.parametrize(("clock_ns", "seed"), [(0, 0), (CLOCK_NS, 1)])
def test_lossy_ones_begin_at_the_right_launch(clock_ns: int, seed: int) -> None:
    """Whether or not host and device share a clock: one launch after the other, submits tell it by their jitter."""
    random = np.random.default_rng(seed)
    launched = np.tile(np.array(TURN, np.int32), 120)
    submit, packets, at = [], [], 0
    for number, which in enumerate(launched.tolist()):
        if which == 0:
            at = max(at, number // 5 * 2 * WINDOW_NS + (number % 5 // 3) * WINDOW_NS)
        submit.append(at)
        for group in PROGRAM.programs[which].groups:
            for op in group.operations:
                end = at + int(op.expected_ns * random.normal(1, 0.01))
                packets += [(at + clock_ns, op.kind, 0, 0, number), (end + clock_ns, op.kind, 1, 0, number)]
                at = end
    kept = np.flatnonzero(random.random(len(packets)) > 0.3)
    kept, gone = kept[len(kept) // 2 :], len(kept) // 2
    meta = TraceMeta(overwritten_events=gone, lost_events=len(packets) - gone - len(kept))
    received = [packets[index] for index in kept.tolist()]
    part = trace([packet[:4] for packet in received], ("conv", "pool"), meta)
    window = np.arange(len(launched)) // 5 * 2
    launches = Launches(launched, window, window, np.array(submit, np.int64))
    log = profile_trace(ProfileInput(part, PROGRAM, launches, None, "trace")).log
    owner = np.array([packet[4] for packet in received])
    for event in (log.start_event, log.end_event):
        assert np.mean(owner[event[event >= 0]] == log.inference[event >= 0]) > 0.99
