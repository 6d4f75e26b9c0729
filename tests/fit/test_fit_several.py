"""``fit`` of workloads in which several models are too slow, or one loses accuracy in several steps."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import framefit
from fit_workloads import fitted, outcomes, write_fit_app
from framefit import load_workload


@pytest.mark.usefixtures("quick")
def test_each_of_two_models_gives_its_part(place: Path) -> None:
    """Where no model alone can make up for what is missing both become cheaper, one after the other."""
    app = write_fit_app(place, rate_hz=330, slow=("net", "twin"))
    data = dict.fromkeys(("net", "twin"), place / "data.npz")
    done = fitted(app, data=data, max_drop=0.5, exclude=["trees", "rate"])
    assert done.result.fits
    assert {one for one in outcomes(done) if one[0] != "cuts"} == {("sparsify", "kept"), ("verify", "verified")}
    sparse = [step for step in done.result.steps if step.name == "sparsify"]
    assert [step.model for step in sparse] == ["net", "twin"]
    loads = [step.load_ratio[1] or 0.0 for step in sparse]
    assert done.result.before.load_ratio > loads[0] > loads[1]
    assert {model.name for model in done.result.models} == {"net", "twin"}
    assert all(model.test is not None for model in done.result.models)


@pytest.mark.usefixtures("quick")
def test_a_model_without_data_gets_fewer_frames(place: Path) -> None:
    """The other one is made cheaper; a note says what data would have permitted."""
    app = write_fit_app(place, rate_hz=330, slow=("net", "twin"))
    done = fitted(app, data={"net": place / "data.npz"}, max_drop=0.5, exclude=["trees"])
    assert done.result.fits
    assert {step.model for step in done.result.steps if step.name == "sparsify"} == {"net"}
    assert ("rate", "kept") in outcomes(done)
    spacing = {entry.name: entry.spacing for entry in load_workload(place / "out" / "app.toml").models}
    assert spacing["twin"] > 1
    assert any("--data twin=DATA" in note for note in done.result.notes)


@pytest.mark.usefixtures("quick")
def test_what_several_steps_cost_counts_together(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was quantised and is not fast enough is made sparse, quantised again, and judged as it will run."""
    monkeypatch.setattr(import_module("framefit.fit.steps.sparsify"), "_LEAST", 0.65)
    app = write_fit_app(place, macs="fp32 = 64, int8 = 80")
    done = fitted(app, data=place / "data.npz", max_drop=0.5, exclude=["trees"])
    assert done.result.fits
    assert outcomes(done) == [("int8", "kept"), ("sparsify", "kept"), ("verify", "verified")]
    first, second = done.result.steps[:2]
    assert "quantised again" in second.detail
    assert first.accuracy is not None
    assert second.accuracy is not None
    (model,) = done.result.models
    assert model.int8 != "no"
    assert model.cycles_ratio < 1
    assert model.float_path != model.path
    assert model.drop <= 0.5
    assert model.drop - model.float_drop == pytest.approx(0, abs=0.1)


def _chain(path: Path, layers_us: Sequence[int]) -> None:
    """A chain of products whose names say what they take."""
    names = ["x", *(f"t{index}" for index in range(1, len(layers_us))), "y"]
    weights = [numpy_helper.from_array(np.eye(8, dtype=np.float32), f"w{index}") for index in range(len(layers_us))]
    nodes = [
        helper.make_node("MatMul", [names[index], f"w{index}"], [names[index + 1]], name=f"L_{us}_{index}")
        for index, us in enumerate(layers_us)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_frames_that_a_simulation_misses_are_kept_in_time_without_cost(tmp_path: Path) -> None:
    """Launches are shorter than planned, so two of "deep" fit where one was planned, and "wide" loses its turn.

    It is served first, and no model gets fewer frames for a margin.
    """
    for name, layers_us in {"first": [100], "wide": [460], "deep": [595] * 4}.items():
        _chain(tmp_path / f"{name}.onnx", layers_us)
    (tmp_path / "costs.py").write_text(
        "def ns(layer, unit, target):\n    return float(layer.name.split('_')[1]) * 1e3\n", encoding="utf-8"
    )
    (tmp_path / "target.toml").write_text(
        'name = "one"\nkind = "npu"\n[cost]\nsource = "function"\nfunction = "costs:ns"\n[[units]]\nname = "u0"\n'
        "[variation]\nsigma_ratio = 0.03\nmost_ratio = 0.15\n",
        encoding="utf-8",
    )
    models = (("first", "every-window", 1), ("wide", "background", 1), ("deep", "background", 4))
    entries = "".join(
        f'[[models]]\nname = "{name}"\npath = "{name}.onnx"\npriority = "{role}"\nevery = {every}\n'
        for name, role, every in models
    )
    app = tmp_path / "app.toml"
    app.write_text(f'target = "target.toml"\nrate_hz = 720\n{entries}', encoding="utf-8")
    done = framefit.fit(app, apply=True, output=tmp_path / "out", verify_seconds=1)
    assert done.result.verdict == "fits"
    assert [(step.name, step.outcome) for step in done.result.steps] == [
        ("verify", "missed"),
        ("levels", "kept"),
        ("verify", "verified"),
    ]
