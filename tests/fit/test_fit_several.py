"""``fit`` of workloads in which several models are too slow, or one loses accuracy in several steps."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

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
    assert first.top1 is not None
    assert second.top1 is not None
    (model,) = done.result.models
    assert model.int8 != "no"
    assert model.cycles_ratio < 1
    assert model.float_path != model.path
    assert model.drop <= 0.5
    assert model.drop - model.float_drop == pytest.approx(0, abs=0.1)
