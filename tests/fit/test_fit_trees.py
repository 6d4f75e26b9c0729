"""Trees as the step that makes a workload fit: judged by the target's times, within what accuracy is left."""

from __future__ import annotations

import functools
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fit_workloads import fitted, outcomes, write_fit_app
from framefit import InfeasibleError, InputError, fit, plan, treeify
from framefit.core.files import read_record
from framefit.core.model import Model, listing, with_weights
from framefit.core.tree_results import TreeifySettings
from framefit.core.trees import tree_layers

BRIEF = {"first": 1, "layers": 2, "trees": 8, "examples": 100, "finetune_batches": 8}


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees for the residual block only, few of them, and little fine-tuning."""
    monkeypatch.setattr("framefit.workflows.search.treeify", functools.partial(treeify, **BRIEF))


def only_trees(place: Path, **changed: Any) -> dict[str, Any]:
    """A fit on a target with many lanes, of which zeros save nothing and fewer frames are not wanted."""
    app = write_fit_app(place, processor="vector_lanes = 64", sparsity='skips = "none"', **changed)
    return {"app": app, "data": place / "data.npz", "exclude": ["sparsify", "rate"]}


@pytest.mark.usefixtures("brief")
def test_trees_are_what_is_left_and_a_search_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in fine-tuning, the step goes on with the trees that were fitted, and is enough."""
    from framefit.trees import campaign as rounds
    from framefit.trees.search import Ground

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "tuned", interrupted)
        first = fitted(**only_trees(place))
    assert first.result.interrupted
    assert first.result.steps == ()
    search = place / "out" / "steps" / "01-trees-net" / "search"
    before = read_record(search / "treeify.json", TreeifySettings)
    with monkeypatch.context() as patch:
        patch.setattr(Ground, "draft", lambda *_: pytest.fail("trees were fitted again"))
        done = fit(resume=place / "out")
    assert read_record(search / "treeify.json", TreeifySettings) == before
    assert outcomes(done) == [("trees", "kept"), ("verify", "verified")]
    assert done.result.fits
    (model,) = done.result.models
    assert model.trees
    assert model.test is not None
    assert model.test.drop <= 0.2
    assert tree_layers(Model.load(place / "out" / "models" / "net.onnx")) != ()
    assert plan(place / "out" / "app.toml").timetable.feasible
    step = done.result.steps[0]
    assert step.load_ratio[1] is not None
    assert step.load_ratio[1] < 0.8 * step.load_ratio[0]


@pytest.mark.usefixtures("quick")
def test_trees_may_lose_what_earlier_steps_left(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are fitted to the network as it is, and judged by the unit that runs it; what fails says why."""
    asked: dict[str, Any] = {}

    def noted(model: Model, *_: object, **options: Any) -> None:
        asked.update(options, zeros=sum(int((a == 0).sum()) for a in listing(model).arrays.values()))
        raise InfeasibleError("no group is worth replacing")

    monkeypatch.setattr("framefit.workflows.search.treeify", noted)
    monkeypatch.setattr(import_module("framefit.fit.steps.sparsify"), "_LEAST", 0.7)
    done = fitted(write_fit_app(place), data=place / "data.npz", exclude=["int8", "rate"], max_drop=0.5)
    assert outcomes(done)[0] == ("sparsify", "kept")
    assert outcomes(done)[-1] == ("trees", "failed")
    assert "no group is worth replacing" in done.result.steps[-1].detail
    (model,) = done.result.models
    assert asked["max_drop"] == pytest.approx(0.5 - model.drop)
    assert asked["zeros"] > 1000
    assert (asked["target"], asked["unit"]) == (str(place / "target.toml"), "npu0")


def test_trees_are_offered_where_a_unit_runs_them(place: Path) -> None:
    """A unit without the operator takes none, and no search is begun in vain."""
    for unit, offered in (("", {"net", "other", "small"}), ('unsupported = ["Trees"]', set())):
        app = write_fit_app(place, unit=f'name = "npu0"\n{unit}')
        proposals = fit(app, data={"net": place / "data.npz"}).result.proposals
        assert {one.model for one in proposals if one.name == "trees"} <= offered
        assert any(one.name == "trees" for one in proposals) == bool(offered)


def test_the_target_decides_which_trees_are_fast(place: Path, tmp_path: Path) -> None:
    """Its description tells times, the same each time; where it adds slowly no group is worth replacing for speed."""
    write_fit_app(place, processor="vector_lanes = 64")
    network = Model.load(place / "net.onnx")
    options = BRIEF | {"objective": "speed", "max_drop": 1.0, "finetune": "none", "target": place / "target.toml"}
    done = treeify(network, place / "data.npz", output=tmp_path / "fast", **options)
    (candidate,) = done.result.candidates
    assert done.result.chosen is not None
    assert candidate.latency_ns is not None
    assert candidate.layers_latency_ns is not None
    assert candidate.layers_latency_ns == 20_000 + 200 * (2 * 24 * 24 * 9 + 2 * 24)  # convolutions; sum and activation
    assert candidate.latency_ns < candidate.layers_latency_ns / 2
    assert done.result.notes[-1].endswith(f"of target {place / 'target.toml'}")
    write_fit_app(place, processor="vector_lanes = 1")
    slow = treeify(network, place / "data.npz", output=tmp_path / "slow", **options)
    assert slow.result.chosen is None
    with pytest.raises(InputError, match="has no unit 'npu1'"):
        treeify(network, place / "data.npz", output=tmp_path / "none", **options, unit="npu1")


def test_zeros_stay_zero(place: Path, tmp_path: Path) -> None:
    """A sparse network with trees in it is as sparse as before, fine-tuned or not."""
    network = Model.load(place / "net.onnx")
    stem = "weight_1"
    weight = listing(network).arrays[stem].copy()
    weight[np.abs(weight) < np.median(np.abs(weight))] = 0
    done = treeify(
        with_weights(network, {stem: weight}), place / "data.npz", output=tmp_path / "out", max_drop=1.0, **BRIEF
    )
    assert done.model is not None
    after = listing(done.model).arrays[stem]
    assert np.array_equal(after == 0, weight == 0)
    assert not np.array_equal(after, weight)
