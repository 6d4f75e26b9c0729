"""A unit that fails for good: models that ran there go on on another one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from framefit.devices.clock import Clock, VirtualClock
from framefit.execution.execution import Launchable
from framefit.runtime.channel import Message, MigratedJob, SharedQueue, StageJob
from framefit.runtime.job import Job
from framefit.runtime.log import FrameOutcome
from framefit.runtime.loop import Dispatcher
from framefit.runtime.recovery import RestingQueue
from framefit.runtime.streams import Arrival, Queue

__all__ = ["Failover", "FailoverTarget", "FindTarget", "Migration"]


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
    """A model that has moved, when, and where from and to."""

    model: int
    window: int
    unit: str
    to: str


FindTarget = Callable[
    [int, Sequence[str]], FailoverTarget | None
]  # number of a model, units that work -> where it may go on


class _ForwardingQueue(Queue):
    """Frames come to a unit that cannot serve them any more, and are taken on another one.

    Args:
        migrated: takes them.
        told: that one has come.
    """

    def __init__(self, migrated: MigratedJob, told: Callable[[], None]) -> None:
        super().__init__(migrated.queue.depth, migrated.queue.when_full)
        self._guest, self._told = migrated, told

    @property
    def refusal(self) -> FrameOutcome:
        """What becomes of a frame that is not taken there."""
        return self._guest.queue.refusal

    @property
    def full(self) -> bool:
        """Whether a frame that arrives has to wait outside."""
        return self._guest.queue.full

    def put(self, frame: Arrival) -> Arrival | None:
        """Add a frame there; the one that is dropped for it, or None."""
        dropped = self._guest.queue.put(frame)
        self._told()
        return dropped

    def clear(self) -> Sequence[Arrival]:
        """All that wait there."""
        return self._guest.queue.clear()


class Failover:
    """Finds models of a unit that has failed a place on others, off the beat, and hands them over.

    Frames of a model come where they always came, and are taken on the other unit, which serves it last in its
    round, or, if it is a priority model, behind its own. One in several stages, of which one was on the unit, goes
    there with all of them; it begins when the frames that were under way in them are done or given up.

    Args:
        clock: the run's.
        dispatchers: by unit.
        find_target: where a model may go on; ``None``: nowhere.
    """

    def __init__(self, clock: Clock, dispatchers: Mapping[str, Dispatcher], find_target: FindTarget) -> None:
        self._clock, self._dispatchers, self._find_target = clock, dispatchers, find_target
        self._failed: set[str] = set()
        self._ordinals = itertools.count()
        self.migrations: list[Migration] = []

    def __call__(self, unit: str) -> None:
        """A unit has failed; its thread tells."""
        self._failed.add(unit)
        if isinstance(self._clock, VirtualClock):
            self._move_all(unit)
        else:
            threading.Thread(target=self._move_all, args=(unit,), name="framefit-moving", daemon=True).start()

    def _move_all(self, unit: str) -> None:
        dispatcher = self._dispatchers[unit]
        for job in list(dispatcher.jobs):
            working = [other for other in self._dispatchers if other not in self._failed]
            if isinstance(job, MigratedJob) or job.model is None or job.entry.moved_to is not None or not working:
                continue
            failover_target = self._find_target(job.model, working)
            if failover_target is not None:
                self._move(job, failover_target)
                dispatcher.faults.degraded.discard(job.model)
                self.migrations.append(Migration(job.model, dispatcher.windows, unit, failover_target.unit))

    def _move(self, job: Job, failover_target: FailoverTarget) -> None:
        """Have another unit take the frames of a job's model."""
        entry, outlet = job.entry, job.outlet
        waiting = entry.queue.behind if isinstance(entry.queue, RestingQueue) else entry.queue
        queue = waiting if isinstance(waiting, SharedQueue) else SharedQueue(waiting)
        mailbox = self._dispatchers[failover_target.unit].mailbox
        migrated = MigratedJob(
            execution=failover_target.execution,
            first_program=failover_target.first_program,
            priority=job.priority,
            estimates_ns=failover_target.estimates_ns,
            deadline_ns=outlet.deadline_ns,
            sources=entry.sources,
            queue=queue,
            sinks=outlet.sinks,
            every=entry.every,
            frames=entry.frames,
            feed=entry.feed,
            told=outlet.told,
            model=job.model,
            on_error=job.on_error,
            behind=job.relay if isinstance(job, StageJob) else None,
        )

        def tell() -> None:
            mailbox.put(Message(self._clock.now_ns(), -1, next(self._ordinals), migrated=migrated))

        if isinstance(job, StageJob):
            job.relay.watch = tell
        entry.queue = _ForwardingQueue(migrated, tell)
        entry.moved_to = outlet.moved_to = migrated
        tell()
