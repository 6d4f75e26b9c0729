"""Assigns one track's packets to the events that its program makes it send, in compiled loops.

A semi-Markov chain with gaps, after the alignment of sequences with affine gap costs (Gotoh, "An
improved algorithm for matching biological sequences", 1982) and explicit-duration hidden Markov models
(Yu, "Hidden semi-Markov models", 2010, section 2): the state is the latest event that was matched, a
packet is matched to one of the events after it (those between were lost) or is spurious, and the time
since is judged by the sum of the transitions' times. The search keeps a beam of assignments; what all of them
agree on is settled.

Each row of ``nodes`` is a match: the packet's token, launch, place, the row of the previous match (-1: none,
or settled long ago), and by how much later it was than its time stamp says. An assignment ends with a row, and
assignments share all rows before the one where they part.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]


# Columns of an assignment: its score, the time, nominal time, nominal variance and number of the
# latest event, the launch and place of that event, the speed, the nominal time that the track waited,
# the offset from the host's clock to the device's (NaN: not known yet), what its times are later than the packets say,
# as the clock wrapped around unseen, and the node that it ends with.
_SCORE, _TIME, _MEAN, _VAR, _NUMBER, _LAUNCH, _PLACE, _SPEED, _IDLE, _OFFSET, _SHIFT, _NODE = range(12)
BEAM = 12
"""Numbers that make up an assignment."""
_BITS = 12
_WIDEST = 1 << _BITS  # assignments that one packet may give rise to, before they are thinned out
_SLOTS = 4 * _WIDEST
_WIDE_PACKETS = 64  # packets after a fresh start that are searched with the widest beam
_HELD = 512  # packets after which a start has led somewhere
_REACH = 8.0  # standard deviations before an event's time beyond which nothing is tried
_HOPELESS = 200.0  # variances: so far behind its time an event was delayed, whatever that costs (less than 60 nats)
_WAY = 16.0  # launches before the end of such a gap from which on it is searched
_LAUNCHES = 64  # that one packet is tried in,
_PASSED = 4096  # and launches of other programs that are passed over on the way
_DELAYED = 0.5  # standard deviations by which a delay may move the speed at most
_STEADY = 0.1  # relative deviation of a time that tells as much of the speed as of itself
_BACKLOG = 16  # launches that may wait in the device's queue when a search starts afresh
_FOLLOW = 0.1  # how fast the offset follows launches that begin when they are due,
_RISE = 0.02  # and ones that begin later
_WRAPS = 64  # times that a clock may have wrapped around between two packets of a track, beyond what others show
_EACH_WRAP, _EACH_LAUNCH = 0.5, 0.75  # nats: of silences that times allow, shorter ones are likelier
_WRAPPED = 12.0  # how much less likely than the best assignment one may become by such a silence
_FEWER = 0.5  # of the events that such a silence should have: so many were lost at least
_SKIP = 4.0  # launches: a gap longer than this is searched by time, not event by event


class Delays(NamedTuple):
    """Times by which something is late. Their logarithm has Student's distribution.

    Attributes:
        chance: probability (no logarithm) of a delay.
        middle, spread: median and scale of the logarithm of delays, in nanoseconds.
        freedom: degrees of freedom.
        norm: logarithm of the density at the median, over ``chance`` and per unit of the logarithm.
    """

    chance: float
    middle: float
    spread: float
    freedom: float
    norm: float

    @classmethod
    def of(cls, chance: float, middle: float, spread: float, freedom: float = 1.0) -> Delays:
        """Make them; one degree of freedom is Cauchy's distribution."""
        norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
        return cls(chance, middle, spread, freedom, norm - math.log(spread))


class Costs(NamedTuple):
    """Logarithms of probabilities, and other parameters that judge an assignment.

    Attributes:
        kept: no event was lost.
        opened: some events were lost.
        marked_kept, marked_opened: the same where the device reported a loss.
        lengths: float64, by the number of lost events, if some were lost; the last entry's density continues.
        spurious: a packet that no event sent, with its density in time.
        hidden: a launch that begins after launches of which nothing was recorded.
        stalls: of transitions that take longer than they should.
        pauses: of launches that begin later than they could.
        early: a track that waits less than usual, by any time.
        stall_ns: least scale of such a delay.
        beam: assignments that are this much worse than the best are dropped.
        cap: number of assignments that are kept.
        restart: of a restart, which is made when ``patience`` packets in a row fitted nothing.
        disagreement: of a launch that was elsewhere in time by the packets of the other tracks.
        floor_ns2: variance of what the resolution of time stamps rounds away.
        launch_var: variance of the speed of single launches.
        inertia_ns: time in which the speed adapts.
    """

    kept: float
    opened: float
    marked_kept: float
    marked_opened: float
    lengths: Floats
    spurious: float
    hidden: float
    stalls: Delays
    pauses: Delays
    early: float
    stall_ns: float
    beam: float
    cap: int
    restart: float
    patience: int
    disagreement: float
    floor_ns2: float
    launch_var: float
    inertia_ns: float


class Workspace(NamedTuple):
    """Memory of the search; nothing in it outlives a call.

    Attributes:
        fresh: float64, the assignments after a packet.
        slots: int64, hash table from an event's number to the assignment in ``fresh``, valid for one packet.
    """

    fresh: Floats
    slots: npt.NDArray[np.int64]

    @classmethod
    def allocate(cls) -> Workspace:
        """Allocate memory for one search at a time."""
        return cls(np.empty((_WIDEST, BEAM)), np.full(_SLOTS, -1, np.int64))


# Arguments that are many arrays are taken apart in the compiled functions that are called for each packet: to
# hand them on costs more than what is done with them.


@njit(cache=True, nogil=True, error_model="numpy")
def _push(
    fresh: Any, slots: Any, size: Any, token: Any, score: Any, time: Any, mean: Any, var: Any, number: Any,
    launch: Any, place: Any, speed: Any, idle: Any, offset: Any, shift: Any, node: Any,
) -> Any:  # fmt: skip
    """Add an assignment unless a better one ends with the same match; return the new size."""
    at = number & (_SLOTS - 1)
    row = size
    while slots[at] >> _BITS == token:
        there = slots[at] & (_WIDEST - 1)
        if fresh[there, _NUMBER] == number and fresh[there, _TIME] == time:
            if fresh[there, _SCORE] >= score:
                return size
            row = there
            break
        at = (at + 1) & (_SLOTS - 1)
    if row == size:
        if size >= _WIDEST:
            return size
        slots[at] = token << _BITS | row
        size += 1
    fresh[row, _SCORE] = score
    fresh[row, _TIME] = time
    fresh[row, _MEAN] = mean
    fresh[row, _VAR] = var
    fresh[row, _NUMBER] = number
    fresh[row, _LAUNCH] = launch
    fresh[row, _PLACE] = place
    fresh[row, _SPEED] = speed
    fresh[row, _IDLE] = idle
    fresh[row, _OFFSET] = offset
    fresh[row, _SHIFT] = shift
    fresh[row, _NODE] = node
    return size


@njit(cache=True, nogil=True, error_model="numpy")
def _loss_log(kept: Any, opened: Any, lengths: Any, count: Any) -> Any:
    """Logarithm of the probability that ``count`` events in a row were lost."""
    if count == 0:
        return kept
    last = len(lengths) - 1
    if count <= last:
        return opened + lengths[count]
    return opened + lengths[last] - math.log(count / last)


@njit(cache=True, nogil=True, error_model="numpy")
def _hidden_log(hidden: Any, launches: Any) -> Any:
    """Logarithm of the probability that ``launches`` in a row were not recorded: few are likelier than many."""
    return hidden - math.log(launches * (launches + 1.0))


@njit(cache=True, nogil=True, error_model="numpy")
def _delay_log(delays: Any, tries: Any, excess: Any) -> Any:
    """Logarithm of the density of a delay by ``excess``, where ``tries`` of them may have happened."""
    logarithm = math.log(excess)
    z = (logarithm - delays.middle) / delays.spread
    tail = 0.5 * (delays.freedom + 1.0) * math.log(1.0 + z * z / delays.freedom)
    return delays.norm + math.log(delays.chance * tries) - tail - logarithm


@njit(cache=True, nogil=True, error_model="numpy")
def _first_after(occurs: Any, low: Any, high: Any, place: Any) -> Any:
    """Position of the first occurrence after ``place``."""
    while low < high:
        middle = (low + high) >> 1
        if occurs[middle] > place:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, nogil=True, error_model="numpy")
def _launch_near(track: Any, mean: Any, launch: Any) -> Any:
    """Return the last launch that nominally begins before ``mean``, and at least ``launch``."""
    if len(track.launch_program) == 0:
        return max(launch, np.int64(mean / track.period_ns))
    return max(launch, _before(track.mean_before, mean))


@njit(cache=True, nogil=True, error_model="numpy")
def _before(ascending: Any, value: Any) -> Any:
    """Position of the last entry that is below ``value``; -1 if there is none."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit(cache=True, nogil=True, error_model="numpy")
def _score_of_rank(fresh: Any, count: Any, cap: Any, low: Any, high: Any) -> Any:
    """Find a score between ``low`` and ``high`` that about ``cap`` assignments reach, and not many more."""
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


@njit(cache=True, nogil=True, error_model="numpy")
def _add_starts(
    workspace: Any, size: Any, token: Any, costs: Any, track: Any, timing: Any,
    symbol: Any, time: Any, low: Any, high: Any, score: Any, speed: Any, offset: Any,
    shift: Any, node: Any,
) -> Any:  # fmt: skip
    """Add an assignment for every event of ``symbol`` in the launches from ``low`` to below ``high``."""
    cyclic = len(track.launch_program) == 0
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
            if node == -2.0:  # most traces begin where the program does, or after what was overwritten
                missing = abs(np.int64(number + place - timing.overwritten))
                lost = _loss_log(costs.kept, costs.opened, costs.lengths, missing)
                here += max(lost, -6.0 - math.log(track.events))
            begin = time + shift - track.since_begin[event] * speed
            here += _disagreement(
                costs.disagreement, timing.begin_ns, timing.first_launch, timing.tolerance_ns, launch, begin
            )
            since = offset
            if len(timing.submit_ns) > 0:
                since = begin - timing.submit_ns[launch]
                usual = 2.0 * np.sqrt(track.since_var[event] * speed * speed + timing.submit_var)
                if since < offset - usual:  # nothing begins before it is submitted
                    if node == -2.0:
                        continue
                    here += costs.disagreement
                since = offset if since > offset else since
            size = _push(
                workspace.fresh, workspace.slots, size, token, here, time, mean + track.local_mean[event],
                var + track.local_var[event], number + place, launch, place, speed,
                idle + track.local_idle[event], since, shift, node,
            )  # fmt: skip
    return size


@njit(cache=True, nogil=True, error_model="numpy")
def _disagreement(astray: Any, begin_ns: Any, first_launch: Any, tolerance_ns: Any, launch: Any, begin: Any) -> Any:
    """Return the cost where, by the other tracks, ``launch`` did not begin at ``begin``."""
    at = launch - first_launch
    if at < 0 or at >= len(begin_ns) or not np.isfinite(begin_ns[at]):
        return 0.0
    return astray if abs(begin - begin_ns[at]) > tolerance_ns else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _updated_offset(offset: Any, since: Any, var: Any, submit_var: Any, released: Any) -> Any:
    """Update the offset between the clocks after a launch that began ``since`` after its submit."""
    off, usual = since - offset, 2.0 * math.sqrt(var + submit_var)
    if off < -usual:  # it was never more than this; all before had waited
        return since + usual
    if off < usual:  # by what this launch says of it, over what the nominal time since its begin may be off
        return offset + _FOLLOW * off * submit_var / (var + submit_var)
    return offset + min(_RISE * off, usual) if released else offset


@njit(cache=True, nogil=True, error_model="numpy")
def assign_packets(
    times: Any, symbols: Any, marks: Any, begin: Any, token: Any, track: Any, timing: Any, costs: Any, workspace: Any,
    beam: Any, size: Any, nodes: Any, used: Any, unmatched: Any, since_restart: Any,
) -> Any:  # fmt: skip
    """Assign packets in order of time.

    Args:
        times: float64, of one track's packets, ascending; ns since the trace's first packet.
        symbols: int32, symbol of each packet; -1 for one that this track never sends.
        marks: bool, whether the device reported a loss just before it.
        begin: the first packet to assign.
        token: int64, of that packet; different for each packet of a track.
        track: events of the track, :class:`framefit.profiling.align.tracks.Track`.
        timing: when launches began, :class:`framefit.profiling.align.tracks.LaunchTiming`.
        costs: :class:`Costs`.
        workspace: :class:`Workspace`.
        beam: float64, the assignments so far, ``size`` of them; overwritten.
        size: 1 with a launch of -1 at the beginning.
        nodes: int64, a row for each match of a surviving assignment; rows are appended.
        used: rows of ``nodes`` so far.
        unmatched: packets since the best assignment matched one.
        since_restart: packets since the latest restart.

    Returns:
        The packet to go on with (their number if all are assigned; else ``nodes`` is full), then ``size``,
        ``used``, ``unmatched`` and ``since_restart``, and what the packets added to the best assignment's score.
    """
    programs, occurs_first, occurs, first = track.launch_program, track.occurs_first, track.occurs, track.first
    local_mean, local_var, local_idle = track.local_mean, track.local_var, track.local_idle
    count_before, mean_before, var_before = track.count_before, track.mean_before, track.var_before
    idle_before, since_begin, since_var = track.idle_before, track.since_begin, track.since_var
    symbols_each, events, period_ns = track.symbols, track.events, track.period_ns
    period_var, period_idle = track.period_var, track.period_idle
    submit_ns, begin_ns, lengths, wrap_ns = timing.submit_ns, timing.begin_ns, costs.lengths, timing.wrap_ns
    fresh, slots, floor_ns2, stall_ns = workspace.fresh, workspace.slots, costs.floor_ns2, costs.stall_ns
    launch_var = costs.launch_var
    least_var = 0.25 * floor_ns2  # of any time, also where the device is fast
    least_norm = 0.5 * math.log(6.283185307179586 * least_var)
    likeliest_early = costs.early - math.log(2.0 * math.sqrt(least_var))  # it waited less by two deviations or more
    cyclic, submits = len(programs) == 0, len(submit_ns) > 0
    known = submits and np.isfinite(timing.offset_ns)
    width = min(_WIDEST, beam.shape[0])
    index, worth = begin, 0.0
    while index < len(times) and used + width <= len(nodes):
        stamp, symbol, count = times[index], symbols[index], np.int64(0)
        kept, opened = (costs.marked_kept, costs.marked_opened) if marks[index] else (costs.kept, costs.opened)
        lead, top = 0, -np.inf
        for row in range(size):
            if beam[row, _SCORE] > top:
                lead, top = row, beam[row, _SCORE]
        best = top
        top += costs.spurious  # at least this is reached: nothing much below it has to be kept
        for row in range(size):
            score0, stamp0, mean00, speed = beam[row, _SCORE], beam[row, _TIME], beam[row, _MEAN], beam[row, _SPEED]
            shift0 = beam[row, _SHIFT]
            time0 = stamp0 + shift0
            var00, idle00, offset0, node0 = beam[row, _VAR], beam[row, _IDLE], beam[row, _OFFSET], beam[row, _NODE]
            number0, launch0, place0 = (
                np.int64(beam[row, _NUMBER]), np.int64(beam[row, _LAUNCH]), np.int64(beam[row, _PLACE]),
            )  # fmt: skip
            expected = False
            if symbol >= 0 and launch0 < 0:
                count = _add_starts(
                    workspace, count, token, costs, track, timing, symbol, stamp, timing.low, timing.high, score0, 1.0,
                    timing.offset_ns, 0.0, -2.0,
                )  # fmt: skip
                since_restart = 0
            wraps = 0 if symbol < 0 or launch0 < 0 else 1 if wrap_ns <= 0.0 else _WRAPS
            for wrap in range(wraps):
                shift = shift0 + wrap * wrap_ns
                time = stamp + shift
                since, launch, place, rare = time - time0, launch0, place0, 0.0
                if wrap > 0:
                    silent = since / (period_ns * speed)
                    if submits:
                        silent = max(_before(submit_ns, time - offset0) - launch0 - 1.0, 0.0)
                    rare = _EACH_LAUNCH * silent + (0.0 if submits else _EACH_WRAP * wrap)
                    missing = np.int64(_FEWER * silent * events)
                    unseen = max(
                        _loss_log(kept, opened, lengths, missing),
                        _hidden_log(costs.hidden, max(silent - 1.0, 1.0)) + opened + opened,
                    )
                    spread = _STEADY * _STEADY * since
                    unseen -= 0.5 * math.log(6.283185307179586 * (floor_ns2 + spread * spread)) + rare
                    if score0 + unseen < top - _WRAPPED:
                        break
                    if silent > 2.0:
                        launch = max(launch, _launch_near(track, mean00 + 0.5 * since / speed, launch))
                        place = place if launch == launch0 else np.int64(-1)
                jumped = since < _SKIP * period_ns * speed
                tried = passed = 0
                while launch < timing.end and tried < _LAUNCHES and passed < _PASSED:
                    passed += 1
                    program = 0 if cyclic else programs[launch]
                    kind = program * symbols_each + symbol
                    at, until = occurs_first[kind], occurs_first[kind + 1]
                    if at < until:
                        tried += 1
                        if cyclic:
                            number, mean0, var0, idle0 = (
                                launch * events, launch * period_ns, launch * period_var, launch * period_idle,
                            )  # fmt: skip
                        else:
                            number, mean0, var0, idle0 = (
                                count_before[launch], mean_before[launch], var_before[launch], idle_before[launch],
                            )  # fmt: skip
                        at = _first_after(occurs, at, until, place)
                        beyond = False
                        while at < until:
                            spot = occurs[at]
                            event = first[program] + spot
                            mean, var = mean0 + local_mean[event], var0 + local_var[event]
                            mu = (mean - mean00) * speed
                            var_here = (var - var00) * speed * speed + floor_ns2
                            var_here += launch_var * mu * min(mu, period_ns)  # launches vary for themselves
                            soonest, soonest_var, offset, refused = mu, var_here, offset0, 0.0
                            if submits and launch > launch0:
                                begin_at = since_begin[event] * speed + submit_ns[launch]
                                since_v = (since_var[event] + launch_var * since_begin[event] ** 2) * speed * speed
                                if begin_at + offset - time0 > mu:
                                    mu, var_here = begin_at + offset - time0, since_v + timing.submit_var
                                ahead = begin_at + offset - time  # nothing begins before it is submitted
                                if (
                                    known
                                    and ahead > 0.0
                                    and ahead * ahead > _REACH * _REACH * (since_v + timing.submit_var)
                                ):
                                    refused = costs.disagreement
                                offset = _updated_offset(
                                    offset, time - begin_at, since_v, timing.submit_var, mu > soonest
                                )
                            excess, less = since - mu, 0.0
                            waits = idle0 + local_idle[event]
                            if wrap > 0 and excess < 0.0:
                                if excess * excess > _REACH * _REACH * var_here:
                                    beyond = True
                                    break
                            elif excess < 0.0:  # the track need not have waited
                                less = min(waits - idle00, period_ns) * speed + mu - soonest
                                must = excess + less
                                if must < 0.0 and must * must > _REACH * _REACH * soonest_var:
                                    beyond = True
                                    break
                            lost = number + spot - number0 - 1
                            losses = _loss_log(kept, opened, lengths, lost)
                            if launch > launch0 + 1:  # or those before were never recorded
                                ends = (launch0 + 1) * events if cyclic else count_before[launch0 + 1]
                                losses = max(
                                    losses,
                                    _hidden_log(costs.hidden, launch - launch0 - 1)
                                    + _loss_log(kept, opened, lengths, ends - 1 - number0)
                                    + _loss_log(kept, opened, lengths, spot),
                                )
                            squares = excess * excess / var_here
                            least = top - (costs.beam if wrap == 0 else _WRAPPED)
                            if lost > 0 and excess < 0.0:  # most are hopeless, which costs no logarithm to see
                                likeliest = -0.5 * squares - least_norm
                                if squares > 4.0:
                                    likeliest = max(likeliest, likeliest_early)
                                if score0 + likeliest + losses + refused - rare <= least:
                                    at += 1
                                    continue
                            chance, trust = -np.inf, 2.0
                            if excess <= 0.0 or squares <= _HOPELESS:
                                chance = -0.5 * squares - 0.5 * math.log(6.283185307179586 * var_here)
                            if squares <= 4.0:
                                expected |= lost == 0 and chance + kept > costs.spurious + 0.5 * costs.beam
                            else:
                                usual = chance
                                if excess > 0.0:  # any of the transitions may have been late
                                    chance = max(chance, _delay_log(costs.stalls, lost + 1, excess + stall_ns))
                                    if launch > launch0:
                                        chance = max(chance, _delay_log(costs.pauses, 1, excess + stall_ns))
                                elif excess + less > 0.0:
                                    chance = max(chance, costs.early - math.log(less))
                                if chance > usual:  # a delay says little of the speed
                                    trust = _DELAYED
                            score = score0 + chance + losses + refused - rare
                            if (
                                lost > 0 and launch > launch0 and score > top - costs.beam
                            ):  # else the track knows better
                                score += _disagreement(
                                    costs.disagreement, begin_ns, timing.first_launch, timing.tolerance_ns, launch,
                                    time - since_begin[event] * speed,
                                )  # fmt: skip
                            if score > least:
                                change = 0.0
                                if mu <= soonest:  # what varies much by itself says little of the speed
                                    usual = trust * math.sqrt(var_here)
                                    change = min(max(excess, -usual), usual) / (mu + costs.inertia_ns)
                                    change *= mu * mu / (mu * mu + var_here / (_STEADY * _STEADY))
                                    change = min(max(change, -0.2), 0.2)
                                count = _push(
                                    fresh, slots, count, token, score, stamp, mean, var, number + spot, launch, spot,
                                    speed * (1.0 + change), waits, offset, shift, -3.0 - node0,
                                )  # fmt: skip
                                top = max(top, score)
                            at += 1
                        if beyond:
                            break
                    launch += 1
                    place = np.int64(-1)
                    if not jumped and launch > launch0 + 1:
                        jumped = True
                        least = max(0.75 * since, since - _WAY * period_ns * speed)
                        if submits:
                            launch = max(launch, _before(submit_ns, time0 + least - offset0))
                        else:
                            launch = _launch_near(track, mean00 + least / speed, launch)
            if not expected and score0 + costs.spurious >= top - costs.beam:  # it may be spurious
                count = _push(
                    fresh, slots, count, token, score0 + costs.spurious, stamp0, mean00, var00, number0, launch0,
                    place0, speed, idle00, offset0, shift0, node0,
                )  # fmt: skip
        # a fresh start: nothing has fitted for long
        unmatched += 1
        if symbol >= 0 and unmatched > costs.patience and beam[lead, _LAUNCH] >= 0:
            low = max(np.int64(beam[lead, _LAUNCH]), timing.low)
            time = stamp + beam[lead, _SHIFT]
            waited = (stamp - beam[lead, _TIME]) / beam[lead, _SPEED]
            near = _launch_near(track, beam[lead, _MEAN] + waited, low)
            if submits:
                near = max(low, _before(submit_ns, time - beam[lead, _OFFSET]))
            low = max(low, near - (_BACKLOG if submits else 2))
            count = _add_starts(
                workspace, count, token, costs, track, timing, symbol, stamp, low, min(near + 2, timing.end),
                best + costs.restart, beam[lead, _SPEED], beam[lead, _OFFSET], beam[lead, _SHIFT],
                -3.0 - beam[lead, _NODE],
            )  # fmt: skip
            # one that soon led nowhere is followed by narrow ones: of another program's trace they all do
            unmatched, since_restart = 0, np.int64(0) if since_restart >= _HELD else np.int64(_WIDE_PACKETS)
        # thin out
        top = fresh[0, _SCORE]
        for row in range(1, count):
            top = max(top, fresh[row, _SCORE])
        least = top - costs.beam
        cap = width if since_restart < _WIDE_PACKETS else min(costs.cap, width)
        since_restart += 1
        if count > cap:
            least = _score_of_rank(fresh, count, cap, least, top)
        size = 0
        for row in range(count):
            if fresh[row, _SCORE] < least or size >= cap:
                continue
            node = fresh[row, _NODE]
            if node <= -2.0:  # matched: -3 - parent, or -2 for none before
                if fresh[row, _SCORE] == top:
                    unmatched = 0
                nodes[used, 0] = token
                nodes[used, 1] = np.int64(fresh[row, _LAUNCH])
                nodes[used, 2] = np.int64(fresh[row, _PLACE])
                nodes[used, 3] = np.int64(-3.0 - node)
                nodes[used, 4] = np.int64(fresh[row, _SHIFT])
                node = used
                used += 1
            for column in range(_NODE):
                beam[size, column] = fresh[row, column]
            beam[size, _NODE] = node
            beam[size, _SCORE] -= top  # differences are all that matters; sums stay small
            size += 1
        worth += top
        token += 1
        index += 1
    return index, size, used, unmatched, since_restart, worth


@njit(cache=True, nogil=True, error_model="numpy")
def common_match(beam: Any, size: Any, nodes: Any) -> Any:
    """Return the latest match that all assignments have in common; -1 if there is none."""
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


@njit(cache=True, nogil=True, error_model="numpy")
def trace_back(nodes: Any, node: Any) -> Any:
    """Return the rows of ``nodes`` from the first match to ``node``."""
    path = np.empty(node + 1, np.int64)  # matches come after those that they follow
    begin = node + 1
    while node >= 0:
        begin -= 1
        path[begin] = node
        node = nodes[node, 3]
    return path[begin:]


@njit(cache=True, nogil=True, error_model="numpy")
def matches_of(nodes: Any, path: Any, token: Any, first: Any, programs: Any, times: Any, marks: Any) -> Any:
    """Return packets, launches and events (int64), times (float64) and marks (bool) of the matches in ``path``.

    ``token`` is that of the first packet in ``times`` and ``marks``, ``first`` (int64) is where the events of each
    program begin, and ``programs`` (int64) is the program of each launch, or empty where the first one repeats.
    """
    count = len(path)
    packet, launch, event = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    time, marked = np.empty(count), np.empty(count, np.bool_)
    for at in range(count):
        row = path[at]
        packet[at], launch[at] = nodes[row, 0] - token, nodes[row, 1]
        event[at] = nodes[row, 2] + (first[programs[launch[at]]] if len(programs) > 0 else first[0])
        time[at], marked[at] = times[packet[at]] + nodes[row, 4], marks[packet[at]]
    return packet, launch, event, time, marked


@njit(cache=True, nogil=True, error_model="numpy")
def compact(beam: Any, size: Any, nodes: Any, used: Any) -> Any:
    """Drop the matches that no assignment contains, and return how many rows are left."""
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
            for column in range(5):
                nodes[count, column] = nodes[old, column]
            if nodes[count, 3] >= 0:
                nodes[count, 3] = rank[nodes[count, 3]]
            count += 1
    for row in range(size):
        if beam[row, _NODE] >= 0:
            beam[row, _NODE] = rank[np.int64(beam[row, _NODE])]
    return count
