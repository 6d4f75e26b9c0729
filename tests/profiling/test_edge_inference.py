"""Times of lost edges, against the closed form and the bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit.profiling.edge_inference import Precedence, Times, Window, find_gaps, infer_edges
from framefit.profiling.sequence import Sequence
from profiling_truth import Setting, simulate

HUGE = 1 << 60


def window_of(setting: Setting) -> tuple[Window, Precedence]:
    """All launches of a run, everything received."""
    truth = simulate(setting)
    sequence = Sequence.of(truth.program, truth.launches, truth.trace.kinds)
    precedence, dropped = Precedence.of(sequence)
    assert dropped == 0
    window = Window.of(
        np.zeros(setting.inferences, np.int64),
        np.diff(sequence.first),
        precedence.last,
        np.full(setting.units, -HUGE),
        np.full(setting.inferences, -float(HUGE)),
    )
    window.seen[:] = True
    window.time[:] = np.stack([truth.start_ns, truth.end_ns], axis=1)
    return window, precedence


def test_closed_form() -> None:
    """On one core lost edges lie at t_p + C_pj + Q_pj / Q_pq (T - C_pq), with variance Q_pj (Q_pq - Q_pj) / Q_pq."""
    window, precedence = window_of(Setting(operations=6, inferences=2, units=1, dependent_ratio=0.0))
    times = Times(np.arange(1.0, 7.0) * 9000, np.arange(1.0, 7.0) * 1e4, np.full(6, 300.0), np.full(6, 50.0))
    whole = window.time.copy()
    window.seen[2:5] = False
    deviation, *_ = infer_edges(window, precedence, times)
    steps = np.array([value for op in (2, 3, 4) for value in (times.gap_ns[op], times.duration_ns[op])] + [300.0])
    spread = np.array([value for op in (2, 3, 4) for value in (times.gap_var[op], times.duration_var[op])] + [50.0])
    c, q = np.cumsum(steps), np.cumsum(spread)
    total = whole[5, 0] - whole[1, 1]
    expected = whole[1, 1] + c[:-1] + q[:-1] / q[-1] * (total - c[-1])
    assert window.time[2:5].ravel() == pytest.approx(expected, abs=1.0)
    assert deviation[2:5].ravel() == pytest.approx(np.sqrt(q[:-1] * (q[-1] - q[:-1]) / q[-1]))


@given(seed=st.integers(0, 10_000), units=st.integers(1, 4), rate=st.floats(0.05, 0.9))
def test_bounds(seed: int, units: int, rate: float) -> None:
    """Filled-in times lie within the bounds that received ones set, and so do the true times."""
    names = tuple(f"npu{number}" for number in range(units))
    window, precedence = window_of(Setting(operations=9, inferences=4, units=units, exclusive=names[:2], seed=seed))
    true = window.time.copy()
    window.seen[:] = np.random.default_rng(seed).random(window.seen.shape) > rate
    window.time[~window.seen] = -7
    times = Times(np.full(9, 2e4), np.full(9, 1e7), np.full(9, 300.0), np.full(9, 1e4))
    deviation, low, high, run, before, after = infer_edges(window, precedence, times)
    lost = ~window.seen
    assert np.all((low <= true) & (true <= high) | window.seen)
    told = lost & (before | after)
    assert np.all((low <= window.time) & (window.time <= high) | ~told)
    assert np.all(deviation[told] > 0)
    assert np.all(run[lost] >= 1)
    assert np.array_equal(window.time[window.seen], true[window.seen])


def test_gaps() -> None:
    """What an operation waited is known where all that it waited for was received."""
    window, precedence = window_of(Setting(operations=8, inferences=3, units=2, gap_ns=300.0))
    gaps = find_gaps(window, precedence)
    assert np.isnan(gaps[0])  # nothing is known to have ended before the first operation
    assert np.nanmax(gaps) < 1500
    assert np.nanmin(gaps) > 50
