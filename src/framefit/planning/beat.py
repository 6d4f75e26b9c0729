"""The windows to be filled, and how models take part in them.

What priority models reserve in each window, and what that leaves free on each unit.

Where all windows are equally long a period lies within its window. Where streams have different rates the other
stream's release may follow at once: a period may go on beyond the end of its window then, and
whatever is due next on that unit begins after it. A priority model is in time by its deadline, which is
its own stream's next release, not the next of any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from framefit.core.target import Link
from framefit.core.timetable import PlannedModel, PriorityPeriod, Segment, in_order

__all__ = ["Beat"]


@dataclass(frozen=True)
class Demand:
    """How a model takes part in the beat.

    Attributes:
        deadline_ns: after its frame's release; default: the window for priority
            models, none for background models.
        queue: frames that may wait for it.
        every: windows between its frames; where not every window is a release of its stream, releases
            between them; of a model that reads others, frames of theirs between its own.
        frames: frames that it takes at once.
        refuses: a full queue refuses the new frame instead of dropping the oldest.
        waits: a full queue, its own or another model's, makes the stream wait: its frames
            may come in any window. Their age counts from then on.
        releases: windows of the beat's pattern in which its stream releases a frame; default: all.
    """

    deadline_ns: int | None = None
    queue: int = 1
    every: int = 1
    frames: int = 1
    refuses: bool = False
    waits: bool = False
    releases: tuple[int, ...] | None = None


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
        lengths_ns: of the windows, one after the other, where they differ; they repeat.
        links: between units; where there is none, they share their memory.
        queued_ns: two units -> what their link can have to carry at once, of all models; see :meth:`shared`.
    """

    window_ns: int
    guard_ns: int
    late_ns: int = 0
    position: Literal["start", "middle", "end"] = "start"
    preemptive: bool = False
    demands: Mapping[str, Demand] = field(default_factory=dict)
    excess_ratio: float = 0.0
    lengths_ns: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()
    queued_ns: Mapping[frozenset[str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.lengths_ns and min(self.lengths_ns) != self.window_ns:
            raise ValueError(f"window_ns is the shortest of lengths_ns, is {self.window_ns}: {self.lengths_ns}")

    @property
    def pattern_ns(self) -> tuple[int, ...]:
        """Lengths of the windows until they repeat."""
        return self.lengths_ns or (self.window_ns,)

    @property
    def even(self) -> bool:
        """Whether all windows are equally long."""
        return len(set(self.pattern_ns)) == 1

    def of(self, model: str) -> Demand:
        """A model's demand."""
        return self.demands.get(model, Demand())

    def released(self, model: str, window: int) -> int | None:
        """Number of the frame that a model's stream releases for it in a window, or ``None``."""
        demand = self.of(model)
        number = window
        if demand.releases is not None:
            repeat, place = divmod(window, len(self.pattern_ns))
            if place not in demand.releases:
                return None
            number = repeat * len(demand.releases) + demand.releases.index(place)
        frame, other = divmod(number, demand.every)
        return None if other else frame

    def arriving(self, model: PlannedModel, models: Sequence[PlannedModel]) -> float:
        """Launches a window that a model has frames for, in the mean.

        Args:
            model: one of
            models: all of them.
        """
        demand = self.of(model.name)
        own = 1 / (demand.every * demand.frames)
        if model.after:
            return own * min((self.arriving(one, models) for one in models if one.name in model.after), default=1.0)
        if demand.releases is None:
            return own
        return own * len(demand.releases) / len(self.pattern_ns)

    def link_ns(self, source: str, target: str, size_bytes: int) -> int:
        """From the end of a launch until its tensors are there on another unit, over an idle link."""
        link = self._link(source, target)
        return 0 if link is None else math.ceil(link.latency_ns) + math.ceil(link.occupied_ns(size_bytes))

    def longest_link_ns(self, source: str, target: str, size_bytes: int) -> int:
        """The same over a link that has to carry all that it can have to carry first."""
        link = self._link(source, target)
        if link is None:
            return 0
        own = math.ceil(link.occupied_ns(size_bytes))
        return math.ceil(link.latency_ns) + max(self.queued_ns.get(frozenset((source, target)), 0), own)

    def _link(self, source: str, target: str) -> Link | None:
        if source == target:
            return None
        return next((link for link in self.links if set(link.between) == {source, target}), None)

    def shared(self, models: Sequence[PlannedModel]) -> Beat:
        """With what each link can have to carry at once: what crosses it, as often as it exists.

        A link carries one thing at a time, in the order in which things were written: what crosses waits for
        no more than that. Of a model that others read there are as many outputs as its slots, one at least.
        """
        queued: dict[frozenset[str], int] = {}
        units = {model.name: model.segments[-1] for model in models}
        for model in models:
            crossing = [(before, after[0].unit) for before, after in _boundaries(model)]
            crossing += [(units[name], model.segments[0].unit) for name in model.after if name in units]
            for segment, unit in crossing:
                link = self._link(segment.unit, unit)
                if link is not None:
                    pair = frozenset(link.between)
                    spent = math.ceil(link.occupied_ns(segment.boundary_bytes)) * model.slots
                    queued[pair] = queued.get(pair, 0) + spent
        return replace(self, queued_ns=queued)

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


def _boundaries(model: PlannedModel) -> list[tuple[Segment, tuple[Segment, ...]]]:
    """The last segment of each stage, and the stage that follows it."""
    return [(before[-1], after) for before, after in itertools.pairwise(model.stages)]


Span = tuple[int, int]  # begin, and latest end, after the window's release


def reserved_periods(beat: Beat, priority: Sequence[PlannedModel]) -> list[list[PriorityPeriod]]:
    """The priority periods of each window, in order, until they repeat.

    A model of ``every`` n is reserved in windows 0, n, 2n, ... At the end of the
    window the guard stays free after the period, for a run longer than planned; a deadline before
    that moves it to the front. A stage on
    another unit begins when the tensors of the one before are there; a period that does not
    follow another one at once begins with a wake-up.
    """
    ordered = in_order(priority)
    count = len(beat.pattern_ns) * math.lcm(*_repeats(beat, ordered).values())
    carried: dict[str, int] = {}
    for _ in range(1 if beat.even else 2):  # what the last window carries over is in the first one's way
        windows = []
        for index in range(count):
            frames: dict[str, int | None] = {}
            for model in ordered:
                frames[model.name] = _frame(beat, model, index, frames)
            periods = _laid_out(beat, [model for model in ordered if frames[model.name] is not None], carried)
            total = max((period.end_ns for period in periods), default=0)
            length = beat.pattern_ns[index % len(beat.pattern_ns)]
            if beat.position == "start" or carried:
                now = 0
            elif beat.position == "middle":
                now = max((length - total) // 2, 0)
            else:
                now = max(length - beat.guard_ns - total, 0)
            now = min(now, _in_time_ns(beat, periods, now))
            placed = [_moved(period, now) for period in sorted(periods, key=lambda period: period.start_ns)]
            windows.append(placed)
            if not beat.even:
                ends = dict(carried) | {period.unit: period.end_ns for period in placed}
                carried = {unit: end - length for unit, end in ends.items() if end > length}
    return windows


def _frame(beat: Beat, model: PlannedModel, window: int, frames: Mapping[str, int | None]) -> int | None:
    """Number of the frame that is due in a window; of a model that reads others, given theirs."""
    if not model.after:
        return beat.released(model.name, window)
    read = [frames.get(name) for name in model.after]
    if None in read:
        return None
    frame, other = divmod(read[0] or 0, beat.of(model.name).every)
    return None if other else frame


def _repeats(beat: Beat, ordered: Sequence[PlannedModel]) -> dict[str, int]:
    """After how many patterns of windows each model is due in the same ones."""
    found: dict[str, int] = {}
    for model in ordered:
        demand = beat.of(model.name)
        if model.after:
            found[model.name] = demand.every * math.lcm(*(found.get(name, 1) for name in model.after))
        else:
            releases = len(beat.pattern_ns) if demand.releases is None else max(len(demand.releases), 1)
            found[model.name] = math.lcm(releases, demand.every) // releases
    return found


def _laid_out(beat: Beat, due: Sequence[PlannedModel], carried: Mapping[str, int]) -> list[PriorityPeriod]:
    """One after the other on each unit, as soon as what they read is there; from 0, or what is carried over, on."""
    free = dict(carried)
    done: dict[str, tuple[Segment, int]] = {}
    periods = []
    for model in due:
        sources = [done[name] for name in model.after if name in done]
        for stage in model.stages:
            unit = stage[0].unit
            handed = [
                end + beat.longest_link_ns(s.unit, unit, s.boundary_bytes) for s, end in sources if s.unit != unit
            ]
            begin = max([free.get(unit, 0), *handed])
            # It may have to be woken up: at an instant of its own, or by what it waits for.
            wakes = beat.late_ns if begin != free.get(unit) or max(handed, default=0) + beat.late_ns > begin else 0
            end = begin + wakes + sum(segment.duration_ns for segment in stage)
            periods.append(PriorityPeriod(unit=unit, start_ns=begin, end_ns=end, model=model.name))
            free[unit] = end
            sources = [(stage[-1], end)]
        done[model.name] = sources[0]
    return periods


def _in_time_ns(beat: Beat, periods: Sequence[PriorityPeriod], latest_ns: int) -> int:
    """When they may begin at the latest, for each model's deadline to hold; 0 where none would do."""
    first = min((period.start_ns for period in periods), default=0)
    for period in periods:
        deadline = beat.of(period.model).deadline_ns
        if deadline is not None:
            excess = math.ceil(beat.excess_ratio * (period.end_ns - first))
            latest_ns = min(latest_ns, deadline - period.end_ns - excess)
    return max(latest_ns, 0)


def _moved(period: PriorityPeriod, by_ns: int) -> PriorityPeriod:
    if by_ns == 0:
        return period
    return PriorityPeriod(
        unit=period.unit, start_ns=period.start_ns + by_ns, end_ns=period.end_ns + by_ns, model=period.model
    )


def carried_over(beat: Beat, reserved: Sequence[Sequence[PriorityPeriod]], unit: str) -> list[tuple[int, int]]:
    """What earlier windows' periods still take in each window of a unit.

    Args:
        beat: lengths, excess.
        reserved: periods of each window.
        unit: name.

    Returns:
        For each window until when, at worst, and how much of what is planned may take longer by then; a period
        that takes longer than its quantile is carried over further.
    """
    until_ns = taken_ns = 0
    for _ in range(1 if beat.even else 2):
        found = []
        for periods, length in zip(reserved, itertools.cycle(beat.pattern_ns), strict=False):
            found.append((until_ns, taken_ns))
            ends = [until_ns]
            for period in periods:
                if period.unit == unit:
                    taken_ns += period.end_ns - period.start_ns
                    ends.append(period.end_ns + math.ceil(beat.excess_ratio * taken_ns))
            until_ns = 0 if beat.even else max(max(ends) - length, 0)
            taken_ns = taken_ns if until_ns else 0
    return found


def settled(beat: Beat, reserved: Sequence[Sequence[PriorityPeriod]], unit: str) -> bool:
    """Whether no more is carried over from repetition to repetition."""
    first = carried_over(beat, reserved, unit)[0]
    return first == carried_over(beat, [*reserved, *reserved], unit)[len(reserved)]


def taken_ns(beat: Beat, reserved: Sequence[Sequence[PriorityPeriod]], unit: str) -> list[int]:
    """How much of each window's time on a unit is reserved.

    Args:
        beat: lengths.
        reserved: periods of each window.
        unit: name.
    """
    rest = 0
    for _ in range(1 if beat.even else 2):
        found = []
        for periods, length in zip(reserved, itertools.cycle(beat.pattern_ns), strict=False):
            own = [period for period in periods if period.unit == unit]
            if beat.even:
                found.append(sum(period.end_ns - period.start_ns for period in own))
                continue
            here = sum(min(period.end_ns, length) - min(period.start_ns, length) for period in own)
            found.append(min(rest, length) + here)
            rest = max(rest - length, *(period.end_ns - length for period in own), 0)
    return found


def free_windows(beat: Beat, reserved: Sequence[Sequence[PriorityPeriod]], unit: str) -> list[list[Span]]:
    """Where background segments may run in each window on one unit: begin, and latest end.

    A window that does not begin with a priority period wakes up as late as one that does. After
    a period it is as late as priority models may be that take longer than their quantiles: else a segment that
    fits exactly would wait for a window in which they do not.

    Args:
        beat: guard, lateness, excess.
        reserved: periods of each window.
        unit: name.
    """
    windows = []
    lengths = itertools.cycle(beat.pattern_ns)
    for periods, length, (until_ns, taken) in zip(reserved, lengths, carried_over(beat, reserved, unit), strict=False):
        own = [period for period in periods if period.unit == unit]
        awake = until_ns or (0 if own and own[0].start_ns == 0 else beat.late_ns)
        edges = [awake]
        for period in own:
            taken += period.end_ns - period.start_ns
            edges += [period.start_ns, period.end_ns + math.ceil(beat.excess_ratio * taken)]
        edges.append(length)
        spans = [(begin, end - beat.guard_ns) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
        windows.append([(begin, end) for begin, end in spans if end > begin])
    return windows


def segment_room(beat: Beat, priority: Sequence[PlannedModel], unit: str | None = None) -> int:
    """The longest planned duration that a segment may have: it fits into every window somewhere.

    Where windows differ in length: into one of them, for some may hold no more than what is due there.

    Args:
        beat: windows, guard, demands.
        priority: what is reserved.
        unit: on which; default: the one with the least room of those that priority models use.
    """
    used = list(dict.fromkeys(s.unit for m in priority for s in m.segments))
    units = [unit] if unit else used or [""]
    reserved = reserved_periods(beat, priority)
    rooms = []
    for name in units:
        longest = [
            max((end - begin for begin, end in spans), default=0) for spans in free_windows(beat, reserved, name)
        ]
        rooms.append(min(longest) if beat.even else max(longest))
    return min(rooms)
