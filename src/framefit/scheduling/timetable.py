"""Who runs when: priority periods, residuals, and what is placed into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from framefit.core.timetable import PlannedModel, PriorityPeriod, Slot, Timetable, Window

__all__ = ["Beat", "build_timetable"]

_SEARCHED_WINDOWS = 64  # a longer hyperperiod gains less than 1/64 of a frame
_MOST_WINDOWS = 10_000


@dataclass(frozen=True)
class Beat:
    """The windows to be filled.

    Attributes:
        window_ns: length of the shortest window.
        guard_ns: time kept free before the next reserved instant.
        deadlines_ns: model -> deadline after its frame's release; default: the window.
        queues: background model -> frames that may wait for it.
        refusing: background models whose full queue refuses the new frame, not the oldest.
    """

    window_ns: int
    guard_ns: int
    deadlines_ns: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[str, int] = field(default_factory=dict)
    refusing: frozenset[str] = frozenset()


def build_timetable(beat: Beat, models: Sequence[PlannedModel]) -> Timetable:
    """Reserve the priority period of every window and fill the residuals.

    Background models are served one frame after another in the order given; a
    segment is placed where its quantile and the guard fit before the next window.
    A model starts at most one frame a window, for no more arrive.

    Args:
        beat: windows, guard, deadlines.
        models: measured; every segment with its quantile.

    Returns:
        A timetable, feasible or with the binding constraint named. It repeats: the
        last window's rest stays idle so that the first one begins with new frames.
    """
    priority = [model for model in models if model.role == "priority"]
    background = [model for model in models if model.role == "background"]
    units = tuple(dict.fromkeys(segment.unit for model in models for segment in model.segments))
    periods, slots, slack, late = _priority_period(beat, priority)
    priority_ns = max((slot.start_ns + slot.duration_ns for slot in slots), default=0)
    limit = beat.window_ns - beat.guard_ns
    problem = late
    if problem is None and priority_ns > limit:
        problem = f"the priority period of {_ms(priority_ns)} and the guard exceed the window of {_ms(beat.window_ns)}"
    for model in background:
        for segment in model.segments:
            room = limit - priority_ns - segment.duration_ns
            if background and room < 0 and problem is None:
                problem = (
                    f"segment {segment.index} of {model.name!r} (layer {segment.first_layer!r} to "
                    f"{segment.last_layer!r}) takes {_ms(segment.duration_ns)}, the residual less guard is "
                    f"{_ms(limit - priority_ns)}"
                )
    if problem is not None:
        filled: list[list[Slot]] = [[]]
    else:
        filled, idle = _fill(background, priority_ns, limit)
        slack = min(slack, idle)
    windows = tuple(
        Window(
            index=index,
            length_ns=beat.window_ns,
            priority=periods,
            residual_ns=_residuals(beat.window_ns, priority_ns, background, placed),
            slots=tuple(_numbered(slots, index)) + tuple(placed),
        )
        for index, placed in enumerate(filled)
    )
    residual_ns = beat.window_ns - priority_ns
    needed = sum(model.duration_ns for model in background) / residual_ns if residual_ns > 0 else None
    rounds = sum(1 for placed in filled for slot in placed if background and _ends(slot, background[-1]))
    return Timetable(
        feasible=problem is None,
        worst_slack_ns=slack,
        hyperperiod_windows=len(windows),
        window_ns=beat.window_ns,
        priority_ns=priority_ns,
        residual_ns=residual_ns,
        guard_ns=beat.guard_ns,
        units=units,
        windows=windows,
        models=tuple(_with_age(model, background, beat, priority_ns, limit) for model in models)
        if problem is None
        else tuple(models),
        memory_bytes={},
        bound=needed if background else None,
        gap_ratio=len(windows) / rounds / needed - 1 if needed and rounds else None,
        binding_constraint=problem,
    )


def _priority_period(
    beat: Beat, priority: Sequence[PlannedModel]
) -> tuple[tuple[PriorityPeriod, ...], list[Slot], int, str | None]:
    """Reserved time, slots of the first window, least slack, and the first deadline that breaks."""
    periods, slots, late = [], [], None
    slack, now = beat.window_ns, 0
    for model in priority:
        begin = now
        for segment in model.segments:
            slots.append(_slot(segment.unit, now, segment.duration_ns, model.name, segment.index, 0))
            now += segment.duration_ns
        periods.append(PriorityPeriod(unit=model.segments[0].unit, start_ns=begin, end_ns=now, model=model.name))
        deadline = beat.deadlines_ns.get(model.name, beat.window_ns)
        slack = min(slack, deadline - now)
        if now > deadline and late is None:
            late = f"{model.name!r} is ready {_ms(now)} after its release, its deadline is {_ms(deadline)}"
    return tuple(periods), slots, slack, late


def _slot(unit: str, start_ns: int, duration_ns: int, model: str, segment: int, frame: int) -> Slot:
    return Slot(unit=unit, start_ns=start_ns, duration_ns=duration_ns, model=model, segment=segment, frame=frame)


def _numbered(slots: Sequence[Slot], frame: int) -> list[Slot]:
    return [_slot(s.unit, s.start_ns, s.duration_ns, s.model, s.segment, frame) for s in slots]


def _fill(background: Sequence[PlannedModel], begin_ns: int, limit_ns: int) -> tuple[list[list[Slot]], int]:
    """Windows of background slots that may repeat, and the least time left before the guard."""
    order = [(model, segment) for model in background for segment in model.segments]
    if not order:
        return [[]], limit_ns - begin_ns
    windows: list[list[Slot]] = []
    frames = dict.fromkeys((model.name for model in background), 0)
    turn, complete, best = 0, 0, (0.0, 1, 0)
    while len(windows) < _SEARCHED_WINDOWS or (not complete and len(windows) < _MOST_WINDOWS):
        now, placed, started = begin_ns, [], set()
        while True:
            model, segment = order[turn]
            if now + segment.duration_ns > limit_ns or (segment.index == 0 and model.name in started):
                break
            if segment.index == 0:
                started.add(model.name)
            placed.append(_slot(segment.unit, now, segment.duration_ns, model.name, segment.index, frames[model.name]))
            now += segment.duration_ns
            if segment.index == len(model.segments) - 1:
                frames[model.name] += 1
            turn = (turn + 1) % len(order)
            if turn == 0:
                complete += 1
                rate = complete / (len(windows) + 1)
                if rate > best[0]:
                    best = (rate, len(windows) + 1, len(placed))
        windows.append(placed)
        if turn == 0:
            break
    _, count, kept = best
    windows = windows[:count]
    windows[-1] = windows[-1][:kept]
    idle = min(limit_ns - (placed[-1].start_ns + placed[-1].duration_ns if placed else begin_ns) for placed in windows)
    return windows, idle


def _residuals(
    window_ns: int, priority_ns: int, background: Sequence[PlannedModel], placed: Sequence[Slot]
) -> tuple[int, ...]:
    """What the first, second, ... background model finds in a window."""
    left, found = window_ns - priority_ns, []
    for model in background:
        found.append(left)
        left -= sum(slot.duration_ns for slot in placed if slot.model == model.name)
    return tuple(found)


def _ends(slot: Slot, model: PlannedModel) -> bool:
    return slot.model == model.name and slot.segment == len(model.segments) - 1


def _with_age(
    model: PlannedModel, background: Sequence[PlannedModel], beat: Beat, priority_ns: int, limit_ns: int
) -> PlannedModel:
    """The model with its bound on the age of a result.

    A frame that begins with a fresh window takes so many windows as its segments span;
    one more where it begins in the rest of a window; before that it may have waited in
    the queue, as many windows as that holds frames: then a newer one takes its place.
    Where the queue refuses newer ones, it waits for the frame in flight and for all
    before it in the queue, with a frame of every other model between two of them.
    """
    import msgspec

    if model.role == "priority":
        return msgspec.structs.replace(model, result_age_windows=1)
    depth = beat.queues.get(model.name, 1)
    if model.name in beat.refusing:
        place = background.index(model)
        others = [*background[place + 1 :], *background[:place]]
        served = [model, *[*others, model] * depth]
        age = _spans([segment.duration_ns for each in served for segment in each.segments], priority_ns, limit_ns)
    else:
        age = _spans([segment.duration_ns for segment in model.segments], priority_ns, limit_ns) + depth
    return msgspec.structs.replace(model, result_age_windows=age)


def _spans(durations_ns: Sequence[int], begin_ns: int, limit_ns: int) -> int:
    """Windows that segments take one after the other, from a fresh window on."""
    spans, now = 1, begin_ns
    for duration in durations_ns:
        if now + duration > limit_ns:
            spans, now = spans + 1, begin_ns
        now += duration
    return spans


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3g} ms"
