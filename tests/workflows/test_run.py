"""Runs of small workloads on the beat, for real."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import pytest

from framefit.core.events import EventType, Trace
from framefit.core.files import read_record
from framefit.core.program import read_program
from framefit.core.results import Metrics, RunInfo
from framefit.core.timetable import Timetable
from framefit.devices.device import Binding, Completion
from framefit.devices.ort import OrtDevice
from framefit.errors import DeviceError, InfeasibleError, InputError
from framefit.workflows.plan import Plan, plan
from framefit.workflows.run import RunResult, run
from networks import NETWORKS, difference
from workloads import WINDOW_MS, listing, measure_briefly, write_app, write_models

FRAMES = 12
FILES = {
    "run.json",
    "timetable.json",
    "program.json",
    "launches.npz",
    "trace.npz",
    "metrics.json",
    "frames.csv",
    "trace.pftrace",
    "run.svg",
}


@pytest.fixture(scope="module", autouse=True)
def _brief() -> Iterator[None]:
    """Measure for tenths of a second where users get seconds."""
    with pytest.MonkeyPatch.context() as patch:
        measure_briefly(patch)
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
    whole = plan(write_app(folder)).timetable
    small, chain = (model.segments[0] for model in whole.models)
    sinks = '[[outputs]]\nmodel = "small"\nsink = "small.npz"\n[[outputs]]\nmodel = "chain"\nsink = "chain.jsonl"\n'
    for share in (0.6, 1.0, 2.0):  # what p99 a busy machine shows decides how small a residual can be used
        guard_ms = WINDOW_MS - (small.duration_ns + share * chain.median_ns) / 1e6
        result = plan(write_app(folder, guard_ms=guard_ms, stream='source = "camera.npz"', more=sinks))
        if result.timetable.feasible:
            break
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


def assert_complete(folder: Path, windows: int) -> None:
    """All files of a run folder are there, agree with each other and account for every frame."""
    assert {path.name for path in folder.iterdir()} == FILES
    info = read_record(folder / "run.json", RunInfo)
    timetable = read_record(folder / "timetable.json", Timetable)
    metrics = read_record(folder / "metrics.json", Metrics)
    program, launches = read_program(folder / "program.json")
    trace = Trace.read(folder / "trace.npz")
    assert metrics.windows == windows
    assert info.workload["target"] == "cpu"
    assert info.host
    assert [(p.model, p.segment) for p in program.programs] == [
        (model.name, segment.index) for model in timetable.models for segment in model.segments
    ]
    assert launches is not None
    starts, ends = (trace.type == EventType.START).sum(), (trace.type == EventType.END).sum()
    assert starts == ends == len(launches)
    kinds = [program.programs[index].name for index in launches.program]
    assert kinds == [trace.kinds[index] for index in trace.id[trace.type == EventType.START]]
    fates = Counter((row["model"], int(row["frame"])) for row in rows(folder))
    assert fates == Counter((model.name, frame) for model in timetable.models for frame in range(windows))
    for model in metrics.models:
        assert model.releases == windows
        assert model.completed == sum(r["model"] == model.name and r["fate"] in ("done", "late") for r in rows(folder))
        assert model.completed + model.dropped == windows
    for row in rows(folder):
        assert (row["finished_ns"] == "") == (row["fate"] == "dropped")
        assert bool(row["reason"]) == (row["fate"] != "done")
    assert (folder / "trace.pftrace").stat().st_size > 0
    assert "<svg" in (folder / "run.svg").read_text()[:200]


def test_the_run_folder_is_complete(ran: RunResult) -> None:
    """Every file of a run folder is written, can be read back and agrees with the others."""
    assert_complete(ran.folder, FRAMES)
    assert not [path for path in ran.folder.parent.iterdir() if path.name.startswith(".")]


def test_the_files_are_what_the_result_holds(ran: RunResult) -> None:
    """Timetable, metrics, launches and trace read back equal."""
    assert read_record(ran.folder / "timetable.json", Timetable) == ran.timetable
    assert read_record(ran.folder / "metrics.json", Metrics) == ran.metrics
    program, launches = read_program(ran.folder / "program.json")
    assert program == ran.program
    assert launches is not None
    assert np.array_equal(launches.submit_ns, ran.launches.submit_ns)
    assert np.array_equal(Trace.read(ran.folder / "trace.npz").time_ns, ran.trace.time_ns)
    assert read_record(ran.folder / "run.json", RunInfo).seed == 7


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
    """With ``force`` the folder holds the new run and nothing of what was there."""
    (tmp_path / "out").mkdir()
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
    begun = [0]

    def idle(windows: int, count: int) -> None:
        assert count == FRAMES
        begun[0] = windows

    result = run(planned, windows=FRAMES, output=tmp_path / "out", force=True, on_idle=idle, stop=lambda: begun[0] >= 3)
    assert result.interrupted
    assert 3 <= result.metrics.windows < FRAMES
    assert_complete(tmp_path / "out", result.metrics.windows)
    assert read_record(tmp_path / "out" / "run.json", RunInfo).interrupted


def test_a_device_that_fails_in_mid_run_loses_nothing(
    planned: Plan, ran: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth launch of the run fails: its error is raised, and the folder holds the first three."""
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
        run(planned, windows=FRAMES, output=tmp_path / "out", force=True, notify=arm)
    metrics = read_record(tmp_path / "out" / "metrics.json", Metrics)
    assert_complete(tmp_path / "out", metrics.windows)
    _, launches = read_program(tmp_path / "out" / "program.json")
    assert launches is not None
    assert len(launches) == 3


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
