"""Timetables planned ahead, and which of them is in force: for the streams' rates, and for how long launches take."""

from __future__ import annotations

from collections.abc import Sequence

from framefit.runtime.beat.drift import Drift
from framefit.runtime.beat.rungs import Rung
from framefit.runtime.beat.windows import Windows

__all__ = ["Ladder"]

_MARGIN = 0.02  # a coarser rung has to cover what is seen by so much
_PATIENCE = 4  # times as many launches as are looked at, for which it has to


class Ladder:
    """Changes a run's timetable at window boundaries.

    It goes to a finer rung as soon as launches mostly take longer than the present one was planned for: to the first
    that covers them, else to the last. It goes back when a coarser one has covered them for a while, by a
    margin. For other rates it goes to the rung of these rates that covers as much as the present one.

    Args:
        run: of one unit, before it begins.
        tracks: for each set of rates, the present one first, rungs in the order of what they cover.
        drift: what launches take; ``None``: rungs only follow the rates.
    """

    def __init__(self, run: Windows, tracks: Sequence[Sequence[Rung]], drift: Drift | None = None) -> None:
        self._run = run
        self._tracks = [list(track) for track in tracks]
        self._drift = drift
        self._covered_since = 0  # launches of priority models
        run.start_under(tracks[0][0])
        if drift is not None and any(len(track) > 1 for track in tracks):
            run.watch = self._watch

    def add(self, track: Sequence[Rung]) -> None:
        """Rungs for rates that were not known before."""
        self._tracks.append(list(track))

    def turn(self, number: int, window: int, why: str) -> None:
        """Have the rates of a track from a window on, or the first one after it in which they may change.

        Args:
            number: of the track.
            window: 0: as soon as it may be.
            why: for people.
        """
        track = self._tracks[number]
        self._run.turn(lambda now: _first(track, now.covers), window, why)

    def _watch(self, rows: Sequence[int]) -> None:
        """Told of launches: look whether another rung is due."""
        drift, now = self._drift, self._run.stretches[-1].rung
        assert drift is not None
        drift.observe(rows)
        seen, patience = drift.ratios, _PATIENCE * drift.recent
        track = next(track for track in self._tracks if now in track)
        wanted = _first(track, seen)
        if track.index(wanted) < track.index(now):
            wanted = _first(track, (seen[0] * (1 + _MARGIN), seen[1] * (1 + _MARGIN)))
        if track.index(wanted) >= track.index(now):
            self._covered_since = drift.seen
        if wanted is now or (track.index(wanted) < track.index(now) and drift.seen < self._covered_since + patience):
            return
        self._covered_since = drift.seen
        self._run.turn(
            lambda _: wanted, 0, f"launches take {seen[0]:.2f} x, background ones {seen[1]:.2f} x as planned"
        )


def _first(track: Sequence[Rung], ratios: tuple[float, float]) -> Rung:
    """The first rung that covers these, else the last."""
    return next((rung for rung in track if rung.covers[0] >= ratios[0] and rung.covers[1] >= ratios[1]), track[-1])
