"""When a timetable's priority models are due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from framefit.core.timetable import Timetable

__all__ = ["instants"]


def instants(
    timetable: Timetable, numbers: Mapping[str, int | Sequence[int]], unit: str | None = None
) -> list[list[tuple[int, int]]]:
    """When priority models are due in each window; what follows another at once is due with it.

    Args:
        timetable: its windows repeat.
        numbers: model -> number of its job, or of the jobs of all its stages on the unit, in order.
        unit: whose instants; default: the only one's.

    Returns:
        For each window pairs of time after the release and number of the job.
    """
    pattern = []
    for window in timetable.windows:
        due: list[tuple[int, int]] = []
        begin = end = -1
        seen: defaultdict[str, int] = defaultdict(int)
        for period in window.priority:
            if unit is not None and period.unit != unit:
                continue
            jobs = numbers[period.model]
            begin = begin if period.start_ns == end else period.start_ns
            due.append((begin, jobs if isinstance(jobs, int) else jobs[seen[period.model]]))
            seen[period.model] += 1
            end = period.end_ns
        pattern.append(due)
    return pattern
