"""One model in several cuts over the same tensors: a frame may change from one to another."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice
from framefit import GraphBuilder, Model
from framefit.devices.device import Device
from framefit.devices.ort import OrtDevice
from framefit.execution.execution import Execution, greatest_difference
from framefit.runtime.log import LaunchLog
from framefit.runtime.switching import Drift

Bounds = tuple[tuple[int, int], ...]


@functools.cache
def branching() -> Model:
    """Layers that are read again much later, and a state: memory that is given away too early shows."""
    b = GraphBuilder("branching", 3)
    x, state = b.input("x", (1, 4, 8, 8)), b.input("state", (1, 4, 8, 8))
    first = b.conv(x, 4, activation="Relu")
    x = b.conv(first, 4, activation="Relu")
    x = b.op("Add", x, state)
    b.output(x, "state_out")
    second = b.conv(x, 4, activation="Relu")
    x = b.conv(second, 4, activation="Relu")
    x = b.op("Add", x, first)
    x = b.conv(x, 4, activation="Relu")
    x = b.op("Add", x, second)
    b.output(b.conv(x, 4), "y")
    return b.build()


@pytest.fixture(scope="module")
def device() -> Device:
    """The processor."""
    return OrtDevice()


def bounds(begins: set[int], count: int) -> Bounds:
    """Segments that begin at layer 0 and these."""
    return tuple((first, end - 1) for first, end in itertools.pairwise([0, *sorted(begins), count]))


@settings(max_examples=25)
@given(
    cuts=st.lists(st.sets(st.integers(1, 9)), min_size=2, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=6, max_size=6),
)
def test_a_frame_may_change_its_cut_between_any_two_segments(
    device: Device, cuts: list[set[int]], changes: list[tuple[int, int]]
) -> None:
    """Its outputs, and the state that it leaves, are the whole model's."""
    model = branching()
    count = len(model.layers)
    kept = [{begin for begin in cut if begin < count} for cut in cuts]
    finest = bounds(set().union(*kept), count)
    place = {first: number for number, (first, _) in enumerate(finest)} | {count: len(finest)}
    ways = [bounds(cut, count) for cut in kept]
    together = [(place[first], place[last + 1] - 1) for way in ways for first, last in way]
    state = {"state": "state_out"}
    made = Execution(
        model, finest, device, device.target.units[0].name, state=state, name="m@finest", together=together
    )
    recut = [made.recut(way, f"m@{number}") for number, way in enumerate(ways)]
    whole = Execution(model, [(0, count - 1)], device, device.target.units[0].name, state=state)
    random = np.random.default_rng(0)
    now = recut[0]
    for after, to in changes:
        (frame,) = whole.example(random)
        now.load(frame)
        layer, index = 0, 0
        while layer < count:
            now.launch(index)
            layer, index = now.bounds[index][1] + 1, index + 1
            if index == after + 1 and layer < count:
                other = recut[to % len(recut)]
                other = other if layer in dict(other.bounds) else made
                other.follow(now)
                now, index = other, [first for first, _ in other.bounds].index(layer)
        outputs = now.results()
        now.finish()
        assert greatest_difference(outputs, whole.run(frame)) <= 1e-5


@settings(max_examples=25)
@given(cuts=st.lists(st.sets(st.integers(1, 9)), min_size=2, max_size=4))
def test_tensors_of_one_launch_never_share_memory(cuts: list[set[int]]) -> None:
    """Whatever a joined segment reads or writes lies apart, also where its pieces could share a place."""
    model = branching()
    count = len(model.layers)
    kept = [{begin for begin in cut if begin < count} for cut in cuts]
    finest = bounds(set().union(*kept), count)
    place = {first: number for number, (first, _) in enumerate(finest)} | {count: len(finest)}
    ways = [bounds(cut, count) for cut in kept]
    together = [(place[first], place[last + 1] - 1) for way in ways for first, last in way]
    made = Execution(model, finest, FakeDevice(), "fake0", name="m@finest", together=together)
    arrays = made._tensors[0]
    for way in ways:
        for part in made.recut(way, "m").parts:
            used = [arrays[tensor.name] for tensor in (*part.inputs, *part.outputs)]
            assert not any(np.shares_memory(one, other) for one, other in itertools.combinations(used, 2))


def test_a_segment_of_two_cuts_is_compiled_once(device: Device) -> None:
    """Cuts that share a segment share what was compiled, and its label in the trace."""
    model = branching()
    last = len(model.layers) - 1
    made = Execution(
        model, [(0, 0), (1, 2), (3, last)], device, device.target.units[0].name, name="m@finest", together=[(0, 1)]
    )
    other = made.recut([(0, 2), (3, last)], "m")
    assert other.labels == ("m.0", "m@finest.2")
    assert other.units == (device.target.units[0].name,) * 2


# How much longer launches take


def rows(program: int, took_ns: list[int]) -> list[int]:
    """Launches of a program."""
    log = LaunchLog()
    for ns in took_ns:
        log.add(program, 0, 0, 1000, 1000 + ns, 1000, followed=False, cpu_ns=-1)
    return log.settle()


def test_drift_is_the_median_over_the_planned_quantile() -> None:
    """Of all priority programs together by what they take, and of background launches by their ratios."""
    drift = Drift({0: 100, 1: 300}, {2: 50})
    assert drift.ratios == (0, 0)
    drift.observe([*rows(0, [90] * 16), *rows(1, [270] * 16)])
    assert drift.ratios == (0.9, 0)
    for _ in range(16):
        drift.observe(rows(2, [50, 70]))
    assert drift.ratios == (0.9, 1.2)
    drift.observe(rows(1, [600] * 7))
    assert drift.ratios[0] == 0.9
    drift.observe(rows(1, [600] * 2))
    assert drift.ratios[0] == pytest.approx((90 + 600) / 400)


def test_a_launch_that_failed_tells_nothing() -> None:
    """It has no end."""
    drift = Drift({0: 100}, {})
    log = LaunchLog()
    for _ in range(20):
        log.add(0, 0, 0, 1000, -1, 1000, followed=False, cpu_ns=-1)
    drift.observe(log.settle())
    assert drift.seen == 0
