"""Several units on one beat: a dispatcher each, and what goes from one to another."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.grid import Grid
from framefit.devices.clock import Clock, RealClock, VirtualClock
from framefit.devices.device import Device
from framefit.devices.host import pinned
from framefit.runtime.beat.bells import ThreadBell, VirtualBell
from framefit.runtime.beat.course import Course
from framefit.runtime.beat.dispatcher import LEAD_NS, Dispatcher, Service
from framefit.runtime.beat.handing import connect
from framefit.runtime.beat.moving import Moved, Mover, Spare
from framefit.runtime.beat.preemptive import PreemptiveDispatcher
from framefit.runtime.beat.rungs import Rung, Stretch
from framefit.runtime.beat.shared import SharedQueue, share_streams
from framefit.runtime.frames.reading import with_unread
from framefit.runtime.frames.streams import Arrival, Feed
from framefit.runtime.models.job import Job
from framefit.runtime.records.log import Fate, Fates, FrameLog, LaunchLog, ToldFrameLog
from framefit.runtime.records.traces import in_time_order

__all__ = ["Crew", "Duty"]

_SWITCH_INTERVAL_S = 2e-5  # a thread that wants Python's lock waits for one that spins so long at most
_LAST = np.iinfo(np.int64).max
_FAREWELL_NS = 500_000_000  # for units to end what they do, where one of them does not come back


@dataclass(frozen=True)
class Duty:
    """What one unit does in a run.

    Attributes:
        jobs: priority ones first, then background jobs in order of service.
        service: policy among its background jobs.
        reserved: when its priority jobs are due; see :class:`~framefit.runtime.beat.dispatcher.Dispatcher`.
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


class Crew:
    """The dispatchers of all units, on one clock and one grid of releases.

    Each unit is dispatched as if it were alone. What a stage is done with goes to the desk of the unit
    that has the next stage, together with the time when it can be used there; that unit looks
    at its desk before it decides anything, and is woken where it waits. In real time every unit
    has a thread, on its own core where the device is this machine; in virtual time they take turns.

    The order of ``duties`` decides between units in the same nanosecond of virtual time. The calling
    thread is the first unit's: it collects the device's events and calls ``on_idle``. In real time
    sinks and streams of models on different units are used by different threads, a stream by one at a
    time.

    Args:
        device: executes on all units.
        clock: the run's time; the device's own.
        duties: unit -> what it does; one without jobs stays idle. A model's jobs carry its number
            (:attr:`Job.model`).
        grid: when windows begin, and what they bring.
    """

    def __init__(self, device: Device, clock: Clock, duties: Mapping[str, Duty], grid: Grid) -> None:
        self._device = device
        self._clock = clock
        duties = {unit: duty for unit, duty in duties.items() if duty.jobs}
        self.dispatchers: dict[str, Dispatcher] = {}
        for unit, duty in duties.items():
            kind = PreemptiveDispatcher if duty.preemptive else Dispatcher
            self.dispatchers[unit] = dispatcher = kind(
                device,
                clock,
                duty.jobs,
                grid,
                duty.guard_ns,
                service=duty.service,
                reserved=duty.reserved,
                stalls=duty.stalls,
            )
            dispatcher.collects = len(self.dispatchers) == 1
        self._lead = next(iter(self.dispatchers.values()))
        self._copies: list[tuple[Feed, Feed]] = []
        self._over = False
        self._away: list[Dispatcher] = []  # whose part is over
        self._failures: list[BaseException] = []
        self._readers = _readers([job for duty in duties.values() for job in duty.jobs])
        if len(duties) > 1:
            self._share(duties)
        elif self._readers and duties and next(iter(duties.values())).preemptive:
            self._lead.desk.bell = ThreadBell(_real(clock))  # the one thread is to be woken up by the other
        connect(device, self.dispatchers, {unit: duty.jobs for unit, duty in duties.items()})
        self.launches = self._lead.launches
        self.frames = self._lead.frames
        self.faults = self._lead.faults
        for dispatcher in self.dispatchers.values():
            dispatcher.faults = self.faults
        self.stalled: dict[int, int] = {}
        self.moved: list[Moved] = []

    def lodge(self, spare: Spare) -> None:
        """Have models of a unit that fails for good go on on others; before the run.

        Args:
            spare: where a model may go on.
        """
        mover = Mover(self._clock, self.dispatchers, spare)
        self.moved = mover.moved
        for unit, dispatcher in self.dispatchers.items():
            dispatcher.failed = functools.partial(mover, unit) if len(self.dispatchers) > 1 else None

    @property
    def start_ns(self) -> int:
        """The first release."""
        return self._lead.start_ns

    @property
    def windows(self) -> int:
        """Windows that have begun."""
        return max(dispatcher.windows for dispatcher in self.dispatchers.values())

    @property
    def ended(self) -> bool:
        """Whether a stream's end ended the run."""
        return any(dispatcher.ended for dispatcher in self.dispatchers.values())

    def release(self, window: int) -> int:
        """Absolute time at which a window begins."""
        return self._lead.release(window)

    @property
    def course(self) -> Course:
        """What is in force, and will be."""
        return self._lead.course

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

    def tell(self, fates: Fates) -> None:
        """Note the fates of frames there, too, as soon as they are decided; before the run."""
        for dispatcher in self.dispatchers.values():
            dispatcher.frames = ToldFrameLog(fates)
        self.frames = self._lead.frames

    def so_far(self) -> Crew:
        """What has happened while the run goes on, for another thread; what happened last may be missing."""
        members = list(self.dispatchers.values())
        launches = [member.launches.snapshot() for member in members]
        frames = [member.frames.snapshot() for member in members]
        found = copy.copy(self)
        found.launches = LaunchLog.of(_ordered(launches, [rows[:, LaunchLog.STARTED] for rows in launches]))
        rows = _ordered(frames, [_known_ns(rows) for rows in frames])
        found.frames = FrameLog.of(with_unread(rows, self._readers, ended=False))
        found.stalled = _stalled(members)
        return found

    def trace(self) -> Trace:
        """All packets of the run, in the order of their times."""
        trace = self._lead.trace()
        # An accelerator's own trace unit orders them, and its time stamps may wrap around.
        side_by_side = len(self.dispatchers) > 1 and self._device.target.kind == "ort"
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
            told = on_idle if member is self._lead else None
            return lambda: self._work(member, windows, lambda: self._over or stop(), told)

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
        for member in reversed(members):  # the first one collects the events
            try:
                member.end()
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
            for other in self.dispatchers.values():
                if other.desk.bell is not None:
                    other.desk.bell.ring(self._clock.now_ns())

    def _in_threads(self, parts: Sequence[Callable[[], None]]) -> None:
        """The first part in this thread, each other one in its own, on its unit's core."""

        def on_core(core: int, part: Callable[[], None]) -> None:
            try:
                with pinned(core) if self._device.target.kind == "ort" else contextlib.nullcontext():
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

    def _share(self, duties: Mapping[str, Duty]) -> None:
        """One course, bells, streams that one reads at a time, and feeds that bring each unit the same frames."""
        jobs = [(unit, index, job) for unit, duty in duties.items() for index, job in enumerate(duty.jobs)]
        clock = self._clock
        rungs = [dispatcher.stretches[0].rung for dispatcher in self.dispatchers.values()]
        course = Course(Rung(rungs[0].grid, [share for rung in rungs for share in rung.shares]))
        for part, dispatcher in enumerate(self.dispatchers.values()):
            dispatcher.join(course, part)
            dispatcher.desk.bell = (
                VirtualBell(clock, part) if isinstance(clock, VirtualClock) else ThreadBell(_real(clock))
            )
        if not isinstance(clock, VirtualClock):
            share_streams(job for _, _, job in jobs)
        readers: defaultdict[int, list[tuple[str, int, Job]]] = defaultdict(list)
        for unit, index, job in jobs:
            if job.reads_streams:
                readers[id(job.feed)].append((unit, index, job))
        for found in readers.values():
            feed = found[0][2].feed
            if len({unit for unit, _, _ in found}) == 1:
                continue
            if feed.waits or feed.intake is not None:
                feed.gate = _Gate(feed, [(self.dispatchers[unit], index, job) for unit, index, job in found])
                continue
            # Every release brings a frame: each unit counts itself.
            copies = {unit: Feed(streams=feed.streams) for unit, _, _ in found}
            for unit, _, job in found:
                job.feed = copies[unit]
            self._copies += [(feed, copy) for copy in copies.values()]
        for dispatcher in self.dispatchers.values():
            dispatcher.find_feeds()

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
        self.launches = LaunchLog.of(_ordered(launches, begun))
        frames = [member.frames.rows() for member in members]
        rows = _ordered(frames, [_known_ns(rows) for rows in frames])
        self.frames = FrameLog.of(with_unread(rows, self._readers, ended=True))
        for feed, own in self._copies:
            feed.delivered = max(feed.delivered, own.delivered)


class _Gate:
    """Lets the frames of streams that may have to wait come to several units.

    Whichever unit first comes to a window decides for all whether it brings a frame.
    """

    def __init__(self, feed: Feed, readers: Sequence[tuple[Dispatcher, int, Job]]) -> None:
        self._feed = feed
        self._readers: defaultdict[Dispatcher, list[tuple[int, Job]]] = defaultdict(list)
        for dispatcher, index, job in readers:
            job.queue = SharedQueue(job.queue)
            self._readers[dispatcher].append((index, job))
        self._lock = threading.Lock()
        self._windows = 0
        self._dry: set[object] = set()

    def dry(self, unit: object) -> bool:
        """Of the units, each of which knows best what its own jobs do."""
        self._dry.add(unit)
        return len(self._dry) == len(self._readers)

    def __call__(self, window: int) -> None:
        feed = self._feed
        with self._lock:
            if window < self._windows:
                return
            self._windows = window + 1
            frame = feed.delivered
            if feed.waits and not all(d.room_for(feed, members, window) for d, members in self._readers.items()):
                feed.waited += not feed.empty
                return
            came = feed.intake is None or feed.intake.take()
            if not came:
                feed.missing += 1
                return
            feed.delivered = frame + came
            for dispatcher, members in self._readers.items():
                for number in range(frame, frame + came):
                    dispatcher.admit(members, Arrival(number, window), dispatcher.release(window), by_another=True)


def _real(clock: Clock) -> RealClock:
    assert isinstance(clock, RealClock)
    return clock


def _readers(jobs: Sequence[Job]) -> dict[int, Sequence[int]]:
    """Models that read others -> these; each after those that it reads."""
    left = {job.model: job.reading.models for job in jobs if job.reading is not None and job.model is not None}
    found: dict[int, Sequence[int]] = {}
    while left:
        model = next(model for model, reads in left.items() if left.keys().isdisjoint(reads))
        found[model] = left.pop(model)
    return found


def _stalled(members: Sequence[Dispatcher]) -> dict[int, int]:
    """Window -> the most that the host kept one of the units' cores from running."""
    found: dict[int, int] = {}
    for member in members:
        for window, stalled_ns in tuple(member.stalled.items()):
            found[window] = max(found.get(window, 0), stalled_ns)
    return found


def _known_ns(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """About when the fate of each frame was known."""
    known = np.maximum(rows[:, FrameLog.RELEASED], rows[:, FrameLog.FINISHED])
    known[rows[:, FrameLog.FATE] == Fate.RUN_ENDED] = _LAST
    return known


def _ordered(tables: Sequence[npt.NDArray[np.int64]], times: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Rows of all tables by their times; of the same time in the tables' order."""
    rows = np.concatenate(tables)
    ordered: npt.NDArray[np.int64] = rows[np.argsort(np.concatenate(times), kind="stable")]
    return ordered
