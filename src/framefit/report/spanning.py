"""Priority periods that go on beyond the end of their window, as drawings of single windows need them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from framefit.core.timetable import PriorityPeriod, Slot, Timetable, Window

__all__ = ["reserved_share", "within_windows"]


def within_windows(timetable: Timetable) -> Timetable:
    """The same plan with what goes on beyond a window parted at its end: the rest begins the next one.

    Args:
        timetable: the plan; itself where no period does. In windows of one length none may: that is an overrun.
    """
    crossing = any(period.end_ns > window.length_ns for window in timetable.windows for period in window.priority)
    if not crossing or not timetable.lengths_ns:
        return timetable
    priority = {model.name for model in timetable.models if model.role == "priority"}
    periods: list[PriorityPeriod] = []
    slots: list[Slot] = []
    for _ in range(2):  # what the last window's leave lies in the first one
        windows = []
        for window in timetable.windows:
            periods += window.priority
            slots += window.slots
            here, periods = _parted_periods(periods, window.length_ns)
            now, slots = _parted_slots(slots, window.length_ns, priority)
            windows.append(msgspec.structs.replace(window, priority=tuple(here), slots=tuple(now)))
    return msgspec.structs.replace(timetable, windows=tuple(windows))


def reserved_share(timetable: Timetable) -> float:
    """Greatest part of a window that is reserved on one unit."""
    if not timetable.lengths_ns:
        return timetable.priority_ns / timetable.window_ns
    windows = within_windows(timetable).windows
    return max(_reserved(timetable, window) / window.length_ns for window in windows)


def _reserved(timetable: Timetable, window: Window) -> int:
    return max(
        (sum(p.end_ns - p.start_ns for p in window.priority if p.unit == unit) for unit in timetable.units), default=0
    )


def _parted_periods(
    periods: Sequence[PriorityPeriod], length_ns: int
) -> tuple[list[PriorityPeriod], list[PriorityPeriod]]:
    here = [
        msgspec.structs.replace(period, end_ns=min(period.end_ns, length_ns))
        for period in periods
        if period.start_ns < length_ns
    ]
    rest = [
        msgspec.structs.replace(period, start_ns=max(period.start_ns - length_ns, 0), end_ns=period.end_ns - length_ns)
        for period in periods
        if period.end_ns > length_ns
    ]
    return sorted(here, key=lambda period: period.start_ns), rest


def _parted_slots(slots: Sequence[Slot], length_ns: int, priority: set[str]) -> tuple[list[Slot], list[Slot]]:
    here, rest = [], []
    for slot in slots:
        end = slot.start_ns + slot.duration_ns
        if end <= length_ns or slot.model not in priority:
            here.append(slot)
            continue
        if slot.start_ns < length_ns:
            here.append(msgspec.structs.replace(slot, duration_ns=length_ns - slot.start_ns))
        begin = max(slot.start_ns, length_ns)
        rest.append(msgspec.structs.replace(slot, start_ns=begin - length_ns, duration_ns=end - begin))
    return sorted(here, key=lambda slot: slot.start_ns), rest
