"""Built-in networks: right shapes, sane numbers, cuttable, reproducible."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from framefit.core.model.builtin import BUILTIN, depth, detector
from networks import Runner, difference, random_inputs

every_builtin = pytest.mark.parametrize("name", BUILTIN)


@functools.cache
def runner(name: str) -> Runner:
    """One runner a network, so that sessions are made once."""
    return Runner(BUILTIN[name](0))


@every_builtin
def test_the_seed_decides_the_weights(name: str) -> None:
    """The same seed gives the same file, another seed other weights in the same layers."""
    model = runner(name).model
    again, other = BUILTIN[name](0), BUILTIN[name](1)
    assert model.name == name
    assert again.digest == model.digest != other.digest
    assert other.layers == model.layers


@every_builtin
def test_a_few_cuts_keep_the_outputs(name: str) -> None:
    """Every fifth legal cut at once gives the whole model's outputs."""
    run = runner(name)
    positions = [cut.position for cut in run.model.legal_cuts][::5]
    assert len(positions) >= 20
    feeds = random_inputs(run.model, 0)
    assert difference(run.whole(feeds), run.cut(feeds, positions)) <= 1e-4


@pytest.mark.parametrize("seed", range(3))
@every_builtin
def test_activations_stay_sane(name: str, seed: int) -> None:
    """No layer explodes or dies: what crosses any of 12 cuts has a spread between 0.01 and 100."""
    run = Runner(BUILTIN[name](seed))
    model = run.model
    tensors = random_inputs(model, seed)
    bounds = sorted({*np.linspace(0, len(model.layers), 13).astype(int).tolist()})
    for first, end in itertools.pairwise(bounds):
        tensors |= run._run((first, end - 1), tensors)
    for tensor, array in tensors.items():
        assert 0.01 < array.std() < 100, tensor


def test_shapes_of_the_detector() -> None:
    """Scores add up to one at each anchor; there is one box an anchor."""
    run = runner("detector")
    outputs = run.whole(random_inputs(run.model, 0))
    assert {name: array.shape for name, array in outputs.items()} == {"scores": (1, 4360, 2), "boxes": (1, 4360, 4)}
    np.testing.assert_allclose(outputs["scores"].sum(axis=2), 1, rtol=1e-5)
    assert 0.02 < outputs["scores"].std() < 0.49


def test_shapes_of_depth() -> None:
    """One depth a pixel, neither all near nor all far."""
    run = runner("depth")
    outputs = run.whole(random_inputs(run.model, 0))
    assert outputs["depth"].shape == (1, 1, 256, 320)
    assert 0.02 < outputs["depth"].std() < 0.4


def test_sizes() -> None:
    """The detector is about ten times cheaper than the depth network, whose weights stay under 20 MB."""
    small, large = detector(), depth()
    assert 5 < large.macs / small.macs < 20
    assert sum(layer.parameter_bytes for layer in large.layers) < 20e6
