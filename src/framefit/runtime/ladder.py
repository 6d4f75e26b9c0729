"""Timetables planned ahead, and which of them is in force: for the streams' rates, and for how long launches take.

How much longer launches take than they were planned for.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from framefit.runtime.log import LaunchLog
from framefit.runtime.switching import Rung
from framefit.runtime.windows import Windows

__all__ = ["Drift", "Ladder"]


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
        if self._recent and all(len(one) == self.recent for one in self._recent.values()):
            now = sum(_median(one) for one in self._recent.values())
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
        units: of the run, with one switcher, before it begins.
        tracks: for each set of rates, the present one first, rungs in the order of what they cover.
        drifts: what launches take on each unit; none: rungs only follow the rates.
    """

    def __init__(
        self, units: Sequence[Windows], tracks: Sequence[Sequence[Rung]], drifts: Sequence[Drift] = ()
    ) -> None:
        self._course = units[0].switcher
        self._units = units
        self._tracks = [list(track) for track in tracks]
        self._drifts = drifts
        self._patience = _PATIENCE * sum(drift.recent for drift in drifts if drift.counts)
        self._covered_since = 0  # launches of priority models
        self._watching = threading.Lock()  # each unit tells from a thread of its own
        self._course.start_under(tracks[0][0])
        self._course.expect([rung for track in self._tracks for rung in track])
        if any(len(track) > 1 for track in tracks):
            for unit, drift in zip(units, drifts, strict=False):
                unit.watch = functools.partial(self._watch, drift)

    def add(self, track: Sequence[Rung]) -> int:
        """Rungs for rates that were not known before.

        Returns:
            The first window in which they may be in force.
        """
        self._tracks.append(list(track))
        earlier = self._course.expect([rung for track in self._tracks for rung in track])
        return max(unit.windows for unit in self._units) + 2 if earlier else 0

    def turn(self, number: int, window: int, why: str) -> None:
        """Have the rates of a track from a window on, or the first one after it in which they may change.

        Args:
            number: of the track.
            window: 0: as soon as it may be.
            why: for people.
        """
        track = self._tracks[number]
        self._course.turn(lambda now: _first(track, now.covers), window, why)

    def _watch(self, drift: Drift, rows: Sequence[int]) -> None:
        """Told of launches on one unit: look whether another rung is due."""
        drift.observe(rows)
        with self._watching:
            self._look()

    def _look(self) -> None:
        """Ask for the rung that is due, if that is another one."""
        now, count = self._course.stretches[-1].rung, sum(drift.seen for drift in self._drifts)
        priority, background = zip(*(drift.ratios for drift in self._drifts), strict=True)
        seen = max(priority), max(background)
        track = next(track for track in self._tracks if now in track)
        wanted = _first(track, seen)
        if track.index(wanted) < track.index(now):
            wanted = _first(track, (seen[0] * (1 + _MARGIN), seen[1] * (1 + _MARGIN)))
        if track.index(wanted) >= track.index(now):
            self._covered_since = count
        if wanted is now or (track.index(wanted) < track.index(now) and count < self._covered_since + self._patience):
            return
        self._covered_since = count
        self._course.turn(
            lambda _: wanted, 0, f"launches take {seen[0]:.2f} x, background ones {seen[1]:.2f} x as planned"
        )


def _first(track: Sequence[Rung], ratios: tuple[float, float]) -> Rung:
    """The first rung that covers these, else the last."""
    return next((rung for rung in track if rung.covers[0] >= ratios[0] and rung.covers[1] >= ratios[1]), track[-1])
