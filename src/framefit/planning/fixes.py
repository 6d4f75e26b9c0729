"""Small changes that make an infeasible workload fit, each verified by planning again."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from framefit.core.timetable import Fix, Timetable
from framefit.planning.beat import Beat

Arrange = Callable[[Beat, Mapping[str, float]], Timetable]
"""Plans the workload on another beat, some models at so many times their cost."""
_COARSE, _FINE = 2.0, 1.01  # steps of the rate
_MOST_STEPS = 13
_ROUNDING_NS = 2  # releases are whole nanoseconds
_GUARDS = (0.75, 0.5, 0.25, 0.1)  # parts of the guard
_DEAREST, _CHEAPEST, _PERCENT = 95, 20, 5  # of a model's cost


def verified_fixes(arranged: Arrange, beat: Beat, models: Sequence[str], rate_hz: float) -> tuple[Fix, ...]:
    """One at a time: what costs nothing, then a slower beat, later deadlines, a smaller guard, and cheaper models.

    What planning again does not confirm is left out.

    Args:
        arranged: plans again.
        beat: that is infeasible.
        models: all of them.
        rate_hz: of the beat.
    """
    tried = [
        _other_position(arranged, beat),
        _slower(arranged, beat, rate_hz),
        _later_deadlines(arranged, beat),
        _smaller_guard(arranged, beat),
        *(_cheaper(arranged, beat, name) for name in models),
    ]
    return tuple(fix for fix in tried if fix is not None and fix.verified)


def _other_position(arranged: Arrange, beat: Beat) -> Fix | None:
    """At a window's start the priority period parts no residual, and deadlines are farthest away."""
    if beat.position == "start":
        return None
    moved = dataclasses.replace(beat, position="start")
    if not arranged(moved, {}).feasible:
        return None
    return Fix(
        change='priority_position = "start"', effect="the residual is in one run; nothing is lost", verified=True
    )


def _slower(arranged: Arrange, beat: Beat, rate_hz: float) -> Fix | None:
    """The highest rate that fits, to 1 %; deadlines of priority models that follow the window follow it."""
    several = bool(beat.lengths_ns)  # windows of a pattern, equally long or not: streams release in some of them

    def fits(rate: float) -> bool:
        if not several:
            return arranged(dataclasses.replace(beat, window_ns=int(1e9 / rate)), {}).feasible
        return arranged(_stretched(beat, rate_hz / rate), {}).feasible

    low = rate_hz
    for _ in range(_MOST_STEPS):
        low /= _COARSE
        if fits(low):
            break
    else:
        return None
    high = low * _COARSE
    while high / low > _FINE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    rate = float(f"{math.floor(low * 1000) / 1000:.4g}") if low >= 0.001 else low
    if rate > low:
        rate *= 0.999
    if several:
        return Fix(
            change=f"the rates of all streams x {math.floor(1000 * rate / rate_hz) / 1000:g}",
            effect="longer windows hold everything",
            verified=fits(math.floor(1000 * rate / rate_hz) / 1000 * rate_hz),
        )
    return Fix(
        change=f"rate_hz = {rate:.4g}",
        effect=f"windows of {1e3 / rate:.4g} ms instead of {beat.window_ns / 1e6:.4g} ms hold everything",
        verified=fits(float(f"{rate:.4g}")),
    )


def _stretched(beat: Beat, ratio: float) -> Beat:
    """All windows so many times as long, and the deadlines that follow streams."""
    lengths = tuple(int(ns * ratio) for ns in beat.lengths_ns)
    begins = [sum(beat.lengths_ns[:window]) for window in range(len(beat.lengths_ns))]
    later: dict[str, int | None] = {}
    for name, demand in beat.demands.items():
        at = [begins[window] for window in demand.releases or range(len(begins))]
        period = min(end - begin for begin, end in itertools.pairwise([*at, at[0] + sum(beat.lengths_ns)]))
        if demand.deadline_ns is not None and abs(demand.deadline_ns - period) <= _ROUNDING_NS:
            later[name] = int(demand.deadline_ns * ratio)
    return _with_deadlines(dataclasses.replace(beat, window_ns=min(lengths), lengths_ns=lengths), later)


def _later_deadlines(arranged: Arrange, beat: Beat) -> Fix | None:
    """Deadlines just late enough, where those that were given do not hold."""
    if not any(demand.deadline_ns for demand in beat.demands.values()):
        return None
    timetable = arranged(_without_deadlines(beat), {})
    if not timetable.feasible:
        return None
    ends: dict[str, int] = {}
    for window in timetable.windows:
        for one in window.priority:
            excess = math.ceil(beat.excess_ratio * (one.end_ns - window.priority[0].start_ns))
            ends[one.model] = max(one.end_ns + excess, ends.get(one.model, 0))
    later: dict[str, float] = {}
    for model in timetable.models:
        deadline = beat.of(model.name).deadline_ns
        needed = ends.get(model.name) if model.role == "priority" else (model.result_age_windows or 0) * beat.window_ns
        if deadline is None or needed is None or needed <= deadline:
            continue
        alone = _with_deadlines(_without_deadlines(beat), {model.name: deadline})
        if not arranged(alone, {}).feasible:
            later[model.name] = math.ceil(needed / 1e4) / 100
    later |= _later_events(timetable, beat)
    if not later:
        return None
    moved = _with_deadlines(beat, {name: round(after_ms * 1e6) for name, after_ms in later.items()})
    return Fix(
        change=", ".join(f"deadline_ms = {after_ms:g} for {name!r}" for name, after_ms in later.items()),
        effect="all that is planned ends before it",
        verified=arranged(moved, {}).feasible,
    )


def _later_events(timetable: Timetable, beat: Beat) -> dict[str, float]:
    """Deadlines of sporadic models that hold behind the segments of a plan without deadlines, where theirs do not."""
    waits = {model.name: timetable.waits_ns.get(model.name) for model in beat.events}
    return {
        name: math.ceil(ns / 1e4) / 100
        for name, ns in waits.items()
        if ns is not None and ns > (beat.of(name).deadline_ns or ns)
    }


def _smaller_guard(arranged: Arrange, beat: Beat) -> Fix | None:
    """A guard of at least a tenth of the present one, where that is enough."""
    if beat.guard_ns == 0:
        return None
    for part in _GUARDS:
        smaller = dataclasses.replace(beat, guard_ns=int(beat.guard_ns * part))
        if arranged(smaller, {}).feasible:
            return Fix(
                change=f"guard_ms = {smaller.guard_ns / 1e6:.3g}",
                effect="less time is kept free before each release; more of them may be late",
                verified=True,
            )
    return None


def _cheaper(arranged: Arrange, beat: Beat, name: str) -> Fix | None:
    """How much cheaper one model would have to be: the greatest cost that fits, halving what is left."""
    steps = range(_CHEAPEST, _DEAREST + 1, _PERCENT)

    def fits(step: int) -> bool:
        return arranged(beat, {name: steps[step] / 100}).feasible

    if not fits(0):
        return None
    low, high = 0, len(steps)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Fix(
        change=f"{name!r} at {steps[low]} % of its cost",
        effect="a smaller, pruned or quantised model, or one on a faster unit",
        verified=True,
    )


def _without_deadlines(beat: Beat) -> Beat:
    return _with_deadlines(beat, dict.fromkeys(beat.demands))


def _with_deadlines(beat: Beat, deadlines: Mapping[str, int | None]) -> Beat:
    demands = {
        name: dataclasses.replace(demand, deadline_ns=deadlines[name]) if name in deadlines else demand
        for name, demand in beat.demands.items()
    }
    return dataclasses.replace(beat, demands=demands)
