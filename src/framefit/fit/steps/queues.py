"""Deeper queues: a frame that comes while its model is busy is not lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from framefit.core.workload import Workload, streams_of
from framefit.fit.situation import Situation
from framefit.fit.step import FreeStep, Way, step

_DEEPER = 2  # frames that wait


@step("queues", cost="none", rank=3)
class Queues(FreeStep):
    """Two frames may wait where only the newest did: results are older by up to a window, and fewer are lost."""

    def ways(self, situation: Situation, workload: Workload) -> Iterator[Way]:
        """All periodic streams that leave their queue open, at once."""
        events, streams = workload.event_streams, streams_of(workload)
        if not situation.standing.feasible or all(s.queue is not None or s.name in events for s in streams):
            return
        deeper = tuple(
            msgspec.structs.replace(stream, queue=_DEEPER)
            if stream.queue is None and stream.name not in events
            else stream
            for stream in streams
        )
        yield Way(f"let {_DEEPER} frames wait for each model", msgspec.structs.replace(workload, streams=deeper))

    def against_misses(self, situation: Situation, missed: Sequence[str]) -> Iterator[Way]:
        """The same."""
        return self.ways(situation, situation.workload) if missed else iter(())
