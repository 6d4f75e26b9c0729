"""The fixed-function circuit is the model, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trees_cases import random_ensemble, random_inputs, simulate_encoder

pytest.importorskip("amaranth", reason="needs the extra hw: pip install 'framefit[hw]'")

from framefit.core.trees import Encoder, Patch, encode
from framefit.trees.hardware.fixed import FixedFunction, output_bits_of, pack_rows, results_of
from framefit.trees.hardware.simulation import drawn_rows, simulate_fixed
from framefit.trees.hardware.synthesis import part_of

PATCH = Patch(kernel=(2, 3), padding=(1, 1, 0, 1), border=True)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(["vote", "scalar", "vector"]),
    free=st.booleans(),
    levelled=st.booleans(),
    convolved=st.booleans(),
    pipelined=st.booleans(),
)
def test_it_gives_what_the_model_gives(seed, kind, free, levelled, convolved, pipelined) -> None:
    """Of every form of ensemble, in every row, with and without registers."""
    random = np.random.default_rng(seed)
    ensemble = random_ensemble(
        random,
        kind=kind,
        free=free,
        levelled=levelled,
        patch=PATCH if convolved else None,
        input_shape=(2, 4, 5) if convolved else (9,),
        depth=5,
    )
    words = encode(ensemble, random_inputs(random, ensemble, 3))
    circuit = FixedFunction(ensemble, pipelined=pipelined)
    found = simulate_fixed(circuit, pack_rows(words))
    assert found == results_of(ensemble, words)


def test_every_input_of_a_small_ensemble() -> None:
    """All 81 rows of four ternary features, trees of depth 0 to 6 on them."""
    ensemble = random_ensemble(np.random.default_rng(3), input_shape=(4,), outputs=4, trees=9)
    words = np.array(list(itertools.product(range(3), repeat=4)), np.uint8)
    circuit = FixedFunction(ensemble)
    found = simulate_fixed(circuit, pack_rows(words))
    assert found == results_of(ensemble, words)
    assert len(set(found)) > 2


def test_registers_delay_and_do_not_change() -> None:
    """A row enters each cycle and its output follows ``latency`` cycles later: tables, two levels of adders, output."""
    random = np.random.default_rng(5)
    ensemble = random_ensemble(random, kind="scalar", trees=4)
    words = drawn_rows(ensemble, 20, random)
    for pipelined, latency in ((False, 0), (True, 4)):
        circuit = FixedFunction(ensemble, pipelined=pipelined)
        assert circuit.latency == latency
        assert simulate_fixed(circuit, pack_rows(words)) == results_of(ensemble, words)


def test_levels_are_comparator_bits() -> None:
    """The outputs of one ensemble are inputs of the next: bit 1 is never set without bit 0."""
    random = np.random.default_rng(7)
    ensemble = random_ensemble(random, outputs=5)
    words = drawn_rows(ensemble, 30, random)
    circuit = FixedFunction(ensemble)
    for value in simulate_fixed(circuit, pack_rows(words)):
        assert all(value >> 2 * place & 3 != 2 for place in range(5))


@pytest.mark.parametrize("kind", ["vote", "scalar", "vector"])
def test_a_part_has_the_outputs_of_the_whole(kind) -> None:
    """Some outputs on their own, evenly chosen, are what they are in the whole."""
    random = np.random.default_rng(11)
    ensemble = random_ensemble(random, kind=kind, outputs=5)
    words = drawn_rows(ensemble, 25, random)
    part = part_of(ensemble, 3)
    bits = output_bits_of(ensemble)
    whole = results_of(ensemble, words)
    wanted = [sum((value >> o * bits & 3) << 2 * i for i, o in enumerate((0, 2, 4))) for value in whole]
    assert results_of(part, words) == wanted


def test_drawn_rows_are_what_the_encoder_can_give() -> None:
    """Binary features and border bits have the words 0 and 2 only; the first rows are the extremes."""
    random = np.random.default_rng(13)
    ensemble = random_ensemble(random, patch=PATCH, input_shape=(2, 4, 5))
    words = drawn_rows(ensemble, 200, random)
    assert set(words[0]) == {0}
    assert set(words[1]) == {2}
    assert set(words[:, : 2 * PATCH.area].ravel()) == {0, 1, 2}
    assert set(words[:, 2 * PATCH.area :].ravel()) == {0, 2}
    binary = random_ensemble(random, binary=True)
    assert set(drawn_rows(binary, 200, random).ravel()) == {0, 2}


def test_the_encoder_compares_as_numpy_does() -> None:
    """Zeros of both signs, denormals, neighbours of thresholds, infinities and what is no number included."""
    thresholds = np.array([-0.66, 0.0, -0.0, 0.66, -1e-40, 1e-40, 3e38, -3e38], np.float32)
    near = [np.nextafter(thresholds, np.float32(side)) for side in (-np.inf, np.inf)]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.0, -1.0], np.float32)
    values = np.concatenate([thresholds, *near, special])
    pairs = [(float(low), float(high)) for low, high in itertools.product(thresholds, repeat=2) if low <= high]
    encoder = Encoder(low=tuple(low for low, _ in pairs), high=tuple(high for _, high in pairs))
    rows = np.repeat(values[:, None], len(pairs), axis=1)
    found = simulate_encoder(encoder, rows)
    for value, bits in zip(values, found, strict=True):
        wanted = sum(
            (int(value > low) | int(value > high) << 1) << 2 * place for place, (low, high) in enumerate(pairs)
        )
        assert bits == wanted, value
