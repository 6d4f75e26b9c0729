"""Where in time events were lost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from framefit.core.profile import How, OperationLog

__all__ = ["long_losses"]

Ints = npt.NDArray[np.int64]


def long_losses(log: OperationLog, least: int = 4, most: int = 1000) -> tuple[Ints, Ints, Ints]:
    """The longest losses: so many events in a row, all cores together, between two that were received.

    Args:
        log: what happened.
        least: events of the shortest one.
        most: how many.

    Returns:
        Begin and end of each, int64 ns, ascending, and its number of events, int64.
    """
    time = np.concatenate([log.start_ns, log.end_ns])
    lost = np.concatenate([log.start_how, log.end_how]) != How.MEASURED
    order = np.lexsort((lost, time))
    time, steps = time[order], np.diff(np.concatenate([[0], lost[order].astype(np.int8), [0]]))
    first, after = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    count = after - first
    chosen = np.flatnonzero(count >= least)
    chosen = np.sort(chosen[np.argsort(-count[chosen], kind="stable")[:most]])
    begins = time[np.maximum(first[chosen] - 1, 0)]
    ends = time[np.minimum(after[chosen], max(len(time) - 1, 0))]
    return begins, ends, count[chosen]
