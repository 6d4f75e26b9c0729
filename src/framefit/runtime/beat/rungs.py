"""The timetable in force: what a run follows, and how it changes at a window boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framefit.core.grid import Grid
from framefit.runtime.frames.streams import Feed
from framefit.runtime.models.job import Job, Part

__all__ = ["Rung", "Served", "Share", "Stretch", "Turn", "bringing", "served"]

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
class Turn:
    """That another timetable is to be in force.

    Attributes:
        window: from which on, at the earliest.
        to: what then follows the one in force; that one itself: nothing changes.
        why: what for.
    """

    window: int
    to: Callable[[Rung], Rung]
    why: str


def served(jobs: Sequence[Job]) -> Served:
    """Each feed with the jobs that it serves."""
    found: dict[int, tuple[Feed, list[tuple[int, Job]]]] = {}
    for index, job in enumerate(jobs):
        if job.reads_streams:
            found.setdefault(id(job.feed), (job.feed, []))[1].append((index, job))
    return list(found.values())


def bringing(feeds: Served, grid: Grid) -> list[Served]:
    """For each window of the grid's pattern the feeds of which it brings a frame."""
    return [
        [entry for entry in feeds if not entry[0].streams or place in grid.places(min(entry[0].streams))]
        for place in range(len(grid.offsets_ns))
    ]
