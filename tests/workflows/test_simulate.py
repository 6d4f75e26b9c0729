"""Described devices, simulated: the same files as a run's, exact to the nanosecond and from one seed."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import Phase, assume, event, given, settings
from hypothesis import strategies as st

from framefit import (
    FramefitError,
    GraphBuilder,
    InfeasibleError,
    InputError,
    Plan,
    RunResult,
    Timetable,
    plan,
    resolve_target,
    run,
    simulate,
)
from framefit.core.events import EventType, Trace
from framefit.core.files import read_record
from framefit.core.model.builtin import BUILTIN
from framefit.core.program import read_program
from framefit.core.run_record import Metrics, Percentiles, RunInfo
from framefit.devices.clock import VirtualClock
from framefit.devices.device import Binding, Completion
from framefit.devices.npu.device import NpuDevice
from networks import NETWORKS, difference
from workloads import listing, no_noise, write_app, write_models, write_target

FRAMES = 40
RATE_HZ = 80  # windows of 12.5 ms: shorter than the chain
SMALL_NS, SMALL_LAYERS = 29_920, 2
LAUNCH_NS = 20_000
VARY = {"created", "command"}  # in run.json, of two runs that are the same


@pytest.fixture(scope="module", autouse=True)
def _measures_nothing() -> Iterator[None]:
    """The description says it all: whoever measures in a test of this file, fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("measured")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("framefit.planning.durations.measure", refuse)
        patch.setattr("framefit.planning.durations.measure_floor", refuse)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, a board, and a camera of 40 frames."""
    folder = write_models(tmp_path_factory.mktemp("simulate"))
    NETWORKS["lstm"]().save(folder / "lstm.onnx")
    write_target(folder)
    frames = np.random.default_rng(1).standard_normal((FRAMES, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "camera.npz", frames=frames)
    return folder


def on_board(folder: Path, *, target: str = "target.toml", **given: Any) -> Path:
    """An ``app.toml`` for a described target; the guard follows from the segments."""
    keys: dict[str, Any] = {"rate_hz": RATE_HZ, "guard_ms": None, "schedule": ""}
    return write_app(folder, target=target, **keys | given)


@pytest.fixture(scope="module")
def planned(folder: Path) -> Plan:
    """A small priority model, and a background model that had to be cut."""
    result = plan(on_board(folder))
    assert result.timetable.feasible
    assert len(result.timetable.model("chain").segments) >= 2
    return result


@pytest.fixture(scope="module")
def ran(planned: Plan, folder: Path) -> RunResult:
    """Three hundred windows of it."""
    return simulate(planned, windows=300, seed=3, output=folder / "ran")


def rows(folder: Path) -> list[dict[str, str]]:
    """Lines of ``frames.csv``."""
    with (folder / "frames.csv").open() as file:
        return list(csv.DictReader(file))


def contents(folder: Path) -> dict[str, Any]:
    """Files of a run folder; of ``run.json`` what does not hang on the hour and the caller."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir()}
    info = json.loads(found["run.json"])
    return found | {"run.json": {key: value for key, value in info.items() if key not in VARY}}


def packets(result: RunResult) -> list[tuple[str, int, int, int]]:
    """What the launches make a device say that loses nothing: kind, type, time and number of the operation.

    Times from the launches' begins and ends; only those of first and last operations are known (-1).
    """
    program, launches = read_program(result.folder / "program.json")
    assert launches is not None
    ends = result.seen.time_ns[1::2]
    said = []
    for index, begin, end in zip(launches.program, launches.submit_ns, ends, strict=True):
        operations = [one for group in program.programs[index].groups for one in group.operations]
        for one in operations:
            first, last = one is operations[0], one is operations[-1]
            said.append((one.kind, EventType.START, int(begin) if first else -1, one.index))
            said.append((one.kind, EventType.END, int(end) if last else -1, one.index))
    return said


@pytest.mark.timed
def test_a_simulation_leaves_what_a_run_leaves(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files as of a run of the same plan, equal where only the plan counts, and it can be simulated again."""
    no_noise(monkeypatch)
    monkeypatch.setattr("framefit.runtime.session._LEAST_FLOOR", 3)
    both = plan(on_board(folder), in_real_time=True)
    ran = simulate(both, windows=30, seed=3, output=tmp_path / "ran")
    real = run(both, windows=3, output=tmp_path / "real")
    assert {path.name for path in real.folder.iterdir()} == {path.name for path in ran.folder.iterdir()}
    for name in ("timetable.json", "program.json"):
        assert (real.folder / name).read_bytes() == (ran.folder / name).read_bytes()
    again = simulate(both, windows=30, seed=3, output=tmp_path / "again")
    assert contents(again.folder) == contents(ran.folder)


def test_the_files_agree_with_each_other(ran: RunResult) -> None:
    """All can be read back; fates, launches and metrics tell the same story."""
    info = read_record(ran.folder / "run.json", RunInfo)
    assert (info.seed, info.interrupted, info.error, info.warnings) == (3, False, None, ())
    assert info.workload["target"] == "target.toml"
    assert msgspec.structs.replace(read_record(ran.folder / "timetable.json", Timetable), source=None) == ran.timetable
    metrics = read_record(ran.folder / "metrics.json", Metrics)
    assert metrics == ran.metrics
    program, launches = read_program(ran.folder / "program.json")
    assert launches is not None
    assert (metrics.windows, metrics.misses) == (300, ())
    fates = rows(ran.folder)
    for model in metrics.models:
        mine = [row for row in fates if row["model"] == model.name]
        done = [row for row in mine if row["fate"] == "done"]
        ages = [int(row["finished_ns"]) - int(row["released_ns"]) for row in done]
        assert [int(row["frame"]) for row in mine if row["released_ns"]] == list(range(300))
        assert (model.releases, model.completed, model.missed) == (300, len(done), 0)
        assert model.dropped == 300 - len(done)
        assert model.release_to_finish_ns == Percentiles.of(ages)
        last = [number for number, one in enumerate(program.programs) if one.model == model.name][-1]
        assert len(done) == (launches.program == last).sum()
    small, chain = metrics.models
    assert small.release_to_start_ns.max == 0  # nothing takes time but the device
    assert metrics.dispatch_ns.max == 0
    assert chain.result_age_windows_max <= (ran.timetable.model("chain").result_age_windows or 0)
    assert chain.throughput_hz <= 1.001 * min(chain.fluid_bound_hz or 0, chain.packing_bound_hz or 0)


def test_launches_take_what_the_description_says(ran: RunResult) -> None:
    """Medians are the nominal times, the spread is the board's 2 %, and 1 % exceed the planned quantile."""
    took = np.diff(ran.seen.time_ns.reshape(-1, 2)).ravel()
    for number, segment in enumerate(s for model in ran.timetable.models for s in model.segments):
        mine = took[ran.launches.program == number] / segment.median_ns
        assert abs(np.median(mine) - 1) < 0.006
        assert 0.015 < mine.std() < 0.025
    assert 0.002 < ran.metrics.estimate_exceeded_ratio < 0.02
    assert ran.timetable.models[0].segments[0].median_ns == SMALL_NS


@pytest.mark.parametrize(
    ("unit", "selected"),
    [
        ("operations = true", None),
        ("", None),
        ("operations = true\nresolution_ns = 26\ntime_bits = 20", None),
        ('selected = ["conv"]', ("conv",)),
    ],
    ids=["numbered", "unnumbered", "coarse and wrapping", "selected"],
)
def test_packets_pair_up_with_the_program(
    unit: str, selected: tuple[str, ...] | None, folder: Path, tmp_path: Path
) -> None:
    """In launch order, each operation's START and END, of the unit's core, at the times that the host saw."""
    write_target(folder, "traced.toml", trace=unit)
    result = simulate(on_board(folder, target="traced.toml"), windows=60, output=tmp_path / "out")
    trace, meta = Trace.read(result.folder / "trace.npz"), result.trace.meta
    expected = [one for one in packets(result) if selected is None or one[0] in selected]
    assert [(trace.kinds[i], t) for i, t in zip(trace.id, trace.type, strict=True)] == [one[:2] for one in expected]
    assert (trace.core == 3).all()
    numbers = [one[3] for one in expected]
    assert trace.operation.tolist() == (numbers if "operations" in unit else [-1] * len(numbers))
    assert len(trace.loss_after) == meta.overwritten_events == 0
    known = np.asarray([one[2] for one in expected])
    ticks = known // meta.resolution_ns
    if meta.wrap_bits is not None:
        assert ticks.max() >= 1 << meta.wrap_bits
        ticks = ticks & ((1 << meta.wrap_bits) - 1)
    assert (known >= 0).any() or selected
    stamped = ticks * meta.resolution_ns
    assert np.array_equal(trace.time_ns[known >= 0], stamped[known >= 0])


def test_a_model_without_work_is_what_its_packets_say(folder: Path, tmp_path: Path) -> None:
    """A view costs nothing; program and trace still name one kind."""
    b = GraphBuilder("view")
    b.output(b.op("Flatten", b.input("image", (1, 3, 16, 16))))
    b.build().save(folder / "view.onnx")
    write_target(folder, "free.toml", host="inference_ns = 0")
    app = on_board(folder, target="free.toml", priority=["view"], background=[])
    result = simulate(app, windows=5, output=tmp_path / "out")
    assert [result.trace.kinds[i] for i in result.trace.id] == [one[0] for one in packets(result)] == ["reformat"] * 10


def test_the_seed_is_the_run(planned: Plan, ran: RunResult, folder: Path, tmp_path: Path) -> None:
    """Planned and simulated anew with one seed, all files are equal byte by byte; with another one launches differ."""
    again = simulate(on_board(folder), windows=300, seed=3, output=tmp_path / "again")
    assert contents(again.folder) == contents(ran.folder)
    other = simulate(planned, windows=300, seed=4, output=tmp_path / "other")
    assert not np.array_equal(other.launches.submit_ns, ran.launches.submit_ns)
    assert other.timetable == ran.timetable


def test_outputs_are_the_runtimes_and_take_no_time(folder: Path, tmp_path: Path) -> None:
    """With outputs, sinks hold what a plain loop gives, and everything happens when it would without."""
    sinks = '[[outputs]]\nmodel = "small"\nsink = "small.npz"\n[[outputs]]\nmodel = "chain"\nsink = "chain.jsonl"\n'
    app = on_board(folder, stream='source = "camera.npz"', more=sinks)
    timed = simulate(app, windows=FRAMES, output=tmp_path / "timed")
    assert not list(folder.glob("small.npz"))
    computed = simulate(app, windows=1000, outputs=True, output=tmp_path / "computed")
    assert computed.metrics.windows == FRAMES  # the camera ends
    assert not computed.interrupted
    assert np.array_equal(timed.launches.submit_ns, computed.launches.submit_ns)
    assert np.array_equal(timed.launches.program, computed.launches.program)
    assert np.array_equal(timed.trace.time_ns, computed.trace.time_ns)
    assert timed.frames == computed.frames
    assert timed.metrics == computed.metrics
    frames = np.load(folder / "camera.npz")["frames"]
    with np.load(folder / "small.npz") as archive:
        found = {"small": dict(zip(archive["frame"].tolist(), archive["pooled"], strict=True))}
    lines = [json.loads(line) for line in (folder / "chain.jsonl").read_text().splitlines()]
    found["chain"] = {line["frame"]: np.asarray(line["pooled"], np.float32) for line in lines}
    for name, outputs in found.items():
        done = [int(r["frame"]) for r in rows(computed.folder) if r["model"] == name and r["finished_ns"]]
        assert list(outputs) == done
        session = ort.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for frame, pooled in outputs.items():
            (expected,) = session.run(None, {"image": frames[frame][None]})
            assert difference({"pooled": expected}, {"pooled": pooled}) <= 1e-4
    assert len(found["small"]) == FRAMES
    assert len(found["chain"]) > FRAMES // 2


def test_streams_do_not_end_where_only_time_passes(folder: Path, tmp_path: Path) -> None:
    """Without outputs nothing is read: more windows than the camera has frames."""
    app = on_board(folder, stream='source = "camera.npz"')
    result = simulate(app, windows=FRAMES + 5, output=tmp_path / "out")
    assert result.metrics.windows == FRAMES + 5
    assert result.metrics.streams[0].received == FRAMES + 5


def test_state_goes_from_frame_to_frame_and_begins_anew(folder: Path, tmp_path: Path) -> None:
    """A recurrent model gives what a loop gives, in the second simulation of a plan as in the first."""
    sound = np.random.default_rng(2).standard_normal((12, 4, 1, 10)).astype(np.float32)
    np.savez(folder / "sound.npz", sound)
    app = on_board(
        folder,
        priority=["lstm"],
        background=[],
        stream='source = "sound.npz"',
        model='inputs = { sound = "camera" }\nstate = { hidden = "next_hidden", cell = "next_cell" }',
        more='[[outputs]]\nmodel = "lstm"\nsink = "speech.npz"\n',
    )
    result = plan(app)
    session = ort.InferenceSession(folder / "lstm.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for number in range(2):
        simulate(result, windows=11, outputs=True, output=tmp_path / str(number), force=True)
        hidden = cell = np.zeros((1, 1, 8), np.float32)
        with np.load(folder / "speech.npz") as archive:
            assert archive["frame"].tolist() == list(range(11))
            for frame in range(11):
                given = session.run(names, {"sound": sound[frame], "hidden": hidden, "cell": cell})
                outputs = dict(zip(names, given, strict=True))
                hidden, cell = outputs["next_hidden"], outputs["next_cell"]
                assert difference(outputs, {name: archive[name][frame] for name in names}) <= 1e-4


def test_several_frames_at_once_and_functions(folder: Path, tmp_path: Path) -> None:
    """Frames are consumed in pairs, outputs given out in threes and changed by a function, times as without."""
    (folder / "halving.py").write_text("def half(outputs):\n    return {'half': outputs['pooled'] / 2}\n")
    b = GraphBuilder("pair")
    x = b.conv(b.input("image", (2, 3, 16, 16)), 8, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    b.build().save(folder / "pair.onnx")
    app = on_board(
        folder,
        background=["pair"],
        stream='source = "camera.npz"\nqueue = 2',
        model='aggregate = 3\npostprocess = "halving:half"',
        last="frames = 2",
        more='[[outputs]]\nmodel = "small"\nsink = "threes.jsonl"\n[[outputs]]\nmodel = "pair"\nsink = "pairs.npz"\n',
    )
    computed = simulate(app, outputs=True, output=tmp_path / "computed")
    timed = simulate(app, windows=FRAMES, output=tmp_path / "timed")
    assert np.array_equal(timed.launches.submit_ns, computed.launches.submit_ns)
    assert timed.frames == computed.frames
    small = ort.InferenceSession(folder / "small.onnx", providers=["CPUExecutionProvider"])
    pair = ort.InferenceSession(folder / "pair.onnx", providers=["CPUExecutionProvider"])
    frames = np.load(folder / "camera.npz")["frames"]
    stacks = [json.loads(line) for line in (folder / "threes.jsonl").read_text().splitlines()]
    assert [stack["frame"] for stack in stacks] == [*range(2, FRAMES, 3), FRAMES - 1]
    halves = [small.run(None, {"image": frames[k][None]})[0][0] / 2 for k in range(FRAMES)]
    flat = np.concatenate([np.asarray(stack["half"], np.float32).reshape(-1, 8, 1, 1) for stack in stacks])
    assert difference({"half": np.asarray(halves)}, {"half": flat}) <= 1e-4
    with np.load(folder / "pairs.npz") as archive:
        assert archive["frame"].tolist() == list(range(1, FRAMES, 2))
        for frame, pooled in zip(archive["frame"], archive["pooled"], strict=True):
            (expected,) = pair.run(None, {"image": frames[frame - 1 : frame + 1]})
            assert difference({"pooled": expected}, {"pooled": pooled}) <= 1e-4


@pytest.mark.parametrize("outputs", [False, True])
def test_a_stream_that_waits_loses_nothing(outputs: bool, folder: Path, tmp_path: Path) -> None:
    """The chain takes more than a window: its stream waits for it, and each frame that came is done by both."""
    app = on_board(folder, stream='source = "camera.npz"\nqueue = 1\nwhen_full = "block"')
    result = simulate(app, windows=50, outputs=outputs, output=tmp_path / "out")
    (camera,) = result.metrics.streams
    assert 0 < camera.waited_windows == 50 - camera.received
    ended = {"done": camera.received, "dropped": 0}
    for name, unfinished in (("small", 0), ("chain", camera.dropped)):
        fates = [row["fate"] for row in rows(result.folder) if row["model"] == name]
        assert [fates.count(fate) for fate in ended] == [camera.received - unfinished, unfinished]
    assert camera.dropped <= 2  # in flight or waiting at the end


def test_a_small_buffer_loses_packets_and_says_so(folder: Path, tmp_path: Path) -> None:
    """What was lost is counted and marked where it is missing; nothing else about the run changes."""
    results = {}
    for name, unit in {
        "all": "operations = true",
        "few": "operations = true\nbuffer_events = 12\ndrain_rate_hz = 2000",
        "unmarked": "buffer_events = 12\ndrain_rate_hz = 2000\nloss_markers = false",
    }.items():
        write_target(folder, "lossy.toml", trace=unit)
        results[name] = simulate(on_board(folder, target="lossy.toml"), windows=40, output=tmp_path / name)
    whole, few, unmarked = (result.trace for result in results.values())
    assert np.array_equal(results["all"].launches.submit_ns, results["few"].launches.submit_ns)
    assert 0 < len(few) == len(unmarked) < len(whole)
    assert few.meta.lost_events == len(whole) - len(few)
    assert few.meta.buffer_events == 12
    assert (len(unmarked.loss_after), unmarked.meta.lost_events) == (0, None)
    key = lambda trace: list(zip(trace.time_ns.tolist(), trace.id.tolist(), trace.type.tolist(), strict=True))  # noqa: E731
    left, gaps = iter(enumerate(key(whole))), []
    for position, packet in enumerate(key(few)):
        before = next(left)
        if before[1] != packet:
            gaps.append(position)
            assert any(one == packet for _, one in left)
    assert gaps == [position for position in few.loss_after.tolist() if position < len(few)]
    assert len(gaps) > 5
    stored = Trace.read(results["few"].folder / "trace.npz")
    assert stored.loss_after.tolist() == few.loss_after.tolist()
    assert stored.meta == few.meta


def test_a_long_simulation_keeps_the_last_events_and_says_so(
    ran: RunResult, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more packets than are kept, the latest remain; trace.npz and run.json say how many are gone."""
    monkeypatch.setattr("framefit.runtime.log._MOST_PACKETS", 700)
    monkeypatch.setattr("framefit.runtime.log._MOST_IN_MEMORY", 1)
    monkeypatch.setattr("framefit.runtime.loop._DRAIN_WINDOWS", 4)
    monkeypatch.setattr("framefit.workflows.record._MOST_SHOWN", 250)
    long = simulate(on_board(folder), windows=300, seed=3, output=tmp_path / "long")
    trace = Trace.read(long.folder / "trace.npz")
    gone = trace.meta.overwritten_events
    assert 500 < len(trace) == len(ran.trace) - gone < 900
    for column in ("time_ns", "id", "type", "core", "operation"):
        assert np.array_equal(getattr(trace, column), getattr(ran.trace, column)[gone:])
    assert np.array_equal(long.launches.submit_ns, ran.launches.submit_ns)
    assert long.metrics == ran.metrics
    count = len(ran.launches)
    assert read_record(long.folder / "run.json", RunInfo).warnings == (
        f"trace.pftrace and run.svg show the last 250 of {count} launches",
        f"trace.npz holds the last {len(trace)} events; {gone} before them are not kept",
    )


def uncut(planned: Plan) -> Plan:
    """The same models whole; background ones start whenever the unit is free."""
    models = []
    for model in planned.timetable.models:
        first, last = model.segments[0], model.segments[-1]
        whole = msgspec.structs.replace(
            last,
            index=0,
            first_layer=first.first_layer,
            span=(first.span[0], last.span[1]),
            duration_ns=model.duration_ns if model.role == "priority" else 0,
            median_ns=model.whole_ns,
        )
        models.append(msgspec.structs.replace(model, segments=(whole,)))
    windows = tuple(
        msgspec.structs.replace(window, slots=tuple(slot for slot in window.slots if slot.segment == 0))
        for window in planned.timetable.windows
    )
    timetable = msgspec.structs.replace(planned.timetable, models=tuple(models), guard_ns=0, windows=windows)
    return dataclasses.replace(planned, timetable=timetable)


def test_the_timetable_never_misses_where_whole_models_do(folder: Path, tmp_path: Path) -> None:
    """A detector at 150 Hz and a depth network longer than the window, on the one unit of the built-in VPU."""
    for name in ("detector", "depth"):
        BUILTIN[name](0).save(folder / f"{name}.onnx")
    app = on_board(
        folder, target="vpu", priority=["detector"], background=["depth"], rate_hz=150, stream='source = "synthetic"'
    )
    result = plan(app)
    timetable = result.timetable
    depth = timetable.model("depth")
    assert (result.opened().models[1].whole.expected_ns(0), len(timetable.units)) > (timetable.window_ns, 1)
    assert len(depth.segments) >= 2
    cut = simulate(result, windows=1000, output=tmp_path / "cut")
    assert [model.missed for model in cut.metrics.models] == [0, 0]
    assert cut.metrics.models[1].completed > 250
    whole = simulate(uncut(result), windows=1000, output=tmp_path / "whole")
    detector = whole.metrics.models[0]
    assert detector.missed > 100
    assert len(whole.metrics.misses) == detector.missed
    late = [row for row in rows(whole.folder) if row["model"] == "detector" and row["fate"] != "done"]
    assert len(late) == detector.missed


def test_stalls_are_reported_not_planned(folder: Path, tmp_path: Path) -> None:
    """A device that stalls for three windows now and then: each miss is a line with its cause."""
    write_target(folder, "stalling.toml", variation="stall_rate_hz = 2\nstall_ns = 40_000_000")
    result = simulate(on_board(folder, target="stalling.toml"), windows=400, output=tmp_path / "out")
    small = result.metrics.models[0]
    assert 4 < small.missed < 100
    assert len(result.metrics.misses) == small.missed
    assert {miss.model for miss in result.metrics.misses} == {"small"}
    took = np.diff(result.seen.time_ns.reshape(-1, 2)).ravel()
    assert 2 <= (took > 40_000_000).sum() <= 20


def test_stopping_saves_what_was_simulated(planned: Plan, ran: RunResult, tmp_path: Path) -> None:
    """``stop`` ends it; the folder is complete, says so, and holds the beginning of the longer one."""
    begun = [0]

    def idle(windows: int, count: int) -> None:
        assert count == 300
        begun[0] = windows

    result = simulate(planned, windows=300, seed=3, output=tmp_path / "out", on_idle=idle, stop=lambda: begun[0] >= 20)
    assert result.interrupted
    assert 20 <= result.metrics.windows < 30
    info = read_record(result.folder / "run.json", RunInfo)
    assert (info.interrupted, info.error) == (True, None)
    count = len(result.launches)
    assert result.launches.submit_ns.tolist() == ran.launches.submit_ns[:count].tolist()
    assert len(result.trace) == len(packets(result))
    assert {path.name for path in result.folder.iterdir()} == {path.name for path in ran.folder.iterdir()}


def test_little_lies_between_a_release_and_its_launch(
    planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where caches are cold, each function called takes about a microsecond; the same counts in virtual time."""
    calls, released, counts = [0], [-1], list[int]()
    sleep, submit = VirtualClock.sleep_until_ns, NpuDevice.submit

    def note_release(clock: VirtualClock, time_ns: int) -> None:
        sleep(clock, time_ns)
        released[0] = calls[0]

    def note_launch(device: NpuDevice, binding: Binding) -> Completion:
        if released[0] >= 0:
            counts.append(calls[0] - released[0])
        done = submit(device, binding)  # in which virtual time passes, too
        released[0] = -1
        return done

    def count(frame: object, event: str, argument: object) -> None:
        calls[0] += event == "call"

    monkeypatch.setattr(VirtualClock, "sleep_until_ns", note_release)
    monkeypatch.setattr(NpuDevice, "submit", note_launch)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        simulate(planned, windows=20, outputs=True, output=tmp_path / "out")
    finally:
        sys.setprofile(before)
    assert len(counts) >= 10
    assert np.median(counts) <= 40


def test_stopping_before_the_first_window_leaves_one(planned: Plan, ran: RunResult, tmp_path: Path) -> None:
    """Who asked while the plan was made gets a readable folder all the same."""
    result = simulate(planned, windows=300, output=tmp_path / "out", stop=lambda: True)
    assert result.interrupted
    assert read_record(result.folder / "metrics.json", Metrics).windows == 1
    assert {path.name for path in result.folder.iterdir()} == {path.name for path in ran.folder.iterdir()}
    assert Trace.read(result.folder / "trace.npz").meta == ran.trace.meta


def test_a_sink_that_fails_loses_nothing_else(folder: Path, tmp_path: Path) -> None:
    """Its error ends the simulation and is in run.json; what happened until then is saved."""
    (folder / "failing.py").write_text(
        "def take(frame, outputs):\n    if frame == 2:\n        raise ValueError('no')\n"
    )
    app = on_board(folder, more='[[outputs]]\nmodel = "small"\nsink = "failing:take"\n')
    with pytest.raises(FramefitError, match="no"):
        simulate(app, windows=50, outputs=True, output=tmp_path / "out")
    info = read_record(tmp_path / "out" / "run.json", RunInfo)
    assert not info.interrupted
    assert "no" in (info.error or "")
    assert 3 <= read_record(tmp_path / "out" / "metrics.json", Metrics).windows < 50


# Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "mine.toml"])
def test_this_machine_cannot_be_simulated(target: str, folder: Path, tmp_path: Path) -> None:
    """Neither by name nor described; the remedy names what can, and nothing is measured to find out."""
    (folder / "mine.toml").write_text('name = "mine"\nkind = "ort"\n')
    told: list[str] = []
    with pytest.raises(InputError, match="cannot be simulated") as error:
        simulate(on_board(folder, target=target), windows=3, output=tmp_path / "out", notify=told.append)
    assert "framefit targets" in (error.value.remedy or "")
    assert "framefit run" in (error.value.remedy or "")
    assert (told, listing(tmp_path)) == ([], {})


@pytest.mark.parametrize("length", [{"windows": 0}, {"seconds": 0.0}, {"windows": 3, "seconds": 1.0}])
def test_a_length_has_to_be_clear(length: dict[str, Any], planned: Plan, tmp_path: Path) -> None:
    """Nothing to simulate, or two lengths at once, is an error of the caller's."""
    with pytest.raises(InputError):
        simulate(planned, output=tmp_path / "out", **length)
    assert listing(tmp_path) == {}


def test_lengths(planned: Plan, tmp_path: Path) -> None:
    """Seconds are the device's; ten of them where nothing is said."""
    assert simulate(planned, seconds=0.5, output=tmp_path / "half").metrics.windows == RATE_HZ // 2
    assert simulate(planned, output=tmp_path / "default").metrics.windows == 10 * RATE_HZ


def test_what_exists_is_left_alone(planned: Plan, folder: Path, tmp_path: Path) -> None:
    """Run folder and sinks are overwritten only when asked; sinks of others stay where no outputs are computed."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    before = listing(tmp_path)
    with pytest.raises(InputError, match="already exists"):
        simulate(planned, windows=3, output=tmp_path / "out")
    assert listing(tmp_path) == before
    (tmp_path / "out" / "run.json").write_text("{}")  # else it is no run folder
    simulate(planned, windows=3, output=tmp_path / "out", force=True)
    assert not (tmp_path / "out" / "mine.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (folder / "kept.jsonl").write_text("mine")
    app = on_board(folder, more='[[outputs]]\nmodel = "small"\nsink = "kept.jsonl"\n')
    with pytest.raises(InputError, match="already exists"):
        simulate(app, windows=3, outputs=True, output=tmp_path / "other")
    simulate(app, windows=3, output=tmp_path / "timed")
    assert (folder / "kept.jsonl").read_text() == "mine"
    assert not (tmp_path / "other").exists()


def test_an_infeasible_plan_is_not_simulated(folder: Path, tmp_path: Path) -> None:
    """The binding constraint with its fix, and no folder."""
    with pytest.raises(InfeasibleError, match="deadline") as error:
        simulate(on_board(folder, model="deadline_ms = 0.001"), windows=3, output=tmp_path / "out")
    assert "deadline_ms" in (error.value.remedy or "")
    assert listing(tmp_path) == {}


# Any workload --------------------------------------------------------------------------------


@st.composite
def variations(draw: st.DrawFn) -> str:
    """Of a target: jitter, its cut, and drift."""
    sigma, most = draw(st.sampled_from([0.0, 0.02, 0.2])), draw(st.sampled_from([0.0, 0.1, 0.4]))
    drift, period = draw(st.sampled_from([0.0, 0.05, 0.2])), draw(st.sampled_from([7.0, 90.0]))
    return f"sigma_ratio = {sigma}\nmost_ratio = {most}\ndrift_ratio = {drift}\ndrift_period_ms = {period}"


# Not shrunk: that would plan anew for minutes, and examples are small.
@settings(deadline=None, max_examples=6, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    rate_hz=st.sampled_from([20, 45, 60, 110, 170]),
    variation=variations(),
    position=st.sampled_from(["start", "middle", "end"]),
    quantile=st.sampled_from([0.5, 0.9, 0.999]),
    every=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    background=st.sampled_from([["chain"], ["chain", "small2"], ["small2"], []]),
    seed=st.integers(0, 2**31),
)
def test_feasible_means_never_late(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    rate_hz: int,
    variation: str,
    position: str,
    quantile: float,
    every: tuple[int, int],
    background: list[str],
    seed: int,
) -> None:
    """Whatever the beat and however the device varies, short of stalls: a guard that follows from it is enough."""
    (folder / "small2.onnx").write_bytes((folder / "small.onnx").read_bytes())
    write_target(folder, "any.toml", variation=variation)
    app = on_board(
        folder,
        target="any.toml",
        rate_hz=rate_hz,
        background=background,
        schedule=f'priority_position = "{position}"\nquantile = {quantile}',
        model=f"every = {every[0]}",
        last=f"every = {every[1]}" if background else "",
    )
    result = plan(app)
    event(f"feasible: {result.timetable.feasible}")
    assume(result.timetable.feasible)
    out = tmp_path_factory.mktemp("any") / "out"
    simulated = simulate(result, windows=60, seed=seed, output=out)
    assert simulated.metrics.misses == ()
    for model, figures in zip(result.timetable.models, simulated.metrics.models, strict=True):
        assert figures.missed == 0
        assert figures.result_age_windows_max <= (model.result_age_windows or 0)
        if model.role == "priority":
            assert figures.dropped == 0
    by_frame = itertools.groupby(sorted(simulated.frames, key=lambda f: f.model), key=lambda f: f.model)
    assert {name: sorted(f.frame for f in mine) for name, mine in by_frame} == {
        model.name: list(range(60)) for model in result.timetable.models
    }


def test_builtin_targets_can_be_simulated(folder: Path, tmp_path: Path) -> None:
    """Each described one plans and runs the small models in windows of 1 s, without a miss."""
    for name in ("vpu", "micro-npu", "vpu-two-queues", "edge-8", "gpu", "dsp"):
        result = simulate(on_board(folder, target=name, rate_hz=1), windows=3, output=tmp_path / name)
        assert [model.missed for model in result.metrics.models] == [0, 0]
        assert {row["fate"] for row in rows(result.folder)} == {"done"}
        assert set(result.timetable.units) <= {unit.name for unit in resolve_target(name).units}
