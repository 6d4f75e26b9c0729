"""A unit that fails for good: models that ran there go on on another one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from framefit.devices.clock import Clock, VirtualClock
from framefit.execution.execution import Launchable
from framefit.runtime.channel import GuestJob, Handed, SharedQueue, StageJob
from framefit.runtime.job import Job
from framefit.runtime.log import Fate
from framefit.runtime.loop import Dispatcher
from framefit.runtime.recovery import RestingQueue
from framefit.runtime.streams import Arrival, Queue

__all__ = ["Lodging", "Moved", "Mover", "Spare"]


class Lodging(NamedTuple):
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


class Moved(NamedTuple):
    """A model that has moved, when, and where from and to."""

    model: int
    window: int
    unit: str
    to: str


Spare = Callable[[int, Sequence[str]], Lodging | None]  # number of a model, units that work -> where it may go on


class _Detour(Queue):
    """Frames come to a unit that cannot serve them any more, and are taken on another one.

    Args:
        guest: takes them.
        told: that one has come.
    """

    def __init__(self, guest: GuestJob, told: Callable[[], None]) -> None:
        super().__init__(guest.queue.depth, guest.queue.when_full)
        self._guest, self._told = guest, told

    @property
    def refusal(self) -> Fate:
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


class Mover:
    """Finds models of a unit that has failed a place on others, off the beat, and hands them over.

    Frames of a model come where they always came, and are taken on the other unit, which serves it last in its
    round, or, if it is a priority model, behind its own. One in several stages, of which one was on the unit, goes
    there with all of them; it begins when the frames that were under way in them are done or given up.

    Args:
        clock: the run's.
        dispatchers: by unit.
        spare: where a model may go on; ``None``: nowhere.
    """

    def __init__(self, clock: Clock, dispatchers: Mapping[str, Dispatcher], spare: Spare) -> None:
        self._clock, self._dispatchers, self._spare = clock, dispatchers, spare
        self._failed: set[str] = set()
        self._ordinals = itertools.count()
        self.moved: list[Moved] = []

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
            if isinstance(job, GuestJob) or job.model is None or job.entry.moved_to is not None or not working:
                continue
            lodging = self._spare(job.model, working)
            if lodging is not None:
                self._move(job, lodging)
                dispatcher.faults.degraded.discard(job.model)
                self.moved.append(Moved(job.model, dispatcher.windows, unit, lodging.unit))

    def _move(self, job: Job, lodging: Lodging) -> None:
        """Have another unit take the frames of a job's model."""
        entry, outlet = job.entry, job.outlet
        waiting = entry.queue.behind if isinstance(entry.queue, RestingQueue) else entry.queue
        queue = waiting if isinstance(waiting, SharedQueue) else SharedQueue(waiting)
        desk = self._dispatchers[lodging.unit].desk
        guest = GuestJob(
            execution=lodging.execution,
            first_program=lodging.first_program,
            priority=job.priority,
            estimates_ns=lodging.estimates_ns,
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
            desk.put(Handed(self._clock.now_ns(), -1, next(self._ordinals), guest=guest))

        if isinstance(job, StageJob):
            job.relay.watch = tell
        entry.queue = _Detour(guest, tell)
        entry.moved_to = outlet.moved_to = guest
        tell()
