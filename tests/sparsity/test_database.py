"""Statistics of layers, the database made of them, and what an assignment is worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit import InputError
from framefit.core.executor import Here, executor_of
from framefit.core.model import GraphBuilder, Model, listing, with_weights
from framefit.sparsity.database import Database, build_group, build_layer, kept_channels, read_database, sparsity_levels
from framefit.sparsity.layers import WeightLayer, find_groups, find_layers
from framefit.sparsity.search import Evaluator, evaluations
from framefit.sparsity.statistics import LayerStatistics, activation_zeros, collect
from framefit.training.campaign import Ledger
from framefit.training.data import Examples
from framefit.training.network import to_torch

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.standard_normal((24, 3, 7, 7)).astype(np.float32)


def network() -> Model:
    """Strided, dilated, grouped and depthwise convolutions with odd padding, and a classifier."""
    b = GraphBuilder("net", 1)
    x = b.conv(b.input("image", (1, 3, 7, 7)), 8, norm=True, activation="Relu")
    x = b.conv(x, 8, stride=2, norm=True, activation="Relu")
    x = b.conv(x, 8, groups=8, dilation=2, norm=True, activation="Relu")
    x = b.conv(x, 12, groups=2, activation="Relu")
    x = b.conv(b.conv(x, 10, kernel=1, activation="Relu"), 6, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 4), "classes")
    return b.build()


MODEL = network()
WRITTEN = listing(MODEL)
LAYERS: tuple[WeightLayer, ...] = find_layers(WRITTEN.nodes, WRITTEN.arrays)[0]


@pytest.fixture(scope="module")
def statistics() -> dict[str, LayerStatistics]:
    """Of the network's layers."""
    ledger = Ledger()
    found = collect(to_torch(MODEL), LAYERS, INPUTS, ledger, seed=0)
    assert ledger.images_forwarded == 4 * len(INPUTS)
    return found


@pytest.fixture(scope="module")
def database(statistics: dict[str, LayerStatistics]) -> Database:
    """Zeros anywhere."""
    return built(statistics)


def built(statistics: dict[str, LayerStatistics], of_m: tuple[int, int] | None = None) -> Database:
    """All layers, anywhere or N of M."""
    levels = sparsity_levels(sum(layer.facts.parameters for layer in LAYERS))
    entries = (
        build_layer(layer, WRITTEN.arrays[layer.weight], statistics[layer.name], levels, of_m=of_m) for layer in LAYERS
    )
    return Database("unstructured" if of_m is None else "n:m", tuple(entries))


def test_a_certain_network_shows_errors_too(statistics: dict[str, LayerStatistics]) -> None:
    """Logits a hundred times as large are the same classes at their temperature: earlier layers matter as much."""
    last = LAYERS[-1].weight
    certain = to_torch(with_weights(MODEL, {last: 100 * WRITTEN.arrays[last]}))
    found = collect(certain, LAYERS, INPUTS, Ledger(), seed=0)
    for layer in LAYERS[:-1]:
        expected = statistics[layer.name].importance
        assert np.allclose(found[layer.name].importance, expected, rtol=1e-3, atol=1e-3 * expected.max())


def check_hessians(
    model: Model, inputs: npt.NDArray[np.float32], statistics: dict[str, LayerStatistics] | None = None
) -> None:
    """They tell the squared error of each layer's output exactly: weights changed, outputs compared."""
    import torch

    net, written = to_torch(model), listing(model)
    layers, notes = find_layers(written.nodes, written.arrays)
    assert not notes
    statistics = statistics or collect(net, layers, inputs, Ledger(), seed=0)
    seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    handles = [
        net.node(layer.name).register_forward_hook(lambda _, i, o, name=layer.name: seen.update({name: (i[0], o)}))
        for layer in layers
    ]
    with torch.no_grad():
        net.eval()(torch.from_numpy(inputs))
        for handle in handles:
            handle.remove()
        for layer in layers:
            weight = written.arrays[layer.weight]
            change = np.random.default_rng(1).standard_normal(weight.shape).astype(np.float32)
            data, output = seen[layer.name]
            net.weights[layer.weight] += torch.from_numpy(change)
            moved = net.node(layer.name)(data)
            net.weights[layer.weight] -= torch.from_numpy(change)
            real = float(((moved - output).double() ** 2).sum()) / len(inputs)
            delta = layer.matrix(change).astype(np.float64)
            told = float(np.einsum("gnk,gkl,gnl->", delta, statistics[layer.name].hessian, delta))
            assert told == pytest.approx(real, rel=1e-3), layer.name


def test_hessians_are_of_what_the_sums_run_over(statistics: dict[str, LayerStatistics]) -> None:
    """For convolutions of images with strides, dilations, groups and odd padding."""
    check_hessians(MODEL, INPUTS, statistics)


@pytest.mark.parametrize("axes", [1, 3])
def test_hessians_of_signals_and_volumes(axes: int) -> None:
    """Along one axis, and along three of different sizes; uneven padding."""
    b = GraphBuilder("other", 1)
    sizes = (9, 7, 8)[-axes:]
    weights = b.weight((4, 2, *(3, 2, 3)[-axes:]), 18)
    padding = [*(2, 0, 1)[-axes:], *(1, 1, 0)[-axes:]]
    x = b.op("Conv", b.input("samples", (1, 2, *sizes)), weights, strides=[2, *[1] * (axes - 1)], pads=padding)
    x = b.op("Conv", b.op("Relu", x), b.weight((6, 2, *[2] * axes), 8), group=2, dilations=[*[1] * (axes - 1), 2])
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 3), "classes")
    check_hessians(b.build(), np.random.default_rng(2).standard_normal((8, 2, *sizes)).astype(np.float32))


def test_changes_of_a_layer_that_reads_two_groups_add_up() -> None:
    """Each group's refit is of its own loss; what either of them removes stays zero, also in the masks."""
    b = GraphBuilder("joined", 1)
    x = b.input("image", (1, 3, 6, 6))
    x = b.op("Concat", b.conv(x, 6, activation="Relu"), b.conv(x, 8, activation="Relu"), axis=1)
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", b.conv(x, 5, activation="Relu"))), 4), "classes")
    model = b.build()
    written = listing(model)
    layers, _ = find_layers(written.nodes, written.arrays)
    groups = find_groups(written.nodes, written.arrays, layers, ["classes"])
    inputs = np.random.default_rng(0).standard_normal((16, 3, 6, 6)).astype(np.float32)
    statistics = collect(to_torch(model), layers, inputs, Ledger(), seed=0)
    entries = tuple(build_group(group, layers, written.arrays, statistics) for group in groups)
    database, weight = Database("channel", entries, groups), layers[2].weight
    first, second = (int(np.argmax(entry.levels >= 0.3)) for entry in entries[:2])
    dense = written.arrays[weight]
    alone = [database.weights(np.array(levels))[weight] for levels in ([first, 0, 0], [0, second, 0])]
    both = database.weights(np.array([first, second, 0]))[weight]
    gone = (alone[0] == 0) | (alone[1] == 0)
    assert 0 < gone.sum() < gone.size
    assert (both[gone] == 0).all()
    assert np.allclose(both[~gone], (alone[0] + alone[1] - dense)[~gone], atol=1e-6)
    assert (database.masks(np.array([first, second, 0]))[weight] == ~gone).all()
    small = with_weights(model, database.final(np.array([first, second, 0]), written.arrays, layers))
    assert small.parameters < model.parameters


def test_a_layer_that_reads_a_group_twice_loses_both() -> None:
    """Channels beside themselves, of which one copy is not removed alone."""
    b = GraphBuilder("twice", 1)
    x = b.conv(b.input("image", (1, 3, 6, 6)), 5, activation="Relu")
    x = b.conv(b.op("Concat", x, x, axis=1), 4, activation="Relu")
    b.output(b.dense(b.op("Flatten", b.op("GlobalAveragePool", x)), 3), "classes")
    model = b.build()
    written = listing(model)
    layers, _ = find_layers(written.nodes, written.arrays)
    group = find_groups(written.nodes, written.arrays, layers, ["classes"])[0]
    inputs = np.random.default_rng(0).standard_normal((16, 3, 6, 6)).astype(np.float32)
    entry = build_group(group, layers, written.arrays, collect(to_torch(model), layers, inputs, Ledger(), seed=0))
    weights, gone = entry.weights[layers[1].weight][1], entry.order[0]
    assert (weights[:, [gone, gone + 5]] == 0).all()
    assert np.count_nonzero(weights) == weights.size * 8 // 10


def test_activation_zeros_are_counted() -> None:
    """Nothing of the picture is zero, about half behind a rectifier; the ledger has the images."""
    ledger = Ledger()
    zeros = activation_zeros(to_torch(MODEL), [LAYERS[0].name, LAYERS[1].name], INPUTS, ledger)
    assert zeros[LAYERS[0].name] == 0
    assert 0.2 < zeros[LAYERS[1].name] < 0.8
    assert ledger.images_forwarded == len(INPUTS)


def test_no_refit_is_worse_than_its_mask(database: Database) -> None:
    """On every layer and level; the first level is the layer to the bit."""
    for entry, layer in zip(database.entries, LAYERS, strict=True):
        assert (entry.errors <= entry.masked * (1 + 1e-6) + 1e-12).all()
        assert (entry.weights[layer.weight][0] == WRITTEN.arrays[layer.weight]).all()
        zeros = (entry.weights[layer.weight] == 0).reshape(len(entry.levels), -1).mean(axis=1)
        assert np.allclose(zeros, entry.levels)


def test_n_of_m_holds_where_the_hardware_counts_it(statistics: dict[str, LayerStatistics]) -> None:
    """The model's own count of 2:4 zeros is a half for every layer that has four channels and more."""
    from framefit.core.model import with_weights

    database = built(statistics, of_m=(2, 4))
    sparse = with_weights(MODEL, database.weights(np.ones(len(LAYERS), np.int64)))
    counted = dict(zip([layer.name for layer in sparse.layers], sparse.weight_zeros("n:m", 2, 4), strict=True))
    for layer in LAYERS:
        assert counted[layer.name] == 0.5, layer.name
    depthwise = next(entry for entry, layer in zip(database.entries, LAYERS, strict=True) if layer.channels == 1)
    assert (depthwise.levels == 0).all()


def test_channels_of_the_database_are_gone_from_the_model(statistics: dict[str, LayerStatistics]) -> None:
    """What is evaluated with zeros is what the smaller model computes."""
    import onnxruntime

    from framefit.core.model import with_weights

    groups = find_groups(WRITTEN.nodes, WRITTEN.arrays, LAYERS, ["classes"])
    entries = (build_group(group, LAYERS, WRITTEN.arrays, statistics) for group in groups)
    database = Database("channel", tuple(entries), groups)
    assignment = np.full(len(groups), 12)
    small = with_weights(MODEL, database.final(assignment, WRITTEN.arrays, LAYERS))
    zeroed = with_weights(MODEL, database.weights(assignment))
    assert small.macs < 0.8 * MODEL.macs
    found, expected = (
        onnxruntime.InferenceSession(one.to_bytes()).run(None, {"image": INPUTS[:1]})[0] for one in (small, zeroed)
    )
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)
    for entry in database.entries:
        assert (entry.errors <= entry.masked * (1 + 1e-6) + 1e-12).all()


@given(st.integers(2, 3000))
def test_whole_blocks_of_channels_are_among_the_levels(channels: int) -> None:
    """From all channels down to one, never more of them, and blocks of 16 before odd numbers."""
    kept = kept_channels(channels)
    assert (kept[0], kept[-1], len(kept)) == (channels, 1, 24)
    assert (np.diff(kept) <= 0).all()
    blocks = set(range(16, channels, 16))
    assert blocks <= set(kept.tolist()) or (set(kept.tolist()) - {channels, 1}) <= blocks


def test_a_database_comes_back_from_its_file(database: Database, tmp_path: Path) -> None:
    """The same tables and weights; of a layer whose weights are others, or damaged, it is refused."""
    path = tmp_path / "database.npz"
    database.save(path)
    facts = [layer.facts for layer in LAYERS]
    again = read_database(path, facts, WRITTEN.arrays)
    assert (again.levels == database.levels).all()
    assert (again.errors == database.errors).all()
    assignment = np.full(len(LAYERS), 7)
    assert all((again.weights(assignment)[name] == array).all() for name, array in database.weights(assignment).items())
    retrained = dict(WRITTEN.arrays) | {LAYERS[2].weight: WRITTEN.arrays[LAYERS[2].weight] * np.float32(1.5)}
    with pytest.raises(InputError, match="other weights"):
        read_database(path, facts, retrained)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="cannot be read"):
        read_database(path, facts, WRITTEN.arrays)


def test_an_evaluation_costs_forwards_and_forgets_the_one_before(database: Database) -> None:
    """The dense assignment is worth the same before and after a sparse one, and the same in other processes."""
    ledger = Ledger()
    examples = Examples(INPUTS, np.arange(len(INPUTS)) % 4)
    evaluator = Evaluator(MODEL, database, examples, INPUTS)
    dense = np.zeros(len(LAYERS), np.int64)
    assignments = [dense, dense + 30, dense, dense + 10]
    first, _, third, _ = found = list(evaluations(evaluator, Here(), ledger, assignments))
    assert first == third
    assert ledger.evaluations == 4
    assert ledger.images_forwarded == 4 * 2 * len(INPUTS)
    with executor_of(2) as executor:
        for part in (assignments[:2], assignments[2:]):
            assert list(evaluations(evaluator, executor, ledger, part)) == [found.pop(0) for _ in part]
