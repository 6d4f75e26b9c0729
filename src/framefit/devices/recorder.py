"""A bounded buffer of event packets that counts what it could not keep."""

from __future__ import annotations

from array import array

import numpy as np

from framefit.core.events import EventType, Trace, TraceMeta

__all__ = ["EventRecorder"]


class EventRecorder:
    """Keeps the first ``capacity`` packets since it was last emptied.

    Args:
        capacity: packets, 40 bytes each.
    """

    def __init__(self, capacity: int = 1 << 18) -> None:
        self._cells = array("q")
        self._full = 5 * capacity
        self._lost = 0
        self.capacity = capacity

    def add(self, time_ns: int, kind: int, type_: EventType, core: int, operation: int) -> None:
        """Append a packet, or count it as lost."""
        if len(self._cells) >= self._full:
            self._lost += 1
            return
        self._cells.extend((time_ns, kind, type_, core, operation))

    def drain(self, kinds: tuple[str, ...]) -> Trace:
        """What is held, as a trace; the buffer is empty afterwards."""
        # Set aside first: an array that numpy looks at cannot grow, and another thread may add to it.
        cells, self._cells = self._cells, array("q")
        lost, self._lost = self._lost, 0
        packets = np.frombuffer(cells, np.int64).reshape(-1, 5)
        return Trace(
            time_ns=packets[:, 0],
            id=packets[:, 1].astype(np.int32),
            type=packets[:, 2].astype(np.uint8),
            core=packets[:, 3].astype(np.int16),
            operation=packets[:, 4],
            kinds=kinds,
            loss_after=np.asarray([len(packets)] if lost else [], np.int64),
            meta=TraceMeta(buffer_events=self.capacity, lost_events=lost),
        )
