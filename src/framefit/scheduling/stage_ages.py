"""How old the result of a model of several stages may be, or of one that reads other models.

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

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framefit.scheduling.ages import Spans

__all__ = ["StageTurns", "longest_ns", "staged_age_ns"]

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
    instants: list[int] = []
    conservative = False
    for window, free in enumerate(spans.free):
        start = spans.begin_ns(window)
        if at_releases:
            instants.append(start)
            continue
        for begin, end in free:
            if spans.preemptive:
                instants.append(start + end)
            else:
                instants += [start + end - done + 1 for done in sums[1:] if end - done + 1 > begin]
    if len(instants) > _MOST_INSTANTS and not at_releases:
        conservative, instants = True, [spans.begin_ns(window + 1) for window in range(len(spans.free))]
    longest = sums[-1]
    for number, instant in enumerate(instants):
        done = spans.done_ns(instant, sums)
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
    found = [flow.left(slots + waiting), _seldom(flow, apart_ns)]
    if refill_ns is not None:
        taken = _taken(stages, rounds, slots)
        found.append(None if taken is None else taken + refill_ns)
    return min((bound for bound in found if bound is not None), default=None)


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
