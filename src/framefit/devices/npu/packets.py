"""Event packets of a simulated device: what its trace unit records, drops, and hands to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace, TraceMeta
from framefit.core.target import TraceUnit

__all__ = ["PacketBuffer"]

_PENDING = 256  # launches that wait to be turned into packets: some milliseconds of work at most

Ints = npt.NDArray[np.int64]
_NONE: Ints = np.zeros((0, 6), np.int64)


@dataclass(frozen=True)
class _Pattern:
    """Operations of one compiled segment: kinds, and nominal begin and end after the launch's begin."""

    kind: Ints
    begin_ns: Ints
    end_ns: Ints
    core: int


class PacketBuffer:
    """Turns launches into START and END packets, as a trace unit of bounded memory would.

    Packets of kinds that are not selected are not made. A packet that finds the buffer
    full is dropped; the buffer drains at ``drain_rate_hz``, or completely whenever a
    launch ends. What the host received is kept, of long runs the latest.

    Launches are only noted while they happen; packets are computed in batches, and put into the
    order of their times where units run side by side.

    Args:
        unit: of the target.
        keep: packets that the host keeps.
    """

    def __init__(self, unit: TraceUnit, keep: int = 1 << 20) -> None:
        self._unit = unit
        self._keep = keep
        self._patterns: list[_Pattern] = []
        self._pending: list[tuple[int, int, float, int, int]] = []
        self._kinds: dict[str, int] = {}
        # Rows: time, kind, type, core, operation, whether packets were dropped just before.
        self._chunks: deque[Ints] = deque()
        self._clear()

    def _clear(self) -> None:
        self._chunks.clear()
        self._ahead = _NONE  # packets later than a launch that was yet to come
        self._held = self._lost = self._overwritten = 0
        self._losing = False  # packets have been dropped since the latest one that was kept
        self._level, self._level_at = 0.0, 0  # of the device's buffer

    @property
    def kinds(self) -> tuple[str, ...]:
        """Event ids by name."""
        return tuple(self._kinds)

    def pattern(self, kinds: Sequence[str], durations_ns: Sequence[int], core: int) -> int:
        """Make known what a launch executes, one operation after the other.

        Returns:
            A number for :meth:`add`.
        """
        ends = np.cumsum(np.asarray(durations_ns, np.int64))
        numbers = [self._kinds.setdefault(kind, len(self._kinds)) for kind in kinds]
        begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self._patterns.append(_Pattern(np.asarray(numbers, np.int64), begins, ends, core))
        return len(self._patterns) - 1

    def add(
        self,
        pattern: int,
        started_ns: int,
        factor: float,
        stalled_at_ns: int = 0,
        stall_ns: int = 0,
        settled_ns: int | None = None,
    ) -> None:
        """Note a launch.

        Args:
            pattern: what was launched.
            started_ns: when it began.
            factor: its duration over the nominal one, without the stall.
            stalled_at_ns: nominal time after the begin at which it stalled, and
            stall_ns: for how long.
            settled_ns: no launch that is yet to be noted began before; default: ``started_ns``.
        """
        if len(self._pending) >= _PENDING:
            self._flush(started_ns if settled_ns is None else settled_ns)
        self._pending.append((pattern, started_ns, factor, stalled_at_ns, stall_ns))

    @staticmethod
    def prepare() -> None:
        """Load what packets are computed with: half a second that a run in real time does not have."""
        buffer = PacketBuffer(TraceUnit())
        buffer.add(buffer.pattern(["any"], [1], 0), 0, 1.0)
        buffer.drain()

    def drain(self) -> Trace:
        """All packets since the last call, in order of arrival; both buffers are empty afterwards."""
        self._flush()
        rows = np.concatenate(self._chunks) if self._chunks else _NONE
        losses = np.flatnonzero(rows[:, 5])
        if self._losing:
            losses = np.append(losses, len(rows))
        unit, marked = self._unit, self._unit.loss_markers
        trace = Trace(
            time_ns=rows[:, 0].copy(),
            id=rows[:, 1].astype(np.int32),
            type=rows[:, 2].astype(np.uint8),
            core=rows[:, 3].astype(np.int16),
            operation=rows[:, 4].copy() if unit.operations else np.full(len(rows), -1, np.int64),
            kinds=self.kinds,
            loss_after=losses.astype(np.int64) if marked else np.zeros(0, np.int64),
            meta=TraceMeta(
                resolution_ns=unit.resolution_ns,
                wrap_bits=unit.time_bits,
                selected_kinds=unit.selected_kinds,
                buffer_events=unit.buffer_events,
                drain_rate_hz=unit.drain_rate_hz,
                lost_events=self._lost if marked else None,
                overwritten_events=self._overwritten,
            ),
        )
        self._clear()
        return trace

    def _flush(self, until_ns: int | None = None) -> None:
        """Turn pending launches to packets: let them through the device's buffer, keep what got through.

        Args:
            until_ns: later packets wait for the launches that are yet to come; ``None``: none come.
        """
        if not self._pending and not len(self._ahead):
            return
        from framefit.devices.npu.queueing import admit

        pending, self._pending = self._pending, []
        rows = self._expanded(pending) if pending else _NONE
        if len(self._ahead):
            rows = np.concatenate([self._ahead, rows])
        if np.any(rows[1:, 0] < rows[:-1, 0]):  # units side by side
            rows = rows[np.argsort(rows[:, 0], kind="stable")]
        due = len(rows) if until_ns is None else int(np.searchsorted(rows[:, 0], until_ns, "right"))
        rows, self._ahead = rows[:due], rows[due:].copy()
        unit = self._unit
        kept, lost, self._level, self._level_at, self._losing = admit(
            rows,
            unit.buffer_events,
            -1.0 if unit.drain_rate_hz is None else unit.drain_rate_hz / 1e9,
            self._level,
            self._level_at,
            self._losing,
            unit.resolution_ns,
            -1 if unit.time_bits is None else (1 << unit.time_bits) - 1,
        )
        self._lost += lost
        self._chunks.append(rows[:kept].copy())
        self._held += kept
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self._held > self._keep:
            first = self._chunks.popleft()
            gone = min(self._held - self._keep, len(first))
            if gone < len(first):
                self._chunks.appendleft(first[gone:])
            self._held -= gone
            self._overwritten += gone

    def _expanded(self, pending: Sequence[tuple[int, int, float, int, int]]) -> Ints:
        """Packets of launches that have been noted, one launch after the other."""
        from framefit.devices.npu.queueing import expand

        patterns, selected = self._patterns, self._unit.selected_kinds
        pattern, started, factor, stalled_at, stall = zip(*pending, strict=True)
        rows: Ints = expand(
            np.asarray([pattern, started, stalled_at, stall], np.int64).T.copy(),
            np.asarray(factor, np.float64),
            np.cumsum([0, *(len(p.kind) for p in patterns)]),
            np.concatenate([p.begin_ns for p in patterns]),
            np.concatenate([p.end_ns for p in patterns]),
            np.concatenate([p.kind for p in patterns]),
            np.asarray([p.core for p in patterns], np.int64),
            np.asarray([selected is None or kind in selected for kind in self._kinds], np.bool_),
        )
        return rows
