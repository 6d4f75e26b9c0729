"""Models with replicas from the plan to the run: what is served, in which order, and what a failing unit costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import framefit
from framefit.planning.beat import Beat
from framefit.planning.playback import median_rates


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A priority model of 2 ms and a background model of three layers of 25 ms, on two equal units."""
    _write(tmp_path / "face.onnx", [2])
    _write(tmp_path / "big.onnx", [25, 25, 25])
    (tmp_path / "costs.py").write_text(
        "def ns(layer, unit, target):\n    return float(layer.name.split('_')[1]) * 1e6\n", encoding="utf-8"
    )
    (tmp_path / "target.toml").write_text(
        'name = "two"\nkind = "npu"\n[cost]\nsource = "function"\nfunction = "costs:ns"\n'
        '[[units]]\nname = "u0"\n[[units]]\nname = "u1"\n[variation]\nsigma_ratio = 0.02\nmost_ratio = 0.1\n',
        encoding="utf-8",
    )
    path = tmp_path / "app.toml"
    path.write_text(
        'target = "target.toml"\nrate_hz = 30\n'
        '[[models]]\nname = "face"\npath = "face.onnx"\npriority = "every-window"\n'
        '[[models]]\nname = "big"\npath = "big.onnx"\npriority = "background"\n'
        '[[outputs]]\nmodel = "big"\nsink = "big.npz"\n',
        encoding="utf-8",
    )
    return path


def _write(path: Path, layers_ms: Sequence[float]) -> None:
    """A chain of products whose names say what they take."""
    names = ["x", *(f"t{index}" for index in range(1, len(layers_ms))), "y"]
    weights = [numpy_helper.from_array(np.eye(8, dtype=np.float32), f"w{index}") for index in range(len(layers_ms))]
    nodes = [
        helper.make_node("MatMul", [names[index], f"w{index}"], [names[index + 1]], name=f"L_{ms}_{index}")
        for index, ms in enumerate(layers_ms)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_two_equal_units_serve_twenty_frames_a_second(app: Path) -> None:
    """In stages it would be 15; no result is older than its bound, and the priority model misses nothing."""
    plan = framefit.plan(app).timetable
    big = plan.model("big")
    assert plan.feasible
    assert [{segment.unit for segment in replica.segments} for replica in big.replicas] == [{"u0"}, {"u1"}]
    result = framefit.simulate(app, windows=600, output=app.parent / "run")
    face, served = result.metrics.models
    assert served.completed / 20 >= 19.5
    assert face.missed == 0
    assert big.result_age_windows is not None
    assert served.result_age_windows_max is not None
    assert served.result_age_windows_max <= big.result_age_windows
    stored = json.loads((app.parent / "run" / "timetable.json").read_text(encoding="utf-8"))["models"][1]
    assert [segment["replica"] for segment in stored["segments"]] == [0, 0, 0, 1, 1, 1]


def test_a_run_gives_each_replica_its_turns(app: Path) -> None:
    """On a unit that is slower by two fifths: what is served is what playing the plan at medians promises."""
    (app.parent / "costs.py").write_text(
        "def ns(layer, unit, target):\n"
        "    return float(layer.name.split('_')[1]) * 1e6 / (0.6 if unit == 'u1' else 1.0)\n",
        encoding="utf-8",
    )
    _write(app.parent / "face.onnx", [4])
    _write(app.parent / "big.onnx", [6, 4, 5, 8, 7, 12, 5, 10, 5, 10, 6, 7, 13, 4, 7, 5])
    plan = framefit.plan(app)
    timetable = plan.timetable
    assert len(set(timetable.model("big").replica_turns)) > 1
    beat = Beat(timetable.window_ns, timetable.guard_ns)
    played, _ = median_rates(beat, timetable.models, 400)
    result = framefit.simulate(plan, windows=800, output=app.parent / "run")
    assert result.metrics.models[1].completed / 800 == pytest.approx(played["big"], rel=0.06)


def test_replicas_on_one_unit_fill_windows_that_one_alone_does_not(app: Path) -> None:
    """Of 3.7 windows that layers would need if they were divisible, one replica alone takes 4.5."""
    _write(app.parent / "face.onnx", [14])
    _write(app.parent / "big.onnx", [4.5, 3.3, 4.6, 5.8, 7.5, 3.0, 4.7, 5.3, 4.9, 5.2, 4.7, 6.1, 7.5, 4.2])
    target = app.parent / "target.toml"
    target.write_text(target.read_text(encoding="utf-8").replace('[[units]]\nname = "u1"\n', ""), encoding="utf-8")
    plan = framefit.plan(app)
    big = plan.timetable.model("big")
    assert len(big.replicas) > 1
    assert plan.timetable.yields
    result = framefit.simulate(plan, windows=600, output=app.parent / "run")
    face, served = result.metrics.models
    assert served.completed / 600 > 0.24
    assert face.missed == 0
    assert served.result_age_windows_max is not None
    assert big.result_age_windows is not None
    assert served.result_age_windows_max <= big.result_age_windows


def test_results_come_in_the_order_of_the_frames(app: Path) -> None:
    """Outputs of both replicas go to one sink; each is what the frame's own launches gave."""
    framefit.simulate(app, windows=90, output=app.parent / "run", outputs=True)
    with np.load(app.parent / "big.npz") as results:
        frames, outputs = results["frame"], results["y"]
    assert len(frames) >= 50
    assert (np.diff(frames) > 0).all()
    whole = framefit.simulate(_alone(app), windows=90, output=app.parent / "alone", outputs=True)
    assert whole.metrics.models[0].completed > 20
    with np.load(app.parent / "big.npz") as results:
        same = dict(zip(results["frame"].tolist(), results["y"], strict=True))
    compared = [(output, same[frame]) for frame, output in zip(frames.tolist(), outputs, strict=True) if frame in same]
    assert compared
    assert all(np.array_equal(one, other) for one, other in compared)


def _alone(app: Path) -> Path:
    """The same model on one unit."""
    text = app.read_text(encoding="utf-8").split("[[models]]")
    path = app.with_name("alone.toml")
    path.write_text(text[0] + "[[models]]" + text[2] + 'units = ["u0"]\n', encoding="utf-8")
    (before, after) = path.read_text(encoding="utf-8").split("[[outputs]]")
    path.write_text(before + 'units = ["u0"]\n[[outputs]]' + after.replace('units = ["u0"]\n', ""), encoding="utf-8")
    (app.parent / "big.npz").unlink()
    return path


def test_frames_of_a_failing_unit_go_to_the_other(app: Path) -> None:
    """The replica that is left serves ten a second, in order; the model is not degraded."""
    result = framefit.simulate(app, windows=300, output=app.parent / "run", inject=["raise:u1@2s.."])
    big = result.metrics.models[1]
    assert not big.degraded
    done = big.completed
    assert done >= 2 * 19 + 8 * 9.5
    assert any("u1" in note and "went on" in note for note in result.warnings)


def test_what_a_plan_gives_deep_models_is_what_a_long_run_serves(app: Path) -> None:
    """Its pattern begins with idle units and ends with frames in flight: it shows a tenth too few."""
    _write(app.parent / "big.onnx", [25] * 20)
    plan = framefit.plan(app)
    timetable, big = plan.timetable, plan.timetable.model("big")
    shown_hz = 30 * timetable.launches_of("big") / timetable.hyperperiod_windows
    result = framefit.simulate(plan, windows=900, output=app.parent / "run")
    assert big.served_hz > 1.05 * shown_hz
    assert result.metrics.models[1].completed / 30 == pytest.approx(big.served_hz, rel=0.03)


def test_a_ladder_has_one_replica_each(app: Path) -> None:
    """Timetables that a run may change between have the cuts of each model in common."""
    app.write_text(app.read_text(encoding="utf-8").replace("[[models]]", "[schedule]\nladder = true\n[[models]]", 1))
    assert all(len(model.replicas) == 1 for model in framefit.plan(app).timetable.models)
