"""Packets as they arrive, made into one orderly queue a core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    """

    def __init__(self, cores: npt.NDArray[np.int16], tracks: tuple[Track, ...], kinds: int, meta: TraceMeta) -> None:
        self._cores, self._kinds, self._meta = cores, kinds, meta
        self._operations = tracks[0].symbols // 2 - kinds
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
        core = self._place[trace.core.astype(np.int64) & 0xFFFF]
        symbol = 2 * trace.id.astype(np.int64) + trace.type
        bad = (trace.id < 0) | (trace.id >= self._kinds) | (trace.type > 1)
        named = trace.operation >= 0
        if named.any():
            symbol = np.where(named, 2 * (self._kinds + trace.operation) + trace.type, symbol)
            bad |= trace.operation >= self._operations
        symbol = np.where(bad, -1, symbol)
        arrival = self.received + np.arange(count)
        out_of_order = np.zeros(count, np.bool_)
        losses = np.asarray(trace.loss_after, np.int64)
        foreign = [arrival[core < 0]]
        duplicated: list[Ints] = []
        queues = []
        for at in range(len(self._cores)):
            mine = np.flatnonzero(core == at)
            times = time[mine]
            latest = np.maximum.accumulate(np.append(self._latest[at], times))
            out_of_order[mine] = times < latest[:-1]
            self._latest[at] = latest[-1]
            known = self._sends[at][symbol[mine]]
            marked = self._marks(at, mine, losses)
            foreign.append(arrival[mine[~known]])
            relative = (times - self.origin_ns).astype(np.float64)
            queue = Queue(relative, symbol[mine].astype(np.int32), marked, arrival[mine])
            if not known.all():
                queue = queue[known]
            queue = joined(self._held[at], queue)
            if np.any(queue.time[1:] < queue.time[:-1]):
                queue = queue[np.argsort(queue.time, kind="stable")]
            again = (queue.time[1:] == queue.time[:-1]) & (queue.symbol[1:] == queue.symbol[:-1])
            if again.any():
                again = np.append(False, again)
                duplicated.append(queue.arrival[again])
                queue = queue[~again]
            queue = _alternating(queue, self._kinds)
            ready = max(len(queue) - _LATE, 0)
            self._held[at] = queue[ready:]
            queues.append(queue[:ready])
        self.received += count
        self.foreign = np.concatenate(foreign)
        self.duplicated = np.concatenate([np.zeros(0, np.int64), *duplicated])
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

    def _marks(self, at: int, mine: Ints, losses: Ints) -> Bools:
        """The core's first packet after each reported loss."""
        marked = np.zeros(len(mine), np.bool_)
        if len(mine):
            marked[0] = self._mark[at]
            self._mark[at] = False
        if len(losses):
            after = np.searchsorted(mine, losses)
            marked[after[after < len(mine)]] = True
            self._mark[at] |= bool((after >= len(mine)).any())
        return marked


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
