"""A run that goes on in a thread of its own, while a program does something else."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection
from pathlib import Path

import numpy as np

from framefit.core.results import Metrics
from framefit.devices.clock import RealClock
from framefit.devices.host import apart, cores_listed, flushed_denormals, pinned
from framefit.devices.measure import Measurement, measure_floor
from framefit.devices.npu import NpuDevice
from framefit.devices.stepped import SteppedClock
from framefit.errors import FramefitError, InputError
from framefit.workflows.plan import Notify, Plan
from framefit.workflows.running.asked import MOST_SECONDS
from framefit.workflows.running.folder import RunResult
from framefit.workflows.running.outcome import Floor
from framefit.workflows.running.session import Session

__all__ = ["Course"]

logger = logging.getLogger(__name__)

_POLL_S = 0.002  # a thread that waits looks itself, where no window leaves the time to wake it
_FLOOR_WINDOWS = 30  # of the idle control


class Course:
    """A run from its first window to its end, whenever that comes.

    Args:
        planned: feasible and verified.
        submitted: streams whose frames are handed over.
        seed: of synthetic frames, and of a described device's variation.
        virtual: time only passes where it is let.
        measures: measure before and after, as a run does that leaves a folder.
        force: overwrite sinks.
        notify: receives what is being done.

    Attributes:
        session: what runs.
        failure: what ended it; ``None``: nothing did.
    """

    def __init__(
        self,
        planned: Plan,
        submitted: Collection[str],
        *,
        seed: int,
        virtual: bool,
        measures: bool,
        force: bool,
        notify: Notify,
    ) -> None:
        self.clock: SteppedClock | RealClock = SteppedClock() if virtual else RealClock()
        if isinstance(planned.device, NpuDevice):
            planned.device.clock, planned.device.computes = self.clock, True
        self.session = Session(planned, seed=seed, submitted=submitted)
        self.failure: BaseException | None = None
        self._plan, self._seed, self._measures, self._force, self._notify = planned, seed, measures, force, notify
        device = planned.device
        self._cores = {planned.core}
        if not isinstance(device, NpuDevice):
            self._cores |= {device.target.unit(unit).core for unit in planned.timetable.units}
        self._thread = threading.Thread(target=self._live, name="framefit-runner", daemon=True)
        self._warm, self._go, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._draining = self._stopping = False
        self._moved = threading.Condition()  # something may have come
        self._stepping = threading.RLock()
        self._windows_let = 0
        self._floor: Floor = np.zeros(1, np.int64)
        self._around: list[list[Measurement]] = []
        self._leaving = contextlib.ExitStack()

    def begin(self) -> None:
        """Return when the first window is about to begin.

        Raises:
            FramefitError: a model does not run here, or a sink cannot be opened.
        """
        self._thread.start()
        try:
            self._warm.wait()
            if not isinstance(self.clock, SteppedClock) and self.failure is None:
                alone = self._leaving.enter_context(apart(self._cores, self._thread.native_id or 0))
                if not alone:
                    logger.warning(
                        "the program is not kept off the models' core %s: it has no other, or this system cannot",
                        cores_listed(sorted(self._cores)),
                    )
            self._go.set()
            if isinstance(self.clock, SteppedClock):
                self.clock.wait_held()
                self.clock.pass_until(self.session.crew.start_ns - 1)
            if self.failure is not None:
                raise self.failure
        except BaseException:
            self.end(drain=False)
            with contextlib.suppress(FramefitError):
                self.session.close()
            raise

    def end(self, *, drain: bool) -> None:
        """Bring it to its end.

        Args:
            drain: finish the frames that wait; else they are given up.
        """
        try:
            self._close()
            self._stopping, self._draining = not drain, True
            self._go.set()
            if isinstance(self.clock, SteppedClock):
                self.clock.let_go()
            self._thread.join()
        except BaseException:  # Ctrl-C while frames are finished
            self._stopping = True
            self._thread.join()
            raise
        finally:
            self._leaving.close()

    def step(self, windows: int) -> None:
        """Let windows of virtual time pass.

        Raises:
            InputError: time is real.
            FramefitError: what ended the run.
        """
        if not isinstance(self.clock, SteppedClock):
            raise InputError("time is real: it passes by itself", remedy="say virtual=True")
        with self._stepping:
            for _ in range(windows):
                self.check()
                self._pass(self.clock, None)
        self.check()

    def _pass(self, clock: SteppedClock, until_ns: int | None) -> None:
        """Let the rest of a window pass, or only the time until then."""
        with self._stepping:
            end_ns = self.session.crew.release(self._windows_let + 1) - 1
            if until_ns is not None and until_ns < end_ns:
                clock.pass_until(until_ns)
                return
            self._windows_let += 1
            clock.pass_until(end_ns)

    # How a program's threads wait

    def alone(self) -> contextlib.AbstractContextManager[object]:
        """Keeps other threads from letting virtual time pass."""
        return self._stepping

    def until_ns(self, timeout_s: float | None) -> int | None:
        """When a wait from now on is over, on the run's clock; ``None``: never."""
        return None if timeout_s is None else self.clock.now_ns() + round(timeout_s * 1e9)

    def pause(self, until_ns: int | None) -> bool:
        """Let some time pass; false where none is left, or nothing more will come."""
        if self.over():
            return False
        rest_ns = None if until_ns is None else until_ns - self.clock.now_ns()
        if rest_ns is not None and rest_ns <= 0:
            return False
        if isinstance(self.clock, SteppedClock):
            if rest_ns is None and not self.session.crew.at_work():
                return False
            self._pass(self.clock, until_ns)
            return True
        with self._moved:
            self._moved.wait(_POLL_S if rest_ns is None else min(_POLL_S, rest_ns / 1e9))
        return True

    def over(self) -> bool:
        """Whether nothing more will come."""
        return self._ended.is_set()

    def check(self) -> None:
        """Raise what ended the run, if something did."""
        if self._ended.is_set() and self.failure is not None:
            raise self.failure

    # What came of it

    def metrics(self) -> Metrics:
        """Figures so far."""
        return self.session.metrics(self._floor)

    def result(self, folder: Path, *, interrupted: bool) -> RunResult:
        """All of it, after the end.

        Raises:
            InputError: it goes on.
        """
        if not self.over():
            raise InputError("the run goes on", remedy="ask after the with block; metrics() tells meanwhile")
        around = self._around or [self.session.planned()]
        return self.session.result(folder, self._floor, around, interrupted=interrupted)

    # The run's own thread

    def _live(self) -> None:
        """Warm up, keep the beat until the end, and account for everything."""
        session = self.session
        try:
            with contextlib.ExitStack() as stack:
                if not isinstance(self.clock, SteppedClock):
                    stack.enter_context(pinned(self._plan.core))
                stack.enter_context(flushed_denormals())
                self._notify("warming up")
                self._warm_up()
                session.open_sinks(force=self._force)  # last: whatever fails before leaves none behind
                self._warm.set()
                self._go.wait()
                self._notify("running")
                most = int(MOST_SECONDS * self._plan.workload.beat_hz) - 1
                self.failure = session.play(
                    min([most, *session.sources.lengths()]), stop=self._is_over, on_idle=self._on_idle
                )
                if self._around and self.failure is None:
                    self._around.append(session.measure())
                self._plan.device.events()
        except BaseException as error:  # noqa: BLE001 - raised again in the program's threads
            self.failure = self.failure or error
        finally:
            self._close()
            for inbox in session.inboxes:
                inbox.empty()
            self._ended.set()
            if isinstance(self.clock, SteppedClock):
                self.clock.leave()
            self._warm.set()
            self._wake()

    def _warm_up(self) -> None:
        """Launch everything once, or measure, where time is real."""
        session = self.session
        if not isinstance(self.clock, SteppedClock):
            session.launch_all()
            self._floor = np.asarray(self._plan.costs.wake_ups(), np.int64)
            if self._measures:
                self._around.append(session.measure())
                self._floor = measure_floor(self.clock, self._plan.timetable.window_ns, _FLOOR_WINDOWS)
        session.ready(self._seed)

    def _is_over(self) -> bool:
        """Asked before every launch."""
        return self._draining and (self._stopping or not self.session.crew.at_work())

    def _on_idle(self, windows: int) -> None:  # noqa: ARG002 - the dispatcher's form
        """A window leaves time: wake whoever waits for a result or for room."""
        self._wake()
        for inbox in self.session.inboxes:
            inbox.wake()

    def _wake(self) -> None:
        """Not at the price of waiting: a thread may have been put aside while it holds the lock."""
        if self._moved.acquire(blocking=False):
            self._moved.notify_all()
            self._moved.release()

    def _close(self) -> None:
        """Take no more frames."""
        for inbox in self.session.inboxes:
            inbox.close(self._why)

    def _why(self) -> Exception:
        """What a program gets that hands a frame over too late."""
        if isinstance(self.failure, Exception):
            return self.failure
        return FramefitError("the run has ended", remedy="submit within the with block")
