"""The bounded buffer of event packets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from framefit.core.events import EventType
from framefit.devices.device import EventRecorder


def test_packets_come_back_as_they_went_in() -> None:
    """Every field of a packet is kept, in the trace's types."""
    recorder = EventRecorder()
    packets = [(10, 1, EventType.START, 2, 5), (2**60, 0, EventType.END, -1, -1)]
    for packet in packets:
        recorder.add(*packet)
    trace = recorder.drain(("a", "b"))
    columns = (trace.time_ns, trace.id, trace.type, trace.core, trace.operation)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == packets
    assert [column.dtype.name for column in columns] == ["int64", "int32", "uint8", "int16", "int64"]
    assert trace.kinds == ("a", "b")


@given(st.integers(1, 8), st.lists(st.integers(0, 12), max_size=6))
def test_nothing_goes_uncounted(capacity: int, bursts: list[int]) -> None:
    """Of each burst the first packets are kept, up to the capacity; the rest is counted and marked."""
    recorder = EventRecorder(capacity)
    time = 0
    for burst in bursts:
        first = time
        for _ in range(burst):
            recorder.add(time, 0, EventType.START, 0, 0)
            time += 1
        trace = recorder.drain(("a",))
        kept = min(burst, capacity)
        assert trace.time_ns.tolist() == list(range(first, first + kept))
        assert trace.meta.lost_events == burst - kept
        assert trace.loss_after.tolist() == ([kept] if burst > capacity else [])


@given(st.integers(1, 9), st.integers(0, 6))
def test_a_launch_is_a_start_and_an_end(capacity: int, launches: int) -> None:
    """Added at once they are what they are one by one, also where the buffer is full after the START."""
    at_once, one_by_one = EventRecorder(capacity), EventRecorder(capacity)
    for number in range(launches):
        at_once.add_launch(10 * number, 10 * number + 5, 3, 1)
        one_by_one.add(10 * number, 3, EventType.START, 1, 0)
        one_by_one.add(10 * number + 5, 3, EventType.END, 1, 0)
    found, expected = at_once.drain(("a",) * 4), one_by_one.drain(("a",) * 4)
    for name in ("time_ns", "id", "type", "core", "operation", "loss_after"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert found.meta == expected.meta
    assert len(found) == min(capacity, 2 * launches)


def test_a_trace_outlives_the_buffer() -> None:
    """What was drained does not change when the recorder goes on."""
    recorder = EventRecorder(4)
    recorder.add(1, 0, EventType.START, 0, 0)
    trace = recorder.drain(("a",))
    for _ in range(4):
        recorder.add(9, 0, EventType.END, 0, 0)
    recorder.drain(("a",))
    assert trace.time_ns.tolist() == [1]
