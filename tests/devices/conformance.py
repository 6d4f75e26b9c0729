"""What every clock and every device has to do; a test class inherits its suite and makes the subject."""

from __future__ import annotations

import abc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from framefit.core.events import EventType
from framefit.core.model import GraphBuilder, Model
from framefit.devices.clock import Clock
from framefit.devices.device import Array, Device, allocate
from framefit.errors import DeviceError

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
        assert trace.losses == ()
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
        """Packets beyond the capacity are lost, counted and marked; after reading there is room again."""
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
        assert [loss.position for loss in trace.losses] == [room]
        assert trace.meta.lost_events == 5 * packets - room
        assert trace.meta.buffer_events == room
        device.submit(binding)
        after = device.events()
        assert (len(after), after.losses, after.meta.lost_events) == (packets, (), 0)

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
