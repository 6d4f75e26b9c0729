"""How much longer launches take than they were planned for."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from framefit.runtime.records.log import LaunchLog

__all__ = ["Drift"]

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
