"""Rates that change, and the ladder, over several units: all of them change their timetable together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import framefit
from framefit import InfeasibleError, Plan, RunResult, Timetable
from framefit.core.files import read_record
from framefit.core.workload import RateChange
from framefit.devices.host import available_cores
from framefit.planning import ladder
from framefit.workflows.plan import ready
from networks import difference
from workloads import no_noise, write_app, write_models, write_target

FRAMES = 60
IMAGES = np.random.default_rng(1).standard_normal((FRAMES, 3, 16, 16)).astype(np.float32)
UNITS = ('name = "a"\ncore = 3', 'name = "b"\ncore = 5', 'name = "c"\ncore = 6\nspeed_ratio = 1.5')
LINK = '[[links]]\nbetween = ["a", "b"]\nbandwidth_gbps = 0.5\nlatency_ns = 30_000\n'
CAMERA = 'source = "camera.npz"'
CHANGE = "\n[[streams.changes]]\nafter_s = 0.3\nrate_hz = 20"
SINK = '[[outputs]]\nmodel = "chain"\nsink = "chain.npz"\n'
READER = """
[[models]]
name = "again"
path = "small.onnx"
priority = "every-window"
units = ["b"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, boards of two and of three units, and images."""
    folder = write_models(tmp_path_factory.mktemp("rungs"))
    for count, name in ((2, "two.toml"), (3, "three.toml")):
        path = write_target(folder, name, units=UNITS[:count])
        path.write_text(path.read_text() + LINK)
    np.savez(folder / "camera.npz", IMAGES)
    return folder


def app(folder: Path, target: str, stream: str, *, rate_hz: float = 100, schedule: str = "", more: str = "") -> Path:
    """A small priority model, and a chain that takes 17 ms on one unit; the guard follows from the segments."""
    return write_app(folder, target=target, rate_hz=rate_hz, guard_ms=None, schedule=schedule, stream=stream, more=more)


@pytest.fixture(scope="module")
def two(folder: Path) -> Plan:
    """On two units, with another priority model on the second one; the camera keeps its rate."""
    planned = framefit.plan(app(folder, "two.toml", CAMERA, more=READER + SINK))
    assert len(planned.timetable.model("chain").stages) > 1
    return planned


def changed(planned: Plan, *changes: tuple[float, float], rates_hz: tuple[float, ...] = ()) -> Plan:
    """The same plan of a camera that announces other rates: seconds, and the rate from then on."""
    told = tuple(RateChange(after_s=after_s, rate_hz=rate_hz) for after_s, rate_hz in changes)
    (camera,) = planned.workload.streams
    streams = (msgspec.structs.replace(camera, changes=told, rates_hz=rates_hz),)
    return dataclasses.replace(planned, workload=msgspec.structs.replace(planned.workload, streams=streams))


def placed(timetable: Timetable) -> dict[str, list[tuple[str, str]]]:
    """Unit, and first layer, of each stage of each model."""
    return {model.name: [(stage[0].unit, stage[0].first_layer) for stage in model.stages] for model in timetable.models}


def fates(result: RunResult, model: str) -> list[int]:
    """Frames of a model that have a fate."""
    return sorted(one.frame for one in result.frames if one.model == model)


def assert_outputs(folder: Path, least: int) -> None:
    """What was put out is what ONNX Runtime makes of the frames, in order."""
    session = ort.InferenceSession(folder / "chain.onnx", providers=["CPUExecutionProvider"])
    found = np.load(folder / "chain.npz")
    frames = found["frame"].tolist()
    assert frames == sorted(set(frames))
    assert len(frames) >= least
    for frame, pooled in zip(frames, found["pooled"], strict=True):
        (wanted,) = session.run(None, {"image": IMAGES[frame][None]})
        assert difference({"": np.asarray(wanted)}, {"": pooled}) <= 1e-4


@pytest.mark.parametrize("units", [2, 3])
def test_announced_rates_change_all_units_with_one_window(units: int, two: Plan, folder: Path, tmp_path: Path) -> None:
    """No frame is lost or wrong, no priority frame late, and tensors stay within the planned memory."""
    planned = two if units == 2 else framefit.plan(app(folder, "three.toml", CAMERA, rate_hz=100, more=READER + SINK))
    planned = changed(planned, (0.2, 60), (0.504, 125))
    result = framefit.simulate(planned, outputs=True, windows=FRAMES, output=tmp_path / "run", force=True)
    metrics = result.metrics
    assert [(one.window, one.rung) for one in metrics.switches] == [(20, "60Hz"), (39, "125Hz")]
    lengths = np.diff(result.releases_ns)
    assert (np.abs(lengths - 1e9 / np.repeat([100, 60, 125], [20, 19, FRAMES - 40])) < 2).all()
    assert [(one.releases, one.missed) for one in metrics.models[:2]] == [(FRAMES, 0)] * 2
    for model in metrics.models:
        assert fates(result, model.name) == list(range(FRAMES))
    assert_outputs(folder, FRAMES // 3)
    for unit in metrics.units:
        assert 0 < unit.peak_memory_bytes <= unit.planned_memory_bytes
    for name in ("timetable-60Hz", "timetable-125Hz"):
        other = read_record(tmp_path / "run" / f"{name}.json", Timetable)
        assert placed(other) == placed(result.timetable)
        assert all(other.memory_bytes[unit] <= size for unit, size in result.timetable.memory_bytes.items())


@pytest.fixture(scope="module")
def runner(two: Plan) -> Callable[[], framefit.Runner]:
    """Runners of a plan that knows most of the rates that a program may ask for."""
    planned = ready(changed(two, rates_hz=(20, 50, 120, 150)))
    return lambda: framefit.Runner(planned, virtual=True, submitted=[], force=True)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(
        st.tuples(st.integers(1, 7), st.sampled_from([20, 30, 50, 77, 90, 100, 120, 150])), min_size=1, max_size=6
    )
)
def test_rates_that_a_program_sets_at_any_time(
    asked: list[tuple[int, float]], runner: Callable[[], framefit.Runner]
) -> None:
    """Whatever it sets when, planned ahead or not: no priority frame is late, and every frame has one fate."""
    with runner() as running:
        for windows, rate_hz in asked:
            running.step(windows)
            running.set_rate("camera", rate_hz)
        running.step(12)
    result = running.result()
    for model in result.metrics.models:
        assert model.missed == 0
        assert fates(result, model.name) == list(range(result.metrics.windows))
    rates = [rate_hz for _, rate_hz in asked]
    last = 1e9 / np.diff(result.releases_ns)[-1]
    assert last == pytest.approx(rates[-1], rel=1e-6)


def test_a_rate_that_does_not_fit_where_models_are(two: Plan) -> None:
    """It is refused before the run, or when it is asked for, with the reason; the run goes on as it was."""
    with pytest.raises(InfeasibleError, match="do not fit at camera 30000 Hz where they are placed for camera 100 Hz"):
        ready(changed(two, (1, 30_000)))
    with framefit.Runner(two, virtual=True, submitted=[], force=True) as runner:
        runner.step(3)
        with pytest.raises(InfeasibleError, match="the present segments do not fit"):
            runner.set_rate("camera", 3000)
        runner.step(3)
        assert runner.metrics().rung_switches == 0


COARSE = """
[[models]]
name = "chain3"
path = "chain.onnx"
priority = "background"
units = ["a"]
[[outputs]]
model = "chain3"
sink = "chain.npz"
"""


def test_a_slower_model_gets_a_finer_rung_on_all_units(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One model on one unit slows down: all units change with the same window, and lose nothing by it."""
    monkeypatch.setattr(ladder, "COVERED", ((1.5, 1.0),))
    path = write_app(
        folder,
        priority=("chain",),
        background=("chain2",),
        target="two.toml",
        rate_hz=30,
        schedule='segmentation = "fewest"',
        model='units = ["a"]',
        stream=CAMERA,
        more=COARSE,
    )
    fixed = framefit.plan(path)
    assert set(fixed.timetable.units) == {"a", "b"}
    schedule = msgspec.structs.replace(fixed.workload.schedule, ladder=True)
    climbing = dataclasses.replace(fixed, workload=msgspec.structs.replace(fixed.workload, schedule=schedule))
    slow = {"windows": FRAMES, "inject": ["slow:chain*1.4@20w"], "outputs": True, "force": True}
    plain, finer = (
        framefit.simulate(planned, output=tmp_path / name, **slow)  # type: ignore[arg-type]
        for planned, name in ((fixed, "fixed"), (climbing, "climbing"))
    )
    (switch,) = finer.metrics.switches
    assert switch.rung == "1.5"
    assert 20 <= switch.window <= 20 + 16
    assert finer.metrics.models[0].missed == 0
    before, after = (sum(model.completed for model in run.metrics.models[1:]) for run in (plain, finer))
    assert after > before
    assert_outputs(folder, 5)
    assert finer.profile is not None
    assert finer.profile.events.lost == 0


@pytest.mark.timed
@pytest.mark.skipif(len(available_cores()) < 2, reason="one core")
def test_rates_change_on_two_cores(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of two cores go over to other windows together; outputs are right, and every frame has a fate."""
    no_noise(monkeypatch)
    cores = sorted(available_cores())[-2:]
    path = app(folder, "cpu", CAMERA + CHANGE, rate_hz=50, schedule='preemption = "never"', more=SINK)
    text = path.read_text().replace("rate_hz = 50", f"cores = {cores}\nrate_hz = 50", 1)
    path.write_text(text.replace('name = "chain"\n', f'name = "chain"\nunits = ["cpu{cores[1]}"]\n', 1))
    result = framefit.run(path, windows=25, output=tmp_path / "run", force=True)
    assert [(one.window, one.rung) for one in result.metrics.switches] == [(15, "20Hz")]
    assert np.diff(result.releases_ns).tolist() == [20_000_000] * 15 + [50_000_000] * 9
    for model in ("small", "chain"):
        assert fates(result, model) == list(range(25))
    assert_outputs(folder, 1)
