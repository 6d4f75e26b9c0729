"""Dispatching where the operating system can interrupt background work.

A CPU core is preemptive: a thread of real-time priority gets it at once, whatever runs.
Then nothing has to be cut, and no residual is lost to guards or gaps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.core.events import EventType, Trace
from framefit.runtime.channel import Dropped
from framefit.runtime.job import Job
from framefit.runtime.log import LaunchLog
from framefit.runtime.loop import Dispatcher
from framefit.runtime.streams import Arrival

_PRIORITY = 50  # middle of SCHED_FIFO's 1 .. 99: above what users run, below the kernel's own threads
_ALWAYS = 1 << 62  # room of a segment that may be interrupted
_WAIT_S = 0.1


class PreemptiveDispatcher(Dispatcher):
    """Two threads on one core: priority models in one of real-time priority, the rest in a plain one.

    The same jobs, logs and policy as the cooperative dispatcher's; the guard plays no
    part. Needs permission for SCHED_FIFO
    (:func:`framefit.devices.host.realtime_priority_permitted`).
    """

    _one_thread = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lock = threading.Lock()  # of all queues
        self._arrived = threading.Event()
        self._worker_thread = 0

    def keep_beat(
        self, windows: int, *, stop: Callable[[], bool], on_idle: Callable[[int], None] | None = None
    ) -> None:
        """See :meth:`Dispatcher.keep_beat`."""
        self._closing = False
        self._failure: BaseException | None = None
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        # Made before this thread's priority rises: it would inherit that.
        self._worker = threading.Thread(target=self._work, name="framefit-background", daemon=True)
        self._worker.start()
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
            super().keep_beat(windows, stop=lambda: stop() or self._failure is not None, on_idle=on_idle)
        finally:
            self._join()
            os.sched_setscheduler(0, *before)
        if self._failure is not None:
            raise self._failure

    def _serve(self, now: int, reserved: int) -> bool:
        if self._serve_event(now, reserved):  # the other thread serves background models
            return True
        return bool(self._behind) and self._serve_behind(now, reserved)

    def _relieve(self) -> None:
        """Outputs are handed out by one thread only."""

    def _use_idle(self, wake: int, on_idle: Callable[[int], None] | None) -> None:
        self._arrived.set()  # only now: it would cost time before the priority models
        super()._use_idle(wake, on_idle)

    def _receive(self, now: int) -> None:
        super()._receive(now)
        self._arrived.set()

    def _offer(self, job: Job, arrival: Arrival) -> Dropped | None:
        with self._lock:
            return super()._offer(job, arrival)

    def _has_work(self, job: Job) -> bool:
        with self._lock:  # else a frame might be seen neither waiting nor in flight
            return super()._has_work(job)

    def _take(self, job: Job) -> None:
        with self._lock:
            super()._take(job)

    def progress(self) -> dict[int, object]:
        """See :meth:`Dispatcher.signs`; what is interrupted has signs of its own."""
        behind = [(job.in_flight[-1:], job.next_segment) for _, job in self._background]
        return {self._thread: self.windows, self._worker_thread: behind}

    def _work(self) -> None:
        """Run background launches until the end."""
        try:
            self._worker_thread = threading.get_ident()
            _plain()  # this thread too inherits what its maker has
            while not (self._closing or self.ended):
                needed = [job.next_ns for _, job in self._background]
                chosen = self._service.choose(needed, _ALWAYS) if self._background else None
                if chosen is None:
                    self._arrived.wait(_WAIT_S)
                    self._arrived.clear()
                else:
                    self._launch(self._background[chosen][0], self._clock.now_ns())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that called run()
            self._failure = error

    def end(self) -> None:
        """See :meth:`Dispatcher.end`."""
        super().end()
        if self._collects:
            self.launches.reorder(np.argsort(self.begun_ns(self.trace()), kind="stable"))

    def begun_ns(self, trace: Trace) -> npt.NDArray[np.int64]:
        """When the device began each launch.

        They were logged in the order of their ends, and one that started first may begin
        second: the other thread may interrupt it while it hands its frame over. Each model's
        own launches are in order.
        """
        rows = self.launches.rows()
        begun = rows[:, LaunchLog.STARTED].copy()
        ended = rows[:, LaunchLog.FINISHED] >= 0
        starts, kinds = trace.type == EventType.START, {kind: number for number, kind in enumerate(trace.kinds)}
        for job in self._jobs:
            for segment, label in enumerate(job.execution.labels):
                mine = ended & (rows[:, LaunchLog.PROGRAM] == job.first_program + segment)
                times = trace.time_ns[starts & (trace.id == kinds.get(label, -1))]
                if len(times) == mine.sum():  # else packets were lost
                    begun[mine] = times
        return begun

    def _join(self) -> None:
        self._closing = True
        self._arrived.set()
        _plain()  # else this thread's waiting would keep its priority from the worker
        self._worker.join()


def _plain() -> None:
    """No real-time priority for the calling thread."""
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
