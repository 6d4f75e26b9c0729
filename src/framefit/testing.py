"""What every clock and every device has to do; a test class inherits its suite and makes the subject.

For a backend of one's own, in a file of pytest's::

    class TestMyDevice(framefit.testing.DeviceConformance):
        def make(self, cache, trace_events=1 << 12):
            return MyDevice(trace_events=trace_events)

Needs pytest. ONNX Runtime says which outputs are right.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from framefit.core.events import EventType
from framefit.core.model import GraphBuilder, Model
from framefit.devices.clock import Clock, VirtualClock
from framefit.devices.device import (
    Array,
    Binding,
    Device,
    Tensors,
    allocate,
    is_modelled,
    is_simulated,
    random_inputs,
    tells_layer_times,
)
from framefit.devices.registry import open_runtime
from framefit.errors import DeviceError, FramefitError, HangError

__all__ = ["ClockConformance", "DeviceConformance", "arrays_for", "small_network"]


def small_network() -> Model:
    """Three layers that most devices fuse, then a pooling."""
    b = GraphBuilder("small", 3)
    x = b.conv(b.input("image", (1, 3, 8, 8)), 4, norm=True, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    return b.build()


def arrays_for(model: Model) -> dict[str, Array]:
    """A buffer for each input and each output of fixed shape."""
    return {tensor.name: allocate(tensor) for tensor in (*model.inputs, *model.outputs) if tensor.fixed}


class ClockConformance(abc.ABC):
    """Inherit it, and override ``make``."""

    @abc.abstractmethod
    def make(self) -> Clock:
        """A clock."""

    def test_never_goes_back(self) -> None:
        """A later reading is never smaller, sleeps in between or not."""
        clock = self.make()
        times = []
        for step in range(200):
            times.append(clock.now_ns())
            clock.sleep_until_ns(times[-1] + (step % 3 - 1) * 5_000)
        assert all(isinstance(time, int) for time in times)
        assert all(before <= after for before, after in pairwise(times))
        assert times[-1] > times[0]

    def test_sleep_reaches_the_time(self) -> None:
        """After a sleep it is the time that was asked for, or later."""
        clock = self.make()
        for ahead_ns in (1, 1_000, 200_000, 3_000_000):
            until = clock.now_ns() + ahead_ns
            clock.sleep_until_ns(until)
            assert clock.now_ns() >= until

    def test_sleep_into_the_past_returns_at_once(self) -> None:
        """A time that has passed is not waited for, however long ago it was."""
        clock = self.make()
        before = clock.now_ns()
        for _ in range(10):
            clock.sleep_until_ns(before)
            clock.sleep_until_ns(before - 3_600_000_000_000)
        assert 0 <= clock.now_ns() - before < 1_000_000_000


def _dense() -> Model:
    """Products and a softmax, with two outputs."""
    b = GraphBuilder("dense", 5)
    x = b.op("Tanh", b.dense(b.input("x", (2, 12)), 20))
    b.output(b.op("Softmax", b.dense(x, 7), axis=-1), "classes")
    b.output(b.op("ReduceSum", x, b.constant(np.asarray([1], np.int64)), keepdims=1), "sum")
    return b.build()


def _residual() -> Model:
    """Convolutions beside each other whose results are added and joined."""
    b = GraphBuilder("residual", 4)
    x = b.conv(b.input("image", (1, 8, 6, 6)), 8, activation="Relu")
    y = b.op("Add", b.conv(x, 8, norm=True), x)
    b.output(b.op("Concat", y, b.op("Sigmoid", x), axis=1), "joined")
    return b.build()


def _scaled(shape: tuple[int, ...]) -> Model:
    """Elementwise arithmetic."""
    b = GraphBuilder("scaled", 2)
    b.output(b.op("Mul", b.input("x", shape), b.constant(np.float32(2))), "y")
    return b.build()


def _reshaped() -> Model:
    """A sum with a tensor whose shape is an input: one that does not fit makes a launch fail."""
    b = GraphBuilder("reshaped", 2)
    x = b.op("Reshape", b.input("x", (1, 12)), b.input("shape", (2,), np.dtype(np.int64)))
    b.output(b.op("Add", x, b.constant(np.ones((1, 4), np.float32))), "y")
    return b.build()


class DeviceConformance(abc.ABC):
    """Inherit it, and override ``make``.

    Attributes:
        computes: whether launches compute the outputs; a device that only takes time has none to compare.
        tolerance: greatest difference from ONNX Runtime's outputs, over the greatest of these.
    """

    computes = True
    tolerance = 1e-4

    @abc.abstractmethod
    def make(self, cache: Path, trace_events: int = 1 << 12) -> Device:
        """A device of at least one unit, with an event buffer of that many packets."""

    def make_two(self, cache: Path) -> Device | None:
        """A device of two units, or ``None``: there is none."""
        device = self.make(cache)
        return device if len(device.target.units) > 1 else None

    def network(self) -> Model:
        """Reads "image", gives "pooled"; most devices fuse its first three layers."""
        return small_network()

    def networks(self) -> tuple[Model, ...]:
        """Networks whose outputs are compared with ONNX Runtime's."""
        return (self.network(), _dense(), _residual())

    def failing(self) -> tuple[Model, dict[str, Array]] | None:
        """A network whose launch fails for these inputs, or ``None``: a launch cannot fail."""
        return _reshaped(), {"shape": np.asarray([4, 3], np.int64)}

    @pytest.fixture
    def device(self, tmp_path: Path) -> Device:
        """With a cache of its own."""
        return self.make(tmp_path)

    @staticmethod
    def unit(device: Device) -> str:
        """The first unit's name."""
        return device.target.units[0].name

    def _launched(self, device: Device, model: Model, feeds: Tensors, unit: str = "") -> dict[str, Array]:
        """Copies of a model's outputs for one frame."""
        arrays = arrays_for(model)
        for name, array in feeds.items():
            arrays[name][...] = array
        binding = device.compile(model, unit or self.unit(device), model.name).bind(arrays)
        device.submit(binding)
        return {tensor.name: np.array(binding.output(tensor.name)) for tensor in model.outputs}

    def _check_outputs(self, expected: Tensors, outputs: Tensors) -> None:
        for name, array in expected.items():
            assert (outputs[name].dtype, outputs[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(np.isfinite(outputs[name]), np.isfinite(array))
            finite = np.isfinite(array)
            greatest = np.max(np.abs(array[finite]), initial=0.0)
            difference = np.max(np.abs(outputs[name][finite] - array[finite]), initial=0.0)
            assert difference <= self.tolerance * greatest, f"{name} differs by {difference} of {greatest}"

    # What it computes

    def test_outputs_are_those_of_onnx_runtime(self, device: Device, tmp_path: Path) -> None:
        """For two frames in a row of each network."""
        if not self.computes:
            return
        runtime = open_runtime(cache=tmp_path / "runtime")
        for model in self.networks():
            for seed in (0, 1):
                feeds = random_inputs(model.inputs, np.random.default_rng(seed))
                expected = self._launched(runtime, model, feeds)
                assert any(array.any() for array in expected.values())
                self._check_outputs(expected, self._launched(device, model, feeds))

    def test_nan_stays_nan(self, device: Device) -> None:
        """And infinity infinite, where it is computed with; the next frame knows nothing of it."""
        if not self.computes:
            return
        model, x = _scaled((1, 8)), np.arange(8, dtype=np.float32)[None]
        x[0, 2], x[0, 5] = np.nan, -np.inf
        arrays = arrays_for(model) | {"x": x}
        binding = device.compile(model, self.unit(device), "scaled").bind(arrays)
        device.submit(binding)
        np.testing.assert_array_equal(binding.output("y"), 2 * x)
        x[...] = 3
        device.submit(binding)
        np.testing.assert_array_equal(binding.output("y"), 2 * x)

    def test_empty_inputs(self, device: Device) -> None:
        """A tensor without elements gives one without elements, or is refused in words."""
        model = _scaled((0, 8))
        try:
            shape = self._launched(device, model, {})["y"].shape
        except FramefitError:
            return
        assert shape == (0, 8)

    def test_a_launch_that_fails(self, device: Device) -> None:
        """It is a DeviceError and leaves no packets; the next launch runs."""
        failing = self.failing() if self.computes else None
        if failing is None:
            return
        model, feeds = failing
        try:
            handle = device.compile(model, self.unit(device), "failing")
        except DeviceError:
            pytest.skip("this network cannot be compiled: override failing()")
        arrays = arrays_for(model)
        for name, array in feeds.items():
            arrays[name][...] = array
        binding = handle.bind(arrays)
        with pytest.raises(DeviceError) as raised:
            device.submit(binding)
        assert str(raised.value)
        assert not isinstance(raised.value, HangError)
        assert len(device.events()) == 0
        device.submit(self._bound(device))
        assert len(device.events()) > 0

    def test_two_threads_on_two_units(self, tmp_path: Path) -> None:
        """Each computes its own outputs, and its packets are in order."""
        device = self.make_two(tmp_path)
        if device is None or isinstance(device.clock, VirtualClock):
            return
        model, launches = self.network(), 100
        units = [unit.name for unit in device.target.units[:2]]
        cores = [unit.core for unit in device.target.units[:2]]
        feeds = [random_inputs(model.inputs, np.random.default_rng(seed)) for seed in range(2)]
        expected = [self._launched(device, model, f, unit) for f, unit in zip(feeds, units, strict=True)]
        bindings = []
        for unit, given in zip(units, feeds, strict=True):
            bindings.append(device.compile(model, unit, f"on {unit}").bind(arrays_for(model) | given))
        device.events()
        failed: list[BaseException] = []

        def work(binding: Binding) -> None:
            try:
                for _ in range(launches):
                    device.submit(binding)
            except BaseException as error:  # noqa: BLE001 - told below, in the test's own thread
                failed.append(error)

        self._side_by_side([lambda binding=binding: work(binding) for binding in bindings])  # type: ignore[misc]
        assert failed == []
        trace = device.events()
        assert len(trace) + (trace.meta.lost_events or 0) >= 4 * launches
        for core in set(cores):
            mine = trace.time_ns[trace.core == core]
            assert cores[0] == cores[1] or bool((np.diff(mine) >= 0).all())
        for binding, outputs in zip(bindings, expected, strict=True):
            self._check_outputs(outputs, {name: binding.output(name) for name in outputs})

    @staticmethod
    def _side_by_side(works: list[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # How it keeps time

    def test_completion_is_on_the_devices_clock(self, device: Device) -> None:
        """A launch starts after it was submitted, ends after it started, and has ended when submit returns."""
        model = self.network()
        binding = device.compile(model, self.unit(device), "net").bind(arrays_for(model))
        before = device.clock.now_ns()
        for _ in range(3):
            done = device.submit(binding)
            after = device.clock.now_ns()
            assert before <= done.started_ns <= done.finished_ns <= after
            assert done.duration_ns == done.finished_ns - done.started_ns > 0
            before = after

    def test_bound_arrays_are_used_in_place(self, device: Device) -> None:
        """An output of fixed shape is the very array that was bound."""
        model = self.network()
        arrays = arrays_for(model)
        binding = device.compile(model, self.unit(device), "net").bind(arrays)
        device.submit(binding)
        assert np.shares_memory(binding.output("pooled"), arrays["pooled"])

    def test_segments_share_the_tensor_between_them(self, device: Device) -> None:
        """The first segment's output array can be bound as the second one's input."""
        model = self.network()
        parts = [model.segment(0, 2), model.segment(3, len(model.layers) - 1)]
        arrays = arrays_for(model) | arrays_for(parts[0]) | arrays_for(parts[1])
        bindings = [device.compile(p, self.unit(device), f"net.{i}").bind(arrays) for i, p in enumerate(parts)]
        times = [device.submit(binding) for binding in bindings]
        assert times[0].finished_ns <= times[1].started_ns

    def test_events_are_pairs_in_order(self, device: Device) -> None:
        """Each launch leaves a START and an END of each operation in turn, between its completion's times."""
        model = self.network()
        handles = {label: device.compile(model, self.unit(device), label) for label in ("a", "b")}
        bindings = {label: handle.bind(arrays_for(model)) for label, handle in handles.items()}
        order = ["a", "b", "b", "a"]
        done = [device.submit(bindings[label]) for label in order]
        trace = device.events()
        place = 0
        for label, completion in zip(order, done, strict=True):
            operations = handles[label].operations
            assert [operation.index for operation in operations] == list(range(len(operations)))
            mine = slice(place, place + 2 * len(operations))
            times = trace.time_ns[mine].tolist()
            assert (times[0], times[-1]) == (completion.started_ns, completion.finished_ns)
            assert times == sorted(times)
            assert [trace.kinds[id_] for id_ in trace.id[mine]] == [o.kind for o in operations for _ in range(2)]
            assert trace.type[mine].tolist() == [EventType.START, EventType.END] * len(operations)
            numbers = trace.operation[mine].tolist()
            assert numbers in ([o.index for o in operations for _ in range(2)], [-1] * len(numbers))
            place = mine.stop
        assert len(trace) == place
        assert {operation.unit for handle in handles.values() for operation in handle.operations} == {self.unit(device)}
        assert set(trace.core.tolist()) == {device.target.units[0].core}
        assert len(trace.loss_after) == 0
        assert trace.meta.lost_events == 0

    def test_operations_name_layers(self, device: Device) -> None:
        """Each operation belongs to a layer of the segment, the last one to its last layer."""
        model = self.network()
        operations = device.compile(model, self.unit(device), "net").operations
        assert {operation.layer for operation in operations} <= {layer.name for layer in model.layers}
        assert operations[-1].layer == model.layers[-1].name
        assert all(operation.expected_ns >= 0 for operation in operations)

    def test_reading_clears_the_events(self, device: Device) -> None:
        """A packet is handed out once; the kinds stay known, and a label compiled again keeps its ids."""
        model = self.network()
        first = device.compile(model, self.unit(device), "first").bind(arrays_for(model))
        device.submit(first)
        before = device.events()
        assert len(before) > 0
        empty = device.events()
        assert len(empty) == 0
        assert empty.kinds == before.kinds
        device.compile(model, self.unit(device), "second")
        again = device.compile(model, self.unit(device), "first").bind(arrays_for(model))
        device.submit(again)
        trace = device.events()
        assert trace.kinds[: len(before.kinds)] == before.kinds
        assert trace.id.tolist() == before.id.tolist()

    def test_full_buffer_marks_and_counts_the_loss(self, tmp_path: Path) -> None:
        """Packets beyond the capacity are lost, counted and marked.

        Reading empties a buffer of this process. One of the device's own sends what it holds at a rate of its own.
        """
        model = self.network()
        device = self.make(tmp_path)
        packets = 2 * len(device.compile(model, self.unit(device), "net").operations)
        room = 2 * packets + 2  # for two launches, and the beginning of a third one
        device = self.make(tmp_path, trace_events=room)
        binding = device.compile(model, self.unit(device), "net").bind(arrays_for(model))
        done = [device.submit(binding) for _ in range(5)]
        trace = device.events()
        assert len(trace) == room
        assert trace.time_ns[::packets].tolist() == [d.started_ns for d in done[:3]]
        assert trace.time_ns[packets - 1 :: packets].tolist()[:2] == [d.finished_ns for d in done[:2]]
        assert trace.loss_after.tolist() == [room]
        assert trace.meta.lost_events == 5 * packets - room
        assert trace.meta.buffer_events == room
        device.submit(binding)
        after = device.events()
        kept = 0 if device.capabilities.simulated else packets
        assert (len(after), len(after.loss_after), after.meta.lost_events) == (kept, 0, packets - kept)

    def test_unknown_unit(self, device: Device) -> None:
        """A unit that the target does not have is refused by name."""
        with pytest.raises(DeviceError, match="no unit 'nowhere'"):
            device.compile(self.network(), "nowhere", "net")

    @pytest.mark.parametrize("name", ["image", "pooled"])
    def test_missing_array(self, device: Device, name: str) -> None:
        """An input or output without an array is refused by name."""
        model = self.network()
        arrays = arrays_for(model)
        del arrays[name]
        with pytest.raises(DeviceError, match=f"no array for .*{name}"):
            device.compile(model, self.unit(device), "net").bind(arrays)

    @pytest.mark.parametrize("name", ["image", "pooled"])
    @pytest.mark.parametrize("change", ["shape", "dtype", "order"])
    def test_array_that_does_not_fit(self, device: Device, name: str, change: str) -> None:
        """An array of another shape or type, or one with gaps, is refused by name."""
        model = self.network()
        arrays = arrays_for(model)
        array = arrays[name]
        changed = {
            "shape": array.reshape(-1),
            "dtype": array.astype(np.float64),
            "order": np.repeat(array, 2, axis=1)[:, ::2],
        }
        arrays[name] = changed[change]
        with pytest.raises(DeviceError, match=name):
            device.compile(model, self.unit(device), "net").bind(arrays)

    def test_fusions_are_groups_of_nodes(self, device: Device) -> None:
        """Every group that is fused consists of two or more of the model's own nodes; none may be known."""
        model = self.network()
        nodes = {node for layer in model.layers for node in layer.nodes}
        for group in device.fusions(model):
            assert len(group) == len(set(group)) >= 2
            assert nodes.issuperset(group)

    # What it claims to be able to do

    def _bound(self, device: Device) -> Binding:
        model = self.network()
        return device.compile(model, self.unit(device), "net").bind(arrays_for(model))

    def test_runs_on_host(self, device: Device) -> None:
        """Claimed: the submitting thread executes launches, on this machine's core of its unit."""
        if not device.capabilities.runs_on_host:
            return
        assert device.host_core == device.target.units[0].core
        binding = self._bound(device)
        device.submit(binding)
        thread_ns, process_ns, spent_ns = time.thread_time_ns(), time.process_time_ns(), 0
        while spent_ns < 20_000_000:
            spent_ns += device.submit(binding).duration_ns
        assert time.thread_time_ns() - thread_ns >= (time.process_time_ns() - process_ns) / 2

    def test_shares_host_memory(self, device: Device) -> None:
        """Claimed: tensors are as big as on the host, and every unit can read at once what another wrote."""
        names = [unit.name for unit in device.target.units]
        apart = [device.arrival_ns(a, b, 1 << 20, 5) > 5 for a in names for b in names if a != b]
        if device.capabilities.shares_host_memory:
            assert device.stored_ratio == 1
            assert not any(apart)
            assert not is_modelled(device) or sum(device.link_ns(self.network())) == device.launch_ns
        assert device.stored_ratio > 0

    def test_preemptive(self, device: Device) -> None:
        """Claimed: all of its units can be interrupted."""
        assert device.capabilities.preemptive == all(unit.preemptive for unit in device.target.units)

    def test_lowers(self, device: Device) -> None:
        """Claimed: what it says that it runs gives the model's outputs; otherwise it runs the model as it is."""
        model = self.network()
        lowered = device.lowered(model)
        if not device.capabilities.lowers:
            assert lowered is model
            return
        assert lowered.lowered
        feeds, outputs = random_inputs(model.inputs, np.random.default_rng(1)), []
        for part in (model, lowered):
            arrays = arrays_for(part)
            for name, array in feeds.items():
                arrays[name][...] = array
            device.submit(device.compile(part, self.unit(device), part.name).bind(arrays))
            outputs.append(arrays["pooled"])
        assert outputs[0].any()
        np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-6)

    def test_modelled(self, device: Device) -> None:
        """Claimed: a launch takes its transfers and its layers, and varies by no more than is said."""
        model, unit = self.network(), self.unit(device)
        handle = device.compile(model, unit, "net")
        expected_ns = sum(operation.expected_ns for operation in handle.operations)
        if not is_modelled(device):
            assert expected_ns == 0
            return
        grouped = model.grouped(device.fusions(model))
        layers_ns = device.layers_ns(grouped, unit)
        assert len(layers_ns) == len(grouped.layers)
        assert expected_ns == sum(layers_ns) + sum(device.link_ns(model))
        assert sum(device.link_ns(model)) >= device.launch_ns >= 0
        assert 0 < device.quantile_ratio(0.5) <= device.quantile_ratio(0.99) <= device.greatest_ratio()
        binding, variation = device.timed("timed", unit, 100_000).bind({}), device.target.variation
        stalls_ns = 20 * variation.stall_ns
        for _ in range(20):
            assert 1 <= device.submit(binding).duration_ns <= 100_000 * device.greatest_ratio() + stalls_ns + 1

    def test_simulated(self, device: Device) -> None:
        """Claimed: on a virtual clock nothing else counts than the seed, computed or not."""
        if not is_simulated(device):
            return
        device.clock, model = VirtualClock(), self.network()
        runs = []
        for seed in (3, 3, 4):
            for computes in {device.computer is not None, False}:
                device.computes = computes
                device.restart(seed)
                begun_ns, binding = device.clock.now_ns(), self._bound(device)
                done = [device.submit(binding) for _ in range(5)]
                runs.append((seed, [c.started_ns - begun_ns for c in done], [c.duration_ns for c in done]))
                assert device.clock.now_ns() == done[-1].finished_ns
                assert device.late_results == 0
        drifts = device.target.variation.drift_ratio  # in absolute time
        assert drifts or all(run == runs[0] for run in runs if run[0] == 3)
        unit, nominal_ns = self.unit(device), runs[0][2][0]
        device.restart(3)
        device.slow(unit, 3.0)
        slow = device.submit(device.compile(model, unit, "net").bind(arrays_for(model)))
        assert slow.duration_ns > 2 * nominal_ns

    def test_collects_events(self, tmp_path: Path) -> None:
        """Claimed: of what does not fit into the buffer the last is lost, never what was there before."""
        self.check_collects_events(self.make(tmp_path, trace_events=4))

    def check_collects_events(self, device: Device) -> None:
        """For a device with room for four packets."""
        if not device.capabilities.collects_events:
            return
        binding = self._bound(device)
        done = [device.submit(binding) for _ in range(5)]
        trace = device.events()
        assert trace.meta.overwritten_events == 0
        assert trace.time_ns.tolist() == [time for c in done[:2] for time in (c.started_ns, c.finished_ns)]

    def test_layer_events(self, device: Device) -> None:
        """Claimed: every layer that takes time leaves events; otherwise a launch leaves one pair."""
        model, unit = self.network(), self.unit(device)
        operations = device.compile(model, unit, "net").operations
        if not device.capabilities.layer_events:
            assert len(operations) == 1
            return
        grouped = model.grouped(device.fusions(model))
        assert len(grouped.layers) > 1
        assert {layer.name for layer in grouped.layers} == {operation.layer for operation in operations}

    def test_ends_launches(self, device: Device) -> None:
        """Claimed: a launch that runs fails when it is asked to, and the next ones run again."""
        binding, unit = self._bound(device), self.unit(device)
        if not device.capabilities.ends_launches:
            return
        ended, hung = threading.Event(), False

        def ask() -> None:
            while not ended.wait(0.001):
                device.terminate(unit)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            for _ in range(100_000):
                device.submit(binding)
        except HangError:
            hung = True
        finally:
            ended.set()
            asking.join()
        assert hung
        for _ in range(2):  # it may have been asked once more
            try:
                device.submit(binding)
            except HangError:
                continue
            return
        pytest.fail("launches fail although nobody asks for that any more")

    def test_tells_layer_times(self, device: Device) -> None:
        """Claimed: a time for each layer of each launch, none negative, which add up to no more than launches take."""
        if not device.capabilities.tells_layer_times:
            return
        assert tells_layer_times(device)
        model, unit, launches = self.network(), self.unit(device), 20
        grouped = model.grouped(device.fusions(model))
        times = device.layer_times_ns(model, unit, launches)
        assert times.shape == (launches, len(grouped.layers))
        assert times.dtype == np.int64
        assert (times >= 0).all()
        binding = self._bound(device)
        took = [device.submit(binding).duration_ns for _ in range(launches)]
        assert 0 < np.median(times.sum(axis=1)) <= 20 * np.median(took) + 100_000  # counting takes time, too

    def test_fingerprint_names_the_target_and_the_clock(self, device: Device) -> None:
        """Facts that tables share; the same for the same device."""
        facts = device.fingerprint()
        assert facts["target"] == device.target.name
        assert facts["clock"] == ("virtual" if isinstance(device.clock, VirtualClock) else "real")
        assert device.fingerprint() == facts
