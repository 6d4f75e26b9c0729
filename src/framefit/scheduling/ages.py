"""How old a background model's result may be when it is ready: a bound that holds at run time.

The run-time policy is :class:`~framefit.scheduling.service.Rotation`. What follows rests
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

A frame that is taken (its first segment starts) stays in flight until its model's next
turn at the latest. It was taken out of turn, with turns of the others still ahead, only
if some segment of another model is longer than its first one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Spans", "age_bound_ns"]

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
        excess_ratio: how much longer than its quantile a segment may take, at most. Whether it starts is
            still decided by its quantile: what it takes more is the guard's.
    """

    window_ns: int
    free: Sequence[Sequence[tuple[int, int]]]
    preemptive: bool = False
    crossing: bool = False
    lengths_ns: Sequence[int] = ()
    excess_ratio: float = 0.0

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
        first, now = self._at(begin_ns)
        done, at = 0, 0  # segments, and of ``work``
        if work[-1] == 0:
            return begin_ns
        needed = work
        if self.excess_ratio and not self.preemptive:
            quantiles, work = work, [math.ceil((1 + self.excess_ratio) * total) for total in work]
            own = (after - before for before, after in itertools.pairwise(quantiles))
            needed = [0, *(before + quantile for before, quantile in zip(work, own, strict=False))]
        for window in range(first, first + _MOST_WINDOWS):
            for begin, end in self.free[window % len(self.free)]:
                now = max(now, begin)
                if now >= end:
                    continue
                if self.preemptive:
                    reached = min(work[-1], at + end - now)
                else:
                    done = bisect_right(needed, at + end - now) - 1
                    reached = work[done]
                now, at = now + reached - at, reached
                if at == work[-1]:
                    return self.begin_ns(window) + now
            now = 0
        return None


def age_bound_ns(
    own: Sequence[int],
    others: Sequence[Sequence[int]],
    spans: Spans,
    *,
    queue: int,
    frames: int,
    every: int,
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
    every: int,
    *,
    refuses: bool,
    waits: bool,
) -> int | None:
    """The same where its next turn is the first one."""
    depth = max(queue, frames)
    longest = max((ns for turns in others for ns in turns), default=0)
    between = others[0] if longest > own[0] else []  # taken out of turn
    running = own[:1] if spans.crossing else []
    # Where it can be interrupted it is always in turn, and may have hardly started.
    begun = own if spans.preemptive else [*running, *between, *own[1:]]
    turns = [[*before, *own] for before in others]
    after = turns[1:] + turns[:1] if between else turns
    waiting = [ns for _, turn in zip(range(depth // frames), itertools.cycle(after), strict=False) for ns in turn]
    arrivals = range(0, len(spans.free), 1 if waits else math.gcd(every, len(spans.free)))
    found = [_over(spans, arrivals, _sums([*begun, *waiting]))]
    if not (refuses or waits):  # else newer ones may be long in coming
        taken = _over(spans, range(1, len(spans.free) + 1), _sums(begun))
        older = (depth - frames + 1) * every  # windows from its release to the end of the one in which it is taken
        found.append(None if taken is None else older * spans.window_ns + taken)
    best = min((bound for bound in found if bound is not None), default=None)
    busy = _busy(spans, arrivals, [_sums(turn) for turn in turns], frames * every * spans.window_ns, best)
    return busy if best is None or (busy is not None and busy < best) else best


def _busy(
    spans: Spans, arrivals: range, turns: Sequence[Sequence[int]], period_ns: int, enough: int | None
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
            worst = max(worst, now - begin - (number - 1) * period_ns)
            if enough is not None and worst >= enough:
                return None
            if now - begin <= number * period_ns:
                break
        else:
            return None
    return worst


def _over(spans: Spans, windows: range, work: Sequence[int]) -> int | None:
    """Longest time that ``work`` takes from the beginning of one of the windows."""
    times = []
    for window in windows:
        done = spans.done_ns(window * spans.window_ns, work)
        if done is None:
            return None
        times.append(done - window * spans.window_ns)
    return max(times)


def _sums(durations: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(durations, initial=0))
