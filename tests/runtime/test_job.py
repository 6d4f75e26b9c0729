"""A model as the dispatcher sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from fakes import NumberStream
from framefit.core.model import TensorInfo
from framefit.core.workload import WhenFull
from framefit.devices.device import Array, Completion, Tensors
from framefit.runtime.channel import FrameChannel
from framefit.runtime.job import Job
from framefit.runtime.streams import Arrival

X = TensorInfo(name="x", dtype="float32", shape=(2,))


@dataclass
class Recorded:
    """Keeps what it is loaded with."""

    frame_inputs: tuple[TensorInfo, ...] = (X,)
    labels: tuple[str, ...] = ("model.0", "model.1")
    loaded: list[Tensors | Sequence[Tensors]] = field(default_factory=list)

    def load(self, frame: Tensors | Sequence[Tensors]) -> None:
        """Keep it."""
        self.loaded.append(frame)

    @property
    def steps(self) -> Sequence[Callable[[], Completion]]:
        """Jobs launch nothing: the dispatcher does."""
        raise AssertionError("segments were launched")

    def results(self, names: Sequence[str] | None = None) -> dict[str, Array]:  # noqa: ARG002 - the protocol's form
        """Nothing comes out."""
        return {}

    def finish(self) -> None:
        """Nothing follows."""


def job(execution: Recorded, *, frames: int = 1, depth: int = 3, every: int = 1) -> Job:
    """Of two segments."""
    return Job(
        execution=execution,
        first_program=0,
        priority=False,
        estimates_ns=[10, 20],
        deadline_ns=None,
        sources={"x": NumberStream()},
        input=FrameChannel(depth, frames=frames),
        every=every,
    )


def test_what_it_would_launch_next() -> None:
    """Nothing without a frame, else the planned quantile of the segment that is due."""
    subject = job(Recorded())
    assert (subject.ready, subject.busy, subject.next_ns) == (False, False, None)
    subject.offer(Arrival(0, 0))
    assert (subject.ready, subject.busy, subject.next_ns) == (True, False, 10)
    subject.take()
    subject.next_segment = 1
    assert (subject.ready, subject.busy, subject.next_ns) == (True, True, 20)


def test_one_frame_is_loaded_by_itself() -> None:
    """The frame that waited longest, read as its inputs."""
    execution = Recorded()
    subject = job(execution)
    for frame in (4, 5):
        subject.offer(Arrival(frame, frame))
    subject.take()
    subject.load()
    (loaded,) = execution.loaded
    assert isinstance(loaded, dict)
    assert loaded["x"].tolist() == [4, 4]
    assert subject.in_flight == [(4, 4)]
    assert len(subject.input) == 1


def test_several_frames_are_loaded_together() -> None:
    """Not before all of them wait; then in order."""
    execution = Recorded()
    subject = job(execution, frames=3)
    for frame in (4, 5):
        subject.offer(Arrival(frame, frame))
        assert subject.next_ns is None
    subject.offer(Arrival(6, 8))
    assert subject.next_ns == 10
    subject.take()
    subject.load()
    (loaded,) = execution.loaded
    assert np.asarray([one["x"] for one in loaded]).tolist() == [[4, 4], [5, 5], [6, 6]]
    assert subject.in_flight == [(4, 4), (5, 5), (6, 8)]


def test_without_inputs_nothing_is_read() -> None:
    """Bare durations have no frames to load."""
    execution = Recorded(frame_inputs=())
    subject = job(execution)
    subject.offer(Arrival(0, 0))
    subject.take()
    subject.load()
    assert execution.loaded == []
    assert subject.in_flight == [(0, 0)]


@pytest.mark.parametrize("taken", [False, True])
def test_clearing_gives_every_frame_back(taken: bool) -> None:
    """Those in flight and those that wait, each once; the next frame begins with the first segment."""
    subject = job(Recorded(), frames=2, depth=4)
    for frame in range(3):
        subject.offer(Arrival(frame, frame))
    if taken:
        subject.take()
        subject.next_segment = 1
    assert subject.clear() == [(0, 0), (1, 1), (2, 2)]
    assert (subject.ready, subject.next_segment, subject.clear()) == (False, 0, [])


@pytest.mark.parametrize("rule", ["block", "drop-oldest", "drop-newest"])
def test_only_a_full_queue_that_waits_accepts_no_frame(rule: WhenFull) -> None:
    """The others drop one instead."""
    subject = job(Recorded(), every=2)
    subject.input = FrameChannel(2, rule)
    for frame in (0, 2):
        assert subject.accepts(frame)
        subject.offer(Arrival(frame, frame))
    assert subject.accepts(4) == (rule != "block")
    assert subject.skips(3)
    subject.take()
    assert subject.accepts(4)


def test_a_priority_model_accepts_frames_only_where_it_has_an_instant() -> None:
    """A frame that waited comes in one of the model's own windows, not between them."""
    subject = job(Recorded(), every=3)
    subject.priority = True
    assert [window for window in range(10) if subject.accepts(window)] == [0, 3, 6, 9]
    assert [frame for frame in range(10) if not subject.skips(frame)] == [0, 3, 6, 9]
