"""Windows of differing length, and timetables that change in mid-run: nothing is lost, and nothing is late."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeDevice, ListSink, NumberStream
from framefit import GraphBuilder, Model
from framefit.core.grid import Grid, merged
from framefit.core.policy import Rotation
from framefit.execution.execution import Execution
from framefit.runtime.channel import FrameChannel
from framefit.runtime.job import Job, Part
from framefit.runtime.log import FrameOutcome, LaunchLog
from framefit.runtime.loop import Dispatcher
from framefit.runtime.streams import Feed
from framefit.runtime.switching import Rung, Share

MS = 1_000_000
GUARD_NS = MS // 2
Bounds = tuple[tuple[int, int], ...]


def network(layers: int) -> Model:
    """So many layers; its second input "number" passes through as an output."""
    b = GraphBuilder("network")
    x, number = b.input("x", (1, 4)), b.input("number", (1,), np.int64)
    for _ in range(layers):
        x = b.op("Relu", x)
    b.output(x)
    b.output(number)
    return b.build()


def job(
    device: FakeDevice,
    name: str,
    estimates_ns: Sequence[int],
    *,
    priority: bool = False,
    streams: Sequence[str] = (),
    every: int = 1,
    deadline_ns: int | None = None,
    program: int = 0,
    queue: int = 2,
) -> Job:
    """A model whose layers are its segments, on streams of its own."""
    execution = Execution(
        network(len(estimates_ns)), [(n, n) for n in range(len(estimates_ns))], device, "fake0", name=name
    )
    return Job(
        execution=execution,
        first_program=program,
        priority=priority,
        estimates_ns=list(estimates_ns),
        deadline_ns=deadline_ns,
        sources={name: NumberStream() for name in ("x", "number")},
        input=FrameChannel(queue),
        feed=Feed(streams=frozenset(streams)),
        sinks=[(ListSink(), ["number"])],
        every=every,
        begins=tuple(range(len(estimates_ns))),
    )


def fates(run: Dispatcher, model: int) -> dict[int, FrameOutcome]:
    """What became of each frame of a model; each has one fate only."""
    rows = [row for row in run.frames.rows().tolist() if row[0] == model]
    assert len({row[1] for row in rows}) == len(rows)
    return {row[1]: FrameOutcome(row[2]) for row in rows}


# Windows of differing length


@settings(max_examples=30)
@given(
    rates=st.lists(st.sampled_from([10, 20, 25, 30, 50, 60, 100]), min_size=2, max_size=3, unique=True),
    windows=st.integers(1, 150),
)
def test_each_stream_brings_its_frames_at_its_own_rate(rates: list[int], windows: int) -> None:
    """Frame k of a stream comes at round(k x 1e9 / rate), at every model that reads it and at no other one."""
    grid = merged({str(rate): rate for rate in rates})
    device = FakeDevice(MS // 20)
    jobs = [job(device, f"m{rate}", [MS // 10], streams=[str(rate)], program=n) for n, rate in enumerate(rates)]
    run = Dispatcher(device, device.clock, jobs, grid, 0, service=Rotation(len(jobs)))
    run.run(windows)
    end = grid.release_ns(windows)
    for number, rate in enumerate(rates):
        rows = [row for row in run.frames.rows().tolist() if row[0] == number]
        released = sorted(row[3] - run.start_ns for row in rows)
        expected = [round(k * 1e9 / rate) for k in range(200) if round(k * 1e9 / rate) < end - 1]
        assert all(abs(at - other) <= 1 for at, other in zip(released, expected, strict=True))
        assert set(fates(run, number).values()) == {FrameOutcome.DONE}


def test_a_miss_is_one_of_a_release_of_its_own_stream() -> None:
    """The camera's model is late where it ends after the next image came, not after the next window begins."""
    grid = merged({"audio": 100, "camera": 30})
    device = FakeDevice({"vad": MS, "face": 5 * MS})
    vad = job(device, "vad", [MS], priority=True, streams=["audio"], deadline_ns=grid.period_ns("audio"))
    face = job(
        device, "face", [5 * MS], priority=True, streams=["camera"], deadline_ns=grid.period_ns("camera"), program=1
    )
    due = [
        [(0, n) for n, stream in enumerate(("audio", "camera")) if place in grid.places(stream)] for place in range(12)
    ]
    run = Dispatcher(device, device.clock, [vad, face], grid, 0, service=Rotation(0), reserved=due)
    run.run(24)  # the second image comes 3.3 ms after a block, the next block while its model runs
    assert fates(run, 0) == dict.fromkeys(range(20), FrameOutcome.DONE)
    assert fates(run, 1) == dict.fromkeys(range(6), FrameOutcome.DONE)
    starts = [(started - run.start_ns) / MS for label, started, _ in device.launches if label == "face"]
    assert [round(start, 2) for start in starts[:3]] == [1.0, 33.33, 66.67]
    slow = FakeDevice({"vad": MS, "face": 34 * MS})
    vad = job(slow, "vad", [MS], priority=True, streams=["audio"], deadline_ns=grid.period_ns("audio"))
    face = job(
        slow, "face", [34 * MS], priority=True, streams=["camera"], deadline_ns=grid.period_ns("camera"), program=1
    )
    run = Dispatcher(slow, slow.clock, [vad, face], grid, 0, service=Rotation(0), reserved=due)
    run.run(12)
    assert fates(run, 1)[0] == FrameOutcome.LATE
    assert sum(fate != FrameOutcome.DONE for fate in fates(run, 1).values()) <= 3


# Timetables that change


LAYERS = 6


@st.composite
def courses(draw: st.DrawFn) -> tuple[list[int], list[tuple[Bounds, int]], list[tuple[int, int]]]:
    """Estimates of layers, timetables (a cut and a rate), and at which windows which is asked for."""
    layers = draw(st.lists(st.integers(MS // 20, MS), min_size=LAYERS, max_size=LAYERS))
    timetables = []
    for _ in range(draw(st.integers(2, 4))):
        rate = draw(st.sampled_from([50, 100, 200]))
        room = 10**9 // rate - 2 * MS - GUARD_NS
        cuts = draw(st.sets(st.integers(1, LAYERS - 1)))
        begins, held = [0], 0
        for layer, ns in enumerate(layers):
            if layer and (layer in cuts or held + ns > room):  # no segment is longer than the room
                begins.append(layer)
                held = 0
            held += ns
        timetables.append((tuple((a, b - 1) for a, b in itertools.pairwise([*begins, LAYERS])), rate))
    asked = draw(st.lists(st.tuples(st.integers(0, 50), st.integers(0, len(timetables) - 1)), max_size=8))
    return layers, timetables, sorted(asked)


def rungs(
    device: FakeDevice, face: Job, layers: Sequence[int], timetables: Sequence[tuple[Bounds, int]]
) -> tuple[Job, list[Rung], dict[str, int]]:
    """A background model's job and its timetables; quantiles by label."""
    begins = sorted({first for bounds, _ in timetables for first, _ in bounds})
    finest = [(a, b - 1) for a, b in itertools.pairwise([*begins, LAYERS])]
    place = {first: number for number, first in enumerate([*begins, LAYERS])}
    together = [(place[first], place[last + 1] - 1) for bounds, _ in timetables for first, last in bounds]
    whole = Execution(network(LAYERS), finest, device, "fake0", name="big@finest", together=together)
    longest: dict[str, int] = {}

    def part(execution: Execution, first_program: int, bridge: Part | None) -> Part:
        estimates = [sum(layers[first : last + 1]) for first, last in execution.bounds]
        longest.update(zip(execution.labels, estimates, strict=True))
        return Part(execution, first_program, estimates, None, [first for first, _ in execution.bounds], bridge)

    bridge = part(whole, 1, None)
    found, program = [], 1 + len(finest)
    for number, (bounds, rate) in enumerate(timetables):
        own = part(whole.recut(bounds, f"big@{number}"), program, bridge)
        program += len(bounds)
        deadline_ns = 10**9 // rate
        at = Part(face.execution, 0, face.estimates_ns, deadline_ns, face.begins)
        found.append(Rung(Grid(float(rate)), [Share([[(0, 0)]], GUARD_NS, [at, own])], name=str(number), number=number))
    first = found[0].shares[0].parts[1]
    big = Job(
        execution=first.execution,
        first_program=first.first_program,
        priority=False,
        estimates_ns=first.estimates_ns,
        deadline_ns=None,
        sources={name: NumberStream() for name in ("x", "number")},
        input=FrameChannel(2),
        sinks=[(ListSink(), ["number"])],
        begins=first.begins,
    )
    return big, found, longest


@settings(max_examples=25)
@given(courses(), st.integers(0, 2**32 - 1))
def test_nothing_is_lost_or_late_over_changes(
    switcher: tuple[list[int], list[tuple[Bounds, int]], list[tuple[int, int]]], seed: int
) -> None:
    """Whatever changes when: each frame has one fate, outputs come in order, each release finds its unit free."""
    layers, timetables, asked = switcher
    random = np.random.default_rng(seed)
    longest: dict[str, int] = {"face": 2 * MS}
    device = FakeDevice(lambda label, _: int(random.integers(1, longest[label] + 1)))
    face = job(device, "face", [2 * MS], priority=True, deadline_ns=10**9 // timetables[0][1])
    big, ladder, quantiles = rungs(device, face, layers, timetables)
    longest |= quantiles
    run = Dispatcher(device, device.clock, [face, big], Grid(float(timetables[0][1])), GUARD_NS, service=Rotation(1))
    run.switcher.start_under(ladder[0])
    for window, number in asked:
        run.switcher.turn(lambda _, rung=ladder[number]: rung, window)  # type: ignore[misc]
    run.run(60)
    assert fates(run, 0) == dict.fromkeys(range(60), FrameOutcome.DONE)
    assert sorted(fates(run, 1)) == list(range(60))
    starts = [started for label, started, _ in device.launches if label == "face"]
    assert starts == [run.release(window) for window in range(60)]
    releases = [run.release(window) for window in range(61)]
    for label, started, _ in device.launches:
        upcoming = next((at for at in releases if at > started), releases[-1])
        assert label == "face" or started + longest[label] + GUARD_NS <= upcoming
    sink = big.sinks[0][0]
    assert isinstance(sink, ListSink)
    done = [frame for frame, fate in fates(run, 1).items() if fate == FrameOutcome.DONE]
    assert [frame for frame, _ in sink.taken] == sorted(done)
    assert all(outputs["number"] == [frame] for frame, outputs in sink.taken)
    in_force = [timetables[stretch.rung.number][1] for window in range(60) for stretch in [run.stretch(window)]]
    assert [b - a for a, b in itertools.pairwise(releases)] == [10**9 // rate for rate in in_force]
    last = dict(asked)  # of those for one window the last one counts in the end
    if asked and max(last) <= 50:
        assert run.stretches[-1].rung.number == last[max(last)]


@settings(max_examples=25)
@given(courses(), st.integers(0, 2**32 - 1))
def test_every_layer_of_every_frame_runs_once(
    switcher: tuple[list[int], list[tuple[Bounds, int]], list[tuple[int, int]]], seed: int
) -> None:
    """A frame in flight goes on where it is: the segments that it went through are the model, without gaps."""
    layers, timetables, asked = switcher
    random = np.random.default_rng(seed)
    longest: dict[str, int] = {"face": 2 * MS}
    device = FakeDevice(lambda label, _: int(random.integers(1, longest[label] + 1)))
    face = job(device, "face", [2 * MS], priority=True)
    big, ladder, quantiles = rungs(device, face, layers, timetables)
    longest |= quantiles
    run = Dispatcher(device, device.clock, [face, big], Grid(float(timetables[0][1])), GUARD_NS, service=Rotation(1))
    run.switcher.start_under(ladder[0])
    for window, number in asked:
        run.switcher.turn(lambda _, rung=ladder[number]: rung, window)  # type: ignore[misc]
    run.run(60)
    parts = [part for rung in ladder for part in (rung.shares[0].parts[1], rung.shares[0].parts[1].finest)]
    bounds = {
        part.first_program + index: run_of
        for part in parts
        if part is not None and isinstance(part.execution, Execution)
        for index, run_of in enumerate(part.execution.bounds)
    }
    walked: dict[int, list[tuple[int, int]]] = {}
    for row in run.launches.rows().tolist():
        if row[LaunchLog.PROGRAM]:
            walked.setdefault(row[LaunchLog.FRAME], []).append(bounds[row[LaunchLog.PROGRAM]])
    for frame, fate in fates(run, 1).items():
        if fate == FrameOutcome.DONE:
            edges = [0, *(last + 1 for _, last in walked[frame])]
            assert [first for first, _ in walked[frame]] == edges[:-1]
            assert edges[-1] == LAYERS


def test_other_rates_begin_where_every_model_would_have_had_its_turn() -> None:
    """A model of every second window: a change that is asked for in between waits for its turn."""
    device = FakeDevice({"face": MS})
    face = job(device, "face", [MS], priority=True, every=2, deadline_ns=10 * MS)
    run = Dispatcher(device, device.clock, [face], Grid(100.0), 0, service=Rotation(0), reserved=[[(0, 0)], []])
    now = run.stretches[0].rung
    run.switcher.turn(lambda _: Rung(Grid(50.0), now.shares), 3)
    run.run(10)
    assert [stretch.window for stretch in run.stretches] == [0, 4]
    starts = [(started - run.start_ns) / MS for _, started, _ in device.launches]
    assert starts == [0, 20, 40, 80, 120]
    done = [frame for frame, fate in fates(run, 0).items() if fate == FrameOutcome.DONE]
    assert done == [0, 2, 4, 6, 8]


def test_a_frame_keeps_the_deadline_of_its_own_release() -> None:
    """One that was released before the rate rose has the time until the next release then."""
    device = FakeDevice(lambda _, number: (18 if number == 1 else 1) * MS)
    face = job(device, "face", [MS], priority=True, deadline_ns=20 * MS)
    run = Dispatcher(device, device.clock, [face], Grid(50.0), 0, service=Rotation(0))
    now = run.stretches[0].rung
    faster = Part(face.execution, 0, face.estimates_ns, 10 * MS, face.begins)
    run.switcher.turn(lambda _: Rung(Grid(100.0), [Share(now.shares[0].reserved, 0, [faster])]), 2)
    run.run(5)
    assert set(fates(run, 0).values()) == {FrameOutcome.DONE}


def test_what_is_in_force_already_changes_nothing() -> None:
    """No stretch of windows begins for it."""
    device = FakeDevice({"face": MS})
    face = job(device, "face", [MS], priority=True)
    run = Dispatcher(device, device.clock, [face], Grid(100.0), 0, service=Rotation(0))
    run.switcher.turn(lambda now: now, 2)
    run.run(5)
    assert len(run.stretches) == 1
