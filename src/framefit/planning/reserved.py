"""Priority periods: where they lie in each window, when they end at worst, and what they leave free.

Where all windows are alike, each holds the periods of the models that are due in it, one after the other on each unit,
as soon as what they read is there: all of them are released at once, so none has to wait for another's release.

Where streams have different rates, a long model that begins may make the next frame of another stream late, for a
launch cannot be interrupted. There the launches are laid out by earliest deadline with look-ahead: a unit stays idle,
or runs a shorter model, where what has the earliest deadline would make something late that is released while it runs
(clairvoyant EDF: Ekelin, 2006, "Clairvoyant Non-Preemptive EDF Scheduling", ECRTS). Ties are broken by level and name,
never by the order of the file. It finds most of what is feasible, not all: :mod:`priority_search` asks a solver where
this fails, and what that has found is the beat's layout.

A period belongs to the window in which its frame is released; it may begin, and end, after that window.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from framefit.core.spacing import own_frame
from framefit.core.timetable import PlannedModel, PriorityPeriod, Segment, in_order
from framefit.planning.ages import Spans
from framefit.planning.beat import Beat, Layout, Span
from framefit.planning.sporadic import events_ns, longest_blocking_ns

_REPEATED = 3  # times that the windows are played through where a frame is in flight at their end


@dataclass(frozen=True)
class Reserved:
    """What priority models reserve.

    Attributes:
        beat: that it was laid out for.
        windows: periods of each window, by begin.
        done_ns: when each of them ends at worst, after its window's release.
        free_ns: when its unit can begin something else at worst.
        settled: no more is carried over from one repetition to the next.
    """

    beat: Beat
    windows: list[list[PriorityPeriod]]
    done_ns: list[list[int]]
    free_ns: list[list[int]]
    settled: bool = True

    @functools.cached_property
    def lengths_ns(self) -> list[int]:
        """Of the windows."""
        return [length for _, length in zip(self.windows, itertools.cycle(self.beat.pattern_ns), strict=False)]

    @functools.cached_property
    def slack_ns(self) -> int:
        """The least from the latest end of a period to its deadline."""
        slack = self.beat.window_ns
        for periods, ends, length in zip(self.windows, self.done_ns, self.lengths_ns, strict=True):
            for period, end in zip(periods, ends, strict=True):
                slack = min(slack, (self.beat.of(period.model).deadline_ns or length) - end)
        return slack

    def free_windows(self, unit: str) -> list[list[Span]]:
        """Where background segments may run in each window on one unit: begin, and latest end.

        A window that does not begin with a priority period wakes up as late as one that does. After a period
        it is as late as priority models may be that take longer than their quantiles: else a segment that fits
        exactly would wait for a window in which they do not.
        """
        guard_ns, windows = self.beat.guard_ns, list[list[Span]]()
        for length, busy in zip(self.lengths_ns, self._busy(unit), strict=True):
            now, spans = 0 if busy and busy[0][0] == 0 else self.beat.late_ns, []
            for start, end in [*busy, (length, length)]:
                if min(start, length) - guard_ns > now:
                    spans.append((now, min(start, length) - guard_ns))
                now = max(now, end)
            windows.append(spans)
        return windows

    def spans(self, unit: str) -> Spans:
        """The same, as bounds on waits and ages take it; without what sporadic models may take of it."""
        crossing = any(periods[0].start_ns > 0 for periods in self._on(unit) if periods)
        return Spans(
            self.beat.window_ns,
            self.free_windows(unit),
            preemptive=self.beat.preemptive,
            crossing=self.beat.position != "start" or crossing,
            lengths_ns=() if self.beat.even else tuple(self.lengths_ns),
            excess_ratio=self.beat.excess_ratio,
            guard_ns=self.beat.guard_ns,
            yields=self.beat.yields,
        )

    def _on(self, unit: str) -> list[list[PriorityPeriod]]:
        return [[period for period in periods if period.unit == unit] for periods in self.windows]

    def taken_ns(self, unit: str) -> list[int]:
        """How much of each window's time on a unit is reserved."""
        sums = [0] * len(self.windows)
        for window, periods in enumerate(self.windows):
            for period in periods:
                if period.unit != unit:
                    continue
                start, end, at = period.start_ns, period.end_ns, window
                while end > 0:
                    length = self.lengths_ns[at] if not self.beat.even else end
                    sums[at] += max(min(end, length) - min(max(start, 0), length), 0)
                    start, end, at = start - length, end - length, (at + 1) % len(self.windows)
        return sums if self.beat.even else [min(ns, n) for ns, n in zip(sums, self.lengths_ns, strict=True)]

    def _busy(self, unit: str) -> list[list[tuple[int, int]]]:
        """Of each window: from when until when, at worst, its unit is with priority models; cut at its release."""
        windows: list[list[tuple[int, int]]] = [[] for _ in self.windows]
        for window, (periods, ends) in enumerate(zip(self.windows, self.free_ns, strict=True)):
            for period, worst in zip(periods, ends, strict=True):
                if period.unit != unit:
                    continue
                start, end, at = period.start_ns, worst, window
                while True:
                    length = self.lengths_ns[at]
                    if start < length or self.beat.even:
                        windows[at].append((max(start, 0), end))
                    start, end, at = start - length, end - length, (at + 1) % len(self.windows)
                    if end <= 0 or self.beat.even:
                        break
        return [sorted(busy) for busy in windows]


def reserve(beat: Beat, priority: Sequence[PlannedModel]) -> Reserved:
    """The priority periods of each window, until they repeat.

    Args:
        beat: windows, position, lateness, demands, links, layout.
        priority: models that windows are reserved for, with their segments.
    """
    several = len({segment.unit for model in priority for segment in model.segments}) > 1
    ordered = in_order(in_turn(beat, priority) if several else priority)  # on one unit the order of equals is free
    layout = beat.layout if beat.layout is not None and _matches(beat, ordered, beat.layout) else None
    if beat.even and layout is None:
        reserved = _in_windows(beat, ordered)
        if reserved.slack_ns < 0 and len({beat.of(model.name).deadline_ns for model in ordered}) > 1:
            reserved = max(reserved, _in_windows(beat, _by_deadline(beat, ordered)), key=lambda one: one.slack_ns)
        return reserved
    return _over_windows(beat, ordered, layout)


def in_turn(beat: Beat, priority: Sequence[PlannedModel]) -> list[PlannedModel]:
    """Priority models in the order in which they are laid out, whatever their order in the file.

    Args:
        beat: deadlines. Where streams have different rates all of them release at once now and then: what is due
            first comes first.
        priority: models.
    """

    def due_ns(model: PlannedModel) -> int:
        return beat.of(model.name).deadline_ns or beat.window_ns

    if beat.even:
        return sorted(priority, key=lambda model: (-model.level, due_ns(model), model.name))
    return sorted(priority, key=lambda model: (due_ns(model), -model.level, model.name))


def segment_room(beat: Beat, priority: Sequence[PlannedModel], unit: str | None = None) -> int:
    """The longest planned duration that a segment may have: it fits into every window somewhere.

    Where streams have different rates: into one of them, for some may hold no more than what is due there. Sporadic
    models may take their part of each window, and no event waits too long behind the segment, where that is possible.

    Args:
        beat: windows, guard, demands.
        priority: what is reserved.
        unit: on which; default: the one with the least room of those that priority models use.
    """
    used = list(dict.fromkeys(s.unit for m in (*priority, *beat.events) for s in m.segments))
    reserved, rooms = reserve(beat, priority), []
    for name in [unit] if unit else used or [""]:
        longest = [max((end - begin for begin, end in spans), default=0) for spans in reserved.free_windows(name)]
        rooms.append(beat.fitting_ns((min(longest) if beat.even else max(longest)) - events_ns(beat, name)))
        if not beat.preemptive and beat.events:
            most = longest_blocking_ns(beat, reserved.spans(name), name)
            rooms[-1] = rooms[-1] if most is None else min(rooms[-1], most)
    return min(rooms)


# Frames that are due ------------------------------------------------------------------------------------------------


def repetition(beat: Beat, ordered: Sequence[PlannedModel]) -> int:
    """After how many windows the priority models are due in the same ones."""
    return len(beat.pattern_ns) * math.lcm(*_repeats(beat, ordered).values())


def due_in(beat: Beat, ordered: Sequence[PlannedModel], window: int) -> list[PlannedModel]:
    """Models that have a frame in a window, each after those that it reads."""
    frames: dict[str, int | None] = {}
    for model in ordered:
        frames[model.name] = _frame(beat, model, window, frames)
    return [model for model in ordered if frames[model.name] is not None]


def _frame(beat: Beat, model: PlannedModel, window: int, frames: Mapping[str, int | None]) -> int | None:
    """Number of the frame that is due in a window; of a model that reads others, given theirs."""
    if not model.after:
        return beat.released(model.name, window)
    read = [frames.get(name) for name in model.after]
    if None in read:
        return None
    return own_frame(read[0] or 0, beat.of(model.name).every)


def _repeats(beat: Beat, ordered: Sequence[PlannedModel]) -> dict[str, int]:
    """After how many patterns of windows each model is due in the same ones."""
    repeats: dict[str, int] = {}
    for model in ordered:
        demand = beat.of(model.name)
        if model.after:
            repeats[model.name] = demand.every.numerator * math.lcm(*(repeats.get(name, 1) for name in model.after))
        else:
            releases = len(beat.pattern_ns) if demand.releases is None else max(len(demand.releases), 1)
            repeats[model.name] = math.lcm(releases, demand.every.numerator) // releases
    return repeats


# Windows that are alike ---------------------------------------------------------------------------------------------


def _in_windows(beat: Beat, ordered: Sequence[PlannedModel]) -> Reserved:
    """Each window holds what is due in it.

    A model of ``every`` n is reserved in windows 0, n, 2n, ... At the end of the window the guard stays free after the
    period, for a run longer than planned; a deadline before that moves it to the front. A stage on another unit
    begins when the tensors of the one before are there; a period that does not follow another one at once
    begins with a wake-up.
    """
    reserved = Reserved(beat, [], [], [])
    for window in range(repetition(beat, ordered)):
        periods = _laid_out(beat, due_in(beat, ordered, window))
        shift = _shift_ns(beat, periods, beat.window_ns)
        periods = [_moved(period, shift) for period in sorted(periods, key=lambda period: period.start_ns)]
        first = periods[0].start_ns if periods else 0
        taken: defaultdict[str, int] = defaultdict(int)
        free = []
        for period in periods:
            taken[period.unit] += period.end_ns - period.start_ns
            free.append(period.end_ns + math.ceil(beat.excess_ratio * taken[period.unit]))
        reserved.windows.append(periods)
        reserved.done_ns.append([p.end_ns + math.ceil(beat.excess_ratio * (p.end_ns - first)) for p in periods])
        reserved.free_ns.append(free)
    return reserved


def _by_deadline(beat: Beat, ordered: Sequence[PlannedModel]) -> list[PlannedModel]:
    """By deadline, what others read early enough for them.

    On one unit no other order has less lateness (Lawler, 1973, "Optimal sequencing of a single machine subject to
    precedence constraints").
    """
    due: dict[str, int] = {}
    for model in reversed(ordered):
        read = (due[other.name] - other.duration_ns for other in ordered if model.name in other.after)
        due[model.name] = min([beat.of(model.name).deadline_ns or beat.window_ns, *read])
    return in_order(sorted(ordered, key=lambda model: (due[model.name], -model.level)))


def _laid_out(beat: Beat, due: Sequence[PlannedModel]) -> list[PriorityPeriod]:
    """One after the other on each unit, as soon as what they read is there."""
    free: dict[str, int] = {}
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


def _shift_ns(beat: Beat, periods: Sequence[PriorityPeriod], length_ns: int) -> int:
    """How much later than as soon as possible a window's periods begin, all of which lie in it, for their position."""
    total = max((period.end_ns for period in periods), default=0)
    if beat.position == "start":
        return 0
    wanted = (length_ns - total) // 2 if beat.position == "middle" else length_ns - beat.guard_ns - total
    return min(max(wanted, 0), _in_time_ns(beat, periods, max(wanted, 0)))


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


# Windows of several rates, or a layout that was searched -------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What is launched at one instant: a stage of a model, or one of its segments.

    Attributes:
        handed_ns: from its end until the next part, on another unit, may begin.
    """

    unit: str
    work_ns: int
    handed_ns: int = 0


@dataclass(frozen=True)
class Due:
    """A frame of a priority model.

    Attributes:
        rank: of its model, for ties.
        due_ns: its deadline.
        start_by_ns: when it has to begin, for the next frame would take its place.
        sources: frames that it reads, by number, and what their last part takes to hand over.
        before: the model's frame before it, and by how many repetitions earlier; ``None``: it is not known.
    """

    model: str
    window: int
    release_ns: int
    due_ns: int
    start_by_ns: int
    parts: tuple[Part, ...]
    rank: tuple[int, str] = (0, "")
    sources: tuple[tuple[int, int], ...] = ()
    before: tuple[int, int] | None = None

    @property
    def units(self) -> int:
        """How many run it."""
        return len({part.unit for part in self.parts})


def parts_of(model: PlannedModel, cut: bool) -> list[Sequence[Segment]]:
    """What is launched of a model at one instant each."""
    return [[segment] for segment in model.segments] if cut else list(model.stages)


def _matches(beat: Beat, ordered: Sequence[PlannedModel], layout: Layout) -> bool:
    """Whether a layout is one of these models on this beat: each part of each frame once."""
    count = repetition(beat, ordered)
    wanted = [
        (model.name, window, part)
        for window in range(count)
        for model in due_in(beat, ordered, window)
        for part in range(len(parts_of(model, model.name in layout.cut)))
    ]
    return sorted(wanted) == sorted((model, window, part) for model, window, part, _ in layout.parts)


def frames_due(beat: Beat, ordered: Sequence[PlannedModel], cut: frozenset[str] = frozenset()) -> list[Due]:
    """The frames of one repetition, by release, each after those that it reads."""
    parts: dict[str, tuple[Part, ...]] = {}
    for model in ordered:
        pieces = parts_of(model, model.name in cut)
        handed = [
            beat.longest_link_ns(one[-1].unit, other[0].unit, one[-1].boundary_bytes)
            for one, other in itertools.pairwise(pieces)
        ]
        parts[model.name] = tuple(
            Part(piece[0].unit, sum(segment.duration_ns for segment in piece), ns)
            for piece, ns in zip(pieces, [*handed, 0], strict=True)
        )
    frames: list[Due] = []
    release = 0
    for window in range(repetition(beat, ordered)):
        numbers: dict[str, int] = {}
        for model in due_in(beat, ordered, window):
            demand = beat.of(model.name)
            length = beat.pattern_ns[window % len(beat.pattern_ns)]
            unit = model.segments[0].unit
            sources = []
            for name in model.after:
                if name in numbers:
                    last = next(one for one in ordered if one.name == name).segments[-1]
                    sources.append((numbers[name], beat.longest_link_ns(last.unit, unit, last.boundary_bytes)))
            numbers[model.name] = len(frames)
            frames.append(
                Due(
                    model=model.name,
                    window=window,
                    release_ns=release,
                    due_ns=release + (demand.deadline_ns or length),
                    start_by_ns=release + 2 * sum(beat.pattern_ns),
                    parts=parts[model.name],
                    rank=(-model.level, model.name),
                    sources=tuple(sources),
                )
            )
        release += beat.pattern_ns[window % len(beat.pattern_ns)]
    return _with_neighbours(beat, frames, release)


def _with_neighbours(beat: Beat, frames: Sequence[Due], total_ns: int) -> list[Due]:
    """With the frame before each, and its latest begin: it is lost when as many as may wait have come after it."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, frame in enumerate(frames):
        numbers[frame.model].append(number)
    neighbours = []
    for number, frame in enumerate(frames):
        own, place = numbers[frame.model], numbers[frame.model].index(number)
        later = place + max(beat.of(frame.model).queue, 1)
        following = frames[own[later % len(own)]].release_ns + total_ns * (later // len(own))
        neighbours.append(replace(frame, start_by_ns=following - 1, before=(own[place - 1], int(place == 0))))
    return neighbours


def _over_windows(beat: Beat, ordered: Sequence[PlannedModel], layout: Layout | None) -> Reserved:
    """As a layout says, or by earliest deadline with look-ahead."""
    frames = frames_due(beat, ordered, layout.cut if layout else frozenset())
    count, total = repetition(beat, ordered), 0
    for window in range(count):
        total += beat.pattern_ns[window % len(beat.pattern_ns)]
    if layout is None:
        sequence = earliest_deadline(tuple(frames), beat.late_ns, beat.excess_ratio)
    else:
        numbers = {(frame.model, frame.window): number for number, frame in enumerate(frames)}
        sequence = tuple((numbers[model, window], part, floor) for model, window, part, floor in layout.parts)
    return _settled(beat, frames, sequence, total, count)


Order = tuple[tuple[int, int, int], ...]  # frame, part, instant before which it waits; as units execute them


def _settled(beat: Beat, frames: Sequence[Due], sequence: Order, total_ns: int, count: int) -> Reserved:
    """Instants and latest ends of parts in an order, in the repetition after which nothing changes any more."""
    late, excess = beat.late_ns, beat.excess_ratio
    free: dict[str, int] = {}
    worst_free: dict[str, int] = {}
    repetitions: list[dict[tuple[int, int], tuple[int, int, int]]] = []
    for repeat in range(_REPEATED):
        at = repeat * total_ns
        placed: dict[tuple[int, int], tuple[int, int, int]] = {}
        for number, part, floor in sequence:
            frame, before = frames[number], frames[number].parts[part - 1]
            own = frame.parts[part]
            begin = worst = at + max(frame.release_ns, floor)
            handed = 0
            given = [(number, part - 1, before.handed_ns)] if part else []
            if not part:
                given += [(source, len(frames[source].parts) - 1, ns) for source, ns in frame.sources]
            for source, last, ns in given:
                if (source, last) in placed:
                    _, end, worst_end = placed[source, last]
                    begin, worst = max(begin, end + ns), max(worst, worst_end + ns)
                    if frames[source].parts[last].unit != own.unit:  # it may have to be woken up
                        handed = max(handed, end + ns + late)
            if not part and frame.before is not None and frame.units > 1:
                # What crosses units is there once: the frame before has to be done with it.
                last, earlier = frame.before
                known = (repetitions[-1] if repetitions else {}) if earlier else placed
                key, shift = (last, len(frame.parts) - 1), at - earlier * total_ns if earlier else 0
                if key in known:
                    _, end, worst_end = known[key]
                    begin, worst = max(begin, shift + end + 1), max(worst, shift + worst_end + 1)
            follows = free.get(own.unit, -1) >= max(begin, handed)
            begin = max(begin, free.get(own.unit, 0))
            end = begin + (0 if follows else late) + own.work_ns
            length = end - begin
            worst_end = max(worst, begin, worst_free.get(own.unit, 0)) + length + math.ceil(excess * length)
            placed[number, part] = begin, end, worst_end
            free[own.unit], worst_free[own.unit] = end, worst_end
        repetitions.append({key: (b - at, e - at, w - at) for key, (b, e, w) in placed.items()})
        rests = max([0, *worst_free.values()]) < at + total_ns
        if rests or (repeat and repetitions[-1] == repetitions[-2]):
            break
    settled = rests or repetitions[-1] == repetitions[-2]
    windows: list[list[tuple[int, int, int, str, str]]] = [[] for _ in range(count)]
    for (number, part), (begin, end, worst_end) in repetitions[-1].items():
        frame = frames[number]
        begin, end, worst_end = (ns - frame.release_ns for ns in (begin, end, worst_end))
        windows[frame.window].append((begin, end, worst_end, frame.parts[part].unit, frame.model))
    for window in windows:
        window.sort(key=lambda one: one[:3])
    if beat.position != "start" and beat.layout is None:
        windows = _positioned(beat, windows)
    ends = [[worst for _, _, worst, *_ in window] for window in windows]
    return Reserved(
        beat,
        [[PriorityPeriod(unit=u, start_ns=b, end_ns=e, model=m) for b, e, _, u, m in window] for window in windows],
        ends,
        ends,
        settled,
    )


Placed = tuple[int, int, int, str, str]  # begin, end, latest end, unit and model of a period


def _positioned(beat: Beat, windows: Sequence[Sequence[Placed]]) -> list[list[Placed]]:
    """Periods moved to where they are wanted, in windows that hold theirs and no others."""
    positions, carried_ns = [], 0
    for window, length in zip(windows, itertools.cycle(beat.pattern_ns), strict=False):
        ends = max((worst for _, _, worst, *_ in window), default=0)
        shift = 0
        if carried_ns <= 0 and ends <= length:
            periods = [PriorityPeriod(unit=u, start_ns=b, end_ns=e, model=m) for b, e, _, u, m in window]
            shift = min(_shift_ns(beat, periods, length), length - ends)
        positions.append([(b + shift, e + shift, worst + shift, u, m) for b, e, worst, u, m in window])
        carried_ns = max(carried_ns, ends) - length
    return positions


# Earliest deadline with look-ahead ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def earliest_deadline(frames: tuple[Due, ...], late_ns: int, excess: float) -> Order:
    """The order of all parts by earliest deadline with look-ahead, with the instants up to which units wait on purpose.

    Args:
        frames: of one repetition.
        late_ns: of a launch before which its unit is idle.
        excess: how much longer than planned a launch may take.
    """
    return _EarliestDeadline(frames, late_ns, excess).order()


class _EarliestDeadline:
    """Plays one repetition through: at each instant every idle unit takes what is due first, or waits."""

    def __init__(self, frames: Sequence[Due], late_ns: int, excess: float) -> None:
        self.frames, self.late_ns = frames, late_ns
        self.work = [[math.ceil((1 + excess) * part.work_ns) for part in frame.parts] for frame in frames]
        self.due: list[list[int]] = []  # when each part has to be done
        for frame, work in zip(frames, self.work, strict=True):
            ends, end = list[int](), frame.due_ns
            for part, ns in zip(reversed(frame.parts), reversed(work), strict=True):
                end -= part.handed_ns
                ends.append(end)
                end -= ns
            self.due.append(ends[::-1])
        for number in reversed(range(len(frames))):  # what others read is due before they begin
            for source, handed_ns in frames[number].sources:
                latest = self.due[number][0] - self.work[number][0] - handed_ns
                self._earlier(source, latest)
        for number, frame in enumerate(frames):
            self.due[number][0] = min(self.due[number][0], frame.start_by_ns + self.work[number][0])
        self.ready: dict[tuple[int, int], int] = {}  # parts that can begin, from when on
        self.given: dict[int, int] = defaultdict(int)  # frames that read others: when what is there already was
        self.missing = [len(frame.sources) for frame in frames]
        self.readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, frame in enumerate(frames):
            for source, handed_ns in frame.sources:
                self.readers[source].append((number, handed_ns))
            if not frame.sources:
                self.ready[number, 0] = frame.release_ns
        self.free: dict[str, int] = defaultdict(int)

    def _earlier(self, number: int, latest: int) -> None:
        """A frame is due by then: its parts, and what it reads."""
        ends = self.due[number]
        by = latest - ends[-1]
        if by < 0:
            self.due[number] = [end + by for end in ends]

    def order(self) -> Order:
        """Parts in the order of their begins."""
        begun: list[tuple[int, int, int, int]] = []  # begin, frame, part, floor
        now = min(self.ready.values(), default=0)
        while self.ready:
            waiting = list[int]()
            for unit in sorted({self.frames[n].parts[k].unit for n, k in self.ready}):
                if self.free[unit] > now:
                    waiting.append(self.free[unit])
                    continue
                chosen = self._chosen(unit, now)
                if chosen is not None:
                    number, part = chosen
                    natural = max(self.ready.pop(chosen), self.free[unit])
                    begun.append((now, number, part, now if now > natural else 0))
                    wakes = 0 if self.free[unit] == now and now > 0 else self.late_ns
                    self._done(number, part, now + wakes + self.work[number][part])
                    waiting.append(self.free[unit])
            coming = [at for at in self.ready.values() if at > now]
            later = [at for at in [*waiting, *coming] if at > now]
            if not later:
                break
            now = min(later)
        return tuple((number, part, floor) for _, number, part, floor in sorted(begun, key=lambda one: one[0]))

    def _done(self, number: int, part: int, end: int) -> None:
        """A part ends: what follows it can begin."""
        frame = self.frames[number]
        self.free[frame.parts[part].unit] = end
        if part + 1 < len(frame.parts):
            self.ready[number, part + 1] = end + frame.parts[part].handed_ns
            return
        for reader, handed_ns in self.readers[number]:
            self.missing[reader] -= 1
            self.given[reader] = max(self.given[reader], end + handed_ns)
            if not self.missing[reader]:
                self.ready[reader, 0] = max(self.given[reader], self.frames[reader].release_ns)

    def _chosen(self, unit: str, now: int) -> tuple[int, int] | None:
        """What a unit takes: what is due first, unless that makes something late that comes meanwhile."""
        here = [key for key in self.ready if self.frames[key[0]].parts[key[1]].unit == unit]
        here.sort(key=lambda key: (self.due[key[0]][key[1]], *self.frames[key[0]].rank))
        for key in here:
            if self.ready[key] <= now and not self._in_the_way(key, here, now):
                return key
        return None

    def _in_the_way(self, key: tuple[int, int], here: Sequence[tuple[int, int]], now: int) -> bool:
        """Whether something on the same unit gets late by this part, and neither does if this one is put off."""
        number, part = key
        end = (
            now
            + self.work[number][part]
            + (0 if self.free[self.frames[number].parts[part].unit] == now else self.late_ns)
        )
        rivals = [other for other in here if other != key and self.ready[other] < end]
        if not rivals or not self._late(end, rivals):
            return False
        urgent = [
            other
            for other in rivals
            if self.due[other[0]][other[1]] <= self.due[number][part] or self.ready[other] > now
        ]
        return not self._late(now, urgent, last=key)

    def _late(self, now: int, keys: Sequence[tuple[int, int]], last: tuple[int, int] | None = None) -> bool:
        """Whether one of these is late, by earliest deadline as soon as they can begin; then ``last``."""
        for number, part in [*keys, *([last] if last else [])]:
            now = max(now, self.ready[number, part]) + self.work[number][part]
            if now > self.due[number][part]:
                return True
        return False
