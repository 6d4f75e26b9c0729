"""``fit`` on described devices: from a workload that does not fit to one that does, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import framefit
from fit_workloads import fitted, outcomes, write_fit_app
from framefit import DeviceError, InputError, fit, load_workload, plan, simulate
from framefit.core.files import read_record, write_record, write_whole
from framefit.core.fit_results import FinalAccuracy, FitResult, FittedModel, Standing
from framefit.core.model import GraphBuilder, Model, listing
from framefit.core.run_record import TargetList
from framefit.fit.accuracy import Labelled
from framefit.fit.loop import Fitted
from framefit.fit.situation import Situation
from framefit.training.evaluate import Accuracy
from networks import write_voice
from workloads import listing as files_in
from workloads import write_app, write_models, write_target

FREE = ("cuts", "levels", "queues", "units")  # steps that cost nothing; looking for them takes plans
HALF = Accuracy(
    top1=0.5, top1_interval=(0.4, 0.6), top5=0.5, top5_interval=(0.4, 0.6), loss=1.0, images=100, seconds=0.0
)


def standings(done: Fitted) -> tuple[Standing, Standing]:
    """Before and after."""
    return done.result.before, done.result.after


def test_a_workload_that_fits_is_only_proven(place: Path) -> None:
    """No step is taken, and what is written runs as it is."""
    done = fitted(write_fit_app(place, rate_hz=300))
    assert done.result.fits
    assert done.result.verified is not None
    assert (done.result.verified.by, done.result.verified.missed) == ("simulated", 0)
    assert outcomes(done) == [("verify", "verified")]
    assert plan(place / "out" / "app.toml").timetable.feasible


def test_the_cycles_that_are_missing_are_taken_out(place: Path) -> None:
    """A model 1.6 times too slow is made sparse, within its accuracy; its results come at the rate of its frames."""
    app = write_fit_app(place)
    before = files_in(place)
    done = fitted(app, data=place / "data.npz")
    result = done.result
    assert (result.fits, result.verified is not None, result.before.fits) == (True, True, False)
    assert outcomes(done) == [("sparsify", "kept"), ("verify", "verified")]
    step = result.steps[0]
    assert step.gained == pytest.approx(step.predicted, abs=0.05)
    assert step.gained == pytest.approx(step.load_ratio[0] - (step.load_ratio[1] or 0))
    assert step.cost == "accuracy"
    assert result.after.models[-1].served_hz == pytest.approx(result.after.models[-1].asked_hz)
    (model,) = result.models
    assert model.path == "models/net.onnx"
    assert model.test is not None
    assert model.test.drop <= 0.2
    weights = listing(Model.load(place / "out" / "models" / "net.onnx")).arrays.values()
    assert sum(int((array == 0).sum()) for array in weights) > 1000
    after = files_in(place)
    assert {name: after[name] for name in before} == before  # the user's files are as they were
    assert read_record(place / "out" / "fit.json", FitResult) == result
    assert result.table is None  # layers take what the description says
    assert (place / "out" / "steps" / "02-verify" / "run" / "metrics.json").is_file()
    page = framefit.write_report(place / "out").read_text(encoding="utf-8")
    assert page.index("Windows before: fits with fewer frames") < page.index("Windows after: fits")


@pytest.mark.usefixtures("quick")
def test_the_result_can_be_moved_and_run(place: Path) -> None:
    """``DIR/app.toml`` names everything relative to itself; a simulation of it serves every frame."""
    app = write_fit_app(place)
    fitted(app, data=place / "data.npz")
    moved = place.parent / f"{place.name}-moved"
    shutil.copytree(place, moved)
    shutil.rmtree(place)
    ran = simulate(moved / "out" / "app.toml", windows=550, output=moved / "run")
    assert [model.dropped for model in ran.metrics.models] == [0, 0, 0]


def test_steps_are_proposed_and_nothing_is_touched(place: Path) -> None:
    """Without ``apply`` the result says what would be done, the cheapest first, and no file is written."""
    app = write_fit_app(place)
    before = files_in(place)
    done = fit(app, data={"net": place / "data.npz"})
    assert (done.result.fits, done.result.applied, done.folder) == (False, False, None)
    assert [(one.name, one.cost) for one in done.result.proposals if one.needs is None] == [
        ("sparsify", "accuracy"),
        ("trees", "accuracy"),
        ("rate", "rate"),
    ]
    assert all("--data other=DATA" in (one.needs or "") for one in done.result.proposals if one.model == "other")
    assert files_in(place) == before


def test_without_data_no_model_is_changed(place: Path) -> None:
    """Fewer frames are what is left, and a note says what data would have permitted."""
    done = fitted(write_fit_app(place))
    assert done.result.fits
    assert outcomes(done) == [("rate", "kept"), ("verify", "verified")]
    models = {entry.name: entry for entry in load_workload(place / "out" / "app.toml").models}
    assert (models["small"].every, models["other"].every) == (1, 2)
    assert 1 < models["net"].spacing <= 2
    assert done.result.verdict == "fits with fewer frames"
    before, after = ({model.name: model.served_hz for model in standing.models} for standing in standings(done))
    assert all(after[name] >= 0.98 * served_hz for name, served_hz in before.items())
    assert any("--data net=DATA" in note for note in done.result.notes)
    assert done.result.models == ()


def test_eight_bits_come_before_sparsity_where_they_are_enough(place: Path) -> None:
    """A target that multiplies four times as much in int8 needs no other step."""
    app = write_fit_app(place, macs="fp32 = 64, int8 = 256")
    done = fitted(app, data=place / "data.npz")
    assert outcomes(done) == [("int8", "kept"), ("verify", "verified")]
    (model,) = done.result.models
    assert model.int8 in ("all", "ends")
    assert any(layer.op == "QuantizeLinear" for layer in Model.load(place / "out" / "models" / "net.onnx").layers)


def test_a_detector_needs_frames_and_no_labels(tmp_path: Path) -> None:
    """Eight bits are judged by how far all outputs agree with the original's."""
    b = GraphBuilder("net", 2)
    x = b.conv(b.input("image", (1, 2, 8, 8)), 24, norm=True, activation="Relu")
    x = b.conv(b.conv(x, 24, norm=True, activation="Relu"), 24, norm=True, activation="Relu")
    b.output(b.conv(x, 2), "scores")
    b.output(b.conv(x, 4), "boxes")
    with write_whole(tmp_path / "net.onnx") as file:
        file.write(b.build().to_bytes())
    frames = np.random.default_rng(0).standard_normal((300, 2, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "frames.npz", x=frames)
    app = write_fit_app(tmp_path, rate_hz=400, macs="fp32 = 64, int8 = 256")
    done = fitted(app, data=tmp_path / "frames.npz", exclude=["rate"])
    assert outcomes(done) == [("int8", "kept"), ("verify", "verified")]
    (model,) = done.result.models
    assert model.test is not None
    assert model.test.acceptance is not None
    assert (model.test.acceptance.measure, model.test.acceptance.data) == ("outputs", "frames")
    assert 0.8 < model.test.acceptance.after < 1


def test_a_recurrent_model_is_judged_with_its_own_states(tmp_path: Path) -> None:
    """Blocks of sound in their order are its data; the final test is their last tenth as a sequence."""
    write_voice(tmp_path / "net.onnx", tmp_path / "x.npz")
    app = write_fit_app(tmp_path, rate_hz=1800)
    app.write_text(app.read_text() + 'state = { hidden = "next_hidden", cell = "next_cell" }\n')
    done = fitted(app, data=tmp_path / "x.npz", max_drop=0.5)
    assert outcomes(done) == [("sparsify", "kept"), ("verify", "verified")]
    (model,) = done.result.models
    assert model.test is not None
    assert model.test.acceptance is not None
    assert (model.test.acceptance.measure, model.test.acceptance.examples) == ("outputs", 40)


def test_a_target_of_eight_bits_gains_nothing_from_int8(place: Path) -> None:
    """It stores everything in them already: the step is not offered."""
    app = write_fit_app(place, macs="fp32 = 64, int8 = 64", processor="activation_bits = 8\nweight_bits = 8")
    done = fit(app, data=place / "data.npz")
    assert not done.result.fits
    assert "int8" not in {one.name for one in done.result.proposals}


@pytest.mark.usefixtures("quick")
def test_what_costs_too_much_is_tried_half_as_far_and_then_left(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times at most; each version is taken back, and fewer frames are what is left."""
    monkeypatch.setattr(Labelled, "accuracy", lambda *_: HALF)
    done = fitted(write_fit_app(place), data=place / "data.npz", exclude=["trees"])
    tried = [step for step in done.result.steps if step.name == "sparsify"]
    assert len(tried) == 3
    assert {step.outcome for step in tried} == {"too inaccurate"}
    left = [1 - (step.cycles_ratio or 1) for step in tried]
    assert left[1:] == pytest.approx([before / 2 for before in left[:-1]], abs=0.02)
    assert all(step.accuracy is not None and step.accuracy.after == 0.5 for step in tried)
    assert outcomes(done)[3:] == [("rate", "kept"), ("verify", "verified")]
    assert done.result.models == ()
    assert not (place / "out" / "models").exists()


@pytest.mark.usefixtures("quick")
def test_after_a_failed_final_test_the_step_is_taken_half_as_far(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What loses too much there is taken back, a smaller step is tried, and the final test decides again."""
    tested: list[float] = []

    def final(_: Labelled, fitted_model: FittedModel, __: Path) -> FinalAccuracy:
        tested.append(fitted_model.cycles_ratio)
        return FinalAccuracy(top1=(0.9, 0.4 if len(tested) == 1 else 0.9), interval=(0.85, 0.95), images=100)

    monkeypatch.setattr(Labelled, "final", final)
    done = fitted(write_fit_app(place), data=place / "data.npz", exclude=["int8", "trees", *FREE])
    assert done.result.fits
    restored = [step for step in done.result.steps if step.name == "restore"]
    assert "50.00 points lost in the final test" in restored[0].detail
    assert next(step.cycles_ratio for step in done.result.steps if step.name == "sparsify") == tested[0]
    assert all(ratio > tested[0] for ratio in tested[1:])
    assert not any("lost 50.00 points" in note for note in done.result.notes)


@pytest.mark.usefixtures("quick")
def test_steps_that_later_ones_make_needless_are_taken_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was made sparse in vain gets its own weights back once fewer frames are enough."""
    monkeypatch.setattr(import_module("framefit.fit.steps.sparsify"), "_LEAST", 0.7)
    done = fitted(write_fit_app(place), data=place / "data.npz", exclude=["int8", "trees"], max_drop=0.5)
    assert [one for one in outcomes(done) if one[1] == "kept"] == [
        ("sparsify", "kept"),
        ("rate", "kept"),
        ("restore", "kept"),
    ]
    assert done.result.models == ()
    assert Path(load_workload(place / "out" / "app.toml").models[-1].path).resolve() == (place / "net.onnx").resolve()


def test_a_workload_that_cannot_fit_says_what_was_tried(place: Path) -> None:
    """Nothing but fewer frames would help, and these are not wanted."""
    done = fitted(write_fit_app(place), exclude=["rate"])
    assert not done.result.fits
    assert done.result.verified is None
    assert done.result.after.binding is not None
    assert "net" in done.result.after.binding
    assert done.result.proposals
    assert all(one.needs for one in done.result.proposals)


def test_nothing_is_planned_for_steps_that_lack_data(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps are taken no cheaper model is planned without its data; where they are listed, all are."""
    planned: list[Mapping[str, float]] = []

    def counted(self: Situation, ratios: Mapping[str, float], *rest: Any, whether_fits: bool) -> Standing:
        planned.append(ratios)
        return what_it_does(self, ratios, *rest, whether_fits=whether_fits)

    what_it_does = Situation._planned_again
    monkeypatch.setattr(Situation, "_planned_again", counted)
    app = write_fit_app(place)
    assert fitted(app).result.fits
    assert planned
    assert not any(planned)
    planned.clear()
    sparsity = [one for one in fit(app).result.proposals if one.name == "sparsify"]
    assert any(planned)
    assert any(one.enough for one in sparsity)
    assert all(one.needs is not None and one.predicted_load_ratio is not None for one in sparsity)


def test_a_priority_model_that_is_too_long_slows_the_beat(tmp_path: Path) -> None:
    """The plan is infeasible; all rates go down until it is not."""
    write_models(tmp_path)
    write_target(tmp_path)
    app = write_app(tmp_path, priority=["chain"], background=["small"], target="target.toml", rate_hz=80, guard_ms=None)
    done = fitted(app)
    assert not done.result.before.feasible
    assert done.result.fits
    assert load_workload(tmp_path / "out" / "app.toml").rate_hz == pytest.approx(done.plan.workload.beat_hz)
    assert done.plan.workload.beat_hz < 60


def test_units_that_a_model_was_kept_from_cost_nothing(tmp_path: Path) -> None:
    """A model that one unit cannot serve goes to the other one before anything else is done."""
    write_models(tmp_path)
    write_target(tmp_path, units=('name = "npu0"', 'name = "npu1"'))
    app = write_app(
        tmp_path,
        background=["chain", "chain2"],
        target="target.toml",
        rate_hz=40,
        guard_ms=None,
        last='units = ["npu0"]',
        model='units = ["npu0"]',
    )
    text = app.read_text().replace(
        'path = "chain.onnx"\npriority = "background"\n',
        'path = "chain.onnx"\nunits = ["npu0"]\npriority = "background"\n',
        1,
    )
    app.write_text(text)
    done = fitted(app)
    assert ("units", "kept") in outcomes(done)
    assert done.result.fits
    assert "rate" not in {step.name for step in done.result.steps}


@pytest.mark.usefixtures("quick")
@pytest.mark.slow  # trains three times
def test_what_was_too_inaccurate_may_do_with_other_settings(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that is gone on with and may lose more takes the step that it had given up; else nothing is done twice."""
    monkeypatch.setattr(Labelled, "accuracy", lambda *_: HALF)
    first = fitted(write_fit_app(place), data=place / "data.npz", exclude=["rate", "trees"])
    assert not first.result.fits
    assert [outcome for _, outcome in outcomes(first)] == ["too inaccurate"] * 3
    again = fit(resume=place / "out")
    assert again.result.steps == first.result.steps
    more = fit(resume=place / "out", max_drop=0.6)
    assert more.result.fits
    assert outcomes(more)[3:] == [("sparsify", "kept"), ("verify", "verified")]


def test_a_plan_that_does_not_hold_is_made_with_a_margin(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a verification shows is learnt: the next plan takes launches for longer, and is verified again."""
    loop = import_module("framefit.fit.loop")

    proofs, proven = [], loop.proven

    def once_missed(*arguments: Any) -> Any:
        proofs.append(proven(*arguments))
        missed = dataclasses.replace(proofs[0], holds=False, share_ratio=0.9, more_ratio=1.1)
        return missed if len(proofs) == 1 else proofs[-1]

    monkeypatch.setattr(loop, "proven", once_missed)
    done = fitted(write_fit_app(place, rate_hz=300))
    assert outcomes(done) == [("verify", "missed"), ("verify", "verified")]
    assert done.result.margin_ratio == pytest.approx(1.1)
    assert done.result.fits


@pytest.mark.usefixtures("quick")
def test_a_step_that_fails_is_recorded_and_the_next_one_taken(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a tool raises ends its step only."""

    def broken(*_: object, **__: object) -> None:
        raise DeviceError("no such instruction")

    monkeypatch.setattr(import_module("framefit.fit.step"), "quantised", broken)
    done = fitted(write_fit_app(place, macs="fp32 = 64, int8 = 256"), data=place / "data.npz")
    assert outcomes(done)[0] == ("int8", "failed")
    assert "no such instruction" in done.result.steps[0].detail
    assert done.result.fits


def test_no_step_begins_after_the_time_is_up(place: Path) -> None:
    """The plan is made, the rest is left for ``resume``."""
    done = fitted(write_fit_app(place), max_seconds=1e-6)
    assert not done.result.fits
    assert done.result.steps == ()
    assert any("--resume" in note for note in done.result.notes)


def test_training_ends_within_the_time(place: Path) -> None:
    """However many epochs were asked for, a search and its training leave time for the proof."""
    done = fitted(write_fit_app(place), data=place / "data.npz", finetune_epochs=10_000, max_seconds=8)
    assert outcomes(done) == [("sparsify", "kept"), ("verify", "verified")]
    assert done.result.seconds < 12  # on a machine with other work; 10,000 epochs take minutes


def test_functions_beside_the_app_are_found_from_the_folder(tmp_path: Path) -> None:
    """A stream that a module of the user's gives is copied to where the new workload looks for it."""
    write_models(tmp_path)
    write_target(tmp_path)
    (tmp_path / "camera_of_mine.py").write_text(
        "import numpy as np\n\ndef frames():\n    while True:\n        yield np.zeros((1, 3, 16, 16), np.float32)\n"
    )
    stream = 'source = "camera_of_mine:frames"'
    app = write_app(tmp_path, target="target.toml", rate_hz=80, guard_ms=None, schedule="", stream=stream)
    assert fitted(app).result.fits
    assert plan(tmp_path / "out" / "app.toml").timetable.feasible


@pytest.mark.usefixtures("quick")
def test_a_table_is_dropped_with_the_layers_that_it_knows(place: Path) -> None:
    """A sparse model's layers are not those that were measured: planned without the table, and a step says so."""
    write_fit_app(place)
    simulate(place / "app.toml", windows=50, output=place / "run", update_table=place / "board.table.json")
    app = place / "app.toml"
    app.write_text('table = "board.table.json"\n' + app.read_text())
    done = fitted(app, data=place / "data.npz", exclude=["int8"])
    assert done.result.fits
    kept = next(step for step in done.result.steps if step.name == "sparsify")
    assert "latency table" in kept.detail
    assert load_workload(place / "out" / "app.toml").table is None


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"data": {"nett": "data.npz"}}, "did you mean 'net'"),
        ({"data": "none.npz"}, "no such file"),
        ({"data": {"small": "data.npz"}}, "the model takes"),
        ({"exclude": ["speed"]}, "speed"),
        ({"max_drop": 1.5}, "max_drop"),
        ({"verify_seconds": 0}, "verify_seconds"),
        ({"output": "."}, "not a folder of framefit fit"),
        ({"target": "vpuu"}, "did you mean"),
        ({"resume": "out"}, "keeps its workload"),
    ],
)
def test_bad_input_is_refused_before_anything_is_done(
    place: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], told: str
) -> None:
    """One clear error, and no file."""
    monkeypatch.chdir(place)
    app = write_fit_app(place)
    before = files_in(place)
    with pytest.raises(InputError, match=told):
        fitted(app, **({"force": True} | changed))
    assert files_in(place) == before


def test_data_of_nobody_named_have_to_fit_one_model(place: Path) -> None:
    """Two models of one input: whose they are has to be said."""
    app = write_fit_app(place)
    app.write_text(app.read_text() + '[[models]]\nname = "twin"\npath = "net.onnx"\npriority = "background"\n')
    with pytest.raises(InputError, match="fit 'net' and 'twin'"):
        fit(app, data=place / "data.npz")
    b = GraphBuilder("wide", 1)
    b.output(b.op("Relu", b.input("x", (1, 7))), "y")
    b.build().save(place / "net.onnx", force=True)
    with pytest.raises(InputError, match="fit no model"):
        fit(write_fit_app(place), data=place / "data.npz")


def test_a_folder_of_another_kind_is_no_fit(tmp_path: Path) -> None:
    """Going on needs the record of a fit."""
    with pytest.raises(InputError, match="not a folder of framefit fit"):
        fit(resume=tmp_path)
    write_record(tmp_path / "fit.json", TargetList(targets=()))
    with pytest.raises(InputError, match="unknown key"):
        fit(resume=tmp_path)


@pytest.mark.usefixtures("quick")
def test_the_same_seed_gives_the_same_fit(place: Path) -> None:
    """But for the seconds that steps took, on any number of workers."""
    app = write_fit_app(place)
    first, second = (
        fitted(app, data=place / "data.npz", output=place / name, workers=workers)
        for name, workers in (("one", 1), ("two", 2))
    )
    assert listing_of(place / "one") == listing_of(place / "two")
    assert [msgspec.structs.replace(step, seconds=0.0) for step in first.result.steps] == [
        msgspec.structs.replace(step, seconds=0.0) for step in second.result.steps
    ]


def test_searches_get_the_workers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the fit was given."""
    seen: list[int] = []

    def refuse(*_: object, workers: int, **__: object) -> None:
        seen.append(workers)
        raise InputError("it is not searched")

    monkeypatch.setattr("framefit.workflows.search.sparsify", refuse)
    others = (*FREE, "int8", "trees", "rate")
    fitted(write_fit_app(place), data=place / "data.npz", output=place / "one", workers=3, exclude=others)
    assert seen
    assert set(seen) == {3}


def listing_of(folder: Path) -> bytes:
    """The network that came of it."""
    return (folder / "models" / "net.onnx").read_bytes()
