"""The loop that keeps the beat on one unit: priority models at their instants, background segments in the residuals.

Time is cut into windows, which begin at fixed instants. When one begins, its streams bring a frame each, and the frames
wait in the channels of the models that want them. In each window the priority models are due at instants that the
timetable reserves for them, in this window or after it; the loop launches each at its instant, segment after segment,
or one segment an instant where other models' frames come between them. Between two reserved
instants it asks the service policy which background segment is to run, and launches that only if its planned quantile
and the guard fit before the next instant. What fits nowhere waits: nothing is ever interrupted. Events of sporadic
models come at any time; they are served between the reserved instants, too, before all background models. Before every
decision the loop reads its mailbox, in which other units leave frames that their stages are done with, and whoever
brings events leaves these. When a frame ends, the next stage or the models that read the result get their messages
first, then outputs are copied for their sinks, and only when there is time the outcome is logged. When nothing is left
to do until the next instant, the loop hands outputs out, looks whether another timetable is due, and works out what the
next window brings; shortly before the instant it goes once through a launch without effect, so that the real one finds
the caches warm, and spins. A launch that fails is
left to :class:`~framefit.runtime.recovery.Recovery`. A stream that ends, or the last window, ends the run.

:meth:`Dispatcher.keep_beat` is that loop; the methods below it stand in the order in which it needs them.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import heapq
import itertools
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np

from framefit.core.events import Trace
from framefit.core.grid import Grid
from framefit.core.journal import Journal
from framefit.core.model import TensorInfo
from framefit.core.timetable import PlannedModel, Timetable
from framefit.devices.clock import Clock, RealClock
from framefit.devices.device import Array, Completion, Device
from framefit.errors import InputError
from framefit.execution.execution import Execution
from framefit.execution.streams import EndOfStream
from framefit.runtime.channel import WARMUP_NS, Dropped, FrameChannel, Mailbox, Message, MessageKind
from framefit.runtime.job import Job, MigratedJob, Readers
from framefit.runtime.log import (
    FaultCause,
    FaultLog,
    FrameLog,
    FrameOutcome,
    FrameOutcomes,
    LaunchLog,
    Packets,
    StallLog,
)
from framefit.runtime.reading import FinishedFrame
from framefit.runtime.recovery import Failover, Recovery
from framefit.runtime.streams import Arrival, Feed
from framefit.runtime.switching import LaunchObserver, Rung, Share, Stretch, TimetableSwitcher, bringing, served

LEAD_NS = 20_000_000
"""Between the call and the first release."""
_IDLE_NS = 1_000_000  # sinks and progress get a turn only when this much of a window is left, or
_IDLE_PART = 4  # the fourth part of a short one; in virtual time they take none
_PENDING_OUTPUTS = 64  # outputs that may wait for such a turn
_PENDING_FRAMES = 256  # whose outcome may
_DRAIN_WINDOWS = 256  # between two looks into the device's event buffer
_DRAIN_S = 0.3  # where a journal survives the process
_SETTLE_NS = 200_000  # the logs get a turn when this much is left
_NEVER = 1 << 62
_SWITCH_INTERVAL_S = 1e-4  # other Python threads get the lock this often at most


class Service(Protocol):
    """The planner's own policy."""

    turn: int
    """Number of the background model whose turn it is."""
    yields: bool
    """Whether it asks for spans, and for segments after the next ones."""

    def choose(
        self,
        needed_ns: Sequence[int | None],
        room_ns: int,
        span: object = None,
        then_ns: Callable[[int], int | None] | None = None,
    ) -> int | None:
        """Number of the background model, or None: nothing fits into ``room_ns``."""

    def finished(self, model: int) -> None:
        """A frame of that background model is done."""

    def join(self) -> None:
        """There is one background model more."""

    def rearrange(self, turns: Sequence[int]) -> None:
        """So many turns of each background model in a round from here on; those that joined keep theirs."""


class Gate(Protocol):
    """Decides for several units whether a window brings a frame of streams that they read."""

    def join(self, unit: Dispatcher, members: Sequence[tuple[int, Job]]) -> None:
        """A unit reads the streams, with these jobs and their numbers; before the run."""

    def bring(self, window: int) -> None:
        """Let the next frame come to all of them, if this has not been decided yet and it may."""

    def dry(self, unit: Dispatcher) -> bool:
        """A unit says that nothing will be left for it to do; whether all of them have said so."""


class Dispatcher:
    """One cooperative thread on one unit.

    In every window the priority models run at their reserved instants, in order.
    Between, background segments run as ``service`` chooses; a segment starts only when
    its planned quantile and the guard fit before the next reserved instant. Otherwise
    the thread waits. Just before it goes on it warms them up: what a launch needs has left the
    caches, and fetching it takes longer (30 to 60 us) than what it is needed for.

    Args:
        device: executes.
        clock: the run's time; the device's own.
        jobs: priority models first, then background models in order of service.
        grid: when windows begin, and what they bring.
        guard_ns: kept free before each reserved instant.
        service: policy among background models.
        reserved: for each window of a repeating pattern, when priority jobs are due: pairs
            of time after the release and number of the job. Default: all at the release.
        stalls: reads how long the host kept this machine from running (ns, ever growing).
        mailbox: where other units' messages come; default: one that nobody else knows.
        collects: whether it reads the device's events; of several units' dispatchers one does.
        unit: its name.
        switcher: of all units, where there are several.
        place: of this unit's share of each timetable.
        launch_observer: sees launches when there is time; ``None``: nobody does.
        faults: where faults are logged, of all units.
        failover: finds models of a unit that fails for good a place on others; ``None``: there is none.
        gates: by the identity of a feed that other units read, too, what decides whether it brings a frame.
        feeds: by the identity of a feed that other units read, too, the unit's copy of it, where each counts itself.
        readers: which models of all units read which; default: of these jobs.
        outcomes: where outcomes of frames are noted as soon as they are decided; ``None``: in the log only.
        journal: has the files of the logs; default: one without names.
    """

    _one_thread = True

    def __init__(
        self,
        device: Device,
        clock: Clock,
        jobs: Sequence[Job],
        grid: Grid,
        guard_ns: int,
        *,
        service: Service,
        reserved: Sequence[Sequence[tuple[int, int]]] | None = None,
        stalls: Callable[[], int] | None = None,
        mailbox: Mailbox | None = None,
        collects: bool = True,
        unit: str = "",
        switcher: TimetableSwitcher | None = None,
        place: int = 0,
        launch_observer: LaunchObserver | None = None,
        faults: FaultLog | None = None,
        failover: Failover | None = None,
        gates: Mapping[int, Gate] = MappingProxyType({}),
        feeds: Mapping[int, Feed] = MappingProxyType({}),
        readers: Readers | None = None,
        outcomes: FrameOutcomes | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.unit = unit
        self._journal = journal = Journal() if journal is None else journal
        self._gates, self._copies = gates, feeds
        self._readers = Readers(jobs) if readers is None else readers
        self._jobs = list(jobs)
        self._models = [index if job.model is None else job.model for index, job in enumerate(jobs)]
        self._background = [(index, job) for index, job in enumerate(jobs) if not job.priority]
        self._sporadic = [(index, job) for index, job in enumerate(jobs) if job.events is not None]
        self._instant_jobs = {index for index, job in enumerate(jobs) if job.priority and job.reads_streams}
        self._turns = {index: turn for turn, (index, _) in enumerate(self._background)}
        self._needed: list[int | None] = [None] * len(self._background)  # quantiles of what each would launch next
        self.switcher = switcher or TimetableSwitcher(Rung(grid, [share_of(jobs, guard_ns, reserved)]))
        """What is in force, and will be."""
        self._place = place
        self._stretch = self.switcher.stretches[0]
        self._launch_observer = launch_observer
        self._next_release = self._upcoming = 0  # and the first reserved instant from then on
        self._ahead, self._next_due, self._second = -1, list[tuple[int, int]](), (0, 0)  # see _look_ahead
        self._most_windows = 0
        self.frames = FrameLog(outcomes, journal.file(f"frames-{place}.bin"))
        self.faults = FaultLog() if faults is None else faults
        self.failover = failover
        self.start_ns = 0
        self.windows = 0
        self._device = device
        self._clock = clock
        self._service = service
        self._stalls = stalls
        self._stalled_ns = 0
        self._on_thread = isinstance(clock, RealClock) and device.capabilities.runs_on_host
        self.mailbox = Mailbox() if mailbox is None else mailbox
        self._coming: list[Message] = []  # a heap: what cannot be used yet
        self._agenda: deque[tuple[int, int]] = deque()  # when which priority job is due
        self._awaited: list[int] = []  # priority jobs that were due before their frames were here
        self._behind: set[int] = set()  # of those, jobs of which more frames may wait than instants are due
        self._outputs = self.mailbox.outputs
        self._completed: deque[tuple[int, Sequence[Arrival], int, int]] = deque()  # job, frames, start, finish
        self._collects = collects
        self._packets = Packets(device.events, journal if collects else None)
        self._drained, self._drained_s = 0, 0.0
        shortest_ns = self._stretch.rung.grid.shortest_ns
        self._idle_ns = min(_IDLE_NS, shortest_ns // _IDLE_PART) if isinstance(clock, RealClock) else 0
        self._last_finish = -1
        self._read_ns = 0, 0  # time, and this thread's on the processor
        self.ended = False
        self._thread = 0
        self.launches = LaunchLog(journal.file(f"launches-{place}.bin"))
        self._recovery = Recovery(self)
        self._stall_log = StallLog(journal.file(f"stalls-{place}.bin"))
        self._enforce()
        for feed, members in self._feeds:
            if id(feed) in gates:
                gates[id(feed)].join(self, members)

    # What others see of it --------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Sequence[Job]:
        """Of the unit, by number."""
        return self._jobs

    @property
    def stalled(self) -> dict[int, int]:
        """Window -> how long the host kept the unit's core from running in it, in nanoseconds."""
        return self._stall_log.by_window()

    @property
    def stretches(self) -> list[Stretch]:
        """What was in force from which window on."""
        return self.switcher.stretches

    def at_work(self) -> bool:
        """Whether frames that were handed over still wait or are worked on."""
        events = [(job.feed, [(index, job)]) for index, job in self._sporadic]
        return any(
            len(feed.frame_source) > 0 or any(self._has_work(job) for _, job in members)
            for feed, members in [*self._feeds, *events]
            if feed.frame_source is not None
        )

    def progress(self) -> dict[int, object]:
        """Threads that keep the beat -> what changes as long as they do; any thread may ask."""
        return {self._thread: (self.windows, len(self.launches))}

    def trace(self) -> Trace:
        """All packets of the run, losses marked where they were noticed."""
        return self._packets.trace()

    # The loop ---------------------------------------------------------------------------------------------------------

    def run(
        self,
        windows: int,
        *,
        stop: Callable[[], bool] = lambda: False,
        on_idle: Callable[[int], None] | None = None,
    ) -> None:
        """Run ``windows`` windows; what happened is in ``launches``, ``frames`` and :meth:`trace`.

        Args:
            windows: how many; fewer where a stream ends.
            stop: true ends the run, nothing gets lost; asked in every window, and before each launch but
                those of segments that follow one another.
            on_idle: called with the number of windows begun when there is time for it.

        Raises:
            DeviceError: the device failed; what happened so far is kept.
        """
        self.begin(self._clock.now_ns() + LEAD_NS)
        try:
            self.keep_beat(windows, stop=stop, on_idle=on_idle)
        finally:
            self.end()

    def begin(self, start_ns: int) -> None:
        """Make ready for a first release at ``start_ns``."""
        self.start_ns = self._next_release = self._upcoming = start_ns
        self.switcher.begin(start_ns)
        for index, job in self._sporadic:
            self._expect_event(index, job)
        before, self._stretch = self._stretch.rung, self.switcher.stretches[0]
        if self._stretch.rung is not before:
            self._enforce()
        if self._stalls is not None:
            self._stalled_ns = self._stalls()

    def keep_beat(
        self, windows: int, *, stop: Callable[[], bool], on_idle: Callable[[int], None] | None = None
    ) -> None:
        """The loop of :meth:`run`, between :meth:`begin` and :meth:`end`."""
        clock, warmup, self._thread = self._clock, self._warmup_dispatcher(), threading.get_ident()
        agenda, awaited, coming = self._agenda, self._awaited, self._coming
        messages, wakeup = self.mailbox.messages, self.mailbox.wakeup
        clock.sleep_until_ns(self.start_ns)
        self._most_windows = windows
        while not self.ended and not stop():
            now = clock.now_ns()
            while now >= (next_release := self._next_release) and self.windows < windows:
                if self._waiting and self._dried_up():
                    self.ended = True
                    break
                if self.switcher.unsettled:
                    self._turn_over(begins=True)
                if self._ahead != self.windows:
                    self._look_ahead()
                self._deliver(self.windows, next_release)
                self._put_down(self._next_due)
                self.windows += 1
                self._next_release, self._upcoming = self._second
            if messages or coming:
                self._receive(now)
            if agenda and agenda[0][0] <= now:
                index = agenda[0][1]
                job = self._jobs[index]
                if self._behind:
                    self._drop_overdue(index, job, now)
                if job.ready:
                    self._launch(index, now)
                elif job.owed:
                    awaited.append(index)
                if not job.busy or (index in self._cut and self._due_again(index)):
                    agenda.popleft()  # one frame an instant, or one segment: the next one has its own
                    if len(job.input) and index in self._instant_jobs:
                        self._behind.add(index)
                continue
            over = now >= next_release  # the last window's end; what it has left to be done later still is
            if over and not (agenda and agenda[-1][0] >= next_release):
                break
            if awaited:  # nothing else starts until they have run, or cannot come any more
                awaited[:] = [index for index in awaited if self._jobs[index].owed]
            if not awaited and self._serve(now, min(agenda[0][0], self._upcoming) if agenda else self._upcoming):
                continue
            wake = agenda[0][0] if over else min(agenda[0][0], next_release) if agenda else next_release
            if coming:
                wake = min(wake, coming[0].ready_ns)
            self._use_idle(wake, on_idle)
            if wakeup is not None:
                wakeup.wait_until_ns(wake, None if warmup is None else warmup.warm_caches)
                continue
            clock.doze_until_ns(wake)
            if warmup is not None and wake - clock.now_ns() >= WARMUP_NS:
                warmup.warm_caches()
                if stop():  # warmed up, too
                    break
            clock.sleep_until_ns(wake)

    def end(self) -> None:
        """Account for what is unfinished; outputs and events are not lost."""
        self._receive(_NEVER)
        self._account()
        for index, job in enumerate(self._jobs):
            arrivals = job.clear()
            self._give_up(index, job, arrivals, -1)
            for frame, window in arrivals:
                came_ns = self._came_ns(job, frame, window)
                self.frames.add(self._models[index], frame, FrameOutcome.RUN_ENDED, window, came_ns)
            known = [source.length for source in job.sources.values() if source.length is not None]
            if (
                known and min(known) < self._copies.get(id(job.feed), job.feed).delivered
            ):  # a stream may turn out to be shorter than what was released
                self.frames.forget(self._models[index], min(known))
        self._account()
        if self._collects:
            self._packets.collect()
        self.hand_out()
        for model, frames in self.faults.refused.items():
            self.frames.refuse(model, frames, FrameOutcome.NOT_FINITE)

    # What a window brings ---------------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Work out what the next window brings: while there is time, for there is none when it begins."""
        window = self._ahead = self.windows
        self._next_due = [(self._next_release + after, job) for after, job in self._due(window)]
        release = self.release(window + 1)
        self._second = release, self._first_reserved(window + 1, release)

    def _put_down(self, due: Sequence[tuple[int, int]]) -> None:
        """Note what a window brings; what an earlier one has left to be done may come later."""
        agenda = self._agenda
        if agenda:
            self._behind.update(index for _, index in agenda if index in self._instant_jobs)
            if due and due[0][0] < agenda[-1][0]:
                due = sorted([*agenda, *due], key=lambda entry: entry[0])
                agenda.clear()
        agenda.extend(due)

    def _due_again(self, index: int) -> bool:
        """Whether a job has another instant beside the present one."""
        return any(job == index for _, job in itertools.islice(self._agenda, 1, None))

    def _due(self, window: int) -> Sequence[tuple[int, int]]:
        """When after its release which priority jobs are due in a window, of those under the timetable in force."""
        return self._reserved[(window - self._origin) % len(self._reserved)]

    def _first_reserved(self, window: int, release_ns: int) -> int:
        """The first reserved instant from a window's release on."""
        due = self._due(window) if window < self._most_windows else ()
        # Under the timetable that is in force by then, which may be another one.
        return release_ns + min(due[0][0] if due else 0, self.switcher.earliest_ns[self._place])

    def _dried_up(self) -> bool:
        """Whether streams that wait have ended, and their frames are done."""
        for feed, members in self._waiting:
            sources = [source for _, job in members for source in job.sources.values()]
            feed.ended = feed.over or not all(source.has(feed.delivered) for source in sources)
            dry = feed.ended and not any(self._has_work(job) for _, job in members)
            if dry and (id(feed) not in self._gates or self._gates[id(feed)].dry(self)):
                return True
        return False

    def _deliver(self, window: int, released_ns: int) -> None:
        """A frame of each feed arrives at every model that wants it, unless it has to wait."""
        for feed, members, gate in self._bringing[(window - self._origin) % len(self._bringing)]:
            if gate is not None:
                gate.bring(window)
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
        turn = self._turn(feed, window)
        released_ns = self.stretch(window).release_ns(window)
        return not feed.over and all(self._may_come(job, feed.delivered, turn, released_ns) for _, job in members)

    def _turn(self, feed: Feed, window: int) -> int:
        """Number of the release of a feed's streams that a window begins with, since the timetable is in force."""
        stretch = self.stretch(window)  # another unit may be there already, and ask
        turn = window - stretch.origin
        return stretch.rung.grid.occurrence(min(feed.streams), turn) if feed.streams else turn

    def _may_come(self, job: Job, frame: int, turn: int, now: int) -> bool:
        """Whether a job takes a frame now, or skips it, and the models that read it have room for what it will give."""
        if job.skips(frame):
            return True
        if not job.accepts(turn):
            return False
        first = job.queue.head(job.frames - 1)
        if job.priority and first is not None and self._is_overdue(job, first, now):
            return False  # else this one would be late for it, and all that follow
        return self._readers.have_room(job, job.backlog + 1)

    def admit(
        self, members: Sequence[tuple[int, Job]], arrival: Arrival, released_ns: int, by_another: bool = False
    ) -> None:
        """A frame arrives at these jobs, with their numbers; ``by_another`` thread, before this one comes to it."""
        frame, window = arrival
        for index, job in members:
            if job.skips(frame) and not (index in self._behind and self._renews(index, arrival)):
                self.frames.add(self._models[index], frame, FrameOutcome.SKIPPED, window, released_ns)
                continue
            dropped = self._offer(job, arrival)
            if job.thinned and index in self._instant_jobs:
                self._behind.add(index)  # if the stream has not kept its beat, it comes in a window without an instant
            if self._one_thread and not by_another and index in self._turns:
                self._needed[self._turns[index]] = job.next_ns
            if dropped is not None:
                self.reject(index, [dropped.arrival], dropped.outcome)

    def _renews(self, index: int, arrival: Arrival) -> bool:
        """Whether a frame that would be skipped comes with an instant of its model, for which one waits too long.

        That one came in a window without an instant, since the stream has not kept its beat, and so would all after it:
        from here on the model takes frames of other numbers.
        """
        job, (frame, window) = self._jobs[index], arrival
        waits = job.input.head(job.frames - 1)
        if waits is None or job.input.when_full == "block" or all(due != index for _, due in self._due(window)):
            return False
        if not self._is_overdue(job, waits, self.release(window)):
            return False
        job.first = (frame - self._turn(job.feed, window)) % job.every.numerator
        return True

    def reject(self, index: int, arrivals: Iterable[Arrival], outcome: FrameOutcome) -> None:
        """Frames that came to a job's model are dropped."""
        for frame, window in arrivals:
            came_ns = self._came_ns(self._jobs[index], frame, window)
            self.frames.add(self._models[index], frame, outcome, window, came_ns)

    def _is_overdue(self, job: Job, arrival: Arrival, now: int) -> bool:
        """Whether the deadline of a frame that waits for a job has passed."""
        return job.deadline_ns is not None and self._came_ns(job, *arrival) + job.deadline_ns <= now

    def _came_ns(self, job: Job, frame: int, window: int) -> int:
        """When a frame came: with the release of its window, or, of a sporadic model, when its event did."""
        return self.release(window) if job.events is None else job.events.came_ns[frame]

    # Events -----------------------------------------------------------------------------------------------------------

    def _expect_event(self, index: int, job: Job) -> None:
        """Have the next event of a sporadic model come when it is due, where that is known."""
        assert job.events is not None
        after_ns = job.events.next_ns()
        if after_ns is not None:
            due = Message(self.start_ns + after_ns, index, len(job.events.came_ns), MessageKind.EVENT)
            heapq.heappush(self._coming, due)

    def _accept_event(self, index: int, job: Job, due_ns: int) -> None:
        """An event of a sporadic model comes."""
        assert job.events is not None
        event, window = job.events.come(due_ns), self.windows - 1
        if event is not None:
            frame, came_ns, fits = event
            if fits:
                self.admit([(index, job)], Arrival(frame, window), came_ns)
            else:
                self.frames.add(self._models[index], frame, FrameOutcome.TOO_SOON, window, came_ns)
        self._expect_event(index, job)

    # What other units tell --------------------------------------------------------------------------------------------

    def _receive(self, now: int) -> None:
        """Read the messages of other units, as far as they can be used by now."""
        coming, messages = self._coming, self.mailbox.messages
        while messages:
            heapq.heappush(coming, messages.popleft())
        while coming and coming[0].ready_ns <= now:
            self._accept(heapq.heappop(coming), now)

    def _accept(self, message: Message, now: int) -> None:
        """A frame for a job, or the news that its next one may begin."""
        if message.kind == MessageKind.MIGRATED:
            assert isinstance(message.migrated, MigratedJob)
            self._accept_migrated(message.migrated, now)
            return
        if message.kind == MessageKind.EVENT:
            if now < _NEVER:  # else the run ends: it did not come in time
                self._accept_event(message.job, self._jobs[message.job], message.ready_ns)
            return
        index, job, agenda = message.job, self._jobs[message.job], self._agenda
        if message.kind == MessageKind.RESULT:
            self._read(index, job, message)
        elif message.kind == MessageKind.STAGE:
            assert job.pipeline is not None
            job.pipeline.receive(job, message.arrivals, message.started_ns)
        elif message.kind == MessageKind.SKIPPED:
            assert job.pipeline is not None
            job.pipeline.skip(job, now)
        if not job.priority:
            self._needed[self._turns[index]] = job.next_ns
            return
        due = sum(job_due == index for _, job_due in agenda) - job.busy
        if index in self._awaited and job.ready:
            self._awaited.remove(index)
        elif job.input.waiting <= due:
            return  # it has an instant of its own
        # Behind what has begun, before whatever else is due.
        agenda.insert(1 if agenda and self._jobs[agenda[0][1]].busy else 0, (now, index))

    def _read(self, index: int, job: Job, message: Message) -> None:
        """A result of a model that the job reads."""
        assert job.join is not None
        for arrival, wanted in job.join.add(message.source, message.arrivals[-1]):
            released_ns = self.release(arrival.window)
            if wanted:
                self.admit([(index, job)], arrival, released_ns)
            else:
                self.frames.add(self._models[index], arrival.frame, FrameOutcome.SKIPPED, arrival.window, released_ns)

    def _accept_migrated(self, job: MigratedJob, now: int) -> None:
        """A frame has come for a job of a unit that failed; the first time the job itself comes, too."""
        if job.number < 0:
            job.number = self.take_in(job)
            if not job.priority:
                self._service.join()
        if not job.priority:
            self._needed[self._turns[job.number]] = job.next_ns
            return
        behind = sum(due_ns <= now for due_ns, _ in self._agenda)  # its own models come first
        known = sum(due_job == job.number for _, due_job in self._agenda) - job.busy
        for _ in range(known, job.input.waiting):
            self._agenda.insert(behind, (now, job.number))

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

    # A launch ---------------------------------------------------------------------------------------------------------

    def _serve(self, now: int, reserved: int) -> bool:
        """Launch the segment that is due and fits, if there is one, and what follows it; those of events come first."""
        latest = reserved - self._guard_ns
        if self._sporadic and self._serve_event(now, latest):
            return True
        if self._behind and self._serve_behind(now, latest):
            return True
        if not self._background:
            return False
        service = self._service
        if service.yields:
            chosen = service.choose(self._needed, latest - now, (self.windows, latest), self._then_ns)
        else:
            chosen = service.choose(self._needed, latest - now)
        if chosen is None:
            return False
        index, job = self._background[chosen]
        # Else an event would wait for several segments, or a span not be filled.
        alone = self._sporadic or service.yields or chosen != service.turn
        self._launch(index, now, 0 if alone else latest)
        self._needed[chosen] = job.next_ns
        return True

    def _then_ns(self, number: int) -> int | None:
        """What the segment after a background model's next one needs, if that does not end its frame."""
        return self._background[number][1].then_ns

    def _serve_event(self, now: int, latest: int) -> bool:
        """Launch the next segment of the first sporadic model that has an event, and whose segment fits."""
        for index, job in self._sporadic:
            needed = job.next_ns
            if needed is not None and needed <= latest - now:
                self._launch(index, now)
                return True
        return False

    def _serve_behind(self, now: int, latest: int) -> bool:
        """Launch a frame of a priority model that has no instant of its own, if all of it fits before the next one.

        Frames come without an instant in a burst, when another timetable is in force, or where a stream has not kept
        its beat. To serve them in others' instants would make those late, and so on for ever. The bounds of events
        rest on how long a segment of those behind them holds the unit up: at most as long as a background one. A
        longer one may run while no event can come yet.
        """
        for index in tuple(self._behind):
            job = self._jobs[index]
            due = sum(due_job == index for _, due_job in self._agenda)
            if index in self._cut:
                due = -(-due // len(job.estimates_ns))
            if job.busy + len(job.input) // job.frames <= due:
                self._behind.discard(index)
                continue
            left_ns = job.estimates_ns[job.next_segment :]
            if not job.ready or sum(left_ns) > latest - now or (self._sporadic and self._holds_events_up(left_ns, now)):
                continue
            self._launch(index, now, 0 if self._sporadic else latest)
            return True
        return False

    def _holds_events_up(self, segments_ns: Sequence[int], now: int) -> bool:
        """Whether an event that comes while these segments run may wait for longer than behind background models."""
        most = max((ns for _, job in self._background for ns in job.estimates_ns), default=0)
        events = [job.events for _, job in self._sporadic if job.events is not None]
        next_ns = min((own.possible_ns for own in events), default=now)
        ends = itertools.accumulate(segments_ns, initial=now)
        return any(end - max(begin, next_ns) > most for begin, end in itertools.pairwise(ends))

    def _drop_overdue(self, index: int, job: Job, now: int) -> None:
        """At an instant of a job drop frames that are overdue already, so that newer ones are not."""
        if index in self._behind and not job.busy:
            later = sum(due_job == index and due_ns > now for due_ns, due_job in self._agenda)
            launches = 1 + later // (len(job.estimates_ns) if index in self._cut else 1)
            overdue = job.input.give_way(lambda arrival: self._is_overdue(job, arrival, now), launches)
            self.reject(index, overdue, FrameOutcome.OVERDUE)

    def _ask_background(self) -> None:
        """What each background job would launch next."""
        for index, turn in self._turns.items():
            self._needed[turn] = self._jobs[index].next_ns

    def _launch(self, index: int, ready_ns: int, latest_ns: int = 0) -> None:
        """Launch a job's next segment, and the following ones of the frame while they end by ``latest_ns``.

        Where it is the model's turn the policy would choose the same until a frame arrives. Not to ask again saves
        half of the time between two segments, for all of it runs with cold caches.
        """
        job = self._jobs[index]
        if not job.in_flight:
            self._take(job)
            if not job.in_flight:  # its model has just migrated, or another replica has taken the frames that waited
                return
            try:
                job.load()
            except EndOfStream:
                self.ended = True
                return
            except InputError as error:
                self._recover(index, job, error)
                return
        window, frame, add = self.windows - 1, job.in_flight[-1].frame, self.launches.add
        segment, last, estimates = job.next_segment, len(job.estimates_ns) - 1, job.estimates_ns
        steps = job.execution.steps
        followed = self._one_thread and self._last_finish >= 0
        read_ns = self._read_ns  # a local: two threads may be here
        if followed:
            ready_ns = self._last_finish
        elif self._on_thread:
            self._read_ns = read_ns = self._clock.now_ns(), time.thread_time_ns()
        while True:
            program, until_ns = job.first_program + segment, -1
            if latest_ns and segment < last:
                until_ns = min(latest_ns - estimates[segment + 1], self._next_release)
            try:
                done = steps[segment]()
            except BaseException as error:  # noqa: BLE001 - raised again, if it is no fault that a run survives
                add(program, window, frame, self._clock.now_ns(), -1, ready_ns, followed, -1)
                job.next_segment = segment
                self._recover(index, job, error)
                return
            if segment == 0 and job.started_ns < 0:  # else an earlier stage has begun the frame
                job.started_ns = done.started_ns
            finished = done.finished_ns
            if finished > until_ns:
                break
            add(program, window, frame, done.started_ns, finished, ready_ns, followed, -1)
            segment, ready_ns, followed = segment + 1, finished, True
        job.next_segment = segment + 1 if segment < last else 0  # another thread may look at it
        spent = -1
        if self._on_thread and (
            not self._one_thread or finished - done.started_ns > (job.quantiles_ns or estimates)[segment]
        ):
            spent = self._spent(done, *read_ns)
        self._last_finish = finished
        add(program, window, frame, done.started_ns, finished, ready_ns, followed, spent)
        if segment == last:
            self._complete(index, job, finished)

    def _spent(self, done: Completion, read_at_ns: int, read_ns: int) -> int:
        """Time on the processor of the launch just done: without what this thread was off it since a reading.

        A reading is a call of the system, 15 us with cold caches: one after idle time, and one where a launch
        took longer than planned, which has to be explained.
        """
        self._read_ns = done.finished_ns, time.thread_time_ns()
        off = self._read_ns[0] - read_at_ns - (self._read_ns[1] - read_ns)
        return max(done.duration_ns - max(off, 0), 0)

    # A frame that ends ------------------------------------------------------------------------------------------------

    def _complete(self, index: int, job: Job, finished_ns: int) -> None:
        """A frame of a job is done; its outcome is logged where there is time for it."""
        pipeline = job.pipeline
        if pipeline is not None and job is not pipeline.stages[-1]:
            pipeline.hand_on(job, finished_ns)  # first of all: another unit waits for it
        else:
            if job.replicas is None:
                self._completed.append((index, job.in_flight, job.started_ns, finished_ns))
                if job.observers:
                    execution, deadline_ns = job.execution, job.deadline_ns
                    self._observe(
                        job,
                        FinishedFrame(
                            job.in_flight, job.started_ns, finished_ns, deadline_ns, execution, execution.results
                        ),
                    )
                for sink, names in job.sinks:
                    self._outputs.append((sink, job.in_flight[-1].frame, job.execution.results(names)))
            else:
                with job.replicas.lock:
                    self._hand_on_in_order(index, job, job.replicas.finished(job, finished_ns))
        if not job.execution.finish():
            self.faults.add(self._models[index], job.in_flight[-1].frame, self.windows - 1, FaultCause.STATE)
        if self._recovery.troubles:
            self._recovery.succeeded(index, job)
        if pipeline is not None:
            pipeline.stage_finished(job, finished_ns)
        job.in_flight, job.next_segment, job.started_ns = [], 0, -1
        if job.following is not None:
            job.take_up(job.following)
        if not job.priority:
            self._service.finished(self._turns[index])
        self._relieve()

    def _observe(self, job: Job, frame: FinishedFrame) -> None:
        """Show a frame that is done to those who follow its model: models that read it, and the program."""
        released_ns = self._came_ns(job, *frame.arrivals[-1])
        for observer in job.observers:
            observer.frame_finished(frame, released_ns)

    def _hand_on_in_order(self, index: int, job: Job, leaving: Iterable[FinishedFrame]) -> None:
        """Frames that leave a model of several replicas; with their lock held."""
        assert job.replicas is not None
        for frame in leaving:
            self._completed.append((index, frame.arrivals, frame.started_ns, frame.finished_ns))
            self._observe(job.outlet, frame)
            for sink, outputs in frame.outputs:
                job.replicas.outputs.append((sink, frame.arrivals[-1].frame, outputs))

    def _give_up(self, index: int, job: Job, arrivals: Sequence[Arrival], now_ns: int) -> None:
        """Frames that a replica has begun will not be done: those behind them may leave."""
        if job.replicas is not None:
            with job.replicas.lock:
                self._hand_on_in_order(index, job, job.replicas.gave_up(arrivals, now_ns))

    def _recover(self, index: int, job: Job, error: BaseException) -> None:
        """A launch failed, or a frame could not be read."""
        self._last_finish = -1
        if self._recovery.aborts_frame(index, job, error, self._clock.now_ns()) and not job.priority:
            self._service.finished(self._turns[index])

    def abort_frame(self, index: int, outcome: FrameOutcome, now_ns: int) -> None:
        """The frame in flight of a job goes, unfinished."""
        job = self._jobs[index]
        arrivals = job.abort_frame(now_ns)
        self.reject(index, arrivals, outcome)
        self._give_up(index, job, arrivals, now_ns)

    def _account(self) -> None:
        """The fates of the frames that were completed."""
        for _ in range(len(self._completed)):
            index, arrivals, started_ns, finished_ns = self._completed.popleft()
            # Frames that are consumed together are as late as the newest of them.
            newest = arrivals[-1].window
            parts = self.stretch(newest).rung.shares[self._place].parts
            released_ns = self._came_ns(self._jobs[index], *arrivals[-1])
            deadline_ns = (parts[index] if index < len(parts) else self._jobs[index]).deadline_ns
            late = deadline_ns is not None and finished_ns - released_ns > deadline_ns
            outcome = FrameOutcome.LATE if late else FrameOutcome.DONE
            for frame, window in arrivals:
                at = released_ns if window == newest else self.release(window)
                self.frames.add(self._models[index], frame, outcome, window, at, started_ns, finished_ns)

    def _relieve(self) -> None:
        """Hand outputs out, and account for frames, where there never was time to."""
        if len(self._completed) > _PENDING_FRAMES:
            self._account()
            if self._launch_observer is None:  # else it would see launches sooner than where there is time
                self._settle()
        if len(self._outputs) > _PENDING_OUTPUTS:
            self.hand_out()

    # Time that is left ------------------------------------------------------------------------------------------------

    def _use_idle(self, wake: int, on_idle: Callable[[int], None] | None) -> None:
        """Housekeeping that fits before the next instant."""
        self._last_finish = -1
        left_ns = wake - self._clock.now_ns()
        if left_ns >= _SETTLE_NS:
            self._account()
            fresh = self._settle()
            if self._launch_observer is not None:
                self._launch_observer.launches_settled(fresh)
            if wake == self._next_release and self.switcher.is_other(self._stretch):
                self._turn_over(begins=False)
            if self._ahead != self.windows:
                self._look_ahead()
        drains = self._collects and self._drain_is_due()
        if left_ns < self._idle_ns and not (drains and self.windows - self._drained >= _DRAIN_WINDOWS):
            return
        while self._outputs and wake - self._clock.now_ns() >= self._idle_ns:
            sink, frame, outputs = self._outputs.popleft()
            sink.put(frame, outputs)
        if self._stalls is not None:
            stalled = self._stalls()
            if stalled > self._stalled_ns:
                self._stall_log.add(self.windows - 1, stalled - self._stalled_ns)
                self._stalled_ns = stalled
        if on_idle is not None and wake - self._clock.now_ns() >= self._idle_ns:
            on_idle(self.windows)
        if drains:
            self._packets.collect()
            self._drained, self._drained_s = self.windows, time.monotonic()
        self._journal.wake()

    def _drain_is_due(self) -> bool:
        """Whether the device's events are to be read, for its buffer's sake or the journal's."""
        if self.windows - self._drained >= _DRAIN_WINDOWS:
            return True
        return self._journal.named and time.monotonic() - self._drained_s > _DRAIN_S

    def _settle(self) -> list[int]:
        """Let the logs put in order what was appended lately; the launches among it."""
        fresh = self.launches.settle()
        self.frames.settle()
        self._stall_log.settle()
        if self._collects:  # one unit does it for all
            self.faults.settle()
        return fresh

    def hand_over_logs(self) -> None:
        """Have all that was logged written; after the end."""
        for log in (self.launches, self.frames, self.faults, self._stall_log):
            log.settle()
            log.hand_over()

    def hand_out(self) -> None:
        """Hand all outputs that wait to their sinks."""
        while self._outputs:
            sink, frame, outputs = self._outputs.popleft()
            sink.put(frame, outputs)

    def _warmup_dispatcher(self) -> Dispatcher | None:
        """A dispatcher of this kind whose only job has no effect; none where time is not real."""
        job = next((job for job in self._jobs if job.priority), self._jobs[0])
        dummy = dummy_job(job) if isinstance(self._clock, RealClock) else None
        if dummy is None:
            return None
        return type(self)(self._device, self._clock, [dummy], self._stretch.rung.grid, 0, service=self._service)

    def warm_caches(self) -> None:
        """Go through a release and a launch of the first job, and forget it; of a warm-up dispatcher."""
        job = self._jobs[0]
        for window in range(job.frames + 1):  # one too many: what a full queue does is warmed up, too
            self._deliver(window, self.release(window))
        if job.ready:
            self._launch(0, self.release(1))
        job.clear()
        self.launches.clear()
        self.frames.clear()

    # The timetable in force -------------------------------------------------------------------------------------------

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
        self._cut = {job for due in share.reserved for _, job in due if sum(other == job for _, other in due) > 1}
        for job, part in zip(
            self._jobs, share.parts, strict=False
        ):  # no timetable knows of migrated jobs, which come last
            job.take_up(part)
        self._find_feeds()
        if share.turns:
            self._service.rearrange(share.turns)

    def _find_feeds(self) -> None:
        """Look up what brings frames to its jobs, and in which windows."""
        self._feeds = served(self._jobs, self._copies)
        # The end of the others is noticed where a frame is read.
        self._waiting = [(feed, members) for feed, members in self._feeds if feed.waits]
        self._bringing = [
            [(feed, members, self._gates.get(id(feed))) for feed, members in feeds]
            for feeds in bringing(self._feeds, self._stretch.rung.grid)
        ]

    # What two threads have to do in turn ------------------------------------------------------------------------------

    def _offer(self, job: Job, arrival: Arrival) -> Dropped | None:
        return job.offer(arrival)

    def _take(self, job: Job) -> None:
        job.take()

    def _has_work(self, job: Job) -> bool:
        return self._readers.have_work(job)


def instants(
    timetable: Timetable, numbers: Mapping[str, int | Sequence[int]], unit: str | None = None
) -> list[list[tuple[int, int]]]:
    """When priority models are due in each window; what follows another at once is due with it.

    Args:
        timetable: its windows repeat.
        numbers: model -> number of its job, or of the jobs of all its stages on the unit, in order.
        unit: whose instants; default: the only one's.

    Returns:
        For each window pairs of time after the release and number of the job.
    """
    pattern = []
    for window in timetable.windows:
        due: list[tuple[int, int]] = []
        begin = end = -1
        seen: defaultdict[str, int] = defaultdict(int)
        jobs = {
            name: _of_periods(timetable.model(name), numbers, unit, count)
            for name, count in Counter(period.model for period in window.priority).items()
            if name in numbers
        }
        for period in window.priority:
            if unit is not None and period.unit != unit:
                continue
            begin = begin if period.start_ns == end else period.start_ns
            due.append((begin, jobs[period.model][seen[period.model]]))
            seen[period.model] += 1
            end = period.end_ns
        pattern.append(due)
    return pattern


def _of_periods(
    model: PlannedModel, numbers: Mapping[str, int | Sequence[int]], unit: str | None, periods: int
) -> list[int]:
    """The jobs that a model's periods in a window on a unit are for: a period a stage, or one a segment."""
    job_numbers = numbers[model.name]
    stages = [stage for stage in model.stages if unit is None or stage[0].unit == unit]
    jobs = [job_numbers] * len(stages) if isinstance(job_numbers, int) else job_numbers
    cut = periods > len(model.stages)
    return [job for job, stage in zip(jobs, stages, strict=True) for _ in range(len(stage) if cut else 1)]


def share_of(jobs: Sequence[Job], guard_ns: int, reserved: Sequence[Sequence[tuple[int, int]]] | None = None) -> Share:
    """What a unit does under the timetable that its jobs were made for; default: all priority jobs at the release."""
    due = reserved or [[(0, index) for index, job in enumerate(jobs) if job.priority]]
    return Share(due, guard_ns, [job.part for job in jobs])


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Keep Python's own housekeeping out of the loop: collector, lock, timers."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    RealClock.sharpen()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()


class _ConstantStream:
    """A stream for dummy jobs: one array of each type."""

    length = None

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def has(self, frame: int) -> bool:  # noqa: ARG002 - the protocol's form
        return True

    def read(self, frame: int, tensor: TensorInfo) -> Array:  # noqa: ARG002 - the protocol's form
        if tensor.dtype not in self._arrays:
            self._arrays[tensor.dtype] = np.zeros(1, tensor.dtype)
        return self._arrays[tensor.dtype]


def dummy_job(job: Job) -> Job | None:
    """A job that goes the same way as this one with small frames and no device; ``None``: it has no tensors."""
    if not isinstance(job.execution, Execution):
        return None
    execution = copy.copy(job.execution)
    execution.disarm()
    return Job(
        execution=execution,
        first_program=0,
        priority=True,
        estimates_ns=(0, 0),  # two segments: no frame is completed
        deadline_ns=None,
        sources=dict.fromkeys(job.sources, _ConstantStream()),
        input=FrameChannel(job.frames, frames=job.frames),
    )
