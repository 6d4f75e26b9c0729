"""Groups of several units on virtual time, and what has to hold of every run."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from fakes import FakeDevice, ListSink, NumberStream
from framefit.core.events import EventType
from framefit.core.grid import Grid
from framefit.core.model import GraphBuilder, Model, TensorInfo
from framefit.core.policy import Rotation
from framefit.core.timetable import PlannedModel
from framefit.core.workload import WhenFull
from framefit.devices.clock import RealClock
from framefit.execution.execution import Execution
from framefit.runtime.channel import FrameChannel, Port, unit_mailboxes
from framefit.runtime.job import Job, reading_job, stage_jobs
from framefit.runtime.log import FrameOutcome, LaunchLog
from framefit.runtime.loop import Dispatcher
from framefit.runtime.reading import FrameObserver, ReadModel, ResultDelivery, ResultStream, result_streams
from framefit.runtime.recovery import FindTarget
from framefit.runtime.streams import Feed
from framefit.runtime.units import UnitAssignment, UnitGroup

__all__ = ["MS", "RATE_HZ", "WINDOW_NS", "Entry", "assert_sound", "fates", "launched", "made", "network", "planned"]

MS = 1_000_000
RATE_HZ = 100.0
WINDOW_NS = 10 * MS


@functools.cache
def network(segments: int) -> Model:
    """So many layers; its second input "number" passes through as an output."""
    b = GraphBuilder("network")
    x, number = b.input("x", (1, 4)), b.input("number", (1,), np.int64)
    for _ in range(segments):
        x = b.op("Relu", x)
    b.output(x)
    b.output(number)
    return b.build()


@dataclass
class Entry:
    """A model of a test's workload: its stages, each a unit's number and the estimates of its segments."""

    name: str
    stages: Sequence[tuple[int, Sequence[int]]]
    priority: bool = False
    slots: int = 2
    queue: int = 2
    every: int = 1
    when_full: WhenFull = "drop-oldest"
    feed: Feed | None = None
    length: int | None = None
    reads: Sequence[str] = ()
    sink: ListSink = field(default_factory=ListSink)

    @property
    def estimates_ns(self) -> list[int]:
        """Of all segments."""
        return [ns for _, estimates in self.stages for ns in estimates]

    @property
    def units(self) -> list[int]:
        """Of all segments."""
        return [unit for unit, estimates in self.stages for _ in estimates]

    def labels(self) -> list[str]:
        """Of all segments."""
        count = len(self.units)
        return [self.name] if count == 1 else [f"{self.name}.{index}" for index in range(count)]


def planned(entries: Sequence[Entry], link_ns: int) -> dict[tuple[str, int], tuple[int, int]]:
    """When each stage of the priority models is due after the release, and until when: one model after the other."""
    free: defaultdict[int, int] = defaultdict(int)
    due: dict[tuple[str, int], tuple[int, int]] = {}
    stages = {entry.name: entry.stages for entry in entries}
    for entry in entries:
        ready = max(
            (due[name, len(stages[name]) - 1][1] + link_ns for name in entry.reads if entry.priority), default=0
        )
        for position, (unit, estimates) in enumerate(entry.stages if entry.priority else ()):
            start = max(ready, free[unit])
            free[unit] = start + sum(estimates)
            due[entry.name, position] = start, free[unit]
            ready = free[unit] + link_ns
    return due


def made(
    device: FakeDevice,
    *entries: Entry,
    guard_ns: int = 0,
    link_ns: int = 0,
    rate_hz: float = RATE_HZ,
    preemptive: Sequence[str] = (),
    find_target: FindTarget | None = None,
) -> tuple[UnitGroup, dict[str, list[Job]]]:
    """A group as a workflow makes it, and each model's jobs; priority entries first."""
    units = [unit.name for unit in device.target.units]
    assignments: dict[str, list[Job]] = {unit: [] for unit in units}
    reserved: dict[str, list[tuple[int, int]]] = {unit: [] for unit in units}
    due, found, first = planned(entries, link_ns), dict[str, list[Job]](), 0
    used = {unit for entry in entries for unit in entry.units}
    reads = any(entry.reads for entry in entries)
    woken = reads and bool(preemptive) and isinstance(device.clock, RealClock)
    mailboxes = unit_mailboxes(device.clock, [unit for number, unit in enumerate(units) if number in used], woken=woken)
    ports = {
        entry.name: [Port(units[unit], mailboxes[units[unit]], number) for unit, number in places]
        for entry, places in zip(entries, _places(entries), strict=True)
    }
    observers: dict[str, list[FrameObserver]] = {entry.name: [] for entry in entries}
    streams: dict[str, list[ResultStream]] = {}
    for entry in entries:
        streams[entry.name] = result_streams([_read(entries, entry, name) for name in entry.reads], entry.queue, 1)
        for source, (name, stream) in enumerate(zip(entry.reads, streams[entry.name], strict=True)):
            unit = ports[name][-1].unit
            observers[name].append(ResultDelivery(device, unit, ports[entry.name][0], stream, source))
    for number, entry in enumerate(entries):
        count = len(entry.units)
        execution = Execution(
            network(count),
            [(layer, layer) for layer in range(count)],
            device,
            [units[unit] for unit in entry.units],
            name=entry.name,
            slots=entry.slots,
        )
        whole = Job(
            execution=execution,
            first_program=first,
            priority=entry.priority,
            estimates_ns=entry.estimates_ns,
            deadline_ns=round(1e9 / rate_hz) if entry.priority else None,
            sources={name: NumberStream(entry.length) for name in ("x", "number")},
            input=FrameChannel(entry.queue, entry.when_full),
            feed=entry.feed or Feed(),
            sinks=[(entry.sink, ["number"])],
            every=entry.every,
            observers=observers[entry.name],
            model=number,
        )
        if entry.reads:
            read = [_read(entries, entry, name) for name in entry.reads]
            whole = reading_job(whole, [found[name][0] for name in entry.reads], read, streams[entry.name])
        between = [16] * len(entry.stages)
        stages = stage_jobs(whole, execution.stages(), execution.slots, between, device, ports[entry.name])
        found[entry.name] = stages
        for position, ((unit, _), job) in enumerate(zip(entry.stages, stages, strict=True)):
            if entry.priority:
                reserved[units[unit]].append((due[entry.name, position][0], len(assignments[units[unit]])))
            assignments[units[unit]].append(job)
        first += count
    group = UnitGroup(
        device,
        device.clock,
        {
            unit: UnitAssignment(
                jobs=jobs,
                service=Rotation(sum(not job.priority for job in jobs)),
                reserved=[sorted(reserved[unit])],
                guard_ns=guard_ns,
                preemptive=unit in preemptive,
            )
            for unit, jobs in assignments.items()
        },
        Grid(rate_hz),
        mailboxes=mailboxes,
        find_target=find_target,
    )
    return group, found


def _places(entries: Sequence[Entry]) -> list[list[tuple[int, int]]]:
    """Unit and number there of each entry's stages."""
    counts: defaultdict[int, int] = defaultdict(int)
    places: list[list[tuple[int, int]]] = []
    for entry in entries:
        places.append([])
        for unit, _ in entry.stages:
            places[-1].append((unit, counts[unit]))
            counts[unit] += 1
    return places


def _read(entries: Sequence[Entry], reader: Entry, name: str) -> ReadModel:
    """Both inputs of a model, of one that it reads; of two one each."""
    (giver,) = (entry for entry in entries if entry.name == name)
    outputs = [tensor.name for tensor in network(len(giver.units)).outputs]
    inputs = {
        "x": (outputs[0], TensorInfo(name="x", dtype="float32", shape=(1, 4))),
        "number": (outputs[1], TensorInfo(name="number", dtype="int64", shape=(1,))),
    }
    if len(reader.reads) > 1:
        own = ["x", "number"][reader.reads.index(name)]
        inputs = {own: inputs[own]}
    plan = PlannedModel(
        name=name, role="background", level=0, reasons=(), duration_ns=0, segments=(), result_age_windows=40
    )
    return ReadModel(plan, inputs, (Fraction(giver.every),))


def fates(run: UnitGroup | Dispatcher, model: int) -> dict[int, FrameOutcome]:
    """What became of each frame of a model; each may have one fate only."""
    rows = [row for row in run.frames.rows().tolist() if row[0] == model]
    assert len({row[1] for row in rows}) == len(rows)
    return {row[1]: FrameOutcome(row[2]) for row in rows}


def launched(group: UnitGroup, entries: Sequence[Entry]) -> list[tuple[str, int, float, float]]:
    """Label, frame, begin and end in milliseconds after the first release, as logged."""
    labels = [label for entry in entries for label in entry.labels()]
    return [
        (labels[row[0]], row[2], (row[3] - group.start_ns) / MS, (row[4] - group.start_ns) / MS)
        for row in group.launches.rows().tolist()
    ]


def assert_sound(
    group: UnitGroup, jobs: Mapping[str, Sequence[Job]], entries: Sequence[Entry], windows: int, link_ns: int
) -> None:
    """Every frame one fate; segments in order, once a frame; no unit does two things; outputs in order and right."""
    rows = group.launches.rows()
    assert (np.diff(rows[:, LaunchLog.STARTED]) >= 0).all()
    unit_of = [unit for entry in entries for unit in entry.units]
    for unit in set(unit_of):
        own = rows[np.asarray(unit_of)[rows[:, LaunchLog.PROGRAM]] == unit]
        assert (own[1:, LaunchLog.STARTED] >= own[:-1, LaunchLog.FINISHED]).all()
    first = 0
    for number, entry in enumerate(entries):
        found = fates(group, number)
        assert sorted(found) == list(range(windows))
        if not entry.reads:
            assert [k for k, fate in found.items() if fate == FrameOutcome.SKIPPED] == [
                k for k in found if k % entry.every
            ]
        done = sorted(frame for frame, fate in found.items() if fate in (FrameOutcome.DONE, FrameOutcome.LATE))
        assert [frame for frame, _ in entry.sink.taken] == done
        assert all(outputs["number"].tolist() == [frame] for frame, outputs in entry.sink.taken)
        count = len(entry.units)
        mine = rows[(rows[:, LaunchLog.PROGRAM] >= first) & (rows[:, LaunchLog.PROGRAM] < first + count)]
        started: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for program, _, frame, begin, end, *_ in mine.tolist():
            started[frame].append((program - first, begin, end))
        for frame, launches in started.items():
            assert [segment for segment, _, _ in launches] == list(range(len(launches)))
            assert (len(launches) == count) == (frame in done)
            for (before, _, end), (after, begin, _) in itertools.pairwise(launches):
                assert begin >= end + (link_ns if entry.units[before] != entry.units[after] else 0)
        pipeline = jobs[entry.name][0].pipeline
        if pipeline is not None:
            assert 0 <= pipeline.most <= entry.slots
            spans = [(spent[0][1], spent[-1][2]) for frame, spent in sorted(started.items()) if frame in done]
            for one, later in zip(spans, spans[entry.slots :], strict=False):
                assert later[0] >= one[1]
        first += count
    trace = group.trace()
    assert (np.diff(trace.time_ns) >= 0).all()
    assert trace.type.tolist().count(EventType.START) == len(rows)
    if isinstance(group._clock, RealClock):
        return  # a frame is handed over before its first launch
    times = np.sort(rows[:, (LaunchLog.STARTED, LaunchLog.FINISHED)].ravel())
    assert trace.time_ns.tolist() == times.tolist()
