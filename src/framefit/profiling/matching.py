"""Packets compared with the program one by one, core by core, as a profiler by rule does it.

On one core operations follow each other, so the program is a row of expected packets: START and
END of the first operation, START and END of the second. Each packet is compared with the next one
that is expected. Where they, or one of the few after them, differ, the places further on are
tried, and the one is taken from which the packets ahead can be explained at the least cost: a gap
costs a little and a little more for each packet lost, a packet that is in nobody's program costs
much. Times are not looked at, but to put a core's packets in order.

This is sequence alignment with affine gaps (Gotoh, "An improved algorithm for matching biological
sequences", J. Mol. Biol. 162, 1982) cut down to a decision at each packet with limited look-ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace, unwrapped_ns
from framefit.profiling.rebuilt import Fate
from framefit.profiling.sequence import Sequence

__all__ = ["CoreRow", "Matched", "match_in_order", "rows_of_cores"]

Ints = npt.NDArray[np.int64]

LOOK_AHEAD = 16
"""Packets ahead that a place has to explain."""
_REACH_LEAST, _REACH_MOST = 64, 1024
"""Expected packets that one gap can hide: two inferences, within these limits."""
_COMPARED = 64
"""Packets by which two cores' inferences are held against each other."""


@dataclass(frozen=True)
class CoreRow:
    """What one core executes, in order; ``START`` and ``END`` of each operation is expected of it.

    Attributes:
        core: its number.
        operation: int64, positions in ``Sequence.operations``.
        launch: int64, ordinal of the launch of each; ``None``: the row is one inference, and repeats.
        length: operations; of a row that repeats with all its repetitions, ``None``: without end.
    """

    core: int
    operation: Ints
    launch: Ints | None
    length: int | None

    def launch_of(self, place: Ints) -> Ints:
        """Ordinal of the launch of operations by their places in the row."""
        return place // len(self.operation) if self.launch is None else self.launch[place]

    def operation_of(self, place: Ints) -> Ints:
        """Positions in ``Sequence.operations`` of operations by their places in the row."""
        return self.operation[place % len(self.operation) if self.launch is None else place]


@dataclass(frozen=True)
class Matched:
    """Where each packet belongs.

    Attributes:
        time_ns: int64, unwrapped.
        place: int64, place of the packet's operation in its core's row; -1: nowhere.
        fate: uint8, :class:`Fate`.
        out_of_order: bool, later packets of the core arrived before.
        rows: of the cores of which at least one packet was matched.
    """

    time_ns: Ints
    place: Ints
    fate: npt.NDArray[np.uint8]
    out_of_order: npt.NDArray[np.bool_]
    rows: tuple[CoreRow, ...]


def rows_of_cores(sequence: Sequence, selected_kinds: tuple[str, ...] | None) -> list[CoreRow]:
    """The operations of each core that send packets, in the order in which they are executed."""
    sends = sequence.recorded(selected_kinds)
    rows = []
    for core in sequence.cores:
        parts = [
            first + np.flatnonzero((sequence.core[first:end] == core) & sends[first:end])
            for first, end in zip(sequence.first[:-1], sequence.first[1:], strict=True)
        ]
        if sequence.launch_program is None:
            length = None if sequence.repeats is None else sequence.repeats * len(parts[0])
            row = CoreRow(int(core), parts[0], None, length)
        else:
            sizes = np.array([len(part) for part in parts])[sequence.launch_program]
            launched = [parts[number] for number in sequence.launch_program]
            operation = np.concatenate(launched) if launched else np.zeros(0, np.int64)
            row = CoreRow(int(core), operation, np.repeat(np.arange(len(sizes)), sizes), len(operation))
        if len(row.operation) and row.length != 0:
            rows.append(row)
    return rows


def match_in_order(trace: Trace, sequence: Sequence, look_ahead: int = LOOK_AHEAD) -> Matched:
    """Compare a trace with its program.

    Args:
        trace: as it came.
        sequence: made with the trace's kinds.
        look_ahead: packets that a place has to explain; 0: the nearest place is taken (greedy).
    """
    size = len(trace)
    time_ns = unwrapped_ns(trace.time_ns, trace.meta)
    place = np.full(size, -1, np.int64)
    fate = np.full(size, Fate.SPURIOUS, np.uint8)
    late = np.zeros(size, np.bool_)
    rows = []
    recorded = sequence.recorded(trace.meta.selected_kinds)
    for row in rows_of_cores(sequence, trace.meta.selected_kinds):
        mine = np.flatnonzero(trace.core == row.core)
        if not len(mine):
            continue
        late[mine[1:]] = np.maximum.accumulate(time_ns[mine])[:-1] > time_ns[mine[1:]]
        mine = mine[np.argsort(time_ns[mine], kind="stable")]
        same = _repeated(trace, time_ns, mine)
        coinciding = sequence.coinciding(row.core, recorded, trace.meta.resolution_ns)
        if np.any(same & ~_may_coincide(trace, coinciding, mine)):  # it sends duplicates, so these are some, too
            fate[mine[same]] = Fate.DUPLICATED
            mine = mine[~same]
        found = _followed(trace, sequence, row, mine, look_ahead)
        fate[mine[found >= 0]] = Fate.MATCHED
        place[mine] = np.where(found >= 0, found // 2, -1)
        if np.any(found >= 0):
            rows.append(row)
    rows = _same_inference(rows, sequence, trace, time_ns, place)
    return Matched(time_ns, place, fate, late, tuple(rows))


def _repeated(trace: Trace, time_ns: Ints, mine: Ints) -> npt.NDArray[np.bool_]:
    """Packets that say again what the one before them on the core said."""
    same = np.ones(max(len(mine) - 1, 0), np.bool_)
    for column in (time_ns, trace.id, trace.type, trace.operation):
        same &= column[mine[1:]] == column[mine[:-1]]
    return np.concatenate([[False], same])[: len(mine)]


def _may_coincide(trace: Trace, coinciding: npt.NDArray[np.bool_], mine: Ints) -> npt.NDArray[np.bool_]:
    """Packets that another operation may send at the same time; see :meth:`Sequence.coinciding`."""
    symbol = 2 * trace.id[mine].astype(np.int64) + trace.type[mine]
    nameless = (trace.operation[mine] < 0) & (symbol >= 0) & (symbol < len(coinciding))
    return np.asarray(nameless & coinciding[np.where(nameless, symbol, 0)])


def _followed(trace: Trace, sequence: Sequence, row: CoreRow, mine: Ints, look_ahead: int) -> Ints:
    """For each packet of a core the number of the expected packet that it is, -1 for none."""
    from framefit.profiling.following import follow

    if np.all(trace.operation[mine] >= 0):
        names = np.array([sequence.operations[at].index for at in row.operation], np.int64)
        said = trace.operation[mine]
    else:
        names = sequence.kind[row.operation].astype(np.int64)
        said = trace.id[mine].astype(np.int64)
    expected = np.stack([2 * names, 2 * names + 1], axis=1).ravel()
    symbols = np.where((said >= 0) & (trace.type[mine] <= 1), 2 * said + trace.type[mine], -1)
    symbols[~np.isin(symbols, expected)] = -1
    found = np.full(len(mine), -1, np.int64)
    known = symbols >= 0
    cyclic = row.launch is None
    found[known] = follow(
        symbols[known],
        expected,
        np.iinfo(np.int64).max // 4 if row.length is None else 2 * row.length,
        min(max(2 * len(expected), _REACH_LEAST), _REACH_MOST) if cyclic else _REACH_MOST,
        look_ahead,
        len(expected) if cyclic or trace.meta.overwritten_events else 0,
    )
    return found


def _same_inference(rows: list[CoreRow], sequence: Sequence, trace: Trace, time_ns: Ints, place: Ints) -> list[CoreRow]:
    """Number inferences alike on all cores, where a trace of a repeating program begins in the middle of one.

    Operations that are seen at the same time on two cores are taken to be as near to each other
    in the program's order as they can be, in the median of a core's first packets.
    """
    if len(rows) < 2 or sequence.launch_program is not None:
        return rows
    count = int(sequence.first[1])
    mine = [np.flatnonzero((trace.core == row.core) & (place >= 0)) for row in rows]
    mine = [packets[np.argsort(time_ns[packets], kind="stable")] for packets in mine]
    times = [time_ns[packets] for packets in mine]
    orders = [
        row.launch_of(place[packets]) * count + row.operation_of(place[packets])
        for row, packets in zip(rows, mine, strict=True)
    ]
    first = min(range(len(rows)), key=lambda core: int(times[core][0]))
    shift = []
    for time, order in zip(times, orders, strict=True):
        within = np.searchsorted(time, times[first][-1], "right")  # where the first core has something to compare
        some = slice(0, min(max(within, 1), _COMPARED))
        beside = orders[first][_nearest(times[first], time[some])]
        shift.append(round(float(np.median(beside - order[some])) / count))
    for row, packets, by in zip(rows, mine, shift, strict=True):
        place[packets] += (by - min(shift)) * len(row.operation)
    return rows


def _nearest(times: Ints, wanted: Ints) -> Ints:
    """Positions of the nearest of ascending times, the earlier of two alike."""
    after = np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1))
    before = wanted - times[after - 1] <= times[np.minimum(after, len(times) - 1)] - wanted
    return np.asarray(np.where(before, after - 1, np.minimum(after, len(times) - 1)))
