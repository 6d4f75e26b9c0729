"""``sparsify`` from a model and data to a folder: budget, names, gates, going on, feedback."""

from __future__ import annotations

import contextlib
import io
import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from framefit import InfeasibleError, InputError, sparsify
from framefit.core.executor import Here
from framefit.core.files import read_record, write_whole
from framefit.core.model import GraphBuilder, Model, free_batch, listing
from framefit.core.sparsity import Configuration, Deployment, SparsifySettings, SparsityResult
from framefit.core.target import describe_target, resolve_target
from framefit.devices import measure as in_turn
from framefit.devices.kernel_times import KernelTimes
from framefit.devices.kernels.selection import lanes_here
from framefit.report.terminal import view
from framefit.sparsity import prices
from framefit.sparsity.allocation import allocate
from framefit.sparsity.search import make_problem, sparse_network
from framefit.sparsity.subject import chosen_pattern, make_database, open_subject
from framefit.training.campaign import Ledger
from framefit.training.data import load_data
from framefit.training.evaluate import evaluate
from framefit.training.fine_tune import Recipe, fine_tune
from framefit.training.network import to_model, to_torch
from networks import write_voice

FILES = {
    *("sparsify.json", "result.json", "trials.json", "database.npz", "model.onnx", "configurations.csv", "layers.csv"),
    *("accuracy_cycles.svg", "sparsity_layers.svg", "search.svg"),
}


def write_pictures(path: Path, *, shift: float = 0.0) -> Path:
    """Noisy pictures, 2 x 8 x 8, of three classes: a bright left, right or middle."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 400)
    x = random.standard_normal((400, 2, 8, 8)).astype(np.float32) + np.float32(shift)
    for label, columns in enumerate((slice(0, 2), slice(6, 8), slice(3, 5))):
        x[labels == label, :, :, columns] += 1
    np.savez(path, x_train=x[100:], y_train=labels[100:], x_test=x[:100], y_test=labels[:100])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a trained network, wide enough that the target's overhead is not all."""
    folder = tmp_path_factory.mktemp("sparsify")
    data = load_data(write_pictures(folder / "data.npz"))
    b = GraphBuilder("net", 2)
    x = b.conv(b.input("image", (1, 2, 8, 8)), 24, norm=True, activation="Relu")
    y = b.conv(x, 24, norm=True, activation="Relu")
    x = b.op("Relu", b.op("Add", b.conv(y, 24, norm=True), x))
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 3), "classes")
    network = to_torch(b.build())
    fine_tune(network, data.train, Recipe(epochs=4, batch=32, rate=0.05, pad=0, flip=False, bf16=False))
    with write_whole(folder / "net.onnx") as file:
        file.write(free_batch(to_model(network)))
    return folder


def made(place: Path, name: str, **changed: Any) -> SparsityResult:
    """A quick search in a folder of this name."""
    given: dict[str, Any] = {"cycles": 0.6, "episodes": 6, "images": 30, "finetune_epochs": 1, "compare": False}
    given |= changed
    target = given.pop("target", "vpu")
    return sparsify(place / "net.onnx", place / "data.npz", target, output=place / name, **given).result


def chosen(result: SparsityResult) -> Configuration:
    """The model that is taken."""
    assert result.chosen is not None
    return result.configurations[result.chosen]


def top1_in_onnx_runtime(place: Path, folder: Path) -> float:
    """Of the exported model, on the test data."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    test = load_data(place / "data.npz").test
    return evaluate(lambda x: session.run(None, {"image": x})[0], test).top1


@pytest.fixture(scope="module")
def result(place: Path) -> SparsityResult:
    """A search with all arms."""
    return made(place, "first", compare=True, accuracy_drop=0.2)


def test_the_folder_holds_a_model_within_its_cycles(place: Path, result: SparsityResult) -> None:
    """Every file is there, the model is priced as the result says, and ONNX Runtime is right as often as PyTorch."""
    from framefit.devices.npu.costs import cycles

    folder = place / "first"
    assert {path.name for path in folder.iterdir()} >= FILES
    assert read_record(folder / "result.json", SparsityResult) == result
    row = chosen(result)
    assert row.cycles_ratio <= 0.6
    assert row.hardware
    assert row.validation_top1 == max(one.validation_top1 for one in result.configurations if one.hardware)
    zeros = {layer.name: layer.activation_sparsity_ratio for layer in row.layers}
    assert cycles(folder / "model.onnx", "vpu", activations=str(folder / "result.json")).total_cycles == row.cycles
    model = Model.load(folder / "model.onnx")
    assert [node.name for node in listing(model).nodes] == [
        node.name for node in listing(Model.load(place / "net.onnx")).nodes
    ]
    named = cycles(model, "vpu", fuse=False)
    assert {layer.name for layer in named.layers} >= set(zeros)
    weights = listing(model).arrays
    counted = sum(int((weights[name] == 0).sum()) for name in weights if weights[name].ndim > 1)
    assert counted == row.zeros
    assert top1_in_onnx_runtime(place, folder) == pytest.approx(row.top1)


def test_all_arms_are_in_the_table(result: SparsityResult) -> None:
    """Rules, the solver, and the same without the hardware; the ledger counts what they cost."""
    arms = {(row.solver, row.hardware) for row in result.configurations}
    assert arms >= {("uniform", True), ("erk", True), ("lamp", True), ("dp", True), ("auto", True), ("auto", False)}
    assert result.ledger.evaluations >= 5
    assert result.ledger.images_forwarded > result.ledger.evaluations * 30
    assert result.additive_bound <= result.additive_error
    assert any("no gain in ONNX Runtime" in note for note in result.notes)
    assert {point.solver for point in result.curve} == set(result.names)
    for row in result.configurations:
        assert row.difference_top1 == pytest.approx(100 * (row.top1 - result.dense.top1))
        assert sum(layer.cycles for layer in row.layers) <= row.cycles


def test_a_model_that_passes_its_gates_is_registered(place: Path, result: SparsityResult) -> None:
    """With what it takes there, beside the dense model."""
    assert result.decision == "deploy"
    deployment = read_record(place / "first" / "deploy.json", Deployment)
    assert deployment.targets[0].target == "vpu"
    assert deployment.targets[0].latency_ns < deployment.targets[0].dense_latency_ns
    assert not deployment.forced


def test_a_model_is_registered_with_each_target_that_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told for those that are described, measured on this machine; where zeros gain nothing it says so."""
    monkeypatch.setattr(in_turn, "_BUDGET_NS", 10_000_000)
    named = ("vpu", "edge-8", "cpu")
    made(place, "everywhere", deploy_to=named, solver="dp", finetune_epochs=0, override="deploy")
    vpu, edge, cpu = read_record(place / "everywhere" / "deploy.json", Deployment).targets
    assert (vpu.target, edge.target, cpu.target) == named
    assert vpu.latency_ns < vpu.dense_latency_ns
    assert "no gain" not in vpu.note
    assert edge.latency_ns == edge.dense_latency_ns
    assert "no gain" in edge.note
    assert cpu.cycles is None
    assert cpu.latency_ns > 0
    assert "no gain in ONNX Runtime" in cpu.note
    with pytest.raises(InputError, match="no built-in target"):
        made(place, "nowhere", deploy_to=("vpuu",))
    assert not (place / "nowhere").exists()


def kernels_take(monkeypatch: pytest.MonkeyPatch, layers_ns: float, rest_ns: float) -> None:
    """Let this machine's kernels take the same time for each layer; 0: they execute none."""

    def times(model: Model, names: list[str]) -> KernelTimes:
        return KernelTimes(layers_ns=dict.fromkeys(names, layers_ns) if layers_ns else {}, rest_ns=rest_ns)

    monkeypatch.setattr(prices, "kernel_times", times)
    monkeypatch.setattr(in_turn, "_BUDGET_NS", 10_000_000)


def test_this_machine_is_a_target_for_blocks_of_zeros(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs share their zeros by vectors; cycles are measured times, and what is registered was measured."""
    kernels_take(monkeypatch, 10_000, 10_000)
    found = made(place, "blocks", target="cpu", cycles=0.7, solver="dp", finetune_epochs=0, override="deploy")
    assert (found.target, found.pattern) == ("cpu", "block")
    model = Model.load(place / "blocks" / "model.onnx")
    kept, lanes = [], lanes_here()
    for name, array in listing(model).arrays.items():
        if array.ndim == 4 or (array.ndim == 2 and name.startswith("weight")):
            for first in range(0, len(array), lanes):
                part = array[first : first + lanes] != 0
                kept.append(part.any(axis=0).mean())
                assert array.ndim == 2 or (part == part[0]).all()
    assert min(kept) < 0.8
    row = chosen(found)
    assert 0.6 <= row.cycles_ratio <= 0.7
    assert row.cycles == pytest.approx(row.cycles_ratio * found.dense.cycles, abs=1)
    (cpu,) = read_record(place / "blocks" / "deploy.json", Deployment).targets
    assert cpu.note.startswith("measured")
    assert f"{row.cycles_ratio:.2f} by its layers' kernels" in cpu.note


def test_zeros_in_int8(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs share zeros by vectors, inputs by fours; the file has the accuracy that is told; it is trained on."""
    kernels_take(monkeypatch, 10_000, 10_000)
    given = {"target": "cpu", "int8": True, "cycles": 0.7, "solver": "dp", "override": "deploy"}
    found = made(place, "bytes", **given)
    assert (found.pattern, found.int8) == ("block", True)
    row, lanes = chosen(found), lanes_here()
    assert 0.6 <= row.cycles_ratio <= 0.7
    assert row.top1 == pytest.approx(top1_in_onnx_runtime(place, place / "bytes"), abs=1e-9)
    assert found.acceptance is not None
    assert found.acceptance.after == pytest.approx(row.top1, abs=0.1)  # of other examples of the test data
    arrays = listing(Model.load(place / "bytes" / "model.onnx")).arrays
    weights = [array for array in arrays.values() if array.dtype == np.int8 and array.ndim == 4]
    assert len(weights) == 3
    kept = []
    for array in weights[1:]:
        for first, inputs in itertools.product(range(0, len(array), lanes), range(0, array.shape[1], 4)):
            part = array[first : first + lanes, inputs : inputs + 4] != 0
            kept.append(part.any(axis=(0, 1)).mean())
            assert part.mean(axis=(0, 1))[part.any(axis=(0, 1))].min(initial=1) > 0.5  # a few are rounded to zero
    assert np.mean(kept) < 0.8
    (cpu,) = read_record(place / "bytes" / "deploy.json", Deployment).targets
    assert "of its own in int8 by its layers' kernels" in cpu.note
    again = sparsify(resume=place / "bytes", feedback=place / "data.npz", override="retrain").result
    assert again.int8
    assert chosen(again).top1 == pytest.approx(top1_in_onnx_runtime(place, place / "bytes"), abs=0.1)


def test_int8_is_for_this_machine(place: Path) -> None:
    """A described target says itself how many bits it has."""
    with pytest.raises(InputError, match="int8 is a choice on this machine and for n:m zeros"):
        made(place, "described", int8=True)


def test_two_of_four_in_int8(place: Path) -> None:
    """What a GPU's sparse units read: of four neighbouring inputs two are zero, in bytes; the notes say what for."""
    given = {"pattern": "n:m", "int8": True, "cycles": 0.85, "solver": "dp", "override": "deploy"}
    found = made(place, "two of four", **given)
    assert (found.pattern, found.int8) == ("n:m", True)
    assert chosen(found).top1 == pytest.approx(top1_in_onnx_runtime(place, place / "two of four"), abs=1e-9)
    arrays = listing(Model.load(place / "two of four" / "model.onnx")).arrays
    weights = [array for array in arrays.values() if array.dtype == np.int8 and array.ndim == 4]
    pruned = [array for array in weights if (array == 0).mean() > 0.4]
    assert pruned
    for array in pruned:
        fours = array.reshape(len(array), -1, 4, *array.shape[2:])
        assert (np.count_nonzero(fours, axis=2) <= 2).all()
    assert any("trtexec --sparsity=enable --int8" in note for note in found.notes)
    (vpu,) = read_record(place / "two of four" / "deploy.json", Deployment).targets
    assert vpu.latency_ns < vpu.dense_latency_ns


def test_this_machine_is_a_target_for_channels(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kernels gain nothing; a described core stands in for the search, and what is registered was measured."""
    kernels_take(monkeypatch, 0, 10_000)
    found = made(place, "here", target="cpu", cycles=0.8, solver="dp", finetune_epochs=0, override="deploy")
    assert (found.target, found.pattern) == ("cpu", "channel")
    row = chosen(found)
    assert row.cycles_ratio <= 0.8
    (cpu,) = read_record(place / "here" / "deploy.json", Deployment).targets
    assert (cpu.target, cpu.cycles) == ("cpu", None)
    assert cpu.note.startswith("measured")
    assert f"{row.cycles_ratio:.2f} of its cycles as modelled" in cpu.note
    with pytest.raises(InputError, match="kernels that skip zeros execute none"):
        made(place, "there", target="cpu", pattern="block")


def test_gates_keep_a_model_back_unless_the_user_overrides_them(place: Path) -> None:
    """A drop that no interval of so few images can exclude: not deployed; then deployed all the same."""
    kept = made(place, "kept", accuracy_drop=0.0, finetune_epochs=0)
    assert kept.decision != "deploy"
    assert not (place / "kept" / "deploy.json").exists()
    forced = sparsify(resume=place / "kept", override="deploy", compare=False).result
    assert forced.deployed
    assert read_record(place / "kept" / "deploy.json", Deployment).forced
    assert any("override" in reason for reason in forced.reasons)


def test_channels_are_taken_out_of_the_file(place: Path) -> None:
    """Fewer parameters, the same names, and as accurate in ONNX Runtime."""
    found = made(place, "channels", pattern="channel", accuracy_drop=0.3)
    row = chosen(found)
    assert row.cycles_ratio <= 0.6
    assert top1_in_onnx_runtime(place, place / "channels") == pytest.approx(row.top1)
    assert row.parameters < 0.8 * found.dense.parameters
    assert Model.load(place / "channels" / "model.onnx").macs < 0.8 * Model.load(place / "net.onnx").macs


def stopping(word: str, after: int) -> Callable[[str], None]:
    """Ctrl-C at a message of this beginning, after so many of them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    left = iter(range(after))

    def say(message: str) -> None:
        if message.startswith(word) and next(left, None) is None:
            signal.raise_signal(signal.SIGINT)

    return say


@pytest.fixture(scope="module")
def whole(place: Path) -> Configuration:
    """What a search that nobody interrupts ends with."""
    return chosen(made(place, "whole", finetune_epochs=2))


@pytest.mark.parametrize(
    ("word", "after", "kept"),
    [
        ("layer database", 2, "database.part-1.npz"),
        ("search", 3, "model.onnx"),
        ("fine-tuning", 0, "model.onnx"),
        ("evaluating on the test", 0, "trials.json"),
    ],
)
def test_a_search_goes_on_wherever_it_was_interrupted(
    place: Path, whole: Configuration, word: str, after: int, kept: str
) -> None:
    """What was done is in the folder; resumed, with any workers, it ends where it would have ended."""
    folder = place / f"stopped at {word}"
    with contextlib.suppress(KeyboardInterrupt):
        stopped = made(place, folder.name, finetune_epochs=2, notify=stopping(word, after))
        assert stopped.interrupted
        assert read_record(folder / "result.json", SparsityResult).interrupted
    assert (folder / kept).is_file()
    resumed = sparsify(resume=folder, compare=False, workers=2 if word == "layer database" else 1).result
    assert not resumed.interrupted
    assert chosen(resumed) == whole
    assert not list(folder.glob("database.part-*"))


def test_a_finished_search_is_resumed_with_other_settings(place: Path, whole: Configuration) -> None:
    """More training, or more evaluations, are a training of another network: it begins, and nothing is in its way."""
    longer = chosen(sparsify(resume=place / "whole", finetune_epochs=3, compare=False).result)
    assert longer.finetune_epochs == 3
    assert longer.top1_before_finetune == whole.top1_before_finetune
    more = sparsify(resume=place / "whole", finetune_epochs=2, episodes=12, compare=False).result
    assert more.ledger.evaluations > 6
    assert chosen(more).validation_top1 >= whole.validation_top1


@pytest.mark.usefixtures("result")
def test_what_is_out_of_reach_or_cannot_be_used_is_an_error(place: Path, tmp_path: Path) -> None:
    """Each with one clear error, and nothing is left behind."""
    with pytest.raises(InfeasibleError, match="out of reach"):
        made(place, "far", cycles=0.02)
    with pytest.raises(InputError, match="cycles must be greater than 0"):
        made(place, "none", cycles=0.0)
    for name, value in (("finetune_epochs", np.inf), ("rate", np.nan), ("decay", -1.0), ("seed", 2**63)):
        with pytest.raises(InputError, match=f"{name} must be"):
            made(place, "none", **{name: value})
    with pytest.raises(InputError, match="already exists"):
        made(place, "first")
    with pytest.raises(InputError, match="--target missing"):
        sparsify(place / "net.onnx", place / "data.npz")
    with pytest.raises(InputError, match="is not a folder of framefit sparsify"):
        sparsify(resume=tmp_path)
    with pytest.raises(InputError, match="rewards only n:m zeros"):
        sparsify(place / "net.onnx", place / "data.npz", "gpu", pattern="unstructured", output=tmp_path / "gpu")
    with pytest.raises(InputError, match="solver is 'best'"):
        made(place, "solver", solver="best")
    b = GraphBuilder("odd", 1)
    b.output(b.op("Foo", b.input("image", (1, 2, 8, 8))), "classes")
    with pytest.raises(InputError, match=r"Foo.*cannot be trained"):
        sparsify(b.build(), place / "data.npz", "vpu", output=tmp_path / "odd")


def test_targets_get_different_assignments(place: Path) -> None:
    """The same device with threefold overhead has to prune more, and one that skips no activations elsewhere."""
    text = describe_target("vpu", output=place / "vpu.toml")[0]
    assert text.sparsity.skips == "dual"
    file = (place / "vpu.toml").read_text()
    (place / "weights.toml").write_text(file.replace('skips = "dual"', 'skips = "weights"'))
    (place / "slow.toml").write_text(file.replace("layer_cycles = 100", "layer_cycles = 300"))
    found = {
        name: made(place, name, target=place / f"{name}.toml", solver="dp", finetune_epochs=0, cycles=0.75)
        for name in ("vpu", "weights", "slow")
    }
    sparsities = {
        name: [layer.sparsity_ratio for layer in one.configurations[one.chosen or 0].layers]
        for name, one in found.items()
    }
    assert sparsities["vpu"] != sparsities["weights"]
    assert sum(sparsities["slow"]) > sum(sparsities["vpu"])


def test_the_pattern_is_what_the_target_rewards(place: Path) -> None:
    """2:4 for the target that says so, channels where zeros save nothing; a layer has 2:4 zeros or none."""
    assert chosen_pattern(resolve_target("gpu"), None) == "n:m"
    assert chosen_pattern(resolve_target("edge-8"), None) == "channel"
    assert chosen_pattern(resolve_target("vpu"), None) == "unstructured"
    found = made(place, "n of m", pattern="n:m", cycles=0.85, solver="dp", finetune_epochs=0)
    pruned = {layer.sparsity_ratio for layer in found.configurations[found.chosen or 0].layers if layer.sparsity_ratio}
    assert pruned == {0.5}


def test_feedback_below_the_threshold_trains_again(place: Path, result: SparsityResult) -> None:
    """On data that moved the model is wrong, is trained on them too, and becomes better there."""
    assert result.chosen is not None
    moved = write_pictures(place / "moved.npz", shift=2.5)
    found = sparsify(resume=place / "first", feedback=moved, finetune_epochs=8).result
    row = found.configurations[found.chosen or 0]
    assert any("feedback" in note and "trained again" in note for note in found.notes)
    assert row.top1 > row.top1_before_finetune
    assert row.sparsity_ratio >= result.configurations[result.chosen].sparsity_ratio - 1e-9


def test_dynamic_thresholds_are_recorded(place: Path) -> None:
    """Each round says what it asked for and why, and has a row and a curve of its own."""
    found = made(place, "dynamic", dynamic=True, cycles=0.7, accuracy_drop=0.2, finetune_epochs=0, solver="dp")
    assert len(found.thresholds) > 1
    assert found.thresholds[1].source == "dynamic"
    assert found.thresholds[1].cycles_ratio < 0.7
    assert found.target_cycles_ratio == min(
        one.cycles_ratio for one in found.thresholds if one.cycles_ratio >= found.target_cycles_ratio
    )
    assert found.threshold.cycles_ratio == found.target_cycles_ratio
    assert found.names[:2] == ("dp", "dp, round 1")
    assert [point.solver for point in found.curve] == list(found.names)


@pytest.mark.parametrize(("drop", "cycles", "word"), [(0.4, 0.7, "met: raised"), (0.0, 0.55, "out of reach: lowered")])
def test_a_dynamic_accuracy_is_trained_for(place: Path, drop: float, cycles: float, word: str) -> None:
    """At the same cycles, in rounds with a row each; the model is held against what was asked of it last."""
    found = made(
        place, word, dynamic_accuracy=True, accuracy_drop=drop, cycles=cycles, solver="uniform", finetune_epochs=0.5
    )
    first, moved = found.thresholds[:2]
    assert moved.source == "dynamic"
    assert word in moved.reason
    assert (moved.top1 > first.top1) == ("raised" in word)
    assert {one.cycles_ratio for one in found.thresholds} == {cycles}
    assert [one.round for one in found.thresholds] == list(range(len(found.thresholds)))
    assert len(found.configurations) == len(found.thresholds)
    assert found.threshold.top1 == max(one.top1 for one in found.thresholds[1:])
    assert chosen(found).cycles_ratio <= cycles
    assert chosen(found) == found.configurations[found.judged_by]
    assert len(found.curve) == 1


def test_modules_and_iterables_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch module, or a function that makes one, and pairs of inputs and labels."""
    (tmp_path / "own_network.py").write_text(
        "import torch\n\n\ndef network():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    pairs = [(random.standard_normal(6).astype(np.float32), index % 3) for index in range(60)]
    settings = SparsifySettings(model="own_network:network", data="", target="vpu")
    subject = open_subject(settings, Ledger(), None, pairs)
    assert [(layer.facts.inputs, layer.facts.outputs) for layer in subject.layers] == [(6, 12), (12, 3)]
    assert subject.pattern == "unstructured"
    assert len(subject.data.classes) == 3


def test_settings_are_kept_with_their_folder(place: Path, result: SparsityResult) -> None:
    """What was asked for can be read back."""
    settings = read_record(place / "first" / "sparsify.json", SparsifySettings)
    assert settings.cycles == result.target_cycles_ratio == 0.6
    assert settings.episodes == 6


def test_a_pruned_model_is_kept_where_fine_tuning_diverges(place: Path) -> None:
    """A rate at which the loss is no number, at a quarter and a sixteenth too, costs the fine-tuning, not the model."""
    found = made(place, "diverged", rate=1e30)
    row = chosen(found)
    assert row.finetune_epochs == 0
    assert row.top1 == row.top1_before_finetune == pytest.approx(top1_in_onnx_runtime(place, place / "diverged"))
    assert row.cycles_ratio <= 0.6
    (reason,) = [reason for reason in found.reasons if "diverged" in reason]
    assert "1e+30, 2.5e+29, 6.25e+28" in reason
    resumed = sparsify(resume=place / "diverged").result
    assert resumed.reasons == found.reasons


def test_fine_tuning_that_does_harm_is_undone_and_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that increase the loss do harm at every rate: the pruned model stays as accurate as it was."""
    monkeypatch.setattr("framefit.training.fine_tune.one_cycle", lambda ratio, peak, rising_ratio: -peak)  # noqa: ARG005
    found = made(place, "harmed", finetune_epochs=6, rate=0.2)
    row = chosen(found)
    assert row.finetune_epochs == 0
    assert row.top1 == row.top1_before_finetune
    (reason,) = [reason for reason in found.reasons if "did harm" in reason]
    assert "0.2, 0.05, 0.0125" in reason


def test_a_model_from_which_nothing_is_removed_stays_as_it_is(place: Path) -> None:
    """It is deployed at any drop, as nothing of it is an estimate, and is not trained."""
    found = made(place, "unpruned", cycles=1.0, accuracy_drop=0.001, solver="uniform", target="edge-8")
    assert found.decision == "deploy"
    assert found.acceptance is not None
    assert found.acceptance.interval == (0, 0)
    assert chosen(found).finetune_epochs == 0
    assert chosen(found).top1 == found.dense.top1


def test_errors_are_of_the_size_of_what_pruning_does(place: Path, tmp_path: Path) -> None:
    """The sum of the layers' errors is nearer to the divergence of the pruned network's classes than the estimates."""
    settings = SparsifySettings(model=str(place / "net.onnx"), data=str(place / "data.npz"), target="vpu")
    ledger = Ledger()
    subject = open_subject(settings, ledger)
    database = make_database(subject, tmp_path / "database.npz", ledger, 0, Here(), lambda _: None)
    problem = make_problem(subject, database, ledger)
    assignment = allocate(problem, int(0.7 * problem.dense_cycles))
    dense, pruned = (
        network.eval().logits(torch.from_numpy(subject.inputs)).detach()
        for network in (subject.network(), sparse_network(subject, database, assignment, ledger))
    )
    classes = subject.examples.task
    found = classes.divergence(dense, pruned, classes.heat(dense))
    estimated = database.errors[np.arange(len(assignment)), assignment].sum()
    assert abs(np.log(problem.error(assignment) / found)) < 0.5 * abs(np.log(estimated / found))


def test_derived_cycles_keep_the_accuracy(place: Path) -> None:
    """What the model is pruned to was evaluated before it is asked for."""
    found = made(place, "derived", cycles="derived", accuracy_drop=0.15, solver="dp", finetune_epochs=0)
    assert found.threshold.source == "derived"
    assert found.target_cycles_ratio < 1
    assert found.acceptance is not None
    assert found.acceptance.drop < 0.25


def test_networks_without_classes_are_pruned_without_labels(tmp_path: Path) -> None:
    """A detector's outputs agree with the dense one's far better than where as many weights are zero at random."""
    random = np.random.default_rng(0)
    x = random.standard_normal((300, 2, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=np.kron(x, np.ones((1, 1, 2, 2), np.float32)))
    b = GraphBuilder("detector", 2)
    y = b.conv(b.input("image", (1, 2, 8, 8)), 24, norm=True, activation="Relu")
    y = b.conv(y, 24, norm=True, activation="Relu")
    for name, count in (("scores", 2), ("boxes", 4)):
        rows = b.op("Transpose", b.conv(y, count), perm=[0, 2, 3, 1])
        b.output(b.op("Reshape", rows, b.constant(np.asarray([1, -1, count], np.int64))), name)
    with write_whole(tmp_path / "net.onnx") as file:
        file.write(b.build().to_bytes())
    options = {"cycles": 0.6, "accuracy_drop": 0.4, "episodes": 4, "finetune_epochs": 10, "compare": False}
    opened = sparsify(tmp_path / "net.onnx", tmp_path / "x.npz", "vpu", output=tmp_path / "out", **options)  # type: ignore[arg-type]
    found = opened.result
    assert found.acceptance is not None
    assert (found.acceptance.measure, found.acceptance.data, found.dense.top1) == ("outputs", "frames", 1.0)
    assert found.decision == "deploy", found.reasons
    rows = dict(zip(found.names, found.configurations, strict=True))
    assert rows["random zeros"].top1 < chosen(found).top1 - 0.2
    assert rows["random zeros"].zeros == pytest.approx(chosen(found).zeros, rel=0.05)
    console = Console(width=150, file=io.StringIO(), no_color=True)
    console.print(view(found))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "agreement of outputs 100.00 ->" in shown
    assert "top-1" not in shown
    assert "top-5" not in shown


def test_recurrent_networks_are_judged_with_their_own_states(tmp_path: Path) -> None:
    """Shapes, constants and states come by options; layers beside an LSTM are pruned, and the decision says of what."""
    write_voice(tmp_path / "voice.onnx", tmp_path / "x.npz", gain=True)
    options = {"cycles": 0.8, "accuracy_drop": 0.5, "episodes": 2, "finetune_epochs": 0, "compare": False}
    feeds = {"constants": {"gain": 1.0}, "states": {"hidden": "next_hidden", "cell": "next_cell"}}
    found = sparsify(tmp_path / "voice.onnx", tmp_path / "x.npz", "vpu", output=tmp_path / "out", **options, **feeds)  # type: ignore[arg-type]
    assert found.result.decision == "deploy", found.result.reasons
    assert found.result.acceptance is not None
    assert (found.result.acceptance.data, found.result.acceptance.examples) == ("frames", 40)
    assert any("the model gets its own states" in note for note in found.result.notes)
    written = Model.load(tmp_path / "out" / "model.onnx")
    assert [tensor.name for tensor in written.inputs] == ["sound", "hidden", "cell"]
    again = sparsify(resume=tmp_path / "out", compare=False).result
    assert again.acceptance == found.result.acceptance


def test_other_data_are_not_mixed_into_a_search(place: Path, whole: Configuration) -> None:
    """Images with the same labels but other values are refused by name of the file that knows."""
    assert whole.cycles
    folder = place / "whole"
    write_pictures(place / "others.npz", shift=0.5)
    with pytest.raises(InputError, match=r"trials\.json: evaluations of another model, other data"):
        sparsify(place / "net.onnx", place / "others.npz", "vpu", resume=folder, compare=False)


def test_few_images_for_statistics_are_reported(tmp_path: Path) -> None:
    """Training data join the few calibration images; where there are not enough, a note says so."""
    b = GraphBuilder("net", 2)
    b.output(b.dense(b.input("x", (1, 6)), 3), "classes")
    labels = np.arange(40) % 3
    x = np.eye(6, dtype=np.float32)[labels]
    np.savez(tmp_path / "few.npz", x_train=x, y_train=labels, x_test=x, y_test=labels)
    settings = SparsifySettings(model="", data=str(tmp_path / "few.npz"), target="vpu")
    subject = open_subject(settings, Ledger(), b.build())
    assert len(subject.inputs) == 36
    assert any("only 36 images for the layers' statistics" in note for note in subject.notes)


def test_a_lower_rate_after_a_divergence_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a quarter of the rate does not diverge the model is fine-tuned with that, and the reasons say so."""

    def one_cycle(ratio: float, peak: float, rising_ratio: float) -> float:
        return 1e30 if peak == 0.02 else 0.2 * rising_ratio * ratio * peak

    monkeypatch.setattr("framefit.training.fine_tune.one_cycle", one_cycle)
    found = made(place, "repeated")
    assert chosen(found).finetune_epochs == 1
    assert "fine-tuning at a rate of 0.02 diverged or did harm, and was repeated at 0.005" in found.reasons
