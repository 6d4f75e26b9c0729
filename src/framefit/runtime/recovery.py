"""What failures come to: a launch is tried again, a frame is dropped, a model rests, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from framefit.errors import FramefitError, HangError, InputError, LostUnitError
from framefit.runtime.job import Job
from framefit.runtime.log import FaultCause, FrameOutcome
from framefit.runtime.streams import Arrival, Queue
from framefit.runtime.windows import Windows

__all__ = ["Recovery", "RestingQueue"]


_PATIENCE = 3  # frames in a row that fail before a model rests
_FIRST_REST, _MOST_REST = 8, 512  # windows; twice as many each time: at 30 Hz from 0.3 s to 17 s
_FATES = {
    FaultCause.ERROR: FrameOutcome.FAILED,
    FaultCause.HANG: FrameOutcome.HUNG,
    FaultCause.INPUT: FrameOutcome.UNREADABLE,
}


class RestingQueue(Queue):
    """Takes no frames until a window, then is the queue that it stands for again.

    Args:
        job: whose queue it becomes.
        until: that window.
    """

    def __init__(self, job: Job, until: int) -> None:
        super().__init__(job.queue.depth, job.queue.when_full)
        self._job, self._queue, self._until = job, job.queue, until

    @property
    def refusal(self) -> FrameOutcome:
        """The model is degraded."""
        return FrameOutcome.DEGRADED

    def put(self, frame: Arrival) -> Arrival | None:
        """Refuse it, before that window."""
        if frame.window >= self._until:
            self._job.queue = self._queue
            return self._queue.put(frame)
        self._queue.put(frame)  # and out again, for what else it does with frames that it does not keep
        self._queue.clear()
        return frame

    @property
    def behind(self) -> Queue:
        """The queue that it stands for."""
        return self._queue

    def clear(self) -> Sequence[Arrival]:
        """What came while it was put in place."""
        return self._queue.clear()


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
    the frame in flight is given up. After three in a row the model is degraded. Where its launches cost time that
    others could have (of background models all, of priority models those that hang), it rests for 8 windows, after
    another failure for 16, and so on up to 512; its frames are dropped meanwhile. A frame that is finished ends it all.

    Nothing of it runs while nothing fails: success is told by :attr:`Job.freed`, which is lent for that.

    Args:
        run: the unit's windows and frames.
    """

    def __init__(self, run: Windows) -> None:
        self._run = run
        self._troubles: dict[int, _Trouble] = {}

    def aborts_frame(self, index: int, job: Job, error: BaseException, now_ns: int) -> bool:
        """Whether the frame in flight was given up; else its launch is tried again.

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
        trouble = self._troubles.get(index)
        if trouble is None:
            trouble = self._troubles[index] = _Trouble()
            job.freed = self._recovered(index, job, job.freed)
        again = job.on_error == "retry" and cause == FaultCause.ERROR and not (trouble.tried_again or trouble.rests)
        trouble.tried_again = again
        if again:
            return False
        run.abort_frame(index, _FATES[cause], now_ns)
        trouble.frames += 1
        trouble.launches += cause != FaultCause.INPUT
        if trouble.frames < _PATIENCE:
            return True
        run.faults.degraded.add(model)
        costs = cause == FaultCause.HANG or (cause == FaultCause.ERROR and not job.priority)
        if costs and not isinstance(job.entry.queue, RestingQueue):
            self._rest(index, job.entry, trouble)
        if run.failed is not None and all(self._fails(number) for number in range(len(run.jobs))):
            failed, run.failed = run.failed, None
            failed()
        return True

    def _fails(self, index: int) -> bool:
        """Whether launches of a job fail, and nothing else; or no more come, for what is before it fails."""
        if index in self._troubles and self._troubles[index].launches >= _PATIENCE:
            return True
        return self._run.jobs[index].starves(self._run.faults.degraded)

    def _rest(self, index: int, entry: Job, trouble: _Trouble) -> None:
        """Let no frames come for a while."""
        waiting = entry.queue
        entry.queue = RestingQueue(entry, self._run.windows + min(_FIRST_REST << trouble.rests, _MOST_REST))
        self._run.reject(index, waiting.clear(), FrameOutcome.DEGRADED)
        trouble.rests += 1

    def _recovered(self, index: int, job: Job, freed: Callable[[int], None] | None) -> Callable[[int], None]:
        """What is told that a frame is done, for once."""

        def told(finished_ns: int) -> None:
            job.freed = freed
            del self._troubles[index]
            self._run.faults.degraded.discard(index if job.model is None else job.model)
            if freed is not None:
                freed(finished_ns)

        return told


def _cause(error: BaseException) -> FaultCause | None:
    """What a run may survive; ``None``: it does not."""
    if isinstance(error, HangError):
        return FaultCause.HANG
    if isinstance(error, InputError):
        return FaultCause.INPUT
    if isinstance(error, LostUnitError) or not isinstance(error, FramefitError):
        return None
    return FaultCause.ERROR
