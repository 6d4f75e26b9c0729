"""How old a background model's result may be when it is ready: a bound that holds at run time.

The run-time policy is :class:`~framefit.core.policy.Rotation`. What follows rests
on four facts about it.

1. *Only turns delay.* Whoever is not in turn runs only where the segment of the model in
   turn does not fit any more, and ends before the next reserved instant by its quantile.
   The model in turn thus goes on at the beginning of the next free span, as it would have.
   (Where no priority period begins at the release, the run may let a segment cross it,
   which the plan does not: then the segment of the model in turn does not fit before the
   next reserved instant, and so not into the first span of the next window either.)
2. *Earlier stays earlier.* The time at which a segment is done, served at the first place
   where its quantile fits, does not decrease with the time from which it is served. So
   shorter durations, priority models that end early, segments that ran in gaps before and
   models that skip their turn only make everything earlier than the planned quantiles,
   each in full and in the order of the turns, beginning at the planned spans.
3. *One turn is one frame.* While a model has something to do, its turn ends with one of its
   frames done, and each other model has at most its turns since the model's own before. n
   frames need at most n of the model's turns in a row, with those of the others before each; of all
   n turns in a row of a round the ones that take longest count. The order is that of the turns: with
   segments that cannot be divided another order may take longer.
4. *Frames arrive at the beginnings of windows.*

5. *Who yields loses one segment a span.* Where the policy lets the model in turn yield, it has run in this span
   before, and its segment after the one that it yields would not have fitted: it comes as far as in fact 1 but for
   one segment a span, never for the only one and never for the last one of a frame. Facts 1 to 3 hold for this
   progress, too: it does not decrease with where a span finds the model.

A frame that is taken (its first segment starts) stays in flight until its model's next
turn at the latest. It was taken out of turn, with turns of the others still ahead, only
if some segment of another model is longer than its first one, or that model yielded.

How old the result of a model of several stages may be, or of one that reads other models.

The facts of :mod:`ages` on the run-time policy hold on each unit, for the stages that it
serves. What is new is that frames come to a stage at any time, and that what comes when
depends on what other units do. The bound therefore takes nothing from there but this: *from
any instant on, while a stage has frames, its n-th next frame is done within n of its turns*,
the frames of the others' turns before each of them included. That is facts 1 to 3 of
:mod:`ages`: whoever is in turn when a frame comes, and however far that turn has got, at most
the others' turns since the stage's own lie before its next one, in their order; whoever
runs out of turn uses what the one in turn cannot. :func:`longest_ns` is the greatest time
that this takes, exactly, over all instants, and the longest n turns in a row of a round count: "n rounds" below.

Let C(n, j) be the time at which frame n leaves stage j of k, and look back from it to where
the stage last had nothing to do: it has served frames m to n since, one after the other, so

    C(n, j) <= ready(m, j) + rounds(n - m + 1)  for some m <= n,

where frame m was ready for stage j > 1 when it had left stage j - 1 and crossed the link, and
for the first stage when it had arrived and one of the model's ``slots`` was free: when frame
m - slots had left stage k. (For each link, and each slot that is handed back, a unit may have
to wake up first.) The greatest over m bounds all n and j, one after the other. At an arrival
there are at most ``slots`` frames in flight, and as many launches waiting as the queue holds;
all of them may be at the very beginning. This is the longest path through a pipeline with
finite buffers (Baccelli, Cohen, Olsder and Quadrat, 1992, "Synchronization and Linearity",
section 2.3), with rounds in the place of service times.

Where the oldest frames are dropped, a frame that is taken has waited no longer than it takes
to fill its queue anew. From then on at most ``slots`` - 1 frames are before it, none of them
at the first stage.

The same path from an empty pipeline on, L(n) for n frames, tells how old results are where frames come
seldom enough: a path that begins with frame m's arrival ends with frame n at most L(n - m + 1) later, and
frame n came n - m periods after frame m at least. Its age is thus at most the greatest L(i) less i - 1
periods. Only i up to the first with L(i) of at most i periods count, for L(i + k) <= L(i) + L(k).

A model that reads others gets frames at any time, in their order, each at most as old as
their results may be: all of the above holds from that age on.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from framefit.core.spacing import apart, least_apart

_MOST_PATTERN = 16  # windows of differing room that are told apart
_MOST_ROUNDS = 32
_MOST_WINDOWS = 10_000


@dataclass(frozen=True)
class Spans:
    """Where background segments may run: (begin, latest end) by window, repeating.

    Attributes:
        preemptive: a segment may go on in the next span.
        crossing: a segment may be running at a release.
        lengths_ns: of the windows, as many as ``free`` has, where they differ.
        excess_ratio: how much longer than its quantile a segment may take, at most. It starts where that fits.
        guard_ns: behind the latest end; what a segment takes more than its quantile may reach into it.
        events_ns: what sporadic models may take of each span, besides; see :mod:`sporadic`.
        yields: the model in turn may yield its last segment in a span, but not its only one.
    """

    window_ns: int
    free: Sequence[Sequence[tuple[int, int]]]
    preemptive: bool = False
    crossing: bool = False
    lengths_ns: Sequence[int] = ()
    excess_ratio: float = 0.0
    guard_ns: int = 0
    events_ns: int = 0
    yields: bool = False

    def needed_ns(self, quantile_ns: int) -> int:
        """What a segment needs before the latest end."""
        return max(quantile_ns, math.ceil((1 + self.excess_ratio) * quantile_ns) - self.guard_ns)

    def begin_ns(self, window: int) -> int:
        """When a window begins."""
        if not self.lengths_ns:
            return window * self.window_ns
        repeat, place = divmod(window, len(self.lengths_ns))
        return repeat * self._begins[-1] + self._begins[place]

    def _at(self, time_ns: int) -> tuple[int, int]:
        """Number of the window that holds an instant, and the time since its beginning."""
        if not self.lengths_ns:
            return divmod(time_ns, self.window_ns)
        repeat, rest = divmod(time_ns, self._begins[-1])
        place = bisect_right(self._begins, rest) - 1
        return repeat * len(self.lengths_ns) + place, rest - self._begins[place]

    @functools.cached_property
    def _begins(self) -> list[int]:
        return _sums(self.lengths_ns)

    def least(self) -> Spans:
        """Each window as the one with the least room: the priority periods of the others lie within its own."""
        smallest = min(self.free, key=lambda spans: sum(end - begin for begin, end in spans))
        return dataclasses.replace(self, free=[smallest])

    def done_ns(self, begin_ns: int, work: Sequence[int]) -> int | None:
        """When segments are done, one after the other from ``begin_ns`` on.

        Args:
            begin_ns: after the beginning of window 0.
            work: sums of the quantiles: 0, the first, the first two, ...

        Returns:
            After the beginning of window 0, or ``None``: not within 10,000 windows.
        """
        return self.done_each_ns([begin_ns], work)[0]

    def done_each_ns(self, begins_ns: Iterable[int], work: Sequence[int]) -> list[int | None]:
        """The same from each of several instants on."""
        work, needed = self.needs(work)
        known: dict[tuple[int, int], tuple[int, int]] = {}
        return [self._done_ns(begin_ns, work, needed, known) for begin_ns in begins_ns]

    def needs(self, work: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """What segments take at most, and what has to be left in a span for them to start.

        Args:
            work: sums of the quantiles: 0, the first, the first two, ...

        Returns:
            Both as such sums, what was taken before included.
        """
        if not self.excess_ratio or self.preemptive:
            return work, work
        taken = [math.ceil((1 + self.excess_ratio) * total) for total in work]
        own = (after - before for before, after in itertools.pairwise(work))
        return taken, [0, *(before + self.needed_ns(quantile) for before, quantile in zip(taken, own, strict=False))]

    def _done_ns(
        self, begin_ns: int, work: Sequence[int], needed: Sequence[int], known: dict[tuple[int, int], tuple[int, int]]
    ) -> int | None:
        """When it is done.

        Args:
            begin_ns: after the beginning of window 0.
            work: what was done before each segment, and in all.
            needed: what that and the segment need.
            known: place of a window in the pattern and what is done when it begins -> windows until all is done, and
                the time in that window; from many instants on, windows begin alike.
        """
        first, now = self._at(begin_ns)
        at, whole, pattern = 0, work[-1], len(self.free)
        if whole == 0:
            return begin_ns
        passed: list[tuple[int, int]] = []
        window = first
        while window < first + _MOST_WINDOWS:
            left = known.get((window % pattern, at)) if passed else None
            if left is not None:
                window, now, at = window + left[0], left[1], whole
            else:
                passed.append((window, at))
                for begin, end in self.free[window % pattern]:
                    served = max(now, begin) + self.events_ns
                    if served >= end:
                        continue
                    now = served
                    if self.preemptive:
                        reached = min(whole, at + end - now)
                    else:
                        place = bisect_right(needed, at + end - now) - 1
                        if self.yields and 0 < place < len(work) - 1 and work[place - 1] > at:
                            place -= 1
                        reached = work[place]
                    now, at = now + reached - at, reached
                    if at == whole:
                        break
            if at == whole:
                for earlier, before in passed[1:]:  # the first one does not begin with the window
                    known[earlier % pattern, before] = window - earlier, now
                return self.begin_ns(window) + now
            window, now = window + 1, 0
        return None


def age_bound_ns(
    own: Sequence[int],
    others: Sequence[Sequence[int]],
    spans: Spans,
    *,
    queue: int,
    frames: int,
    every: Fraction | int,
    refuses: bool,
    waits: bool = False,
) -> int | None:
    """The least of three bounds on finish minus release of the newest frame that a result is made of.

    *By what may be in the queue when the frame arrives*: what is in flight then (its first
    segment is over, for it began before this window, or just running), the others' turns
    before, and a turn for each launch of the whole model that the frames up to it make, after those
    of the others. Each of its turns in a round may be the next one.

    *By when it leaves the queue*, where the oldest are dropped and the stream never waits:
    then at most ``queue`` - ``frames`` newer ones have arrived, whatever it waited for. From the end of the window
    in which it is taken on, a turn less its own first segment, after the others'.

    *By the load*: a busy time begins at a release with as many frames as the model takes;
    the n-th launch in it is done n turns later, and its newest frame arrived at least n - 1
    periods (``frames`` x ``every``) later. It is over where n turns end within n periods,
    for then too few frames have arrived to go on. This is the response time of real-time
    scheduling (Lehoczky, 1990, "Fixed priority scheduling of periodic task sets with
    arbitrary deadlines") with a turn and the others before as the execution time. Dropped frames
    only lessen n.

    All are taken over each window in which the frame may arrive or be taken.

    Args:
        own: durations of the model's segments.
        others: those of the other background models whose turns lie before each of its own in a round, since
            the one before, in order.
        spans: where they may run.
        queue: frames that may wait; ``frames`` where that is more.
        frames: taken at once.
        every: windows between frames.
        refuses: a full queue refuses the new frame; else the oldest is dropped.
        waits: frames may come in any window, ``every`` windows apart at least; else in
            windows 0, ``every``, ...

    Returns:
        ``None``: no bound within 10,000 windows.
    """
    if len(spans.free) > _MOST_PATTERN and all(spans.free):
        spans = spans.least()
    bounds = [
        _from_turn(own, [*others[first:], *others[:first]], spans, queue, frames, every, refuses=refuses, waits=waits)
        for first in range(len(others))
    ]
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _from_turn(
    own: Sequence[int],
    others: Sequence[Sequence[int]],
    spans: Spans,
    queue: int,
    frames: int,
    every: Fraction | int,
    *,
    refuses: bool,
    waits: bool,
) -> int | None:
    """The same where its next turn is the first one."""
    depth = max(queue, frames)
    longest = max((ns for turns in others for ns in turns), default=0)
    between = others[0] if longest > own[0] or spans.yields else []  # taken out of turn
    running = own[:1] if spans.crossing else []
    # Where it can be interrupted it is always in turn, and may have hardly started.
    begun = own if spans.preemptive else [*running, *between, *own[1:]]
    turns = [[*before, *own] for before in others]
    after = turns[1:] + turns[:1] if between else turns
    waiting = [ns for _, turn in zip(range(depth // frames), itertools.cycle(after), strict=False) for ns in turn]
    regular = not waits and every.denominator == 1
    arrivals = range(0, len(spans.free), math.gcd(every.numerator, len(spans.free)) if regular else 1)
    bounds = [_over(spans, arrivals, _sums([*begun, *waiting]))]
    if not (refuses or waits):  # else newer ones may be long in coming
        taken = _over(spans, range(1, len(spans.free) + 1), _sums(begun))
        older = apart(depth - frames + 1, every)  # windows from its release to the end of the one in which it is taken
        bounds.append(None if taken is None else older * spans.window_ns + taken)
    best = min((bound for bound in bounds if bound is not None), default=None)
    busy = _busy(spans, arrivals, [_sums(turn) for turn in turns], frames * every, best)
    return busy if best is None or (busy is not None and busy < best) else best


def _busy(
    spans: Spans, arrivals: range, turns: Sequence[Sequence[int]], every: Fraction | int, enough: int | None
) -> int | None:
    """Greatest response in a busy time, or ``None`` where that does not end or is above ``enough``."""
    worst = 0
    for window in arrivals:
        begin = now = window * spans.window_ns
        for number, work in zip(range(1, _MOST_ROUNDS + 1), itertools.cycle(turns), strict=False):
            done = spans.done_ns(now, work)
            if done is None:
                return None
            now = done
            worst = max(worst, now - begin - least_apart(number - 1, every) * spans.window_ns)
            if enough is not None and worst >= enough:
                return None
            if now - begin <= least_apart(number, every) * spans.window_ns:
                break
        else:
            return None
    return worst


def _over(spans: Spans, windows: range, work: Sequence[int]) -> int | None:
    """Longest time that ``work`` takes from the beginning of one of the windows."""
    begins = [window * spans.window_ns for window in windows]
    times = []
    for begin, done in zip(begins, spans.done_each_ns(begins, work), strict=True):
        if done is None:
            return None
        times.append(done - begin)
    return max(times)


def _sums(durations: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(durations, initial=0))


_MOST_INSTANTS = 4000  # that are tried, of arrival
_TRIED_PATH, _MOST_PATH = 2, 8  # frames


@dataclass(frozen=True)
class StageTurns:
    """A stage and whom it shares its unit with.

    Attributes:
        own: durations of its segments.
        others: those of the unit's other stages whose turns lie before each of its own in a round, in order.
        spans: where they may run.
        handed_ns: from the end of the stage before until a frame may begin here, wake-up included; of the first
            stage: from the end of the last one until its slot is free.
    """

    own: Sequence[int]
    others: Sequence[Sequence[int]]
    spans: Spans
    handed_ns: int = 0


def longest_ns(spans: Spans, work: Sequence[int], *, at_releases: bool = False) -> int | None:
    """The longest time that segments take, one after the other, from any instant on.

    Args:
        spans: where they may run.
        work: their durations.
        at_releases: from the beginnings of windows only.

    Returns:
        ``None``: more than 10,000 windows.

    From an instant in a span on, as many segments as fit run in it, and the others from the next span on: the later
    the instant, the less it takes, until one segment less fits. So the instants that matter are those at which a
    number of segments just does not fit any more.
    """
    sums = [0, *itertools.accumulate(work)]
    _, needed = spans.needs(sums)
    instants: list[int] = []
    conservative = False
    for window, free in enumerate(spans.free):
        start = spans.begin_ns(window)
        if at_releases:
            instants.append(start)
            continue
        for begin, end in free:
            if spans.preemptive:
                instants.append(start + max(end - spans.events_ns, begin))
            else:
                last = end - spans.events_ns + 1
                instants += [start + last - room for room in needed[1:] if last - room > begin]
    if len(instants) > _MOST_INSTANTS and not at_releases:
        conservative, instants = True, [spans.begin_ns(window + 1) for window in range(len(spans.free))]
    longest = sums[-1]
    for number, (instant, done) in enumerate(zip(instants, spans.done_each_ns(instants, sums), strict=True)):
        if done is None:
            return None
        since = spans.begin_ns(number) if conservative else instant  # no earlier one in this window is done later
        longest = max(longest, done - since)
    return longest


def staged_age_ns(
    stages: Sequence[StageTurns],
    *,
    slots: int,
    waiting: int,
    refill_ns: int | None,
    apart_ns: Callable[[int], int],
    at_releases: bool,
) -> int | None:
    """Bound on finish minus arrival of a frame that is the newest of its launch: the least of three.

    Args:
        stages: of the model, in order.
        slots: frames that may be in flight.
        waiting: launches that the queue holds, the frame's own included.
        refill_ns: time in which a full queue has dropped all frames but the newest ``frames`` - 1; ``None``: the
            queue refuses new frames, or nobody knows when they come.
        apart_ns: least time between the releases of the newest frames of launches so many apart.
        at_releases: frames come at the beginnings of windows only; else each at most some time after its release,
            to which the bound is to be added.

    Returns:
        ``None``: no bound within 10,000 windows.
    """
    rounds = [_Rounds(stage) for stage in stages]
    flow = _Flow(stages, rounds, slots, at_releases=at_releases)
    bounds = [flow.left(slots + waiting), _seldom(flow, apart_ns)]
    if refill_ns is not None:
        taken = _taken(stages, rounds, slots)
        bounds.append(None if taken is None else taken + refill_ns)
    return min((bound for bound in bounds if bound is not None), default=None)


def _seldom(flow: _Flow, apart_ns: Callable[[int], int]) -> int | None:
    """By how far apart frames come: the greatest path from an arrival less the time since."""
    oldest = before = 0
    for count in range(1, _MOST_PATH + 1):
        left = flow.left(count)
        if left is None or (count > _TRIED_PATH and left - before > apart_ns(1)):
            return None  # no end of it in sight
        before = left
        oldest = max(oldest, left - apart_ns(count - 1))
        if left <= apart_ns(count):
            return oldest
    return None


class _Rounds:
    """The longest time of so many rounds of one stage, worked out once."""

    def __init__(self, stage: StageTurns) -> None:
        self._stage = stage
        self._known: dict[tuple[int, bool], int | None] = {}

    def __call__(self, count: int, *, at_releases: bool = False) -> int | None:
        key = count, at_releases
        if key not in self._known:
            turns = [[*before, *self._stage.own] for before in self._stage.others]
            times = []
            for first in range(len(turns)):
                work = itertools.chain.from_iterable(turns[(first + n) % len(turns)] for n in range(count))
                times.append(longest_ns(self._stage.spans, list(work), at_releases=at_releases))
            known = [time for time in times if time is not None]
            self._known[key] = max(known) if len(known) == len(times) else None
        return self._known[key]


class _Flow:
    """When frames leave the last stage that are all at the very beginning at a time 0: the longest paths."""

    def __init__(
        self, stages: Sequence[StageTurns], rounds: Sequence[_Rounds], slots: int, *, at_releases: bool
    ) -> None:
        self._stages, self._rounds, self._slots, self._at_releases = stages, rounds, slots, at_releases
        self._left: list[list[int]] = [[] for _ in stages]  # stage x frame

    def left(self, count: int) -> int | None:
        """When the last of so many frames leaves."""
        while len(self._left[-1]) < count:
            number = len(self._left[-1])
            for stage in range(len(self._stages)):
                times = []
                for since in range(number + 1):
                    ready = _ready(self._stages, self._left, stage, since, self._slots)
                    from_release = self._at_releases and stage == 0 and ready == 0
                    spent = self._rounds[stage](number - since + 1, at_releases=from_release)
                    if spent is None:
                        return None
                    times.append(ready + spent)
                del self._left[stage][number:]  # of an attempt that came to nothing
                self._left[stage].append(max(times))
        return self._left[-1][count - 1]


def _ready(stages: Sequence[StageTurns], left: Sequence[Sequence[int]], stage: int, frame: int, slots: int) -> int:
    if stage > 0:
        return left[stage - 1][frame] + stages[stage].handed_ns
    if frame >= slots and len(stages) > 1:
        return left[-1][frame - slots] + stages[0].handed_ns
    return 0


def taken_age_ns(stages: Sequence[StageTurns], slots: int) -> int | None:
    """Bound on finish minus begin of a frame: from when the first stage of a replica takes it from the queue.

    Args:
        stages: of the replica, in order.
        slots: frames that it may have in flight.

    Returns:
        ``None``: no bound within 10,000 windows.
    """
    return _taken(stages, [_Rounds(stage) for stage in stages], slots)


def _taken(stages: Sequence[StageTurns], rounds: Sequence[_Rounds], slots: int) -> int | None:
    """From when the first stage begins with a frame: those before have left it."""
    first = rounds[0](1)
    if first is None:
        return None
    left = [0] * (slots - 1) + [first]
    for stage in range(1, len(stages)):
        ready = [time + stages[stage].handed_ns for time in left]
        after = []
        for number in range(slots):
            times = []
            for since in range(number + 1):
                spent = rounds[stage](number - since + 1)
                if spent is None:
                    return None
                times.append(ready[since] + spent)
            after.append(max(times))
        left = after
    return left[-1]
