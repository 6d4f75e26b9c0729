"""The best assignment of one core's packets to the events that its program makes it send, compiled.

A semi-Markov chain with gaps, after the alignment of sequences with affine gap costs (Gotoh, "An
improved algorithm for matching biological sequences", 1982) and explicit-duration hidden Markov models
(Yu, "Hidden semi-Markov models", 2010, section 2): the state is the latest event that was matched, a
packet is matched to one of the events after it (those between were lost) or is spurious, and the time
since is judged by the sum of the transitions' times. Searched with a beam; what all surviving
assignments agree on is settled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["BEAM", "Costs", "Room", "advance", "agreed", "compacted", "path_of"]

Floats = npt.NDArray[np.float64]

# Columns of an assignment: its score, the time, nominal time, nominal variance and number of the
# latest event, the launch and place of that event, the speed, the nominal time that the core waited,
# the offset from the host's clock to the device's (NaN: not known yet), and the node that it ends with.
_SCORE, _TIME, _MEAN, _VAR, _NUMBER, _LAUNCH, _PLACE, _SPEED, _IDLE, _OFFSET, _NODE = range(11)
BEAM = 11
"""Numbers that make up an assignment."""

_WIDEST = 4096  # assignments that one packet may give rise to, before they are thinned out
_SLOTS = 4 * _WIDEST
_BORN_NARROW = 64  # packets after a fresh start that are searched with the widest beam
_REACH = 8.0  # standard deviations before an event's time beyond which nothing is tried
_WAY = 16.0  # launches before the end of such a gap from which on it is searched
_LAUNCHES = 64  # that one packet is tried in,
_PASSED = 4096  # and launches of other programs that are passed over on the way
_STEADY = 0.1  # relative deviation of a time that tells as much of the speed as of itself
_BACKLOG = 16  # launches that may wait in the device's queue when a search starts afresh
_FOLLOW = 0.1  # how fast the offset follows launches that begin when they are due,
_RISE = 0.02  # and ones that begin later
_SKIP = 4.0  # launches: a gap longer than this is searched by time, not event by event


class Costs(NamedTuple):
    """Logarithms of probabilities, and what else judges an assignment.

    Attributes:
        kept: no event was lost.
        opened: one was; each further one costs ``extended``.
        long: a long loss, of any length: spread evenly over its logarithm.
        marked_kept, marked_opened: the same where the device reported a loss.
        spurious: a packet that no event sent, with its density in time.
        stalled: a transition that takes longer than it should, by anything.
        paused: a launch that begins later than it could, by anything.
        early: a core that waits less than usual, by anything.
        stall_ns: least scale of such a delay.
        beam: assignments that are this much worse than the best are given up.
        cap: assignments kept.
        restart: of a fresh start; made when ``patience`` packets in a row fitted nothing.
        astray: of a launch that was elsewhere in time by the other cores' packets.
        floor_ns2: variance of what the time stamps' resolution rounds away.
        inertia_ns: time in which the speed adapts.
    """

    kept: float
    opened: float
    extended: float
    long: float
    marked_kept: float
    marked_opened: float
    spurious: float
    stalled: float
    paused: float
    early: float
    stall_ns: float
    beam: float
    cap: int
    restart: float
    patience: int
    astray: float
    floor_ns2: float
    inertia_ns: float


class Room(NamedTuple):
    """Memory that the search works in; nothing in it outlives a call.

    Attributes:
        fresh: float64, the assignments after a packet.
        slot: int64, where an assignment with an event's number is in ``fresh``,
        stamp: int64, and for which packet that holds.
    """

    fresh: npt.NDArray[np.float64]
    slot: npt.NDArray[np.int64]
    stamp: npt.NDArray[np.int64]

    @classmethod
    def make(cls) -> Room:
        """Room for one search at a time."""
        return cls(np.empty((_WIDEST, BEAM)), np.zeros(_SLOTS, np.int64), np.full(_SLOTS, -1, np.int64))


@njit(cache=True, nogil=True)
def _push(
    room: Any, size: Any, token: Any, best: Any, beam: Any,
    score: Any, time: Any, mean: Any, var: Any, number: Any, launch: Any, place: Any, speed: Any, idle: Any,
    offset: Any, node: Any,
) -> Any:  # fmt: skip
    """Enter an assignment unless a better one ends with the same match; the new size."""
    if score < best - beam:
        return size
    at = number & (_SLOTS - 1)
    while room.stamp[at] == token:
        row = room.slot[at]
        if room.fresh[row, _NUMBER] == number and room.fresh[row, _TIME] == time:
            if room.fresh[row, _SCORE] >= score:
                return size
            break
        at = (at + 1) & (_SLOTS - 1)
    else:
        if size >= _WIDEST:
            return size
        row = size
        size += 1
        room.stamp[at] = token
        room.slot[at] = row
    out = room.fresh[row]
    out[_SCORE] = score
    out[_TIME] = time
    out[_MEAN] = mean
    out[_VAR] = var
    out[_NUMBER] = number
    out[_LAUNCH] = launch
    out[_PLACE] = place
    out[_SPEED] = speed
    out[_IDLE] = idle
    out[_OFFSET] = offset
    out[_NODE] = node
    return size


@njit(cache=True, nogil=True)
def _lost(costs: Any, marked: Any, count: Any) -> Any:
    """Logarithm of the probability that ``count`` events in a row were lost."""
    if count == 0:
        return costs.marked_kept if marked else costs.kept
    short = (costs.marked_opened if marked else costs.opened) + costs.extended * (count - 1)
    if count < 8:
        return short
    return max(short, costs.long - np.log(count))


@njit(cache=True, nogil=True)
def _first_after(track: Any, kind: Any, place: Any) -> Any:
    """Where in a list of occurrences the first one after ``place`` is."""
    low, high = track.occurs_first[kind], track.occurs_first[kind + 1]
    while low < high:
        middle = (low + high) // 2
        if track.occurs[middle] > place:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True)
def _launch_near(track: Any, mean: Any, launch: Any) -> Any:
    """The last launch that nominally begins before ``mean``, not before ``launch``."""
    if len(track.launch_program) == 0:
        return max(launch, np.int64(mean / track.period_ns))
    return max(launch, _before(track.mean_before, mean))


@njit(cache=True, nogil=True)
def _before(ascending: Any, value: Any) -> Any:
    """Position of the last entry that is below ``value``; -1: none is."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit(cache=True, nogil=True)
def _score_of_rank(fresh: Any, count: Any, cap: Any, low: Any, high: Any) -> Any:
    """A score that about ``cap`` of the assignments between ``low`` and ``high`` reach, not many more."""
    for _ in range(16):
        middle = 0.5 * (low + high)
        reached = 0
        for row in range(count):
            reached += fresh[row, _SCORE] >= middle
        if reached > cap:
            low = middle
        else:
            high = middle
    return high


@njit(cache=True, nogil=True)
def _seed(
    room: Any, size: Any, token: Any, best: Any, costs: Any, track: Any, tie: Any,
    symbol: Any, time: Any, low: Any, high: Any, score: Any, speed: Any, offset: Any,
    node: Any,
) -> Any:  # fmt: skip
    """Enter an assignment for every event of ``symbol`` in the launches from ``low`` to below ``high``."""
    cyclic, marked = len(track.launch_program) == 0, False
    for launch in range(low, high):
        program = 0 if cyclic else track.launch_program[launch]
        kind = program * track.symbols + symbol
        number = launch * track.events if cyclic else track.count_before[launch]
        mean = launch * track.period_ns if cyclic else track.mean_before[launch]
        var = launch * track.period_var if cyclic else track.var_before[launch]
        idle = launch * track.period_idle if cyclic else track.idle_before[launch]
        for at in range(track.occurs_first[kind], track.occurs_first[kind + 1]):
            place = track.occurs[at]
            event = track.first[program] + place
            here = score
            if node == -2.0:  # most traces begin where the program does
                here += max(_lost(costs, marked, number + place), -6.0 - np.log(track.events))
            here += _astray(costs, track, tie, launch, event, time, speed)
            since = offset
            if len(tie.submit_ns) > 0:
                since = time - track.since_begin[event] * speed - tie.submit_ns[launch]
                usual = 2.0 * np.sqrt(track.since_var[event] * speed * speed + tie.submit_var)
                if since < offset - usual:  # nothing begins before it is submitted
                    if node == -2.0:
                        continue
                    here += costs.astray
                since = offset if since > offset else since
            size = _push(
                room, size, token, best, 1e300, here, time, mean + track.local_mean[event],
                var + track.local_var[event], number + place, launch, place, speed,
                idle + track.local_idle[event], since, node,
            )  # fmt: skip
    return size


@njit(cache=True, nogil=True)
def _astray(costs: Any, track: Any, tie: Any, launch: Any, event: Any, time: Any, speed: Any) -> Any:
    """What it costs that the other cores were elsewhere when ``launch`` should have sent ``event``."""
    at = launch - tie.first_launch
    if at < 0 or at >= len(tie.begin_ns) or not np.isfinite(tie.begin_ns[at]):
        return 0.0
    off = time - tie.begin_ns[at] - track.since_begin[event] * speed
    return costs.astray if abs(off) > tie.tolerance_ns else 0.0


@njit(cache=True, nogil=True)
def _offset_by(offset: Any, since: Any, var: Any, tie: Any, released: Any) -> Any:
    """The offset between the clocks, after a launch that began ``since`` after its submit."""
    off, usual = since - offset, 2.0 * np.sqrt(var + tie.submit_var)
    if off < -usual:  # it was never more than this; all before had waited
        return since + usual
    if off < usual:  # by what this launch says of it, over what the nominal time since its begin may be off
        return offset + _FOLLOW * off * tie.submit_var / (var + tie.submit_var)
    return offset + min(_RISE * off, usual) if released else offset


@njit(cache=True, nogil=True)
def advance(
    times: Any, symbols: Any, marks: Any, begin: Any, token: Any, track: Any, tie: Any, costs: Any, room: Any,
    beam: Any, size: Any, nodes: Any, used: Any, idle: Any, born: Any,
) -> Any:  # fmt: skip
    """Assign packets one after the other.

    Args:
        times: float64, of one core's packets, ascending; ns since the trace's first packet.
        symbols: int32, what each packet says; -1: nothing that this core sends.
        marks: bool, whether the device reported a loss just before it.
        begin: the first packet to look at.
        token: int64, of that packet; different for each packet of a core.
        track: what the core sends, :class:`framefit.profiling.tracks.Track`.
        tie: when launches began, :class:`framefit.profiling.tracks.Tie`.
        costs: what judges.
        room: to work in.
        beam: float64, the assignments so far, ``size`` of them; overwritten.
        size: 1 with a launch of -1 at the beginning.
        nodes: int64, a row for each match of an assignment that survived: packet's token, launch,
            place, and the row of the match before (-1: none, or settled long ago). Appended to.
        used: rows of ``nodes`` so far.
        idle: packets since the best assignment matched one.
        born: packets since the latest fresh start.

    Returns:
        The packet to go on with (their number: all are assigned; else ``nodes`` is full), then
        ``size``, ``used``, ``idle`` and ``born``.
    """
    cyclic = len(track.launch_program) == 0
    submits = len(tie.submit_ns) > 0
    index = begin
    while index < len(times):
        width = min(_WIDEST, beam.shape[0])
        if used + width > len(nodes):
            break
        time, symbol, marked, count = times[index], symbols[index], marks[index], 0
        best = beam[0, _SCORE]
        for row in range(1, size):
            best = max(best, beam[row, _SCORE])
        top = best + costs.spurious  # at least this is reached: nothing much below it has to be kept
        lead = 0
        for row in range(size):
            old = beam[row]
            if old[_SCORE] == best:
                lead = row
            # the packet is spurious
            count = _push(
                room, count, token, top, costs.beam, old[_SCORE] + costs.spurious, old[_TIME], old[_MEAN],
                old[_VAR], np.int64(old[_NUMBER]), np.int64(old[_LAUNCH]), np.int64(old[_PLACE]), old[_SPEED],
                old[_IDLE], old[_OFFSET], np.float64(old[_NODE]),
            )  # fmt: skip
            if symbol < 0:
                continue
            launch = np.int64(old[_LAUNCH])
            if launch < 0:
                count = _seed(
                    room, count, token, top, costs, track, tie, symbol, time, tie.low, tie.high,
                    old[_SCORE], np.float64(1.0), tie.offset_ns, np.float64(-2.0),
                )  # fmt: skip
                born = 0
                continue
            place, speed = np.int64(old[_PLACE]), old[_SPEED]
            since = time - old[_TIME]
            first_launch, jumped = launch, since < _SKIP * track.period_ns * speed
            tried = passed = 0
            while launch < tie.end and tried < _LAUNCHES and passed < _PASSED:
                passed += 1
                program = 0 if cyclic else track.launch_program[launch]
                kind = program * track.symbols + symbol
                if track.occurs_first[kind] < track.occurs_first[kind + 1]:
                    number = launch * track.events if cyclic else track.count_before[launch]
                    mean0 = launch * track.period_ns if cyclic else track.mean_before[launch]
                    var0 = launch * track.period_var if cyclic else track.var_before[launch]
                    tried += 1
                    idle0 = launch * track.period_idle if cyclic else track.idle_before[launch]
                    at = _first_after(track, kind, place)
                    beyond = False
                    while at < track.occurs_first[kind + 1]:
                        spot = track.occurs[at]
                        event = track.first[program] + spot
                        mean = mean0 + track.local_mean[event]
                        var = var0 + track.local_var[event]
                        mu = (mean - old[_MEAN]) * speed
                        var_here = (var - old[_VAR]) * speed * speed + costs.floor_ns2
                        soonest, soonest_var, offset = mu, var_here, old[_OFFSET]
                        if submits and launch > first_launch:
                            begin = track.since_begin[event] * speed + tie.submit_ns[launch]
                            if begin + offset - old[_TIME] > mu:
                                mu = begin + offset - old[_TIME]
                                var_here = track.since_var[event] * speed * speed + tie.submit_var
                            offset = _offset_by(
                                offset, time - begin, track.since_var[event] * speed * speed, tie, mu > soonest
                            )
                        excess, less = since - mu, 0.0
                        waits = idle0 + track.local_idle[event]
                        if excess < 0.0:  # the core need not have waited
                            less = min(waits - old[_IDLE], track.period_ns) * speed + mu - soonest
                            must = excess + less
                            if must < 0.0 and must * must > _REACH * _REACH * soonest_var:
                                beyond = True
                                break
                        lost = number + spot - np.int64(old[_NUMBER]) - 1
                        chance = -0.5 * excess * excess / var_here - 0.5 * np.log(6.283185307179586 * var_here)
                        if excess > 0.0 and excess * excess > 4.0 * var_here:
                            late = costs.paused if launch > first_launch else costs.stalled
                            chance = max(chance, late - np.log(excess + costs.stall_ns))
                        elif excess < 0.0 and excess * excess > 4.0 * var_here and excess + less > 0:
                            chance = max(chance, costs.early - np.log(less))
                        score = old[_SCORE] + chance + _lost(costs, marked, lost)
                        if score > top - costs.beam:
                            if lost > 0 and launch > first_launch:  # else the core knows better itself
                                score += _astray(costs, track, tie, launch, event, time, speed)
                            usual = 2.0 * np.sqrt(var_here)
                            change = 0.0
                            if mu <= soonest:  # what varies much by itself says little of the speed
                                change = min(max(excess, -usual), usual) / (mu + costs.inertia_ns)
                                change *= mu * mu / (mu * mu + var_here / (_STEADY * _STEADY))
                            count = _push(
                                room, count, token, top, costs.beam, score, time, mean, var, number + spot, launch,
                                spot, speed * (1.0 + min(max(change, -0.2), 0.2)), waits, offset,
                                -3.0 - old[_NODE],
                            )  # fmt: skip
                            top = max(top, score)
                        at += 1
                    if beyond:
                        break
                launch += 1
                place = np.int64(-1)
                if not jumped and launch > first_launch + 1:
                    jumped = True
                    least = max(0.75 * since, since - _WAY * track.period_ns * speed)
                    if submits:
                        launch = max(launch, _before(tie.submit_ns, old[_TIME] + least - old[_OFFSET]))
                    else:
                        launch = _launch_near(track, old[_MEAN] + least / speed, launch)
        # a fresh start: nothing has fitted for long
        idle += 1
        if symbol >= 0 and idle > costs.patience and beam[lead, _LAUNCH] >= 0:
            low = max(np.int64(beam[lead, _LAUNCH]), tie.low)
            waited = (time - beam[lead, _TIME]) / beam[lead, _SPEED]
            near = _launch_near(track, beam[lead, _MEAN] + waited, low)
            if submits:
                near = max(low, _before(tie.submit_ns, time - beam[lead, _OFFSET]))
            low = max(low, near - (_BACKLOG if submits else 2))
            count = _seed(
                room, count, token, top, costs, track, tie, symbol, time, low, min(near + 2, tie.end),
                best + costs.restart, beam[lead, _SPEED], beam[lead, _OFFSET], -3.0 - beam[lead, _NODE],
            )  # fmt: skip
            idle, born = 0, 0
        # thin out
        top = room.fresh[0, _SCORE]
        for row in range(1, count):
            top = max(top, room.fresh[row, _SCORE])
        least = top - costs.beam
        cap = width if born < _BORN_NARROW else min(costs.cap, width)
        born += 1
        if count > cap:
            least = _score_of_rank(room.fresh, count, cap, least, top)
        size = 0
        for row in range(count):
            new = room.fresh[row]
            if new[_SCORE] < least or size >= cap:
                continue
            node = new[_NODE]
            if node <= -2.0:  # matched: -3 - parent, or -2 for none before
                if new[_SCORE] == top:
                    idle = 0
                nodes[used, 0] = token
                nodes[used, 1] = np.int64(new[_LAUNCH])
                nodes[used, 2] = np.int64(new[_PLACE])
                nodes[used, 3] = np.int64(-3.0 - node)
                node = used
                used += 1
            for column in range(_NODE):
                beam[size, column] = new[column]
            beam[size, _NODE] = node
            beam[size, _SCORE] -= top  # differences are all that matters; sums stay small
            size += 1
        token += 1
        index += 1
    return index, size, used, idle, born


@njit(cache=True, nogil=True)
def agreed(beam: Any, size: Any, nodes: Any) -> Any:
    """The latest match that all assignments have in common; -1: none."""
    live = np.empty(size, np.int64)
    for row in range(size):
        live[row] = np.int64(beam[row, _NODE])
    while True:
        low, high = live.min(), live.max()
        if low == high or low < 0:
            return max(low, -1) if low == high else -1
        for row in range(size):
            if live[row] == high:
                live[row] = nodes[high, 3]


@njit(cache=True, nogil=True)
def path_of(nodes: Any, node: Any) -> Any:
    """Rows of ``nodes`` from the first match to ``node``."""
    count, at = 0, node
    while at >= 0:
        count += 1
        at = nodes[at, 3]
    path = np.empty(count, np.int64)
    at = node
    while at >= 0:
        count -= 1
        path[count] = at
        at = nodes[at, 3]
    return path


@njit(cache=True, nogil=True)
def compacted(beam: Any, size: Any, nodes: Any, used: Any) -> Any:
    """Drop the matches that no assignment contains; how many rows are left."""
    kept = np.zeros(used, np.bool_)
    for row in range(size):
        at = np.int64(beam[row, _NODE])
        while at >= 0 and not kept[at]:
            kept[at] = True
            at = nodes[at, 3]
    rank = np.empty(used, np.int64)
    count = 0
    for old in range(used):
        rank[old] = count
        if kept[old]:
            for column in range(4):
                nodes[count, column] = nodes[old, column]
            if nodes[count, 3] >= 0:
                nodes[count, 3] = rank[nodes[count, 3]]
            count += 1
    for row in range(size):
        if beam[row, _NODE] >= 0:
            beam[row, _NODE] = rank[np.int64(beam[row, _NODE])]
    return count
