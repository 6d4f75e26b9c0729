"""Traces of long runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from framefit.core.events import Trace, TraceMeta
from framefit.runtime.log import Packets

PART = 1000


def _events() -> Callable[[], Trace]:
    """A device that makes so many packets between two calls, and reports a loss after the tenth of each."""
    count = 0

    def events() -> Trace:
        nonlocal count
        time = np.arange(count * PART, (count + 1) * PART, dtype=np.int64)
        count += 1
        return Trace(
            time_ns=time,
            id=(time % 7).astype(np.int32),
            type=(time % 2).astype(np.uint8),
            core=(time % 3).astype(np.int16),
            operation=-time,
            kinds=tuple("abcdefg"),
            loss_after=np.array([10]),
            meta=TraceMeta(lost_events=1),
        )

    return events


def _collected(parts: int) -> Trace:
    packets = Packets(_events())
    for _ in range(parts):
        packets.collect()
    return packets.trace()


def test_a_long_trace_lies_in_files_and_reads_the_same() -> None:
    """Every packet and every loss is where it was."""
    trace = _collected(150)
    assert np.array_equal(trace.time_ns, np.arange(150 * PART))
    assert np.array_equal(trace.id, trace.time_ns % 7)
    assert np.array_equal(trace.type, trace.time_ns % 2)
    assert np.array_equal(trace.core, trace.time_ns % 3)
    assert np.array_equal(trace.operation, -trace.time_ns)
    assert trace.loss_after.tolist() == [part * PART + 10 for part in range(150)]
    assert trace.meta.lost_events == 150
    assert trace.meta.overwritten_events == 0


def test_the_last_part_of_a_very_long_trace_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given up is counted, and what is left is whole."""
    monkeypatch.setattr("framefit.runtime.log._MOST_PACKETS", 100 * PART)
    trace = _collected(1003)
    assert len(trace) + trace.meta.overwritten_events == 1003 * PART
    assert 90 * PART < len(trace) < 110 * PART
    assert np.array_equal(trace.time_ns, np.arange(1003 * PART - len(trace), 1003 * PART))
    assert np.array_equal(trace.operation, -trace.time_ns)
    assert trace.meta.lost_events == len(trace.loss_after) == len(trace) // PART
