"""What cutting between layers costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit import GraphBuilder, Model
from framefit.planning.partition import candidate_pieces, paired, planned_quantile_ns, pooled_excess, priced_pieces
from networks import NETWORKS


def chain(layers: int) -> Model:
    """Equal convolutions in a row."""
    b = GraphBuilder("chain")
    x = b.input("image", (1, 4, 8, 8))
    for _ in range(layers):
        x = b.conv(x, 4)
    b.output(x, "features")
    return b.build()


def assert_covers(model: Model, runs: list[tuple[int, int]]) -> None:
    """All layers once, in order, with legal cuts between the runs."""
    assert [layer for first, last in runs for layer in range(first, last + 1)] == list(range(len(model.layers)))
    legal = {cut.position for cut in model.legal_cuts}
    assert {last + 1 for _, last in runs[:-1]} <= legal


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("most", [1, 3, 64])
def test_candidates_cover_the_model_at_legal_cuts(name: str, most: int) -> None:
    """Pieces cover all layers without gaps, and every end is a legal cut."""
    model = NETWORKS[name]()
    runs = candidate_pieces(model, most)
    assert_covers(model, runs)
    assert len(runs) <= most + 2


def test_a_short_model_offers_every_legal_cut() -> None:
    """With fewer layers than asked for, each legal cut is a candidate."""
    model = NETWORKS["residual"]()
    assert len(candidate_pieces(model, 64)) == len(model.legal_cuts) + 1


def test_a_long_model_is_cut_into_pieces_of_like_cost() -> None:
    """60 equal layers in about 8 pieces: none is longer than twice the mean."""
    model = chain(60)
    runs = candidate_pieces(model, 8)
    assert_covers(model, runs)
    assert 8 <= len(runs) <= 9
    assert max(last - first + 1 for first, last in runs) <= 2 * 60 / 8


def test_among_cuts_close_together_the_cheapest_is_taken() -> None:
    """Where one layer shrinks its output, the cut behind it is preferred to its neighbours."""
    b = GraphBuilder("bottleneck")
    x = b.input("image", (1, 8, 8, 8))
    for index in range(12):
        x = b.conv(x, 1 if index % 4 == 2 else 8)
    b.output(x, "features")
    model = b.build()
    ends = {last for _, last in candidate_pieces(model, 3)[:-1]}
    assert ends == {2, 6, 10}


singles_and_pairs = st.lists(st.integers(10, 10_000), min_size=1, max_size=10).flatmap(
    lambda single: st.tuples(
        st.just(single),
        st.tuples(*(st.integers(max(a, b), int((a + b) * 1.2)) for a, b in itertools.pairwise(single))),
    )
)


@given(singles_and_pairs, st.integers(10, 100_000))
def test_pieces_without_their_boundaries_are_the_whole_model(
    measured: tuple[list[int], tuple[int, ...]], whole_ns: int
) -> None:
    """Sum of the pieces minus what the boundaries cost is the measured whole, whatever the pieces took."""
    single, pair = measured
    pieces = priced_pieces(single, pair, whole_ns, excess=1.2)
    rounding = 2 * len(single)
    assert pieces.median_ns.sum() - pieces.boundary_ns.sum() == pytest.approx(whole_ns, abs=rounding)
    assert pieces.joined()[0][0, -1] == pytest.approx(whole_ns, abs=rounding)


def test_boundaries_share_what_the_pieces_take_more_than_the_whole_model() -> None:
    """1000 + 2000 + 3000 apart, 5400 whole: 600, of which 70 % go where a pair is quicker and 30 % evenly."""
    pieces = priced_pieces([1000, 2000, 3000], [2400, 5500], whole_ns=5400, excess=1.5)
    assert pieces.boundary_ns.tolist() == pytest.approx([510, 90], abs=1)
    assert pieces.median_ns.tolist() == pytest.approx([1000, 2000, 3000], abs=1)
    assert pieces.quantile_ns.tolist() == pytest.approx([1500, 3000, 4500], abs=2)


@pytest.mark.parametrize(
    ("pairs", "whole", "boundaries"), [([3000, 5000], 5400, [300, 300]), ([2400, 4000], 6500, [0, 0])]
)
def test_boundaries_without_a_measured_price(pairs: list[int], whole: int, boundaries: list[int]) -> None:
    """Pairs that are never quicker share evenly; pieces that together are quicker than the whole cost nothing."""
    pieces = priced_pieces([1000, 2000, 3000], pairs, whole_ns=whole, excess=1.0)
    assert pieces.boundary_ns.tolist() == pytest.approx(boundaries, abs=1)
    assert pieces.median_ns.sum() - pieces.boundary_ns.sum() == pytest.approx(whole, abs=6)


@pytest.mark.parametrize("count", [1, 2, 5, 6])
@pytest.mark.parametrize("start", [0, 1])
def test_pairs_join_neighbours(count: int, start: int) -> None:
    """Runs from ``start`` on become pairs; every layer is still covered once."""
    runs = [(3 * index, 3 * index + 2) for index in range(count)]
    joined = paired(runs, start)
    assert [layer for first, last in joined for layer in range(first, last + 1)] == list(range(3 * count))
    lengths = [(last - first + 1) // 3 for first, last in joined]
    rest = count - start
    assert lengths == [1] * start + [2] * (rest // 2) + [1] * (rest % 2)


@pytest.mark.parametrize("count", range(2, 8))
def test_both_pairings_together_time_every_pair_once(count: int) -> None:
    """The pair of pieces i and i + 1 is entry i // 2 (even) or (i + 1) // 2 (odd) of the two joined models."""
    runs = [(index, index) for index in range(count)]
    pairings = [paired(runs, 0), paired(runs, 1)]
    for left in range(count - 1):
        assert pairings[left % 2][(left + left % 2) // 2] == (left, left + 1)


def test_excess_is_pooled_relative_to_each_median() -> None:
    """Launches of different length with the same relative spread give that spread's quantile."""
    relative = np.linspace(0.8, 1.2, 101)
    samples = [(scale * relative).astype(np.int64) for scale in (10_000, 1_000_000)]
    assert pooled_excess(samples, 0.99) == pytest.approx(np.quantile(relative, 0.99), rel=1e-3)


def test_excess_is_never_below_one() -> None:
    """A planned quantile is at least the median, whatever quantile is asked for."""
    assert pooled_excess([np.asarray([100, 100, 100])], 0.5) == 1.0
    assert pooled_excess([np.asarray([50, 100, 101])], 0.1) == 1.0


def test_a_launch_with_more_spread_than_the_others_keeps_its_own() -> None:
    """The planned quantile is the pooled excess on the median, or the launch's own p90 where that is more."""
    steady, wild = np.full(20, 100), np.asarray([100] * 15 + [300] * 5)
    assert planned_quantile_ns(steady, 1.1) == 110
    assert planned_quantile_ns(wild, 1.1) == 300
