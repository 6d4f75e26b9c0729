"""What a trace unit makes of launches, drops, and hands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.events import EventType, Trace
from framefit.core.target import TraceUnit
from framefit.devices.npu import packets
from framefit.devices.npu.packets import PacketBuffer
from framefit.runtime.log import joined

START, END = EventType.START, EventType.END


@dataclass(frozen=True)
class Launch:
    """One launch: its operations as (kind, nominal duration), and how it went."""

    operations: tuple[tuple[str, int], ...]
    core: int
    started_ns: int
    factor: float = 1.0
    stalled_at_ns: int = 0
    stall_ns: int = 0

    def packets(self) -> list[tuple[int, str, EventType, int, int]]:
        """Time, kind, type, core and operation of each."""
        made, nominal = [], 0
        for index, (kind, duration) in enumerate(self.operations):
            for type_, at in ((START, nominal), (END, nominal + duration)):
                late = self.stall_ns if at > self.stalled_at_ns else 0
                made.append((self.started_ns + round(at * self.factor) + late, kind, type_, self.core, index))
            nominal += duration
        return made


def recorded(unit: TraceUnit, launches: Sequence[Launch], keep: int = 1 << 20, drains: Sequence[int] = ()) -> Trace:
    """The trace of launches, also read before those at the places in ``drains``."""
    buffer, patterns, traces = PacketBuffer(unit, keep), {}, []
    for place, launch in enumerate(launches):
        if place in drains:
            traces.append(buffer.drain(launch.started_ns))
        what = launch.operations, launch.core
        if what not in patterns:
            kinds, durations = zip(*launch.operations, strict=True)
            patterns[what] = buffer.pattern(kinds, durations, launch.core)
        buffer.add(patterns[what], launch.started_ns, launch.factor, launch.stalled_at_ns, launch.stall_ns)
    return joined([*traces, buffer.drain()], 0)


@dataclass
class Expected:
    """A trace unit that is told event by event."""

    unit: TraceUnit
    rows: list[tuple[int, str, int, int, int]] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)
    lost: int = 0
    level: Fraction = Fraction(0)
    at_ns: int = 0

    def play(self, launches: Sequence[Launch]) -> Expected:
        """All packets in order of time; of those at one time, earlier launches first."""
        events = [
            (*packet, number == len(launch.operations) * 2 - 1)
            for launch in launches
            for number, packet in enumerate(launch.packets())
        ]
        for time, kind, type_, core, operation, last in sorted(events, key=lambda event: event[0]):
            self._sent(time)
            if self._selected(kind):
                self._arrive(time, kind, type_, core, operation)
            if last and self.unit.drain_rate_hz is None:
                self.level = Fraction(0)
        return self

    def _sent(self, time: int) -> None:
        if self.unit.drain_rate_hz is not None:
            gone = (time - self.at_ns) * Fraction(self.unit.drain_rate_hz) / 10**9
            self.level = max(self.level - gone, Fraction(0))
        self.at_ns = time

    def _selected(self, kind: str) -> bool:
        chosen = self.unit.selected if self.unit.selected is not None else self.unit.events
        return chosen is None or any(kind in self.unit.combinations.get(name, (name,)) for name in chosen)

    def _arrive(self, time: int, kind: str, type_: EventType, core: int, operation: int) -> None:
        if self.level + 1 > self.unit.buffer_events:
            self.lost += 1
            if self.losses[-1:] != [len(self.rows)]:
                self.losses.append(len(self.rows))
            return
        self.level += 1
        ticks = time // self.unit.resolution_ns
        if self.unit.time_bits is not None:
            ticks %= 2**self.unit.time_bits
        number = operation if self.unit.operations else -1
        self.rows.append((ticks * self.unit.resolution_ns, kind, int(type_), core, number))


def rows(trace: Trace) -> list[tuple[int, str, int, int, int]]:
    """Packets as tuples, with the kind's name."""
    names = [trace.kinds[id_] for id_ in trace.id.tolist()]
    columns = (trace.time_ns, names, trace.type, trace.core, trace.operation)
    return list(zip(*(list(c) if isinstance(c, list) else c.tolist() for c in columns), strict=True))


def assert_as_expected(trace: Trace, expected: Expected, keep: int = 1 << 20) -> None:
    """The latest packets, the losses among them, and the counts."""
    gone = max(len(expected.rows) - keep, 0)
    assert rows(trace) == expected.rows[gone:]
    assert trace.meta.overwritten_events == gone
    if expected.unit.loss_markers:
        # A loss before the first packet that was kept is told where the trace begins.
        assert trace.loss_after.tolist() == [place - gone for place in expected.losses if place >= gone]
        assert trace.meta.lost_events == expected.lost
    else:
        assert len(trace.loss_after) == 0
        assert trace.meta.lost_events is None


# Against the simple one ----------------------------------------------------------------------

KINDS = ("conv", "matmul", "pad_pool", "reformat")
PATTERNS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 60)), min_size=1, max_size=4).map(tuple)


@st.composite
def runs(draw: st.DrawFn) -> list[Launch]:
    """Launches of a few segments on two units, in the order in which they begin; they may overlap."""
    patterns = draw(st.lists(st.tuples(PATTERNS, st.integers(0, 1)), min_size=1, max_size=3))
    time, launches = draw(st.integers(0, 1000)), []
    for _ in range(draw(st.integers(0, 12))):
        operations, core = draw(st.sampled_from(patterns))
        nominal = sum(duration for _, duration in operations)
        stalled = draw(st.integers(0, 3)) == 0
        launch = Launch(
            operations,
            core,
            time,
            draw(st.sampled_from([1.0, 1.5, 0.8]) | st.floats(0.5, 2.0)),
            draw(st.integers(0, nominal)) if stalled else 0,
            draw(st.integers(1, 100)) if stalled else 0,
        )
        launches.append(launch)
        # Behind the one before, soon after its begin, or at the same time.
        time = draw(st.sampled_from([launch.packets()[-1][0], time + 20, time])) + draw(st.integers(0, 50))
        time = max(time, launch.started_ns)
    return launches


UNITS = st.builds(
    TraceUnit,
    buffer_events=st.integers(1, 9),
    drain_rate_hz=st.none() | st.integers(0, 12).map(lambda power: 1e9 / 2**power),  # exact in binary
    resolution_ns=st.sampled_from([1, 7, 26]),
    time_bits=st.sampled_from([None, None, 8]),
    loss_markers=st.booleans(),
    operations=st.booleans(),
    selected=st.none() | st.lists(st.sampled_from([*KINDS, "data"]), max_size=3, unique=True).map(tuple),
    combinations=st.just({"data": ("pad_pool", "reformat")}),
)


@settings(deadline=None, max_examples=150)
@given(UNITS, runs(), st.sampled_from([1, 2, 3, 256]), st.sampled_from([1, 5, 1 << 20]))
def test_packets_equal_those_of_a_unit_fed_event_by_event(
    unit: TraceUnit, launches: list[Launch], pending: int, keep: int
) -> None:
    """Whatever the unit, the launches and the size of batches: the same packets, losses and counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packets, "_PENDING", pending)
        trace = recorded(unit, launches, keep)
    assert_as_expected(trace, Expected(unit).play(launches), keep)


@settings(deadline=None, max_examples=100)
@given(UNITS, runs(), st.sampled_from([1, 2, 256]), st.data())
def test_readings_together_equal_one_at_the_end(
    unit: TraceUnit, launches: list[Launch], pending: int, data: st.DataObject
) -> None:
    """Whenever it is read: the device's buffer stays as full as it is, and what has not happened yet comes later."""
    places = data.draw(st.lists(st.integers(0, len(launches)), max_size=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packets, "_PENDING", pending)
        trace = recorded(unit, launches, drains=places)
    assert_as_expected(trace, Expected(unit).play(launches))


# By hand -------------------------------------------------------------------------------------

PAIR = (("conv", 10), ("pad_pool", 5))


def in_turn(count: int, operations: tuple[tuple[str, int], ...] = PAIR, gap_ns: int = 0) -> list[Launch]:
    """Launches one after the other from time 0."""
    length = sum(duration for _, duration in operations) + gap_ns
    return [Launch(operations, 2, number * length) for number in range(count)]


def test_packets_of_two_launches() -> None:
    """START and END of each operation, with kind, core and number."""
    trace = recorded(TraceUnit(operations=True), in_turn(2, gap_ns=100))
    assert rows(trace) == [
        (0, "conv", START, 2, 0),
        (10, "conv", END, 2, 0),
        (10, "pad_pool", START, 2, 1),
        (15, "pad_pool", END, 2, 1),
        (115, "conv", START, 2, 0),
        (125, "conv", END, 2, 0),
        (125, "pad_pool", START, 2, 1),
        (130, "pad_pool", END, 2, 1),
    ]
    dtypes = {name: getattr(trace, name).dtype.name for name in ("time_ns", "id", "type", "core", "operation")}
    assert dtypes == {"time_ns": "int64", "id": "int32", "type": "uint8", "core": "int16", "operation": "int64"}
    assert (len(trace.loss_after), trace.meta.lost_events, trace.meta.overwritten_events) == (0, 0, 0)


def test_numbers_of_operations_are_left_out_unless_asked_for() -> None:
    """Then they are unknown: -1."""
    assert set(recorded(TraceUnit(), in_turn(2)).operation.tolist()) == {-1}


@pytest.mark.parametrize("batch", [1, 2, 256])
def test_a_buffer_that_is_emptied_after_each_launch(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each launch the first packets are kept; the loss is told before the next launch's, and at the end."""
    monkeypatch.setattr(packets, "_PENDING", batch)
    trace = recorded(TraceUnit(buffer_events=3), in_turn(3))
    assert trace.time_ns.tolist() == [0, 10, 10, 15, 25, 25, 30, 40, 40]
    assert trace.loss_after.tolist() == [3, 6, 9]
    assert trace.meta.lost_events == 3


@pytest.mark.parametrize("batch", [1, 2, 256])
def test_a_buffer_that_drains(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet every 8 ns leaves: one that comes while less than one place is free is dropped."""
    monkeypatch.setattr(packets, "_PENDING", batch)
    unit = TraceUnit(buffer_events=2, drain_rate_hz=1e9 / 8)
    # Time, level before: 0: 0, 4: 0.5, 4: 1.5 dropped, 6: 1.25 dropped, 6: 1.25 dropped, 12: 0.5, 12: 1.5 dropped, ...
    launches = [Launch((("a", 4), ("b", 2)), 0, 0), Launch((("a", 6), ("b", 0)), 0, 6), Launch((("a", 1),), 0, 16)]
    trace = recorded(unit, launches)
    assert [(time, trace.kinds[id_]) for time, id_ in zip(trace.time_ns.tolist(), trace.id, strict=True)] == [
        (0, "a"),
        (4, "a"),
        (12, "a"),
        (16, "a"),
    ]
    assert trace.type.tolist() == [START, END, END, START]
    assert trace.loss_after.tolist() == [2, 3, 4]
    assert trace.meta.lost_events == 6


def test_without_markers_a_loss_is_silent() -> None:
    """The same packets, and neither positions nor a count."""
    trace = recorded(TraceUnit(buffer_events=3, loss_markers=False), in_turn(3))
    assert trace.time_ns.tolist() == [0, 10, 10, 15, 25, 25, 30, 40, 40]
    assert (len(trace.loss_after), trace.meta.lost_events) == (0, None)


@pytest.mark.parametrize(
    ("selection", "kinds", "kept"),
    [
        ({}, None, ["conv", "pad_pool", "reformat"]),
        ({"selected": ("conv",)}, ("conv",), ["conv"]),
        ({"selected": ()}, (), []),
        ({"events": ("pad_pool", "conv")}, ("pad_pool", "conv"), ["conv", "pad_pool"]),
        (
            {"selected": ("data",), "combinations": {"data": ("pad_pool", "reformat")}},
            ("pad_pool", "reformat"),
            ["pad_pool", "reformat"],
        ),
        (
            {"selected": ("conv", "data"), "combinations": {"data": ("reformat", "conv")}},
            ("conv", "reformat"),
            ["conv", "reformat"],
        ),
    ],
    ids=["all", "one", "none", "events", "combination", "both"],
)
def test_only_selected_kinds_are_recorded(
    selection: dict[str, Any], kinds: tuple[str, ...] | None, kept: list[str]
) -> None:
    """Kinds by name or combination; others need no room, and are no loss."""
    three = (("conv", 1), ("pad_pool", 1), ("reformat", 1))
    trace = recorded(TraceUnit(buffer_events=2 * len(kept) or 1, **selection), in_turn(2, three))
    assert [trace.kinds[id_] for id_ in trace.id] == [kind for kind in kept for _ in range(2)] * 2
    assert len(trace.loss_after) == 0
    assert trace.meta.selected_kinds == kinds


def test_time_stamps_are_coarse_and_wrap_around() -> None:
    """Floored to the resolution, modulo 2**bits ticks."""
    launches = [Launch((("a", 99),), 0, 100), Launch((("a", 26 * 256),), 0, 6600)]
    unit = TraceUnit(resolution_ns=26, time_bits=8)
    trace = recorded(unit, launches)
    # 100 = 3 x 26 + 22, 199 = 7 x 26 + 17; 6600 = 253 x 26 + 22; 13,256 = (256 + 253) x 26 + 22
    assert trace.time_ns.tolist() == [78, 182, 6578, 6578]
    assert (trace.meta.resolution_ns, trace.meta.wrap_bits) == (26, 8)
    assert recorded(TraceUnit(resolution_ns=26), launches).time_ns.tolist() == [78, 182, 6578, 13_234]


def test_a_stall_shifts_only_what_comes_after() -> None:
    """The operation in which it falls ends later; what ended or began by then keeps its time."""
    operations = (("a", 10), ("b", 10), ("c", 10))
    plain = [0, 10, 10, 20, 20, 30]
    for at, shifted in ((0, 1), (9, 1), (10, 3), (19, 3), (20, 5), (29, 5)):
        trace = recorded(TraceUnit(), [Launch(operations, 0, 0, 1.0, at, 1000)])
        assert trace.time_ns.tolist() == [*plain[:shifted], *(time + 1000 for time in plain[shifted:])], at
    half = recorded(TraceUnit(), [Launch(operations, 0, 7, 0.5, 10, 1000)])
    assert half.time_ns.tolist() == [7, 12, 12, 1017, 1017, 1022]


@pytest.mark.parametrize("batch", [1, 2, 3, 256])
def test_units_side_by_side_come_in_order_of_time(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets of launches that overlap are merged, also across batches; a launch's end empties the buffer."""
    monkeypatch.setattr(packets, "_PENDING", batch)
    launches = [
        Launch((("long", 100),), 0, 0),
        Launch((("short", 30),), 1, 10),
        Launch((("short", 30),), 1, 40),
        Launch((("short", 30),), 1, 70),
        Launch((("long", 20),), 0, 100),
    ]
    trace = recorded(TraceUnit(), launches)
    assert trace.time_ns.tolist() == [0, 10, 40, 40, 70, 70, 100, 100, 100, 120]
    assert trace.core.tolist() == [0, 1, 1, 1, 1, 1, 0, 1, 0, 0]
    assert trace.type.tolist() == [START, START, END, START, END, START, END, END, START, END]
    # Room for one: the second launch's START finds the first one's in the buffer, which its END empties.
    trace = recorded(TraceUnit(buffer_events=1), launches)
    assert trace.time_ns.tolist() == [0, 40, 70, 100, 100]
    assert trace.loss_after.tolist() == [1, 2, 3, 5]


@pytest.mark.parametrize("batch", [1, 3, 256])
@pytest.mark.parametrize("keep", [1, 2, 5, 12, 100])
def test_the_last_packets_are_kept(keep: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host forgets the oldest ones and says how many; losses count from those that are left."""
    monkeypatch.setattr(packets, "_PENDING", batch)
    unit, launches = TraceUnit(buffer_events=3), in_turn(4)
    every = recorded(unit, launches)
    trace = recorded(unit, launches, keep)
    gone = max(12 - keep, 0)
    assert rows(trace) == rows(every)[gone:]
    assert trace.loss_after.tolist() == [place - gone for place in (3, 6, 9, 12) if place >= gone]
    assert (trace.meta.overwritten_events, trace.meta.lost_events) == (gone, 4)
    assert gone + len(trace) + 4 == 16


def test_the_meta_data_tell_of_the_unit() -> None:
    """Size and rate of its buffer."""
    meta = recorded(TraceUnit(buffer_events=77, drain_rate_hz=123.0), in_turn(1)).meta
    assert (meta.buffer_events, meta.drain_rate_hz, meta.resolution_ns, meta.wrap_bits) == (77, 123.0, 1, None)


def test_nothing_recorded_is_an_empty_trace() -> None:
    """Before the first launch, with the kinds that are known."""
    buffer = PacketBuffer(TraceUnit())
    assert (len(buffer.drain()), buffer.drain().kinds) == (0, ())
    buffer.pattern(["conv", "add", "conv"], [1, 2, 3], 0)
    trace = buffer.drain()
    assert (len(trace), trace.kinds, len(trace.loss_after)) == (0, ("conv", "add"), 0)


def test_preparing_changes_nothing() -> None:
    """What it plays through is nobody's launch."""
    buffer = PacketBuffer(TraceUnit())
    buffer.prepare()
    trace = buffer.drain()
    assert (len(trace), trace.kinds) == (0, ())


def test_a_long_run_agrees_with_the_simple_one() -> None:
    """Thousands of launches, through several batches, at a rate that loses about half of them."""
    random = np.random.default_rng(1)
    operations = tuple((str(random.choice(KINDS)), int(ns)) for ns in random.integers(20, 200, 6))
    time, launches = 0, []
    for factor, gap in zip(random.lognormal(0, 0.2, 9000), random.integers(0, 300, 9000), strict=True):
        launches.append(Launch(operations, 0, time, float(factor)))
        time = launches[-1].packets()[-1][0] + int(gap)
    unit = TraceUnit(buffer_events=8, drain_rate_hz=1e9 / 128)
    expected = Expected(unit).play(launches)
    assert 0.3 < expected.lost / (2 * 6 * 9000) < 0.7
    assert_as_expected(recorded(unit, launches), expected)
