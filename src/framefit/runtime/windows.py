"""The windows of a unit: when they begin, which timetable is in force in them, and the frames that they bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from framefit.core.grid import Grid
from framefit.runtime.channel import Dropped
from framefit.runtime.job import Job
from framefit.runtime.log import FaultLog, FrameLog, FrameOutcome
from framefit.runtime.recovery import Failover
from framefit.runtime.streams import Arrival, Feed
from framefit.runtime.switching import Rung, Share, Stretch, TimetableSwitcher, bringing, served

__all__ = ["Windows", "share_of"]


def share_of(jobs: Sequence[Job], guard_ns: int, reserved: Sequence[Sequence[tuple[int, int]]] | None = None) -> Share:
    """What a unit does under the timetable that its jobs were made for; default: all priority jobs at the release."""
    due = reserved or [[(0, index) for index, job in enumerate(jobs) if job.priority]]
    return Share(due, guard_ns, [job.part for job in jobs])


class Windows:
    """Releases on an absolute grid, and frames that arrive with them; for whoever keeps the beat.

    Args:
        jobs: priority ones first, then background jobs in order of service.
        grid: when windows begin, and what they bring.
        guard_ns: kept free before each reserved instant.
        reserved: when priority jobs are due; default: all at every release.
        unit: its name.
        switcher: of all units, where there are several.
        place: of this unit's share of each timetable.
        faults: where faults are logged, of all units.
        failover: finds models of a unit that fails for good a place on others; ``None``: there is none.
    """

    _one_thread = True

    def __init__(
        self,
        jobs: Sequence[Job],
        grid: Grid,
        guard_ns: int,
        reserved: Sequence[Sequence[tuple[int, int]]] | None = None,
        *,
        unit: str = "",
        switcher: TimetableSwitcher | None = None,
        place: int = 0,
        faults: FaultLog | None = None,
        failover: Failover | None = None,
    ) -> None:
        self.unit = unit
        self._jobs = list(jobs)
        self._models = [index if job.model is None else job.model for index, job in enumerate(jobs)]
        self._background = [(index, job) for index, job in enumerate(jobs) if not job.priority]
        self._turns = {index: turn for turn, (index, _) in enumerate(self._background)}
        self._needed: list[int | None] = [None] * len(self._background)  # quantiles of what each would launch next
        self.switcher = switcher or TimetableSwitcher(Rung(grid, [share_of(jobs, guard_ns, reserved)]))
        """What is in force, and will be."""
        self._place = place
        self._stretch = self.switcher.stretches[0]
        self.watch: Callable[[Sequence[int]], None] | None = None
        """Told of launches when there is time: rows of their log, one after the other."""
        self._enforce()
        self._next_release = self._upcoming = 0  # and the first reserved instant from then on
        self._ahead, self._next_due, self._second = -1, list[tuple[int, int]](), (0, 0)  # see _look_ahead
        self._most_windows = 0
        self.frames = FrameLog()
        self.faults = FaultLog() if faults is None else faults
        self.failover = failover
        self.start_ns = 0
        self.windows = 0

    @property
    def jobs(self) -> Sequence[Job]:
        """Of the unit, by number."""
        return self._jobs

    @property
    def stretches(self) -> list[Stretch]:
        """What was in force from which window on."""
        return self.switcher.stretches

    def begin(self, start_ns: int) -> None:
        """Make ready for a first release at ``start_ns``."""
        self.start_ns = self._next_release = self._upcoming = start_ns
        self.switcher.begin(start_ns)
        before, self._stretch = self._stretch.rung, self.switcher.stretches[0]
        if self._stretch.rung is not before:
            self._enforce()

    def find_feeds(self) -> None:
        """Look up what brings frames to its jobs, and in which windows."""
        self._feeds = served(self._jobs)
        self._bringing = bringing(self._feeds, self._stretch.rung.grid)

    def stretch(self, window: int) -> Stretch:
        """What is in force in a window."""
        return self.switcher.stretch(window)

    def release(self, window: int) -> int:
        """Absolute time at which a window begins."""
        return self.switcher.stretch(window).release_ns(window)

    @property
    def _share(self) -> Share:
        """What the unit does under the timetable in force."""
        return self._stretch.rung.shares[self._place]

    def _turn_over(self, *, begins: bool) -> None:
        """Have what is in force in the next window, which begins now, or before which nothing else is due."""
        window = self.windows
        stretch = self.switcher.come_to(window, begins=begins)
        if stretch is self._stretch:
            return
        self._stretch = stretch
        self._enforce()
        self._ask_background()
        self._upcoming = self._first_reserved(window, self._next_release)

    def _enforce(self) -> None:
        """What the loop needs of the timetable in force."""
        share, self._ahead = self._share, -1
        self._origin, self._reserved, self._guard_ns = self._stretch.origin, share.reserved, share.guard_ns
        for job, part in zip(
            self._jobs, share.parts, strict=False
        ):  # no timetable knows of migrated jobs, which come last
            job.take_up(part)
        self.find_feeds()

    def _due(self, window: int) -> Sequence[tuple[int, int]]:
        """When after its release which priority jobs are due in a window, of those under the timetable in force."""
        return self._reserved[(window - self._origin) % len(self._reserved)]

    def _look_ahead(self) -> None:
        """Work out what the next window brings: while there is time, for there is none when it begins."""
        window = self._ahead = self.windows
        self._next_due = [(self._next_release + after, job) for after, job in self._due(window)]
        release = self.release(window + 1)
        self._second = release, self._first_reserved(window + 1, release)

    def _first_reserved(self, window: int, release_ns: int) -> int:
        """The first reserved instant from a window's release on."""
        due = self._due(window) if window < self._most_windows else ()
        # Under the timetable that is in force by then, which may be another one.
        return release_ns + min(due[0][0] if due else 0, self.switcher.earliest_ns[self._place])

    def _ask_background(self) -> None:
        """What each background job would launch next."""
        for index, turn in self._turns.items():
            self._needed[turn] = self._jobs[index].next_ns

    def _dried_up(self) -> bool:
        """Whether streams that wait have ended, and their frames are done."""
        for feed, members in self._feeds:
            if not feed.waits:
                continue  # its end is noticed where a frame is read
            sources = [source for _, job in members for source in job.sources.values()]
            feed.over = feed.over or not all(source.has(feed.delivered) for source in sources)
            dry = feed.over and not any(self._has_work(job) for _, job in members)
            if dry and (feed.gate is None or feed.gate.dry(self)):
                return True
        return False

    def _deliver(self, window: int, released_ns: int) -> None:
        """A frame of each feed arrives at every model that wants it, unless it has to wait."""
        for feed, members in self._bringing[(window - self._origin) % len(self._bringing)]:
            if feed.gate is not None:
                feed.gate(window)
                self._ask_background()
                continue
            frame = feed.delivered
            if feed.waits and not self.room_for(feed, members, window):
                feed.waited += not feed.empty
                continue
            if feed.frame_source is not None and (came := feed.frame_source.take()) != 1:
                feed.missing += not came
                feed.delivered = frame + came
                for number in range(frame, frame + came):
                    self.admit(members, Arrival(number, window), released_ns)
                continue
            feed.delivered = frame + 1
            self.admit(members, Arrival(frame, window), released_ns)

    def room_for(self, feed: Feed, members: Sequence[tuple[int, Job]], window: int) -> bool:
        """Whether all these jobs would take the next frame of their feed in a window."""
        stretch = self.stretch(window)  # another unit may be there already, and ask
        turn = window - stretch.origin
        if feed.streams:
            turn = stretch.rung.grid.occurrence(min(feed.streams), turn)
        return not feed.over and all(job.accepts(feed.delivered, turn) for _, job in members)

    def admit(
        self, members: Sequence[tuple[int, Job]], arrival: Arrival, released_ns: int, by_another: bool = False
    ) -> None:
        """A frame arrives at these jobs, with their numbers; ``by_another`` thread, before this one comes to it."""
        frame, window = arrival
        for index, job in members:
            if frame % job.every:
                self.frames.add(self._models[index], frame, FrameOutcome.SKIPPED, window, released_ns)
                continue
            dropped = self._offer(job, arrival)
            if self._one_thread and not by_another and index in self._turns:
                self._needed[self._turns[index]] = job.next_ns
            if dropped is not None:
                self.reject(index, [dropped.arrival], dropped.outcome)

    def take_in(self, job: Job) -> int:
        """Serve another job from here on; its number."""
        index = len(self._jobs)
        self._jobs.append(job)
        self._models.append(index if job.model is None else job.model)
        if not job.priority:
            self._turns[index] = len(self._background)
            self._background.append((index, job))
            self._needed.append(job.next_ns)
        return index

    def abort_frame(self, index: int, outcome: FrameOutcome, now_ns: int) -> None:
        """The frame in flight of a job goes, unfinished."""
        self.reject(index, self._jobs[index].abort_frame(now_ns), outcome)

    def reject(self, index: int, arrivals: Iterable[Arrival], outcome: FrameOutcome) -> None:
        """Frames that came to a job's model are dropped."""
        for frame, window in arrivals:
            self.frames.add(self._models[index], frame, outcome, window, self.release(window))

    def _offer(self, job: Job, arrival: Arrival) -> Dropped | None:
        return job.offer(arrival)

    def _take(self, job: Job) -> None:
        job.take()

    def _has_work(self, job: Job) -> bool:
        return job.has_work
