"""The run-time policy with sporadic models, played through event by event; events come when they hurt most."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from simulation import Simulation

from framefit.core.timetable import PlannedModel, Timetable
from framefit.planning.beat import Beat

__all__ = ["EventSimulation"]


@dataclass
class Sporadic:
    """A sporadic model: when its events come, and how long they took."""

    plan: PlannedModel
    distance: int
    arrivals: list[int] = field(default_factory=list)
    begun: int = 0  # events that are done
    segment: int = 0
    waits: list[int] = field(default_factory=list)

    def pending(self, now: int) -> bool:
        """Whether an event waits, or is being worked on."""
        return self.begun < len(self.arrivals) and self.arrivals[self.begun] <= now

    def may_come(self, at: int) -> bool:
        """Whether an event at that time is far enough from those before and after it."""
        place = bisect.bisect(self.arrivals, at)
        near = self.arrivals[max(place - 1, 0) : place + 1]
        return all(abs(at - other) >= self.distance for other in near)


class EventSimulation(Simulation):
    """One unit, window after window, with events.

    Args:
        events: models in the order of service, and the least distance of their events.
        random: of arrivals.
        spite: how often an event comes just when a segment of another model has begun.
        dense: how often the next event comes as soon as it may.
    """

    def __init__(
        self,
        beat: Beat,
        timetable: Timetable,
        takes: Callable[[int], int],
        wakes: Callable[[int], int],
        *,
        crossing: bool,
        random: np.random.Generator,
        spite: float,
        dense: float,
        windows: int,
    ) -> None:
        super().__init__(beat, timetable, takes, wakes, crossing=crossing)
        self.random, self.spite = random, spite
        self.sporadic = [Sporadic(model, beat.of(model.name).distance_ns) for model in beat.events]
        for one in self.sporadic:
            at = int(random.integers(0, one.distance + 1))
            while at < windows * beat.window_ns and spite < 1:
                one.arrivals.append(at)
                at += one.distance + (0 if random.random() < dense else int(random.exponential(one.distance)))

    def _provoke(self, now: int, running: PlannedModel) -> None:
        """An event comes at the moment at which a segment has begun."""
        for one in self.sporadic:
            if one.plan is not running and self.random.random() < self.spite and one.may_come(now):
                bisect.insort(one.arrivals, now)

    def _begun(self, now: int, plan: PlannedModel) -> None:
        if not self.beat.preemptive:
            self._provoke(now, plan)

    def _next_arrival(self, now: int) -> int:
        later = [
            one.arrivals[place]
            for one in self.sporadic
            if (place := bisect.bisect(one.arrivals, now)) < len(one.arrivals)
        ]
        return min(later, default=2**62)

    def _background(self, now: int, reserved: int, release: int | None = None) -> None:
        limit = reserved if release is None else min(release, reserved)
        while now < limit:
            room = reserved - now - self.beat.guard_ns
            event = next(
                (
                    one
                    for one in self.sporadic
                    if one.pending(now) and self.beat.needed_ns(one.plan.segments[one.segment].duration_ns) <= room
                ),
                None,
            )
            if event is not None:
                begun = now
                now += self.takes(event.plan.segments[event.segment].duration_ns)
                assert now <= reserved
                event.segment += 1
                if event.segment == len(event.plan.segments):
                    event.waits.append(now - event.arrivals[event.begun])
                    event.segment, event.begun = 0, event.begun + 1
                self._provoke(begun, event.plan)
                continue
            needed = [None if m.needed is None else self.beat.needed_ns(m.needed) for m in self.models]
            preemptive = self.beat.preemptive
            then = self._then_ns if self.beat.yields else None
            chosen = (
                self.rotation.choose(needed, 2**62 if preemptive else room, (limit, reserved), then) if needed else None
            )
            if chosen is None:
                coming = self._next_arrival(now)
                if coming >= limit:
                    break
                now = coming + self.wakes(self.beat.late_ns)
                continue
            now = self._serve(chosen, now, min(reserved, self._next_arrival(now)))
            assert now <= reserved
        self.busy_until = now
