"""What a method gives: each packet's fate, and each operation's times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from framefit.core.profile import EventCounts, OperationLog

__all__ = ["Fate", "Rebuilt"]


class Fate(IntEnum):
    """What a packet turned out to be."""

    MATCHED = 0
    SPURIOUS = 1
    DUPLICATED = 2


@dataclass(frozen=True)
class Rebuilt:
    """A trace held against its program.

    Attributes:
        log: every operation of every inference that the trace covers; of its first and last
            inference what lies within the trace.
        fate: uint8, :class:`Fate` of each packet, in order of arrival.
        out_of_order: bool, packets that arrived after one that happened later on the same core.
        calibrated: whether the intervals were checked on masked events of this trace.
        warnings: sentences.
    """

    log: OperationLog
    fate: npt.NDArray[np.uint8]
    out_of_order: npt.NDArray[np.bool_]
    calibrated: bool
    warnings: tuple[str, ...] = ()

    @property
    def counts(self) -> EventCounts:
        """Packets received against those that the program expects."""
        matched = int(np.count_nonzero(self.fate == Fate.MATCHED))
        return EventCounts(
            received=len(self.fate),
            expected=2 * len(self.log),
            lost=2 * len(self.log) - matched,
            spurious=int(np.count_nonzero(self.fate == Fate.SPURIOUS)),
            duplicated=int(np.count_nonzero(self.fate == Fate.DUPLICATED)),
            out_of_order=int(np.count_nonzero(self.out_of_order)),
        )
