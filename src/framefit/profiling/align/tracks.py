"""What each core is expected to send, event after event, and when.

Packets as they arrive, made into one orderly queue a core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import Trace, TraceMeta, unwrapped_ns
from framefit.profiling.sequence import Sequence

__all__ = [
    "EMPTY_QUEUE",
    "LaunchTiming",
    "Queue",
    "ReorderBuffer",
    "Track",
    "concatenate_queues",
    "make_track",
    "retime",
    "take_earliest",
]


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


class LaunchTiming(NamedTuple):
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


def make_track(sequence: Sequence, core: int, kinds: int, recorded: npt.NDArray[np.bool_] | None = None) -> Track:
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
    of_core = np.flatnonzero((sequence.core == core) & (True if recorded is None else recorded))
    operation = np.repeat(of_core, 2)
    type_ = np.tile([0, 1], len(of_core))
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


Bools = npt.NDArray[np.bool_]
_LATE = 32  # packets of a core that are held back, so that one that arrives late can still take its place


@dataclass(frozen=True)
class Queue:
    """Packets of one core, by time; arrays of one length.

    Attributes:
        time: float64, ns since the trace's first packet.
        symbol: int32, see :func:`framefit.profiling.align.tracks.make_track`.
        marked: bool, whether the device reported a loss before it.
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
        """Which packets say what the one before them does."""
        same = (self.time[1:] == self.time[:-1]) & (self.symbol[1:] == self.symbol[:-1])
        return np.concatenate([[False], same])[: len(self)]


def concatenate_queues(first: Queue, second: Queue) -> Queue:
    """One queue behind the other."""
    if not len(first):
        return second
    return Queue(
        np.concatenate([first.time, second.time]),
        np.concatenate([first.symbol, second.symbol]),
        np.concatenate([first.marked, second.marked]),
        np.concatenate([first.arrival, second.arrival]),
    )


def take_earliest(queues: list[Queue], count: int) -> list[Queue]:
    """The first ``count`` packets of all cores together."""
    if sum(len(queue) for queue in queues) <= count:
        return queues
    until = np.sort(np.concatenate([queue.time for queue in queues]))[count]
    return [queue[: int(np.searchsorted(queue.time, until))] for queue in queues]


EMPTY_QUEUE = Queue(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.int64))


class ReorderBuffer:
    """Sorts packets by core and time, with bounded memory of what came before.

    Args:
        cores: core numbers, ascending.
        tracks: what each of them can send.
        kinds: event ids of the trace.
        meta: of the trace.
        coinciding: bool, cores x kinds and types: what two operations can say at one time, see
            :meth:`~framefit.profiling.sequence.Sequence.coinciding`. Where it comes twice it is a duplicate
            only if the core has sent others.
    """

    def __init__(
        self,
        cores: npt.NDArray[np.int16],
        tracks: tuple[Track, ...],
        kinds: int,
        meta: TraceMeta,
        coinciding: Bools,
    ) -> None:
        self._cores, self._kinds, self._meta = cores, kinds, meta
        self._unique = np.ones((len(cores), tracks[0].symbols), np.bool_)
        self._unique[:, : 2 * kinds] = ~coinciding[:, : 2 * kinds]
        self._sends_duplicates = np.zeros(len(cores), np.bool_)
        programs = len(tracks[0].first) - 1
        sends = [np.diff(t.occurs_first).reshape(programs, t.symbols).sum(axis=0) > 0 for t in tracks]
        self._sends = np.array([np.append(symbols, False) for symbols in sends])
        place = np.full(1 << 16, -1, np.int64)
        place[cores.astype(np.int64) & 0xFFFF] = np.arange(len(cores))
        self._place_of_core = place
        self._held = [EMPTY_QUEUE] * len(cores)
        self._latest = np.full(len(cores), np.iinfo(np.int64).min)
        self._mark = np.zeros(len(cores), np.bool_)
        self._before: tuple[int, int] | None = None
        self._last = np.full(len(cores), -1, np.int64)
        self.origin_ns = 0
        self.received = 0
        self.foreign: Ints = np.zeros(0, np.int64)
        self.duplicated: Ints = np.zeros(0, np.int64)

    def add(self, trace: Trace) -> tuple[list[Queue], Bools]:
        """Take in packets, the next ones of the stream.

        ``foreign`` (packets that nothing here can send) and ``duplicated`` are set to positions among all
        packets of the stream.

        Returns:
            What can be looked at now, a queue a core; and which of the packets were out of order.
        """
        count = len(trace)
        time = self._continued(trace.time_ns)
        losses = np.sort(np.asarray(trace.loss_after, np.int64))
        out_of_order = np.zeros(count, np.bool_)
        size, foreign, *columns = _sort_by_core(
            time, trace.core, trace.id, trace.type, trace.operation, losses, self.received, self.origin_ns, self._kinds,
            self._place_of_core, self._sends, self._latest, self._mark, out_of_order,
        )  # fmt: skip
        duplicated = [np.zeros(0, np.int64)]
        queues = []
        for at in range(len(self._cores)):
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
        """Packets that wait for ones that may arrive late; there they stay."""
        return list(self._held)

    def close(self) -> list[Queue]:
        """The packets that were held back: no more come."""
        held, self._held = self._held, [EMPTY_QUEUE] * len(self._cores)
        return held

    def _continued(self, time_ns: Ints) -> Ints:
        """Unwrapped times, going on where the last packets ended."""
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
def _sort_by_core(
    time: Any, core: Any, id_: Any, type_: Any, operation: Any, losses: Any, received: Any, origin_ns: Any, kinds: Any,
    place: Any, sends: Any, latest: Any, mark: Any, out_of_order: Any,
) -> Any:  # fmt: skip
    """Sort packets by core.

    Args:
        time: int64, unwrapped, in order of arrival.
        core: int16,
        id_: int32,
        type_: uint8,
        operation: int64, as the packets say.
        losses: int64, ascending: packets before which the device reported a loss.
        received: packets before these.
        origin_ns: what times are to count from.
        kinds: event ids of the trace.
        place: int64, by core number: its position; -1: not of this program.
        sends: bool, cores x symbols: whether the core can send that; last, nothing.
        latest: int64, of each core the latest time so far; brought up to date.
        mark: bool, of each core, whether its next packet is the first after a loss; brought up to date.
        out_of_order: bool, of the packets; set where one comes late.

    Returns:
        int64 packets of each core; int64 positions of those that nobody here can send; then time, symbol, mark and
        position of the others: cores x packets.
    """
    count, cores, operations = len(time), len(mark), (sends.shape[1] - 1) // 2 - kinds
    size, foreign, foreign_count = np.zeros(cores, np.int64), np.empty(count, np.int64), 0
    times, symbols = np.empty((cores, count)), np.empty((cores, count), np.int32)
    marks, arrivals = np.empty((cores, count), np.bool_), np.empty((cores, count), np.int64)
    loss = 0
    for index in range(count):
        while loss < len(losses) and losses[loss] <= index:
            mark[:] = True
            loss += 1
        at = place[np.int64(core[index]) & 0xFFFF]
        if at < 0:
            foreign[foreign_count] = received + index
            foreign_count += 1
            continue
        symbol = sends.shape[1] - 1  # nothing that any core sends
        named = np.int64(operation[index])
        if 0 <= id_[index] < kinds and type_[index] <= 1 and named < operations:
            symbol = 2 * (kinds + named if named >= 0 else np.int64(id_[index])) + np.int64(type_[index])
        out_of_order[index] = time[index] < latest[at]
        latest[at] = max(latest[at], time[index])
        if sends[at, symbol]:
            row = size[at]
            times[at, row], symbols[at, row] = time[index] - origin_ns, symbol
            marks[at, row], arrivals[at, row] = mark[at], received + index
            size[at] += 1
        else:
            foreign[foreign_count] = received + index
            foreign_count += 1
        mark[at] = False
    if loss < len(losses):
        mark[:] = True
    return size, foreign[:foreign_count].copy(), times, symbols, marks, arrivals


def _restore_alternation(queue: Queue, kinds: int) -> Queue:
    """END before START where both have one time stamp and cannot have happened as they arrived.

    A core runs one operation at a time, so the END that follows a START is its own: of another kind, the
    two changed places; of the same kind, they did where the packet before is such a START, too.
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
