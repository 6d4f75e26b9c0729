"""A model that reads others, made ready: copies of what they give it, and a queue of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from framefit.core.model import TensorInfo
from framefit.core.timetable import PlannedModel
from framefit.devices.device import Array
from framefit.runtime.frames.reading import Reading, ReadQueue, Supply
from framefit.runtime.models.job import Job

__all__ = ["Given", "copies_of", "read_others"]


@dataclass(frozen=True)
class Given:
    """What a model is given by another one.

    Attributes:
        jobs: of the giving model's stages.
        model: its part in the plan.
        inputs: input of the reading model -> output that it reads, and what a frame of it is; none where no tensors are
            computed.
        step: releases of its stream between its results.
    """

    jobs: Sequence[Job]
    model: PlannedModel
    inputs: Mapping[str, tuple[str, TensorInfo]] = field(default_factory=dict)
    step: int = 1

    def output(self, name: str) -> Array:
        """Of the frame that it is done with, on whatever unit."""
        last = self.jobs[-1]
        return (last.moved_to or last).execution.output(name)


def copies_of(depth: int, frames: int, givers: Sequence[PlannedModel]) -> int:
    """How often what a model is given has to exist.

    Once for each frame that may wait in its queue, those that it is reading and those that it takes next, one on
    its way; of several that it reads for as long as the slowest one's result may be late.

    Args:
        depth: of its queue.
        frames: taken at once.
        givers: that it reads.
    """
    others = max((one.result_age_windows or 1 for one in givers), default=1) if len(givers) > 1 else 0
    return depth + 2 * frames + 1 + others


def read_others(first: Job, given: Sequence[Given]) -> None:
    """Have a model get its frames of others instead of a feed; of a stream it reads the frames of the same numbers.

    Args:
        first: its job, or that of its first stage, before it is given to a dispatcher.
        given: what it reads, in the order of its inputs.
    """
    copies = copies_of(first.queue.depth, first.frames, [one.model for one in given])
    supplies = [Supply(one.inputs, one.output, copies) for one in given]
    first.reading = Reading(
        givers=[one.jobs[0] for one in given],
        models=[_number(one.jobs[0]) for one in given],
        supplies=supplies,
        every=first.every,
        step=given[0].step if first.priority else 0,
    )
    first.queue, first.every = ReadQueue(first.queue.depth, first.queue.when_full, supplies, first.frames), 1
    read = {name: supply for one, supply in zip(given, supplies, strict=True) for name in one.inputs}
    first.sources = {**first.sources, **read}


def _number(job: Job) -> int:
    assert job.model is not None
    return job.model
