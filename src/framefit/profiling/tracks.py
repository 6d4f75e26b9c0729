"""What each core is expected to send, event after event, and when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.profiling.sequence import Sequence

__all__ = ["Tie", "Track", "retimed", "track_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Track(NamedTuple):
    """The events of one core. Events of all programs lie one program after the other.

    Attributes:
        first: int64, where each program begins.
        operation: int64, of each event, in the sequence.
        type: int64, START or END.
        mean_ns, var_ns2: float64, of the transition from the core's event before; of a program's
            first event, from the core's last one of the launch before.
        local_mean, local_var: their sums from the program's begin.
        local_idle: the part of ``local_mean`` that the core waits; it may have to wait less.
        since_begin, since_var: from the begin of the launch, on any core.
        symbols: what a packet can say: kind and type, or operation and type where packets name it.
        occurs_first, occurs: int64, for each program and symbol the places (events within the
            program) that can send it.
        launch_program: int64; empty: the first program repeats.
        count_before: int64, events before each launch,
        mean_before, var_before, idle_before: float64, the same of time, variance and waiting; empty as above.
        events, period_ns, period_var, period_idle: of a launch (of several programs: their mean).
    """

    first: Ints
    operation: Ints
    type: Ints
    mean_ns: Floats
    var_ns2: Floats
    local_mean: Floats
    local_var: Floats
    local_idle: Floats
    since_begin: Floats
    since_var: Floats
    symbols: int
    occurs_first: Ints
    occurs: Ints
    launch_program: Ints
    count_before: Ints
    mean_before: Floats
    var_before: Floats
    idle_before: Floats
    events: int
    period_ns: float
    period_var: float
    period_idle: float


class Tie(NamedTuple):
    """What ties a core's events to time from outside its own packets.

    Attributes:
        low, high: launches that the first packet may be of: from ``low`` to below ``high``.
        end: no launch has this number or a greater one.
        first_launch: the launch that ``begin_ns`` starts with.
        begin_ns: float64, when launches began by the packets of the leading core; NaN: not known.
        tolerance_ns: what launches may be off from that.
        submit_ns: float64, host's times of launches; empty: not known.
        offset_ns: from there to the device's clock, for a search that begins; NaN: not known.
        submit_var: of the time from a submit to the launch's begin.
    """

    low: int
    high: int
    end: int
    first_launch: int
    begin_ns: Floats
    tolerance_ns: float
    submit_ns: Floats
    offset_ns: float
    submit_var: float


def track_of(sequence: Sequence, core: int, kinds: int, recorded: npt.NDArray[np.bool_] | None = None) -> Track:
    """The events of the core number ``core``, without times.

    Args:
        sequence: of the program.
        core: a core number.
        kinds: event ids of the trace; a packet's symbol is ``2 * kind + type``, and
            ``2 * (kinds + operation) + type`` where it names its operation.
        recorded: bool, operations of the sequence that send packets at all; ``None``: all do.
    """
    programs = len(sequence.first) - 1
    most = int(np.diff(sequence.first).max())
    symbols = 2 * (kinds + most)
    mine = np.flatnonzero((sequence.core == core) & (True if recorded is None else recorded))
    operation = np.repeat(mine, 2)
    type_ = np.tile([0, 1], len(mine))
    program = np.searchsorted(sequence.first, operation, "right") - 1
    first = np.searchsorted(program, np.arange(programs + 1))
    place = np.arange(len(operation)) - first[program]
    local = operation - sequence.first[program]
    by_kind = 2 * sequence.kind[operation].astype(np.int64) + type_
    named = 2 * (kinds + local) + type_
    key = np.concatenate([program * symbols + by_kind, program * symbols + named])
    order = np.argsort(key, kind="stable")
    occurs_first = np.searchsorted(key[order], np.arange(programs * symbols + 1))
    launched = np.zeros(0, np.int64) if sequence.launch_program is None else sequence.launch_program.astype(np.int64)
    each = np.diff(first)
    blank = np.zeros(len(operation))
    return Track(
        first=first.astype(np.int64),
        operation=operation.astype(np.int64),
        type=type_.astype(np.int64),
        mean_ns=blank,
        var_ns2=blank,
        local_mean=blank,
        local_var=blank,
        local_idle=blank,
        since_begin=blank,
        since_var=blank,
        symbols=symbols,
        occurs_first=occurs_first.astype(np.int64),
        occurs=np.concatenate([place, place])[order].astype(np.int64),
        launch_program=launched,
        count_before=np.cumsum([0, *each[launched]], dtype=np.int64),
        mean_before=np.zeros(len(launched) + 1),
        var_before=np.zeros(len(launched) + 1),
        idle_before=np.zeros(len(launched) + 1),
        events=int(each[0]),
        period_ns=1.0,
        period_var=1.0,
        period_idle=0.0,
    )


def retimed(
    track: Track, mean_ns: Floats, var_ns2: Floats, since_begin: Floats, spans_ns: Floats, least_var: float
) -> Track:
    """The same events at other times.

    Args:
        track: of a core.
        mean_ns: float64, of the transition into each event.
        var_ns2: float64, its variance.
        since_begin: float64, from the launch's begin to each event.
        spans_ns: float64, what a launch takes of each program that this core does nothing in.
        least_var: of any transition.
    """
    var = np.maximum(var_ns2, least_var)
    idle = np.where(track.type == 0, mean_ns, 0.0)
    local_mean, local_var, local_idle, since_var = (np.empty_like(mean_ns) for _ in range(4))
    programs = len(track.first) - 1
    total_mean, total_var, total_idle = np.empty(programs), np.empty(programs), np.empty(programs)
    for program in range(programs):
        here = slice(track.first[program], track.first[program + 1])
        local_mean[here], local_var[here] = np.cumsum(mean_ns[here]), np.cumsum(var[here])
        local_idle[here] = np.cumsum(idle[here])
        size = here.stop - here.start
        total_mean[program] = local_mean[here][-1] if size else spans_ns[program]
        total_idle[program] = local_idle[here][-1] if size else spans_ns[program]
        total_var[program] = local_var[here][-1] if size else spans_ns[program] ** 2
        if size:  # the way from the launch's begin to the core's first event varies as all of it does
            since_var[here] = local_var[here] - var[here][0] + 0.01 * since_begin[here][0] ** 2
    launched = track.launch_program
    weight = np.bincount(launched, minlength=programs) if len(launched) else np.eye(1, programs)[0]
    return track._replace(
        mean_ns=mean_ns,
        var_ns2=var,
        local_mean=local_mean,
        local_var=local_var,
        local_idle=local_idle,
        since_begin=since_begin,
        since_var=np.maximum(since_var, least_var),
        mean_before=np.concatenate([[0.0], np.cumsum(total_mean[launched])]),
        var_before=np.concatenate([[0.0], np.cumsum(total_var[launched])]),
        idle_before=np.concatenate([[0.0], np.cumsum(total_idle[launched])]),
        events=track.events if not len(launched) else max(int(np.diff(track.first) @ weight / weight.sum()), 1),
        period_ns=max(float(total_mean @ weight / max(weight.sum(), 1)), 1.0),
        period_var=float(total_var @ weight / max(weight.sum(), 1)),
        period_idle=float(total_idle @ weight / max(weight.sum(), 1)),
    )
