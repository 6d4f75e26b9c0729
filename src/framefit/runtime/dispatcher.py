"""The loop that keeps the beat: priority models at their instants, segments in the residuals."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from framefit.core.events import Trace
from framefit.core.model import TensorInfo
from framefit.core.timetable import Timetable
from framefit.core.workload import release_ns
from framefit.devices.clock import Clock, RealClock
from framefit.devices.device import Array, Completion, Device
from framefit.runtime.execution import Execution
from framefit.runtime.job import Job
from framefit.runtime.log import Fate, FrameLog, LaunchLog
from framefit.runtime.sinks import Sink
from framefit.runtime.streams import Arrival, EndOfStream, Feed, Queue

__all__ = ["Dispatcher", "Service", "instants", "steady"]

_IDLE_NS = 1_000_000  # sinks and progress get a turn only when this much of a window is left
_PENDING_OUTPUTS = 64  # outputs that may wait for such a turn
_PENDING_FRAMES = 1024  # whose fate may
_DRAIN_WINDOWS = 256  # between two looks into the event buffer of a device on this host
_MOST_PACKETS = 1 << 22  # that are kept, 32 bytes each
_SWITCH_INTERVAL_S = 1e-4  # other Python threads get the lock this often at most
_SETTLE_NS = 200_000  # the logs get a turn when this much is left
_REHEARSAL_NS = 60_000  # a rehearsal takes 30 to 60 us with cold caches
_LEAD_NS = 20_000_000  # between the call and the first release


class Service(Protocol):
    """Whose background segment runs next; the planner's own policy."""

    def choose(self, needed_ns: Sequence[int | None], room_ns: int) -> int | None:
        """Number of the background model, or None: nothing fits into ``room_ns``."""

    def finished(self, model: int) -> None:
        """A frame of that background model is done."""


class _Still:
    """A stream for rehearsals: one array of each type."""

    length = None

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def has(self, frame: int) -> bool:  # noqa: ARG002 - the protocol's form
        return True

    def read(self, frame: int, tensor: TensorInfo) -> Array:  # noqa: ARG002 - the protocol's form
        if tensor.dtype not in self._arrays:
            self._arrays[tensor.dtype] = np.zeros(1, tensor.dtype)
        return self._arrays[tensor.dtype]


class Dispatcher:
    """One cooperative thread on one unit.

    In every window the priority models run at their reserved instants, in order.
    Between, background segments run as ``service`` chooses; a segment starts only when
    its planned quantile and the guard fit before the next reserved instant. Otherwise
    the thread waits. Just before it goes on it rehearses: what a launch needs has left the
    caches, and fetching it takes longer (30 to 60 us) than what it is needed for.

    Args:
        device: executes.
        clock: the run's time; the device's own.
        jobs: priority models first, then background models in order of service.
        rate_hz: windows a second; window k begins round(k x 1e9 / rate) after the first.
        guard_ns: kept free before each reserved instant.
        service: policy among background models.
        reserved: for each window of a repeating pattern, when priority jobs are due: pairs
            of time after the release and number of the job. Default: all at the release.
        stalls: reads how long the host kept this machine from running (ns, ever growing).
    """

    _one_thread = True

    def __init__(
        self,
        device: Device,
        clock: Clock,
        jobs: Sequence[Job],
        rate_hz: float,
        guard_ns: int,
        *,
        service: Service,
        reserved: Sequence[Sequence[tuple[int, int]]] | None = None,
        stalls: Callable[[], int] | None = None,
    ) -> None:
        self._device = device
        self._clock = clock
        self._jobs = list(jobs)
        self._feeds = _feeds(self._jobs)
        self._background = [(index, job) for index, job in enumerate(jobs) if not job.priority]
        self._turns = {index: turn for turn, (index, _) in enumerate(self._background)}
        self._needed: list[int | None] = [None] * len(self._background)  # quantiles of what each would launch next
        self._rate_hz = rate_hz
        self._guard_ns = guard_ns
        self._service = service
        self._reserved = reserved or [[(0, index) for index, job in enumerate(jobs) if job.priority]]
        self._stalls = stalls
        self._stalled_ns = 0
        self._on_host = device.target.kind == "ort"  # else the device itself decides what it keeps
        self._on_thread = isinstance(clock, RealClock) and self._on_host
        self._outputs: deque[tuple[Sink, int, dict[str, Array]]] = deque()
        self._completed: deque[tuple[int, list[Arrival], int, int]] = deque()  # job, frames, start, finish
        self._traces: deque[Trace] = deque()
        self._overwritten = 0  # packets
        self._drained = 0
        self._next_release = 0
        self._last_finish = -1
        self._read_ns = 0, 0  # time, and this thread's on the processor
        self.ended = False
        self.launches = LaunchLog()
        self.frames = FrameLog()
        self.stalled: dict[int, int] = {}
        self.start_ns = 0
        self.windows = 0

    def release(self, window: int) -> int:
        """Absolute time at which a window begins."""
        return self.start_ns + release_ns(window, self._rate_hz)

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
        clock, pattern, understudy = self._clock, self._reserved, self._understudy()
        if self._stalls is not None:
            self._stalled_ns = self._stalls()
        self.start_ns = self._next_release = clock.now_ns() + _LEAD_NS
        clock.sleep_until_ns(self.start_ns)
        agenda: deque[tuple[int, int]] = deque()  # when which priority job is due
        upcoming = self.start_ns  # the first reserved instant from the next release on
        try:
            while not self.ended and not stop():
                now = clock.now_ns()
                while now >= (next_release := self._next_release) and self.windows < windows:
                    if self._dried_up():
                        self.ended = True
                        break
                    self._deliver(self.windows)
                    agenda.extend((next_release + after, job) for after, job in pattern[self.windows % len(pattern)])
                    self.windows += 1
                    self._next_release = self.release(self.windows)
                    upcoming = self._next_reserved(self._next_release, windows)
                if agenda and agenda[0][0] <= now:
                    index = agenda[0][1]
                    job = self._jobs[index]
                    if job.ready:
                        self._launch(index, now)
                    if not job.busy:  # one frame an instant: the next one has its own
                        agenda.popleft()
                    continue
                if now >= next_release:
                    break
                if self._serve(now, agenda[0][0] if agenda else upcoming):
                    continue
                wake = min(agenda[0][0], next_release) if agenda else next_release
                self._use_idle(wake, on_idle)
                clock.doze_until_ns(wake)
                if understudy is not None and wake - clock.now_ns() >= _REHEARSAL_NS:
                    understudy.rehearse()
                clock.sleep_until_ns(wake)
        finally:
            self._end()

    def trace(self) -> Trace:
        """All packets of the run, losses marked where they were noticed."""
        return _joined(self._traces, self._overwritten)

    def _understudy(self) -> Dispatcher | None:
        """A dispatcher of this kind whose only job has no effect; none where time is not real."""
        job = next((job for job in self._jobs if job.priority), self._jobs[0])
        if not isinstance(self._clock, RealClock) or not isinstance(job.execution, Execution):
            return None
        execution = copy.copy(job.execution)
        execution.disarm()
        stand_in = Job(
            execution=execution,
            first_program=0,
            priority=True,
            estimates_ns=(0, 0),  # two segments: no frame is completed
            deadline_ns=None,
            sources=dict.fromkeys(job.sources, _Still()),
            queue=Queue(job.frames),
            frames=job.frames,
        )
        return type(self)(self._device, self._clock, [stand_in], self._rate_hz, 0, service=self._service)

    def rehearse(self) -> None:
        """Go through a release and a launch of the first job, and forget it; for an understudy."""
        job = self._jobs[0]
        self._dried_up()
        for window in range(job.frames + 1):  # one too many: what a full queue does is rehearsed, too
            self._deliver(window)
        if job.ready:
            self._launch(0, self.release(1))
        job.clear()
        self.launches.clear()
        self.frames.clear()

    def _next_reserved(self, next_release: int, windows: int) -> int:
        """The first reserved instant from the next release on."""
        if self.windows >= windows:
            return next_release
        due = self._reserved[self.windows % len(self._reserved)]
        return next_release + (due[0][0] if due else 0)

    def _dried_up(self) -> bool:
        """Whether streams that wait have ended, and their frames are done."""
        for feed, members in self._feeds:
            if not feed.waits:
                continue  # its end is noticed where a frame is read
            sources = [source for _, job in members for source in job.sources.values()]
            feed.over = feed.over or not all(source.has(feed.delivered) for source in sources)
            if feed.over and not any(self._has_work(job) for _, job in members):
                return True
        return False

    def _deliver(self, window: int) -> None:
        """A frame of each feed arrives at every model that wants it, unless it has to wait."""
        released = self.release(window)
        for feed, members in self._feeds:
            frame = feed.delivered
            if feed.waits and (feed.over or not all(job.accepts(frame, window) for _, job in members)):
                feed.waited += not feed.over
                continue
            feed.delivered = frame + 1
            for index, job in members:
                if frame % job.every:
                    self.frames.add(index, frame, Fate.SKIPPED, window, released)
                    continue
                dropped = self._put(job, Arrival(frame, window))
                if self._one_thread and index in self._turns:
                    self._needed[self._turns[index]] = job.next_ns
                if dropped is not None:
                    fate = Fate.REFUSED if dropped.window == window else Fate.QUEUE_FULL
                    self.frames.add(index, dropped.frame, fate, dropped.window, self.release(dropped.window))

    def _put(self, job: Job, frame: Arrival) -> Arrival | None:
        return job.queue.put(frame)

    def _take(self, job: Job) -> None:
        job.take()

    def _has_work(self, job: Job) -> bool:
        return job.ready

    def _serve(self, now: int, reserved: int) -> bool:
        """Launch the background segment that is due and fits, if there is one, and what follows it."""
        if not self._background:
            return False
        latest = reserved - self._guard_ns
        chosen = self._service.choose(self._needed, latest - now)
        if chosen is None:
            return False
        index, job = self._background[chosen]
        self._launch(index, now, latest)
        self._needed[chosen] = job.next_ns
        return True

    def _launch(self, index: int, ready_ns: int, latest_ns: int = 0) -> None:
        """Launch a job's next segment, and the following ones of the frame while they end by ``latest_ns``.

        Until a frame arrives, the policy would choose the same: room only shrinks, so what did
        not fit before this model's segment does not fit after it. Not to ask again saves half of the time
        between two segments, for all of it runs with cold caches.
        """
        job = self._jobs[index]
        if not job.busy:
            self._take(job)
            try:
                job.load()
            except EndOfStream:
                self.ended = True
                return
        window, frame, add = self.windows - 1, job.in_flight[-1].frame, self.launches.add
        segment, last, estimates, step = (
            job.next_segment,
            len(job.estimates_ns) - 1,
            job.estimates_ns,
            job.execution.step,
        )
        followed = self._one_thread and self._last_finish >= 0
        read_ns = self._read_ns  # a local: two threads may be here
        if followed:
            ready_ns = self._last_finish
        elif self._on_thread:
            self._read_ns = read_ns = self._clock.now_ns(), time.thread_time_ns()
        launch = step(segment)
        while True:
            program, until_ns = job.first_program + segment, -1
            if latest_ns and segment < last:  # decided with warm caches, as far as it can be
                following = step(segment + 1)
                until_ns = min(latest_ns - estimates[segment + 1], self._next_release)
            try:
                done = launch()
            except BaseException:
                add(program, window, frame, self._clock.now_ns(), -1, ready_ns, followed, -1)
                raise
            if segment == 0:
                job.started_ns = done.started_ns
            finished = done.finished_ns
            if finished > until_ns:
                break
            add(program, window, frame, done.started_ns, finished, ready_ns, followed, -1)
            segment, ready_ns, followed, launch = segment + 1, finished, True, following
        job.next_segment = segment + 1 if segment < last else 0  # another thread may look at it
        spent = -1
        if self._on_thread and (finished - done.started_ns > estimates[segment] or not self._one_thread):
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

    def _complete(self, index: int, job: Job, finished_ns: int) -> None:
        """A frame is done; its account is drawn up where there is time for it."""
        self._completed.append((index, job.in_flight, job.started_ns, finished_ns))
        for sink, names in job.sinks:
            self._outputs.append((sink, job.in_flight[-1].frame, job.execution.results(names)))
        job.execution.finish()
        job.in_flight, job.next_segment = [], 0
        if not job.priority:
            self._service.finished(self._turns[index])
        self._relieve()

    def _account(self) -> None:
        """The fates of the frames that were completed."""
        for _ in range(len(self._completed)):
            index, arrivals, started_ns, finished_ns = self._completed.popleft()
            # Frames that are consumed together are as late as the newest of them.
            deadline_ns = self._jobs[index].deadline_ns
            late = deadline_ns is not None and finished_ns - self.release(arrivals[-1].window) > deadline_ns
            fate = Fate.LATE if late else Fate.DONE
            for frame, window in arrivals:
                self.frames.add(index, frame, fate, window, self.release(window), started_ns, finished_ns)

    def _relieve(self) -> None:
        """Hand outputs out, and account for frames, where there never was time to."""
        if len(self._completed) > _PENDING_FRAMES:
            self._account()
        if len(self._outputs) > _PENDING_OUTPUTS:
            self._hand_out()

    def _use_idle(self, wake: int, on_idle: Callable[[int], None] | None) -> None:
        """Housekeeping that fits before the next instant."""
        self._last_finish = -1
        left_ns = wake - self._clock.now_ns()
        if left_ns >= _SETTLE_NS:
            self._account()
            self.launches.settle()
            self.frames.settle()
        if left_ns < _IDLE_NS:
            return
        while self._outputs and wake - self._clock.now_ns() >= _IDLE_NS:
            sink, frame, outputs = self._outputs.popleft()
            sink.put(frame, outputs)
        if self._stalls is not None:
            stalled = self._stalls()
            if stalled > self._stalled_ns:
                self.stalled[self.windows - 1] = stalled - self._stalled_ns
                self._stalled_ns = stalled
        if on_idle is not None and wake - self._clock.now_ns() >= _IDLE_NS:
            on_idle(self.windows)
        if self._on_host and self.windows - self._drained >= _DRAIN_WINDOWS:
            self._collect()

    def _collect(self) -> None:
        """Take the device's packets; of a long run the first ones are given up."""
        self._traces.append(self._device.events())
        self._drained = self.windows
        while len(self._traces) > 1 and sum(map(len, self._traces)) > _MOST_PACKETS:
            self._overwritten += len(self._traces.popleft())

    def _hand_out(self) -> None:
        while self._outputs:
            sink, frame, outputs = self._outputs.popleft()
            sink.put(frame, outputs)

    def _end(self) -> None:
        """Account for what is unfinished; outputs and events are not lost."""
        self._account()
        for index, job in enumerate(self._jobs):
            for frame, window in job.clear():
                self.frames.add(index, frame, Fate.RUN_ENDED, window, self.release(window))
            known = [source.length for source in job.sources.values() if source.length is not None]
            if known and min(known) < job.feed.delivered:  # a stream may turn out to be shorter than what was released
                self.frames.forget(index, min(known))
        self._collect()
        self._hand_out()


def _feeds(jobs: Sequence[Job]) -> list[tuple[Feed, list[tuple[int, Job]]]]:
    """Each feed with the jobs that it serves, and their numbers."""
    found: dict[int, tuple[Feed, list[tuple[int, Job]]]] = {}
    for index, job in enumerate(jobs):
        found.setdefault(id(job.feed), (job.feed, []))[1].append((index, job))
    return list(found.values())


def instants(timetable: Timetable, numbers: Mapping[str, int]) -> list[list[tuple[int, int]]]:
    """When priority models are due in each window; what follows another at once is due with it.

    Args:
        timetable: its windows repeat.
        numbers: model -> number of its job.

    Returns:
        For each window pairs of time after the release and number of the job.
    """
    pattern = []
    for window in timetable.windows:
        due: list[tuple[int, int]] = []
        begin = end = -1
        for period in window.priority:
            begin = begin if period.start_ns == end else period.start_ns
            due.append((begin, numbers[period.model]))
            end = period.end_ns
        pattern.append(due)
    return pattern


def _joined(traces: Sequence[Trace], overwritten: int) -> Trace:
    """Traces one after the other, and what was given up before; the last one knows all kinds."""
    counts = np.cumsum([0, *(len(trace) for trace in traces)])
    last = traces[-1]
    lost = [trace.meta.lost_events for trace in traces if trace.meta.lost_events is not None]
    overwritten += sum(trace.meta.overwritten_events for trace in traces)
    return Trace(
        time_ns=np.concatenate([trace.time_ns for trace in traces]),
        id=np.concatenate([trace.id for trace in traces]),
        type=np.concatenate([trace.type for trace in traces]),
        core=np.concatenate([trace.core for trace in traces]),
        operation=np.concatenate([trace.operation for trace in traces]),
        kinds=last.kinds,
        loss_after=np.concatenate([t.loss_after + c for t, c in zip(traces, counts[:-1], strict=True)]),
        meta=msgspec.structs.replace(
            last.meta, lost_events=sum(lost) if lost else None, overwritten_events=overwritten
        ),
    )


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
