"""Packets are lost in the way, and to the number, that was asked for, and the truth is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import InputError
from framefit.core.events import EventType, TraceMeta
from framefit.core.program import Launches
from framefit.profiling.inject import drop_packets, launch_of_packets
from lossy_runs import played, program, segment, trace

TWO_UNITS = program(
    segment(
        "net",
        ("conv", "npu0", 4000),
        ("pad_pool", "npu1", 3000),
        ("conv", "npu0", 9000),
        ("reformat", "npu1", 5000),
        ("conv", "npu0", 2500),
    ),
    units=("npu0", "npu1"),
)
COMPLETE = played(TWO_UNITS, 60)
KINDS = ("random", "burst", "overflow", "start-only", "inference")


@pytest.mark.parametrize("kind", KINDS)
@given(rate=st.floats(0, 0.5), seed=st.integers(0, 5), burst=st.integers(1, 40))
@settings(max_examples=5)
def test_exactly_the_rate_is_lost_and_the_rest_is_left_as_it_was(kind: str, rate: float, seed: int, burst: int) -> None:
    """As many packets as the rate says are gone, and what is left are the packets that the mask names."""
    injected = drop_packets(COMPLETE, TWO_UNITS, None, kind=kind, rate=rate, burst=burst, seed=seed)
    lost = 10 * round(rate * 60) if kind == "inference" else round(rate * len(COMPLETE))
    assert injected.lost == lost == len(COMPLETE) - len(injected.trace)
    for name in ("time_ns", "id", "type", "core", "operation"):
        np.testing.assert_array_equal(getattr(injected.trace, name), getattr(COMPLETE, name)[injected.kept])


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_says_it_all(kind: str) -> None:
    """The same seed loses the same packets; another seed others, where chance has a say at all."""
    first, same, other = (
        drop_packets(COMPLETE, TWO_UNITS, None, kind=kind, rate=0.2, seed=seed).kept for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, same)
    assert kind == "overflow" or (first != other).any()


def test_bursts_are_as_long_as_asked_and_apart() -> None:
    """Packets are lost in runs of the burst's length, one of which may be shorter."""
    kept = drop_packets(COMPLETE, TWO_UNITS, None, kind="burst", rate=0.3, burst=7, seed=1).kept
    edges = np.flatnonzero(np.diff(np.concatenate([[True], kept, [True]]).astype(int)))
    runs = np.diff(edges)[::2]
    assert runs.sum() == 180
    assert sorted(runs)[1:] == [7] * 25
    assert min(runs) == 180 - 25 * 7


def test_only_starts_are_lost() -> None:
    """START-only loss leaves every END, and refuses to lose more STARTs than there are."""
    injected = drop_packets(COMPLETE, TWO_UNITS, None, kind="start-only", rate=0.4, seed=0)
    assert set(COMPLETE.type[~injected.kept]) == {EventType.START}
    with pytest.raises(InputError, match="only 300 are STARTs") as caught:
        drop_packets(COMPLETE, TWO_UNITS, None, kind="start-only", rate=0.6, seed=0)
    assert "0.5" in str(caught.value)


def test_overflow_loses_where_a_core_sends_faster_than_its_buffer_drains() -> None:
    """A quiet core keeps its packets while a busy one overflows, and the device tells where."""
    quiet = [(at * 100_000, "b", at % 2, 1) for at in range(20)]
    busy = [(burst * 200_000 + at * 10, "a", at % 2, 0) for burst in range(10) for at in range(100)]
    both = trace(sorted(quiet + busy), ("a", "b"))
    injected = drop_packets(both, TWO_UNITS, None, kind="overflow", rate=0.25, seed=0, buffer_events=16)
    assert set(both.core[~injected.kept]) == {0}
    told = injected.trace.loss_after
    before = np.flatnonzero(injected.kept)
    real = {
        int(
            np.count_nonzero(before < np.flatnonzero((both.core == 0) & injected.kept & (np.arange(len(both)) > at))[0])
        )
        if ((both.core == 0) & injected.kept & (np.arange(len(both)) > at)).any()
        else len(before)
        for at in np.flatnonzero(~injected.kept)
    }
    assert set(told.tolist()) == real
    assert injected.trace.meta.buffer_events == 16
    assert injected.trace.meta.lost_events == injected.lost
    assert injected.trace.meta.drain_rate_hz is not None


def test_other_losses_are_not_reported_but_those_reported_before_keep_their_place() -> None:
    """Only an overflow leaves markers; a marker of the input stays between the same packets."""
    marked = replace(COMPLETE, loss_after=np.array([0, 100, len(COMPLETE)], np.int64))
    injected = drop_packets(marked, TWO_UNITS, None, kind="random", rate=0.5, seed=0)
    assert injected.trace.loss_after.tolist() == [0, np.count_nonzero(injected.kept[:100]), len(injected.trace)]


def test_overflow_sees_through_a_counter_that_wraps() -> None:
    """The packets that overflow are the same with a short counter as with a long one."""
    wrapped = replace(COMPLETE, time_ns=COMPLETE.time_ns % (1 << 16), meta=TraceMeta(wrap_bits=16))
    plain, short = (
        drop_packets(one, TWO_UNITS, None, kind="overflow", rate=0.2, seed=0).kept for one in (COMPLETE, wrapped)
    )
    np.testing.assert_array_equal(plain, short)


def test_whole_launches_are_lost() -> None:
    """All packets of a launch go together, also where launches of two programs interleave on two units."""
    both = program(
        segment("a", ("conv", "npu0", 10), ("conv", "npu0", 10)),
        segment("b", ("conv", "npu1", 10)),
        units=("npu0", "npu1"),
    )
    order = np.array([0, 1, 1, 0], np.int32)
    launches = Launches(
        program=order, window=np.zeros(4, np.int64), frame=np.zeros(4, np.int64), submit_ns=np.zeros(4, np.int64)
    )
    packets = [(0, 0, 0), (1, 1, 0), (2, 1, 1), (3, 0, 1), (4, 0, 0), (5, 1, 0), (6, 0, 1), (7, 0, 0)]
    packets += [(8, 1, 1), (9, 0, 1), (10, 0, 0), (11, 0, 1)]
    run = trace([(time, "conv", type_, core) for time, core, type_ in packets], ("conv",))
    truth = [0, 1, 1, 0, 0, 2, 0, 3, 2, 3, 3, 3]
    assert launch_of_packets(run, both, launches).tolist() == truth
    kept = drop_packets(run, both, launches, kind="inference", rate=0.5, seed=0).kept
    assert len({(launch, bool(left)) for launch, left in zip(truth, kept, strict=True)}) == 4
    assert len({launch for launch, left in zip(truth, kept, strict=True) if not left}) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_trace_and_a_total_loss_are_no_problem(kind: str) -> None:
    """Nothing can be lost of nothing; of something, all of it."""
    empty = trace([], ("conv",))
    assert drop_packets(empty, TWO_UNITS, None, kind=kind, rate=0.4, seed=0).lost == 0
    if kind != "start-only":
        assert len(drop_packets(COMPLETE, TWO_UNITS, None, kind=kind, rate=1.0, seed=0).trace) == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "worst"}, "unknown kind of loss 'worst'"),
        ({"rate": 1.5}, "between 0 and 1, not 1.5"),
        ({"rate": float("nan")}, "between 0 and 1, not nan"),
        ({"burst": 0}, "not 0"),
        ({"buffer_events": 0}, "not 0"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(asked: dict[str, object], said: str) -> None:
    """One clear error names the value."""
    with pytest.raises(InputError, match=said):
        drop_packets(COMPLETE, TWO_UNITS, None, **({"kind": "random", "rate": 0.1, "seed": 0} | asked))
