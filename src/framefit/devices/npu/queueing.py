"""Loops over packets, compiled: what launches leave behind, and which of it finds room in a bounded buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["CLOSES", "RECORDED", "admit", "expand"]

RECORDED = 1
"""Flag of a packet whose kind is recorded."""
CLOSES = 2
"""Flag of a launch's last packet."""


@njit(cache=True)
def expand(
    launches: Any, factor: Any, first: Any, begin_ns: Any, end_ns: Any, kind: Any, core: Any, recorded: Any
) -> Any:
    """Packets of launches, one launch after the other.

    Args:
        launches: int64, a row each: pattern, begin, nominal time of its stall, length of the stall.
        factor: float64: what nominal times are multiplied with in each launch.
        first: int64: where each pattern's operations begin in the next three; one more at the end.
        begin_ns: int64: nominal begin of each operation,
        end_ns: and its end,
        kind: and its kind.
        core: int64: of each pattern.
        recorded: bool: of each kind.

    Returns:
        int64, a row each: time, kind, type, core, operation, flags. Of kinds that are not
        recorded there is nothing but the packet that closes a launch.
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
                if nominal > stalled_at:  # what begins in the moment of the stall has begun
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
    """Keep the packets that find room; ``rows`` is overwritten.

    A fluid queue: a packet counts for less while it is being sent.

    Args:
        rows: as :func:`expand` makes them, in order of time.
        size: packets that the buffer holds.
        per_ns: packets that leave in a nanosecond; negative: none, but all when a launch closes.
        level: packets in it at ``at_ns``.
        at_ns: time of the latest packet before.
        losing: whether packets were dropped since the latest one that was kept.
        resolution_ns: of the time stamps that are kept.
        mask: of their ticks.

    Returns:
        How many were kept: they are the first rows, with a 1 in place of the flags where
        packets were dropped just before. Then how many were dropped; level, time and
        ``losing`` after the last packet.
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
