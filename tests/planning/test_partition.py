"""Where a model is cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import some_pieces, uniform

from framefit.planning.partition import Pieces, partition

Runs = list[tuple[int, int]]


def median_of(pieces: Pieces, first: int, last: int) -> float:
    """Sum of a run's pieces without the boundaries inside it."""
    return float(sum(pieces.median_ns[first : last + 1]) - sum(pieces.boundary_ns[first:last]))


def quantile_of(pieces: Pieces, first: int, last: int) -> float:
    """A run's median and the sum of its excesses; boundaries that are not cut have none."""
    excess = [float(q - m) for q, m in zip(pieces.quantile_ns, pieces.median_ns, strict=True)]
    ratio = [e / max(float(m), 1) for e, m in zip(excess, pieces.median_ns, strict=True)]
    inner = [float(b) * (ratio[i] + ratio[i + 1]) / 2 for i, b in enumerate(pieces.boundary_ns)]
    return median_of(pieces, first, last) + max(sum(excess[first : last + 1]) - sum(inner[first:last]), 0)


def cost_of(pieces: Pieces, runs: Runs, residual_ns: int) -> float:
    """What the module's text says that a set of cuts loses."""
    idle = sum(median_of(pieces, *run) * quantile_of(pieces, *run) for run in runs) / (2 * residual_ns)
    return idle + boundaries_of(pieces, runs)


def boundaries_of(pieces: Pieces, runs: Runs) -> float:
    """What its boundaries cost."""
    return float(sum(pieces.boundary_ns[last] for _, last in runs[:-1]))


def every_partition(count: int) -> list[Runs]:
    """All ways to cut ``count`` pieces."""
    return [
        [(first, end - 1) for first, end in itertools.pairwise([0, *cuts, count])]
        for number in range(count)
        for cuts in itertools.combinations(range(1, count), number)
    ]


@settings(max_examples=300)
@given(some_pieces(), st.integers(1, 4000), st.floats(0.3, 1))
def test_no_set_of_cuts_loses_less(pieces: Pieces, residual_ns: int, share: float) -> None:
    """Of all legal cut sets the best, if its boundaries add at most 2 %, or all add more; else one that does not."""
    limit_ns = max(int(residual_ns * share), 1)
    legal = [
        runs for runs in every_partition(len(pieces)) if all(quantile_of(pieces, *run) <= limit_ns for run in runs)
    ]
    chosen = partition(pieces, residual_ns, limit_ns)
    if not legal:
        assert chosen is None
        return
    assert chosen in legal
    best = min(legal, key=lambda runs: cost_of(pieces, runs, residual_ns))
    most = 0.02 * median_of(pieces, 0, len(pieces) - 1)
    if boundaries_of(pieces, best) <= most or min(boundaries_of(pieces, runs) for runs in legal) > most:
        assert cost_of(pieces, chosen, residual_ns) == pytest.approx(cost_of(pieces, best, residual_ns))
    else:
        assert boundaries_of(pieces, chosen) <= most


@given(some_pieces())
def test_a_piece_above_the_limit_leaves_no_partition(pieces: Pieces) -> None:
    """A limit just below the longest piece gives None; just above it there are segments."""
    longest = int(pieces.quantile_ns.max())
    assert partition(pieces, longest, longest - 1) is None
    assert partition(pieces, longest + 2, longest + 1) is not None


def test_cheap_boundaries_are_cut_finely_and_dear_ones_not() -> None:
    """Ten equal pieces: free boundaries are all cut, those dearer than the idle time saved are not."""
    ten = np.full(10, 100)
    free = Pieces(ten, ten, np.zeros(9, np.int64))
    assert partition(free, 2000, 2000) == [(index, index) for index in range(10)]
    dear = Pieces(ten, ten, np.full(9, 90))
    assert partition(dear, 2000, 2000) == [(0, 9)]


@given(some_pieces())
def test_joined_is_what_a_loop_over_the_runs_gives(pieces: Pieces) -> None:
    """Median and quantile of every run match sums made piece by piece."""
    median, quantile = pieces.joined()
    for first in range(len(pieces)):
        for last in range(first, len(pieces)):
            assert median[first, last] == pytest.approx(median_of(pieces, first, last))
            assert quantile[first, last] == pytest.approx(quantile_of(pieces, first, last))


def test_a_joined_run_has_the_excess_of_its_pieces_and_of_no_boundary_inside() -> None:
    """20 % over the median, each piece with its boundaries: the whole model, which pays none, is 20 % over its own."""
    pieces = Pieces(np.full(5, 300), np.full(5, 360), np.full(4, 200))
    median, quantile = pieces.joined()
    assert median[0, 4] == 700
    assert quantile[0, 4] == pytest.approx(840)


@given(some_pieces())
def test_chosen_runs_cost_what_the_matrices_say(pieces: Pieces) -> None:
    """``of`` some runs is ``joined`` at their places."""
    median, quantile = pieces.joined()
    runs = [(first, last) for first in range(len(pieces)) for last in range(first, len(pieces))]
    some_median, some_quantile = pieces.of(runs)
    assert some_median.tolist() == pytest.approx([median[run] for run in runs])
    assert some_quantile.tolist() == pytest.approx([quantile[run] for run in runs])


def legal_partitions(pieces: Pieces, limit_ns: int) -> list[Runs]:
    """All ways to cut in which every segment fits."""
    return [runs for runs in every_partition(len(pieces)) if all(quantile_of(pieces, *run) <= limit_ns for run in runs)]


@given(some_pieces(), st.integers(1, 4000))
def test_fewest_is_the_least_number_at_the_cheapest_boundaries(pieces: Pieces, limit_ns: int) -> None:
    """No legal cut set has fewer segments, and none of that many cheaper boundaries."""
    legal = legal_partitions(pieces, limit_ns)
    chosen = partition(pieces, limit_ns, limit_ns, "fewest")
    if not legal:
        assert chosen is None
        return
    assert chosen in legal
    least = min(map(len, legal))
    assert len(chosen) == least
    prices = [sum(int(pieces.boundary_ns[last]) for _, last in runs[:-1]) for runs in legal if len(runs) == least]
    assert sum(int(pieces.boundary_ns[last]) for _, last in chosen[:-1]) == min(prices)


@given(some_pieces(), st.integers(1, 4000))
def test_equal_has_the_least_number_and_the_least_sum_of_squares(pieces: Pieces, limit_ns: int) -> None:
    """As many segments as "fewest", of the most equal medians that are legal."""
    legal = legal_partitions(pieces, limit_ns)
    chosen = partition(pieces, limit_ns, limit_ns, "equal")
    if not legal:
        assert chosen is None
        return
    assert chosen in legal
    least = min(map(len, legal))
    assert len(chosen) == least

    def squares(runs: Runs) -> float:
        return sum(median_of(pieces, *run) ** 2 for run in runs)

    assert squares(chosen) == pytest.approx(min(squares(runs) for runs in legal if len(runs) == least))


def test_the_three_modes_differ_where_they_should() -> None:
    """Six pieces of 10, limit 40: single pieces, then 2 segments cut anywhere that fits, then 30 and 30."""
    six = uniform([10] * 6)
    assert len(partition(six, 40, 40) or []) == 6
    assert len(partition(six, 40, 40, "fewest") or []) == 2
    assert partition(six, 40, 40, "equal") == [(0, 2), (3, 5)]


def test_scaling_keeps_the_boundaries() -> None:
    """What a piece takes beside its boundaries is multiplied; their halves stay, and so does its excess."""
    pieces = Pieces(np.asarray([110, 210]), np.asarray([132, 252]), np.asarray([20]))
    scaled = pieces.scaled(np.asarray([2.0, 0.5]))
    assert scaled.median_ns.tolist() == [210, 110]
    assert scaled.quantile_ns.tolist() == [252, 132]
    assert scaled.boundary_ns.tolist() == [20]


def test_a_boundary_too_many_is_refused() -> None:
    """Two pieces have one boundary, not two."""
    with pytest.raises(ValueError, match="n - 1 boundaries"):
        Pieces(np.asarray([1, 2]), np.asarray([1, 2]), np.asarray([0, 0]))
