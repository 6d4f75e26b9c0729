"""Waiting for an instant or for another unit, in real and in virtual time.

What goes from stage to stage and from model to model: who tells whom, and when it can be used there.

Several units on one beat: a dispatcher each, and what goes from one to another.

Which unit does what in a run: the stages of a timetable's models, and when they are due.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.core.grid import Grid
from framefit.core.timetable import Timetable
from framefit.devices.clock import Clock, RealClock, VirtualClock
from framefit.devices.device import Device
from framefit.devices.host import pinned
from framefit.runtime.channel import Mailbox, Message, SharedQueue, StageJob, share_streams
from framefit.runtime.failover import Failover, FindTarget, Migration
from framefit.runtime.job import Job
from framefit.runtime.log import FrameLog, FrameOutcome, FrameOutcomes, LaunchLog, ObservableFrameLog, in_time_order
from framefit.runtime.loop import LEAD_NS, WARMUP_NS, Dispatcher, Service, instants
from framefit.runtime.preemptive import PreemptiveDispatcher
from framefit.runtime.reading import with_unread
from framefit.runtime.streams import Arrival, Feed
from framefit.runtime.switching import Rung, Stretch, TimetableSwitcher

__all__ = ["MakeService", "ThreadWakeup", "UnitAssignment", "UnitGroup", "VirtualWakeup", "assign_units", "connect"]


class ThreadWakeup:
    """For a unit with a thread of its own.

    The event is a lock that is free once it is set. Nothing that Python offers is set with less work.

    Args:
        clock: the run's.
    """

    def __init__(self, clock: RealClock) -> None:
        self._clock = clock
        self._silent = threading.Lock()
        self._silent.acquire()

    def set(self, time_ns: int) -> None:  # noqa: ARG002 - the thread looks itself when something can be used
        """Wake the thread up, or keep it from going to sleep."""
        with contextlib.suppress(RuntimeError):  # somebody else has rung
            self._silent.release()

    def wait_until_ns(self, time_ns: int, get_ready: Callable[[], None] | None) -> None:
        """Sleep, get ready, and spin; at the first ring return."""
        now, rung = self._clock.now_ns, self._silent.acquire
        rest = time_ns - self._clock.spin_ns - now()
        if rest > 0 and rung(timeout=rest / 1e9):
            return
        if get_ready is not None and time_ns - now() >= WARMUP_NS:
            get_ready()
        while now() < time_ns and not rung(blocking=False):
            time.sleep(0)  # other units' threads need Python's lock, too


class VirtualWakeup:
    """For a unit that is a part of a virtual clock.

    Args:
        clock: the run's.
        part: the unit's number on it.
    """

    def __init__(self, clock: VirtualClock, part: int) -> None:
        self._clock = clock
        self._part = part

    def set(self, time_ns: int) -> None:
        """Wake the unit up at ``time_ns``, if it waits."""
        self._clock.rouse(self._part, time_ns)

    def wait_until_ns(self, time_ns: int, get_ready: Callable[[], None] | None) -> None:  # noqa: ARG002
        """Let the other units go on."""
        self._clock.rest_until_ns(time_ns)


class _Place(NamedTuple):
    """A job where it runs."""

    unit: str
    dispatcher: Dispatcher
    number: int
    job: Job


def connect(device: Device, dispatchers: Mapping[str, Dispatcher], jobs: Mapping[str, Sequence[Job]]) -> None:
    """Have stages and models hand their frames on.

    Each stage hands a frame to the next one, the last one tells the first when a slot is free. A model hands
    its results to those that read it. What goes to another unit is copied there at once, while that does something
    else; it can be used when it has arrived.

    Args:
        device: knows what the way to another unit takes.
        dispatchers: by unit.
        jobs: of each unit, as its dispatcher numbers them.
    """
    places = [
        _Place(unit, dispatchers[unit], index, job) for unit, own in jobs.items() for index, job in enumerate(own)
    ]
    stages: defaultdict[int, list[_Place]] = defaultdict(list)
    for place in places:
        relay = place.job.relay if isinstance(place.job, StageJob) else place.job
        stages[id(relay)].append(place)
    models: dict[int, list[_Place]] = {}
    for found in stages.values():
        found.sort(key=lambda place: place.job.position if isinstance(place.job, StageJob) else 0)
        if found[0].job.model is not None:
            models[found[0].job.model] = found
        for one, other in itertools.pairwise(found):
            one.job.onward = _onward(device, one, other)
        if len(found) > 1:
            found[-1].job.freed = free = _freed(found[-1], found[0])
            _skip_downstream(found, free)
    for place in places:
        if place.job.join is not None:
            for source, model in enumerate(place.job.join.models):
                models[model][0].job.readers.append(place.job)
                models[model][-1].job.told.append(_give(device, models[model][-1], place, source))


def _onward(device: Device, one: _Place, other: _Place) -> Callable[[int], None]:
    """A stage's frame for the next one."""
    job, mailbox, arrival_ns = one.job, other.dispatcher.mailbox, device.arrival_ns
    assert isinstance(job, StageJob)
    sender, receiver, size, index = one.unit, other.unit, job.onward_bytes, other.number

    def hand_over(written_ns: int) -> None:
        ready_ns = arrival_ns(sender, receiver, size, written_ns)  # a copy begins now, not when the stage starts
        job.passed += 1
        job.sent_ns = ready_ns
        mailbox.put(Message(ready_ns, index, job.passed, job.in_flight, job.started_ns))

    return hand_over


def _freed(last: _Place, first: _Place) -> Callable[[int], None]:
    """The news that a slot is free again."""
    assert isinstance(last.job, StageJob)
    relay, mailbox, index = last.job.relay, first.dispatcher.mailbox, first.number

    def free(finished_ns: int) -> None:
        relay.complete()
        mailbox.put(Message(finished_ns, index, relay.completed))

    return free


def _skip_downstream(stages: Sequence[_Place], free: Callable[[int], None]) -> None:
    """A frame that was given up goes by the later stages, behind those before it, and then its slot is free."""

    def next_to(job: StageJob, mailbox: Mailbox, index: int) -> Callable[[int], None]:
        def skip_downstream(now_ns: int) -> None:
            job.passed += 1
            job.sent_ns = max(job.sent_ns, now_ns)
            mailbox.put(Message(job.sent_ns, index, job.passed, lost=True))

        return skip_downstream

    for one, other in itertools.pairwise(stages):
        assert isinstance(one.job, StageJob)
        one.job.skip_downstream = next_to(one.job, other.dispatcher.mailbox, other.number)
    last = stages[-1].job
    assert isinstance(last, StageJob)
    last.skip_downstream = free


def _give(device: Device, giver: _Place, reader: _Place, source: int) -> Callable[[Sequence[Arrival], int, int], None]:
    """A model's result for another one."""
    join = reader.job.join
    assert join is not None
    supply, given, mailbox = join.supplies[source], join.given, reader.dispatcher.mailbox
    sender, receiver, index = giver.unit, reader.unit, reader.number

    def give(arrivals: Sequence[Arrival], started_ns: int, finished_ns: int) -> None:  # noqa: ARG001 - a job's form
        newest = arrivals[-1]
        if not supply.keep(newest.frame):
            return  # nobody has read the last ones
        ready_ns = finished_ns
        if sender != receiver:
            ready_ns = device.arrival_ns(sender, receiver, supply.frame_bytes, finished_ns)
        given[source] += 1
        mailbox.put(Message(ready_ns, index, given[source], (newest,), source=source))

    return give


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
    """

    def __init__(self, device: Device, clock: Clock, assignments: Mapping[str, UnitAssignment], grid: Grid) -> None:
        self._device = device
        self._clock = clock
        assignments = {unit: assignment for unit, assignment in assignments.items() if assignment.jobs}
        self.dispatchers: dict[str, Dispatcher] = {}
        for unit, assignment in assignments.items():
            kind = PreemptiveDispatcher if assignment.preemptive else Dispatcher
            self.dispatchers[unit] = dispatcher = kind(
                device,
                clock,
                assignment.jobs,
                grid,
                assignment.guard_ns,
                service=assignment.service,
                reserved=assignment.reserved,
                stalls=assignment.stalls,
            )
            dispatcher.collects = len(self.dispatchers) == 1
        self._lead = next(iter(self.dispatchers.values()))
        self._copies: list[tuple[Feed, Feed]] = []
        self._over = False
        self._away: list[Dispatcher] = []  # whose part is over
        self._failures: list[BaseException] = []
        self._readers = _readers([job for assignment in assignments.values() for job in assignment.jobs])
        if len(assignments) > 1:
            self._share(assignments)
        elif self._readers and assignments and next(iter(assignments.values())).preemptive:
            self._lead.mailbox.wakeup = ThreadWakeup(_real(clock))  # the one thread is to be woken up by the other
        connect(device, self.dispatchers, {unit: assignment.jobs for unit, assignment in assignments.items()})
        self.launches = self._lead.launches
        self.frames = self._lead.frames
        self.faults = self._lead.faults
        for dispatcher in self.dispatchers.values():
            dispatcher.faults = self.faults
        self.stalled: dict[int, int] = {}
        self.migrations: list[Migration] = []

    def enable_failover(self, find_target: FindTarget) -> None:
        """Have models of a unit that fails for good go on on others; before the run.

        Args:
            find_target: where a model may go on.
        """
        failover = Failover(self._clock, self.dispatchers, find_target)
        self.migrations = failover.migrations
        for unit, dispatcher in self.dispatchers.items():
            dispatcher.failed = functools.partial(failover, unit) if len(self.dispatchers) > 1 else None

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

    def tell(self, fates: FrameOutcomes) -> None:
        """Note the fates of frames there, too, as soon as they are decided; before the run."""
        for dispatcher in self.dispatchers.values():
            dispatcher.frames = ObservableFrameLog(fates)
        self.frames = self._lead.frames

    def so_far(self) -> UnitGroup:
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
                if other.mailbox.wakeup is not None:
                    other.mailbox.wakeup.set(self._clock.now_ns())

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

    def _share(self, assignments: Mapping[str, UnitAssignment]) -> None:
        """Make the switcher, wake-up events, locked streams, and feeds that bring each unit the same frames."""
        jobs = [
            (unit, index, job) for unit, assignment in assignments.items() for index, job in enumerate(assignment.jobs)
        ]
        clock = self._clock
        rungs = [dispatcher.stretches[0].rung for dispatcher in self.dispatchers.values()]
        switcher = TimetableSwitcher(Rung(rungs[0].grid, [share for rung in rungs for share in rung.shares]))
        for part, dispatcher in enumerate(self.dispatchers.values()):
            dispatcher.join(switcher, part)
            dispatcher.mailbox.wakeup = (
                VirtualWakeup(clock, part) if isinstance(clock, VirtualClock) else ThreadWakeup(_real(clock))
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
            if feed.waits or feed.frame_source is not None:
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
            came = feed.frame_source is None or feed.frame_source.take()
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
    left = {job.model: job.join.models for job in jobs if job.join is not None and job.model is not None}
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
    known[rows[:, FrameLog.OUTCOME] == FrameOutcome.RUN_ENDED] = _LAST
    return known


def _ordered(tables: Sequence[npt.NDArray[np.int64]], times: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Rows of all tables by their times; of the same time in the tables' order."""
    rows = np.concatenate(tables)
    ordered: npt.NDArray[np.int64] = rows[np.argsort(np.concatenate(times), kind="stable")]
    return ordered


MakeService = Callable[[int, Sequence[int]], Service]  # number of background jobs, and the turns of each in a round


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
        for stage, job in zip(model.stages, jobs[number], strict=True):
            unit = stage[0].unit
            numbers[unit].setdefault(model.name, []).append(len(by_unit[unit]))
            by_unit[unit].append(job)
            if model.role == "background":
                turns[unit].append(model.turns)
    return {
        unit: UnitAssignment(
            jobs=own,
            service=service(len(turns[unit]), turns[unit]),
            reserved=instants(timetable, numbers[unit], unit),
            guard_ns=timetable.guard_ns,
            preemptive=timetable.preemptive,
            stalls=stalls(unit),
        )
        for unit, own in by_unit.items()
    }
