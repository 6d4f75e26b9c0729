"""The CPU kernels are held to the reference bit for bit."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framefit.core.trees import Ensemble, Patch, Scaled, evaluate
from framefit.devices.trees.kernels import kernel_of
from trees_cases import random_ensemble, random_inputs

PATCHES = st.builds(
    Patch,
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    border=st.booleans(),
)
KINDS = st.sampled_from(["vote", "scalar", "vector"])


def _assert_equal(ensemble: Ensemble, x: np.ndarray) -> None:
    y = np.full((len(x), *ensemble.output_shape), np.nan, np.float32)
    kernel_of(ensemble, len(x))(x, y)
    np.testing.assert_array_equal(y, evaluate(ensemble, x))


@settings(max_examples=25)
@given(seed=st.integers(0, 999), kind=KINDS, free=st.booleans(), levelled=st.booleans(), rows=st.integers(1, 130))
def test_dense(seed: int, kind: str, free: bool, levelled: bool, rows: int) -> None:
    """Ensembles on vectors give what the reference gives, for any number of rows."""
    random = np.random.default_rng(seed)
    outputs, trees = int(random.integers(1, 20)), int(random.integers(1, 18))
    ensemble = random_ensemble(random, kind=kind, free=free, levelled=levelled, outputs=outputs, trees=trees)
    _assert_equal(ensemble, random_inputs(random, ensemble, rows))


@settings(max_examples=25)
@given(seed=st.integers(0, 999), kind=KINDS, free=st.booleans(), levelled=st.booleans(), patch=PATCHES)
def test_pictures(seed: int, kind: str, free: bool, levelled: bool, patch: Patch) -> None:
    """Ensembles on patches give what the reference gives, at borders too."""
    random = np.random.default_rng(seed)
    shape = (int(random.integers(1, 4)), int(random.integers(4, 12)), int(random.integers(4, 12)))
    ensemble = random_ensemble(random, kind=kind, free=free, levelled=levelled, patch=patch, input_shape=shape)
    _assert_equal(ensemble, random_inputs(random, ensemble, 2))


@pytest.mark.parametrize("width", [63, 64, 65, 130])
@pytest.mark.parametrize("kind", ["vote", "vector"])
def test_signals(width: int, kind: str) -> None:
    """Channels x length: an image of one row."""
    random = np.random.default_rng(width)
    patch = Patch(kernel=(1, 5), stride=(1, 2), padding=(0, 2, 0, 1), border=True)
    ensemble = random_ensemble(random, kind=kind, patch=patch, input_shape=(3, width), outputs=5)
    assert len(ensemble.output_shape) == 2
    _assert_equal(ensemble, random_inputs(random, ensemble, 3))


TOKENS = Patch(kernel=(1, 1), layout="tokens")
VOLUME = Patch(kernel=(3, 2), stride=(1, 2), padding=(1, 0, 1, 0), border=True, layout="volume", depth=(3, 2, 1, 0))


@pytest.mark.parametrize("kind", ["vote", "vector"])
@pytest.mark.parametrize(("patch", "shape"), [(TOKENS, (9, 5)), (TOKENS, (3, 4, 5)), (VOLUME, (2, 6, 5, 4))])
def test_tokens_and_volumes(kind: str, patch: Patch, shape: tuple[int, ...]) -> None:
    """What is no image is seen as some."""
    random = np.random.default_rng(6)
    ensemble = random_ensemble(random, kind=kind, patch=patch, input_shape=shape, outputs=7)
    _assert_equal(ensemble, random_inputs(random, ensemble, 3))


@pytest.mark.parametrize("width", [63, 64, 65, 130])
@pytest.mark.parametrize("stride", [1, 2])
def test_wide_pictures(width: int, stride: int) -> None:
    """Rows of a picture that end inside, at and behind a word of 64 lanes."""
    random = np.random.default_rng(width)
    patch = Patch(kernel=(3, 5), stride=(1, stride), padding=(1, 2, 1, 2), border=True)
    ensemble = random_ensemble(random, patch=patch, input_shape=(2, 3, width), outputs=9)
    _assert_equal(ensemble, random_inputs(random, ensemble, 2))


@pytest.mark.parametrize(("trees", "leaf"), [(258, 127), (259, 127), (256, -128), (257, -128)])
@pytest.mark.parametrize("kind", ["vector", "scalar"])
def test_sums_of_sixteen_bits_and_more(trees: int, leaf: int, kind: str) -> None:
    """Sums up to the greatest that 16 bits hold, and beyond it."""
    random = np.random.default_rng(0)
    drawn = random_ensemble(
        random, kind=kind, patch=Patch(kernel=(1, 1)), input_shape=(2, 3, 3), outputs=2, trees=trees
    )
    constant = [msgspec.structs.replace(tree, leaves=(leaf,) * len(tree.leaves)) for tree in drawn.trees]
    bias, scale = (0, 0), (1.0, 1.0)
    fields = {"trees": tuple(constant), "levels": None, "scaled": Scaled(bias=bias, scale=scale)}
    ensemble = msgspec.structs.replace(drawn, **fields)
    y = np.empty((1, 2, 3, 3), np.float32)
    kernel_of(ensemble)(random_inputs(random, ensemble, 1), y)
    assert np.unique(y).tolist() == [trees * leaf]
