"""The device protocol's own helpers, and the fake that stands in for a device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes import FakeDevice
from framefit import DeviceError
from framefit.core.model import TensorInfo
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Device, allocate, random_inputs
from framefit.testing import DeviceConformance, arrays_for, small_network


class TestFakeDevice(DeviceConformance):
    """The tests' own device keeps the protocol that real ones keep."""

    computes = False

    def make(self, cache: Path, trace_events: int = 1 << 12) -> Device:  # noqa: ARG002  # nothing to keep
        """Fuses the small network's first three nodes."""
        nodes = tuple(node for layer in small_network().layers[:3] for node in layer.nodes)
        return FakeDevice(trace_events=trace_events, groups=(nodes,), on_host=False)

    def test_takes_the_given_time(self) -> None:
        """Durations follow label and launch number, on the clock that was given."""
        clock = VirtualClock(100)
        device = FakeDevice(lambda label, launch: {"a": 10, "b": 20}[label] + launch, clock=clock)
        model = small_network()
        a, b = (device.compile(model, "fake0", label).bind(arrays_for(model)) for label in "ab")
        assert [device.submit(x).duration_ns for x in (a, b, a)] == [10, 21, 12]
        assert clock.now_ns() == 143

    def test_fails_on_request(self) -> None:
        """The launch of the given number fails and leaves no packets."""
        device = FakeDevice({"net": 10}, fail_at=1)
        model = small_network()
        binding = device.compile(model, "fake0", "net").bind(arrays_for(model))
        device.submit(binding)
        with pytest.raises(DeviceError, match="told to fail"):
            device.submit(binding)
        assert len(device.events()) == 2


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (1, 3, 7, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_buffers_are_zeroed_and_aligned(shape: tuple[int, ...], dtype: str) -> None:
    """A buffer has the tensor's shape and type, zeros in it, and begins at a multiple of 64 bytes."""
    array = allocate(TensorInfo(name="x", dtype=dtype, shape=shape))
    assert (array.shape, array.dtype.name) == (shape, dtype)
    assert not array.any()
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0


def test_random_inputs_fit_and_follow_the_generator() -> None:
    """Inputs have each tensor's shape and type, and the same generator state gives the same numbers."""
    tensors = [
        TensorInfo(name=dtype, dtype=dtype, shape=(40, 3)) for dtype in ("float32", "float16", "int32", "uint8", "bool")
    ]
    made, again, other = (random_inputs(tensors, np.random.default_rng(seed)) for seed in (1, 1, 2))
    for tensor in tensors:
        array = made[tensor.name]
        assert (array.dtype.name, array.shape) == (tensor.dtype, tensor.shape)
        assert len(np.unique(array)) > 1
        np.testing.assert_array_equal(array, again[tensor.name])
        assert not np.array_equal(array, other[tensor.name])
