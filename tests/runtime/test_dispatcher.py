"""The loop that keeps the beat, on a device that takes exactly as long as told."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice, ListSink, NumberStream
from framefit import DeviceError
from framefit.core.events import EventType
from framefit.core.grid import Grid
from framefit.core.model import GraphBuilder, Model, TensorInfo
from framefit.core.policy import Rotation
from framefit.core.timetable import PlannedModel, Segment
from framefit.core.workload import WhenFull
from framefit.devices.clock import RealClock, VirtualClock
from framefit.devices.device import Array
from framefit.execution.execution import Execution
from framefit.execution.streams import EndOfStream
from framefit.planning.beat import Beat, Demand
from framefit.planning.timetable import build_timetable
from framefit.runtime.channel import Dropped, FrameChannel
from framefit.runtime.job import Job
from framefit.runtime.log import FrameLog, FrameOutcome, LaunchLog
from framefit.runtime.loop import Dispatcher, instants, steady
from framefit.runtime.streams import Arrival, Events, Feed

MS = 1_000_000
RATE_HZ = 100.0
WINDOW_NS = 10 * MS
GUARD_NS = MS // 2


@functools.cache
def network(segments: int, frames: int = 1) -> Model:
    """So many layers; its second input "number", of each frame, passes through as an output."""
    b = GraphBuilder("network")
    x, number = b.input("x", (frames, 4)), b.input("number", (frames,), np.int64)
    for _ in range(segments):
        x = b.op("Relu", x)
    b.output(x)
    b.output(number)
    return b.build()


@dataclass
class Entry:
    """A model of a test's workload."""

    name: str
    estimates_ns: Sequence[int]
    priority: bool = False
    deadline_ns: int | None = None
    queue: int = 2
    sink: ListSink = field(default_factory=ListSink)
    every: int = 1
    frames: int = 1
    when_full: WhenFull = "drop-oldest"
    feed: Feed | None = None
    length: int | None = None


def dispatcher(
    device: FakeDevice,
    *entries: Entry,
    guard_ns: int = GUARD_NS,
    rate_hz: float = RATE_HZ,
    reserved: Sequence[Sequence[tuple[int, int]]] | None = None,
    stalls: Callable[[], int] | None = None,
    kind: type[Dispatcher] = Dispatcher,
) -> Dispatcher:
    """A dispatcher for entries, as the workflow makes it; each sink takes the frame's number."""
    jobs, first = [], 0
    for entry in entries:
        count = len(entry.estimates_ns)
        execution = Execution(
            network(count, entry.frames),
            [(layer, layer) for layer in range(count)],
            device,
            "fake0",
            name=entry.name,
            frames=entry.frames,
        )
        deadline_ns = entry.deadline_ns
        if deadline_ns is None and entry.priority:
            deadline_ns = Grid(rate_hz).release_ns(1)
        jobs.append(
            Job(
                execution=execution,
                first_program=first,
                priority=entry.priority,
                estimates_ns=entry.estimates_ns,
                deadline_ns=deadline_ns,
                sources={name: NumberStream(entry.length) for name in ("x", "number")},
                input=FrameChannel(entry.queue, entry.when_full, frames=entry.frames),
                feed=entry.feed or Feed(),
                sinks=[(entry.sink, ["number"])],
                every=entry.every,
            )
        )
        first += count
    service = Rotation(sum(not entry.priority for entry in entries))
    grid = Grid(rate_hz)
    return kind(device, device.clock, jobs, grid, guard_ns, service=service, reserved=reserved, stalls=stalls)


def fates(run: Dispatcher, model: int) -> dict[int, FrameOutcome]:
    """What became of each frame of a model; each may have one fate only."""
    rows = [row for row in run.frames.rows().tolist() if row[0] == model]
    assert len({row[1] for row in rows}) == len(rows)
    return {row[1]: FrameOutcome(row[2]) for row in rows}


def launched(device: FakeDevice, run: Dispatcher) -> list[tuple[str, float]]:
    """Labels and starts, in milliseconds after the first release."""
    return [(label, (started - run.start_ns) / MS) for label, started, _ in device.launches]


def run_ended(run: Dispatcher, windows: int, models: int) -> None:
    """Each model accounts for each released frame exactly once."""
    for model in range(models):
        assert sorted(fates(run, model)) == list(range(windows))


def test_priority_starts_exactly_on_the_grid() -> None:
    """With a rate that divides no nanosecond, window k begins at round(k x 1e9 / rate), without drift."""
    device = FakeDevice({"face": 2 * MS})
    run = dispatcher(device, Entry("face", [2 * MS], priority=True), rate_hz=30)
    run.run(1000)
    starts = [started for _, started, _ in device.launches]
    assert starts == [run.start_ns + round(k * 1e9 / 30) for k in range(1000)]
    assert run.windows == 1000
    assert set(fates(run, 0).values()) == {FrameOutcome.DONE}
    assert device.clock.now_ns() == run.release(1000)


def test_segments_fill_the_residual() -> None:
    """Behind the priority model segments run back to back, as long as the next one fits, over several windows."""
    device = FakeDevice({"face": 2 * MS, "big.0": 3 * MS, "big.1": 3 * MS, "big.2": 3 * MS})
    run = dispatcher(device, Entry("face", [2 * MS], priority=True), Entry("big", [3 * MS] * 3))
    run.run(3)
    assert launched(device, run) == [
        *(("face", 0.0), ("big.0", 2.0), ("big.1", 5.0)),
        *(("face", 10.0), ("big.2", 12.0), ("big.0", 15.0)),
        *(("face", 20.0), ("big.1", 22.0), ("big.2", 25.0)),
    ]
    rows = run.frames.rows()
    finished = [(row[1], (row[5] - run.start_ns) / MS) for row in rows.tolist() if row[0] == 1 and row[5] >= 0]
    assert finished == [(0, 15.0), (1, 28.0)]
    assert fates(run, 1) == {0: FrameOutcome.DONE, 1: FrameOutcome.DONE, 2: FrameOutcome.RUN_ENDED}
    log = run.launches.launches()
    assert log.program.tolist() == [0, 1, 2, 0, 3, 1, 0, 2, 3]
    assert log.window.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert log.frame.tolist() == [0, 0, 0, 1, 0, 1, 2, 1, 1]


@pytest.mark.parametrize(("excess_ns", "starts"), [(0, True), (1, False)])
@pytest.mark.parametrize("longer", ["estimate", "guard"])
def test_a_segment_starts_only_if_it_fits(excess_ns: int, starts: bool, longer: str) -> None:
    """Estimate plus guard may reach the next release, and not a nanosecond beyond."""
    estimate = 8 * MS - GUARD_NS + excess_ns * (longer == "estimate")
    device = FakeDevice({"face": 2 * MS, "big": MS})
    guard_ns = GUARD_NS + excess_ns * (longer == "guard")
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [estimate])
    run = dispatcher(device, *entries, guard_ns=guard_ns)
    run.run(4)
    labels = Counter(label for label, _, _ in device.launches)
    assert labels == Counter({"face": 4, "big": 4} if starts else {"face": 4})


def test_the_last_window_keeps_the_guard_too() -> None:
    """Nothing runs beyond the end of the run."""
    device = FakeDevice({"big.0": 4 * MS, "big.1": 4 * MS})
    run = dispatcher(device, Entry("big", [4 * MS] * 2))
    run.run(1)
    assert launched(device, run) == [("big.0", 0.0), ("big.1", 4.0)]
    device = FakeDevice({"big.0": 6 * MS, "big.1": 6 * MS})
    run = dispatcher(device, Entry("big", [6 * MS] * 2))
    run.run(1)
    assert launched(device, run) == [("big.0", 0.0)]
    assert fates(run, 0) == {0: FrameOutcome.RUN_ENDED}


estimates = st.integers(MS // 20, 12 * MS)


@settings(deadline=None, max_examples=25)
@given(
    face=st.lists(st.integers(1, 2 * MS), min_size=1, max_size=3),
    big=st.lists(st.lists(estimates, min_size=1, max_size=5), min_size=1, max_size=3),
    guard_ns=st.integers(0, 2 * MS),
    queue=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_never_late_while_estimates_hold(
    face: list[int], big: list[list[int]], guard_ns: int, queue: int, seed: int
) -> None:
    """Whatever the durations up to their estimates: no priority miss, and every frame has one fate."""
    random = np.random.default_rng(seed)
    entries = [
        Entry("face", face, priority=True),
        *(Entry(f"big{i}", parts, queue=queue) for i, parts in enumerate(big)),
    ]
    limit: dict[str, int] = {}
    for entry in entries:
        whole = len(entry.estimates_ns) == 1
        limit |= {entry.name if whole else f"{entry.name}.{i}": ns for i, ns in enumerate(entry.estimates_ns)}
    device = FakeDevice(lambda label, _: int(random.integers(1, limit[label] + 1)))
    run = dispatcher(device, *entries, guard_ns=guard_ns)
    run.run(40)
    assert fates(run, 0) == dict.fromkeys(range(40), FrameOutcome.DONE)
    run_ended(run, 40, len(entries))
    starts = [started for label, started, _ in device.launches if label in ("face", "face.0")]
    assert starts == [run.release(window) for window in range(40)]
    for (label, _, _), row in zip(device.launches, run.launches.rows().tolist(), strict=True):
        program, window, _, started = row[:4]
        assert program < len(face) or started + limit[label] + guard_ns <= run.release(window + 1)
    for index, entry in enumerate(entries):
        done = [frame for frame, fate in fates(run, index).items() if fate == FrameOutcome.DONE]
        assert [frame for frame, _ in entry.sink.taken] == sorted(done)
        assert all(outputs["number"] == [frame] for frame, outputs in entry.sink.taken)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_every_frame_is_accounted_for_even_if_estimates_fail(seed: int, queue: int) -> None:
    """However long launches take, each released frame of each model has exactly one fate, and frames keep order."""
    random = np.random.default_rng(seed)
    device = FakeDevice(lambda *_: int(random.exponential(4 * MS)) + 1)
    entries = [
        Entry("face", [2 * MS], priority=True, queue=queue),
        Entry("voice", [MS, MS], priority=True, queue=queue),
        Entry("big", [2 * MS] * 3, queue=queue),
    ]
    run = dispatcher(device, *entries)
    run.run(30)
    assert run.windows == 30
    run_ended(run, 30, 3)
    for index, entry in enumerate(entries):
        finished = [f for f, fate in fates(run, index).items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE)]
        assert [frame for frame, _ in entry.sink.taken] == sorted(finished)
    for model, frame, fate, released, started, finished, _ in run.frames.rows().tolist():
        assert released == run.release(frame)
        if fate in (FrameOutcome.DONE, FrameOutcome.LATE):
            assert released <= started < finished
            assert (fate == FrameOutcome.LATE) == (model < 2 and finished - released > WINDOW_NS)
        else:
            assert (started, finished) == (-1, -1)


def test_an_overrun_delays_the_next_frame_and_is_recorded() -> None:
    """A segment that takes too long pushes the next priority frame; the grid stays as it was."""
    device = FakeDevice(lambda label, number: 17 * MS if number == 1 else {"face": 2 * MS, "big": 5 * MS}[label])
    run = dispatcher(device, Entry("face", [2 * MS], priority=True), Entry("big", [5 * MS], queue=1))
    run.run(4)
    assert launched(device, run) == [
        *(("face", 0.0), ("big", 2.0), ("face", 19.0)),
        *(("face", 21.0), ("big", 23.0)),
        *(("face", 30.0), ("big", 32.0)),
    ]
    assert fates(run, 0) == {0: FrameOutcome.DONE, 1: FrameOutcome.LATE, 2: FrameOutcome.DONE, 3: FrameOutcome.DONE}
    assert fates(run, 1) == {
        0: FrameOutcome.DONE,
        1: FrameOutcome.QUEUE_FULL,
        2: FrameOutcome.DONE,
        3: FrameOutcome.DONE,
    }
    rows = run.launches.rows()
    assert rows[2].tolist()[1:5] == [1, 1, run.start_ns + 19 * MS, run.start_ns + 21 * MS]


def test_the_deadline_decides_what_is_late() -> None:
    """A frame that ends at its deadline is done; a nanosecond later it is late."""
    for duration, fate in ((3 * MS, FrameOutcome.DONE), (3 * MS + 1, FrameOutcome.LATE)):
        run = dispatcher(FakeDevice({"face": duration}), Entry("face", [3 * MS], priority=True, deadline_ns=3 * MS))
        run.run(2)
        assert fates(run, 0) == {0: fate, 1: fate}


def test_priority_models_run_in_order_before_anything_else() -> None:
    """Several priority models, cut or not, run one after the other at each release."""
    device = FakeDevice({"a": MS, "b.0": MS, "b.1": MS, "big": 3 * MS})
    entries = Entry("a", [MS], priority=True), Entry("b", [MS, MS], priority=True), Entry("big", [3 * MS])
    run = dispatcher(device, *entries)
    run.run(2)
    expected = [("a", 0.0), ("b.0", 1.0), ("b.1", 2.0), ("big", 3.0)]
    assert launched(device, run) == [*expected, *((label, start + 10) for label, start in expected)]


def test_background_models_take_turns() -> None:
    """Frame by frame, whatever their lengths: none runs twice while another one waits."""
    device = FakeDevice({"a.0": 4 * MS, "a.1": 4 * MS, "b": 4 * MS, "c": 4 * MS})
    entries = Entry("a", [4 * MS] * 2), Entry("b", [4 * MS]), Entry("c", [4 * MS])
    run = dispatcher(device, *entries)
    run.run(20)
    order = [label for label, _, _ in device.launches]
    assert order[:12] == ["a.0", "a.1", "b", "c"] * 3
    completed = Counter(row[0] for row in run.frames.rows().tolist() if row[2] == FrameOutcome.DONE)
    assert max(completed.values()) - min(completed.values()) <= 1


def test_a_model_without_a_frame_does_not_hold_up_the_others() -> None:
    """A short model whose frames are all done gives its turn away."""
    device = FakeDevice({"a": MS, "b": 3 * MS})
    run = dispatcher(device, Entry("a", [MS]), Entry("b", [3 * MS]))
    run.run(3)
    assert launched(device, run) == [(label, 10.0 * k + at) for k in range(3) for label, at in (("a", 0), ("b", 1))]


def test_only_launches_longer_than_planned_read_the_processor_time() -> None:
    """The reading is a call of the system; a segment whose own guard is short needs less than it is planned to take."""
    device = FakeDevice({"big.0": 2 * MS, "big.1": 4 * MS})
    run = dispatcher(device, Entry("big", [MS, 2 * MS]))
    run._jobs[0].quantiles_ns = [3 * MS, 3 * MS]
    run._on_thread = True
    run.run(3)
    rows = run.launches.finished()
    for program in (0, 1):
        used = rows[rows[:, LaunchLog.PROGRAM] == program, LaunchLog.CPU]
        assert len(used) == 3
        assert ((used >= 0) == (program == 1)).all()


@pytest.mark.parametrize("after_ns", [0, 3 * MS, 35 * MS, 36 * MS])
def test_stop_ends_at_once_and_accounts_for_all(after_ns: int) -> None:
    """Only segments that follow one another do; frames in flight or waiting are unfinished, and have one fate."""
    device = FakeDevice({"face": 2 * MS, "big.0": 3 * MS, "big.1": 3 * MS, "big.2": 3 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [3 * MS] * 3)
    run = dispatcher(device, *entries)
    until = 20 * MS + after_ns
    run.run(100, stop=lambda: device.clock.now_ns() >= until)
    late = [label for label, started, _ in device.launches if started >= until]
    assert late in ([], ["big.1"])  # in the same residual as big.0, which began before
    assert device.clock.now_ns() < until + WINDOW_NS
    assert run.windows == {0: 0, 3 * MS: 1, 35 * MS: 4, 36 * MS: 4}[after_ns]
    run_ended(run, run.windows, 2)
    done = [frame for frame, fate in fates(run, 1).items() if fate == FrameOutcome.DONE]
    assert [frame for frame, _ in entries[1].sink.taken] == done
    assert len(run.trace()) == 2 * len(device.launches)


@pytest.mark.parametrize("fail_at", range(7))
def test_device_failure_keeps_what_happened(fail_at: int) -> None:
    """A failing launch, the first of a frame or a later one, ends the run; nothing that happened is lost."""
    device = FakeDevice({"face": 2 * MS, "big.0": 3 * MS, "big.1": 3 * MS}, fail_at=fail_at)
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [3 * MS] * 2)
    run = dispatcher(device, *entries)
    with pytest.raises(DeviceError, match="told to fail"):
        run.run(10)
    assert len(device.launches) == len(run.launches.finished()) == len(run.launches.launches()) == fail_at
    assert len(run.launches) == fail_at + 1
    assert run.launches.rows()[-1, LaunchLog.FINISHED] == -1
    assert run.windows == fail_at // 3 + 1
    run_ended(run, run.windows, 2)
    for index, entry in enumerate(entries):
        done = [frame for frame, fate in fates(run, index).items() if fate == FrameOutcome.DONE]
        assert [frame for frame, _ in entry.sink.taken] == done
    unfinished = [fate for model in (0, 1) for fate in fates(run, model).values() if fate == FrameOutcome.RUN_ENDED]
    assert unfinished
    assert run.trace().time_ns.tolist() == [t for _, *times in device.launches for t in times]


def test_outputs_come_in_order_and_belong_to_their_frame() -> None:
    """Each sink gets every finished frame once, ascending, with that frame's own outputs, in time left over."""
    device = FakeDevice({"face": 2 * MS, "big.0": 4 * MS, "big.1": 4 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [4 * MS] * 2)
    run = dispatcher(device, *entries)
    seen: list[tuple[int, int]] = []
    run.run(50, on_idle=lambda windows: seen.append((windows, len(entries[0].sink.taken))))
    assert [frame for frame, _ in entries[0].sink.taken] == list(range(50))
    frames = [frame for frame, _ in entries[1].sink.taken]
    assert frames == sorted(set(frames))
    assert len(frames) == 25
    for entry in entries:
        assert all(outputs["number"].tolist() == [frame] for frame, outputs in entry.sink.taken)
        owners = [outputs["number"] for _, outputs in entry.sink.taken]
        assert not any(np.shares_memory(owners[0], other) for other in owners[1:])
    assert [windows for windows, _ in seen] == list(range(1, 51))
    assert all(taken >= windows - 1 for windows, taken in seen)


def test_outputs_do_not_pile_up_without_idle_time() -> None:
    """A run without time to spare hands outputs out all the same."""
    device = FakeDevice({"face": 9_500_000})
    entry = Entry("face", [9_500_000], priority=True)
    run = dispatcher(device, entry, guard_ns=0)
    most = 0

    def stop() -> bool:
        nonlocal most
        most = max(most, len(run._outputs))
        return False

    run.run(300, stop=stop)
    assert [frame for frame, _ in entry.sink.taken] == list(range(300))
    assert 0 < most <= 64


def test_a_long_run_reads_the_devices_events_in_time() -> None:
    """The event buffer is emptied on the way, so that a bounded one never overflows; the trace is in one piece."""
    device = FakeDevice({"face": 2 * MS, "big": 3 * MS}, trace_events=3000)
    run = dispatcher(device, Entry("face", [2 * MS], priority=True), Entry("big", [3 * MS]))
    run.run(2000)
    trace = run.trace()
    assert trace.time_ns.tolist() == [t for _, *times in device.launches for t in times]
    assert trace.type.tolist() == [EventType.START, EventType.END] * 4000
    assert [trace.kinds[id_] for id_ in trace.id[::2]] == [label for label, _, _ in device.launches]
    assert trace.meta.lost_events == 0
    assert not len(trace.loss_after)


@pytest.mark.parametrize(("rate_hz", "big_us"), [(2000, 20), (100, 400)])
def test_a_beat_without_a_millisecond_to_spare_is_recorded_all_the_same(rate_hz: float, big_us: int) -> None:
    """In short windows, and where background segments leave little, events are read and progress is shown."""
    device = FakeDevice(lambda label, _: MS // 10 if label == "face" else big_us * 1000)
    entries = Entry("face", [MS // 10], priority=True), Entry("big", [big_us * 1000] * 40, queue=1)
    run, shown, read = dispatcher(device, *entries, guard_ns=1000, rate_hz=rate_hz), list[int](), list[int]()
    events = device.events
    run._packets._events = lambda: read.append(run.windows) or events()
    run.run(1000, on_idle=shown.append)
    assert np.diff([0, *read]).max() <= 300
    assert len(shown) > 900


def test_losses_are_marked_where_they_were() -> None:
    """Where the buffer overflows between two looks, the joined trace says after which packet, and how many."""
    device = FakeDevice({"face": MS}, trace_events=100)
    run = dispatcher(device, Entry("face", [MS], priority=True))
    run.run(600)
    trace = run.trace()
    assert trace.meta.lost_events == 1200 - len(trace) > 0
    assert trace.loss_after.tolist() == [100, 200, 300]
    gaps = np.flatnonzero(np.diff(trace.time_ns) > WINDOW_NS) + 1
    assert gaps.tolist() == [100, 200]


class LateClock(VirtualClock):
    """Oversleeps by a constant."""

    def sleep_until_ns(self, time_ns: int) -> None:
        """Wake up 40 us late."""
        super().sleep_until_ns(time_ns + 40_000 if time_ns > self.now_ns() else time_ns)


def test_late_wake_ups_do_not_add_up() -> None:
    """A thread that wakes up late starts late by just that, in every window."""
    device = FakeDevice({"face": 2 * MS})
    device.clock = LateClock()
    run = dispatcher(device, Entry("face", [2 * MS], priority=True))
    run.run(50)
    rows = run.frames.rows()
    lateness = rows[:, 4] - rows[:, 3]
    assert lateness.max() <= 80_000
    assert lateness.min() == 40_000


class CountedWarmUps(Dispatcher):
    """Counts how often the caches are warmed."""

    warm_ups = 0

    def warm_caches(self) -> None:
        """One more."""
        CountedWarmUps.warm_ups += 1
        super().warm_caches()


class Wakeful(RealClock):
    """Spins all the time: nothing wakes up late, however busy the machine is."""

    def doze_until_ns(self, time_ns: int) -> None:
        """Not at all."""


@pytest.mark.timed
def test_warm_ups_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before releases the dispatcher warms its caches where there is time, and this leaves nothing in its logs."""
    monkeypatch.setattr(CountedWarmUps, "warm_ups", 0)
    device = FakeDevice({"face.0": MS, "face.1": MS, "big": MS}, clock=Wakeful())
    entries = Entry("face", [MS, MS], priority=True), Entry("big", [MS], frames=2, queue=2)
    run = dispatcher(device, *entries, kind=CountedWarmUps)
    run.run(20)
    assert CountedWarmUps.warm_ups  # how often depends on how busy the machine is
    assert len(run.launches) == len(device.launches)
    assert len(run.trace()) == 2 * len(device.launches)
    labels = [label for label, _, _ in device.launches]
    assert labels.count("face.0") == labels.count("face.1") == run.windows == 20
    run_ended(run, 20, 2)
    assert [outputs["number"].tolist() for _, outputs in entries[0].sink.taken] == [[n] for n in range(20)]
    for _, outputs in entries[1].sink.taken:
        assert np.diff(outputs["number"]).tolist() == [1]


def test_no_windows() -> None:
    """A run of nothing releases nothing."""
    device = FakeDevice()
    run = dispatcher(device, Entry("face", [MS], priority=True))
    run.run(0)
    assert (run.windows, len(run.frames), len(run.launches), len(run.trace())) == (0, 0, 0, 0)


@pytest.mark.timed
def test_many_windows_take_seconds() -> None:
    """Twenty thousand windows of three models, with varying durations, cost little and keep the beat."""
    random = np.random.default_rng(0)
    mean: Mapping[str, float] = {"face": 1.8e6, "a.0": 2e6, "a.1": 1.5e6, "b": 2.2e6}
    limit = {label: round(1.1 * ns) for label, ns in mean.items()}
    draws = np.exp(0.02 * random.standard_normal(1 << 17)).tolist()
    durations: Callable[[str, int], int] = lambda label, k: min(round(mean[label] * draws[k]), limit[label])  # noqa: E731
    device = FakeDevice(durations)
    run = dispatcher(
        device,
        Entry("face", [limit["face"]], priority=True),
        Entry("a", [limit["a.0"], limit["a.1"]]),
        Entry("b", [limit["b"]]),
    )
    before = time.process_time()
    run.run(20_000)
    took = time.process_time() - before
    rows = run.frames.rows()
    assert (rows[rows[:, 0] == 0][:, 2] == FrameOutcome.DONE).all()
    assert np.bincount(rows[:, 0]).tolist() == [20_000] * 3
    assert len(run.launches) > 60_000
    assert took < 20


def test_steady_restores_what_it_changed() -> None:
    """Collector and switch interval are as before, also after an error."""
    import gc
    import sys

    interval, frozen = sys.getswitchinterval(), gc.get_freeze_count()

    def fail() -> None:
        with steady():
            assert sys.getswitchinterval() < interval
            assert gc.get_freeze_count() > frozen
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert sys.getswitchinterval() == interval
    assert gc.get_freeze_count() == 0


def test_a_reserved_instant_in_the_middle() -> None:
    """Priority starts at its instant, not at the release; background work fills both sides and keeps its guard."""
    device = FakeDevice({"face": 2 * MS, "big.0": 3 * MS, "big.1": 3 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [3 * MS] * 2)
    run = dispatcher(device, *entries, reserved=[[(4 * MS, 0)]])
    run.run(3)
    window = [("big.0", 0.0), ("face", 4.0), ("big.1", 6.0)]
    assert launched(device, run) == [(label, 10.0 * k + at) for k in range(3) for label, at in window]
    assert fates(run, 0) == fates(run, 1) == dict.fromkeys(range(3), FrameOutcome.DONE)


@pytest.mark.parametrize(("excess_ns", "starts"), [(0, True), (1, False)])
def test_the_guard_before_a_reserved_instant(excess_ns: int, starts: bool) -> None:
    """Before an instant in mid-window a segment starts only if it and the guard fit, to the nanosecond."""
    estimate = 4 * MS - GUARD_NS + excess_ns
    device = FakeDevice({"face": 6 * MS, "big": MS})
    entries = Entry("face", [6 * MS], priority=True), Entry("big", [estimate])
    run = dispatcher(device, *entries, reserved=[[(4 * MS, 0)]])
    run.run(3)
    assert [label for label, _, _ in device.launches] == (["big", "face"] * 3 if starts else ["face"] * 3)


def test_a_segment_may_cross_a_release_that_is_no_instant() -> None:
    """With the period at the end, background work goes on over the release; each frame is delivered all the same."""
    device = FakeDevice({"face": 2 * MS, "big.0": 3 * MS, "big.1": 3 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [3 * MS] * 2, queue=1)
    run = dispatcher(device, *entries, reserved=[[(6 * MS, 0)]], guard_ns=0)
    run.run(4)
    assert launched(device, run) == [
        *(("big.0", 0.0), ("big.1", 3.0), ("face", 6.0)),
        *(("big.0", 10.0), ("big.1", 13.0), ("face", 16.0)),
        *(("big.0", 20.0), ("big.1", 23.0), ("face", 26.0)),
        *(("big.0", 30.0), ("big.1", 33.0), ("face", 36.0)),
    ]
    device = FakeDevice({"face": 2 * MS, "big.0": 5 * MS, "big.1": 5 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [5 * MS] * 2, queue=1)
    run = dispatcher(device, *entries, reserved=[[(6 * MS, 0)]], guard_ns=0)
    run.run(4)
    assert launched(device, run) == [
        *(("big.0", 0.0), ("face", 6.0), ("big.1", 8.0)),
        *(("face", 16.0), ("big.0", 18.0)),
        *(("face", 26.0), ("big.1", 28.0)),
        ("face", 36.0),
    ]
    assert fates(run, 0) == dict.fromkeys(range(4), FrameOutcome.DONE)
    assert fates(run, 1) == {
        0: FrameOutcome.DONE,
        1: FrameOutcome.DONE,
        2: FrameOutcome.QUEUE_FULL,
        3: FrameOutcome.RUN_ENDED,
    }
    starts = {row[1]: row[4] for row in run.frames.rows().tolist() if row[0] == 0}
    assert starts == {k: run.release(k) + 6 * MS for k in range(4)}


def test_instants_that_differ_from_window_to_window() -> None:
    """The pattern repeats: a model of every second window is due there only, and the free window is used whole."""
    device = FakeDevice({"face": 2 * MS, "voice": 4 * MS, "big": 5 * MS})
    entries = (
        Entry("face", [2 * MS], priority=True),
        Entry("voice", [4 * MS], priority=True, every=2),
        Entry("big", [5 * MS]),
    )
    run = dispatcher(device, *entries, reserved=[[(0, 0), (0, 1)], [(0, 0)]])
    run.run(4)
    pair = [("face", 0.0), ("voice", 2.0), ("face", 10.0), ("big", 12.0)]
    assert launched(device, run) == [*pair, *((label, 20 + at) for label, at in pair)]
    assert fates(run, 1) == {
        0: FrameOutcome.DONE,
        1: FrameOutcome.SKIPPED,
        2: FrameOutcome.DONE,
        3: FrameOutcome.SKIPPED,
    }


def test_two_instants_in_a_window() -> None:
    """Priority models with instants of their own each start at theirs; background work runs between them."""
    device = FakeDevice({"face": 2 * MS, "voice": MS, "big": 2 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("voice", [MS], priority=True), Entry("big", [2 * MS])
    run = dispatcher(device, *entries, reserved=[[(MS, 0), (6 * MS, 1)]])
    run.run(2)
    window = [("face", 1.0), ("big", 3.0), ("voice", 6.0)]
    assert launched(device, run) == [(label, 10.0 * k + at) for k in range(2) for label, at in window]


def test_every_third_frame() -> None:
    """Frames between are skipped at their release, wait nowhere and reach no sink."""
    device = FakeDevice({"face": 2 * MS, "big": 3 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [3 * MS], every=3)
    run = dispatcher(device, *entries)
    run.run(8)
    assert fates(run, 1) == {frame: FrameOutcome.SKIPPED if frame % 3 else FrameOutcome.DONE for frame in range(8)}
    assert [frame for frame, _ in entries[1].sink.taken] == [0, 3, 6]
    skipped = [row for row in run.frames.rows().tolist() if row[2] == FrameOutcome.SKIPPED]
    assert all(row[3:] == [run.release(row[1]), -1, -1, row[1]] for row in skipped)
    run_ended(run, 8, 2)


def test_several_frames_at_once() -> None:
    """A model of three frames starts with the third, gives one output for all of them, and each has a fate."""
    device = FakeDevice({"face": 2 * MS, "clip.0": 3 * MS, "clip.1": 3 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("clip", [3 * MS] * 2, frames=3, queue=3)
    run = dispatcher(device, *entries)
    run.run(8)
    assert [(label, at) for label, at in launched(device, run) if label != "face"] == [
        ("clip.0", 22.0),
        ("clip.1", 25.0),
        ("clip.0", 52.0),
        ("clip.1", 55.0),
    ]
    assert fates(run, 1) == {frame: FrameOutcome.DONE if frame < 6 else FrameOutcome.RUN_ENDED for frame in range(8)}
    assert [(frame, outputs["number"].tolist()) for frame, outputs in entries[1].sink.taken] == [
        (2, [0, 1, 2]),
        (5, [3, 4, 5]),
    ]
    mine = [row for row in run.frames.rows().tolist() if row[0] == 1 and row[2] == FrameOutcome.DONE]
    assert [row[3] for row in mine] == [run.release(frame) for frame in range(6)]
    assert run.launches.launches().frame[run.launches.launches().program == 1].tolist() == [2, 5]


def test_frames_consumed_together_are_as_late_as_the_newest() -> None:
    """The deadline counts from the newest frame's release: the older ones had to wait for it."""
    device = FakeDevice({"clip": 2 * MS})
    run = dispatcher(device, Entry("clip", [2 * MS], priority=True, frames=2, deadline_ns=2 * MS))
    run.run(6)
    assert fates(run, 0) == dict.fromkeys(range(6), FrameOutcome.DONE)
    device = FakeDevice({"clip": 2 * MS + 1})
    run = dispatcher(device, Entry("clip", [2 * MS], priority=True, frames=2, deadline_ns=2 * MS))
    run.run(6)
    assert fates(run, 0) == dict.fromkeys(range(6), FrameOutcome.LATE)


def test_a_full_queue_may_refuse_the_new_frame() -> None:
    """With drop-newest the frame that finds the queue full is refused, and the older ones are served."""
    device = FakeDevice({"big.0": 9 * MS, "big.1": 9 * MS, "big.2": 9 * MS})
    oldest = dispatcher(device, Entry("big", [9 * MS] * 3, queue=1))
    oldest.run(7)
    full, refused, ended = FrameOutcome.QUEUE_FULL, FrameOutcome.REFUSED, FrameOutcome.RUN_ENDED
    assert fates(oldest, 0) == dict(enumerate([FrameOutcome.DONE, full, full, FrameOutcome.DONE, full, full, ended]))
    newest = dispatcher(FakeDevice(9 * MS), Entry("big", [9 * MS] * 3, queue=1, when_full="drop-newest"))
    newest.run(7)
    assert fates(newest, 0) == dict(
        enumerate([FrameOutcome.DONE, FrameOutcome.DONE, refused, refused, ended, refused, refused])
    )


def test_frames_that_are_overdue_give_way_after_a_stall() -> None:
    """The newest waiting frame runs at once, before background work; older ones would only have made it late."""
    device = FakeDevice(lambda _, number: 35 * MS if number == 1 else 2 * MS)
    entries = Entry("face", [2 * MS], priority=True, queue=2), Entry("big", [2 * MS])
    run = dispatcher(device, *entries)
    run.run(6)
    assert launched(device, run)[:4] == [("face", 0.0), ("big", 2.0), ("face", 37.0), ("face", 40.0)]
    full, overdue = FrameOutcome.QUEUE_FULL, FrameOutcome.OVERDUE
    assert fates(run, 0) == dict(enumerate([FrameOutcome.DONE, full, overdue, *[FrameOutcome.DONE] * 3]))
    assert [frame for frame, _ in entries[0].sink.taken] == [0, 3, 4, 5]


@dataclass
class Source:
    """So many frames with each window, the last number from then on."""

    counts: Sequence[int]
    over: bool = False
    _taken: int = 0

    def __len__(self) -> int:
        return self.counts[min(self._taken, len(self.counts) - 1)]

    def take(self) -> int:
        """As many as this window brings."""
        count = len(self)
        self._taken += 1
        return count


DONE, LATE, FULL, SKIPPED = FrameOutcome.DONE, FrameOutcome.LATE, FrameOutcome.QUEUE_FULL, FrameOutcome.SKIPPED


@pytest.mark.parametrize(
    ("face_ms", "rule", "queue", "keeps", "missed"),
    [
        (2, "drop-oldest", 2, False, {2: FULL, 3: FULL, 4: FULL}),
        (2, "drop-newest", 2, False, {4: FrameOutcome.REFUSED, 5: FrameOutcome.REFUSED, 6: FrameOutcome.REFUSED}),
        (4, "drop-oldest", 5, False, dict.fromkeys([4, 5, 6], FrameOutcome.OVERDUE)),
        (6, "drop-oldest", 2, False, {2: FULL, 3: FULL, 4: FULL, 6: FrameOutcome.OVERDUE}),
        (6, "drop-oldest", 5, False, dict.fromkeys([3, 4, 5, 6], FrameOutcome.OVERDUE)),
        (6, "drop-newest", 5, False, dict.fromkeys([3, 4, 5, 6], FrameOutcome.OVERDUE)),
        (6, "drop-oldest", 2, True, {2: FULL, 3: FULL, 4: FULL, 6: FrameOutcome.OVERDUE}),
        (6, "block", 5, False, dict.fromkeys([3, 4, 5, 6], LATE)),
    ],
)
def test_a_burst_costs_its_own_frames_only(
    face_ms: int, rule: WhenFull, queue: int, keeps: bool, missed: Mapping[int, FrameOutcome]
) -> None:
    """Frames beyond the instants run in residuals; those that are overdue make no later one late."""
    feed = Feed(rule == "block", frame_source=Source([1, 1, 5, 1]))
    device = FakeDevice({"face": face_ms * MS, "voice": MS, "big": MS})
    face = Entry("face", [face_ms * MS], priority=True, queue=queue, when_full=rule, feed=feed)
    run = dispatcher(device, face, Entry("voice", [MS], priority=True), Entry("big", [MS]))
    run._jobs[0].input = FrameChannel(queue, rule, keeps=keeps)
    run.run(40)
    found = fates(run, 0)
    assert {frame: fate for frame, fate in found.items() if fate != DONE} == missed
    assert fates(run, 1) == dict.fromkeys(range(40), DONE)
    assert [frame for frame, _ in face.sink.taken] == [frame for frame in found if found[frame] in (DONE, LATE)]


def test_a_model_with_a_state_sees_all_frames_that_its_queue_holds() -> None:
    """What is overdue waits on while there is room, and what the residual has room for is caught up."""
    feed = Feed(frame_source=Source([1, 1, 5, 1]))
    entries = Entry("face", [6 * MS], priority=True, queue=8, feed=feed), Entry("voice", [MS], priority=True)
    run = dispatcher(FakeDevice({"face": 6 * MS, "voice": MS}), *entries)
    run._jobs[0].input = FrameChannel(8, keeps=True)
    run.run(40)
    found = fates(run, 0)
    assert set(found.values()) == {DONE, LATE, FrameOutcome.RUN_ENDED}
    assert [frame for frame, _ in entries[0].sink.taken] == list(range(40))


def test_a_frame_without_an_instant_takes_no_other_models() -> None:
    """It runs as a whole or not at all between two instants, whatever is due there."""
    feed = Feed(frame_source=Source([1, 3, 1]))
    face = Entry("face", [2 * MS, 2 * MS], priority=True, queue=4, feed=feed)
    device = FakeDevice({"face.0": 2 * MS, "face.1": 2 * MS, "voice": MS, "big": MS})
    entries = face, Entry("voice", [MS], priority=True, deadline_ns=8 * MS), Entry("big", [MS])
    run = dispatcher(device, *entries, reserved=[[(0, 0), (7 * MS, 1)]])
    run.run(6)
    starts = [at for label, at in launched(device, run) if label == "voice"]
    assert starts == [10.0 * window + 7 for window in range(6)]
    overdue = FrameOutcome.OVERDUE
    assert fates(run, 0) == dict(enumerate([DONE, DONE, overdue, overdue, *[DONE] * 4]))


@pytest.mark.parametrize("counts", [[1, 1, 0, 1], [1, 1, 1, 2, 1], [1, 0, 1, 3, 0, 0, 1]])
def test_every_second_frame_of_a_stream_that_slips(counts: list[int]) -> None:
    """After a slip by one its frames are those of the windows with its instants again, not late for ever."""
    feed = Feed(frame_source=Source(counts))
    device = FakeDevice({"face": 6 * MS, "voice": 6 * MS})
    entries = (
        Entry("face", [6 * MS], priority=True, every=2, feed=feed),
        Entry("voice", [6 * MS], priority=True, every=2, feed=Feed(frame_source=Source([0, 1]))),
    )
    run = dispatcher(device, *entries, reserved=[[(0, 0)], [(0, 1)]])
    run.run(60)
    found = fates(run, 0)
    slips = sum(count != 1 for count in counts)
    assert sum(fate not in (DONE, SKIPPED) for fate in found.values()) <= slips
    assert {fate for frame, fate in found.items() if frame > 6} == {DONE, SKIPPED}
    assert sum(fate == DONE for fate in found.values()) >= 30 - slips
    assert fates(run, 1) == {frame: SKIPPED if frame % 2 else DONE for frame in range(59)}


def test_a_frame_without_an_instant_holds_no_event_up_longer_than_a_background_segment() -> None:
    """Else the planned bound on an event's wait would not hold in a burst."""
    for big_ms, fate in ((2, FrameOutcome.OVERDUE), (4, DONE)):
        feed, wake = Feed(frame_source=Source([1, 2, 1])), Entry("wake", [MS], feed=Feed(frame_source=Source([0])))
        entries = Entry("face", [3 * MS], priority=True, feed=feed), Entry("big", [big_ms * MS]), wake
        run = dispatcher(FakeDevice({"face": 3 * MS, "big": big_ms * MS, "wake": MS}), *entries)
        run._sporadic = [(2, run._jobs[2])]
        run._sporadic[0][1].events = Events(Feed(), 50 * MS)
        run.run(6)
        assert fates(run, 0)[2] == fate


@pytest.mark.parametrize("keeps", [False, True])
def test_a_frame_without_an_instant_is_caught_up_while_no_event_can_come(keeps: bool) -> None:
    """A late frame that is longer than all background segments runs once an event has just been served.

    One with a state waits for that; else every later frame would be late.
    """
    for times_ms, missed in (([], 39 if keeps else 1), ([13], 0), ([33], 2 if keeps else 1)):
        feed, wake = Feed(frame_source=Source([1, 2, 1])), Entry("wake", [MS], feed=Feed(frame_source=Source([0])))
        entries = Entry("face", [3 * MS], priority=True, feed=feed, queue=4), Entry("big", [2 * MS]), wake
        run = dispatcher(FakeDevice({"face": 3 * MS, "big": 2 * MS, "wake": MS}), *entries)
        run._jobs[0].input = FrameChannel(4, keeps=keeps)
        run._sporadic = [(2, run._jobs[2])]
        run._sporadic[0][1].events = Events(Feed(), 50 * MS, times_ns=iter([ms * MS for ms in times_ms]))
        run.run(40)
        found = fates(run, 0)
        assert sum(fate != DONE for fate in found.values()) == missed, (times_ms, found)


def test_a_frame_that_waited_for_its_own_instant_is_not_run_early() -> None:
    """A priority frame that ends after the next release leaves the next frame to its own instant, others first."""
    device = FakeDevice(lambda label, number: 9 * MS if number == 0 else {"face": 2 * MS, "voice": MS}[label])
    entries = Entry("face", [2 * MS], priority=True), Entry("voice", [MS], priority=True, deadline_ns=13 * MS)
    run = dispatcher(device, *entries, reserved=[[(4 * MS, 0), (4 * MS, 1)]])
    run.run(3)
    assert launched(device, run) == [
        *(("face", 4.0), ("voice", 13.0)),
        *(("face", 14.0), ("voice", 16.0)),
        *(("face", 24.0), ("voice", 26.0)),
    ]
    assert fates(run, 0) == {0: FrameOutcome.LATE, 1: FrameOutcome.DONE, 2: FrameOutcome.DONE}


def test_gaps_are_used_out_of_turn_without_delaying_the_turn() -> None:
    """What the model in turn cannot use goes to the next whose segment fits; its own start stays the same."""
    device = FakeDevice({"a.0": 6 * MS, "a.1": 6 * MS, "b": 3 * MS, "c": 2 * MS})
    alone = dispatcher(device, Entry("a", [6 * MS] * 2, queue=1))
    alone.run(6)
    starts = [at for label, at in launched(device, alone) if label.startswith("a")]
    device = FakeDevice({"a.0": 6 * MS, "a.1": 6 * MS, "b": 3 * MS, "c": 2 * MS})
    entries = Entry("a", [6 * MS] * 2, queue=1), Entry("b", [3 * MS]), Entry("c", [2 * MS])
    run = dispatcher(device, *entries)
    run.run(6)
    assert launched(device, run)[:6] == [
        *(("a.0", 0.0), ("b", 6.0)),
        *(("a.1", 10.0), ("b", 16.0)),
        *(("c", 20.0), ("a.0", 22.0)),
    ]
    assert [at for label, at in launched(device, run) if label.startswith("a")][:2] == starts[:2] == [0, 10]
    for entry in entries:
        numbers = [frame for frame, _ in entry.sink.taken]
        assert numbers == sorted(set(numbers))
        assert numbers


def test_stalls_of_the_host_are_noted_by_window() -> None:
    """What the host took is read in idle time, and kept with the window in which it was noticed."""
    device = FakeDevice({"face": 2 * MS})
    readings = iter([5, 5, 5, 20, 20, 50, 50, 50, 50, 50, 50])
    run = dispatcher(device, Entry("face", [2 * MS], priority=True), stalls=lambda: next(readings))
    run.run(6)
    assert run.stalled == {2: 15, 4: 30}


class EndingStream(NumberStream):
    """Ends after some frames without saying so before."""

    def __init__(self, frames: int = 3) -> None:
        self._frames = frames
        self._over = False

    @property
    def length(self) -> int | None:  # type: ignore[override]
        """Not known before the end."""
        return self._frames if self._over else None

    def has(self, frame: int) -> bool:
        """Notices the end."""
        self._over = self._over or frame >= self._frames
        return frame < self._frames

    def read(self, frame: int, tensor: TensorInfo) -> Array:  # type: ignore[override]
        """An array full of ``frame``, while there are any."""
        if not self.has(frame):
            raise EndOfStream("ended")
        return NumberStream.read(frame, tensor)


def test_the_end_of_a_stream_ends_the_run() -> None:
    """A frame that is not there is no failure and no miss: the run ends, and every frame that was has a fate."""
    device = FakeDevice({"face": 2 * MS, "big": 3 * MS})
    entries = Entry("face", [2 * MS], priority=True), Entry("big", [3 * MS])
    run = dispatcher(device, *entries)
    stream = EndingStream()
    for job in run._jobs:
        job.sources = {"x": stream, "number": stream}
    run.run(100)
    assert run.windows == 4
    for model in (0, 1):
        assert fates(run, model) == {0: FrameOutcome.DONE, 1: FrameOutcome.DONE, 2: FrameOutcome.DONE}
    assert [label for label, _, _ in device.launches] == ["face", "big"] * 3


def windows_of(run: Dispatcher, model: int) -> list[int]:
    """The window in which each frame of a model came, by frame."""
    rows = run.frames.rows()
    rows = rows[rows[:, FrameLog.MODEL] == model]
    rows = rows[np.argsort(rows[:, FrameLog.FRAME])]
    assert rows[:, FrameLog.RELEASED].tolist() == [run.release(w) for w in rows[:, FrameLog.WINDOW].tolist()]
    windows: list[int] = rows[:, FrameLog.WINDOW].tolist()
    return windows


def test_a_full_queue_makes_the_stream_wait() -> None:
    """Two windows a frame, one may wait: from frame 1 on every second window brings none, for no reader of the stream.

    At the end of the stream the run goes on until the frames that wait are done.
    """
    feed = Feed(waits=True)
    device = FakeDevice({"face": MS, "big.0": 8 * MS, "big.1": 8 * MS})
    entries = (
        Entry("face", [MS], priority=True, queue=1, feed=feed, length=4),
        Entry("big", [8 * MS] * 2, queue=1, when_full="block", feed=feed, length=4),
    )
    run = dispatcher(device, *entries)
    run.run(100)
    assert windows_of(run, 0) == windows_of(run, 1) == [0, 1, 3, 5]
    assert fates(run, 0) == fates(run, 1) == dict.fromkeys(range(4), FrameOutcome.DONE)
    assert [frame for frame, _ in entries[1].sink.taken] == [0, 1, 2, 3]
    assert [label for label, _ in launched(device, run)].count("face") == 4
    assert (run.ended, run.windows, feed.delivered, feed.waited) == (True, 8, 4, 2)


def test_the_end_of_a_function_that_can_wait() -> None:
    """Its end is noticed when the next frame is due; no model is asked for a frame that is not there."""
    entries = Entry("big", [8 * MS] * 2, queue=1, when_full="block", feed=Feed(waits=True)), Entry("other", [MS])
    run = dispatcher(FakeDevice({"big.0": 8 * MS, "big.1": 8 * MS, "other": MS}), *entries)
    run._jobs[0].sources = {"x": EndingStream(5), "number": EndingStream(5)}
    run.run(100)
    assert fates(run, 0) == dict.fromkeys(range(5), FrameOutcome.DONE)
    assert sorted(fates(run, 1)) == list(range(run.windows))  # another stream, which never waits


def test_a_priority_model_of_every_second_window_stays_on_time() -> None:
    """After the stream has waited, its frames come in windows in which it has an instant: none is late."""
    feed = Feed(waits=True)
    entries = (
        Entry("face", [MS], priority=True, every=2, feed=feed),
        Entry("big", [8 * MS] * 3, queue=1, when_full="block", feed=feed),
    )
    device = FakeDevice({"face": MS, "big.0": 8 * MS, "big.1": 8 * MS, "big.2": 8 * MS})
    run = dispatcher(device, *entries, reserved=[[(0, 0)], []])
    run.run(60)
    found = fates(run, 0)
    assert {fate for frame, fate in found.items() if frame % 2 == 0 and frame < max(found)} == {FrameOutcome.DONE}
    assert {fate for frame, fate in found.items() if frame % 2} == {FrameOutcome.SKIPPED}
    assert all(window % 2 == 0 for window in windows_of(run, 0)[::2])
    assert feed.waited > 20


class Watched(FrameChannel):
    """Remembers how many waited at most."""

    most = 0

    def offer(self, arrival: Arrival) -> Dropped | None:
        """As every channel does."""
        dropped = super().offer(arrival)
        self.most = max(self.most, len(self))
        return dropped


@st.composite
def readers(draw: st.DrawFn) -> list[Entry]:
    """Models that read one stream, at least one of which makes it wait."""
    entries = []
    for number in range(draw(st.integers(1, 4))):
        segments = draw(st.lists(st.integers(MS // 20, 9 * MS), min_size=1, max_size=4))
        rule: WhenFull = "block" if number == 0 else draw(st.sampled_from(["block", "drop-oldest", "drop-newest"]))
        frames = draw(st.integers(1, 3))
        depth = max(draw(st.integers(1, 4)), frames)
        entries.append(
            Entry(f"m{number}", segments, queue=depth, every=draw(st.integers(1, 3)), frames=frames, when_full=rule)
        )
    if draw(st.booleans()):
        every = draw(st.integers(1, 3))
        entries.insert(0, Entry("face", [MS], priority=True, every=every, when_full=draw(st.sampled_from(RULES))))
    return entries


RULES: list[WhenFull] = ["block", "drop-oldest"]


@settings(deadline=None, max_examples=45)
@given(readers(), st.none() | st.integers(0, 25), st.integers(0, 2**32 - 1), st.floats(0.1, 1.5))
def test_no_frame_is_lost_where_the_stream_waits(
    entries: list[Entry], length: int | None, seed: int, most: float
) -> None:
    """Whatever launches take, longer than planned too: each frame once, in order, and no more wait than may."""
    random, feed = np.random.default_rng(seed), Feed(waits=True)
    estimates = {
        e.name if len(e.estimates_ns) == 1 else f"{e.name}.{s}": ns
        for e in entries
        for s, ns in enumerate(e.estimates_ns)
    }
    for entry in entries:
        entry.feed, entry.length = feed, length
    device = FakeDevice(lambda label, _: max(int(estimates[label] * random.uniform(0.05, most)), 1))
    pattern = [
        [(0, index) for index, e in enumerate(entries) if e.priority and window % e.every == 0] for window in range(6)
    ]
    run = dispatcher(device, *entries, reserved=pattern)
    queues = [Watched(entry.queue, entry.when_full, frames=entry.frames) for entry in entries]
    for job, queue in zip(run._jobs, queues, strict=True):
        job.input = queue
    run.run(60)
    assert feed.delivered + feed.waited <= run.windows <= 60
    if length is None:
        assert feed.delivered + feed.waited == 60
    for number, (entry, queue) in enumerate(zip(entries, queues, strict=True)):
        found, windows = fates(run, number), windows_of(run, number)
        assert sorted(found) == list(range(feed.delivered))
        assert windows == sorted(set(windows))
        assert queue.most <= entry.queue
        assert {f for f, fate in found.items() if fate == FrameOutcome.SKIPPED} == {f for f in found if f % entry.every}
        if entry.priority:
            assert all(window % entry.every == 0 for window in windows[:: entry.every])
        done = sorted(f for f, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE))
        assert [frame for frame, _ in entry.sink.taken] == done[entry.frames - 1 :: entry.frames]
        assert all(outputs["number"].tolist()[-1] == frame for frame, outputs in entry.sink.taken)
        if entry.when_full == "block":
            assert not {FrameOutcome.QUEUE_FULL, FrameOutcome.REFUSED} & set(found.values())
            wanted = [f for f in range(feed.delivered) if f % entry.every == 0]
            assert done == wanted[: len(done)]
            if run.ended:
                assert len(wanted) - len(done) < entry.frames  # too few for another launch


def as_planned(entry: Entry) -> PlannedModel:
    """An entry as the planner knows it."""
    segments = tuple(
        Segment(
            index=index,
            unit="fake0",
            fill_layer="a",
            first_layer="a",
            last_layer="b",
            output_layers=("b",),
            duration_ns=duration,
            median_ns=duration,
            boundary_bytes=0,
            tensors=(),
        )
        for index, duration in enumerate(entry.estimates_ns)
    )
    role: Literal["priority", "background"] = "priority" if entry.priority else "background"
    return PlannedModel(
        name=entry.name, role=role, level=0, reasons=(), duration_ns=sum(entry.estimates_ns), segments=segments
    )


@settings(deadline=None, max_examples=45)
@given(readers(), st.integers(0, 2**32 - 1), st.floats(0.05, 1))
def test_the_planned_ages_hold_where_the_stream_waits(entries: list[Entry], seed: int, least: float) -> None:
    """Counted from the window in which a frame came, no result is older than the plan's bound; no priority is late."""
    random, feed = np.random.default_rng(seed), Feed(waits=True)
    demands = {
        e.name: Demand(queue=e.queue, every=e.every, frames=e.frames, refuses=e.when_full != "drop-oldest", waits=True)
        for e in entries
    }
    timetable = build_timetable(Beat(WINDOW_NS, GUARD_NS, demands=demands), [as_planned(entry) for entry in entries])
    if not timetable.feasible:
        return
    for entry in entries:
        entry.feed = feed
    names = {model.name: index for index, model in enumerate(timetable.models)}
    estimates = {
        e.name if len(e.estimates_ns) == 1 else f"{e.name}.{s}": ns
        for e in entries
        for s, ns in enumerate(e.estimates_ns)
    }
    device = FakeDevice(lambda label, _: max(int(estimates[label] * random.uniform(least, 1)), 1))
    run = dispatcher(device, *entries, reserved=instants(timetable, names))
    run.run(80)
    rows = run.frames.rows()
    for number, (entry, model) in enumerate(zip(entries, timetable.models, strict=True)):
        done = rows[(rows[:, FrameLog.MODEL] == number) & (rows[:, FrameLog.FINISHED] >= 0)][
            entry.frames - 1 :: entry.frames
        ]
        assert model.result_age_windows is not None
        if len(done):
            assert (
                done[:, FrameLog.FINISHED] - done[:, FrameLog.RELEASED]
            ).max() <= model.result_age_windows * WINDOW_NS
        if entry.priority:
            assert not set(rows[rows[:, FrameLog.MODEL] == number][:, FrameLog.OUTCOME]) & {
                FrameOutcome.LATE,
                FrameOutcome.QUEUE_FULL,
            }
