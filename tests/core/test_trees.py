"""Tree ensembles as data: files, what is refused, and evaluation against a loop over bits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit import InputError
from framefit.core.files import write_record
from framefit.core.trees import Encoder, Ensemble, Forest, FreeTree, ObliviousTree, Patch, encode, evaluate, read_forest
from trees_cases import random_ensemble, random_inputs


def _slowly(ensemble: Ensemble, x: np.ndarray) -> np.ndarray:
    """Value by value, from the words of the records' docstrings."""
    y = np.empty((len(x), ensemble.outputs, ensemble.positions), np.float32)
    patch = ensemble.patch or Patch(kernel=(1, 1))
    pictures = x if ensemble.patch else x.reshape(len(x), -1, 1, 1)
    channels, height, width = pictures.shape[1:]
    columns = patch.positions(height, width)[1]
    low, high = (np.asarray(side, np.float32) for side in (ensemble.encoder.low, ensemble.encoder.high))

    def word(image: int, position: int, feature: int) -> int:
        channel, (dy, dx) = feature // patch.area, divmod(feature % patch.area, patch.kernel[1])
        line = position // columns * patch.stride[0] + dy - patch.padding[0]
        column = position % columns * patch.stride[1] + dx - patch.padding[1]
        outside = not (0 <= line < height and 0 <= column < width)
        if channel == channels:
            return 2 * outside
        if outside:
            return 0
        value = pictures[image, channel, line, column]
        return int(value > low[channel]) + int(value > high[channel])

    for image in range(len(x)):
        for position in range(ensemble.positions):
            for output in range(ensemble.outputs):
                total = 0
                for number, tree in enumerate(ensemble.members):
                    if ensemble.kind != "vector" and number // ensemble.trees_each != output:
                        continue
                    if isinstance(tree, ObliviousTree):
                        tests = zip(tree.inputs, tree.bits, strict=True)
                        leaf = sum((word(image, position, f) > bit) << k for k, (f, bit) in enumerate(tests))
                    else:
                        leaf = 0
                        while leaf < len(tree.nodes):
                            node = tree.nodes[leaf]
                            part = f"{word(image, position, node.x):02b}"[1 - node.h : 2 - node.l]
                            leaf = node.i1 if int(part, 2) > node.a else node.i0
                        leaf -= len(tree.nodes)
                    total += tree.leaves[leaf * ensemble.width + (output if ensemble.width > 1 else 0)]
                if ensemble.levels:
                    level = (total >= ensemble.levels.low[output]) + (total >= ensemble.levels.high[output])
                    y[image, output, position] = ensemble.levels.values[output][level]
                else:
                    shifted = np.float32(total + ensemble.scaled.bias[output])
                    y[image, output, position] = shifted * np.float32(ensemble.scaled.scale[output])
    return y.reshape(len(x), *ensemble.output_shape)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 9999),
    kind=st.sampled_from(["vote", "scalar", "vector"]),
    free=st.booleans(),
    levelled=st.booleans(),
    pictures=st.booleans(),
)
def test_evaluation(seed: int, kind: str, free: bool, levelled: bool, pictures: bool) -> None:
    """The vectorised reference gives what its definition says, value by value."""
    random = np.random.default_rng(seed)
    patch = Patch(kernel=(2, 3), stride=(1, 2), padding=(1, 0, 0, 2), border=bool(seed % 2)) if pictures else None
    shape = (2, 3, 4) if pictures else (5,)
    ensemble = random_ensemble(random, kind=kind, free=free, levelled=levelled, patch=patch, input_shape=shape)
    x = random_inputs(random, ensemble, 2)
    np.testing.assert_array_equal(evaluate(ensemble, x), _slowly(ensemble, x))


@settings(max_examples=20)
@given(seed=st.integers(0, 9999), kind=st.sampled_from(["vote", "scalar", "vector"]), free=st.booleans())
def test_files(tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str, free: bool) -> None:
    """What was written is what is read."""
    path = tmp_path_factory.mktemp("trees") / "one.trees.json"
    ensemble = random_ensemble(np.random.default_rng(seed), kind=kind, free=free)
    forest = Forest(model="network", ensembles=(ensemble,))
    write_record(path, forest)
    assert read_forest(path) == forest


def test_binary_and_ternary_words() -> None:
    """A value on a threshold is below it; equal thresholds give the words 0 and 2; NaN is below both."""
    ensemble = random_ensemble(np.random.default_rng(0), input_shape=(2,))
    ensemble = msgspec.structs.replace(ensemble, encoder=Encoder(low=(-0.5, 0.25), high=(0.5, 0.25)), trees=_stumps())
    x = np.asarray([[-0.5, 0.25], [0.5, 0.5], [0.75, np.nan]], np.float32)
    assert encode(ensemble, x).tolist() == [[0, 0], [1, 2], [2, 0]]


def _stumps() -> tuple[ObliviousTree, ...]:
    return (ObliviousTree(inputs=(1,), bits=(0,), leaves=(0, 1)),) * 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"kind":"vote"', '"kind":"choice"', "kind"),
        ('"bits":[0]', '"bits":[2]', "comparator bit 0 or 1"),
        ('"inputs":[1]', '"inputs":[9]', "outside 0 .. 6"),
        ('"leaves":[0,1]', '"leaves":[0,2]', "outside 0 .. 1"),
        ('"leaves":[0,1]', '"leaves":[0]', "1 leaf values, not 2"),
        ('"output_shape":[3]', '"output_shape":[2]', "3 outputs are decoded"),
        ('"input_shape":[7]', '"input_shape":[8]', "7 comparators for 8"),
        ('"trees":[', '"tress":[', "did you mean 'trees'"),
        ('"schema_version":1', '"schema_version":7', "schema_version is 7"),
    ],
)
def test_damaged_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A file that says what cannot be is refused with one error that says what."""
    ensemble = msgspec.structs.replace(random_ensemble(np.random.default_rng(0)), trees=_stumps())
    text = msgspec.json.encode(Forest(model="network", ensembles=(ensemble,))).decode()
    path = tmp_path / "one.trees.json"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        read_forest(path)
    assert str(path) in str(caught.value)


def test_truncated_file(tmp_path: Path) -> None:
    """Half a file is no valid JSON."""
    path = tmp_path / "one.trees.json"
    path.write_bytes(msgspec.json.encode(Forest(model="network", ensembles=()))[:-4])
    with pytest.raises(InputError, match="not valid JSON"):
        read_forest(path)


@pytest.mark.parametrize(
    "nodes", [[(0, 0, 0, 1, 0, 1)], [(0, 0, 0, 1, 1, 3)], [(0, 0, 1, 0, 1, 2)], [(0, 0, 0, 2, 1, 2)]]
)
def test_nodes_that_cannot_be(nodes: list[tuple[int, ...]]) -> None:
    """A node that leads back, or nowhere, or compares bits that no word has, is refused."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"nodes": nodes, "leaves": [0, 1]}, FreeTree)


def test_bits_of_the_sum() -> None:
    """Nine votes are at most 9: four bits; 64 int8 leaves reach 64 x 128: fourteen bits and a sign."""
    random = np.random.default_rng(0)
    assert random_ensemble(random, kind="vote", trees=9).accumulator_bits == 4
    assert random_ensemble(random, kind="vector", trees=64).accumulator_bits == 15


def test_another_shape() -> None:
    """An input of another shape is refused."""
    ensemble = random_ensemble(np.random.default_rng(0))
    with pytest.raises(InputError, match=r"not \(7,\)"):
        evaluate(ensemble, np.zeros((2, 6), np.float32))
