"""The accelerator that runs by its description."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import DeviceError, GraphBuilder, Model
from framefit.core.events import Trace
from framefit.core.target import Host, Link, Target, TraceUnit, Unit, Variation
from framefit.devices.clock import RealClock, VirtualClock
from framefit.devices.device import Completion
from framefit.devices.npu.device import NpuDevice, greatest_ratio, quantile_ratio
from framefit.devices.ort import OrtDevice
from framefit.runtime.log import joined
from framefit.testing import DeviceConformance, arrays_for, small_network
from networks import NETWORKS, Runner, difference, random_inputs

UNITS = (Unit(name="npu0", core=7), Unit(name="npu1", core=9))
LINK = Host(inference_ns=400, byte_ns=0.5, input_bandwidth_gbps=1.0, output_bandwidth_gbps=2.0, latency_ns=100)
HARDLY_HZ = 1e-6  # a packet in eleven days


def board(variation: Variation | None = None, host: Host | None = None, **trace: Any) -> Target:
    """Two units."""
    return Target(
        name="board",
        kind="npu",
        units=UNITS,
        host=host or Host(),
        trace=TraceUnit(**trace),
        variation=variation or Variation(),
    )


def layer_times(model: Model, unit: str) -> list[int]:
    """A microsecond for the first layer, two for the second, ...; twice that on the other unit."""
    return [1000 * (1 + index) * (1 + (unit == "npu1")) for index in range(len(model.layers))]


class TestNpuDevice(DeviceConformance):
    """It keeps the protocol, on virtual time."""

    computes = False

    def make(self, cache: Path, trace_events: int = 1 << 12) -> NpuDevice:  # noqa: ARG002  # nothing to keep
        """Transfers and three layers, all of them varied."""
        target = board(
            Variation(sigma_ratio=0.1, drift_ratio=0.1, stall_rate_hz=1e5, stall_ns=777),
            LINK,
            buffer_events=trace_events,
            drain_rate_hz=HARDLY_HZ,
            operations=True,
        )
        return NpuDevice(target, VirtualClock(50), layer_times)


@pytest.mark.timed
class TestNpuDeviceInRealTime(DeviceConformance):
    """And on the machine's clock."""

    computes = False

    def make(self, cache: Path, trace_events: int = 1 << 12) -> NpuDevice:  # noqa: ARG002  # nothing to keep
        """Each layer takes 0.1 ms."""
        target = board(buffer_events=trace_events, drain_rate_hz=HARDLY_HZ)
        return NpuDevice(target, RealClock(), lambda model, _: [100_000] * len(model.layers))

    def test_takes_at_least_the_given_time(self, tmp_path: Path) -> None:
        """A launch is never shorter than its layers, and its caller waits for it."""
        device, model = self.make(tmp_path), small_network()
        binding = device.compile(model, "npu0", "net").bind(arrays_for(model))
        for _ in range(10):
            begin = device.clock.now_ns()
            done = device.submit(binding)
            assert done.duration_ns == 300_000
            assert device.clock.now_ns() >= done.finished_ns >= begin + 300_000
        assert device.late_results == 0


class TestNpuDeviceThatComputes(DeviceConformance):
    """It keeps the protocol where outputs are computed, on virtual time."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> NpuDevice:
        """By ONNX Runtime."""
        target = board(Variation(sigma_ratio=0.1), buffer_events=trace_events, drain_rate_hz=HARDLY_HZ)
        return NpuDevice(target, VirtualClock(), layer_times, computer=OrtDevice(cache=cache))

    @pytest.mark.parametrize("name", ["plain", "residual", "lstm", "quantised"])
    def test_outputs_are_the_runtimes_own(self, tmp_path: Path, name: str) -> None:
        """What a launch puts out is what the model computes, frame by frame."""
        model, device = NETWORKS[name](), self.make(tmp_path)
        arrays = arrays_for(model)
        binding = device.compile(model, "npu0", "net").bind(arrays)
        for seed in (0, 1):
            feeds = random_inputs(model, seed)
            for tensor, array in feeds.items():
                arrays[tensor][...] = array
            device.submit(binding)
            found = {tensor.name: binding.output(tensor.name) for tensor in model.outputs}
            assert difference(Runner(model).whole(feeds), found) <= (0.05 if name == "quantised" else 1e-5)
        assert len(device.events()) == 2 * 2 * len(device.compile(model, "npu0", "net").operations)

    def test_computing_can_be_left_out(self, tmp_path: Path) -> None:
        """Then launches take the same time, and arrays stay as they are."""
        device, model = self.make(tmp_path), small_network()
        arrays = arrays_for(model)
        arrays["image"][...] = 1
        binding = device.compile(model, "npu0", "net").bind(arrays)
        first = device.submit(binding).duration_ns
        assert np.any(arrays["pooled"])
        device.restart()
        device.computes = False
        arrays["pooled"][...] = 5
        assert device.submit(binding).duration_ns == first
        assert (binding.output("pooled") == 5).all()

    def test_output_whose_shape_depends_on_the_data(self, tmp_path: Path) -> None:
        """It comes from the runtime where outputs are computed, and is refused by name where they never are."""
        b = GraphBuilder("positions")
        x = b.op("Relu", b.input("x", (1, 6)))
        b.output(x, "positive")
        b.output(b.op("NonZero", x), "where")
        model = b.build()
        arrays = arrays_for(model)
        arrays["x"][...] = [1, -1, 0, 2, 0, 3]
        device = self.make(tmp_path)
        binding = device.compile(model, "npu0", "net").bind(arrays)
        device.submit(binding)
        np.testing.assert_array_equal(binding.output("where"), [[0, 0, 0], [0, 3, 5]])
        plain = NpuDevice(board(), VirtualClock(), layer_times).compile(model, "npu0", "net").bind(arrays)
        with pytest.raises(DeviceError, match="'where' has no fixed shape"):
            plain.output("where")


@pytest.mark.timed
class TestNpuDeviceThatComputesInRealTime(DeviceConformance):
    """And on the machine's clock, where computing may take longer than the model says."""

    def make(self, cache: Path, trace_events: int = 1 << 12) -> NpuDevice:
        """Layers take next to nothing."""
        target = board(buffer_events=trace_events, drain_rate_hz=HARDLY_HZ)
        return NpuDevice(target, RealClock(), layer_times, computer=OrtDevice(cache=cache))


class Slow(OrtDevice):
    """Takes its time to compute, on a clock of its own."""

    def __init__(self, clock: VirtualClock, cache: Path) -> None:
        super().__init__(clock=clock, cache=cache)
        self.takes_ns = 0

    def submit(self, binding: Any) -> Completion:
        """As told."""
        self.clock.sleep_until_ns(self.clock.now_ns() + self.takes_ns)
        return super().submit(binding)


def test_late_results_make_a_launch_longer(tmp_path: Path) -> None:
    """A launch lasts until its outputs are there: it is counted, and all of its operations were slower alike."""
    clock = VirtualClock()
    computer = Slow(clock, tmp_path)
    device = NpuDevice(board(), clock, layer_times, computer=computer)
    model = small_network()
    binding = device.compile(model, "npu0", "net").bind(arrays_for(model))
    for takes_ns, lasts_ns, late in ((5999, 6000, 0), (6000, 6000, 0), (6600, 6600, 1), (60_001, 60_001, 2)):
        computer.takes_ns = takes_ns
        before = clock.now_ns()
        done = device.submit(binding)
        assert (done.started_ns - before, done.duration_ns, device.late_results) == (0, lasts_ns, late)
        assert clock.now_ns() == done.finished_ns
        ends = np.asarray([0, 1000, 1000, 3000, 3000, 6000]) * lasts_ns / 6000
        assert (device.events().time_ns - before).tolist() == np.rint(ends).tolist()
    device.restart()
    assert device.late_results == 0


def test_a_launch_that_fails_leaves_no_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The computer's error is raised; neither packets nor a busy unit stay behind."""
    computer = OrtDevice(cache=tmp_path)
    device = NpuDevice(board(), VirtualClock(), layer_times, computer=computer)
    model = small_network()
    binding = device.compile(model, "npu0", "net").bind(arrays_for(model))

    def fail(_: object) -> Completion:
        raise DeviceError("told to fail")

    with monkeypatch.context() as patch:
        patch.setattr(computer, "submit", fail)
        with pytest.raises(DeviceError, match="told to fail"):
            device.submit(binding)
    assert len(device.events()) == 0
    assert device.submit(binding).started_ns == 0


# What a launch consists of -------------------------------------------------------------------


def test_operations_of_a_segment() -> None:
    """Transfer in, each group of layers, transfer out: by hand."""
    device = NpuDevice(board(Variation(sigma_ratio=0.03), LINK), VirtualClock(), layer_times)
    model = small_network()
    handle = device.compile(model, "npu1", "small")
    conv, pool, named = model.grouped(device.fusions(model)).layers
    assert [(o.kind, o.layer, o.expected_ns) for o in handle.operations] == [
        # 3 x 8 x 8 floats: 400 of the host, 0.5 a byte, 100 of the link, 1 a byte
        ("transfer", conv.name, 400 + 384 + 100 + 768),
        ("conv", conv.name, 2000),
        ("pad_pool", pool.name, 4000),
        ("reformat", named.name, 6000),
        # 4 floats at twice the speed
        ("transfer", named.name, 8 + 100 + 8),
    ]
    assert [o.index for o in handle.operations] == [0, 1, 2, 3, 4]
    assert len({o.name for o in handle.operations}) == 5
    assert {(o.unit, o.sigma_ratio) for o in handle.operations} == {("npu1", 0.03)}
    assert handle.duration_ns == sum(o.expected_ns for o in handle.operations) == 13_768
    assert device.link_ns(small_network()) == (1652, 116)


def test_without_a_link_there_are_no_transfers() -> None:
    """Tensors that are shared leave no packets of their own."""
    device = NpuDevice(board(), VirtualClock(), layer_times)
    kinds = [operation.kind for operation in device.compile(small_network(), "npu0", "small").operations]
    assert kinds == ["conv", "pad_pool", "reformat"]
    assert device.link_ns(small_network()) == (0, 0)


def test_segments_together_take_the_model_and_their_transfers() -> None:
    """A cut adds the host's part of another launch; what crosses it stays on the device."""

    def one_each(model: Model, _: str) -> list[int]:
        return [1000] * len(model.layers)

    device = NpuDevice(board(host=LINK), VirtualClock(), one_each)
    model = small_network()
    model = model.grouped(device.fusions(model))
    whole = device.compile(model, "npu0", "whole").duration_ns
    parts = [device.compile(part, "npu0", "part").duration_ns for part in (model.segment(0, 0), model.segment(1, 2))]
    assert model.cuts[0].bytes > 0
    assert sum(parts) == whole + device.launch_ns == whole + 400


def test_a_timed_launch_is_one_operation() -> None:
    """It has the label as kind and takes the duration told; no array is needed."""
    device = NpuDevice(board(operations=True), VirtualClock(5))
    handle = device.timed("face.0", "npu1", 12_345)
    (operation,) = handle.operations
    assert (operation.kind, operation.unit, operation.expected_ns) == ("face.0", "npu1", 12_345)
    assert device.submit(handle.bind({})) == Completion(5, 12_350)
    trace = device.events()
    assert (trace.time_ns.tolist(), trace.core.tolist(), trace.kinds) == ([5, 12_350], [9, 9], ("face.0",))


def test_what_is_not_known_is_refused() -> None:
    """No layer times, or no such unit: an error that names it, not a launch of no length."""
    device = NpuDevice(board(), VirtualClock())
    with pytest.raises(DeviceError, match="there are no layer times for 'b'") as error:
        device.compile(small_network(), "npu0", "b")
    assert error.value.where == "board"
    with pytest.raises(DeviceError, match="no unit 'npu2'; units: npu0, npu1"):
        device.timed("b", "npu2", 5)


def test_units_have_their_own_core_in_the_trace() -> None:
    """Packets carry the core of the unit that ran the launch."""
    device = NpuDevice(board(), VirtualClock())
    for label, unit, duration_ns in (("a", "npu1", 5), ("b", "npu0", 7), ("a", "npu0", 5)):
        device.submit(device.timed(label, unit, duration_ns).bind({}))
    trace = device.events()
    assert trace.core.tolist() == [9, 9, 7, 7, 7, 7]
    assert trace.time_ns.tolist() == [0, 5, 5, 12, 12, 17]


class Standing:
    """A clock that only its owner moves: a host that does not wait."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        """The present."""
        return self.time_ns

    def doze_until_ns(self, time_ns: int) -> None:
        """Not at all."""

    def sleep_until_ns(self, time_ns: int) -> None:
        """Not at all."""


def test_a_unit_runs_one_launch_at_a_time() -> None:
    """A launch waits for the one before on its unit, and for none on another one; their packets come in time order."""
    twins = Target(name="board", kind="npu", units=(Unit(name="npu0"), Unit(name="npu1")))  # of one core number
    clock = Standing()
    device = NpuDevice(twins, clock)
    launches = (("a", "npu0", 100), ("b", "npu1", 30), ("c", "npu0", 50), ("d", "npu1", 10))
    done = [device.submit(device.timed(label, unit, ns).bind({})) for label, unit, ns in launches]
    assert done == [Completion(0, 100), Completion(0, 30), Completion(100, 150), Completion(30, 40)]
    clock.time_ns = 35
    early = device.events()
    assert early.time_ns.tolist() == [0, 0, 30, 30]  # what has not happened yet comes later
    clock.time_ns = 150
    trace = joined([early, device.events()], 0)
    assert [(time, trace.kinds[id_]) for time, id_ in zip(trace.time_ns.tolist(), trace.id, strict=True)] == [
        (0, "a"),
        (0, "b"),
        (30, "b"),
        (30, "d"),
        (40, "d"),
        (100, "a"),
        (100, "c"),
        (150, "c"),
    ]


def linked(**keys: Any) -> NpuDevice:
    """Two units with memories of their own."""
    link = Link(between=("npu1", "npu0"), **keys)
    return NpuDevice(Target(name="board", kind="npu", units=UNITS, links=(link,)), VirtualClock())


def test_units_without_a_link_share_their_memory() -> None:
    """What one has written the other reads at once."""
    assert NpuDevice(board(), VirtualClock()).arrival_ns("npu0", "npu1", 10**6, 70) == 70


def test_a_link_carries_one_thing_at_a_time() -> None:
    """In both directions: bytes over bandwidth one after the other, each with the latency behind it."""
    device = linked(latency_ns=100, bandwidth_gbps=2.0)
    assert device.arrival_ns("npu0", "npu1", 4000, 50) == 50 + 2000 + 100
    assert device.arrival_ns("npu1", "npu0", 1000, 60) == 50 + 2000 + 500 + 100
    assert device.arrival_ns("npu0", "npu1", 1000, 9000) == 9000 + 500 + 100
    device.restart()
    assert device.arrival_ns("npu0", "npu1", 4000, 50) == 2150
    assert linked(latency_ns=7).arrival_ns("npu0", "npu1", 10**9, 1) == 8


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([("npu0", "npu0")], "between two units, not 'npu0' and itself"),
        ([("npu0", "npu5")], "no unit 'npu5'; units: npu0, npu1"),
        ([("npu0", "npu1"), ("npu1", "npu0")], "pairs of linked units must differ, 'npu0 and npu1' is there 2 times"),
    ],
)
def test_links_that_make_no_sense(links: list[tuple[str, str]], message: str) -> None:
    """They are refused with what is wrong."""
    with pytest.raises(ValueError, match=message):
        Target(name="board", kind="npu", units=UNITS, links=tuple(Link(between=pair) for pair in links))


def test_units_overlap_in_virtual_time() -> None:
    """Launches on two units, each waited for by its own part of the clock; packets come in time order."""
    device = NpuDevice(board(), VirtualClock())
    done: dict[str, list[Completion]] = {"npu0": [], "npu1": []}

    def part(unit: str, duration_ns: int, count: int) -> None:
        binding = device.timed(unit, unit, duration_ns).bind({})
        done[unit] = [device.submit(binding) for _ in range(count)]

    device.clock.together([lambda: part("npu0", 30, 1000), lambda: part("npu1", 70, 400)])
    assert done["npu0"] == [Completion(30 * k, 30 * k + 30) for k in range(1000)]
    assert done["npu1"] == [Completion(70 * k, 70 * k + 70) for k in range(400)]
    trace = device.events()
    assert len(trace) == 2 * 1400
    assert (np.diff(trace.time_ns) >= 0).all()
    for core, unit in ((7, "npu0"), (9, "npu1")):
        times = trace.time_ns[trace.core == core].tolist()
        assert times == [time for one in done[unit] for time in (one.started_ns, one.finished_ns)]


@pytest.mark.timed
def test_units_overlap_in_threads() -> None:
    """No packet is lost or out of order, though launches are noted when their outputs have been computed."""
    device = NpuDevice(board(), RealClock(spin_ns=0))
    done: dict[str, list[Completion]] = {"npu0": [], "npu1": []}

    def part(unit: str, duration_ns: int, count: int) -> None:
        binding = device.timed(unit, unit, duration_ns).bind({})
        done[unit] = [device.submit(binding) for _ in range(count)]

    threads = [
        threading.Thread(target=part, args=arguments) for arguments in (("npu0", 20_000, 1500), ("npu1", 50_000, 900))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = device.events()
    assert len(trace) == 2 * 2400
    for core, unit in ((7, "npu0"), (9, "npu1")):
        times = np.sort(trace.time_ns[trace.core == core]).tolist()
        assert times == [time for one in done[unit] for time in (one.started_ns, one.finished_ns)]


def test_restart_frees_the_units() -> None:
    """A launch that nobody waited for is forgotten, with its packets."""
    clock = Standing()
    device = NpuDevice(board(), clock)
    binding = device.timed("a", "npu0", 100).bind({})
    device.submit(binding)
    device.restart()
    assert device.submit(binding) == Completion(0, 100)
    clock.time_ns = 100
    assert len(device.events()) == 2


# Variation -----------------------------------------------------------------------------------


def launches(variation: Variation, count: int, seed: int = 0, duration_ns: int = 10_000_000) -> np.ndarray:
    """Begin and duration of launches one after the other."""
    device = NpuDevice(board(variation), VirtualClock(), seed=seed)
    binding = device.timed("net", "npu0", duration_ns).bind({})
    done = [device.submit(binding) for _ in range(count)]
    return np.asarray([(one.started_ns, one.duration_ns) for one in done])


def durations(variation: Variation, count: int, seed: int = 0) -> np.ndarray:
    """What launches of 10 ms take."""
    return launches(variation, count, seed)[:, 1]


def test_without_variation_every_launch_takes_its_duration() -> None:
    """Exactly, to the nanosecond."""
    assert set(durations(Variation(), 100).tolist()) == {10_000_000}


def test_jitter_is_log_normal() -> None:
    """The logarithm has median 0 and the given sigma; its quantiles are the normal distribution's."""
    logs = np.log(durations(Variation(sigma_ratio=0.02, most_ratio=0.5), 40_000) / 10e6) / 0.02
    assert np.median(logs) == pytest.approx(0, abs=0.03)
    assert logs.std() == pytest.approx(1, abs=0.02)
    for quantile, expected in ((0.0228, -2.0), (0.1587, -1.0), (0.8413, 1.0), (0.9772, 2.0), (0.99, 2.326)):
        assert np.quantile(logs, quantile) == pytest.approx(expected, abs=0.08)
    assert abs(np.corrcoef(logs[1:], logs[:-1])[0, 1]) < 0.02  # launches do not depend on each other


def test_jitter_is_cut_above() -> None:
    """No launch exceeds the cut; what would have done so takes just that long, and short ones stay as they are."""
    free = durations(Variation(sigma_ratio=0.1, most_ratio=10), 5000)
    cut = durations(Variation(sigma_ratio=0.1, most_ratio=0.1), 5000)
    assert cut.max() == 11_000_000
    assert (cut == np.minimum(free, 11_000_000)).all()
    assert 0.1 < (cut == 11_000_000).mean() < 0.25  # normal: 17 % above 0.953 sigma


def test_stalls_are_a_poisson_process_in_busy_time() -> None:
    """So many in a second of work, no matter how it is divided; gaps are exponential; each lasts as long as told."""
    variation = Variation(stall_rate_hz=50, stall_ns=1_000_000)
    stalls = (durations(variation, 20_000) - 10_000_000) / 1_000_000
    assert set(stalls.tolist()) <= set(range(10))
    assert stalls.sum() == pytest.approx(50 * 200, rel=0.04)  # 10,000 +- 100
    assert (stalls == 0).mean() == pytest.approx(np.exp(-0.5), abs=0.015)
    assert stalls.var() == pytest.approx(0.5, rel=0.05)
    short = launches(variation, 200_000, duration_ns=1_000_000)[:, 1] - 1_000_000
    assert short.sum() == pytest.approx(50 * 200 * 1_000_000, rel=0.04)


def test_idle_time_brings_no_stalls() -> None:
    """They come with work: waiting between launches changes nothing."""
    variation = Variation(stall_rate_hz=50, stall_ns=1_000_000)
    device = NpuDevice(board(variation), VirtualClock())
    binding = device.timed("net", "npu0", 10_000_000).bind({})
    found = []
    for _ in range(500):
        device.clock.sleep_until_ns(device.clock.now_ns() + 123_000_000)
        found.append(device.submit(binding).duration_ns)
    assert found == durations(variation, 500).tolist()


def test_drift_is_a_slow_sine() -> None:
    """The speed goes up and down once a period, by the given ratio, from the device's beginning."""
    started, took = launches(Variation(drift_ratio=0.2, drift_period_ms=5000), 2000).T
    assert took.tolist() == [
        round(10_000_000 * (1 + 0.2 * np.sin(2 * np.pi * time / 5e9))) for time in started.tolist()
    ]
    assert (took.min(), took.max()) == (pytest.approx(8e6, rel=1e-3), pytest.approx(12e6, rel=1e-3))


VARIATIONS = st.builds(
    Variation,
    sigma_ratio=st.sampled_from([0.0, 0.02, 0.3]),
    most_ratio=st.sampled_from([0.0, 0.05, 2.0]),
    drift_ratio=st.sampled_from([0.0, 0.1, 0.9]),
    drift_period_ms=st.sampled_from([100.0, 1000.0]),
)


@settings(deadline=None, max_examples=25)
@given(VARIATIONS, st.integers(0, 2**32 - 1))
def test_the_greatest_ratio_bounds_what_is_drawn(variation: Variation, seed: int) -> None:
    """No launch without stalls exceeds it."""
    assert durations(variation, 600, seed).max() <= 10_000_000 * greatest_ratio(variation) + 1


@settings(deadline=None, max_examples=25)
@given(VARIATIONS, st.integers(0, 2**32 - 1), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_quantile_ratio_covers_its_part(variation: Variation, seed: int, quantile: float) -> None:
    """At least so many launches stay below it, and it never exceeds the greatest."""
    ratio = quantile_ratio(variation, quantile)
    assert ratio <= greatest_ratio(variation)
    count = 1000
    below = (durations(variation, count, seed) <= 10_000_000 * ratio + 1).mean()
    assert below >= quantile - 4.5 * np.sqrt(quantile * (1 - quantile) / count)


@pytest.mark.parametrize(("quantile", "ratio"), [(0.5, 1.0), (0.99, np.exp(2.3263 * 0.02)), (0.999999, 1.05)])
def test_the_quantile_ratio_is_exact_without_drift(quantile: float, ratio: float) -> None:
    """It is the cut log-normal distribution's own quantile."""
    variation = Variation(sigma_ratio=0.02, most_ratio=0.05)
    assert quantile_ratio(variation, quantile) == pytest.approx(ratio, rel=1e-5)
    assert (durations(variation, 20_000) <= 10_000_000 * ratio + 1).mean() == pytest.approx(quantile, abs=0.012)


def test_the_greatest_ratio_of_what_does_not_vary_is_one() -> None:
    """Without jitter its cut has no part in it."""
    assert greatest_ratio(Variation(most_ratio=0.5)) == quantile_ratio(Variation(most_ratio=0.5), 0.99) == 1.0


# The seed ------------------------------------------------------------------------------------

ALL = Variation(sigma_ratio=0.05, stall_rate_hz=200, stall_ns=30_000, drift_ratio=0.1, drift_period_ms=70)
LOSSY: dict[str, Any] = {
    "buffer_events": 16,
    "drain_rate_hz": 5000.0,
    "resolution_ns": 26,
    "time_bits": 20,
    "operations": True,
}


def played(device: NpuDevice, count: int = 6000) -> tuple[list[Completion], Trace]:
    """Launches of two segments on both units; more of them than are turned into packets at once."""
    model = small_network()
    bindings = [device.compile(model, unit, unit).bind(arrays_for(model)) for unit in ("npu0", "npu1")]
    turns = itertools.islice(itertools.cycle([0, 0, 1]), count)
    return [device.submit(bindings[turn]) for turn in turns], device.events()


def stored(trace: Trace, path: Path) -> bytes:
    """A trace's file."""
    trace.write(path, force=True)
    return path.read_bytes()


def test_the_seed_decides(tmp_path: Path) -> None:
    """The same seed gives the same run and the same bytes, another one others."""
    runs = [played(NpuDevice(board(ALL, LINK, **LOSSY), VirtualClock(), layer_times, seed=s)) for s in (3, 3, 4)]
    (done, trace), (same_done, same_trace), (other_done, _) = runs
    assert done == same_done
    assert stored(trace, tmp_path / "a.npz") == stored(same_trace, tmp_path / "a.npz")
    assert len(trace) > 100
    assert len(trace.loss_after) > 10
    different = [a.duration_ns != b.duration_ns for a, b in zip(done, other_done, strict=True)]
    assert np.mean(different) > 0.9


def test_a_units_launches_vary_alike_whatever_the_others_do() -> None:
    """Its random numbers are its own, and differ from the other unit's."""
    both = NpuDevice(board(msgspec.structs.replace(ALL, drift_ratio=0)), VirtualClock(), seed=4)
    bindings = [both.timed("a", unit, 10_000_000).bind({}) for unit in ("npu0", "npu1")]
    found = [[both.submit(binding).duration_ns for binding in bindings] for _ in range(300)]
    without = NpuDevice(board(msgspec.structs.replace(ALL, drift_ratio=0)), VirtualClock(), seed=4)
    binding = without.timed("a", "npu1", 10_000_000).bind({})
    assert [two for _, two in found] == [without.submit(binding).duration_ns for _ in range(300)]
    assert sum(one == two for one, two in found) < 30


@pytest.mark.parametrize("seed", [0, 3])
def test_restart_begins_anew_bit_for_bit(seed: int, tmp_path: Path) -> None:
    """Whatever ran before: durations and packets are those of a new device, that begins at this time or at another."""
    device = NpuDevice(board(ALL, LINK, **LOSSY), VirtualClock(), layer_times, seed=3)
    played(device, 777)
    device.submit(device.timed("more", "npu0", 5).bind({}))  # leaves packets
    device.restart(seed)
    begin = device.clock.now_ns()
    done, trace = played(device)
    fresh = NpuDevice(board(ALL, LINK, **LOSSY), VirtualClock(begin), layer_times, seed=seed)
    fresh_done, fresh_trace = played(fresh)
    assert done == fresh_done
    for column in ("time_ns", "id", "type", "core", "operation", "loss_after"):
        assert np.array_equal(getattr(trace, column), getattr(fresh_trace, column))
    assert trace.meta == fresh_trace.meta
    first, _ = played(NpuDevice(board(ALL, LINK, **LOSSY), VirtualClock(), layer_times, seed=seed))
    assert [(one.started_ns - begin, one.duration_ns) for one in done] == [(o.started_ns, o.duration_ns) for o in first]
