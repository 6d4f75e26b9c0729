"""Which shapes of a grid to measure next: those after which the interpolation is surest of all others.

Each family of shapes has a Gaussian process (:mod:`framefit.latency.estimate`); what it does not
know after some measurements follows from its covariance alone. Of all shapes the one is taken
that lessens the variance most, summed over all shapes of the grid (Cohn, Ghahramani and Jordan,
1996, "Active Learning with Statistical Models"), several in a row without measuring between them.
After each batch the families are fitted anew: one whose left-out entries are further off than its
process says gets more of the shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from framefit.core.latency_table import LatencyEntry
from framefit.latency.calibrate import entry_work
from framefit.latency.campaign import Subject
from framefit.latency.estimate import LEAST_NOISE, Interpolation, design_covariance, family, features

__all__ = ["ShapeChoice"]


Floats = npt.NDArray[np.float64]
_MOST_SHAPES = 1000  # of a family that are weighed; of more, every so many in the order of their sizes


class ShapeChoice:
    """A grid whose shapes are measured one batch after the other.

    Args:
        subjects: all of the grid.
    """

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._strange: list[Subject] = []
        self._families: dict[bytes, list[tuple[Floats, Subject]]] = {}
        for subject in subjects:
            work = entry_work(subject.op, subject.configuration)
            if work.method in ("unknown", "view"):
                self._strange.append(subject)
            else:
                key = family(subject.op, subject.configuration, work)
                self._families.setdefault(key, []).append((features(work), subject))
        for key, members in self._families.items():
            if len(members) > _MOST_SHAPES:
                members.sort(key=lambda member: member[0].tolist())
                places = np.linspace(0, len(members) - 1, _MOST_SHAPES).round().astype(int)
                self._families[key] = [members[place] for place in places]
        self._taken: set[str] = set()

    def take(self, entries: Iterable[LatencyEntry], count: int) -> list[Subject]:
        """Shapes that were not taken yet and tell most about all of the grid.

        Args:
            entries: of one unit, measured so far.
            count: how many are wanted.

        Returns:
            At most so many, the most telling first; layers of which no size is known come before them.
        """
        chosen = [one for one in self._strange if one.key not in self._taken][:count]
        known = Interpolation(entries)
        processes = [_Process(known, key, members, self._taken) for key, members in self._families.items()]
        while len(chosen) < count and processes:
            best = max(processes, key=lambda process: process.gain)
            if best.gain <= 0:
                break
            chosen.append(best.take())
        self._taken |= {subject.key for subject in chosen}
        return chosen


class _Process:
    """What is uncertain within one family, as shapes are taken."""

    def __init__(
        self, known: Interpolation, key: bytes, members: Sequence[tuple[Floats, Subject]], taken: Collection[str]
    ) -> None:
        shapes = np.asarray([shape for shape, _ in members])
        self._subjects = [subject for _, subject in members]
        done = np.asarray([one.key in taken for one in self._subjects])
        fitted = known.fitted(key)
        self._covariance = design_covariance(shapes)
        for place in np.flatnonzero(done):
            self._learn(int(place))
        self._excess = 1.0 if fitted is None else fitted.excess
        self._open = ~done
        self._weigh()

    def take(self) -> Subject:
        """The most telling shape; it counts as measured from now on."""
        place = self._best
        self._open[place] = False
        self._learn(place)
        self._weigh()
        return self._subjects[place]

    def _learn(self, place: int) -> None:
        column = self._covariance[:, place]
        self._covariance = self._covariance - np.outer(column, column) / (column[place] + LEAST_NOISE**2)

    def _weigh(self) -> None:
        """Variance that each shape would take from all of them, were it measured."""
        gains = (self._covariance**2).sum(axis=0) / (np.maximum(np.diag(self._covariance), 0) + LEAST_NOISE**2)
        gains[~self._open] = 0
        self._best = int(np.argmax(gains))
        self.gain = self._excess**2 * float(gains[self._best])
