"""Who waits for whom: each predecessor once, and only those that nothing else implies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.profiling.edge_inference import EARLIER, InferredEdges, Precedence, Times, Window, infer_edges
from framefit.profiling.sequence import Sequence
from profiling_truth import Setting, simulate

HUGE = 1 << 60


def sequence_of(setting: Setting, after: list[list[int]]) -> Sequence:
    """The program of a setting, in which each operation comes after those that are listed for it."""
    truth = simulate(setting)
    sequence = Sequence.of(truth.program, truth.launches, truth.trace.kinds)
    flat = np.array([one for ones in after for one in ones], np.int64)
    counts = [len(ones) for ones in after]
    return replace(sequence, after_first=np.cumsum([0, *counts], dtype=np.int64), after=flat)


def filled(setting: Setting, after: list[list[int]], units: int) -> tuple[Window, InferredEdges]:
    """Two launches of a program, of which but the first operation and the last one was lost."""
    truth, sequence = simulate(setting), sequence_of(setting, after)
    precedence, dropped = Precedence.of(sequence)
    assert dropped == 0
    count, size = setting.inferences, setting.operations
    window = Window.of(
        np.zeros(count, np.int64),
        np.diff(sequence.first),
        precedence.last,
        np.full(units, -HUGE),
        np.full(count, -float(HUGE)),
    )
    window.seen[[0, -1]] = True
    window.time[:] = np.stack([truth.start_ns, truth.end_ns], axis=1)
    window.time[~window.seen] = 0
    times = Times(np.full(size, 2e4), np.full(size, 4e7), np.full(size, 300.0), np.full(size, 1e4))
    return window, infer_edges(window, precedence, times)


@pytest.mark.parametrize("named", ["previous", "twice", "all"])
@pytest.mark.parametrize("units", [1, 3])
def test_what_order_implies_moves_nothing(units: int, named: str) -> None:
    """Naming predecessors that the units' order implies anyway changes no time and no deviation."""
    names = tuple(f"npu{number}" for number in range(units))
    setting = Setting(operations=9, inferences=2, units=units, exclusive=names, dependent_ratio=0.0)
    after = {
        "previous": [[op - 1] if op else [] for op in range(9)],
        "twice": [[op - 1, op - 1] if op else [] for op in range(9)],
        "all": [list(range(op)) for op in range(9)],
    }[named]
    plain, expected = filled(setting, [[]] * 9, units)
    window, edges = filled(setting, after, units)
    assert np.array_equal(window.time, plain.time)
    assert edges.deviation == pytest.approx(expected.deviation, rel=1e-12)


def test_means_add_up_along_exclusive_units() -> None:
    """Where only one unit runs at a time, operations follow on each other by what they are expected to take."""
    setting = Setting(operations=9, inferences=2, units=3, exclusive=("npu0", "npu1", "npu2"), dependent_ratio=0.0)
    window, _ = filled(setting, [[]] * 9, 3)
    starts = np.diff(window.time[1:9, 0])  # of the first launch
    assert np.ptp(starts) <= 2  # each gets the same share of what is left over: all are expected to take as long


@given(data=st.data(), units=st.integers(1, 4), exclusive=st.integers(0, 4))
def test_same_ancestors(data: st.DataObject, units: int, exclusive: int) -> None:
    """What is left implies what was sequence_of, and nothing that is left is implied by the rest."""
    names = tuple(f"npu{number}" for number in range(min(exclusive, units)))
    setting = Setting(operations=12, inferences=1, units=units, exclusive=names, dependent_ratio=0.0)
    after = [data.draw(st.lists(st.integers(0, op - 1), max_size=4)) if op else [] for op in range(12)]
    sequence = sequence_of(setting, after)
    precedence, _ = Precedence.of(sequence)
    core = precedence.track
    ancestors: list[set[int]] = []
    for op in range(12):
        direct = [int(one) for one in precedence.before[op] if one >= 0]
        direct += precedence.needs[precedence.needs_first[op] : precedence.needs_first[op + 1]].tolist()
        assert len(set(direct)) == len(direct)
        behind = set().union(*(ancestors[one] for one in direct))
        assert not behind & set(direct)
        ancestors.append(behind | set(direct))
        wanted = {one for one in range(op) if sequence.exclusive[core[op], core[one]]} | set(after[op])
        assert ancestors[op] == wanted.union(*(ancestors[one] for one in wanted))
        # What ended in earlier launches, on a core that excludes this one, is waited for here or by an ancestor.
        waits = {c for one in ancestors[op] | {op} for c in range(units) if precedence.before[one, c] == EARLIER}
        there = {int(core[one]) for one in ancestors[op]}
        assert {c for c in range(units) if sequence.exclusive[core[op], c]} <= waits | there
