"""The smallest change that makes an infeasible workload fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from framefit.core.timetable import Fix
from framefit.scheduling.partition import Pieces, partition

__all__ = ["slower_beat"]


def slower_beat(priority_ns: int, guard_ns: int, pieces: Sequence[Pieces], rate_hz: float) -> Fix:
    """The highest rate (to 1 %) at which every model can be placed; verified by cutting again.

    Args:
        priority_ns: planned priority period.
        guard_ns: guard.
        pieces: of each background model.
        rate_hz: what was asked for.
    """
    longest = max((int(piece.quantile_ns.max()) for piece in pieces), default=0)
    needed_ns = priority_ns + guard_ns + longest
    slower = math.floor(min(1e9 / needed_ns, rate_hz) * 0.99 * 100) / 100
    if slower <= 0:
        return Fix(change="a faster device", effect="no rate above 0.01 Hz fits", verified=False)
    residual = int(1e9 / slower) - priority_ns
    fits = residual >= guard_ns and all(partition(piece, residual, residual - guard_ns) is not None for piece in pieces)
    return Fix(
        change=f"rate_hz = {slower:g}",
        effect=f"a window of {1e3 / slower:.4g} ms holds the priority period, the guard and the longest layer",
        verified=fits,
    )
