"""What a repair is worth, found out on the user's own trace: received events are masked, and put back.

The mask is drawn like the losses that this trace has: runs of as many events, only STARTs where only
these were lost, reported where the device reports losses. It comes on top of the real losses, so what
it finds errs on the side of caution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace
from framefit.core.profile import Certificate, How, OperationLog
from framefit.core.run_record import Percentiles
from framefit.profiling.sequence import Rebuilt
from framefit.stats import wilson

__all__ = ["certify"]


Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_LEAST_RATIO, _MOST_RATIO = 0.02, 0.1  # masked, of what was received: more than a tenth would be another trace
_LEAST_MASKED = 20  # below it a coverage says nothing
_ONE_TYPE = 0.95  # of the losses: then only this type is masked


def certify(trace: Trace, rebuilt: Rebuilt, rebuild: Callable[[Trace], Rebuilt], seed: int) -> Certificate | None:
    """Mask, repair, compare.

    Args:
        trace: as it came.
        rebuilt: what became of it.
        rebuild: makes the same of any trace of the same program.
        seed: of the mask.

    Returns:
        ``None``: too few events to learn anything from.
    """
    log = rebuilt.log
    events = np.concatenate([log.start_event, log.end_event])
    entry = np.tile(np.arange(len(log)), 2)[events >= 0]
    edge = np.repeat([EventType.START, EventType.END], len(log))[events >= 0]
    order = np.argsort(events[events >= 0])
    event, entry, edge = events[events >= 0][order], entry[order], edge[order]
    lost = _Losses.of(log)
    masked = lost.mask(edge, np.random.default_rng(seed))
    if np.count_nonzero(masked) < _LEAST_MASKED:
        return None
    kept = np.ones(len(trace), np.bool_)
    kept[event[masked]] = False
    again = rebuild(_without(trace, kept)).log
    row = _rows(log, again)
    here = row[entry]
    found = np.flatnonzero(masked & (here >= 0))
    start = edge[found] == EventType.START
    true = np.where(start, log.start_ns[entry[found]], log.end_ns[entry[found]])
    time, low, high = (
        np.where(start, s[here[found]], e[here[found]])
        for s, e in (
            (again.start_ns, again.end_ns),
            (again.start_low_ns, again.end_low_ns),
            (again.start_high_ns, again.end_high_ns),
        )
    )
    count = int(np.count_nonzero(masked))
    covered = int(np.count_nonzero((low <= true) & (true <= high)))
    left = np.flatnonzero(~masked)
    became = np.where(
        edge[left] == EventType.START, again.start_event[here[left]], again.end_event[here[left]]
    )  # of the packets that are left, in their new numbering
    same = (here[left] >= 0) & (became == (np.cumsum(kept) - 1)[event[left]])
    runs = int(np.count_nonzero(np.diff(np.concatenate([[False], masked]).astype(np.int8)) == 1))
    return Certificate(
        masked=count,
        matched=len(event),
        burst=count / max(runs, 1),
        as_struck=lost.count > 0,
        recognised_ratio=float(same.mean()) if len(left) else 1.0,
        edge_error_ns=Percentiles.of(np.abs(time - true)),
        duration_error_ratio=_duration_error(log, again, row, np.unique(entry[masked])),
        coverage_ratio=covered / count,
        coverage_interval=wilson(covered, count),
    )


def _duration_error(log: OperationLog, again: OperationLog, row: Ints, touched: Ints) -> float:
    """Of operations that were wholly measured before."""
    whole = (log.start_how[touched] == How.MEASURED) & (log.end_how[touched] == How.MEASURED) & (row[touched] >= 0)
    touched = touched[whole]
    true = (log.end_ns - log.start_ns)[touched]
    told = (again.end_ns - again.start_ns)[row[touched]]
    return float(np.abs(told - true).sum() / max(int(true.sum()), 1))


def _rows(log: OperationLog, again: OperationLog) -> Ints:
    """Where each entry of one log is in another; -1: nowhere."""
    if not len(again):
        return np.full(len(log), -1, np.int64)
    width = int(max(log.operation.max(initial=0), again.operation.max(initial=0))) + 1
    tall = int(max(log.program.max(initial=0), again.program.max(initial=0))) + 1
    here, there = ((one.inference * tall + one.program) * width + one.operation for one in (log, again))
    order = np.argsort(there, kind="stable")
    at = np.minimum(np.searchsorted(there[order], here), len(order) - 1)
    return np.where(there[order][at] == here, order[at], -1)


def _without(trace: Trace, kept: Flags) -> Trace:
    """A trace that lost more; it tells so where it told of losses before."""
    rank = np.concatenate([[0], np.cumsum(kept)])
    told = rank[np.clip(trace.loss_after, 0, len(kept))]
    if len(told):
        told = np.concatenate([told, rank[:-1][~kept]])
    return replace(
        trace,
        time_ns=trace.time_ns[kept],
        id=trace.id[kept],
        type=trace.type[kept],
        core=trace.core[kept],
        operation=trace.operation[kept],
        loss_after=np.unique(told).astype(np.int64),
    )


@dataclass(frozen=True)
class _Losses:
    """How a trace lost events.

    Attributes:
        count: how many.
        ratio: of all that were expected.
        runs: int64, lengths of the runs.
        only: the type that alone was lost; ``None``: both.
    """

    count: int
    ratio: float
    runs: Ints
    only: EventType | None

    @classmethod
    def of(cls, log: OperationLog) -> _Losses:
        """As the log tells them, all cores together, in order of time."""
        time = np.concatenate([log.start_ns, log.end_ns])
        kind = np.repeat([EventType.START, EventType.END], len(log))
        lost = np.concatenate([log.start_how, log.end_how]) != How.MEASURED
        order = np.lexsort((kind, time))
        steps = np.diff(np.concatenate([[0], lost[order].astype(np.int8), [0]]))
        runs = np.flatnonzero(steps == -1) - np.flatnonzero(steps == 1)
        count = int(np.count_nonzero(lost))
        starts = int(np.count_nonzero(lost & (kind == EventType.START)))
        only = EventType.START if starts >= _ONE_TYPE * count else EventType.END
        either = count == 0 or (1 - _ONE_TYPE) * count < starts < _ONE_TYPE * count
        return cls(count, count / max(len(lost), 1), runs.astype(np.int64), None if either else only)

    def mask(self, edge: npt.NDArray[np.int64], random: np.random.Generator) -> Flags:
        """Which of the received events to take away: never the first or the last one.

        Args:
            edge: type of each, in order of arrival.
            random: what it is drawn with.
        """
        masked = np.zeros(len(edge), np.bool_)
        may = np.flatnonzero(edge == self.only) if self.only is not None else np.arange(len(edge))
        may = may[(may > 0) & (may < len(edge) - 1)]
        wanted = round(len(edge) * min(max(self.ratio, _LEAST_RATIO), _MOST_RATIO)) if self.count else len(edge) // 10
        wanted = min(wanted, len(may) // 2)
        if wanted <= 0:
            return masked
        most = max(wanted // 4, 1)  # one long loss is not the whole mask
        lengths = np.minimum(random.choice(self.runs, wanted) if self.count else np.ones(wanted, np.int64), most)
        lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), wanted)) + 1]
        begins = random.choice(len(may), len(lengths), replace=False)
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
            masked[may[begin : begin + length]] = True
        return masked
