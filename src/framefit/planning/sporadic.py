"""How long an event waits, and what events may take from background models.

A sporadic model has no releases: its events come at any time, D apart at least. The run serves them in the residuals,
before all background models: its next segment starts as soon as it fits before the next reserved instant. What follows
rests on these facts.

1. *One segment blocks.* Where an event comes, a segment of what is served after it may have just begun, and is not
   interrupted (background models are, where the unit can). No other one begins ahead of the event, unless the event's
   own segment does not fit before the next reserved instant any more; what runs then ends before that instant.
2. *Earlier stays earlier.* From whatever instant on it is served, an event is done no later than from a later one: see
   :mod:`ages`. So the greatest wait is that behind a segment in full, from an instant at which one of the event's
   segments just does not fit any more, or behind the first segment that a span has room for.
3. *So many events, so much work.* An event of a model that is done within R of its arrival runs in a window of length
   L only if it came less than R before the window or in it: that are ceil((L + R) / D) events at most. In a span in
   which other work takes x, segments that would fit into the span less x are done, wherever in it that work lies: each
   of them that does not run there begins behind less than x more. So whoever is served after sporadic models finds each
   span shorter by the work that they may have in a window (``Spans.events_ns``).

An event has to be done before the next one of its model may come (R <= D), so that no event waits for one of its own
kind. Several sporadic models are served in a fixed order: each is blocked by one segment of those behind it, and finds
spans shorter by those before it. This is the response time of fixed priorities without preemption (George, Rivierre
and Spuri, 1996, "Preemptive and Non-Preemptive Real-Time Uniprocessor Scheduling"), in spans instead of a whole
processor.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from framefit.core.timetable import PlannedModel, Timetable
from framefit.planning.ages import Spans
from framefit.planning.beat import Beat


@dataclass(frozen=True)
class Wait:
    """The greatest wait of an event.

    Attributes:
        ns: from its arrival to its end.
        window: in which it comes, of those until spans repeat; and
        after_ns: so long after the window's release.
        blocking_ns: what a segment takes that began at that moment.
    """

    ns: int
    window: int
    after_ns: int
    blocking_ns: int


def events_ns(beat: Beat, unit: str, events: Sequence[PlannedModel] | None = None) -> int:
    """The most work of events that one window may hold on a unit.

    Args:
        beat: demands, windows.
        unit: name.
        events: sporadic models that count; default: all.
    """
    longest, total = max(beat.pattern_ns), 0
    for model in beat.events if events is None else events:
        if model.segments[0].unit == unit:
            demand = beat.of(model.name)
            count = -(-(longest + _within_ns(beat, model)) // demand.distance_ns)
            total += count * math.ceil((1 + beat.excess_ratio) * model.duration_ns)
    return total


def waits(
    beat: Beat, spans: Mapping[str, Spans], background: Sequence[PlannedModel]
) -> tuple[dict[str, Wait], str | None]:
    """The greatest wait of each sporadic model's events, and what is wrong with the first that is too long.

    Args:
        beat: sporadic models, demands.
        spans: unit -> where background segments may run, no events considered; of the units of sporadic models.
        background: models as they are cut.
    """
    longest: dict[str, Wait] = {}
    for model in beat.events:
        unit = model.segments[0].unit
        behind = [] if beat.preemptive else [s.duration_ns for m in background for s in m.segments if s.unit == unit]
        here = _spans_of(beat, spans[unit], model)
        wait = _wait(here, _own(model), max([0, *behind, *_behind(beat, model)]), beat.late_ns)
        if wait is None:
            return (
                longest,
                f"an event of sporadic model {model.name!r} may wait for ever: the residuals have no room for it",
            )
        longest[model.name] = wait
        if wait.ns > _within_ns(beat, model):
            return longest, _too_long(beat, here, model, wait)
    return longest, None


def longest_blocking_ns(beat: Beat, spans: Spans, unit: str) -> int | None:
    """How long background segments on a unit may be, so that all events are in time.

    Args:
        beat: sporadic models, demands.
        spans: where background segments may run there, no events considered.
        unit: name.

    Returns:
        ``None``: an event is late whatever their length is, or there are no events.
    """
    most = []
    for model in beat.events:
        if model.segments[0].unit == unit:
            here = _spans_of(beat, spans, model)
            most.append(
                _most_blocking(
                    here, _own(model), max([0, *_behind(beat, model)]), _within_ns(beat, model), beat.late_ns
                )
            )
    known = [ns for ns in most if ns is not None]
    return min(known) if known and len(known) == len(most) else None


def with_events(timetable: Timetable, beat: Beat) -> Timetable:
    """With the beat's sporadic models behind the others."""
    events = []
    for model in beat.events:
        ns = timetable.waits_ns.get(model.name)
        age = None if ns is None else max(-(-ns // beat.window_ns), 1)
        events.append(msgspec.structs.replace(with_guards(model, beat), result_age_windows=age))
    return msgspec.structs.replace(timetable, models=(*timetable.models, *events))


def with_guards(model: PlannedModel, beat: Beat) -> PlannedModel:
    """A model that runs in residuals, its segments with what is kept free behind each.

    Args:
        model: as it is cut.
        beat: least guard, greatest excess.
    """
    if not beat.excess_ratio:
        return model
    guarded = (msgspec.structs.replace(s, guard_ns=beat.own_guard_ns(s.duration_ns)) for s in model.segments)
    return msgspec.structs.replace(model, segments=tuple(guarded))


def _own(model: PlannedModel) -> tuple[int, ...]:
    return tuple(segment.duration_ns for segment in model.segments)


def _within_ns(beat: Beat, model: PlannedModel) -> int:
    """When an event has to be done, after it came."""
    demand = beat.of(model.name)
    return demand.distance_ns if demand.deadline_ns is None else demand.deadline_ns


def _behind(beat: Beat, model: PlannedModel) -> list[int]:
    """Segments of sporadic models on its unit that are served after it."""
    later = beat.events[beat.events.index(model) + 1 :]
    return [s.duration_ns for m in later for s in m.segments if s.unit == model.segments[0].unit]


def _spans_of(beat: Beat, spans: Spans, model: PlannedModel) -> Spans:
    """What sporadic models that are served before it leave of the spans; its own segments are never interrupted."""
    before = beat.events[: beat.events.index(model)]
    held = events_ns(beat, model.segments[0].unit, before)
    free = tuple(tuple(window) for window in spans.free)
    return dataclasses.replace(spans, free=free, lengths_ns=tuple(spans.lengths_ns), preemptive=False, events_ns=held)


@functools.lru_cache(maxsize=256)
def _most_blocking(spans: Spans, own: tuple[int, ...], least: int, within_ns: int, late_ns: int) -> int | None:
    """The longest segment behind which an event is in time; at least ``least`` may begin anyhow."""

    def in_time(blocking_ns: int) -> bool:
        wait = _wait(spans, own, max(blocking_ns, least), late_ns)
        return wait is not None and wait.ns <= within_ns

    low, high = 0, max((end - begin for free in spans.free for begin, end in free), default=0)
    if not in_time(low) or in_time(high):
        return high if in_time(low) else None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if in_time(middle) else (low, middle)
    return low


def _wait(spans: Spans, own: Sequence[int], blocking_ns: int, late_ns: int) -> Wait | None:
    """The greatest wait behind any segment of at most ``blocking_ns``; ``None``: more than 10,000 windows."""
    work = list(itertools.accumulate(own, initial=0))
    needed = [_grown(spans, before) + spans.needed_ns(quantile) for before, quantile in zip(work, own, strict=False)]
    worst: Wait | None = None
    for window, free in enumerate(spans.free):
        start = spans.begin_ns(window)
        for begin, end in free:
            longest = blocking_ns if spans.crossing else min(blocking_ns, end - begin)
            held = max(_grown(spans, longest), late_ns)
            least = begin if spans.crossing else begin + held
            late = (end - spans.events_ns - room + 1 for room in needed)  # where so many segments just do not fit
            for served in [begin + held, *(instant for instant in late if instant > least)]:
                done = spans.done_ns(start + served, work)
                if done is None:
                    return None
                ns = done - start - served + held
                if worst is None or ns > worst.ns:
                    worst = Wait(ns, window, served - held, longest)
    return worst


def _grown(spans: Spans, quantile_ns: int) -> int:
    """What launches of a quantile take at most."""
    return math.ceil((1 + spans.excess_ratio) * quantile_ns)


def _too_long(beat: Beat, spans: Spans, model: PlannedModel, wait: Wait) -> str:
    """Why an event is late: when it comes, and what it waits for."""
    demand = beat.of(model.name)
    limit = "deadline" if demand.deadline_ns is not None else "least distance, by default its deadline,"
    alone = _wait(spans, _own(model), max([0, *_behind(beat, model)]), beat.late_ns)
    begun = f" just after a segment of {_ms(wait.blocking_ns)} began" if wait.blocking_ns else ""
    rest = f"; it may take {_ms(alone.ns)} even if no background segment ran" if alone is not None and begun else ""
    return (
        f"an event of sporadic model {model.name!r} may take {_ms(wait.ns)}, its {limit} is "
        f"{_ms(_within_ns(beat, model))}: it does where it comes {_ms(wait.after_ns)} after the release of window "
        f"{wait.window},{begun or ' when its segments do not fit before the next reserved instant'}{rest}"
    )


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3g} ms"
