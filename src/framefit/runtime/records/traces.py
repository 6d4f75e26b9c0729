"""Traces of a run in one piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from framefit.core.events import Trace

__all__ = ["Packets", "in_time_order", "joined"]

_MOST_PACKETS = 1 << 22  # that are kept, 32 bytes each


class Packets:
    """What a device's trace unit has recorded; of a long run the last part is kept.

    Args:
        events: gives what came since it was last asked.
    """

    def __init__(self, events: Callable[[], Trace]) -> None:
        self._events = events
        self._traces: deque[Trace] = deque()
        self._overwritten = 0

    def collect(self) -> None:
        """Take what there is."""
        self._traces.append(self._events())
        while len(self._traces) > 1 and sum(map(len, self._traces)) > _MOST_PACKETS:
            self._overwritten += len(self._traces.popleft())

    def trace(self) -> Trace:
        """All that is kept, losses marked where they were noticed."""
        return joined(self._traces, self._overwritten)


def joined(traces: Sequence[Trace], overwritten: int) -> Trace:
    """Traces one after the other, and what was given up before; the last one knows all kinds.

    Args:
        traces: at least one, as they were read from a device.
        overwritten: packets that were given up.
    """
    counts = np.cumsum([0, *(len(trace) for trace in traces)])
    last = traces[-1]
    lost = [trace.meta.lost_events for trace in traces if trace.meta.lost_events is not None]
    overwritten += sum(trace.meta.overwritten_events for trace in traces)
    return Trace(
        time_ns=np.concatenate([trace.time_ns for trace in traces]),
        id=np.concatenate([trace.id for trace in traces]),
        type=np.concatenate([trace.type for trace in traces]),
        core=np.concatenate([trace.core for trace in traces]),
        operation=np.concatenate([trace.operation for trace in traces]),
        kinds=last.kinds,
        loss_after=np.concatenate([t.loss_after + c for t, c in zip(traces, counts[:-1], strict=True)]),
        meta=msgspec.structs.replace(
            last.meta, lost_events=sum(lost) if lost else None, overwritten_events=overwritten
        ),
    )


def in_time_order(trace: Trace) -> Trace:
    """Packets of several units by their times, which must not wrap around.

    A loss stays behind as many packets as before: the device did not say which unit's were lost.
    """
    order = np.argsort(trace.time_ns, kind="stable")
    return Trace(
        time_ns=trace.time_ns[order],
        id=trace.id[order],
        type=trace.type[order],
        core=trace.core[order],
        operation=trace.operation[order],
        kinds=trace.kinds,
        loss_after=trace.loss_after,
        meta=trace.meta,
    )
