"""The residuals filled by playing the run's own policy through at the planned quantiles.

Each unit serves the stages of background models on it in turns (:class:`Rotation`) and knows nothing of the
others but what they hand on. A stage may start a frame when it has arrived there, a first stage
when besides one of the model's slots is free.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from framefit.core.policy import Rotation
from framefit.core.timetable import PlannedModel, Slot
from framefit.planning.beat import Beat, Demand, Span

MOST_WINDOWS = 10_000
_SEARCHED_WINDOWS = 64  # a longer hyperperiod gains less than 1/64 of a round
_SEARCHED_STAGED = 128  # frames in flight at its end are lost to it, several of each model


@dataclass(frozen=True)
class Filled:
    """Windows that may repeat.

    Attributes:
        windows: background slots of each.
        launches: of each background model in them.
        idle_ns: the least that is left before a reserved instant.
    """

    windows: Sequence[Sequence[Slot]]
    launches: Sequence[int]
    idle_ns: int


@dataclass
class _Stage:
    """A run of segments of one model on one unit."""

    model: _Model
    unit: _Unit
    durations: list[int]
    first_segment: int
    position: int  # in the unit's rotation
    handed_ns: int = 0  # to the next stage
    following: _Stage | None = None
    segment: int = 0
    rest_ns: int = 0  # of a segment that was interrupted
    frame: int = 0
    window: int = 0  # in which its newest frame was released
    inbox: deque[tuple[int, int, int]] = field(default_factory=deque)  # from when on, frame, window

    @property
    def busy(self) -> bool:
        return self.segment > 0 or self.rest_ns > 0


@dataclass
class _Model:
    """Frames of a model, by the window in which they were released: those that wait, and those in flight."""

    plan: PlannedModel
    demand: Demand
    stages: list[_Stage] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    coming: deque[tuple[int, int]] = field(default_factory=deque)  # from when on, window; of a model that reads others
    read: dict[str, deque[tuple[int, int]]] = field(default_factory=dict)  # the same, of the models that it reads
    read_frames: int = 0
    taken: int = 0
    finishing: deque[int] = field(default_factory=deque)  # times, of a model of several stages
    in_flight: int = 0
    done: int = 0

    def arrive(self, window: int) -> None:
        """A frame is there; where the queue is full it is refused, or the oldest is dropped."""
        if len(self.waiting) == max(self.demand.queue, self.demand.frames):
            if self.demand.refuses:
                return
            self.waiting.popleft()
        self.waiting.append(window)

    def may_start(self, now: int) -> bool:
        """Whether the first stage may take frames."""
        while self.coming and self.coming[0][0] <= now:
            self.arrive(self.coming.popleft()[1])
        while self.finishing and self.finishing[0] <= now:
            self.finishing.popleft()
            self.in_flight -= 1
        return len(self.waiting) >= self.demand.frames and self.in_flight < self.plan.slots


@dataclass
class _Unit:
    """Its stages, and where it is."""

    name: str
    stages: list[_Stage] = field(default_factory=list)
    rotation: Rotation = field(default_factory=lambda: Rotation(0))
    spans: list[Span] = field(default_factory=list)  # of the present window, absolute
    now: int | None = None  # when it decides next; None: not in this window any more
    free: int = 0

    def enter(self, spans: list[Span]) -> None:
        """A window begins."""
        self.spans = spans
        self.now = spans[0][0] if spans else None

    def span(self, now: int) -> Span | None:
        """The present span, or the next one; at its very end the policy is asked once more, as in a run."""
        within = next((span for span in self.spans if span[0] <= now < span[1]), None)
        return within or next((span for span in self.spans if span[1] >= now), None)

    def wake(self, at: int) -> None:
        """Something is there from then on: decide then, if there is room in this window and it is earlier."""
        at = max(at, self.free)
        if (self.now is None or at < self.now) and self.spans and at < self.spans[-1][1]:
            self.now = at

    def waits(self, now: int) -> None:
        """Nothing fits: on to the next span, or to when something arrives."""
        self.now = next((begin for begin, _ in self.spans if begin > now), None)
        for stage in self.stages:
            if stage.busy:
                continue
            model = stage.model
            first = stage is model.stages[0]
            if first and model.coming and model.coming[0][0] > now:
                self.wake(model.coming[0][0])
            if first and model.finishing and model.finishing[0] > now:
                self.wake(model.finishing[0])
            if stage.inbox and stage.inbox[0][0] > now:
                self.wake(stage.inbox[0][0])


def _decides(unit: _Unit) -> float:
    return math.inf if unit.now is None else unit.now


class _Play:
    """The background models on their units."""

    def __init__(self, beat: Beat, models: Sequence[PlannedModel]) -> None:
        self.beat = beat
        background = [model for model in models if model.role == "background"]
        self.models = [_Model(model, beat.of(model.name)) for model in background]
        self.units = {s.unit: _Unit(s.unit) for model in background for s in model.segments}
        for model in self.models:
            self._stage(model)
        for unit in self.units.values():
            unit.rotation = Rotation(len(unit.stages), [stage.model.plan.turns for stage in unit.stages])
        self.readers: dict[str, list[_Model]] = {}
        for model in self.models:
            for name in model.plan.after:
                model.read[name] = deque()
                self.readers.setdefault(name, []).append(model)

    def _stage(self, model: _Model) -> None:
        first = 0
        for run in model.plan.stages:
            unit = self.units[run[0].unit]
            stage = _Stage(model, unit, [s.duration_ns for s in run], first, len(unit.stages))
            unit.stages.append(stage)
            if model.stages:
                before = model.stages[-1]
                size = model.plan.segments[first - 1].boundary_bytes
                before.following = stage
                before.handed_ns = self.beat.link_ns(before.unit.name, unit.name, size) + self.beat.late_ns
            model.stages.append(stage)
            first += len(run)

    def window(self, index: int, begin: int, free: Mapping[str, Sequence[Span]]) -> list[Slot]:
        """Play one window.

        Args:
            index: of the window.
            begin: its release, absolute.
            free: unit -> spans after the release.
        """
        for model in self.models:
            if not model.plan.after and self.beat.released(model.plan.name, index) is not None:
                model.arrive(index)
        for name, unit in self.units.items():
            unit.enter([(begin + start, begin + end) for start, end in free[name]])
        placed: list[Slot] = []
        units = list(self.units.values())
        while True:
            unit = min(units, key=_decides)
            if unit.now is None:
                return placed
            slot = self._decided(unit, unit.now, begin)
            if slot is not None:
                placed.append(slot)

    def _decided(self, unit: _Unit, now: int, begin: int) -> Slot | None:
        """What a unit launches, if anything; its next decision is set."""
        span = unit.span(now)
        if span is None or span[0] > now:
            unit.now = None if span is None else span[0]
            return None
        needed = [self._needed(stage, now) for stage in unit.stages]
        chosen = unit.rotation.choose(needed, span[1] - now)
        if chosen is None:
            unit.waits(now)
            return None
        stage = unit.stages[chosen]
        segment = stage.segment
        if not stage.rest_ns:
            if segment == 0:
                self._take(stage)
            stage.rest_ns = stage.durations[segment]
        length = min(stage.rest_ns, span[1] - now) if self.beat.preemptive else stage.rest_ns
        stage.rest_ns -= length
        unit.now = unit.free = now + length
        slot = Slot(
            unit=unit.name,
            start_ns=now - begin,
            duration_ns=length,
            model=stage.model.plan.name,
            segment=stage.first_segment + segment,
            frame=stage.frame,
        )
        if not stage.rest_ns:
            stage.segment += 1
            if stage.segment == len(stage.durations):
                self._finished(stage, now + length)
        return slot

    def _needed(self, stage: _Stage, now: int) -> int | None:
        """Quantile of a stage's next segment, or ``None``: it has nothing to do."""
        if not stage.busy:
            model = stage.model
            if stage is model.stages[0]:
                if not model.may_start(now):
                    return None
            elif not stage.inbox or stage.inbox[0][0] > now:
                return None
        return 1 if self.beat.preemptive else stage.durations[stage.segment]

    def _take(self, stage: _Stage) -> None:
        """A stage begins a frame."""
        model = stage.model
        if stage is not model.stages[0]:
            _, stage.frame, stage.window = stage.inbox.popleft()
            return
        for _ in range(model.demand.frames):
            stage.window = model.waiting.popleft()
        stage.frame = model.taken
        model.taken += 1
        if len(model.stages) > 1:
            model.in_flight += 1

    def _finished(self, stage: _Stage, at: int) -> None:
        """A stage's frame goes on to the next one, or is done."""
        model = stage.model
        stage.segment = 0
        stage.unit.rotation.finished(stage.position)
        if stage.following is not None:
            stage.following.inbox.append((at + stage.handed_ns, stage.frame, stage.window))
            stage.following.unit.wake(at + stage.handed_ns)
            return
        model.done += 1
        if len(model.stages) > 1:
            model.finishing.append(at + self.beat.late_ns)
            model.stages[0].unit.wake(at + self.beat.late_ns)
        self.hand_out(model.plan, at, stage.window)

    def hand_out(self, plan: PlannedModel, at: int, window: int) -> None:
        """A model's frame is done: those that read it get it, once all that they read have done the same frame.

        Args:
            plan: of the model.
            at: absolute.
            window: in which the frame was released.
        """
        last = plan.segments[-1]
        for reader in self.readers.get(plan.name, ()):
            target = reader.stages[0].unit
            late = self.beat.late_ns if last.unit != target.name else 0
            link = self.beat.link_ns(last.unit, target.name, last.boundary_bytes)
            reader.read[plan.name].append((at + link + late, window))
            while all(reader.read.values()):
                oldest = min(reader.read.values(), key=lambda frames: frames[0][1])
                if any(frames[0][1] != oldest[0][1] for frames in reader.read.values()):
                    oldest.popleft()  # another model dropped that frame
                    continue
                there = max(frames.popleft()[0] for frames in reader.read.values())
                if reader.read_frames % reader.demand.every == 0:
                    reader.coming.append((there, window))
                    target.wake(there)
                reader.read_frames += 1


def fill(
    beat: Beat,
    models: Sequence[PlannedModel],
    free: Mapping[str, Sequence[Sequence[Span]]],
    handed_out: Sequence[Sequence[tuple[int, PlannedModel]]],
) -> Filled:
    """Windows of background slots that may repeat.

    The policy is played through at the planned quantiles. Of the repetitions within the
    horizon the one with most slots' time a window is taken; slots of frames that would be
    in flight at its end are left out. One that would launch a model more often than its
    frames arrive is none: the first frames are there at once.

    Args:
        beat: windows, guard, demands.
        models: in the order of service; priority models only as those that others read.
        free: unit -> where background segments may run in each window, until that repeats.
        handed_out: in each window, when priority models are done.
    """
    play = _Play(beat, models)
    count = len(handed_out)
    staged = any(len(model.stages) > 1 for model in play.models)
    searched = _SEARCHED_STAGED if staged else _SEARCHED_WINDOWS
    windows: list[list[Slot]] = []
    best: tuple[float, int] = (0.0, 0)
    begin = 0
    while len(windows) < searched or (not best[1] and len(windows) < MOST_WINDOWS):
        index = len(windows)
        for after, plan in handed_out[index % count]:
            play.hand_out(plan, begin + after, index)
        windows.append(play.window(index, begin, {name: spans[index % count] for name, spans in free.items()}))
        begin += beat.pattern_ns[index % len(beat.pattern_ns)]
        if len(windows) % count or not all(_lasts(beat, model, len(windows)) for model in play.models):
            continue
        complete = sum(model.done * model.plan.duration_ns for model in play.models)
        if complete / len(windows) > best[0]:
            best = (complete / len(windows), len(windows))
    return _whole(beat, play.models, windows[: best[1] or len(windows)], free)


def _lasts(beat: Beat, model: _Model, windows: int) -> bool:
    """Whether the launches so far may be repeated: there were as many frames for them."""
    demand = model.demand
    needed = model.done * demand.every * demand.frames
    if model.plan.after:
        return 0 < needed <= model.read_frames
    if demand.releases is None:
        return 0 < needed <= windows
    return 0 < needed <= windows // len(beat.pattern_ns) * len(demand.releases)


def _whole(
    beat: Beat,
    models: Sequence[_Model],
    windows: Sequence[Sequence[Slot]],
    free: Mapping[str, Sequence[Sequence[Span]]],
) -> Filled:
    """Without what would be in flight at the end."""
    lengths = {model.plan.name: sum(s.duration_ns for s in model.plan.segments) for model in models}
    launched: dict[tuple[str, int], int] = {}
    for slot in itertools.chain.from_iterable(windows):
        launched[slot.model, slot.frame] = launched.get((slot.model, slot.frame), 0) + slot.duration_ns
    kept = [[s for s in placed if launched[s.model, s.frame] == lengths[s.model]] for placed in windows]
    done = [sum(spent == lengths[name] for (name, _), spent in launched.items() if name == m.plan.name) for m in models]
    idle = beat.window_ns
    for index, placed in enumerate(kept):
        for unit, spans in free.items():
            for begin, end in spans[index % len(spans)]:
                within = [s.start_ns + s.duration_ns for s in placed if s.unit == unit and begin <= s.start_ns < end]
                idle = min(idle, end - max(within, default=begin))
    return Filled(kept, done, idle)
