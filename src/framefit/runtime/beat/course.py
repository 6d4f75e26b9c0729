"""Which timetable is in force from which window on, the same for all units of a run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

from framefit.runtime.beat.rungs import Rung, Stretch, Turn

__all__ = ["Course"]


class Course:
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
        self._turning: list[Turn] = []  # in the order of their windows
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
            self._turning.append(Turn(window, to, why))
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
        for stretch in reversed(self.stretches):
            if stretch.window <= window:
                return stretch
        return self.stretches[0]

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
