"""Several units on one beat: a dispatcher each, and what goes from one to another."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framefit.core.events import Trace
from framefit.devices.clock import Clock, RealClock, VirtualClock
from framefit.devices.device import Device
from framefit.devices.host import pinned
from framefit.runtime.bells import ThreadBell, VirtualBell
from framefit.runtime.dispatcher import LEAD_NS, Dispatcher, Service
from framefit.runtime.job import Job
from framefit.runtime.log import Fate, FrameLog, LaunchLog
from framefit.runtime.preemptive import PreemptiveDispatcher
from framefit.runtime.relay import Handed, StageJob
from framefit.runtime.shared import SharedQueue, share_streams
from framefit.runtime.streams import Arrival, Feed
from framefit.runtime.traces import in_time_order

__all__ = ["Crew", "Duty"]

_SWITCH_INTERVAL_S = 2e-5  # a thread that wants Python's lock waits for one that spins so long at most
_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Duty:
    """What one unit does in a run.

    Attributes:
        jobs: priority ones first, then background jobs in order of service.
        service: policy among its background jobs.
        reserved: when its priority jobs are due; see :class:`~framefit.runtime.dispatcher.Dispatcher`.
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
        rate_hz: windows a second.
    """

    def __init__(self, device: Device, clock: Clock, duties: Mapping[str, Duty], rate_hz: float) -> None:
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
                rate_hz,
                duty.guard_ns,
                service=duty.service,
                reserved=duty.reserved,
                stalls=duty.stalls,
            )
            dispatcher.collects = len(self.dispatchers) == 1
        self._lead = next(iter(self.dispatchers.values()))
        self._copies: list[tuple[Feed, Feed]] = []
        self._over = False
        self._failures: list[BaseException] = []
        if len(duties) > 1:
            self._share(duties)
        self._connect(duties)
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
    def ended(self) -> bool:
        """Whether a stream's end ended the run."""
        return any(dispatcher.ended for dispatcher in self.dispatchers.values())

    def release(self, window: int) -> int:
        """Absolute time at which a window begins."""
        return self._lead.release(window)

    def at_work(self) -> bool:
        """Whether frames that were handed over still wait or are worked on."""
        return any(dispatcher.at_work() for dispatcher in self.dispatchers.values())

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
            members[0].run(windows, stop=stop, on_idle=on_idle)
            self.stalled = members[0].stalled
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
            for member in reversed(members):  # the first one collects the events
                try:
                    member.end()
                except BaseException as error:  # noqa: BLE001 - raised again when all units have ended
                    self._failures.append(error)
            self._merge(members)
        if self._failures:
            raise self._failures[0]

    def _work(
        self, member: Dispatcher, windows: int, stop: Callable[[], bool], on_idle: Callable[[int], None] | None
    ) -> None:
        """One unit's part; where it ends early, all do."""
        try:
            member.keep_beat(windows, stop=stop, on_idle=on_idle)
        except BaseException as error:  # noqa: BLE001 - raised again when all units have ended
            self._failures.append(error)
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
        """Bells, streams that one reads at a time, and feeds that bring each unit the same frames."""
        jobs = [(unit, index, job) for unit, duty in duties.items() for index, job in enumerate(duty.jobs)]
        clock = self._clock
        for part, dispatcher in enumerate(self.dispatchers.values()):
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
            copies: defaultdict[str, Feed] = defaultdict(Feed)  # every window brings a frame: each unit counts itself
            for unit, _, job in found:
                job.feed = copies[unit]
            self._copies += [(feed, copy) for copy in copies.values()]
        for dispatcher in self.dispatchers.values():
            dispatcher.find_feeds()

    def _connect(self, duties: Mapping[str, Duty]) -> None:
        """Have each stage hand its frames to the next one, and the last one tell the first when a slot is free."""
        stages: defaultdict[int, list[tuple[str, int, StageJob]]] = defaultdict(list)
        for unit, duty in duties.items():
            for index, job in enumerate(duty.jobs):
                if isinstance(job, StageJob):
                    stages[id(job.relay)].append((unit, index, job))
        for found in stages.values():
            found.sort(key=lambda entry: entry[2].position)
            for (unit, _, job), (other, index, _) in itertools.pairwise(found):
                job.onward = self._hand_over(job, unit, other, index)
            (first, index, _), (_, _, last) = found[0], found[-1]
            last.freed = _Freed(last, self.dispatchers[first], index)

    def _hand_over(self, job: StageJob, unit: str, other: str, index: int) -> Callable[[int], None]:
        desk, arrival_ns, size = self.dispatchers[other].desk, self._device.arrival_ns, job.onward_bytes

        def hand_over(written_ns: int) -> None:
            ready_ns = arrival_ns(unit, other, size, written_ns)  # a copy begins now, not when the stage starts
            job.passed += 1
            desk.put(Handed(ready_ns, index, job.passed, job.in_flight, job.started_ns))

        return hand_over

    def _merge(self, members: Sequence[Dispatcher]) -> None:
        """One log of launches and one of frames."""
        trace = self.trace()
        launches = [member.launches.rows() for member in members]
        begun = [
            member.begun_ns(trace) if isinstance(member, PreemptiveDispatcher) else rows[:, LaunchLog.STARTED]
            for member, rows in zip(members, launches, strict=True)
        ]
        self.launches = LaunchLog.of(_ordered(launches, begun))
        frames = [member.frames.rows() for member in members]
        self.frames = FrameLog.of(_ordered(frames, [_known_ns(rows) for rows in frames]))
        for member in members:
            for window, stalled_ns in member.stalled.items():
                self.stalled[window] = max(self.stalled.get(window, 0), stalled_ns)
        for feed, copy in self._copies:
            feed.delivered = max(feed.delivered, copy.delivered)


class _Freed:
    """Tells the first stage that the last one is done with a frame."""

    def __init__(self, last: StageJob, first: Dispatcher, index: int) -> None:
        self._relay, self._desk, self._index = last.relay, first.desk, index

    def __call__(self, finished_ns: int) -> None:
        relay = self._relay
        relay.completed += 1
        self._desk.put(Handed(finished_ns, self._index, relay.completed))


class _Gate:
    """Lets the frames of streams that may have to wait come to several units.

    Whichever unit first comes to a window decides for all whether it brings a frame.
    """

    def __init__(self, feed: Feed, readers: Sequence[tuple[Dispatcher, int, Job]]) -> None:
        self._feed = feed
        self._jobs = [job for _, _, job in readers]
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
            if feed.waits and (feed.over or not all(job.accepts(frame, window) for job in self._jobs)):
                feed.waited += not feed.empty
                return
            if feed.intake is not None and not feed.intake.take():
                return
            feed.delivered = frame + 1
            for dispatcher, members in self._readers.items():
                dispatcher.admit(members, Arrival(frame, window), dispatcher.release(window), by_another=True)


def _real(clock: Clock) -> RealClock:
    assert isinstance(clock, RealClock)
    return clock


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
