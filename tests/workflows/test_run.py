"""Runs of small workloads on the beat, for real."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import pytest

from framefit import DeviceError, FramefitError, InfeasibleError, InputError, Plan, RunResult, Timetable, plan, run
from framefit.core.events import EventType, Trace
from framefit.core.files import read_record
from framefit.core.program import read_program
from framefit.core.run_record import Metrics, RunInfo
from framefit.devices.device import Binding, Completion
from framefit.devices.host import available_cores, realtime_priority_permitted
from framefit.devices.npu.packets import PacketBuffer
from framefit.devices.ort import OrtDevice
from framefit.profiling.pairing import pair_events
from networks import NETWORKS, difference
from workloads import (
    LATE_NS,
    WINDOW_MS,
    listing,
    no_noise,
    stopping,
    write_app,
    write_models,
    write_target,
)

pytestmark = pytest.mark.timed

FRAMES = 12
needs_realtime = pytest.mark.skipif(
    not realtime_priority_permitted(), reason="real-time priorities (SCHED_FIFO) are not permitted here"
)
FILES = {
    "run.json",
    "timetable.json",
    "program.json",
    "launches.npz",
    "trace.npz",
    "metrics.json",
    "frames.csv",
    "instructions.json",
}


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Plan with durations that follow from the layers."""
    with pytest.MonkeyPatch.context() as patch:
        no_noise(patch)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and a camera of 12 frames."""
    folder = write_models(tmp_path_factory.mktemp("run"))
    frames = np.random.default_rng(1).standard_normal((FRAMES, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "camera.npz", frames=frames)
    return folder


@pytest.fixture(scope="module")
def planned(folder: Path) -> Plan:
    """A small priority model, and a background model in segments; both write their outputs.

    The guard that made it be cut is lowered by what half of it takes: a machine with
    other work to do would hardly find room for a segment that fits exactly.
    """
    sinks = '[[outputs]]\nmodel = "small"\nsink = "small.npz"\n[[outputs]]\nmodel = "chain"\nsink = "chain.jsonl"\n'
    small, chain = (model.segments[0] for model in plan(write_app(folder), cache=False).timetable.models)
    guard_ms = WINDOW_MS - (LATE_NS + small.duration_ns + 0.6 * chain.median_ns) / 1e6
    result = plan(write_app(folder, guard_ms=guard_ms, stream='source = "camera.npz"', more=sinks), cache=False)
    timetable = result.timetable
    assert timetable.feasible
    guard_ns = timetable.guard_ns - chain.median_ns // 2
    return dataclasses.replace(result, timetable=msgspec.structs.replace(timetable, guard_ns=guard_ns))


@pytest.fixture(scope="module")
def ran(planned: Plan, folder: Path) -> RunResult:
    """The camera's frames, all of them; five seconds were asked for."""
    return run(planned, seconds=5, output=folder / "out", force=True, seed=7)


def rows(folder: Path) -> list[dict[str, str]]:
    """Lines of ``frames.csv``."""
    with (folder / "frames.csv").open() as file:
        return list(csv.DictReader(file))


def assert_complete(folder: Path, windows: int, target: str = "cpu") -> None:
    """All files of a run folder are there, agree with each other and account for every frame."""
    assert {path.name for path in folder.iterdir()} == FILES
    info = read_record(folder / "run.json", RunInfo)
    timetable = read_record(folder / "timetable.json", Timetable)
    metrics = read_record(folder / "metrics.json", Metrics)
    program, launches = read_program(folder / "program.json")
    trace = Trace.read(folder / "trace.npz")
    assert metrics.windows == windows
    assert info.workload["target"] == target
    assert info.host
    assert [(p.model, p.segment) for p in program.programs] == [
        (model.name, segment.index) for model in timetable.models for segment in model.segments
    ]
    assert launches is not None
    starts, ends = (trace.type == EventType.START).sum(), (trace.type == EventType.END).sum()
    assert starts == ends == len(launches)
    kinds = [program.programs[index].name for index in launches.program]
    begun = np.flatnonzero(trace.type == EventType.START)
    begun = begun[np.argsort(trace.time_ns[begun], kind="stable")]
    assert kinds == [trace.kinds[index] for index in trace.id[begun]]
    assert (pair_events(trace, program, launches).inference >= 0).all()
    fates = Counter((row["model"], int(row["frame"])) for row in rows(folder))
    assert fates == Counter((model.name, frame) for model in timetable.models for frame in range(windows))
    for model in metrics.models:
        counts = Counter(row["fate"] for row in rows(folder) if row["model"] == model.name)
        assert model.releases == windows - counts["skipped"]
        assert model.completed == counts["done"] + counts["late"]
        assert model.completed + model.dropped == model.releases
    for row in rows(folder):
        assert (row["finished_ns"] == "") == (row["fate"] in ("dropped", "skipped"))
        assert bool(row["reason"]) == (row["fate"] != "done")


def test_the_run_folder_is_complete(ran: RunResult) -> None:
    """Every file of a run folder is written, can be read back and agrees with the others."""
    assert_complete(ran.folder, FRAMES)
    assert not [path for path in ran.folder.parent.iterdir() if path.name.startswith(".")]


def test_the_files_are_what_the_result_holds(ran: RunResult) -> None:
    """Timetable, metrics, launches and trace read back equal."""
    assert msgspec.structs.replace(read_record(ran.folder / "timetable.json", Timetable), source=None) == ran.timetable
    assert read_record(ran.folder / "metrics.json", Metrics) == ran.metrics
    program, launches = read_program(ran.folder / "program.json")
    assert program == ran.program
    assert launches is not None
    assert np.array_equal(launches.submit_ns, ran.launches.submit_ns)
    assert np.array_equal(Trace.read(ran.folder / "trace.npz").time_ns, ran.trace.time_ns)
    info = read_record(ran.folder / "run.json", RunInfo)
    assert (info.seed, info.error, info.interrupted) == (7, None, False)


def test_metrics_have_the_keys_that_others_rely_on(ran: RunResult) -> None:
    """Every key of the contract is in metrics.json, at its place."""
    data = json.loads((ran.folder / "metrics.json").read_text())
    top = (
        "schema_version windows models residual_utilisation_ratio guard_loss_ratio packing_loss_ratio "
        "floor_release_to_start_ns estimate_exceeded_ratio dispatch_ns peak_memory_bytes rung_switches streams misses"
    )
    model = (
        "name role releases completed missed dropped throughput_hz fluid_bound_hz packing_bound_hz "
        "release_to_start_ns release_to_finish_ns miss_ratio_upper result_age_windows_max "
        "segmentation_overhead_ratio max_relative_difference"
    )
    assert set(top.split()) <= set(data)
    assert set(model.split()) <= set(data["models"][0])
    percentiles = {"p50", "p90", "p99", "p999", "max", "count"}
    for record in (data["dispatch_ns"], data["floor_release_to_start_ns"], data["models"][0]["release_to_start_ns"]):
        assert set(record) >= percentiles
    assert set(data["streams"][0]) >= {"name", "received", "dropped"}
    assert (ran.folder / "frames.csv").read_text().splitlines()[0] == (
        "stream,frame,model,fate,reason,released_ns,finished_ns"
    )


def test_a_stream_that_ends_ends_the_run(ran: RunResult) -> None:
    """Twelve frames in the file: twelve windows, though five seconds were asked for, and that is no interrupt."""
    assert ran.metrics.windows == FRAMES
    assert not ran.interrupted
    assert ran.metrics.streams[0].name == "camera"
    assert ran.metrics.streams[0].received == FRAMES


def test_segments_of_a_frame_run_in_order(ran: RunResult) -> None:
    """Each completed frame launched all segments of its model once, in order, and segments never interleave."""
    programs = [(p.model, p.segment) for p in ran.program.programs]
    launched = [
        (*programs[number], int(frame)) for number, frame in zip(ran.launches.program, ran.launches.frame, strict=True)
    ]
    for model in ran.timetable.models:
        count = len(model.segments)
        mine = [(frame, segment) for name, segment, frame in launched if name == model.name]
        frames = list(dict.fromkeys(frame for frame, _ in mine))
        assert frames == sorted(frames)
        expected = [(frame, segment) for frame in frames for segment in range(count)]
        assert mine == expected[: len(mine)]
        assert len(expected) - len(mine) < count


def test_outputs_are_those_of_the_original_model_in_order(ran: RunResult, folder: Path) -> None:
    """Both sinks hold one entry a completed frame, in order, equal to ONNX Runtime on the original file."""
    frames = np.load(folder / "camera.npz")["frames"]
    with np.load(folder / "small.npz") as archive:
        small = dict(zip(archive["frame"].tolist(), archive["pooled"], strict=True))
    lines = [json.loads(line) for line in (folder / "chain.jsonl").read_text().splitlines()]
    chain = {line["frame"]: np.asarray(line["pooled"], np.float32) for line in lines}
    assert len(lines) == len(chain)
    for name, outputs in (("small", small), ("chain", chain)):
        assert list(outputs) == sorted(outputs)
        done = [int(r["frame"]) for r in rows(ran.folder) if r["model"] == name and r["fate"] in ("done", "late")]
        assert list(outputs) == sorted(done)
        session = ort.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for frame, pooled in outputs.items():
            (expected,) = session.run(None, {"image": frames[frame][None]})
            assert difference({"pooled": expected}, {"pooled": pooled}) <= 1e-4
    assert small
    assert chain


def states_in_a_loop(
    model: Path, frames: np.ndarray[Any, Any], state: dict[str, str], feed: str, fixed: dict[str, Any]
) -> Callable[[list[int]], list[dict[str, np.ndarray[Any, Any]]]]:
    """A plain loop of ONNX Runtime calls that carries the state by hand; outputs of the frames asked for."""
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    shapes = {
        value.name: [size if isinstance(size, int) else 1 for size in value.shape] for value in session.get_inputs()
    }

    def loop(numbers: list[int]) -> list[dict[str, np.ndarray[Any, Any]]]:
        carried = {name: np.zeros(shapes[name], np.float32) for name in state}
        found = []
        for number in numbers:
            outputs = dict(zip(names, session.run(names, {feed: frames[number], **carried, **fixed}), strict=True))
            carried = {name: outputs[source] for name, source in state.items()}
            found.append(outputs)
        return found

    return loop


def test_a_recurrent_state_goes_from_frame_to_frame(tmp_path: Path) -> None:
    """An LSTM whose state is fed back gives what a plain loop over the same frames gives."""
    NETWORKS["lstm"]().save(tmp_path / "lstm.onnx")
    sound = np.random.default_rng(2).standard_normal((20, 4, 1, 10)).astype(np.float32)
    np.savez(tmp_path / "sound.npz", sound)
    app = write_app(
        tmp_path,
        priority=["lstm"],
        background=[],
        stream='source = "sound.npz"',
        model='inputs = { sound = "camera" }\nstate = { hidden = "next_hidden", cell = "next_cell" }',
        more='[[outputs]]\nmodel = "lstm"\nsink = "speech.npz"\n',
        rate_hz=25,
    )
    run(app, output=tmp_path / "out")
    state = {"hidden": "next_hidden", "cell": "next_cell"}
    loop = states_in_a_loop(tmp_path / "lstm.onnx", sound, state, "sound", {})
    with np.load(tmp_path / "speech.npz") as archive:
        given = {name: archive[name] for name in archive.files}
    expected = loop(given["frame"].tolist())
    assert len(expected) >= 10
    for index, outputs in enumerate(expected):
        assert difference(outputs, {name: given[name][index] for name in outputs}) <= 1e-4
    carried = [outputs["next_hidden"] for outputs in expected]
    assert all(not np.array_equal(a, b) for a, b in itertools.pairwise(carried))


@pytest.mark.data
def test_a_real_voice_detector_keeps_its_state(shared_models: Path, tmp_path: Path) -> None:
    """512 samples a window at 16 kHz, state and a constant: outputs equal a plain loop on the original file."""
    sound = (np.random.default_rng(3).standard_normal((40, 1, 512)) * 0.1).astype(np.float32)
    np.savez(tmp_path / "sound.npz", sound)
    (tmp_path / "vad.onnx").write_bytes((shared_models / "vad-16k.onnx").read_bytes())
    app = write_app(
        tmp_path,
        priority=["vad"],
        background=[],
        stream='source = "sound.npz"',
        model='inputs = { input = "camera" }\nstate = { state = "stateN" }\nconstants = { sr = 16000 }',
        more='[[outputs]]\nmodel = "vad"\nsink = "speech.npz"\n',
        rate_hz=31.25,
    )
    run(app, output=tmp_path / "out")
    loop = states_in_a_loop(
        tmp_path / "vad.onnx", sound, {"state": "stateN"}, "input", {"sr": np.asarray(16000, np.int64)}
    )
    with np.load(tmp_path / "speech.npz") as archive:
        given = {name: archive[name] for name in archive.files}
    expected = loop(given["frame"].tolist())
    assert len(expected) >= 20
    for index, outputs in enumerate(expected):
        assert difference(outputs, {name: given[name][index] for name in outputs}) <= 1e-4


def test_an_existing_folder_is_refused_and_left_alone(planned: Plan, tmp_path: Path) -> None:
    """Without ``force`` nothing is run, and the folder keeps its content."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    before = listing(tmp_path)
    with pytest.raises(InputError, match="already exists"):
        run(planned, windows=3, output=tmp_path / "out")
    assert listing(tmp_path) == before


def test_force_replaces_the_folder(planned: Plan, ran: RunResult, tmp_path: Path) -> None:
    """With ``force`` a run folder holds the new run and nothing of what was there."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text("{}")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    run(planned, windows=3, output=tmp_path / "out", force=True)
    assert_complete(tmp_path / "out", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_sink_that_exists_is_refused(planned: Plan, ran: RunResult, folder: Path, tmp_path: Path) -> None:
    """A result of an earlier run is not overwritten without ``force``, and no run folder appears."""
    before = (folder / "small.npz").read_bytes()
    with pytest.raises(InputError, match="already exists") as error:
        run(planned, windows=3, output=tmp_path / "out")
    assert str(error.value.where).endswith((".npz", ".jsonl"))
    assert (folder / "small.npz").read_bytes() == before
    assert listing(tmp_path) == {}


def test_stopping_in_mid_run_saves_what_was_run(planned: Plan, ran: RunResult, tmp_path: Path) -> None:
    """``stop`` ends the run early; the folder is complete and says so."""
    begun, cores = [0], dict[str, set[int]]()

    def idle(windows: int, count: int) -> None:
        assert count == FRAMES
        begun[0] = windows
        cores.update({t.name: os.sched_getaffinity(t.native_id) for t in threading.enumerate() if t.native_id})

    result = run(planned, windows=FRAMES, output=tmp_path / "out", force=True, on_idle=idle, stop=lambda: begun[0] >= 3)
    if len(available_cores()) > 1:  # writing the journal must not keep the loop from its core
        assert cores["framefit-run"].isdisjoint(cores["framefit-journal"])
    assert result.interrupted
    assert 3 <= result.metrics.windows < FRAMES
    assert_complete(tmp_path / "out", result.metrics.windows)
    assert read_record(tmp_path / "out" / "run.json", RunInfo).interrupted


def test_a_device_that_fails_in_mid_run_loses_nothing(
    planned: Plan, ran: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth launch fails, and the run is to stop then: its error is raised, the folder holds the first three."""
    left = [-1]
    submit = OrtDevice.submit

    def failing(device: OrtDevice, binding: Binding) -> Completion:
        if left[0] == 0:
            raise DeviceError("the device is gone")
        left[0] -= 1
        return submit(device, binding)

    def arm(message: str) -> None:
        if message.startswith("running"):
            left[0] = 3

    monkeypatch.setattr(OrtDevice, "submit", failing)
    with pytest.raises(DeviceError, match="the device is gone"):
        run(stopping(planned), windows=FRAMES, output=tmp_path / "out", force=True, notify=arm)
    metrics = read_record(tmp_path / "out" / "metrics.json", Metrics)
    assert_complete(tmp_path / "out", metrics.windows)
    _, launches = read_program(tmp_path / "out" / "program.json")
    assert launches is not None
    assert len(launches) == 3
    info = read_record(tmp_path / "out" / "run.json", RunInfo)
    assert not info.interrupted
    assert "the device is gone" in (info.error or "")


def test_a_failure_before_the_loop_leaves_no_sink_and_no_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that fails while it warms up: sinks are not opened yet."""
    more = '[[outputs]]\nmodel = "small"\nsink = "early.jsonl"\n[[outputs]]\nmodel = "chain"\nsink = "early.npz"\n'
    prepared = plan(write_app(folder, more=more))

    def fail(*_: object) -> Completion:
        raise DeviceError("the device is gone")

    def arm(message: str) -> None:
        if message == "warming up":
            monkeypatch.setattr(
                "framefit.planning.durations.measure", lambda launches, **_: [one() for one in launches]
            )
            monkeypatch.setattr(OrtDevice, "submit", fail)

    with pytest.raises(DeviceError, match="the device is gone"):
        run(prepared, windows=3, output=tmp_path / "out", notify=arm)
    assert not list(folder.glob("early.*"))
    assert listing(tmp_path) == {}


def test_a_stream_that_waits_is_run_to_its_end(folder: Path, tmp_path: Path) -> None:
    """A background model of more than a window a frame: the camera's twelve frames take longer, and none is lost."""
    (folder / "lingering.py").write_text(
        "import time\n\ndef wait(outputs):\n    time.sleep(0.08)\n    return outputs\n"
    )
    app = write_app(
        folder,
        stream='source = "camera.npz"\nqueue = 1\nwhen_full = "block"',
        last='postprocess = "lingering:wait"',
        more='[[outputs]]\nmodel = "chain"\nsink = "all.jsonl"\n',
    )
    result = run(app, seconds=15, output=tmp_path / "out")
    (camera,) = result.metrics.streams
    assert (camera.received, camera.dropped) == (FRAMES, 0)
    assert camera.waited_windows > 0
    assert result.metrics.windows >= FRAMES + camera.waited_windows
    assert not result.interrupted
    for name in ("small", "chain"):
        found = [row for row in rows(tmp_path / "out") if row["model"] == name]
        assert [int(row["frame"]) for row in found] == list(range(FRAMES))
        assert {row["fate"] for row in found} <= {"done", "late"}
        releases = [int(row["released_ns"]) for row in found]
        assert releases == sorted(set(releases))
    assert {model.releases for model in result.metrics.models} == {FRAMES}
    lines = [json.loads(line) for line in (folder / "all.jsonl").read_text().splitlines()]
    assert [line["frame"] for line in lines] == list(range(FRAMES))


def test_a_function_that_ends_misses_nothing(folder: Path, tmp_path: Path) -> None:
    """Its end is only noticed when the next frame is asked for: that one is no frame, and no miss."""
    (folder / "own_camera.py").write_text(
        "import numpy as np\n\ndef frames():\n    yield from np.zeros((5, 1, 3, 16, 16), np.float32)\n"
    )
    result = run(write_app(folder, stream='source = "own_camera:frames"'), windows=40, output=tmp_path / "out")
    assert result.metrics.streams[0].received == 5
    assert {(row["model"], int(row["frame"])) for row in rows(tmp_path / "out")} == {
        (name, frame) for name in ("small", "chain") for frame in range(5)
    }
    assert not [miss for miss in result.metrics.misses if miss.cause == "run ended"]


def test_bounds_count_frames_as_throughput_does(folder: Path, tmp_path: Path) -> None:
    """A model that takes two frames at once is bounded by the frames that arrive, not by its launches."""
    app = write_app(folder, last="frames = 2\nframes_axis = 2", schedule='preemption = "never"')
    result = run(app, windows=20, output=tmp_path / "out")
    chain = next(model for model in result.metrics.models if model.name == "chain")
    assert chain.fluid_bound_hz == pytest.approx(20)
    assert chain.packing_bound_hz == pytest.approx(20, rel=0.01)
    assert chain.throughput_hz <= 20 * 1.001
    assert chain.throughput_hz > 10


def test_an_infeasible_plan_is_not_run(folder: Path, tmp_path: Path) -> None:
    """What does not fit raises the binding constraint with its fix, and writes nothing."""
    app = write_app(folder, model="deadline_ms = 0.001")
    with pytest.raises(InfeasibleError, match="deadline") as error:
        run(app, windows=3, output=tmp_path / "out")
    assert error.value.remedy is not None
    assert "deadline_ms" in error.value.remedy
    assert listing(tmp_path) == {}


@pytest.mark.parametrize("length", [{"windows": 0}, {"seconds": 0.0}, {"windows": 3, "seconds": 1.0}])
def test_a_run_without_a_clear_length_is_refused(length: dict[str, Any], planned: Plan, tmp_path: Path) -> None:
    """Nothing to run, or two lengths at once, is an error of the caller's."""
    with pytest.raises(InputError):
        run(planned, output=tmp_path / "out", **length)
    assert listing(tmp_path) == {}


@needs_realtime
def test_a_preemptive_run(folder: Path, tmp_path: Path) -> None:
    """Background work of several windows goes on around the priority model, and nobody calls that an overrun."""
    sinks = '[[outputs]]\nmodel = "small"\nsink = "s.npz"\n[[outputs]]\nmodel = "chain"\nsink = "c.npz"\n'
    app = write_app(folder, rate_hz=1000, schedule="", stream="queue = 2", more=sinks)
    result = run(app, windows=200, output=tmp_path / "out", force=True)
    timetable = result.timetable
    assert timetable.preemptive
    assert timetable.guard_ns == 0
    assert [len(model.segments) for model in timetable.models] == [1, 1]
    assert_complete(tmp_path / "out", 200)
    small, chain = result.metrics.models
    assert small.completed > 100
    assert chain.completed > 5
    assert not any(miss.cause == "overrun" for miss in result.metrics.misses)
    assert chain.fluid_bound_hz == chain.packing_bound_hz
    assert 0 < result.metrics.residual_utilisation_ratio <= 1
    for name in ("s", "c"):
        with np.load(folder / f"{name}.npz") as archive:
            model = {"s": "small", "c": "chain"}[name]
            done = [int(r["frame"]) for r in rows(tmp_path / "out") if r["model"] == model and r["finished_ns"]]
            assert archive["frame"].tolist() == sorted(done)
    done = pair_events(result.trace, result.program, result.launches)
    whole = (done.end_ns - done.start_ns)[result.launches.program[done.inference] == 1]
    assert np.median(whole) > 1_000_000  # more than a window, and still no overrun


@pytest.mark.parametrize("position", ["middle", "end"])
def test_priority_models_run_at_their_place(position: str, folder: Path, tmp_path: Path) -> None:
    """The priority model starts at its reserved instant, not at the release; background work runs before it."""
    schedule = f'preemption = "never"\npriority_position = "{position}"'
    result = run(write_app(folder, schedule=schedule), windows=15, output=tmp_path / "out")
    assert_complete(tmp_path / "out", 15)
    instant = result.timetable.windows[0].priority[0].start_ns
    assert instant > 10_000_000
    small = result.metrics.models[0]
    assert small.release_to_start_ns.p50 >= instant
    assert small.release_to_start_ns.p50 <= instant + 5_000_000
    programs = result.launches.program.tolist()
    assert programs[:2] == [1, 0]  # the chain, whole, then the priority model
    first = result.launches.submit_ns[0] - result.releases_ns[0]
    assert first < instant


def test_skipped_frames_and_several_at_once(folder: Path, tmp_path: Path) -> None:
    """A model of every third window skips the others; its sink holds what it ran."""
    more = '[[outputs]]\nmodel = "chain"\nsink = "third.npz"\n'
    app = write_app(folder, last="every = 3", stream='source = "camera.npz"', more=more)
    run(app, output=tmp_path / "out")
    assert_complete(tmp_path / "out", FRAMES)
    fates = {int(row["frame"]): row["fate"] for row in rows(tmp_path / "out") if row["model"] == "chain"}
    assert [frame for frame, fate in sorted(fates.items()) if fate == "skipped"] == [k for k in range(FRAMES) if k % 3]
    with np.load(folder / "third.npz") as archive:
        assert set(archive["frame"].tolist()) <= {0, 3, 6, 9}
        assert len(archive["frame"]) >= 2


def test_outputs_of_several_frames_are_stacked(folder: Path, tmp_path: Path) -> None:
    """With ``aggregate`` a sink gets stacks of so many frames; the rest comes at the end."""
    more = '[[outputs]]\nmodel = "small"\nsink = "stacks.jsonl"\n'
    app = write_app(folder, background=(), model="aggregate = 5", stream='source = "camera.npz"', more=more)
    run(app, output=tmp_path / "out")
    done = [int(row["frame"]) for row in rows(tmp_path / "out") if row["finished_ns"]]
    lines = [json.loads(line) for line in (folder / "stacks.jsonl").read_text().splitlines()]
    assert [line["frame"] for line in lines] == [*done[4::5], *([done[-1]] if len(done) % 5 else [])]
    assert [len(line["pooled"]) for line in lines] == [5] * (len(done) // 5) + [len(done) % 5] * (len(done) % 5 > 0)


def test_what_is_refused_leaves_no_sink_behind(folder: Path, tmp_path: Path) -> None:
    """Where the second sink exists already, the first one is not left behind empty."""
    (folder / "there.jsonl").write_text("mine")
    for first in ("new.jsonl", "new.npz"):
        more = f'[[outputs]]\nmodel = "small"\nsink = "{first}"\n[[outputs]]\nmodel = "chain"\nsink = "there.jsonl"\n'
        told: list[str] = []
        with pytest.raises(InputError, match="already exists"):
            run(write_app(folder, more=more), windows=3, output=tmp_path / "out", notify=told.append)
        assert told == []  # it is refused before anything is planned
        assert not (folder / first).exists()
    assert (folder / "there.jsonl").read_text() == "mine"
    assert listing(tmp_path) == {}


def test_a_sink_that_fails_loses_nothing_else(folder: Path, tmp_path: Path) -> None:
    """A function that raises ends the run with its error; the run folder and the other sink are complete."""
    (folder / "broken_sink.py").write_text(
        "def take(frame, outputs):\n    if frame == 2:\n        raise ValueError('no')\n"
    )
    more = '[[outputs]]\nmodel = "small"\nsink = "broken_sink:take"\n[[outputs]]\nmodel = "chain"\nsink = "other.npz"\n'
    with pytest.raises(FramefitError, match="no"):
        run(write_app(folder, more=more), windows=30, output=tmp_path / "out")
    metrics = read_record(tmp_path / "out" / "metrics.json", Metrics)
    assert 3 <= metrics.windows < 30
    assert_complete(tmp_path / "out", metrics.windows)
    with np.load(folder / "other.npz") as archive:
        done = [int(r["frame"]) for r in rows(tmp_path / "out") if r["model"] == "chain" and r["finished_ns"]]
        assert archive["frame"].tolist() == done


# Described targets, in real time ---------------------------------------------------------------


def test_a_described_device_runs_beside_the_hosts_clock(folder: Path, tmp_path: Path) -> None:
    """Launches take at least what they are told to, sinks hold the models' outputs, and priority comes first."""
    write_target(folder, variation="sigma_ratio = 0.0")
    sinks = '[[outputs]]\nmodel = "small"\nsink = "told.npz"\n[[outputs]]\nmodel = "chain"\nsink = "told.jsonl"\n'
    app = write_app(
        folder,
        target="target.toml",
        guard_ms=None,
        schedule="",
        stream='source = "camera.npz"\nwhen_full = "block"',
        more=sinks,
    )
    result = run(app, seconds=5, output=tmp_path / "out")
    info = read_record(tmp_path / "out" / "run.json", RunInfo)
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert (info.error, info.interrupted, info.workload["target"]) == (None, False, "target.toml")
    small, chain = result.metrics.models
    assert result.metrics.windows >= FRAMES
    assert small.completed == FRAMES
    assert 0 <= small.release_to_start_ns.p50 < 10_000_000
    assert 0 < small.release_to_finish_ns.p50 < 25_000_000
    assert chain.completed >= FRAMES // 2
    took = np.diff(result.seen.time_ns.reshape(-1, 2)).ravel()
    expected = np.asarray([segment.median_ns for model in result.timetable.models for segment in model.segments])
    assert (took >= expected[result.launches.program]).all()
    assert took[result.launches.program == 1].min() < 1.5 * expected[1]  # this host computes it in less
    assert (np.diff(result.launches.submit_ns) > 0).all()
    assert (result.launches.submit_ns >= result.releases_ns[result.launches.window]).all()
    operations = [
        one for index in result.launches.program for one in result.program.programs[index].groups[0].operations
    ]
    kinds = [one.kind for one in operations for _ in range(2)]
    assert [result.trace.kinds[index] for index in result.trace.id] == kinds
    assert (np.diff(result.trace.time_ns) >= 0).all()
    frames = np.load(folder / "camera.npz")["frames"]
    with np.load(folder / "told.npz") as archive:
        found = {"small": dict(zip(archive["frame"].tolist(), archive["pooled"], strict=True))}
    lines = [json.loads(line) for line in (folder / "told.jsonl").read_text().splitlines()]
    found["chain"] = {line["frame"]: np.asarray(line["pooled"], np.float32) for line in lines}
    for name, outputs in found.items():
        assert list(outputs) == [
            int(r["frame"]) for r in rows(tmp_path / "out") if r["model"] == name and r["finished_ns"]
        ]
        session = ort.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for frame, pooled in outputs.items():
            (expected_pooled,) = session.run(None, {"image": frames[frame][None]})
            assert difference({"pooled": expected_pooled}, {"pooled": pooled}) <= 1e-4


def test_the_device_is_ready_when_a_real_time_run_begins(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every model has been launched and packets been made before the first window; none of that is in the run."""
    write_target(folder)
    order: list[str] = []
    ready, submit = PacketBuffer.prepare, OrtDevice.submit

    def prepare() -> None:
        order.append("packets")
        ready()

    def launch(device: OrtDevice, binding: Binding) -> Completion:
        order.append("launch")
        return submit(device, binding)

    planned = plan(write_app(folder, target="target.toml", guard_ms=None, schedule=""), in_real_time=True)
    monkeypatch.setattr(PacketBuffer, "prepare", staticmethod(prepare))
    monkeypatch.setattr(OrtDevice, "submit", launch)
    result = run(planned, windows=3, output=tmp_path / "out", notify=order.append)
    before = order[: order.index("running 3 windows")]
    segments = sum(len(model.segments) for model in result.timetable.models)
    assert before.count("launch") == segments
    assert "packets" in before
    assert order.count("launch") == segments + len(result.launches)
    operations = [len(one.groups[0].operations) for one in result.program.programs]
    assert len(result.trace) == 2 * sum(operations[index] for index in result.launches.program)


def test_a_real_time_run_says_where_the_host_was_slower(folder: Path, tmp_path: Path) -> None:
    """A board a thousand times as fast as this machine: outputs come late, and run.json says how often."""
    write_target(folder, "fast.toml", processor="clock_mhz = 1_000_000\nmacs_per_cycle = { fp32 = 1_000_000 }")
    result = run(write_app(folder, target="fast.toml", guard_ms=None, schedule=""), windows=3, output=tmp_path / "out")
    (warning,) = read_record(tmp_path / "out" / "run.json", RunInfo).warnings
    assert warning in result.warnings
    assert "took this host longer" in warning
    late = int(warning.split()[0])
    assert 1 <= late <= len(result.launches)
