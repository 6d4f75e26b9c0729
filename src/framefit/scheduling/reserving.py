"""What priority models reserve in each window, and what that leaves free on each unit.

Where all windows are equally long a period lies within its window. Where streams have different rates the other
stream's release may follow at once: a period may go on beyond the end of its window then, and
whatever is due next on that unit begins after it. A priority model is in time by its deadline, which is
its own stream's next release, not the next of any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from framefit.core.timetable import PlannedModel, PriorityPeriod, Segment
from framefit.scheduling.beat import Beat, in_order

__all__ = ["Span", "carried_over", "free_windows", "reserved_periods", "segment_room", "settled", "taken_ns"]

Span = tuple[int, int]  # begin, and latest end, after the window's release


def reserved_periods(beat: Beat, priority: Sequence[PlannedModel]) -> list[list[PriorityPeriod]]:
    """The priority periods of each window, in order, until they repeat.

    A model of ``every`` n is reserved in windows 0, n, 2n, ... At the end of the
    window the guard stays free after the period, for a run longer than planned; a deadline before
    that moves it to the front. A stage on
    another unit begins when the tensors of the one before are there; a period that does not
    follow another one at once begins with a wake-up.
    """
    ordered = in_order(priority)
    count = len(beat.pattern_ns) * math.lcm(*_repeats(beat, ordered).values())
    carried: dict[str, int] = {}
    for _ in range(1 if beat.even else 2):  # what the last window carries over is in the first one's way
        windows = []
        for index in range(count):
            frames: dict[str, int | None] = {}
            for model in ordered:
                frames[model.name] = _frame(beat, model, index, frames)
            periods = _laid_out(beat, [model for model in ordered if frames[model.name] is not None], carried)
            total = max((period.end_ns for period in periods), default=0)
            length = beat.pattern_ns[index % len(beat.pattern_ns)]
            if beat.position == "start" or carried:
                now = 0
            elif beat.position == "middle":
                now = max((length - total) // 2, 0)
            else:
                now = max(length - beat.guard_ns - total, 0)
            now = min(now, _in_time_ns(beat, periods, now))
            placed = [_moved(period, now) for period in sorted(periods, key=lambda period: period.start_ns)]
            windows.append(placed)
            if not beat.even:
                ends = dict(carried) | {period.unit: period.end_ns for period in placed}
                carried = {unit: end - length for unit, end in ends.items() if end > length}
    return windows


def _frame(beat: Beat, model: PlannedModel, window: int, frames: Mapping[str, int | None]) -> int | None:
    """Number of the frame that is due in a window; of a model that reads others, given theirs."""
    if not model.after:
        return beat.released(model.name, window)
    read = [frames.get(name) for name in model.after]
    if None in read:
        return None
    frame, other = divmod(read[0] or 0, beat.of(model.name).every)
    return None if other else frame


def _repeats(beat: Beat, ordered: Sequence[PlannedModel]) -> dict[str, int]:
    """After how many patterns of windows each model is due in the same ones."""
    found: dict[str, int] = {}
    for model in ordered:
        demand = beat.of(model.name)
        if model.after:
            found[model.name] = demand.every * math.lcm(*(found.get(name, 1) for name in model.after))
        else:
            releases = len(beat.pattern_ns) if demand.releases is None else max(len(demand.releases), 1)
            found[model.name] = math.lcm(releases, demand.every) // releases
    return found


def _laid_out(beat: Beat, due: Sequence[PlannedModel], carried: Mapping[str, int]) -> list[PriorityPeriod]:
    """One after the other on each unit, as soon as what they read is there; from 0, or what is carried over, on."""
    free = dict(carried)
    done: dict[str, tuple[Segment, int]] = {}
    periods = []
    for model in due:
        sources = [done[name] for name in model.after if name in done]
        for stage in model.stages:
            unit = stage[0].unit
            handed = [
                end + beat.longest_link_ns(s.unit, unit, s.boundary_bytes) for s, end in sources if s.unit != unit
            ]
            begin = max([free.get(unit, 0), *handed])
            # It may have to be woken up: at an instant of its own, or by what it waits for.
            wakes = beat.late_ns if begin != free.get(unit) or max(handed, default=0) + beat.late_ns > begin else 0
            end = begin + wakes + sum(segment.duration_ns for segment in stage)
            periods.append(PriorityPeriod(unit=unit, start_ns=begin, end_ns=end, model=model.name))
            free[unit] = end
            sources = [(stage[-1], end)]
        done[model.name] = sources[0]
    return periods


def _in_time_ns(beat: Beat, periods: Sequence[PriorityPeriod], latest_ns: int) -> int:
    """When they may begin at the latest, for each model's deadline to hold; 0 where none would do."""
    first = min((period.start_ns for period in periods), default=0)
    for period in periods:
        deadline = beat.of(period.model).deadline_ns
        if deadline is not None:
            excess = math.ceil(beat.excess_ratio * (period.end_ns - first))
            latest_ns = min(latest_ns, deadline - period.end_ns - excess)
    return max(latest_ns, 0)


def _moved(period: PriorityPeriod, by_ns: int) -> PriorityPeriod:
    if by_ns == 0:
        return period
    return PriorityPeriod(
        unit=period.unit, start_ns=period.start_ns + by_ns, end_ns=period.end_ns + by_ns, model=period.model
    )


def carried_over(beat: Beat, reserved: Sequence[Sequence[PriorityPeriod]], unit: str) -> list[tuple[int, int]]:
    """What earlier windows' periods still take in each window of a unit.

    Args:
        beat: lengths, excess.
        reserved: periods of each window.
        unit: name.

    Returns:
        For each window until when, at worst, and how much of what is planned may take longer by then; a period
        that takes longer than its quantile is carried over further.
    """
    until_ns = taken_ns = 0
    for _ in range(1 if beat.even else 2):
        found = []
        for periods, length in zip(reserved, itertools.cycle(beat.pattern_ns), strict=False):
            found.append((until_ns, taken_ns))
            ends = [until_ns]
            for period in periods:
                if period.unit == unit:
                    taken_ns += period.end_ns - period.start_ns
                    ends.append(period.end_ns + math.ceil(beat.excess_ratio * taken_ns))
            until_ns = 0 if beat.even else max(max(ends) - length, 0)
            taken_ns = taken_ns if until_ns else 0
    return found


def settled(beat: Beat, reserved: Sequence[Sequence[PriorityPeriod]], unit: str) -> bool:
    """Whether no more is carried over from repetition to repetition."""
    first = carried_over(beat, reserved, unit)[0]
    return first == carried_over(beat, [*reserved, *reserved], unit)[len(reserved)]


def taken_ns(beat: Beat, reserved: Sequence[Sequence[PriorityPeriod]], unit: str) -> list[int]:
    """How much of each window's time on a unit is reserved.

    Args:
        beat: lengths.
        reserved: periods of each window.
        unit: name.
    """
    rest = 0
    for _ in range(1 if beat.even else 2):
        found = []
        for periods, length in zip(reserved, itertools.cycle(beat.pattern_ns), strict=False):
            own = [period for period in periods if period.unit == unit]
            if beat.even:
                found.append(sum(period.end_ns - period.start_ns for period in own))
                continue
            here = sum(min(period.end_ns, length) - min(period.start_ns, length) for period in own)
            found.append(min(rest, length) + here)
            rest = max(rest - length, *(period.end_ns - length for period in own), 0)
    return found


def free_windows(beat: Beat, reserved: Sequence[Sequence[PriorityPeriod]], unit: str) -> list[list[Span]]:
    """Where background segments may run in each window on one unit: begin, and latest end.

    A window that does not begin with a priority period wakes up as late as one that does. After
    a period it is as late as priority models may be that take longer than their quantiles: else a segment that
    fits exactly would wait for a window in which they do not.

    Args:
        beat: guard, lateness, excess.
        reserved: periods of each window.
        unit: name.
    """
    windows = []
    lengths = itertools.cycle(beat.pattern_ns)
    for periods, length, (until_ns, taken) in zip(reserved, lengths, carried_over(beat, reserved, unit), strict=False):
        own = [period for period in periods if period.unit == unit]
        awake = until_ns or (0 if own and own[0].start_ns == 0 else beat.late_ns)
        edges = [awake]
        for period in own:
            taken += period.end_ns - period.start_ns
            edges += [period.start_ns, period.end_ns + math.ceil(beat.excess_ratio * taken)]
        edges.append(length)
        spans = [(begin, end - beat.guard_ns) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
        windows.append([(begin, end) for begin, end in spans if end > begin])
    return windows


def segment_room(beat: Beat, priority: Sequence[PlannedModel], unit: str | None = None) -> int:
    """The longest planned duration that a segment may have: it fits into every window somewhere.

    Where windows differ in length: into one of them, for some may hold no more than what is due there.

    Args:
        beat: windows, guard, demands.
        priority: what is reserved.
        unit: on which; default: the one with the least room of those that priority models use.
    """
    used = list(dict.fromkeys(s.unit for m in priority for s in m.segments))
    units = [unit] if unit else used or [""]
    reserved = reserved_periods(beat, priority)
    rooms = []
    for name in units:
        longest = [
            max((end - begin for begin, end in spans), default=0) for spans in free_windows(beat, reserved, name)
        ]
        rooms.append(min(longest) if beat.even else max(longest))
    return min(rooms)
