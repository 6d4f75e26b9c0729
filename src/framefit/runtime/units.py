"""Several units on one beat: which unit does what, a dispatcher for each, and one log of what they did."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.grid import Grid
from framefit.core.journal import Journal
from framefit.core.timetable import Timetable
from framefit.devices.clock import Clock, RealClock, VirtualClock
from framefit.devices.device import Device
from framefit.devices.host import pinned
from framefit.runtime.channel import Mailbox, Port, unit_mailboxes
from framefit.runtime.job import Job, Readers, reading_models
from framefit.runtime.log import FaultLog, FrameLog, FrameOutcome, FrameOutcomes, LaunchLog, in_time_order
from framefit.runtime.loop import LEAD_NS, Dispatcher, Gate, Service, instants, share_of
from framefit.runtime.preemptive import PreemptiveDispatcher
from framefit.runtime.reading import with_unread
from framefit.runtime.recovery import Failover, FindTarget, Migration
from framefit.runtime.streams import Arrival, Feed
from framefit.runtime.switching import LaunchObserver, Rung, Stretch, TimetableSwitcher

__all__ = ["UnitGroup"]

_SWITCH_INTERVAL_S = 2e-5  # a thread that wants Python's lock waits for one that spins so long at most
_LAST = np.iinfo(np.int64).max
_FAREWELL_NS = 500_000_000  # for units to end what they do, where one of them does not come back


@dataclass(frozen=True)
class UnitAssignment:
    """What one unit does in a run.

    Attributes:
        jobs: priority ones first, then background jobs in order of service.
        service: policy among its background jobs.
        reserved: when its priority jobs are due; see :class:`~framefit.runtime.loop.Dispatcher`.
        guard_ns: kept free before each reserved instant.
        preemptive: background work is interrupted for priority jobs.
        stalls: reads how long the host kept the unit's core from running.
    """

    jobs: Sequence[Job]
    service: Service
    reserved: Sequence[Sequence[tuple[int, int]]] | None = None
    guard_ns: int = 0
    preemptive: bool = False
    stalls: Callable[[], int] | None = None


class UnitGroup:
    """The dispatchers of all units, on one clock and one grid of releases.

    Each unit is dispatched as if it were alone. What a stage is done with goes to the mailbox of the unit
    that has the next stage, together with the time when it can be used there; that unit looks
    at its mailbox before it decides anything, and is woken where it waits. In real time every unit
    has a thread, on its own core where the device is this machine; in virtual time they take turns.

    The order of ``assignments`` decides between units in the same nanosecond of virtual time. The calling
    thread is the first unit's: it collects the device's events and calls ``on_idle``. In real time
    sinks and streams of models on different units are used by different threads, a stream by one at a
    time.

    Args:
        device: executes on all units.
        clock: the run's time; the device's own.
        assignments: unit -> what it does; one without jobs stays idle. A model's jobs carry its number
            (:attr:`Job.model`).
        grid: when windows begin, and what they bring.
        mailboxes: of the units that have jobs, in the same order, as :func:`unit_mailboxes` makes them; default: some
            that nobody else knows.
        switcher: knows the timetables that may be in force; default: the one that the assignments are of.
        launch_observers: unit -> what sees its launches when there is time.
        find_target: where a model of a unit that fails for good may go on; ``None``: nowhere.
        outcomes: where outcomes of frames are noted as soon as they are decided; ``None``: in the logs only.
        journal: has the files of the logs; default: one without names.
    """

    def __init__(
        self,
        device: Device,
        clock: Clock,
        assignments: Mapping[str, UnitAssignment],
        grid: Grid,
        *,
        mailboxes: Mapping[str, Mailbox] | None = None,
        switcher: TimetableSwitcher | None = None,
        launch_observers: Mapping[str, LaunchObserver] = MappingProxyType({}),
        find_target: FindTarget | None = None,
        outcomes: FrameOutcomes | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._device = device
        self._clock = clock
        assignments = {unit: assignment for unit, assignment in assignments.items() if assignment.jobs}
        jobs = [job for assignment in assignments.values() for job in assignment.jobs]
        self._readers = reading_models(jobs)
        readers = Readers(jobs)
        mailboxes = unit_mailboxes(clock, list(assignments)) if mailboxes is None else mailboxes
        failover = None
        if find_target is not None and len(assignments) > 1:
            failover = Failover(clock, mailboxes, find_target)
        self._copies: list[tuple[Feed, Feed]] = []
        feeds: dict[str, dict[int, Feed]] = {unit: {} for unit in assignments}
        gates = self._share_feeds(assignments, feeds)
        if switcher is None:
            shares = [share_of(each.jobs, each.guard_ns, each.reserved) for each in assignments.values()]
            switcher = TimetableSwitcher(Rung(grid, shares))
        self.faults = FaultLog(None if journal is None else journal.file("faults.bin"))
        self.migrations: list[Migration] = [] if failover is None else failover.migrations
        self.dispatchers: dict[str, Dispatcher] = {}
        for part, (unit, assignment) in enumerate(assignments.items()):
            kind = PreemptiveDispatcher if assignment.preemptive else Dispatcher
            self.dispatchers[unit] = kind(
                device,
                clock,
                assignment.jobs,
                grid,
                assignment.guard_ns,
                service=assignment.service,
                reserved=assignment.reserved,
                stalls=assignment.stalls,
                mailbox=mailboxes[unit],
                collects=not part,
                unit=unit,
                switcher=switcher,
                place=part,
                launch_observer=launch_observers.get(unit),
                faults=self.faults,
                failover=failover,
                gates=gates,
                feeds=feeds[unit],
                readers=readers,
                outcomes=outcomes,
                journal=journal,
            )
        self._lead = next(iter(self.dispatchers.values()))
        self._over = False
        self._away: list[Dispatcher] = []  # whose part is over
        self._failures: list[BaseException] = []
        self.launches = self._lead.launches
        self.frames = self._lead.frames
        self.stalled: dict[int, int] = {}

    @property
    def start_ns(self) -> int:
        """The first release."""
        return self._lead.start_ns

    @property
    def windows(self) -> int:
        """Windows that have begun."""
        return max(dispatcher.windows for dispatcher in self.dispatchers.values())

    @property
    def begun_on_all(self) -> int:
        """Windows that have begun on every unit that still works: it stands still where one of them hangs."""
        at_work = [each.windows for each in self.dispatchers.values() if each not in self._away]
        return min(at_work, default=self.windows)

    @property
    def ended(self) -> bool:
        """Whether a stream's end ended the run."""
        return any(dispatcher.ended for dispatcher in self.dispatchers.values())

    def release(self, window: int) -> int:
        """Absolute time at which a window begins."""
        return self._lead.release(window)

    @property
    def switcher(self) -> TimetableSwitcher:
        """What is in force, and will be."""
        return self._lead.switcher

    def stretch(self, window: int) -> Stretch:
        """What is in force in a window."""
        return self._lead.stretch(window)

    @property
    def stretches(self) -> list[Stretch]:
        """What was in force from which window on."""
        return self._lead.stretches

    def at_work(self) -> bool:
        """Whether frames that were handed over still wait or are worked on."""
        return any(dispatcher.at_work() for dispatcher in self.dispatchers.values())

    def so_far(self) -> UnitGroup:
        """What has happened while the run goes on, for another thread; what happened last may be missing."""
        members = list(self.dispatchers.values())
        launches = [member.launches.snapshot() for member in members]
        frames = [member.frames.snapshot() for member in members]
        group = copy.copy(self)
        group.launches = LaunchLog.of(ordered(launches, [rows[:, LaunchLog.STARTED] for rows in launches]))
        rows = ordered(frames, [known_ns(rows) for rows in frames])
        group.frames = FrameLog.of(with_unread(rows, self._readers, ended=False))
        group.stalled = _stalled(members)
        return group

    def trace(self) -> Trace:
        """All packets of the run, in the order of their times."""
        trace = self._lead.trace()
        # An accelerator's own trace unit orders them, and its time stamps may wrap around.
        side_by_side = len(self.dispatchers) > 1 and self._device.capabilities.collects_events
        return in_time_order(trace) if side_by_side else trace

    def run(
        self,
        windows: int,
        *,
        stop: Callable[[], bool] = lambda: False,
        on_idle: Callable[[int], None] | None = None,
    ) -> None:
        """Run ``windows`` windows on all units; see :meth:`Dispatcher.run`.

        Afterwards ``launches`` and ``frames`` hold those of all units: launches as they began, frames
        by when their fate was known.
        """
        members = list(self.dispatchers.values())
        if len(members) == 1:
            try:
                members[0].run(windows, stop=stop, on_idle=on_idle)
            finally:
                self._merge(members)
            return
        start_ns = self._clock.now_ns() + LEAD_NS
        for member in members:
            member.begin(start_ns)

        def part(member: Dispatcher) -> Callable[[], None]:
            idle = on_idle if member is self._lead else None
            return lambda: self._work(member, windows, lambda: self._over or stop(), idle)

        try:
            if isinstance(self._clock, VirtualClock):
                self._clock.together([part(member) for member in members])
            else:
                self._in_threads([part(member) for member in members])
        finally:
            self._end(members)
        if self._failures:
            raise self._failures[0]

    def end_early(self) -> None:
        """Begin no more windows, as where a stream has ended."""
        for dispatcher in self.dispatchers.values():
            dispatcher.ended = True

    def abandon(self) -> None:
        """Account for everything, though a unit does not come back from a launch; for another thread than the run's."""
        members = list(self.dispatchers.values())
        self._over = True
        self.end_early()
        until_ns = self._clock.now_ns() + _FAREWELL_NS
        while len(self._away) < len(members) - 1 and self._clock.now_ns() < until_ns:
            self._clock.sleep_until_ns(self._clock.now_ns() + _FAREWELL_NS // 100)
        self._end(members)

    def _end(self, members: Sequence[Dispatcher]) -> None:
        for member in members:
            member.mailbox.close()
        ends = [member.end for member in reversed(members)]  # the first one collects the events
        for last in (*ends, *(member.hand_out for member in members)):  # frames may wait for a unit that ends later
            try:
                last()
            except BaseException as error:  # noqa: BLE001 - raised again when all units have ended
                self._failures.append(error)
        self._merge(members)

    def _work(
        self, member: Dispatcher, windows: int, stop: Callable[[], bool], on_idle: Callable[[int], None] | None
    ) -> None:
        """One unit's part; where it ends early, all do."""
        try:
            member.keep_beat(windows, stop=stop, on_idle=on_idle)
        except BaseException as error:  # noqa: BLE001 - raised again when all units have ended
            self._failures.append(error)
        self._away.append(member)
        if self._failures or member.ended:
            self._over = True
            for dispatcher in self.dispatchers.values():
                if dispatcher.mailbox.wakeup is not None:
                    dispatcher.mailbox.wakeup.set(self._clock.now_ns())

    def _in_threads(self, parts: Sequence[Callable[[], None]]) -> None:
        """The first part in this thread, each other one in its own, on its unit's core."""

        def on_core(core: int, part: Callable[[], None]) -> None:
            try:
                with pinned(core) if self._device.capabilities.runs_on_host else contextlib.nullcontext():
                    RealClock.sharpen()
                    part()
            except BaseException as error:  # noqa: BLE001 - raised again when all units have ended
                self._failures.append(error)
                self._over = True

        cores = [self._device.target.unit(unit).core for unit in self.dispatchers]
        threads = [
            threading.Thread(target=on_core, args=(core, part), name=f"framefit-{unit}", daemon=True)
            for core, part, unit in zip(cores[1:], parts[1:], list(self.dispatchers)[1:], strict=True)
        ]
        before = sys.getswitchinterval()
        # A thread that waits for the lock looks so often whether it has it: one of real-time priority would keep
        # a plain one, which has it, from its core.
        if not any(isinstance(member, PreemptiveDispatcher) for member in self.dispatchers.values()):
            sys.setswitchinterval(min(before, _SWITCH_INTERVAL_S))
        try:
            for thread in threads:
                thread.start()
            on_core(cores[0], parts[0])
        finally:
            for thread in threads:
                thread.join()
            sys.setswitchinterval(before)

    def _share_feeds(
        self, assignments: Mapping[str, UnitAssignment], feeds: Mapping[str, dict[int, Feed]]
    ) -> dict[int, Gate]:
        """Have feeds bring each unit the same frames.

        Args:
            assignments: of the units.
            feeds: of each unit: gets its copies of feeds that others read, too, and that bring a frame with every
                release, so that each unit counts itself.

        Returns:
            By the identity of a feed that may have to wait, what decides for all units whether it brings a frame.
        """
        shared: defaultdict[int, dict[str, Feed]] = defaultdict(dict)
        for unit, assignment in assignments.items():
            for job in assignment.jobs:
                if job.reads_streams:
                    shared[id(job.feed)][unit] = job.feed
        gates: dict[int, Gate] = {}
        for key, units in shared.items():
            feed = next(iter(units.values()))
            if len(units) == 1:
                continue
            if feed.waits or feed.frame_source is not None:
                gates[key] = _SharedGate(feed)
                continue
            for unit in units:
                feeds[unit][key] = copied = Feed(streams=feed.streams)
                self._copies.append((feed, copied))
        return gates

    def _merge(self, members: Sequence[Dispatcher]) -> None:
        """One log of launches and one of frames."""
        self.stalled = _stalled(members)
        if len(members) == 1:
            if self._readers:
                self.frames = FrameLog.of(with_unread(members[0].frames.rows(), self._readers, ended=True))
            return
        trace = self.trace()
        launches = [member.launches.rows() for member in members]
        begun = [
            member.begun_ns(trace) if isinstance(member, PreemptiveDispatcher) else rows[:, LaunchLog.STARTED]
            for member, rows in zip(members, launches, strict=True)
        ]
        self.launches = LaunchLog.of(ordered(launches, begun))
        frames = [member.frames.rows() for member in members]
        rows = ordered(frames, [known_ns(rows) for rows in frames])
        self.frames = FrameLog.of(with_unread(rows, self._readers, ended=True))
        for feed, copied in self._copies:
            feed.delivered = max(feed.delivered, copied.delivered)


class _SharedGate:
    """Lets the frames of streams that may have to wait come to several units.

    Whichever unit first comes to a window decides for all whether it brings a frame.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._readers: dict[Dispatcher, Sequence[tuple[int, Job]]] = {}
        self._lock = threading.Lock()
        self._windows = 0
        self._dry: set[Dispatcher] = set()

    def join(self, unit: Dispatcher, members: Sequence[tuple[int, Job]]) -> None:
        """A unit reads the streams, with these jobs and their numbers."""
        for _, job in members:
            job.queue.share()
        self._readers[unit] = members

    def dry(self, unit: Dispatcher) -> bool:
        """Of the units, each of which knows best what its own jobs do."""
        self._dry.add(unit)
        return len(self._dry) == len(self._readers)

    def bring(self, window: int) -> None:
        """Let the next frame come to all units, if this has not been decided yet and it may."""
        feed = self._feed
        with self._lock:
            if window < self._windows:
                return
            self._windows = window + 1
            frame = feed.delivered
            if feed.waits and not all(d.room_for(feed, members, window) for d, members in self._readers.items()):
                feed.waited += not feed.empty
                return
            came = feed.frame_source is None or feed.frame_source.take()
            if not came:
                feed.missing += 1
                return
            feed.delivered = frame + came
            for dispatcher, members in self._readers.items():
                for number in range(frame, frame + came):
                    dispatcher.admit(members, Arrival(number, window), dispatcher.release(window), by_another=True)


def _stalled(members: Sequence[Dispatcher]) -> dict[int, int]:
    """Window -> the most that the host kept one of the units' cores from running."""
    stalled: dict[int, int] = {}
    for member in members:
        for window, stalled_ns in tuple(member.stalled.items()):
            stalled[window] = max(stalled.get(window, 0), stalled_ns)
    return stalled


def known_ns(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """About when the fate of each frame was known."""
    known = np.maximum(rows[:, FrameLog.RELEASED], rows[:, FrameLog.FINISHED])
    known[rows[:, FrameLog.OUTCOME] == FrameOutcome.RUN_ENDED] = _LAST
    return known


def ordered(tables: Sequence[npt.NDArray[np.int64]], times: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Rows of all tables by their times; of the same time in the tables' order."""
    rows = np.concatenate(tables)
    ordered: npt.NDArray[np.int64] = rows[np.argsort(np.concatenate(times), kind="stable")]
    return ordered


MakeService = Callable[[int, Sequence[int]], Service]  # number of background jobs, and the turns of each in a round


def stage_ports(
    timetable: Timetable, mailboxes: Mapping[str, Mailbox], order: Sequence[int] | None = None
) -> list[list[Port]]:
    """Where messages for the jobs of each model's stages go, which :func:`assign_units` numbers alike.

    Args:
        timetable: its units and models.
        mailboxes: by unit.
        order: numbers of the models in order of service, priority models first; default: as they are.
    """
    ports: list[list[Port]] = [[] for _ in timetable.models]
    counts = dict.fromkeys(timetable.units, 0)
    for number in range(len(timetable.models)) if order is None else order:
        for stage in timetable.models[number].stages:
            unit = stage[0].unit
            ports[number].append(Port(unit, mailboxes[unit], counts[unit]))
            counts[unit] += 1
    return ports


def assign_units(
    timetable: Timetable,
    jobs: Sequence[Sequence[Job]],
    service: MakeService,
    *,
    order: Sequence[int] | None = None,
    stalls: Callable[[str], Callable[[], int] | None] = lambda _: None,
) -> dict[str, UnitAssignment]:
    """Each unit's jobs.

    Args:
        timetable: its units, models and priority periods.
        jobs: of each model's stages, in order.
        service: makes a unit's policy among its background jobs.
        order: numbers of the models in order of service, priority models first; default: as they are.
        stalls: of a unit: reads how long the host kept its core from running.
    """
    by_unit: dict[str, list[Job]] = {unit: [] for unit in timetable.units}
    turns: dict[str, list[int]] = {unit: [] for unit in timetable.units}
    numbers: dict[str, dict[str, list[int]]] = {unit: {} for unit in timetable.units}
    for number in range(len(timetable.models)) if order is None else order:
        model = timetable.models[number]
        for stage, count, job in zip(model.stages, model.stage_turns, jobs[number], strict=True):
            unit = stage[0].unit
            numbers[unit].setdefault(model.name, []).append(len(by_unit[unit]))
            by_unit[unit].append(job)
            if model.role == "background":
                turns[unit].append(count)
    return {
        unit: UnitAssignment(
            jobs=unit_jobs,
            service=service(len(turns[unit]), turns[unit]),
            reserved=instants(timetable, numbers[unit], unit),
            guard_ns=timetable.guard_ns,
            preemptive=timetable.preemptive,
            stalls=stalls(unit),
        )
        for unit, unit_jobs in by_unit.items()
    }
