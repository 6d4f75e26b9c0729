"""Tables counted as circuits are built, against what synthesis made of the same."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from framefit.trees.exporting import lut6_of
from trees_cases import random_ensemble


def _full(kind: str, trees: int) -> int:
    random = np.random.default_rng(0)
    ensemble = random_ensemble(random, kind=kind, input_shape=(128,), outputs=1, trees=trees, levelled=True)
    top = 2 if kind == "vote" else 128
    made = [
        msgspec.structs.replace(
            tree,
            inputs=tuple(range(6)),
            bits=(0,) * 6,
            leaves=tuple(random.integers(0 if kind == "vote" else -127, top, 64).tolist()),
        )
        for tree in ensemble.trees
    ]
    return lut6_of(msgspec.structs.replace(ensemble, trees=tuple(made)))


@pytest.mark.parametrize(("kind", "trees", "synthesised"), [("vote", 9, 15.9), ("vector", 32, 647)])
def test_counts_are_near_those_of_synthesis(kind: str, trees: int, synthesised: float) -> None:
    """Within a tenth of what Yosys makes of such circuits (benchmarks/results/hardware.json)."""
    assert _full(kind, trees) == pytest.approx(synthesised, rel=0.1)


def test_what_never_changes_takes_no_table() -> None:
    """Trees without tests are constants."""
    ensemble = random_ensemble(np.random.default_rng(1), trees=1, depth=0, outputs=2, levelled=False)
    assert lut6_of(ensemble) == 0


@pytest.mark.parametrize("kind", ["vote", "scalar", "vector"])
def test_more_trees_take_more(kind: str) -> None:
    """Counts grow with the trees, for trees of any form."""
    for free in (False, True):
        counts = [
            lut6_of(random_ensemble(np.random.default_rng(2), kind=kind, trees=trees, free=free))
            for trees in (2, 8, 30)
        ]
        assert counts == sorted(set(counts))
