"""Streams on which things go wrong, as told."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice, NumberStream
from framefit import InputError
from framefit.core.faults import Fault
from framefit.core.model import TensorInfo
from framefit.runtime.injection import FaultyStream, StreamFaults
from framefit.runtime.log import FrameOutcome
from framefit.runtime.streams import Feed
from framefit.runtime.units import UnitGroup
from unit_groups import MS, Entry, fates, made

X = TensorInfo(name="x", dtype="float32", shape=(1, 4))


def run(
    faults: list[Fault], windows: int, *, units: int = 1, queue: int = 2, waits: bool = False
) -> tuple[UnitGroup, Feed]:
    """A priority model and a background model that read one stream, on one unit or two."""
    found: list[UnitGroup] = []
    injected = StreamFaults(
        faults,
        lambda: 0,
        lambda: found[0].release(found[0].windows) - found[0].start_ns,
        lambda *_: None,
        lambda: found[0].end_early(),
    )
    feed = Feed(waits, frame_source=injected.frame_source({"camera"}, waits=waits))
    entries = [
        Entry("face", [(0, [2 * MS])], priority=True, feed=feed, queue=queue),
        Entry("big", [(units - 1, [3 * MS])], feed=feed, queue=queue, when_full="block" if waits else "drop-oldest"),
    ]
    group, _ = made(FakeDevice({"face": 2 * MS, "big": 3 * MS}, units=units), *entries)
    found.append(group)
    group.run(windows)
    for entry in entries:
        done = [frame for frame, _ in entry.sink.taken]
        assert all(outputs["number"].tolist() == [frame] for frame, outputs in entry.sink.taken)
        assert done == sorted(done)
    return group, feed


@pytest.mark.parametrize("units", [1, 2])
def test_a_stream_that_stalls(units: int) -> None:
    """Its windows are empty: no release, so no miss; then the next frames come as if nothing had been."""
    group, feed = run([Fault(kind="stall", name="camera", begin_ns=30 * MS, end_ns=80 * MS)], 20, units=units)
    assert (group.windows, feed.delivered, feed.missing) == (20, 15, 5)
    for model in range(2):
        assert fates(group, model) == dict.fromkeys(range(15), FrameOutcome.DONE)
    released = [(row[3] - group.start_ns) // (10 * MS) for row in group.frames.rows().tolist() if row[0] == 0]
    assert released == [0, 1, 2, *range(8, 20)]


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize(("queue", "kept"), [(1, [9]), (2, [8, 9]), (5, [5, 6, 7, 8, 9])])
def test_a_burst(units: int, queue: int, kept: list[int]) -> None:
    """Five frames come at once: as many as may wait are kept, the oldest of them go.

    Those of the priority model run at once; where they take the background model's time, its queue is full later on.
    """
    group, feed = run(
        [Fault(kind="burst", name="camera", begin_ns=50 * MS, times=1, amount=5)], 20, units=units, queue=queue
    )
    assert feed.delivered == 24
    for model in range(2):
        found = fates(group, model)
        assert sorted(found) == list(range(24))
        dropped = [frame for frame in range(24) if found[frame] == FrameOutcome.QUEUE_FULL]
        assert dropped == [f for f in range(5, 10) if f not in kept or (f == 5 and units == 1 and model == 1)]
        assert set(found.values()) <= {FrameOutcome.DONE, FrameOutcome.QUEUE_FULL}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("units", [1, 2])
def test_a_stream_that_ends(units: int, waits: bool) -> None:
    """The run ends; where the stream waits, when the frames that came are done."""
    group, feed = run([Fault(kind="end", name="camera", begin_ns=70 * MS)], 200, units=units, waits=waits)
    assert group.ended
    assert feed.delivered == 7
    assert group.windows <= 12
    for model in range(2):
        assert sorted(fates(group, model)) == list(range(7))
        if waits:
            assert set(fates(group, model).values()) == {FrameOutcome.DONE}


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.builds(
            Fault,
            kind=st.sampled_from(["stall", "burst"]),
            name=st.just("camera"),
            begin_ns=st.integers(0, 300 * MS),
            end_ns=st.one_of(st.none(), st.integers(301 * MS, 400 * MS)),
            times=st.one_of(st.none(), st.integers(1, 4)),
            amount=st.integers(1, 6),
        ),
        max_size=4,
    ),
    st.integers(1, 2),
    st.integers(1, 3),
)
def test_no_frame_is_lost(faults: list[Fault], units: int, queue: int) -> None:
    """Every frame that came has one fate at each model, and every window brought some or is counted."""
    group, feed = run(faults, 40, units=units, queue=queue)
    for model in range(2):
        assert sorted(fates(group, model)) == list(range(feed.delivered))
    stalled = sum(
        any(fault.kind == "stall" and fault.due(window * 10 * MS) for fault in faults) for window in range(40)
    )
    assert feed.missing == stalled
    assert Counter(fates(group, 0).values())[FrameOutcome.DONE] > 0 or feed.delivered == 0


def test_a_frame_of_another_shape() -> None:
    """It fits no input, for whichever model reads it first; the others are as they were; nothing before the run."""
    now = [-1]
    fault = Fault(kind="shape", name="camera", begin_ns=100, times=2)
    (stream,) = (
        StreamFaults([fault], lambda: now[0], lambda: 0, lambda *_: None, lambda: None)
        .in_streams({"camera": NumberStream()})
        .values()
    )
    assert isinstance(stream, FaultyStream)
    assert stream.read(0, X)[0, 0] == 0
    refused = []
    for frame in range(8):
        now[0] = frame * 30
        for tensor in (X, TensorInfo(name="y", dtype="float32", shape=(1, 2))):
            if frame in (4, 5):
                with pytest.raises(InputError, match=f"frame {frame}") as error:
                    stream.read(frame, tensor)
                refused.append(error.value)
            else:
                assert stream.read(frame, tensor).shape == tensor.shape
    assert len(refused) == 4
    np.testing.assert_array_equal(stream.read(3, X), np.full((1, 4), 3))
    assert (stream.length, stream.has(7)) == (None, True)


def test_streams_without_such_faults_stay_as_they_are() -> None:
    """Nothing lies between them and their models."""
    streams = {"camera": NumberStream(), "sound": NumberStream()}
    faults = [Fault(kind="stall", name="camera"), Fault(kind="shape", name="elsewhere")]
    assert StreamFaults(faults, lambda: 0, lambda: 0, lambda *_: None, lambda: None).in_streams(streams) == streams
