"""Packets as they arrive, made into one orderly queue a core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import Trace, TraceMeta, unwrapped_ns
from framefit.profiling.tracks import Track

__all__ = ["EMPTY", "Intake", "Queue", "earliest", "joined"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LATE = 32  # packets of a core that are held back, so that one that arrives late can still take its place


@dataclass(frozen=True)
class Queue:
    """Packets of one core, by time; arrays of one length.

    Attributes:
        time: float64, ns since the trace's first packet.
        symbol: int32, see :func:`framefit.profiling.tracks.track_of`.
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


def joined(first: Queue, second: Queue) -> Queue:
    """One queue behind the other."""
    if not len(first):
        return second
    return Queue(
        np.concatenate([first.time, second.time]),
        np.concatenate([first.symbol, second.symbol]),
        np.concatenate([first.marked, second.marked]),
        np.concatenate([first.arrival, second.arrival]),
    )


def earliest(queues: list[Queue], count: int) -> list[Queue]:
    """The first ``count`` packets of all cores together."""
    if sum(len(queue) for queue in queues) <= count:
        return queues
    until = np.sort(np.concatenate([queue.time for queue in queues]))[count]
    return [queue[: int(np.searchsorted(queue.time, until))] for queue in queues]


EMPTY = Queue(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(0, np.int64))


class Intake:
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
        self._doubles = np.zeros(len(cores), np.bool_)
        programs = len(tracks[0].first) - 1
        sends = [np.diff(t.occurs_first).reshape(programs, t.symbols).sum(axis=0) > 0 for t in tracks]
        self._sends = np.array([np.append(one, False) for one in sends])
        place = np.full(1 << 16, -1, np.int64)
        place[cores.astype(np.int64) & 0xFFFF] = np.arange(len(cores))
        self._place = place
        self._held = [EMPTY] * len(cores)
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
        size, foreign, *columns = _sorted_in(
            time, trace.core, trace.id, trace.type, trace.operation, losses, self.received, self.origin_ns, self._kinds,
            self._place, self._sends, self._latest, self._mark, out_of_order,
        )  # fmt: skip
        duplicated = [np.zeros(0, np.int64)]
        queues = []
        for at in range(len(self._cores)):
            queue = joined(self._held[at], Queue(*(column[at, : size[at]] for column in columns)))
            if np.any(queue.time[1:] <= queue.time[:-1]):
                queue = queue[np.argsort(queue.time, kind="stable")]
                again = queue.repeated()
                self._doubles[at] |= np.any(again & self._unique[at, queue.symbol])
                if self._doubles[at]:
                    duplicated.append(queue.arrival[again])
                    queue = queue[~again]
                queue = _alternating(queue, self._kinds)
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
        held, self._held = self._held, [EMPTY] * len(self._cores)
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
def _sorted_in(
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
    size, foreign, strangers = np.zeros(cores, np.int64), np.empty(count, np.int64), 0
    times, symbols = np.empty((cores, count)), np.empty((cores, count), np.int32)
    marks, arrivals = np.empty((cores, count), np.bool_), np.empty((cores, count), np.int64)
    loss = 0
    for index in range(count):
        while loss < len(losses) and losses[loss] <= index:
            mark[:] = True
            loss += 1
        at = place[np.int64(core[index]) & 0xFFFF]
        if at < 0:
            foreign[strangers] = received + index
            strangers += 1
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
            foreign[strangers] = received + index
            strangers += 1
        mark[at] = False
    if loss < len(losses):
        mark[:] = True
    return size, foreign[:strangers].copy(), times, symbols, marks, arrivals


def _alternating(queue: Queue, kinds: int) -> Queue:
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
