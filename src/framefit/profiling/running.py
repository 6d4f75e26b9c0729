"""A profile that grows with a stream, in bounded memory."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from framefit.core.profile import EventCounts, OperationLog, Profile, Totals
from framefit.core.program import Program
from framefit.profiling.edges import empty_log, joined_logs
from framefit.profiling.rebuilt import Fate, Rebuilt
from framefit.profiling.sequence import Sequence
from framefit.profiling.summary import summarise

__all__ = ["RunningProfile"]

_BLOCK = 100_000  # operations that are kept: some 15 MB


class RunningProfile:
    """Adds up blocks of operations as they become certain.

    Sums are of the whole stream; their intervals are added as if all blocks were wrong in the same
    direction, which errs on the side of caution. Violations and gaps are those of the latest block.

    Args:
        sequence: what the stream is held against.
        program: the same, with names.
        confidence: of the intervals.
        resolution_ns: of the stream's clock.
    """

    def __init__(self, sequence: Sequence, program: Program, confidence: float, resolution_ns: int) -> None:
        self._sequence, self._program = sequence, program
        self._confidence, self._resolution_ns = confidence, resolution_ns
        self._logs: list[OperationLog] = []
        self._before: Profile | None = None
        self._fates = np.zeros(len(Fate), np.int64)
        self._late = 0
        self._first_ns: int | None = None
        self._last_ns = 0

    def add(self, log: OperationLog, fate: npt.NDArray[np.uint8], late: npt.NDArray[np.bool_]) -> None:
        """Take in operations, the next ones in order, and what became of packets.

        Args:
            log: of operations that have not been added before.
            fate: uint8, :class:`Fate` of packets that have not been added before.
            late: bool, of packets: which of them were out of order.
        """
        self._fates += np.bincount(fate, minlength=len(Fate))
        self._late += int(np.count_nonzero(late))
        if not len(log):
            return
        first, last = int(log.start_ns.min()), int(log.end_ns.max())
        self._first_ns = first if self._first_ns is None else min(self._first_ns, first)
        self._last_ns = max(self._last_ns, last)
        self._logs.append(log)
        if sum(map(len, self._logs)) >= _BLOCK:
            self._before = self._joined(self._block(calibrated=True, warnings=()))
            self._logs = []

    def counts(self) -> EventCounts:
        """Packets so far against what the program expects."""
        matched = int(self._fates[Fate.MATCHED])
        expected = 2 * sum(map(len, self._logs)) + (0 if self._before is None else self._before.events.expected)
        return EventCounts(
            received=int(self._fates.sum()),
            expected=expected,
            lost=max(expected - matched, 0),
            spurious=int(self._fates[Fate.SPURIOUS]),
            duplicated=int(self._fates[Fate.DUPLICATED]),
            out_of_order=self._late,
        )

    def profile(self, *, calibrated: bool, warnings: tuple[str, ...] = ()) -> Profile:
        """Everything so far.

        Args:
            calibrated: whether the intervals were.
            warnings: of the method.
        """
        whole = self._before
        if self._logs or whole is None:
            whole = self._joined(self._block(calibrated=calibrated, warnings=warnings))
        elif warnings:
            whole = msgspec.structs.replace(whole, warnings=tuple(dict.fromkeys((*whole.warnings, *warnings))))
        covered = 0 if self._first_ns is None else self._last_ns - self._first_ns
        return msgspec.structs.replace(
            whole,
            events=self.counts(),
            calibrated=calibrated,
            covered_ns=covered,
            utilisation_by_unit={
                name: whole.totals_by_unit[name].duration_ns / covered
                if name in whole.totals_by_unit and covered
                else 0.0
                for name in whole.utilisation_by_unit
            },
        )

    def _block(self, *, calibrated: bool, warnings: tuple[str, ...]) -> Profile:
        log = joined_logs(self._logs) if self._logs else empty_log(self._sequence.kinds)
        nothing = np.zeros(0, np.uint8)
        rebuilt = Rebuilt(log, nothing, nothing.astype(np.bool_), calibrated, warnings)
        return summarise(
            rebuilt,
            self._sequence,
            self._program,
            method="align",
            confidence=self._confidence,
            resolution_ns=self._resolution_ns,
        )

    def _joined(self, block: Profile) -> Profile:
        before = self._before
        if before is None:
            return block
        return msgspec.structs.replace(
            block,
            events=self.counts(),
            inferences=before.inferences + block.inferences,
            totals_by_kind=_added(before.totals_by_kind, block.totals_by_kind),
            totals_by_layer=_added(before.totals_by_layer, block.totals_by_layer),
            totals_by_group=_added(before.totals_by_group, block.totals_by_group),
            totals_by_unit=_added(before.totals_by_unit, block.totals_by_unit),
            warnings=tuple(dict.fromkeys((*before.warnings, *block.warnings))),
        )


def _added(before: dict[str, Totals], block: dict[str, Totals]) -> dict[str, Totals]:
    found = dict(before)
    for name, new in block.items():
        old = found.get(name)
        if old is None:
            found[name] = new
            continue
        count = old.count + new.count
        found[name] = Totals(
            count=count,
            duration_ns=old.duration_ns + new.duration_ns,
            interval_ns=(old.interval_ns[0] + new.interval_ns[0], old.interval_ns[1] + new.interval_ns[1]),
            inferred_ratio=(old.inferred_ratio * old.count + new.inferred_ratio * new.count) / count,
        )
    return found
