"""Estimates transitions, durations and losses: from the program at first, then from the trace.

The costs of losses, delays and spurious packets follow from how frequent each of them is in this trace.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from framefit.profiling.align.tempo import TempoModel
from framefit.profiling.align.tracks import Track, make_track, retime
from framefit.profiling.align.viterbi import Costs, Delays
from framefit.profiling.edge_inference import Precedence, Times, Window, find_gaps, nominal_times
from framefit.profiling.sequence import Sequence
from framefit.stats import MAD_TO_DEVIATION, sorted_by_key

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_LONG = 64  # events lost in a row, from which on the length carries little information
_LENGTHS = 1024  # number of gap lengths that have a probability of their own
_PRIOR_GAPS = 5  # weight of the prior of gap lengths, as a number of gaps
_EXTENDED = 0.7  # probability that a gap goes on, before one was seen
_LONG_RATIO = 1e-2  # least part of gaps that are long
_SYMBOLS = 4  # that a spurious packet may plausibly have, of those that a track sends at any one time
_PRIOR_SPURIOUS = 2e-5  # spurious packets: devices lose packets often, and make them up hardly ever
_MOST_SPURIOUS = 1e-3  # more only seem so where the search has lost its way, and it would stay lost
_FEW = 8  # delays that weigh as much as the prior
_LATE_LEAST = 0.5
_LATE_SPREAD = 4.0
"""Scale of a delay's logarithm, before any was seen."""
_FREEDOMS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
_TAILS = np.array([12.7, 5.27, 3.75, 3.27, 3.07])
"""Quantile 0.975 over quantile 0.75 of Student's distribution with these degrees of freedom."""
_SILENCE = 0.5  # periods of launches by which a launch is so late that a lost one would explain it
_DECIDED = 3.0  # by how much likelier an explanation has to be for others not to count
RARE = 7.0
"""By how much likelier it has to be that a trace begins elsewhere: a thousandth of traces do."""
_COMPARED, _LEAST_COMPARED = 512, 8  # launches whose begins are held against submits
_MOST_SHIFTS = 4096  # launches by which numbers may be off
_ALIKE = 0.8  # of the launches: have to have the same program
_HIDDEN = 0.02  # launches after others that were not recorded, before any was seen


@dataclass
class _TransitionCounts:
    """Counts transitions that took about as long as expected, and those that did not."""

    usual: int = 0
    late: int = 0
    early: int = 0
    opened: int = 0
    paused: int = 0
    released: int = 0
    hidden: float = 0.0
    stalls: list[Floats] = field(default_factory=list)
    pauses: list[Floats] = field(default_factory=list)

    def add(self, excess: Floats, deviation: Floats, opens: npt.NDArray[np.bool_]) -> None:
        """Count transitions by their deviation from the expected time; ``opens`` marks those into another launch."""
        z = excess / deviation
        self.stalls.append(excess[(z > 6) & ~opens])
        self.pauses.append(excess[(z > 6) & opens])
        self.usual += int(np.count_nonzero(~opens))
        self.opened += int(np.count_nonzero(opens))
        self.late += int(np.count_nonzero((z > 6) & ~opens))
        self.paused += int(np.count_nonzero((z > 6) & opens))
        self.early += int(np.count_nonzero(z < -6))


def _estimate_delays(chance: float, seen: list[Floats], prior: Delays, least_ns: float) -> Delays:
    """Estimate the distribution of delays of at least ``least_ns``, drawn towards ``prior`` where few were seen."""
    delay = np.log(np.concatenate([np.zeros(0), *seen]) + least_ns)
    if not len(delay):
        return Delays.of(chance, prior.middle, prior.spread)
    weight = len(delay) / (len(delay) + _FEW)
    middle = prior.middle + weight * (float(np.median(delay)) - prior.middle)
    half, most = np.quantile(np.abs(delay - np.median(delay)), (0.5, 0.95))
    tail = (most / max(half, 1e-9)) ** weight * _TAILS[0] ** (1 - weight)
    freedom = float(np.exp(np.interp(-tail, -_TAILS, np.log(_FREEDOMS))))
    half = max(half, 0.1 * _LATE_LEAST) / (0.67 + 0.33 / freedom)
    return Delays.of(chance, middle, max(half**weight * _LATE_SPREAD ** (1 - weight), _LATE_LEAST), freedom)


def _gap_length_logs(seen: Ints) -> Floats:
    """Return the logarithm of the probability of each gap length, from the lengths that were seen (int64).

    Devices lose packets in their own ways: single ones, as many as a buffer holds, as many as a flush takes. So
    each length has the frequency with which it was seen (a Dirichlet process). Its base is geometric, by the mean of
    the short lengths or of all, and uniform in the logarithm of the length for long ones; how much the base weighs
    follows from how many lengths differ (Antoniak, "Mixtures of Dirichlet processes", 1974).
    """
    short = seen[seen < _LONG]
    prior = _PRIOR_GAPS * _EXTENDED / (1 - _EXTENDED)
    long = max((len(seen) - len(short)) / (len(seen) + _PRIOR_GAPS), _LONG_RATIO)
    length = np.maximum(np.arange(_LENGTHS), 1)
    base = np.where(length >= 8, long / 12 / length, 0.0)
    for part in (short, seen):
        further = (float(np.sum(part - 1)) + prior) / (len(part) + _PRIOR_GAPS)
        stay = further / (1 + further)
        base = np.maximum(base, (1 - stay) * stay ** (length - 1))
    weight = _concentration(len(seen), len(np.unique(seen)))
    count = np.bincount(seen[seen < _LENGTHS], minlength=_LENGTHS)
    count_but_one = np.maximum(count - 1, 0)  # the assumed length of a gap is no evidence for that length
    return np.asarray(np.log((count_but_one + weight * base) / (max(len(seen) - 1, 0) + weight)))


def _concentration(samples: int, distinct: int) -> float:
    """Return the concentration of a Dirichlet process of which ``samples`` draws have ``distinct`` values."""
    weight = float(_PRIOR_GAPS)
    for _ in range(20 if samples else 0):
        weight = min(max(distinct / np.log1p(samples / weight), _PRIOR_GAPS), 100.0 * max(samples, 1))
    return weight


def _estimate_costs(
    costs: Costs,
    lost: Ints,
    marked: npt.NDArray[np.bool_],
    transitions: _TransitionCounts,
    *,
    received: int,
    matched: int,
    elapsed_ns: float,
) -> Costs:
    """Estimate how often and how many events are lost, and how often a packet is spurious or late.

    ``lost`` holds the events lost in each transition (int64), ``marked`` whether the device reported a loss there
    (bool); ``received`` and ``matched`` are numbers of packets, and ``elapsed_ns`` is the time for which all tracks
    together were observed.
    """
    if not len(lost):
        return costs

    def gaps(part: Ints, opened: float) -> float:
        # A beta prior of 20 transitions keeps thin evidence near the prior values.
        return (int(np.count_nonzero(part)) + 20 * opened) / (len(part) + 20)

    some, marked_some = gaps(lost[~marked], 0.1), gaps(lost[marked], float(np.exp(costs.marked_opened)))
    unmatched = max(received - matched - 1, 0)
    spurious = min(max((unmatched + _PRIOR_SPURIOUS * 1000) / (received + 1000), 1e-5), _MOST_SPURIOUS)
    pace = max(elapsed_ns / max(matched, 1), 1.0)
    return costs._replace(
        kept=np.log1p(-some),
        opened=np.log(some),
        marked_kept=np.log1p(-marked_some),
        marked_opened=np.log(marked_some),
        lengths=_gap_length_logs(lost[lost > 0]),
        spurious=np.log(spurious / pace / _SYMBOLS),
        hidden=np.log(min((transitions.hidden + 20 * _HIDDEN) / (transitions.opened + transitions.hidden + 20), 0.5)),
        stalls=_estimate_delays(
            min(transitions.late / (transitions.usual + 1000) + 1e-5, 0.1),
            transitions.stalls,
            costs.stalls,
            costs.stall_ns,
        ),
        pauses=_estimate_delays(
            min((transitions.paused + 1) / (transitions.opened + transitions.released + 20), 0.3),
            transitions.pauses,
            costs.pauses,
            costs.stall_ns,
        ),
        early=np.log(min((transitions.early + 1) / (transitions.usual + transitions.opened + 1000), 0.1)),
    )


_TABLE_SPREAD = 0.3  # what a table may be off by, each operation for itself: 25 % are usual before calibration
_REPORTED_HERE = 1 - 1e-4  # that a reported loss is of a track: of the only one,
_REPORTED_SOMEWHERE = 0.6  # or of one of several
_PLAYED = 512  # launches that the program's table is played through
_MEDIAN_VAR = 1.5708  # variance of a median over that of a mean
_LEAST_RATIO = 0.005  # spread of a transition that is never gone below: shared by its samples, or for the search
_FAR = 3.0  # standard deviations, beyond which a few samples are not trusted
_ENOUGH = 5  # samples of a transition that estimate it without others
_BLOCK = 256  # events whose transitions are estimated together: bounds the time and memory of that


@dataclass(frozen=True)
class Match:
    """Matched packets of one track, in order.

    Attributes:
        packet: int64, position among the track's packets.
        launch: int64, number of the launch.
        event: int64, position in the track's track.
        time: float64, time of the packet.
        marked: bool, whether the device reported a loss before it.
        packets: number of packets of the track, matched or not.
    """

    packet: Ints
    launch: Ints
    event: Ints
    time: Floats
    marked: npt.NDArray[np.bool_]
    packets: int


@dataclass(frozen=True)
class Model:
    """The model that an alignment is judged by.

    Attributes:
        tracks: track of each track, by position.
        costs: costs of losses, delays and spurious packets.
        times: durations of operations.
        offset_ns: offset from the host's clock to the device's; ``None`` if it is not known.
        submit_var: variance of the time from a submit to the begin of the launch.
        tempo: how the speeds of launches vary.
        track_spread_ns: how far a launch usually is from its nominal time on one track, by its time on another.
    """

    tracks: tuple[Track, ...]
    costs: Costs
    times: Times
    offset_ns: float | None = None
    submit_var: float = 0.0
    tempo: TempoModel = field(default_factory=TempoModel)
    track_spread_ns: float = 0.0


def initial_model(
    sequence: Sequence,
    precedence: Precedence,
    kinds: int,
    resolution_ns: float,
    recorded: npt.NDArray[np.bool_] | None = None,
) -> Model:
    """Make a model from the durations of the program, with the uncertainty that such durations have.

    ``recorded`` marks operations that send packets at all (``None``: all do); ``kinds`` is the number of event ids.
    """
    programs = len(sequence.first) - 1
    if sequence.launch_program is None:
        launches = np.concatenate([np.zeros(4, np.int64), np.arange(1, programs)])
        ready = np.zeros(len(launches))
    else:
        head = sequence.launch_program[:_PLAYED].astype(np.int64)
        launches = np.concatenate([head, np.arange(programs)])
        ready = np.zeros(len(launches))
        if sequence.submit_ns is not None and len(head):
            ready[: len(head)] = sequence.submit_ns[: len(head)] - sequence.submit_ns[0]
            ready[len(head) :] = ready[len(head) - 1]
    duration = sequence.expected_ns
    start, end = nominal_times(precedence, launches, ready, duration, np.zeros(len(duration)))
    typical = float(np.median(duration))
    base = np.cumsum([0, *np.diff(sequence.first)[launches]])
    begin = np.minimum.reduceat(start, base[:-1])
    spans = np.array([np.median((np.maximum.reduceat(end, base[:-1]) - begin)[launches == p]) for p in range(programs)])
    least = _least_variance(resolution_ns)
    tracks = []
    for number in range(sequence.tracks):
        track = make_track(sequence, number, kinds, recorded)
        local = track.operation - np.repeat(sequence.first[:-1], np.diff(track.first))
        events = np.concatenate([np.arange(track.first[p], track.first[p + 1]) for p in launches])
        at = np.concatenate([base[n] + local[track.first[p] : track.first[p + 1]] for n, p in enumerate(launches)])
        time = np.where(track.type[events] == 1, end[at], start[at])
        mean, _, _ = _medians_by(events[1:], np.diff(time), len(track.operation))
        if len(launches) > programs and ready.any():  # submit times determine how long it waits for the next submit
            mean[track.first[:-1][np.diff(track.first) > 0]] = 0.0
        owner = np.repeat(np.arange(len(launches)), np.diff(track.first)[launches])
        since, _, _ = _medians_by(events, time - begin[owner], len(track.operation))
        mean, since = np.maximum(np.nan_to_num(mean), 0.0), np.maximum(np.nan_to_num(since), 0.0)
        transition_sd = np.hypot(_TABLE_SPREAD, sequence.sigma_ratio[track.operation]) * mean
        waits = track.type == 0
        transition_sd[waits] = np.hypot(_TABLE_SPREAD * mean[waits], np.where(mean[waits] > 0, 0.5, 0.15) * typical)
        opens = track.first[:-1][np.diff(track.first) > 0]
        program = np.searchsorted(track.first, opens, "right") - 1
        transition_sd[opens] = np.hypot(transition_sd[opens], 0.1 * spans[program])
        tracks.append(retime(track, mean, transition_sd**2, since, spans, least))
    period = max(float(spans[0] if sequence.launch_program is None else spans.mean()), 1.0)
    reported = _REPORTED_HERE if len(sequence.units.track_core) == 1 else _REPORTED_SOMEWHERE
    costs = Costs(
        kept=np.log(0.9),
        opened=np.log(0.1),
        marked_kept=np.log1p(-reported),
        marked_opened=np.log(reported),
        lengths=_gap_length_logs(np.zeros(0, np.int64)),
        spurious=np.log(1e-3 / typical / max(2 * kinds, 1)),
        hidden=np.log(_HIDDEN),
        stalls=Delays.of(0.1, np.log(typical), _LATE_SPREAD),
        pauses=Delays.of(0.1 if sequence.launch_program is None else 0.3, np.log(typical), _LATE_SPREAD),
        early=np.log(1e-2),
        stall_ns=0.2 * typical,
        beam=25.0,
        cap=64,
        restart=-15.0,
        patience=12,
        disagreement=-12.0,
        floor_ns2=least,
        launch_var=0.0,
        inertia_ns=period,
    )
    times = Times(
        duration,
        (_TABLE_SPREAD * duration) ** 2,
        np.zeros(len(duration)),
        np.full(len(duration), (0.01 * typical) ** 2),
    )
    return Model(tuple(tracks), costs, times, submit_var=(0.5 * typical) ** 2)


def _least_variance(resolution_ns: float) -> float:
    """Variance that rounding down two time stamps adds to the time between them, plus 1 ns2."""
    return resolution_ns**2 / 6 + 1.0


def estimate_tracks(
    model: Model, prior: Model, matches: Many[Match], sequence: Sequence, tempo: Floats, launches: Ints
) -> Model:
    """Estimate mean and variance of each transition, and the losses, from an alignment.

    ``model`` is what the alignment was judged by, and ``prior`` the one by the durations of the program. ``tempo``
    (float64) is the speed of each of ``launches`` (int64, ascending), which are all that were matched.
    """
    tracks = []
    counts: list[Ints] = []
    marks: list[npt.NDArray[np.bool_]] = []
    counts_seen = _TransitionCounts()
    off = [np.zeros(1)]
    begin = launch_begins(model, matches, launches)
    offset, submit_var = _clock_offset(begin, launches, sequence, model)
    spans = np.array(
        [np.nanmax([_launch_span(track, p) for track in model.tracks]) for p in range(len(sequence.first) - 1)]
    )
    least_ns = float(np.sqrt(model.costs.floor_ns2))
    duration, duration_var = model.times.duration_ns.copy(), model.times.duration_var.copy()
    for track, first, match in zip(model.tracks, prior.tracks, matches, strict=True):
        if len(match.packet) < 2:
            tracks.append(track)
            continue
        lost = _lost_before(track, match)[1:]
        at = np.searchsorted(launches, match.launch)
        speed = tempo[at]
        step = np.diff(match.time) / speed[1:]
        opens = np.diff(match.launch) > 0
        gaps, again, hidden = _take_apart(track, match, lost, model.costs)
        counts.append(np.concatenate([gaps, again]))
        marks.append(np.concatenate([match.marked[1:], np.zeros(len(again), np.bool_)]))
        counts_seen.hidden += hidden
        # A launch that waited for its submit carries no information on how long a track takes from launch to launch.
        released = opens & _released(track, match, speed, sequence, offset, submit_var)[1:]
        # Nor does one after a silence: that was a pause, or launches were lost in it.
        direct = opens & (lost == 0) & ~released
        silent = direct.copy()
        if direct.any():
            silent &= step > float(np.median(step[direct])) + _SILENCE * track.period_ns
        told, kind = np.where(released | silent, -1, lost), sequence.kind[track.operation].astype(np.int64)
        mean, var = _estimate_transitions(first, match.event[1:], told, step, kind, least_ns)
        since, _, _ = _medians_by(match.event, (match.time - begin[at]) / speed, len(mean))
        since = np.where(np.isfinite(since), since, track.since_begin)
        off.append(np.abs(match.time - begin[at] - since[match.event] * speed))
        direct = (lost == 0) & ~released
        event = match.event[1:][direct]
        counts_seen.add(step[direct] - mean[event], np.sqrt(var[event]), opens[direct])
        counts_seen.released += int(np.count_nonzero(released))
        least = np.maximum(var, (_LEAST_RATIO * mean) ** 2)
        tracks.append(retime(track, mean, least, since, spans, model.costs.floor_ns2))
        ends = track.type == 1
        duration[track.operation[ends]], duration_var[track.operation[ends]] = mean[ends], var[ends]
    received, matched = sum(match.packets for match in matches), sum(len(match.packet) for match in matches)
    costs = _estimate_costs(
        model.costs,
        np.concatenate([np.zeros(0, np.int64), *counts]),
        np.concatenate([np.zeros(0, np.bool_), *marks]),
        counts_seen,
        received=received,
        matched=matched,
        elapsed_ns=sum(float(match.time[-1] - match.time[0]) for match in matches if len(match.time) > 1),
    )
    return replace(
        model,
        tracks=tuple(tracks),
        costs=costs,
        times=model.times._replace(duration_ns=duration, duration_var=duration_var),
        offset_ns=offset,
        submit_var=submit_var,
        track_spread_ns=8 * float(np.median(np.concatenate(off))),
    )


def _launch_span(track: Track, program: int) -> float:
    here = slice(track.first[program], track.first[program + 1])
    return float(track.since_begin[here].max()) if here.stop > here.start else 0.0


def _lost_before(track: Track, match: Match) -> Ints:
    """Number of events lost between each match and the previous one; -1 for the first match."""
    if len(track.launch_program):
        program = track.launch_program[match.launch]
        number = track.count_before[match.launch] + match.event - track.first[program]
    else:
        number = match.launch * track.events + match.event
    return np.diff(number, prepend=number[:1]) - 1


def _take_apart(track: Track, match: Match, lost: Ints, costs: Costs) -> tuple[Ints, Ints, int]:
    """Take gaps apart in which whole launches were rather not recorded than lost event by event.

    ``lost`` is the number of events lost before each match but the first. Returns it, with what was lost of the launch
    before in such gaps; what was lost of the launch after them; and the number of these gaps.
    """
    launches = np.diff(match.launch)
    wide = np.flatnonzero(launches > 1)
    if not len(wide):
        return lost, lost[:0], 0
    before, after = match.launch[wide], match.launch[wide + 1]
    place = match.event - (track.first[track.launch_program[match.launch]] if len(track.launch_program) else 0)
    head = place[wide + 1]
    if len(track.launch_program):
        tail = track.count_before[before + 1] - track.count_before[before] - 1 - place[wide]
    else:
        tail = track.events - 1 - place[wide]

    number = after - before - 1
    whole = costs.hidden - np.log(number * (number + 1.0)) + _loss_logs(costs, tail) + _loss_logs(costs, head)
    apart = whole > _loss_logs(costs, lost[wide])
    result = lost.copy()
    result[wide[apart]] = tail[apart]
    return result, head[apart], int(np.count_nonzero(apart))


def hides_launches(tracks: Many[Track], matches: Many[Match]) -> bool:
    """Whether as many events as a launch has are assumed lost between two matches of a track."""
    return any(
        bool(np.any(_lost_before(track, match)[1:] >= track.events))
        for track, match in zip(tracks, matches, strict=True)
    )


def undecided_silences(track: Track, match: Match, costs: Costs) -> int:
    """Count silences that as many launches more or less explain nearly as well.

    Only for programs that repeat: a launch list with submit times knows. ``match`` holds consecutive matches.
    """
    if len(track.launch_program) or len(match.launch) < 2:
        return 0
    launches = np.diff(match.launch)
    number = match.launch * track.events + match.event
    nominal = match.launch * track.period_ns + track.local_mean[match.event]
    spread = match.launch * track.period_var + track.local_var[match.event]
    since, mean, var, lost = np.diff(match.time), np.diff(nominal), np.diff(spread), np.diff(number) - 1
    var += costs.launch_var * np.minimum(mean, track.period_ns) * mean
    tempo = _tempo_around(since, mean, lost)
    wide = np.flatnonzero(since > _SILENCE * track.period_ns)
    since, mean, var, lost, launches = since[wide] / tempo, mean[wide], var[wide], lost[wide], launches[wide]
    tail, head = track.events - 1 - match.event[wide], match.event[wide + 1]
    cost = [
        _silence_logs(costs, since, mean + more * track.period_ns, var + more * track.period_var,
            lost + more * track.events, launches + more, tail, head)
        for more in (-1, 0, 1)
    ]  # fmt: skip
    return int(np.count_nonzero(np.maximum(cost[0], cost[2]) > cost[1] - _DECIDED))


def _tempo_around(since: Floats, mean: Floats, lost: Ints) -> float:
    """Return the usual ratio of times to nominal ones, where nothing was lost."""
    direct = (lost == 0) & (mean > 0)
    return float(np.median(since[direct] / mean[direct])) if direct.any() else 1.0


def _silence_logs(
    costs: Costs, since: Floats, mean: Floats, var: Floats, lost: Ints, launches: Ints, tail: Ints,
    head: Ints,
) -> Floats:  # fmt: skip
    """Logarithm of the probability of each silence, as the search judges it; -inf where it cannot be.

    All arrays are of one length: time, nominal time and its variance, events lost, launches begun, and the events lost
    of the launches before and after the silence.
    """
    var = np.maximum(var, costs.floor_ns2)
    excess = since - mean
    chance = -0.5 * excess**2 / var - 0.5 * np.log(2 * np.pi * var)
    late = np.maximum(excess, 0.0) + costs.stall_ns
    for delays, tries in ((costs.stalls, np.maximum(lost, 0) + 1), (costs.pauses, np.maximum(launches, 0))):
        z = (np.log(late) - delays.middle) / delays.spread
        tails = 0.5 * (delays.freedom + 1) * np.log1p(z * z / delays.freedom)
        with np.errstate(divide="ignore"):
            delayed = delays.norm + np.log(delays.chance * tries) - tails - np.log(late)
        chance = np.where(excess > 0, np.maximum(chance, delayed), chance)
    number = np.maximum(launches - 1, 1)
    whole = costs.hidden - np.log(number * (number + 1.0)) + _loss_logs(costs, tail) + _loss_logs(costs, head)
    losses = _loss_logs(costs, np.maximum(lost, 0))
    losses = np.where(launches > 1, np.maximum(losses, whole), losses)
    return np.where(lost >= 0, chance + losses, -np.inf)


def _loss_logs(costs: Costs, count: Ints) -> Floats:
    """Logarithm of the probability that as many events in a row were lost."""
    most = len(costs.lengths) - 1
    further = np.log(np.maximum(count, most) / most)
    return np.where(count > 0, costs.opened + costs.lengths[np.minimum(count, most)] - further, costs.kept)


def _estimate_transitions(
    prior: Track, event: Ints, lost: Ints, step: Floats, kind: Ints, least_ns: float
) -> tuple[Floats, Floats]:
    """Estimate mean and variance of the transition into each event from its samples.

    Transitions that were seen often are estimated from their own samples. The others are estimated by empirical
    Bayes (Efron and Morris, "Stein's Estimation Rule and Its Competitors", 1973): how far those that were seen often
    are from the program's durations, and how much that differs among them, is the prior of the others of their kind,
    and what is known of them are the times between received packets that they lie between.

    Args:
        prior: by the durations of the program.
        event: int64, the event that each sample is the transition into.
        lost: int64, events lost just before it; -1: the sample tells nothing.
        step: float64, time since the packet before.
        kind: int64, of the operation of each event of the track.
        least_ns: what rounding adds to a time, as a standard deviation.
    """
    size = len(prior.operation)
    direct = lost == 0
    seen_at = event[direct], step[direct], size
    median, deviation, count = _medians_by(*seen_at)
    starts = prior.type == 0
    deviation = np.where(starts, _medians_by(*seen_at, wide=True)[1], deviation)  # of durations, stalls are the tail
    mean, var, enough = prior.mean_ns.copy(), prior.var_ns2.copy(), count >= _ENOUGH
    spread = np.zeros(size)
    for type_ in (starts, ~starts):
        pool = enough & type_
        typical = float(np.median(deviation[pool] / np.maximum(median[pool], 1.0))) if pool.any() else 0.1
        here = (count > 0) & type_
        guess = np.maximum(typical * median[here], 1.0)
        sample_var = (count[here] * deviation[here] ** 2 + 4 * guess**2) / (count[here] + 4)
        spread[here] = np.maximum(sample_var, (_LEAST_RATIO * median[here]) ** 2 / count[here])
        far = np.abs(median[here] - mean[here]) - _FAR * np.sqrt(prior.var_ns2[here])
        doubt = (_MEDIAN_VAR * spread[here] + np.maximum(far, 0.0) ** 2) / count[here]
        weight = prior.var_ns2[here] / (prior.var_ns2[here] + doubt)
        mean[here] += weight * (median[here] - mean[here])
        var[here] = spread[here] + (1 - weight) * prior.var_ns2[here]
    opens = np.zeros(size, np.bool_)
    opens[prior.first[:-1][np.diff(prior.first) > 0]] = True
    wanted = ~enough & ~opens
    if wanted.any() and (enough & ~opens).any():
        likely, likely_var, spread = _transfer(prior, enough & ~opens, median, spread, kind, least_ns)
        mean[wanted], var[wanted] = likely[wanted], likely_var[wanted]
        _solve_gaps(prior, event, lost, step, wanted, mean, var, spread)
        var[wanted] += spread[wanted]
    return np.maximum(mean, 0.0), var


def _transfer(
    prior: Track, seen: npt.NDArray[np.bool_], median: Floats, spread: Floats, kind: Ints, least_ns: float
) -> tuple[Floats, Floats, Floats]:
    """Return mean, its variance, and the variance of samples, of each transition by what others of its kind show.

    Durations deviate from the program's by a factor, waits by a difference. ``seen`` marks the transitions that
    tell, of which ``median`` and ``spread`` (a variance) are known; ``kind`` is as in :func:`_estimate_transitions`.
    """
    mean, mean_var, within = prior.mean_ns.copy(), prior.var_ns2.copy(), spread.copy()
    for starts in (True, False):
        here = (prior.type == 0) == starts
        told = seen & here if starts else seen & here & (prior.mean_ns > 8 * least_ns)
        if not told.any():
            continue
        scale = np.ones(len(mean)) if starts else np.maximum(prior.mean_ns, 1.0)
        away = median - prior.mean_ns if starts else np.log(np.maximum(median, 1.0) / scale)
        prior_sd = float(np.median(np.sqrt(prior.var_ns2[told]) / scale[told]))
        location, reach = _location(away[told], 0.0, prior_sd)
        for number in np.unique(kind[here]).tolist():
            of_kind = here & (kind == number)
            middle, width = _location(away[told & of_kind], location, reach)
            some = told & of_kind if np.any(told & of_kind) else told
            mean[of_kind] = prior.mean_ns[of_kind] + middle if starts else prior.mean_ns[of_kind] * np.exp(middle)
            mean_var[of_kind] = (width * (scale if starts else mean)[of_kind]) ** 2 + least_ns**2
            usual = float(np.median(np.sqrt(spread[some]) / scale[some]))
            within[of_kind] = np.where(seen[of_kind], spread[of_kind], (usual * scale[of_kind]) ** 2 + least_ns**2)
    return np.maximum(mean, 0.0), mean_var, within


def _location(values: Floats, before: float, before_sd: float) -> tuple[float, float]:
    """Return where values lie and how they are spread, few of them drawn towards what is known before."""
    if not len(values):
        return before, before_sd
    weight = len(values) / (len(values) + 1)
    middle = before + weight * (float(np.median(values)) - before)
    half, most = np.quantile(np.abs(values - middle), (0.5, 0.95))
    own = max(MAD_TO_DEVIATION * float(half), float(most) / 1.96)
    return middle, float(np.sqrt(weight * own**2 + (1 - weight) * before_sd**2))


def _solve_gaps(
    track: Track, event: Ints, lost: Ints, step: Floats, wanted: npt.NDArray[np.bool_], mean: Floats, var: Floats,
    spread: Floats,
) -> None:  # fmt: skip
    """Estimate the ``wanted`` transitions from times over several of them, in place.

    ``mean`` and ``var`` hold their prior and become the posterior, ``spread`` is the variance of samples. The time
    between two received packets is a sum of transitions: linear regression with a normal prior, so each takes its
    part of what a sum is off by its share of the variance. Times over very many transitions tell little and are left
    out, as are those that cross the begin of a launch.
    """
    size = len(mean)
    place = event - track.first[np.searchsorted(track.first, event, "right") - 1]
    use = (lost >= 0) & (lost < np.minimum(place, _LONG)) & np.isfinite(step)
    key, value, back = event[use] * _LONG + lost[use], step[use], np.cumsum(np.append(0, wanted))
    covers = back[event[use] + 1] > back[event[use] - lost[use]]
    median, deviation, count = _medians_by(key[covers], value[covers], size * _LONG)
    sums = np.flatnonzero(count)
    last, first = sums // _LONG, sums // _LONG - sums % _LONG
    known = np.cumsum(np.append(0.0, np.where(wanted, 0.0, mean)))
    rest = median[sums] - (known[last + 1] - known[first])
    within = np.cumsum(np.append(0.0, spread))
    sample_var = (4 * (within[last + 1] - within[first]) + count[sums] * deviation[sums] ** 2) / (count[sums] + 4)
    for low in range(0, size, _BLOCK):
        unknown = low + np.flatnonzero(wanted[low : low + _BLOCK])
        here = np.flatnonzero((first >= low) & (last < low + _BLOCK))
        if not len(unknown) or not len(here):
            continue
        part = (first[here, None] <= unknown) & (unknown <= last[here, None])
        prior, prior_var, tells = mean[unknown], var[unknown], rest[here]
        estimate = prior
        for _ in range(2):  # the second time, few samples that are far off count for less
            far = np.abs(tells - part @ estimate) - _FAR * np.sqrt(part @ prior_var + sample_var[here])
            doubt = (_MEDIAN_VAR * sample_var[here] + np.maximum(far, 0.0) ** 2) / count[sums[here]]
            weighted = part.T / doubt
            posterior = np.linalg.inv(weighted @ part + np.diag(1 / prior_var))
            estimate = prior + posterior @ (weighted @ (tells - part @ prior))
        mean[unknown], var[unknown] = estimate, np.diag(posterior)


def launch_begins(model: Model, matches: Many[Match], launches: Ints) -> Floats:
    """Estimate when launches began: time of each matched packet minus its nominal offset; NaN where unknown."""
    estimates, owners = [], []
    for track, match in zip(model.tracks, matches, strict=True):
        if len(match.packet):
            estimates.append(match.time - track.since_begin[match.event])
            owners.append(np.searchsorted(launches, match.launch))
    if not owners:
        return np.full(len(launches), np.nan)
    begin, _, _ = _medians_by(np.concatenate(owners), np.concatenate(estimates), len(launches))
    return begin


def _clock_offset(begin: Floats, launches: Ints, sequence: Sequence, model: Model) -> tuple[float | None, float]:
    """Estimate the offset between the clocks of host and device, as idle devices begin soon after a submit.

    How soon is what many launches have in common: the middle of the shortest interval that holds a fifth of the
    delays, which a few mismatched launches do not move. The spread is that of the earlier ones, as later ones had to
    wait.
    """
    known = np.flatnonzero(np.isfinite(begin))
    if sequence.submit_ns is None or len(known) < 8 or np.ptp(sequence.submit_ns) == 0:
        return model.offset_ns, model.submit_var
    delay = np.sort(begin[known] - (sequence.submit_ns[launches[known]] - sequence.submit_ns[0]))
    at, width = _shortest_fifth(delay[None, :])
    part = max(len(delay) // 5, 2)
    soon = float(delay[at[0]] + delay[at[0] + part]) / 2
    sooner = MAD_TO_DEVIATION * float(np.median(soon - delay[delay <= soon]))
    least = _LEAST_RATIO * float(np.median(sequence.expected_ns))
    return soon, float(max((2 * width[0]) ** 2, sooner**2, least**2, model.costs.floor_ns2))


def _shortest_fifth(ascending: Floats) -> tuple[Ints, Floats]:
    """Return, of each row, where the shortest interval begins that holds a fifth of the values, and its width."""
    part = max(ascending.shape[1] // 5, 2)
    width = ascending[:, part:] - ascending[:, :-part]
    at = np.argmin(width, axis=1)
    return at, width[np.arange(len(at)), at]


def launches_too_early(begin: Floats, launches: Ints, sequence: Sequence, resolution_ns: float) -> int:
    """Return by how many launches all launches are numbered too low: timetables repeat, and submits vary a little.

    ``begin`` (float64, NaN: not known) is when each of ``launches`` (int64) began. For every number of launches by
    which they may be off and after which the programs are the same, the shortest interval that holds a fifth of the
    times from submit to begin is judged (the shorth; Andrews and others, "Robust Estimates of Location", 1972): a
    normal density of its width. Only what is a thousand times as likely as no difference counts.
    """
    known = np.flatnonzero(np.isfinite(begin))[:_COMPARED]
    submit, programs = sequence.submit_ns, sequence.launch_program
    if submit is None or programs is None or len(known) < _LEAST_COMPARED or np.ptp(submit) == 0:
        return 0
    begin, launches = begin[known], launches[known]
    shifts = np.arange(max(-launches[0], -_MOST_SHIFTS), min(len(programs) - launches[-1], _MOST_SHIFTS + 1))
    same = np.array([np.mean(programs[launches + shift] == programs[launches]) for shift in shifts.tolist()])
    shifts = shifts[same >= _ALIKE]
    delay = np.sort(begin - submit[launches[None, :] + shifts[:, None]], axis=1)
    _, width = _shortest_fifth(delay)
    log_likelihood = -len(begin) / 5 * np.log(width + resolution_ns)
    best = int(np.argmax(log_likelihood))
    now = log_likelihood[np.flatnonzero(shifts == 0)[0]]
    return int(shifts[best]) if log_likelihood[best] > now + RARE else 0


def _released(
    track: Track, match: Match, speed: Floats, sequence: Sequence, offset: float | None, submit_var: float
) -> npt.NDArray[np.bool_]:
    """Mark matches of launches that began when they were submitted, and waited for nothing else."""
    if offset is None or sequence.submit_ns is None:
        return np.zeros(len(match.launch), np.bool_)
    submit = (sequence.submit_ns[match.launch] - sequence.submit_ns[0]).astype(np.float64)
    delay = match.time - track.since_begin[match.event] * speed - submit
    return np.asarray(delay < offset + 4 * np.sqrt(submit_var + track.since_var[match.event]))


def estimate_times(model: Model, window: Window, precedence: Precedence, sequence: Sequence) -> Model:
    """Estimate durations of operations and the gaps before them from received edges of a sample."""
    size = len(sequence.kind)
    operation = operations_of(window, precedence)
    speed = np.repeat(window.tempo, np.diff(window.base))
    whole = window.seen.all(axis=1)
    took = (window.time[:, 1] - window.time[:, 0]) / speed
    known = model.times.duration_ns, model.times.duration_var
    duration, duration_var = _shrunk_medians(operation[whole], took[whole], size, *known)
    gaps = find_gaps(window, precedence) / speed
    there = np.isfinite(gaps)
    # Gaps of operations that were never seen whole: as those of all others.
    usual = float(np.median(gaps[there])) if there.any() else 0.0
    rest = (MAD_TO_DEVIATION * float(np.median(np.abs(gaps[there] - usual))) if there.any() else 0.0) + 0.05 * usual
    floor = model.costs.floor_ns2
    gap, gap_var = _shrunk_medians(
        operation[there], gaps[there], size, np.full(size, usual), np.full(size, max(4 * rest**2, floor))
    )
    times = Times(duration, np.maximum(duration_var, floor), np.maximum(gap, 0.0), np.maximum(gap_var, floor))
    return replace(model, times=times)


def _shrunk_medians(key: Ints, value: Floats, size: int, before: Floats, before_var: Floats) -> tuple[Floats, Floats]:
    """Return median and variance of the values of each key, shrunk towards the prior where they are few."""
    median, deviation, count = _medians_by(key, value, size)
    seen = count > 0
    sample_var = np.where(seen, deviation**2, 0.0)
    enough = count >= 5
    if enough.any():
        ratio = float(np.median(deviation[enough] / np.maximum(np.abs(median[enough]), 1.0)))
        sample_var = np.where(
            seen, (count * sample_var + 4 * (ratio * np.nan_to_num(median)) ** 2) / (count + 4), sample_var
        )
    least = (_LEAST_RATIO * np.nan_to_num(median)) ** 2 / np.maximum(count, 1)
    sample_var = np.maximum(sample_var, least + 1e-3)
    doubt = _MEDIAN_VAR * sample_var / np.maximum(count, 1)
    weight = np.where(seen, before_var / (before_var + doubt), 0.0)
    mean = before + weight * (np.nan_to_num(median) - before)
    return mean, np.where(seen, sample_var, 0.0) + (1 - weight) * before_var


def operations_of(window: Window, precedence: Precedence) -> Ints:
    """Return the operation of the sequence at each place of a window."""
    sizes = np.diff(window.base)
    local = np.arange(len(window.seen)) - np.repeat(window.base[:-1], sizes)
    return np.asarray(local + np.repeat(precedence.first[window.program], sizes))


def _medians_by(key: Ints, value: Floats, size: int, *, wide: bool = False) -> tuple[Floats, Floats, Ints]:
    """Return median, deviation (scaled median absolute deviation) and count of the values of each key.

    ``key`` (int64) is below ``size``; keys without values give NaN. ``wide`` raises the deviation to half of what
    holds 19 of 20 values: waits that depend on who comes first have tails that their middle does not show.
    """
    count = np.bincount(key, minlength=size)
    first = np.cumsum(count) - count
    median, deviation = np.full(size, np.nan), np.full(size, np.nan)
    there = count > 0
    for out, values in ((median, value), (deviation, None)):
        here = np.abs(value - median[key]) if values is None else values
        ordered = sorted_by_key(key, here, size)
        if there.any():
            low, high = first[there] + (count[there] - 1) // 2, first[there] + count[there] // 2
            out[there] = (ordered[low] + ordered[high]) / 2
            if wide and values is None:
                tail = first[there] + (count[there] * 19) // 20 - (count[there] % 20 == 0)
                tail = np.where(count[there] < _FEW, low, tail)
                out[there] = np.maximum(out[there], ordered[tail] / (1.96 * MAD_TO_DEVIATION))
    return median, MAD_TO_DEVIATION * deviation, count
