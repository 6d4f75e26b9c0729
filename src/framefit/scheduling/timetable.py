"""Who runs when: priority periods, residuals, and what is placed into them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from framefit.core.timetable import PlannedModel, PriorityPeriod, Slot, Timetable, Window
from framefit.scheduling.ages import Spans, age_bound_ns
from framefit.scheduling.bounds import Work, fluid_rates
from framefit.scheduling.service import Rotation

__all__ = ["Beat", "Demand", "build_timetable", "reserved_periods", "segment_room"]

_SEARCHED_WINDOWS = 64  # a longer hyperperiod gains less than 1/64 of a round
_MOST_WINDOWS = 10_000


@dataclass(frozen=True)
class Demand:
    """How a model takes part in the beat.

    Attributes:
        deadline_ns: after its frame's release; default: the window for priority
            models, none for background models.
        queue: frames that may wait for it.
        every: windows between its frames.
        frames: frames that it takes at once.
        refuses: a full queue refuses the new frame instead of dropping the oldest.
        waits: a full queue, its own or another model's, makes the stream wait: its frames
            may come in any window. Their age counts from then on.
    """

    deadline_ns: int | None = None
    queue: int = 1
    every: int = 1
    frames: int = 1
    refuses: bool = False
    waits: bool = False


@dataclass(frozen=True)
class Beat:
    """The windows to be filled.

    Attributes:
        window_ns: length of the shortest window.
        guard_ns: time kept free before each reserved instant.
        late_ns: how late a window's first launch begins: wake-up and dispatch. It is
            part of the priority period.
        position: of the priority period in its window.
        preemptive: background work is interrupted for a priority period and goes on
            after it: no guard, no segment that does not fit.
        demands: model -> how it takes part; default: a frame in every window.
        excess_ratio: how much longer than its quantile a launch may be, at most. Where it
            is known (else 0), the guard covers the longest segment's excess, and the slack
            that of the priority models: a feasible plan is never late.
    """

    window_ns: int
    guard_ns: int
    late_ns: int = 0
    position: Literal["start", "middle", "end"] = "start"
    preemptive: bool = False
    demands: Mapping[str, Demand] = field(default_factory=dict)
    excess_ratio: float = 0.0

    def of(self, model: str) -> Demand:
        """A model's demand."""
        return self.demands.get(model, Demand())

    def covering(self, longest_ns: int | None) -> Beat:
        """With a guard, at least the present one, for segments of at most this quantile."""
        return replace(self, guard_ns=max(self.guard_ns, math.ceil(self.excess_ratio * (longest_ns or 0))))

    def guarded(self, models: Sequence[PlannedModel]) -> Beat:
        """With the guard that these models need."""
        if self.preemptive:
            return self
        longest = max((s.duration_ns for m in models if m.role == "background" for s in m.segments), default=0)
        if self.position == "end":  # what follows the period is the guard
            longest = max(longest, sum(m.duration_ns for m in models if m.role == "priority"))
        return self.covering(longest)


def reserved_periods(beat: Beat, priority: Sequence[PlannedModel]) -> list[list[PriorityPeriod]]:
    """The priority periods of each window, in order, until they repeat.

    A model of ``every`` n is reserved in windows 0, n, 2n, ... At the end of the
    window the guard stays free after the period, for a run longer than planned.
    """
    pattern = math.lcm(*(beat.of(model.name).every for model in priority)) if priority else 1
    windows = []
    for index in range(pattern):
        due = [model for model in priority if index % beat.of(model.name).every == 0]
        total = sum(model.duration_ns for model in due) + (beat.late_ns if due else 0)
        if beat.position == "start":
            now = 0
        elif beat.position == "middle":
            now = max((beat.window_ns - total) // 2, 0)
        else:
            now = max(beat.window_ns - beat.guard_ns - total, 0)
        periods: list[PriorityPeriod] = []
        for model in due:
            end = now + model.duration_ns + (0 if periods else beat.late_ns)
            periods.append(PriorityPeriod(unit=model.segments[0].unit, start_ns=now, end_ns=end, model=model.name))
            now = end
        windows.append(periods)
    return windows


def segment_room(beat: Beat, priority: Sequence[PlannedModel]) -> int:
    """The longest planned duration that a segment may have: it fits into every window somewhere."""
    windows = [_free(beat, periods) for periods in reserved_periods(beat, priority)]
    return min(max((end - begin for begin, end in spans), default=0) for spans in windows)


def build_timetable(beat: Beat, models: Sequence[PlannedModel]) -> Timetable:
    """Reserve the priority periods and fill the residuals.

    Background models take turns (:class:`Rotation`); a segment is placed where its
    quantile and the guard fit before the next reserved instant or the window's end.

    Args:
        beat: windows, guard, position, demands.
        models: measured; every segment with its quantile.

    Returns:
        A timetable, feasible or with the binding constraint named. It repeats: the
        last window's rest stays idle so that the first one begins with new frames. Its
        length is a multiple of the priority models' ``every``; of the background models'
        it need not be one: no more of their frames are placed in it than arrive in as
        many windows, and bounds on ages hold wherever in it their frames arrive.
    """
    priority = [model for model in models if model.role == "priority"]
    background = [model for model in models if model.role == "background"]
    reserved = reserved_periods(beat, priority)
    free = [_free(beat, periods) for periods in reserved]
    room = segment_room(beat, priority)
    slack, problem = _deadlines(beat, priority, reserved)
    if not beat.preemptive:
        problem = problem or _too_long(background, room)
    ages: dict[str, int] = {}
    if problem is None:
        ages, problem = _ages(background, beat, free)
    filled: list[list[Slot]] = [[] for _ in reserved]
    done: list[int] = []
    if problem is None and background:
        placed_windows, done, idle = _fill(background, beat, free)
        if all(done):
            filled, slack = placed_windows, min(slack, idle)
        else:
            problem = f"the background models do not all get a frame done within {_MOST_WINDOWS} windows"
    windows = []
    for index, placed in enumerate(filled):
        periods = reserved[index % len(reserved)]
        own = _priority_slots(beat, priority, periods, index)
        left = beat.window_ns - sum(period.end_ns - period.start_ns for period in periods)
        residuals = []
        for model in background:
            residuals.append(left)
            left -= sum(slot.duration_ns for slot in placed if slot.model == model.name)
        windows.append(
            Window(
                index=index,
                length_ns=beat.window_ns,
                priority=tuple(periods),
                residual_ns=tuple(residuals),
                slots=tuple(sorted([*own, *placed], key=lambda slot: slot.start_ns)),
            )
        )
    priority_ns = max((sum(p.end_ns - p.start_ns for p in periods) for periods in reserved), default=0)
    mean_residual = beat.window_ns - sum(p.end_ns - p.start_ns for w in reserved for p in w) / len(reserved)
    durations = [model.duration_ns for model in background]
    demanded = [
        Work(model.duration_ns, every=demand.every, frames=demand.frames)
        for model in background
        for demand in [beat.of(model.name)]
    ]
    rates = fluid_rates(mean_residual, demanded)
    work = sum(count * duration for count, duration in zip(done, durations, strict=False))
    most = len(windows) * sum(rate * duration for rate, duration in zip(rates, durations, strict=True))
    aged = [
        msgspec.structs.replace(model, result_age_windows=ages.get(model.name, 1) if problem is None else None)
        for model in models
    ]
    return Timetable(
        feasible=problem is None,
        worst_slack_ns=slack,
        hyperperiod_windows=len(windows),
        window_ns=beat.window_ns,
        priority_ns=priority_ns,
        residual_ns=beat.window_ns - priority_ns,
        guard_ns=beat.guard_ns,
        preemptive=beat.preemptive,
        units=tuple(dict.fromkeys(segment.unit for model in models for segment in model.segments)),
        windows=tuple(windows),
        models=tuple(aged),
        memory_bytes={},
        bound=1 / min(rates) if background and mean_residual > 0 else None,
        gap_ratio=max(most / work - 1, 0.0) if problem is None and work else None,
        binding_constraint=problem,
    )


def _free(beat: Beat, periods: Sequence[PriorityPeriod]) -> list[tuple[int, int]]:
    """Where background segments may run in a window: begin, and latest end.

    A window that does not begin with a priority period wakes up as late as one that does.
    """
    awake = 0 if periods and periods[0].start_ns == 0 else beat.late_ns
    edges = [awake, *(edge for period in periods for edge in (period.start_ns, period.end_ns)), beat.window_ns]
    spans = [(begin, end - beat.guard_ns) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    return [(begin, end) for begin, end in spans if end > begin]


def _deadlines(
    beat: Beat, priority: Sequence[PlannedModel], reserved: Sequence[Sequence[PriorityPeriod]]
) -> tuple[int, str | None]:
    """Least slack of the priority models, and the first of them that is late."""
    slack, problem = beat.window_ns, None
    for periods in reserved:
        for period in periods:
            deadline = beat.of(period.model).deadline_ns or beat.window_ns
            excess = math.ceil(beat.excess_ratio * (period.end_ns - periods[0].start_ns))
            slack = min(slack, deadline - period.end_ns - excess)
            if period.end_ns + excess > deadline and problem is None:
                problem = (
                    f"{period.model!r} is ready {_ms(period.end_ns)} after its release"
                    + (f", {_ms(excess)} later at worst" if excess else "")
                    + f"; its deadline is {_ms(deadline)}"
                )
    total = max((sum(p.end_ns - p.start_ns for p in periods) for periods in reserved), default=0)
    if priority and problem is None and total + beat.guard_ns > beat.window_ns:
        problem = f"the priority period of {_ms(total)} and the guard exceed the window of {_ms(beat.window_ns)}"
    return slack, problem


def _too_long(background: Sequence[PlannedModel], room_ns: int) -> str | None:
    for model in background:
        for segment in model.segments:
            if segment.duration_ns > room_ns:
                return (
                    f"segment {segment.index} of {model.name!r} (layer {segment.first_layer!r} to "
                    f"{segment.last_layer!r}) takes {_ms(segment.duration_ns)}, the residual less guard is "
                    f"{_ms(room_ns)}"
                )
    return None


def _ages(
    background: Sequence[PlannedModel], beat: Beat, free: Sequence[Sequence[tuple[int, int]]]
) -> tuple[dict[str, int], str | None]:
    """Bound on the age of each model's results in windows, and the first that is too old."""
    ages: dict[str, int] = {}
    if background and not any(free):
        return ages, "the priority models and the guard leave no residual"
    spans = Spans(beat.window_ns, free, preemptive=beat.preemptive, crossing=beat.position != "start")
    for number, model in enumerate(background):
        demand = beat.of(model.name)
        others = [*background[number + 1 :], *background[:number]]
        bound = age_bound_ns(
            [segment.duration_ns for segment in model.segments],
            [segment.duration_ns for other in others for segment in other.segments],
            spans,
            queue=demand.queue,
            frames=demand.frames,
            every=demand.every,
            refuses=demand.refuses,
            waits=demand.waits,
        )
        if bound is None:
            return ages, f"results of {model.name!r} may be more than {_MOST_WINDOWS} windows old"
        if demand.deadline_ns is not None and bound > demand.deadline_ns:
            return ages, f"results of {model.name!r} may be {_ms(bound)} old, its deadline is {_ms(demand.deadline_ns)}"
        ages[model.name] = max(-(-bound // beat.window_ns), 1)
    return ages, None


def _priority_slots(
    beat: Beat, priority: Sequence[PlannedModel], periods: Sequence[PriorityPeriod], window: int
) -> list[Slot]:
    models = {model.name: model for model in priority}
    slots = []
    for period in periods:
        now = period.start_ns
        for segment in models[period.model].segments:
            frame = window // beat.of(period.model).every
            slots.append(_slot(segment.unit, now, segment.duration_ns, period.model, segment.index, frame))
            now += segment.duration_ns
    return slots


def _slot(unit: str, start_ns: int, duration_ns: int, model: str, segment: int, frame: int) -> Slot:
    return Slot(unit=unit, start_ns=start_ns, duration_ns=duration_ns, model=model, segment=segment, frame=frame)


def _fill(
    background: Sequence[PlannedModel], beat: Beat, free: Sequence[Sequence[tuple[int, int]]]
) -> tuple[list[list[Slot]], list[int], int]:
    """Windows of background slots that may repeat, launches of each model in them, least idle time.

    The policy is played through at the planned quantiles. Of the repetitions within the
    horizon the one with most slots' time a window is taken; slots of frames that would be
    in flight at its end are left out. One that would launch a model more often than its
    frames arrive is none: the first frames are there at once.
    """
    demands = [beat.of(model.name) for model in background]
    rotation = Rotation(len(background))
    waiting, segment_of, frames = [0] * len(background), [0] * len(background), [0] * len(background)
    windows: list[list[Slot]] = []
    best: tuple[float, int] = (0.0, 0)
    rest = [0] * len(background)  # of a preemptive segment
    while len(windows) < _SEARCHED_WINDOWS or (not best[1] and len(windows) < _MOST_WINDOWS):
        index, placed = len(windows), []
        for number, demand in enumerate(demands):
            if index % demand.every == 0:
                waiting[number] = min(waiting[number] + 1, max(demand.queue, demand.frames))
        for begin, end in free[index % len(free)]:
            now = begin
            while True:
                needed = [
                    (1 if beat.preemptive else model.segments[segment_of[number]].duration_ns)
                    if segment_of[number] or rest[number] or waiting[number] >= demands[number].frames
                    else None
                    for number, model in enumerate(background)
                ]
                chosen = rotation.choose(needed, end - now)
                if chosen is None:
                    break
                model = background[chosen]
                segment = model.segments[segment_of[chosen]]
                if not rest[chosen]:
                    rest[chosen] = segment.duration_ns
                    waiting[chosen] -= demands[chosen].frames if segment.index == 0 else 0
                length = min(rest[chosen], end - now) if beat.preemptive else segment.duration_ns
                placed.append(_slot(segment.unit, now, length, model.name, segment.index, frames[chosen]))
                now += length
                rest[chosen] -= length
                if rest[chosen]:
                    continue
                segment_of[chosen] += 1
                if segment_of[chosen] == len(model.segments):
                    segment_of[chosen] = 0
                    frames[chosen] += 1
                    rotation.finished(chosen)
        windows.append(placed)
        complete = sum(frames[n] * background[n].duration_ns for n in range(len(background)))
        lasting = all(
            0 < count * demand.every * demand.frames <= len(windows)
            for count, demand in zip(frames, demands, strict=True)
        )
        if len(windows) % len(free) == 0 and lasting and complete / len(windows) > best[0]:
            best = (complete / len(windows), len(windows))
    count = best[1] or len(windows)
    windows = windows[:count]
    lengths = {model.name: sum(segment.duration_ns for segment in model.segments) for model in background}
    launched: dict[tuple[str, int], int] = {}
    for slot in itertools.chain.from_iterable(windows):
        launched[slot.model, slot.frame] = launched.get((slot.model, slot.frame), 0) + slot.duration_ns
    windows = [[s for s in placed if launched[s.model, s.frame] == lengths[s.model]] for placed in windows]
    done = [sum(1 for (name, _), n in launched.items() if name == m.name and n == lengths[name]) for m in background]
    idle = beat.window_ns
    for index, placed in enumerate(windows):
        for begin, end in free[index % len(free)]:
            within = [s.start_ns + s.duration_ns for s in placed if begin <= s.start_ns < end]
            idle = min(idle, end - max(within, default=begin))
    return windows, done, idle


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3g} ms"
