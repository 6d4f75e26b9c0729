"""Judges whether a trace is of its program, and which of several reconstructions explains it best.

The program is judged by the order of events alone. Two explanations of each track's events compete by likelihood.
The first is a hidden Markov model whose states are the events of the program in their order (Rabiner, "A tutorial on
hidden Markov models", 1989): from one received event to the next some are lost, and how many is as frequent as it is
in this trace. The second knows no program: it predicts each event from the one before it, by what followed on equal
ones so far (a Markov chain with the estimator of Krichevsky and Trofimov, "The performance of universal encoding",
1981). What a wrong program says of the order costs more than it gains, and no loss of events can make up for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import EventType, Trace, unwrapped_ns
from framefit.errors import InputError
from framefit.profiling.expectation import operation_positions
from framefit.profiling.rule import track_sequences
from framefit.profiling.sequence import Reconstruction, Sequence
from framefit.profiling.totals import medians

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_KEPT = (0.999, 0.97, 0.9, 0.75, 0.5, 0.25)  # tried: the part of the symbol that is lost least that is received
_LEAST_KEPT = 1e-3
_BURST = 24.0  # mean number of events in a burst
_STEPS = np.array([0.92, 0.07, 0.005, 0.005])  # before a packet: no burst, a burst, any event; sent by no event
_PRIOR = np.array([10.0, 1.0, 0.1, 0.1])  # of these, in packets
_ROUNDS = 3
_SAMPLE, _WINDOWS = 4096, 8  # packets of a track that are judged, and the parts of the trace that they are from
_WORK = 1 << 23  # packets x events of the program that are judged at most
_FEW = 32  # packets of a track that say nothing
_SHUFFLES = 2
_WORSE, _WORSE_EACH = 30.0, 0.03  # by which the program has to be less likely: in all, and by packet


@dataclass(frozen=True)
class _TrackOrder:
    """Events of a track as symbols, and what the program expects.

    Attributes:
        packet: int64, positions in the trace of those that are judged.
        symbol: int64, of each of them.
        begins: bool, those that do not follow the one before.
        counts: bool, those that are evidence: before others the device reported a loss.
        operation: int64, operation of each expected event.
        expected: int64, symbol of each expected event, one program after the other.
        first: int64, where each program begins, and where the last one ends.
        follower_first, follower, weight: programs that follow program ``p``, and how often (a ratio), at
            ``follower_first[p]`` to ``follower_first[p + 1]`` - 1.
        symbols: number of symbols.
    """

    packet: Ints
    symbol: Ints
    begins: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.bool_]
    operation: Ints
    expected: Ints
    first: Ints
    follower_first: Ints
    follower: Ints
    weight: Floats
    symbols: int

    def shuffled(self, random: np.random.Generator) -> _TrackOrder:
        """Return the same with the operations of each program in any order."""
        expected = self.expected.reshape(-1, 2).copy()
        for first, end in zip(self.first[:-1] // 2, self.first[1:] // 2, strict=True):
            expected[first:end] = random.permutation(expected[first:end])
        return replace(self, expected=expected.ravel())

    def by_program(self) -> tuple[Floats, Ints]:
        """Return the logarithm of the likelihood of each packet by the program, and the likeliest event of each."""
        often = np.bincount(self.symbol, minlength=self.symbols) / np.bincount(self.expected)
        often = often[self.expected] / often.max()

        def judged(part: int, kept: float, steps: Floats) -> tuple[Floats, Ints, Floats]:
            return _forward(  # type: ignore[no-any-return]
                self.symbol[:part], self.begins[:part], self.expected, self.first, self.follower_first, self.follower,
                self.weight, np.maximum(kept * often, _LEAST_KEPT), steps, self.symbols,
            )  # fmt: skip

        some = len(self.symbol) // _WINDOWS
        kept = max(_KEPT, key=lambda kept: float(judged(some, kept, _STEPS)[0][self.counts[:some]].sum()))
        steps, results = _STEPS, []
        for _ in range(_ROUNDS):
            logs, places, counts = judged(len(self.symbol), kept, steps)
            results.append((np.where(self.counts, logs, 0.0), places))
            steps = (counts + _PRIOR) / (counts + _PRIOR).sum()
        logs, places = max(results, key=lambda result: float(result[0].sum()))
        return logs, places

    def by_chance(self) -> Floats:
        """Return the logarithm of the likelihood of each packet by what followed on equal ones so far."""
        before = np.where(self.begins, -1, np.roll(self.symbol, 1))
        followed = _earlier_equal(before), _earlier_equal(before * self.symbols + self.symbol)
        logs = np.log((followed[1] + 0.5) / (followed[0] + 0.5 * self.symbols))
        return np.asarray(np.where(self.counts, logs, 0.0))


def check_order(trace: Trace, sequence: Sequence, where: str) -> tuple[Trace, list[str]]:
    """Check that the events of a trace come in the order of its program; takes milliseconds.

    Where packets name their operations, and these names contradict the program while the kinds do not, the trace is
    returned without names, and with a warning.

    Raises:
        InputError: the order is of another program.
    """
    named = bool(len(trace)) and bool(np.all(trace.operation >= 0))
    contradiction = None
    if not _is_in_order(trace, sequence, named=named):
        contradiction, _ = _judge(trace, sequence, named=named)
    if contradiction is None:
        return trace, []
    if named:
        nameless = replace(trace, operation=np.full(len(trace), -1, np.int64))
        again, better = _judge(nameless, sequence, named=False)
        if again is None and better > _WORSE:
            return nameless, [
                f"the operations that the packets name are not the program's ({contradiction}): only kinds were used"
            ]
    raise InputError(
        f"the trace is not of this program: {contradiction}",
        where=where,
        remedy="name the program that was executed: --program PROGRAM",
    )


def _is_in_order(trace: Trace, sequence: Sequence, *, named: bool) -> bool:
    """Whether each packet is the next one that the program expects on its track."""
    time_ns, tracks = unwrapped_ns(trace.time_ns, trace.meta), sequence.units.tracks_of(trace)
    if not len(trace) or np.any(tracks < 0) or np.any(trace.type > 1):
        return False
    rows = {row.track: row for row in track_sequences(sequence, trace.meta.selected_kinds)}
    stated = (trace.operation if named else trace.id).astype(np.int64)
    for number in np.unique(tracks).tolist():
        row, packet = rows.get(number), np.flatnonzero(tracks == number)
        if row is None:
            return False
        packet = packet[np.argsort(time_ns[packet], kind="stable")]
        symbol = 2 * stated[packet] + trace.type[packet]
        kind = sequence.kind[row.operation].astype(np.int64)
        name = np.array([sequence.operations[at].index for at in row.operation.tolist()], np.int64) if named else kind
        expected = np.repeat(2 * name, 2) + np.tile([0, 1], len(name))
        size = len(expected)
        if row.launch is not None:  # from the first launch, or up to the last one
            fits = len(symbol) <= size and any(
                np.array_equal(symbol, part) for part in (expected[: len(symbol)], expected[size - len(symbol) :])
            )
        else:
            around = np.tile(expected, 2 + min(len(symbol), _FEW) // size)
            begins = np.flatnonzero(expected == symbol[0]).tolist()
            begins = [at for at in begins if np.array_equal(around[at : at + _FEW][: len(symbol)], symbol[:_FEW])]
            place = np.arange(len(symbol))
            fits = any(np.array_equal(expected[(at + place) % size], symbol) for at in begins)
        if not fits:
            return False
    return True


def _judge(trace: Trace, sequence: Sequence, *, named: bool) -> tuple[str | None, float]:
    """Return where the order contradicts the program (``None``: it does not), and by how much the program is likelier.

    A program that is less likely than chance may still be right, if losses depend on what the model of losses does not
    know. Then it is much likelier than the same operations in another order, or there is no other order.
    """
    worse, count, first = 0.0, 0, None
    tracks = list(_track_orders(trace, sequence, named=named))
    by_order = 0.0
    for track in tracks:
        logs, places = track.by_program()
        gain = logs - track.by_chance()
        by_order += float(logs.sum())
        worse -= float(gain.sum())
        count += int(np.count_nonzero(track.counts))
        if first is None and gain.sum() < 0:
            first = track, int(np.argmax(np.cumsum(gain))), places
    if first is None or worse < _WORSE + _WORSE_EACH * count:
        return None, -worse
    for seed in range(_SHUFFLES):
        random = np.random.default_rng(seed)
        ahead = by_order - sum(float(track.shuffled(random).by_program()[0].sum()) for track in tracks)
        if ahead > worse or abs(ahead) < 1.0:
            return None, -worse
    return _describe(trace, sequence, *first), -worse


_SPURIOUS = 1e-3  # packets: devices lose them often, and make them up hardly ever
_COARSE, _BINS = 0.7, 60.0  # width and number of the bins of deviations, linear near 0 and logarithmic beyond
_NEW_LENGTH = 5.0  # losses that a length not seen so far counts for


def log_likelihood(reconstruction: Reconstruction, trace: Trace, sequence: Sequence) -> float:
    """Return the logarithm of the likelihood of a trace by a reconstruction of it, to be compared with others.

    Judged are the lengths of losses, the times between packets of a track that follow each other, and the packets that
    have no place. What is usual is learned from the reconstruction itself, packet by packet (Dawid, "Statistical
    theory: the prequential approach", 1984): delays of any distribution may be usual.
    """
    if len(trace) < 2:
        return 0.0
    log = reconstruction.log
    sends = np.repeat(sequence.recorded(trace.meta.selected_kinds), 2)
    edge = 2 * operation_positions(log, sequence)
    edge, packet = np.concatenate([edge, edge + 1]), np.concatenate([log.start_event, log.end_event])
    time_ns = np.concatenate([log.start_ns, log.end_ns])
    launch = np.tile(log.inference, 2)
    received = packet >= 0
    edge, packet, launch, time_ns = edge[received], packet[received], launch[received], time_ns[received]
    programs = np.zeros(1, np.int64) if sequence.launch_program is None else sequence.launch_program.astype(np.int64)
    unmatched = len(trace) - len(packet)
    apart_ns = float(np.median(np.diff(np.sort(unwrapped_ns(trace.time_ns, trace.meta)))))
    result = unmatched * (np.log(_SPURIOUS / 4) - np.log(max(apart_ns, 1.0)))
    for track in range(sequence.tracks):
        mine = sends & np.repeat(sequence.track == track, 2)
        number = np.cumsum(mine) - 1
        before = np.concatenate([[0], np.cumsum(mine)])[2 * sequence.first]
        events = np.concatenate([np.flatnonzero(mine[2 * a : 2 * b]) + 2 * a for a, b in _bounds(sequence, programs)])
        begin = np.cumsum([0, *np.diff(before)[programs]])
        here = np.flatnonzero(mine[edge])
        if len(here) < 2 or not len(events):
            continue
        program = np.searchsorted(2 * sequence.first, edge[here], "right") - 1
        cycle, turn = (launch[here], 0) if len(begin) > 2 else (0, launch[here])
        place = begin[cycle] + number[edge[here]] - before[program] + turn * len(events)
        by_place = np.argsort(place, kind="stable")
        place, edges, times = place[by_place], edge[here][by_place], time_ns[here][by_place]
        lost, took = np.diff(place) - 1, np.maximum(np.diff(times), 0).astype(np.float64)
        usual = np.repeat(sequence.expected_ns, 2) * np.tile([0, 1], len(sequence.expected_ns))
        direct, into = lost == 0, edges[1:]
        median, count = medians(into[direct], took[direct], len(usual))
        usual = np.where(count, median, usual)
        until = np.cumsum(usual[events])
        nominal = np.diff(until[place % len(events)] + place // len(events) * until[-1])
        least = trace.meta.resolution_ns
        deviation = np.log((took + least) / (nominal + least))
        width = max(float(np.median(np.abs(deviation[direct]))) if direct.any() else 0.0, 0.005)
        kind = np.where(direct, into % 2, 2)
        interval = kind * 1000 + np.round(np.arcsinh(deviation / width) / _COARSE).astype(np.int64)
        chance = (_earlier_equal(interval) + 2 / _BINS) / (_earlier_equal(kind) + 2)
        result += float(np.sum(np.log(chance / (_COARSE * np.hypot(width, deviation) * (took + least)))))
        rare = _NEW_LENGTH / ((lost + 1) * (lost + 2))
        result += float(np.sum(np.log((_earlier_equal(lost) + rare) / (np.arange(len(lost)) + _NEW_LENGTH))))
    return float(result)


def _bounds(sequence: Sequence, programs: Ints) -> Iterator[tuple[int, int]]:
    """Yield where the operations of each of some programs begin and end."""
    yield from zip(sequence.first[programs].tolist(), sequence.first[programs + 1].tolist(), strict=True)


def _describe(trace: Trace, sequence: Sequence, track: _TrackOrder, at: int, places: Ints) -> str:
    """Say where the trace leaves the program for good: after packet ``at`` of a track."""
    place = int(places[at])
    following = place + 1
    program = int(np.searchsorted(track.first, place, "right")) - 1
    if following == track.first[program + 1]:
        following = int(track.first[track.follower[track.follower_first[program]]])

    def event(place: int) -> str:
        return f"{EventType(place % 2).name} of {sequence.operations[track.operation[place]].name!r}"

    packet = int(track.packet[at])
    after = f"after packet {packet} of {len(trace)} (the {event(place)} by its order)"
    if at + 1 == len(track.packet):
        return after
    then = int(track.packet[at + 1])
    name = "" if trace.operation[then] < 0 else f" (operation {int(trace.operation[then])})"
    return (
        f"{after} the program expects the {event(following)}, there is the {EventType(int(trace.type[then])).name} of "
        f"a {trace.kinds[int(trace.id[then])]!r}{name}, and what follows fits the program no better than by chance"
    )


def _track_orders(trace: Trace, sequence: Sequence, *, named: bool) -> Iterator[_TrackOrder]:
    """Prepare each track that has enough packets; those that it cannot send are left out."""
    time_ns, tracks = unwrapped_ns(trace.time_ns, trace.meta), sequence.units.tracks_of(trace)
    sends = sequence.recorded(trace.meta.selected_kinds)
    program_of = np.searchsorted(sequence.first, np.arange(len(sequence.operations)), "right") - 1
    names = (np.arange(len(program_of)) - sequence.first[program_of]) if named else sequence.kind.astype(np.int64)
    losses = np.sort(trace.loss_after)
    launches = np.zeros(2, np.int64) if sequence.launch_program is None else sequence.launch_program.astype(np.int64)
    stated = (trace.operation if named else trace.id).astype(np.int64)
    for number in range(sequence.tracks):
        listed = np.flatnonzero((sequence.track == number) & sends & np.isin(program_of, launches))
        packet = np.flatnonzero((tracks == number) & (trace.type <= 1))
        packet = packet[np.argsort(time_ns[packet], kind="stable")]
        used, size = np.unique(program_of[listed], return_counts=True)
        operation = np.repeat(listed, 2)
        known, expected = np.unique(2 * names[operation] + np.tile([0, 1], len(listed)), return_inverse=True)
        symbol = 2 * stated[packet] + trace.type[packet]
        if len(packet) < _FEW or not len(listed):
            continue
        fits = np.isin(symbol, known)
        packet, symbol = packet[fits], np.searchsorted(known, symbol[fits])
        most = min(_SAMPLE, max(_WORK // len(operation), _SAMPLE // _WINDOWS))
        if len(packet) < _FEW:
            continue
        part = len(packet) if len(packet) <= most else most // _WINDOWS
        begin = np.linspace(0, len(packet) - part, 1 if part == len(packet) else _WINDOWS).astype(np.int64)
        chosen = (begin[:, None] + np.arange(part)).ravel()
        launched = np.searchsorted(used, launches[np.isin(launches, used)])
        pairs, times = np.unique(np.stack([launched, np.roll(launched, -1)]), axis=1, return_counts=True)
        follower_first = np.searchsorted(pairs[0], np.arange(len(used) + 1))
        reported = np.diff(np.searchsorted(losses, packet, "right"), prepend=0) != 0
        yield _TrackOrder(
            packet=packet[chosen],
            symbol=symbol[chosen],
            begins=np.arange(len(chosen)) % part == 0,
            counts=~reported[chosen],
            operation=operation,
            expected=expected.astype(np.int64),
            first=np.concatenate([[0], np.cumsum(2 * size)]).astype(np.int64),
            follower_first=follower_first.astype(np.int64),
            follower=pairs[1].astype(np.int64),
            weight=times / np.bincount(pairs[0], times, len(used))[pairs[0]],
            symbols=len(known),
        )


def _earlier_equal(key: Ints) -> Ints:
    """Return how many earlier entries equal each one."""
    least, most = int(key.min(initial=0)), int(key.max(initial=0))
    small = key - least if most - least < 1 << 16 else key  # numpy sorts uint16 by radix
    order = np.argsort(small.astype(np.uint16) if small is not key else key, kind="stable")
    new = np.concatenate([[True], np.diff(key[order]) != 0])
    rank = np.arange(len(key))
    result = np.empty(len(key), np.int64)
    result[order] = rank - np.maximum.accumulate(np.where(new, rank, 0))
    return result


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(
    symbols: Any, begins: Any, expected: Any, first: Any, follower_first: Any, follower: Any, weight: Any, kept: Any,
    steps: Any, number: Any,
) -> Any:  # fmt: skip
    """Run the forward algorithm.

    ``kept`` (float64) is the part of each expected event that is received outside of bursts, ``steps`` (float64) are
    probabilities of what is before a packet. Returns the logarithm of the likelihood of each packet, its likeliest
    event, and how often each step was taken.
    """
    size, programs = len(expected), len(first) - 1
    state, updated = np.empty(size), np.empty(size)
    left, entered = np.empty((2, programs)), np.empty((2, programs))
    counts, part = np.zeros(len(steps)), np.empty(len(steps))
    logs, places = np.empty(len(symbols)), np.empty(len(symbols), np.int64)
    stay = 1.0 - 1.0 / _BURST
    for index in range(len(symbols)):
        if begins[index]:
            state[:] = 1.0 / size
        symbol = symbols[index]
        updated[:] = 0.0
        part[:] = 0.0
        entered[:] = 0.0
        for turn in range(2):  # what is lost for two whole programs counts as a jump
            for program in range(programs):
                single, burst = entered[0, program], entered[1, program]
                for at in range(first[program], first[program + 1]):
                    if turn == 1 and expected[at] == symbol:
                        chance = steps[0] * kept[at] * single
                        lost = steps[1] * (1.0 - stay) * burst
                        updated[at] = chance + lost
                        part[0] += chance
                        part[1] += lost
                    single = (1.0 - kept[at]) * single + state[at]
                    burst = stay * burst + state[at]
                left[0, program], left[1, program] = single, burst
            entered[:] = 0.0
            for program in range(programs):
                for at in range(follower_first[program], follower_first[program + 1]):
                    entered[0, follower[at]] += weight[at] * left[0, program]
                    entered[1, follower[at]] += weight[at] * left[1, program]
        total, best = 0.0, 0
        for at in range(size):
            if expected[at] == symbol:
                updated[at] += steps[2] / size
                part[2] += steps[2] / size
            spurious = steps[3] / number * state[at]
            updated[at] += spurious
            part[3] += spurious
            total += updated[at]
            if updated[at] > updated[best]:
                best = at
        for at in range(size):
            state[at] = updated[at] / total
        logs[index], places[index] = np.log(total), best
        if not begins[index]:
            counts += part / total
    return logs, places, counts
