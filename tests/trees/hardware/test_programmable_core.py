"""The programmable core walks the trees in its memories as the model does, a node a cycle."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trees_cases import random_ensemble

pytest.importorskip("amaranth", reason="needs the extra hw: pip install 'framefit[hw]'")

from framefit import InputError
from framefit.core.trees import FreeTree, accumulate
from framefit.trees.hardware.programmable import (
    ProgrammableCore,
    as_free,
    load_program,
    observed_latency,
    visited_nodes,
)
from framefit.trees.hardware.simulation import drawn_rows, simulate_core


@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(["vote", "scalar", "vector"]),
    free=st.booleans(),
    registered=st.booleans(),
    features=st.integers(1, 20),
)
def test_it_gives_the_sums_of_the_model(seed, kind, free, registered, features) -> None:
    """Of every form of trees, those without a test included, row by row and in order."""
    random = np.random.default_rng(seed)
    ensemble = random_ensemble(random, kind=kind, free=free, input_shape=(features,), trees=3, outputs=2, depth=4)
    words = drawn_rows(ensemble, 6, random)
    core = ProgrammableCore(load_program(ensemble), registered=registered)
    assert np.array_equal(simulate_core(core, words).sums, accumulate(ensemble, words))


@pytest.mark.parametrize(("kind", "trees", "registered"), [("vote", 4, False), ("vector", 16, True)])
def test_a_node_takes_hardly_more_than_a_cycle(kind, trees, registered) -> None:
    """At most 1.1 cycles a node, entering and leaving included; with registers, too."""
    random = np.random.default_rng(1)
    ensemble = random_ensemble(random, kind=kind, trees=trees, outputs=3, depth=6, input_shape=(24,))
    words = drawn_rows(ensemble, 24, random)
    program = load_program(ensemble)
    run = simulate_core(ProgrammableCore(program, registered=registered), words)
    nodes = visited_nodes(program, words)
    assert nodes <= run.cycles <= 1.1 * nodes


def test_sums_wait_until_they_are_taken() -> None:
    """Where sums are taken late none is lost, changed or out of order."""
    random = np.random.default_rng(2)
    ensemble = random_ensemble(random, trees=3, depth=3)
    words = drawn_rows(ensemble, 8, random)
    core = ProgrammableCore(load_program(ensemble))
    assert np.array_equal(simulate_core(core, words, taken_every=37).sums, accumulate(ensemble, words))


def test_it_runs_another_program() -> None:
    """Loaded through its port, another ensemble's trees are walked in the same circuit."""
    random = np.random.default_rng(4)
    small = random_ensemble(random, kind="scalar", trees=2, depth=2)
    large = random_ensemble(random, kind="scalar", trees=5, depth=4, free=True)
    words = drawn_rows(large, 6, random)
    core = ProgrammableCore(load_program(large))
    loaded = load_program(small)
    assert np.array_equal(simulate_core(core, words, program=loaded).sums, accumulate(small, words))
    roomy = ProgrammableCore(load_program(large), nodes=500, leaves=600)
    assert np.array_equal(simulate_core(roomy, words).sums, accumulate(large, words))


def test_a_program_that_does_not_fit_is_refused() -> None:
    """More nodes, more outputs, or wider sums than the core has are an error that names both."""
    random = np.random.default_rng(6)
    own = random_ensemble(random, trees=2, depth=2)
    words = drawn_rows(own, 2, random)
    for room, wrong, message in (
        (0, random_ensemble(random, trees=8, depth=6), "the core has"),
        (4000, random_ensemble(random, trees=1, depth=1, outputs=2), "the core has"),
        (4000, random_ensemble(random, trees=60, depth=2), "sums of"),
    ):
        core = ProgrammableCore(load_program(own), nodes=room, leaves=room)
        simulate_core(core, words)
        with pytest.raises(InputError, match=message):
            simulate_core(core, words, program=load_program(wrong))


def test_an_oblivious_tree_as_nodes_is_the_same_tree() -> None:
    """2 ** depth - 1 nodes lead every row to the leaf that the tests number."""
    random = np.random.default_rng(8)
    ensemble = random_ensemble(random, trees=6, depth=6)
    words = drawn_rows(ensemble, 100, random)
    free = tuple(as_free(tree) for tree in ensemble.trees)
    assert all(isinstance(tree, FreeTree) for tree in free)
    assert [len(tree.nodes) for tree in free] == [2 ** len(tree.inputs) - 1 for tree in ensemble.trees]
    nodes = msgspec.structs.replace(ensemble, trees=(), free_trees=free)
    assert np.array_equal(accumulate(nodes, words), accumulate(ensemble, words))


def test_latency_is_observed() -> None:
    """A memory answers in the next cycle, one with a register behind it in the one after."""
    assert observed_latency(registered=False) == 1
    assert observed_latency(registered=True) == 2
