"""Packets sorted by core, against the same done one packet after the other."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from framefit.core.events import Trace
from framefit.profiling.align.aligner import Aligner
from framefit.profiling.align.tracks import ReorderBuffer, concatenate_queues
from framefit.profiling.sequence import Sequence
from profiling_truth import Setting, Truth, simulate


@functools.cache
def truth() -> Truth:
    """A device of two units, and what it did."""
    return simulate(Setting(operations=9, inferences=6, units=2, kinds=3))


@functools.cache
def sequence() -> Sequence:
    """The operations that it was told to execute."""
    return Sequence.of(truth().program, truth().launches, truth().trace.kinds)


def strange(seed: int) -> Trace:
    """A trace with packets of unknown cores, kinds and operations, some late by one place."""
    random = np.random.default_rng(seed)
    trace, count = truth().trace, len(truth().trace)
    order = np.arange(count)
    for at in random.integers(0, count - 1, 9):
        order[[at, at + 1]] = order[[at + 1, at]]
    core, id_, operation = trace.core[order], trace.id[order], trace.operation[order]
    core[random.integers(0, count, 5)] = 77
    id_[random.integers(0, count, 5)] = random.choice([-1, 3, 99], 5)
    operation[random.integers(0, count, 5)] = random.choice([2, 500], 5)
    losses = random.integers(0, count + 1, 6)
    return replace(
        trace,
        time_ns=trace.time_ns[order],
        id=id_,
        type=trace.type[order],
        core=core,
        operation=operation,
        loss_after=losses,
    )


@given(seed=st.integers(0, 10_000), cut=st.integers(1, 108))
def test_every_packet_is_sorted(seed: int, cut: int) -> None:
    """Each packet is in its track's queue or foreign, marked where it is the track's first one after a loss."""
    trace = strange(seed)
    tracks = Aligner(sequence(), 3, trace.meta)._model.tracks
    reorder_buffer = ReorderBuffer(sequence().units, tracks, 3, trace.meta, np.zeros((2, 6), np.bool_))
    told = [np.zeros(0, np.int64)]
    late = []
    queues = None
    for part in (slice(0, cut), slice(cut, None)):
        inside = trace.loss_after < cut if part.stop else trace.loss_after >= cut
        piece = replace(
            trace,
            time_ns=trace.time_ns[part],
            id=trace.id[part],
            type=trace.type[part],
            core=trace.core[part],
            operation=trace.operation[part],
            loss_after=trace.loss_after[inside] - part.start,
        )
        some, out_of_order = reorder_buffer.add(piece)
        queues = some if queues is None else [concatenate_queues(a, b) for a, b in zip(queues, some, strict=True)]
        told.append(reorder_buffer.foreign)
        late.append(out_of_order)
    assert queues is not None
    queues = [concatenate_queues(a, b) for a, b in zip(queues, reorder_buffer.close(), strict=True)]

    foreign, expected = [], {int(core): [] for core in sequence().units.track_core}
    latest, marked, disorder = dict.fromkeys(expected, -1), dict.fromkeys(expected, False), []
    for at in range(len(trace)):
        core = int(trace.core[at])
        if at in trace.loss_after:
            marked = dict.fromkeys(expected, True)
        disorder.append(core in expected and bool(trace.time_ns[at] < latest[core]))
        if core not in expected:
            foreign.append(at)
            continue
        latest[core] = max(latest[core], int(trace.time_ns[at]))
        track = tracks[list(expected).index(core)]
        named, id_ = int(trace.operation[at]), int(trace.id[at])
        symbol = 2 * (3 + named if named >= 0 else id_) + int(trace.type[at])
        if 0 <= id_ < 3 and symbol < track.symbols and track.occurs_first[symbol + 1] > track.occurs_first[symbol]:
            expected[core].append((int(trace.time_ns[at] - trace.time_ns[0]), symbol, marked[core], at))
            marked[core] = False
        else:
            foreign.append(at)
    assert sorted(np.concatenate(told).tolist()) == foreign
    assert np.concatenate(late).tolist() == disorder
    for queue, rows in zip(queues, expected.values(), strict=True):
        columns = zip(
            *(column.tolist() for column in (queue.time, queue.symbol, queue.marked, queue.arrival)), strict=True
        )
        assert list(columns) == sorted(rows, key=lambda row: row[0])
