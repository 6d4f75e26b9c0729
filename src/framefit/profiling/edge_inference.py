"""Infers times of edges whose packets were lost from the edges around them, in compiled loops.

Along a chain of events p < j < q of which p and q were received the time of j is
t_p + C_pj + (Q_pj / Q_pq) (T - C_pq) with variance Q_pj (Q_pq - Q_pj) / Q_pq, C and Q being sums of the
transitions' means and variances: what is known from p, forwards, and from q, backwards, weighted by
precision. Here chains run through the graph of operations, not along a track: an operation starts a
little after the latest end that it has to wait for (forwards, the maximum of normal variables after
Clark, "The greatest of a finite set of random variables", 1961), and an operation that another one
must have waited for, because nothing else explains its start, ends a little before it (backwards).
What came from after an operation also tells when the others began that waited for it, so a second pass forwards
takes what the first one expected of an end, and what all but the operation itself tell of it.
What was received is a hard bound on everything else: nothing starts before what it waits for has ended.

:class:`Precedence` says what must have ended before an operation starts, within a launch and across launches.

Intervals are calibrated by hiding received packets as others were lost, and counting errors of the inferred times.
The method is split-conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World",
2005, section 4.1), for each class of edges by itself. The loss pattern of this trace, in order of time over all
cores, is shifted and laid over what was received, so that bursts stay bursts. Edges that it hits are inferred as
lost edges are, and the error over its standard deviation is a sample of the class.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.profiling.sequence import Sequence
from framefit.stats import Z90, two_sided_z

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
RUNS = np.array([1, 2, 4, 8, 16, 32])
"""Edges lost in a row on a core: the upper ends of the classes."""
_SAMPLES = 20_000  # hidden edges to have: at 90 % a quantile of 400 samples is off by 1.5 % one time in three
_MOST_TURNS = 24
_FINE = 400  # samples that a class of its own needs by kind,
_COARSE = 100  # by run and type,
_LEAST = 40  # of all: below, intervals are not calibrated
NOT_BOUND = -2
"""No operation of this track has to have ended."""
EARLIER = -1
"""The track's latest operation of an earlier launch has to have ended."""


class Precedence(NamedTuple):
    """What each operation waits for. Operations are counted within their program, tracks by position.

    Attributes:
        first: int64, where each program begins in the arrays of one entry per operation.
        order: int64, operations of each program such that each comes after what it waits for.
        track: int64, of each operation.
        before: int64, operations x tracks: the latest operation of the track that has to have ended
            because it runs on the same unit or on one that excludes it; ``EARLIER``, ``NOT_BOUND``.
        last: int64, programs x tracks: the track's last operation in the program, -1 for none.
        needs_first, needs: int64, the operations of the same program that are named by ``after``.
    """

    first: Ints
    order: Ints
    track: Ints
    before: Ints
    last: Ints
    needs_first: Ints
    needs: Ints

    @classmethod
    def of(cls, sequence: Sequence) -> tuple[Precedence, int]:
        """Derive it from ``after``, the order on units, and exclusions; program order decides which goes first.

        Also returns how many entries of ``after`` contradict the order on the units and were left out.
        """
        total, tracks = len(sequence.kind), sequence.tracks
        track = sequence.track
        before = np.full((total, tracks), NOT_BOUND, np.int64)
        last = np.full((len(sequence.first) - 1, tracks), -1, np.int64)
        order = np.empty(total, np.int64)
        needs: list[list[int]] = []
        dropped = 0
        for program, (low, high) in enumerate(zip(sequence.first[:-1], sequence.first[1:], strict=True)):
            latest = np.full(tracks, EARLIER, np.int64)
            for op in range(low, high):
                bound = sequence.exclusive[track[op]]
                before[op, bound] = latest[bound]
                latest[track[op]] = op - low
            last[program] = latest
            wants = [
                {int(at) - int(low) for at in sequence.after[sequence.after_first[op] : sequence.after_first[op + 1]]}
                for op in range(low, high)
            ]
            placed, left_out = _topological_order(before[low:high], wants)
            order[low:high] = placed
            _remove_implied(before[low:high], wants, placed, track[low:high])
            dropped += left_out
            needs.extend(sorted(want) for want in wants)
        counts = [len(want) for want in needs]
        flat = np.array([index for want in needs for index in want], np.int64)
        precedence = cls(
            first=sequence.first.astype(np.int64),
            order=order,
            track=track,
            before=before,
            last=last,
            needs_first=np.cumsum([0, *counts], dtype=np.int64),
            needs=flat,
        )
        return precedence, dropped


def _topological_order(before: Ints, wants: list[set[int]]) -> tuple[list[int], int]:
    """Order operations after what they wait for; entries of ``wants`` that form a cycle are removed."""
    count, dropped = len(before), 0
    waits = [{int(predecessor) for predecessor in before[op] if predecessor >= 0} | wants[op] for op in range(count)]
    successors: list[list[int]] = [[] for _ in range(count)]
    for op, predecessors in enumerate(waits):
        for predecessor in predecessors:
            successors[predecessor].append(op)
    waiting_for = [len(predecessors) for predecessors in waits]
    free = [op for op in range(count) if not waiting_for[op]]
    heapq.heapify(free)
    placed: list[int] = []
    remaining = set(range(count))
    while remaining:
        if not free:  # a circle: the first operation no longer waits for later ones
            op = min(remaining)
            later = {predecessor for predecessor in wants[op] if predecessor in remaining}
            dropped += len(later)
            wants[op] -= later
            for predecessor in later:
                successors[predecessor].remove(op)
            free.append(op)
        op = heapq.heappop(free)
        remaining.discard(op)
        placed.append(op)
        for successor in successors[op]:
            waiting_for[successor] -= 1
            if not waiting_for[successor] and successor in remaining:
                heapq.heappush(free, successor)
    return placed, dropped


def _remove_implied(before: Ints, wants: list[set[int]], placed: list[int], track: Ints) -> None:
    """Remove, in place, predecessors that another predecessor has waited for: they add nothing.

    Nor may a predecessor be counted twice: the maximum of two variables that are one would lie 0.56 deviations above
    it, for normal variables are taken as independent.

    ``before`` is of one program's operations (see :class:`Precedence`), ``wants`` what each waits for beside that,
    ``placed`` an order in which each comes after what it waits for, and ``track`` the track of each operation;
    operations of one track wait for each other, so the latest one stands for all.
    """
    reached = np.full(before.shape, NOT_BOUND, np.int64)  # of each track, the latest that has ended before it starts
    for op in placed:
        bound = before[op]
        named = {int(predecessor) for predecessor in bound if predecessor >= 0} | wants[op]
        behind = reached[sorted(named)].max(axis=0, initial=NOT_BOUND)
        wants[op] = {
            predecessor
            for predecessor in wants[op]
            if predecessor > behind[track[predecessor]] and predecessor != bound[track[predecessor]]
        }
        reached[op] = np.maximum(behind, bound)
        for predecessor in wants[op]:
            reached[op, track[predecessor]] = max(reached[op, track[predecessor]], predecessor)
        bound[bound <= behind] = NOT_BOUND


@njit(cache=True, nogil=True)
def nominal_times(precedence: Any, launches: Any, ready_ns: Any, duration_ns: Any, gap_ns: Any) -> Any:
    """Return starts and ends (float64, launch by launch in program order) if each operation took its expectation.

    ``launches`` (int64) is the program of each launch and ``ready_ns`` when the host submitted it; ``duration_ns`` is
    of each operation of the programs, and ``gap_ns`` how long it waits after everything that it waits for has ended
    (float64).
    """
    total = 0
    for program in launches:
        total += precedence.first[program + 1] - precedence.first[program]
    start, end = np.zeros(total), np.zeros(total)
    free = np.zeros(precedence.before.shape[1])
    base = 0
    for launch in range(len(launches)):
        program = launches[launch]
        first, beyond = precedence.first[program], precedence.first[program + 1]
        for at in range(first, beyond):
            op = first + precedence.order[at]
            time = ready_ns[launch]
            for track in range(len(free)):
                if precedence.before[op, track] == -1:
                    time = max(time, free[track])
                elif precedence.before[op, track] >= 0:
                    time = max(time, end[base + precedence.before[op, track]])
            for need in range(precedence.needs_first[op], precedence.needs_first[op + 1]):
                time = max(time, end[base + precedence.needs[need]])
            here = base + op - first
            start[here] = time + gap_ns[op]
            end[here] = start[here] + duration_ns[op]
        for track in range(len(free)):
            if precedence.last[program, track] >= 0:
                free[track] = end[base + precedence.last[program, track]]
        base += beyond - first
    return start, end


_CLEAR = 4.0  # standard deviations beyond which a maximum is not in doubt
_HUGE = 1 << 60
_NOBODY = -_HUGE
_UNKNOWN = -float(1 << 59)  # means below this come from nothing that is known


class Times(NamedTuple):
    """Durations and gaps at speed 1; float64, one entry for each operation of the sequence.

    Attributes:
        duration_ns, duration_var: from START to END.
        gap_ns, gap_var: from the latest end that it waits for to START.
    """

    duration_ns: Floats
    duration_var: Floats
    gap_ns: Floats
    gap_var: Floats


class Window(NamedTuple):
    """Consecutive launches, operation after operation in program order.

    Attributes:
        program: int64, of each launch.
        base: int64, where each launch begins below, and the end of the last one.
        seen: bool, operations x 2: whether START and END were received.
        time: int64, operations x 2: when; meaningless where an edge was not received.
        before: int64, launches x tracks: the track's latest operation of earlier launches; -1: it is
            not in the window.
        carried: int64, of each track the end of that operation; -2**60: there is none.
        released: float64, when the host let each launch begin; -2**60: not known.
        tempo, tempo_var: float64, of each launch, the factor of all times, and its variance.
    """

    program: Ints
    base: Ints
    seen: npt.NDArray[np.bool_]
    time: Ints
    before: Ints
    carried: Ints
    released: Floats
    tempo: Floats
    tempo_var: Floats

    @classmethod
    def of(cls, program: Ints, sizes: Ints, last: Ints, carried: Ints, released: Floats) -> Window:
        """Make a window without packets; ``sizes`` is the number of operations of each program."""
        base = np.cumsum([0, *sizes[program]], dtype=np.int64)
        there = np.where(last[program] >= 0, base[:-1, None] + last[program], -1)
        latest = np.maximum.accumulate(there, axis=0) if len(program) else there
        before = np.concatenate([np.full((1, last.shape[1]), -1, np.int64), latest[:-1]])[: len(program)]
        return cls(
            program=program,
            base=base,
            seen=np.zeros((int(base[-1]), 2), np.bool_),
            time=np.zeros((int(base[-1]), 2), np.int64),
            before=before.astype(np.int64),
            carried=carried,
            released=released,
            tempo=np.ones(len(program)),
            tempo_var=np.zeros(len(program)),
        )


class InferredEdges(NamedTuple):
    """Results for the edges of a window, as arrays of operations x 2.

    Attributes:
        deviation: float64, standard deviation of the time; 0 where it was received.
        low, high: int64, least and greatest time by what was received; -2**60, 2**60: no bound.
        run: int64, edges lost in a row on the track.
        before, after: bool, whether something is known from before, and from after.
    """

    deviation: Floats
    low: Ints
    high: Ints
    run: Ints
    before: npt.NDArray[np.bool_]
    after: npt.NDArray[np.bool_]

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Operations of which both times are known."""
        some = self.before | self.after
        return np.asarray(some[:, 0] & some[:, 1])


@njit(cache=True, nogil=True, error_model="numpy")
def _place(before: Any, earlier: Any, launch: Any, base: Any, op: Any, track: Any) -> Any:
    """Return the place of the operation of ``track`` that ``op`` waits for: -1 before the window, -2 for none."""
    predecessor = before[op, track]
    if predecessor >= 0:
        return base + predecessor
    if predecessor == NOT_BOUND:
        return NOT_BOUND
    return earlier[launch, track]


@njit(cache=True, nogil=True, error_model="numpy")
def _maximum_of_normals(m1: Any, v1: Any, m2: Any, v2: Any) -> Any:
    """Mean and variance of the maximum of two normal variables."""
    if (m1 - m2) * (m1 - m2) >= _CLEAR * _CLEAR * (v1 + v2):
        return (m1, v1) if m1 >= m2 else (m2, v2)
    spread = math.sqrt(v1 + v2)
    a = (m1 - m2) / spread
    density = math.exp(-0.5 * a * a) / 2.5066282746310002
    below = 0.5 * math.erfc(-a / 1.4142135623730951)
    mean = m1 * below + m2 * (1 - below) + spread * density
    square = (m1 * m1 + v1) * below + (m2 * m2 + v2) * (1 - below) + (m1 + m2) * spread * density
    return mean, max(square - mean * mean, min(v1, v2) * 0.25)


@njit(cache=True, nogil=True, error_model="numpy")
def find_gaps(window: Any, precedence: Any) -> Any:
    """Return how long each operation waited after the latest end before it (float64; NaN where not all are known)."""
    before, needs_first, needs, order = precedence.before, precedence.needs_first, precedence.needs, precedence.order
    earlier, carried, seen, time = window.before, window.carried, window.seen, window.time
    gaps = np.full(len(seen), np.nan)
    for launch in range(len(window.program)):
        program, base = window.program[launch], window.base[launch]
        first = precedence.first[program]
        for at in range(first, precedence.first[program + 1]):
            op = first + order[at]
            here = base + op - first
            if not seen[here, 0]:
                continue
            latest, known = -float(_HUGE), True
            for track in range(earlier.shape[1]):
                place = _place(before, earlier, launch, base, op, track)
                if place >= 0:
                    known &= seen[place, 1]
                    latest = max(latest, float(time[place, 1]))
                elif place == -1 and carried[track] > -_HUGE:
                    latest = max(latest, float(carried[track]))
            for need in range(needs_first[op], needs_first[op + 1]):
                place = base + needs[need]
                known &= seen[place, 1]
                latest = max(latest, float(time[place, 1]))
            latest = max(latest, window.released[launch])
            if known and latest > _UNKNOWN:
                gaps[here] = time[here, 0] - latest
    return gaps


@njit(cache=True, nogil=True, error_model="numpy")
def _follows_its_track(precedence: Any, op: Any) -> Any:
    """Whether an operation waits for the one before it on its track, and for nothing else."""
    before = precedence.before[op]
    for track in range(len(before)):
        if (before[track] >= 0) != (track == precedence.track[op]):
            return False
    return precedence.needs_first[op] == precedence.needs_first[op + 1]


@njit(cache=True, nogil=True, error_model="numpy")
def tempo_ratios(window: Any, precedence: Any, times: Any) -> Any:
    """Compare the times between received edges of each launch with what they usually are.

    They are of one track, where each operation between them waited for the one before it only.

    Returns the ratio of each launch (float64; 1 where nothing was received) and its variance (inf there); then how
    far single times are from the ratio of their launch, as the sum of squares over their variances, and its degrees
    of freedom.
    """
    count, tracks = len(window.program), window.before.shape[1]
    ratio, var = np.ones(count), np.full(count, np.inf)
    misfit, freedoms = 0.0, 0
    most = 0  # operations of a program; np.diff would take seconds to compile
    for program in range(len(precedence.first) - 1):
        most = max(most, precedence.first[program + 1] - precedence.first[program])
    values, spreads = np.empty(2 * most), np.empty(2 * most)
    since, nominal, nominal_var = np.zeros(tracks, np.int64), np.zeros(tracks), np.zeros(tracks)
    joined, works = np.zeros(tracks, np.bool_), np.zeros(tracks, np.bool_)
    serial = np.empty(len(precedence.track), np.bool_)
    for op in range(len(serial)):
        serial[op] = _follows_its_track(precedence, op)
    seen, time = window.seen, window.time
    for launch in range(count):
        program, base = window.program[launch], window.base[launch]
        first = precedence.first[program]
        spans = 0
        joined[:] = False
        for here in range(base, window.base[launch + 1]):
            op = first + here - base
            track = precedence.track[op]
            joined[track] &= serial[op]
            for edge in range(2):
                if edge:
                    nominal[track] += times.duration_ns[op]
                    nominal_var[track] += times.duration_var[op]
                    works[track] = True
                else:
                    nominal[track] += times.gap_ns[op]
                    nominal_var[track] += times.gap_var[op]
                if not seen[here, edge]:
                    continue
                expected = nominal[track]
                if joined[track] and works[track] and expected > 1.0:
                    values[spans] = (time[here, edge] - since[track]) / expected
                    spreads[spans] = nominal_var[track] / (expected * expected)
                    spans += 1
                since[track], nominal[track], nominal_var[track] = time[here, edge], 0.0, 0.0
                joined[track], works[track] = True, False
        # Weighted by precision relative to the duration: long and steady times tell most.
        around = 1.0
        for turn in range(2):
            total, weight_sum = 0.0, 0.0
            for at in range(spans):
                deviation = math.sqrt(spreads[at])
                limit = 2.5 * deviation if turn else 4.0 * deviation + 0.1
                value = min(max(values[at], around - limit), around + limit)
                total += value / spreads[at]
                weight_sum += 1.0 / spreads[at]
            if weight_sum > 0.0:
                around = total / weight_sum
                ratio[launch], var[launch] = around, 1.0 / weight_sum
        for at in range(spans):
            away = min(abs(values[at] - around) / math.sqrt(spreads[at]), 2.5)
            misfit += away * away
        freedoms += max(spans - 1, 0)
    return ratio, var, misfit, freedoms


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _latest_end(
    window: Any, precedence: Any, launch: Any, op: Any, here: Any, mean: Any, var: Any, low: Any, told: Any,
    deviation: Any,
) -> Any:  # fmt: skip
    """Mean, variance and least time of the latest end that an operation waits for, by all but the operation itself.

    Ends with a ``deviation`` have been inferred, and their times are in the window, unless ``told`` names ``here``.
    """
    base, tracks = window.base[launch], window.before.shape[1]
    needs_first = precedence.needs_first[op]
    m, v, bound = window.released[launch], 0.0, -_HUGE
    for index in range(tracks + precedence.needs_first[op + 1] - needs_first):
        if index < tracks:
            place = _place(precedence.before, window.before, launch, base, op, index)
        else:
            place = base + precedence.needs[needs_first + index - tracks]
        if place >= 0:
            bound = max(bound, low[place, 1])
            if deviation[place, 1] > 0.0 and told[place] != here:
                end, spread = float(window.time[place, 1]), deviation[place, 1]
                m, v = _maximum_of_normals(end, spread * spread, m, v)
            else:
                m, v = _maximum_of_normals(mean[place, 1], var[place, 1], m, v)
        elif place == -1 and window.carried[index] > -_HUGE:
            bound = max(bound, window.carried[index])
            m, v = _maximum_of_normals(float(window.carried[index]), 0.0, m, v)
    return m, v, bound


@njit(cache=True, nogil=True, error_model="numpy")
def _infer_forwards(
    window: Any, precedence: Any, times: Any, mean: Any, var: Any, late: Any, spread: Any, low: Any, high: Any,
    run: Any, since: Any, told: Any, deviation: Any, own_var: Any,
) -> None:  # fmt: skip
    """Infer from earlier edges: mean, variance and least time of each edge, and edges lost in a row so far.

    ``own_var`` becomes the variance that each duration adds: its own, and what the speed of the launch is uncertain by,
    which all durations since the latest received edge of the track have in common.
    """
    order, seen, time = precedence.order, window.seen, window.time
    alike = np.zeros(len(since))  # nominal time since the latest received edge
    for launch in range(len(window.program)):
        program, base, speed = window.program[launch], window.base[launch], window.tempo[launch]
        first, speed_var = precedence.first[program], window.tempo_var[launch]
        alike[:] = 0.0
        for at in range(first, precedence.first[program + 1]):
            op = first + order[at]
            here, own_track = base + op - first, precedence.track[op]
            for edge in range(2):  # nothing is known from after yet
                var[here, edge], run[here, edge] = 0.0, 0
                late[here, edge], spread[here, edge], high[here, edge] = 0.0, np.inf, _HUGE
            if seen[here, 0] and seen[here, 1]:
                mean[here, 0], mean[here, 1] = time[here, 0], time[here, 1]
                low[here, 0], low[here, 1] = time[here, 0], time[here, 1]
                since[own_track], alike[own_track] = 0, 0.0
                continue
            if seen[here, 0]:
                mean[here, 0] = low[here, 0] = time[here, 0]
                since[own_track], alike[own_track] = 0, 0.0
            else:
                since[own_track] += 1
                run[here, 0] = since[own_track]
                m, v, bound = _latest_end(window, precedence, launch, op, here, mean, var, low, told, deviation)
                low[here, 0] = bound
                mean[here, 0] = m + times.gap_ns[op] * speed
                var[here, 0] = v + times.gap_var[op] * speed * speed
            took = times.duration_ns[op]
            own_var[here] = times.duration_var[op] * speed * speed + speed_var * took * (2.0 * alike[own_track] + took)
            alike[own_track] += took
            if seen[here, 1]:
                mean[here, 1] = low[here, 1] = time[here, 1]
                since[own_track], alike[own_track] = 0, 0.0
            else:
                since[own_track] += 1
                run[here, 1] = since[own_track]
                mean[here, 1] = mean[here, 0] + took * speed
                var[here, 1] = var[here, 0] + own_var[here]
                low[here, 1] = low[here, 0]


@njit(cache=True, nogil=True, error_model="numpy")
def _infer_backwards(
    window: Any, precedence: Any, times: Any, mean: Any, var: Any, late: Any, spread: Any, high: Any, run: Any,
    since: Any, told: Any,
) -> None:  # fmt: skip
    """Infer from later edges: ``late``, its variance ``spread`` (inf: nothing known), greatest times, and ``run``.

    ``told`` becomes the operation from which ``late`` of an END comes.
    """
    before, needs_first, needs, order = precedence.before, precedence.needs_first, precedence.needs, precedence.order
    earlier, carried, seen, time = window.before, window.carried, window.seen, window.time
    tracks = earlier.shape[1]
    places = np.empty(tracks + len(needs), np.int64)  # of what one operation waits for; -1 - track: before the window
    alike = np.zeros(tracks)  # nominal time until the next received edge
    for launch in range(len(window.program) - 1, -1, -1):
        program, base, speed = window.program[launch], window.base[launch], window.tempo[launch]
        first, speed_var = precedence.first[program], window.tempo_var[launch]
        alike[:] = 0.0
        for at in range(precedence.first[program + 1] - 1, first - 1, -1):
            op = first + order[at]
            here, own_track = base + op - first, precedence.track[op]
            if seen[here, 1]:
                late[here, 1], spread[here, 1], high[here, 1] = time[here, 1], 0.0, time[here, 1]
                since[own_track], alike[own_track] = 0, 0.0
            else:
                run[here, 1] += since[own_track]
                since[own_track] += 1
            if seen[here, 0]:
                late[here, 0], spread[here, 0], high[here, 0] = time[here, 0], 0.0, time[here, 0]
                since[own_track], alike[own_track] = 0, 0.0
            else:
                run[here, 0] += since[own_track]
                since[own_track] += 1
                took = times.duration_ns[op]
                late[here, 0] = late[here, 1] - took * speed
                both = speed_var * took * (2.0 * alike[own_track] + took)
                spread[here, 0] = spread[here, 1] + times.duration_var[op] * speed * speed + both
                alike[own_track] += took
                high[here, 0] = high[here, 1]
            # Tell those that it waited for; first who of them probably ended last, and who next to last.
            count, open_ = 0, False
            for track in range(tracks):
                place = _place(before, earlier, launch, base, op, track)
                if place >= 0:
                    open_ |= not seen[place, 1]
                elif place == -1 and carried[track] > -_HUGE:
                    place = -1 - track
                else:
                    continue
                places[count] = place
                count += 1
            for need in range(needs_first[op], needs_first[op + 1]):
                places[count] = base + needs[need]
                open_ |= not seen[places[count], 1]
                count += 1
            if not open_:
                continue
            gap_var = times.gap_var[op] * speed * speed
            target, target_var = late[here, 0] - times.gap_ns[op] * speed, spread[here, 0] + gap_var
            latest, second, who = window.released[launch], -float(_HUGE), _NOBODY
            latest_var, second_var = 0.0, 0.0
            for index in range(count):
                place = places[index]
                value, value_var = (mean[place, 1], var[place, 1]) if place >= 0 else (float(carried[-1 - place]), 0.0)
                if value > latest:
                    if place != who:
                        second, second_var = latest, latest_var
                    latest, latest_var, who = value, value_var, place
                elif place >= 0 and place != who and value > second:
                    second, second_var = value, value_var
            for index in range(count):
                place = places[index]
                if place < 0 or seen[place, 1]:
                    continue
                high[place, 1] = min(high[place, 1], high[here, 0])
                waited = place == who
                if seen[here, 0]:  # did it wait for this one, or for the latest other one and a little longer?
                    second_best, others_var = (second, second_var) if place == who else (latest, latest_var)
                    longer, later = max(target - second_best, 0.0), target - mean[place, 1]
                    waited = longer * longer * (target_var + var[place, 1]) > later * later * (gap_var + others_var)
                if waited and target_var < spread[place, 1]:
                    late[place, 1], spread[place, 1], told[place] = target, target_var, here


@njit(cache=True, nogil=True, error_model="numpy")
def _combine(
    window: Any, precedence: Any, times: Any, mean: Any, var: Any, late: Any, spread: Any, low: Any, high: Any,
    known: Any, followed: Any, told: Any, deviation: Any, own_var: Any,
) -> None:  # fmt: skip
    """Weigh what is known from before against what is known from after, within the bounds."""
    before, needs_first, needs, order = precedence.before, precedence.needs_first, precedence.needs, precedence.order
    earlier, carried, seen, time = window.before, window.carried, window.seen, window.time
    tracks = earlier.shape[1]
    moved = np.zeros(len(seen), np.bool_)  # END's mean is another one than that of the first pass
    for launch in range(len(window.program)):
        program, base, speed = window.program[launch], window.base[launch], window.tempo[launch]
        first = precedence.first[program]
        for at in range(first, precedence.first[program + 1]):
            op = first + order[at]
            here = base + op - first
            for edge in range(2):
                if seen[here, edge]:
                    known[here, edge] = followed[here, edge] = True
                    deviation[here, edge] = 0.0
                    continue
                known[here, edge], followed[here, edge] = mean[here, edge] > _UNKNOWN, high[here, edge] < _HUGE
                least = low[here, edge]
                if edge:
                    least = max(least, time[here, 0]) if known[here, 0] or followed[here, 0] else least
                    if known[here, 1]:
                        mean[here, 1] = mean[here, 0] + times.duration_ns[op] * speed
                        var[here, 1] = var[here, 0] + own_var[here]
                else:
                    again = False
                    for track in range(tracks):
                        place = _place(before, earlier, launch, base, op, track)
                        if place >= 0:
                            again |= moved[place] or (told[place] >= 0 and told[place] != here)
                            if known[place, 1] or followed[place, 1]:
                                least = max(least, time[place, 1])
                        elif place == -1:
                            least = max(least, carried[track])
                    for need in range(needs_first[op], needs_first[op + 1]):
                        place = base + needs[need]
                        again |= moved[place] or (told[place] >= 0 and told[place] != here)
                        if known[place, 1] or followed[place, 1]:
                            least = max(least, time[place, 1])
                    if again and known[here, 0]:
                        m, v, _ = _latest_end(window, precedence, launch, op, here, mean, var, low, told, deviation)
                        mean[here, 0] = m + times.gap_ns[op] * speed
                        var[here, 0] = v + times.gap_var[op] * speed * speed
                        moved[here] = not seen[here, 1]
                if known[here, edge] and spread[here, edge] < np.inf:
                    part = var[here, edge] / (var[here, edge] + spread[here, edge])
                    value = mean[here, edge] + part * (late[here, edge] - mean[here, edge])
                    deviation[here, edge] = math.sqrt(part * spread[here, edge])
                elif spread[here, edge] < np.inf:
                    value, deviation[here, edge] = late[here, edge], math.sqrt(spread[here, edge])
                elif known[here, edge]:
                    value, deviation[here, edge] = mean[here, edge], math.sqrt(var[here, edge])
                else:
                    followed[here, edge], deviation[here, edge] = False, 0.0
                    continue
                time[here, edge] = min(max(np.int64(round(value)), least), high[here, edge])
                # whatever contradicts itself among what was received
                if edge and (known[here, 0] or followed[here, 0]):
                    time[here, 1] = max(time[here, 1], time[here, 0])


def infer_edges(window: Window, precedence: Precedence, times: Times) -> InferredEdges:
    """Infer the times of all edges that were not received, and write them to ``time`` of the window."""
    shape, tracks = window.seen.shape, window.before.shape[1]
    mean, var, late, spread = np.empty((4, *shape))
    deviation, told = np.zeros(shape), np.full(len(window.seen), -1, np.int64)  # nothing is inferred yet
    low, high, run = np.empty((3, *shape), np.int64)
    known, followed = np.empty((2, *shape), np.bool_)
    since, own_var = np.zeros((2, tracks), np.int64), np.empty(shape[0])
    _infer_forwards(
        window, precedence, times, mean, var, late, spread, low, high, run, since[0], told, deviation, own_var
    )
    _infer_backwards(window, precedence, times, mean, var, late, spread, high, run, since[1], told)
    _combine(window, precedence, times, mean, var, late, spread, low, high, known, followed, told, deviation, own_var)
    return InferredEdges(deviation, low, high, run, known, followed)


@dataclass(frozen=True)
class ErrorQuantiles:
    """Quantiles of errors over their standard deviations, for each class of edges.

    Attributes:
        low, high: float64, runs x types x kinds.
        calibrated: bool, whether there were enough samples.
    """

    low: Floats
    high: Floats
    calibrated: npt.NDArray[np.bool_]


def calibrate_intervals(
    window: Window,
    precedence: Precedence,
    times: Times,
    kind: Ints,
    recorded: npt.NDArray[np.bool_],
    kinds: int,
    confidence: float,
    random: np.random.Generator,
    with_tempo: Callable[[Window], Window],
) -> ErrorQuantiles:
    """Measure the errors of inferred times on hidden edges.

    ``window`` has what was received, and times for the rest. ``kind`` (int64) is of each operation of the window,
    ``recorded`` (bool) whether it sends packets, and ``kinds`` the number of kinds. ``confidence`` is the part of the
    edges that an interval is to contain; ``random`` draws the shifts. ``with_tempo`` estimates the speeds of launches
    by what is left of a window: what is hidden must not tell them.
    """
    shape = (len(RUNS) + 1, 2, kinds)
    normal = two_sided_z(confidence) if 0 < confidence < 1 else Z90
    low, high = np.full(shape, -normal), np.full(shape, normal)
    sure = np.zeros(shape, np.bool_)
    places = np.flatnonzero(np.repeat(recorded, 2))
    order = places[np.argsort(window.time.ravel()[places], kind="stable")]
    lost = ~window.seen.ravel()[order]
    errors: list[Floats] = []
    classes: list[Ints] = []
    size = 0
    turns = _MOST_TURNS if lost.any() and not lost.all() else 0
    for _ in range(turns):
        hidden = np.zeros(window.seen.size, np.bool_)
        hidden[order] = np.roll(lost, int(random.integers(1, len(lost))))
        hidden &= window.seen.ravel()
        seen = window.seen.ravel() & ~hidden
        masked = with_tempo(window._replace(seen=seen.reshape(-1, 2), time=window.time.copy()))
        deviation, _, _, run, known, followed = infer_edges(masked, precedence, times)
        use = np.flatnonzero(hidden & known.ravel() & followed.ravel())
        errors.append((window.time.ravel()[use] - masked.time.ravel()[use]) / deviation.ravel()[use])
        classes.append(np.ravel_multi_index((np.searchsorted(RUNS, run.ravel()[use]), use % 2, kind[use // 2]), shape))
        size += len(use)
        if size >= _SAMPLES:
            break
    if size < _LEAST:
        return ErrorQuantiles(low, high, sure)
    error, class_ = np.concatenate(errors), np.concatenate(classes)
    tail = (1 - confidence) / 2

    def set_quantiles(part: tuple[slice | int, ...], samples: Floats) -> None:
        reach = min((1 - tail) * (len(samples) + 1) / len(samples), 1.0)
        low[part], high[part] = np.quantile(samples, 1 - reach), np.quantile(samples, reach)
        sure[part] = part != (slice(None),)

    set_quantiles((slice(None),), error)  # the best guess for classes of which there is next to nothing
    at_run, at_type, at_kind = np.unravel_index(class_, shape)
    for run_class in range(shape[0]):
        for type_ in range(2):
            coarse = (at_run == run_class) & (at_type == type_)
            if coarse.sum() < _COARSE:
                continue
            set_quantiles((run_class, type_), error[coarse])
            for kind_id in range(kinds):
                fine = coarse & (at_kind == kind_id)
                if fine.sum() >= _FINE:
                    set_quantiles((run_class, type_, kind_id), error[fine])
    return ErrorQuantiles(low, high, sure)
