"""The loop that keeps the beat: priority models at each release, segments in the residuals."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from framefit.core.events import Trace
from framefit.core.model import TensorInfo
from framefit.core.workload import release_ns
from framefit.devices.clock import Clock, RealClock
from framefit.devices.device import Array, Device
from framefit.runtime.execution import Execution
from framefit.runtime.log import Fate, FrameLog, LaunchLog
from framefit.runtime.sinks import Sink
from framefit.runtime.streams import Queue, Stream

__all__ = ["Dispatcher", "Job", "steady"]

_IDLE_NS = 1_000_000  # sinks and progress get a turn only when this much of a window is left
_PENDING_OUTPUTS = 64  # outputs that may wait for such a turn
_DRAIN_WINDOWS = 256  # between two looks into the device's event buffer
_SWITCH_INTERVAL_S = 1e-4  # other Python threads get the lock this often at most
_LEAD_NS = 20_000_000  # between the call and the first release


@dataclass
class Job:
    """A model as the dispatcher sees it.

    Attributes:
        execution: what it launches.
        first_program: number of its first segment's program.
        priority: whether it runs at each release.
        estimates_ns: planned quantile of each segment.
        deadline_ns: after release; ``None``: none.
        sources: graph input -> stream that feeds it.
        queue: frames that wait.
        sinks: where outputs go, and which.
    """

    execution: Execution
    first_program: int
    priority: bool
    estimates_ns: Sequence[int]
    deadline_ns: int | None
    sources: Mapping[str, Stream]
    queue: Queue
    sinks: Sequence[tuple[Sink, Sequence[str]]] = ()
    next_segment: int = 0
    frame: int = -1
    started_ns: int = -1
    _inputs: tuple[TensorInfo, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._inputs = self.execution.inputs

    @property
    def busy(self) -> bool:
        """Whether a frame is in flight."""
        return self.frame >= 0

    @property
    def ready(self) -> bool:
        """Whether something could be launched."""
        return self.busy or len(self.queue) > 0

    def read(self, frame: int) -> dict[str, Array]:
        """A frame's tensors."""
        return {tensor.name: self.sources[tensor.name].read(frame, tensor) for tensor in self._inputs}


class Dispatcher:
    """One cooperative thread on one unit.

    At each release the priority models run, in order. Then background models take
    turns frame by frame; a segment starts only when its planned quantile and the
    guard fit before the next release. Otherwise the thread waits.

    Args:
        device: executes.
        clock: the run's time; the device's own.
        jobs: priority models first, then background models in order of service.
        rate_hz: windows a second; window k begins round(k x 1e9 / rate) after the first.
        guard_ns: kept free before each release.
    """

    def __init__(self, device: Device, clock: Clock, jobs: Sequence[Job], rate_hz: float, guard_ns: int) -> None:
        self._device = device
        self._clock = clock
        self._jobs = list(jobs)
        self._priority = [(index, job) for index, job in enumerate(jobs) if job.priority]
        self._background = [(index, job) for index, job in enumerate(jobs) if not job.priority]
        self._rate_hz = rate_hz
        self._guard_ns = guard_ns
        self._turn = 0
        self._outputs: deque[tuple[Sink, int, dict[str, Array]]] = deque()
        self._traces: list[Trace] = []
        self._last_finish = -1
        self.launches = LaunchLog()
        self.frames = FrameLog()
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
            windows: how many.
            stop: asked at every step; true ends the run at once, nothing gets lost.
            on_idle: called with the number of windows begun when there is time for it.

        Raises:
            DeviceError: the device failed; what happened so far is kept.
        """
        clock, guard_ns, priority = self._clock, self._guard_ns, self._priority
        self.start_ns = clock.now_ns() + _LEAD_NS
        clock.sleep_until_ns(self.start_ns)
        drained = 0
        reserved = self.start_ns  # the next release, or the end of the run
        try:
            while not stop():
                now = clock.now_ns()
                while now >= reserved and self.windows < windows:
                    self._deliver(self.windows)
                    self.windows += 1
                    reserved = self.release(self.windows)
                chosen = next((entry for entry in priority if entry[1].ready), None)
                if chosen is not None:
                    self._launch(*chosen, now)
                    continue
                if now >= reserved:
                    break
                chosen = self._next_background()
                if chosen is not None:
                    job = chosen[1]
                    if now + job.estimates_ns[job.next_segment] + guard_ns <= reserved:
                        self._launch(*chosen, now)
                        continue
                self._use_idle(reserved, on_idle)
                if self.windows - drained >= _DRAIN_WINDOWS:
                    self._traces.append(self._device.events())
                    drained = self.windows
                clock.sleep_until_ns(reserved)
        finally:
            self._end()

    def trace(self) -> Trace:
        """All packets of the run, losses marked where they were noticed."""
        return _joined(self._traces)

    def _deliver(self, window: int) -> None:
        """A frame arrives at every model."""
        for index, job in enumerate(self._jobs):
            dropped = job.queue.put(window)
            if dropped is not None:
                self.frames.add(index, dropped, Fate.QUEUE_FULL, self.release(dropped), -1, -1)

    def _next_background(self) -> tuple[int, Job] | None:
        """Whose turn it is: the frame in flight, else the next model that has a frame."""
        for _ in self._background:
            entry = self._background[self._turn]
            if entry[1].ready:
                return entry
            self._turn = (self._turn + 1) % len(self._background)
        return None

    def _launch(self, index: int, job: Job, ready_ns: int) -> None:
        if not job.busy:
            job.frame = job.queue.take()
            job.execution.load(job.read(job.frame))
        segment = job.next_segment
        done = job.execution.launch(segment)
        if segment == 0:
            job.started_ns = done.started_ns
        window = self.windows - 1
        followed = int(self._last_finish >= 0)
        since = self._last_finish if followed else ready_ns
        self.launches.add(
            job.first_program + segment, window, job.frame, done.started_ns, done.finished_ns, followed, since
        )
        self._last_finish = done.finished_ns
        job.next_segment = segment + 1
        if job.next_segment == len(job.estimates_ns):
            self._complete(index, job, done.finished_ns)

    def _complete(self, index: int, job: Job, finished_ns: int) -> None:
        released = self.release(job.frame)
        late = job.deadline_ns is not None and finished_ns - released > job.deadline_ns
        self.frames.add(index, job.frame, Fate.LATE if late else Fate.DONE, released, job.started_ns, finished_ns)
        for sink, names in job.sinks:
            outputs = {name: job.execution.output(name).copy() for name in names}
            self._outputs.append((sink, job.frame, outputs))
        job.execution.finish()
        job.frame, job.next_segment = -1, 0
        if not job.priority:
            self._turn = (self._turn + 1) % len(self._background)
        if len(self._outputs) > _PENDING_OUTPUTS:
            self._hand_out()

    def _use_idle(self, reserved: int, on_idle: Callable[[int], None] | None) -> None:
        self._last_finish = -1
        if reserved - self._clock.now_ns() < _IDLE_NS:
            return
        while self._outputs and reserved - self._clock.now_ns() >= _IDLE_NS:
            sink, frame, outputs = self._outputs.popleft()
            sink.put(frame, outputs)
        if on_idle is not None and reserved - self._clock.now_ns() >= _IDLE_NS:
            on_idle(self.windows)

    def _hand_out(self) -> None:
        while self._outputs:
            sink, frame, outputs = self._outputs.popleft()
            sink.put(frame, outputs)

    def _end(self) -> None:
        """Account for what is unfinished; outputs and events are not lost."""
        for index, job in enumerate(self._jobs):
            unfinished = [job.frame] if job.busy else []
            for frame in [*unfinished, *job.queue.clear()]:
                self.frames.add(index, frame, Fate.RUN_ENDED, self.release(frame), -1, -1)
            job.frame, job.next_segment = -1, 0
        self._hand_out()
        self._traces.append(self._device.events())


def _joined(traces: Sequence[Trace]) -> Trace:
    """Traces one after the other; the last one knows all kinds."""
    counts = np.cumsum([0, *(len(trace) for trace in traces)])
    import msgspec

    last = traces[-1]
    lost = sum(trace.meta.lost_events or 0 for trace in traces)
    return Trace(
        time_ns=np.concatenate([trace.time_ns for trace in traces]),
        id=np.concatenate([trace.id for trace in traces]),
        type=np.concatenate([trace.type for trace in traces]),
        core=np.concatenate([trace.core for trace in traces]),
        operation=np.concatenate([trace.operation for trace in traces]),
        kinds=last.kinds,
        loss_after=np.concatenate([t.loss_after + c for t, c in zip(traces, counts[:-1], strict=True)]),
        meta=msgspec.structs.replace(last.meta, lost_events=lost),
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
