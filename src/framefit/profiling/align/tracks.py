"""The events that each track is expected to hold and when, and packets sorted into a queue for each track."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import Trace, TraceMeta, unwrapped_ns
from framefit.profiling.sequence import Sequence, UnitTable, look_up_packet

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Track(NamedTuple):
    """The events of one track, for one program after the other.

    Attributes:
        first: int64, position at which each program begins.
        operation: int64, operation of each event in the sequence.
        type: int64, START or END.
        mean_ns, var_ns2: float64, of the transition from the track's previous event; for the first event of a
            program, from the track's last event of the previous launch.
        local_mean, local_var: their sums from the begin of the program.
        local_idle: the part of ``local_mean`` in which the track waits; it may have to wait less.
        since_begin, since_var: from the begin of the launch, on any track.
        symbols: number of symbols of a packet: kind and type, or operation and type where packets name it.
        occurs_first, occurs: int64, for each program and symbol the places (events within the program) that
            can send it.
        launch_program: int64, program of each launch; empty if the first program repeats.
        count_before: int64, events before each launch.
        mean_before, var_before, idle_before: float64, sums of time, variance and waiting before each launch.
        events, period_ns, period_var, period_idle: of a launch; means where there are several programs.
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


class LaunchTiming(NamedTuple):
    """What is known about launches from outside a track's own packets.

    Attributes:
        low, high: the first packet may be of launches from ``low`` to below ``high``.
        overwritten: events of the track that its first packet follows, if nothing but what was overwritten is missing.
        end: upper bound of launch numbers, exclusive.
        first_launch: the launch that ``begin_ns`` starts with.
        begin_ns: float64, when launches began by packets of the leading track; NaN where it is not known.
        tolerance_ns: how far launches may be off from that.
        submit_ns: float64, submit times of the host; empty if they are not known.
        offset_ns: offset from there to the device's clock, for a search that begins; NaN if it is not known.
        submit_var: variance of the time from a submit to the begin of the launch.
        wrap_ns: after which time stamps begin again; 0: they do not.
    """

    low: int
    high: int
    overwritten: float
    end: int
    first_launch: int
    begin_ns: Floats
    tolerance_ns: float
    submit_ns: Floats
    offset_ns: float
    submit_var: float
    wrap_ns: float = 0.0


def make_track(sequence: Sequence, number: int, kinds: int, recorded: npt.NDArray[np.bool_] | None = None) -> Track:
    """Make the track of a number, without times.

    A packet's symbol is ``2 * kind + type``, and ``2 * (kinds + operation) + type`` where it names its operation;
    ``kinds`` is the number of event ids of the trace. ``recorded`` (bool) marks operations of the sequence that send
    packets; ``None``: all do.
    """
    programs = len(sequence.first) - 1
    most = int(np.diff(sequence.first).max())
    symbols = 2 * (kinds + most)
    listed = np.flatnonzero((sequence.track == number) & (True if recorded is None else recorded))
    operation = np.repeat(listed, 2)
    type_ = np.tile([0, 1], len(listed))
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


def retime(
    track: Track, mean_ns: Floats, var_ns2: Floats, since_begin: Floats, spans_ns: Floats, least_var: float
) -> Track:
    """Return the same events with other times.

    ``mean_ns`` and ``var_ns2`` are of the transition into each event, ``since_begin`` is from the begin of the launch
    to each event, all float64. ``spans_ns`` is the duration of a launch of each program in which this track does
    nothing, and ``least_var`` bounds the variance of every transition.
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
        if size:  # the way from the launch's begin to the track's first event varies as all of it does
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


Bools = npt.NDArray[np.bool_]
_LATE = 32  # packets of a track that are held back, so that one that arrives late can still take its place


@dataclass(frozen=True)
class Queue:
    """Packets of one track, by time, as arrays of one length.

    Attributes:
        time: float64, ns since the first packet of the trace.
        symbol: int32, see :func:`make_track`.
        marked: bool, whether the device reported a loss before the packet.
        arrival: int64, position in the trace.
    """

    time: npt.NDArray[np.float64]
    symbol: npt.NDArray[np.int32]
    marked: Bools
    arrival: Ints

    def __len__(self) -> int:
        return len(self.time)

    def __getitem__(self, part: slice | Ints | Bools) -> Queue:
        return Queue(self.time[part], self.symbol[part], self.marked[part], self.arrival[part])

    def repeated(self) -> Bools:
        """Mark packets that equal the previous one."""
        same = (self.time[1:] == self.time[:-1]) & (self.symbol[1:] == self.symbol[:-1])
        return np.concatenate([[False], same])[: len(self)]


def concatenate_queues(first: Queue, second: Queue) -> Queue:
    """Append one queue to another."""
    if not len(first):
        return second
    return Queue(
        np.concatenate([first.time, second.time]),
        np.concatenate([first.symbol, second.symbol]),
        np.concatenate([first.marked, second.marked]),
        np.concatenate([first.arrival, second.arrival]),
    )


def take_earliest(queues: list[Queue], count: int) -> list[Queue]:
    """Return the first ``count`` packets of all tracks together."""
    if sum(len(queue) for queue in queues) <= count:
        return queues
    until = np.sort(np.concatenate([queue.time for queue in queues]))[count]
    return [queue[: int(np.searchsorted(queue.time, until))] for queue in queues]


EMPTY_QUEUE = Queue(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.int64))


class ReorderBuffer:
    """Sorts packets by track and time in bounded memory.

    ``coinciding`` (bool, tracks x kinds and types, see :meth:`~framefit.profiling.sequence.Sequence.coinciding`) marks
    packets that two operations can send at one time: two of them are a duplicate only if the track sent others.
    """

    def __init__(
        self,
        units: UnitTable,
        tracks: tuple[Track, ...],
        kinds: int,
        meta: TraceMeta,
        coinciding: Bools,
    ) -> None:
        self._units, self._kinds, self._meta = units, kinds, meta
        self._unique = np.ones((len(tracks), tracks[0].symbols), np.bool_)
        self._unique[:, : 2 * kinds] = ~coinciding[:, : 2 * kinds]
        self._sends_duplicates = np.zeros(len(tracks), np.bool_)
        programs = len(tracks[0].first) - 1
        sends = [np.diff(t.occurs_first).reshape(programs, t.symbols).sum(axis=0) > 0 for t in tracks]
        self._sends = np.array([np.append(symbols, False) for symbols in sends])
        self._held = [EMPTY_QUEUE] * len(tracks)
        self._latest = np.full(len(units.by_kind), np.iinfo(np.int64).min)
        self._mark = np.zeros(len(tracks), np.bool_)
        self._before: tuple[int, int] | None = None
        self.origin_ns = 0
        self.received = 0
        self.foreign: Ints = np.zeros(0, np.int64)
        self.duplicated: Ints = np.zeros(0, np.int64)

    def add(self, trace: Trace) -> tuple[list[Queue], Bools]:
        """Take in the next packets of the stream.

        Sets ``foreign`` (packets that no track here can hold) and ``duplicated`` to positions among all packets of the
        stream. Returns the packets that can be searched now, a queue for each track, and which packets of ``trace``
        were out of order (bool).
        """
        count = len(trace)
        time = self._continued(trace.time_ns)
        losses = np.sort(np.asarray(trace.loss_after, np.int64))
        out_of_order = np.zeros(count, np.bool_)
        units = self._units
        size, foreign, *columns = _sort_by_track(
            time, trace.core, trace.id, trace.type, trace.operation, losses, self.received, self.origin_ns, self._kinds,
            units.place, units.track_by_kind, units.track_by_operation, self._sends, self._latest, self._mark,
            out_of_order,
        )  # fmt: skip
        duplicated = [np.zeros(0, np.int64)]
        queues = []
        for at in range(len(self._held)):
            queue = concatenate_queues(self._held[at], Queue(*(column[at, : size[at]] for column in columns)))
            if np.any(queue.time[1:] <= queue.time[:-1]):
                queue = queue[np.argsort(queue.time, kind="stable")]
                repeated = queue.repeated()
                self._sends_duplicates[at] |= np.any(repeated & self._unique[at, queue.symbol])
                if self._sends_duplicates[at]:
                    duplicated.append(queue.arrival[repeated])
                    queue = queue[~repeated]
                queue = _restore_alternation(queue, self._kinds)
            ready = max(len(queue) - _LATE, 0)
            self._held[at] = queue[ready:]
            queues.append(queue[:ready])
        self.received += count
        self.foreign, self.duplicated = foreign, np.concatenate(duplicated)
        return queues, out_of_order

    def held(self) -> list[Queue]:
        """Return the packets that are held back for late ones, and keep them."""
        return list(self._held)

    def close(self) -> list[Queue]:
        """Return the packets that were held back, as no more come."""
        held, self._held = self._held, [EMPTY_QUEUE] * len(self._held)
        return held

    def _continued(self, time_ns: Ints) -> Ints:
        """Unwrap times, continuing from the last packets."""
        if not len(time_ns):
            return time_ns
        if self._before is None:
            time = unwrapped_ns(time_ns, self._meta)
            self.origin_ns = int(time[0])
        else:
            raw, unwrapped = self._before
            time = unwrapped_ns(np.concatenate([[raw], time_ns]), self._meta)[1:] + (unwrapped - raw)
        self._before = int(time_ns[-1]), int(time[-1])
        return np.asarray(time)


@njit(cache=True, nogil=True, error_model="numpy")
def _sort_by_track(
    time: Any, core: Any, id_: Any, type_: Any, operation: Any, losses: Any, received: Any, origin_ns: Any, kinds: Any,
    place: Any, by_kind: Any, by_operation: Any, sends: Any, latest: Any, mark: Any, out_of_order: Any,
) -> Any:  # fmt: skip
    """Sort packets by track.

    ``time`` (int64, unwrapped), ``core``, ``id_``, ``type_`` and ``operation`` are of the packets in order of arrival,
    ``losses`` (int64, ascending) are the packets before which the device reported a loss, and ``received`` is the
    number of earlier packets. Times count from ``origin_ns`` in the result. ``place``, ``by_kind`` and
    ``by_operation`` are of :class:`~framefit.profiling.sequence.UnitTable`, for tracks; ``sends`` (bool, tracks x
    symbols) says whether the track can hold a symbol, and is false in its last column. ``latest`` (int64, latest time
    of each core) and ``mark`` (bool, whether the track's next packet is its first after a loss) are updated, and
    ``out_of_order`` is set for late packets.

    Returns the number of packets of each track (int64), positions of foreign packets (int64), and time, symbol, mark
    and position of the others (tracks x packets).
    """
    count, tracks, operations = len(time), len(mark), (sends.shape[1] - 1) // 2 - kinds
    size, foreign, foreign_count = np.zeros(tracks, np.int64), np.empty(count, np.int64), 0
    times, symbols = np.empty((tracks, count)), np.empty((tracks, count), np.int32)
    marks, arrivals = np.empty((tracks, count), np.bool_), np.empty((tracks, count), np.int64)
    loss = 0
    for index in range(count):
        while loss < len(losses) and losses[loss] <= index:
            mark[:] = True
            loss += 1
        row = place[np.int64(core[index]) & 0xFFFF]
        at = look_up_packet(place, by_kind, by_operation, core[index], id_[index], operation[index])
        if row >= 0:
            out_of_order[index] = time[index] < latest[row]
            latest[row] = max(latest[row], time[index])
        if at < 0:
            foreign[foreign_count] = received + index
            foreign_count += 1
            continue
        symbol = sends.shape[1] - 1  # nothing that any track holds
        named = np.int64(operation[index])
        if 0 <= id_[index] < kinds and type_[index] <= 1 and named < operations:
            symbol = 2 * (kinds + named if named >= 0 else np.int64(id_[index])) + np.int64(type_[index])
        if sends[at, symbol]:
            row = size[at]
            times[at, row], symbols[at, row] = time[index] - origin_ns, symbol
            marks[at, row], arrivals[at, row] = mark[at], received + index
            size[at] += 1
            mark[at] = False
        else:
            foreign[foreign_count] = received + index
            foreign_count += 1
    if loss < len(losses):
        mark[:] = True
    return size, foreign[:foreign_count].copy(), times, symbols, marks, arrivals


def _restore_alternation(queue: Queue, kinds: int) -> Queue:
    """Put END before START where both have one time stamp and cannot have happened as they arrived.

    A track runs one operation at a time, so the END that follows a START belongs to it. If it is of another kind, the
    two changed places; if it is of the same kind, they did where the previous packet is such a START, too.
    """
    symbol = queue.symbol
    pair = (queue.time[1:] == queue.time[:-1]) & (symbol[:-1] & 1 == 0) & (symbol[1:] & 1 == 1)
    if not pair.any():
        return queue
    before = np.concatenate([[-1], symbol[:-2]])
    wrong = pair & (symbol[:-1] < 2 * kinds) & ((symbol[1:] != symbol[:-1] + 1) | (before == symbol[:-1]))
    first = np.flatnonzero(wrong)
    order = np.arange(len(queue))
    order[first], order[first + 1] = first + 1, first
    return queue[order]
