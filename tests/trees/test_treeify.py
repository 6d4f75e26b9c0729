"""``treeify`` from a model and data to a folder with a hybrid."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest

from framefit import InputError, treeify
from framefit.core.acceptance import Acceptance
from framefit.core.files import read_record
from framefit.core.model import GraphBuilder, Model, free_batch, listing
from framefit.core.tree_results import TreeifyResult
from framefit.core.trees import read_forest
from framefit.trees.c_source import c_source
from framefit.trees.exporting import lut6_of, read_trees
from networks import Runner

pytest.importorskip("torch", reason="the extra 'train' is not installed")

from framefit.training.data import Examples, load_data
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import to_model, to_torch
from framefit.trees.campaign import TreeifyCampaign
from framefit.trees.hybrid import HybridModel
from framefit.trees.search import Ground


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy pictures, 2 x 6 x 6, of three classes: bright on the left, in the middle or on the right."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 600)
    x = random.standard_normal((600, 2, 6, 6)).astype(np.float32)
    for label in range(3):
        x[labels == label, :, :, 2 * label : 2 * label + 2] += 1
    path = tmp_path_factory.mktemp("treeify") / "data.npz"
    np.savez(path, x_train=x[100:], y_train=labels[100:], x_test=x[:100], y_test=labels[:100])
    return path


@pytest.fixture(scope="module")
def network(data: Path) -> Model:
    """A stem, a residual block and a classifier, trained."""
    b = GraphBuilder("net", 2)
    x = b.conv(b.input("image", (1, 2, 6, 6)), 8, norm=True, activation="Relu")
    x = b.op("Relu", b.op("Add", b.conv(b.conv(x, 8, norm=True, activation="Relu"), 8, norm=True), x))
    b.output(b.dense(b.op("Flatten", x), 3), "classes")
    made = to_torch(b.build())
    recipe = Recipe(epochs=4, batch=32, rate=0.05, pad=0, flip=False, bf16=False)
    fine_tune(made, load_data(data).train, recipe)
    return to_model(made)


def test_a_residual_block_becomes_trees(network: Model, data: Path, tmp_path: Path) -> None:
    """The block is replaced as a whole, the file computes what the result was judged by, and little is lost."""
    done = treeify(
        network,
        data,
        first=1,
        layers=2,
        trees=16,
        examples=300,
        max_drop=0.1,
        finetune_batches=30,
        export="ml",
        output=tmp_path / "out",
    )
    result = done.result
    assert result.chosen is not None
    assert [(group.first_layer, group.last_layer, group.depth) for group in result.chosen.groups] == [(1, 2, 6)]
    assert result.chosen.top1 > result.original.top1 - 0.1
    assert read_record(tmp_path / "out" / "result.json", TreeifyResult) == result
    forest = read_forest(tmp_path / "out" / "trees.json")
    assert forest == done.forest
    carried = read_trees(tmp_path / "out" / "model.onnx")
    assert carried is not None
    assert carried.ensembles == forest.ensembles
    assert forest.ensembles[0].patch is not None
    assert result.chosen.lut6 == lut6_of(forest.ensembles[0])
    test = load_data(data).test
    runner = Runner(Model.load(tmp_path / "out" / "model.onnx", name="loaded"))
    logits = [runner.whole({"image": x[None]})["classes"][0] for x in test.inputs()]
    assert np.mean(np.argmax(logits, axis=1) == test.labels) == pytest.approx(result.chosen.top1)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {
        *("treeify.json", "result.json", "model.onnx", "model-ml.onnx", "trees.json", "candidates.csv"),
        *("accuracy_latency.svg", "accuracy_luts.svg"),
    }
    flavours = {one.file: one.flavour for one in result.chosen.exports}
    assert flavours == {"model.onnx": "core", "model-ml.onnx": "ml"}
    sessions = [onnxruntime.InferenceSession(tmp_path / "out" / name) for name in flavours]
    core, ml = (session.run(None, {"image": test.inputs()[:1]})[0] for session in sessions)
    np.testing.assert_allclose(core, ml, rtol=1e-6)
    assert b"TreeEnsembleRegressor" in (tmp_path / "out" / "model-ml.onnx").read_bytes()


def test_layers_of_a_signal_become_trees(tmp_path: Path) -> None:
    """Convolutions along time, of a file whose time is open: as long as the examples are."""
    random = np.random.default_rng(3)
    labels = random.integers(0, 2, 500)
    time = np.arange(48) * np.where(labels, 0.5, 1.2)[:, None] + random.uniform(0, 6, (500, 1))
    x = (np.sin(time) + 0.3 * random.standard_normal((500, 48))).astype(np.float32)[:, None]
    np.savez(tmp_path / "data.npz", x_train=x[100:], y_train=labels[100:], x_test=x[:100], y_test=labels[:100])
    b = GraphBuilder("signal", 2)
    y, channels = b.input("signal", (1, 1, 48)), 1
    for number, kernel in enumerate((5, 3)):
        weight = random.normal(scale=0.5, size=(6, channels, kernel)).astype(np.float32)
        y = b.op("Relu", b.op("Conv", y, b.constant(weight, f"w{number}"), kernel_shape=[kernel], strides=[2]))
        channels = 6
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", y)), 2), "classes")
    network = to_torch(b.build())
    fine_tune(network, load_data(tmp_path / "data.npz").train, Recipe(epochs=8, batch=32, rate=0.05, pad=0, flip=False))
    opened = onnx.load_from_string(to_model(network).to_bytes())
    opened.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "time"
    onnx.save(opened, tmp_path / "signal.onnx")
    given = {"layers": 2, "first": 0, "trees": 12, "max_drop": 0.2, "finetune": "none", "target": "vpu"}
    result = treeify(tmp_path / "signal.onnx", tmp_path / "data.npz", output=tmp_path / "out", **given).result
    assert result.chosen is not None
    (ensemble,) = read_forest(tmp_path / "out" / "trees.json").ensembles
    assert ensemble.patch is not None
    assert (ensemble.patch.kernel, ensemble.patch.stride) == ((1, 9), (1, 4))
    assert ensemble.output_shape == (6, 10)


def test_layers_of_tokens_become_trees(tmp_path: Path) -> None:
    """The feed-forward part of a transformer: each token is read on its own, whatever attention is around."""
    random = np.random.default_rng(4)
    labels = random.integers(0, 2, 400)
    x = random.standard_normal((400, 6, 8)).astype(np.float32)
    x[labels == 1, :, :4] += 1.5
    np.savez(tmp_path / "data.npz", x_train=x[100:], y_train=labels[100:], x_test=x[:100], y_test=labels[:100])
    b = GraphBuilder("tokens", 2)
    y = b.input("tokens", (1, 6, 8))
    for number, width in enumerate((16, 8)):
        weight = random.normal(scale=0.4, size=((8, 16)[number], width)).astype(np.float32)
        y = b.op("Relu", b.op("MatMul", y, b.constant(weight, f"w{number}")))
    b.output(b.dense(b.op("Flatten", y), 2), "classes")
    network = to_torch(b.build())
    fine_tune(network, load_data(tmp_path / "data.npz").train, Recipe(epochs=8, batch=32, rate=0.05, pad=0, flip=False))
    given = {"layers": 2, "first": 0, "trees": 12, "max_drop": 0.3, "finetune_batches": 20, "target": "vpu"}
    result = treeify(to_model(network), tmp_path / "data.npz", output=tmp_path / "out", **given).result
    assert result.chosen is not None
    (ensemble,) = read_forest(tmp_path / "out" / "trees.json").ensembles
    assert ensemble.patch is not None
    assert (ensemble.patch.layout, ensemble.features, ensemble.outputs) == ("tokens", 8, 8)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    right = [
        session.run(None, {"tokens": row[None]})[0].argmax() == label for row, label in zip(x, labels, strict=True)
    ]
    assert np.mean(right[:100]) == pytest.approx(result.chosen.top1, abs=0.011)


def test_groups_beyond_the_memory_are_named(
    network: Model, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are built: others are searched, and where there are none the least is told."""
    given = {"trees": 4, "finetune": "none", "target": "vpu", "max_drop": 0.5}
    monkeypatch.setattr("framefit.trees.search.free_bytes", lambda: 30_000_000)
    result = treeify(network, data, output=tmp_path / "some", **given).result
    left_out = [note for note in result.notes if note.startswith("left out: ")]
    assert left_out
    assert all("0.0 are free" in note for note in left_out)
    assert result.candidates
    monkeypatch.setattr("framefit.trees.search.free_bytes", lambda: 1000)
    with pytest.raises(InputError, match=r"fitting trees would take 0.0 GB of memory"):
        treeify(network, data, output=tmp_path / "none", **given)


def test_an_open_batch_stays_open(network: Model, data: Path, tmp_path: Path) -> None:
    """Files of both flavours take as many examples at once as the user's does, and give each the same."""
    (tmp_path / "net.onnx").write_bytes(free_batch(network))
    treeify(
        *(tmp_path / "net.onnx", data),
        first=1,
        layers=2,
        trees=4,
        examples=100,
        max_drop=1.0,
        finetune="none",
        export="ml",
        output=tmp_path / "out",
    )
    images = load_data(data).test.inputs()[:5]
    for name in ("model.onnx", "model-ml.onnx"):
        session = onnxruntime.InferenceSession(tmp_path / "out" / name)
        assert session.get_inputs()[0].shape[1:] == [2, 6, 6]
        together = session.run(None, {"image": images})[0]
        alone = [session.run(None, {"image": image[None]})[0][0] for image in images]
        np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


def test_groups_are_searched(network: Model, data: Path, tmp_path: Path) -> None:
    """Without --first every group is judged by its bound, half are drafted, and two may be replaced."""
    done = treeify(
        *(network, data),
        groups=2,
        method="auto",
        loss="log",
        trees=8,
        examples=200,
        max_drop=0.5,
        finetune="none",
        output=tmp_path / "out",
    )
    spans = {(one.first_layer, one.last_layer) for one in done.result.candidates}
    assert {(0, 0), (1, 2), (0, 2)} <= spans
    assert any(one.top1 is None for one in done.result.candidates)
    assert any(one.pareto for one in done.result.candidates)
    assert done.result.chosen is not None
    ends = [(group.first_layer, group.last_layer) for group in done.result.chosen.groups]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))


def test_a_search_ends_when_its_time_is_up(network: Model, data: Path, tmp_path: Path) -> None:
    """With one group fitted, and a note; with more time others are tried, too."""
    options = {"trees": 8, "examples": 200, "max_drop": 0.5, "finetune": "none"}
    done = treeify(network, data, max_seconds=0, output=tmp_path / "out", **options)
    assert [one.top1 is not None for one in done.result.candidates] == [True]
    assert any("time was up" in note for note in done.result.notes)
    more = treeify(network, data, resume=tmp_path / "out", max_seconds=1000.0)
    assert len(more.result.candidates) > 1
    assert not any("time was up" in note for note in more.result.notes)


@pytest.mark.parametrize("finetune", ["trees", "tail"])
def test_parts_are_fine_tuned(network: Model, data: Path, tmp_path: Path, finetune: str) -> None:
    """Layers in front of the trees stay as they are; the trees, too, where only the layers behind learn."""
    done = treeify(
        *(network, data),
        first=1,
        layers=2,
        trees=8,
        examples=200,
        max_drop=0.5,
        finetune=finetune,
        finetune_batches=10,
        output=tmp_path / "out",
    )
    assert done.model is not None
    before, after = listing(network).arrays, listing(done.model).arrays
    assert np.array_equal(before["weight_1"], after["weight_1"])
    assert not np.array_equal(before["weight_4"], after["weight_4"])
    assert done.result.chosen is not None
    assert done.result.chosen.finetune_seconds > 0


def test_an_interrupted_search_goes_on(
    network: Model, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found before Ctrl-C is not computed again, and the result is that of a search without a break."""
    options = {
        "layers": 1,
        "trees": 6,
        "max_drop": 0.5,
        "finetune_batches": 10,
        "examples": 200,
        "objective": "luts",  # on this machine trees of so small a network may be slower and bigger than its layers
    }
    whole = treeify(network, data, output=tmp_path / "whole", **options)
    told: list[str] = []

    def stop(message: str) -> None:
        told.append(message)
        if message.startswith("fitting"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        treeify(network, data, output=tmp_path / "parts", notify=stop, **options)
    assert any(message.startswith("bound") for message in told)
    with monkeypatch.context() as patch:
        patch.setattr(Ground, "bound", lambda *_: pytest.fail("a bound was found again"))
        done = treeify(network, data, resume=tmp_path / "parts")
    assert [one.bound_top1 for one in done.result.candidates] == [one.bound_top1 for one in whole.result.candidates]
    assert done.forest == whole.forest
    again = treeify(resume=tmp_path / "parts")
    assert (again.result, again.forest) == (done.result, done.forest)
    more = treeify(resume=tmp_path / "parts", export="ml")
    assert more.result.chosen is not None
    assert [one.file for one in more.result.chosen.exports] == ["model.onnx", "model-ml.onnx"]
    carried = read_trees(tmp_path / "parts" / "model-ml.onnx")
    assert (carried and carried.ensembles) == (done.forest and done.forest.ensembles)
    assert treeify(resume=tmp_path / "parts").result == more.result
    assert treeify(resume=tmp_path / "parts", export="c").result == more.result
    assert done.forest is not None
    assert (tmp_path / "parts" / "trees.c").read_text() == c_source(done.forest)


def test_everything_in_few_levels(network: Model, data: Path, tmp_path: Path) -> None:
    """Outputs of all layers, weights of those within, and the data are quantised; the file computes what was judged."""
    done = treeify(
        *(network, data),
        first=1,
        layers=2,
        scope="all",
        weights="ternary",
        quantise_data=True,
        trees=12,
        max_drop=1.0,
        examples=200,
        finetune_batches=30,
        output=tmp_path / "out",
    )
    assert done.model is not None
    assert done.result.chosen is not None
    ops = [node.op for nodes in done.model.nodes for node in nodes]
    assert ops.count("Greater") >= 4
    test = load_data(data).test
    runner = Runner(Model.load(tmp_path / "out" / "model.onnx", name="loaded"))
    logits = [runner.whole({"image": x[None]})["classes"][0] for x in test.inputs()]
    assert np.mean(np.argmax(logits, axis=1) == test.labels) == pytest.approx(done.result.chosen.top1, abs=0.011)
    assert done.result.chosen.top1 > 0.5


def _untrained() -> Model:
    b = GraphBuilder("raw", 5)
    x = b.dense(b.op("Flatten", b.input("image", (1, 2, 6, 6))), 16, activation="Relu")
    b.output(b.dense(b.dense(x, 12, activation="Relu"), 3), "classes")
    return b.build()


def test_a_network_is_trained_first(data: Path, tmp_path: Path) -> None:
    """What is not trained yet learns before anything is replaced."""
    done = treeify(
        *(_untrained(), data),
        first=1,
        layers=1,
        train_epochs=8,
        trees=16,
        max_drop=0.2,
        finetune="none",
        output=tmp_path / "out",
    )
    assert done.result.original.top1 > 0.8
    assert done.result.chosen is not None


@pytest.mark.parametrize("scope", ["group", "all"])
def test_a_hybrid_is_trained_end_to_end(data: Path, tmp_path: Path, scope: str) -> None:
    """Nothing was learnt before the trees are in place; then layers on both sides and the trees learn together."""
    network = _untrained()
    done = treeify(
        *(network, data),
        first=1,
        layers=1,
        train="hybrid",
        train_epochs=8,
        trees=16,
        scope=scope,
        output=tmp_path / "out",
    )
    assert done.result.original.top1 < 0.6
    assert done.result.chosen is not None
    assert done.result.chosen.top1_before_finetune < 0.6
    assert done.result.chosen.top1 > 0.75
    assert done.model is not None
    before, after = listing(network).arrays, listing(done.model).arrays
    assert not np.array_equal(before["weight_1"], after["weight_1"])
    assert any("end to end" in note for note in done.result.notes)


def test_no_group_is_worth_it(network: Model, data: Path, tmp_path: Path) -> None:
    """One tree costs accuracy: with no drop allowed nothing is replaced, and the bounds are told."""
    done = treeify(
        network, data, first=0, layers=3, trees=1, depth=1, max_drop=0.0, finetune="none", output=tmp_path / "out"
    )
    assert done.result.chosen is done.model is done.forest is None
    assert done.result.candidates[0].bound_top1 > 0.3
    assert any("too much is lost" in note for note in done.result.notes)
    assert not (tmp_path / "out" / "model.onnx").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"first": 2, "layers": 1}, "layers 2 to 2 are not a group"),
        ({"step": 0}, "step must be at least 1, is 0"),
        ({"depth": 9}, "depth must be at least 1 and at most 6, is 9"),
        ({"loss": "hinge", "scope": "input"}, "no log or hinge loss"),
        ({"tress": 5}, "did you mean 'trees'"),
        ({"export": "onnx"}, "export is 'onnx'"),
        ({"train": "hybrid", "train_epochs": 3}, "give first, layers and train_epochs"),
    ],
)
def test_what_cannot_be_done(network: Model, data: Path, tmp_path: Path, options: dict[str, object], told: str) -> None:
    """A group that begins inside a block, senseless numbers, an option that there is not: one clear error."""
    with pytest.raises(InputError, match=told):
        treeify(network, data, output=tmp_path / "out", **options)
    assert not (tmp_path / "out" / "result.json").exists()


@pytest.mark.parametrize(
    ("shape", "classes", "told"),
    [
        ((20, 2, 5, 6), 3, "examples are 2 x 5 x 6"),
        ((20, 72), 3, "examples are 72"),
        ((20, 2, 6, 6), 5, "data have 5 classes"),
    ],
)
def test_data_that_do_not_match(
    network: Model, tmp_path: Path, shape: tuple[int, ...], classes: int, told: str
) -> None:
    """Pictures of another size, vectors, and classes that the network does not have are one error each."""
    random = np.random.default_rng(0)
    x, y = random.standard_normal(shape).astype(np.float32), np.arange(shape[0]) % classes
    np.savez(tmp_path / "other.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match=told):
        treeify(network, tmp_path / "other.npz", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_are_not_overwritten(network: Model, data: Path, tmp_path: Path) -> None:
    """One that is there is left alone, and one to resume has to be of a search."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    for force in (False, True):
        with pytest.raises(InputError, match="exists"):
            treeify(network, data, output=tmp_path / "there", force=force)
    with pytest.raises(InputError, match="is not a folder of framefit treeify"):
        treeify(resume=tmp_path / "there")


@pytest.mark.parametrize("train", ["network", "hybrid"])
def test_trees_are_kept_where_training_diverges(
    network: Model, data: Path, tmp_path: Path, train: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that is no number, at lower rates too, costs the training of whatever sort, not the trees."""
    if train == "hybrid":
        monkeypatch.setattr("framefit.trees.tuning._TRAINING_RATE", 1e30)
    done = treeify(
        network,
        data,
        first=1,
        layers=2,
        trees=8,
        examples=200,
        max_drop=0.7,
        rate=1e30,
        train=train,
        train_epochs=1 if train == "hybrid" else 0,
        finetune_batches=10,
        output=tmp_path / "out",
    )
    assert done.result.chosen is not None
    assert done.result.chosen.top1 == done.result.chosen.top1_before_finetune
    assert any("diverged" in note for note in done.result.notes)


_QUICK = {"trees": 4, "examples": 100, "max_drop": 0.5, "finetune_batches": 4}


def test_a_seed_gives_the_same_files_on_any_number_of_threads(network: Model, data: Path, tmp_path: Path) -> None:
    """Trees and weights are equal to the last bit, whatever the user lets PyTorch compute with."""
    from framefit.training.extra import torch

    threads, made = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            folder = tmp_path / f"on-{count}"
            treeify(network, data, first=1, layers=2, output=folder, **_QUICK)
            made.append([(folder / name).read_bytes() for name in ("trees.json", "model.onnx")])
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert made[0] == made[1]


def test_a_group_that_fails_the_final_test_is_withdrawn(
    network: Model, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that were fitted follow; where none passes, nothing is replaced, and the notes say what each lost."""
    real, finals = TreeifyCampaign._final, []

    def failing(self: TreeifyCampaign, *args: object) -> Acceptance:
        finals.append(real(self, *args))
        return msgspec.structs.replace(finals[-1], before=1.0, after=0.4)

    monkeypatch.setattr(TreeifyCampaign, "_final", failing)
    done = treeify(network, data, objective="luts", output=tmp_path / "out", **_QUICK)
    assert done.result.chosen is done.model is None
    withdrawn = [note for note in done.result.notes if "withdrawn after the final test" in note]
    fitted = sum(one.top1 is not None for one in done.result.candidates)
    assert len(withdrawn) == len(finals) == min(fitted, 4)
    assert all("60.00 points lost" in note for note in withdrawn)


def test_what_is_slower_bigger_and_less_accurate_is_not_returned(
    network: Model, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups that the search chose, where time counts; a group that the user names is replaced all the same."""
    monkeypatch.setattr(
        "framefit.trees.campaign.latencies",
        lambda *_: lambda models: [1000 * (1 + place) for place in range(len(models))],
    )
    monkeypatch.setattr(HybridModel, "right", _worse_with_trees)
    options = {**_QUICK, "finetune": "none", "trees": 40}
    done = treeify(network, data, layers=1, output=tmp_path / "searched", **options)
    assert done.result.chosen is None
    assert any("slower and bigger than the layers, and less accurate" in note for note in done.result.notes)
    named = treeify(network, data, first=1, layers=2, output=tmp_path / "named", **options)
    assert named.result.chosen is not None


def _worse_with_trees(hybrid: HybridModel, examples: Examples) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """All right without trees, a tenth wrong with them."""
    return np.arange(len(examples)) >= (len(examples) // 10 if hybrid.chosen else 0)
