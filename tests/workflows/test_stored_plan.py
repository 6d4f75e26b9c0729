"""Plans that are written, and run later: as if planned and run at once, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import framefit
from framefit import GraphBuilder, InfeasibleError, InputError, Timetable
from framefit.core.files import read_record
from framefit.execution.execution import Execution
from framefit.workflows.plan import read_plan
from workloads import no_noise, write_app, write_models, write_target

WINDOWS = 120
TWO = ('name = "a"', 'name = "b"\ncore = 1')
NO_HURRY = 'preemption = "never"'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, a recurrent one among them, frames, and boards of one and of two units."""
    folder = write_models(tmp_path_factory.mktemp("stored"))
    b = GraphBuilder("recurrent", 3)
    state = b.input("state", (1, 24, 16, 16))
    x = b.conv(b.input("image", (1, 3, 16, 16)), 24, activation="Relu")
    for _ in range(4):
        x = b.conv(x, 24, activation="Relu")
    b.output(b.op("Add", x, state), "next")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    b.build().save(folder / "recurrent.onnx")
    write_target(folder)
    write_target(folder, "two.toml", units=TWO)
    np.savez(folder / "camera.npz", frames=np.random.default_rng(0).random((WINDOWS, 3, 16, 16), np.float32))
    return folder


CASES: dict[str, dict[str, Any]] = {
    "cut": {"rate_hz": 75},
    "whole": {"rate_hz": 20},
    "two units": {"target": "two.toml", "rate_hz": 90},
    "ladder": {"rate_hz": 40, "schedule": f"{NO_HURRY}\nladder = true"},
    "announced rates": {
        "rate_hz": None,
        "stream": 'source = "synthetic"\nrate_hz = 40\nchanges = [{ after_s = 1, rate_hz = 25 }]',
    },
    "two units, announced rates": {
        "target": "two.toml",
        "rate_hz": None,
        "stream": 'source = "synthetic"\nrate_hz = 90\nchanges = [{ after_s = 0.5, rate_hz = 60 }]',
    },
    "state": {"background": ("recurrent",), "rate_hz": 100, "last": 'state = { state = "next" }\nalways_split = true'},
    "two streams": {
        "rate_hz": None,
        "stream": 'source = "synthetic"\nrate_hz = 60',
        "model": 'inputs = { image = "camera" }',
        "last": 'inputs = { image = "other" }',
        "more": '[[streams]]\nname = "other"\nrate_hz = 25\n',
    },
}


def app_of(folder: Path, name: str, **more: Any) -> Path:
    """The workload of a case, under a name of its own."""
    given = {"target": "target.toml", "guard_ms": None} | CASES[name] | more
    rate_hz = given.pop("rate_hz")
    written = write_app(folder, rate_hz=rate_hz or 1.0, **given)
    text = written.read_text()
    path = folder / f"{name.replace(' ', '-').replace(',', '')}.toml"
    path.write_text(text if rate_hz else text.replace("rate_hz = 1.0\n", "", 1))
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_stored_plan_runs_as_the_plan_does(name: str, folder: Path, tmp_path: Path) -> None:
    """Planned and simulated at once, from the plan's file, from its folder, from the run's folder: one result."""
    app = app_of(folder, name)
    at_once = framefit.simulate(app, windows=WINDOWS, seed=5, output=tmp_path / "once")
    framefit.plan(app, output=tmp_path / "plan.json")
    planned = framefit.plan(app, output=tmp_path / "plan")
    assert (tmp_path / "plan" / "instructions.json").is_file()
    for stored in (tmp_path / "plan.json", tmp_path / "plan", tmp_path / "once"):
        later = framefit.simulate(stored, windows=WINDOWS, seed=5, output=tmp_path / "later", force=True)
        for file in ("metrics.json", "frames.csv", "program.json", "timetable.json"):
            assert (later.folder / file).read_bytes() == (at_once.folder / file).read_bytes(), (stored, file)
        assert np.array_equal(later.launches.submit_ns, at_once.launches.submit_ns)
        assert np.array_equal(later.trace.time_ns, at_once.trace.time_ns)
    stored_timetable = read_record(tmp_path / "plan.json", Timetable)
    assert msgspec.structs.replace(stored_timetable, source=None) == planned.timetable
    if name in ("ladder", "announced rates", "two units, announced rates"):
        assert stored_timetable.ladder is not None
        assert len(stored_timetable.timetables) > 1


@pytest.mark.parametrize("name", ["cut", "state"])
def test_outputs_from_a_stored_plan(name: str, folder: Path, tmp_path: Path) -> None:
    """Frames are read, models compute, and state goes from frame to frame as it does at once."""
    model = CASES[name].get("background", ("chain",))[0]
    sink = f'[[outputs]]\nmodel = "{model}"\ntensors = ["pooled"]\nsink = "{tmp_path}/out.npz"\n'
    app = app_of(folder, name, stream='source = "camera.npz"', more=sink)
    framefit.plan(app, output=tmp_path / "plan.json")
    found = []
    for number, given in enumerate((app, tmp_path / "plan.json")):
        framefit.simulate(given, outputs=True, force=True, output=tmp_path / f"run-{number}")
        with np.load(tmp_path / "out.npz") as arrays:
            found.append({key: arrays[key] for key in arrays.files})
    assert found[0].keys() == found[1].keys()
    assert len(found[0]["frame"]) > WINDOWS // 4
    for key in found[0]:
        assert np.array_equal(found[0][key], found[1][key])


def test_nothing_is_planned_or_measured(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored plan is opened as it is: no model is priced, no cut tried, no output compared."""
    framefit.plan(app_of(folder, "cut"), output=tmp_path / "plan.json")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("must not be called")

    for name in (
        "framefit.planning.planner.plan_request",
        "framefit.workflows.plan.plan_request",
        "framefit.planning.durations.measure",
        "framefit.planning.durations.measure_floor",
        "framefit.execution.compiled.greatest_difference",
    ):
        monkeypatch.setattr(name, refuse)
    result = framefit.simulate(tmp_path / "plan.json", windows=20, output=tmp_path / "run")
    assert result.metrics.windows == 20


def test_cuts_of_what_the_runtime_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine a model is cut into the runtime's operators: opened again, it has the same segments."""
    no_noise(monkeypatch)
    app = write_app(folder, last="always_split = true")
    planned = framefit.plan(app, output=tmp_path / "plan.json", cache=False)
    chain = planned.timetable.model("chain")
    assert chain.layers is not None
    assert chain.layers.kind == "operators"
    assert len(chain.segments) > 1
    again = read_plan(tmp_path / "plan.json")
    assert again.timetable == planned.timetable
    frames: list[dict[str, Any]] = []
    for plan in (planned, again):
        model = next(model for model in plan.opened().models if model.name == "chain")
        execution: Execution = model.execution
        assert execution.bounds == chain.spans
        assert execution.model.lowered
        assert model.difference() <= 1e-4
        frames.append(execution.run(execution.example(np.random.default_rng(1))))
    assert np.array_equal(frames[0]["pooled"], frames[1]["pooled"])


def test_cuts_of_what_the_runtime_runs_without_its_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process finds an empty one, and the runtime orders its operators otherwise: the plan holds."""
    no_noise(monkeypatch)
    b = GraphBuilder("heads", 3)
    image = b.input("image", (1, 16, 8, 8))
    b.output(b.op("Concat", *(b.conv(image, 16, activation="Relu") for _ in range(6)), axis=3), "joined")
    b.build().save(tmp_path / "heads.onnx")
    shutil.copy(folder / "small.onnx", tmp_path)
    app = write_app(tmp_path, background=("heads",), last="always_split = true")
    planned = framefit.plan(app, output=tmp_path / "plan.json", cache=False)
    heads = planned.timetable.model("heads")
    assert heads.layers is not None
    assert heads.layers.kind == "operators"
    for number in range(3):
        monkeypatch.setenv("FRAMEFIT_CACHE", str(tmp_path / f"cache{number}"))
        opened = read_plan(tmp_path / "plan.json").opened()
        assert next(model for model in opened.models if model.name == "heads").execution.bounds == heads.spans


def started(plan: Path, *, output: Path) -> None:
    """A runner's life without a frame."""
    with framefit.Runner(plan, output=output, virtual=True):
        pass


@pytest.mark.parametrize("verb", [framefit.simulate, started])
def test_a_stored_plan_that_does_not_fit(verb: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    """It says what the plan said, and not that a model has changed."""
    write_target(tmp_path)
    for name in ("small.onnx", "chain.onnx"):
        shutil.copy(folder / name, tmp_path / name)
    planned = framefit.plan(write_app(tmp_path, target="target.toml", rate_hz=20000), output=tmp_path / "plan.json")
    assert planned.timetable.binding_constraint
    with pytest.raises(InfeasibleError, match="do not fit") as error:
        verb(tmp_path / "plan.json", output=tmp_path / "run")
    assert planned.timetable.binding_constraint in str(error.value)


@pytest.fixture
def stored(folder: Path, tmp_path: Path) -> Path:
    """A stored plan of models and a board of its own."""
    for name in ("small.onnx", "chain.onnx"):
        shutil.copy(folder / name, tmp_path / name)
    write_target(tmp_path)
    app = write_app(tmp_path, target="target.toml", guard_ms=None, rate_hz=75)
    framefit.plan(app, output=tmp_path / "plan.json")
    app.unlink()  # not needed any more
    framefit.simulate(tmp_path / "plan.json", windows=3, output=tmp_path / "run")
    return tmp_path / "plan.json"


def other_model(stored: Path) -> None:
    """Other weights, the same layers."""
    b = GraphBuilder("small", 9)
    x = b.conv(b.input("image", (1, 3, 16, 16)), 8, activation="Relu")
    b.output(b.op("GlobalAveragePool", x), "pooled")
    b.build().save(stored.parent / "small.onnx", force=True)


def other_board(stored: Path) -> None:
    """A slower one of the same name."""
    write_target(stored.parent, processor="clock_mhz = 90\nmacs_per_cycle = { fp32 = 64 }")


def no_model(stored: Path) -> None:
    """It was removed."""
    (stored.parent / "chain.onnx").unlink()


def no_source(stored: Path) -> None:
    """As an earlier version wrote it."""
    data = json.loads(stored.read_text())
    del data["source"]
    stored.write_text(json.dumps(data))


def other_version(stored: Path) -> None:
    """A key that nobody knows."""
    data = json.loads(stored.read_text())
    data["source"]["wokload"] = {}
    stored.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_model, "'small' is another one than the plan was made for"),
        (other_board, "made for another device: its description"),
        (no_model, "'chain' is not there any more"),
        (no_source, "does not say what it was made of"),
        (other_version, "wokload"),
    ],
)
@pytest.mark.parametrize("verb", [framefit.simulate, framefit.Runner])
def test_what_has_changed_is_refused(
    change: Callable[[Path], None], says: str, verb: Callable[..., Any], stored: Path, tmp_path: Path
) -> None:
    """Rather than run wrongly: what, where, and how to plan again."""
    change(stored)
    with pytest.raises(InputError, match=says) as error:
        verb(stored, output=tmp_path / "refused")
    assert error.value.where is not None
    assert error.value.remedy
    assert not (tmp_path / "refused").exists()


def test_options_of_planning_do_not_go_with_a_stored_plan(stored: Path, tmp_path: Path) -> None:
    """Its target and durations are in it; a plan for virtual time is not run in real time."""
    with pytest.raises(InputError, match="has its target"):
        framefit.simulate(stored, target="vpu", output=tmp_path / "out")
    with pytest.raises(InputError, match="has its target"):
        framefit.run(stored, cache=False, output=tmp_path / "out")
    with pytest.raises(InputError, match="virtual time"):
        framefit.run(stored, windows=3, output=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"timetable\.json"):
        framefit.simulate(tmp_path / "empty", output=tmp_path / "out")


def test_a_program_runs_a_stored_plan(stored: Path) -> None:
    """A runner takes it as it takes a plan."""
    with framefit.Runner(stored, virtual=True) as runner:
        runner.submit(np.zeros((1, 3, 16, 16), np.float32))
        runner.step(3)
        assert {output.model for output in runner.outputs()} == {"small", "chain"}


def test_a_plan_folder_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    """Nor is anything else that is there."""
    app = app_of(folder, "whole")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(InputError):
            framefit.plan(app, output=tmp_path / "mine", force=force)
    framefit.plan(app, output=tmp_path / "plan")
    with pytest.raises(InputError, match="already exists"):
        framefit.plan(app, output=tmp_path / "plan")
    framefit.plan(app, output=tmp_path / "plan", force=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_programs_are_numbered_through_all_cuts(folder: Path) -> None:
    """The plan's, each rung's, then the finest; within each the models in the plan's order."""
    timetable = framefit.plan(app_of(folder, "ladder")).timetable
    sizes = [len(model.segments) for models in timetable.cuts for model in models]
    firsts = [first for row in timetable.first_programs for first in row]
    assert firsts == [0, *np.cumsum(sizes)[:-1].tolist()]
    assert len(timetable.launched.program_units) == sum(sizes)
    assert timetable.ladder is not None
    for finest, *ways in zip(timetable.ladder.finest, *timetable.cuts, strict=True):
        edges = {first for first, _ in finest.spans}
        assert all({first for first, _ in way.spans} <= edges for way in ways)
