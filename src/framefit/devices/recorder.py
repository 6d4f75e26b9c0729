"""A bounded buffer of event packets that counts what it could not keep."""

from __future__ import annotations

from array import array

import numpy as np

from framefit.core.events import EventType, Trace, TraceMeta

__all__ = ["EventRecorder"]

_START, _END = int(EventType.START), int(EventType.END)


class EventRecorder:
    """Keeps the first ``capacity`` packets since it was last emptied.

    Args:
        capacity: packets; some 100 bytes each.
    """

    def __init__(self, capacity: int = 1 << 18) -> None:
        self._cells: list[int] = []  # the fastest to append to just after a launch, when the caches are cold
        self._full = 5 * capacity
        self._lost = 0
        self.capacity = capacity

    def add(self, time_ns: int, kind: int, type_: EventType, core: int, operation: int) -> None:
        """Append a packet, or count it as lost."""
        if len(self._cells) >= self._full:
            self._lost += 1
            return
        self._cells.extend((time_ns, kind, type_, core, operation))

    def add_launch(self, started_ns: int, finished_ns: int, kind: int, core: int) -> None:
        """Append a launch of one operation: START and END at once."""
        if len(self._cells) + 10 > self._full:
            self.add(started_ns, kind, EventType.START, core, 0)
            self.add(finished_ns, kind, EventType.END, core, 0)
            return
        self._cells.extend((started_ns, kind, _START, core, 0, finished_ns, kind, _END, core, 0))

    def drain(self, kinds: tuple[str, ...]) -> Trace:
        """What is held, as a trace; the buffer is empty afterwards."""
        cells, self._cells = self._cells, []  # set aside first: another thread may add to it
        lost, self._lost = self._lost, 0
        packets = np.frombuffer(array("q", cells), np.int64).reshape(-1, 5)
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
