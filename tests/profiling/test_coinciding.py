"""Operations that take no time: their packets look like duplicates, and are none."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from framefit import profile
from framefit.core.events import Trace
from framefit.core.program import Group, Operation, Program, ProgramUnit, SegmentProgram
from framefit.profiling.profile import Method

TAKES_NS = {"conv": 5_000, "first": 0, "second": 0, "matmul": 8_000}
KINDS = ("conv", "reformat", "matmul")
TIMES = 60


def program() -> Program:
    """Two reshapes of no duration between two products."""
    kind = {"first": "reformat", "second": "reformat"}
    operations = tuple(
        Operation(
            index=index,
            name=name,
            layer=name,
            kind=kind.get(name, name),
            unit="npu0",
            expected_ns=takes,
            sigma_ratio=0.02,
        )
        for index, (name, takes) in enumerate(TAKES_NS.items())
    )
    segment = SegmentProgram(name="net", model="net", segment=0, groups=(Group(index=0, operations=operations),))
    return Program(
        window_ns=50_000, units=(ProgramUnit(name="npu0", core=0),), programs=(segment,), launches=None, repeats=TIMES
    )


def whole() -> Trace:
    """Every packet of 60 repetitions, varied a little."""
    random, rows = np.random.default_rng(3), []
    for run in range(TIMES):
        now = 50_000 * run
        for name, takes in TAKES_NS.items():
            kind = KINDS.index(name) if name in KINDS else KINDS.index("reformat")
            ends = now + int(takes * random.lognormal(0, 0.02))
            rows += [(now, kind, 0), (ends, kind, 1)]
            now = ends
    table = np.array(rows, np.int64)
    return Trace(
        time_ns=table[:, 0],
        id=table[:, 1].astype(np.int32),
        type=table[:, 2].astype(np.uint8),
        core=np.zeros(len(table), np.int16),
        operation=np.full(len(table), -1, np.int64),
        kinds=KINDS,
    )


def picked(trace: Trace, which: np.ndarray) -> Trace:
    """These packets, in this order."""
    return replace(
        trace,
        time_ns=trace.time_ns[which],
        id=trace.id[which],
        type=trace.type[which],
        core=trace.core[which],
        operation=trace.operation[which],
    )


@pytest.mark.parametrize("method", ["align", "rule"])
def test_a_lost_end_between_two_starts_makes_no_duplicate(method: Method) -> None:
    """Two STARTs of one kind at one time are of two operations: exactly what was taken out is lost."""
    trace = whole()
    lost = np.arange(3, len(trace), 40)  # the END of every fifth "first", and nothing else
    assert set(trace.id[lost]) == {1}
    counts = profile(picked(trace, np.delete(np.arange(len(trace)), lost)), program(), method=method).profile.events
    assert (counts.lost, counts.duplicated, counts.spurious) == (len(lost), 0, 0)


@pytest.mark.parametrize("method", ["align", "rule"])
def test_where_packets_come_twice_those_did_too(method: Method) -> None:
    """A device that repeats other packets repeats them all: none of the doubles counts."""
    trace = whole()
    twice = np.sort(np.concatenate([np.arange(len(trace)), np.arange(0, len(trace), 3)]))
    counts = profile(picked(trace, twice), program(), method=method).profile.events
    assert (counts.lost, counts.duplicated, counts.spurious) == (0, len(twice) - len(trace), 0)


@pytest.mark.parametrize("begun", [1, 2, 5, 8])
def test_what_a_trace_no_longer_tells_is_not_lost(begun: int) -> None:
    """A trace that ends in mid-way covers what it tells: at most one operation behind its last packet is lost."""
    trace = whole()
    ends = 8 * (TIMES - 1) + begun
    counts = profile(picked(trace, np.arange(ends)), program()).profile.events
    assert counts.lost <= 1 + 2  # an END of which the START came, and that operation
    assert (counts.received, counts.spurious) == (ends, 0)


def test_packets_of_too_few_launches_are_not_counted_twice() -> None:
    """A program that repeats half as often as it ran explains half of the packets, and no more."""
    short = msgspec.structs.replace(program(), repeats=TIMES // 2)
    result = profile(whole(), short)
    counts = result.profile.events
    assert counts.received == 8 * TIMES
    assert 0 <= counts.lost <= counts.expected <= 8 * TIMES // 2
    assert counts.expected - counts.lost + counts.spurious == counts.received
    assert np.all(result.log.end_ns >= result.log.start_ns)
