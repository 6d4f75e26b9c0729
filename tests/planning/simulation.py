"""The run-time policy played through event by event, knowing the plan only by its durations and reserved instants."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from framefit.core.policy import Rotation
from framefit.core.timetable import PlannedModel, Timetable
from framefit.planning.beat import Beat

__all__ = ["Model", "Simulation"]


@dataclass
class Model:
    """A background model: frames that wait, frames in flight, and the oldest result so far."""

    plan: PlannedModel
    every: Fraction | int
    frames: int
    depth: int
    refuses: bool
    waits: bool = False
    queue: deque[int] = field(default_factory=deque)
    newest: int = -1  # release of the newest frame in flight
    segment: int = 0
    rest_ns: int = 0  # of a segment that was interrupted
    done: int = 0
    oldest_ns: int = 0

    def takes(self, number: int) -> bool:
        """Whether it is the first frame at or after one of the instants 0, ``every``, 2 ``every``, ..."""
        before = math.floor(number / self.every)
        return number in (math.ceil(before * self.every), math.ceil((before + 1) * self.every))

    @property
    def needed(self) -> int | None:
        """Quantile of the next segment, None: nothing to do."""
        if self.newest >= 0 or len(self.queue) >= self.frames:
            return self.plan.segments[self.segment].duration_ns
        return None


class Simulation:
    """One unit, window after window.

    Args:
        beat: guard, lateness, demands.
        timetable: feasible.
        takes: a planned quantile -> how long it takes this time.
        wakes: the greatest lateness -> how late it is this time.
        crossing: a background segment may run across a release that is no reserved instant.
    """

    def __init__(
        self,
        beat: Beat,
        timetable: Timetable,
        takes: Callable[[int], int],
        wakes: Callable[[int], int],
        *,
        crossing: bool,
    ) -> None:
        self.beat, self.timetable, self.takes, self.wakes, self.crossing = beat, timetable, takes, wakes, crossing
        self.models = [
            Model(m, d.every, d.frames, max(d.queue, d.frames), d.refuses, d.waits)
            for m in timetable.models
            if m.role == "background"
            for d in [beat.of(m.name)]
        ]
        self.rotation = Rotation(len(self.models), [model.plan.turns for model in self.models], yields=beat.yields)
        self.late: list[str] = []
        self.busy_until = 0  # a segment that crosses a release
        self.delivered = 0  # frames of the stream that waits

    def run(self, windows: int) -> None:
        """Play that many windows."""
        for window in range(windows):
            self._window(window)

    def ages(self) -> dict[str, int]:
        """Model -> greatest age of a result in ns."""
        return {model.plan.name: model.oldest_ns for model in self.models}

    def _reserved(self, window: int) -> Iterator[tuple[int, str]]:
        """Planned begin and model of what is due in a window, relative to its release."""
        for period in self.timetable.windows[window % len(self.timetable.windows)].priority:
            yield period.start_ns, period.model

    def _window(self, window: int) -> None:
        release, length = window * self.beat.window_ns, self.beat.window_ns
        waiting = [model for model in self.models if model.waits]
        number, full = self.delivered, [m for m in waiting if m.refuses and len(m.queue) == m.depth]
        comes = not any(model.takes(number) for model in full)
        self.delivered += comes
        for model in self.models:
            if (comes and model.takes(number)) if model.waits else model.takes(window):
                if len(model.queue) == model.depth:
                    if model.refuses:
                        continue
                    model.queue.popleft()
                model.queue.append(release)
        due = list(self._reserved(window))
        now = max(release + self.wakes(self.beat.late_ns), self.busy_until)
        if due:
            start = release + due[0][0]
            if due[0][0] > 0:
                self._background(now, start)
                now = start + self.wakes(self.beat.late_ns)
            for _, name in due:
                for segment in self.timetable.model(name).segments:
                    now += self.takes(segment.duration_ns)
                deadline = self.beat.of(name).deadline_ns or length
                if now - release > deadline:
                    self.late.append(f"{name} in window {window}: {now - release} after its release")
        end = release + length
        following = next(self._reserved(window + 1), None)
        if self.crossing and following is not None:
            end += following[0]
        self._background(now, end, release + length)

    def _background(self, now: int, reserved: int, release: int | None = None) -> None:
        """Segments from ``now`` until the reserved instant; none begins at or after ``release``."""
        while now < (reserved if release is None else min(release, reserved)):
            needed = [None if m.needed is None else self.beat.needed_ns(m.needed) for m in self.models]
            room = 2**62 if self.beat.preemptive else reserved - now - self.beat.guard_ns
            then = self._then_ns if self.beat.yields else None
            chosen = self.rotation.choose(needed, room, (release, reserved), then) if needed else None
            if chosen is None:
                break
            now = self._serve(chosen, now, reserved)
            assert now <= reserved
        self.busy_until = now

    def _then_ns(self, number: int) -> int | None:
        model = self.models[number]
        left = model.plan.segments[model.segment + 1 :]
        return self.beat.needed_ns(left[0].duration_ns) if left else None

    def _serve(self, chosen: int, now: int, until: int) -> int:
        """Run a model's next segment, where it may be interrupted ``until`` then at most; return when that ends."""
        model = self.models[chosen]
        if model.newest < 0:
            model.newest = [model.queue.popleft() for _ in range(model.frames)][-1]
        if not model.rest_ns:
            model.rest_ns = self.takes(model.plan.segments[model.segment].duration_ns)
            self._begun(now, model.plan)
        spent = min(model.rest_ns, until - now) if self.beat.preemptive else model.rest_ns
        now += spent
        model.rest_ns -= spent
        if not model.rest_ns:
            model.segment += 1
            if model.segment == len(model.plan.segments):
                model.oldest_ns = max(model.oldest_ns, now - model.newest)
                model.done += 1
                model.segment, model.newest = 0, -1
                self.rotation.finished(chosen)
        return now

    def _begun(self, now: int, plan: PlannedModel) -> None:
        """A segment of a background model has begun."""
