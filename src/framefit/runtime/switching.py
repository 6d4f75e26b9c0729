"""Which timetable is in force: how a run changes it at a window boundary, on all units at once, and when.

A :class:`TimetableSwitcher` knows what is in force from which window on, and a :class:`Ladder` asks it for another
timetable: where the rates of streams change, or where a :class:`Drift` shows that launches take longer.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from framefit.core.grid import Grid
from framefit.runtime.job import Job, Part
from framefit.runtime.log import LaunchLog
from framefit.runtime.streams import Feed

Served = list[tuple[Feed, list[tuple[int, Job]]]]  # feeds with the jobs that they serve, and their numbers


@dataclass(frozen=True)
class Share:
    """What one unit does under a timetable.

    Attributes:
        reserved: for each window of a repeating pattern, when priority jobs are due: pairs of time after the
            release and number of the job. As long as the grid's pattern, or several of them.
        guard_ns: kept free before each reserved instant.
        parts: of the unit's jobs, in their order.
        turns: of its background jobs in a round; none: as before.
    """

    reserved: Sequence[Sequence[tuple[int, int]]]
    guard_ns: int
    parts: Sequence[Part]
    turns: Sequence[int] = ()

    @property
    def first_reserved_ns(self) -> list[int]:
        """From each window's release to the first reserved instant; without one the release counts."""
        return [due[0][0] if due else 0 for due in self.reserved]


@dataclass(frozen=True, eq=False)
class Rung:
    """A timetable that can be in force, on all units at once.

    Attributes:
        grid: when windows begin.
        shares: of each unit.
        covers: how much longer than planned launches may take under it, of priority and of background models.
        name: for people.
        number: among those of the plan.
    """

    grid: Grid
    shares: Sequence[Share]
    covers: tuple[float, float] = (1.0, 1.0)
    name: str = "planned"
    number: int = 0

    def __post_init__(self) -> None:
        if len({len(share.reserved) for share in self.shares}) != 1:
            raise ValueError("all units repeat what they reserve after the same number of windows")

    @property
    def repeats(self) -> int:
        """Windows after which its reserved instants are the same again."""
        return len(self.shares[0].reserved)


@dataclass(frozen=True)
class Stretch:
    """Windows in a row under one timetable.

    Attributes:
        window: the first of them.
        origin: the window that its grid counts from, which begins at
        begins_ns: absolute.
        rung: what is in force.
        why: what it came for; "" for the first one.
    """

    window: int
    origin: int
    begins_ns: int
    rung: Rung
    why: str = ""

    def release_ns(self, window: int) -> int:
        """Absolute time at which a window begins."""
        return self.begins_ns + self.rung.grid.release_ns(window - self.origin)

    def followed_by(self, rung: Rung, window: int, why: str) -> Stretch:
        """The next one: on the same grid releases are counted on, else they begin anew with its first window."""
        if rung.grid == self.rung.grid:
            return Stretch(window, self.origin, self.begins_ns, rung, why)
        return Stretch(window, window, self.release_ns(window), rung, why)

    def may_end(self, rung: Rung, window: int) -> bool:
        """Whether another timetable may begin with a window.

        On another grid all streams and models begin anew, so it has to be one in which they all would have
        had their turn: the first of a repetition.
        """
        return rung.grid == self.rung.grid or (window - self.origin) % self.rung.repeats == 0


@dataclass(frozen=True)
class SwitchRequest:
    """That another timetable is to be in force.

    Attributes:
        window: from which on, at the earliest.
        to: what then follows the one in force; that one itself: nothing changes.
        why: what for.
    """

    window: int
    to: Callable[[Rung], Rung]
    why: str


def served(jobs: Sequence[Job], copies: Mapping[int, Feed]) -> Served:
    """Each feed, or the unit's copy of it by its identity, with the jobs that it serves."""
    feeds: dict[int, tuple[Feed, list[tuple[int, Job]]]] = {}
    for index, job in enumerate(jobs):
        if job.reads_streams:
            feed = copies.get(id(job.feed), job.feed)
            feeds.setdefault(id(feed), (feed, []))[1].append((index, job))
    return list(feeds.values())


def bringing(feeds: Served, grid: Grid) -> list[Served]:
    """For each window of the grid's pattern the feeds of which it brings a frame."""
    return [
        [entry for entry in feeds if not entry[0].streams or place in grid.places(min(entry[0].streams))]
        for place in range(len(grid.offsets_ns))
    ]


def in_force(stretches: Sequence[Stretch], window: int) -> Stretch:
    """The last stretch that has begun by a window; the first one before all of them."""
    for stretch in reversed(stretches):
        if stretch.window <= window:
            return stretch
    return stretches[0]


class TimetableSwitcher:
    """The timetables of a run, one after the other.

    Units come to their windows at times of their own: one may still be in a window when another begins the next.
    Whichever first comes to a window decides for all whether another timetable is in force from it on; what any
    of them has begun stays as it is.

    Args:
        rung: in force at first, with a share for each unit.
    """

    def __init__(self, rung: Rung) -> None:
        self.stretches = [Stretch(0, 0, 0, rung)]
        """What was in force from which window on."""
        self._shared = len(rung.shares) > 1
        self.unsettled = self._shared
        """Whether a unit has to ask what is in force when it comes to a window."""
        self.earliest_ns = _latest(rung)
        """By unit: so long after a window's release background segments may last at most, whatever is in force then."""
        self._turning: list[SwitchRequest] = []  # in the order of their windows
        self._begun = 0  # windows that some unit has begun
        self._lock = threading.Lock()

    def begin(self, start_ns: int) -> None:
        """The first window begins then."""
        if self.stretches[0].begins_ns != start_ns:  # else another unit has said so
            self.stretches = [dataclasses.replace(self.stretches[0], begins_ns=start_ns)]

    def start_under(self, rung: Rung) -> None:
        """Have this timetable in force from the first window on; before the run."""
        self.stretches = [dataclasses.replace(self.stretches[0], rung=rung)]
        self.earliest_ns = _latest(rung)

    def expect(self, rungs: Sequence[Rung]) -> bool:
        """Have no background segment last into what timetables reserve first that may come into force.

        Args:
            rungs: all of them.

        Returns:
            Whether that is earlier than before: units look two windows ahead, so that what is new must not be in
            force sooner.
        """
        before = self.earliest_ns
        self.earliest_ns = [
            min(least, *(min(share.first_reserved_ns) for share in shares))
            for least, *shares in zip(before, *(rung.shares for rung in rungs), strict=True)
        ]
        return self.earliest_ns != before

    def turn(self, to: Callable[[Rung], Rung], window: int = 0, why: str = "") -> None:
        """Let another timetable be in force from the first window on in which it may, not before ``window``.

        Frames in flight go on; see :meth:`Job.take_up`. Any thread may ask.

        Args:
            to: what follows the one that is in force by then.
            window: 0: as soon as it may be.
            why: for people.
        """
        with self._lock:
            self._turning.append(SwitchRequest(window, to, why))
            self._turning.sort(key=lambda turn: turn.window)
            self.unsettled = True

    def come_to(self, window: int, *, begins: bool) -> Stretch:
        """What is in force in a window that a unit comes to next.

        Args:
            window: its number.
            begins: it does so now; else the unit gets ready for it, and is to ask again.
        """
        with self._lock:
            if window < self._begun:
                return self.stretch(window)
            if self._turning:
                self._turn_over(window)
            if begins:
                self._begun = window + 1
            return self.stretches[-1]

    def is_other(self, stretch: Stretch) -> bool:
        """Whether a unit under this one may have to change before it begins its next window."""
        return bool(self._turning) or self.stretches[-1] is not stretch

    def stretch(self, window: int) -> Stretch:
        """What is in force in a window."""
        return in_force(self.stretches, window)

    def release(self, window: int) -> int:
        """Absolute time at which a window begins."""
        return self.stretch(window).release_ns(window)

    def _turn_over(self, window: int) -> None:
        """Let what was asked for by then be in force from this window on, if it may."""
        due = [turn for turn in self._turning if turn.window <= window]
        stretch = self.stretches[-1]
        rung = stretch.rung
        for turn in due:
            rung = turn.to(rung)
        if not due or not stretch.may_end(rung, window):
            return
        del self._turning[: len(due)]
        self.unsettled = self._shared or bool(self._turning)
        if rung is not stretch.rung:
            self.stretches.append(stretch.followed_by(rung, window, due[-1].why))


def _latest(rung: Rung) -> list[int]:
    """By unit, when a timetable's first reserved instant comes at the latest: then only these themselves count."""
    return [max(share.first_reserved_ns) for share in rung.shares]


class LaunchObserver(Protocol):
    """Sees a unit's launches when the unit has time for it."""

    def launches_settled(self, rows: Sequence[int]) -> None:
        """Rows of the log of launches that came since the last time, one after the other."""


LEAST_RECENT = 16
"""Launches that are looked at, at least: half of them decide, so that stalls and bursts of up to 7 do not count."""
_WIDTH = len(LaunchLog.columns)


class Drift:
    """The median of what was launched lately, over the planned quantile.

    A scale estimate: whatever slows a unit down (a lower clock, another input) multiplies durations, and the
    median of a few multiples is known better than any of their quantiles. Below 1 a launch mostly takes no longer than
    planned; that it is compared with the quantile and not with the planned median keeps noise from looking
    like drift. Background launches come in bunches: what was launched between two looks counts as one, else a
    disturbance of one window would count as often as it has launches.

    Args:
        priority_ns: program of a priority model -> planned quantile.
        background_ns: program of a background model -> planned quantile, were nothing slower.
        recent: how many launches are looked at.
    """

    def __init__(
        self, priority_ns: Mapping[int, int], background_ns: Mapping[int, int], recent: int = LEAST_RECENT
    ) -> None:
        self._planned_ns = dict(priority_ns)
        self._recent: dict[int, deque[int]] = {program: deque(maxlen=recent) for program in priority_ns}
        self._background_ns = dict(background_ns)
        self._ratios: deque[float] = deque(maxlen=recent)
        self.recent = recent
        self.counts = bool(priority_ns)
        """Whether there are launches of priority models."""
        self.seen = 0
        """Launches of priority models so far."""
        self.ratios = 0.0, 0.0
        """Of the priority models, all together, and of the background launches; 0 where too few were seen."""

    def observe(self, rows: Sequence[int]) -> None:
        """Take launches into account.

        Args:
            rows: of the log, one after the other.
        """
        planned, recent = self._background_ns, self._recent
        taken = expected = 0
        for at in range(0, len(rows), _WIDTH):
            program, took = rows[at], rows[at + LaunchLog.FINISHED] - rows[at + LaunchLog.STARTED]
            if took < 0:
                continue  # it failed
            if program in recent:
                recent[program].append(took)
                self.seen += 1
            elif program in planned:
                taken, expected = taken + took, expected + planned[program]
        if expected:
            self._ratios.append(taken / expected)
        self.ratios = self._seen_ratios()

    def _seen_ratios(self) -> tuple[float, float]:
        priority = 0.0
        if self._recent and all(len(durations) == self.recent for durations in self._recent.values()):
            now = sum(_median(durations) for durations in self._recent.values())
            priority = now / max(sum(self._planned_ns.values()), 1)
        return priority, _median(self._ratios) if len(self._ratios) == self.recent else 0.0


def _median(values: deque[int] | deque[float]) -> float:
    """The upper one of two."""
    return sorted(values)[len(values) // 2]


_MARGIN = 0.02  # a coarser rung has to cover what is seen by so much
_PATIENCE = 4  # times as many launches as are looked at, for which it has to


class Ladder:
    """Changes a run's timetable at window boundaries, of all units together.

    It goes to a finer rung as soon as launches on any unit mostly take longer than the present one was planned for:
    to the first that covers them, else to the last. It goes back when a coarser one has covered those of all units
    for a while, by a margin. For other rates it goes to the rung of these rates that covers as much as the present
    one.

    Args:
        switcher: of all units, before the run begins.
        tracks: for each set of rates, the present one first, rungs in the order of what they cover.
        drifts: what launches take on each unit; none: rungs only follow the rates.

    Attributes:
        observers: of each unit's launches; none where there is no other rung.
    """

    def __init__(
        self, switcher: TimetableSwitcher, tracks: Sequence[Sequence[Rung]], drifts: Sequence[Drift] = ()
    ) -> None:
        self._switcher = switcher
        self._tracks = [list(track) for track in tracks]
        self._drifts = drifts
        self._patience = _PATIENCE * sum(drift.recent for drift in drifts if drift.counts)
        self._covered_since = 0  # launches of priority models
        self._watching = threading.Lock()  # each unit tells from a thread of its own
        self._switcher.start_under(tracks[0][0])
        self._switcher.expect([rung for track in self._tracks for rung in track])
        climbs = any(len(track) > 1 for track in tracks)
        self.observers: list[LaunchObserver] = [_UnitDrift(self, drift) for drift in drifts] if climbs else []

    def add(self, track: Sequence[Rung], windows: int) -> int:
        """Rungs for rates that were not known before.

        Args:
            track: the rungs.
            windows: that have begun on any unit.

        Returns:
            The first window in which they may be in force.
        """
        self._tracks.append(list(track))
        earlier = self._switcher.expect([rung for track in self._tracks for rung in track])
        return windows + 2 if earlier else 0

    def turn(self, number: int, window: int, why: str) -> None:
        """Have the rates of a track from a window on, or the first one after it in which they may change.

        Args:
            number: of the track.
            window: 0: as soon as it may be.
            why: for people.
        """
        track = self._tracks[number]
        self._switcher.turn(lambda now: _first(track, now.covers), window, why)

    def observe(self, drift: Drift, rows: Sequence[int]) -> None:
        """Take launches on one unit into account, and look whether another rung is due."""
        drift.observe(rows)
        with self._watching:
            self._look()

    def _look(self) -> None:
        """Ask for the rung that is due, if that is another one."""
        now, count = self._switcher.stretches[-1].rung, sum(drift.seen for drift in self._drifts)
        priority, background = zip(*(drift.ratios for drift in self._drifts), strict=True)
        seen = max(priority), max(background)
        track = next(track for track in self._tracks if now in track)
        due = _first(track, seen)
        if track.index(due) < track.index(now):
            due = _first(track, (seen[0] * (1 + _MARGIN), seen[1] * (1 + _MARGIN)))
        if track.index(due) >= track.index(now):
            self._covered_since = count
        if due is now or (track.index(due) < track.index(now) and count < self._covered_since + self._patience):
            return
        self._covered_since = count
        self._switcher.turn(
            lambda _: due, 0, f"launches take {seen[0]:.2f} x, background ones {seen[1]:.2f} x as planned"
        )


class _UnitDrift:
    """The drift of one unit, which observes its launches for a ladder."""

    def __init__(self, ladder: Ladder, drift: Drift) -> None:
        self._ladder, self._drift = ladder, drift

    def launches_settled(self, rows: Sequence[int]) -> None:
        """See :class:`LaunchObserver`."""
        self._ladder.observe(self._drift, rows)


def _first(track: Sequence[Rung], ratios: tuple[float, float]) -> Rung:
    """The first rung that covers these, else the last."""
    return next((rung for rung in track if rung.covers[0] >= ratios[0] and rung.covers[1] >= ratios[1]), track[-1])
