"""Two threads on one core, on the machine's own clock."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import FakeDevice, ListSink, NumberStream
from framefit import DeviceError
from framefit.core.events import EventType
from framefit.core.grid import Grid
from framefit.core.model import GraphBuilder, Model, TensorInfo
from framefit.core.policy import Rotation
from framefit.core.workload import WhenFull
from framefit.devices.clock import RealClock
from framefit.devices.device import Array, Device, EventRecorder
from framefit.devices.host import pinned, realtime_priority_permitted
from framefit.devices.ort import OrtDevice
from framefit.execution.execution import Execution
from framefit.execution.streams import EndOfStream
from framefit.runtime.channel import Dropped, FrameChannel
from framefit.runtime.job import Job
from framefit.runtime.log import FrameOutcome, LaunchLog
from framefit.runtime.loop import Dispatcher
from framefit.runtime.preemptive import PreemptiveDispatcher
from framefit.runtime.streams import Arrival, Feed, SharedStream

MS = 1_000_000
RATE_HZ = 100.0

pytestmark = [
    pytest.mark.timed,
    pytest.mark.skipif(
        not realtime_priority_permitted(), reason="real-time priorities (SCHED_FIFO) are not permitted here"
    ),
]


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """No test leaves a thread behind."""
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "framefit-background"]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def network(convolutions: int, size: int) -> Model:
    """Takes as long as it is deep; reads "x", gives "pooled"."""
    b = GraphBuilder("network")
    x = b.input("x", (1, 8, size, size))
    for _ in range(convolutions):
        x = b.conv(x, 8, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    return b.build()


@dataclass
class Entry:
    """A model of a test's workload."""

    name: str
    priority: bool = False
    segments: int = 1
    queue: int = 2
    every: int = 1
    frames: int = 1
    when_full: WhenFull = "drop-oldest"
    feed: Feed = field(default_factory=Feed)
    stream: Any = field(default_factory=NumberStream)
    sink: ListSink = field(default_factory=ListSink)
    network: tuple[int, int] | None = None


def dispatcher(
    device: Device, *entries: Entry, rate_hz: float = RATE_HZ, kind: type[Dispatcher] = PreemptiveDispatcher
) -> Dispatcher:
    """Priority entries first; models whose frames hold their number, on any device."""
    jobs, first = [], 0
    for entry in entries:
        if entry.network is None:
            b = GraphBuilder("small")
            x = b.input("x", (entry.frames, 4))
            for _ in range(entry.segments):
                x = b.op("Relu", x)
            b.output(x)
            model = b.build()
        else:
            model = network(*entry.network)
        last = len(model.layers) - 1
        bounds = [(0, last)] if entry.segments == 1 else [(n, n) for n in range(entry.segments)]
        unit = device.target.units[0].name
        execution = Execution(model, bounds, device, unit, name=entry.name, frames=entry.frames)
        jobs.append(
            Job(
                execution=execution,
                first_program=first,
                priority=entry.priority,
                estimates_ns=[MS] * entry.segments,
                deadline_ns=round(1e9 / rate_hz) if entry.priority else None,
                sources={"x": entry.stream},
                input=FrameChannel(entry.queue, entry.when_full, frames=entry.frames),
                feed=entry.feed,
                sinks=[(entry.sink, None)],
                every=entry.every,
            )
        )
        first += entry.segments
    grid = Grid(rate_hz)
    return kind(device, device.clock, jobs, grid, 0, service=Rotation(sum(not entry.priority for entry in entries)))


def slow(**durations_ms: float) -> FakeDevice:
    """Launches sleep on the machine's clock."""
    return FakeDevice({label: round(ms * MS) for label, ms in durations_ms.items()}, clock=RealClock(spin_ns=0))


def fates(run: Dispatcher, model: int) -> dict[int, FrameOutcome]:
    """What became of each frame of a model; each has one fate only."""
    rows = [row for row in run.frames.rows().tolist() if row[0] == model]
    assert len({row[1] for row in rows}) == len(rows)
    return {row[1]: FrameOutcome(row[2]) for row in rows}


def test_priority_is_not_delayed_by_a_long_background_launch(tmp_path: Path) -> None:
    """A background launch of several windows goes on around the priority model, which starts and ends in time."""
    device = OrtDevice(cache=tmp_path)
    face, big = Entry("face", priority=True, network=(1, 16)), Entry("big", network=(24, 384))
    with pinned(device.host_core):
        run = dispatcher(device, face, big, rate_hz=50)
        for job in run._jobs:
            job.load = lambda: None  # type: ignore[method-assign]  # zeros will do
        for job in run._jobs:
            job.execution.launch(0)
        device.events()
        run.run(60)
    rows = run.launches.finished()
    long = rows[rows[:, LaunchLog.PROGRAM] == 1]
    lasted = long[:, LaunchLog.FINISHED] - long[:, LaunchLog.STARTED]
    releases = np.asarray([run.release(window) for window in range(60)])
    inside = np.asarray([any(s + 5 * MS < r < f - 5 * MS for s, f in long[:, 3:5].tolist()) for r in releases])
    assert np.median(lasted) > 30 * MS
    assert inside.sum() > 15
    mine = run.frames.rows()
    mine = mine[(mine[:, 0] == 0) & (mine[:, 2] != FrameOutcome.RUN_ENDED)]
    waited = (mine[:, 4] - mine[:, 3])[inside[mine[:, 1]]]
    assert np.median(waited) < 3 * MS  # it would be half of a launch
    used = long[:, LaunchLog.CPU]
    assert (used > 0).all()
    assert (used <= 1.05 * lasted + MS).all()
    for model in (0, 1):
        assert sorted(fates(run, model)) == list(range(60))
    trace = run.trace()
    assert (trace.type == EventType.START).sum() == (trace.type == EventType.END).sum() == len(rows)


def test_every_frame_is_accounted_for() -> None:
    """Models of all kinds side by side: each release has one fate, outputs come in order, launches are complete."""
    entries = (
        Entry("face", priority=True),
        Entry("voice", priority=True, every=2, segments=2),
        Entry("big", segments=3),
        Entry("clip", frames=2, queue=2),
        Entry("rare", every=5, queue=1),
    )
    device = slow(face=1, **{"voice.0": 0.5, "voice.1": 0.5, "big.0": 7, "big.1": 4, "big.2": 7}, clip=5, rare=3)
    run = dispatcher(device, *entries)
    run.run(40)
    assert run.windows == 40
    for number, entry in enumerate(entries):
        found = fates(run, number)
        assert sorted(found) == list(range(40))
        assert sorted(f for f, fate in found.items() if fate == FrameOutcome.SKIPPED) == [
            frame for frame in range(40) if frame % entry.every
        ]
        done = sorted(frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE))
        assert done
        assert [frame for frame, _ in entry.sink.taken] == done[entry.frames - 1 :: entry.frames]
    assert len(run.launches.finished()) == len(run.launches) == len(device.launches)
    assert len(run.trace()) == 2 * len(device.launches)
    assert not run.launches.rows()[:, LaunchLog.FOLLOWED].any()


def test_rehearsals_leave_no_trace() -> None:
    """With time to get ready before each release, launches, outputs and frames are what they are without."""
    entries = Entry("face", priority=True), Entry("big")
    device = FakeDevice({"face": MS, "big": 3 * MS}, clock=RealClock(spin_ns=3 * MS))
    run = dispatcher(device, *entries)
    run.run(20)
    assert len(run.launches.finished()) == len(run.launches) == len(device.launches)
    for number, entry in enumerate(entries):
        found = fates(run, number)
        assert sorted(found) == list(range(20))
        done = sorted(frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE))
        assert [frame for frame, _ in entry.sink.taken] == done
    assert len(entries[0].sink.taken) == 20


def test_background_models_take_turns() -> None:
    """The policy is the planned one: frame by frame."""
    device = slow(face=0.5, a=2, b=2, c=2)
    entries = Entry("face", priority=True), Entry("a"), Entry("b"), Entry("c")
    run = dispatcher(device, *entries, rate_hz=200)
    run.run(40)
    order = [label for label, _, _ in device.launches if label != "face"]
    assert order[:9] == ["a", "b", "c"] * 3
    counts = [order.count(label) for label in "abc"]
    assert max(counts) - min(counts) <= 1


def test_without_background_models() -> None:
    """The other thread has nothing to do, and ends."""
    entry = Entry("face", priority=True)
    run = dispatcher(slow(face=1), entry)
    run.run(5)
    assert [frame for frame, _ in entry.sink.taken] == list(range(5))


@pytest.mark.parametrize("label", ["face", "big"])
def test_a_failure_in_either_thread_is_raised(label: str) -> None:
    """The device fails in the priority or in the background thread: run() raises it, and keeps what happened."""
    count = [0]

    def duration(name: str, _: int) -> int:
        count[0] += name == label
        if count[0] == 4:
            raise DeviceError("told to fail", where=label)
        return MS

    device = FakeDevice(duration, clock=RealClock(spin_ns=0))
    entries = Entry("face", priority=True), Entry("big")
    run = dispatcher(device, *entries)
    begun = time.monotonic()
    with pytest.raises(DeviceError, match="told to fail") as error:
        run.run(500)
    assert time.monotonic() - begun < 3
    assert error.value.where == label
    assert 4 <= run.windows < 50
    for model, entry in enumerate(entries):
        found = fates(run, model)
        assert sorted(found) == list(range(run.windows))
        done = [frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE)]
        assert [frame for frame, _ in entry.sink.taken] == sorted(done)
    assert len(run.launches.finished()) == len(run.launches) - 1


def test_stop_ends_both_threads() -> None:
    """When stop says so the launch under way ends, nothing follows, and all frames have a fate."""
    device = slow(face=1, big=15)
    entries = Entry("face", priority=True), Entry("big")
    run = dispatcher(device, *entries)
    begun = time.monotonic()
    run.run(1000, stop=lambda: time.monotonic() - begun > 0.2)
    assert time.monotonic() - begun < 2
    launched = len(device.launches)
    time.sleep(0.03)
    assert len(device.launches) == launched
    for model in (0, 1):
        assert sorted(fates(run, model)) == list(range(run.windows))


def test_launches_stand_in_the_order_of_the_trace() -> None:
    """A launch that was interrupted while its frame was handed over began after the one that interrupted it."""
    device = slow(face=0.5, big=5)
    run = dispatcher(device, Entry("face", priority=True), Entry("big"))

    def prepare(frame: Array) -> Array:
        time.sleep(0.007)
        return frame

    run._jobs[1].execution._prepare = {"x": prepare}  # type: ignore[attr-defined]
    run.run(40)
    launches, trace = run.launches.launches(), run.trace()
    begun = np.flatnonzero(trace.type == EventType.START)
    begun = begun[np.argsort(trace.time_ns[begun])]
    labels = ("face", "big")
    assert [labels[program] for program in launches.program] == [trace.kinds[kind] for kind in trace.id[begun]]
    assert (np.diff(launches.submit_ns) < 0).any()  # else nothing was interrupted there


class EndingStream(NumberStream):
    """Ends after three frames without saying so before."""

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """An array full of ``frame``, while there are any."""
        if frame >= 3:
            raise EndOfStream("ended")
        return NumberStream.read(frame, tensor)


@pytest.mark.parametrize("who", ["face", "big"])
def test_the_end_of_a_stream_ends_the_run(who: str) -> None:
    """In whichever thread it is noticed: the run ends, and no model sees a frame that is not there."""
    entries = Entry("face", priority=True), Entry("big")
    next(entry for entry in entries if entry.name == who).stream = EndingStream()
    run = dispatcher(slow(face=1, big=1), *entries)
    run.run(300)
    assert run.windows < 100
    ended = 0 if who == "face" else 1
    assert [frame for frame, _ in entries[ended].sink.taken] == [0, 1, 2]
    assert fates(run, ended)[3] == FrameOutcome.RUN_ENDED
    for model in (0, 1):
        assert sorted(fates(run, model)) == list(range(run.windows))


class OneAtATime(NumberStream):
    """A stream that must not be read by two threads at once; it takes its time."""

    busy = False

    def read(self, frame: int, tensor: TensorInfo) -> Array:
        """Complains if it is being read already."""
        assert not self.busy
        type(self).busy = True
        time.sleep(0.002)
        type(self).busy = False
        return NumberStream.read(frame, tensor)


def test_a_stream_is_read_by_one_thread_at_a_time() -> None:
    """Both threads read a camera that is shared, but never at once: generators and caches cannot bear that."""
    camera = SharedStream(OneAtATime())
    entries = Entry("face", priority=True, stream=camera), Entry("a", stream=camera), Entry("b", stream=camera)
    run = dispatcher(slow(face=0.2, a=0.7, b=0.9), *entries)
    run.run(50)
    assert all(len(entry.sink.taken) >= 20 for entry in entries)


class Hesitant(FrameChannel):
    """Gives other threads a turn between looking and taking."""

    @property
    def ready(self) -> bool:
        """Whether it was a moment ago."""
        ready = super().ready
        time.sleep(0)
        return ready

    def offer(self, arrival: Arrival) -> Dropped | None:
        """As every channel does, but slowly."""
        dropped = None
        if len(self) == self.slots:
            time.sleep(0.0005)
            dropped = Dropped(self._items.popleft(), FrameOutcome.QUEUE_FULL)
            time.sleep(0.0005)
        self._items.append(arrival)
        return dropped


def test_no_frame_is_lost_between_the_threads() -> None:
    """A frame arrives at a full queue of one just when the other thread takes from it: all are accounted for."""
    entry = Entry("big", queue=1)
    run = dispatcher(slow(face=0.1, big=2.3), Entry("face", priority=True), entry, rate_hz=500)
    run._jobs[1].input = Hesitant(1)
    run.run(200)
    for model in (0, 1):
        assert sorted(fates(run, model)) == list(range(200))


def test_a_stream_that_waits_loses_nothing_between_the_threads() -> None:
    """A background model that takes longer than a window: the stream waits for it, and is done to its end."""
    feed, stream = Feed(waits=True), NumberStream(15)
    face = Entry("face", priority=True, feed=feed, stream=stream)
    big = Entry("big", queue=1, when_full="block", feed=feed, stream=stream)
    run = dispatcher(slow(face=0.2, big=7), face, big, rate_hz=200)
    run.run(400)
    assert run.ended
    for number, entry in enumerate((face, big)):
        assert sorted(fates(run, number)) == list(range(15))
        assert not {FrameOutcome.QUEUE_FULL, FrameOutcome.REFUSED, FrameOutcome.RUN_ENDED} & set(
            fates(run, number).values()
        )
        assert [frame for frame, _ in entry.sink.taken] == list(range(15))
    assert feed.waited >= 5


def test_events_may_come_while_the_buffer_is_read() -> None:
    """One thread adds packets while another one drains them: none is lost, none fails."""
    recorder, count, found = EventRecorder(1 << 20), 50_000, []

    def add() -> None:
        for number in range(count):
            recorder.add(number, 0, EventType.START, 0, 0)

    thread = threading.Thread(target=add)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        while thread.is_alive():
            found.append(recorder.drain(("a",)))
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    found.append(recorder.drain(("a",)))
    assert np.concatenate([trace.time_ns for trace in found]).tolist() == list(range(count))


def in_own_thread(work: Callable[[], object]) -> object:
    """Run it where a policy that is left behind ends with the thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.mark.parametrize("policy", ["SCHED_OTHER", "SCHED_BATCH", "SCHED_FIFO"])
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_the_callers_policy_is_restored(policy: str, fails: bool) -> None:
    """Whatever it was before, also after a failure; meanwhile it is real-time, and the background's is not."""
    number = getattr(os, policy)
    seen: dict[str, set[int]] = {}

    def duration(label: str, launch: int) -> int:
        seen.setdefault(label, set()).add(os.sched_getscheduler(0))
        if fails and launch == 6:
            raise DeviceError("told to fail")
        return MS

    def work() -> tuple[int, int]:
        os.sched_setscheduler(0, number, os.sched_param(70 if policy == "SCHED_FIFO" else 0))
        run = dispatcher(
            FakeDevice(duration, clock=RealClock(spin_ns=0)), Entry("face", priority=True), Entry("big", queue=1)
        )
        try:
            run.run(8)
        except DeviceError:
            assert fails
        return os.sched_getscheduler(0), os.sched_getparam(0).sched_priority

    assert in_own_thread(work) == (number, 70 if policy == "SCHED_FIFO" else 0)
    assert seen["face"] == {os.SCHED_FIFO}
    assert os.SCHED_FIFO not in seen["big"]


def test_a_refused_priority_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system refuses after all, its error is raised, and the background thread has ended."""
    change = os.sched_setscheduler

    def refuse(pid: int, policy: int, param: os.sched_param) -> None:
        if policy == os.SCHED_FIFO:
            raise PermissionError(1, "Operation not permitted")
        change(pid, policy, param)

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    run = dispatcher(slow(face=1, big=1), Entry("face", priority=True), Entry("big"))
    with pytest.raises(PermissionError):
        run.run(5)
    assert run.windows == 0
