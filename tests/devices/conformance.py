"""What every clock and every device has to do; a test class inherits its suite and makes the subject."""

from __future__ import annotations

import abc
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from framefit import GraphBuilder, Model
from framefit.core.events import EventType
from framefit.devices.clock import Clock, VirtualClock
from framefit.devices.device import Array, Binding, Device, allocate, is_modelled, is_simulated, random_inputs
from framefit.errors import DeviceError, HangError

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


class DeviceConformance(abc.ABC):
    """Inherit it, and override ``make``."""

    @abc.abstractmethod
    def make(self, cache: Path, trace_events: int = 1 << 12) -> Device:
        """A device of at least one unit, with an event buffer of that many packets."""

    def network(self) -> Model:
        """Reads "image", gives "pooled"; its first three layers, or some of them, are fused."""
        return small_network()

    @pytest.fixture
    def device(self, tmp_path: Path) -> Device:
        """With a cache of its own."""
        return self.make(tmp_path)

    @staticmethod
    def unit(device: Device) -> str:
        """The first unit's name."""
        return device.target.units[0].name

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
        """Every group that is fused consists of two or more of the model's own nodes."""
        model = self.network()
        nodes = {node for layer in model.layers for node in layer.nodes}
        groups = device.fusions(model)
        assert groups
        for group in groups:
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

    def test_fingerprint_names_the_target_and_the_clock(self, device: Device) -> None:
        """Facts that tables share; the same for the same device."""
        facts = device.fingerprint()
        assert facts["target"] == device.target.name
        assert facts["clock"] == ("virtual" if isinstance(device.clock, VirtualClock) else "real")
        assert device.fingerprint() == facts
