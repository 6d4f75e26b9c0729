"""What follows a failure: a launch is tried again, a frame is aborted, a model rests, a unit's models migrate.

:class:`Recovery` decides for the jobs of one unit, launch by launch. Where all that a unit launches keeps failing, it
calls :class:`Failover`, which finds the unit's models a place on the units that work.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from framefit.devices.clock import Clock, VirtualClock
from framefit.errors import FramefitError, HangError, InputError, LostUnitError
from framefit.execution.execution import Launchable
from framefit.runtime.channel import Mailbox
from framefit.runtime.job import Drained, Job, MigratedJob
from framefit.runtime.log import FaultCause, FaultLog, FrameOutcome
from framefit.runtime.streams import Arrival

_PATIENCE = 3  # frames in a row that fail before a model rests
_FIRST_REST, _MOST_REST = 8, 512  # windows; twice as many each time: at 30 Hz from 0.3 s to 17 s
_OUTCOMES = {
    FaultCause.ERROR: FrameOutcome.FAILED,
    FaultCause.HANG: FrameOutcome.HUNG,
    FaultCause.INPUT: FrameOutcome.UNREADABLE,
}


class RunningUnit(Protocol):
    """The unit whose launches may fail, as recovery sees it."""

    unit: str
    windows: int
    faults: FaultLog
    failover: Failover | None

    @property
    def jobs(self) -> Sequence[Job]:
        """Of the unit, by number."""

    def abort_frame(self, index: int, outcome: FrameOutcome, now_ns: int) -> None:
        """The frame in flight of a job ends, unfinished."""

    def reject(self, index: int, arrivals: Iterable[Arrival], outcome: FrameOutcome) -> None:
        """Frames that came to a job's model are dropped."""


@dataclass
class _Trouble:
    """Of a job that has failed since it last finished a frame."""

    frames: int = 0
    launches: int = 0  # that failed
    rests: int = 0
    tried_again: bool = False


class Recovery:
    """Decides for the jobs of one unit what a failure comes to.

    A launch that raises is tried again once where its job says so, unless it hung, or its model is degraded. Else
    the frame in flight is aborted. After three in a row the model is degraded. Where its launches cost time that
    others could have (of background models all, of priority models those that hang), it rests for 8 windows, after
    another failure for 16, and so on up to 512; its frames are dropped meanwhile. A frame that is finished ends it all.

    Nothing of it runs while nothing fails: success is reported only while there are :attr:`troubles`.

    Args:
        run: the unit's windows and frames.
    """

    def __init__(self, run: RunningUnit) -> None:
        self._run = run
        self.troubles: dict[int, _Trouble] = {}
        """By number, jobs that have failed since they last finished a frame."""

    def aborts_frame(self, index: int, job: Job, error: BaseException, now_ns: int) -> bool:
        """Whether the frame in flight was aborted; else its launch is tried again.

        Args:
            index: number of the job.
            job: with a frame in flight.
            error: what a launch of it raised, or reading the frame.
            now_ns: when.

        Raises:
            BaseException: the error itself, where the run does not survive it.
        """
        cause = _cause(error)
        if cause is None or job.on_error == "stop":
            raise error
        run, model = self._run, index if job.model is None else job.model
        run.faults.add(model, job.in_flight[-1].frame, run.windows - 1, cause, str(error))
        trouble = self.troubles.setdefault(index, _Trouble())
        again = job.on_error == "retry" and cause == FaultCause.ERROR and not (trouble.tried_again or trouble.rests)
        trouble.tried_again = again
        if again:
            return False
        run.abort_frame(index, _OUTCOMES[cause], now_ns)
        trouble.frames += 1
        trouble.launches += cause != FaultCause.INPUT
        if trouble.frames < _PATIENCE:
            return True
        others = job.replicas is not None and job.replicas.others_work(job)
        if not others:
            run.faults.degraded.add(model)
        costs = cause == FaultCause.HANG or (cause == FaultCause.ERROR and not job.priority)
        if costs and not job.entry.queue.refuses:
            self._rest(index, job, trouble)
        if run.failover is not None and all(self._fails(number) for number in range(len(run.jobs))):
            run.failover.unit_failed(run)
        return True

    def succeeded(self, index: int, job: Job) -> None:
        """A job has finished a frame: whatever it failed in before is over."""
        if self.troubles.pop(index, None) is not None:
            self._run.faults.degraded.discard(index if job.model is None else job.model)

    def _fails(self, index: int) -> bool:
        """Whether launches of a job fail, and nothing else; or no more come, for what is before it fails."""
        if index in self.troubles and self.troubles[index].launches >= _PATIENCE:
            return True
        return self._run.jobs[index].starves(self._run.faults.degraded)

    def _rest(self, index: int, job: Job, trouble: _Trouble) -> None:
        """Let no frames come for a while; those of a replica go to the others."""
        until = self._run.windows + min(_FIRST_REST << trouble.rests, _MOST_REST)
        if job.replicas is not None:
            job.replicas.rest(job, until)
        else:
            self._run.reject(index, job.entry.queue.refuse_until(until), FrameOutcome.DEGRADED)
        trouble.rests += 1


def _cause(error: BaseException) -> FaultCause | None:
    """What a run may survive; ``None``: it does not."""
    if isinstance(error, HangError):
        return FaultCause.HANG
    if isinstance(error, InputError):
        return FaultCause.INPUT
    if isinstance(error, LostUnitError) or not isinstance(error, FramefitError):
        return None
    return FaultCause.ERROR


class FailoverTarget(NamedTuple):
    """Where a model may go on.

    Attributes:
        unit: its name.
        execution: compiled for it, with the state that the model has.
        estimates_ns: quantile of each segment there.
        first_program: number of the first segment's program.
    """

    unit: str
    execution: Launchable
    estimates_ns: Sequence[int]
    first_program: int


class Migration(NamedTuple):
    """A model that has migrated, when, and where from and to."""

    model: int
    window: int
    unit: str
    to: str


FindTarget = Callable[[int, Sequence[str]], FailoverTarget | None]  # number of a model, units that work -> where to go


class Failover:
    """Finds models of a unit that has failed a place on others, while these go on, and hands them over.

    Frames of a model come where they always came, and are taken on the other unit, which serves it last in its
    round, or, if it is a priority model, behind its own. One in several stages, of which one was on the unit, goes
    there with all of them; it begins when the frames that were under way in them are done or aborted.

    Args:
        clock: the run's.
        mailboxes: by unit.
        find_target: where a model may go on; ``None``: nowhere.

    Attributes:
        migrations: so far.
    """

    def __init__(self, clock: Clock, mailboxes: Mapping[str, Mailbox], find_target: FindTarget) -> None:
        self._clock, self._mailboxes, self._find_target = clock, mailboxes, find_target
        self._failed: set[str] = set()
        self._ordinals = itertools.count()
        self.migrations: list[Migration] = []

    def unit_failed(self, run: RunningUnit) -> None:
        """Launches of all jobs of a unit fail again and again; its thread says so, and is heard once."""
        if run.unit in self._failed:
            return
        self._failed.add(run.unit)
        if isinstance(self._clock, VirtualClock):
            self._migrate_all(run)
        else:
            threading.Thread(target=self._migrate_all, args=(run,), name="framefit-failover", daemon=True).start()

    def _migrate_all(self, run: RunningUnit) -> None:
        for job in list(run.jobs):
            working = [unit for unit in self._mailboxes if unit not in self._failed]
            first = job.entry if job.replicas is None else job.replicas.firsts[0]
            if isinstance(job, MigratedJob) or job.model is None or first.migrated is not None or not working:
                continue
            if job.replicas is not None:
                job.replicas.close(job)
                if (unit := job.replicas.working_unit(working)) is not None:
                    self.migrations.append(Migration(job.model, run.windows, run.unit, unit))
                    continue
            target = self._find_target(job.model, working)
            if target is not None:
                self._migrate(first, target)
                run.faults.degraded.discard(job.model)
                self.migrations.append(Migration(job.model, run.windows, run.unit, target.unit))

    def _migrate(self, job: Job, target: FailoverTarget) -> None:
        """Have another unit take the frames of a job's model."""
        entry, outlet, pipeline = job.entry, job.outlet, job.pipeline
        queue = entry.queue
        queue.migrate(None if pipeline is None else Drained(pipeline))
        migrated = MigratedJob(
            execution=target.execution,
            first_program=target.first_program,
            priority=job.priority,
            estimates_ns=target.estimates_ns,
            deadline_ns=outlet.deadline_ns,
            sources=entry.sources,
            input=queue,
            sinks=outlet.sinks,
            every=entry.every,
            feed=entry.feed,
            observers=outlet.observers,
            model=job.model,
            on_error=job.on_error,
            events=entry.events,
            mailbox=self._mailboxes[target.unit],
            clock=self._clock,
            ordinals=self._ordinals,
        )
        entry.migrate(migrated)
