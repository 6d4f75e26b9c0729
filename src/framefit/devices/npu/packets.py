"""Event packets of a simulated device: what its trace unit records, drops, and sends to the host.

The loops over packets are compiled: from launches to packets, and which of these fit into a bounded buffer.

Event packets distinguish kinds of operations, as trace units of accelerators do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from framefit.core.events import Trace, TraceMeta
from framefit.core.target import TraceUnit

__all__ = ["CLOSES", "RECORDED", "admit"]


_PENDING = 256  # launches that wait to be converted to packets: at most some milliseconds of work
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
    """Converts launches to START and END packets, as a trace unit of bounded memory would.

    Packets of kinds that are not selected are not made. A packet that finds the buffer full is dropped; the buffer
    drains at ``drain_rate_hz``, or completely at the end of each launch. Packets that the host received are kept until
    they are read, the latest of them where that is never done.

    Launches are only recorded while they happen; packets are computed in batches, and sorted by time where units
    run concurrently.

    Args:
        unit: trace unit of the target.
        keep: number of packets that the host keeps.
    """

    def __init__(self, unit: TraceUnit, keep: int = 1 << 20) -> None:
        self._unit = unit
        self._keep = keep
        self._patterns: list[_Pattern] = []
        self._tables: tuple[npt.NDArray[Any], ...] | None = None  # of all patterns, one after the other
        self._pending: list[tuple[int, int, float, int, int]] = []
        self._kinds: dict[str, int] = {}
        # Rows: time, kind, type, core, operation, whether packets were dropped just before.
        self._chunks: deque[Ints] = deque()
        self.clear()

    def clear(self) -> None:
        """Forget all packets and launches: both buffers are empty, at time 0."""
        self._pending.clear()
        self._chunks.clear()
        self._ahead = _NONE  # packets later than the begin of a launch that is not recorded yet
        self._held = self._lost = self._overwritten = 0
        self._losing = False  # whether packets were dropped since the latest kept one
        self._marked = False  # whether the latest trace ends with a mark of those
        self._level, self._level_at = 0.0, 0  # fill level of the device's buffer, and its time

    @property
    def kinds(self) -> tuple[str, ...]:
        """Event ids by name."""
        return tuple(self._kinds)

    def pattern(self, kinds: Sequence[str], durations_ns: Sequence[int], core: int) -> int:
        """Register the operations of a launch, in order.

        Returns:
            The number for :meth:`add`.
        """
        ends = np.cumsum(np.asarray(durations_ns, np.int64))
        numbers = [self._kinds.setdefault(kind, len(self._kinds)) for kind in kinds]
        begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        self._patterns.append(_Pattern(np.asarray(numbers, np.int64), begins, ends, core))
        self._tables = None
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
        """Record a launch.

        Args:
            pattern: number of its pattern.
            started_ns: its begin.
            factor: its duration over the nominal one, without the stall.
            stalled_at_ns: nominal time after the begin at which it stalled,
            stall_ns: and the length of the stall.
            settled_ns: no launch before this time will be recorded later; default: ``started_ns``.
        """
        if len(self._pending) >= _PENDING:
            self._flush(started_ns if settled_ns is None else settled_ns)
        self._pending.append((pattern, started_ns, factor, stalled_at_ns, stall_ns))

    @staticmethod
    def prepare() -> None:
        """Load the compiled code: this takes half a second, which a run in real time does not have."""
        buffer = PacketBuffer(TraceUnit())
        buffer.add(buffer.pattern(["any"], [1], 0), 0, 1.0)
        buffer.drain()

    def drain(self, until_ns: int | None = None) -> Trace:
        """Packets that the host received since the latest call, in order of arrival.

        The device's buffer stays as full as it is: what it drops does not depend on when it is read.

        Args:
            until_ns: no launch before this time will be recorded later: later packets wait for another call;
                default: there are none.
        """
        self._flush(until_ns)
        rows = np.concatenate(self._chunks) if self._chunks else _NONE
        losses = np.flatnonzero(rows[:, 5])
        if self._marked:
            losses = losses[losses > 0]
        if self._losing and not (self._marked and not len(rows)):
            losses = np.append(losses, len(rows))
        self._marked = self._losing
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
        self._chunks.clear()
        self._held = self._lost = self._overwritten = 0
        return trace

    def _flush(self, until_ns: int | None = None) -> None:
        """Convert pending launches to packets, pass them through the device's buffer, and keep those that fit.

        Args:
            until_ns: later packets wait for launches that are not recorded yet; ``None``: there are none.
        """
        if not self._pending and not len(self._ahead):
            return

        pending, self._pending = self._pending, []
        rows = self._expanded(pending) if pending else _NONE
        if len(self._ahead):
            rows = np.concatenate([self._ahead, rows])
        if np.any(rows[1:, 0] < rows[:-1, 0]):  # units ran concurrently
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
        """Packets of recorded launches, one launch after the other."""
        if self._tables is None:
            self._tables = self._joined()
        pattern, started, factor, stalled_at, stall = zip(*pending, strict=True)
        rows: Ints = expand(
            np.asarray([pattern, started, stalled_at, stall], np.int64).T.copy(),
            np.asarray(factor, np.float64),
            *self._tables,
        )
        return rows

    def _joined(self) -> tuple[npt.NDArray[Any], ...]:
        """What :func:`expand` needs of all patterns."""
        patterns, selected = self._patterns, self._unit.selected_kinds
        return (
            np.cumsum([0, *(len(p.kind) for p in patterns)]),
            np.concatenate([p.begin_ns for p in patterns]),
            np.concatenate([p.end_ns for p in patterns]),
            np.concatenate([p.kind for p in patterns]),
            np.asarray([p.core for p in patterns], np.int64),
            np.asarray([selected is None or kind in selected for kind in self._kinds], np.bool_),
        )


RECORDED = 1
"""Flag of a packet of a recorded kind."""
CLOSES = 2
"""Flag of a launch's last packet."""


@njit(cache=True)
def expand(
    launches: Any, factor: Any, first: Any, begin_ns: Any, end_ns: Any, kind: Any, core: Any, recorded: Any
) -> Any:
    """Packets of launches, one launch after the other.

    Args:
        launches: int64, one row for each: pattern, begin, nominal time of its stall, length of the stall.
        factor: float64: factor on nominal times in each launch.
        first: int64: index of each pattern's first operation in the next three; one more for the end.
        begin_ns: int64: nominal begin of each operation.
        end_ns: nominal end of each operation.
        kind: kind of each operation.
        core: int64: core of each pattern.
        recorded: bool: whether each kind is recorded.

    Returns:
        int64, one row for each: time, kind, type, core, operation, flags. Of kinds that are not recorded only
            the packet that closes a launch is returned.
    """
    total = 0
    for launch in range(len(launches)):
        pattern = launches[launch, 0]
        for at in range(first[pattern], first[pattern + 1]):
            total += 2 * recorded[kind[at]]
        total += 1
    rows = np.empty((total, 6), np.int64)
    place = 0
    for launch in range(len(launches)):
        pattern, started, stalled_at, stall = launches[launch]
        for at in range(first[pattern], first[pattern + 1]):
            for type_ in range(2):
                last = type_ == 1 and at == first[pattern + 1] - 1
                if not recorded[kind[at]] and not last:
                    continue
                nominal = end_ns[at] if type_ else begin_ns[at]
                rows[place, 0] = started + np.int64(np.rint(nominal * factor[launch]))
                if nominal > stalled_at:  # what begins at the very time of the stall is not delayed
                    rows[place, 0] += stall
                rows[place, 1] = kind[at]
                rows[place, 2] = type_
                rows[place, 3] = core[pattern]
                rows[place, 4] = at - first[pattern]
                rows[place, 5] = (RECORDED if recorded[kind[at]] else 0) | (CLOSES if last else 0)
                place += 1
    return rows[:place]


@njit(cache=True)
def admit(rows: Any, size: Any, per_ns: Any, level: Any, at_ns: Any, losing: Any, resolution_ns: Any, mask: Any) -> Any:
    """Keep the packets that fit; ``rows`` is overwritten.

    This is a fluid queue: a packet counts partly while it is being sent.

    Args:
        rows: as from :func:`expand`, in order of time.
        size: number of packets that the buffer holds.
        per_ns: packets that leave in a nanosecond; negative: none, but all when a launch closes.
        level: number of packets in it at ``at_ns``.
        at_ns: time of the preceding packet.
        losing: whether packets were dropped since the latest kept one.
        resolution_ns: of the time stamps.
        mask: of their ticks.

    Returns:
        Number of kept packets: they are the first rows, with a 1 in place of the flags where packets were
            dropped just before. Then the number of dropped ones; level, time and ``losing`` after the last
            packet.
    """
    kept = lost = 0
    for index in range(len(rows)):
        time, flags = rows[index, 0], rows[index, 5]
        if per_ns >= 0 and time > at_ns:
            level = max(level - (time - at_ns) * per_ns, 0.0)
            at_ns = time
        if flags & RECORDED:
            if level + 1.0 <= size:
                level += 1.0
                rows[kept] = rows[index]
                rows[kept, 0] = (time // resolution_ns & mask) * resolution_ns
                rows[kept, 5] = losing
                kept += 1
                losing = False
            else:
                lost += 1
                losing = True
        if per_ns < 0 and flags & CLOSES:
            level = 0.0
    return kept, lost, level, at_ns, losing


TRANSFER = "transfer"
_KINDS = {
    "conv": "Conv ConvTranspose ConvInteger QLinearConv FusedConv NhwcConv NhwcFusedConv DeformConv",
    "matmul": "MatMul Gemm Einsum MatMulInteger QLinearMatMul FusedMatMul FusedGemm QGemm MatMulIntegerToFloat "
    "DynamicQuantizeMatMul Attention MultiHeadAttention",
    "recurrent": "LSTM GRU RNN",
    "pad_pool": "Pad MaxPool AveragePool GlobalMaxPool GlobalAveragePool LpPool GlobalLpPool MaxUnpool MaxRoiPool "
    "NhwcMaxPool QLinearAveragePool QLinearGlobalAveragePool",
    "reformat": "Transpose Reshape Concat Slice Split Squeeze Unsqueeze Flatten Gather GatherND GatherElements Scatter "
    "ScatterND ScatterElements Tile Expand Resize Upsample DepthToSpace SpaceToDepth Cast CastLike Identity "
    "QuantizeLinear DequantizeLinear DynamicQuantizeLinear ReverseSequence Compress ConcatFromSequence "
    "QLinearConcat ReorderInput ReorderOutput Dropout",
    "reduce": "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
    "ReduceLogSumExp ArgMax ArgMin CumSum TopK Softmax LogSoftmax QLinearSoftmax Hardmax LayerNormalization "
    "InstanceNormalization GroupNormalization RMSNormalization SimplifiedLayerNormalization SkipLayerNormalization "
    "LpNormalization MeanVarianceNormalization",
    "control": "If Loop Scan SequenceMap",
}
_KIND_OF = {op: kind for kind, ops in _KINDS.items() for op in ops.split()}
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")  # they cost nothing together with an operator
_MAIN = ("conv", "matmul", "recurrent", "control")


def event_kind(op: str) -> str:
    """Kind of a layer: that of its heaviest operator.

    Args:
        op: operators in order, joined by "+", as in :class:`framefit.core.model.Layer`.

    Example:
        >>> event_kind("Conv+BatchNormalization+Relu")
        'conv'
    """
    ops = [name for name in op.split("+") if name not in _CONVERSIONS] or op.split("+")
    kinds = [_KIND_OF.get(name, "elementwise") for name in ops]
    return next((kind for kind in kinds if kind in _MAIN), kinds[0])
