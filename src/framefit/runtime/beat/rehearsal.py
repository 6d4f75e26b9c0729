"""A job without effect: what a dispatcher goes through just before the real one."""

from __future__ import annotations

import copy

import numpy as np

from framefit.core.model import TensorInfo
from framefit.devices.device import Array
from framefit.runtime.frames.streams import Queue
from framefit.runtime.models.execution import Execution
from framefit.runtime.models.job import Job

__all__ = ["stand_in"]


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


def stand_in(job: Job) -> Job | None:
    """A job that goes the same way as this one with small frames and no device; ``None``: it has no tensors."""
    if not isinstance(job.execution, Execution):
        return None
    execution = copy.copy(job.execution)
    execution.disarm()
    return Job(
        execution=execution,
        first_program=0,
        priority=True,
        estimates_ns=(0, 0),  # two segments: no frame is completed
        deadline_ns=None,
        sources=dict.fromkeys(job.sources, _Still()),
        queue=Queue(job.frames),
        frames=job.frames,
    )
