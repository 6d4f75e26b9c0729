"""The service policy played over the free spans of windows: what a run would do, were durations as given.

Each unit serves the stages of background models on it in turns (:class:`~framefit.core.policy.Rotation`) and knows
nothing of the others but what they hand on. A stage may start a frame when it has arrived there, a first stage
when besides one of the model's slots is free.

Residuals are filled by playing it at planned quantiles (:func:`fill`); plans also play it at medians
(:func:`served_launches`, :func:`median_rates`). The run's own code on given durations, which tests and benchmarks
compare with this, is ``tests/timed_runs.py``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from framefit.core.policy import Rotation
from framefit.core.spacing import apart, own_frame
from framefit.core.timetable import PlannedModel, PriorityPeriod, Slot, in_order
from framefit.planning.beat import Beat, Demand, Span
from framefit.planning.reserved import reserve

MOST_WINDOWS = 10_000
_SEARCHED_WINDOWS = 64  # a longer hyperperiod gains less than 1/64 of a round
_VARIED, _MOST_SIGMA = 61, 2.326  # frames after which durations repeat; the 99th percentile
_SEARCHED_STAGED = 128  # frames in flight at its end are lost to it, several of each model
_NEVER = 1 << 62


@dataclass(slots=True)
class _Stage:
    """A run of segments of one model on one unit."""

    model: PlayedModel
    replica: _Replica
    unit: _Unit
    needed_ns: Sequence[int]  # of each segment, to be started
    taken_ns: Sequence[Sequence[int]]  # by it, for one frame after the other, in turn
    turns: int  # in a round of the unit
    first_segment: int
    position: int  # in the unit's rotation
    handed_ns: int = 0  # to the next stage
    following: _Stage | None = None
    segment: int = 0
    rest_ns: int = 0  # of a segment that was interrupted
    frame: int = 0
    window: int = 0  # in which its newest frame was released
    inbox: deque[tuple[int, int, int]] = field(default_factory=deque)  # from when on, frame, window
    used_ns: int = 0  # by its launches so far

    @property
    def busy(self) -> bool:
        return self.segment > 0 or self.rest_ns > 0


@dataclass(slots=True)
class _Replica:
    """A replica of a model, and its frames in flight."""

    slots: int
    usual_ns: int  # that its launches take for a frame
    stages: list[_Stage] = field(default_factory=list)
    finishing: deque[int] = field(default_factory=deque)  # times, where it has several stages
    in_flight: int = 0

    def has_slot(self, now: int) -> bool:
        """Whether another frame may begin."""
        while self.finishing and self.finishing[0] <= now:
            self.finishing.popleft()
            self.in_flight -= 1
        return self.in_flight < self.slots


@dataclass(slots=True)
class PlayedModel:
    """Frames of a model, by the window in which they were released: those that wait, and those in flight."""

    plan: PlannedModel
    demand: Demand
    stages: list[_Stage] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    coming: deque[tuple[int, int]] = field(default_factory=deque)  # from when on, window; of a model that reads others
    read: dict[str, deque[tuple[int, int]]] = field(default_factory=dict)  # the same, of the models that it reads
    read_frames: int = 0
    taken: int = 0
    done: int = 0
    always: bool = field(init=False)  # whether each window releases a frame

    def __post_init__(self) -> None:
        self.always = self.demand.releases is None and self.demand.every == 1

    def arrive(self, window: int) -> None:
        """A frame is there; where the queue is full it is refused, or the oldest is dropped."""
        if len(self.waiting) == max(self.demand.queue, self.demand.frames):
            if self.demand.refuses:
                return
            self.waiting.popleft()
        self.waiting.append(window)

    def may_start(self, now: int) -> bool:
        """Whether frames wait for a first stage."""
        while self.coming and self.coming[0][0] <= now:
            self.arrive(self.coming.popleft()[1])
        return len(self.waiting) >= self.demand.frames


@dataclass(slots=True)
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
        ended = None
        for span in self.spans:
            if now < span[1]:
                return ended if ended is not None and now < span[0] else span
            if ended is None and now == span[1]:
                ended = span
        return ended

    def then_ns(self, number: int) -> int | None:
        """What the segment after a stage's next one needs, if that does not end its frame."""
        stage = self.stages[number]
        return None if stage.segment + 1 == len(stage.needed_ns) else stage.needed_ns[stage.segment + 1]

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
            model, replica = stage.model, stage.replica
            first = stage is replica.stages[0]
            if first and model.coming and model.coming[0][0] > now:
                self.wake(model.coming[0][0])
            if first and replica.finishing and replica.finishing[0] > now:
                self.wake(replica.finishing[0])
            if stage.inbox and stage.inbox[0][0] > now:
                self.wake(stage.inbox[0][0])


class Playback:
    """The background models on their units, window after window.

    Args:
        beat: lengths, guard, links, demands.
        models: in the order of service; priority models only as those that others read.
        taken_ns: model -> for one of its frames after the other, in turn, what each segment takes; default: what
            it is planned for.
    """

    def __init__(
        self,
        beat: Beat,
        models: Sequence[PlannedModel],
        taken_ns: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> None:
        self.beat = beat
        self._taken = taken_ns or {}
        background = [model for model in models if model.role == "background"]
        self.models = [PlayedModel(model, beat.of(model.name)) for model in background]
        self._released = [model for model in self.models if not model.plan.after]
        self.units = {s.unit: _Unit(s.unit) for model in background for s in model.segments}
        self._units = list(self.units.values())
        for model in self.models:
            self._stage(model)
        self._stages = [stage for model in self.models for stage in model.stages]
        self._handing_on = any(m.plan.after or len(m.stages) > len(m.plan.replicas) for m in self.models)
        for unit in self.units.values():
            unit.rotation = Rotation(len(unit.stages), [stage.turns for stage in unit.stages], yields=beat.yields)
        self.readers: dict[str, list[PlayedModel]] = {}
        for model in self.models:
            for name in model.plan.after:
                model.read[name] = deque()
                self.readers.setdefault(name, []).append(model)

    def _stage(self, model: PlayedModel) -> None:
        first = 0
        replicas = [
            _Replica(model.plan.slots, sum(s.median_ns if self._taken else s.duration_ns for s in replica.segments))
            for replica in model.plan.replicas
        ]
        for run, turns in zip(model.plan.stages, model.plan.stage_turns, strict=True):
            replica = replicas[run[0].replica]
            unit = self.units[run[0].unit]
            needed = [self.beat.needed_ns(s.duration_ns) for s in run]
            end = first + len(run)
            taken = [frame[first:end] for frame in self._taken.get(model.plan.name, ())] or [
                [s.duration_ns for s in run]
            ]
            stage = _Stage(model, replica, unit, needed, taken, turns, first, len(unit.stages))
            unit.stages.append(stage)
            if replica.stages:
                before = replica.stages[-1]
                size = model.plan.segments[first - 1].boundary_bytes
                before.following = stage
                before.handed_ns = self.beat.link_ns(before.unit.name, unit.name, size) + self.beat.late_ns
            replica.stages.append(stage)
            model.stages.append(stage)
            first = end

    def window(
        self, index: int, begin: int, free: Mapping[str, Sequence[Span]], placed: list[Slot] | None = None
    ) -> None:
        """Play one window.

        Args:
            index: of the window.
            begin: its release, absolute.
            free: unit -> spans after the release.
            placed: receives the launches.
        """
        for model in self._released:
            if model.always or self.beat.released(model.plan.name, index) is not None:
                model.arrive(index)
        units = self._units
        for unit in units:
            unit.enter([(begin + start, begin + end) for start, end in free[unit.name]])
        while True:
            deciding: _Unit | None = None
            now = until = _NEVER
            for each in units:
                if each.now is not None:
                    if each.now < now:
                        deciding, now, until = each, each.now, now
                    elif each.now < until:
                        until = each.now
            if deciding is None:
                return
            self._decide(deciding, until, begin, placed)

    def state(self) -> tuple[object, ...] | None:
        """What decides, between windows, what happens next; ``None``: units or models hand on frames, at some times."""
        if self._handing_on:
            return None
        state: list[object] = [unit.rotation.place for unit in self._units]
        for stage in self._stages:
            model, count = stage.model, len(stage.taken_ns)
            frame = stage.busy and stage.frame % count
            state += len(model.waiting), model.taken % count, frame, stage.segment, stage.rest_ns
        return tuple(state)

    def _decide(self, unit: _Unit, until: int, begin: int, placed: list[Slot] | None) -> None:
        """What a unit launches before another one decides, or a frame ends; its next decision is set."""
        assert unit.now is not None
        now, rotation, stages, preemptive = unit.now, unit.rotation, unit.stages, self.beat.preemptive
        yields = rotation.yields
        end = 0  # of the present span
        while True:
            if now >= end:
                span = unit.span(now)
                if span is None or span[0] > now:
                    unit.now = None if span is None else span[0]
                    return
                end = span[1]
            chosen: int | None = rotation.turn
            stage = stages[rotation.turn]
            if stage.segment and not preemptive:  # most often, and asked for once a launch
                due: int | None = stage.needed_ns[stage.segment]
            else:
                due = self._needed(stage, now)
            if due is None or due > end - now or yields:
                within = (begin, end)
                if due is None or due > end - now or not rotation.goes_on(end - now, due, within, unit.then_ns):
                    needed = [self._needed(each, now) for each in stages]
                    chosen = rotation.choose(needed, end - now, within, unit.then_ns if yields else None)
                    if chosen is None:
                        unit.waits(now)
                        return
                    stage = stages[chosen]
            segment = stage.segment
            if not stage.rest_ns:
                if segment == 0:
                    self._take(stage)
                stage.rest_ns = stage.taken_ns[stage.frame % len(stage.taken_ns)][segment]
            length = stage.rest_ns
            if preemptive and length > end - now:
                length = end - now
            stage.rest_ns -= length
            stage.used_ns += length
            if placed is not None:
                slot = Slot(
                    unit=unit.name,
                    start_ns=now - begin,
                    duration_ns=length,
                    model=stage.model.plan.name,
                    segment=stage.first_segment + segment,
                    frame=stage.frame,
                )
                placed.append(slot)
            now += length
            unit.now = unit.free = now
            if not stage.rest_ns:
                stage.segment += 1
                if stage.segment == len(stage.needed_ns):
                    self._finished(stage, now)
                    return
            if now >= until:
                return

    def _needed(self, stage: _Stage, now: int) -> int | None:
        """Quantile of a stage's next segment, or ``None``: it has nothing to do."""
        if not (stage.segment or stage.rest_ns):
            if stage is stage.replica.stages[0]:
                if not (stage.replica.has_slot(now) and stage.model.may_start(now)):
                    return None
            elif not stage.inbox or stage.inbox[0][0] > now:
                return None
        return 1 if self.beat.preemptive else stage.needed_ns[stage.segment]

    def _take(self, stage: _Stage) -> None:
        """A stage begins a frame."""
        model, replica = stage.model, stage.replica
        if stage is not replica.stages[0]:
            _, stage.frame, stage.window = stage.inbox.popleft()
            return
        for _ in range(model.demand.frames):
            stage.window = model.waiting.popleft()
        stage.frame = model.taken
        model.taken += 1
        if len(replica.stages) > 1:
            replica.in_flight += 1

    def _finished(self, stage: _Stage, at: int) -> None:
        """A stage's frame goes on to the next one, or is done."""
        model, replica = stage.model, stage.replica
        stage.segment = 0
        stage.unit.rotation.finished(stage.position)
        if stage.following is not None:
            stage.following.inbox.append((at + stage.handed_ns, stage.frame, stage.window))
            stage.following.unit.wake(at + stage.handed_ns)
            return
        model.done += 1
        if len(replica.stages) > 1:
            replica.finishing.append(at + self.beat.late_ns)
            replica.stages[0].unit.wake(at + self.beat.late_ns)
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
                if own_frame(reader.read_frames, reader.demand.every) is not None:
                    reader.coming.append((there, window))
                    target.wake(there)
                reader.read_frames += 1


def served_launches(
    beat: Beat,
    models: Sequence[PlannedModel],
    span: Span,
    windows: int,
    taken_ns: Mapping[str, Sequence[Sequence[int]]],
) -> list[int]:
    """How often each model is done when one unit has the same free span in each of so many equal windows.

    Args:
        beat: of equal windows, each of which releases a frame for the models that are due.
        models: background models of one unit that read no others.
        span: begin and end after each release.
        windows: how many.
        taken_ns: see :class:`Playback`.
    """
    if not models:
        return []
    play = Playback(beat, models, taken_ns)
    free = {unit: [span] for unit in play.units}

    def one(window: int) -> None:
        play.window(window, window * beat.window_ns, free)

    return _counts(play, windows, 1, one, lambda: [model.done for model in play.models])(windows)


def _counts(
    play: Playback, windows: int, period: int, one: Callable[[int], None], counts: Callable[[], list[int]]
) -> Callable[[int], list[int]]:
    """Play until a window begins in a state in which one began before: from there on all is repeated.

    Args:
        play: from its beginning.
        windows: that are played, at most.
        period: windows after which spans and lengths repeat.
        one: plays a window.
        counts: what is counted.

    Returns:
        Number of a window, ``windows`` at most -> the counts at its begin.
    """
    period *= math.lcm(*(model.demand.every.numerator for model in play.models))
    known: list[list[int]] = []
    seen: dict[object, int] = {}
    for window in range(windows):
        known.append(counts())
        state = play.state()
        first = window if state is None else seen.setdefault((window % period, state), window)
        if first < window:
            break
        one(window)
    else:
        known.append(counts())
        return known.__getitem__

    def at(number: int) -> list[int]:
        if number <= window:
            return known[number]
        rounds, rest = divmod(number - first, window - first)
        ends = zip(known[first], known[window], known[first + rest], strict=True)
        return [rounds * (end - begin) + part for begin, end, part in ends]

    return at


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


def fill(
    beat: Beat,
    models: Sequence[PlannedModel],
    free: Mapping[str, Sequence[Sequence[Span]]],
    handed_out: Sequence[Sequence[tuple[int, PlannedModel]]],
) -> Filled:
    """Fill the residuals: windows of background slots that may repeat.

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
    play = Playback(beat, models)
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
        windows.append([])
        play.window(index, begin, {name: spans[index % count] for name, spans in free.items()}, windows[-1])
        begin += beat.pattern_ns[index % len(beat.pattern_ns)]
        if len(windows) % count or not all(_lasts(beat, model, len(windows)) for model in play.models):
            continue
        complete = sum(model.done * model.plan.duration_ns for model in play.models)
        if complete / len(windows) > best[0]:
            best = (complete / len(windows), len(windows))
    return _whole(beat, play.models, windows[: best[1] or len(windows)], free)


def median_rates(beat: Beat, models: Sequence[PlannedModel], windows: int) -> tuple[dict[str, float], dict[str, float]]:
    """What a run would do: the policy played at medians, about which launches vary as their quantiles tell.

    Args:
        beat: windows, guard, demands.
        models: all, those with replicas too.
        windows: that are played; see :func:`rates_in`.
    """
    priority = [at_medians(model) for model in models if model.role == "priority"]
    background = in_order([model for model in models if model.role == "background"])
    laid_out = reserve(dataclasses.replace(beat, excess_ratio=0.0), priority)
    play = Playback(beat, background, {model.name: varied_ns(model) for model in background})
    free = {unit: laid_out.free_windows(unit) for unit in play.units}
    return rates_in(play, free, delivered(priority, laid_out.windows), windows)


def rates_in(
    play: Playback,
    free: Mapping[str, Sequence[Sequence[Span]]],
    handed_out: Sequence[Sequence[tuple[int, PlannedModel]]],
    windows: int,
) -> tuple[dict[str, float], dict[str, float]]:
    """What background models get in the long run.

    Args:
        play: from its beginning.
        free: see :func:`fill`.
        handed_out: likewise.
        windows: that are played; the first quarter does not count.

    Returns:
        Launches a window of each background model, parts of launches counted; nanoseconds a window that background
        launches take of each unit.
    """
    pattern_ns = play.beat.pattern_ns
    begins = list(itertools.accumulate(pattern_ns, initial=0))
    stages = [stage for model in play.models for stage in model.stages]
    period = math.lcm(len(pattern_ns), len(handed_out), *map(len, free.values()))

    def one(index: int) -> None:
        repeat, place = divmod(index, len(pattern_ns))
        begin = repeat * begins[-1] + begins[place]
        for after, plan in handed_out[index % len(handed_out)]:
            play.hand_out(plan, begin + after, index)
        play.window(index, begin, {unit: own[index % len(own)] for unit, own in free.items()})

    used_ns = _counts(play, windows, period, one, lambda: [stage.used_ns for stage in stages])
    rates, used = dict.fromkeys((model.plan.name for model in play.models), 0.0), dict.fromkeys(play.units, 0.0)
    for stage, before, after in zip(stages, used_ns(windows // 4), used_ns(windows), strict=True):
        ns = (after - before) / (windows - windows // 4)
        rates[stage.model.plan.name] += ns / stage.replica.usual_ns
        used[stage.unit.name] += ns
    return rates, used


def at_medians(model: PlannedModel) -> PlannedModel:
    """A model that takes its medians."""
    segments = tuple(msgspec.structs.replace(s, duration_ns=s.median_ns) for s in model.segments)
    return msgspec.structs.replace(model, segments=segments)


def varied_ns(model: PlannedModel) -> list[list[int]]:
    """Durations of the segments for some frames: log-normal, the planned quantile as the 99th percentile."""
    deviation = np.random.default_rng(0).standard_normal((_VARIED, len(model.segments))).clip(-_MOST_SIGMA, _MOST_SIGMA)
    medians = np.array([max(segment.median_ns, 1) for segment in model.segments], np.float64)
    ratios = np.array([segment.duration_ns for segment in model.segments]) / medians
    varied: list[list[int]] = (medians * ratios ** (deviation / _MOST_SIGMA)).astype(np.int64).tolist()
    return varied


def delivered(
    priority: Sequence[PlannedModel], reserved: Sequence[Sequence[PriorityPeriod]]
) -> list[list[tuple[int, PlannedModel]]]:
    """When priority models are done in each window: at the end of their last period."""
    models = {model.name: model for model in priority}
    return [[(end, models[name]) for name, end in {p.model: p.end_ns for p in w}.items()] for w in reserved]


def _lasts(beat: Beat, model: PlayedModel, windows: int) -> bool:
    """Whether the launches so far may be repeated: there were as many frames for them."""
    demand = model.demand
    needed = apart(model.done * demand.frames, demand.every)
    if model.plan.after:
        return 0 < needed <= model.read_frames
    if demand.releases is None:
        return 0 < needed <= windows
    return 0 < needed <= windows // len(beat.pattern_ns) * len(demand.releases)


def _whole(
    beat: Beat,
    models: Sequence[PlayedModel],
    windows: Sequence[Sequence[Slot]],
    free: Mapping[str, Sequence[Sequence[Span]]],
) -> Filled:
    """Without what would be in flight at the end."""
    left: dict[tuple[str, int], int] = {}  # of each frame's launches
    segments = {model.plan.name: model.plan.segments for model in models}
    taken = {
        model.plan.name: [sum(s.duration_ns for s in replica.segments) for replica in model.plan.replicas]
        for model in models
    }
    for slot in itertools.chain.from_iterable(windows):
        frame = slot.model, slot.frame
        if frame not in left:
            left[frame] = taken[slot.model][segments[slot.model][slot.segment].replica]
        left[frame] -= slot.duration_ns
    kept = [[slot for slot in placed if not left[slot.model, slot.frame]] for placed in windows]
    done = [sum(name == m.plan.name and not rest for (name, _), rest in left.items()) for m in models]
    idle = beat.window_ns
    for index, placed in enumerate(kept):
        for unit, spans in free.items():
            for begin, end in spans[index % len(spans)]:
                within = [s for s in placed if s.unit == unit and begin <= s.start_ns < end]
                ends = (s.start_ns + beat.needed_ns(s.duration_ns) for s in within)
                idle = min(idle, end - max(ends, default=begin))
    return Filled(kept, done, idle)
