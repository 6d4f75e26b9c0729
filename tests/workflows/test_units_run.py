"""Runs over several units: outputs, figures and files of two boards, and of two cores of this machine."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import pytest

from framefit import GraphBuilder, Model, Output, Plan, Runner, RunResult, plan, run, simulate
from framefit.core.files import read_record
from framefit.core.run_record import Metrics
from framefit.core.timetable import InstructionLists
from framefit.devices.device import Array
from framefit.devices.host import available_cores
from framefit.workflows.report import write_views
from networks import difference
from workloads import no_noise, write_app, write_models, write_target

FRAMES = 40
RATE_HZ = 100  # windows of 10 ms: the chain takes 17 on one unit
IMAGES = np.random.default_rng(1).standard_normal((FRAMES, 3, 16, 16)).astype(np.float32)
UNITS = ('name = "a"\ncore = 3', 'name = "b"\ncore = 5')
LINK = '[[links]]\nbetween = ["a", "b"]\nbandwidth_gbps = 0.5\nlatency_ns = 30_000\n'


def scorer() -> Model:
    """Reads what the chain gives, and the image that it made that of."""
    b = GraphBuilder("scorer", 3)
    features, image = b.input("features", (1, 24, 1, 1)), b.input("image", (1, 3, 16, 16))
    mean = b.op("GlobalAveragePool", image)
    b.output(b.op("Concat", b.op("Sigmoid", b.conv(features, 4, kernel=1)), mean, axis=1), "scores")
    return b.build()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, a board of two units, and images."""
    folder = write_models(tmp_path_factory.mktemp("units"))
    scorer().save(folder / "scorer.onnx")
    write_target(folder, "two.toml", units=UNITS)
    write_target(folder, "linked.toml", units=UNITS)
    with (folder / "linked.toml").open("a") as file:
        file.write(LINK)
    np.savez(folder / "camera.npz", IMAGES)
    return folder


def on_units(folder: Path, target: str = "two.toml", **given: Any) -> Path:
    """An ``app.toml`` for a board; the guard follows from the segments."""
    keys: dict[str, Any] = {"rate_hz": RATE_HZ, "guard_ms": None, "schedule": "", "target": target}
    keys["stream"] = 'source = "camera.npz"'
    app = write_app(folder, **keys | given)
    return app.rename(folder / f"{target}-{len(list(folder.glob('*.app.toml')))}.app.toml")


READER = """
[[models]]
name = "scorer"
path = "scorer.onnx"
priority = "background"
inputs = { features = "chain.pooled" }
[[outputs]]
model = "scorer"
sink = "scores.npz"
[[outputs]]
model = "chain"
sink = "chain.npz"
"""


@pytest.fixture(scope="module")
def planned(folder: Path) -> Plan:
    """A small priority model and a chain of which a unit serves less than a frame a window."""
    result = plan(on_units(folder, "linked.toml"))
    assert result.timetable.feasible
    assert len(result.timetable.model("chain").stages) >= 2
    return result


@pytest.fixture(scope="module")
def ran(planned: Plan, folder: Path) -> RunResult:
    """Three hundred windows of it, time only."""
    return simulate(planned, windows=300, seed=3, output=folder / "ran")


def expected(folder: Path, model: str, **inputs: Array) -> Array:
    """What ONNX Runtime says of the original file."""
    session = ort.InferenceSession(folder / f"{model}.onnx", providers=["CPUExecutionProvider"])
    (given,) = session.run(None, inputs)
    return np.asarray(given)


def scored(folder: Path, features: Array, image: Array) -> Array:
    """What the scorer makes of them."""
    return expected(folder, "scorer", features=features, image=image[None])


def test_two_units_serve_what_one_does_not(ran: RunResult, folder: Path) -> None:
    """Nearly every window has a result of the chain; on one unit every second one has; nothing is missed or too old."""
    small, chain = ran.metrics.models
    assert (small.missed, ran.metrics.misses) == (0, ())
    write_target(folder, "one.toml", units=UNITS[:1])
    alone = simulate(plan(on_units(folder, "one.toml")), windows=300, output=folder / "alone").metrics
    assert chain.throughput_hz >= 1.8 * alone.models[1].throughput_hz
    assert chain.throughput_hz >= 0.9 * (chain.fluid_bound_hz or 0) > 0
    assert chain.throughput_hz >= 0.95 * (chain.packing_bound_hz or 0) > 0
    bound = ran.timetable.model("chain").result_age_windows
    assert bound is not None
    assert chain.result_age_windows_max <= bound


def test_each_unit_has_its_figures(ran: RunResult) -> None:
    """Launches add up; what the residual was used for adds up; memory stays within the plan."""
    units = {unit.name: unit for unit in ran.metrics.units}
    assert set(units) == {"a", "b"}
    assert sum(unit.launches for unit in units.values()) == len(ran.launches)
    for name, unit in units.items():
        assert unit.launches == int((ran.timetable.program_units[ran.launches.program] == name).sum())
        used = unit.residual_utilisation_ratio + unit.guard_loss_ratio + unit.packing_loss_ratio
        assert used == pytest.approx(1)
        assert 0 < unit.peak_memory_bytes <= unit.planned_memory_bytes == ran.timetable.memory_bytes[name]
    assert ran.metrics.peak_memory_bytes == sum(unit.peak_memory_bytes for unit in units.values())
    assert read_record(ran.folder / "metrics.json", Metrics) == ran.metrics


def test_units_run_side_by_side_and_frames_in_order(ran: RunResult) -> None:
    """A unit does one thing at a time; stages begin when the link has carried what they need; frames stay in order."""
    units = ran.timetable.program_units[ran.launches.program]
    begins, ends = ran.seen.time_ns[0::2], ran.seen.time_ns[1::2]
    for unit in ("a", "b"):
        own = units == unit
        assert (begins[own][1:] >= ends[own][:-1]).all()
    assert any(begins[1:] < ends[:-1])
    chain, (link,) = ran.timetable.model("chain"), ran.timetable.links
    at = {
        (int(program), int(frame)): (begin, end)
        for program, frame, begin, end in zip(ran.launches.program, ran.launches.frame, begins, ends, strict=True)
    }
    cut = 0
    for stage in chain.stages[:-1]:
        cut += len(stage)  # the number of its last program: the small model's is 0
        carried = link.latency_ns + link.occupied_ns(stage[-1].boundary_bytes)
        handed = {frame: end for (program, frame), (_, end) in at.items() if program == cut}
        waits = [at[cut + 1, frame][0] - end for frame, end in handed.items() if (cut + 1, frame) in at]
        assert len(waits) > 250
        assert min(waits) >= carried - 1
    in_time = sorted(at, key=at.__getitem__)
    last = [frame for program, frame in in_time if program == len(chain.segments)]
    assert last == sorted(last)


def test_the_files_tell_of_both_units(ran: RunResult) -> None:
    """Packets of both cores, a track and a lane for each, and a list of instructions for each, as planned."""
    assert set(ran.trace.core.tolist()) == {3, 5}
    assert ran.profile is not None
    assert {"a", "b"} <= set(ran.profile.utilisation_by_unit)
    write_views(ran.folder, None)
    written = (ran.folder / "trace.pftrace").read_bytes()
    assert b"\x01a" in written
    assert b"\x01b" in written
    assert "units, from the top: a, b" in (ran.folder / "run.svg").read_text()
    lists = read_record(ran.folder / "instructions.json", InstructionLists)
    assert lists.hyperperiod_windows == ran.timetable.hyperperiod_windows
    slots = [slot for window in ran.timetable.windows for slot in window.slots]
    for unit, steps in lists.units.items():
        done = [(step.window, step.start_ns) for step in steps if step.kind == "run"]
        assert done == sorted(done)
        assert len(done) == sum(slot.unit == unit for slot in slots)
    moved = {(step.kind, step.source, step.target) for steps in lists.units.values() for step in steps}
    first, other = (stage[0].unit for stage in ran.timetable.model("chain").stages[:2])
    assert {("store", first, other), ("load", first, other)} <= moved


def test_every_frame_has_one_fate(ran: RunResult) -> None:
    """At each model; the same in the file."""
    with (ran.folder / "frames.csv").open() as file:
        rows = list(csv.DictReader(file))
    for model in ("small", "chain"):
        assert sorted(int(row["frame"]) for row in rows if row["model"] == model) == list(range(300))


def test_the_same_seed_gives_the_same_run(planned: Plan, ran: RunResult, tmp_path: Path) -> None:
    """Bit for bit, whatever unit does what."""
    again = simulate(planned, windows=300, seed=3, output=tmp_path / "again")
    for name in ("metrics.json", "frames.csv", "trace.npz", "launches.npz", "instructions.json"):
        assert (again.folder / name).read_bytes() == (ran.folder / name).read_bytes()


def test_outputs_over_units_and_models_that_read_others(folder: Path, tmp_path: Path) -> None:
    """They are what ONNX Runtime makes of the frame, through both models, in order; figures and fates are complete."""
    app = on_units(folder, "linked.toml", more=READER)
    result = simulate(plan(app), outputs=True, windows=FRAMES, output=tmp_path / "out", force=True)
    assert result.timetable.model("scorer").after == ("chain",)
    features, scores = np.load(folder / "chain.npz"), np.load(folder / "scores.npz")
    assert len(scores["frame"]) > FRAMES / 2
    for given in (features, scores):
        assert (np.diff(given["frame"]) > 0).all()
    for number, frame in enumerate(scores["frame"].tolist()):
        pooled = expected(folder, "chain", image=IMAGES[frame][None])
        assert difference({"": scored(folder, pooled, IMAGES[frame])}, {"": scores["scores"][number]}) <= 1e-4
    counts = {model.name: (model.releases, model.completed) for model in result.metrics.models}
    assert counts["scorer"][0] == FRAMES
    assert counts["scorer"][1] == len(scores["frame"])
    with (result.folder / "frames.csv").open() as file:
        rows = list(csv.DictReader(file))
    for model in ("small", "chain", "scorer"):
        assert sorted(int(row["frame"]) for row in rows if row["model"] == model) == list(range(FRAMES))
    dropped = {int(row["frame"]) for row in rows if row["model"] == "chain" and row["fate"] == "dropped"}
    lacking = {int(row["frame"]) for row in rows if row["reason"] == "a model that it reads did not give it"}
    assert lacking <= dropped
    for unit in result.metrics.units:
        assert unit.peak_memory_bytes <= unit.planned_memory_bytes


def test_a_runner_over_units_is_exact(planned: Plan, folder: Path, tmp_path: Path) -> None:
    """Frames that a program hands over: the same launches as of a simulation of the same frames, and their outputs."""
    simulated = simulate(planned, outputs=True, windows=FRAMES, output=tmp_path / "out")
    outputs: list[Output] = []
    with Runner(planned, virtual=True, drain=False, submitted=["camera"]) as runner:
        for image in IMAGES:
            runner.submit(image)
            outputs += runner.outputs()
        meanwhile = runner.metrics()
    result = runner.result()
    assert meanwhile.windows >= FRAMES - 1
    assert {unit.name for unit in meanwhile.units} == {"a", "b"}
    assert result.frames == simulated.frames
    begin, other = result.releases_ns[0], simulated.releases_ns[0]
    np.testing.assert_array_equal(result.launches.submit_ns - begin, simulated.launches.submit_ns - other)
    for one in outputs:
        wanted = {"pooled": expected(folder, one.model, image=IMAGES[one.frame][None])}
        assert difference(wanted, dict(one.tensors)) <= 1e-4
    frames = [one.frame for one in outputs if one.model == "chain"]
    assert len(frames) > FRAMES / 2
    assert frames == sorted(frames)


def test_a_runner_with_models_that_read_others(folder: Path) -> None:
    """A request is answered by all of them, under the frame's own number; what does not come is dropped there, too."""
    app = on_units(folder, "linked.toml", stream='source = "synthetic"', more=READER.partition("[[outputs]]")[0])
    with Runner(app, virtual=True) as runner:
        request = runner.request(IMAGES[0])
        found = request.result()
        assert set(found) == {"small", "chain", "scorer"}
        pooled = expected(folder, "chain", image=IMAGES[0][None])
        wanted = {"scores": scored(folder, pooled, IMAGES[0])}
        assert difference(wanted, dict(found["scorer"].tensors)) <= 1e-4
        for image in IMAGES[:12]:
            runner.submit(image)
    fates: dict[tuple[str, int], str] = {(one.model, one.frame): one.fate for one in runner.result().frames}
    assert len(fates) == 3 * 13
    for frame in range(13):
        if fates["chain", frame] == "dropped":
            assert fates["scorer", frame] == "dropped"


@pytest.mark.timed
@pytest.mark.skipif(len(available_cores()) < 2, reason="one core")
@pytest.mark.parametrize("preemption", ["never", "auto"])
def test_outputs_of_threads_on_two_cores(
    preemption: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All models' outputs are those of the files, in order, through what reads what; every frame has a fate."""
    no_noise(monkeypatch)
    app = on_units(folder, "cpu", rate_hz=50, guard_ms=1.0, schedule=f'preemption = "{preemption}"', more=READER)
    cores = sorted(available_cores())[-2:]
    app.write_text(app.read_text().replace("rate_hz = 50", f"cores = {cores}\nrate_hz = 50"))
    text = app.read_text()
    spread = f'units = ["cpu{cores[0]}"]\n'
    app.write_text(text.replace('name = "chain"\n', f'name = "chain"\n{spread}'))
    result = run(app, windows=20, output=tmp_path / "out", force=True)
    assert set(result.timetable.units) == {f"cpu{core}" for core in cores} or len(result.timetable.units) == 1
    scores = np.load(folder / "scores.npz")
    for number, frame in enumerate(scores["frame"].tolist()):
        pooled = expected(folder, "chain", image=IMAGES[frame][None])
        wanted = {"": scored(folder, pooled, IMAGES[frame])}
        assert difference(wanted, {"": scores["scores"][number]}) <= 1e-4
    assert len(scores["frame"]) > 0
    assert (np.diff(scores["frame"]) > 0).all()
    counts = {one.name: one.releases for one in result.metrics.models}
    assert counts == dict.fromkeys(("small", "chain", "scorer"), 20)
    assert msgspec.json.decode((result.folder / "metrics.json").read_bytes())["units"]
