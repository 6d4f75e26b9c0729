"""Several units and their dispatchers, event by event, knowing the plan only by durations and reserved instants."""

from __future__ import annotations

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from framefit.core.policy import Rotation
from framefit.core.timetable import PlannedModel, Segment, Timetable
from framefit.planning.beat import Beat

__all__ = ["UnitsSimulation"]


@dataclass
class Frame:
    """A launch of a model: when its newest frame was released, and where it is."""

    model: Job
    released: int
    stage: int = 0
    there: int = 0  # from when on its stage may begin


@dataclass
class Job:
    """A background model."""

    plan: PlannedModel
    frames: int
    depth: int
    refuses: bool
    every: int
    waiting: deque[int] = field(default_factory=deque)  # releases of frames
    seen: int = 0  # of the frames of models that it reads
    joined: dict[str, deque[tuple[int, int]]] = field(default_factory=dict)  # there, released
    coming: deque[tuple[int, int]] = field(default_factory=deque)
    flying: int = 0
    most_flying: int = 0
    freed: deque[int] = field(default_factory=deque)
    oldest: int = 0
    done: int = 0

    def put(self, released: int) -> None:
        if len(self.waiting) == self.depth:
            if self.refuses:
                return
            self.waiting.popleft()
        self.waiting.append(released)


@dataclass
class Turn:
    """A stage of a job on a unit."""

    job: Job
    number: int
    segments: Sequence[Segment]
    inbox: deque[Frame] = field(default_factory=deque)
    frame: Frame | None = None
    segment: int = 0
    rest: int = 0


@dataclass
class Unit:
    """A dispatcher."""

    name: str
    turns: list[Turn]
    rotation: Rotation
    at: int = 0  # when it decides next
    asleep: bool = False
    agenda: deque[tuple[int, PlannedModel, int, int]] = field(default_factory=deque)  # instant, model, stage, window


class UnitsSimulation:
    """All units, window after window.

    Args:
        beat: guard, lateness, demands, links.
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
        background = [m for m in timetable.models if m.role == "background"]
        self.jobs = {
            m.name: Job(m, d.frames, max(d.queue, d.frames), d.refuses, d.every)
            for m in background
            for d in [beat.of(m.name)]
        }
        for job in self.jobs.values():
            job.joined = {name: deque() for name in job.plan.after}
        self.there: dict[tuple[str, int, int, str], int] = {}  # priority model, window, next stage (0: readers), unit
        self.busy: dict[frozenset[str], list[tuple[int, int]]] = {}  # of each link
        self.late: list[str] = []
        ordered = _after_what_they_read(background)
        self.units = {}
        for name in timetable.units:
            turns = [
                Turn(self.jobs[m.name], number, stage)
                for m in ordered
                for number, stage in enumerate(m.stages)
                if stage[0].unit == name
            ]
            rotation = Rotation(len(turns), [turn.job.plan.turns for turn in turns], yields=beat.yields)
            self.units[name] = Unit(name, turns, rotation)
        self.releases = [0]

    def run(self, windows: int) -> None:
        """Play that many windows."""
        lengths = [self.timetable.windows[n % len(self.timetable.windows)].length_ns for n in range(windows + 1)]
        self.releases = [0, *itertools.accumulate(lengths)]
        self.offsets: list[dict[str, list[int]]] = []
        for window in range(windows + 1):
            entry = self.timetable.windows[window % len(self.timetable.windows)]
            self.offsets.append({u: [p.start_ns for p in entry.priority if p.unit == u] for u in self.units})
        for window in range(windows):
            self._release(window)
            while True:
                unit = min(self.units.values(), key=lambda unit: unit.at)
                if unit.at >= self.releases[window + 1]:
                    break
                self._decide(unit, window)

    def _release(self, window: int) -> None:
        begin = self.releases[window]
        for job in self.jobs.values():
            if not job.plan.after and self.beat.released(job.plan.name, window) is not None:
                job.put(begin)
        seen: dict[str, int] = {}
        block: dict[str, tuple[int, int]] = {}  # periods that follow each other at once are due together
        for period in self.timetable.windows[window % len(self.timetable.windows)].priority:
            number = seen[period.model] = seen.get(period.model, -1) + 1
            instant, end = block.get(period.unit, (0, -1))
            instant = instant if end == period.start_ns else period.start_ns
            block[period.unit] = instant, period.end_ns
            self.units[period.unit].agenda.append((begin + instant, self.timetable.model(period.model), number, window))
        for unit in self.units.values():
            if unit.at <= begin:
                unit.at = begin + self.wakes(self.beat.late_ns)

    def _decide(self, unit: Unit, window: int) -> None:
        now, unit.asleep = unit.at, False
        if unit.agenda and unit.agenda[0][0] <= now:
            self._priority(unit, now)
            return
        following = self.offsets[window + 1][unit.name]
        reserved = unit.agenda[0][0] if unit.agenda else self.releases[window + 1]
        if not unit.agenda and self.crossing and following:
            reserved += following[0]
        self._background(unit, now, reserved, self.releases[window + 1])

    def _priority(self, unit: Unit, now: int) -> None:
        instant, model, stage, window = unit.agenda[0]
        names = [(model.name, stage)] if stage else [(name, 0) for name in model.after]
        found = [self.there.get((name, window, following, unit.name)) for name, following in names]
        if None in found:  # due together with what is reserved before: it waits for another unit
            unit.at = now + 1
            return
        there = max([instant, *(time for time in found if time is not None)])
        unit.agenda.popleft()
        segments = model.stages[stage]
        if there > now:
            now = there + self.wakes(self.beat.late_ns)
        for segment in segments:
            now += self.takes(segment.duration_ns)
        unit.at = now
        if stage < len(model.stages) - 1:
            following = model.stages[stage + 1][0].unit
            self.there[model.name, window, stage + 1, following] = self._carried(segments[-1], following, now)
            return
        readers = {m.segments[0].unit for m in self.timetable.models if m.role == "priority" and model.name in m.after}
        for name in readers:
            self.there[model.name, window, 0, name] = self._carried(segments[-1], name, now)
        begin = self.releases[window]
        deadline = self.beat.of(model.name).deadline_ns or self.releases[window + 1] - begin
        if now - begin > deadline:
            self.late.append(f"{model.name} in window {window}: {now - begin} after its release")
        self._hand_out(model, now, begin)

    def _carried(self, segment: Segment, unit: str, written: int) -> int:
        """When another unit can use what a segment wrote: the link between them carries one thing at a time."""
        link = next((one for one in self.timetable.links if set(one.between) == {segment.unit, unit}), None)
        if link is None:
            return written
        spent, begin = math.ceil(link.occupied_ns(segment.boundary_bytes)), written
        busy = self.busy.setdefault(frozenset(link.between), [])
        for first, last in sorted(busy):
            if begin + spent <= first:
                break
            begin = max(begin, last)
        if spent:
            busy.append((begin, begin + spent))
        return begin + spent + math.ceil(link.latency_ns)

    def _background(self, unit: Unit, now: int, reserved: int, release: int) -> None:
        quantiles = [self._needed(turn, now) for turn in unit.turns]
        needed = [None if ns is None else self.beat.needed_ns(ns) for ns in quantiles]
        room = 2**62 if self.beat.preemptive else reserved - now - self.beat.guard_ns
        then = functools.partial(self._then_ns, unit) if self.beat.yields else None
        chosen = unit.rotation.choose(needed, room, (release, reserved), then) if needed else None
        if chosen is None:
            wake = min([reserved, release, *self._events(unit, now)])
            unit.at, unit.asleep = max(wake + self.wakes(self.beat.late_ns), now + 1), True
            return
        turn = unit.turns[chosen]
        if turn.frame is None:
            turn.frame = self._taken(turn)
        if not turn.rest:
            turn.rest = self.takes(turn.segments[turn.segment].duration_ns)
        spent = min(turn.rest, reserved - now) if self.beat.preemptive else turn.rest
        turn.rest -= spent
        unit.at = now + spent
        assert unit.at <= reserved
        if turn.rest:
            return
        turn.segment += 1
        if turn.segment == len(turn.segments):
            self._finished(unit, chosen, now + spent)

    def _then_ns(self, unit: Unit, number: int) -> int | None:
        turn = unit.turns[number]
        left = turn.segments[turn.segment + 1 :]
        return self.beat.needed_ns(left[0].duration_ns) if left else None

    def _needed(self, turn: Turn, now: int) -> int | None:
        if turn.frame is None:
            job = turn.job
            if turn.number:
                if not turn.inbox or turn.inbox[0].there > now:
                    return None
            else:
                while job.coming and job.coming[0][0] <= now:
                    job.put(job.coming.popleft()[1])
                while job.freed and job.freed[0] <= now:
                    job.freed.popleft()
                    job.flying -= 1
                if len(job.waiting) < job.frames or job.flying == job.plan.slots:
                    return None
        return turn.segments[turn.segment].duration_ns

    def _taken(self, turn: Turn) -> Frame:
        if turn.number:
            return turn.inbox.popleft()
        job = turn.job
        job.flying += 1
        job.most_flying = max(job.most_flying, job.flying)
        return Frame(job, [job.waiting.popleft() for _ in range(job.frames)][-1])

    def _events(self, unit: Unit, now: int) -> list[int]:
        """When something that is under way will be there."""
        times = []
        for turn in unit.turns:
            times += [frame.there for frame in turn.inbox]
            if not turn.number:
                times += [there for there, _ in turn.job.coming] + list(turn.job.freed)
        return [time for time in times if time > now]

    def _finished(self, unit: Unit, chosen: int, now: int) -> None:
        turn = unit.turns[chosen]
        frame, turn.frame, turn.segment = turn.frame, None, 0
        assert frame is not None
        unit.rotation.finished(chosen)
        job = turn.job
        if turn.number < len(job.plan.stages) - 1:
            following = job.plan.stages[turn.number + 1][0].unit
            frame.there = self._carried(turn.segments[-1], following, now)
            target = self.units[following]
            next(t for t in target.turns if t.job is job and t.number == turn.number + 1).inbox.append(frame)
            self._wake(target, frame.there)
            return
        job.done += 1
        job.oldest = max(job.oldest, now - frame.released)
        job.freed.append(now)
        self._wake(self.units[job.plan.segments[0].unit], now)
        self._hand_out(job.plan, now, frame.released)

    def _wake(self, unit: Unit, at: int) -> None:
        """A dispatcher that sleeps beyond an instant is woken up; one that is at work goes on."""
        if unit.asleep and unit.at > at + self.beat.late_ns:
            unit.at = at + self.wakes(self.beat.late_ns)

    def _hand_out(self, plan: PlannedModel, now: int, released: int) -> None:
        last = plan.segments[-1]
        for job in self.jobs.values():
            if plan.name not in job.joined:
                continue
            unit = self.units[job.plan.segments[0].unit]
            there = self._carried(last, unit.name, now)
            job.joined[plan.name].append((there, released))
            while all(job.joined.values()):
                heads = {name: frames[0][1] for name, frames in job.joined.items()}
                if len(set(heads.values())) > 1:  # one of them dropped a frame
                    job.joined[min(heads, key=heads.__getitem__)].popleft()
                    continue
                at = max(frames.popleft()[0] for frames in job.joined.values())
                if job.seen % job.every == 0:
                    job.coming.append((at, next(iter(heads.values()))))
                    self._wake(unit, at)
                job.seen += 1


def _after_what_they_read(models: Sequence[PlannedModel]) -> list[PlannedModel]:
    placed: list[PlannedModel] = []
    while len(placed) < len(models):
        names = {m.name for m in placed}
        all_names = {m.name for m in models}
        placed.append(
            next(m for m in models if m not in placed and all(a in names or a not in all_names for a in m.after))
        )
    return placed
