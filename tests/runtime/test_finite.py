"""Numbers that are none, in outputs and in state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import ListSink
from framefit import GraphBuilder, Model
from framefit.core.faults import Fault
from framefit.devices.faulty import FaultyDevice
from framefit.devices.ort import OrtDevice
from framefit.execution.buffers import finite
from framefit.execution.execution import Execution
from framefit.runtime.sinks import CheckedSink

BAD = (np.nan, np.inf, -np.inf)


@given(
    st.integers(0, 200), st.sampled_from(["float16", "float32", "float64"]), st.sampled_from([None, *BAD]), st.data()
)
def test_finite(size: int, dtype: str, bad: float | None, data: st.DataObject) -> None:
    """One number that is none, wherever it is, makes an array that is not; the greatest finite ones do not."""
    array = np.full(size, np.finfo(dtype).max, dtype)
    if size and bad is not None:
        array[data.draw(st.integers(0, size - 1))] = bad
    assert finite(array) == (bad is None or not size)
    assert finite(array.reshape(1, size, 1)) == finite(array)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "str"])
def test_other_kinds_are_finite(dtype: str) -> None:
    """They cannot be otherwise."""
    assert finite(np.zeros(3, dtype))


@pytest.mark.parametrize("drops", [False, True])
def test_a_sink_gets_notice_of_outputs_that_are_not_finite(drops: bool) -> None:
    """Whichever of them it is; where asked for, those frames are not handed on."""
    inner, told = ListSink(), list[int]()
    sink = CheckedSink(inner, told.append, drops=drops)
    for frame in range(6):
        outputs = {"number": np.full(2, frame), "a": np.zeros(3, np.float32), "b": np.zeros((2, 2))}
        if frame in (1, 4):
            outputs["b" if frame == 1 else "a"].flat[1] = np.nan
        sink.put(frame, outputs)
    assert told == [1, 4]
    assert [frame for frame, _ in inner.taken] == ([0, 2, 3, 5] if drops else list(range(6)))
    sink.close()
    assert inner.closed


def counter(segments: int) -> Model:
    """Its state is the sum of its inputs; ``out`` is twice that."""
    b = GraphBuilder("counter")
    x, state = b.input("x", (1, 4)), b.input("h", (1, 4))
    total = b.op("Add", x, state)
    out = total
    for _ in range(segments - 1):
        out = b.op("Add", out, total)
    b.output(total, "hn")
    b.output(out if segments > 1 else b.op("Add", total, total), "out")
    return b.build()


def recurrent(device: FaultyDevice, *, guarded: bool = True) -> Execution:
    """The counter in two segments."""
    model = counter(2)
    bounds = [(0, 0), (1, len(model.layers) - 1)]
    execution = Execution(model, bounds, device, device.target.units[0].name, state={"h": "hn"})
    execution.guard_state(guarded)
    return execution


ONES = {"x": np.ones((1, 4), np.float32)}


def frame(execution: Execution) -> tuple[np.ndarray, bool]:
    """The next frame's output, and whether the state that it left was finite."""
    execution.load(ONES)
    for index in range(2):
        execution.launch(index)
    out = execution.output("out").copy()
    return out, execution.finish()


def test_state_of_before_is_kept() -> None:
    """A frame whose state is not finite leaves none behind: the next one finds what it found."""
    device = FaultyDevice(OrtDevice(), [Fault(kind="nan", name="counter.0", times=2)])
    execution = recurrent(device)
    assert [frame(execution)[0][0, 0] for _ in range(3)] == [2, 4, 6]
    device.arm(device.clock.now_ns())
    for _ in range(2):
        out, fit = frame(execution)
        assert np.isnan(out).all()
        assert not fit
    assert [(out[0, 0], fit) for out, fit in (frame(execution) for _ in range(3))] == [
        (8, True),
        (10, True),
        (12, True),
    ]


def test_state_that_nobody_looks_at() -> None:
    """Then it is the model's own affair."""
    device = FaultyDevice(OrtDevice(), [Fault(kind="inf", name="counter.0", times=1)])
    execution = recurrent(device, guarded=False)
    device.arm(device.clock.now_ns())
    assert [(np.isinf(out).all(), fit) for out, fit in (frame(execution) for _ in range(3))] == [(True, True)] * 3


@pytest.mark.parametrize("launched", [0, 1, 2])
def test_a_frame_that_is_given_up_leaves_the_state_of_before(launched: int) -> None:
    """However far it had come."""
    execution = recurrent(FaultyDevice(OrtDevice()))
    assert [frame(execution)[0][0, 0] for _ in range(3)] == [2, 4, 6]
    for _ in range(3):  # an odd number: sets of tensors take turns
        execution.load(ONES)
        for index in range(launched):
            execution.launch(index)
        execution.abandon()
    assert [frame(execution)[0][0, 0] for _ in range(2)] == [8, 10]
