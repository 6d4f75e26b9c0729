"""How a plan came about: each model's schedule, its frames' paths through windows, and where residuals go."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from framefit.core.explanation import FramePath, Hop, ModelSchedule, PlanExplanation, ResidualLoss
from framefit.core.timetable import PlannedModel, Slot, Timetable, free_times, window_starts, within_windows
from framefit.core.workload import ModelEntry, Workload

__all__ = ["explain"]


_ROUNDING_NS = 20_000  # a plan's windows are whole nanoseconds, periods are not: not so far off in 10,000 windows


def explain(timetable: Timetable, workload: Workload) -> PlanExplanation:
    """How a plan came about: from the timetable and the workload alone, nothing is planned.

    Args:
        timetable: the plan, feasible or not.
        workload: that it was made for.
    """
    schedules = model_schedules(timetable, workload)
    return PlanExplanation(tuple(schedules), loss_of(timetable, schedules))


def _deadline_ns(timetable: Timetable, entry: ModelEntry, period_ns: float) -> int:
    if (within_ms := entry.deadline_ms or entry.min_distance_ms) is not None:
        return round(within_ms * 1e6)
    return round(period_ns / entry.spacing) if timetable.lengths_ns else timetable.window_ns


def loss_of(timetable: Timetable, schedules: Sequence[ModelSchedule]) -> ResidualLoss:
    """Where the residuals go in one repetition of the plan.

    Idle time before the guard is packing where segments are due and none of them would have fitted.

    Args:
        timetable: the plan.
        schedules: of its models.
    """
    timetable = within_windows(timetable)
    background = {schedule.model.name: schedule for schedule in schedules if schedule.model.role == "background"}
    starts, dues = window_starts(timetable), {name: _Due(timetable, one, schedules) for name, one in background.items()}
    work = boundary = guard = packing = waiting = 0.0
    for (index, window), unit in itertools.product(enumerate(timetable.windows), timetable.units):
        for free in free_times(timetable, window, unit):
            now, last = free.start_ns, free.end_ns - free.guard_ns
            own = [s for s in window.slots if s.unit == unit and s.model in background]
            placed = [(s.start_ns, s) for s in own if free.start_ns <= s.start_ns < free.end_ns]
            for begin, slot in [*sorted(placed, key=lambda one: one[0]), (last, None)]:
                idle = max(begin - now, 0)
                due = [due_ns for one in dues.values() if (due_ns := one.at(starts[index] + now, unit)) is not None]
                if due and min(due) > idle and not timetable.preemptive:
                    packing += idle
                else:
                    waiting += idle
                if slot is not None:
                    overhead = max(background[slot.model].model.segmentation_overhead_ratio, 0.0)
                    work += slot.duration_ns / (1 + overhead)
                    boundary += slot.duration_ns * (1 - 1 / (1 + overhead))
                    now = slot.start_ns + slot.duration_ns
            guard += free.end_ns - max(now, last)  # what follows a segment may reach into the longest one's guard
    return ResidualLoss(round(work), round(boundary), round(guard), round(packing), round(waiting))


class _Due:
    """Which segment of a background model a unit could begin at an instant."""

    def __init__(self, timetable: Timetable, schedule: ModelSchedule, schedules: Sequence[ModelSchedule]) -> None:
        self._schedule = schedule
        read = [path for one in schedules if one.model.name in schedule.model.after for path in one.paths]
        self._read = sorted((path.result_ns, path.release_ns) for path in read)
        self._taken = sorted((path.start_ns, path.release_ns) for path in schedule.paths)
        self._placed: dict[str, list[tuple[int, int, int]]] = {}  # on each unit: start, frame, segment
        self._ends: dict[tuple[int, int], int] = {}
        for start, window in zip(window_starts(timetable), timetable.windows, strict=False):
            for slot in sorted(window.slots, key=lambda slot: slot.start_ns):
                if slot.model == schedule.model.name:
                    at = start + slot.start_ns
                    self._placed.setdefault(slot.unit, []).append((at, slot.frame, slot.segment))
                    self._ends[slot.frame, slot.segment] = at + slot.duration_ns

    def at(self, now_ns: int, unit: str) -> int | None:
        """Its duration; ``None``: none is due there."""
        placed, segments = self._placed.get(unit, []), self._schedule.model.segments
        following = bisect.bisect_left(placed, (now_ns,))
        firsts = [replica.segments[0].index for replica in self._schedule.model.replicas if replica.segments]
        here = next((first for first in firsts if segments[first].unit == unit), 0)
        _, frame, index = placed[following] if following < len(placed) else (0, -1, here)
        if index >= len(segments) or segments[index].unit != unit:
            return None
        begins = index in firsts
        there = self._frame_is_there(now_ns) if begins else self._ends.get((frame, index - 1), now_ns) <= now_ns
        return segments[index].duration_ns if there else None

    def _frame_is_there(self, now_ns: int) -> bool:
        """Whether frames that no launch has taken were released until then."""
        schedule, taken = self._schedule, bisect.bisect_left(self._taken, (now_ns,))
        taken_ns = self._taken[taken - 1][1] if taken else None
        if schedule.model.after:
            read = bisect.bisect_right(self._read, (now_ns, now_ns))
            return read > 0 and (taken_ns is None or self._read[read - 1][1] > taken_ns)
        newest = int((now_ns + _ROUNDING_NS) // schedule.period_ns)
        last = -schedule.entry.frames if taken_ns is None else round(taken_ns / schedule.period_ns)
        return newest - last >= schedule.entry.frames


def model_schedules(timetable: Timetable, workload: Workload) -> list[ModelSchedule]:
    """How each model came to its part, in the order of the timetable.

    Args:
        timetable: the plan.
        workload: that it was made for.
    """
    entries = {entry.name: entry for entry in workload.models}
    schedules: dict[str, ModelSchedule] = {}
    before: tuple[str, ...] = ()
    for model in _in_order(timetable.models):
        read = [path for name in model.after if name in schedules for path in schedules[name].paths]
        period_ns = _period_ns(workload, entries[model.name])
        schedules[model.name] = ModelSchedule(
            model=model,
            entry=entries[model.name],
            before=(),
            residual_ns=None,
            room_ns=_room(timetable, model),
            period_ns=period_ns,
            deadline_ns=_deadline_ns(timetable, entries[model.name], period_ns),
            paths=tuple(_frame_paths(timetable, model, period_ns, read)),
        )
    for model in timetable.models:
        if model.role == "background":
            offered = [window.residual_ns[len(before)] for window in timetable.windows]
            residual = (min(offered), max(offered)) if offered else None
            schedules[model.name] = replace(schedules[model.name], before=before, residual_ns=residual)
            before += (model.name,)
    return [schedules[model.name] for model in timetable.models]


def _in_order(models: Sequence[PlannedModel]) -> list[PlannedModel]:
    """Each model after those that it reads, where that is possible."""
    ordered: list[PlannedModel] = []
    left = list(models)
    while left:
        waiting = {model.name for model in left}
        ordered.append(next((model for model in left if waiting.isdisjoint(model.after)), left[0]))
        left.remove(ordered[-1])
    return ordered


def _period_ns(workload: Workload, entry: ModelEntry) -> float:
    """From one release of a model's frames to the next."""
    if entry.min_distance_ms is not None:
        return entry.min_distance_ms * 1e6
    rates = workload.rates_hz
    own = [rates[name] for name in entry.inputs.values() if name in rates]
    rate_hz = own[0] if own else next(iter(rates.values())) if len(rates) == 1 else workload.beat_hz
    return float(entry.spacing) * 1e9 / rate_hz


def _room(timetable: Timetable, model: PlannedModel) -> int:
    """The longest segment that fits into each window somewhere, on a unit that the model uses."""
    units, timetable = {segment.unit for segment in model.segments}, within_windows(timetable)
    rooms = [
        max((free.room_ns for unit in units for free in free_times(timetable, window, unit)), default=0)
        for window in timetable.windows
    ]
    return max(min(rooms, default=0), 0)


def _frame_paths(
    timetable: Timetable, model: PlannedModel, period_ns: float, read: Sequence[FramePath]
) -> Iterator[FramePath]:
    """The paths of all frames whose last segment is in the plan; ``read`` are those of models that it reads."""
    starts = window_starts(timetable)
    placed: dict[int, list[tuple[int, Slot]]] = {}
    for index, window in enumerate(timetable.windows):
        for slot in sorted(window.slots, key=lambda slot: slot.start_ns):
            if slot.model == model.name:
                placed.setdefault(slot.frame, []).append((index, slot))
    lasts = {replica.segments[-1].index for replica in model.replicas if replica.segments}
    for frame, slots in sorted(placed.items()):
        if lasts.isdisjoint(slot.segment for _, slot in slots):
            continue
        hops = [
            Hop(window, unit, tuple(dict.fromkeys(slot.segment for _, slot in run)))
            for (window, unit), run in itertools.groupby(slots, key=lambda item: (item[0], item[1].unit))
        ]
        start_ns = starts[slots[0][0]] + slots[0][1].start_ns
        newest_ns = (starts[slots[0][0]] + _ROUNDING_NS) // period_ns * period_ns + _ROUNDING_NS
        release_ns = max((path.release_ns for path in read if path.result_ns <= start_ns), default=newest_ns)
        release = bisect.bisect_right(starts, release_ns) - 1
        ends = [starts[window] + slot.start_ns + slot.duration_ns for window, slot in slots]
        ends += [
            starts[window] + period.end_ns
            for window in {hop.window for hop in hops}
            for period in timetable.windows[window].priority
            if period.model == model.name
        ]
        yield FramePath(model.name, frame, release, tuple(hops), starts[release], start_ns, max(ends))
