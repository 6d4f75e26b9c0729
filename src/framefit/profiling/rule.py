"""Places lost events by rule, at fixed offsets from the events around them.

The rules (specification of the profiler, "Compensation by rule"):

1. A lost START is put at the event that follows it, usually its END, less t1.
2. A lost END is put at the start of the overlap, where an operation on a unit that excludes this
   one starts before the event that follows; else at the event that follows, less t2.
3. Of two lost in a row (a START and an END), or more, each is put at the first event received after
   the gap, less t3 x index; the index counts back from that event.

"The event that follows" is the next one that the program expects on the same track, because only one
track's operations have an order among them. Rules never put an event before the one that was
received before it. Where a track has nothing more, the trace's last event is used instead.

The interval of an inferred edge spans the events received before and after it: it is certain, if
the matching is, and wide.

Packets are compared with the program one by one, track by track. On one track operations follow each other, so
the program is a sequence of expected packets: START and END of the first operation, START and END of the second.
Each packet is compared with the next expected one. Where they, or one of the few after them, differ, the places
further on are tried, and the one is taken from which the packets ahead can be explained at the least cost: a gap
costs a little and a little more for each packet lost, a spurious packet costs much. Times only put the packets of
a track in order.

This is sequence alignment with affine gaps (Gotoh, "An improved algorithm for matching biological
sequences", J. Mol. Biol. 162, 1982) cut down to a decision at each packet with limited look-ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import Trace, unwrapped_ns
from framefit.core.profile import How, OperationLog
from framefit.core.program import RuleOffsets
from framefit.profiling.sequence import PacketClass, Reconstruction, Sequence

Ints = npt.NDArray[np.int64]
LOOK_AHEAD = 16
"""Packets ahead that a place has to explain."""
_REACH_LEAST, _REACH_MOST = 64, 1024
"""Expected packets that one gap can hide: two inferences, within these limits."""
_COMPARED = 64
"""Packets by which the inferences of two tracks are compared."""


@dataclass(frozen=True)
class TrackSequence:
    """What one track holds, in order; START and END of each operation are expected of it.

    Attributes:
        track: its number.
        operation: int64, positions in ``Sequence.operations``.
        launch: int64, ordinal of the launch of each; ``None`` if the sequence is one inference, and repeats.
        length: number of operations, with all repetitions; ``None`` if it repeats without end.
    """

    track: int
    operation: Ints
    launch: Ints | None
    length: int | None

    def launch_of(self, place: Ints) -> Ints:
        """Return ordinals of launches by places of operations."""
        return place // len(self.operation) if self.launch is None else self.launch[place]

    def operation_of(self, place: Ints) -> Ints:
        """Return positions in ``Sequence.operations`` by places of operations."""
        return self.operation[place % len(self.operation) if self.launch is None else place]


@dataclass(frozen=True)
class MatchedTrace:
    """A trace whose packets are matched with the program.

    Attributes:
        time_ns: int64, unwrapped.
        track: int64, of each packet; negative: none.
        place: int64, place of the packet's operation in the sequence of its track; -1: none.
        packet_class: uint8, :class:`PacketClass`.
        out_of_order: bool, whether later packets of the core arrived before.
        rows: sequences of the tracks of which at least one packet was matched.
    """

    time_ns: Ints
    track: Ints
    place: Ints
    packet_class: npt.NDArray[np.uint8]
    out_of_order: npt.NDArray[np.bool_]
    rows: tuple[TrackSequence, ...]


def track_sequences(sequence: Sequence, selected_kinds: tuple[str, ...] | None) -> list[TrackSequence]:
    """Return the operations of each track that send packets, in order of execution."""
    sends = sequence.recorded(selected_kinds)
    rows = []
    for track in range(sequence.tracks):
        parts = [
            first + np.flatnonzero((sequence.track[first:end] == track) & sends[first:end])
            for first, end in zip(sequence.first[:-1], sequence.first[1:], strict=True)
        ]
        if sequence.launch_program is None:
            length = None if sequence.repeats is None else sequence.repeats * len(parts[0])
            row = TrackSequence(track, parts[0], None, length)
        else:
            sizes = np.array([len(part) for part in parts])[sequence.launch_program]
            launched = [parts[number] for number in sequence.launch_program]
            operation = np.concatenate(launched) if launched else np.zeros(0, np.int64)
            row = TrackSequence(track, operation, np.repeat(np.arange(len(sizes)), sizes), len(operation))
        if len(row.operation) and row.length != 0:
            rows.append(row)
    return rows


def match_in_order(trace: Trace, sequence: Sequence, look_ahead: int = LOOK_AHEAD) -> MatchedTrace:
    """Match packets with the program by their order.

    ``sequence`` must be made with the trace's kinds. ``look_ahead`` is the number of packets that a place has to
    explain; with 0 the nearest place is taken (greedy).
    """
    size = len(trace)
    time_ns = unwrapped_ns(trace.time_ns, trace.meta)
    place = np.full(size, -1, np.int64)
    packet_class = np.full(size, PacketClass.SPURIOUS, np.uint8)
    late = np.zeros(size, np.bool_)
    rows = []
    recorded = sequence.recorded(trace.meta.selected_kinds)
    track = sequence.units.tracks_of(trace)
    for core in np.unique(trace.core):
        packets = np.flatnonzero(trace.core == core)
        late[packets[1:]] = np.maximum.accumulate(time_ns[packets])[:-1] > time_ns[packets[1:]]
    for row in track_sequences(sequence, trace.meta.selected_kinds):
        packets = np.flatnonzero(track == row.track)
        if not len(packets):
            continue
        packets = packets[np.argsort(time_ns[packets], kind="stable")]
        same = _repeated_packets(trace, time_ns, packets)
        coinciding = sequence.coinciding(row.track, recorded, trace.meta.resolution_ns)
        if np.any(same & ~_may_coincide(trace, coinciding, packets)):  # it sends duplicates, so these are some, too
            packet_class[packets[same]] = PacketClass.DUPLICATED
            packets = packets[~same]
        expected = _match_track(trace, sequence, row, packets, look_ahead)
        packet_class[packets[expected >= 0]] = PacketClass.MATCHED
        place[packets] = np.where(expected >= 0, expected // 2, -1)
        if np.any(expected >= 0):
            rows.append(row)
    rows = _align_inferences(rows, sequence, track, time_ns, place)
    return MatchedTrace(time_ns, track, place, packet_class, late, tuple(rows))


def _repeated_packets(trace: Trace, time_ns: Ints, packets: Ints) -> npt.NDArray[np.bool_]:
    """Mark packets that equal the previous one of the track."""
    same = np.ones(max(len(packets) - 1, 0), np.bool_)
    for column in (time_ns, trace.id, trace.type, trace.operation):
        same &= column[packets[1:]] == column[packets[:-1]]
    return np.concatenate([[False], same])[: len(packets)]


def _may_coincide(trace: Trace, coinciding: npt.NDArray[np.bool_], packets: Ints) -> npt.NDArray[np.bool_]:
    """Mark packets that another operation may send at the same time; see :meth:`Sequence.coinciding`."""
    symbol = 2 * trace.id[packets].astype(np.int64) + trace.type[packets]
    nameless = (trace.operation[packets] < 0) & (symbol >= 0) & (symbol < len(coinciding))
    return np.asarray(nameless & coinciding[np.where(nameless, symbol, 0)])


def _match_track(trace: Trace, sequence: Sequence, row: TrackSequence, packets: Ints, look_ahead: int) -> Ints:
    """Return the number of the expected packet for each packet of a track, -1 for none."""
    if np.all(trace.operation[packets] >= 0):
        names = np.array([sequence.operations[at].index for at in row.operation], np.int64)
        stated = trace.operation[packets]
    else:
        names = sequence.kind[row.operation].astype(np.int64)
        stated = trace.id[packets].astype(np.int64)
    expected = np.stack([2 * names, 2 * names + 1], axis=1).ravel()
    symbols = np.where((stated >= 0) & (trace.type[packets] <= 1), 2 * stated + trace.type[packets], -1)
    symbols[~np.isin(symbols, expected)] = -1
    cyclic, begin = row.launch is None, len(expected) - len(packets)
    if not cyclic and begin > 0 and trace.meta.overwritten_events and np.array_equal(symbols, expected[begin:]):
        return np.arange(begin, len(expected))  # the latest packets, none of them lost
    matched = np.full(len(packets), -1, np.int64)
    known = symbols >= 0
    matched[known] = match_greedily(
        symbols[known],
        expected,
        np.iinfo(np.int64).max // 4 if row.length is None else 2 * row.length,
        min(max(2 * len(expected), _REACH_LEAST), _REACH_MOST) if cyclic else _REACH_MOST,
        look_ahead,
        len(expected) if cyclic or trace.meta.overwritten_events else 0,
    )
    return matched


def _align_inferences(
    rows: list[TrackSequence], sequence: Sequence, track: Ints, time_ns: Ints, place: Ints
) -> list[TrackSequence]:
    """Number inferences alike on all tracks, where a trace of a repeating program begins in the middle of one.

    Operations that are seen at the same time on two tracks are taken to be as near to each other
    in the program's order as they can be, in the median of a track's first packets.
    """
    if len(rows) < 2 or sequence.launch_program is not None:
        return rows
    count = int(sequence.first[1])
    packets_of = [np.flatnonzero((track == row.track) & (place >= 0)) for row in rows]
    packets_of = [packets[np.argsort(time_ns[packets], kind="stable")] for packets in packets_of]
    times = [time_ns[packets] for packets in packets_of]
    orders = [
        row.launch_of(place[packets]) * count + row.operation_of(place[packets])
        for row, packets in zip(rows, packets_of, strict=True)
    ]
    first = min(range(len(rows)), key=lambda at: int(times[at][0]))
    shift = []
    for time, order in zip(times, orders, strict=True):
        within = np.searchsorted(time, times[first][-1], "right")  # where the first track has something to compare
        some = slice(0, min(max(within, 1), _COMPARED))
        beside = orders[first][_nearest(times[first], time[some])]
        shift.append(round(float(np.median(beside - order[some])) / count))
    for row, packets, by in zip(rows, packets_of, shift, strict=True):
        place[packets] += (by - min(shift)) * len(row.operation)
    return rows


def _nearest(times: Ints, wanted: Ints) -> Ints:
    """Return positions of the nearest of ascending times, and the earlier one if two are equally near."""
    after = np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1))
    before = wanted - times[after - 1] <= times[np.minimum(after, len(times) - 1)] - wanted
    return np.asarray(np.where(before, after - 1, np.minimum(after, len(times) - 1)))


_GAP_COST = 4
"""Cost of a gap beside the packets lost in it, one each: three short gaps are dearer than one of ten."""
_SPURIOUS_COST = 16
"""Cost of a spurious packet: devices lose packets often, and make them up hardly ever."""
_AT_SIGHT = 3
"""Packets that have to equal the expected ones for no other place to be tried."""
_MOST_SPURIOUS = 2
"""Packets in a row that are tried as spurious."""
_MOST_UNDONE = 3
"""Packets already placed that are tried as spurious after all."""
_UNDO_COST = 16
"""Cost of each of these: a place ahead of the truth costs the rest of an inference, if it is kept."""
_BEGIN_FACTOR = 8
"""Factor of the look-ahead that decides where in the program a trace begins: a mistake there shifts all of it."""


@njit(cache=True)
def _nearest_in_time(symbol: Any, expected: Any, place: Any, end: Any) -> Any:
    """Return the first place from ``place`` on, before ``end``, where the symbol is expected; -1: none."""
    size = len(expected)
    at = place % size
    for here in range(place, end):
        if expected[at] == symbol:
            return here
        at += 1
        if at == size:
            at = 0
    return -1


@njit(cache=True)
def _cost(symbols: Any, first: Any, last: Any, expected: Any, place: Any, limit: Any, reach: Any, bound: Any) -> Any:
    """Cost of explaining packets ``first`` to ``last`` - 1 from ``place`` on; stops at ``bound``."""
    cost = 0
    for packet in range(first, last):
        here = _nearest_in_time(symbols[packet], expected, place, min(place + reach, limit))
        skipped = here - place
        if (
            here >= 0 and _GAP_COST + skipped > _SPURIOUS_COST and packet + 1 < last
        ):  # spurious, if the next one fits here
            fits = _nearest_in_time(
                symbols[packet + 1], expected, place, min(place + _SPURIOUS_COST - _GAP_COST, limit)
            )
            if fits >= 0 and fits - place < skipped // 2:
                here = -1
        if here < 0:
            cost += _SPURIOUS_COST
        else:
            if skipped > 0:
                cost += _GAP_COST + skipped
            place = here + 1
        if cost >= bound:
            break
    return cost


@njit(cache=True)
def _best_place(
    symbols: Any,
    packet: Any,
    last: Any,
    expected: Any,
    place: Any,
    limit: Any,
    span: Any,
    reach: Any,
    began: Any,
    paid: Any,
    bound: Any,
) -> Any:
    """Find the least cost below ``bound`` of placing ``packet`` within ``span`` from ``place``, and where; -1: none."""
    best_place = -1
    here = place
    while True:
        here = _nearest_in_time(symbols[packet], expected, here, min(place + span, limit))
        if here < 0:
            break
        cost = paid
        if here > place:
            cost += _GAP_COST + (here - place if began else 0)
        if cost >= bound and began:
            break
        if cost < bound:
            cost += _cost(symbols, packet + 1, last, expected, here + 1, limit, reach, bound - cost)
        if cost < bound:
            bound, best_place = cost, here
        here += 1
    return bound, best_place


@njit(cache=True)
def _matched_before(matched: Any, packet: Any) -> Any:
    """Return the place of the latest matched packet before ``packet``; -1 if there is none."""
    for earlier in range(packet - 1, -1, -1):
        if matched[earlier] >= 0:
            return matched[earlier]
    return -1


@njit(cache=True)
def _agrees(symbols: Any, packet: Any, expected: Any, place: Any, limit: Any) -> Any:
    """Whether this and the next packets are exactly those that are expected."""
    size = len(expected)
    for step in range(min(_AT_SIGHT, len(symbols) - packet)):
        if place + step >= limit or expected[(place + step) % size] != symbols[packet + step]:
            return False
    return True


@njit(cache=True)
def match_greedily(symbols: Any, expected: Any, limit: Any, reach: Any, look_ahead: Any, begins_within: Any) -> Any:
    """Match the packets of one track with its expected packets, packet by packet with limited look-ahead.

    Args:
        symbols: int64, packets of one track in order of time.
        expected: int64, the expected packets, which repeat up to ``limit``.
        limit: number of expected packets in all.
        reach: number of expected packets that one gap can hide.
        look_ahead: packets that a place has to explain; 0: the nearest place is taken.
        begins_within: expected packets that may lie before the trace began, which costs no more
            than a gap of no length.

    Returns:
        int64, number of the expected packet for each symbol, -1 for none, ascending otherwise.
    """
    matched = np.full(len(symbols), -1, np.int64)
    place, packet = 0, 0
    began = begins_within <= 0
    while packet < len(symbols):
        if began and _agrees(symbols, packet, expected, place, limit):
            matched[packet] = place
            place, packet = place + 1, packet + 1
            continue
        span = reach if began else max(begins_within, reach)
        if look_ahead == 0:
            here = _nearest_in_time(symbols[packet], expected, place, min(place + span, limit))
            if here >= 0:
                matched[packet] = here
                place = here + 1
            began = True
            packet += 1
            continue
        last = min(packet + look_ahead * (1 if began else _BEGIN_FACTOR), len(symbols))
        best, best_place, best_dropped, best_undone = _SPURIOUS_COST * (last - packet) + 1, -1, 0, 0
        for dropped in range(min(_MOST_SPURIOUS + 1, last - packet)):
            paid = dropped * _SPURIOUS_COST
            best, here = _best_place(
                symbols, packet + dropped, last, expected, place, limit, span, reach, began, paid, best
            )
            if here >= 0:
                best_place, best_dropped = here, dropped
        undone, latest = 0, packet - 1
        while undone < _MOST_UNDONE and latest >= 0:  # ahead of the truth: that would cost a whole inference
            if matched[latest] >= 0:
                undone += 1
                back = _matched_before(matched, latest) + 1
                paid = undone * _UNDO_COST
                best, here = _best_place(
                    symbols, packet, last, expected, back, limit, place - back, reach, 1, paid, best
                )
                if here >= 0:
                    best_place, best_dropped, best_undone = here, 0, undone
            latest -= 1
        if best_place < 0:
            packet += 1
            continue
        latest = packet - 1
        while best_undone > 0:
            best_undone -= matched[latest] >= 0
            matched[latest] = -1
            latest -= 1
        began = True
        packet += best_dropped
        matched[packet] = best_place
        place, packet = best_place + 1, packet + 1
    return matched


def reconstruct(trace: Trace, sequence: Sequence, offsets: Mapping[str, RuleOffsets]) -> Reconstruction:
    """Match the packets in order, and place lost ones by rule; kinds without ``offsets`` have 10 ns each."""
    return place_lost(trace, sequence, offsets, match_in_order(trace, sequence))


@dataclass(frozen=True)
class _Edges:
    """Expected packets of one track that the trace covers, START and END of each operation in turn.

    Attributes:
        row: the sequence of the track.
        place: of each operation in that sequence.
        event: position of the packet in the trace, -1: lost.
        time_ns, how, low_ns, high_ns: as in :class:`OperationLog`.
    """

    row: TrackSequence
    place: Ints
    event: Ints
    time_ns: Ints
    how: npt.NDArray[np.uint8]
    low_ns: Ints
    high_ns: Ints


def place_lost(
    trace: Trace, sequence: Sequence, offsets: Mapping[str, RuleOffsets], matched: MatchedTrace
) -> Reconstruction:
    """Place the lost events of a matched trace by rule; kinds without ``offsets`` have 10 ns each."""
    each = [offsets.get(kind, RuleOffsets()) for kind in sequence.kinds]
    t1, t2, t3 = (np.array([getattr(offset, name) for offset in each], np.int64) for name in ("t1", "t2", "t3"))
    covered = _covered_places(sequence, matched)
    edges = [_track_edges(trace, matched, row, places) for row, places in covered]
    for track in edges:
        kind = np.repeat(sequence.kind[track.row.operation_of(track.place)], 2)
        _place_single(track, t1[kind], t2[kind])
        _place_runs(track, t3[kind])
    for track in edges:
        _place_at_overlap(
            track, [rival for rival in edges if rival is not track and _are_exclusive(sequence, track, rival)]
        )
    silent = set(np.unique(sequence.track).tolist()) - {row.track for row, _ in covered}
    warnings = [
        f"core {sequence.units.track_core[track]} sent no packet that the program expects of "
        f"{_units_of_track(sequence, track)}: its operations are not in the log"
        for track in sorted(silent)
        if len(trace)
    ]
    return Reconstruction(
        log=_make_log(edges, sequence),
        packet_class=matched.packet_class,
        out_of_order=matched.out_of_order,
        calibrated=False,
        warnings=tuple(warnings),
    )


def _covered_places(sequence: Sequence, matched: MatchedTrace) -> list[tuple[TrackSequence, Ints]]:
    """Return each track's operations from the first to the last with a packet, in the program's order."""
    if not matched.rows:
        return []
    count = len(sequence.operations)
    seen = [np.unique(matched.place[(matched.track == row.track) & (matched.place >= 0)]) for row in matched.rows]
    order = [
        row.launch_of(at) * count + row.operation_of(at)
        for row, places in zip(matched.rows, seen, strict=True)
        for at in (places[[0, -1]],)
    ]
    first, last = min(int(ends[0]) for ends in order), max(int(ends[1]) for ends in order)
    covered = []
    for row in matched.rows:
        if row.launch is None:
            least, most = (at // count * len(row.operation) for at in (first, last))
            places = np.arange(least, most + len(row.operation))
        else:
            places = np.arange(
                np.searchsorted(row.launch, first // count), np.searchsorted(row.launch, last // count, "right")
            )
        key = row.launch_of(places) * count + row.operation_of(places)
        covered.append((row, places[(key >= first) & (key <= last)]))
    return covered


def _track_edges(trace: Trace, matched: MatchedTrace, row: TrackSequence, place: Ints) -> _Edges:
    """Return the edges of a track with the measured times, and bounds for the lost ones."""
    size = 2 * len(place)
    packets = np.flatnonzero((matched.track == row.track) & (matched.place >= 0))
    at = 2 * (matched.place[packets] - place[0]) + trace.type[packets]
    event = np.full(size, -1, np.int64)
    event[at] = packets
    received = event >= 0
    time_ns = np.where(received, matched.time_ns[event], 0)
    before = np.maximum.accumulate(np.where(received, np.arange(size), -1))
    after = np.minimum.accumulate(np.where(received, np.arange(size), size)[::-1])[::-1]
    known = matched.time_ns[matched.place >= 0]
    low = np.where(before >= 0, time_ns[before], known.min())
    high = np.where(after < size, time_ns[np.minimum(after, size - 1)], known.max())
    return _Edges(row, place, event, time_ns, np.full(size, How.MEASURED, np.uint8), low, np.maximum(low, high))


def _units_of_track(sequence: Sequence, track: int) -> str:
    """Return the names of a track's units that run operations."""
    names = dict.fromkeys(sequence.operations[at].unit for at in np.flatnonzero(sequence.track == track))
    return " and ".join(names)


def _find_gaps(track: _Edges) -> tuple[Ints, Ints]:
    """Return the first lost edge of each gap, and the first received one after it."""
    lost = np.concatenate([[False], track.event < 0, [False]]).astype(np.int8)
    steps = np.diff(lost)
    return np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)


def _place_single(track: _Edges, t1: Ints, t2: Ints) -> None:
    """Apply rules 1 and 2, without the overlap."""
    first, after = _find_gaps(track)
    edges = first[after - first == 1]
    start = edges % 2 == 0
    track.time_ns[edges] = np.maximum(track.high_ns[edges] - np.where(start, t1[edges], t2[edges]), track.low_ns[edges])
    track.how[edges] = np.where(start, How.T1, How.T2)


def _place_runs(track: _Edges, t3: Ints) -> None:
    """Apply rule 3; where offsets differ from kind to kind, an edge is never later than the next one."""
    first, after = _find_gaps(track)
    several = after - first > 1
    first, after = first[several], after[several]
    size = after - first
    lost = np.repeat(after, size) - _countdown(size)
    back = track.high_ns[lost] - t3[lost] * _countdown(size)
    track.time_ns[lost], track.how[lost] = back, How.T3
    disordered = np.unique(np.searchsorted(after, lost[:-1][(np.diff(back) < 0) & (np.diff(lost) == 1)], "right"))
    for gap in disordered.tolist():
        here = slice(first[gap], after[gap])
        track.time_ns[here] = np.minimum.accumulate(track.time_ns[here][::-1])[::-1]
    track.time_ns[lost] = np.maximum(track.time_ns[lost], track.low_ns[lost])


def _countdown(size: Ints) -> Ints:
    """Return indices that count down to 1 at the end of each gap."""
    return np.repeat(np.cumsum(size), size) - np.arange(int(size.sum()))


def _are_exclusive(sequence: Sequence, first: _Edges, second: _Edges) -> bool:
    return bool(sequence.exclusive[first.row.track, second.row.track])


def _place_at_overlap(track: _Edges, exclusive: list[_Edges]) -> None:
    """Apply rule 2: an operation of which only the END was lost ends where an exclusive one starts.

    STARTs that count as seen are those received, and those of which the END was received.
    """
    at = np.flatnonzero(track.how == How.T2)
    at = at[track.event[at - 1] >= 0]  # the END of an operation that was running when the trace began has no START
    started, until = track.time_ns[at - 1], track.high_ns[at]
    for rival in exclusive:
        starts = np.arange(0, len(rival.event), 2)
        seen = (rival.event[starts] >= 0) | (rival.how[starts] == How.T1)
        times = np.sort(rival.time_ns[starts[seen]])
        place = np.searchsorted(times, started, "right")
        begins = times[np.minimum(place, len(times) - 1)] if len(times) else until
        overlaps = (place < len(times)) & (begins < until)
        track.time_ns[at[overlaps]] = begins[overlaps]
        track.how[at[overlaps]] = How.OVERLAP
        until = np.where(overlaps, begins, until)


def _make_log(edges: list[_Edges], sequence: Sequence) -> OperationLog:
    """Make the log of all tracks' operations in the program's order."""

    def joined(parts: list[Ints]) -> Ints:
        return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)

    inference = joined([track.row.launch_of(track.place) for track in edges])
    position = joined([track.row.operation_of(track.place) for track in edges])
    program = np.searchsorted(sequence.first, position, "right") - 1
    order = np.lexsort((position, inference))

    def both(name: str) -> tuple[Ints, Ints]:
        values = joined([getattr(track, name) for track in edges])
        return values[0::2][order], values[1::2][order]

    (start, end), (start_how, end_how), (start_event, end_event) = both("time_ns"), both("how"), both("event")
    (start_low, end_low), (start_high, end_high) = both("low_ns"), both("high_ns")
    position, inference, program = position[order], inference[order], program[order]
    return OperationLog(
        inference=inference,
        program=program.astype(np.int32),
        operation=(position - sequence.first[program]).astype(np.int32),
        kind=sequence.kind[position],
        core=sequence.core[position],
        unit=sequence.unit[position],
        start_ns=start,
        end_ns=end,
        start_how=start_how.astype(np.uint8),
        end_how=end_how.astype(np.uint8),
        start_low_ns=start_low,
        start_high_ns=start_high,
        end_low_ns=end_low,
        end_high_ns=end_high,
        start_event=start_event,
        end_event=end_event,
        kinds=sequence.kinds,
    )
